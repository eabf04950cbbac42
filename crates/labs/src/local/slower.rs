//! A device that becomes 0.4 times as fast while the agent throttles the bulk writer, and as fast as before again: null_blk takes
//! another rate only when it is made anew, so that a mapped device moves from a fast disk to a slow one and back.

use anyhow::{Result, ensure};

use super::BULK;
use super::changes::{NEAR, SECONDS, SETTLE_S, end, limits, targets, until_free};
use super::load::{self, BULK_WRITES, policy_of, read_of, start_on};
use crate::check::steps::Plan;
use crate::machine::devices::{make_disk, remove_disk};
use crate::machine::guard::{self, Guard};
use crate::machine::guest::tool;

/// Name of the mapped device, and its file.
const NAME: &str = "lspeed";
const DEVICE: &str = "/dev/mapper/lspeed";
/// The disks below it, each with its rate in MiB per second; the second is 0.4 times as fast as the first.
const DISKS: [(&str, &str); 2] = [("lfast", load::MB_PER_S), ("lslow", "16")];
const MIB: u64 = 512;
/// Least throughput of the writer under the agent as a part of the disk's rate, after the disk is as fast as before again.
const KEPT: f64 = 0.1;

/// The table of the mapped device on a disk.
fn table(disk: &str) -> String {
    format!("0 {} linear /dev/{disk} 0", MIB << 11)
}

/// Moves the mapped device to a disk. Requests in flight end on the old one, others wait.
fn move_to(disk: &str) -> Result<()> {
    tool("dmsetup", &["reload", "--noudevsync", NAME, "--table", &table(disk)])?;
    tool("dmsetup", &["resume", "--noudevsync", NAME]).map(drop)
}

/// Removes the mapped device and the disks below it, which keep a gigabyte of the machine's memory.
fn remove() -> Result<()> {
    let device = tool("dmsetup", &["remove", "--noudevsync", "--retry", NAME]).map(drop);
    let disks = DISKS.map(|(disk, _)| remove_disk(disk));
    device?;
    disks.into_iter().collect()
}

/// The target is met on the device, on the slower one with the same target, and again on the first.
pub(super) fn device_made_slower(plan: &Plan) -> Result<String> {
    let outcome = on_two_disks(plan);
    // Also after a failure: the steps that follow need the memory.
    let removed = remove();
    let said = outcome?;
    removed?;
    Ok(said)
}

fn on_two_disks(plan: &Plan) -> Result<String> {
    for (disk, mb_per_s) in DISKS {
        make_disk(disk, MIB, &[("mbps", mb_per_s)])?;
    }
    let [(fast, rate), (slow, _)] = DISKS;
    tool("dmsetup", &["create", "--noudevsync", NAME, "--table", &table(fast)])?;
    tool("dmsetup", &["mknodes"])?;
    let alone = read_of(DEVICE, SECONDS)?.mean_ms;
    let writer = start_on(DEVICE, BULK, &BULK_WRITES)?;
    let beside = read_of(DEVICE, SECONDS)?.mean_ms;
    let [target, _] = targets(alone, beside);
    let guard = Guard::start(&plan.binary, guard::ONLY, &policy_of(DEVICE, target))?;
    let (mut means, mut written) = (Vec::new(), 0.0);
    for (what, disk) in [("at first", fast), ("0.4 times as fast", slow), ("as fast as before", fast)] {
        if !means.is_empty() {
            move_to(disk)?;
        }
        read_of(DEVICE, SETTLE_S)?;
        let before = load::written(BULK, DEVICE)?;
        let mean = read_of(DEVICE, SECONDS)?.mean_ms;
        let bytes = load::written(BULK, DEVICE)?.saturating_sub(before);
        written = bytes as f64 / SECONDS as f64 / f64::from(1 << 20);
        ensure!(mean <= NEAR * target, "mean of reads {mean:.2} ms, target {target:.2} ms, device {what}");
        ensure!(!limits().is_empty(), "the writer has no limit, device {what}");
        means.push(format!("{mean:.2} ms {what}"));
    }
    guard.stop()?;
    until_free()?;
    end(writer)?;
    let least = KEPT * rate.parse::<f64>()?;
    ensure!(written >= least, "the writer gets {written:.1} MiB/s of {rate} at the end, less than {least:.1}");
    Ok(format!(
        "target {target:.2} ms ({alone:.2} ms alone, {beside:.2} ms beside the writer), means of reads {}; the writer \
         got {written:.1} MiB/s at the end",
        means.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_disk_is_0_4_times_as_fast() {
        let [fast, slow] = DISKS.map(|(_, rate)| rate.parse::<f64>().unwrap());
        assert!((slow / fast - 0.4).abs() < 1e-9, "{slow} of {fast}");
    }

    #[test]
    fn the_table_maps_the_whole_disk() {
        assert_eq!(table("lslow"), "0 1048576 linear /dev/lslow 0");
        assert_eq!(DEVICE, format!("/dev/mapper/{NAME}"));
    }
}
