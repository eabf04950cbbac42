//! Converts the state of an agent into the rows of `evenkeel top`.

use evenkeel_guard::loops::record::{
    CgroupState, ClientState, DirectionState, GroupState, GroupThrottleState, LocalState, OsdState, PacketsState,
    PoolState, QueueDepthState, State, VolumeState,
};
use evenkeel_policy::decision::Unit;
use evenkeel_policy::health::Trouble;
use evenkeel_policy::verdict::{self, AT_LIMIT};

use super::figures::{bytes, bytes_per_s, counted, ms, short, uptime};
use super::row::{Hold, Row, Sample, Tab, Table};
use crate::guard::show;

/// The views for an agent's state; empty views are left out. `before`: the previous state of the agent, for counts between
/// the two states.
pub(super) fn sample(state: &State, before: &State) -> Sample {
    let queues = state.queue_depths().flat_map(|(pool, array)| {
        let was = before.queue_depths().find(|(was, _)| was.name == pool.name).map(|(_, was)| was);
        array.volumes.iter().map(move |volume| of_queue(pool, volume, was))
    });
    let clients = state
        .packets()
        .flat_map(|(pool, at)| at.clients.iter().map(move |client| of_client(pool, client, state.acting)));
    let groups = state.cgroups().flat_map(|(pool, at)| of_groups(pool, at, state.acting));
    let locals = state.cgroups().filter_map(|(pool, at)| Some(of_local(pool, at, at.latency.as_ref()?)));
    let all = [
        Table { tab: Tab::Guarded, rows: state.packets().map(|(pool, at)| of_pool(pool, at)).chain(locals).collect() },
        Table { tab: Tab::Initiators, rows: clients.collect() },
        Table { tab: Tab::Groups, rows: groups.collect() },
        Table { tab: Tab::Queues, rows: queues.collect() },
        Table { tab: Tab::Osds, rows: state.osds().map(|(pool, at)| of_osd(pool, at)).collect() },
    ];
    let mut tables: Vec<Table> = all.into_iter().filter(|table| !table.rows.is_empty()).collect();
    if tables.is_empty() {
        tables.push(Table { tab: Tab::Guarded, rows: Vec::new() });
    }
    Sample { head: head(state), uptime_s: state.uptime_s, troubles: troubles(state), tables }
}

fn head(state: &State) -> Vec<String> {
    let mut head = vec![
        format!("evenkeel guard {}", state.version),
        format!("up {}", uptime(state.uptime_s)),
        if state.acting { "acting" } else { "NOT ACTING" }.into(),
        format!("decides every {} ms", short(state.interval_ms)),
    ];
    if state.late_ticks_total > 0 {
        head.push(format!("late decisions: {}", state.late_ticks_total));
    }
    head
}

/// The agent's troubles as sentences, without those that show in a row.
fn troubles(state: &State) -> Vec<String> {
    const ON_ROWS: [&str; 4] = ["target_missed", "target_unachievable", "ineffective", "signal_lost"];
    let troubles = state.health.troubles.iter();
    troubles.filter(|trouble| !ON_ROWS.contains(&trouble.kind.as_str())).map(Trouble::sentence).collect()
}

/// The row of a pool of whose clients or groups, each called `one`, `throttled` are throttled; without figures of latency.
fn of_throttling(pool: &PoolState, throttled: usize, one: &str, mean_delay_ms: f64) -> Row {
    Row {
        name: pool.name.clone(),
        hold: (throttled > 0).then(|| Hold {
            by: counted(throttled as u64, one) + " throttled",
            how: format!("mean {} ms", ms(mean_delay_ms)),
        }),
        trouble: (pool.reason == "signal_lost").then(|| "SIGNAL LOST".into()),
        why: pool.because.clone(),
        ..Row::default()
    }
}

/// The row of a pool with a latency target. The device latency is the time of reads in the pool's devices; their wait in the
/// queue of the storage target, which belongs to another program, is not included.
fn of_pool(pool: &PoolState, packets: &PacketsState) -> Row {
    let held = packets.clients.iter().filter(|client| client.delay_ms > 0.0).count();
    Row {
        bytes_per_s: Some(packets.read_bytes_per_s + packets.write_bytes_per_s),
        response_ms: packets.figure_ms().or(packets.read_latency_ms),
        device_ms: packets.read_latency_ms,
        p99_ms: packets.p99_ms(),
        target: Some(packets.target(&pool.reason)),
        ..of_throttling(pool, held, "client", packets.mean_delay_ms)
    }
}

