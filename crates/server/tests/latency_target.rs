//! A test of the wiring of a latency target for reads: a reload brings the target to the controller, the controller's
//! throttle reaches the device, and another reload removes both. `crates/control/tests/pool_target.rs` and
//! `crates/sim/tests/latency_target.rs` check how well targets are met, in virtual time.

use crate::support;

use std::sync::atomic::AtomicBool;

use evenkeel_nbd::wire::Command;
use evenkeel_policy::config::{Engine, Latency, Throttle};
use evenkeel_policy::state::{PoolState, State, TenantState};
use support::{Client, Stop, TestServer};

/// Number of writes that the tenant `backup` keeps outstanding.
const DEPTH: u64 = 64;
/// Configuration with a modelled device, on which 64 writes of 32 KiB at 20 MB/s keep a read waiting for 100 ms.
const DEVICE: &str = "[pools.main]\ntuning.admission = \"none\"\n[pools.main.emulate]\nbandwidth = \"20MB\"\n\
    [tenants.backup]\n[tenants.database]\n\
    [volumes.backup]\nbackend = \"emulate\"\nsize = \"8MiB\"\n[volumes.database]\nbackend = \"emulate\"\nsize = \"8MiB\"\n";
/// Latency target in milliseconds: a fifth of a read's latency behind 64 writes.
const TARGET_MS: u64 = 20;

fn main_pool(state: &State) -> &PoolState {
    state.pools.iter().find(|pool| pool.name == "main").unwrap()
}

fn tenant<'a>(state: &'a State, name: &str) -> &'a TenantState {
    main_pool(state).tenants.iter().find(|tenant| tenant.name == name).unwrap()
}

/// True if the pool queues no write of the tenant `backup`, and more than half of its writes are in flight. A client that
/// gets no processor has fewer than all of its writes at the server.
fn none_is_queued(state: &State) -> bool {
    let backup = tenant(state, "backup");
    backup.throttled.is_none() && backup.queued_requests == 0 && backup.in_flight_requests > DEPTH / 2
}

/// True if the tenant `backup` is throttled, and the pool queues most of its writes.
fn most_are_queued(state: &State) -> bool {
    let backup = tenant(state, "backup");
    backup.throttled.is_some() && backup.queued_requests > DEPTH / 2 && backup.in_flight_requests < DEPTH / 4
}

/// Median over five reads of the number of writes that the device completes while the read is in flight. Writes are counted
/// because a busy machine makes every read slower, but does not put more writes before it.
fn writes_ahead_of_a_read(test: &TestServer, client: &mut Client) -> u64 {
    let written = || tenant(&test.server.state(), "backup").writes_total;
    let mut counts = [(); 5].map(|()| {
        let before = written();
        client.read(0, 4096).unwrap();
        written() - before
    });
    counts.sort_unstable();
    counts[2]
}

#[test]
fn writes_are_throttled_for_a_target_that_a_reload_brings_and_takes() {
    let test = TestServer::start("target", Engine::Auto, DEVICE);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stops = Stop(&stop);
        scope.spawn(|| test.connect("backup").keep_asking(Command::Write, 32 << 10, DEPTH as usize, &stop));
        // The controller needs reads all along.
        scope.spawn(|| test.connect("database").keep_asking(Command::Read, 4096, 1, &stop));
        let mut reader = test.connect("database");
        test.wait_for("all writes in flight", none_is_queued);
        let without = writes_ahead_of_a_read(&test, &mut reader);
        let state = test.server.state();
        assert!(main_pool(&state).latency_target.is_none() && tenant(&state, "backup").throttled.is_none());

        let mut config = test.config.clone();
        config.pools.get_mut("main").unwrap().latency =
            Some(Latency::mean(evenkeel_policy::units::Duration::from_millis(TARGET_MS)));
        test.server.reload(config.clone()).unwrap();
        let mut throttled = None;
        test.wait_for("writes that the throttle queues", |state| {
            throttled = most_are_queued(state).then(|| state.clone());
            throttled.is_some()
        });
        let state = throttled.expect("waited for");
        let target = main_pool(&state).latency_target.as_ref().unwrap();
        assert_eq!((target.target_ms, target.percentile.as_str()), (TARGET_MS as f64, "mean"));
        assert!(target.decisions.iter().any(|decision| decision.reason == "reads_over_target"), "{target:#?}");
        let hold = tenant(&state, "backup").throttled.as_ref().unwrap();
        // The reason is the load in most cases. Reads that a busy machine makes slow may ask for the longest delay.
        assert!(hold.delay_ms > 0.0 && hold.slots_owner == "latency" && !hold.because.is_empty(), "{hold:?}");
        assert!(tenant(&state, "database").throttled.is_none());
        let with = writes_ahead_of_a_read(&test, &mut reader);
        println!("{without} writes before a read without the target, {with} with it");
        assert!(with < without, "{without} writes before a read without the target, {with} with it");

        // A tenant that is never throttled is released while the target stays, and the target leaves nothing behind.
        config.tenants.get_mut("backup").unwrap().throttle = Throttle::Never;
        test.server.reload(config.clone()).unwrap();
        test.wait_for("the release of the backup", none_is_queued);
        let state = test.server.state();
        assert!(main_pool(&state).latency_target.is_some() && tenant(&state, "backup").throttle == "never");
        config.tenants.get_mut("backup").unwrap().throttle = test.config.tenants["backup"].throttle;
        test.server.reload(config).unwrap();
        test.wait_for("the throttle once more", most_are_queued);
        test.server.reload(test.config.clone()).unwrap();
        assert!(main_pool(&test.server.state()).latency_target.is_none());
        test.wait_for("all writes in flight again", none_is_queued);
    });
}
