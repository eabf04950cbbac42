//! Checks where volumes may be: not on the server's own files, not on a file or device that another volume serves, and, for
//! volumes created by command, only in `data_dir` and the folders of `volume_dirs`.
//!
//! Paths are compared after symbolic links are resolved; existing files are compared by device and inode, block devices by
//! number.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use evenkeel_policy::Config;
use evenkeel_policy::config;
use evenkeel_policy::units::Bytes;

use crate::error::Error;

/// Identity of the file or block device to which an existing path leads; equal for all paths of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Target {
    /// Number of a regular file's device, and the file's inode.
    File(u64, u64),
    /// Number of a block device, which may have several nodes.
    Device(u64),
}

impl Target {
    /// The identity of the file or device with this metadata.
    pub(crate) fn of(metadata: &Metadata) -> Self {
        if metadata.file_type().is_block_device() {
            Self::Device(metadata.rdev())
        } else {
            Self::File(metadata.dev(), metadata.ino())
        }
    }
}

/// One of the server's own files, with a description of its purpose.
struct Own {
    path: PathBuf,
    target: Option<Target>,
    what: &'static str,
}

/// The server's own files, with their present identities, and folders in which all files are its own, with descriptions.
pub(crate) struct OwnFiles {
    files: Vec<Own>,
    folders: [(PathBuf, &'static str); 2],
}

impl OwnFiles {
    /// The own files of a server with this configuration: files that `config` names, the `records` in the data folder, and
    /// `more` files that the program keeps.
    pub(crate) fn of(config: &Config, records: [PathBuf; 2], more: &[PathBuf]) -> Self {
        let server = &config.server;
        let records = records.map(|path| (path, "the list of this server's volume files"));
        let sockets = server.unix_paths().into_iter().chain([server.control_path()]);
        let tls = server.tls.iter().flat_map(|tls| {
            let files = tls.files();
            [Some(files.certificate), Some(files.key), files.clients, files.revoked].into_iter().flatten()
        });
        // The way to etcd: a volume with the password or the key would show it to clients.
        let etcd = config.cluster.tls.iter().flat_map(|tls| {
            [Some(tls.authorities.clone()), tls.certificate.clone(), tls.key.clone()].into_iter().flatten()
        });
        let etcd = etcd.chain(config.cluster.password_file.clone());
        let remote = config.volumes.values().filter_map(|volume| volume.uri_tls.as_ref());
        let remote = remote.flat_map(|tls| tls.paths().map(Path::to_path_buf));
        // Where standard output and error go, if that is a file.
        let log = [1, 2].map(|fd| (PathBuf::from(format!("/proc/self/fd/{fd}")), "the log of this server"));
        let of_program = "the configuration, the lock, the state of the cluster or the list of volumes of this server";
        let all = (more.iter().cloned().map(|path| (path, of_program)))
            .chain(config.policy.iter().map(|path| (path.clone(), "the policy file of this server")))
            .chain(records)
            .chain(sockets.map(|path| (path, "a socket of this server")))
            .chain(tls.map(|path| (path, "a certificate or key of this server")))
            .chain(etcd.map(|path| (path, "a certificate, key or password of this server for etcd")))
            .chain(remote.map(|path| (path, "a certificate or key of this server for the server of a volume")))
            .chain(log);
        let own = all.map(|(path, what)| {
            let target = std::fs::metadata(&path).ok().map(|metadata| Target::of(&metadata));
            Own { path: resolved(&path), target, what }
        });
        let folders = [
            (resolved(&server.history_path()), "in the folder of this server's history"),
            (resolved(&server.flight_path()), "in the folder of this server's last requests"),
        ];
        Self { files: own.collect(), folders }
    }

    /// A description of the server's own file at `path` or with this identity; `None` if no own file is or will be there.
    pub(crate) fn at(&self, path: &Path, target: Option<Target>) -> Option<&'static str> {
        let is = |own: &&Own| own.path == path || (target.is_some() && own.target == target);
        let of_files = self.files.iter().find(is).map(|own| own.what);
        let within = || self.folders.iter().find(|(folder, _)| path.starts_with(folder)).map(|(_, what)| *what);
        of_files.or_else(within)
    }
}

/// `path` with symbolic links resolved; its last part need not exist.
///
/// # Errors
/// If the folder of `path` does not exist or cannot be read.
pub(crate) fn resolve(path: &Path) -> io::Result<PathBuf> {
    match std::fs::canonicalize(path) {
        // A link that leads nowhere is no place for a file.
        Err(error) if error.kind() == io::ErrorKind::NotFound && std::fs::symlink_metadata(path).is_err() => {
            let name = path.file_name().ok_or(error)?;
            Ok(folder_of(path)?.join(name))
        }
        resolved => resolved,
    }
}

/// As [`resolve`], but falls back to the absolute path; only for comparing paths.
pub(crate) fn resolved(path: &Path) -> PathBuf {
    resolve(path).or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.to_owned())
}

