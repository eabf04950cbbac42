//! The state of a server as text for a terminal.

use std::fmt::Write as _;

use evenkeel_policy::explain::owner_name;
use evenkeel_policy::figures::{aligned, bytes, counted, ms, short, uptime};
use evenkeel_policy::health::{Trouble, file_systems};
use evenkeel_policy::state::{
    GuaranteeState, LatencyState, LimitState, PoolState, RemoteState, State, TenantState, VolumeState,
};
use evenkeel_policy::units::{Bytes, Rates};
use evenkeel_policy::verdict::for_target;
use serde::Serialize;

/// A table whose first column is left-aligned and whose other columns are right-aligned.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    indented(head, rows, 1)
}

/// A table whose columns are all left-aligned.
pub(crate) fn words(head: &[&str], rows: &[Vec<String>]) -> String {
    indented(head, rows, head.len())
}

/// A table whose first `left` columns are left-aligned and whose other columns are right-aligned.
fn indented(head: &[&str], rows: &[Vec<String>], left: usize) -> String {
    let head: Vec<String> = head.iter().map(|&cell| cell.to_owned()).collect();
    let all: Vec<Vec<String>> = std::iter::once(head).chain(rows.iter().cloned()).collect();
    aligned(&all, left, usize::MAX).lines().map(|line| format!("  {line}\n")).collect()
}

fn rates(iops: Option<u64>, bytes_per_s: Option<u64>) -> String {
    let rates = Rates { iops: iops.unwrap_or(0), bytes_per_s: Bytes(bytes_per_s.unwrap_or(0)) };
    if rates.is_unset() { "-".into() } else { rates.to_string() }
}

/// A limit as text: its rates, and the owner of each rate that not the operator but a controller has set.
pub(crate) fn limit(limit: &LimitState) -> String {
    let others =
        [&limit.iops_owner, &limit.bytes_per_s_owner].into_iter().flatten().filter(|owner| *owner != "operator");
    let owners: Vec<&str> = others.map(|owner| owner_name(owner)).collect();
    let rates = rates(limit.iops, limit.bytes_per_s);
    if owners.is_empty() { rates } else { format!("{rates} (by {})", owners.join(", ")) }
}

fn percentiles(latency: &LatencyState) -> String {
    if latency.count == 0 { "-".into() } else { format!("{:.3} / {:.3}", latency.p50_ms, latency.p99_ms) }
}

/// The output of `evenkeel state`: facts about the server, its troubles, its pools with their tenants, and its volumes.
pub(super) fn state(state: &State) -> String {
    let mut text = head(state).join(", ") + "\n";
    troubles(state).iter().for_each(|trouble| text += &format!("{trouble}\n"));
    for shown in &state.pools {
        let _ = write!(text, "\n{}", pool(shown));
    }
    let _ = write!(text, "\nvolumes\n{}", volumes(state));
    text
}

/// Facts about a server for the first line: version, running time, engine, load of the workers, clients, read-only.
pub(crate) fn head(state: &State) -> Vec<String> {
    let busy = state.workers.iter().fold(0.0, |sum, worker| sum + worker.busy);
    let workers = state.workers.len();
    let mut head = vec![
        format!("evenkeel serve {}", state.version),
        format!("up {}", uptime(state.uptime_s)),
        state.engine.clone(),
        format!("{} {:.0} % busy", counted(workers as u64, "worker"), 100.0 * busy / workers.max(1) as f64),
        counted(state.connections, "client"),
    ];
    if state.read_only {
        head.push("read-only".into());
    }
    head
}

/// The server's troubles as sentences, without those that show in the row of a pool, tenant or volume.
pub(crate) fn troubles(state: &State) -> Vec<String> {
    const ON_ROWS: [&str; 4] = ["target_missed", "target_unachievable", "sync_failed", "remote_lost"];
    let troubles = state.health.troubles.iter();
    troubles.filter(|trouble| !ON_ROWS.contains(&trouble.kind.as_str())).map(Trouble::sentence).collect()
}

