//! `cargo xtask compare nbd`: compares Evenkeel with nbdkit and qemu-nbd on this machine.
//!
//! All servers of a case run at the same time and are measured in turn, round by round, so that changes of the machine's
//! conditions affect all of them. The client is `evenkeel load`, which batches requests; a client that does not batch hides
//! the differences.

mod host;
mod load;
mod placement;
mod targets;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use evenkeel_record::machine;
use serde::Serialize;

use self::host::Memory;
use self::targets::Target;
use crate::base::build::{self, Profile};
use crate::base::client::{self, Client};
use crate::base::process::{self, Running};
use crate::base::record::Page;
use crate::base::scratch::Scratch;
use crate::base::servers::{self, Address, EXPORT, Server, Setup, Storage};
use crate::base::spelled::spelled;
use crate::check::figures::Spread;

/// Size of exports in memory, in bytes: larger than the processor's caches, but quickly filled.
const MEMORY_BYTES: u64 = 256 << 20;
const FILE_BYTES: u64 = 1 << 30;
const CONNECT_LIMIT: Duration = Duration::from_secs(20);

/// The subject of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Subject {
    /// Evenkeel, nbdkit and qemu-nbd under the same loads.
    Nbd,
    /// Ways to place connections on workers, under the same connections; takes root.
    Placement,
}

/// Arguments of `cargo xtask compare`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The subject.
    subject: Subject,
    /// Print results as JSON.
    #[arg(long)]
    json: bool,
    /// Rounds; every server of a case runs once in each.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds of load for each server and round.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Only cases whose name contains this.
    #[arg(long, default_value = "")]
    case: String,
    /// Only these servers: evenkeel, evenkeel-noqos, evenkeel-tls, nbdkit, qemu-nbd.
    #[arg(long, value_delimiter = ',')]
    servers: Vec<Server>,
    /// Only these ways to place connections.
    #[arg(long, value_delimiter = ',', value_parser = clap::builder::PossibleValuesParser::new(placement::METHODS))]
    methods: Vec<String>,
    /// Evenkeel's binary, server and client; built in release mode when not given.
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Another binary of Evenkeel, which serves in place of nbdkit and qemu-nbd: before and after a change.
    #[arg(long)]
    baseline: Option<PathBuf>,
    /// Directory on the file system to measure files on.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Fail when a target is missed.
    #[arg(long)]
    check: bool,
    /// Write the tables, with command, date, commit and machine, to docs/results/SUBJECT.md.
    #[arg(long, conflicts_with_all = ["baseline", "case", "json", "methods", "servers"])]
    record: bool,
}

impl Args {
    /// The page of results that this comparison writes; `None` without `--record`.
    pub fn page(&self) -> Option<Page> {
        self.record.then(|| Page::of("Comparison", &self.subject, None))
    }
}

/// The servers with which Evenkeel is compared in a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Against {
    /// nbdkit and qemu-nbd.
    Peers,
    /// nbdkit, qemu-nbd, and Evenkeel without mClock and admission.
    PeersAndNoQos,
    /// Evenkeel with TLS certificates; the client connects without TLS.
    Certificates,
    /// nbdkit; the client connects to both servers with TLS.
    Tls,
}

impl Against {
    fn servers(self) -> &'static [Server] {
        use Server::{Evenkeel, EvenkeelNoQos, EvenkeelTls, Nbdkit, QemuNbd};
        match self {
            Self::Peers => &[Evenkeel, Nbdkit, QemuNbd],
            Self::PeersAndNoQos => &[Evenkeel, Nbdkit, QemuNbd, EvenkeelNoQos],
            Self::Certificates => &[Evenkeel, EvenkeelTls],
            Self::Tls => &[EvenkeelTls, Nbdkit],
        }
    }
}

/// A kind of storage behind the export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Memory,
    File,
    /// Evenkeel's model of an SSD; only with the option `--baseline`.
    Ssd,
}

/// A case of the comparison: a load on a kind of storage over a transport.
#[derive(Debug, Clone, Copy)]
struct Case {
    name: &'static str,
    tcp: bool,
    kind: Kind,
    against: Against,
    op: &'static str,
    block_size: &'static str,
    pattern: &'static str,
    queue_depth: u32,
    connections: u32,
}

