//! The loop without its clock and its files: measurements in, holds and reasons out.
//!
//! ```text
//!  Map ──────▶ follow ──▶ which clients and devices belong to each resource
//!  diskstats ▶ tick   ──▶ control::response::Controller of each resource ──▶ Holds, Records
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;

use evenkeel_control::response::{ClientId, InvalidConfig};
use evenkeel_control::{Duration, Instant};

use crate::actuator::{Client, Holds};
use crate::config::Config;
use crate::discovery::{Link, Map, Note};
use crate::error::Fault;
use crate::sensor::diskstats::{DeviceNumber, Tracker};
use crate::sensor::initiators::Moved;
use crate::sensor::retransmits::Segments;

mod absent;
pub mod array;
pub mod array_files;
pub mod array_record;
pub mod guarantee;
pub mod guarantee_files;
pub mod guarantee_record;
pub mod meter;
pub mod osd;
pub mod osd_files;
mod osd_order;
pub mod osd_record;
mod percentile;
pub mod record;
mod resent;
mod resource;
mod shares;

use absent::Absent;
use record::{Record, State};
use resent::Resent;
use resource::Guarded;

/// Decisions kept of all resources together: with one resource that changes its mind at every tick of 100 ms they
/// reach back 100 s, and mostly for hours, because a decision that stays the same is one record.
const MAX_RECORDS: usize = 1_000;
/// Decisions kept of each resource at least.
const MIN_RECORDS: usize = 4;

/// The agent's mind.
pub struct Agent {
    config: Config,
    tracker: Tracker,
    resources: Vec<Guarded>,
    ids: Identities,
    map: Map,
    absent: Absent,
    resent: Resent,
    ticks: u64,
    ticked_at: Instant,
    holds: Holds,
    /// Whether two resources may throttle the same client.
    overlap: bool,
}

/// Numbers of clients, the same as long as they are known.
#[derive(Debug, Default)]
struct Identities {
    known: BTreeMap<IpAddr, ClientId>,
    next: u64,
}

impl Identities {
    fn of(&mut self, address: IpAddr) -> ClientId {
        *self.known.entry(address).or_insert_with(|| {
            self.next += 1;
            ClientId(self.next)
        })
    }
}

impl Agent {
    /// An agent that knows nobody yet.
    ///
    /// # Errors
    /// A setting that the controllers refuse; a configuration that was read has none.
    pub fn new(config: Config) -> Result<Self, InvalidConfig> {
        let records = (MAX_RECORDS / config.resources.len().max(1)).max(MIN_RECORDS);
        let resources = config.resources.iter().map(|(name, resource)| Guarded::new(name, resource, &config, records));
        let resources = resources.collect::<Result<_, _>>()?;
        Ok(Self {
            config,
            tracker: Tracker::default(),
            resources,
            ids: Identities::default(),
            map: Map::default(),
            absent: Absent::default(),
            resent: Resent::default(),
            ticks: 0,
            ticked_at: Instant::ZERO,
            holds: Holds::new(),
            overlap: false,
        })
    }

    /// Takes over who reaches what. Controllers keep what they have learned; nobody is held before the next tick.
    pub fn follow(&mut self, map: Map) {
        let before = std::mem::replace(&mut self.map, map);
        let map = &self.map;
        self.absent.follow(self.ticked_at, before, map);
        let ambiguous = map.ambiguous();
        let mut links: BTreeMap<&str, Vec<&Link>> = BTreeMap::new();
        let mut of_ambiguous = Vec::new();
        let mut addresses = BTreeSet::new();
        for link in map.links.iter().chain(self.absent.links()) {
            if let Some(resource) = &link.resource {
                links.entry(resource).or_default().push(link);
            }
            if link.client.is_some_and(|client| ambiguous.contains_key(&client)) {
                of_ambiguous.push(link);
            }
            addresses.extend(link.client);
        }
        self.ids.known.retain(|address, _| addresses.contains(address));
        for resource in &mut self.resources {
            let links = links.remove(resource.name()).unwrap_or_default();
            let ids = &mut self.ids;
            resource.follow(&links, &of_ambiguous, |address| ids.of(address));
        }
        let keys: Vec<Client> = self.resources.iter().flat_map(Guarded::keys).collect();
        self.holds = Holds::places(keys.iter().copied());
        for resource in &mut self.resources {
            resource.place(&self.holds);
        }
        let mut seen: Vec<Client> = keys.into_iter().map(Client::canonical).collect();
        seen.sort_unstable();
        self.overlap = seen.windows(2).any(|pair| pair[0] == pair[1]);
    }

