//! Tests with groups and the files of container runtimes laid out by hand.

use proptest::prelude::*;

use super::*;
use crate::config::{Abilities, Config, NamedBy};
use crate::folder::{Folder, folder};

/// Longest time that names may take.
const LIMIT: Duration = Duration::from_secs(30);

struct Host(Folder);

impl Host {
    fn new(name: &str) -> Self {
        Self(folder(&format!("groups-{name}")))
    }

    fn group(&self, path: &str) {
        self.0.dir(&format!("cgroup/{path}"));
    }

    fn file(&self, path: &str, text: &str) {
        self.0.file(path, text);
    }

    fn refresh(&self, names: &mut Names) {
        self.refresh_within(names, Duration::MAX);
    }

    fn refresh_within(&self, names: &mut Names, budget: Duration) {
        names.refresh(&Roots::under(&self.0), &self.0.join("cgroup"), budget);
    }

    /// Searches, each time within `budget`, until `entry` names as many groups as `count`.
    fn refresh_until(&self, names: &mut Names, budget: Duration, entry: &str, count: usize) {
        let begin = Instant::now();
        while self.find(names, entry).len() < count {
            self.refresh_within(names, budget);
            assert!(begin.elapsed() < LIMIT, "{names:?}");
        }
    }

    /// The groups that an entry names; each of them is also named by its path.
    fn find(&self, names: &Names, entry: &str) -> Vec<String> {
        let entry: Match = entry.parse().unwrap();
        let found = names.find(&self.0.join("cgroup"), &entry).unwrap();
        assert!(found.iter().all(|group| names.names(&entry, group)), "{entry}: {found:?}");
        found
    }
}

/// An ID of 64 digits that begins with `start`.
fn id(start: &str) -> String {
    format!("{start:0<64}")
}

#[test]
fn containers_go_by_the_names_that_their_runtimes_gave_them() {
    let host = Host::new("containers");
    let (docker, podman, nerdctl, crio, plain) = (id("d0"), id("b0"), id("c0"), id("a0"), id("e0"));
    host.group(&format!("system.slice/docker-{docker}.scope/init"));
    host.group(&format!("machine.slice/libpod-{podman}.scope/container"));
    host.group(&format!("machine.slice/libpod-conmon-{podman}.scope"));
    host.group(&format!("system.slice/nerdctl-{nerdctl}.scope"));
    host.group(&format!("kubepods.slice/crio-{crio}.scope"));
    host.group(&format!("docker/{plain}"));
    let k3s = id("90");
    host.group(&format!("kubepods/besteffort/pod7/{k3s}"));
    let task = format!("run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io/{k3s}/config.json");
    host.file(&task, "{\"annotations\":{\"io.kubernetes.cri.container-name\":\"etl\"}}");
    host.group("system.slice/ssh.service");
    let docker_file = format!("var/lib/docker/containers/{docker}/config.v2.json");
    host.file(&docker_file, "{\"State\":{},\"Name\":\"/db-1\",\"Config\":{\"Labels\":{}}}");
    let store = "var/lib/containers/storage/overlay-containers/containers.json";
    let other = id("f0");
    let list = format!("[{{\"id\":\"{other}\",\"names\":[\"x\"]}},{{\"id\":\"{podman}\",\"names\":[\"db-2\"]}}]");
    host.file(store, &list);
    let task = format!("run/containerd/io.containerd.runtime.v2.task/default/{nerdctl}/config.json");
    host.file(&task, "{\"annotations\":{\"nerdctl/name\":\"web\"}}");
    let userdata = format!("run/containers/storage/overlay-containers/{crio}/userdata/config.json");
    host.file(&userdata, "{\"annotations\":{\"io.kubernetes.container.name\":\"postgres\"}}");
    let mut names = Names::default();
    host.refresh(&mut names);
    let docker = format!("system.slice/docker-{docker}.scope");
    let podman = format!("machine.slice/libpod-{podman}.scope");
    assert_eq!(host.find(&names, "container:db-1"), [docker.as_str()]);
    assert_eq!(host.find(&names, "container:db-*"), [podman, docker]);
    assert_eq!(host.find(&names, "container:web"), [format!("system.slice/nerdctl-{nerdctl}.scope")]);
    assert_eq!(host.find(&names, "container:postgres"), [format!("kubepods.slice/crio-{crio}.scope")]);
    assert_eq!(host.find(&names, "container:e00000000000"), [format!("docker/{plain}")]);
    assert_eq!(host.find(&names, "container:etl"), [format!("kubepods/besteffort/pod7/{k3s}")]);
    assert_eq!(host.find(&names, "container:*").len(), 6);
    assert_eq!(host.find(&names, "cgroup:system.slice/*.service"), ["system.slice/ssh.service"]);
}

