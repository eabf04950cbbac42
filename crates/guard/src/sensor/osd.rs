//! The counters of a Ceph OSD: how long its store takes, how much it took in, and whether requests wait at its
//! throttle.
//!
//! Its own `commit_lat` includes the wait at the throttle, which is ours to choose; so the store's latency is put together
//! from the states that follow it. There is no smallest latency among the counters: the smallest mean over short times takes
//! its place.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};

use crate::admin_socket::Malformed;

/// The logger of the store.
pub const STORE: &str = "bluestore";
/// The logger of what may be inside the store.
pub const BYTES: &str = "throttle-bluestore_throttle_bytes";
/// The logger of what may be inside or wait to be written in place.
pub const DEFERRED: &str = "throttle-bluestore_throttle_deferred_bytes";

/// A running mean: how many, and their sum in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub struct Average {
    /// How many.
    pub avgcount: u64,
    /// Their sum in seconds.
    pub sum: f64,
}

impl Average {
    /// Mean in seconds of what came since `before`; `None` if nothing did.
    pub fn mean_since(self, before: Self) -> Option<f64> {
        let count = self.avgcount.checked_sub(before.avgcount).filter(|&count| count > 0)?;
        Some(((self.sum - before.sum) / count as f64).max(0.0))
    }
}

/// The store's counters that are used; the rest of the answer is passed over. `None` where a version does not have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub struct Store {
    /// Waiting for the device.
    pub state_aio_wait_lat: Option<Average>,
    /// Waiting for the commit before.
    pub state_kv_queued_lat: Option<Average>,
    /// Being committed. (Ceph spells it in this way.)
    #[serde(alias = "state_kv_committing_lat")]
    pub state_kv_commiting_lat: Option<Average>,
    /// Bytes written to new places. Later versions have no prefix.
    #[serde(alias = "write_big_bytes")]
    pub bluestore_write_big_bytes: Option<u64>,
    /// Bytes written otherwise.
    #[serde(alias = "write_small_bytes")]
    pub bluestore_write_small_bytes: Option<u64>,
}

/// A throttle's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub struct Throttle {
    /// Cost in flight, in bytes.
    pub val: u64,
    /// Cost that may be in flight, in bytes.
    pub max: u64,
    /// Requests that came.
    pub get_started: u64,
    /// Requests that were admitted.
    pub get: u64,
    /// Their cost in bytes.
    pub get_sum: u64,
    /// Cost given back, in bytes.
    pub put_sum: u64,
    /// Waits of the requests that waited.
    pub wait: Average,
}

impl Throttle {
    /// Requests that wait now. Those that are admitted without waiting for it are counted in `get` alone, so this is for the
    /// throttle of all bytes only.
    pub const fn waiting(&self) -> u64 {
        self.get_started.saturating_sub(self.get)
    }
}

/// The features by the counters that an OSD has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// How long the store takes and how many requests it ends: without it nothing can be decided.
    pub latency: bool,
    /// Bytes that clients write: without it the cost stands for them.
    pub payload: bool,
}

impl Store {
    /// The features by these counters.
    pub const fn features(&self) -> Features {
        Features {
            latency: self.state_aio_wait_lat.is_some()
                && self.state_kv_queued_lat.is_some()
                && self.state_kv_commiting_lat.is_some(),
            payload: self.bluestore_write_big_bytes.is_some() && self.bluestore_write_small_bytes.is_some(),
        }
    }

    /// Requests that have waited for the device, or had no need to.
    pub fn reached_device(&self) -> u64 {
        self.state_aio_wait_lat.map_or(0, |state| state.avgcount)
    }

    /// Requests that the store has committed.
    pub fn committed(&self) -> u64 {
        self.state_kv_commiting_lat.map_or(0, |state| state.avgcount)
    }

    /// Bytes that clients wrote, if the OSD counts them.
    pub fn payload(&self) -> Option<u64> {
        Some(self.bluestore_write_big_bytes?.saturating_add(self.bluestore_write_small_bytes?))
    }

    /// Mean latency in seconds, from admission to commit, of what passed since `before`; `None` if nothing
    /// was committed.
    pub fn latency_since(&self, before: &Self) -> Option<f64> {
        let mean = |now: Option<Average>, before: Option<Average>| now?.mean_since(before?);
        let committing = mean(self.state_kv_commiting_lat, before.state_kv_commiting_lat)?;
        let waiting = mean(self.state_aio_wait_lat, before.state_aio_wait_lat).unwrap_or(0.0);
        let queued = mean(self.state_kv_queued_lat, before.state_kv_queued_lat).unwrap_or(0.0);
        Some(waiting + queued + committing)
    }
}

/// The counters of a logger in an answer to `perf dump`. Those that are not wanted are passed over and never stored: this is
/// done many times a second.
///
/// # Errors
/// [`Malformed::Lacks`] if the OSD has no such logger (its store is not BlueStore), [`Malformed::Json`] if the answer is not
/// JSON or a counter is of another kind.
pub fn parse<'de, T: Deserialize<'de>>(answer: &'de str, logger: &str) -> Result<T, Malformed> {
    let mut json = serde_json::Deserializer::from_str(answer);
    let counters = json.deserialize_map(Logger(logger, PhantomData)).and_then(|counters| json.end().map(|()| counters));
    let counters = counters.map_err(|error| Malformed::Json(format!("{logger}: {error}")))?;
    counters.ok_or_else(|| Malformed::Lacks(format!("counters of {logger}")))
}

/// Finds one logger among those in an answer.
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

/// Both loggers at about the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters {
    /// The store.
    pub store: Store,
    /// The bytes that may be in flight.
    pub bytes: Throttle,
}

impl Counters {
    /// True if these counters continue those; otherwise the OSD was started anew, or they were reset.
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
