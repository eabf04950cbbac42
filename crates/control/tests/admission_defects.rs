//! The known defects of SlowFast CoDel as published: each test shows one defect in the published form, and that its repair
//! (one switch of `Repairs`, unless stated otherwise) removes it.

use evenkeel_control::admission::{Admission, Config, Reason, Repairs, SlowFastConfig};
use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const FAST: Duration = Duration::from_millis(50);
/// Number of fast intervals in a slow interval.
const FAST_PER_SLOW: u64 = 10;

/// Admission control on an imagined device, whose throughput and latency the caller gives for each interval.
struct Replay {
    admission: Admission,
    now: Instant,
}

impl Replay {
    fn new(config: SlowFastConfig) -> Self {
        Self::seeded(config, 7)
    }

    fn seeded(config: SlowFastConfig, seed: u64) -> Self {
        config.validate().expect("settings of a test make sense");
        Self { admission: Admission::new(Config::SlowFast(config), Instant::ZERO, seed), now: Instant::ZERO }
    }

    fn target_ms(&self) -> f64 {
        self.admission.decision().target.expect("SlowFast CoDel has a target").as_millis_f64()
    }

    fn optimum_ms(&self) -> f64 {
        match self.admission.decision().target_reason {
            Reason::TargetFitted { optimum, .. } | Reason::TargetExplored { optimum, .. } => optimum.as_millis_f64(),
            _ => self.target_ms(),
        }
    }

    /// One fast interval with this throughput and latency, in which the budget is used up and another request waits for it.
    fn saturated(&mut self, mib_per_s: f64, latency: Duration) {
        let cost = self.admission.decision().budget_bytes;
        self.admission.admit(cost);
        assert!(!self.admission.fits(1));
        self.complete(cost, mib_per_s, latency);
    }

    /// One fast interval with this throughput and latency, in which no request waits for the budget.
    fn light(&mut self, mib_per_s: f64, latency: Duration) {
        let cost = 8_096;
        assert!(self.admission.fits(cost));
        self.admission.admit(cost);
        self.complete(cost, mib_per_s, latency);
    }

    fn complete(&mut self, cost: u64, mib_per_s: f64, latency: Duration) {
        let bytes = (mib_per_s * MIB as f64 * FAST.as_secs_f64()) as u64;
        self.admission.observe(self.now + Duration::from_millis(25), cost, Kind::Read, bytes, latency);
        self.now += FAST;
        self.admission.tick(self.now);
    }

    /// One slow interval at saturation, on a device that just meets the target in force. `throughput_at` gives the throughput
    /// in MiB/s for a target in ms.
    fn slow_interval(&mut self, throughput_at: impl Fn(f64) -> f64) {
        let target = self.admission.decision().target.expect("SlowFast CoDel has a target");
        for _ in 0..FAST_PER_SLOW {
            self.saturated(throughput_at(target.as_millis_f64()), target);
        }
    }
}

fn with(repairs: Repairs) -> SlowFastConfig {
    SlowFastConfig { repairs, ..SlowFastConfig::PUBLISHED }
}

/// Throughput, in MiB/s, of a device for which it is logarithmic in latency, as the paper assumes. With a trade-off of 5 MiB/s
/// per ms the optimum is 9.2 ms.
fn logarithmic(latency_ms: f64) -> f64 {
    400.0 + 46.0 * latency_ms.ln()
}

const IDEAL_MS: f64 = 9.2;
/// Default trade-off of the authors' public implementation, in MiB/s per ms.
const SOURCE_TRADEOFF: f64 = 5.0;

#[test]
fn first_fit_takes_50_seconds() {
    let seconds_to_fit = |repairs| {
        let mut replay = Replay::new(with(repairs));
        for _ in 0..1_000 {
            replay.slow_interval(logarithmic);
            if matches!(replay.admission.decision().target_reason, Reason::TargetFitted { .. }) {
                break;
            }
        }
        replay.now.since(Instant::ZERO).as_secs_f64()
    };
    assert_eq!(seconds_to_fit(Repairs::NONE), 50.0);
    assert_eq!(seconds_to_fit(Repairs { early_fit: true, ..Repairs::NONE }), 5.0);
}

