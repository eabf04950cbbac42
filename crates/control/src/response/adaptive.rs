//! Ours: the mean delay by what a delay was seen to do, split by share of the load.
//!
//! One number is controlled, the mean delay D of the offenders weighted by load. Far from the target it moves by error/k,
//! with k the learned [gain](super::gain), taken low when the delay must suffice and high when it must not be too little;
//! then it waits until what is measured is the effect. Near the target it moves by a small part of error/k each interval.
//! There is no other integral, and D never leaves what the caps allow, so that nothing winds up. No derivative.
//!
//! The target lies below the goal by a margin that follows the scatter of 1 s means, so that these stay below the goal.

use alloc::vec::Vec;

use super::clients::{Client, Clients};
use super::gain::{Gain, Point};
use super::memory::Memory;
use super::split::{self, Part};
use super::trial::{Trial, Verdict};
use super::{ClientDelay, ClientId, ClientReason, Config, Decision, Reason, Sample, Standing, from_ms, whole};
use crate::time::{Duration, Instant};

/// Without reads for so long, nobody waits.
const IDLE_AFTER: Duration = Duration::from_secs(1);
/// An offender without load for so long is one no more.
const PATIENCE: Duration = Duration::from_secs(1);
/// Weight of the newest sample in the smoothed response time, once there are enough.
const NEWEST: f64 = 0.2;
/// Part of error/k by which the delay moves in an interval near the target: a time constant of some 12 intervals, slow
/// beside the smoothing.
const FINE: f64 = 0.08;
/// Part of error/k of a large step down; a step up takes all of it.
const RELEASE: f64 = 0.7;
/// Below the knee the response time hardly tells by how much the delay is too long: each further large step down in a row
/// grows by this factor, up to half of the delay.
const RELEASE_GROWTH: f64 = 1.5;
/// Part of the way that a step down goes to the delay that should be enough.
const MODEL_TRUST: f64 = 0.8;
/// After a change of offenders a large step waits for one interval that is all theirs, but no longer than so many.
const WAIT_AT_MOST: u32 = 3;
/// Intervals at the longest delay, with reads above the target, after which it is tried whether it does anything. Long
/// enough that whoever comes one after the other has come.
const TRY_AFTER: u32 = 15;
/// A trial lets reads wait longer for some seconds: what came of it counts for so long, or until the throttle changes;
const VERDICT_HOLDS: Duration = Duration::from_secs(600);
/// for so long if nothing did.
const UNKNOWN_HOLDS: Duration = Duration::from_secs(60);
/// Errors of more than so many standard deviations are no chance.
const SURPRISE: f64 = 3.0;
/// and so are such of more than this part of the response time.
const OUTLIER: f64 = 0.3;
/// Length over which means are to stay below the goal.
const WINDOW: Duration = Duration::from_secs(1);
/// The margin in standard deviations of such means. Waits in a queue are skewed: of a normal distribution one in 1,400 would
/// lie above.
const MARGIN: f64 = 3.2;
/// Bounds of the margin, and where it begins, as parts of the goal.
const MARGIN_RANGE: (f64, f64) = (0.03, 0.35);
const MARGIN_INITIAL: f64 = 0.15;
/// Weight of the newest window in the variance of means.
const NEWEST_WINDOW: f64 = 0.08;
/// Below this part of their usual load the offenders pause: nothing is learned.
const PAUSES_BELOW: f64 = 0.2;
/// Delays stay while their mean is within this part of a step of the wanted one.
const KEEP_WITHIN: f64 = 0.2;
/// Weight of the present delay in the one to be remembered.
const NEWEST_HELD: f64 = 0.05;
/// A delay is worth remembering after so many intervals near the target.
const HELD_LONG_ENOUGH: u32 = 10;

/// Sums over intervals in which nothing but chance changed.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    point: Point,
    intervals: f64,
}

impl Sums {
    fn add(&mut self, point: &Point) {
        self.point.load += point.load;
        self.point.response_ms += point.response_ms;
        self.point.load_delay += point.load_delay;
        self.intervals += 1.0;
    }

