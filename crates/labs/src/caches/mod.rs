//! The caches lab: guaranteed throughput on a slow device behind a cache, with real control groups, in a virtual machine.

pub(crate) mod guest;
mod stage;

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::base::scratch::Scratch;
use crate::check::run::{Lab, Options};
use crate::check::steps::{self, Plan};
use crate::machine::{kernel, vm};

/// Time limit of the lab: many times its duration on an idle machine.
const LIMIT: Duration = Duration::from_secs(1500);
/// Packages of the distribution that are not installed, but unpacked into a folder and used from there.
pub(super) const TOOLS: [&str; 2] = ["bcache-tools", "lvm2"];

/// Runs the lab and reports each step.
pub(crate) fn run(lab: &mut Lab, options: &Options) -> Result<()> {
    let tools = std::path::absolute(kernel::tools(&options.build, "tools-caches", &TOOLS)?)?;
    let plan = Plan::of(options);
    let expected = guest::steps(&plan);
    ensure!(expected > 0, "no step has {:?} in its name", options.only);
    let scratch = Scratch::kept_if(options.keep, "caches")?;
    let mut machine = vm::Machine::new(vm::CACHES, &options.build, &scratch, options.verbose)?;
    let script = options.lean_guest_script(&scratch, "caches", &plan.arguments())?;
    let guest = machine.boot(&kernel::with_tools(&tools, &script), &[])?;
    steps::report(lab, guest, plan.limit(LIMIT), expected)
}
