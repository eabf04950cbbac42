//! Decides on limits of control groups, so that throughput guarantees are met: from the groups' counters to limits with
//! reasons.
//!
//! ```text
//!  io.stat, io.max of each group ─▶ Guarantees::tick ─▶ control::throughput::Controller ─▶ limits for io.max, records
//!  stat of the slow device ────────▶
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_control::log::{Decided, Log, Newest};
use evenkeel_control::pool::Demand;
use evenkeel_control::throughput::{
    Bandwidth, Bounds, Controller, Counters, Guarantee, InForce, InvalidConfig, Limit, Rate, Reason, SlowDevice,
    TenantId, TenantSample,
};
use evenkeel_control::units::{Direction, Fraction};
use evenkeel_control::{Duration, Instant};
use evenkeel_policy::config::{Enforcement, Match};
use evenkeel_policy::decision::{DecisionRecord, Unit, seconds};
use evenkeel_policy::explain;
use evenkeel_policy::state::GuaranteeState;
use evenkeel_policy::units::{Bytes, Rates};
use evenkeel_policy::verdict::{self, Lately};

use super::local::limit::{self, Place};
use super::owed::{Owed, Pace};
use super::record::{CgroupState, GroupState};
use super::totals::{Totals, with_part};
use super::{Due, MAX_RECORDS};
use crate::actuator::io_max::Limits;
use crate::config::CachedConfig;
use crate::sensor::cgroup::Usage;

/// Smallest number of decisions that are kept for each direction of a group.
const MIN_RECORDS: usize = 2;
/// Number of intervals without a reading after which a group's limit is its guaranteed rate; the controller does the same
/// without samples.
const LOST_INTERVALS: u64 = 5;

/// A decision on one direction of a group, as the log keeps it.
#[derive(Clone, Debug)]
struct Decision {
    direction: Direction,
    /// Names of tenant and group, kept for the log also after the group is gone.
    group: Arc<Names>,
    limit: Limit,
    measured: f64,
    of_total: Option<[Rates; 2]>,
}

impl Decided for Decision {
    fn is_renewed_by(&self, newer: &Self) -> bool {
        self.limit.reason.name() == newer.limit.reason.name()
    }

    fn figure(&self) -> Option<f64> {
        Some(self.limit.limit.value() as f64)
    }
}

/// The names of a control group.
#[derive(Debug, Default)]
struct Names {
    /// Name of the guarantee in the configuration.
    tenant: String,
    /// Name of the tenant in records.
    shown: String,
    /// Path of the group.
    group: String,
    /// Names of the totals that the guarantees of reads and of writes are in a cluster.
    totals: [Option<Arc<str>>; 2],
}

/// Readings of a group's counters and limits at one tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The number by which the controller knows the group.
    pub tenant: TenantId,
    /// Counters of the group; `None` if they could not be read.
    pub usage: Option<Usage>,
    /// The group's limits as found in `io.max`; `None` if the file was not read.
    pub limits: Option<Limits>,
}

/// A control group with a guarantee, and its newest measurements and limits.
#[derive(Debug, Default)]
struct Tenant {
    names: Arc<Names>,
    /// Time and counters of the group's newest measurement.
    seen: Option<(Instant, Usage)>,
    /// True if the newest measurement is older than [`LOST_INTERVALS`] intervals.
    lost: bool,
    /// The guarantee that the group has: in a cluster its part of this host's part.
    guarantee: Guarantee,
    /// The guarantee that the controller knows.
    known: Guarantee,
    /// Rates of reads and of writes in the last period in which parts were shared out, and the parts in it.
    places: [Place; 2],
    /// Time and counters at the end of that period.
    ended: Option<(Instant, Counters)>,
    /// Requests and bytes that the group has read, and written, since the demand was asked for.
    asked: [[u64; 2]; 2],
    moved: Moved,
    read: Option<Limit>,
    write: Option<Limit>,
    /// Limits of reads and of writes as the controller assigned them; `read` and `write` may be higher, raised to the
    /// reservation.
    assigned: [Option<Rate>; 2],
    /// Limits that another program has set; while there are some, the agent leaves the group alone.
    foreign: Option<Limits>,
    /// The newest decisions in the log about the group's reads and writes.
    newest: [Newest; 2],
}

