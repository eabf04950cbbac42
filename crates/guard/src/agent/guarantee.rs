//! Guaranteed throughputs without files and clock: counters in, limits and reasons out.
//!
//! ```text
//!  io.stat, io.max of each group ─▶ Guarantees::tick ─▶ control::throughput::Controller ─▶ limits for io.max, records
//!  stat of the slow device ────────▶
//! ```

use std::collections::VecDeque;

use evenkeel_control::throughput::{
    Bandwidth, Controller, Counters, InForce, InvalidConfig, Limit, Rate, SlowDevice, TenantId, TenantSample,
};
use evenkeel_control::{Duration, Instant};

use super::guarantee_record::{Decided, Direction, DirectionState, GuaranteeRecord, GuaranteeState};
use crate::actuator::io_max::Limits;
use crate::config::HybridConfig;
use crate::sensor::cgroup::Usage;

/// Decisions kept of each hybrid device together: with one tenant whose reason changes every second they reach back some
/// ten minutes, and mostly for hours, because a decision for the same reason is one record.
const MAX_RECORDS: usize = 600;
/// Decisions kept of each direction of a tenant at least.
const MIN_RECORDS: usize = 2;

/// What was found out about a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Who.
    pub tenant: TenantId,
    /// What its group has done; `None` if that could not be read now.
    pub usage: Option<Usage>,
    /// Its limits in `io.max`, if they were looked at.
    pub limits: Option<Limits>,
}

/// A group with a guarantee.
#[derive(Debug)]
struct Tenant {
    name: String,
    group: String,
    /// Of the last period that was measured.
    seen: Option<(Instant, Usage)>,
    moved: Moved,
    read: Option<Limit>,
    write: Option<Limit>,
    /// Limits that somebody else set: this tenant is left alone.
    foreign: Option<Limits>,
    /// Numbers of its newest decisions about reads and writes, counted from the first one ever.
    newest: [Option<u64>; 2],
}

/// What a group did in the last period, per second.
#[derive(Clone, Copy, Debug, Default)]
struct Moved {
    hybrid: [f64; 4],
    slow: [f64; 4],
}

/// The tenants of one hybrid device.
#[derive(Debug)]
pub struct Guarantees {
    name: String,
    config: HybridConfig,
    controller: Controller,
    /// By the controller's numbers.
    tenants: Vec<Option<Tenant>>,
    samples: Vec<TenantSample>,
    slow_device: Bandwidth,
    background_bytes_per_s: f64,
    decisions: VecDeque<Decided>,
    /// Decisions that are no longer kept.
    forgotten: u64,
}

impl Guarantees {
    /// A hybrid device whose tenants are not known yet.
    ///
    /// # Errors
    /// A setting that the controller refuses; a configuration that was read has none.
    pub fn new(name: &str, config: &HybridConfig) -> Result<Self, InvalidConfig> {
        Ok(Self {
            name: name.to_owned(),
            config: config.clone(),
            controller: Controller::new(&config.controller())?,
            tenants: Vec::new(),
            samples: Vec::new(),
            slow_device: Bandwidth::default(),
            background_bytes_per_s: 0.0,
            decisions: VecDeque::new(),
            forgotten: 0,
        })
    }

    /// Name of the hybrid device in the configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its settings.
    pub fn config(&self) -> &HybridConfig {
        &self.config
    }

    /// Takes in a group with the guarantee of `tenant`; `None` if the configuration has no such tenant.
    ///
    /// # Errors
    /// A guarantee that the controller refuses; a configuration that was read has none.
    pub fn join(&mut self, tenant: &str, group: &str) -> Result<Option<TenantId>, InvalidConfig> {
        let Some(config) = self.config.tenants.get(tenant) else { return Ok(None) };
        let id = self.controller.join(&config.guarantee())?;
        let index = id.0 as usize;
        if self.tenants.len() <= index {
            self.tenants.resize_with(index + 1, || None);
        }
        let (name, group) = (tenant.to_owned(), group.to_owned());
        self.tenants[index] = Some(Tenant {
            name,
            group,
            seen: None,
            moved: Moved::default(),
            read: None,
            write: None,
            foreign: None,
            newest: [None; 2],
        });
        self.list();
        Ok(Some(id))
    }

