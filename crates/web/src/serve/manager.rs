//! The manager of a running server: makes the changes that operators request, one at a time, each checked before it takes
//! effect.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use evenkeel_history::Sample;
use evenkeel_policy::Config;
use evenkeel_policy::change::{Change as Difference, NeedsRestart, plan};
use evenkeel_policy::check::Problem;
use evenkeel_policy::config::Volume;
use evenkeel_policy::health::{self, Health};
use evenkeel_policy::recurring::Recurring;
use evenkeel_policy::state::{Clients, State};
use evenkeel_policy::units::Bytes;
use evenkeel_server::{Applied, Error, Paced, Server, Work};
use serde::Serialize;
use serde_json::{Value, json};

use super::audit;
use super::edit::{self, Consent, new_warnings, unknown};
use super::recent::Recent;
use super::source::{self, Source};
use crate::caller::Caller;
use crate::history::{ByCommand, Recorder};
use crate::probe::{self, Newest};
use crate::process;
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

/// Sentences that answer a command, or the reason why it is refused.
pub(super) type Outcome = Result<Vec<String>, Refusal>;

/// The most changes that are kept until the history records them; of more, as while the history is off, the oldest are dropped.
const MAX_CHANGES: usize = 1_000;
/// Longest time for which a change is kept until the history records it. The history gives a change the time of recording, which
/// would be too wrong later.
const CHANGE_WAITS: Duration = Duration::from_secs(60);

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
    /// The recorder of the history; unset before the recorder starts, or if its thread could not start.
    history: OnceLock<Recorder>,
    /// Percentiles of the newest recorded second.
    recent: Recent,
    /// Counters of troubles that come and go.
    recurring: Mutex<Recurring>,
    /// The newest health, for probes.
    newest: Newest,
    /// Changes that the history does not have yet, oldest first.
    changes: Mutex<Vec<(Instant, ByCommand)>>,
}

impl Manager {
    /// A manager of a server. `source` are the sources of its configuration, `fixed_volumes` the names of the volumes that the
    /// file defines; `is_superseded` is [`Recorded::is_superseded`](super::source::Recorded::is_superseded).
    pub fn new(server: Server, source: Source, fixed_volumes: BTreeSet<String>, is_superseded: bool) -> Self {
        if is_superseded {
            forget_superseded(&server.config(), &fixed_volumes);
        }
        let (pace, fixed_volumes) = (Paced::default(), Mutex::new(fixed_volumes));
        let (cluster, history, recent) = (OnceLock::new(), OnceLock::new(), Recent::default());
        let (recurring, newest, changes) = (Mutex::default(), Newest::default(), Mutex::default());
        Self { server, source, pace, fixed_volumes, cluster, history, recent, recurring, newest, changes }
    }

    /// Logs a change of the object `what`, and keeps it for the history.
    fn audit<T: Serialize>(&self, by: &Caller, what: &str, before: &T, after: &T) {
        for sentence in audit::log(by, what, before, after) {
            self.keep(what, sentence);
        }
    }

    /// As [`Self::audit`], for limits and weights that hours of the day have put into force or out of it.
    fn audit_hours(&self, before: &Config, after: &Config) {
        for (what, sentence) in audit::log_hours(before, after) {
            self.keep(&what, sentence);
        }
    }

    /// Keeps the sentence about a change of the object `what`, such as `tenant shop`, until the history records it.
    fn keep(&self, what: &str, sentence: String) {
        let of = |kind: &str| what.strip_prefix(kind).unwrap_or_default().to_owned();
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        changes.push((Instant::now(), ByCommand { pool: of("pool "), tenant: of("tenant "), sentence }));
        let surplus = changes.len().saturating_sub(MAX_CHANGES);
        changes.drain(..surplus);
    }

    /// The changes since the last call, oldest first, without those that have waited too long at `now`.
    pub(super) fn take_changes(&self, now: Instant) -> Vec<ByCommand> {
        let changes = std::mem::take(&mut *self.changes.lock().unwrap_or_else(PoisonError::into_inner));
        let newest = changes.into_iter().filter(|(at, _)| now.saturating_duration_since(*at) < CHANGE_WAITS);
        newest.map(|(_, change)| change).collect()
    }

    /// The server itself.
    pub fn server(&self) -> &Server {
        &self.server
    }

    pub(super) fn state(&self) -> State {
        let mut state = self.completed(self.server.state());
        self.recent.fill(Instant::now(), &mut state);
        state
    }

    /// Takes the figures of a second that is about to be recorded.
    pub(super) fn has_measured(&self, samples: &[Sample]) {
        self.recent.set(Instant::now(), samples);
    }

