//! How evenly placement divides load, with how many moves and in what time, compared with the time of one sort of the loads.
//!
//! ```text
//! cargo bench -p evenkeel-control --bench placement             a table
//! cargo bench -p evenkeel-control --bench placement -- --json   the same as JSON
//! cargo bench -p evenkeel-control --bench placement -- --smoke  quick, with bounds, for CI
//! ```
//!
//! Loads are lognormal (σ 1.2), connections placed one after the other as they are accepted, and workers busy for half of the
//! time. `max` is the heaviest worker's load divided by a lower bound, which is the mean load of a worker or the heaviest
//! connection's load, whichever is larger. No search gets below it. `waits`, which does not even out loads but shortens
//! waits, has decided 50 times; its time is that of one decision with a full past and all reports for it. Methods and the sort
//! take turns on the same loads.
//!
//! Under `cargo test`, which passes no `--bench`, the program runs as with `--smoke`.

use std::hint::black_box;
use std::time::Instant as WallClock;

use evenkeel_control::placement::{Config, Placement, Sample, genetic, lpt};
use evenkeel_control::rng::SplitMix64;
use evenkeel_control::{Duration, Instant};

/// Numbers of connections and of workers in each case.
const CASES: [(usize, usize); 4] = [(52, 8), (200, 8), (1_000, 16), (10_000, 128)];
const METHODS: [&str; 3] = ["genetic", "lpt", "waits"];
/// Largest number of connections for `genetic`, which takes seconds in the largest case.
const GENETIC_MOST: usize = 1_000;
/// Number of decisions of `waits` before it is timed.
const DECISIONS: usize = 40;
const TIMED: usize = 10;
const SLOT: Duration = Duration::from_millis(100);
/// Longest decision of `waits` in the smoke test, in µs: far beyond noise and an unoptimised build.
const SMOKE_US: f64 = 100_000.0;

#[derive(Default)]
struct Figures {
    max: Vec<f64>,
    moved: Vec<f64>,
    us: Vec<f64>,
    sorts: Vec<f64>,
}

fn main() {
    let has = |flag: &str| std::env::args().any(|argument| argument == flag);
    let smoke = has("--smoke") || !has("--bench");
    let trials = if smoke { 5 } else { 100 };
    let mut rows = Vec::new();
    for (connections, workers) in CASES {
        for method in METHODS {
            if method == "genetic" && connections > GENETIC_MOST {
                continue;
            }
            let figures = measure(method, connections, workers, trials);
            if smoke && method == "waits" {
                let us = median(&figures.us);
                assert!(us <= SMOKE_US, "{connections} x {workers}: {us:.0} us");
            }
            rows.push((method, connections, workers, figures));
        }
    }
    if has("--json") { print_json(&rows) } else { print_table(&rows) }
}

type Row = (&'static str, usize, usize, Figures);

fn measure(method: &str, connections: usize, workers: usize, trials: u64) -> Figures {
    let mut figures = Figures::default();
    let fixed = vec![0; workers];
    for seed in 0..trials {
        let mut rng = SplitMix64::new(seed);
        let weights: Vec<f64> = (0..connections).map(|_| libm::exp(1.2 * rng.next_normal())).collect();
        // Half of what all workers have time for in a slot.
        let times = SLOT.as_nanos() as f64 * workers as f64 / 2.0 / weights.iter().sum::<f64>();
        let loads: Vec<u64> = weights.iter().map(|weight| (weight * times) as u64).collect();
        let home: Vec<u32> = (0..connections).map(|connection| (connection % workers) as u32).collect();
        let mut assignment = home.clone();
        let begin = WallClock::now();
        match method {
            "genetic" => _ = genetic::evolve(&fixed, &loads, &mut assignment, &mut rng),
            "lpt" => lpt::assign(&fixed, &loads, &mut assignment),
            _ => figures.us.push(decide(workers, &loads, &mut assignment)),
        }
        if method != "waits" {
            figures.us.push(begin.elapsed().as_nanos() as f64 / 1e3);
        }
        let mut sorted = black_box(loads.clone());
        let begin = WallClock::now();
        sorted.sort_unstable();
        black_box(&sorted);
        let sort_us = begin.elapsed().as_nanos() as f64 / 1e3;
        let mut totals = vec![0; workers];
        assignment.iter().zip(&loads).for_each(|(&worker, &load)| totals[worker as usize] += load);
        let mean = loads.iter().sum::<u64>() as f64 / workers as f64;
        let bound = mean.max(loads.iter().copied().max().unwrap_or(0) as f64);
        let moved = assignment.iter().zip(&home).filter(|(worker, home)| worker != home).count();
        figures.max.push(totals.into_iter().max().unwrap_or(0) as f64 / bound);
        figures.moved.push(100.0 * moved as f64 / connections as f64);
        figures.sorts.push(figures.us.last().copied().unwrap_or(0.0) / sort_us.max(0.05));
    }
    figures
}

/// Lets `waits` move connections of these loads, from its own placement; returns the time of a decision, in µs.
fn decide(workers: usize, loads: &[u64], assignment: &mut [u32]) -> f64 {
    let mut placement = Placement::new(Config::default(), workers, 1, Instant::ZERO);
    (0..loads.len() as u32).for_each(|slot| _ = placement.join(slot));
    let mut now = Instant::ZERO;
    let mut begin = WallClock::now();
    for n in 0..DECISIONS + TIMED {
        if n == DECISIONS {
            begin = WallClock::now();
        }
        for (slot, &load) in (0..).zip(loads) {
            placement.observe(slot, Sample { cpu: Duration::from_nanos(load), received_bytes: 0 });
        }
        now += SLOT;
        black_box(placement.tick(now));
    }
    let us = begin.elapsed().as_nanos() as f64 / 1e3 / TIMED as f64;
    for (slot, worker) in (0..).zip(assignment) {
        *worker = placement.worker(slot).unwrap_or(0);
    }
    us
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn largest(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn print_table(rows: &[Row]) {
    println!(
        "{:<8} {:>12} {:>8}  {:>8} {:>8} {:>8} {:>10} {:>8}",
        "method", "connections", "workers", "max mean", "worst", "moved %", "us", "sorts"
    );
    for (method, connections, workers, figures) in rows {
        println!(
            "{method:<8} {connections:>12} {workers:>8}  {:>8.4} {:>8.4} {:>8.1} {:>10.1} {:>8.1}",
            mean(&figures.max),
            largest(&figures.max),
            mean(&figures.moved),
            median(&figures.us),
            median(&figures.sorts)
        );
    }
}

fn print_json(rows: &[Row]) {
    let rows = rows.iter().map(|(method, connections, workers, figures)| {
        format!(
            "{{\"method\":\"{method}\",\"connections\":{connections},\"workers\":{workers},\
             \"max_mean\":{},\"max_worst\":{},\"moved_percent\":{},\"us\":{},\"sorts\":{}}}",
            mean(&figures.max),
            largest(&figures.max),
            mean(&figures.moved),
            median(&figures.us),
            median(&figures.sorts)
        )
    });
    println!("[{}]", rows.collect::<Vec<_>>().join(","));
}
