//! The manager of a running server: makes the changes that operators request, one at a time, each checked before it takes
//! effect.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use evenkeel_policy::Config;
use evenkeel_policy::check::{Errors, Problem};
use evenkeel_policy::config::Volume;
use evenkeel_policy::health;
use evenkeel_policy::state::{Clients, State};
use evenkeel_policy::units::Bytes;
use evenkeel_server::{Applied, Paced, Server, Work};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::audit;
use super::source::{self, Source};
use crate::caller::Caller;
use crate::refusal::Refusal;

/// The kind of caller that requests a change. Many requests of one kind do not delay requests of the other kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Asker {
    /// A signal.
    Signal,
    /// A request on the control socket.
    Command,
}

impl From<&Caller> for Asker {
    fn from(caller: &Caller) -> Self {
        if matches!(caller, Caller::Signal(_)) { Self::Signal } else { Self::Command }
    }
}

/// A command's explicit consent to effects that are hardly ever intended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Consent {
    /// True to accept values with which clients would seem to hang.
    force: bool,
    /// True to create a tenant that does not exist yet.
    create: bool,
}

impl Consent {
    /// Removes `force` and `create` from a request's settings, of which neither is a key, and returns them.
    ///
    /// # Errors
    /// If one of them is not a Boolean.
    pub(super) fn take(patch: &mut Value) -> Result<Self, Refusal> {
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

/// The running server, together with the source of its configuration.
pub struct Manager {
    server: Server,
    source: Source,
    pace: Paced<Asker>,
    /// Names of the volumes that the configuration file defines. The lock is held during a change, so that changes are made one
    /// after the other.
    fixed_volumes: Mutex<BTreeSet<String>>,
    /// The host's membership in a cluster; unset if the host is not in a cluster.
    cluster: OnceLock<evenkeel_cluster::Handle>,
}

impl Manager {
    /// A manager of a server. `source` are the sources of its configuration, `fixed_volumes` the names of the volumes that the
    /// file defines; `is_superseded` is [`Recorded::is_superseded`](super::source::Recorded::is_superseded).
    pub fn new(server: Server, source: Source, fixed_volumes: BTreeSet<String>, is_superseded: bool) -> Self {
        if is_superseded {
            forget_superseded(&server.config(), &fixed_volumes);
        }
        let (pace, fixed_volumes) = (Paced::default(), Mutex::new(fixed_volumes));
        Self { server, source, pace, fixed_volumes, cluster: OnceLock::new() }
    }

    /// The server itself.
    pub fn server(&self) -> &Server {
        &self.server
    }

    pub(super) fn state(&self) -> State {
        let cluster = self.cluster.get().map(evenkeel_cluster::Handle::state);
        let state = State { cluster, ..self.server.state() };
        State { health: health::of_server(&state), ..state }
    }

    pub(super) fn clients(&self) -> Clients {
        self.server.clients()
    }

    /// Sets the membership in a cluster; to be called at most once, when the server starts.
    pub fn join_cluster(&self, cluster: evenkeel_cluster::Handle) {
        let _ = self.cluster.set(cluster);
    }

    /// Leaves the cluster, if this host is in one.
    pub fn leave_cluster(&self) {
        if let Some(cluster) = self.cluster.get() {
            cluster.stop();
        }
    }

    /// The configuration in force.
    pub fn config(&self) -> Arc<Config> {
        self.server.config()
    }

    /// Reads the configuration again and puts it into force. Returns a sentence for each change.
    ///
    /// # Errors
    /// If the configuration cannot be used, or needs a restart; no change is made then.
    pub fn reload(&self, by: &Caller) -> Result<Vec<String>, Refusal> {
        let mut change = self.begin_for(by.into());
        let loaded = self.source.load()?;
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        let before = self.config();
        let warnings = new_warnings(&before, &loaded.config)?;
        let applied = self.server.reload(loaded.config)?;
        audit::log(by, "configuration", &*before, &*self.config());
        if let Some(cluster) = self.cluster.get() {
            cluster.resize(self.config().cluster.sizes());
        }
        *change.fixed_volumes = loaded.fixed_volumes;
        let forgotten =
            loaded.recorded.is_superseded.then(|| forget_superseded(&self.config(), &change.fixed_volumes)).flatten();
        // All of them are in the log already.
        let warnings = warnings.iter().map(in_answer).chain(forgotten);
        let answered = warnings.filter(|_| !matches!(by, Caller::Signal(_)));
        Ok(told(applied).into_iter().chain(answered).collect())
    }

    /// Serves a new volume from now on, also after a restart. Returns notes about the volume's file.
    pub(super) fn create_volume(&self, by: &Caller, name: &str, volume: Volume) -> Result<Vec<String>, Refusal> {
        let change = self.begin();
        let mut config = Config::clone(&self.config());
        if config.volumes.insert(name.to_owned(), volume.clone()).is_some() {
            return Err(Refusal::new(
                409,
                "exists",
                format!("there is a volume {name:?} already"),
                "choose another name",
            ));
        }
        let warnings = self.check(&change.fixed_volumes, &config)?;
        let notes = self.server.create_volume(name, volume.clone())?;
        audit::log(by, &format!("volume {name}"), &served(&Volume::default(), false), &served(&volume, true));
        self.record(&change.fixed_volumes)?;
        Ok(notes.into_iter().chain(warned(warnings)).collect())
    }

    /// Makes a volume longer from now on, also after a restart. Returns notes about the volume's file.
    pub(super) fn grow_volume(&self, by: &Caller, name: &str, size: Bytes) -> Result<Vec<String>, Refusal> {
        let change = self.begin();
        let present = self.config();
        let before = self.server.state().volumes.into_iter().find(|volume| volume.name == name);
        match present.volumes.get(name) {
            // The size of a device is nowhere written down.
            Some(volume) if volume.backend.has_its_size() => {}
            Some(_) => self.refuse_fixed(&change.fixed_volumes, name, "set its size")?,
            None => return Err(unknown("volume", name, present.volumes.keys())),
        }
        let config = self.server.grown(name, size)?;
        let warnings = self.check(&change.fixed_volumes, &config)?;
        // A server that is killed in between makes the file longer when it starts; one longer than on record it refuses.
        let is_recorded = config != *present;
        if is_recorded {
            source::record(&config, &change.fixed_volumes).map_err(|error| {
                Refusal::new(500, "system", format!("{error:#}; nothing was changed"), "make room in the data folder")
            })?;
        }
        let notes = self.server.grow_volume(name, size).inspect_err(|error| {
            // What a device was asked that does not answer may still happen.
            if is_recorded
                && !matches!(error, evenkeel_server::Error::NoAnswer { .. })
                && let Err(error) = source::record(&present, &change.fixed_volumes)
            {
                tracing::error!("volume {name} keeps its size, but a reload or restart will make it longer: {error:#}");
            }
        })?;
        let before = before.map(|volume| Bytes(volume.size_bytes));
        audit::log(by, &format!("volume {name}"), &json!({ "size": before }), &json!({ "size": size }));
        Ok(notes.into_iter().chain(warned(warnings)).collect())
    }

    /// Stops serving a volume; the volume's file is kept. Returns lines about the result for the caller.
    pub(super) fn remove_volume(&self, by: &Caller, name: &str) -> Result<Vec<String>, Refusal> {
        let change = self.begin();
        self.refuse_fixed(&change.fixed_volumes, name, "remove it")?;
        let mut config = Config::clone(&self.config());
        let Some(volume) = config.volumes.remove(name) else {
            return Err(unknown("volume", name, config.volumes.keys()));
        };
        self.check(&change.fixed_volumes, &config)?;
        let warnings = self.server.remove_volume(name)?;
        audit::log(by, &format!("volume {name}"), &served(&volume, true), &served(&Volume::default(), false));
        self.record(&change.fixed_volumes)?;
        Ok(told(Applied { changes: vec![format!("volume {name} removed")], warnings, notes: Vec::new() }))
    }

    /// Merges `patch` into the table `server`. The change is in force until the next reload.
    pub(super) fn set_server(&self, by: &Caller, patch: Value) -> Result<Vec<String>, Refusal> {
        let _one_at_a_time = self.begin();
        let mut config = Config::clone(&self.config());
        config.server = merged(&config.server, patch)?;
        self.put(by, "server", config, Consent::default(), |config| Some(&config.server))
    }

    /// Merges `patch` into the settings of a tenant. A tenant that does not exist is created if `consent` allows it. The change
    /// is in force until the next reload.
    pub(super) fn set_tenant(
        &self,
        by: &Caller,
        name: &str,
        patch: Value,
        consent: Consent,
    ) -> Result<Vec<String>, Refusal> {
        let _one_at_a_time = self.begin();
        let mut config = Config::clone(&self.config());
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
        self.put(by, &format!("tenant {name}"), config, consent, |config| config.tenants.get(name))
    }

    /// Merges `patch` into the settings of a pool. The change is in force until the next reload.
    pub(super) fn set_pool(
        &self,
        by: &Caller,
        name: &str,
        patch: Value,
        consent: Consent,
    ) -> Result<Vec<String>, Refusal> {
        let _one_at_a_time = self.begin();
        let mut config = Config::clone(&self.config());
        let Some(pool) = config.pools.get_mut(name) else {
            return Err(unknown("pool", name, config.pools.keys()));
        };
        *pool = merged(pool, patch)?;
        self.put(by, &format!("pool {name}"), config, consent, |config| config.pools.get(name))
    }

    /// Puts `config` into force. It differs from the present configuration in `part`, which the log calls `what`.
    fn put<T: Serialize + ?Sized>(
        &self,
        by: &Caller,
        what: &str,
        config: Config,
        consent: Consent,
        part: impl Fn(&Config) -> Option<&T>,
    ) -> Result<Vec<String>, Refusal> {
        let before = self.config();
        let warnings = new_warnings(&before, &config)?;
        if !consent.force {
            let known = before.hangs("request");
            let hangs: Vec<String> =
                config.hangs("request").iter().filter(|hang| !known.contains(hang)).map(ToString::to_string).collect();
            if !hangs.is_empty() {
                let cure = "correct the value, or repeat the command with --force (API: \"force\": true)";
                return Err(Refusal::new(422, "would_hang", hangs.join("; "), cure));
            }
        }
        let applied = self.server.put(config)?;
        audit::log(by, what, &part(&before), &part(&self.config()));
        Ok(told(applied).into_iter().chain(warned(warnings)).collect())
    }

    /// Refuses a configuration whose volumes cannot be served now, or cannot be served after a restart. A restart reads only the
    /// file, the command line and the record, without changes of tenants and pools by command. Returns new warnings.
    fn check(&self, fixed_volumes: &BTreeSet<String>, next: &Config) -> Result<Vec<Problem>, Refusal> {
        let warnings = new_warnings(&self.config(), next)?;
        let recorded = next.volumes.iter().filter(|(name, _)| !fixed_volumes.contains(*name));
        self.source.load_with(recorded.map(|(name, volume)| (name.clone(), volume.clone())).collect()).map_err(
            |errors| {
                Refusal::new(
                    422,
                    "would_not_restart",
                    format!("a restart would refuse this: {errors}"),
                    format!("change {} first, then run `evenkeel reload`", self.source.name()),
                )
            },
        )?;
        Ok(warnings)
    }

    fn begin(&self) -> Change<'_> {
        self.begin_for(Asker::Command)
    }

    /// Waits until no other change is under way; with many waiting requests, until it is the turn of this kind of caller.
    fn begin_for(&self, asker: Asker) -> Change<'_> {
        self.pace.wait(asker);
        let fixed_volumes = self.fixed_volumes.lock().unwrap_or_else(PoisonError::into_inner);
        Change { fixed_volumes, pace: &self.pace, asker, work: Work::begin() }
    }

