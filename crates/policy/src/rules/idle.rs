//! Rules on tenants and pools to which no client or volume belongs, and whose names are probably mistyped: in a file, a mistyped
//! name makes a new tenant or pool.

use std::collections::HashSet;

use super::{Finding, Findings, Severity, closest};
use crate::config::{Config, DEFAULT_POOL, DEFAULT_TENANT, DEFAULT_VOLUME, Owners, Pool, Tenant};
use crate::document::dotted;
use crate::effective::{idle, listed};

/// Shortest name, in letters, that can count as mistyped. In a shorter name a single letter is too large a difference.
const MIN_LETTERS: usize = 3;
/// The most pairs of names that are compared, which takes some milliseconds.
const MAX_PAIRS: usize = 10_000;

/// Warns about tenants and pools without clients and volumes, if a similar name is in use that has no settings of its own.
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

/// Notes on tenants whose settings apply to no request, each with the remedy behind a semicolon.
pub(crate) fn tenants(config: &Config) -> Vec<Finding> {
    let (owners, mut out) = (config.owners(), Findings(Vec::new()));
    let plain = config.volumes.iter().find(|(name, volume)| owners.of(name, volume) == DEFAULT_TENANT);
    let plain = plain.map_or("NAME", |(name, _)| name.as_str());
    for (name, tenant) in idle(config) {
        let of_others = tenant.matches.iter().find_map(|entry| {
            let (volume, settings) = config.volumes.iter().find(|(volume, _)| entry.names_volume(volume))?;
            Some((entry, volume.as_str(), settings))
        });
        let message = match of_others {
            Some((entry, volume, settings)) => {
                let owner = owners.of(volume, settings);
                let how = if settings.tenant.is_some() { "its key tenant" } else { "another entry" };
                let table = dotted(&["volumes", volume]);
                format!(
                    "{entry} fits volume {volume:?}, which belongs to tenant {owner:?} by {how}; write tenant = {name:?} in [{table}], or remove this tenant"
                )
            }
            None if tenant.matches.is_empty() => {
                let table = dotted(&["volumes", plain]);
                format!(
                    "no volume and no client belongs to this tenant; write tenant = {name:?} in [{table}], or match = [\"volume:{plain}\"] here, or remove the tenant"
                )
            }
            None => {
                let entries: Vec<String> = tenant.matches.iter().map(ToString::to_string).collect();
                format!(
                    "no volume fits {}, and no client belongs to this tenant; correct match, or remove this tenant",
                    listed(&entries)
                )
            }
        };
        out.add(Severity::Elsewhere, &["tenants", name], message);
    }
    out.0
}

fn meant<'a>(name: &str, plain: &[&'a str]) -> Option<&'a str> {
    closest(name, plain).filter(|_| name.len() >= MIN_LETTERS)
}