/// A group's throughput between its two newest measurements. `cached`: on the device that the group uses; `slow`: on the slow
/// device below it.
#[derive(Clone, Copy, Debug, Default)]
struct Moved {
    seconds: f64,
    cached: Pace,
    slow: Pace,
}

/// The controller of one cached device, with the groups that have guarantees on it.
#[derive(Debug)]
pub struct Guarantees {
    name: String,
    config: CachedConfig,
    controller: Controller,
    /// Groups, indexed by the controller's numbers; `None` where a number is free.
    tenants: Vec<Option<Tenant>>,
    samples: Vec<TenantSample>,
    slow_device: Bandwidth,
    background_bytes_per_s: f64,
    /// The period in which parts of totals are shared out among groups.
    share_due: Due,
    /// The parts of guarantees that apply on this host.
    totals: Totals,
    decisions: Log<Decision>,
}

impl Guarantees {
    /// The controller of a cached device, without any group yet.
    ///
    /// # Errors
    /// A setting that the controller refuses; a configuration that has passed the checks on reading contains none.
    pub fn new(name: &str, config: &CachedConfig) -> Result<Self, InvalidConfig> {
        Ok(Self {
            name: name.to_owned(),
            config: config.clone(),
            controller: Controller::new(&config.controller())?,
            tenants: Vec::new(),
            samples: Vec::new(),
            slow_device: Bandwidth::default(),
            background_bytes_per_s: 0.0,
            share_due: Due::default(),
            totals: Totals::default(),
            decisions: Log::new(MAX_RECORDS),
        })
    }

    /// Name of the cached device: a key of `cached` in the configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The settings of the cached device.
    pub fn config(&self) -> &CachedConfig {
        &self.config
    }

    /// Adds a group with the guarantee of `tenant` and returns its number; `None` if the configuration has no such tenant.
    ///
    /// # Errors
    /// A guarantee that the controller refuses; a configuration that has passed the checks on reading contains none.
    pub fn join(&mut self, tenant: &str, group: &str) -> Result<Option<TenantId>, InvalidConfig> {
        let Some(config) = self.config.tenants.get(tenant) else { return Ok(None) };
        let guarantee = config.guarantee();
        let id = self.controller.join(&guarantee)?;
        self.share_due = Due::default();
        let index = id.0 as usize;
        if self.tenants.len() <= index {
            self.tenants.resize_with(index + 1, || None);
        }
        self.tenants[index] = Some(Tenant {
            names: Arc::new(Names {
                tenant: tenant.to_owned(),
                shown: config.shown(tenant, group),
                group: group.to_owned(),
                totals: config.totals(group).map(|name| name.map(Arc::from)),
            }),
            guarantee,
            known: guarantee,
            ..Tenant::default()
        });
        self.list();
        Ok(Some(id))
    }

    /// Forgets the group with this number, which no longer exists.
    pub fn leave(&mut self, tenant: TenantId) {
        self.controller.leave(tenant);
        self.share_due = Due::default();
        if let Some(known) = self.tenants.get_mut(tenant.0 as usize) {
            *known = None;
        }
    }

    /// Records that another program has set the `limits` of the group with number `tenant`; the agent leaves this group alone
    /// from now on.
    pub fn is_foreign(&mut self, tenant: TenantId, limits: Limits) {
        if let Some(Some(known)) = self.tenants.get_mut(tenant.0 as usize) {
            known.foreign = Some(limits);
        }
    }

