//! Labs in a virtual machine: what the host's kernel cannot show.

mod client;
mod cpio;
mod durability;
pub(crate) mod guest;
mod journal;
mod kernel;
mod log_writes;
mod nbd_client;
mod pattern;
mod replay;
mod vm;
mod writer;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::build;
use crate::servers::Server;

/// Where the guest sees the lab's directory of the host.
const SHARE: &str = "/run/lab";

/// Which lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Name {
    /// Cuts the power under load and looks for broken promises.
    Durability,
    /// Uses an export through the kernel's NBD client.
    NbdClient,
}

impl Name {
    /// As on the command line.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Durability => "durability",
            Self::NbdClient => "nbd-client",
        }
    }
}

/// Arguments of `cargo xtask lab`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Lab to run.
    name: Name,
    /// Server to test: evenkeel, or a stand-in to try the lab itself (qemu-nbd).
    #[arg(long, default_value = "evenkeel")]
    server: Server,
    /// Evenkeel's binary, also from the environment variable EVENKEEL_BIN; built when not given.
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Keep the images, journals and logs of the run.
    #[arg(long)]
    keep: bool,
    /// Show the guest's console.
    #[arg(long)]
    verbose: bool,
}

/// Settings of a run.
#[derive(Debug)]
struct Options {
    server: Server,
    binary: PathBuf,
    build: PathBuf,
    keep: bool,
    verbose: bool,
}

impl Options {
    /// The script that runs this program's guest command in the machine.
    fn guest_script(&self, command: &str, arguments: &[String]) -> Result<String> {
        let own = std::env::current_exe()?;
        let mut words = vec![own.display().to_string(), "guest".into(), command.into()];
        words.extend(["--binary".into(), self.binary.display().to_string()]);
        words.extend(arguments.iter().cloned());
        let quoted = words.iter().map(|w| format!("'{}'", w.replace('\'', r"'\''"))).collect::<Vec<_>>().join(" ");
        Ok(format!("exec {quoted} 2>&1\n"))
    }
}

/// Results of a lab, printed in the form of the test harness so that they are counted the same way.
#[derive(Debug)]
struct Lab {
    name: &'static str,
    passed: u32,
    failed: u32,
}

impl Lab {
    fn passed(&mut self, check: &str, detail: &str) {
        self.passed += 1;
        if !detail.is_empty() {
            println!("lab: {check}: {detail}");
        }
        println!("test lab::{}::{check} ... ok", self.name);
    }

    fn failed(&mut self, check: &str, reason: &str) {
        self.failed += 1;
        println!("lab: {check}: {reason}");
        println!("test lab::{}::{check} ... FAILED", self.name);
    }

    fn check(&mut self, check: &str, holds: bool, detail: &str) {
        if holds { self.passed(check, detail) } else { self.failed(check, detail) }
    }
}

/// Runs one lab; the result is whether every check held.
pub(crate) fn run(args: Args) -> Result<bool> {
    let started = Instant::now();
    if let Some(reason) = vm::missing() {
        anyhow::bail!("the {} lab cannot run here: {reason}", args.name.text());
    }
    let binary = match args.binary.or_else(|| std::env::var_os("EVENKEEL_BIN").map(PathBuf::from)) {
        Some(binary) => std::path::absolute(binary)?,
        None if matches!(args.server, Server::Evenkeel { .. }) => build::binary("evenkeel", build::Profile::Dev)?,
        None => PathBuf::from("evenkeel"),
    };
    let build = build::workspace().join("lab/build");
    let options = Options { server: args.server, binary, build, keep: args.keep, verbose: args.verbose };
    let mut lab = Lab { name: args.name.text(), passed: 0, failed: 0 };
    let outcome = match args.name {
        Name::Durability => durability::run(&mut lab, &options),
        Name::NbdClient => nbd_client::run(&mut lab, &options),
    };
    if let Err(e) = outcome {
        lab.failed("whole_run", &format!("{e:#}"));
    }
    println!(
        "lab {}: {} passed, {} failed in {:.0} s",
        lab.name,
        lab.passed,
        lab.failed,
        started.elapsed().as_secs_f64()
    );
    Ok(lab.failed == 0)
}

/// Why the labs cannot run on this machine, if so.
pub(crate) fn unavailable() -> Option<String> {
    vm::missing()
}

/// Fetches kernel and busybox, so that a later run works without a network.
pub(crate) fn prepare() -> Result<()> {
    let build = build::workspace().join("lab/build");
    kernel::prepare(&build).and_then(|_| kernel::busybox(&build)).context("cannot prepare the labs")?;
    Ok(())
}
