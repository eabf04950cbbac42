//! The lab of a host's own disk: a protected reader beside a bulk writer, in control groups, in a virtual machine.

mod compare;
pub(crate) mod guest;

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::base::scratch::Scratch;
use crate::check::run::{Lab, Options};
use crate::check::steps::{self, Plan};
use crate::machine::{kernel, vm};

/// Control group of the protected reader.
const PROTECTED: &str = "lab-reader";
/// Control group of the load beside it.
const BULK: &str = "lab-writer";
/// Time limit of the lab: many times its duration on an idle machine.
const LIMIT: Duration = Duration::from_secs(600);
/// Time limit of a comparison, with its thirteen runs of up to 100 s.
const COMPARISON_LIMIT: Duration = Duration::from_secs(7_200);

/// Runs the lab and reports each step.
pub(crate) fn run(lab: &mut Lab, options: &Options) -> Result<()> {
    let tools = std::path::absolute(kernel::tools(&options.build, "tools-caches", &crate::caches::TOOLS)?)?;
    let plan = Plan::of(options);
    let expected = guest::steps(&plan);
    ensure!(expected > 0, "no step has {:?} in its name", options.only);
    let scratch = Scratch::kept_if(options.keep, "local")?;
    let mut machine = vm::Machine::local(&options.build, &scratch, options.verbose)?;
    let script = options.lean_guest_script(&scratch, "local", &plan.arguments())?;
    let guest = machine.boot(&kernel::with_tools(&tools, &script), &[])?;
    let comparisons = u32::try_from(guest::comparisons(&plan).count())?;
    steps::report(lab, guest, plan.limit(LIMIT) + comparisons * COMPARISON_LIMIT, expected)
}
