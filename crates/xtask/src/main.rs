//! Tasks of the project: `cargo xtask test`, `cargo xtask lab`, `cargo xtask soak`, `cargo xtask mutate`,
//! `cargo xtask constants`, `cargo xtask fuzz`, `cargo xtask compare`, `cargo xtask record`, `cargo xtask deb`.

mod constants;
mod deb;
mod fuzz;
mod mutate;
mod record;
mod test;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand};
use evenkeel_labs::base::process;
use evenkeel_labs::base::record::Page;
use evenkeel_labs::{compare, guest, lab, soak};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Tasks of the project", arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Runs all checks (format, lints, tests, benchmarks, labs), and counts the passed and failed ones.
    Test(test::Args),
    /// Runs a lab: real kernels, clients and clusters, in a virtual machine where it needs one.
    Lab(lab::Args),
    /// Runs a server under load and injected faults for a given time, and checks for lost data and leaked resources.
    Soak(soak::Args),
    /// Mutation testing: makes faults in the source of controllers, data path and agent, and counts those that tests notice.
    Mutate(mutate::Args),
    /// Halves and doubles each constant of the controllers, and judges the controllers on randomly drawn cases.
    Constants(constants::Args),
    /// Fuzzes the parsers of input from other programs and hosts, and keeps the inputs that reach new code or fail.
    Fuzz(fuzz::Args),
    /// Measures Evenkeel beside other programs for the same task, such as nbdkit and qemu-nbd.
    Compare(compare::Args),
    /// Writes a page of results from commands other than labs and comparisons.
    Record(record::Args),
    /// Makes a package for Debian and its relatives.
    Deb(deb::Args),
    /// The part of a lab that runs inside the virtual machine.
    #[command(hide = true)]
    Guest(guest::Args),
}

impl Task {
    /// The page of results that this task writes from its own output; `None` without `--record`.
    fn page(&self) -> Option<Page> {
        match self {
            Self::Test(args) => args.page(),
            Self::Lab(args) => args.page(),
            Self::Soak(args) => args.page(),
            Self::Mutate(args) => args.page(),
            Self::Compare(args) => args.page(),
            _ => None,
        }
    }
}

fn main() -> ExitCode {
    let task = Cli::parse().task;
    let page = task.page();
    if !matches!(task, Task::Guest(_)) {
        process::handle_signals(patience(&task, page.is_some()));
    }
    let outcome = page.map_or_else(|| run(task), |page| page.record_self());
    process::let_signals_end();
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("Error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

/// Time from the signal that ends this program to SIGKILL for its children, and from there to its own end. In that time a child
/// ends its own children and removes its folders: a lab, or the task itself if it records a page.
fn patience(task: &Task, records: bool) -> Duration {
    let has_labs = matches!(task, Task::Test(_) | Task::Mutate(_));
    Duration::from_millis(match (has_labs, records) {
        (false, false) => 300,
        (true, false) | (false, true) => 1_500,
        (true, true) => 4_000,
    })
}

/// Runs a task; true if it succeeds.
fn run(task: Task) -> Result<bool> {
    match task {
        Task::Test(args) => test::run(&args),
        Task::Lab(args) => lab::run(args, deb::uncompressed),
        Task::Soak(args) => lab::run_soak(&args).map(|tally| tally.failed.is_empty()),
        Task::Mutate(args) => mutate::run(&args),
        Task::Constants(args) => constants::run(&args),
        Task::Fuzz(args) => fuzz::run(&args),
        Task::Compare(args) => compare::run(&args),
        Task::Record(args) => record::run(&args),
        Task::Deb(args) => deb::run(&args),
        Task::Guest(args) => guest::run(&args).map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_that_is_recorded_ends_before_it_is_killed() {
        for words in [&["xtask", "test"][..], &["xtask", "lab", "replay"]] {
            let task = Cli::try_parse_from(words.iter().copied()).unwrap().task;
            assert!(patience(&task, true) > 2 * patience(&task, false), "{words:?}");
        }
    }
}
