//! Errors of the history, and notes for the log.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::frame::VERSION;

/// Reason why a history cannot be opened, recorded or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another process records in this folder.
    #[error("another process records in {folder}: give each server and agent a folder of its own for the history")]
    InUse {
        /// The folder.
        folder: PathBuf,
    },
    /// The bound on the bytes of all history files together is too small.
    #[error("a bound of {bytes} bytes is too small for a history: set the key history to 4MiB or more")]
    Bound {
        /// The bound that was asked for.
        bytes: u64,
    },
    /// A file or folder cannot be read or written.
    #[error("cannot {doing} {path}: {cause}")]
    File {
        /// The attempted action, as an infinitive for the message.
        doing: &'static str,
        /// Path of the file or folder.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// A file is of another version of the format.
    #[error("{path} is of format {found}, and this version reads format {VERSION}; use the version that wrote it")]
    Version {
        /// Path of the file.
        path: PathBuf,
        /// Version of the file's format.
        found: u16,
    },
    /// A file was damaged; what follows in it cannot be read.
    #[error("{path} is damaged at byte {offset}: the rest of this file cannot be read")]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// Length of the part that can be read.
        offset: usize,
    },
    /// A second has more series or marks than the bound of the history allows.
    #[error("one second of history has {bytes} bytes, too many: set the key history to 16 times as many or more")]
    TooLarge {
        /// Size of the block.
        bytes: u64,
    },
}

/// Turns the system's error into one that names the action and the path.
pub(crate) fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |cause| Error::File { doing, path: path.to_owned(), cause }
}

/// A message of the history for the program's log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// A history file that cannot be used was renamed, so that it is kept but not read.
    SetAside {
        /// New path of the file.
        path: PathBuf,
        /// The reason, as what the file is: `damaged`, `from another version of Evenkeel`.
        because: &'static str,
    },
    /// The newest block of a file was not written to its end, and was cut off.
    Cut {
        /// Path of the file.
        path: PathBuf,
        /// Number of bytes cut off.
        bytes: u64,
    },
    /// Recording paused because of an error; it is tried again every ten seconds.
    Paused {
        /// The error.
        because: String,
    },
    /// Recording continues after a pause.
    Resumed {
        /// Seconds that were not recorded since the history was opened.
        lost_seconds: u64,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SetAside { path, because } => {
                write!(f, "a history file is {because}: it is kept as {} while there is room", path.display())
            }
            Self::Cut { path, bytes } => {
                write!(f, "the last {bytes} bytes of {} were written incompletely and are removed", path.display())
            }
            Self::Paused { because } => write!(f, "the history is not recorded at present: {because}"),
            Self::Resumed { lost_seconds } => {
                write!(f, "the history is recorded again; it lacks {lost_seconds} seconds since recording started")
            }
        }
    }
}
