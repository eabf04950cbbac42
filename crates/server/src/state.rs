//! Collects the server's state as records for the API.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration as StdDuration;

use evenkeel_control::Duration;
use evenkeel_control::admission::Admission;
use evenkeel_control::histogram::Histogram;
use evenkeel_control::limits::{LimitSet, Owner};
use evenkeel_control::log::{Entry, Log};
use evenkeel_control::pool::slots::Granted;
use evenkeel_control::pool::target::{self, Decision};
use evenkeel_control::pool::{Scheduler, TenantId, Throttled};
use evenkeel_control::units::Direction;
use evenkeel_nbd::wire::TransmissionFlags;
use evenkeel_policy::config::{Engine, Owners, Percentile};
use evenkeel_policy::decision::DecisionRecord;
use evenkeel_policy::explain::{self, OfSlots};
use evenkeel_policy::health::Health;
use evenkeel_policy::state::{
    AdmissionState, ClientState, Clients, GuaranteeState, LatencyState, LatencyTargetState, LimitState, LimitWaits,
    PartsState, PlacementState, PoolState, SlicesState, SlotsState, State, TenantSlotsState, TenantState,
    ThrottledState, VolumeState, WorkerState,
};
use evenkeel_policy::verdict::{self, Counts};

use crate::backend::Backend;
use crate::clock;
use crate::shared::{Shared, WorkerStats};
use crate::snapshot::{SharedPool, Snapshot};
use crate::volume::Volume;
use crate::worker::seen::Seen;

/// Number of connections, by index of the pool and name of the tenant.
type Connections = HashMap<(usize, Arc<str>), u32>;

/// Shortest time between two readings of counters over which the rates of [`PoolState::lately`] are computed.
pub(crate) const WINDOW: StdDuration = StdDuration::from_secs(1);

/// The counters of all tenants at one moment.
pub(crate) struct Counted {
    /// The moment of the reading, as the server's uptime.
    pub(crate) uptime: StdDuration,
    tenants: HashMap<(usize, TenantId), Counts>,
}

/// Reads the counters of all tenants; takes each pool's lock once for each of its tenants. `uptime`: the server's uptime now.
pub(crate) fn count(shared: &Shared, uptime: StdDuration) -> Counted {
    let snapshot = shared.snapshot();
    let ids =
        snapshot.tenants.iter().enumerate().flat_map(|(pool, tenants)| tenants.values().map(move |&id| (pool, id)));
    let counts =
        |(pool, id): (usize, TenantId)| Some(((pool, id), Counts::from(&snapshot.pools[pool].lock().tenant(id)?)));
    Counted { uptime, tenants: ids.filter_map(counts).collect() }
}

/// The parts of the state that grow with time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Detail {
    /// True with the distributions of latencies since the start.
    pub(crate) latencies: bool,
    /// Only the decisions that were first taken at this uptime or later, in seconds.
    pub(crate) decided_since: f64,
}

impl Detail {
    /// All of them.
    pub(crate) const ALL: Self = Self { latencies: true, decided_since: 0.0 };
}

