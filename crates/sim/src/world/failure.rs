//! Reasons for which a run ends early, without a result.

use evenkeel_control::Instant;

use std::fmt;

/// Reason why a run has no result.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Failure {
    /// The caller stopped the run.
    #[error("cancelled at {at:?} of virtual time")]
    Cancelled {
        /// Virtual time that the run had reached.
        at: Instant,
    },
    /// The setup is invalid.
    #[error("the setup cannot run: {what}")]
    Setup {
        /// The fault and its remedy.
        what: String,
    },
    /// The run is in an endless loop: events follow each other without end at one instant of virtual time.
    #[error(
        "{source_of} keeps planning events at {at:?}: after {events} of them time does not move on; send fewer \
         requests at once, or report this with the scenario"
    )]
    Loop {
        /// The source of the last event.
        source_of: Source,
        /// The instant at which the run is stuck.
        at: Instant,
        /// Number of events at `at` so far.
        events: u64,
    },
    /// An event is due in the past, for example because its time was computed from NaN.
    #[error(
        "{source_of} says at {now:?} that its next event was at {said:?}, in the past; this is a bug, report it with \
         the scenario"
    )]
    Backward {
        /// The source of the event.
        source_of: Source,
        /// Current virtual time.
        now: Instant,
        /// The past instant at which the event is due, according to its source.
        said: Instant,
    },
    /// The number of outstanding requests grows beyond what any real system holds.
    #[error(
        "{source_of} brought the number of outstanding requests to {outstanding} at {at:?}: more arrive than the \
         device serves; lower the rate or bound the queue depth"
    )]
    Runaway {
        /// The source of the last request.
        source_of: Source,
        /// Virtual time of the last request.
        at: Instant,
        /// Number of outstanding requests.
        outstanding: usize,
    },
    /// A device completed a request that is not in flight.
    #[error(
        "{source_of} completed request {id} at {at:?}, which is not in flight; this is a bug, report it with the \
         scenario"
    )]
    Unknown {
        /// The device.
        source_of: Source,
        /// Virtual time of the completion.
        at: Instant,
        /// The unknown id that the device reported.
        id: u64,
    },
    /// A device has lost requests: requests are in flight, but the device has no next event.
    #[error(
        "{source_of} has lost requests: {in_flight} are in flight at {at:?}, and it plans no event that completes one; \
         this is a bug, report it with the scenario"
    )]
    Lost {
        /// The device.
        source_of: Source,
        /// Virtual time of the loss.
        at: Instant,
        /// Requests in flight.
        in_flight: usize,
    },
}

/// The part of a run in which a failure arose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The device, by the name of its model.
    Device(&'static str),
    /// The pool.
    Pool,
    /// The workers between clients and pool.
    Workers,
    /// A client.
    Client {
        /// Number of the client in the setup, from 0.
        index: usize,
        /// Name of the client's tenant.
        tenant: String,
    },
    /// A change of the setup, or a sample of the time series.
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
