use super::*;
use crate::Agent;
use crate::config::Abilities;
use crate::fake_osd::{Folder, folder};
use crate::journal::Journal;
use crate::loops::record::CgroupState;

/// A folder with files in place of the kernel's, for two devices and some control groups, and a journal.
struct Host {
    root: Folder,
    journal: Journal,
}

impl Host {
    fn new(name: &str) -> Self {
        let root = folder(&format!("cgroup-{name}"));
        for (device, number) in [("no-cached", "4095:1"), ("no-slow", "4095:2")] {
            let folder = root.join("sys/class/block").join(device);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::create_dir_all(root.join("sys/dev/block")).unwrap();
            std::fs::write(folder.join("dev"), number).unwrap();
            std::fs::write(folder.join("stat"), "1 0 8 1 1 0 8 1 0 2 2\n").unwrap();
            std::os::unix::fs::symlink(&folder, root.join("sys/dev/block").join(number)).unwrap();
        }
        std::fs::create_dir_all(root.join("cgroup")).unwrap();
        std::fs::write(root.join("cgroup/cgroup.controllers"), "cpu io memory\n").unwrap();
        let journal = Journal::open(root.join("journal")).unwrap();
        Self { root, journal }
    }

    fn group(&self, name: &str) {
        let folder = self.root.join("cgroup").join(name);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("io.stat"), "").unwrap();
        std::fs::write(folder.join("io.max"), "").unwrap();
    }

    fn moved(&self, name: &str, bytes: u64) {
        let text = format!(
            "4095:1 rbytes={bytes} wbytes=0 rios=1 wios=0\n4095:2 rbytes={} wbytes=0 rios=1 wios=0\n",
            bytes / 9
        );
        std::fs::write(self.root.join("cgroup").join(name).join("io.stat"), text).unwrap();
    }

    /// Writes the slow device's `stat` file as after `second` seconds in which the device was busy with misses for 40 % of
    /// the time.
    fn busy(&self, second: u64) {
        let text = format!("1 0 {} 1 1 0 8 1 0 {} 2\n", second * 1_700, second * 400);
        std::fs::write(self.root.join("sys/class/block/no-slow/stat"), text).unwrap();
    }

    fn io_max(&self, name: &str) -> String {
        std::fs::read_to_string(self.root.join("cgroup").join(name).join("io.max")).unwrap().trim().to_owned()
    }

    fn agent(&self) -> Agent {
        Agent::open(&config(GUARANTEE), &Roots::under(&self.root), &self.root.join("cgroup")).unwrap()
    }

    fn reload(&mut self, agent: &mut Agent, policy: &str) {
        let at = (&Roots::under(&self.root), &*self.root.join("cgroup"));
        let errors = agent.reload(&config(policy), at, Some(&mut self.journal)).unwrap();
        assert!(errors.0.is_empty(), "{errors:?}");
    }

    fn tick(&mut self, agent: &mut Agent, second: u64) {
        let errors = agent.tick(at(second), b"", Some(&mut self.journal));
        assert!(errors.is_empty(), "{errors:?}");
    }
}

fn at(second: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(second)
}

const GUARANTEE: &str = "[tenants.db]\nmatch = [\"cgroup:slice/db-*\"]\nguarantee.read = { bytes_per_s = \"10MB\" }\n";

fn config(tenants: &str) -> Config {
    let pool = "[pools.pool]\ndevices = [\"no-cached\"]\ntuning.cache.slow = \"no-slow\"\ntuning.guarantee.interval = \"1s\"\n";
    Config::parse(&format!("{pool}{tenants}"), "test", Abilities { tracepoints: false }).unwrap()
}

fn state(agent: &Agent) -> CgroupState {
    let state = agent.state();
    let (_, at) = state.cgroups().next().unwrap();
    at.clone()
}

const GUARANTEED: &str = "4095:1 rbps=10000000 wbps=max riops=max wiops=max";

