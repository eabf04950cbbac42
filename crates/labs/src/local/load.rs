//! The load of the lab's own disk, and the agent's policy for it.

use std::os::unix::fs::MetadataExt as _;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use serde_json::Value;

use super::{BULK, PROTECTED};
use crate::base::process::{self, Running};
use crate::machine::guest::{GROUPS, in_group, tool, until};

/// Name of the disk.
pub(super) const DISK: &str = "ldisk";
/// Its rate in MiB per second (a setting of null_blk).
pub(super) const MB_PER_S: &str = "40";

/// Does `body` while a new ext4 file system on a device is mounted at `folder`. `more`: further options of `mkfs.ext4`.
pub(super) fn on_ext4<T>(device: &str, more: &[&str], folder: &str, body: impl FnOnce() -> Result<T>) -> Result<T> {
    tool("mkfs.ext4", &[&["-q", "-F"][..], more, &[device]].concat())?;
    std::fs::create_dir_all(folder)?;
    tool("mount", &[device, folder])?;
    let outcome = body();
    // A program that was killed may still wait for its last write.
    let unmounted = until("unmounted disk", || tool("umount", &[folder]).ok());
    let said = outcome?;
    unmounted?;
    Ok(said)
}

/// A command that runs fio on a device in a control group.
pub(super) fn fio_on(device: &str, group: &str, arguments: &[&str]) -> Command {
    let mut shell = in_group(group);
    shell.args(["fio", "--name=load", "--direct=1", "--ioengine=libaio", "--thread", "--time_based"]);
    shell.arg(format!("--filename={device}")).args(arguments);
    shell
}

/// Latencies of the protected reader: mean and p99 in ms.
pub(super) struct Latency {
    pub(super) mean_ms: f64,
    pub(super) p99_ms: f64,
}

/// Reads from the disk in the protected group for `seconds`.
pub(super) fn read(seconds: u64) -> Result<Latency> {
    read_of(&format!("/dev/{DISK}"), seconds)
}

/// Reads from a device in the protected group for `seconds`.
pub(super) fn read_of(device: &str, seconds: u64) -> Result<Latency> {
    let runtime = format!("--runtime={seconds}");
    let load = ["--rw=randread", "--bs=4k", "--iodepth=1", "--output-format=json", &runtime];
    let report = process::json(&mut fio_on(device, PROTECTED, &load))?;
    let latencies = &report["jobs"][0]["read"]["clat_ns"];
    let ms = |value: &Value| value.as_f64().map(|ns| ns / 1e6).context("no latency in the report of fio");
    Ok(Latency { mean_ms: ms(&latencies["mean"])?, p99_ms: ms(&latencies["percentile"]["99.000000"])? })
}

/// Starts a load of fio on a device in a control group, without its report.
pub(super) fn start_on(device: &str, group: &str, arguments: &[&str]) -> Result<Running> {
    let mut command = fio_on(device, group, &[arguments, &["--runtime=3600", "--output-format=terse"]].concat());
    Running::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()))
}

/// Arguments of the bulk writer: 32 requests of 256 KiB in flight.
pub(super) const BULK_WRITES: [&str; 3] = ["--rw=write", "--bs=256k", "--iodepth=32"];

/// Starts the bulk writer on the disk, and waits for its first I/O.
pub(super) fn write() -> Result<Running> {
    let writer = start_on(&format!("/dev/{DISK}"), BULK, &BULK_WRITES)?;
    until("I/O of the writer", || {
        let text = std::fs::read_to_string(format!("{GROUPS}/{BULK}/io.stat")).ok()?;
        text.contains("wbytes=").then_some(())
    })?;
    Ok(writer)
}

/// Bytes that a group has written to a device so far.
pub(super) fn written(group: &str, device: &str) -> Result<u64> {
    let number = std::fs::metadata(device)?.rdev();
    let text = std::fs::read_to_string(format!("{GROUPS}/{group}/io.stat"))?;
    Ok(written_to(&text, &format!("{}:{} ", rustix::fs::major(number), rustix::fs::minor(number))))
}

/// The bytes written to the device whose line in `io.stat` begins with `number`.
fn written_to(text: &str, number: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(number));
    let bytes = line.and_then(|line| line.split_ascii_whitespace().find_map(|word| word.strip_prefix("wbytes=")));
    bytes.and_then(|bytes| bytes.parse().ok()).unwrap_or(0)
}

/// The policy of the agent: a target for the mean of the disk's reads.
pub(super) fn policy(target_ms: f64) -> String {
    policy_of(&format!("/dev/{DISK}"), target_ms)
}

/// The policy of the agent: a target for the mean of a device's reads.
pub(super) fn policy_of(device: &str, target_ms: f64) -> String {
    let target_us = (target_ms * 1e3).ceil().max(1.0) as u64;
    format!(
        "[pools.disk]\ndevices = [\"{device}\"]\nlatency.target = \"{target_us}us\"\n\
         [tenants.reader]\nmatch = [\"cgroup:{PROTECTED}\"]\nthrottle = \"never\"\n\
         [tenants.writer]\nmatch = [\"cgroup:{BULK}\"]\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_the_device() {
        let text = "252:0 rbytes=1 wbytes=700 rios=1 wios=1\n253:0 rbytes=5 wbytes=90 rios=2 wios=3\n";
        assert_eq!((written_to(text, "253:0 "), written_to(text, "25:0 ")), (90, 0));
    }
}