    fn mean(&self) -> Option<Point> {
        (self.intervals > 0.0).then(|| Point {
            load: self.point.load / self.intervals,
            response_ms: self.point.response_ms / self.intervals,
            load_delay: self.point.load_delay / self.intervals,
        })
    }
}

/// A 1 s mean in the making.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    response_ms: f64,
    reads: f64,
    length: Duration,
}

/// Our controller.
#[derive(Debug)]
pub(super) struct Adaptive {
    goal_ms: f64,
    interval: Duration,
    step_ms: f64,
    largest_ms: f64,
    threshold: f64,
    least_load: f64,

    clients: Clients,
    sampled: Option<(f64, f64)>,
    length: Duration,
    without_reads: Duration,

    /// The mean delay that is wanted, and the one that came of caps and steps.
    demand_ms: f64,
    applied_ms: f64,
    gain: Gain,
    memory: Memory,
    /// Intervals whose samples are not the effect of the present delay yet.
    skip: u32,
    response_ms: Option<f64>,
    /// Samples in it since it began.
    samples: f64,
    /// On which side the last sample was far off, if it was.
    outlier: Option<bool>,
    sums: Sums,
    /// Whether the present interval is only in part that of the present offenders.
    mixed: bool,
    /// Intervals in a row that would have deserved a large step.
    due: u32,
    /// Intervals at the longest delay with reads above the target, less those without.
    stuck: u32,
    /// Whether the delay does anything: a trial, and until when the last one need not be repeated.
    trial: Option<Trial>,
    tried_until: Instant,
    bites_not: bool,
    /// By how much more than error/k the next large step down is.
    release: f64,
    /// Load of the offenders while reads take longer than they should: what the storage gives.
    saturated_load: Option<f64>,
    /// How it was before the last large step.
    before: Option<Point>,
    window: Window,
    variance: f64,
    held_ms: f64,
    held_for: u32,

    reason: Reason,
    delays: Vec<ClientDelay>,
    parts: Vec<Part>,
    offenders: Vec<ClientId>,
}

impl Adaptive {
    pub(super) fn new(config: &Config) -> Self {
        let goal_ms = config.goal.as_millis_f64();
        Self {
            goal_ms,
            interval: config.interval,
            step_ms: config.step.as_millis_f64(),
            largest_ms: config.largest_delay().as_millis_f64(),
            threshold: config.offender_bytes_per_s as f64,
            least_load: config.min_bytes_per_s as f64,
            clients: Clients::default(),
            sampled: None,
            length: Duration::ZERO,
            without_reads: Duration::ZERO,
            demand_ms: 0.0,
            applied_ms: 0.0,
            gain: Gain::default(),
            memory: Memory::default(),
            skip: 0,
            response_ms: None,
            samples: 0.0,
            outlier: None,
            sums: Sums::default(),
            mixed: false,
            due: 0,
            stuck: 0,
            trial: None,
            tried_until: Instant::ZERO,
            bites_not: false,
            release: RELEASE,
            saturated_load: None,
            before: None,
            window: Window::default(),
            variance: square(MARGIN_INITIAL * goal_ms / MARGIN),
            held_ms: 0.0,
            held_for: 0,
            reason: Reason::NotEnoughData,
            delays: Vec::new(),
            parts: Vec::new(),
            offenders: Vec::new(),
        }
    }

    pub(super) fn offends(&self, client: ClientId) -> bool {
        self.clients.offends(client)
    }

    pub(super) fn set_goal(&mut self, goal: Duration) {
        let goal_ms = goal.as_millis_f64();
        self.variance *= square(goal_ms / self.goal_ms);
        self.goal_ms = goal_ms;
        // What held the old goal says nothing about the new one.
        self.memory.clear();
        self.held_for = 0;
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
        (self.trial, self.tried_until, self.bites_not) = (None, Instant::ZERO, false);
        self.gain = Gain::default();
        self.memory.clear();
        self.held_for = 0;
        self.begin_anew(1);
    }

    /// Gives or takes working memory.
    pub(super) fn exchange(&mut self, parts: &mut Vec<Part>) {
        core::mem::swap(&mut self.parts, parts);
    }

