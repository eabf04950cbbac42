//! What runs inside the virtual machine. The host starts these commands; nobody types them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::durability::{FILE_BYTES, Subject};
use super::iscsi_guest::Machine;
use super::pattern::{self, SECTOR};
use super::steps::Plan;
use super::{
    SHARE, hybrid_guest, initiators_guest, iscsi_guest, iscsi_load, isolation, nbd_client, package_guest, suites,
    sync_failure, systemd, writer,
};
use crate::client::Client;
use crate::process::{self, Running};
use crate::servers::{self, Address, Setup, Storage};
use crate::{build, tutorial};

const CONNECT_LIMIT: Duration = Duration::from_secs(60);

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
    /// Serves every subject on a logged device and writes to it until the power is cut.
    Load {
        #[arg(long)]
        binary: PathBuf,
        subjects: Vec<Subject>,
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
        server: crate::servers::Server,
    },
    /// Keeps promised throughputs on hybrid devices.
    Hybrid(Plan),
    /// Shortens queues of disks.
    Initiators(Plan),
    /// Holds back packets of iSCSI initiators.
    Iscsi {
        #[command(flatten)]
        plan: Plan,
        #[arg(long)]
        machine: Machine,
    },
    /// One iSCSI or NBD initiator with one request under way.
    IscsiLoad(iscsi_load::Options),
    /// Installs, upgrades and removes packages.
    Package {
        #[arg(long)]
        binary: PathBuf,
        #[arg(long)]
        boot: package_guest::Boot,
        #[arg(long)]
        package: Vec<PathBuf>,
        /// With all of the host's packages in dpkg's books.
        #[arg(long)]
        full: bool,
    },
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
        /// What is installed.
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
        Guest::Load { binary, subjects } => load(binary, subjects),
        Guest::Write(options) => writer::run(options),
        Guest::Check { binary, cuts } => check(binary, cuts),
        Guest::NbdClient { binary, server } => nbd_client::guest(binary, server),
        Guest::Hybrid(plan) => hybrid_guest::run(plan),
        Guest::Initiators(plan) => initiators_guest::run(plan),
        Guest::Iscsi { plan, machine } => iscsi_guest::run(plan, *machine),
        Guest::IscsiLoad(options) => iscsi_load::run(options),
        Guest::Package { boot, package, full, .. } => package_guest::run(*boot, package, *full),
        Guest::SyncFailure { binary } => sync_failure::guest(binary),
        Guest::Systemd { units, program, full, .. } => systemd::guest(program, units, *full),
    }
}

/// The `index`-th disk of the machine.
fn disk(index: usize) -> PathBuf {
    format!("/dev/vd{}", char::from(b'a' + index as u8)).into()
}

/// Runs a program of the host's to its end.
pub(crate) fn tool(name: &str, args: &[&str]) -> Result<String> {
    process::output(process::program(name).args(args))
}

/// Does what a page of the documentation says; the machine is what its reader has.
pub(super) fn follow_tutorial(name: &str, binary: &Path) -> Result<String> {
    let commands = tutorial::follow(&build::page(name)?, binary, process::tie_to_this_program)?;
    Ok(format!("{commands} commands of docs/{name}.md"))
}

/// Takes programs over from the host with all they need: while the machine waits for the host, its virtual clock jumps from
/// timer to timer, and a second may pass while a program is opened.
pub(crate) fn keep_in_memory(mut files: Vec<PathBuf>) -> Result<()> {
    files.push(std::env::current_exe()?);
    for file in files.clone() {
        // Of a program without libraries it fails.
        let needed = process::output(process::program("ldd").arg(file)).unwrap_or_default();
        files.extend(needed.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from));
    }
    files.push("/etc/ld.so.cache".into());
    for file in files {
        // Setting anything of a file brings all of it into the layer in memory; a name may lead to another one.
        let Ok(file) = file.canonicalize() else { continue };
        let permissions = std::fs::metadata(&file)?.permissions();
        std::fs::set_permissions(&file, permissions).with_context(|| format!("cannot copy {}", file.display()))?;
    }
    Ok(())
}

/// Where server files of the guest live: in its memory, not in the shared directory.
pub(crate) fn work_dir(name: &str) -> PathBuf {
    Path::new("/mnt").join(name)
}

