//! Troubles of an agent with their causes and cures, as `evenkeel_policy::health` has those of a server.

use evenkeel_policy::figures::{counted, uptime};
use evenkeel_policy::health::{Health, Level, Trouble, of_cluster, of_members, of_totals};
use evenkeel_policy::verdict::{self, Verdict};

use super::record::{CgroupState, OsdState, PoolState, QueueDepthState, State};
use crate::sensor::faults::{Fault, Faulty};

/// Time in seconds after an error for which it counts as a trouble.
const RECENT_S: f64 = 60.0;
/// The cure of a note whose message has none.
const SEE_MAP: &str =
    "run `evenkeel guard discover` to list devices and clients, `evenkeel check FILE` to find the part that is missing";

/// The health of an agent.
#[must_use]
pub fn of_agent(state: &State) -> Health {
    let mut troubles = Vec::new();
    if !state.acting {
        let because = format!("the agent throttles nothing: {}", state.acting_reason);
        let cure = "start the agent without --dry-run, as root; `evenkeel check FILE` names what the host lacks";
        troubles.push(Trouble::warning("not_acting", "", because, cure));
    }
    let is_recent = state.last_error_age_s.is_some_and(|age_s| age_s < RECENT_S);
    if let Some(error) = state.last_error.as_ref().filter(|_| is_recent) {
        let errors = counted(state.errors_total, "error");
        let because = format!("{errors} since the start of the agent, the last: {error}");
        let cure = "see the agent's log: `journalctl -u evenkeel-guard`";
        troubles.push(Trouble::warning("error", "", because, cure));
    }
    troubles.extend(state.cluster.as_ref().and_then(of_cluster));
    troubles.extend(state.cluster.as_ref().and_then(of_members));
    troubles.extend(state.cluster.as_ref().and_then(of_totals));
    troubles.extend(state.packets().filter_map(|(pool, _)| of_target(pool, &OF_PACKETS)));
    state.cgroups().for_each(|(pool, at)| of_cgroups(pool, at, &mut troubles));
    state.queue_depths().for_each(|(pool, at)| of_queues(pool, at, &mut troubles));
    state.osds().for_each(|(pool, at)| troubles.extend(of_osd(pool, at)));
    for pool in &state.pools {
        troubles.extend(pool.notes.iter().map(|note| of_note("note", &about(pool), note)));
    }
    troubles.extend(state.notes.iter().map(|note| of_note(&note.kind, "", &note.message)));
    Health::of(troubles)
}

/// The trouble that a note is. The cure is that of its kind, or else the last part of the message.
fn of_note(kind: &str, about: &str, message: &str) -> Trouble {
    let (because, cure) = match kind {
        "old_map" => (message, "look for the tool or file that does not answer: try `evenkeel guard discover`"),
        "other_namespace" => message.rsplit_once(". ").unwrap_or((message, SEE_MAP)),
        "other_namespaces" => (message, "run an agent of its own in each network namespace that has targets"),
        "retransmits" => (message, "look for packet losses on the way to the clients, or lower agent.max_delay"),
        "several_addresses" => (message, "give the client one address, if it is to be throttled as one"),
        "several_names" => (message, "give each client its own address, if it is to be throttled by itself"),
        "unknown_device" => (message, "keep the volume on a disk of this host, if its clients are to be throttled"),
        "unreadable" => (message, "run the agent as root; if it runs as root, report this message and the file"),
        _ => message.rsplit_once("; ").unwrap_or((message, SEE_MAP)),
    };
    Trouble::warning(kind, about, because, cure)
}

/// The troubles of devices with faults.
pub fn of_devices(faulty: &[Faulty]) -> Vec<Trouble> {
    faulty.iter().map(of_device).collect()
}

