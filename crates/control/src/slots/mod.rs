//! Slots: how many I/Os may each host have in flight?
//!
//! Hosts share an array that queues whatever it gets. Each *workload* (a tenant on that device) may have a number of I/Os in
//! flight in the array, its *slots*; the rest waits at its host, where it can still be throttled. Latency is then waiting at
//! the host plus latency of the device. Once a period this module decides how many slots there are, and how many of them each
//! workload has, so that as many latency targets as possible are met.
//!
//! | method | slots |
//! |---|---|
//! | [`Method::None`] | no bound |
//! | [`Method::Rwd`] | a fixed total by weight (RW(D), Jin and Chase) |
//! | [`Method::Parda`] | a window for each workload, which follows the device's latency (Gulati, Ahmad and Waldspurger) |
//! | [`Method::SfqD`] | a fixed total for all together (SFQ(D), Jin and Chase) |
//! | [`Method::Drg`], [`Method::DrgSmoothed`] | by need, smallest first (DRG; Liu, Xu and Yang), with two readings of an equation |
//! | [`Method::Needs`] | Evenkeel's own: all targets are met with equal margins; if that is impossible, each workload gets its need up to a bound per unit of weight that is equal for all; without a target within reach there is no bound |
//!
//! **Decentralised.** Every host calls [`Controller::observe`] with the reports of its own workloads on period k and sends the
//! [`Summary`] that comes back to the other hosts. When the summaries of all members are there, each host adds them up in the
//! same order and calls [`Controller::tick`] with the sum: from the same sum all hosts draw the same conclusions, each takes
//! its part, and the parts add up. No host leads, and a summary does not grow with the number of workloads. A host that is
//! alone calls [`Controller::tick`] with its own summary.

use alloc::vec::Vec;
use core::iter::Peekable;
use core::slice::Iter;

pub use crate::invalid::InvalidConfig;
use crate::time::Duration;

mod config;
mod depth;
mod fast;
mod knee;
mod need;
mod report;
mod split;
mod summary;

pub use config::{Config, Method};
pub use depth::Depth;
use knee::Knee;
pub use report::Report;
use split::Claim;
pub use summary::{CLASSES, Class, SCALES, Summary, scale};

/// Part of the tightest target that device latency may take if none is configured, while targets are easily met.
const PART_OF_TARGET: f64 = 0.5;
/// Part of the tightest target that device latency may take if none is configured, while targets are hard to meet.
const MOST_OF_TARGET: f64 = 0.7;
/// Part of the tightest target that device latency may take if more slots raise only latency, not throughput.
const PART_BEYOND_KNEE: f64 = PART_OF_TARGET / 2.0;
/// Device latency in seconds at which PARDA, and a host that is alone, aims without any target or configured latency.
const WITHOUT_TARGETS_S: f64 = 0.02;
/// Slots that each workload has in any case, as long as the total has this many for each.
const LEAST: f64 = 1.0;
/// Weight of the newest period in the total number of slots, and in averages of arrival rates and latencies.
const NEWEST: f64 = 0.5;
/// Number of periods ahead for which needs are calculated: as many as the averages reach back.
const HORIZON_PERIODS: f64 = 1.0 / NEWEST;
/// α of the DRG paper's equation (4.1): weight of the previous period's device latency.
const ALPHA: f64 = 0.002;
/// γ of PARDA: weight of the newest period in a workload's window.
const PARDA_GAIN: f64 = 0.2;
/// β of PARDA for a workload of average weight, in slots.
const PARDA_STEP: f64 = 4.0;

/// A workload without a latency target is treated as if it had the cluster's smallest target times this factor, which is the
/// largest [`scale`].
fn without_target() -> f64 {
    scale(SCALES - 1)
}

/// A number that identifies a workload; the caller chooses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkloadId(pub u64);

/// One workload of a host, with its report on the last period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workload {
    /// The number of the workload.
    pub id: WorkloadId,
    /// The target for the workload's mean latency; `None` if it has no target.
    pub target: Option<Duration>,
    /// The workload's worth where not all targets can be met, and its share in methods by weight (above 0, at most 1e6).
    pub weight: f64,
    /// Requests per second that are reserved for or guaranteed to the workload while it asks for them; 0 = none.
    pub guaranteed_iops: f64,
    /// The workload's report on the last period.
    pub report: Report,
}

