//! Converts the wait that a request is to meet into limits of a group, and learns what that takes.
//!
//! A group that keeps a fixed amount in circulation and asks again when it gets an answer obeys Little's law: with rate x,
//! latency R of the device and an extra wait d of each request, x·(R + d) is constant. This product, the circulation C, is
//! learned for bytes and requests of each direction. A limit of
//!
//! ```text
//! r = C / (R + d)
//! ```
//!
//! makes each request wait d longer. As d is at most `max_delay`, so is the wait.
//!
//! C is learned only from rates that no limit bounds. A rate below its limit may be that of a group that asks for less at the
//! moment, or whose requests wait for another of its limits; a rate at its limit is the limit. Either would make the next
//! limit follow from the present one, and limits would creep down or up.

use evenkeel_control::Duration;

use super::super::owed::{Owed, Pace};
use crate::actuator::io_max::Limits;

/// Time constant with which circulation and latency are smoothed; the controller smoothes the load with the same.
pub(super) const SMOOTHING: Duration = Duration::from_secs(1);
/// Time constant with which the largest circulation is forgotten, as a multiple of [`SMOOTHING`].
const FORGET: f64 = 100.0;
/// Part of a limit from which on a rate counts as bounded by the limit.
const BINDS: f64 = 0.8;
/// A group that uses less than this part of its usual rate makes a pause; the controller's measure of a pause is the same.
const PAUSE: f64 = 0.1;
/// Requests per second, smoothed, up to which a group's requests of late say nothing about their size.
const SEEN: f64 = 1e-3;
/// Writes are limited only if they make at least this part of a group's bytes: when a journal of the file system commits, other
/// groups may wait for the writes of this one.
const WRITES: f64 = 0.2;

/// Latency of a device's reads, and of its writes, in seconds, smoothed; 0 before the first request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Latencies([f64; 2]);

impl Latencies {
    /// Takes in the mean latencies of an interval of this length; `None` if no request completed.
    pub(super) fn learn(&mut self, length: Duration, means: [Option<Duration>; 2]) {
        for (known, mean) in self.0.iter_mut().zip(means) {
            let Some(mean) = mean.map(Duration::as_secs_f64) else { continue };
            *known = if *known > 0.0 { *known + weight(length) * (mean - *known) } else { mean };
        }
    }
}

/// Weight of the newest value after an interval of this length.
fn weight(length: Duration) -> f64 {
    (length.as_secs_f64() / SMOOTHING.as_secs_f64()).min(1.0)
}

/// The use that a group makes of the device, each for bytes read, bytes written, reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Circulation {
    /// The amount in circulation without a limit, smoothed; 0 where nothing is known.
    known: [f64; 4],
    /// The largest such amount of late.
    most: [f64; 4],
    /// Rates without a limit, smoothed.
    free: [f64; 4],
    /// Rates, smoothed, with intervals without a request.
    seen: [f64; 4],
    /// Time since the latest request, up to [`SMOOTHING`].
    quiet: [Duration; 4],
}

/// The rates of a group, in the order of [`Circulation`].
fn rates(pace: &Pace) -> [f64; 4] {
    [pace.bytes[0], pace.bytes[1], pace.requests[0], pace.requests[1]]
}

impl Circulation {
    /// Takes in the rates of a group over an interval of this length, in which `limits` were in force.
    pub(super) fn learn(&mut self, length: Duration, pace: &Pace, latencies: &Latencies, limits: &Limits) {
        let newest = weight(length);
        for (place, (rate, limit)) in rates(pace).into_iter().zip(limits.all()).enumerate() {
            self.seen[place] += newest * (rate - self.seen[place]);
            if rate <= 0.0 {
                self.quiet[place] = (self.quiet[place] + length).min(SMOOTHING);
                continue;
            }
            let quiet = std::mem::take(&mut self.quiet[place]);
            if limit.is_some() {
                continue;
            }
            // Requests may come less often than once in an interval.
            let rate = rate * (length.as_secs_f64() / (quiet + length).as_secs_f64());
            let newest = if self.known[place] > 0.0 { newest } else { 1.0 };
            self.free[place] += newest * (rate - self.free[place]);
            self.known[place] += newest * (rate * latencies.0[place % 2] - self.known[place]);
            self.most[place] = self.known[place].max((1.0 - newest / FORGET) * self.most[place]);
        }
    }

