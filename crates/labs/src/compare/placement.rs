//! `cargo xtask compare placement`: compares the placement methods of `evenkeel serve`.
//!
//! The server has four workers, each limited to a fifth of a core, so that two cores are enough for workers and clients,
//! and an overloaded worker is slow even if others are idle. In each round every method gets a server of its own and the
//! same connections in the same random order: a quarter of them are heavy, with high queue depths (64, 32, 21, ...: zipf),
//! the others are light. A heavy client without pauses saturates its worker under every placement. Paced clients together
//! send a fixed share of all workers' throughput, each in proportion to its queue depth.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::Args;
use crate::base::process::{self, Running};
use crate::base::random::xorshift;
use crate::base::scratch::Scratch;
use crate::base::servers;
use crate::check::figures::Spread;

pub(super) const METHODS: [&str; 5] = ["round_robin", "least_connections", "genetic", "lpt", "waits"];
/// The project's own method of placement, the default.
const OURS: &str = "waits";
/// Number of workers of the server.
const WORKERS: usize = 4;
/// Period of each worker's CPU limit, in us. It is short, so that waits for the next period do not hide the differences.
const PERIOD_US: u32 = 5_000;
/// CPU time that a worker may use in each period, in us.
const QUOTA_US: u32 = 1_000;
/// CPU weight of the workers' control group: so high that workers get their quota on a busy machine, too.
const SHARES: u32 = 16_384;
/// Warm-up before a measurement; the published method decides every 5 s.
const WARMUP: Duration = Duration::from_secs(8);
/// Requests per second of a light connection.
const LIGHT_PER_S: u32 = 20;
const EXPORT: &str = "disk0";

/// Bar, met by itself or [`SOONER`]: the lowest throughput, divided by that of the method "fewest connections".
const MORE: f64 = 1.15;
/// Bar, met by itself or [`MORE`]: the highest p99 latency of light clients, divided by that of "fewest connections".
const SOONER: f64 = 0.7;
/// Bar with even loads: the lowest throughput, divided by that of "fewest connections".
const EVEN: f64 = 0.97;

/// The load of the heavy connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// All connections are heavy, each with the same queue depth.
    Even,
    /// A quarter of the connections is heavy. Each heavy one has its own queue depth and sends without pauses.
    Skewed,
    /// A quarter of the connections is heavy. Each heavy one has its own queue depth and sends at a fixed rate.
    Paced,
}

struct Case {
    name: &'static str,
    connections: usize,
    load: Load,
}

/// Rate of all paced connections together, as a fraction of the throughput under an even load.
const PACED_SHARE: f64 = 0.6;
const EVEN_CASE: Case = Case { name: "even-32", connections: 32, load: Load::Even };
const CASES: [Case; 7] = [
    Case { name: "skewed-16", connections: 16, load: Load::Skewed },
    Case { name: "skewed-32", connections: 32, load: Load::Skewed },
    Case { name: "skewed-64", connections: 64, load: Load::Skewed },
    Case { name: "paced-16", connections: 16, load: Load::Paced },
    Case { name: "paced-32", connections: 32, load: Load::Paced },
    Case { name: "paced-64", connections: 64, load: Load::Paced },
    EVEN_CASE,
];

/// One measurement of a method.
#[derive(Debug, Serialize)]
struct Run {
    case: &'static str,
    method: &'static str,
    round: u32,
    /// Requests per second of all heavy connections together.
    iops: f64,
    /// p99 latency of a light connection in us, the median over the light connections; `None` if all connections are heavy.
    light_p99_us: Option<f64>,
    /// Number of connections moved to another worker during the measurement.
    moves: u64,
    /// Reason for the placement method's last decision.
    because: String,
    /// Per worker: busy fraction of the last second, 0 to 1.
    busy: Vec<f64>,
}

