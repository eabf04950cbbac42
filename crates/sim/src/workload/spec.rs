//! A client's workload, as data.

use std::sync::Arc;

use evenkeel_control::Duration;
use evenkeel_control::units::Kind;

use super::trace::Trace;

/// A client's workload as data; [`Workload::new`](super::Workload::new) makes it run.
#[derive(Clone, Debug, PartialEq)]
pub enum Spec {
    /// Sends nothing.
    Idle,
    /// Sends generated requests.
    Load {
        /// When requests are sent.
        pace: Pace,
        /// Which requests are sent.
        requests: Requests,
    },
    /// Sends several loads after each other. Requests still outstanding from an earlier phase count towards the queue
    /// depth of a later one.
    Phases {
        /// The phases, in order.
        phases: Vec<Phase>,
        /// Number of times that all phases are played; 0 = for ever.
        times: u32,
    },
    /// Replays recorded requests.
    Replay(Replay),
}

/// A recording, and how it is replayed.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    /// The recording; clients and runs share it.
    pub trace: Arc<Trace>,
    /// Requests outstanding, each sent as soon as another completes; `None` sends each at its recorded time, whatever
    /// the device does.
    pub queue_depth: Option<u32>,
    /// Number of times that the recording is replayed; 0 = for ever.
    pub times: u32,
}

/// One of several loads that follow each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// Length of the phase.
    pub length: Duration,
    /// The client's load in the phase.
    pub spec: Spec,
}

/// When requests are sent.
#[derive(Clone, Debug, PartialEq)]
pub enum Pace {
    /// Closed loop: a request is sent when another completes, so that a slow device gets fewer requests.
    Closed {
        /// Requests outstanding, together with those in their think time.
        queue_depth: u32,
        /// Think time: from a completion to the request that takes its place.
        think_time: Duration,
        /// Times of sending and of pausing; `None`: no pauses.
        on_off: Option<OnOff>,
    },
    /// Open loop: requests are sent at a rate, whatever the device does.
    Open {
        /// Requests per second of on-time; above 0, at most 10⁹.
        rate_per_s: f64,
        /// Distribution of the gaps between requests or batches.
        arrivals: Arrivals,
        /// Requests that arrive together, at least 1; the rate counts each of them.
        batch: u32,
        /// Times of sending and of pausing; `None`: no pauses.
        on_off: Option<OnOff>,
    },
}

/// Distribution of the gaps between requests, or batches, of an open loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    /// Independent of each other (exponential gaps), as from many users.
    #[default]
    Poisson,
    /// Evenly spaced.
    Constant,
}

/// Alternating times of sending and of pausing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnOff {
    /// Length of a time of sending; above 0.
    pub on: Duration,
    /// Length of a pause.
    pub off: Duration,
}

/// Which requests are sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Requests {
    /// Share of reads in per cent, 0 to 100; the other requests are writes.
    pub read_percent: f64,
    /// Sizes with weights; at least one.
    pub sizes: Vec<SizeShare>,
    /// Their offsets.
    pub pattern: Pattern,
    /// Start of the part of the device that they go to, in bytes.
    pub offset: u64,
    /// Length of that part, in bytes; at least the largest size.
    pub span: u64,
    /// Writes after which a flush is sent; 0 = no flushes.
    pub flush_every: u32,
}

/// A size and how often it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeShare {
    /// Payload, in bytes; above 0.
    pub bytes: u32,
    /// The size's share of the requests, relative to the sum of all weights.
    pub weight: u32,
}

/// The offsets of requests. They are multiples of the request's size, counted from the start of the part in use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pattern {
    /// Uniformly distributed.
    Random,
    /// Consecutive, from the start again after the end, in several streams that take turns.
    Sequential {
        /// Number of streams, whose starts are equally far apart; at least 1.
        streams: u32,
    },
    /// Zipf-distributed: the block of rank r has a probability proportional to 1/r^`exponent`. Hot blocks are spread
    /// over the part in use.
    Zipf {
        /// Exponent above 0, at most 10; the larger, the more requests go to the hottest block.
        exponent: f64,
    },
}

impl Spec {
    /// A client that keeps `queue_depth` requests outstanding, without think time.
    pub fn closed(queue_depth: u32, requests: Requests) -> Self {
        Self::Load { pace: Pace::Closed { queue_depth, think_time: Duration::ZERO, on_off: None }, requests }
    }

    /// A client that sends `rate_per_s` requests per second at independent random times.
    pub fn open(rate_per_s: f64, requests: Requests) -> Self {
        Self::Load { pace: Pace::Open { rate_per_s, arrivals: Arrivals::Poisson, batch: 1, on_off: None }, requests }
    }

    /// A client that sends `batch` requests at once, one batch every `every`.
    pub fn bursts(batch: u32, every: Duration, requests: Requests) -> Self {
        let rate_per_s = f64::from(batch) / every.as_secs_f64();
        let pace = Pace::Open { rate_per_s, arrivals: Arrivals::Constant, batch, on_off: None };
        Self::Load { pace, requests }
    }
}

impl Requests {
    /// Requests of one kind (reads or writes) and one size in bytes, uniformly distributed over the first `span` bytes.
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
