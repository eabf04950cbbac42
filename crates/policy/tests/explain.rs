//! Sentences about decisions: what a person reads.

use evenkeel_control::Duration;
use evenkeel_control::admission::Reason;
use evenkeel_policy::explain;

#[test]
fn every_reason_of_a_budget_has_its_sentence() {
    let ms = Duration::from_millis;
    for (reason, sentence) in [
        (Reason::Initial, "starting value"),
        (Reason::Configured, "as configured"),
        (Reason::Idle, "no request is in flight"),
        (Reason::Stalled { inside_bytes: 65_536 }, "nothing completes, with 64KiB in flight"),
        (
            Reason::LatencyOverTarget { min: ms(9), target: ms(5) },
            "lowest latency 9.00 ms > target 5.00 ms: reducing the budget",
        ),
        (
            Reason::LatencyUnderTarget { min: ms(4), target: ms(5) },
            "lowest latency 4.00 ms <= target 5.00 ms: increasing the budget",
        ),
        (
            Reason::BudgetNotUsed { peak_bytes: 4096 },
            "target met with at most 4KiB in flight: a larger budget would change nothing",
        ),
        (Reason::BudgetAtMaximum, "target met, and the budget is the largest allowed"),
        (
            Reason::TargetExplored { optimum: ms(5), samples: 3 },
            "target drawn around 5.00 ms: 3 samples are too few for a fit",
        ),
        (
            Reason::TargetFitted { optimum: ms(5), slope_mib_per_s: 1.5 },
            "target drawn around the fitted optimum 5.00 ms (slope 1.5 MiB/s)",
        ),
        (Reason::FitDegenerate { samples: 100 }, "100 samples at one target determine no curve: optimum kept"),
        (
            Reason::AppLimited { waited: 1, completions: 10 },
            "load too light to learn from: requests waited for the budget at 1 of 10 completions",
        ),
        (Reason::IncreasePays { gain: 0.157 }, "a larger budget brings 15.7 % more throughput: taken"),
        (Reason::IncreaseFutile { gain: -0.157 }, "a larger budget would lose 15.7 % of throughput"),
        (Reason::IncreaseFutile { gain: 0.01 }, "a larger budget would bring only 1.0 % more throughput"),
        (Reason::ReductionFree { loss: -0.535 }, "a smaller budget brings 53.5 % more throughput: taken"),
        (Reason::ReductionFree { loss: 0.01 }, "a smaller budget loses only 1.0 % of throughput: taken"),
        (Reason::ReductionCosts { loss: 0.2 }, "a smaller budget would lose 20.0 % of throughput"),
    ] {
        assert_eq!(explain::admission(&reason), sentence);
    }
}
