//! Tests of the wiring of a throughput guarantee: the guarantee reaches the controller, the controller's limit reaches the
//! device, reloads change and remove the guarantee, and the state names the binding constraint.
//! `crates/control/tests/pool_guarantee` checks how exactly guarantees are met, on the same device in virtual time.

use crate::support;

use std::sync::atomic::AtomicBool;

use evenkeel_nbd::wire::Command;
use evenkeel_policy::config::{Engine, Guarantee, Limit};
use evenkeel_policy::state::{State, TenantState};
use evenkeel_policy::units::{Bytes, Rates};
use support::{Stop, TestServer};

/// Guarantee of the tenant `guaranteed` and limit of the tenant `limited`, in bytes per second.
const RATE: u64 = 2_000_000;
/// Configuration with a modelled device that stands still for a third of the time. Without limits, 16 outstanding writes of
/// 16 KiB get at least 10 MB/s.
const DEVICE: &str = "[pools.main]\ntuning.admission = \"none\"\n\
    [pools.main.emulate]\nbandwidth = \"20MB\"\nstall_every = \"700ms\"\nstall_for = \"250ms\"\n\
    [tenants.guaranteed]\nguarantee = { bytes_per_s = 2_000_000 }\n[tenants.limited]\nlimit = { bytes_per_s = 2_000_000 }\n\
    [volumes.guaranteed]\nbackend = \"emulate\"\nsize = \"8MiB\"\n[volumes.limited]\nbackend = \"emulate\"\nsize = \"8MiB\"\n";
const BLOCK: u64 = 16 << 10;

fn find<'a>(state: &'a State, name: &str) -> &'a TenantState {
    let pool = state.pools.iter().find(|pool| pool.name == "main").unwrap();
    pool.tenants.iter().find(|tenant| tenant.name == name).unwrap()
}

fn guaranteed(test: &TestServer) -> TenantState {
    find(&test.server.state(), "guaranteed").clone()
}

/// Waits until `binding` is the binding constraint of the guarantee of `rate` bytes per second; returns the guaranteed
/// tenant's state at that moment.
fn binds(test: &TestServer, rate: u64, binding: &str) -> TenantState {
    let mut seen = None;
    test.wait_for(&format!("the binding {binding} at {rate} B/s"), |state| {
        let tenant = find(state, "guaranteed");
        let found = tenant.guarantees.iter().any(|p| p.guaranteed_per_s == rate && p.binding == binding);
        seen = found.then(|| tenant.clone());
        found
    });
    seen.expect("waited for")
}

/// Megabytes that the guaranteed tenant reads (first) and writes (second) while the limited tenant writes one megabyte. On
/// this device, the limited tenant gets 1.7 MB/s of its 2 MB/s.
fn beside_the_limit(test: &TestServer) -> [f64; 2] {
    let counts = |state: &State| {
        let guaranteed = find(state, "guaranteed");
        [guaranteed.read_bytes_total, guaranteed.write_bytes_total, find(state, "limited").write_bytes_total]
    };
    let before = counts(&test.server.state());
    let mut after = before;
    test.wait_for("a megabyte of the limited tenant", |state| {
        after = counts(state);
        after[2] >= before[2] + 1_000_000
    });
    let limited = (after[2] - before[2]) as f64;
    [0, 1].map(|place| (after[place] - before[place]) as f64 / limited)
}