#[test]
fn pods_go_by_namespace_and_name() {
    let host = Host::new("pods");
    let slice = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1a2b_3c.slice";
    host.group(&format!("{slice}/cri-containerd-{}.scope", id("1")));
    host.group("kubepods.slice/kubepods-pod77.slice");
    host.group("kubepods/besteffort/pod9-9");
    host.group("other/pod5");
    for folder in ["shop_postgres-0_1a2b-3c", "kube-system_etcd_77", "shop_cron-1_9-9", "shop_gone_5"] {
        host.file(&format!("var/log/pods/{folder}/log"), "");
    }
    let mut names = Names::default();
    host.refresh(&mut names);
    assert_eq!(host.find(&names, "pod:shop/postgres-0"), [slice]);
    assert_eq!(host.find(&names, "pod:shop/*"), [slice, "kubepods/besteffort/pod9-9"]);
    assert_eq!(host.find(&names, "pod:kube-*/etcd"), ["kubepods.slice/kubepods-pod77.slice"]);
    assert_eq!(host.find(&names, "pod:*/*").len(), 3, "and not other/pod5");
    assert_eq!(host.find(&names, "container:1*").len(), 1, "a pod's container, too");
}

#[test]
fn of_entries_of_all_kinds_the_most_specific_decides_whose_a_group_is() {
    let host = Host::new("ranks");
    let pod = "kubepods/besteffort/pod9-9";
    host.group(pod);
    host.file("var/log/pods/shop_db-0_9-9/log", "");
    let socket = host.0.join("run/containerd/containerd.sock");
    let runtime = cri::tests::play(&socket, &[("9-9", &[("app", "db")], &[("a", "b")])]);
    let mut names = Names::default();
    names.want_marks(true);
    host.refresh(&mut names);
    runtime.join().unwrap();
    let falling = [
        "cgroup:kubepods/besteffort/pod9-9",
        "pod:shop/db-0",
        "pod-label:app=db",
        "pod-annotation:a=b",
        "pod-label:app=d*",
        "pod-annotation:a=*",
        "cgroup:kubepods/besteffort/pod*",
        "pod:shop/db-*",
        "pod:*/*",
    ];
    let owner = |entries: [&str; 2]| {
        let text = format!(
            "[pools.disk]\ndevices = [\"sda\"]\nlatency.target = \"5ms\"\n[tenants.x]\nmatch = [\"{}\"]\n\
             [tenants.y]\nmatch = [\"{}\"]\n",
            entries[0], entries[1]
        );
        let config = Config::parse(&text, "test", Abilities { tracepoints: false }).unwrap();
        config.local["disk"].named_by(&names, pod).unwrap()
    };
    for (at, first) in falling.into_iter().enumerate() {
        for &second in &falling[at + 1..] {
            let by = |tenant, other: &str| NamedBy {
                tenant,
                entry: first.to_owned(),
                others: vec![format!("{second} of tenant {other}")],
            };
            assert_eq!(owner([first, second]), by(0, "y"));
            assert_eq!(owner([second, first]), by(1, "x"));
        }
    }
}

