//! The part of the tightest target that a request may spend inside the device: seven tenths where more slots bring throughput,
//! a fourth where they bring none.

use evenkeel_control::Duration;
use evenkeel_control::rng::SplitMix64;
use evenkeel_control::slots::{Config, Controller, Report, Summary, Workload, WorkloadId};

const PERIOD: Duration = Duration::from_millis(100);
const TARGET_S: f64 = 0.1;

/// A device that serves X(s) = rate·s / (s + half) requests per second with s in flight; the count of each period is random
/// around it.
#[derive(Clone, Copy, Debug)]
struct Device {
    /// Most requests per second, with very many in flight.
    rate: f64,
    /// Requests in flight with which the device reaches half of `rate`.
    half: f64,
}

impl Device {
    /// Part of the target that the mean time inside the device should be: a fourth at elasticity half / (s + half) = 0, rising
    /// in proportion to seven tenths at elasticity 0.2 and above.
    fn part(self) -> f64 {
        let alone = self.half / self.rate / TARGET_S;
        // p = 0.25 + 0.45 min(1, alone / (0.2 p)).
        if alone >= 0.2 * 0.7 { 0.7 } else { 0.125 + (0.125f64.powi(2) + 2.25 * alone).sqrt() }
    }

    /// Part of the target that `total` requests in flight take inside the device, divided by [`Device::part`]; 1 is ideal.
    fn ratio(self, total: f64) -> f64 {
        (total + self.half) / self.rate / TARGET_S / self.part()
    }
}

fn controllers(count: usize) -> Vec<Controller> {
    (0..count).map(|_| Controller::new(&Config::NEEDS).expect("settings that make sense")).collect()
}

/// Runs `periods` periods in which every host always has requests queued; returns the last total of slots.
fn run(hosts: &mut [Controller], shares: &mut [f64], device: Device, periods: usize, rng: &mut SplitMix64) -> f64 {
    let mut total = 0.0;
    for _ in 0..periods {
        let used: f64 = shares.iter().sum();
        let mut cluster = Summary::default();
        for (controller, share) in hosts.iter_mut().zip(&*shares) {
            let mean = device.rate * share / (used + device.half) * PERIOD.as_secs_f64();
            let completed = (mean + 0.7 * mean.sqrt() * rng.next_normal() + rng.next_f64()).max(0.0) as u64;
            let inside = Duration::from_nanos((share * PERIOD.as_secs_f64() * 1e9) as u64);
            let report = Report {
                length: PERIOD,
                arrived: completed,
                completed,
                queued: 100,
                waited: Duration::from_secs(1),
                occupied: inside,
                device_time: inside,
                latency: Duration::from_secs(1),
                ..Report::default()
            };
            let target = Some(Duration::from_nanos((TARGET_S * 1e9) as u64));
            let workload = Workload { id: WorkloadId(1), target, weight: 1.0, guaranteed_iops: 0.0, report };
            cluster.add(controller.observe(&[workload]));
        }
        for (controller, share) in hosts.iter_mut().zip(shares.iter_mut()) {
            let plan = controller.tick(&cluster);
            *share = plan.shares[0].slots.expect("a bound");
            total = plan.total.expect("a total");
        }
    }
    total
}

#[test]
fn the_device_takes_more_of_a_target_where_more_slots_bring_throughput() {
    let device = |rate, half| Device { rate, half };
    let changes = [
        (device(1_000.0, 1.0), device(1_000.0, 32.0)),
        (device(1_000.0, 32.0), device(1_000.0, 1.0)),
        (device(20_000.0, 10.0), device(5_000.0, 160.0)),
        (device(20_000.0, 600.0), device(20_000.0, 20.0)),
        (device(20_000.0, 100.0), device(20_000.0, 100.0)),
    ];
    let mut ratios = Vec::new();
    for (first, then) in changes {
        for seed in 200..220 {
            let mut rng = SplitMix64::new(seed);
            let (mut hosts, mut shares) = (controllers(3), [1.0; 3]);
            for device in [first, then] {
                ratios.push(device.ratio(run(&mut hosts, &mut shares, device, 1_200, &mut rng)));
            }
        }
    }
    // Two minutes after a change what was seen before it may still count.
    let near = ratios.iter().filter(|ratio| (0.71..=1.4).contains(*ratio)).count();
    assert!(
        near * 100 >= ratios.len() * 95,
        "{near} of {} within a factor of 1.4, which tells them apart: {ratios:.2?}",
        ratios.len()
    );
    ratios.sort_by(f64::total_cmp);
    let median = ratios[ratios.len() / 2];
    assert!((0.8..=1.25).contains(&median), "{median:.2}: {ratios:.2?}");
}

/// A host that joins has measured nothing of the device; it computes its total from the measurements of the other hosts.
#[test]
fn a_host_that_joins_goes_by_what_the_others_know() {
    let device = Device { rate: 20_000.0, half: 20.0 };
    let mut rng = SplitMix64::new(7);
    let (mut hosts, mut shares) = (controllers(3), vec![1.0; 3]);
    run(&mut hosts, &mut shares, device, 600, &mut rng);
    hosts.extend(controllers(1));
    shares.push(1.0);
    // Its total is the last that is answered; what is assumed of a device would be 1.6 times as much.
    let total = run(&mut hosts, &mut shares, device, 50, &mut rng);
    let all: f64 = shares.iter().sum();
    assert!((0.71..=1.4).contains(&device.ratio(total)), "{total:.0} slots");
    assert!((0.9..=1.1).contains(&(all / total)), "{all:.0} slots are shared out of {total:.0}");
}
