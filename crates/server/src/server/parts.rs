//! The server in a cluster in which reservations and limits are totals: demand of its tenants, and their parts of the totals.

use std::collections::{BTreeMap, HashSet};

use evenkeel_control::pool::Demand;
use evenkeel_control::units::Fractions;

use super::Server;
use crate::clock;
use crate::worker::message::Message;

impl Server {
    /// Demand of the tenants that have a reservation or a limit, by names of pool and tenant: only in pools in which the tenant
    /// has a volume, or has sent requests.
    pub fn demands(&self) -> BTreeMap<(String, String), Demand> {
        let snapshot = self.shared.snapshot();
        let mut demands = BTreeMap::new();
        for (index, (pool, tenants)) in snapshot.pools.iter().zip(&snapshot.tenants).enumerate() {
            let volumes = snapshot.volumes.iter().flatten().filter(|volume| volume.pool == index);
            let owner = |id: u32| snapshot.owners.get(id as usize)?.as_deref();
            let owners: HashSet<&str> = volumes.filter_map(|volume| owner(volume.id)).collect();
            for (name, &id) in tenants {
                // One lock for each tenant, so that requests do not wait for thousands of them.
                let Some(demand) = pool.lock().demand(id) else { continue };
                if demand.arrived[0] > 0 || owners.contains(&**name) {
                    demands.insert((pool.name.clone(), name.to_string()), demand);
                }
            }
        }
        demands
    }

    /// Makes these fractions of the tenants' reservations and limits apply, by names of pool and tenant; other tenants keep
    /// theirs. Effective at once, also for requests that wait.
    pub fn set_fractions(&self, fractions: &BTreeMap<(String, String), Fractions>) {
        if fractions.is_empty() {
            return;
        }
        let snapshot = self.shared.snapshot();
        for (pool, tenants) in snapshot.pools.iter().zip(&snapshot.tenants) {
            for (name, &id) in tenants {
                if let Some(&fractions) = fractions.get(&(pool.name.clone(), name.to_string())) {
                    pool.lock().set_fractions(clock::now(), id, fractions);
                }
            }
        }
        // A tenant with a larger part may have requests that need not wait any longer.
        self.shared.post(0, Message::Visit);
    }
}
