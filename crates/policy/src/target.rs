//! The method that enforces a pool's latency target, and its conversion to the controller's settings.

use evenkeel_control::pool::target as control;
use evenkeel_control::response::{self, Reason};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::{Bytes, Duration};

/// The method by which a delay is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Each noisy tenant by its share of the load; gain learned.
    #[default]
    Adaptive,
    /// The published controller: one delay for all.
    Pid,
}

evenkeel_control::named!(Method: Adaptive "adaptive", Pid "pid");

impl Method {
    /// The default settings of the controller with this method, for a latency target.
    pub const fn published(self, target: Duration) -> response::Config {
        match self {
            Self::Adaptive => response::Config::adaptive(target),
            Self::Pid => response::Config::pid(target),
        }
    }
}

/// The load that makes a tenant noisy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Noisy {
    /// Bytes written.
    #[default]
    Writers,
    /// Bytes read.
    Readers,
    /// Both together.
    All,
}

impl From<Noisy> for control::Load {
    fn from(noisy: Noisy) -> Self {
        match noisy {
            Noisy::Writers => Self::Writes,
            Noisy::Readers => Self::Reads,
            Noisy::All => Self::All,
        }
    }
}

/// The default load, in bytes per second, above which a tenant or client counts as noisy.
pub const fn default_noisy_above() -> Bytes {
    Bytes(256 << 10)
}

/// True if a latency target is missed although the controller has done everything, or can do nothing. False if it is met. `None`
/// if the controller still works on it, or the margin is too small to call a missed target met again.
pub const fn is_missed(reason: &Reason) -> Option<bool> {
    match reason {
        Reason::NoNoisy { .. } | Reason::Unachievable { .. } | Reason::Ineffective { .. } => Some(true),
        Reason::ReadsOverTarget { .. }
        | Reason::ReadsNearTarget { .. }
        | Reason::AtLargestDelay { .. }
        | Reason::AwaitingEffect { .. }
        | Reason::KnownBurst { .. }
        | Reason::TestingEffect { .. } => None,
        Reason::NotEnoughData
        | Reason::Idle
        | Reason::SignalLost
        | Reason::UnderTarget { .. }
        | Reason::ReadsUnderTarget { .. } => Some(false),
    }
}
