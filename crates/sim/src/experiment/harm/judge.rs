//! The judge: measures how a method changes throughput and latencies of a case, and gives a verdict on the method.

use std::collections::BTreeMap;
use std::fmt;

use evenkeel_control::admission::Config;
use evenkeel_control::units::Rates;

use crate::experiment::{Digest, TenantDigest, oracle};
use crate::statistics::interval_99;
use crate::workload::{Pace, Spec};
use crate::world::{Client, Setup};

/// A method harms a case below the first value times the reference's throughput, or above the second value times the
/// reference's p50 or p99 of a light tenant.
pub(super) const HARM: (f64, f64) = (0.95, 1.1);
/// Bounds of grave harm, in the form of [`HARM`].
pub(super) const GRAVE: (f64, f64) = (0.8, 2.0);
/// A method helps a case with at least the first value times the reference's throughput and at most the second value times
/// the reference's p99 of light tenants.
pub(super) const HELP: (f64, f64) = (0.97, 0.5);
/// A method counts as having the gain of the best constant if it has at least this fraction of it.
pub(super) const GAINED: f64 = 0.5;
/// A tenant is light if it uses less than this fraction of its fair share of the device's time; fair shares follow weights.
const LIGHT: f64 = 0.9;
/// The fewest requests of a light tenant in the counted time. A tenant with fewer is not judged, as its percentiles mean little.
pub(super) const REQUESTS: u64 = 200;
/// Ratio of latencies (method to reference) that stands for a tenant that completes no request under the method.
const NOTHING: f64 = 1e9;

/// A case and the effects of the methods on it.
pub struct Case {
    /// Seed of [`draw::case`](super::draw::case).
    pub seed: u64,
    /// The setup without admission control.
    pub setup: Setup,
    /// The text of the scenario from which the setup was read.
    pub(super) scenario: String,
    /// The admission control with which methods are compared: none, or the best fixed budget in a case with a limit, a
    /// reservation or a latency target.
    pub(super) reference: Config,
    /// Per tenant: requests per second that the device serves when the tenant has it alone.
    capacity: Vec<f64>,
    /// Per method: its effect on the case.
    effects: Vec<Effect>,
}

/// True if a setup has a limit, a reservation or a latency target.
pub(super) fn has_policy(setup: &Setup) -> bool {
    let is_set = |rates: &Rates| rates.iops > 0 || rates.bytes_per_s > 0;
    setup.pool.target.is_some()
        || setup.tenants.iter().any(|tenant| is_set(&tenant.qos.limit) || is_set(&tenant.qos.reservation))
}

/// The effect of a method on a case. Values are natural logarithms of ratios, method to reference unless stated; each seed
/// adds one value.
#[derive(Clone, Debug, Default)]
pub struct Effect {
    pub(super) throughput: Vec<f64>,
    /// Ratios of the p50 latency of each light tenant; the key is the tenant's number.
    p50: BTreeMap<usize, Vec<f64>>,
    /// Ratios of the p99 latency of each light tenant; the key is the tenant's number.
    p99: BTreeMap<usize, Vec<f64>>,
    /// Request rate under the method of each tenant with a reservation, divided by its due rate (see [`due`]) and at most 1;
    /// the key is the tenant's number.
    reserved: BTreeMap<usize, Vec<f64>>,
    /// Natural logarithm of the light tenants' p99 latency in ms, averaged over them: under the reference, and under the method.
    light_p99_ms: [Vec<f64>; 2],
}

/// The verdict on a method in one case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// True if the throughput, a reservation or a light tenant's latency is beyond the bounds of harm, with 99 % confidence.
    pub harmed: bool,
    /// True if the throughput, a reservation or a light tenant's latency is beyond the bounds of grave harm (99 % confidence).
    pub gravely: bool,
    /// True if the method at least halves the light tenants' p99 latency and keeps at least 97 % of the throughput.
    pub helped: bool,
}

