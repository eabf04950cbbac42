//! The enforcement point for control groups of a device with a latency target: finds groups, reads their counters, and writes
//! limits of noisy ones.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex};

use evenkeel_control::response::ClientId;
use evenkeel_control::{Duration, Instant};
use evenkeel_policy::config::Match;

use super::cgroup::{Unable, has_controller};
use super::groups::{Group, Groups, counts_here};
use super::{Errors, Tick};
use crate::actuator::io_max::{Change, Limits};
use crate::aside::Aside;
use crate::aside::lock;
use crate::config::{Config, LocalConfig};
use crate::discovery::groups::Names;
use crate::discovery::roots::{self, Roots};
use crate::discovery::stack::{self, Limited, NotUsable};
use crate::discovery::watch::Watch;
use crate::journal::Journal;
use crate::loops::Due;
use crate::loops::local;
use crate::loops::record::{At, PoolState};
use crate::sensor::cgroup;
use crate::sensor::diskstats::{DeviceNumber, Reading, Tracker};
use crate::sensor::pressure;

/// Interval between searches for the device and for groups, and between checks for limits of other programs.
const SEARCH_EVERY: Duration = Duration::from_secs(1);
/// Interval between searches for groups while the kernel reports no change of them: it does not report a controller that is
/// switched on, and the runtime does not report a pod that it starts late.
const FOLLOW_EVERY: Duration = Duration::from_secs(10);
/// Interval between searches for a device for which all block devices of the host have to be read. That of a path is searched
/// for at once if another file system is mounted there.
const SURVEY_EVERY: Duration = Duration::from_secs(10);
/// Limits that differ by at most this part are not written: the controller corrects an error of this size by itself.
const SAME: f64 = 0.03;
/// Largest number of groups whose counters are read in one tick; of more groups each is read in turn. With 500 groups each is
/// read about once a second, which is the time over which loads are smoothed.
const MOST_READ: usize = 50;
/// Largest number of limits that are written in one tick: ends of limits, then the largest changes. A write with its lines in
/// the journal takes some 50 us: at ten ticks a second 0.5 % of a processor.
const MOST_WRITTEN: usize = 10;
/// Number of groups after which the search below groups goes on in the next tick.
const MOST_WALKED: usize = 200;
/// Longest wait in one search for files of container runtimes, and for the device at a path: they may be on a device that is
/// busy or hangs. The host's lock is held meanwhile; what comes later counts in the next search.
const FILES_BUDGET: std::time::Duration = std::time::Duration::from_millis(if cfg!(test) { 30_000 } else { 20 });
/// Longest wait for the devices at all paths when a policy is taken over.
const OPEN_BUDGET: std::time::Duration = std::time::Duration::from_secs(1);
/// Number of levels of groups below a group that are searched for tasks.
const MAX_DEPTH: u32 = 8;

/// The point's data of a control group.
#[derive(Debug, Default)]
struct Known {
    id: ClientId,
    /// Index of the group's tenant in the configuration.
    tenant: usize,
    /// Number of times in succession that the row could not be written or restored; of many rows those with the fewest
    /// failures come first.
    refused: u32,
    /// Numbers by which the kernel knows the group and the groups below it.
    numbers: Vec<u64>,
    /// True if the group's reads do not count for the target.
    noisy: bool,
}

impl Group<Known> {
    /// True if the group has been removed and another one of the same name made, which has no limits of the agent.
    fn is_anew(&self) -> bool {
        let number = std::fs::metadata(&self.folder).ok().map(|metadata| metadata.ino());
        number.zip(self.own.numbers.first()).is_some_and(|(number, known)| number != *known)
    }
}

/// The answer to a look at a device's entry.
#[derive(Debug)]
struct Look {
    /// Numbers of the file system's device and of the node at the entry's path; `None` if nothing is there. They differ once
    /// another file system is mounted.
    place: Option<(u64, u64)>,
    /// The device; `None` if the place is that of the look before.
    found: Option<Result<Limited, NotUsable>>,
}

