//! What one client asks for must not keep another one waiting. Every attack is counted in requests of the attacker that are
//! carried out for one of the light client, so that a slow or busy machine changes nothing.

use crate::support;

use std::io::Write;
use std::sync::atomic::AtomicBool;

use evenkeel_nbd::wire::{Command, CommandFlags};
use evenkeel_policy::config::Engine;
use evenkeel_policy::state::State;
use support::{TestServer, pattern};

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

/// Tenants, and volumes of files, because those need buffers.
const TENANTS: &str = "[tenants.light]\n[tenants.noise]\n\
    [volumes.light]\ntenant = \"light\"\nsize = \"16MiB\"\n[volumes.noise]\ntenant = \"noise\"\nsize = \"64MiB\"\n";

#[test]
fn writes_that_stop_half_way_keep_no_memory_from_another_tenant() {
    for engine in support::ENGINES {
        let text = format!("[server]\nbuffer_memory = \"32MiB\"\n{TENANTS}");
        let test = TestServer::start("half-arrived", engine, &text);
        let mut attackers: Vec<_> = (0..300).map(|_| test.connect("noise")).collect();
        for attacker in &mut attackers {
            let header = attacker.encode(0, Command::Write, CommandFlags::NONE, 0, 32 << 20, &[]);
            attacker.stream.write_all(&header).unwrap();
            attacker.stream.write_all(&[1; 1000]).unwrap();
        }
        test.wait_for("all that they can get", |state| state.buffer_memory_used_bytes > 31 << 20);
        let mut light = test.connect("light");
        for n in 0..200 {
            light.write(n << 12, &pattern(n, 1, 4096)).unwrap();
            assert_eq!(light.read(n << 12, 4096).unwrap(), pattern(n, 1, 4096));
        }
        // What is above its floor it gets as well: those that are in the way go.
        light.write(0, &pattern(0, 2, 8 << 20)).unwrap();
        assert!(light.read(0, 8 << 20).unwrap() == pattern(0, 2, 8 << 20));
        test.wait_for("some of them closed", |state| state.connections < 300);
        drop(attackers);
        test.wait_for("all given back", |state| state.buffer_memory_used_bytes == 0);
    }
}

#[test]
fn replies_that_are_not_taken_keep_no_memory_from_another_tenant() {
    let text = format!("[server]\nbuffer_memory = \"32MiB\"\n{TENANTS}");
    let test = TestServer::start("not-taken", Engine::Auto, &text);
    let mut attackers: Vec<_> = (0..100).map(|_| test.connect("noise")).collect();
    for attacker in &mut attackers {
        for n in 0..64 {
            attacker.send(Command::Read, CommandFlags::NONE, n << 19, 1 << 19, &[]);
        }
    }
    test.wait_for("all that they can get", |state| state.buffer_memory_used_bytes > 24 << 20);
    let mut light = test.connect("light");
    for n in 0..200 {
        assert_eq!(light.read(n << 12, 4096).unwrap(), [0; 4096]);
    }
    assert!(light.read(0, 8 << 20).unwrap() == vec![0; 8 << 20]);
}

#[test]
fn one_client_cannot_take_all_connections() {
    let test = TestServer::start("flood", Engine::Auto, &format!("[server]\nmax_connections = 64\n{TENANTS}"));
    let flood: Vec<_> = (0..64).map(|_| test.raw_tcp()).collect();
    test.wait_for("the flood", |state| state.accepted_connections_total + state.refused_connections_total >= 64);
    // Half of the places, less what is kept.
    assert_eq!(test.server.state().accepted_connections_total, 30);
    // A user of this machine is another client than an address.
    let mut light: Vec<_> = (0..8).map(|_| test.connect("light")).collect();
    light.iter_mut().for_each(|light| drop(light.read(0, 512).unwrap()));
    drop(flood);
}

/// Requests of the attacker that are done.
fn carried_out(state: &State) -> u64 {
    state.pools.iter().flat_map(|pool| &pool.tenants).map(|tenant| tenant.metas_total).sum()
}
