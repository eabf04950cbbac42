//! Evenkeel's own method: a mean delay by the measured effect of delays, divided among clients by share of the load.
//!
//! One number is controlled, the mean delay D of the noisy clients weighted by load. The controller is an integrator whose
//! gain follows the measured effect k of delays ([gain](super::gain)). While the error of latency is larger than chance
//! explains, D moves by error/k, and the controller waits until the measurements show the effect. Otherwise D moves by a
//! tenth of error/k in each interval. D never leaves the allowed range, so that nothing winds up. No derivative.
//! Where the device's latency does not fall any more, after ten steps up that each left most of the error, steps grow.
//!
//! The set point lies three standard deviations of means over ten intervals (1 s) below the target, so that these means stay
//! below the target.
//!
//! A delay at its upper bound is tested for its effect ([`super::trial`]); one without effect is released.

use alloc::vec::Vec;

use super::clients::{Clients, MARGIN};
use super::gain::{self, NEWEST, PATIENCE, Point};
use super::split::split;
use super::trial::{Trial, Verdict};
use super::{ClientDelay, ClientReason, Config, Decision, Reason, Sample, from_ms};
use crate::time::Duration;

/// An error beyond this many standard deviations is not chance; the set point lies this many standard deviations below the
/// target. Of a normal distribution one value in 700 lies above three.
const SIGMAS: f64 = 3.0;
/// While reads do not wait at all, a step shortens the delay by at least this part of it.
const RELEASE: f64 = 0.25;
/// A large step of the delay is in vain if it leaves more than this part of the error. The next step is at most twice as long,
/// so that it does not overshoot.
const VAIN: f64 = 0.5;

/// The controller of [`Method::Adaptive`](super::Method::Adaptive).
#[derive(Debug, Default)]
pub(super) struct Adaptive {
    target: Duration,
    target_ms: f64,
    interval_ms: f64,
    step_ms: f64,
    largest_ms: f64,

    pub(super) clients: Clients,
    /// Time since the latest sample with reads, in intervals.
    without_reads: f64,
    /// True if the device was taken to have stood still since the latest sample that the delay was decided by.
    stood_still: bool,
    /// Usual time between two samples with reads, in intervals.
    gap: f64,
    /// Time for which noisy clients have had no load, in intervals.
    without_load: f64,

    /// The mean delay that the controller wants, weighted by load, in ms.
    demand_ms: f64,
    /// Estimate of the number of delays that a request meets (k), and the estimate's variance.
    gain: (f64, f64),
    /// Number of intervals until samples show the effect of the present delay.
    skip: f64,
    /// Mean load, latency and delayed load since the last large step of the delay.
    mean: Point,
    /// Number of samples since the last large step of the delay.
    samples: f64,
    /// True if the last sample's latency was far above the mean, false if far below; `None` if it was near.
    outlier: Option<bool>,
    /// Number of large steps in a row that were in vain, while reads stayed above the set point.
    vain: f64,
    /// The error before the last of these steps, in ms.
    left_ms: f64,
    /// The value of `mean` just before the last large step of the delay, until `gain` has learned from the step.
    before: Option<Point>,
    /// Variance of mean latencies over ten intervals around the set point, as a part of the squared target.
    variance: f64,
    /// The present ten intervals: sum of latencies of reads in ms, number of reads, and length so far in intervals.
    window: [f64; 3],
    /// The mean delay that last held the target, in ms, to begin with when noisy clients return.
    held_ms: f64,
    /// True if clients have become noisy since the delay was last decided, or no noisy client has been active.
    joined: bool,

    /// Intervals at the longest delay with reads clearly above the set point, less other intervals; 0 or more.
    stuck: f64,
    trial: Option<Trial>,
    /// Number of intervals for which the last trial's verdict still counts; 0 or less if it does not.
    verdict_counts: f64,
    /// [`Reason::Ineffective`] if the last trial found that the delay has no effect, otherwise `None`.
    useless: Option<Reason>,

