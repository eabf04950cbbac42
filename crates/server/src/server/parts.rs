//! The server in a cluster in which reservations, limits and guarantees are totals: demand of its tenants, and their parts of the
//! totals.

use std::collections::{BTreeMap, HashSet};

use evenkeel_control::pool::Demand;
use evenkeel_control::pool::guarantee::Scope;
use evenkeel_control::units::Fractions;
use evenkeel_policy::cluster::guarantee_total;

use super::Server;
use crate::clock;
use crate::worker::message::Message;

impl Server {
    /// Demand of the tenants that have a reservation or a limit, by names of pool and tenant, and for their guarantees, by
    /// [`guarantee_total`]: only in pools in which the tenant has a volume, or has sent requests.
    pub fn demands(&self) -> BTreeMap<(String, String), Demand> {
        let snapshot = self.shared.snapshot();
        let mut demands = BTreeMap::new();
        for (index, (pool, tenants)) in snapshot.pools.iter().zip(&snapshot.tenants).enumerate() {
            let volumes = snapshot.volumes.iter().flatten().filter(|volume| volume.pool == index);
            let owner = |id: u32| snapshot.owners.get(id as usize)?.as_deref();
            let owners: HashSet<&str> = volumes.filter_map(|volume| owner(volume.id)).collect();
            for (name, &id) in tenants {
                // One lock for each tenant, so that requests do not wait for thousands of them.
                let state = pool.lock();
                let of_guarantees = Scope::ALL.map(|scope| state.guarantee_demand(id, scope));
                let of_tenant = state.demand(id);
                drop(state);
                let guarantees = Scope::ALL.map(|scope| guarantee_total(scope.name(), name)).into_iter();
                let of_guarantees = guarantees.zip(of_guarantees).filter_map(|(total, demand)| total.zip(demand));
                for (total, demand) in of_guarantees.chain(of_tenant.map(|demand| (name.to_string(), demand))) {
                    if demand.arrived[0] > 0 || owners.contains(&**name) {
                        demands.insert((pool.name.clone(), total), demand);
                    }
                }
            }
        }
        demands
    }

    /// Makes these fractions of the tenants' reservations, limits and guarantees apply, by the names of [`Self::demands`]; other
    /// totals keep theirs. Effective at once, also for requests that wait.
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
                for scope in Scope::ALL {
                    let total = guarantee_total(scope.name(), name);
                    if let Some(of) = total.and_then(|total| fractions.get(&(pool.name.clone(), total))) {
                        pool.lock().set_guarantee_part(clock::now(), id, scope, of.limit);
                    }
                }
            }
        }
        // A tenant with a larger part may have requests that need not wait any longer.
        self.shared.post(0, Message::Visit);
    }
}
