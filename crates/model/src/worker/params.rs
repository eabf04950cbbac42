//! Parameters of workers.

use evenkeel_control::Duration;

use crate::jitter::Jitter;
use crate::params::{InvalidParams, check};

/// Direction of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// From the peer to the worker.
    Receive,
    /// From the worker to the peer.
    Send,
}

/// Costs of messages, and of moves of connections, at a worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkerParams {
    /// Time to receive a message, without the time for its bytes.
    pub receive_time: Duration,
    /// Rate at which a worker receives bytes, in bytes per second.
    pub receive_bytes_per_s: u64,
    /// Time to send a message, without the time for its bytes.
    pub send_time: Duration,
    /// Rate at which a worker sends bytes, in bytes per second.
    pub send_bytes_per_s: u64,
    /// Distribution of a message's time around its nominal value.
    pub jitter: Jitter,
    /// Time that moving a connection takes: from the decision, or from the end of the connection's message in service if that
    /// is later, until the new worker serves its messages.
    pub handover: Duration,
    /// Additional time of a connection's first message after a move, as the new worker's caches hold no data of the connection.
    pub move_time: Duration,
}

impl WorkerParams {
    /// A worker of `evenkeel serve` over TCP with 20 connections, queue depth 4 on each, and memory as the back end. Measured
    /// (`docs/algorithms/models.md`): 2.2 µs for a request with its reply, half of it for receiving and half for sending, and
    /// 0.15 ns per byte. Assumed: handover 20 µs, move time 5 µs, jitter ± 50 %.
    pub const fn serve() -> Self {
        Self {
            receive_time: Duration::from_nanos(1_100),
            receive_bytes_per_s: 6_700_000_000,
            send_time: Duration::from_nanos(1_100),
            send_bytes_per_s: 6_700_000_000,
            jitter: Jitter::Uniform { spread: 0.5 },
            handover: Duration::from_micros(20),
            move_time: Duration::from_micros(5),
        }
    }

    /// The parameters with all times multiplied by `factor` and all rates divided by it. If a scenario's other delays are
    /// multiplied by `factor` too, it runs the same on a slower scale of time.
    #[must_use]
    pub fn slower(&self, factor: f64) -> Self {
        let time = crate::params::faster_time(1.0 / factor);
        let rate = crate::params::faster_rate(1.0 / factor);
        Self {
            receive_time: time(self.receive_time),
            receive_bytes_per_s: rate(self.receive_bytes_per_s),
            send_time: time(self.send_time),
            send_bytes_per_s: rate(self.send_bytes_per_s),
            jitter: self.jitter,
            handover: time(self.handover),
            move_time: time(self.move_time),
        }
    }

    /// Checks that the parameters are in range.
    ///
    /// # Errors
    /// The first parameter that is wrong, with its rule.
    pub fn validate(&self) -> Result<(), InvalidParams> {
        check(&[
            (self.receive_time > Duration::ZERO, "receive_time", "greater than 0"),
            (self.send_time > Duration::ZERO, "send_time", "greater than 0"),
            (self.receive_bytes_per_s > 0, "receive_bytes_per_s", "greater than 0"),
            (self.send_bytes_per_s > 0, "send_bytes_per_s", "greater than 0"),
            (self.jitter.is_valid(), "jitter", "uniform with a spread of 0 to 1 or lognormal with a sigma of 0 to 2"),
        ])
    }

    /// Nominal time of a message of `bytes`, header included, before jitter.
    pub fn time(&self, side: Side, bytes: u32) -> Duration {
        let (base, rate) = match side {
            Side::Receive => (self.receive_time, self.receive_bytes_per_s),
            Side::Send => (self.send_time, self.send_bytes_per_s),
        };
        let nanos = u64::from(bytes) * 1_000_000_000 / rate.max(1);
        base + Duration::from_nanos(nanos)
    }
}