/// Reason for the number of slots of a workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// The method sets no bound.
    Unbounded,
    /// A share of the total by weight.
    ByWeight,
    /// The workload is idle: it may use a share by weight, which takes no slots from the others before requests arrive.
    Idle,
    /// The workload gets slots with which all workloads' latencies are the same fraction of their targets.
    EqualMargin {
        /// Smallest factor by which all targets could be multiplied and still be met; at most 1, unless no workload that asks
        /// for anything has a target.
        tightness: f64,
    },
    /// The workload gets the slots that its target needs, although not all targets can be met.
    NeedMet,
    /// The workload's target cannot be met beside the other workloads, or with any number of slots.
    Unachievable {
        /// Factor by which targets would have to be multiplied to be met; `None` if unknown or above ten.
        achievable_at: Option<f64>,
    },
    /// The workload's slots follow the device's latency ([`Method::Parda`]).
    ByLatency,
}

impl Reason {
    /// The reason's name in logs, metrics and API answers.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Unbounded => "unbounded",
            Self::ByWeight => "by_weight",
            Self::Idle => "idle",
            Self::EqualMargin { .. } => "equal_margin",
            Self::NeedMet => "need_met",
            Self::Unachievable { .. } => "unachievable",
            Self::ByLatency => "by_latency",
        }
    }
}

/// The slots of one workload until the next decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// The number of the workload.
    pub id: WorkloadId,
    /// I/Os that the workload may have in flight; a fraction is a slot for part of the time. `None`: no bound.
    pub slots: Option<f64>,
    /// Slots that the workload needs to meet its target; 0 if it is idle or the method does not go by need.
    /// [`Method::Needs`] assumes ten times the smallest target for a workload without one.
    pub need: f64,
    /// Reason for the number of slots.
    pub reason: Reason,
}

/// The slots of this host's workloads until the next decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan<'a> {
    /// Slots of all workloads of the cluster together; `None`: no bound.
    pub total: Option<f64>,
    /// Smallest factor by which all targets could be multiplied and still be met; they are met if it is at most 1. `None`: no
    /// targets, or a factor above ten.
    pub tightness: Option<f64>,
    /// One share for each workload of the latest [`Controller::observe`], in the same order.
    pub shares: &'a [Share],
}

/// The controller's memory of a workload.
#[derive(Clone, Copy, Debug)]
struct Known {
    workload: Workload,
    /// The workload's target, if the device can meet it with any number of slots.
    target: Option<Duration>,
    /// If the target is unachievable: the latency of a request alone at the device divided by the target, 1 or more.
    beyond: Option<f64>,
    /// For how long the workload has been idle; [`knee::MEMORY`] if it was idle when first seen.
    idle: Duration,
    /// Arriving requests per second, smoothed over periods.
    arrivals: f64,
    /// Smoothed absolute difference between a period's arrivals per second and `arrivals`.
    spread: f64,
    /// Mean device latency of the workload's requests in seconds, smoothed over periods.
    latency_s: f64,
    /// The part of `latency_s` in which requests waited for others to the same bytes. Such a wait takes a slot, but no throttle
    /// of other workloads shortens it.
    aside_s: f64,
    /// Seconds that the workload's requests have spent in the device since the last period with a completion, added up.
    pending_s: f64,
    /// Mean device latency in the last period with completions, in seconds, not smoothed.
    raw_s: f64,
    /// The value of `raw_s` one period earlier.
    raw_before_s: f64,
    /// l' of the DRG paper's equation (4.1), read as a moving average, in seconds: `raw_s`, mixed with this value one period
    /// earlier.
    smoothed_s: f64,
    /// Slots of the workload with [`Method::Parda`], which calls them the window.
    window: f64,
}

