//! Methods, tenants and setups that several sections of the experiment use.

use std::collections::BTreeMap;

use evenkeel_control::Duration;
use evenkeel_control::admission::{Config, ElasticConfig, SlowFastConfig};
use evenkeel_control::mclock::Qos;
use evenkeel_model::device::DeviceParams;

use crate::experiment::paired::{self, Figures};
use crate::experiment::{Better, Digest, Options, Row, Section};
use crate::statistics::Estimate;
use crate::world::{Client, Setup, Tenant};

/// Admission cost of a request on top of its payload, in bytes: BlueStore's for an SSD, used for every device here.
const BASE_COST_BYTES: u32 = 4_000;

/// Fixed budgets of the paper, in KiB.
pub(super) const GRID_KIB: [u32; 4] = [128, 256, 512, 1024];

/// A method of admission control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Method {
    /// No admission control: no bound on the bytes in flight.
    None,
    /// A fixed admission budget, in KiB.
    Fixed(u32),
    /// SlowFast CoDel as published, with the paper's trade-off.
    Published,
    /// SlowFast CoDel with the published algorithm's defects repaired.
    Repaired,
    /// SlowFast CoDel's later variant by the same authors.
    Theta,
    /// Linux's writeback throttle.
    Wbt,
    /// A budget that adapts as the window of TCP Vegas does.
    Vegas,
    /// A budget that follows the ratio of long-term to present latency.
    Gradient,
    /// The project's own method, `elastic`.
    Elastic,
}

impl Method {
    /// All methods that are compared.
    pub(super) fn all() -> Vec<Self> {
        let adaptive =
            [Self::Published, Self::Repaired, Self::Theta, Self::Wbt, Self::Vegas, Self::Gradient, Self::Elastic];
        std::iter::once(Self::None).chain(GRID_KIB.map(Self::Fixed)).chain(adaptive).collect()
    }

    /// True if the method adapts its budget.
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

    /// The method's settings. `rotational` affects only Linux's writeback throttle: its latency target is 75 ms, otherwise 2 ms.
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

/// A tenant with a weight and no other policy.
pub(super) fn tenant(name: &str, weight: u32) -> Tenant {
    Tenant::new(name, Qos { weight, ..Qos::default() })
}

/// A setup with [`BASE_COST_BYTES`], without admission control, changes or warm-up; one sample covers the whole run.
pub(super) fn setup(device: DeviceParams, tenants: Vec<Tenant>, clients: Vec<Client>, duration: Duration) -> Setup {
    let mut setup = Setup::new(device, tenants, clients, duration);
    setup.pool.base_cost_bytes = BASE_COST_BYTES;
    setup
}

/// A duration in seconds, with fraction.
pub(super) fn seconds(s: f64) -> Duration {
    Duration::from_nanos((s * 1e9) as u64)
}

/// Mean and confidence interval of a figure over `runs`.
pub(super) fn estimate<T>(runs: &[T], figure: impl Fn(&T) -> f64) -> Estimate {
    Estimate::over(runs, figure)
}

/// Mean of a figure over `runs`.
pub(super) fn mean<T>(runs: &[T], figure: impl Fn(&T) -> f64) -> f64 {
    estimate(runs, figure).mean
}

/// The p99 latency of the tenant at `place`; infinite if none of its requests completed, as the percentile is then 0.
pub(super) fn p99_ms(run: &Digest, place: usize) -> f64 {
    let tenant = &run.tenants[place];
    if tenant.requests > 0 { tenant.response.p99_ms } else { f64::INFINITY }
}

/// The report rows of one metric. The first row shows `baseline`, SlowFast CoDel as published, and `elastic`; each other
/// method has a row of its own, with the method's name appended to the metric's.
pub(super) fn rows(row: &Row, baseline: Method, values: &BTreeMap<Method, Estimate>) -> Vec<Row> {
    let columns = [baseline, Method::Published, Method::Elastic];
    let others = values.iter().filter(|(method, _)| !columns.contains(method));
    let others = others.map(|(method, estimate)| (method.name(), Some(estimate.mean)));
    row.columns(columns.map(|method| values.get(&method).copied()), others)
}

/// As [`rows`], with the ends of intervals, from each method's figures by seed.
pub(super) fn paired_rows(row: &Row, baseline: Method, values: &BTreeMap<Method, Figures>) -> Vec<Row> {
    let columns = [baseline, Method::Published, Method::Elastic];
    let others = values.iter().filter(|(method, _)| !columns.contains(method));
    let others = others.map(|(method, figures)| (method.name(), figures.clone()));
    paired::columns(row, columns.map(|method| values.get(&method).cloned()), others)
}

/// The means of each method's figures.
pub(super) fn estimates(values: &BTreeMap<Method, Figures>) -> BTreeMap<Method, Estimate> {
    values.iter().map(|(&method, figures)| (method, Estimate::of(figures))).collect()
}

/// The cases of a section that have a bar, and those without one.
#[derive(Default)]
pub(super) struct Judged {
    with_bar: u32,
    met: u32,
    idle: Vec<String>,
    /// Idle cases in which the project's own method misses what is met without it.
    worse: u32,
}

impl Judged {
    /// Counts a case. It has no bar if it is idle; `is_met`: the project's own method meets the bar.
    pub(super) fn count(&mut self, case: &str, is_idle: bool, is_met: bool) {
        if is_idle {
            self.idle.push(case.to_owned());
            self.worse += u32::from(!is_met);
        } else {
            self.with_bar += 1;
            self.met += u32::from(is_met);
        }
    }

