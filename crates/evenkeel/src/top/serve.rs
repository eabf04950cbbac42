//! What a server tells, as rows.

use std::collections::HashMap;

use evenkeel_policy::state::{
    ClientState, Clients, GuaranteeState, LatencyState, LatencyTargetState, LimitState, PoolState, State,
    TenantSlotsState, TenantState, VolumeState,
};

use super::figures::{bytes, count, megabytes, ms, rates, uptime};
use super::row::{Goal, Hold, Row, Sample, Tab, Table, Verdict};
use crate::http::metrics::BLIND;

/// A rate of so much of its limit is at the limit: what is measured between two looks is never exact.
pub(super) const AT_LIMIT: f64 = 0.95;
/// As much of a guarantee is a guarantee kept, for the same reason.
pub(super) const AS_GUARANTEED: f64 = 0.98;

/// Times of the same count differ by so much at most: the server works them out anew for each answer.
const SAME_S: f64 = 0.01;

/// Makes rates of what a server counts.
#[derive(Debug, Default)]
pub(super) struct Feed {
    /// The last answer.
    pub(super) state: State,
    /// Its connections.
    pub(super) clients: Vec<ClientState>,
    /// What connections did between the last two times that their workers counted.
    paces: HashMap<String, Pace>,
}

/// What a connection did lately.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    counted_at_s: f64,
    requests: u64,
    bytes: u64,
    iops: Option<f64>,
    bytes_per_s: Option<f64>,
}

impl Feed {
    /// Takes an answer; what happened since the one before. A server that was started anew begins anew.
    pub(super) fn take(&mut self, state: State, clients: Clients) -> Sample {
        let before = std::mem::replace(&mut self.state, state);
        let before = (before.uptime_s > 0.0 && before.uptime_s < self.state.uptime_s).then_some(before);
        if before.is_none() {
            self.paces.clear();
        }
        self.clients = clients.clients;
        self.pace();
        let state = &self.state;
        let seconds = before.as_ref().map_or(0.0, |before| state.uptime_s - before.uptime_s);
        let was: HashMap<&str, &PoolState> =
            before.iter().flat_map(|before| &before.pools).map(|pool| (pool.name.as_str(), pool)).collect();
        let (mut pools, mut tenants) = (Vec::new(), Vec::new());
        for pool in &state.pools {
            let was = was.get(pool.name.as_str()).copied();
            pools.push(of_pool(pool, was.map(|was| Work::between(all(was), all(pool), seconds))));
            let was: HashMap<&str, &TenantState> =
                was.iter().flat_map(|was| &was.tenants).map(|tenant| (tenant.name.as_str(), tenant)).collect();
            for tenant in &pool.tenants {
                let was = was.get(tenant.name.as_str()).copied();
                tenants.push(of_tenant(tenant, was, seconds, pool));
            }
        }
        let paces = self.paces_by_volume();
        let of_volume =
            |volume: &VolumeState| Self::of_volume(volume, paces.get(volume.name.as_str()).map_or(&[], Vec::as_slice));
        Sample {
            head: head(state),
            uptime_s: state.uptime_s,
            troubles: troubles(state),
            tables: vec![
                Table { tab: Tab::Pools, rows: pools },
                Table { tab: Tab::Tenants, rows: tenants },
                Table { tab: Tab::Volumes, rows: state.volumes.iter().map(of_volume).collect() },
                Table { tab: Tab::Clients, rows: self.clients.iter().map(|client| self.of_client(client)).collect() },
            ],
        }
    }

