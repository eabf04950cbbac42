//! Converts the state of an agent into the rows of `evenkeel top`.

use evenkeel_guard::loops::record::{At, ClientState, GroupState, OsdState, Part, PoolState, State};
use evenkeel_policy::decision::Unit;
use evenkeel_policy::health::Trouble;
use evenkeel_policy::state::GuaranteeState;
use evenkeel_policy::verdict::{self, Lately};

use super::figures::{ms, short, uptime};
use super::row::{Hold, Row, Sample, Tab, Table};
use super::serve;
use crate::guard::show;

/// The views for an agent's state; empty views are left out.
pub(super) fn sample(state: &State) -> Sample {
    const TABS: [Tab; 5] = [Tab::Guarded, Tab::Initiators, Tab::Groups, Tab::Queues, Tab::Osds];
    let mut all = TABS.map(|tab| Table { tab, rows: Vec::new() });
    let [guarded, initiators, groups, queues, osds] = &mut all;
    for pool in &state.pools {
        guarded.rows.extend(pool.reads.as_ref().map(|reads| of_pool(pool, reads.latency_ms)));
        match &pool.at {
            At::Packets(at) => {
                initiators.rows.extend(at.clients.iter().map(|client| of_client(pool, client, state.acting)));
            }
            At::Cgroup(at) => groups.rows.extend(at.groups.iter().flat_map(|of| of_group(pool, of, state.acting))),
            At::Osd(at) => osds.rows.push(of_osd(pool, at)),
            _ => queues.rows.extend(pool.parts().iter().map(|part| of_part(pool, part))),
        }
    }
    let mut tables: Vec<Table> = all.into_iter().filter(|table| !table.rows.is_empty()).collect();
    if tables.is_empty() {
        tables.push(Table { tab: Tab::Guarded, rows: Vec::new() });
    }
    let (head, troubles) = (head(state), troubles(state));
    Sample { head, uptime_s: state.uptime_s, troubles, tables, ..Sample::default() }
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

/// The row of a pool, client, group or volume with the owner `of`. An agent does not count failed requests.
fn of(name: &str, of: &str, lately: &Lately) -> Row {
    Row { errors: None, ..serve::of(name, of, Some(lately)) }
}

/// The row of a pool with a latency target. The device latency is the mean time of reads in the pool's devices, `read_ms`; their
/// wait in the queue of a storage target, which belongs to another program, is not included.
fn of_pool(pool: &PoolState, read_ms: Option<f64>) -> Row {
    Row {
        response_ms: pool.figure_ms().or(read_ms),
        device_ms: read_ms,
        trouble: (pool.reason == "signal_lost").then(|| "SIGNAL LOST".into()),
        ..of(&pool.name, "", &pool.lately)
    }
}

/// The sentence about a client or group with this policy. `how`: its throttle, if it has one.
fn why(exempt: Option<&String>, throttle: &str, how: Option<String>, because: &str, acting: bool) -> String {
    let would = if acting { "" } else { "would be " };
    match (exempt, how) {
        (Some(exempt), _) => format!("never throttled: {exempt}"),
        (None, Some(how)) => format!("{would}throttled{how}: {because}"),
        (None, None) => format!("not throttled (throttle = \"{throttle}\")"),
    }
}

fn of_client(pool: &PoolState, client: &ClientState, acting: bool) -> Row {
    let delay_ms = Some(client.delay_ms).filter(|delay_ms| *delay_ms > 0.0);
    let how = delay_ms.map(|delay_ms| format!(" by {} ms", ms(delay_ms)));
    let because = &client.lately.because;
    let why = why(client.exempt_because.as_ref(), &client.throttle, how, because, acting);
    let names = client.names.join(" ");
    Row {
        iops: None,
        queue_ms: delay_ms,
        why: if names.is_empty() { why } else { format!("{names}: {why}") },
        ..of(&client.address, &pool.name, &client.lately)
    }
}

/// The rows of a control group: one for each of its guarantees, or one if its device has a latency target.
fn of_group(pool: &PoolState, group: &GroupState, acting: bool) -> Vec<Row> {
    if pool.reads.is_none() {
        return group.guarantees().map(|guarantee| of_guarantee(pool, group, guarantee)).collect();
    }
    let foreign = show::foreign(group);
    let limits = || format!(", io.max {}", group.limits.as_deref().unwrap_or("not known yet"));
    let how = group.lately.throttled_by.as_ref().map(|_| limits());
    let why = why(group.exempt_because.as_ref(), &group.throttle, how, &group.lately.because, acting);
    vec![Row {
        tenant: group.tenant.clone(),
        queue_ms: Some(group.delay_ms).filter(|delay_ms| *delay_ms > 0.0),
        why: foreign.clone().unwrap_or(why),
        trouble: foreign,
        ..of(&group.group, &pool.name, &group.lately)
    }]
}

fn of_guarantee(pool: &PoolState, group: &GroupState, guarantee: &GuaranteeState) -> Row {
    let in_bytes = guarantee.rates_in() == Unit::BytesPerS;
    let foreign = show::foreign(group);
    let at_limit = verdict::at_guarantee(guarantee).filter(|_| foreign.is_none());
    Row {
        name: format!("{} {}", group.group, guarantee.of),
        of: pool.name.clone(),
        tenant: group.tenant.clone(),
        iops: guarantee.measured_per_s.filter(|_| !in_bytes),
        bytes_per_s: guarantee.measured_per_s.filter(|_| in_bytes),
        target: Some(verdict::of_guarantee(guarantee)),
        hold: at_limit.as_ref().map(Hold::of),
        why: foreign.clone().unwrap_or_else(|| guarantee.because.clone()),
        trouble: foreign,
        ..Row::default()
    }
}

/// The row of a volume, or of a part of a pool at a point without rows of its own.
fn of_part(pool: &PoolState, part: &Part<'_>) -> Row {
    let trouble = part.queues.iter().find(|queue| queue.foreign.is_some()).map(show::queue);
    Row { trouble, ..of(part.name, &pool.name, part.lately) }
}

fn of_osd(pool: &PoolState, osd: &OsdState) -> Row {
    let trouble = osd.problem.as_ref().map(|problem| format!("{}: {problem}", osd.condition));
    Row { trouble, ..of(&pool.name, "", &pool.lately) }
}

#[cfg(test)]
mod tests {
    use evenkeel_guard::loops::record::{CgroupState, ReadsState};

    use super::*;

    /// The row of a group of a device with a latency target, which an agent that does not act would delay by `delay_ms`.
    fn row(delay_ms: f64, exempt_because: Option<String>, foreign_limit: Option<String>) -> Row {
        let because: String = "it has most of the load".into();
        let throttled_by = verdict::delayed(delay_ms, &because);
        let group = GroupState {
            group: "slice".into(),
            foreign_limit,
            throttle: "normal".into(),
            exempt_because,
            delay_ms,
            lately: Lately { because, throttled_by, ..Lately::default() },
            ..GroupState::default()
        };
        let at = At::Cgroup(CgroupState { groups: vec![group], ..CgroupState::default() });
        let pool = PoolState { name: "disk".into(), reads: Some(ReadsState::default()), at, ..PoolState::default() };
        let mut sample = sample(&State { pools: vec![pool], ..State::default() });
        sample.tables.remove(1).rows.remove(0)
    }

    #[test]
    fn the_row_of_a_group_says_how_it_is_throttled_or_why_not() {
        let throttled = row(3.0, None, None);
        let why = "would be throttled, io.max not known yet: it has most of the load";
        assert_eq!((throttled.why.as_str(), throttled.queue_ms, throttled.errors), (why, Some(3.0), None));
        assert_eq!(throttled.hold.map(|hold| hold.by + " " + &hold.how), Some("latency 3.00 ms delay".into()));
        assert_eq!(row(0.0, None, None).why, "not throttled (throttle = \"normal\")");
        assert_eq!(row(0.0, Some("it has a guarantee".into()), None).why, "never throttled: it has a guarantee");
        let foreign = row(0.0, None, Some("rbps=5".into()));
        assert!(foreign.why.contains("another program set io.max to rbps=5"), "{foreign:?}");
        assert_eq!(foreign.trouble, Some(foreign.why));
    }
}
