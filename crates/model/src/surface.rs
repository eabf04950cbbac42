//! A table of latencies, for a device that no other model is like.
//!
//! Each point of the table has quantiles of the latency of requests of one kind, size and locality with some requests in flight.
//! A request draws its latency when it arrives, from the points around it. Beyond the highest number in flight of the table the
//! throughput stays, and the latency rises in proportion. The device has no memory beside the requests in flight and the ends of
//! the last ones: no cache, no queue in order of arrival, no garbage collection.

use alloc::collections::{BinaryHeap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

use evenkeel_control::rng::SplitMix64;
use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};

use crate::Io;
use crate::clock::{DeviceClock, polled};
use crate::params::{InvalidParams, check};

/// The quantiles of a point's latencies.
pub const QUANTILES: [f64; 12] = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99, 0.999];
/// Number of runs of neighbouring requests that [`Locality`] follows.
const RUNS: usize = 32;
/// The most points of a table.
const MOST: usize = 10_000;
/// Number of tables: one for each kind and locality.
const TABLES: usize = 8;

/// Latencies at [`QUANTILES`], in rising order.
pub type Latencies = [Duration; 12];

/// The latencies of requests of one kind, locality and size, with one number of requests in flight.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct Point {
    /// Kind of the requests: `read`, `write`, `flush` or `meta`.
    #[cfg_attr(feature = "serde", serde(with = "spelled"))]
    pub kind: Kind,
    /// True for requests that begin where an earlier one ended (see [`Locality`]).
    #[cfg_attr(feature = "serde", serde(default))]
    pub sequential: bool,
    /// Payload of the requests, in bytes.
    #[cfg_attr(feature = "serde", serde(with = "evenkeel_control::text::AsBytes"))]
    pub bytes: u32,
    /// Requests in flight when a request arrives, itself included; at least 1.
    pub in_flight: u32,
    /// Latencies at the quantiles 0, 0.1 to 0.9, 0.99 and 0.999, in rising order.
    pub latency: Latencies,
}

/// The parameters of a [`Surface`]; all of them can change while it runs.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SurfaceParams {
    /// The table, in any order. For a kind or locality without points, those of another count.
    pub points: Vec<Point>,
}

#[cfg(feature = "serde")]
impl crate::preset::Preset for SurfaceParams {
    const PRESETS: crate::preset::Presets<Self> = &[("", Self::default)];
}

impl Default for SurfaceParams {
    /// A single point: 100 µs for a request that is alone.
    fn default() -> Self {
        let latency = [Duration::from_micros(100); QUANTILES.len()];
        Self { points: vec![Point { kind: Kind::Read, sequential: false, bytes: 4_096, in_flight: 1, latency }] }
    }
}

impl SurfaceParams {
    /// Checks that the parameters are in range and fit together. O(n log n).
    ///
    /// # Errors
    /// The first parameter that is wrong, with its rule.
    pub fn validate(&self) -> Result<(), InvalidParams> {
        let mut places: Vec<(usize, u32, u32)> = self
            .points
            .iter()
            .map(|point| (table_of(point.kind, point.sequential), point.bytes, point.in_flight))
            .collect();
        places.sort_unstable();
        let rising = |latency: &Latencies| {
            latency[0] > Duration::ZERO && latency.iter().zip(&latency[1..]).all(|(low, high)| low <= high)
        };
        check(&[
            ((1..=MOST).contains(&self.points.len()), "points", "1 to 10000 points"),
            (places.iter().zip(places.iter().skip(1)).all(|(a, b)| a != b), "points", "of different requests or loads"),
            (self.points.iter().all(|point| point.in_flight > 0), "in_flight", "at least 1"),
            (self.points.iter().all(|point| rising(&point.latency)), "latency", "greater than 0, in rising order"),
        ])
    }
}

/// Number of the table of a kind and locality.
fn table_of(kind: Kind, sequential: bool) -> usize {
    let kind = match kind {
        Kind::Read => 0,
        Kind::Write => 1,
        Kind::Flush => 2,
        Kind::Meta => 3,
    };
    kind * 2 + usize::from(sequential)
}

/// Tells sequential requests from others, by the ends of the last runs of neighbouring requests.
#[derive(Clone, Debug)]
pub struct Locality {
    ends: [u64; RUNS],
    oldest: usize,
}

impl Default for Locality {
    fn default() -> Self {
        Self { ends: [u64::MAX; RUNS], oldest: 0 }
    }
}

