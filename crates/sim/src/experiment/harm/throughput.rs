//! First, do no harm: a throughput guarantee compared with a plain limit of the same rate.
//!
//! A case has the device and the tenants of [`super::draw::shared`] on one host. The first tenant has a guarantee of 0.05
//! to 1.5 times its rate without one. The plain limit stands for a guarantee that does nothing about cache misses, stalls
//! of the device and other tenants.

use evenkeel_control::Duration;
use evenkeel_control::pool::guarantee::Throughputs;
use evenkeel_control::rng::SplitMix64;
use evenkeel_control::throughput::Rate;
use evenkeel_control::units::Rates;

use super::Verdict;
use super::hosts::{self, Figures};
use super::judge::{Effect as Judge, GRAVE, HARM, mean};
use super::shared::{PILOT, drawn, learn, settle, with};
use super::slots;
use crate::statistics::interval_99;
use crate::world::{Hosts, Setup};

/// Deviation of a rate from the guarantee that is negligible, as a fraction of the guarantee.
const NOTHING: f64 = 0.01;
/// Length of the windows in which jitter is measured, in tenths of a second.
const WINDOW: usize = 10;

/// A drawn case: a device, and tenants of which the first has a throughput guarantee.
#[derive(Clone)]
pub struct Case {
    /// Seed of the case.
    pub seed: u64,
    /// Device and tenants; the first tenant has the guarantee.
    pub setup: Setup,
    /// The guarantee, in bytes per second.
    pub guarantee: u64,
}

/// The effect of a guarantee on a case, compared with a plain limit; each list has one figure for each seed.
#[derive(Clone, Debug, Default)]
pub struct Effect {
    /// Throughput and light tenants' latencies under the guarantee, divided by those under the plain limit.
    pub light: Judge,
    /// Natural logarithm of a ratio: deviation of the tenant's mean rate from the guarantee, divided by its deviation under
    /// the plain limit.
    pub missed: Vec<f64>,
    /// Natural logarithm of a ratio: jitter divided by the jitter under the plain limit. Jitter is the mean deviation from
    /// the guarantee over windows of 1 s that begin every 0.1 s.
    pub jitter: Vec<f64>,
    /// The tenant's mean rate minus the guarantee, as a fraction of the guarantee; negative if the rate is lower.
    pub above: Vec<f64>,
}

impl Case {
    /// Draws the case of a seed.
    pub fn draw(seed: u64) -> Self {
        (0..).find_map(|attempt| Self::drawn(seed, seed.wrapping_add(attempt << 40))).expect("endless")
    }

    fn drawn(seed: u64, number: u64) -> Option<Self> {
        let mut random = SplitMix64::new(number ^ 0x5aa7);
        let mut case = Self { seed, setup: drawn(number), guarantee: 0 };
        let pilot = case.run(Duration::ZERO, true, seed);
        let bytes = pilot[0].result.bytes as f64;
        // A window is to hold some requests.
        let guarantee = bytes / PILOT.as_secs_f64() * 0.05 * libm::pow(30.0, random.next_f64());
        if guarantee < 50.0 * (bytes / pilot[0].result.requests.max(1) as f64) {
            return None;
        }
        settle(&mut case.setup, &pilot)?;
        case.guarantee = guarantee as u64;
        Some(case)
    }

    fn run(&self, warmup: Duration, limit: bool, seed: u64) -> Vec<Figures> {
        let mut setup = self.setup.clone();
        setup.duration = setup.duration + (setup.warmup - warmup);
        setup.warmup = warmup;
        let first = &mut setup.tenants[0];
        match limit {
            true => first.qos.limit = Rates { bytes_per_s: self.guarantee, ..Rates::UNSET },
            false if self.guarantee > 0 => first.guarantee = Throughputs::of_all(Rate::BytesPerS(self.guarantee)),
            false => {}
        }
        hosts::run(&setup, &Hosts::default(), None, seed)
    }

    /// The effect of the guarantee, compared with the plain limit, over runs with these seeds.
    pub fn effect(&self, seeds: core::ops::Range<u64>) -> Effect {
        let mut effect = Effect::default();
        let guarantee = self.guarantee as f64;
        for seed in seeds {
            let [limit, with] = [true, false].map(|limit| self.run(self.setup.warmup, limit, seed));
            let off = |rate: f64| (rate / guarantee - 1.0).abs();
            let rate = |figures: &[Figures]| figures[0].result.bytes as f64 / self.setup.duration.as_secs_f64();
            let jitter = |figures: &[Figures]| {
                let windows = figures[0].tenths.windows(WINDOW);
                mean(&windows.map(|window| off(window.iter().sum::<u64>() as f64)).collect::<Vec<_>>())
            };
            let ratio = |is: f64, was: f64| libm::log((is + NOTHING) / (was + NOTHING));
            effect.missed.push(ratio(off(rate(&with)), off(rate(&limit))));
            effect.jitter.push(ratio(jitter(&with), jitter(&limit)));
            effect.above.push(rate(&with) / guarantee - 1.0);
            learn(&mut effect.light, &self.setup, &limit, &with);
        }
        effect
    }
}

impl Effect {
    fn beyond(&self, bound: f64, above: f64, range: impl Fn(&[f64]) -> f64) -> bool {
        [&self.missed, &self.jitter].iter().any(|values| range(values) > libm::log(bound)) || range(&self.above) > above
    }

    /// The verdict on the guarantee in the case by all seeds of the effect.
    pub fn verdict(&self) -> Verdict {
        let low = |values: &[f64]| interval_99(values).0;
        let (harmed, gravely) = (self.beyond(HARM.1, NOTHING, low), self.beyond(GRAVE.1, 20.0 * NOTHING, low));
        with(self.light.verdict(), harmed, gravely)
    }

    /// True if the mean over the seeds of one of the effects (throughput, misses, jitter, a tenant's latency) is beyond its bound
    /// of harm.
    pub fn looks_harmed(&self) -> bool {
        self.light.looks_harmed() || self.beyond(HARM.1, NOTHING, mean)
    }
}

/// The effect of the guarantee on the case of `seed`: over `slots::SEEDS` runs, or over `slots::MORE_SEEDS` if these look
/// harmed.
pub fn judged(seed: u64) -> Effect {
    let case = Case::draw(seed);
    let effect = case.effect(0..slots::SEEDS);
    if effect.looks_harmed() { case.effect(0..slots::MORE_SEEDS) } else { effect }
}