#[test]
fn pods_go_by_labels_and_annotations_that_their_runtime_knows() {
    let host = Host::new("marks");
    host.group("kubepods/besteffort/pod9-9");
    host.group("kubepods.slice/kubepods-pod77.slice");
    host.group("user.slice/user-1000.slice/kubepods-pod9-9.slice");
    let mut names = Names::default();
    host.refresh(&mut names);
    assert!(names.marks.is_empty() && names.unmarked().is_none(), "nothing asks for them");
    names.want_marks(true);
    host.refresh(&mut names);
    assert!(names.unmarked().is_some_and(|why| why.contains("CRI socket")), "{names:?}");
    let socket = host.0.join("run/containerd/containerd.sock");
    let (labels, annotations) = ([("app", "etl-7"), ("tier", "batch")], [("example.org/storage", "noisy")]);
    let runtime = cri::tests::play(&socket, &[("9-9", &labels, &annotations)]);
    host.refresh(&mut names);
    runtime.join().unwrap();
    let pod = ["kubepods/besteffort/pod9-9"];
    for entry in ["pod-label:app=etl-*", "pod-label:tier=batch", "pod-annotation:example.org/storage=*"] {
        assert_eq!(host.find(&names, entry), pod, "{entry}");
    }
    for entry in ["pod-label:app=web", "pod-label:example.org/storage=*", "pod-annotation:app=*", "pod-label:ap=*"] {
        assert!(host.find(&names, entry).is_empty(), "{entry}");
    }
    // The other pod is not among the pods of the answer: it is asked for again, but not without end.
    assert!(names.unmarked().is_none() && names.marks["77"] == (None, 1));
    names.marks.insert("77".into(), (None, MAX_TRIES));
    names.pods.extend(["77", "9-9"].map(|uid| (uid.to_owned(), "shop/x".to_owned())));
    assert!(!names.wants_more());
    // A pod that waits for its volumes is started after that, which the next search notices.
    std::fs::remove_file(&socket).unwrap();
    let runtime = cri::tests::play(&socket, &[("77", &[("app", "late")], &[])]);
    host.refresh(&mut names);
    runtime.join().unwrap();
    assert_eq!(host.find(&names, "pod-label:app=late"), ["kubepods.slice/kubepods-pod77.slice"]);
    assert_eq!(host.find(&names, "pod-label:tier=batch"), pod, "known before, and not in this answer");
    names.want_marks(false);
    host.refresh(&mut names);
    assert!(names.marks.is_empty(), "{names:?}");
}

#[test]
fn machines_go_by_libvirts_names() {
    let host = Host::new("machines");
    host.group("machine.slice/machine-qemu\\x2d3\\x2ddb\\x2d1.scope/libvirt/vcpu0");
    host.group("machine.slice/machine-lxc\\x2d14\\x2dweb.scope");
    host.group("machine.slice/machine-build\\x2dbox.scope");
    host.group("machine.slice/machine-production.slice/machine-qemu\\x2d4\\x2dmail.scope");
    host.group("machine/blue.partition/machine-qemu\\x2d5\\x2dnews.scope");
    host.group("user.slice/user-1000.slice/machine-qemu\\x2d6\\x2ddb\\x2d1.scope");
    let mut names = Names::default();
    host.refresh(&mut names);
    assert_eq!(host.find(&names, "machine:db-1"), ["machine.slice/machine-qemu\\x2d3\\x2ddb\\x2d1.scope"]);
    assert_eq!(host.find(&names, "machine:web"), ["machine.slice/machine-lxc\\x2d14\\x2dweb.scope"]);
    assert_eq!(host.find(&names, "machine:build-box"), ["machine.slice/machine-build\\x2dbox.scope"]);
    assert_eq!(host.find(&names, "machine:*").len(), 5, "without that of a user");
}