    fn refuse_fixed(&self, fixed_volumes: &BTreeSet<String>, name: &str, what: &str) -> Result<(), Refusal> {
        if !fixed_volumes.contains(name) {
            return Ok(());
        }
        let file = self.source.name();
        let message = format!("volume {name:?} is defined in {file}, and the next reload would undo the change");
        Err(Refusal::new(409, "defined_in_file", message, format!("{what} in {file}, then run `evenkeel reload`")))
    }

    /// Writes the record of volumes. If that fails, the change is in force nevertheless, as the returned refusal states.
    fn record(&self, fixed_volumes: &BTreeSet<String>) -> Result<(), Refusal> {
        source::record(&self.config(), fixed_volumes).map_err(|error| {
            let message = format!("the change is in force, but the next reload or restart will forget it: {error:#}");
            Refusal::new(
                500,
                "not_recorded",
                message,
                "make room in the data folder and repeat the command, or put the volume into the configuration file",
            )
        })
    }
}

/// A change under way. It holds the lock on the names of the volumes that the file defines, so that no other change begins before
/// it ends.
struct Change<'a> {
    fixed_volumes: MutexGuard<'a, BTreeSet<String>>,
    pace: &'a Paced<Asker>,
    asker: Asker,
    work: Work,
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.pace.charge(self.asker, &self.work);
    }
}

