//! A run of a lab: its options, and the report of its results.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};

use crate::base::process;
use crate::base::scratch::Scratch;
use crate::base::servers::Server;
use crate::base::tally::Tally;
use crate::base::tutorial;

/// A function that makes an uncompressed package and returns its path. Arguments: the stripped program, the program as built
/// (for the manual pages), the version, and the folder for the package.
pub type Pack = fn(&Path, &Path, &str, &Path) -> Result<PathBuf>;

/// Options of a lab's run.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) server: Server,
    pub(crate) binary: PathBuf,
    pub(crate) build: PathBuf,
    pub(crate) pack: Pack,
    pub(crate) keep: bool,
    pub(crate) verbose: bool,
    pub(crate) only: String,
    pub(crate) full: bool,
    /// Write the page of results; only the lab of isolation does it by itself.
    pub(crate) record: bool,
    pub(crate) seconds: u64,
    pub(crate) repeats: u64,
}

impl Options {
    /// The script that runs this program's guest command in the virtual machine.
    pub(crate) fn guest_script(&self, command: &str, arguments: &[String]) -> Result<String> {
        Ok(guest_script(&std::env::current_exe()?, &self.binary, command, arguments))
    }

    /// Like [`Self::guest_script`], but the guest runs copies of the programs without debug information, made in `scratch`, so
    /// that a guest which keeps its programs in memory has less to load.
    pub(crate) fn lean_guest_script(&self, scratch: &Scratch, command: &str, arguments: &[String]) -> Result<String> {
        let lean = |program: PathBuf| -> Result<PathBuf> {
            if process::find_program("strip").is_none() || !program.is_file() {
                return Ok(program);
            }
            let copy = scratch.path().join(program.file_name().context("the program has no name")?);
            process::output(process::program("strip").arg("-o").arg(&copy).arg(&program))?;
            Ok(copy)
        };
        Ok(guest_script(&lean(std::env::current_exe()?)?, &lean(self.binary.clone())?, command, arguments))
    }
}

fn guest_script(own: &Path, binary: &Path, command: &str, arguments: &[String]) -> String {
    let mut words = vec![own.display().to_string(), "guest".into(), command.into()];
    words.extend(["--binary".into(), binary.display().to_string()]);
    words.extend(arguments.iter().cloned());
    let quoted = words.iter().map(|w| format!("'{}'", w.replace('\'', r"'\''"))).collect::<Vec<_>>().join(" ");
    let write = if tutorial::is_to_be_written() { "export EVENKEEL_WRITE=1\n" } else { "" };
    format!("{write}exec {quoted} 2>&1\n")
}

/// The results of a lab's checks, printed in the format of Rust's test harness, so that they are counted like tests.
#[derive(Debug)]
pub(crate) struct Lab {
    pub(crate) name: String,
    pub(crate) tally: Tally,
}

impl Lab {
    pub(crate) fn passed(&mut self, check: &str, detail: &str) {
        self.tally.passed += 1;
        if !detail.is_empty() {
            println!("lab: {check}: {detail}");
        }
        println!("test lab::{}::{check} ... ok", self.name);
    }

    /// Counts a check as skipped: writes its name and the reason to the log that the test runner reads.
    pub(crate) fn skipped(&mut self, check: &str, reason: &str) -> Result<()> {
        if let Some(log) = std::env::var_os("EVENKEEL_SKIP_LOG") {
            let mut log = std::fs::OpenOptions::new().create(true).append(true).open(log)?;
            writeln!(log, "lab::{}::{check}: {reason}", self.name)?;
        }
        self.passed(check, &format!("skipped: {reason}"));
        Ok(())
    }

    pub(crate) fn failed(&mut self, check: &str, reason: &str) {
        self.tally.failed.push(format!("lab::{}::{check}", self.name));
        println!("lab: {check}: {reason}");
        println!("test lab::{}::{check} ... FAILED", self.name);
    }

    pub(crate) fn check(&mut self, check: &str, holds: bool, detail: &str) {
        if holds { self.passed(check, detail) } else { self.failed(check, detail) }
    }

    /// Prints a measured figure with its bar; a missed bar has no effect on the lab's result.
    pub(crate) fn figure(&self, name: &str, value: &str, bar: &str, met: bool) {
        figure(&self.name, name, value, bar, met);
    }

    /// Reports a measured figure with its bar: with `--full` as a check, otherwise only as a printed line.
    pub(crate) fn judge(&mut self, options: &Options, name: &str, value: &str, bar: &str, met: bool) {
        self.figure(name, value, bar, met);
        if options.full {
            self.check(name, met, &format!("{value} (bar {bar})"));
        }
    }

    /// Ends the lab and prints the summary. Returns the counted checks.
    pub(crate) fn end(mut self, outcome: Result<()>, started: Instant) -> Tally {
        if let Err(e) = outcome {
            self.failed("whole_run", &format!("{e:#}"));
        }
        println!(
            "lab {}: {} passed, {} failed, in {:.0} s",
            self.name,
            self.tally.passed,
            self.tally.failed.len(),
            started.elapsed().as_secs_f64()
        );
        self.tally
    }
}

/// Prints a measured figure of a lab with its bar.
pub(crate) fn figure(lab: &str, name: &str, value: &str, bar: &str, met: bool) {
    println!("lab: figure {lab}::{name} {value} (bar {bar}, {})", if met { "met" } else { "MISSED" });
}
