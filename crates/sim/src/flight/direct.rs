//! Direct estimates of a device from a recording: service times from requests that met little load, and the highest rates.

use serde::Serialize;

use super::device::Admitted;
use super::figures::place_of;

/// Length of the windows in which the highest rates are sought, in nanoseconds.
const WINDOW_NS: u64 = 100_000_000;
/// A size of requests counts with at least so many of them.
const FEWEST: usize = 20;

/// The time that a request takes on an idle device, by its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Line {
    /// Time of a request without payload, in nanoseconds; 0 if the recording has no such requests.
    pub base_ns: f64,
    /// Time of a byte of payload, in nanoseconds; 0 if all requests have one size.
    pub byte_ns: f64,
}

/// Direct estimates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Direct {
    /// Reads on the idle device.
    pub read: Line,
    /// Writes on the idle device.
    pub write: Line,
    /// Highest rate in a window of 100 ms, in requests per second.
    pub most_iops: f64,
    /// Highest rate in a window of 100 ms, in payload bytes per second.
    pub most_bytes_per_s: f64,
    /// Mean number of requests in flight, by Little's law: throughput multiplied by mean latency.
    pub in_flight: f64,
}

impl Direct {
    /// A rate of payload for the start of a search: that of the lines, but not below the highest one seen.
    pub(super) fn bytes_per_s(&self) -> f64 {
        let of = |line: Line| if line.byte_ns > 0.0 { 1e9 / line.byte_ns } else { 0.0 };
        of(self.read).max(of(self.write)).max(self.most_bytes_per_s * 1.5)
    }
}

/// The direct estimates from requests in order of admission. O(n log n).
pub(super) fn direct(all: &[Admitted]) -> Direct {
    let end = |request: &Admitted| request.at_ns.saturating_add(request.device_ns);
    let (Some(first), Some(last)) = (all.first(), all.iter().map(end).max()) else {
        return Direct::default();
    };
    let mut ends: Vec<(u64, u64)> = all.iter().map(|request| (end(request), u64::from(request.io.bytes))).collect();
    ends.sort_unstable();
    let (mut most, mut most_bytes, mut from, mut bytes) = (0usize, 0u64, 0usize, 0u64);
    for (until, &(at, size)) in ends.iter().enumerate() {
        bytes += size;
        while at.saturating_sub(ends[from].0) >= WINDOW_NS {
            bytes -= ends[from].1;
            from += 1;
        }
        most = most.max(until + 1 - from);
        most_bytes = most_bytes.max(bytes);
    }
    let span = last.saturating_sub(first.at_ns).max(1);
    // A recording that is shorter than a window has its own length.
    let seconds = WINDOW_NS.min(span) as f64 / 1e9;
    let latencies: f64 = all.iter().map(|request| request.device_ns as f64).sum();
    Direct {
        read: line(all, 0),
        write: line(all, 1),
        most_iops: most as f64 / seconds,
        most_bytes_per_s: most_bytes as f64 / seconds,
        in_flight: latencies / span as f64,
    }
}

/// The line through the lowest decile of the latencies of each size, of the requests of a kind that met the least load.
fn line(all: &[Admitted], kind: usize) -> Line {
    let own = || all.iter().filter(|request| place_of(request.kind) == kind && !request.failed);
    let mut found: Vec<u32> = own().map(|request| request.found).collect();
    if found.is_empty() {
        return Line::default();
    }
    let quarter = found.len() / 4;
    let few = *found.select_nth_unstable(quarter).1;
    let mut sizes: std::collections::BTreeMap<u32, Vec<u64>> = std::collections::BTreeMap::new();
    for request in own().filter(|request| request.found <= few) {
        sizes.entry(request.io.bytes).or_default().push(request.device_ns);
    }
    let most = sizes.values().map(Vec::len).max().unwrap_or(0);
    let points = sizes.into_iter().filter(|(_, times)| times.len() >= FEWEST.min(most)).map(|(bytes, mut times)| {
        let (weight, decile) = (times.len() as f64, times.len() / 10);
        (f64::from(bytes), *times.select_nth_unstable(decile).1 as f64, weight)
    });
    fit(&points.collect::<Vec<_>>())
}

/// The line of least squares through points (size, time, weight).
fn fit(points: &[(f64, f64, f64)]) -> Line {
    let sum = |of: &dyn Fn(&(f64, f64, f64)) -> f64| points.iter().map(of).sum::<f64>();
    let weight = sum(&|point| point.2).max(1e-9);
    let (x, y) = (sum(&|point| point.0 * point.2) / weight, sum(&|point| point.1 * point.2) / weight);
    let spread = sum(&|point| (point.0 - x) * (point.0 - x) * point.2);
    let slope = if spread > 0.0 { sum(&|point| (point.0 - x) * (point.1 - y) * point.2) / spread } else { 0.0 };
    let byte_ns = slope.max(0.0);
    Line { base_ns: (y - byte_ns * x).max(0.0), byte_ns }
}

#[cfg(test)]
mod tests {
    use super::super::device::admitted;
    use super::super::load::Load;
    use super::super::tests::{recording, request};
    use super::*;
    use evenkeel_flight::Outcome;

    #[test]
    fn a_line_is_found_from_sizes() {
        // 100 µs and 2 ns a byte.
        let one = |n: u64| {
            let length = if n.is_multiple_of(2) { 4_096 } else { 65_536 };
            evenkeel_flight::Request { length, ..request(n * 1_000_000, 100_000 + 2 * length) }
        };
        let load = Load::new(recording((0..1_000).map(one).collect()), None).unwrap();
        let direct = direct(&admitted(&load));
        assert!((direct.read.base_ns - 100_000.0).abs() < 10.0, "{direct:?}");
        assert!((direct.read.byte_ns - 2.0).abs() < 0.001, "{direct:?}");
        assert!((direct.most_iops - 1_000.0).abs() < 20.0, "{direct:?}");
        assert_eq!(direct.write, Line::default());
        // Of the time of each request it is in flight for 108 µs or for 231 µs.
        assert!((direct.in_flight - 0.17).abs() < 0.01, "{direct:?}");
    }

    #[test]
    fn failed_requests_and_the_end_of_time_do_not_disturb() {
        let one = |n: u64| evenkeel_flight::Request {
            outcome: if n.is_multiple_of(2) { Outcome::Done } else { Outcome::Failed(5) },
            ..request(n * 1_000_000, if n.is_multiple_of(2) { 100_000 } else { 1_000 })
        };
        let mut all = admitted(&Load::new(recording((0..1_000).map(one).collect()), None).unwrap());
        assert!((direct(&all).read.base_ns - 100_000.0).abs() < 10.0, "{:?}", direct(&all));
        all[999].at_ns = u64::MAX - 5;
        assert!(direct(&all).most_iops > 900.0, "{:?}", direct(&all));
    }
}