/// Removes from the record the volumes that the configuration file now defines. Returns a warning if that fails.
fn forget_superseded(config: &Config, fixed_volumes: &BTreeSet<String>) -> Option<String> {
    let error = source::record(config, fixed_volumes).err()?;
    let why = format!(
        "volumes.toml could not be written: a volume that the configuration file defines now will come back from it when it leaves that file: {error:#}"
    );
    tracing::error!("{why}");
    Some(format!("warning: {why}"))
}

/// The value by which the log shows a volume: its settings if it is served (`served`), otherwise null.
fn served(volume: &Volume, served: bool) -> Value {
    let mut value = json!(volume);
    value["served"] = Value::from(served);
    value
}

/// The refusal that no object of the kind `what` has this name, with the most similar known name.
fn unknown<'a>(what: &'static str, name: &str, known: impl Iterator<Item = &'a String>) -> Refusal {
    let known: Vec<&str> = known.map(String::as_str).collect();
    let cure = "`evenkeel state` lists pools, tenants and volumes";
    Refusal::new(404, "not_found", evenkeel_policy::unknown(what, name, &known), cure)
}

/// The warnings about the configuration `after` that its predecessor `before` does not have.
fn new_warnings(before: &Config, after: &Config) -> Result<Vec<Problem>, Errors> {
    let known = before.validate("request").unwrap_or_default();
    Ok(after.validate("request")?.into_iter().filter(|warning| !known.contains(warning)).collect())
}

