//! What one client asks for must not keep another one waiting. Every attack is counted in requests of the attacker that are
//! carried out for one of the light client, so that a slow or busy machine changes nothing.

use crate::support;

use std::sync::atomic::AtomicBool;

use evenkeel_nbd::wire::Command;
use evenkeel_policy::config::Engine;
use evenkeel_policy::state::State;
use support::TestServer;

/// Connections of the attacker, and requests that each keeps outstanding.
const CONNECTIONS: usize = 8;
const DEPTH: usize = 64;
/// Requests of the light client.
const LIGHT: u64 = 200;
/// Bytes of the volume that is attacked. Nothing is ever stored in it.
const SIZE: u64 = 4 << 30;
/// Requests of the attacker for each of the light client. A worker deals with all pools for 1 ms at a time, twice for each
/// request of the light client, and one of the attacker's takes 0.1 ms at least. A worker that carries out all
/// that there is comes to `CONNECTIONS` times `DEPTH`.
const AT_MOST: u64 = 64;

#[test]
fn work_on_memory_of_another_pool_is_shared_out_in_turns() {
    let text = "[server]\nworkers = 1\n[pools.noise]\n\
                [volumes.light]\nbackend = \"memory\"\nsize = \"1MiB\"\n\
                [volumes.noise]\nbackend = \"memory\"\npool = \"noise\"\nsize = \"4GiB\"\n";
    for command in [Command::Trim, Command::WriteZeroes] {
        let test = TestServer::start(&format!("isolation-{command:?}"), Engine::Auto, text);
        let stop = AtomicBool::new(false);
        let noise: u64 = std::thread::scope(|scope| {
            let stops = support::Stop(&stop);
            let attack = || test.connect("noise").keep_asking(command, SIZE, DEPTH, &stop);
            let attackers: Vec<_> = (0..CONNECTIONS).map(|_| scope.spawn(attack)).collect();
            test.wait_for("the attack", |state| carried_out(state) > (CONNECTIONS * DEPTH) as u64);
            let mut light = test.connect("light");
            let before = carried_out(&test.server.state());
            (0..LIGHT).for_each(|_| drop(light.read(0, 4096).unwrap()));
            let noise = carried_out(&test.server.state()) - before;
            drop(stops);
            assert!(attackers.into_iter().all(|attacker| attacker.join().is_ok()));
            noise
        });
        println!("{command:?}: {noise} requests of the attacker beside {LIGHT} of the light client");
        assert!(noise <= AT_MOST * LIGHT, "{command:?}: {noise} requests beside {LIGHT}");
    }
}

/// Requests of the attacker that are done.
fn carried_out(state: &State) -> u64 {
    state.pools.iter().flat_map(|pool| &pool.tenants).map(|tenant| tenant.metas_total).sum()
}