/// Collects the server's state; takes each pool's lock once for each of its tenants, for microseconds. `before`: the counters
/// at the beginning of the window for rates; `None` if there are no earlier counters.
pub(crate) fn collect(
    shared: &Shared,
    engine: Engine,
    uptime: StdDuration,
    before: Option<&Counted>,
    detail: Detail,
) -> State {
    let snapshot = shared.snapshot();
    shared.spaces.refresh(&snapshot);
    let mut connections = Connections::new();
    for stats in &shared.stats {
        for seen in stats.clients.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            *connections.entry((seen.pool, Arc::clone(&seen.tenant))).or_insert(0) += 1;
        }
    }
    let present = shared.workers() as u32;
    let places = (0u32..).zip(&shared.stats);
    let lives = |stats: &WorkerStats| stats.heard_ns.load(Ordering::Relaxed) > 0;
    let workers = places.filter(|&(index, stats)| index < present || lives(stats)).map(|(index, stats)| WorkerState {
        index,
        leaving: index >= present,
        connections: stats.connections.load(Ordering::Relaxed).into(),
        requests_total: stats.requests.load(Ordering::Relaxed),
        cpu_s: stats.cpu_ns.load(Ordering::Relaxed) as f64 / 1e9,
        busy: f64::from_bits(stats.busy.load(Ordering::Relaxed)),
    });
    let workers: Vec<WorkerState> = workers.collect();
    let owners = snapshot.config.owners();
    let (method, decision) = {
        let placement = shared.placement();
        (placement.method(), placement.decision())
    };
    State {
        placement: PlacementState {
            method: method.into(),
            reason: decision.reason.name().into(),
            because: evenkeel_policy::explain::placement(&decision.reason),
            moves_total: shared.moves.load(Ordering::Relaxed),
        },
        cluster: None,
        health: Health::default(),
        version: env!("CARGO_PKG_VERSION").into(),
        uptime_s: uptime.as_secs_f64(),
        engine: engine.name().into(),
        read_only: snapshot.config.server.read_only,
        draining: shared.draining.load(Ordering::Acquire),
        connections: shared.stats.iter().map(|stats| u64::from(stats.connections.load(Ordering::Relaxed))).sum(),
        workers,
        accepted_connections_total: shared.accepted.load(Ordering::Relaxed),
        refused_connections_total: shared.refused.load(Ordering::Relaxed),
        tls_handshakes_total: shared.tls_handshakes.load(Ordering::Relaxed),
        refused_clients_total: shared.refusals.totals(),
        buffer_memory_used_bytes: shared.budget.used(),
        buffer_memory_limit_bytes: shared.budget.limit(),
        pools: (0..snapshot.pools.len())
            .filter_map(|index| pool(shared, &snapshot, index, &connections, uptime, before, detail))
            .collect(),
        volumes: snapshot.volumes.iter().flatten().map(|v| volume(shared, &snapshot, &owners, v)).collect(),
    }
}

/// All connections that have chosen an export, with the figures that their workers counted last.
pub(crate) fn clients(shared: &Shared, uptime: StdDuration) -> Clients {
    let (snapshot, now) = (shared.snapshot(), clock::now());
    let at = |instant| (uptime.as_secs_f64() - now.since(instant).as_secs_f64()).max(0.0);
    let client = |worker: u32, seen: &Seen| {
        // A volume that was removed meanwhile has lost its connections, too.
        let volume = snapshot.volume(seen.volume)?;
        Some(ClientState {
            id: format!("{}.{}", seen.key.slot, seen.key.generation),
            address: seen.peer.to_string(),
            tls: seen.peer.cipher.map(|cipher| cipher.to_string()),
            volume: volume.name.clone(),
            pool: snapshot.pools[seen.pool].name.clone(),
            tenant: seen.tenant.to_string(),
            worker,
            since_s: at(seen.since),
            counted_at_s: at(seen.at),
            requests_total: seen.requests,
            in_flight_requests: seen.outstanding,
            received_bytes_total: seen.received,
            sent_bytes_total: seen.sent,
        })
    };
    let mut clients = Vec::new();
    for (worker, stats) in (0u32..).zip(&shared.stats) {
        let seen = stats.clients.lock().unwrap_or_else(PoisonError::into_inner).clone();
        clients.extend(seen.iter().filter_map(|seen| client(worker, seen)));
    }
    // One that was handed over in between may have been seen by two workers.
    clients.sort_by(|a, b| a.id.cmp(&b.id).then(b.counted_at_s.total_cmp(&a.counted_at_s)));
    clients.dedup_by(|a, b| a.id == b.id);
    Clients { uptime_s: uptime.as_secs_f64(), clients }
}

