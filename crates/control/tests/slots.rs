//! Properties of the methods that decide about slots, for any workloads.

use std::num::NonZeroU32;

use evenkeel_control::Duration;
use evenkeel_control::rng::SplitMix64;
use evenkeel_control::slots::{Config, Controller, Depth, Method, Reason, Report, Summary, Workload, WorkloadId};
use proptest::prelude::*;

fn report(arrived: u64, queued: u64, waited_ms: u64, used: f64, latency_ms: u64) -> Report {
    let length = Duration::from_millis(100);
    let inside = Duration::from_nanos((used * 1e8) as u64);
    // By Little's law.
    let completed = (used * 100.0 / latency_ms.max(1) as f64) as u64;
    Report {
        length,
        arrived,
        completed,
        bytes: completed * 4096,
        queued,
        waited: Duration::from_millis(waited_ms * queued),
        occupied: inside,
        aside: Duration::ZERO,
        device_time: Duration::from_millis(latency_ms * completed),
        latency: Duration::from_millis((latency_ms + waited_ms) * completed),
    }
}

fn workload(id: u64, target_ms: u64, weight: f64, report: Report) -> Workload {
    let target = (target_ms > 0).then(|| Duration::from_millis(target_ms));
    Workload { id: WorkloadId(id), target, weight, guaranteed_iops: 0.0, report }
}

prop_compose! {
    fn any_workload()(
        id in 0u64..1000, target in prop_oneof![Just(0u64), 5u64..2000], weight in 1u32..1000,
        arrived in 0u64..5000, queued in 0u64..5000, waited in 0u64..3000, used in 0.0f64..500.0, latency in 1u64..500,
    ) -> Workload {
        workload(id, target, f64::from(weight), report(arrived, queued, waited, used, latency))
    }
}

fn any_workloads() -> impl Strategy<Value = Vec<Workload>> {
    prop::collection::vec(any_workload(), 1..40).prop_map(|mut all| {
        all.sort_by_key(|workload| workload.id);
        all.dedup_by_key(|workload| workload.id);
        all
    })
}

fn controller(method: Method) -> Controller {
    let config = match method {
        Method::Needs => Config::NEEDS,
        _ => Config::published(method, Duration::from_millis(100), 256.0),
    };
    Controller::new(&config).expect("settings that make sense")
}

/// A workload cannot make the device look slow by requests to the same bytes.
#[test]
fn waits_for_requests_to_the_same_bytes_are_no_latency_of_the_device() {
    let inside = report(100, 0, 0, 9.0, 9);
    for (aside_ms, is_long) in [(8, false), (0, true)] {
        let [aside, device_time] = [aside_ms, 9 - aside_ms].map(|ms| Duration::from_millis(ms * inside.completed));
        let own = [workload(1, 5, 1.0, Report { aside, device_time, ..inside })];
        let mut controller = controller(Method::Needs);
        let parts = [0; 3].map(|_| controller.observe(&own).device_part);
        let part = parts[2];
        assert_eq!(part > 1.0, is_long, "{part} of the target");
        assert!(part > 0.1, "{part} of the target");
    }
}

/// The total of slots, and slots and reason of each workload, after `periods` periods with the same workloads and reports.
fn settled(controller: &mut Controller, workloads: &[Workload], periods: usize) -> (Option<f64>, Vec<(f64, Reason)>) {
    let mut last = (None, Vec::new());
    for _ in 0..periods {
        let summary = controller.observe(workloads).clone();
        let plan = controller.tick(&summary);
        last = (
            plan.total,
            plan.shares.iter().map(|share| (share.slots.unwrap_or(f64::INFINITY), share.reason)).collect(),
        );
    }
    last
}

