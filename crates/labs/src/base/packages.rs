//! The distribution's packages that tests and labs need. Names are equal on Debian 12, Debian 13 and Ubuntu.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::base::process;

/// Time limit of one command that fetches packages: far above the time for all packages from the slowest mirror.
const FETCH_LIMIT: Duration = Duration::from_secs(900);

/// Programs that tests and labs run, each with the package that contains it.
const PACKAGES: [(&str, &str); 45] = [
    ("ceph", "ceph-common"),
    ("ceph-mon", "ceph-mon"),
    ("ceph-osd", "ceph-osd"),
    ("chromium", "chromium"),
    ("cc", "gcc"),
    ("curl", "curl"),
    ("dmsetup", "dmsetup"),
    ("dpkg-deb", "dpkg"),
    ("etcd", "etcd-server"),
    ("etcdctl", "etcd-client"),
    ("fio", "fio"),
    ("groff", "groff-base"),
    ("ip", "iproute2"),
    // The program is not used; its package brings the library of the initiator that the lab drives.
    ("iscsi-perf", "libiscsi-bin"),
    ("man", "man-db"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("mkfs.exfat", "exfatprogs"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.f2fs", "f2fs-tools"),
    ("mkfs.ntfs", "ntfs-3g"),
    ("mkfs.vfat", "dosfstools"),
    ("monmaptool", "ceph-base"),
    ("nbd-client", "nbd-client"),
    ("nbdcopy", "libnbd-bin"),
    ("nbdinfo", "libnbd-bin"),
    ("nbdkit", "nbdkit"),
    ("nft", "nftables"),
    ("nsenter", "util-linux"),
    ("openssl", "openssl"),
    ("pgrep", "procps"),
    ("promtool", "prometheus"),
    ("python3", "python3"),
    ("qemu-img", "qemu-utils"),
    ("qemu-io", "qemu-utils"),
    ("qemu-nbd", "qemu-utils"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("rbd", "ceph-common"),
    ("script", "bsdutils"),
    ("sfdisk", "fdisk"),
    ("strip", "binutils"),
    ("systemctl", "systemd"),
    ("systemd-analyze", "systemd"),
    ("tc", "iproute2"),
    ("xz", "xz-utils"),
    ("zstd", "zstd"),
];

/// Programs that the tests run, without programs that every system has.
pub const TESTS: [&str; 22] = [
    "chromium",
    "curl",
    "etcd",
    "etcdctl",
    "fio",
    "groff",
    "mkfs.btrfs",
    "mkfs.exfat",
    "mkfs.f2fs",
    "mkfs.ntfs",
    "mkfs.vfat",
    "nbdcopy",
    "nbdinfo",
    "nbdkit",
    "nft",
    "openssl",
    "promtool",
    "qemu-io",
    "qemu-nbd",
    "script",
    "sfdisk",
    "systemd-analyze",
];

/// Packages of those programs that are missing on this system. A program without a known package stands for its package.
fn missing(programs: &[&'static str]) -> BTreeSet<&'static str> {
    let package =
        |name: &'static str| PACKAGES.iter().find(|(program, _)| *program == name).map_or(name, |(_, package)| package);
    programs.iter().filter(|name| process::find_program(name).is_none()).map(|name| package(name)).collect()
}

/// A text that names those programs that are missing on this system and the command that installs them; `None` if all are
/// present.
pub fn missing_text(programs: &[&'static str]) -> Option<String> {
    let packages: Vec<&str> = missing(programs).into_iter().collect();
    let absent: Vec<&str> = programs.iter().copied().filter(|name| process::find_program(name).is_none()).collect();
    let command = "sudo apt-get install --no-install-recommends";
    (!absent.is_empty()).then(|| format!("not installed: {} ({command} {})", absent.join(", "), packages.join(" ")))
}

/// Installs the packages of those programs that are missing, if this process runs as root on a system with apt.
pub fn provide(programs: &[&'static str]) -> Result<()> {
    let wanted: Vec<&str> = missing(programs).into_iter().collect();
    if wanted.is_empty() || !rustix::process::geteuid().is_root() || process::find_program("apt-get").is_none() {
        return Ok(());
    }
    println!("installing {}", wanted.join(" "));
    let apt = |words: &[&str]| {
        let mut command = Command::new("apt-get");
        // Some packages bring a service besides the program that is wanted (etcd, Prometheus): systemctl does not start it then.
        fetch(command.args(words).env("DEBIAN_FRONTEND", "noninteractive").env("SYSTEMD_OFFLINE", "1"))
    };
    apt(&["-o", RETRIES, "update", "-qq"])?;
    let options = ["-o", RETRIES, "install", "-y", "-qq", "--no-install-recommends"];
    apt(&[&options[..], &wanted].concat())
}

/// Value of apt-get's option `-o` that repeats failed downloads up to five times.
pub(crate) const RETRIES: &str = "Acquire::Retries=5";

/// Runs a command that downloads packages, with the time limit [`FETCH_LIMIT`].
pub(crate) fn fetch(command: &mut Command) -> Result<()> {
    let mut messages = Vec::new();
    let (status, _) = process::stream(command, FETCH_LIMIT, |line| messages.push(line.to_owned()))?;
    ensure!(status.success(), "{} failed:\n{}", process::describe(command), messages.join("\n"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;
    use crate::lab;

    #[test]
    fn every_program_has_one_package_and_a_missing_one_is_named_with_its_cure() {
        let labs = lab::Name::value_variants().iter().flat_map(|name| lab::programs(*name));
        // Where there is no apt there are no packages.
        for program in TESTS.into_iter().chain(labs).filter(|name| !["apt-get", "dpkg"].contains(name)) {
            assert_eq!(PACKAGES.iter().filter(|(name, _)| *name == program).count(), 1, "{program}");
        }
        assert_eq!(missing_text(&["sh", "cat"]), None);
        let cure = "not installed: no-such-program (sudo apt-get install --no-install-recommends no-such-program)";
        assert_eq!(missing_text(&["sh", "no-such-program"]).as_deref(), Some(cure));
    }
}