    /// Takes in the measurements at `now` and decides on all groups' limits. `slow`: counters of the slow device, `None` if
    /// they could not be read. O(groups).
    pub fn tick(&mut self, now: Instant, slow: Option<SlowDevice>, found: &[Found]) {
        self.samples.clear();
        for found in found {
            let Some(Some(tenant)) = self.tenants.get_mut(found.tenant.0 as usize) else { continue };
            let Some(usage) = found.usage else { continue };
            tenant.measure(now, usage);
            self.samples.push(TenantSample {
                cached: usage.cached,
                slow: Some(usage.slow),
                in_force: found.limits.map(|limits| tenant.in_force(&limits)),
                ..TenantSample::new(found.tenant)
            });
        }
        self.controller.observe(now, slow, &self.samples);
        let decision = self.controller.tick(now);
        (self.slow_device, self.background_bytes_per_s) = (decision.slow_device, decision.background_bytes_per_s);
        let patience = Duration::from_nanos(self.config.interval().as_nanos().saturating_mul(LOST_INTERVALS));
        for tenant in self.tenants.iter_mut().flatten() {
            tenant.lost = tenant.seen.is_some_and(|(at, _)| now.since(at) > patience);
        }
        self.share_out(now);
        self.list();
        self.record(now);
    }

    /// Sets if guarantees are totals over all members of a cluster: the least part of each applies here then, until
    /// [`Self::set_part`] is called.
    pub fn share_totals(&mut self, are_shared: bool) {
        if self.totals.share(are_shared) {
            self.share_due = Due::default();
        }
    }

    /// Takes over the parts of guarantees from the device's controller under the policy before.
    pub fn take_parts(&mut self, old: &mut Self) {
        self.totals = std::mem::take(&mut old.totals);
    }

    /// Makes these fractions of the guarantee with this total's name apply from the next tick on: of requests, and of bytes.
    pub fn set_part(&mut self, total: &str, part: [Fraction; 2]) {
        self.totals.grant(total, part);
    }

    /// Demand for the guarantees of groups here that are totals, by the names of the totals.
    pub fn demands(&mut self) -> BTreeMap<String, Demand> {
        let Self { config, tenants, totals, .. } = self;
        let mut demands = BTreeMap::new();
        for tenant in tenants.iter_mut().flatten() {
            let asked = std::mem::take(&mut tenant.asked);
            let terms = config.tenants.get(&tenant.names.tenant).filter(|_| tenant.foreign.is_none());
            let Some(whole) = terms.map(|terms| terms.guarantee()) else { continue };
            for direction in Direction::ALL {
                let total = tenant.names.totals[direction as usize].as_ref();
                if let Some((total, bounds)) = total.zip(bounds_of(&whole, direction)) {
                    let whole = rates(bounds.guaranteed);
                    let moved = asked[direction as usize];
                    totals.count(&mut demands, (total, whole), moved, tenant.wants_more(direction));
                }
            }
        }
        totals.keep(&demands);
        demands
    }

