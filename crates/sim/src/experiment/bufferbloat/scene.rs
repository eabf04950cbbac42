//! Devices, tenants and methods that the sections share.

use std::collections::BTreeMap;

use evenkeel_control::admission::{Config, ElasticConfig, SlowFastConfig};
use evenkeel_control::mclock::{CostModel, Qos};
use evenkeel_control::pool::{self, Scheduler};
use evenkeel_control::units::Rates;
use evenkeel_control::{Duration, Instant};
use evenkeel_model::device::DeviceParams;

use crate::experiment::Row;
use crate::statistics::Estimate;
use crate::workload::Spec;
use crate::world::{Client, Setup, Tenant};

/// What BlueStore charges a request on an SSD on top of its payload, in bytes; here for every device.
const BASE_COST_BYTES: u32 = 4_000;

/// Fixed budgets of the paper, in KiB.
pub(super) const GRID_KIB: [u32; 4] = [128, 256, 512, 1024];

/// A way to bound what is inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Method {
    /// Not at all.
    None,
    /// So many KiB.
    Fixed(u32),
    /// SlowFast CoDel as published, with the paper's trade-off.
    Published,
    /// SlowFast CoDel with every defect repaired.
    Repaired,
    /// The authors' later variant.
    Theta,
    /// Linux's writeback throttle.
    Wbt,
    /// As TCP Vegas.
    Vegas,
    /// By the ratio of latencies.
    Gradient,
    /// Ours.
    Elastic,
}

impl Method {
    /// All that are compared.
    pub(super) fn all() -> Vec<Self> {
        let adaptive =
            [Self::Published, Self::Repaired, Self::Theta, Self::Wbt, Self::Vegas, Self::Gradient, Self::Elastic];
        std::iter::once(Self::None).chain(GRID_KIB.map(Self::Fixed)).chain(adaptive).collect()
    }

    /// Name in results.
    pub(super) fn name(self) -> String {
        match self {
            Self::None => "none".to_owned(),
            Self::Fixed(kib) => format!("fixed_{kib}kib"),
            Self::Published => "slowfast_published".to_owned(),
            Self::Repaired => "slowfast".to_owned(),
            Self::Theta => "theta".to_owned(),
            Self::Wbt => "wbt".to_owned(),
            Self::Vegas => "vegas".to_owned(),
            Self::Gradient => "gradient".to_owned(),
            Self::Elastic => "elastic".to_owned(),
        }
    }

    /// Its settings. `rotational` is what the writeback throttle of Linux asks the device for its target: 2 or 75 ms.
    pub(super) fn config(self, rotational: bool) -> Config {
        match self {
            Self::None => Config::None,
            Self::Fixed(kib) => Config::Fixed { budget_bytes: u64::from(kib) << 10 },
            Self::Published => Config::SlowFast(SlowFastConfig::PUBLISHED),
            Self::Repaired => Config::SlowFast(SlowFastConfig::REPAIRED),
            Self::Theta => Config::Theta,
            Self::Wbt => Config::Wbt { target: Duration::from_millis(if rotational { 75 } else { 2 }) },
            Self::Vegas => Config::Vegas,
            Self::Gradient => Config::Gradient,
            Self::Elastic => Config::Elastic(ElasticConfig::default()),
        }
    }
}

/// A tenant by weight.
pub(super) fn tenant(name: &str, weight: u32) -> Tenant {
    Tenant::new(name, Qos { weight, ..Qos::default() })
}

/// A client that is there from the beginning to the end.
pub(super) fn client(tenant: usize, workload: Spec) -> Client {
    Client { tenant, workload, from: Instant::ZERO, until: Instant::FAR_FUTURE }
}

/// A setup without admission control, changes or warm-up, with a single sample.
pub(super) fn setup(device: DeviceParams, tenants: Vec<Tenant>, clients: Vec<Client>, duration: Duration) -> Setup {
    Setup {
        workers: None,
        device,
        pool: pool::Config {
            scheduler: Scheduler::Mclock,
            admission: Config::None,
            base_cost_bytes: BASE_COST_BYTES,
            cost: CostModel::default(),
            limit: Rates::UNSET,
            limit_burst: Duration::from_millis(10),
            target: None,
            slots: None,
        },
        tenants,
        clients,
        changes: Vec::new(),
        warmup: Duration::ZERO,
        duration,
        sample_every: duration,
    }
}

/// A duration in seconds, with fraction.
pub(super) fn seconds(s: f64) -> Duration {
    Duration::from_nanos((s * 1e9) as u64)
}

/// What a figure of each run says together.
pub(super) fn estimate<T>(runs: &[T], figure: impl Fn(&T) -> f64) -> Estimate {
    Estimate::of(&runs.iter().map(figure).collect::<Vec<f64>>())
}

/// The mean alone.
pub(super) fn mean<T>(runs: &[T], figure: impl Fn(&T) -> f64) -> f64 {
    estimate(runs, figure).mean
}

/// A metric of a case by method as rows: one with `baseline`, the published and our method side by side, and one for
/// each other method, whose name ends the metric's.
pub(super) fn rows(row: &Row, baseline: Method, values: &BTreeMap<Method, Estimate>) -> Vec<Row> {
    let figure = |method| values.get(&method).map(|estimate| estimate.mean);
    let ours = values.get(&Method::Elastic);
    let mut main = row.clone();
    main.baseline = figure(baseline);
    main.faithful = figure(Method::Published);
    main.evenkeel = figure(Method::Elastic);
    main.half_width = ours.map(|estimate| estimate.half_width).filter(|width| width.is_finite());
    let others = values.iter().filter(|(method, _)| ![baseline, Method::Published, Method::Elastic].contains(method));
    let others = others.map(|(method, estimate)| Row {
        method: Some(method.name()),
        baseline: Some(estimate.mean),
        evenkeel: main.evenkeel,
        bar: None,
        ..row.clone()
    });
    std::iter::once(main.clone()).chain(others).collect()
}