    /// Lets go of a group that is gone.
    pub fn leave(&mut self, tenant: TenantId) {
        self.controller.leave(tenant);
        if let Some(known) = self.tenants.get_mut(tenant.0 as usize) {
            *known = None;
        }
    }

    /// Notes that somebody else has set a tenant's limits, which are left alone from now on.
    pub fn is_foreign(&mut self, tenant: TenantId, limits: Limits) {
        if let Some(Some(known)) = self.tenants.get_mut(tenant.0 as usize) {
            known.foreign = Some(limits);
        }
    }

    /// Measures and decides. `slow` is what the slow device has done, if that could be read. O(tenants).
    pub fn tick(&mut self, now: Instant, slow: Option<SlowDevice>, found: &[Found]) {
        self.samples.clear();
        for found in found {
            let Some(Some(tenant)) = self.tenants.get_mut(found.tenant.0 as usize) else { continue };
            let Some(usage) = found.usage else { continue };
            tenant.measure(now, usage);
            self.samples.push(TenantSample {
                hybrid: usage.hybrid,
                slow: Some(usage.slow),
                in_force: found.limits.map(|limits| tenant.in_force(&limits)),
                ..TenantSample::new(found.tenant)
            });
        }
        self.controller.observe(now, slow, &self.samples);
        let decision = self.controller.tick(now);
        (self.slow_device, self.background_bytes_per_s) = (decision.slow_device, decision.background_bytes_per_s);
        self.list();
        self.record(now);
    }

    /// Takes over what the controller decided last.
    fn list(&mut self) {
        for assignment in self.controller.decision().assignments {
            if let Some(Some(tenant)) = self.tenants.get_mut(assignment.tenant.0 as usize) {
                (tenant.read, tenant.write) = (assignment.read, assignment.write);
            }
        }
    }

    fn record(&mut self, now: Instant) {
        let most = MAX_RECORDS.max(2 * MIN_RECORDS * self.tenants.len());
        for tenant in self.tenants.iter_mut().flatten() {
            for (direction, limit) in [(Direction::Read, tenant.read), (Direction::Write, tenant.write)] {
                let Some(limit) = limit else { continue };
                let measured = tenant.measured(direction, limit.limit);
                // A decision for the same reason lengthens the record there is, if it is still there.
                let newest = &mut tenant.newest[direction as usize];
                let known = newest.and_then(|newest| newest.checked_sub(self.forgotten));
                let known = known.and_then(|at| self.decisions.get_mut(at as usize));
                if let Some(known) = known.filter(|known| known.limit.reason.name() == limit.reason.name()) {
                    known.again(now, limit, measured);
                    continue;
                }
                if self.decisions.len() >= most {
                    self.decisions.pop_front();
                    self.forgotten += 1;
                }
                *newest = Some(self.forgotten + self.decisions.len() as u64);
                let (name, group) = (tenant.name.clone(), tenant.group.clone());
                self.decisions.push_back(Decided::new(now, direction, name, group, limit, measured));
            }
        }
    }

    /// The limits that each tenant is to have; a limit that nothing was guaranteed about is `None` and stays as it is. Not
    /// those whose limits somebody else has set.
    pub fn limits(&self) -> impl Iterator<Item = (TenantId, Limits)> {
        self.tenants.iter().enumerate().filter_map(|(index, tenant)| {
            let tenant = tenant.as_ref().filter(|tenant| tenant.foreign.is_none())?;
            Some((TenantId(index as u32), tenant.limits()))
        })
    }

    /// What is known of the tenants.
    pub fn tenants(&self) -> Vec<GuaranteeState> {
        let mut tenants: Vec<_> = self.tenants.iter().flatten().map(|tenant| tenant.state(&self.config)).collect();
        tenants.sort_by(|a, b| a.group.cmp(&b.group));
        tenants
    }

