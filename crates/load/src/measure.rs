//! Counters of a run: latency histograms and counts, kept by intervals of one second.

use evenkeel_nbd::wire::Errno;
use hdrhistogram::Histogram;

use crate::stream::Op;

/// Length of an interval in nanoseconds.
pub(crate) const INTERVAL_NS: u64 = 1_000_000_000;
/// The smallest latency that is distinguished, in nanoseconds.
const LOWEST_NS: u64 = 100;
/// The largest latency that is recorded, an hour, in nanoseconds; longer latencies count as an hour.
const HIGHEST_NS: u64 = 3_600_000_000_000;
/// Number of significant decimal digits of recorded latencies.
const DIGITS: u8 = 3;

/// Requests, bytes and latencies of one or several kinds of request.
#[derive(Clone, Debug)]
pub(crate) struct OpStats {
    /// Number of requests answered without error.
    pub(crate) requests: u64,
    /// Payload bytes of the requests answered without error.
    pub(crate) bytes: u64,
    /// Latencies of the requests answered without error, in nanoseconds.
    pub(crate) latency_ns: Histogram<u64>,
    /// Exact sum of the latencies, in nanoseconds.
    pub(crate) sum_ns: u64,
}

impl OpStats {
    fn new() -> Self {
        let latency_ns =
            Histogram::new_with_bounds(LOWEST_NS, HIGHEST_NS, DIGITS).expect("the bounds are constants in order");
        Self { requests: 0, bytes: 0, latency_ns, sum_ns: 0 }
    }

    /// Adds the counts of `other`.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.requests += other.requests;
        self.bytes += other.bytes;
        self.sum_ns += other.sum_ns;
        self.latency_ns.add(&other.latency_ns).expect("histograms of one shape");
    }
}

/// Names of the kinds of requests that are counted separately.
pub(crate) const KINDS: [&str; 3] = ["read", "write", "other"];

fn kind(op: Op) -> usize {
    match op {
        Op::Read => 0,
        Op::Write => 1,
        Op::Zero | Op::Trim | Op::Flush => 2,
    }
}

/// Errors that are counted separately, in the order of [`Tally::errors`].
pub(crate) const ERRORS: [(Errno, &str); 8] = [
    (Errno::Perm, "EPERM"),
    (Errno::Io, "EIO"),
    (Errno::NoMem, "ENOMEM"),
    (Errno::Invalid, "EINVAL"),
    (Errno::NoSpace, "ENOSPC"),
    (Errno::Overflow, "EOVERFLOW"),
    (Errno::NotSupported, "ENOTSUP"),
    (Errno::Shutdown, "ESHUTDOWN"),
];

/// The counts of one interval.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    /// Counts by kind, in the order of [`KINDS`].
    pub(crate) ops: [OpStats; 3],
    /// Numbers of requests answered with each error, in the order of [`ERRORS`].
    pub(crate) errors: [u64; 8],
}

impl Default for Tally {
    fn default() -> Self {
        Self { ops: [OpStats::new(), OpStats::new(), OpStats::new()], errors: [0; 8] }
    }
}

impl Tally {
    /// Counts a request answered without error.
    #[inline]
    pub(crate) fn done(&mut self, op: Op, bytes: u64, latency_ns: u64) {
        let stats = &mut self.ops[kind(op)];
        stats.requests += 1;
        stats.bytes += bytes;
        stats.sum_ns += latency_ns;
        stats.latency_ns.saturating_record(latency_ns);
    }

    /// Counts a request answered with an error.
    pub(crate) fn failed(&mut self, errno: Errno) {
        let at = ERRORS.iter().position(|&(known, _)| known == errno).unwrap_or(3);
        self.errors[at] += 1;
    }

    /// Adds the counts of `other`.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.ops.iter_mut().zip(&other.ops) {
            mine.merge(theirs);
        }
        for (mine, theirs) in self.errors.iter_mut().zip(other.errors) {
            *mine += theirs;
        }
    }

    /// The sum over all kinds of requests.
    pub(crate) fn all(&self) -> OpStats {
        let mut all = self.ops[0].clone();
        all.merge(&self.ops[1]);
        all.merge(&self.ops[2]);
        all
    }

    /// Number of requests answered with an error.
    pub(crate) fn failures(&self) -> u64 {
        self.errors.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_kept_apart_and_add_up() {
        let mut a = Tally::default();
        a.done(Op::Read, 4096, 1_000);
        a.done(Op::Write, 512, 3_000);
        a.failed(Errno::NoSpace);
        let mut b = Tally::default();
        b.done(Op::Read, 4096, 2_000);
        b.done(Op::Flush, 0, u64::MAX / 2);
        b.merge(&a);
        assert_eq!((b.ops[0].requests, b.ops[0].bytes, b.ops[0].sum_ns), (2, 8192, 3_000));
        assert_eq!(b.failures(), 1);
        let all = b.all();
        assert_eq!((all.requests, all.bytes), (4, 8704));
        assert_eq!(all.latency_ns.len(), 4, "a latency beyond the range is counted at its end");
        assert!(all.latency_ns.max() >= HIGHEST_NS);
    }
}
