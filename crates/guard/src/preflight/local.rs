//! Preflight checks of devices with a latency target for control groups: other mechanisms that throttle there, file systems whose
//! buffered writes count for no group, and groups without a controller.

use std::path::{Path, PathBuf};

use crate::config::{Config, LocalConfig};
use crate::discovery::groups::Names;
use crate::discovery::mounts::Mount;
use crate::discovery::roots::{self, Roots};
use crate::discovery::stack::{self, Limited};
use crate::sensor::diskstats::DeviceNumber;
use crate::sensor::queue;

use super::{Finding, Presence};

/// Name of the finding about a hierarchy of cgroup v1 for block devices.
pub(super) const V1: &str = "cgroup v1";
/// Name of the finding about a container runtime that does not list pods.
const MARKS: &str = "labels of pods";

/// Longest wait for files of container runtimes, which may be on a disk that hangs.
const NAMES_LIMIT: std::time::Duration = std::time::Duration::from_secs(5);
/// Largest number of groups of a device about which there are findings.
const MAX_GROUPS: usize = 3;
/// File systems that write a dirty page for the group that made it dirty.
const ATTRIBUTING: [&str; 5] = ["btrfs", "ext2", "ext4", "f2fs", "xfs"];
/// File systems that are only read.
const READ_ONLY: [&str; 4] = ["erofs", "iso9660", "squashfs", "udf"];

/// Levels of md arrays whose threads write in place of the groups.
const PARITY: [&str; 3] = ["raid4", "raid5", "raid6"];

/// Name of the finding about a multipath device above a disk.
const MULTIPATH: &str = "multipath";

const PURPOSE: &str = "limits of control groups for a latency target";
const UNCOUNTED: &str = "buffered writes count for no group, so that no group is throttled for them";

/// A finding for each fact about the devices and groups of `config` that makes limits for a latency target less effective.
/// `groups`: the folder where cgroup v2 is mounted.
pub fn judge(config: &Config, roots: &Roots, groups: &Path) -> Vec<Finding> {
    let mut findings = Vec::new();
    if config.local.is_empty() {
        return findings;
    }
    if groups.join("blkio").is_dir() || groups.join("blkio,io").is_dir() {
        let evidence = format!("{} is the block controller of cgroup v1", groups.join("blkio").display());
        let lost = format!("no group is limited: v1 limits direct requests only, and {UNCOUNTED}");
        let cure = "boot with systemd.unified_cgroup_hierarchy=1 cgroup_no_v1=all".to_owned();
        findings.push(Finding::new(V1, PURPOSE, Presence::Missing, [evidence, lost, cure]));
    }
    let mut names = Names::default();
    if config.local.values().any(LocalConfig::needs_names) {
        names.want_marks(config.local.values().any(LocalConfig::needs_marks));
        names.refresh(roots, groups, NAMES_LIMIT);
    }
    if let Some(why) = names.unmarked() {
        let lost = "no pod belongs to a tenant by a label or annotation".to_owned();
        let cure = "start the container runtime, or mount its CRI socket into the agent's container".to_owned();
        findings.push(Finding::new(MARKS, PURPOSE, Presence::Missing, [why.to_owned(), lost, cure]));
    }
    let devices = config.local.values().filter_map(|local| stack::find(roots, &local.device).ok());
    let named: Vec<DeviceNumber> = devices.map(|limited| limited.number).collect();
    for local in config.local.values() {
        let Ok(limited) = stack::find(roots, &local.device) else { continue };
        findings.extend(throttles(&local.device, &limited, roots, groups));
        findings.extend(statistics(&local.device, &limited, roots));
        findings.extend(layer(&local.device, &limited, &named, roots));
        let mounted = stack::file_systems(roots, &stack::above(roots, &limited.whole));
        findings.extend(file_system(&local.device, &mounted));
        findings.extend(journal(&local.device, &mounted, roots));
        findings.extend(controllers(local, &names, groups));
    }
    findings
}

/// True if a finding is about this device of the configuration.
pub(super) fn is_about(finding: &Finding, device: &str) -> bool {
    finding.part.strip_suffix(device).is_some_and(|part| part.ends_with(" of "))
}

fn finding(part: &str, device: &str, texts: [String; 3]) -> Finding {
    Finding::new(&format!("{part} of {device}"), PURPOSE, Presence::Unsuitable, texts)
}