#[test]
fn machines_in_partitions_and_without_systemd_go_by_their_names() {
    let host = Host::new("machine-partitions");
    let groups = [
        "machine/qemu-1-old.libvirt-qemu",
        "machine/blue.partition/lxc-2-web-1.libvirt-lxc",
        "blue.slice/machine-qemu\\x2d3\\x2dnew.scope",
    ];
    groups.iter().for_each(|group| host.group(&format!("{group}/emulator")));
    for other in ["other/qemu-4-db.libvirt-qemu", "blue.slice/machine-db.scope"] {
        host.group(other);
    }
    host.file("run/libvirt/qemu/o_ld.xml", "");
    let mut names = Names::default();
    host.refresh(&mut names);
    for (entry, group) in ["machine:o_ld", "machine:web-1", "machine:new"].into_iter().zip(groups) {
        assert_eq!(host.find(&names, entry), [group], "{entry}");
    }
    assert_eq!(host.find(&names, "machine:*").len(), 3, "{names:?}");
}

/// libvirt leaves characters out of the group's name that names of hosts do not have.
#[test]
fn machines_with_spaces_and_underscores_go_by_their_whole_names() {
    let host = Host::new("machine-names");
    let group = |number: u32, name: &str| format!("machine.slice/machine-qemu\\x2d{number}\\x2d{name}.scope");
    for (number, name) in [(1, "webdb1"), (2, "plain"), (3, "twin"), (4, "twin")] {
        host.group(&group(number, name));
    }
    for name in ["web_db 1", "plain", "tw_in", "twin", "other"] {
        host.file(&format!("run/libvirt/qemu/{name}.xml"), "");
    }
    host.file("run/libvirt/qemu/driver.pid", "7");
    let mut names = Names::default();
    host.refresh(&mut names);
    for entry in ["machine:web_db 1", "machine:web_*"] {
        assert_eq!(host.find(&names, entry), [group(1, "webdb1")], "{entry}");
    }
    assert_eq!(host.find(&names, "machine:plain"), [group(2, "plain")]);
    assert_eq!(host.find(&names, "machine:twin"), [group(3, "twin"), group(4, "twin")], "one of two: not known which");
    // Machines of other drivers and programs are not those of the files.
    let others = ["machine.slice/machine-lxc\\x2d9\\x2dwebdb1.scope", "machine.slice/machine-webdb1.scope"];
    others.iter().for_each(|other| host.group(other));
    // libvirt cuts the group's name off.
    let long = "abc_".repeat(20);
    host.file(&format!("run/libvirt/qemu/{long}.xml"), "");
    let cut = group(5, &"abc".repeat(19));
    host.group(&cut);
    host.refresh(&mut names);
    assert_eq!(host.find(&names, "machine:web_db 1"), [group(1, "webdb1")]);
    assert_eq!(host.find(&names, "machine:webdb1"), others);
    assert_eq!(host.find(&names, &format!("machine:{long}")), std::slice::from_ref(&cut));
    host.file(&format!("run/libvirt/qemu/{long}2.xml"), "");
    host.refresh(&mut names);
    assert!(host.find(&names, "machine:abc_*").is_empty(), "one of two");
    for (name, written) in [("-a..b_-", "a.b"), ("größe.1", "gre.1"), ("a_-b", "a-b"), ("___", "")] {
        assert_eq!(in_group(name), written, "{name}");
    }
}

#[test]
fn a_group_of_a_user_does_not_go_by_the_name_of_another_thing() {
    let host = Host::new("spoofed");
    let of_user = "user.slice/user-1000.slice/user@1000.service";
    let (id, real) = (id("ab"), format!("system.slice/docker-{}.scope", id("ab")));
    host.group(&real);
    host.group(&format!("{of_user}/docker-{id}.scope"));
    host.group(&format!("{of_user}/machine.slice/machine-qemu\\x2d3\\x2ddb.scope"));
    host.group(&format!("{of_user}/kubepods-pod77.slice"));
    host.file(&format!("var/lib/docker/containers/{id}/config.v2.json"), "{\"Name\":\"/db\"}");
    host.file("var/log/pods/shop_db_77/log", "");
    let mut names = Names::default();
    host.refresh(&mut names);
    assert_eq!(host.find(&names, "container:db"), [real]);
    assert_eq!(host.find(&names, "container:ab*"), [format!("{of_user}/docker-{id}.scope")]);
    assert!(host.find(&names, "machine:*").is_empty() && host.find(&names, "pod:*/*").is_empty());
}

