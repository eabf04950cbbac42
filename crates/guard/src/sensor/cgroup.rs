//! Control groups (cgroup v2): searches for groups, and reads each group's counters on each device (`io.stat`).
//!
//! The format is that of the kernel's `Documentation/admin-guide/cgroup-v2.rst`. A row of `io.stat` is a device with
//! `key=value` pairs; a device without pairs has had no I/O, and some kernels print several such devices on one line. A bio
//! is counted for its group at every device that the bio passes, so that the row of a cached device's slow part holds the
//! group's misses.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use evenkeel_control::throughput::Counters;
use evenkeel_policy::tenant::{fits, fits_path};

use super::diskstats::DeviceNumber;
use super::source::read_all;
use crate::error::{Error, Fault};

/// Folder where cgroup v2 is mounted by convention.
pub const ROOT: &str = "/sys/fs/cgroup";

/// Largest number of groups that one pattern may match: each group costs two file descriptors and work in every period.
pub const MAX_GROUPS: usize = 4_096;

/// Size, in bytes, up to which an `io.stat` or `io.max` is read; the file has some 150 bytes for each device.
const MAX_BYTES: usize = 1 << 20;

/// The kernel's word in place of the number of a device that it hides: a path of NVMe multipath, or a disk that was pulled out.
const UNNUMBERED: &str = "(unknown)";

/// Parses the `io.stat` of a group, and calls `each` with the number and the counters of every device with counters.
///
/// # Errors
/// The first malformed line; `each` has been called for the lines before it.
pub fn parse_stat(text: &[u8], mut each: impl FnMut(DeviceNumber, Counters)) -> Result<(), Fault> {
    for (index, line) in text.split(|&byte| byte == b'\n').enumerate() {
        let fault = |problem: String| Fault::new(index + 1, problem);
        let line = std::str::from_utf8(line).map_err(|_| fault("is no text".into()))?;
        let mut row: Option<(Option<DeviceNumber>, Counters, bool)> = None;
        for word in line.split_ascii_whitespace() {
            let Some((key, value)) = word.split_once('=') else {
                flush(&mut row, &mut each);
                let number = match word {
                    UNNUMBERED => None,
                    _ => Some(word.parse::<DeviceNumber>().map_err(fault)?),
                };
                row = Some((number, Counters::ZERO, false));
                continue;
            };
            let Some((_, counters, told)) = &mut row else {
                return Err(fault(format!("{word:?} stands before any device")));
            };
            let total = match key {
                "rbytes" => &mut counters.read_bytes,
                "wbytes" => &mut counters.written_bytes,
                "rios" => &mut counters.reads,
                "wios" => &mut counters.writes,
                // Discards, and what else a kernel tells.
                _ => continue,
            };
            *total = value.parse().map_err(|_| fault(format!("{word:?} holds no number")))?;
            *told = true;
        }
        flush(&mut row, &mut each);
    }
    Ok(())
}

fn flush(row: &mut Option<(Option<DeviceNumber>, Counters, bool)>, each: &mut impl FnMut(DeviceNumber, Counters)) {
    if let Some((Some(number), counters, true)) = row.take() {
        each(number, counters);
    }
}

/// A group's counters on a cached device and its parts since the group was made; zero on a device on which the group has had
/// no I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// I/O of the group on the cached device itself.
    pub cached: Counters,
    /// I/O of the group that reached the slow device: the misses.
    pub slow: Counters,
}

impl Usage {
    /// Parses the text of a group's `io.stat` for the devices with these numbers. Counters of a slow device that is `None` stay
    /// zero.
    ///
    /// # Errors
    /// As [`parse_stat`].
    pub fn parse(text: &[u8], cached: DeviceNumber, slow: Option<DeviceNumber>) -> Result<Self, Fault> {
        let mut usage = Self::default();
        parse_stat(text, |number, counters| {
            if number == cached {
                usage.cached = counters;
            } else if Some(number) == slow {
                usage.slow = counters;
            }
        })?;
        Ok(usage)
    }
}

/// An open file of a control group. Once the group is gone, reading the file fails, even if there is a new group of the same
/// name.
#[derive(Debug)]
pub struct GroupFile {
    path: PathBuf,
    file: File,
}

impl GroupFile {
    /// Opens the group's file at `path` for reading.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(path: PathBuf) -> Result<Self, Error> {
        let file = File::open(&path).map_err(|cause| Error::read(&path, cause))?;
        Ok(Self { path, file })
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True if both are the same file of the same group, and not of a group and a later one of the same name.
    pub fn is_same(&self, other: &Self) -> bool {
        let number = |of: &Self| of.file.metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()));
        number(self).is_some_and(|known| number(other) == Some(known))
    }

    /// The group's present counters, as [`Usage::parse`] reads them; `None` if the group no longer exists. `buffer` may be used
    /// for one group after the other.
    ///
    /// # Errors
    /// If the file cannot be read or understood.
    pub fn usage(
        &self,
        buffer: &mut Vec<u8>,
        cached: DeviceNumber,
        slow: Option<DeviceNumber>,
    ) -> Result<Option<Usage>, Error> {
        match read_all(&self.file, &self.path, buffer, [4096, MAX_BYTES]) {
            Err(error) if error.is_gone() || error.is_absent() => Ok(None),
            text => Usage::parse(text?, cached, slow).map(Some).map_err(|fault| fault.in_file(&self.path)),
        }
    }
}

/// Paths, relative to `root`, of the groups that `pattern` matches. The pattern is a path, in each part of which `*` stands
/// for any characters and `?` for one.
///
/// # Errors
/// If an existing folder cannot be read, or more than [`MAX_GROUPS`] groups match.
pub fn find(root: &Path, pattern: &str) -> Result<Vec<String>, Error> {
    let mut found = vec![String::new()];
    for part in pattern.split('/').filter(|part| !part.is_empty()) {
        let mut next = Vec::new();
        for parent in &found {
            let folder = root.join(parent);
            let below = |name: &str| if parent.is_empty() { name.to_owned() } else { format!("{parent}/{name}") };
            if !is_pattern(part) {
                if folder.join(part).is_dir() {
                    next.push(below(part));
                }
                continue;
            }
            let entries = match std::fs::read_dir(&folder) {
                Ok(entries) => entries,
                Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => continue,
                Err(cause) => return Err(Error::read(&folder, cause)),
            };
            // An entry that vanishes meanwhile is as good as none.
            for entry in entries.flatten() {
                let name = entry.file_name();
                let Some(name) = name.to_str().filter(|name| fits(part, name)) else { continue };
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    next.push(below(name));
                }
                if next.len() > MAX_GROUPS {
                    return Err(Error::TooMany { what: format!("groups are named by {pattern:?}"), limit: MAX_GROUPS });
                }
            }
        }
        found = next;
    }
    found.retain(|name| !name.is_empty());
    found.sort();
    Ok(found)
}

/// True if `pattern` matches the path `group`, by the rules of [`find`].
pub fn names(pattern: &str, group: &str) -> bool {
    fits_path(pattern, group)
}

/// True if a path contains wildcards (`*` or `?`).
pub fn is_pattern(path: &str) -> bool {
    path.contains(['*', '?'])
}

#[cfg(test)]
#[path = "cgroup_tests.rs"]
mod tests;
