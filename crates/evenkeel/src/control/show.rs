//! State as text for a terminal.

use std::fmt::Write as _;

use evenkeel_policy::state::{LatencyState, LimitState, PoolState, RemoteState, State, TenantState};
use evenkeel_policy::units::{Bytes, Rates};

/// Left-aligned first column, right-aligned others.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    aligned(head, rows, 1)
}

/// All columns left-aligned.
pub(crate) fn words(head: &[&str], rows: &[Vec<String>]) -> String {
    aligned(head, rows, head.len())
}

/// The first `left` columns left-aligned, the others right-aligned.
fn aligned(head: &[&str], rows: &[Vec<String>], left: usize) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([head[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    let head: Vec<String> = head.iter().map(|&cell| cell.to_owned()).collect();
    for row in std::iter::once(&head).chain(rows) {
        for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            let _ = if column + 1 == left && column > 0 {
                write!(text, "  {cell}")
            } else if column < left {
                write!(text, "  {cell:<width$}")
            } else {
                write!(text, "  {cell:>width$}")
            };
        }
        text.push('\n');
    }
    text
}

fn rates(iops: Option<u64>, bytes_per_s: Option<u64>) -> String {
    let rates = Rates { iops: iops.unwrap_or(0), bytes_per_s: Bytes(bytes_per_s.unwrap_or(0)) };
    if rates.is_unset() { "-".into() } else { rates.to_string() }
}

/// A limit, with its owner unless that is the operator.
fn limit(limit: &LimitState) -> String {
    let others =
        [&limit.iops_owner, &limit.bytes_per_s_owner].into_iter().flatten().filter(|owner| *owner != "operator");
    let owners: Vec<&str> = others.map(String::as_str).collect();
    let rates = rates(limit.iops, limit.bytes_per_s);
    if owners.is_empty() { rates } else { format!("{rates} (by {})", owners.join(", ")) }
}

fn percentiles(latency: &LatencyState) -> String {
    if latency.count == 0 { "-".into() } else { format!("{:.3} / {:.3}", latency.p50_ms, latency.p99_ms) }
}

fn size(bytes: u64) -> String {
    Bytes(bytes).to_string()
}

/// Everything worth a look.
pub(super) fn state(state: &State) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "evenkeel {}, up {:.0} s, {}, {} workers, {} connections{}{}",
        state.version,
        state.uptime_s,
        state.engine,
        state.workers.len(),
        state.connections,
        if state.read_only { ", read-only" } else { "" },
        if state.draining { ", stopping" } else { "" },
    );
    for shown in &state.pools {
        let _ = write!(text, "\n{}", pool(shown));
    }
    let _ = write!(text, "\nvolumes\n{}", volumes(state));
    text
}

