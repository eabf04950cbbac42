//! Properties that admission control keeps under any settings and events.

use evenkeel_control::admission::{Config, Decision, Reason, Repairs, SlowFastConfig};
use evenkeel_control::{Duration, Instant};
use proptest::prelude::*;

use events::{Event, Run, event};

use crate::events;

fn repairs() -> impl Strategy<Value = Repairs> {
    any::<[bool; 11]>().prop_map(|on| Repairs {
        early_fit: on[0],
        proportional_growth: on[1],
        guarded_fit: on[2],
        floored_mode: on[3],
        app_limited: on[4],
        relative_tradeoff: on[5],
        settling_exploration: on[6],
        pull_towards_optimum: on[7],
        feasible_target: on[8],
        await_effect: on[9],
        local_fit: on[10],
    })
}

/// Random settings, also ones out of range, which the controller moves into range.
fn settings() -> impl Strategy<Value = SlowFastConfig> {
    let duration = || prop_oneof![Just(0), 1u64..1_000_000_000, Just(u64::MAX)].prop_map(Duration::from_nanos);
    let number = || prop_oneof![Just(0.1), Just(0.5), Just(5.0), any::<f64>()];
    let bytes = || prop_oneof![Just(0), 1u64..1 << 30, Just(u64::MAX)];
    let wild = (
        (duration(), duration(), duration(), duration(), duration()),
        (bytes(), bytes(), bytes(), bytes()),
        (number(), number(), number(), number(), number()),
        prop_oneof![0u32..20, Just(100u32)],
    )
        .prop_map(|(d, b, f, history_samples)| SlowFastConfig {
            fast_interval: d.0,
            slow_interval: d.1,
            target_initial: d.2,
            target_min: d.3,
            target_max: d.4,
            budget_initial_bytes: b.0,
            budget_min_bytes: b.1,
            budget_max_bytes: b.2,
            budget_increment_bytes: b.3,
            budget_decrease_floor: f.0,
            budget_headroom: f.1,
            tradeoff_mib_per_s_per_ms: f.2,
            tradeoff_relative: f.3,
            exploration_p99_factor: f.4,
            history_samples,
            repairs: Repairs::NONE,
        });
    // A short history lets the fit come into play.
    let sensible =
        (2u32..12).prop_map(|history_samples| SlowFastConfig { history_samples, ..SlowFastConfig::PUBLISHED });
    (prop_oneof![1 => wild, 2 => sensible], repairs())
        .prop_map(|(settings, repairs)| SlowFastConfig { repairs, ..settings })
}

/// Budget in bytes and latency target of a decision, without its reasons: these name an idle interval only if a tick ends it.
fn in_force(decision: &Decision) -> (u64, Option<Duration>) {
    (decision.budget_bytes, decision.target)
}