/// Decides the slots of the workloads of one host on one device. See the module's documentation.
#[derive(Clone, Debug)]
pub struct Controller {
    config: Config,
    known: Vec<Known>,
    /// The summary of this host's own workloads.
    own: Summary,
    total: f64,
    aim_s: f64,
    /// Mean device latency over the whole cluster in seconds, smoothed over periods; `None` before the first completion.
    latency_s: Option<f64>,
    /// The assumed target of workloads that have none, in seconds.
    no_target_s: f64,
    tightness: Option<f64>,
    knee: Knee,
    /// The elasticity of throughput over slots (0 to 1, see [`Knee`]) by the measurements of all hosts; 1 while alone.
    elasticity: f64,
    /// True if the elasticity follows more from measurements than from the assumed value.
    is_sure: bool,
    /// True if other hosts load the device but their summaries do not come.
    alone: bool,
    /// Weights of all workloads of the cluster together.
    weight: f64,
    shares: Vec<Share>,
}

impl Controller {
    /// A controller without workloads, which has not measured the device yet.
    ///
    /// # Errors
    /// See [`Config::validate`].
    pub fn new(config: &Config) -> Result<Self, InvalidConfig> {
        config.validate()?;
        Ok(Self {
            config: *config,
            known: Vec::new(),
            own: Summary::default(),
            total: match config.method {
                Method::Rwd | Method::SfqD => config.most,
                Method::None | Method::Parda | Method::Drg | Method::DrgSmoothed | Method::Needs => config.least,
            },
            aim_s: config.latency.map_or(WITHOUT_TARGETS_S, Duration::as_secs_f64),
            latency_s: None,
            no_target_s: WITHOUT_TARGETS_S * without_target(),
            tightness: None,
            knee: Knee::default(),
            elasticity: 0.0,
            is_sure: false,
            alone: false,
            weight: 0.0,
            shares: Vec::new(),
        })
    }

    /// The settings in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Records if this host is alone: others load the device, but their summaries do not come. A host that becomes alone
    /// forgets the total of the cluster's slots, and finds a total of its own from [`Config::least`] on, by latency alone: it
    /// cannot tell the load of the other hosts from the device's own speed. Knowledge of its workloads stays, and so do fixed
    /// totals.
    pub fn set_alone(&mut self, alone: bool) {
        if alone && !self.alone {
            self.forget();
        }
        self.alone = alone;
    }

    /// Begins anew from a total of [`Config::least`], for a host that joins others: figures learned alone do not hold for the
    /// cluster. Fixed totals stay.
    pub fn forget(&mut self) {
        if !matches!(self.config.method, Method::Rwd | Method::SfqD) {
            self.total = self.config.least;
            self.latency_s = None;
            self.knee = Knee::default();
        }
    }

    /// True if this host decides without other hosts, as after [`Self::set_alone`].
    pub fn is_alone(&self) -> bool {
        self.alone
    }

    /// Takes the workloads of this host with their reports on a period, in ascending order of their ids; workloads that are
    /// not listed are forgotten. Returns the summary for the other hosts. O(n).
    pub fn observe(&mut self, workloads: &[Workload]) -> &Summary {
        let before = core::mem::take(&mut self.known);
        let mut before = before.iter().peekable();
        for workload in workloads {
            let known = advance(&mut before, workload.id, |known| known.workload.id);
            self.known.push(Known::after(known, workload, self.config.least));
        }
        self.summarise();
        &self.own
    }

