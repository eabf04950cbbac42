//! qemu-iotests: tests of QEMU's block layer that start an NBD server, with Evenkeel in the place of qemu-nbd.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::server::Kind;
use super::{Bench, Skip, script};
use crate::base::process;

/// Folders of QEMU's source that the suite needs.
pub(super) const PARTS: [&str; 2] = ["tests/qemu-iotests", "python/qemu"];
/// Time limit of a test: far above the duration of the slowest one.
const LIMIT: Duration = Duration::from_secs(300);
/// Name of QEMU's program, also of the script that starts it.
const QEMU: &str = "qemu-system-x86_64";
/// Beginning of the line by which the suite gives its server one second to start.
const PAUSE: &str = "sleep 1 #";
/// The line that waits, instead, until the server serves or has ended.
const WAIT: &str = r#"until [ -e "$QEMU_TEST_DIR/qemu-nbd.pid" ] || ! kill -0 $!; do sleep 0.02; done"#;
/// Tests whose expected output has two events in the order in which older versions of QEMU wrote them.
const OLDER: [&str; 2] = ["094", "119"];

/// Names of the tests, in the suite's order.
const TESTS: [&str; 22] = [
    "001", "002", "003", "004", "008", "009", "010", "011", "021", "032", "033", "077", "094", "104", "119", "123",
    "145", "147", "181", "197", "215", "259",
];

const FORMAT: &str = "its server serves an image that is not raw";
const OWN: &str = "its server is QEMU itself";
const SCRIPT: &str = "its server is a script that breaks connections off";

/// Tests with a server that are skipped, with the reason.
pub(super) const SKIPPED: [Skip; 23] = [
    ("005", "the suite of Debian 12 does not run it on NBD"),
    ("058", FORMAT),
    ("083", SCRIPT),
    ("143", OWN),
    ("162", "its server serves a null device"),
    ("194", OWN),
    ("205", OWN),
    ("208", OWN),
    ("209", FORMAT),
    ("223", FORMAT),
    ("233", "Evenkeel knows clients by certificates, not by shared keys"),
    ("240", OWN),
    ("241", "expects an export without a name, its size rounded up"),
    ("264", FORMAT),
    ("277", SCRIPT),
    ("302", FORMAT),
    ("307", OWN),
    ("block-status-cache", "expects metadata about backing files"),
    ("nbd-multiconn", OWN),
    ("nbd-qemu-allocation", FORMAT),
    ("nbd-reconnect-on-open", FORMAT),
    ("parallels-read-bitmap", FORMAT),
    ("qemu-img-bitmaps", FORMAT),
];

/// A copy of the suite, ready to run.
#[derive(Debug)]
pub(super) struct Suite {
    dir: PathBuf,
    qemu: PathBuf,
}

impl Suite {
    /// Copies the suite from the folder `source`, because some lines are changed.
    pub(super) fn build(bench: &Bench<'_>, source: &Path) -> Result<Self> {
        let root = bench.dir.join("iotests");
        process::output(process::program("cp").arg("-r").arg(source).arg(&root))?;
        let dir = root.join(PARTS[0]);
        edit(&dir.join("common.rc"), awaiting)?;
        for test in OLDER {
            edit(&dir.join(test).with_extension("out"), in_new_order)?;
        }
        let program = process::find_program(QEMU).with_context(|| format!("{QEMU} is not installed"))?;
        // The distributions' QEMU is without the accelerator `qtest`, by which the suite runs no guest; no guest has a disk to
        // boot from.
        let text = format!("#!/bin/bash\nexec '{}' \"${{@/#qtest/tcg}}\"\n", program.display());
        Ok(Self { dir, qemu: script(&root, QEMU, &text)? })
    }

    /// Runs the tests one after the other. Each starts its servers, of this `kind`, through the stand-in for qemu-nbd.
    pub(super) fn run(&self, bench: &mut Bench<'_>, kind: Kind) {
        for test in TESTS {
            let name = format!("iotests_{test}_{}", kind.name());
            if bench.wants(&name) {
                let outcome = self.one(bench, test, kind, &name);
                bench.report(&name, outcome);
            }
        }
    }

