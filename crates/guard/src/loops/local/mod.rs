//! Throttles noisy control groups of this host, so that a device meets its latency target.
//!
//! ```text
//!  timings of reads, diskstats ▶ Local::tick ─▶ control::response::Controller ─▶ wait of each group's requests
//!  io.stat of each group ──────▶ Local::measure ─▶ Circulation ─▶ limits for io.max that make requests wait so long
//! ```

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use evenkeel_control::log::{Decided, Entry, Log};
use evenkeel_control::response::{ClientId, ClientReason, ClientSample, Controller, InvalidConfig, Reason, Sample};
use evenkeel_control::throughput::Counters;
use evenkeel_control::{Duration, Instant};
use evenkeel_policy::config::{Enforcement, Percentile as Figure, Throttle};
use evenkeel_policy::decision::{DecisionRecord, MostThrottled, Throttled, seconds};
use evenkeel_policy::explain::{self, Throttles};

use super::MAX_RECORDS;
use super::owed::Pace;
use super::packets::percentile::Percentile;
use super::record::{CgroupState, GroupState, GroupThrottleState, LocalState};
use crate::actuator::io_max::Limits;
use crate::config::LocalConfig;
use crate::sensor::diskstats;
use crate::sensor::tracepoints::middle;

mod circulation;

use circulation::{Circulation, Latencies};

/// Number of groups that a sentence about a decision names at most.
const LISTED: usize = 2;
/// Number of throttled groups of which a decision in the log keeps the details: those that wait longest.
const KEPT: usize = 64;

const NOT_THROTTLED: (Duration, ClientReason) = (Duration::ZERO, ClientReason::SameForAll);

/// The advice for an operator if limits have no effect on the latency.
const CURE: &str = "requests may count for other groups than those that cause them: writes of the page cache count for the \
     group that made the pages dirty only if it has cgroup v2's memory controller on as well as io";

/// The reads whose latency is measured for the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sense {
    /// Single reads of groups that are not noisy.
    Groups,
    /// Single reads of the device, of all groups: the kernel does not tell the groups' reads apart.
    Device,
    /// The kernel's means of all reads of the device: single reads cannot be timed.
    #[default]
    Statistics,
}

evenkeel_control::named!(Sense: Groups "groups", Device "device", Statistics "statistics");

/// A group that a decision throttles.
#[derive(Clone, Debug)]
struct Held {
    group: Arc<str>,
    /// Name of the group's tenant.
    tenant: Arc<str>,
    delay: Duration,
    reason: ClientReason,
    bytes_per_s: Option<f64>,
}

/// A decision about a device, as the log keeps it.
#[derive(Clone, Debug)]
struct Decision {
    reason: Reason,
    mean_delay: Duration,
    /// The groups that it throttles most, at most [`KEPT`], in ascending order of their numbers.
    held: Vec<Held>,
    /// Number of groups that it throttles.
    throttled: usize,
    /// Hash of the numbers of all these groups.
    groups: u64,
    /// Groups that the decision released, at most [`LISTED`].
    released: Vec<Arc<str>>,
    /// Number of groups that it released.
    all_released: usize,
}

impl Decided for Decision {
    fn is_renewed_by(&self, newer: &Self) -> bool {
        let groups = |of: &Self| (of.throttled, of.groups);
        self.reason.name() == newer.reason.name() && groups(self) == groups(newer)
    }

    fn figure(&self) -> Option<f64> {
        Some(self.mean_delay.as_millis_f64())
    }
}

/// A control group of the device.
struct Group {
    id: ClientId,
    name: Arc<str>,
    /// Index of the group's tenant in the configuration.
    tenant: usize,
    /// Name of the group's tenant in records.
    shown: Arc<str>,
    throttle: Throttle,
    /// True if a throughput guarantee limits the group.
    guaranteed: bool,
    /// Time and counters of the group's newest measurement.
    seen: Option<(Instant, Counters)>,
    pace: Pace,
    known: Circulation,
    /// The wait that the controller has decided for the group's requests, and the reason.
    delay: (Duration, ClientReason),
    /// The limits in force.
    in_force: Limits,
    /// Limits that another program has set; while there are some, the agent leaves the group alone.
    foreign: Option<Limits>,
}

