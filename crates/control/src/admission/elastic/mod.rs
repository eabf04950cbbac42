//! Elastic: the smallest budget that doubling would hardly improve.
//!
//! A budget B is big enough when the throughput T(2B) exceeds T(B) by no more than the tolerated share. Both sides are
//! measured, one right after the other, with their errors; an experiment is repeated until its outcome is certain,
//! however noisy the device, and nothing moves before. See `docs/elastic.md`.
//!
//! ```text
//!  base B ──▶ up 2B: worth it? ──yes──▶ B ← 2B
//!    ▲            │ no
//!    │            ▼
//!    └──── down B/φ: enough? ──yes──▶ B ← B/φ       φ = √2, 2, 2, … down to the first failure, then ever finer
//! ```
//!
//! Everything is decided at completions, so that it does not matter when somebody ticks.

use super::{Completion, Decision, InvalidConfig, MAX_BUDGET, MIN_BUDGET, Reason};
use crate::time::{Duration, Instant};

mod evidence;
mod meter;
mod work;

use evidence::{Evidence, Verdict};
use meter::{Meter, Progress, Rate};

const LN_2: f64 = core::f64::consts::LN_2;
/// Budget at the start, in bytes.
const INITIAL_BYTES: f64 = 262_144.0;
/// First step downwards, the first one after a step upwards, and the finest, as ln φ: three octaves, half of one and an
/// eighth.
const FIRST_STEP: f64 = LN_2 * 3.0;
const STEP_BACK: f64 = LN_2 / 2.0;
const FINEST_STEP: f64 = LN_2 / 8.0;
/// Above it a reduction is taken when it seems free, though that is not quite certain.
const HASTY_STEP: f64 = LN_2 / 1.5;
/// Blocks of an experiment upwards: many short ones are better than few long ones, as whoever is light waits longer while
/// one lasts.
const UP_BLOCKS: u32 = 2;
/// Blocks of the shortest experiment downwards and of the longest.
const DOWN_BLOCKS: [u32; 2] = [4, 32];
/// Share of time for experiments: at most, and at least while the outcome is open for the first few times.
const MOST_SHARE: f64 = 0.5;
const LEAST_FIRST_SHARE: f64 = 0.1;
/// Upwards: while the outcome stays open, and when it is known.
const UP_OPEN: f64 = 0.0075;
const UP_KNOWN: f64 = 0.003;
/// Downwards when the outcome is known, and, while it is open, the throughput that may be lost on average.
const DOWN_KNOWN: f64 = 0.05;
const PRICE: f64 = 0.03;
/// Bytes that scatter by so many times the error of work do not count.
const MUCH_MORE: f64 = 1.5;
/// Experiments upwards without an outcome until the share of time falls, and what each further one leaves of it.
const PATIENCE: u32 = 4;
const IMPATIENCE: f64 = 0.9;
/// By how many times the step that would lose what is tolerable may exceed that share of one that loses more.
const EVENLY: f64 = 2.0;
/// What a change makes of the certainty about larger budgets: a standard error of the logarithm of the ratio.
const DOUBT: f64 = 0.03;
/// A gain so many times the tolerated one is worth the whole of a larger budget.
const MUCH_GAIN: f64 = 4.0;
/// A reduction that loses so much (of the logarithm) in its first blocks, beyond 3 errors, has failed.
const HOPELESS: f64 = 0.3;
const HOPELESS_ERRORS: f64 = 3.0;
/// A smaller budget that gives so much more (of the logarithm), beyond so many errors, is not to be believed at once.
const SURPRISE: f64 = 0.05;
const SURPRISE_ERRORS: f64 = 3.0;
/// Change of throughput (of its logarithm) that calls what was learned in question, and the standard errors that make
/// it certain.
const CHANGE: f64 = 0.03;
const CHANGE_ERRORS: f64 = 3.5;
/// Change of the share of writes that does so.
const TURN: f64 = 0.25;
/// Change of the size of the requests that make the load (of its logarithm) that does so.
const RESIZED: f64 = LN_2;
/// The same where that size varies from one measurement to the next, as in a mixture: mean deviations of its logarithm.
const RESIZED_DEVIATIONS: f64 = 6.0;
/// Mean and mean deviation of that logarithm: weight of a new measurement; and the deviation at first.
const SIZE_WEIGHT: f64 = 1.0 / 64.0;
const DEVIATION_WEIGHT: f64 = 1.0 / 16.0;
const FIRST_DEVIATION: f64 = 0.3;
/// A measurement of the base that differs by so much (of the logarithm), beyond so many errors, need not be complete.
const GROSS: f64 = 0.25;
const GROSS_ERRORS: f64 = 3.0;
/// The same for what the last measurements say together.
const DRIFT_ERRORS: f64 = 5.0;
/// A larger budget has room for so many large requests: two, and some small ones beside them.
const ROOM: f64 = 2.5;
/// Share of time for trials of twice the budget, for each unit of ln(throughput) that it might gain.
const SHARE_PER_GAIN: f64 = 4.0;
/// Bounds of the tolerance.
const MIN_TOLERANCE: f64 = 0.001;
const MAX_TOLERANCE: f64 = 0.5;