    /// Decides the slots of this host's workloads from the sum of all hosts' summaries, this host's included.
    pub fn tick(&mut self, cluster: &Summary) -> Plan<'_> {
        let latency = cluster.device_latency_s();
        if let Some(latency) = latency {
            let before = self.latency_s.unwrap_or(latency);
            self.latency_s = Some(before + NEWEST * (latency - before));
        }
        self.aim_s = match (self.config.latency, cluster.smallest_target) {
            (Some(latency), _) => latency.as_secs_f64(),
            (None, Some(target)) => target.as_secs_f64() * PART_OF_TARGET,
            (None, None) => WITHOUT_TARGETS_S,
        };
        let (mut total, mut tightness) = (Some(self.total), None);
        match self.config.method {
            Method::None | Method::SfqD => {
                total = total.filter(|_| self.config.method == Method::SfqD);
                self.share(|_| (None, 0.0, Reason::Unbounded));
            }
            Method::Rwd => {
                let (all, weights) = (self.total, cluster.weight);
                self.share(|known| (Some(all * known.workload.weight / weights), 0.0, Reason::ByWeight));
            }
            Method::Parda => {
                self.parda(cluster);
                total = None;
            }
            Method::Drg | Method::DrgSmoothed => {
                self.drg(cluster);
                total = Some(self.total);
            }
            Method::Needs if !self.is_bounded(cluster) => {
                self.learn(cluster, false);
                // Where a target appears, the total begins with what is in use.
                self.total = cluster.used.clamp(self.config.least, self.config.most);
                self.share(|known| (None, 0.0, known.unachievable().unwrap_or(Reason::Unbounded)));
                total = None;
            }
            Method::Needs => {
                self.learn(cluster, true);
                self.needs(cluster);
                total = Some(self.total);
                tightness = self.tightness.filter(|_| cluster.smallest_target.is_some());
            }
        }
        Plan { total, tightness, shares: &self.shares }
    }

    fn share(&mut self, mut decide: impl FnMut(&Known) -> (Option<f64>, f64, Reason)) {
        self.shares.clear();
        self.shares.extend(self.known.iter().map(|known| {
            let (slots, need, reason) = decide(known);
            // Precedence: a bound for latency targets takes no reservation.
            let slots = slots.map(|slots| slots.max(known.reserved()));
            Share { id: known.workload.id, slots, need, reason }
        }));
    }

    /// [`Method::Parda`]: a window (number of slots) for each workload, by the device's mean latency over the whole cluster.
    fn parda(&mut self, cluster: &Summary) {
        let (aim_s, most) = (self.aim_s, self.config.most);
        let latency_s = self.latency_s.unwrap_or(aim_s);
        let mean_weight = if cluster.workloads > 0.0 { cluster.active_weight / cluster.workloads } else { 1.0 };
        for known in &mut self.known {
            known.follow_latency(aim_s, latency_s, mean_weight, most);
        }
        self.share(|known| (Some(known.window), 0.0, Reason::ByLatency));
    }

    /// [`Method::Drg`] and [`Method::DrgSmoothed`] as published: the total by equation (4.2), divided by need, smallest need
    /// first; slots that are left are shared out.
    fn drg(&mut self, cluster: &Summary) {
        let is_smoothed = self.config.method == Method::DrgSmoothed;
        let latency_s = |known: &Known| if is_smoothed { known.smoothed_s } else { known.published_s() };
        let active = || self.known.iter().filter(|known| known.workload.report.completed > 0);
        let (count, sum) = active().fold((0.0, 0.0), |(count, sum), known| (count + 1.0, sum + latency_s(known)));
        if count > 0.0 {
            self.total = fast::total(cluster.used, self.aim_s, sum / count, self.config.least, self.config.most);
        }
        let (aim_s, window_s) = (self.aim_s, self.config.period.as_secs_f64());
        let need = |known: &Known| {
            let Some(target) = known.workload.target else { return 0.0 };
            let rate = need::published(&known.workload.report, target.as_secs_f64(), aim_s, window_s);
            rate.map_or(f64::INFINITY, |rate| rate * aim_s)
        };
        let claim = |known: &Known| {
            let report = &known.workload.report;
            let use_for = report.arrival_rate() + report.queued as f64 / window_s;
            Claim { need: need(known), weight: known.workload.weight, use_for }
        };
        let claims: Vec<Claim> = self.known.iter().map(claim).collect();
        let mut slots = split::smallest_first(&claims, self.total, LEAST).into_iter();
        self.share(|known| {
            let (slots, need) = (slots.next().unwrap_or(LEAST), need(known));
            let met = slots + 1e-9 >= need;
            (Some(slots), need, if met { Reason::NeedMet } else { Reason::Unachievable { achievable_at: None } })
        });
    }

    /// True if slots are to be bounded. Without a configured device latency and without targets that count, fewer slots
    /// would cost throughput and improve nothing. A host that is alone bounds them, as it does not know the others'
    /// targets.
    fn is_bounded(&self, cluster: &Summary) -> bool {
        cluster.targets > 0.0 || self.config.latency.is_some() || self.alone
    }

    /// Learns from the last period how the device's throughput depends on slots; `bounded`: slots were bounded in that period.
    fn learn(&mut self, cluster: &Summary, bounded: bool) {
        if (cluster.weight - self.weight).abs() > knee::SURPRISE * self.weight {
            self.knee = Knee::default();
        }
        self.weight = cluster.weight;
        // While the device has less to do than it may, its latency says nothing of what more slots would do.
        if !self.alone && (!bounded || cluster.queued > 0.0) {
            self.knee.learn(self.config.period, cluster.used, cluster.completed);
        }
        self.elasticity = if self.alone { 1.0 } else { Knee::together(cluster.known, cluster.elasticity) };
        self.is_sure = !self.alone && cluster.known > knee::DOUBT;
    }

    /// Moves the total number of slots towards the one at which the device's latency is just as long as targets permit.
    fn follow_device(&mut self, cluster: &Summary) {
        // While those with a target are idle, the total stays what it is.
        let aims = cluster.smallest_target.is_some() || self.config.latency.is_some() || self.alone;
        if cluster.completed <= 0.0 || !aims {
            return;
        }
        let factor = match (self.config.latency, cluster.smallest_target) {
            (None, Some(_)) if cluster.device_part > 0.0 => {
                let most = self.tightness.unwrap_or(MOST_OF_TARGET).clamp(PART_OF_TARGET, MOST_OF_TARGET);
                let worth = (self.elasticity / knee::WORTH_A_TARGET).min(1.0);
                (PART_BEYOND_KNEE + worth * (most - PART_BEYOND_KNEE)) / cluster.device_part
            }
            // Little's law tells what the latency will be while those inside have not all come out yet.
            _ => self.aim_s / (cluster.used * self.config.period.as_secs_f64() / cluster.completed).max(1e-9),
        };
        // The least that a workload has and does not use loads nothing.
        let total = (cluster.used * factor + cluster.unused).clamp(self.config.least, self.config.most);
        if total < self.total || cluster.queued > 0.0 {
            self.total += NEWEST * (total - self.total);
        }
    }

    fn needs(&mut self, cluster: &Summary) {
        self.follow_device(cluster);
        // Every workload has the least; what is left is shared by need.
        let least = LEAST.min(0.5 * self.total / cluster.workloads.max(1.0));
        let total = self.total - least * cluster.workloads;
        let (horizon_s, no_target_s) = (self.horizon_s(), self.no_target_s);
        if let Some(target) = cluster.smallest_target {
            self.no_target_s = target.as_secs_f64() * without_target();
        }
        let fit = cluster.fit(total);
        self.tightness = fit.map(|fit| fit.scale());
        let met = fit.filter(|fit| fit.place <= summary::OWN || cluster.smallest_target.is_none());
        let level = cluster.level(total);
        let achievable_at = self.tightness;
        self.share(|known| {
            let weight = known.workload.weight;
            if known.workload.report.is_idle() {
                // It takes nothing from the others while it is.
                return (Some(least + total * weight / (cluster.active_weight + weight)), 0.0, Reason::Idle);
            }
            let at = |place: usize| known.need(scale(place), no_target_s, horizon_s);
            let need = at(summary::OWN);
            let (more, reason) = match met {
                Some(fit) => {
                    let more = match fit.place.checked_sub(1) {
                        Some(before) => at(before) * (1.0 - fit.part) + at(fit.place) * fit.part,
                        None => at(0) + fit.left * weight / cluster.active_weight,
                    };
                    (more, Reason::EqualMargin { tightness: fit.scale() })
                }
                None if need <= least + level * weight => (need.min(level * weight), Reason::NeedMet),
                None => (level * weight, Reason::Unachievable { achievable_at }),
            };
            (Some(least + more), need, known.unachievable().unwrap_or(reason))
        });
    }

    fn horizon_s(&self) -> f64 {
        self.config.period.as_secs_f64() * HORIZON_PERIODS
    }

    fn summarise(&mut self) {
        let known = self.knee.known();
        let mut own = Summary { known, elasticity: known * self.knee.elasticity(), ..Summary::default() };
        let elasticity = if self.is_sure { self.elasticity } else { 0.0 };
        let mut shares = self.shares.iter().peekable();
        for known in &mut self.known {
            known.judge(elasticity);
            let (workload, report) = (&known.workload, &known.workload.report);
            own.weight += workload.weight;
            own.targets += f64::from(u8::from(known.target.is_some() && known.idle < knee::MEMORY));
            if report.is_idle() {
                continue;
            }
            own.workloads += 1.0;
            own.active_weight += workload.weight;
            own.used += report.used();
            let share = advance(&mut shares, workload.id, |share| share.id);
            let least = share.and_then(|share| share.slots).map_or(0.0, |slots| slots.min(LEAST));
            own.unused += (least - report.used()).max(0.0);
            own.completed += report.completed as f64;
            own.device_s += report.device_time.as_secs_f64();
            own.queued += report.queued as f64;
            if let Some(target) = known.target {
                own.device_part = own.device_part.max(known.device_s() / target.as_secs_f64().max(1e-9));
                own.smallest_target = Some(own.smallest_target.map_or(target, |smallest| smallest.min(target)));
            }
        }
        if self.config.method == Method::Needs {
            let horizon_s = self.horizon_s();
            // A power takes longer than the rest, and there may be a thousand workloads.
            let scales: [f64; summary::SCALES] = core::array::from_fn(scale);
            for known in self.known.iter().filter(|known| !known.workload.report.is_idle()) {
                for (scale, sum) in scales.into_iter().zip(&mut own.needs) {
                    *sum += known.need(scale, self.no_target_s, horizon_s);
                }
                own.count(known.need(scales[summary::OWN], self.no_target_s, horizon_s), known.workload.weight);
            }
        }
        self.own = own;
    }
}

