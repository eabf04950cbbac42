//! Control groups by the names of what runs in them: containers, Kubernetes pods and virtual machines.
//!
//! | group | of | its name is in |
//! |---|---|---|
//! | `docker-ID.scope`, `docker/ID` | Docker | `/var/lib/docker/containers/ID/config.v2.json` |
//! | `libpod-ID.scope`, `libpod-ID` | Podman | `/var/lib/containers/storage/overlay-containers/containers.json` |
//! | `cri-containerd-ID.scope`, `nerdctl-ID.scope` | containerd | `config.json` in its folder `/run/containerd` |
//! | `crio-ID.scope` | CRI-O | `/run/containers/storage/overlay-containers/ID/userdata/config.json` |
//! | `kubepods-QOS-podUID.slice`, `podUID` | Kubernetes | the folder `/var/log/pods/NAMESPACE_NAME_UID` |
//! | `machine-qemu\x2d1\x2dNAME.scope` | libvirt | the group's own name, and whole in `/run/libvirt/qemu/NAME.xml` |
//! | `machine/qemu-1-NAME.libvirt-qemu` | libvirt without systemd | the same |
//!
//! Labels and annotations of pods come from the runtime ([`cri`]), if the policy names some; nothing else is asked of a daemon
//! or a server. A container without a known name goes by the first twelve digits of its ID, as
//! `docker ps` shows it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use evenkeel_policy::config::Match;
use evenkeel_policy::tenant::fits;
use serde_json::Value;

use super::cri::{self, Marks};
use super::roots::{self, Roots};
use super::unescaped;
use crate::aside::Aside;
use crate::error::Error;
use crate::sensor::cgroup;

/// Largest number of levels of groups that are searched; a container of a cluster in a container is on the tenth.
const MAX_DEPTH: u32 = 12;
/// Largest number of groups that one search visits: users may make as many below their own ones as they like.
const MAX_VISITED: usize = if cfg!(test) { 300 } else { 20_000 };
/// The group, below the root, with the groups that users make without privileges.
const OF_USERS: &str = "user.slice";
/// Number of digits of a container's ID.
const ID_DIGITS: usize = 64;
/// Number of digits of an ID that stand for a name.
const SHORT_DIGITS: usize = 12;
/// Number of searches after which the files of a container without a name are no longer read, and a pod that the runtime does
/// not know is no reason for a further search. Searches with other reasons go on asking for it: a pod has its group long before
/// the runtime starts it, as it waits for its volumes.
const MAX_TRIES: u8 = 10;
/// Largest number of containers whose files are read at the same time, each by a thread of its own, so that a read that
/// hangs delays no other container's name.
const MAX_ASKED: usize = 4;
/// Folders of containerd with those of its containers, by namespace and ID: its own, and those of K3s, k0s and MicroK8s.
const TASKS: [&str; 4] = [
    "run/containerd/io.containerd.runtime.v2.task",
    "run/k3s/containerd/io.containerd.runtime.v2.task",
    "run/k0s/containerd/io.containerd.runtime.v2.task",
    "var/snap/microk8s/common/run/containerd/io.containerd.runtime.v2.task",
];
/// The group in which Podman without systemd has those of pods, by their IDs, with groups of containers below, and those of
/// other containers.
const OF_PODMAN: &str = "libpod_parent";
/// Starts of the names that libvirt gives to groups of machines, and its folders with a file for each of these machines that
/// runs, in memory.
const MACHINES: [(&str, &str); 2] =
    [("machine-qemu\\x2d", "run/libvirt/qemu"), ("machine-lxc\\x2d", "run/libvirt/lxc")];
/// Ends of the names that libvirt gives to these groups without systemd, in the order of [`MACHINES`].
const ENDS: [&str; 2] = [".libvirt-qemu", ".libvirt-lxc"];
/// Least number of characters of a machine's name in that of its group, `DRIVER-NUMBER-NAME`, whose end may be cut off: libvirt
/// writes at most 64, and then leaves out a separator at the end.
const CUT_OFF: usize = 63;
/// The annotations of a container's configuration that hold its name, by containerd's CRI, CRI-O and nerdctl.
const ANNOTATIONS: [&str; 3] = ["io.kubernetes.cri.container-name", "io.kubernetes.container.name", "nerdctl/name"];