/// The state of the pool with this index; `None` if the pool was removed and has no tenants or requests left.
fn pool(
    shared: &Shared,
    snapshot: &Snapshot,
    index: usize,
    connections: &Connections,
    uptime: StdDuration,
    before: Option<&Counted>,
    detail: Detail,
) -> Option<PoolState> {
    let pool = &snapshot.pools[index];
    let mut state = pool.lock();
    // An idle pool is not called otherwise, and what was decided last would stand.
    state.tick_controllers(clock::now());
    let [iops, bytes_per_s] = state.pool_limits();
    let mut record = PoolState {
        name: pool.name.clone(),
        scheduler: match state.config().scheduler {
            Scheduler::Mclock => "mclock".into(),
            Scheduler::None => "none".into(),
        },
        admission: admission(state.admission(), state.base_cost(), state.in_flight(), uptime),
        queued_requests: state.queued() as u64,
        limit: LimitState::new(&iops, &bytes_per_s),
        slots: state.slots().map(|view| SlotsState {
            method: view.config.method.name().into(),
            clustered: view.clustered,
            total: view.total,
            tightness: view.tightness,
        }),
        slices: SlicesState {
            read_bytes: state.slices().bytes(Direction::Read).into(),
            write_bytes: state.slices().bytes(Direction::Write).into(),
        },
        ..PoolState::default()
    };
    let target = state.target().map(|view| (*view.config, view.measured, view.records.clone()));
    drop(state);
    // Names are looked up without the lock.
    let names =
        || -> HashMap<TenantId, &str> { snapshot.tenants[index].iter().map(|(name, &id)| (id, &**name)).collect() };
    record.latency_target = target.map(|(config, measured, records)| LatencyTargetState {
        measured_ms: measured.map(|measured| measured.as_millis_f64()),
        ..latency_target(&pool.name, &config, &records, &names(), uptime, detail.decided_since)
    });
    for stats in &shared.stats {
        let overdue = stats.overdue.lock().unwrap_or_else(PoisonError::into_inner);
        let of_this_pool = overdue.iter().filter(|(pool, _)| *pool == index);
        record.overdue.extend(of_this_pool.map(|(_, io)| io.clone()));
    }
    let busy = record.queued_requests > 0 || record.admission.in_flight_requests > 0 || !record.overdue.is_empty();
    if !busy && !snapshot.config.pools.contains_key(&pool.name) {
        return None;
    }
    let mut tenants: Vec<_> = snapshot.tenants[index].iter().collect();
    tenants.sort_by_key(|&(name, _)| name);
    let mut work = Vec::new();
    for (name, &id) in tenants {
        let count = connections.get(&(index, Arc::clone(name))).copied().unwrap_or(0);
        let Some((tenant, counts)) = tenant(pool, name, id, count, uptime, detail) else { continue };
        record.tenants.push(tenant);
        work.push(before.and_then(|before| before.tenants.get(&(index, id))).map(|was| counts.since(was)));
    }
    if let Some(before) = before {
        verdict::judge(&mut record, &work, (uptime - before.uptime).as_secs_f64());
    }
    Some(record)
}