#[test]
fn growth_from_100_kib_to_64_mib_takes_327_seconds() {
    let seconds_to_grow = |repairs| {
        let mut replay = Replay::new(with(repairs));
        for _ in 0..10_000 {
            replay.saturated(100.0, Duration::from_micros(100));
            if replay.admission.decision().budget_bytes >= 64 * MIB {
                break;
            }
        }
        replay.now.since(Instant::ZERO).as_secs_f64()
    };
    let published = seconds_to_grow(Repairs::NONE);
    assert!((327.0..328.0).contains(&published), "{published} s");
    let repaired = seconds_to_grow(Repairs { proportional_growth: true, ..Repairs::NONE });
    assert!(repaired <= 1.0, "{repaired} s");
}

#[test]
fn proportional_growth_slows_down_towards_the_target() {
    let mut replay = Replay::new(SlowFastConfig {
        budget_initial_bytes: 10 * MIB,
        ..with(Repairs { proportional_growth: true, ..Repairs::NONE })
    });
    replay.saturated(100.0, Duration::from_micros(4_900));
    let grown = replay.admission.decision().budget_bytes - 10 * MIB;
    assert!((190 * KIB..220 * KIB).contains(&grown), "2 % of 10 MiB, not half of it: {grown}");
}

#[test]
fn a_fit_of_samples_at_one_target_is_garbage() {
    // Exploration so narrow that all targets are the same to a nanosecond; the throughput varies a little.
    let first_fit = |repairs| {
        let mut replay = Replay::new(SlowFastConfig {
            exploration_p99_factor: 1.000_000_001,
            tradeoff_mib_per_s_per_ms: SOURCE_TRADEOFF,
            ..with(repairs)
        });
        for interval in 0..100 {
            assert!((replay.target_ms() - 5.0).abs() < 2e-6);
            replay.slow_interval(|target_ms| logarithmic(target_ms) + f64::from(interval % 7));
        }
        (replay.optimum_ms(), replay.admission.decision().target_reason)
    };
    let (optimum_ms, _) = first_fit(Repairs::NONE);
    assert!(optimum_ms == 1.0 || optimum_ms == 1_000.0, "thrown to a bound, not {optimum_ms} ms");
    let (optimum_ms, reason) = first_fit(Repairs { guarded_fit: true, ..Repairs::NONE });
    assert!((optimum_ms - 5.0).abs() < 2e-6, "{optimum_ms} ms");
    assert_eq!(reason, Reason::FitDegenerate { samples: 100 });
}

#[test]
fn a_guarded_fit_stays_within_the_targets_that_were_tried() {
    let config =
        SlowFastConfig { tradeoff_mib_per_s_per_ms: 1e-6, ..with(Repairs { guarded_fit: true, ..Repairs::NONE }) };
    let mut replay = Replay::new(config);
    let mut highest = 0.0f64;
    for _ in 0..100 {
        highest = highest.max(replay.target_ms());
        replay.slow_interval(logarithmic);
    }
    assert_eq!(replay.optimum_ms(), highest, "46 s would be the answer");
}

#[test]
fn an_optimum_at_the_minimum_target_ends_exploration() {
    let config = |repairs| SlowFastConfig {
        target_initial: Duration::from_millis(1),
        tradeoff_mib_per_s_per_ms: SOURCE_TRADEOFF,
        ..with(repairs)
    };
    let mut replay = Replay::new(config(Repairs::NONE));
    for _ in 0..1_000 {
        replay.slow_interval(logarithmic);
        assert_eq!(replay.target_ms(), 1.0, "ln(0) leaves nothing but the minimum");
    }
    // From the 100th interval on there were fits, each of one repeated target, each not a number: absorbing.
    assert!(matches!(replay.admission.decision().target_reason,
        Reason::TargetFitted { slope_mib_per_s, .. } if slope_mib_per_s.is_nan()));
    let mut replay = Replay::new(config(Repairs { floored_mode: true, ..Repairs::NONE }));
    for _ in 0..300 {
        replay.slow_interval(logarithmic);
    }
    assert!((replay.optimum_ms() - IDEAL_MS).abs() < 0.1, "{} ms", replay.optimum_ms());
}