    /// Decides on the guarantees of the groups: of a total this host's part, which the tenant's groups share by their use, once
    /// in a period and when this host's part changes; otherwise the whole guarantee.
    fn share_out(&mut self, now: Instant) {
        let is_over = self.share_due.is_over(now, limit::EVERY);
        let Self { config, controller, tenants, totals, .. } = self;
        if is_over {
            tenants.iter_mut().flatten().for_each(Tenant::end_period);
        }
        if !totals.look(tenants.iter().flatten().flat_map(Tenant::busy)) && !is_over {
            return;
        }
        for direction in Direction::ALL {
            let mut sharers: BTreeMap<Arc<str>, (Bounds, Vec<&mut Tenant>)> = BTreeMap::new();
            for tenant in tenants.iter_mut().flatten().filter(|tenant| tenant.foreign.is_none()) {
                let terms = config.tenants.get(&tenant.names.tenant);
                let Some(whole) = terms.and_then(|terms| bounds_of(&terms.guarantee(), direction)) else { continue };
                match tenant.names.totals[direction as usize].clone().filter(|name| totals.cover(name)) {
                    Some(name) => sharers.entry(name).or_insert_with(|| (whole, Vec::new())).1.push(tenant),
                    None => tenant.has(direction, &whole, whole.guaranteed.value()),
                }
            }
            for (name, (whole, groups)) in sharers {
                let here = totals.part_of(&name, rates(whole.guaranteed));
                let places: Vec<Place> = groups.iter().map(|tenant| tenant.places[direction as usize]).collect();
                let parts = limit::parts(here.iops.max(here.bytes_per_s.0) as f64, &places);
                // The first request of a group beside busy ones does not wait long; 0 for a guarantee in requests.
                let begin = limit::begin(here.bytes_per_s.0, groups.len());
                for ((tenant, place), part) in groups.into_iter().zip(places).zip(parts) {
                    let least = if place.uses_up() { 0 } else { begin };
                    tenant.has(direction, &whole, (part.round() as u64).max(least));
                }
            }
        }
        for (index, tenant) in tenants.iter_mut().enumerate() {
            let Some(tenant) = tenant.as_mut().filter(|tenant| tenant.guarantee != tenant.known) else { continue };
            if controller.part(TenantId(index as u32), &tenant.guarantee).is_ok() {
                tenant.known = tenant.guarantee;
            }
        }
    }

    /// Takes over the limits of the controller's newest decision; a limit below the tenant's reservation is raised to the
    /// reservation. A group that has not been read for too long gets its guaranteed rates as limits.
    fn list(&mut self) {
        for assignment in self.controller.decision().assignments {
            if let Some(Some(tenant)) = self.tenants.get_mut(assignment.tenant.0 as usize) {
                let config = self.config.tenants.get(&tenant.names.tenant);
                let owed = config.map(|config| config.owed).unwrap_or_default();
                let lost = tenant.lost.then_some(tenant.known);
                let at_least = |limit: Option<Limit>, bounds: Option<Bounds>, direction| {
                    let lost = bounds.map(|bounds| Limit { limit: bounds.guaranteed, reason: Reason::SignalLost });
                    let limit = lost.or(limit)?;
                    Some(Limit { limit: tenant.not_below(&owed, direction, limit.limit), ..limit })
                };
                let (read, write) = (assignment.read, assignment.write);
                (tenant.read, tenant.write) = (
                    at_least(read, lost.and_then(|lost| lost.read), Direction::Read),
                    at_least(write, lost.and_then(|lost| lost.write), Direction::Write),
                );
                tenant.assigned = [read, write].map(|limit| limit.map(|limit| limit.limit));
            }
        }
    }

    fn record(&mut self, now: Instant) {
        self.decisions.reserve(2 * MIN_RECORDS * self.tenants.len());
        for tenant in self.tenants.iter_mut().flatten() {
            for (direction, limit) in [(Direction::Read, tenant.read), (Direction::Write, tenant.write)] {
                let Some(limit) = limit else { continue };
                let (group, measured) = (Arc::clone(&tenant.names), tenant.measured(direction, limit.limit));
                let of_total = tenant.of_total(&self.totals, &self.config, direction);
                let decision = Decision { direction, group, limit, measured, of_total };
                self.decisions.record_of(&mut tenant.newest[direction as usize], now, decision);
            }
        }
    }

    /// The limits to set for each group. A limit is `None` if no guarantee concerns it, and then keeps its present value.
    /// Groups whose limits another program has set are left out.
    pub fn limits(&self) -> impl Iterator<Item = (TenantId, Limits)> {
        self.tenants.iter().enumerate().filter_map(|(index, tenant)| {
            let tenant = tenant.as_ref().filter(|tenant| tenant.foreign.is_none())?;
            Some((TenantId(index as u32), tenant.limits()))
        })
    }