impl Locality {
    /// True if the request begins where one of the last 32 runs ended, and continues it. Otherwise it begins a run. Requests
    /// without payload do neither.
    pub fn follows(&mut self, io: Io) -> bool {
        if io.bytes == 0 {
            return false;
        }
        let end = io.offset.saturating_add(u64::from(io.bytes));
        let run = self.ends.iter().position(|&known| known == io.offset);
        self.ends[run.unwrap_or(self.oldest)] = end;
        if run.is_none() {
            self.oldest = (self.oldest + 1) % RUNS;
        }
        run.is_some()
    }
}

/// Latencies with one number of requests in flight.
#[derive(Clone, Copy, Debug)]
struct AtLoad {
    in_flight: u32,
    latency: Latencies,
}

/// Latencies of requests of one size, in rising order of requests in flight.
#[derive(Clone, Debug)]
struct OfSize {
    bytes: u32,
    loads: Vec<AtLoad>,
}

impl OfSize {
    /// The latency at the quantile `draw`, in nanoseconds.
    fn nanos(&self, in_flight: f64, draw: f64) -> f64 {
        let most = self.loads.last().map_or(in_flight, |load| f64::from(load.in_flight));
        let at = |load: &AtLoad| {
            let points: [(f64, f64); QUANTILES.len()] =
                core::array::from_fn(|place| (QUANTILES[place], load.latency[place].as_nanos() as f64));
            between(&points, draw, |point| point.0, |point| point.1)
        };
        between(&self.loads, in_flight, |load| f64::from(load.in_flight), at) * (in_flight / most).max(1.0)
    }
}

/// The value at `x`, on the line between the two neighbouring items; outside of all that of the nearest one. Places rise.
fn between<T>(items: &[T], x: f64, place: impl Fn(&T) -> f64, value: impl Fn(&T) -> f64) -> f64 {
    let after = items.partition_point(|item| place(item) <= x);
    let below = after.checked_sub(1).and_then(|before| items.get(before));
    match (below, items.get(after)) {
        (Some(low), Some(high)) => {
            let share = (x - place(low)) / (place(high) - place(low));
            value(low) + share * (value(high) - value(low))
        }
        (Some(only), None) | (None, Some(only)) => value(only),
        (None, None) => 0.0,
    }
}

/// The tables by [`table_of`], in rising order of sizes.
fn tables(params: &SurfaceParams) -> [Vec<OfSize>; TABLES] {
    let mut points = params.points.clone();
    points.sort_by_key(|point| (point.bytes, point.in_flight));
    let mut tables: [Vec<OfSize>; TABLES] = core::array::from_fn(|_| Vec::new());
    for point in points {
        let table = &mut tables[table_of(point.kind, point.sequential)];
        let load = AtLoad { in_flight: point.in_flight, latency: point.latency };
        match table.last_mut() {
            Some(size) if size.bytes == point.bytes => size.loads.push(load),
            _ => table.push(OfSize { bytes: point.bytes, loads: vec![load] }),
        }
    }
    tables
}

/// A device whose latencies are those of a table. See the module's documentation.
///
/// A call whose `now` lies before that of an earlier call counts as made at the latest `now` so far. O(log n) a request.
pub struct Surface {
    tables: [Vec<OfSize>; TABLES],
    rng: SplitMix64,
    locality: Locality,
    seen: Instant,
    clock: DeviceClock,
    inside: usize,
    /// Requests by the time of their completion (device time), then in order of arrival, with their ids.
    pending: BinaryHeap<Reverse<(Instant, u64, u64)>>,
    submitted: u64,
    done: VecDeque<u64>,
}

impl Surface {
    /// An idle device. The same seed and calls give the same completions.
    pub fn new(params: &SurfaceParams, seed: u64) -> Self {
        Self {
            tables: tables(params),
            rng: SplitMix64::new(seed),
            locality: Locality::default(),
            seen: Instant::ZERO,
            clock: DeviceClock::default(),
            inside: 0,
            pending: BinaryHeap::new(),
            submitted: 0,
            done: VecDeque::new(),
        }
    }

    /// Takes a request. [`Surface::poll`] returns `id` when it has completed.
    pub fn submit(&mut self, now: Instant, id: u64, io: Io) {
        let device_now = self.advance(now);
        self.inside += 1;
        let latency = self.latency(io);
        self.pending.push(Reverse((device_now + latency, self.submitted, id)));
        self.submitted += 1;
    }

    polled!();

    /// Changes the parameters for requests submitted from now on.
    pub fn set_params(&mut self, now: Instant, params: &SurfaceParams) {
        self.advance(now);
        self.tables = tables(params);
    }