/// Advances `list`, which is in ascending order of ids, past `id`; returns the element with this id, if any. From call to call
/// `id` must ascend: all calls together are O(n).
fn advance<'a, T>(list: &mut Peekable<Iter<'a, T>>, id: WorkloadId, of: impl Fn(&T) -> WorkloadId) -> Option<&'a T> {
    while list.next_if(|one| of(one) < id).is_some() {}
    list.next_if(|one| of(one) == id)
}

impl Known {
    /// Notes if the target is within reach. A target shorter than the latency of a request that is alone in the device, as far
    /// as that latency is known, cannot be met with any number of slots.
    fn judge(&mut self, elasticity: f64) {
        let target_s = self.workload.target.map_or(f64::INFINITY, Duration::as_secs_f64);
        let times = self.device_s() * elasticity / target_s.max(1e-9);
        self.beyond = (times >= 1.0).then_some(times);
        self.target = self.workload.target.filter(|_| self.beyond.is_none());
    }

    /// `latency_s` without `aside_s`; at least the measured latency, as a long wait counts only when it is over.
    fn device_s(&self) -> f64 {
        (self.latency_s - self.aside_s).max(self.latency_s.min(self.raw_s))
    }

    fn unachievable(&self) -> Option<Reason> {
        self.beyond.map(|times| Reason::Unachievable { achievable_at: Some(times) })
    }

