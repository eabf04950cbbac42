//! The soak test: tenants of every kind on one server, with all kinds of events that happen in a year of operation.
//!
//! A life of the server begins with its start, continues with many rounds of events in random order, and ends with kill
//! -9. Each life has a ledger: a volume whose writer records the writes that were acknowledged as durable. All ledgers are
//! checked in later lives. At the end of each round all clients but the ledger's writer are killed, and the server's
//! descriptors and memory are counted, which must not grow from round to round.

mod starts;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::base::client::Client;
use crate::base::process::{self, Running, daemon};
use crate::base::random::xorshift;
use crate::base::record::Page;
use crate::base::scratch::Scratch;
use crate::base::servers;
use crate::check::run::Lab;
use crate::check::{journal, writer};

/// Length of each life in `cargo xtask test`, which runs [`FEWEST_LIVES`] lives.
const SHORT_LIFE: Duration = Duration::from_secs(20);
/// Factor by which pauses between events are shorter in `cargo xtask test`.
const SHORT_PAUSES: u64 = 6;
/// Longest life of a server.
const LIFE: Duration = Duration::from_secs(600);
/// The smallest number of lives of a run.
const FEWEST_LIVES: u64 = 2;
/// Number of rounds in which a server warms up: its buffers grow to the size that the load needs, and volumes in memory fill.
const WARM_UP: usize = 5;
/// The smallest number of rounds in a life, even if the life takes longer on a busy machine: the warm-up, two rounds at the
/// beginning, two at the end, and two in between.
const FEWEST_ROUNDS: usize = WARM_UP + 6;
/// Largest growth of memory after the warm-up, as a fraction. Memory scatters as much with any allocator; a leak adds more in
/// an hour.
const GROWTH: f64 = 0.1;
/// Growth of memory after the warm-up, in bytes, that is allowed in addition to [`GROWTH`].
const GROWTH_BYTES: f64 = 4.0 * 1024.0 * 1024.0;
const PATIENCE: Duration = Duration::from_secs(120);
const TOOL_LIMIT_S: &str = "120";
const STOP_LIMIT: Duration = Duration::from_secs(40);
/// Time between two events, in milliseconds.
const PAUSE_MS: std::ops::Range<u64> = 200..700;
/// Time for which a server or a client is stopped (SIGSTOP) by an event, in milliseconds.
const STILL_MS: std::ops::Range<u64> = 200..1_200;
/// Number of the server's workers when its resources are counted.
const WORKERS: u64 = 2;
/// The largest number of the server's workers. Each life begins with so many, because the mailbox of an ended worker is kept for
/// its successor and counts as a resource.
const MOST_WORKERS: u64 = 3;
/// Time for which the number of descriptors must be constant before it counts: a worker opens some of its own when it runs.
const SETTLED: Duration = Duration::from_millis(200);
/// Environment variables that make the allocator return free memory at once, so that only used memory is counted. Without them,
/// as in lives of full length, memory varies by 10 MiB from round to round; few rounds do not tell this from a leak.
const ALLOCATOR: [(&str, &str); 3] =
    [("MALLOC_ARENA_MAX", "1"), ("MALLOC_TRIM_THRESHOLD_", "131072"), ("MALLOC_MMAP_THRESHOLD_", "65536")];
/// Number of simultaneous connections that send no bytes, or garbage.
const STRANGERS: u64 = 16;

/// Clients besides the ledger's writer: volume, and options of `evenkeel load`. All of them check their reads.
const CLIENTS: [(&str, &[&str]); 5] = [
    ("database", &["--op", "mix", "--queue-depth", "4", "--connections", "2", "--rate", "300"]),
    ("shop", &["--op", "mix", "--block-size", "4k:80,64k:20", "--queue-depth", "8"]),
    ("backup", &["--op", "write", "--block-size", "256k", "--pattern", "sequential", "--queue-depth", "8"]),
    ("files", &["--op", "mix", "--block-size", "4k:50,16k:50", "--queue-depth", "4", "--connections", "4"]),
    ("thin", &["--op", "mix", "--trim-percent", "20", "--zero-percent", "10", "--queue-depth", "4"]),
];
/// Values of the admission setting, used in turn.
const ADMISSIONS: [&str; 3] = ["\"elastic\"", "\"slowfast\"", "{ kind = \"fixed\", budget = \"1MiB\" }"];
/// Size of the part of its volume that a client uses: so small that the client can fill it at each start.
const PART: &str = "4MiB";

