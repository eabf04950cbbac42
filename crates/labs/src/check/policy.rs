//! One policy file for all enforcement points. Each lab stores it beside its host's configuration file and enforces one of the
//! policy's pools.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::base::process;

/// The text of the policy file.
const POLICY: &str = include_str!("policy.toml");
/// Pools of the policy, each with the name of its enforcement point.
const POINTS: [(&str, &str); 5] =
    [("main", "queue"), ("vg1", "packets"), ("cached", "cgroup"), ("san", "queue_depth"), ("ceph", "osd")];

/// Writes a host's configuration file with the tables `host`, and beside it the policy file, to which it refers.
pub(crate) fn write(file: &Path, host: &str) -> Result<()> {
    const NAME: &str = "policy.toml";
    let policy = file.parent().map(|folder| folder.join(NAME)).context("the file is in no folder")?;
    std::fs::write(&policy, POLICY).with_context(|| format!("cannot write {}", policy.display()))?;
    std::fs::write(file, format!("policy = {NAME:?}\n{host}"))
        .with_context(|| format!("cannot write {}", file.display()))
}

/// Checks that `evenkeel check` reports `pool`, and no other pool, as enforced on this host. Returns the pool's effective
/// settings as text.
pub(crate) fn is_enforced(binary: &Path, file: &Path, pool: &str) -> Result<String> {
    let checked = process::json(Command::new(binary).arg("check").arg(file).arg("--json"))?;
    let rows = checked["rows"].as_array().context("evenkeel check has no rows")?;
    let here = rows.iter().filter(|row| row["here"] != "missing");
    let word = |row: &Value, key: &str| row[key].as_str().unwrap_or("all").to_owned();
    let enforced: BTreeSet<(String, String)> =
        here.clone().map(|row| (word(row, "pool"), word(row, "point"))).collect();
    let point = POINTS.iter().find(|(known, _)| *known == pool).context("the policy has no such pool")?.1;
    ensure!(
        enforced == BTreeSet::from([(pool.to_owned(), point.to_owned())]),
        "enforced here: {enforced:?}; {checked}"
    );
    let settings: Vec<String> = here.map(|row| format!("{}: {}", word(row, "tenant"), word(row, "setting"))).collect();
    Ok(format!("{pool} by {point}: {}", settings.join(", ")))
}

/// Makes a symbolic link to a device, as udev does, so that a policy can name the device independently of its kernel name.
/// Returns the link's path.
pub(crate) fn name_device(name: &str, device: &Path) -> Result<PathBuf> {
    let link = Path::new("/dev/disk/by-id").join(name);
    std::fs::create_dir_all("/dev/disk/by-id")?;
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink(device, &link).with_context(|| format!("cannot make {}", link.display()))?;
    Ok(link)
}
