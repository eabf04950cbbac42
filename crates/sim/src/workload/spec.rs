//! A client's workload, as data.

use std::sync::Arc;

use evenkeel_control::Duration;
use evenkeel_control::units::Kind;

use super::trace::Trace;

/// A client's workload; [`Workload::new`](super::Workload::new) brings it to life.
#[derive(Clone, Debug, PartialEq)]
pub enum Spec {
    /// Sends nothing.
    Idle,
    /// Sends generated requests.
    Load {
        /// When.
        pace: Pace,
        /// Which.
        requests: Requests,
    },
    /// One thing after the other. What an earlier phase has outstanding counts towards the queue depth of a later one.
    Phases {
        /// In this order.
        phases: Vec<Phase>,
        /// How often; 0 = for ever.
        times: u32,
    },
    /// Sends recorded requests again.
    Replay(Replay),
}

/// Recorded requests and how they are sent again.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    /// The recording; clients and runs share it.
    pub trace: Arc<Trace>,
    /// So many outstanding, as fast as they complete; `None` sends each at its time, whatever the device does.
    pub queue_depth: Option<u32>,
    /// How often; 0 = for ever.
    pub times: u32,
}

/// A part of a life that changes.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// How long it takes.
    pub length: Duration,
    /// The client's workload meanwhile.
    pub spec: Spec,
}

/// When requests are sent.
#[derive(Clone, Debug, PartialEq)]
pub enum Pace {
    /// The next one when one completes: a slow device is asked less often.
    Closed {
        /// Requests outstanding, together with those being thought about.
        queue_depth: u32,
        /// From a completion to the request that takes its place.
        think_time: Duration,
        /// Send only now and then.
        on_off: Option<OnOff>,
    },
    /// At a rate, whatever the device does.
    Open {
        /// Requests each second while on; above 0, at most 10⁹.
        rate_per_s: f64,
        /// How they follow each other.
        arrivals: Arrivals,
        /// Requests that arrive together, at least 1; the rate counts each of them.
        batch: u32,
        /// Send only now and then.
        on_off: Option<OnOff>,
    },
}

/// How requests (or batches of them) follow each other in an open loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    /// Independent of each other (exponential gaps), as from many users.
    #[default]
    Poisson,
    /// Evenly spaced.
    Constant,
}

/// Sends for a time, pauses for a time, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnOff {
    /// How long requests are sent; above 0.
    pub on: Duration,
    /// How long no requests are sent.
    pub off: Duration,
}

/// Which requests are sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Requests {
    /// Share of reads, 0 to 100; the others are writes.
    pub read_percent: f64,
    /// Sizes with weights; at least one.
    pub sizes: Vec<SizeShare>,
    /// Where they go.
    pub pattern: Pattern,
    /// Start of the part of the device they go to, in bytes.
    pub offset: u64,
    /// Its length, in bytes; at least the largest size.
    pub span: u64,
    /// A flush after so many writes; 0 = none.
    pub flush_every: u32,
}

/// A size and how often it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeShare {
    /// Payload, in bytes; above 0.
    pub bytes: u32,
    /// Its share, against the sum of all weights.
    pub weight: u32,
}

/// Where requests go. Offsets are multiples of the request's size, counted from the start of the part in use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pattern {
    /// Uniformly anywhere.
    Random,
    /// One after the other, around and around, in so many streams that take turns.
    Sequential {
        /// Streams, at equal distances; at least 1.
        streams: u32,
    },
    /// Ranks with probability 1/rank^`exponent`, hot blocks spread over the part in use.
    Zipf {
        /// Above 0, at most 10; the larger, the hotter the hottest.
        exponent: f64,
    },
}

impl Spec {
    /// A client that keeps `queue_depth` requests outstanding.
    pub fn closed(queue_depth: u32, requests: Requests) -> Self {
        Self::Load { pace: Pace::Closed { queue_depth, think_time: Duration::ZERO, on_off: None }, requests }
    }

    /// A client that sends `rate_per_s` independent requests a second.
    pub fn open(rate_per_s: f64, requests: Requests) -> Self {
        Self::Load { pace: Pace::Open { rate_per_s, arrivals: Arrivals::Poisson, batch: 1, on_off: None }, requests }
    }

    /// A client that sends `batch` requests at once, every `every`.
    pub fn bursts(batch: u32, every: Duration, requests: Requests) -> Self {
        let rate_per_s = f64::from(batch) / every.as_secs_f64();
        let pace = Pace::Open { rate_per_s, arrivals: Arrivals::Constant, batch, on_off: None };
        Self::Load { pace, requests }
    }
}

impl Requests {
    /// Requests of one kind (reads, or else writes) and size, anywhere in the first `span` bytes.
    pub fn random(kind: Kind, bytes: u32, span: u64) -> Self {
        Self {
            read_percent: if kind == Kind::Read { 100.0 } else { 0.0 },
            sizes: vec![SizeShare { bytes, weight: 1 }],
            pattern: Pattern::Random,
            offset: 0,
            span,
            flush_every: 0,
        }
    }
}
