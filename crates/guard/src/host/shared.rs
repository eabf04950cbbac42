//! The state that the agent's loop and the API share.

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

/// A function that returns the present state of the cluster.
type Cluster = Box<dyn Fn() -> ClusterState + Send>;

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
    /// Time of the last error.
    pub(super) failed_at: Option<Instant>,
    /// Troubles of the pools' devices.
    pub(super) faults: Vec<Trouble>,
}

impl Shared {
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
                "the last search for clients and devices ended {:.0} s ago: the present one takes long, perhaps because a target's tool or a file in /proc does not answer; newer clients are not throttled",
                age.as_secs_f64()
            );
            state.notes.push(Note { kind: "old_map".into(), message });
        }
        let troubles = health::of_agent(&state).troubles.into_iter().chain(self.faults.iter().cloned());
        State { health: Health::of(troubles.collect()), ..state }
    }

    pub(super) fn failed(&mut self, error: &impl Display) {
        let text = error.to_string();
        // Ten times a second the same is nothing to log.
        if self.last_error.as_ref() != Some(&text) {
            tracing::error!("{text}");
        }
        self.errors += 1;
        (self.last_error, self.failed_at) = (Some(text), Some(Instant::now()));
    }
}
