//! Tests of properties that every run has, with any setup.

use evenkeel_control::admission::{Config, SlowFastConfig};
use evenkeel_control::mclock::Qos;
use evenkeel_control::pool::guarantee::Throughputs;
use evenkeel_control::pool::{self, Scheduler};
use evenkeel_control::units::{Kind, Rates};
use evenkeel_control::{Duration, Instant};
use evenkeel_model::device::DeviceParams;
use evenkeel_model::store::StoreParams;
use evenkeel_sim::workload::{Requests, Spec};
use evenkeel_sim::world::{Change, Client, Setup, Tenant, run_quietly};
use proptest::prelude::*;

use crate::parallel::alone;

fn at(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(ms)
}

fn admissions() -> impl Strategy<Value = Config> {
    prop_oneof![
        Just(Config::None),
        (1u64..1 << 21).prop_map(|budget_bytes| Config::Fixed { budget_bytes }),
        Just(Config::SlowFast(SlowFastConfig::PUBLISHED)),
        Just(Config::SlowFast(SlowFastConfig::REPAIRED)),
    ]
}

fn clients(tenants: usize) -> impl Strategy<Value = Client> {
    let kind = prop_oneof![Just(Kind::Read), Just(Kind::Write)];
    let requests = (kind, 9u32..18).prop_map(|(kind, log)| Requests::random(kind, 1 << log, 1 << 30));
    let spec = (requests, 0u32..3, 1u32..40).prop_map(|(requests, form, n)| match form {
        0 => Spec::closed(n, requests),
        1 => Spec::open(f64::from(n) * 50.0, requests),
        _ => Spec::bursts(n, Duration::from_millis(20), requests),
    });
    (0..tenants, spec, 0u64..300, 0u64..1_000).prop_map(|(tenant, workload, from, length)| Client {
        tenant,
        workload,
        from: at(from),
        until: at(from + length),
    })
}

fn qos() -> impl Strategy<Value = Qos> {
    (1u32..10, 0u64..500, 0u64..500, any::<bool>()).prop_map(|(weight, reserved, limit, background)| Qos {
        weight,
        reservation: Rates { iops: reserved, bytes_per_s: 0 },
        limit: Rates { iops: if limit < 250 { 0 } else { limit }, bytes_per_s: 0 },
        background,
        burst: Duration::from_millis(10),
    })
}

prop_compose! {
    fn setups()(
        admission in admissions(),
        guarantees in proptest::collection::vec(qos(), 1..4),
        scheduler in prop_oneof![Just(Scheduler::Mclock), Just(Scheduler::None)],
        warmup in prop_oneof![Just(0u64), Just(200)],
    )(
        clients in proptest::collection::vec(clients(guarantees.len()), 1..5),
        changed in qos(),
        admission in Just(admission),
        guarantees in Just(guarantees),
        scheduler in Just(scheduler),
        warmup in Just(warmup),
    ) -> Setup {
        let slow = StoreParams { bandwidth_bytes_per_s: 20_000_000, ..StoreParams::ssd() };
        let tenant = |(place, qos)| Tenant::new(format!("tenant {place}"), qos);
        let tenants = (0..guarantees.len()).zip(guarantees).map(tenant).collect();
        let device = DeviceParams::Store(StoreParams::ssd());
        let setup = Setup::new(device, tenants, clients, Duration::from_millis(1_200));
        Setup {
            pool: pool::Config { scheduler, admission, base_cost_bytes: 4_000, ..setup.pool },
            changes: vec![
                (at(300), Change::Device(DeviceParams::Store(slow))),
                (at(500), Change::Stall(Duration::from_millis(100))),
                (at(700), Change::Tenant(0, changed, Throughputs::NONE, None)),
            ],
            warmup: Duration::from_millis(warmup),
            sample_every: Duration::from_millis(50),
            divides: true,
            ..setup
        }
    }
}

/// FNV-1a hash of the whole result's debug text.
fn fingerprint(result: &impl std::fmt::Debug) -> u64 {
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    format!("{result:?}").bytes().fold(0xcbf2_9ce4_8422_2325, hash)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_same_seed_gives_the_same_bytes(setup in setups(), seed in any::<u64>()) {
        let here = run_quietly(&setup, seed).unwrap();
        let elsewhere = std::thread::scope(|scope| {
            scope.spawn(|| fingerprint(&run_quietly(&setup, seed).unwrap())).join().unwrap()
        });
        prop_assert_eq!(fingerprint(&here), elsewhere);
    }

    #[test]
    fn how_often_it_is_sampled_changes_nothing(setup in setups(), seed in any::<u64>()) {
        let fine = run_quietly(&setup, seed).unwrap();
        let coarse = Setup { sample_every: setup.duration, ..setup };
        let coarse = run_quietly(&coarse, seed).unwrap();
        prop_assert_eq!(coarse.series.len(), 1);
        prop_assert_eq!(fine.tenants, coarse.tenants);
    }

    #[test]
    fn everything_adds_up(setup in setups(), seed in any::<u64>()) {
        let run = run_quietly(&setup, seed).unwrap();
        for (place, tenant) in run.tenants.iter().enumerate() {
            prop_assert_eq!(tenant.response.count(), tenant.requests);
            let in_series: u64 = run.series.iter().map(|sample| sample.tenants[place].served.requests).sum();
            prop_assert_eq!(in_series, tenant.requests);
            let windows = run.windows(Duration::from_millis(400));
            prop_assert_eq!(windows.len(), 3);
            prop_assert_eq!(windows.iter().map(|window| window.tenants[place].requests).sum::<u64>(), tenant.requests);
            // Response time is queueing delay + device latency, to the nanosecond of each mean.
            let parts = tenant.queue_wait.mean() + tenant.device.mean();
            prop_assert!(parts.as_nanos().abs_diff(tenant.response.mean().as_nanos()) <= 2);
            // Nobody waits behind others for longer than it takes altogether.
            let total = u128::from(tenant.response.mean().as_nanos() + 1) * u128::from(tenant.requests);
            prop_assert!(u128::from(tenant.inversion.as_nanos()) <= total);
            for sample in &run.series {
                let tenant = &sample.tenants[place];
                prop_assert!(tenant.served.mean_response().is_none_or(|mean| mean.as_nanos() > 0));
                prop_assert!(tenant.p99_response.as_nanos() <= run.tenants[place].response.max().as_nanos());
            }
        }
        prop_assert!(run.budget.min_bytes <= run.budget.max_bytes);
        prop_assert!(run.budget.mean_bytes >= run.budget.min_bytes as f64 * (1.0 - 1e-9));
        prop_assert!(run.budget.cv.is_finite());
    }
}

#[test]
fn littles_law_holds() {
    let workload = Spec::closed(32, Requests::random(Kind::Write, 16 << 10, 1 << 30));
    let second = Duration::from_secs(1);
    let mut setup = Setup { warmup: second, sample_every: second, ..alone(workload, StoreParams::ssd(), 10) };
    setup.pool.admission = Config::Fixed { budget_bytes: 256 << 10 };
    let run = run_quietly(&setup, 1).unwrap();
    let outstanding = run.requests_per_s() * run.tenants[0].response.mean().as_secs_f64();
    assert!((outstanding / 32.0 - 1.0).abs() < 0.01, "{outstanding} outstanding");
}
