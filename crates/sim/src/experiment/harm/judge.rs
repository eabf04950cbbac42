//! The judge: how a method changes throughput and latencies of a case, and its verdict.

use std::collections::BTreeMap;
use std::fmt;

use evenkeel_control::admission::Config;
use evenkeel_control::units::Rates;

use crate::experiment::{Digest, TenantDigest, oracle};
use crate::statistics::interval_99;
use crate::world::Setup;

/// Bounds of harm, and of grave harm: the least throughput, and the largest p50 and p99 of light tenants, as multiples
/// of the reference's.
pub(super) const HARM: (f64, f64) = (0.95, 1.1);
pub(super) const GRAVE: (f64, f64) = (0.8, 2.0);
/// Bounds of help: the least throughput, and the largest p99 of light tenants, as multiples of the reference's.
pub(super) const HELP: (f64, f64) = (0.97, 0.5);
/// Part of the best constant's gain from which on a method counts as having it.
pub(super) const GAINED: f64 = 0.5;
/// A tenant is light below this part of its fair share, by weight.
const LIGHT: f64 = 0.9;
/// The least requests of a light tenant in the counted time; with fewer its percentiles mean little.
pub(super) const REQUESTS: u64 = 200;
/// The ratio of latencies that is used for a tenant that completes nothing under control.
const NOTHING: f64 = 1e9;

/// A case and the effects of the methods on it.
pub struct Case {
    /// Seed of [`draw::case`](super::draw::case).
    pub seed: u64,
    /// The setup without admission control.
    pub setup: Setup,
    /// The setup as the text of a scenario.
    pub(super) scenario: String,
    /// The admission that methods are compared with: none, or the best fixed setting if there is a policy.
    pub(super) reference: Config,
    /// By tenant: requests per second that the device serves when the tenant has it alone.
    capacity: Vec<f64>,
    effects: Vec<Effect>,
}

/// True if a setup has a limit, a reservation or a latency target.
pub(super) fn has_policy(setup: &Setup) -> bool {
    let is_set = |rates: &Rates| rates.iops > 0 || rates.bytes_per_s > 0;
    setup.pool.target.is_some()
        || setup.tenants.iter().any(|tenant| is_set(&tenant.qos.limit) || is_set(&tenant.qos.reservation))
}

/// The effect of a method on a case: natural logarithms of the method's figures divided by the reference's, one for each seed.
#[derive(Clone, Debug, Default)]
pub struct Effect {
    pub(super) throughput: Vec<f64>,
    /// p50 and p99 of each light tenant, by its place among the tenants.
    p50: BTreeMap<usize, Vec<f64>>,
    p99: BTreeMap<usize, Vec<f64>>,
    /// By place: each reserved tenant's throughput, divided by the rate due to it.
    reserved: BTreeMap<usize, Vec<f64>>,
    /// Natural logarithms of the light tenants' p99 in ms: under the reference, and under the method.
    light_p99_ms: [Vec<f64>; 2],
}

/// The verdict on a method in one case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// True if the reference would have been better, beyond doubt.
    pub harmed: bool,
    /// True if the reference would have been far better, beyond doubt.
    pub gravely: bool,
    /// True if light tenants' p99 is halved while throughput is kept.
    pub helped: bool,
}

impl Case {
    pub(super) fn new(seed: u64, setup: Setup, scenario: &str, capacity: Vec<f64>, methods: usize) -> Self {
        let effects = vec![Effect::default(); methods];
        Self { seed, setup, scenario: scenario.to_owned(), reference: Config::None, capacity, effects }
    }

    /// The setup under the admission that methods are compared with.
    pub(super) fn reference(&self) -> Setup {
        self.with(self.reference)
    }

    /// True if the case has a limit, a reservation or a latency target.
    pub fn has_policy(&self) -> bool {
        has_policy(&self.setup)
    }

    /// The admission that methods are compared with, in a few words.
    pub fn reference_name(&self) -> String {
        match self.reference {
            Config::Fixed { budget_bytes } => format!("the best fixed budget, {} KiB", budget_bytes >> 10),
            _ => "no admission control".to_owned(),
        }
    }

    /// The setup under the method `admission`.
    pub(super) fn with(&self, admission: Config) -> Setup {
        oracle::with(&self.setup, admission)
    }

    /// The places of light tenants: those that take little of the device's time in the run `none`.
    pub(super) fn light(&self, none: &Digest) -> Vec<usize> {
        let seconds = self.setup.duration.as_secs_f64();
        let is_light = |&place: &usize| {
            let was = &none.tenants[place];
            let device_time = was.requests as f64 / seconds / self.capacity[place].max(1e-9);
            device_time < fair_share(&self.setup, place) && was.requests >= REQUESTS && was.response.p50_ms != 0.0
        };
        (0..none.tenants.len()).filter(is_light).collect()
    }

    /// Adds the runs of one seed: under the reference (`none`), and under the method.
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

    /// The effect of the method at this place.
    pub fn effect(&self, method: usize) -> &Effect {
        &self.effects[method]
    }

    /// The verdict on the method at this place.
    pub fn verdict(&self, method: usize) -> Verdict {
        self.effects[method].verdict()
    }

    /// The method's gain, divided by the gain of the best of `constants`: gain is the fall of light tenants' p99.
    /// `None` if no constant is worth having: one that has half of none's p99 at 0.97 of its throughput on the first
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

    /// True if the means over the seeds so far are beyond a bound of harm, so that more seeds must decide.
    pub(super) fn looks_harmed(&self, method: usize) -> bool {
        self.effects[method].looks_harmed()
    }
}