/// Single reads of the present interval: their number and the sum of their latencies in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Timed {
    reads: u64,
    sum_s: f64,
}

/// A device of this host with a latency target, and its control groups.
pub struct Local {
    name: String,
    config: LocalConfig,
    interval: Duration,
    controller: Controller,
    sense: Sense,
    /// Counts of single reads, if the latency target is for a percentile; `None` if it is for the mean.
    percentile: Option<Percentile>,
    timed: Timed,
    /// Groups in ascending order of their numbers; the controller's decisions have the same order.
    groups: Vec<Group>,
    next: u64,
    samples: Vec<ClientSample>,
    latencies: Latencies,
    /// Mean latency of the measured reads of the last interval.
    read_latency: Option<Duration>,
    last: diskstats::Sample,
    reason: Reason,
    mean_delay: Duration,
    decisions: Log<Decision>,
}

impl Local {
    /// The controller of a device, without any group yet. `interval`: time between decisions.
    ///
    /// # Errors
    /// A setting that the controller refuses; a configuration that has passed the checks on reading contains none.
    pub fn new(name: &str, config: &LocalConfig, interval: Duration) -> Result<Self, InvalidConfig> {
        Ok(Self {
            name: name.to_owned(),
            config: config.clone(),
            interval,
            controller: Controller::new(&config.controller(interval))?,
            sense: Sense::default(),
            percentile: match config.latency.percentile {
                Figure::Mean => None,
                Figure::At(percentile) => Some(Percentile::new(percentile)),
            },
            timed: Timed::default(),
            groups: Vec::new(),
            next: 0,
            samples: Vec::new(),
            latencies: Latencies::default(),
            read_latency: None,
            last: diskstats::Sample::default(),
            reason: Reason::NotEnoughData,
            mean_delay: Duration::ZERO,
            decisions: Log::new(MAX_RECORDS),
        })
    }

    /// Name of the device in the configuration: that of its pool.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The settings of the device.
    pub fn config(&self) -> &LocalConfig {
        &self.config
    }

    /// True if the latency target is for a percentile, so that single reads have to be timed.
    pub fn wants_percentile(&self) -> bool {
        self.percentile.is_some()
    }

    /// If the settings of a newer policy differ from the present ones in nothing but the value of the latency target, takes
    /// them over, keeps the controller's state, and returns true; otherwise changes nothing.
    pub fn adopt(&mut self, config: &LocalConfig, interval: Duration) -> bool {
        let mut same = config.clone();
        same.latency.target = self.config.latency.target;
        let adopted = same == self.config
            && interval == self.interval
            && self.controller.set_target(config.latency.target).is_ok();
        if adopted {
            self.config = config.clone();
        }
        adopted
    }

    /// Adds a group of the tenant with this index in the configuration and returns the group's number; `None` if there is no
    /// such tenant. `guaranteed`: true if a throughput guarantee limits the group, which is then never throttled.
    pub fn join(&mut self, tenant: usize, group: &str, guaranteed: bool) -> Option<ClientId> {
        let terms = self.config.tenants.get(tenant)?;
        self.next += 1;
        let id = ClientId(self.next);
        self.groups.push(Group {
            id,
            name: group.into(),
            tenant,
            shown: terms.name_of(group).into(),
            throttle: if guaranteed { Throttle::Never } else { terms.throttle },
            guaranteed,
            seen: None,
            pace: Pace::default(),
            known: Circulation::default(),
            delay: NOT_THROTTLED,
            in_force: Limits::NONE,
            foreign: None,
        });
        Some(id)
    }

    /// Forgets the group with this number, which no longer exists.
    pub fn leave(&mut self, group: ClientId) {
        self.groups.retain(|known| known.id != group);
    }

    fn group(&mut self, group: ClientId) -> Option<&mut Group> {
        let place = self.groups.binary_search_by_key(&group, |known| known.id).ok()?;
        self.groups.get_mut(place)
    }

