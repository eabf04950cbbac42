//! What the Ceph lab plays on: a monitor and one OSD, its device, two clients and the agent.

use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Options;
use super::ceph_admin::Admin;
use super::ceph_cluster::{self, Cluster, PATIENCE, daemon};
use crate::build;
use crate::process::{self, Running};

const POOL: &str = "bench";
/// Light clients, each with one request at a time: several, so that there are enough samples for a 99th percentile.
const LIGHT_CLIENTS: &str = "4";
/// What the light clients run before they are measured, and what starting them takes.
const RAMP: &str = "2";

/// Why the lab cannot run on this machine, if so.
pub(crate) fn missing() -> Option<String> {
    ceph_cluster::missing(&["fio", "cc", "curl"], &["fio", "gcc", "curl"]).or_else(|| {
        let engines = process::output(process::program("fio").arg("--enghelp")).unwrap_or_default();
        (!engines.contains("rados")).then(|| "fio has no rados engine".to_owned())
    })
}

/// What both kinds of clients got for a while.
#[derive(Debug, Clone)]
pub(crate) struct Window {
    pub(crate) case: String,
    pub(crate) bulk_mb_per_s: f64,
    pub(crate) light_p99_ms: f64,
    pub(crate) light_p50_ms: f64,
    /// Requests of light clients that the percentiles are taken of.
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

/// Everything that runs; gone with the value.
pub(crate) struct Stage {
    binary: PathBuf,
    cluster: Cluster,
    /// Where the agent tells its state.
    status: SocketAddr,
}

impl Stage {
    /// Starts from nothing.
    pub(crate) fn start(options: &Options) -> Result<Self> {
        let cluster = Cluster::start("ceph", options, |folder| {
            let (library, speed) = (folder.join("pace.so"), folder.join("speed"));
            std::fs::write(&speed, 0_u64.to_ne_bytes())?;
            let source = build::workspace().join("lab/ceph/pace.c");
            process::output(
                process::program("cc")
                    .args(["-O2", "-Wall", "-shared", "-fPIC", "-o"])
                    .arg(&library)
                    .arg(source)
                    .args(["-ldl", "-lpthread"]),
            )?;
            Ok(vec![("LD_PRELOAD", library), ("PACE_FILE", speed)])
        })?;
        cluster.create_pool(POOL)?;
        let status = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        Ok(Self { binary: options.binary.clone(), cluster, status })
    }

    /// Kills the OSD, and starts it again.
    pub(crate) fn restart_osd(&mut self) -> Result<()> {
        self.cluster.kill_osd();
        self.cluster.start_osd()
    }

    /// What is set in the running OSD of what the agent sets.
    pub(crate) fn overrides(&self) -> Result<Vec<String>> {
        let diff = self.cluster.ask(&["config", "diff"])?;
        let options = ["bluestore_throttle_bytes", "bluestore_throttle_deferred_bytes"];
        let set = options
            .into_iter()
            .filter_map(|option| Some(format!("{option} = {}", diff["diff"][option].get("override")?)));
        Ok(set.collect())
    }

    /// Sets the throttle by hand, or takes that back.
    pub(crate) fn set_throttle(&self, bytes: Option<u64>) -> Result<()> {
        let option = "bluestore_throttle_bytes";
        match bytes {
            Some(bytes) => self.cluster.ask(&["config", "set", option, &bytes.to_string()]),
            None => self.cluster.ask(&["config", "unset", option]),
        }
        .map(drop)
    }

    /// From now on the device writes so many bytes per second.
    pub(crate) fn set_speed(&self, bytes_per_s: u64) -> Result<()> {
        let file = std::fs::OpenOptions::new().write(true).open(self.cluster.folder().join("speed"))?;
        Ok(file.write_all_at(&bytes_per_s.to_ne_bytes(), 0)?)
    }

