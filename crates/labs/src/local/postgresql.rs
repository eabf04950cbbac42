//! A real program: PostgreSQL with `pgbench`, beside `dd` and `tar` on the same disk, without the agent and under it.
//!
//! The database is larger than the memory of its group, so that transactions read from the disk. The agent's target is for the
//! mean of the disk's reads: a third of the way from that without other load to that without the agent.

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::load::{DISK, on_ext4, policy};
use super::{BULK, PROTECTED};
use crate::base::process::{self, Running};
use crate::check::steps::Plan;
use crate::machine::guard::{self, Guard};
use crate::machine::guest::{GROUPS, in_group, keep_in_memory, put, until};

/// Environment variable with the folder into which packages of PostgreSQL are unpacked that are not installed.
pub(super) const UNPACKED: &str = "EVENKEEL_POSTGRESQL";
/// Programs of PostgreSQL that the step runs.
const NEEDED: [&str; 4] = ["initdb", "pg_isready", "pgbench", "postgres"];
/// Folder of libraries below the root of unpacked packages.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// The user of the server, which refuses to run as root: one without rights.
const USER: u32 = 65_534;
/// Mount point of the disk.
const FOLDER: &str = "/mnt/local-postgresql";
const SOCKETS: &str = "/run/local-postgresql";
const LOGS: &str = "/run/local-pgbench";
/// Size of the database as a factor for pgbench, each 15 MB.
const SCALE: &str = "10";
/// Settings of the server: no TCP, a cache that is smaller than the database, and checkpoints within a measurement.
const SETTINGS: [&str; 5] =
    ["listen_addresses=", "shared_buffers=16MB", "max_wal_size=128MB", "checkpoint_timeout=30s", "jit=off"];
/// Memory of the database's group, and of the group beside it, in MiB: less than their files have.
const MEMORY_MIB: [u64; 2] = [96, 64];
/// Measured time in seconds: in a short run, and in a full run.
const SECONDS: [u64; 2] = [20, 60];
/// Time in which the controller finds its limits, and time in which a load fills the page cache.
const SETTLE_S: u64 = 20;
const FILL: Duration = Duration::from_secs(5);
/// A target is at least this many times the mean latency without other load.
const SLOWED: f64 = 1.2;
/// Largest p99 under the agent as a multiple of that without it; a difference of this size is chance.
const NOT_WORSE: f64 = 1.1;
const END_LIMIT: Duration = Duration::from_secs(120);

/// A load beside the database, as a script of the shell; its argument is the folder of the files.
struct Load {
    name: &'static str,
    script: &'static str,
}

const LOADS: [Load; 2] = [
    Load { name: "dd", script: "while :; do dd if=/dev/zero of=\"$1/bulk\" bs=1M count=128 conv=fsync; done" },
    Load {
        name: "tar",
        script: "dd if=/dev/zero of=\"$1/bulk\" bs=1M count=128; while :; do tar -cf \"$1/copy.tar\" -C \"$1\" bulk; done",
    },
];

/// The programs of PostgreSQL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Programs {
    /// The folder with the programs.
    folder: PathBuf,
    /// The folder with the libraries of programs that are not installed.
    libraries: Option<PathBuf>,
}

impl Programs {
    /// The programs in the guest: unpacked ones, or those that are installed; `None` without any.
    pub(super) fn here() -> Option<Self> {
        let unpacked = std::env::var_os(UNPACKED).map(PathBuf::from);
        let roots: Vec<PathBuf> = unpacked.into_iter().chain([PathBuf::from("/")]).collect();
        Self::find(&roots)
    }

    /// The newest version below the first of the roots that has one.
    fn find(roots: &[PathBuf]) -> Option<Self> {
        roots.iter().find_map(|root| Self::below(root))
    }

    fn below(root: &Path) -> Option<Self> {
        let entries = std::fs::read_dir(root.join("usr/lib/postgresql")).ok()?;
        let version = |entry: std::fs::DirEntry| -> Option<(u32, PathBuf)> {
            let number = entry.file_name().to_str()?.parse::<u32>().ok()?;
            let folder = entry.path().join("bin");
            NEEDED.iter().all(|name| folder.join(name).is_file()).then_some((number, folder))
        };
        let (_, folder) = entries.flatten().filter_map(version).max()?;
        let libraries = (root != Path::new("/")).then(|| root.join(LIBRARIES));
        Some(Self { folder, libraries })
    }

    /// Lets a command find the libraries.
    fn with_libraries(&self, command: &mut Command) {
        let Some(libraries) = &self.libraries else { return };
        let others = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let mut all = libraries.clone().into_os_string();
        if !others.is_empty() {
            all.push(":");
            all.push(others);
        }
        command.env("LD_LIBRARY_PATH", all);
    }

