//! The lab of totals: one tenant's limit over three servers, with a real etcd.
//!
//! The lab needs no virtual machine: all processes run on this machine.

use std::path::PathBuf;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::base::process::{self, Running};
use crate::base::scratch::Scratch;
use crate::base::servers::free_port;
use crate::check::run::{Lab, Options};

/// Limit of the tenant over all servers, in IOPS.
const LIMIT: u32 = 3_000;
const SERVERS: [&str; 3] = ["a", "b", "c"];
/// Loads of a client: as fast as possible, and a little.
const BUSY: &[&str] = &["--iodepth=64"];
const LIGHT: &[&str] = &["--iodepth=16", "--rate_iops=150", "--rate_process=poisson"];
/// Length of a window in which the limit must hold.
const WINDOW: Duration = Duration::from_secs(3);
/// Distance of two readings of the counters.
const STEP: Duration = Duration::from_millis(250);
/// The most that a window may exceed the limit by.
const EXCESS: f64 = 1.05;
/// Longest time in which parts follow demand that has moved.
const MOVED_WITHIN: Duration = Duration::from_secs(3);
/// Lease, period, and two seconds, with the default settings: the longest time until others have the part of a server that died.
const DEAD_WITHIN: Duration = Duration::from_secs(6);
/// The part of the limit that the other two get for certain: a dead server's safe part, a third, stays free for a minute.
const OF_TWO: f64 = 2.0 / 3.0;
/// The part of that which they have to get on a busy machine.
const SURE: f64 = 0.85;
/// Longest wait for a process or a state: far above any wait on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the lab and reports each step.
pub(crate) fn run(lab: &mut Lab, options: &Options) -> Result<()> {
    let scratch = Scratch::kept_if(options.keep, "totals")?;
    let mut stage = Stage::new(&scratch, options)?;
    stage.load([BUSY, LIGHT, LIGHT])?;
    stage.wait_for("the busy server has most of the limit", |stage| stage.part(0) > 0.7)?;

    // The limit holds while demand moves, too.
    stage.load([LIGHT, LIGHT, BUSY])?;
    let readings = stage.readings(MOVED_WITHIN + 2 * WINDOW)?;
    let most = largest(&readings);
    lab.check("the_limit_holds_when_demand_moves", most <= EXCESS * f64::from(LIMIT), &told(&readings));
    let (value, bar) = (format!("{most:.0} IOPS"), EXCESS * f64::from(LIMIT));
    lab.figure("largest_window", &value, &format!("{bar:.0} IOPS"), most <= bar);
    let after = since(&readings, MOVED_WITHIN);
    let moved = rate(after, Some(2));
    let detail = format!("{moved:.0} IOPS on the server that is busy now, after {MOVED_WITHIN:?}");
    lab.check("parts_follow_demand", moved >= 0.5 * f64::from(LIMIT), &detail);

    // Without warning, with all of the demand there.
    stage.kill(2);
    stage.load([BUSY, BUSY, &[]])?;
    let readings = stage.readings(DEAD_WITHIN + 2 * WINDOW)?;
    let most = largest(&readings);
    lab.check("the_limit_holds_when_a_server_dies", most <= EXCESS * f64::from(LIMIT), &told(&readings));
    let got = rate(since(&readings, DEAD_WITHIN), None);
    let detail = format!("{got:.0} of {:.0} IOPS, {DEAD_WITHIN:?} after its death", OF_TWO * f64::from(LIMIT));
    lab.check("the_others_get_the_part_of_a_dead_server", got >= SURE * OF_TWO * f64::from(LIMIT), &detail);

    // It comes back, and etcd goes.
    stage.start_server(2)?;
    stage.load([LIGHT, LIGHT, BUSY])?;
    stage.wait_for("the server that came back has most of the limit", |stage| stage.part(2) > 0.6)?;
    stage.etcd = None;
    let is_lost = |stage: &Stage| (0..SERVERS.len()).all(|server| stage.contact(server) != "shared");
    stage.wait_for("the servers know that etcd is gone", is_lost)?;
    stage.load([BUSY, BUSY, BUSY])?;
    let readings = stage.readings(2 * WINDOW)?;
    let most = largest(&readings);
    lab.check("the_limit_holds_without_etcd", most <= EXCESS * f64::from(LIMIT), &told(&readings));
    Ok(())
}

/// The requests that each server has served for the tenant by a moment.
#[derive(Clone, Copy, Debug)]
struct Reading {
    at: Duration,
    served: [u64; SERVERS.len()],
}

