//! The specification of a client's workload, as data.

use std::sync::Arc;

use evenkeel_control::Duration;
use evenkeel_control::units::Kind;
use evenkeel_policy::workload::{Pattern as Written, SizeMix};

use super::dependent::Dependent;
use super::trace::Trace;

/// The specification of a client's workload. [`Workload::new`](super::Workload::new) makes a running client of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Spec {
    /// The client sends no requests.
    Idle,
    /// The client sends generated requests.
    Load {
        /// The instants at which requests are sent.
        pace: Pace,
        /// Kinds, sizes and offsets of the requests.
        requests: Requests,
    },
    /// The client runs several loads one after the other. Requests still outstanding from an earlier phase count towards the
    /// queue depth of a later one.
    Phases {
        /// The phases, in order.
        phases: Vec<Phase>,
        /// Number of times that the sequence of phases is run; 0 = for ever.
        times: u32,
    },
    /// The client replays recorded requests.
    Replay(Replay),
    /// The client replays recorded requests, some of which wait for the completion of others. Not as a part of phases.
    Dependent(Arc<Dependent>),
}

/// A recording of requests, and how a client replays it.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    /// The recording, shared by clients and runs.
    pub trace: Arc<Trace>,
    /// Queue depth of a closed loop, in which a request is sent as soon as another completes; `None`: each request is sent at
    /// its recorded time, independent of completions.
    pub queue_depth: Option<u32>,
    /// Number of times that the recording is replayed; 0 = for ever.
    pub times: u32,
}

/// A phase: one of several loads that a client runs one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// Length of the phase.
    pub length: Duration,
    /// The client's load in the phase.
    pub spec: Spec,
}

/// The rule that sets the instants at which requests are sent.
#[derive(Clone, Debug, PartialEq)]
pub enum Pace {
    /// Closed loop: a request is sent when another completes, so that a slow device gets fewer requests.
    Closed {
        /// Number of requests that are outstanding or wait for the end of their think time.
        queue_depth: u32,
        /// Think time: from a completion to the sending of the next request in its place.
        think_time: Duration,
        /// Alternating times of sending and of pausing; `None`: no pauses.
        on_off: Option<OnOff>,
    },
    /// Open loop: requests are sent at a rate, independent of completions.
    Open {
        /// Requests per second of sending time (pauses left out); above 0, at most 10⁹.
        rate_per_s: f64,
        /// Distribution of the gaps between requests or batches.
        arrivals: Arrivals,
        /// Number of requests that are sent together, at least 1. The rate counts each request of a batch.
        batch: u32,
        /// Alternating times of sending and of pausing; `None`: no pauses.
        on_off: Option<OnOff>,
    },
}

/// Distribution of the gaps between requests, or batches, of an open loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    /// Exponentially distributed gaps: independent arrivals, as from many users.
    #[default]
    Poisson,
    /// Equal gaps.
    Constant,
}

/// Alternating times of sending and of pausing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnOff {
    /// Duration of a time of sending; above 0.
    pub on: Duration,
    /// Duration of a pause.
    pub off: Duration,
}

/// The requests that a client sends: kinds, sizes and offsets.
#[derive(Clone, Debug, PartialEq)]
pub struct Requests {
    /// Share of reads in per cent, 0 to 100; the other requests are writes.
    pub read_percent: f64,
    /// Sizes of requests with their weights; at least one.
    pub sizes: Vec<SizeShare>,
    /// Distribution of the requests' offsets.
    pub pattern: Pattern,
    /// Start of the device's part to which requests go, in bytes from the start of the device.
    pub offset: u64,
    /// Length of the device's part to which requests go, in bytes; at least the largest size.
    pub span: u64,
    /// Number of writes after which a flush is sent; 0 = no flushes.
    pub flush_every: u32,
}

/// A size of requests, and its share of all requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeShare {
    /// Payload of a request of this size, in bytes; above 0.
    pub bytes: u32,
    /// The size's share of the requests, relative to the sum of all weights.
    pub weight: u32,
}

/// The distribution of requests' offsets. An offset is a multiple of the request's size, counted from the start of the
/// device's part to which requests go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pattern {
    /// Uniformly distributed offsets.
    Random,
    /// Consecutive offsets in several streams, from which requests are taken in turn. After its end a stream begins again.
    Sequential {
        /// Number of streams, at least 1; their starts are equally far apart.
        streams: u32,
    },
    /// Zipf-distributed offsets: the block of rank r has a probability proportional to 1/r^`exponent`. Hot blocks are spread
    /// over the device's part to which requests go.
    Zipf {
        /// Exponent above 0, at most 10. The larger the exponent, the more requests go to the hottest block.
        exponent: f64,
    },
}

impl SizeShare {
    /// The sizes of a mix.
    pub fn all(mix: &SizeMix) -> Vec<Self> {
        // A block is far below 4 GiB.
        mix.0.iter().map(|&(bytes, weight)| Self { bytes: bytes as u32, weight }).collect()
    }
}

impl Pattern {
    /// The pattern as it is written; `streams`: number of its sequential streams.
    pub fn of(written: Written, streams: u32) -> Self {
        match written {
            Written::Random => Self::Random,
            Written::Sequential => Self::Sequential { streams },
            Written::Zipf(exponent) => Self::Zipf { exponent },
        }
    }
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
