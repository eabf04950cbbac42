//! A goal for the response time of reads: how it is written, and how its decisions are told.
//!
//! `evenkeel serve` has such goals on pools, `evenkeel guard` on resources, in the same words.

use evenkeel_control::Duration as ControlDuration;
use evenkeel_control::pool::goal as control;
use evenkeel_control::response::{self, ClientReason, Reason};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::Pool;
use crate::units::Bytes;

/// How often a pool's goal is measured and decided, at most.
const SHORTEST_INTERVAL: ControlDuration = ControlDuration::from_millis(100);
/// An interval in goals: what is measured in one should have begun in it.
const INTERVAL_GOALS: u64 = 2;

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
}

/// Which load makes a tenant noisy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Noisy {
    /// What it writes.
    #[default]
    Writers,
    /// What it reads.
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

/// The goal of a pool, if it has one.
pub(crate) fn of(pool: &Pool) -> Option<control::Config> {
    let (latency, tuning) = (pool.latency?, &pool.tuning);
    let goal: ControlDuration = latency.target.into();
    let published = match tuning.method {
        Method::Adaptive => response::Config::adaptive(goal),
        Method::Pid => response::Config::pid(goal),
    };
    let interval = ControlDuration::from_nanos(goal.as_nanos().saturating_mul(INTERVAL_GOALS));
    Some(control::Config {
        response: response::Config {
            interval: interval.clamp(SHORTEST_INTERVAL, ControlDuration::from_secs(10)),
            // The published method is in classes; otherwise any delay will do.
            step: if tuning.method == Method::Pid { published.step } else { ControlDuration::ZERO },
            max_delay: pool.max_delay.into(),
            offender_bytes_per_s: tuning.noisy_above.0,
            ..published
        },
        statistic: latency.percentile.into(),
        load: tuning.noisy.into(),
    })
}

/// Whether a goal for response times is missed: all is done for it, or nothing can be. `None`: it is being worked on.
pub const fn is_missed(reason: &Reason) -> Option<bool> {
    match reason {
        Reason::NoOffenders { .. } | Reason::Infeasible { .. } | Reason::DoesNotBite { .. } => Some(true),
        Reason::ReadsOverTarget { .. }
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

/// A reason as a sentence, about tenants of a pool.
pub fn sentence(reason: &Reason) -> String {
    let ms = |duration: &ControlDuration| format!("{:.2} ms", duration.as_millis_f64());
    match reason {
        Reason::NotEnoughData => "no read that counts has been seen yet, so nobody is known to wait".into(),
        Reason::Idle => "nobody but offenders has read for a while, so nobody waits for them".into(),
        Reason::SignalLost => "nothing has completed for a while; nobody is held back on old news".into(),
        Reason::UnderTarget { measured, target } => {
            format!("reads take {}, below {}, with nobody held back", ms(measured), ms(target))
        }
        Reason::NoOffenders { measured, target } => format!(
            "reads take {}, above {}, but no tenant that may be held back moves enough to be the cause",
            ms(measured),
            ms(target)
        ),
        Reason::ReadsOverTarget { measured, target } => {
            format!("reads take {}, above {}: offenders rest longer", ms(measured), ms(target))
        }
        Reason::ReadsUnderTarget { measured, target } => {
            format!("reads take {}, below {}: offenders rest for a shorter time", ms(measured), ms(target))
        }
        Reason::AwaitingEffect { target } => format!(
            "how long offenders rest was changed just now; what is measured is not its effect yet (target {})",
            ms(target)
        ),
        Reason::KnownBurst { held } => {
            format!("these offenders are known: the rest that held before, {}, is in force again", ms(held))
        }
        Reason::Infeasible { measured, target } => format!(
            "reads take {}, above {}, although every noisy tenant is throttled as far as allowed: raise the goal or max_delay, or move load away",
            ms(measured),
            ms(target)
        ),
        Reason::TestingEffect { delay } => format!(
            "reads stay slow with all offenders resting for {}: for some seconds they are let go and held back in turn, to see whether that does anything",
            ms(delay)
        ),
        Reason::DoesNotBite { delay } => format!(
            "a rest of {} changes neither load nor response time: the offenders are not the cause, or go by their reservations",
            ms(delay)
        ),
    }
}

/// Why a tenant is held back as much as it is, as a sentence.
pub fn client_sentence(reason: &ClientReason) -> String {
    match reason {
        ClientReason::SameForAll => "all offenders are held back alike".into(),
        ClientReason::ShareOfLoad { share } => format!("{:.0} % of the offenders' load is its own", 100.0 * share),
        ClientReason::LongestWait => "with more its requests would wait longer than max_delay".into(),
        ClientReason::LargestDelay => "more is not allowed".into(),
    }
}
