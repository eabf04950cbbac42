//! The labs, their command line, and the programs that they need.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::base::record::Page;
use crate::base::servers::Server;
use crate::base::spelled::spelled;
use crate::base::tally::Tally;
use crate::base::{build, packages, space};
use crate::check::figures;
use crate::check::run::{Lab, Options};
use crate::machine::{kernel, vm};
use crate::{
    browser, caches, ceph, durability, initiators, iscsi, isolation, local, nbd_client, package, rbd, replay, slots,
    soak, suites, sync_failure, systemd, totals,
};

pub use crate::check::run::Pack;

/// Default length of a measurement in the Ceph lab, in seconds.
const SECONDS: u64 = 12;
/// Default number of repeats of the Ceph lab with `--full`.
const CEPH_REPEATS: u64 = 3;

/// Name of a lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Name {
    /// Visits the dashboard with a real browser; no virtual machine.
    Browser,
    /// Keeps guaranteed throughputs on a slow device behind a cache.
    Caches,
    /// Controls the throttle of a real Ceph OSD on a paced device; no virtual machine.
    Ceph,
    /// Cuts the power under load and looks for broken guarantees.
    Durability,
    /// Meets a target by the length of the queues of SCSI and NVMe disks.
    Initiators,
    /// Delays packets of real initiators against a real iSCSI target.
    Iscsi,
    /// Attacks a server beside a light client with a reservation; no virtual machine.
    Isolation,
    /// Protects a reader beside a bulk writer on a disk of the host.
    Local,
    /// Uses an export through the kernel's NBD client.
    NbdClient,
    /// Installs, upgrades, restarts and removes the package.
    Package,
    /// Serves an image of a real Ceph cluster through librbd; no virtual machine.
    Rbd,
    /// Predicts other settings from a recording, and measures them; a virtual machine and Ceph with --full alone.
    Replay,
    /// Meets latency targets across hosts, with a real etcd; no virtual machine.
    Slots,
    /// Runs the tests of other projects against a server; no virtual machine.
    Suites,
    /// Takes the device away under load and looks for flushes that hide it.
    SyncFailure,
    /// Starts, hangs, kills and stops the units under systemd.
    Systemd,
    /// Keeps a reservation and a limit over three servers, with a real etcd of three members; no virtual machine.
    Totals,
}

/// Arguments of `cargo xtask lab`.
#[derive(Debug, clap::Args)]
pub struct Args {
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
    /// Only steps whose name has this in it (caches, initiators, iscsi, isolation, replay, suites; ceph: tutorial, or with --full comparison, cost, recovery, disk).
    #[arg(long, default_value = "")]
    only: String,
    /// Measure everything at full length and repeatedly, with the release build, and let the medians decide (browser, ceph,
    /// caches, initiators, iscsi, isolation, replay, slots, totals); the watchdogs as shipped (systemd), all of dpkg's books (package), stops during a
    /// pause (rbd); prints the tables of the docs (ceph).
    #[arg(long)]
    full: bool,
    /// Seconds of each measurement (ceph).
    #[arg(long, default_value_t = SECONDS, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Number of measurements of everything with `--full`: 5 times by default (caches, initiators, iscsi, isolation, replay), 3 times (browser, ceph).
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    repeats: Option<u64>,
    /// Write figures and steps, with command, date, commit and machine, to docs/results/NAME.md (isolation: with --full).
    #[arg(long, conflicts_with = "only")]
    record: bool,
}

impl Args {
    /// The page of results that this run writes by [`Page::record_self`]; `None` without `--record`, and for the lab of
    /// isolation, whose page is a summary that the lab writes by itself.
    pub fn page(&self) -> Option<Page> {
        (self.record && self.name != Name::Isolation).then(|| Page::of("Lab", &self.name, None))
    }
}

/// Runs `cargo xtask lab`; true if every check passed.
pub fn run(args: Args, pack: Pack) -> Result<bool> {
    if let Some(reason) = missing(args.name) {
        anyhow::bail!("the {} lab cannot run here: {reason}", spelled(&args.name));
    }
    let tally = run_lab(args, pack)?;
    Ok(tally.failed.is_empty())
}

/// Runs `cargo xtask soak`.
pub fn run_soak(args: &soak::Args) -> Result<Tally> {
    let started = Instant::now();
    let binary = match given(args.binary.clone())? {
        Some(binary) => binary,
        None => build::binary("evenkeel", build::Profile::Dev)?,
    };
    let mut lab = Lab { name: "soak".into(), tally: Tally::default() };
    let outcome = soak::run(&mut lab, args, &binary);
    Ok(lab.end(outcome, started))
}

