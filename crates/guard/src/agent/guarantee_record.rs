//! What is shown of guaranteed throughputs: states, and decisions with their reasons.
//!
//! Units are last in the names. Rates are in the guarantee's unit, which `unit` names.

use evenkeel_control::Instant;
use evenkeel_control::throughput::{Limit, Rate};
use evenkeel_policy::explain;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A hybrid device and its tenants.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HybridState {
    /// Its name in the configuration.
    pub name: String,
    /// The device as configured.
    pub device: String,
    /// `dm-cache`, `dm-writecache`, `bcache` or `other`.
    pub kind: String,
    /// Number of the device that tenants use.
    pub device_number: String,
    /// Number of the fast device below it, where that is known.
    pub fast_number: Option<String>,
    /// Number of the slow device below it.
    pub slow_number: String,
    /// How limits are assigned.
    pub method: String,
    /// What the slow device is taken to give; `null` before it was seen busy.
    pub slow_bytes_per_s: Option<f64>,
    /// Whether decisions rest on it.
    pub slow_is_trusted: bool,
    /// What the slow device did in the last period for nobody with a guarantee: write-back, promotion, others.
    pub background_bytes_per_s: f64,
    /// What the cache tells of itself, where it does.
    pub cache: Option<CacheState>,
    /// Groups with a guarantee.
    pub tenants: Vec<GuaranteeState>,
    /// What is missing or wrong, and what to do about it.
    pub notes: Vec<String>,
}

/// What a cache tells of itself since it was set up, of all who use it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CacheState {
    /// Reads that the fast device answered; of bcache all requests that it counts.
    pub read_hits_total: Option<u64>,
    /// Reads that it did not.
    pub read_misses_total: Option<u64>,
    /// Writes that the fast device took.
    pub write_hits_total: Option<u64>,
    /// Writes that it did not.
    pub write_misses_total: Option<u64>,
    /// Bytes that are on the fast device alone.
    pub dirty_bytes: Option<u64>,
    /// What is wrong with it, in its own words.
    pub trouble: Option<String>,
}

/// A group with a guarantee.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GuaranteeState {
    /// Its name in the configuration.
    pub tenant: String,
    /// The control group, below `/sys/fs/cgroup`.
    pub group: String,
    /// Reads, if something was guaranteed.
    pub read: Option<DirectionState>,
    /// Writes, if something was guaranteed.
    pub write: Option<DirectionState>,
    /// Limits that somebody else has set: this group is left alone.
    pub foreign_limit: Option<String>,
}

/// One direction of a guarantee.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DirectionState {
    /// `bytes_per_s` or `requests_per_s`.
    pub unit: String,
    /// What was guaranteed.
    pub guaranteed: f64,
    /// What it got in the last period.
    pub measured: f64,
    /// Part of its bytes that reached the slow device in the last period, 0 to 1; `null` without I/O.
    pub miss_rate: Option<f64>,
    /// The limit that is assigned.
    pub limit: f64,
    /// Why, for programs.
    pub reason: String,
    /// Why, as a sentence.
    pub because: String,
}

/// A decision about one direction of a tenant, for as long as its reason stayed the same.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GuaranteeRecord {
    /// The hybrid device.
    pub hybrid: String,
    /// The tenant's name in the configuration.
    pub tenant: String,
    /// Its control group.
    pub group: String,
    /// `read` or `write`.
    pub direction: String,
    /// When it was taken, since the start.
    pub from_s: f64,
    /// When it was taken last.
    pub until_s: f64,
    /// How many times.
    pub times: u64,
    /// Why, for programs.
    pub reason: String,
    /// Why, as a sentence, with the figures of the last time.
    pub because: String,
    /// `bytes_per_s` or `requests_per_s`.
    pub unit: String,
    /// What it got in the period before the last time.
    pub measured: f64,
    /// The limit that was assigned the last time.
    pub limit: f64,
    /// The smallest limit meanwhile.
    pub least_limit: f64,
    /// The largest limit meanwhile.
    pub largest_limit: f64,
}

/// Which requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Read,
    Write,
}

impl Direction {
    const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

impl DirectionState {
    pub(super) fn new(guaranteed: Rate, measured: f64, miss_rate: Option<f64>, limit: Limit) -> Self {
        Self {
            unit: unit(limit.limit).into(),
            guaranteed: guaranteed.value() as f64,
            measured,
            miss_rate,
            limit: limit.limit.value() as f64,
            reason: limit.reason.name().into(),
            because: explain::guarantee(&limit, None),
        }
    }
}

/// A decision as it is kept: its text is made when somebody asks.
#[derive(Clone, Debug)]
pub(super) struct Decided {
    from: Instant,
    pub(super) until: Instant,
    times: u64,
    direction: Direction,
    tenant: String,
    group: String,
    pub(super) limit: Limit,
    measured: f64,
    least: u64,
    largest: u64,
}

impl Decided {
    pub(super) fn new(
        now: Instant,
        direction: Direction,
        tenant: String,
        group: String,
        limit: Limit,
        measured: f64,
    ) -> Self {
        let value = limit.limit.value();
        Self {
            from: now,
            until: now,
            times: 1,
            direction,
            tenant,
            group,
            limit,
            measured,
            least: value,
            largest: value,
        }
    }

    /// The same reason once more.
    pub(super) fn again(&mut self, now: Instant, limit: Limit, measured: f64) {
        (self.until, self.limit, self.measured) = (now, limit, measured);
        self.times += 1;
        let value = limit.limit.value();
        (self.least, self.largest) = (self.least.min(value), self.largest.max(value));
    }

    pub(super) fn record(&self, hybrid: &str) -> GuaranteeRecord {
        let seconds = |at: Instant| at.since(Instant::ZERO).as_secs_f64();
        GuaranteeRecord {
            hybrid: hybrid.to_owned(),
            tenant: self.tenant.clone(),
            group: self.group.clone(),
            direction: self.direction.name().into(),
            from_s: seconds(self.from),
            until_s: seconds(self.until),
            times: self.times,
            reason: self.limit.reason.name().into(),
            because: explain::guarantee(&self.limit, None),
            unit: unit(self.limit.limit).into(),
            measured: self.measured,
            limit: self.limit.limit.value() as f64,
            least_limit: self.least as f64,
            largest_limit: self.largest as f64,
        }
    }
}

const fn unit(rate: Rate) -> &'static str {
    match rate {
        Rate::BytesPerS(_) => "bytes_per_s",
        Rate::RequestsPerS(_) => "requests_per_s",
    }
}
