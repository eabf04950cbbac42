//! The part of a lab that runs inside the virtual machine. The host starts these commands; people do not type them.

use std::path::PathBuf;

use anyhow::Result;

use crate::base::servers::Server;
use crate::check::steps::Plan;
use crate::check::writer;
use crate::{
    caches, durability, initiators, iscsi, isolation, local, nbd_client, package, replay, suites, sync_failure, systemd,
};

/// Arguments of `xtask guest`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Guest,
}

/// Commands of the guest.
#[derive(Debug, clap::Subcommand)]
enum Guest {
    /// Attacks a server of the lab of isolation.
    Attack(isolation::AttackerOptions),
    /// Serves what a test wants of nbdkit, in the lab of suites.
    Nbdkit(suites::stand_in::Options),
    /// Serves what a test wants of qemu-nbd, in the lab of suites.
    QemuNbd(suites::stand_in::Options),
    /// Serves every subject on a logged device and writes to it until the power is cut.
    Load {
        #[arg(long)]
        binary: PathBuf,
        subjects: Vec<durability::Subject>,
    },
    /// Writes to one export.
    Write(writer::Options),
    /// Serves every replayed disk and checks what it owes: `SUBJECT=FILE` for /dev/vda, /dev/vdb, ...
    Check {
        #[arg(long)]
        binary: PathBuf,
        cuts: Vec<String>,
    },
    /// Uses an export through the kernel's client.
    NbdClient {
        #[arg(long)]
        binary: PathBuf,
        #[arg(long)]
        server: Server,
    },
    /// Keeps guaranteed throughputs on cached devices.
    Caches(Plan),
    /// Shortens queues of disks.
    Initiators(Plan),
    /// Delays packets of iSCSI initiators.
    Iscsi {
        #[command(flatten)]
        plan: Plan,
        #[arg(long)]
        machine: iscsi::guest::Machine,
    },
    /// One iSCSI or NBD initiator with one request under way.
    IscsiLoad(iscsi::load::Options),
    /// Protects a reader beside a bulk writer.
    Local(Plan),
    /// Installs, upgrades and removes packages.
    Package {
        #[arg(long)]
        binary: PathBuf,
        #[arg(long)]
        boot: package::guest::Boot,
        #[arg(long)]
        package: Vec<PathBuf>,
        /// With all of the host's packages in dpkg's books.
        #[arg(long)]
        full: bool,
    },
    /// Records a load on a paced disk, and measures it under other settings.
    Replay(Plan),
    /// Serves disks that fail, work again and vanish.
    SyncFailure {
        #[arg(long)]
        binary: PathBuf,
    },
    /// Tries the units under systemd.
    Systemd {
        #[arg(long)]
        binary: PathBuf,
        #[arg(long)]
        units: PathBuf,
        /// The installed program.
        #[arg(long)]
        program: PathBuf,
        /// Watchdogs as shipped.
        #[arg(long)]
        full: bool,
    },
}

/// Runs a command of the guest.
pub fn run(args: &Args) -> Result<()> {
    match &args.command {
        Guest::Attack(options) => isolation::attack(options),
        Guest::Nbdkit(options) => suites::stand_in::run(options),
        Guest::QemuNbd(options) => suites::qemu_nbd::run(options),
        Guest::Load { binary, subjects } => durability::guest::load(binary, subjects),
        Guest::Write(options) => writer::run(options),
        Guest::Check { binary, cuts } => durability::guest::check(binary, cuts),
        Guest::NbdClient { binary, server } => nbd_client::guest(binary, *server),
        Guest::Caches(plan) => caches::guest::run(plan),
        Guest::Initiators(plan) => initiators::guest::run(plan),
        Guest::Iscsi { plan, machine } => iscsi::guest::run(plan, *machine),
        Guest::IscsiLoad(options) => iscsi::load::run(options),
        Guest::Local(plan) => local::guest::run(plan),
        Guest::Package { boot, package, full, .. } => package::guest::run(*boot, package, *full),
        Guest::Replay(plan) => replay::guest(plan),
        Guest::SyncFailure { binary } => sync_failure::guest::run(binary),
        Guest::Systemd { units, program, full, .. } => systemd::guest(program, units, *full),
    }
}
