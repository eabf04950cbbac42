//! Enforcement points: each reads its sensors and sets its knobs; [`crate::loops`] makes the decisions. The [`Agent`] ticks all
//! points of this host.
//!
//! ```text
//!  diskstats ─▶ Agent::tick ─▶ each point: sample ─▶ decide ─▶ set (journal first)
//!  Map ───────▶ Agent::follow            └─▶ Agent::state, Agent::records
//! ```

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::path::Path;
use std::sync::Arc;

use evenkeel_control::Instant;
use evenkeel_control::pool::Demand;
use evenkeel_control::slots::Summary;
use evenkeel_control::throughput::InvalidConfig;
use evenkeel_control::units::Fractions;
use evenkeel_policy::decision::{self, DecisionRecord, seconds};

use crate::config::Config;
use crate::discovery::{Map, Roots};
use crate::journal::Journal;
use crate::loops::packets::Packets;
use crate::loops::record::State;
use crate::sensor::diskstats::{DeviceNumber, Tracker};
use crate::{actuator, error};

pub mod cgroup;
#[cfg(test)]
mod fake_host;
mod groups;
pub mod local;
pub mod osd;
pub mod osds;
pub mod queue_depth;

use cgroup::{Cgroup, Unable};
use local::Local;
use osds::Osds;
use queue_depth::QueueDepth;

/// The file of block-device statistics whose content [`Agent::tick`] takes.
pub const DISKSTATS: &str = "/proc/diskstats";

/// All enforcement points of this host.
#[derive(Default)]
pub struct Agent {
    boot_id: String,
    interval_ms: f64,
    tracker: Tracker,
    /// The enforcement point that delays packets to clients.
    pub packets: Packets,
    cgroups: Vec<Cgroup>,
    /// The enforcement points that throttle control groups for latency targets, one for each device.
    pub locals: Vec<Local>,
    queue_depths: Vec<QueueDepth>,
    osds: Option<Arc<Osds>>,
    /// True if this host decides about arrays' slots (requests in flight) alone, without summaries of other hosts.
    alone: bool,
    /// True if tenants' limits and guarantees are totals over all members of a cluster.
    shares_totals: bool,
    /// The function that returns the minute of the day; without it limits with hours apply at all hours.
    minute_of_day: Option<fn() -> u16>,
    ticks: u64,
    ticked_at: Instant,
}

impl Agent {
    /// An agent for the pools that `config` names; `cgroups` is where cgroup v2 is mounted. Changes nothing on the host.
    ///
    /// # Errors
    /// A message that names the missing part and its cure.
    pub fn open(config: &Config, roots: &Roots, cgroups: &Path) -> Result<Self, Unable> {
        let setting = |name: &str, problem| Unable::Setting { name: name.to_owned(), problem };
        let arrays = config.arrays.iter().map(|(name, array)| {
            QueueDepth::new(name, array, &config.cluster, roots).map_err(|problem| setting(name, problem))
        });
        Ok(Self {
            boot_id: roots.boot_id(),
            interval_ms: config.interval().as_millis_f64(),
            packets: Packets::new(config.clone()).map_err(|problem| setting("*", problem))?,
            cgroups: cgroup::open(config, roots, cgroups)?,
            locals: local::open(config, roots, cgroups)?,
            queue_depths: arrays.collect::<Result<_, _>>()?,
            ..Self::default()
        })
    }

