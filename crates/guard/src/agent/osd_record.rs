//! What is shown of OSDs: states, and decisions with their reasons. Units are last in the names.

use evenkeel_control::Instant;
use evenkeel_control::admission::{Decision, Reason};
use evenkeel_policy::state::ReasonData;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the last sampling interval of an OSD showed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Measured {
    /// Mean time from being let in to being committed; `null` if nothing was committed.
    pub store_latency_ms: Option<f64>,
    /// Transactions committed.
    pub commits_per_s: f64,
    /// Their cost: bytes, and the base that BlueStore charges.
    pub cost_bytes_per_s: f64,
    /// Cost inside.
    pub in_flight_bytes: u64,
    /// Transactions that wait at the throttle, and with each of them a thread of the OSD.
    pub waiting: u64,
}

/// An OSD at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OsdState {
    /// `osd.3`.
    pub name: String,
    /// Its admin socket.
    pub socket: String,
    /// `controlled`, `watched` (nothing is set), `starting`, `absent`, `late`, `foreign` (somebody else set the throttle and
    /// it is left alone) or `unusable`.
    pub standing: String,
    /// Why, if it is neither controlled nor watched.
    pub problem: Option<String>,
    /// The controller.
    pub method: String,
    /// What may be inside as the controller wants it; `null` if everything may.
    pub budget_bytes: Option<u64>,
    /// What may be inside as the OSD says; `null` before it has said so.
    pub throttle_bytes: Option<u64>,
    /// Latency that the controller aims at, if it has an aim.
    pub target_ms: Option<f64>,
    /// Why, for programs.
    pub reason: String,
    /// Why, as a sentence.
    pub because: String,
    /// What the last sampling interval showed.
    pub measured: Measured,
    /// Samples taken.
    pub samples_total: u64,
    /// Samples that were skipped because the one before had not been answered in time.
    pub skipped_total: u64,
    /// Times that the budget was set.
    pub changes_total: u64,
    /// Times that the OSD was seen to have started anew.
    pub restarts_total: u64,
    /// Questions without a usable answer, and changes that failed.
    pub errors_total: u64,
}

/// A decision about an OSD, for as long as its reason stayed the same.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OsdRecord {
    /// Which.
    pub osd: String,
    /// When it was taken, since the start.
    pub from_s: f64,
    /// When it was taken last.
    pub until_s: f64,
    /// In how many samples it stood.
    pub times: u64,
    /// Why, for programs.
    pub reason: String,
    /// Why, as a sentence, with the figures of the last time.
    pub because: String,
    /// What may be inside as of the last time; `null` if everything may.
    pub budget_bytes: Option<u64>,
    /// The smallest budget meanwhile.
    pub least_bytes: Option<u64>,
    /// The largest budget meanwhile.
    pub largest_bytes: Option<u64>,
}

/// A reason's name, for programs.
pub(super) fn name(reason: &Reason) -> String {
    ReasonData::from(reason).kind
}

/// A decision as it is kept: its text is made when somebody asks.
#[derive(Clone, Copy, Debug)]
pub struct Decided {
    from: Instant,
    until: Instant,
    times: u64,
    decision: Decision,
    least: u64,
    largest: u64,
}

impl Decided {
    pub(super) fn new(now: Instant, decision: Decision) -> Self {
        let budget = decision.budget_bytes;
        Self { from: now, until: now, times: 1, decision, least: budget, largest: budget }
    }

    /// Whether that is the same reason, whatever its figures.
    pub(super) fn is_same(&self, reason: &Reason) -> bool {
        std::mem::discriminant(&self.decision.reason) == std::mem::discriminant(reason)
    }

    /// The same reason once more.
    pub(super) fn again(&mut self, now: Instant, decision: Decision) {
        (self.until, self.decision) = (now, decision);
        self.times += 1;
        (self.least, self.largest) = (self.least.min(decision.budget_bytes), self.largest.max(decision.budget_bytes));
    }

    /// As it is shown, of the OSD called `osd`.
    pub fn record(&self, osd: &str) -> OsdRecord {
        let seconds = |at: Instant| at.since(Instant::ZERO).as_secs_f64();
        let bytes = |budget: u64| Some(budget).filter(|&budget| budget < u64::MAX);
        OsdRecord {
            osd: osd.to_owned(),
            from_s: seconds(self.from),
            until_s: seconds(self.until),
            times: self.times,
            reason: name(&self.decision.reason),
            because: self.decision.reason.to_string(),
            budget_bytes: bytes(self.decision.budget_bytes),
            least_bytes: bytes(self.least),
            largest_bytes: bytes(self.largest),
        }
    }
}
