//! Elastic: the smallest budget that doubling would hardly improve.
//!
//! A budget B is big enough when the throughput T(2B) exceeds T(B) by no more than the tolerated share (2 %). Both
//! sides are measured, one right after the other, with their standard errors: an experiment goes on until its outcome
//! is certain, however noisy the device, and nothing moves before. See docs/elastic.md.
//!
//! ```text
//!  base B ──▶ up 2B: worth it? ──yes──▶ B ← 2B
//!    ▲            │ no
//!    │            ▼
//!    └──── down B/φ: enough? ──yes──▶ B ← B/φ       φ: 2, √2, ⁴√2, ⁸√2
//! ```

use super::{Completion, Decision, MAX_BUDGET, MIN_BUDGET, Reason};
use crate::time::{Duration, Instant};

mod evidence;
mod meter;

use evidence::{Evidence, Verdict};
use meter::{Meter, Progress, Rate};

const LN_2: f64 = core::f64::consts::LN_2;
/// Budget at the start, in bytes.
const INITIAL_BYTES: f64 = 262_144.0;
/// Finest step of the budget: an eighth of an octave.
const FINEST: f64 = LN_2 / 8.0;
/// Blocks of the shortest and of the longest measurement.
const MIN_BLOCKS: u32 = 4;
const MAX_BLOCKS: u32 = 16;
/// Share of time that experiments above and below the budget take once it is found.
const UP_SHARE: f64 = 0.004;
const DOWN_SHARE: f64 = 0.05;
/// Share of time above while it is open whether doubling pays.
const OPEN_UP_SHARE: f64 = 0.05;
/// Share of time below while it is open whether a smaller budget is enough.
const OPEN_DOWN_SHARE: f64 = 0.15;
/// Experiments without an outcome until the search has to wait for it.
const PATIENCE: u32 = 3;
/// What each further one leaves of its share of time.
const IMPATIENCE: f64 = 0.9;
/// Change of throughput that calls what was learned in question.
const CHANGE: f64 = 0.05;
/// Standard errors that make it certain.
const CHANGE_ERRORS: f64 = 5.0;

/// Settings of [`Config::Elastic`](super::Config::Elastic).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ElasticConfig {
    /// Gain of throughput by doubling the budget that is not worth the latency, as a fraction (0.001 to 0.5).
    pub tolerance: f64,
}

impl Default for ElasticConfig {
    fn default() -> Self {
        Self { tolerance: 0.025 }
    }
}

impl ElasticConfig {
    fn in_range(self) -> Self {
        let tolerance = if self.tolerance.is_finite() { self.tolerance } else { Self::default().tolerance };
        Self { tolerance: tolerance.clamp(0.001, 0.5) }
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

pub(super) struct Elastic {
    tolerance: f64,
    budget: f64,
    phase: Phase,
    meter: Meter,
    phase_began: Instant,
    /// Blocks of the present measurements.
    blocks: u32,
    /// The latest measurement of the base.
    base: Option<Rate>,
    /// What the base gives in the long run.
    usual: Option<Rate>,
    /// The last measurement disagreed with that.
    doubted: bool,
    /// ln T(2B)/T(B).
    up: Evidence,
    /// ln T(B)/T(B/φ).
    down: Evidence,
    /// ln φ.
    step: f64,
    /// Experiments in a row that decided nothing.
    undecided: [u32; 2],
    next_up: Instant,
    next_down: Instant,
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
            tolerance: config.in_range().tolerance,
            budget: INITIAL_BYTES,
            phase: Phase::Base,
            meter: Meter::new(now),
            phase_began: now,
            blocks: MIN_BLOCKS,
            base: None,
            usual: None,
            doubted: false,
            up: Evidence::default(),
            down: Evidence::default(),
            step: LN_2,
            undecided: [0; 2],
            next_up: now,
            next_down: now,
            bracketed: false,
            decision,
        }
    }

    pub(super) fn reconfigure(&mut self, config: ElasticConfig) {
        self.tolerance = config.in_range().tolerance;
    }

    pub(super) fn decision(&self) -> Decision {
        self.decision
    }

    /// One completion; whether the budget changed.
    #[inline]
    pub(super) fn observe(&mut self, done: &Completion) -> bool {
        match self.meter.observe(done) {
            Progress::None => false,
            Progress::Block => self.block(done.now),
            Progress::Stalled => {
                self.enter(Phase::Base, done.now, Reason::Stalled { inside_bytes: done.inside_bytes });
                true
            }
        }
    }

    #[cold]
    fn block(&mut self, now: Instant) -> bool {
        if self.meter.slack_blocks > 0 && self.phase != Phase::Up {
            // Not the bottleneck: nothing to learn.
            let reason = Reason::AppLimited { held_back: 0, completions: 0 };
            if self.phase == Phase::Base {
                self.meter.restart(now);
                self.decision.reason = reason;
                return false;
            }
            self.enter(Phase::Base, now, reason);
            return true;
        }
        if self.meter.blocks < self.blocks {
            return false;
        }
        let Some(rate) = self.meter.rate() else { return false };
        let took = now.since(self.phase_began);
        match self.phase {
            Phase::Base => self.base_measured(now, rate),
            Phase::Up => self.up_measured(now, rate, took),
            Phase::Down => self.down_measured(now, rate, took),
        }
        true
    }

