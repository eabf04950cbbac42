//! The agent's map, state and decisions as text for a terminal.

use std::fmt::Write as _;

use evenkeel_guard::discovery::map::PoolEntry;
use evenkeel_guard::discovery::osds::OsdEntry;
use evenkeel_guard::discovery::{Link, Map};
use evenkeel_guard::loops::record::{
    At, CgroupState, ClientState, GroupState, OsdState, PacketsState, Part, PoolState, QueueDepthState, QueueState,
    ReadsState, State,
};
use evenkeel_guard::sensor::cache::CachedEntry;
use evenkeel_policy::decision::{Decisions, Unit};
use evenkeel_policy::figures::{counted, counted_figure};
use evenkeel_policy::history::{Event, EventKind, History};
use evenkeel_policy::moment;
use evenkeel_policy::state::GuaranteeState;
use evenkeel_web::history::Query;

use crate::control::table;
use crate::history::{event_text, wrapped};

fn or_dash(text: Option<&str>) -> String {
    text.unwrap_or("-").to_owned()
}

/// The map of clients, volumes and devices as tables, with notes below about links that are uncertain.
pub(super) fn map(map: &Map) -> String {
    let mut text = String::new();
    if map.links.is_empty() {
        text.push_str(
            "no targets found: neither LIO, tgt, nvmet, nbd-server, qemu-nbd nor evenkeel serves a volume here; run \
             this as root, in the network namespace of the targets\n",
        );
    } else {
        let head = ["client", "name", "server", "target", "volume", "device", "pool", "known by"];
        let row = |link: &Link| {
            vec![
                link.client.map_or_else(|| "-".into(), |client| client.to_string()),
                or_dash(link.client_name.as_deref()),
                link.server.name().to_owned(),
                link.target.clone(),
                link.volume.clone(),
                or_dash(link.device.as_deref()),
                or_dash(link.pool.as_deref()),
                link.known_by.name().to_owned(),
            ]
        };
        text += &table(&head, &map.links.iter().map(row).collect::<Vec<_>>());
        text.push('\n');
        let row = |entry: &PoolEntry| vec![entry.name.clone(), entry.kind.clone(), entry.devices.join(" ")];
        let rows: Vec<_> = map.pools.iter().map(row).collect();
        text += &table(&["pool", "kind", "devices"], &rows);
    }
    if !map.cached.is_empty() {
        let row = |entry: &CachedEntry| {
            let (path, fast) = (or_dash(entry.path.as_deref()), or_dash(entry.fast.as_deref()));
            vec![entry.name.clone(), entry.kind.clone(), path, fast, entry.slow.clone()]
        };
        let rows: Vec<_> = map.cached.iter().map(row).collect();
        text.push('\n');
        text += &table(&["cached device", "kind", "path", "fast", "slow"], &rows);
    }
    if !map.osds.is_empty() {
        let row = |entry: &OsdEntry| vec![entry.name.clone(), entry.socket.display().to_string()];
        let _ = write!(text, "\n{}", table(&["osd", "admin socket"], &map.osds.iter().map(row).collect::<Vec<_>>()));
    }
    for note in &map.notes {
        let _ = writeln!(text, "\nnote: {}", note.message);
    }
    text
}

/// The output of `evenkeel guard status`: the agent's measurements and decisions for each pool.
pub(super) fn state(state: &State) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "evenkeel guard {}, up {:.0} s, every {} ms, late decisions: {}, {}\n{}",
        state.version,
        state.uptime_s,
        state.interval_ms,
        state.late_ticks_total,
        counted(state.errors_total, "error"),
        state.acting_reason
    );
    if let Some(error) = &state.last_error {
        let _ = writeln!(text, "last error: {error}");
    }
    for pool in &state.pools {
        match &pool.at {
            At::Packets(at) => text += &packets(pool, at),
            At::Cgroup(at) => text += &groups(pool, at),
            At::QueueDepth(at) => text += &array(pool, at),
            _ => text += &parts(pool),
        }
        for note in &pool.notes {
            let _ = writeln!(text, "note: {note}");
        }
    }
    if let Some(cluster) = &state.cluster {
        let members: Vec<&str> = cluster.members.iter().map(|member| member.name.as_str()).collect();
        let _ = writeln!(text, "\ncluster {}: {} ({})", cluster.status, cluster.because, members.join(", "));
    }
    let osds: Vec<_> = state.osds().map(|(pool, at)| osd(pool, at)).collect();
    if !osds.is_empty() {
        let head = ["osd", "is", "budget KiB", "throttle KiB", "store ms", "commits/s", "MB/s", "waiting", "why"];
        let _ = write!(text, "\n{}", table(&head, &osds));
    }
    for note in &state.notes {
        let _ = writeln!(text, "\nnote: {}", note.message);
    }
    text
}

