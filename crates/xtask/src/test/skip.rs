//! Reports tests that cannot run on this machine. Test programs of all crates include this file.

use std::io::Write as _;

/// Reports the current test as skipped, in the file that EVENKEEL_SKIP_LOG names. The test should return afterwards.
///
/// Must be called on the thread that runs the test, because the thread's name is the test's name.
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
