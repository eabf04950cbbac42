//! Tests with groups and the files of container runtimes laid out by hand.

use proptest::prelude::*;

use super::*;
use crate::fake_osd::{Folder, folder};

struct Host(Folder);

impl Host {
    fn new(name: &str) -> Self {
        Self(folder(&format!("groups-{name}")))
    }

    fn group(&self, path: &str) {
        std::fs::create_dir_all(self.0.join("cgroup").join(path)).unwrap();
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn refresh(&self, names: &mut Names) {
        self.refresh_within(names, Duration::MAX);
    }

    fn refresh_within(&self, names: &mut Names, budget: Duration) {
        names.refresh(&Roots::under(&self.0), &self.0.join("cgroup"), budget);
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
    assert_eq!(host.find(&names, "container:*").len(), 5);
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
    assert_eq!(names, Names::default());
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
    let mut found = Vec::new();
    for _ in 0..4 {
        host.refresh_within(&mut names, Duration::ZERO);
        found.push(host.find(&names, "container:db-*").len());
    }
    assert_eq!(found, [0, 1, 2, 3]);
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
