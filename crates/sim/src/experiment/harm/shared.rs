//! Cases on hosts that share a device: draws them, sets their duration, and gives their figures to the judge of admission.

use evenkeel_control::{Duration, Instant};

use super::hosts::{Figures, bytes, requests};
use super::judge::{Effect, is_light_by_use, log_throughput};
use super::{COMPLETIONS, Verdict, draw};
use crate::world::{Setup, TenantResult};

/// Duration of the pilot run, which measures the request rate of a case.
pub(super) const PILOT: Duration = Duration::from_secs(2);
/// The shortest counted time, in seconds.
const LEAST_S: f64 = 3.0;
/// The longest counted time, in seconds.
const MOST_S: f64 = 15.0;

/// The verdict, with the outcome of further criteria added: it is `harmed` or `gravely` if these say so, too.
pub(super) fn with(verdict: Verdict, harmed: bool, gravely: bool) -> Verdict {
    Verdict { harmed: verdict.harmed || harmed, gravely: verdict.gravely || gravely, ..verdict }
}

/// Adds the figures of one seed to a method's effect: of the run under the reference, and of the run under the method (`with`).
pub(super) fn learn(effect: &mut Effect, setup: &Setup, reference: &[Figures], with: &[Figures]) {
    // Requests of other sizes are served when others wait: throughput is lost where both are.
    let ratio = |of: fn(&[Figures]) -> f64| log_throughput(of(with), of(reference).max(1.0));
    effect.throughput.push(ratio(bytes).max(ratio(requests)));
    for (place, (was, is)) in reference.iter().zip(with).enumerate() {
        let (was, is) = (&was.result, &is.result);
        let parts = (was.bytes as f64 / bytes(reference), was.requests as f64 / requests(reference));
        if is_light_by_use(setup, place, parts.0, parts.1, was.requests) {
            let of = |result: &TenantResult| [0.5, 0.99].map(|part| result.response.quantile(part).as_secs_f64());
            effect.late(place, of(was).map(|seconds| seconds.max(1e-9)), of(is));
        }
    }
}

/// The setup of the case with this number, for the pilot run.
pub(super) fn drawn(number: u64) -> Setup {
    let text = draw::shared(number);
    super::setup(&text, Duration::ZERO, PILOT).unwrap_or_else(|why| panic!("{why}\n{text}"))
}

/// Sets warm-up and counted time, each as long as 20,000 completions take, but 3 s to 15 s. `None` if a tenant's mean latency
/// in the pilot run exceeds a quarter of that run: the device is overloaded, and latencies depend on when the run ends.
pub(super) fn settle(setup: &mut Setup, pilot: &[Figures]) -> Option<()> {
    let behind = |each: &Figures| each.result.response.mean().as_secs_f64() > 0.25 * PILOT.as_secs_f64();
    if pilot.iter().any(behind) {
        return None;
    }
    let rate = requests(pilot) / PILOT.as_secs_f64();
    let time = Duration::from_nanos(((COMPLETIONS / rate.max(1.0)).clamp(LEAST_S, MOST_S) * 1e9) as u64);
    (setup.warmup, setup.duration) = (time, time);
    for client in &mut setup.clients {
        client.until = client.until.max(Instant::ZERO + time + time);
    }
    Some(())
}
