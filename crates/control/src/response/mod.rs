//! Latency: how long to throttle a noisy client?
//!
//! The queue of storage that is served by another program cannot be reordered. But answers to a client can be delayed, so that
//! its next request comes later. This module decides the delays: for one *pool* (a volume group, a disk) it takes the latency
//! of reads and the load of each client, and returns the delay of each client, so that the mean latency of reads stays
//! below a *target*.
//!
//! | method | delay |
//! |---|---|
//! | [`Method::Pid`] | one for all noisy clients, by a one-sided PID controller (Bjørgeengen and Haugerud) |
//! | [`Method::Adaptive`] | by each noisy client's share of the load; gain and margin learned |
//!
//! The caller chooses the control interval: call [`Controller::observe`] with the figures since the previous call, then
//! [`Controller::tick`]. Ticks without a new sample repeat the decision until the signal counts as lost.
//!
//! The caller also chooses which bytes are "load": bytes written for a throttle that delays acknowledgements, bytes read for
//! one that delays data.

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

/// A number that identifies a client of a pool; the caller chooses it.
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

crate::named!(Throttle: Never "never", Last "last", Normal "normal", Always "always");

/// One client's load since the pool's previous sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ClientSample {
    /// The client.
    pub client: ClientId,
    /// The order in which the client is throttled. [`Method::Pid`] takes [`Throttle::Last`] as [`Throttle::Never`].
    pub throttle: Throttle,
    /// Load that the throttle slows, in bytes per second, 0 or more; NaN counts as 0.
    pub bytes_per_s: f64,
    /// All load of the client, in bytes per second; at least `bytes_per_s`.
    pub all_bytes_per_s: f64,
    /// All load that the client would have without a throttle, in bytes per second; less than `all_bytes_per_s` counts as that.
    /// It decides who is noisy, so that the throttle itself neither ends that a client counts as noisy nor makes another noisy.
    pub freed_bytes_per_s: f64,
    /// True if the client reads at present. While any client is known to read, at least one that reads is not noisy, because
    /// the reads of noisy clients wait behind their own requests. False for all clients if it is not known who reads.
    pub reads: bool,
    /// Throughput of the client's tenant divided by its reservation or throughput guarantee, which take precedence over
    /// latency targets: no delay takes this ratio below 1. Infinite if the tenant has neither, or asks for nothing.
    pub paid: f64,
}

/// A pool's figures since its previous sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample<'a> {
    /// Mean latency of the reads that completed; `None` when no read did.
    pub read_response: Option<Duration>,
    /// Number of reads that completed; 0 counts as 1 if there is a latency.
    pub reads: u64,
    /// The clients of the pool, each once. A client that is missing is forgotten.
    pub clients: &'a [ClientSample],
}

/// The method by which delays are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Method {
    /// The published controller, a one-sided PID.
    Pid(PidConfig),
    /// Evenkeel's own controller: by the measured effect of delays, and each client's share of the load.
    Adaptive,
}

/// Settings of the controller of one pool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// The method by which delays are chosen.
    pub method: Method,
    /// The target for the mean latency of reads (10 us to 100 s).
    pub target: Duration,
    /// Time between two calls of [`Controller::tick`] (1 ms to 10 s).
    pub interval: Duration,
    /// All delays are multiples of this; zero allows any delay.
    pub step: Duration,
    /// Largest delay (above zero, at most 10 s, at least one step).
    pub max_delay: Duration,
    /// Load in bytes per second above which [`Method::Pid`] takes a client with a normal `throttle` for a noisy one.
    /// [`Method::Adaptive`] ignores it, and goes by shares of the load.
    pub noisy_bytes_per_s: u64,
}