impl Look {
    /// Looks for the device for the entry `name`, unless its place is `before`.
    fn at(roots: &Roots, name: &str, before: Option<Option<(u64, u64)>>) -> Self {
        let place = std::fs::metadata(name).ok().map(|metadata| (metadata.dev(), metadata.rdev()));
        let found = (before != Some(place)).then(|| stack::find(roots, name));
        Self { place, found }
    }
}

/// The enforcement point for one device with a latency target: its control groups, and the limits set for them.
#[derive(Default)]
pub struct Local {
    pub(crate) mind: local::Local,
    interval: Duration,
    roots: Roots,
    /// The device; `None` while it is not on this host.
    device: Option<Limited>,
    search_due: Due,
    survey_due: Due,
    /// Searches among all block devices, and at paths.
    looking: Aside<String, Look>,
    /// Place of the device's entry at the newest look; `None` before the first.
    place: Option<Option<(u64, u64)>>,
    /// The device that the newest search among all block devices has found.
    surveyed: Option<Limited>,
    /// The reason why that search has found none, with its cure.
    unusable: Option<String>,
    /// Names of the containers, pods and virtual machines of this host, if the policy names some.
    names: Names,
    /// Reports changes of groups.
    watch: Watch,
    follow_due: Due,
    /// True if the newest search for groups has found all that there is to find until groups change.
    is_settled: bool,
    /// Notes of the newest search for groups.
    found_notes: Vec<String>,
    groups: Groups<Known>,
    /// Index of the group whose counters are read next.
    next: usize,
    /// Index of the group below which is searched next; `None` until the next search for groups.
    walked: Option<usize>,
    notes: Vec<String>,
    buffer: Vec<u8>,
    /// True if other devices, groups or noisy groups have to be watched than before.
    changed: bool,
    /// True if tenants' limits are totals over all members of a cluster.
    shares_totals: bool,
}

/// Opens an enforcement point for each device of `config` with a latency target for control groups; `cgroups` is where cgroup
/// v2 is mounted. Changes no setting.
///
/// # Errors
/// A message that names the missing part and its cure. A device that is not on this host is no error: all hosts may share the
/// policy.
pub fn open(config: &Config, roots: &Roots, cgroups: &Path) -> Result<Vec<Local>, Unable> {
    if is_any_here(roots, config.local.values().map(|local| local.device.as_str())) {
        has_controller(cgroups)?;
    }
    let interval = config.agent.interval;
    let open = |(name, local): (&String, &LocalConfig)| {
        let mind = local::Local::new(name, local, interval);
        let mind = mind.map_err(|problem| Unable::Setting { name: name.clone(), problem })?;
        Ok(Local {
            mind,
            interval,
            roots: roots.clone(),
            groups: Groups::new(cgroups),
            changed: true,
            ..Local::default()
        })
    };
    config.local.iter().map(open).collect()
}

/// A path, after the root of the file trees in which its device is searched for.
type AtRoot = (PathBuf, String);

/// True if the device for one of the entries `names` is on this host. A path that does not answer counts as absent.
fn is_any_here<'a>(roots: &Roots, names: impl Iterator<Item = &'a str>) -> bool {
    /// Searches at paths, of all policies of the process: a path that hangs keeps one thread, however often policies are read.
    static LOOKING: LazyLock<Mutex<Aside<AtRoot, bool>>> = LazyLock::new(Mutex::default);
    let (files, others): (Vec<&str>, Vec<&str>) = names.partition(|name| stack::is_file(name));
    if others.into_iter().any(|name| stack::find(roots, name).is_ok()) {
        return true;
    }
    if files.is_empty() {
        return false;
    }
    let paths: Vec<AtRoot> = files.into_iter().map(|name| (roots.root.clone(), name.to_owned())).collect();
    let roots = roots.clone();
    let find = move |path: &AtRoot| stack::find(&roots, &path.1).is_ok();
    finds_any(&mut lock(&LOOKING), &paths, OPEN_BUDGET, find)
}

