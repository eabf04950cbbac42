//! The control groups of the lab of a host's own disk, and how a program gets into one.

use std::process::Command;

use crate::base::process;

pub(super) const GROUPS: &str = "/sys/fs/cgroup";
/// Group of the protected reader.
pub(super) const PROTECTED: &str = "lab-reader";
/// Group of the load beside it.
pub(super) const BULK: &str = "lab-writer";

/// A command that runs in a control group what its further arguments name.
pub(super) fn in_group(group: &str) -> Command {
    let mut shell = process::program("sh");
    shell.arg("-c").arg("echo $$ > \"$1/cgroup.procs\"; shift; exec \"$@\"").arg("sh").arg(format!("{GROUPS}/{group}"));
    shell
}
