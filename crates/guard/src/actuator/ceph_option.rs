//! Options of a running Ceph daemon: only what is in force until it ends is set, never what is stored for the cluster.
//!
//! An option that was set in the running daemon before is remembered as it was. One that was not set is *unset* at the end, not set
//! to the value it had: a value that stays set in the daemon would hide what is stored for the cluster from then on.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Error;
use crate::admin_socket::{self, AdminSocket};
use crate::journal::{Journal, Knob, Restored};

/// How long an OSD may take to put an option back: longer than an answer may take otherwise, as it matters more.
const RESTORE_LIMIT: Duration = Duration::from_secs(2);
/// Written in the journal where the option was not set.
const UNSET: &str = "unset";

/// An option of one daemon that is ours to set.
#[derive(Debug)]
pub struct CephOption {
    socket: AdminSocket,
    option: &'static str,
    /// Before us, as written in the journal.
    before: Option<String>,
    /// Our last value.
    ours: Option<String>,
    /// A change was not answered: the option may hold what we set last or before.
    unsure: Option<String>,
}

/// The result of [`CephOption::set`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was so already.
    Same,
    /// It is now.
    Made,
    /// Another program changed it since. It stays as that program set it.
    Foreign(String),
}

impl CephOption {
    /// An option that is left alone until the first [`set`](Self::set).
    pub fn new(socket: AdminSocket, option: &'static str) -> Self {
        Self { socket, option, before: None, ours: None, unsure: None }
    }

    /// Its name.
    pub fn option(&self) -> &'static str {
        self.option
    }

    /// Our last value, if there is one.
    pub fn ours(&self) -> Option<&str> {
        self.ours.as_deref()
    }

    fn knob(&self) -> Knob {
        Knob::CephOption { socket: self.socket.path().to_owned(), option: self.option.to_owned() }
    }

    /// Sets it, with what was there before written to the journal first. The journal is not held while the daemon is asked:
    /// one that hangs keeps no other waiting.
    ///
    /// # Errors
    /// What the daemon or the journal says. After a change that was not answered the option counts as set: it is put back at
    /// the end whatever it holds.
    pub fn set(&mut self, journal: &Mutex<Journal>, value: &str) -> Result<Change, Error> {
        let mut found = self.socket.option(self.option)?;
        if lock(journal).left().contains(&self.knob()) {
            lock(journal).settle(&self.knob())?;
            found = self.socket.option(self.option)?;
        }
        let known = [&self.ours, &self.unsure].into_iter().flatten().any(|ours| *ours == found);
        if self.ours.is_some() && !known {
            return Ok(Change::Foreign(found));
        }
        if found == value {
            if self.ours.is_some() {
                self.ours = Some(found);
            }
            return Ok(Change::Same);
        }
        let before = match &self.before {
            Some(before) => before.clone(),
            None => noted(self.socket.option_override(self.option)?),
        };
        lock(journal).intend(&self.knob(), Some(&before), Some(value))?;
        self.before = Some(before);
        self.unsure = self.ours.replace(value.to_owned());
        self.unsure.get_or_insert(found);
        self.socket.set_option(self.option, Some(value))?;
        self.unsure = None;
        lock(journal).confirm(&self.knob(), value)?;
        Ok(Change::Made)
    }

    /// Puts back what was there before, unless another program changed it meanwhile, or the daemon has started anew. Asks the
    /// daemon with the journal held.
    ///
    /// # Errors
    /// What the daemon or the journal says; the journal keeps it then.
    pub fn restore(&mut self, journal: &Mutex<Journal>) -> Result<(), Error> {
        if self.ours.is_none() {
            return Ok(());
        }
        lock(journal).restore(&self.knob())?;
        self.forget();
        Ok(())
    }

    /// The daemon has started anew: nothing of ours is in it. The journal still lists it, and finds that out by itself.
    pub fn forget(&mut self) {
        (self.before, self.ours, self.unsure) = (None, None, None);
    }
}

/// A journal whose holder panicked is still in order: every line of it is whole.
fn lock(journal: &Mutex<Journal>) -> MutexGuard<'_, Journal> {
    journal.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As written in the journal.
fn noted(value: Option<String>) -> String {
    value.map_or_else(|| UNSET.to_owned(), |value| format!("={value}"))
}

/// Puts an option back for the journal.
pub(crate) fn put_back(path: &Path, option: &str, before: &str, seen: Option<&str>) -> Result<Restored, Error> {
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