fn of_device(faulty: &Faulty) -> Trouble {
    let Faulty { device, pools, is_redundant, fault } = faulty;
    let lost = if *is_redundant { Level::Warning } else { Level::Critical };
    let others = if *is_redundant { "; other paths or disks take its place" } else { "" };
    let log = "the kernel's log (`journalctl -k`)";
    let (level, kind, because, cure) = match fault {
        Fault::Offline(state) => (
            lost,
            "io_errors",
            format!("{device} is {state}: every request to it fails{others}"),
            format!("look for errors of {device} in {log}; mend its connection, or replace the device"),
        ),
        Fault::Waits(state) => (
            lost,
            "stalled",
            format!("{device} is {state}: requests to it wait{others}"),
            match state.as_str() {
                "suspended" => format!("end the operation that suspended it, or `dmsetup resume /dev/{device}`"),
                _ => format!("look for {device} in {log}; if it is a remote disk, check its target and the network"),
            },
        ),
        Fault::Failed { commands, since, last } => (
            Level::Warning,
            "io_errors",
            format!(
                "{} of {device} failed in the last {}, the last of them {} ago; the kernel may have repeated some",
                counted(*commands, "command"),
                uptime(since.as_secs_f64()),
                uptime(last.as_secs_f64())
            ),
            format!("look for errors of {device} in {log}, and check its health: `smartctl -a /dev/{device}`"),
        ),
        Fault::Degraded(missing) => (
            Level::Warning,
            "degraded",
            format!("the array {device} lacks {}: another failure may lose data", counted(*missing, "disk")),
            format!("replace the failed disk, which `mdadm --detail /dev/{device}` shows"),
        ),
        Fault::FileSystem(errors) => (
            Level::Warning,
            "file_system",
            format!("ext4 on {device} has found {} since its last check", counted(*errors, "error")),
            format!("look for the errors in {log}; unmount the file system and run `e2fsck -f /dev/{device}`"),
        ),
    };
    let pools: Vec<&str> = pools.iter().map(String::as_str).collect();
    Trouble::new(level, kind, format!("pool {}", pools.join(", ")), because, cure).of_part(device.as_str())
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
    unachievable: "raise the target, move load away, or use a faster device: all clients that may be throttled are throttled",
    ineffective: "throttling clients does not lower the latency: look for load of this host itself on the devices, `evenkeel top`",
    missed: "wait some seconds for the controller; if the target stays missed, `evenkeel top --view clients` shows each client's load",
};

const OF_LOCAL: Cures = Cures {
    signal_lost: "check that the device of the pool is there: `evenkeel guard status`",
    unachievable: "raise the target, move load away, or use a faster device: all groups that may be throttled are throttled",
    ineffective: "look for load of groups that no tenant names (`systemd-cgtop`), and name them in match of a tenant",
    missed: "wait some seconds for the controller; if the target stays missed, `evenkeel top --view groups` shows each group's load",
};

/// The trouble of a pool with its latency target; `None` without a target.
fn of_target(pool: &PoolState, cures: &Cures) -> Option<Trouble> {
    let verdict = verdict::of_latency(pool.latency_target.as_ref()?, &pool.reason).verdict;
    let (level, kind, cure) = match verdict {
        _ if pool.reason == "signal_lost" => (Level::Critical, "signal_lost", cures.signal_lost),
        Verdict::Unachievable => (Level::Warning, "target_unachievable", cures.unachievable),
        Verdict::Missed if pool.reason == "ineffective" => (Level::Warning, "ineffective", cures.ineffective),
        Verdict::Missed => (Level::Warning, "target_missed", cures.missed),
        Verdict::Met | Verdict::Idle => return None,
    };
    // The sentence begins with the pool, which the trouble names.
    let (about, because) = (about(pool), pool.lately.because.as_str());
    let because = because.strip_prefix(about.as_str()).map_or(because, |rest| rest.trim_start_matches([':', ' ']));
    Some(Trouble::new(level, kind, about, because, cure))
}

