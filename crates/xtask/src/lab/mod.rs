//! Labs in a virtual machine: what the host's kernel cannot show.

mod browser;
mod browser_stage;
mod browser_watch;
mod ceph;
mod ceph_admin;
mod ceph_cluster;
mod ceph_disk;
mod ceph_full;
mod ceph_judge;
mod ceph_recovery;
mod ceph_stage;
mod cpio;
mod device_mapper;
mod devtools;
mod durability;
mod guard;
pub(crate) mod guest;
mod hybrid;
mod hybrid_guest;
mod hybrid_stage;
mod initiators;
mod initiators_guest;
mod iscsi;
mod iscsi_baselines;
mod iscsi_control;
mod iscsi_guest;
mod iscsi_load;
mod iscsi_observe;
mod iscsi_others;
mod iscsi_overhead;
mod iscsi_servers;
mod iscsi_stage;
mod journal;
mod kernel;
mod log_writes;
mod lvm;
mod nbd_client;
mod package;
mod package_guest;
mod pattern;
mod rbd;
mod replay;
mod services;
mod slots;
pub(crate) mod soak;
mod steps;
mod sync_failure;
mod systemd;
mod vm;
mod writer;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;

use crate::build;
use crate::servers::Server;
use crate::tally::Tally;

/// Where the guest sees the lab's directory of the host.
const SHARE: &str = "/run/lab";
/// What a measurement of the lab of Ceph takes.
const SECONDS: u64 = 12;

/// Which lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Name {
    /// Visits the dashboard with a real browser; no virtual machine.
    Browser,
    /// Controls the throttle of a real Ceph OSD on a paced device; no virtual machine.
    Ceph,
    /// Cuts the power under load and looks for broken promises.
    Durability,
    /// Keeps promised throughputs on a slow device behind a cache.
    Hybrid,
    /// Keeps a goal by the length of the queues of SCSI and NVMe disks.
    Initiators,
    /// Delays packets of real initiators against a real iSCSI target.
    Iscsi,
    /// Uses an export through the kernel's NBD client.
    NbdClient,
    /// Installs, upgrades, restarts and removes the package.
    Package,
    /// Serves an image of a real Ceph cluster through librbd; no virtual machine.
    Rbd,
    /// Keeps goals for response times across hosts, with a real etcd; no virtual machine.
    Slots,
    /// Takes the device away under load and looks for flushes that hide it.
    SyncFailure,
    /// Starts, hangs, kills and stops the units under systemd.
    Systemd,
}

impl Name {
    /// As on the command line.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Browser => "browser",
            Self::Ceph => "ceph",
            Self::Durability => "durability",
            Self::Hybrid => "hybrid",
            Self::Initiators => "initiators",
            Self::Iscsi => "iscsi",
            Self::NbdClient => "nbd-client",
            Self::Package => "package",
            Self::Rbd => "rbd",
            Self::Slots => "slots",
            Self::SyncFailure => "sync-failure",
            Self::Systemd => "systemd",
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
    /// Only steps whose name has this in it (hybrid, initiators, iscsi; ceph: tutorial, or with --full comparison, cost, recovery, disk).
    #[arg(long, default_value = "")]
    only: String,
    /// Measure everything, with the release build, and print the tables of the docs (ceph).
    #[arg(long)]
    full: bool,
    /// Seconds of each measurement (ceph).
    #[arg(long, default_value_t = SECONDS, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// How often everything is measured with `--full` (ceph).
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    repeats: u64,
}

/// Settings of a run.
#[derive(Debug)]
struct Options {
    server: Server,
    binary: PathBuf,
    build: PathBuf,
    keep: bool,
    verbose: bool,
    only: String,
    full: bool,
    seconds: u64,
    repeats: u64,
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
    tally: Tally,
}

impl Lab {
    fn passed(&mut self, check: &str, detail: &str) {
        self.tally.passed += 1;
        if !detail.is_empty() {
            println!("lab: {check}: {detail}");
        }
        println!("test lab::{}::{check} ... ok", self.name);
    }

    fn failed(&mut self, check: &str, reason: &str) {
        self.tally.failed.push(format!("lab::{}::{check}", self.name));
        println!("lab: {check}: {reason}");
        println!("test lab::{}::{check} ... FAILED", self.name);
    }

    fn check(&mut self, check: &str, holds: bool, detail: &str) {
        if holds { self.passed(check, detail) } else { self.failed(check, detail) }
    }

    /// A measurement that missed its bound and is made once more.
    fn repeated(&mut self, check: &str, reason: &str) {
        self.tally.repeated.push(format!("lab::{}::{check}", self.name));
        println!("lab: {check} is measured once more: {reason}");
    }