/// True if `find` is true for one of the paths within the time `budget`. A path whose earlier search still hangs is not
/// searched again.
fn finds_any(
    looking: &mut Aside<AtRoot, bool>,
    paths: &[AtRoot],
    budget: std::time::Duration,
    find: impl Fn(&AtRoot) -> bool + Clone + Send + 'static,
) -> bool {
    // Late answers of earlier policies.
    while looking.answer(std::time::Duration::ZERO).is_some() {}
    let mut asked = BTreeSet::new();
    for path in paths {
        if looking.ask(path, find.clone()) {
            asked.insert(path);
        }
    }
    let end = std::time::Instant::now() + budget;
    while !asked.is_empty() {
        let left = end.saturating_duration_since(std::time::Instant::now());
        let Some((path, is_here)) = looking.answer(left) else { return false };
        if is_here && paths.contains(&path) {
            return true;
        }
        asked.remove(&path);
    }
    false
}

/// Adds the numbers of the group with this folder, and of the groups below it, to `numbers`.
fn numbers_below(folder: &Path, depth: u32, numbers: &mut Vec<u64>) {
    let Ok(metadata) = std::fs::metadata(folder) else { return };
    numbers.push(metadata.ino());
    // A folder of the kernel has two links, and one more for each folder in it.
    if metadata.nlink() == 2 {
        return;
    }
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let Some(deeper) = depth.checked_sub(1).filter(|_| numbers.len() < cgroup::MAX_GROUPS) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        if numbers.len() >= cgroup::MAX_GROUPS {
            break;
        }
        numbers_below(&entry.path(), deeper, numbers);
    }
}

impl Local {
    /// Name of the point's device in the configuration.
    pub fn name(&self) -> &str {
        self.mind.name()
    }

    /// From now on tenants' limits are totals over all members of a cluster: the least part of each applies here, until
    /// [`local::Local::set_part`] is called.
    pub fn share_totals(&mut self) {
        self.shares_totals = true;
    }

    /// True if the devices or groups to watch have changed since the previous call.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Numbers of the devices whose reads are timed.
    pub fn devices(&self) -> impl Iterator<Item = DeviceNumber> {
        self.device.iter().flat_map(|device| device.timed.iter().copied())
    }

    /// Paths of the control groups, each with true if its reads count for the target, as it is not noisy, and with the numbers of
    /// the group and of those below it.
    pub fn watched(&self) -> impl Iterator<Item = (&str, bool, &[u64])> {
        let groups = self.groups.list.iter();
        groups.map(|group| (group.name.as_str(), !group.own.noisy, group.own.numbers.as_slice()))
    }

    /// Takes in single reads of the group with this path, beside [`local::Local::count`], in the interval that ends at `now`.
    pub fn count_of(&mut self, group: &str, now: Instant, bucket: usize, reads: u64) {
        if let Ok(at) = self.groups.place(group) {
            self.mind.count_of(self.groups.list[at].own.id, now, bucket, reads);
        }
    }

    /// Takes the place of `old`, the point of the previous policy. If at most the value of the target differs, `old` goes on
    /// with the new one. If the device is the same, the new point takes over the limits of `old`: they stay in force until
    /// the new point sets its own, and are restored for groups that the new policy does not throttle. If the device differs,
    /// `old` is returned and has to be ended.
    #[must_use]
    pub fn succeed(&mut self, mut old: Self) -> Option<Self> {
        if old.mind.adopt(self.mind.config(), self.interval) {
            *self = old;
        } else if old.mind.config().device == self.mind.config().device && old.device.is_some() {
            self.mind.take_parts(&mut old.mind);
            self.device = old.device;
            (self.surveyed, self.unusable, self.place) = (old.surveyed, old.unusable, old.place);
            (self.looking, self.names) = (old.looking, old.names);
            self.groups.inherit(old.groups);
        } else {
            return Some(old);
        }
        None
    }

