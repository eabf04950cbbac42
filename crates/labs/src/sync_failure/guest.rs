//! The part of the sync-failure lab that runs in the virtual machine.

use std::path::Path;

use anyhow::Result;

use super::faults::{Faulty, Kernel, plug_in};
use super::requests::Flushing;
use super::trial::Trial;
use super::{CHECKS, CONTROLS, Check, FAULTY, RESTART, SUBJECTS, scsi, stale};
use crate::base::servers::{self, Address, Server, Setup, Storage};
use crate::machine::guest::work_dir;

/// Checks, as a negative control, that the lab detects a server that forgets a failure: nbdkit, which passes on the kernel's
/// answers.
fn forgetful(flushing: &Flushing) -> Check {
    let mut check = Check::default();
    check.expect(flushing.failing.first().is_some_and(|a| *a != 0), "its first FLUSH did not fail");
    check.expect(flushing.repaired.contains(&0), "it never reported a lost write as durable");
    check
}

/// Takes all servers through the phases together, because they share the device that fails and recovers.
pub(crate) fn run(binary: &Path) -> Result<()> {
    let mut slices: Vec<String> = SUBJECTS.iter().flat_map(|s| FAULTY.map(|v| s.slice(v))).collect();
    slices.extend(["kernel-buffered", "kernel-direct", "nbdkit", "file"].map(str::to_owned));
    Faulty::create(&slices)?;

    let mut trials = SUBJECTS.map(|s| Trial::new(s, binary)).into_iter().collect::<Result<Vec<_>>>()?;
    let mut kernels = [Kernel::begin("buffered")?, Kernel::begin("direct")?];
    let storage = Storage::Block("/dev/mapper/nbdkit".into());
    let address = Address::Unix(work_dir("nbdkit.sock"));
    let setup = Setup { server: &Server::Nbdkit, binary, storage: &storage, address: &address };
    let _nbdkit = servers::start(&setup, None, &work_dir("nbdkit"))?;

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
    drop(trials);
    scsi::check(binary)
}
