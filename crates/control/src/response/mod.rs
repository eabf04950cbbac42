//! Latency: how long to throttle a noisy client?
//!
//! On storage that is already there the queue is out of reach. What can be done is to delay what is sent back to a client,
//! so that its next request comes later. This module decides the delays: for one *pool* (a volume group, a disk)
//! it observes how long reads took and how much each client wrote, and answers how long each client is to be delayed so
//! that the mean latency of reads stays below a *target*.
//!
//! | answer | delay |
//! |---|---|
//! | [`Method::Pid`] | one for all noisy clients, by a one-sided PID controller (Bjørgeengen and Haugerud) |
//! | [`Method::Adaptive`] | by each noisy client's share of the load; gain and margin learned |
//!
//! The control interval is the caller's: call [`Controller::observe`] with what happened since the last call, then
//! [`Controller::tick`]. Ticks without a new sample repeat the decision until the signal counts as lost.
//!
//! What "load" means is the caller's too: bytes written for a throttle that delays acknowledgements, bytes read for one
//! that delays data.

pub use crate::invalid::InvalidConfig;
use alloc::boxed::Box;

pub use crate::shape::Shape;
use crate::time::{Duration, Instant};

mod adaptive;
mod clients;
mod gain;
mod pid;
mod split;
mod trial;

use adaptive::Adaptive;
pub(crate) use clients::loud_from;
use pid::Pid;
pub use pid::PidConfig;

/// A client of a pool, by whatever number its owner gives it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// The order in which a tenant is throttled for latency targets of others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Throttle {
    /// Never.
    Never,
    /// Only when throttling all others is not enough.
    Last,
    /// While it makes much of the load.
    #[default]
    Normal,
    /// However little it moves.
    Always,
}

impl Throttle {
    /// Name as written in the policy.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Last => "last",
            Self::Normal => "normal",
            Self::Always => "always",
        }
    }
}

/// One client's load in an interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClientSample {
    /// The client.
    pub client: ClientId,
    /// The order in which it is throttled. [`Method::Pid`] takes [`Throttle::Last`] as [`Throttle::Never`].
    pub throttle: Throttle,
    /// Load that the throttle slows, in bytes per second, 0 or more; what is not a number counts as 0.
    pub bytes_per_s: f64,
    /// All load of the client, in bytes per second; at least `bytes_per_s`.
    pub all_bytes_per_s: f64,
    /// Throughput of its tenant as a multiple of what higher rows of the policy owe it (a reservation, a throughput
    /// guarantee): no delay takes it below 1. Infinite if nothing is owed, or the tenant asks for nothing.
    pub paid: f64,
}

/// A pool's figures since the last sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample<'a> {
    /// Mean latency of the reads that completed; `None` when none did.
    pub read_response: Option<Duration>,
    /// Number of reads that completed; 0 counts as 1 if there is a latency.
    pub reads: u64,
    /// The clients of the pool. A client that is missing is gone; of several with one number the last counts.
    pub clients: &'a [ClientSample],
}

/// How a delay is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Method {
    /// The published controller, a one-sided PID.
    Pid(PidConfig),
    /// Ours: by the measured effect of delays, and each client's share of the load.
    Adaptive,
}

/// Settings of the controller of one pool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// How delays are chosen.
    pub method: Method,
    /// The target for the mean latency of reads (10 us to 100 s).
    pub target: Duration,
    /// How often the caller observes and ticks (1 ms to 10 s).
    pub interval: Duration,
    /// Delays are multiples of this; zero for any delay.
    pub step: Duration,
    /// Largest delay (above zero, at most 10 s, at least one step).
    pub max_delay: Duration,
    /// Load in bytes per second above which [`Method::Pid`] takes a client with a normal `throttle` for a noisy one.
    /// [`Method::Adaptive`] goes by shares of the load.
    pub noisy_bytes_per_s: u64,
}

