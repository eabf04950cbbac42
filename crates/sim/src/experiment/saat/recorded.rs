//! Tenants that replay a recorded trace in place of generated load.
//!
//! As in the paper a trace is replayed as fast as its limits let it: in order, each direction for itself, one request
//! after the other, without regard to time. At its end it begins anew.

use std::sync::Arc;

use evenkeel_control::units::Kind;
use evenkeel_model::Io;

use super::tenants::{TENANT_BYTES, TRACES};
use crate::workload::trace::{Record, TraceError};

/// Requests that are kept of a trace, over all its files: more than 300 s at 200 MB/s take, in 64 MB.
pub const MAX_REQUESTS: usize = 4_000_000;
/// No request of a block device is larger; one of a damaged line would stand for all others.
const MAX_BYTES: u32 = 32 << 20;
/// Where the data of each file begins: they were disks of their own.
const FILE_BYTES: u64 = 1 << 40;

/// The name of the trace in the paper's Table I that a file is of: `usr_0.csv`, `src1_2.csv` and `web.csv` are `usr`, `src`
/// and `web`.
pub fn name_of(file_name: &str) -> Option<&'static str> {
    let stem = file_name.split(['_', '.', '-']).next()?.to_ascii_lowercase();
    let stem = stem.trim_end_matches(|c: char| c.is_ascii_digit());
    TRACES.iter().map(|trace| trace.name).find(|name| *name == stem)
}

/// A recorded trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recorded {
    /// Offset and length of each read and of each write, in the order of the trace.
    reads: Vec<(u64, u32)>,
    writes: Vec<(u64, u32)>,
    bytes: [u64; 2],
    files: u64,
}

impl Recorded {
    /// Adds the requests of a file, up to [`MAX_REQUESTS`] of all files. What neither reads nor writes is left out.
    ///
    /// # Errors
    /// The first of the reader.
    pub fn add(&mut self, records: impl Iterator<Item = Result<Record, TraceError>>) -> Result<(), TraceError> {
        let base = self.files * FILE_BYTES;
        self.files += 1;
        for record in records {
            if self.requests() >= MAX_REQUESTS {
                break;
            }
            let record = record?;
            let bytes = record.bytes.min(MAX_BYTES);
            let (requests, sum) = match record.kind {
                Kind::Read => (&mut self.reads, 0),
                Kind::Write => (&mut self.writes, 1),
                Kind::Flush | Kind::Meta => continue,
            };
            requests.push(((base + record.offset % FILE_BYTES) % TENANT_BYTES, bytes));
            self.bytes[sum] += u64::from(bytes);
        }
        Ok(())
    }

    /// Requests that were kept.
    pub fn requests(&self) -> usize {
        self.reads.len() + self.writes.len()
    }

    /// Part of the bytes that are read; `None` unless there are reads and writes: each direction is guaranteed its part.
    pub fn reads(&self) -> Option<f64> {
        let [read, written] = self.bytes.map(|bytes| bytes as f64);
        (read > 0.0 && written > 0.0).then(|| read / (read + written))
    }
}

/// One direction of a recorded trace, one request after the other, without end.
#[derive(Clone, Debug)]
pub(super) struct Replay {
    recorded: Arc<Recorded>,
    kind: Kind,
    base: u64,
    next: usize,
}

impl Replay {
    /// Begins at a place of its own for each `seed`, so that runs differ and tenants with one trace do not go in step.
    pub(super) fn new(recorded: &Arc<Recorded>, place: usize, kind: Kind, seed: u64) -> Self {
        let base = place as u64 * TENANT_BYTES;
        let mut replay = Self { recorded: Arc::clone(recorded), kind, base, next: 0 };
        let part = (seed ^ place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as f64 / u64::MAX as f64;
        replay.next = (part * replay.requests().len() as f64) as usize;
        replay
    }

    fn requests(&self) -> &[(u64, u32)] {
        if self.kind == Kind::Read { &self.recorded.reads } else { &self.recorded.writes }
    }

    /// The next request; of a direction that has none one of nothing.
    pub(super) fn draw(&mut self) -> Io {
        let requests = self.requests();
        let next = if self.next < requests.len() { self.next } else { 0 };
        let (offset, bytes) = requests.get(next).copied().unwrap_or((0, 1));
        self.next = next + 1;
        Io { kind: self.kind, offset: self.base + offset, bytes }
    }
}
