//! Decides how many slots (requests in flight) each of an array's volumes has on this host.
//!
//! ```text
//!  diskstats ─▶ observe ─▶ end_period ─▶ Summary ─▶ other hosts
//!                                  decide ◀─ sum of all Summaries ─┘ ─▶ slots of each volume ─▶ queue lengths
//! ```

use evenkeel_control::log::{Decided, Log, Newest};
use evenkeel_control::slots::{Controller, InvalidConfig, Reason, Report, Summary, Workload, WorkloadId};
use evenkeel_control::{Duration, Instant};
use evenkeel_policy::config::Cluster;
use evenkeel_policy::config::{Enforcement, Percentile};
use evenkeel_policy::decision::{DecisionRecord, Unit, seconds};
use evenkeel_policy::explain::{self, OfSlots};
use evenkeel_policy::state::{SlotsState, TenantSlotsState};
use evenkeel_policy::verdict::{self, Lately};

use super::meter::{Meter, QueueSlots};
use super::record::{QueueDepthState, VolumeState};
use super::{Due, MAX_RECORDS};
use crate::config::{ArrayConfig, ArrayVolume};
use crate::sensor::diskstats::Sample;

/// Length of the windows of time for each of which a latency target counts as met or violated.
const WINDOW: Duration = Duration::from_secs(1);

/// Number of consecutive ticks without a new sample after which the bound on a volume's slots is lifted (signal lost).
pub(crate) const LOST_TICKS: u32 = 10;

/// A decision about a volume's slots, as the log keeps it.
#[derive(Clone, Copy, Debug)]
struct Decision {
    volume: usize,
    clustered: bool,
    reason: Reason,
    latency_s: Option<f64>,
    slots: Option<f64>,
}

impl Decided for Decision {
    fn is_renewed_by(&self, newer: &Self) -> bool {
        self.clustered == newer.clustered && self.reason.name() == newer.reason.name()
    }

    fn figure(&self) -> Option<f64> {
        self.slots
    }
}

/// A volume of the array on this host, with its measurements and its slots.
#[derive(Debug, Default)]
struct Volume {
    name: String,
    config: ArrayVolume,
    meter: Meter,
    /// Ticks since the volume's newest sample.
    unseen: u32,
    queue: QueueSlots,
    report: Report,
    /// Slots that the tenant's reservation and guarantee need, by Little's law; 0 while no request is queued.
    reserved: f64,
    slots: Option<f64>,
    need: f64,
    reason: Option<Reason>,
    /// Sum of the reports of the current window, at whose end the latency target is judged.
    window: Report,
    windows: u64,
    violated: u64,
    /// True if the newest window missed the target; `None` if nothing completed in it.
    missed: Option<bool>,
    newest: Newest,
}

/// An array that hosts share, with the volumes of it that this host uses.
#[derive(Debug)]
pub struct Array {
    name: String,
    config: ArrayConfig,
    controller: Controller,
    volumes: Vec<Volume>,
    workloads: Vec<Workload>,
    due: Due,
    begun: bool,
    /// True if slots are decided together with other hosts.
    clustered: bool,
    /// Fraction of this host's share of slots that the host takes, 0 to 1.
    ramp: f64,
    /// This host's latest summary, if it has not been reported to the other hosts yet.
    summary: Option<Summary>,
    total: Option<f64>,
    tightness: Option<f64>,
    /// True if slots were decided since the latest call of [`Array::take_slots`].
    decided: bool,
    decisions: Log<Decision>,
}

impl Array {
    /// An array that has not been measured yet.
    ///
    /// # Errors
    /// A setting that the controller refuses; a configuration that has passed the checks on reading contains none.
    pub fn new(name: &str, config: &ArrayConfig, cluster: &Cluster) -> Result<Self, InvalidConfig> {
        let volumes = config.volumes.iter().map(|(name, config)| Volume::new(name, config)).collect();
        Ok(Self {
            name: name.to_owned(),
            config: config.clone(),
            controller: Controller::new(&config.controller(cluster))?,
            volumes,
            workloads: Vec::new(),
            due: Due::default(),
            begun: false,
            clustered: false,
            ramp: 1.0,
            summary: None,
            total: None,
            tightness: None,
            decided: false,
            decisions: Log::new(MAX_RECORDS.max(2 * config.volumes.len())),
        })
    }

    /// Name of the array.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Settings of the array.
    pub fn config(&self) -> &ArrayConfig {
        &self.config
    }

    /// Takes in a sample of the disks of a volume, whose queues had the slots `queue` in the sample's interval. `volume` is
    /// the volume's index in the configuration. Call it at every tick, with `None` if there is no new sample.
    pub fn observe(&mut self, volume: usize, sample: Option<&Sample>, queue: QueueSlots) {
        let Some(volume) = self.volumes.get_mut(volume) else { return };
        volume.queue = queue;
        match sample {
            Some(sample) => {
                volume.meter.observe(sample, queue);
                volume.unseen = 0;
            }
            None => {
                volume.unseen = if queue.all > 0 { volume.unseen.saturating_add(1) } else { 0 };
                // No reading is not the same as no load.
                self.decided |= volume.unseen == LOST_TICKS;
            }
        }
    }