    /// Ends this point, and restores all limits that the point has set.
    pub fn end(self, journal: &mut Journal, errors: &mut Errors) {
        self.groups.end(journal, errors);
    }

    /// Takes the point's device for this tick, if the point has one. Call it for each point before the first [`Self::tick`]: an
    /// earlier point that is new waits until this one has restored its limits.
    pub fn claim(&self, tick: &mut Tick<'_>) {
        for number in self.device.iter().flat_map(|device| &device.timed) {
            tick.taken.entry(*number).or_insert_with(|| self.mind.name().to_owned());
        }
    }

    /// Measures, decides, and sets limits. `tracker`: the devices' figures; `None` if they could not be read. Call it at every
    /// tick of the agent.
    pub fn tick(&mut self, now: Instant, tracker: Option<&Tracker>, tick: &mut Tick<'_>) {
        if self.search_due.is_over(now, SEARCH_EVERY) {
            self.search(now, tick);
        } else if let Some(other) = self.device.as_ref().and_then(|device| self.other_at(device, tick)) {
            self.lose(tick);
            (self.device, self.changed) = (None, true);
            self.notes = vec![self.is_taken(&other)];
        }
        let Some(device) = &self.device else { return };
        let (disk, counts) = (device.number, device.whole.iter().copied().all(counts_here));
        tick.taken.extend(device.timed.iter().map(|number| (*number, self.mind.name().to_owned())));
        self.walk(tick);
        self.measure(now, disk, tick);
        self.mind.share_totals(self.shares_totals && counts);
        let sample = tracker.and_then(|tracker| tracker.get(disk)).and_then(Reading::sample);
        self.mind.tick(now, sample);
        for known in self.groups.list.iter_mut().map(|group| &mut group.own) {
            let noisy = self.mind.is_noisy(known.id);
            self.changed |= noisy != known.noisy;
            known.noisy = noisy;
        }
        self.act(sample.is_some_and(|sample| sample.is_stuck()), tick);
    }

    /// Name of another point that throttles groups for one of the devices that are timed for `device`.
    fn other_at(&self, device: &Limited, tick: &Tick<'_>) -> Option<String> {
        let mut points = device.timed.iter().filter_map(|number| tick.taken.get(number));
        points.find(|point| point.as_str() != self.mind.name()).cloned()
    }

    /// The note on a device that another point has.
    fn is_taken(&self, other: &str) -> String {
        let device = &self.mind.config().device;
        format!("pool {other} controls the disk of {device}: groups are limited on whole disks; keep one of the pools")
    }

