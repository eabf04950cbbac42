//! Orders to record, the files for them, and the figures of a recording.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration as StdDuration, SystemTime, UNIX_EPOCH};

use evenkeel_control::Instant;
use evenkeel_flight::{Head, Reader, Scrambler};
use evenkeel_policy::Config;
use serde::{Deserialize, Serialize};

use super::Host;
use super::folder;
use crate::adopted;
use crate::backend::Backend;
use crate::clock;
use crate::error::Error;
use crate::places::{OwnFiles, Target, resolved};
use crate::snapshot::Snapshot;

/// Smallest length of a key, in bytes: a shorter one can be guessed.
const LEAST_KEY: usize = 16;
/// Largest policy in the head of a recording, in bytes; the format allows some more.
const LARGEST_POLICY: u64 = 3 << 20;
/// The policy in the head has at most this part of a recording's bytes, so that there is room for requests.
pub(super) const POLICY_PART: u64 = 4;
/// Smallest bound on the size of a recording, in bytes.
const LEAST_BYTES: u64 = 1 << 20;

/// An order to record requests in a file.
#[derive(Clone)]
pub struct Order {
    /// Path of the file; absolute.
    pub file: PathBuf,
    /// The only pool to record; `None` for all.
    pub pool: Option<String>,
    /// Length of the recording: the time from now on, or the time back from now for a recording of past requests.
    pub length: StdDuration,
    /// The recording ends before its file has more bytes than this.
    pub max_bytes: u64,
    /// Secret key under which offsets and names are scrambled; `None` to record them as they are.
    pub key: Option<Vec<u8>>,
    /// True to replace a file that is a recording.
    pub force: bool,
}

/// The figures of a recording.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Recorded {
    /// Path of the file.
    pub file: PathBuf,
    /// Number of requests in the file.
    pub requests: u64,
    /// Number of requests that are missing in the file, because they could not be kept or written.
    pub lost: u64,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Length of the recording in seconds.
    pub seconds: f64,
    /// The reason why the recording is shorter than was ordered, has no policy, or has one that changed later, if it is no error;
    /// otherwise `None`.
    pub note: Option<String>,
    /// True once the recording has ended and its file is complete.
    pub ended: bool,
    /// The error that ended the recording; `None` while it is under way, and if it ended as ordered.
    pub error: Option<String>,
}

impl Recorded {
    /// The figures of a recording that has just begun.
    pub(super) fn begun(file: &Path) -> Self {
        let (file, note, error) = (file.to_owned(), None, None);
        Self { file, requests: 0, lost: 0, bytes: 0, seconds: 0.0, note, ended: false, error }
    }
}

/// The error of an order that cannot be carried out; `why` is cause and cure.
pub(super) fn refused(why: String) -> Error {
    Error::Refused(why)
}

/// An order that was checked, with its file.
pub(super) struct Opened {
    pub(super) order: Order,
    pub(super) file: File,
    /// Index of the only pool to record.
    pub(super) pool: Option<u32>,
    pub(super) head: Head,
    /// When the recording begins.
    pub(super) start: Instant,
}

impl Opened {
    /// Checks an order and makes its file.
    ///
    /// # Errors
    /// If a value cannot be used, there is no such pool, or the file cannot be made.
    pub(super) fn new(shared: &dyn Host, order: Order) -> Result<Self, Error> {
        let snapshot = shared.snapshot();
        let pool = match &order.pool {
            None => None,
            Some(name) => match snapshot.pools.iter().position(|pool| pool.name == *name) {
                Some(index) => Some(index as u32),
                None => return Err(Error::Unknown { kind: "pool", name: name.clone() }),
            },
        };
        if order.length.is_zero() {
            return Err(refused("the length of the recording is 0; give one such as 1m".to_owned()));
        }
        if order.max_bytes < LEAST_BYTES {
            return Err(refused("a recording needs at least 1MiB; raise --max-size".to_owned()));
        }
        if order.key.as_ref().is_some_and(|key| key.len() < LEAST_KEY) {
            return Err(refused(format!(
                "the key for --anonymise has fewer than {LEAST_KEY} bytes and could be guessed; make one with `head -c 32 /dev/urandom > KEYFILE`"
            )));
        }
        if !order.file.is_absolute() {
            let file = order.file.display();
            return Err(refused(format!("the path {file} is not absolute; name the file from the root on")));
        }
        must_be_free(shared, &snapshot, &order.file)?;
        let file = open_recording(&order.file, order.force)?;
        let head = head(&snapshot.config, order.key.is_some(), order.max_bytes);
        Ok(Self { order, file, pool, head, start: clock::now() })
    }