    /// The state of the device and its groups; the enforcement point fills in the fields that only it knows, such as the
    /// device numbers.
    pub fn state(&self) -> CgroupState {
        let tenants = self.tenants.iter().flatten();
        let mut groups: Vec<_> = tenants.map(|tenant| tenant.state(&self.totals, &self.config)).collect();
        groups.sort_by(|a, b| a.group.cmp(&b.group));
        CgroupState {
            device: self.config.device.clone(),
            slow_bytes_per_s: self.slow_device.bytes_per_s,
            slow_is_trusted: self.slow_device.trusted,
            background_bytes_per_s: self.background_bytes_per_s,
            groups,
            ..CgroupState::default()
        }
    }

    /// The decisions in the log, oldest first.
    pub fn records(&self) -> impl Iterator<Item = DecisionRecord> {
        self.decisions.iter().map(|entry| {
            let Decision { direction, group, limit, measured, of_total } = &entry.decision;
            let (unit, of) = (Unit::from(limit.limit), name(*direction));
            DecisionRecord {
                point: Enforcement::Cgroup,
                pool: self.name.clone(),
                tenant: group.shown.clone(),
                of: format!("{} {of}", group.group),
                reason: limit.reason.name().into(),
                because: because(limit, &explain::part_of(&group.shown, of), of_total.as_ref()),
                measured: Some(*measured),
                measured_in: unit,
                set: Some(limit.limit.value() as f64),
                set_in: unit,
                ..DecisionRecord::of(entry, seconds)
            }
        })
    }
}

impl Tenant {
    fn measure(&mut self, now: Instant, usage: Usage) {
        let before = self.seen.replace((now, usage));
        self.moved = Moved::default();
        let Some((at, before)) = before else { return };
        let seconds = now.since(at).as_secs_f64();
        if seconds > 0.0 {
            let moved = |before: Counters, after: Counters| Pace::between(before, after, seconds);
            let (cached, slow) = (moved(before.cached, usage.cached), moved(before.slow, usage.slow));
            self.moved = Moved { seconds, cached, slow };
        }
        let (from, to) = (before.cached, usage.cached);
        let grown = [(from.reads, to.reads), (from.read_bytes, to.read_bytes), (from.writes, to.writes)];
        let grown = grown.into_iter().chain([(from.written_bytes, to.written_bytes)]);
        for (asked, (from, to)) in self.asked.iter_mut().flatten().zip(grown) {
            *asked = asked.saturating_add(to.saturating_sub(from));
        }
    }

    /// Ends the period in which parts were shared out.
    fn end_period(&mut self) {
        let Some((at, usage)) = self.seen else { return };
        let Some((from, before)) = self.ended.replace((at, usage.cached)) else { return };
        let seconds = at.since(from).as_secs_f64();
        if seconds > 0.0 {
            let pace = Pace::between(before, usage.cached, seconds);
            for direction in Direction::ALL {
                let unit = bounds_of(&self.guarantee, direction).map(|bounds| bounds.guaranteed);
                self.places[direction as usize].rate = unit.map_or(0.0, |unit| pace.of(direction, unit));
            }
        }
    }

    /// True if the group has moved nothing in this direction in the last period and since.
    fn rests(&self, direction: Direction) -> bool {
        let since = self.ended.zip(self.seen).map(|((_, from), (_, to))| Pace::between(from, to.cached, 1.0));
        let at = direction as usize;
        self.places[at].rate <= 0.0 && since.is_none_or(|since| since.requests[at] <= 0.0)
    }

    /// Names of the totals of which the group moves something.
    fn busy(&self) -> impl Iterator<Item = &str> {
        let directions = Direction::ALL.into_iter().filter(move |direction| !self.rests(*direction));
        let busy = directions.filter(move |_| self.foreign.is_none());
        busy.filter_map(move |direction| self.names.totals[direction as usize].as_deref())
    }