impl Config {
    /// The adaptive method with this target; interval, step and maximum as published.
    pub const fn adaptive(target: Duration) -> Self {
        Self {
            method: Method::Adaptive,
            target,
            interval: Duration::from_millis(100),
            step: Duration::from_micros(500),
            max_delay: Duration::from_millis(20),
            noisy_bytes_per_s: 256 << 10,
        }
    }

    /// The published method with this target.
    pub const fn pid(target: Duration) -> Self {
        Self { method: Method::Pid(PidConfig::DEFAULT), ..Self::adaptive(target) }
    }

    /// Checks that the settings make sense together.
    ///
    /// # Errors
    /// The first setting that does not, and what would be right.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        let within = |d: Duration, least: Duration, most: Duration| (least..=most).contains(&d);
        InvalidConfig::check(&[
            (within(self.target, Duration::from_micros(10), Duration::from_secs(100)), "target", "from 10 us to 100 s"),
            (within(self.interval, Duration::from_millis(1), Duration::from_secs(10)), "interval", "from 1 ms to 10 s"),
            (
                within(self.max_delay, Duration::from_nanos(1), Duration::from_secs(10)),
                "max_delay",
                "above 0 and at most 10 s",
            ),
            (self.step <= self.max_delay, "step", "at most max_delay"),
        ])?;
        match &self.method {
            Method::Pid(pid) => pid.validate(),
            Method::Adaptive => Ok(()),
        }
    }

    /// The largest multiple of the step up to `most`, at least one step.
    fn largest_delay(&self, most: Duration) -> Duration {
        match self.step.as_nanos() {
            0 => most,
            step => Duration::from_nanos((most.as_nanos() / step).max(1) * step),
        }
    }
}

/// Why the delays are what they are. A target is the configured one; the adaptive method controls reads to its *set point*,
/// which lies a margin below.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Reason {
    /// No read has been seen yet: no client is known to wait.
    #[default]
    NotEnoughData,
    /// No reads for a while: none waits, and no client is throttled. The delay that held the target is remembered.
    Idle,
    /// No samples for a while: no client is throttled on old news.
    SignalLost,
    /// Reads are fast enough without a delay.
    UnderTarget {
        /// Mean latency of reads, smoothed.
        measured: Duration,
        /// The target.
        target: Duration,
    },
    /// Reads take too long, but there is no client to throttle: no client's load is above the threshold, or all are on the
    /// list of those never throttled.
    NoNoisy {
        /// Mean latency of reads, smoothed.
        measured: Duration,
        /// The target.
        target: Duration,
    },
    /// Reads take too long: the delay grows.
    ReadsOverTarget {
        /// Mean latency of reads, smoothed.
        measured: Duration,
        /// The target.
        target: Duration,
    },
    /// Reads meet the target, but not with the margin that keeps them below it, or they get slower: the delay grows.
    ReadsNearTarget {
        /// Mean latency of reads, smoothed; at most the target.
        measured: Duration,
        /// The target.
        target: Duration,
        /// The set point, which is exceeded; `None` where the target itself is the set point and reads get slower.
        set_point: Option<Duration>,
    },
    /// Reads are faster than need be: the delay shrinks.
    ReadsUnderTarget {
        /// Mean latency of reads, smoothed.
        measured: Duration,
        /// The target.
        target: Duration,
    },
    /// The delay was changed just now, and what is measured is not its effect yet.
    AwaitingEffect {
        /// The target.
        target: Duration,
    },
    /// These noisy clients were throttled before: their delay is in force again.
    KnownBurst {
        /// The delay that held, a mean weighted by load.
        held: Duration,
    },
    /// Every noisy client is throttled as far as allowed: that is enough for the target, not for the margin below it.
    AtLargestDelay {
        /// Mean latency of reads, smoothed; above the set point, at most the target.
        measured: Duration,
        /// The target.
        target: Duration,
    },
    /// Every noisy client is throttled as far as allowed, and reads still exceed the target: it is out of reach.
    Unachievable {
        /// Mean latency of reads, smoothed.
        measured: Duration,
        /// The target.
        target: Duration,
    },
    /// Reads exceed the set point although all are throttled as far as allowed, and what that does is not known: for some
    /// seconds the delay is lifted and put back in force in turn.
    TestingEffect {
        /// The delay that is tried, a mean weighted by load.
        delay: Duration,
    },
    /// A trial showed that the delay changes neither load nor latency: the throttle is ineffective (acknowledgements
    /// that travel on data, an uncapped receive window). Delay everything that is sent to these clients, or cap the
    /// window. The delay is released. At most 1 in 1,000 trials says so wrongly.
    Ineffective {
        /// The delay that does nothing, a mean weighted by load.
        delay: Duration,
    },
}

