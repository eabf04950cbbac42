//! The loop without its clock and its files: measurements in, holds and reasons out.
//!
//! ```text
//!  Map ──────▶ follow ──▶ which clients and devices belong to each resource
//!  diskstats ▶ tick   ──▶ control::response::Controller of each resource ──▶ Holds, Records
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use evenkeel_control::response::{ClientId, InvalidConfig};
use evenkeel_control::{Duration, Instant};

use crate::actuator::{Client, Hold, Holds};
use crate::config::Config;
use crate::discovery::{Map, Note};
use crate::error::Fault;
use crate::sensor::diskstats::Tracker;

pub mod record;
mod resource;

use record::{Record, State};
use resource::Guarded;

/// Decisions kept: at one change in a tick of 100 ms they reach back 100 s at least, and mostly for hours, because a
/// decision that stays the same is one record.
const MAX_RECORDS: usize = 1_000;

/// The agent's mind.
pub struct Agent {
    config: Config,
    tracker: Tracker,
    resources: Vec<Guarded>,
    ids: Identities,
    map_notes: Vec<Note>,
    records: VecDeque<Record>,
    ticks: u64,
    ticked_at: Instant,
    holds: Holds,
}

/// Numbers of clients, the same as long as the process lives.
#[derive(Debug, Default)]
struct Identities(BTreeMap<IpAddr, ClientId>);

impl Identities {
    fn of(&mut self, address: IpAddr) -> ClientId {
        let next = ClientId(self.0.len() as u64);
        *self.0.entry(address).or_insert(next)
    }
}

impl Agent {
    /// An agent that knows nobody yet.
    ///
    /// # Errors
    /// A setting that the controllers refuse; a configuration that was read has none.
    pub fn new(config: Config) -> Result<Self, InvalidConfig> {
        let resources = config.resources.iter().map(|(name, resource)| Guarded::new(name, resource, &config));
        let resources = resources.collect::<Result<_, _>>()?;
        Ok(Self {
            config,
            tracker: Tracker::default(),
            resources,
            ids: Identities::default(),
            map_notes: Vec::new(),
            records: VecDeque::new(),
            ticks: 0,
            ticked_at: Instant::ZERO,
            holds: Holds::new(),
        })
    }

    /// Takes over who reaches what. Controllers keep what they have learned.
    pub fn follow(&mut self, map: &Map) {
        for resource in &mut self.resources {
            let ids = &mut self.ids;
            resource.follow(map, &self.config.guard, |address| ids.of(address));
        }
        self.map_notes.clone_from(&map.notes);
    }

    /// Measures and decides; `diskstats` is what the file holds at `now`. [`Agent::holds`] is the result.
    ///
    /// # Errors
    /// A line of `diskstats` at fault. Controllers decide without the measurement then, and give up after a while.
    pub fn tick(&mut self, now: Instant, diskstats: &[u8]) -> Result<(), Fault> {
        let observed = self.tracker.observe(now, diskstats);
        self.ticks += 1;
        self.ticked_at = now;
        self.holds.clear();
        for resource in &mut self.resources {
            if observed.is_ok() {
                resource.observe(now, &self.tracker);
            }
            let record = resource.decide(now);
            for (client, hold) in resource.holds() {
                keep_longer(&mut self.holds, client, hold);
            }
            remember(&mut self.records, record);
        }
        observed
    }

    /// All that is to be held back from the last tick to the next.
    pub fn holds(&self) -> &Holds {
        &self.holds
    }

    /// What is known and decided at the last tick. `started` is the zero of the times in it.
    pub fn state(&self, started: Instant) -> State {
        State {
            version: env!("CARGO_PKG_VERSION").into(),
            uptime_s: self.ticked_at.since(started).as_secs_f64(),
            ticks_total: self.ticks,
            interval_ms: self.config.guard.interval.0.as_millis_f64(),
            acting: false,
            acting_reason: String::new(),
            late_ticks_total: 0,
            errors_total: 0,
            last_error: None,
            resources: self.resources.iter().map(Guarded::state).collect(),
            notes: self.map_notes.clone(),
        }
    }

    /// The newest decisions, newest first, of one resource or all.
    pub fn records(&self, resource: Option<&str>) -> impl Iterator<Item = &Record> {
        self.records.iter().rev().filter(move |record| resource.is_none_or(|resource| record.resource == resource))
    }

    /// Names of the resources that have a goal.
    pub fn resources(&self) -> impl Iterator<Item = &str> {
        self.resources.iter().map(Guarded::name)
    }
}

/// Of two holds for one client the longer, and of all packets if either is.
fn keep_longer(holds: &mut Holds, client: Client, hold: Hold) {
    let entry = holds.entry(client).or_insert(hold);
    if entry.packets != hold.packets {
        entry.packets = crate::actuator::Packets::All;
    }
    entry.delay = entry.delay.max(hold.delay);
}

/// A decision that stays the same lengthens the record there is.
fn remember(records: &mut VecDeque<Record>, record: Record) {
    let same = records.iter_mut().rev().find(|known| known.resource == record.resource);
    match same.filter(|known| known.says_the_same_as(&record)) {
        Some(known) => known.continue_with(&record),
        None => {
            if records.len() == MAX_RECORDS {
                records.pop_front();
            }
            records.push_back(record);
        }
    }
}

/// In the actuator's units.
fn std_duration(duration: Duration) -> std::time::Duration {
    duration.into()
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
