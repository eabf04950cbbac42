//! The totals of tenants by host, for the state.

use std::collections::BTreeMap;

use evenkeel_policy::cluster::{MAX_TOTALS, tenant_of_total};
use evenkeel_policy::state::{HostPartState, TotalState};

use super::Ledger;

/// The most members of a total whose parts are shown one by one.
const SHOWN_HOSTS: usize = 8;
/// Names of the units, as in the state.
const UNITS: [&str; 2] = ["requests", "bytes"];

/// Key of a total in the state: false for a tenant of this host, so that these come first, pool, tenant and number of the unit.
type ShownKey<'a> = (bool, &'a str, &'a str, usize);

/// The members of a total with their parts, if the total is among the first [`MAX_TOTALS`]. What is behind these is dropped at
/// once: in a large cluster each host may have tenants of its own.
fn first_of<'a, 'b>(
    totals: &'b mut BTreeMap<ShownKey<'a>, Vec<(&'a str, f64)>>,
    key: ShownKey<'a>,
) -> Option<&'b mut Vec<(&'a str, f64)>> {
    let is_full = totals.len() >= MAX_TOTALS;
    if is_full && totals.last_key_value().is_some_and(|(last, _)| *last < key) {
        return None;
    }
    if is_full && !totals.contains_key(&key) {
        totals.pop_last();
    }
    Some(totals.entry(key).or_default())
}

impl Ledger {
    /// The totals of tenants by host, this host included, for the state: first those of this host's tenants. Members of other
    /// shards count together.
    pub(crate) fn by_host(&self) -> Vec<TotalState> {
        let own = self.hosts.get(&self.own).map(|entry| &entry.totals);
        let is_other = |pool: &str, tenant: &str| {
            let of_pool = own.and_then(|totals| totals.get(pool));
            of_pool.is_none_or(|tenants| !tenants.contains_key(tenant))
        };
        let mut totals: BTreeMap<ShownKey<'_>, Vec<(&str, f64)>> = BTreeMap::new();
        for (host, entry) in &self.hosts {
            for (pool, tenants) in &entry.totals {
                for (tenant, units) in tenants {
                    for (n, sums) in units.iter().enumerate().filter(|(_, sums)| sums.members > 0) {
                        let part = if entry.ended.is_none() { sums.lines.claim } else { sums.lines.safe };
                        let key = (is_other(pool, tenant), pool.as_str(), tenant.as_str(), n);
                        if let Some(of_tenant) = first_of(&mut totals, key) {
                            of_tenant.push((host.as_str(), part));
                        }
                    }
                }
            }
        }
        for ((pool, tenant), counts) in &self.far {
            for (n, _) in counts.iter().enumerate().filter(|(_, count)| count.sums.members > 0) {
                first_of(&mut totals, (is_other(pool, tenant), pool.as_str(), tenant.as_str(), n));
            }
        }
        let shown = totals.into_iter().map(|((_, pool, tenant, n), mut hosts)| {
            let key = (pool.to_owned(), tenant.to_owned());
            let far = self.far.get(&key).map(|counts| counts[n].sums).unwrap_or_default();
            hosts.sort_by(|(a, part_a), (b, part_b)| part_b.total_cmp(part_a).then(a.cmp(b)));
            let more = hosts.split_off(hosts.len().min(SHOWN_HOSTS));
            let hosts = hosts.into_iter().map(|(host, part)| HostPartState { host: host.to_owned(), part });
            let (pool, total) = key;
            let (tenant, guarantee) = tenant_of_total(&total);
            TotalState {
                pool,
                tenant: tenant.to_owned(),
                unit: guarantee.map_or_else(|| UNITS[n].to_owned(), |key| format!("{} of {key}", UNITS[n])),
                hosts: hosts.collect(),
                more_hosts: far.members.saturating_add(more.len() as u64),
                more_part: far.lines.claim + more.iter().map(|(_, part)| part).sum::<f64>(),
            }
        });
        shown.collect()
    }
}
