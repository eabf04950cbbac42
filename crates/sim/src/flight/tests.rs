//! Tests of replay, fit and advice on recordings that are made by simulating a known device.

use evenkeel_control::rng::SplitMix64;
use evenkeel_control::{Duration, Instant};
use evenkeel_flight::{Head, Kind, Name, Recording, Request, Table};
use evenkeel_model::Io;
use evenkeel_model::device::{Device, DeviceParams, Machine};
use evenkeel_model::jitter::Jitter;
use evenkeel_model::store::StoreParams;

use super::advise::{Trouble, advise};
use super::family::Family;
use super::fit::{Options, Refusal, fit};
use super::load::Load;
use super::policy::Policy;
use super::replay::{Under, compare, simulate, simulate_on, speeded};
use super::{page, text};

mod identifiable;
mod unlike;

/// A read of 4 KiB of client 0, without queue latency.
pub(super) fn request(arrival_ns: u64, device_ns: u64) -> Request {
    Request { arrival_ns, device_ns, length: 4096, ..Request::default() }
}

/// A recording of these requests, with tenants t0 to t2 and a volume in each of the pools main and other.
pub(super) fn recording(mut requests: Vec<Request>) -> Recording {
    requests.sort_by_key(|request| request.arrival_ns);
    let volume = |number: u32, pool: &str| Name {
        table: Table::Volume,
        number,
        name: format!("v{number}"),
        pool: pool.into(),
        bytes: 1 << 30,
    };
    let tenant =
        |number: u32| Name { table: Table::Tenant, number, name: format!("t{number}"), pool: String::new(), bytes: 0 };
    let names = vec![volume(0, "main"), volume(1, "other"), tenant(0), tenant(1), tenant(2)];
    let head = Head { source: "serve".into(), ..Head::default() };
    Recording { head, names, requests, lost: 0, complete: true }
}

/// A client of [`drive`].
struct Driver {
    tenant: u32,
    kind: Kind,
    bytes: u32,
    /// Requests that the client keeps in flight; 0: it sends independent requests.
    depth: u32,
    /// Mean time between independent requests, in nanoseconds.
    every_ns: f64,
    /// Time in which it sends, in nanoseconds.
    from_ns: u64,
    until_ns: u64,
}

/// Records what these clients do on a device, without a pool. The think time of closed loops is 5 µs.
fn drive(params: &DeviceParams, drivers: &[Driver]) -> Recording {
    drive_on(&mut Device::new(params, 77), drivers)
}

/// Records what these clients do on any device.
fn drive_on(device: &mut dyn Machine, drivers: &[Driver]) -> Recording {
    let mut rng = SplitMix64::new(5);
    let mut due: Vec<(u64, usize)> = Vec::new();
    for (place, driver) in drivers.iter().enumerate() {
        due.extend((0..driver.depth.max(1)).map(|turn| (driver.from_ns + u64::from(turn), place)));
    }
    let (mut requests, mut now): (Vec<(Request, usize)>, Instant) = (Vec::new(), Instant::ZERO);
    loop {
        let wake = due.iter().map(|(at, _)| *at).min().unwrap_or(u64::MAX);
        let next = Instant::from_nanos(wake).min(device.next_event());
        if next == Instant::FAR_FUTURE {
            break;
        }
        now = now.max(next);
        while let Some(id) = device.poll(now) {
            let (request, place) = &mut requests[id as usize];
            request.device_ns = now.as_nanos() - request.arrival_ns;
            if drivers[*place].depth > 0 {
                due.push((now.as_nanos() + 5_000, *place));
            }
        }
        let (ready, later): (Vec<_>, Vec<_>) = due.into_iter().partition(|(at, _)| *at <= now.as_nanos());
        due = later;
        for (at, place) in ready {
            let driver = &drivers[place];
            if at >= driver.until_ns {
                continue;
            }
            let (offset, length) = (rng.next_below(1 << 17) * 4096, u64::from(driver.bytes));
            let client = place as u32;
            let one = Request { client, tenant: driver.tenant, kind: driver.kind, offset, length, ..request(at, 0) };
            let kind = match driver.kind {
                Kind::Write => evenkeel_control::units::Kind::Write,
                _ => evenkeel_control::units::Kind::Read,
            };
            device.submit(now, requests.len() as u64, Io { kind, offset, bytes: driver.bytes });
            requests.push((one, place));
            if driver.depth == 0 {
                let gap = -libm::log(rng.next_f64()) * driver.every_ns;
                due.push((at + gap as u64 + 1, place));
            }
        }
    }
    recording(requests.into_iter().map(|(request, _)| request).collect())
}

