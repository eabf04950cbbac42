//! The load of the lab's own disk, and the agent's policy for it.

use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use serde_json::Value;

use super::{BULK, PROTECTED};
use crate::base::process::{self, Running};
use crate::machine::guest::{GROUPS, in_group, until};

/// Name of the disk.
pub(super) const DISK: &str = "ldisk";

/// A command that runs fio on the disk in a control group.
pub(super) fn fio(group: &str, arguments: &[&str]) -> Command {
    let mut shell = in_group(group);
    shell.args(["fio", "--name=load", "--direct=1", "--ioengine=libaio", "--thread", "--time_based"]);
    shell.arg(format!("--filename=/dev/{DISK}")).args(arguments);
    shell
}

/// Latencies of the protected reader: mean and p99 in ms.
pub(super) struct Latency {
    pub(super) mean_ms: f64,
    pub(super) p99_ms: f64,
}

/// Reads in the protected group for `seconds`.
pub(super) fn read(seconds: u64) -> Result<Latency> {
    let runtime = format!("--runtime={seconds}");
    let load = ["--rw=randread", "--bs=4k", "--iodepth=1", "--output-format=json", &runtime];
    let text = process::output(&mut fio(PROTECTED, &load))?;
    let report: Value = serde_json::from_str(&text).context("the report of fio is not JSON")?;
    let latencies = &report["jobs"][0]["read"]["clat_ns"];
    let ms = |value: &Value| value.as_f64().map(|ns| ns / 1e6).context("no latency in the report of fio");
    Ok(Latency { mean_ms: ms(&latencies["mean"])?, p99_ms: ms(&latencies["percentile"]["99.000000"])? })
}

/// Starts the bulk writer: 32 requests of 256 KiB in flight.
pub(super) fn write() -> Result<Running> {
    let load = ["--rw=write", "--bs=256k", "--iodepth=32", "--runtime=3600", "--output-format=terse"];
    let writer = Running::spawn(fio(BULK, &load).stdin(Stdio::null()).stdout(Stdio::null()))?;
    until("I/O of the writer", || {
        let text = std::fs::read_to_string(format!("{GROUPS}/{BULK}/io.stat")).ok()?;
        text.contains("wbytes=").then_some(())
    })?;
    Ok(writer)
}

/// The policy of the agent: a target for the mean of the disk's reads.
pub(super) fn policy(target_ms: f64) -> String {
    let target_us = (target_ms * 1e3).ceil().max(1.0) as u64;
    format!(
        "[pools.disk]\ndevices = [\"/dev/{DISK}\"]\nlatency.target = \"{target_us}us\"\n\
         [tenants.reader]\nmatch = [\"cgroup:{PROTECTED}\"]\nthrottle = \"never\"\n\
         [tenants.writer]\nmatch = [\"cgroup:{BULK}\"]\n"
    )
}
