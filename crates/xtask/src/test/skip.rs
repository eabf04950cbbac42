//! How a test says that it cannot run here. Test programs of all crates include this file.

use std::io::Write as _;

/// Reports the test of this thread as skipped, in the file that `cargo xtask test` names. The test returns afterwards.
///
/// The harness names the thread of a test after the test; a thread that a test starts has no such name.
pub(crate) fn skip(reason: &str) {
    let thread = std::thread::current();
    let line = format!("{}: {reason}\n", thread.name().expect("the name of a test"));
    print!("SKIPPED: {line}");
    if let Some(log) = std::env::var_os("EVENKEEL_SKIP_LOG") {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(log);
        // In one piece: the tests of a program run side by side.
        log.expect("the log of skipped tests").write_all(line.as_bytes()).expect("written");
    }
}
