//! What is shown of arrays that hosts share: states, and decisions with their reasons.
//!
//! Units are last in the names; slots are I/Os inside the array. What does not apply is `null`.

use evenkeel_control::Instant;
use evenkeel_control::slots::Reason;
use evenkeel_policy::explain;
use evenkeel_policy::state::TenantSlotsState;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An array and the volumes of it that this host uses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ArrayState {
    /// Its name, the same on all hosts.
    pub name: String,
    /// How slots are shared out.
    pub method: String,
    /// How often is decided.
    pub period_s: f64,
    /// Whether other hosts have a say at present.
    pub exchanged: bool,
    /// All slots together, on all hosts; `null` = no bound, or nothing decided yet.
    pub total_slots: Option<f64>,
    /// By how much all goals could be scaled and still be kept; `null` without goals, or where ten times would not do.
    pub tightness: Option<f64>,
    /// The volumes of this host.
    pub volumes: Vec<ArrayVolumeState>,
    /// What is missing or wrong, and what to do about it.
    pub notes: Vec<String>,
}

/// A volume of an array on this host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ArrayVolumeState {
    /// Its name in the configuration.
    pub name: String,
    /// The device as configured.
    pub device: String,
    /// Requests completed per second in the last period.
    pub iops: f64,
    /// Payload bytes per second in the last period.
    pub bytes_per_s: f64,
    /// Mean latency of the last period as the kernel tells it; `null` without requests. Where the setting is
    /// `nr_requests`, without the wait for a place.
    pub response_ms: Option<f64>,
    /// Requests waiting at this host; where waiting does not show, an estimate.
    pub queued: u64,
    /// Goal, need, slots and why.
    pub slots: TenantSlotsState,
    /// The queues that it is reached through.
    pub queues: Vec<QueueState>,
}

/// A disk's queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QueueState {
    /// The kernel's name of the disk.
    pub disk: String,
    /// `queue_depth` or `nr_requests`.
    pub setting: String,
    /// So many hardware queues have this length each.
    pub hardware_queues: u32,
    /// The setting's value; `null` before it was read.
    pub value: Option<u32>,
    /// What it was before us, which is never exceeded.
    pub before: Option<u32>,
    /// Times that it was changed since the start.
    pub changes_total: u64,
    /// What somebody else has set since: it is left alone as long as it is so.
    pub foreign: Option<String>,
}

/// A decision about one volume, for as long as its reason stayed the same.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SlotsRecord {
    /// The array.
    pub array: String,
    /// The volume.
    pub volume: String,
    /// When it was taken, since the start.
    pub from_s: f64,
    /// When it was taken last.
    pub until_s: f64,
    /// How many times.
    pub times: u64,
    /// Whether other hosts had a say.
    pub exchanged: bool,
    /// Why, for programs.
    pub reason: String,
    /// Why, as a sentence, with the figures of the last time.
    pub because: String,
    /// Mean latency of the period before the last time; `null` without requests.
    pub response_ms: Option<f64>,
    /// Mean latency of the array for it, likewise.
    pub device_ms: Option<f64>,
    /// Slots that were granted the last time; `null` = no bound.
    pub slots: Option<f64>,
    /// The fewest meanwhile.
    pub least_slots: Option<f64>,
    /// The most meanwhile.
    pub most_slots: Option<f64>,
}

/// A decision as it is kept: its text is made when somebody asks.
#[derive(Clone, Debug)]
pub(super) struct Decided {
    pub(super) volume: usize,
    pub(super) exchanged: bool,
    pub(super) reason: Reason,
    from: Instant,
    pub(super) until: Instant,
    times: u64,
    last: Figures,
    least: Option<f64>,
    most: Option<f64>,
}

/// What was measured and granted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figures {
    pub(super) response_s: Option<f64>,
    pub(super) device_s: Option<f64>,
    pub(super) slots: Option<f64>,
}

impl Decided {
    pub(super) fn new(now: Instant, volume: usize, exchanged: bool, reason: Reason, figures: Figures) -> Self {
        let (least, most) = (figures.slots, figures.slots);
        Self { volume, exchanged, reason, from: now, until: now, times: 1, last: figures, least, most }
    }

    /// The same reason once more.
    pub(super) fn again(&mut self, now: Instant, reason: Reason, figures: Figures) {
        (self.until, self.reason, self.last) = (now, reason, figures);
        self.times += 1;
        if let Some(slots) = figures.slots {
            self.least = Some(self.least.map_or(slots, |least| least.min(slots)));
            self.most = Some(self.most.map_or(slots, |most| most.max(slots)));
        }
    }

    /// Of the volume of this name, which has a goal or not.
    pub(super) fn record(&self, array: &str, volume: &str, has_goal: bool) -> SlotsRecord {
        let seconds = |at: Instant| at.since(Instant::ZERO).as_secs_f64();
        let ms = |seconds: Option<f64>| seconds.map(|seconds| seconds * 1e3);
        SlotsRecord {
            array: array.to_owned(),
            volume: volume.to_owned(),
            from_s: seconds(self.from),
            until_s: seconds(self.until),
            times: self.times,
            exchanged: self.exchanged,
            reason: self.reason.name().into(),
            because: explain::slots(&self.reason, has_goal),
            response_ms: ms(self.last.response_s),
            device_ms: ms(self.last.device_s),
            slots: self.last.slots,
            least_slots: self.least,
            most_slots: self.most,
        }
    }
}
