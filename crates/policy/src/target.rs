//! Latency targets of pools in the controller's words.

use evenkeel_control::pool::target as control;
use evenkeel_control::response::{self, Reason};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::{Bytes, Duration};

/// How a delay is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Each noisy tenant by its share of the load; gain learned.
    #[default]
    Adaptive,
    /// The published controller: one delay for all.
    Pid,
}

impl Method {
    /// Name as written in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Adaptive => "adaptive",
            Self::Pid => "pid",
        }
    }

    /// The published settings of the controller that has this method, for a target.
    pub const fn published(self, target: Duration) -> response::Config {
        match self {
            Self::Adaptive => response::Config::adaptive(target),
            Self::Pid => response::Config::pid(target),
        }
    }
}

/// Which load makes a tenant noisy.
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

/// Load above which a tenant or client is noisy, unless configured otherwise.
pub const fn default_noisy_above() -> Bytes {
    Bytes(256 << 10)
}

/// True if a latency target is missed although all is done for it, or nothing can be. `None`: the controller works on it, or
/// there is too little margin to call a missed target met again.
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
