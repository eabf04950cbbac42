//! Every sentence about a controller's decision, for all enforcement points, and the figures behind a decision on a budget.
//!
//! Controllers give reasons as data. This module turns them into sentences for logs, API, `top` and dashboard, so that one
//! reason has one wording for pools of `serve` and for devices of `guard`.

use std::cmp::Ordering;

use evenkeel_control::Duration;
use evenkeel_control::admission;
use evenkeel_control::pool::guarantee::Binding;
use evenkeel_control::pool::slots::Missed;
use evenkeel_control::response::{self, ClientReason};
use evenkeel_control::slots;
use evenkeel_control::throughput::{self, Limit, Rate};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::decision::{DecisionRecord, Unit};
use crate::effective::Precedence;
use crate::figures::{bytes, bytes_per_s, counted, counted_figure, three};
use crate::lately::ThrottledBy;
use crate::tenant::Percentile;

/// The kind of load that an enforcement point throttles for a latency target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Throttles {
    /// Tenants of a pool, whose requests are delayed in the queue.
    Tenants,
    /// Clients of an iSCSI target, whose packets are delayed.
    Clients,
    /// Control groups of a host, whose requests are limited.
    Groups,
}

impl Throttles {
    const fn one(self) -> &'static str {
        match self {
            Self::Tenants => "tenant",
            Self::Clients => "client",
            Self::Groups => "group",
        }
    }

    /// Words for an interval without reads that count for the target. Of a pool's and of groups' reads those of noisy ones do not
    /// count; of a device's reads all count, because their tenants are not known.
    const fn no_read(self) -> &'static str {
        match self {
            Self::Tenants => "no read of a tenant that is not noisy",
            Self::Clients => "no read of the pool's devices",
            Self::Groups => "no read of a group that is not noisy",
        }
    }
}

fn ms(duration: &Duration) -> String {
    Unit::Ms.text(duration.as_millis_f64())
}

/// A measured latency compared with its target, as text. The sign is "=" if three digits show no difference.
fn against(measured: &Duration, target: &Duration) -> String {
    let (measured_ms, target_ms) = (ms(measured), ms(target));
    let sign = match measured.cmp(target) {
        _ if measured_ms == target_ms => "=",
        Ordering::Greater => ">",
        Ordering::Less | Ordering::Equal => "<",
    };
    format!("{measured_ms} {sign} target {target_ms}")
}

fn percent(part: f64) -> String {
    format!("{} %", three(100.0 * part.abs()))
}

/// Converts a gain of throughput from a fraction of the larger budget's throughput (0.5 is a doubling) to a fraction of the
/// smaller budget's throughput (1 is a doubling). Infinite if the smaller budget gives no throughput.
fn of_the_smaller(gain: f64) -> f64 {
    if gain < 1.0 { gain / (1.0 - gain) } else { f64::INFINITY }
}

/// A gain of throughput in words, in percent or as "more than ten times". `part` is the gain as a fraction; 1 is a doubling.
fn more_throughput(part: f64) -> String {
    if part <= 9.0 { format!("{} more throughput", percent(part)) } else { "more than ten times the throughput".into() }
}

/// A gain or loss of throughput, given as a fraction, as text in percent; `None` if it would be shown as 0 %.
fn noticeable(part: f64) -> Option<String> {
    (part.abs() >= 0.0005).then(|| percent(part))
}

/// Names as text, with the number of all: `a`, `a and b`, `a, b and 4 others`; `None` for none.
fn named(names: &[String], count: u64) -> Option<String> {
    let others = count.saturating_sub(names.len() as u64);
    match names {
        [] if others == 0 => None,
        [] => Some(counted(others, "other")),
        [first @ .., last] if others == 0 && !first.is_empty() => Some(format!("{} and {last}", first.join(", "))),
        [one] if others == 0 => Some(one.clone()),
        _ => Some(format!("{} and {}", names.join(", "), counted(others, "other"))),
    }
}

