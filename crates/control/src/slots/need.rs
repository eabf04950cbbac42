//! The rate at which the device must serve a workload so that its latency target is met. By Little's law, this rate times the
//! device's latency is the number of slots that the target needs.

use super::report::Report;

/// Shortest allowed waiting time that is calculated with, as a part of the horizon; a shorter one counts as this.
const LEAST_ALLOWANCE: f64 = 0.02;

/// The rate, in requests per second, at which the device must serve a workload so that requests that arrive within
/// `horizon_s` wait for `allowance_s` at most, and requests that are queued now wait for `allowance_s` in the mean, as far as
/// they have not waited for longer already.
///
/// At the service rate μ and the arrival rate λ, a request that arrives after the time t waits for (q⁰ + (λ − μ)·t) / μ: at
/// most the allowance s at the end of the horizon h if μ ≥ (q⁰ + λh) / (s + h). The q⁰ queued requests have waited for D⁰/q⁰
/// in the mean and wait for q⁰ / 2μ more: s in the mean if μ ≥ q⁰ / (2·(s − D⁰/q⁰)). Not increasing in `allowance_s`.
pub(super) fn rate(report: &Report, arrival_rate: f64, allowance_s: f64, horizon_s: f64) -> f64 {
    let least = horizon_s * LEAST_ALLOWANCE;
    let queued = report.queued as f64;
    let later = (queued + arrival_rate * horizon_s) / (allowance_s.max(0.0) + horizon_s).max(least);
    if report.queued == 0 {
        return later;
    }
    let waited = report.waited.as_secs_f64() / queued;
    // No request is served faster than all of them within the shortest allowance.
    let now = queued / (2.0 * (allowance_s - waited).max(least));
    later.max(now.min(queued / least))
}

/// The rate that the DRG paper's equations (4.3) to (4.7) ask for, in requests per second, so that latency meets `target_s`.
/// They take arrivals and service as constant over the window `window_s`, and count the waiting of queued requests so far.
/// `latency_s` is the device's. `None` if no rate is enough.
///
/// The sign of (4.3) is corrected, and the last term of (4.6) is D⁰/(λw), as the dimensions demand.
pub(super) fn published(report: &Report, target_s: f64, latency_s: f64, window_s: f64) -> Option<f64> {
    let (queued, arrivals) = (report.queued as f64, report.arrival_rate());
    if arrivals <= 0.0 {
        // Nothing is known of what comes; what waits is to go within the window.
        return (target_s > latency_s).then_some(queued / window_s);
    }
    let allowance = target_s - latency_s - report.waited.as_secs_f64() / (arrivals * window_s);
    if allowance <= 0.0 {
        return (queued == 0.0 && target_s > latency_s).then_some(arrivals);
    }
    // Whether the queue runs empty within the window.
    if allowance < queued / (2.0 * arrivals) {
        Some(arrivals + queued * queued / (2.0 * window_s * arrivals * allowance))
    } else {
        Some((arrivals + 2.0 / window_s * (queued - arrivals * allowance)).max(0.0))
    }
}
