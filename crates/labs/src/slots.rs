//! The lab of slots: latency targets across hosts, with an emulated array, three hosts in network namespaces, and a real etcd.
//!
//! The lab needs no virtual machine: all processes run on this machine, with each host behind a link of its own.

use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::base::process::{self, Running};
use crate::base::scratch::Scratch;
use crate::base::servers;
use crate::base::space::Space;
use crate::check::figures::Spread;
use crate::check::run::{Lab, Options};

/// IOPS of the emulated array.
const ARRAY_IOPS: u32 = 1_000;
/// Latency target of the hosts that have one, far above the array's service time.
const TARGET: Duration = Duration::from_millis(250);
/// The hosts. The first one has a queue depth and no rate, so that it needs 600 requests per second for its target at any time;
/// with a fixed rate, fio would later make up for requests that it could not send. The second host's requests come in batches:
/// before it sleeps, fio waits for all outstanding requests, and after that sends all requests that have become due.
const HOSTS: [Host; 3] = [
    Host { name: "db", load: &["--iodepth=150"], target: true },
    Host { name: "web", load: &["--iodepth=64", "--rate_iops=100", "--rate_process=poisson"], target: true },
    Host { name: "batch", load: &["--iodepth=200"], target: false },
];
/// Index of the host that the events of the lab strike.
const STRUCK: usize = 2;
/// Total number of slots when it is fixed and shared equally by the three hosts: enough for the array, but too few for a host
/// that needs more than a third.
const SLOTS_MOST: u32 = 300;
const WINDOW: Duration = Duration::from_secs(1);
/// Number of windows of 1 s within which targets must be met again after an event: 5, and one in which they are met.
const SETTLING: usize = 6;
/// Number of windows after the [`SETTLING`] ones, over which each host's median latency must meet the target.
const SETTLED: usize = 5;
/// Latency that no host with a target exceeds when slots are shared by need, even on a busy machine. With fixed shares the
/// first host has a latency of 330 ms, without control 390 ms.
const SURE: Duration = Duration::from_millis(300);
/// Number of successive windows that must meet all targets until the targets count as met again.
const IN_A_ROW: usize = 3;
/// Number of windows measured without control, and again with fixed shares. Half of them must miss the target. (A busy machine
/// only makes latencies longer.)
const UNCONTROLLED: usize = 4;
/// Number of windows with sharing by need in each cycle of a run with `--full`.
const BY_NEED: usize = 10;
/// The most of the [`BY_NEED`] windows of a cycle that may miss a target.
const MAY_MISS: usize = 1;
/// Number of cycles of events with `--full`; bars apply to medians over the cycles.
const CYCLES: usize = 5;
/// Longest wait for a process or a state: far above any wait on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

struct Host {
    name: &'static str,
    load: &'static [&'static str],
    target: bool,
}

/// Runs the lab and reports each step.
pub(crate) fn run(lab: &mut Lab, options: &Options) -> Result<()> {
    let scratch = Scratch::kept_if(options.keep, "slots")?;
    let mut stage = Stage::new(&scratch, options)?;
    for (check, method) in [("targets_are_missed_without_control", "none"), ("and_with_fixed_shares", "rwd")] {
        stage.set_method(method)?;
        thread::sleep(2 * WINDOW);
        let windows = stage.windows(UNCONTROLLED)?;
        lab.check(check, missed(&windows, 0) >= UNCONTROLLED / 2, &told(&windows));
    }
    stage.set_method("needs")?;
    let windows = stage.windows(SETTLING + SETTLED)?;
    lab.check("and_met_by_need", settled(&windows) <= SURE, &told(&windows));
    let cycles = if options.full { CYCLES } else { 1 };
    let (mut missing, mut courses) = (Vec::new(), EVENTS.map(|_| Vec::new()));
    for _ in 0..cycles {
        if options.full {
            let windows = stage.windows(BY_NEED)?;
            println!("lab: {}", told(&windows));
            missing.push(missed(&windows, 0).max(missed(&windows, 1)) as f64);
        }
        for ((name, event), courses) in EVENTS.iter().zip(&mut courses) {
            event(&mut stage).with_context(|| format!("{name}: the event"))?;
            courses.push(stage.windows(SETTLING + SETTLED)?);
        }
    }
    for ((name, _), courses) in EVENTS.iter().zip(courses) {
        let all: Vec<String> = courses.iter().map(told).collect();
        lab.check(name, courses.iter().all(|course| settled(course) <= SURE), &all.join("; "));
        let latency = median(courses.iter().map(|course| settled(course).as_secs_f64()));
        let (value, bar) = (format!("{:.0} ms", 1e3 * latency), format!("{} ms", TARGET.as_millis()));
        lab.judge(options, &format!("{name}_with_targets_met"), &value, &bar, latency <= TARGET.as_secs_f64());
        let windows = median(courses.iter().map(|course| regained(course) as f64));
        let (value, bar) = (format!("after {windows} windows"), format!("{SETTLING} windows"));
        lab.judge(options, &format!("{name}_soon"), &value, &bar, windows <= SETTLING as f64);
    }
    if let Some(spread) = Spread::of(missing) {
        let bar = format!("{MAY_MISS} of {BY_NEED}");
        let value = format!("missed in {} of {BY_NEED}", spread.median);
        lab.judge(options, "met_by_need_all_along", &value, &bar, spread.median <= MAY_MISS as f64);
    }

    let mut failed = Vec::new();
    for (client, host) in stage.clients.iter_mut().zip(&HOSTS) {
        if client.as_mut().map(Running::ended).transpose()?.flatten().is_some() {
            failed.push(host.name);
        }
    }
    lab.check("no_client_saw_an_error", failed.is_empty(), &format!("clients that ended: {failed:?}"));
    Ok(())
}