fn in_answer(warning: &Problem) -> String {
    format!("warning: {}: {}", warning.key, warning.message)
}

/// Logs the warnings after a change, and returns them for its caller.
fn warned(warnings: Vec<Problem>) -> impl Iterator<Item = String> {
    warnings.into_iter().map(|warning| {
        tracing::warn!("after a change: {}: {}", warning.key, warning.message);
        in_answer(&warning)
    })
}

/// The result of a change as lines for its caller. The change is in force even if there are warnings.
fn told(applied: Applied) -> Vec<String> {
    let warnings = applied.warnings.iter().map(|warning| {
        tracing::error!("after a change: {warning}");
        format!("warning: {warning}")
    });
    applied.changes.into_iter().chain(applied.notes).chain(warnings).collect()
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
            "the request must be a JSON object of what is to change",
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
    use evenkeel_policy::units::Duration;

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
    fn an_unknown_key_is_refused_with_the_known_ones() {
        let refusal = merged::<Tenant>(&Tenant::default(), json!({ "wieght": 2 })).expect_err("unknown key");
        assert_eq!((refusal.status, refusal.kind), (422, "invalid_request"));
        assert!(refusal.message.contains("wieght") && refusal.message.contains("weight"), "{}", refusal.message);
    }
}

#[cfg(test)]
#[path = "recorded_tests.rs"]
mod recorded_tests;