    /// A command that runs a client.
    fn client(&self, name: &str) -> Command {
        let mut command = Command::new(self.folder.join(name));
        self.with_libraries(command.args(["-h", SOCKETS, "-U", "postgres"]));
        command
    }

    /// A command that runs a program of the server in the protected group, as a user without privileges.
    fn of_server(&self, name: &str) -> Command {
        let mut shell = in_group(PROTECTED);
        shell.arg("setpriv").arg(format!("--reuid={USER}")).arg(format!("--regid={USER}")).arg("--clear-groups");
        shell.arg(self.folder.join(name));
        self.with_libraries(&mut shell);
        shell
    }
}

/// Measures the transactions alone, and beside each load without the agent and under it.
pub(super) fn beside_dd_and_tar(plan: &Plan, programs: &Programs) -> Result<String> {
    let shell = ["dd", "tar", "setpriv", "sh"].into_iter().filter_map(process::find_program);
    keep_in_memory(NEEDED.iter().map(|name| programs.folder.join(name)).chain(shell).collect())?;
    on_ext4(&format!("/dev/{DISK}"), &[], FOLDER, || {
        let outcome = on_mounted(plan, programs);
        for group in [PROTECTED, BULK] {
            put(format!("{GROUPS}/{group}/memory.max"), "max")?;
        }
        outcome
    })
}

fn on_mounted(plan: &Plan, programs: &Programs) -> Result<String> {
    let data = Path::new(FOLDER).join("data");
    for folder in [data.as_path(), Path::new(SOCKETS)] {
        std::fs::create_dir_all(folder)?;
        chown(folder, Some(USER), Some(USER))?;
    }
    process::output(programs.of_server("initdb").arg("-D").arg(&data).args(["-A", "trust", "-U", "postgres"]))?;
    let mut server = programs.of_server("postgres");
    server.arg("-D").arg(&data).args(["-k", SOCKETS]);
    for setting in SETTINGS {
        server.args(["-c", setting]);
    }
    let server = process::daemon(Path::new("/run"), "postgresql", &mut server)?;
    until("PostgreSQL", || process::output(&mut programs.client("pg_isready")).ok())?;
    process::output(programs.client("pgbench").args(["-i", "-q", "-s", SCALE, "postgres"]))?;
    for (group, mib) in [PROTECTED, BULK].into_iter().zip(MEMORY_MIB) {
        put(format!("{GROUPS}/{group}/memory.max"), &(mib << 20).to_string())?;
    }
    let outcome = compare(plan, programs);
    server.stop(libc::SIGINT, END_LIMIT)?;
    outcome
}

fn compare(plan: &Plan, programs: &Programs) -> Result<String> {
    let [short, full] = SECONDS;
    let seconds = plan.either(short, full);
    // The first transactions fill the caches.
    transactions(programs, SETTLE_S)?;
    let alone = transactions(programs, seconds)?;
    println!("lab: pgbench alone: {alone}");
    let mut said = vec![format!("p99 of transactions {:.1} ms alone", alone.p99_ms)];
    for load in &LOADS {
        let mut script = in_group(BULK);
        script.args(["sh", "-c", load.script, "sh", FOLDER]);
        script.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let beside = Running::spawn(&mut script)?;
        thread::sleep(FILL);
        let unmanaged = transactions(programs, seconds)?;
        println!("lab: pgbench beside {}, without the agent: {unmanaged}", load.name);
        let thirds = (2.0 * alone.read_ms + unmanaged.read_ms) / 3.0;
        let guard = Guard::start(&plan.binary, guard::ONLY, &policy(thirds.max(SLOWED * alone.read_ms)))?;
        transactions(programs, SETTLE_S)?;
        let managed = transactions(programs, seconds)?;
        println!("lab: pgbench beside {}, under the agent: {managed}", load.name);
        guard.stop()?;
        beside.kill();
        let (before, after) = (unmanaged.p99_ms, managed.p99_ms);
        let name = load.name;
        ensure!(after <= NOT_WORSE * before, "p99 beside {name} {after:.1} ms under the agent, {before:.1} ms without");
        said.push(format!("beside {name} {before:.1} ms without the agent, {after:.1} ms under it"));
    }
    Ok(said.join("; "))
}

/// Figures of a run of transactions, and of the disk meanwhile.
#[derive(Clone, Copy, Debug)]
struct Figures {
    per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
    /// Mean latency of the disk's reads.
    read_ms: f64,
    /// Of all groups, in MB per second.
    mb_per_s: f64,
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { per_s, p50_ms, p99_ms, read_ms, mb_per_s } = self;
        write!(
            f,
            "{per_s:.0} transactions/s, p50 {p50_ms:.1} ms, p99 {p99_ms:.1} ms, reads of the disk {read_ms:.2} ms, {mb_per_s:.1} MB/s"
        )
    }
}