/// A pool whose clients' packets the agent delays for a latency target, with these clients, as text.
fn packets(pool: &PoolState, at: &PacketsState) -> String {
    let mut text = String::new();
    let target = pool.latency_target.clone().unwrap_or_default();
    let read_ms = pool.reads.as_ref().and_then(|reads| reads.latency_ms);
    let mut reads = read_ms.map_or_else(|| "no reads".into(), |ms| format!("reads take {}", Unit::Ms.text(ms)));
    if let Some(ms) = pool.percentile_ms() {
        let _ = write!(reads, " ({} lately {})", target.percentile, Unit::Ms.text(ms));
    }
    let _ = writeln!(
        text,
        "\n{}: latency target {} ms for the {}, {reads}, {:.2} MB/s read, {:.2} MB/s written, {} in flight\n  why: {}",
        pool.name,
        target.target_ms,
        target.percentile,
        at.read_bytes_per_s / 1e6,
        at.write_bytes_per_s / 1e6,
        pool.in_flight,
        pool.lately.because
    );
    let head = ["client", "name", "throttle", "MB/s", "delay ms", "because"];
    let rows: Vec<_> = at.clients.iter().map(client).collect();
    text += &if rows.is_empty() { "  no clients found\n".into() } else { table(&head, &rows) };
    text
}

/// An array, with its volumes on this host, as text.
fn array(pool: &PoolState, array: &QueueDepthState) -> String {
    let mut text = String::new();
    let total =
        array.slots.total.map_or_else(|| "slots unbounded".into(), |all| counted_figure(all, "slot") + " in all");
    let with = if array.slots.clustered { "decided with other hosts" } else { "decided by this host alone" };
    let _ = writeln!(text, "\n{}: {total} by {}, {with} every {} s", pool.name, pool.method, array.period_s);
    let head = ["volume", "target ms", "latency ms", "in the array ms", "used", "needed", "slots", "queue", "because"];
    let figure = |figure: Option<f64>| figure.map_or_else(|| "-".into(), |figure| format!("{figure:.1}"));
    let rows = array.volumes.iter().map(|volume| {
        let queues: Vec<String> = volume.queues.iter().map(queue).collect();
        vec![
            volume.name.clone(),
            figure(volume.slots.target_ms),
            figure(volume.lately.latency_ms),
            figure(volume.slots.device_latency_ms),
            format!("{:.1}", volume.slots.used),
            format!("{:.1}", volume.slots.need),
            figure(volume.slots.granted),
            queues.join(", "),
            volume.slots.because.clone(),
        ]
    });
    let rows: Vec<_> = rows.collect();
    text += &table(&head, &rows);
    text
}

/// A pool at a point without a table of its own, with the pool's clients, groups or volumes, as text; nothing without any.
fn parts(pool: &PoolState) -> String {
    let row = |part: &Part<'_>| {
        let lately = part.lately;
        let [iops, rate] = [format!("{:.0}", lately.iops), format!("{:.2}", lately.bytes_per_s / 1e6)];
        vec![part.name.to_owned(), iops, rate, lately.because.clone()]
    };
    let rows: Vec<_> = pool.parts().iter().map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    let head = format!("\n{}: {}, by {}\n", pool.name, pool.at.acts_on(), pool.method);
    head + &table(&["name", "IOPS", "MB/s", "because"], &rows)
}

/// A disk's queue depth as text, with the depth before the agent changed it; or the depth that another program has set.
pub(crate) fn queue(queue: &QueueState) -> String {
    let length = |length: Option<u32>| length.map_or_else(|| "-".into(), |length| length.to_string());
    match &queue.foreign {
        Some(found) => format!("{} stays at {found}, which another program set", queue.disk),
        None => format!("{} {} of {}", queue.disk, length(queue.value), length(queue.before)),
    }
}