    /// Searches for the device and its groups, and for limits that other programs have set meanwhile.
    fn search(&mut self, now: Instant, tick: &mut Tick<'_>) {
        self.notes.clear();
        let name = self.mind.config().device.clone();
        let mut found = if stack::is_file(&name) { None } else { stack::named(&self.roots, &name) };
        if found.is_none() {
            self.look(now, &name);
            let folder = |device: &Limited| self.roots.sys.join(format!("dev/block/{}", device.number));
            found = self.surveyed.clone().filter(|device| folder(device).exists());
            if let Some(device) = &mut found {
                device.sequence = roots::sequence_of(&folder(device));
            }
        }
        let other = found.as_ref().and_then(|device| self.other_at(device, tick));
        found = found.filter(|_| other.is_none());
        let number = |device: &Option<Limited>| device.as_ref().map(|device| device.number);
        let (before, after) = (number(&self.device), number(&found));
        let sequence = |device: &Option<Limited>| device.as_ref().and_then(|device| device.sequence.clone());
        if before != after || sequence(&self.device) != sequence(&found) {
            if let Some(before) = before.filter(|_| other.is_none()) {
                self.log_move(before, after);
            }
            self.lose(tick);
        }
        self.changed |= self.device != found;
        self.device = found;
        let Some(disk) = self.device.as_ref().map(|device| device.number) else {
            let searching = || self.unusable.as_ref().map(|why| format!("the agent searches for the device: {why}"));
            let note = other.map(|other| self.is_taken(&other)).or_else(searching);
            self.notes.extend(note);
            return;
        };
        let is_due = self.follow_due.is_over(now, FOLLOW_EVERY);
        // The changes since the previous search.
        if self.watch.has_changed() || is_due || !self.is_settled {
            let others = self.notes.len();
            self.follow(disk, tick);
            self.found_notes = self.notes[others..].to_vec();
        } else {
            self.notes.extend_from_slice(&self.found_notes);
        }
        self.groups.restore_inherited(tick);
        let mut groups = self.groups.list.iter().take(MOST_READ);
        if self.mind.wants_pressure()
            && !self.groups.list.is_empty()
            && groups.all(|group| pressure::stalled(&group.folder).is_none())
        {
            self.notes.push(format!(
                "latency is not measured: the kernel counts no read of the device, and io.pressure of its groups cannot be read; echo 1 > /sys/dev/block/{disk}/queue/iostats, or boot with psi=1"
            ));
        }
        if self.mind.is_untimed() {
            self.notes.push(format!(
                "no percentile is measured: groups send reads, but the kernel reports no completed read for device {disk}; write percentile = \"mean\", or with NVMe multipath boot with nvme_core.multipath=N"
            ));
        }
        self.walked.get_or_insert(0);
    }

    /// Looks for the device for the entry `name` on another thread, as its path may hang, and takes in an answer that comes
    /// soon. Of a path it looks at each call, of other entries once in [`SURVEY_EVERY`].
    fn look(&mut self, now: Instant, name: &str) {
        let is_due = self.survey_due.is_over(now, SURVEY_EVERY);
        let mut within = std::time::Duration::ZERO;
        if is_due || stack::is_file(name) {
            let (roots, before) = (self.roots.clone(), self.place.filter(|_| !is_due));
            if self.looking.ask(&name.to_owned(), move |name| Look::at(&roots, name, before)) {
                within = FILES_BUDGET;
            } else {
                self.survey_due = Due::default();
            }
        }
        if let Some((_, look)) = self.looking.answer(within) {
            self.place = Some(look.place);
            if let Some(surveyed) = look.found {
                self.unusable = surveyed.as_ref().err().map(NotUsable::note);
                self.surveyed = surveyed.ok();
            }
        } else if within.is_zero() && self.looking.open() > 0 {
            self.notes.push(format!(
                "the search for the device of {name} does not answer, and the agent goes on with the result of the search before; look for a disk or server that hangs"
            ));
        }
    }

    /// Logs that the entry of the device leads from device `before` to another one, which may have the same number.
    fn log_move(&self, before: DeviceNumber, after: Option<DeviceNumber>) {
        let (pool, name) = (self.mind.name(), &self.mind.config().device);
        match after {
            Some(after) if after == before => tracing::warn!(
                "pool {pool}: {name} led to device {before}, and leads to another device with this number or to another medium: the agent sets limits on it again"
            ),
            Some(after) => tracing::warn!(
                "pool {pool}: {name} is on device {after} now, and no longer on {before}: the agent restores the limits of control groups on {before}, and sets limits on {after} from now on"
            ),
            None => tracing::warn!(
                "pool {pool}: {name} leads to no device now, and led to {before}: the agent restores the limits of control groups on {before}, and goes on searching"
            ),
        }
    }

