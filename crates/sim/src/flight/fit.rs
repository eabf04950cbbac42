//! Learns a device from a recording: the family and the parameters with which a simulated run is nearest to the recorded one.
//!
//! The first half of the recording is for the search, the second half for its error. Each family starts from direct estimates and
//! is searched on a small sample; the two nearest are searched on a larger one. If the nearest does not fit the second half well
//! either, a table of the first half's latencies is tried; the one that fits the second half better is the result. A parameter
//! that could as well be [`CHANGE`] times larger or smaller, if others are adapted, is not known from the recording and is
//! reported so.

use evenkeel_model::device::DeviceParams;
use serde::Serialize;

use super::device::{Admitted, admitted};
use super::direct::{Direct, direct};
use super::family::{Family, Knob};
use super::least_squares::{change, search, squares, uncertainty};
use super::load::Load;
pub use super::search::Compared;
use super::search::{Effort, Sample, descend};
use super::surface::surface;

/// Fewest requests from which a device is learned.
pub const FEWEST: usize = 1_000;
/// The most requests of a run of the search.
pub const SAMPLE: usize = 50_000;
/// The most requests of a run of the first search, and of the test of parameters for being known.
const SMALL_SAMPLE: usize = 5_000;
/// Number of runs of consecutive requests of which a sample consists.
const PARTS: usize = 4;
/// Change of a parameter that a recording has to show.
pub const CHANGE: f64 = 1.1;
/// Factor by which a known parameter is changed to see that the others cannot make good for it.
const FAR: f64 = 1.5;
/// Runs of a search of the other parameters after such a change.
const REFITS: usize = 60;
/// Mean error on the second half above which no family fits well.
const WELL: f64 = 0.25;

const SCREEN: Effort = Effort { steps: &[2.0, 1.4, 1.2], runs: 60 };
const LAST: Effort = Effort { steps: &[1.1, 1.05, 1.02, 1.01], runs: 120 };
/// The most runs of the search for least squares.
const RUNS: usize = 200;

/// Reason why a recording says nothing about a device.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// There are too few requests.
    #[error("{requests} requests are too few to learn a device from; record at least {FEWEST}")]
    Few {
        /// Number of requests.
        requests: usize,
    },
    /// There are no latencies.
    #[error("the recording has no latencies, as after a conversion; record them with evenkeel record")]
    NoLatencies,
    /// The device was never loaded.
    #[error(
        "never more than one request was in flight: the recording does not show the device under load; record while \
         several clients are active, or evenkeel load with --queue-depth 32 runs beside them"
    )]
    OneInFlight,
    /// The load hardly varied.
    #[error(
        "{least} to {most} requests were in flight all the time: the recording does not show latencies at other queue \
         depths; record a time with little and much load, for example evenkeel load with --queue-depth 1, 8 and 64"
    )]
    OneDepth {
        /// The 5th percentile of the requests in flight.
        least: u32,
        /// The 95th percentile.
        most: u32,
    },
    /// No family came to an end.
    #[error("no model of a device served the recorded load in four times its length; record again, with less load")]
    NoFamily,
}

/// Options of a fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Families that are tried; [`Family::Surface`] only if no other fits well.
    pub families: Vec<Family>,
    /// The most requests of a run.
    pub sample: usize,
    /// Seed of the simulated devices.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { families: Family::ALL.to_vec(), sample: SAMPLE, seed: 1 }
    }
}

/// A searched parameter.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Parameter {
    /// Key of the parameter.
    pub key: &'static str,
    /// Value of the parameter: nanoseconds, bytes per second, or a number.
    pub value: f64,
    /// True if the recording shows it; otherwise other values do as well.
    pub known: bool,
}

/// A family that was tried.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tried {
    /// The family.
    pub family: &'static str,
    /// Error of the model on the recording's first half, after the first search: the root mean square difference of logarithms.
    pub error: f64,
}

/// A device that was learned from a recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// The family.
    pub family: &'static str,
    /// The device.
    #[serde(skip)]
    pub device: DeviceParams,
    /// The seed of the simulated devices.
    pub seed: u64,
    /// Number of requests of both halves.
    pub requests: usize,
    /// Direct estimates, from which the search started.
    pub direct: Direct,
    /// Error on the first half: the root mean square difference of logarithms.
    pub training_error: f64,
    /// Mean difference of the figures below, as a share.
    pub error: f64,
    /// The second half, recorded and simulated.
    pub held_out: Vec<Compared>,
    /// The parameters that were searched.
    pub parameters: Vec<Parameter>,
    /// All families that were tried.
    pub tried: Vec<Tried>,
    /// Doubts about the result.
    pub notes: Vec<String>,
}

