//! The package lab: Evenkeel's package is installed in a virtual machine, upgraded while the server serves, kept over a reboot,
//! removed, and purged.

pub(crate) mod guest;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use self::guest::{BEFORE, Boot, REBOOTED};
use crate::base::process;
use crate::base::scratch::Scratch;
use crate::base::spelled::spelled;
use crate::check::run::{Lab, Options};
use crate::check::steps;
use crate::machine::vm::{self, Machine, SHARE};

const LIMIT: Duration = Duration::from_secs(600);
/// Size in bytes of the sparse file for changes of the guest's root: room for two versions of the program.
const LAYER_BYTES: u64 = 2 << 30;
/// Version that is installed first, and version of its upgrade.
const VERSIONS: [&str; 2] = ["0.0.1", "0.0.2"];

/// Runs the lab and reports each step.
pub(crate) fn run(lab: &mut Lab, options: &Options) -> Result<()> {
    let scratch = Scratch::kept_if(options.keep, "package")?;
    let packages = packages(options, &scratch)?;
    let layer = scratch.path().join("layer");
    std::fs::File::create(&layer)?.set_len(LAYER_BYTES)?;
    process::output(process::program("mkfs.ext4").args(["-q", "-F"]).arg(&layer))?;
    let mut machine = Machine::new(vm::SERVICES, &options.build, &scratch, options.verbose)?.layered();
    for (boot, expected) in [(Boot::First, BEFORE.len()), (Boot::Second, REBOOTED.len())] {
        let mut arguments = vec!["--boot".to_owned(), spelled(&boot)];
        arguments.extend(options.full.then(|| "--full".to_owned()));
        for package in &packages {
            arguments.extend(["--package".into(), package.display().to_string()]);
        }
        let guest = machine.boot(&options.guest_script("package", &arguments)?, std::slice::from_ref(&layer))?;
        steps::report(lab, guest, LIMIT, expected)?;
    }
    Ok(())
}

/// Makes both packages and returns their paths in the guest. The program is stripped and the packages are not compressed,
/// because the guest's processors are emulated.
fn packages(options: &Options, scratch: &Scratch) -> Result<Vec<PathBuf>> {
    let stripped = scratch.path().join("evenkeel");
    process::output(process::program("strip").arg("-o").arg(&stripped).arg(&options.binary))?;
    let pack = |version: &str| {
        let file = (options.pack)(&stripped, &options.binary, version, scratch.path())?;
        Ok(Path::new(SHARE).join(file.file_name().context("the package has no name")?))
    };
    VERSIONS.into_iter().map(pack).collect()
}
