//! Troubles of an agent with their causes and cures, as `evenkeel_policy::health` has those of a server.

use evenkeel_policy::health::{Health, Level, Trouble, of_cluster};
use evenkeel_policy::verdict::Verdict;

use super::record::{CgroupState, OsdState, PacketsState, PoolState, QueueDepthState, State};

/// Time in seconds after an error for which it counts as a trouble.
const RECENT_S: f64 = 60.0;

/// The health of an agent.
#[must_use]
pub fn of_agent(state: &State) -> Health {
    let mut troubles = Vec::new();
    if !state.acting {
        let because = format!("nothing takes effect: {}", state.acting_reason);
        let cure = "start the agent without --dry-run, as root; `evenkeel check FILE` names what the host lacks";
        troubles.push(Trouble::new(Level::Warning, "not_acting", "", because, cure));
    }
    let is_recent = state.last_error_age_s.is_some_and(|age_s| age_s < RECENT_S);
    if let Some(error) = state.last_error.as_ref().filter(|_| is_recent) {
        let because = format!("errors since the start: {}, the last: {error}", state.errors_total);
        troubles.push(Trouble::new(
            Level::Warning,
            "error",
            "",
            because,
            "see the agent's log: `journalctl -u evenkeel-guard`",
        ));
    }
    troubles.extend(state.cluster.as_ref().and_then(of_cluster));
    let packets =
        |(pool, at): (&PoolState, &PacketsState)| of_target(pool, at.target(&pool.reason).verdict, &OF_PACKETS);
    troubles.extend(state.packets().filter_map(packets));
    state.cgroups().for_each(|(pool, at)| of_cgroups(pool, at, &mut troubles));
    state.queue_depths().for_each(|(pool, at)| of_queues(pool, at, &mut troubles));
    state.osds().for_each(|(pool, at)| troubles.extend(of_osd(pool, at)));
    for pool in &state.pools {
        let note = |note: &String| Trouble::new(Level::Warning, "note", about(pool), note, "");
        troubles.extend(pool.notes.iter().map(note));
    }
    let note = |note: &crate::discovery::Note| Trouble::new(Level::Warning, &note.kind, "", &note.message, "");
    troubles.extend(state.notes.iter().map(note));
    Health::of(troubles)
}

fn about(pool: &PoolState) -> String {
    format!("pool {}", pool.name)
}

/// The cures of a latency target's troubles.
struct Cures {
    signal_lost: &'static str,
    unachievable: &'static str,
    ineffective: &'static str,
    missed: &'static str,
}

const OF_PACKETS: Cures = Cures {
    signal_lost: "check that the devices of the pool are there: `evenkeel guard status`",
    unachievable: "raise the target, take load away, or use a faster device: all clients that may be throttled are throttled",
    ineffective: "throttling clients does not lower the latency: look for load of this host itself on the devices, `evenkeel top`",
    missed: "wait some seconds for the controller; if it stays, `evenkeel top --view clients` shows who has most load",
};

const OF_LOCAL: Cures = Cures {
    signal_lost: "check that the device of the pool is there: `evenkeel guard status`",
    unachievable: "raise the target, take load away, or use a faster device: all groups that may be throttled are throttled",
    ineffective: "look for load of groups that no tenant names (`systemd-cgtop`), and name them in match of a tenant",
    missed: "wait some seconds for the controller; if it stays, `evenkeel top --view groups` shows which group has most load",
};

/// The trouble of a pool with this verdict on its latency target.
fn of_target(pool: &PoolState, verdict: Verdict, cures: &Cures) -> Option<Trouble> {
    let (level, kind, cure) = match verdict {
        _ if pool.reason == "signal_lost" => (Level::Critical, "signal_lost", cures.signal_lost),
        Verdict::Unachievable => (Level::Warning, "target_unachievable", cures.unachievable),
        Verdict::Missed if pool.reason == "ineffective" => (Level::Warning, "ineffective", cures.ineffective),
        Verdict::Missed => (Level::Warning, "target_missed", cures.missed),
        Verdict::Met | Verdict::Idle => return None,
    };
    Some(Trouble::new(level, kind, about(pool), &pool.because, cure))
}

fn of_cgroups(pool: &PoolState, at: &CgroupState, troubles: &mut Vec<Trouble>) {
    if let Some(trouble) = at.cache.as_ref().and_then(|cache| cache.trouble.as_ref()) {
        let because = format!("the cache of {} reports: {trouble}", at.device);
        let cure = "mend the cache with its own tools (lvs, dmsetup status) before its content is lost";
        troubles.push(Trouble::new(Level::Critical, "cache", about(pool), because, cure));
    }
    if let Some(latency) = &at.latency {
        troubles.extend(of_target(pool, latency.target(&pool.reason).verdict, &OF_LOCAL));
    }
    for group in &at.groups {
        let about = format!("tenant {} in {}", group.tenant, about(pool));
        if let Some(limit) = &group.foreign_limit {
            let lost = if at.latency.is_some() { "it is not throttled" } else { "its guarantee is not enforced" };
            let because = format!("another program has limited {}: {limit}; {lost}", group.group);
            let cure = match at.latency {
                Some(_) => "remove that limit from io.max, and restart the agent",
                None => "remove that limit from io.max, or the guarantee from the policy",
            };
            troubles.push(Trouble::new(Level::Warning, "foreign_limit", about.as_str(), because, cure));
            continue;
        }
        for direction in [&group.read, &group.write].into_iter().flatten() {
            if direction.target().verdict.is_missed() {
                let cure = "lower what is guaranteed on this device together below what it can do, or use a faster one";
                troubles.push(Trouble::new(Level::Warning, "target_missed", about.as_str(), &direction.because, cure));
            }
        }
    }
}

