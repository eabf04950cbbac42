//! Estimates how much more throughput a device gives for more slots, and so where its curve of throughput over slots bends.

use crate::time::Duration;

/// The elasticity of throughput over slots that is assumed before anything is measured.
const ASSUMED: f64 = 0.1;
/// From this elasticity of throughput over slots on, more slots are worth the latency that targets allow.
pub(super) const WORTH_A_TARGET: f64 = 2.0 * ASSUMED;
/// The value of [`Knee::known`] at which the measured and the assumed elasticity count equally. The assumed one is taken to
/// have a standard error of twice its value, and counts of completions to have half the variance of random arrivals.
pub(super) const DOUBT: f64 = 0.5 / (4.0 * ASSUMED * ASSUMED);
/// Time constant with which measurements of a device are forgotten; also the idle time after which a workload's target does
/// not count any more.
pub(super) const MEMORY: Duration = Duration::from_secs(30);
/// Latencies that differ by more than this part from the expected ones, in the mean over [`SURPRISE_OVER`] completions, show
/// that the device or its load has changed: all that was learned is forgotten. The same holds if the total weight of the
/// cluster's workloads changes by more than this part.
pub(super) const SURPRISE: f64 = 0.12;
/// Number of completions over which chance alone makes a mean difference of half of [`SURPRISE`].
const SURPRISE_OVER: f64 = 4.0 / (SURPRISE * SURPRISE);

/// Estimates the elasticity of throughput X over slots s, d ln X / d ln s, of a device that is kept busy: by how many per cent
/// throughput rises for one per cent more slots. It is 1 while slots limit the throughput, 0 beyond the knee, and in between
/// for disks, which order more requests better.
///
/// Latency is close to l = a + b·s for devices of all kinds: a is the time that a request takes alone, and b the time that
/// another request in front of it adds. By Little's law the elasticity is a / l. Weighted regression of l on s, in which
/// periods fade with [`MEMORY`]; where s has not varied, the assumed elasticity counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Knee {
    /// Number of completions that the means are over; older ones fade with [`MEMORY`].
    weight: f64,
    slots: f64,
    latency_s: f64,
    spread: f64,
    both: f64,
    /// Slots in use in the newest period.
    used: f64,
    /// The relative difference of latencies from the expected ones, smoothed over about [`SURPRISE_OVER`] completions.
    off: f64,
}

impl Knee {
    /// Learns from a period of this length in which `used` slots were in use, as many as were granted, and `completed`
    /// requests completed.
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

    /// Amount of knowledge about the elasticity: the squared relative distance of the slots in use from their mean, summed over
    /// completions. 0 if the slots in use have not varied.
    pub(super) fn known(&self) -> f64 {
        let known = if self.slots > 0.0 { self.spread / (self.slots * self.slots) } else { 0.0 };
        // What is left of adding equal numbers is no knowledge.
        if known < 1e-9 * DOUBT { 0.0 } else { known }
    }

    /// The elasticity of throughput over slots at the slots in use in the newest period, 0 to 1.
    pub(super) fn elasticity(&self) -> f64 {
        let slope = self.slope(ASSUMED);
        ((1.0 - slope) / self.relative_latency(self.used, slope)).clamp(0.0, 1.0)
    }

    /// The elasticity by the measurements of all hosts: `known` is the sum of the hosts' [`Self::known`], `elasticity` the sum
    /// of each host's [`Self::known`] times its [`Self::elasticity`].
    pub(super) fn together(known: f64, elasticity: f64) -> f64 {
        if known > 0.0 { elasticity / known } else { ASSUMED }
    }

    /// The slope of latency over slots, both divided by their means, 0 to 1. `assumed` is the elasticity that counts where
    /// little is measured.
    fn slope(&self, assumed: f64) -> f64 {
        let scale = self.slots * self.latency_s;
        let both = if scale > 0.0 { self.both / scale } else { 0.0 };
        ((both + DOUBT * (1.0 - assumed)) / (self.known() + DOUBT)).clamp(0.0, 1.0)
    }

    /// The latency to expect with `slots` slots in use if the slope of latency over slots is `slope`, as a multiple of the mean
    /// latency.
    fn relative_latency(&self, slots: f64, slope: f64) -> f64 {
        let relative = if self.slots > 0.0 { slots / self.slots } else { 1.0 };
        (1.0 + slope * (relative - 1.0)).max(1e-9)
    }
}