/// The events, each with its name. Each happens once in a round.
const HAPPENINGS: [(&str, Happening); 7] = [
    ("reloads", Soak::reload),
    ("other numbers of workers", Soak::workers),
    ("clients killed", Soak::kill_a_client),
    ("clients that stood still", Soak::stop_a_client),
    ("stalls of the server", Soak::stall),
    ("volumes that came and went", Soak::volume),
    ("crowds of strangers", Soak::strangers),
];
type Happening = fn(&mut Soak, &Running) -> Result<()>;

/// Arguments of `cargo xtask soak`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Duration in minutes.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    minutes: u64,
    /// Two short lives with short pauses, as in `cargo xtask test`.
    #[arg(long, conflicts_with = "minutes")]
    short: bool,
    /// Seed of the events; chosen and printed when not given.
    #[arg(long)]
    seed: Option<u64>,
    /// Evenkeel's binary, also from the environment variable EVENKEEL_BIN; built when not given.
    #[arg(long)]
    pub(super) binary: Option<PathBuf>,
    /// Keep logs, configuration and volumes.
    #[arg(long)]
    keep: bool,
    /// Write figures and steps, with command, seed, date, commit and machine, to docs/results/soak.md.
    #[arg(long, requires = "seed")]
    record: bool,
}

impl Args {
    /// The page of results that this run writes; `None` without `--record`.
    pub fn page(&self) -> Option<Page> {
        let what = "One server under clients of all kinds, while clients, connections, workers, volumes, configuration and the \
                    server itself fail or change.";
        let page = Page { name: "soak".into(), title: "Soak".into(), what: what.into(), seed: self.seed };
        self.record.then_some(page)
    }
}

/// Runs the soak and reports its checks.
pub(super) fn run(lab: &mut Lab, args: &Args, binary: &Path) -> Result<()> {
    let scratch = Scratch::kept_if(args.keep, "soak")?;
    let seed = args.seed.unwrap_or_else(|| u64::from(std::process::id()));
    let whole = Duration::from_secs(args.minutes * 60);
    let (lives, life) = if args.short {
        (FEWEST_LIVES, SHORT_LIFE)
    } else {
        let lives = whole.as_secs().div_ceil(LIFE.as_secs()).max(FEWEST_LIVES);
        (lives, whole / u32::try_from(lives)?)
    };
    println!("lab: {lives} lives of {} s, --seed {seed}", life.as_secs());
    let mut soak = Soak::new(binary, scratch.path(), seed, lives);
    if args.short {
        soak.haste = SHORT_PAUSES;
    }
    if life < LIFE {
        soak.allocator = &ALLOCATOR;
    }
    let mut lost = Vec::new();
    for number in 0..lives {
        let server = soak.serve()?;
        lost.extend(soak.check_ledgers()?);
        soak.live(server, number, life)?;
    }
    let server = soak.serve()?;
    lost.extend(soak.check_ledgers()?);
    let stopped = soak.stop_under_load(server);
    let kept: Vec<String> = soak.ledgers.iter().map(|owed| owed.len().to_string()).collect();
    let written = soak.ledgers.iter().all(|owed| owed.len() > 100);
    let detail = format!("sectors acknowledged as durable in each life: {}", kept.join(", "));
    let first = lost.first().map_or_else(String::new, |first| format!("; {} are wrong: {first}", lost.len()));
    lab.check("no_write_is_lost", written && lost.is_empty(), &format!("{detail}{first}"));
    let happened: Vec<String> = soak.happened.iter().map(|(what, count)| format!("{count} {what}")).collect();
    lab.check("everything_happened", soak.happened.len() == HAPPENINGS.len(), &happened.join(", "));
    let moves: Vec<u64> = soak.held.iter().map(|life| life.last().map_or(0, |held| held.moves)).collect();
    let detail = format!("moves between workers in each life: {moves:?}");
    lab.check("connections_move", !moves.is_empty() && !moves.contains(&0), &detail);
    report_held(lab, &soak.held);
    match stopped {
        Ok(took) => lab.passed("a_stop_under_load_is_graceful", &format!("after {:.1} s", took.as_secs_f64())),
        Err(error) => lab.failed("a_stop_under_load_is_graceful", &format!("{error:#}")),
    }
    starts::check(lab, binary, scratch.path(), !args.short)
}

