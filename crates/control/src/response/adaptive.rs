//! Ours: the mean delay by what a delay was seen to do, split by share of the load.
//!
//! One number is controlled, the mean delay D of the noisy clients weighted by load. The controller is an integrator whose
//! gain is scheduled from the measured plant: while the error is beyond chance, D moves by error/k, with k the learned
//! [gain](super::gain), and the controller waits until the measurements are the effect; afterwards D moves by a tenth of
//! that in each interval. D never leaves what is allowed, so that nothing winds up. No derivative.
//!
//! The set point lies three standard deviations of means over ten intervals (1 s) below the target, so that such means stay
//! below it.
//!
//! A delay at its bound has to prove that it helps ([`super::trial`]); one that does not is released.

use alloc::vec::Vec;

use super::clients::{Client, Clients};
use super::gain::{Gain, Point};
use super::split::{self, Part};
use super::trial::{Trial, Verdict};
use super::{ClientDelay, ClientId, ClientReason, Config, Decision, Reason, Sample, Scratch, Standing, from_ms};
use crate::time::{Duration, Instant};

/// Standard deviations beyond which an error is no chance, and by which the set point lies below the target: of a normal
/// distribution one in 700 lies above.
const SIGMAS: f64 = 3.0;
/// Weight of the newest value in every moving average, and part of an error that is mended in an interval.
pub(super) const NEWEST: f64 = 0.1;
/// What has been missing for so many of its intervals is gone; a tenth of the usual load is none; means over so many are to
/// stay below the target.
pub(super) const PATIENCE: f64 = 10.0;
/// By which part of the target the set point lies below it at first, and at most.
const MARGIN: (f64, f64) = (0.15, 0.5);
/// Part of a delay that a step takes off while reads do not wait at all.
const RELEASE: f64 = 0.25;

/// Our controller.
#[derive(Debug, Default)]
pub(super) struct Adaptive {
    target_ms: f64,
    interval_s: f64,
    step_ms: f64,
    largest_ms: f64,

    clients: Clients,
    /// Response time in ms, and reads.
    sampled: Option<(f64, f64)>,
    /// Length of the last interval, time without reads, usual time between two intervals with reads, and time without load
    /// of the noisy clients.
    length_s: f64,
    without_reads_s: f64,
    gap_s: f64,
    without_load_s: f64,

    /// The mean delay that is wanted, and the one that came of bounds and steps.
    demand_ms: f64,
    applied_ms: f64,
    gain: Gain,
    /// Intervals whose samples are not the effect of the present delay yet.
    skip: f64,
    /// Means since the last large step, of so many samples.
    mean: Point,
    samples: f64,
    /// On which side the last sample was far off, if it was.
    outlier: Option<bool>,
    /// How it was before the last large step.
    before: Option<Point>,
    /// Of 1 s means around the set point.
    variance: f64,
    /// How many of them were seen.
    windows: f64,
    /// The present one: sum of response times in ms, reads, length in s.
    window: [f64; 3],
    /// The delay that held, for noisy clients that return, and whether they are away.
    held_ms: f64,
    released: bool,
    /// Whether a client has become noisy.
    joined: bool,

    /// Intervals at the longest delay with reads above the set point, less those without.
    stuck: f64,
    trial: Option<Trial>,
    tried_until: Instant,
    /// How long the next verdict counts.
    verdict_holds: f64,
    /// Why delays are released although reads are slow: they do not help.
    useless: Option<Reason>,

    reason: Reason,
    delays: Vec<ClientDelay>,
    scratch: Scratch,
}

impl Adaptive {
    pub(super) fn new(config: &Config) -> Self {
        let target_ms = config.goal.as_millis_f64();
        Self {
            target_ms,
            interval_s: config.interval.as_secs_f64(),
            step_ms: config.step.as_millis_f64(),
            largest_ms: config.largest_delay().as_millis_f64(),
            variance: square(MARGIN.0 * target_ms / SIGMAS),
            released: true,
            verdict_holds: PATIENCE,
            ..Self::default()
        }
    }

    pub(super) fn is_noisy(&self, client: ClientId) -> bool {
        self.clients.is_noisy(client)
    }

    pub(super) fn set_goal(&mut self, target: Duration) {
        let target_ms = target.as_millis_f64();
        self.variance *= square(target_ms / self.target_ms);
        self.target_ms = target_ms;
        // The delay that held the old target says nothing about the new one.
        self.held_ms = 0.0;
    }

