//! The enforcement point for one OSD: reads counters and sets the throttle, both by the OSD's admin socket.
//!
//! Each OSD is served by a thread of its own ([`super::osds`]), because an OSD may hang.

use std::path::Path;
use std::sync::Mutex;

use evenkeel_control::log::Log;
use evenkeel_control::{Duration, Instant};
use evenkeel_policy::decision::seconds;
use evenkeel_policy::explain::{self, ReasonData};
use evenkeel_policy::figures::bytes;
use evenkeel_policy::state::AdmissionState;
use evenkeel_policy::verdict::{Cause, Lately, ThrottledBy};

use crate::actuator;
use crate::actuator::ceph_option::{CephOption, Change};
use crate::admin_socket::{self, AdminSocket};
use crate::config::CephConfig;
use crate::discovery::osds::OsdEntry;
use crate::journal::Journal;
use crate::loops::osd::{Budget, Mind, Taken};
use crate::loops::record::{At, OsdState, PoolState};
use crate::sensor::osd::{self as sensor, Counters};

/// Name of the OSD's option for the throttle: bytes that may be in flight in the store.
pub const BYTES: &str = "bluestore_throttle_bytes";
/// Name of the OSD's option for the throttle of deferred writes: bytes that may be in flight or wait to be written in place,
/// in addition to [`BYTES`].
pub const DEFERRED: &str = "bluestore_throttle_deferred_bytes";
/// Name of the admin socket's command that returns counters.
const PERF_DUMP: &str = "perf dump";
/// Number of consecutive samples with another throttle than the agent set, after which another program counts as having set
/// the throttle.
const FOREIGN_SAMPLES: u32 = 3;

/// The enforcement point for one OSD.
#[derive(Debug)]
pub struct Osd {
    name: String,
    socket: AdminSocket,
    /// The two requests of each sample: for the store's counters, and for the counters of its throttle. Ceph answers a
    /// request with one logger (group of counters) or with all; all would be too many.
    questions: [Vec<u8>; 2],
    /// Buffers of the answers to `questions`, kept to be used again.
    answers: [Vec<u8>; 2],
    mind: Mind,
    bytes: CephOption,
    deferred: CephOption,
    control_deferred: bool,
    /// Throttle of deferred writes divided by the throttle of all bytes, both as before the agent's first change; `None`
    /// until read.
    deferred_ratio: Option<f64>,
    /// Process id of the OSD; `None` before its first answer.
    pid: Option<i32>,
    throttle_bytes: Option<u64>,
    /// True if the throttle of deferred writes has not been set for the newest budget.
    deferred_due: bool,
    disagreeing: u32,
    /// Condition of the OSD at its newest tick, as [`OsdState::condition`] names it, and the reason if the OSD is absent, late
    /// or unusable.
    condition: (&'static str, Option<String>),
    /// The reason why this OSD is left alone, as a sentence: another program has set one of the options. `None` while the
    /// agent may set them.
    foreign: Option<String>,
    skipped: u64,
    changes: u64,
    restarts: u64,
    errors: u64,
}

impl Osd {
    /// The enforcement point of an OSD; it has taken no sample yet.
    pub fn new(entry: &OsdEntry, config: &CephConfig, now: Instant, seed: u64) -> Self {
        let socket = AdminSocket::new(&entry.socket, config.settings.answer_within.into());
        Self {
            name: entry.name.clone(),
            mind: Mind::new(config.admission, config.settings.sample_every, now, seed),
            bytes: CephOption::new(socket.clone(), BYTES),
            deferred: CephOption::new(socket.clone(), DEFERRED),
            socket,
            questions: [sensor::STORE, sensor::BYTES]
                .map(|logger| admin_socket::question(PERF_DUMP, &[("logger", logger.into())])),
            answers: [Vec::new(), Vec::new()],
            control_deferred: config.settings.deferred,
            deferred_ratio: None,
            pid: None,
            throttle_bytes: None,
            deferred_due: false,
            disagreeing: 0,
            condition: ("starting", None),
            foreign: None,
            skipped: 0,
            changes: 0,
            restarts: 0,
            errors: 0,
        }
    }

    /// Name of the OSD.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Path of the OSD's admin socket.
    pub fn socket(&self) -> &Path {
        self.socket.path()
    }

    /// Counts `count` samples that could not be taken in time, because an earlier sample took too long.
    pub fn skipped(&mut self, count: u64) {
        self.skipped += count;
    }

