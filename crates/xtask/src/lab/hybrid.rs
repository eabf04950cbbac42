//! The hybrid lab: a promised throughput on a slow device behind a cache, with real control groups, in virtual time.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::{Lab, Options, hybrid_guest, kernel, steps, vm};
use crate::scratch::Scratch;

/// Many times what it takes on an idle machine.
const LIMIT: Duration = Duration::from_secs(1500);
/// Makes the headers of bcache; used from where it is unpacked.
const TOOLS: [&str; 1] = ["bcache-tools"];

/// Runs the lab and reports each step.
pub(crate) fn run(lab: &mut Lab, options: &Options) -> Result<()> {
    let tools = std::path::absolute(kernel::tools(&options.build, "tools-hybrid", &TOOLS)?)?;
    let expected = hybrid_guest::steps(&options.only);
    ensure!(expected > 0, "no step has {:?} in its name", options.only);
    let mut scratch = Scratch::new("hybrid")?;
    if options.keep {
        scratch.keep();
    }
    let mut machine = vm::Machine::hybrid(&options.build, &scratch, options.verbose)?;
    let arguments = ["--only".into(), options.only.clone(), "--tools".into(), tools.display().to_string()];
    let guest = machine.boot(&options.guest_script("hybrid", &arguments)?, &[])?;
    steps::report(lab, guest, LIMIT, expected)
}