/// Runs the comparison. True if it counts as a success of the `xtask` command.
pub(super) fn run(args: &Args, binary: &Path) -> Result<bool> {
    let scratch = Scratch::new("placement")?;
    let jobs = scratch.path().join("jobs.toml");
    let dir = scratch.path().join("data");
    let socket = dir.join("nbd.sock");
    let mut runs = Vec::new();
    let mut paced = None;
    for case in CASES.iter().filter(|case| case.name.contains(&args.case)) {
        if case.load == Load::Paced && paced.is_none() {
            std::fs::write(&jobs, job_file(&EVEN_CASE, 0, &socket, None))?;
            let most = measure(&EVEN_CASE, METHODS[0], 0, args.seconds, binary, &dir, &jobs)?.iops;
            eprintln!("even load: {:.1} kIOPS; paced clients ask for {PACED_SHARE} times that", most / 1e3);
            paced = Some(most * PACED_SHARE);
        }
        for round in 1..=args.rounds {
            std::fs::write(&jobs, job_file(case, round, &socket, paced))?;
            let methods: Vec<&str> = METHODS
                .into_iter()
                .filter(|&method| args.methods.is_empty() || args.methods.iter().any(|wanted| wanted == method))
                .collect();
            for place in 0..methods.len() {
                let method = methods[(place + round as usize) % methods.len()];
                let _ = std::fs::remove_dir_all(&dir);
                let run = measure(case, method, round, args.seconds, binary, &dir, &jobs)
                    .with_context(|| format!("{} with {method} in round {round}", case.name))?;
                let light = run.light_p99_us.map_or(String::new(), |us| format!(", light p99 {:.1} ms", us / 1e3));
                let (name, iops, moves) = (case.name, run.iops / 1e3, run.moves);
                let busy: Vec<String> = run.busy.iter().map(|busy| format!("{:.0}", busy * 100.0)).collect();
                eprintln!(
                    "{name} round {round}/{} {method}: {iops:.1} kIOPS{light}, {moves} moves, workers busy {} %; {}",
                    args.rounds,
                    busy.join(" "),
                    run.because
                );
                runs.push(run);
            }
        }
    }
    ensure!(!runs.is_empty(), "no case is named like `{}`: {}", args.case, CASES.map(|case| case.name).join(", "));
    report(args, &runs)
}

/// The job file of a round for `evenkeel load`, with the round's order of connections. Paced connections together send `paced`
/// requests per second.
fn job_file(case: &Case, round: u32, socket: &Path, paced: Option<f64>) -> String {
    let heavy = if case.load == Load::Even { case.connections } else { case.connections / 4 };
    let depths: f64 = (0..heavy).map(|n| zipf_depth(n) as f64).sum();
    let pace = paced.filter(|_| case.load == Load::Paced).map(|all| all / depths);
    let mut order: Vec<usize> = (0..case.connections).collect();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(u64::from(round) + 1);
    for last in (1..order.len()).rev() {
        order.swap(last, (xorshift(&mut random) % (last as u64 + 1)) as usize);
    }
    let mut text = String::new();
    for connection in order {
        let (name, rest) = match connection {
            n if case.load == Load::Even => (format!("heavy{n}"), "queue_depth = 8".to_owned()),
            n if n < heavy => {
                let depth = zipf_depth(n);
                let rate = pace.map_or(String::new(), |each| format!("\nrate = {}", (each * depth as f64) as u64));
                (format!("heavy{n}"), format!("queue_depth = {depth}{rate}"))
            }
            n => (format!("light{n}"), format!("queue_depth = 1\nrate = {LIGHT_PER_S}")),
        };
        let uri = format!("nbd+unix:///{EXPORT}?socket={}", socket.display());
        let _ = write!(text, "[[job]]\nname = {name:?}\nuri = {uri:?}\nop = \"read\"\nblock_size = \"4k\"\n{rest}\n\n");
    }
    text
}

/// Queue depth of heavy connection number `n`.
fn zipf_depth(n: usize) -> usize {
    (64 / (n + 1)).max(1)
}