    /// Workers count once a second, not when we ask: rates go by their times.
    fn pace(&mut self) {
        let was = std::mem::take(&mut self.paces);
        for client in &self.clients {
            let (requests, bytes) = (client.requests_total, client.received_bytes_total + client.sent_bytes_total);
            let new = Pace { counted_at_s: client.counted_at_s, requests, bytes, ..Pace::default() };
            let pace = match was.get(&client.id) {
                Some(was) if client.counted_at_s - was.counted_at_s < SAME_S => *was,
                Some(was) => {
                    let per_s = |now: u64, then: u64| {
                        Some(now.saturating_sub(then) as f64 / (client.counted_at_s - was.counted_at_s))
                    };
                    Pace { iops: per_s(requests, was.requests), bytes_per_s: per_s(bytes, was.bytes), ..new }
                }
                None => new,
            };
            self.paces.insert(client.id.clone(), pace);
        }
    }

    /// What the connections of each volume did lately.
    fn paces_by_volume(&self) -> HashMap<&str, Vec<Pace>> {
        let mut paces: HashMap<&str, Vec<Pace>> = HashMap::new();
        for client in &self.clients {
            let of_volume = paces.entry(&client.volume).or_default();
            of_volume.extend(self.paces.get(&client.id));
        }
        paces
    }

    fn of_client(&self, client: &ClientState) -> Row {
        let pace = self.paces.get(&client.id).copied().unwrap_or_default();
        Row {
            name: client_name(client),
            of: client.volume.clone(),
            tenant: client.tenant.clone(),
            volume: client.volume.clone(),
            iops: pace.iops,
            bytes_per_s: pace.bytes_per_s,
            why: format!(
                "uses {} for tenant {} on worker {}, {} requests in flight",
                client.volume, client.tenant, client.worker, client.in_flight_requests
            ),
            ..Row::default()
        }
    }

    /// Rates of volumes are those of their connections.
    fn of_volume(volume: &VolumeState, paces: &[Pace]) -> Row {
        let sum = |of: fn(&Pace) -> Option<f64>| {
            if volume.connections == 0 { Some(0.0) } else { paces.iter().filter_map(of).reduce(|a, b| a + b) }
        };
        let trouble = match (&volume.error, &volume.remote) {
            (Some(error), _) => Some(format!("FAILED: {error}")),
            (None, Some(remote)) if !remote.connected => {
                Some(format!("AWAY: {}: {}", remote.uri, remote.last_error.as_deref().unwrap_or("no connection")))
            }
            _ => None,
        };
        Row {
            name: volume.name.clone(),
            of: volume.pool.clone(),
            tenant: volume.tenant.clone(),
            volume: volume.name.clone(),
            iops: sum(|pace| pace.iops),
            bytes_per_s: sum(|pace| pace.bytes_per_s),
            trouble,
            why: format!(
                "{}, {}, {}, tenant {}, {} connections",
                bytes(volume.size_bytes),
                volume.backend,
                if volume.read_only { "read-only" } else { "read and write" },
                volume.tenant,
                volume.connections
            ),
            ..Row::default()
        }
    }
}

/// Address of a connection; those over Unix sockets are told apart by their number.
pub(super) fn client_name(client: &ClientState) -> String {
    if client.address.starts_with("unix") {
        format!("{} #{}", client.address, client.id)
    } else {
        client.address.clone()
    }
}

fn head(state: &State) -> Vec<String> {
    let busy = state.workers.iter().fold(0.0, |sum, worker| sum + worker.busy);
    let workers = state.workers.len();
    let mut head = vec![
        format!("evenkeel serve {}", state.version),
        format!("up {}", uptime(state.uptime_s)),
        state.engine.clone(),
        format!("{workers} workers {:.0} % busy", 100.0 * busy / workers.max(1) as f64),
        format!("{} clients", state.connections),
    ];
    if state.read_only {
        head.push("read-only".into());
    }
    head
}

fn troubles(state: &State) -> Vec<String> {
    let mut troubles = Vec::new();
    if state.draining {
        troubles.push("the server is stopping".into());
    }
    for pool in &state.pools {
        for io in &pool.overdue {
            troubles.push(format!(
                "OVERDUE: {} of {} at {} of volume {}, in flight in pool {} for {:.0} s",
                io.kind,
                bytes(io.length_bytes),
                io.offset_bytes,
                io.volume,
                pool.name,
                io.age_s
            ));
        }
    }
    if let Some(exchange) = state.exchange.as_ref().filter(|exchange| exchange.standing != "shared") {
        troubles.push(format!("exchange {}: {}", exchange.standing, exchange.because));
    }
    troubles
}