    /// Searches below groups for others, and for limits that other programs have set; of many groups some at each tick.
    fn walk(&mut self, tick: &mut Tick<'_>) {
        let Some(mut at) = self.walked else { return };
        let mut walked = 0;
        while let Some(group) = self.groups.list.get_mut(at).filter(|_| walked < MOST_WALKED) {
            let mut numbers = Vec::new();
            numbers_below(&group.folder, MAX_DEPTH, &mut numbers);
            walked += numbers.len().max(1);
            at += 1;
            // One that is made anew is forgotten when its counters are read.
            if !group.own.numbers.is_empty() && numbers.first() != group.own.numbers.first() {
                continue;
            }
            self.changed |= numbers != group.own.numbers;
            group.own.numbers = numbers;
            if group.set.is_some() {
                tick.errors.take(group.row.read());
                if group.row.is_undone() {
                    // It is still the agent's: what another program sets next has to be noticed.
                    group.set = Some(Limits::NONE);
                    self.mind.in_force(group.own.id, Limits::NONE);
                }
            }
        }
        self.walked = (at < self.groups.list.len()).then_some(at);
    }

    /// Restores all limits after the device has disappeared or another device has got its number.
    fn lose(&mut self, tick: &mut Tick<'_>) {
        self.is_settled = false;
        self.groups.leave(0..self.groups.list.len(), tick, |known| self.mind.leave(known.id));
        if self.device.is_some() {
            self.groups.restore_inherited(tick);
        }
    }

    /// Adds control groups that have appeared since the previous search.
    fn follow(&mut self, disk: DeviceNumber, tick: &mut Tick<'_>) {
        self.watch.follow(&self.groups.root);
        self.is_settled = self.watch.is_complete();
        let tenants = self.mind.config().tenants.iter().enumerate();
        let entries: Vec<(usize, Match)> =
            tenants.flat_map(|(tenant, terms)| terms.groups.iter().map(move |entry| (tenant, entry.clone()))).collect();
        if self.mind.config().needs_names() {
            self.names.want_marks(self.mind.config().needs_marks());
            self.names.refresh(&self.roots, &self.groups.root, FILES_BUDGET);
            self.leave_renamed(tick);
            self.is_settled &= !self.names.wants_more();
            if let Some(why) = self.names.unmarked() {
                self.notes.push(format!(
                    "{why}: labels and annotations of new pods are not known; check that the container runtime answers: `crictl pods`"
                ));
            }
            if self.names.are_partial() {
                let partial = "this host has more control groups than are searched for containers, pods and virtual machines, and some of those are not throttled; name groups by their paths: match = [\"cgroup:...\"]";
                self.notes.push(partial.to_owned());
            }
            if self.names.are_late() {
                let late = "container runtimes or their files do not answer at present, perhaps because a disk hangs: containers and pods whose names are not known go by their IDs; check both: `crictl ps`";
                self.notes.push(late.to_owned());
            }
        }
        for (tenant, entry) in entries {
            let config = self.mind.config();
            let entry = (config.tenants.get(tenant).map_or("", |terms| terms.name.as_str()), &entry);
            let is_its = |group: &str| config.tenant_among(&self.names, group) == Some(tenant);
            let found = self.groups.find(&self.names, entry, is_its, &mut self.notes, &mut tick.errors);
            self.is_settled &= found.is_some();
            for name in found.into_iter().flatten() {
                self.take_in(disk, tenant, name, tick);
            }
        }
    }

    /// Forgets the groups that belong to another tenant, or to none, now that more names are known; [`Self::follow`] takes
    /// them in again. Of the others it records the entries that name them now.
    fn leave_renamed(&mut self, tick: &mut Tick<'_>) {
        let mut renamed = Vec::new();
        for (at, group) in self.groups.list.iter().enumerate() {
            match self.mind.config().named_by(&self.names, &group.name) {
                Some(by) if by.tenant == group.own.tenant => self.mind.set_named_by(group.own.id, by),
                _ => renamed.push(at),
            }
        }
        self.leave(renamed, tick);
    }

    /// Forgets the groups at these places, which are in order.
    fn leave(&mut self, places: Vec<usize>, tick: &mut Tick<'_>) {
        if !places.is_empty() {
            (self.changed, self.is_settled) = (true, false);
        }
        self.groups.leave(places.into_iter(), tick, |known| self.mind.leave(known.id));
    }

