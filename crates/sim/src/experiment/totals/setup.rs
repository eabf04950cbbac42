//! A run's setup, and its time in steps. Requests arrive at the beginning of a step, and are served at any time.

use evenkeel_control::{Duration, Instant};

use super::Fault;

/// Number of steps in a second.
pub const STEPS_PER_S: usize = 100;
/// The tenant's total reservation, in IOPS.
pub const RESERVATION: u64 = 3_000;
/// The tenant's total limit, in IOPS.
pub const LIMIT: u64 = 4_000;
/// Length of a step.
pub(super) const STEP: Duration = Duration::from_millis(10);
/// Steps from one change of the demand's spread to the next.
pub(super) const MOVES: u64 = 10 * STEPS_PER_S as u64;
/// First and last step of a fault that lasts for a while.
pub(super) const FAULT: [u64; 2] = [12 * STEPS_PER_S as u64, 27 * STEPS_PER_S as u64];
/// Steps within which parts follow demand that moves, and a member that is gone or back.
const SETTLING: [u64; 2] = [3 * STEPS_PER_S as u64, 6 * STEPS_PER_S as u64];

/// A run: number of members, fault, and length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Number of members.
    pub members: usize,
    /// The fault, besides demand that moves.
    pub fault: Fault,
    /// Length of the run, in seconds.
    pub seconds: u64,
}

impl Setup {
    pub(super) fn steps(&self) -> u64 {
        self.seconds * STEPS_PER_S as u64
    }

    fn is_at_fault(&self, member: usize, step: u64) -> bool {
        member < (self.members / 10).max(1) && (FAULT[0]..FAULT[1]).contains(&step)
    }

    /// True if the member serves nothing in this step.
    pub(super) fn is_dead(&self, member: usize, step: u64) -> bool {
        self.fault == Fault::Death && self.is_at_fault(member, step)
    }

    /// True if the member has no connection to the store in this step.
    pub(super) fn is_cut(&self, member: usize, step: u64) -> bool {
        self.fault == Fault::Partition && self.is_at_fault(member, step)
    }

    /// True if between two steps no time lies within which parts may still follow a change.
    pub(super) fn is_settled(&self, from: usize, to: usize) -> bool {
        let (from, to) = (from as u64, to as u64);
        let lasts = |begins: u64, length: u64| begins < to && from < begins + length;
        let moves = (0..self.steps()).step_by(MOVES as usize).any(|at| lasts(at, SETTLING[0]));
        let lasting = matches!(self.fault, Fault::Death | Fault::Partition);
        !(moves || lasting && FAULT.into_iter().any(|at| lasts(at, SETTLING[1])))
    }

    /// Requests per second of each member's device: more than the demand for the tenant on the busiest member.
    pub(super) fn capacity(&self) -> u64 {
        match self.members {
            0..=9 => 4_000,
            10..=300 => 1_000,
            301..=3_000 => 500,
            // The demand on the busiest of 10,000 is 184.
            _ => 300,
        }
    }

    /// Exponent of Zipf's law.
    pub(super) fn exponent(&self) -> f64 {
        if self.members < 10 { 1.0 } else { 0.8 }
    }
}

/// The beginning of a step.
pub(super) fn at(step: u64) -> Instant {
    Instant::from_nanos(step * STEP.as_nanos())
}