impl Case {
    pub(super) fn new(seed: u64, setup: Setup, scenario: &str, capacity: Vec<f64>, methods: usize) -> Self {
        let effects = vec![Effect::default(); methods];
        Self { seed, setup, scenario: scenario.to_owned(), reference: Config::None, capacity, effects }
    }

    /// The setup with the reference, the admission control with which methods are compared.
    pub(super) fn reference(&self) -> Setup {
        self.with(self.reference)
    }

    /// True if the case has a limit, a reservation or a latency target.
    pub fn has_policy(&self) -> bool {
        has_policy(&self.setup)
    }

    /// The reference, the admission control with which methods are compared, in a few words.
    pub fn reference_name(&self) -> String {
        match self.reference {
            Config::Fixed { budget_bytes } => format!("the best fixed budget, {} KiB", budget_bytes >> 10),
            _ => "no admission control".to_owned(),
        }
    }

    /// The setup with `admission` as its admission control.
    pub(super) fn with(&self, admission: Config) -> Setup {
        oracle::with(&self.setup, admission)
    }

    /// Indices of the light tenants: those that use less of the device's time than their fair share in `none`, the run with
    /// the reference: no admission control, or the best fixed budget.
    pub(super) fn light(&self, none: &Digest) -> Vec<usize> {
        let seconds = self.setup.duration.as_secs_f64();
        let is_light = |&place: &usize| {
            let was = &none.tenants[place];
            let device_time = was.requests as f64 / seconds / self.capacity[place].max(1e-9);
            device_time < fair_share(&self.setup, place) && was.requests >= REQUESTS && was.response.p50_ms != 0.0
        };
        (0..none.tenants.len()).filter(is_light).collect()
    }

    /// Adds the results of one seed to the method's effect: the runs with the reference (`none`) and with the method (`with`).
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

    /// The effect of a controller or fixed setting on the case, against none; `method` is its place in the list of methods.
    pub fn effect(&self, method: usize) -> &Effect {
        &self.effects[method]
    }

    /// The verdict on a controller or fixed setting in the case; `method` is its place in the list of methods.
    pub fn verdict(&self, method: usize) -> Verdict {
        self.effects[method].verdict()
    }

    /// The method's gain divided by the gain of the best constant, on the second seed. Gain is the fall of the light
    /// tenants' p99, in ms. `constants` are numbers of methods with a fixed setting; the best is the one with the lowest p99
    /// on the first seed. `None` if the best constant is not within the bounds of help on both seeds, or there is none.
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

    /// True if the method's means over the seeds added so far are beyond a bound of harm, so that more seeds are needed.
    pub(super) fn looks_harmed(&self, method: usize) -> bool {
        self.effects[method].looks_harmed()
    }
}

impl Effect {
    /// True if the throughput, a reservation or a light tenant's latency is beyond its bound over the whole interval in
    /// which the mean lies. `range` gives this interval for a list of values.
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

    /// Adds the rates of tenants with reservations from one seed's runs under the reference (`none`) and the method (`with`).
    pub(super) fn reserve(&mut self, setup: &Setup, none: &Digest, with: &Digest) {
        for (place, due) in due(setup, none) {
            self.reserved.entry(place).or_default().push(libm::log(part_of_due(setup, with, place, due)));
        }
    }

    /// True if the method's figures are within the bounds of help on seed number `seed`, from 0.
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

    /// True if the means over the seeds added so far are beyond a bound of harm.
    pub(super) fn looks_harmed(&self) -> bool {
        self.beyond(HARM, |values| (mean(values), mean(values)))
    }

