//! Requests of the workloads of the DRG experiments.
//!
//! The paper replays two traces twice each: WebSearch, and a TPC-C trace. Traces that the user gives are replayed here,
//! at chosen rates. Without them requests are generated that resemble the traces in sizes, share of reads, and variation
//! of the arrival rate from one second to the next.

use std::sync::Arc;

use evenkeel_control::rng::SplitMix64;
use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};

use crate::workload::trace::Record;

/// Properties of the WebSearch or the TPC-C trace, for replay or generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Habits {
    /// Mean requests per second.
    pub rate_per_s: f64,
    /// Standard deviation of the logarithm of the arrival rate, which changes every tenth of a second.
    pub varies: f64,
    /// Correlation of the logarithm of the arrival rate with its value a tenth of a second earlier, 0 to 1.
    pub lasts: f64,
    /// Share of the requests that are reads, 0 to 1.
    pub reads: f64,
    /// Request sizes in KiB, each with its share of the requests, 0 to 1.
    pub sizes_kib: Vec<(u32, f64)>,
}

impl Habits {
    /// WebSearch: 24,783 requests in 60 s, nearly all reads of 8 to 32 KiB. The mean rate chosen here is 0.84 times the
    /// trace's 413 requests per second.
    pub fn web() -> Self {
        Self {
            rate_per_s: 345.0,
            varies: 0.1,
            lasts: 0.9,
            reads: 0.9998,
            sizes_kib: vec![(8, 0.602), (16, 0.122), (24, 0.078), (32, 0.198)],
        }
    }

    /// TPC-C: 6,999 requests of 8 KiB, 63 % reads. The trace was recorded within 0.14 s on a modern machine, so its rate
    /// cannot be used and another is chosen.
    pub fn tpcc() -> Self {
        Self { rate_per_s: 192.0, varies: 0.32, lasts: 0.9, reads: 0.626, sizes_kib: vec![(8, 0.985), (16, 0.015)] }
    }
}

/// Requests per second of the WebSearch trace at its own pace: 24,783 in 60 s.
pub const WEB_OWN_RATE_PER_S: f64 = 24_783.0 / 60.0;
/// Traces with more requests per second, of a machine much faster than the array, are not replayed at their own pace.
const MOST_OWN_RATE_PER_S: f64 = 2_000.0;

/// Requests per second of a recorded trace at its own pace; `None` if that is too much for the array.
pub fn own_rate_per_s(records: &[Record]) -> Option<f64> {
    Some(records.len() as f64 / length_s(records)?).filter(|rate| *rate <= MOST_OWN_RATE_PER_S)
}

/// Length of a recorded trace in seconds, up to the request that would follow; `None` without requests.
fn length_s(records: &[Record]) -> Option<f64> {
    let (first, last, count) = (records.first()?, records.last()?, records.len() as f64);
    Some(last.at.since(first.at).as_secs_f64() * (count + 1.0) / count)
}

/// The source of a workload's requests.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// Generated requests.
    Twin(Habits),
    /// Recorded requests, replayed over and over at the mean rate of [`Habits`].
    Recorded(Habits, Arc<[Record]>),
}

/// Requests of one workload until `end`, in order of arrival; the same seed gives the same requests. Offsets are below
/// `capacity`, in bytes.
pub fn arrivals(source: &Source, seed: u64, end: Instant, capacity: u64) -> Vec<Record> {
    match source {
        Source::Twin(habits) => invented(habits, seed, end, capacity),
        Source::Recorded(habits, records) => recorded(habits, records, seed, end, capacity),
    }
}

/// Interval after which the arrival rate changes, in seconds.
const STEP_S: f64 = 0.1;

