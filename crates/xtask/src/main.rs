//! Tasks of the project: `cargo xtask test`, `cargo xtask lab`, `cargo xtask soak`, `cargo xtask compare`, `cargo xtask deb`.

mod build;
mod client;
mod compare;
mod deb;
mod lab;
mod packages;
mod process;
mod scratch;
mod servers;
mod tally;
mod test;
mod tutorial;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Tasks of the project", arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Runs everything that must hold and counts it.
    Test(test::Args),
    /// Runs a lab in a virtual machine.
    Lab(lab::Args),
    /// Lets everything happen to a server for as long as asked, and looks for what was lost or leaked.
    Soak(lab::soak::Args),
    /// Measures Evenkeel against its peers.
    Compare(compare::Args),
    /// Makes a package for Debian and its relatives.
    Deb(deb::Args),
    /// What runs inside the virtual machine of a lab.
    #[command(hide = true, subcommand)]
    Guest(lab::guest::Guest),
}

fn main() -> ExitCode {
    let task = Cli::parse().task;
    if !matches!(task, Task::Guest(_)) {
        process::handle_signals();
    }
    let outcome = match task {
        Task::Test(args) => test::run(&args),
        Task::Lab(args) => lab::run(args),
        Task::Soak(args) => lab::run_soak(&args).map(|tally| tally.failed.is_empty()),
        Task::Compare(args) => compare::run(&args),
        Task::Deb(args) => deb::run(&args),
        Task::Guest(command) => lab::guest::run(&command).map(|()| true),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("Error: {e:#}");
            ExitCode::FAILURE
        }
    }
}
