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
pub(super) struct Actor {
    /// The means by which decisions are put in force; `None` if they have no effect.
    acting: Option<Acting>,
    /// A sentence for operators: how decisions take effect, or why they do not.
    pub(super) explanation: String,
}

impl Actor {
    /// An actor for decisions that have no effect, for this reason.
    pub(super) fn watching(why: &str) -> Self {
        Self { acting: None, explanation: why.to_owned() }
    }

    /// Prepares to act; changes something only if [`Self::is_acting`] afterwards.
    ///
    /// # Errors
    /// If the configuration asks for settings that cannot be put in force.
    pub(super) fn start(config: &Config, dry_run: bool, say: Say) -> Result<Self, Error> {
        if dry_run {
            return Ok(Self::watching("--dry-run: decides and records, and throttles no client"));
        }
        if !config.sets_something() {
            restore::leftovers(&config.agent.journal, say);
            let why = "the configuration names no interfaces by which clients are reached, so no packet is delayed";
            return Ok(Self::watching(why));
        }
        let settings = config.delays_packets().then(|| Settings {
            devices: config.agent.interfaces.clone(),
            ports: config.agent.ports.clone(),
            maximum: config.agent.max_delay.into(),
            timeout: config.agent.timeout.into(),
            ..Settings::default()
        });
        let acting = Acting::start(settings, &config.agent.journal, say).map_err(Error::Act)?;
        let explanation = match acting.ends_with_process() {
            None => "io.max of groups, queue depths and throttles of OSDs are set as pools need, and restored at the end; no packet is delayed".into(),
            Some(ends) => {
                let attached = if ends { "TCX" } else { "cls_bpf" };
                format!("packets to noisy clients are delayed, by BPF at {attached}; a delay ends by itself unless renewed")
            }
        };
        Ok(Self { acting: Some(acting), explanation })
    }

    pub(super) fn is_acting(&self) -> bool {
        self.acting.is_some()
    }

    /// Puts exactly these packet delays in force.
    ///
    /// # Errors
    /// An error of the kernel; on an error, earlier delays end at their timeout.
    pub(super) fn delay(&mut self, now: Instant, delays: &Delays) -> Result<(), actuator::Error> {
        self.acting.as_mut().map_or(Ok(()), |acting| acting.set(now, delays))
    }

    /// The journal, to which limits of groups and queue lengths are written before they are changed; `None` if no setting is
    /// to be changed.
    pub(super) fn journal(&self) -> Option<MutexGuard<'_, Journal>> {
        self.acting.as_ref().map(Acting::journal)
    }

    /// A handle of the journal for other threads, which must drop it before [`stop`](Self::stop); `None` if no setting is to
    /// be changed.
    pub(super) fn shared_journal(&self) -> Option<Arc<Mutex<Journal>>> {
        self.acting.as_ref().map(Acting::shared_journal)
    }

    /// Restores all settings that this agent has changed.
    ///
    /// # Errors
    /// [`Error::NotRestored`] if settings could not be restored; they stay in the journal.
    pub(super) fn stop(self) -> Result<(), Error> {
        let Some(acting) = self.acting else { return Ok(()) };
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
