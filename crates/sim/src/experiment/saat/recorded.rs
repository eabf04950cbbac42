//! Tenants that replay a recorded trace in place of generated requests.
//!
//! As in the paper a trace is replayed as fast as its limits allow, whatever the recorded times: reads and writes
//! separately, each in order, one request after the other. At its end a trace is replayed again.

use std::sync::Arc;

use evenkeel_control::units::Kind;
use evenkeel_model::Io;

use super::tenants::{TENANT_BYTES, TRACES};
use crate::workload::trace::{Record, TraceError};

/// Requests of a trace that are kept, over all its files: more than a run of 300 s at 200 MB/s needs, in 64 MB of memory.
pub const MAX_REQUESTS: usize = 4_000_000;
/// Largest length of a request; longer ones are cut. Block devices have none, but a damaged line might.
const MAX_BYTES: u32 = 32 << 20;
/// Distance of the address ranges of a trace's files, each of which was a disk of its own.
const FILE_BYTES: u64 = 1 << 40;

/// The trace of the paper's Table I to which a file belongs: `usr_0.csv`, `src1_2.csv` and `web.csv` belong to `usr`,
/// `src` and `web`.
pub fn name_of(file_name: &str) -> Option<&'static str> {
    let stem = file_name.split(['_', '.', '-']).next()?.to_ascii_lowercase();
    let stem = stem.trim_end_matches(|c: char| c.is_ascii_digit());
    TRACES.iter().map(|trace| trace.name).find(|name| *name == stem)
}

/// A recorded trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recorded {
    /// Offset and length in bytes of each read, and of each write, in the order of the trace.
    reads: Vec<(u64, u32)>,
    writes: Vec<(u64, u32)>,
    bytes: [u64; 2],
    files: u64,
}

impl Recorded {
    /// Adds the requests of a file, up to [`MAX_REQUESTS`] of all files. Only reads and writes are kept.
    ///
    /// # Errors
    /// The reader's first error.
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

    /// Share of the bytes that are read, 0 to 1, which divides the guarantee between reads and writes; `None` unless
    /// there are both.
    pub fn reads(&self) -> Option<f64> {
        let [read, written] = self.bytes.map(|bytes| bytes as f64);
        (read > 0.0 && written > 0.0).then(|| read / (read + written))
    }
}

/// The reads or the writes of a recorded trace, one request after the other, without end.
#[derive(Clone, Debug)]
pub(super) struct Replay {
    recorded: Arc<Recorded>,
    kind: Kind,
    base: u64,
    next: usize,
}

impl Replay {
    /// A replay for the tenant at `place`. It begins at a place in the trace that depends on `place` and `seed`, so
    /// that runs differ and tenants with the same trace do not run in step.
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

    /// The next request; one of a single byte if the trace has none in this direction.
    pub(super) fn draw(&mut self) -> Io {
        let requests = self.requests();
        let next = if self.next < requests.len() { self.next } else { 0 };
        let (offset, bytes) = requests.get(next).copied().unwrap_or((0, 1));
        self.next = next + 1;
        Io { kind: self.kind, offset: self.base + offset, bytes }
    }
}
