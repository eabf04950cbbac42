//! Delays packets to noisy clients, so that pools meet their latency targets.
//!
//! ```text
//!  Map ──────▶ follow ──▶ which clients and devices belong to each pool
//!  diskstats ▶ tick   ──▶ control::response::Controller of each pool ──▶ Delays, records
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;

use evenkeel_control::Instant;
use evenkeel_control::response::{ClientId, InvalidConfig};

use crate::actuator::{Client, Delays};
use crate::config::Config;
use crate::discovery::{Link, Map, Note};
use crate::loops::record::PoolState;
use crate::sensor::diskstats::{DeviceNumber, Tracker};
use crate::sensor::initiators::Moved;
use crate::sensor::retransmits::Segments;
use evenkeel_policy::decision::DecisionRecord;

mod absent;
pub(super) mod percentile;
mod pool;
mod retransmits;
mod shares;

use absent::Absent;
use pool::Guarded;
use retransmits::Resent;

/// Largest number of decisions kept of all pools together. A decision that stays the same is one record: with one pool whose
/// decision changes at every tick of 100 ms, the records reach back 100 s; in most cases, hours.
const MAX_RECORDS: usize = 1_000;
/// Smallest number of decisions that are kept for each pool, however many pools there are.
const MIN_RECORDS: usize = 4;

/// All pools with a latency target, their clients, and the delays of packets to these clients.
#[derive(Default)]
pub struct Packets {
    config: Config,
    pools: Vec<Guarded>,
    ids: Identities,
    map: Map,
    absent: Absent,
    resent: Resent,
    ticked_at: Instant,
    delays: Delays,
    /// True if the same client (or connection) belongs to two pools, so that both may delay its packets.
    overlap: bool,
}

/// The numbers by which the controllers know clients, by the clients' addresses. A client keeps its number as long as its
/// address is in the map or recently was.
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

/// The pools of a configuration, without any client yet.
fn guarded(config: &Config) -> Result<Vec<Guarded>, InvalidConfig> {
    let records = (MAX_RECORDS / config.packets.len().max(1)).max(MIN_RECORDS);
    config.packets.iter().map(|(name, pool)| Guarded::new(name, pool, config, records)).collect()
}

impl Packets {
    /// The pools of a configuration, without any client yet.
    ///
    /// # Errors
    /// A setting that the controllers refuse; a configuration that has passed the checks on reading contains none.
    pub fn new(config: Config) -> Result<Self, InvalidConfig> {
        let pools = guarded(&config)?;
        Ok(Self { config, pools, ..Self::default() })
    }

    /// Takes over a newer policy. A pool whose settings differ in nothing but the value of the latency target keeps its
    /// delays and its controller's state; all other pools begin anew with the same clients. Settings of the agent itself must
    /// not differ.
    ///
    /// # Errors
    /// A setting that the controllers refuse; on an error nothing is changed.
    pub fn reload(&mut self, config: &Config) -> Result<(), InvalidConfig> {
        let mut pools = guarded(config)?;
        for old in std::mem::take(&mut self.pools) {
            let Some(new) = pools.iter_mut().find(|new| new.name() == old.name()) else { continue };
            let mut old = old;
            if config.packets.get(new.name()).is_some_and(|config| old.adopt(config)) {
                *new = old;
            }
        }
        (self.pools, self.config) = (pools, config.clone());
        if let Some(limit) = self.resent.limit() {
            self.pools.iter_mut().for_each(|pool| pool.limit(limit));
        }
        let map = std::mem::take(&mut self.map);
        self.follow_anew(map);
        Ok(())
    }

    /// Takes over a new map of clients, volumes and devices. Controllers keep their state; until the next tick no client is
    /// throttled.
    pub fn follow(&mut self, map: Map) {
        let before = std::mem::take(&mut self.map);
        self.absent.follow(self.ticked_at, before, &map);
        self.follow_anew(map);
    }

    fn follow_anew(&mut self, map: Map) {
        self.map = map;
        let map = &self.map;
        // Who is connected to a target's port for something unknown may use another pool by it.
        let ports = &self.config.agent.ports;
        let unexplained = map.unexplained.iter().filter(|connection| ports.contains(&connection.local.port()));
        let unexplained = unexplained.map(|connection| connection.remote.ip());
        let ambiguous: BTreeSet<IpAddr> = map.ambiguous().into_keys().chain(unexplained).collect();
        let mut links: BTreeMap<&str, Vec<&Link>> = BTreeMap::new();
        let mut of_ambiguous: BTreeMap<IpAddr, Vec<&Link>> = BTreeMap::new();
        let mut addresses = BTreeSet::new();
        for link in map.links.iter().chain(self.absent.links()) {
            if let Some(pool) = &link.pool {
                links.entry(pool).or_default().push(link);
            }
            if let Some(client) = link.client.filter(|client| ambiguous.contains(client)) {
                of_ambiguous.entry(client).or_default().push(link);
            }
            addresses.extend(link.client);
        }
        self.ids.known.retain(|address, _| addresses.contains(address));
        for pool in &mut self.pools {
            let links = links.remove(pool.name()).unwrap_or_default();
            let ids = &mut self.ids;
            pool.follow(&links, &of_ambiguous, |address| ids.of(address));
        }
        let keys: Vec<Client> = self.pools.iter().flat_map(Guarded::keys).collect();
        self.delays = Delays::places(keys.iter().copied());
        for pool in &mut self.pools {
            pool.place(&self.delays);
        }
        let mut seen: Vec<Client> = keys.into_iter().map(Client::canonical).collect();
        seen.sort_unstable();
        self.overlap = seen.windows(2).any(|pair| pair[0] == pair[1]);
    }