    fn fio(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = process::program("fio");
        command
            .args([&format!("--name={name}"), "--ioengine=rados", "--clientname=admin", "--busy_poll=0"])
            .args([&format!("--pool={POOL}"), "--rw=randwrite", "--nr_files=8", "--time_based", "--output-format=json"])
            .arg(format!("--conf={}", self.cluster.conf().display()))
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    /// 64 KiB, 64 at a time, until dropped.
    pub(crate) fn start_bulk(&self) -> Result<Running> {
        let mut command = self.fio("bulk", &["--bs=64k", "--iodepth=64", "--size=128m", "--runtime=3600"]);
        let bulk = Running::spawn(command.stdout(Stdio::null()))?;
        let before = self.written()?;
        self.wait_for("the bulk client writes", |stage| stage.written().is_ok_and(|now| now > before + (32 << 20)))?;
        Ok(bulk)
    }

    /// Bytes that clients wrote so far.
    fn written(&self) -> Result<u64> {
        self.admin().counter("osd", "op_w_in_bytes")
    }

    /// The admin socket of the OSD.
    pub(crate) fn admin(&self) -> Admin {
        Admin::new(self.cluster.folder().join("run/osd.0.asok"))
    }

    /// What all clients write in a while, in MB/s.
    pub(crate) fn throughput(&self, time: Duration) -> Result<f64> {
        let (before, begun) = (self.written()?, Instant::now());
        thread::sleep(time);
        let written = self.written()? - before;
        Ok(written as f64 / 1e6 / begun.elapsed().as_secs_f64())
    }

    /// Runs the light clients for a while: 4 KiB, each one at a time, and 5 ms between two.
    pub(crate) fn window(&self, case: &str, time: Duration) -> Result<Window> {
        let (jobs, runtime) = (format!("--numjobs={LIGHT_CLIENTS}"), format!("--runtime={}", time.as_secs()));
        let ramp = format!("--ramp_time={RAMP}");
        let arguments =
            ["--bs=4k", "--iodepth=1", "--size=4m", "--thinktime=5000", "--group_reporting", &jobs, &runtime, &ramp];
        let (begun, before) = (Instant::now(), self.written()?);
        let output = process::output(&mut self.fio("light", &arguments))?;
        let (took, written) = (begun.elapsed(), self.written()? - before);
        let start = output.find('{').context("fio says nothing")?;
        let report: Value = serde_json::from_str(&output[start..])?;
        let writes = &report["jobs"][0]["write"];
        let latency = &writes["clat_ns"]["percentile"];
        let ms = |percentile: &str| latency[percentile].as_f64().map(|ns| ns / 1e6).context("fio tells no latency");
        let window = Window {
            case: case.to_owned(),
            bulk_mb_per_s: written as f64 / 1e6 / took.as_secs_f64(),
            light_p99_ms: ms("99.000000")?,
            light_p50_ms: ms("50.000000")?,
            samples: writes["clat_ns"]["N"].as_u64().context("fio tells no number of requests")?,
        };
        println!("lab: {window}");
        Ok(window)
    }

    /// Starts the agent with a configuration for this OSD; `admission` is the name of its controller.
    pub(crate) fn start_guard(&self, admission: &str, arguments: &[&str]) -> Result<Running> {
        // Ours is what an operator gets who asks for nothing else.
        let admission = if admission == "elastic" { String::new() } else { format!("admission = {admission:?}\n") };
        let config = format!(
            "[guard]\nstatus = \"{}\"\njournal = {:?}\n[ceph]\n{admission}sockets = [{:?}]\nonly = [\"osd.0\"]\n",
            self.status,
            self.cluster.folder().join("journal"),
            self.cluster.folder().join("run/osd.0.asok")
        );
        std::fs::write(self.cluster.folder().join("guard.toml"), config)?;
        let mut command = Command::new(&self.binary);
        command.args(["guard", "run", "--config"]).arg(self.cluster.folder().join("guard.toml")).args(arguments);
        daemon(self.cluster.folder(), "guard", &mut command)
    }

    /// Asks the agent to end, and waits for it.
    pub(crate) fn stop_guard(&self, guard: Running) -> Result<()> {
        // SAFETY: kill has no memory effects; the child has not been reaped.
        unsafe { libc::kill(guard.id() as i32, libc::SIGTERM) };
        let status = guard.wait(PATIENCE)?;
        ensure!(status.success(), "the agent ended with {status}; see guard.log");
        Ok(())
    }

    fn state(&self) -> Option<Value> {
        let url = format!("http://{}/api/v1/state", self.status);
        let answer =
            process::output(process::program("curl").args(["--silent", "--fail", "--max-time", "5", &url])).ok()?;
        let state: Value = serde_json::from_str(&answer).ok()?;
        state["osds"].get(0).cloned()
    }

    /// How the OSD stands with the agent; empty if it does not run.
    pub(crate) fn standing(&self) -> String {
        let state = self.state().unwrap_or_default();
        state["standing"].as_str().unwrap_or_default().to_owned()
    }

    /// Times that the agent has seen the OSD start anew.
    pub(crate) fn restarts(&self) -> u64 {
        self.state().and_then(|state| state["restarts_total"].as_u64()).unwrap_or(0)
    }

    /// What the agent says about its budget.
    pub(crate) fn why(&self) -> Result<String> {
        let state = self.state().context("the agent does not answer")?;
        let (samples, skipped) = (&state["samples_total"], &state["skipped_total"]);
        Ok(format!(
            "budget {} KiB, {}; {} changes, {samples} samples, {skipped} skipped, {} errors",
            state["budget_bytes"].as_u64().unwrap_or(0) >> 10,
            state["because"],
            state["changes_total"],
            state["errors_total"]
        ))
    }

    /// What a process takes of a core in a while, in per cent.
    pub(crate) fn cost_of(&self, process: &Running, time: Duration) -> Result<f64> {
        let before = process::cpu_ns(process.id())?;
        thread::sleep(time);
        Ok((process::cpu_ns(process.id())? - before) as f64 / time.as_nanos() as f64 * 100.0)
    }

    pub(crate) fn wait_for(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) -> Result<()> {
        let begun = Instant::now();
        while !holds(self) {
            ensure!(
                begun.elapsed() < PATIENCE,
                "this does not come true: {what} (the OSD stands {:?})",
                self.standing()
            );
            thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }
}
