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

use evidence::{Evidence, Verdict};
use meter::{Meter, Progress, Rate};

const LN_2: f64 = core::f64::consts::LN_2;
/// Budget at the start, in bytes.
const INITIAL_BYTES: f64 = 262_144.0;
/// First step downwards and finest step, as ln φ: half an octave and an eighth.
const FIRST_STEP: f64 = LN_2 / 2.0;
const FINEST_STEP: f64 = LN_2 / 8.0;
/// Blocks of the shortest measurement and of the longest upwards and downwards. Upwards many short ones are better than
/// few long ones: while one lasts, whoever is light waits longer.
const MIN_BLOCKS: u32 = 4;
const MAX_BLOCKS_UP: u32 = 8;
const MAX_BLOCKS_DOWN: u32 = 32;
/// Share of time for experiments: at first, at most and at least; while the outcome stays open; when it is known.
const FIRST_SHARE: f64 = 0.5;
const LEAST_FIRST_SHARE: f64 = 0.1;
const UP: Shares = Shares { open: 0.01, known: 0.004, max_blocks: MAX_BLOCKS_UP, patience: PATIENCE_UP };
const DOWN: Shares = Shares { open: 0.08, known: 0.05, max_blocks: MAX_BLOCKS_DOWN, patience: PATIENCE_DOWN };
/// Experiments without an outcome until the share of time falls, and what each further one leaves of it.
const PATIENCE_UP: u32 = 8;
const PATIENCE_DOWN: u32 = 4;
const IMPATIENCE: f64 = 0.9;
/// Change of throughput (of its logarithm) that calls what was learned in question, and the standard errors that make
/// it certain.
const CHANGE: f64 = 0.03;
const CHANGE_ERRORS: f64 = 3.5;
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

/// Share of time for one kind of experiment.
#[derive(Clone, Copy, Debug)]
struct Shares {
    open: f64,
    known: f64,
    /// Blocks of the longest.
    max_blocks: u32,
    /// How many may stay open before the share falls.
    patience: u32,
}

/// One kind of experiment: what it has shown, and when the next one is due.
#[derive(Clone, Copy, Debug)]
struct Trial {
    evidence: Evidence,
    due_at: Instant,
    /// Experiments in a row that decided nothing.
    undecided: u32,
    /// Blocks it takes: the less certain the outcome, the more.
    blocks: u32,
    shares: Shares,
}

impl Trial {
    fn new(shares: Shares) -> Self {
        Self { evidence: Evidence::default(), due_at: Instant::ZERO, undecided: 0, blocks: MIN_BLOCKS, shares }
    }

    fn begin_anew(&mut self) {
        *self = Self::new(self.shares);
    }

    /// The outcome is known for now; the experiment took `took`.
    fn settle(&mut self, now: Instant, took: Duration) {
        self.undecided = 0;
        self.blocks = MIN_BLOCKS;
        self.pause(now, took, self.shares.known);
    }