/// A server's resources at the end of a round, when the ledger's writer is its only client.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Held {
    descriptors: usize,
    memory_bytes: f64,
    /// Number of moves of connections between workers since the server's start.
    moves: u64,
}

fn report_held(lab: &mut Lab, lives: &[Vec<Held>]) {
    let (mut leaked, mut grew, mut told) = (false, false, String::new());
    for rounds in lives {
        let Some((descriptors, memory)) = compare(rounds) else {
            return lab.failed("enough_rounds", &format!("only {} in a life; it takes more minutes", rounds.len()));
        };
        leaked |= descriptors.1 > descriptors.0;
        grew |= memory.1 > memory.0 * (1.0 + GROWTH) + GROWTH_BYTES;
        let mib = 1024.0 * 1024.0;
        let _ = write!(
            told,
            "{}{} rounds: {} to {} descriptors, {:.1} to {:.1} MiB",
            if told.is_empty() { "" } else { "; " },
            rounds.len(),
            descriptors.0,
            descriptors.1,
            memory.0 / mib,
            memory.1 / mib
        );
    }
    lab.check("no_descriptor_is_leaked", !leaked, &told);
    lab.check("memory_is_flat", !grew, &told);
}

/// Descriptors, and memory in bytes, at the beginning and at the end of a life: the highest value in the first third of the
/// rounds after the warm-up, and the lowest value in the last third. `None` with too few rounds.
fn compare(rounds: &[Held]) -> Option<((usize, usize), (f64, f64))> {
    let warm = rounds.get(WARM_UP..)?;
    let third = (warm.len() / 3).max(1);
    let (first, last) = (warm.get(..third)?, warm.get(warm.len().checked_sub(third)?..)?);
    if warm.len() < 2 {
        return None;
    }
    let descriptors =
        (first.iter().map(|held| held.descriptors).max()?, last.iter().map(|held| held.descriptors).min()?);
    let memory = |rounds: &[Held]| rounds.iter().map(|held| held.memory_bytes).collect::<Vec<_>>();
    let most = memory(first).into_iter().fold(0.0, f64::max);
    let least = memory(last).into_iter().fold(f64::INFINITY, f64::min);
    Some((descriptors, (most, least)))
}

struct Soak {
    binary: PathBuf,
    folder: PathBuf,
    random: u64,
    lives: u64,
    /// Factor by which pauses between events are shorter.
    haste: u64,
    /// Environment variables with the settings of the server's allocator.
    allocator: &'static [(&'static str, &'static str)],
    workers: u64,
    /// Number of volumes created so far.
    created: u64,
    clients: Vec<(usize, Running)>,
    /// The ledger of each life: per sector, the lowest generation that it may hold.
    ledgers: Vec<BTreeMap<u64, u64>>,
    held: Vec<Vec<Held>>,
    happened: BTreeMap<&'static str, u64>,
}

impl Soak {
    fn new(binary: &Path, folder: &Path, seed: u64, lives: u64) -> Self {
        Self {
            binary: binary.to_owned(),
            folder: folder.to_owned(),
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            lives,
            haste: 1,
            allocator: &[],
            workers: MOST_WORKERS,
            created: 0,
            clients: Vec::new(),
            ledgers: Vec::new(),
            held: Vec::new(),
            happened: BTreeMap::new(),
        }
    }

    fn random(&mut self, range: std::ops::Range<u64>) -> u64 {
        range.start + (xorshift(&mut self.random) >> 16) % (range.end - range.start)
    }

    fn pause(&mut self, milliseconds: std::ops::Range<u64>) {
        let pause = self.random(milliseconds) / self.haste;
        thread::sleep(Duration::from_millis(pause));
    }