/// The most throttled tenants or clients of a decision, each with the rate or delay to which it is throttled, and the number of
/// the others; `None` if the decision throttles none.
fn most_throttled(of: &DecisionRecord) -> Option<String> {
    let each = of.most_throttled.iter().map(|one| {
        let name = match (one.tenant.as_str(), one.client.as_str()) {
            (tenant, "") => tenant.to_owned(),
            ("", client) => client.to_owned(),
            (tenant, client) => format!("{tenant} ({client})"),
        };
        match one.bytes_per_s {
            Some(rate) => format!("{name} to {}", bytes_per_s(rate)),
            None => format!("{name} by {}", Unit::Ms.text(one.delay_ms)),
        }
    });
    named(&each.collect::<Vec<_>>(), of.throttled)
}

/// The tenants or clients that a decision throttles and releases, in words; `change` follows those that it throttles.
fn throttles(of: &DecisionRecord, one: &str, change: &str) -> String {
    let throttled = most_throttled(of).map(|names| format!("throttling {names}{change}"));
    let released = named(&of.some_released, of.released).map(|names| format!("releasing {names}"));
    let both: Vec<String> = throttled.into_iter().chain(released).collect();
    if both.is_empty() { format!("no {one} is throttled") } else { both.join("; ") }
}

/// Sentence with the reason for the latest decision about a latency target. `of` has the pool, the percentile, and the tenants
/// or clients that the decision throttles and releases.
pub fn latency(reason: &response::Reason, point: Throttles, of: &DecisionRecord) -> String {
    use response::Reason;
    let one = point.one();
    let (pool, percentile) = (format!("pool {}", of.pool), &of.percentile);
    let reads = |measured, target| format!("{pool} read {percentile} {}", against(measured, target));
    let now = |change| throttles(of, one, change);
    let as_far_as_allowed = || {
        let names = most_throttled(of).map_or_else(String::new, |names| format!(" ({names})"));
        format!("every noisy {one} throttled as far as allowed{names}")
    };
    match reason {
        Reason::NotEnoughData => format!("{pool}: {} has been measured yet: {}", point.no_read(), now("")),
        Reason::Idle => format!("{pool}: {} has completed for a while: {}", point.no_read(), now("")),
        Reason::SignalLost => {
            format!("{pool}: the latency of reads has not been measured for a while: {}", now(""))
        }
        Reason::UnderTarget { measured, target } => format!("{}: {}", reads(measured, target), now("")),
        Reason::NoNoisy { measured, target } => format!(
            "{}, but no {one} that may be throttled has enough load to be the cause: raise the target, or allow more {one}s to be throttled (tenants.NAME.throttle)",
            reads(measured, target)
        ),
        Reason::ReadsOverTarget { measured, target } if of.throttled == 0 && of.released == 0 => {
            format!("{}: no {one} is throttled yet", reads(measured, target))
        }
        Reason::ReadsOverTarget { measured, target } => format!("{}: {}", reads(measured, target), now("")),
        Reason::ReadsNearTarget { measured, target, set_point: Some(set_point) } => format!(
            "{}, but more than the set point {}, which leaves a margin for chance: {}",
            reads(measured, target),
            ms(set_point),
            now(", more than before")
        ),
        Reason::ReadsNearTarget { measured, target, set_point: None } => {
            format!("{}, but getting slower: {}", reads(measured, target), now(", more than before"))
        }
        Reason::ReadsUnderTarget { measured, target } => {
            format!("{}: {}", reads(measured, target), now(", less than before"))
        }
        Reason::AwaitingEffect { target } => format!(
            "{pool}: the throttle has just changed, and its effect on the read {percentile} (target {}) is not measured yet: {}",
            ms(target),
            now("")
        ),
        Reason::KnownBurst { held } => {
            let again = most_throttled(of).map_or_else(
                || format!("their delay of {} is in force again", ms(held)),
                |names| format!("throttling {names} again"),
            );
            format!("{pool}: these noisy {one}s were throttled before: {again}")
        }
        Reason::AtLargestDelay { measured, target } => format!(
            "{} with {}: with more load the target would be missed",
            reads(measured, target),
            as_far_as_allowed()
        ),
        Reason::Unachievable { measured, target } => format!(
            "{} with {}: raise the target or max_delay, or move load away",
            reads(measured, target),
            as_far_as_allowed()
        ),
        Reason::TestingEffect { delay } => format!(
            "{pool}: with every noisy {one} throttled by {}, as far as allowed, the read {percentile} is still not far enough below the target: for some seconds the throttle is released and applied in turn, to measure its effect (now {})",
            ms(delay),
            now("")
        ),
        Reason::Ineffective { delay } => {
            let released = named(&of.some_released, of.released);
            format!(
                "{pool}: a delay of {}, released and applied in turn, changed neither load nor latency: {}; the cause is elsewhere, or a reservation overrides the throttle",
                ms(delay),
                released.map_or_else(|| now(""), |names| format!("releasing {names}"))
            )
        }
    }
}