    /// Removes the file, because the order is not carried out.
    pub(super) fn discard(self) {
        let _ = fs::remove_file(&self.order.file);
    }

    /// The scrambling that the order asks for.
    pub(super) fn scrambler(&self) -> Option<Scrambler> {
        self.order.key.as_deref().map(Scrambler::new)
    }
}

/// Refuses a path at which the server or a volume has a file.
fn must_be_free(shared: &dyn Host, snapshot: &Snapshot, path: &Path) -> Result<(), Error> {
    let config = &snapshot.config;
    let target = fs::metadata(path).ok().map(|metadata| Target::of(&metadata));
    let own = OwnFiles::of(config, adopted::files(&config.server.data_dir), shared.own_files());
    let cure = "choose another file for the recording";
    if let Some(what) = own.at(&resolved(path), target) {
        return Err(refused(format!("{} is {what}; {cure}", path.display())));
    }
    let holds = |backend: &Backend| match backend {
        Backend::File(file) => target == Some(file.target()) || file.path() == path,
        _ => false,
    };
    match snapshot.volumes.iter().flatten().find(|volume| holds(&volume.backend)) {
        Some(volume) => Err(refused(format!("{} holds volume \"{}\"; {cure}", path.display(), volume.name))),
        None => Ok(()),
    }
}

/// Makes the file of a recording, which only this process's user may read. With `force` a file that is there is replaced if it
/// is a recording, so that a slip destroys nothing else.
///
/// # Errors
/// If there is another file, or the file cannot be made.
pub fn open_recording(path: &Path, force: bool) -> Result<File, Error> {
    let fail = |cause: io::Error| {
        refused(format!(
            "cannot make {}: {cause}; name a file in a folder where the recording process may write, with room on its disk",
            path.display()
        ))
    };
    if let Some(cause) = path.parent().and_then(folder::shortage) {
        return Err(fail(cause));
    }
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(fail(error)),
        Ok(_) if !force => {
            return Err(refused(format!("{} exists; choose another name, or replace it with --force", path.display())));
        }
        Ok(there) => {
            if !(there.is_file() && is_recording(path)) {
                return Err(refused(format!(
                    "{} exists and is not a recording, so it is not replaced; choose another name, or remove it",
                    path.display()
                )));
            }
            fs::remove_file(path).map_err(fail)?;
        }
    }
    create(path).map_err(fail)
}

/// Makes a new file for the server's user alone.
///
/// # Errors
/// If there is such a file, or it cannot be made.
pub(super) fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

fn is_recording(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| Reader::new(BufReader::new(file)).is_ok())
}

/// True if a recording of at most `most` bytes has room for this policy in its head.
pub(super) fn is_small(policy: &str, most: u64) -> bool {
    policy.len() as u64 <= LARGEST_POLICY.min(most / POLICY_PART)
}

/// A note if a recording with this head has no policy for lack of room.
pub(super) fn without_policy(head: &Head) -> Option<String> {
    let is_missing = head.policy.is_empty() && !head.anonymised;
    is_missing.then(|| {
        "the recording lacks the policy, which is larger than 3 MiB or a quarter of the file; raise --max-size, or keep \
         a copy of the policy for `evenkeel replay --policy`"
            .to_owned()
    })
}

/// A note if the policy in the head of a recording is not the one that was in force later. Of volumes, which come and go, only
/// pool, tenant and limit of those in both policies count. A policy that is empty because it was left out does not count.
pub(super) fn other_policy(recorded: &str, later: &str) -> Option<String> {
    if recorded.is_empty() || later.is_empty() || recorded == later {
        return None;
    }
    let rules = |policy: &str| {
        let mut rules: toml::Table = toml::from_str(policy).unwrap_or_default();
        let volumes = match rules.remove("volumes") {
            Some(toml::Value::Table(volumes)) => volumes,
            _ => toml::Table::new(),
        };
        (rules, volumes)
    };
    let ((before, volumes), (after, volumes_after)) = (rules(recorded), rules(later));
    let is_other = |one: &toml::Value, other: &toml::Value| {
        ["pool", "tenant", "limit"].into_iter().any(|key| one.get(key) != other.get(key))
    };
    let changed = volumes.iter().any(|(name, one)| volumes_after.get(name).is_some_and(|other| is_other(one, other)));
    (changed || before != after).then(|| {
        "the policy changed during the recording, which has the one of its start alone; choose the part before the change \
         with `evenkeel replay --for`, or record again"
            .to_owned()
    })
}

