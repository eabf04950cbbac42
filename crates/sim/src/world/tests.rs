use std::ops::ControlFlow;

use evenkeel_control::admission;
use evenkeel_control::mclock::{CostModel, Qos};
use evenkeel_control::pool::{self, Scheduler};
use evenkeel_control::units::{Kind, Rates};
use evenkeel_control::{Duration, Instant};
use evenkeel_model::device::DeviceParams;
use evenkeel_model::store::StoreParams;

use super::run::{Machine, World};
use super::*;
use crate::workload::Requests;

fn client(tenant: usize, queue_depth: u32, bytes: u32) -> Client {
    Client {
        tenant,
        workload: workload::Spec::closed(queue_depth, Requests::random(Kind::Write, bytes, 1 << 30)),
        from: Instant::ZERO,
        until: Instant::FAR_FUTURE,
    }
}

fn setup(admission: admission::Config) -> Setup {
    let tenant = |name: &str, weight| Tenant::new(name, Qos { weight, ..Qos::default() });
    Setup {
        device: DeviceParams::Store(StoreParams::ssd()),
        pool: pool::Config {
            scheduler: Scheduler::Mclock,
            admission,
            base_cost_bytes: 4000,
            cost: CostModel::default(),
            limit: Rates::UNSET,
            limit_burst: Duration::from_millis(10),
            goal: None,
            slots: None,
        },
        tenants: vec![tenant("bulk", 1), tenant("light", 10)],
        clients: vec![client(0, 64, 65536), client(1, 1, 4096)],
        changes: Vec::new(),
        warmup: Duration::from_secs(1),
        duration: Duration::from_secs(4),
        sample_every: Duration::from_millis(100),
    }
}

#[test]
fn a_budget_keeps_the_light_tenant_from_waiting_behind_the_bulk() {
    let run = |admission| run_quietly(&setup(admission), 1).unwrap();
    let bloated = run(admission::Config::None);
    let bounded = run(admission::Config::Fixed { budget_bytes: 512 << 10 });
    let light = |run: &Run| run.tenants[1].response.mean().as_nanos();
    assert!(light(&bounded) * 4 < light(&bloated), "{} ns against {} ns", light(&bounded), light(&bloated));
    assert!(bounded.tenants[0].bytes * 10 > bloated.tenants[0].bytes * 9);
    let inverted = |run: &Run| run.tenants[1].inversion_per_request();
    assert!(inverted(&bounded).as_nanos() * 4 < inverted(&bloated).as_nanos());
    assert_eq!(bounded.tenants[0].inversion, Duration::ZERO);
    assert_eq!((bounded.budget.mean_bytes, bounded.budget.cv), (524_288.0, 0.0));
    assert!(bloated.budget.mean_bytes.is_infinite());
}

#[test]
fn the_same_seed_repeats_a_run_and_another_does_not() {
    let run = |seed| run_quietly(&setup(admission::Config::SlowFast(admission::SlowFastConfig::REPAIRED)), seed);
    assert_eq!(run(7), run(7));
    assert_ne!(run(7).unwrap().tenants, run(8).unwrap().tenants);
}

#[test]
fn progress_is_told_and_can_end_the_run() {
    let setup = Setup { duration: Duration::from_secs(60), ..setup(admission::Config::None) };
    let mut told = Vec::new();
    let whole = run(&setup, 1, &mut |progress| {
        told.push(progress);
        ControlFlow::Continue(())
    });
    assert_eq!(told.len() as u64, whole.unwrap().events / EVENTS_PER_PROGRESS);
    assert!(told.windows(2).all(|pair| pair[0].fraction() < pair[1].fraction() && pair[1].fraction() <= 1.0));
    let cancelled = run(&setup, 1, &mut |_| ControlFlow::Break(()));
    assert_eq!(cancelled, Err(Failure::Cancelled { at: told[0].at }));
}

#[test]
fn what_crosses_threads_may() {
    fn crosses<T: Send + Sync>() {}
    crosses::<Setup>();
    crosses::<Run>();
}

/// A device with one of the faults that the loop guards against.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Faulty {
    /// Always has something to do now, and never does it.
    Restless,
    /// Its next event lies in the past, as a time computed from NaN does: the cast takes it to 0.
    Backward,
    /// Forgets what it took.
    Forgetful,
    /// Completes what it never took.
    Inventive,
}

impl Machine for (Faulty, Instant) {
    fn name(&self) -> &'static str {
        "faulty"
    }
    fn submit(&mut self, now: Instant, _id: u64, _io: evenkeel_model::Io) {
        self.1 = now;
    }
    fn next_event(&self) -> Instant {
        match self.0 {
            _ if self.1 == Instant::FAR_FUTURE => Instant::FAR_FUTURE,
            Faulty::Restless | Faulty::Inventive => self.1,
            Faulty::Backward => Instant::ZERO,
            Faulty::Forgetful => Instant::FAR_FUTURE,
        }
    }
    fn poll(&mut self, _now: Instant) -> Option<u64> {
        (self.0 == Faulty::Inventive).then_some(u64::MAX)
    }
    fn stall(&mut self, _now: Instant, _length: Duration) {}
    fn set_params(&mut self, _now: Instant, _params: &DeviceParams) {}
}