const RANDOM: Case = Case {
    name: "",
    tcp: false,
    kind: Kind::Memory,
    against: Against::Peers,
    op: "read",
    block_size: "4k",
    pattern: "random",
    queue_depth: 32,
    connections: 1,
};

impl Case {
    /// True if the server divides each request of the case.
    fn divides(&self) -> bool {
        self.block_size == LARGE.block_size
    }
}

/// Sequential requests of a size that the server divides.
const LARGE: Case = Case { block_size: "4m", pattern: "sequential", queue_depth: 1, kind: Kind::File, ..RANDOM };

/// The cases with the option `--baseline`: small requests one at a time, from many connections, and in batches; large requests;
/// divided requests.
const BASELINE_CASES: [Case; 14] = [
    Case { name: "read-4k-qd1", queue_depth: 1, ..RANDOM },
    Case { name: "read-4k-qd1x32", queue_depth: 1, connections: 32, ..RANDOM },
    Case { name: "read-4k-qd4x32", queue_depth: 4, connections: 32, ..RANDOM },
    Case { name: "write-4k-qd1x32", op: "write", queue_depth: 1, connections: 32, ..RANDOM },
    Case { name: "read-128k-qd8", block_size: "128k", queue_depth: 8, ..RANDOM },
    Case { name: "write-128k-qd8", op: "write", block_size: "128k", queue_depth: 8, ..RANDOM },
    Case { name: "file-read-4m-qd1", ..LARGE },
    Case { name: "file-read-4m-qd4", queue_depth: 4, ..LARGE },
    Case { name: "file-write-4m-qd1", op: "write", ..LARGE },
    Case { name: "file-write-4m-qd4", op: "write", queue_depth: 4, ..LARGE },
    Case { name: "ssd-read-4m-qd1", kind: Kind::Ssd, ..LARGE },
    Case { name: "ssd-read-4m-qd4", kind: Kind::Ssd, queue_depth: 4, ..LARGE },
    Case { name: "ssd-write-4m-qd1", kind: Kind::Ssd, op: "write", ..LARGE },
    Case { name: "ssd-write-4m-qd4", kind: Kind::Ssd, op: "write", queue_depth: 4, ..LARGE },
];

const CASES: [Case; 9] = [
    Case { name: "unix-4k-read-qd32x1", against: Against::PeersAndNoQos, ..RANDOM },
    Case { name: "unix-4k-read-qd32x4", connections: 4, against: Against::PeersAndNoQos, ..RANDOM },
    Case { name: "tcp-4k-read-qd32x1", tcp: true, ..RANDOM },
    Case { name: "tcp-4k-read-qd32x4", tcp: true, connections: 4, ..RANDOM },
    Case { name: "unix-4k-read-qd1", queue_depth: 1, ..RANDOM },
    Case { name: "unix-128k-sequential", block_size: "128k", pattern: "sequential", queue_depth: 8, ..RANDOM },
    Case { name: "unix-4k-read-certificates", against: Against::Certificates, ..RANDOM },
    Case {
        name: "tls-128k-sequential",
        tcp: true,
        against: Against::Tls,
        block_size: "128k",
        pattern: "sequential",
        queue_depth: 8,
        ..RANDOM
    },
    Case { name: "file-4k-read-qd32", kind: Kind::File, against: Against::PeersAndNoQos, ..RANDOM },
];

/// One measurement of a server in a case, in one round.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Run {
    pub(crate) case: String,
    pub(crate) server: String,
    pub(crate) round: u32,
    pub(crate) iops: f64,
    pub(crate) bytes_per_s: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// User plus system CPU time of the server, in microseconds per request.
    pub(crate) cpu_us_per_io: f64,
    /// Mean number of processors that the server kept busy.
    pub(crate) server_busy: f64,
    /// CPU time of copying 4 KiB of memory during the measurement, in ns; higher when other virtual machines are busy.
    pub(crate) memory_ns: f64,
}

/// All measurements of a comparison.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Results {
    pub(crate) runs: Vec<Run>,
}

impl Results {
    /// A figure of a server in a case, one value for each round, in order.
    fn column(&self, case: &str, server: &str, figure: impl Fn(&Run) -> f64) -> Vec<f64> {
        self.runs.iter().filter(|r| r.case == case && r.server == server).map(figure).collect()
    }
}