    /// Adds to the section the share of the cases with a bar that meet it, and the cases without one with the reason. None of
    /// these may be missed.
    pub(super) fn report(self, section: &mut Section, (case, metric): (&str, &str), bar: f64, why: &str) {
        if self.with_bar > 0 {
            section.rows.push(Row {
                evenkeel: Some(100.0 * f64::from(self.met) / f64::from(self.with_bar)),
                bar: Some(bar),
                ..Row::new(case, metric, "%", Better::Higher)
            });
        }
        if !self.idle.is_empty() {
            section.rows.push(Row {
                evenkeel: Some(f64::from(self.worse)),
                bar: Some(0.0),
                ..Row::new("all cases without a bar", "cases_without_bar_missed", "", Better::Lower)
            });
            section.text.push(format!("{why}: {}.", self.idle.join("; ")));
        }
    }
}

/// The seeds of a method other than the project's own: all if their number was given, otherwise the first `most`, because runs
/// take long.
pub(super) fn few<'a>(options: &Options, seeds: &'a [u64], most: usize) -> &'a [u64] {
    if options.seeds.is_some() { seeds } else { &seeds[..seeds.len().min(most)] }
}

#[cfg(test)]
mod tests {
    use evenkeel_control::Instant;

    use super::*;
    use crate::experiment::{LatencyDigest, TenantDigest};
    use crate::world::{BudgetSpread, Deficit};

    #[test]
    fn a_tenant_that_completes_nothing_is_not_fast() {
        let run = |requests: u64| {
            let p99_ms = if requests > 0 { 7.0 } else { 0.0 };
            let latency = LatencyDigest { mean_ms: 0.0, p50_ms: 0.0, p95_ms: 0.0, p99_ms, p999_ms: 0.0 };
            let tenant = TenantDigest {
                requests,
                bytes_per_s: 0.0,
                response: latency,
                device: latency,
                inversion_s: 0.0,
                deficit: Deficit::default(),
            };
            Digest {
                bytes_per_s: 0.0,
                requests_per_s: 0.0,
                throttled: false,
                budget: BudgetSpread { mean_bytes: 0.0, cv: 0.0, min_bytes: 0, max_bytes: 0 },
                tenants: vec![tenant],
                counted_from: Instant::ZERO,
                series: Vec::new(),
            }
        };
        assert_eq!((p99_ms(&run(1), 0), p99_ms(&run(0), 0)), (7.0, f64::INFINITY));
    }

    #[test]
    fn a_case_that_is_worse_than_without_control_is_not_excluded() {
        let section = |ours: [bool; 3]| {
            let (mut judged, mut section) = (Judged::default(), Section::default());
            judged.count("hard", false, ours[0]);
            judged.count("easy", true, ours[1]);
            judged.count("easier", true, ours[2]);
            judged.report(&mut section, ("all", "met_percent"), 90.0, "Without a bar");
            let rows = section.rows.iter().map(|row| (row.metric.clone(), row.evenkeel, row.is_met()));
            (rows.collect::<Vec<_>>(), section.text)
        };
        let share = ("met_percent".to_owned(), Some(100.0), Some(true));
        let worse = |count, met| ("cases_without_bar_missed".to_owned(), Some(count), Some(met));
        let text = vec!["Without a bar: easy; easier.".to_owned()];
        assert_eq!(section([true; 3]), (vec![share.clone(), worse(0.0, true)], text.clone()));
        assert_eq!(section([true, false, true]), (vec![share, worse(1.0, false)], text));
    }
}
