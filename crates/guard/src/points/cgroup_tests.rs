use super::*;
use crate::Agent;
use crate::points::fake_host::{FREE, Host, config, state};

/// A host with a slow device.
fn host(name: &str) -> Host {
    let host = Host::new(&format!("cgroup-{name}"));
    host.slow_device();
    host
}

impl Host {
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

    fn tick(&mut self, agent: &mut Agent, second: u64) {
        let errors = agent.tick(at(second), b"", Some(&mut self.journal));
        assert!(errors.is_empty(), "{errors:?}");
    }
}

fn at(second: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(second)
}

const GUARANTEE: &str = "[tenants.db]\nmatch = [\"cgroup:slice/db-*\"]\nguarantee.read = { bytes_per_s = \"10MB\" }\n";

/// A policy with these tenants.
fn policy(tenants: &str) -> String {
    let pool =
        "[pools.pool]\ndevices = [\"no-disk\"]\ntuning.cache.slow = \"no-slow\"\ntuning.guarantee.interval = \"1s\"\n";
    format!("{pool}{tenants}")
}

const GUARANTEED: &str = "4095:1 rbps=10000000 wbps=max riops=max wiops=max";

#[test]
fn groups_get_limits_when_they_appear_and_lose_them_at_the_end() {
    let mut host = host("appear");
    let mut agent = host.agent(&policy(GUARANTEE));
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
    let limit = state.groups[0].read.as_ref().unwrap().limit_per_s;
    assert!(limit > 10_000_000, "it gets too little: {limit}");
    assert_eq!(
        host.io_max("slice/db-1"),
        GUARANTEED.replace("10000000", &limit.to_string()),
        "the record is what holds"
    );
    assert_eq!((state.kind.as_str(), state.slow_number.as_str()), ("other", "4095:2"));
    assert!(agent.records(Some("pool"), 1)[0].until_s == 11.0 && agent.records(Some("none"), 9).is_empty());
    // The end.
    assert_eq!(host.journal.restore_all().len(), 2);
    assert_eq!(host.io_max("slice/db-1"), FREE);
}

/// As systemd writes them at each `daemon-reload`.
#[test]
fn limits_of_before_that_are_written_again_do_not_end_a_guarantee() {
    let mut host = host("before");
    host.group("slice/db-1");
    let before = GUARANTEED.replace("10000000", "5000000");
    std::fs::write(host.file("slice/db-1", "io.max"), &before).unwrap();
    let mut agent = host.agent(&policy(GUARANTEE));
    for second in 0..2 {
        host.tick(&mut agent, second);
        assert_ne!(host.io_max("slice/db-1"), before);
        std::fs::write(host.file("slice/db-1", "io.max"), &before).unwrap();
    }
    host.tick(&mut agent, 2);
    assert_ne!(host.io_max("slice/db-1"), before);
    assert!(state(&agent).groups.iter().all(|group| group.foreign_limit.is_none()));
    host.journal.restore_all();
    assert_eq!(host.io_max("slice/db-1"), before);
}

#[test]
fn each_group_is_a_tenant_of_its_own() {
    let mut host = host("each");
    let mut agent = host.agent(&policy(GUARANTEE));
    ["slice/db-1", "slice/db-2"].into_iter().for_each(|name| host.group(name));
    let named = |agent: &Agent| state(agent).groups.into_iter().map(|group| group.tenant).collect::<Vec<_>>();
    host.tick(&mut agent, 0);
    assert_eq!(named(&agent), ["db", "db"]);
    host.reload(&mut agent, &policy(&GUARANTEE.replace("match", "each = true\nmatch")));
    host.tick(&mut agent, 1);
    assert_eq!(named(&agent), ["db/db-1", "db/db-2"]);
    assert_eq!((host.io_max("slice/db-1"), host.io_max("slice/db-2")), (GUARANTEED.into(), GUARANTEED.into()));
}

#[test]
fn a_group_that_is_gone_is_released_and_another_of_its_name_begins_anew() {
    let mut host = host("gone");
    let mut agent = host.agent(&policy(GUARANTEE));
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
    let tenants = tenant("all", "slice/*")
        + &guarantee("1MB")
        + &tenant("db", "/slice/db-1/")
        + &guarantee("10MB")
        + &tenant("bulk", "slice/bulk-*");
    let mut host = host("specific");
    ["slice/db-1", "slice/bulk-1", "slice/other"].into_iter().for_each(|name| host.group(name));
    let mut agent = host.agent(&policy(&tenants));
    host.tick(&mut agent, 0);
    assert_eq!(host.io_max("slice/db-1"), GUARANTEED);
    assert_eq!(host.io_max("slice/other"), GUARANTEED.replace("10000000", "1000000"));
    assert_eq!(host.io_max("slice/bulk-1"), "", "its tenant has no guarantee");
    let groups: Vec<_> = state(&agent).groups.into_iter().map(|group| (group.group, group.tenant)).collect();
    let owners = [("slice/db", "all"), ("slice/db-1", "db"), ("slice/other", "all")];
    assert_eq!(groups, owners.map(|(group, tenant)| (group.to_owned(), tenant.to_owned())));
}

