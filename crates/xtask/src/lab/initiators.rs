//! The lab of initiators: two volumes of one slow array, as disks of the kernel's own initiators, in virtual time.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{Lab, Options, initiators_guest, vm};
use crate::scratch::Scratch;

/// Many times what it takes on an idle machine.
const LIMIT: Duration = Duration::from_secs(600);

/// Runs the lab and reports each step.
pub(crate) fn run(lab: &mut Lab, options: &Options) -> Result<()> {
    let expected = initiators_guest::steps(&options.only);
    ensure!(expected > 0, "no step has {:?} in its name", options.only);
    let mut scratch = Scratch::new("initiators")?;
    if options.keep {
        scratch.keep();
    }
    let mut machine = vm::Machine::initiators(&options.build, &scratch, options.verbose)?;
    let guest = machine.boot(&options.guest_script("initiators", &["--only".into(), options.only.clone()])?, &[])?;
    let mut steps = 0;
    let mut since = Instant::now();
    guest.finish(LIMIT, |line| {
        let passed = line.strip_prefix("lab: passed ");
        if let Some(text) = passed.or_else(|| line.strip_prefix("lab: failed ")) {
            let (name, detail) = text.split_once(' ').unwrap_or((text, ""));
            steps += 1;
            lab.check(name, passed.is_some(), detail);
            println!("lab: {name} took {:.0} s", since.elapsed().as_secs_f64());
            since = Instant::now();
        } else if line.starts_with("lab: ") || line.starts_with("Error") {
            println!("{line}");
        }
    })?;
    ensure!(steps == expected, "{steps} of {expected} steps were reported");
    Ok(())
}
