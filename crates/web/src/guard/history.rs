//! The history of an agent: figures, reasons and troubles from its state, decisions from its log.
//!
//! Rates are those of the agent's last interval in each second.

use std::io;
use std::sync::{Arc, OnceLock, Weak};

use evenkeel_guard::loops::record::{
    At, CgroupState, DirectionState, Measured, OsdState, PacketsState, PoolState, QueueDepthState, ReadPercentiles,
    State,
};
use evenkeel_history::{Figures, Gauge, Sample, Series};
use evenkeel_policy::decision::{DecisionRecord, Unit};
use evenkeel_policy::health::Trouble;

use super::{RecordsOf, StateOf};
use crate::history::{HISTORY_LOST, Held, Place, Program, Recorder, Sense};

/// Decisions that are read at a time, at most: the newest.
const MAX_DECISIONS: usize = 1_000;

/// Starts to record the history of an agent at `place`. `state` returns the agent's state, `records` its
/// newest decisions.
///
/// # Errors
/// When no thread can be started.
pub fn record(
    place: Place,
    state: impl Fn() -> State + Send + Sync + 'static,
    records: impl Fn(Option<&str>, usize) -> Vec<DecisionRecord> + Send + Sync + 'static,
) -> io::Result<Arc<Recorder>> {
    let program = Program { name: "agent", key: "agent.history" };
    let started: Arc<OnceLock<Weak<Recorder>>> = Arc::default();
    let itself = Arc::clone(&started);
    let own = move || itself.get()?.upgrade()?.trouble();
    let sensed =
        Sensed { state: Box::new(state), records: Box::new(records), own: Box::new(own), last: State::default() };
    let recorder = Arc::new(Recorder::start(program, move || Some(place.clone()), sensed)?);
    let _ = started.set(Arc::downgrade(&recorder));
    Ok(recorder)
}

struct Sensed {
    state: StateOf,
    records: RecordsOf,
    /// The trouble of the history itself, which the agent's state lacks.
    own: Box<dyn Fn() -> Option<Trouble> + Send>,
    last: State,
}

impl Sense for Sensed {
    fn samples(&mut self) -> Vec<Sample> {
        self.last = (self.state)();
        samples(&self.last)
    }

    fn held(&mut self) -> Held {
        let mut troubles = std::mem::take(&mut self.last.health.troubles);
        // The ledger itself records the end of a pause.
        troubles.extend((self.own)().filter(|trouble| trouble.kind != HISTORY_LOST));
        let decisions = (self.records)(None, MAX_DECISIONS);
        Held { uptime_s: self.last.uptime_s, troubles, decisions, ..Held::default() }
    }
}

/// The figures of all pools in a second.
pub(super) fn samples(state: &State) -> Vec<Sample> {
    let mut samples = Vec::new();
    for pool in &state.pools {
        match &pool.at {
            At::Packets(at) => packets(pool, at, &mut samples),
            At::Cgroup(at) => cgroup(pool, at, &mut samples),
            At::QueueDepth(at) => queue_depth(pool, at, &mut samples),
            At::Osd(at) => samples.push(sample(pool, "", "", osd(at))),
        }
    }
    samples.retain(|sample| !sample.figures.is_idle());
    samples
}

fn sample(pool: &PoolState, tenant: &str, device: &str, figures: Figures) -> Sample {
    let [pool, tenant, device] = [&pool.name, tenant, device].map(str::to_owned);
    Sample { series: Arc::new(Series { pool, tenant, device }), figures }
}

/// A count, a rate in a second, or a time in microseconds as a whole number.
fn whole(value: f64) -> u64 {
    value.max(0.0).round() as u64
}

fn us(ms: Option<f64>) -> u64 {
    whole(ms.unwrap_or(0.0) * 1e3)
}

/// The figures of a second with these requests, bytes and mean latency.
fn done(iops: f64, bytes_per_s: f64, latency_ms: Option<f64>) -> Figures {
    let requests = whole(iops);
    let latency_us = whole(requests as f64 * latency_ms.unwrap_or(0.0) * 1e3);
    Figures { requests, bytes: whole(bytes_per_s), latency_us, ..Figures::default() }
}