    /// Name of a known group above or below the group of this name.
    fn kin_of(&self, name: &str) -> Option<String> {
        let above = name.match_indices('/').find_map(|(end, _)| self.groups.place(&name[..end]).ok());
        let prefix = format!("{name}/");
        let next = self.groups.list.partition_point(|known| known.name < prefix);
        let known = above.or(Some(next)).and_then(|at| self.groups.list.get(at));
        known.filter(|known| above.is_some() || known.name.starts_with(&prefix)).map(|known| known.name.clone())
    }

    fn take_in(&mut self, disk: DeviceNumber, tenant: usize, name: String, tick: &mut Tick<'_>) {
        if let Some(other) = self.kin_of(&name) {
            return self.notes.push(format!(
                "{name} is left alone, as it lies above or below {other}: limits and counters of a group are for all groups below it as well; name one of the two"
            ));
        }
        let Some(stat) = self.groups.counters(&name, &mut self.notes, &mut tick.errors) else {
            self.is_settled = false;
            return;
        };
        let config = self.mind.config();
        let is_owed = |at: usize| config.tenants.get(at).is_some_and(|terms| terms.guaranteed);
        // The guarantee's loop finds groups by their paths alone, also where a name makes this one another tenant's.
        let guaranteed = is_owed(tenant) || config.tenant_of(&name).is_some_and(is_owed);
        let by = config.named_by(&self.names, &name).unwrap_or_default();
        let Some(id) = self.mind.join(tenant, &name, guaranteed) else { return };
        self.mind.set_named_by(id, by);
        if guaranteed && let Some((row, ..)) = self.groups.inherited.remove(&name) {
            // The guarantee's loop reads the limits in this tick.
            tick.restore(|journal| row.restore(journal));
        }
        let known = Known { id, tenant, refused: 0, numbers: Vec::new(), noisy: false };
        let group = self.groups.take_in(name, stat, disk, known);
        if group.set.is_none() && group.row.is_foreign() {
            let limits = tick.errors.take(group.row.read()).flatten();
            self.mind.is_foreign(id, limits.unwrap_or(Limits::NONE));
        } else {
            self.mind.in_force(id, group.set.unwrap_or(Limits::NONE));
        }
        group.own.numbers = std::fs::metadata(&group.folder).map(|metadata| vec![metadata.ino()]).unwrap_or_default();
        self.changed = true;
    }

    /// Reads the counters of the groups whose turn it is; forgets groups that are gone.
    fn measure(&mut self, now: Instant, disk: DeviceNumber, tick: &mut Tick<'_>) {
        let count = self.groups.list.len().min(MOST_READ);
        let mut gone = Vec::new();
        for turn in 0..count {
            let at = (self.next + turn) % self.groups.list.len();
            let group = &self.groups.list[at];
            // A folder that is made anew has other files; the old ones stay open.
            if group.set.is_some() && !group.stat.path().exists() {
                gone.push(at);
                continue;
            }
            match tick.errors.take(group.stat.usage(&mut self.buffer, disk, None)) {
                Some(Some(usage)) => {
                    let total = if self.mind.wants_pressure() { pressure::stalled(&group.folder) } else { None };
                    if let Some(total) = total {
                        self.mind.stalled(group.own.id, total);
                    }
                    self.mind.measure(group.own.id, now, usage.cached);
                }
                Some(None) => gone.push(at),
                None => {}
            }
        }
        self.next += count;
        gone.sort_unstable();
        self.leave(gone, tick);
        if self.next >= self.groups.list.len() {
            self.next = 0;
        }
    }

