//! The health of a server: its troubles with causes and cures, worst first, derived from the records that the API shows.
//!
//! API, `evenkeel health`, `evenkeel state` and `top` show the result. An agent's troubles are found by the agent's own module
//! of this name.

use crate::config::in_policy;
use crate::figures::{bytes, counted, uptime};
use crate::lately::{Cause, Kind, Lately, Target, Verdict};
use crate::space::{self, FileSystem};
use crate::state::{ClusterState, FailureState, PoolState, State, VolumeState};
pub use crate::trouble::{Health, Level, Trouble};

/// Time after a volume's last failed request for which the volume counts as failing, in milliseconds.
pub const FAILING_MS: u64 = 30_000;
/// Used fraction of the buffer memory from which on requests count as waiting for memory.
const MEMORY_USED_UP: f64 = 0.95;

/// The health of a server, from its state.
#[must_use]
pub fn of_server(state: &State) -> Health {
    Health::of(troubles(state))
}

/// The file systems of the volumes whose space is known, in the order of their device numbers.
pub fn file_systems(volumes: &[VolumeState]) -> Vec<FileSystem<'_>> {
    space::file_systems(volumes.iter().filter_map(|volume| {
        let (space, path) = volume.space.as_ref().zip(volume.path.as_deref())?;
        let unallocated = volume.size_bytes.saturating_sub(space.allocated_bytes);
        Some((space, path, if volume.read_only { 0 } else { unallocated }))
    }))
}

/// The troubles of a server, in the order of the objects in its state.
fn troubles(state: &State) -> Vec<Trouble> {
    let mut troubles = Vec::new();
    for volume in &state.volumes {
        of_volume(volume, &mut troubles);
    }
    troubles.extend(file_systems(&state.volumes).iter().filter_map(FileSystem::trouble));
    for pool in &state.pools {
        of_pool(pool, &state.volumes, &mut troubles);
    }
    let (used, limit) = (state.buffer_memory_used_bytes, state.buffer_memory_limit_bytes);
    if limit > 0 && used as f64 >= MEMORY_USED_UP * limit as f64 {
        troubles.push(Trouble::warning(
            "buffer_memory",
            "",
            format!("{} of {} of buffer memory are in use: requests wait for free memory", bytes(used), bytes(limit)),
            "raise server.buffer_memory; `evenkeel top` shows which tenants have most in flight",
        ));
    }
    troubles.extend(state.cluster.as_ref().and_then(of_cluster));
    troubles.extend(state.cluster.as_ref().and_then(of_members));
    troubles.extend(state.cluster.as_ref().and_then(of_totals));
    if state.draining {
        troubles.push(Trouble::warning(
            "draining",
            "",
            "the server is stopping: it answers the requests in flight, and accepts no new clients",
            "start the server again when it has ended, unless the stop was intended",
        ));
    }
    troubles
}

fn of_volume(volume: &VolumeState, troubles: &mut Vec<Trouble>) {
    let about = format!("volume {}", volume.name);
    if let Some(error) = &volume.error {
        troubles.push(Trouble::new(
            Level::Critical,
            "sync_failed",
            about.as_str(),
            format!("a sync failed ({error}): data written since the last flush may be lost, and every flush fails"),
            "mend the device or file system, then restart the server, or remove the volume and create it again",
        ));
    }
    if volume.displaced {
        let path = volume.path.as_deref().unwrap_or_default();
        troubles.push(Trouble::new(
            Level::Critical,
            "displaced",
            about.as_str(),
            format!(
                "its file {path} was deleted, moved or replaced: clients use the old file, which a restart will not find"
            ),
            "move it back; if it was deleted, its content ends with the server: stop the clients and, before the server stops, copy the file from /proc/PID/fd of the server (`ls -l` shows the descriptor)",
        ));
    }
    troubles.extend(volume.failures.iter().map(|failure| of_failure(&about, volume, failure)));
    if let Some(remote) = volume.remote.as_ref().filter(|remote| !remote.connected) {
        let away = remote.away_ms.filter(|&ms| ms >= 1_000);
        let since = away.map_or_else(String::new, |ms| format!(" for {}", uptime(ms as f64 / 1e3)));
        let why = remote.last_error.as_ref().map_or_else(String::new, |error| format!(": {error}"));
        troubles.push(Trouble::new(
            Level::Critical,
            "remote_lost",
            about,
            format!("no connection to {}{since}{why}", remote.uri),
            "start the server there, or mend the network; requests wait for the volume's reconnect_timeout, then fail until it answers",
        ));
    }
}