    fn base_measured(&mut self, now: Instant, rate: Rate) {
        if let Some(usual) = self.usual {
            let change = libm::log(rate.rate / usual.rate);
            let error = libm::sqrt(rate.variance + usual.variance);
            if libm::fabs(change) > CHANGE.max(CHANGE_ERRORS * error) {
                if !core::mem::replace(&mut self.doubted, true) {
                    // Once may be chance; the next measurement says.
                    return self.meter.carry_on();
                }
                self.search_again();
                self.base = Some(rate);
                self.usual = Some(rate);
                return self.enter(Phase::Up, now, Reason::ThroughputChanged { ratio: libm::exp(change) });
            }
            self.doubted = false;
            self.usual = Some(usual.averaged_with(rate));
        } else {
            self.usual = Some(rate);
        }
        self.base = Some(rate);
        let reason = self.decision.reason; 
        if now >= self.next_up {
            self.enter(Phase::Up, now, reason);
        } else if now >= self.next_down && self.budget > self.meter.mean_cost.max(MIN_BUDGET as f64) {
            self.enter(Phase::Down, now, reason);
        } else {
            self.meter.carry_on();
        }
    }

    fn up_measured(&mut self, now: Instant, rate: Rate, took: Duration) {
        let Some(base) = self.base else { return self.enter(Phase::Base, now, Reason::Initial) };
        self.up.add(base, rate);
        let gain = self.up.mean();
        match self.up.is_above(self.tolerance) {
            Verdict::Move if self.budget * 2.0 <= MAX_BUDGET as f64 => {
                self.budget *= 2.0;
                self.moved(rate);
                self.bracketed = true;
                self.step = LN_2 / 2.0;
                self.up = Evidence::default();
                self.next_up = now;
                self.enter(Phase::Up, now, Reason::DoublingPays { gain });
            }
            Verdict::Move | Verdict::Stay => {
                self.undecided[0] = 0;
                self.blocks = MIN_BLOCKS;
                self.next_up = now + share(took, UP_SHARE);
                self.enter(Phase::Base, now, Reason::DoublingFutile { gain });
            }
            Verdict::Open => {
                self.wait_longer(0);
                self.next_up = now + share(took, self.open_share(0, OPEN_UP_SHARE, UP_SHARE));
                self.enter(Phase::Base, now, self.decision.reason);
            }
        }
    }

    fn down_measured(&mut self, now: Instant, rate: Rate, took: Duration) {
        let Some(base) = self.base else { return self.enter(Phase::Base, now, Reason::Initial) };
        self.down.add(rate, base);
        let loss = self.down.mean();
        let allowed = self.tolerance - self.up.at_least().max(0.0);
        match self.down.is_below(allowed) {
            Verdict::Move => {
                self.budget *= libm::exp(-self.step);
                self.up.shift(&self.down);
                self.moved(rate);
                self.step = if self.bracketed { (self.step / 2.0).max(FINEST) } else { (self.step * 2.0).min(LN_2) };
                self.enter(Phase::Down, now, Reason::ReductionFree { loss });
            }
            Verdict::Stay => {
                self.undecided[1] = 0;
                self.blocks = MIN_BLOCKS;
                self.bracketed = true;
                if self.step > FINEST {
                    self.step = (self.step / 2.0).max(FINEST);
                    self.down = Evidence::default();
                    self.next_down = now;
                } else {
                    self.next_down = now + share(took, DOWN_SHARE);
                }
                self.enter(Phase::Base, now, Reason::ReductionCosts { loss });
            }
            Verdict::Open => {
                self.wait_longer(1);
                self.next_down = now + share(took, self.open_share(1, OPEN_DOWN_SHARE, DOWN_SHARE));
                self.enter(Phase::Base, now, self.decision.reason);
            }
        }
    }

    /// The budget has moved to where `rate` was measured.
    fn moved(&mut self, rate: Rate) {
        self.base = Some(rate);
        self.usual = Some(rate);
        self.down = Evidence::default();
        self.undecided = [0; 2];
        self.blocks = MIN_BLOCKS;
    }

    fn search_again(&mut self) {
        self.up = Evidence::default();
        self.down = Evidence::default();
        self.step = LN_2 / 2.0;
        self.bracketed = false;
        self.doubted = false;
        self.undecided = [0; 2];
        self.blocks = MIN_BLOCKS;
        self.next_up = Instant::ZERO;
        self.next_down = Instant::ZERO;
    }

    fn wait_longer(&mut self, kind: usize) {
        self.undecided[kind] += 1;
        self.blocks = (self.blocks * 2).min(MAX_BLOCKS);
    }

    /// The share of time for an experiment without an outcome: half at first, then less each time, down to that of one
    /// that has an outcome.
    fn open_share(&self, kind: usize, open: f64, settled: f64) -> f64 {
        let waited = self.undecided[kind].saturating_sub(PATIENCE);
        if waited == 0 { 0.5 } else { (open * libm::pow(IMPATIENCE, f64::from(waited))).max(settled) }
    }

    fn enter(&mut self, phase: Phase, now: Instant, reason: Reason) {
        self.phase = phase;
        self.phase_began = now;
        self.budget = self.budget.clamp(MIN_BUDGET as f64, MAX_BUDGET as f64);
        let in_force = match phase {
            Phase::Base => self.budget,
            Phase::Up => self.budget * 2.0,
            Phase::Down => self.budget * libm::exp(-self.step),
        };
        self.decision = Decision { at: now, budget_bytes: in_force as u64, reason, ..self.decision };
        self.meter.restart(now);
    }
}

/// The pause after an experiment that `took` so long and may take this share of time.
fn share(took: Duration, share: f64) -> Duration {
    Duration::from_nanos((took.as_nanos() as f64 * (1.0 / share - 1.0)) as u64)
}
