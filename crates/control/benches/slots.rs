//! The time that a host takes to decide about slots, by the number of hosts that share the device.
//!
//! ```text
//! cargo bench -p evenkeel-control --bench slots             a table
//! cargo bench -p evenkeel-control --bench slots -- --smoke  quick, with a bound, for CI
//! ```
//!
//! Each host has four workloads. With more than a hundred hosts, a host adds up the summaries of the hosts of its own rack of
//! a hundred, and one sum for each rack. `settles` is the number of periods, from the start, after which the total of slots
//! under a constant load stays within 1 %.
//!
//! Under `cargo test`, which passes no `--bench`, the program runs as with `--smoke`.

use std::hint::black_box;
use std::time::Instant as WallClock;

use evenkeel_control::Duration;
use evenkeel_control::rng::SplitMix64;
use evenkeel_control::slots::{Config, Controller, Report, Summary, Workload, WorkloadId};

const HOSTS: [usize; 4] = [10, 100, 1_000, 10_000];
const RACK: usize = 100;
const WORKLOADS: u64 = 4;
/// Bound of the smoke test: time for a hundred times as many hosts, in racks, divided by that for ten; far beyond noise.
const SMOKE_RATIO: f64 = 200.0;

fn workloads(rng: &mut SplitMix64) -> Vec<Workload> {
    (0..WORKLOADS)
        .map(|id| {
            let arrived = 5 + rng.next_below(40);
            let latency = Duration::from_micros(2_000 + rng.next_below(4_000));
            let times = |count: u64| Duration::from_nanos(latency.as_nanos() * count);
            let report = Report {
                length: Duration::from_millis(100),
                arrived,
                completed: arrived,
                bytes: arrived << 12,
                queued: rng.next_below(4),
                waited: Duration::from_millis(rng.next_below(10)),
                occupied: times(arrived),
                aside: Duration::ZERO,
                device_time: times(arrived),
                latency: times(2 * arrived),
            };
            let target = Some(Duration::from_millis(20 + rng.next_below(200)));
            Workload { id: WorkloadId(id), target, weight: 1.0, guaranteed_iops: 0.0, report }
        })
        .collect()
}

/// Time of one host for one period, in µs, and the number of periods after which the total of slots stays.
fn measure(hosts: usize, rounds: usize) -> (f64, usize) {
    let mut rng = SplitMix64::new(hosts as u64);
    let config = Config { most: 1e6, ..Config::NEEDS };
    let own = workloads(&mut rng);
    let mut controller = Controller::new(&config).expect("settings that make sense");
    let others: Vec<Summary> = (1..hosts)
        .map(|_| {
            let mut other = Controller::new(&config).expect("settings that make sense");
            other.observe(&workloads(&mut rng)).clone()
        })
        .collect();
    let racks: Vec<Summary> = others[RACK.min(others.len())..]
        .chunks(RACK)
        .map(|rack| {
            rack.iter().fold(Summary::default(), |mut sum, host| {
                sum.add(host);
                sum
            })
        })
        .collect();
    let (mut times, mut totals) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let begun = WallClock::now();
        let mut group = controller.observe(black_box(&own)).clone();
        others.iter().take(RACK).chain(&racks).for_each(|part| group.add(black_box(part)));
        let plan = controller.tick(&group);
        totals.push(plan.total.unwrap_or(0.0));
        black_box(plan.shares);
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    let last = totals.last().copied().unwrap_or(0.0);
    let settled = totals.iter().rposition(|total| (total / last - 1.0).abs() > 0.01).map_or(0, |place| place + 1);
    (times[times.len() / 2], settled)
}

fn main() {
    let has = |flag: &str| std::env::args().any(|argument| argument == flag);
    let smoke = has("--smoke") || !has("--bench");
    println!("{:>8} {:>14} {:>10}", "hosts", "us a period", "settles");
    let mut all = Vec::new();
    for hosts in HOSTS {
        let (us, settled) = measure(hosts, if smoke { 100 } else { 2_000 });
        println!("{hosts:>8} {us:>14.1} {settled:>10}");
        all.push(us);
    }
    if smoke {
        let ratio = all[3] / all[0];
        assert!(ratio <= SMOKE_RATIO, "10,000 hosts cost {ratio:.0} times as much as 10");
    }
}