proptest! {
    // Precedence: whatever the method and the targets of others, slots take no reservation, by Little's law.
    #[test]
    fn no_bound_takes_a_reservation(workloads in any_workloads(), iops in 1u32..2000) {
        for method in [Method::Rwd, Method::Parda, Method::Drg, Method::Needs] {
            let mut workloads = workloads.clone();
            workloads[0].guaranteed_iops = f64::from(iops);
            let report = workloads[0].report;
            let (_, shares) = settled(&mut controller(method), &workloads, 3);
            let latency_s = report.occupied.as_secs_f64() / report.completed as f64;
            if report.queued > 0 && report.completed > 0 {
                prop_assert!(shares[0].0 >= 0.999 * f64::from(iops) * latency_s, "{:?}: {:?}", method, shares[0]);
            }
        }
    }

    #[test]
    fn shares_add_up_to_the_total_and_starve_no_workload(workloads in any_workloads()) {
        for method in [Method::Rwd, Method::Drg, Method::Needs] {
            let (total, shares) = settled(&mut controller(method), &workloads, 3);
            let Some(total) = total else {
                // No target is within reach.
                let bounds = |w: &Workload| {
                    let latency = w.report.occupied.as_secs_f64() / w.report.completed as f64;
                    w.target.is_some_and(|target| !w.report.is_idle() && w.report.completed > 0 && latency < target.as_secs_f64())
                };
                prop_assert!(method == Method::Needs && !workloads.iter().any(bounds), "{shares:?}");
                prop_assert!(shares.iter().all(|(slots, _)| slots.is_infinite()), "{shares:?}");
                continue;
            };
            let active = workloads.iter().zip(&shares).filter(|(workload, _)| !workload.report.is_idle());
            let sum: f64 = active.map(|(_, (slots, _))| slots).sum();
            prop_assert!(sum <= total * (1.0 + 1e-9), "{}: {sum} of {total}", method.name());
            for (slots, reason) in &shares {
                prop_assert!(slots.is_finite() && *slots > 0.0, "{}: {slots} {reason:?}", method.name());
            }
        }
    }

    /// Each workload gets the same slots, on whichever host it runs, and in whatever groups summaries are added up.
    #[test]
    fn hosts_that_decide_for_themselves_decide_as_one(workloads in any_workloads(), cut in 0usize..40, periods in 1usize..5) {
        let cut = cut.min(workloads.len());
        let (here, there) = workloads.split_at(cut);
        let (mut one, mut first, mut second) =
            (controller(Method::Needs), controller(Method::Needs), controller(Method::Needs));
        for _ in 0..periods {
            let whole = one.observe(&workloads).clone();
            let mut sum = Summary::default();
            sum.add(first.observe(here));
            sum.add(second.observe(there));
            let plan = one.tick(&whole);
            let (total, shares) = (plan.total, plan.shares.to_vec());
            let (a, b) = (first.tick(&sum), second.tick(&sum));
            prop_assert_eq!(a.total, b.total, "the same sum, the same total");
            let (a, b) = (a.shares.to_vec(), b.shares.to_vec());
            for (apart, together) in a.iter().chain(&b).zip(&shares) {
                let (apart, together) = (apart.slots.unwrap_or(0.0), together.slots.unwrap_or(0.0));
                prop_assert!((apart - together).abs() <= 1e-6 * (1.0 + together), "{apart} {together} of {total:?}");
            }
        }
    }

    /// For equal weights the published split meets the largest possible number of targets.
    #[test]
    fn as_many_targets_as_can_be_are_met(needs in prop::collection::vec(1u64..60, 1..9), total in 10f64..256.0) {
        let workloads: Vec<Workload> = needs
            .iter()
            .enumerate()
            .map(|(id, &need)| {
                // Arrivals that the published equations turn into so many slots: a target of twice the latency, none waiting.
                let mut each = report(0, 0, 0, 10.0, 100);
                each.length = Duration::from_secs(1);
                each.arrived = need * 12;
                workload(id as u64, 200, 1.0, each)
            })
            .collect();
        let config = Config::published(Method::Drg, Duration::from_millis(100), total.max(4.0));
        let mut controller = Controller::new(&config).expect("settings that make sense");
        let summary = controller.observe(&workloads).clone();
        let plan = controller.tick(&summary);
        let total = plan.total.expect("a total");
        let shares = plan.shares.to_vec();
        let met = shares.iter().filter(|share| matches!(share.reason, Reason::NeedMet)).count();
        let least = 1f64.min(total / shares.len() as f64);
        let best = (0u32..1 << shares.len())
            .filter(|set| {
                let chosen = |place: usize| set >> place & 1 == 1;
                let sum: f64 = shares
                    .iter()
                    .enumerate()
                    .map(|(place, share)| if chosen(place) { share.need.max(least) } else { least })
                    .sum();
                sum <= total + 1e-6
            })
            .map(u32::count_ones)
            .max();
        prop_assert!(best.is_some_and(|best| met >= best as usize), "{met} of {best:?}: {shares:?} in {total}");
    }
}