    /// Takes a sample, decides, and sets the budget; without a journal it sets nothing. `clock` returns the present time. A
    /// failed step is tried again in the next call.
    ///
    /// # Errors
    /// An error of the OSD or of the journal.
    pub fn tick(
        &mut self,
        clock: impl Fn() -> Instant,
        journal: Option<&Mutex<Journal>>,
    ) -> Result<(), actuator::Error> {
        let result = self.try_tick(clock, journal);
        if let Err(error) = &result {
            self.errors += 1;
            let condition = match error {
                actuator::Error::Osd(admin_socket::Error::Absent { .. }) => "absent",
                actuator::Error::Osd(admin_socket::Error::Late { .. }) => "late",
                _ => "unusable",
            };
            self.condition = (condition, Some(error.to_string()));
        }
        result
    }

    fn try_tick(
        &mut self,
        clock: impl Fn() -> Instant,
        journal: Option<&Mutex<Journal>>,
    ) -> Result<(), actuator::Error> {
        let began = clock();
        let (counters, pid) = self.counters()?;
        // The OSD looked at its counters somewhere in between.
        let now = began + Duration::from_nanos(clock().since(began).as_nanos() / 2);
        let taken = self.mind.sample(now, &counters);
        let another = self.pid.replace(pid).is_some_and(|before| before != pid);
        // Where the process cannot be told, in a container beside ours, its counters have to do.
        if another || (pid == 0 && taken == Taken::Anew) {
            self.started_anew(journal)?;
        }
        self.throttle_bytes = Some(counters.bytes.max);
        if self.bytes.ours().is_none() {
            self.mind.limit(counters.bytes.max);
        }
        if let Some(journal) = journal.filter(|_| self.foreign.is_some()) {
            // Options that could not be restored when another program's value was found; mostly there are none.
            self.restore(journal)?;
        }
        let Some(journal) = journal.filter(|_| self.foreign.is_none()) else {
            self.condition = ("watched", None);
            return Ok(());
        };
        if taken == Taken::Counted || self.bytes.ours().is_none() {
            self.act(journal, counters.bytes.max)?;
        }
        self.condition = ("controlled", None);
        Ok(())
    }

    fn counters(&mut self) -> Result<(Counters, i32), admin_socket::Error> {
        let questions = [&*self.questions[0], &*self.questions[1]];
        let pid = self.socket.ask_all(questions, &mut self.answers)?;
        let [store, bytes] = &self.answers;
        let store = self.socket.understand(PERF_DUMP, store, |text| {
            let store: sensor::Store = sensor::parse(text, sensor::STORE)?;
            if store.has_latencies() {
                return Ok(store);
            }
            Err(admin_socket::Malformed::Lacks("counters of the time that the store's states take".into()))
        })?;
        let bytes = self.socket.understand(PERF_DUMP, bytes, |text| sensor::parse(text, sensor::BYTES))?;
        Ok((Counters { store, bytes }, pid))
    }

    /// After a restart of the OSD: forgets the values that the agent set before.
    fn started_anew(&mut self, journal: Option<&Mutex<Journal>>) -> Result<(), actuator::Error> {
        self.restarts += 1;
        self.condition = ("starting", None);
        (self.disagreeing, self.deferred_ratio, self.deferred_due, self.foreign) = (0, None, false, None);
        // The journal finds nothing of ours in the new process, and forgets it.
        let restored = journal.map_or(Ok(()), |journal| self.restore(journal));
        for option in [&mut self.bytes, &mut self.deferred] {
            option.forget();
            // What is still listed is of the process that is gone: it is settled before the option is set again.
            if let Some(journal) = journal {
                option.leave(journal);
            }
        }
        restored
    }

    /// Gives the OSD's options that the agent has set their earlier values back.
    ///
    /// # Errors
    /// An error of the OSD or of the journal; options that were not restored stay in the journal.
    pub fn restore(&mut self, journal: &Mutex<Journal>) -> Result<(), actuator::Error> {
        // Both are tried, whatever happens to the first.
        [self.bytes.restore(journal), self.deferred.restore(journal)].into_iter().collect()
    }