/// Sentence with the reason for a device's present admission budget.
pub fn admission(reason: &admission::Reason) -> String {
    use admission::Reason;
    match *reason {
        Reason::Initial => "the budget has its starting value until the first decision".into(),
        Reason::Configured => "as configured".into(),
        Reason::Idle => "no request is in flight".into(),
        Reason::Stalled { in_flight_bytes } => {
            format!("no request completes, with {} in flight: keeping the budget", bytes(in_flight_bytes))
        }
        Reason::LatencyOverTarget { min, target } => {
            format!("lowest latency {}: reducing the budget", against(&min, &target))
        }
        Reason::LatencyUnderTarget { min, target } => {
            format!("lowest latency {}: increasing the budget", against(&min, &target))
        }
        Reason::BudgetNotUsed { peak_bytes } => {
            format!("target met with at most {} in flight: a larger budget would change nothing", bytes(peak_bytes))
        }
        Reason::BudgetAtMaximum => "target met, and the budget is the largest allowed".into(),
        Reason::TargetExplored { optimum, samples } => {
            format!(
                "latency target drawn at random around {}: {} so far, too few to fit a curve",
                ms(&optimum),
                counted(samples.into(), "sample")
            )
        }
        Reason::TargetFitted { optimum, slope_mib_per_s } => {
            format!(
                "latency target drawn at random around the fitted optimum {} (slope {} MiB/s)",
                ms(&optimum),
                three(slope_mib_per_s)
            )
        }
        Reason::FitDegenerate { samples } => {
            format!(
                "{} at one latency target, too few targets to fit a curve: keeping the optimum",
                counted(samples.into(), "sample")
            )
        }
        Reason::AppLimited { waited, completions } => format!(
            "load too light to learn from: requests waited for the budget at {waited} of {completions} completions"
        ),
        Reason::IncreasePays { gain } => {
            format!("a larger budget brings {}: increasing the budget", more_throughput(of_the_smaller(gain)))
        }
        Reason::IncreaseFutile { gain } => match noticeable(of_the_smaller(gain)) {
            None => "a larger budget would bring no more throughput: keeping the budget".into(),
            Some(part) if gain < 0.0 => format!("a larger budget would lose {part} of throughput: keeping the budget"),
            Some(part) => format!("a larger budget would bring only {part} more throughput: keeping the budget"),
        },
        Reason::ReductionFree { loss } => match noticeable(loss) {
            None => "a smaller budget loses no throughput: reducing the budget".into(),
            Some(_) if loss < 0.0 => format!("a smaller budget brings {}: reducing the budget", more_throughput(-loss)),
            Some(part) => format!("a smaller budget loses only {part} of throughput: reducing the budget"),
        },
        Reason::ReductionCosts { loss } => {
            format!("a smaller budget would lose {} of throughput: keeping the budget", percent(loss))
        }
        Reason::Power { power } => {
            format!("the power of latency and its gradient is {}: the budget is divided by it", three(power))
        }
        Reason::QueueEstimated { requests } => {
            format!("queue in the device: about {}", counted_figure(requests, "request"))
        }
        Reason::LatencyGradient { gradient } => {
            format!(
                "long-term latency divided by present latency, with tolerance, is {}: the budget follows it",
                three(gradient)
            )
        }
    }
}