    /// The latency of a request that arrives now.
    fn latency(&mut self, io: Io) -> Duration {
        let own = table_of(io.kind, self.locality.follows(io));
        let draw = self.rng.next_f64();
        let in_flight = self.pending.len() as f64 + 1.0;
        // A kind that is not in the table is like another.
        let mut like = [own, own ^ 1].into_iter().chain(0..TABLES).filter_map(|place| self.tables.get(place));
        let Some(table) = like.find(|table| !table.is_empty()) else { return Duration::ZERO };
        let nanos =
            between(table, f64::from(io.bytes), |size| f64::from(size.bytes), |size| size.nanos(in_flight, draw));
        Duration::from_nanos(nanos as u64)
    }

    /// Completes all requests due by `now`; returns the device time at `now`.
    fn advance(&mut self, now: Instant) -> Instant {
        self.seen = self.seen.max(now);
        let device_now = self.clock.at(self.seen);
        while let Some(&Reverse((end, _, id))) = self.pending.peek() {
            if end > device_now {
                break;
            }
            self.pending.pop();
            self.done.push_back(id);
        }
        device_now
    }

    fn next_device_event(&self) -> Instant {
        self.pending.peek().map_or(Instant::FAR_FUTURE, |&Reverse((end, ..))| self.clock.reached(end))
    }
}

/// A kind of requests in TOML, by its name.
#[cfg(feature = "serde")]
mod spelled {
    use evenkeel_control::units::Kind;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    const NAMES: [(&str, Kind); 4] =
        [("read", Kind::Read), ("write", Kind::Write), ("flush", Kind::Flush), ("meta", Kind::Meta)];

