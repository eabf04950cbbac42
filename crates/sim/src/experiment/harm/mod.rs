//! First, do no harm: controllers against none, on cases drawn at random.
//!
//! Here: admission. The others have modules of their own, and what is judged there is said there.
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
//! Beyond doubt: the 99 % interval over the seeds lies beyond the bound. A tenant is light if it takes less than its fair
//! share of the device's time without control. Its time is its rate over the rate that the device gives its requests when
//! they have it for themselves.

pub mod constants;
pub mod draw;
mod fnv;
pub mod hosts;
mod judge;
pub mod placement;
mod report;
pub mod response;
pub mod shared;
pub mod slots;
#[cfg(test)]
mod source;
#[cfg(test)]
mod tests;
pub mod throughput;

use evenkeel_control::Duration;
use evenkeel_control::admission::{Config, ElasticConfig, SlowFastConfig};

use super::{Digest, Execute};
use crate::scenario;
use crate::workload::Spec;
use crate::world::{Client, Setup};
pub use judge::{Case, Effect, Verdict};
pub use report::{Ask, Asked, Judged, NAME, judge, run};

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
    /// What it is.
    pub admission: Config,
}

/// The default, the published method, and constants, in this order.
pub fn methods() -> Vec<Method> {
    let mut methods = vec![
        Method { name: "elastic".into(), admission: Config::Elastic(ElasticConfig::default()) },
        Method { name: "slowfast".into(), admission: Config::SlowFast(SlowFastConfig::PUBLISHED) },
    ];
    for kib in [256, 1_024, 4_096, 16_384] {
        methods.push(Method { name: format!("fixed_{kib}k"), admission: Config::Fixed { budget_bytes: kib << 10 } });
    }
    methods
}

/// The setup of a drawn case, without control, whose time counts from `warmup` on.
///
/// # Errors
/// What a drawn text has that no scenario may have: a mistake in [`draw`].
pub fn setup(text: &str, warmup: Duration, duration: Duration) -> Result<Setup, String> {
    let ms = |time: Duration| time.as_nanos() / 1_000_000;
    let text = format!("warmup = \"{}ms\"\nduration = \"{}ms\"\n{text}", ms(warmup), ms(duration));
    let parsed = scenario::parse(&text, "a drawn case", &[], &mut |_| Err(std::io::ErrorKind::NotFound.into()));
    let mut setup = parsed.map_err(|problems| format!("{problems:?}"))?.scenario.setup;
    setup.pool.admission = Config::None;
    setup.sample_every = setup.duration;
    Ok(setup)
}

/// The same requests, as many as the device takes.
fn saturating(spec: &Spec) -> Spec {
    match spec {
        Spec::Load { requests, .. } => Spec::closed(PILOT_DEPTH, requests.clone()),
        other => other.clone(),
    }
}

/// Runs the cases `from..from + count` without control and with each method. Cases with more than `most` requests a second
/// are left out: they take long to run.
///
/// # Errors
/// Those of `execute`.
///
/// # Panics
/// If a drawn case is no scenario.
pub fn cases<E>(
    from: u64,
    count: u64,
    most: f64,
    methods: &[Method],
    execute: &mut Execute<'_, E>,
) -> Result<Vec<Case>, E> {
    let texts: Vec<(u64, String)> = (from..from + count).map(|seed| (seed, draw::case(seed))).collect();
    let ready =
        |text: &str, warmup, duration| setup(text, warmup, duration).unwrap_or_else(|why| panic!("{why}\n{text}"));
    let mut pilots: Vec<(Setup, u64)> =
        texts.iter().map(|(seed, text)| (ready(text, Duration::ZERO, PILOT), *seed)).collect();
    // Behind those, each kind of request alone on its device.
    let mut alone: Vec<Vec<usize>> = Vec::new();
    for case in 0..texts.len() {
        let (setup, seed) = pilots[case].clone();
        let mut kinds: Vec<(Spec, usize)> = Vec::new();
        alone.push(Vec::new());
        for client in &setup.clients {
            let spec = saturating(&client.workload);
            let place = kinds.iter().find(|(kind, _)| *kind == spec).map(|(_, place)| *place);
            let place = place.unwrap_or_else(|| {
                let client = Client { workload: spec.clone(), ..client.clone() };
                pilots.push((Setup { clients: vec![client], ..setup.clone() }, seed));
                kinds.push((spec, pilots.len() - 1));
                pilots.len() - 1
            });
            alone[case].push(place);
        }
    }
    let pilots = execute("pilots", &pilots)?;
    let mut cases: Vec<Case> = Vec::new();
    let drawn = texts.into_iter().enumerate().filter(|(place, _)| pilots[*place].requests_per_s <= most);
    for (place, (seed, text)) in drawn {
        let seconds = (COMPLETIONS / pilots[place].requests_per_s.max(1.0)).clamp(LEAST_S, MOST_S);
        let time = Duration::from_nanos((seconds * 1e9) as u64);
        let capacity = alone[place].iter().map(|&pilot| pilots[pilot].requests_per_s).collect();
        cases.push(Case::new(seed, ready(&text, time, time), capacity, methods.len()));
    }
    let with = |case: &Case, method: usize| {
        let mut setup = case.setup.clone();
        setup.pool.admission = methods[method].admission;
        setup
    };
    compare(&mut cases, methods.len(), Case::looks_harmed, |case| case.setup.clone(), with, Case::learn, execute)?;
    Ok(cases)
}

/// Runs each case without control and with each method, on the same seeds: on more of them where a method looks harmful.
///
/// # Errors
/// Those of `execute`.
fn compare<C, E>(
    cases: &mut [C],
    methods: usize,
    looks_harmed: impl Fn(&C, usize) -> bool,
    without: impl Fn(&C) -> Setup,
    with: impl Fn(&C, usize) -> Setup,
    learn: impl Fn(&mut C, usize, &Digest, &Digest),
    execute: &mut Execute<'_, E>,
) -> Result<(), E> {
    for (name, seeds) in [("every case", 0..SEEDS), ("cases that look harmed", SEEDS..MORE_SEEDS)] {
        let first = seeds.start == 0;
        let (mut places, mut runs) = (Vec::new(), Vec::new());
        for (place, case) in cases.iter().enumerate() {
            let wanted: Vec<usize> = (0..methods).filter(|&method| first || looks_harmed(case, method)).collect();
            for seed in seeds.clone().filter(|_| !wanted.is_empty()) {
                places.push((place, None));
                runs.push((without(case), seed));
                for &method in &wanted {
                    places.push((place, Some(method)));
                    runs.push((with(case, method), seed));
                }
            }
        }
        let mut none = None;
        for ((place, method), digest) in places.into_iter().zip(execute(name, &runs)?) {
            match (method, &none) {
                (Some(method), Some(none)) => learn(&mut cases[place], method, none, &digest),
                _ => none = Some(digest),
            }
        }
    }
    Ok(())
}