fn of_client(pool: &PoolState, client: &ClientState, acting: bool) -> Row {
    let held = client.delay_ms > 0.0;
    let would = if acting { "" } else { "would be " };
    let why = match (&client.exempt_because, held) {
        (Some(exempt), _) => format!("never throttled: {exempt}"),
        (None, true) => format!("{would}throttled by {} ms: {}", ms(client.delay_ms), client.because),
        (None, false) => format!("not throttled (throttle = \"{}\")", client.throttle),
    };
    let names = client.names.join(" ");
    Row {
        name: client.address.clone(),
        of: pool.name.clone(),
        bytes_per_s: Some(client.bytes_per_s),
        queue_ms: held.then_some(client.delay_ms),
        hold: held.then(|| Hold { by: "latency".into(), how: format!("{} ms", ms(client.delay_ms)) }),
        why: if names.is_empty() { why } else { format!("{names}: {why}") },
        ..Row::default()
    }
}

/// The row of a device with a latency target for its control groups.
fn of_local(pool: &PoolState, at: &CgroupState, latency: &LocalState) -> Row {
    let is_throttled = |group: &&GroupState| group.latency.as_ref().is_some_and(|of| of.delay_ms > 0.0);
    let throttled = at.groups.iter().filter(is_throttled).count();
    Row {
        bytes_per_s: Some(latency.bytes_per_s),
        response_ms: latency.figure_ms().or(latency.read_latency_ms),
        device_ms: latency.read_latency_ms,
        p99_ms: latency.p99_ms(),
        target: latency.target(&pool.reason),
        ..of_throttling(pool, throttled, "group", latency.mean_delay_ms)
    }
}

/// The row of a control group of a device with a latency target.
fn of_throttled(pool: &PoolState, group: &GroupState, of: &GroupThrottleState, acting: bool) -> Row {
    let held = of.delay_ms > 0.0;
    let is_at_limit = !held && !of.because.is_empty();
    let would = if acting { "" } else { "would be " };
    let foreign = show::foreign(group);
    let limits = of.limits.as_deref().unwrap_or("not known yet");
    let why = match &of.exempt_because {
        Some(exempt) => format!("never throttled: {exempt}"),
        None if held || is_at_limit => format!("{would}throttled, io.max {limits}: {}", of.because),
        None => format!("not throttled (throttle = \"{}\")", of.throttle),
    };
    Row {
        name: group.group.clone(),
        of: pool.name.clone(),
        tenant: group.tenant.clone(),
        iops: Some(of.iops),
        bytes_per_s: Some(of.bytes_per_s),
        queue_ms: held.then_some(of.delay_ms),
        p99_ms: of.read_percentiles.map(|reads| reads.p99_ms),
        hold: if is_at_limit {
            Some(Hold { by: "operator".into(), how: bytes_per_s(of.bytes_per_s) })
        } else {
            held.then(|| Hold { by: "latency".into(), how: format!("{} ms", ms(of.delay_ms)) })
        },
        why: foreign.clone().unwrap_or(why),
        trouble: foreign,
        ..Row::default()
    }
}

fn of_groups(pool: &PoolState, at: &CgroupState, acting: bool) -> Vec<Row> {
    if at.latency.is_some() {
        let row = |group: &GroupState| Some(of_throttled(pool, group, group.latency.as_ref()?, acting));
        return at.groups.iter().filter_map(row).collect();
    }
    let directions = |tenant: &GroupState| {
        let both = [("read", &tenant.read), ("write", &tenant.write)];
        let rows = both.map(|(name, direction)| Some(of_group(pool, tenant, name, direction.as_ref()?)));
        rows.into_iter().flatten().collect::<Vec<_>>()
    };
    at.groups.iter().flat_map(directions).collect()
}