    /// Takes a newer policy without a gap: a setting in force stays until the newer policy changes it, and gets its original
    /// value back where the newer policy sets nothing. Controllers keep what they learned if their configuration is the same.
    /// OSDs are not reloaded.
    ///
    /// # Errors
    /// A message that names the missing part and its cure; on an error nothing has been changed.
    pub fn reload(
        &mut self,
        config: &Config,
        (roots, cgroups): (&Roots, &Path),
        journal: Option<&mut Journal>,
    ) -> Result<Errors, Unable> {
        let new = Self::open(config, roots, cgroups)?;
        self.packets.reload(config).map_err(|problem| Unable::Setting { name: "*".to_owned(), problem })?;
        let locals = succeed(&mut self.locals, new.locals, Local::name, Local::succeed);
        let cgroups = succeed(&mut self.cgroups, new.cgroups, Cgroup::name, Cgroup::succeed);
        let queues = succeed(&mut self.queue_depths, new.queue_depths, QueueDepth::name, |new, old| {
            new.succeed(old);
            None
        });
        if self.alone {
            self.alone();
        }
        if self.shares_totals {
            self.share_totals();
        }
        let mut errors = Errors::default();
        if let Some(journal) = journal {
            for (_, result) in journal.restore_left() {
                errors.take(result);
            }
            cgroups.into_iter().for_each(|old| old.end(journal, &mut errors));
            queues.into_iter().for_each(|old| old.end(journal, &mut errors));
            locals.into_iter().for_each(|old| old.end(journal, &mut errors));
        }
        Ok(errors)
    }

    /// From now on limits with hours apply at these hours only, by this function, which returns the minute of the day.
    pub fn keep_hours(&mut self, minute_of_day: fn() -> u16) {
        self.minute_of_day = Some(minute_of_day);
    }

    /// Adds the OSDs, which are sampled and set by threads of their own.
    pub fn add_osds(&mut self, osds: Arc<Osds>) {
        self.osds = Some(osds);
    }

    /// Takes over a new map of clients, volumes and devices. Controllers keep their state.
    pub fn follow(&mut self, map: Map) {
        self.packets.follow(map);
    }

    /// One tick: measures, decides, and changes settings; without a journal no setting is changed. `diskstats` is the content
    /// of [`DISKSTATS`] at `now`. The caller has to put [`Packets::delays`] in force. An error at one enforcement point does
    /// not keep the others from their work; all errors are returned.
    pub fn tick(&mut self, now: Instant, diskstats: &[u8], journal: Option<&mut Journal>) -> Vec<Error> {
        (self.ticks, self.ticked_at) = (self.ticks + 1, now);
        let mut tick = Tick { journal, taken: BTreeMap::new(), errors: Errors::default() };
        let observed = self.tracker.observe(now, diskstats).map_err(|fault| fault.in_file(Path::new(DISKSTATS)));
        let observed = tick.errors.take(observed).is_some();
        self.packets.tick(now, &self.tracker, observed);
        if let Some(minute_of_day) =
            self.minute_of_day.filter(|_| self.locals.iter().any(|pool| pool.mind.keeps_hours()))
        {
            let minute = minute_of_day();
            self.locals.iter_mut().for_each(|pool| pool.mind.set_minute(minute));
        }
        // After a reload a group may be limited by another point than before: the earlier one releases it before the later one
        // reads its limits.
        self.cgroups.iter_mut().for_each(|pool| pool.release(&mut tick));
        self.locals.iter().for_each(|pool| pool.claim(&mut tick));
        self.locals.iter_mut().for_each(|pool| pool.tick(now, observed.then_some(&self.tracker), &mut tick));
        self.cgroups.iter_mut().for_each(|pool| pool.tick(now, &mut tick));
        self.queue_depths.iter_mut().for_each(|pool| pool.tick(now, observed.then_some(&self.tracker), &mut tick));
        tick.errors.0
    }

    /// Summaries of this host's volumes over the control period that has just ended, by name of the array, to be sent to the
    /// other hosts.
    pub fn summaries(&mut self) -> BTreeMap<String, Summary> {
        let told = self.queue_depths.iter_mut().filter_map(|pool| Some((pool.array.take_summary()?, pool)));
        told.map(|(summary, pool)| (pool.name().to_owned(), summary)).collect()
    }

    /// Shares out the slots (requests in flight) of every array in `group`, which maps an array's name to the sum of all
    /// hosts' summaries for one period. `ramp`: fraction of this host's share that the host takes, 0 to 1. Queue lengths are
    /// set at the next tick.
    pub fn decide(&mut self, group: &BTreeMap<&str, Summary>, ramp: f64) {
        self.alone = false;
        for pool in &mut self.queue_depths {
            if let Some(summary) = group.get(pool.name()) {
                pool.decide(summary, ramp);
            }
        }
    }