/// Settings and figures of a pool, as pairs of name and text.
pub(crate) fn pool_facts(pool: &PoolState) -> Vec<(&'static str, String)> {
    let admission = &pool.admission;
    let mut facts = vec![
        ("scheduler", pool.scheduler.clone()),
        ("limit", limit(&pool.limit)),
        ("requests", format!("{} queued, {} in flight", pool.queued_requests, admission.in_flight_requests)),
        (
            "admission",
            format!(
                "{}: {} in flight, budget {}{}",
                admission.kind,
                bytes(admission.in_flight_bytes),
                admission.budget_bytes.map_or_else(|| "without bound".into(), bytes),
                admission.target_ms.map_or_else(String::new, |target| format!(", target {} ms", ms(target)))
            ),
        ),
        ("why", admission.reason.clone()),
    ];
    if !admission.target_reason.is_empty() && admission.target_reason != admission.reason {
        facts.push(("why admission target", admission.target_reason.clone()));
    }
    if let Some(target) = &pool.latency_target {
        let measured =
            target.measured_ms.map_or_else(|| "nothing measured yet".into(), |ms| format!("last {ms:.2} ms"));
        facts.push((
            "latency target",
            format!("{} of reads below {} ms, {measured}", target.percentile, short(target.target_ms)),
        ));
        facts.extend(target.decision.iter().map(|decision| ("why", decision.because.clone())));
    }
    if let Some(slots) = &pool.slots {
        let total = slots.total.map_or_else(|| "without bound".into(), |total| format!("{total:.1}"));
        let with = if slots.clustered { "with other hosts" } else { "alone" };
        facts.push(("slots", format!("{total}, by {}, {with}", slots.method)));
    }
    facts
}

/// A throughput guarantee as text: the guaranteed rate, the rate reached, the limit that binds, and the reason.
pub(crate) fn guarantee(of: &GuaranteeState) -> String {
    let rate = |value| of.rate(value);
    let (guaranteed, got) = (rate(of.guaranteed_per_s as f64), of.measured_per_s.map_or_else(|| "-".into(), rate));
    let part = of.total_per_s.map(|total| format!(", part of {} in the cluster", rate(total as f64)));
    let guaranteed = format!("{guaranteed}{}{}", of.of_what(), part.unwrap_or_default());
    format!("{guaranteed}, got {got}; what binds: {}; {}", owner_name(&of.binding), of.because)
}

/// A pool: its settings and figures, its throttles and a table of its tenants.
pub(super) fn pool(pool: &PoolState) -> String {
    let mut text = format!("pool {}\n", pool.name);
    for (name, fact) in pool_facts(pool) {
        let _ = writeln!(text, "  {name}: {fact}");
    }
    for tenant in &pool.tenants {
        // Before its first window nothing is known of its limits.
        let by = tenant.lately.as_ref().map_or_else(|| for_target(tenant), |lately| lately.throttled_by.clone());
        if let Some(by) = by {
            let _ =
                writeln!(text, "  {} is throttled by {}: {}; {}", tenant.name, owner_name(&by.by), by.how, by.because);
        }
        for of in &tenant.guarantees {
            let _ = writeln!(text, "  {} was guaranteed {}", tenant.name, guarantee(of));
        }
    }
    text + &table(&TENANT, &pool.tenants.iter().map(tenant).collect::<Vec<_>>())
}

/// Headings of the columns in a table of tenants.
const TENANT: [&str; 10] = [
    "tenant",
    "reserved",
    "weight",
    "limit",
    "requests",
    "queued",
    "queue p50/p99 ms",
    "device p50/p99 ms",
    "conns",
    "errors",
];

/// A tenant on one pool, with the pool's name.
#[derive(Serialize)]
pub(super) struct OnPool<'s> {
    pool: &'s str,
    #[serde(flatten)]
    tenant: &'s TenantState,
}

/// The tenants of all pools, one record for each pool that a tenant is on.
pub(super) fn by_pool(state: &State) -> Vec<OnPool<'_>> {
    let mut all = Vec::new();
    for pool in &state.pools {
        all.extend(pool.tenants.iter().map(|tenant| OnPool { pool: &pool.name, tenant }));
    }
    all
}

/// A table of the tenants of all pools.
pub(super) fn tenants(state: &State) -> String {
    let row = |on: &OnPool<'_>| {
        let mut row = tenant(on.tenant);
        row.insert(1, on.pool.to_owned());
        row
    };
    let head = [&TENANT[..1], &["pool"], &TENANT[1..]].concat();
    table(&head, &by_pool(state).iter().map(row).collect::<Vec<_>>())
}

/// A table of pools.
pub(super) fn pools(state: &State) -> String {
    let row = |pool: &PoolState| {
        let target = pool.latency_target.as_ref();
        let target = target.map(|target| format!("{} < {} ms", target.percentile, short(target.target_ms)));
        let volumes = state.volumes.iter().filter(|volume| volume.pool == pool.name).count();
        vec![
            pool.name.clone(),
            pool.scheduler.clone(),
            pool.admission.kind.clone(),
            limit(&pool.limit),
            target.unwrap_or_else(|| "-".into()),
            pool.queued_requests.to_string(),
            pool.admission.in_flight_requests.to_string(),
            pool.tenants.len().to_string(),
            volumes.to_string(),
        ]
    };
    let head =
        ["pool", "scheduler", "admission", "limit", "latency target", "queued", "in flight", "tenants", "volumes"];
    table(&head, &state.pools.iter().map(row).collect::<Vec<_>>())
}