fn invented(habits: &Habits, seed: u64, end: Instant, capacity: u64) -> Vec<Record> {
    let mut rng = SplitMix64::new(seed);
    let mut arrivals = Vec::new();
    let (mut at_s, mut step_ends, mut level) = (0.0, 0.0, 0.0);
    let mut rate = habits.rate_per_s;
    loop {
        // The logarithm of the rate wanders around its mean.
        while at_s >= step_ends {
            level = habits.lasts * level + libm::sqrt(1.0 - habits.lasts * habits.lasts) * rng.next_normal();
            let sigma = habits.varies;
            rate = habits.rate_per_s * libm::exp(sigma * level - 0.5 * sigma * sigma);
            step_ends += STEP_S;
        }
        let gap = -libm::log(1.0 - rng.next_f64()) / rate;
        // Without memory: what is left of a gap at a new rate is a new gap.
        if at_s + gap >= step_ends {
            at_s = step_ends;
            continue;
        }
        at_s += gap;
        let at = Instant::from_nanos((at_s * 1e9) as u64);
        if at >= end {
            return arrivals;
        }
        let mut drawn = rng.next_f64();
        let size = habits.sizes_kib.iter().find(|(_, part)| {
            drawn -= part;
            drawn <= 0.0
        });
        let bytes = size.or(habits.sizes_kib.last()).map_or(4096, |(kib, _)| kib * 1024);
        let kind = if rng.next_f64() < habits.reads { Kind::Read } else { Kind::Write };
        let blocks = (capacity - u64::from(bytes)) / 4096;
        arrivals.push(Record { at, kind, offset: rng.next_below(blocks + 1) * 4096, bytes, device: 0 });
    }
}

fn recorded(habits: &Habits, records: &[Record], seed: u64, end: Instant, capacity: u64) -> Vec<Record> {
    let mut rng = SplitMix64::new(seed);
    let count = records.len();
    let (Some(first), Some(length_s)) = (records.first(), length_s(records)) else { return Vec::new() };
    let stretch = count as f64 / habits.rate_per_s / length_s.max(1e-9);
    // Every workload and seed begins elsewhere in the trace, and has its data elsewhere.
    let begin = rng.next_below(count as u64) as usize;
    let shift = rng.next_below(capacity / 4096) * 4096;
    let mut arrivals = Vec::new();
    for n in 0.. {
        let (round, place) = ((begin + n) / count, (begin + n) % count);
        let record = &records[place];
        let since = (round as f64 * length_s + record.at.since(first.at).as_secs_f64()
            - records[begin].at.since(first.at).as_secs_f64())
            * stretch;
        let at = Instant::ZERO + Duration::from_nanos((since * 1e9) as u64);
        if at >= end {
            break;
        }
        // Devices of the trace lie one behind the other, and around the end.
        let device = u64::from(record.device).wrapping_mul(0x9e37_79b9_7f4a_7c15) % capacity;
        let place = (record.offset.wrapping_add(device).wrapping_add(shift)) % capacity;
        let bytes = record.bytes.clamp(512, 1 << 20);
        let offset = (place / 4096 * 4096).min(capacity - u64::from(bytes));
        arrivals.push(Record { at, kind: record.kind, offset, bytes, device: 0 });
    }
    arrivals
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(count: u64, apart: Duration) -> Vec<Record> {
        let at = |n: u64| Instant::from_nanos(n * apart.as_nanos());
        (0..count).map(|n| Record { at: at(n), kind: Kind::Read, offset: n << 12, bytes: 4096, device: 0 }).collect()
    }

    #[test]
    fn a_trace_at_its_own_pace_keeps_its_gaps() {
        let trace = records(100, Duration::from_millis(10));
        let rate_per_s = own_rate_per_s(&trace).expect("a pace");
        assert!((rate_per_s - 100.0).abs() < 0.1, "{rate_per_s}");
        let source = Source::Recorded(Habits { rate_per_s, ..Habits::web() }, trace.into());
        let replayed = arrivals(&source, 3, Instant::ZERO + Duration::from_secs(3), 1 << 30);
        assert!((295..=305).contains(&replayed.len()), "{}", replayed.len());
        let gap = |two: &[Record]| two[1].at.since(two[0].at).as_secs_f64();
        assert!(replayed.windows(2).filter(|two| (gap(two) - 0.01).abs() < 1e-4).count() >= 290);
    }

    #[test]
    fn a_pace_far_beyond_the_array_is_none() {
        assert_eq!(own_rate_per_s(&records(100, Duration::from_micros(20))), None);
        assert_eq!((own_rate_per_s(&[]), own_rate_per_s(&records(1, Duration::ZERO))), (None, None));
    }
}