    fn socket(&self) -> String {
        self.folder.join("nbd.sock").display().to_string()
    }

    /// Writes a configuration, whose numbers differ from call to call. Returns the configuration's path.
    fn configure(&mut self) -> Result<PathBuf> {
        let data = self.folder.join("data").display().to_string();
        let [bandwidth, stall, admission, target, reservation, weight, guarantee, limit] =
            [40..240, 0..3, 0..ADMISSIONS.len() as u64, 5..45, 100..400, 1..21, 2..12, 20..80]
                .map(|range| self.random(range));
        let mut text = format!(
            "[server]\nlisten = []\nstatus = \"off\"\ndata_dir = {data:?}\nunix = [{socket:?}]\nworkers = {workers}\n\
             [pools.slow]\ntuning.admission = {admission}\nlatency.target = \"{target}ms\"\n\
             [pools.slow.emulate]\npreset = \"ssd\"\nbandwidth = \"{bandwidth}MB\"\nstall_every = \"3s\"\nstall_for = \"{stall}ms\"\n\
             [tenants.database]\nreservation = {{ iops = {reservation} }}\n\
             [tenants.shop]\nweight = {weight}\nguarantee = {{ bytes_per_s = \"{guarantee}MB\" }}\n\
             [tenants.backup]\nlimit = {{ bytes_per_s = \"{limit}MB\" }}\n",
            socket = self.socket(),
            workers = self.workers,
            admission = ADMISSIONS[admission as usize],
            stall = stall * 50,
        );
        for (name, backend, size) in [
            ("database", "emulate", "64MiB"),
            ("shop", "emulate", "64MiB"),
            ("backup", "emulate", "64MiB"),
            ("files", "file", "64MiB"),
            ("thin", "file", "64MiB"),
        ] {
            let pool = if backend == "emulate" { "slow" } else { "main" };
            let _ = write!(text, "[volumes.{name}]\nbackend = \"{backend}\"\nsize = \"{size}\"\npool = \"{pool}\"\n");
        }
        for life in 0..self.lives {
            let _ = write!(text, "[volumes.{}]\nbackend = \"file\"\nsize = \"32MiB\"\n", ledger(life));
        }
        let path = self.folder.join("evenkeel.toml");
        std::fs::write(&path, text)?;
        Ok(path)
    }

    fn serve(&mut self) -> Result<Running> {
        self.workers = MOST_WORKERS;
        let config = self.configure()?;
        let mut command = servers::serve(&self.binary, config);
        command.envs(self.allocator.iter().copied());
        servers::start_and_reach(&self.folder, "serve", &mut command, || servers::reach(&self.socket(), &ledger(0)))
    }

    /// Runs a command of the program `evenkeel` that controls the server. Returns its output.
    fn control(&self, arguments: &[&str]) -> Result<String> {
        let mut command = process::program("timeout");
        command.args(["-k", "5", TOOL_LIMIT_S]).arg(&self.binary).args(arguments);
        process::output(command.arg("--control").arg(self.folder.join("data/control.sock")))
    }

    fn state(&self) -> Result<Value> {
        serde_json::from_str(&self.control(&["state", "--json"])?).context("evenkeel state")
    }

    /// Reads and checks all ledgers. Returns a text for each fault.
    fn check_ledgers(&self) -> Result<Vec<String>> {
        let mut wrong = Vec::new();
        for (life, owed) in (0..).zip(&self.ledgers) {
            let mut client = Client::connect(&self.socket(), &ledger(life), PATIENCE)?;
            wrong.extend(
                writer::compare(&mut client, owed)?.into_iter().map(|what| format!("{}: {what}", ledger(life))),
            );
        }
        Ok(wrong)
    }

