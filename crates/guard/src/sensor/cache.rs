//! Cached devices, a slow device behind a fast one (dm-cache, dm-writecache and bcache): their parts, their caches' hits and
//! misses, and the slow device's counters.
//!
//! Formats are those of the kernel's `Documentation/admin-guide/device-mapper/cache.rst`, `writecache.rst`,
//! `Documentation/admin-guide/bcache.rst` and `Documentation/block/stat.rst`. All these counters are for the whole device and
//! do not distinguish tenants, as `io.stat` does ([`super::cgroup`]).

use std::path::{Path, PathBuf};

use evenkeel_control::Duration;
use evenkeel_control::throughput::{Counters, SlowDevice};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Source;
use super::cache_dm::{Control, Wanted};
use super::diskstats::DeviceNumber;
use crate::discovery::roots::{self, Roots, sequence_of};
use crate::discovery::{Device, Topology};
use crate::error::{Error, Fault};

/// Size of a sector in the kernel's statistics, in bytes, also for devices with other sectors.
const SECTOR_BYTES: u64 = 512;

/// The kind of cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// dm-cache, which LVM uses as well.
    DmCache,
    /// Device mapper's dm-writecache.
    DmWritecache,
    /// The kernel's bcache.
    Bcache,
    /// Another kind of cache, whose slow device the configuration names.
    Other,
}

evenkeel_control::named!(Kind: DmCache "dm-cache", DmWritecache "dm-writecache", Bcache "bcache", Other "other");

/// The numbers of a cached device and of the devices that it consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    /// The kind of cache.
    pub kind: Kind,
    /// The cached device, which tenants use.
    pub device: DeviceNumber,
    /// The fast device, which holds the cache; `None` if it is unknown.
    pub fast: Option<DeviceNumber>,
    /// The slow device, which is cached.
    pub slow: DeviceNumber,
}

/// A cache's own figures since it was set up, of all that use it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CacheState {
    /// Reads that the fast device answered; of bcache all requests that it counts.
    pub read_hits_total: Option<u64>,
    /// Reads that the fast device did not answer.
    pub read_misses_total: Option<u64>,
    /// Writes that the fast device took.
    pub write_hits_total: Option<u64>,
    /// Writes that the fast device did not take.
    pub write_misses_total: Option<u64>,
    /// Bytes that are on the fast device and not yet on the slow one.
    pub dirty_bytes: Option<u64>,
    /// The fault that the cache reports, in the kernel's words; `null` without a fault.
    pub trouble: Option<String>,
}

/// Kind, slow device and fast device of a cache, from the type and parameters of its device-mapper target; `None` if the
/// target is no cache.
///
/// # Errors
/// If the parameters are not in the format of this type of target.
pub fn parse_table(
    target: &str,
    parameters: &str,
) -> Result<Option<(Kind, DeviceNumber, Option<DeviceNumber>)>, Fault> {
    let words: Vec<&str> = parameters.split_ascii_whitespace().collect();
    let (kind, slow, fast) = match target {
        "cache" => (Kind::DmCache, 2, 1),
        "writecache" => (Kind::DmWritecache, 1, 2),
        _ => return Ok(None),
    };
    let number = |at: usize| {
        let short = || Fault::new(1, format!("the {target} target has only {} words", words.len()));
        let word = words.get(at).ok_or_else(short)?;
        word.parse().map_err(|problem: String| Fault::new(1, problem))
    };
    Ok(Some((kind, number(slow)?, Some(number(fast)?))))
}

/// Parses the status of a dm-cache or dm-writecache.
///
/// # Errors
/// If the text is not in the kernel's format.
pub fn parse_status(kind: Kind, text: &str) -> Result<CacheState, Fault> {
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let number = |at: usize| -> Result<u64, Fault> {
        let word = words.get(at).ok_or_else(|| Fault::new(1, format!("the status has only {} words", words.len())))?;
        word.parse().map_err(|_| Fault::new(1, format!("{word:?} is not a number")))
    };
    if let [word @ ("Fail" | "Error")] = words[..] {
        return Ok(CacheState { trouble: Some(word.to_owned()), ..CacheState::default() });
    }
    if kind == Kind::DmWritecache {
        let error = number(0)?;
        let trouble = (error != 0).then(|| format!("error {error}"));
        if words.len() < 9 {
            // Before Linux 5.15 it tells no more.
            return Ok(CacheState { trouble, ..CacheState::default() });
        }
        let (reads, read_hits, writes, hits) =
            (number(4)?, number(5)?, number(6)?, number(7)?.saturating_add(number(8)?));
        return Ok(CacheState {
            read_hits_total: Some(read_hits),
            read_misses_total: Some(reads.saturating_sub(read_hits)),
            write_hits_total: Some(hits),
            write_misses_total: Some(writes.saturating_sub(hits)),
            dirty_bytes: None,
            trouble,
        });
    }
    let block_sectors = number(2)?;
    let dirty = number(10)?.saturating_mul(block_sectors).saturating_mul(SECTOR_BYTES);
    let needs_check = words.last() == Some(&"needs_check");
    let trouble = if needs_check { Some("needs_check") } else { words.iter().copied().find(|&word| word == "fail") };
    Ok(CacheState {
        read_hits_total: Some(number(4)?),
        read_misses_total: Some(number(5)?),
        write_hits_total: Some(number(6)?),
        write_misses_total: Some(number(7)?),
        dirty_bytes: Some(dirty),
        trouble: trouble.map(str::to_owned),
    })
}

