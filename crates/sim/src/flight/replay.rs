//! Replays a load against a modelled device under a policy, with the engine of scenarios.
//!
//! Each recorded connection becomes a client whose requests are sent when their causes say, see [`infer`](super::infer). The work
//! is the same in each replay: a faster device ends it sooner as far as clients are closed loops. A replay ends when all requests
//! have completed, at the latest after [`LONGEST`] times the length of the recording.
//!
//! Each run of a sample of a long recording is replayed for itself, on a device and a pool without earlier requests. Its figures
//! follow those of the run before.

use std::cell::RefCell;
use std::ops::ControlFlow;

use evenkeel_control::mclock::Qos;
use evenkeel_control::{Duration, Instant};
use evenkeel_model::device::{Device, DeviceParams, Machine};
use evenkeel_model::faster::Faster;
use serde::Serialize;

use super::figures::{Done, Figures, Tally, Target, TenantFigures, recorded};
use super::infer::Behaviour;
use super::load::{self, LeftOut, Load, Sent};
use super::policy::Policy;
use crate::report::short;
use crate::workload::Spec;
use crate::world::{Client, Completion, Failure, Setup, Tenant, run_watched};

/// A replay ends at the latest after this multiple of the recording's length, plus ten seconds.
pub const LONGEST: u64 = 8;
/// Difference between recorded and simulated figures above which a replay is a poor prediction, as a share.
const TOLERABLE: f64 = 0.25;
/// Times of work below this are not compared, in seconds: a few slow requests make them longer.
const SHORTEST: f64 = 1.0;

/// Replays `load` on `device` under `policy` (`None`: every request is admitted at once), and judges it by `targets`. The same
/// arguments give the same figures, bit for bit.
///
/// # Errors
/// [`Failure`], for example when more arrives than the device serves.
pub fn simulate(
    load: &Load,
    device: &DeviceParams,
    policy: Option<&Policy>,
    targets: &[Target],
    seed: u64,
) -> Result<Figures, Failure> {
    simulate_on(Device::new, load, device, policy, targets, seed)
}

/// Makes a device that is `thousandths` / 1,000 times as fast as its parameters say, at least as fast, for [`simulate_on`].
pub fn speeded(thousandths: u32) -> impl Fn(&DeviceParams, u64) -> Faster<Device> {
    move |params: &DeviceParams, seed| Faster::new(Device::new(params, seed), thousandths)
}

