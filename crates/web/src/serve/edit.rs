//! Changes of a configuration that operators request, before they are put into force.

use std::collections::BTreeMap;

use evenkeel_policy::Config;
use evenkeel_policy::check::{Errors, Problem};
use evenkeel_policy::config::{DEFAULT_POOL, DEFAULT_TENANT, Volume};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::refusal::Refusal;

/// A command's explicit consent to effects that are hardly ever intended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Consent {
    /// True to accept values with which clients would seem to hang.
    pub force: bool,
    /// True to create a tenant or pool that does not exist yet.
    pub create: bool,
}

impl Consent {
    /// Removes `force` and `create` from a request's settings, of which neither is a key, and returns them.
    ///
    /// # Errors
    /// If one of them is not a Boolean.
    pub(crate) fn take(patch: &mut Value) -> Result<Self, Refusal> {
        let mut flag = |key: &str| match patch.as_object_mut().and_then(|members| members.remove(key)) {
            None => Ok(false),
            Some(Value::Bool(value)) => Ok(value),
            Some(other) => {
                let message = format!("{key:?} is {other}, which is neither true nor false");
                Err(Refusal::new(422, "invalid_request", message, format!("use true, or leave {key:?} out")))
            }
        };
        Ok(Self { force: flag("force")?, create: flag("create")? })
    }
}

/// `config` with the new volume `name`.
///
/// # Errors
/// If there is a volume of this name.
pub(crate) fn with_volume(config: &Config, name: &str, volume: Volume) -> Result<Config, Refusal> {
    let mut config = config.clone();
    if config.volumes.insert(name.to_owned(), volume).is_some() {
        return Err(Refusal::new(409, "exists", format!("there is a volume {name:?} already"), "choose another name"));
    }
    Ok(config)
}

/// `config` without the volume `name`, and this volume's settings.
///
/// # Errors
/// If there is no volume of this name.
pub(crate) fn without_volume(config: &Config, name: &str) -> Result<(Config, Volume), Refusal> {
    let mut config = config.clone();
    let volume = removed("volume", &mut config.volumes, name)?;
    Ok((config, volume))
}

/// Removes `name` from `known`, a table of the configuration, and returns its settings.
fn removed<T>(what: &'static str, known: &mut BTreeMap<String, T>, name: &str) -> Result<T, Refusal> {
    known.remove(name).ok_or_else(|| unknown(what, name, known.keys()))
}

/// `config` with `patch` merged into the table `server`.
///
/// # Errors
/// If the result is no such table.
pub fn with_server(config: &Config, patch: Value) -> Result<Config, Refusal> {
    Ok(Config { server: merged(&config.server, patch)?, ..config.clone() })
}

/// `config` with `patch` merged into the settings of the tenant `name`, which `consent` may create.
///
/// # Errors
/// If there is no such tenant, or the result is no tenant.
pub fn with_tenant(config: &Config, name: &str, patch: Value, consent: Consent) -> Result<Config, Refusal> {
    let mut config = config.clone();
    let tenant = match config.tenants.get(name) {
        Some(tenant) => tenant.clone(),
        None if consent.create => Default::default(),
        None => {
            let refusal = unknown("tenant", name, config.tenants.keys());
            let cure = "correct the name, or make a new tenant with --create (API: \"create\": true)";
            return Err(Refusal { cure: cure.to_owned(), ..refusal });
        }
    };
    config.tenants.insert(name.to_owned(), merged(&tenant, patch)?);
    Ok(config)
}

/// `config` with `patch` merged into the settings of the pool `name`, which `consent` may create.
///
/// # Errors
/// If there is no such pool, or the result is no pool.
pub fn with_pool(config: &Config, name: &str, patch: Value, consent: Consent) -> Result<Config, Refusal> {
    let mut config = config.clone();
    let pool = match config.pools.get(name) {
        Some(pool) => pool.clone(),
        None if consent.create => Default::default(),
        None => return Err(unknown("pool", name, config.pools.keys())),
    };
    config.pools.insert(name.to_owned(), merged(&pool, patch)?);
    Ok(config)
}