    /// Decides about all pools; `observed` is true if `tracker` has a new sample. The resulting delays are in
    /// [`Packets::delays`]. Controllers without samples release all clients after a while.
    pub fn tick(&mut self, now: Instant, tracker: &Tracker, observed: bool) {
        self.ticked_at = now;
        for pool in &mut self.pools {
            if observed {
                pool.observe(now, tracker);
            }
            if pool.decide(now) && !self.overlap {
                pool.delay(&mut self.delays);
            }
        }
        if self.overlap {
            self.delays.release();
            self.pools.iter().for_each(|pool| pool.delay_longer(&mut self.delays));
        }
    }

    /// The devices of all pools, each with the name of its pool.
    pub fn devices(&self) -> impl Iterator<Item = (&str, DeviceNumber)> {
        self.pools.iter().flat_map(|pool| pool.devices().map(move |device| (pool.name(), device)))
    }

    /// Devices on which single reads have to be timed, each with the number of its pool: the devices of pools with a latency
    /// target for a percentile. The set changes with [`Packets::follow`].
    pub fn timed_devices(&self) -> impl Iterator<Item = (DeviceNumber, u32)> {
        let pools = self.pools.iter().zip(0..).filter(|(pool, _)| pool.wants_read_times());
        pools.flat_map(|(pool, number)| pool.devices().map(move |device| (device, number)))
    }

    /// True if any pool's latency target is for a percentile, so that single reads have to be timed.
    pub fn wants_read_times(&self) -> bool {
        self.pools.iter().any(Guarded::wants_read_times)
    }

    /// Takes in the latencies of single reads since the previous call; call it before [`Packets::tick`]. `read` gets the
    /// number of a pool and a callback, and calls the callback with each bucket of [`crate::sensor::tracepoints`] and the
    /// number of reads in the bucket.
    pub fn count_read_times(&mut self, now: Instant, mut read: impl FnMut(u32, &mut dyn FnMut(usize, u64))) {
        for (pool, number) in self.pools.iter_mut().zip(0..) {
            if let Some(percentile) = pool.percentile(now) {
                read(number, &mut |bucket, reads| percentile.count(bucket, reads));
            }
        }
    }

    /// Takes in how many TCP segments this host has sent, and retransmitted, from boot until `now`. Call it about once a
    /// second: if delays cause retransmits, the longest delay is shortened, and [`Packets::note`] says so.
    pub fn watch_retransmits(&mut self, now: Instant, total: Segments) {
        let guard = &self.config.agent;
        let (most, step) = (guard.max_delay, guard.step);
        let longest = self.delays.iter().map(|(_, delay)| delay.delay).max().unwrap_or_default();
        if self.resent.observe(now, total, longest.into(), most, step) {
            let limit = self.resent.limit().unwrap_or(most);
            self.pools.iter_mut().for_each(|pool| pool.limit(limit));
            if let Some(because) = self.resent.because() {
                tracing::warn!("{because}");
            }
        }
    }

    /// Takes in how many MiB each initiator has read and written, for devices that several clients share. Call it about once
    /// a second. `read` returns the counters in a folder, and is not called if no device is shared.
    pub fn count_initiators(&mut self, mut read: impl FnMut(&Path) -> Option<Moved>) {
        self.pools.iter_mut().for_each(|pool| pool.count_initiators(&mut read));
    }

    /// The delay of each throttled client, to be in force from the latest tick to the next.
    pub fn delays(&self) -> &Delays {
        &self.delays
    }

    /// A note that says why the longest delay is shorter than configured; `None` if the longest delay is as configured.
    pub fn note(&self) -> Option<Note> {
        self.resent.because().map(|message| Note { kind: "retransmits".into(), message })
    }

    /// The newest map of clients, volumes and devices, with notes on uncertain parts.
    pub fn map(&self) -> &Map {
        &self.map
    }

    /// The present state of each pool with a latency target.
    pub fn states(&self, tracker: &Tracker) -> impl Iterator<Item = PoolState> {
        self.pools.iter().map(move |pool| pool.state(tracker))
    }

    /// The logged decisions about the pool of this name; without a name about all pools.
    pub fn records(&self, pool: Option<&str>) -> impl Iterator<Item = DecisionRecord> {
        let wanted = self.pools.iter().filter(move |known| pool.is_none_or(|name| name == known.name()));
        wanted.flat_map(Guarded::records)
    }

    /// Names of the pools with a latency target.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.pools.iter().map(Guarded::name)
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