fn of_failure(about: &str, volume: &VolumeState, failure: &FailureState) -> Trouble {
    let FailureState { what, error, errno, requests, since_ms, last_ms } = failure;
    let level = if *last_ms < FAILING_MS { Level::Critical } else { Level::Warning };
    let ago = |ms: &u64| uptime(*ms as f64 / 1e3);
    let when = match (*since_ms, *last_ms) {
        (..1_000, _) => "just now".to_owned(),
        (_, ..1_000) => format!("in the last {}, the last of them just now", ago(since_ms)),
        _ => format!("in the last {}, the last of them {} ago", ago(since_ms), ago(last_ms)),
    };
    let because = format!("{} failed ({what}: {error}) {when}", counted(*requests, "request"));
    let trouble = Trouble::new(level, "io_errors", about, because, cure_of_failures(volume, *errno));
    trouble.of_part(format!("{what} {errno}"))
}

/// The remedy for requests of a volume that fail with this errno; 0: with an error that has none.
fn cure_of_failures(volume: &VolumeState, errno: i32) -> String {
    let path = volume.path.as_deref().unwrap_or("the volume");
    match (volume.backend.as_str(), errno) {
        ("nbd", _) => {
            let uri = volume.remote.as_ref().map_or("the other server", |remote| remote.uri.as_str());
            format!("look for the error in the log of the server at {uri}")
        }
        ("rbd", _) => "look for errors of the Ceph cluster: `ceph health detail`".to_owned(),
        ("memory" | "emulate", 28) => {
            "trim or remove volumes in memory, which have reached their common limit, or add memory and restart"
                .to_owned()
        }
        // Only a thinly provisioned device has too little space.
        ("block", 28) => format!("extend the thin pool in which {path} is, or trim other volumes: `lvs`, `lvextend`"),
        // ENOSPC, EDQUOT, EFBIG.
        (_, 28 | 122 | 27) => {
            format!("make room on the file system of {path}, or raise the quota or size limit: `df {path}`")
        }
        // EROFS, EPERM, EACCES.
        (_, 30 | 1 | 13) => format!("make {path} writable for the server's user, or set read_only = true"),
        ("file", 0) => {
            let size = volume.size_bytes;
            format!("restore {path}, or lengthen it again with zeroes: `truncate --size={size} {path}`")
        }
        _ => format!("look for errors of the device of {path} in the kernel's log: `journalctl -k`"),
    }
}

fn of_pool(pool: &PoolState, volumes: &[VolumeState], troubles: &mut Vec<Trouble>) {
    let about = format!("pool {}", pool.name);
    troubles.extend(of_overdue(pool, volumes));
    if let Some(lately) = &pool.lately {
        let keys = format!("pools.{}", pool.name);
        troubles.extend(missed(lately).map(|target| of_target(&about, &keys, target, lately, pool)));
    }
    for tenant in &pool.tenants {
        let Some(lately) = &tenant.lately else { continue };
        let about = format!("tenant {} in {about}", tenant.name);
        let keys = format!("tenants.{}", in_policy(&tenant.name));
        troubles.extend(missed(lately).map(|target| of_target(&about, &keys, target, lately, pool)));
    }
}

