//! What the Ceph lab plays on: a monitor and one OSD, its device, two clients and the agent.

use std::fmt;
use std::net::TcpListener;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Options;
use crate::build;
use crate::packages;
use crate::process::{self, Running};
use crate::scratch::Scratch;

const FSID: &str = "6d7c5b2e-0f0c-4c7e-9d5a-7d1f4b7e2a10";
const POOL: &str = "bench";
/// Placement groups: enough to have requests of several at once on one OSD.
const GROUPS: &str = "32";
const WINDOW: Duration = Duration::from_secs(8);
const PATIENCE: Duration = Duration::from_secs(60);
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
const STATUS: &str = "127.0.0.1:9871";

/// Why the lab cannot run on this machine, if so.
pub(crate) fn missing() -> Option<String> {
    let programs = ["ceph", "ceph-mon", "ceph-osd", "monmaptool", "fio", "cc", "curl"];
    let absent = programs.into_iter().find(|program| process::find_program(program).is_none());
    if let Some(program) = absent {
        let command = packages::command(&["ceph-common", "ceph-mon", "ceph-osd", "fio", "gcc", "curl"]);
        return Some(format!("{program} is not installed: {command}"));
    }
    if !Path::new("/dev/shm").is_dir() {
        return Some("there is no /dev/shm for the device".to_owned());
    }
    let engines = process::output(process::program("fio").arg("--enghelp")).unwrap_or_default();
    (!engines.contains("rados")).then(|| "fio has no rados engine".to_owned())
}

/// What both clients got for a while.
#[derive(Debug, Clone)]
pub(crate) struct Window {
    case: String,
    pub(crate) bulk_mb_per_s: f64,
    light_p99_ms: f64,
    pub(crate) light_p50_ms: f64,
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { case, bulk_mb_per_s, light_p99_ms, light_p50_ms } = self;
        write!(f, "{case}: bulk {bulk_mb_per_s:.1} MB/s, light p50 {light_p50_ms:.1} p99 {light_p99_ms:.1} ms")
    }
}

/// Everything that runs; gone with the value.
pub(crate) struct Stage {
    binary: PathBuf,
    folder: PathBuf,
    osd: Option<Running>,
    _monitor: Running,
    /// Holds the device, in memory.
    _device: Device,
    _scratch: Scratch,
}

/// The file that stands for the device.
struct Device(PathBuf);

impl Drop for Device {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Stage {
    /// Starts from nothing.
    pub(crate) fn start(options: &Options) -> Result<Self> {
        let mut scratch = Scratch::new("ceph")?;
        if options.keep {
            scratch.keep();
        }
        let folder = scratch.path().to_owned();
        let device = Device(PathBuf::from(format!("/dev/shm/evenkeel-ceph-{}", std::process::id())));
        std::fs::File::create(&device.0)?.set_len(6 << 30)?;
        std::fs::create_dir_all(folder.join("osd"))?;
        std::os::unix::fs::symlink(&device.0, folder.join("osd/block"))?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let monitor = format!("[v2:127.0.0.1:{port}]");
        std::fs::write(folder.join("ceph.conf"), configuration(&folder, &monitor))?;
        std::fs::write(folder.join("speed"), 0_u64.to_ne_bytes())?;
        let source = build::workspace().join("lab/ceph/pace.c");
        process::output(
            process::program("cc")
                .args(["-O2", "-Wall", "-shared", "-fPIC", "-o"])
                .arg(folder.join("pace.so"))
                .arg(source)
                .args(["-ldl", "-lpthread"]),
        )?;
        let mon = || {
            let mut command = process::program("ceph-mon");
            command.args(["-i", "a", "--conf"]).arg(folder.join("ceph.conf"));
            command
        };
        // With a map of its own the monitor takes the port from it; by the configuration alone it takes the usual one.
        let map = folder.join("monmap");
        let create = ["--create", "--fsid", FSID, "--addv", "a", &monitor];
        process::output(process::program("monmaptool").args(create).arg(&map))?;
        process::output(mon().args(["--mkfs", "--monmap"]).arg(&map))?;
        let running = daemon(&folder, "mon", mon().arg("-f"))?;
        let mut stage = Self {
            binary: options.binary.clone(),
            folder,
            osd: None,
            _monitor: running,
            _device: device,
            _scratch: scratch,
        };
        stage
            .wait_for("the monitor answers", |stage| stage.ceph(&["--connect-timeout", "3", "osd", "stat"]).is_ok())?;
        let id = process::output(Command::new("cat").arg("/proc/sys/kernel/random/uuid"))?;
        stage.ceph(&["osd", "new", id.trim(), "0"])?;
        stage.ceph(&["osd", "crush", "add", "osd.0", "1.0", "root=default", "host=lab"])?;
        let mkfs = ["-i", "0", "--mkfs", "--osd-objectstore", "bluestore", "--osd-uuid", id.trim()];
        process::output(process::program("ceph-osd").arg("--conf").arg(stage.folder.join("ceph.conf")).args(mkfs))?;
        stage.start_osd()?;
        stage.ceph(&["osd", "pool", "create", POOL, GROUPS, GROUPS, "replicated"])?;
        stage.ceph(&["osd", "pool", "set", POOL, "size", "1", "--yes-i-really-mean-it"])?;
        Ok(stage)
    }

