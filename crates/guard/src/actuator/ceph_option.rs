//! Options of a running Ceph daemon. An option is set in the running process only, never in the configuration that Ceph
//! stores for the cluster.
//!
//! If the option was already set in the running daemon before the agent, that value is restored at the end. Otherwise the
//! option is *unset*, not set to the value that was in force: a value set in the daemon would from then on hide the value
//! stored for the cluster.

use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use super::Error;
use crate::admin_socket::{self, AdminSocket};
use crate::aside::lock;
use crate::journal::{Journal, Knob, Restored};

/// Time limit for each answer of an OSD while an option is restored; longer than the limit for samples, because a missed
/// sample does less harm than an option that is not restored.
const RESTORE_LIMIT: Duration = Duration::from_secs(2);
/// The journal's spelling of "the option was not set in the running daemon".
const UNSET: &str = "unset";

/// An option of one Ceph daemon that the agent sets and restores.
#[derive(Debug)]
pub struct CephOption {
    socket: AdminSocket,
    option: &'static str,
    /// Value before the agent's first change, as the journal spells it; `None` before that change.
    before: Option<String>,
    /// Value that the agent set last; `None` if no value of the agent is set.
    ours: Option<String>,
    /// Value found before a change that the daemon has not confirmed: the option may hold this value or `ours`. `None` if the
    /// last change was confirmed.
    unsure: Option<String>,
}

/// The result of [`CephOption::set`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The option had the wanted value already.
    Same,
    /// The option has been set.
    Made,
    /// Another program has set the option to this value since the agent's last change; the option keeps it.
    Foreign(String),
}

impl CephOption {
    /// The option `option` of the daemon at `socket`, which is left alone until the first [`set`](Self::set).
    pub fn new(socket: AdminSocket, option: &'static str) -> Self {
        Self { socket, option, before: None, ours: None, unsure: None }
    }

    /// Name of the option.
    pub fn option(&self) -> &'static str {
        self.option
    }

    /// Value that the agent set last; `None` if no value of the agent is set.
    pub fn ours(&self) -> Option<&str> {
        self.ours.as_deref()
    }

    /// True if the daemon has not confirmed the agent's last change, so that the change has to be made again.
    pub fn is_unsure(&self) -> bool {
        self.unsure.is_some()
    }

    fn knob(&self) -> Knob {
        Knob::CephOption { socket: self.socket.path().to_owned(), option: self.option.to_owned() }
    }

    /// Marks the option as left changed, if the journal lists it: [`settle`](Self::settle) restores it before the next change.
    pub fn leave(&self, journal: &Mutex<Journal>) {
        lock(journal).leave(&self.knob());
    }

    /// Restores the option if an earlier run of the agent left it changed; true in this case.
    ///
    /// # Errors
    /// An error of the daemon or of the journal; on an error the option stays in the journal.
    pub fn settle(&self, journal: &Mutex<Journal>) -> Result<bool, Error> {
        let is_left = lock(journal).left().contains(&self.knob());
        if is_left {
            self.restore_listed(journal)?;
        }
        Ok(is_left)
    }

    fn restore_listed(&self, journal: &Mutex<Journal>) -> Result<(), Error> {
        let state = lock(journal).state(&self.knob()).cloned();
        let Some(state) = state else { return Ok(()) };
        if let Some(before) = &state.before {
            restore(self.socket.path(), self.option, before, state.seen.as_deref())?;
        }
        lock(journal).restored(&self.knob())
    }

    /// Sets the option to `value`, after its earlier value has been written to the journal. The journal is not locked while
    /// the daemon is asked, so that a daemon that hangs blocks no other thread.
    ///
    /// # Errors
    /// An error of the daemon or of the journal. A change without an answer counts as made: the option is restored at the
    /// end, whatever value it holds.
    pub fn set(&mut self, journal: &Mutex<Journal>, value: &str) -> Result<Change, Error> {
        self.settle(journal)?;
        let found = self.socket.option(self.option)?;
        let known = [&self.ours, &self.unsure].into_iter().flatten().any(|ours| *ours == found);
        if self.ours.is_some() && !known {
            return Ok(Change::Foreign(found));
        }
        if found == value {
            if self.ours.is_some() {
                self.ours = Some(found);
                if self.unsure.take().is_some() {
                    lock(journal).confirm(&self.knob(), value)?;
                }
            }
            return Ok(Change::Same);
        }
        let before = match &self.before {
            Some(before) => before.clone(),
            None => noted(self.socket.option_override(self.option)?),
        };
        lock(journal).intend(&self.knob(), Some(&before), Some(value))?;
        self.before = Some(before);
        (self.ours, self.unsure) = (Some(value.to_owned()), Some(found));
        self.socket.set_option(self.option, Some(value))?;
        self.unsure = None;
        lock(journal).confirm(&self.knob(), value)?;
        Ok(Change::Made)
    }

    /// Restores the value before the agent's first change, unless another program has changed the option since, or the daemon
    /// has been restarted. The journal is not locked while the daemon is asked.
    ///
    /// # Errors
    /// An error of the daemon or of the journal; on an error the option stays in the journal.
    pub fn restore(&mut self, journal: &Mutex<Journal>) -> Result<(), Error> {
        if self.ours.is_none() {
            return Ok(());
        }
        self.restore_listed(journal)?;
        self.forget();
        Ok(())
    }

    /// Forgets the values that the agent set, after a restart of the daemon, in which they are lost. The journal still lists
    /// the option; a restoration will find nothing to do.
    pub fn forget(&mut self) {
        (self.before, self.ours, self.unsure) = (None, None, None);
    }
}

/// An option's value as the journal spells it; `None`: the option was not set in the running daemon.
fn noted(value: Option<String>) -> String {
    value.map_or_else(|| UNSET.to_owned(), |value| format!("={value}"))
}

/// Restores an option by its journal entry: `before` is the value before the agent's first change, spelled as by [`noted`];
/// `seen` is the value read after the agent's last change, `None` if that was not confirmed.
pub(crate) fn restore(path: &Path, option: &str, before: &str, seen: Option<&str>) -> Result<Restored, Error> {
    let socket = AdminSocket::new(path, RESTORE_LIMIT);
    let found = match socket.option_override(option) {
        // With the daemon went what was set in it.
        Err(error) if error.is_absent() => return Ok(Restored::Nothing),
        found => found?,
    };
    match (found, before.strip_prefix('=')) {
        // Started anew, or unset by another program.
        (None, _) => Ok(Restored::Nothing),
        (Some(found), Some(before)) if found == before => Ok(Restored::Nothing),
        (Some(found), _) if seen.is_some_and(|seen| seen != found) => Ok(Restored::Foreign { found }),
        (Some(_), before) => match socket.set_option(option, before) {
            Err(admin_socket::Error::Absent { .. }) => Ok(Restored::Nothing),
            result => Ok(result.map(|()| Restored::Done)?),
        },
    }
}

#[cfg(test)]
#[path = "ceph_option_tests.rs"]
mod tests;