fn pool(pool: &PoolState) -> String {
    let mut text = String::new();
    let admission = &pool.admission;
    let budget = admission.budget_bytes.map_or_else(|| "no bound".into(), |budget| format!("budget {budget} bytes"));
    let target = admission.target_ms.map_or_else(String::new, |ms| format!(", target {ms:.2} ms"));
    let _ = writeln!(
        text,
        "pool {}: scheduler {}, limit {}, {} queued, {} in flight\n  admission {}: {} bytes in flight, {budget}{target}",
        pool.name,
        pool.scheduler,
        limit(&pool.limit),
        pool.queued_requests,
        admission.in_flight_requests,
        admission.kind,
        admission.in_flight_bytes,
    );
    let _ = writeln!(text, "  why: {}", admission.reason);
    if !admission.target_reason.is_empty() && admission.target_reason != admission.reason {
        let _ = writeln!(text, "  why that target: {}", admission.target_reason);
    }
    if let Some(goal) = &pool.latency_target {
        let _ = write!(text, "  goal: {} of reads below {} ms", goal.percentile, goal.target_ms);
        if let Some(measured) = goal.measured_ms {
            let _ = write!(text, ", last measured {measured:.2} ms");
        }
        if let Some(decision) = &goal.decision {
            let _ = write!(text, "\n  why: {}", decision.because);
        }
        text.push('\n');
    }
    for tenant in &pool.tenants {
        if let Some(hold) = &tenant.throttled {
            let _ = writeln!(
                text,
                "  {} is throttled: {} slots ({}), each delayed by {:.2} ms; {}",
                tenant.name, hold.slots, hold.slots_owner, hold.delay_ms, hold.because
            );
        }
    }
    for tenant in &pool.tenants {
        for guarantee in &tenant.guarantees {
            let _ = writeln!(
                text,
                "  {} was guaranteed {} {}/s{}; what binds: {}; {}",
                tenant.name,
                guarantee.guaranteed_per_s,
                guarantee.unit,
                guarantee.of_what(),
                guarantee.binding,
                guarantee.because
            );
        }
    }
    for io in &pool.overdue {
        let _ = writeln!(
            text,
            "  OVERDUE: {} of {} bytes at {} of volume {}, in flight for {:.0} s",
            io.kind, io.length_bytes, io.offset_bytes, io.volume, io.age_s
        );
    }
    let head = [
        "tenant",
        "reserved",
        "weight",
        "limit",
        "requests",
        "queued",
        "wait p50/p99 ms",
        "device p50/p99 ms",
        "conns",
        "errors",
    ];
    text + &table(&head, &pool.tenants.iter().map(tenant).collect::<Vec<_>>())
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

/// One line for each volume, and one more for each that failed or is on another server.
pub(super) fn volumes(state: &State) -> String {
    let row = |volume: &evenkeel_policy::state::VolumeState| {
        vec![
            volume.name.clone(),
            size(volume.size_bytes),
            volume.backend.clone(),
            volume.pool.clone(),
            volume.tenant.clone(),
            volume.connections.to_string(),
            if volume.read_only { "ro" } else { "rw" }.into(),
            volume
                .path
                .as_ref()
                .or(volume.remote.as_ref().map(|remote| &remote.uri))
                .or(volume.rbd.as_ref().map(|rbd| &rbd.image))
                .cloned()
                .unwrap_or_else(|| "-".into()),
        ]
    };
    let rows: Vec<_> = state.volumes.iter().map(row).collect();
    let mut text = table(&["volume", "size", "backend", "pool", "tenant", "conns", "access", "path"], &rows);
    for volume in &state.volumes {
        if let Some(error) = &volume.error {
            let _ = writeln!(text, "  FAILED: volume {}: {error}", volume.name);
        }
        if let Some(remote) = &volume.remote {
            let _ = writeln!(text, "  {}: {}", volume.name, self::remote(remote));
        }
    }
    text
}

/// How the server behind a volume does.
fn remote(remote: &RemoteState) -> String {
    let mut text = match remote.away_ms {
        Some(ms) if !remote.connected => format!("AWAY for {:.1} s", ms as f64 / 1e3),
        _ if !remote.connected => "AWAY".into(),
        _ => format!("{} of {} connections", remote.connections, remote.connections_wanted),
    };
    let _ = write!(text, ", {} in flight, {} waiting", remote.in_flight_requests, remote.waiting_requests);
    if remote.unflushed {
        text += ", not all flushed";
    }
    if remote.reconnects_total > 0 {
        let _ = write!(
            text,
            ", reconnected {} times, {} requests sent again",
            remote.reconnects_total, remote.resent_total
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
    use evenkeel_policy::state::{AdmissionState, VolumeState};

    #[test]
    fn shows_what_matters_and_why() {
        let tenant = TenantState {
            name: "database".into(),
            limit: LimitState { iops: Some(400), iops_owner: Some("response".into()), ..LimitState::default() },
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
        let text = state(&State { pools: vec![pool], volumes: vec![volume, far], ..State::default() });
        for part in [
            "database",
            "400 IOPS (by response)",
            "42",
            "budget 102400 bytes, target 5.00 ms",
            "why: target met",
            "1GiB",
            "FAILED: volume disk0: disk died",
            "nbd://far:10809/disk",
            "far: AWAY for 2.5 s, 0 in flight, 0 waiting, reconnected 3 times, 0 requests sent again; last error: gone",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }
}