/// Learns the device of a load. The same load and options give the same device.
///
/// # Errors
/// The reason why the recording does not tell.
pub fn fit(load: &Load, options: &Options) -> Result<Fit, Refusal> {
    let all = admitted(load);
    check(&all)?;
    let half = all.len() / 2;
    let estimates = direct(&all[..half]);
    let seed = options.seed;
    let small = Sample::new(&all, 0..half, options.sample.min(SMALL_SAMPLE), PARTS);
    let mut tried: Vec<(Family, DeviceParams, f64)> = Vec::new();
    for &family in options.families.iter().filter(|family| **family != Family::Surface) {
        let knobs = shown(family, &small);
        let (device, error) =
            descend(&family.start(&estimates), &knobs, SCREEN, &mut |device| small.error(device, seed));
        tried.push((family, device, error));
    }
    // Families of the same error keep their order.
    tried.sort_by(|a, b| a.2.total_cmp(&b.2));
    let sample = Sample::new(&all, 0..half, options.sample, PARTS);
    let mut best: Option<(Family, DeviceParams, f64)> = None;
    for (family, device, _) in tried.iter().take(2) {
        let knobs = shown(*family, &sample);
        let found = search(device, &knobs, RUNS, &mut |device| sample.residuals(device, seed));
        let nearer = found.map_or_else(|| device.clone(), |(nearer, _)| nearer);
        let (device, error) = descend(&nearer, &knobs, LAST, &mut |device| sample.error(device, seed));
        if best.as_ref().is_none_or(|(_, _, least)| error < *least) {
            best = Some((*family, device, error));
        }
    }
    let second = Sample::new(&all, half..all.len(), options.sample, PARTS);
    let mut found = best.and_then(|(family, device, error)| Found::new(family, device, error, &second, seed));
    let is_wanted = options.families.contains(&Family::Surface);
    if is_wanted && found.as_ref().is_none_or(|found| found.error > WELL) {
        let table = surface(&all[..half]).map(DeviceParams::Surface);
        let table = table.and_then(|device| {
            let error = sample.error(&device, seed);
            tried.push((Family::Surface, device.clone(), error));
            Found::new(Family::Surface, device, error, &second, seed)
        });
        if let Some(table) = table
            && found.as_ref().is_none_or(|found| table.error < found.error)
        {
            found = Some(table);
        }
    }
    let Found { family, device, training_error, held_out, error } = found.ok_or(Refusal::NoFamily)?;
    let mut parameters = parameters(family, &device, &sample, seed);
    if error > CHANGE - 1.0 {
        // A device that differs from the recorded one in its figures may differ as much in its parameters.
        parameters.iter_mut().for_each(|one| one.known = false);
    }
    let tried = tried.iter().map(|(family, _, error)| Tried { family: family.name(), error: *error }).collect();
    Ok(Fit {
        family: family.name(),
        seed,
        requests: all.len(),
        direct: estimates,
        training_error,
        error,
        notes: notes(family, error, &parameters, load),
        held_out,
        device,
        parameters,
        tried,
    })
}

/// A device with its errors.
struct Found {
    family: Family,
    device: DeviceParams,
    training_error: f64,
    held_out: Vec<Compared>,
    error: f64,
}

impl Found {
    /// The device with its error on the second half; `None` if it does not come to an end there.
    fn new(family: Family, device: DeviceParams, training_error: f64, second: &Sample, seed: u64) -> Option<Self> {
        let held_out = second.compare(&device, seed);
        if held_out.is_empty() {
            return None;
        }
        let error = held_out.iter().map(|compared| compared.off().abs()).sum::<f64>() / held_out.len() as f64;
        Some(Self { family, device, training_error, held_out, error })
    }
}