fn tenant(tenant: &TenantState) -> Vec<String> {
    let requests = tenant.reads_total + tenant.writes_total + tenant.flushes_total + tenant.metas_total;
    vec![
        tenant.name.clone(),
        rates(tenant.qos.reservation_iops, tenant.qos.reservation_bytes_per_s),
        if tenant.qos.priority == "background" {
            format!("{} bg", tenant.qos.weight)
        } else {
            tenant.qos.weight.to_string()
        },
        limit(&tenant.limit),
        requests.to_string(),
        tenant.queued_requests.to_string(),
        percentiles(&tenant.queue_latency),
        percentiles(&tenant.device_latency),
        tenant.connections.to_string(),
        tenant.errors_total.to_string(),
    ]
}

/// Location of a volume's data: its path, the URI of another server, or an image of Ceph. `None` if it is only in memory.
pub(crate) fn place(volume: &VolumeState) -> Option<&str> {
    let place = volume.path.as_ref().or(volume.remote.as_ref().map(|remote| &remote.uri));
    place.or(volume.rbd.as_ref().map(|rbd| &rbd.image)).map(String::as_str)
}

/// A table of volumes, with a further line for each volume that has failed or whose data is on another server.
pub(super) fn volumes(state: &State) -> String {
    let row = |volume: &VolumeState| {
        vec![
            volume.name.clone(),
            Bytes(volume.size_bytes).to_string(),
            volume.space.as_ref().map_or_else(|| "-".into(), |space| bytes(space.allocated_bytes)),
            volume.backend.clone(),
            volume.pool.clone(),
            volume.tenant.clone(),
            volume.connections.to_string(),
            if volume.read_only { "ro" } else { "rw" }.into(),
            place(volume).unwrap_or("-").to_owned(),
        ]
    };
    let rows: Vec<_> = state.volumes.iter().map(row).collect();
    let mut text =
        table(&["volume", "size", "allocated", "backend", "pool", "tenant", "conns", "access", "path"], &rows);
    for volume in &state.volumes {
        if let Some(error) = &volume.error {
            let _ = writeln!(text, "  FAILED: volume {}: {error}", volume.name);
        }
        if let Some(remote) = &volume.remote {
            let _ = writeln!(text, "  {}: remote server: {}", volume.name, self::remote(remote));
        }
        if volume.limit != LimitState::default() {
            let binds = if volume.throttled_by.is_some() { ", for which requests wait" } else { "" };
            let _ = writeln!(text, "  {}: limit {}{binds}", volume.name, limit(&volume.limit));
        }
        if volume.trims_total > 0 {
            let (trims, given) = (counted(volume.trims_total, "trim"), bytes(volume.trimmed_bytes_total));
            let _ = writeln!(text, "  {}: {trims}, {given} in all", volume.name);
        }
    }
    for system in file_systems(&state.volumes) {
        let _ = writeln!(text, "  {}", system.sentence());
    }
    text
}

