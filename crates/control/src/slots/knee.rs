//! How much more comes out of a device for more slots: where the curve of throughput over slots bends.

use crate::time::Duration;

/// The elasticity that is assumed while nothing is known.
const ASSUMED: f64 = 0.1;
/// From this elasticity of the throughput on, more slots are worth the latency that targets allow.
pub(super) const WORTH_A_TARGET: f64 = 2.0 * ASSUMED;
/// The value of [`Knee::known`] at which the assumed elasticity, give or take twice of it, counts half: the counts are taken to
/// vary by half of what chance makes of them.
pub(super) const DOUBT: f64 = 0.5 / (4.0 * ASSUMED * ASSUMED);
/// For how long what was seen of a device, and what was asked for, counts (time constant).
pub(super) const MEMORY: Duration = Duration::from_secs(30);
/// Latencies that differ by more than this part from the expected ones, in the mean over [`SURPRISE_OVER`] completions, show
/// that the device or its load is another one: what was learned is forgotten. So it is where the total weight of the cluster
/// changes by more.
pub(super) const SURPRISE: f64 = 0.12;
/// So many completions that chance makes half of [`SURPRISE`].
const SURPRISE_OVER: f64 = 4.0 / (SURPRISE * SURPRISE);

/// Estimates the elasticity of throughput, d ln X / d ln s, of a device that is kept busy: how many per cent more it does
/// for one per cent more slots s. 1 while slots are what limits it, 0 beyond the knee, in between for disks, which choose
/// better among more requests.
///
/// Latency is close to l = a + b·s for devices of all kinds: a is what a request takes on its own, and b what another one in
/// front of it costs. With Little's law the elasticity is then a / l. Weighted regression of l on s over the last half
/// minute; where s has not varied, the assumed elasticity counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Knee {
    /// Completions, older ones fading.
    weight: f64,
    slots: f64,
    latency_s: f64,
    spread: f64,
    both: f64,
    /// Slots in the newest period.
    used: f64,
    /// The relative difference of latencies from the expected ones, smoothed.
    off: f64,
}

impl Knee {
    /// Learns from a period of this length in which the device had `used` slots in use, all that it was to have, and
    /// completed `completed` requests.
    pub(super) fn learn(&mut self, length: Duration, used: f64, completed: f64) {
        if used <= 0.0 || completed <= 0.0 || length == Duration::ZERO {
            return;
        }
        let latency_s = used * length.as_secs_f64() / completed;
        let mut keep = libm::exp(-length.as_secs_f64() / MEMORY.as_secs_f64());
        // The nearest that what is not known of the slope may explain.
        let (least, most) =
            (self.relative_latency(used, self.slope(1.0)), self.relative_latency(used, self.slope(0.0)));
        let expected_s = latency_s.clamp(self.latency_s * least.min(most), self.latency_s * least.max(most));
        if expected_s > 0.0 {
            let newest = (completed / SURPRISE_OVER).min(0.5);
            self.off += newest * (latency_s / expected_s - 1.0 - self.off);
        }
        if self.off.abs() > SURPRISE {
            (keep, self.off) = (0.0, 0.0);
        }
        // The more were counted, the less is chance.
        self.weight = self.weight * keep + completed;
        let (slots_off, latency_off) = (used - self.slots, latency_s - self.latency_s);
        self.slots += slots_off * completed / self.weight;
        self.latency_s += latency_off * completed / self.weight;
        self.spread = self.spread * keep + completed * slots_off * (used - self.slots);
        self.both = self.both * keep + completed * slots_off * (latency_s - self.latency_s);
        self.used = used;
    }

    /// How much is known: the squared relative distance of s from its mean, summed over completions.
    pub(super) fn known(&self) -> f64 {
        let known = if self.slots > 0.0 { self.spread / (self.slots * self.slots) } else { 0.0 };
        // What is left of adding equal numbers is no knowledge.
        if known < 1e-9 * DOUBT { 0.0 } else { known }
    }

    /// The elasticity at the slots of the newest period, 0 to 1.
    pub(super) fn elasticity(&self) -> f64 {
        let slope = self.slope(ASSUMED);
        ((1.0 - slope) / self.relative_latency(self.used, slope)).clamp(0.0, 1.0)
    }

    /// The elasticity over all hosts: `known` is the sum of their [`Self::known`], `elasticity` the sum of each one's `known`
    /// times its elasticity.
    pub(super) fn together(known: f64, elasticity: f64) -> f64 {
        if known > 0.0 { elasticity / known } else { ASSUMED }
    }

    /// The slope of latency over slots, both as parts of their means, 0 to 1, where `assumed` is the elasticity that is
    /// assumed.
    fn slope(&self, assumed: f64) -> f64 {
        let scale = self.slots * self.latency_s;
        let both = if scale > 0.0 { self.both / scale } else { 0.0 };
        ((both + DOUBT * (1.0 - assumed)) / (self.known() + DOUBT)).clamp(0.0, 1.0)
    }

    /// The latency to expect with `slots` slots and this slope, as a multiple of the mean latency.
    fn relative_latency(&self, slots: f64, slope: f64) -> f64 {
        let relative = if self.slots > 0.0 { slots / self.slots } else { 1.0 };
        (1.0 + slope * (relative - 1.0)).max(1e-9)
    }
}