#[test]
fn a_faulty_model_ends_the_run_with_its_name() {
    let mut setup = setup(admission::Config::None);
    for client in &mut setup.clients {
        client.from = Instant::from_nanos(1_000);
    }
    let fail = |fault| {
        let world = World::new(&setup, 1, |_, _| (fault, Instant::FAR_FUTURE));
        let failure = world.run(&mut |_| ControlFlow::Continue(())).unwrap_err();
        assert!(failure.to_string().contains("device model `faulty`"), "{failure}");
        failure
    };
    assert!(matches!(fail(Faulty::Restless), Failure::Loop { events, .. } if events > 1_000_000));
    assert!(matches!(fail(Faulty::Backward), Failure::Backward { said: Instant::ZERO, .. }));
    assert!(matches!(fail(Faulty::Forgetful), Failure::Lost { inside: 64, .. }));
    assert!(matches!(fail(Faulty::Inventive), Failure::Unknown { id: u64::MAX, .. }));
}

#[test]
fn more_work_than_the_device_serves_ends_the_run_with_the_name_of_the_client() {
    let mut setup = setup(admission::Config::Fixed { budget_bytes: 1 << 20 });
    setup.clients[1].workload = workload::Spec::open(1e6, Requests::random(Kind::Write, 4096, 1 << 30));
    let failure = run_quietly(&setup, 1).unwrap_err();
    assert!(matches!(failure, Failure::Runaway { outstanding, .. } if outstanding == MAX_OUTSTANDING + 1), "{failure}");
    assert!(failure.to_string().contains("client 1 (tenant `light`)"), "{failure}");
}

#[test]
fn a_setup_that_contradicts_itself_is_refused_with_the_reason() {
    let good = setup(admission::Config::None);
    let refused = |setup: Setup| match run_quietly(&setup, 1) {
        Err(Failure::Setup { what }) => what,
        other => panic!("{other:?}"),
    };
    assert!(refused(Setup { sample_every: Duration::ZERO, ..good.clone() }).contains("sample_every"));
    assert!(refused(Setup { duration: Duration::ZERO, ..good.clone() }).contains("duration"));
    assert!(refused(Setup { clients: vec![client(2, 1, 512)], ..good.clone() }).contains("tenant 2 of 2"));
    let broken = DeviceParams::Store(StoreParams { iops: 0, ..StoreParams::ssd() });
    let changes = vec![(Instant::ZERO, Change::Device(broken.clone()))];
    assert!(refused(Setup { changes, ..good.clone() }).contains("device from @0ns: iops"));
    assert!(refused(Setup { device: broken, ..good.clone() }).contains("iops must be"));
    let changes = vec![(Instant::ZERO, Change::Tenant(7, Qos::default(), Goals::NONE, None))];
    assert!(refused(Setup { changes, ..good }).contains("tenant 7 of 2"));
}

#[test]
fn a_changed_promise_takes_effect() {
    let mut setup = setup(admission::Config::Fixed { budget_bytes: 256 << 10 });
    setup.clients[1] = client(1, 64, 65536);
    let half = Instant::ZERO + Duration::from_secs(3);
    setup.changes = vec![(half, Change::Tenant(1, Qos { weight: 1, ..Qos::default() }, Goals::NONE, None))];
    let windows = run_quietly(&setup, 1).unwrap().windows(Duration::from_secs(2));
    let shares = windows.iter().map(|window| window.tenants[1].bytes as f64 / window.tenants[0].bytes as f64);
    let shares: Vec<f64> = shares.collect();
    assert!(shares[0] > 8.0 && (0.9..1.2).contains(&shares[1]), "{shares:?}");
}

#[test]
fn a_reservation_that_is_not_met_shows_as_a_deficit() {
    let mut setup = setup(admission::Config::Fixed { budget_bytes: 512 << 10 });
    let promise = |iops| Qos { reservation: Rates { iops, bytes_per_s: 0 }, ..Qos::default() };
    setup.clients[1] = client(1, 64, 65536);
    // The device does about 1,500 of these a second.
    setup.tenants[1].qos = promise(1_000);
    // Where a window cuts, it may count one too few.
    assert!(run_quietly(&setup, 1).unwrap().tenants[1].deficit.requests <= 4);
    setup.tenants[1].qos = promise(3_000);
    let deficit = run_quietly(&setup, 1).unwrap().tenants[1].deficit;
    // Of the 64 that are outstanding at the end of each of the 4 windows, all but the 15 that came in the last 10 ms.
    assert!((4 * 46..4 * 52).contains(&deficit.requests) && deficit.windows == 4, "{deficit:?}");
}