#[test]
fn an_odd_file_of_one_group_is_reported_and_hurts_no_other() {
    let mut host = host("odd");
    let mut agent = host.agent(&policy(GUARANTEE));
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
    assert!(state(&agent).groups[1].read.as_ref().unwrap().limit_per_s > 10_000_000);
}

#[test]
fn a_newer_policy_takes_over_without_a_gap() {
    let mut host = host("reload");
    let mut agent = host.agent(&policy(GUARANTEE));
    host.group("slice/db-1");
    host.group("slice/db-2");
    host.tick(&mut agent, 0);
    let other = "[tenants.db]\nmatch = [\"cgroup:slice/db-1\"]\nguarantee.read = { bytes_per_s = \"20MB\" }\n";
    host.reload(&mut agent, &policy(other));
    assert_eq!((host.io_max("slice/db-1"), host.io_max("slice/db-2")), (GUARANTEED.into(), GUARANTEED.into()));
    host.tick(&mut agent, 1);
    assert_eq!(host.io_max("slice/db-1"), GUARANTEED.replace("10000000", "20000000"));
    assert_eq!(host.io_max("slice/db-2"), FREE, "its tenant has no guarantee any more");
    // Writes are guaranteed for a while: their limit goes with that policy.
    let both = other.replace("guarantee.read", "guarantee.write.bytes_per_s = \"5MB\"\nguarantee.read");
    host.reload(&mut agent, &policy(&both));
    host.tick(&mut agent, 2);
    assert!(host.io_max("slice/db-1").contains("wbps=5000000"), "{}", host.io_max("slice/db-1"));
    host.reload(&mut agent, &policy(other));
    host.tick(&mut agent, 3);
    assert_eq!(host.io_max("slice/db-1"), GUARANTEED.replace("10000000", "20000000"));
    // A policy that cannot be used changes nothing.
    std::fs::write(host.root.join("cgroup/cgroup.controllers"), "cpu\n").unwrap();
    let at = (&Roots::under(&host.root), &*host.root.join("cgroup"));
    assert!(agent.reload(&config(&policy(GUARANTEE)), at, Some(&mut host.journal)).is_err());
    host.tick(&mut agent, 4);
    assert_eq!(state(&agent).groups.len(), 1);
    std::fs::write(host.root.join("cgroup/cgroup.controllers"), "io\n").unwrap();
    // The pool is gone.
    let at = (&Roots::under(&host.root), &*host.root.join("cgroup"));
    assert!(agent.reload(&config(""), at, Some(&mut host.journal)).unwrap().0.is_empty());
    assert_eq!((host.io_max("slice/db-1").as_str(), agent.names()), (FREE, Vec::new()));
    assert!(host.journal.is_clear());
}

#[test]
fn a_device_that_is_made_anew_under_another_number_is_followed() {
    let mut host = host("anew");
    let mut agent = host.agent(&policy(GUARANTEE));
    host.group("slice/db-1");
    host.tick(&mut agent, 0);
    assert_eq!(host.io_max("slice/db-1"), GUARANTEED);
    let folder = host.root.join("sys/class/block/no-disk");
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
    let mut host = host("elsewhere");
    let link = host.root.join("sys/dev/block/4095:1");
    let (folder, hidden) = (host.root.join("sys/class/block/no-disk"), host.root.join("hidden"));
    let device = std::fs::read_link(&link).unwrap();
    std::fs::remove_file(&link).unwrap();
    std::fs::rename(&folder, &hidden).unwrap();
    host.group("slice/db-1");
    let mut agent = host.agent(&policy(GUARANTEE));
    host.tick(&mut agent, 0);
    let note = agent.state().pools[0].notes.join(" ");
    assert!(note.contains("not on this host: there is no block device no-disk"), "{note}");
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
    let host = host("missing");
    let config = |device: &str| {
        let text = format!(
            "[pools.pool]\ndevices = [\"{device}\"]\n[tenants.db]\nmatch = [\"cgroup:a\"]\nguarantee.read = {{ iops = 1 }}\n"
        );
        config(&text)
    };
    let open = |device: &str| Agent::open(&config(device), &Roots::under(&host.root), &host.root.join("cgroup"));
    assert!(open("no-such").is_ok(), "the policy is that of all hosts");
    assert!(open("no-disk").err().unwrap().to_string().contains("name its slow device"));
    std::fs::write(host.root.join("cgroup/cgroup.controllers"), "cpu memory\n").unwrap();
    assert!(matches!(open("no-disk"), Err(Unable::NoController(_))));
    std::fs::remove_file(host.root.join("cgroup/cgroup.controllers")).unwrap();
    let groups = open("no-disk").err().unwrap();
    assert!(matches!(groups, Unable::NoGroups(_)));
    // A mount above cgroup v1 would hide all groups from systemd and Docker.
    let text = groups.to_string();
    assert!(text.find("unified_cgroup_hierarchy") < text.find("not even cgroup v1"), "{text}");
    assert!(text.find("not even cgroup v1") < text.find("mount -t cgroup2"), "{text}");
    assert!(open("no-such").is_ok(), "what is not here needs no control groups");
}

