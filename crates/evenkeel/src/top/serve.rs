//! Converts the state of a server into the rows of `evenkeel top`.

use std::collections::HashMap;

use evenkeel_policy::health::FAILING_MS;
use evenkeel_policy::state::{ClientState, LatencyState, PoolState, State, TenantState, TotalState, VolumeState};
use evenkeel_policy::verdict::Lately;

use super::figures::{bytes, counted};
use super::row::{Hold, Row, Sample, Tab, Table};
use crate::control::show::{head, troubles};

/// Upper bound, in seconds, on the difference between the times that two answers give for one and the same count of a worker. The
/// times differ a little because the server computes them for each answer.
const SAME_S: f64 = 0.01;

/// Rates of all connections by their ids. A rate is measured between the last two counts of the connection's worker.
pub(super) type Paces = HashMap<String, Pace>;

/// Recent rates of a connection, and the count from which the next rates start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    counted_at_s: f64,
    requests: u64,
    bytes: u64,
    iops: Option<f64>,
    bytes_per_s: Option<f64>,
}

/// The views for a server's state. The rates of volumes and clients come from the connections' counts, which update `paces`.
pub(super) fn sample(state: &State, clients: &[ClientState], paces: &mut Paces) -> Sample {
    pace(clients, paces);
    let tenants = state.pools.iter().flat_map(|pool| {
        let used = pool.tenants.iter().filter(move |tenant| is_used(tenant, pool, &state.volumes));
        used.map(move |tenant| of_tenant(tenant, pool))
    });
    let mut by_volume: HashMap<&str, Vec<Pace>> = HashMap::new();
    for client in clients {
        by_volume.entry(&client.volume).or_default().extend(paces.get(&client.id));
    }
    let of_volume =
        |volume: &VolumeState| self::of_volume(volume, by_volume.get(volume.name.as_str()).map_or(&[], Vec::as_slice));
    Sample {
        head: head(state),
        uptime_s: state.uptime_s,
        troubles: troubles(state),
        past: Vec::new(),
        tables: vec![
            Table { tab: Tab::Pools, rows: state.pools.iter().map(of_pool).collect() },
            Table { tab: Tab::Tenants, rows: tenants.collect() },
            Table { tab: Tab::Volumes, rows: state.volumes.iter().map(of_volume).collect() },
            Table { tab: Tab::Clients, rows: clients.iter().map(|client| of_client(client, paces)).collect() },
        ],
    }
}

/// Updates the rates in `paces` from new counts of the connections. Workers count once a second, independently of the requests
/// of `top`, so rates are computed from the times of the counts.
fn pace(clients: &[ClientState], paces: &mut Paces) {
    let was = std::mem::take(paces);
    for client in clients {
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
        paces.insert(client.id.clone(), pace);
    }
}

/// True if the tenant has a volume in the pool, a connection or requests: others have no row there.
pub(crate) fn is_used(tenant: &TenantState, pool: &PoolState, volumes: &[VolumeState]) -> bool {
    tenant.connections > 0
        || tenant.queued_requests + tenant.in_flight_requests > 0
        || tenant.lately.as_ref().is_some_and(|lately| lately.iops > 0.0 || lately.errors > 0)
        || volumes.iter().any(|volume| volume.tenant == tenant.name && volume.pool == pool.name)
}

/// Tenants' totals with their parts by host, as far as the cluster is known.
pub(crate) fn totals_by_host(state: &State) -> impl Iterator<Item = &TotalState> {
    state.cluster.iter().filter_map(|cluster| cluster.totals.as_ref()).flat_map(|totals| &totals.by_host)
}

fn of_client(client: &ClientState, paces: &Paces) -> Row {
    let pace = paces.get(&client.id).copied().unwrap_or_default();
    Row {
        name: client_name(client),
        of: client.volume.clone(),
        tenant: client.tenant.clone(),
        volume: client.volume.clone(),
        iops: pace.iops,
        bytes_per_s: pace.bytes_per_s,
        why: format!(
            "uses volume {} as tenant {}, served by worker {}, {} in flight",
            client.volume,
            client.tenant,
            client.worker,
            counted(client.in_flight_requests, "request")
        ),
        ..Row::default()
    }
}