/// The trouble that requests of a pool are overdue, with the oldest of them; `None` if none is.
fn of_overdue(pool: &PoolState, volumes: &[VolumeState]) -> Option<Trouble> {
    let oldest = pool.overdue.iter().max_by(|a, b| a.age_s.total_cmp(&b.age_s))?;
    let (kind, length, offset) = (&oldest.kind, bytes(oldest.length_bytes), oldest.offset_bytes);
    let more = match pool.overdue.len() as u64 {
        1 => String::new(),
        count => format!(", and {} more", counted(count - 1, "request")),
    };
    let (name, age_s) = (&oldest.volume, oldest.age_s);
    let because =
        format!("OVERDUE: {kind} of {length} at byte {offset} of volume {name}, in flight for {age_s:.0} s{more}");
    let volume = volumes.iter().find(|volume| volume.name == *name);
    let cure = match volume.map_or("", |volume| volume.backend.as_str()) {
        "nbd" => "the server behind the volume has not answered: look at its log and at the network".to_owned(),
        "rbd" => "the Ceph cluster has not answered: look for the cause with `ceph health detail`".to_owned(),
        "emulate" => format!("the emulated device stalls as pools.{}.emulate says (stall_every, stall_for)", pool.name),
        _ => "the device has not answered: look for it in the kernel's log, `journalctl -k`".to_owned(),
    };
    Some(Trouble::new(Level::Critical, "stalled", format!("pool {}", pool.name), because, cure))
}

fn missed(lately: &Lately) -> impl Iterator<Item = &Target> {
    lately.targets.iter().filter(|target| target.verdict.is_missed())
}

/// The trouble that a target is missed. `about` is the pool or tenant, `keys` the table of the policy that contains the target,
/// `pool` the pool or that of the tenant.
fn of_target(about: &str, keys: &str, target: &Target, lately: &Lately, pool: &PoolState) -> Trouble {
    let kind = match target.verdict {
        Verdict::Unachievable => "target_unachievable",
        _ => "target_missed",
    };
    // A controller's own limit is no key.
    let set = lately.throttled_by.as_ref().filter(|by| by.cause != Cause::Limit || by.by == "operator");
    let cause = set.map(|by| by.cause);
    // Of a pool's target, the decision of the target's controller alone: admission control has no part in it.
    let is_of_pool = keys.starts_with("pools.") && cause != Some(Cause::PoolLimit);
    let kept = pool.latency_target.as_ref().filter(|_| is_of_pool);
    let decision = kept.and_then(|target| target.decision.as_ref());
    let reason = decision.map_or("", |decision| decision.reason.as_str());
    let why = decision.map_or(lately.because.as_str(), |decision| decision.because.as_str());
    let why = why.strip_prefix(about).map_or(why, |rest| rest.trim_start_matches([':', ' ']));
    let because = format!("{} is {}: {why}", target.what, target.verdict.word());
    let rate = if target.kind == Kind::Reservation { "reservation" } else { "guarantee" };
    // Without figures, as those of a host's parts of totals change all the time.
    let part = if target.kind == Kind::Latency { "latency" } else { rate };
    let cure = match (target.verdict, target.kind, cause) {
        (_, Kind::Latency, Some(Cause::PoolLimit)) => format!("raise pools.{}.limit, or the target", pool.name),
        (_, _, Some(Cause::PoolLimit)) => format!("raise pools.{}.limit, or lower the {rate}", pool.name),
        (_, Kind::Guarantee | Kind::Reservation, Some(Cause::Limit)) => {
            format!("raise {keys}.limit, or lower the {rate}")
        }
        (_, Kind::Latency, Some(Cause::Limit)) => {
            format!("raise {keys}.limit, for which the tenant's requests wait, or raise the target")
        }
        (_, Kind::Guarantee | Kind::Reservation, Some(Cause::LatencyTarget)) => format!(
            "set {keys}.throttle = \"never\", raise pools.{}.latency for which it is throttled, or lower the {rate}",
            pool.name
        ),
        (Verdict::Unachievable, Kind::Latency, _) => {
            "raise the target, move load away, or use a faster device: all tenants that may be throttled are throttled"
                .to_owned()
        }
        _ if reason == "no_noisy" => {
            "raise the target, or use a faster device; `evenkeel top --view tenants` shows the load of each".to_owned()
        }
        _ if ["testing_effect", "ineffective", "at_largest_delay"].contains(&reason) => {
            "raise the target or max_delay, move load away, or look for other users of the device".to_owned()
        }
        (_, Kind::Latency, _) => {
            "wait some seconds for the controller; if the target stays missed, limit the tenant with most load in `evenkeel top`"
                .to_owned()
        }
        (_, Kind::Guarantee | Kind::Reservation, _) => {
            format!("lower the {rate}s of all tenants until the device can meet them, or use a faster device")
        }
    };
    Trouble::warning(kind, about, because, cure).of_part(part)
}