fn of_group(pool: &PoolState, tenant: &GroupState, direction: &str, state: &DirectionState) -> Row {
    let in_bytes = state.unit == Unit::BytesPerS;
    let at_limit = state.measured >= AT_LIMIT * state.limit && tenant.foreign_limit.is_none();
    let foreign = show::foreign(tenant);
    Row {
        name: format!("{} {direction}", tenant.group),
        of: pool.name.clone(),
        tenant: tenant.tenant.clone(),
        iops: (!in_bytes).then_some(state.measured),
        bytes_per_s: in_bytes.then_some(state.measured),
        target: Some(state.target()),
        hold: at_limit.then(|| Hold { by: "throughput".into(), how: state.rate(state.limit) }),
        why: foreign.clone().unwrap_or_else(|| state.because.clone()),
        trouble: foreign,
        ..Row::default()
    }
}

fn of_queue(pool: &PoolState, volume: &VolumeState, was: Option<&QueueDepthState>) -> Row {
    let slots = &volume.slots;
    let was =
        was.and_then(|was| was.volumes.iter().find(|was| was.name == volume.name)).map_or(slots, |was| &was.slots);
    let seconds = slots.windows_total.saturating_sub(was.windows_total);
    let violated = slots.violated_total.saturating_sub(was.violated_total);
    let shortened =
        volume.queues.iter().filter(|queue| queue.value.zip(queue.before).is_some_and(|(is, was)| is < was));
    let lengths: u32 = shortened.filter_map(|queue| queue.value).sum();
    Row {
        name: volume.name.clone(),
        of: pool.name.clone(),
        iops: Some(volume.iops),
        bytes_per_s: Some(volume.bytes_per_s),
        response_ms: volume.latency_ms,
        queue_ms: slots.queueing_delay_ms,
        device_ms: slots.device_latency_ms,
        target: verdict::by_seconds(slots, seconds, violated, volume.latency_ms),
        hold: (lengths > 0).then(|| Hold { by: "slots".into(), how: format!("queue of {lengths}") }),
        trouble: volume.queues.iter().find(|queue| queue.foreign.is_some()).map(show::queue),
        why: slots.because.clone(),
        ..Row::default()
    }
}

fn of_osd(pool: &PoolState, osd: &OsdState) -> Row {
    let measured = &osd.measured;
    let budget = osd.throttle_bytes.or(Some(osd.budget_bytes));
    Row {
        name: pool.name.clone(),
        iops: Some(measured.commits_per_s),
        bytes_per_s: Some(measured.cost_bytes_per_s),
        device_ms: measured.store_latency_ms,
        hold: budget
            .filter(|_| measured.waiting > 0)
            .map(|budget| Hold { by: pool.method.clone(), how: bytes(budget) }),
        trouble: osd.problem.as_ref().map(|problem| format!("{}: {problem}", osd.condition)),
        why: pool.because.clone(),
        ..Row::default()
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_guard::loops::record::{At, ReadPercentiles};

    use super::*;

    /// The p99 in the row of a pool of which `at` is the record.
    fn p99_ms(at: At) -> Option<f64> {
        let pool = PoolState { name: "a".into(), at, ..PoolState::default() };
        let state = State { pools: vec![pool], ..State::default() };
        sample(&state, &state).tables[0].rows[0].p99_ms
    }

    #[test]
    fn pools_whose_reads_are_timed_have_p99_for_each_target() {
        let read_percentiles = Some(ReadPercentiles { p50_ms: 0.5, p99_ms: 2.0, p999_ms: 7.25 });
        let (percentile, read_percentile_ms) = ("p90".to_owned(), Some(1.0));
        let packets = PacketsState { percentile, read_percentile_ms, ..PacketsState::default() };
        assert_eq!(p99_ms(At::Packets(packets.clone())), None);
        // An older agent has the percentile of the target alone.
        let older = PacketsState { percentile: "p99".into(), ..packets.clone() };
        assert_eq!(p99_ms(At::Packets(older)), Some(1.0));
        assert_eq!(p99_ms(At::Packets(PacketsState { read_percentiles, ..packets })), Some(2.0));
        let latency = LocalState { percentile: "mean".into(), read_percentiles, ..LocalState::default() };
        let local = CgroupState { latency: Some(latency), ..CgroupState::default() };
        assert_eq!(p99_ms(At::Cgroup(local)), Some(2.0));
    }
}
