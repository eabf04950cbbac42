use std::ops::ControlFlow;

use evenkeel_control::admission;
use evenkeel_control::mclock::Qos;
use evenkeel_control::pool::target::Statistic;
use evenkeel_control::units::{Kind, Rates};
use evenkeel_control::{Duration, Instant};
use evenkeel_model::device::{Device, DeviceParams, Machine};
use evenkeel_model::store::StoreParams;

use super::run::World;
use super::*;
use crate::workload::Requests;

fn client(tenant: usize, queue_depth: u32, bytes: u32) -> Client {
    Client::always(tenant, workload::Spec::closed(queue_depth, Requests::random(Kind::Write, bytes, 1 << 30)))
}

fn setup(admission: admission::Config) -> Setup {
    let tenant = |name: &str, weight| Tenant::new(name, Qos { weight, ..Qos::default() });
    let device = DeviceParams::Store(StoreParams::ssd());
    let tenants = vec![tenant("bulk", 1), tenant("light", 10)];
    let clients = vec![client(0, 64, 65536), client(1, 1, 4096)];
    let mut setup = Setup::new(device, tenants, clients, Duration::from_secs(4));
    (setup.pool.admission, setup.pool.base_cost_bytes) = (admission, 4000);
    Setup { warmup: Duration::from_secs(1), sample_every: Duration::from_millis(100), divides: true, ..setup }
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
fn large_requests_go_in_slices_and_count_once() {
    let run = |divides, clients| {
        let budget = admission::Config::Fixed { budget_bytes: 2 << 20 };
        run_quietly(&Setup { divides, clients, ..setup(budget) }, 1).unwrap()
    };
    let bulk = || client(0, 2, 8 << 20);
    let [whole, divided] = [false, true].map(|divides| run(divides, vec![bulk(), client(1, 1, 4096)]));
    let p99 = |run: &Run| run.tenants[1].response.p99().as_nanos();
    assert!(p99(&divided) * 4 < p99(&whole), "{} ns against {} ns", p99(&divided), p99(&whole));
    let [whole_alone, alone] = [false, true].map(|divides| run(divides, vec![bulk()]).tenants[0].bytes);
    assert!(alone * 100 > whole_alone * 95, "{alone} against {whole_alone}");
    let bulk = &divided.tenants[0];
    assert!(bulk.requests > 0 && bulk.bytes == bulk.requests * (8 << 20), "{} of {}", bulk.bytes, bulk.requests);
    // From the entry of the request to its last slice.
    assert!(bulk.response.mean() >= bulk.device.mean() && bulk.device.mean() > whole.tenants[1].device.mean());
}

#[test]
fn the_same_seed_repeats_a_run_and_another_does_not() {
    let run = |seed| run_quietly(&setup(admission::Config::SlowFast(admission::SlowFastConfig::REPAIRED)), seed);
    assert_eq!(run(7), run(7));
    assert_ne!(run(7).unwrap().tenants, run(8).unwrap().tenants);
}

#[test]
fn hosts_that_are_only_watched_or_may_rest_complete_the_same_requests_at_the_same_instants() {
    let mut setup = setup(admission::Config::None);
    setup.device = DeviceParams::Raid0(evenkeel_model::raid::Raid0Params::default());
    setup.pool.slots = Some(evenkeel_control::slots::Config::NEEDS);
    let target = evenkeel_control::pool::slots::LatencyTarget::mean(Duration::from_millis(40));
    setup.tenants[1].latency_target = Some(target);
    // Limits, a reservation, a guarantee and the pool's latency target: all that a pool does by the clock.
    let mut limited = setup.clone();
    let rates = |iops| Rates { iops, ..Rates::UNSET };
    let of_pool = evenkeel_control::response::Config::adaptive(Duration::from_millis(15));
    let (statistic, load) = (Statistic::Mean, evenkeel_control::pool::target::Load::Writes);
    limited.pool.target = Some(evenkeel_control::pool::target::Config { response: of_pool, statistic, load });
    (limited.pool.slots, limited.pool.limit) = (None, rates(200));
    limited.tenants[0].qos = Qos { limit: rates(150), reservation: rates(20), ..Qos::default() };
    let write = Some(evenkeel_control::throughput::Rate::RequestsPerS(30));
    limited.tenants[0].guarantee = Throughputs { write, ..Throughputs::NONE };
    limited.clients[1].workload = workload::Spec::closed(1, Requests::random(Kind::Read, 4096, 1 << 30));
    let each = [&setup, &limited].into_iter().flat_map(|setup| [vec![0, 1], vec![0, 0]].map(|of| (setup, of)));
    for (setup, of) in each {
        let hosts = Hosts { of, ..Hosts::default() };
        let (mut counted, mut watched, mut restless) = (Vec::new(), Vec::new(), Vec::new());
        let run = run_hosts(setup, &hosts, 3, Device::new, &mut |now, tenant, done| {
            counted.push((now, tenant, done.bytes));
        });
        assert!(run.unwrap().tenants[0].requests > 0);
        let seen = watch_hosts(setup, &hosts, 3, Device::new, &mut |now, tenant, done| {
            watched.push((now, tenant, done.bytes));
        });
        seen.unwrap();
        let mut watch = |now: Instant, tenant: usize, done: &Completion| restless.push((now, tenant, done.bytes));
        let mut world = World::with(setup, Some(&hosts), 3, Device::new);
        assert!(world.may_rest);
        world.may_rest = false;
        world.watch = Some(&mut watch);
        world.run(&mut |_| ControlFlow::Continue(())).unwrap();
        assert!(counted.len() > 100, "{} requests", counted.len());
        assert!(counted == watched && counted == restless);
    }
}

#[test]
fn a_run_that_is_only_watched_completes_the_same_requests_at_the_same_instants() {
    let setup = setup(admission::Config::SlowFast(admission::SlowFastConfig::REPAIRED));
    let (mut counted, mut watched, mut inversion) = (Vec::new(), Vec::new(), Duration::ZERO);
    let mut watch = |now: Instant, tenant: usize, done: &Completion| counted.push((now, tenant, done.bytes));
    let mut world = World::new(&setup, 3, Device::new);
    world.watch = Some(&mut watch);
    world.run(&mut |_| ControlFlow::Continue(())).unwrap();
    let seen = run_watched(
        &setup,
        3,
        Device::new,
        &mut |now, tenant, done| {
            watched.push((now, tenant, done.bytes));
            inversion = inversion + done.inversion;
        },
        &mut |_| ControlFlow::Continue(()),
    );
    seen.unwrap();
    assert!(counted.len() > 100 && counted == watched, "{} and {} requests", counted.len(), watched.len());
    assert_eq!(inversion, Duration::ZERO, "a statistic that is not wanted");
}

#[test]
fn progress_is_reported_and_can_end_the_run() {
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

/// A fault of a device that the loop detects.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Faulty {
    /// The device's next event is always now, but no request ever completes.
    Restless,
    /// The device's next event lies in the past: as with a time computed from NaN, which a cast turns into 0.
    Backward,
    /// The device loses the requests that were submitted.
    Forgetful,
    /// The device completes a request that was never submitted.
    Inventive,
}

/// A device with a fault, and the instant of the newest request.
struct Broken(Faulty, Instant);

impl Machine for Broken {
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
        let world = World::new(&setup, 1, |_, _| Broken(fault, Instant::FAR_FUTURE));
        let failure = world.run(&mut |_| ControlFlow::Continue(())).unwrap_err();
        assert!(failure.to_string().contains("device model `faulty`"), "{failure}");
        assert!(failure.to_string().contains("with the scenario"), "{failure}");
        failure
    };
    assert!(matches!(fail(Faulty::Restless), Failure::Loop { events, .. } if events > 1_000_000));
    assert!(matches!(fail(Faulty::Backward), Failure::Backward { said: Instant::ZERO, .. }));
    assert!(matches!(fail(Faulty::Forgetful), Failure::Lost { in_flight: 64, .. }));
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
    let changes = vec![(Instant::ZERO, Change::Tenant(7, Qos::default(), Throughputs::NONE, None))];
    assert!(refused(Setup { changes, ..good }).contains("tenant 7 of 2"));
}

