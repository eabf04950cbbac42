//! First, do no harm: slots (shares of a device's queue depth) compared with no control, on hosts that share a device.
//!
//! A case has the device and the tenants of [`super::draw`], on one to three hosts that send each other figures. A
//! quarter of the cases have one more host, an initiator without control. Half of the cases have latency targets for means
//! and 99th percentiles, from a quarter to ten times the tenant's latency without control, so that some targets are met
//! without control and some cannot be met. A case that misses targets without control is compared with the best of no
//! control and fixed totals of slots by weight: the one that meets most targets, among equals that with clearly more throughput.

use evenkeel_control::Duration;
use evenkeel_control::pool::slots::LatencyTarget;
use evenkeel_control::pool::target::Statistic;
use evenkeel_control::rng::SplitMix64;
use evenkeel_control::slots::{Config, Method};

use super::Verdict;
use super::hosts::{self, Figures, MOST_HOSTS};
use super::judge::{Effect as Judge, GRAVE, log_ratio, mean};
use super::shared::{drawn, learn, settle, with};
use crate::statistics::interval_99;
use crate::world::{Hosts, Setup};

/// Total slots of the compared methods that share out a fixed total by weight.
const FIXED: [f64; 2] = [16.0, 128.0];
/// Runs (seeds) of every case.
pub(super) const SEEDS: u64 = 1;
/// Runs (seeds) of a case that looks harmed after [`SEEDS`] runs.
pub(super) const MORE_SEEDS: u64 = 6;

/// A drawn case: device, tenants and hosts.
#[derive(Clone)]
pub struct Case {
    /// Seed of the case.
    pub seed: u64,
    /// Device, and tenants with their latency targets.
    pub setup: Setup,
    /// The host of each tenant.
    pub hosts: Hosts,
}

/// The effect of slots on a case.
#[derive(Clone, Debug, Default)]
pub struct Effect {
    /// Throughput and light tenants' latencies under slots, divided by those under the compared control.
    pub light: Judge,
    /// Per tenant: natural logarithms of its latency under slots divided by its latency target, one for each seed on which
    /// the tenant meets the target without control.
    pub missed: Vec<Vec<f64>>,
}

impl Case {
    /// Draws the case of a seed.
    pub fn draw(seed: u64) -> Self {
        // A device that falls ever further behind makes all latencies a question of when the run ends.
        (0..).find_map(|attempt| Self::drawn(seed, seed.wrapping_add(attempt << 40))).expect("endless")
    }

    fn drawn(seed: u64, number: u64) -> Option<Self> {
        let setup = drawn(number);
        let mut random = SplitMix64::new(number ^ 0x510);
        let mut below = |n: usize| random.next_below(n as u64) as usize;
        let managed = 1 + below(MOST_HOSTS - 1);
        let unmanaged = (below(4) == 0).then_some(managed);
        let count = managed + usize::from(unmanaged.is_some());
        let mut of: Vec<usize> = setup.tenants.iter().map(|_| below(count)).collect();
        // A host without control alone is no case.
        of[0] = 0;
        let mut case = Self { seed, setup, hosts: Hosts { of, unmanaged, partition: None } };
        let pilot = case.run(None, seed);
        settle(&mut case.setup, &pilot)?;
        if random.next_below(2) == 0 {
            for (place, tenant) in case.setup.tenants.iter_mut().enumerate() {
                let wanted = place == 0 || random.next_below(2) == 0;
                let (factor, is_mean) = (0.25 * libm::pow(40.0, random.next_f64()), random.next_below(2) == 0);
                if !wanted || Some(case.hosts.of[place]) == unmanaged || pilot[place].result.requests == 0 {
                    continue;
                }
                let statistic = if is_mean { Statistic::Mean } else { Statistic::Percentile(99.0) };
                let ns = figure(&pilot[place], statistic) * 1e9 * factor;
                let time = Duration::from_nanos((ns as u64).max(1_000));
                tenant.latency_target = Some(LatencyTarget { time, statistic });
            }
        }
        Some(case)
    }

    /// Runs the case under `slots`; `None`: without control. Returns the figures of each tenant.
    pub fn run(&self, slots: Option<Config>, seed: u64) -> Vec<Figures> {
        hosts::run(&self.setup, &self.hosts, slots, seed)
    }

