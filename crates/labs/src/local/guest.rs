//! The steps of the lab of a host's own disk, inside the virtual machine.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{BULK, PROTECTED, compare};
use crate::base::process::{self, Running};
use crate::check::figures::Figures;
use crate::check::steps::{self, Plan};
use crate::machine::devices::{CONFIG, make_disk};
use crate::machine::guard::{self, Guard};
use crate::machine::guest::{GROUPS, in_group, keep_in_memory, put, tool, until};

const TRACING: &str = "/sys/kernel/tracing";
/// Name of the disk, and its rate in MiB per second (a setting of null_blk).
const DISK: &str = "ldisk";
const MB_PER_S: &str = "40";
/// Measured time in seconds: in a short run, and in a full run.
const SECONDS: [u64; 2] = [10, 30];
/// Time in which the controller finds its limits.
const SETTLE: Duration = Duration::from_secs(20);
const READY_LIMIT: Duration = Duration::from_secs(60);
/// Bar: the largest part of the unmanaged p99 that is left under the agent.
const LEFT: f64 = 0.5;

type Step = fn(&Plan, &mut Figures) -> Result<String>;

const STEPS: [(&str, Step); 1] = [("the_p99_of_a_reader_beside_a_bulk_writer_falls_by_half", beside_a_writer)];

/// Steps of full runs, each once: the disk and the load with these numbers, under each of the kernel's means and the agent.
const COMPARISONS: [(&str, [usize; 2]); 10] = [
    ("compared_on_an_ssd_beside_a_bulk_writer", [0, 0]),
    ("compared_on_an_ssd_beside_a_buffered_writer", [0, 1]),
    ("compared_on_an_ssd_beside_a_bulk_reader", [0, 2]),
    ("compared_on_an_ssd_beside_a_mixture", [0, 3]),
    ("compared_on_an_ssd_beside_a_writer_that_comes_and_goes", [0, 4]),
    ("compared_on_a_disk_beside_a_bulk_writer", [1, 0]),
    ("compared_on_a_disk_beside_a_buffered_writer", [1, 1]),
    ("compared_on_a_disk_beside_a_bulk_reader", [1, 2]),
    ("compared_on_a_disk_beside_a_mixture", [1, 3]),
    ("compared_on_a_disk_beside_a_writer_that_comes_and_goes", [1, 4]),
];

/// Comparisons run in full runs, or if they are selected by name.
pub(super) fn comparisons(plan: &Plan) -> impl Iterator<Item = (&'static str, [usize; 2])> {
    let all = plan.full || !plan.only.is_empty();
    plan.wanted(&COMPARISONS).filter(move |_| all)
}

/// Number of steps that the plan contains, for the report on the host.
pub(super) fn steps(plan: &Plan) -> usize {
    plan.wanted(&STEPS).count() + comparisons(plan).count()
}

/// Builds the stage and does the steps; runs inside the virtual machine.
pub(crate) fn run(plan: &Plan) -> Result<()> {
    if !Path::new(CONFIG).join("nullb").exists() {
        tool("mount", &["-t", "configfs", "configfs", CONFIG])?;
    }
    tool("mount", &["-t", "cgroup2", "cgroup2", GROUPS])?;
    // Dirty pages are attributed to a group only with its memory.
    put(format!("{GROUPS}/cgroup.subtree_control"), "+io +memory")?;
    // Without it the agent takes the mean of all reads.
    if let Err(error) = tool("mount", &["-t", "tracefs", "tracefs", TRACING]) {
        println!("lab: no tracefs: {error:#}");
    }
    for group in [PROTECTED, BULK] {
        std::fs::create_dir_all(format!("{GROUPS}/{group}"))?;
    }
    make_disk(DISK, 1024, &[("mbps", MB_PER_S)])?;
    let programs = ["fio", "sh", "cat"].into_iter().filter_map(process::find_program);
    keep_in_memory(programs.chain([plan.binary.clone()]).collect())?;
    println!("lab: ready");
    for (name, step) in plan.wanted(&STEPS) {
        steps::take(plan, name, |figures| step(plan, figures));
    }
    for (name, [disk, load]) in comparisons(plan) {
        steps::tell(name, compare::compare(plan, &compare::DISKS[disk], &compare::LOADS[load]));
    }
    Ok(())
}