/// Settings of [`Config::Elastic`](super::Config::Elastic).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ElasticConfig {
    /// Gain of throughput by doubling the budget that is not worth the latency, as a fraction (0.001 to 0.5). About the
    /// throughput that is given up.
    pub tolerance: f64,
}

impl Default for ElasticConfig {
    fn default() -> Self {
        Self { tolerance: 0.025 }
    }
}

impl ElasticConfig {
    /// Checks that the settings make sense.
    ///
    /// # Errors
    /// The setting that does not, and what would be right.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        if (MIN_TOLERANCE..=MAX_TOLERANCE).contains(&self.tolerance) {
            Ok(())
        } else {
            Err(InvalidConfig { setting: "tolerance", must_be: "from 0.001 to 0.5" })
        }
    }

    /// The tolerance, moved into range.
    fn tolerance_in_range(self) -> f64 {
        if self.tolerance.is_nan() {
            Self::default().tolerance
        } else {
            self.tolerance.clamp(MIN_TOLERANCE, MAX_TOLERANCE)
        }
    }
}

/// Which budget is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The one believed right.
    Base,
    /// Twice as much.
    Up,
    /// Less by a step.
    Down,
}

/// One kind of experiment: what it has shown, and when the next one is due.
#[derive(Clone, Copy, Debug, Default)]
struct Trial {
    /// ln of a ratio of throughputs, in bytes and in work.
    bytes: Evidence,
    work: Evidence,
    due_at: Instant,
    /// Experiments in a row that decided nothing.
    undecided: u32,
    /// Doublings of its length, downwards: the less certain the outcome, the longer.
    longer: u32,
}

impl Trial {
    fn add(&mut self, lower: Rate, upper: Rate) {
        self.bytes.add(libm::log(upper.rate / lower.rate), lower.variance + upper.variance);
        self.work.add(libm::log(upper.work / lower.work), lower.work_variance + upper.work_variance);
    }

    /// Blocks it takes downwards.
    fn blocks(&self) -> u32 {
        (DOWN_BLOCKS[0] << self.longer.min(8)).min(DOWN_BLOCKS[1])
    }

    /// What counts, and what may contradict it. Bytes, unless they scatter far more than work.
    fn by_precision(&self) -> (&Evidence, &Evidence) {
        if self.bytes.error() <= self.work.error() * MUCH_MORE {
            (&self.bytes, &self.work)
        } else {
            (&self.work, &self.bytes)
        }
    }

    /// Whether the ratio is above the bound (`sign` 1) or below it (-1); `hasty`, though that is not quite certain.
    fn verdict(&self, bound: f64, sign: f64, hasty: bool) -> (Verdict, f64) {
        let (counts, other) = self.by_precision();
        let verdict = counts.verdict(bound, sign, hasty);
        let contradicted = verdict == Verdict::Move && !other.allows(bound, sign);
        (if contradicted { Verdict::Stay } else { verdict }, counts.mean())
    }

    fn mean(&self) -> f64 {
        self.by_precision().0.mean()
    }

    /// Give or take an error.
    fn at_most(&self) -> f64 {
        let counts = self.by_precision().0;
        counts.mean() + counts.error()
    }

    fn at_least(&self) -> f64 {
        let counts = self.by_precision().0;
        if counts.is_empty() { 0.0 } else { counts.mean() - counts.error() }
    }

    /// The outcome is known for now; the experiment took `took`.
    fn settle(&mut self, now: Instant, took: Duration, share: f64) {
        (self.undecided, self.longer) = (0, 0);
        self.pause(now, took, share);
    }

