//! Support for tests that need privileges: each test runs in kernel namespaces of its own, or is skipped.

#[path = "../../xtask/src/test/skip.rs"]
mod skip;

use rustix::thread::{UnshareFlags, unshare_unsafe};

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
