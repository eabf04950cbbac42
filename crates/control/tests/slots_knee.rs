//! Without goals, the total finds the knee of the device: where the last per cent of slots brings a fourth of a per cent.

use evenkeel_control::Duration;
use evenkeel_control::rng::SplitMix64;
use evenkeel_control::slots::{Config, Controller, Report, Summary, Workload, WorkloadId};

const PERIOD: Duration = Duration::from_millis(100);

/// Serves X(s) = rate·s / (s + half) with s inside, give or take what chance does to counts.
#[derive(Clone, Copy, Debug)]
struct Device {
    rate: f64,
    half: f64,
}

impl Device {
    /// Where d ln X / d ln s = half / (s + half) is a fourth.
    fn knee(self) -> f64 {
        3.0 * self.half
    }
}

fn controllers(count: usize) -> Vec<Controller> {
    (0..count).map(|_| Controller::new(&Config::NEEDS).expect("settings that make sense")).collect()
}

/// The total after so many periods in which all hosts have as much to do as they like.
fn run(hosts: &mut [Controller], shares: &mut [f64], device: Device, periods: usize, rng: &mut SplitMix64) -> f64 {
    let mut total = 0.0;
    for _ in 0..periods {
        let used: f64 = shares.iter().sum();
        let mut group = Summary::default();
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
                inside,
                device_time: inside,
                response_time: Duration::from_secs(1),
                ..Report::default()
            };
            let workload = Workload { id: WorkloadId(1), goal: None, weight: 1.0, promised_iops: 0.0, report };
            group.add(controller.observe(&[workload]));
        }
        for (controller, share) in hosts.iter_mut().zip(shares.iter_mut()) {
            let plan = controller.tick(&group);
            *share = plan.shares[0].slots.expect("a bound");
            total = plan.total.expect("a total");
        }
    }
    total
}

#[test]
fn the_knee_is_found_and_found_again_when_the_device_changes() {
    let device = |rate, half| Device { rate, half };
    let changes = [
        (device(1_000.0, 8.0), device(1_000.0, 32.0)),
        (device(1_000.0, 32.0), device(1_000.0, 8.0)),
        (device(20_000.0, 8.0), device(5_000.0, 32.0)),
        (device(20_000.0, 400.0), device(20_000.0, 100.0)),
        (device(20_000.0, 100.0), device(20_000.0, 100.0)),
    ];
    let mut ratios = Vec::new();
    for (first, then) in changes {
        for seed in 200..220 {
            let mut rng = SplitMix64::new(seed);
            let (mut hosts, mut shares) = (controllers(3), [1.0; 3]);
            for device in [first, then] {
                ratios.push(run(&mut hosts, &mut shares, device, 1_200, &mut rng) / device.knee());
            }
        }
    }
    // Two minutes after a change what was seen before it may still count.
    let near = ratios.iter().filter(|ratio| (0.5..=2.0).contains(*ratio)).count();
    assert!(near * 100 >= ratios.len() * 95, "{near} of {} within a factor of two: {ratios:.2?}", ratios.len());
    ratios.sort_by(f64::total_cmp);
    let median = ratios[ratios.len() / 2];
    assert!((0.8..=1.25).contains(&median), "{median:.2}: {ratios:.2?}");
}

/// A host that joins knows nothing of the device; what the others know is enough.
#[test]
fn a_host_that_joins_goes_by_what_the_others_know() {
    let device = Device { rate: 20_000.0, half: 100.0 };
    let mut rng = SplitMix64::new(7);
    let (mut hosts, mut shares) = (controllers(3), vec![1.0; 3]);
    run(&mut hosts, &mut shares, device, 600, &mut rng);
    hosts.extend(controllers(1));
    shares.push(1.0);
    // Its total is the last that is answered.
    let total = run(&mut hosts, &mut shares, device, 50, &mut rng);
    let all: f64 = shares.iter().sum();
    assert!((0.6..=1.6).contains(&(total / device.knee())), "{total:.0} slots");
    assert!((0.9..=1.1).contains(&(all / total)), "{all:.0} slots are shared out of {total:.0}");
}
