//! Puts decisions in force: owns the packet delay, the journal and the sentinel.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use super::{Say, lock, restore};
use crate::actuator::{Delays, Error, PacketDelay, Plan, Settings};
use crate::journal::Journal;
use crate::sentinel::Sentinel;

/// The means by which decisions are put in force, until [`Acting::stop`] or until this process ends in whatever way.
pub struct Acting {
    path: PathBuf,
    say: Say,
    journal: Arc<Mutex<Journal>>,
    sentinel: Sentinel,
    delay: Option<PacketDelay>,
}

impl Acting {
    /// Restores the settings that an earlier run left changed, starts the sentinel, and prepares the packet delay if
    /// `settings` is given. No client is throttled yet.
    ///
    /// # Errors
    /// A journal in use, a device with a configured queueing discipline, missing parts of the kernel or missing privileges;
    /// on an error no setting is left changed.
    pub fn start(settings: Option<Settings>, journal_path: &Path, say: Say) -> Result<Self, Error> {
        let mut journal = Journal::open_within(journal_path, restore::SENTINEL_LIMIT)?;
        if !journal.is_clear() {
            tracing::warn!("an earlier run left settings changed: the agent restores them now");
            restore::begin(&mut journal, say);
        }
        let plan = settings.map(Plan::new).transpose()?;
        // Before the first change: from here on the sentinel survives us.
        let sentinel = restore::start_sentinel(journal_path)?;
        let delay = plan.map(|plan| plan.apply(&mut journal)).transpose()?;
        let journal = Arc::new(Mutex::new(journal));
        Ok(Self { path: journal_path.to_owned(), say, journal, sentinel, delay })
    }

    /// Puts exactly `delays` in force, and replaces a sentinel that has died. Call it at every tick: a delay must be renewed
    /// several times within its timeout.
    ///
    /// # Errors
    /// An error of the kernel; on an error, earlier delays last until their timeout.
    pub fn set(&mut self, now: Instant, delays: &Delays) -> Result<(), Error> {
        if !self.sentinel.is_alive() {
            tracing::warn!(
                "the sentinel, the process that restores settings if the agent is killed, was gone: the agent starts another"
            );
            self.sentinel = restore::start_sentinel(&self.path)?;
        }
        if let Some(delay) = &mut self.delay
            && delay.set(now, delays)?.repaired
        {
            tracing::warn!(
                "another program removed the agent's queueing discipline or BPF program from a network device: the agent made it again; stop that program"
            );
        }
        Ok(())
    }

    /// Locks the journal, for changes of group limits and queue lengths. The journal's lines are complete also after a panic
    /// of a thread that held the lock.
    pub fn journal(&self) -> MutexGuard<'_, Journal> {
        lock(&self.journal)
    }

    /// A handle of the journal for other threads, which must drop it before [`stop`](Self::stop).
    pub fn shared_journal(&self) -> Arc<Mutex<Journal>> {
        Arc::clone(&self.journal)
    }

    /// The packet delays in force.
    pub fn delays(&self) -> Delays {
        self.delay.as_ref().map(PacketDelay::delays).unwrap_or_default()
    }

    /// True if the kernel ends all delays by itself when this process ends; `None` if packets are not delayed.
    pub fn ends_with_process(&self) -> Option<bool> {
        self.delay.as_ref().map(PacketDelay::ends_with_process)
    }

    /// Restores all settings. Returns how many packets the agent's queueing disciplines have dropped, if that is known.
    ///
    /// # Errors
    /// [`Error::NotRestored`] or the error of a setting that could not be restored; such settings stay in the journal.
    pub fn stop(self) -> Result<Option<u64>, Error> {
        let Self { say, journal, sentinel, delay, .. } = self;
        let drops = delay.as_ref().and_then(|delay| delay.drops().ok());
        let mut held = lock(&journal);
        let restored = delay.map_or(Ok(()), |delay| delay.restore(&mut held));
        // Limits of groups and options of OSDs; what the delay could not restore is tried once more.
        restore::report_failures(held.restore_all(), say)?;
        restored?;
        // The sentinel waits for the lock.
        drop(held);
        drop(journal);
        sentinel.stop();
        Ok(drops)
    }
}