    fn act(&mut self, journal: &Mutex<Journal>, throttle_bytes: u64) -> Result<(), actuator::Error> {
        let budget = self.mind.budget_bytes();
        let wanted = budget.to_string();
        if let Some(ours) = self.bytes.ours() {
            // What the throttle shows, it shows without being asked.
            let as_set = ours.parse() == Ok(throttle_bytes);
            let is_due = ours != wanted || self.bytes.is_unsure() || self.deferred_due;
            self.disagreeing = if as_set { 0 } else { self.disagreeing + 1 };
            // A change that was not confirmed may not have been carried out.
            if self.disagreeing >= FOREIGN_SAMPLES && !self.bytes.is_unsure() {
                let found = self.socket.option(BYTES)?;
                return self.is_foreign(BYTES, found, journal);
            }
            if !is_due {
                return Ok(());
            }
        } else if self.bytes.settle(journal)? | self.deferred.settle(journal)? || budget == throttle_bytes {
            // What an earlier run left is not what the OSD had; the next sample shows that.
            return Ok(());
        }
        if self.control_deferred && self.deferred_ratio.is_none() {
            let before: [Option<f64>; 2] =
                [self.socket.option(BYTES)?, self.socket.option(DEFERRED)?].map(|v| v.parse().ok());
            if let [Some(bytes), Some(deferred)] = before {
                self.deferred_ratio = Some(if bytes > 0.0 { deferred / bytes } else { 0.0 });
            }
        }
        self.deferred_due = true;
        match self.bytes.set(journal, &wanted)? {
            Change::Foreign(found) => return self.is_foreign(BYTES, found, journal),
            Change::Made => self.changes += 1,
            Change::Same => {}
        }
        if let Some(ratio) = self.deferred_ratio.filter(|&ratio| ratio > 0.0) {
            let deferred = ((budget as f64 * ratio) as u64).to_string();
            if let Change::Foreign(found) = self.deferred.set(journal, &deferred)? {
                return self.is_foreign(DEFERRED, found, journal);
            }
        }
        self.deferred_due = false;
        Ok(())
    }

    /// Leaves this OSD alone from now on, because another program has set `option` to `found`.
    fn is_foreign(&mut self, option: &str, found: String, journal: &Mutex<Journal>) -> Result<(), actuator::Error> {
        let why = format!(
            "another program set {option} to {found}: the agent leaves this OSD alone until the OSD or agent restarts"
        );
        tracing::warn!("{}: {why}", self.name);
        self.foreign = Some(why);
        // Of the two, what is still ours is restored.
        self.restore(journal)
    }

    /// The OSD's newest measurements and decisions.
    pub fn state(&self) -> PoolState {
        let (decision, measured) = (self.mind.decision(), self.mind.measured());
        let (because, reason) = (explain::admission(&decision.reason), ReasonData::from(&decision.reason));
        let budget_bytes = self.mind.budget_bytes();
        let lately = Lately {
            window_s: measured.window_s,
            iops: measured.commits_per_s,
            bytes_per_s: measured.cost_bytes_per_s,
            latency_ms: measured.store_latency_ms,
            device_latency_ms: measured.store_latency_ms,
            throttled_by: (measured.waiting > 0).then(|| ThrottledBy {
                by: self.mind.method().into(),
                cause: Cause::Admission,
                how: bytes(self.throttle_bytes.unwrap_or(budget_bytes)),
                because: because.clone(),
            }),
            because: because.clone(),
            ..Lately::default()
        };
        let at = OsdState {
            socket: self.socket.path().display().to_string(),
            condition: if self.foreign.is_some() { "foreign" } else { self.condition.0 }.into(),
            problem: self.foreign.clone().or_else(|| self.condition.1.clone()),
            admission: AdmissionState {
                kind: self.mind.method().into(),
                budget_bytes: Some(budget_bytes),
                in_flight_bytes: measured.in_flight_bytes,
                target_ms: decision.target.map(evenkeel_control::Duration::as_millis_f64),
                decided_at_s: seconds(decision.at),
                reason: because,
                reason_data: reason.clone(),
                ..AdmissionState::default()
            },
            throttle_bytes: self.throttle_bytes,
            waiting: measured.waiting,
            samples_total: self.mind.samples(),
            skipped_total: self.skipped,
            changes_total: self.changes,
            restarts_total: self.restarts,
            errors_total: self.errors,
        };
        PoolState {
            name: self.name.clone(),
            method: self.mind.method().into(),
            reason: reason.kind,
            lately,
            at: At::Osd(at),
            ..PoolState::default()
        }
    }

    /// The log of decisions, oldest first.
    pub fn decisions(&self) -> &Log<Budget> {
        self.mind.decisions()
    }
}

#[cfg(test)]
#[path = "osd_tests.rs"]
mod tests;
