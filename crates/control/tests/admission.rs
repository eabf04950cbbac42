//! Admission control as specified: the rule by which a request is admitted, and SlowFast CoDel as published.

use evenkeel_control::admission::{Admission, Config, InvalidConfig, Reason, Repairs, SlowFastConfig};
use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};

const KIB: u64 = 1 << 10;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn at_ms(n: u64) -> Instant {
    Instant::ZERO + ms(n)
}

fn published() -> Admission {
    Admission::new(Config::SlowFast(SlowFastConfig::PUBLISHED), Instant::ZERO, 1)
}

#[test]
fn the_throttle_follows_cephs_rule() {
    // (budget, inside, cost, fits)
    let rule = [
        (100, 0, 100, true),
        (100, 1, 99, true),
        (100, 1, 100, false),
        (100, 90, 11, false),
        // Larger than the budget: enters while the rest is within it, so that it enters at all.
        (100, 0, 500, true),
        (100, 100, 500, true),
        (100, 101, 500, false),
        (0, 0, 1, true),
        (0, 1, 1, false),
        (u64::MAX, u64::MAX - 1, u64::MAX, true),
    ];
    for (budget_bytes, inside, cost, fits) in rule {
        let mut admission = Admission::new(Config::Fixed { budget_bytes }, Instant::ZERO, 0);
        admission.admit(inside);
        assert_eq!(admission.fits(cost), fits, "budget {budget_bytes}, inside {inside}, cost {cost}");
    }
}

#[test]
fn without_admission_control_everything_fits_and_nothing_ticks() {
    let mut admission = Admission::new(Config::None, Instant::ZERO, 0);
    for _ in 0..1_000 {
        assert!(admission.fits(u64::MAX / 2));
        admission.admit(1 << 40);
    }
    assert_eq!(admission.next_tick(), Instant::FAR_FUTURE);
    assert_eq!(admission.in_flight_bytes(), 1_000 << 40);
    assert_eq!(admission.decision().budget_bytes, u64::MAX);
}

#[test]
fn observe_and_forget_give_the_cost_back() {
    let mut admission = Admission::new(Config::Fixed { budget_bytes: 100 }, Instant::ZERO, 0);
    admission.admit(60);
    admission.admit(40);
    assert!(!admission.fits(1));
    admission.observe(at_ms(1), 60, Kind::Read, 50, ms(1));
    assert_eq!(admission.in_flight_bytes(), 40);
    admission.forget(40);
    assert_eq!(admission.in_flight_bytes(), 0);
}

#[test]
fn the_defaults_are_the_published_constants() {
    let c = SlowFastConfig::default();
    assert_eq!((c.fast_interval, c.slow_interval), (ms(50), ms(500)));
    assert_eq!((c.target_initial, c.target_min, c.target_max), (ms(5), ms(1), ms(1_000)));
    assert_eq!((c.budget_initial_bytes, c.budget_min_bytes), (100 * KIB, 100 * KIB));
    assert_eq!(c.budget_increment_bytes, 10 * KIB);
    assert_eq!((c.budget_decrease_floor, c.budget_headroom), (0.5, 1.5));
    assert_eq!(c.history_samples, 100);
    assert_eq!(c.tradeoff_mib_per_s_per_ms, 0.1);
    assert_eq!(c.exploration_p99_factor, 5.0);
    assert_eq!(c.repairs, Repairs::NONE);
    assert_eq!(c.validate(), Ok(()));
    assert_eq!(SlowFastConfig::REPAIRED.validate(), Ok(()));
}

#[test]
fn invalid_settings_are_named() {
    let published = SlowFastConfig::PUBLISHED;
    let cases = [
        (SlowFastConfig { fast_interval: Duration::ZERO, ..published }, "fast_interval"),
        (SlowFastConfig { slow_interval: ms(49), ..published }, "slow_interval"),
        (SlowFastConfig { target_min: Duration::ZERO, ..published }, "target_min"),
        (SlowFastConfig { target_max: ms(1), ..published }, "target_max"),
        (SlowFastConfig { target_initial: ms(2_000), ..published }, "target_initial"),
        (SlowFastConfig { budget_min_bytes: 0, ..published }, "budget_min"),
        (SlowFastConfig { budget_max_bytes: 1, ..published }, "budget_max"),
        (SlowFastConfig { budget_initial_bytes: 1, ..published }, "budget_initial"),
        (SlowFastConfig { budget_increment_bytes: 0, ..published }, "budget_increment"),
        (SlowFastConfig { budget_decrease_floor: 1.0, ..published }, "budget_decrease_floor"),
        (SlowFastConfig { budget_headroom: f64::NAN, ..published }, "budget_headroom"),
        (SlowFastConfig { history_samples: 1, ..published }, "history_samples"),
        (SlowFastConfig { tradeoff_mib_per_s_per_ms: 0.0, ..published }, "tradeoff_mib_per_s_per_ms"),
        (SlowFastConfig { tradeoff_relative: -1.0, ..published }, "tradeoff_relative"),
        (SlowFastConfig { exploration_p99_factor: 1.0, ..published }, "exploration_p99_factor"),
    ];
    for (config, setting) in cases {
        let Err(InvalidConfig { setting: named, must_be }) = config.validate() else { panic!("{setting} accepted") };
        assert_eq!(named, setting);
        assert!(!must_be.is_empty());
    }
}

