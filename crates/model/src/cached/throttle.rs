//! The kernel's `io.max`: time is cut into slices, and an unused part of a slice is lost.
//!
//! Linux 6.12, `block/blk-throttle.c`, one direction of one cgroup. At any moment of a slice of 100 ms, as many bytes may be
//! dispatched as the limit allows up to the slice's *end*; a request that does not fit waits until the allowance has grown
//! enough. While requests keep coming the slice is extended, but every dispatch drops whole slices that have passed, together
//! with their allowance. A group loses the allowance that it could not use in past slices; it can only catch up within the
//! present slice. A new limit begins a new slice; if requests are waiting at that moment, the unused allowance is carried over.
//!
//! So a group loses no throughput while its device is slow for less than a slice, and does while it is slow for longer.
//!
//! **Left out**: the kernel counts in ticks of 1 to 10 ms, and its timer may be late by one tick; parent groups.

use evenkeel_control::{Duration, Instant};

/// Length of a slice in the kernel.
pub const SLICE: Duration = Duration::from_millis(100);

/// Limits of one direction of a group; `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes per second, 1 or more.
    pub bytes_per_s: Option<u64>,
    /// Requests per second, 1 or more.
    pub requests_per_s: Option<u64>,
}

/// The account of the present slice for one limit, in the limit's unit: bytes or requests.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    /// Dispatched in the present slice.
    spent: u64,
    /// Allowance carried over from before the limit changed; negative if more was dispatched than allowed.
    carried: i64,
}

impl Account {
    /// Time that a request of `size` (bytes, or 1 request) must wait, when `elapsed` of the slice has passed.
    fn wait(&self, rate: u64, elapsed: Duration, size: u64) -> Duration {
        let slice = SLICE.as_nanos();
        let rounded = elapsed.as_nanos().max(1).next_multiple_of(slice);
        let allowed = allowed(rate, rounded).saturating_add(self.carried);
        let extra = i64::try_from(self.spent.saturating_add(size)).unwrap_or(i64::MAX).saturating_sub(allowed);
        if extra <= 0 {
            return Duration::ZERO;
        }
        let needed = times_over(extra.unsigned_abs(), 1_000_000_000, rate.max(1));
        // To the end of what was counted as elapsed, and then as long as the rest takes.
        Duration::from_nanos(needed.saturating_add(rounded - elapsed.as_nanos()))
    }

    /// Drops the first `whole` nanoseconds of the slice: their allowance, and as much of `spent`.
    fn trim(&mut self, rate: u64, whole: u64) {
        let past = allowed(rate, whole).saturating_add(core::mem::take(&mut self.carried));
        self.spent = self.spent.saturating_sub(past.max(0).unsigned_abs());
    }

    fn carry(&mut self, rate: u64, elapsed: Duration) {
        let spent = i64::try_from(self.spent).unwrap_or(i64::MAX);
        self.carried = self.carried.saturating_add(allowed(rate, elapsed.as_nanos()).saturating_sub(spent));
    }
}

/// The allowance of `rate` (per second) in `nanos` nanoseconds.
fn allowed(rate: u64, nanos: u64) -> i64 {
    i64::try_from(times_over(rate, nanos, 1_000_000_000)).unwrap_or(i64::MAX)
}

/// `a * b / c`, rounded down; at most `u64::MAX`. Products of 64 bits, the usual ones, take a fraction of the time of others.
#[inline]
fn times_over(a: u64, b: u64, c: u64) -> u64 {
    match a.checked_mul(b) {
        Some(product) => product / c,
        None => u64::try_from(u128::from(a) * u128::from(b) / u128::from(c)).unwrap_or(u64::MAX),
    }
}

/// The throttle of one direction of one cgroup.
#[derive(Clone, Debug)]
pub struct Throttle {
    limits: Limits,
    begin: Instant,
    end: Instant,
    bytes: Account,
    requests: Account,
}

impl Throttle {
    /// A throttle with these limits and no use so far.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            begin: Instant::ZERO,
            end: Instant::ZERO,
            bytes: Account::default(),
            requests: Account::default(),
        }
    }

    /// The limits in force.
    pub const fn limits(&self) -> Limits {
        self.limits
    }

    /// Sets limits as a write to `io.max` does; also setting the limits in force begins a new slice. `waiting`: requests are
    /// queued in the throttle now.
    pub fn set_limits(&mut self, now: Instant, limits: Limits, waiting: bool) {
        if waiting {
            let elapsed = now.since(self.begin);
            if let Some(rate) = self.limits.bytes_per_s {
                self.bytes.carry(rate, elapsed);
            }
            if let Some(rate) = self.limits.requests_per_s {
                self.requests.carry(rate, elapsed);
            }
        }
        self.limits = limits;
        (self.bytes.spent, self.requests.spent) = (0, 0);
        (self.begin, self.end) = (now, now + SLICE);
    }

    /// Time at which the request at the head of the queue, of `bytes`, may be dispatched: `now` or later. `first`: the queue was
    /// empty when the request came.
    pub fn ready_at(&mut self, now: Instant, bytes: u32, first: bool) -> Instant {
        if now > self.end && first {
            (self.bytes, self.requests) = (Account::default(), Account::default());
            (self.begin, self.end) = (now, now + SLICE);
        } else if self.end < now + SLICE {
            self.end = now + SLICE;
        }
        let elapsed = now.since(self.begin);
        let wait = |rate: Option<u64>, account: &Account, size| {
            rate.map_or(Duration::ZERO, |rate| account.wait(rate, elapsed, size))
        };
        let bytes = wait(self.limits.bytes_per_s, &self.bytes, u64::from(bytes));
        let wait = bytes.max(wait(self.limits.requests_per_s, &self.requests, 1));
        self.end = self.end.max(now + wait);
        now + wait
    }

    /// Counts the dispatch of a request of `bytes`.
    pub fn dispatch(&mut self, now: Instant, bytes: u32) {
        self.bytes.spent = self.bytes.spent.saturating_add(u64::from(bytes));
        self.requests.spent = self.requests.spent.saturating_add(1);
        if now > self.end {
            return;
        }
        self.end = now + SLICE;
        let slice = SLICE.as_nanos();
        let whole = now.since(self.begin).as_nanos() / slice * slice;
        if whole == 0 {
            return;
        }
        if let Some(rate) = self.limits.bytes_per_s {
            self.bytes.trim(rate, whole);
        }
        if let Some(rate) = self.limits.requests_per_s {
            self.requests.trim(rate, whole);
        }
        self.begin += Duration::from_nanos(whole);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::times_over;

    proptest! {
        #[test]
        fn products_of_any_size_are_divided_alike(
            (a, b, c) in (any::<u64>(), any::<u64>(), any::<u64>()),
            shifts in [0u32..64, 0u32..64, 0u32..64],
        ) {
            let (a, b, c) = (a >> shifts[0], b >> shifts[1], (c >> shifts[2]).max(1));
            let exact = u128::from(a) * u128::from(b) / u128::from(c);
            prop_assert_eq!(u128::from(times_over(a, b, c)), exact.min(u128::from(u64::MAX)));
        }
    }
}
