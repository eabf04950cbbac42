//! The side of the lab inside the machine.

use std::fmt;
use std::path::Path;

use anyhow::{Result, anyhow};

use super::faults::{Faulty, Kernel, plug_in};
use super::requests::Flushing;
use super::trial::Trial;
use super::{CHECKS, CONTROLS, FAULTY, RESTART, SUBJECTS, stale};
use crate::base::servers::{self, Address, Server, Setup, Storage};
use crate::check::steps;
use crate::machine::guest::work_dir;

/// What was observed for one check.
#[derive(Debug, Default)]
pub(super) struct Check {
    pub(super) observed: u32,
    pub(super) wrong: Vec<String>,
}

impl Check {
    pub(super) fn expect(&mut self, holds: bool, what: impl fmt::Display) {
        self.observed += 1;
        if !holds {
            self.wrong.push(what.to_string());
        }
    }

    /// An answer of the server: 0 or the protocol's number of an error.
    pub(super) fn answer(&mut self, got: u32, wanted: u32, what: impl fmt::Display) {
        self.expect(got == wanted, format_args!("{what}: answered with {got}, should be {wanted}"));
    }

    pub(super) fn report(&self, name: &str) {
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

/// All servers at once, because they share the moments at which the device fails and recovers.
pub(crate) fn run(binary: &Path) -> Result<()> {
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
