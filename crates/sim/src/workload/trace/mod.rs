//! Recorded requests: streaming readers, and transformations before the replay.
//!
//! | module | format |
//! |---|---|
//! | `msr` | CSV of the MSR Cambridge traces |
//! | `spc` | SPC traces, as in the UMass repository |
//! | `mqsim` | the text form of MQSim |
//! | `fio` | iolog versions 2 and 3 of fio |
//! | `blkparse` | the default text output of blkparse |
//!
//! [`Reader`] parses lines into records; [`Trace`] holds the requests to replay.

mod blkparse;
mod error;
mod fields;
mod fio;
mod lines;
mod mqsim;
mod msr;
mod pairs;
#[cfg(test)]
mod pairs_tests;
mod reader;
#[cfg(test)]
mod reader_tests;
mod spc;
mod transform;
#[cfg(test)]
mod transform_tests;

use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};
use evenkeel_model::Io;
use serde::{Deserialize, Serialize};

pub use error::{Fault, TraceError};
pub use reader::Reader;
pub use transform::{CannotRemap, Selection, Trace};

/// The longest line of a trace, in bytes: room for the longest path on Linux and a request's numbers.
pub const MAX_LINE_BYTES: usize = 8192;
/// The most devices that a trace may name; for fio, the most files.
pub const MAX_DEVICES: usize = 65_536;
/// The most requests of a trace that are kept for replay; so many take 3.2 GB of memory.
pub const MAX_RECORDS: usize = 100_000_000;

/// One recorded request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Instant at which the request was sent, on the trace's own clock.
    pub at: Instant,
    /// The kind of the request.
    pub kind: Kind,
    /// Offset of the request on its device, in bytes.
    pub offset: u64,
    /// Payload in bytes: above 0 for reads and writes, 0 for other kinds.
    pub bytes: u32,
    /// Number of the request's device: the number in the trace, or the order of first appearance if the trace has names.
    pub device: u32,
}

/// The completion of a request, as its trace states it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Completion {
    /// The trace has no completions of requests to the device.
    #[default]
    Unstated,
    /// The trace has completions of other requests to the device.
    Missing,
    /// The request was completed.
    Stated {
        /// Time from the start of the request until its issue to the device; 0 if the trace does not have it.
        queue: Duration,
        /// Time from the issue until the completion.
        device: Duration,
        /// Error number of Linux, 0 for none.
        error: u16,
    },
}

/// The format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// `timestamp,host,disk,Read|Write,offset,size,response time`: 100 ns ticks, bytes.
    Msr,
    /// `ASU,LBA,size,r|w,timestamp`: sectors of 512 bytes, bytes, seconds.
    Spc,
    /// `arrival device LBA sectors 1|0`: nanoseconds, sectors of 512 bytes, 1 = read.
    Mqsim,
    /// `fio version 2 iolog` or `fio version 3 iolog`, then a line for each action.
    Fio,
    /// `major,minor cpu sequence seconds pid action RWBS sector + sectors [process]`.
    Blkparse,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 5] = [Self::Msr, Self::Spc, Self::Mqsim, Self::Fio, Self::Blkparse];
}

/// The kind of events in a blkparse text that count as requests. A request has one event of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Event {
    /// `Q`: the request entered the queue, as the application sent it.
    #[default]
    Queue,
    /// `D`: the request went to the device, after merging and scheduling.
    Issue,
}

/// The treatment of a line that cannot be parsed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BadLines {
    /// The trace ends at the line, with an error.
    #[default]
    Stop,
    /// The line is left out and counted.
    Skip,
}

/// Options for reading a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Format of the trace; `None`: detected from its first lines.
    pub format: Option<Format>,
    /// The kind of events in a blkparse text that count as requests.
    pub event: Event,
    /// The treatment of bad lines.
    pub bad_lines: BadLines,
}

impl Record {
    /// The record as a request to a device.
    pub(super) fn io(&self) -> Io {
        Io { kind: self.kind, offset: self.offset, bytes: self.bytes }
    }
}
