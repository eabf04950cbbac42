//! Divides the load of a device among the clients that share it.
//!
//! The block layer counts the load of all clients together. If the target counts for each initiator, a client's part of the
//! device's load is its part of the bytes that all clients moved in the latest seconds; otherwise all parts are taken to be
//! equal.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::actuator::Packets;
use crate::discovery::Link;
use crate::sensor::initiators::Moved;

/// Factor by which each new count fades the older ones. With one count a second the sums cover some seconds: long enough that
/// 1 MiB, the unit of the counters, is a small part.
const KEPT: f64 = 0.7;
/// Smallest faded sum, in MiB, of all clients' traffic at a device from which the clients' parts count as known.
const LEAST_MIB: f64 = 4.0;

/// Counters of one initiator name of a client at one shared device; a client with several names has several such counters.
#[derive(Clone, Debug)]
struct Counter {
    client: u32,
    device: u32,
    folder: PathBuf,
    last: Option<Moved>,
    read_mib: f64,
    written_mib: f64,
}

/// Each client's part of the load of each shared device, for the clients of one pool.
#[derive(Debug, Default)]
pub(super) struct Shares {
    counters: Vec<Counter>,
    /// Index of a client, index of a device, and the client's part of the device's load as a multiple of an equal part, minus
    /// 1; sorted by the indices.
    uneven: Vec<(u32, u32, f64)>,
}

impl Shares {
    /// Takes over which clients share which devices. `shared` returns the indices of a link's client and device if several
    /// clients share the device.
    pub(super) fn follow(&mut self, links: &[&Link], shared: impl Fn(&Link) -> Option<(u32, u32)>) {
        let mut known: BTreeMap<PathBuf, Counter> =
            self.counters.drain(..).map(|counter| (counter.folder.clone(), counter)).collect();
        let mut seen = BTreeSet::new();
        for link in links {
            let Some((folder, (client, device))) = link.counters.clone().zip(shared(link)) else { continue };
            if !seen.insert(folder.clone()) {
                continue;
            }
            let new = Counter { client, device, folder, last: None, read_mib: 0.0, written_mib: 0.0 };
            let counter = known.remove(&new.folder).map_or(new.clone(), |old| Counter { client, device, ..old });
            self.counters.push(counter);
        }
        // Places have changed: equal parts until the next count.
        self.uneven.clear();
    }

    /// Reads all counters anew; to be called about once a second. `shared_by` returns the number of clients that share a
    /// device.
    pub(super) fn count(
        &mut self,
        packets: Packets,
        read: &mut dyn FnMut(&Path) -> Option<Moved>,
        shared_by: impl Fn(u32) -> u32,
    ) {
        self.uneven.clear();
        let mut devices: BTreeMap<u32, BTreeMap<u32, f64>> = BTreeMap::new();
        for counter in &mut self.counters {
            let now = read(&counter.folder);
            if let Some((last, now)) = counter.last.zip(now) {
                // Totals that went back began anew.
                let since = |before: u64, now: u64| now.saturating_sub(before) as f64;
                counter.read_mib = KEPT * counter.read_mib + since(last.read_mib, now.read_mib);
                counter.written_mib = KEPT * counter.written_mib + since(last.written_mib, now.written_mib);
            }
            counter.last = now;
            if now.is_some() {
                let moved = if packets == Packets::Data { counter.read_mib } else { counter.written_mib };
                *devices.entry(counter.device).or_default().entry(counter.client).or_default() += moved;
            }
        }
        for (device, clients) in devices {
            let (all, total) = (shared_by(device), clients.values().sum::<f64>());
            // Who is not counted could be the one who moves everything.
            if clients.len() as u32 == all && total >= LEAST_MIB {
                let part = |(client, moved)| (client, device, moved / total * f64::from(all) - 1.0);
                self.uneven.extend(clients.into_iter().map(part));
            }
        }
        self.uneven.sort_unstable_by_key(|&(client, device, _)| (client, device));
    }

    /// Index of a client, index of a device, and the client's part of the device's load as a multiple of an equal part, minus
    /// 1, wherever this part is known.
    pub(super) fn uneven(&self) -> &[(u32, u32, f64)] {
        &self.uneven
    }

    /// True if this client's part of this device's load is known; otherwise it is taken to be an equal part.
    pub(super) fn knows(&self, client: u32, device: u32) -> bool {
        self.uneven.binary_search_by_key(&(client, device), |&(client, device, _)| (client, device)).is_ok()
    }
}