    /// Runs one life of the server, with the ledger's writer.
    fn live(&mut self, server: Running, life: u64, length: Duration) -> Result<()> {
        let (until, socket, seed) = (Instant::now() + length, self.socket(), self.random(0..1 << 32));
        let (mut outcome, mut held) = (Ok(()), Vec::new());
        let killer = || {
            while outcome.is_ok() && (Instant::now() < until || held.len() < FEWEST_ROUNDS) {
                outcome = self.round(&server, life).map(|what| held.push(what));
            }
            if outcome.is_ok() {
                outcome = self.start_clients();
            }
            server.kill();
        };
        let durable = writer::until_killed(&socket, &ledger(life), seed, killer);
        self.clients.clear();
        outcome?;
        self.held.push(held);
        self.ledgers.push(journal::owed(&durable?));
        Ok(())
    }

    /// Makes every event happen once, in random order. Returns the server's resources after them.
    fn round(&mut self, server: &Running, life: u64) -> Result<Held> {
        self.start_clients()?;
        let mut order: Vec<usize> = (0..HAPPENINGS.len()).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, self.random(0..last as u64 + 1) as usize);
        }
        for index in order {
            self.pause(PAUSE_MS);
            let (what, happening) = HAPPENINGS[index];
            happening(self, server).with_context(|| format!("{what}, life {life}"))?;
            *self.happened.entry(what).or_default() += 1;
        }
        self.stop_clients()?;
        // Each worker has descriptors and memory of its own.
        self.workers = WORKERS;
        self.reload(server)?;
        let state = self.wait_until_alone()?;
        let moves = state["placement"]["moves_total"].as_u64().unwrap_or(0);
        let held = Held { descriptors: descriptors(server)?, memory_bytes: memory_bytes(server)?, moves };
        println!(
            "lab: life {life}: {} descriptors, {:.1} MiB, {} moves",
            held.descriptors,
            held.memory_bytes / f64::from(1 << 20),
            held.moves
        );
        Ok(held)
    }

    fn start_clients(&mut self) -> Result<()> {
        for index in 0..CLIENTS.len() {
            if self.clients.iter().all(|(running, _)| *running != index) {
                let client = self.start_client(index)?;
                self.clients.push((index, client));
            }
        }
        Ok(())
    }

    fn start_client(&mut self, index: usize) -> Result<Running> {
        let (volume, what) = CLIENTS[index];
        let mut command = Command::new(&self.binary);
        command.args(["load", &format!("nbd+unix:///{volume}?socket={}", self.socket())]).args(what);
        command.args(["--size", PART, "--fill", "--verify", "--duration", "1h", "--seed"]);
        command.arg(self.random(0..1 << 32).to_string());
        daemon(&self.folder, volume, &mut command)
    }

    /// Checks that no client has ended with an error.
    fn clients_are_well(&mut self) -> Result<()> {
        for (index, client) in &mut self.clients {
            if let Some(status) = client.ended()? {
                let log = self.folder.join(format!("{}.log", CLIENTS[*index].0));
                bail!("{} gave up ({status}): {}", CLIENTS[*index].0, std::fs::read_to_string(log)?);
            }
        }
        Ok(())
    }

    fn stop_clients(&mut self) -> Result<()> {
        self.clients_are_well()?;
        self.clients.clear();
        Ok(())
    }

    /// Waits until the ledger's writer is the server's only client. Returns the server's state.
    fn wait_until_alone(&self) -> Result<Value> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let state = self.state()?;
            let (connections, leaving) = (state["connections"].as_u64().unwrap_or(u64::MAX), leaving_workers(&state));
            if connections == writer::CONNECTIONS && leaving == 0 {
                return Ok(state);
            }
            ensure!(
                Instant::now() < deadline,
                "{connections} connections and {leaving} workers that leave are still there"
            );
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn reload(&mut self, _: &Running) -> Result<()> {
        self.configure()?;
        self.control(&["reload"]).map(drop)
    }

    fn workers(&mut self, server: &Running) -> Result<()> {
        self.workers = 1 + (self.workers + self.random(0..2)) % MOST_WORKERS;
        self.reload(server)
    }

    fn kill_a_client(&mut self, _: &Running) -> Result<()> {
        self.clients_are_well()?;
        let place = self.random(0..self.clients.len() as u64) as usize;
        let (index, client) = self.clients.swap_remove(place);
        client.kill();
        let client = self.start_client(index)?;
        self.clients.push((index, client));
        Ok(())
    }

    fn stop_a_client(&mut self, _: &Running) -> Result<()> {
        let place = self.random(0..self.clients.len() as u64) as usize;
        self.clients[place].1.signal(libc::SIGSTOP);
        self.pause(STILL_MS);
        self.clients[place].1.signal(libc::SIGCONT);
        Ok(())
    }

    fn stall(&mut self, server: &Running) -> Result<()> {
        server.signal(libc::SIGSTOP);
        self.pause(STILL_MS);
        server.signal(libc::SIGCONT);
        Ok(())
    }

    fn volume(&mut self, _: &Running) -> Result<()> {
        self.created += 1;
        let name = format!("new-{}", self.created);
        self.control(&["volume", "create", &name, "--size", "16MiB"])?;
        Client::connect(&self.socket(), &name, PATIENCE)?.read(0, &mut [1; 4096])?;
        self.control(&["volume", "remove", &name])?;
        match std::fs::remove_file(self.folder.join(format!("data/{name}.img"))) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Opens connections that send no bytes or garbage, and closes them without a disconnect request.
    fn strangers(&mut self, _: &Running) -> Result<()> {
        let mut there = Vec::new();
        for _ in 0..STRANGERS {
            let mut stranger = UnixStream::connect(self.socket())?;
            let nonsense: Vec<u8> = (0..self.random(0..64)).map(|_| self.random(0..256) as u8).collect();
            // It may have hung up already.
            let _ = stranger.write_all(&nonsense);
            there.push(stranger);
        }
        self.pause(PAUSE_MS);
        Ok(())
    }

    /// Stops the server while all clients are active. Returns the time until it has ended.
    fn stop_under_load(&mut self, server: Running) -> Result<Duration> {
        self.start_clients()?;
        thread::sleep(Duration::from_secs(2));
        self.clients_are_well()?;
        let begun = Instant::now();
        let status = server.stop(libc::SIGTERM, STOP_LIMIT)?;
        self.clients.clear();
        if !status.success() {
            let log = std::fs::read_to_string(self.folder.join("serve.log"))?;
            let last = log.lines().skip(log.lines().count().saturating_sub(20));
            bail!("it ended with {status}; the end of its log:\n{}", last.collect::<Vec<_>>().join("\n"));
        }
        Ok(begun.elapsed())
    }
}

