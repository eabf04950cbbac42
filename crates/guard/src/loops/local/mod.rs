//! Throttles noisy control groups of this host, so that a device meets its latency target.
//!
//! ```text
//!  timings of reads, diskstats ▶ Local::tick ─▶ control::response::Controller ─▶ wait of each group's requests
//!  io.stat of each group ──────▶ Local::measure ─▶ Circulation ─▶ limits for io.max that make requests wait so long
//!                                               └▶ limit::Share ─▶ parts of the tenant's limit; the lower of both is set
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
use evenkeel_policy::state::LatencyTargetState;
use evenkeel_policy::verdict::{self, Lately};

use super::owed::Pace;
use super::packets::percentile::Percentile;
use super::record::{At, CgroupState, GroupState, PoolState, ReadsState};
use super::totals::Totals;
use super::{Due, MAX_RECORDS};
use crate::actuator::io_max::Limits;
use crate::config::LocalConfig;
use crate::sensor::diskstats;
use crate::sensor::tracepoints::middle;

mod circulation;
mod group;
pub(super) mod limit;
mod total;
mod unseen;

use circulation::{Circulation, Latencies};
use group::Shown;
use limit::Share;
use unseen::Unseen;

/// Number of groups that a sentence about a decision names at most.
const LISTED: usize = 2;
/// Number of throttled groups of which a decision in the log keeps the details: those that wait longest.
const KEPT: usize = 64;

/// The advice for an operator if limits have no effect on the latency.
const CURE: &str = "requests may count for other groups than those that cause them: writes of the page cache count for the \
     group that made the pages dirty only if it has cgroup v2's memory controller on as well as io";

/// The reason of a device without a latency target, and its sentence.
const NO_TARGET: &str = "no_target";
const LIMITS_ONLY: &str = "without a latency target: groups are limited only for the limits of their tenants";

/// Longest wait, in seconds, that counts for reads which a group submitted in an earlier interval.
const MOST_PENDING_S: f64 = 1.0;

/// The end of the sentence about a decision by pressure.
const COARSE: &str = "latency is only estimated, from io.pressure and the number of reads of groups, as no single \
     read is timed and /proc/diskstats counts none: it includes waits for writes and for other devices, and of reads \
     that wait together only one counts";

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
    /// An estimate from the groups' pressure: the kernel counts no read of the device (`queue/iostats` is 0) either.
    Pressure,
}

evenkeel_control::named!(Sense: Groups "groups", Device "device", Statistics "statistics", Pressure "pressure");

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
    /// True if the latency was estimated from the groups' pressure.
    pressed: bool,
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
        let groups = |of: &Self| (of.throttled, of.groups, of.pressed);
        self.reason.name() == newer.reason.name() && groups(self) == groups(newer)
    }

    fn figure(&self) -> Option<f64> {
        Some(self.mean_delay.as_millis_f64())
    }
}

/// A control group of the device.
#[derive(Default)]
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
    /// Total time in which tasks of the group have waited for I/O: for the next measurement, and at the newest one.
    stalled: [Option<Duration>; 2],
    /// Time that they waited between the newest two measurements, in seconds, and reads in this time, until they are used.
    waited: Option<(f64, u64)>,
    pace: Pace,
    /// Requests and bytes that the group has moved since the demand of its tenant was asked for.
    moved: [u64; 2],
    known: Circulation,
    /// The wait that the controller has decided for the group's requests, and the reason.
    delay: (Duration, ClientReason),
    /// The group's part of the limit of its tenant.
    share: Share,
    /// The limits in force.
    in_force: Limits,
    /// Limits that another program has set; while there are some, the agent leaves the group alone.
    foreign: Option<Limits>,
    /// Further figures of the group, for records alone.
    record: Shown,
}

impl Group {
    /// True if the group has a part of its tenant's limit, if there is one: neither a guarantee limits it nor another program.
    const fn has_part(&self) -> bool {
        !self.guaranteed && self.foreign.is_none()
    }