    /// The workload's state after another period, from its state `before`.
    fn after(before: Option<&Self>, workload: &Workload, least: f64) -> Self {
        let report = &workload.report;
        let arrivals = report.arrival_rate();
        // By Little's law: what is inside tells of its latency before it comes out, also while nothing does.
        let pending_s = before.map_or(0.0, |before| before.pending_s) + report.occupied.as_secs_f64();
        let latency = (report.completed > 0).then(|| pending_s / report.completed as f64);
        let pending_s = if report.completed > 0 || report.is_idle() { 0.0 } else { pending_s };
        let aside = report.aside.as_secs_f64() / report.completed.max(1) as f64;
        let Some(before) = before else {
            let latency_s = latency.unwrap_or(0.0);
            let raw_s = report.device_latency_s().unwrap_or(0.0);
            return Self {
                workload: *workload,
                target: None,
                beyond: None,
                idle: if report.is_idle() { knee::MEMORY } else { Duration::ZERO },
                arrivals,
                spread: 0.0,
                latency_s,
                aside_s: aside,
                pending_s,
                raw_s,
                raw_before_s: raw_s,
                smoothed_s: raw_s,
                window: least,
            };
        };
        let differs = (arrivals - before.arrivals).abs();
        let raw_s = report.device_latency_s().unwrap_or(before.raw_s);
        Self {
            workload: *workload,
            target: None,
            beyond: None,
            idle: if report.is_idle() { before.idle + report.length } else { Duration::ZERO },
            arrivals: before.arrivals + NEWEST * (arrivals - before.arrivals),
            spread: before.spread + NEWEST * (differs - before.spread),
            latency_s: match latency {
                Some(latency) if before.latency_s > 0.0 => before.latency_s + NEWEST * (latency - before.latency_s),
                Some(latency) => latency,
                None => before.latency_s,
            },
            aside_s: match latency {
                Some(_) if before.latency_s > 0.0 => before.aside_s + NEWEST * (aside - before.aside_s),
                Some(_) => aside,
                None => before.aside_s,
            },
            pending_s,
            raw_s,
            raw_before_s: before.raw_s,
            smoothed_s: (1.0 - ALPHA) * raw_s + ALPHA * before.smoothed_s,
            window: before.window,
        }
    }

