//! Enforcement points: each reads its sensors and sets its knobs; [`crate::loops`] makes the decisions.

use std::collections::BTreeMap;
use std::fmt;

use evenkeel_control::throughput::InvalidConfig;

use crate::journal::Journal;
use crate::sensor::diskstats::DeviceNumber;
use crate::{actuator, error};

pub mod cgroup;
#[cfg(test)]
mod fake_host;
mod groups;
pub mod local;
pub mod osd;
pub mod osds;
pub mod queue_depth;

/// An error during a tick; the rest of the tick is carried out nevertheless.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A measurement cannot be read.
    #[error(transparent)]
    Sense(#[from] error::Error),
    /// A setting cannot be changed.
    #[error(transparent)]
    Act(#[from] actuator::Error),
    /// A cached device that has appeared since the start cannot be used.
    #[error(transparent)]
    Unable(#[from] cgroup::Unable),
    /// The controller refuses a tenant's guarantee.
    #[error("guarantee of {tenant}: {problem}")]
    Guarantee {
        /// Name of the tenant.
        tenant: String,
        /// The setting at fault, and which values are allowed.
        problem: InvalidConfig,
    },
}

/// The state that all enforcement points share during one tick.
pub struct Tick<'a> {
    /// The journal, to which a setting is written before it is changed; `None`: the tick changes no setting.
    pub journal: Option<&'a mut Journal>,
    /// Devices for whose latency targets points throttle groups, with the names of the points: of each device one point.
    pub taken: BTreeMap<DeviceNumber, String>,
    /// The errors that have occurred in this tick so far.
    pub errors: Errors,
}

/// The errors of one tick or one reload; none of them ends the work on other points.
#[derive(Debug, Default)]
pub struct Errors(pub Vec<Error>);

impl Errors {
    /// Adds an error to the list.
    pub fn push(&mut self, error: impl Into<Error>) {
        self.0.push(error.into());
    }

    /// The value of `result`; an error is added to the list, and the value is `None`.
    pub fn take<T>(&mut self, result: Result<T, impl Into<Error>>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }
}

impl Tick<'_> {
    /// Has a setting restored, if settings may be changed.
    pub(crate) fn restore<T>(&mut self, restore: impl FnOnce(&mut Journal) -> Result<T, actuator::Error>) {
        if let Some(journal) = self.journal.as_deref_mut() {
            self.errors.take(restore(journal));
        }
    }
}

impl fmt::Debug for Tick<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tick").field("acts", &self.journal.is_some()).field("errors", &self.errors).finish()
    }
}
