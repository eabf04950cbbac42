//! Places of histories, and the programs that record them.

use std::path::PathBuf;

use evenkeel_history::{Event, Mark};

/// The place where a history is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The folder.
    pub folder: PathBuf,
    /// Bound on its files, in bytes.
    pub bytes: u64,
}

/// The program that records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program {
    /// `server` or `agent`.
    pub(crate) name: &'static str,
    /// The key of the bound.
    pub(crate) key: &'static str,
}

impl Program {
    /// The event of its start or stop.
    pub(super) fn mark(self, begins: bool, at: u64) -> Mark {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Mark { at, event: Event::Program { begins, name: self.name.to_owned(), version } }
    }
}