/// The trouble of a host that is at present not in its cluster; `None` if the host is in it.
pub fn of_cluster(cluster: &ClusterState) -> Option<Trouble> {
    let lost = cluster.status != "shared";
    lost.then(|| {
        let error = cluster.error.as_ref().map_or_else(String::new, |error| format!(" ({error})"));
        Trouble::warning(
            "cluster_lost",
            format!("cluster {}", cluster.status),
            format!("{}{error}", cluster.because),
            cure_of_etcd(cluster),
        )
    })
}

/// The trouble that other members or shards of the cluster have ended without leaving it; `None` if none has, or this host
/// itself is not in the cluster. Shards of an earlier division do not count: their members are in other shards now.
pub fn of_members(cluster: &ClusterState) -> Option<Trouble> {
    let halvings = |shard: &str| shard.split_once('-').map(|(halvings, _)| halvings.to_owned());
    let division = cluster.shard.as_deref().and_then(halvings);
    let members = cluster.members.iter().map(|of| ("member", &of.name, &of.presence, of.missed_periods));
    let shards = cluster.shards.iter().filter(|of| division.is_some() && halvings(&of.name) == division);
    let shards = shards.map(|of| ("shard", &of.name, &of.presence, of.missed_periods));
    let mut lost = members.chain(shards).filter(|(_, name, presence, _)| {
        let is_own = **name == cluster.host;
        presence.as_str() == "expired" && !is_own
    });
    let (what, first, _, periods) = lost.next().filter(|_| cluster.status == "shared")?;
    let more = match lost.count() {
        0 => String::new(),
        count => format!("; also lost: {count} more"),
    };
    let ago = uptime(periods as f64 * cluster.period_s);
    Some(Trouble::warning(
        "members_lost",
        format!("cluster {what} {first}"),
        format!("its last report came {ago} ago, so the other hosts have its share of slots and limits{more}"),
        "start Evenkeel there again, or look at its log, network and clock (NTP); a host that is stopped for good is forgotten after 20 leases",
    ))
}

/// The trouble of a host whose parts of totals do not follow demand; `None` if they do. The cure is that of etcd's present
/// error.
pub fn of_totals(cluster: &ClusterState) -> Option<Trouble> {
    let trouble = cluster.totals.as_ref()?.trouble()?;
    let is_of_etcd = trouble.kind == "totals_lost" && cluster.error.is_some();
    Some(if is_of_etcd { Trouble { cure: cure_of_etcd(cluster).to_owned(), ..trouble } } else { trouble })
}

