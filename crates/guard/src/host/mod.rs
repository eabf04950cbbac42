//! The agent on a live host: the loop with clock, files and threads; putting decisions in force; restoring all settings.
//!
//! ```text
//!  Host::start ─▶ Host::keep: Sensors ─▶ Agent::tick ─▶ Actor::delay ─▶ … ─▶ Host::stop
//!                   ▲ maps (discovery), policies (reloads)    └─▶ Shared: what others are shown
//! ```

use std::io;

use crate::points::cgroup::Unable;
use crate::{actuator, error};

mod acting;
mod actor;
mod faults;
mod group_histograms;
mod restore;
mod sensors;
mod shared;
mod ticks;

pub use acting::Acting;
pub use restore::{leftovers, reset, sentinel};
pub use shared::Shared;

pub use crate::aside::lock;
pub use ticks::{Host, Policies};

/// Raises this process's limit of open files to the maximum that the system allows: each control group takes two files, each
/// OSD a socket.
fn raise_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// A function that prints a text for the operator, without adding a line end.
pub type Say = fn(&str);

/// An error because of which the agent could not start, or could not restore all settings.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The statistics of devices cannot be read.
    #[error("nothing can be measured: {0}")]
    Measure(error::Error),
    /// The latency of single reads cannot be measured.
    #[error(transparent)]
    Reads(#[from] error::Error),
    /// An enforcement point of a pool cannot be prepared.
    #[error(transparent)]
    Unable(#[from] Unable),
    /// Settings cannot be changed, so that decisions would have no effect.
    #[error("nothing can be throttled; only --dry-run works, which measures and changes nothing: {0}")]
    Act(actuator::Error),
    /// OSDs cannot be reached.
    #[error("cannot control OSDs: {0}")]
    Osds(io::Error),
    /// A thread cannot be started.
    #[error(transparent)]
    Thread(#[from] io::Error),
    /// Some settings could not be restored to their values before the agent's first change.
    #[error("not all settings could be restored; run `evenkeel guard reset`: {0}")]
    NotRestored(actuator::Error),
}

#[cfg(test)]
mod tests {
    #[test]
    fn as_many_files_may_be_open_as_the_system_allows() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        let less = maximum.map_or(1 << 20, |maximum| maximum - 1);
        setrlimit(Resource::Nofile, Rlimit { current: Some(less), maximum }).expect("a lower limit");
        super::raise_descriptors();
        assert_eq!(getrlimit(Resource::Nofile).current, maximum);
    }
}
