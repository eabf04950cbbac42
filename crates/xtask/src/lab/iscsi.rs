//! The iSCSI lab: packets of real initiators held back in front of a real target, in virtual time.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::vm::Machine;
use super::{Lab, Options, iscsi_guest};
use crate::scratch::Scratch;

/// Many times what it takes on an idle machine.
const LIMIT: Duration = Duration::from_secs(1500);

/// Runs the lab and reports each step.
pub(crate) fn run(lab: &mut Lab, options: &Options) -> Result<()> {
    let mut scratch = Scratch::new("iscsi")?;
    if options.keep {
        scratch.keep();
    }
    let mut machine = Machine::storage_network(&options.build, &scratch, options.verbose)?;
    let guest = machine.boot(&options.guest_script("iscsi", &["--only".into(), options.only.clone()])?, &[])?;
    let mut steps = 0;
    let ended = guest.finish(LIMIT, |line| {
        let passed = line.strip_prefix("lab: passed ");
        if let Some(text) = passed.or_else(|| line.strip_prefix("lab: failed ")) {
            let (name, detail) = text.split_once(' ').unwrap_or((text, ""));
            steps += 1;
            lab.check(name, passed.is_some(), detail);
        } else if line.starts_with("lab: ") || line.starts_with("Error") {
            println!("{line}");
        }
    });
    if machine.failed_boots > 0 {
        println!("lab: {} boots had to be repeated", machine.failed_boots);
    }
    ended.context("in the machine")?;
    let expected = iscsi_guest::steps(&options.only);
    ensure!(steps == expected, "{steps} of {expected} steps were reported");
    Ok(())
}