impl Effect {
    /// True if the throughput, a reservation or a light tenant's latency is beyond a bound; `range` gives the interval
    /// in which the mean of values lies.
    pub(super) fn beyond(&self, bounds: (f64, f64), range: impl Fn(&[f64]) -> (f64, f64)) -> bool {
        self.is_slow(bounds.0, &range) || self.is_beyond_for_a_tenant(bounds, range)
    }

    /// True if the throughput is below `bound` times the reference's; `range` as in [`Effect::beyond`].
    pub(super) fn is_slow(&self, bound: f64, range: impl Fn(&[f64]) -> (f64, f64)) -> bool {
        range(&self.throughput).1 < libm::log(bound)
    }

    /// True if a reservation or a light tenant's latency is beyond its bound; `range` as in [`Effect::beyond`].
    pub(super) fn is_beyond_for_a_tenant(
        &self,
        (throughput, latency): (f64, f64),
        range: impl Fn(&[f64]) -> (f64, f64),
    ) -> bool {
        self.reserved.values().any(|values| range(values).1 < libm::log(throughput))
            || self.p50.values().chain(self.p99.values()).any(|values| range(values).0 > libm::log(latency))
    }

    /// Adds a light tenant's p50 and p99 under the reference (`was`) and under the method (`is`), in any unit.
    pub(super) fn late(&mut self, place: usize, was: [f64; 2], is: [f64; 2]) {
        self.p50.entry(place).or_default().push(log_ratio(is[0], was[0]));
        self.p99.entry(place).or_default().push(log_ratio(is[1], was[1]));
    }

    /// Adds the throughput of tenants with reservations in one pair of runs.
    pub(super) fn reserve(&mut self, setup: &Setup, none: &Digest, with: &Digest) {
        for (place, due) in due(setup, none) {
            self.reserved.entry(place).or_default().push(libm::log(part_of_due(setup, with, place, due)));
        }
    }

    /// True if the figures of the seed at this place are within the bounds of help.
    fn helps(&self, seed: usize) -> bool {
        let [none, with] = &self.light_p99_ms;
        let gain = none.get(seed).zip(with.get(seed)).map(|(none, with)| with - none);
        self.throughput.len() == none.len()
            && self.throughput[seed] >= libm::log(HELP.0)
            && gain.is_some_and(|gain| gain <= libm::log(HELP.1))
    }

    /// Adds one seed's figures: throughput under the method divided by the reference's, and p50 and p99 of light
    /// requests in ms under the reference and under the method.
    pub(super) fn add(&mut self, throughput: f64, light: Option<([f64; 2], [f64; 2])>) {
        self.throughput.push(log_throughput(throughput, 1.0));
        let Some((was, is)) = light else { return };
        self.late(0, was, is);
        self.light_p99_ms[0].push(libm::log(was[1]));
        self.light_p99_ms[1].push(libm::log(was[1]) + log_ratio(is[1], was[1]));
    }

    /// True if the means over the seeds so far are beyond a bound of harm.
    pub(super) fn looks_harmed(&self) -> bool {
        self.beyond(HARM, |values| (mean(values), mean(values)))
    }

    /// The verdict by all seeds so far.
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

/// The mean; 0 if there are no values.
pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The natural logarithm of `is / was`, two latencies. A tenant that completes nothing has none: its ratio is far
/// beyond every bound, but finite, because infinities have no confidence interval.
pub(super) fn log_ratio(is: f64, was: f64) -> f64 {
    libm::log(if is > 0.0 { is / was } else { NOTHING })
}

/// The natural logarithm of `is / was`, two throughputs. No throughput counts as very little: infinities have no
/// confidence interval.
pub(super) fn log_throughput(is: f64, was: f64) -> f64 {
    libm::log((is / was).max(1.0 / NOTHING))
}

/// The share of the device's time, 0 to 1, below which a tenant is light.
fn fair_share(setup: &Setup, place: usize) -> f64 {
    let weight = |place: usize| f64::from(setup.tenants[place].qos.weight);
    LIGHT * weight(place) / (0..setup.tenants.len()).map(weight).sum::<f64>()
}

/// True if a tenant is light by its shares of all `bytes` and of all `requests` (0 to 1), where its device time is
/// unknown; `count` is its number of requests.
pub(super) fn is_light_by_use(setup: &Setup, place: usize, bytes: f64, requests: f64, count: u64) -> bool {
    let fair = fair_share(setup, place);
    bytes < fair && requests < fair && count >= REQUESTS
}

/// Place and due rate of each tenant with a reservation, in requests a second: the reservation, but at most the rate in
/// the run `none`. Tenants with too few requests are left out.
pub(super) fn due(setup: &Setup, none: &Digest) -> Vec<(usize, f64)> {
    let seconds = setup.duration.as_secs_f64();
    let due = |(place, was): (usize, &TenantDigest)| {
        let reserved = setup.tenants[place].qos.reservation.iops as f64;
        (place, reserved.min(was.requests as f64 / seconds))
    };
    none.tenants.iter().enumerate().map(due).filter(|(_, due)| due * seconds >= REQUESTS as f64).collect()
}

/// The tenant's rate divided by its due rate, at most 1.
pub(super) fn part_of_due(setup: &Setup, with: &Digest, place: usize, due: f64) -> f64 {
    let rate = with.tenants[place].requests as f64 / setup.duration.as_secs_f64();
    (rate / due).clamp(1e-9, 1.0)
}