#[test]
fn without_targets_slots_are_bounded_only_while_the_others_are_not_heard() {
    let mut controller = controller(Method::Needs);
    let workloads = [workload(1, 0, 1.0, report(40, 80, 30, 20.0, 40))];
    assert_eq!(settled(&mut controller, &workloads, 10), (None, vec![(f64::INFINITY, Reason::Unbounded)]));
    controller.set_alone(true);
    // Twenty inside take 40 ms; where nothing has a target it aims at 20 ms.
    let (total, shares) = settled(&mut controller, &workloads, 100);
    assert!(total.is_some_and(|total| (9.0..11.0).contains(&total)), "{total:?}");
    assert!(shares[0].0 <= 11.0, "{shares:?}");
    controller.set_alone(false);
    assert_eq!(settled(&mut controller, &workloads, 1).0, None);
}

#[test]
fn a_target_counts_for_half_a_minute_when_its_workload_is_idle() {
    let mut controller = controller(Method::Needs);
    let other = workload(2, 0, 1.0, report(40, 80, 30, 20.0, 40));
    let mut with = |tight, periods| settled(&mut controller, &[workload(1, 100, 1.0, tight), other], periods).0;
    let idle = report(0, 0, 0, 0.0, 1);
    assert_eq!(with(idle, 1), None, "it has asked for nothing yet");
    let bound = with(report(10, 2, 5, 1.0, 40), 20);
    assert!(bound.is_some());
    assert_eq!(with(idle, 298), bound, "and stays what it is");
    assert_eq!(with(idle, 5), None);
}

#[test]
fn while_all_targets_can_be_met_margins_are_equal() {
    // Both have a queue, for which there are too few slots; the one with the tighter target gets more for the same load.
    let load = report(40, 80, 30, 20.0, 40);
    let workloads = [workload(1, 200, 1.0, load), workload(2, 800, 1.0, load)];
    let (_, shares) = settled(&mut controller(Method::Needs), &workloads, 30);
    let (tight, loose) = (shares[0], shares[1]);
    assert!(tight.0 > 1.5 * loose.0, "{shares:?}");
    assert!(
        matches!(tight.1, Reason::EqualMargin { .. }) && matches!(loose.1, Reason::EqualMargin { .. }),
        "{shares:?}"
    );
    // A queue that fits: both have at least nine tenths of a slot for each request, those that wait and those that come.
    let load = report(40, 20, 30, 20.0, 40);
    let workloads = [workload(1, 200, 1.0, load), workload(2, 800, 1.0, load)];
    let (_, shares) = settled(&mut controller(Method::Needs), &workloads, 30);
    assert!(shares.iter().all(|share| share.0 >= 0.9 * (20.0 + 400.0 * 0.04)), "{shares:?}");
}

