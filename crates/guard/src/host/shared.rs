//! The state that the agent's loop and the API share.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::time::{Duration, Instant};

use evenkeel_policy::health::{Health, Trouble};
use evenkeel_policy::state::ClusterState;

use crate::Agent;
use crate::config::Config;
use crate::discovery::Note;
use crate::loops::health;
use crate::loops::record::State;

/// Number of discovery intervals after which a map of clients and devices counts as outdated.
const OLD_MAP: u32 = 3;
/// Time after which an error that lasts is logged again.
const LOG_AGAIN: Duration = Duration::from_secs(600);
/// Largest number of errors that are logged in this time: of thousands of groups each may have its own at every tick.
const MOST_LOGGED: usize = 50;

/// A function that returns the present state of the cluster.
type Cluster = Box<dyn Fn() -> ClusterState + Send>;

/// The errors that have been logged lately.
#[derive(Debug, Default)]
pub(super) struct Logged {
    /// Time of the first one.
    since: Option<Instant>,
    texts: BTreeSet<String>,
}

impl Logged {
    /// True if an error that occurs at `now` has to be logged.
    fn is_new(&mut self, text: &str, now: Instant) -> bool {
        if self.since.is_none_or(|since| now.duration_since(since) >= LOG_AGAIN) {
            *self = Self { since: Some(now), texts: BTreeSet::new() };
        }
        !self.is_full() && self.texts.insert(text.to_owned())
    }

    /// True if no other error is logged until the first one is [`LOG_AGAIN`] ago.
    fn is_full(&self) -> bool {
        self.texts.len() >= MOST_LOGGED
    }
}

/// The state that the agent's loop changes and the API shows.
pub struct Shared {
    /// The agent, with all enforcement points.
    pub agent: Agent,
    /// The policy in force.
    pub(super) config: Config,
    /// The function that returns the cluster's state; `None` if this host is in no cluster.
    pub cluster: Option<Cluster>,
    pub(super) acting: bool,
    pub(super) acting_reason: String,
    /// Time at which the map in use was taken over.
    pub(super) map_at: Instant,
    /// Interval between two maps of clients and devices; `None` if no map is needed.
    pub(super) map_due: Option<Duration>,
    pub(super) late_ticks: u64,
    pub(super) errors: u64,
    pub(super) last_error: Option<String>,
    pub(super) logged: Logged,
    /// Time of the last error.
    pub(super) failed_at: Option<Instant>,
    /// Troubles of the pools' devices.
    pub(super) faults: Vec<Trouble>,
}

impl Shared {
    /// The state at the start of an agent that only measures, and needs no map.
    pub(super) fn new(agent: Agent, config: Config) -> Self {
        Self {
            agent,
            config,
            cluster: None,
            acting: false,
            acting_reason: String::new(),
            map_at: Instant::now(),
            map_due: None,
            late_ticks: 0,
            errors: 0,
            last_error: None,
            logged: Logged::default(),
            failed_at: None,
            faults: Vec::new(),
        }
    }

    /// The agent's present measurements, decisions and settings in force.
    pub fn state(&self) -> State {
        let age = self.map_at.elapsed();
        let mut state = State {
            map_age_s: self.map_due.map(|_| age.as_secs_f64()),
            acting: self.acting,
            cluster: self.cluster.as_ref().map(|cluster| cluster()),
            acting_reason: self.acting_reason.clone(),
            late_ticks_total: self.late_ticks,
            errors_total: self.errors,
            last_error: self.last_error.clone(),
            last_error_age_s: self.failed_at.map(|at| at.elapsed().as_secs_f64()),
            ..self.agent.state()
        };
        if self.map_due.is_some_and(|due| age > OLD_MAP * due) {
            let message = format!(
                "the last search for clients and devices ended {:.0} s ago: the present search takes long, perhaps because a target's tool or a file in /proc does not answer; clients that connected since are not throttled",
                age.as_secs_f64()
            );
            state.notes.push(Note { kind: "old_map".into(), message });
        }
        let troubles = health::of_agent(&state).troubles.into_iter().chain(self.faults.iter().cloned());
        State { health: Health::of(troubles.collect()), ..state }
    }

    pub(super) fn failed(&mut self, error: &impl Display) {
        let (text, now) = (error.to_string(), Instant::now());
        // Ten times a second the same is nothing to log.
        if self.logged.is_new(&text, now) {
            tracing::error!("{text}");
            if self.logged.is_full() {
                tracing::warn!(
                    "{MOST_LOGGED} different errors within {} minutes: the agent logs no others in this time; `evenkeel guard status` shows the newest",
                    LOG_AGAIN.as_secs() / 60
                );
            }
        }
        self.errors += 1;
        (self.last_error, self.failed_at) = (Some(text), Some(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_take_turns_are_logged_once_and_many_not_without_end() {
        let (mut logged, now) = (Logged::default(), Instant::now());
        let count =
            |logged: &mut Logged, texts: &[String], now| texts.iter().filter(|text| logged.is_new(text, now)).count();
        let both = ["one", "other"].map(str::to_owned);
        let turns: Vec<String> = both.iter().cycle().take(1_000).cloned().collect();
        assert_eq!(count(&mut logged, &turns, now), 2);
        assert!(!logged.is_full());
        let many: Vec<String> = (0..1_000).map(|number| format!("group {number}")).collect();
        assert_eq!(count(&mut logged, &many, now), MOST_LOGGED - 2);
        assert!(logged.is_full());
        assert_eq!(count(&mut logged, &turns, now + LOG_AGAIN), 2, "they still last");
    }
}