/// A thing that has a control group of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Thing {
    /// A container, by its ID.
    Container(String),
    /// A container in a group that a user without privileges may have made, below [`OF_USERS`] or in a group that belongs to the
    /// user, by its ID. Users choose these digits, so that the group goes by them alone and not by the name of the container
    /// that has this ID.
    OfUser(String),
    /// A pod, by its UID.
    Pod(String),
    /// A virtual machine, by its name.
    Machine(String),
}

/// A question to container runtimes or about their files, which may be on a disk that does not answer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Question {
    /// The names of this host's pods.
    Pods,
    /// Labels and annotations of this host's pods.
    Marks,
    /// The name of the container with this ID.
    Container(String),
}

/// The answer to a [`Question`].
#[derive(Debug)]
enum Answer {
    /// `NAMESPACE/NAME` of pods by their UIDs.
    Pods(BTreeMap<String, String>),
    /// Labels and annotations of pods by their UIDs, or the reason why they are not known.
    Marks(Result<BTreeMap<String, Marks>, String>),
    /// The container's name; `None` if no file has it.
    Container(Option<String>),
}

impl Question {
    fn answer(&self, roots: &Roots) -> Answer {
        match self {
            Self::Pods => Answer::Pods(pods(roots)),
            Self::Marks => Answer::Marks(cri::marks(roots).map_err(|error| error.to_string())),
            Self::Container(id) => Answer::Container(container(roots, id)),
        }
    }
}

impl Thing {
    /// This thing if a user may have made its group; `None` if such a thing has no group of its own there.
    fn of_user(self) -> Option<Self> {
        match self {
            Self::Container(id) | Self::OfUser(id) => Some(Self::OfUser(id)),
            Self::Pod(_) | Self::Machine(_) => None,
        }
    }
}

/// The names of the containers, pods and virtual machines of this host, and their control groups.
#[derive(Debug, Default)]
pub struct Names {
    /// Things by the paths of their groups.
    things: BTreeMap<String, Thing>,
    /// Users whose groups hold no groups of users without privileges: root, and the owner of the outermost group.
    owners: Vec<u32>,
    /// Names of containers by their IDs, with the number of searches for them.
    containers: BTreeMap<String, (Option<String>, u8)>,
    /// `NAMESPACE/NAME` of pods by their UIDs.
    pods: BTreeMap<String, String>,
    /// Labels and annotations of pods by their UIDs, with the number of answers that lacked them.
    marks: BTreeMap<String, (Option<Marks>, u8)>,
    /// True if labels and annotations are asked for.
    wants_marks: bool,
    /// The reason why the runtime has not answered the latest question for them.
    unmarked: Option<String>,
    /// Reads the files of runtimes; `None` before the first search.
    reading: Option<Aside<Question, Answer>>,
    /// Number of questions of earlier searches that have no answer yet.
    late: usize,
    /// True if the latest search has left out groups, as there are too many.
    is_partial: bool,
}

impl Names {
    /// Sets whether later searches ask the container runtime for labels and annotations of pods.
    pub fn want_marks(&mut self, wanted: bool) {
        self.wants_marks = wanted;
    }

    /// The reason why labels and annotations of some pods are not known, with the runtime's socket.
    pub fn unmarked(&self) -> Option<&str> {
        self.unmarked.as_deref().filter(|_| self.marks.values().any(|(marks, _)| marks.is_none()))
    }

    /// True if the latest search has left out groups, as there are too many.
    pub const fn are_partial(&self) -> bool {
        self.is_partial
    }

    /// True if a name is not known that a later search may find.
    pub fn wants_more(&self) -> bool {
        let is_unknown = |thing: &Thing| matches!(thing, Thing::Pod(uid) if !self.pods.contains_key(uid));
        self.late > 0
            || self.containers.values().any(is_to_be_asked)
            || self.marks.values().any(is_to_be_asked)
            || self.things.values().any(is_unknown)
    }

