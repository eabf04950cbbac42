//! The iSCSI lab: throttles packets of real initiators in front of real targets, in virtual time.

mod baselines;
mod control;
pub(crate) mod guest;
mod holding;
pub(crate) mod load;
mod observe;
mod others;
mod overhead;
mod servers;
mod stage;

use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use self::guest::Machine;
use crate::base::scratch::Scratch;
use crate::base::spelled::spelled;
use crate::check::run::{Lab, Options};
use crate::check::steps::{Plan, Steps};
use crate::machine::{kernel, vm};

/// Time limit of the lab: many times its duration on an idle machine.
const LIMIT: Duration = Duration::from_secs(1500);
/// Packages of Debian and Ubuntu that are not installed, but unpacked into a folder and used from there.
pub(super) const TOOLS: [&str; 2] = ["tgt", "lvm2"];

/// Output of one of the two virtual machines.
struct Said {
    machine: Machine,
    line: String,
}

/// Runs the lab and reports each step.
pub(crate) fn run(lab: &mut Lab, options: &Options) -> Result<()> {
    let tools = std::path::absolute(kernel::tools(&options.build, "tools", &TOOLS)?)?;
    let plan = Plan::of(options);
    let wanted: Vec<Machine> = Machine::ALL.into_iter().filter(|m| guest::steps(*m, &plan) > 0).collect();
    ensure!(!wanted.is_empty(), "no step has {:?} in its name", options.only);
    let mut scratches = Vec::new();
    for machine in &wanted {
        let scratch = Scratch::kept_if(options.keep, &format!("iscsi-{}", spelled(machine)))?;
        scratches.push(scratch);
    }
    let first = vm::Machine::new(vm::STORAGE_NETWORK, &options.build, &scratches[0], options.verbose)?;
    let (say, said) = channel();
    // Two processors of the host serve two machines, each of one processor; their time is virtual, so that neither
    // disturbs what the other measures.
    thread::scope(|scope| -> Result<()> {
        let mut running = Vec::new();
        for (&machine, scratch) in wanted.iter().zip(&scratches) {
            let (vm, say, script) =
                (first.another(scratch), say.clone(), script(options, &plan, scratch, machine, &tools)?);
            let limit = plan.limit(LIMIT);
            running.push((machine, scope.spawn(move || one(vm, machine, &script, limit, &say))));
        }
        drop(say);
        let mut steps: Vec<Steps> = wanted.iter().map(|_| Steps::new()).collect();
        for Said { machine, line } in said {
            let at = wanted.iter().position(|m| *m == machine).context("an unknown machine")?;
            let steps = &mut steps[at];
            if line.starts_with("lab: ready") {
                println!(
                    "lab: machine `{}` ready after {:.0} s",
                    spelled(&machine),
                    steps.since.elapsed().as_secs_f64()
                );
                steps.since = Instant::now();
            } else {
                steps.hear(lab, &line);
            }
        }
        for ((machine, thread), steps) in running.into_iter().zip(steps) {
            let ended = thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("its thread panicked")));
            ended.with_context(|| format!("in the machine `{}`", spelled(&machine)))?;
            let expected = guest::steps(machine, &plan);
            let taken = steps.taken;
            ensure!(taken == expected, "{taken} of {expected} steps of `{}` were reported", spelled(&machine));
        }
        Ok(())
    })
}

/// The script that a virtual machine runs: the steps of `machine`.
fn script(options: &Options, plan: &Plan, scratch: &Scratch, machine: Machine, tools: &Path) -> Result<String> {
    let arguments = [vec!["--machine".into(), spelled(&machine)], plan.arguments()].concat();
    Ok(kernel::with_tools(tools, &options.lean_guest_script(scratch, "iscsi", &arguments)?))
}

/// Runs one virtual machine from its boot to its end, and sends its output to `say`.
fn one(mut vm: vm::Machine, machine: Machine, script: &str, limit: Duration, say: &Sender<Said>) -> Result<()> {
    let guest = vm.boot(script, &[])?;
    guest.finish(limit, |line| {
        // The receiver lives as long as this thread.
        let _ = say.send(Said { machine, line: line.to_owned() });
    })
}