/// As in a container of LXC without privileges, or below a service whose group systemd gives to a user.
#[test]
fn a_group_in_a_group_of_a_user_does_not_go_by_the_name_of_another_thing() {
    let host = Host::new("delegated");
    host.group(&format!("lxc.payload.web/docker-{}.scope", id("ab")));
    host.group("lxc.payload.web/kubepods-pod77.slice");
    let cgroups = host.0.join("cgroup");
    let walk = |owners: Vec<u32>| {
        let mut names = Names { owners, ..Names::default() };
        names.walk(&cgroups, "", MAX_DEPTH, &mut 0);
        names.things.into_values().collect::<Vec<Thing>>()
    };
    let owner = std::fs::metadata(&cgroups).unwrap().uid();
    assert_eq!(walk(vec![owner]), [Thing::Container(id("ab")), Thing::Pod("77".to_owned())]);
    assert_eq!(walk(Vec::new()), [Thing::OfUser(id("ab"))], "of another user than the outermost group");
}

#[test]
fn containers_in_a_pod_of_podman_without_systemd_are_found() {
    let host = Host::new("podman-pod");
    let group = format!("libpod_parent/{}/libpod-{}", id("f0"), id("b0"));
    host.group(&group);
    host.group(&format!("libpod_parent/libpod-{}", id("b1")));
    let mut names = Names::default();
    host.refresh(&mut names);
    assert_eq!(host.find(&names, "container:b0*"), [group]);
    assert_eq!(host.find(&names, "container:*").len(), 2, "the pod is none");
}

#[test]
fn containers_of_k0s_and_microk8s_go_by_their_names() {
    let host = Host::new("distributions");
    let group = |start: &str| format!("kubepods/besteffort/pod7/{}", id(start));
    for (start, folder) in [("a1", "run/k0s/containerd"), ("a2", "var/snap/microk8s/common/run/containerd")] {
        host.group(&group(start));
        let file = format!("{folder}/io.containerd.runtime.v2.task/k8s.io/{}/config.json", id(start));
        host.file(&file, &format!("{{\"annotations\":{{\"io.kubernetes.cri.container-name\":\"of-{start}\"}}}}"));
    }
    let mut names = Names::default();
    host.refresh(&mut names);
    for start in ["a1", "a2"] {
        assert_eq!(host.find(&names, &format!("container:of-{start}")), [group(start)]);
    }
}

#[test]
fn names_that_come_late_are_found_and_groups_that_are_gone_are_forgotten() {
    let host = Host::new("late");
    let group = format!("system.slice/docker-{}.scope", id("ab"));
    host.group(&group);
    let mut names = Names::default();
    host.refresh(&mut names);
    assert_eq!(host.find(&names, "container:ab*"), [group.as_str()]);
    host.file(&format!("var/lib/docker/containers/{}/config.v2.json", id("ab")), "{\"Name\":\"/late\"}");
    host.refresh(&mut names);
    assert_eq!(host.find(&names, "container:late"), [group.as_str()]);
    assert!(host.find(&names, "container:ab*").is_empty(), "a container with a name goes by that alone");
    std::fs::remove_dir_all(host.0.join("cgroup/system.slice")).unwrap();
    host.refresh(&mut names);
    assert!(names.things.is_empty() && names.containers.is_empty() && names.pods.is_empty(), "{names:?}");
}