    /// From now on this host shares out arrays' slots (requests in flight) by its own measurements alone, until
    /// [`Self::decide`] is called.
    pub fn alone(&mut self) {
        self.alone = true;
        self.queue_depths.iter_mut().for_each(|pool| pool.array.alone());
    }

    /// From now on limits and guarantees of control groups are totals over all members of a cluster: the least part of each
    /// applies here, until [`Self::divide`] is called.
    pub fn share_totals(&mut self) {
        self.shares_totals = true;
        self.locals.iter_mut().for_each(Local::share_totals);
        self.cgroups.iter_mut().for_each(Cgroup::share_totals);
    }

    /// True after [`Self::share_totals`].
    pub const fn shares_totals(&self) -> bool {
        self.shares_totals
    }

    /// Demand for the totals of tenants with control groups here, by names of pool and tenant; for guarantees by
    /// [`guarantee_total`](evenkeel_policy::cluster::guarantee_total).
    pub fn demands(&mut self) -> BTreeMap<(String, String), Demand> {
        let mut demands: BTreeMap<(String, String), Demand> = BTreeMap::new();
        let of_limits = self.locals.iter_mut().map(|point| (point.mind.demands(), &point.mind.config().pool));
        let of_guarantees = self.cgroups.iter_mut().map(|point| (point.mind.demands(), &point.mind.config().pool));
        for (of_point, pool) in of_limits.chain(of_guarantees) {
            for (total, of) in of_point {
                // Each device of a pool has its part of a limit, and a guarantee of its own.
                let sum = demands.entry((pool.clone(), total)).or_default();
                for n in [0, 1] {
                    sum.limit[n] += of.limit[n];
                    sum.arrived[n] += of.arrived[n];
                    sum.served[n] += of.served[n];
                }
                sum.queued += of.queued;
            }
        }
        demands
    }

    /// Makes these fractions of tenants' totals apply from the next tick on, by the names of [`Self::demands`]; other totals keep
    /// theirs.
    pub fn divide(&mut self, parts: &BTreeMap<(String, String), Fractions>) {
        for ((pool, total), fractions) in parts {
            for point in self.locals.iter_mut().filter(|point| point.mind.config().pool == *pool) {
                point.mind.set_part(total, fractions.limit);
            }
            for point in self.cgroups.iter_mut().filter(|point| point.mind.config().pool == *pool) {
                point.mind.set_part(total, fractions.limit);
            }
        }
    }

    /// The state as of the latest tick. The caller fills in the fields that only the caller knows, such as `acting`.
    pub fn state(&self) -> State {
        let osds = self.osds.iter().flat_map(|osds| osds.states());
        let pools = self.packets.states(&self.tracker).chain(self.cgroups.iter().map(Cgroup::state));
        let pools = pools.chain(self.locals.iter().map(Local::state));
        State {
            version: env!("CARGO_PKG_VERSION").into(),
            boot_id: self.boot_id.clone(),
            uptime_s: seconds(self.ticked_at),
            ticks_total: self.ticks,
            interval_ms: self.interval_ms,
            pools: pools.chain(self.queue_depths.iter().map(QueueDepth::state)).chain(osds).collect(),
            notes: self.packets.map().notes.iter().cloned().chain(self.packets.note()).collect(),
            ..State::default()
        }
    }

    /// The newest `count` decisions, newest first, about the pool of this name; without a name about all pools.
    pub fn records(&self, pool: Option<&str>, count: usize) -> Vec<DecisionRecord> {
        let wanted = |name: &str| pool.is_none_or(|pool| pool == name);
        let cgroups = self.cgroups.iter().filter(|known| wanted(known.name())).flat_map(|known| known.mind.records());
        let locals = self.locals.iter().filter(|known| wanted(known.name()));
        let locals = locals.flat_map(|known| known.mind.records(count));
        let arrays =
            self.queue_depths.iter().filter(|known| wanted(known.name())).flat_map(|known| known.array.records());
        let osds = self.osds.iter().flat_map(|osds| osds.records(pool));
        let groups = cgroups.chain(locals);
        decision::newest(self.packets.records(pool).chain(groups).chain(arrays).chain(osds).collect(), count)
    }

