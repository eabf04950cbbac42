//! The requests of one connection, which depend on the seed alone.

use evenkeel_control::rng::SplitMix64;
use evenkeel_control::units::Kind;
use evenkeel_sim::workload::stream::Stream as Generated;
use evenkeel_sim::workload::{Pattern, Requests, SizeShare};

use crate::content::mix;
use crate::job::{Job, Mode};

/// Operation of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Op {
    #[default]
    Read,
    Write,
    Zero,
    Trim,
    Flush,
}

impl std::fmt::Display for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Zero => "write of zeroes",
            Self::Trim => "trim",
            Self::Flush => "flush",
        })
    }
}

/// A request to send, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Planned {
    pub(crate) op: Op,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// A part of the volume, in bytes. Start and length are multiples of every block size used in it,
/// or the usable length is rounded down to such a multiple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) length: u64,
}

/// The endless request stream of one connection.
pub(crate) struct Stream {
    /// The reads and writes; trims and writes of zeroes take the places of some of them.
    requests: Generated,
    rng: SplitMix64,
    trim_percent: u64,
    zero_percent: u64,
    flush_every: Option<u64>,
    writes_since_flush: u64,
}

impl Stream {
    /// The stream of requests that `job` sends to `range` with this seed. The range holds a block of every size. A sequential
    /// stream starts at the fraction `phase` (`0.0..1.0`) of the range, so that several streams do not overlap.
    ///
    /// # Panics
    /// If the range is smaller than the largest block: the requests would reach beyond the range.
    pub(crate) fn new(job: &Job, range: Range, seed: u64, phase: f64) -> Self {
        assert!(range.length >= job.largest_block(), "the range holds a block of every size");
        let requests = Requests {
            read_percent: match job.mode {
                Mode::Read => 100.0,
                Mode::Write => 0.0,
                Mode::Mix => job.read_percent.into(),
            },
            sizes: SizeShare::all(&job.block_size),
            pattern: Pattern::of(job.pattern, 1),
            offset: range.start,
            span: range.length,
            // Trims and writes of zeroes count, too, which are not among these requests.
            flush_every: 0,
        };
        let mut rng = SplitMix64::new(seed);
        let mut requests = Generated::new(&requests, rng.next_u64());
        requests.start_at(phase);
        Self {
            requests,
            rng,
            trim_percent: job.trim_percent.into(),
            zero_percent: job.zero_percent.into(),
            flush_every: job.flush_every,
            writes_since_flush: 0,
        }
    }

    /// The next request.
    pub(crate) fn next(&mut self) -> Planned {
        if self.flush_every.is_some_and(|every| self.writes_since_flush >= every) {
            self.writes_since_flush = 0;
            return Planned { op: Op::Flush, offset: 0, length: 0 };
        }
        let io = self.requests.request();
        let special = self.trim_percent + self.zero_percent;
        let draw = if special > 0 { self.rng.next_below(100) } else { 100 };
        let op = match io.kind {
            _ if draw < self.trim_percent => Op::Trim,
            _ if draw < special => Op::Zero,
            Kind::Read => Op::Read,
            _ => Op::Write,
        };
        if op != Op::Read {
            self.writes_since_flush += 1;
        }
        Planned { op, offset: io.offset, length: io.bytes.into() }
    }
}