    fn start_osd(&mut self) -> Result<()> {
        let mut command = process::program("ceph-osd");
        command.arg("--conf").arg(self.folder.join("ceph.conf")).args(["-i", "0", "-f"]);
        command.env("LD_PRELOAD", self.folder.join("pace.so")).env("PACE_FILE", self.folder.join("speed"));
        self.osd = Some(daemon(&self.folder, "osd", &mut command)?);
        self.wait_for("the OSD is up", |stage| {
            stage.ceph(&["osd", "stat"]).is_ok_and(|text| text.contains("1 up")) && stage.overrides().is_ok()
        })
    }

    /// Kills the OSD, and starts it again.
    pub(crate) fn restart_osd(&mut self) -> Result<()> {
        drop(self.osd.take());
        self.start_osd()
    }

    fn ceph(&self, arguments: &[&str]) -> Result<String> {
        // A cluster that hangs would keep the command for ever.
        let limit = format!("{}", ANSWER_LIMIT.as_secs());
        let conf = self.folder.join("ceph.conf");
        process::output(
            process::program("timeout").args(["-k", "5", &limit, "ceph", "--conf"]).arg(conf).args(arguments),
        )
    }

    /// Asks the OSD on its admin socket, by Ceph's own client.
    fn ask(&self, arguments: &[&str]) -> Result<Value> {
        let socket = self.folder.join("run/osd.0.asok").display().to_string();
        let answer = self.ceph(&[&["--admin-daemon", &socket], arguments].concat())?;
        serde_json::from_str(&answer).with_context(|| format!("the OSD says {answer:?}"))
    }

    /// What is set in the running OSD of what the agent sets.
    pub(crate) fn overrides(&self) -> Result<Vec<String>> {
        let diff = self.ask(&["config", "diff"])?;
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
            Some(bytes) => self.ask(&["config", "set", option, &bytes.to_string()]),
            None => self.ask(&["config", "unset", option]),
        }
        .map(drop)
    }

    /// From now on the device writes so many bytes per second.
    pub(crate) fn set_speed(&self, bytes_per_s: u64) -> Result<()> {
        let file = std::fs::OpenOptions::new().write(true).open(self.folder.join("speed"))?;
        Ok(file.write_all_at(&bytes_per_s.to_ne_bytes(), 0)?)
    }

    fn fio(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = process::program("fio");
        command
            .args([&format!("--name={name}"), "--ioengine=rados", "--clientname=admin", "--busy_poll=0"])
            .args([&format!("--pool={POOL}"), "--rw=randwrite", "--nr_files=8", "--time_based", "--output-format=json"])
            .arg(format!("--conf={}", self.folder.join("ceph.conf").display()))
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
        self.ask(&["perf", "dump", "osd"])?["osd"]["op_w_in_bytes"]
            .as_u64()
            .context("the OSD does not count op_w_in_bytes")
    }

