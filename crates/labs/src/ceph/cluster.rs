//! A Ceph cluster of one monitor and a few OSDs on this machine, from the distribution's packages, for labs that need Ceph.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::base::process::{self, Running, daemon};
use crate::base::scratch::{self, Scratch};
use crate::check::run::Options;

const FSID: &str = "6d7c5b2e-0f0c-4c7e-9d5a-7d1f4b7e2a10";
/// Number of placement groups of a pool: enough that an OSD serves requests to several of them at the same time.
const GROUPS: &str = "32";
/// Size of the file that holds an OSD's data, in bytes. The file is in memory and sparse.
const DEVICE_BYTES: u64 = 6 << 30;
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// Time limit of a command about images, which may read or write all their data.
const IMAGE_LIMIT: Duration = Duration::from_secs(120);

/// Programs that a cluster needs.
pub(crate) const PROGRAMS: [&str; 4] = ["ceph", "ceph-mon", "ceph-osd", "monmaptool"];

/// The reason why no cluster can run on this machine; `None` if a cluster can run.
pub(crate) fn missing() -> Option<String> {
    (!Path::new(scratch::MEMORY).is_dir()).then(|| format!("there is no {} for the devices", scratch::MEMORY))
}

/// The plan of a cluster.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan<'a> {
    /// Name of the lab, which becomes a part of file names.
    pub(crate) name: &'a str,
    /// Number of OSDs.
    pub(crate) osds: usize,
    /// Lines of the OSDs' configuration, about the kind of device and the scheduler.
    pub(crate) settings: &'a str,
}

/// Settings of an OSD on flash. The scheduler's reservations are so small that they do not determine the order of requests, so
/// that the effect of the throttle shows.
pub(crate) const FLASH: &str = "bluestore_throttle_cost_per_io = 4000
bluestore_prefer_deferred_size = 0
osd_mclock_scheduler_client_res = 1
";

