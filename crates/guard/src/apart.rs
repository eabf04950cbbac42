//! Support for tests that need privileges: each test runs in kernel namespaces of its own, or is skipped.

#[path = "../../xtask/src/test/skip.rs"]
mod skip;

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::sensor::tracepoints::FOLDERS;
pub(crate) use skip::skip;

/// Runs `body` on a thread in new `namespaces` of its own; skips the test if the process may not create namespaces. The
/// thread has the test's name, by which `body` can skip the test.
pub(crate) fn apart(namespaces: UnshareFlags, body: impl FnOnce() + Send + 'static) {
    let thread = std::thread::current();
    let thread = std::thread::Builder::new().name(thread.name().expect("the name of a test").to_owned());
    let ran = thread.spawn(move || {
        // SAFETY: namespaces of networks and mounts change no descriptor or memory that others share.
        match unsafe { unshare_unsafe(namespaces) } {
            Ok(()) => body(),
            Err(errno) => skip(&format!("may not make namespaces: {errno}")),
        }
    });
    ran.expect("a thread").join().unwrap();
}

/// Mounts a tracefs for the test and returns its folder; call it in a mount namespace of the test's own. `None` if that
/// fails.
pub(crate) fn tracefs() -> Option<PathBuf> {
    let mount = |arguments: &[&str]| {
        let status = std::process::Command::new("mount").args(arguments).stderr(std::process::Stdio::null()).status();
        status.is_ok_and(|status| status.success()).then_some(())
    };
    mount(&["--make-rprivate", "/"])?;
    mount(&["-t", "tracefs", "none", FOLDERS[0]])?;
    Some(FOLDERS[0].into())
}

/// Number by which the kernel knows this process's control group; `None` without cgroup v2, or if the group's folder is not
/// visible here.
pub(crate) fn own_cgroup() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let folder = Path::new(crate::sensor::cgroup::ROOT).join(path);
    let processes = std::fs::read_to_string(folder.join("cgroup.procs")).ok()?;
    let own = std::process::id().to_string();
    let is_own = processes.lines().any(|process| process == own);
    Some(std::fs::metadata(folder).ok()?.ino()).filter(|_| is_own)
}
