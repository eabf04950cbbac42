//! Tenants' safe parts in a file, with which the next process of this host starts.
//!
//! [`evenkeel_control::cluster::totals`] says why a restart may keep them. The file counts for a while, by a clock that is never
//! set, until the machine restarts: the other members forget the safe part of an expired member after a time. After a restart of
//! the machine that time cannot be known.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_control::cluster::totals::Kept;
use serde::{Deserialize, Serialize};

use crate::participant::Key;
use crate::settings::{Settings, next};

/// Version of the file's format.
const VERSION: u32 = 1;
/// Identity of the machine's present start.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// Parts of each tenant that a restart keeps, in requests and in bytes.
pub(crate) type KeptParts = BTreeMap<Key, [Option<Kept>; 2]>;

/// The cluster, the host and the start of the machine to which a file belongs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Owner {
    cluster: String,
    host: String,
    /// Addresses of etcd.
    etcd: Vec<String>,
    /// Length of a period, in microseconds.
    period_us: u64,
    /// Length of the lease, in microseconds.
    lease_us: u64,
    boot: String,
}

/// The content of the file.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Content {
    v: u32,
    #[serde(flatten)]
    owner: Owner,
    /// Seconds from the machine's start to a moment at which the process was running.
    at_s: u64,
    /// By pool and tenant.
    tenants: BTreeMap<String, BTreeMap<String, [Option<Kept>; 2]>>,
}

/// The file of this host.
#[derive(Clone, Debug)]
pub(crate) struct File {
    path: PathBuf,
    owner: Owner,
}

impl File {
    /// The file that the settings name; `None` if they name none.
    pub(crate) fn of(settings: &Settings) -> Option<Self> {
        let boot = fs::read_to_string(BOOT).ok()?.trim().to_owned();
        let owner = Owner {
            cluster: settings.cluster.name.clone(),
            host: settings.host.clone(),
            etcd: settings.cluster.etcd.iter().map(ToString::to_string).collect(),
            period_us: settings.cluster.period.as_nanos() / 1_000,
            lease_us: settings.cluster.lease.as_nanos() / 1_000,
            boot,
        };
        Some(Self { path: settings.kept.clone()?, owner })
    }

    /// The parts in the file, if it is of this host and of the machine's present start, of the same cluster in an etcd with one
    /// of the same addresses, and the process was running less than
    /// `within` before `now`, both counted from the machine's start; otherwise none.
    pub(crate) fn load(&self, now: Duration, within: Duration) -> KeptParts {
        let read = fs::read(&self.path).ok().and_then(|text| serde_json::from_slice::<Content>(&text).ok());
        let is_ours = |Content { v, owner, .. }: &Content| {
            let known = owner.etcd.iter().any(|address| self.owner.etcd.contains(address));
            *v == VERSION && known && self.owner == Owner { etcd: self.owner.etcd.clone(), ..owner.clone() }
        };
        let is_new =
            |content: &Content| now.checked_sub(Duration::from_secs(content.at_s)).is_some_and(|since| since < within);
        let Some(content) = read.filter(|content| is_ours(content) && is_new(content)) else { return KeptParts::new() };
        let tenants = content.tenants.into_iter().flat_map(|(pool, tenants)| {
            tenants.into_iter().map(move |(tenant, units)| ((pool.clone(), tenant), units))
        });
        tenants.map(|(key, units)| (key, units.map(|unit| unit.filter(Kept::is_valid)))).collect()
    }

    /// The text to write for these parts while the process runs, `now` after the machine's start. The text has the time rounded
    /// down to a multiple of `step`, so that it seldom changes.
    pub(crate) fn text(&self, parts: KeptParts, now: Duration, step: Duration) -> Arc<str> {
        let mut tenants: BTreeMap<String, BTreeMap<String, [Option<Kept>; 2]>> = BTreeMap::new();
        for ((pool, tenant), units) in parts {
            tenants.entry(pool).or_default().insert(tenant, units);
        }
        let step = step.as_secs().max(1);
        let content = Content { v: VERSION, owner: self.owner.clone(), at_s: now.as_secs() / step * step, tenants };
        // Numbers and texts can always be written.
        serde_json::to_string(&content).unwrap_or_default().into()
    }
}

/// Replaces the file at `path`; on failure removes it, as its parts may be too large from now on.
pub(crate) fn write(path: &Path, text: &str) -> io::Result<()> {
    let next = next(path);
    let written = fs::write(&next, text).and_then(|()| fs::rename(&next, path));
    written.inspect_err(|_| drop(remove(path)))
}