    /// Searches for groups below `cgroups`, where cgroup v2 is mounted, and for the names of those that are new. A name once
    /// found is kept for as long as its group is there. Other threads read the files of runtimes, which may be on a disk that
    /// is busy or hangs; this search waits for them up to the time `budget`, and later ones take in what comes late.
    pub fn refresh(&mut self, roots: &Roots, cgroups: &Path, budget: Duration) {
        self.things.clear();
        self.is_partial = false;
        self.owners = vec![0];
        self.owners.extend(std::fs::metadata(cgroups).ok().map(|metadata| metadata.uid()));
        self.walk(cgroups, "", MAX_DEPTH, &mut 0);
        self.name_machines(roots);
        let of_thing = |thing: &Thing| match thing {
            Thing::Container(id) | Thing::Pod(id) => Some(id.clone()),
            Thing::OfUser(_) | Thing::Machine(_) => None,
        };
        let there: BTreeSet<String> = self.things.values().filter_map(of_thing).collect();
        self.containers.retain(|id, _| there.contains(id));
        self.pods.retain(|uid, _| there.contains(uid));
        self.marks.retain(|uid, _| self.wants_marks && there.contains(uid));
        for thing in self.things.values() {
            match thing {
                Thing::Container(id) => {
                    self.containers.entry(id.clone()).or_default();
                }
                Thing::Pod(uid) if self.wants_marks => {
                    self.marks.entry(uid.clone()).or_default();
                }
                _ => {}
            }
        }
        self.read(roots, budget);
    }

    /// Gives machines the names that they have in libvirt: a group's name may lack some of their characters. Machines that would
    /// have the same group's name keep it. O(machines · log machines).
    fn name_machines(&mut self, roots: &Roots) {
        if !self.things.values().any(|thing| matches!(thing, Thing::Machine(_))) {
            return;
        }
        // By the starts of their groups' names, and their names in these; `None` for several.
        let mut machines: BTreeMap<(&str, String), Option<String>> = BTreeMap::new();
        for (start, folder) in MACHINES {
            let files = roots::names(&roots.root.join(folder)).unwrap_or_default();
            for machine in files.iter().filter_map(|file| file.strip_suffix(".xml")) {
                let same = machines.entry((start, in_group(machine)));
                same.and_modify(|known| *known = None).or_insert_with(|| Some(machine.to_owned()));
            }
        }
        for (group, thing) in &mut self.things {
            let Thing::Machine(name) = thing else { continue };
            let folder = group.rsplit('/').next().unwrap_or(group);
            // Other programs choose names of machines freely.
            let by_start = MACHINES.into_iter().find(|(start, _)| folder.starts_with(start));
            let by_end = || MACHINES.into_iter().zip(ENDS).find(|(_, end)| folder.ends_with(end)).map(|(of, _)| of);
            let Some((start, _)) = by_start.or_else(by_end) else { continue };
            let is_cut = machine_in(folder).is_some_and(|machine| machine.len() >= CUT_OFF);
            let is_it = |written: &str| written == name.as_str() || is_cut && written.starts_with(name.as_str());
            // Those that a name which is cut off may stand for come one after the other.
            let next = machines.range((start, name.clone())..).take(2);
            let found: Vec<&Option<String>> =
                next.filter(|((of, written), _)| *of == start && is_it(written)).map(|(_, machine)| machine).collect();
            if let [Some(machine)] = found[..] {
                name.clone_from(machine);
            }
        }
    }

    /// True if files of runtimes that an earlier search began to read have not been read yet.
    pub fn are_late(&self) -> bool {
        self.late > 0
    }