/// The connection to the remote server that stores a volume, as text.
pub(crate) fn remote(remote: &RemoteState) -> String {
    let mut text = match remote.away_ms {
        Some(ms) if !remote.connected => format!("AWAY for {:.1} s", ms as f64 / 1e3),
        _ if !remote.connected => "AWAY".into(),
        _ => format!("{} of {}", remote.connections, counted(remote.connections_wanted, "connection")),
    };
    let in_flight = counted(remote.in_flight_requests, "request");
    let _ = write!(text, ", {in_flight} in flight, {} waiting", remote.waiting_requests);
    if remote.unflushed {
        text += ", some writes not flushed";
    }
    if remote.reconnects_total > 0 {
        let _ = write!(
            text,
            ", reconnected {}, {} sent again",
            counted(remote.reconnects_total, "time"),
            counted(remote.retransmits_total, "request")
        );
    }
    if let Some(error) = &remote.last_error {
        let _ = write!(text, "; last error: {error}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_policy::state::{AdmissionState, SpaceState, ThrottledState};
    use evenkeel_policy::verdict::Lately;

    #[test]
    fn a_tenant_is_throttled_before_its_first_window_too() {
        let throttled =
            ThrottledState { slots: 64, slots_owner: "latency".into(), delay_ms: 24.2, because: "it is noisy".into() };
        let mut tenant = TenantState { name: "backup".into(), throttled: Some(throttled), ..TenantState::default() };
        let line = "backup is throttled by the latency target: 64 slots, 24.2 ms delay; throttled for the pool's latency target: it is \
                    noisy\n";
        let shown = |tenant: &TenantState| pool(&PoolState { tenants: vec![tenant.clone()], ..PoolState::default() });
        assert!(shown(&tenant).contains(line), "{}", shown(&tenant));
        tenant.lately = Some(Lately { throttled_by: for_target(&tenant), ..Lately::default() });
        assert!(shown(&tenant).contains(line), "{}", shown(&tenant));
        tenant.throttled = None;
        tenant.lately = None;
        assert!(!shown(&tenant).contains("throttled"), "{}", shown(&tenant));
    }

    #[test]
    fn a_guarantee_is_shown_in_its_unit() {
        let of = |unit: &str, guaranteed_per_s, measured_per_s| {
            let (unit, binding, because) = (unit.into(), "throughput".into(), "why".into());
            guarantee(&GuaranteeState {
                unit,
                guaranteed_per_s,
                measured_per_s,
                binding,
                because,
                ..GuaranteeState::default()
            })
        };
        let text = "14.6 MB/s, got 9.50 MB/s; what binds: the throughput guarantee; why";
        assert_eq!(of("bytes", 14_600_000, Some(9.5e6)), text);
        assert_eq!(of("requests", 12_500, None), "12.5k IOPS, got -; what binds: the throughput guarantee; why");
        let total = GuaranteeState {
            of: "read".into(),
            unit: "requests".into(),
            guaranteed_per_s: 300,
            total_per_s: Some(900),
            binding: "throughput".into(),
            ..GuaranteeState::default()
        };
        let part = "300 IOPS of reads, part of 900 IOPS in the cluster, got -; ";
        assert!(guarantee(&total).starts_with(part), "{}", guarantee(&total));
    }

    #[test]
    fn shows_what_matters_and_why() {
        let tenant = TenantState {
            name: "database".into(),
            limit: LimitState { iops: Some(400), iops_owner: Some("latency".into()), ..LimitState::default() },
            reads_total: 41,
            writes_total: 1,
            ..TenantState::default()
        };
        let admission = AdmissionState {
            kind: "slowfast".into(),
            budget_bytes: Some(102_400),
            target_ms: Some(5.0),
            reason: "target met".into(),
            ..AdmissionState::default()
        };
        let pool = PoolState { name: "main".into(), admission, tenants: vec![tenant], ..PoolState::default() };
        let volume = VolumeState {
            name: "disk0".into(),
            size_bytes: 1 << 30,
            error: Some("disk died".into()),
            trims_total: 2,
            trimmed_bytes_total: 5 << 20,
            path: Some("/srv/disk0.img".into()),
            space: Some(SpaceState {
                allocated_bytes: 3 << 20,
                file_system: "8:1".into(),
                free_bytes: 4 << 30,
                capacity_bytes: 8 << 30,
            }),
            ..VolumeState::default()
        };
        let remote = RemoteState {
            uri: "nbd://far:10809/disk".into(),
            away_ms: Some(2500),
            reconnects_total: 3,
            last_error: Some("gone".into()),
            ..RemoteState::default()
        };
        let far = VolumeState { name: "far".into(), remote: Some(remote), ..VolumeState::default() };
        let state = State { pools: vec![pool], volumes: vec![volume, far], ..State::default() };
        let (pools, tenants) = (pools(&state), tenants(&state));
        assert!(pools.contains("main") && pools.contains("slowfast"), "{pools}");
        assert!(tenants.contains("database") && tenants.contains("main"), "{tenants}");
        let record = serde_json::to_value(by_pool(&state)).expect("JSON");
        assert_eq!((&record[0]["pool"], &record[0]["name"]), (&"main".into(), &"database".into()));
        let text = super::state(&state);
        for part in [
            "database",
            "400 IOPS (by the latency target)",
            "42",
            "budget 100 KiB, target 5.00 ms",
            "why: target met",
            "1GiB",
            "3.0 MiB",
            "disk0: 2 trims, 5.0 MiB in all",
            "4.0 GiB of 8.0 GiB are free on the file system of /srv/disk0.img, whose 1 volume may allocate 1021 MiB more",
            "FAILED: volume disk0: disk died",
            "nbd://far:10809/disk",
            "far: remote server: AWAY for 2.5 s, 0 requests in flight, 0 waiting, reconnected 3 times, \
             0 requests sent again; last error: gone",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }
}
