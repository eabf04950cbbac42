//! Hosts' figures for the judge of admission, and how long hosts run.

use evenkeel_control::Duration;

use super::hosts::{Figures, bytes, requests};
use super::judge::{Effect, is_light_by_use, log_throughput};
use super::{COMPLETIONS, Verdict};
use crate::world::Setup;

/// The least and the most time that counts, in seconds.
const LEAST_S: f64 = 3.0;
const MOST_S: f64 = 15.0;

/// What counts of a case.
pub(super) fn with(verdict: Verdict, harmed: bool, gravely: bool) -> Verdict {
    Verdict { harmed: verdict.harmed || harmed, gravely: verdict.gravely || gravely, ..verdict }
}

/// Adds a pair of runs of one seed.
pub(super) fn learn(effect: &mut Effect, setup: &Setup, reference: &[Figures], with: &[Figures]) {
    // Requests of other sizes are served when others wait: throughput is lost where both are.
    let ratio = |of: fn(&[Figures]) -> f64| log_throughput(of(with), of(reference).max(1.0));
    effect.throughput.push(ratio(bytes).max(ratio(requests)));
    for (place, (was, is)) in reference.iter().zip(with).enumerate() {
        let count = was.response.count();
        let parts = (was.bytes as f64 / bytes(reference), count as f64 / requests(reference));
        if is_light_by_use(setup, place, parts.0, parts.1, count) {
            let of = |figures: &Figures| {
                let answered = figures.response.count() > 0;
                [0.5, 0.99].map(|part| if answered { figures.response.quantile(part).as_secs_f64() } else { 0.0 })
            };
            effect.late(place, of(was).map(|seconds| seconds.max(1e-9)), of(is));
        }
    }
}

/// How long a case is run before it counts, and how long it counts: 20,000 completions, 3 s to 15 s.
pub(super) fn length(pilot: &[Figures], time: Duration) -> Duration {
    let rate = requests(pilot) / time.as_secs_f64();
    Duration::from_nanos(((COMPLETIONS / rate.max(1.0)).clamp(LEAST_S, MOST_S) * 1e9) as u64)
}