#[test]
fn groups_get_limits_when_they_appear_and_lose_them_at_the_end() {
    let mut host = Host::new("appear");
    let mut agent = host.agent();
    host.tick(&mut agent, 0);
    assert!(agent.state().pools[0].notes[0].contains("no group fits \"slice/db-*\""));
    for name in ["slice/db-2", "slice/db-1", "slice/web"] {
        host.group(name);
    }
    host.tick(&mut agent, 1);
    assert_eq!((host.io_max("slice/db-1"), host.io_max("slice/db-2")), (GUARANTEED.into(), GUARANTEED.into()));
    assert_eq!(host.io_max("slice/web"), "");
    for second in 2..12 {
        host.moved("slice/db-1", second * 8_000_000);
        host.busy(second);
        host.tick(&mut agent, second);
    }
    let state = state(&agent);
    let groups: Vec<&str> = state.groups.iter().map(|tenant| tenant.group.as_str()).collect();
    assert_eq!(groups, ["slice/db-1", "slice/db-2"]);
    let limit = state.groups[0].read.as_ref().unwrap().limit;
    assert!(limit > 10e6, "it gets too little: {limit}");
    assert_eq!(
        host.io_max("slice/db-1"),
        GUARANTEED.replace("10000000", &limit.to_string()),
        "the record is what holds"
    );
    assert_eq!((state.kind.as_str(), state.slow_number.as_str()), ("other", "4095:2"));
    assert!(agent.records(Some("pool"), 1)[0].until_s == 11.0 && agent.records(Some("none"), 9).is_empty());
    // The end.
    assert_eq!(host.journal.restore_all().len(), 2);
    assert_eq!(host.io_max("slice/db-1"), "4095:1 rbps=max wbps=max riops=max wiops=max");
}

#[test]
fn each_group_is_a_tenant_of_its_own() {
    let mut host = Host::new("each");
    let mut agent = host.agent();
    ["slice/db-1", "slice/db-2"].into_iter().for_each(|name| host.group(name));
    let named = |agent: &Agent| state(agent).groups.into_iter().map(|group| group.tenant).collect::<Vec<_>>();
    host.tick(&mut agent, 0);
    assert_eq!(named(&agent), ["db", "db"]);
    host.reload(&mut agent, &GUARANTEE.replace("match", "each = true\nmatch"));
    host.tick(&mut agent, 1);
    assert_eq!(named(&agent), ["db/db-1", "db/db-2"]);
    assert_eq!((host.io_max("slice/db-1"), host.io_max("slice/db-2")), (GUARANTEED.into(), GUARANTEED.into()));
}

#[test]
fn a_group_that_is_gone_is_released_and_another_of_its_name_begins_anew() {
    let mut host = Host::new("gone");
    let mut agent = host.agent();
    host.group("slice/db-1");
    host.tick(&mut agent, 0);
    std::fs::remove_dir_all(host.root.join("cgroup/slice/db-1")).unwrap();
    host.tick(&mut agent, 1);
    assert!(state(&agent).groups.is_empty());
    assert!(host.journal.is_clear());
    host.group("slice/db-1");
    host.tick(&mut agent, 2);
    assert_eq!(host.io_max("slice/db-1"), GUARANTEED);
}

#[test]
fn the_most_specific_pattern_decides_whose_a_group_is() {
    let guarantee = |rate: &str| format!("guarantee.read = {{ bytes_per_s = \"{rate}\" }}\n");
    let tenant = |name: &str, group: &str| format!("[tenants.{name}]\nmatch = [\"cgroup:{group}\"]\n");
    let policy = tenant("all", "slice/*")
        + &guarantee("1MB")
        + &tenant("db", "/slice/db-1/")
        + &guarantee("10MB")
        + &tenant("bulk", "slice/bulk-*");
    let mut host = Host::new("specific");
    ["slice/db-1", "slice/bulk-1", "slice/other"].into_iter().for_each(|name| host.group(name));
    let roots = Roots::under(&host.root);
    let mut agent = Agent::open(&config(&policy), &roots, &host.root.join("cgroup")).unwrap();
    host.tick(&mut agent, 0);
    assert_eq!(host.io_max("slice/db-1"), GUARANTEED);
    assert_eq!(host.io_max("slice/other"), GUARANTEED.replace("10000000", "1000000"));
    assert_eq!(host.io_max("slice/bulk-1"), "", "its tenant has no guarantee");
    let groups: Vec<_> = state(&agent).groups.into_iter().map(|group| (group.group, group.tenant)).collect();
    assert_eq!(groups, [("slice/db-1".into(), "db".into()), ("slice/other".into(), "all".to_owned())]);
}

#[test]
fn a_limit_of_another_program_stays() {
    let mut host = Host::new("foreign");
    let mut agent = host.agent();
    host.group("slice/db-1");
    host.tick(&mut agent, 0);
    let foreign = "4095:1 rbps=5 wbps=max riops=max wiops=max";
    std::fs::write(host.root.join("cgroup/slice/db-1/io.max"), foreign).unwrap();
    for second in 1..5 {
        host.tick(&mut agent, second);
        assert_eq!(host.io_max("slice/db-1"), foreign);
    }
    let state = state(&agent).groups.remove(0);
    assert_eq!(state.foreign_limit.as_deref(), Some("rbps=5 wbps=max riops=max wiops=max"));
    assert!(host.journal.restore_all().is_empty());
}

