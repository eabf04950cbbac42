//! The lab of initiators: two volumes of one slow array, as disks of the kernel's own initiators, in virtual time.

pub(crate) mod guest;

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::base::scratch::Scratch;
use crate::check::run::{Lab, Options};
use crate::check::steps::{self, Plan};
use crate::machine::vm;

/// Time limit of the lab: many times its duration on an idle machine.
const LIMIT: Duration = Duration::from_secs(600);

/// Runs the lab and reports each step.
pub(crate) fn run(lab: &mut Lab, options: &Options) -> Result<()> {
    let plan = Plan::of(options);
    let expected = guest::steps(&plan);
    ensure!(expected > 0, "no step has {:?} in its name", options.only);
    let scratch = Scratch::kept_if(options.keep, "initiators")?;
    let mut machine = vm::Machine::new(vm::INITIATORS, &options.build, &scratch, options.verbose)?;
    let guest = machine.boot(&options.lean_guest_script(&scratch, "initiators", &plan.arguments())?, &[])?;
    steps::report(lab, guest, plan.limit(LIMIT), expected)
}