/// Other mechanisms of the kernel that make requests on the device wait.
fn throttles(device: &str, limited: &Limited, roots: &Roots, groups: &Path) -> Vec<Finding> {
    let mut findings = Vec::new();
    let qos = groups.join("io.cost.qos");
    if let Some(number) = with_io_cost(&qos, limited) {
        findings.push(finding(
            "io.cost",
            device,
            [
                format!("{} enables io.cost for the device {number}", qos.display()),
                "the kernel also delays requests by weights of groups; the agent cannot measure or end this".into(),
                format!(
                    "echo \"{number} enable=0\" > {}, or leave \"cgroup\" out of the pool's enforce",
                    qos.display()
                ),
            ],
        ));
    }
    let mut queues: Vec<PathBuf> = Vec::new();
    for number in &limited.whole {
        let folder = roots.sys.join(format!("dev/block/{number}"));
        let link = roots::link(&folder);
        let name = link.as_deref().and_then(Path::file_name).and_then(std::ffi::OsStr::to_str).unwrap_or_default();
        queues.push(folder.join("queue"));
        // The disks below one of NVMe multipath have no numbers.
        queues.extend(queue::paths(roots, name).unwrap_or_default().iter().map(|path| path.join("queue")));
    }
    queues.retain(|queue| queue.is_dir());
    let value = |path: &Path| roots::value(path).ok().flatten().unwrap_or_default();
    let mut schedulers = queues.iter().map(|queue| queue.join("scheduler"));
    if let Some(path) = schedulers.find(|path| value(path).split_ascii_whitespace().any(|name| name == "[bfq]")) {
        findings.push(finding(
            "BFQ",
            device,
            [
                format!("{} selects BFQ", path.display()),
                "BFQ idles the device while it awaits a group's next request: latencies jump, which no limit prevents"
                    .into(),
                format!("echo mq-deadline > {} (or none for a fast SSD)", path.display()),
            ],
        ));
    }
    let mut targets = queues.iter().map(|queue| queue.join("wbt_lat_usec"));
    let is_on = |path: &PathBuf| value(path).parse::<u64>().is_ok_and(|target| target > 0);
    if let Some(path) = targets.find(is_on) {
        findings.push(finding(
            "wbt",
            device,
            [
                format!("{} is {}", path.display(), value(&path)),
                "when reads take longer than this, the kernel delays buffered writes of all groups, also of groups that are not noisy".into(),
                format!("echo 0 > {}", path.display()),
            ],
        ));
    }
    findings
}

/// A finding about the device if the kernel does not count its requests. Those of devices below it are not used.
fn statistics(device: &str, limited: &Limited, roots: &Roots) -> Option<Finding> {
    let path = roots.sys.join(format!("dev/block/{}/queue/iostats", limited.number));
    roots::value(&path).ok().flatten().filter(|value| value == "0")?;
    let evidence = format!("{} is 0", path.display());
    let lost = "unless single reads are timed, latency is only estimated from io.pressure of groups";
    Some(finding("statistics", device, [evidence, lost.into(), format!("echo 1 > {}", path.display())]))
}

/// A finding about the topmost device of dm-crypt or multipath, or md array with parity, that lies on the device: its threads
/// submit writes in place of the groups, or multipath hands over requests behind the place where the kernel limits groups.
/// `named`: devices of the configuration; a layer among them limits groups itself.
fn layer(device: &str, limited: &Limited, named: &[DeviceNumber], roots: &Roots) -> Option<Finding> {
    let value = |number: &DeviceNumber, file: &str| {
        roots::value(&roots.sys.join(format!("dev/block/{number}")).join(file)).ok().flatten().unwrap_or_default()
    };
    let kind = |number: &DeviceNumber| {
        let uuid = value(number, "dm/uuid");
        let is_crypt = uuid.starts_with("CRYPT-") && !uuid.starts_with("CRYPT-VERITY");
        let is_parity = PARITY.contains(&value(number, "md/level").as_str());
        let is_multipath = uuid.starts_with("mpath-");
        let of_mapper = if is_crypt { Some("dm-crypt") } else { is_multipath.then_some(MULTIPATH) };
        of_mapper.or(is_parity.then_some("md"))
    };
    let above = stack::above(roots, &limited.timed);
    // Layers come from below: at a lower one groups are not told apart either.
    let mut others = above.iter().rev().filter(|number| !limited.timed.contains(number));
    let topmost = others.find_map(|number| Some((number, kind(number)?)));
    let (number, kind) = topmost.filter(|(number, _)| !named.contains(number))?;
    let link = roots::link(&roots.sys.join(format!("dev/block/{number}")));
    let name = link.as_deref().and_then(Path::file_name).and_then(std::ffi::OsStr::to_str).unwrap_or_default();
    let mapped = value(number, "dm/name");
    let path = if mapped.is_empty() { format!("/dev/{name}") } else { format!("/dev/mapper/{mapped}") };
    let (how, requests) = match kind {
        MULTIPATH => ("its requests come there behind the limits of groups".to_owned(), "requests"),
        _ => (format!("threads of {kind} write there in place of the groups"), "writes"),
    };
    let evidence = format!("{path} lies on it, and {how}");
    let lost = format!("{requests} through it count for no group, so that no group is throttled for them");
    let cure = format!("name {path} in devices of the pool, beside {device} or instead of it");
    Some(finding(kind, device, [evidence, lost, cure]))
}