/// The row of a volume; its rates are the sums over its connections.
fn of_volume(volume: &VolumeState, paces: &[Pace]) -> Row {
    let sum = |of: fn(&Pace) -> Option<f64>| {
        if volume.connections == 0 { Some(0.0) } else { paces.iter().filter_map(of).reduce(|a, b| a + b) }
    };
    let trouble = match (&volume.error, &volume.remote) {
        (Some(error), _) => Some(format!("FAILED: {error}")),
        (None, Some(remote)) if !remote.connected => {
            Some(format!("AWAY: {}: {}", remote.uri, remote.last_error.as_deref().unwrap_or("no connection")))
        }
        _ if volume.displaced => Some("its file is GONE from its path".to_owned()),
        _ => {
            let failing = volume.failures.iter().find(|failure| failure.last_ms < FAILING_MS);
            failing.map(|failure| format!("{} FAILED: {}", counted(failure.requests, "request"), failure.error))
        }
    };
    Row {
        name: volume.name.clone(),
        of: volume.pool.clone(),
        tenant: volume.tenant.clone(),
        volume: volume.name.clone(),
        iops: sum(|pace| pace.iops),
        bytes_per_s: sum(|pace| pace.bytes_per_s),
        hold: volume.throttled_by.as_ref().map(Hold::of),
        trouble,
        why: format!(
            "{}, {}, {}, tenant {}, {}",
            bytes(volume.size_bytes),
            volume.backend,
            if volume.read_only { "read-only" } else { "read and write" },
            volume.tenant,
            counted(volume.connections, "connection")
        ),
        ..Row::default()
    }
}

/// Name of a connection: its client's address. Connections over Unix sockets are distinguished by their ids.
pub(super) fn client_name(client: &ClientState) -> String {
    if client.address.starts_with("unix") {
        format!("{} #{}", client.address, client.id)
    } else {
        client.address.clone()
    }
}

/// The row of the pool or tenant `name` with the owner `of`. `lately`: the figures and verdicts over the last second or interval,
/// if known.
pub(super) fn of(name: &str, of: &str, lately: Option<&Lately>) -> Row {
    let row = Row { name: name.into(), of: of.into(), ..Row::default() };
    let Some(lately) = lately else { return row };
    let worst = lately.targets.iter().min_by_key(|target| target.verdict);
    Row {
        iops: Some(lately.iops),
        bytes_per_s: Some(lately.bytes_per_s),
        response_ms: lately.latency_ms,
        queue_ms: lately.queue_latency_ms,
        device_ms: lately.device_latency_ms,
        p99_ms: lately.p99_ms,
        errors: Some(lately.errors as f64),
        target: worst.cloned(),
        hold: lately.throttled_by.as_ref().map(Hold::of),
        trouble: (lately.errors > 0).then(|| counted(lately.errors, "request") + " FAILED just now"),
        why: lately.because.clone(),
        ..row
    }
}

fn of_pool(pool: &PoolState) -> Row {
    let row = of(&pool.name, "", pool.lately.as_ref());
    let overdue = (!pool.overdue.is_empty()).then(|| counted(pool.overdue.len() as u64, "request") + " OVERDUE");
    Row { trouble: overdue.or(row.trouble), ..row }
}

fn of_tenant(tenant: &TenantState, pool: &PoolState) -> Row {
    Row { tenant: tenant.name.clone(), ..of(&tenant.name, &pool.name, tenant.lately.as_ref()) }
}

/// The 50th, 99th and 99.9th percentile, in ms, of the latencies counted from the state `then` to the state `now`. Without `then`
/// they count from the server's start; `None` if there are no latencies.
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