/// A running cluster: its daemons and their files. On drop the daemons are ended and the files removed.
pub(crate) struct Cluster {
    folder: PathBuf,
    /// The OSDs by number; `None` while an OSD is dead.
    osds: Vec<Option<Running>>,
    _monitor: Running,
    /// Environment variables of the OSDs.
    environment: Vec<(&'static str, PathBuf)>,
    /// Folder in memory with the files that serve as the OSDs' devices.
    devices: Scratch,
    _scratch: Scratch,
}

impl Cluster {
    /// Starts a new cluster. `prepare` makes files for the OSDs in the cluster's folder, and returns environment
    /// variables for the OSDs.
    pub(crate) fn start(
        plan: Plan,
        options: &Options,
        prepare: impl FnOnce(&Path) -> Result<Vec<(&'static str, PathBuf)>>,
    ) -> Result<Self> {
        let scratch = Scratch::kept_if(options.keep, plan.name)?;
        let folder = scratch.path().to_owned();
        let devices = Scratch::in_memory(plan.name)?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let monitor = format!("[v2:127.0.0.1:{port}]");
        std::fs::write(folder.join("ceph.conf"), configuration(&folder, &monitor, plan.settings))?;
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
        let osds = (0..plan.osds).map(|_| None).collect();
        let mut cluster = Self { folder, osds, _monitor: running, environment, devices, _scratch: scratch };
        cluster.wait_for("the monitor answers", || cluster.ceph(&["--connect-timeout", "3", "osd", "stat"]).is_ok())?;
        for osd in 0..plan.osds {
            cluster.make_osd(osd)?;
            cluster.start_osd(osd)?;
        }
        Ok(cluster)
    }

    /// Makes an OSD with an empty device. In Ceph's map each OSD is on a host of its own.
    fn make_osd(&self, osd: usize) -> Result<()> {
        let (number, data) = (osd.to_string(), self.folder.join(format!("osd{osd}")));
        let device = self.devices.path().join(&number);
        std::fs::File::create(&device)?.set_len(DEVICE_BYTES)?;
        std::fs::create_dir_all(&data)?;
        std::os::unix::fs::symlink(&device, data.join("block"))?;
        let id = process::output(Command::new("cat").arg("/proc/sys/kernel/random/uuid"))?;
        self.ceph(&["osd", "new", id.trim(), &number])?;
        let host = format!("host=lab{osd}");
        self.ceph(&["osd", "crush", "add", &format!("osd.{osd}"), "1.0", "root=default", &host])?;
        let mkfs = ["-i", &number, "--mkfs", "--osd-objectstore", "bluestore", "--osd-uuid", id.trim()];
        process::output(process::program("ceph-osd").arg("--conf").arg(self.conf()).args(mkfs)).map(drop)
    }

    /// Makes a pool with `copies` copies of each object. Objects can be written while at least one copy is available.
    pub(crate) fn create_pool(&self, name: &str, copies: usize) -> Result<()> {
        self.ceph(&["osd", "pool", "create", name, GROUPS, GROUPS, "replicated"])?;
        self.ceph(&["osd", "pool", "set", name, "size", &copies.to_string(), "--yes-i-really-mean-it"])?;
        self.ceph(&["osd", "pool", "set", name, "min_size", "1"]).map(drop)
    }

    /// Number of OSDs, dead or alive.
    pub(crate) fn osds(&self) -> usize {
        self.osds.len()
    }

    /// Folder with the daemons' files.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Path of the configuration file, for clients.
    pub(crate) fn conf(&self) -> PathBuf {
        self.folder.join("ceph.conf")
    }

    /// Kills the OSD with this number.
    pub(crate) fn kill_osd(&mut self, osd: usize) {
        drop(self.osds[osd].take());
    }

    /// Starts the OSD with this number, and waits until the monitor reports all running OSDs as up.
    pub(crate) fn start_osd(&mut self, osd: usize) -> Result<()> {
        let mut command = process::program("ceph-osd");
        command.arg("--conf").arg(self.conf()).args(["-i", &osd.to_string(), "-f"]);
        command.envs(self.environment.iter().cloned());
        self.osds[osd] = Some(daemon(&self.folder, &format!("osd{osd}"), &mut command)?);
        let up = format!("{} up", self.osds.iter().flatten().count());
        self.wait_for("the OSD is up", || {
            self.ceph(&["osd", "stat"]).is_ok_and(|text| text.contains(&up))
                && self.ask(osd, &["config", "diff"]).is_ok()
        })
    }

    /// Runs Ceph's own client, `ceph`, with these arguments. Returns its output.
    pub(crate) fn ceph(&self, arguments: &[&str]) -> Result<String> {
        self.client("ceph", ANSWER_LIMIT, arguments)
    }

    /// Runs Ceph's own client for images, `rbd`, with these arguments. Returns its output.
    pub(crate) fn rbd(&self, arguments: &[&str]) -> Result<String> {
        self.client("rbd", IMAGE_LIMIT, arguments)
    }

    fn client(&self, name: &str, limit: Duration, arguments: &[&str]) -> Result<String> {
        // A cluster that hangs would keep the command for ever.
        let limit = limit.as_secs().to_string();
        let mut command = process::program("timeout");
        process::output(command.args(["-k", "5", &limit, name, "--conf"]).arg(self.conf()).args(arguments))
    }

    /// Path of the admin socket of the OSD with this number.
    pub(crate) fn socket(&self, osd: usize) -> PathBuf {
        self.folder.join(format!("run/osd.{osd}.asok"))
    }

    /// Sends a command to an OSD's admin socket, through Ceph's own client. Returns the OSD's answer.
    pub(crate) fn ask(&self, osd: usize, arguments: &[&str]) -> Result<Value> {
        let socket = self.socket(osd).display().to_string();
        let answer = self.ceph(&[&["--admin-daemon", &socket], arguments].concat())?;
        serde_json::from_str(&answer).with_context(|| format!("the OSD says {answer:?}"))
    }

    fn wait_for(&self, what: &str, mut holds: impl FnMut() -> bool) -> Result<()> {
        process::until(what, [PATIENCE, Duration::from_millis(200)], || Ok(holds())).map(drop)
    }
}

/// The text of the cluster's configuration file. OSDs have one shard with two threads: with more threads, requests would leave
/// the scheduler's queue early and wait at the throttle in order of arrival.
fn configuration(folder: &Path, monitor: &str, settings: &str) -> String {
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
osd_data = {folder}/osd$id
osd_memory_target = 939524096
osd_memory_cache_min = 134217728
bluefs_buffered_io = false
osd_op_queue = mclock_scheduler
osd_mclock_profile = custom
osd_mclock_max_capacity_iops_ssd = 5000
osd_mclock_max_capacity_iops_hdd = 5000
osd_op_num_shards = 1
osd_op_num_threads_per_shard = 2
osd_class_update_on_start = false
osd_crush_update_on_start = false
osd_client_watch_timeout = 5
{settings}"
    )
}