fn measure(
    case: &Case,
    method: &'static str,
    round: u32,
    seconds: u32,
    binary: &Path,
    dir: &Path,
    jobs: &Path,
) -> Result<Run> {
    std::fs::create_dir_all(dir)?;
    let config = dir.join("evenkeel.toml");
    let text = format!(
        "[server]\nworkers = {WORKERS}\nplacement = {method:?}\nbusy_poll = \"0s\"\nlisten = []\nstatus = \"off\"\n\
         data_dir = {dir:?}\n[volumes.{EXPORT}]\nbackend = \"memory\"\nsize = \"64MiB\"\n"
    );
    std::fs::write(&config, text)?;
    let socket = dir.join("nbd.sock").display().to_string();
    let server = servers::start_and_reach(dir, "serve", &mut servers::serve(binary, &config), || {
        servers::reach(&socket, EXPORT)
    })?;
    let _confined = Confined::new(server)?;
    let mut load = Command::new(binary);
    load.args(["load", "--json", "--duration", &format!("{seconds}s"), "--warmup"]);
    load.arg(format!("{}s", WARMUP.as_secs())).args(["--threads", &case.connections.to_string(), "--jobs"]).arg(jobs);
    let report = process::json(&mut load)?;
    let jobs = report["jobs"].as_array().context("the load generator's report has no jobs")?;
    let named = |prefix: &str| {
        let prefix = prefix.to_owned();
        jobs.iter().filter(move |job| job["name"].as_str().is_some_and(|name| name.starts_with(&prefix)))
    };
    ensure!(jobs.iter().all(|job| job["failure"].is_null()), "a client failed: {report}");
    let mut state = Command::new(binary);
    state.args(["state", "--json", "--control"]).arg(dir.join("control.sock"));
    let state = process::json(&mut state)?;
    Ok(Run {
        case: case.name,
        method,
        round,
        iops: named("heavy").filter_map(|job| job["iops"].as_f64()).sum(),
        light_p99_us: Spread::of(named("light").filter_map(|job| job["latency_us"]["p99"].as_f64())).map(|s| s.median),
        moves: state["placement"]["moves_total"].as_u64().unwrap_or(0),
        because: state["placement"]["because"].as_str().unwrap_or_default().to_owned(),
        busy: state["workers"].as_array().into_iter().flatten().filter_map(|w| w["busy"].as_f64()).collect(),
    })
}

/// A server whose workers each run in a control group of their own. On drop the server is ended and the groups removed.
struct Confined {
    server: Option<Running>,
    groups: Vec<PathBuf>,
}

impl Confined {
    /// Limits each worker of the server to [`QUOTA_US`] of CPU time per period.
    fn new(server: Running) -> Result<Self> {
        const NEEDED: &str =
            "threads are held to a share of a core by control groups, which takes root and the cpu controller";
        let write = |path: &Path, text: &str| {
            std::fs::write(path, text).with_context(|| format!("cannot write {}: {NEEDED}", path.display()))
        };
        let (old, new) = (Path::new("/sys/fs/cgroup/cpu"), Path::new("/sys/fs/cgroup"));
        let first_version = old.join("cpu.cfs_quota_us").exists();
        let id = server.id();
        let base = if first_version { old } else { new }.join(format!("evenkeel-compare-{id}"));
        let mut confined = Self { server: Some(server), groups: vec![base.clone()] };
        std::fs::create_dir_all(&base).with_context(|| format!("cannot make {}: {NEEDED}", base.display()))?;
        if !first_version {
            // A process whose threads are in groups of their own must be in the group above them.
            let _ = std::fs::write(new.join("cgroup.subtree_control"), "+cpu");
            write(&base.join("cgroup.procs"), &id.to_string())?;
            write(&base.join("cpu.weight"), &(SHARES / 1024 * 100).to_string())?;
        } else {
            write(&base.join("cpu.shares"), &SHARES.to_string())?;
        }
        for thread in std::fs::read_dir(format!("/proc/{id}/task"))? {
            let thread = thread?.path();
            let name = std::fs::read_to_string(thread.join("comm"))?;
            let is_worker = name.trim().strip_prefix("evenkeel-").is_some_and(|n| n.parse::<u32>().is_ok());
            let thread = thread.file_name().and_then(|id| id.to_str()).unwrap_or_default().to_owned();
            if !is_worker {
                continue;
            }
            let group = base.join(&thread);
            std::fs::create_dir_all(&group)?;
            confined.groups.push(group.clone());
            if first_version {
                write(&group.join("cpu.cfs_period_us"), &PERIOD_US.to_string())?;
                write(&group.join("cpu.cfs_quota_us"), &QUOTA_US.to_string())?;
                write(&group.join("tasks"), &thread)?;
            } else {
                write(&group.join("cgroup.type"), "threaded")?;
                let _ = std::fs::write(base.join("cgroup.subtree_control"), "+cpu");
                write(&group.join("cpu.max"), &format!("{QUOTA_US} {PERIOD_US}"))?;
                write(&group.join("cgroup.threads"), &thread)?;
            }
        }
        ensure!(confined.groups.len() == WORKERS + 1, "the server has {} workers", confined.groups.len() - 1);
        Ok(confined)
    }
}