/// Parses a number of bytes as bcache prints it: `0`, `512`, `1.5M`.
///
/// # Errors
/// If `text` is no number in this form.
pub fn parse_human(text: &str) -> Result<u64, Fault> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" => 1.0,
        "k" => 1024.0,
        "M" => 1024f64.powi(2),
        "G" => 1024f64.powi(3),
        "T" => 1024f64.powi(4),
        "P" => 1024f64.powi(5),
        _ => return Err(Fault::new(1, format!("{text:?} is not a number of bytes"))),
    };
    // It prints -0 for nothing now and then.
    let value = digits.parse::<f64>().ok().filter(|value| value.is_finite());
    value
        .map(|value| (value * unit).max(0.0) as u64)
        .ok_or_else(|| Fault::new(1, format!("{text:?} is not a number of bytes")))
}

/// Parses the text of a block device's `stat` file in sysfs, here of the slow device.
///
/// # Errors
/// If the text is not in the kernel's format.
pub fn parse_block_stat(text: &[u8]) -> Result<SlowDevice, Fault> {
    let text = std::str::from_utf8(text).map_err(|_| Fault::new(1, "is no text in UTF-8"))?;
    let mut numbers = [0u64; 10];
    let mut words = text.split_ascii_whitespace();
    for (place, number) in numbers.iter_mut().enumerate() {
        let word = words.next().ok_or_else(|| Fault::new(1, format!("has only {place} numbers, fewer than 10")))?;
        *number = word.parse().map_err(|_| Fault::new(1, format!("{word:?} is not a number")))?;
    }
    let [reads, _, read_sectors, _, writes, _, write_sectors, _, _, busy_ms] = numbers;
    let bytes = |sectors: u64| sectors.saturating_mul(SECTOR_BYTES);
    let counters = Counters { read_bytes: bytes(read_sectors), written_bytes: bytes(write_sectors), reads, writes };
    Ok(SlowDevice { counters, busy: Duration::from_millis(busy_ms) })
}

/// An error because of which a cached device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NotUsable {
    /// There is no block device of this name.
    #[error("there is no block device {0}: `lsblk` lists them all")]
    NoDevice(String),
    /// The fast and slow device below the cached device cannot be found out.
    #[error(
        "the devices below {device} cannot be determined{because}; name its slow device: tuning.cache.slow = \"/dev/...\""
    )]
    Unknown {
        /// Name of the cached device as configured.
        device: String,
        /// The reason, with a leading colon; empty if it is unknown.
        because: String,
    },
    /// The device of this name is none of the known kinds of caches.
    #[error(
        "{0} is not a dm-cache, dm-writecache or bcache device; if something else caches there, name its slow device: tuning.cache.slow = \"/dev/...\""
    )]
    NotCached(String),
    /// A file of the kernel cannot be read, or has an unknown format.
    #[error(transparent)]
    File(#[from] Error),
}

/// An open cached device, of which status and counters can be read.
#[derive(Debug)]
pub struct Cached {
    made: Made,
    folder: PathBuf,
    /// Device mapper's uuid of the cached device, which distinguishes devices that have had the same number one after the
    /// other.
    uuid: Option<String>,
    /// The kernel's sequence number of the cached device, which also distinguishes devices of one uuid.
    sequence: Option<String>,
    control: Option<Control>,
    slow_stat: Source,
}