/// Storage of a subject on `device`; a subject with a file system gets it mounted, and made when `fresh`.
fn storage(subject: &Subject, device: &Path, name: &str, fresh: bool) -> Result<Storage> {
    if !subject.file {
        return Ok(Storage::Block(device.to_owned()));
    }
    let mount = work_dir(&format!("{name}-fs"));
    std::fs::create_dir_all(&mount)?;
    if fresh {
        // The file system is written through the log like everything else.
        tool(
            "mkfs.ext4",
            &["-q", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", &device.to_string_lossy()],
        )?;
    }
    tool("mount", &["-t", "ext4", &device.to_string_lossy(), &mount.to_string_lossy()])?;
    let file = mount.join("disk0.img");
    if fresh {
        std::fs::File::create(&file)?.set_len(FILE_BYTES as u64)?;
        // What the operator made before the server started is durable; the server's own writes are on trial.
        tool("sync", &[])?;
    }
    Ok(Storage::File(file))
}

fn load(binary: &Path, subjects: &[Subject]) -> Result<()> {
    let own = std::env::current_exe()?;
    let mut writers = Vec::new();
    let mut servers = Vec::new();
    for (index, subject) in subjects.iter().enumerate() {
        let name = subject.to_string();
        let (log, data) = (disk(2 * index), disk(2 * index + 1));
        let sectors = tool("blockdev", &["--getsz", &data.to_string_lossy()])?;
        // Requests enter the log in the order in which the target wrote them.
        let block = log.file_name().context("a disk has a name")?.to_string_lossy().into_owned();
        std::fs::write(format!("/sys/block/{block}/queue/scheduler"), "none")?;
        let table = format!("0 {} log-writes {} {}", sectors.trim(), data.display(), log.display());
        tool("dmsetup", &["create", "--noudevsync", &name, "--table", &table])?;
        tool("dmsetup", &["mknodes"])?;
        let device = Path::new("/dev/mapper").join(&name);
        let storage = storage(subject, &device, &name, true)?;
        let address = Address::Unix(work_dir(&format!("{name}.sock")));
        let setup = Setup { server: &subject.server, binary, storage: &storage, address: &address };
        servers.push(servers::start(&setup, &work_dir(&name))?);
        let mut writer = Process::new(&own);
        writer.args(["guest", "write", "--socket", &address.plain(), "--device", &name, "--journal"]);
        writer.arg(Path::new(SHARE).join(format!("{name}.journal")));
        writer.arg("--seed").arg((index + 1).to_string()).stdin(Stdio::null());
        writers.push((name, Running::spawn(&mut writer)?));
    }
    loop {
        println!("lab: tick");
        thread::sleep(Duration::from_millis(250));
        for (name, writer) in &mut writers {
            if let Some(status) = writer.ended()? {
                bail!("the writer of {name} ended: {status}");
            }
        }
        for server in &mut servers {
            if let Some(status) = server.ended()? {
                bail!("a server ended: {status}");
            }
        }
    }
}

fn check(binary: &Path, cuts: &[String]) -> Result<()> {
    for (index, cut) in cuts.iter().enumerate() {
        let (subject, owed) = cut.split_once('=').context("expected SUBJECT=FILE")?;
        let subject: Subject = subject.parse()?;
        let owed = parse_owed(&std::fs::read_to_string(Path::new(SHARE).join(owed))?)?;
        let name = format!("{subject}-{index}");
        let storage = storage(&subject, &disk(index), &name, false)?;
        let address = Address::Unix(work_dir(&format!("{name}.sock")));
        let setup = Setup { server: &subject.server, binary, storage: &storage, address: &address };
        let server = servers::start(&setup, &work_dir(&name))?;
        let broken = compare(&mut Client::connect(&address.plain(), servers::EXPORT, CONNECT_LIMIT)?, &owed)?;
        println!("lab: checked {index} owed {} broken {}", owed.len(), broken.len());
        if let Some(first) = broken.first() {
            println!("lab: {name}: {first}");
        }
        server.kill();
    }
    Ok(())
}

/// One line a sector: number and generation owed.
fn parse_owed(text: &str) -> Result<BTreeMap<u64, u64>> {
    let pair = |line: &str| {
        let (sector, generation) = line.split_once(' ').context("expected SECTOR GENERATION")?;
        Ok((sector.parse()?, generation.parse()?))
    };
    text.lines().map(pair).collect()
}

/// Reads the whole export and says which sectors hold less than they owe.
pub(super) fn compare(client: &mut Client, owed: &BTreeMap<u64, u64>) -> Result<Vec<String>> {
    const CHUNK: usize = 256 << 10;
    let mut broken = Vec::new();
    let mut chunk = vec![0; CHUNK];
    ensure!(client.size.is_multiple_of(CHUNK as u64), "the export changed its size to {}", client.size);
    for at in (0..client.size).step_by(CHUNK) {
        client.read(at, &mut chunk)?;
        for (i, data) in chunk.chunks_exact(SECTOR).enumerate() {
            let sector = at / SECTOR as u64 + i as u64;
            let due = owed.get(&sector).copied().unwrap_or(0);
            let content = pattern::read(data, sector);
            if content.generation().is_none_or(|g| g < due) {
                broken.push(format!("sector {sector} holds {content:?}, generation {due} had been acknowledged"));
            }
        }
    }
    Ok(broken)
}