    /// The limits in force for the latency target. A part of a tenant's limit is no throttle: the use that it allows is all that
    /// the group can have, and a throttle starts from there.
    fn throttled_to(&self) -> Limits {
        let has_part_alone = self.delay.0.is_zero() && self.share.limits() != Limits::NONE;
        if has_part_alone { Limits::NONE } else { self.in_force }
    }
}

/// Single reads of the present interval: their number and the sum of their latencies in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Timed {
    reads: u64,
    sum_s: f64,
}

/// A device of this host with a latency target or tenants' limits, and its control groups.
#[derive(Default)]
pub struct Local {
    name: String,
    config: LocalConfig,
    interval: Duration,
    /// The controller of the latency target; `None` without a target.
    controller: Option<Controller>,
    sense: Sense,
    /// The times in which groups read and the device's statistics show no read.
    statistics: Unseen,
    /// The times in which groups read that count for the target, and no read is timed.
    timings: Unseen,
    /// Counts of single reads, if the latency target is for a percentile; `None` if it is for the mean.
    percentile: Option<Percentile>,
    /// Counts of single reads for the record, if the latency target is for the mean; `None` if it is for a percentile.
    shown: Option<Percentile>,
    timed: Timed,
    /// Groups in ascending order of their numbers; the controller's decisions have the same order.
    groups: Vec<Group>,
    next: u64,
    /// The period in which tenants' limits are shared out.
    share_due: Due,
    /// The parts of tenants' limits that apply on this host.
    totals: Totals,
    /// The minute of the day, by which limits with hours apply; `None`: they apply at all hours.
    minute: Option<u16>,
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
            controller: config.controller(interval).map(|settings| Controller::new(&settings)).transpose()?,
            percentile: match config.figure() {
                Figure::Mean => None,
                Figure::At(percentile) => Some(Percentile::new(percentile)),
            },
            shown: matches!(config.figure(), Figure::Mean).then(|| Percentile::new(99.0)),
            decisions: Log::new(MAX_RECORDS),
            ..Self::default()
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

    /// True if a tenant's limit applies at some hours only, so that [`Self::set_minute`] has to be called.
    pub fn keeps_hours(&self) -> bool {
        self.config.tenants.iter().any(|terms| terms.limit.when.is_some())
    }

    /// Sets the minute of the day, 0 to 1439, by which limits with hours apply.
    pub fn set_minute(&mut self, minute: u16) {
        self.minute = Some(minute);
    }

    /// If the settings of a newer policy differ from the present ones in nothing but the values of the latency target and of
    /// tenants' limits, takes them over, keeps the controller's state, and returns true; otherwise changes nothing.
    pub fn adopt(&mut self, config: &LocalConfig, interval: Duration) -> bool {
        let mut same = config.clone();
        if let Some((new, old)) = same.latency.as_mut().zip(self.config.latency) {
            new.target = old.target;
        }
        same.tenants.iter_mut().zip(&self.config.tenants).for_each(|(new, old)| new.limit = old.limit);
        let mut aim = || match (&mut self.controller, config.latency) {
            (Some(controller), Some(latency)) => controller.set_target(latency.target).is_ok(),
            _ => true,
        };
        let adopted = same == self.config && interval == self.interval && aim();
        if adopted {
            self.config = config.clone();
            self.share_due = Due::default();
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
            ..Group::default()
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
            known.share = Share::default();
            known.in_force = Limits::NONE;
        }
    }

    /// Records that the `limits` of a group are in force.
    pub fn in_force(&mut self, group: ClientId, limits: Limits) {
        if let Some(known) = self.group(group) {
            known.in_force = limits;
        }
    }

    /// True if [`Self::stalled`] has to be called: no other signal shows how long reads take.
    pub fn wants_pressure(&self) -> bool {
        self.signal() == Sense::Pressure
    }