/// The readings from `after` on, counted from the first one.
fn since(readings: &[Reading], after: Duration) -> &[Reading] {
    let Some(first) = readings.first() else { return readings };
    let skipped = readings.iter().position(|reading| reading.at >= first.at + after).unwrap_or(readings.len());
    &readings[skipped..]
}

/// Requests per second from the first to the last reading, of one server or of all.
fn rate(readings: &[Reading], server: Option<usize>) -> f64 {
    let (Some(first), Some(last)) = (readings.first(), readings.last()) else { return 0.0 };
    let served = |reading: &Reading| match server {
        Some(server) => reading.served[server],
        None => reading.served.iter().sum(),
    };
    let seconds = (last.at - first.at).as_secs_f64();
    if seconds > 0.0 { served(last).saturating_sub(served(first)) as f64 / seconds } else { 0.0 }
}

/// The highest rate of all servers together in any window; windows may be a little longer on a busy machine.
fn largest(readings: &[Reading]) -> f64 {
    let of = |from: usize| {
        let first = readings[from].at;
        let to = readings.iter().position(|reading| reading.at >= first + WINDOW)?;
        Some(rate(&readings[from..=to], None))
    };
    (0..readings.len()).filter_map(of).fold(0.0, f64::max)
}

/// The rate of each server in each second.
fn told(readings: &[Reading]) -> String {
    let of = |server: usize| {
        let seconds = readings.chunks(4).map(|second| format!("{:.0}", rate(second, Some(server))));
        format!("{}: {} IOPS", SERVERS[server], seconds.collect::<Vec<_>>().join(" "))
    };
    (0..SERVERS.len()).map(of).collect::<Vec<_>>().join("; ")
}

/// All processes of the lab. On drop, clients are ended before the servers that they use.
struct Stage {
    folder: PathBuf,
    binary: PathBuf,
    clients: [Option<Running>; SERVERS.len()],
    servers: [Option<Running>; SERVERS.len()],
    etcd: Option<Running>,
    /// Ports of etcd, for clients and for other etcd servers.
    ports: [u16; 2],
    /// The counters of each server at the last reading, and those of its earlier lives.
    counts: [[u64; 2]; SERVERS.len()],
    began: Instant,
}

impl Stage {
    fn new(scratch: &Scratch, options: &Options) -> Result<Self> {
        let (clients, servers) = ([const { None }; SERVERS.len()], [const { None }; SERVERS.len()]);
        let mut stage = Self {
            folder: scratch.path().to_owned(),
            binary: options.binary.clone(),
            clients,
            servers,
            etcd: None,
            ports: [free_port()?, free_port()?],
            counts: [[0; 2]; SERVERS.len()],
            began: Instant::now(),
        };
        stage.start_etcd()?;
        (0..SERVERS.len()).try_for_each(|server| stage.start_server(server))?;
        Ok(stage)
    }

    fn start_etcd(&mut self) -> Result<()> {
        let [client, peer] = self.ports.map(|port| format!("http://127.0.0.1:{port}"));
        let mut command = process::program("etcd");
        command.arg("--data-dir").arg(self.folder.join("etcd"));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.arg("--initial-cluster").arg(format!("default={peer}"));
        self.etcd = Some(process::daemon(&self.folder, "etcd", &mut command)?);
        let health = format!("{client}/health");
        process::until("etcd answers", [PATIENCE, Duration::from_millis(100)], || {
            let mut curl = process::program("curl");
            Ok(process::json(curl.args(["--silent", "--fail", "--max-time", "2", &health])).is_ok())
        })?;
        Ok(())
    }

    /// Starts a server and waits until it shares the tenant's total.
    fn start_server(&mut self, server: usize) -> Result<()> {
        let (name, port) = (SERVERS[server], self.ports[0]);
        let folder = self.folder.join(name);
        let config = format!(
            "[server]\nlisten = []\nstatus = \"off\"\nworkers = 1\ndata_dir = {folder:?}\n\
             [pools.main]\ntuning.admission = \"none\"\n\
             [tenants.db]\nlimit = {{ iops = {LIMIT} }}\n\
             [volumes.db]\nbackend = \"memory\"\nsize = \"16MiB\"\n\
             [cluster]\netcd = [\"http://127.0.0.1:{port}\"]\nhost = \"{name}\"\n"
        );
        let file = self.folder.join(format!("{name}.toml"));
        std::fs::write(&file, config)?;
        let mut command = process::program(&self.binary.display().to_string());
        command.arg("serve").arg("--config").arg(file);
        let mut running = process::daemon(&self.folder, name, &mut command)?;
        process::until("the server takes part", [PATIENCE, Duration::from_millis(100)], || {
            ensure!(running.ended()?.is_none(), "the server {name} has ended; see its log");
            Ok(self.contact(server) == "shared")
        })?;
        self.servers[server] = Some(running);
        Ok(())
    }