    /// The outcome is open.
    fn go_on(&mut self, now: Instant, took: Duration, share: f64) {
        self.undecided = self.undecided.saturating_add(1);
        self.longer += 1;
        self.pause(now, took, share);
    }

    fn pause(&mut self, now: Instant, took: Duration, share: f64) {
        self.due_at = now + Duration::from_nanos((took.as_nanos() as f64 * (1.0 / share - 1.0)) as u64);
    }
}

/// The controller.
pub(super) struct Elastic {
    tolerance: f64,
    /// The base: the budget believed right, in bytes.
    budget: f64,
    phase: Phase,
    phase_began: Instant,
    meter: Meter,
    /// The latest measurement of the base.
    base: Option<Rate>,
    /// What the base gives in the long run.
    usual: Option<Rate>,
    /// What it has given lately.
    recent: Option<Rate>,
    /// Size of the requests that make the load, for as long as they did not change: mean of its logarithm, and mean
    /// deviation from it.
    size: Option<(f64, f64)>,
    /// The last measurement disagreed with that.
    doubted: bool,
    /// The last experiment made no sense.
    surprised: bool,
    /// T(2B)/T(B).
    up: Trial,
    /// The last trial went up: next time it is the other's turn.
    went_up: bool,
    /// T(B)/T(B/φ).
    down: Trial,
    /// ln φ.
    step: f64,
    /// The last reduction failed: the next ones halve the distance to it.
    bracketed: bool,
    decision: Decision,
}

impl Elastic {
    pub(super) fn new(config: ElasticConfig, now: Instant) -> Self {
        let decision = Decision {
            at: now,
            budget_bytes: INITIAL_BYTES as u64,
            target: None,
            reason: Reason::Initial,
            target_reason: Reason::Initial,
        };
        Self {
            tolerance: config.tolerance_in_range(),
            budget: INITIAL_BYTES,
            phase: Phase::Base,
            phase_began: now,
            meter: Meter::new(now),
            base: None,
            usual: None,
            recent: None,
            size: None,
            doubted: false,
            surprised: false,
            up: Trial::default(),
            went_up: true,
            down: Trial::default(),
            step: FIRST_STEP,
            bracketed: false,
            decision,
        }
    }

    /// Another tolerance; what was measured stays true.
    pub(super) fn reconfigure(&mut self, config: ElasticConfig) {
        self.tolerance = config.tolerance_in_range();
    }

    pub(super) fn decision(&self) -> Decision {
        self.decision
    }

    /// One completion; whether anything was decided.
    #[inline]
    pub(super) fn observe(&mut self, done: &Completion) -> bool {
        match self.meter.observe(done) {
            Progress::None => false,
            Progress::Block => self.block(done.now),
            Progress::Silence => self.silence(done),
        }
    }

    /// Nothing had completed for long: whatever was under way is void, and what was learned before still holds.
    #[cold]
    fn silence(&mut self, done: &Completion) -> bool {
        let reason = if done.holding_back { Reason::Stalled { inside_bytes: done.inside_bytes } } else { Reason::Idle };
        self.withdraw(done.now, reason)
    }

    /// Back to the base for `reason`; whether that is news.
    fn withdraw(&mut self, now: Instant, reason: Reason) -> bool {
        let known = core::mem::discriminant(&reason) == core::mem::discriminant(&self.decision.reason);
        let news = self.phase != Phase::Base || !known;
        // A budget that is too large hurts now, one that is too small perhaps later: downwards comes first.
        self.went_up = true;
        if news {
            self.enter(Phase::Base, now, reason);
        } else {
            self.meter.restart(now);
        }
        news
    }

    #[cold]
    fn block(&mut self, now: Instant) -> bool {
        if let (Some((held_back, completions)), true) = (self.meter.slack, self.phase != Phase::Up) {
            // The budget is not the bottleneck: nothing to learn. (Above the base it need not be: that is the answer.)
            // When it is again, it may be by another load.
            (self.step, self.bracketed) = (self.step.max(STEP_BACK), false);
            self.down.longer = 0;
            self.meter.shorten_blocks();
            return self.withdraw(now, Reason::AppLimited { held_back, completions });
        }
        let phase = if self.phase == Phase::Base { self.next(now) } else { self.phase };
        let wanted = match phase {
            Phase::Base => DOWN_BLOCKS[0],
            // Time at the base is free.
            Phase::Up if self.phase == Phase::Base => UP_BLOCKS * 2,
            Phase::Up => UP_BLOCKS,
            Phase::Down => self.down.blocks(),
        };
        if self.meter.blocks < wanted {
            match (self.phase, self.base) {
                (Phase::Down, Some(base)) => return self.give_up(now, base),
                (Phase::Base, _) if self.grossly_changed() => {}
                _ => return false,
            }
        }
        if self.phase == Phase::Base {
            self.meter.learn_weights();
        }
        let Some(rate) = self.meter.rate() else { return false };
        match (self.phase, self.base) {
            (Phase::Up, Some(base)) => self.up_measured(now, base, rate),
            (Phase::Down, Some(base)) => self.down_measured(now, base, rate),
            (Phase::Base, _) | (_, None) => return self.base_measured(now, rate),
        }
        true
    }

