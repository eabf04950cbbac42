//! Test that systemd accepts the package's unit files; skipped where systemd is not installed.

#[path = "../../xtask/src/test/skip.rs"]
mod skip;

use std::path::Path;
use std::process::Command;

/// Copies the unit files to the folder `to`, with the path of the program under test in place of the installed one. Returns the
/// paths of the copies.
fn copied(to: &Path) -> Vec<std::path::PathBuf> {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd");
    let files = std::fs::read_dir(shipped).expect("a folder").map(|entry| entry.expect("an entry").path());
    let copies = files.map(|path| {
        let text = std::fs::read_to_string(&path).expect("text");
        let copy = to.join(path.file_name().expect("a file"));
        let here = text.replace("=evenkeel ", &format!("={} ", env!("CARGO_BIN_EXE_evenkeel")));
        std::fs::write(&copy, here).expect("written");
        copy
    });
    copies.collect()
}

#[test]
fn systemd_finds_no_fault_in_them() {
    let folder = std::env::temp_dir().join(format!("evenkeel-units-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("made");
    let units = copied(&folder);
    assert_eq!(units.len(), 3, "{units:?}");
    let verified = Command::new("systemd-analyze").args(["verify", "--man=no"]).args(&units).output();
    let answer = verified.map(|output| (output.status, String::from_utf8_lossy(&output.stderr).into_owned()));
    let _ = std::fs::remove_dir_all(&folder);
    match answer {
        Err(error) => skip::skip(&format!("systemd-analyze cannot be run ({error})")),
        Ok((status, complaints)) => {
            // What it says about other units of this machine is not about ours.
            let ours: Vec<&str> = complaints.lines().filter(|line| line.contains("evenkeel")).collect();
            assert!(status.success() && ours.is_empty(), "{complaints}");
        }
    }
}
