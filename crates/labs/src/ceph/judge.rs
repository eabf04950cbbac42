//! Judges a method of throttling an OSD by comparison with the best fixed budget on the same device.

use std::fmt;

use super::stage::Window;
use crate::check::run::Lab;

/// Bar: the lowest throughput of the bulk client, divided by its throughput without a throttle. A fixed budget with less is not
/// considered as the best one.
pub(crate) const LEAST_KEPT: f64 = 0.9;
/// Bar: the highest p99 latency of the light clients under the agent, divided by their p99 under the best fixed budget.
pub(crate) const MOST_P99: f64 = 1.3;

/// Bar: the highest median latency of the light clients under the agent, divided by their median without a throttle, on the
/// device at its usual speed and on a slower one.
pub(crate) const MOST_P50: f64 = 0.6;

/// Prints the figures of the window `method`, divided by those of the window `all`, which was measured without a throttle.
pub(crate) fn figures(lab: &Lab, method: &Window, all: &Window) {
    let kept = method.bulk_mb_per_s / all.bulk_mb_per_s;
    lab.figure("bulk_throughput_kept", &format!("{kept:.2}"), &format!("{LEAST_KEPT}"), kept >= LEAST_KEPT);
    let median = method.light_p50_ms / all.light_p50_ms;
    lab.figure("light_p50_of_unthrottled", &format!("{median:.2}"), &format!("{MOST_P50}"), median <= MOST_P50);
    let p99 = method.light_p99_ms / all.light_p99_ms;
    println!("lab: light p99 {p99:.2} times that without a throttle");
}

/// The comparison of a method with fixed budgets on the same device.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Verdict {
    /// The bulk client's throughput under the method, divided by its throughput without a throttle.
    pub(crate) kept: f64,
    /// The light clients' p99 latency under the method, divided by their p99 under the best fixed budget.
    pub(crate) p99: f64,
    /// Name of the best fixed budget.
    best: String,
}

impl Verdict {
    /// The verdict on `method`. `fixed` are the fixed budgets; the last one throttles no request. `None` if `fixed` is empty.
    pub(crate) fn of(method: &Window, fixed: &[Window]) -> Option<Self> {
        let all = fixed.last()?;
        let keeps = |window: &&Window| window.bulk_mb_per_s >= LEAST_KEPT * all.bulk_mb_per_s;
        let best = fixed.iter().filter(keeps).min_by(|a, b| a.light_p99_ms.total_cmp(&b.light_p99_ms))?;
        Some(Self {
            kept: method.bulk_mb_per_s / all.bulk_mb_per_s,
            p99: method.light_p99_ms / best.light_p99_ms,
            best: best.case.clone(),
        })
    }

    /// True if throughput and p99 meet their bars.
    pub(crate) fn holds(&self) -> bool {
        self.kept >= LEAST_KEPT && self.p99 <= MOST_P99
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kept, p99, best } = self;
        write!(
            f,
            "bulk {:.0} % of unthrottled (bar {:.0}), light p99 {p99:.2} times that of the best fixed budget, {best} \
             (bar {MOST_P99})",
            kept * 100.0,
            LEAST_KEPT * 100.0
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(case: &str, bulk_mb_per_s: f64, light_p99_ms: f64) -> Window {
        Window { case: case.to_owned(), bulk_mb_per_s, light_p99_ms, light_p50_ms: 1.0, samples: 1 }
    }

    #[test]
    fn the_best_is_the_quickest_of_those_that_keep_the_throughput() {
        let fixed = [window("starves", 80.0, 10.0), window("good", 91.0, 20.0), window("all", 100.0, 90.0)];
        let verdict = Verdict::of(&window("ours", 95.0, 25.0), &fixed).unwrap();
        assert_eq!(verdict, Verdict { kept: 0.95, p99: 1.25, best: "good".into() });
        assert!(verdict.holds());
        assert!(!Verdict::of(&window("slow", 95.0, 27.0), &fixed).unwrap().holds());
        assert!(!Verdict::of(&window("starves", 80.0, 10.0), &fixed).unwrap().holds());
        assert_eq!(Verdict::of(&window("ours", 95.0, 25.0), &[]), None);
    }
}