    /// True if the group uses up its part of a guarantee, or gets less although it asks for more.
    fn wants_more(&self, direction: Direction) -> bool {
        let (place, limit) = (self.places[direction as usize], [self.read, self.write][direction as usize]);
        let now = limit.map_or(0.0, |limit| self.measured(direction, limit.limit));
        let is_missed = limit.is_some_and(|limit| limit.reason.is_missed());
        place.uses_up() || Place { rate: now, ..place }.uses_up() || is_missed
    }

    /// Gives the group this part of the guarantee `whole`, with as large a part of the ceiling.
    fn has(&mut self, direction: Direction, whole: &Bounds, part: u64) {
        let all = whole.guaranteed.value();
        let part = part.clamp(1, all.max(1));
        let of_ceiling = |ceiling: u64| ((ceiling as f64 * part as f64 / all as f64) as u64).max(part);
        let ceiling = if part == all { whole.ceiling } else { whole.ceiling.map(of_ceiling) };
        let bounds = Some(Bounds { guaranteed: whole.guaranteed.with_value(part), ceiling });
        match direction {
            Direction::Read => self.guarantee.read = bounds,
            Direction::Write => self.guarantee.write = bounds,
        }
        self.places[direction as usize].part = part as f64;
    }

    /// This host's part of the total that a guarantee of the group is, and the total; `None` if the guarantee is no total.
    fn of_total(&self, totals: &Totals, config: &CachedConfig, direction: Direction) -> Option<[Rates; 2]> {
        let name = self.names.totals[direction as usize].as_ref().filter(|name| totals.cover(name))?;
        let whole = bounds_of(&config.tenants.get(&self.names.tenant)?.guarantee(), direction)?;
        let total = rates(whole.guaranteed);
        Some([totals.part_of(name, total), total])
    }

    /// The larger of `limit` and the tenant's reservation, in the unit of `limit`, and at least [`Limits::LEAST`]. The whole
    /// reservation counts for each direction, because reads alone or writes alone may use all of it.
    fn not_below(&self, owed: &Owed, direction: Direction, limit: Rate) -> Rate {
        let moved = |rate| self.moved.cached.of(direction, rate);
        let mean_bytes = moved(Rate::BytesPerS(0)) / moved(Rate::RequestsPerS(0)).max(1e-9);
        let reserved = owed.reserved(matches!(limit, Rate::BytesPerS(_)), mean_bytes).ceil() as u64;
        let least = reserved.max(Limits::LEAST);
        match limit {
            Rate::BytesPerS(rate) => Rate::BytesPerS(rate.max(least)),
            Rate::RequestsPerS(rate) => Rate::RequestsPerS(rate.max(least)),
        }
    }

    /// The limits found in `io.max` of directions with a guarantee, in the guarantees' units. For a limit that a reservation
    /// has raised, the value that the controller assigned is returned.
    fn in_force(&self, found: &Limits) -> InForce {
        let of = |direction: Direction, bytes: Option<u64>, requests: Option<u64>| {
            let set = [self.read, self.write][direction as usize]?.limit;
            let found = if matches!(set, Rate::BytesPerS(_)) { bytes } else { requests };
            let assigned = self.assigned[direction as usize].map(Rate::value);
            if found == Some(set.value()) { assigned } else { found }
        };
        InForce {
            read: of(Direction::Read, found.rbps, found.riops),
            write: of(Direction::Write, found.wbps, found.wiops),
        }
    }

    fn limits(&self) -> Limits {
        let mut limits = Limits::NONE;
        match self.read.map(|limit| limit.limit) {
            Some(Rate::BytesPerS(rate)) => limits.rbps = Some(rate),
            Some(Rate::RequestsPerS(rate)) => limits.riops = Some(rate),
            None => {}
        }
        match self.write.map(|limit| limit.limit) {
            Some(Rate::BytesPerS(rate)) => limits.wbps = Some(rate),
            Some(Rate::RequestsPerS(rate)) => limits.wiops = Some(rate),
            None => {}
        }
        limits
    }

