//! What the tests need from the distribution: the same package names on Debian 12, 13 and Ubuntu.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::process;

const INSTALL_LIMIT: Duration = Duration::from_secs(900);

/// A program that a test runs, and the package that has it.
const NEEDED: [(&str, &str); 23] = [
    ("fio", "fio"),
    ("nbdkit", "nbdkit"),
    ("qemu-nbd", "qemu-utils"),
    ("nbdinfo", "libnbd-bin"),
    ("nbd-client", "nbd-client"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("curl", "curl"),
    ("dmsetup", "dmsetup"),
    ("mkfs.ext4", "e2fsprogs"),
    ("xz", "xz-utils"),
    ("zstd", "zstd"),
    ("python3", "python3"),
    ("ip", "iproute2"),
    ("tc", "iproute2"),
    ("nft", "nftables"),
    ("etcd", "etcd-server"),
    ("etcdctl", "etcd-client"),
    ("ceph", "ceph-common"),
    ("ceph-mon", "ceph-mon"),
    ("ceph-osd", "ceph-osd"),
    // The program is not used; its package brings the library of the initiator that the lab drives.
    ("iscsi-perf", "libiscsi-bin"),
    ("promtool", "prometheus"),
    ("chromium", "chromium"),
];

/// Packages whose programs are missing.
pub(crate) fn missing() -> Vec<&'static str> {
    NEEDED.iter().filter(|(program, _)| process::find_program(program).is_none()).map(|(_, package)| *package).collect()
}

/// Installs what is missing when this is root on a system with apt. The result is what is still missing.
pub(crate) fn provide() -> Result<Vec<&'static str>> {
    let wanted = missing();
    // SAFETY: geteuid has no preconditions and cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    if wanted.is_empty() || !root || process::find_program("apt-get").is_none() {
        return Ok(wanted);
    }
    println!("installing {}", wanted.join(" "));
    apt(&["update", "-qq"])?;
    let options = ["install", "-y", "-qq", "--no-install-recommends"];
    apt(&[&options[..], &wanted[..]].concat())?;
    Ok(missing())
}

/// The one command that installs everything.
pub(crate) fn command(packages: &[&str]) -> String {
    format!("sudo apt-get install --no-install-recommends {}", packages.join(" "))
}

/// For `-o`: a mirror that hiccups is asked again.
pub(crate) const RETRIES: &str = "Acquire::Retries=5";

fn apt(args: &[&str]) -> Result<()> {
    let mut messages = Vec::new();
    let mut command = Command::new("apt-get");
    command.args(["-o", RETRIES]).args(args).env("DEBIAN_FRONTEND", "noninteractive");
    // Some packages bring a service besides the program that is wanted (etcd, Prometheus): systemctl does not start it then.
    command.env("SYSTEMD_OFFLINE", "1");
    let (status, _) = process::stream(&mut command, INSTALL_LIMIT, |line| messages.push(line.to_owned()))?;
    ensure!(status.success(), "apt-get {} failed:\n{}", args.join(" "), messages.join("\n"));
    Ok(())
}
