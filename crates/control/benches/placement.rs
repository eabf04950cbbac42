//! How even placement gets, for how many moves and in what time, beside one sort of the loads.
//!
//! ```text
//! cargo bench -p evenkeel-control --bench placement             a table
//! cargo bench -p evenkeel-control --bench placement -- --json   the same as JSON
//! cargo bench -p evenkeel-control --bench placement -- --smoke  quick, with bounds, for CI
//! ```
//!
//! Loads are lognormal (σ 1.2), connections placed one after the other as they are accepted. `max` is the heaviest
//! worker's load over the lower bound: the mean, or the heaviest connection where that is more. No search of any length
//! gets below it. Methods and the sort take turns on the same loads.
//!
//! Under `cargo test`, which passes no `--bench`, it runs as `--smoke` does.

use std::hint::black_box;
use std::time::Instant as WallClock;

use evenkeel_control::placement::descent::Descent;
use evenkeel_control::placement::{genetic, lpt};
use evenkeel_control::rng::SplitMix64;

/// Connections, workers, and how many connections may move, in per cent.
const CASES: [(usize, usize, usize); 4] = [(52, 8, 35), (200, 8, 20), (1_000, 16, 15), (10_000, 128, 15)];
const METHODS: [&str; 3] = ["genetic", "lpt", "descent"];
/// The published method takes seconds on the largest case.
const GENETIC_MOST: usize = 1_000;
/// What the bar allows beyond the best under the same budget, and so beyond the lower bound.
const MAX_BOUND: f64 = 1.01;
/// In the smoke test more sorts than this fail: far beyond noise and an unoptimised build.
const SMOKE_SORTS: f64 = 300.0;

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
    let trials = if smoke { 20 } else { 200 };
    let mut rows = Vec::new();
    for (connections, workers, percent) in CASES {
        for method in METHODS {
            if method == "genetic" && connections > GENETIC_MOST {
                continue;
            }
            let budget = connections * percent / 100;
            let figures = measure(method, connections, workers, budget, trials);
            if smoke && method == "descent" {
                let (worst, sorts) = (largest(&figures.max), median(&figures.sorts));
                assert!(worst <= MAX_BOUND, "{connections} x {workers}: {worst:.4} times the lower bound");
                assert!(sorts <= SMOKE_SORTS, "{connections} x {workers}: {sorts:.0} sorts");
            }
            rows.push((method, connections, workers, percent, figures));
        }
    }
    if has("--json") { print_json(&rows) } else { print_table(&rows) }
}

type Row = (&'static str, usize, usize, usize, Figures);

fn measure(method: &str, connections: usize, workers: usize, budget: usize, trials: u64) -> Figures {
    let (mut figures, mut descent) = (Figures::default(), Descent::new());
    let fixed = vec![0; workers];
    for seed in 0..trials {
        let mut rng = SplitMix64::new(seed);
        let loads: Vec<u64> = (0..connections).map(|_| (libm::exp(1.2 * rng.next_normal()) * 1e6) as u64).collect();
        let home: Vec<u32> = (0..connections).map(|connection| (connection % workers) as u32).collect();
        let mut assignment = home.clone();
        let begin = WallClock::now();
        match method {
            "genetic" => _ = genetic::evolve(&fixed, &loads, &mut assignment, &mut rng),
            "lpt" => lpt::assign(&fixed, &loads, &mut assignment),
            _ => _ = descent.balance(&fixed, &loads, budget, &mut assignment),
        }
        let us = begin.elapsed().as_nanos() as f64 / 1e3;
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
        assert!(method != "descent" || moved <= budget, "{moved} of {budget} moved");
        figures.max.push(totals.into_iter().max().unwrap_or(0) as f64 / bound);
        figures.moved.push(100.0 * moved as f64 / connections as f64);
        figures.us.push(us);
        figures.sorts.push(us / sort_us.max(0.05));
    }
    figures
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
        "{:<8} {:>12} {:>8} {:>8}  {:>8} {:>8} {:>8} {:>10} {:>8}",
        "method", "connections", "workers", "budget %", "max mean", "worst", "moved %", "us", "sorts"
    );
    for (method, connections, workers, percent, figures) in rows {
        println!(
            "{method:<8} {connections:>12} {workers:>8} {percent:>8}  {:>8.4} {:>8.4} {:>8.1} {:>10.1} {:>8.1}",
            mean(&figures.max),
            largest(&figures.max),
            mean(&figures.moved),
            median(&figures.us),
            median(&figures.sorts)
        );
    }
}

fn print_json(rows: &[Row]) {
    let rows = rows.iter().map(|(method, connections, workers, percent, figures)| {
        format!(
            "{{\"method\":\"{method}\",\"connections\":{connections},\"workers\":{workers},\"budget_percent\":{percent},\
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
