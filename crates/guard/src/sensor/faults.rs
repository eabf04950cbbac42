//! Faults of block devices and of the devices below them, as sysfs shows them.
//!
//! | device | file | fault |
//! |---|---|---|
//! | SCSI, NVMe | `device/state` | the driver has given the device up, or waits for it |
//! | SCSI | `device/ioerr_cnt` | commands end with an error |
//! | device mapper | `dm/suspended` | the device takes no request |
//! | md | `md/degraded` | devices of the array are missing |
//! | with ext4 | `/sys/fs/ext4/NAME/errors_count` | the file system has found errors since its last check |
//!
//! The kernel counts failed requests of no other device, and no errors of xfs, in sysfs: its log alone has them. Paths of the
//! kernel's own NVMe multipath are not looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use evenkeel_control::{Duration, Instant};

use crate::discovery::roots::{self, Roots};

/// Largest number of layers of devices below a device that are searched; deeper stacks are mistakes or loops.
const MAX_DEPTH: u32 = 16;
/// Largest number of devices that are sampled.
const MAX_DEVICES: usize = 1_024;
/// Time for which commands that ended with an error count as a fault. A single sample with errors is none: drivers count commands
/// of tools such as smartctl as well.
const RECENT: Duration = Duration::from_secs(60);

/// The fault of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Every request fails; the driver's word for the state.
    Offline(String),
    /// Requests wait; the kernel's word for the state.
    Waits(String),
    /// Commands end with an error.
    Failed {
        /// Number of these commands, without a pause of a minute.
        commands: u64,
        /// Time since the first sample that showed some of them.
        since: Duration,
        /// Time since the last sample that showed some of them.
        last: Duration,
    },
    /// An array lacks this number of devices.
    Degraded(u64),
    /// The ext4 file system on the device has found this number of errors since its last check.
    FileSystem(u64),
}

impl Fault {
    /// True if no request to the device completes.
    const fn is_of_state(&self) -> bool {
        matches!(self, Self::Offline(_) | Self::Waits(_))
    }
}

/// A device with a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faulty {
    /// The kernel's name of the device.
    pub device: String,
    /// Names of the pools with the device.
    pub pools: BTreeSet<String>,
    /// True if the pools go on without the device: it is below a multipath device or an array with redundancy, whose other
    /// devices are not all down.
    pub is_redundant: bool,
    /// The fault.
    pub fault: Fault,
}

/// A device below a pool.
#[derive(Debug)]
struct Used {
    pools: BTreeSet<String>,
    is_redundant: bool,
    /// The devices right below it, if it goes on without some of them.
    members: BTreeSet<PathBuf>,
}

/// Counts of commands that ended with an error.
#[derive(Clone, Copy, Debug)]
struct Errors {
    /// The kernel's total at the last sample.
    total: u64,
    /// Number of commands, and of samples that showed some, without a pause of [`RECENT`].
    commands: u64,
    looks: u64,
    since: Instant,
    last: Instant,
}

/// The facts about a device that the next sample needs.
#[derive(Debug, Default)]
struct Seen {
    /// The fault of the device's state.
    state: Option<Fault>,
    errors: Option<Errors>,
}

/// Finds the faults of devices, from one sample to the next.
#[derive(Debug, Default)]
pub struct Faults {
    /// By folder in sysfs.
    seen: BTreeMap<PathBuf, Seen>,
}

impl Faults {
    /// The faults at `now` of the devices in `used`, which are pairs of a pool's name and a device (number or kernel's name), and
    /// of the devices below these. A state counts from the second sample on that shows it: recoveries mostly take less.
    pub fn sample(&mut self, now: Instant, roots: &Roots, used: &[(String, String)]) -> Vec<Faulty> {
        let mut devices = BTreeMap::new();
        for (pool, device) in used {
            let class = if device.contains(':') { "dev/block" } else { "block" };
            add(&roots.sys.join(class).join(device), pool, false, MAX_DEPTH, &mut devices);
        }
        self.seen.retain(|folder, _| devices.contains_key(folder));
        let systems = roots.sys.join("fs/ext4");
        let mounted = roots::names(&systems).unwrap_or_default();
        let mut found: BTreeMap<PathBuf, Vec<Fault>> = BTreeMap::new();
        for folder in devices.keys() {
            let faults = self.seen.entry(folder.clone()).or_default().look(now, folder);
            found.insert(folder.clone(), faults);
        }
        // Nothing takes the place of all members at once.
        let is_down = |member: &PathBuf| found.get(member).is_some_and(|faults| faults.iter().any(Fault::is_of_state));
        let is_lost = |used: &&Used| !used.is_redundant && used.members.iter().all(is_down);
        let lost: BTreeSet<PathBuf> =
            devices.values().filter(is_lost).flat_map(|used| used.members.iter().cloned()).collect();
        let mut faulty = Vec::new();
        for (folder, Used { pools, is_redundant, .. }) in devices {
            let is_redundant = is_redundant && !lost.contains(&folder);
            let device = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let mut report = |device: &str, fault: Fault| {
                faulty.push(Faulty { device: device.to_owned(), pools: pools.clone(), is_redundant, fault });
            };
            found.remove(&folder).into_iter().flatten().for_each(|fault| report(&device, fault));
            // Names of partitions begin with that of the disk.
            let is_on = |name: &&String| {
                let rest = name.strip_prefix(device.as_str());
                rest.is_some_and(|rest| rest.is_empty() || folder.join(name.as_str()).exists())
            };
            for name in mounted.iter().filter(is_on) {
                let errors = number(&systems.join(name).join("errors_count"), 10).filter(|&errors| errors > 0);
                if let Some(errors) = errors {
                    report(name, Fault::FileSystem(errors));
                }
            }
        }
        faulty
    }
}

