//! The enforcement point for control groups: finds groups, reads their counters, and writes their limits.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use evenkeel_control::throughput::{InvalidConfig, TenantId};
use evenkeel_control::{Duration, Instant};
use evenkeel_policy::config::Match;

use super::groups::{Groups, counts_here};
use super::{Error, Errors, Tick};
use crate::actuator::io_max::{Change, Limits};
use crate::config::{CachedConfig, Config};
use crate::discovery::Roots;
use crate::discovery::groups::Names;
use crate::discovery::stack;
use crate::journal::Journal;
use crate::loops::Due;
use crate::loops::cgroup::{Found, Guarantees};
use crate::loops::record::{At, CgroupState, PoolState};
use crate::sensor::cache::{CacheState, Cached, NotUsable};
use crate::sensor::diskstats::DeviceNumber;

/// Interval between searches for the cached device while it is not on this host.
const FIND_EVERY: Duration = Duration::from_secs(1);

/// An error because of which throughput guarantees cannot be enforced.
#[derive(Debug, thiserror::Error)]
pub enum Unable {
    /// A cached device cannot be used.
    #[error("pools.{name}: {cause}")]
    Device {
        /// Name of the cached device (or pool) in the configuration.
        name: String,
        /// The fault, and how to cure it.
        cause: NotUsable,
    },
    /// A controller refuses a setting.
    #[error("pools.{name}: {problem}")]
    Setting {
        /// Name of the cached device (or pool) in the configuration.
        name: String,
        /// The refused setting, and which values are allowed.
        problem: InvalidConfig,
    },
    /// The folder at this path is no mounted cgroup v2.
    #[error(
        "{} holds no cgroup.controllers: start the system with systemd.unified_cgroup_hierarchy=1; only where nothing is mounted there, not even cgroup v1, mount cgroup v2 (`mount -t cgroup2 cgroup2 {}`)",
        .0.display(), .0.display()
    )]
    NoGroups(PathBuf),
    /// The file at this path (`cgroup.controllers`) does not list the io controller.
    #[error(
        "{} does not list io: this kernel has no io controller, or cgroup v1 uses it; start the system with cgroup_no_v1=all",
        .0.display()
    )]
    NoController(PathBuf),
}

/// The enforcement point for one cached device: its control groups, and the limits set for them.
#[derive(Debug)]
pub struct Cgroup {
    pub(crate) mind: Guarantees,
    roots: Roots,
    /// The open cached device; `None` while it is not on this host.
    device: Option<Cached>,
    /// True if requests to the device count for totals on this host.
    counts: bool,
    due: Due,
    find_due: Due,
    groups: Groups<TenantId>,
    found: Vec<Found>,
    cache: Option<CacheState>,
    notes: Vec<String>,
    buffer: Vec<u8>,
    /// True if guarantees are totals over all members of a cluster.
    shares_totals: bool,
}

/// Opens an enforcement point for each cached device of `config`; `cgroups` is where cgroup v2 is mounted. Changes no
/// setting.
///
/// # Errors
/// A message that names the missing part and its cure. A device that is not on this host is no error: all hosts may share the
/// policy.
pub fn open(config: &Config, roots: &Roots, cgroups: &Path) -> Result<Vec<Cgroup>, Unable> {
    // What is not here needs nothing of this host.
    let is_here = |device: &CachedConfig| !matches!(find(device, roots), Err(NotUsable::NoDevice(_)));
    if config.cached.values().any(is_here) {
        has_controller(cgroups)?;
    }
    config.cached.iter().map(|(name, config)| Cgroup::open(name, config, roots, cgroups)).collect()
}

/// True if requests to this device count for totals on this host: the server of an NBD device counts those that reach it.
fn counts(roots: &Roots, device: &Cached) -> bool {
    let made = device.made();
    let below = stack::whole(roots, made.slow);
    [made.device, made.slow].into_iter().chain(below).all(counts_here)
}

/// Checks that `cgroups`, where cgroup v2 is mounted, has the io controller.
pub(super) fn has_controller(cgroups: &Path) -> Result<(), Unable> {
    let controllers = cgroups.join("cgroup.controllers");
    let listed = std::fs::read_to_string(&controllers).map_err(|_| Unable::NoGroups(cgroups.to_owned()))?;
    match listed.split_ascii_whitespace().any(|name| name == "io") {
        true => Ok(()),
        false => Err(Unable::NoController(controllers)),
    }
}