    /// As [`Self::state`], without distributions of latencies, and of decisions only those first taken at the uptime `since` or
    /// later, in seconds.
    pub(super) fn state_since(&self, since: f64) -> State {
        self.completed(self.server.state_since(since))
    }

    /// The server's state with that of the cluster, and its health.
    fn completed(&self, state: State) -> State {
        let cluster = self.cluster.get().map(evenkeel_cluster::Handle::state);
        let state = State { cluster, ..state };
        let of_process = process::troubles("server", self.server.doubt_about_certificate());
        let of_history = self.history.get().and_then(Recorder::trouble);
        let recurring = self.recurring.lock().unwrap_or_else(PoisonError::into_inner).troubles(&state);
        let troubles = health::of_server(&state).troubles.into_iter().chain(recurring);
        let troubles = troubles.chain(of_process).chain(of_history);
        let health = Health::of(troubles.collect());
        self.newest.set(Instant::now(), &health);
        State { health, ..state }
    }

    /// The answer to `/healthz`, from a health of the last second, whichever request it was collected for.
    pub(super) fn probed(&self) -> probe::Answer {
        // Without distributions and decisions: neither has to do with health.
        self.newest.answer(Instant::now(), || self.state_since(f64::INFINITY).health)
    }

    /// Sets the recorder of the history; to be called at most once, when the server starts.
    pub(super) fn is_recorded_by(&self, recorder: Recorder) {
        let _ = self.history.set(recorder);
    }

    /// Records in the history that the server stops. Takes two seconds at most.
    pub fn stop_recording(&self) {
        self.history.get().iter().for_each(|recorder| recorder.stop());
    }

