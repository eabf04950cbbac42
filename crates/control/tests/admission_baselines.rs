//! Admission methods that serve as baselines: each follows its published rule, and properties of each hold under any events.

use evenkeel_control::admission::{Admission, Config, Reason};
use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};
use proptest::prelude::*;

const KIB: u64 = 1 << 10;
const ADAPTIVE: [Config; 4] =
    [Config::Theta, Config::Wbt { target: Duration::from_millis(2) }, Config::Vegas, Config::Gradient];

fn at_us(n: u64) -> Instant {
    Instant::ZERO + Duration::from_micros(n)
}

fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

fn start(config: Config) -> Admission {
    Admission::new(config, Instant::ZERO, 0)
}

/// Admits one read that fills the budget, and completes it at `now` with this latency.
fn complete(admission: &mut Admission, now: Instant, latency: Duration) {
    let cost = admission.decision().budget_bytes;
    admission.admit(cost);
    admission.observe(now, cost, Kind::Read, cost, latency);
}

/// Runs `requests` requests on a device that serves one at a time in order, each in `service`, with the budget always full;
/// returns when the last one has completed.
fn saturate(admission: &mut Admission, from: Instant, service: Duration, cost: u64, requests: usize) -> Instant {
    let mut now = from;
    let mut inside = std::collections::VecDeque::new();
    for _ in 0..requests {
        while admission.fits(cost) {
            admission.admit(cost);
            inside.push_back(now);
        }
        now += service;
        let admitted_at = inside.pop_front().expect("something always fits into an empty device");
        admission.observe(now, cost, Kind::Read, cost, now.since(admitted_at));
        admission.tick(now);
    }
    while let Some(admitted_at) = inside.pop_front() {
        now += service;
        admission.observe(now, cost, Kind::Read, cost, now.since(admitted_at));
    }
    now
}

#[test]
fn theta_follows_its_equation() {
    let mut admission = start(Config::Theta);
    let beta = 100.0 * KIB as f64;
    // First completion: no gradient, the latency is the lowest: power 1.
    complete(&mut admission, at_us(1_000), us(1_000));
    let first = 0.5 * (beta + beta) + 0.5 * beta;
    assert_eq!(admission.decision().budget_bytes, first as u64);
    assert_eq!(admission.decision().reason, Reason::Power { power: 1.0 });
    // 500 us later and 250 us slower: theta = 0.5, power = 1.25 * 1.5.
    complete(&mut admission, at_us(1_500), us(1_250));
    let second = 0.5 * (first / 1.875 + beta) + 0.5 * first;
    assert_eq!(admission.decision().budget_bytes, second as u64);
    assert_eq!(admission.decision().reason, Reason::Power { power: 1.875 });
}

#[test]
fn wbt_halves_over_its_target_and_doubles_back_within_it() {
    let mut admission = start(Config::Wbt { target: us(2_000) });
    let mut budgets = Vec::new();
    for latency_us in [3_000, 3_000, 3_000, 1_000, 1_000, 1_000, 1_000, 1_000, 1_000] {
        let end = admission.next_tick();
        complete(&mut admission, Instant::from_nanos(end.as_nanos() - 1), us(latency_us));
        budgets.push(admission.tick(end).expect("a window has ended").budget_bytes / KIB);
    }
    assert_eq!(budgets, [512, 256, 128, 256, 512, 1_024, 2_048, 4_096, 4_096]);
    assert_eq!(admission.decision().target, Some(us(2_000)));
}

#[test]
fn wbt_shrinks_its_window_with_the_step_and_forgets_in_silence() {
    let mut admission = start(Config::Wbt { target: us(2_000) });
    for window_us in [70_710, 57_735, 50_000] {
        let end = admission.next_tick();
        complete(&mut admission, Instant::from_nanos(end.as_nanos() - 1), us(9_000));
        admission.tick(end);
        assert_eq!(admission.next_tick().since(end).as_nanos() / 1_000, window_us);
    }
    assert_eq!(admission.decision().budget_bytes, 128 * KIB);
    let mut windows = 0;
    while admission.decision().budget_bytes < 1_024 * KIB {
        admission.tick(admission.next_tick());
        windows += 1;
    }
    // Five windows pass, each of the next takes one of three steps back.
    assert_eq!(windows, 8);
    assert_eq!(admission.decision().reason, Reason::Idle);
}

#[test]
fn vegas_keeps_a_small_queue_in_a_device_of_one_server() {
    let mut admission = start(Config::Vegas);
    saturate(&mut admission, Instant::ZERO, us(100), 8 * KIB, 20_000);
    let requests = admission.decision().budget_bytes / (8 * KIB);
    // One step is log10(limit), about 1: between 3 and 6 of them queue behind the one that is served.
    assert!((4..=10).contains(&requests), "{requests} requests");
}