/// These figures with percentiles, where single reads are timed.
fn with_percentiles(figures: Figures, of: Option<ReadPercentiles>) -> Figures {
    let Some(ReadPercentiles { p50_ms, p99_ms, p999_ms }) = of else { return figures };
    let [p50_us, p99_us, p999_us] = [p50_ms, p99_ms, p999_ms].map(|ms| us(Some(ms)));
    Figures { p50_us, p99_us, p999_us, ..figures }
}

fn slots(slots: Option<f64>) -> Gauge {
    slots.map_or_else(Gauge::default, |slots| Gauge::at(whole(slots * 1e3)))
}

fn packets(pool: &PoolState, at: &PacketsState, samples: &mut Vec<Sample>) {
    let figures = Figures {
        in_flight: Gauge::at(at.in_flight),
        delay_us: Gauge::at(us(Some(at.mean_delay_ms))),
        ..done(at.iops, at.read_bytes_per_s + at.write_bytes_per_s, at.latency_ms)
    };
    samples.push(sample(pool, "", "", with_percentiles(figures, at.read_percentiles)));
    for device in &at.devices {
        let figures = done(device.iops, device.read_bytes_per_s + device.write_bytes_per_s, device.latency_ms);
        let in_flight = Gauge::at(device.in_flight);
        samples.push(sample(pool, "", &device.name, Figures { in_flight, ..figures }));
    }
    for client in &at.clients {
        let delay_us = Gauge::at(us(Some(client.delay_ms)));
        let figures = Figures { bytes: whole(client.bytes_per_s), delay_us, ..Figures::default() };
        samples.push(sample(pool, &client.address, "", figures));
    }
}

fn cgroup(pool: &PoolState, at: &CgroupState, samples: &mut Vec<Sample>) {
    let mut whole_pool = Figures::default();
    for group in &at.groups {
        let mut figures = Figures::default();
        for DirectionState { unit, measured, limit, .. } in [&group.read, &group.write].into_iter().flatten() {
            let (done, limits) = match unit {
                Unit::BytesPerS => (&mut figures.bytes, &mut figures.limit_bytes_per_s),
                _ => (&mut figures.requests, &mut figures.limit_iops),
            };
            *done += whole(*measured);
            // Reads and writes each have a limit: the tenant's is the larger.
            if limit.is_finite() && whole(*limit) > limits.max {
                *limits = Gauge::at(whole(*limit));
            }
        }
        if let Some(throttled) = &group.latency {
            figures.bytes += whole(throttled.bytes_per_s);
            figures.requests += whole(throttled.iops);
            figures.delay_us = Gauge::at(us(Some(throttled.delay_ms)));
            figures = with_percentiles(figures, throttled.read_percentiles);
        }
        whole_pool.requests += figures.requests;
        whole_pool.bytes += figures.bytes;
        let device = if group.tenant == group.group { "" } else { &group.group };
        samples.push(sample(pool, &group.tenant, device, figures));
    }
    whole_pool.bytes += whole(at.background_bytes_per_s);
    if let Some(latency) = &at.latency {
        whole_pool.in_flight = Gauge::at(latency.in_flight);
        whole_pool = with_percentiles(whole_pool, latency.read_percentiles);
    }
    samples.push(sample(pool, "", "", whole_pool));
}

fn queue_depth(pool: &PoolState, at: &QueueDepthState, samples: &mut Vec<Sample>) {
    let mut whole_pool = Figures { slots: slots(at.total_slots), ..Figures::default() };
    let mut queued = 0;
    for volume in &at.volumes {
        let figures = Figures {
            queued: Gauge::at(volume.queued),
            slots: slots(volume.slots.granted),
            ..done(volume.iops, volume.bytes_per_s, volume.latency_ms)
        };
        whole_pool.requests += figures.requests;
        whole_pool.bytes += figures.bytes;
        whole_pool.latency_us += figures.latency_us;
        queued += volume.queued;
        samples.push(sample(pool, &volume.name, "", figures));
    }
    whole_pool.queued = Gauge::at(queued);
    samples.push(sample(pool, "", "", whole_pool));
}