fn tenant(
    pool: &SharedPool,
    name: &str,
    id: TenantId,
    connections: u32,
    uptime: StdDuration,
    detail: Detail,
) -> Option<(TenantState, Counts)> {
    // One lock for each tenant: copying the histograms of thousands under one would hold requests up.
    let state = pool.lock();
    let view = state.tenant(id)?;
    let counts = Counts::from(&view);
    let (qos, limit) = (*view.qos, LimitState::new(view.limit_iops, view.limit_bytes_per_s));
    let parts = PartsState::of(view.qos, &view.fractions);
    let stats = view.stats;
    let record = TenantState {
        reads_total: stats.reads,
        writes_total: stats.writes,
        flushes_total: stats.flushes,
        metas_total: stats.metas,
        read_bytes_total: stats.read_bytes,
        write_bytes_total: stats.write_bytes,
        errors_total: stats.errors,
        by_reservation_total: stats.by_reservation,
        by_weight_total: stats.by_weight,
        ..TenantState::default()
    };
    let distributions = [&stats.queue_latency, &stats.device_latency, &stats.latency];
    let distributions = detail.latencies.then(|| distributions.map(Histogram::clone));
    let (queued, in_flight) = (view.queued as u64, view.in_flight);
    let (throttle, throttled) =
        (view.throttle, view.throttled.map(|throttled| throttled_state(&throttled, view.slots)));
    let slots = state.slots().is_some().then(|| slots(name, view.granted));
    let now = clock::now();
    let at = |instant| (uptime.as_secs_f64() - now.since(instant).as_secs_f64()).max(0.0);
    let of = [pool.name.as_str(), name];
    let guarantees = view.guarantees().map(|guarantee| GuaranteeState::of(&guarantee, of, detail.decided_since, at));
    let guarantees = guarantees.collect();
    drop(state);
    let distributions = distributions.map(|each| each.each_ref().map(LatencyState::from)).unwrap_or_default();
    let [queue_latency, device_latency, latency] = distributions;
    let record = TenantState {
        name: name.to_owned(),
        qos: (&qos).into(),
        limit,
        parts,
        throttle: throttle.name().into(),
        throttled,
        slots,
        guarantees,
        connections: connections.into(),
        queued_requests: queued,
        in_flight_requests: in_flight,
        queue_latency,
        device_latency,
        latency,
        ..record
    };
    Some((record, counts))
}

fn latency_target(
    pool: &str,
    config: &target::Config,
    records: &Log<Decision>,
    names: &HashMap<TenantId, &str>,
    uptime: StdDuration,
    since: f64,
) -> LatencyTargetState {
    let now = clock::now();
    let at = |instant| (uptime.as_secs_f64() - now.since(instant).as_secs_f64()).max(0.0);
    let percentile = Percentile::from(config.statistic);
    let name = |id: TenantId| names.get(&id).map(|&name| name.to_owned());
    let record = |entry: &Entry<Decision>| {
        LatencyTargetState::record(pool, percentile, &entry.decision, name, DecisionRecord::of(entry, at))
    };
    LatencyTargetState {
        target_ms: config.response.target.as_millis_f64(),
        percentile: percentile.to_string(),
        decision: records.last().map(record),
        decisions: records.iter().filter(|entry| at(entry.from) >= since).map(record).collect(),
        ..LatencyTargetState::default()
    }
}

fn slots(tenant: &str, granted: &Granted) -> TenantSlotsState {
    let report = &granted.report;
    let ms = |seconds: f64| seconds * 1e3;
    let (device, response) = (report.device_latency_s(), granted.latency_s());
    let target = granted.target.map(|target| (Percentile::from(target.statistic), target.time));
    let measured_ms = granted.figure_s().filter(|_| target.is_some()).map(ms);
    let measured = measured_ms.map(|ms| Duration::from_nanos((ms * 1e6) as u64));
    let of = OfSlots { tenant, granted: granted.share, target, measured };
    TenantSlotsState {
        measured_ms,
        target_ms: target.map(|(_, target)| target.as_millis_f64()),
        percentile: target.map_or_else(String::new, |(percentile, _)| percentile.to_string()),
        need: granted.need,
        granted: granted.share,
        used: report.used(),
        queueing_delay_ms: response.zip(device).map(|(response, device)| ms(response - device).max(0.0)),
        device_latency_ms: device.map(ms),
        windows_total: granted.windows,
        violated_total: granted.violated,
        reason: granted.reason.map_or("", |reason| reason.name()).into(),
        because: granted.reason.map_or_else(String::new, |reason| explain::slots(&reason, &of)),
    }
}

fn throttled_state(throttled: &Throttled, slots: &LimitSet) -> ThrottledState {
    let (owner, slots) = slots.binding().unwrap_or((Owner::Latency, throttled.slots));
    ThrottledState {
        slots,
        slots_owner: owner.name().into(),
        delay_ms: throttled.delay.as_millis_f64(),
        because: explain::throttled(&throttled.reason),
    }
}