#[test]
fn a_changed_guarantee_takes_effect() {
    let mut setup = setup(admission::Config::Fixed { budget_bytes: 256 << 10 });
    setup.clients[1] = client(1, 64, 65536);
    let half = Instant::ZERO + Duration::from_secs(3);
    setup.changes = vec![(half, Change::Tenant(1, Qos { weight: 1, ..Qos::default() }, Throughputs::NONE, None))];
    let windows = run_quietly(&setup, 1).unwrap().windows(Duration::from_secs(2));
    let shares = windows.iter().map(|window| window.tenants[1].bytes as f64 / window.tenants[0].bytes as f64);
    let shares: Vec<f64> = shares.collect();
    assert!(shares[0] > 8.0 && (0.9..1.2).contains(&shares[1]), "{shares:?}");
}

#[test]
fn a_reservation_that_is_not_met_shows_as_a_deficit() {
    let mut setup = setup(admission::Config::Fixed { budget_bytes: 512 << 10 });
    let guarantee = |iops| Qos { reservation: Rates { iops, bytes_per_s: 0 }, ..Qos::default() };
    setup.clients[1] = client(1, 64, 65536);
    // The device does about 1,500 of these a second.
    setup.tenants[1].qos = guarantee(1_000);
    // Where a window cuts, it may count one too few.
    assert!(run_quietly(&setup, 1).unwrap().tenants[1].deficit.requests <= 4);
    setup.tenants[1].qos = guarantee(3_000);
    let deficit = run_quietly(&setup, 1).unwrap().tenants[1].deficit;
    // Of the 64 that are outstanding at the end of each of the 4 windows, all but the 15 that came in the last 10 ms.
    assert!((4 * 46..4 * 52).contains(&deficit.requests) && deficit.windows == 4, "{deficit:?}");
}