    reason: Reason,
    delays: Vec<ClientDelay>,
}

impl Adaptive {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            target: config.target,
            target_ms: config.target.as_millis_f64(),
            interval_ms: config.interval.as_millis_f64(),
            step_ms: config.step.as_millis_f64(),
            largest_ms: config.largest_delay(config.max_delay).as_millis_f64(),
            gain: gain::PRIOR,
            variance: (MARGIN.0 / SIGMAS) * (MARGIN.0 / SIGMAS),
            joined: true,
            ..Self::default()
        }
    }

    pub(super) fn set_target(&mut self, target: Duration) {
        // The delay that held the old target says nothing about the new one.
        (self.target, self.target_ms, self.held_ms) = (target, target.as_millis_f64(), 0.0);
        self.vain = 0.0;
    }

    pub(super) fn limit_delay(&mut self, most: Duration) {
        self.largest_ms = most.as_millis_f64();
        self.demand_ms = self.demand_ms.min(self.largest_ms);
    }

    pub(super) fn throttle_changed(&mut self) {
        (self.gain, self.held_ms, self.useless, self.verdict_counts) = (gain::PRIOR, 0.0, None, 0.0);
        self.vain = 0.0;
        self.begin_anew();
    }

    /// Takes the sample of an interval of this length, and decides the delays.
    pub(super) fn observe(&mut self, length: Duration, sample: &Sample<'_>) {
        let before_ms = if self.mean.response_ms > 0.0 { self.mean.response_ms } else { self.target_ms };
        let latency_ms = sample.read_response.map_or(before_ms, Duration::as_millis_f64);
        // Taken for too large, k makes the bound on a delay come slowly; for too small, it makes it swing.
        self.clients.observe(length, sample.clients, latency_ms, self.gain.0.max(gain::PRIOR.0));
        self.joined |= self.clients.find_noisy();
        let length = length.as_millis_f64() / self.interval_ms;
        self.without_reads += length;
        self.verdict_counts -= length;
        let waited_ms = sample.read_response.map_or(0.0, Duration::as_millis_f64) * sample.reads.max(1) as f64;
        // For longer nothing was going on.
        if let Some(measured) = sample.read_response.filter(|_| length < PATIENCE) {
            self.gap += NEWEST * (self.without_reads - self.gap);
            self.reason = self.control(length, measured.as_millis_f64(), sample.reads.max(1) as f64);
            (self.without_reads, self.stood_still) = (0.0, false);
        } else if 2.0 * waited_ms > length * self.interval_ms && !self.stood_still {
            // Reads waited for most of the time: the device stood still, which says nothing about the delay. Twice in a row may
            // be a caller that is always late, and no delay may stay for ever without control.
            (self.without_reads, self.stood_still) = (0.0, true);
        } else if self.reason != Reason::NotEnoughData && self.without_reads >= PATIENCE * self.gap.max(1.0) {
            self.release(Reason::Idle);
        }
        self.publish();
    }

    /// Ends the delays of all clients; the mean delay that held the target is remembered.
    pub(super) fn release(&mut self, reason: Reason) {
        (self.demand_ms, self.without_reads, self.joined, self.reason) = (0.0, 0.0, true, reason);
        self.vain = 0.0;
        self.begin_anew();
        self.publish();
    }

    pub(super) fn decision(&self) -> Decision<'_> {
        let mean_ms = self.clients.noisy().map(|client| client.share * client.delay_ms).sum();
        Decision { reason: self.reason, mean_delay: from_ms(mean_ms), delays: &self.delays }
    }

    /// The largest mean delay, in ms, with which tenants still get their reservations and throughput guarantees.
    fn reach_ms(&self) -> f64 {
        if self.clients.noisy().all(|client| client.most_ms.is_none()) {
            return self.largest_ms;
        }
        self.clients.noisy().map(|client| client.share * client.most_of(self.largest_ms, self.step_ms)).sum()
    }

    fn set_point_ms(&self) -> f64 {
        self.target_ms * (1.0 - (SIGMAS * libm::sqrt(self.variance)).min(MARGIN.1))
    }

    /// Standard deviation of the mean latency of one interval, in ms, as if intervals were independent.
    fn scatter_ms(&self) -> f64 {
        self.target_ms * libm::sqrt(self.variance * (PATIENCE / self.gap.max(1.0)).max(1.0))
    }

    /// Standard deviation of the mean latency since the last large step of the delay, in ms.
    fn deviation_ms(&self) -> f64 {
        self.scatter_ms() * libm::sqrt(NEWEST.max(1.0 / self.samples))
    }

    /// Discards the samples before a change of the delay, and the first interval after it, in which requests from before the
    /// change are still in flight.
    fn begin_anew(&mut self) {
        (self.skip, self.samples, self.window, self.stuck) = (1.0, 0.0, [0.0; 3], 0.0);
        (self.trial, self.before) = (None, None);
    }

    fn control(&mut self, length: f64, measured_ms: f64, reads: f64) -> Reason {
        let start = Point { response_ms: measured_ms, ..Point::default() };
        let (now, usual) = self.clients.noisy().fold((start, 0.0), |(mut sum, usual), client| {
            sum.load += client.now_bytes_per_s;
            sum.load_delay += client.now_bytes_per_s * client.delay_ms;
            (sum, usual + client.bytes_per_s)
        });
        let pause = now.load * PATIENCE <= usual;
        self.without_load = if pause { self.without_load + length } else { 0.0 };
        // A long delay makes pauses of its own.
        let patience = PATIENCE + self.gain.0 * self.demand_ms / self.interval_ms;
        if self.without_load >= patience && (self.demand_ms > 0.0 || !self.joined) {
            self.release(Reason::NotEnoughData);
        }
        if !(pause && self.demand_ms == 0.0) && core::mem::take(&mut self.joined) {
            // The interval in which clients come is neither the old state nor the new one.
            (self.samples, self.stuck, self.trial) = (0.0, 0.0, None);
            if self.held_ms > self.demand_ms {
                self.demand_ms = self.held_ms.min(self.largest_ms);
                self.begin_anew();
                return Reason::KnownBurst { held: from_ms(self.demand_ms) };
            }
        }
        let target = self.target;
        self.skip -= self.without_reads;
        if self.skip > -0.5 {
            return Reason::AwaitingEffect { target };
        }
        if let Some(trial) = self.trial.as_mut().filter(|_| !pause) {
            let verdict = trial.take(&now);
            if let Some(verdict) = verdict {
                // A trial costs half of the delay's effect: a tenth of the time is for trials, half of it without a verdict.
                let rest = if verdict == Verdict::Undecided { 1.0 } else { PATIENCE };
                self.verdict_counts = rest * f64::from(trial.intervals);
                self.begin_anew();
                if verdict == Verdict::Ineffective {
                    self.useless = Some(Reason::Ineffective { delay: from_ms(self.demand_ms) });
                    (self.demand_ms, self.held_ms, self.vain) = (0.0, 0.0, 0.0);
                }
            }
            return self.useless.unwrap_or(Reason::TestingEffect { delay: from_ms(self.demand_ms) });
        }
        let off_ms = measured_ms - self.mean.response_ms;
        let far = libm::fabs(off_ms) > SIGMAS * self.scatter_ms();
        let side = (far && self.samples > 0.0).then_some(off_ms > 0.0);
        if side.is_some() && side == self.outlier {
            // Two in a row: what was before is over.
            self.samples = 0.0;
        }
        self.outlier = side;
        self.samples += 1.0;
        self.mean.approach(&now, NEWEST.max(1.0 / self.samples));
        let measured = from_ms(self.mean.response_ms);
        let slow = self.mean.response_ms > self.target_ms;
        let nothing = if pause { Some(Reason::NoNoisy { measured, target }) } else { self.useless };
        match nothing.filter(|_| pause || self.verdict_counts > 0.0) {
            // Noisy clients that do nothing say nothing about the delay.
            Some(_) if self.demand_ms > 0.0 => return self.reason,
            Some(reason) => return if slow { reason } else { Reason::UnderTarget { measured, target } },
            None => self.useless = None,
        }
        if let Some(before) = self.before.take() {
            self.gain = gain::learn(self.gain, &before, &self.mean, self.deviation_ms());
            self.count_vain(before.response_ms);
        }
        let [sum_ms, count, length] = self.window;
        self.window = [sum_ms + reads * measured_ms, count + reads, length + self.without_reads];
        self.adjust(measured, target)
    }

    /// Judges the last large step, before which reads took `before_ms`.
    fn count_vain(&mut self, before_ms: f64) {
        let set_point_ms = self.set_point_ms();
        let [before, now] = [before_ms, self.mean.response_ms].map(|response_ms| response_ms - set_point_ms);
        self.vain = if before > 0.0 && now > VAIN * before { self.vain + 1.0 } else { 0.0 };
        self.left_ms = before;
    }

    fn adjust(&mut self, measured: Duration, target: Duration) -> Reason {
        let (response_ms, before_ms) = (self.mean.response_ms, self.demand_ms);
        let set_point_ms = self.set_point_ms();
        let error = response_ms - set_point_ms;
        let large = libm::fabs(error) > SIGMAS * self.deviation_ms();
        let (at_most, reach_ms) = (before_ms >= self.largest_ms, self.reach_ms());
        self.stuck = if at_most && large && error > 0.0 { self.stuck + 1.0 } else { (self.stuck - 1.0).max(0.0) };
        if self.stuck >= PATIENCE && self.verdict_counts <= 0.0 {
            self.begin_anew();
            (self.skip, self.trial) = (0.0, Some(Trial::default()));
            return Reason::TestingEffect { delay: from_ms(before_ms) };
        }
        if error <= 0.0 {
            self.vain = 0.0;
        }
        // Below the knee of the device's latency a delay has no effect on it: steps of error/k would take minutes to the longest.
        let more = (self.vain - PATIENCE).max(0.0);
        // An error that has just grown, by chance or by another load, has not been shown to withstand steps.
        let together = if large { error + more * error.min(self.left_ms) } else { NEWEST * error };
        let mut move_ms = together / self.gain.0;
        if large && response_ms < MARGIN.1 * self.target_ms {
            // Without a queue nothing shows how much too long the delay is.
            move_ms = move_ms.min(-RELEASE * before_ms);
        }
        self.demand_ms = (before_ms + move_ms).clamp(0.0, reach_ms);
        let moved_ms = libm::fabs(self.demand_ms - before_ms);
        if !large {
            let weight = if self.held_ms > 0.0 { NEWEST } else { 1.0 };
            self.held_ms += weight * (self.demand_ms - self.held_ms);
            self.watch_scatter();
        } else if moved_ms >= self.step_ms.max(1e-6) {
            self.begin_anew();
            // Requests in flight meet the new delay after the response that they wait for, then k times.
            self.skip = libm::ceil((response_ms + self.gain.0 * moved_ms) / self.interval_ms).clamp(1.0, SIGMAS);
            self.before = Some(self.mean);
        }
        // The set point decides about the delay, the target about the verdict.
        let (slow, all_done) = (response_ms > self.target_ms, self.demand_ms >= reach_ms);
        match () {
            () if slow && all_done => Reason::Unachievable { measured, target },
            () if slow => Reason::ReadsOverTarget { measured, target },
            () if error > 0.0 && all_done => Reason::AtLargestDelay { measured, target },
            () if error > 0.0 => Reason::ReadsNearTarget { measured, target, set_point: Some(from_ms(set_point_ms)) },
            () if self.demand_ms > 0.0 || moved_ms > 0.0 => Reason::ReadsUnderTarget { measured, target },
            () => Reason::UnderTarget { measured, target },
        }
    }

    /// Updates the variance of mean latencies around the set point, from intervals in which the delay was above zero and below
    /// the largest.
    fn watch_scatter(&mut self) {
        let [sum_ms, count, length] = self.window;
        if length >= PATIENCE {
            let off = (sum_ms / count - self.set_point_ms()) / self.target_ms;
            if self.demand_ms > 0.0 && self.demand_ms < self.largest_ms {
                // One far off (a change of load) is no scatter.
                self.variance += NEWEST * ((off * off).min(SIGMAS * SIGMAS * self.variance) - self.variance);
            }
            self.window = [0.0; 3];
        }
    }

    /// Divides the mean delay into a delay for each noisy client.
    fn publish(&mut self) {
        let mean_ms = if self.trial.as_ref().is_none_or(Trial::holds) { self.demand_ms } else { 0.0 };
        split(&mut self.clients.all, mean_ms, self.step_ms, self.largest_ms);
        self.delays.clear();
        for client in self.clients.noisy().filter(|client| from_ms(client.delay_ms) > Duration::ZERO) {
            let reason = match () {
                () if client.delay_ms >= self.largest_ms => ClientReason::LargestDelay,
                () if client.delay_ms >= client.most_of(self.largest_ms, self.step_ms) => ClientReason::Owed,
                () => ClientReason::ShareOfLoad { share: client.share as f32 },
            };
            self.delays.push(ClientDelay { client: client.id, delay: from_ms(client.delay_ms), reason });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ClientId, ClientSample, Throttle};
    use super::*;

    fn adaptive() -> Adaptive {
        let (step, max_delay) = (Duration::ZERO, Duration::from_secs(2));
        Adaptive::new(&Config { step, max_delay, ..Config::adaptive(Duration::from_millis(10)) })
    }

    #[test]
    fn steps_grow_after_many_in_vain_and_only_for_the_error_that_those_left() {
        let step_ms = |vain: f64, left_ms: f64, error_ms: f64| {
            let mut adaptive = adaptive();
            (adaptive.vain, adaptive.left_ms, adaptive.samples) = (vain, left_ms, PATIENCE);
            adaptive.mean.response_ms = adaptive.set_point_ms() + error_ms;
            adaptive.adjust(from_ms(adaptive.mean.response_ms), adaptive.target);
            adaptive.demand_ms * gain::PRIOR.0
        };
        for (vain, left_ms, error_ms, step) in [
            (0.0, 0.0, 4.0, 4.0),
            (10.0, 5.0, 4.0, 4.0),
            (11.0, 5.0, 4.0, 8.0),
            (20.0, 5.0, 4.0, 44.0),
            // Reads have become ten times slower since.
            (20.0, 4.0, 40.0, 80.0),
        ] {
            let found = step_ms(vain, left_ms, error_ms);
            assert!(libm::fabs(found - step) < 1e-6, "{vain} steps in vain, {error_ms} ms: {found}");
        }
    }

    #[test]
    fn after_an_ineffective_throttle_steps_are_short_again() {
        let mut adaptive = adaptive();
        // No delay changes anything.
        let clients = [ClientSample {
            client: ClientId(1),
            throttle: Throttle::Normal,
            bytes_per_s: 1e7,
            all_bytes_per_s: 1e7,
            freed_bytes_per_s: 1e7,
            reads: false,
            paid: f64::INFINITY,
        }];
        let sample = Sample { read_response: Some(Duration::from_millis(50)), reads: 10, clients: &clients };
        let mut vain = 0.0_f64;
        let found = (0..2_000).any(|_| {
            adaptive.observe(Duration::from_millis(100), &sample);
            vain = vain.max(adaptive.vain);
            matches!(adaptive.reason, Reason::Ineffective { .. })
        });
        assert!(found && vain > PATIENCE, "{:?} after {vain} steps in vain", adaptive.reason);
        assert_eq!((adaptive.demand_ms, adaptive.vain), (0.0, 0.0));
    }
}