    /// Mean size of the group's requests in this direction (0: reads), in bytes; 0 without requests.
    fn mean_bytes(&self, direction: usize) -> f64 {
        let [bytes, requests] = [self.known[direction], self.known[direction + 2]];
        if requests > 0.0 { bytes / requests } else { 0.0 }
    }

    /// Mean sizes of the group's requests in this direction, in bytes: without a limit, and of late, limited or not. They are
    /// equal where there was no request of late.
    fn sizes(&self, direction: usize) -> [f64; 2] {
        let free = self.mean_bytes(direction);
        let [bytes, requests] = [self.seen[direction], self.seen[direction + 2]];
        [free, if requests > SEEN { bytes / requests } else { free }]
    }

    /// True if the group reads at present.
    pub(super) fn reads(&self, pace: &Pace) -> bool {
        pace.requests[0] > PAUSE * self.seen[2]
    }

    /// Bytes per second that the group would move without these limits, which are in force, if it moves `load` with them: a
    /// group that uses up none of its limits has all that it asks for.
    pub(super) fn freed(&self, load: f64, limits: &Limits) -> f64 {
        let mut both = limits.all().into_iter().zip(self.seen);
        let binds = both.any(|(limit, seen)| limit.is_some_and(|limit| seen >= BINDS * limit as f64));
        if binds { load.max(self.free[0] + self.free[1]) } else { load }
    }