    /// The block devices of all pools, each after the name of its pool: a device number, or the kernel's name of a disk.
    pub fn devices(&self) -> Vec<(String, String)> {
        let packets = self.packets.devices().map(|(pool, number)| named(pool, &number));
        let cached = self.cgroups.iter().filter_map(|point| Some(named(point.name(), &point.device()?)));
        let of_local = |point: &Local| point.devices().map(|number| named(point.name(), &number)).collect::<Vec<_>>();
        let of_array = |point: &QueueDepth| point.disks().map(|disk| named(point.name(), &disk)).collect::<Vec<_>>();
        let locals = self.locals.iter().flat_map(of_local);
        let arrays = self.queue_depths.iter().flat_map(of_array);
        packets.chain(cached).chain(locals).chain(arrays).collect()
    }

    /// Names of all pools that the agent controls, and of the OSDs.
    pub fn names(&self) -> Vec<String> {
        let osds = self.osds.iter().flat_map(|osds| osds.names());
        let arrays = self.queue_depths.iter().map(QueueDepth::name);
        let groups = self.cgroups.iter().map(Cgroup::name).chain(self.locals.iter().map(Local::name));
        let pools = self.packets.names().chain(groups).chain(arrays);
        pools.map(str::to_owned).chain(osds).collect()
    }
}

/// A device, with the name of its pool.
fn named(pool: &str, device: &dyn Display) -> (String, String) {
    (pool.to_owned(), device.to_string())
}

/// Puts the points of the newer policy in the place of `points`: each succeeds the old point of its name. Returns the old points
/// that have to be ended.
fn succeed<P>(
    points: &mut Vec<P>,
    mut new: Vec<P>,
    name: fn(&P) -> &str,
    succeed: fn(&mut P, P) -> Option<P>,
) -> Vec<P> {
    let mut ended = Vec::new();
    for old in std::mem::take(points) {
        match new.iter_mut().find(|new| name(new) == name(&old)) {
            Some(new) => ended.extend(succeed(new, old)),
            None => ended.push(old),
        }
    }
    *points = new;
    ended
}

/// An error during a tick; the rest of the tick is carried out nevertheless.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A measurement cannot be read.
    #[error(transparent)]
    Sense(#[from] error::Error),
    /// A setting cannot be changed.
    #[error(transparent)]
    Act(#[from] actuator::Error),
    /// A cached device that has appeared since the start cannot be used.
    #[error(transparent)]
    Unable(#[from] Unable),
    /// The controller refuses a tenant's guarantee.
    #[error("guarantee of {tenant}: {problem}")]
    Guarantee {
        /// Name of the tenant.
        tenant: String,
        /// The setting at fault, and which values are allowed.
        problem: InvalidConfig,
    },
}

/// The state that all enforcement points share during one tick.
pub struct Tick<'a> {
    /// The journal, to which a setting is written before it is changed; `None`: the tick changes no setting.
    pub journal: Option<&'a mut Journal>,
    /// Devices for whose latency targets points throttle groups, with the names of the points: of each device one point.
    pub taken: BTreeMap<DeviceNumber, String>,
    /// The errors that have occurred in this tick so far.
    pub errors: Errors,
}

/// The errors of one tick or one reload; none of them ends the work on other points.
#[derive(Debug, Default)]
pub struct Errors(pub Vec<Error>);

impl Errors {
    /// Adds an error to the list.
    pub fn push(&mut self, error: impl Into<Error>) {
        self.0.push(error.into());
    }

    /// The value of `result`; an error is added to the list, and the value is `None`.
    pub fn take<T>(&mut self, result: Result<T, impl Into<Error>>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }
}

impl Tick<'_> {
    /// Has a setting restored, if settings may be changed.
    pub(crate) fn restore<T>(&mut self, restore: impl FnOnce(&mut Journal) -> Result<T, actuator::Error>) {
        if let Some(journal) = self.journal.as_deref_mut() {
            self.errors.take(restore(journal));
        }
    }
}

impl fmt::Debug for Tick<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tick").field("acts", &self.journal.is_some()).field("errors", &self.errors).finish()
    }
}
