//! The lock that admits at most one agent in a network namespace: two agents would remove each other's queueing disciplines.
//!
//! Only root can open the lock's file, so that no other user can keep the agent from starting.

use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use super::error::Error;

/// Folder of the lock's file; the packaged agent's journal is in the same folder.
const FOLDER: &str = "/run/evenkeel";
/// The link that names the network namespace of this thread, in which the thread opens its sockets.
const NAMESPACE: &str = "/proc/thread-self/ns/net";
/// Mode of the lock's folder: access for its owner alone, because a process that can open a file can lock it.
const PRIVATE_FOLDER: u32 = 0o700;
const PRIVATE_FILE: u32 = 0o600;
const OPEN_TO_OTHERS: u32 = 0o077;
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The right to change network settings in this network namespace: a lock that the kernel releases when the process ends.
#[derive(Debug)]
pub(crate) struct Only(#[expect(dead_code, reason = "locked as long as it is open")] File);

impl Only {
    /// # Errors
    /// [`Error::AnotherAgent`] while another process has the lock, [`Error::LockNotOurs`] if another user could take it,
    /// [`Error::File`] if its file cannot be made or opened.
    pub(crate) fn take() -> Result<Self, Error> {
        Self::of(Path::new(FOLDER))
    }

    fn of(folder: &Path) -> Result<Self, Error> {
        let failed = Error::file;
        let namespace = Path::new(NAMESPACE);
        let namespace = namespace.metadata().map_err(|e| failed("read", namespace, e))?.ino();
        let made = DirBuilder::new().recursive(true).mode(PRIVATE_FOLDER).create(folder);
        made.map_err(|e| failed("make", folder, e))?;
        let is_private = |path: &Path, metadata: &std::fs::Metadata, others: u32| {
            let ours = metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & others == 0;
            if ours { Ok(()) } else { Err(Error::LockNotOurs { path: path.to_owned() }) }
        };
        let metadata = folder.symlink_metadata().map_err(|e| failed("read", folder, e))?;
        is_private(folder, &metadata, WRITABLE_BY_OTHERS)?;
        // Left behind unlocked: to remove it would let two agents lock two files of one name.
        let path = folder.join(format!("agent-{namespace}.lock"));
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(PRIVATE_FILE);
        let file = options.custom_flags(OFlags::NOFOLLOW.bits() as i32).open(&path);
        let file = file.map_err(|e| failed("open", &path, e))?;
        is_private(&path, &file.metadata().map_err(|e| failed("read", &path, e))?, OPEN_TO_OTHERS)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self(file)),
            Err(Errno::WOULDBLOCK) => Err(Error::AnotherAgent),
            Err(e) => Err(failed("lock", &path, e.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::{SocketAddr, UnixListener};
    use std::path::PathBuf;

    use super::*;
    use crate::folder::{Folder, folder};

    /// The path of a folder that does not exist yet, in a temporary one.
    fn place(test: &str) -> (Folder, PathBuf) {
        let root = folder(&format!("only-{test}"));
        let path = root.join("agent");
        (root, path)
    }

    fn lock(folder: &Path) -> PathBuf {
        std::fs::read_dir(folder).unwrap().next().unwrap().unwrap().path()
    }

    #[test]
    fn there_is_one_at_a_time() {
        let (_root, folder) = place("one");
        let first = Only::of(&folder).unwrap();
        assert!(matches!(Only::of(&folder), Err(Error::AnotherAgent)));
        drop(first);
        assert!(Only::of(&folder).is_ok());
    }

    #[test]
    fn each_network_namespace_has_its_own() {
        let (_root, folder) = place("namespaces");
        let _here = Only::of(&folder).unwrap();
        let path = folder.clone();
        let there = std::thread::spawn(move || {
            // SAFETY: a network namespace changes no descriptor or memory that others share.
            let apart = unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) };
            apart.ok().map(|()| Only::of(&path).is_ok())
        });
        match there.join().unwrap() {
            Some(taken) => assert!(taken),
            None => println!("SKIPPED: each_network_namespace_has_its_own: may not make network namespaces"),
        }
    }

    #[test]
    fn no_other_user_can_keep_the_agent_from_starting() {
        // What any user can have does not count.
        let squatted = SocketAddr::from_abstract_name("evenkeel-guard").and_then(|name| UnixListener::bind_addr(&name));
        let (_root, folder) = place("users");
        drop(Only::of(&folder).unwrap());
        drop(squatted);
        // A process that can open a file can lock it; one that can write into a folder can put one there.
        let mode = |path: &Path| path.metadata().unwrap().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&lock(&folder))), (0o700, 0o600));
        set_permissions(lock(&folder), Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(Only::of(&folder), Err(Error::LockNotOurs { path }) if path == lock(&folder)));
        set_permissions(lock(&folder), Permissions::from_mode(0o600)).unwrap();
        set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(Only::of(&folder), Err(Error::LockNotOurs { path }) if path == folder));
    }

    #[test]
    fn a_link_is_not_followed() {
        let (_root, folder) = place("link");
        drop(Only::of(&folder).unwrap());
        let lock = lock(&folder);
        std::fs::remove_file(&lock).unwrap();
        std::os::unix::fs::symlink("/dev/null", &lock).unwrap();
        assert!(matches!(Only::of(&folder), Err(Error::File { doing: "open", .. })));
    }
}