    /// Takes in the `total` time in which tasks of the group have waited for I/O. Call it before [`Self::measure`].
    pub fn stalled(&mut self, group: ClientId, total: Duration) {
        if let Some(known) = self.group(group) {
            known.stalled[0] = Some(total);
        }
    }

    /// Takes in the group's counters on the device at `now`.
    pub fn measure(&mut self, group: ClientId, now: Instant, counters: Counters) {
        let latencies = self.latencies;
        let Some(known) = self.group(group) else { return };
        let before = known.seen.replace((now, counters));
        known.pace = Pace::default();
        let [total, earlier] = known.stalled;
        let pending = known.waited.take().filter(|(_, reads)| *reads == 0).map_or(0.0, |(waited_s, _)| waited_s);
        known.stalled = [None, total];
        let Some((at, before)) = before else { return };
        if let Some((total, earlier)) = total.zip(earlier) {
            let waited_s = (total.as_secs_f64() - earlier.as_secs_f64()).max(0.0);
            let reads = counters.reads.saturating_sub(before.reads);
            // Without a request the group waits for earlier ones; with writes alone it waits for them.
            let is_of_reads = reads > 0 || counters.writes == before.writes;
            known.waited = is_of_reads.then_some((pending.min(MOST_PENDING_S) + waited_s, reads));
        }
        let more = |before: u64, after: u64| after.saturating_sub(before);
        known.moved[0] += more(before.reads, counters.reads) + more(before.writes, counters.writes);
        known.moved[1] +=
            more(before.read_bytes, counters.read_bytes) + more(before.written_bytes, counters.written_bytes);
        let length = now.since(at);
        let seconds = length.as_secs_f64();
        if seconds > 0.0 {
            known.pace = Pace::between(before, counters, seconds);
            known.share.measure(length, &known.pace);
            known.known.learn(length, &known.pace, &latencies, &known.throttled_to());
        }
    }

    /// Begins an interval that ends at `now`, in which `sense` says which reads are measured. Call it before
    /// [`Self::count`].
    pub fn begin(&mut self, now: Instant, sense: Sense) {
        self.sense = sense;
        self.timed = Timed::default();
        for counts in self.percentile.iter_mut().chain(&mut self.shown) {
            counts.advance(now);
        }
        self.groups.iter_mut().for_each(|group| group.record.advance(now));
    }

    /// Takes in single reads of the present interval: their number in a bucket of [`crate::sensor::tracepoints`].
    pub fn count(&mut self, bucket: usize, reads: u64) {
        self.timed.reads += reads;
        self.timed.sum_s += middle(bucket).as_secs_f64() * reads as f64;
        for counts in self.percentile.iter_mut().chain(&mut self.shown) {
            counts.count(bucket, reads);
        }
    }

    /// Decides on all groups' waits, and on their parts of tenants' limits. `device`: the device's figures in the latest
    /// interval; `None` if they are not known. O(groups · log groups).
    pub fn tick(&mut self, now: Instant, device: Option<diskstats::Sample>) {
        self.look_for_reads(now, device.as_ref());
        if self.statistics.is_blind() {
            self.last = device.unwrap_or_default();
            self.observe(now, &device.unwrap_or_default());
        } else if let Some(device) = device {
            self.last = device;
            let means = [device.reads.mean_latency(), device.writes.mean_latency()];
            self.latencies.learn(device.interval, means);
            // Nothing comes out of a device that holds requests: that is no idleness, and no group is released for it.
            if !device.is_stuck() {
                self.observe(now, &device);
            }
        }
        self.decide(now);
        self.share_out(now);
    }