impl Reason {
    /// Name as shown to people and programs.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::NotEnoughData => "not_enough_data",
            Self::Idle => "idle",
            Self::SignalLost => "signal_lost",
            Self::UnderTarget { .. } => "under_target",
            Self::NoNoisy { .. } => "no_noisy",
            Self::ReadsOverTarget { .. } => "reads_over_target",
            Self::ReadsNearTarget { .. } => "reads_near_target",
            Self::ReadsUnderTarget { .. } => "reads_under_target",
            Self::AwaitingEffect { .. } => "awaiting_effect",
            Self::KnownBurst { .. } => "known_burst",
            Self::AtLargestDelay { .. } => "at_largest_delay",
            Self::Unachievable { .. } => "unachievable",
            Self::TestingEffect { .. } => "testing_effect",
            Self::Ineffective { .. } => "ineffective",
        }
    }

    /// The measured figure, smoothed, and the target, where the reason has them.
    pub const fn figures(&self) -> (Option<Duration>, Option<Duration>) {
        match *self {
            Self::UnderTarget { measured, target }
            | Self::NoNoisy { measured, target }
            | Self::ReadsOverTarget { measured, target }
            | Self::ReadsNearTarget { measured, target, .. }
            | Self::ReadsUnderTarget { measured, target }
            | Self::AtLargestDelay { measured, target }
            | Self::Unachievable { measured, target } => (Some(measured), Some(target)),
            Self::AwaitingEffect { target } => (None, Some(target)),
            Self::NotEnoughData
            | Self::Idle
            | Self::SignalLost
            | Self::KnownBurst { .. }
            | Self::TestingEffect { .. }
            | Self::Ineffective { .. } => (None, None),
        }
    }
}

/// Why a client's delay is what it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ClientReason {
    /// All noisy clients have the same delay.
    SameForAll,
    /// By its share of the noisy clients' load.
    ShareOfLoad {
        /// The client's share, from 0 to 1.
        share: f32,
    },
    /// With a longer delay a request would wait longer than allowed.
    LongestWait,
    /// With a longer delay the client's tenant would get less than its reservation or throughput guarantee, which win.
    Owed,
    /// The delay is the largest that is allowed.
    LargestDelay,
}

/// A client that is throttled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClientDelay {
    /// The client.
    pub client: ClientId,
    /// How long what is sent to it is delayed; above zero, a multiple of the step, at most the maximum.
    pub delay: Duration,
    /// Why the delay is so long.
    pub reason: ClientReason,
}

/// The delays until the next decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision<'a> {
    /// Why the delays are what they are.
    pub reason: Reason,
    /// Mean delay of the noisy clients, weighted by their load.
    pub mean_delay: Duration,
    /// The throttled clients in order of number; no other client is throttled.
    pub delays: &'a [ClientDelay],
}

/// The controller of one pool.
pub struct Controller {
    config: Config,
    inner: Inner,
    /// When the last sample came.
    sampled_at: Option<Instant>,
    /// True if a sample has come since the last tick.
    fresh: bool,
}

enum Inner {
    Pid(Box<Pid>),
    Adaptive(Box<Adaptive>),
}

impl Controller {
    /// A controller that throttles no client yet.
    ///
    /// # Errors
    /// The first setting that makes no sense.
    pub fn new(config: &Config) -> Result<Self, InvalidConfig> {
        config.validate()?;
        let inner = match &config.method {
            Method::Pid(pid) => Inner::Pid(Box::new(Pid::new(config, pid))),
            Method::Adaptive => Inner::Adaptive(Box::new(Adaptive::new(config))),
        };
        Ok(Self { config: *config, inner, sampled_at: None, fresh: false })
    }

