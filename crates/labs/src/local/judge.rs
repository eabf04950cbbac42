//! Judges the agent by the other means of a comparison.

use crate::check::figures::Figures;

/// Bar: the smallest part of windows that meet the target, in percent.
const MET: f64 = 99.0;
/// Bar: the smallest throughput as a part of that under the best limit by hand, in percent.
const KEPT: f64 = 95.0;
/// Part by which one of two means has to be better to count as better.
const BETTER: f64 = 0.2;
/// Part by which the throughputs of two equal means may differ by chance.
const CHANCE: f64 = 0.02;

/// The figures of a means that are compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Outcome {
    /// Part of windows that miss the target, in percent; 100 without a window.
    pub(super) missed: f64,
    /// Throughput of both groups.
    pub(super) mb_per_s: f64,
}

/// Records the bars that the agent has to meet. `windows`: least number of windows, and that of this run. `best`: throughput
/// under the best limit by hand, `None` if no limit meets the target.
pub(super) fn bars(figures: &mut Figures, ours: &Outcome, windows: Option<[u32; 2]>, best: Option<f64>) {
    if let Some([least, all]) = windows {
        figures.at_least("windows", f64::from(all), 1.0, f64::from(least));
    }
    figures.at_least("target_met_percent", 100.0 - ours.missed, 0.0, MET);
    if let Some(best) = best {
        figures.at_least("throughput_of_best_limit_percent", ours.mb_per_s / best * 100.0, 0.0, KEPT);
    }
}

/// The agent compared with io.cost, as text: where io.cost stays the right choice, it says so.
pub(super) fn beside_io_cost(ours: &Outcome, other: &Outcome) -> String {
    let figures = format!(
        "the agent misses the target in {:.1} % of windows at {:.1} MB/s, io.cost in {:.1} % at {:.1} MB/s",
        ours.missed, ours.mb_per_s, other.missed, other.mb_per_s
    );
    // All that meet the bar meet the target alike.
    let both_meet = ours.missed.max(other.missed) <= 100.0 - MET;
    let misses_more = !both_meet && ours.missed > other.missed;
    let misses_less = !both_meet && ours.missed <= (1.0 - BETTER) * other.missed;
    let moves_less = ours.mb_per_s < (1.0 - CHANCE) * other.mb_per_s;
    let moves_more = ours.mb_per_s >= (1.0 + BETTER) * other.mb_per_s;
    let verdict = match (misses_more, moves_less) {
        (true, true) => "io.cost is the right choice here, as it meets the target more often and moves more",
        (true, false) => "io.cost is the right choice here, as it meets the target more often",
        (false, true) if misses_less => "io.cost is the right choice where throughput counts more than the target",
        (false, true) => "io.cost is the right choice here, as it moves more",
        (false, false) if misses_less || moves_more => "the agent is better than io.cost",
        (false, false) => "the agent is hardly better than io.cost, which stays the simpler choice",
    };
    format!("{verdict}: {figures}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(missed: f64, mb_per_s: f64) -> Outcome {
        Outcome { missed, mb_per_s }
    }

    #[test]
    fn where_io_cost_stays_the_right_choice_is_named_with_the_reason() {
        let said = |ours: [f64; 2], other: [f64; 2]| {
            let text = beside_io_cost(&outcome(ours[0], ours[1]), &outcome(other[0], other[1]));
            text.split(": ").next().unwrap().to_owned()
        };
        assert!(said([0.5, 100.0], [10.0, 101.0]).contains("the agent is better"), "fewer windows");
        assert!(said([0.5, 125.0], [0.0, 100.0]).contains("the agent is better"), "both meet the target");
        assert!(said([9.0, 100.0], [10.0, 100.0]).contains("hardly better"));
        assert!(said([2.0, 120.0], [0.5, 100.0]).contains("meets the target more often"));
        assert!(said([2.0, 80.0], [0.5, 100.0]).contains("more often and moves more"));
        assert!(said([0.5, 80.0], [10.0, 100.0]).contains("throughput counts more"));
        assert!(said([0.5, 80.0], [0.5, 100.0]).ends_with("as it moves more"));
    }

    #[test]
    fn bars_are_for_windows_target_and_throughput() {
        let judged = |ours: &Outcome, windows, best| {
            let mut figures = Figures::default();
            bars(&mut figures, ours, windows, best);
            (figures.lines().len(), figures.missed())
        };
        assert_eq!(judged(&outcome(1.0, 96.0), Some([100, 100]), Some(100.0)), (3, Vec::new()));
        let missed = ["windows", "target_met_percent", "throughput_of_best_limit_percent"].map(str::to_owned).to_vec();
        assert_eq!(judged(&outcome(1.1, 94.0), Some([100, 99]), Some(100.0)), (3, missed));
        assert_eq!(judged(&outcome(0.0, 1.0), None, None), (1, Vec::new()));
    }
}