    /// Shares out the tenants' limits, once in a period, and when the part of a limit that applies here changes. Groups that a
    /// guarantee limits, or another program, have no part.
    fn share_out(&mut self, now: Instant) {
        let is_over = self.share_due.is_over(now, limit::EVERY);
        let Self { config, groups, minute, totals, .. } = self;
        if is_over {
            groups.iter_mut().for_each(|group| group.share.end_period());
        }
        let busy = groups.iter().filter(|group| group.has_part() && !group.share.rests());
        if !totals.look(busy.map(|group| &*group.shown)) && !is_over {
            return;
        }
        let mut members: Vec<Vec<&mut Share>> = config.tenants.iter().map(|_| Vec::new()).collect();
        for group in groups.iter_mut().filter(|group| group.has_part()) {
            let Some(terms) = config.tenants.get(group.tenant) else { continue };
            if terms.each {
                let limit = totals.part_of(&group.shown, terms.limit_at(*minute));
                limit::divide(limit, &mut [&mut group.share]);
            } else {
                members[group.tenant].push(&mut group.share);
            }
        }
        for (terms, mut shares) in config.tenants.iter().zip(members) {
            limit::divide(totals.part_of(&terms.name, terms.limit_at(*minute)), &mut shares);
        }
    }

    /// Notes which signals show no read although groups read.
    fn look_for_reads(&mut self, now: Instant, device: Option<&diskstats::Sample>) {
        let shows = |device: &diskstats::Sample| device.reads.completed > 0 || device.in_flight > 0;
        let (mut any, mut any_free) = (false, false);
        // Of many groups each is measured in turn: a pace of before says nothing of this interval.
        let is_new = |group: &&Group| group.seen.is_some_and(|(at, _)| at == now);
        for group in self.groups.iter().filter(is_new).filter(|group| group.pace.requests[0] > 0.0) {
            any = true;
            // A read that a limit delays is submitted by the kernel, and is timed for no group.
            any_free |= group.in_force == Limits::NONE && group.has_part() && !self.is_noisy(group.id);
        }
        self.statistics.look(now, device.is_some_and(shows), any);
        // A device that completes nothing has no read to time.
        let is_stuck = device.is_some_and(diskstats::Sample::is_stuck);
        self.timings.look(now, self.timed.reads > 0, any_free && !is_stuck);
    }

    /// Signal by which latency is measured.
    fn signal(&self) -> Sense {
        let is_mean = self.controller.is_some() && self.percentile.is_none();
        match self.sense {
            sense if !is_mean => sense,
            Sense::Groups | Sense::Device if !self.timings.is_doubtful() => self.sense,
            _ if self.statistics.is_blind() => Sense::Pressure,
            _ => Sense::Statistics,
        }
    }

    /// True if the latency target is for a percentile, and no read is timed although groups read: the kernel reports that
    /// reads complete on another device.
    pub fn is_untimed(&self) -> bool {
        self.percentile.is_some() && self.sense != Sense::Statistics && self.timings.is_blind()
    }

    /// Mean time for which a read of groups that are not noisy waited, by their pressure, and the number of these reads.
    fn waited(&mut self) -> (Option<Duration>, u64) {
        let (mut waited_s, mut reads) = (0.0, 0);
        for group in &mut self.groups {
            let Some((group_s, count)) = group.waited.take_if(|(_, count)| *count > 0) else { continue };
            if !self.controller.as_ref().is_some_and(|controller| controller.is_noisy(group.id)) {
                (waited_s, reads) = (waited_s + group_s, reads + count);
            }
        }
        ((reads > 0).then(|| Duration::from_nanos((1e9 * waited_s / reads as f64) as u64)), reads)
    }