impl Cached {
    /// Finds the fast and the slow device below `device`; `slow` and `fast`, if given, are used in place of the devices
    /// found. All three are paths in `/dev` or the kernel's names.
    ///
    /// # Errors
    /// A message that names the missing part and its cure.
    pub fn open(roots: &Roots, device: &str, slow: Option<&str>, fast: Option<&str>) -> Result<Self, NotUsable> {
        let number = |name: &str| number_of(roots, name).ok_or_else(|| NotUsable::NoDevice(name.to_owned()));
        let (cached, named) = (number(device)?, (slow.map(number).transpose()?, fast.map(number).transpose()?));
        let folder = roots.sys.join(format!("dev/block/{cached}"));
        // A captured tree is of another machine than this one's device mapper.
        let control = if *roots == Roots::default() { Control::open() } else { Err(Control::absent()) };
        let ask = |wanted| match &control {
            Ok(control) => control.ask(cached, wanted).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let found = if folder.join("dm").is_dir() {
            match ask(Wanted::Table) {
                Ok((target, parameters)) => parse_table(&target, &parameters)
                    .map_err(|fault| fault.in_file(Path::new("device mapper's table")))?
                    .ok_or_else(|| NotUsable::NotCached(device.to_owned())),
                Err(because) => of_lvm(&folder)
                    .ok_or_else(|| NotUsable::Unknown { device: device.to_owned(), because: format!(": {because}") }),
            }
        } else if folder.join("bcache").is_dir() {
            of_bcache(&folder)?.ok_or_else(|| NotUsable::Unknown { device: device.to_owned(), because: String::new() })
        } else {
            Err(NotUsable::NotCached(device.to_owned()))
        };
        let (kind, slow, fast) = match (found, named) {
            (Ok((kind, slow, fast)), (named_slow, named_fast)) => {
                (kind, named_slow.unwrap_or(slow), named_fast.or(fast))
            }
            (Err(_), (Some(slow), fast)) => (Kind::Other, slow, fast),
            (Err(error), (None, _)) => return Err(error),
        };
        let slow_stat = Source::open(&roots.sys.join(format!("dev/block/{slow}/stat")))?;
        let made = Made { kind, device: cached, fast, slow };
        let (uuid, sequence) = (uuid(&folder), sequence_of(&folder));
        Ok(Self { made, uuid, sequence, folder, control: control.ok(), slow_stat })
    }

    /// True if the name `device` still refers to the device that was opened, and the slow device exists.
    pub fn is_still(&self, roots: &Roots, device: &str) -> bool {
        number_of(roots, device) == Some(self.made.device)
            && uuid(&self.folder) == self.uuid
            && sequence_of(&self.folder) == self.sequence
            && self.slow_stat.path().exists()
    }

    /// The numbers of the cached device and of its parts.
    pub fn made(&self) -> Made {
        self.made
    }

    /// The slow device's counters.
    ///
    /// # Errors
    /// If the slow device's `stat` file cannot be read or has an unknown format.
    pub fn slow_device(&mut self) -> Result<SlowDevice, Error> {
        let path = self.slow_stat.path().to_owned();
        parse_block_stat(self.slow_stat.read()?).map_err(|fault| fault.in_file(&path))
    }

    /// The cache's own totals; `None` if this kind of cache reports none, or this process may not ask device mapper.
    ///
    /// # Errors
    /// If a file cannot be read, or a file or answer has an unknown format.
    pub fn status(&self) -> Result<Option<CacheState>, Error> {
        match (self.made.kind, &self.control) {
            (Kind::Bcache, _) => bcache_status(&self.folder.join("bcache")).map(Some),
            (kind @ (Kind::DmCache | Kind::DmWritecache), Some(control)) => {
                let (_, text) = control.ask(self.made.device, Wanted::Status)?;
                let status = parse_status(kind, &text);
                status.map(Some).map_err(|fault| fault.in_file(Path::new("device mapper's status")))
            }
            _ => Ok(None),
        }
    }
}

/// A slow device behind a fast one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CachedEntry {
    /// The kernel's name of the device that is used: `dm-0`, `bcache0`.
    pub name: String,
    /// `dm-cache`, `dm-writecache` or `bcache`.
    pub kind: String,
    /// Name of the device in `/dev/mapper`, if it has one.
    pub path: Option<String>,
    /// Name of the fast device, where that is known.
    pub fast: Option<String>,
    /// Name of the slow device.
    pub slow: String,
}

