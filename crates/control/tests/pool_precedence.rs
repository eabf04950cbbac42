//! Precedence in the queue, for any policies, from high to low: pool limit, reservation, tenant limit, throughput guarantee,
//! latency target, weight. A setting lower in this list never breaks a higher one.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use evenkeel_control::admission::{Config as Admission, ElasticConfig, SlowFastConfig};
use evenkeel_control::mclock::{CostModel, Qos};
use evenkeel_control::pool::slots::LatencyTarget;
use evenkeel_control::pool::{Config, Next, Outcome, Pool, Scheduler, TenantId, Ticket, guarantee, target};
use evenkeel_control::rng::SplitMix64;
use evenkeel_control::throughput::Rate;
use evenkeel_control::units::{Kind, Rates, Work};
use evenkeel_control::{Duration, Instant, response, slots};
use proptest::prelude::*;

/// First second of a run that the test judges; before it, every controller has decided several times.
const WARMUP_S: usize = 4;
/// Length of a run in seconds, warm-up included.
const SECONDS: usize = 8;

/// A tenant's policy and load.
#[derive(Clone, Debug)]
struct Asked {
    qos: Qos,
    guarantee_iops: u64,
    target_ms: Option<u64>,
    writes: bool,
    /// Requests that a tenant without a reservation keeps outstanding. A tenant with one sends 1.2 times its reserved rate.
    depth: u64,
}

/// A device with parallel lanes; each lane serves one request at a time, in 0.5 to 1.5 times the mean service time.
#[derive(Clone, Copy, Debug)]
struct Device {
    lanes: usize,
    /// Mean service time of a request in a lane, in µs.
    each_us: u64,
}

impl Device {
    fn iops(self) -> u64 {
        self.lanes as u64 * 1_000_000 / self.each_us
    }
}

enum Event {
    Arrives(usize),
    Leaves(usize, Ticket),
    Wakes,
}

/// Runs for [`SECONDS`]; returns for each tenant the requests that the pool passes to the device in each second.
fn run(config: Config, tenants: &[Asked], device: Device) -> Vec<Vec<u64>> {
    let mut pool: Pool<usize> = Pool::new(config, Instant::ZERO, 1);
    let join = |asked: &Asked| {
        let id = pool.join(Instant::ZERO, asked.qos);
        let rate = (asked.guarantee_iops > 0).then_some(Rate::RequestsPerS(asked.guarantee_iops));
        pool.set_guarantees(Instant::ZERO, id, &guarantee::Throughputs { all: rate, ..guarantee::Throughputs::NONE });
        let target = asked
            .target_ms
            .map(|ms| LatencyTarget { time: Duration::from_millis(ms), statistic: target::Statistic::Mean });
        pool.set_latency_target(id, target);
        id
    };
    let ids: Vec<TenantId> = tenants.iter().map(join).collect();
    let mut events: Vec<Event> = Vec::new();
    let mut due: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    let at = |due: &mut BinaryHeap<_>, events: &mut Vec<Event>, us: u64, event| {
        due.push(Reverse((us, events.len())));
        events.push(event);
    };
    for (place, asked) in tenants.iter().enumerate() {
        let outstanding = if asked.qos.reservation.iops > 0 { 1 } else { asked.depth };
        (0..outstanding).for_each(|n| at(&mut due, &mut events, n, Event::Arrives(place)));
    }
    let mut lanes = vec![0; device.lanes];
    let mut done = vec![vec![0; SECONDS]; tenants.len()];
    let (mut wakes_us, mut rng) = (u64::MAX, SplitMix64::new(1));
    while let Some(Reverse((us, event))) = due.pop() {
        let (now, second) = (Instant::ZERO + Duration::from_micros(us), (us / 1_000_000) as usize);
        if second >= SECONDS {
            break;
        }
        match std::mem::replace(&mut events[event], Event::Wakes) {
            Event::Arrives(place) => {
                let kind = if tenants[place].writes { Kind::Write } else { Kind::Read };
                pool.submit(now, ids[place], Work::new(kind, 4096), place).unwrap();
                if let Some(gap) = 1_000_000u64.checked_div(tenants[place].qos.reservation.iops * 6 / 5) {
                    at(&mut due, &mut events, us + gap, Event::Arrives(place));
                }
            }
            Event::Leaves(place, ticket) => {
                pool.complete(now, ticket, Outcome::Done);
                if tenants[place].qos.reservation.iops == 0 {
                    at(&mut due, &mut events, us, Event::Arrives(place));
                }
            }
            Event::Wakes => wakes_us = u64::MAX,
        }
        loop {
            match pool.dispatch(now) {
                Next::Run(place, ticket) => {
                    done[place][second] += 1;
                    let lane = lanes.iter_mut().min().unwrap();
                    *lane = us.max(*lane) + (device.each_us as f64 * (0.5 + rng.next_f64())) as u64;
                    at(&mut due, &mut events, *lane, Event::Leaves(place, ticket));
                }
                Next::Wait(until) => {
                    let until = until.since(Instant::ZERO).as_nanos().div_ceil(1000).max(us + 1);
                    if until < wakes_us {
                        wakes_us = until;
                        at(&mut due, &mut events, until, Event::Wakes);
                    }
                    break;
                }
                Next::Idle => break,
            }
        }
    }
    done
}