#[test]
fn light_load_pins_the_target_at_its_minimum_where_it_stays() {
    let config = |repairs| SlowFastConfig { tradeoff_mib_per_s_per_ms: SOURCE_TRADEOFF, ..with(repairs) };
    let outcome = |repairs| {
        let mut replay = Replay::new(config(repairs));
        for _ in 0..150 {
            replay.slow_interval(logarithmic);
        }
        assert!((replay.optimum_ms() - IDEAL_MS).abs() < 0.1, "learned under load: {} ms", replay.optimum_ms());
        for _ in 0..240 * FAST_PER_SLOW {
            replay.light(1.0, Duration::from_micros(200));
        }
        let under_light_load = (replay.target_ms(), replay.admission.decision().target_reason);
        for _ in 0..1_200 {
            replay.slow_interval(logarithmic);
        }
        (under_light_load, replay.optimum_ms())
    };
    let ((light_ms, _), back_ms) = outcome(Repairs::NONE);
    assert_eq!((light_ms, back_ms), (1.0, 1.0), "ten minutes after the load came back");
    let ((light_ms, reason), back_ms) = outcome(Repairs { app_limited: true, ..Repairs::NONE });
    assert!((light_ms - IDEAL_MS).abs() < 0.1, "{light_ms} ms");
    assert_eq!(reason, Reason::AppLimited { waited: 0, completions: FAST_PER_SLOW });
    assert!((back_ms - IDEAL_MS).abs() < 0.1, "{back_ms} ms");
}

/// Throughput in MiB/s as a function of latency in ms, which saturates at `max_mib_per_s` and is half of that at `half_ms`. Its
/// elasticity is 0.1 at 9 · `half_ms`.
fn saturating(max_mib_per_s: f64, half_ms: f64) -> impl Fn(f64) -> f64 {
    move |latency_ms| max_mib_per_s * latency_ms / (latency_ms + half_ms)
}

#[test]
fn the_trade_off_means_something_else_on_every_device() {
    let optimum = |repairs, max_mib_per_s, scale: u64| {
        let mut replay = Replay::new(SlowFastConfig {
            target_initial: Duration::from_millis(5 * scale),
            target_min: Duration::from_millis(scale),
            target_max: Duration::from_millis(1_000 * scale),
            ..with(repairs)
        });
        for _ in 0..400 {
            replay.slow_interval(saturating(max_mib_per_s, scale as f64));
        }
        replay.optimum_ms()
    };
    // The same shape at 10, 100 and 1000 MiB/s should have the same optimum.
    let published: Vec<f64> = [10.0, 100.0, 1_000.0].map(|max| optimum(Repairs::NONE, max, 1)).to_vec();
    assert!(published[1] > 3.0 * published[0] && published[2] > 3.0 * published[1], "{published:?} ms");
    let relative = Repairs { relative_tradeoff: true, ..Repairs::NONE };
    let repaired: Vec<f64> = [10.0, 100.0, 1_000.0].map(|max| optimum(relative, max, 1)).to_vec();
    assert!(repaired.iter().all(|ms| (ms / repaired[0] - 1.0).abs() < 0.01), "{repaired:?} ms");
    assert!((4.5..18.0).contains(&repaired[0]), "near the 9 ms at which elasticity is 0.1: {repaired:?} ms");
    // A device ten times as slow has an optimum ten times as large.
    let slow = optimum(relative, 100.0, 10);
    assert!((slow / repaired[1] / 10.0 - 1.0).abs() < 0.01, "{slow} ms");
}