    /// The group's rate between its two newest measurements, in the unit of `rate`.
    fn measured(&self, direction: Direction, rate: Rate) -> f64 {
        self.moved.cached.of(direction, rate)
    }

    fn state(&self, totals: &Totals, config: &CachedConfig) -> GroupState {
        let terms = config.tenants.get(&self.names.tenant);
        let direction = |direction, limit: Option<Limit>| {
            let bounds = bounds_of(&self.guarantee, direction)?;
            let limit = limit?;
            let of_total = self.of_total(totals, config, direction);
            let bytes = |pace: &Pace| pace.of(direction, Rate::BytesPerS(0));
            let (moved, missed) = (bytes(&self.moved.cached), bytes(&self.moved.slow));
            let miss_rate = (moved > 0.0).then(|| (missed / moved).min(1.0));
            Some(GuaranteeState {
                of: name(direction).into(),
                unit: if matches!(limit.limit, Rate::BytesPerS(_)) { "bytes" } else { "requests" }.into(),
                guaranteed_per_s: bounds.guaranteed.value(),
                total_per_s: of_total.map(|[_, total]| total.iops.max(total.bytes_per_s.0)),
                measured_per_s: Some(self.measured(direction, limit.limit)),
                miss_rate,
                limit_per_s: limit.limit.value(),
                reason: limit.reason.name().into(),
                because: because(&limit, &explain::part_of(&self.names.shown, name(direction)), of_total.as_ref()),
                binding: "throughput".into(),
                decisions: Vec::new(),
            })
        };
        let group = GroupState {
            tenant: self.names.shown.clone(),
            group: self.names.group.clone(),
            read: direction(Direction::Read, self.read),
            write: direction(Direction::Write, self.write),
            foreign_limit: self.foreign.map(|limits| limits.to_string()),
            matched_by: terms.map_or_else(String::new, |terms| Match::Cgroup(terms.group.clone()).to_string()),
            ..GroupState::default()
        };
        GroupState { lately: self.lately(&group), ..group }
    }

    /// The figures of the group in the units of its guarantees, with the verdicts on these.
    fn lately(&self, group: &GroupState) -> Lately {
        let mut lately = Lately { window_s: self.moved.seconds, ..Lately::default() };
        for of in group.guarantees() {
            let rate = if of.unit == "bytes" { &mut lately.bytes_per_s } else { &mut lately.iops };
            *rate += of.measured_per_s.unwrap_or(0.0);
            lately.targets.push(verdict::of_guarantee(of));
            let at_limit = verdict::at_guarantee(of).filter(|_| self.foreign.is_none());
            lately.throttled_by = lately.throttled_by.take().or(at_limit);
            if lately.because.is_empty() {
                lately.because.clone_from(&of.because);
            }
        }
        lately
    }
}

/// The part of a guarantee that is about a direction.
const fn bounds_of(guarantee: &Guarantee, direction: Direction) -> Option<Bounds> {
    match direction {
        Direction::Read => guarantee.read,
        Direction::Write => guarantee.write,
    }
}

/// A rate as the policy's type.
fn rates(rate: Rate) -> Rates {
    match rate {
        Rate::BytesPerS(rate) => Rates { bytes_per_s: Bytes(rate), ..Rates::default() },
        Rate::RequestsPerS(iops) => Rates { iops, ..Rates::default() },
    }
}

/// Sentence with the reason for a limit. `of_total`: this host's part of the total that the guarantee is, and the total.
fn because(limit: &Limit, who: &str, of_total: Option<&[Rates; 2]>) -> String {
    let because = explain::guarantee(limit, None, who);
    match of_total {
        Some([here, total]) => with_part(&format!("{because}; its guarantee is a part of {total}"), here),
        None => because,
    }
}

/// Name of a direction in records and sentences.
const fn name(direction: Direction) -> &'static str {
    match direction {
        Direction::Read => "read",
        Direction::Write => "write",
    }
}

#[cfg(test)]
#[path = "cgroup_tests.rs"]
mod tests;