/// Path of the binary that the command line or the environment variable EVENKEEL_BIN names; `None` without either.
fn given(binary: Option<PathBuf>) -> Result<Option<PathBuf>> {
    let named = binary.or_else(|| std::env::var_os("EVENKEEL_BIN").map(PathBuf::from));
    Ok(named.map(std::path::absolute).transpose()?)
}

fn run_lab(args: Args, pack: Pack) -> Result<Tally> {
    let started = Instant::now();
    ensure!(!args.record || args.full, "--record of the lab of isolation takes --full: the page is about all settings");
    let binary = match given(args.binary)? {
        Some(binary) => binary,
        None if args.server.is_evenkeel() => {
            build::binary("evenkeel", if args.full { build::Profile::Release } else { build::Profile::Dev })?
        }
        None => PathBuf::from("evenkeel"),
    };
    let build = build::workspace().join("lab/build");
    let Args { server, keep, verbose, only, full, seconds, repeats, record, .. } = args;
    let repeats = repeats.unwrap_or(if args.name == Name::Ceph { CEPH_REPEATS } else { figures::REPEATS });
    let options = Options { server, binary, build, pack, keep, verbose, only, full, record, seconds, repeats };
    let mut lab = Lab { name: spelled(&args.name), tally: Tally::default() };
    let (run, ..) = parts(args.name);
    let outcome = run(&mut lab, &options);
    Ok(lab.end(outcome, started))
}

/// The function that runs a lab.
type Run = fn(&mut Lab, &Options) -> Result<()>;

/// Programs of the suites. QEMU and nbdcopy bring the libraries that the suites are linked with.
const SUITES: [&str; 8] =
    ["cc", "nbd-client", "nbdcopy", "openssl", "python3", "qemu-img", "qemu-io", "qemu-system-x86_64"];

/// The parts of a lab: its function, the programs of its virtual machine or cluster, and further programs that it needs.
fn parts(name: Name) -> (Run, &'static [&'static str], &'static [&'static str]) {
    match name {
        Name::Browser => (browser::run, &[], &["chromium"]),
        Name::Caches => (caches::run, &vm::PROGRAMS, &["fio"]),
        Name::Ceph => (ceph::run, &ceph::cluster::PROGRAMS, &["fio", "cc", "curl"]),
        Name::Durability => (durability::run, &vm::PROGRAMS, &[]),
        Name::Initiators => (initiators::run, &vm::PROGRAMS, &["fio", "etcd"]),
        Name::Iscsi => (iscsi::run, &vm::PROGRAMS, &["fio"]),
        Name::Isolation => (isolation::run, &[], &[]),
        Name::Local => (local::run, &vm::PROGRAMS, &["fio"]),
        Name::NbdClient => (nbd_client::run, &vm::PROGRAMS, &["fio"]),
        Name::Package => (package::run, &vm::PROGRAMS, &["systemctl", "dpkg-deb", "strip", "man", "pgrep"]),
        Name::Rbd => (rbd::run, &ceph::cluster::PROGRAMS, &["rbd", "fio", "qemu-img", "qemu-io"]),
        Name::Replay => (replay::run, &[], &[]),
        Name::Slots => (slots::run, &[], &["ip", "nft", "etcd", "etcdctl", "fio", "curl", "nsenter"]),
        Name::Suites => (suites::run, &[], &SUITES),
        Name::SyncFailure => (sync_failure::run, &vm::PROGRAMS, &[]),
        Name::Systemd => (systemd::run, &vm::PROGRAMS, &["systemctl", "strip"]),
        Name::Totals => (totals::run, &[], &["etcd", "fio", "curl"]),
    }
}

/// True if the lab boots virtual machines.
pub fn boots(name: Name) -> bool {
    parts(name).1 == vm::PROGRAMS
}

/// Names of the programs that a lab needs.
pub fn programs(name: Name) -> Vec<&'static str> {
    let (_, common, beside) = parts(name);
    [common, beside].concat()
}

/// The reason why a lab cannot run on this machine; `None` if it can run.
pub fn missing(name: Name) -> Option<String> {
    packages::missing_text(&programs(name)).or_else(|| match name {
        Name::Ceph => ceph::stage::missing(),
        Name::Rbd => ceph::cluster::missing(),
        Name::Slots => space::missing(),
        Name::Suites => suites::missing(),
        _ if boots(name) => vm::missing(),
        _ => None,
    })
}

/// Downloads the files for virtual machines, so that labs which run at the same time find them.
pub fn prepare() -> Result<()> {
    let build = build::workspace().join("lab/build");
    kernel::prepare(&build)?;
    kernel::busybox(&build)?;
    kernel::tools(&build, "tools", &iscsi::TOOLS)?;
    kernel::tools(&build, "tools-caches", &caches::TOOLS).map(drop)
}
