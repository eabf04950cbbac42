//! First, do no harm: controllers against none, on cases drawn at random.
//!
//! Here: admission. A harmed case becomes a scenario ([`failure`]). The others have modules of their own, and what is judged
//! there is said there.
//!
//! A controller is judged on devices and loads on which it was not built. Each case is run without control and with each
//! method, on the same seeds. It counts from 10 s or 20,000 completions on, whichever is later.
//!
//! | verdict | when |
//! |---|---|
//! | harmed | total throughput below 0.95 of none's, or p50 or p99 of a light tenant above 1.1 of none's, beyond doubt |
//! | gravely | the same with 0.8 and 2 |
//! | helped | light tenants' p99 at most half of none's, throughput at least 0.97 |
//! | worth | the best constant helps, on the seed by which it was chosen and on another one |
//! | gained | of those, a method has at least half of what that constant takes from the p99 |
//!
//! Half of the cases carry a policy (`policy`): for those the best fixed setting takes the place of no control, and a tenant
//! that gets less than 0.95 of its reservation counts as harm, too, if it gets that with the best setting.
//!
//! Beyond doubt: the 99 % interval over the seeds lies beyond the bound. A tenant is light if it takes less than its fair
//! share of the device's time without control. Its time is its rate over the rate that the device gives its requests when
//! they have it for themselves.

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

/// Seeds of every case, and of one that looks harmed.
const SEEDS: u64 = 2;
const MORE_SEEDS: u64 = 8;
/// The pilot runs that tell how long a case takes, and how fast the device is for each tenant alone.
const PILOT: Duration = Duration::from_secs(5);
/// Requests that a tenant alone has under way then.
const PILOT_DEPTH: u32 = 256;
/// Completions that a controller may learn from before it counts, and that count; the least and the most time for each.
const COMPLETIONS: f64 = 20_000.0;
const LEAST_S: f64 = 10.0;
const MOST_S: f64 = 300.0;

/// A method that is judged.
#[derive(Clone, Debug, PartialEq)]
pub struct Method {
    /// As in results.
    pub name: String,
    /// The admission control.
    pub admission: Config,
}

/// The default, the published method, and constants, in this order.
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

/// The scenario of a drawn case that counts from `warmup` on.
fn timed(text: &str, warmup: Duration, duration: Duration) -> String {
    let ms = |time: Duration| time.as_nanos() / 1_000_000;
    format!("warmup = \"{}ms\"\nduration = \"{}ms\"\n{text}", ms(warmup), ms(duration))
}

/// The setup of a scenario, without admission control.
///
/// # Errors
/// What the text has that no scenario may have.
fn parsed(text: &str) -> Result<Setup, String> {
    let parsed = scenario::parse(text, "a drawn case", &[], &mut |_| Err(std::io::ErrorKind::NotFound.into()));
    let mut setup = parsed.map_err(|problems| format!("{problems:?}"))?.scenario.setup;
    setup.pool.admission = Config::None;
    setup.sample_every = setup.duration;
    Ok(setup)
}

/// The setup of a drawn case, without control, whose time counts from `warmup` on.
///
/// # Errors
/// What a drawn text has that no scenario may have: a mistake in [`draw`].
pub fn setup(text: &str, warmup: Duration, duration: Duration) -> Result<Setup, String> {
    parsed(&timed(text, warmup, duration))
}

/// The same requests, as many as the device takes.
fn saturating(spec: &Spec) -> Spec {
    match spec {
        Spec::Load { requests, .. } => Spec::closed(PILOT_DEPTH, requests.clone()),
        other => other.clone(),
    }
}

/// Runs the case of a seed without control and with each method. `None`: it has more than `most` requests a second, which
/// take long to run.
///
/// # Errors
/// Those of `execute`.
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

/// How long a device with so many requests a second is run before it counts, and how long it counts.
fn counted(requests_per_s: f64) -> Duration {
    let seconds = (COMPLETIONS / requests_per_s.max(1.0)).clamp(LEAST_S, MOST_S);
    Duration::from_nanos((seconds * 1e9) as u64)
}

/// Runs a scenario with what it is compared with, which is no control or the best fixed setting, and with each method.
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

/// Runs a case without control and with each method, on the same seeds: on more of them where a method looks harmful.
///
/// # Errors
/// Those of `execute`.
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