impl Cgroup {
    fn open(name: &str, config: &CachedConfig, roots: &Roots, cgroups: &Path) -> Result<Self, Unable> {
        let device = match find(config, roots) {
            Ok(device) => Some(device),
            Err(NotUsable::NoDevice(_)) => None,
            Err(cause) => return Err(Unable::Device { name: name.to_owned(), cause }),
        };
        let mind = Guarantees::new(name, config);
        let mind = mind.map_err(|problem| Unable::Setting { name: name.to_owned(), problem })?;
        let counts = device.as_ref().is_some_and(|device| counts(roots, device));
        Ok(Self {
            mind,
            roots: roots.clone(),
            device,
            counts,
            due: Due::default(),
            find_due: Due::default(),
            groups: Groups::new(cgroups),
            found: Vec::new(),
            cache: None,
            notes: Vec::new(),
            buffer: Vec::new(),
            shares_totals: false,
        })
    }

    /// Name of the point's cached device in the configuration.
    pub fn name(&self) -> &str {
        self.mind.name()
    }

    /// From now on guarantees are totals over all members of a cluster: the least part of each applies here, until
    /// [`Guarantees::set_part`] is called.
    pub fn share_totals(&mut self) {
        self.shares_totals = true;
    }

    /// Takes the place of `old`, the point of the previous policy. If no setting differs, `old` simply goes on. If only the
    /// device is the same, the new point takes over the limits of `old`: they stay in force until the new point sets its own,
    /// and are restored for groups that the new policy does not limit. If the device differs, `old` is returned and has to be
    /// ended.
    #[must_use]
    pub fn succeed(&mut self, mut old: Self) -> Option<Self> {
        let number = |point: &Self| point.device.as_ref().map(|device| device.made().device);
        // One that was made anew since has no limits.
        let is_still = |old: &Self| {
            old.device.as_ref().is_none_or(|device| device.is_still(&old.roots, &old.mind.config().device))
        };
        if old.mind.config() == self.mind.config() {
            *self = old;
        } else if number(self) == number(&old) && is_still(&old) {
            self.mind.take_parts(&mut old.mind);
            self.groups.inherit(old.groups);
        } else {
            return Some(old);
        }
        None
    }

    /// Ends this point, and restores all limits that the point has set.
    pub fn end(self, journal: &mut Journal, errors: &mut Errors) {
        self.groups.end(journal, errors);
    }

    /// Restores limits of the previous policy for groups without a guarantee in this one, before another point limits them. Call
    /// it at every tick of the agent, before other points set limits.
    pub fn release(&mut self, tick: &mut Tick<'_>) {
        let config = self.mind.config();
        self.groups.restore_others(tick, |group| config.tenant_of(group).is_some());
    }

    /// If the point's control interval is over at `now`: measures, decides, and sets limits. Call it at every tick of the
    /// agent; most calls do nothing.
    pub fn tick(&mut self, now: Instant, tick: &mut Tick<'_>) {
        if self.device.is_none() && self.find_due.is_over(now, FIND_EVERY) {
            self.look(tick);
        }
        let Some(mut device) = self.device.take() else { return };
        if self.due.is_over(now, self.mind.config().interval()) {
            self.notes.clear();
            if !device.is_still(&self.roots, &self.mind.config().device) {
                return self.lose(tick);
            }
            self.follow(&device, tick);
            self.groups.restore_inherited(tick);
            let slow = tick.errors.take(device.slow_device());
            self.measure(&device, tick);
            self.mind.share_totals(self.shares_totals && self.counts);
            self.mind.tick(now, slow, &self.found);
            if let Some(status) = tick.errors.take(device.status()) {
                self.cache = status;
            }
            self.act(tick);
        }
        self.device = Some(device);
    }

    /// Searches for the cached device, which is not on this host so far.
    fn look(&mut self, tick: &mut Tick<'_>) {
        self.notes.clear();
        match find(self.mind.config(), &self.roots) {
            Ok(device) => {
                self.counts = counts(&self.roots, &device);
                self.device = Some(device);
            }
            Err(cause @ NotUsable::NoDevice(_)) => {
                self.notes.push(format!(
                    "not on this host: {cause}; attach it, or correct devices of the pool: the agent searches every second"
                ));
            }
            Err(cause) => {
                self.notes.push(cause.to_string());
                tick.errors.push(Unable::Device { name: self.name().to_owned(), cause });
            }
        }
    }

