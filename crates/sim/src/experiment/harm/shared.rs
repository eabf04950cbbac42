//! Parts of judges.

use evenkeel_control::Duration;

use super::hosts::{Figures, bytes, requests};
use crate::statistics::interval_99;
use crate::world::Setup;

/// Bounds of harm and of grave harm: throughput, and light tenants' p50 and p99, as multiples of the reference's.
const HARM: (f64, f64) = (0.95, 1.1);
const GRAVE: (f64, f64) = (0.8, 2.0);
/// A tenant is light below so much of its fair share, and has figures with so many requests.
const LIGHT: f64 = 0.9;
const REQUESTS: u64 = 200;
/// Completions that count, and the least and the most time for them, in seconds.
const COMPLETIONS: f64 = 20_000.0;
const LEAST_S: f64 = 3.0;
const MOST_S: f64 = 15.0;

/// What counts of a case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// It would have been better to do nothing.
    pub harmed: bool,
    /// Far better.
    pub gravely: bool,
}

/// Natural logarithms of ratios to the reference, one for each seed.
#[derive(Clone, Debug, Default)]
pub struct Light {
    /// Of the throughput.
    pub throughput: Vec<f64>,
    /// Of p50 and p99 of each tenant that is light, by its place.
    pub latencies: std::collections::BTreeMap<(usize, u32), Vec<f64>>,
}

impl Light {
    /// Adds a pair of runs of one seed.
    pub fn learn(&mut self, setup: &Setup, reference: &[Figures], with: &[Figures]) {
        // Requests of other sizes are served when others wait: throughput is lost where both are.
        let ratio = |of: fn(&[Figures]) -> f64| libm::log(of(with) / of(reference).max(1.0));
        self.throughput.push(ratio(bytes).max(ratio(requests)));
        let weights: f64 = setup.tenants.iter().map(|tenant| f64::from(tenant.qos.weight)).sum();
        for (place, (was, is)) in reference.iter().zip(with).enumerate() {
            let fair = LIGHT * f64::from(setup.tenants[place].qos.weight) / weights;
            let count = was.response.count();
            let is_light = (was.bytes as f64) < fair * bytes(reference) && (count as f64) < fair * requests(reference);
            if !is_light || count < REQUESTS {
                continue;
            }
            for percent in [50, 99] {
                let of = |figures: &Figures| figures.response.quantile(f64::from(percent) / 100.0).as_secs_f64();
                let ratio = if is.response.count() > 0 { libm::log(of(is) / of(was).max(1e-9)) } else { f64::INFINITY };
                self.latencies.entry((place, percent)).or_default().push(ratio);
            }
        }
    }

    fn beyond(&self, (throughput, latency): (f64, f64), range: impl Fn(&[f64]) -> (f64, f64)) -> bool {
        (!self.throughput.is_empty() && range(&self.throughput).1 < libm::log(throughput))
            || self.latencies.values().any(|values| range(values).0 > libm::log(latency))
    }

    /// Whether the means so far are beyond a bound.
    pub fn looks_harmed(&self) -> bool {
        self.beyond(HARM, |values| (mean(values), mean(values)))
    }
}

impl std::fmt::Display for Light {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} times the throughput", libm::exp(mean(&self.throughput)))?;
        let worst = self.latencies.values().map(|values| mean(values)).max_by(f64::total_cmp);
        worst.map_or(Ok(()), |worst| write!(f, ", a light tenant's p50 or p99 {:.2} times", libm::exp(worst)))
    }
}

/// What counts.
pub fn verdict(light: &Light) -> Verdict {
    Verdict { harmed: light.beyond(HARM, interval_99), gravely: light.beyond(GRAVE, interval_99) }
}

pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// How long a case is run before it counts, and how long it counts: 20,000 completions, 3 s to 15 s.
pub(super) fn length(pilot: &[Figures], time: Duration) -> Duration {
    let rate = requests(pilot) / time.as_secs_f64();
    Duration::from_nanos(((COMPLETIONS / rate.max(1.0)).clamp(LEAST_S, MOST_S) * 1e9) as u64)
}
