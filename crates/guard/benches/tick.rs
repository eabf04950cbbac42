//! Measures the CPU time of a tick of the agent: reading a file of statistics, deciding, recording; without the kernel's
//! part.
//!
//! Each pool has one reader and 99 writers on devices of their own; every writer is a noisy client, so that all writers are
//! throttled. The statistics come from a file that is kept open, as in `evenkeel guard run`.
//!
//! ```text
//! cargo bench -p evenkeel-guard --bench tick
//! ```
//!
//! Under `cargo test`, which passes no `--bench`, the largest case is left out.

use std::fmt::Write as _;
use std::hint::black_box;
use std::path::Path;

use evenkeel_control::{Duration, Instant};
use evenkeel_guard::config::Abilities;
use evenkeel_guard::discovery::{KnownBy, Link, Map, Roots, Server};
use evenkeel_guard::sensor::Source;
use evenkeel_guard::sensor::diskstats::DeviceNumber;
use evenkeel_guard::{Agent, Config};
use rustix::time::{ClockId, clock_gettime};

/// CPU time that this thread has used so far; other programs on the machine do not count.
fn cpu_time() -> std::time::Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    std::time::Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

const CLIENTS: u32 = 100;
const TICKS: u64 = 100;

fn map(pools: u32) -> Map {
    let link = |n: u32| Link {
        server: Server::Lio,
        target: format!("t{n}"),
        volume: "lun_0".into(),
        path: None,
        device: Some(format!("dm-{n}")),
        number: Some(DeviceNumber { major: 252, minor: n }),
        pool: Some(format!("vg{}", n / CLIENTS)),
        client: Some(std::net::Ipv4Addr::from(0x0a00_0000 + n).into()),
        client_name: Some(format!("iqn.2026-01.example:{n}")),
        connections: Vec::new(),
        known_by: KnownBy::Session,
        counters: None,
    };
    Map { links: (0..pools * CLIENTS).map(link).collect(), ..Map::default() }
}

fn statistics(pools: u32, tick: u64) -> String {
    let mut text = String::new();
    for n in 0..pools * CLIENTS {
        let (reads, writes) = if n.is_multiple_of(CLIENTS) { (tick * 6, 0) } else { (0, tick * 60) };
        let (read_ms, sectors) = (reads * 40, writes * 128);
        let _ = writeln!(
            text,
            "252 {n} dm-{n} {reads} 0 {reads} {read_ms} {writes} 0 {sectors} {writes} 3 0 0 0 0 0 0 0 0"
        );
    }
    text
}

fn main() {
    let path = std::env::temp_dir().join(format!("evenkeel-guard-tick-{}", std::process::id()));
    println!("pools x clients   tick, mean ms   of a core at 100 ms   following a map, ms   first tick, ms");
    let smoke = !std::env::args().any(|argument| argument == "--bench");
    for pools in [1, 100, 1_000].into_iter().filter(|&pools| !smoke || pools < 1_000) {
        let mut text = String::new();
        for n in 0..pools {
            let _ = writeln!(text, "[pools.vg{n}]\nlatency.target = \"15ms\"");
        }
        let config = Config::parse(&text, "bench", Abilities { tracepoints: false }).expect("valid");
        let mut agent = Agent::open(&config, &Roots::under(Path::new("none")), Path::new("none")).expect("valid");
        let map = map(pools);
        let started = cpu_time();
        agent.follow(map);
        let follow = cpu_time() - started;
        std::fs::write(&path, "").expect("written");
        let mut source = Source::open(&path).expect("opened");
        let (mut spent, mut first) = (std::time::Duration::ZERO, std::time::Duration::ZERO);
        let mut held = 0;
        for tick in 0..TICKS {
            // In place: the file that is open stays the same.
            std::fs::write(&path, statistics(pools, tick)).expect("written");
            let started = cpu_time();
            let now = Instant::ZERO + Duration::from_millis(100 * tick);
            let errors = agent.tick(now, source.read().expect("read"), None);
            assert!(errors.is_empty(), "{errors:?}");
            black_box(agent.packets.delays());
            // At the first one all devices are new.
            *if tick == 0 { &mut first } else { &mut spent } += cpu_time() - started;
            // As reads stay slow, throttles are lifted and put in turn.
            held = held.max(agent.packets.delays().len());
        }
        assert!(held as u32 > pools * CLIENTS / 2, "most clients are throttled");
        let mean_ms = spent.as_secs_f64() * 1e3 / (TICKS - 1) as f64;
        println!(
            "{pools:>9} x {CLIENTS}   {mean_ms:>13.3}   {mean_ms:>17.1} %   {:>18.1}   {:>14.1}",
            follow.as_secs_f64() * 1e3,
            first.as_secs_f64() * 1e3
        );
    }
    let _ = std::fs::remove_file(&path);
}