fn of_cgroups(pool: &PoolState, at: &CgroupState, troubles: &mut Vec<Trouble>) {
    if let Some(trouble) = at.cache.as_ref().and_then(|cache| cache.trouble.as_ref()) {
        let because = format!("the cache of {} reports: {trouble}", at.device);
        let cure = "mend the cache with its own tools (lvs, dmsetup status) before its content is lost";
        troubles.push(Trouble::new(Level::Critical, "cache", about(pool), because, cure));
    }
    troubles.extend(of_target(pool, &OF_LOCAL));
    for group in &at.groups {
        let about = format!("tenant {} in {}", group.tenant, about(pool));
        if let Some(limit) = &group.foreign_limit {
            let lost =
                if pool.reads.is_some() { "the group is not throttled" } else { "the guarantee is not enforced" };
            let because = format!("another program has limited {}: {limit}; {lost}", group.group);
            let cure = match pool.reads {
                Some(_) => "remove that limit from io.max, and restart the agent",
                None => "remove that limit from io.max, or the guarantee from the policy",
            };
            troubles.push(Trouble::warning("foreign_limit", about.as_str(), because, cure));
            continue;
        }
        for of in group.guarantees().filter(|of| verdict::of_guarantee(of).verdict.is_missed()) {
            let cure = "lower the guarantees on this device until it can meet them all, or use a faster device";
            let missed = Trouble::warning("target_missed", about.as_str(), &of.because, cure);
            // Reads and writes have guarantees of their own.
            troubles.push(missed.of_part(of.of.as_str()));
        }
    }
}

fn of_queues(pool: &PoolState, at: &QueueDepthState, troubles: &mut Vec<Trouble>) {
    for volume in &at.volumes {
        let about = format!("tenant {} in {}", volume.name, about(pool));
        if volume.slots.reason == "unachievable" {
            let cure = "raise the target, or move load of other tenants away";
            troubles.push(Trouble::warning("target_unachievable", about.as_str(), &volume.slots.because, cure));
        }
        for queue in &volume.queues {
            let Some(value) = &queue.foreign else { continue };
            let because = format!(
                "another program has set {} of {} to {value}: the agent does not change it",
                queue.setting, queue.disk
            );
            let cure = "stop that program, or remove the volume's device from the tenant's match";
            let foreign = Trouble::warning("foreign_limit", about.as_str(), because, cure);
            // A volume with several paths has several queues.
            troubles.push(foreign.of_part(format!("{} {}", queue.disk, queue.setting)));
        }
    }
}

fn of_osd(pool: &PoolState, at: &OsdState) -> Option<Trouble> {
    let cure = match at.condition.as_str() {
        "absent" => "start the OSD, or take it out of the policy",
        "foreign" => "stop the program that sets the OSD's throttle, or take the OSD out of the policy",
        "late" | "unusable" => "see the OSD's log for the reason: its admin socket must answer the agent",
        _ => return None,
    };
    let because = at.problem.as_ref().unwrap_or(&pool.lately.because);
    Some(Trouble::warning("osd", pool.name.as_str(), because, cure))
}

#[cfg(test)]
mod tests {
    use evenkeel_policy::state::{GuaranteeState, LatencyTargetState};
    use evenkeel_policy::verdict::Lately;

    use super::*;
    use crate::loops::record::{At, GroupState, QueueState, VolumeState};

    fn state(pool: PoolState) -> State {
        State { acting: true, pools: vec![pool], ..State::default() }
    }

