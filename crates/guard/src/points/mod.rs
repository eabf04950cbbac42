//! Enforcement points with their files: what each reads and sets. Decisions are made in [`crate::loops`].

use std::fmt;

use evenkeel_control::throughput::InvalidConfig;

use crate::journal::Journal;
use crate::{actuator, error};

pub mod cgroup;
pub mod osd;
pub mod osds;
pub mod queue_depth;

/// An error in a tick; the rest of the tick is carried out all the same.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something cannot be read.
    #[error(transparent)]
    Sense(#[from] error::Error),
    /// A setting cannot be changed.
    #[error(transparent)]
    Act(#[from] actuator::Error),
    /// A device that has appeared cannot be used.
    #[error(transparent)]
    Unable(#[from] cgroup::Unable),
    /// A guarantee is refused.
    #[error("guarantee of {tenant}: {problem}")]
    Guarantee {
        /// The tenant.
        tenant: String,
        /// The setting at fault, and what it must be.
        problem: InvalidConfig,
    },
}

/// The state that points share in a tick.
pub struct Tick<'a> {
    /// The journal, in which settings are noted before they are changed; without it nothing is changed.
    pub journal: Option<&'a mut Journal>,
    /// The errors of this tick so far.
    pub errors: Errors,
}

/// The errors in a tick.
#[derive(Debug, Default)]
pub struct Errors(pub Vec<Error>);

impl Errors {
    /// Notes an error.
    pub fn push(&mut self, error: impl Into<Error>) {
        self.0.push(error.into());
    }

    /// The value of a result; an error is noted, and `None` returned.
    pub fn take<T>(&mut self, result: Result<T, impl Into<Error>>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }
}

impl fmt::Debug for Tick<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tick").field("acts", &self.journal.is_some()).field("errors", &self.errors).finish()
    }
}