/// Runs the comparison. True unless `--check` is given and a target is missed.
pub fn run(args: &Args) -> Result<bool> {
    let binary = match &args.binary {
        Some(binary) => std::path::absolute(binary)?,
        None => {
            eprintln!("building evenkeel (release)");
            build::binary("evenkeel", Profile::Release)?
        }
    };
    if args.subject == Subject::Placement {
        return placement::run(args, &binary);
    }
    let peers: &[_] = if args.baseline.is_some() { &[] } else { &["nbdkit", "qemu-nbd", "fio", "nbdcopy", "openssl"] };
    for peer in peers {
        ensure!(
            process::find_program(peer).is_some(),
            "{peer} is not installed: sudo apt-get install nbdkit qemu-utils fio libnbd-bin openssl"
        );
    }
    let all: &[Case] = if args.baseline.is_some() { &BASELINE_CASES } else { &CASES };
    let cases: Vec<&Case> = all.iter().filter(|c| c.name.contains(&args.case)).collect();
    let names: Vec<_> = all.iter().map(|c| c.name).collect();
    ensure!(!cases.is_empty(), "no case is named like `{}`: {}", args.case, names.join(", "));
    let scratch = Scratch::new("compare")?;
    let data =
        DataFile::make(args.dir.as_deref().unwrap_or(scratch.path()), cases.iter().any(|c| c.kind == Kind::File))?;
    let mut results = Results::default();
    for case in cases {
        measure_case(case, args, &binary, &data.path, &scratch, &mut results).with_context(|| case.name)?;
    }
    let targets = match &args.baseline {
        Some(_) => targets::against_baseline(&results, all),
        None => targets::all(&results),
    };
    if args.json {
        let json = serde_json::json!({
            "rounds": args.rounds, "seconds": args.seconds, "machine": machine(), "runs": results.runs,
            "targets": targets.iter().map(|t| serde_json::json!({
                "name": t.name, "measured": t.measured, "bound": t.bound, "at_least": t.at_least, "unit": t.unit, "met": t.met(),
            })).collect::<Vec<_>>(),
        });
        println!("{}", serde_json::to_string_pretty(&json)?);
    } else {
        for peer in peers.iter().filter(|peer| **peer != "openssl") {
            println!("{}", process::version(peer));
        }
        print_table(&results);
        print_targets(&targets);
    }
    Ok(!args.check || targets.iter().all(|t| t.met() != Some(false)))
}

/// The file that all servers, and fio, use in the cases about files.
#[derive(Debug)]
struct DataFile {
    path: PathBuf,
}

impl DataFile {
    fn make(dir: &Path, wanted: bool) -> Result<Self> {
        let path = dir.join(format!("evenkeel-compare-{}.img", std::process::id()));
        if wanted {
            eprintln!("writing {} bytes to {}", FILE_BYTES, path.display());
            let mut command = Command::new("dd");
            command.args(["if=/dev/urandom", "bs=1M", "conv=fsync", "status=none"]);
            command.arg(format!("of={}", path.display())).arg(format!("count={}", FILE_BYTES >> 20));
            process::output(&mut command)?;
        }
        Ok(Self { path })
    }
}

impl Drop for DataFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A server in a case. It is started once for the case, or anew for each of its turns.
struct Contender<'a> {
    name: String,
    server: Server,
    binary: &'a Path,
    /// Path of the client that sends the load.
    client: &'a Path,
    storage: &'a Storage,
    address: Address,
    certificates: Option<&'a Path>,
    dir: PathBuf,
    running: Option<Running>,
}

impl Contender<'_> {
    fn start(&self) -> Result<Running> {
        let setup = Setup { server: &self.server, binary: self.binary, storage: self.storage, address: &self.address };
        servers::start(&setup, self.certificates, &self.dir)
    }
}