/// What was counted since the start.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    requests: u64,
    bytes: u64,
    errors: u64,
    waits: u64,
    queue_s: f64,
    device_s: f64,
    response_s: f64,
}

impl Count {
    fn of(tenant: &TenantState) -> Self {
        Self {
            requests: tenant.reads_total + tenant.writes_total + tenant.flushes_total + tenant.metas_total,
            bytes: tenant.read_bytes_total + tenant.write_bytes_total,
            errors: tenant.errors_total,
            waits: tenant.latency.count,
            queue_s: tenant.queue_latency.sum_s,
            device_s: tenant.device_latency.sum_s,
            response_s: tenant.latency.sum_s,
        }
    }
}

/// Of all tenants of a pool.
fn all(pool: &PoolState) -> Count {
    pool.tenants.iter().map(Count::of).fold(Count::default(), |a, b| Count {
        requests: a.requests + b.requests,
        bytes: a.bytes + b.bytes,
        errors: a.errors + b.errors,
        waits: a.waits + b.waits,
        queue_s: a.queue_s + b.queue_s,
        device_s: a.device_s + b.device_s,
        response_s: a.response_s + b.response_s,
    })
}

/// What was done between two looks.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    iops: f64,
    bytes_per_s: f64,
    errors: u64,
    queue_ms: Option<f64>,
    device_ms: Option<f64>,
    response_ms: Option<f64>,
}

impl Work {
    fn between(was: Count, is: Count, seconds: f64) -> Self {
        let per_s = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds.max(1e-9);
        let waits = is.waits.saturating_sub(was.waits);
        let mean = |now: f64, then: f64| (waits > 0).then(|| (now - then).max(0.0) * 1e3 / waits as f64);
        Self {
            iops: per_s(is.requests, was.requests),
            bytes_per_s: per_s(is.bytes, was.bytes),
            errors: is.errors.saturating_sub(was.errors),
            queue_ms: mean(is.queue_s, was.queue_s),
            device_ms: mean(is.device_s, was.device_s),
            response_ms: mean(is.response_s, was.response_s),
        }
    }

    fn row(this: Option<Self>) -> Row {
        let Some(work) = this else { return Row::default() };
        Row {
            iops: Some(work.iops),
            bytes_per_s: Some(work.bytes_per_s),
            response_ms: work.response_ms,
            queue_ms: work.queue_ms,
            device_ms: work.device_ms,
            trouble: (work.errors > 0).then(|| format!("{} requests FAILED just now", work.errors)),
            ..Row::default()
        }
    }
}

fn of_pool(pool: &PoolState, work: Option<Work>) -> Row {
    let goal = pool.latency_target.as_ref();
    let row = Work::row(work);
    let admission = &pool.admission;
    let by_limit = work.and_then(|work| at_limit(&pool.limit, work));
    // What waits while there is a bound waits because of it.
    let bound = admission.budget_bytes.filter(|_| pool.queued_requests > 0);
    let by_admission = bound.map(|budget| Hold { by: admission.kind.clone(), how: bytes(budget) });
    let because = goal.and_then(|goal| goal.decision.as_ref()).map(|decision| format!("goal: {}; ", decision.because));
    Row {
        name: pool.name.clone(),
        goal: goal.map(|goal| Goal {
            what: format!("{}<{}ms", goal.percentile, short(goal.target_ms)),
            verdict: match row.iops {
                Some(iops) if iops > 0.0 && !is_old(goal) => Verdict::below(goal.measured_ms, goal.target_ms),
                _ => Verdict::Idle,
            },
        }),
        hold: by_limit.or(by_admission),
        trouble: (!pool.overdue.is_empty()).then(|| format!("{} requests OVERDUE", pool.overdue.len())).or(row.trouble),
        why: format!("{}admission: {}", because.unwrap_or_default(), admission.reason),
        ..row
    }
}

