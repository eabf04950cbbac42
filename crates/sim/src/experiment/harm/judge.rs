//! The effect of a method on a case.

use std::collections::BTreeMap;
use std::fmt;

use evenkeel_control::admission::Config;
use evenkeel_control::units::Rates;

use crate::experiment::{Digest, TenantDigest, oracle};
use crate::statistics::interval_99;
use crate::world::Setup;

/// Bounds of harm, and of grave harm: of the throughput, and of light tenants' p50 and p99, as multiples of the reference's.
pub(super) const HARM: (f64, f64) = (0.95, 1.1);
pub(super) const GRAVE: (f64, f64) = (0.8, 2.0);
/// Help: of the throughput, and of light tenants' p99.
pub(super) const HELP: (f64, f64) = (0.97, 0.5);
/// A tenant is light below so much of its fair share,
const LIGHT: f64 = 0.9;
/// and has figures with so many requests.
pub(super) const REQUESTS: u64 = 200;
/// The ratio of latencies that stands for that of a tenant that gets nothing.
const NOTHING: f64 = 1e9;

/// A case with what came of it.
pub struct Case {
    /// Of [`draw::case`](super::draw::case).
    pub seed: u64,
    /// Without control.
    pub setup: Setup,
    /// The same as text.
    pub(super) scenario: String,
    /// The reference of methods: none, or the best fixed setting.
    pub(super) reference: Config,
    /// Requests per second that the device gives each tenant alone.
    capacity: Vec<f64>,
    effects: Vec<Effect>,
}

/// True if a setup has a policy.
pub(super) fn has_policy(setup: &Setup) -> bool {
    let is_set = |rates: &Rates| rates.iops > 0 || rates.bytes_per_s > 0;
    setup.pool.target.is_some()
        || setup.tenants.iter().any(|tenant| is_set(&tenant.qos.limit) || is_set(&tenant.qos.reservation))
}

/// The effect of a method on a case: natural logarithms of ratios to the reference's figures, one for each seed.
#[derive(Clone, Debug, Default)]
pub struct Effect {
    pub(super) throughput: Vec<f64>,
    /// p50 and p99 of each tenant that was light, by its place.
    p50: BTreeMap<usize, Vec<f64>>,
    p99: BTreeMap<usize, Vec<f64>>,
    /// Each reserved tenant's throughput as a part of what is due to it.
    reserved: BTreeMap<usize, Vec<f64>>,
    /// Of the light tenants together, in ms: p99 without control and with it.
    light_p99_ms: [Vec<f64>; 2],
}

/// The figures that count.
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
        let effects = vec![Effect::default(); methods];
        Self { seed, setup, scenario: scenario.to_owned(), reference: Config::None, capacity, effects }
    }

    /// The reference of methods.
    pub(super) fn reference(&self) -> Setup {
        self.with(self.reference)
    }

    /// True if it carries a limit, a reservation or a latency target.
    pub fn has_policy(&self) -> bool {
        has_policy(&self.setup)
    }

    /// The reference of methods, in a few words.
    pub fn reference_name(&self) -> String {
        match self.reference {
            Config::Fixed { budget_bytes } => format!("the best fixed budget, {} KiB", budget_bytes >> 10),
            _ => "no admission control".to_owned(),
        }
    }

    /// The case with a method.
    pub(super) fn with(&self, admission: Config) -> Setup {
        oracle::with(&self.setup, admission)
    }

    /// The tenants that are light, by their places: those that take little of the device's time.
    pub(super) fn light(&self, none: &Digest) -> Vec<usize> {
        let seconds = self.setup.duration.as_secs_f64();
        let is_light = |&place: &usize| {
            let was = &none.tenants[place];
            let device_time = was.requests as f64 / seconds / self.capacity[place].max(1e-9);
            device_time < fair_share(&self.setup, place) && was.requests >= REQUESTS && was.response.p50_ms != 0.0
        };
        (0..none.tenants.len()).filter(is_light).collect()
    }

    /// Adds a pair of runs of one seed.
    pub(super) fn learn(&mut self, method: usize, none: &Digest, with: &Digest) {
        let light = self.light(none);
        let effect = &mut self.effects[method];
        effect.throughput.push(log_throughput(with.bytes_per_s, none.bytes_per_s));
        effect.reserve(&self.setup, none, with);
        let (mut before, mut after) = (0.0, 0.0);
        for &place in &light {
            let (was, is) = (&none.tenants[place].response, &with.tenants[place].response);
            effect.late(place, [was.p50_ms, was.p99_ms], [is.p50_ms, is.p99_ms]);
            before += libm::log(was.p99_ms);
            after += libm::log(was.p99_ms) + log_ratio(is.p99_ms, was.p99_ms);
        }
        let light = light.len();
        if light > 0 {
            effect.light_p99_ms[0].push(before / light as f64);
            effect.light_p99_ms[1].push(after / light as f64);
        }
    }

    /// The effect of a method.
    pub fn effect(&self, method: usize) -> &Effect {
        &self.effects[method]
    }

    /// The figures that count.
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

    /// True if the means so far are beyond a bound of harm, which more seeds are to decide.
    pub(super) fn looks_harmed(&self, method: usize) -> bool {
        self.effects[method].looks_harmed()
    }
}