fn closed(tenant: u32, bytes: u32, depth: u32, from_ms: u64, until_ms: u64) -> Driver {
    let (from_ns, until_ns) = (from_ms * 1_000_000, until_ms * 1_000_000);
    Driver { tenant, kind: Kind::Read, bytes, depth, every_ns: 0.0, from_ns, until_ns }
}

fn paced(tenant: u32, bytes: u32, every_us: f64, until_ms: u64) -> Driver {
    Driver { every_ns: every_us * 1e3, ..closed(tenant, bytes, 0, 0, until_ms) }
}

/// A store on which reads take 200 µs beside their transfer at 400 MB/s and at most 20,000 IOPS.
fn store() -> StoreParams {
    StoreParams {
        bandwidth_bytes_per_s: 400_000_000,
        iops: 20_000,
        read_latency: Duration::from_micros(200),
        jitter: Jitter::LogNormal { sigma: 0.25 },
        ..StoreParams::ssd()
    }
}

#[test]
fn a_replay_on_the_recorded_device_repeats_the_recording() {
    let device = DeviceParams::Store(store());
    let load = Load::new(drive(&device, &[closed(0, 65_536, 8, 0, 2_000), paced(1, 4_096, 2_000.0, 2_000)]), None);
    let load = load.unwrap();
    let comparison = compare(&load, Under { device: &device, policy: None }, None, 3).unwrap();
    assert_eq!((comparison.before.unfinished, comparison.before.tenants.len()), (0, 2));
    for off in &comparison.calibration {
        assert!(off.iops.abs() < 0.02 && off.p50.abs() < 0.1, "{off:?}");
    }
    assert!(comparison.dependent > 0.5, "{}", comparison.dependent);
    let again = compare(&load, Under { device: &device, policy: None }, None, 3).unwrap();
    assert_eq!(again, comparison);
}

#[test]
fn on_a_faster_device_a_closed_loop_sends_sooner_and_a_paced_client_does_not() {
    let device = DeviceParams::Store(store());
    let load = Load::new(drive(&device, &[closed(0, 65_536, 8, 0, 2_000), paced(1, 4_096, 2_000.0, 2_000)]), None);
    let load = load.unwrap();
    let fast = DeviceParams::Store(store().scaled(2.0));
    let [slow, fast] = [&device, &fast].map(|device| simulate(&load, device, None, &[], 1).unwrap());
    let faster = |tenant: usize| fast.tenants[tenant].iops / slow.tenants[tenant].iops;
    assert!(faster(0) > 1.8, "{}", faster(0));
    assert!((faster(1) - 1.0).abs() < 0.02, "{}", faster(1));
}

#[test]
fn a_limit_throttles_its_tenant_alone() {
    let device = DeviceParams::Store(store());
    let load = Load::new(drive(&device, &[closed(0, 65_536, 8, 0, 1_000), paced(1, 4_096, 2_000.0, 1_000)]), None);
    let load = load.unwrap();
    let text = "pools.main.tuning.admission = \"none\"\n[tenants.t0]\nlimit.iops = 1000\n[tenants.t1]\n\
                latency = { target = \"2ms\", percentile = 99 }\n";
    let policy = Policy::parse(text, "test", "main", &[]).unwrap();
    let after = Under { device: &device, policy: Some(&policy) };
    let comparison = compare(&load, Under { device: &device, policy: None }, Some(after), 1).unwrap();
    let longer: Vec<&String> = comparison.notes.iter().filter(|note| note.contains("would do less of it")).collect();
    assert!(longer.len() == 1 && longer[0].starts_with("t0: "), "{:?}", comparison.notes);
    let after = comparison.after.unwrap();
    assert!((900.0..1_100.0).contains(&after.tenants[0].iops), "{:?}", after.tenants[0]);
    assert!(after.tenants[0].throttled > 0.5 && after.tenants[1].throttled < 0.1, "{:?}", after.tenants);
    assert!(after.targets.len() == 1 && after.targets[0].met, "{:?}", after.targets);
    assert!(after.tenants[1].p99_ms < comparison.before.tenants[1].p99_ms);
}