fn osd(at: &OsdState) -> Figures {
    let Measured { store_latency_ms, commits_per_s, cost_bytes_per_s, waiting, .. } = at.measured;
    let (queued, budget) = (Gauge::at(waiting), Gauge::at(at.budget_bytes));
    Figures { queued, budget, ..done(commits_per_s, cost_bytes_per_s, store_latency_ms) }
}

#[cfg(test)]
mod tests {
    use evenkeel_guard::loops::record::{GroupState, GroupThrottleState, LocalState};
    use evenkeel_policy::health::Level;

    use super::*;

    #[test]
    fn a_shortage_of_space_for_the_history_is_recorded() {
        let kinds = |kind: &'static str| {
            let own = move || Some(Trouble::new(Level::Warning, kind, "history", "100 MiB are free", "make room"));
            let mut sensed = Sensed {
                state: Box::new(State::default),
                records: Box::new(|_, _| Vec::new()),
                own: Box::new(own),
                last: State::default(),
            };
            sensed.held().troubles.into_iter().map(|trouble| trouble.kind).collect::<Vec<_>>()
        };
        assert_eq!(kinds("space"), ["space"]);
        assert_eq!(kinds(HISTORY_LOST), Vec::<String>::new(), "the ledger records a pause");
    }

    #[test]
    fn pools_whose_reads_are_timed_have_three_percentiles() {
        let read_percentiles = Some(ReadPercentiles { p50_ms: 0.5, p99_ms: 2.0, p999_ms: 7.25 });
        let packets = PacketsState { iops: 10.0, read_percentiles, ..PacketsState::default() };
        let latency = LocalState { in_flight: 3, read_percentiles, ..LocalState::default() };
        let local = CgroupState { latency: Some(latency), ..CgroupState::default() };
        for at in [At::Packets(packets), At::Cgroup(local)] {
            let pool = PoolState { name: "a".into(), at, ..PoolState::default() };
            let samples = samples(&State { pools: vec![pool], ..State::default() });
            let Figures { p50_us, p99_us, p999_us, .. } = samples[0].figures;
            assert_eq!((samples.len(), [p50_us, p99_us, p999_us]), (1, [500, 2_000, 7_250]));
        }
    }

    #[test]
    fn each_group_has_the_percentiles_of_its_own_reads() {
        let group = |name: &str, p99_ms: Option<f64>| {
            let read_percentiles = p99_ms.map(|p99_ms| ReadPercentiles { p50_ms: 0.5, p99_ms, p999_ms: 9.0 });
            let latency = GroupThrottleState { iops: 10.0, read_percentiles, ..GroupThrottleState::default() };
            GroupState { tenant: "db".into(), group: name.into(), latency: Some(latency), ..GroupState::default() }
        };
        let groups = vec![group("a", Some(2.0)), group("b", Some(4.0)), group("c", None)];
        let at = At::Cgroup(CgroupState { groups, ..CgroupState::default() });
        let pool = PoolState { name: "disk".into(), at, ..PoolState::default() };
        let samples = samples(&State { pools: vec![pool], ..State::default() });
        let of = |sample: &Sample| (sample.series.device.clone(), sample.figures.p50_us, sample.figures.p99_us);
        let found: Vec<_> = samples.iter().map(of).collect();
        let wanted = [("a", 500, 2_000), ("b", 500, 4_000), ("c", 0, 0), ("", 0, 0)];
        assert_eq!(found, wanted.map(|(device, p50_us, p99_us)| (device.to_owned(), p50_us, p99_us)));
    }

    #[test]
    fn a_pool_whose_reads_are_not_timed_has_no_percentile() {
        let at = At::Packets(PacketsState { iops: 10.0, latency_ms: Some(2.0), ..PacketsState::default() });
        let pool = PoolState { name: "a".into(), at, ..PoolState::default() };
        let samples = samples(&State { pools: vec![pool], ..State::default() });
        let Figures { requests, latency_us, p50_us, p99_us, p999_us, .. } = samples[0].figures;
        assert_eq!((requests, latency_us, [p50_us, p99_us, p999_us]), (10, 20_000, [0; 3]));
    }
}