    /// What the slow device is taken to give.
    pub fn slow_device(&self) -> Bandwidth {
        self.slow_device
    }

    /// What the slow device did for nobody with a guarantee, in bytes per second.
    pub fn background_bytes_per_s(&self) -> f64 {
        self.background_bytes_per_s
    }

    /// Its decisions, the newest first.
    pub fn records(&self) -> impl Iterator<Item = GuaranteeRecord> {
        let mut decisions: Vec<&Decided> = self.decisions.iter().collect();
        decisions.sort_by_key(|decision| std::cmp::Reverse(decision.until));
        decisions.into_iter().map(|decision| decision.record(&self.name))
    }
}

impl Tenant {
    fn measure(&mut self, now: Instant, usage: Usage) {
        let before = self.seen.replace((now, usage));
        self.moved = Moved::default();
        let Some((at, before)) = before else { return };
        let seconds = now.since(at).as_secs_f64();
        if seconds > 0.0 {
            let moved = |before: Counters, after: Counters| rates(before, after, seconds);
            self.moved = Moved { hybrid: moved(before.hybrid, usage.hybrid), slow: moved(before.slow, usage.slow) };
        }
    }

    /// The found limits of what was guaranteed, in the guarantees' units.
    fn in_force(&self, found: &Limits) -> InForce {
        let of = |limit: Option<Limit>, bytes: Option<u64>, requests: Option<u64>| match limit.map(|limit| limit.limit)
        {
            Some(Rate::BytesPerS(_)) => bytes,
            Some(Rate::RequestsPerS(_)) => requests,
            None => None,
        };
        InForce { read: of(self.read, found.rbps, found.riops), write: of(self.write, found.wbps, found.wiops) }
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

    /// What it got in the last period, in the unit of `rate`.
    fn measured(&self, direction: Direction, rate: Rate) -> f64 {
        self.moved.hybrid[place(direction, rate)]
    }

    fn state(&self, config: &HybridConfig) -> GuaranteeState {
        let guarantee = config.tenants.get(&self.name).map(|tenant| tenant.guarantee());
        let direction = |direction, limit: Option<Limit>| {
            let goal = guarantee.and_then(|guarantee| match direction {
                Direction::Read => guarantee.read,
                Direction::Write => guarantee.write,
            })?;
            let limit = limit?;
            let bytes = place(direction, Rate::BytesPerS(0));
            let (moved, missed) = (self.moved.hybrid[bytes], self.moved.slow[bytes]);
            let miss_rate = (moved > 0.0).then(|| (missed / moved).min(1.0));
            let measured = self.measured(direction, limit.limit);
            Some(DirectionState::new(goal.guaranteed, measured, miss_rate, limit))
        };
        GuaranteeState {
            tenant: self.name.clone(),
            group: self.group.clone(),
            read: direction(Direction::Read, self.read),
            write: direction(Direction::Write, self.write),
            foreign_limit: self.foreign.map(|limits| limits.to_string()),
        }
    }
}

/// Where a figure stands in [`Moved`].
const fn place(direction: Direction, rate: Rate) -> usize {
    match (direction, rate) {
        (Direction::Read, Rate::BytesPerS(_)) => 0,
        (Direction::Write, Rate::BytesPerS(_)) => 1,
        (Direction::Read, Rate::RequestsPerS(_)) => 2,
        (Direction::Write, Rate::RequestsPerS(_)) => 3,
    }
}

/// Counters that began anew have done nothing.
fn rates(before: Counters, after: Counters, seconds: f64) -> [f64; 4] {
    let rate = |before: u64, after: u64| after.saturating_sub(before) as f64 / seconds;
    [
        rate(before.read_bytes, after.read_bytes),
        rate(before.written_bytes, after.written_bytes),
        rate(before.reads, after.reads),
        rate(before.writes, after.writes),
    ]
}

/// How often is measured and decided.
pub fn interval(config: &HybridConfig) -> Duration {
    config.interval()
}

#[cfg(test)]
#[path = "guarantee_tests.rs"]
mod tests;