fn osd(pool: &PoolState, osd: &OsdState) -> Vec<String> {
    let lately = &pool.lately;
    let kib = |bytes: Option<u64>| bytes.map_or_else(|| "-".into(), |bytes| (bytes >> 10).to_string());
    vec![
        pool.name.clone(),
        osd.condition.clone(),
        kib(osd.admission.budget_bytes),
        kib(osd.throttle_bytes),
        lately.latency_ms.map_or_else(|| "-".into(), |ms| format!("{ms:.2}")),
        format!("{:.0}", lately.iops),
        format!("{:.2}", lately.bytes_per_s / 1e6),
        osd.waiting.to_string(),
        osd.problem.clone().unwrap_or_else(|| format!("{}: {}", pool.method, lately.because)),
    ]
}

/// A pool whose control groups the agent limits: its device and its groups, as text.
fn groups(pool: &PoolState, at: &CgroupState) -> String {
    if let Some(reads) = &pool.reads {
        return local(pool, at, reads);
    }
    let mut text = String::new();
    let slow = match (at.slow_bytes_per_s, at.slow_is_trusted) {
        (None, _) => "its slow device has not been busy yet, so its throughput is unknown".to_owned(),
        (Some(rate), true) => format!("its slow device gives {:.2} MB/s", rate / 1e6),
        (Some(rate), false) => {
            format!("its slow device gives about {:.2} MB/s, by too few or too old measurements", rate / 1e6)
        }
    };
    let _ = writeln!(
        text,
        "\n{}: {} {}, {slow}, groups without a guarantee take {:.2} MB/s of that; limits by {}",
        pool.name,
        at.kind,
        at.device,
        at.background_bytes_per_s / 1e6,
        pool.method
    );
    if let Some(trouble) = at.cache.as_ref().and_then(|cache| cache.trouble.as_ref()) {
        let _ = writeln!(text, "  the cache is in trouble: {trouble}");
    }
    let head = ["group", "tenant", "", "guaranteed", "got", "missed", "limit", "because"];
    let mut rows = Vec::new();
    for group in &at.groups {
        for of in group.guarantees() {
            let (unit, foreign) = (of.rates_in(), foreign(group));
            rows.push(vec![
                group.group.clone(),
                group.tenant.clone(),
                of.of.clone(),
                guaranteed(of),
                of.measured_per_s.map_or_else(|| "-".into(), |rate| unit.text(rate)),
                of.miss_rate.map_or_else(|| "-".into(), |part| format!("{:.1} %", part * 100.0)),
                if foreign.is_some() { "-".into() } else { unit.text(of.limit_per_s as f64) },
                foreign.unwrap_or_else(|| of.because.clone()),
            ]);
        }
    }
    text += &if rows.is_empty() { "  no groups found\n".into() } else { table(&head, &rows) };
    text
}

/// A device with a latency target or tenants' limits for its control groups, and these groups, as text.
fn local(pool: &PoolState, at: &CgroupState, reads: &ReadsState) -> String {
    let ms = |ms: Option<f64>| ms.map_or_else(|| "-".into(), |ms| format!("{ms:.2} ms"));
    let target = pool.latency_target.as_ref();
    let percentile = target.map_or("mean", |target| target.percentile.as_str());
    let target = target.map_or_else(|| "no target".into(), |target| format!("target {} ms", target.target_ms));
    let mut text = String::new();
    let _ = writeln!(
        text,
        "\n{}: {}, reads {percentile} {} ({target}), measured by {}; limits by {}\n  {}",
        pool.name,
        at.device,
        ms(pool.figure_ms()),
        reads.measured,
        pool.method,
        pool.lately.because
    );
    let head = ["group", "tenant", "throttle", "MB/s", "IOPS", "p50 ms", "p99 ms", "delay ms", "limits", "because"];
    let figure = |ms: Option<f64>| ms.map_or_else(|| "-".into(), |ms| format!("{ms:.2}"));
    let row = |group: &GroupState| {
        let (reads, lately) = (group.read_percentiles, &group.lately);
        vec![
            group.group.clone(),
            group.tenant.clone(),
            group.throttle.clone(),
            format!("{:.2}", lately.bytes_per_s / 1e6),
            format!("{:.0}", lately.iops),
            figure(reads.map(|reads| reads.p50_ms)),
            figure(reads.map(|reads| reads.p99_ms)),
            format!("{:.1}", group.delay_ms),
            or_dash(group.limits.as_deref()),
            foreign(group).unwrap_or_else(|| lately.because.clone()),
        ]
    };
    let rows: Vec<_> = at.groups.iter().map(row).collect();
    text += &if rows.is_empty() { "  no groups found\n".into() } else { table(&head, &rows) };
    for group in at.groups.iter().filter(|group| !group.also_matched_by.is_empty()) {
        let _ = writeln!(text, "  {}: by {}", group.group, matched(group));
    }
    text
}