/// Whether the figure of a goal was measured before the last reads stopped.
fn is_old(goal: &LatencyTargetState) -> bool {
    goal.decision.as_ref().is_some_and(|decision| BLIND.contains(&decision.reason.as_str()))
}

fn of_tenant(tenant: &TenantState, was: Option<&TenantState>, seconds: f64, pool: &PoolState) -> Row {
    let work = was.map(|was| Work::between(Count::of(was), Count::of(tenant), seconds));
    let row = Work::row(work);
    let goals = work.map_or_else(Vec::new, |work| goals(tenant, was, work));
    let (hold, because) = held(tenant, work).map_or((None, None), |(hold, because)| (Some(hold), Some(because)));
    let because = because.or_else(|| of_goal(tenant)).unwrap_or_else(|| {
        // Nothing throttles this tenant by name: what waits waits for the pool.
        if tenant.queued_requests > 0 {
            format!("{} requests wait for pool {}: {}", tenant.queued_requests, pool.name, pool.admission.reason)
        } else {
            "nothing throttles it".into()
        }
    });
    Row {
        name: tenant.name.clone(),
        of: pool.name.clone(),
        tenant: tenant.name.clone(),
        goal: goals.into_iter().min_by_key(|goal| goal.verdict),
        hold,
        why: because,
        ..row
    }
}

/// What was decided about a tenant that is not throttled.
fn of_goal(tenant: &TenantState) -> Option<String> {
    let guarantee = tenant.guarantees.first().map(|guarantee| guarantee.because.clone());
    guarantee.or_else(|| tenant.slots.as_ref().map(|slots| slots.because.clone())).filter(|because| !because.is_empty())
}

/// All that a tenant was guaranteed: a latency, throughputs, a reservation.
fn goals(tenant: &TenantState, was: Option<&TenantState>, work: Work) -> Vec<Goal> {
    let mut goals = Vec::new();
    if let Some((slots, target_ms)) = tenant.slots.as_ref().and_then(|slots| Some((slots, slots.target_ms?))) {
        let was = was.and_then(|was| was.slots.as_ref());
        let judged = |of: fn(&TenantSlotsState) -> u64| of(slots).saturating_sub(of(was.unwrap_or(slots)));
        let verdict = match (judged(|slots| slots.windows_total), judged(|slots| slots.violated_total)) {
            (_, 1..) => Verdict::Missed,
            (1.., 0) => Verdict::Met,
            (0, 0) => Verdict::Idle,
        };
        let statistic = if slots.percentile.is_empty() { "mean" } else { &slots.percentile };
        goals.push(Goal { what: format!("{statistic}<{}ms", short(target_ms)), verdict });
    }
    goals.extend(tenant.guarantees.iter().map(guaranteed));
    let reserved = [
        (tenant.qos.reservation_iops, work.iops, "IOPS"),
        (tenant.qos.reservation_bytes_per_s, work.bytes_per_s, "MB/s"),
    ];
    for (reserved, got, unit) in reserved {
        let Some(reserved) = reserved.map(|reserved| reserved as f64) else { continue };
        let verdict = if got >= AS_GUARANTEED * reserved {
            Verdict::Met
        } else if tenant.queued_requests == 0 {
            // It could have had more, had it asked.
            Verdict::Idle
        } else {
            Verdict::Missed
        };
        let figure = if unit == "IOPS" { count(reserved) } else { megabytes(reserved) };
        goals.push(Goal { what: format!("{figure} {unit}"), verdict });
    }
    goals
}