impl Seen {
    fn look(&mut self, now: Instant, folder: &Path) -> Vec<Fault> {
        let state = word(&folder.join("device/state")).and_then(of_state);
        let is_suspended = number(&folder.join("dm/suspended"), 10) == Some(1);
        let state = state.or_else(|| is_suspended.then(|| Fault::Waits("suspended".to_owned())));
        let before = std::mem::replace(&mut self.state, state.clone());
        let state = state.filter(|state| before.as_ref() == Some(state));
        let failed = number(&folder.join("device/ioerr_cnt"), 16).and_then(|total| self.count(now, total));
        let missing = number(&folder.join("md/degraded"), 10).filter(|&missing| missing > 0);
        state.into_iter().chain(failed).chain(missing.map(Fault::Degraded)).collect()
    }

    /// Takes in the kernel's total of commands that ended with an error.
    fn count(&mut self, now: Instant, total: u64) -> Option<Fault> {
        let errors = self.errors.get_or_insert(Errors { total, commands: 0, looks: 0, since: now, last: now });
        let more = total.saturating_sub(errors.total);
        errors.total = total;
        if now.since(errors.last) > RECENT {
            (errors.commands, errors.looks) = (0, 0);
        }
        if more > 0 {
            if errors.looks == 0 {
                errors.since = now;
            }
            errors.commands += more;
            errors.looks += 1;
            errors.last = now;
        }
        let Errors { commands, looks, since, last, .. } = *errors;
        (looks > 1).then(|| Fault::Failed { commands, since: now.since(since), last: now.since(last) })
    }
}

/// The fault that a state of the driver is; `None` if it is none.
fn of_state(state: String) -> Option<Fault> {
    match state.as_str() {
        "offline" | "transport-offline" | "dead" => Some(Fault::Offline(state)),
        "blocked" | "resetting" | "connecting" => Some(Fault::Waits(state)),
        _ => None,
    }
}

/// Adds the device with this folder, of a partition its disk, and the devices below it.
fn add(folder: &Path, pool: &str, is_redundant: bool, depth: u32, devices: &mut BTreeMap<PathBuf, Used>) {
    let disk = disk_of(folder);
    let Some(folder) = disk.filter(|disk| devices.len() < MAX_DEVICES || devices.contains_key(disk)) else { return };
    let new = || Used { pools: BTreeSet::new(), is_redundant, members: BTreeSet::new() };
    let used = devices.entry(folder.clone()).or_insert_with(new);
    let before = used.is_redundant;
    used.is_redundant &= is_redundant;
    let is_new = used.pools.insert(pool.to_owned());
    if !is_new && used.is_redundant == before {
        return;
    }
    let Some(depth) = depth.checked_sub(1) else { return };
    // Arrays without redundancy have no such file.
    let goes_on = folder.join("md/degraded").exists()
        || word(&folder.join("dm/uuid")).is_some_and(|uuid| uuid.starts_with("mpath-"));
    let slaves = folder.join("slaves");
    let names = roots::names(&slaves).unwrap_or_default();
    if goes_on && let Some(used) = devices.get_mut(&folder) {
        used.members = names.iter().filter_map(|name| disk_of(&slaves.join(name))).collect();
    }
    for name in names {
        add(&slaves.join(name), pool, is_redundant || goes_on, depth, devices);
    }
}

/// The folder of the device at this path, of a partition that of its disk; `None` if there is none.
fn disk_of(path: &Path) -> Option<PathBuf> {
    let folder = std::fs::canonicalize(path).ok()?;
    let is_partition = folder.join("partition").exists();
    if is_partition { folder.parent().map(Path::to_owned) } else { Some(folder) }
}

/// The content of a file; `None` if it cannot be read.
fn word(file: &Path) -> Option<String> {
    roots::value(file).ok().flatten()
}

/// The number in a file; `None` if it cannot be read.
fn number(file: &Path, radix: u32) -> Option<u64> {
    let text = word(file)?;
    u64::from_str_radix(text.strip_prefix("0x").unwrap_or(&text), radix).ok()
}

#[cfg(test)]
#[path = "faults_tests.rs"]
mod tests;
