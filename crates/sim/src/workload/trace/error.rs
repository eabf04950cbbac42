//! Faults of a trace, and what would be right.

use std::io;

use super::{MAX_DEVICES, MAX_LINE_BYTES, MAX_RECORDS};

/// A trace that cannot be read further.
#[derive(Debug, thiserror::Error)]
#[error("{file}:{line}: {fault}")]
pub struct TraceError {
    /// The file, as its opener calls it.
    pub file: String,
    /// The line, from 1.
    pub line: u64,
    /// The fault.
    pub fault: Fault,
}

/// A fault of a line, and what would be right.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The file system says no.
    #[error("cannot be read: {0}; look at the file and its device")]
    Io(#[from] io::Error),
    /// No end of line in sight.
    #[error("is longer than {MAX_LINE_BYTES} bytes; a trace is text with one request a line: unpack or convert it")]
    TooLong,
    /// Not as many fields as the format has.
    #[error("has {found} fields; expected {layout}; a line that was cut off can be left out with bad_lines = \"skip\"")]
    Fields {
        /// How many there are.
        found: usize,
        /// How a line looks.
        layout: &'static str,
    },
    /// A field that does not say what it should.
    #[error("{name} is {found:?}; expected {expected}")]
    Field {
        /// Which one.
        name: &'static str,
        /// The text there, shortened.
        found: String,
        /// The text that it should have.
        expected: &'static str,
    },
    /// No format fits any of the first lines.
    #[error(
        "looks like no known trace; known are msr, spc, mqsim, fio (with its first line, \"fio version 3 iolog\") and \
         the default output of blkparse; convert it to one of them, or name the format to see what does not fit"
    )]
    UnknownFormat,
    /// More devices than a trace may have.
    #[error("names more than {MAX_DEVICES} devices; is this a trace?")]
    TooManyDevices,
    /// More requests than are kept.
    #[error(
        "the trace has more than {MAX_RECORDS} requests to replay; take a part of it with from, until, skip, count or devices"
    )]
    TooManyRecords,
}