fn of_queues(pool: &PoolState, at: &QueueDepthState, troubles: &mut Vec<Trouble>) {
    for volume in &at.volumes {
        let about = format!("tenant {} in {}", volume.name, about(pool));
        if volume.slots.reason == "unachievable" {
            let cure = "raise the target, or take load of other tenants away";
            troubles.push(Trouble::new(
                Level::Warning,
                "target_unachievable",
                about.as_str(),
                &volume.slots.because,
                cure,
            ));
        }
        for queue in &volume.queues {
            let Some(value) = &queue.foreign else { continue };
            let because =
                format!("another program has set {} of {} to {value}: it is left alone", queue.setting, queue.disk);
            let cure = "stop that program, or take the volume out of the policy";
            troubles.push(Trouble::new(Level::Warning, "foreign_limit", about.as_str(), because, cure));
        }
    }
}

fn of_osd(pool: &PoolState, at: &OsdState) -> Option<Trouble> {
    let cure = match at.condition.as_str() {
        "absent" => "start the OSD, or take it out of the policy",
        "foreign" => "stop the program that sets the OSD's throttle, or take the OSD out of the policy",
        "late" | "unusable" => "see the OSD's log; its admin socket must answer the agent",
        _ => return None,
    };
    let because = at.problem.as_ref().unwrap_or(&pool.because);
    Some(Trouble::new(Level::Warning, "osd", pool.name.as_str(), because, cure))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loops::record::{At, DirectionState, GroupState};

    fn state(pool: PoolState) -> State {
        State { acting: true, pools: vec![pool], ..State::default() }
    }

    fn packets(reason: &str, read_latency_ms: f64) -> State {
        let at = PacketsState {
            target_ms: 10.0,
            percentile: "mean".into(),
            read_latency_ms: Some(read_latency_ms),
            ..PacketsState::default()
        };
        let because = format!("the sentence of {reason}");
        state(PoolState {
            name: "a".into(),
            reason: reason.into(),
            because,
            at: At::Packets(at),
            ..PoolState::default()
        })
    }

    fn found(state: &State) -> Vec<(Level, String, String)> {
        let troubles = of_agent(state).troubles.into_iter();
        troubles.map(|trouble| (trouble.level, trouble.kind.clone(), trouble.sentence())).collect()
    }

    #[test]
    fn a_pool_is_in_trouble_when_its_target_is_missed_or_its_signal_is_lost() {
        let one = |level, kind: &str, reason: &str| {
            vec![(level, kind.to_owned(), format!("pool a: the sentence of {reason}"))]
        };
        assert_eq!(found(&packets("under_target", 9.0)), []);
        assert_eq!(
            found(&packets("reads_over_target", 11.0)),
            one(Level::Warning, "target_missed", "reads_over_target")
        );
        assert_eq!(found(&packets("unachievable", 11.0)), one(Level::Warning, "target_unachievable", "unachievable"));
        assert_eq!(found(&packets("ineffective", 11.0)), one(Level::Warning, "ineffective", "ineffective"));
        assert_eq!(found(&packets("signal_lost", 9.0)), one(Level::Critical, "signal_lost", "signal_lost"));
    }

    #[test]
    fn an_error_is_a_trouble_for_a_minute() {
        let mut failed = packets("under_target", 9.0);
        (failed.errors_total, failed.last_error, failed.last_error_age_s) = (3, Some("EIO".into()), Some(59.0));
        assert_eq!(
            found(&failed),
            [(Level::Warning, "error".to_owned(), "errors since the start: 3, the last: EIO".to_owned())]
        );
        failed.last_error_age_s = Some(61.0);
        assert_eq!(found(&failed), []);
        failed.acting = false;
        assert_eq!(found(&failed)[0].1, "not_acting");
    }

    #[test]
    fn a_group_with_a_limit_of_another_program_is_not_also_missed() {
        let behind = DirectionState {
            guaranteed: 100.0,
            measured: 10.0,
            reason: "compensating".into(),
            because: "behind".into(),
            ..DirectionState::default()
        };
        let group = |foreign_limit| GroupState {
            tenant: "db".into(),
            read: Some(behind.clone()),
            foreign_limit,
            ..GroupState::default()
        };
        let of = |group| {
            let at = At::Cgroup(CgroupState { groups: vec![group], ..CgroupState::default() });
            found(&state(PoolState { name: "a".into(), at, ..PoolState::default() }))
        };
        assert_eq!(
            of(group(None)),
            [(Level::Warning, "target_missed".to_owned(), "tenant db in pool a: behind".to_owned())]
        );
        let foreign = of(group(Some("rbps=5".into())));
        assert_eq!((foreign.len(), foreign[0].1.as_str()), (1, "foreign_limit"));
    }
}
