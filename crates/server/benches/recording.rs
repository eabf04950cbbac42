//! CPU time of a worker for a request, while the server records and while it does not, side by side.
//!
//! ```text
//! cargo bench -p evenkeel-server --bench recording             the figures, with the bar of the difference
//! cargo bench -p evenkeel-server --bench recording -- --smoke  quick, with a loose bound, for CI
//! ```
//!
//! A client reads 512 bytes at a time from a volume in memory, in batches. Rounds with and without a recording alternate, so that
//! both meet the same machine. Time is CPU time of the only worker; the recorder's own thread does not count.
//!
//! Under `cargo test`, which passes no `--bench`, the benchmark runs as with `--smoke`.

#[path = "../tests/support/mod.rs"]
mod support;

use std::io::Write as _;
use std::time::Duration;

use evenkeel_nbd::wire::{Command, CommandFlags};
use evenkeel_policy::config::Engine;
use evenkeel_server::Order;
use support::{Client, TestServer};

/// Name of the thread of the only worker.
const WORKER: &str = "evenkeel-0";
/// Number of requests that are sent at once.
const BATCH: u64 = 64;
/// Bar: CPU time of a worker for the recording of a request, in ns.
const BAR_NS: f64 = 100.0;
/// The smoke test fails if a request takes more than so many times as long while it is recorded. Noise stays far below; a system
/// call or a lock for each request exceeds it.
const SMOKE_RATIO: f64 = 2.0;

fn main() {
    let has = |flag: &str| std::env::args().any(|argument| argument == flag);
    let smoke = has("--smoke") || !has("--bench");
    let (rounds, batches) = if smoke { (5, 200) } else { (31, 2_000) };
    let text = "[server]\nworkers = 1\nbusy_poll = \"0s\"\n[volumes.disk0]\nbackend = \"memory\"\nsize = \"16MiB\"\n";
    let test = TestServer::start("bench-recording", Engine::Auto, text);
    if worker_ns().is_none() {
        println!("not measured: the kernel does not count the time of threads (schedstat)");
        return;
    }
    let mut client = test.connect("disk0");
    let (mut off, mut on, mut lost) = (Vec::new(), Vec::new(), 0);
    for round in 0..=rounds {
        let without = reads(&mut client, batches);
        test.server.record(order(&test)).unwrap_or_else(|error| panic!("{error}"));
        let with = reads(&mut client, batches);
        let figures = test.server.end_recording().expect("a recording was begun");
        assert!(figures.error.is_none(), "{figures:?}");
        assert_eq!(figures.requests + figures.lost, batches * BATCH);
        // The first round warms up.
        if round > 0 {
            off.push(without);
            on.push(with);
            lost += figures.lost;
        }
    }
    let mut more: Vec<f64> = on.iter().zip(&off).map(|(on, off)| on - off).collect();
    for values in [&mut off, &mut on, &mut more] {
        values.sort_by(f64::total_cmp);
    }
    println!("CPU time of a worker for a request in ns, median (lowest-highest round); {lost} requests lost");
    for (name, values) in [("not recorded", &off), ("recorded", &on), ("difference", &more)] {
        println!("{name:<14} {:.0} ({:.0}-{:.0})", median(values), values[0], values[values.len() - 1]);
    }
    let verdict = if median(&more) <= BAR_NS { "met" } else { "MISSED" };
    println!("recording adds {:.0} ns, bar <= {BAR_NS:.0}, {verdict}", median(&more));
    assert!(!smoke || on[0] <= SMOKE_RATIO * off[0], "{:.0} ns recorded, {:.0} ns not recorded", on[0], off[0]);
}

/// An order to record until the recording is ended.
fn order(test: &TestServer) -> Order {
    Order {
        file: test.scratch.path().join("bench.evf"),
        pool: None,
        length: Duration::from_secs(3600),
        max_bytes: 1 << 30,
        key: None,
        force: true,
    }
}

/// Reads so many batches. Returns the worker's CPU time in ns a request.
fn reads(client: &mut Client, batches: u64) -> f64 {
    let before = worker_ns().unwrap_or(0);
    for _ in 0..batches {
        let mut all = Vec::new();
        for cookie in 0..BATCH {
            client.expect(cookie, Command::Read, cookie << 9, 512);
            all.extend(client.encode(cookie, Command::Read, CommandFlags::NONE, cookie << 9, 512, &[]));
        }
        client.stream.write_all(&all).expect("the server reads");
        for cookie in 0..BATCH {
            client.wait(cookie).expect("a read of memory");
        }
    }
    worker_ns().unwrap_or(0).saturating_sub(before) as f64 / (batches * BATCH) as f64
}

/// CPU time of the worker so far, in ns; `None` if the kernel does not count it.
fn worker_ns() -> Option<u64> {
    let mut threads = std::fs::read_dir("/proc/self/task").ok()?.flatten().map(|thread| thread.path());
    let is_worker = |path: &std::path::PathBuf| {
        std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim_end() == WORKER)
    };
    let worker = threads.find(is_worker)?;
    std::fs::read_to_string(worker.join("schedstat")).ok()?.split_whitespace().next()?.parse().ok()
}

fn median(sorted: &[f64]) -> f64 {
    sorted[sorted.len() / 2]
}