    pub(super) fn limit_delay(&mut self, most: Duration) {
        let most_ms = most.as_millis_f64();
        self.largest_ms = match self.step_ms {
            0.0 => most_ms,
            step_ms => (libm::floor(most_ms / step_ms + 1e-9) * step_ms).max(step_ms),
        };
        self.demand_ms = self.demand_ms.min(self.largest_ms);
    }

    pub(super) fn throttle_changed(&mut self) {
        (self.tried_until, self.verdict_holds, self.useless) = (Instant::ZERO, PATIENCE, None);
        (self.gain, self.held_ms) = (Gain::default(), 0.0);
        self.begin_anew(1.0);
    }

    /// Gives or takes working memory.
    pub(super) fn exchange(&mut self, scratch: &mut Scratch) {
        core::mem::swap(&mut self.scratch, scratch);
    }

    pub(super) fn observe(&mut self, length: Duration, sample: &Sample<'_>) {
        self.length_s = length.as_secs_f64();
        self.clients.observe(length, sample.clients);
        self.sampled = sample.read_response.map(|mean| (mean.as_millis_f64(), sample.reads.max(1) as f64));
    }

    /// Takes the sample into account.
    pub(super) fn decide(&mut self, now: Instant) {
        let response_ms = self.sampled.map_or(self.mean.response_ms, |(measured_ms, _)| measured_ms);
        self.joined |= self.clients.find_noisy(self.gain.k() / response_ms.max(1e-2), &mut self.scratch.loads);
        self.without_reads_s += self.length_s;
        if self.length_s >= PATIENCE * self.interval_s {
            // For so long nothing was going on.
            self.let_go(Reason::Idle);
            self.publish();
            return;
        }
        match self.sampled {
            Some((measured_ms, reads)) => {
                self.gap_s += NEWEST * (self.without_reads_s - self.gap_s);
                self.control(now, measured_ms, reads);
                self.without_reads_s = 0.0;
            }
            None => {
                let gone_s = PATIENCE * self.gap_s.max(self.interval_s);
                if self.reason != Reason::NotEnoughData && self.without_reads_s >= gone_s - 1e-9 {
                    self.let_go(Reason::Idle);
                }
            }
        }
        self.publish();
    }

    pub(super) fn signal_lost(&mut self) {
        self.let_go(Reason::SignalLost);
        self.publish();
    }