/// The policy of a configuration as text, of any length.
pub(super) fn policy_text(config: &Config) -> String {
    /// The parts of the configuration that decide who gets what.
    #[derive(Serialize)]
    struct Policy<'a> {
        pools: &'a std::collections::BTreeMap<String, evenkeel_policy::config::Pool>,
        tenants: &'a std::collections::BTreeMap<String, evenkeel_policy::config::Tenant>,
        volumes: &'a std::collections::BTreeMap<String, evenkeel_policy::config::Volume>,
    }
    let policy = Policy { pools: &config.pools, tenants: &config.tenants, volumes: &config.volumes };
    toml::to_string(&policy).unwrap_or_default()
}

/// The head of a recording of at most `most` bytes that begins now. If it is `anonymised`, it has no policy, which is full of
/// names; nor if there is no room.
pub(super) fn head(config: &Config, anonymised: bool, most: u64) -> Head {
    let policy = policy_text(config);
    let is_wanted = !anonymised && is_small(&policy, most);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Head {
        started_unix_ns: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX),
        source: "serve".to_owned(),
        policy: if is_wanted { policy } else { String::new() },
        anonymised,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_that_changed_is_noted_and_volumes_that_come_and_go_are_not() {
        let policy = |text: &str| head(&Config::parse(text, "test").unwrap(), false, u64::MAX).policy;
        let volume = "[volumes.disk-0]\nbackend = \"memory\"\nsize = 4096\n";
        let limited = |iops: u32| policy(&format!("[tenants.shop]\nlimit = {{ iops = {iops} }}\n{volume}"));
        let more = policy(&format!(
            "[tenants.shop]\nlimit = {{ iops = 5 }}\n{volume}[volumes.disk-1]\nbackend = \"memory\"\nsize = 4096\n"
        ));
        assert!(more != limited(5) && other_policy(&limited(5), &more).is_none());
        assert_eq!(other_policy(&limited(5), &limited(5)), None);
        assert!(other_policy(&limited(5), &limited(6)).is_some_and(|note| note.contains("policy changed")));
        assert_eq!((other_policy("", &more), other_policy(&more, "")), (None, None), "left out");
        let with = |more: &str| policy(&format!("[tenants.shop]\n{volume}{more}"));
        assert_eq!(other_policy(&with(""), &with("description = \"a disk\"\n")), None);
        for rule in ["limit = { iops = 5 }\n", "tenant = \"shop\"\n"] {
            assert!(other_policy(&with(""), &with(rule)).is_some(), "a rule of a volume: {rule}");
            assert!(other_policy(&with(rule), &with("")).is_some(), "a rule of a volume: {rule}");
        }
        // No recording has room for the later policy.
        let mut large = Config::parse(&format!("[tenants.shop]\nlimit = {{ iops = 6 }}\n{volume}"), "test").unwrap();
        large.volumes.get_mut("disk-0").unwrap().description = "x".repeat(4 << 20);
        assert_eq!(head(&large, false, u64::MAX).policy, "");
        assert!(other_policy(&limited(5), &policy_text(&large)).is_some());
    }

    #[test]
    fn a_policy_that_leaves_little_room_for_requests_is_left_out() {
        let text = "[volumes.disk-0]\nbackend = \"memory\"\nsize = 4096\n";
        let config = Config::parse(text, "test").unwrap();
        let policy = |anonymised, most| head(&config, anonymised, most).policy;
        let whole = policy(false, u64::MAX);
        assert!(whole.contains("disk-0") && policy(true, u64::MAX).is_empty(), "{whole}");
        let bytes = whole.len() as u64;
        assert_eq!((policy(false, 4 * bytes), policy(false, 4 * bytes - 1)), (whole, String::new()));
        let note = |anonymised, most| without_policy(&head(&config, anonymised, most));
        assert!(note(false, 4 * bytes - 1).is_some_and(|note| note.contains("--max-size")));
        assert_eq!((note(false, 4 * bytes), note(true, 4 * bytes)), (None, None));
    }
}