impl Effect {
    /// True if the throughput, a reservation or a light tenant's figure is beyond a bound; `range` is where the mean of
    /// values lies.
    pub(super) fn beyond(&self, bounds: (f64, f64), range: impl Fn(&[f64]) -> (f64, f64)) -> bool {
        self.is_slow(bounds.0, &range) || self.is_beyond_for_a_tenant(bounds, range)
    }

    /// True if the throughput is beyond a bound.
    pub(super) fn is_slow(&self, bound: f64, range: impl Fn(&[f64]) -> (f64, f64)) -> bool {
        range(&self.throughput).1 < libm::log(bound)
    }

    /// True if a reservation or a light tenant's figure is beyond a bound.
    pub(super) fn is_beyond_for_a_tenant(
        &self,
        (throughput, latency): (f64, f64),
        range: impl Fn(&[f64]) -> (f64, f64),
    ) -> bool {
        self.reserved.values().any(|values| range(values).1 < libm::log(throughput))
            || self.p50.values().chain(self.p99.values()).any(|values| range(values).0 > libm::log(latency))
    }

    /// Adds p50 and p99 of a light tenant.
    pub(super) fn late(&mut self, place: usize, was: [f64; 2], is: [f64; 2]) {
        self.p50.entry(place).or_default().push(log_ratio(is[0], was[0]));
        self.p99.entry(place).or_default().push(log_ratio(is[1], was[1]));
    }

    /// Adds what tenants with reservations get.
    pub(super) fn reserve(&mut self, setup: &Setup, none: &Digest, with: &Digest) {
        for (place, due) in due(setup, none) {
            self.reserved.entry(place).or_default().push(libm::log(part_of_due(setup, with, place, due)));
        }
    }

    /// True if one seed's figures are help.
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
        self.throughput.push(log_throughput(throughput, 1.0));
        let Some((was, is)) = light else { return };
        self.late(0, was, is);
        self.light_p99_ms[0].push(libm::log(was[1]));
        self.light_p99_ms[1].push(libm::log(was[1]) + log_ratio(is[1], was[1]));
    }

    /// True if the means so far are beyond a bound of harm.
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
        if !self.reserved.is_empty() {
            let least = self.reserved.values().map(|values| mean(values)).fold(0.0, f64::min);
            write!(f, ", {:.2} times what is reserved", libm::exp(least))?;
        }
        if !self.p50.is_empty() {
            write!(f, ", {:.2} times the p50 and {:.2} times the p99", worst(&self.p50), worst(&self.p99))?;
        }
        Ok(())
    }
}

/// The mean; 0 of no values.
pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The logarithm of a ratio of latencies. A tenant that gets nothing any more has none, and waits for ever: a ratio far
/// beyond every bound, but a number, because an interval of infinities is none.
pub(super) fn log_ratio(is: f64, was: f64) -> f64 {
    libm::log(if is > 0.0 { is / was } else { NOTHING })
}

/// The logarithm of a ratio of throughputs; nothing at all counts as very little, for the same reason.
pub(super) fn log_throughput(is: f64, was: f64) -> f64 {
    libm::log((is / was).max(1.0 / NOTHING))
}

/// The share below which a tenant is light.
fn fair_share(setup: &Setup, place: usize) -> f64 {
    let weight = |place: usize| f64::from(setup.tenants[place].qos.weight);
    LIGHT * weight(place) / (0..setup.tenants.len()).map(weight).sum::<f64>()
}

/// True if a tenant is light by its parts of all bytes and of all requests, where nothing is known of the device's
/// time.
pub(super) fn is_light_by_use(setup: &Setup, place: usize, bytes: f64, requests: f64, count: u64) -> bool {
    let fair = fair_share(setup, place);
    bytes < fair && requests < fair && count >= REQUESTS
}

/// The rate due to each tenant with a reservation, by its place, in requests a second: no more than the reference gives
/// it.
pub(super) fn due(setup: &Setup, none: &Digest) -> Vec<(usize, f64)> {
    let seconds = setup.duration.as_secs_f64();
    let due = |(place, was): (usize, &TenantDigest)| {
        let reserved = setup.tenants[place].qos.reservation.iops as f64;
        (place, reserved.min(was.requests as f64 / seconds))
    };
    none.tenants.iter().enumerate().map(due).filter(|(_, due)| due * seconds >= REQUESTS as f64).collect()
}

/// The part of what is due to a tenant that it gets.
pub(super) fn part_of_due(setup: &Setup, with: &Digest, place: usize, due: f64) -> f64 {
    let rate = with.tenants[place].requests as f64 / setup.duration.as_secs_f64();
    (rate / due).clamp(1e-9, 1.0)
}