fn measure_case(
    case: &Case,
    args: &Args,
    binary: &Path,
    file: &Path,
    scratch: &Scratch,
    results: &mut Results,
) -> Result<()> {
    let mut servers = case.against.servers().to_vec();
    servers.retain(|s| args.servers.is_empty() || args.servers.contains(s));
    let mut servers: Vec<_> = servers.into_iter().map(|server| (spelled(&server), server, binary)).collect();
    if let Some(baseline) = &args.baseline {
        servers = [("evenkeel", binary), ("baseline", baseline)]
            .map(|(name, binary)| (name.to_owned(), Server::Evenkeel, binary))
            .into();
    }
    let certificates = scratch.path().join("certificates");
    if matches!(case.against, Against::Certificates | Against::Tls) && !certificates.exists() {
        servers::certificates(&certificates)?;
    }
    let storage = match case.kind {
        Kind::Memory => Storage::Memory(MEMORY_BYTES),
        Kind::File => Storage::File(file.to_owned()),
        Kind::Ssd => Storage::Emulated(MEMORY_BYTES),
    };
    let mut contenders = Vec::new();
    for (name, server, served_by) in servers {
        let dir = scratch.path().join(format!("{}-{name}", case.name));
        let address = if case.tcp { Address::Tcp(servers::free_port()?) } else { Address::Unix(dir.join("sock")) };
        let secure = server == Server::EvenkeelTls || case.against == Against::Tls;
        let certificates = secure.then_some(certificates.as_path());
        let (storage, client, running) = (&storage, binary, None);
        let mut contender =
            Contender { name, server, binary: served_by, client, storage, address, certificates, dir, running };
        // Memory must be filled first and stays up; the file can have one server at a time.
        if case.kind != Kind::File {
            contender.running = Some(contender.start()?);
            fill(&contender.address)?;
        }
        contenders.push(contender);
    }
    let memory = Memory::new();
    for round in 1..=args.rounds {
        // The order turns from round to round, so that no server always follows the same neighbour.
        contenders.rotate_left(1);
        for contender in &contenders {
            let started = if contender.running.is_none() { Some(contender.start()?) } else { None };
            let server = contender.running.as_ref().or(started.as_ref()).context("the server does not run")?;
            let run = measure(case, args.seconds, round, contender, server, &memory)
                .with_context(|| format!("{} in round {round}", contender.name))?;
            progress(&run, args.rounds);
            results.runs.push(run);
        }
        if case.kind == Kind::File && args.baseline.is_none() {
            let run = measure_fio(case, args.seconds, round, file)?;
            progress(&run, args.rounds);
            results.runs.push(run);
        }
    }
    Ok(())
}

/// Writes the whole export once, because memory that was never written is read at another speed.
fn fill(address: &Address) -> Result<()> {
    const CHUNK: usize = 1 << 20;
    let mut client = Client::connect(&address.plain(), EXPORT, CONNECT_LIMIT)?;
    let chunk: Vec<u8> = (0..CHUNK).map(|i| (i % 251) as u8).collect();
    for at in (0..client.size).step_by(CHUNK) {
        client.send(client::Command::Write, false, at, at, u32::try_from(CHUNK)?, &chunk)?;
        client.receive()?;
    }
    client.disconnect()
}

fn measure(
    case: &Case,
    seconds: u32,
    round: u32,
    contender: &Contender<'_>,
    server: &Running,
    memory: &Memory,
) -> Result<Run> {
    let before = process::cpu_ns(server.id())?;
    let begun = Instant::now();
    let watch = memory.watch();
    let job = match contender.certificates {
        Some(certificates) if case.against == Against::Tls => load::copy(&contender.address, certificates, seconds)?,
        _ => load::run(case, seconds, contender)?,
    };
    let elapsed = begun.elapsed();
    let cpu_ns = process::cpu_ns(server.id())? - before;
    let memory_ns = watch.finish();
    Ok(Run {
        case: case.name.into(),
        server: contender.name.clone(),
        round,
        iops: job.iops,
        bytes_per_s: job.bytes_per_s,
        p50_us: job.p50_us,
        p99_us: job.p99_us,
        cpu_us_per_io: cpu_ns as f64 / 1e3 / job.requests,
        server_busy: cpu_ns as f64 / elapsed.as_nanos() as f64,
        memory_ns,
    })
}