/// Per window: the mean latency of each host with a target.
type Windows = Vec<Vec<Duration>>;

fn missed(windows: &Windows, host: usize) -> usize {
    windows.iter().filter(|means| means[host] > TARGET).count()
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    Spread::of(values).map_or(f64::NAN, |spread| spread.median)
}

/// The largest latency of all hosts with a target after settling; a host's latency is the median over its windows.
fn settled(windows: &Windows) -> Duration {
    let host = |host: usize| median(windows[SETTLING..].iter().map(|means| means[host].as_secs_f64()));
    Duration::from_secs_f64((0..windows[0].len()).map(host).fold(0.0, f64::max))
}

/// Number of windows before the first [`IN_A_ROW`] successive ones that meet all targets; the number of all windows if there are
/// no such ones.
fn regained(windows: &Windows) -> usize {
    let met = |row: &[Vec<Duration>]| row.iter().flatten().all(|mean| *mean <= TARGET);
    windows.windows(IN_A_ROW).position(met).unwrap_or(windows.len())
}

fn told(windows: &Windows) -> String {
    let of = |host: usize| {
        let means: Vec<String> = windows.iter().map(|means| means[host].as_millis().to_string()).collect();
        format!("{}: {} ms", HOSTS[host].name, means.join(" "))
    };
    (0..HOSTS.len()).filter(|&host| HOSTS[host].target).map(of).collect::<Vec<_>>().join("; ")
}

/// Events in their order, each with the name of its check. Each begins in the state in which its predecessor ends; the first one
/// begins in the state in which the last one ends.
const EVENTS: [(&str, Event); 5] = [
    ("etcd_may_die_and_come_back", Stage::etcd_dies_and_comes_back),
    ("a_host_may_die", Stage::host_dies),
    ("and_come_back", Stage::host_comes_back),
    ("a_host_may_be_cut_off_from_the_others", Stage::host_is_cut_off),
    ("and_find_them_again", Stage::host_is_found_again),
];
type Event = fn(&mut Stage) -> Result<()>;

/// All processes and namespaces of the lab. On drop, clients are ended before the servers that they use.
struct Stage {
    folder: PathBuf,
    binary: PathBuf,
    clients: Vec<Option<Running>>,
    hosts: Vec<Option<Running>>,
    etcd: Option<Running>,
    _array: Running,
    spaces: Spaces,
}

/// The network namespaces: of the array, and of each host.
struct Spaces {
    array: Space,
    hosts: Vec<Space>,
}

impl Spaces {
    fn make() -> Result<Self> {
        let array = Space::make()?;
        array.ip("link set lo up")?;
        let mut hosts = Vec::new();
        for (host, Host { name, .. }) in HOSTS.iter().enumerate() {
            let space = Space::make()?;
            space.ip(&format!("link add array type veth peer name to-{name} netns {}", array.id()))?;
            for (space, link, end) in [(&array, format!("to-{name}"), 1), (&space, "array".to_owned(), 2)] {
                space.ip(&format!("address add 10.99.{host}.{end}/24 dev {link}"))?;
                space.ip(&format!("link set {link} up"))?;
            }
            hosts.push(space);
        }
        Ok(Self { array, hosts })
    }

    /// A command for `program` that runs in the namespace of a host, or with `None` in that of the array.
    fn command(&self, host: Option<usize>, program: &str) -> Command {
        host.map_or(&self.array, |host| &self.hosts[host]).command(program)
    }
}