    /// The outcome is open: often at first, then less each time.
    fn go_on(&mut self, now: Instant, took: Duration, share: f64) {
        self.undecided = self.undecided.saturating_add(1);
        self.blocks = (self.blocks * 2).min(self.shares.max_blocks);
        let share = match self.undecided.saturating_sub(self.shares.patience) {
            0 => share.clamp(LEAST_FIRST_SHARE, FIRST_SHARE),
            waited => (self.shares.open * libm::pow(IMPATIENCE, f64::from(waited))).max(self.shares.known),
        };
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
    /// The last measurement disagreed with that.
    doubted: bool,
    /// ln T(2B)/T(B).
    up: Trial,
    /// The same counted in requests: where sizes differ widely, it scatters far less.
    up_by_requests: Evidence,
    /// The last trial went up: next time it is the other's turn.
    went_up: bool,
    /// ln T(B)/T(B/φ).
    down: Trial,
    /// ln φ.
    step: f64,
    /// A smaller budget is known to be too small: steps only get finer.
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
            doubted: false,
            up: Trial::new(UP),
            up_by_requests: Evidence::default(),
            went_up: false,
            down: Trial::new(DOWN),
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
            return self.withdraw(now, Reason::AppLimited { held_back, completions });
        }
        let wanted = match self.phase {
            Phase::Base => self.up.blocks.max(self.down.blocks),
            Phase::Up => self.up.blocks,
            Phase::Down => self.down.blocks,
        };
        if self.meter.blocks < wanted {
            return false;
        }
        let Some(rate) = self.meter.rate() else { return false };
        match (self.phase, self.base) {
            (Phase::Up, Some(base)) => self.up_measured(now, base, rate),
            (Phase::Down, Some(base)) => self.down_measured(now, base, rate),
            (Phase::Base, _) | (_, None) => return self.base_measured(now, rate),
        }
        true
    }

    fn base_measured(&mut self, now: Instant, rate: Rate) -> bool {
        if let Some(usual) = self.usual {
            let change = libm::log(rate.rate / usual.rate);
            let error = libm::sqrt(rate.variance + usual.variance);
            if libm::fabs(change) > CHANGE.max(CHANGE_ERRORS * error) {
                if !core::mem::replace(&mut self.doubted, true) {
                    // Once may be chance; the next measurement says.
                    self.meter.carry_on();
                    return false;
                }
                self.search_again(rate);
                self.enter(Phase::Up, now, Reason::ThroughputChanged { ratio: libm::exp(change) });
                return true;
            }
            let recent = self.recent.map_or(rate, |recent| recent.smoothed_with(rate));
            self.recent = Some(recent);
            let drift = libm::log(recent.rate / usual.rate);
            let error = libm::sqrt(recent.variance + usual.variance);
            if libm::fabs(drift) > CHANGE.max(DRIFT_ERRORS * error) {
                self.search_again(rate);
                self.enter(Phase::Up, now, Reason::ThroughputChanged { ratio: libm::exp(drift) });
                return true;
            }
        }
        self.doubted = false;
        self.usual = Some(self.usual.map_or(rate, |usual| usual.averaged_with(rate)));
        self.base = Some(rate);
        let reason = self.decision.reason;
        let up_due = now >= self.up.due_at;
        let down_due = now >= self.down.due_at && self.budget > self.meter.mean_cost().max(MIN_BUDGET as f64);
        if up_due && !(down_due && self.went_up) {
            self.enter(Phase::Up, now, reason);
        } else if down_due {
            self.enter(Phase::Down, now, reason);
        } else {
            self.meter.carry_on();
            return false;
        }
        true
    }

    fn up_measured(&mut self, now: Instant, base: Rate, rate: Rate) {
        let took = now.since(self.phase_began);
        self.up.evidence.add(base, rate);
        self.up_by_requests.add_requests(base, rate);
        let (mut gain, mut verdict) = (self.up.evidence.mean(), self.up.evidence.is_above(self.tolerance));
        let by_requests = self.up_by_requests.is_above(self.tolerance);
        if verdict == Verdict::Open && by_requests == Verdict::Move && self.up.evidence.allows(self.tolerance) {
            (gain, verdict) = (self.up_by_requests.mean(), by_requests);
        }
        match verdict {
            Verdict::Move if self.larger() <= MAX_BUDGET as f64 => {
                self.budget = self.larger();
                self.moved_to(rate);
                self.up.begin_anew();
                self.up_by_requests = Evidence::default();
                self.bracketed = true;
                self.step = FIRST_STEP;
                self.enter(Phase::Up, now, Reason::DoublingPays { gain });
            }
            Verdict::Move | Verdict::Stay => {
                self.up.settle(now, took);
                self.enter(Phase::Base, now, Reason::DoublingFutile { gain });
            }
            Verdict::Open => {
                let hope = match by_requests {
                    Verdict::Stay => 0.0,
                    Verdict::Move | Verdict::Open => self.up.evidence.at_most() - self.tolerance,
                };
                self.up.go_on(now, took, hope * SHARE_PER_GAIN);
                self.enter(Phase::Base, now, self.decision.reason);
            }
        }
    }

    /// The budget of a trial upwards. Below the cost of two requests all budgets are alike: one at a time.
    fn larger(&self) -> f64 {
        (self.budget * 2.0).max(self.meter.large_cost() * ROOM)
    }

    fn down_measured(&mut self, now: Instant, base: Rate, rate: Rate) {
        let took = now.since(self.phase_began);
        self.down.evidence.add(rate, base);
        let loss = self.down.evidence.mean();
        // What doubling would bring is lost already.
        let allowed = self.tolerance - self.up.evidence.at_least().max(0.0);
        match self.down.evidence.is_below(allowed) {
            Verdict::Move => {
                self.budget *= libm::exp(-self.step);
                self.up.evidence.shift(&self.down.evidence);
                self.up_by_requests = Evidence::default();
                self.moved_to(rate);
                self.step =
                    if self.bracketed { (self.step / 2.0).max(FINEST_STEP) } else { (self.step * 2.0).min(LN_2) };
                self.enter(Phase::Down, now, Reason::ReductionFree { loss });
            }
            Verdict::Stay => {
                self.bracketed = true;
                if self.step > FINEST_STEP {
                    self.step = (self.step / 2.0).max(FINEST_STEP);
                    self.down.begin_anew();
                } else {
                    self.down.settle(now, took);
                }
                self.enter(Phase::Base, now, Reason::ReductionCosts { loss });
            }
            Verdict::Open => {
                self.down.go_on(now, took, FIRST_SHARE);
                self.enter(Phase::Base, now, self.decision.reason);
            }
        }
    }

    /// The base has moved to where `rate` was measured.
    fn moved_to(&mut self, rate: Rate) {
        (self.base, self.usual, self.recent) = (Some(rate), Some(rate), Some(rate));
        self.down.begin_anew();
        (self.up.undecided, self.up.blocks) = (0, MIN_BLOCKS);
    }

    /// What was learned may not hold any longer; the budget is the best guess.
    fn search_again(&mut self, rate: Rate) {
        self.moved_to(rate);
        self.up.begin_anew();
        self.up_by_requests = Evidence::default();
        self.step = FIRST_STEP;
        self.bracketed = false;
        self.doubted = false;
    }

    fn enter(&mut self, phase: Phase, now: Instant, reason: Reason) {
        self.phase = phase;
        self.phase_began = now;
        self.went_up = phase == Phase::Up || (phase == Phase::Base && self.went_up);
        self.budget = self.budget.clamp(MIN_BUDGET as f64, MAX_BUDGET as f64);
        let in_force = match phase {
            Phase::Base => self.budget,
            Phase::Up => self.larger(),
            Phase::Down => self.budget * libm::exp(-self.step),
        };
        let budget_bytes = (in_force as u64).clamp(MIN_BUDGET, MAX_BUDGET);
        self.decision = Decision { at: now, budget_bytes, reason, ..self.decision };
        self.meter.restart(now);
    }
}
