//! The lab of a host's own disk: a protected reader beside a bulk writer, in control groups, in a virtual machine.

mod changes;
mod compare;
pub(crate) mod guest;
mod judge;
mod load;
mod postgresql;
mod short;
mod slower;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::base::scratch::Scratch;
use crate::check::run::{Lab, Options};
use crate::check::steps::{self, Plan};
use crate::machine::{kernel, vm};

/// Control group of the protected reader.
const PROTECTED: &str = "lab-reader";
/// Control group of the writer that loads the device at the same time.
const BULK: &str = "lab-writer";
/// Time limit of the lab: many times its duration on an idle machine.
const LIMIT: Duration = Duration::from_secs(600);
/// Time limit of a comparison, with its eleven runs of 110 s, and two of up to 600 s.
const COMPARISON_LIMIT: Duration = Duration::from_secs(10_800);
/// Time limit of a step with changes: a hundred starts of the agent.
const CHANGE_LIMIT: Duration = Duration::from_secs(3_600);
/// Time limit of the step with a real program, with its six measurements.
const REAL_PROGRAM_LIMIT: Duration = Duration::from_secs(3_600);

/// The script, extended so that the guest finds PostgreSQL below `unpacked`.
fn with_postgresql(unpacked: &Path, script: &str) -> String {
    let folder = unpacked.display().to_string().replace('\'', r"'\''");
    format!("export {}='{folder}'\n{script}", postgresql::UNPACKED)
}

/// The folder with PostgreSQL's packages where they are not installed; `None` where they cannot be fetched, and the guest then
/// skips the step unless they are installed.
fn unpacked(build: &Path) -> Option<PathBuf> {
    let folder = kernel::tools(build, "tools-postgresql", &["postgresql"]).and_then(|to| Ok(std::path::absolute(to)?));
    folder.inspect_err(|error| println!("lab: no packages of PostgreSQL: {error:#}")).ok()
}

/// Runs the lab and reports each step.
pub(crate) fn run(lab: &mut Lab, options: &Options) -> Result<()> {
    let tools = std::path::absolute(kernel::tools(&options.build, "tools-caches", &crate::caches::TOOLS)?)?;
    let plan = Plan::of(options);
    let expected = guest::steps(&plan);
    ensure!(expected > 0, "no step has {:?} in its name", options.only);
    let scratch = Scratch::kept_if(options.keep, "local")?;
    let mut machine = vm::Machine::new(vm::LOCAL, &options.build, &scratch, options.verbose)?;
    let script = options.lean_guest_script(&scratch, "local", &plan.arguments())?;
    let mut script = kernel::with_tools(&tools, &script);
    let mut limit = plan.limit(LIMIT) + u32::try_from(guest::comparisons(&plan).count())? * COMPARISON_LIMIT;
    limit += u32::try_from(guest::changes(&plan).count())? * CHANGE_LIMIT;
    if guest::has_real_program(&plan) {
        limit += REAL_PROGRAM_LIMIT;
        if let Some(folder) = unpacked(&options.build) {
            script = with_postgresql(&folder, &script);
        }
    }
    let guest = machine.boot(&script, &[])?;
    steps::report(lab, guest, limit, expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guest_finds_postgresql_in_a_folder_of_any_name() {
        let script = with_postgresql(Path::new("/srv/it's here"), "exec lab\n");
        assert_eq!(script, "export EVENKEEL_POSTGRESQL='/srv/it'\\''s here'\nexec lab\n");
    }

    #[test]
    fn the_step_with_a_real_program_is_taken_in_full_runs_or_by_name() {
        let plan = |full, only: &str| Plan { binary: PathBuf::new(), only: only.into(), full, repeats: 1 };
        for (full, only, is_taken) in
            [(false, "", false), (true, "", true), (false, "postgresql", true), (true, "compared", false)]
        {
            assert_eq!(guest::has_real_program(&plan(full, only)), is_taken, "{full} {only:?}");
        }
        assert_eq!(guest::steps(&plan(true, "postgresql")), 1);
    }
}