    /// Asks for names that are not known yet, and takes in answers, for up to the time `budget`.
    fn read(&mut self, roots: &Roots, budget: Duration) {
        let begin = Instant::now();
        let unnamed = self.containers.iter().filter(|(_, known)| is_to_be_asked(known));
        let mut unnamed: Vec<(u8, String)> = unnamed.map(|(id, (_, tries))| (*tries, id.clone())).collect();
        // Those with the fewest searches come first.
        unnamed.sort_unstable();
        let is_unknown = |thing: &Thing| matches!(thing, Thing::Pod(uid) if !self.pods.contains_key(uid));
        let pods = self.things.values().any(is_unknown).then_some(Question::Pods);
        let marks = self.marks.values().any(|(marks, _)| marks.is_none()).then_some(Question::Marks);
        let containers = unnamed.into_iter().map(|(_, id)| Question::Container(id));
        let mut questions = pods.into_iter().chain(marks).chain(containers).peekable();
        let reading = self.reading.get_or_insert_default();
        // Questions of this search without an answer. Those of earlier ones may hang: nothing waits for them.
        let mut fresh = BTreeSet::new();
        let mut in_time = true;
        loop {
            while in_time
                && let Some(question) = questions
                    .next_if(|question| !matches!(question, Question::Container(_)) || reading.open() < MAX_ASKED)
            {
                let roots = roots.clone();
                if reading.ask(&question, move |question| question.answer(&roots)) {
                    fresh.insert(question);
                }
            }
            let within = if fresh.is_empty() { Duration::ZERO } else { budget.saturating_sub(begin.elapsed()) };
            let Some((question, answer)) = reading.answer(within) else { break };
            fresh.remove(&question);
            match (question, answer) {
                (Question::Container(id), Answer::Container(name)) => {
                    if let Some(known) = self.containers.get_mut(&id) {
                        *known = (name, known.1.saturating_add(1));
                    }
                }
                (_, Answer::Pods(names)) => self.pods.extend(names),
                (_, Answer::Marks(found)) => {
                    // A runtime that does not answer says nothing of a pod.
                    let answered = u8::from(found.is_ok());
                    self.unmarked = found.as_ref().err().cloned();
                    let mut found = found.unwrap_or_default();
                    for (uid, known) in self.marks.iter_mut().filter(|(_, known)| known.0.is_none()) {
                        *known = (found.remove(uid), known.1.saturating_add(answered));
                    }
                }
                (Question::Pods | Question::Marks, Answer::Container(_)) => {}
            }
            in_time = begin.elapsed() < budget;
        }
        self.late = reading.open() - fresh.len();
    }

    /// Adds the groups below `path`, whose folder is `folder`, to the known ones. `visited`: number of groups that this search
    /// has visited so far.
    fn walk(&mut self, folder: &Path, path: &str, depth: u32, visited: &mut usize) {
        // A folder of the kernel has two links, and one more for each folder in it.
        let Ok(metadata) = std::fs::metadata(folder) else { return };
        let Some(depth) = depth.checked_sub(1).filter(|_| metadata.nlink() != 2) else { return };
        // The user to whom a group belongs makes groups of any name in it, as root of a container of LXC does.
        let is_of_user = !self.owners.contains(&metadata.uid());
        let parent = path.rsplit('/').next().unwrap_or(path);
        let Ok(entries) = std::fs::read_dir(folder) else { return };
        let mut of_users: Option<(PathBuf, String)> = None;
        for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            if *visited >= MAX_VISITED {
                self.is_partial = true;
                return;
            }
            *visited += 1;
            let Ok(name) = entry.file_name().into_string() else { continue };
            if path.is_empty() && name == OF_USERS {
                of_users = Some((entry.path(), name));
                continue;
            }
            let below = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
            let mut thing = thing(&name, parent);
            if is_of_user || below.split('/').next() == Some(OF_USERS) {
                thing = thing.and_then(Thing::of_user);
            }
            let is_open = matches!(thing, None | Some(Thing::Pod(_)));
            if self.things.len() < cgroup::MAX_GROUPS {
                self.things.extend(thing.map(|thing| (below.clone(), thing)));
            } else {
                self.is_partial |= thing.is_some();
            }
            if is_open {
                self.walk(&entry.path(), &below, depth, visited);
            }
        }
        // However many there are, all others have been found.
        if let Some((folder, name)) = of_users {
            self.walk(&folder, &name, depth, visited);
        }
    }

    /// True if `entry` names the group with this path.
    pub fn names(&self, entry: &Match, group: &str) -> bool {
        match entry {
            Match::Cgroup(pattern) => cgroup::names(pattern, group),
            _ => self.things.get(group.trim_matches('/')).is_some_and(|thing| self.is_called(thing, entry)),
        }
    }

    fn is_called(&self, thing: &Thing, entry: &Match) -> bool {
        match (entry, thing) {
            (Match::Container(pattern), Thing::Container(id)) => {
                let name = self.containers.get(id).and_then(|(name, _)| name.as_deref());
                fits(pattern, name.unwrap_or(&id[..SHORT_DIGITS]))
            }
            (Match::Container(pattern), Thing::OfUser(id)) => fits(pattern, &id[..SHORT_DIGITS]),
            (Match::Pod(pattern), Thing::Pod(uid)) => {
                let wanted = pattern.split_once('/');
                let called = self.pods.get(uid).and_then(|name| name.split_once('/'));
                wanted.zip(called).is_some_and(|(wanted, called)| fits(wanted.0, called.0) && fits(wanted.1, called.1))
            }
            (Match::PodLabel(pattern), Thing::Pod(uid)) => self.has_mark(uid, pattern, |marks| &marks.labels),
            (Match::PodAnnotation(pattern), Thing::Pod(uid)) => self.has_mark(uid, pattern, |marks| &marks.annotations),
            (Match::Machine(pattern), Thing::Machine(name)) => fits(pattern, name),
            _ => false,
        }
    }

    /// True if the pod with this UID has a label or annotation, of those that `of` selects, that fits the pattern `KEY=VALUE`.
    fn has_mark(&self, uid: &str, pattern: &str, of: fn(&Marks) -> &BTreeMap<String, String>) -> bool {
        let marks = self.marks.get(uid).and_then(|(marks, _)| marks.as_ref()).map(of);
        let wanted = pattern.split_once('=').zip(marks);
        wanted.is_some_and(|((key, value), marks)| marks.get(key).is_some_and(|known| fits(value, known)))
    }

    /// Paths, relative to `cgroups`, of the groups that `entry` names.
    ///
    /// # Errors
    /// As [`cgroup::find`].
    pub fn find(&self, cgroups: &Path, entry: &Match) -> Result<Vec<String>, Error> {
        match entry {
            Match::Cgroup(pattern) => cgroup::find(cgroups, pattern),
            _ => {
                let named = self.things.iter().filter(|(_, thing)| self.is_called(thing, entry));
                Ok(named.map(|(group, _)| group.clone()).collect())
            }
        }
    }
}

