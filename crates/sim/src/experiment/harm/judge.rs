//! What a method did to a case.

use std::collections::BTreeMap;
use std::fmt;

use evenkeel_control::admission::Config;

use crate::experiment::Digest;
use crate::statistics::interval_99;
use crate::world::Setup;

/// Bounds of harm, and of grave harm: of the throughput, and of light tenants' p50 and p99, as multiples of none's.
pub(super) const HARM: (f64, f64) = (0.95, 1.1);
const GRAVE: (f64, f64) = (0.8, 2.0);
/// Help: of the throughput, and of light tenants' p99.
const HELP: (f64, f64) = (0.97, 0.5);
/// A tenant is light below so much of its fair share of the device's time,
const LIGHT: f64 = 0.9;
/// and has figures with so many requests.
const REQUESTS: u64 = 300;

/// A case with what came of it.
pub struct Case {
    /// Of [`draw::case`](super::draw::case).
    pub seed: u64,
    /// Without control.
    pub setup: Setup,
    /// The same as text.
    pub(super) scenario: String,
    /// Requests per second that the device gives each tenant alone.
    capacity: Vec<f64>,
    effects: Vec<Effect>,
}

/// What a method did to a case: natural logarithms of ratios to none's figures, one for each seed.
#[derive(Clone, Debug, Default)]
pub struct Effect {
    throughput: Vec<f64>,
    /// p50 and p99 of each tenant that was light, by its place.
    p50: BTreeMap<usize, Vec<f64>>,
    p99: BTreeMap<usize, Vec<f64>>,
    /// Of the light tenants together, in ms: p99 without control and with it.
    light_p99_ms: [Vec<f64>; 2],
}

/// What counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// It would have been better to do nothing.
    pub harmed: bool,
    /// Far better.
    pub gravely: bool,
    /// Light tenants gain, and nothing is lost.
    pub helped: bool,
}

impl Case {
    pub(super) fn new(seed: u64, setup: Setup, scenario: &str, capacity: Vec<f64>, methods: usize) -> Self {
        Self { seed, setup, scenario: scenario.to_owned(), capacity, effects: vec![Effect::default(); methods] }
    }

    /// What methods are compared with.
    pub(super) fn reference(&self) -> Setup {
        self.setup.clone()
    }

    /// The same in a few words.
    pub(super) fn reference_name(&self) -> &'static str {
        "no admission control"
    }

    /// The case with a method.
    pub(super) fn with(&self, admission: Config) -> Setup {
        let mut setup = self.setup.clone();
        setup.pool.admission = admission;
        setup
    }

    /// The tenants that are light, by their places.
    pub(super) fn light(&self, none: &Digest) -> Vec<usize> {
        let weight = |place: usize| f64::from(self.setup.tenants[place].qos.weight);
        let all: f64 = (0..self.setup.tenants.len()).map(weight).sum();
        let seconds = self.setup.duration.as_secs_f64();
        let is_light = |&place: &usize| {
            let was = &none.tenants[place];
            let device_time = was.requests as f64 / seconds / self.capacity[place].max(1e-9);
            device_time < LIGHT * weight(place) / all && was.requests >= REQUESTS && was.response.p50_ms != 0.0
        };
        (0..none.tenants.len()).filter(is_light).collect()
    }

    /// Adds a pair of runs of one seed.
    pub(super) fn learn(&mut self, method: usize, none: &Digest, with: &Digest) {
        let light = self.light(none);
        let effect = &mut self.effects[method];
        effect.throughput.push(libm::log(with.bytes_per_s / none.bytes_per_s));
        let (mut before, mut after) = (0.0, 0.0);
        for &place in &light {
            let (was, is) = (&none.tenants[place], &with.tenants[place]);
            // Of a tenant that got nothing any more, everything takes for ever.
            let ratio = |is: f64, was: f64| if is > 0.0 { libm::log(is / was) } else { f64::INFINITY };
            effect.p50.entry(place).or_default().push(ratio(is.response.p50_ms, was.response.p50_ms));
            effect.p99.entry(place).or_default().push(ratio(is.response.p99_ms, was.response.p99_ms));
            before += libm::log(was.response.p99_ms);
            after += libm::log(is.response.p99_ms);
        }
        let light = light.len();
        if light > 0 {
            effect.light_p99_ms[0].push(before / light as f64);
            effect.light_p99_ms[1].push(after / light as f64);
        }
    }

    /// What a method did.
    pub fn effect(&self, method: usize) -> &Effect {
        &self.effects[method]
    }

    /// What counts of it.
    pub fn verdict(&self, method: usize) -> Verdict {
        self.effects[method].verdict()
    }

    /// The part of the gain of the best of `constants` that a method has: of what the constant takes from light tenants'
    /// p99. `None` if no constant is worth having: one that has half of none's p99 at 0.97 of its throughput on the first
    /// seed, by which it is chosen, and on the second one.
    pub fn part_of_gain(&self, method: usize, constants: &[usize]) -> Option<f64> {
        let best = |a: &&usize, b: &&usize| {
            let p99 = |&&constant: &&usize| self.effects[constant].light_p99_ms[1].first().copied();
            p99(a).unwrap_or(f64::INFINITY).total_cmp(&p99(b).unwrap_or(f64::INFINITY))
        };
        let constant = constants.iter().filter(|&&constant| self.effects[constant].helps(0)).min_by(best)?;
        let gain = |method: usize| {
            let [none, with] = &self.effects[method].light_p99_ms;
            none.get(1).zip(with.get(1)).map(|(&none, &with)| libm::exp(none) - libm::exp(with))
        };
        self.effects[*constant].helps(1).then(|| gain(method).zip(gain(*constant)).map(|(ours, best)| ours / best))?
    }

    /// Whether the means so far are beyond a bound of harm, which more seeds are to decide.
    pub(super) fn looks_harmed(&self, method: usize) -> bool {
        self.effects[method].looks_harmed()
    }
}