#[test]
fn exploration_never_ends() {
    let spread = |repairs| {
        let mut replay = Replay::new(SlowFastConfig { tradeoff_mib_per_s_per_ms: SOURCE_TRADEOFF, ..with(repairs) });
        for _ in 0..200 {
            replay.slow_interval(logarithmic);
        }
        let mut targets: Vec<f64> = (0..1_000)
            .map(|_| {
                replay.slow_interval(logarithmic);
                replay.target_ms() / IDEAL_MS
            })
            .collect();
        targets.sort_by(f64::total_cmp);
        (targets[50], targets[500], targets[950])
    };
    let (p5, p50, p95) = spread(Repairs::NONE);
    assert!(p5 < 0.7 && p50 > 1.3 && p95 > 3.0, "multiples of the optimum: {p5} {p50} {p95}");
    let (p5, p50, p95) = spread(Repairs { settling_exploration: true, ..Repairs::NONE });
    assert!(p5 > 0.8 && (0.95..1.05).contains(&p50) && p95 < 1.25, "multiples of the optimum: {p5} {p50} {p95}");
}

#[test]
fn settled_exploration_opens_again_when_the_device_changes() {
    let mut replay = Replay::new(SlowFastConfig {
        tradeoff_mib_per_s_per_ms: SOURCE_TRADEOFF,
        ..with(Repairs { settling_exploration: true, ..Repairs::NONE })
    });
    // The widest draw of some time, as a multiple of what it was drawn around.
    let widest = |replay: &mut Replay, device: &dyn Fn(f64) -> f64| {
        (0..150).fold(0.0f64, |widest, _| {
            replay.slow_interval(device);
            widest.max(replay.target_ms() / replay.optimum_ms())
        })
    };
    widest(&mut replay, &logarithmic);
    assert!(widest(&mut replay, &logarithmic) < 1.5);
    let steeper = |latency_ms: f64| 184.0 * latency_ms.ln();
    assert!(widest(&mut replay, &steeper) > 2.0);
    widest(&mut replay, &steeper);
    assert!(widest(&mut replay, &steeper) < 1.5);
    let ideal_ms = 184.0 / SOURCE_TRADEOFF;
    assert!((replay.optimum_ms() / ideal_ms - 1.0).abs() < 0.05, "{} ms of {ideal_ms}", replay.optimum_ms());
}

#[test]
fn a_draw_below_the_optimum_is_pushed_further_down() {
    let first_target = |repairs, seed| {
        let mut replay = Replay::seeded(with(repairs), seed);
        replay.slow_interval(logarithmic);
        replay.target_ms()
    };
    let (mut below, mut above) = (0, 0);
    for seed in 0..200 {
        let published = first_target(Repairs::NONE, seed);
        let repaired = first_target(Repairs { pull_towards_optimum: true, ..Repairs::NONE }, seed);
        if published < 5.0 {
            assert!(published <= repaired && repaired < 5.0, "{published} {repaired}");
            below += u32::from(published < repaired);
        } else {
            assert_eq!(published, repaired);
            above += 1;
        }
    }
    assert!(below > 20 && above > 20, "{below} {above}");
}

