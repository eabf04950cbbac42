//! The sync-failure lab: a device fails under load, works again, and in the end vanishes.
//!
//! The kernel reports a failed write-back to one sync and then forgets it, with the data. So the server has
//! to remember. `README.md` says what is checked and why.

mod faults;
mod requests;
mod stale;
mod trial;

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};

use self::faults::{Faulty, Kernel, plug_in};
use self::requests::Flushing;
use self::trial::Trial;
use super::guest::work_dir;
use super::pattern::SECTOR;
use super::vm::Machine;
use super::{Lab, Options, steps};
use crate::scratch::Scratch;
use crate::servers::{self, Address, Server, Setup, Storage};

const LIMIT: Duration = Duration::from_secs(400);
/// Size of a volume.
const VOLUME_SECTORS: u64 = 8 << 11;
/// `/dev/vda` has room for this many volumes.
const SLICES: u64 = 40;
/// Checks that every server must pass.
const CHECKS: [&str; 6] = [
    "failed_flush_stays_failed_on_every_connection",
    "failed_fua_write_fails_later_flushes",
    "background_write_back_failure_reaches_every_flush",
    "plain_errors_reach_the_client",
    "vanished_device_hurts_no_other",
    "restart_serves_what_was_flushed",
];
/// The check of a volume that is a file.
const RESTART: &str = "what_is_read_after_a_restart_stays";
/// Negative controls.
const CONTROLS: [&str; 3] =
    ["kernel_forgets_a_failed_sync_buffered", "kernel_forgets_a_failed_sync_direct", "a_server_that_forgets_is_caught"];

/// How a server reaches its devices.
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

/// Volumes on the device that fails and works again.
const FAULTY: [&str; 4] = ["flush", "fua", "background", "plain"];
/// The volume on a device of its own that vanishes.
const GONE: &str = "gone";
/// The volume on a device that never fails.
const OTHER: &str = "other";

impl Subject {
    fn is_direct(self) -> bool {
        self.cache == "direct"
    }

    /// The device of a volume in the guest.
    fn device(self, volume: &str) -> PathBuf {
        if volume == GONE {
            return format!("/dev/vd{}", char::from(b'b' + self.index as u8)).into();
        }
        Path::new("/dev/mapper").join(self.slice(volume))
    }

    fn slice(self, volume: &str) -> String {
        format!("{self}-{volume}")
    }

    /// Different for every subject and volume, so that no device can be taken for another.
    fn generation(self, volume: &str) -> u64 {
        let number = FAULTY.iter().chain(&[GONE, OTHER]).position(|v| *v == volume).unwrap_or(9);
        100 * (self.index + 1) + 10 * number as u64
    }
}

/// Runs the lab and reports each check.
pub(crate) fn run(lab: &mut Lab, options: &Options) -> Result<()> {
    ensure!(options.server == Server::Evenkeel, "this lab chooses the servers itself");
    let mut scratch = Scratch::new("sync-failure")?;
    if options.keep {
        scratch.keep();
    }
    let sizes = std::iter::once(SLICES).chain(SUBJECTS.map(|_| 1));
    let disks: Vec<PathBuf> = (0..=SUBJECTS.len()).map(|n| scratch.path().join(format!("disk{n}"))).collect();
    for (disk, slices) in disks.iter().zip(sizes) {
        File::create(disk)?.set_len(slices * VOLUME_SECTORS * SECTOR as u64)?;
    }
    let mut machine = Machine::new(&options.build, &scratch, options.verbose)?;
    let script = options.lean_guest_script(&scratch, "sync-failure", &[])?;
    let guest = machine.boot(&script, &disks)?;
    steps::report(lab, guest, LIMIT, SUBJECTS.len() * CHECKS.len() + 1 + CONTROLS.len())
}

/// What was observed for one check.
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

    /// An answer of the server: 0 or the protocol's number of an error.
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

/// nbdkit passes on what the kernel says: the same questions must find it out.
fn forgetful(flushing: &Flushing) -> Check {
    let mut check = Check::default();
    check.expect(flushing.failing.first().is_some_and(|a| *a != 0), "its first FLUSH did not fail");
    check.expect(flushing.repaired.contains(&0), "it never reported a lost write as durable");
    check
}

/// In the guest: all servers at once, because they share the moments at which the device fails and recovers.
pub(crate) fn guest(binary: &Path) -> Result<()> {
    let mut slices: Vec<String> = SUBJECTS.iter().flat_map(|s| FAULTY.map(|v| s.slice(v))).collect();
    slices.extend(["kernel-buffered", "kernel-direct", "nbdkit", "file"].map(str::to_owned));
    Faulty::create(&slices)?;

    let mut trials = SUBJECTS.map(|s| Trial::new(s, binary)).into_iter().collect::<Result<Vec<_>>>()?;
    let mut kernels = [Kernel::begin("buffered")?, Kernel::begin("direct")?];
    let storage = Storage::Block("/dev/mapper/nbdkit".into());
    let address = Address::Unix(work_dir("nbdkit.sock"));
    let setup = Setup { server: &Server::Nbdkit, binary, storage: &storage, address: &address };
    let _nbdkit = servers::start(&setup, &work_dir("nbdkit"))?;

    trials.iter_mut().for_each(|t| t.phase("before the failure", Trial::begin));
    let mut control = Flushing::begin(&address.plain(), servers::EXPORT, 1)?;

    Faulty::fail()?;
    trials.iter_mut().for_each(|t| t.phase("while the device fails", Trial::while_failing));
    kernels.iter_mut().try_for_each(Kernel::while_failing)?;
    control.lose()?;
    control.while_failing()?;

    Faulty::repair()?;
    trials.iter_mut().for_each(|t| t.phase("when the device works again", Trial::when_repaired));
    for (kernel, name) in kernels.iter().zip(CONTROLS) {
        kernel.when_repaired()?.report(name);
    }
    control.when_repaired()?;
    forgetful(&control).report(CONTROLS[2]);

    trials.iter_mut().for_each(|t| t.phase("when a device vanishes", Trial::vanish));
    trials.iter_mut().for_each(|t| t.phase("at the end", Trial::stop));
    plug_in()?;
    trials.iter_mut().for_each(|t| t.phase("after the restart", Trial::restarted));
    for trial in &trials {
        for (name, check) in CHECKS.iter().zip(&trial.checks) {
            check.report(&format!("{}_{name}", trial.subject));
        }
    }
    // Last, because the device fails once more.
    stale::check(binary, "/dev/mapper/file")?.report(RESTART);
    Ok(())
}