    /// Ends a reduction that costs far too much, whatever the rest of it would show.
    fn give_up(&mut self, now: Instant, base: Rate) -> bool {
        let Some((work, error)) = self.meter.so_far() else { return false };
        let loss = libm::log(base.work / work);
        let hopeless = loss > HOPELESS + HOPELESS_ERRORS * libm::sqrt(base.work_variance + error * error);
        if hopeless {
            self.reduction_costs(now, now.since(self.phase_began), loss);
        }
        hopeless
    }

    /// Whether the base is so far from what it usually gives that the rest of the measurement would not matter.
    fn grossly_changed(&self) -> bool {
        let (Some(usual), Some((rate, error))) = (self.usual, self.meter.bytes_so_far()) else { return false };
        let change = libm::fabs(libm::log(rate / usual.rate));
        let error = libm::sqrt(usual.variance + error * error);
        self.meter.blocks >= 2 && (change > GROSS + GROSS_ERRORS * error || self.resized())
    }

    /// Whether requests of quite another size make the load now.
    fn resized(&self) -> bool {
        self.size.is_some_and(|(mean, deviation)| {
            libm::fabs(libm::log(self.meter.size()) - mean) > RESIZED.max(RESIZED_DEVIATIONS * deviation)
        })
    }

    fn learn_size(&mut self, size: f64) {
        let (mean, deviation) = self.size.unwrap_or((size, FIRST_DEVIATION));
        let off = size - mean;
        self.size = Some((mean + off * SIZE_WEIGHT, deviation + (libm::fabs(off) - deviation) * DEVIATION_WEIGHT));
    }

    /// What larger budgets brought to requests of another size says nothing. A trial waits until the new size is known.
    fn forget_sizes(&mut self) {
        (self.up, self.went_up) = (Trial::default(), false);
        (self.base, self.usual, self.recent, self.size) = (None, None, None, None);
        self.meter.shorten_blocks();
        self.meter.forget_sizes();
    }

    fn base_measured(&mut self, now: Instant, rate: Rate) -> bool {
        let size = self.meter.size();
        if let Some(usual) = self.usual {
            let recent = self.recent.map_or(rate, |recent| recent.smoothed_with(rate));
            let [change, drift] = [(rate, CHANGE_ERRORS), (recent, DRIFT_ERRORS)].map(|(now, errors)| {
                let change = libm::log(now.rate / usual.rate);
                let error = libm::sqrt(now.variance + usual.variance);
                (libm::fabs(change) > CHANGE.max(errors * error))
                    .then_some(Reason::ThroughputChanged { ratio: libm::exp(change) })
            });
            let turned = libm::fabs(rate.writes - usual.writes) > TURN;
            let turned = turned.then_some(Reason::LoadChanged { writes: rate.writes });
            let resized = self.resized().then_some(Reason::SizeChanged { bytes: size as u64 });
            let once = resized.or(turned).or(change);
            if once.is_some() && !core::mem::replace(&mut self.doubted, true) {
                // Once may be chance; the next measurement says.
                self.meter.carry_on();
                return false;
            }
            if let Some(reason) = once.or(drift) {
                self.search_again(rate);
                if resized.is_some() {
                    self.forget_sizes();
                    self.enter(Phase::Base, now, reason);
                } else {
                    self.enter(Phase::Up, now, reason);
                }
                return true;
            }
            self.recent = Some(recent);
        }
        self.doubted = false;
        self.learn_size(libm::log(size.max(1.0)));
        self.usual = Some(self.usual.map_or(rate, |usual| usual.averaged_with(rate)));
        self.base = Some(rate);
        let next = self.next(now);
        if next == Phase::Base {
            self.meter.carry_on();
        } else {
            self.enter(next, now, self.decision.reason);
        }
        next != Phase::Base
    }