#[test]
fn a_known_device_is_learned_or_the_result_says_what_is_not_known() {
    let device = DeviceParams::Store(store());
    // Little and much load, small and large requests, in both halves.
    let drivers = [
        paced(0, 4_096, 700.0, 4_000),
        paced(0, 65_536, 3_000.0, 4_000),
        closed(1, 4_096, 8, 400, 700),
        closed(1, 65_536, 4, 1_000, 1_300),
        closed(1, 4_096, 8, 2_400, 2_700),
        closed(1, 65_536, 4, 3_000, 3_300),
    ];
    let load = Load::new(drive(&device, &drivers), None).unwrap();
    // The table is for devices that no family is like.
    let options = Options { families: vec![Family::Store, Family::Surface], seed: 9, ..Options::default() };
    let fit = fit(&load, &options).unwrap();
    assert_eq!(fit.family, "store");
    assert!(fit.error < 0.15, "{:#?}", fit.held_out);
    for (knob, found) in Family::Store.knobs().iter().zip(&fit.parameters) {
        let off = found.value / (knob.get)(&device) - 1.0;
        assert!(!found.known || off.abs() < 0.1, "{} is off by {off}: {:#?}", found.key, fit.parameters);
    }
    // Of a recording with several depths the latency of reads is known.
    let known: Vec<&str> = fit.parameters.iter().filter(|found| found.known).map(|found| found.key).collect();
    assert!(known.contains(&"read_latency"), "{:#?}", fit.parameters);
    // There are no writes.
    assert!(fit.parameters.iter().any(|found| found.key == "commit_latency" && !found.known));
    assert!(fit.notes.iter().any(|note| note.contains("commit_latency")), "{:?}", fit.notes);
}

#[test]
fn a_recording_that_does_not_tell_is_refused() {
    let options = Options { families: vec![Family::Store], sample: 1_000, seed: 1 };
    let refused = |requests: Vec<Request>| fit(&Load::new(recording(requests), None).unwrap(), &options).unwrap_err();
    let lonely = |count: u64| (0..count).map(|n| request(n * 1_000_000, 200_000)).collect();
    assert_eq!(refused(lonely(900)), Refusal::Few { requests: 900 });
    assert_eq!(refused(lonely(2_000)), Refusal::OneInFlight);
    assert_eq!(refused((0..2_000).map(|n| request(n, 0)).collect()), Refusal::NoLatencies);
    let device = DeviceParams::Store(store());
    let deep = Load::new(drive(&device, &[closed(0, 4_096, 16, 0, 300)]), None).unwrap();
    assert!(matches!(fit(&deep, &options), Err(Refusal::OneDepth { .. })));
}