#[test]
fn a_guarantee_binds_beside_a_limit_and_changes_with_a_reload() {
    let test = TestServer::start("guarantee", Engine::Auto, DEVICE);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stops = Stop(&stop);
        for name in ["guaranteed", "limited"] {
            let (test, stop) = (&test, &stop);
            scope.spawn(move || test.connect(name).keep_asking(Command::Write, BLOCK, 16, stop));
        }
        // The controller has a limit of its own, and raises it for what the stalls cost. The limit queues requests.
        test.wait_for("a limit that makes up for the stalls", |state| {
            let tenant = find(state, "guaranteed");
            let raised = |guarantee: &evenkeel_policy::state::GuaranteeState| {
                guarantee.binding == "throughput" && guarantee.decisions.iter().any(|one| one.set > Some(RATE as f64))
            };
            tenant.guarantees.iter().any(raised) && tenant.queued_requests > 0
        });
        let seen = guaranteed(&test);
        assert_eq!(seen.guarantees.len(), 1);
        assert_eq!((seen.guarantees[0].unit.as_str(), seen.guarantees[0].guaranteed_per_s), ("bytes", RATE));
        assert_eq!(seen.limit.bytes_per_s_owner.as_deref(), Some("throughput"));
        assert!(find(&test.server.state(), "limited").guarantees.is_empty());

        // A reservation wins, and is named.
        let mut config = test.config.clone();
        let rates = |bytes_per_s: u64| Rates { iops: 0, bytes_per_s: Bytes(bytes_per_s) };
        assert_eq!(guaranteed(&test).by_reservation_total, 0);
        config.tenants.get_mut("guaranteed").unwrap().reservation = rates(3 * RATE);
        test.server.reload(config.clone()).unwrap();
        let reserved = binds(&test, RATE, "reservation");
        // The sentence is of the last decision, which may be that a busy machine has made a pause.
        test.wait_for("the sentence that names the reservation", |state| {
            find(state, "guaranteed").guarantees.iter().any(|guarantee| guarantee.because.contains("reservation"))
        });
        test.wait_for("requests that the reservation serves", |state| {
            find(state, "guaranteed").by_reservation_total > reserved.by_reservation_total + 32
        });

        // The smallest limit binds, and is named.
        config.tenants.get_mut("guaranteed").unwrap().reservation = Rates::default();
        config.tenants.get_mut("guaranteed").unwrap().limit =
            Limit { bytes_per_s: Bytes(RATE / 4), ..Limit::default() };
        test.server.reload(config.clone()).unwrap();
        let limited = binds(&test, RATE, "operator");
        assert_eq!(limited.limit.bytes_per_s_owner.as_deref(), Some("operator"));
        let [_, writes] = beside_the_limit(&test);
        println!("at a quarter of the other's limit: {writes:.2} times as much");
        assert!(writes < 1.0, "{writes:.2} times what the limited tenant writes, which has four times the limit");

        // A quarter of the guarantee, then none.
        config.tenants.get_mut("guaranteed").unwrap().limit = Limit::default();
        config.tenants.get_mut("guaranteed").unwrap().guarantee.bytes_per_s = Bytes(RATE / 4);
        test.server.reload(config.clone()).unwrap();
        assert_eq!(binds(&test, RATE / 4, "throughput").limit.bytes_per_s_owner.as_deref(), Some("throughput"));
        let [_, writes] = beside_the_limit(&test);
        println!("with a guarantee of a quarter of the other's limit: {writes:.2} times as much");
        assert!(writes < 1.0, "{writes:.2} times what the limited tenant writes, whose limit is four times as high");
        config.tenants.get_mut("guaranteed").unwrap().guarantee = Guarantee::default();
        test.server.reload(config.clone()).unwrap();
        let free = guaranteed(&test);
        assert!(free.guarantees.is_empty() && free.limit.bytes_per_s.is_none(), "{free:#?}");
        let [_, writes] = beside_the_limit(&test);
        println!("with neither: {writes:.2} times as much");
        // Six times where the machine is idle.
        assert!(writes > 2.0, "{writes:.2} times what the limited tenant writes, although nothing limits it");

        // A guarantee of writes alone queues no read of the same tenant.
        config.tenants.get_mut("guaranteed").unwrap().guarantee.write = rates(RATE / 4).into();
        test.server.reload(config).unwrap();
        let seen = binds(&test, RATE / 4, "throughput");
        assert_eq!(seen.guarantees[0].of, "write");
        assert!(seen.limit.bytes_per_s.is_none(), "nothing limits both together: {seen:#?}");
        scope.spawn(|| test.connect("guaranteed").keep_asking(Command::Read, BLOCK, 16, &stop));
        test.wait_for("reads", |state| find(state, "guaranteed").reads_total > 32);
        let [reads, writes] = beside_the_limit(&test);
        println!("with a guarantee of writes alone: {reads:.2} times as much read, {writes:.2} written");
        assert!(writes < 1.0 && reads > writes, "{reads:.2} times as much read, {writes:.2} written");
        // Nor does a flush wait for ever behind writes that the guarantee queues.
        test.connect("guaranteed").flush().unwrap();
    });
}