/// The folder of `path`, with symbolic links resolved.
fn folder_of(path: &Path) -> io::Result<PathBuf> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::canonicalize(folder)
}

/// True if a command may put a volume on `path`: the path is in `data_dir` or in one of `volume_dirs`.
pub(crate) fn is_allowed(server: &config::Server, path: &Path) -> bool {
    let mut places = server.volume_dirs.iter().chain([&server.data_dir]).filter_map(|place| resolve(place).ok());
    let (resolved, folder) = (resolve(path).ok(), folder_of(path).ok());
    // LVM and udev name devices by links, which lead to other names after the next boot.
    let named = folder.zip(path.file_name()).map(|(folder, name): (PathBuf, &OsStr)| folder.join(name));
    let named = named.filter(|_| std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device()));
    places.any(|place| {
        let inside = |path: &Option<PathBuf>| path.as_ref().is_some_and(|path| path.starts_with(&place));
        inside(&resolved) || (place.starts_with("/dev") && inside(&named))
    })
}

/// A warning if the file system of `path` has no room for a file of `size` bytes there; `None` if there is room, or the free
/// space is unknown. Neither the file nor its folder need exist.
pub(crate) fn shortage(path: &Path, size: u64) -> Option<String> {
    let allocated = std::fs::metadata(path).map_or(0, |metadata| metadata.blocks().saturating_mul(512));
    let absolute = std::path::absolute(path).ok()?;
    let existing = absolute.ancestors().find(|path| path.exists())?;
    let space = rustix::fs::statvfs(existing).ok()?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    (size.saturating_sub(allocated) > free).then(|| {
        format!(
            "{} is more than the {} MiB that are free on the file system of {}; writes fail when it is full. Make room, or choose a smaller size",
            Bytes(size),
            free >> 20,
            path.display()
        )
    })
}

/// The error for a missing file that is on record, perhaps on a file system that is not mounted: no empty one replaces it.
pub(crate) fn gone(volume: &str, path: &Path) -> Error {
    Error::NotOurs {
        volume: volume.to_owned(),
        path: path.to_owned(),
        why: "this file held the volume before (files.toml in the data folder lists it), but is not there".to_owned(),
        cure: format!(
            "Mount its file system, or restore it; for an empty volume in its place, make the file (truncate -s SIZE {})",
            path.display()
        ),
    }
}

/// The error that refuses to lengthen a file that Evenkeel did not create.
pub(crate) fn foreign_size(volume: &str, path: &Path, actual: u64, wanted: u64) -> Error {
    Error::NotOurs {
        volume: volume.to_owned(),
        path: path.to_owned(),
        why: format!("Evenkeel did not create this file; it has {actual} bytes, and size says {wanted}"),
        cure: "Leave size out to serve it as it is, or say grow = true (--grow) to lengthen it".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adopted;

    #[test]
    fn folders_of_records_are_the_servers_own() {
        let config = Config::default();
        let server = &config.server;
        let own = OwnFiles::of(&config, adopted::files(&server.data_dir), &[]);
        let at = |path: PathBuf| own.at(&resolved(&path), None);
        assert!(at(server.flight_path().join("segment-0000000000.evf")).is_some_and(|what| what.contains("requests")));
        assert!(at(server.history_path().join("disk0.img")).is_some_and(|what| what.contains("history")));
        assert_eq!(at(server.data_dir.join("flight.img")), None);
    }

    #[test]
    fn secrets_for_the_servers_of_volumes_are_the_servers_own() {
        let text = "[volumes.far]\nbackend = \"nbd\"\nuri = \"nbds://far/disk\"\n\
            uri_tls = { authorities = \"/nowhere/ca\", certificate = \"/nowhere/cert\", key = \"/nowhere/key\" }\n";
        let config = Config::parse(text, "test").expect("valid");
        let own = OwnFiles::of(&config, adopted::files(&config.server.data_dir), &[]);
        for name in ["ca", "cert", "key"] {
            let what = own.at(&PathBuf::from(format!("/nowhere/{name}")), None);
            assert!(what.is_some_and(|what| what.contains("server of a volume")), "{name}");
        }
    }

    #[test]
    fn secrets_for_etcd_are_the_servers_own() {
        let path = |name: &str| PathBuf::from(format!("/nowhere/{name}"));
        let (authorities, certificate, key) = (path("ca.pem"), Some(path("own.pem")), Some(path("own.key")));
        let tls = Some(config::EtcdTls { authorities, certificate, key });
        let cluster = config::Cluster { tls, password_file: Some(path("password")), ..config::Cluster::default() };
        let config = Config { cluster, ..Config::default() };
        let own = OwnFiles::of(&config, adopted::files(&config.server.data_dir), &[]);
        for name in ["ca.pem", "own.pem", "own.key", "password"] {
            assert!(own.at(&path(name), None).is_some_and(|what| what.contains("etcd")), "{name}");
        }
        assert_eq!(own.at(&path("other"), None), None);
    }
}
