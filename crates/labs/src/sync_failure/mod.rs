//! The sync-failure lab: a device fails under load, works again, and in the end vanishes; a SCSI disk makes single errors.
//!
//! The kernel reports a failed write-back to one sync and after that forgets the failure and the data, so the server must
//! remember the failure. `README.md` describes the checks and their reasons.

mod faults;
pub(crate) mod guest;
mod requests;
mod scsi;
mod stale;
#[path = "../../../xtask/src/test/tables.rs"]
mod tables;
mod trial;

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};

use crate::base::scratch::Scratch;
use crate::base::servers::Server;
use crate::check::pattern::SECTOR;
use crate::check::run::{Lab, Options};
use crate::check::steps;
use crate::machine::vm::{self, Machine};

const LIMIT: Duration = Duration::from_secs(600);
/// Size of a volume, in sectors.
const VOLUME_SECTORS: u64 = 8 << 11;
/// Number of volumes for which `/dev/vda` has room.
const SLICES: u64 = 40;
/// Names of the checks that every server must pass.
const CHECKS: [&str; 6] = [
    "failed_flush_stays_failed_on_every_connection",
    "failed_fua_write_fails_later_flushes",
    "background_write_back_failure_reaches_every_flush",
    "plain_errors_reach_the_client",
    "vanished_device_hurts_no_other",
    "restart_serves_what_was_flushed",
];
/// Name of the check of a subject whose volume is a file.
const RESTART: &str = "what_is_read_after_a_restart_stays";
/// Names of the negative controls: checks that the lab detects a forgotten failure.
const CONTROLS: [&str; 3] =
    ["kernel_forgets_a_failed_sync_buffered", "kernel_forgets_a_failed_sync_direct", "a_server_that_forgets_is_caught"];

/// A subject of the lab: a server, and the way in which it accesses its devices.
#[derive(Debug, Clone, Copy)]
struct Subject {
    engine: &'static str,
    cache: &'static str,
    index: u64,
}

const SUBJECTS: [Subject; 4] = [
    Subject { engine: "io_uring", cache: "buffered", index: 0 },
    Subject { engine: "io_uring", cache: "direct", index: 1 },
    Subject { engine: "epoll", cache: "buffered", index: 2 },
    Subject { engine: "epoll", cache: "direct", index: 3 },
];

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}", self.engine, self.cache)
    }
}

/// Names of the volumes on the device that fails and works again.
const FAULTY: [&str; 4] = ["flush", "fua", "background", "plain"];
/// Name of the volume on a device that vanishes.
const GONE: &str = "gone";
/// Name of the volume on a device that never fails.
const OTHER: &str = "other";

impl Subject {
    fn is_direct(self) -> bool {
        self.cache == "direct"
    }

    /// Path in the guest of the device behind a volume of this subject.
    fn device(self, volume: &str) -> PathBuf {
        if volume == GONE {
            return format!("/dev/vd{}", char::from(b'b' + self.index as u8)).into();
        }
        Path::new("/dev/mapper").join(self.slice(volume))
    }

    fn slice(self, volume: &str) -> String {
        format!("{self}-{volume}")
    }

    /// Generation of the test data, different for every subject and volume, so that data of another device is detected.
    fn generation(self, volume: &str) -> u64 {
        let number = FAULTY.iter().chain(&[GONE, OTHER]).position(|v| *v == volume).unwrap_or(9);
        100 * (self.index + 1) + 10 * number as u64
    }
}

/// Runs the lab and reports each check.
pub(crate) fn run(lab: &mut Lab, options: &Options) -> Result<()> {
    ensure!(options.server == Server::Evenkeel, "this lab chooses the servers itself");
    let scratch = Scratch::kept_if(options.keep, "sync-failure")?;
    let sizes = std::iter::once(SLICES).chain(SUBJECTS.map(|_| 1));
    let disks: Vec<PathBuf> = (0..=SUBJECTS.len()).map(|n| scratch.path().join(format!("disk{n}"))).collect();
    for (disk, slices) in disks.iter().zip(sizes) {
        File::create(disk)?.set_len(slices * VOLUME_SECTORS * SECTOR as u64)?;
    }
    let mut machine = Machine::new(vm::FAILING, &options.build, &scratch, options.verbose)?;
    let script = options.lean_guest_script(&scratch, "sync-failure", &[])?;
    let guest = machine.boot(&script, &disks)?;
    steps::report(lab, guest, LIMIT, SUBJECTS.len() * CHECKS.len() + 1 + CONTROLS.len() + scsi::CHECKS)
}

/// The observations of one check, of which any may be a fault.
#[derive(Debug, Default)]
struct Check {
    observed: u32,
    wrong: Vec<String>,
}

impl Check {
    fn expect(&mut self, holds: bool, what: impl fmt::Display) {
        self.observed += 1;
        if !holds {
            self.wrong.push(what.to_string());
        }
    }

    /// Records the server's answer to `what` (0, or an error number of the NBD protocol), with the wanted answer.
    fn answer(&mut self, got: u32, wanted: u32, what: impl fmt::Display) {
        self.expect(got == wanted, format_args!("{what}: answered with {got}, should be {wanted}"));
    }

    fn report(&self, name: &str) {
        let outcome = match self.wrong.first() {
            None if self.observed > 0 => Ok(format!("{} observations", self.observed)),
            None => Err(anyhow!("nothing was observed")),
            Some(first) => Err(anyhow!("{} of {} observations were wrong; {first}", self.wrong.len(), self.observed)),
        };
        steps::tell(name, outcome);
    }
}