/// Checks that the recording shows the device at several queue depths.
fn check(all: &[Admitted]) -> Result<(), Refusal> {
    if all.len() < FEWEST {
        return Err(Refusal::Few { requests: all.len() });
    }
    if all.iter().all(|request| request.device_ns == 0 || request.failed) {
        return Err(Refusal::NoLatencies);
    }
    let mut depths: Vec<u32> = all.iter().map(|request| request.found.saturating_add(1)).collect();
    depths.sort_unstable();
    let at = |percent: usize| depths[(depths.len() - 1) * percent / 100];
    let (least, most) = (at(5), at(95));
    if depths.last() == Some(&1) {
        return Err(Refusal::OneInFlight);
    }
    // Two and three in flight are hardly different loads.
    if f64::from(most) < f64::from(least) * 1.5 || most < 3 {
        return Err(Refusal::OneDepth { least, most });
    }
    Ok(())
}

/// The parameters of a family that the requests of a sample depend on.
fn shown(family: Family, sample: &Sample) -> Vec<&'static Knob> {
    family.knobs().iter().filter(|knob| sample.shows(knob.of)).collect()
}

/// The parameters of the device. One is known if its standard error is so small that a change by [`CHANGE`] lies outside of the
/// 95 % interval, and if the others cannot make good for a change by [`FAR`] (see [`replaced`]).
fn parameters(family: Family, device: &DeviceParams, sample: &Sample, seed: u64) -> Vec<Parameter> {
    let knobs = shown(family, sample);
    let mut residuals = |device: &DeviceParams| sample.residuals(device, seed);
    let known: Vec<bool> = match residuals(device) {
        Some(own) => {
            let errors = uncertainty(device, &knobs, &own, &mut residuals);
            let sure = |place: usize| 1.96 * errors[place] < libm::log(CHANGE);
            let mut is_known = |place| sure(place) && !replaced(device, &knobs, place, &own, &mut residuals);
            (0..knobs.len()).map(&mut is_known).collect()
        }
        None => vec![false; knobs.len()],
    };
    let of = |knob: &Knob| {
        let place = knobs.iter().position(|shown| shown.key == knob.key);
        Parameter { key: knob.key, value: (knob.get)(device), known: place.is_some_and(|place| known[place]) }
    };
    family.knobs().iter().map(of).collect()
}

/// True if with another value of the parameter at `place` the other parameters, searched anew, fit as well: the standard error
/// knows only the near neighbourhood of a device, and a search may end at one of several devices that fit alike.
fn replaced(
    device: &DeviceParams,
    knobs: &[&'static Knob],
    place: usize,
    own: &[f64],
    residuals: &mut dyn FnMut(&DeviceParams) -> Option<Vec<f64>>,
) -> bool {
    let others: Vec<&Knob> = knobs.iter().enumerate().filter(|(n, _)| *n != place).map(|(_, knob)| *knob).collect();
    let freedom = own.len().saturating_sub(knobs.len()).max(1) as f64;
    let worse = squares(own) * (1.0 + 3.84 / freedom);
    [FAR, 1.0 / FAR].into_iter().any(|factor| {
        let moved = change(device, knobs[place], factor);
        search(&moved, &others, REFITS, residuals).is_some_and(|(_, found)| squares(&found) < worse)
    })
}

fn notes(family: Family, error: f64, parameters: &[Parameter], load: &Load) -> Vec<String> {
    let mut notes: Vec<String> = load.sampled().into_iter().collect();
    if family == Family::Surface {
        notes.push(
            "the device is a table of the recorded latencies; it has no cache, no order of arrival and no garbage \
             collection, so that results for other loads are rough"
                .to_owned(),
        );
    }
    if error > WELL {
        notes.push(format!(
            "no model fits well: its figures of the second half are off by {:.0} % on average; its results are rough",
            error * 100.0
        ));
    }
    let unknown: Vec<&str> = parameters.iter().filter(|one| !one.known).map(|one| one.key).collect();
    if !unknown.is_empty() {
        let keys = unknown.join(", ");
        notes.push(format!("this recording does not determine {keys} of the device: other values fit it as well"));
    }
    if load.head.anonymised {
        notes.push(
            "the recording is anonymised: sequential requests jump at each MiB, and seeks of a disk look too cheap"
                .into(),
        );
    }
    let failed = load.requests.iter().filter(|request| request.failed).count();
    if failed > 0 {
        notes.push(format!("{failed} failed requests are sent to the model, but not compared"));
    }
    if load.lacks_many() {
        let lost = load.left_out.lost;
        notes.push(format!("{lost} requests could not be recorded: the device had more load than the recording shows"));
    }
    notes
}