#[test]
fn advice_names_a_policy_that_meets_the_targets_or_by_how_much_they_are_missed() {
    let device = DeviceParams::Store(store());
    let load = Load::new(drive(&device, &[closed(0, 65_536, 8, 0, 1_000), paced(1, 4_096, 2_000.0, 1_000)]), None);
    let load = load.unwrap();
    let wish = |target: &str| {
        let text = format!(
            "pools.main.tuning.admission = \"none\"\n[tenants.t1]\nlatency = {{ target = {target:?}, percentile = 99 }}\n"
        );
        Policy::parse(&text, "test", "main", &[]).unwrap()
    };
    let advice = advise(&load, &device, &wish("1ms"), 1).unwrap();
    let chosen = advice.chosen().expect("a limit on t0 leaves room for t1");
    assert!(chosen.figures.targets[0].achieved_ms <= 1.0 && chosen.lost < 0.9, "{:?}", chosen.figures.targets);
    // One second is too short for a bootstrap. The advice is better than the wish, which is missed.
    assert_eq!(advice.confidence, None);
    assert!(!advice.candidates[0].met && advice.candidates[0].change == "as wanted", "{:?}", advice.candidates);
    let wanted = &advice.candidates[0].figures.targets[0];
    assert!(wanted.achieved_ms > chosen.figures.targets[0].achieved_ms, "{wanted:?}");
    let met = advice.candidates.iter().filter(|candidate| candidate.met);
    assert!(met.clone().all(|candidate| candidate.lost >= chosen.lost) && met.count() > 0);
    assert!(text::advice(&advice).contains("# In place of [pools.main]"), "{}", text::advice(&advice));
    let advised = Policy::parse(&advice.advised, "advice", "main", &[]).unwrap();
    assert_eq!(advised, chosen.policy);
    // Reads take twice as long on the idle device.
    let hopeless = advise(&load, &device, &wish("100us"), 1).unwrap();
    assert!(hopeless.chosen().is_none() && hopeless.unmet.len() == 1, "{:?}", hopeless.unmet);
    assert!(hopeless.unmet[0].ratio > 2.0 && hopeless.load_share == Some(0.0), "{hopeless:?}");
    let shown = text::advice(&hopeless);
    assert!(shown.contains("times the target") && shown.contains("down to 1/64 of this load"), "{shown}");
    let nothing = Policy::parse("", "test", "main", &[]).unwrap();
    assert_eq!(advise(&load, &device, &nothing, 1), Err(Trouble::NothingWanted));
}

#[test]
fn advice_names_the_speed_of_a_device_that_would_meet_the_target() {
    let device = DeviceParams::Store(store());
    let load = Load::new(drive(&device, &[paced(0, 4_096, 2_000.0, 1_000)]), None).unwrap();
    let advised = |target: &str| {
        let text = format!("[tenants.t0]\nlatency = {{ target = {target:?}, percentile = 99 }}\n");
        advise(&load, &device, &Policy::parse(&text, "test", "main", &[]).unwrap(), 1).unwrap()
    };
    // A read takes more than 200 µs in the median; its 99th percentile is half as much again.
    let slow = advised("280us");
    let (faster, ratio) = (slow.faster.clone().expect("no policy meets it"), slow.unmet[0].ratio);
    let factor = faster.factor.expect("a somewhat faster device is enough");
    assert!(ratio > 1.1 && (factor - ratio).abs() < 0.2, "{factor} for {ratio} times the target");
    let shown = format!("a device {factor} times as fast would meet all, by this policy: {}", faster.change);
    assert!(text::advice(&slow).contains(&shown), "{}", text::advice(&slow));
    assert_eq!(serde_json::to_value(&slow).unwrap()["faster"]["factor"], factor);
    let page = page::advice(&slow, "evenkeel advise".to_owned());
    assert!(page.intro.contains(&shown) && page.html().contains("Frontier"), "{:?}", page.intro);
    let hopeless = advised("10us");
    assert_eq!(hopeless.faster.as_ref().map(|faster| faster.factor), Some(None));
    assert!(text::advice(&hopeless).contains("not even a device 8 times as fast"), "{}", text::advice(&hopeless));
    let easy = advised("1s");
    assert!(easy.chosen().is_some() && easy.faster.is_none(), "{:?}", easy.faster);
    let page = page::advice(&easy, "evenkeel advise".to_owned());
    assert!(page.sections.iter().any(|section| section.title == "Policy to use") && page.checks[0].met);
}

#[test]
fn a_replay_on_a_faster_device_ends_a_closed_loop_sooner() {
    let device = DeviceParams::Store(store());
    let load = Load::new(drive(&device, &[closed(0, 65_536, 8, 0, 1_000)]), None).unwrap();
    let at = |speed| simulate_on(speeded(speed), &load, &device, None, &[], 1).unwrap().tenants[0].iops;
    assert_eq!(simulate(&load, &device, None, &[], 1).unwrap().tenants[0].iops, at(1_000));
    // Think times stay.
    assert!((1.8..2.05).contains(&(at(2_000) / at(1_000))), "{} and {}", at(2_000), at(1_000));
}