/// The seed of connection `index` of a job.
pub(crate) fn connection_seed(job_seed: u64, index: u32) -> u64 {
    mix(job_seed ^ mix(u64::from(index)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{JobOptions, Pattern, SizeMix};

    const RANGE: Range = Range { start: 1 << 20, length: 10 << 20 };

    fn job(edit: impl FnOnce(&mut Job)) -> Job {
        let mut job = JobOptions::default().job("a", "nbd://h".parse().unwrap(), 1, 1).unwrap();
        edit(&mut job);
        job
    }

    fn take(job: &Job, seed: u64, n: usize) -> Vec<Planned> {
        let mut stream = Stream::new(job, RANGE, seed, 0.0);
        (0..n).map(|_| stream.next()).collect()
    }

    #[test]
    fn the_same_seed_gives_the_same_stream_and_another_seed_another() {
        let job = job(|job| {
            job.mode = Mode::Mix;
            job.block_size = SizeMix(vec![(4096, 80), (65536, 20)]);
        });
        assert_eq!(take(&job, 5, 1000), take(&job, 5, 1000));
        assert_ne!(take(&job, 5, 1000), take(&job, 6, 1000));
    }

    #[test]
    fn requests_stay_in_range_and_aligned_to_their_size() {
        for pattern in [Pattern::Random, Pattern::Sequential, Pattern::Zipf(1.1)] {
            let job = job(|job| {
                job.pattern = pattern;
                job.block_size = SizeMix(vec![(4096, 1), (65536, 1)]);
            });
            for planned in take(&job, 1, 5000) {
                assert!(planned.offset >= RANGE.start);
                assert!(planned.offset + planned.length <= RANGE.start + RANGE.length);
                assert!(pattern == Pattern::Sequential || planned.offset % planned.length == 0);
            }
        }
    }

    #[test]
    #[should_panic(expected = "the range holds a block of every size")]
    fn a_range_without_room_for_a_block_is_refused() {
        let job = job(|job| job.block_size = SizeMix(vec![(4096, 1), (65536, 1)]));
        Stream::new(&job, Range { start: 0, length: 65535 }, 1, 0.0);
    }

    #[test]
    fn shares_come_out_as_asked() {
        let job = job(|job| {
            job.mode = Mode::Mix;
            job.read_percent = 70;
            job.trim_percent = 10;
            job.zero_percent = 10;
            job.block_size = SizeMix(vec![(4096, 80), (65536, 20)]);
        });
        let all = take(&job, 1, 100_000);
        let share = |test: &dyn Fn(&Planned) -> bool| all.iter().filter(|p| test(p)).count() as f64 / all.len() as f64;
        for (op, want) in [(Op::Trim, 0.1), (Op::Zero, 0.1), (Op::Read, 0.56), (Op::Write, 0.24)] {
            let got = share(&|p| p.op == op);
            assert!((got - want).abs() < 0.01, "{op:?}: {got}");
        }
        assert!((share(&|p| p.length == 4096) - 0.8).abs() < 0.01);
    }

    #[test]
    fn sequential_requests_follow_each_other_and_wrap() {
        let job = job(|job| {
            job.pattern = Pattern::Sequential;
            job.block_size = SizeMix(vec![(1 << 20, 1)]);
        });
        let starts: Vec<u64> = take(&job, 1, 12).iter().map(|p| (p.offset - RANGE.start) >> 20).collect();
        assert_eq!(starts, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]);
        let mut late = Stream::new(&job, RANGE, 1, 0.5);
        assert_eq!(late.next().offset, RANGE.start + (5 << 20));
    }

    #[test]
    fn a_flush_follows_every_n_writes() {
        let job = job(|job| {
            job.mode = Mode::Write;
            job.flush_every = Some(3);
        });
        let flushes: Vec<usize> =
            take(&job, 1, 12).iter().enumerate().filter(|(_, p)| p.op == Op::Flush).map(|(i, _)| i).collect();
        assert_eq!(flushes, [3, 7, 11]);
    }

    #[test]
    fn zipf_reaches_every_block_and_prefers_few() {
        let job = job(|job| {
            job.pattern = Pattern::Zipf(1.1);
            job.block_size = SizeMix(vec![(65536, 1)]);
        });
        let blocks = (RANGE.length / 65536) as usize;
        let mut counts = vec![0; blocks];
        for planned in take(&job, 1, 100_000) {
            counts[((planned.offset - RANGE.start) / 65536) as usize] += 1;
        }
        assert!(counts.iter().all(|&count| count > 0), "the spread is a permutation");
        counts.sort_unstable();
        assert!(counts[blocks - 1] > 20 * counts[blocks / 2]);
    }
}