    /// Runs the light client for a while: 4 KiB, one at a time, and 5 ms between two.
    pub(crate) fn window(&self, case: &str) -> Result<Window> {
        let runtime = format!("--runtime={}", WINDOW.as_secs());
        let arguments = ["--bs=4k", "--iodepth=1", "--size=4m", "--thinktime=5000", "--ramp_time=2", &runtime];
        let (begun, before) = (Instant::now(), self.written()?);
        let output = process::output(&mut self.fio("light", &arguments))?;
        let (took, written) = (begun.elapsed(), self.written()? - before);
        let start = output.find('{').context("fio says nothing")?;
        let report: Value = serde_json::from_str(&output[start..])?;
        let latency = &report["jobs"][0]["write"]["clat_ns"]["percentile"];
        let ms = |percentile: &str| latency[percentile].as_f64().map(|ns| ns / 1e6).context("fio tells no latency");
        let window = Window {
            case: case.to_owned(),
            bulk_mb_per_s: written as f64 / 1e6 / took.as_secs_f64(),
            light_p99_ms: ms("99.000000")?,
            light_p50_ms: ms("50.000000")?,
        };
        println!("lab: {window}");
        Ok(window)
    }

    /// Starts the agent with a configuration for this OSD.
    pub(crate) fn start_guard(&self, arguments: &[&str]) -> Result<Running> {
        let config = format!(
            "[guard]\nstatus = {STATUS:?}\njournal = {:?}\n[ceph]\nsockets = [{:?}]\nonly = [\"osd.0\"]\n",
            self.folder.join("journal"),
            self.folder.join("run/osd.0.asok")
        );
        std::fs::write(self.folder.join("guard.toml"), config)?;
        let mut command = Command::new(&self.binary);
        command.args(["guard", "run", "--config"]).arg(self.folder.join("guard.toml")).args(arguments);
        daemon(&self.folder, "guard", &mut command)
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
        let url = format!("http://{STATUS}/api/v1/state");
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

/// Starts a daemon whose messages go to a log.
fn daemon(folder: &Path, name: &str, command: &mut Command) -> Result<Running> {
    let log = std::fs::OpenOptions::new().create(true).append(true).open(folder.join(format!("{name}.log")))?;
    Running::spawn(command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log))
}

/// One shard with two threads, and a scheduler without reservations that keep it from choosing: what the throttle does shows
/// then.
fn configuration(folder: &Path, monitor: &str) -> String {
    let folder = folder.display();
    format!(
        "[global]
fsid = {FSID}
mon_initial_members = a
mon_host = {monitor}
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
ms_bind_ipv6 = false
ms_bind_msgr1 = false
run_dir = {folder}/run
admin_socket = {folder}/run/$name.asok
log_file = {folder}/$name.ceph.log
crash_dir = {folder}
osd_pool_default_size = 1
osd_pool_default_min_size = 1
mon_allow_pool_size_one = true
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_data_avail_warn = 2
mon_data_avail_crit = 1
[mon]
mon_data = {folder}/mon
[client]
admin_socket =
[osd]
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
osd_data = {folder}/osd
osd_memory_target = 939524096
osd_memory_cache_min = 134217728
bluefs_buffered_io = false
bluestore_throttle_cost_per_io = 4000
bluestore_prefer_deferred_size = 0
osd_op_queue = mclock_scheduler
osd_mclock_profile = custom
osd_mclock_scheduler_client_res = 1
osd_mclock_max_capacity_iops_ssd = 5000
osd_mclock_max_capacity_iops_hdd = 5000
osd_op_num_shards = 1
osd_op_num_threads_per_shard = 2
osd_class_update_on_start = false
osd_crush_update_on_start = false
"
    )
}