/// However far a workload is behind its target, it gets at most one slot for each of its requests: it cannot use more, and the
/// other workloads need theirs.
#[test]
fn no_tenant_gets_slots_for_requests_that_there_are_not() {
    let late = report(10, 12, 190, 8.0, 80);
    let many = report(100, 60, 20, 50.0, 80);
    let workloads = [workload(1, 200, 1.0, late), workload(2, 200, 1.0, many)];
    let (_, shares) = settled(&mut controller(Method::Needs), &workloads, 5);
    // 12 that wait, and 100 a second that stay for 80 ms; everyone has one, and none is needed for less than all.
    assert!(shares[0].0 <= 12.0 + 8.0 + 1.5, "{shares:?}");
}

#[test]
fn what_cannot_be_kept_is_said_with_what_could() {
    // Far more waits than the device can serve in time.
    let heavy = report(2_000, 4_000, 900, 60.0, 100);
    let light = report(10, 1, 5, 1.0, 50);
    let workloads = [workload(1, 200, 1.0, heavy), workload(2, 200, 1.0, light)];
    let (total, shares) = settled(&mut controller(Method::Needs), &workloads, 10);
    let Reason::Unachievable { achievable_at } = shares[0].1 else { panic!("{shares:?}") };
    assert!(achievable_at.is_none_or(|scale| scale > 1.0), "{achievable_at:?} of {total:?}");
    assert!(matches!(shares[1].1, Reason::NeedMet), "the small need comes first: {shares:?}");
}

#[test]
fn an_idle_device_is_not_granted_ever_more() {
    let light = report(5, 0, 0, 0.5, 10);
    for method in [Method::Drg, Method::Needs] {
        let (total, _) = settled(&mut controller(method), &[workload(1, 200, 1.0, light)], 1_000);
        assert!(total.is_some_and(|total| total <= 64.0), "{}: {total:?}", method.name());
    }
}

/// Both readings of the published equation (4.1) keep two parts in a thousand of the past, which differs from the third period
/// on.
#[test]
fn two_readings_of_the_published_latency_differ_little_and_from_the_third_period_on() {
    let totals = |method: Method, periods: &[u64]| {
        let mut controller = controller(method);
        let mut total = None;
        for &latency_ms in periods {
            total = settled(&mut controller, &[workload(1, 200, 1.0, report(5, 10, 5, 64.0, latency_ms))], 1).0;
        }
        total.expect("a total")
    };
    let both = |periods: &[u64]| [Method::Drg, Method::DrgSmoothed].map(|method| totals(method, periods));
    let [published, smoothed] = both(&[50, 400]);
    assert!((published - smoothed).abs() < 1e-12 * published, "{published} and {smoothed}");
    let [published, smoothed] = both(&[50, 400, 100]);
    let part = (published / smoothed - 1.0).abs();
    assert!(part > 1e-7 && part < 1e-3, "{published} and {smoothed}");
}

#[test]
fn no_client_at_all_is_no_trouble() {
    for method in Method::ALL {
        let mut controller = controller(method);
        let summary = controller.observe(&[]).clone();
        assert!(controller.tick(&summary).shares.is_empty());
        let idle = [workload(7, 100, 1.0, Report { length: Duration::from_millis(100), ..Report::default() })];
        let summary = controller.observe(&idle).clone();
        let shares = controller.tick(&summary).shares.to_vec();
        assert!(
            shares.iter().all(|share| share.slots.is_none_or(|slots| slots > 0.0)),
            "{}: {shares:?}",
            method.name()
        );
    }
}

/// Any number of queues with any bounds on their depth.
fn depths() -> impl Strategy<Value = Depth> {
    (1u32..64, 1u32..8, 1u32..1_024).prop_map(|(queues, least, most)| Depth {
        queues: NonZeroU32::new(queues).unwrap(),
        least,
        most,
    })
}