/// Admits one read that fills the budget, and completes it at `now` with this latency.
fn complete(admission: &mut Admission, now: Instant, latency: Duration) {
    let cost = admission.decision().budget_bytes;
    admission.admit(cost);
    admission.observe(now, cost, Kind::Read, 0, latency);
}

#[test]
fn a_violation_shrinks_the_budget_to_target_over_latency_but_not_below_half() {
    let grown = SlowFastConfig { budget_initial_bytes: 1_000 * KIB, ..SlowFastConfig::PUBLISHED };
    for (latency_ms, expected) in [(10, 500 * KIB), (100, 500 * KIB), (8, 640_000)] {
        let mut admission = Admission::new(Config::SlowFast(grown), Instant::ZERO, 1);
        complete(&mut admission, at_ms(49), ms(latency_ms));
        let decision = admission.tick(at_ms(50)).expect("an interval has ended");
        let budget_bytes = if latency_ms == 8 { 1_000 * KIB * 5 / 8 } else { expected };
        assert_eq!(decision.budget_bytes, budget_bytes);
        assert_eq!(decision.reason, Reason::LatencyOverTarget { min: ms(latency_ms), target: ms(5) });
        assert_eq!(decision.at, at_ms(50));
    }
}

#[test]
fn the_smallest_latency_counts_and_equal_to_the_target_is_no_violation() {
    let mut admission = published();
    complete(&mut admission, at_ms(10), ms(900));
    complete(&mut admission, at_ms(20), ms(5));
    complete(&mut admission, at_ms(30), ms(900));
    let decision = admission.tick(at_ms(50)).expect("an interval has ended");
    assert_eq!(decision.budget_bytes, 110 * KIB);
    assert_eq!(decision.reason, Reason::LatencyUnderTarget { min: ms(5), target: ms(5) });
}

#[test]
fn the_interval_shrinks_with_the_rounded_root_of_violations_in_a_row() {
    // A slow interval out of the way keeps the target where it is.
    let config = SlowFastConfig { slow_interval: Duration::from_secs(3_600), ..SlowFastConfig::PUBLISHED };
    let mut admission = Admission::new(Config::SlowFast(config), Instant::ZERO, 1);
    let mut lengths_us = Vec::new();
    for _ in 0..13 {
        let end = admission.next_tick();
        complete(&mut admission, end - Duration::from_nanos(1), ms(6));
        admission.tick(end);
        lengths_us.push(admission.next_tick().since(end).as_nanos() / 1_000);
    }
    // round(sqrt(1..=13)) = 1 1 2 2 2 2 3 3 3 3 3 3 4
    let third = 16_666;
    let expected = [50_000, 50_000, 25_000, 25_000, 25_000, 25_000, third, third, third, third, third, third, 12_500];
    assert_eq!(lengths_us, expected);
    let end = admission.next_tick();
    complete(&mut admission, end - Duration::from_nanos(1), ms(4));
    admission.tick(end);
    assert_eq!(admission.next_tick().since(end), ms(50), "meeting the target restores the interval");
}

#[test]
fn the_budget_grows_only_while_below_one_and_a_half_times_the_peak() {
    let mut admission = published();
    let mut budgets = Vec::new();
    for interval in 0..9 {
        // 60 KiB in use; the peak counts from the minimum budget of 100 KiB.
        admission.admit(60 * KIB);
        admission.observe(at_ms(interval * 50 + 49), 60 * KIB, Kind::Read, 0, ms(1));
        budgets.push(admission.tick(at_ms(interval * 50 + 50)).expect("an interval has ended").budget_bytes / KIB);
    }
    assert_eq!(budgets, [110, 120, 130, 140, 150, 150, 150, 150, 150]);
    assert_eq!(admission.decision().reason, Reason::BudgetNotUsed { peak_bytes: 100 * KIB });
}

#[test]
fn the_peak_is_forgotten_with_each_slow_interval() {
    let config = SlowFastConfig { budget_initial_bytes: 1_000 * KIB, ..SlowFastConfig::PUBLISHED };
    let mut admission = Admission::new(Config::SlowFast(config), Instant::ZERO, 1);
    admission.admit(1_000 * KIB);
    admission.observe(at_ms(10), 1_000 * KIB, Kind::Read, 0, ms(1));
    assert_eq!(admission.tick(at_ms(50)).expect("an interval has ended").budget_bytes, 1_010 * KIB);
    for interval in 1..11 {
        admission.admit(KIB);
        admission.observe(at_ms(interval * 50 + 49), KIB, Kind::Read, 0, Duration::from_micros(10));
        admission.tick(at_ms(interval * 50 + 50));
    }
    assert_eq!(admission.decision().reason, Reason::BudgetNotUsed { peak_bytes: 100 * KIB });
}