    /// The experiment that is due; they take turns.
    fn next(&self, now: Instant) -> Phase {
        let up = now >= self.up.due_at;
        let down = now >= self.down.due_at && self.budget > self.floor();
        match (up, down) {
            (true, true) if self.went_up => Phase::Down,
            (true, _) => Phase::Up,
            (false, true) => Phase::Down,
            (false, false) => Phase::Base,
        }
    }

    fn up_measured(&mut self, now: Instant, base: Rate, rate: Rate) {
        let took = now.since(self.phase_began);
        if self.resized() || self.surprising(rate, base) {
            return self.enter(Phase::Base, now, self.decision.reason);
        }
        self.up.add(base, rate);
        match self.up.verdict(self.tolerance, 1.0, false) {
            (Verdict::Move, gain) if self.larger() <= MAX_BUDGET as f64 => {
                (self.step, self.bracketed) = (self.step_back(rate), true);
                self.up = Trial::default();
                if gain > self.tolerance * MUCH_GAIN {
                    self.budget = self.larger();
                    self.moved_to(rate);
                    self.enter(Phase::Up, now, Reason::DoublingPays { gain });
                } else {
                    // Half of the way, in octaves, is likely to be enough.
                    self.budget = libm::sqrt(self.budget * self.larger());
                    self.down = Trial::default();
                    (self.base, self.usual, self.recent) = (None, None, None);
                    self.enter(Phase::Base, now, Reason::DoublingPays { gain });
                }
            }
            (Verdict::Move | Verdict::Stay, gain) => {
                self.up.settle(now, took, UP_KNOWN * self.moderation());
                self.enter(Phase::Base, now, Reason::DoublingFutile { gain });
            }
            (Verdict::Open, _) => {
                let hope = ((self.up.at_most() - self.tolerance) * SHARE_PER_GAIN).clamp(LEAST_FIRST_SHARE, MOST_SHARE);
                let share = match self.up.undecided.saturating_sub(PATIENCE) {
                    0 => hope,
                    _ if self.up.at_least() > self.tolerance => hope,
                    waited => (UP_OPEN * libm::pow(IMPATIENCE, f64::from(waited))).max(UP_KNOWN) * self.moderation(),
                };
                self.up.go_on(now, took, share);
                self.enter(Phase::Base, now, self.decision.reason);
            }
        }
    }

    /// Whether a larger budget seems to give far less. It hardly ever does: more likely the device has changed between
    /// the two measurements, and they say nothing about the budgets. A second time in a row it is believed.
    fn surprising(&mut self, larger: Rate, smaller: Rate) -> bool {
        let change = libm::log(smaller.rate / larger.rate);
        let error = libm::sqrt(smaller.variance + larger.variance);
        self.surprised = !self.surprised && change > SURPRISE + SURPRISE_ERRORS * error;
        self.surprised
    }

    /// The budget of a trial upwards. Below the cost of two requests all budgets are alike: one at a time.
    fn larger(&self) -> f64 {
        (self.budget * 2.0).max(self.meter.large_cost() * ROOM)
    }

    /// The higher an excursion, the rarer: what of the share of time is left when it goes beyond the double, so that it
    /// adds no more to the variance of the budget.
    fn moderation(&self) -> f64 {
        let excess = self.larger() / self.budget - 1.0;
        1.0 / (excess * excess)
    }

    /// The budget of a trial downwards.
    fn smaller(&self) -> f64 {
        (self.budget * libm::exp(-self.step)).max(self.floor())
    }

    /// Below the cost of a small request there is nothing to gain.
    fn floor(&self) -> f64 {
        self.meter.small_cost().max(MIN_BUDGET as f64)
    }