fn admissions() -> impl Strategy<Value = Admission> {
    prop_oneof![
        Just(Admission::None),
        Just(Admission::Elastic(ElasticConfig::default())),
        Just(Admission::SlowFast(SlowFastConfig::REPAIRED)),
        // In requests for each lane; what keeps lanes idle would be less than what the device can.
        (1u64..16).prop_map(|each| Admission::Fixed { budget_bytes: each }),
    ]
}

prop_compose! {
    fn asked()(
        weight in 1u32..100,
        background in any::<bool>(),
        reserved in prop_oneof![Just(0.0), 0.02f64..0.2],
        limited in prop_oneof![Just(None), (0.02f64..0.6).prop_map(Some)],
        guaranteed in prop_oneof![Just(0.0), 0.02f64..0.3],
        target_ms in prop_oneof![Just(None), (1u64..100).prop_map(Some)],
        writes in any::<bool>(),
        depth in 1u64..200,
    ) -> (Qos, f64, Option<f64>, f64, Option<u64>, bool, u64) {
        (Qos { weight, background, ..Qos::default() }, reserved, limited, guaranteed, target_ms, writes, depth)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_lower_row_never_breaks_a_higher_one(
        raw in prop::collection::vec(asked(), 1..5),
        lanes in 1usize..16,
        each_us in prop_oneof![500u64..8_000],
        admission in admissions(),
        pool_limit in prop_oneof![Just(None), (0.85f64..1.2).prop_map(Some)],
        target_ms in prop_oneof![Just(None), (1u64..60).prop_map(Some)],
        has_slots in any::<bool>(),
    ) {
        let device = Device { lanes, each_us: each_us * lanes as u64 };
        let of = |part: f64| (part * device.iops() as f64) as u64;
        let rates = |iops: u64| Rates { iops, bytes_per_s: 0 };
        let tenants: Vec<Asked> = raw
            .iter()
            .map(|&(qos, reserved, limited, guaranteed, target_ms, writes, depth)| {
                let reservation = rates(of(reserved));
                // A limit below reservation or guarantee is refused before it comes here.
                let limit = rates(limited.map_or(0, |part| of(part).max(reservation.iops).max(1)));
                let burst = Duration::from_millis(10);
                let qos = Qos { reservation, limit, burst, ..qos };
                let guarantee_iops = if limit.is_unset() { of(guaranteed) } else { of(guaranteed).min(limit.iops) };
                Asked { qos, guarantee_iops, target_ms, writes, depth }
            })
            .collect();
        let target = |ms| {
            let response = response::Config {
                step: Duration::ZERO,
                max_delay: Duration::from_secs(2),
                ..response::Config::adaptive(Duration::from_millis(ms))
            };
            target::Config { response, statistic: target::Statistic::Mean, load: target::Load::All }
        };
        let limit = rates(pool_limit.map_or(0, of));
        let config = Config {
            scheduler: Scheduler::Mclock,
            admission: match admission {
                Admission::Fixed { budget_bytes } => Admission::Fixed { budget_bytes: budget_bytes * lanes as u64 * 8096 },
                other => other,
            },
            base_cost_bytes: 4000,
            cost: CostModel::default(),
            limit,
            limit_burst: Duration::from_millis(10),
            target: target_ms.map(target),
            slots: has_slots.then_some(slots::Config::NEEDS),
        };
        let done = run(config, &tenants, device);
        // One request at either edge of a second, and what a burst saves up.
        let above = |rate: u64| (1.0 + 0.02) * rate as f64 + 2.0;
        for second in WARMUP_S..SECONDS {
            let all: u64 = done.iter().map(|tenant| tenant[second]).sum();
            if limit.iops > 0 {
                prop_assert!(all as f64 <= above(limit.iops), "second {}: {} of {:?}", second, all, limit);
            }
            for (asked, done) in tenants.iter().zip(&done) {
                let (done, reserved, limit) = (done[second] as f64, asked.qos.reservation.iops, asked.qos.limit.iops);
                prop_assert!(done >= 0.95 * reserved as f64 - 2.0, "second {}: {} of {:?}", second, done, asked);
                if limit > 0 {
                    prop_assert!(done <= above(limit.max(reserved)), "second {}: {} of {:?}", second, done, asked);
                }
            }
        }
    }
}