    pub(crate) fn serialize<S: Serializer>(kind: &Kind, serializer: S) -> Result<S::Ok, S::Error> {
        let name = NAMES.iter().find(|(_, known)| known == kind).map_or("read", |(name, _)| *name);
        serializer.serialize_str(name)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Kind, D::Error> {
        let name = alloc::string::String::deserialize(deserializer)?;
        let found = NAMES.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind);
        found.ok_or_else(|| D::Error::custom("use read, write, flush or meta as kind of a point"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A point of random reads with one latency.
    fn point(bytes: u32, in_flight: u32, micros: u64) -> Point {
        let latency = [Duration::from_micros(micros); QUANTILES.len()];
        Point { kind: Kind::Read, sequential: false, bytes, in_flight, latency }
    }

    fn device(points: Vec<Point>) -> Surface {
        let params = SurfaceParams { points };
        assert_eq!(params.validate(), Ok(()));
        Surface::new(&params, 7)
    }

    fn read(offset: u64, bytes: u32) -> Io {
        Io { kind: Kind::Read, offset, bytes }
    }

    /// The latency in microseconds of a request that arrives with `others` in flight.
    fn with(points: Vec<Point>, others: u64, io: Io) -> u64 {
        let mut device = device(points);
        for other in 0..others {
            device.submit(Instant::ZERO, other, read(1 << 40, 4_096));
        }
        device.latency(io).as_nanos() / 1_000
    }

    #[test]
    fn latencies_lie_between_the_points_and_rise_in_proportion_beyond_the_last_load() {
        let points = || vec![point(4_096, 1, 100), point(4_096, 5, 300), point(8_192, 1, 200), point(8_192, 5, 400)];
        let small = [(0, 4_096, 100), (2, 4_096, 200), (4, 4_096, 300), (9, 4_096, 600)];
        let cases = small.into_iter().chain([(0, 6_144, 150), (4, 6_144, 350)]);
        for (others, bytes, micros) in cases {
            assert_eq!(with(points(), others, read(0, bytes)), micros, "{others} others, {bytes} bytes");
        }
        // Sizes outside of the table are like the nearest.
        assert_eq!((with(points(), 0, read(0, 512)), with(points(), 0, read(0, 1 << 20))), (100, 200));
    }

    #[test]
    fn each_kind_and_locality_has_its_own_latencies_or_those_of_another() {
        let points = || {
            let sequential = Point { sequential: true, ..point(4_096, 1, 20) };
            vec![point(4_096, 1, 100), sequential, Point { kind: Kind::Write, ..point(4_096, 1, 700) }]
        };
        let mut device = device(points());
        let mut micros = |io: Io| device.latency(io).as_nanos() / 1_000;
        assert_eq!([micros(read(0, 4_096)), micros(read(4_096, 4_096)), micros(read(4_096, 4_096))], [100, 20, 100]);
        let write = Io { kind: Kind::Write, offset: 8_192, bytes: 4_096 };
        assert_eq!([micros(write), micros(Io { offset: 1 << 30, ..write })], [700, 700]);
        assert_eq!(micros(Io { kind: Kind::Flush, offset: 0, bytes: 0 }), 100);
    }

    #[test]
    fn drawn_latencies_have_the_quantiles_of_the_point() {
        let latency: Latencies = core::array::from_fn(|place| Duration::from_micros(100 + 10 * place as u64));
        let mut device = device(vec![Point { latency, ..point(4_096, 1, 1) }]);
        let mut drawn: Vec<u64> = (0..20_000).map(|_| device.latency(read(0, 4_096)).as_nanos()).collect();
        drawn.sort_unstable();
        for (place, q) in QUANTILES.iter().enumerate().take(11) {
            let (found, of) = (drawn[(q * 19_999.0) as usize] as f64, latency[place].as_nanos() as f64);
            assert!((found / of - 1.0).abs() < 0.02, "{q}: {found} of {of}");
        }
        assert!(drawn.last().is_some_and(|&most| most <= latency[11].as_nanos()));
    }

    #[test]
    fn a_stall_moves_completions_and_new_parameters_are_for_new_requests() {
        let mut device = device(vec![point(4_096, 1, 100)]);
        device.submit(Instant::ZERO, 1, read(0, 4_096));
        device.stall(Instant::from_nanos(40_000), Duration::from_millis(1));
        assert_eq!(device.next_event(), Instant::from_nanos(1_100_000));
        let faster = SurfaceParams { points: vec![point(4_096, 1, 10), point(4_096, 2, 10)] };
        device.set_params(Instant::from_nanos(1_050_000), &faster);
        device.submit(Instant::from_nanos(1_050_000), 2, read(0, 4_096));
        assert_eq!(device.poll(Instant::from_nanos(1_060_000)), Some(2));
        assert_eq!((device.poll(Instant::from_nanos(1_099_999)), device.in_flight()), (None, 1));
        assert_eq!(device.poll(Instant::from_nanos(1_100_000)), Some(1));
        assert_eq!(device.next_event(), Instant::FAR_FUTURE);
    }

    #[test]
    fn tables_that_are_no_tables_are_refused() {
        let refused = |points: Vec<Point>| SurfaceParams { points }.validate().unwrap_err().parameter;
        assert_eq!(refused(Vec::new()), "points");
        assert_eq!(refused(vec![point(4_096, 1, 5), point(4_096, 1, 6)]), "points");
        assert_eq!(refused(vec![point(4_096, 0, 5)]), "in_flight");
        assert_eq!(refused(vec![point(4_096, 1, 0)]), "latency");
        let mut falling = point(4_096, 1, 5);
        falling.latency[11] = Duration::from_micros(4);
        assert_eq!(refused(vec![falling]), "latency");
    }

    proptest! {
        /// Every request completes once, at a time that does not depend on when the caller polls.
        #[test]
        fn each_request_completes_once_whenever_it_is_polled(
            waits in prop::collection::vec(0u64..400_000, 1..60),
            every in 5_000u64..300_000,
        ) {
            let points = vec![point(4_096, 1, 100), point(4_096, 8, 350), point(65_536, 2, 500)];
            let run = |polls: Option<u64>| {
                let (mut device, mut now, mut done) = (device(points.clone()), 0_u64, Vec::new());
                for (id, wait) in (0u64..).zip(&waits) {
                    if let Some(every) = polls {
                        (now..now + wait).step_by(every as usize).for_each(|at| {
                            while let Some(id) = device.poll(Instant::from_nanos(at)) {
                                done.push(id);
                            }
                        });
                    }
                    now += wait;
                    device.submit(Instant::from_nanos(now), id, read(id << 20, 4_096_u32 << (id % 5)));
                }
                let mut last = Instant::from_nanos(now);
                while device.next_event() != Instant::FAR_FUTURE {
                    last = last.max(device.next_event());
                    while let Some(id) = device.poll(last) {
                        done.push(id);
                    }
                }
                (done, last, device.in_flight())
            };
            let (lazy, busy) = (run(None), run(Some(every)));
            assert_eq!(lazy, busy);
            let mut ids = lazy.0;
            ids.sort_unstable();
            assert_eq!(ids, (0..waits.len() as u64).collect::<Vec<_>>());
            assert_eq!(lazy.2, 0);
        }
    }
}