    fn packets(reason: &str, read_latency_ms: f64) -> State {
        let (percentile, measured_ms) = ("mean".into(), Some(read_latency_ms));
        let target = LatencyTargetState { target_ms: 10.0, percentile, measured_ms, ..LatencyTargetState::default() };
        let because = format!("the sentence of {reason}");
        state(PoolState {
            name: "a".into(),
            reason: reason.into(),
            lately: Lately { because, ..Lately::default() },
            latency_target: Some(target),
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
    fn the_sentence_of_a_target_names_its_pool_once() {
        let sentence = |because: &str| {
            let mut missed = packets("reads_over_target", 11.0);
            missed.pools[0].lately.because = because.into();
            found(&missed)[0].2.clone()
        };
        assert_eq!(sentence("pool a read mean 11.0 ms > target 10.0 ms"), "pool a: read mean 11.0 ms > target 10.0 ms");
        assert_eq!(sentence("pool a: no read has completed"), "pool a: no read has completed");
    }

    #[test]
    fn an_error_is_a_trouble_for_a_minute() {
        let mut failed = packets("under_target", 9.0);
        (failed.errors_total, failed.last_error, failed.last_error_age_s) = (3, Some("EIO".into()), Some(59.0));
        assert_eq!(
            found(&failed),
            [(Level::Warning, "error".to_owned(), "3 errors since the start of the agent, the last: EIO".to_owned())]
        );
        failed.last_error_age_s = Some(61.0);
        assert_eq!(found(&failed), []);
        failed.acting = false;
        assert_eq!(found(&failed)[0].1, "not_acting");
    }

    #[test]
    fn each_note_has_a_cause_and_a_cure() {
        let of = |kind: &str, message: &str| {
            let Trouble { because, cure, .. } = of_note(kind, "", message);
            [because, cure]
        };
        assert_eq!(of("note", "a is on b; it is used twice; keep one"), ["a is on b; it is used twice", "keep one"]);
        assert_eq!(of("note", "it is late"), ["it is late", SEE_MAP]);
        assert_eq!(of("other_namespace", "it is elsewhere. Run one there"), ["it is elsewhere", "Run one there"]);
        for kind in ["old_map", "other_namespaces", "retransmits", "several_addresses", "several_names", "unreadable"] {
            let [because, cure] = of(kind, "it is so; it stays");
            assert!(because == "it is so; it stays" && !cure.is_empty() && cure != SEE_MAP, "{kind}: {cure}");
        }
    }

    #[test]
    fn a_device_that_others_replace_is_a_warning() {
        let pools = ["a", "b"].map(str::to_owned).into();
        let mut faulty =
            Faulty { device: "sda".into(), pools, is_redundant: false, fault: Fault::Offline("offline".into()) };
        let of = |faulty: &Faulty| of_devices(std::slice::from_ref(faulty)).remove(0);
        let trouble = of(&faulty);
        assert_eq!((trouble.level, trouble.kind.as_str()), (Level::Critical, "io_errors"));
        assert_eq!(trouble.sentence(), "pool a, b: sda is offline: every request to it fails");
        faulty.is_redundant = true;
        let trouble = of(&faulty);
        assert_eq!(trouble.level, Level::Warning);
        assert!(trouble.because.ends_with("other paths or disks take its place"), "{trouble:?}");
    }

    #[test]
    fn failed_commands_have_a_number_and_times() {
        let second = evenkeel_control::Duration::from_secs;
        let fault = Fault::Failed { commands: 12, since: second(30), last: second(2) };
        let faulty = Faulty { device: "sda".into(), pools: ["a".to_owned()].into(), is_redundant: false, fault };
        let troubles = of_devices(&[faulty]);
        let because = "12 commands of sda failed in the last 30 s, the last of them 2 s ago; ";
        assert!(troubles[0].level == Level::Warning && troubles[0].because.starts_with(because), "{troubles:?}");
        assert!(troubles[0].cure.contains("smartctl -a /dev/sda"), "{troubles:?}");
    }

    #[test]
    fn a_group_with_a_limit_of_another_program_is_not_also_missed() {
        let behind = GuaranteeState {
            guaranteed_per_s: 100,
            measured_per_s: Some(10.0),
            reason: "compensating".into(),
            because: "behind".into(),
            ..GuaranteeState::default()
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

    /// The parts of the troubles of pool `a` with this enforcement point.
    fn parts(at: At) -> Vec<String> {
        let state = state(PoolState { name: "a".into(), at, ..PoolState::default() });
        of_agent(&state).troubles.into_iter().map(|trouble| trouble.part).collect()
    }

    #[test]
    fn guarantees_of_a_group_and_queues_of_a_volume_are_told_apart() {
        let missed = |of: &str| GuaranteeState {
            of: of.into(),
            guaranteed_per_s: 100,
            measured_per_s: Some(10.0),
            reason: "compensating".into(),
            ..GuaranteeState::default()
        };
        let group = GroupState {
            tenant: "db".into(),
            read: Some(missed("read")),
            write: Some(missed("write")),
            ..GroupState::default()
        };
        let groups = CgroupState { groups: vec![group], ..CgroupState::default() };
        assert_eq!(parts(At::Cgroup(groups)), ["read", "write"]);
        let queue = |disk: &str| QueueState {
            disk: disk.into(),
            setting: "queue_depth".into(),
            foreign: Some("9".into()),
            ..QueueState::default()
        };
        let volume =
            VolumeState { name: "db".into(), queues: vec![queue("sda"), queue("sdb")], ..VolumeState::default() };
        let volumes = QueueDepthState { volumes: vec![volume], ..QueueDepthState::default() };
        assert_eq!(parts(At::QueueDepth(volumes)), ["sda queue_depth", "sdb queue_depth"]);
    }
}