    /// Restores all limits after the device has disappeared or another device has got its number; the search for the device
    /// begins again.
    fn lose(&mut self, tick: &mut Tick<'_>) {
        tracing::warn!(
            "pool {}: its device or one below it is gone; the agent restores the limits that it had changed, and searches for the device",
            self.mind.name()
        );
        self.groups.leave(0..self.groups.list.len(), tick, |id| self.mind.leave(id));
        self.groups.restore_inherited(tick);
        (self.cache, self.find_due) = (None, Due::default());
    }

    /// Adds control groups that have appeared since the previous search.
    fn follow(&mut self, device: &Cached, tick: &mut Tick<'_>) {
        let tenants = self.mind.config().tenants.iter();
        let tenants: Vec<(String, Match)> =
            tenants.map(|(name, terms)| (name.clone(), Match::Cgroup(terms.group.clone()))).collect();
        for (tenant, entry) in tenants {
            let is_its = |group: &str| self.mind.config().tenant_of(group) == Some(tenant.as_str());
            let entry = (tenant.as_str(), &entry);
            let found = self.groups.find(&Names::default(), entry, is_its, &mut self.notes, &mut tick.errors);
            for name in found.into_iter().flatten() {
                self.take_in(device, &tenant, name, tick);
            }
        }
    }

    fn take_in(&mut self, device: &Cached, tenant: &str, name: String, tick: &mut Tick<'_>) {
        let Some(stat) = self.groups.counters(&name, &mut self.notes, &mut tick.errors) else { return };
        match self.mind.join(tenant, &name) {
            Ok(Some(id)) => {
                self.groups.take_in(name, stat, device.made().device, id);
            }
            // A tenant of the configuration that was just read from it.
            Ok(None) => {}
            Err(problem) => tick.errors.push(Error::Guarantee { tenant: tenant.to_owned(), problem }),
        }
    }

    /// Reads the counters and limits of every group; forgets groups that are gone.
    fn measure(&mut self, device: &Cached, tick: &mut Tick<'_>) {
        let made = device.made();
        self.found.clear();
        let mut gone = Vec::new();
        for (at, group) in self.groups.list.iter_mut().enumerate() {
            let usage = tick.errors.take(group.stat.usage(&mut self.buffer, made.device, Some(made.slow)));
            let limits = if usage == Some(None) { Some(None) } else { tick.errors.take(group.row.read()) };
            if limits == Some(None) {
                gone.push(at);
            } else {
                self.found.push(Found { tenant: group.own, usage: usage.flatten(), limits: limits.flatten() });
            }
        }
        self.groups.leave(gone.into_iter(), tick, |id| self.mind.leave(id));
    }

    fn act(&mut self, tick: &mut Tick<'_>) {
        let wanted: BTreeMap<TenantId, Limits> = self.mind.limits().collect();
        let groups = self.groups.list.iter().enumerate();
        let wanted: Vec<(usize, Limits)> =
            groups.filter_map(|(at, group)| Some((at, *wanted.get(&group.own)?))).collect();
        for (at, change) in self.groups.write(&wanted, tick) {
            // A group that is gone is forgotten in the next period.
            if let Some(Change::Foreign(limits)) = change {
                tracing::warn!(
                    "another program has set limits in io.max of a group of pool {} (`evenkeel guard status` shows which): they stay, and the group's guarantee is not enforced until the agent restarts",
                    self.mind.name()
                );
                self.mind.is_foreign(self.groups.list[at].own, limits);
            }
        }
    }

    /// Number of the cached device; `None` while it is not on this host.
    pub fn device(&self) -> Option<DeviceNumber> {
        self.device.as_ref().map(|device| device.made().device)
    }

    /// The newest measurements and decisions of this enforcement point.
    pub fn state(&self) -> PoolState {
        let made = self.device.as_ref().map(Cached::made);
        let at = CgroupState {
            kind: made.map_or_else(String::new, |made| made.kind.name().into()),
            device_number: made.map_or_else(String::new, |made| made.device.to_string()),
            fast_number: made.and_then(|made| made.fast).map(|number| number.to_string()),
            slow_number: made.map_or_else(String::new, |made| made.slow.to_string()),
            cache: self.cache.clone(),
            ..self.mind.state()
        };
        PoolState {
            name: self.name().to_owned(),
            method: self.mind.config().tuning.method.name().into(),
            notes: self.notes.clone(),
            lately: at.sum(),
            at: At::Cgroup(at),
            ..PoolState::default()
        }
    }
}

fn find(config: &CachedConfig, roots: &Roots) -> Result<Cached, NotUsable> {
    Cached::open(roots, &config.device, config.cache.slow.as_deref(), config.cache.fast.as_deref())
}

#[cfg(test)]
#[path = "cgroup_tests.rs"]
mod tests;