/// The figures behind a decision; what does not apply is left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ReasonData {
    /// Name of the reason, `latency_over_target` for example.
    pub kind: String,
    /// Smallest latency of the interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_latency_ms: Option<f64>,
    /// The target it was measured by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_ms: Option<f64>,
    /// The most that was in flight lately.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_bytes: Option<u64>,
    /// Bytes in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight_bytes: Option<u64>,
    /// The centre of the drawn target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimum_ms: Option<f64>,
    /// Slope of the fitted curve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slope_mib_per_s: Option<f64>,
    /// Samples in the history.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<u32>,
    /// Completions of the interval whose requests waited for the budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited: Option<u64>,
    /// All completions of the interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completions: Option<u64>,
    /// The number the decision follows, in a unit that `kind` implies: a ratio, or requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
}

impl From<&admission::Reason> for ReasonData {
    fn from(reason: &admission::Reason) -> Self {
        use admission::Reason;
        let ms = |d: Duration| Some(d.as_millis_f64());
        let named = |kind: &str| Self { kind: kind.into(), ..Self::default() };
        match *reason {
            Reason::Initial => named("initial"),
            Reason::Configured => named("configured"),
            Reason::Idle => named("idle"),
            Reason::Stalled { in_flight_bytes } => Self { in_flight_bytes: Some(in_flight_bytes), ..named("stalled") },
            Reason::LatencyOverTarget { min, target } => {
                Self { min_latency_ms: ms(min), target_ms: ms(target), ..named("latency_over_target") }
            }
            Reason::LatencyUnderTarget { min, target } => {
                Self { min_latency_ms: ms(min), target_ms: ms(target), ..named("latency_under_target") }
            }
            Reason::BudgetNotUsed { peak_bytes } => Self { peak_bytes: Some(peak_bytes), ..named("budget_not_used") },
            Reason::BudgetAtMaximum => named("budget_at_maximum"),
            Reason::TargetExplored { optimum, samples } => {
                Self { optimum_ms: ms(optimum), samples: Some(samples), ..named("target_explored") }
            }
            Reason::TargetFitted { optimum, slope_mib_per_s } => {
                Self { optimum_ms: ms(optimum), slope_mib_per_s: Some(slope_mib_per_s), ..named("target_fitted") }
            }
            Reason::FitDegenerate { samples } => Self { samples: Some(samples), ..named("fit_degenerate") },
            Reason::AppLimited { waited, completions } => {
                Self { waited: Some(waited), completions: Some(completions), ..named("app_limited") }
            }
            Reason::IncreasePays { gain } => Self { factor: Some(gain), ..named("increase_pays") },
            Reason::IncreaseFutile { gain } => Self { factor: Some(gain), ..named("increase_futile") },
            Reason::ReductionFree { loss } => Self { factor: Some(loss), ..named("reduction_free") },
            Reason::ReductionCosts { loss } => Self { factor: Some(loss), ..named("reduction_costs") },
            Reason::Power { power } => Self { factor: Some(power), ..named("power") },
            Reason::QueueEstimated { requests } => Self { factor: Some(requests), ..named("queue_estimated") },
            Reason::LatencyGradient { gradient } => Self { factor: Some(gradient), ..named("latency_gradient") },
        }
    }
}