    /// Names of the volumes whose bound on slots is lifted, because samples of their disks are missing.
    pub fn lost(&self) -> impl Iterator<Item = &str> {
        self.volumes.iter().filter(|volume| volume.is_lost()).map(|volume| volume.name.as_str())
    }

    /// True if the control period is over at `now`. If this host decides alone, the call also ends the period and decides on
    /// slots.
    pub fn tick(&mut self, now: Instant) -> bool {
        if !self.due.is_over(now, self.controller.config().period) {
            return false;
        }
        // The first period begins with the first sample.
        if !std::mem::replace(&mut self.begun, true) {
            return false;
        }
        if !self.clustered {
            let own = self.end_period().clone();
            self.share(now, &own);
            self.summary = Some(own);
        }
        true
    }

    /// This host's summary of the period that has just ended, to be reported to the other hosts, once for each period. In a
    /// cluster this call itself ends the period, because periods end for all hosts at once.
    pub fn take_summary(&mut self) -> Option<Summary> {
        if self.clustered { Some(self.end_period().clone()) } else { self.summary.take() }
    }

    /// Shares out slots by `cluster`, the sum of all hosts' summaries including this host's. `ramp`: fraction of this host's
    /// share that the host takes, 0 to 1.
    pub fn decide(&mut self, now: Instant, cluster: &Summary, ramp: f64) {
        if !self.clustered {
            self.controller.forget();
        }
        (self.clustered, self.ramp) = (true, ramp.clamp(0.0, 1.0));
        self.controller.set_alone(false);
        self.share(now, cluster);
    }

    /// Ends the sharing of slots with other hosts: from now on this host decides by its own measurements, and estimates from
    /// the start how many requests in flight the array can take.
    pub fn alone(&mut self) {
        if std::mem::take(&mut self.clustered) {
            self.ramp = 1.0;
        }
        self.controller.set_alone(true);
    }

    /// The slots of each volume, in the configuration's order, if slots were decided since the previous call; `f64::INFINITY`
    /// means no bound.
    pub fn take_slots(&mut self) -> Option<impl Iterator<Item = f64>> {
        std::mem::take(&mut self.decided).then(|| self.volumes.iter().map(Volume::granted))
    }

    fn end_period(&mut self) -> &Summary {
        self.workloads.clear();
        for (volume, id) in self.volumes.iter_mut().zip(0..) {
            volume.report = volume.meter.end_period(volume.queue);
            volume.judge();
            let mean_bytes = volume.report.bytes as f64 / volume.report.completed.max(1) as f64;
            let guaranteed_iops = volume.config.owed.iops(mean_bytes);
            let rate = if volume.report.queued > 0 { volume.report.completion_rate() } else { 0.0 };
            volume.reserved = if rate > 0.0 { guaranteed_iops * volume.report.used() / rate } else { 0.0 };
            self.workloads.push(Workload {
                id: WorkloadId(id),
                target: volume.config.latency.map(|latency| latency.target),
                weight: volume.config.weight,
                guaranteed_iops,
                report: volume.report,
            });
        }
        self.controller.observe(&self.workloads)
    }

    fn share(&mut self, now: Instant, cluster: &Summary) {
        let plan = self.controller.tick(cluster);
        (self.total, self.tightness, self.decided) = (plan.total, plan.tightness, true);
        for share in plan.shares {
            let Some(volume) = usize::try_from(share.id.0).ok().and_then(|at| self.volumes.get_mut(at)) else {
                continue;
            };
            // Precedence: also a host that joins has at once what is reserved.
            let (ramp, least) = (self.ramp, volume.reserved.max(1.0));
            volume.slots = share.slots.map(|slots| (slots * ramp).max(slots.min(least)));
            (volume.need, volume.reason) = (share.need, Some(share.reason));
        }
        self.record(now);
    }

    fn record(&mut self, now: Instant) {
        for (at, volume) in self.volumes.iter_mut().enumerate() {
            let Some(reason) = volume.reason else { continue };
            let (clustered, latency_s, slots) = (self.clustered, volume.report.latency_s(), volume.slots);
            let decision = Decision { volume: at, clustered, reason, latency_s, slots };
            self.decisions.record_of(&mut volume.newest, now, decision);
        }
    }

