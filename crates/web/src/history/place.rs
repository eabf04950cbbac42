//! Places of histories, and the programs that record them.

use std::path::PathBuf;

use evenkeel_history::{Event, Mark};

/// The place where a history is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The folder with the history's files.
    pub folder: PathBuf,
    /// Upper bound on the sum of the files' sizes, in bytes.
    pub bytes: u64,
}

/// The program that records its history.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Program {
    /// Kind of the program: `server` or `agent`.
    pub(crate) name: &'static str,
    /// The key of the configuration that bounds the history's size: `server.history` or `agent.history`.
    pub(crate) key: &'static str,
}

impl Program {
    /// The event that the program has started (`begins`) or stopped, at `at`, Unix time in seconds.
    pub(super) fn mark(self, begins: bool, at: u64) -> Mark {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Mark { at, event: Event::Program { begins, name: self.name.to_owned(), version } }
    }
}
