//! First, do no harm: controllers are compared with no control, on cases drawn at random.
//!
//! This module judges admission control. A harmed case becomes a scenario ([`failure`]). Each other controller has a
//! module of its own, which names its criteria.
//!
//! A controller is judged on devices and loads for which it was not built. Each case is run without control and with
//! each method, on the same seeds. Warm-up and counted time are each as long as 20,000 completions take, but 10 s to 300 s.
//!
//! | verdict | condition, compared with the run without control |
//! |---|---|
//! | harmed | total throughput below 0.95 times, or p50 or p99 of a light tenant above 1.1 times, beyond doubt |
//! | gravely | total throughput below 0.8 times, or p50 or p99 of a light tenant above 2 times, beyond doubt |
//! | helped | p99 of light tenants at most 0.5 times, throughput at least 0.97 times |
//! | worth | the best constant (fixed budget) helps, on the seed by which it was chosen and on another one |
//! | gained | the case is `worth`, and the method lowers the p99 by at least half as much as the best constant |
//!
//! Half of the cases carry a policy (`policy`). Such a case is compared with the best fixed budget instead of no control;
//! a tenant is harmed, too, below 0.95 of its reservation, or of its rate under that budget if this rate is lower.
//!
//! Beyond doubt: the 99 % interval over the seeds lies beyond the bound. A tenant is light if it takes less than its
//! fair share of the device's time without control. A tenant's share of the time is its request rate, divided by the rate
//! at which the device serves its requests when the tenant has the device alone.

pub mod constants;
pub mod draw;
mod fnv;
pub mod hosts;
mod judge;
pub mod placement;
mod policy;
mod report;
pub mod response;
pub mod sets;
pub mod shared;
mod shrink;
pub mod slots;
#[cfg(test)]
mod source;
#[cfg(test)]
mod tests;
pub mod throughput;

use evenkeel_control::admission::{Config, ElasticConfig, SlowFastConfig};
use evenkeel_control::{Duration, Instant};

use super::{Digest, Execute};
use crate::scenario;
use crate::workload::Spec;
use crate::world::{Client, Setup};
pub use judge::{Case, Effect, Verdict};
pub use report::{Answer, Ask, Controller, Judged, NAME, Plan, SET, judge, run};
pub use shrink::failure;

/// Runs (seeds) of every case under each method.
const SEEDS: u64 = 2;
/// Runs (seeds) of a case under a method that looks harmful after [`SEEDS`] runs.
const MORE_SEEDS: u64 = 8;
/// Virtual duration of the pilot runs, which measure the case's request rate, and the rate of each tenant alone on the device.
const PILOT: Duration = Duration::from_secs(5);
/// Queue depth of a tenant that has the device alone in a pilot run.
const PILOT_DEPTH: u32 = 256;
/// Completions aimed at in the warm-up, and again in the counted time.
const COMPLETIONS: f64 = 20_000.0;
/// The shortest warm-up and the shortest counted time, in seconds.
const LEAST_S: f64 = 10.0;
/// The longest warm-up and the longest counted time, in seconds.
const MOST_S: f64 = 300.0;

/// A method of admission control that is judged.
#[derive(Clone, Debug, PartialEq)]
pub struct Method {
    /// Name in results.
    pub name: String,
    /// The method's admission control.
    pub admission: Config,
}

/// The judged methods, in this order: `elastic` (the project's default), SlowFast CoDel as published, and fixed budgets.
pub fn methods() -> Vec<Method> {
    let mut methods = vec![
        Method { name: "elastic".into(), admission: Config::Elastic(ElasticConfig::default()) },
        Method { name: "slowfast".into(), admission: Config::SlowFast(SlowFastConfig::PUBLISHED) },
    ];
    for kib in policy::BUDGETS_KIB {
        methods.push(Method { name: format!("fixed_{kib}k"), admission: Config::Fixed { budget_bytes: kib << 10 } });
    }
    methods
}

/// The text of a scenario with `warmup` and `duration` added.
fn timed(text: &str, warmup: Duration, duration: Duration) -> String {
    let ms = |time: Duration| time.as_nanos() / 1_000_000;
    format!("warmup = \"{}ms\"\nduration = \"{}ms\"\n{text}", ms(warmup), ms(duration))
}

/// The setup of a scenario, without admission control.
///
/// # Errors
/// Text that is no valid scenario.
fn parsed(text: &str) -> Result<Setup, String> {
    let parsed = scenario::parse(text, "a drawn case", &[], &mut |_| Err(std::io::ErrorKind::NotFound.into()));
    let mut setup = parsed.map_err(|problems| format!("{problems:?}"))?.scenario.setup;
    setup.pool.admission = Config::None;
    setup.sample_every = setup.duration;
    Ok(setup)
}

/// The setup of a drawn case without control, whose counted time begins at `warmup` and lasts for `duration`.
///
/// # Errors
/// Text that is no valid scenario: a mistake in [`draw`].
pub fn setup(text: &str, warmup: Duration, duration: Duration) -> Result<Setup, String> {
    parsed(&timed(text, warmup, duration))
}