/// Number of the first of the devices for which `qos`, the file `io.cost.qos`, enables io.cost.
fn with_io_cost(qos: &Path, limited: &Limited) -> Option<String> {
    let text = roots::text(qos).ok()?;
    let enabled = text.lines().filter(|line| line.split_ascii_whitespace().any(|word| word == "enable=1"));
    let mut numbers = enabled.filter_map(|line| line.split_ascii_whitespace().next()?.parse::<DeviceNumber>().ok());
    numbers.find(|number| limited.whole.contains(number)).map(|number| number.to_string())
}

/// A finding about the first file system on the device whose buffered writes count for no group.
fn file_system(device: &str, mounted: &[Mount]) -> Option<Finding> {
    let is_uncounted = |mount: &&Mount| {
        let counts = ATTRIBUTING.contains(&mount.kind.as_str()) && !journals_data(mount);
        !counts && !READ_ONLY.contains(&mount.kind.as_str()) && !mount.point.starts_with("/boot")
    };
    let Mount { point, kind, .. } = mounted.iter().find(is_uncounted)?;
    let (how, cure) = match kind.as_str() {
        "ext4" => (" with data=journal", "mount it with data=ordered, the default"),
        _ => ("", "use btrfs, ext4, f2fs or xfs, or direct requests (O_DIRECT)"),
    };
    let evidence = format!("{} is {kind}{how}, whose pages a thread of the kernel writes", point.display());
    Some(finding("writeback", device, [evidence, UNCOUNTED.into(), cure.into()]))
}

/// True if pages of files go through the journal of the file system.
fn journals_data(mount: &Mount) -> bool {
    mount.kind == "ext4" && mount.options.split(',').any(|word| word == "data=journal")
}

/// A finding about the first ext4 file system on the device with a journal, which all groups share.
fn journal(device: &str, mounted: &[Mount], roots: &Roots) -> Option<Finding> {
    // A folder is named like the device, with the number of the journal's file: dm-0-8.
    let journals = roots::names(&roots.proc.join("fs/jbd2")).unwrap_or_default();
    let has_journal = |mount: &&Mount| {
        let link = roots::link(&roots.sys.join(format!("dev/block/{}", mount.device)));
        let name = link.as_deref().and_then(Path::file_name).unwrap_or_default();
        let of_mount = |journal: &String| journal.rsplit_once('-').is_some_and(|(of, _)| name == of);
        let is_used = mount.kind == "ext4" && !journals_data(mount) && !mount.point.starts_with("/boot");
        is_used && journals.iter().any(of_mount)
    };
    let point = mounted.iter().find(has_journal)?.point.display();
    let evidence = format!("{point} is ext4 with a journal, whose commits count for no group");
    let lost = "an fsync of one group waits for the commit of all groups, and with it for pages of throttled groups";
    let cure = "keep files of throttled groups on a file system of their own, or use xfs";
    Some(finding("journal", device, [evidence, lost.into(), cure.into()]))
}

/// Findings about groups of the device's tenants without the controllers `io` and `memory`.
fn controllers(local: &LocalConfig, names: &Names, groups: &Path) -> Vec<Finding> {
    let entries = local.tenants.iter().flat_map(|tenant| &tenant.groups);
    let found = entries.filter_map(|entry| names.find(groups, entry).ok()).flatten();
    let of_group = |group: String| {
        let folder = groups.join(&group);
        let lacks = |file: &str| !folder.join(file).exists();
        if lacks("io.max") && !lacks("io.stat") {
            let evidence = format!("{} has no io.max", folder.display());
            let (lost, cure) = ("the group is not throttled", "use a kernel with CONFIG_BLK_DEV_THROTTLING");
            return Some(finding(&format!("group {group}"), &local.device, [evidence, lost.into(), cure.into()]));
        }
        let (controller, setting, lost) = if lacks("io.stat") {
            ("io", "IOAccounting", "the group is neither measured nor throttled")
        } else if lacks("memory.stat") {
            ("memory", "MemoryAccounting", "buffered writes of the group count for a group above it")
        } else {
            return None;
        };
        let control = folder.parent().unwrap_or(groups).join("cgroup.subtree_control");
        let control = control.display();
        let evidence = format!("{control} does not have the controller {controller}");
        let cure = format!("with systemd set {setting}=yes, otherwise write +{controller} to {control}");
        Some(finding(&format!("group {group}"), &local.device, [evidence, lost.into(), cure]))
    };
    found.filter_map(of_group).take(MAX_GROUPS).collect()
}

#[cfg(test)]
#[path = "local_tests.rs"]
mod tests;
