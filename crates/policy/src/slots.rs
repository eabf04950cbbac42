//! Slots: how they are written, and how their decisions are told.

use evenkeel_control::Duration as ControlDuration;
use evenkeel_control::pool::slots::Missed;
use evenkeel_control::slots::{self as control, Reason};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{Config, Percentile, Pool};
use crate::units::Duration;

/// How the slots of a device are shared out between its tenants, on all hosts that share it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Slots {
    /// No tenant has a bound.
    #[default]
    None,
    /// A fixed total by weight.
    Rwd,
    /// A window for each tenant that follows the device's latency.
    Parda,
    /// A fixed total for all together.
    SfqD,
    /// By need, smallest first, as published.
    Drg,
    /// By need: all goals with equal margins while that can be done.
    Needs,
}

impl Slots {
    /// In the controller's words: decided once in `period`; `latency` and `most` as in the configuration of a pool.
    pub fn control(self, period: ControlDuration, latency: Option<Duration>, most: u32) -> control::Config {
        let (ours, most) = (control::Config::NEEDS, f64::from(most));
        let (method, latency) = (self.method(), latency.map(Into::into));
        control::Config { method, period, latency, least: ours.least.min(most), most }
    }

    fn method(self) -> control::Method {
        match self {
            Self::None => control::Method::None,
            Self::Rwd => control::Method::Rwd,
            Self::Parda => control::Method::Parda,
            Self::SfqD => control::Method::SfqD,
            Self::Drg => control::Method::Drg,
            Self::Needs => control::Method::Needs,
        }
    }
}

/// Slots of a pool, if tenants have bounds. `period`: how often other hosts report, if there are any.
pub(crate) fn of(pool: &Pool, period: Option<ControlDuration>) -> Option<control::Config> {
    let tuning = &pool.tuning;
    if tuning.slots == Slots::None {
        return None;
    }
    let published = || control::Config::published(tuning.slots.method(), ControlDuration::ZERO, 0.0).period;
    let own = if tuning.slots == Slots::Needs { control::Config::NEEDS.period } else { published() };
    let own = tuning.slots_period.map_or(own, Into::into);
    Some(tuning.slots.control(period.unwrap_or(own), tuning.slots_latency, tuning.slots_most))
}

impl Config {
    /// A pool as its state machine wants it.
    pub fn control(&self, pool: &Pool) -> evenkeel_control::pool::Config {
        let period = (!self.exchange.etcd.is_empty()).then(|| self.exchange.period.into());
        evenkeel_control::pool::Config { slots: of(pool, period), ..pool.into() }
    }
}

/// Why a tenant has the slots that it has, as a sentence. `has_goal`: one that was guaranteed nothing yields to the others.
pub fn sentence(reason: &Reason, has_goal: bool) -> String {
    match reason {
        Reason::Unbounded => "the method sets no bound".into(),
        Reason::ByWeight => "its share of the total by weight".into(),
        Reason::Idle => "it asks for nothing at present".into(),
        Reason::EqualMargin { tightness } => {
            format!("all goals are kept, and could be kept if they were {:.0} % of what they are", 100.0 * tightness)
        }
        Reason::Kept if !has_goal => "as much as it has use for; not all goals can be kept".into(),
        Reason::Infeasible { feasible_at } if !has_goal => {
            let yields = "it has no goal and yields, and not all goals can be kept";
            feasible_at.map_or_else(
                || yields.into(),
                |scale| format!("{yields}; they could if they were {scale:.1} times as large"),
            )
        }
        Reason::Kept => "as much as its goal needs; not all goals can be kept".into(),
        Reason::Infeasible { feasible_at: Some(scale) } => {
            format!(
                "its goal cannot be kept beside the others; all could be kept if they were {scale:.1} times as large"
            )
        }
        Reason::Infeasible { feasible_at: None } => {
            "its goal cannot be kept beside the others, and not even ten times as large".into()
        }
        Reason::ByLatency => "it follows the latency of the device".into(),
    }
}

/// A goal that a tenant has missed, as a sentence.
pub fn missed_sentence(missed: &Missed) -> String {
    let (figure, goal) = (missed.figure.as_millis_f64(), missed.goal.time.as_millis_f64());
    let statistic = Percentile::from(missed.goal.statistic);
    let because = missed.reason.as_ref().map_or_else(String::new, |reason| format!(": {}", sentence(reason, true)));
    format!("{statistic} {figure:.1} ms, above {goal:.1} ms{because}")
}

#[cfg(test)]
mod tests {
    use evenkeel_control::Instant;
    use evenkeel_control::mclock::Qos;

    use super::*;

    #[test]
    fn a_missed_goal_is_told_with_its_figure_and_reason() {
        let pool = Config::default().control(&Pool::default());
        let mut pool = evenkeel_control::pool::Pool::<()>::new(pool, Instant::ZERO, 1);
        let mut missed = Missed {
            tenant: pool.join(Instant::ZERO, Qos::default()),
            goal: evenkeel_control::pool::slots::ResponseGoal::mean(ControlDuration::from_millis(10)),
            figure: ControlDuration::from_micros(12_540),
            untold: 3,
            reason: None,
        };
        assert_eq!(missed_sentence(&missed), "mean 12.5 ms, above 10.0 ms");
        missed.reason = Some(Reason::Infeasible { feasible_at: Some(1.5) });
        let told = missed_sentence(&missed);
        assert!(told.ends_with(
            "10.0 ms: its goal cannot be kept beside the others; all could be kept if they were 1.5 times as large"
        ));
    }

    #[test]
    fn who_has_no_goal_is_not_said_to_miss_one() {
        let infeasible = [Some(1.5), None].map(|feasible_at| Reason::Infeasible { feasible_at });
        for reason in infeasible.iter().chain([&Reason::Kept]) {
            let (with, without) = (sentence(reason, true), sentence(reason, false));
            assert!(with.contains("its goal"), "{with}");
            assert!(!without.contains("its goal") && without.contains("not all goals can be kept"), "{without}");
        }
        assert!(sentence(&infeasible[0], false).ends_with("1.5 times as large"));
        assert_eq!(sentence(&Reason::Idle, false), sentence(&Reason::Idle, true));
    }
}