    /// Replaces the clients of all servers; no load: no client.
    fn load(&mut self, loads: [&[&str]; SERVERS.len()]) -> Result<()> {
        self.clients = [const { None }; SERVERS.len()];
        for (server, load) in loads.into_iter().enumerate().filter(|(_, load)| !load.is_empty()) {
            let name = SERVERS[server];
            let socket = self.folder.join(name).join("nbd.sock");
            let mut client = process::program("fio");
            client
                .args([&format!("--name={name}"), "--ioengine=nbd", "--rw=randread", "--bs=4k", "--size=16m"])
                .arg(format!("--uri=nbd+unix:///db?socket={}", socket.display()))
                .args(["--time_based", "--runtime=3600", "--thread"])
                .args(load)
                .arg(format!("--output={}", self.folder.join(format!("{name}.fio")).display()));
            let log = std::fs::File::create(self.folder.join(format!("{name}.fio.log")))?;
            self.clients[server] = Some(Running::spawn(client.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log))?);
        }
        Ok(())
    }

    /// Kills a server, with SIGKILL.
    fn kill(&mut self, server: usize) {
        self.clients[server] = None;
        self.servers[server] = None;
    }

    fn state(&self, server: usize) -> Result<Value> {
        let socket = self.folder.join(SERVERS[server]).join("control.sock");
        let mut command = process::program("curl");
        command.args(["--silent", "--fail", "--max-time", "10", "--unix-socket"]).arg(socket);
        process::json(command.arg("http://evenkeel/api/v1/state"))
    }

    /// How a server knows its parts; empty if it does not answer or knows no totals.
    fn contact(&self, server: usize) -> String {
        let state = self.state(server).unwrap_or_default();
        state["cluster"]["totals"]["contact"].as_str().unwrap_or_default().to_owned()
    }

    /// A server's part of the tenant's limit, 0 to 1.
    fn part(&self, server: usize) -> f64 {
        let state = self.state(server).unwrap_or_default();
        let limit = tenant(&state).and_then(|tenant| tenant["limit"]["iops"].as_f64());
        limit.unwrap_or(0.0) / f64::from(LIMIT)
    }

    fn reading(&mut self) -> Result<Reading> {
        let mut served = [0; SERVERS.len()];
        for (server, served) in served.iter_mut().enumerate() {
            let now = match self.servers[server] {
                Some(_) => {
                    let state = self.state(server)?;
                    tenant(&state).and_then(|tenant| tenant["reads_total"].as_u64()).context("reads_total")?
                }
                None => 0,
            };
            let [last, earlier] = &mut self.counts[server];
            if now < *last {
                *earlier += *last;
            }
            *last = now;
            *served = *earlier + now;
        }
        Ok(Reading { at: self.began.elapsed(), served })
    }

    fn readings(&mut self, length: Duration) -> Result<Vec<Reading>> {
        let until = Instant::now() + length;
        let mut readings = vec![self.reading()?];
        while Instant::now() < until {
            thread::sleep(STEP);
            readings.push(self.reading()?);
        }
        Ok(readings)
    }

    fn wait_for(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) -> Result<()> {
        let parts = || (0..SERVERS.len()).map(|server| self.part(server)).collect::<Vec<_>>();
        process::until(what, [PATIENCE, Duration::from_millis(100)], || Ok(holds(self)))
            .with_context(|| format!("the servers have the parts {:?}", parts()))
            .map(drop)
    }
}

/// The tenant `db` in a server's state.
fn tenant(state: &Value) -> Option<&Value> {
    let pools = state["pools"].as_array()?;
    let mut tenants = pools.iter().filter_map(|pool| pool["tenants"].as_array()).flatten();
    tenants.find(|tenant| tenant["name"] == "db")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_judged_by_the_sum_of_all_servers() {
        let reading = |(n, a, b): (u64, u64, u64)| Reading { at: Duration::from_secs(n), served: [a, b, 0] };
        let readings = [(0, 0, 0), (1, 100, 0), (2, 200, 0), (3, 300, 0), (4, 300, 900)].map(reading);
        assert_eq!((rate(&readings, Some(0)), rate(&readings, None)), (75.0, 300.0));
        // From 1 s to 4 s: 200 and 900 requests.
        assert!((largest(&readings) - 1_100.0 / 3.0).abs() < 1e-9);
        assert_eq!(rate(since(&readings, Duration::from_secs(3)), None), 900.0);
        assert_eq!(rate(since(&readings, Duration::from_secs(9)), None), 0.0);
    }
}