    fn one(&self, bench: &Bench<'_>, test: &str, kind: Kind, name: &str) -> Result<()> {
        let dir = bench.dir.join(name);
        // Paths of sockets have little room: they leave the test's name out.
        let sockets = bench.dir.join("s");
        let _ = std::fs::remove_dir_all(&sockets);
        let servers = dir.join("servers");
        let stand_in = bench.stand_in("qemu-nbd", kind, &servers)?;
        let mut check = process::program("python3");
        check.args(["check", "-tap", "-raw", "-nbd", test]).current_dir(&self.dir);
        check.env("TEST_DIR", dir.join("test")).env("SOCK_DIR", &sockets);
        check.env("QEMU_PROG", &self.qemu).env("QEMU_NBD_PROG", &stand_in);
        // The suite wants all of QEMU's programs; these tests start no storage daemon.
        for (variable, program) in [("QEMU_IMG_PROG", "qemu-img"), ("QEMU_IO_PROG", "qemu-io"), ("QSD_PROG", "false")] {
            check.env(variable, process::find_program(program).with_context(|| format!("{program} is missing"))?);
        }
        let mut said = Vec::new();
        process::stream(&mut check, LIMIT, |line| said.push(line.to_owned()))?;
        // A test that did not run, or not all of it, ends well, too.
        if !said.contains(&format!("ok raw {test}")) || said.iter().any(|line| line.contains("case not run")) {
            bail!("not passed:\n{}", said[said.len().saturating_sub(60)..].join("\n"));
        }
        let started = std::fs::read_dir(&servers)?.filter_map(Result::ok).filter(|entry| entry.path().is_dir()).count();
        ensure!(started > 0, "the test started no server");
        std::fs::remove_dir_all(&dir)?;
        Ok(())
    }
}

fn edit(path: &Path, change: impl Fn(&str) -> Result<String>) -> Result<()> {
    let text = std::fs::read_to_string(path)?;
    std::fs::write(path, change(&text).with_context(|| path.display().to_string())?)?;
    Ok(())
}

/// The suite's library with a wait for the server instead of a pause of one second, which a busy machine exceeds.
fn awaiting(library: &str) -> Result<String> {
    let is_pause = |line: &&str| line.trim_start().starts_with(PAUSE);
    ensure!(library.lines().filter(is_pause).count() == 1, "the suite starts its server in another way");
    Ok(library.lines().map(|line| if is_pause(&line) { WAIT } else { line }.to_owned() + "\n").collect())
}

/// An expected output with the event of the end before the reply to the command, as later versions of QEMU write them.
fn in_new_order(output: &str) -> Result<String> {
    let mut lines: Vec<&str> = output.lines().collect();
    let event = lines.iter().position(|line| line.contains("\"SHUTDOWN\"")).context("no SHUTDOWN event")?;
    if event > 0 && lines[event - 1] == r#"{"return": {}}"# {
        lines.swap(event - 1, event);
    }
    Ok(lines.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_test_runs_or_is_skipped_and_stands_once() {
        let names: Vec<&str> = TESTS.into_iter().chain(SKIPPED.iter().map(|(name, _)| *name)).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        assert!(OLDER.iter().all(|test| TESTS.contains(test)));
    }

    #[test]
    fn the_suite_waits_for_its_server_and_knows_the_order_of_events() {
        assert_eq!(awaiting("a\n  sleep 1 # later\nb\n").unwrap(), format!("a\n{WAIT}\nb\n"));
        assert!(awaiting("sleep 1\n").is_err());
        let (reply, event) = (r#"{"return": {}}"#, r#"{"event": "SHUTDOWN"}"#);
        let newer = format!("{event}\n{reply}\nend\n");
        assert_eq!(in_new_order(&format!("{reply}\n{event}\nend\n")).unwrap(), newer);
        assert_eq!(in_new_order(&newer).unwrap(), newer);
    }
}