impl Stage {
    fn new(scratch: &Scratch, options: &Options) -> Result<Self> {
        let (folder, spaces) = (scratch.path().to_owned(), Spaces::make()?);
        let volumes: String = HOSTS
            .iter()
            .map(|host| format!("[volumes.{}]\nbackend = \"emulate\"\nsize = \"64MiB\"\n", host.name))
            .collect();
        let config = format!(
            "[server]\nlisten = [\"0.0.0.0:10809\"]\nstatus = \"off\"\ndata_dir = {:?}\n\
             [pools.main]\ntuning.scheduler = \"none\"\ntuning.admission = \"none\"\n[pools.main.emulate]\niops = {ARRAY_IOPS}\n\
             read_latency = \"1ms\"\n{volumes}",
            folder.join("array")
        );
        std::fs::write(folder.join("array.toml"), config)?;
        let array = serve(&folder, &options.binary, &spaces, None, "array")?;
        let none = || HOSTS.iter().map(|_| None).collect();
        let mut stage = Self {
            folder,
            binary: options.binary.clone(),
            clients: none(),
            hosts: none(),
            etcd: None,
            _array: array,
            spaces,
        };
        stage.start_etcd()?;
        (0..HOSTS.len()).try_for_each(|host| stage.start_host(host))?;
        stage.all_stand("shared")?;
        Ok(stage)
    }

    fn start_etcd(&mut self) -> Result<()> {
        let urls = ["http://0.0.0.0:2379", "http://127.0.0.1:2379", "http://127.0.0.1:2380"];
        self.etcd = Some(servers::etcd(&self.folder, self.spaces.command(None, "etcd"), urls)?);
        Ok(())
    }

    fn start_host(&mut self, host: usize) -> Result<()> {
        let Host { name, load, target } = &HOSTS[host];
        let target = if *target { format!("latency.target = \"{}ms\"\n", TARGET.as_millis()) } else { String::new() };
        let config = format!(
            "[server]\nlisten = []\nstatus = \"off\"\nworkers = 1\ndata_dir = {:?}\n\
             [pools.array]\ntuning.admission = \"none\"\ntuning.slots = \"needs\"\ntuning.slots_most = {SLOTS_MOST}\n\
             [tenants.{name}]\n{target}[volumes.{name}]\npool = \"array\"\nbackend = \"nbd\"\n\
             uri = \"nbd://10.99.{host}.1:10809/{name}\"\n\
             [cluster]\netcd = [\"http://10.99.{host}.1:2379\"]\nhost = \"{name}\"\n\
             period = \"500ms\"\nlease = \"2s\"\n",
            self.folder.join(name)
        );
        std::fs::write(self.folder.join(format!("{name}.toml")), config)?;
        self.hosts[host] = Some(serve(&self.folder, &self.binary, &self.spaces, Some(host), name)?);
        self.clients[host] = Some(servers::fio(&self.folder, name, name, "64m", load)?);
        Ok(())
    }

    /// The answer of a host's server to a request of the API, sent over its control socket.
    fn api(&self, host: usize, arguments: &[&str]) -> Result<Value> {
        let socket = self.folder.join(HOSTS[host].name).join("control.sock");
        let mut command = process::program("curl");
        command.args(["--silent", "--show-error", "--fail-with-body", "--max-time", "30", "--unix-socket"]).arg(socket);
        process::json(command.args(arguments))
    }

    fn state(&self, host: usize) -> Result<Value> {
        self.api(host, &["http://evenkeel/api/v1/state"])
    }

    fn set_method(&self, method: &str) -> Result<()> {
        for host in 0..HOSTS.len() {
            let patch = format!("{{\"tuning\": {{\"slots\": \"{method}\"}}}}");
            let json = "Content-Type: application/json";
            let url = "http://evenkeel/api/v1/pools/array";
            self.api(host, &["--request", "PATCH", "--header", json, "--data", &patch, url])?;
        }
        Ok(())
    }

    /// Each host's status in the cluster; empty for a host that does not run.
    fn statuses(&self) -> Vec<String> {
        let status = |host| {
            let state = self.state(host).ok()?;
            Some(state["cluster"]["status"].as_str()?.to_owned())
        };
        (0..HOSTS.len()).map(|host| status(host).unwrap_or_default()).collect()
    }

    fn wait_for(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) -> Result<()> {
        process::until(what, [PATIENCE, Duration::from_millis(100)], || Ok(holds(self)))
            .with_context(|| format!("the hosts stand {:?}", self.statuses()))
            .map(drop)
    }

