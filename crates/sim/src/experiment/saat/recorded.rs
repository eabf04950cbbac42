//! Tenants that replay a recorded trace in place of generated requests.
//!
//! As in the paper a trace is replayed as fast as the tenant's limits allow; recorded times are ignored. Reads and writes
//! are replayed separately, each in the order of the trace. After its last request a trace begins again.

use std::sync::Arc;

use evenkeel_control::units::Kind;
use evenkeel_model::Io;

use super::tenants::{TENANT_BYTES, TRACES};
use crate::workload::trace::{Record, TraceError};

/// The most requests of a trace that are kept, over all its files: more than a run of 300 s at 200 MB/s needs, in 64 MB of
/// memory.
pub const MAX_REQUESTS: usize = 4_000_000;
/// Largest length of a request, in bytes; longer requests are cut to it. Block devices send no longer ones, but a damaged
/// line of a trace might.
const MAX_BYTES: u32 = 32 << 20;
/// Distance between the address ranges of a trace's files, in bytes. Each file is the trace of one disk.
const FILE_BYTES: u64 = 1 << 40;

/// The name in the paper's Table I of the trace to which a file belongs; `None` if there is no such trace. Examples:
/// `usr_0.csv` belongs to `usr`, `src1_2.csv` to `src`, and `web.csv` to `web`.
pub fn name_of(file_name: &str) -> Option<&'static str> {
    let stem = file_name.split(['_', '.', '-']).next()?.to_ascii_lowercase();
    let stem = stem.trim_end_matches(|c: char| c.is_ascii_digit());
    TRACES.iter().map(|trace| trace.name).find(|name| *name == stem)
}

/// The reads and writes of a recorded trace, without their times. It is `Eq` so that `Arc`s of one trace are compared by their
/// address: runs are compared often, and a trace may have millions of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Offset and length in bytes of each read, in the order of the trace.
    reads: Vec<(u64, u32)>,
    /// Offset and length in bytes of each write, in the order of the trace.
    writes: Vec<(u64, u32)>,
    /// Sum of the lengths of the reads, and of the writes.
    bytes: [u64; 2],
    /// Number of files added.
    files: u64,
}

impl Recorded {
    /// Adds the reads and writes of a file, until all files together have [`MAX_REQUESTS`].
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

    /// Number of reads and writes that were kept.
    pub fn requests(&self) -> usize {
        self.reads.len() + self.writes.len()
    }

    /// Share of the bytes that are read, 0 to 1, by which a guarantee is divided between reads and writes; `None` unless the
    /// trace has both.
    pub fn reads(&self) -> Option<f64> {
        let [read, written] = self.bytes.map(|bytes| bytes as f64);
        (read > 0.0 && written > 0.0).then(|| read / (read + written))
    }
}

/// An endless sequence of the reads or of the writes of a recorded trace.
#[derive(Clone, Debug)]
pub(super) struct Replay {
    recorded: Arc<Recorded>,
    kind: Kind,
    base: u64,
    next: usize,
}

impl Replay {
    /// A replay for the tenant with number `place`. Its first request depends on `place` and `seed`, so that runs differ and
    /// tenants with the same trace do not run in step.
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

    /// The next request; a request of one byte if the trace has no reads, or no writes, to replay.
    pub(super) fn draw(&mut self) -> Io {
        let requests = self.requests();
        let next = if self.next < requests.len() { self.next } else { 0 };
        let (offset, bytes) = requests.get(next).copied().unwrap_or((0, 1));
        self.next = next + 1;
        Io { kind: self.kind, offset: self.base + offset, bytes }
    }
}
