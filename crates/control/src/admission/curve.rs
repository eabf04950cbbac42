//! The numerics of SlowFast CoDel's slow loop: a fit of throughput over latency, and a random draw of the next latency target.

use crate::rng::SplitMix64;

/// Standard score (z) of the 99th percentile, rounded as in the authors' public implementation.
const Z_99: f64 = 2.33;

/// One slow interval: the latency target in force, and the throughput with it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    pub(super) target_ms: f64,
    pub(super) mib_per_s: f64,
}

/// Fits `throughput = a + slope · ln(latency)` by least squares, in the closed form of the normal equations.
///
/// Returns only the slope, in MiB/s: the optimum needs nothing else. Samples that all share one latency make the determinant
/// zero (or rounding noise), and the slope NaN, infinite or arbitrary: defect `guarded_fit`.
pub(super) fn slope_by_normal_equations<'a>(samples: impl Iterator<Item = &'a Sample>) -> f64 {
    let (mut n, mut sum_x, mut sum_xx, mut sum_y, mut sum_xy) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for sample in samples {
        let (x, y) = (libm::log(sample.target_ms), sample.mib_per_s);
        n += 1.0;
        sum_x += x;
        sum_xx += x * x;
        sum_y += y;
        sum_xy += x * y;
    }
    let inverse_determinant = 1.0 / (n * sum_xx - sum_x * sum_x);
    -sum_x * inverse_determinant * sum_y + n * inverse_determinant * sum_xy
}

/// Result of fitting a curve to samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Fit {
    /// Slope dT/d ln(L) of throughput T over latency L, in MiB/s.
    pub(super) slope_mib_per_s: f64,
    /// Mean throughput of the samples.
    pub(super) mean_mib_per_s: f64,
    /// Geometric mean of the samples' latency targets.
    pub(super) mean_ms: f64,
    /// The smallest latency target of the samples.
    pub(super) lowest_ms: f64,
    /// The largest latency target of the samples.
    pub(super) highest_ms: f64,
}

/// Fits `throughput = a + slope · ln(latency)` from centred sums; `None` unless the latencies differ by more than
/// `min_deviation` (standard deviation of ln(latency): 0.02 is 2 %).
pub(super) fn fit<'a>(samples: impl Iterator<Item = &'a Sample> + Clone, min_deviation: f64) -> Option<Fit> {
    let (mut n, mut mean_x, mut mean_y) = (0.0, 0.0, 0.0);
    let (mut lowest_ms, mut highest_ms) = (f64::INFINITY, 0.0f64);
    for sample in samples.clone() {
        n += 1.0;
        mean_x += libm::log(sample.target_ms);
        mean_y += sample.mib_per_s;
        lowest_ms = lowest_ms.min(sample.target_ms);
        highest_ms = highest_ms.max(sample.target_ms);
    }
    if n < 2.0 {
        return None;
    }
    mean_x /= n;
    mean_y /= n;
    let (mut s_xx, mut s_xy) = (0.0, 0.0);
    for sample in samples {
        let dx = libm::log(sample.target_ms) - mean_x;
        s_xx += dx * dx;
        s_xy += dx * (sample.mib_per_s - mean_y);
    }
    if s_xx <= n * min_deviation * min_deviation {
        return None;
    }
    Some(Fit {
        slope_mib_per_s: s_xy / s_xx,
        mean_mib_per_s: mean_y,
        mean_ms: libm::exp(mean_x),
        lowest_ms,
        highest_ms,
    })
}

/// A draw from the lognormal distribution above `floor` whose mode is `mode` and whose 99th percentile is `p99`.
///
/// With m = mode − floor and M = p99 − floor: σ² + zσ = ln M − ln m and μ = ln M − zσ. There is no distribution with
/// `mode == floor`; the result is NaN: defect `floored_mode`.
pub(super) fn draw_lognormal(rng: &mut SplitMix64, floor: f64, mode: f64, p99: f64) -> f64 {
    let (ln_mode, ln_p99) = (libm::log(mode - floor), libm::log(p99 - floor));
    let sigma = (libm::sqrt(Z_99 * Z_99 + 4.0 * (ln_p99 - ln_mode)) - Z_99) / 2.0;
    let mu = ln_p99 - Z_99 * sigma;
    floor + libm::exp(mu + sigma * rng.next_normal())
}
