//! The agent's work at each tick: measuring, deciding and setting at all enforcement points of this host.
//!
//! ```text
//!  diskstats ─▶ Agent::tick ─▶ each point: sample ─▶ decide ─▶ set (journal first)
//!  Map ───────▶ Agent::follow            └─▶ Agent::state, Agent::records
//! ```

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use evenkeel_control::Instant;
use evenkeel_control::slots::Summary;
use evenkeel_policy::decision::{self, DecisionRecord, seconds};

use crate::config::Config;
use crate::discovery::{Map, Roots};
use crate::journal::Journal;
use crate::loops::packets::Packets;
use crate::loops::record::State;
use crate::points::cgroup::{self, Cgroup, Unable};
use crate::points::local::{self, Local};
use crate::points::osds::Osds;
use crate::points::queue_depth::QueueDepth;
use crate::points::{Error, Errors, Tick};
use crate::sensor::diskstats::Tracker;

/// The file of block-device statistics whose content [`Agent::tick`] takes.
pub const DISKSTATS: &str = "/proc/diskstats";

/// All enforcement points of this host.
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
            tracker: Tracker::default(),
            packets: Packets::new(config.clone()).map_err(|problem| setting("*", problem))?,
            cgroups: cgroup::open(config, roots, cgroups)?,
            locals: local::open(config, roots, cgroups)?,
            queue_depths: arrays.collect::<Result<_, _>>()?,
            osds: None,
            alone: false,
            ticks: 0,
            ticked_at: Instant::ZERO,
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
        let mut new = Self::open(config, roots, cgroups)?;
        self.packets.reload(config).map_err(|problem| Unable::Setting { name: "*".to_owned(), problem })?;
        let mut ended = (Vec::new(), Vec::new());
        let mut ended_locals = Vec::new();
        for old in std::mem::take(&mut self.locals) {
            match new.locals.iter_mut().find(|new| new.name() == old.name()) {
                Some(new) => ended_locals.extend(new.succeed(old)),
                None => ended_locals.push(old),
            }
        }
        self.locals = new.locals;
        for old in std::mem::take(&mut self.cgroups) {
            match new.cgroups.iter_mut().find(|new| new.name() == old.name()) {
                Some(new) => ended.0.extend(new.succeed(old)),
                None => ended.0.push(old),
            }
        }
        for old in std::mem::take(&mut self.queue_depths) {
            match new.queue_depths.iter_mut().find(|new| new.name() == old.name()) {
                Some(new) => new.succeed(old),
                None => ended.1.push(old),
            }
        }
        (self.cgroups, self.queue_depths) = (new.cgroups, new.queue_depths);
        if self.alone {
            self.alone();
        }
        let mut errors = Errors::default();
        if let Some(journal) = journal {
            for (_, result) in journal.restore_left() {
                errors.take(result);
            }
            ended.0.into_iter().for_each(|old| old.end(journal, &mut errors));
            ended.1.into_iter().for_each(|old| old.end(journal, &mut errors));
            ended_locals.into_iter().for_each(|old| old.end(journal, &mut errors));
        }
        Ok(errors)
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
    /// of [`DISKSTATS`] at `now`. The caller has to put [`Packets::holds`] in force. An error at one enforcement point does
    /// not keep the others from their work; all errors are returned.
    pub fn tick(&mut self, now: Instant, diskstats: &[u8], journal: Option<&mut Journal>) -> Vec<Error> {
        (self.ticks, self.ticked_at) = (self.ticks + 1, now);
        let mut tick = Tick { journal, taken: BTreeMap::new(), errors: Errors::default() };
        let observed = self.tracker.observe(now, diskstats).map_err(|fault| fault.in_file(Path::new(DISKSTATS)));
        let observed = tick.errors.take(observed).is_some();
        self.packets.tick(now, &self.tracker, observed);
        // After a reload a guarantee may concern a group that was throttled: it is released before its limits are read.
        self.locals.iter_mut().for_each(|pool| pool.tick(now, observed.then_some(&self.tracker), &mut tick));
        self.cgroups.iter_mut().for_each(|pool| pool.tick(now, &mut tick));
        self.queue_depths.iter_mut().for_each(|pool| pool.tick(now, observed.then_some(&self.tracker), &mut tick));
        tick.errors.0
    }

    /// Summaries of this host's volumes over the control period that has just ended, by name of the array, to be sent to the
    /// other hosts.
    pub fn summaries(&mut self) -> BTreeMap<String, Summary> {
        let told = self.queue_depths.iter_mut().filter_map(|pool| Some((pool.take_summary()?, pool)));
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
        self.queue_depths.iter_mut().for_each(QueueDepth::alone);
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

    /// The newest `count` decisions, newest first, about the pool of this name; `None`: about all pools.
    pub fn records(&self, pool: Option<&str>, count: usize) -> Vec<DecisionRecord> {
        let wanted = |name: &str| pool.is_none_or(|pool| pool == name);
        let cgroups = self.cgroups.iter().filter(|known| wanted(known.name())).flat_map(Cgroup::records);
        let locals = self.locals.iter().filter(|known| wanted(known.name()));
        let locals = locals.flat_map(|known| known.records(count));
        let arrays = self.queue_depths.iter().filter(|known| wanted(known.name())).flat_map(QueueDepth::records);
        let osds = self.osds.iter().flat_map(|osds| osds.records(pool));
        let groups = cgroups.chain(locals);
        decision::newest(self.packets.records(pool).chain(groups).chain(arrays).chain(osds).collect(), count)
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
