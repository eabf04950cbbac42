//! Devices, tenants and methods that the sections share.

use std::collections::BTreeMap;

use evenkeel_control::admission::{Config, ElasticConfig, SlowFastConfig};
use evenkeel_control::mclock::Qos;
use evenkeel_control::{Duration, Instant};
use evenkeel_model::device::DeviceParams;

use crate::experiment::Row;
use crate::statistics::Estimate;
use crate::workload::Spec;
use crate::world::{Client, Setup, Tenant};

/// BlueStore's charge for a request on an SSD on top of its payload, in bytes; here for every device.
const BASE_COST_BYTES: u32 = 4_000;

/// Fixed budgets of the paper, in KiB.
pub(super) const GRID_KIB: [u32; 4] = [128, 256, 512, 1024];

/// A way to bound what is in flight.
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

    /// True if it finds its budget by itself.
    pub(super) fn adapts(self) -> bool {
        !matches!(self, Self::None | Self::Fixed(_))
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

/// A setup with the base cost of BlueStore, without admission control, changes or warm-up, with a single sample.
pub(super) fn setup(device: DeviceParams, tenants: Vec<Tenant>, clients: Vec<Client>, duration: Duration) -> Setup {
    let mut setup = Setup::new(device, tenants, clients, duration);
    setup.pool.base_cost_bytes = BASE_COST_BYTES;
    setup
}

/// A duration in seconds, with fraction.
pub(super) fn seconds(s: f64) -> Duration {
    Duration::from_nanos((s * 1e9) as u64)
}

/// The estimate of a figure over all runs.
pub(super) fn estimate<T>(runs: &[T], figure: impl Fn(&T) -> f64) -> Estimate {
    Estimate::over(runs, figure)
}

/// The mean alone.
pub(super) fn mean<T>(runs: &[T], figure: impl Fn(&T) -> f64) -> f64 {
    estimate(runs, figure).mean
}

/// A metric of a case by method as rows: one with `baseline`, the published and our method side by side, and one for
/// each other method, whose name ends the metric's.
pub(super) fn rows(row: &Row, baseline: Method, values: &BTreeMap<Method, Estimate>) -> Vec<Row> {
    let columns = [baseline, Method::Published, Method::Elastic];
    let others = values.iter().filter(|(method, _)| !columns.contains(method));
    let others = others.map(|(method, estimate)| (method.name(), Some(estimate.mean)));
    row.columns(columns.map(|method| values.get(&method).copied()), others)
}
