//! The hosts of all loads with writers: a small reader, and hosts that write a lot.

use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};

use super::world::Host;

/// Host id of the reader; the writers' hosts have the ids after it.
pub(super) const READER: u64 = 1;

/// A time of `n` milliseconds.
pub(super) fn ms(n: f64) -> Duration {
    Duration::from_nanos((n * 1e6) as u64)
}

/// The moment `seconds` after the beginning of a run.
pub(super) fn at(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

/// A host that reads 4 KiB at a time at a rate of 256 KiB/s, for the whole run.
pub(super) fn reader(duration: Duration) -> Host {
    Host {
        id: READER,
        kind: Kind::Read,
        bytes: 4096,
        streams: 1,
        pace: Duration::from_micros(15_625),
        active: vec![(Instant::ZERO, Instant::ZERO + duration)],
    }
}

/// `hosts` hosts with four writers each, which send in the periods `active` (beginnings and ends).
pub(super) fn writers(hosts: u64, active: &[(Instant, Instant)]) -> impl Iterator<Item = Host> {
    (0..hosts).map(move |host| Host {
        id: READER + 1 + host,
        kind: Kind::Write,
        bytes: 64 << 10,
        streams: 4,
        pace: Duration::ZERO,
        active: active.to_vec(),
    })
}