    /// Takes what happened since the last sample. O(clients · log clients).
    pub fn observe(&mut self, now: Instant, sample: &Sample<'_>) {
        // The first sample is about an interval of unknown beginning.
        let length = self.sampled_at.map_or(self.config.interval, |before| now.since(before));
        match &mut self.inner {
            Inner::Pid(pid) => pid.observe(now, sample),
            Inner::Adaptive(adaptive) => adaptive.observe(length, sample),
        }
        self.sampled_at = Some(now);
        self.fresh = true;
    }

    /// Decides. Without a new sample the last decision stands until the signal counts as lost.
    pub fn tick(&mut self, now: Instant) -> Decision<'_> {
        self.decide(now);
        self.decision()
    }

    fn decision(&self) -> Decision<'_> {
        match &self.inner {
            Inner::Pid(pid) => pid.decision(),
            Inner::Adaptive(adaptive) => adaptive.decision(),
        }
    }

    fn decide(&mut self, now: Instant) {
        let patience = Duration::from_nanos(self.config.interval.as_nanos().saturating_mul(gain::PATIENCE as u64));
        let lost = !self.fresh && self.sampled_at.is_some_and(|at| now.since(at) > patience);
        let fresh = core::mem::take(&mut self.fresh);
        match &mut self.inner {
            Inner::Pid(pid) => {
                if fresh {
                    pid.decide(now);
                } else if lost {
                    pid.signal_lost();
                }
            }
            Inner::Adaptive(adaptive) => {
                if lost {
                    adaptive.release(Reason::SignalLost);
                }
            }
        }
    }

    /// The throttle works in another way from now on (other packets are delayed): what was learned about the effect of a
    /// delay is void. The published method has learned nothing.
    pub fn throttle_changed(&mut self) {
        if let Inner::Adaptive(adaptive) = &mut self.inner {
            adaptive.throttle_changed();
        }
    }

    /// Bounds delays from the next decision on: by the configured maximum, or by less while longer delays do harm. Rounded
    /// down to a multiple of the step, at least one step.
    pub fn limit_delay(&mut self, most: Duration) {
        let most = self.config.largest_delay(most);
        match &mut self.inner {
            Inner::Pid(pid) => pid.limit_delay(most),
            Inner::Adaptive(adaptive) => adaptive.limit_delay(most),
        }
    }

    /// True if a client was noisy at the last decision: its reads wait behind its own requests.
    pub fn is_noisy(&self, client: ClientId) -> bool {
        match &self.inner {
            Inner::Pid(pid) => pid.is_noisy(client),
            Inner::Adaptive(adaptive) => adaptive.clients.is_noisy(client),
        }
    }

    /// Changes the target from the next decision on. State that was learned stays.
    ///
    /// # Errors
    /// When the target makes no sense; the old target stays.
    pub fn set_target(&mut self, target: Duration) -> Result<(), InvalidConfig> {
        Config::adaptive(target).validate()?;
        match &mut self.inner {
            Inner::Pid(pid) => pid.set_target(target),
            Inner::Adaptive(adaptive) => adaptive.set_target(target),
        }
        Ok(())
    }
}

/// Milliseconds to a duration; what is negative or not a number is zero.
fn from_ms(ms: f64) -> Duration {
    Duration::from_nanos((ms * 1e6) as u64)
}

/// The whole number at or below `x`, which is 0 or more and below 2^53. Exact, and without the detours of libm: it is asked for
/// every client at every tick.
fn whole(x: f64) -> f64 {
    x as i64 as f64
}

/// The whole number nearest to `x`, halves upwards; `x` is 0 or more and below 2^53.
fn nearest(x: f64) -> f64 {
    let below = whole(x);
    if x - below >= 0.5 { below + 1.0 } else { below }
}