proptest! {
    #[test]
    fn a_length_stays_within_its_bounds_and_near_to_the_slots(depth in depths(), now in 0u32..2_000, slots in -1.0f64..1e5) {
        let longest = depth.most.max(depth.least);
        let set = depth.change(now, slots).unwrap_or(now);
        prop_assert!((depth.least..=longest).contains(&set));
        let each = (slots / f64::from(depth.queues.get())).clamp(f64::from(depth.least), f64::from(longest));
        prop_assert!((f64::from(set) - each).abs() <= (0.1 * f64::from(set)).max(0.75), "{set} for {each}");
        // What has been set for these slots stays.
        prop_assert_eq!(depth.change(set, slots), None);
        prop_assert!(depth.change(now, slots) != Some(now));
    }

    #[test]
    fn more_slots_are_no_shorter_queue(depth in depths(), slots in 0.0f64..1e5, more in 0.0f64..1e3) {
        prop_assert!(depth.of(slots) <= depth.of(slots + more));
    }

    #[test]
    fn slots_that_waver_change_nothing(depth in depths(), middle in 1.0f64..1e4, steps in prop::collection::vec(-1.0f64..1.0, 50)) {
        let settled = depth.of(middle);
        let queues = f64::from(depth.queues.get());
        // A quarter of a request of each queue up and down, with a length to which the middle has led.
        for step in steps {
            prop_assert_eq!(depth.change(settled, middle + 0.25 * step * queues), None);
        }
    }

    #[test]
    fn no_bound_is_the_longest(depth in depths(), now in 0u32..2_000) {
        let longest = depth.most.max(depth.least);
        for slots in [f64::INFINITY, f64::NAN] {
            prop_assert_eq!(depth.change(now, slots).unwrap_or(now), longest);
        }
    }
}

/// The reports, on 600 periods of 100 ms, of a workload whose requests come `apart_ms` ms apart on average, at random times, and
/// take `latency_ms` ms each.
fn sparse(apart_ms: u64, latency_ms: u64, rng: &mut SplitMix64) -> Vec<Report> {
    let (mut now, mut requests) = (0, Vec::new());
    while now < 60_000 {
        requests.push(now);
        now += apart_ms / 2 + 1 + rng.next_below(apart_ms);
    }
    let periods = (0..600).map(|period| period * 100..(period + 1) * 100);
    periods
        .map(|period| {
            let inside = |&from: &u64| (from + latency_ms).min(period.end).saturating_sub(from.max(period.start));
            let completed = requests.iter().filter(|from| period.contains(&(*from + latency_ms))).count() as u64;
            Report {
                length: Duration::from_millis(100),
                arrived: requests.iter().filter(|from| period.contains(from)).count() as u64,
                completed,
                occupied: Duration::from_millis(requests.iter().map(inside).sum()),
                device_time: Duration::from_millis(latency_ms * completed),
                latency: Duration::from_millis(latency_ms * completed),
                ..Report::default()
            }
        })
        .collect()
}

proptest! {
    /// The measured device latency is true for few or long requests, of which none completes in many periods. It may come out
    /// up to 25 % too long, as the number of requests in a period varies by chance.
    #[test]
    fn the_devices_latency_is_that_of_its_requests(apart_ms in 20u64..2_000, latency_ms in 1u64..1_000, seed: u64) {
        let mut controller = controller(Method::Needs);
        let mut parts = Vec::new();
        for report in sparse(apart_ms, latency_ms, &mut SplitMix64::new(seed)) {
            let summary = controller.observe(&[workload(1, 10_000, 1.0, report)]).clone();
            controller.tick(&summary);
            if summary.device_part > 0.0 {
                parts.push(summary.device_part);
            }
        }
        let known = &parts[parts.len() / 4..];
        let latency_ms = latency_ms as f64;
        let ratio = known.iter().sum::<f64>() / known.len() as f64 * 10_000.0 / latency_ms;
        prop_assert!((0.9..=1.25).contains(&ratio), "{ratio:.2}");
    }
}
