//! Recorded requests: streaming readers, and what is done to them before they are replayed.
//!
//! | module | what it reads |
//! |---|---|
//! | `msr` | CSV of the MSR Cambridge traces |
//! | `spc` | SPC traces, as in the UMass repository |
//! | `mqsim` | the text form of MQSim |
//! | `fio` | iolog versions 2 and 3 of fio |
//! | `blkparse` | the default text output of blkparse |
//!
//! [`Reader`] makes records of lines, [`Trace`] holds what is to be replayed.

mod blkparse;
mod error;
mod fields;
mod fio;
mod lines;
mod mqsim;
mod msr;
mod reader;
#[cfg(test)]
mod reader_tests;
mod spc;
mod transform;
#[cfg(test)]
mod transform_tests;

use evenkeel_control::Instant;
use evenkeel_control::units::Kind;
use evenkeel_model::Io;
use serde::{Deserialize, Serialize};

pub use error::{Fault, TraceError};
pub use reader::Reader;
pub use transform::{CannotRemap, Selection, Trace};

/// A line is at most this long: room for the longest path that Linux knows, and the numbers beside it.
pub const MAX_LINE_BYTES: usize = 8192;
/// Devices (files, for fio) that one trace may name.
pub const MAX_DEVICES: usize = 65_536;
/// Requests of a trace that are kept for replay: 3.2 GB of them.
pub const MAX_RECORDS: usize = 100_000_000;

/// One recorded request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When it was sent, since whatever zero the trace has.
    pub at: Instant,
    /// The kind of the request.
    pub kind: Kind,
    /// Where on its device, in bytes.
    pub offset: u64,
    /// Payload, in bytes: above 0 for reads and writes, else 0.
    pub bytes: u32,
    /// Which device, as the trace numbers them, or by first appearance where it names them.
    pub device: u32,
}

/// How a trace is written down.
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
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Msr, Self::Spc, Self::Mqsim, Self::Fio, Self::Blkparse];
}

/// Which events of a blkparse text are requests; a request has one of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Event {
    /// `Q`: it entered the queue, as the application sent it.
    #[default]
    Queue,
    /// `D`: it went to the device, after merging and scheduling.
    Issue,
}

/// The treatment of a line that makes no sense.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BadLines {
    /// The trace ends there, with an error.
    #[default]
    Stop,
    /// The line is left out and counted.
    Skip,
}

/// How to read a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Its format; found out from the first lines if not said.
    pub format: Option<Format>,
    /// Which events of a blkparse text are requests.
    pub event: Event,
    /// The treatment of bad lines.
    pub bad_lines: BadLines,
}

impl Record {
    /// The request that a device sees.
    pub(super) fn io(&self) -> Io {
        Io { kind: self.kind, offset: self.offset, bytes: self.bytes }
    }
}
