//! Reasons that end a run before its time.

use evenkeel_control::Instant;

use std::fmt;

/// Why a run has no result.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Failure {
    /// The caller asked to stop.
    #[error("cancelled at {at:?} of virtual time")]
    Cancelled {
        /// How far it had come.
        at: Instant,
    },
    /// The setup contradicts itself.
    #[error("the setup cannot run: {what}")]
    Setup {
        /// The fault, and what would be right.
        what: String,
    },
    /// Events follow each other without time moving on.
    #[error("{source_of} keeps asking to be called at {at:?}: {events} events and time does not move on")]
    Loop {
        /// The source of the last event.
        source_of: Source,
        /// The instant that does not end.
        at: Instant,
        /// Events at this instant so far.
        events: u64,
    },
    /// Something wants to happen in the past; a time computed from NaN ends up there, too.
    #[error("{source_of} says at {now:?} that its next event was at {said:?}, in the past")]
    Backward {
        /// The source that says so.
        source_of: Source,
        /// When.
        now: Instant,
        /// The instant it named.
        said: Instant,
    },
    /// More requests are under way than any real system would hold.
    #[error(
        "{source_of} brought the requests under way to {outstanding} at {at:?}: more arrive than the device serves; \
         lower the rate or bound the queue depth"
    )]
    Runaway {
        /// The source of the last one.
        source_of: Source,
        /// When.
        at: Instant,
        /// Requests under way.
        outstanding: usize,
    },
    /// A device handed back something that it does not hold.
    #[error("{source_of} completed request {id} at {at:?}, which is not in flight")]
    Unknown {
        /// Which device.
        source_of: Source,
        /// When.
        at: Instant,
        /// The id that it handed back.
        id: u64,
    },
    /// A device has forgotten requests: some are in flight, and it waits for nothing.
    #[error("{source_of} has lost {in_flight} requests: it waits for nothing at {at:?}")]
    Lost {
        /// Which device.
        source_of: Source,
        /// When.
        at: Instant,
        /// Requests in flight.
        in_flight: usize,
    },
}

/// A part of a run that can go wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The device, by the name of its model.
    Device(&'static str),
    /// The pool.
    Pool,
    /// The workers before it.
    Workers,
    /// A client.
    Client {
        /// Its place in the setup, from 0.
        index: usize,
        /// Name of its tenant.
        tenant: String,
    },
    /// The changes of the setup and the samples of the time series.
    Setup,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(model) => write!(f, "device model `{model}`"),
            Self::Pool => f.write_str("the pool"),
            Self::Workers => f.write_str("the model of workers"),
            Self::Client { index, tenant } => write!(f, "client {index} (tenant `{tenant}`)"),
            Self::Setup => f.write_str("the schedule of changes and samples"),
        }
    }
}