    /// The verdict on the method by all seeds added so far.
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
        write!(f, "{:.2} times the reference's throughput", libm::exp(mean(&self.throughput)))?;
        if !self.reserved.is_empty() {
            let least = self.reserved.values().map(|values| mean(values)).fold(0.0, f64::min);
            write!(f, ", at worst {:.2} of the rate due to a tenant by its reservation", libm::exp(least))?;
        }
        if !self.p50.is_empty() {
            let [p50, p99] = [&self.p50, &self.p99].map(worst);
            write!(f, ", light tenants' p50 at worst {p50:.2} times and p99 {p99:.2} times the reference's")?;
        }
        Ok(())
    }
}

/// The mean; 0 if there are no values.
pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The natural logarithm of `is / was`, two latencies. `is` is 0 for a tenant that completes no request; its ratio is
/// [`NOTHING`], far beyond every bound but finite, because infinities have no confidence interval.
pub(super) fn log_ratio(is: f64, was: f64) -> f64 {
    libm::log(if is > 0.0 { is / was } else { NOTHING })
}

/// The natural logarithm of `is / was`, two throughputs. The ratio counts as at least 1 / [`NOTHING`], because infinities
/// have no confidence interval.
pub(super) fn log_throughput(is: f64, was: f64) -> f64 {
    libm::log((is / was).max(1.0 / NOTHING))
}

/// The share of the device's time, 0 to 1, below which the tenant with number `place` is light.
fn fair_share(setup: &Setup, place: usize) -> f64 {
    let weight = |place: usize| f64::from(setup.tenants[place].qos.weight);
    LIGHT * weight(place) / (0..setup.tenants.len()).map(weight).sum::<f64>()
}

/// True if a tenant is light by its shares of the bytes and of the requests of all tenants (`bytes` and `requests`, 0 to 1),
/// for cases without known device time; `count` is the tenant's number of requests.
pub(super) fn is_light_by_use(setup: &Setup, place: usize, bytes: f64, requests: f64, count: u64) -> bool {
    let fair = fair_share(setup, place);
    bytes < fair && requests < fair && count >= REQUESTS
}

/// Part (0 to 1) of the counted time in which the client of a tenant that sends longest sends requests: a burst's pauses are left
/// out.
fn sending(setup: &Setup, place: usize) -> f64 {
    let (from, until) = (setup.warmup.as_nanos(), (setup.warmup + setup.duration).as_nanos());
    let part = |client: &Client| match &client.workload {
        Spec::Load {
            pace: Pace::Closed { on_off: Some(times), .. } | Pace::Open { on_off: Some(times), .. }, ..
        } => {
            let (on, period) = (times.on.as_nanos(), (times.on + times.off).as_nanos());
            // Nanoseconds of sending from the beginning of the run to `at`.
            let sent = |at: u64| at / period * on + (at % period).min(on);
            (sent(until) - sent(from)) as f64 / (until - from) as f64
        }
        _ => 1.0,
    };
    setup.clients.iter().filter(|client| client.tenant == place).map(part).fold(0.0, f64::max)
}

/// Number and due rate in requests per second of each tenant with a reservation: the reservation in the time in which the tenant
/// sends requests, but at most the tenant's rate in `none`, the run with the reference. Tenants with fewer than [`REQUESTS`] due
/// requests are left out.
pub(super) fn due(setup: &Setup, none: &Digest) -> Vec<(usize, f64)> {
    let seconds = setup.duration.as_secs_f64();
    let due = |(place, was): (usize, &TenantDigest)| {
        let reserved = setup.tenants[place].qos.reservation.iops as f64;
        (place, (reserved * sending(setup, place)).min(was.requests as f64 / seconds))
    };
    none.tenants.iter().enumerate().map(due).filter(|(_, due)| due * seconds >= REQUESTS as f64).collect()
}

/// The rate in the run `with` of the tenant with number `place`, divided by its due rate `due`; at most 1.
pub(super) fn part_of_due(setup: &Setup, with: &Digest, place: usize, due: f64) -> f64 {
    let rate = with.tenants[place].requests as f64 / setup.duration.as_secs_f64();
    (rate / due).clamp(1e-9, 1.0)
}