    /// The limits that make each request wait for `delay`, which is at most `max_delay`, and that leave the tenant what it is
    /// `owed`. A rate of which nothing is known is not limited, and neither are the writes of a group that mostly reads.
    pub(super) fn limits(&self, delay: Duration, max_delay: Duration, latencies: &Latencies, owed: &Owed) -> Limits {
        let max_delay_s = max_delay.as_secs_f64();
        let mostly_reads = self.free[1] < WRITES * (self.free[0] + self.free[1]);
        let limit = |place: usize| {
            let direction = place % 2;
            if self.known[place] <= 0.0 || direction == 1 && mostly_reads {
                return None;
            }
            let ([mean_bytes, now], latency_s) = (self.sizes(direction), latencies.0[direction]);
            let in_bytes = place < 2;
            // The size may have changed under limits: what is reserved is left for both.
            let size = if in_bytes { mean_bytes.max(now) } else { mean_bytes.min(now) };
            // Neither a single request nor as many as the group had in flight of late wait longer than they may.
            let single = if in_bytes { mean_bytes } else { 1.0 } / max_delay_s;
            let least = single.max(self.most[place] / (latency_s + max_delay_s));
            let rate = self.known[place] / (latency_s + delay.as_secs_f64());
            let rate = rate.max(least).max(owed.reserved(in_bytes, size));
            // Errors of rounding are no reason for one more.
            Some(((rate * (1.0 - 1e-9)).ceil() as u64).max(Limits::LEAST))
        };
        Limits { rbps: limit(0), wbps: limit(1), riops: limit(2), wiops: limit(3) }
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_policy::config::Tenant;
    use evenkeel_policy::units::{Bytes, Rates};
    use proptest::prelude::*;

    use super::*;

    const INTERVAL: Duration = Duration::from_millis(100);
    const MOST: Duration = Duration::from_secs(2);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// A writer that keeps `depth` requests of `size` bytes in circulation, at a device that takes 10 ms for each.
    fn pace(depth: f64, size: f64, limits: &Limits) -> Pace {
        let free = depth / 0.010;
        let bytes = limits.wbps.map_or(f64::INFINITY, |limit| limit as f64 / size);
        let requests = free.min(bytes).min(limits.wiops.map_or(f64::INFINITY, |limit| limit as f64));
        Pace { bytes: [0.0, requests * size], requests: [0.0, requests] }
    }

    fn latencies() -> Latencies {
        let mut latencies = Latencies::default();
        latencies.learn(INTERVAL, [Some(ms(10)), Some(ms(10))]);
        latencies
    }

    /// The circulation of a group that moved so much for an interval, without a limit.
    fn known(pace: &Pace) -> Circulation {
        let mut known = Circulation::default();
        known.learn(INTERVAL, pace, &latencies(), &Limits::NONE);
        known
    }

    fn limits(known: &Circulation, delay_ms: u64) -> Limits {
        known.limits(ms(delay_ms), MOST, &latencies(), &Owed::default())
    }

    #[test]
    fn a_wait_of_nine_latencies_leaves_a_tenth_of_the_rate() {
        let known = known(&pace(32.0, 65_536.0, &Limits::NONE));
        assert_eq!(limits(&known, 90), Limits { wbps: Some(320 * 65_536), wiops: Some(320), ..Limits::NONE });
    }

    #[test]
    fn limits_neither_creep_down_nor_up_with_the_rates_that_they_allow() {
        let mut known = known(&pace(32.0, 65_536.0, &Limits::NONE));
        let first = limits(&known, 90);
        // The group asks for less, larger or smaller requests leave one of its limits unused, the device becomes slower and
        // faster, and the group makes pauses.
        for (part, size, device_ms) in
            [(0.5, 65_536.0, 10), (1.0, 9_000.0, 10), (1.0, 90_000.0, 10), (0.15, 65_536.0, 5), (1.0, 65_536.0, 15)]
        {
            for _ in 0..100 {
                let mut latencies = latencies();
                latencies.learn(ms(1_000), [None, Some(ms(device_ms))]);
                let in_force = limits(&known, 90);
                let wanted = pace(32.0 * part, size, &in_force);
                let less = |rate: f64| part * rate;
                let used = Pace { bytes: wanted.bytes.map(less), requests: wanted.requests.map(less) };
                known.learn(INTERVAL, &used, &latencies, &in_force);
                known.learn(INTERVAL, &Pace::default(), &latencies, &in_force);
                assert_eq!(limits(&known, 90), first);
            }
        }
    }

    #[test]
    fn requests_that_come_once_in_several_intervals_are_known_with_their_rate() {
        let mut known = Circulation::default();
        // Two a second, each of 1 MB, which is 20 ms in flight of every second.
        let one = Pace { bytes: [0.0, 1e7], requests: [0.0, 10.0] };
        for interval in 0..1_000 {
            let pace = if interval % 5 == 0 { one } else { Pace::default() };
            known.learn(INTERVAL, &pace, &latencies(), &Limits::NONE);
        }
        assert!((known.known[3] / 0.020 - 1.0).abs() < 0.05, "{known:?}");
        assert!((known.seen[3] / 2.0 - 1.0).abs() < 0.5, "{known:?}");
        // A limit that lets one of them pass in two seconds.
        let slow = Limits { wiops: Some(1), ..Limits::NONE };
        let before = limits(&known, 1_900);
        for interval in 0..1_000 {
            let pace = if interval % 20 == 0 { one } else { Pace::default() };
            known.learn(INTERVAL, &pace, &latencies(), &Limits { wbps: Some(500_000), ..slow });
        }
        assert_eq!(limits(&known, 1_900), before);
    }

    #[test]
    fn a_group_that_comes_back_after_little_use_may_have_as_much_in_flight_as_before() {
        let mut known = known(&pace(32.0, 65_536.0, &Limits::NONE));
        for _ in 0..100 {
            known.learn(INTERVAL, &pace(0.5, 65_536.0, &Limits::NONE), &latencies(), &Limits::NONE);
        }
        assert!((known.known[3] - 0.5).abs() < 0.1, "{known:?}");
        let limit = limits(&known, 2_000).wiops.unwrap();
        let waits_s = 28.0 / limit as f64;
        assert!(waits_s <= MOST.as_secs_f64() + 0.010, "{waits_s} s");
    }

    #[test]
    fn a_group_with_less_to_do_is_known_with_less() {
        let mut known = known(&pace(32.0, 65_536.0, &Limits::NONE));
        for _ in 0..100 {
            known.learn(INTERVAL, &pace(4.0, 65_536.0, &Limits::NONE), &latencies(), &Limits::NONE);
        }
        assert!((known.known[3] - 4.0).abs() < 0.1, "{known:?}");
    }

    #[test]
    fn a_group_at_its_limit_would_move_what_it_moved_before() {
        let mut known = known(&pace(32.0, 65_536.0, &Limits::NONE));
        let (limits, free) = (limits(&known, 90), 3_200.0 * 65_536.0);
        for _ in 0..50 {
            known.learn(INTERVAL, &pace(32.0, 65_536.0, &limits), &latencies(), &limits);
        }
        assert!((known.freed(1e6, &limits) / free - 1.0).abs() < 1e-9, "{known:?}");
        assert_eq!(known.freed(1e6, &Limits::NONE), 1e6, "it has all");
        for _ in 0..50 {
            known.learn(INTERVAL, &pace(1.0, 65_536.0, &limits), &latencies(), &limits);
        }
        assert_eq!(known.freed(1e6, &limits), 1e6, "it asks for less than the limit");
    }

    #[test]
    fn no_limit_is_less_than_kernels_take() {
        let limits = limits(&known(&pace(0.01, 512.0, &Limits::NONE)), 2_000);
        assert_eq!((limits.wbps, limits.wiops), (Some(256), Some(2)));
    }

    #[test]
    fn a_reservation_is_left_also_when_requests_become_smaller_or_larger_under_limits() {
        let reservation = Rates { iops: 1_000, bytes_per_s: Bytes(8_192_000) };
        let owed = Owed::reservation_of(&Tenant { reservation, ..Tenant::default() });
        let set = |known: &Circulation| known.limits(MOST, MOST, &latencies(), &owed);
        for (size, is_now) in [(65_536.0, 8_192.0), (4_096.0, 65_536.0)] {
            let mut known = known(&pace(32.0, size, &Limits::NONE));
            for _ in 0..200 {
                let limits = set(&known);
                known.learn(INTERVAL, &pace(32.0, is_now, &limits), &latencies(), &limits);
            }
            let passed = pace(32.0, is_now, &set(&known));
            let paid = owed.paid(&passed, [true; 2]);
            assert!(paid > 0.99, "{size} {is_now}: {paid}");
        }
    }

    #[test]
    fn writes_of_a_group_that_mostly_reads_are_not_limited() {
        for (written, is_limited) in [(1e6, false), (9e6, true)] {
            let pace = Pace { bytes: [1e7, written], requests: [1e3, 100.0] };
            let known = known(&pace);
            let limits = limits(&known, 90);
            assert_eq!((limits.wbps.is_some(), limits.wiops.is_some()), (is_limited, is_limited), "{limits}");
            assert!(limits.rbps.is_some() && limits.riops.is_some() && known.reads(&pace));
            assert!(!known.reads(&Pace::default()));
        }
    }

    proptest! {
        #[test]
        fn no_request_waits_longer_than_it_may(
            depth in 1.0f64..256.0,
            size in 512.0f64..1e6,
            delay_ms in 1u64..2_000,
        ) {
            let limits = limits(&known(&pace(depth, size, &Limits::NONE)), delay_ms);
            let slowed = pace(depth, size, &limits);
            // By Little's law, less the time in the device.
            let waits_s = depth / slowed.requests[1] - 0.010;
            prop_assert!(waits_s <= 1e-3 * delay_ms as f64 + 1e-6, "{} s, {:?}", waits_s, limits);
            prop_assert!(limits.wbps.is_some_and(|limit| limit as f64 >= size / 2.0 - 1.0));
        }
    }
}