/// Runs transactions of four clients for `seconds`.
fn transactions(programs: &Programs, seconds: u64) -> Result<Figures> {
    let _ = std::fs::remove_dir_all(LOGS);
    std::fs::create_dir_all(LOGS)?;
    let (before, begun) = (Counts::read(DISK)?, Instant::now());
    let mut pgbench = programs.client("pgbench");
    pgbench.args(["-n", "-c", "4", "-j", "1", "-l"]).arg(format!("--log-prefix={LOGS}/log"));
    process::output(pgbench.arg("-T").arg(seconds.to_string()).arg("postgres"))?;
    let elapsed = begun.elapsed().as_secs_f64();
    let after = Counts::read(DISK)?;
    let mut all = Vec::new();
    for entry in std::fs::read_dir(LOGS)? {
        all.extend(latencies(&std::fs::read_to_string(entry?.path())?)?);
    }
    ensure!(!all.is_empty(), "pgbench completed no transaction");
    all.sort_unstable_by(f64::total_cmp);
    let at = |part: f64| all[((part * all.len() as f64) as usize).min(all.len() - 1)];
    let reads = after.reads.saturating_sub(before.reads).max(1);
    Ok(Figures {
        per_s: all.len() as f64 / elapsed,
        p50_ms: at(0.5),
        p99_ms: at(0.99),
        read_ms: after.read_ms.saturating_sub(before.read_ms) as f64 / reads as f64,
        mb_per_s: after.sectors.saturating_sub(before.sectors) as f64 * 512.0 / elapsed / 1e6,
    })
}

/// Latencies in ms in a log of pgbench: the third number of a line, in us.
fn latencies(log: &str) -> Result<Vec<f64>> {
    let of_line = |line: &str| line.split_ascii_whitespace().nth(2)?.parse::<f64>().ok();
    let of_line = |line: &str| of_line(line).map(|us| us / 1e3).with_context(|| format!("a line of pgbench: {line}"));
    log.lines().map(of_line).collect()
}

/// Counts of a disk since its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counts {
    reads: u64,
    /// Sum of the reads' latencies in ms.
    read_ms: u64,
    /// Read and written, of 512 bytes.
    pub(super) sectors: u64,
}

impl Counts {
    /// The counts of the disk with this name.
    pub(super) fn read(disk: &str) -> Result<Self> {
        Self::parse(&std::fs::read_to_string(format!("/sys/block/{disk}/stat"))?)
    }

    /// The counts in the text of a disk's file `stat`.
    fn parse(stat: &str) -> Result<Self> {
        let numbers: Vec<u64> = stat.split_ascii_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        let at = |place: usize| numbers.get(place).copied().context("a disk's stat has at least seven numbers");
        Ok(Self { reads: at(0)?, read_ms: at(3)?, sectors: at(2)? + at(6)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_that_is_complete_is_found_unpacked_before_installed() {
        let root = std::env::temp_dir().join(format!("evenkeel-lab-postgresql-{}", std::process::id()));
        let folder = |version: &str| root.join("usr/lib/postgresql").join(version).join("bin");
        for (version, absent) in [("9", 0), ("15", 0), ("17", 1), ("common", 0)] {
            std::fs::create_dir_all(folder(version)).unwrap();
            NEEDED.iter().skip(absent).for_each(|name| std::fs::write(folder(version).join(name), "").unwrap());
        }
        let found = Programs::find(&[root.join("absent"), root.clone()]);
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(found, Some(Programs { folder: folder("15"), libraries: Some(root.join(LIBRARIES)) }));
        assert_eq!(Programs::find(&[root]), None);
    }

    #[test]
    fn latencies_are_the_third_numbers_of_lines() {
        assert_eq!(latencies("0 199 2241 0 1175850568 995598\n1 7 500 0 1 2\n").unwrap(), [2.241, 0.5]);
        assert!(latencies("0 199\n").is_err() && latencies("0 1 skipped 0 1 2\n").is_err());
    }

    #[test]
    fn counts_of_a_disk_are_read_by_their_places() {
        let stat = "  100  0  800  250  40  0  1600  90  0  300  340\n";
        assert_eq!(Counts::parse(stat).unwrap(), Counts { reads: 100, read_ms: 250, sectors: 2_400 });
        assert!(Counts::parse("1 2 3").is_err() && Counts::parse("a b").is_err());
    }

    #[test]
    fn the_policy_rounds_a_target_up() {
        assert!(policy(0.0001).contains("latency.target = \"1us\"") && policy(2.5).contains("\"2500us\""));
    }
}