    /// Records that another program has set the `limits` of a group; the agent leaves this group alone from now on.
    pub fn is_foreign(&mut self, group: ClientId, limits: Limits) {
        if let Some(known) = self.group(group) {
            known.foreign = Some(limits);
            known.throttle = Throttle::Never;
            known.in_force = Limits::NONE;
        }
    }

    /// Records that the `limits` of a group are in force.
    pub fn in_force(&mut self, group: ClientId, limits: Limits) {
        if let Some(known) = self.group(group) {
            known.in_force = limits;
        }
    }

    /// Takes in the group's counters on the device at `now`.
    pub fn measure(&mut self, group: ClientId, now: Instant, counters: Counters) {
        let latencies = self.latencies;
        let Some(known) = self.group(group) else { return };
        let before = known.seen.replace((now, counters));
        known.pace = Pace::default();
        let Some((at, before)) = before else { return };
        let length = now.since(at);
        let seconds = length.as_secs_f64();
        if seconds > 0.0 {
            let rate = |before: u64, after: u64| after.saturating_sub(before) as f64 / seconds;
            known.pace = Pace {
                bytes: [
                    rate(before.read_bytes, counters.read_bytes),
                    rate(before.written_bytes, counters.written_bytes),
                ],
                requests: [rate(before.reads, counters.reads), rate(before.writes, counters.writes)],
            };
            known.known.learn(length, &known.pace, &latencies, &known.in_force);
        }
    }

    /// Begins an interval that ends at `now`, in which `sense` says which reads are measured. Call it before
    /// [`Self::count`].
    pub fn begin(&mut self, now: Instant, sense: Sense) {
        self.sense = sense;
        self.timed = Timed::default();
        if let Some(percentile) = &mut self.percentile {
            percentile.advance(now);
        }
    }

    /// Takes in single reads of the present interval: their number in a bucket of [`crate::sensor::tracepoints`].
    pub fn count(&mut self, bucket: usize, reads: u64) {
        self.timed.reads += reads;
        self.timed.sum_s += middle(bucket).as_secs_f64() * reads as f64;
        if let Some(percentile) = &mut self.percentile {
            percentile.count(bucket, reads);
        }
    }

    /// Decides on all groups' waits. `device`: the device's figures in the latest interval; `None` if they are not known.
    /// O(groups · log groups).
    pub fn tick(&mut self, now: Instant, device: Option<diskstats::Sample>) {
        if let Some(device) = device {
            self.last = device;
            let means = [device.reads.mean_latency(), device.writes.mean_latency()];
            self.latencies.learn(device.interval, means);
            // Nothing comes out of a device that holds requests: that is no idleness, and no group is released for it.
            if !device.is_stuck() {
                self.observe(now, &device);
            }
        }
        self.decide(now);
    }

    fn observe(&mut self, now: Instant, device: &diskstats::Sample) {
        let (mut read_latency, reads) = match self.sense {
            Sense::Statistics => (device.reads.mean_latency(), device.reads.completed),
            Sense::Groups | Sense::Device => {
                let Timed { reads, sum_s } = self.timed;
                let mean = (reads > 0).then(|| Duration::from_nanos((1e9 * sum_s / reads as f64) as u64));
                (mean, reads)
            }
        };
        self.read_latency = read_latency;
        if let Some((percentile, mean)) = self.percentile.as_mut().zip(read_latency) {
            read_latency = percentile.figure(now, mean);
            if read_latency.is_none() {
                // Reads that were not timed are no idleness; if it stays so, the controller counts its signal as lost.
                return;
            }
        }
        let mut tenants = vec![Pace::default(); self.config.tenants.len()];
        self.groups.iter().for_each(|group| tenants[group.tenant].add(&group.pace, 1.0));
        let sample = |group: &Group| {
            let load: f64 = group.pace.bytes.iter().sum();
            let terms = &self.config.tenants[group.tenant];
            let pace = if terms.each { &group.pace } else { &tenants[group.tenant] };
            ClientSample {
                client: group.id,
                throttle: group.throttle,
                bytes_per_s: load,
                all_bytes_per_s: load,
                freed_bytes_per_s: group.known.freed(load, &group.in_force),
                reads: group.known.reads(&group.pace),
                paid: terms.owed.paid(pace, [true; 2]),
            }
        };
        self.samples.clear();
        self.samples.extend(self.groups.iter().map(sample));
        self.controller.observe(now, &Sample { read_response: read_latency, reads, clients: &self.samples });
    }