fn admission(
    admission: &Admission,
    base_cost_bytes: u64,
    in_flight_requests: u64,
    uptime: StdDuration,
) -> AdmissionState {
    let decision = admission.decision();
    let ago = clock::now().since(decision.at).as_secs_f64();
    AdmissionState {
        kind: admission.config().name().into(),
        budget_bytes: (decision.budget_bytes < u64::MAX).then_some(decision.budget_bytes),
        base_cost_bytes,
        in_flight_bytes: admission.in_flight_bytes(),
        in_flight_requests,
        target_ms: decision.target.map(|target| target.as_millis_f64()),
        decided_at_s: (uptime.as_secs_f64() - ago).max(0.0),
        reason: explain::admission(&decision.reason),
        target_reason: decision.target.map_or_else(String::new, |_| explain::admission(&decision.target_reason)),
        reason_data: (&decision.reason).into(),
    }
}

fn volume(shared: &Shared, snapshot: &Snapshot, owners: &Owners<'_>, volume: &Volume) -> VolumeState {
    let config = snapshot.settings(volume);
    let flags = volume.flags();
    let names = [
        (TransmissionFlags::SEND_FLUSH, "flush"),
        (TransmissionFlags::SEND_FUA, "fua"),
        (TransmissionFlags::SEND_TRIM, "trim"),
        (TransmissionFlags::SEND_WRITE_ZEROES, "write_zeroes"),
        (TransmissionFlags::SEND_FAST_ZERO, "fast_zero"),
        (TransmissionFlags::SEND_CACHE, "cache"),
        (TransmissionFlags::SEND_DF, "df"),
        (TransmissionFlags::CAN_MULTI_CONN, "multi_conn"),
    ];
    let path = match &volume.backend {
        Backend::File(file) => Some(file.path().display().to_string()),
        Backend::Memory(_) | Backend::Emulate(..) | Backend::Remote(_) | Backend::Rbd(_) => None,
    };
    let remote = if let Backend::Remote(remote) = &volume.backend { Some(remote.state()) } else { None };
    let rbd = if let Backend::Rbd(rbd) = &volume.backend { Some(rbd.state()) } else { None };
    let (trims_total, trimmed_bytes_total) = volume.trims();
    let is_limited = config.is_some_and(|settings| !settings.limit.in_force().is_unset());
    let view = is_limited.then(|| snapshot.pools[volume.pool].lock().volume(clock::now(), volume.id)).flatten();
    let limit = view.map_or_else(LimitState::default, |view| {
        let [iops, bytes_per_s] = view.limits();
        LimitState::new(&iops, &bytes_per_s)
    });
    let binds = view.is_some_and(|view| view.binds);
    let waits = view.map(|view| LimitWaits {
        waiting_requests: view.waiting as u64,
        waited_requests_total: view.waits,
        waited_ms_total: view.waited.as_nanos() / 1_000_000,
    });
    VolumeState {
        name: volume.name.clone(),
        tenant: config.map_or_else(String::new, |v| owners.scheduled(&volume.name, v).into_owned()),
        pool: snapshot.pools[volume.pool].name.clone(),
        backend: config.map_or_else(String::new, |v| v.backend.name().to_owned()),
        path,
        size_bytes: volume.size(),
        read_only: volume.read_only,
        connections: volume.connections.load(Ordering::Relaxed).into(),
        flags: names.iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, name)| (*name).to_owned()).collect(),
        error: volume.sync_error(),
        failures: volume.failures(),
        remote,
        rbd,
        space: shared.spaces.of(volume.id),
        displaced: shared.spaces.is_displaced(volume.id),
        trims_total,
        trimmed_bytes_total,
        throttled_by: verdict::at_limit_of_volume(&volume.name, &limit).filter(|_| binds),
        limit,
        waits,
    }
}