    /// Measures and decides; `diskstats` is what the file holds at `now`. [`Agent::holds`] is the result.
    ///
    /// # Errors
    /// A line of `diskstats` at fault. Controllers decide without the measurement then, and give up after a while.
    pub fn tick(&mut self, now: Instant, diskstats: &[u8]) -> Result<(), Fault> {
        let observed = self.tracker.observe(now, diskstats);
        self.ticks += 1;
        self.ticked_at = now;
        for resource in &mut self.resources {
            if observed.is_ok() {
                resource.observe(now, &self.tracker);
            }
            if resource.decide(now) && !self.overlap {
                resource.hold(&mut self.holds);
            }
        }
        if self.overlap {
            self.holds.let_go();
            self.resources.iter().for_each(|resource| resource.hold_longer(&mut self.holds));
        }
        observed
    }

    /// Devices of whose reads the latencies are wanted one by one, each with the number of its resource: those with a goal
    /// for a percentile. Changes with [`Agent::follow`].
    pub fn timed_devices(&self) -> impl Iterator<Item = (DeviceNumber, u32)> {
        let resources = self.resources.iter().zip(0..).filter(|(resource, _)| resource.wants_read_times());
        resources.flat_map(|(resource, number)| resource.devices().map(move |device| (device, number)))
    }

    /// Whether any goal is for a percentile.
    pub fn wants_read_times(&self) -> bool {
        self.resources.iter().any(Guarded::wants_read_times)
    }

    /// Takes how long single reads took since the last call; call it before [`Agent::tick`]. `read` answers for the number of
    /// a resource, with buckets of [`crate::sensor::tracepoints`] and how many reads came into each.
    pub fn count_read_times(&mut self, now: Instant, mut read: impl FnMut(u32, &mut dyn FnMut(usize, u64))) {
        for (resource, number) in self.resources.iter_mut().zip(0..) {
            if let Some(percentile) = resource.percentile(now) {
                read(number, &mut |bucket, reads| percentile.count(bucket, reads));
            }
        }
    }

    /// Takes how many TCP segments this host has sent, and sent again, until `now`. Call it about once a second: a delay
    /// that makes TCP send again is shortened, and [`Agent::state`] says so.
    pub fn watch_retransmits(&mut self, now: Instant, total: Segments) {
        let guard = &self.config.agent;
        let (most, step) = (guard.max_delay.into(), guard.step.into());
        let held = self.holds.iter().map(|(_, hold)| hold.delay).max().unwrap_or_default();
        if self.resent.observe(now, total, held.into(), most, step) {
            let limit = self.resent.limit().unwrap_or(most);
            self.resources.iter_mut().for_each(|resource| resource.limit(limit));
            if let Some(because) = self.resent.because() {
                tracing::warn!("{because}");
            }
        }
    }

    /// Takes what single initiators moved, for devices that several share. Call it about once a second; `read` answers for
    /// a folder of counters, and is not called where nobody shares.
    pub fn count_initiators(&mut self, mut read: impl FnMut(&Path) -> Option<Moved>) {
        self.resources.iter_mut().for_each(|resource| resource.count_initiators(&mut read));
    }

    /// All that is to be throttled from the last tick to the next.
    pub fn holds(&self) -> &Holds {
        &self.holds
    }

    /// What every device did until the last tick.
    pub fn statistics(&self) -> &Tracker {
        &self.tracker
    }

    /// What is known and decided at the last tick. `started` is the zero of the times in it.
    pub fn state(&self, started: Instant) -> State {
        let resent = self.resent.because().map(|message| Note { kind: "retransmits".into(), message });
        State {
            version: env!("CARGO_PKG_VERSION").into(),
            uptime_s: self.ticked_at.since(started).as_secs_f64(),
            ticks_total: self.ticks,
            interval_ms: self.config.interval().0.as_millis_f64(),
            acting: false,
            acting_reason: String::new(),
            late_ticks_total: 0,
            errors_total: 0,
            last_error: None,
            map_age_s: None,
            resources: self.resources.iter().map(|resource| resource.state(&self.tracker)).collect(),
            hybrids: Vec::new(),
            arrays: Vec::new(),
            exchange: None,
            osds: Vec::new(),
            notes: self.map.notes.iter().cloned().chain(resent).collect(),
        }
    }

    /// The newest `count` decisions, newest first, of one resource or all.
    pub fn records(&self, resource: Option<&str>, count: usize) -> Vec<Record> {
        let wanted = self.resources.iter().filter(|known| resource.is_none_or(|name| name == known.name()));
        let mut decisions: Vec<_> =
            wanted.flat_map(|resource| resource.decisions().map(move |decision| (resource, decision))).collect();
        decisions.sort_by_key(|(_, decision)| std::cmp::Reverse(decision.until));
        decisions.into_iter().take(count).map(|(resource, decision)| decision.record(resource.name())).collect()
    }

    /// Names of the resources that have a goal.
    pub fn resources(&self) -> impl Iterator<Item = &str> {
        self.resources.iter().map(Guarded::name)
    }
}

/// In the actuator's units.
fn std_duration(duration: Duration) -> std::time::Duration {
    duration.into()
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