/// The cure of the present error of etcd.
fn cure_of_etcd(cluster: &ClusterState) -> &'static str {
    let error = cluster.error.as_deref().unwrap_or_default();
    let says = |parts: &[&str]| parts.iter().any(|part| error.contains(part));
    if says(&["database space exceeded"]) {
        "make room in etcd: `etcdctl compact REVISION`, `etcdctl defrag`, `etcdctl alarm disarm`; until then each host keeps to the part of each limit that is safe without reports, and throttles by its own latency"
    } else if says(&["cluster.user", "cluster.password_file", "grant-permission"]) {
        "correct the user of etcd, its password or its role (cluster.user, cluster.password_file)"
    } else if says(&["cluster.tls", "certificate"]) {
        "correct the certificates of cluster.tls, or those of etcd; `evenkeel check FILE` tries each address"
    } else if says(&["cluster.json"]) {
        "remove cluster.json, or make its folder writable: server.data_dir, or of an agent the folder of agent.journal"
    } else if says(&["another process is host"]) {
        "give each host a name of its own with cluster.host"
    } else if says(&["clocks of most other hosts"]) {
        "set the clocks of this host and of the others by NTP: `timedatectl` on a host shows if its clock is"
    } else if says(&["format that this host cannot read"]) {
        "finish the upgrade: run the same version of Evenkeel, with the same cluster.period, on all hosts"
    } else {
        "check that the addresses in cluster.etcd answer from this host; `evenkeel check FILE` tries each"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::DecisionRecord;
    use crate::lately::ThrottledBy;
    use crate::state::{
        LatencyTargetState, MemberState, OverdueIo, RemoteState, ShardState, SpaceState, TenantState, TotalsState,
    };

    fn failure(errno: i32, last_ms: u64) -> FailureState {
        let error = "No space left on device (os error 28)".into();
        FailureState { what: "write".into(), errno, error, requests: 12, since_ms: 8_000, last_ms }
    }

    fn volume(name: &str) -> VolumeState {
        VolumeState { name: name.into(), path: Some(format!("/srv/{name}.img")), ..VolumeState::default() }
    }

    fn kinds(health: &Health) -> Vec<&str> {
        health.troubles.iter().map(|trouble| trouble.kind.as_str()).collect()
    }

    #[test]
    fn a_server_without_troubles_is_well() {
        let mut state = State { volumes: vec![volume("db")], buffer_memory_limit_bytes: 1 << 20, ..State::default() };
        assert_eq!(of_server(&state), Health { level: Level::Ok, troubles: Vec::new() });
        state.draining = true;
        assert_eq!(of_server(&state).level, Level::Warning);
    }

    #[test]
    fn a_full_disk_is_named_with_its_volume_and_cure_and_forgiven_when_it_stops() {
        let full = VolumeState { failures: vec![failure(28, 1_000)], ..volume("db") };
        let health = of_server(&State { volumes: vec![full], ..State::default() });
        let [trouble] = &health.troubles[..] else { panic!("{health:?}") };
        assert_eq!((health.level, trouble.kind.as_str()), (Level::Critical, "io_errors"));
        let sentence = "volume db: 12 requests failed (write: No space left on device (os error 28)) in the last 8 s, the last of them 1 s ago";
        assert_eq!(trouble.sentence(), sentence);
        assert!(trouble.cure.contains("make room") && trouble.cure.contains("/srv/db.img"), "{}", trouble.cure);
        let over = VolumeState { failures: vec![failure(5, FAILING_MS)], ..volume("db") };
        let health = of_server(&State { volumes: vec![over], ..State::default() });
        assert_eq!(health.level, Level::Warning);
        assert!(health.troubles[0].cure.contains("journalctl -k"), "{health:?}");
    }

    #[test]
    fn a_file_that_is_gone_from_its_path_is_critical_and_has_a_cure() {
        let gone = VolumeState { displaced: true, ..volume("db") };
        let health = of_server(&State { volumes: vec![volume("a"), gone], ..State::default() });
        let [trouble] = &health.troubles[..] else { panic!("{health:?}") };
        assert_eq!((trouble.level, trouble.kind.as_str()), (Level::Critical, "displaced"));
        assert_eq!(trouble.about, "volume db");
        assert!(trouble.because.starts_with("its file /srv/db.img was deleted, moved or replaced"), "{trouble:?}");
        assert!(trouble.cure.starts_with("move it back; ") && trouble.cure.contains("/proc/PID/fd"), "{trouble:?}");
    }

    #[test]
    fn the_worst_trouble_is_the_first() {
        let target = |verdict| Target { what: "mean < 5 ms".into(), kind: Kind::Latency, verdict };
        let lately = Lately { targets: vec![target(Verdict::Missed), target(Verdict::Met)], ..Lately::default() };
        let overdue = OverdueIo { volume: "db".into(), age_s: 12.2, kind: "read".into(), ..OverdueIo::default() };
        let pool =
            PoolState { name: "main".into(), lately: Some(lately), overdue: vec![overdue], ..PoolState::default() };
        let away = RemoteState { uri: "nbd://far/db".into(), away_ms: Some(90_000), ..RemoteState::default() };
        let far = VolumeState { remote: Some(away), ..volume("far") };
        let cluster =
            ClusterState { status: "lost".into(), because: "no report came back".into(), ..ClusterState::default() };
        let state = State { pools: vec![pool], volumes: vec![far], cluster: Some(cluster), ..State::default() };
        let health = of_server(&state);
        assert_eq!(kinds(&health), ["remote_lost", "stalled", "target_missed", "cluster_lost"]);
        assert!(health.troubles[0].because.starts_with("no connection to nbd://far/db for "), "{health:?}");
        assert!(health.troubles[1].sentence().contains("OVERDUE: read of 0 B at byte 0 of volume db"), "{health:?}");
    }

    #[test]
    fn a_lost_cluster_has_the_cure_of_the_error_of_etcd() {
        let totals = TotalsState { contact: "none".into(), because: "almost nothing".into(), ..TotalsState::default() };
        let of = |error: &str| {
            let error = (!error.is_empty()).then(|| error.to_owned());
            let totals = Some(totals.clone());
            let cluster = ClusterState { status: "lost".into(), error, totals, ..ClusterState::default() };
            let health = of_server(&State { cluster: Some(cluster), ..State::default() });
            assert_eq!(kinds(&health), ["cluster_lost", "totals_lost"]);
            assert_eq!(health.troubles[1].because, "almost nothing");
            [0, 1].map(|n| health.troubles[n].cure.clone())
        };
        for (error, cure) in [
            ("http://a:1 refuses: etcdserver: mvcc: database space exceeded; compact", "etcdctl alarm disarm"),
            ("https://a:1 refuses: user name is empty: set cluster.user and cluster.password_file", "cluster.user"),
            ("https://a:1: the connection broke: invalid peer certificate: Expired", "cluster.tls"),
            ("https://a:1: cluster.tls.key: /k cannot be read", "cluster.tls"),
            ("the reports of 2 members are in a format that this host cannot read", "finish the upgrade"),
            ("/d/cluster.json can be neither written nor removed", "server.data_dir"),
            ("/d/cluster.json can be neither written nor removed", "of an agent the folder of agent.journal"),
            ("another process is host \"a\"", "cluster.host"),
            ("the clocks of most other hosts are periods off this host's; set the clocks of all (NTP)", "timedatectl"),
            ("http://a:1: no answer within 1s", "answer from this host"),
            ("", "answer from this host"),
        ] {
            let cures = of(error);
            assert!(cures.iter().all(|given| given.contains(cure)), "{error}: {cures:?}");
        }
    }

    #[test]
    fn members_that_expired_are_one_trouble_while_this_host_is_in_the_cluster() {
        let member = |name: &str, presence: &str| {
            let (name, presence) = (name.into(), presence.into());
            MemberState { name, presence, missed_periods: 30 }
        };
        let of = |status: &str, members: Vec<MemberState>| {
            let (host, status) = ("a".into(), status.into());
            let cluster = ClusterState { host, status, period_s: 0.5, members, ..ClusterState::default() };
            of_members(&cluster)
        };
        let lost = || vec![member("a", "present"), member("b", "expired"), member("c", "expired")];
        let trouble = of("shared", lost()).expect("b is lost");
        assert_eq!((trouble.kind.as_str(), trouble.about.as_str()), ("members_lost", "cluster member b"));
        assert_eq!(
            trouble.because,
            "its last report came 15 s ago, so the other hosts have its share of slots and limits; also lost: 1 more"
        );
        assert!(trouble.cure.contains("network and clock (NTP)"), "a wrong clock loses a member, too: {trouble:?}");
        assert_eq!(of("lost", lost()), None, "this host hears none");
        assert_eq!(of("shared", vec![member("b", "suspect"), member("a", "expired")]), None);
        // Of the shards only those of the present division.
        let shard = |name: &str| {
            let (name, presence) = (name.into(), "expired".into());
            ShardState { name, presence, missed_periods: 30, members: 9 }
        };
        let of_shards = |own: Option<&str>| {
            let (status, shards) = ("shared".into(), vec![shard("1-001"), shard("3-001")]);
            let own = own.map(str::to_owned);
            let cluster = ClusterState { status, shard: own, shards, ..ClusterState::default() };
            of_members(&cluster).map(|trouble| trouble.about)
        };
        assert_eq!(of_shards(Some("3-005")).as_deref(), Some("cluster shard 3-001"));
        assert_eq!((of_shards(Some("2-001")), of_shards(None)), (None, None));
        let cluster = ClusterState { status: "shared".into(), members: lost(), ..ClusterState::default() };
        assert_eq!(kinds(&of_server(&State { cluster: Some(cluster), ..State::default() })), ["members_lost"]);
    }

    #[test]
    fn failed_requests_have_the_cure_of_their_back_end() {
        let cure = |backend: &str, path: Option<&str>, errno: i32| {
            let path = path.map(str::to_owned);
            let size_bytes = 4096;
            cure_of_failures(&VolumeState { backend: backend.into(), path, size_bytes, ..volume("db") }, errno)
        };
        assert!(cure("memory", None, 28).contains("add memory"), "no file system");
        assert!(cure("block", Some("/dev/vg/db"), 28).starts_with("extend the thin pool in which /dev/vg/db is"));
        assert!(cure("file", Some("/srv/db"), 28).contains("`df /srv/db`"));
        assert!(cure("nbd", None, 5).contains("the log of the server"));
        assert!(cure("file", Some("/srv/db"), 0).contains("truncate --size=4096 /srv/db"));
        assert!(cure("file", Some("/srv/db"), 5).contains("journalctl -k"));
        let now = VolumeState { failures: vec![FailureState { since_ms: 400, ..failure(28, 400) }], ..volume("db") };
        let health = of_server(&State { volumes: vec![now], ..State::default() });
        assert!(health.troubles[0].because.ends_with("(os error 28)) just now"), "{health:?}");
    }

    #[test]
    fn overdue_requests_of_a_pool_are_one_trouble_with_the_oldest() {
        let io = |volume: &str, age_s| OverdueIo { volume: volume.into(), age_s, ..OverdueIo::default() };
        let overdue = vec![io("db", 11.0), io("far", 30.0), io("db", 12.0)];
        let pool = PoolState { name: "main".into(), overdue, ..PoolState::default() };
        let far = VolumeState { backend: "nbd".into(), ..volume("far") };
        let health = of_server(&State { pools: vec![pool], volumes: vec![volume("db"), far], ..State::default() });
        let [trouble] = &health.troubles[..] else { panic!("{health:?}") };
        assert!(trouble.because.ends_with("of volume far, in flight for 30 s, and 2 requests more"), "{trouble:?}");
        assert!(trouble.cure.contains("the server behind the volume"), "{trouble:?}");
    }

    #[test]
    fn a_pool_without_noisy_tenants_is_not_said_to_be_mended_by_waiting() {
        let target = Target { what: "p99 < 1 ms".into(), kind: Kind::Latency, verdict: Verdict::Missed };
        let (because, reason) = ("pool main read p99 5 ms > target 1 ms".into(), "no_noisy".into());
        let decision = Some(DecisionRecord { because, reason, ..DecisionRecord::default() });
        let latency_target = Some(LatencyTargetState { decision, ..LatencyTargetState::default() });
        let lately = Lately { targets: vec![target], because: "both".into(), ..Lately::default() };
        let pool = PoolState { name: "main".into(), latency_target, lately: Some(lately), ..PoolState::default() };
        let health = of_server(&State { pools: vec![pool], ..State::default() });
        let sentence = "pool main: p99 < 1 ms is MISSED: read p99 5 ms > target 1 ms";
        assert_eq!(health.troubles[0].sentence(), sentence);
        assert!(health.troubles[0].cure.starts_with("raise the target"), "{health:?}");
    }

    #[test]
    fn a_reservation_that_a_limit_prevents_names_the_limit() {
        let target = Target { what: "300 IOPS".into(), kind: Kind::Reservation, verdict: Verdict::Missed };
        let by = |owner: &str, cause| ThrottledBy {
            by: owner.into(),
            cause,
            how: "200 IOPS".into(),
            because: "it is at its limit".into(),
        };
        let cure_by = |owner: &str, cause| {
            let throttled_by = Some(by(owner, cause));
            let lately = Lately { targets: vec![target.clone()], throttled_by, ..Lately::default() };
            let tenant = TenantState { name: "shop".into(), lately: Some(lately), ..TenantState::default() };
            let pool = PoolState { name: "main".into(), tenants: vec![tenant], ..PoolState::default() };
            let health = of_server(&State { pools: vec![pool], ..State::default() });
            assert_eq!(health.troubles[0].about, "tenant shop in pool main");
            health.troubles[0].cure.clone()
        };
        let cure = |cause| cure_by("operator", cause);
        assert_eq!(cure(Cause::Limit), "raise tenants.shop.limit, or lower the reservation");
        assert_eq!(cure(Cause::PoolLimit), "raise pools.main.limit, or lower the reservation");
        let throttled = "set tenants.shop.throttle = \"never\", raise pools.main.latency for which it is throttled, or lower the reservation";
        assert_eq!(cure_by("latency", Cause::LatencyTarget), throttled);
        assert!(cure(Cause::Admission).starts_with("lower the reservations of all tenants"));
        assert!(cure_by("throughput", Cause::Limit).contains("a faster device"), "no limit to raise");
    }

    #[test]
    fn a_file_system_that_may_soon_be_full_is_a_trouble() {
        let space = |free_bytes| SpaceState { free_bytes, capacity_bytes: 1_000, ..SpaceState::default() };
        let db = |free| VolumeState { size_bytes: 500, space: Some(space(free)), ..volume("db") };
        let of = |volumes: Vec<VolumeState>| of_server(&State { volumes, ..State::default() });
        assert_eq!(kinds(&of(vec![db(49), VolumeState { name: "b".into(), ..db(49) }])), ["space"], "one for both");
        assert_eq!(kinds(&of(vec![db(50)])), [""; 0]);
        assert_eq!(kinds(&of(vec![VolumeState { read_only: true, ..db(49) }])), [""; 0], "it allocates no more");
        let allocated = SpaceState { allocated_bytes: 460, ..space(49) };
        assert_eq!(kinds(&of(vec![VolumeState { space: Some(allocated), ..db(49) }])), [""; 0], "40 bytes more fit");
    }

    #[test]
    fn used_up_buffer_memory_is_a_trouble() {
        let state = |used| State { buffer_memory_used_bytes: used, buffer_memory_limit_bytes: 100, ..State::default() };
        assert_eq!(kinds(&of_server(&state(94))), [""; 0]);
        assert_eq!(kinds(&of_server(&state(95))), ["buffer_memory"]);
    }
}