#[test]
fn without_a_journal_nothing_is_written() {
    let host = Host::new("dry");
    let mut agent = host.agent();
    host.group("slice/db-1");
    for second in 0..3 {
        host.moved("slice/db-1", second * 8_000_000);
        assert!(agent.tick(at(second), b"", None).is_empty());
    }
    assert_eq!(host.io_max("slice/db-1"), "");
    assert_eq!(state(&agent).groups[0].read.as_ref().unwrap().guaranteed, 10e6);
}

#[test]
fn an_odd_file_of_one_group_is_reported_and_hurts_no_other() {
    let mut host = Host::new("odd");
    let mut agent = host.agent();
    host.group("slice/db-1");
    host.group("slice/db-2");
    host.tick(&mut agent, 0);
    std::fs::write(host.root.join("cgroup/slice/db-1/io.stat"), "4095:1 rbytes=x\n").unwrap();
    for second in 1..6 {
        host.moved("slice/db-2", second * 8_000_000);
        host.busy(second);
        let errors = agent.tick(at(second), b"", Some(&mut host.journal));
        assert!(errors.len() == 1 && errors[0].to_string().contains("db-1/io.stat:1:"), "{errors:?}");
    }
    assert_eq!(host.io_max("slice/db-1"), GUARANTEED);
    assert!(state(&agent).groups[1].read.as_ref().unwrap().limit > 10e6);
}

#[test]
fn a_newer_policy_takes_over_without_a_gap() {
    let mut host = Host::new("reload");
    let mut agent = host.agent();
    host.group("slice/db-1");
    host.group("slice/db-2");
    host.tick(&mut agent, 0);
    let other = "[tenants.db]\nmatch = [\"cgroup:slice/db-1\"]\nguarantee.read = { bytes_per_s = \"20MB\" }\n";
    host.reload(&mut agent, other);
    assert_eq!((host.io_max("slice/db-1"), host.io_max("slice/db-2")), (GUARANTEED.into(), GUARANTEED.into()));
    host.tick(&mut agent, 1);
    assert_eq!(host.io_max("slice/db-1"), GUARANTEED.replace("10000000", "20000000"));
    let free = "4095:1 rbps=max wbps=max riops=max wiops=max";
    assert_eq!(host.io_max("slice/db-2"), free, "its tenant has no guarantee any more");
    // Writes are guaranteed for a while: their limit goes with that policy.
    let both = other.replace("guarantee.read", "guarantee.write.bytes_per_s = \"5MB\"\nguarantee.read");
    host.reload(&mut agent, &both);
    host.tick(&mut agent, 2);
    assert!(host.io_max("slice/db-1").contains("wbps=5000000"), "{}", host.io_max("slice/db-1"));
    host.reload(&mut agent, other);
    host.tick(&mut agent, 3);
    assert_eq!(host.io_max("slice/db-1"), GUARANTEED.replace("10000000", "20000000"));
    // A policy that cannot be used changes nothing.
    std::fs::write(host.root.join("cgroup/cgroup.controllers"), "cpu\n").unwrap();
    let at = (&Roots::under(&host.root), &*host.root.join("cgroup"));
    assert!(agent.reload(&config(GUARANTEE), at, Some(&mut host.journal)).is_err());
    host.tick(&mut agent, 4);
    assert_eq!(state(&agent).groups.len(), 1);
    std::fs::write(host.root.join("cgroup/cgroup.controllers"), "io\n").unwrap();
    // The pool is gone.
    let nothing = Config::parse("", "test", Abilities { tracepoints: false }).unwrap();
    let at = (&Roots::under(&host.root), &*host.root.join("cgroup"));
    assert!(agent.reload(&nothing, at, Some(&mut host.journal)).unwrap().0.is_empty());
    assert_eq!((host.io_max("slice/db-1").as_str(), agent.names()), (free, Vec::new()));
    assert!(host.journal.is_clear());
}

#[test]
fn a_device_that_is_made_anew_under_another_number_is_followed() {
    let mut host = Host::new("anew");
    let mut agent = host.agent();
    host.group("slice/db-1");
    host.tick(&mut agent, 0);
    assert_eq!(host.io_max("slice/db-1"), GUARANTEED);
    let folder = host.root.join("sys/class/block/no-cached");
    std::fs::write(folder.join("dev"), "4095:3").unwrap();
    std::os::unix::fs::symlink(&folder, host.root.join("sys/dev/block/4095:3")).unwrap();
    for second in 1..4 {
        host.tick(&mut agent, second);
    }
    assert_eq!(host.io_max("slice/db-1"), GUARANTEED.replace("4095:1", "4095:3"));
    let pending: Vec<_> = host.journal.pending().collect();
    assert!(matches!(pending[..], [crate::journal::Knob::IoMax { device, .. }] if device == "4095:3"), "{pending:?}");
    // The slow device goes away under it.
    std::fs::remove_file(host.root.join("sys/dev/block/4095:2")).unwrap();
    std::fs::remove_dir_all(host.root.join("sys/class/block/no-slow")).unwrap();
    for second in 4..6 {
        host.tick(&mut agent, second);
    }
    assert_eq!(host.io_max("slice/db-1"), "4095:3 rbps=max wbps=max riops=max wiops=max");
    assert!(host.journal.is_clear() && state(&agent).groups.is_empty());
    let notes = agent.state().pools[0].notes.join(" ");
    assert!(notes.contains("there is no block device no-slow"), "{notes}");
}