    fn observe(&mut self, now: Instant, device: &diskstats::Sample) {
        let (mut read_latency, reads) = match self.signal() {
            Sense::Pressure => self.waited(),
            Sense::Statistics => (device.reads.mean_latency(), device.reads.completed),
            Sense::Groups | Sense::Device => {
                let Timed { reads, sum_s } = self.timed;
                let mean = (reads > 0).then(|| Duration::from_nanos((1e9 * sum_s / reads as f64) as u64));
                (mean, reads)
            }
        };
        self.read_latency = read_latency;
        if self.statistics.is_blind() {
            // Nothing better is known about the time that reads, and writes, take in the device.
            self.latencies.learn(self.interval, [read_latency; 2]);
        }
        if let Some((percentile, mean)) = self.percentile.as_mut().zip(read_latency) {
            read_latency = percentile.figure(now, mean);
            if read_latency.is_none() {
                // Reads that were not timed are no idleness; if it stays so, the controller counts its signal as lost.
                return;
            }
        }
        let Some(controller) = &mut self.controller else { return };
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
                freed_bytes_per_s: group.known.freed(load, &group.throttled_to()),
                reads: group.known.reads(&group.pace),
                paid: terms.owed.paid(pace, [true; 2]),
            }
        };
        self.samples.clear();
        self.samples.extend(self.groups.iter().map(sample));
        controller.observe(now, &Sample { read_response: read_latency, reads, clients: &self.samples });
    }

    fn decide(&mut self, now: Instant) {
        let Some(controller) = &mut self.controller else { return };
        let decision = controller.tick(now);
        (self.reason, self.mean_delay) = (decision.reason, decision.mean_delay);
        let (mut released, mut all_released) = (Vec::new(), 0);
        let mut decided = decision.delays.iter().peekable();
        for group in &mut self.groups {
            // A group that is gone may still be in the decision.
            while decided.next_if(|delay| delay.client < group.id).is_some() {}
            let new = decided.next_if(|delay| delay.client == group.id);
            let new = new.filter(|_| group.foreign.is_none()).map(|new| (new.delay, new.reason)).unwrap_or_default();
            if group.delay.0 > Duration::ZERO && new.0.is_zero() {
                all_released += 1;
                if released.len() < LISTED {
                    released.push(Arc::clone(&group.name));
                }
            }
            group.delay = new;
        }
        let (reason, mean_delay, (held, throttled, groups)) = (self.reason, self.mean_delay, self.held());
        let pressed = self.wants_pressure();
        let mut new = Decision { reason, pressed, mean_delay, held, throttled, groups, released, all_released };
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

    /// The limits that the newest decision asks for, at most the group's part of its tenant's limit; [`Limits::NONE`] for a
    /// group with neither.
    pub fn limits(&self, group: ClientId) -> Limits {
        let place = self.groups.binary_search_by_key(&group, |known| known.id);
        place.ok().and_then(|place| self.groups.get(place)).map_or(Limits::NONE, |group| self.limits_of(group))
    }

    fn limits_of(&self, group: &Group) -> Limits {
        let (delay, share) = (group.delay.0, group.share.limits());
        match self.config.tenants.get(group.tenant) {
            Some(terms) if !delay.is_zero() => {
                let throttle = group.known.limits(delay, self.config.max_delay, &self.latencies, &terms.owed);
                throttle.at_most(share)
            }
            _ => share,
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
        self.controller.as_ref().is_some_and(|controller| controller.is_noisy(group))
    }

    /// Name of the newest decision's reason.
    pub fn reason(&self) -> &'static str {
        if self.controller.is_some() { self.reason.name() } else { NO_TARGET }
    }

    /// The newest decision as a sentence.
    pub fn because(&self) -> String {
        if self.controller.is_none() {
            return LIMITS_ONLY.to_owned();
        }
        let newest = self.decisions.last().map(|entry| self.record(&entry.decision, DecisionRecord::default()));
        let percentile = self.config.figure();
        let undecided =
            || DecisionRecord::default().with_latency(&self.name, percentile, &self.reason, self.mean_delay);
        newest.map_or_else(|| explain::latency(&self.reason, Throttles::Groups, &undecided()), |record| record.because)
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
        let Decision { reason, pressed, mean_delay, held, throttled, released, all_released, .. } = decision;
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
            ..at.with_latency(&self.name, self.config.figure(), reason, *mean_delay)
        };
        record.because = explain::latency(reason, Throttles::Groups, &record);
        if matches!(reason, Reason::Ineffective { .. }) {
            record.because = format!("{}; {CURE}", record.because);
        }
        if *pressed {
            record.because = format!("{}; {COARSE}", record.because);
        }
        record
    }

    /// The state of the device and its groups; the enforcement point fills in the fields that only it knows, such as the
    /// device's number.
    pub fn state(&self) -> PoolState {
        let ms = |time: Option<Duration>| time.map(Duration::as_millis_f64);
        let Self { last, config, .. } = self;
        let mut groups: Vec<GroupState> = self.groups.iter().map(|group| self.group_state(group)).collect();
        groups.sort_by(|a, b| a.group.cmp(&b.group));
        let latency_ms = ms(self.read_latency);
        let percentiles = self.percentile.as_ref().or(self.shown.as_ref()).and_then(Percentile::usual);
        let measured_ms = self.percentile.as_ref().map_or(latency_ms, |percentile| ms(percentile.measured()));
        let target = config.latency.map(|latency| LatencyTargetState::of(latency, measured_ms));
        let (because, mean_delay_ms) = (self.because(), self.mean_delay.as_millis_f64());
        let throttled = self.groups.iter().filter(|group| !group.delay.0.is_zero()).count();
        let lately = Lately {
            window_s: last.interval.as_secs_f64(),
            iops: last.all().iops(last.interval),
            bytes_per_s: last.all().bytes_per_s(last.interval),
            latency_ms,
            device_latency_ms: latency_ms,
            p99_ms: percentiles.map(|reads| reads.p99_ms),
            targets: target.iter().map(|target| verdict::of_latency(target, self.reason())).collect(),
            throttled_by: verdict::delays(throttled, "group", mean_delay_ms, &because),
            because,
            ..Lately::default()
        };
        PoolState {
            name: self.name.clone(),
            method: config.method.name().into(),
            reason: self.reason().into(),
            notes: Vec::new(),
            lately,
            latency_target: target,
            reads: Some(ReadsState { measured: self.signal().name().into(), latency_ms, percentiles }),
            in_flight: last.in_flight,
            mean_delay_ms,
            at: At::Cgroup(CgroupState { device: config.device.clone(), groups, ..CgroupState::default() }),
        }
    }

    fn group_state(&self, group: &Group) -> GroupState {
        let (delay, reason) = &group.delay;
        let (limits, read_percentiles) = (self.limits_of(group), group.record.percentiles());
        let guaranteed = "has a throughput guarantee, which takes precedence over latency targets and limits the group";
        let exempt_because = group.guaranteed.then(|| guaranteed.to_owned());
        let bytes_per_s: f64 = group.pace.bytes.iter().sum();
        let delay_ms = delay.as_millis_f64();
        // Without a delay for the latency target, the tenant's limit throttles.
        let terms = self.config.tenants.get(group.tenant).filter(|_| delay.is_zero() && group.share.is_used_up());
        let at_limit = terms.map(|terms| self.limit_reason(group, terms));
        let throttled = || match &at_limit {
            Some(because) => because.clone(),
            None if delay.is_zero() => String::new(),
            None => explain::throttled(reason),
        };
        let because = exempt_because.clone().unwrap_or_else(throttled);
        GroupState {
            tenant: group.shown.to_string(),
            group: group.name.to_string(),
            foreign_limit: group.foreign.map(|limits| limits.to_string()),
            matched_by: group.record.by().entry.clone(),
            also_matched_by: group.record.by().others.clone(),
            throttle: group.throttle.name().into(),
            exempt_because,
            delay_ms,
            limits: (limits != Limits::NONE).then(|| limits.to_string()),
            read_percentiles,
            lately: Lately {
                window_s: self.last.interval.as_secs_f64(),
                iops: group.pace.requests.iter().sum(),
                bytes_per_s,
                p99_ms: read_percentiles.map(|reads| reads.p99_ms),
                throttled_by: match &at_limit {
                    Some(because) => Some(verdict::at_part(bytes_per_s, because)),
                    None => verdict::delayed(delay_ms, &because),
                },
                because,
                ..Lately::default()
            },
            ..GroupState::default()
        }
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
