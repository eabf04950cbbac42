//! Estimates the effect k of a millisecond of delay.
//!
//! A client that keeps a fixed amount of data in circulation, and asks again when it gets an answer, obeys Little's law: with
//! load x, latency R and a delay d that it meets k times for each request, x·(R + k·d) is constant as long as the client does
//! not change. The sum over all noisy clients is constant too, whatever other clients do and however fast the storage is. Two
//! moments (0 and 1) with different delays therefore give k: with X = Σx and Q = Σx·d,
//!
//! ```text
//! X₀·R₀ + k·Q₀ = X₁·R₁ + k·Q₁    ⇒    k·(Q₁ − Q₀) = X₀·R₀ − X₁·R₁
//! ```
//!
//! The controller needs k: while the storage is saturated X does not change, and a millisecond more of mean delay shortens
//! the latency by k milliseconds; on storage that is not saturated it shortens it by less. A step of error/k does not
//! overshoot.
//!
//! k is estimated by recursive least squares with one parameter, its variance, and forgetting. It depends on the size of
//! requests and of TCP windows: a request of one window meets the delay once, larger requests meet it more often.

/// Weight of the newest value in every moving average, and the part of a small error that is corrected in one interval.
pub(super) const NEWEST: f64 = 0.1;
/// A number of intervals with several uses. Clients without reads or load for this long count as idle or gone; means over this
/// long are to stay below the target; without a sample for longer the signal counts as lost. Also, a load below the usual
/// one divided by this number counts as none.
pub(super) const PATIENCE: f64 = 1.0 / NEWEST;
/// The initial estimate of k, and its variance (a standard deviation of 2.5). Measured: a request meets packet delays of
/// `guard` 1, 2, 4 or 5 times, and the delay of an emptied slot in `serve` once.
pub(super) const PRIOR: (f64, f64) = (4.0, 6.25);

/// Figures of the noisy clients at one moment, or their means over several: load X in bytes per second, latency R of reads in
/// ms, and Σx·d in bytes per second times ms.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Point {
    pub(super) load: f64,
    pub(super) response_ms: f64,
    pub(super) load_delay: f64,
}

impl Point {
    /// Moves all figures towards those of `to` by the part `weight` (0 to 1) of the difference.
    pub(super) fn approach(&mut self, to: &Self, weight: f64) {
        self.load += weight * (to.load - self.load);
        self.response_ms += weight * (to.response_ms - self.response_ms);
        self.load_delay += weight * (to.load_delay - self.load_delay);
    }
}

/// Improves the estimate of k and its variance from two moments between which only the delay changed. `deviation_ms`: standard
/// deviation of the two latencies, in ms.
pub(super) fn learn((k, variance): (f64, f64), before: &Point, after: &Point, deviation_ms: f64) -> (f64, f64) {
    let load = 0.5 * (before.load + after.load);
    let moved_ms = (after.load_delay - before.load_delay) / load;
    let effect_ms = (before.load * before.response_ms - after.load * after.response_ms) / load;
    let prior = (variance / (1.0 - NEWEST)).min(PRIOR.1);
    // The chance of a difference is twice that of one figure.
    let weight = prior * moved_ms / (2.0 * deviation_ms * deviation_ms + moved_ms * prior * moved_ms);
    let new = k + weight * (effect_ms - k * moved_ms);
    let learned = (new.clamp(PRIOR.0 / PATIENCE, PRIOR.0 * PATIENCE), (1.0 - weight * moved_ms) * prior);
    if new.is_finite() { learned } else { (k, variance) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figures of twelve clients with 64 KiB in circulation each, on storage of 18 MB/s with a latency of at least 3 ms, whose
    /// requests meet a delay of `delay_ms` `k` times.
    fn storage(k: f64, delay_ms: f64) -> Point {
        let circulation = 12.0 * 65_536.0 * 1e3;
        let response_ms = (circulation / 18e6 - k * delay_ms).max(3.0);
        let load = circulation / (response_ms + k * delay_ms);
        Point { load, response_ms, load_delay: load * delay_ms }
    }

    #[test]
    fn a_few_steps_give_k_wherever_they_are() {
        for k in [1.0, 2.0, 5.0, 9.0] {
            // Within saturation, across the knee, and beyond it; small steps leave more in doubt.
            for (delays, part) in [
                ([0.0, 2.0, 0.5, 3.0, 1.0], 0.9),
                ([0.0, 12.0, 3.0, 14.0, 2.0], 0.25),
                ([15.0, 30.0, 15.0, 28.0, 16.0], 0.25),
            ] {
                let mut gain = PRIOR;
                for pair in delays.windows(2) {
                    gain = learn(gain, &storage(k, pair[0]), &storage(k, pair[1]), 0.5);
                }
                assert!((gain.0 - k).abs() < part * k, "{k} {delays:?}: {gain:?}");
            }
        }
    }

    #[test]
    fn nonsense_teaches_nothing() {
        let mut gain = PRIOR;
        let good = Point { load: 1e6, response_ms: 10.0, load_delay: 1e6 };
        for bad in [
            Point::default(),
            Point { response_ms: f64::NAN, ..good },
            Point { load: f64::INFINITY, ..good },
            Point { load_delay: f64::INFINITY, ..good },
        ] {
            gain = learn(gain, &bad, &bad, 1.0);
            gain = learn(gain, &Point::default(), &bad, 1.0);
        }
        assert_eq!(gain, PRIOR);
    }
}
