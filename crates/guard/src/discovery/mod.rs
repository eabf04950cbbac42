//! Discovery: finds which client reaches which volume and device, and which pools the devices are on.
//!
//! | module | finds |
//! |---|---|
//! | [`topology`], [`lvm`], [`mounts`] | block devices, what they are made of, and the device below a file |
//! | [`lio`], [`nvmet`], [`tgt`] | SCSI and NVMe targets |
//! | [`sockets`], [`processes`], [`mark`] | TCP connections, and the NBD servers that hold them |
//! | [`map`] | all of it as links client ↔ target ↔ volume ↔ device ↔ pool |
//! | [`osds`] | Ceph's OSDs |
//! | [`blocks`] | block devices whose requests are recorded |
//! | [`stack`] | the device at which control groups are limited |
//! | [`groups`] | control groups of containers, pods and virtual machines |
//! | [`cri`] | labels and annotations of pods |
//! | [`watch`] | changes of control groups |
//! | [`roots`] | where the trees are |
//!
//! [`Survey::read`] reads the host, [`map::Map::of`] combines the result to a map; the second function is pure.

use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::sensor::cache::{self, CachedEntry};

pub mod blocks;
pub mod cri;
pub mod groups;
pub mod lio;
pub mod lvm;
pub mod map;
pub mod mark;
pub mod mounts;
pub mod nvmet;
pub mod osds;
pub mod processes;
pub mod roots;
pub mod sockets;
pub mod stack;
pub mod tgt;
pub mod topology;
pub mod watch;

pub use map::{KnownBy, Link, Map, Note, Server};
pub use roots::Roots;
pub use topology::{Device, Pool, Topology};

/// All facts that discovery has read on a host, before they are combined to a map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// All block devices of the host.
    pub topology: Topology,
    /// Cached devices: slow devices behind fast ones.
    pub cached: Vec<CachedEntry>,
    /// Mounted file systems.
    pub mounts: Vec<mounts::Mount>,
    /// TCP sockets of this network namespace.
    pub sockets: Vec<sockets::Socket>,
    /// Target portal groups of LIO, the kernel's SCSI target.
    pub lio: Vec<lio::Group>,
    /// Targets of tgt, the SCSI target in user space.
    pub tgt: Vec<tgt::Target>,
    /// Subsystems of the kernel's NVMe target.
    pub nvmet: Vec<nvmet::Subsystem>,
    /// Processes that are NBD servers.
    pub processes: Vec<processes::Process>,
    /// Number of other network namespaces in which processes run.
    pub other_namespaces: usize,
    /// Messages about files that could not be read; the survey lacks the content of these files.
    pub problems: Vec<String>,
}

impl Survey {
    /// Reads all facts below `roots`. `tgtadm` is the output of `tgtadm --lld iscsi --op show --mode target`, `None` if tgt
    /// does not run.
    pub fn read(roots: &Roots, tgtadm: Option<&str>) -> Self {
        let mut problems = Vec::new();
        let (topology, faults) = Topology::read(roots);
        problems.extend(faults.iter().map(ToString::to_string));
        let mounts = kept(parsed(&roots.proc.join("self/mountinfo"), mounts::parse), &mut problems);
        let mut sockets = kept(parsed(&roots.proc.join("net/tcp"), sockets::parse), &mut problems);
        sockets.extend(kept(parsed(&roots.proc.join("net/tcp6"), sockets::parse), &mut problems));
        let processes = kept(processes::read(roots, &sockets), &mut problems);
        let tgt = tgtadm.map(|text| tgt::parse(text).map_err(|fault| fault.in_file(Path::new("output of tgtadm"))));
        Self {
            lio: kept(lio::read(roots), &mut problems),
            nvmet: kept(nvmet::read(roots), &mut problems),
            processes: processes.servers,
            other_namespaces: processes.other_namespaces,
            tgt: tgt.map_or_else(Vec::new, |result| kept(result, &mut problems)),
            cached: cache::find(roots, &topology),
            topology,
            mounts,
            sockets,
            problems,
        }
    }

    /// Reads this machine; also asks tgt for its targets.
    pub fn of_this_machine() -> Self {
        let roots = Roots::default();
        match tgt::ask(&roots) {
            Some(Err(problem)) => {
                let mut survey = Self::read(&roots, None);
                survey.problems.push(problem);
                survey
            }
            answer => Self::read(&roots, answer.and_then(Result::ok).as_deref()),
        }
    }

    /// The block device at `path`, if that is in `/dev`; otherwise the block device on which the file system with `path` is.
    pub fn device(&self, path: &Path) -> Option<&Device> {
        if path.starts_with("/dev") {
            return self.topology.by_path(path);
        }
        let mount = mounts::holding(&self.mounts, path)?;
        // File systems without a device of their own still name one they were mounted from.
        self.topology.by_number(mount.device).or_else(|| self.topology.by_path(&mount.source))
    }
}

/// `path` with its symbolic links followed; unchanged if it does not exist.
pub fn resolved(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// Decodes a text in which a byte may be written as `escape` and this number of digits of a number with this radix.
fn unescaped(text: &str, escape: &str, digits: usize, radix: u32) -> String {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((&first, more)) = rest.split_first() {
        let number = rest.strip_prefix(escape.as_bytes()).and_then(|behind| behind.get(..digits));
        let number = number.and_then(|number| std::str::from_utf8(number).ok());
        let byte = number.and_then(|number| u8::from_str_radix(number, radix).ok());
        bytes.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &rest[escape.len() + digits..] } else { more };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn parsed<T>(path: &Path, parse: impl Fn(&str) -> Result<Vec<T>, crate::Fault>) -> Result<Vec<T>, Error> {
    match roots::optional(roots::text(path))? {
        Some(text) => parse(&text).map_err(|fault| fault.in_file(path)),
        None => Ok(Vec::new()),
    }
}

fn kept<T: Default>(result: Result<T, Error>, problems: &mut Vec<String>) -> T {
    result.unwrap_or_else(|error| {
        problems.push(error.to_string());
        T::default()
    })
}
