//! What clients ask: generators and traces.

use evenkeel_control::Instant;
use evenkeel_control::rng::SplitMix64;
use evenkeel_control::units::Kind;
use evenkeel_model::Io;

/// The next step of a client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Next {
    /// Send this now; ask again at once.
    Issue(Io),
    /// Nothing to send before this instant; ask again then, or after a completion.
    At(Instant),
    /// Nothing to send before one of its requests completes.
    Completion,
    /// Nothing more to send, ever.
    End,
}

/// What a client does, as written down; [`Workload::new`] brings it to life.
#[derive(Clone, Debug, PartialEq)]
pub enum Spec {
    /// Keeps `queue_depth` requests outstanding.
    Closed {
        /// Requests outstanding.
        queue_depth: u32,
        /// Read or write.
        kind: Kind,
        /// Payload of each, in bytes.
        bytes: u32,
        /// Bytes of the device that random offsets cover.
        span: u64,
    },
}

/// One client at work.
#[derive(Debug)]
pub struct Workload {
    spec: Spec,
    rng: SplitMix64,
    outstanding: u32,
}

impl Workload {
    /// A client that has sent nothing yet.
    pub fn new(spec: &Spec, seed: u64) -> Self {
        Self { spec: spec.clone(), rng: SplitMix64::new(seed), outstanding: 0 }
    }

    /// What the client does at `now`.
    pub fn next(&mut self, _now: Instant) -> Next {
        let Spec::Closed { queue_depth, kind, bytes, span } = self.spec;
        if self.outstanding == queue_depth {
            return Next::Completion;
        }
        self.outstanding += 1;
        let offset = self.rng.next_below(span / u64::from(bytes.max(1))) * u64::from(bytes);
        Next::Issue(Io { kind, offset, bytes })
    }

    /// One of its requests has completed.
    pub fn complete(&mut self, _now: Instant) {
        self.outstanding -= 1;
    }
}
