//! The steps of the lab of a host's own disk, inside the virtual machine.

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::load::{DISK, MB_PER_S, policy, read, write};
use super::{BULK, PROTECTED, changes, compare, postgresql, short, slower};
use crate::base::process;
use crate::check::figures::Figures;
use crate::check::steps::{self, Plan};
use crate::machine::devices::make_disk;
use crate::machine::guard::{self, Guard};
use crate::machine::guest::{GROUPS, keep_in_memory, put, tool};

const TRACING: &str = "/sys/kernel/tracing";
/// Measured time in seconds: in a short run, and in a full run.
const SECONDS: [u64; 2] = [10, 30];
/// Time in which the controller finds its limits.
const SETTLE: Duration = Duration::from_secs(20);
/// Bar: the largest part of the unmanaged p99 that is left under the agent.
const LEFT: f64 = 0.5;

type Step = fn(&Plan, &mut Figures) -> Result<String>;

const STEPS: [(&str, Step); 2] = [
    ("the_p99_of_a_reader_beside_a_bulk_writer_falls_by_half", beside_a_writer),
    ("compared_in_short_with_no_means", short::nothing_and_the_agent),
];

type Change = fn(&Plan) -> Result<String>;

/// Steps of full runs, each once: changes while the agent throttles the writer.
const CHANGES: [(&str, Change); 3] = [
    ("changed_targets_and_groups_made_anew_are_followed", changes::target_and_group),
    ("changed_speed_of_the_device_is_followed", slower::device_made_slower),
    ("changed_limits_end_with_each_killed_agent", changes::kills),
];

/// Changes are tried in full runs, or if they are selected by name.
pub(super) fn changes(plan: &Plan) -> impl Iterator<Item = (&'static str, Change)> {
    let all = plan.full || !plan.only.is_empty();
    plan.wanted(&CHANGES).filter(move |_| all)
}

/// Steps of full runs, each once: disk, load and protected reader with these numbers, under each of the kernel's means and the
/// agent.
pub(super) const COMPARISONS: [(&str, [usize; 3]); 15] = [
    ("compared_on_an_ssd_beside_a_bulk_writer", [0, 0, 0]),
    ("compared_on_an_ssd_beside_a_buffered_writer", [0, 1, 0]),
    ("compared_on_an_ssd_beside_a_buffered_writer_of_a_file", [2, 5, 0]),
    ("compared_on_an_ssd_beside_a_bulk_reader", [0, 2, 0]),
    ("compared_on_an_ssd_beside_a_mixture", [0, 3, 0]),
    ("compared_on_an_ssd_beside_a_writer_that_comes_and_goes", [0, 4, 0]),
    ("compared_on_an_ssd_with_bursts_beside_a_bulk_writer", [0, 0, 1]),
    ("compared_on_an_ssd_with_bursts_beside_a_bulk_reader", [0, 2, 1]),
    ("compared_on_a_disk_beside_a_bulk_writer", [1, 0, 0]),
    ("compared_on_a_disk_beside_a_buffered_writer", [1, 1, 0]),
    ("compared_on_a_disk_beside_a_bulk_reader", [1, 2, 0]),
    ("compared_on_a_disk_beside_a_mixture", [1, 3, 0]),
    ("compared_on_a_disk_beside_a_writer_that_comes_and_goes", [1, 4, 0]),
    ("compared_on_a_disk_with_bursts_beside_a_bulk_writer", [1, 0, 1]),
    ("compared_on_a_disk_with_bursts_beside_a_bulk_reader", [1, 2, 1]),
];

/// Name of the step with a real program.
const REAL_PROGRAM: &str = "postgresql_beside_dd_and_tar";

/// Comparisons run in full runs, or if they are selected by name.
pub(super) fn comparisons(plan: &Plan) -> impl Iterator<Item = (&'static str, [usize; 3])> {
    let all = plan.full || !plan.only.is_empty();
    plan.wanted(&COMPARISONS).filter(move |_| all)
}

/// True if the plan contains the step with a real program: in full runs, or if it is selected by name.
pub(super) fn has_real_program(plan: &Plan) -> bool {
    REAL_PROGRAM.contains(&plan.only) && (plan.full || !plan.only.is_empty())
}

/// Number of steps that the plan contains, for the report on the host.
pub(super) fn steps(plan: &Plan) -> usize {
    let once = changes(plan).count() + comparisons(plan).count() + usize::from(has_real_program(plan));
    plan.wanted(&STEPS).count() + once
}

/// Builds the stage and does the steps; runs inside the virtual machine.
pub(crate) fn run(plan: &Plan) -> Result<()> {
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
    for (name, step) in changes(plan) {
        steps::tell(name, step(plan));
    }
    if has_real_program(plan) {
        match postgresql::Programs::here() {
            Some(programs) => steps::tell(REAL_PROGRAM, postgresql::beside_dd_and_tar(plan, &programs)),
            None => steps::tell_skipped(REAL_PROGRAM, "PostgreSQL is not installed (sudo apt-get install postgresql)"),
        }
    }
    for (name, [disk, load, reader]) in comparisons(plan) {
        let (disk, load, reader) = (&compare::DISKS[disk], &compare::LOADS[load], &compare::READERS[reader]);
        steps::take_once(plan, name, |figures| compare::compare(plan, disk, load, reader, figures));
    }
    Ok(())
}

fn beside_a_writer(plan: &Plan, figures: &mut Figures) -> Result<String> {
    let [short, full] = SECONDS;
    let seconds = plan.either(short, full);
    let alone = read(seconds)?;
    let writer = write()?;
    let unmanaged = read(seconds)?;
    let target_ms = (2.0 * alone.mean_ms + unmanaged.mean_ms) / 3.0;
    let guard = Guard::start(&plan.binary, guard::ONLY, &policy(target_ms))?;
    // The controller needs reads to find its limits.
    read(SETTLE.as_secs())?;
    let managed = read(seconds)?;
    let said = guard.stop()?;
    thread::sleep(Duration::from_secs(1));
    let left = std::fs::read_to_string(format!("{GROUPS}/{BULK}/io.max"))?;
    changes::end(writer)?;
    ensure!(left.trim().is_empty(), "limits are left: {left}; the agent said {said}");
    figures.at_most("part_of_the_p99", managed.p99_ms / unmanaged.p99_ms, LEFT, LEFT);
    Ok(format!(
        "p99 {:.2} ms alone, {:.2} ms beside the writer, {:.2} ms under the agent (target of the mean {target_ms:.2} ms)",
        alone.p99_ms, unmanaged.p99_ms, managed.p99_ms
    ))
}