/// True if a name or the like, with the number of searches for it, is not known and a further search may find it.
fn is_to_be_asked<T>((known, tries): &(Option<T>, u8)) -> bool {
    known.is_none() && *tries < MAX_TRIES
}

/// The thing whose group has the folder `folder` in the folder `parent`; `None` if it is another group.
fn thing(folder: &str, parent: &str) -> Option<Thing> {
    if let Some(machine) = machine_in(folder).filter(|_| is_of_machine(folder, parent)) {
        return Some(Thing::Machine(machine_name(&machine)));
    }
    let scope = folder.strip_suffix(".scope");
    let slice = folder.strip_suffix(".slice").filter(|slice| slice.contains("kubepods"));
    if let Some((_, uid)) = slice.and_then(|slice| slice.rsplit_once("-pod")) {
        // A dash separates the levels of a slice.
        return Some(Thing::Pod(uid.replace('_', "-")));
    }
    if let Some(uid) = folder.strip_prefix("pod").filter(|uid| !uid.is_empty())
        && ["kubepods", "burstable", "besteffort"].contains(&parent)
    {
        return Some(Thing::Pod(uid.to_owned()));
    }
    let (runtime, id) = scope.unwrap_or(folder).rsplit_once('-').unwrap_or(("", folder));
    // The monitor of a container has a group of its own, of the same ID.
    let is_container = id.len() == ID_DIGITS && id.bytes().all(|digit| digit.is_ascii_hexdigit());
    let is_pod = runtime.is_empty() && parent == OF_PODMAN;
    (is_container && !is_pod && !runtime.ends_with("conmon")).then(|| Thing::Container(id.to_owned()))
}

/// A machine's name in that of its group, `qemu-1-db`; `None` if no group of a machine has such a name.
fn machine_in(folder: &str) -> Option<String> {
    let scope = || Some(unescaped(folder.strip_prefix("machine-")?.strip_suffix(".scope")?, "\\x", 2, 16));
    let without_systemd = ENDS.iter().find_map(|end| folder.strip_suffix(end));
    without_systemd.map(str::to_owned).or_else(scope)
}