/// The requests of `spec`, sent at the queue depth [`PILOT_DEPTH`], so that the device is saturated.
fn saturating(spec: &Spec) -> Spec {
    match spec {
        Spec::Load { requests, .. } => Spec::closed(PILOT_DEPTH, requests.clone()),
        other => other.clone(),
    }
}

/// Runs the case of a seed under its reference and under each method. `None` if the pilot run completes more than `most`
/// requests per second, so that the case would take long to run.
///
/// # Errors
/// The errors of `execute`.
///
/// # Panics
/// If the drawn case is no scenario.
pub fn case<E>(seed: u64, most: f64, methods: &[Method], execute: &mut Execute<'_, E>) -> Result<Option<Case>, E> {
    let ready = |text: &str, warmup, duration| {
        setup(text, warmup, duration).unwrap_or_else(|why| panic!("case {seed}: {why}\n{text}"))
    };
    let mut text = draw::case(seed);
    let plain = ready(&text, Duration::ZERO, PILOT);
    let mut pilot = execute("pilot", &[(plain.clone(), seed)])?.remove(0);
    if pilot.requests_per_s > most {
        return Ok(None);
    }
    if let Some(with) = policy::add(seed, &text, &plain, &pilot) {
        pilot = execute("pilot", &[(ready(&with, Duration::ZERO, PILOT), seed)])?.remove(0);
        text = with;
    }
    let time = counted(pilot.requests_per_s);
    judged(seed, &timed(&text, time, time), methods, execute).map(Some)
}

/// The duration of a case's warm-up, and again of its counted time; `requests_per_s` is the request rate of its pilot run.
fn counted(requests_per_s: f64) -> Duration {
    let seconds = (COMPLETIONS / requests_per_s.max(1.0)).clamp(LEAST_S, MOST_S);
    Duration::from_nanos((seconds * 1e9) as u64)
}

/// Runs a scenario under each method and under its reference: no control, or the best fixed budget if it has a policy.
fn judged<E>(seed: u64, scenario: &str, methods: &[Method], execute: &mut Execute<'_, E>) -> Result<Case, E> {
    let setup = parsed(scenario).unwrap_or_else(|why| panic!("{why}\n{scenario}"));
    // Each kind of request alone on the device.
    let mut pilots: Vec<(Setup, u64)> = Vec::new();
    let mut places = Vec::new();
    for client in &setup.clients {
        let workload = saturating(&client.workload);
        let place = pilots.iter().position(|(pilot, _)| pilot.clients[0].workload == workload);
        places.push(place.unwrap_or(pilots.len()));
        if place.is_none() {
            let client = Client { workload, until: Instant::ZERO + PILOT, ..client.clone() };
            let mut pilot = Setup { clients: vec![client], ..policy::without(&setup) };
            (pilot.warmup, pilot.duration, pilot.sample_every) = (Duration::ZERO, PILOT, PILOT);
            pilots.push((pilot, seed));
        }
    }
    let alone = execute("pilots", &pilots)?;
    let capacity = places.into_iter().map(|place| alone[place].requests_per_s).collect();
    let mut case = Case::new(seed, setup, scenario, capacity, methods.len());
    if case.has_policy() {
        case.reference = policy::best_setting(&case, execute)?;
    }
    let with = |case: &Case, method: usize| case.with(methods[method].admission);
    compare(&mut case, methods.len(), Case::looks_harmed, Case::reference, with, Case::learn, execute)?;
    Ok(case)
}

/// Runs a case under its reference and under each method, on the same seeds; a method that looks harmful gets more seeds.
///
/// # Errors
/// The errors of `execute`.
fn compare<C, E>(
    case: &mut C,
    methods: usize,
    looks_harmed: impl Fn(&C, usize) -> bool,
    without: impl Fn(&C) -> Setup,
    with: impl Fn(&C, usize) -> Setup,
    learn: impl Fn(&mut C, usize, &Digest, &Digest),
    execute: &mut Execute<'_, E>,
) -> Result<(), E> {
    for (name, seeds) in [("every case", 0..SEEDS), ("a case that looks harmed", SEEDS..MORE_SEEDS)] {
        let first = seeds.start == 0;
        let wanted: Vec<usize> = (0..methods).filter(|&method| first || looks_harmed(case, method)).collect();
        let mut runs = Vec::new();
        for seed in seeds.filter(|_| !wanted.is_empty()) {
            runs.push((without(case), seed));
            runs.extend(wanted.iter().map(|&method| (with(case, method), seed)));
        }
        for of_seed in execute(name, &runs)?.chunks(wanted.len() + 1) {
            for (&method, digest) in wanted.iter().zip(&of_seed[1..]) {
                learn(case, method, &of_seed[0], digest);
            }
        }
    }
    Ok(())
}
