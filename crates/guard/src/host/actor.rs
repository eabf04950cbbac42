//! Making decisions take effect, or saying why not.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use evenkeel_policy::figures::counted;

use super::acting::Acting;
use super::{Error, Say};
use crate::actuator::{self, Holds, Settings};
use crate::config::Config;
use crate::journal::Journal;

/// How decisions take effect.
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
    /// When acting was asked for and is not possible.
    pub(super) fn start(config: &Config, dry_run: bool, say: Say) -> Result<Self, Error> {
        if dry_run {
            return Ok(Self::Watching("--dry-run: decides and records, and throttles no client".into()));
        }
        let holds = config.delays_packets();
        if !config.sets_something() {
            let why = "the configuration names no interfaces by which clients are reached, so no packet is delayed";
            return Ok(Self::Watching(why.into()));
        }
        let settings = holds.then(|| Settings {
            devices: config.agent.interfaces.clone(),
            ports: config.agent.ports.clone(),
            maximum: config.agent.max_delay.into(),
            timeout: config.agent.timeout.into(),
            ..Settings::default()
        });
        let acting = Acting::start(settings, &config.agent.journal, say).map_err(Error::Act)?;
        Ok(Self::Acting(Box::new(acting)))
    }

    /// How decisions take effect, or why not.
    pub(super) fn explain(&self) -> String {
        match self {
            Self::Watching(why) => why.clone(),
            Self::Acting(acting) => match acting.ends_with_process() {
                None => "limits of groups (io.max), queue depths (sysfs) and throttles of OSDs are set, and put back at the end; no packet is delayed".into(),
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

    /// Puts exactly these holds in force.
    ///
    /// # Errors
    /// What the kernel refuses; earlier holds end by themselves.
    pub(super) fn hold(&mut self, now: Instant, holds: &Holds) -> Result<(), actuator::Error> {
        match self {
            Self::Watching(_) => Ok(()),
            Self::Acting(acting) => acting.set(now, holds),
        }
    }

    /// The journal, in which limits of groups and queue lengths are noted before they are set; `None` if nothing is to be
    /// set.
    pub(super) fn journal(&self) -> Option<MutexGuard<'_, Journal>> {
        match self {
            Self::Watching(_) => None,
            Self::Acting(acting) => Some(acting.journal()),
        }
    }

    /// The journal, for other threads, which must drop it before [`stop`](Self::stop); `None` if nothing is to be set.
    pub(super) fn shared_journal(&self) -> Option<Arc<Mutex<Journal>>> {
        match self {
            Self::Watching(_) => None,
            Self::Acting(acting) => Some(acting.shared_journal()),
        }
    }

    /// Puts everything back.
    ///
    /// # Errors
    /// What could not be put back; it stays in the journal.
    pub(super) fn stop(self) -> Result<(), Error> {
        let Self::Acting(acting) = self else { return Ok(()) };
        let drops = acting.stop().map_err(Error::PutBack)?;
        if let Some(drops) = drops.filter(|&drops| drops > 0) {
            let drops = counted(drops, "packet");
            tracing::warn!(
                "the kernel dropped {drops} in the queues of agent.interfaces, and should drop none: their senders send them again; a shorter max_delay makes that unlikely"
            );
        }
        Ok(())
    }
}