    /// Sets and ends limits. `is_stuck`: the device completes no request; then no limit is set, because the kernel stops until
    /// all requests are completed when it sets the first one of a device.
    fn act(&mut self, is_stuck: bool, tick: &mut Tick<'_>) {
        let Some(journal) = tick.journal.as_deref_mut() else { return };
        let mut ending: Vec<(u32, usize)> = Vec::new();
        let mut changes: Vec<(u32, f64, usize, Limits)> = Vec::new();
        for (at, group) in self.groups.list.iter().enumerate() {
            let wanted = self.mind.limits(group.own.id);
            if wanted == Limits::NONE && !group.row.is_foreign() {
                // Limits that are written and not confirmed are in force as well.
                if group.set.is_some() || group.row.before().is_some() {
                    ending.push((group.own.refused, at));
                }
                continue;
            }
            if is_stuck {
                continue;
            }
            let by = match group.set {
                Some(_) if group.row.is_foreign() => f64::INFINITY,
                None if group.row.is_foreign() => continue,
                Some(set) if set.is_near(&wanted, SAME) => continue,
                Some(set) => difference(&set, &wanted),
                None => f64::INFINITY,
            };
            changes.push((group.own.refused, by, at, wanted));
        }
        ending.sort_unstable();
        let (mut released, mut failed) = (0, 0);
        for (_, at) in ending {
            if released >= MOST_WRITTEN || failed >= MOST_WRITTEN {
                break;
            }
            let group = &mut self.groups.list[at];
            if tick.errors.take(group.row.release(journal)).is_some() {
                released += 1;
                (group.set, group.own.refused) = (None, 0);
                self.mind.in_force(group.own.id, Limits::NONE);
            } else {
                failed += 1;
                group.own.refused = group.own.refused.saturating_add(1);
            }
        }
        changes.sort_by(|one, other| one.0.cmp(&other.0).then(other.1.total_cmp(&one.1)));
        changes.truncate(MOST_WRITTEN - released);
        changes.sort_by_key(|(_, _, at, _)| *at);
        let (mut asked, mut rows) = (Vec::with_capacity(changes.len()), Vec::with_capacity(changes.len()));
        for (.., at, wanted) in changes {
            // Its empty row is no other program's work. It is forgotten when its counters are read.
            let Some(group) = self.groups.list.get_mut(at).filter(|group| !group.is_anew()) else { continue };
            // Limits of other programs from before are upper bounds.
            let found = tick.errors.take(group.row.read()).flatten();
            let before = group.row.before().or(found);
            asked.push(wanted);
            rows.push((at, wanted.at_most(before.unwrap_or(Limits::NONE))));
        }
        for (wanted, (at, change)) in asked.into_iter().zip(self.groups.write(&rows, tick)) {
            let group = &mut self.groups.list[at];
            group.own.refused = if change.is_some() { 0 } else { group.own.refused.saturating_add(1) };
            match change {
                Some(Change::Same | Change::Made) => {
                    group.set = Some(wanted);
                    self.mind.in_force(group.own.id, wanted);
                }
                Some(Change::Foreign(limits)) => {
                    tracing::warn!(
                        "another program has set limits in io.max of {}: they stay, and the group is not throttled for pool {} until the agent restarts",
                        group.name,
                        self.mind.name()
                    );
                    group.set = None;
                    self.mind.is_foreign(group.own.id, limits);
                }
                // A group that is gone is forgotten in the next interval.
                Some(Change::Gone) | None => {}
            }
        }
    }

    /// The newest measurements and decisions of this enforcement point.
    pub fn state(&self) -> PoolState {
        let mut state = PoolState { notes: self.notes.clone(), ..self.mind.state() };
        if let (At::Cgroup(at), Some(device)) = (&mut state.at, &self.device) {
            at.device_number = device.number.to_string();
        }
        state
    }
}

/// The largest relative difference between the limits in force and other ones; infinite if one of them is new or ends.
fn difference(set: &Limits, wanted: &Limits) -> f64 {
    let each = set.all().into_iter().zip(wanted.all()).map(|both| match both {
        (None, None) => 0.0,
        (Some(set), Some(wanted)) => set.abs_diff(wanted) as f64 / set.max(1) as f64,
        _ => f64::INFINITY,
    });
    each.fold(0.0, f64::max)
}

#[cfg(test)]
#[path = "local_tests.rs"]
mod tests;