    /// Per host with a target: number of completed requests so far, and the sum of their latencies in seconds.
    fn counts(&self) -> Result<Vec<(u64, f64)>> {
        let count = |host: usize| {
            let state = self.state(host)?;
            let pools = state["pools"].as_array().context("pools")?;
            let tenants = pools.iter().filter_map(|pool| pool["tenants"].as_array()).flatten();
            let mut ours = tenants.filter(|tenant| tenant["name"] == HOSTS[host].name);
            let times = ours.find_map(|tenant| {
                let times = &tenant["latency"];
                times["count"].as_u64().filter(|&count| count > 0).zip(times["sum_s"].as_f64())
            });
            Ok(times.unwrap_or((0, 0.0)))
        };
        (0..HOSTS.len()).filter(|&host| HOSTS[host].target).map(count).collect()
    }

    /// Mean latency of each host with a target over the next window. The latency of a host without completions counts as the
    /// length of the window.
    fn window(&self) -> Result<Vec<Duration>> {
        let before = self.counts()?;
        thread::sleep(WINDOW);
        let after = self.counts()?;
        let mean = |((before, sum_before), (after, sum)): (&(u64, f64), &(u64, f64))| match after - before {
            0 => WINDOW,
            count => Duration::from_secs_f64(((sum - sum_before) / count as f64).max(0.0)),
        };
        Ok(before.iter().zip(&after).map(mean).collect())
    }

    fn windows(&self, count: usize) -> Result<Windows> {
        (0..count).map(|_| self.window()).collect()
    }

    /// Waits until all hosts report `status` as their status in the cluster.
    fn all_stand(&self, status: &str) -> Result<()> {
        self.wait_for(status, |stage| stage.statuses().iter().all(|of| of == status))
    }

    fn etcd_dies_and_comes_back(&mut self) -> Result<()> {
        self.etcd = None;
        self.all_stand("lost")?;
        thread::sleep(2 * WINDOW);
        self.start_etcd()?;
        self.all_stand("shared")
    }

    /// Kills all processes of the host [`STRUCK`].
    fn host_dies(&mut self) -> Result<()> {
        self.clients[STRUCK] = None;
        self.hosts[STRUCK] = None;
        Ok(())
    }

    fn host_comes_back(&mut self) -> Result<()> {
        self.start_host(STRUCK)?;
        self.all_stand("shared")
    }

    fn host_is_cut_off(&mut self) -> Result<()> {
        self.cut_off(STRUCK)?;
        self.wait_for("the host that was cut off has lost the cluster", |stage| stage.statuses()[STRUCK] == "lost")
    }

    fn host_is_found_again(&mut self) -> Result<()> {
        self.reconnect()?;
        self.all_stand("shared")
    }

    /// Blocks packets between a host and etcd, but not those between the host and the array.
    fn cut_off(&self, host: usize) -> Result<()> {
        let rule = format!("ip saddr 10.99.{host}.2 tcp dport 2379 drop");
        let rules = format!("table ip lab {{\nchain in {{\ntype filter hook input priority 0;\n{rule}\n}}\n}}");
        process::output(self.spaces.command(None, "nft").arg(rules)).map(drop)
    }

    fn reconnect(&self) -> Result<()> {
        process::output(self.spaces.command(None, "nft").args(["delete", "table", "ip", "lab"])).map(drop)
    }
}

/// Starts a server and waits until clients can connect.
fn serve(
    folder: &std::path::Path,
    binary: &std::path::Path,
    spaces: &Spaces,
    host: Option<usize>,
    name: &str,
) -> Result<Running> {
    let mut command = spaces.command(host, &binary.display().to_string());
    command.arg("serve").arg("--config").arg(folder.join(format!("{name}.toml")));
    let mut server = process::daemon(folder, name, &mut command)?;
    let socket = folder.join(name).join("nbd.sock");
    process::until("a connection", [PATIENCE, Duration::from_millis(50)], || {
        ensure!(server.ended()?.is_none(), "the server of {name} has ended; see its log");
        Ok(std::os::unix::net::UnixStream::connect(&socket).is_ok())
    })?;
    Ok(server)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_decide_after_a_fixed_time() {
        let course = |ms: [u64; SETTLING + SETTLED]| -> Windows {
            ms.iter().map(|ms| vec![Duration::from_millis(*ms), Duration::from_millis(100)]).collect()
        };
        let one = course([400, 240, 400, 240, 240, 240, 240, 900, 230, 900, 240]);
        assert_eq!((settled(&one), regained(&one)), (Duration::from_millis(240), 3));
        let never = course([240, 240, 400, 240, 240, 400, 310, 310, 310, 240, 240]);
        assert_eq!((settled(&never), regained(&never)), (Duration::from_millis(310), 11));
    }
}
