//! Volumes of LVM inside a machine, by one LVM process, without a device manager to wait for.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::process;

/// Where LVM finds its settings.
const FOLDER: &str = "/run/lvm-lab";

/// Has LVM run `commands` on these disks alone; `expected` are the volumes that must be there then.
pub(super) fn run(disks: &[&str], commands: &str, expected: &[PathBuf]) -> Result<()> {
    let disks: String = disks.iter().map(|disk| format!("\"a|^/dev/{disk}$|\", ")).collect();
    let settings = format!(
        "devices {{ types = [ \"nullb\", 16 ] filter = [ {disks}\"r|.*|\" ] use_devicesfile = 0 }}\n\
         activation {{ udev_sync = 0 udev_rules = 0 monitoring = 0 }}\n\
         backup {{ backup = 0 archive = 0 }}\n\
         global {{ use_lvmpolld = 0 use_lvmlockd = 0 cache_check_executable = \"\" }}\n"
    );
    fs::create_dir_all(FOLDER)?;
    fs::write(format!("{FOLDER}/lvm.conf"), settings)?;
    fs::write(format!("{FOLDER}/commands"), commands)?;
    let script = fs::File::open(format!("{FOLDER}/commands"))?;
    let mut lvm = process::program("lvm");
    let output = lvm.env("LVM_SYSTEM_DIR", FOLDER).stdin(script).output().context("cannot start lvm")?;
    if let Some(path) = expected.iter().find(|path| !path.exists()) {
        let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        bail!("LVM made no {}: {}", path.display(), said.trim());
    }
    Ok(())
}
