//! The stage of the Ceph lab: a monitor and OSDs, their devices, clients and the agent.

use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::admin::Admin;
use super::cluster::{self, Cluster, PATIENCE, Plan};
use super::pace;
use crate::base::process::{self, Running, daemon};
use crate::base::{build, tutorial};
use crate::check::figures::Spread;
use crate::check::policy;
use crate::check::run::Options;

const POOL: &str = "bench";
/// Size in bytes of the objects that are to be recovered.
pub(crate) const OBJECT_BYTES: u64 = 64 << 10;
/// Number of light clients, each with one request outstanding. Several give enough samples for a p99.
const LIGHT_CLIENTS: &str = "4";
/// Seconds from the start of the light clients until their measurement begins.
const RAMP: &str = "2";

/// The reason why the lab cannot run on this machine; `None` if it can run.
pub(crate) fn missing() -> Option<String> {
    cluster::missing().or_else(|| {
        let engines = process::output(process::program("fio").arg("--enghelp")).unwrap_or_default();
        (!engines.contains("rados")).then(|| "fio has no rados engine".to_owned())
    })
}

/// Figures of the bulk client and the light clients over one window of time.
#[derive(Debug, Clone)]
pub(crate) struct Window {
    pub(crate) case: String,
    pub(crate) bulk_mb_per_s: f64,
    pub(crate) light_p99_ms: f64,
    pub(crate) light_p50_ms: f64,
    /// Number of the light clients' requests over which the percentiles are taken.
    pub(crate) samples: u64,
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { case, bulk_mb_per_s, light_p99_ms, light_p50_ms, samples } = self;
        write!(
            f,
            "{case}: bulk {bulk_mb_per_s:.1} MB/s, light p50 {light_p50_ms:.1} p99 {light_p99_ms:.1} ms of {samples}"
        )
    }
}

/// Daemons, clients and files of the lab. On drop the processes are ended and the files removed.
pub(crate) struct Stage {
    binary: PathBuf,
    cluster: Cluster,
    /// Address of the agent's status API.
    status: SocketAddr,
}

impl Stage {
    /// Starts a new cluster of `osds` OSDs, each with a copy of every object. `settings` are lines of the OSDs' configuration.
    pub(crate) fn start(options: &Options, osds: usize, settings: &str) -> Result<Self> {
        let cluster = Cluster::start(Plan { name: "ceph", osds, settings }, options, pace::prepare)?;
        cluster.create_pool(POOL, osds)?;
        let status = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        Ok(Self { binary: options.binary.clone(), cluster, status })
    }

    /// The cluster with its daemons.
    pub(crate) fn cluster(&mut self) -> &mut Cluster {
        &mut self.cluster
    }

    /// The settings of the throttle that are overridden in the first OSD, as the agent does it, each as `NAME = VALUE`.
    pub(crate) fn overrides(&self) -> Result<Vec<String>> {
        let diff = self.cluster.ask(0, &["config", "diff"])?;
        let options = ["bluestore_throttle_bytes", "bluestore_throttle_deferred_bytes"];
        let set = options
            .into_iter()
            .filter_map(|option| Some(format!("{option} = {}", diff["diff"][option].get("override")?)));
        Ok(set.collect())
    }

    /// The budget of the first OSD's throttle, in bytes; `None` if the throttle is not set.
    pub(crate) fn throttle(&self) -> Result<Option<u64>> {
        let diff = self.cluster.ask(0, &["config", "diff"])?;
        let set = &diff["diff"]["bluestore_throttle_bytes"]["override"];
        Ok(set.as_u64().or_else(|| set.as_str()?.parse().ok()))
    }

    /// Sets the budget of the throttle of all OSDs in bytes, by an operator's command; `None` removes the throttle.
    pub(crate) fn set_throttle(&self, bytes: Option<u64>) -> Result<()> {
        let option = "bluestore_throttle_bytes";
        for osd in 0..self.cluster.osds() {
            match bytes {
                Some(bytes) => self.cluster.ask(osd, &["config", "set", option, &bytes.to_string()])?,
                None => self.cluster.ask(osd, &["config", "unset", option])?,
            };
        }
        Ok(())
    }

