//! Decides the total number of slots so that the device's latency meets its target (FAST TCP, as in the DRG paper's
//! equation 4.2).

/// r of the DRG paper's equation (4.2): weight of the new estimate in the total.
const GAIN: f64 = 0.8;

/// The new total of slots, us(t) = (1 − r)·us(t−1) + r·(ℓ / l)·us(t−1), from `least` to `most`: us(t−1) = `used` slots in use
/// gave the device latency l = `latency_s`, and ℓ = `target_s` is the target for it.
///
/// us(t−1) are the slots in use, not the granted ones: an idle device would otherwise be granted ever more.
pub(super) fn total(used: f64, target_s: f64, latency_s: f64, least: f64, most: f64) -> f64 {
    let factor = if latency_s > 0.0 { (target_s / latency_s).min(1e6) } else { 1e6 };
    (used * ((1.0 - GAIN) + GAIN * factor)).clamp(least, most)
}