#[test]
fn a_target_below_what_the_device_can_do_is_never_left() {
    // Even the smallest budget takes 60 ms and gives 3 MiB/s; more comes with more latency.
    const FLOOR_MS: f64 = 60.0;
    let outcome = |repairs| {
        let mut replay = Replay::new(with(repairs));
        let mut rose_after = None;
        for interval in 0..400 {
            let target_ms = replay.target_ms();
            let (throughput, latency_ms) =
                if target_ms < FLOOR_MS { (3.0, FLOOR_MS) } else { (12.0 - 540.0 / target_ms, target_ms) };
            for _ in 0..FAST_PER_SLOW {
                replay.saturated(throughput, Duration::from_micros((latency_ms * 1e3) as u64));
            }
            if rose_after.is_none() && replay.optimum_ms().max(replay.target_ms()) >= FLOOR_MS {
                rose_after = Some(interval);
            }
        }
        (rose_after, replay.target_ms(), replay.admission.decision().budget_bytes)
    };
    assert_eq!(outcome(Repairs::NONE), (None, 1.0, 100 * KIB));
    let (rose_after, _, budget_bytes) = outcome(Repairs { feasible_target: true, ..Repairs::NONE });
    assert!(rose_after <= Some(1), "{rose_after:?}");
    assert!(budget_bytes > 100 * KIB);
}

#[test]
fn latencies_from_before_a_cut_cause_the_next_one() {
    let budget_after = |repairs| {
        let config = SlowFastConfig {
            target_initial: Duration::from_millis(100),
            budget_initial_bytes: 6_400 * KIB,
            slow_interval: Duration::from_secs(3_600),
            ..with(repairs)
        };
        let mut admission = Admission::new(Config::SlowFast(config), Instant::ZERO, 1);
        // A queue of 350 ms; all of it was there before the first cut.
        for _ in 0..8 {
            admission.admit(800 * KIB);
        }
        for ms in (350..750).step_by(50) {
            let now = Instant::ZERO + Duration::from_millis(ms);
            admission.observe(now, 800 * KIB, Kind::Read, 800 * KIB, now.since(Instant::ZERO));
            admission.tick(now + Duration::from_millis(49));
        }
        admission.tick(Instant::ZERO + Duration::from_millis(750));
        // What was admitted after the cut meets the target, and that counts.
        let cut_to = admission.decision().budget_bytes;
        admission.admit(cut_to);
        admission.observe(Instant::ZERO + Duration::from_millis(860), cut_to, Kind::Read, 0, Duration::from_millis(90));
        admission.tick(Instant::ZERO + Duration::from_millis(1_000));
        (cut_to, admission.decision().reason)
    };
    let (cut_to, _) = budget_after(Repairs::NONE);
    assert!(cut_to <= 110 * KIB, "{cut_to}");
    let (cut_to, reason) = budget_after(Repairs { await_effect: true, ..Repairs::NONE });
    assert_eq!(cut_to, 3_200 * KIB);
    assert!(matches!(reason, Reason::LatencyUnderTarget { .. } | Reason::BudgetNotUsed { .. }), "{reason:?}");
}

#[test]
fn samples_below_the_knee_tilt_the_fit_above_it() {
    // Proportional up to a knee at 20 ms, flat beyond: no logarithm.
    let device = |latency_ms: f64| 12.0 * (latency_ms / 20.0).min(1.0);
    let highest_optimum_ms = |repairs| {
        let mut replay = Replay::new(with(repairs));
        (0..1_000).fold(0.0f64, |highest, _| {
            replay.slow_interval(device);
            highest.max(replay.optimum_ms())
        })
    };
    let global = highest_optimum_ms(Repairs { local_fit: false, ..Repairs::ALL });
    assert!(global > 160.0, "{global} ms");
    let local = highest_optimum_ms(Repairs::ALL);
    assert!(local < 90.0, "{local} ms");
}

#[test]
fn all_repairs_together_find_and_hold_the_knee() {
    let mut replay = Replay::new(SlowFastConfig::REPAIRED);
    let device = saturating(100.0, 1.0);
    for _ in 0..40 {
        replay.slow_interval(&device);
    }
    let mut worst = (f64::INFINITY, 0.0f64);
    for _ in 0..1_000 {
        replay.slow_interval(&device);
        worst = (worst.0.min(replay.optimum_ms()), worst.1.max(replay.optimum_ms()));
    }
    assert!(worst.0 > 3.0 && worst.1 < 27.0, "within a factor of 3 of 9 ms for good: {worst:?}");
}
