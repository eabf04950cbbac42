//! All slots together: as many as give the device's latency its target (FAST TCP, as the paper's equation 4.2 has it).

/// r of equation (4.2).
const GAIN: f64 = 0.8;

/// us(t) = (1 − r)·us(t−1) + r·(ℓ / l)·us(t−1), within bounds: `used` slots gave the latency `latency_s`.
///
/// us(t−1) is what was in use, not what was granted: an idle device would else be granted ever more.
pub(super) fn total(used: f64, target_s: f64, latency_s: f64, least: f64, most: f64) -> f64 {
    let factor = if latency_s > 0.0 { (target_s / latency_s).min(1e6) } else { 1e6 };
    (used * ((1.0 - GAIN) + GAIN * factor)).clamp(least, most)
}