    pub(super) fn observe(&mut self, _now: Instant, length: Duration, sample: &Sample<'_>) {
        self.length = length;
        self.clients.observe(length, sample.clients);
        self.sampled = sample.read_response.map(|mean| (mean.as_millis_f64(), sample.reads.max(1) as f64));
    }

    /// Takes the sample into account.
    pub(super) fn decide(&mut self, now: Instant) {
        self.parts.clear();
        match self.sampled {
            Some((measured_ms, reads)) => {
                self.without_reads = Duration::ZERO;
                self.control(now, measured_ms, reads);
            }
            None => {
                self.without_reads = self.without_reads + self.length;
                if self.reason != Reason::NotEnoughData && self.without_reads >= IDLE_AFTER {
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

    /// What the controller aims at, in ms.
    fn target_ms(&self) -> f64 {
        let (least, most) = MARGIN_RANGE;
        self.goal_ms - (MARGIN * libm::sqrt(self.variance)).clamp(least * self.goal_ms, most * self.goal_ms)
    }

    /// Nobody is held back any longer; what held is remembered.
    fn let_go(&mut self, reason: Reason) {
        self.remember();
        self.demand_ms = 0.0;
        self.offenders.clear();
        self.begin_anew(0);
        self.reason = reason;
    }

    fn remember(&mut self) {
        if self.held_for >= HELD_LONG_ENOUGH {
            self.memory.store(&self.offenders, self.held_ms);
        }
        self.held_for = 0;
    }

    /// What was measured so far says nothing about what comes after the next `skip` intervals.
    fn begin_anew(&mut self, skip: u32) {
        self.skip = skip;
        self.trial = None;
        (self.response_ms, self.samples, self.outlier) = (None, 0.0, None);
        self.sums = Sums::default();
        self.before = None;
        self.window = Window::default();
    }

    fn control(&mut self, at: Instant, measured_ms: f64, reads: f64) {
        let changed = self.converge(measured_ms);
        let target_ms = self.target_ms();
        let target = from_ms(target_ms);
        if self.clients.offenders().next().is_none() {
            if changed {
                self.let_go(Reason::NotEnoughData);
            }
            let response_ms = self.smooth(measured_ms);
            let measured = from_ms(response_ms);
            self.reason = if response_ms > self.goal_ms {
                Reason::NoOffenders { measured, target }
            } else {
                Reason::UnderTarget { measured, target }
            };
            return;
        }
        if (changed || self.offenders.is_empty()) && self.recall() {
            return;
        }
        if self.skip > 0 {
            self.skip -= 1;
            if !matches!(self.reason, Reason::KnownBurst { .. }) {
                self.reason = Reason::AwaitingEffect { target };
            }
            return;
        }
        let pause = self.offenders_pause();
        if changed || pause {
            self.trial = None;
        }
        if pause {
            self.smooth(measured_ms);
            return;
        }
        let now = self.clients.offenders().fold(Point::default(), |sum, client| Point {
            load: sum.load + client.now_bytes_per_s,
            load_delay: sum.load_delay + client.now_bytes_per_s * client.delay_ms,
            response_ms: measured_ms,
        });
        if self.trial.is_some() {
            self.go_on_trying(at, &now);
            return;
        }
        let response_ms = self.smooth(measured_ms);
        if !core::mem::take(&mut self.mixed) {
            self.sums.add(&now);
            if let (Some(before), Some(after)) = (self.before, self.sums.mean()) {
                self.gain.learn(&before, &after);
                self.before = None;
            }
            if measured_ms > target_ms {
                let peak = self.saturated_load.get_or_insert(now.load);
                *peak += NEWEST * (now.load - *peak);
            }
        }
        self.adjust(at, response_ms, target_ms);
        self.watch_scatter(measured_ms, reads, target_ms);
    }

    /// An interval of a trial.
    fn go_on_trying(&mut self, now: Instant, point: &Point) {
        let Some(verdict) = self.trial.as_mut().and_then(|trial| trial.take(point)) else { return };
        self.tried_until = now + if verdict == Verdict::Unknown { UNKNOWN_HOLDS } else { VERDICT_HOLDS };
        self.bites_not = verdict == Verdict::BitesNot;
        if let Verdict::Bites { k, error } = verdict {
            self.gain.measured(k, error);
        }
        let delay = from_ms(self.demand_ms);
        self.begin_anew(2);
        let target = from_ms(self.target_ms());
        self.reason = if self.bites_not { Reason::DoesNotBite { delay } } else { Reason::AwaitingEffect { target } };
    }

    /// Brings clients and offenders up to date; tells whether the set changed.
    fn converge(&mut self, measured_ms: f64) -> bool {
        let k = self.gain.k();
        let weight = 1.0 - libm::exp(-self.length.as_secs_f64());
        for client in self.clients.all_mut() {
            let circulation = client.now_bytes_per_s * (measured_ms + k * client.delay_ms);
            client.circulation += weight * (circulation - client.circulation);
        }
        // A delay must not make an offender look harmless: what counts is the load it would have without.
        let freed = |client: &Client| client.now_bytes_per_s * (1.0 + k * client.delay_ms / measured_ms.max(0.01));
        let smoothed = |client: &Client| client.bytes_per_s;
        self.clients.converge(self.length, self.threshold, PATIENCE, smoothed, freed)
    }

    /// Another set of offenders: the delay that held it, if it is known. Tells whether there is something to wait for.
    fn recall(&mut self) -> bool {
        self.remember();
        self.offenders.clear();
        self.offenders.extend(self.clients.offenders().map(|client| client.id));
        // The interval in which clients come or go is neither the old state nor the new one.
        self.sums = Sums::default();
        self.before = None;
        self.mixed = true;
        self.saturated_load = None;
        match self.memory.find(&self.offenders) {
            Some((held_ms, same)) if same || held_ms > self.demand_ms => {
                self.demand_ms = held_ms;
                self.begin_anew(1);
                self.reason = Reason::KnownBurst { held: from_ms(held_ms) };
                true
            }
            _ => false,
        }
    }

    /// The mean response time, smoothed; two samples in a row far off on the same side begin it anew.
    fn smooth(&mut self, measured_ms: f64) -> f64 {
        let average = self.response_ms.unwrap_or(measured_ms);
        let usual = (SURPRISE * self.scatter_ms()).max(OUTLIER * average);
        let off = measured_ms - average;
        let side = (libm::fabs(off) > usual).then_some(off > 0.0);
        if side.is_some() && side == self.outlier {
            (self.response_ms, self.samples) = (None, 0.0);
        }
        self.outlier = side;
        self.samples += 1.0;
        let average = self.response_ms.get_or_insert(measured_ms);
        *average += NEWEST.max(1.0 / self.samples) * (measured_ms - *average);
        *average
    }

    /// Standard deviation of what an interval measures, in ms, as if intervals were independent.
    fn scatter_ms(&self) -> f64 {
        libm::sqrt(self.variance * (WINDOW.as_secs_f64() / self.interval.as_secs_f64()).max(1.0))
    }

    /// Offenders that do nothing just now say nothing about the delay.
    fn offenders_pause(&self) -> bool {
        let (now, usual) = self
            .clients
            .offenders()
            .fold((0.0, 0.0), |(now, usual), client| (now + client.now_bytes_per_s, usual + client.bytes_per_s));
        now < PAUSES_BELOW * usual
    }

    /// Follows the scatter of 1 s means around the target, while a delay keeps them there.
    fn watch_scatter(&mut self, measured_ms: f64, reads: f64, target_ms: f64) {
        // At either end of its range the delay does not keep them anywhere.
        if self.demand_ms <= 0.0 || self.skip > 0 || matches!(self.reason, Reason::Infeasible { .. }) {
            self.window = Window::default();
            return;
        }
        self.window.response_ms += measured_ms * reads;
        self.window.reads += reads;
        self.window.length = self.window.length + self.length;
        if self.window.length >= WINDOW {
            let off = self.window.response_ms / self.window.reads - target_ms;
            // One far off (a change of load) is no scatter.
            let most = square(SURPRISE) * self.variance;
            self.variance += NEWEST_WINDOW * (square(off).min(most) - self.variance);
            self.window = Window::default();
        }
    }

    fn adjust(&mut self, now: Instant, response_ms: f64, target_ms: f64) {
        let (measured, target) = (from_ms(response_ms), from_ms(target_ms));
        let error = response_ms - target_ms;
        // A mean of few samples scatters more.
        let scatter = self.scatter_ms();
        let band = SURPRISE * (scatter * libm::sqrt(NEWEST.max(1.0 / self.samples))).max(0.02 * self.goal_ms);
        let capacity = self.capacity_ms();
        self.due = if libm::fabs(error) > band { self.due + 1 } else { 0 };
        let large = self.due > 0 && (self.sums.intervals > 0.0 || self.due >= WAIT_AT_MOST);
        if error > -band {
            self.release = RELEASE;
        }
        if now >= self.tried_until {
            self.bites_not = false;
        }
        let stuck = error > band && self.demand_ms > 0.0 && self.demand_ms >= 0.95 * capacity;
        self.stuck = if stuck { self.stuck + 1 } else { self.stuck.saturating_sub(1) };
        if self.stuck >= TRY_AFTER && now >= self.tried_until {
            self.stuck = 0;
            self.begin_anew(0);
            self.trial = Some(Trial::default());
            self.held_for = 0;
            self.reason = Reason::TestingEffect { delay: from_ms(self.demand_ms) };
            return;
        }
        let move_ms = match (large, error > 0.0) {
            (true, true) => error / self.gain.low(),
            (true, false) => self.step_down_ms(error, target_ms),
            (false, _) => FINE * error.clamp(-band, band) / self.gain.k().max(self.gain.low()),
        };
        let before_ms = self.demand_ms;
        self.demand_ms = (before_ms + move_ms).clamp(0.0, capacity);
        let moved_ms = self.demand_ms - before_ms;
        if !large {
            self.held_ms = if self.held_for == 0 {
                self.demand_ms
            } else {
                self.held_ms + NEWEST_HELD * (self.demand_ms - self.held_ms)
            };
            self.held_for = self.held_for.saturating_add(1);
        }
        self.reason = match () {
            () if self.demand_ms > 0.0 && self.bites_not => Reason::DoesNotBite { delay: from_ms(self.demand_ms) },
            () if error > 0.0 && self.demand_ms >= capacity => Reason::Infeasible { measured, target },
            () if error > 0.0 => Reason::ReadsOverTarget { measured, target },
            () if self.demand_ms > 0.0 || moved_ms < 0.0 => Reason::ReadsUnderTarget { measured, target },
            () => Reason::UnderTarget { measured, target },
        };
        if large && libm::fabs(moved_ms) >= self.step_ms.max(0.05 * before_ms).max(1e-6) {
            // What is under way now meets the new delay after the response it waits for, then k times.
            let lag_ms = response_ms + self.gain.k() * libm::fabs(moved_ms);
            let skip = libm::ceil(lag_ms / self.interval.as_millis_f64()).clamp(1.0, 3.0);
            let before = self.sums.mean();
            self.begin_anew(skip as u32);
            self.before = before;
            self.held_for = 0;
            self.due = 0;
        }
    }

    /// By how much to shorten the delay when reads are much faster than need be, in ms; not above zero.
    ///
    /// The error says little then: without a queue there is nothing to see of how much too long the delay is. But what the
    /// offenders keep in circulation is known, and what the storage gave when it was saturated; by Little's law that gives
    /// the delay under which reads would just take as long as they may. If even the present delay is shorter, the storage
    /// gives more than it did, and how much only growing steps can tell.
    fn step_down_ms(&mut self, error: f64, target_ms: f64) -> f64 {
        let k = self.gain.k();
        let enough_ms = match (self.sums.mean(), self.saturated_load) {
            (Some(now), Some(most)) if most > 0.0 && self.gain.is_known() => {
                let circulation = now.load * now.response_ms + k * now.load_delay;
                Some(((circulation / most - target_ms) / k).max(0.0))
            }
            _ => None,
        };
        let by_error_ms = self.release * error / self.gain.high();
        match enough_ms {
            Some(enough_ms) if enough_ms < self.demand_ms => {
                by_error_ms.min(MODEL_TRUST * (enough_ms - self.demand_ms))
            }
            _ => {
                self.release *= RELEASE_GROWTH;
                by_error_ms.max(-0.5 * self.demand_ms - self.step_ms)
            }
        }
    }

    /// Brings shares and caps up to date; answers the largest mean delay they allow, in ms.
    fn capacity_ms(&mut self) -> f64 {
        let (step_ms, largest_ms, least_load, k) = (self.step_ms, self.largest_ms, self.least_load, self.gain.k());
        let response_ms = self.response_ms.unwrap_or(0.0);
        let total: f64 = self.clients.offenders().map(|client| client.bytes_per_s).sum();
        let count = self.clients.offenders().count().max(1) as f64;
        let part = |client: &Client| {
            // By Little's law the load with a delay d is circulation / (response + k·d).
            let allowed_ms =
                if least_load > 0.0 { (client.circulation / least_load - response_ms) / k } else { largest_ms };
            let cap_ms = allowed_ms.clamp(0.0, largest_ms);
            let cap_ms = if step_ms > 0.0 { whole(cap_ms / step_ms + 1e-9) * step_ms } else { cap_ms };
            let share = if total > 0.0 { client.bytes_per_s / total } else { 1.0 / count };
            Part { share, cap_ms, spared: client.standing == Standing::Important, delay_ms: 0.0 }
        };
        self.parts.clear();
        self.parts.extend(self.clients.offenders().map(part));
        split::capacity(&self.parts)
    }

    /// The mean of the delays in force if they are what rounding could have made of the wanted ones: shares change a little
    /// all the time, and delays should not change with them.
    fn still_good(&self) -> Option<f64> {
        let mut mean_ms = 0.0;
        for (part, client) in self.parts.iter().zip(self.clients.offenders()) {
            let off = libm::fabs(client.delay_ms - part.delay_ms);
            if client.delay_ms <= 0.0 || client.delay_ms > part.cap_ms || off >= self.step_ms {
                return None;
            }
            mean_ms += part.share * client.delay_ms;
        }
        (libm::fabs(mean_ms - self.demand_ms) <= KEEP_WITHIN * self.step_ms).then_some(mean_ms)
    }

    /// Turns the mean delay into one for each offender.
    fn publish(&mut self) {
        self.delays.clear();
        if self.demand_ms <= 0.0 || self.trial.as_ref().is_some_and(|trial| !trial.holds()) {
            for client in self.clients.all_mut() {
                client.delay_ms = 0.0;
            }
            self.applied_ms = 0.0;
            return;
        }
        if self.parts.is_empty() {
            self.capacity_ms();
        }
        split::split(&mut self.parts, self.demand_ms);
        self.applied_ms = match self.still_good() {
            Some(mean_ms) => {
                for (part, client) in self.parts.iter_mut().zip(self.clients.offenders()) {
                    part.delay_ms = client.delay_ms;
                }
                mean_ms
            }
            None => split::round(&mut self.parts, self.step_ms),
        };
        for client in self.clients.all_mut() {
            client.delay_ms = 0.0;
        }
        let (step_ms, largest_ms) = (self.step_ms, self.largest_ms);
        for (client, part) in self.clients.offenders_mut().zip(&self.parts) {
            client.delay_ms = part.delay_ms;
            let delay = from_ms(part.delay_ms);
            if delay == Duration::ZERO {
                continue;
            }
            let reason = match () {
                () if part.delay_ms >= largest_ms => ClientReason::LargestDelay,
                () if part.delay_ms + step_ms.max(1e-6) > part.cap_ms => ClientReason::LeastLoad,
                () => ClientReason::ShareOfLoad { share: part.share as f32 },
            };
            self.delays.push(ClientDelay { client: client.id, delay, reason });
        }
    }
}

fn square(x: f64) -> f64 {
    x * x
}