/// Runs fio directly on the file, which shows the performance of device and kernel without a server.
fn measure_fio(case: &Case, seconds: u32, round: u32, file: &Path) -> Result<Run> {
    let mut fio = process::program("fio");
    fio.args(["--name=direct", "--ioengine=io_uring", "--direct=1", "--rw=randread", "--time_based"]);
    fio.args(["--output-format=json", "--readonly", "--norandommap"]);
    fio.arg(format!("--filename={}", file.display())).arg(format!("--runtime={seconds}"));
    fio.arg(format!("--bs={}", case.block_size)).arg(format!("--iodepth={}", case.queue_depth));
    let report = process::json(&mut fio)?;
    let read = &report["jobs"][0]["read"];
    let Some(iops) = read["iops"].as_f64().filter(|&n| n > 0.0) else { bail!("fio completed no request") };
    let percentile = |p: &str| read["clat_ns"]["percentile"][p].as_f64().unwrap_or(f64::NAN) / 1e3;
    Ok(Run {
        case: case.name.into(),
        server: "fio".into(),
        round,
        iops,
        bytes_per_s: read["bw_bytes"].as_f64().unwrap_or(f64::NAN),
        p50_us: percentile("50.000000"),
        p99_us: percentile("99.000000"),
        cpu_us_per_io: f64::NAN,
        server_busy: f64::NAN,
        memory_ns: f64::NAN,
    })
}

fn progress(run: &Run, rounds: u32) {
    // Not every client tells it.
    let p50 = if run.p50_us.is_nan() { String::new() } else { format!("p50 {:.0} us, ", run.p50_us) };
    eprintln!(
        "{} round {}/{rounds} {}: {:.1} kIOPS, {p50}{:.2} us CPU per I/O, memory {:.0} ns",
        run.case,
        run.round,
        run.server,
        run.iops / 1e3,
        run.cpu_us_per_io,
        run.memory_ns
    );
}

fn print_table(results: &Results) {
    println!("{}", machine());
    println!(
        "\n{:<25} {:<15} {:>10} {:>17} {:>9} {:>9} {:>9} {:>7} {:>6} {:>9}",
        "case", "server", "kIOPS", "range", "MB/s", "p50 us", "p99 us", "CPU us", "busy", "memory ns"
    );
    // Cases in the order in which they ran, servers by name.
    let mut names: Vec<(&str, BTreeMap<&str, ()>)> = Vec::new();
    for run in &results.runs {
        if names.last().is_none_or(|(case, _)| *case != run.case) {
            names.push((&run.case, BTreeMap::new()));
        }
        if let Some((_, servers)) = names.last_mut() {
            servers.insert(&run.server, ());
        }
    }
    for (case, servers) in names {
        for server in servers.keys() {
            let spread = |figure: fn(&Run) -> f64| Spread::of(results.column(case, server, figure));
            let text = |figure: fn(&Run) -> f64, scale: f64, digits: usize| {
                spread(figure).map_or_else(|| "-".to_owned(), |s| format!("{:.digits$}", s.median / scale))
            };
            let range =
                spread(|r| r.iops).map_or_else(String::new, |s| format!("{:.1}-{:.1}", s.min / 1e3, s.max / 1e3));
            println!(
                "{case:<25} {server:<15} {:>10} {range:>17} {:>9} {:>9} {:>9} {:>7} {:>6} {:>9}",
                text(|r| r.iops, 1e3, 1),
                text(|r| r.bytes_per_s, 1e6, 0),
                text(|r| r.p50_us, 1.0, 1),
                text(|r| r.p99_us, 1.0, 1),
                text(|r| r.cpu_us_per_io, 1.0, 2),
                text(|r| r.server_busy, 1.0, 2),
                text(|r| r.memory_ns, 1.0, 0),
            );
        }
    }
}

fn print_targets(targets: &[Target]) {
    println!("\n{:<70} {:>9} {:>17} {:>11}", "target", "measured", "range", "bound");
    for target in targets {
        let verdict = match target.met() {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "not measured",
        };
        let (measured, range) = target.measured.map_or_else(
            || ("-".to_owned(), String::new()),
            |s| (format!("{:.2} {}", s.median, target.unit), format!("{:.2}-{:.2}", s.min, s.max)),
        );
        let sign = if target.at_least { ">=" } else { "<=" };
        // A bound that is itself a result may be missing.
        let bound =
            if target.bound.is_nan() { "-".to_owned() } else { format!("{sign} {:.2} {}", target.bound, target.unit) };
        println!("{:<70} {measured:>9} {range:>17} {bound:>11}  {verdict}", target.name);
    }
    let counted = |wanted| targets.iter().filter(|t| t.met() == wanted).count();
    println!("{} met, {} missed, {} not measured", counted(Some(true)), counted(Some(false)), counted(None));
}