    pub(super) fn history(&self) -> Option<&Recorder> {
        self.history.get()
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

    /// Absolute path of the configuration file; `None` without a file.
    pub(super) fn config_file(&self) -> Option<PathBuf> {
        self.source.file.as_deref().and_then(|file| std::path::absolute(file).ok())
    }

    /// The sentences that [`Self::reload`] would return now, without those about the files of new volumes: no volume is opened
    /// and nothing changes.
    ///
    /// # Errors
    /// If the configuration cannot be used, or needs a restart.
    pub(super) fn preview(&self) -> Outcome {
        let _one_at_a_time = self.begin();
        let loaded = self.source.load()?;
        let present = self.config();
        let warnings = new_warnings(&present, &loaded.config)?;
        let changes = plan(&present, &loaded.config).map_err(|NeedsRestart(keys)| {
            let keys = keys.join("; ");
            Error::Refused(format!("a reload would be refused, because these changes need a restart: {keys}"))
        })?;
        let lines = changes.iter().map(Difference::to_string).collect();
        let lines = audit::with_values(lines, &present, &loaded.config);
        Ok(lines.into_iter().chain(warnings.iter().map(in_answer)).collect())
    }

    /// Reads the configuration again and puts it into force. Returns a sentence for each change.
    ///
    /// # Errors
    /// If the configuration cannot be used, or needs a restart; no change is made then.
    pub fn reload(&self, by: &Caller) -> Outcome {
        let mut change = self.begin_for(by.into());
        let loaded = self.source.load()?;
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        let before = self.config();
        let warnings = new_warnings(&before, &loaded.config)?;
        let applied = self.server.reload(loaded.config)?;
        self.audit(by, "configuration", &*before, &*self.config());
        self.audit_hours(&before, &self.config());
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

    /// Applies the limits and weights whose hours have begun, and stops applying those whose hours have ended; all other settings
    /// stay. Call it every minute. Returns a sentence for each change. The call does not wait until a change by command or signal
    /// has ended, as such a change may hang.
    ///
    /// # Errors
    /// If the server cannot make the change.
    pub fn keep_hours(&self) -> Outcome {
        let present = self.config();
        let mut wanted = Config::clone(&present);
        wanted.set_time((self.source.minute)());
        if wanted == *present {
            return Ok(Vec::new());
        }
        let applied = self.server.set_time(|| (self.source.minute)())?;
        // Without a change it was made meanwhile, by a command that has kept it for the history.
        if !applied.changes.is_empty() {
            self.audit_hours(&present, &self.config());
        }
        Ok(told(applied))
    }

    /// Serves a new volume from now on, also after a restart. Returns notes about the volume's file.
    pub(super) fn create_volume(&self, by: &Caller, name: &str, volume: Volume, consent: Consent) -> Outcome {
        let change = self.begin();
        let mut config = edit::with_volume(&self.config(), name, volume.clone())?;
        // Its limit may have hours.
        config.set_time((self.source.minute)());
        let volume = config.volumes.get(name).cloned().unwrap_or(volume);
        let warnings = self.check(&change.fixed_volumes, &config)?;
        edit::refuse_hangs(&self.config(), &config, consent)?;
        let notes = self.server.create_volume(name, volume.clone())?;
        // One that is not on record would end under its clients at the next reload, and could not be created again until then.
        let recorded = source::record(&self.config(), &change.fixed_volumes);
        if let Err(error) = &recorded
            && let Ok(lost) = self.server.remove_volume(name)
        {
            let why = "was removed again, as volumes.toml in the data folder cannot be written";
            lost.iter().for_each(|lost| tracing::error!("volume {name} {why}; its data may not be durable: {lost}"));
            let outcome = "the volume was not created, and a file made for it stays";
            return Err(unrecorded(&format!("{error:#}"), outcome));
        }
        self.audit(by, &format!("volume {name}"), &served(&Volume::default(), false), &served(&volume, true));
        if recorded.is_err() {
            // It is still served.
            self.record(&change.fixed_volumes)?;
        }
        Ok(notes.into_iter().chain(warned(warnings)).collect())
    }

    /// Makes a volume longer from now on, also after a restart. Returns notes about the volume's file.
    pub(super) fn grow_volume(&self, by: &Caller, name: &str, size: Bytes) -> Outcome {
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
            source::record(&config, &change.fixed_volumes)
                .map_err(|error| unrecorded(&format!("{error:#}"), "nothing was changed"))?;
        }
        let notes = self.server.grow_volume(name, size).inspect_err(|error| {
            // What a device was asked that does not answer may still happen.
            if is_recorded
                && !matches!(error, evenkeel_server::Error::NoAnswer { .. })
                && let Err(error) = source::record(&present, &change.fixed_volumes)
            {
                tracing::error!(
                    "volume {name} keeps its size, but its new size stays in volumes.toml, so that a reload or restart will make it longer; make room in the data folder and repeat the command: {error:#}"
                );
            }
        })?;
        let before = before.map(|volume| Bytes(volume.size_bytes));
        self.audit(by, &format!("volume {name}"), &json!({ "size": before }), &json!({ "size": size }));
        Ok(notes.into_iter().chain(warned(warnings)).collect())
    }

    /// Merges `patch` into the settings of a volume, from now on, also after a restart. A volume in the configuration file can
    /// have another limit until the next reload.
    pub(super) fn set_volume(&self, by: &Caller, name: &str, patch: Value, consent: Consent) -> Outcome {
        let change = self.begin();
        let sets_more = patch.as_object().is_some_and(|members| members.keys().any(|key| key != "limit"));
        let is_lasting = sets_more || !change.fixed_volumes.contains(name);
        let config = edit::with_volume_patch(&self.config(), name, patch)?;
        if is_lasting {
            self.refuse_fixed(&change.fixed_volumes, name, "change it")?;
            self.check(&change.fixed_volumes, &config)?;
        }
        let lines = self.put(by, &format!("volume {name}"), config, consent, |config| config.volumes.get(name))?;
        if is_lasting {
            self.record(&change.fixed_volumes)?;
        }
        Ok(lines)
    }

    /// Stops serving a volume; the volume's file is kept. Returns lines about the result for the caller.
    pub(super) fn remove_volume(&self, by: &Caller, name: &str) -> Outcome {
        let change = self.begin();
        self.refuse_fixed(&change.fixed_volumes, name, "remove it")?;
        let (config, volume) = edit::without_volume(&self.config(), name)?;
        self.check(&change.fixed_volumes, &config)?;
        // First: a volume that is still on record would come back at the next reload.
        source::record(&config, &change.fixed_volumes)
            .map_err(|error| unrecorded(&format!("{error:#}"), "nothing was changed"))?;
        let warnings = self.server.remove_volume(name).inspect_err(|_| {
            if let Err(error) = source::record(&self.config(), &change.fixed_volumes) {
                tracing::error!(
                    "volume {name} is still served, but volumes.toml lacks it, so that a reload or restart will remove it; make room in the data folder and repeat the command: {error:#}"
                );
            }
        })?;
        self.audit(by, &format!("volume {name}"), &served(&volume, true), &served(&Volume::default(), false));
        Ok(told(Applied { changes: vec![format!("volume {name} removed")], warnings, notes: Vec::new() }))
    }

    /// Merges `patch` into the table `server`. The change is in force until the next reload.
    pub(super) fn set_server(&self, by: &Caller, patch: Value) -> Outcome {
        let _one_at_a_time = self.begin();
        let config = edit::with_server(&self.config(), patch)?;
        self.put(by, "server", config, Consent::default(), |config| Some(&config.server))
    }

    /// Merges `patch` into the settings of a tenant. A tenant that does not exist is created if `consent` allows it. The change
    /// is in force until the next reload.
    pub(super) fn set_tenant(&self, by: &Caller, name: &str, patch: Value, consent: Consent) -> Outcome {
        let _one_at_a_time = self.begin();
        let config = edit::with_tenant(&self.config(), name, patch, consent)?;
        self.put(by, &format!("tenant {name}"), config, consent, |config| config.tenants.get(name))
    }

    /// Merges `patch` into the settings of a pool. The change is in force until the next reload.
    pub(super) fn set_pool(&self, by: &Caller, name: &str, patch: Value, consent: Consent) -> Outcome {
        let _one_at_a_time = self.begin();
        let config = edit::with_pool(&self.config(), name, patch, consent)?;
        self.put(by, &format!("pool {name}"), config, consent, |config| config.pools.get(name))
    }

    /// Removes a tenant; its connections pass to other tenants. The change is in force until the next reload.
    pub(super) fn remove_tenant(&self, by: &Caller, name: &str) -> Outcome {
        let _one_at_a_time = self.begin();
        let config = edit::without_tenant(&self.config(), name)?;
        self.put(by, &format!("tenant {name}"), config, Consent::default(), |config| config.tenants.get(name))
    }

    /// Removes a pool without volumes. The change is in force until the next reload.
    pub(super) fn remove_pool(&self, by: &Caller, name: &str) -> Outcome {
        let _one_at_a_time = self.begin();
        let config = edit::without_pool(&self.config(), name)?;
        self.put(by, &format!("pool {name}"), config, Consent::default(), |config| config.pools.get(name))
    }

    /// Puts `config` into force. It differs from the present configuration in `part`, which the log calls `what`.
    fn put<T: Serialize + ?Sized>(
        &self,
        by: &Caller,
        what: &str,
        config: Config,
        consent: Consent,
        part: impl Fn(&Config) -> Option<&T>,
    ) -> Outcome {
        let (before, mut config) = (self.config(), config);
        config.set_time((self.source.minute)());
        let warnings = new_warnings(&before, &config)?;
        edit::refuse_hangs(&before, &config, consent)?;
        let applied = self.server.put(config)?;
        let after = self.config();
        self.audit(by, what, &part(&before), &part(&after));
        self.audit_hours(&before, &after);
        let lines = audit::with_values(told(applied), &before, &after);
        Ok(lines.into_iter().chain(warned(warnings)).collect())
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
                    format!("a restart would refuse the configuration with this change: {errors}"),
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
        "volumes.toml in the data folder cannot be written: a volume that the configuration file defines now stays recorded there, and is served again when removed from that file: {error:#}"
    );
    tracing::error!("{why}");
    Some(format!("warning: {why}"))
}

/// The refusal of a change because the record of volumes cannot be written, for the reason `why`. `outcome`: a clause that says
/// what is left of the change.
fn unrecorded(why: &str, outcome: &str) -> Refusal {
    let cure = "make room in the data folder, or give the server the right to write there, and repeat the command";
    Refusal::new(500, "system", format!("{why}; {outcome}"), cure)
}

/// The value by which the log shows a volume: its settings if it is served (`served`), otherwise null.
fn served(volume: &Volume, served: bool) -> Value {
    let mut value = json!(volume);
    value["served"] = Value::from(served);
    value
}

fn in_answer(warning: &Problem) -> String {
    format!("warning: {}: {}", warning.key, warning.message)
}

/// Logs the warnings after a change, and returns them for its caller.
fn warned(warnings: Vec<Problem>) -> impl Iterator<Item = String> {
    warnings.into_iter().map(|warning| {
        tracing::warn!("after a change of the configuration: {}: {}", warning.key, warning.message);
        in_answer(&warning)
    })
}

/// The result of a change as lines for its caller. The change is in force even if there are warnings.
fn told(applied: Applied) -> Vec<String> {
    let warnings = applied.warnings.iter().map(|warning| {
        tracing::error!("after a change of the configuration: {warning}");
        format!("warning: {warning}")
    });
    applied.changes.into_iter().chain(applied.notes).chain(warnings).collect()
}

#[cfg(test)]
#[path = "recorded_tests.rs"]
mod recorded_tests;
