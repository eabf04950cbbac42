//! Puts decisions in force, or explains why they have no effect.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use evenkeel_policy::figures::counted;

use super::acting::Acting;
use super::{Error, Say, restore};
use crate::actuator::{self, Delays, Settings};
use crate::config::Config;
use crate::journal::Journal;

/// The way in which decisions take effect, or the reason why they do not.
pub(super) enum Actor {
    /// Decisions have no effect, for this reason.
    Watching(String),
    /// Decisions are put in force.
    Acting(Box<Acting>),
}

impl Actor {
    /// Prepares to act; changes something only if it returns [`Actor::Acting`].
    ///
    /// # Errors
    /// If the configuration asks for settings that cannot be put in force.
    pub(super) fn start(config: &Config, dry_run: bool, say: Say) -> Result<Self, Error> {
        if dry_run {
            return Ok(Self::Watching("--dry-run: decides and records, and throttles no client".into()));
        }
        let delays_packets = config.delays_packets();
        if !config.sets_something() {
            restore::leftovers(&config.agent.journal, say);
            let why = "the configuration names no interfaces by which clients are reached, so no packet is delayed";
            return Ok(Self::Watching(why.into()));
        }
        let settings = delays_packets.then(|| Settings {
            devices: config.agent.interfaces.clone(),
            ports: config.agent.ports.clone(),
            maximum: config.agent.max_delay.into(),
            timeout: config.agent.timeout.into(),
            ..Settings::default()
        });
        let acting = Acting::start(settings, &config.agent.journal, say).map_err(Error::Act)?;
        Ok(Self::Acting(Box::new(acting)))
    }

    /// A sentence for operators: how decisions take effect, or why they do not.
    pub(super) fn explain(&self) -> String {
        match self {
            Self::Watching(why) => why.clone(),
            Self::Acting(acting) => match acting.ends_with_process() {
                None => "io.max of groups, queue depths and throttles of OSDs are set as pools need, and restored at the end; no packet is delayed".into(),
                Some(ends) => {
                    let attached = if ends { "TCX" } else { "cls_bpf" };
                    format!("packets to noisy clients are delayed, by BPF at {attached}; a delay ends by itself unless renewed")
                }
            },
        }
    }

    pub(super) fn is_acting(&self) -> bool {
        matches!(self, Self::Acting(_))
    }

    /// Puts exactly these packet delays in force.
    ///
    /// # Errors
    /// An error of the kernel; on an error, earlier delays end at their timeout.
    pub(super) fn delay(&mut self, now: Instant, delays: &Delays) -> Result<(), actuator::Error> {
        match self {
            Self::Watching(_) => Ok(()),
            Self::Acting(acting) => acting.set(now, delays),
        }
    }

    /// The journal, to which limits of groups and queue lengths are written before they are changed; `None` if no setting is
    /// to be changed.
    pub(super) fn journal(&self) -> Option<MutexGuard<'_, Journal>> {
        match self {
            Self::Watching(_) => None,
            Self::Acting(acting) => Some(acting.journal()),
        }
    }

    /// A handle of the journal for other threads, which must drop it before [`stop`](Self::stop); `None` if no setting is to
    /// be changed.
    pub(super) fn shared_journal(&self) -> Option<Arc<Mutex<Journal>>> {
        match self {
            Self::Watching(_) => None,
            Self::Acting(acting) => Some(acting.shared_journal()),
        }
    }

    /// Restores all settings that this agent has changed.
    ///
    /// # Errors
    /// [`Error::NotRestored`] if settings could not be restored; they stay in the journal.
    pub(super) fn stop(self) -> Result<(), Error> {
        let Self::Acting(acting) = self else { return Ok(()) };
        let drops = acting.stop().map_err(Error::NotRestored)?;
        if let Some(drops) = drops.filter(|&drops| drops > 0) {
            let drops = counted(drops, "packet");
            tracing::warn!(
                "the kernel dropped {drops} in the queues of agent.interfaces, and should drop none: their senders send them again; a shorter agent.max_delay makes drops unlikely"
            );
        }
        Ok(())
    }
}
