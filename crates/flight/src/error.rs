//! Errors of reading a recording.

use std::io;
use std::path::PathBuf;

use crate::bounds::{MAX_REQUESTS, VERSION};

/// Reason why a recording cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The input is no recording.
    #[error("not a recording: it does not begin as files of `evenkeel record` do; convert other formats first")]
    NotARecording,
    /// The header was not written to its end.
    #[error("the recording breaks off in its header, before the first request: record again")]
    Short,
    /// The recording is of another version of the format.
    #[error("the recording is of format {found}, this version reads {VERSION}: use the version that recorded it")]
    Version {
        /// Version of the recording's format.
        found: u16,
    },
    /// A checksum is wrong, and the recording goes on behind it.
    #[error("the recording is damaged at byte {offset}: copy it again, or use the part before (head -c {offset})")]
    Damaged {
        /// Offset of the damaged block in the recording; 0 for the head.
        offset: u64,
    },
    /// The checksum of a block is right, but a number in it is out of range.
    #[error("the recording has a value out of range near byte {offset}: use a file that `evenkeel record` wrote")]
    Invalid {
        /// Offset in the recording.
        offset: u64,
    },
    /// The recording has too many requests for memory.
    #[error("the recording has more than {MAX_REQUESTS} requests, too many for memory: record for a shorter time")]
    TooLong,
    /// The input cannot be read.
    #[error("cannot read the recording: {cause}")]
    Io {
        /// The system's error.
        cause: io::Error,
    },
    /// A file cannot be read.
    #[error("{path}: {cause}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The reason.
        cause: Box<Error>,
    },
}