fn ledger(life: u64) -> String {
    format!("ledger-{life}")
}

fn leaving_workers(state: &Value) -> usize {
    let workers = state["workers"].as_array().map_or(&[][..], Vec::as_slice);
    workers.iter().filter(|worker| worker["leaving"] == true).count()
}

/// Number of the server's open descriptors, read once it is constant for [`SETTLED`].
fn descriptors(server: &Running) -> Result<usize> {
    let count = || Ok::<_, std::io::Error>(std::fs::read_dir(format!("/proc/{}/fd", server.id()))?.count());
    let (deadline, mut since, mut held) = (Instant::now() + PATIENCE, Instant::now(), count()?);
    while since.elapsed() < SETTLED {
        ensure!(Instant::now() < deadline, "the number of its descriptors does not settle; {held} at last");
        thread::sleep(SETTLED / 10);
        let now = count()?;
        if now != held {
            (since, held) = (Instant::now(), now);
        }
    }
    Ok(held)
}

/// Anonymous memory of the server, in bytes.
fn memory_bytes(server: &Running) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.id()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib: f64 = line.and_then(|line| line.trim().strip_suffix("kB")).context("no RssAnon")?.trim().parse()?;
    Ok(kib * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_at_the_end_is_compared_with_what_was_held_when_warm() {
        let held = |descriptors, memory_bytes| Held { descriptors, memory_bytes, moves: 0 };
        let mut rounds = vec![held(9, 1.0); WARM_UP];
        rounds.extend([held(20, 5.0), held(22, 6.0), held(21, 7.0), held(25, 8.0)]);
        // Of those after warming up, a third is one round.
        assert_eq!(compare(&rounds), Some(((20, 25), (5.0, 8.0))));
        assert_eq!(compare(&rounds[..WARM_UP + 1]), None);
        assert_eq!(compare(&rounds[..1]), None);
    }
}