#[test]
fn an_interval_without_completions_changes_nothing_and_says_so_once() {
    let mut admission = published();
    let before = *admission.decision();
    let idle = admission.tick(at_ms(50)).expect("silence is news");
    assert_eq!((idle.budget_bytes, idle.target, idle.reason), (before.budget_bytes, before.target, Reason::Idle));
    assert_eq!(admission.tick(at_ms(100)), None);
    admission.admit(4_096);
    let stalled = admission.tick(at_ms(150)).expect("a stall is news");
    assert_eq!(stalled.reason, Reason::Stalled { in_flight_bytes: 4_096 });
    assert_eq!(admission.tick(at_ms(5_000)), None);
    assert_eq!(admission.decision().target_reason, Reason::Initial);
}

#[test]
fn the_slow_loop_explores_from_the_first_interval_on() {
    let mut admission = published();
    complete(&mut admission, at_ms(499), ms(1));
    let decision = admission.tick(at_ms(500)).expect("an interval has ended");
    assert_eq!(decision.reason, Reason::TargetExplored { optimum: ms(5), samples: 1 });
    assert_eq!(decision.target_reason, decision.reason);
    assert_ne!(decision.target, Some(ms(5)));
}

#[test]
fn an_end_of_interval_at_the_far_end_of_time_does_not_loop_or_overflow() {
    let mut admission = published();
    complete(&mut admission, at_ms(10), ms(1));
    admission.tick(Instant::from_nanos(u64::MAX - 1));
    assert!(admission.next_tick() > Instant::from_nanos(u64::MAX - 1));
    complete(&mut admission, Instant::FAR_FUTURE, ms(1));
    admission.tick(Instant::FAR_FUTURE);
}

/// A fast interval extends past the end of a slow one, then no requests come. The fast interval's verdict counts in the slow
/// interval in which it was passed, no matter if the caller ticks before requests come again.
#[test]
fn a_verdict_counts_in_the_slow_interval_it_was_passed_in() {
    let repairs = Repairs { feasible_target: true, ..Repairs::NONE };
    let config = SlowFastConfig { slow_interval: ms(70), repairs, ..SlowFastConfig::PUBLISHED };
    let run = |punctual: bool| {
        let mut admission = Admission::new(Config::SlowFast(config), Instant::ZERO, 1);
        admission.tick(at_ms(50));
        complete(&mut admission, at_ms(60), ms(900));
        while punctual && admission.next_tick() <= at_ms(960) {
            admission.tick(admission.next_tick());
        }
        admission.tick(at_ms(960));
        complete(&mut admission, at_ms(970), ms(1));
        admission.tick(at_ms(980));
        *admission.decision()
    };
    assert_eq!(run(false), run(true));
    assert_eq!(run(true).target_reason, Reason::TargetExplored { optimum: ms(5), samples: 2 });
}

#[test]
fn reconfiguring_keeps_what_is_in_flight_and_what_was_learned() {
    let mut admission = published();
    for interval in 0..5 {
        complete(&mut admission, at_ms(interval * 50 + 49), ms(1));
        admission.tick(at_ms(interval * 50 + 50));
    }
    admission.admit(7_000);
    let learned = *admission.decision();
    assert_eq!(learned.budget_bytes, 150 * KIB);

    let larger = SlowFastConfig { budget_increment_bytes: KIB, ..SlowFastConfig::PUBLISHED };
    admission.reconfigure(Config::SlowFast(larger), at_ms(260));
    assert_eq!(admission.decision().budget_bytes, learned.budget_bytes);
    assert_eq!(admission.in_flight_bytes(), 7_000);

    let capped = SlowFastConfig { budget_max_bytes: 120 * KIB, ..larger };
    admission.reconfigure(Config::SlowFast(capped), at_ms(270));
    assert_eq!(admission.decision().budget_bytes, 120 * KIB);

    admission.reconfigure(Config::Fixed { budget_bytes: 10_000 }, at_ms(280));
    assert_eq!(admission.decision().budget_bytes, 10_000);
    assert_eq!(admission.decision().reason, Reason::Configured);
    assert_eq!(admission.next_tick(), Instant::FAR_FUTURE);
    assert!(!admission.fits(4_000) && admission.fits(3_000));
    admission.observe(at_ms(290), 7_000, Kind::Read, 0, ms(1));
    assert_eq!(admission.in_flight_bytes(), 0);

    admission.reconfigure(Config::SlowFast(larger), at_ms(300));
    assert_eq!(admission.decision().budget_bytes, 100 * KIB);
    assert_eq!(admission.next_tick(), at_ms(350));
}