#[test]
fn in_a_cluster_a_host_takes_no_more_than_its_part_of_a_guarantee() {
    use evenkeel_control::units::{Fraction, Fractions};
    let mut host = host("total");
    host.group("slice/db-1");
    host.moved("slice/db-1", 0);
    let mut agent = host.agent(&policy(GUARANTEE));
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
    let guaranteed =
        |agent: &Agent| state(agent).groups[0].read.as_ref().map(|read| (read.guaranteed_per_s, read.total_per_s));
    assert_eq!(guaranteed(&agent), Some((5_000_000, Some(10_000_000))));
    let demand = agent.demands()[&key];
    assert_eq!((demand.arrived[1], demand.queued), (5_000_000, 0));
    // A newer policy keeps the part.
    host.reload(&mut agent, &policy(&GUARANTEE.replace("10MB", "30MB")));
    host.moved("slice/db-1", 6_000_000);
    host.tick(&mut agent, 6);
    host.moved("slice/db-1", 7_000_000);
    host.tick(&mut agent, 7);
    assert_eq!(guaranteed(&agent), Some((15_000_000, Some(30_000_000))));
}

#[test]
fn a_guarantee_of_a_cache_of_an_nbd_device_counts_at_its_server_alone() {
    let mut host = Host::new("cgroup-nbd");
    host.slow_device_at("43:0");
    host.group("slice/db-1");
    let mut agent = host.agent(&policy(GUARANTEE));
    agent.share_totals();
    host.tick(&mut agent, 0);
    assert_eq!(host.io_max("slice/db-1"), GUARANTEED, "the whole guarantee applies");
    assert!(agent.demands().is_empty());
}

#[test]
fn a_guarantee_of_a_cache_of_a_volume_on_an_nbd_device_counts_at_its_server_alone() {
    let mut host = host("volume-on-nbd");
    host.root.file("sys/class/block/no-slow/slaves/no-nbd", "");
    host.root.file("sys/class/block/no-nbd/dev", "43:0");
    host.root.link("sys/dev/block/43:0", "sys/class/block/no-nbd");
    host.group("slice/db-1");
    let mut agent = host.agent(&policy(GUARANTEE));
    agent.share_totals();
    host.tick(&mut agent, 0);
    assert!(host.io_max("slice/db-1") == GUARANTEED && agent.demands().is_empty(), "{}", host.io_max("slice/db-1"));
}

#[test]
fn a_device_that_is_made_anew_before_a_newer_policy_gets_limits_of_that() {
    let mut host = host("anew-before-reload");
    let sequence = host.root.join("sys/class/block/no-disk/diskseq");
    std::fs::write(&sequence, "7\n").unwrap();
    host.group("slice/db-1");
    let mut agent = host.agent(&policy(GUARANTEE));
    host.tick(&mut agent, 0);
    assert_eq!(host.io_max("slice/db-1"), GUARANTEED);
    std::fs::write(&sequence, "8\n").unwrap();
    std::fs::write(host.file("slice/db-1", "io.max"), "").unwrap();
    host.reload(&mut agent, &policy(&GUARANTEE.replace("10MB", "20MB")));
    host.tick(&mut agent, 1);
    assert_eq!(host.io_max("slice/db-1"), GUARANTEED.replace("10000000", "20000000"));
    assert!(state(&agent).groups.iter().all(|group| group.foreign_limit.is_none()));
}

#[test]
fn a_device_that_is_made_anew_with_its_number_gets_limits_again() {
    let mut host = host("same-number");
    let sequence = host.root.join("sys/class/block/no-disk/diskseq");
    std::fs::write(&sequence, "7\n").unwrap();
    host.group("slice/db-1");
    let mut agent = host.agent(&policy(GUARANTEE));
    host.tick(&mut agent, 0);
    assert_eq!(host.io_max("slice/db-1"), GUARANTEED);
    // The kernel forgets the limits with the device.
    std::fs::write(&sequence, "8\n").unwrap();
    std::fs::write(host.file("slice/db-1", "io.max"), "").unwrap();
    for second in 1..4 {
        host.tick(&mut agent, second);
    }
    assert_eq!(host.io_max("slice/db-1"), GUARANTEED);
    assert!(state(&agent).groups.iter().all(|group| group.foreign_limit.is_none()));
}
