//! The counters of a Ceph OSD: latency of its store, requests and bytes that the store took in, and requests that wait at the
//! store's throttle.
//!
//! The OSD's own `commit_lat` includes the wait at the throttle, which the agent sets. So the store's latency is the sum of
//! the times in the states after that wait. The counters hold no smallest latency: the smallest mean over a short time takes
//! its place.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};

use crate::admin_socket::Malformed;

/// Name of the logger (group of counters) of the store.
pub const STORE: &str = "bluestore";
/// Name of the logger (group of counters) of the throttle of bytes in flight in the store.
pub const BYTES: &str = "throttle-bluestore_throttle_bytes";

/// A running mean of durations, as Ceph counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub struct Average {
    /// Number of durations that `sum` adds up.
    pub avgcount: u64,
    /// Sum of the durations, in seconds.
    pub sum: f64,
}

impl Average {
    /// Mean, in seconds, of the durations added since the earlier reading `before`; `None` without a new duration.
    pub fn mean_since(self, before: Self) -> Option<f64> {
        let count = self.avgcount.checked_sub(before.avgcount).filter(|&count| count > 0)?;
        Some(((self.sum - before.sum) / count as f64).max(0.0))
    }
}

/// The store's counters that the agent uses; other counters of the answer are skipped. A field is `None` if this version of
/// Ceph lacks the counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub struct Store {
    /// Times that requests waited for the device's asynchronous I/O.
    pub state_aio_wait_lat: Option<Average>,
    /// Times that requests waited in the queue for the commit of metadata.
    pub state_kv_queued_lat: Option<Average>,
    /// Times that commits of metadata took. (The spelling is Ceph's.)
    #[serde(alias = "state_kv_committing_lat")]
    pub state_kv_commiting_lat: Option<Average>,
    /// Total of bytes that clients wrote to newly allocated space. In later versions of Ceph the counter's name has no prefix
    /// `bluestore_`.
    #[serde(alias = "write_big_bytes")]
    pub bluestore_write_big_bytes: Option<u64>,
    /// Total of bytes of all other writes of clients.
    #[serde(alias = "write_small_bytes")]
    pub bluestore_write_small_bytes: Option<u64>,
}

/// Counters of one of the OSD's throttles; totals are since the OSD was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub struct Throttle {
    /// Cost of the requests in flight now, in bytes.
    pub val: u64,
    /// Largest cost that may be in flight, in bytes; 0: no bound.
    pub max: u64,
    /// Total of requests that have come to the throttle.
    pub get_started: u64,
    /// Total of requests that the throttle has admitted.
    pub get: u64,
    /// Total cost of the admitted requests, in bytes.
    pub get_sum: u64,
    /// Total cost of the admitted requests that are no longer in flight, in bytes.
    pub put_sum: u64,
    /// Times that requests waited at the throttle; requests admitted without a wait do not count.
    pub wait: Average,
}

impl Throttle {
    /// Number of requests that wait at the throttle now. Correct only for the throttle of all bytes ([`BYTES`]): other
    /// throttles count requests that are admitted without a wait in `get` alone.
    pub const fn waiting(&self) -> u64 {
        self.get_started.saturating_sub(self.get)
    }
}

impl Store {
    /// True if the store's latency and commits are counted; without them the agent cannot control the OSD.
    pub const fn has_latencies(&self) -> bool {
        self.state_aio_wait_lat.is_some() && self.state_kv_queued_lat.is_some() && self.state_kv_commiting_lat.is_some()
    }

    /// Total number of requests whose wait for the device is over, or was not needed.
    pub fn reached_device(&self) -> u64 {
        self.state_aio_wait_lat.map_or(0, |state| state.avgcount)
    }

    /// Total number of requests that the store has committed.
    pub fn committed(&self) -> u64 {
        self.state_kv_commiting_lat.map_or(0, |state| state.avgcount)
    }

    /// Total of bytes that clients wrote; `None` if the OSD does not count them.
    pub fn payload(&self) -> Option<u64> {
        Some(self.bluestore_write_big_bytes?.saturating_add(self.bluestore_write_small_bytes?))
    }

    /// Mean latency in seconds, from admission to commit, of the requests since the earlier reading `before`; `None` if no
    /// request was committed.
    pub fn latency_since(&self, before: &Self) -> Option<f64> {
        let mean = |now: Option<Average>, before: Option<Average>| now?.mean_since(before?);
        let committing = mean(self.state_kv_commiting_lat, before.state_kv_commiting_lat)?;
        let waiting = mean(self.state_aio_wait_lat, before.state_aio_wait_lat).unwrap_or(0.0);
        let queued = mean(self.state_kv_queued_lat, before.state_kv_queued_lat).unwrap_or(0.0);
        Some(waiting + queued + committing)
    }
}

/// Parses the counters of a logger in an answer to `perf dump`. Other loggers are skipped without being stored, because an
/// answer is parsed many times a second.
///
/// # Errors
/// [`Malformed::Lacks`] if the OSD has no such logger (its store is not BlueStore), [`Malformed::Json`] if the answer is not
/// JSON or a counter has another type.
pub fn parse<'de, T: Deserialize<'de>>(answer: &'de str, logger: &str) -> Result<T, Malformed> {
    let mut json = serde_json::Deserializer::from_str(answer);
    let counters = json.deserialize_map(Logger(logger, PhantomData)).and_then(|counters| json.end().map(|()| counters));
    let counters = counters.map_err(|error| Malformed::Json(format!("{logger}: {error}")))?;
    counters.ok_or_else(|| Malformed::Lacks(format!("counters of {logger}")))
}

/// Finds the logger of this name among all loggers in an answer.
struct Logger<'a, T>(&'a str, PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Logger<'_, T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("loggers with their counters")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut loggers: A) -> Result<Option<T>, A::Error> {
        let mut found = None;
        while let Some(name) = loggers.next_key::<Cow<'de, str>>()? {
            if name == self.0 {
                found = Some(loggers.next_value()?);
            } else {
                loggers.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

/// Counters of the store and of its throttle, read within milliseconds of each other.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters {
    /// Counters of the store.
    pub store: Store,
    /// Counters of the throttle of bytes in flight.
    pub bytes: Throttle,
}

impl Counters {
    /// True if no counter is below its value in `before`; otherwise the OSD was restarted, or its counters were reset.
    pub fn continue_from(&self, before: &Self) -> bool {
        self.store.committed() >= before.store.committed()
            && self.store.reached_device() >= before.store.reached_device()
            && self.bytes.get >= before.bytes.get
            && self.bytes.get_sum >= before.bytes.get_sum
            && self.bytes.put_sum >= before.bytes.put_sum
            && self.bytes.get_started >= before.bytes.get_started
            && self.bytes.wait.avgcount >= before.bytes.wait.avgcount
    }
}

#[cfg(test)]
#[path = "osd_tests.rs"]
mod tests;