#[test]
fn a_device_that_is_not_on_this_host_is_noted_and_taken_when_it_comes() {
    let mut host = Host::new("elsewhere");
    let link = host.root.join("sys/dev/block/4095:1");
    let (folder, hidden) = (host.root.join("sys/class/block/no-cached"), host.root.join("hidden"));
    let device = std::fs::read_link(&link).unwrap();
    std::fs::remove_file(&link).unwrap();
    std::fs::rename(&folder, &hidden).unwrap();
    host.group("slice/db-1");
    let mut agent = host.agent();
    host.tick(&mut agent, 0);
    let note = agent.state().pools[0].notes.join(" ");
    assert!(note.contains("not on this host: there is no block device no-cached"), "{note}");
    assert_eq!((host.io_max("slice/db-1").as_str(), agent.names()), ("", vec!["pool".to_owned()]));
    std::fs::rename(&hidden, &folder).unwrap();
    std::os::unix::fs::symlink(device, &link).unwrap();
    for second in 1..3 {
        host.tick(&mut agent, second);
    }
    assert_eq!(host.io_max("slice/db-1"), GUARANTEED);
    assert!(agent.state().pools[0].notes.is_empty());
}

#[test]
fn what_is_missing_is_named_before_anything_starts() {
    let host = Host::new("missing");
    let config = |device: &str| {
        let text = format!(
            "[pools.pool]\ndevices = [\"{device}\"]\n[tenants.db]\nmatch = [\"cgroup:a\"]\nguarantee.read = {{ iops = 1 }}\n"
        );
        Config::parse(&text, "test", Abilities { tracepoints: false }).unwrap()
    };
    let open = |device: &str| Agent::open(&config(device), &Roots::under(&host.root), &host.root.join("cgroup"));
    assert!(open("no-such").is_ok(), "the policy is that of all hosts");
    assert!(open("no-cached").err().unwrap().to_string().contains("name its slow device"));
    std::fs::write(host.root.join("cgroup/cgroup.controllers"), "cpu memory\n").unwrap();
    assert!(matches!(open("no-cached"), Err(Unable::NoController(_))));
    std::fs::remove_file(host.root.join("cgroup/cgroup.controllers")).unwrap();
    assert!(matches!(open("no-cached"), Err(Unable::NoGroups(_))));
    assert!(open("no-such").is_ok(), "what is not here needs no control groups");
}

#[test]
fn in_a_cluster_a_host_takes_no_more_than_its_part_of_a_guarantee() {
    use evenkeel_control::units::{Fraction, Fractions};
    let mut host = Host::new("total");
    host.group("slice/db-1");
    host.moved("slice/db-1", 0);
    let mut agent = host.agent();
    agent.share_totals();
    host.tick(&mut agent, 0);
    let limited_to = |bytes: u64| format!("4095:1 rbps={bytes} wbps=max riops=max wiops=max");
    assert_eq!(host.io_max("slice/db-1"), limited_to(625_000), "no part is known");
    let key = ("pool".to_owned(), "read db".to_owned());
    assert_eq!(agent.demands()[&key].limit, [0, 10_000_000]);
    let half = Fractions { limit: [Fraction::of(0.5); 2], ..Fractions::WHOLE };
    agent.divide(&BTreeMap::from([(key.clone(), half)]));
    // It moves less than its part.
    for second in 1..6 {
        host.moved("slice/db-1", second * 1_000_000);
        host.tick(&mut agent, second);
    }
    let guaranteed = |agent: &Agent| state(agent).groups[0].read.as_ref().map(|read| (read.guaranteed, read.total));
    assert_eq!(guaranteed(&agent), Some((5e6, Some(10e6))));
    let demand = agent.demands()[&key];
    assert_eq!((demand.arrived[1], demand.queued), (5_000_000, 0));
    // A newer policy keeps the part.
    host.reload(&mut agent, &GUARANTEE.replace("10MB", "30MB"));
    host.moved("slice/db-1", 6_000_000);
    host.tick(&mut agent, 6);
    host.moved("slice/db-1", 7_000_000);
    host.tick(&mut agent, 7);
    assert_eq!(guaranteed(&agent), Some((15e6, Some(30e6))));
}