    /// l' of the DRG paper's equation (4.1), in seconds: the device latency of the last period, mixed with the measured (not
    /// the smoothed) latency of the period before.
    fn published_s(&self) -> f64 {
        (1.0 - ALPHA) * self.raw_s + ALPHA * self.raw_before_s
    }

    /// Updates PARDA's window w: w(t) = (1 − γ)·w + γ·(L / L(t)·w + β), with L the latency aimed at, L(t) the measured one, and
    /// β in proportion to the weight. An idle workload keeps its window.
    fn follow_latency(&mut self, aim_s: f64, latency_s: f64, mean_weight: f64, most: f64) {
        if self.workload.report.is_idle() {
            return;
        }
        let factor = if latency_s > 0.0 { (aim_s / latency_s).min(1e6) } else { 1.0 };
        let step = PARDA_STEP * self.workload.weight / mean_weight;
        let next = (1.0 - PARDA_GAIN) * self.window + PARDA_GAIN * (factor * self.window + step);
        self.window = next.clamp(LEAST, most);
    }

    /// Slots that the workload's guaranteed rate takes by Little's law; 0 while nothing is queued.
    fn reserved(&self) -> f64 {
        if self.workload.report.queued > 0 { self.workload.guaranteed_iops * self.latency_s } else { 0.0 }
    }

    /// Slots that the workload needs to meet its target times `scale`: the larger `scale`, the fewer or equally many.
    /// `no_target_s`: the assumed target without one; `horizon_s`: time to calculate ahead. Both are in seconds.
    fn need(&self, scale: f64, no_target_s: f64, horizon_s: f64) -> f64 {
        let target_s = self.target.map_or(no_target_s, Duration::as_secs_f64);
        let allowance = target_s * scale - self.device_s();
        let mut rate = need::rate(&self.workload.report, self.arrivals + self.spread, allowance, horizon_s);
        if self.workload.report.queued > 0 {
            rate = rate.max(self.workload.guaranteed_iops);
        }
        // More than one for each request is of no use.
        let useful = (self.arrivals + self.spread) * self.latency_s + self.workload.report.queued as f64;
        (rate * self.latency_s).min(useful)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;
    use core::cell::Cell;

    use proptest::prelude::*;

    use super::{WorkloadId, advance};

    proptest! {
        /// Workloads that join or leave between two periods cost no search for the others.
        #[test]
        fn a_period_looks_at_each_of_its_workloads_and_of_those_before_a_few_times(
            all in prop::collection::btree_map(0u64..100_000, any::<(bool, bool)>(), 0..300),
        ) {
            let of = |there: fn((bool, bool)) -> bool| -> Vec<WorkloadId> {
                all.iter().filter(|(_, when)| there(**when)).map(|(id, _)| WorkloadId(*id)).collect()
            };
            let (before, now) = (of(|when| when.0), of(|when| when.1));
            let (mut list, looks) = (before.iter().peekable(), Cell::new(0));
            for &id in &now {
                let looked = |one: &WorkloadId| {
                    looks.set(looks.get() + 1);
                    *one
                };
                prop_assert_eq!(advance(&mut list, id, looked), before.iter().find(|one| **one == id));
            }
            prop_assert!(looks.get() <= 2 * (before.len() + now.len()), "{} looks", looks.get());
        }
    }
}