/// True if a group with a machine's name is one of a machine in a group `parent`: `machine.slice`, a slice below it, or for
/// libvirt's names any slice, as partitions have names of the operator's; without systemd `machine` or a partition.
fn is_of_machine(folder: &str, parent: &str) -> bool {
    if ENDS.iter().any(|end| folder.ends_with(end)) {
        return parent == "machine" || parent.ends_with(".partition");
    }
    let is_of_libvirt = MACHINES.iter().any(|(start, _)| folder.starts_with(start));
    let is_slice = parent.ends_with(".slice") && (is_of_libvirt || parent.starts_with("machine-"));
    parent == "machine.slice" || is_slice || parent.ends_with(".partition")
}

/// A virtual machine's name in that of its group, which libvirt makes of driver, number and name: `qemu-1-db`.
fn machine_name(machine: &str) -> String {
    let parts = machine.split_once('-').and_then(|(_, rest)| rest.split_once('-'));
    let of_libvirt = parts.filter(|(number, name)| number.parse::<u32>().is_ok() && !name.is_empty());
    of_libvirt.map_or(machine, |(_, name)| name).to_owned()
}

/// The name of a machine as libvirt writes it into that of the group: with the characters of names of hosts alone.
fn in_group(machine: &str) -> String {
    let mut name = String::new();
    for character in machine.chars() {
        let separates = matches!(character, '.' | '-') && !name.is_empty() && !name.ends_with(['.', '-']);
        if character.is_ascii_alphanumeric() || separates {
            name.push(character);
        }
    }
    name.trim_end_matches(['.', '-']).to_owned()
}

/// The name of the container with this ID, from the files of its runtime; `None` if no file has it.
fn container(roots: &Roots, id: &str) -> Option<String> {
    let json = |path: &Path| -> Option<Value> { serde_json::from_str(&roots::text(path).ok()?).ok() };
    let docker = roots.root.join("var/lib/docker/containers").join(id).join("config.v2.json");
    if let Some(name) = json(&docker).as_ref().and_then(|config| config.get("Name")?.as_str()) {
        return Some(name.trim_start_matches('/').to_owned());
    }
    let annotated = |path: &Path| -> Option<String> {
        let config = json(path)?;
        let annotations = config.get("annotations")?;
        let name = ANNOTATIONS.iter().find_map(|key| annotations.get(*key)?.as_str());
        name.map(str::to_owned)
    };
    let tasks = TASKS.map(|tasks| roots.root.join(tasks));
    let mut namespaces: Vec<PathBuf> = Vec::new();
    for folder in &tasks {
        namespaces.extend(roots::names(folder).unwrap_or_default().iter().map(|namespace| folder.join(namespace)));
    }
    let of_containerd = |namespace: &PathBuf| annotated(&namespace.join(id).join("config.json"));
    let of_crio = || {
        let folder = roots.root.join("run/containers/storage/overlay-containers").join(id);
        annotated(&folder.join("userdata/config.json"))
    };
    namespaces.iter().find_map(of_containerd).or_else(of_crio).or_else(|| {
        let store = roots.root.join("var/lib/containers/storage/overlay-containers");
        let files = ["containers.json", "volatile-containers.json"].into_iter();
        files.filter_map(|file| json(&store.join(file))).find_map(|list| of_podman(&list, id))
    })
}

/// The name of the container with this ID in a list of containers of the library that Podman uses.
fn of_podman(list: &Value, id: &str) -> Option<String> {
    let is_it = |container: &&Value| container.get("id").and_then(Value::as_str) == Some(id);
    let container = list.as_array()?.iter().find(is_it)?;
    container.get("names")?.get(0)?.as_str().map(str::to_owned)
}

/// `NAMESPACE/NAME` of this host's pods by UID, from the folders of their logs.
fn pods(roots: &Roots) -> BTreeMap<String, String> {
    let folders = roots::names(&roots.root.join("var/log/pods")).unwrap_or_default();
    let named = folders.iter().filter_map(|folder| {
        let (namespace, rest) = folder.split_once('_')?;
        let (name, uid) = rest.rsplit_once('_')?;
        Some((uid.to_owned(), format!("{namespace}/{name}")))
    });
    named.collect()
}

#[cfg(test)]
#[path = "groups_tests.rs"]
mod tests;
