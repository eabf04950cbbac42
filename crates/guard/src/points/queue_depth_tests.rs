use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use evenkeel_control::Duration;

use super::*;
use crate::Agent;
use crate::config::{Abilities, Config};
use crate::folder::{Folder, folder};
use crate::journal::Journal;
use crate::loops::record::{QueueDepthState, VolumeState};

/// Throughput of the array, in requests per second.
const SERVES: f64 = 400.0;
const TICK: Duration = Duration::from_millis(100);

/// A modelled host whose disks are volumes of one array, which serves all requests in flight in turn.
struct Host {
    root: Folder,
    journal: Journal,
    /// For each disk: its name, the number of requests that its users always have outstanding, and the kernel's totals of
    /// completed requests and of their latencies in ms.
    disks: Vec<(&'static str, f64, f64, f64)>,
    agent: Agent,
    text: String,
    now: Instant,
}

impl Host {
    fn new(name: &str, disks: &[(&'static str, f64)], config: &str) -> Self {
        let root = folder(&format!("arrays-{name}"));
        for (number, (disk, _)) in disks.iter().enumerate() {
            let folder = format!("sys/devices/{disk}");
            root.file(&format!("{folder}/dev"), format!("4095:{number}\n"));
            root.file(&format!("{folder}/device/queue_depth"), "64\n");
            for link in [format!("sys/class/block/{disk}"), format!("sys/dev/block/4095:{number}")] {
                root.link(&link, &folder);
            }
        }
        let journal = Journal::open(root.join("journal")).unwrap();
        let config = Config::parse(config, "test", Abilities { tracepoints: false }).unwrap();
        let agent = Agent::open(&config, &Roots::under(&root), std::path::Path::new("none")).unwrap();
        let disks = disks.iter().map(|&(disk, busy)| (disk, busy, 0.0, 0.0)).collect();
        Self { root, journal, disks, agent, text: String::new(), now: Instant::ZERO }
    }

    fn file(&self, disk: &str) -> PathBuf {
        self.root.join("sys/devices").join(disk).join("device/queue_depth")
    }

    fn depth(&self, disk: &str) -> f64 {
        std::fs::read_to_string(self.file(disk)).unwrap().trim().parse().unwrap()
    }

    /// Runs the host and the agent for another 100 ms; with `acting`, the agent changes queue lengths.
    fn tick(&mut self, acting: bool) {
        let inside: Vec<f64> = self.disks.iter().map(|(disk, busy, ..)| busy.min(self.depth(disk))).collect();
        let latency_s = inside.iter().sum::<f64>().max(1.0) / SERVES;
        self.now += TICK;
        let mut text = String::new();
        for (number, ((disk, busy, completed, time_ms), inside)) in self.disks.iter_mut().zip(&inside).enumerate() {
            *completed += inside / latency_s * TICK.as_secs_f64();
            // Those that wait for a place count too.
            *time_ms += *busy * TICK.as_millis_f64();
            let (n, ms) = (*completed as u64, *time_ms as u64);
            writeln!(text, "4095 {number} {disk} {n} 0 {} {ms} 0 0 0 0 {} {ms} {ms}", n * 8, *inside as u64).unwrap();
        }
        let errors = self.agent.tick(self.now, text.as_bytes(), acting.then_some(&mut self.journal));
        assert!(errors.is_empty(), "{errors:?}");
        self.text = text;
    }

    fn seconds(&mut self, seconds: u64, acting: bool) {
        (0..10 * seconds).for_each(|_| self.tick(acting));
    }

    fn state(&self) -> QueueDepthState {
        state(&self.agent)
    }

    fn volume(&self, volume: usize) -> VolumeState {
        self.state().volumes[volume].clone()
    }

    fn latency_ms(&self, volume: usize) -> f64 {
        self.volume(volume).lately.latency_ms.unwrap()
    }
}

fn state(agent: &Agent) -> QueueDepthState {
    let state = agent.state();
    let (_, at) = state.queue_depths().next().unwrap();
    at.clone()
}

/// Two disks with the number of requests that their users always have outstanding: 2 of a database, 60 of a backup.
const DISKS: [(&str, f64); 2] = [("no-database", 2.0), ("no-backup", 60.0)];
const CONFIG: &str = "[pools.san]\ntuning.slots = \"needs\"\n[tenants.backup]\nmatch = [\"device:no-backup\"]\n\
    [tenants.database]\nmatch = [\"device:no-database\"]\nlatency.target = \"20ms\"\n";
const DATABASE: usize = 1;

#[test]
fn a_target_that_fails_without_is_met_by_shorter_queues() {
    let mut host = Host::new("met", &DISKS, CONFIG);
    host.seconds(20, false);
    assert!(host.latency_ms(DATABASE) > 100.0, "{}", host.latency_ms(DATABASE));
    assert_eq!((host.depth("no-database"), host.depth("no-backup")), (64.0, 64.0));
    host.seconds(20, true);
    assert!(host.latency_ms(DATABASE) < 20.0, "{:?}", host.state());
    assert!(host.depth("no-backup") < 16.0);
    let before = host.volume(DATABASE).slots;
    host.seconds(20, true);
    let state = host.state();
    let slots = &state.volumes[DATABASE].slots;
    let verdicts = state.volumes.iter().flat_map(|volume| &volume.lately.targets).map(|target| target.verdict);
    assert!(verdicts.eq([verdict::Verdict::Met]), "of the database alone: {state:?}");
    let backup = &host.agent.state().pools[0];
    let throttled = backup.parts()[0].lately.throttled_by.clone().unwrap();
    assert!(throttled.by == "slots" && throttled.how.starts_with("queue of "), "{throttled:?}");
    assert_eq!((slots.violated_total, slots.windows_total), (before.violated_total, before.windows_total + 20));
    assert!(["need_met", "equal_margin"].contains(&slots.reason.as_str()), "{slots:?}");
    // The same load needs no change: each stops a queue for a moment.
    let changes: u64 = state.volumes.iter().flat_map(|volume| &volume.queues).map(|q| q.changes_total).sum();
    assert!(changes <= 20, "{changes} changes in 40 periods");
    let records = host.agent.records(Some("san"), 10);
    assert!(records.iter().any(|record| record.tenant == "database" && record.times > 10), "{records:?}");
    host.journal.restore_all().into_iter().for_each(|(_, result)| drop(result.unwrap()));
    assert_eq!((host.depth("no-database"), host.depth("no-backup")), (64.0, 64.0));
}

#[test]
fn without_load_and_targets_everything_stays_or_comes_back() {
    let mut host = Host::new("idle", &DISKS, CONFIG);
    host.seconds(10, true);
    assert!(host.depth("no-backup") < 32.0);
    // The database is idle for longer than its target counts: nothing is in the way of the backup.
    host.disks[0].1 = 0.0;
    host.seconds(60, true);
    assert!(host.volume(DATABASE).slots.used < 0.01);
    assert_eq!((host.state().slots.total, host.depth("no-backup")), (None, 64.0));
}

#[test]
fn without_statistics_queues_are_as_long_as_before() {
    let mut host = Host::new("lost", &DISKS, CONFIG);
    host.seconds(20, true);
    assert!(host.depth("no-backup") < 16.0);
    let unread = host.text.clone();
    let ticks = |host: &mut Host, ticks: u32, text: &str| {
        for _ in 0..ticks {
            host.now += TICK;
            host.agent.tick(host.now, text.as_bytes(), Some(&mut host.journal));
        }
    };
    // A line at fault: what was read before is no new sample.
    let faulty = format!("4095 9 odd x\n{unread}");
    ticks(&mut host, LOST_TICKS - 1, &faulty);
    assert!(host.depth("no-backup") < 16.0, "not yet");
    ticks(&mut host, 1, &faulty);
    assert_eq!((host.depth("no-database"), host.depth("no-backup")), (64.0, 64.0));
    let notes = host.agent.state().pools[0].notes.join(" ");
    assert!(notes.contains("backup: no statistics") && notes.contains("database: no statistics"), "{notes}");
    host.seconds(20, true);
    assert!(host.depth("no-backup") < 16.0 && host.agent.state().pools[0].notes.is_empty());
    // One disk is not listed any more.
    let (_, other) = host.text.split_once('\n').unwrap();
    let without_database = other.to_owned();
    ticks(&mut host, LOST_TICKS, &without_database);
    assert_eq!(host.depth("no-database"), 64.0);
    assert!(host.agent.state().pools[0].notes.join(" ").contains("database: no statistics"));
}

#[test]
fn two_hosts_of_a_cluster_meet_the_target_of_one() {
    // The same load as above, with each volume on a host of its own; both see one array.
    let mut both = Host::new("cluster", &DISKS, CONFIG);
    let config_of = |volume: &str, config: &str| {
        let text = format!(
            "[cluster]\netcd = [\"http://etcd:2379\"]\n[pools.san]\ntuning.slots = \"needs\"\n[tenants.{volume}]\n{config}\n"
        );
        Config::parse(&text, "test", Abilities { tracepoints: false }).unwrap()
    };
    let own = |volume: &str, config: &str| {
        Agent::open(&config_of(volume, config), &Roots::under(&both.root), std::path::Path::new("none")).unwrap()
    };
    let mut hosts = [
        own("backup", "match = [\"device:no-backup\"]"),
        own("database", "match = [\"device:no-database\"]\nlatency.target = \"20ms\""),
    ];
    for second in 0..30 {
        for _ in 0..10 {
            // The world goes on; its own controller does nothing.
            both.tick(false);
            for host in &mut hosts {
                assert!(host.tick(both.now, both.text.as_bytes(), Some(&mut both.journal)).is_empty());
            }
        }
        // The first period begins with the first look.
        if second == 0 {
            continue;
        }
        let mut sum = Summary::default();
        let told: Vec<Summary> = hosts.iter_mut().flat_map(Agent::summaries).map(|(_, summary)| summary).collect();
        assert_eq!(told.len(), 2, "second {second}");
        told.iter().for_each(|summary| sum.add(summary));
        hosts.iter_mut().for_each(|host| host.decide(&BTreeMap::from([("san", sum.clone())]), 1.0));
    }
    assert!(both.latency_ms(DATABASE) < 20.0, "{:?}", state(&hosts[1]));
    assert!(both.depth("no-backup") < 16.0);
    assert!(hosts.iter().all(|host| state(host).slots.clustered));
    let totals: Vec<Option<f64>> = hosts.iter().map(|host| state(host).slots.total).collect();
    assert_eq!(totals[0], totals[1]);
    // Alone the host with the target begins at the least, and finds out for itself.
    hosts[1].alone();
    assert!(!state(&hosts[1]).slots.clustered && state(&hosts[0]).slots.clustered);
    // Also with a newer policy, whose controller knows nothing yet.
    let at = (&Roots::under(&both.root), std::path::Path::new("none"));
    let newer = config_of("database", "match = [\"device:no-database\"]");
    assert!(hosts[1].reload(&newer, at, Some(&mut both.journal)).unwrap().0.is_empty());
    for _ in 0..20 {
        both.tick(false);
        assert!(hosts[1].tick(both.now, both.text.as_bytes(), Some(&mut both.journal)).is_empty());
    }
    assert!(state(&hosts[1]).slots.total.is_some(), "{:?}", state(&hosts[1]));
}

#[test]
fn a_device_that_comes_late_or_goes_is_followed() {
    let mut host = Host::new("late", &DISKS, CONFIG);
    let link = host.root.join("sys/class/block/no-backup");
    let folder = std::fs::read_link(&link).unwrap();
    std::fs::remove_file(&link).unwrap();
    host.seconds(5, true);
    let notes = host.agent.state().pools[0].notes.clone();
    assert!(notes.iter().any(|note| note.contains("backup") && note.contains("no-backup")), "{notes:?}");
    assert!(host.volume(0).queues.is_empty() && !host.volume(1).queues.is_empty());
    std::os::unix::fs::symlink(folder, &link).unwrap();
    host.seconds(10, true);
    let state = host.agent.state();
    assert!(state.pools[0].notes.is_empty() && host.depth("no-backup") < 32.0, "{state:?}");
    std::fs::remove_file(link).unwrap();
    host.seconds(2, true);
    assert!(host.volume(0).queues.is_empty());
    // Its setting was restored when its disk was forgotten.
    assert_eq!(host.depth("no-backup"), 64.0);
}

#[test]
fn a_newer_policy_keeps_the_queues_and_restores_those_it_does_not_name() {
    let mut host = Host::new("reload", &DISKS, CONFIG);
    host.seconds(20, true);
    let short = host.depth("no-backup");
    assert!(short < 16.0);
    let reload = |host: &mut Host, policy: &str| {
        let config = Config::parse(policy, "test", Abilities { tracepoints: false }).unwrap();
        let at = (&Roots::under(&host.root), std::path::Path::new("none"));
        assert!(host.agent.reload(&config, at, Some(&mut host.journal)).unwrap().0.is_empty());
    };
    reload(&mut host, &CONFIG.replace("20ms", "25ms"));
    assert_eq!(host.depth("no-backup"), short);
    host.seconds(20, true);
    assert!(host.depth("no-backup") < 32.0 && host.latency_ms(DATABASE) < 25.0, "{:?}", host.state());
    assert_eq!(host.volume(0).queues[0].before, Some(64), "not what the policy before had set");
    reload(&mut host, "");
    assert_eq!((host.depth("no-database"), host.depth("no-backup")), (64.0, 64.0));
}

#[test]
fn one_queue_has_one_master() {
    let config = CONFIG.replace("device:no-database", "device:no-partition");
    let mut host = Host::new("same", &DISKS[1..], &config);
    host.root.link("sys/class/block/no-partition", "sys/devices/no-backup");
    host.seconds(20, true);
    assert!(host.volume(0).queues.len() == 1 && host.volume(1).queues.is_empty(), "{:?}", host.state());
    let notes = host.agent.state().pools[0].notes.join("\n");
    assert!(notes.contains("database uses device no-backup, as backup does"), "{notes}");
}

#[test]
fn passive_paths_take_no_part_of_the_slots() {
    let config = "[pools.san.tuning]\nslots = \"rwd\"\nslots_most = 12\n[tenants.a]\nmatch = [\"device:no-map\"]\n";
    let mut host = Host::new("passive", &[("no-active", 20.0), ("no-passive", 0.0)], config);
    host.root.file("sys/devices/no-map/dev", "4095:9\n");
    for (disk, ..) in &host.disks {
        host.root.link(&format!("sys/devices/no-map/slaves/{disk}"), &format!("sys/devices/{disk}"));
    }
    for link in ["sys/class/block/no-map", "sys/dev/block/4095:9"] {
        host.root.link(link, "sys/devices/no-map");
    }
    host.seconds(5, true);
    assert_eq!((host.depth("no-active"), host.depth("no-passive")), (12.0, 12.0));
    assert!((host.volume(0).slots.used - 12.0).abs() < 1.0, "{:?}", host.state());
    // Both carry requests from now on.
    host.disks[1].1 = 20.0;
    host.seconds(2, true);
    assert_eq!((host.depth("no-active"), host.depth("no-passive")), (6.0, 6.0));
}

#[test]
fn a_slash_in_a_disks_name_is_an_exclamation_mark_in_sysfs() {
    let config = "[pools.san]\ntuning.slots = \"needs\"\n[tenants.a]\nmatch = [\"device:no!c0d0\"]\n";
    let mut host = Host::new("slash", &[("no!c0d0", 2.0)], config);
    for reads in 0..30 {
        host.now += TICK;
        let text = format!("4095 0 no/c0d0 {reads} 0 {reads} {reads} 0 0 0 0 1 {reads} {reads}\n");
        assert!(host.agent.tick(host.now, text.as_bytes(), None).is_empty());
    }
    assert!(host.volume(0).lately.iops > 0.0, "{:?}", host.state());
}

#[test]
fn the_length_of_a_stuck_disk_is_not_written() {
    let mut host = Host::new("stuck", &DISKS, CONFIG);
    // Disks with hardware queues, as NVMe.
    for (disk, _) in DISKS {
        std::fs::remove_file(host.file(disk)).unwrap();
        host.root.dir(&format!("sys/devices/{disk}/mq/0"));
        host.root.file(&format!("sys/devices/{disk}/queue/nr_requests"), "64\n");
    }
    let depth = |host: &Host, disk: &str| {
        let file = host.root.join("sys/devices").join(disk).join("queue/nr_requests");
        std::fs::read_to_string(file).unwrap().trim().parse::<u32>().unwrap()
    };
    let completed = std::cell::Cell::new(0);
    let ticks = |host: &mut Host, count: u32, backup: u64| {
        for _ in 0..count {
            host.now += TICK;
            completed.set(completed.get() + backup);
            let n = completed.get();
            let database = host.now.as_nanos() / 100_000_000;
            let text = format!(
                "4095 0 no-database {database} 0 8 {} 0 0 0 0 2 8 8\n4095 1 no-backup {n} 0 8 {} 0 0 0 0 60 8 8\n",
                database * 200,
                n * 150
            );
            let errors = host.agent.tick(host.now, text.as_bytes(), Some(&mut host.journal));
            assert!(errors.is_empty(), "{errors:?}");
        }
    };
    ticks(&mut host, 200, 40);
    let short = depth(&host, "no-backup");
    assert!(short < 64, "{short}: {:?}", host.state());
    // It hangs, and the policy with it goes.
    ticks(&mut host, 20, 0);
    let notes = host.agent.state().pools[0].notes.join(" ");
    assert!(notes.contains("no-backup completes no request"), "{notes}");
    // It leaves its volume for a while: that is no reason to forget how long its queue was.
    let link = host.root.join("sys/class/block/no-backup");
    let folder = std::fs::read_link(&link).unwrap();
    std::fs::remove_file(&link).unwrap();
    ticks(&mut host, 20, 0);
    let notes = host.agent.state().pools[0].notes.join(" ");
    assert!(host.volume(0).queues.is_empty() && notes.contains("no-backup completes no request"), "{notes}");
    std::os::unix::fs::symlink(folder, &link).unwrap();
    ticks(&mut host, 20, 0);
    assert_eq!(host.volume(0).queues[0].before, Some(64));
    let nothing = Config::parse("", "test", Abilities { tracepoints: false }).unwrap();
    let at = (&Roots::under(&host.root), std::path::Path::new("none"));
    let stuck_at = depth(&host, "no-backup");
    assert!(host.agent.reload(&nothing, at, Some(&mut host.journal)).unwrap().0.is_empty());
    assert_eq!((depth(&host, "no-backup"), depth(&host, "no-database")), (stuck_at, 64));
    host.journal.restore_all().into_iter().for_each(|(_, result)| drop(result.unwrap()));
    assert_eq!(depth(&host, "no-backup"), 64);
}
