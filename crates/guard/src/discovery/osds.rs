//! Finds the Ceph OSDs of this host by their admin sockets.
//!
//! Distributions' packages put the sockets at `/run/ceph/CLUSTER-osd.N.asok`, cephadm at `/run/ceph/FSID/ceph-osd.N.asok`,
//! and Rook below `/var/lib/rook`. The configuration can name other places.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::roots;

/// Largest number of OSDs that are found on a host.
pub const MAX_OSDS: usize = 512;
/// Folders that are searched for admin sockets, each with the number of levels of folders below it that are searched too.
const FOLDERS: [(&str, usize); 2] = [("run/ceph", 1), ("var/lib/rook", 3)];
/// Largest number of folders that one search reads.
const MAX_FOLDERS: usize = 4_096;

/// An OSD of this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OsdEntry {
    /// `osd.3`, with the cluster's id or name in front where two clusters have one of that number here.
    pub name: String,
    /// Path of the OSD's admin socket.
    pub socket: PathBuf,
}

/// Finds OSDs in the usual folders below `root`, and in the configured folders or at the configured sockets. Returns at most
/// [`MAX_OSDS`], sorted by number.
pub fn find(root: &Path, configured: &[PathBuf]) -> Vec<OsdEntry> {
    let mut left = MAX_FOLDERS;
    let mut sockets = Vec::new();
    for (folder, levels) in FOLDERS {
        look(&direct(&root.join(folder)), levels, &mut left, &mut sockets);
    }
    for path in configured {
        look(&direct(path), 0, &mut left, &mut sockets);
        // A path that ends in the name of a socket is one, also while no process listens there.
        if number(path).is_some() && !path.is_dir() {
            let parts = path.parent().map(direct).zip(path.file_name());
            sockets.push(parts.map_or_else(|| path.clone(), |(folder, name)| folder.join(name)));
        }
    }
    name_all(sockets)
}

/// The path of a folder with symbolic links resolved, so that each socket has one path. The path stays unchanged if its
/// resolved form leads to another folder, as with some links in /proc.
fn direct(folder: &Path) -> PathBuf {
    let place = |path: &Path| path.metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()));
    let real = folder.canonicalize().ok().filter(|real| place(real) == place(folder));
    real.unwrap_or_else(|| folder.to_owned())
}

fn look(folder: &Path, levels: usize, left: &mut usize, sockets: &mut Vec<PathBuf>) {
    if *left == 0 {
        return;
    }
    *left -= 1;
    for name in roots::names(folder).unwrap_or_default() {
        let path = folder.join(name);
        // Links to folders lead in circles.
        let Ok(kind) = path.symlink_metadata().map(|metadata| metadata.file_type()) else { continue };
        if kind.is_dir() && levels > 0 {
            look(&path, levels - 1, left, sockets);
        } else if kind.is_socket() && number(&path).is_some() {
            sockets.push(path);
        }
    }
}

/// The number of an OSD in the path of its admin socket: `3` for `ceph-osd.3.asok` and, with a process id, for
/// `ceph-osd.3.4711.asok`. `None` for other paths.
fn number(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?.strip_suffix(".asok")?;
    let (before, rest) = name.split_once("osd.")?;
    let plain = before.is_empty() || before.ends_with('-');
    rest.split('.').next()?.parse().ok().filter(|_| plain)
}

/// Id or name of the Ceph cluster in the path of an admin socket, to distinguish OSDs of the same number: the id is the
/// folder's name, the name precedes `osd.` in the file's name.
fn cluster(path: &Path) -> String {
    let text = |name: Option<&std::ffi::OsStr>| name.and_then(std::ffi::OsStr::to_str).unwrap_or_default().to_owned();
    let file = text(path.file_name());
    let front = file.split("osd.").next().unwrap_or_default().trim_end_matches('-').to_owned();
    let folder = text(path.parent().and_then(Path::file_name));
    if folder == "ceph" || folder.is_empty() { front } else { folder }
}

/// One socket for each OSD. If a folder has several sockets of an OSD, with different process ids in their names, the newest
/// counts; the older ones were left behind.
fn newest(mut sockets: Vec<PathBuf>) -> Vec<PathBuf> {
    let whose = |path: &PathBuf| {
        let name = path.file_name()?.to_str()?;
        Some((path.with_file_name(name.split("osd.").next()?), number(path)?))
    };
    let made = |path: &PathBuf| path.symlink_metadata().and_then(|metadata| metadata.modified()).ok();
    sockets.sort_by_cached_key(|path| (whose(path), made(path), path.clone()));
    sockets.reverse();
    sockets.dedup_by_key(|path| whose(path));
    sockets.sort();
    sockets
}

fn name_all(sockets: Vec<PathBuf>) -> Vec<OsdEntry> {
    let sockets = newest(sockets);
    let mut clusters: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
    for (path, number) in sockets.iter().filter_map(|path| Some((path, number(path)?))) {
        clusters.entry(number).or_default().insert(cluster(path));
    }
    let mut entries: Vec<(u32, OsdEntry)> = Vec::new();
    for socket in sockets {
        let Some(number) = number(&socket) else { continue };
        let plain = format!("osd.{number}");
        let name = if clusters[&number].len() > 1 { format!("{}/{plain}", cluster(&socket)) } else { plain };
        entries.push((number, OsdEntry { name, socket }));
    }
    entries.sort_by(|a, b| (a.0, &a.1.name).cmp(&(b.0, &b.1.name)));
    entries.truncate(MAX_OSDS);
    entries.into_iter().map(|(_, entry)| entry).collect()
}

#[cfg(test)]
#[path = "osds_tests.rs"]
mod tests;