/// Removes the file at `path`, if it is there.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    // A read-only file system refuses to remove a file that is not there, too.
    let is_gone = || fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    match fs::remove_file(path) {
        Err(error) if !is_gone() => Err(error),
        _ => Ok(()),
    }
}

/// Time since the machine's start.
pub(crate) fn uptime() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Duration = Duration::from_secs(1_000);
    const STEP: Duration = Duration::from_secs(15);
    const WITHIN: Duration = Duration::from_secs(50);

    fn file(name: &str) -> File {
        let path = std::env::temp_dir().join(format!("evenkeel-kept-{name}-{}.json", std::process::id()));
        let etcd = vec!["http://a:2379".into(), "http://b:2379".into()];
        let (cluster, host, boot) = ("main".into(), "a".into(), "this".into());
        File { path, owner: Owner { cluster, host, etcd, period_us: 1_000_000, lease_us: 3_000_000, boot } }
    }

    fn parts() -> KeptParts {
        let kept = Kept { safe: 0.25, members: 4, is_alone: false };
        KeptParts::from([(("main".into(), "db".into()), [Some(kept), None])])
    }

    #[test]
    fn parts_come_back_for_a_while() {
        let file = file("while");
        assert_eq!(file.load(AT, WITHIN), KeptParts::new(), "no file");
        write(&file.path, &file.text(parts(), AT, STEP)).expect("written");
        assert_eq!(file.load(AT + Duration::from_secs(30), WITHIN), parts());
        // The time was rounded down to 990 s.
        assert_eq!(file.load(AT + Duration::from_secs(39), WITHIN), parts());
        assert_eq!(file.load(AT + Duration::from_secs(40), WITHIN), KeptParts::new());
        assert_eq!(file.load(Duration::from_secs(900), WITHIN), KeptParts::new(), "a time to come");
        remove(&file.path).and_then(|()| remove(&file.path)).expect("removed, or gone");
        assert!(file.load(AT, WITHIN).is_empty());
    }

    #[test]
    fn a_file_of_another_start_host_or_cluster_does_not_count() {
        let file = file("other");
        write(&file.path, &file.text(parts(), AT, STEP)).expect("written");
        let load = |owner: Owner| File { owner, ..file.clone() }.load(AT, WITHIN);
        let owner = || file.owner.clone();
        for other in [
            Owner { boot: "another".into(), ..owner() },
            Owner { host: "b".into(), ..owner() },
            Owner { cluster: "test".into(), ..owner() },
            Owner { period_us: 1, ..owner() },
            Owner { lease_us: 1, ..owner() },
            Owner { etcd: vec!["http://c:2379".into()], ..owner() },
        ] {
            assert!(load(other.clone()).is_empty(), "{other:?}");
        }
        let moved = Owner { etcd: vec!["http://b:2379".into(), "http://c:2379".into()], ..owner() };
        assert_eq!(load(moved), parts(), "one of the addresses is the same");
        fs::write(&file.path, "{").expect("written");
        assert!(file.load(AT, WITHIN).is_empty(), "a damaged file");
        let wrong = Kept { safe: 7.0, members: 4, is_alone: true };
        let wrong = KeptParts::from([(("main".into(), "db".into()), [Some(wrong), None])]);
        write(&file.path, &file.text(wrong, AT, STEP)).expect("written");
        assert_eq!(file.load(AT, WITHIN).into_values().collect::<Vec<_>>(), [[None, None]]);
        remove(&file.path).expect("removed");
    }

    #[test]
    fn a_file_that_cannot_be_written_is_no_file() {
        let file = file("folder");
        // A folder is in the way of the next version.
        fs::create_dir_all(file.path.with_extension("new")).expect("a folder");
        fs::write(&file.path, "old").expect("written");
        assert!(write(&file.path, "new").is_err() && !file.path.exists());
        fs::remove_dir(file.path.with_extension("new")).expect("removed");
    }

    #[test]
    fn the_text_changes_with_the_parts_and_seldom_with_time() {
        let file = file("text");
        let text = |at: u64| file.text(parts(), Duration::from_secs(at), STEP);
        assert!(text(990) == text(1_004) && text(1_004) != text(1_005));
        assert_ne!(file.text(KeptParts::new(), AT, STEP), file.text(parts(), AT, STEP));
    }
}