/// Sentence with the reason why connections move between workers, or stay.
pub fn placement(reason: &evenkeel_control::placement::Reason) -> String {
    use evenkeel_control::placement::Reason;
    // Of bytes in multiples of the mean, of time as a share of the worker's: either reads as per cent.
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    match *reason {
        Reason::Static => "connections stay where they were accepted".into(),
        Reason::OneWorker => "there is only one worker: connections stay".into(),
        Reason::NotBusy { heaviest } => {
            format!("even the busiest worker is busy only {} of the time: connections stay", percent(heaviest))
        }
        Reason::NotWorth { gain, .. } => {
            format!("moving connections would gain only {}: connections stay", percent(gain))
        }
        Reason::Elephant { heaviest, .. } => format!(
            "nearly all load of the busiest worker (busy {} of the time) is one connection, which cannot be divided: connections stay",
            percent(heaviest)
        ),
        Reason::Uncertain { gain, noise } => format!(
            "moving connections seems to gain {}, but up to {} may be chance: connections stay",
            percent(gain),
            percent(noise)
        ),
        Reason::Rebalanced { before, after } => format!(
            "connections move: the busiest worker had a load of {}, and would have had {} with these moves",
            percent(before),
            percent(after)
        ),
        Reason::Trial { worker } => format!(
            "a connection moves from a full worker to worker {worker} for a short time, to measure its load there"
        ),
        Reason::WorkersChanged { workers } => {
            format!("the number of workers changed: {} now", counted(workers as u64, "worker"))
        }
    }
}

/// Sentence with the reason for the present throttle of a tenant or client.
pub fn throttled(reason: &ClientReason) -> String {
    match reason {
        ClientReason::SameForAll => "the same delay as for all noisy load".into(),
        ClientReason::ShareOfLoad { share } => format!("it makes {:.0} % of the noisy load", 100.0 * share),
        ClientReason::LongestWait => "with a longer delay its requests would wait longer than max_delay".into(),
        ClientReason::Owed => {
            "with a longer delay its tenant would get less than its reservation or throughput guarantee, which take precedence".into()
        }
        ClientReason::LargestDelay => "it has the longest delay allowed".into(),
    }
}

/// A rate as text with its unit, for people; an infinite rate is shown as no limit.
pub fn rate(unit: Rate, value: f64) -> String {
    if value.is_finite() { Unit::from(unit).text(value) } else { "no limit".into() }
}

/// A tenant, and the part of its requests that a guarantee is for, as sentences name them. `of`: `all`, `read` or `write`.
pub fn part_of(tenant: &str, of: &str) -> String {
    if of == "all" { tenant.to_owned() } else { format!("{tenant} ({of}s)") }
}