/// All cached devices among the block devices of `topology`. Without the right to ask device mapper, only those that LVM made
/// and bcaches are found.
pub fn find(roots: &Roots, topology: &Topology) -> Vec<CachedEntry> {
    let name = |number| topology.by_number(number).map_or_else(|| number.to_string(), |device| device.name.clone());
    let entry = |device: &Device| {
        let folder = roots.sys.join(format!("dev/block/{}", device.number));
        if device.dm.is_none() && !folder.join("bcache").is_dir() {
            return None;
        }
        let made = Cached::open(roots, &device.name, None, None).ok()?.made();
        // What bcache is made of has such a folder too.
        if made.slow == made.device || Some(made.device) == made.fast {
            return None;
        }
        let path = device.dm.as_ref().map(|(name, _)| format!("/dev/mapper/{name}"));
        let (kind, fast) = (made.kind.name().to_owned(), made.fast.map(name));
        Some(CachedEntry { name: device.name.clone(), kind, path, fast, slow: name(made.slow) })
    };
    topology.devices().filter_map(entry).collect()
}

/// The number of the block device `name`, which is a path in `/dev` (links are followed) or the kernel's name; `None` if
/// there is none.
pub(crate) fn number_of(roots: &Roots, name: &str) -> Option<DeviceNumber> {
    let path = std::fs::canonicalize(name).unwrap_or_else(|_| name.into());
    let name = path.strip_prefix("/dev").unwrap_or(&path).to_str()?;
    // In sysfs a slash in a name is an exclamation mark.
    let file = roots.sys.join("class/block").join(name.replace('/', "!")).join("dev");
    if let Ok(Some(text)) = roots::value(&file) {
        return text.parse().ok();
    }
    // A node that no link leads to, as `dmsetup mknodes` makes them.
    use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
    let metadata = std::fs::metadata(&path).ok().filter(|metadata| metadata.file_type().is_block_device())?;
    let number = metadata.rdev();
    Some(DeviceNumber { major: rustix::fs::major(number), minor: rustix::fs::minor(number) })
}

/// Device mapper's uuid of the device whose folder in sysfs is `folder`; `None` if it has none.
fn uuid(folder: &Path) -> Option<String> {
    roots::value(&folder.join("dm/uuid")).ok().flatten()
}

/// Kind, slow device and fast device of a cache that LVM made, from the names of the devices below the cached device; needs
/// no privileges. `folder` is the cached device's folder in sysfs.
fn of_lvm(folder: &Path) -> Option<(Kind, DeviceNumber, Option<DeviceNumber>)> {
    let slaves = folder.join("slaves");
    let mut found = (None, None);
    for slave in roots::names(&slaves).ok()? {
        let folder = slaves.join(&slave);
        let name = roots::value(&folder.join("dm/name")).ok()??;
        let number = || roots::value(&folder.join("dev")).ok()??.parse::<DeviceNumber>().ok();
        if let Some(kind) = [("_corig", Kind::DmCache), ("_wcorig", Kind::DmWritecache)]
            .into_iter()
            .find_map(|(end, kind)| name.ends_with(end).then_some(kind))
        {
            found.0 = number().map(|number| (kind, number));
        } else if ["_cdata", "_cvol", "_cvol-cdata"].iter().any(|end| name.ends_with(end)) {
            found.1 = number();
        }
    }
    let (kind, slow) = found.0?;
    Some((kind, slow, found.1))
}

/// Kind, slow device and fast device of a bcache, from the links between devices in sysfs; `folder` is the bcache's folder
/// there.
fn of_bcache(folder: &Path) -> Result<Option<(Kind, DeviceNumber, Option<DeviceNumber>)>, Error> {
    let number = |link: PathBuf| -> Result<Option<DeviceNumber>, Error> {
        // The `bcache` folder of a disk, whose parent is the disk.
        let Ok(real) = std::fs::canonicalize(&link) else { return Ok(None) };
        let Some(disk) = real.parent() else { return Ok(None) };
        Ok(roots::value(&disk.join("dev"))?.and_then(|text| text.parse().ok()))
    };
    let bcache = folder.join("bcache");
    let slow = number(bcache.clone())?;
    let fast = number(bcache.join("cache/cache0"))?;
    Ok(slow.map(|slow| (Kind::Bcache, slow, fast)))
}

fn bcache_status(folder: &Path) -> Result<CacheState, Error> {
    let number = |name: &str| -> Result<Option<u64>, Error> {
        let path = folder.join(name);
        let text = roots::value(&path)?;
        text.map(|text| parse_human(&text).map_err(|fault| fault.in_file(&path))).transpose()
    };
    let state = roots::value(&folder.join("state"))?;
    let (hits, misses) = (number("stats_total/cache_hits")?, number("stats_total/cache_misses")?);
    Ok(CacheState {
        // It does not tell reads and writes apart; writes in write-back mode are neither.
        read_hits_total: hits,
        read_misses_total: misses,
        dirty_bytes: number("dirty_data")?,
        trouble: state.filter(|state| state != "clean" && state != "dirty"),
        ..CacheState::default()
    })
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