    pub(super) fn decision(&self) -> Decision<'_> {
        Decision { reason: self.reason, mean_delay: from_ms(self.applied_ms), delays: &self.delays }
    }

    fn set_point_ms(&self) -> f64 {
        self.target_ms - (SIGMAS * libm::sqrt(self.variance)).min(MARGIN.1 * self.target_ms)
    }

    /// Standard deviation of the mean response time since the last step, in ms, as if intervals were independent.
    fn deviation_ms(&self) -> f64 {
        let in_a_window = (PATIENCE * self.interval_s / self.gap_s.max(self.interval_s)).max(1.0);
        libm::sqrt(self.variance * in_a_window * NEWEST.max(1.0 / self.samples.max(1.0)))
    }

    /// No client is throttled any longer; the delay that held is remembered.
    fn let_go(&mut self, reason: Reason) {
        (self.demand_ms, self.released) = (0.0, true);
        self.begin_anew(0.0);
        self.reason = reason;
    }

    /// Samples so far say nothing about what comes after the next `skip` intervals.
    fn begin_anew(&mut self, skip: f64) {
        (self.skip, self.samples, self.stuck, self.trial, self.outlier) = (skip, 0.0, 0.0, None, None);
        (self.before, self.window) = (None, [0.0; 3]);
    }

    fn control(&mut self, at: Instant, measured_ms: f64, reads: f64) {
        let set_point = from_ms(self.set_point_ms());
        let start = Point { response_ms: measured_ms, ..Point::default() };
        let (now, usual) = self.clients.noisy().fold((start, 0.0), |(mut sum, usual), client| {
            sum.load += client.now_bytes_per_s;
            sum.load_delay += client.now_bytes_per_s * client.delay_ms;
            (sum, usual + client.bytes_per_s)
        });
        let pause = now.load * PATIENCE <= usual;
        self.without_load_s = if pause { self.without_load_s + self.length_s } else { 0.0 };
        // A long delay makes pauses of its own.
        let patience_s = PATIENCE * self.interval_s + 1e-3 * self.gain.k() * self.demand_ms;
        if self.without_load_s >= patience_s - 1e-9 || pause && self.released {
            if !self.released {
                self.let_go(Reason::NotEnoughData);
            }
            let measured = from_ms(self.smooth(&now));
            self.reason = match self.mean.response_ms > self.target_ms {
                true => Reason::NoOffenders { measured, target: set_point },
                false => Reason::UnderTarget { measured, target: set_point },
            };
            return;
        }
        if core::mem::take(&mut self.released) | core::mem::take(&mut self.joined) {
            // The interval in which clients come is neither the old state nor the new one.
            (self.samples, self.stuck, self.trial) = (0.0, 0.0, None);
            if self.held_ms > self.demand_ms {
                self.demand_ms = self.held_ms.min(self.largest_ms);
                self.begin_anew(1.0);
                self.reason = Reason::KnownBurst { held: from_ms(self.demand_ms) };
                return;
            }
        }
        if let Some(reason) = self.useless.filter(|_| at < self.tried_until) {
            let measured = from_ms(self.smooth(&now));
            let fast = self.mean.response_ms <= self.target_ms;
            self.reason = if fast { Reason::UnderTarget { measured, target: set_point } } else { reason };
            return;
        }
        self.useless = None;
        let passed = (self.without_reads_s / self.interval_s).max(1.0);
        if self.skip >= passed {
            self.skip -= passed;
            if !matches!(self.reason, Reason::KnownBurst { .. }) {
                self.reason = Reason::AwaitingEffect { target: set_point };
            }
            return;
        }
        self.skip = 0.0;
        if pause {
            // Noisy clients that do nothing say nothing about the delay.
            self.smooth(&now);
            return;
        }
        if self.trial.is_some() {
            self.go_on_trying(at, &now);
            return;
        }
        self.smooth(&now);
        if let Some(before) = self.before.take() {
            self.gain.learn(&before, &self.mean, self.deviation_ms());
        }
        self.adjust(at);
        self.watch_scatter(measured_ms, reads);
    }

    /// An interval of a trial.
    fn go_on_trying(&mut self, now: Instant, point: &Point) {
        let Some((verdict, intervals)) = self.trial.as_mut().and_then(|trial| trial.take(point)) else { return };
        let (measured, target) = (from_ms(point.response_ms), from_ms(self.set_point_ms()));
        self.useless = match verdict {
            Verdict::Helps => None,
            Verdict::DoesNotBite => Some(Reason::DoesNotBite { delay: from_ms(self.demand_ms) }),
            Verdict::InVain => Some(Reason::Infeasible { measured, target }),
        };
        // Trials with the same end come ever more rarely.
        let holds_s = self.verdict_holds * f64::from(intervals) * self.interval_s;
        self.tried_until = now + from_ms(1e3 * holds_s);
        self.verdict_holds *= 2.0;
        self.begin_anew(1.0);
        self.reason = self.useless.unwrap_or(Reason::AwaitingEffect { target });
        if self.useless.is_some() {
            (self.demand_ms, self.held_ms) = (0.0, 0.0);
        }
    }

    /// Takes a sample into the means; two in a row far off on the same side begin them anew. Answers the response time.
    fn smooth(&mut self, now: &Point) -> f64 {
        let one_ms = self.deviation_ms() / libm::sqrt(NEWEST.max(1.0 / self.samples.max(1.0)));
        let off = now.response_ms - self.mean.response_ms;
        let side = (self.samples > 0.0 && libm::fabs(off) > SIGMAS * one_ms).then_some(off > 0.0);
        if side.is_some() && side == self.outlier {
            self.samples = 0.0;
        }
        self.outlier = side;
        self.samples += 1.0;
        self.mean.approach(now, NEWEST.max(1.0 / self.samples));
        self.mean.response_ms
    }

    /// Follows the scatter of 1 s means around the set point, while a delay keeps them there.
    fn watch_scatter(&mut self, measured_ms: f64, reads: f64) {
        // At either end of its range the delay does not keep them anywhere.
        if self.demand_ms <= 0.0 || self.demand_ms >= self.largest_ms || self.skip > 0.0 {
            self.window = [0.0; 3];
            return;
        }
        let [sum_ms, count, length_s] = self.window;
        self.window = [sum_ms + measured_ms * reads, count + reads, length_s + self.without_reads_s];
        if self.window[2] >= PATIENCE * self.interval_s - 1e-9 {
            let off = self.window[0] / self.window[1] - self.set_point_ms();
            // One far off (a change of load) is no scatter.
            let most = square(SIGMAS) * self.variance;
            // What is assumed at first counts as one.
            self.windows += 1.0;
            let weight = NEWEST.max(1.0 / (self.windows + 1.0));
            self.variance += weight * (square(off).min(most) - self.variance);
            self.window = [0.0; 3];
        }
    }

    fn adjust(&mut self, now: Instant) {
        let (response_ms, set_point_ms, before_ms) = (self.mean.response_ms, self.set_point_ms(), self.demand_ms);
        let (measured, target) = (from_ms(response_ms), from_ms(set_point_ms));
        let error = response_ms - set_point_ms;
        let band = SIGMAS * self.deviation_ms();
        let large = libm::fabs(error) > band;
        // Of a hundredth of the load hardly anything is left to take.
        let nothing_left = self.gain.k() * before_ms >= square(PATIENCE) * response_ms;
        let at_most = before_ms > 0.0 && (before_ms >= self.largest_ms || nothing_left);
        self.stuck = if at_most && large && error > 0.0 { self.stuck + 1.0 } else { (self.stuck - 1.0).max(0.0) };
        if error < 0.0 {
            self.verdict_holds = PATIENCE;
        }
        if self.stuck >= PATIENCE && now >= self.tried_until {
            self.begin_anew(0.0);
            self.trial = Some(Trial::default());
            self.reason = Reason::TestingEffect { delay: from_ms(before_ms) };
            return;
        }
        let move_ms = match (large, error > 0.0) {
            (true, true) => error / self.gain.low(),
            // Without a queue nothing shows how much too long the delay is.
            (true, false) if response_ms < MARGIN.1 * set_point_ms => {
                (error / self.gain.high()).min(-RELEASE * before_ms)
            }
            (true, false) => error / self.gain.high(),
            (false, _) => NEWEST * error / self.gain.k(),
        };
        self.demand_ms = (before_ms + move_ms).clamp(0.0, self.largest_ms);
        let moved_ms = libm::fabs(self.demand_ms - before_ms);
        self.reason = match () {
            () if error > 0.0 && self.demand_ms >= self.largest_ms => Reason::Infeasible { measured, target },
            () if error > 0.0 => Reason::ReadsOverTarget { measured, target },
            () if self.demand_ms > 0.0 || moved_ms > 0.0 => Reason::ReadsUnderTarget { measured, target },
            () => Reason::UnderTarget { measured, target },
        };
        if !large && self.held_ms > 0.0 {
            self.held_ms += NEWEST * (self.demand_ms - self.held_ms);
        } else if !large {
            self.held_ms = self.demand_ms;
        } else if moved_ms >= self.step_ms.max(1e-6) {
            // Requests in flight meet the new delay after the response that they wait for, then k times.
            let lag_ms = response_ms + self.gain.k() * moved_ms;
            let skip = libm::ceil(lag_ms / (1e3 * self.interval_s)).clamp(1.0, SIGMAS);
            self.begin_anew(skip);
            self.before = Some(self.mean);
        }
    }

    /// Turns the mean delay into one for each noisy client.
    fn publish(&mut self) {
        self.delays.clear();
        self.clients.all_mut().for_each(|client| client.delay_ms = 0.0);
        self.applied_ms = 0.0;
        if self.demand_ms <= 0.0 || self.trial.as_ref().is_some_and(|trial| !trial.holds()) {
            return;
        }
        let total: f64 = self.clients.noisy().map(Client::load).sum();
        let part = |client: &Client| Part {
            share: if total > 0.0 { client.load() / total } else { 0.0 },
            spared: client.standing == Standing::Important,
            delay_ms: 0.0,
        };
        let parts = &mut self.scratch.parts;
        parts.clear();
        parts.extend(self.clients.noisy().map(part));
        split::split(parts, self.demand_ms, self.largest_ms);
        self.applied_ms = split::round(parts, self.step_ms, self.largest_ms);
        for (client, part) in self.clients.noisy_mut().zip(parts) {
            client.delay_ms = part.delay_ms;
            let delay = from_ms(part.delay_ms);
            if delay > Duration::ZERO {
                let reason = match part.delay_ms >= self.largest_ms {
                    true => ClientReason::LargestDelay,
                    false => ClientReason::ShareOfLoad { share: part.share as f32 },
                };
                self.delays.push(ClientDelay { client: client.id, delay, reason });
            }
        }
    }
}

fn square(x: f64) -> f64 {
    x * x
}
