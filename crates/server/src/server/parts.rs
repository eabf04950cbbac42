//! The server in a cluster in which reservations, limits and guarantees are totals: demand of its tenants, and their parts of the
//! totals.

use std::collections::{BTreeMap, HashSet};

use evenkeel_control::pool::Demand;
use evenkeel_control::pool::guarantee::Scope;
use evenkeel_control::units::Fractions;
use evenkeel_policy::cluster::{guarantee_total, tenant_of_total};

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
                // Most tenants have no guarantee, and need no name of one.
                let of_guarantees = Scope::ALL.into_iter().zip(of_guarantees).filter_map(|(scope, demand)| {
                    let demand = demand?;
                    Some((guarantee_total(scope.name(), name)?, demand))
                });
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
        // Parts change many times a period, and mostly a few of them: the other tenants, maybe thousands, cost no time.
        for ((pool, total), &of) in fractions {
            let Some(index) = snapshot.pools.iter().position(|known| known.name == *pool) else { continue };
            let (tenant, guarantee) = tenant_of_total(total);
            let Some(&id) = snapshot.tenants[index].get(tenant) else { continue };
            let is_total = |scope: &Scope| guarantee_total(scope.name(), tenant).as_ref() == Some(total);
            match guarantee.and_then(|_| Scope::ALL.into_iter().find(is_total)) {
                Some(scope) => snapshot.pools[index].lock().set_guarantee_part(clock::now(), id, scope, of.limit),
                None => snapshot.pools[index].lock().set_fractions(clock::now(), id, of),
            }
        }
        // A tenant with a larger part may have requests that need not wait any longer.
        self.shared.post(0, Message::Visit);
    }
}