#[test]
fn a_search_without_time_left_goes_on_with_the_next() {
    let host = Host::new("budget");
    for (start, name) in [("1", "db-1"), ("2", "db-2"), ("3", "db-3")] {
        host.group(&format!("system.slice/docker-{}.scope", id(start)));
        let file = format!("var/lib/docker/containers/{}/config.v2.json", id(start));
        host.file(&file, &format!("{{\"Name\":\"/{name}\"}}"));
    }
    // One whose name is nowhere keeps no other waiting.
    host.group(&format!("docker/{}", id("0")));
    let mut names = Names::default();
    host.refresh_until(&mut names, Duration::ZERO, "container:db-*", 3);
}

#[test]
fn a_file_that_hangs_keeps_no_other_name_away_and_counts_when_it_is_read() {
    use rustix::fs::{CWD, Mode, mkfifoat};
    let host = Host::new("hangs");
    let (hung, other) = (id("1"), id("2"));
    host.group(&format!("docker/{hung}"));
    host.group(&format!("docker/{other}"));
    host.group("kubepods/besteffort/pod9-9");
    host.file("var/log/pods/shop_cron-1_9-9/log", "");
    host.file(&format!("var/lib/docker/containers/{other}/config.v2.json"), "{\"Name\":\"/db-2\"}");
    // Opening it waits for a writer, as opening a file on a disk that hangs waits for the disk.
    let file = host.0.dir(&format!("var/lib/docker/containers/{hung}")).join("config.v2.json");
    mkfifoat(CWD, &file, Mode::from_raw_mode(0o600)).unwrap();
    let mut names = Names::default();
    host.refresh_until(&mut names, Duration::from_millis(1), "container:db-2", 1);
    host.refresh_until(&mut names, Duration::from_millis(1), "pod:shop/cron-1", 1);
    for _ in 0..2 * MAX_TRIES {
        // However long it may take: what hangs is not waited for again.
        host.refresh(&mut names);
        assert!(names.are_late());
    }
    assert_eq!(host.find(&names, "container:100000000000").len(), 1, "it goes by its ID meanwhile");
    std::fs::write(&file, "{\"Name\":\"/db-1\"}").unwrap();
    host.refresh_until(&mut names, Duration::ZERO, "container:db-1", 1);
    assert!(!names.are_late());
}

#[test]
fn groups_of_users_are_visited_last_and_not_without_end() {
    let host = Host::new("users");
    let number = |number: usize| format!("docker-{number:064}.scope");
    let all = 0..2 * MAX_VISITED;
    all.for_each(|at| host.group(&format!("user.slice/user-1000.slice/{}", number(at))));
    let others = (0..20).map(|at| format!("other-{at}.slice/{}", number(MAX_VISITED * 3 + at)));
    let others: Vec<String> = others.collect();
    others.iter().for_each(|group| host.group(group));
    let mut names = Names::default();
    host.refresh(&mut names);
    let found = host.find(&names, "container:*");
    assert!(found.len() < MAX_VISITED, "{}", found.len());
    assert!(others.iter().all(|group| found.contains(group)), "{found:?}");
    assert!(names.are_partial(), "some are left out");
    std::fs::remove_dir_all(host.0.join("cgroup/user.slice")).unwrap();
    host.refresh(&mut names);
    assert!(!names.are_partial());
}

proptest! {
    #[test]
    fn arbitrary_names_of_folders_do_not_panic(folder in ".{0,80}", parent in ".{0,20}") {
        let _ = thing(&folder, &parent);
        let _ = thing(&format!("machine-{folder}.scope"), &parent);
    }

    #[test]
    fn a_machine_of_any_name_is_known_by_it(name in "[a-zA-Z0-9._ -]{1,40}", number in 1u32..10_000) {
        let escaped = format!("qemu-{number}-{name}").replace('-', "\\x2d").replace(' ', "\\x20");
        prop_assert_eq!(thing(&format!("machine-{escaped}.scope"), "machine.slice"), Some(Thing::Machine(name)));
    }
}
