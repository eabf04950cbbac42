//! Notes on settings that `evenkeel serve` does not enforce. A policy may also be used by hosts that run `evenkeel guard`.

use super::{Findings, Severity};
use crate::config::{CachedDevice, Config, Direction, Enforcement, GuaranteeTuning, Match, Pool, Tenant};
use crate::effective::listed;

/// Adds a note for each key that another program enforces.
pub(super) fn keys(config: &Config, out: &mut Findings) {
    for (name, settings) in &config.pools {
        pool(config, name, settings, out);
    }
    for (name, settings) in &config.tenants {
        tenant(name, settings, out);
    }
}

impl Findings {
    fn elsewhere(&mut self, path: &[&str], message: impl Into<String>) {
        self.add(Severity::Elsewhere, path, message);
    }

    fn elsewhere_if(&mut self, said: bool, path: &[&str], what: &str) {
        if said {
            self.elsewhere(path, format!("has no effect here: `evenkeel guard` enforces {what}"));
        }
    }
}

fn pool(config: &Config, name: &str, pool: &Pool, out: &mut Findings) {
    let at = |key: &'static str| ["pools", name, key];
    out.elsewhere_if(!pool.devices.is_empty(), &at("devices"), "the policy on the hosts that have these devices");
    if let Some(enforce) = &pool.enforce {
        let ours = config.volumes.iter().find(|(_, volume)| volume.pool == name);
        let others: Vec<&str> =
            enforce.iter().filter(|point| **point != Enforcement::Queue).map(|point| point.name()).collect();
        if let (Some((volume, _)), false) = (ours, enforce.contains(&Enforcement::Queue)) {
            out.warning(
                &at("enforce"),
                format!("leaves \"queue\" out, and volume {volume:?} of this server is on the pool: the server enforces the policy on it all the same; add \"queue\", or give the volume another pool"),
            );
        } else if !others.is_empty() {
            let what = format!("it as {}, on the hosts that have the devices", others.join(", "));
            out.elsewhere_if(true, &at("enforce"), &what);
        }
    }
    let at = |key: &'static str| ["pools", name, "tuning", key];
    let (cache, guarantee) = (&pool.tuning.cache, &pool.tuning.guarantee);
    let groups = "guarantees of control groups";
    out.elsewhere_if(*cache != CachedDevice::default(), &at("cache"), groups);
    out.elsewhere_if(*guarantee != GuaranteeTuning::default(), &at("guarantee"), groups);
}

fn tenant(name: &str, tenant: &Tenant, out: &mut Findings) {
    let at = |key: &'static str| ["tenants", name, key];
    let is_elsewhere = |entry: &&Match| entry.is_of_groups() || matches!(entry, Match::Initiator(_) | Match::Device(_));
    let entries: Vec<String> = tenant.matches.iter().filter(is_elsewhere).map(ToString::to_string).collect();
    if !entries.is_empty() {
        let named = listed(&entries);
        let message = format!("{named} can only be seen by `evenkeel guard`, on the hosts that have them");
        out.elsewhere(&at("match"), message);
    }
    out.elsewhere_if(tenant.max_in_flight.is_some(), &at("max_in_flight"), "it on devices of its hosts");
    for (key, direction) in [("read", tenant.guarantee.read), ("write", tenant.guarantee.write)] {
        let Direction { ceiling, .. } = direction;
        let path = ["tenants", name, "guarantee", key, "ceiling"];
        out.elsewhere_if(ceiling.is_some(), &path, "ceilings of control groups");
    }
    for (pool, own) in &tenant.pools {
        let path = ["tenants", name, "pools", pool, "max_in_flight"];
        out.elsewhere_if(own.max_in_flight.is_some(), &path, "it on devices of its hosts");
    }
}
