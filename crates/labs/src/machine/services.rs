//! Starts and asks systemd in the guest; the program is the host's.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::base::process::{self, Running};
use crate::machine::guard::children;

/// Path of systemd, equal in all distributions.
const SYSTEMD: &str = "/lib/systemd/systemd";
/// Folder for the machine's own units.
pub(crate) const FOLDER: &str = "/etc/systemd/system";
pub(crate) const GUARD: &str = "evenkeel-guard.service";
pub(crate) const SERVE: &str = "evenkeel.service";
/// Units that are masked in the guest, because they need hardware, would change the host's files, or take time and are not
/// needed.
const MASKED: [&str; 26] = [
    "systemd-tmpfiles-setup.service",
    "systemd-tmpfiles-setup-dev.service",
    "systemd-update-utmp.service",
    "systemd-timesyncd.service",
    "systemd-udevd.service",
    "systemd-udevd-control.socket",
    "systemd-udevd-kernel.socket",
    "systemd-udev-trigger.service",
    "systemd-logind.service",
    "systemd-binfmt.service",
    "proc-sys-fs-binfmt_misc.automount",
    "systemd-firstboot.service",
    "systemd-hwdb-update.service",
    "systemd-journal-catalog-update.service",
    "systemd-machine-id-commit.service",
    "systemd-modules-load.service",
    "systemd-pstore.service",
    "systemd-random-seed.service",
    "systemd-sysctl.service",
    "systemd-sysusers.service",
    "kmod-static-nodes.service",
    "ldconfig.service",
    "blk-availability.service",
    "lvm2-lvmpolld.socket",
    "lvm2-monitor.service",
    "timers.target",
];
/// Folder of systemd's generators, which make units from the host's files at each boot and reload; and the folder in which
/// generators are masked.
const GENERATORS: [&str; 2] = ["/lib/systemd/system-generators", "/etc/systemd/system-generators"];
/// Longest wait for systemd: many times the time that an emulated processor needs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(150);
const POLL: Duration = Duration::from_millis(200);

/// Prepares the guest so that systemd starts only the units that a lab needs.
pub(crate) fn prepare() -> Result<()> {
    for unit in MASKED {
        mask(Path::new(FOLDER), unit)?;
    }
    for entry in std::fs::read_dir(GENERATORS[0]).into_iter().flatten() {
        mask(Path::new(GENERATORS[1]), entry?.file_name())?;
    }
    write(&format!("{FOLDER}/lab.target"), "[Unit]\nDescription=The lab\n")?;
    // The kernel makes no user namespace below a changed root, which this machine's is.
    drop_in(SERVE, "[Service]\nPrivateUsers=no\n")?;
    write("/etc/fstab", "")?;
    write("/etc/machine-id", "0123456789abcdef0123456789abcdef\n")
}

/// Masks a unit or generator, by its name, with an entry in `folder`, which comes before other folders for systemd.
fn mask(folder: &Path, name: impl AsRef<Path>) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let link = folder.join(name);
    let _ = std::fs::remove_file(&link);
    Ok(std::os::unix::fs::symlink("/dev/null", link)?)
}

/// Starts systemd in a process namespace of its own, and waits until the unit `target` is reached. systemd ends when the value
/// is dropped.
pub(crate) fn boot(target: &str) -> Result<Running> {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child", SYSTEMD, "--system", &format!("--unit={target}")]);
    // It looks after services as anywhere, and leaves the machine alone.
    command.env("container", "lab").stdin(Stdio::null());
    let systemd = Running::spawn(&mut command)?;
    let first_child = || children(systemd.id()).ok()?.first().copied();
    until("systemd", PATIENCE, || Ok(first_child().is_some()))?;
    MANAGER.store(first_child().context("systemd is gone")?, Ordering::Relaxed);
    until("systemd", PATIENCE, || Ok(show(target, "ActiveState").is_ok_and(|state| state == "active")))?;
    Ok(systemd)
}

pub(crate) fn write(path: &str, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {path}"))
}

/// Writes the lab's settings of a unit to a drop-in file, which replaces the lab's earlier one.
pub(crate) fn drop_in(unit: &str, text: &str) -> Result<()> {
    named_drop_in(unit, "lab", text)
}

/// Writes further settings of a unit to the drop-in file with this name.
pub(crate) fn named_drop_in(unit: &str, name: &str, text: &str) -> Result<()> {
    let folder = format!("{FOLDER}/{unit}.d");
    std::fs::create_dir_all(&folder)?;
    write(&format!("{folder}/{name}.conf"), text)
}

/// Process id of systemd outside its process namespace.
static MANAGER: AtomicU32 = AtomicU32::new(0);

/// Prints the state and the end of the journal of both services, for a step that has failed.
pub(crate) fn print_journals() {
    for unit in [GUARD, SERVE] {
        let properties = "ActiveState,SubState,Result,ExecMainCode,ExecMainStatus,NRestarts,StatusErrno";
        for text in [
            systemctl(&["show", "-p", properties, unit]),
            beside("journalctl", &["--no-pager", "-n", "20", "-u", unit]),
        ] {
            let text = text.unwrap_or_else(|e| format!("{e:#}"));
            text.lines().for_each(|line| println!("lab: {unit}: {line}"));
        }
    }
}

/// Path by which a process outside of systemd's mount namespace reaches the file `path` inside it.
pub(crate) fn inside(path: &str) -> PathBuf {
    format!("/proc/{}/root{path}", MANAGER.load(Ordering::Relaxed)).into()
}

/// Runs a program in systemd's namespaces and root, because systemd does not answer processes that it cannot see. Returns its
/// output.
pub(crate) fn beside(program: &str, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new("nsenter");
    command.arg(format!("--target={}", MANAGER.load(Ordering::Relaxed))).args(["--pid", "--mount", "--root", program]);
    process::output(command.args(arguments))
}

pub(crate) fn systemctl(arguments: &[&str]) -> Result<String> {
    beside("systemctl", arguments)
}

pub(crate) fn show(unit: &str, property: &str) -> Result<String> {
    Ok(systemctl(&["show", "-P", property, unit])?.trim().to_owned())
}

pub(crate) fn number(unit: &str, property: &str) -> Result<u64> {
    let text = show(unit, property)?;
    text.parse().with_context(|| format!("{property} of {unit} is {text:?}"))
}

pub(crate) fn until(what: &str, limit: Duration, holds: impl FnMut() -> Result<bool>) -> Result<Duration> {
    process::until(what, [limit, POLL], holds)
}

/// True if a service's state is `active (running)`.
pub(crate) fn is_running(unit: &str) -> Result<bool> {
    Ok(show(unit, "SubState")? == "running")
}

/// The values of one property of several units, read by a single call, because each call takes an emulated processor a good part
/// of a second.
pub(crate) fn show_each(units: &[&str], property: &str) -> Result<Vec<String>> {
    let said = systemctl(&[&["show", "-P", property][..], units].concat())?;
    Ok(said.split_whitespace().map(str::to_owned).collect())
}