/// FNV-1a hash of the debug text of `value`, in which later renamed fields have their old names.
fn fingerprint(value: &impl std::fmt::Debug) -> u64 {
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    format!("{value:?}").replace("in_flight_bytes", "inside_bytes").bytes().fold(0xcbf2_9ce4_8422_2325, hash)
}

/// The result of a run without workers has a fixed fingerprint, which the code for workers must not change. A change of the
/// controllers may change it.
#[test]
fn a_run_without_workers_is_what_it_was_to_the_last_bit() {
    let run = run_quietly(&setup(admission::Config::SlowFast(admission::SlowFastConfig::REPAIRED)), 7).unwrap();
    let parts = (&run.tenants, run.budget, &run.series, run.events);
    assert_eq!(fingerprint(&parts), 1_612_042_201_463_785_497);
}

fn behind_workers(count: u32, placement: placement::Config, ms_each: u64) -> Setup {
    let half = Duration::from_nanos(ms_each * 500_000);
    let params = WorkerParams {
        receive_time: half,
        receive_bytes_per_s: u64::MAX,
        send_time: half,
        send_bytes_per_s: u64::MAX,
        jitter: evenkeel_model::jitter::Jitter::None,
        ..WorkerParams::serve()
    };
    let workers = Some(FrontSetup { count, params, placement, connections: 1 });
    Setup { workers, ..setup(admission::Config::Fixed { budget_bytes: 512 << 10 }) }
}

#[test]
fn a_worker_serves_one_after_the_other_and_reports_its_part_of_the_latency() {
    let setup = behind_workers(1, placement::Config::RoundRobin, 2);
    let run = run_quietly(&setup, 1).unwrap();
    let all: u64 = run.tenants.iter().map(|tenant| tenant.requests).sum();
    // 4 s at 2 ms each, receiving and sending together.
    assert!((1_990..=2_010).contains(&all), "{all}");
    assert!(run.workers.len() == 1 && run.workers[0].busy > 0.99, "{:?}", run.workers);
    // Of 65 requests nearly all wait there, each for its turn to be received and its turn to be sent.
    let worker = run.tenants[0].worker_mean().as_millis_f64();
    assert!((110.0..=130.0).contains(&worker), "{worker} ms");
    assert!(run.tenants[0].queue_wait.mean() < Duration::from_millis(5));
    assert_eq!(run_quietly(&setup, 1).unwrap(), run);
}

#[test]
fn fast_workers_cost_next_to_nothing() {
    let without = run_quietly(&setup(admission::Config::Fixed { budget_bytes: 512 << 10 }), 1).unwrap();
    let mut with = behind_workers(4, placement::Config::default(), 1);
    if let Some(workers) = &mut with.workers {
        workers.params = WorkerParams::serve();
    }
    let with = run_quietly(&with, 1).unwrap();
    // Of one at a time the next comes a moment after the pool has given its place away, so only the sum is as before.
    assert!((with.bytes_per_s() / without.bytes_per_s() - 1.0).abs() < 0.03);
    for tenant in &with.tenants {
        assert!(tenant.requests > 0 && tenant.worker_mean() < Duration::from_micros(60), "{:?}", tenant.worker_mean());
    }
}

#[test]
fn a_connection_leaves_the_worker_that_another_fills() {
    let light_on = |placement| {
        let mut setup = behind_workers(2, placement, 1);
        setup.clients = vec![client(0, 64, 512), client(0, 1, 512), client(1, 1, 512)];
        // A fifth of a worker: less than a twentieth would not be worth a move.
        setup.clients[2].workload = workload::Spec::open(200.0, Requests::random(Kind::Write, 512, 1 << 30));
        (setup.warmup, setup.duration) = (Duration::from_secs(4), Duration::from_secs(4));
        run_quietly(&setup, 1).unwrap()
    };
    let (in_turn, moved) = (light_on(placement::Config::RoundRobin), light_on(placement::Config::default()));
    // Beside 64 requests it waits for them, or goes after the first look.
    let waits = |run: &Run| run.tenants[1].worker_mean();
    assert!(in_turn.moves == 0 && waits(&in_turn) > Duration::from_millis(50), "{:?}", waits(&in_turn));
    assert!(waits(&moved) < Duration::from_millis(4), "{:?}", waits(&moved));
}

#[test]
fn clients_that_come_and_go_take_their_connections_along() {
    let mut setup = behind_workers(2, placement::Config::LeastConnections, 1);
    let at = |ms| Instant::ZERO + Duration::from_millis(ms);
    // The first goes before the third comes, so the third finds its worker empty: the second and it share none.
    setup.clients = vec![client(0, 8, 512), client(1, 8, 512), client(0, 8, 512)];
    setup.clients[0].until = at(2_000);
    setup.clients[2].from = at(2_100);
    let run = run_quietly(&setup, 1).unwrap();
    assert!(run.workers.iter().all(|worker| worker.busy > 0.9), "{:?}", run.workers);
    let some = FrontSetup { connections: 0, ..setup.workers.clone().unwrap() };
    let refused = run_quietly(&Setup { workers: Some(some), ..setup }, 1);
    assert!(matches!(refused, Err(Failure::Setup { what }) if what.contains("connections must be 1 or more")));
}
