//! A table of latencies from a recording, for a device that no family is like.
//!
//! Requests are divided by kind, locality, size (powers of two) and requests in flight (two classes for each power of two). A
//! class of less than [`FEWEST`] requests is joined with the next one in order of requests in flight, the last one with the class
//! before it. Without that many requests of a kind, locality and size they are left out.

use std::collections::BTreeMap;

use evenkeel_control::Duration;
use evenkeel_control::units::Kind;
use evenkeel_model::surface::{Locality, Point, QUANTILES, SurfaceParams};

use super::device::Admitted;

/// Fewest requests of a point of the table.
const FEWEST: usize = 30;
/// The kinds, in the order of the table.
const KINDS: [Kind; 4] = [Kind::Read, Kind::Write, Kind::Flush, Kind::Meta];

/// The table of requests in order of admission; `None` without [`FEWEST`] requests of a kind, locality and size. O(n log n).
pub(super) fn surface(all: &[Admitted]) -> Option<SurfaceParams> {
    let mut locality = Locality::default();
    let mut groups: BTreeMap<(usize, bool, u32), Vec<&Admitted>> = BTreeMap::new();
    for request in all {
        let sequential = locality.follows(request.io);
        if !request.failed && request.device_ns > 0 {
            let kind = KINDS.iter().position(|kind| *kind == request.io.kind).unwrap_or(0);
            let size = request.io.bytes.checked_ilog2().unwrap_or(0);
            groups.entry((kind, sequential, size)).or_default().push(request);
        }
    }
    let mut points = Vec::new();
    for ((kind, sequential, _), mut requests) in groups {
        if requests.len() < FEWEST {
            continue;
        }
        requests.sort_by_key(|request| request.found);
        let bytes = mean(requests.iter().map(|request| request.io.bytes));
        for class in classes(&requests) {
            let mut times: Vec<u64> = class.iter().map(|request| request.device_ns).collect();
            times.sort_unstable();
            let at = |q: f64| times[((times.len() - 1) as f64 * q).round() as usize];
            points.push(Point {
                kind: KINDS[kind],
                sequential,
                bytes,
                in_flight: mean(class.iter().map(|request| in_flight(request))),
                latency: QUANTILES.map(|q| Duration::from_nanos(at(q))),
            });
        }
    }
    (!points.is_empty()).then_some(SurfaceParams { points })
}

/// Requests in flight when a request arrived, itself included.
fn in_flight(request: &Admitted) -> u32 {
    request.found.saturating_add(1)
}

/// The mean of numbers, rounded down; 0 of none.
fn mean(numbers: impl ExactSizeIterator<Item = u32>) -> u32 {
    let count = numbers.len().max(1) as u64;
    u32::try_from(numbers.map(u64::from).sum::<u64>() / count).unwrap_or(u32::MAX)
}

/// The class of a number of requests in flight: 1, 2, 3, 4 to 5, 6 to 7, 8 to 11 and so on.
fn class_of(request: &Admitted) -> u32 {
    let in_flight = u64::from(in_flight(request));
    let power = in_flight.ilog2();
    2 * power + u32::from(2 * in_flight >= 3_u64 << power)
}

/// The classes of requests in order of requests in flight, of at least [`FEWEST`] requests each.
fn classes<'a, 'b>(requests: &'a [&'b Admitted]) -> Vec<&'a [&'b Admitted]> {
    let (mut starts, mut end): (Vec<usize>, usize) = (vec![0], 0);
    for class in requests.chunk_by(|a, b| class_of(a) == class_of(b)) {
        end += class.len();
        if end - starts.last().copied().unwrap_or(0) >= FEWEST {
            starts.push(end);
        }
    }
    // The few requests after the last class join it.
    if let Some(last) = starts.last_mut() {
        *last = requests.len();
    }
    starts.iter().zip(starts.iter().skip(1)).map(|(&from, &until)| &requests[from..until]).collect()
}

#[cfg(test)]
mod tests {
    use super::super::device::admitted;
    use super::super::load::Load;
    use super::super::tests::{recording, request};
    use super::*;

    #[test]
    fn points_have_the_latencies_of_their_requests() {
        // Alone 100 µs to 199 µs; of three at one time the last takes 500 µs.
        let mut requests = Vec::new();
        for n in 0..100_u64 {
            requests.push(request(n * 2_000_000, 100_000 + n * 1_000));
            for other in 0..3_u64 {
                let device_ns = if other == 2 { 500_000 } else { 300_000 };
                requests.push(request(n * 2_000_000 + 1_000_000 + other, device_ns));
            }
        }
        for (n, request) in (0_u64..).zip(&mut requests) {
            request.offset = n << 16;
        }
        let all = admitted(&Load::new(recording(requests), None).unwrap());
        let table = surface(&all).unwrap();
        assert_eq!(table.validate(), Ok(()));
        let shape: Vec<(Kind, bool, u32, u32)> =
            table.points.iter().map(|point| (point.kind, point.sequential, point.bytes, point.in_flight)).collect();
        assert_eq!(shape, [1, 2, 3].map(|in_flight| (Kind::Read, false, 4_096, in_flight)));
        assert_eq!(table.points[1].latency, [Duration::from_micros(300); QUANTILES.len()]);
        assert_eq!(table.points[2].latency, [Duration::from_micros(500); QUANTILES.len()]);
        // A hundred of 300 µs, and below them the hundred of rising latencies.
        let alone = table.points[0].latency;
        assert_eq!((alone[0], alone[11]), (Duration::from_micros(100), Duration::from_micros(300)));
        assert!(alone[3] > Duration::from_micros(150) && alone[3] < Duration::from_micros(170), "{alone:?}");
    }

    #[test]
    fn sequential_requests_have_points_of_their_own_and_few_requests_none() {
        let one = |n: u64| {
            let sequential = n < 1_000;
            let (offset, device_ns) = if sequential { (n * 4_096, 20_000) } else { (n << 19, 900_000) };
            evenkeel_flight::Request { offset, ..request(n * 1_000_000, device_ns) }
        };
        let all = admitted(&Load::new(recording((0..1_200).map(one).collect()), None).unwrap());
        let table = surface(&all).unwrap();
        let found: Vec<(bool, Duration)> =
            table.points.iter().map(|point| (point.sequential, point.latency[5])).collect();
        assert_eq!(found, [(false, Duration::from_micros(900)), (true, Duration::from_micros(20))]);
        assert_eq!(surface(&all[..FEWEST - 1]), None);
    }
}