    fn decide(&mut self, now: Instant) {
        let decision = self.controller.tick(now);
        (self.reason, self.mean_delay) = (decision.reason, decision.mean_delay);
        let (mut released, mut all_released) = (Vec::new(), 0);
        let mut decided = decision.delays.iter().peekable();
        for group in &mut self.groups {
            // A group that is gone may still be in the decision.
            while decided.next_if(|delay| delay.client < group.id).is_some() {}
            let new = decided.next_if(|delay| delay.client == group.id);
            let new = new.filter(|_| group.foreign.is_none()).map_or(NOT_THROTTLED, |new| (new.delay, new.reason));
            if group.delay.0 > Duration::ZERO && new.0.is_zero() {
                all_released += 1;
                if released.len() < LISTED {
                    released.push(Arc::clone(&group.name));
                }
            }
            group.delay = new;
        }
        let (reason, mean_delay, (held, throttled, groups)) = (self.reason, self.mean_delay, self.held());
        let mut new = Decision { reason, mean_delay, held, throttled, groups, released, all_released };
        if let Some(newest) = self.decisions.last_mut()
            && newest.decision.is_renewed_by(&new)
        {
            new.released = std::mem::take(&mut newest.decision.released);
            new.all_released = newest.decision.all_released;
            newest.renew(now, new);
            return;
        }
        self.decisions.record(now, new);
    }

    /// The groups that are throttled most, at most [`KEPT`], the number of all that are throttled, and the hash of their
    /// numbers.
    fn held(&self) -> (Vec<Held>, usize, u64) {
        let throttled = self.groups.iter().filter(|group| group.delay.0 > Duration::ZERO);
        let mut most: Vec<&Group> = throttled.collect();
        let mut groups = DefaultHasher::new();
        most.iter().for_each(|group| group.id.hash(&mut groups));
        let (throttled, groups) = (most.len(), groups.finish());
        if throttled > KEPT {
            most.sort_by_key(|group| std::cmp::Reverse(group.delay.0));
            most.truncate(KEPT);
            most.sort_by_key(|group| group.id);
        }
        let held = most.into_iter().map(|group| Held {
            group: Arc::clone(&group.name),
            tenant: Arc::clone(&group.shown),
            delay: group.delay.0,
            reason: group.delay.1,
            bytes_per_s: self.bytes_per_s(group),
        });
        (held.collect(), throttled, groups)
    }

    /// The limits that the newest decision asks for; [`Limits::NONE`] for a group that is not throttled.
    pub fn limits(&self, group: ClientId) -> Limits {
        let place = self.groups.binary_search_by_key(&group, |known| known.id);
        place.ok().and_then(|place| self.groups.get(place)).map_or(Limits::NONE, |group| self.limits_of(group))
    }

    fn limits_of(&self, group: &Group) -> Limits {
        let delay = group.delay.0;
        match self.config.tenants.get(group.tenant) {
            Some(terms) if !delay.is_zero() => {
                group.known.limits(delay, self.config.max_delay, &self.latencies, &terms.owed)
            }
            _ => Limits::NONE,
        }
    }

    /// Bytes per second to which a group is limited, of reads and writes together; `None` without such a limit.
    fn bytes_per_s(&self, group: &Group) -> Option<f64> {
        let limits = self.limits_of(group);
        let both = [limits.rbps, limits.wbps].into_iter().flatten();
        both.reduce(u64::saturating_add).map(|rate| rate as f64)
    }

    /// True if the group was noisy at the latest decision: its own reads do not count for the target.
    pub fn is_noisy(&self, group: ClientId) -> bool {
        self.controller.is_noisy(group)
    }