/// Replays as [`simulate`] does. `make` makes the device from its parameters and a seed.
///
/// # Errors
/// As [`simulate`].
pub fn simulate_on<D: Machine>(
    make: impl Fn(&DeviceParams, u64) -> D,
    load: &Load,
    device: &DeviceParams,
    policy: Option<&Policy>,
    targets: &[Target],
    seed: u64,
) -> Result<Figures, Failure> {
    let tally = RefCell::new(Tally::new(&load.tenants, targets));
    let (mut begin_ns, mut unfinished) = (0, 0);
    for (run, idle_ns) in load.idle().iter().enumerate() {
        let clients: Vec<&load::Client> = load.clients.iter().filter(|client| client.run == run).collect();
        let all: u64 = clients.iter().map(|client| client.requests.len() as u64).sum();
        if all == 0 {
            tally.borrow_mut().next_run(idle_ns);
            continue;
        }
        let earlier = tally.borrow().total();
        let count = |now: Instant, completion: &Completion| {
            let Some(client) = clients.get(completion.client) else { return };
            let number = client.requests.get(completion.number as usize).copied().unwrap_or_default();
            let Some(sent) = load.requests.get(number as usize) else { return };
            tally.borrow_mut().add(&Done {
                tenant: client.tenant,
                kind: sent.kind,
                bytes: sent.io.bytes,
                at_ns: now.as_nanos().saturating_add(begin_ns),
                latency_ns: now.since(completion.sent_at).as_nanos(),
                queue_ns: completion.admitted_at.since(completion.entered_at).as_nanos(),
                device_ns: completion.left_at.since(completion.admitted_at).as_nanos(),
            });
        };
        let setup = setup(load, &clients, load.start_of(run), device, policy);
        // Each run has its own chance.
        let seed = seed.wrapping_add(run as u64);
        let ran = run_watched(&setup, seed, &make, &mut |now, _, completion| count(now, completion), &mut |_| {
            if tally.borrow().total() - earlier == all { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let left = all - (tally.borrow().total() - earlier).min(all);
        match ran {
            Err(Failure::Cancelled { .. }) if left == 0 => {}
            Err(failure) => return Err(failure),
            Ok(()) => {}
        }
        unfinished += left;
        begin_ns = tally.borrow().last_ns();
        tally.borrow_mut().next_run(idle_ns);
    }
    Ok(tally.into_inner().finish(unfinished))
}

/// The setup of one run: its clients, and its start in nanoseconds since the first arrival.
fn setup(
    load: &Load,
    clients: &[&load::Client],
    start_ns: u64,
    device: &DeviceParams,
    policy: Option<&Policy>,
) -> Setup {
    let tenants = load.tenants.iter().map(|name| match policy {
        Some(policy) => policy.simulated(name),
        None => Tenant::new(name.as_str(), Qos::default()),
    });
    let numbers = clients.iter().flat_map(|client| &client.requests);
    let ends = numbers.filter_map(|&number| load.requests.get(number as usize)).map(Sent::completion_ns);
    let recorded_ns = ends.max().unwrap_or(0).saturating_sub(start_ns);
    let clients = clients.iter();
    let clients = clients.map(|client| Client::always(client.tenant, Spec::Dependent(load.workload(client))));
    let length = recorded_ns.saturating_mul(LONGEST).saturating_add(10_000_000_000);
    let mut setup = Setup::new(device.clone(), tenants.collect(), clients.collect(), Duration::from_nanos(length));
    // Only `serve` divides requests; where there is no policy they go to the device as they are.
    setup.divides = policy.is_some() && load.head.source == "serve";
    if let Some(policy) = policy {
        setup.pool = (&policy.pool).into();
    }
    setup
}

/// The difference between a tenant's simulated and recorded figures, each as a share of the recorded one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Calibration {
    /// Name of the tenant.
    pub tenant: String,
    /// Difference of the requests per second.
    pub iops: f64,
    /// Difference of the median latency.
    pub p50: f64,
    /// Difference of the 99th percentile of the latency.
    pub p99: f64,
}

/// A load as recorded, as simulated under the recorded policy, and as simulated with changes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Name of the pool.
    pub pool: String,
    /// The seed of the simulation.
    pub seed: u64,
    /// Requests that were replayed.
    pub requests: u64,
    /// Share of them that depends on others, 0 to 1.
    pub dependent: f64,
    /// Requests that were left out.
    pub left_out: LeftOut,
    /// As recorded.
    pub recorded: Figures,
    /// Simulated under the recorded policy: the check of device and inference.
    pub before: Figures,
    /// Simulated with the changed device or policy; `None` without a change.
    pub after: Option<Figures>,
    /// The difference of `before` from `recorded`; empty if the recording has no latencies.
    pub calibration: Vec<Calibration>,
    /// Doubts about the result.
    pub notes: Vec<String>,
}

/// A device and a policy (`None`: every request is admitted at once).
#[derive(Clone, Copy, Debug)]
pub struct Under<'a> {
    /// The device.
    pub device: &'a DeviceParams,
    /// The policy.
    pub policy: Option<&'a Policy>,
}

/// Replays a load under `before` and under `after`. Targets are those of the latest policy.
///
/// # Errors
/// As [`simulate`].
pub fn compare(load: &Load, before: Under<'_>, after: Option<Under<'_>>, seed: u64) -> Result<Comparison, Failure> {
    let policy = after.map_or(before.policy, |after| after.policy);
    let targets = policy.map(|policy| policy.targets(load)).unwrap_or_default();
    let as_recorded = recorded(load, &targets);
    let simulated = simulate(load, before.device, before.policy, &targets, seed)?;
    let changed = after.map(|after| simulate(load, after.device, after.policy, &targets, seed)).transpose()?;
    let calibration = if load.has_latencies() { calibration(&as_recorded, &simulated) } else { Vec::new() };
    let mut notes = notes(load, &calibration, &simulated, changed.as_ref());
    notes.extend(changed.iter().flat_map(|changed| longer(&simulated, changed)));
    Ok(Comparison {
        pool: load.pool.clone(),
        seed,
        requests: load.requests.len() as u64,
        dependent: load.dependent(),
        left_out: load.left_out,
        recorded: as_recorded,
        before: simulated,
        after: changed,
        calibration,
        notes,
    })
}