impl Config {
    /// The adaptive method with this target; interval, step and largest delay are those published for [`Method::Pid`].
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
    /// The first setting that does not make sense, and its required value.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        let targets = Duration::from_micros(10)..=Duration::from_secs(100);
        let longest = Duration::from_secs(10);
        InvalidConfig::check(&[
            (targets.contains(&self.target), "target", "from 10 us to 100 s"),
            ((Duration::from_millis(1)..=longest).contains(&self.interval), "interval", "from 1 ms to 10 s"),
            (!self.max_delay.is_zero() && self.max_delay <= longest, "max_delay", "above 0 and at most 10 s"),
            (self.step <= self.max_delay, "step", "at most max_delay"),
        ])?;
        match &self.method {
            Method::Pid(pid) => pid.validate(),
            Method::Adaptive => Ok(()),
        }
    }

    /// The largest delay up to `most` that is a multiple of [`Self::step`]; at least one step.
    fn largest_delay(&self, most: Duration) -> Duration {
        match self.step.as_nanos() {
            0 => most,
            step => Duration::from_nanos((most.as_nanos() / step).max(1) * step),
        }
    }
}

/// Reason for the present delays. The target is the configured mean latency of reads; the adaptive method controls reads to
/// its *set point*, which lies a margin below the target.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Reason {
    /// No read has been seen yet: no client is known to wait.
    #[default]
    NotEnoughData,
    /// No read completed for a while: no read waits, and no client is throttled. The delay that held the target is remembered.
    Idle,
    /// No sample came for more than ten intervals: no client is throttled by outdated figures.
    SignalLost,
    /// Reads are fast enough without a delay.
    UnderTarget {
        /// Mean latency of reads, smoothed.
        measured: Duration,
        /// The target.
        target: Duration,
    },
    /// Reads take too long, but there is no client to throttle: none is noisy at the moment, or all are configured never to
    /// be throttled.
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
        /// The set point, which reads exceed; `None` with [`Method::Pid`], which controls to the target itself.
        set_point: Option<Duration>,
    },
    /// Reads are faster than the target needs: the delay shrinks.
    ReadsUnderTarget {
        /// Mean latency of reads, smoothed.
        measured: Duration,
        /// The target.
        target: Duration,
    },
    /// The delay was changed just now, and measured latencies do not show the effect yet.
    AwaitingEffect {
        /// The target.
        target: Duration,
    },
    /// Clients are noisy again: the delay that held the target before is in force again.
    KnownBurst {
        /// The mean delay, weighted by load, that held the target before.
        held: Duration,
    },
    /// Every noisy client is throttled as far as allowed: reads meet the target, but not the margin below it.
    AtLargestDelay {
        /// Mean latency of reads, smoothed; above the set point, at most the target.
        measured: Duration,
        /// The target.
        target: Duration,
    },
    /// Every noisy client is throttled as far as allowed, and reads still exceed the target: it is unachievable.
    Unachievable {
        /// Mean latency of reads, smoothed.
        measured: Duration,
        /// The target.
        target: Duration,
    },
    /// Reads exceed the set point although all noisy clients are throttled as far as allowed, and the effect of the throttle
    /// is not known: in a trial of some seconds the delay is lifted and restored in turn.
    TestingEffect {
        /// The mean delay, weighted by load, that is tried.
        delay: Duration,
    },
    /// A trial showed that the delay changes neither load nor latency: the throttle is ineffective (acknowledgements
    /// that travel on data, an uncapped receive window), and the delay is released. The remedy is to delay all packets to
    /// the clients, or to cap the window. At most 1 in 1,000 trials of an effective throttle ends so.
    Ineffective {
        /// The mean delay, weighted by load, that had no effect.
        delay: Duration,
    },
}

impl Reason {
    /// The reason's name in logs, metrics and API answers.
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

    /// The smoothed mean latency of reads, and its target, where the reason has them.
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

/// Reason for a client's delay.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum ClientReason {
    /// All noisy clients have the same delay.
    #[default]
    SameForAll,
    /// The delay is in proportion to the client's share of the noisy clients' load.
    ShareOfLoad {
        /// The client's share of the noisy clients' load, from 0 to 1.
        share: f32,
    },
    /// With a longer delay a request would wait longer than [`Config::max_delay`].
    LongestWait,
    /// With a longer delay the client's tenant would get less than its reservation or throughput guarantee, which take
    /// precedence over latency targets.
    Owed,
    /// The delay is the largest that is allowed.
    LargestDelay,
}

/// The delay of one throttled client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClientDelay {
    /// The client.
    pub client: ClientId,
    /// Time by which answers to the client are delayed; above zero, a multiple of [`Config::step`], at most
    /// [`Config::max_delay`].
    pub delay: Duration,
    /// Reason for the length of the delay.
    pub reason: ClientReason,
}