/// Sentence with the reason for the limit that enforces a throughput guarantee. `binding` is the bound that limited a tenant
/// of a pool in the last interval; `None` for a control group on a cached device. `who` names the tenant, and the part of its
/// requests.
pub fn guarantee(limit: &Limit, binding: Option<Binding>, who: &str) -> String {
    use throughput::Reason;
    let rate = |value: f64| rate(limit.limit, value);
    let assigned = rate(limit.limit.value() as f64);
    let got =
        |measured: f64, guaranteed: f64| format!("{who} got {} of {} guaranteed", rate(measured), rate(guaranteed));
    match limit.reason {
        Reason::NotEnoughData => {
            format!("{who}: no throughput has been measured yet: the guarantee of {assigned} is the limit")
        }
        Reason::AsGuaranteed => format!("{who} has the guarantee of {assigned} as its limit"),
        Reason::Idle => format!("{who} asked for nothing; the limit stays at {assigned}"),
        Reason::AppLimited { measured, limit } => {
            let measured = rate(measured);
            let allowed = if limit.is_finite() {
                format!(", less than the {} that it may have", rate(limit))
            } else {
                String::new()
            };
            format!("{who} asked for {measured}{allowed}; the limit stays at {assigned}")
        }
        Reason::Compensating { measured, guaranteed, miss_rate } => {
            let got = got(measured, guaranteed);
            match binding {
                Some(_) => format!("{got}: its limit of {assigned} makes up for the time that the device takes"),
                None => format!(
                    "{got}, and {} of its bytes missed the cache: its limit of {assigned} makes up for that",
                    percent(miss_rate)
                ),
            }
        }
        Reason::Repaying { measured, guaranteed, owed } => format!(
            "{} and is owed {} s of its guarantee: its limit of {assigned} repays some of that",
            got(measured, guaranteed),
            three(owed / guaranteed.max(f64::MIN_POSITIVE))
        ),
        Reason::GivingBack { measured, guaranteed, .. } => {
            format!("{}, after a surplus that its limit of {assigned} takes back", got(measured, guaranteed))
        }
        Reason::Unachievable { measured, guaranteed, .. } | Reason::AtCeiling { measured, guaranteed }
            if binding.is_some() =>
        {
            format!(
                "{} under a limit of {assigned}: the guarantee cannot be met now; give the tenant a reservation, raise its own limit or a limit of the pool, or move load away",
                got(measured, guaranteed)
            )
        }
        Reason::Unachievable { measured, guaranteed, attainable } => format!(
            "{}: with so many cache misses the slow device gives at most {} (limit {assigned}): lower the guarantee, or move load away",
            got(measured, guaranteed),
            rate(attainable)
        ),
        Reason::AtCeiling { measured, guaranteed } => format!(
            "{} with the highest limit allowed, {assigned}: raise ceiling in the guarantee, or move load away",
            got(measured, guaranteed)
        ),
        Reason::OtherLimit { in_force } => match binding {
            Some(Binding::Reservation) => {
                let winner = Precedence::Guarantee.winner(Precedence::Reservation);
                format!(
                    "the {winner} of {who} is higher and takes precedence: the limit of {assigned} for the guarantee is not in force, and does not change meanwhile"
                )
            }
            Some(Binding::Limit(owner)) => format!(
                "{who}: a lower limit, set by {}, is in force: the guarantee would allow {assigned}, and throughput that is missed meanwhile is not made up for later",
                owner_name(owner.name())
            ),
            // As in a dry run, which sets no limit. A limit of another program is reported with its group.
            None if in_force.is_finite() => format!(
                "{who}: io.max has a limit that the agent has not set, {}: the guarantee needs a limit of {assigned}, and the measurement of this interval is not used",
                rate(in_force)
            ),
            None => format!(
                "{who}: io.max has no limit: the guarantee needs a limit of {assigned}, and the measurement of this interval is not used"
            ),
        },
        Reason::NoSolution { measured, guaranteed } => format!(
            "{}: by the published equation no limit makes up for its cache misses, and the limit is {assigned}; lower the guarantee, or move load away",
            got(measured, guaranteed)
        ),
        Reason::SlowDeviceUnknown => {
            format!(
                "{who}: the published method needs the throughput of the slow device, which is unknown until that device has been busy: the limit stays at {assigned}"
            )
        }
        Reason::CountersReset => format!(
            "{who}: the counters were reset, or measurements paused: the measurement of this interval is not used, and the limit stays at {assigned}"
        ),
        Reason::SignalLost => {
            format!("{who}: no throughput has been measured for a while: the guarantee of {assigned} is the limit")
        }
    }
}

/// A tenant with its slots and its latency target, as sentences about slots name them.
#[derive(Clone, Copy, Debug, Default)]
pub struct OfSlots<'a> {
    /// Name of the tenant.
    pub tenant: &'a str,
    /// Slots that the tenant has; `None` if the tenant's slots are unbounded or unknown.
    pub granted: Option<f64>,
    /// The figure of latencies that the tenant's target bounds, and the target; `None` without a target.
    pub target: Option<(Percentile, Duration)>,
    /// The measured latency; `None` if no request completed.
    pub measured: Option<Duration>,
}

/// Sentence with the reason for a tenant's present number of slots. A tenant without a latency target yields to tenants with
/// one.
pub fn slots(reason: &slots::Reason, of: &OfSlots<'_>) -> String {
    let figure = match (of.target, of.measured) {
        (Some((percentile, target)), Some(measured)) => format!(" {percentile} {}", against(&measured, &target)),
        (Some((percentile, target)), None) => format!(" {percentile} target {}", ms(&target)),
        (None, _) => String::new(),
    };
    let granted = of.granted.map(|slots| counted_figure(slots, "slot"));
    let granted = granted.map_or_else(String::new, |slots| match of.target {
        Some(_) => format!(" with {slots}"),
        None => format!(" has {slots}"),
    });
    format!("{}{figure}{granted}: {}", of.tenant, because_of_slots(reason, of.target.is_some()))
}