/// The differences between recorded and simulated figures, by tenant.
pub fn calibration(recorded: &Figures, simulated: &Figures) -> Vec<Calibration> {
    let off = |simulated: f64, recorded: f64| if recorded > 0.0 { simulated / recorded - 1.0 } else { 0.0 };
    let pairs = recorded.tenants.iter().zip(&simulated.tenants);
    pairs
        .map(|(recorded, simulated)| Calibration {
            tenant: recorded.tenant.clone(),
            iops: off(simulated.iops, recorded.iops),
            p50: off(simulated.p50_ms, recorded.p50_ms),
            p99: off(simulated.p99_ms, recorded.p99_ms),
        })
        .collect()
}

/// Notes about tenants whose work takes another time than before: clients that stop at a time would do more or less of it.
fn longer(before: &Figures, after: &Figures) -> Vec<String> {
    let pairs = before.tenants.iter().zip(&after.tenants);
    let other = pairs.filter(|(before, after)| {
        let (least, most) = (before.seconds.min(after.seconds), before.seconds.max(after.seconds));
        most >= SHORTEST && most - least > TOLERABLE * least
    });
    let note = |(before, after): (&TenantFigures, &TenantFigures)| {
        format!(
            "{}: the recorded work takes {} s in the changed run and {} s in the simulated one; clients that stop at a \
             time would do {} of it",
            before.tenant,
            short(after.seconds),
            short(before.seconds),
            if after.seconds > before.seconds { "less" } else { "more" }
        )
    };
    other.map(note).collect()
}

fn notes(load: &Load, calibration: &[Calibration], before: &Figures, after: Option<&Figures>) -> Vec<String> {
    let mut notes: Vec<String> = load.sampled().into_iter().collect();
    if !load.has_latencies() {
        notes.push(
            "the recording has no latencies: requests are sent at their recorded times, and the simulated latencies \
             are compared with none"
                .into(),
        );
    }
    for off in calibration {
        let worst = [off.iops, off.p50, off.p99].map(f64::abs).into_iter().fold(0.0, f64::max);
        if worst > TOLERABLE {
            notes.push(format!(
                "{}: simulated and recorded differ by {:.0} %, so do not trust a changed run; fit the device to this \
                 recording with evenkeel fit, or if it is, record again while the host has less other load",
                off.tenant,
                worst * 100.0
            ));
        }
    }
    for (figures, run) in [(Some(before), "simulated"), (after, "changed")] {
        if let Some(figures) = figures.filter(|figures| figures.unfinished > 0) {
            notes.push(format!(
                "{} requests of the {run} run did not complete in {LONGEST} times the length of the recording: too much load",
                figures.unfinished
            ));
        }
    }
    let lost = load.left_out.lost;
    if load.lacks_many() {
        notes.push(format!("{lost} requests could not be recorded: the replayed load is smaller than the real one"));
    }
    let bounded = load.clients.iter().filter(|client| matches!(client.inferred.behaviour, Behaviour::Bounded { .. }));
    let bounded = bounded.count();
    if bounded > 0 {
        let each = if load.starts.len() > 1 { ", each counted once in each run," } else { "" };
        notes.push(format!(
            "{bounded} of {} clients{each} count as closed loops for their bounded number in flight alone, with long \
             think times",
            load.clients.len()
        ));
    }
    if load.open_peers > 0 {
        notes.push(format!(
            "{} clients use several connections, and their requests do not follow completions: these keep their times",
            load.open_peers
        ));
    }
    if load.left_out.refused > 0 {
        notes.push(format!("{} requests were refused when they arrived, and are left out", load.left_out.refused));
    }
    notes
}
