//! Tenants and pools that nothing belongs to, and that were probably meant to have another name: in a file, a name that is
//! mistyped makes a new one.

use std::collections::HashSet;

use super::{Findings, closest};
use crate::config::{Config, DEFAULT_POOL, DEFAULT_TENANT, DEFAULT_VOLUME, Owners, Pool, Tenant};

/// Shortest name, in letters, that is taken for a mistyped one: in a shorter one a single letter is too much.
const MIN_LETTERS: usize = 3;
/// Most pairs of names that are compared, which takes some milliseconds.
const MAX_PAIRS: usize = 10_000;

/// Warns of names that nothing belongs to, if a similar name is in use that has no settings of its own.
pub(super) fn names(config: &Config, owners: &Owners<'_>, out: &mut Findings) {
    let owners: Vec<(&str, &str)> =
        config.volumes.iter().map(|(name, volume)| (name.as_str(), owners.of(name, volume))).collect();
    let used: HashSet<&str> = owners.iter().map(|(_, tenant)| *tenant).collect();
    // The one that is there if no volume is named comes and goes.
    let without = owners.iter().filter(|(name, tenant)| *tenant == DEFAULT_TENANT && *name != DEFAULT_VOLUME);
    let mut plain: Vec<&str> = without.map(|(name, _)| *name).collect();
    if config.tenants.get(DEFAULT_TENANT) == Some(&Tenant::default()) {
        plain.push(DEFAULT_TENANT);
    }
    let idle = config
        .tenants
        .iter()
        .filter(|(name, tenant)| tenant.matches.is_empty() && *name != DEFAULT_TENANT && !used.contains(name.as_str()));
    for (name, _) in idle.take(MAX_PAIRS / plain.len().max(1)) {
        if let Some(meant) = meant(name, &plain) {
            let message = format!("neither volumes nor clients belong to this tenant; did you mean {meant:?}?");
            out.warning(&["tenants", name], message);
        }
    }
    let used: HashSet<&str> = config.volumes.values().map(|volume| volume.pool.as_str()).collect();
    let is_plain = config.pools.get(DEFAULT_POOL) == Some(&Pool::default()) && used.contains(DEFAULT_POOL);
    for name in config.pools.keys().filter(|name| is_plain && !used.contains(name.as_str())).take(MAX_PAIRS) {
        if let Some(meant) = meant(name, &[DEFAULT_POOL]) {
            out.warning(&["pools", name], format!("no volume is on this pool; did you mean {meant:?}?"));
        }
    }
}

fn meant<'a>(name: &str, plain: &[&'a str]) -> Option<&'a str> {
    closest(name, plain).filter(|_| name.len() >= MIN_LETTERS)
}