fn because_of_slots(reason: &slots::Reason, has_target: bool) -> String {
    use slots::Reason;
    match reason {
        Reason::Unbounded => "the method in tuning.slots sets no bound".into(),
        Reason::ByWeight => "its share of all slots, by weight".into(),
        Reason::Idle => "it asks for nothing at present".into(),
        Reason::EqualMargin { tightness } => {
            format!("all targets are met, and would still be met if they were {} times as large", three(*tightness))
        }
        Reason::NeedMet if !has_target => "as many slots as it has use for; not all targets can be met".into(),
        Reason::Unachievable { achievable_at } if !has_target => {
            let yields = "it has no latency target and yields to those that have one, and not all targets can be met";
            achievable_at.map_or_else(
                || yields.into(),
                |scale| format!("{yields}; they could be met if they were {} times as large", three(scale)),
            )
        }
        Reason::NeedMet => "as many slots as its target needs; not all targets can be met".into(),
        Reason::Unachievable { achievable_at: Some(scale) } => {
            format!(
                "its target cannot be met beside the others; all could be met if they were {} times as large: raise targets, or move load away",
                three(*scale)
            )
        }
        Reason::Unachievable { achievable_at: None } => {
            "its target cannot be met beside the others, not even if all targets were ten times as large: move load away".into()
        }
        Reason::ByLatency => "set by the latency of the device".into(),
    }
}

/// Sentence about a latency target that the tenant called `tenant` has missed.
pub fn missed(missed: &Missed, tenant: &str) -> String {
    let percentile = Percentile::from(missed.target.statistic);
    let figure = against(&missed.figure, &missed.target.time);
    let because =
        missed.reason.as_ref().map_or_else(String::new, |reason| format!(": {}", because_of_slots(reason, true)));
    format!("{tenant} {percentile} {figure}{because}")
}

/// Sentence about a tenant, pool or volume that is at a limit. `what` names the tenant ("it"), pool or volume; `owner` is the
/// owner of the limit.
pub fn at_limit(what: &str, limit: &str, owner: &str) -> String {
    format!("{what} is at its limit of {limit}, set by {}", owner_name(owner))
}

/// Sentence about the limit of `what`, a tenant or pool, for which requests wait although their rate is below the limit,
/// for example after a pause. `owner` is the owner of the limit.
pub fn spaced(what: &str, limit: &str, owner: &str) -> String {
    format!("the limit of {limit}, set by {}, spreads the requests of {what} over time", owner_name(owner))
}

/// The words by which sentences name the owner of a limit.
pub fn owner_name(owner: &str) -> &str {
    match owner {
        "operator" => "the operator",
        "latency" => "the latency target",
        "throughput" => "the throughput guarantee",
        "slots" => "the control of slots",
        "reservation" => "the reservation",
        other => other,
    }
}

/// Sentence for requests that wait for admission, with the budget and the newest `decision` about the budget.
pub fn at_budget(budget: &str, decision: &str) -> String {
    format!("the admission budget of {budget} is used up: {decision}")
}

/// Sentence for requests that wait although their tenant is not throttled. `because` is the sentence about the throttle of the
/// tenant's pool, if there is one.
pub fn queued(requests: u64, because: Option<&str>) -> String {
    let because = because.unwrap_or("no limit and no budget is reached");
    let verb = if requests == 1 { "is" } else { "are" };
    match requests {
        0 => "nothing throttles it".into(),
        _ => format!("{} {verb} queued: {because}", counted(requests, "request")),
    }
}

/// Sentence about a tenant that is throttled for the latency target of its pool.
pub fn throttled_for_target(slots_owner: &str, because: &str) -> String {
    let slots = match slots_owner {
        "latency" => String::new(),
        owner => format!(" (slots set by {})", owner_name(owner)),
    };
    format!("throttled for the pool's latency target{slots}: {because}")
}