impl Drop for Confined {
    fn drop(&mut self) {
        // A group with threads cannot be removed.
        self.server.take();
        for group in self.groups.iter().rev() {
            if let Err(error) = std::fs::remove_dir(group) {
                eprintln!("cannot remove {}: {error}", group.display());
            }
        }
    }
}

/// Figures of one method divided by those of "fewest connections", for each round.
#[derive(Debug, Serialize)]
struct Verdict {
    case: &'static str,
    method: &'static str,
    iops_ratio: Option<Spread>,
    light_p99_ratio: Option<Spread>,
    met: bool,
}

fn report(args: &Args, runs: &[Run]) -> Result<bool> {
    let of = |case: &str, method: &str| -> Vec<&Run> {
        runs.iter().filter(|run| run.case == case && run.method == method).collect()
    };
    let mut verdicts = Vec::new();
    for case in CASES.iter().filter(|case| !of(case.name, OURS).is_empty()) {
        let (ours, theirs) = (of(case.name, OURS), of(case.name, "least_connections"));
        // The order turns from round to round.
        let pairs = || ours.iter().filter_map(|ours| Some((ours, theirs.iter().find(|run| run.round == ours.round)?)));
        let iops_ratio = Spread::of(pairs().map(|(ours, theirs)| ours.iops / theirs.iops));
        let light_p99_ratio =
            Spread::of(pairs().filter_map(|(ours, theirs)| Some(ours.light_p99_us? / theirs.light_p99_us?)));
        let (more, sooner) = (iops_ratio.map_or(0.0, |s| s.median), light_p99_ratio.map_or(1.0, |s| s.median));
        let even = case.load == Load::Even;
        let met = if even { more >= EVEN } else { more >= MORE || sooner <= SOONER };
        verdicts.push(Verdict { case: case.name, method: OURS, iops_ratio, light_p99_ratio, met });
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&serde_json::json!({ "runs": runs, "targets": verdicts }))?);
    } else {
        println!("{}", evenkeel_record::machine());
        println!(
            "\n{:<12} {:<18} {:>9} {:>15} {:>14} {:>7}",
            "case", "method", "kIOPS", "range", "light p99 ms", "moves"
        );
        for case in &CASES {
            for method in METHODS {
                let runs = of(case.name, method);
                let Some(iops) = Spread::of(runs.iter().map(|run| run.iops / 1e3)) else { continue };
                let light = Spread::of(runs.iter().filter_map(|run| Some(run.light_p99_us? / 1e3)));
                println!(
                    "{:<12} {method:<18} {:>9.1} {:>15} {:>14} {:>7.0}",
                    case.name,
                    iops.median,
                    format!("{:.1}-{:.1}", iops.min, iops.max),
                    light.map_or_else(|| "-".to_owned(), |light| format!("{:.1}", light.median)),
                    Spread::of(runs.iter().map(|run| run.moves as f64)).map_or(0.0, |moves| moves.median)
                );
            }
        }
        println!("\n{:<12} {:<8} {:>24} {:>24}", "case", "method", "IOPS / fewest", "light p99 / fewest");
        for verdict in &verdicts {
            let text = |spread: Option<Spread>| {
                spread.map_or_else(|| "-".to_owned(), |s| format!("{:.2} x ({:.2}-{:.2})", s.median, s.min, s.max))
            };
            let (iops, light) = (text(verdict.iops_ratio), text(verdict.light_p99_ratio));
            let met = if verdict.met { "met" } else { "MISSED" };
            println!("{:<12} {:<8} {iops:>24} {light:>24}  {met}", verdict.case, verdict.method);
        }
    }
    Ok(!args.check || verdicts.iter().all(|verdict| verdict.met))
}