/// The delays of a pool's clients until the next decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision<'a> {
    /// Reason for the present delays.
    pub reason: Reason,
    /// Mean delay of the noisy clients, weighted by their load.
    pub mean_delay: Duration,
    /// The throttled clients in order of number; no other client is throttled.
    pub delays: &'a [ClientDelay],
}

/// Controls the delays of one pool's clients, so that the mean latency of the pool's reads stays below a target.
pub struct Controller {
    config: Config,
    inner: Inner,
    /// Time of the latest sample; `None` before the first.
    sampled_at: Option<Instant>,
    /// True if a sample has come since the latest call of [`Self::tick`].
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
    /// The first setting that is out of range.
    pub fn new(config: &Config) -> Result<Self, InvalidConfig> {
        config.validate()?;
        let inner = match &config.method {
            Method::Pid(pid) => Inner::Pid(Box::new(Pid::new(config, pid))),
            Method::Adaptive => Inner::Adaptive(Box::new(Adaptive::new(config))),
        };
        Ok(Self { config: *config, inner, sampled_at: None, fresh: false })
    }

    /// Takes the pool's figures since the previous sample. O(clients · log clients).
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

    /// Decides the delays. Without a new sample the previous decision stands for ten intervals; after that the signal counts
    /// as lost, and no client is delayed.
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

    /// Notes that the throttle works in another way from now on (for example, other packets are delayed): the learned effect
    /// of delays is forgotten. [`Method::Pid`] learns no effect, and stays as it is.
    pub fn throttle_changed(&mut self) {
        if let Inner::Adaptive(adaptive) = &mut self.inner {
            adaptive.throttle_changed();
        }
    }

    /// Notes that the caller has put a shorter delay in force for a client than the decided one, until the next decision: trials
    /// and the learned effect are about delays in force. [`Method::Pid`] has neither, and stays as it is.
    pub fn shorten_delay(&mut self, client: ClientId, delay: Duration) {
        if let Inner::Adaptive(adaptive) = &mut self.inner {
            adaptive.clients.set_delay(client, delay);
        }
    }

    /// Bounds delays from the next decision on by `most`: the configured maximum, or less while longer delays do harm. `most`
    /// is rounded down to a multiple of [`Config::step`], but to at least one step.
    pub fn limit_delay(&mut self, most: Duration) {
        let most = self.config.largest_delay(most);
        match &mut self.inner {
            Inner::Pid(pid) => pid.limit_delay(most),
            Inner::Adaptive(adaptive) => adaptive.limit_delay(most),
        }
    }

    /// True if the client was noisy at the latest decision. The reads of a noisy client wait behind its own requests.
    pub fn is_noisy(&self, client: ClientId) -> bool {
        match &self.inner {
            Inner::Pid(pid) => pid.is_noisy(client),
            Inner::Adaptive(adaptive) => adaptive.clients.is_noisy(client),
        }
    }

    /// Changes the target from the next decision on. State that was learned stays.
    ///
    /// # Errors
    /// When a setting of the target is out of range; the old target stays.
    pub fn set_target(&mut self, target: Duration) -> Result<(), InvalidConfig> {
        Config::adaptive(target).validate()?;
        match &mut self.inner {
            Inner::Pid(pid) => pid.set_target(target),
            Inner::Adaptive(adaptive) => adaptive.set_target(target),
        }
        Ok(())
    }
}

/// Converts milliseconds to a duration; a negative value and NaN give zero.
fn from_ms(ms: f64) -> Duration {
    Duration::from_nanos((ms * 1e6) as u64)
}

/// The largest whole number up to `x`, which is 0 or more and below 2^53. Exact, and faster than libm's `floor`, because it is
/// needed for each client at each tick.
fn whole(x: f64) -> f64 {
    x as i64 as f64
}

/// The whole number nearest to `x`, halves upwards; `x` is 0 or more and below 2^53.
fn nearest(x: f64) -> f64 {
    let below = whole(x);
    if x - below >= 0.5 { below + 1.0 } else { below }
}