    /// Sums up.
    fn end(mut self, outcome: Result<()>, started: Instant) -> Tally {
        if let Err(e) = outcome {
            self.failed("whole_run", &format!("{e:#}"));
        }
        println!(
            "lab {}: {} passed, {} failed, {} measured twice, in {:.0} s",
            self.name,
            self.tally.passed,
            self.tally.failed.len(),
            self.tally.repeated.len(),
            started.elapsed().as_secs_f64()
        );
        self.tally
    }
}

/// `cargo xtask lab`; the result is whether every check held.
pub(crate) fn run(args: Args) -> Result<bool> {
    let reason = match args.name {
        Name::Browser => without_browser(),
        Name::Ceph => without_ceph(),
        Name::Rbd => without_rbd(),
        Name::Slots => without_slots(),
        _ => unavailable(),
    };
    if let Some(reason) = reason {
        anyhow::bail!("the {} lab cannot run here: {reason}", args.name.text());
    }
    let tally = run_lab(args)?;
    Ok(tally.failed.is_empty())
}

/// One lab as a step of `cargo xtask test`.
pub(crate) fn run_in_test(name: Name, keep: bool) -> Result<Tally> {
    let server = Server::Evenkeel;
    let (verbose, only, full) = (false, String::new(), false);
    run_lab(Args { name, server, binary: None, keep, verbose, only, full, seconds: SECONDS, repeats: 1 })
}

/// `cargo xtask soak`, also as a step of `cargo xtask test`.
pub(crate) fn run_soak(args: &soak::Args) -> Result<Tally> {
    let started = Instant::now();
    let binary = match given(args.binary.clone())? {
        Some(binary) => binary,
        None => build::binary("evenkeel", build::Profile::Dev)?,
    };
    let mut lab = Lab { name: "soak", tally: Tally::default() };
    let outcome = soak::run(&mut lab, args, &binary);
    Ok(lab.end(outcome, started))
}

/// The binary that somebody wants to be used.
fn given(binary: Option<PathBuf>) -> Result<Option<PathBuf>> {
    let named = binary.or_else(|| std::env::var_os("EVENKEEL_BIN").map(PathBuf::from));
    Ok(named.map(std::path::absolute).transpose()?)
}

fn run_lab(args: Args) -> Result<Tally> {
    let started = Instant::now();
    let binary = match given(args.binary)? {
        Some(binary) => binary,
        None if args.server.is_evenkeel() => {
            build::binary("evenkeel", if args.full { build::Profile::Release } else { build::Profile::Dev })?
        }
        None => PathBuf::from("evenkeel"),
    };
    let build = build::workspace().join("lab/build");
    let Args { server, keep, verbose, only, full, seconds, repeats, .. } = args;
    let options = Options { server, binary, build, keep, verbose, only, full, seconds, repeats };
    let mut lab = Lab { name: args.name.text(), tally: Tally::default() };
    let outcome = match args.name {
        Name::Browser => browser::run(&mut lab, &options),
        Name::Ceph => ceph::run(&mut lab, &options),
        Name::Durability => durability::run(&mut lab, &options),
        Name::Hybrid => hybrid::run(&mut lab, &options),
        Name::Initiators => initiators::run(&mut lab, &options),
        Name::Iscsi => iscsi::run(&mut lab, &options),
        Name::NbdClient => nbd_client::run(&mut lab, &options),
        Name::Package => package::run(&mut lab, &options),
        Name::Rbd => rbd::run(&mut lab, &options),
        Name::Slots => slots::run(&mut lab, &options),
        Name::SyncFailure => sync_failure::run(&mut lab, &options),
        Name::Systemd => systemd::run(&mut lab, &options),
    };
    Ok(lab.end(outcome, started))
}

/// Why the labs cannot run on this machine, if so.
pub(crate) fn unavailable() -> Option<String> {
    vm::missing()
}

/// Why the lab of the dashboard cannot run on this machine, if so.
pub(crate) fn without_browser() -> Option<String> {
    browser::missing()
}

/// Why the lab of Ceph cannot run on this machine, if so.
pub(crate) fn without_ceph() -> Option<String> {
    ceph::missing()
}

/// Why the lab of RBD images cannot run on this machine, if so.
pub(crate) fn without_rbd() -> Option<String> {
    rbd::missing()
}

/// Why the lab of slots cannot run on this machine, if so.
pub(crate) fn without_slots() -> Option<String> {
    slots::missing()
}

/// Why the lab of the package cannot run on this machine, if so.
pub(crate) fn without_package() -> Option<String> {
    package::missing()
}

/// Why the lab of services cannot run on this machine, if so.
pub(crate) fn without_systemd() -> Option<String> {
    systemd::missing()
}