    /// Per tenant: natural logarithm of its latency divided by its latency target, far above 0 for a tenant that completes
    /// nothing; `None` for a tenant without a target, or for which `is_idle` is true.
    fn over(&self, figures: &[Figures], is_idle: &[bool]) -> Vec<Option<f64>> {
        let of = |(place, figures): (usize, &Figures)| {
            let target = self.setup.tenants[place].latency_target.filter(|_| !is_idle[place])?;
            Some(log_ratio(figure(figures, target.statistic), target.time.as_secs_f64()))
        };
        figures.iter().enumerate().map(of).collect()
    }

    /// The effect of `slots` on the case, over runs with these seeds.
    pub fn effect(&self, slots: Config, seeds: core::ops::Range<u64>) -> Effect {
        let mut effect = Effect { missed: vec![Vec::new(); self.setup.tenants.len()], ..Effect::default() };
        for seed in seeds {
            let none = self.run(None, seed);
            let with = self.run(Some(slots), seed);
            let met = |over: &[Option<f64>]| over.iter().flatten().filter(|over| **over <= 0.0).count() as f64;
            // Nothing is known of a tenant that completes nothing without control.
            let is_idle: Vec<bool> = none.iter().map(|figures| figures.result.requests == 0).collect();
            let over = |figures: &[Figures]| self.over(figures, &is_idle);
            let (over_none, over_with) = (over(&none), over(&with));
            for (missed, (none, with)) in effect.missed.iter_mut().zip(over_none.iter().zip(&over_with)) {
                if let (Some(none), Some(with)) = (none, with)
                    && *none <= 0.0
                {
                    missed.push(*with);
                }
            }
            let mut best = none;
            // Where all targets are met without control there is nothing to gain.
            if over_none.iter().flatten().any(|over| *over > 0.0) {
                let value = |figures: &[Figures]| (met(&over(figures)), hosts::bytes(figures));
                for total in FIXED {
                    let fixed = self.run(Some(Config { most: total, method: Method::Rwd, ..Config::NEEDS }), seed);
                    let (was, is) = (value(&best), value(&fixed));
                    // Throughput that is the same within what harm is stays with no control.
                    if is.0 > was.0 || (is.0 == was.0 && is.1 > 1.05 * was.1) {
                        best = fixed;
                    }
                }
                // Who meets more targets than the best constant may pay for it.
                if met(&over_with) > met(&over(&best)) {
                    continue;
                }
            }
            learn(&mut effect.light, &self.setup, &best, &with);
        }
        effect
    }
}

/// A tenant's latency in seconds: the mean or the percentile that `statistic` names.
fn figure(figures: &Figures, statistic: Statistic) -> f64 {
    let response = &figures.result.response;
    let time = match statistic {
        Statistic::Mean => response.mean(),
        Statistic::Percentile(percentile) => response.quantile(percentile / 100.0),
    };
    time.as_secs_f64()
}

impl Effect {
    /// The verdict on slots in the case by all seeds of the effect.
    pub fn verdict(&self) -> Verdict {
        let missed = self.missed.iter().filter(|missed| missed.len() > 1);
        let low = missed.map(|missed| interval_99(missed).0).fold(f64::NEG_INFINITY, f64::max);
        with(self.light.verdict(), low > 0.0, low > libm::log(GRAVE.1))
    }

    /// True if the means over the seeds of the effect are beyond a bound of harm.
    pub fn looks_harmed(&self) -> bool {
        self.light.looks_harmed() || self.missed.iter().any(|missed| !missed.is_empty() && mean(missed) > 0.0)
    }
}

/// The effect of `slots` on the case of `seed`: over `SEEDS` runs, or over `MORE_SEEDS` if these look harmed.
pub fn judged(seed: u64, slots: Config) -> Effect {
    let case = Case::draw(seed);
    let effect = case.effect(slots, 0..SEEDS);
    if effect.looks_harmed() { case.effect(slots, 0..MORE_SEEDS) } else { effect }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_that_completes_nothing_misses_its_target_unless_it_is_idle() {
        let has_target = |case: &Case| case.setup.tenants[0].latency_target.is_some();
        let case = (0..50).map(Case::draw).find(has_target).expect("half of the cases have one");
        let nothing = vec![Figures::default(); case.setup.tenants.len()];
        let over = |is_idle: bool| case.over(&nothing, &vec![is_idle; nothing.len()])[0];
        assert!(over(false) > Some(libm::log(GRAVE.1)));
        assert_eq!(over(true), None);
    }
}
