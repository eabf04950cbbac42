//! A Ceph cluster of one monitor and one OSD on this machine, from the distribution's packages, for the labs that need one.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Options;
use crate::packages;
use crate::process::{self, Running};
use crate::scratch::Scratch;

const FSID: &str = "6d7c5b2e-0f0c-4c7e-9d5a-7d1f4b7e2a10";
/// Placement groups of a pool: enough to have requests of several at once on one OSD.
const GROUPS: &str = "32";
/// What holds the OSD's data, sparse, in memory.
const DEVICE_BYTES: u64 = 6 << 30;
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Programs that the cluster is made of, and their packages.
const PROGRAMS: [&str; 4] = ["ceph", "ceph-mon", "ceph-osd", "monmaptool"];
const PACKAGES: [&str; 3] = ["ceph-common", "ceph-mon", "ceph-osd"];

/// Why there can be no cluster with clients that need `programs` of `packages` as well, if so.
pub(crate) fn missing(programs: &[&str], packages: &[&str]) -> Option<String> {
    let absent = PROGRAMS.iter().chain(programs).find(|program| process::find_program(program).is_none());
    if let Some(program) = absent {
        let command = packages::command(&[&PACKAGES[..], packages].concat());
        return Some(format!("{program} is not installed: {command}"));
    }
    (!Path::new("/dev/shm").is_dir()).then(|| "there is no /dev/shm for the device".to_owned())
}

/// The daemons and their files; gone with the value.
pub(crate) struct Cluster {
    folder: PathBuf,
    osd: Option<Running>,
    _monitor: Running,
    /// What the OSD finds in its environment.
    environment: Vec<(&'static str, PathBuf)>,
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

impl Cluster {
    /// Starts from nothing; `name` is that of the lab. `prepare` makes what the OSD needs in the folder of the cluster, and
    /// returns what it shall find in its environment.
    pub(crate) fn start(
        name: &str,
        options: &Options,
        prepare: impl FnOnce(&Path) -> Result<Vec<(&'static str, PathBuf)>>,
    ) -> Result<Self> {
        let mut scratch = Scratch::new(name)?;
        if options.keep {
            scratch.keep();
        }
        let folder = scratch.path().to_owned();
        let device = Device(PathBuf::from(format!("/dev/shm/evenkeel-{name}-{}", std::process::id())));
        std::fs::File::create(&device.0)?.set_len(DEVICE_BYTES)?;
        std::fs::create_dir_all(folder.join("osd"))?;
        std::os::unix::fs::symlink(&device.0, folder.join("osd/block"))?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let monitor = format!("[v2:127.0.0.1:{port}]");
        std::fs::write(folder.join("ceph.conf"), configuration(&folder, &monitor))?;
        let environment = prepare(&folder)?;
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
        let mut cluster =
            Self { folder, osd: None, _monitor: running, environment, _device: device, _scratch: scratch };
        cluster.wait_for("the monitor answers", || cluster.ceph(&["--connect-timeout", "3", "osd", "stat"]).is_ok())?;
        let id = process::output(Command::new("cat").arg("/proc/sys/kernel/random/uuid"))?;
        cluster.ceph(&["osd", "new", id.trim(), "0"])?;
        cluster.ceph(&["osd", "crush", "add", "osd.0", "1.0", "root=default", "host=lab"])?;
        let mkfs = ["-i", "0", "--mkfs", "--osd-objectstore", "bluestore", "--osd-uuid", id.trim()];
        process::output(process::program("ceph-osd").arg("--conf").arg(cluster.conf()).args(mkfs))?;
        cluster.start_osd()?;
        Ok(cluster)
    }

    /// Makes a pool whose objects are kept once.
    pub(crate) fn create_pool(&self, name: &str) -> Result<()> {
        self.ceph(&["osd", "pool", "create", name, GROUPS, GROUPS, "replicated"])?;
        self.ceph(&["osd", "pool", "set", name, "size", "1", "--yes-i-really-mean-it"]).map(drop)
    }

    /// Where the daemons have their files.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The configuration file, for clients.
    pub(crate) fn conf(&self) -> PathBuf {
        self.folder.join("ceph.conf")
    }

    /// Kills the OSD.
    pub(crate) fn kill_osd(&mut self) {
        drop(self.osd.take());
    }

    /// Starts the OSD, and waits until it is up.
    pub(crate) fn start_osd(&mut self) -> Result<()> {
        let mut command = process::program("ceph-osd");
        command.arg("--conf").arg(self.conf()).args(["-i", "0", "-f"]).envs(self.environment.iter().cloned());
        self.osd = Some(daemon(&self.folder, "osd", &mut command)?);
        self.wait_for("the OSD is up", || {
            self.ceph(&["osd", "stat"]).is_ok_and(|text| text.contains("1 up")) && self.ask(&["config", "diff"]).is_ok()
        })
    }

    /// Runs Ceph's own client.
    pub(crate) fn ceph(&self, arguments: &[&str]) -> Result<String> {
        // A cluster that hangs would keep the command for ever.
        let limit = format!("{}", ANSWER_LIMIT.as_secs());
        process::output(
            process::program("timeout").args(["-k", "5", &limit, "ceph", "--conf"]).arg(self.conf()).args(arguments),
        )
    }

    /// Asks the OSD on its admin socket, by Ceph's own client.
    pub(crate) fn ask(&self, arguments: &[&str]) -> Result<Value> {
        let socket = self.folder.join("run/osd.0.asok").display().to_string();
        let answer = self.ceph(&[&["--admin-daemon", &socket], arguments].concat())?;
        serde_json::from_str(&answer).with_context(|| format!("the OSD says {answer:?}"))
    }

    fn wait_for(&self, what: &str, mut holds: impl FnMut() -> bool) -> Result<()> {
        let begun = Instant::now();
        while !holds() {
            ensure!(begun.elapsed() < PATIENCE, "this does not come true: {what}");
            thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }
}

/// Starts a daemon whose messages go to a log.
pub(crate) fn daemon(folder: &Path, name: &str, command: &mut Command) -> Result<Running> {
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
mon_data_avail_warn = 1
mon_data_avail_crit = 0
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
osd_client_watch_timeout = 5
"
    )
}