/// The entry of `match` by which a group belongs to its tenant, with those of other tenants that it precedes.
pub(crate) fn matched(group: &GroupState) -> String {
    if group.also_matched_by.is_empty() {
        return group.matched_by.clone();
    }
    format!("{}, which precedes {}", group.matched_by, group.also_matched_by.join(", "))
}

/// A guarantee as text; in a cluster this host's part of it, and the whole.
fn guaranteed(of: &GuaranteeState) -> String {
    let text = |rate: u64| of.rates_in().text(rate as f64);
    let here = text(of.guaranteed_per_s);
    of.total_per_s.map_or_else(|| here.clone(), |total| format!("{here} of {}", text(total)))
}

/// The reason why the agent does not control a group; `None` if it controls the group.
pub(crate) fn foreign(group: &GroupState) -> Option<String> {
    let limit = group.foreign_limit.as_ref()?;
    Some(format!("not enforced until the agent restarts: another program set io.max to {limit}"))
}

fn client(client: &ClientState) -> Vec<String> {
    let about = if client.load_is_estimated { "about " } else { "" };
    vec![
        client.address.clone(),
        client.names.join(" "),
        client.throttle.clone(),
        format!("{about}{:.2}", client.lately.bytes_per_s / 1e6),
        format!("{:.1}", client.delay_ms),
        client.lately.because.clone(),
    ]
}

/// The agent's decisions as text, newest first.
pub(super) fn decisions(all: &Decisions) -> String {
    if all.decisions.is_empty() {
        return "the agent has decided nothing yet\n".into();
    }
    all.decisions.iter().map(|record| format!("{record}\n")).collect()
}

/// Time before a moment from which past decisions are shown, in seconds.
const BEFORE_S: u64 = 3_600;

/// The question for the decisions of the hour before a moment, and those at it; about one pool, or all.
pub(super) fn asked_before(at: u64, pool: Option<String>) -> Query {
    Query { from: at.saturating_sub(BEFORE_S), to: at + 1, step: Some(600), pool, tenant: Some(String::new()) }
}

/// The newest `count` decisions of the past, newest first.
pub(super) fn past(past: &History, count: usize, zone: impl Fn(i64) -> i64 + Copy) -> String {
    let decisions = past.events.iter().filter(|event| event.kind == EventKind::Decision).rev().take(count);
    let line = |event: &Event| {
        let head = format!("{} {}  ", moment::date(event.at_s, zone), moment::time(event.at_s, zone));
        wrapped(&head, &event_text(event), 10)
    };
    let lines: String = decisions.map(line).collect();
    match past.oldest_s {
        _ if !lines.is_empty() => lines,
        Some(oldest) if oldest < past.to_s => "no decision was recorded in the hour before this time\n".into(),
        Some(oldest) => format!("the oldest record is of {}\n", moment::text(oldest, zone)),
        None => "the history has no record yet\n".into(),
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_guard::loops::record::VolumeState;
    use evenkeel_policy::verdict::Lately;

    use super::*;

    #[test]
    fn a_pool_at_any_point_is_shown_with_its_parts() {
        let lately = Lately { iops: 20.0, bytes_per_s: 5e6, because: "its share".into(), ..Lately::default() };
        let volume = VolumeState { name: "db".into(), lately, ..VolumeState::default() };
        let at = At::QueueDepth(QueueDepthState { volumes: vec![volume], ..QueueDepthState::default() });
        let pool = PoolState { name: "san".into(), method: "needs".into(), at, ..PoolState::default() };
        let text = parts(&pool);
        assert!(text.starts_with("\nsan: length of 0 queues, by needs\n"), "{text}");
        let row = text.lines().last().unwrap_or_default();
        assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["db", "20", "5.00", "its", "share"]);
        assert_eq!(parts(&PoolState { at: At::Osd(OsdState::default()), ..pool }), "");
    }
}
