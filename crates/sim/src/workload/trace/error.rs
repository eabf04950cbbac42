//! Faults of a trace, with their remedies.

use std::io;

use super::{MAX_DEVICES, MAX_LINE_BYTES, MAX_RECORDS};

/// An error that ends the reading of a trace.
#[derive(Debug, thiserror::Error)]
#[error("{file}:{line}: {fault}")]
pub struct TraceError {
    /// Name of the file, as given to the reader.
    pub file: String,
    /// Number of the line, from 1.
    pub line: u64,
    /// The fault of the line.
    pub fault: Fault,
}

/// A fault of a line, with its remedy.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// Reading the file failed.
    #[error("cannot be read: {0}; look at the file and its device")]
    Io(#[from] io::Error),
    /// The line is longer than [`MAX_LINE_BYTES`].
    #[error("is longer than {MAX_LINE_BYTES} bytes; a trace is text with one request a line: unpack or convert it")]
    TooLong,
    /// The line has fewer fields than the format requires.
    #[error(
        "has {found} fields; expected {layout}; remove a line that was cut off, or in a workload leave it out with \
         bad_lines = \"skip\""
    )]
    Fields {
        /// Number of fields found.
        found: usize,
        /// Layout of a line in this format.
        layout: &'static str,
    },
    /// A field has no valid value.
    #[error("{name} is {found:?}; expected {expected}")]
    Field {
        /// Name of the field.
        name: &'static str,
        /// Text of the field, shortened.
        found: String,
        /// Description of a valid value.
        expected: &'static str,
    },
    /// None of the trace's first lines fits any known format.
    #[error(
        "looks like no known trace; known are msr, spc, mqsim, fio (with its first line, \"fio version 3 iolog\") and \
         the default output of blkparse; convert it to one of them, or name the format to see what does not fit"
    )]
    UnknownFormat,
    /// The trace names more devices than [`MAX_DEVICES`].
    #[error("names more than {MAX_DEVICES} devices; is this a trace?")]
    TooManyDevices,
    /// The trace has more requests to replay than [`MAX_RECORDS`].
    #[error(
        "the trace has more than {MAX_RECORDS} requests to replay; take a part of it with from, until, skip, count or devices"
    )]
    TooManyRecords,
}