#[test]
fn gradient_follows_its_equation() {
    let mut admission = start(Config::Gradient);
    // Unknown mean cost: 64 KiB. The first request tells it.
    let cost = 8 * KIB;
    admission.admit(cost * 20);
    admission.observe(at_us(100), cost, Kind::Read, cost, us(100));
    let first = 0.8 * 20.0 + 0.2 * (20.0 + 4.0);
    assert_eq!(admission.decision().budget_bytes, (first * cost as f64) as u64);
    assert_eq!(admission.decision().reason, Reason::LatencyGradient { gradient: 1.0 });
    // Ten times slower: the long-term mean is 101.5 us, so the ratio is at its floor of 0.5.
    admission.observe(at_us(200), cost, Kind::Read, cost, us(1_000));
    let second = 0.8 * first + 0.2 * (first * 0.5 + 4.0);
    assert_eq!(admission.decision().budget_bytes, (second * cost as f64) as u64);
    assert_eq!(admission.decision().reason, Reason::LatencyGradient { gradient: 0.5 });
    // Less than half of the limit in use: it stays.
    admission.forget(cost * 17);
    let before = admission.decision().budget_bytes;
    admission.observe(at_us(300), cost, Kind::Read, cost, us(100));
    assert_eq!(admission.decision().budget_bytes, before);
}

#[test]
fn each_has_a_name_of_its_own_and_keeps_its_state_when_set_again() {
    let names: std::collections::BTreeSet<_> = ADAPTIVE.iter().map(Config::name).collect();
    assert_eq!(names.len(), ADAPTIVE.len());
    for config in ADAPTIVE {
        let mut admission = start(config);
        let initial = admission.decision().budget_bytes;
        let now = saturate(&mut admission, Instant::ZERO, us(3_000), 8 * KIB, 500);
        let learned = admission.decision().budget_bytes;
        assert_ne!(learned, initial, "{} does not move", config.name());
        admission.reconfigure(config, now);
        assert_eq!(admission.decision().budget_bytes, learned);
        admission.reconfigure(Config::None, now);
        assert_eq!(admission.decision().budget_bytes, u64::MAX);
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Wait { ns: u64 },
    Arrive { cost: u64 },
    Complete { pick: usize, latency_ns: u64 },
    Cancel { pick: usize },
    Tick,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => prop_oneof![Just(0), 0u64..2_000_000, 0u64..2_000_000_000, Just(u64::MAX / 100)].prop_map(|ns| Event::Wait { ns }),
        4 => prop_oneof![0u64..100_000, 0u64..100_000_000, Just(u64::MAX / 1_000)].prop_map(|cost| Event::Arrive { cost }),
        4 => (any::<usize>(), prop_oneof![0u64..10_000_000, Just(0), Just(u64::MAX)])
            .prop_map(|(pick, latency_ns)| Event::Complete { pick, latency_ns }),
        1 => any::<usize>().prop_map(|pick| Event::Cancel { pick }),
        2 => Just(Event::Tick),
    ]
}

proptest! {
    #[test]
    fn budgets_stay_within_bounds_and_costs_are_counted(which in 0usize..4, events in prop::collection::vec(event(), 0..300)) {
        let mut admission = start(ADAPTIVE[which]);
        let (mut now, mut inside) = (Instant::ZERO, Vec::new());
        let mut next_tick = admission.next_tick();
        for event in events {
            match event {
                Event::Wait { ns } => now += Duration::from_nanos(ns),
                Event::Arrive { cost } => if admission.fits(cost) {
                    admission.admit(cost);
                    inside.push(cost);
                },
                Event::Complete { pick, latency_ns } if !inside.is_empty() => {
                    let cost = inside.swap_remove(pick % inside.len());
                    admission.observe(now, cost, Kind::Read, cost, Duration::from_nanos(latency_ns));
                }
                Event::Cancel { pick } if !inside.is_empty() => {
                    let cost: u64 = inside.swap_remove(pick % inside.len());
                    admission.forget(cost);
                }
                Event::Complete { .. } | Event::Cancel { .. } => {}
                Event::Tick => {
                    admission.tick(now);
                    prop_assert!(admission.next_tick() > now || now == Instant::FAR_FUTURE);
                    prop_assert_eq!(admission.tick(now), None);
                }
            }
            let budget = admission.decision().budget_bytes;
            prop_assert!((4 * KIB..=1 << 30).contains(&budget), "{budget}");
            prop_assert_eq!(admission.in_flight_bytes(), inside.iter().sum::<u64>());
            prop_assert!(admission.next_tick() >= next_tick);
            next_tick = admission.next_tick();
            let told = format!("{:?}", admission.decision().reason);
            prop_assert!(!told.contains("NaN"), "{told}");
        }
    }
}
