//! Clients that were connected in the latest ten minutes and are not connected now.
//!
//! A host that logs in again is discovered only seconds after it has begun to write, when reads are slow already. So the
//! latest client that reached a device stays known as its client until another one reaches the device: when the client logs
//! in again, the device's load counts as the client's from the first tick on. To throttle an address that is not connected
//! does no harm.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use evenkeel_control::{Duration, Instant};

use crate::discovery::{Link, Map};
use crate::sensor::diskstats::DeviceNumber;

/// Time for which a client that is not connected stays known; a client's pauses between bursts are assumed to be shorter.
const KEPT_FOR: Duration = Duration::from_secs(600);
/// Largest number of links that are kept; fewer initiators are assumed to log out and in again within [`KEPT_FOR`].
const MAX_ABSENT: usize = 10_000;

/// Links of clients that are not connected now, each with the latest time at which the link was in the map.
#[derive(Debug, Default)]
pub(super) struct Absent(Vec<(Link, Instant)>);

impl Absent {
    /// Keeps those links of `before`, the map in force until `now`, whose client and whose device have no link in the new
    /// `map`.
    pub(super) fn follow(&mut self, now: Instant, before: Map, map: &Map) {
        let present: BTreeSet<IpAddr> = map.links.iter().filter_map(|link| link.client).collect();
        let taken: BTreeSet<DeviceNumber> =
            map.links.iter().filter(|link| link.client.is_some()).filter_map(|link| link.number).collect();
        // Newest first, so that of several who reached a device the last one stays.
        let gone = before.links.into_iter().map(|link| (link, now)).chain(self.0.drain(..));
        let mut reached: BTreeMap<DeviceNumber, IpAddr> = BTreeMap::new();
        let kept = gone.filter(|(link, until)| {
            let (Some(client), Some(number)) = (link.client, link.number) else { return false };
            link.pool.is_some()
                && !present.contains(&client)
                && !taken.contains(&number)
                && now.since(*until) < KEPT_FOR
                && *reached.entry(number).or_insert(client) == client
        });
        self.0 = kept.take(MAX_ABSENT).collect();
        // Clients of several pools are known by their connections, and those are gone.
        let mut pools: BTreeMap<IpAddr, BTreeSet<String>> = BTreeMap::new();
        for (link, _) in &self.0 {
            if let (Some(client), Some(pool)) = (link.client, &link.pool) {
                pools.entry(client).or_default().insert(pool.clone());
            }
        }
        self.0.retain(|(link, _)| link.client.is_some_and(|client| pools[&client].len() == 1));
    }

    pub(super) fn links(&self) -> impl Iterator<Item = &Link> {
        self.0.iter().map(|(link, _)| link)
    }
}