/// The state of a pool in sentences: the newest decision for its latency target; and the limit that the pool is at or, without
/// one, the newest decision of admission control. At a limit, requests wait for the limit and not for admission.
pub fn pool(limit: Option<&str>, target: Option<&str>, admission: &str) -> String {
    let last = limit.map_or_else(|| format!("admission: {admission}"), str::to_owned);
    target.map(str::to_owned).into_iter().chain([last]).collect::<Vec<_>>().join("; ")
}

/// Sentence of the history about a throttle that has ended.
pub const RELEASED: &str = "no longer throttled";

/// Sentence of the history about the throttle of a tenant or pool.
pub fn throttle(by: &ThrottledBy) -> String {
    format!("throttled by {}, {}: {}", owner_name(&by.by), by.how, by.because)
}

/// Sentence of the history about a number of decisions that it has no room for.
pub fn not_recorded(count: u64) -> String {
    format!(
        "{} more, which only changed to and fro, are not recorded: the history has no room for them",
        counted(count, "decision")
    )
}

/// The reason why a history has no record of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing<'a> {
    /// The program of this name was stopped before, and started afterwards.
    Stopped(&'a str),
    /// The program of this name started afterwards, and was not stopped before.
    Ended(&'a str),
    /// Recording paused because of this error.
    Paused(&'a str),
    /// There is nothing newer.
    Newest,
    /// Unknown.
    Unknown,
}

/// Sentence of the history about a time without record.
pub fn missing(missing: Missing<'_>) -> String {
    match missing {
        Missing::Stopped(program) => format!("the {program} was not running: a graceful stop had ended it"),
        Missing::Ended(program) => {
            format!("the {program} was not running: a crash, kill -9 or a loss of power had ended it")
        }
        Missing::Paused(because) => because.to_owned(),
        Missing::Newest => {
            "nothing newer is recorded: the program does not run, or cannot write: look at its log".to_owned()
        }
        Missing::Unknown => {
            "nothing was recorded: the history was off, the machine was suspended, or its clock was set".to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_control::Instant;
    use evenkeel_control::mclock::Qos;
    use evenkeel_control::pool::slots::LatencyTarget;

    use super::*;
    use crate::config::{Config, Pool};

    #[test]
    fn a_missed_target_is_shown_with_its_figure_and_reason() {
        let pool = Config::default().control(&Pool::default());
        let mut pool = evenkeel_control::pool::Pool::<()>::new(pool, Instant::ZERO, 1);
        let mut one = Missed {
            tenant: pool.join(Instant::ZERO, Qos::default()),
            target: LatencyTarget::mean(Duration::from_millis(10)),
            figure: Duration::from_micros(12_540),
            unreported: 3,
            reason: None,
        };
        assert_eq!(missed(&one, "db"), "db mean 12.5 ms > target 10 ms");
        one.reason = Some(slots::Reason::Unachievable { achievable_at: Some(1.5) });
        let told = missed(&one, "db");
        assert!(told.ends_with(
            "10 ms: its target cannot be met beside the others; all could be met if they were 1.5 times as large: raise targets, or move load away"
        ));
    }

    #[test]
    fn a_tenant_without_a_target_is_not_said_to_miss_one() {
        let unachievable = [Some(1.5), None].map(|achievable_at| slots::Reason::Unachievable { achievable_at });
        for reason in unachievable.iter().chain([&slots::Reason::NeedMet]) {
            let (with, without) = (because_of_slots(reason, true), because_of_slots(reason, false));
            assert!(with.contains("its target"), "{with}");
            assert!(!without.contains("its target") && without.contains("not all targets can be met"), "{without}");
        }
        assert!(because_of_slots(&unachievable[0], false).ends_with("1.5 times as large"));
        let idle = [false, true].map(|has_target| because_of_slots(&slots::Reason::Idle, has_target));
        assert_eq!(idle[0], idle[1]);
    }
}
