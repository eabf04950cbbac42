//! The history of an agent: figures, reasons and troubles from its state, decisions from its log.
//!
//! Rates are those of the agent's last interval in each second.

use std::io;
use std::sync::{Arc, OnceLock, Weak};

use evenkeel_guard::loops::record::{At, Part, PoolState, ReadPercentiles, State};
use evenkeel_history::{Figures, Gauge, Sample, Series};
use evenkeel_policy::decision::DecisionRecord;
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

/// The figures of all pools in a second, of their devices, and of the clients, groups and volumes on them.
pub(super) fn samples(state: &State) -> Vec<Sample> {
    let mut samples = Vec::new();
    for pool in &state.pools {
        samples.push(sample(pool, "", "", of_pool(pool)));
        let devices = if let At::Packets(at) = &pool.at { &at.devices[..] } else { &[] };
        for device in devices {
            let figures = done(device.iops, device.read_bytes_per_s + device.write_bytes_per_s, device.latency_ms);
            let in_flight = Gauge::at(device.in_flight);
            samples.push(sample(pool, "", &device.name, Figures { in_flight, ..figures }));
        }
        for part in pool.parts() {
            let device = if part.name == part.tenant { "" } else { part.name };
            samples.push(sample(pool, part.tenant, device, of_part(pool, &part)));
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

fn us(ms: f64) -> u64 {
    whole(ms * 1e3)
}

/// The figures of a second with these requests, bytes and mean latency.
fn done(iops: f64, bytes_per_s: f64, latency_ms: Option<f64>) -> Figures {
    let requests = whole(iops);
    let latency_us = us(requests as f64 * latency_ms.unwrap_or(0.0));
    Figures { requests, bytes: whole(bytes_per_s), latency_us, ..Figures::default() }
}

/// These figures with percentiles, where single reads are timed.
fn with_percentiles(figures: Figures, of: Option<ReadPercentiles>) -> Figures {
    let Some(ReadPercentiles { p50_ms, p99_ms, p999_ms }) = of else { return figures };
    let [p50_us, p99_us, p999_us] = [p50_ms, p99_ms, p999_ms].map(us);
    Figures { p50_us, p99_us, p999_us, ..figures }
}

fn slots(slots: Option<f64>) -> Gauge {
    slots.map_or_else(Gauge::default, |slots| Gauge::at(whole(slots * 1e3)))
}

fn of_pool(pool: &PoolState) -> Figures {
    let mut figures = done(pool.lately.iops, pool.lately.bytes_per_s, pool.lately.latency_ms);
    if let Some(reads) = &pool.reads {
        figures = with_percentiles(figures, reads.percentiles);
        figures.in_flight = Gauge::at(pool.in_flight);
        figures.delay_us = Gauge::at(us(pool.mean_delay_ms));
    }
    match &pool.at {
        At::QueueDepth(at) => {
            figures.slots = slots(at.slots.total);
            figures.queued = Gauge::at(at.volumes.iter().map(|volume| volume.queued).sum());
        }
        At::Osd(at) => {
            figures.queued = Gauge::at(at.waiting);
            figures.budget = at.admission.budget_bytes.map_or_else(Gauge::default, Gauge::at);
        }
        _ => {}
    }
    figures
}

/// The figures of a client, group or volume of a pool.
fn of_part(pool: &PoolState, part: &Part<'_>) -> Figures {
    let figures = done(part.lately.iops, part.lately.bytes_per_s, part.lately.latency_ms);
    let mut figures = with_percentiles(figures, part.percentiles);
    if pool.reads.is_some() {
        figures.delay_us = Gauge::at(us(part.delay_ms));
    }
    if let Some(of) = part.slots {
        figures.queued = Gauge::at(part.queued);
        figures.slots = slots(of.granted);
    }
    for of in &part.guarantees {
        let limit = if of.unit == "bytes" { &mut figures.limit_bytes_per_s } else { &mut figures.limit_iops };
        // Reads and writes each have a limit: the tenant's is the larger.
        if of.limit_per_s > limit.max {
            *limit = Gauge::at(of.limit_per_s);
        }
    }
    figures
}

#[cfg(test)]
mod tests {
    use evenkeel_guard::loops::record::{CgroupState, GroupState, ReadsState};
    use evenkeel_policy::state::GuaranteeState;
    use evenkeel_policy::verdict::Lately;

    use super::*;

    #[test]
    fn a_shortage_of_space_for_the_history_is_recorded() {
        let kinds = |kind: &'static str| {
            let own = move || Some(Trouble::warning(kind, "history", "100 MiB are free", "make room"));
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
        let percentiles = Some(ReadPercentiles { p50_ms: 0.5, p99_ms: 2.0, p999_ms: 7.25 });
        let reads = Some(ReadsState { percentiles, ..ReadsState::default() });
        let pool = PoolState { name: "a".into(), in_flight: 3, reads, ..PoolState::default() };
        let samples = samples(&State { pools: vec![pool], ..State::default() });
        let Figures { in_flight, p50_us, p99_us, p999_us, .. } = samples[0].figures;
        assert_eq!((samples.len(), in_flight.max, [p50_us, p99_us, p999_us]), (1, 3, [500, 2_000, 7_250]));
    }

    #[test]
    fn each_group_has_the_percentiles_of_its_own_reads() {
        let group = |name: &str, p99_ms: Option<f64>| {
            let read_percentiles = p99_ms.map(|p99_ms| ReadPercentiles { p50_ms: 0.5, p99_ms, p999_ms: 9.0 });
            let lately = Lately { iops: 10.0, ..Lately::default() };
            GroupState { tenant: "db".into(), group: name.into(), read_percentiles, lately, ..GroupState::default() }
        };
        let groups = vec![group("a", Some(2.0)), group("b", Some(4.0)), group("c", None)];
        let at = At::Cgroup(CgroupState { groups, ..CgroupState::default() });
        let lately = Lately { iops: 40.0, ..Lately::default() };
        let pool = PoolState { name: "disk".into(), lately, at, ..PoolState::default() };
        let samples = samples(&State { pools: vec![pool], ..State::default() });
        let of = |sample: &Sample| (sample.series.device.clone(), sample.figures.p50_us, sample.figures.p99_us);
        let found: Vec<_> = samples.iter().map(of).collect();
        let wanted = [("", 0, 0), ("a", 500, 2_000), ("b", 500, 4_000), ("c", 0, 0)];
        assert_eq!(found, wanted.map(|(device, p50_us, p99_us)| (device.to_owned(), p50_us, p99_us)));
        assert_eq!(samples[0].figures.requests, 40, "of groups that no tenant names too");
    }

    #[test]
    fn a_group_with_guarantees_has_the_larger_of_its_limits() {
        let limit =
            |limit_per_s| Some(GuaranteeState { unit: "bytes".into(), limit_per_s, ..GuaranteeState::default() });
        let lately = Lately { bytes_per_s: 7.0, ..Lately::default() };
        let group = GroupState { read: limit(9), write: limit(5), lately, ..GroupState::default() };
        let at = At::Cgroup(CgroupState { groups: vec![group], ..CgroupState::default() });
        let samples = samples(&State { pools: vec![PoolState { at, ..PoolState::default() }], ..State::default() });
        let Figures { bytes, limit_bytes_per_s, limit_iops, .. } = samples[0].figures;
        assert_eq!((samples.len(), bytes, limit_bytes_per_s.max, limit_iops.max), (1, 7, 9, 0));
    }

    #[test]
    fn a_pool_whose_reads_are_not_timed_has_no_percentile() {
        let lately = Lately { iops: 10.0, latency_ms: Some(2.0), ..Lately::default() };
        let pool = PoolState { name: "a".into(), lately, ..PoolState::default() };
        let samples = samples(&State { pools: vec![pool], ..State::default() });
        let Figures { requests, latency_us, p50_us, p99_us, p999_us, .. } = samples[0].figures;
        assert_eq!((requests, latency_us, [p50_us, p99_us, p999_us]), (10, 20_000, [0; 3]));
    }
}
