//! CPU time of a worker for a request, and throughput, while the server records and while it does not, side by side.
//!
//! ```text
//! cargo bench -p evenkeel-server --bench recording             the figures, with the bars of the differences
//! cargo bench -p evenkeel-server --bench recording -- --smoke  quick, with loose bounds, for CI
//! ```
//!
//! Rounds with and without a recording alternate, so that both meet the same machine. The volume is in memory. For the CPU time a
//! client reads 512 bytes at a time, in batches; time is that of the only worker, without the recorder's own thread. For the
//! throughput several connections read 4 KiB at a time in a closed loop, and the only worker, which serves all of them, is the
//! bottleneck as far as the clients' threads have processors of their own.
//!
//! Under `cargo test`, which passes no `--bench`, the benchmark runs as with `--smoke`.

#[path = "../tests/support/mod.rs"]
mod support;

use std::io::Write as _;
use std::thread;
use std::time::{Duration, Instant};

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
/// Number of connections of a thread of the clients.
const CONNECTIONS_A_THREAD: usize = 8;

/// A load in a closed loop.
struct Load {
    connections: usize,
    /// Requests in flight of each connection.
    depth: u64,
    /// Bar: share of the throughput that a recording takes.
    bar: f64,
}

/// A load below 300,000 IOPS, and one that a volume in memory serves as fast as it can.
const LOADS: [Load; 2] = [Load { connections: 4, depth: 1, bar: 0.02 }, Load { connections: 32, depth: 4, bar: 0.1 }];

fn main() {
    let has = |flag: &str| std::env::args().any(|argument| argument == flag);
    let smoke = has("--smoke") || !has("--bench");
    let text = "[server]\nworkers = 1\nbusy_poll = \"0s\"\n[volumes.disk0]\nbackend = \"memory\"\nsize = \"16MiB\"\n";
    let test = TestServer::start("bench-recording", Engine::Auto, text);
    match worker_ns() {
        Some(_) => cpu(&test, smoke),
        None => println!("CPU time is not measured: the kernel does not count the time of threads (schedstat)"),
    }
    for load in LOADS {
        throughput(&test, &load, smoke);
    }
}

/// Measures the CPU time of the worker for a request.
fn cpu(test: &TestServer, smoke: bool) {
    let (rounds, batches) = if smoke { (5, 200) } else { (31, 2_000) };
    let mut client = test.connect("disk0");
    let (mut off, mut on, mut lost) = (Vec::new(), Vec::new(), 0);
    for round in 0..=rounds {
        let without = reads(&mut client, batches);
        test.server.record(order(test)).unwrap_or_else(|error| panic!("{error}"));
        let with = reads(&mut client, batches);
        let this = end(test, batches * BATCH);
        // The first round warms up.
        if round > 0 {
            off.push(without);
            on.push(with);
            lost += this;
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

/// Measures the throughput of a load.
fn throughput(test: &TestServer, load: &Load, smoke: bool) {
    let (rounds, requests) = if smoke { (5, 2_560) } else { (31, 25_600) };
    let Load { connections, depth, bar } = *load;
    let mut clients: Vec<Client> = (0..connections).map(|_| test.connect("disk0")).collect();
    let (mut off, mut on, mut lost) = (Vec::new(), Vec::new(), 0);
    for round in 0..=rounds {
        let without = rate(&mut clients, depth, requests);
        test.server.record(order(test)).unwrap_or_else(|error| panic!("{error}"));
        let with = rate(&mut clients, depth, requests);
        let this = end(test, requests);
        // The first round warms up.
        if round > 0 {
            off.push(without);
            on.push(with);
            lost += this;
        }
    }
    let mut less: Vec<f64> = on.iter().zip(&off).map(|(on, off)| 1.0 - on / off).collect();
    for values in [&mut off, &mut on, &mut less] {
        values.sort_by(f64::total_cmp);
    }
    println!("{connections} x {depth}: IOPS, median (lowest-highest round); {lost} requests lost");
    for (name, values) in [("not recorded", &off), ("recorded", &on)] {
        println!("{name:<14} {:.0} ({:.0}-{:.0})", median(values), values[0], values[values.len() - 1]);
    }
    let [share, low, high] = [median(&less), less[0], less[less.len() - 1]].map(|share| share * 100.0);
    let verdict = if share <= bar * 100.0 { "met" } else { "MISSED" };
    println!("recording takes {share:.1} % ({low:.1}-{high:.1}), bar <= {:.0}, {verdict}", bar * 100.0);
    assert!(!smoke || less[0] <= 1.0 - 1.0 / SMOKE_RATIO, "a recording takes {low:.1} % of {connections} x {depth}");
}

/// Reads so many blocks of 4 KiB, an equal number by each of `clients`. Returns the throughput in IOPS.
fn rate(clients: &mut [Client], depth: u64, requests: u64) -> f64 {
    let turns = requests / (clients.len() as u64 * depth);
    let begun = Instant::now();
    thread::scope(|scope| {
        for part in clients.chunks_mut(CONNECTIONS_A_THREAD) {
            scope.spawn(move || {
                for _ in 0..turns {
                    part.iter_mut().for_each(|client| ask(client, depth, 4_096));
                    part.iter_mut().for_each(|client| receive(client, depth));
                }
            });
        }
    });
    requests as f64 / begun.elapsed().as_secs_f64()
}

/// Ends the recording, which has `requests` requests. Returns the number of those that were lost.
fn end(test: &TestServer, requests: u64) -> u64 {
    let figures = test.server.end_recording().expect("a recording was begun");
    assert!(figures.error.is_none(), "{figures:?}");
    assert_eq!(figures.requests + figures.lost, requests);
    figures.lost
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
        ask(client, BATCH, 512);
        receive(client, BATCH);
    }
    worker_ns().unwrap_or(0).saturating_sub(before) as f64 / (batches * BATCH) as f64
}

/// Sends `count` reads of so many bytes at once.
fn ask(client: &mut Client, count: u64, bytes: u64) {
    let mut all = Vec::new();
    for cookie in 0..count {
        client.expect(cookie, Command::Read, cookie * bytes, bytes);
        all.extend(client.encode(cookie, Command::Read, CommandFlags::NONE, cookie * bytes, bytes, &[]));
    }
    client.stream.write_all(&all).expect("the server reads");
}

/// Waits for the answers to `count` reads.
fn receive(client: &mut Client, count: u64) {
    for cookie in 0..count {
        client.wait(cookie).expect("a read of memory");
    }
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