proptest! {
    #[test]
    fn budget_and_target_stay_within_bounds(config in settings(), seed: u64, events in prop::collection::vec(event(), 0..200)) {
        let mut run = Run::new(Config::SlowFast(config), seed);
        let target_min = config.target_min.max(Duration::from_micros(1));
        let target_max = config.target_max.max(target_min + Duration::from_nanos(1));
        let budget_min = config.budget_min_bytes.max(1);
        let budget_max = config.budget_max_bytes.max(budget_min);
        for event in events {
            run.apply(event);
            let decision = run.admission.decision();
            prop_assert!((budget_min..=budget_max).contains(&decision.budget_bytes), "{decision:?}");
            let target = decision.target.expect("SlowFast CoDel has a target");
            prop_assert!((target_min..=target_max).contains(&target), "{decision:?}");
            if let Reason::TargetFitted { optimum, .. } | Reason::TargetExplored { optimum, .. } = decision.target_reason {
                prop_assert!((target_min..=target_max).contains(&optimum), "{decision:?}");
            }
        }
    }

    #[test]
    fn in_flight_is_counted_exactly_and_bounded(config in settings(), events in prop::collection::vec(event(), 0..200)) {
        let mut run = Run::new(Config::SlowFast(config), 1);
        for event in events {
            let budget = run.admission.decision().budget_bytes;
            let before = run.admission.in_flight_bytes();
            run.apply(event);
            let inside = run.admission.in_flight_bytes();
            prop_assert_eq!(inside, run.inside.iter().sum::<u64>());
            if let (Event::Arrive { cost }, true) = (event, inside > before) {
                prop_assert!(inside <= budget || (cost > budget && before <= budget));
            }
        }
    }

    #[test]
    fn something_can_always_enter_an_empty_back_end(config in settings(), cost: u64, events in prop::collection::vec(event(), 0..100)) {
        let mut run = Run::new(Config::SlowFast(config), 1);
        for event in events {
            run.apply(event);
        }
        while !run.inside.is_empty() {
            run.apply(Event::Cancel { pick: 0 });
        }
        prop_assert!(run.admission.fits(cost));
    }

    #[test]
    fn the_next_tick_lies_ahead_of_the_last_and_never_goes_back(config in settings(), events in prop::collection::vec(event(), 0..200)) {
        let mut run = Run::new(Config::SlowFast(config), 1);
        let mut before = run.admission.next_tick();
        for event in events {
            run.apply(event);
            let next = run.admission.next_tick();
            // A shortened interval begins anew at the end of the last one, so not even that moves it back.
            prop_assert!(next >= before, "{before:?} {next:?}");
            if matches!(event, Event::Tick) {
                prop_assert!(next > run.now || next == Instant::FAR_FUTURE);
                prop_assert_eq!(run.admission.tick(run.now), None, "a second tick has nothing to do");
            }
            before = next;
        }
    }

    #[test]
    fn the_same_seed_decides_the_same(config in settings(), seed: u64, events in prop::collection::vec(event(), 0..200)) {
        let (mut one, mut other) = (Run::new(Config::SlowFast(config), seed), Run::new(Config::SlowFast(config), seed));
        for event in events {
            one.apply(event);
            other.apply(event);
            let (one, other) = (one.admission.decision(), other.admission.decision());
            prop_assert_eq!(std::format!("{one:?}"), std::format!("{other:?}"));
        }
    }

    /// A caller that ticks at the end of every interval gets the same decisions as one that ticks only when a request arrives.
    #[test]
    fn decisions_do_not_depend_on_punctuality(config in settings(), events in prop::collection::vec(event(), 0..200)) {
        let (mut lazy, mut eager) = (Run::new(Config::SlowFast(config), 3), Run::new(Config::SlowFast(config), 3));
        for event in events {
            if matches!(event, Event::Tick) {
                continue;
            }
            if let Event::Wait { ns } = event {
                let end = eager.now + Duration::from_nanos(ns);
                // Punctual for a while; ticking through centuries takes too long.
                for _ in 0..1_000 {
                    let due = eager.admission.next_tick();
                    if due > end {
                        break;
                    }
                    eager.admission.tick(due);
                }
                eager.admission.tick(end);
            }
            // As a pool does: it ticks before it asks, and not before it tells.
            if matches!(event, Event::Arrive { .. }) {
                lazy.admission.tick(lazy.now);
            }
            let completes = matches!(event, Event::Complete { .. }) && !lazy.inside.is_empty();
            lazy.apply(event);
            eager.apply(event);
            if completes {
                prop_assert_eq!(in_force(lazy.admission.decision()), in_force(eager.admission.decision()));
            }
        }
    }

    #[test]
    fn reconfiguring_at_any_time_keeps_the_count(
        configs in prop::collection::vec((settings(), 0u8..3, prop::collection::vec(event(), 0..40)), 1..6),
    ) {
        let mut run = Run::new(Config::SlowFast(SlowFastConfig::PUBLISHED), 1);
        for (settings, kind, events) in configs {
            let config = match kind {
                0 => Config::None,
                1 => Config::Fixed { budget_bytes: settings.budget_max_bytes },
                _ => Config::SlowFast(settings),
            };
            run.admission.reconfigure(config, run.now);
            prop_assert_eq!(std::format!("{:?}", run.admission.config()), std::format!("{config:?}"));
            for event in events {
                run.apply(event);
                prop_assert_eq!(run.admission.in_flight_bytes(), run.inside.iter().sum::<u64>());
            }
        }
    }
}