/// A command that runs fio on the disk in a control group.
fn fio(group: &str, arguments: &[&str]) -> Command {
    let mut shell = in_group(group);
    shell.args(["fio", "--name=load", "--direct=1", "--ioengine=libaio", "--thread", "--time_based"]);
    shell.arg(format!("--filename=/dev/{DISK}")).args(arguments);
    shell
}

/// Latencies of the protected reader: mean and p99 in ms.
struct Latency {
    mean_ms: f64,
    p99_ms: f64,
}

fn read(seconds: u64) -> Result<Latency> {
    let runtime = format!("--runtime={seconds}");
    let load = ["--rw=randread", "--bs=4k", "--iodepth=1", "--output-format=json", &runtime];
    let text = process::output(&mut fio(PROTECTED, &load))?;
    let report: Value = serde_json::from_str(&text).context("the report of fio is not JSON")?;
    let latencies = &report["jobs"][0]["read"]["clat_ns"];
    let ms = |value: &Value| value.as_f64().map(|ns| ns / 1e6).context("no latency in the report of fio");
    Ok(Latency { mean_ms: ms(&latencies["mean"])?, p99_ms: ms(&latencies["percentile"]["99.000000"])? })
}

/// Starts the bulk writer: 32 requests of 256 KiB in flight.
fn write() -> Result<Running> {
    let load = ["--rw=write", "--bs=256k", "--iodepth=32", "--runtime=3600", "--output-format=terse"];
    let writer = Running::spawn(fio(BULK, &load).stdin(Stdio::null()).stdout(Stdio::null()))?;
    until("I/O of the writer", || {
        let text = std::fs::read_to_string(format!("{GROUPS}/{BULK}/io.stat")).ok()?;
        text.contains("wbytes=").then_some(())
    })?;
    Ok(writer)
}

fn beside_a_writer(plan: &Plan, figures: &mut Figures) -> Result<String> {
    let [short, full] = SECONDS;
    let seconds = plan.either(short, full);
    let alone = read(seconds)?;
    let writer = write()?;
    let unmanaged = read(seconds)?;
    let target_ms = (2.0 * alone.mean_ms + unmanaged.mean_ms) / 3.0;
    let config = format!(
        "[pools.disk]\ndevices = [\"/dev/{DISK}\"]\nlatency.target = \"{}us\"\n\
         [tenants.reader]\nmatch = [\"cgroup:{PROTECTED}\"]\nthrottle = \"never\"\n\
         [tenants.writer]\nmatch = [\"cgroup:{BULK}\"]\n",
        (target_ms * 1e3) as u64
    );
    let guard = Guard::start(&plan.binary, guard::ONLY, &config)?;
    // The controller needs reads to find its limits.
    read(SETTLE.as_secs())?;
    let managed = read(seconds)?;
    let said = guard.stop()?;
    thread::sleep(Duration::from_secs(1));
    let left = std::fs::read_to_string(format!("{GROUPS}/{BULK}/io.max"))?;
    writer.signal(libc::SIGINT);
    writer.wait(READY_LIMIT)?;
    ensure!(left.trim().is_empty(), "limits are left: {left}; the agent said {said}");
    figures.at_most("part of the p99", managed.p99_ms / unmanaged.p99_ms, LEFT, LEFT);
    Ok(format!(
        "p99 {:.2} ms alone, {:.2} ms beside the writer, {:.2} ms under the agent (target of the mean {target_ms:.2} ms)",
        alone.p99_ms, unmanaged.p99_ms, managed.p99_ms
    ))
}