/// `config` without the tenant `name`.
///
/// # Errors
/// If there is no such tenant, or it is the default tenant, which each configuration has.
pub(crate) fn without_tenant(config: &Config, name: &str) -> Result<Config, Refusal> {
    if name == DEFAULT_TENANT {
        return Err(needed("tenant", name));
    }
    let mut config = config.clone();
    removed("tenant", &mut config.tenants, name).map(|_| config)
}

/// `config` without the pool `name`.
///
/// # Errors
/// If there is no such pool, it has volumes, or it is the default pool, which each configuration has.
pub(crate) fn without_pool(config: &Config, name: &str) -> Result<Config, Refusal> {
    let mut config = config.clone();
    if let Some((volume, _)) = config.volumes.iter().find(|(_, volume)| volume.pool == name) {
        let cure = "remove its volumes first; `evenkeel volume list` shows the pool of each";
        return Err(Refusal::new(409, "in_use", format!("pool {name:?} has volumes, {volume:?} for example"), cure));
    }
    if name == DEFAULT_POOL {
        return Err(needed("pool", name));
    }
    removed("pool", &mut config.pools, name).map(|_| config)
}

/// The refusal to remove the default pool or tenant: volumes and clients that name no other would have none.
fn needed(what: &str, name: &str) -> Refusal {
    let message = format!("{what} {name:?} cannot be removed: it is the default, for all without another {what}");
    Refusal::new(409, "refused", message, format!("change its settings with `evenkeel {what} set {name}`"))
}

/// `config` with `patch` merged into the settings of the volume `name`.
///
/// # Errors
/// If there is no such volume, or the result is no volume.
pub fn with_volume_patch(config: &Config, name: &str, patch: Value) -> Result<Config, Refusal> {
    let mut config = config.clone();
    let Some(volume) = config.volumes.get(name) else {
        return Err(unknown("volume", name, config.volumes.keys()));
    };
    let volume = merged(volume, patch)?;
    config.volumes.insert(name.to_owned(), volume);
    Ok(config)
}

/// Refuses values of `after`, not in `before`, with which clients would seem to hang, unless `consent` accepts them.
///
/// # Errors
/// The values.
pub(crate) fn refuse_hangs(before: &Config, after: &Config, consent: Consent) -> Result<(), Refusal> {
    if consent.force {
        return Ok(());
    }
    let known = before.hangs("request");
    let hangs: Vec<String> =
        after.hangs("request").iter().filter(|hang| !known.contains(hang)).map(ToString::to_string).collect();
    if hangs.is_empty() {
        return Ok(());
    }
    let cure = "correct the value, or repeat the command with --force (API: \"force\": true)";
    Err(Refusal::new(422, "would_hang", hangs.join("; "), cure))
}

/// The refusal that no object of the kind `what` has this name, with the most similar known name.
pub(super) fn unknown<'a>(what: &'static str, name: &str, known: impl Iterator<Item = &'a String>) -> Refusal {
    let known: Vec<&str> = known.map(String::as_str).collect();
    let cure = "`evenkeel state` lists pools, tenants and volumes";
    Refusal::new(404, "not_found", evenkeel_policy::unknown(what, name, &known), cure)
}

/// The warnings about the configuration `after` that its predecessor `before` does not have.
pub(crate) fn new_warnings(before: &Config, after: &Config) -> Result<Vec<Problem>, Errors> {
    let known = before.validate("request").unwrap_or_default();
    Ok(after.validate("request")?.into_iter().filter(|warning| !known.contains(warning)).collect())
}