    /// Name of the method by which slots are shared out.
    pub fn method(&self) -> &'static str {
        self.controller.config().method.name()
    }

    /// The array's measurements and decisions; the enforcement point fills in the queues of each volume.
    pub fn state(&self) -> QueueDepthState {
        QueueDepthState {
            period_s: self.controller.config().period.as_secs_f64(),
            slots: SlotsState {
                method: self.method().into(),
                clustered: self.clustered,
                total: self.total,
                tightness: self.tightness,
            },
            volumes: self.volumes.iter().map(Volume::state).collect(),
        }
    }

    /// The decisions in the log, oldest first.
    pub fn records(&self) -> impl Iterator<Item = DecisionRecord> {
        self.decisions.iter().filter_map(|entry| {
            let Decision { volume, clustered, reason, latency_s, slots } = &entry.decision;
            let volume = self.volumes.get(*volume)?;
            let because = volume.because(reason, *slots, *latency_s);
            let with = if *clustered { "decided with other hosts" } else { "decided by this host alone" };
            Some(DecisionRecord {
                point: Enforcement::QueueDepth,
                pool: self.name.clone(),
                tenant: volume.name.clone(),
                reason: reason.name().into(),
                because: format!("{because}; {with}"),
                measured: latency_s.map(|seconds| seconds * 1e3),
                measured_in: Unit::Ms,
                percentile: "mean".into(),
                target: volume.config.latency.map(|latency| latency.target.as_millis_f64()),
                set: *slots,
                set_in: Unit::Slots,
                ..DecisionRecord::of(entry, seconds)
            })
        })
    }
}

impl Volume {
    fn new(name: &str, config: &ArrayVolume) -> Self {
        Self { name: name.to_owned(), config: config.clone(), ..Self::default() }
    }

    /// Sentence with the reason for the volume's slots. `latency_s`: the volume's mean latency in the period.
    fn because(&self, reason: &Reason, granted: Option<f64>, latency_s: Option<f64>) -> String {
        let target = self.config.latency.map(|latency| (Percentile::Mean, latency.target));
        let measured = latency_s.map(|seconds| Duration::from_nanos((seconds * 1e9) as u64));
        explain::slots(reason, &OfSlots { tenant: &self.name, granted, target, measured })
    }

    const fn is_lost(&self) -> bool {
        self.unseen >= LOST_TICKS
    }

    fn granted(&self) -> f64 {
        let ceiling = self.config.ceiling.map_or(f64::INFINITY, f64::from);
        self.slots.filter(|_| !self.is_lost()).unwrap_or(f64::INFINITY).min(ceiling)
    }

    fn judge(&mut self) {
        let (window, report) = (&mut self.window, &self.report);
        window.length = window.length + report.length;
        window.completed += report.completed;
        window.latency = window.latency + report.latency;
        window.occupied = window.occupied + report.occupied;
        if window.length < WINDOW {
            return;
        }
        let window = std::mem::take(window);
        let Some(target) = self.config.latency.map(|latency| latency.target) else { return };
        self.missed = match window.latency_s() {
            Some(mean) => Some(mean > target.as_secs_f64()),
            // Requests were inside all the time, and none came out.
            None => (window.used() >= 1.0 && window.length > target).then_some(true),
        };
        self.windows += u64::from(self.missed.is_some());
        self.violated += u64::from(self.missed == Some(true));
    }

    fn state(&self) -> VolumeState {
        let report = &self.report;
        let (response_s, device_s) = (report.latency_s(), report.device_latency_s());
        let seconds = report.length.as_secs_f64();
        let granted = Some(self.granted()).filter(|slots| slots.is_finite());
        let slots = TenantSlotsState {
            target_ms: self.config.latency.map(|latency| latency.target.as_millis_f64()),
            percentile: "mean".into(),
            need: self.need,
            granted,
            used: report.used(),
            queueing_delay_ms: response_s.zip(device_s).map(|(all, device)| (all - device).max(0.0) * 1e3),
            device_latency_ms: device_s.map(|seconds| seconds * 1e3),
            windows_total: self.windows,
            violated_total: self.violated,
            reason: self.reason.map_or("", |reason| reason.name()).into(),
            measured_ms: response_s.filter(|_| self.config.latency.is_some()).map(|seconds| seconds * 1e3),
            because: self.reason.map(|reason| self.because(&reason, granted, response_s)).unwrap_or_default(),
        };
        let latency_ms = response_s.map(|seconds| seconds * 1e3);
        let (judged, violated) = self.missed.map_or((0, 0), |missed| (1, u64::from(missed)));
        let lately = Lately {
            window_s: seconds,
            iops: report.completion_rate(),
            bytes_per_s: if seconds > 0.0 { report.bytes as f64 / seconds } else { 0.0 },
            latency_ms,
            queue_latency_ms: slots.queueing_delay_ms,
            device_latency_ms: slots.device_latency_ms,
            targets: verdict::by_seconds(&slots, judged, violated, latency_ms).into_iter().collect(),
            because: slots.because.clone(),
            ..Lately::default()
        };
        let (name, device) = (self.name.clone(), self.config.device.clone());
        VolumeState { name, device, queued: report.queued, slots, queues: Vec::new(), lately }
    }
}

#[cfg(test)]
#[path = "queue_depth_tests.rs"]
mod tests;