    /// Name of the newest decision's reason.
    pub fn reason(&self) -> &'static str {
        self.reason.name()
    }

    /// The newest decision as a sentence.
    pub fn because(&self) -> String {
        let undecided = || Decision {
            reason: self.reason,
            mean_delay: self.mean_delay,
            held: Vec::new(),
            throttled: 0,
            groups: 0,
            released: Vec::new(),
            all_released: 0,
        };
        let newest = self.decisions.last().map_or_else(undecided, |entry| entry.decision.clone());
        self.record(&newest, DecisionRecord::default()).because
    }

    /// The newest `count` decisions in the log, oldest first.
    pub fn records(&self, count: usize) -> impl Iterator<Item = DecisionRecord> {
        let record = |entry: &Entry<Decision>| self.record(&entry.decision, DecisionRecord::of(entry, seconds));
        let entries = self.decisions.iter();
        let older = entries.len().saturating_sub(count);
        entries.skip(older).map(record)
    }

    /// The record of a decision, with the times of `at`.
    fn record(&self, decision: &Decision, at: DecisionRecord) -> DecisionRecord {
        let Decision { reason, mean_delay, held, throttled, released, all_released, .. } = decision;
        let mut most: Vec<&Held> = held.iter().collect();
        most.sort_by_key(|held| std::cmp::Reverse(held.delay));
        let most = most.into_iter().take(LISTED).map(|held| MostThrottled {
            tenant: held.tenant.to_string(),
            client: held.group.to_string(),
            delay_ms: held.delay.as_millis_f64(),
            bytes_per_s: held.bytes_per_s,
        });
        let client = |held: &Held| Throttled {
            client: held.group.to_string(),
            delay_ms: held.delay.as_millis_f64(),
            because: explain::throttled(&held.reason),
        };
        let mut record = DecisionRecord {
            point: Enforcement::Cgroup,
            throttled: *throttled as u64,
            most_throttled: most.collect(),
            released: *all_released as u64,
            some_released: released.iter().map(ToString::to_string).collect(),
            clients: held.iter().map(client).collect(),
            ..at.with_latency(&self.name, self.config.latency.percentile, reason, *mean_delay)
        };
        record.because = explain::latency(reason, Throttles::Groups, &record);
        if matches!(reason, Reason::Ineffective { .. }) {
            record.because = format!("{}; {CURE}", record.because);
        }
        record
    }

    /// The state of the device and its groups; the enforcement point fills in the fields that only it knows, such as the
    /// device's number.
    pub fn state(&self) -> CgroupState {
        let ms = |time: Option<Duration>| time.map(Duration::as_millis_f64);
        let Self { last, config, .. } = self;
        let mut groups: Vec<GroupState> = self.groups.iter().map(|group| self.group_state(group)).collect();
        groups.sort_by(|a, b| a.group.cmp(&b.group));
        let latency = LocalState {
            target_ms: config.latency.target.as_millis_f64(),
            percentile: config.latency.percentile.to_string(),
            measured: self.sense.name().into(),
            read_latency_ms: ms(self.read_latency),
            read_percentile_ms: ms(self.percentile.as_ref().and_then(Percentile::measured)),
            iops: last.all().iops(last.interval),
            bytes_per_s: last.all().bytes_per_s(last.interval),
            in_flight: last.in_flight,
            mean_delay_ms: self.mean_delay.as_millis_f64(),
        };
        CgroupState { device: config.device.clone(), latency: Some(latency), groups, ..CgroupState::default() }
    }

    fn group_state(&self, group: &Group) -> GroupState {
        let (delay, reason) = &group.delay;
        let limits = self.limits_of(group);
        let guaranteed = "has a throughput guarantee, which takes precedence over latency targets and limits the group";
        GroupState {
            tenant: group.shown.to_string(),
            group: group.name.to_string(),
            foreign_limit: group.foreign.map(|limits| limits.to_string()),
            latency: Some(GroupThrottleState {
                throttle: group.throttle.name().into(),
                exempt_because: group.guaranteed.then(|| guaranteed.to_owned()),
                bytes_per_s: group.pace.bytes.iter().sum(),
                iops: group.pace.requests.iter().sum(),
                delay_ms: delay.as_millis_f64(),
                limits: (limits != Limits::NONE).then(|| limits.to_string()),
                because: if delay.is_zero() { String::new() } else { explain::throttled(reason) },
            }),
            ..GroupState::default()
        }
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