    /// Makes each device a flash device that writes `bytes_per_s` bytes per second from now on; 0 makes it memory.
    pub(crate) fn set_speed(&self, bytes_per_s: u64) -> Result<()> {
        self.set_pace(bytes_per_s, Duration::ZERO)
    }

    /// Sets the pace of all devices, as [`pace::set`] does.
    pub(crate) fn set_pace(&self, bytes_per_s: u64, each: Duration) -> Result<()> {
        pace::set(self.cluster.folder(), bytes_per_s, each)
    }

    fn fio(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = process::program("fio");
        command
            .args([&format!("--name={name}"), "--ioengine=rados", "--clientname=admin", "--busy_poll=0"])
            .args([&format!("--pool={POOL}"), "--output-format=json"])
            .arg(format!("--conf={}", self.cluster.conf().display()))
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    /// The command of a client that writes at random offsets until it is ended or its run time is over.
    fn forever(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = self.fio(name, &["--rw=randwrite", "--nr_files=8", "--time_based"]);
        command.args(arguments);
        command
    }

    /// Starts the bulk client, which writes 64 KiB per request at queue depth 64 until it is dropped.
    pub(crate) fn start_bulk(&self) -> Result<Running> {
        let arguments = ["--bs=64k", "--iodepth=64", "--size=128m", "--runtime=3600", "--thread"];
        let mut command = self.forever("bulk", &arguments);
        let bulk = Running::spawn(command.stdout(Stdio::null()))?;
        let before = self.written()?;
        self.wait_for("the bulk client writes", |stage| stage.written().is_ok_and(|now| now > before + (32 << 20)))?;
        Ok(bulk)
    }

    /// Writes `count` whole objects at queue depth 64. Each call writes the same objects.
    pub(crate) fn populate(&self, count: u64) -> Result<()> {
        let (files, size) = (format!("--nr_files={count}"), format!("--size={}", count * OBJECT_BYTES));
        let block = format!("--bs={OBJECT_BYTES}");
        let arguments = ["--rw=write", &block, "--iodepth=64", "--touch_objects=0", &files, &size];
        process::output(&mut self.fio("populate", &arguments)).map(drop)
    }

    /// Bytes that clients have written so far.
    fn written(&self) -> Result<u64> {
        self.counted("op_w_in_bytes")
    }

    /// Sum over all OSDs of a counter, which counts from the OSD's start.
    pub(crate) fn counted(&self, counter: &str) -> Result<u64> {
        (0..self.cluster.osds()).map(|osd| self.admin(osd).counter("osd", counter)).sum()
    }

    /// A client for the admin socket of the OSD with this number.
    pub(crate) fn admin(&self, osd: usize) -> Admin {
        Admin(self.cluster.socket(osd))
    }

    /// Requests per second that reach the first OSD's device, measured over `time`. (Clients' bytes would be less exact: they are
    /// counted when a whole batch of writes is committed, and scatter by 3 % over 1.5 s; requests scatter by 1 %.)
    pub(crate) fn requests_per_s(&self, time: Duration) -> Result<f64> {
        let reached = || self.admin(0).counter("bluestore", "state_aio_wait_lat");
        let (before, begun) = (reached()?, Instant::now());
        thread::sleep(time);
        Ok((reached()? - before) as f64 / begun.elapsed().as_secs_f64())
    }

    /// Runs the light clients and measures for `time`. Each sends requests of 4 KiB, one at a time, with pauses of 5 ms.
    pub(crate) fn window(&self, case: &str, time: Duration) -> Result<Window> {
        let jobs = format!("--numjobs={LIGHT_CLIENTS}");
        self.measure(case, time, &["--iodepth=1", "--thinktime=5000", &jobs])
    }

    /// Runs a bursty client and measures for `time`. It sends 16 requests of 4 KiB at once, with pauses of 100 ms between bursts.
    pub(crate) fn bursts(&self, case: &str, time: Duration) -> Result<Window> {
        self.measure(case, time, &["--iodepth=16", "--thinktime=100000", "--thinktime_blocks=16"])
    }

    fn measure(&self, case: &str, time: Duration, arguments: &[&str]) -> Result<Window> {
        let runtime = format!("--runtime={}", time.as_secs());
        let ramp = format!("--ramp_time={RAMP}");
        let mut light = self.forever("light", &["--bs=4k", "--size=4m", "--group_reporting", &runtime, &ramp]);
        let (begun, before) = (Instant::now(), self.written()?);
        let report = process::json(light.args(arguments))?;
        let (took, written) = (begun.elapsed(), self.written()? - before);
        let writes = &report["jobs"][0]["write"];
        let latency = &writes["clat_ns"]["percentile"];
        let ms = |percentile: &str| latency[percentile].as_f64().map(|ns| ns / 1e6).context("fio printed no latency");
        let window = Window {
            case: case.to_owned(),
            bulk_mb_per_s: written as f64 / 1e6 / took.as_secs_f64(),
            light_p99_ms: ms("99.000000")?,
            light_p50_ms: ms("50.000000")?,
            samples: writes["clat_ns"]["N"].as_u64().context("fio printed no number of requests")?,
        };
        println!("lab: {window}");
        Ok(window)
    }

    /// Starts the agent for all OSDs. `settings` are lines of the pools' configuration, `arguments` further ones for the agent.
    pub(crate) fn start_guard(&self, settings: &str, arguments: &[&str]) -> Result<Running> {
        let devices: Vec<String> = (0..self.cluster.osds()).map(|osd| format!("osd:osd.{osd}")).collect();
        let config = format!("{}[pools.ceph]\ndevices = {devices:?}\n{settings}\n", self.tables());
        std::fs::write(self.guard_file(), config)?;
        self.run_guard(arguments)
    }

    /// Starts the agent with the [`policy`] that all labs share. Returns the agent, and the effective settings as text.
    pub(crate) fn start_guard_by_policy(&self) -> Result<(Running, String)> {
        policy::write(&self.guard_file(), &self.tables())?;
        let settings = policy::is_enforced(&self.binary, &self.guard_file(), "ceph")?;
        Ok((self.run_guard(&[])?, settings))
    }

    fn guard_file(&self) -> PathBuf {
        self.cluster.folder().join("guard.toml")
    }

    /// Text of the table `agent` of the agent's configuration: status address, journal, and the OSDs' admin sockets.
    fn tables(&self) -> String {
        let sockets: Vec<PathBuf> = (0..self.cluster.osds()).map(|osd| self.cluster.socket(osd)).collect();
        let journal = self.cluster.folder().join("journal");
        format!("[agent]\nstatus = \"{}\"\njournal = {journal:?}\nceph.sockets = {sockets:?}\n", self.status)
    }

    fn run_guard(&self, arguments: &[&str]) -> Result<Running> {
        let mut command = Command::new(&self.binary);
        command.args(["guard", "run", "--config"]).arg(self.guard_file()).args(arguments);
        daemon(self.cluster.folder(), "guard", &mut command)
    }

    /// Asks the agent to end, and waits for its end.
    pub(crate) fn stop_guard(&self, guard: Running) -> Result<()> {
        let status = guard.stop(libc::SIGTERM, PATIENCE)?;
        ensure!(status.success(), "the agent ended with {status}; see guard.log");
        Ok(())
    }

    /// Runs `evenkeel guard reset`. Returns the command's output.
    pub(crate) fn reset(&self) -> Result<String> {
        let mut command = Command::new(&self.binary);
        process::output(command.args(["guard", "reset", "--journal"]).arg(self.cluster.folder().join("journal")))
    }

    /// Does the tutorial about Ceph. In its commands the socket, port and journal are replaced by those of this lab.
    pub(crate) fn follow_tutorial(&self) -> Result<String> {
        let (status, socket) = (self.status, self.cluster.socket(0).display().to_string());
        let journal = self.cluster.folder().join("journal").display().to_string();
        let table = format!(
            "[agent]\nstatus = \"{status}\"\njournal = {journal:?}\nceph.sockets = [{socket:?}]\n\n[pools.ceph]\n"
        );
        let [address, state, why, reset] = [
            status.to_string(),
            format!("guard status --status {status}"),
            format!("guard why --status {status}"),
            format!("guard reset --journal '{journal}'"),
        ];
        let instead = [
            ("127.0.0.1:9810", &*address),
            ("/run/ceph/ceph-osd.0.asok", &socket),
            ("[pools.ceph]\n", &table),
            ("guard status", &state),
            ("guard why", &why),
            ("guard reset", &reset),
        ];
        let program = self.binary.to_str().context("a path in UTF-8")?;
        let stage = tutorial::Stage { program, instead: &instead, prepare: process::tie_to_this_program };
        let (commands, written) = tutorial::play(&build::page("tutorial-ceph")?, &stage)?;
        if let Some(text) = written {
            build::write_page("tutorial-ceph", &text)?;
        }
        Ok(format!("{commands} commands of docs/guide/tutorial-ceph.md"))
    }

    /// The agent's state of each OSD; empty if the agent does not run.
    fn state(&self) -> Vec<Value> {
        let url = format!("http://{}/api/v1/state", self.status);
        let curl = ["--silent", "--fail", "--max-time", "5", &url];
        let state = process::json(process::program("curl").args(curl)).unwrap_or_default();
        state["pools"].as_array().cloned().unwrap_or_default()
    }

    /// The OSDs' states according to the agent, as text: one word if all are equal; empty if the agent does not run.
    pub(crate) fn standing(&self) -> String {
        // Pools of other points have none.
        let mut words: Vec<String> =
            self.state().iter().filter_map(|osd| Some(osd["condition"].as_str()?.to_owned())).collect();
        words.dedup();
        words.join(", ")
    }

    /// Number of restarts of OSDs that the agent has seen.
    pub(crate) fn restarts(&self) -> u64 {
        self.state().iter().filter_map(|osd| osd["restarts_total"].as_u64()).sum()
    }

    /// The agent's reasons for its present budgets.
    pub(crate) fn why(&self) -> Result<String> {
        let state = self.state();
        ensure!(!state.is_empty(), "the agent does not answer");
        let told = state.iter().map(|osd| {
            format!(
                "{}: budget {} KiB, {}; {} changes, {} samples, {} skipped, {} errors",
                osd["name"].as_str().unwrap_or_default(),
                osd["admission"]["budget_bytes"].as_u64().unwrap_or(0) >> 10,
                osd["lately"]["because"],
                osd["changes_total"],
                osd["samples_total"],
                osd["skipped_total"],
                osd["errors_total"]
            )
        });
        Ok(told.collect::<Vec<_>>().join("; "))
    }

    /// CPU time of a process over the next `time`, in per cent of a core.
    pub(crate) fn cost_of(&self, process: &Running, time: Duration) -> Result<f64> {
        let before = process::cpu_ns(process.id())?;
        thread::sleep(time);
        Ok((process::cpu_ns(process.id())? - before) as f64 / time.as_nanos() as f64 * 100.0)
    }

    pub(crate) fn wait_for(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) -> Result<()> {
        process::until(what, [PATIENCE, Duration::from_millis(200)], || Ok(holds(self)))
            .with_context(|| format!("the OSD stands {:?}", self.standing()))
            .map(drop)
    }
}

/// The bulk client's throughput and the light clients' p99 and median latency in a window, as text for a table.
pub(crate) fn cell(window: &Window) -> String {
    let Window { bulk_mb_per_s, light_p99_ms, light_p50_ms, .. } = window;
    format!("{bulk_mb_per_s:.1} MB/s, {light_p99_ms:.0} ms ({light_p50_ms:.0})")
}

/// A window with the medians of a case over its repeats; `None` without repeats.
pub(crate) fn median<'a>(case: &str, windows: impl Iterator<Item = &'a Window> + Clone) -> Option<Window> {
    let of = |value: fn(&Window) -> f64| Spread::of(windows.clone().map(value)).map(|spread| spread.median);
    Some(Window {
        case: case.to_owned(),
        bulk_mb_per_s: of(|window| window.bulk_mb_per_s)?,
        light_p99_ms: of(|window| window.light_p99_ms)?,
        light_p50_ms: of(|window| window.light_p50_ms)?,
        samples: windows.map(|window| window.samples).min()?,
    })
}

/// Prints the time since the lab began (`begun`), and the name of the next part, `what`.
pub(crate) fn progress(begun: Instant, what: &str) {
    eprintln!("lab: {:.0} s: {what}", begun.elapsed().as_secs_f64());
}