impl Effect {
    /// Whether the throughput, or a light tenant's figure, is beyond a bound; `range` is where the mean of values lies.
    fn beyond(&self, (throughput, latency): (f64, f64), range: impl Fn(&[f64]) -> (f64, f64)) -> bool {
        range(&self.throughput).1 < libm::log(throughput)
            || self.p50.values().chain(self.p99.values()).any(|values| range(values).0 > libm::log(latency))
    }

    /// Whether one seed's figures are help.
    fn helps(&self, seed: usize) -> bool {
        let [none, with] = &self.light_p99_ms;
        let gain = none.get(seed).zip(with.get(seed)).map(|(none, with)| with - none);
        self.throughput.len() == none.len()
            && self.throughput[seed] >= libm::log(HELP.0)
            && gain.is_some_and(|gain| gain <= libm::log(HELP.1))
    }

    /// Adds the figures of a seed: the ratio of throughputs, and p50 and p99 of the light requests without control and with
    /// it.
    pub(super) fn add(&mut self, throughput: f64, light: Option<([f64; 2], [f64; 2])>) {
        self.throughput.push(libm::log(throughput));
        let Some((was, is)) = light else { return };
        let ratio = |n: usize| if is[n] > 0.0 { libm::log(is[n] / was[n]) } else { f64::INFINITY };
        self.p50.entry(0).or_default().push(ratio(0));
        self.p99.entry(0).or_default().push(ratio(1));
        self.light_p99_ms[0].push(libm::log(was[1]));
        self.light_p99_ms[1].push(libm::log(is[1]));
    }

    /// Whether the means so far are beyond a bound of harm.
    pub(super) fn looks_harmed(&self) -> bool {
        self.beyond(HARM, |values| (mean(values), mean(values)))
    }

    /// The counts of a case.
    pub(super) fn verdict(&self) -> Verdict {
        let gain = mean(&self.light_p99_ms[1]) - mean(&self.light_p99_ms[0]);
        Verdict {
            harmed: self.beyond(HARM, interval_99),
            gravely: self.beyond(GRAVE, interval_99),
            helped: mean(&self.throughput) >= libm::log(HELP.0) && gain <= libm::log(HELP.1),
        }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let worst = |all: &BTreeMap<usize, Vec<f64>>| {
            libm::exp(all.values().map(|values| mean(values)).fold(f64::NEG_INFINITY, f64::max))
        };
        write!(f, "{:.2} times the throughput", libm::exp(mean(&self.throughput)))?;
        if !self.p50.is_empty() {
            write!(f, ", {:.2} times the p50 and {:.2} times the p99", worst(&self.p50), worst(&self.p99))?;
        }
        Ok(())
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}