/// `current`, changed by `patch` as a JSON merge patch (RFC 7396): members of `patch` replace those of the same names.
///
/// An object in `patch` with a member `kind` or `preset` replaces the present object as a whole, because old members would not
/// fit a new kind.
fn merged<T: Serialize + DeserializeOwned>(current: &T, patch: Value) -> Result<T, Refusal> {
    let cure = "see `evenkeel config schema` for the keys and their values";
    if !patch.is_object() {
        return Err(Refusal::new(
            422,
            "invalid_request",
            "the request must be a JSON object with the settings to change",
            cure,
        ));
    }
    let invalid = |error: serde_json::Error| {
        Refusal::new(422, "invalid_request", evenkeel_policy::explain(&error.to_string()), cure)
    };
    let mut value = serde_json::to_value(current).map_err(invalid)?;
    merge(&mut value, patch);
    serde_json::from_value(value).map_err(invalid)
}

fn merge(target: &mut Value, patch: Value) {
    let names_itself = evenkeel_policy::document::SELF_NAMING.iter().any(|key| patch.get(key).is_some());
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    // What replaces something, or stands where nothing was, begins empty: null in it removes nothing.
    if names_itself || !target.is_object() {
        *target = json!({});
    }
    let Value::Object(target) = target else { return };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(&key);
        } else {
            merge(target.entry(key).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_control::admission::{Config as Admission, ElasticConfig};
    use evenkeel_model::store::StoreParams;
    use evenkeel_policy::config::{Latency, Limit, Percentile, Pool, Tenant};
    use evenkeel_policy::units::{Bytes, Duration};

    #[test]
    fn a_patch_changes_what_it_names_and_nothing_else() {
        let limit = Limit { iops: 100, bytes_per_s: Bytes(1_000), ..Limit::default() };
        let tenant = Tenant { weight: 7, limit, ..Tenant::default() };
        let patched: Tenant = merged(&tenant, json!({ "limit": { "iops": 50 } })).expect("valid");
        assert_eq!(patched, Tenant { limit: Limit { iops: 50, ..limit }, ..tenant.clone() });
        let reset: Tenant = merged(&tenant, json!({ "weight": null })).expect("valid");
        assert_eq!(reset, Tenant { weight: 1, ..tenant });
    }

    #[test]
    fn null_below_what_is_not_there_is_dropped() {
        let patch =
            json!({ "latency": { "target": "10ms", "of": null }, "emulate": { "preset": "ssd", "iops": null } });
        let pool: Pool = merged(&Pool::default(), patch).expect("valid");
        assert_eq!(pool.latency, Some(Latency::mean(Duration::from_millis(10))));
        assert_eq!(pool.emulate, Some(StoreParams::ssd()));
        let mut value = json!({ "a": 1 });
        merge(&mut value, json!({ "a": { "b": null, "c": { "d": null } } }));
        assert_eq!(value, json!({ "a": { "c": {} } }), "RFC 7396, appendix A");
    }

    #[test]
    fn a_time_without_a_percentile_keeps_the_present_one() {
        let latency = Latency { percentile: Percentile::At(99.0), ..Latency::mean(Duration::from_millis(20)) };
        let pool = Pool { latency: Some(latency), ..Pool::default() };
        let sooner: Pool = merged(&pool, json!({ "latency": { "target": "15ms" } })).expect("valid");
        assert_eq!(sooner.latency, Some(Latency { target: Duration::from_millis(15), ..latency }));
    }

    #[test]
    fn another_kind_of_admission_replaces_the_old_one() {
        let pool: Pool =
            merged(&Pool::default(), json!({ "tuning": { "admission": { "kind": "fixed", "budget": "1MiB" } } }))
                .expect("valid");
        assert_eq!(pool.tuning.admission, Admission::Fixed { budget_bytes: 1 << 20 });
        let tuned: Pool =
            merged(&Pool::default(), json!({ "tuning": { "admission": { "tolerance": 0.05 } } })).expect("valid");
        assert_eq!(tuned.tuning.admission, Admission::Elastic(ElasticConfig { tolerance: 0.05 }));
        let bare: Pool = merged(&pool, json!({ "tuning": { "admission": "none" } })).expect("valid");
        assert_eq!(bare.tuning.admission, Admission::None);
    }

    #[test]
    fn a_device_keeps_its_preset_unless_it_is_named() {
        let device = StoreParams { iops: 90, ..StoreParams::hdd() };
        let pool = Pool { emulate: Some(device), ..Pool::default() };
        let slower: Pool = merged(&pool, json!({ "emulate": { "iops": 50 } })).expect("valid");
        assert_eq!(slower.emulate, Some(StoreParams { iops: 50, ..device }));
        let other: Pool = merged(&pool, json!({ "emulate": { "preset": "ssd" } })).expect("valid");
        assert_eq!(other.emulate, Some(StoreParams::ssd()));
    }

    #[test]
    fn tenants_and_pools_come_and_go_and_a_pool_with_volumes_stays() {
        let config = Config::parse("[tenants.a]\n[volumes.v]\nsize = \"1MiB\"\n", "the test").expect("valid");
        let create = Consent { create: true, ..Consent::default() };
        assert_eq!(with_pool(&config, "fast", json!({}), Consent::default()).expect_err("unknown").kind, "not_found");
        let with = with_pool(&config, "fast", json!({ "limit": { "iops": 5 } }), create).expect("a pool");
        assert_eq!(with.pools["fast"].limit.iops, 5);
        assert_eq!(without_pool(&with, "fast").expect("removed"), config);
        let refusal = without_pool(&config, "main").expect_err("it has a volume");
        assert!(refusal.kind == "in_use" && refusal.message.contains("\"v\""), "{refusal:?}");
        assert!(refusal.cure.contains("volume list"), "{refusal:?}");
        assert!(!without_tenant(&config, "a").expect("removed").tenants.contains_key("a"));
        assert_eq!(without_tenant(&config, "b").expect_err("unknown").kind, "not_found");
        // Volumes and clients that name none have these two.
        let refusal = without_tenant(&config, "default").expect_err("needed");
        assert!(refusal.kind == "refused" && refusal.cure.contains("tenant set default"), "{refusal:?}");
        let text = "[pools.other]\n[volumes.v]\nsize = \"1MiB\"\npool = \"other\"\n";
        let empty = Config::parse(text, "the test").expect("valid");
        assert_eq!(without_pool(&empty, "main").expect_err("needed").kind, "refused");
        let given = with_volume_patch(&config, "v", json!({ "tenant": "a" })).expect("a volume");
        assert_eq!(given.volumes["v"].tenant.as_deref(), Some("a"));
        assert_eq!(given.volumes["v"].description, config.volumes["v"].description);
        let limited = with_volume_patch(&given, "v", json!({ "limit": { "iops": 5 } })).expect("a volume");
        assert_eq!(limited.volumes["v"].limit, Limit { iops: 5, ..Limit::default() });
        assert_eq!(with_volume_patch(&limited, "v", json!({ "limit": { "iops": 0 } })).expect("a volume"), given);
        assert_eq!(with_volume_patch(&config, "w", json!({})).expect_err("unknown").kind, "not_found");
        let lists = json!({ "tls": "always", "allow": ["unix"], "deny": ["192.0.2.7"] });
        let listed = with_volume_patch(&given, "v", lists).expect("a volume");
        let volume = &listed.volumes["v"];
        assert!(volume.tls.is_some() && volume.allow.is_some() && volume.deny.len() == 1, "{volume:?}");
        let none = json!({ "tls": null, "allow": null, "deny": null });
        assert_eq!(with_volume_patch(&listed, "v", none).expect("a volume"), given);
    }

    #[test]
    fn an_unknown_key_is_refused_with_the_known_ones() {
        let refusal = merged::<Tenant>(&Tenant::default(), json!({ "wieght": 2 })).expect_err("unknown key");
        assert_eq!((refusal.status, refusal.kind), (422, "invalid_request"));
        assert!(refusal.message.contains("wieght") && refusal.message.contains("weight"), "{}", refusal.message);
    }
}
