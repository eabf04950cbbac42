//! A test of the wiring of a pool's limit and of the tenants' shares in it. `a_light_tenant_gets_its_half_of_a_slow_pool` in
//! `crates/control/tests/pool.rs` checks how exact the shares are, in virtual time.

use crate::support;

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use evenkeel_nbd::wire::Command;
use evenkeel_policy::config::Engine;
use support::TestServer;

/// The pool's limit in requests per second. A request every 20 ms is so slow that the light tenant may send its next request
/// 120 ms late and still gets a seventh of the requests.
const IOPS: u64 = 50;
/// Number of requests that the light tenant sends.
const LIGHT: u64 = 20;
/// Largest number of the heavy tenant's requests for each request of the light tenant: with equal shares there is one,
/// without shares there are 32.
const AT_MOST: u64 = 8;

#[test]
fn a_limit_holds_and_a_light_tenant_beside_a_heavy_one_gets_a_share() {
    let text = format!(
        "[pools.main]\nlimit = {{ iops = {IOPS} }}\ntuning.admission = \"none\"\n[tenants.heavy]\n[tenants.light]\n\
        [volumes.heavy]\nbackend = \"memory\"\nsize = \"8MiB\"\n[volumes.light]\nbackend = \"memory\"\nsize = \"8MiB\"\n"
    );
    let test = TestServer::start("neighbour", Engine::Auto, &text);
    let stop = AtomicBool::new(false);
    let start = Instant::now();
    let heavy = std::thread::scope(|scope| {
        let stops = support::Stop(&stop);
        let heavy = scope.spawn(|| test.connect("heavy").keep_asking(Command::Read, 4096, 32, &stop));
        test.wait_for("the heavy tenant's queue", |state| state.pools[0].queued_requests >= 24);
        let mut light = test.connect("light");
        (0..LIGHT).for_each(|_| drop(light.read(0, 4096).unwrap()));
        drop(stops);
        heavy.join().unwrap()
    });
    let seconds = start.elapsed().as_secs_f64();
    println!("{heavy} requests of the heavy tenant beside {LIGHT} of the light one in {seconds:.2} s");
    // The burst of a pool is 10 ms. A busy machine makes requests later, never earlier.
    let most = IOPS as f64 * (seconds + 0.010) + 1.0;
    assert!((heavy + LIGHT) as f64 <= most, "{heavy} and {LIGHT} requests exceed the limit: {most:.1} at most");
    assert!(heavy <= AT_MOST * LIGHT, "{heavy} requests of the heavy tenant beside {LIGHT} of the light one");
}