    fn down_measured(&mut self, now: Instant, base: Rate, rate: Rate) {
        let took = now.since(self.phase_began);
        if self.resized() || self.surprising(base, rate) {
            return self.enter(Phase::Base, now, self.decision.reason);
        }
        self.down.add(rate, base);
        // What doubling would bring is lost already.
        let allowed = self.tolerance - self.up.at_least().max(0.0);
        match self.down.verdict(allowed, -1.0, self.step > HASTY_STEP) {
            (Verdict::Move, loss) => {
                self.budget = self.smaller();
                self.up.bytes.shift(&self.down.bytes);
                self.up.work.shift(&self.down.work);
                self.moved_to(rate);
                self.step = if core::mem::replace(&mut self.bracketed, false) {
                    (self.step / 2.0).max(FINEST_STEP)
                } else {
                    (self.step * 2.0).min(FIRST_STEP)
                };
                self.enter(Phase::Down, now, Reason::ReductionFree { loss });
            }
            (Verdict::Stay, loss) => self.reduction_costs(now, took, loss),
            (Verdict::Open, _) => {
                self.down.go_on(now, took, (PRICE / self.down.mean().max(PRICE)).clamp(DOWN_KNOWN, MOST_SHARE));
                self.enter(Phase::Base, now, self.decision.reason);
            }
        }
    }

    fn reduction_costs(&mut self, now: Instant, took: Duration, loss: f64) {
        self.bracketed = true;
        if self.step > FINEST_STEP {
            // Where the loss would be tolerable if it grew evenly; it grows slowly at first.
            let step = libm::log(self.budget / self.smaller());
            self.step = (step * (EVENLY * self.tolerance / loss).min(0.5)).max(FINEST_STEP);
            self.down = Trial::default();
        } else {
            self.down.settle(now, took, DOWN_KNOWN);
        }
        self.enter(Phase::Base, now, Reason::ReductionCosts { loss });
    }

    /// The base has moved to where `rate` was measured.
    fn moved_to(&mut self, rate: Rate) {
        (self.base, self.usual, self.recent) = (Some(rate), Some(rate), Some(rate));
        self.down = Trial::default();
        if self.step >= STEP_BACK {
            self.up.undecided = 0;
        }
    }

    /// What was learned may not hold any longer; the budget is the best guess.
    fn search_again(&mut self, rate: Rate) {
        self.moved_to(rate);
        self.up.due_at = Instant::ZERO;
        self.up.bytes.doubt(DOUBT);
        self.up.work.doubt(DOUBT);
        (self.step, self.bracketed) = (self.step_back(rate), false);
        self.doubted = false;
    }

    /// The first step downwards when the budget may be right. Where a comparison takes long, it had better be about
    /// something.
    fn step_back(&self, rate: Rate) -> f64 {
        let noisy = rate.variance.min(rate.work_variance) > self.tolerance * self.tolerance;
        if noisy { FIRST_STEP } else { STEP_BACK }
    }

    fn enter(&mut self, phase: Phase, now: Instant, reason: Reason) {
        self.phase = phase;
        self.phase_began = now;
        self.went_up = phase == Phase::Up || (phase == Phase::Base && self.went_up);
        self.budget = self.budget.clamp(MIN_BUDGET as f64, MAX_BUDGET as f64);
        let in_force = match phase {
            Phase::Base => self.budget,
            Phase::Up => self.larger(),
            Phase::Down => self.smaller(),
        };
        let budget_bytes = (in_force as u64).clamp(MIN_BUDGET, MAX_BUDGET);
        self.decision = Decision { at: now, budget_bytes, reason, ..self.decision };
        self.meter.restart(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long after a reduction that showed this ratio, and left the outcome open, the next one is due; in units of what
    /// it took.
    fn pause_after(ratio: f64) -> f64 {
        // So much scatter that nothing is certain.
        let rate = |rate| Rate { rate, variance: 100.0, work: rate, work_variance: 100.0, writes: 0.0 };
        let took = Duration::from_millis(100);
        let mut elastic = Elastic::new(ElasticConfig::default(), Instant::ZERO);
        elastic.phase = Phase::Down;
        elastic.down_measured(Instant::ZERO + took, rate(ratio), rate(1.0));
        assert_eq!((elastic.phase, elastic.down.undecided), (Phase::Base, 1));
        elastic.down.due_at.since(Instant::ZERO + took).as_secs_f64() / took.as_secs_f64()
    }

    #[test]
    fn reductions_take_half_of_the_time_at_most_and_a_twentieth_at_least() {
        // A share s of the time is a pause of 1/s - 1.
        for (ratio, pause) in [(1.0, 1.0), (1.02, 1.0), (libm::exp(0.1), 1.0 / 0.3 - 1.0), (20.0, 19.0)] {
            assert!((pause_after(ratio) - pause).abs() < 1e-6, "{ratio}: {} instead of {pause}", pause_after(ratio));
        }
    }
}