fn guaranteed(guarantee: &GuaranteeState) -> Goal {
    let guaranteed = guarantee.guaranteed_per_s as f64;
    let figure = if guarantee.unit == "bytes" { megabytes(guaranteed) + " MB/s" } else { count(guaranteed) + "/s" };
    let what = match guarantee.of.as_str() {
        "read" => format!("{figure} read"),
        "write" => format!("{figure} wr"),
        _ => figure,
    };
    Goal { what, verdict: guarantee_verdict(&guarantee.reason, guarantee.measured_per_s, guaranteed) }
}

/// Whether a guaranteed throughput is kept: less than that was perhaps all that was asked for.
pub(super) fn guarantee_verdict(reason: &str, measured: Option<f64>, guaranteed: f64) -> Verdict {
    match (measured, reason) {
        (None, _) | (_, "idle" | "app_limited" | "not_enough_data" | "counters_reset" | "signal_lost") => Verdict::Idle,
        (Some(measured), _) if measured >= AS_GUARANTEED * guaranteed => Verdict::Met,
        _ => Verdict::Missed,
    }
}

/// Who throttles a tenant, how and why; the strictest first.
fn held(tenant: &TenantState, work: Option<Work>) -> Option<(Hold, String)> {
    if let Some(hold) = &tenant.throttled {
        let how = format!("{} slots, rest {} ms", hold.slots, ms(hold.delay_ms));
        let because = format!("throttled for the pool's latency target ({}): {}", hold.slots_owner, hold.because);
        return Some((Hold { by: hold.slots_owner.clone(), how }, because));
    }
    if let Some(hold) = work.and_then(|work| at_limit(&tenant.limit, work)) {
        let guarantee = tenant.guarantees.iter().find(|guarantee| guarantee.binding == hold.by);
        let because = guarantee.map_or_else(
            || format!("it is at its limit of {}, set by {}", hold.how, hold.by),
            |guarantee| guarantee.because.clone(),
        );
        return Some((hold, because));
    }
    let slots = tenant.slots.as_ref()?;
    let granted = slots.granted.filter(|&granted| slots.used >= AT_LIMIT * granted)?;
    Some((Hold { by: "slots".into(), how: format!("{granted:.1} slots") }, slots.because.clone()))
}

/// The limit that the work has come up to.
fn at_limit(limit: &LimitState, work: Work) -> Option<Hold> {
    let is_at = |limit: Option<u64>, rate: f64| limit.is_some_and(|limit| rate >= AT_LIMIT * limit as f64);
    let owner = |owner: &Option<String>| owner.clone().unwrap_or_else(|| "operator".into());
    if is_at(limit.iops, work.iops) {
        return Some(Hold { by: owner(&limit.iops_owner), how: rates(limit.iops, None) });
    }
    is_at(limit.bytes_per_s, work.bytes_per_s)
        .then(|| Hold { by: owner(&limit.bytes_per_s_owner), how: rates(None, limit.bytes_per_s) })
}

/// Milliseconds as somebody wrote them.
pub(super) fn short(ms: f64) -> String {
    format!("{}", (ms * 1e3).round() / 1e3)
}

/// Percentiles of what was counted between two looks, or since the start without an earlier one: 50, 99 and 99.9 %, in ms.
pub(super) fn percentiles(now: &LatencyState, then: Option<&LatencyState>) -> Option<[f64; 3]> {
    let counted = |bound: f64| {
        let found = then.and_then(|then| then.buckets.iter().find(|(le, _)| *le == bound));
        found.map_or(0, |(_, count)| *count)
    };
    let grown: Vec<(f64, u64)> =
        now.buckets.iter().map(|&(le, count)| (le, count.saturating_sub(counted(le)))).collect();
    let total: u64 = grown.iter().map(|(_, count)| count).sum();
    let quantile = |part: f64| {
        let mut seen = 0;
        let reached = grown.iter().find(|(_, count)| {
            seen += count;
            seen as f64 >= part * total as f64
        });
        reached.map(|(le, _)| le * 1e3)
    };
    // The part of nothing is reached at once.
    if total == 0 {
        return None;
    }
    Some([quantile(0.5)?, quantile(0.99)?, quantile(0.999)?])
}
