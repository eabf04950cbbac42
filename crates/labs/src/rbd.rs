//! The lab of RBD: `evenkeel serve` in front of images of a real Ceph cluster. Checks data that clients read back, the behaviour
//! when an image changes or the cluster stops, and data after a kill of the server.
//!
//! The lab needs no virtual machine: it starts daemons of the distribution's packages on this machine.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::base::build;
use crate::base::client::{self, Client, Refused};
use crate::base::process::{self, Running};
use crate::base::servers;
use crate::ceph::cluster::{Cluster, FLASH, Plan};
use crate::check::run::{Lab, Options};
use crate::check::{journal, writer};

const POOL: &str = "rbd";
/// Images of the pool, each with its size in MiB. A volume of the same name serves each of them.
const IMAGES: [(&str, u32); 3] = [("disk", 256), ("killed", 32), ("paused", 32)];
/// Name of a snapshot of `disk`, and of the volume that serves it.
const SNAPSHOT: &str = "before";
/// A namespace of the pool, which has an image `later`.
const NAMESPACE: &str = "team";
/// Name of a volume of the server that does not use Ceph.
const OTHER: &str = "local";
/// Seconds for which a stopping server continues to serve connected clients.
const DRAIN_S: u64 = 3;
const TOOL_LIMIT_S: &str = "120";
/// Name of the differential test of RBD images in the package `evenkeel-server`.
const DIFFERENTIAL: &str = "differential::an_rbd_image_is_what_was_written";
/// Time limit of the differential test with its build.
const DIFFERENTIAL_LIMIT: Duration = Duration::from_secs(40 * 60);
const PATIENCE: Duration = Duration::from_secs(120);
/// Bar: the longest latency of a request to the volume [`OTHER`] while the cluster is stopped, minus the time for which the
/// machine itself stalled.
const OTHER_MOST: Duration = Duration::from_secs(1);
/// Time for which the cluster is stopped; a request to an image must wait as long.
const PAUSE: Duration = Duration::from_secs(3);
/// Pause between two requests of a client.
const BETWEEN: Duration = Duration::from_millis(20);
/// Time after which a write without a reply counts as waiting for the cluster.
const WAITS: Duration = Duration::from_secs(1);
/// Time for which clients write before the server is killed.
const WRITING: Duration = Duration::from_secs(4);
/// Error number of the NBD protocol for an invalid request.
const EINVAL: u32 = 22;
/// Error number of the NBD protocol for a full or too small device.
const ENOSPC: u32 = 28;
const MIB: u64 = 1 << 20;

/// Runs the lab and reports each step.
pub(crate) fn run(lab: &mut Lab, options: &Options) -> Result<()> {
    let begun = Instant::now();
    let mut stage = Stage::start(options)?;
    println!("lab: a cluster with images is up after {:.0} s", begun.elapsed().as_secs_f64());
    without_library(lab, &stage)?;
    let mut server = stage.serve()?;
    let mut step = |name: &str, outcome: Result<String>| match outcome {
        Ok(detail) => lab.passed(name, &detail),
        Err(error) => lab.failed(name, &format!("{error:#}")),
    };
    step("fio_reads_back_what_it_wrote", stage.fio());
    step("what_was_copied_in_is_in_the_image", stage.copy());
    step("zeros_and_discards_read_as_zeros", stage.zeros());
    step("random_requests_do_what_the_model_does", stage.differential());
    step("a_snapshot_is_as_it_was_and_read_only", stage.snapshot());
    step("a_volume_comes_and_goes_while_it_serves", stage.create_and_remove(&server));
    step("a_second_server_is_refused_by_the_lock", stage.second_server());
    step("a_resized_image_has_its_new_size", stage.resize());
    step("requests_wait_while_the_cluster_is_paused", stage.pause());
    step("requests_wait_while_the_osd_is_dead", stage.osd_dies());
    let killed = stage.kill_under_writes(server);
    step("what_was_acknowledged_is_there_after_a_kill", killed);
    server = stage.serve()?;
    step("a_stop_while_the_cluster_is_paused_is_bounded_and_told", stage.stop_paused(server));
    server = stage.serve()?;
    step("a_stop_gives_the_lock_back", stage.stop(server));
    Ok(())
}

/// Checks a server without the library librbd: it names the package to install, and serves its other volumes.
fn without_library(lab: &mut Lab, stage: &Stage) -> Result<()> {
    // The linker takes what it finds first, and this is no library.
    let folder = stage.folder().join("broken");
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("librbd.so.1"), "")?;
    let config = stage.config("broken", &IMAGES)?;
    let mut command = servers::serve(&stage.binary, config);
    let output = command.env("LD_LIBRARY_PATH", &folder).stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let named = said.contains("librbd.so.1") && said.contains("Install librbd1");
    lab.check("without_librbd_it_says_what_to_install", !output.status.success() && named, said.trim());

    let mut command = servers::serve(&stage.binary, stage.config("rest", &[])?);
    command.env("LD_LIBRARY_PATH", &folder);
    let served =
        servers::start_and_reach(stage.folder(), "rest", &mut command, || servers::reach(&stage.socket("rest"), OTHER));
    lab.check("and_serves_what_needs_no_ceph", served.is_ok(), &format!("{:?}", served.err()));
    Ok(())
}

struct Stage {
    binary: PathBuf,
    /// True with `--full`, when missed bars fail the lab.
    full: bool,
    cluster: Cluster,
}

impl Stage {
    fn start(options: &Options) -> Result<Self> {
        let plan = Plan { name: "rbd", osds: 1, settings: FLASH };
        let cluster = Cluster::start(plan, options, |_| Ok(Vec::new()))?;
        cluster.create_pool(POOL, 1)?;
        let stage = Self { binary: options.binary.clone(), full: options.full, cluster };
        stage.rbd(&["pool", "init", POOL])?;
        for (image, mib) in IMAGES {
            stage.rbd(&["create", &format!("{POOL}/{image}"), "--size", &format!("{mib}M")])?;
        }
        stage.rbd(&["namespace", "create", &format!("{POOL}/{NAMESPACE}")])?;
        stage.rbd(&["create", &format!("{POOL}/{NAMESPACE}/later"), "--size", "32M"])?;
        stage.rbd(&["snap", "create", &format!("{POOL}/disk@{SNAPSHOT}")])?;
        Ok(stage)
    }

    /// Reports a time with its bar. A missed bar is an error only with `--full`.
    fn bar(&self, name: &str, time: Duration, bar: Duration) -> Result<()> {
        let met = time < bar;
        crate::check::run::figure(
            "rbd",
            name,
            &format!("{:.2} s", time.as_secs_f64()),
            &format!("{:.2} s", bar.as_secs_f64()),
            met,
        );
        ensure!(met || !self.full, "{name}: {time:?} instead of {bar:?}");
        Ok(())
    }

    fn folder(&self) -> &Path {
        self.cluster.folder()
    }

    /// Runs Ceph's own client for images, `rbd`, with these arguments. Returns its output.
    fn rbd(&self, arguments: &[&str]) -> Result<String> {
        self.cluster.rbd(arguments)
    }

    fn socket(&self, name: &str) -> String {
        self.folder().join(format!("{name}.sock")).display().to_string()
    }

    fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket("serve"))
    }

    fn connect(&self, export: &str) -> Result<Client> {
        Client::connect(&self.socket("serve"), export, PATIENCE)
    }

    fn config(&self, name: &str, images: &[(&str, u32)]) -> Result<PathBuf> {
        let conf = servers::quote(&self.cluster.conf());
        let data = servers::quote(&self.folder().join(format!("{name}-data")));
        let mut text = format!(
            "[server]\nlisten = []\nstatus = \"off\"\ndata_dir = {data}\nunix = [{:?}]\ndrain_timeout = \"{DRAIN_S}s\"\n\
             [volumes.{OTHER}]\nbackend = \"memory\"\nsize = \"1MiB\"\n",
            self.socket(name)
        );
        let mut volume = |export: &str, image: &str| {
            text += &format!("[volumes.{export}]\nbackend = \"rbd\"\nrbd = \"{POOL}/{image}\"\nceph_conf = {conf}\n");
        };
        for (image, _) in images {
            volume(image, image);
        }
        if !images.is_empty() {
            volume(SNAPSHOT, &format!("disk@{SNAPSHOT}"));
        }
        let path = self.folder().join(format!("{name}.toml"));
        std::fs::write(&path, text)?;
        Ok(path)
    }

    fn serve(&self) -> Result<Running> {
        let begun = Instant::now();
        let mut command = servers::serve(&self.binary, self.config("serve", &IMAGES)?);
        let reach = || servers::reach(&self.socket("serve"), OTHER);
        let server = servers::start_and_reach(self.folder(), "serve", &mut command, reach)?;
        println!("lab: it serves after {:.1} s", begun.elapsed().as_secs_f64());
        Ok(server)
    }

    fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder().join(format!("{name}.log"))).unwrap_or_default()
    }

    fn fio(&self) -> Result<String> {
        let uri = self.uri("disk");
        for (pattern, sizes) in [("randwrite", "--bsrange=512-64k"), ("write", "--bs=1m")] {
            tool(
                "fio",
                &[
                    "--name=verify",
                    "--ioengine=nbd",
                    &format!("--uri={uri}"),
                    &format!("--rw={pattern}"),
                    sizes,
                    "--size=32m",
                    "--iodepth=16",
                    "--fsync=64",
                    "--verify=crc32c",
                    "--do_verify=1",
                    "--verify_state_save=0",
                    "--minimal",
                ],
            )?;
        }
        Ok("random 512 B to 64 KiB and sequential 1 MiB, 16 at a time, with flushes".to_owned())
    }

    /// Checks that Ceph's own client reads the data that were written through the server.
    fn copy(&self) -> Result<String> {
        let (file, out, uri) = (self.folder().join("data"), self.folder().join("exported"), self.uri("disk"));
        let (file, out) = (file.display().to_string(), out.display().to_string());
        tool("dd", &["if=/dev/urandom", &format!("of={file}"), "bs=1M", "count=48", "status=none"])?;
        // Holes at the end, and a length that is no multiple of anything.
        std::fs::OpenOptions::new().write(true).open(&file)?.set_len(256 * MIB)?;
        tool("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", &file, &uri])?;
        tool("qemu-img", &["compare", "-f", "raw", "-F", "raw", &file, &uri])?;
        self.rbd(&["export", "--no-progress", &format!("{POOL}/disk"), &out])?;
        tool("qemu-img", &["compare", "-f", "raw", "-F", "raw", &file, &out])?;
        let map = tool("qemu-img", &["map", "--output=json", "-f", "raw", &uri])?;
        let map: Vec<serde_json::Value> = serde_json::from_str(&map)?;
        let data: u64 =
            map.iter().filter(|extent| extent["data"] == true).filter_map(|extent| extent["length"].as_u64()).sum();
        ensure!((48 * MIB..=56 * MIB).contains(&data), "{} MiB of data are shown where there are 48", data / MIB);
        Ok(format!("48 MiB of 256, {} MiB shown as data", data / MIB))
    }

    fn zeros(&self) -> Result<String> {
        let uri = self.uri("disk");
        let io = |commands: &[&str]| {
            let mut words = vec!["-f", "raw"];
            words.extend(commands.iter().flat_map(|command| ["-c", command]));
            words.push(&uri);
            let said = tool("qemu-io", &words)?;
            ensure!(!said.contains("Pattern verification failed") && !said.contains("error"), "{said}");
            Ok(said)
        };
        // Objects have 4 MiB. Zeros with and without holes, at odd places, across objects; made durable, too.
        io(&["write -P 0xaa 0 24M", "write -z 1M 1M", "write -z -u 2050k 699k", "write -z -u -f 3583k 6M", "flush"])?;
        io(&["read -P 0 1M 1M", "read -P 0 2050k 699k", "read -P 0 3583k 6M"])?;
        io(&["read -P 0xaa 0 1M", "read -P 0xaa 2M 2k", "read -P 0xaa 2749k 834k", "read -P 0xaa 9727k 1M"])?;
        io(&["discard 12M 4M", "read -P 0 12M 4M", "read -P 0xaa 11M 1M", "read -P 0xaa 16M 1M"])?;
        io(&["write -f -P 0xbb 12289k 33k", "read -P 0xbb 12289k 33k", "read -P 0 12M 1k"])?;
        Ok("with holes and without, within objects and across".to_owned())
    }

    /// Runs the differential test of the server's own tests on images of this cluster.
    fn differential(&self) -> Result<String> {
        let images = ["io-uring", "epoll"].map(|name| format!("{POOL}/differential-{name}"));
        for image in &images {
            self.rbd(&["create", image, "--size", "2M"])?;
        }
        let mut test = match std::env::var_os(build::SERVER_TESTS) {
            Some(program) => Command::new(program),
            None => {
                let mut cargo = build::cargo();
                cargo.args(["test", "--package", "evenkeel-server", "--test", "all", "--"]);
                cargo
            }
        };
        test.args(["--ignored", "--exact", DIFFERENTIAL, "--nocapture"])
            .env("EVENKEEL_CEPH_CONF", self.cluster.conf())
            .env("EVENKEEL_RBD_IMAGES", images.join(" "));
        let (status, said) = process::transcript(&mut test, DIFFERENTIAL_LIMIT)?;
        ensure!(status.success() && said.contains("as the model"), "{status}: {said}");
        Ok("both engines, 100 rounds each".to_owned())
    }

    fn snapshot(&self) -> Result<String> {
        let mut client = self.connect(SNAPSHOT)?;
        let mut data = vec![1; 1 << 20];
        client.read(0, &mut data)?;
        ensure!(data.iter().all(|&byte| byte == 0), "there is data that was written after it was made");
        let refused = write(&mut client, 0)?;
        ensure!(refused == Some(Refused(1)), "a write is answered {refused:?}");
        Ok(String::new())
    }

    /// Checks an image in a namespace, with librbd's cache.
    fn create_and_remove(&self, server: &Running) -> Result<String> {
        let (image, uri) = (format!("{POOL}/{NAMESPACE}/later"), self.uri("later"));
        let conf = self.cluster.conf().display().to_string();
        let control = |arguments: &[&str]| {
            let mut command = process::program("timeout");
            command.args(["-k", "5", TOOL_LIMIT_S]).arg(&self.binary).args(["volume"]).args(arguments);
            process::output(command.arg("--control").arg(self.folder().join("serve-data/control.sock")))
        };
        let threads = || -> Result<u64> {
            let status = std::fs::read_to_string(format!("/proc/{}/status", server.id()))?;
            let line = status.lines().find_map(|line| line.strip_prefix("Threads:"));
            Ok(line.context("the kernel counts no threads")?.trim().parse()?)
        };
        let before = threads()?;
        let user = ["--ceph-conf", &conf, "--ceph-user", "admin", "--cache", "buffered"];
        control(&[&["create", "later", "--backend", "rbd", "--rbd", &image][..], &user[..]].concat())?;
        let more = threads()? - before;
        let io = ["write -P 0xcc 0 8M", "write -z 1k 3k", "write -f -P 0xdd 4M 4k", "flush"];
        let back = ["read -P 0xcc 0 1k", "read -P 0 1k 3k", "read -P 0xdd 4M 4k", "read -P 0xcc 5M 3M"];
        let words: Vec<&str> = io.iter().chain(&back).flat_map(|command| ["-c", command]).collect();
        let said = tool("qemu-io", &[&["-f", "raw"][..], &words[..], &[&uri]].concat())?;
        ensure!(!said.contains("Pattern verification failed") && !said.contains("error"), "{said}");
        // Past the cache: what was flushed is in the cluster.
        let out = self.folder().join("later").display().to_string();
        self.rbd(&["export", "--no-progress", &image, &out])?;
        tool("qemu-img", &["compare", "-f", "raw", "-F", "raw", &out, &uri])?;
        control(&["remove", "later"])?;
        let locks = self.rbd(&["lock", "ls", &image])?;
        ensure!(locks.trim().is_empty(), "there is still a lock: {locks}");
        Ok(format!("in a namespace, cached; {more} threads more than before"))
    }

    fn second_server(&self) -> Result<String> {
        let begun = Instant::now();
        let mut command = process::program("timeout");
        command.args(["-k", "5", TOOL_LIMIT_S]).arg(&self.binary).args(["serve", "--config"]);
        let output = command.arg(self.config("second", &IMAGES)?).stdin(Stdio::null()).output()?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        ensure!(output.status.code() == Some(1) && said.contains("it is locked by"), "{}: {said}", output.status);
        Ok(format!("after {:.1} s: {said}", begun.elapsed().as_secs_f64()))
    }

    fn wait_for_size(&self, export: &str, mib: u64) -> Result<Duration> {
        process::until(&format!("{mib} MiB for clients"), [PATIENCE, Duration::from_millis(20)], || {
            Ok(self.connect(export)?.size == mib * MIB)
        })
    }

    fn resize(&self) -> Result<String> {
        let image = format!("{POOL}/disk");
        self.rbd(&["resize", "--no-progress", &image, "--size", "320M"])?;
        let grown = self.wait_for_size("disk", 320)?;
        let mut old = self.connect("disk")?;
        ensure!(write(&mut old, 300 * MIB)?.is_none(), "the new part cannot be written");
        self.rbd(&["resize", "--no-progress", &image, "--size", "128M", "--allow-shrink"])?;
        let shrunk = self.wait_for_size("disk", 128)?;
        let refused = write(&mut old, 300 * MIB)?;
        ensure!(refused == Some(Refused(ENOSPC)), "a write beyond the end is answered {refused:?}");
        let mut data = [0; 4096];
        let refused = old.read(200 * MIB, &mut data).err().and_then(|e| e.downcast_ref::<Refused>().copied());
        ensure!(refused == Some(Refused(EINVAL)), "a read beyond the end is answered {refused:?}");
        // Neither that connection nor another one is hurt.
        ensure!(write(&mut old, 127 * MIB)?.is_none(), "the part that is left cannot be written");
        old.read(127 * MIB, &mut data)?;
        self.connect("killed")?.read(0, &mut data)?;
        let ms = |time: Duration| time.as_millis();
        Ok(format!("noticed within {} ms and {} ms of rbd's end", ms(grown), ms(shrunk)))
    }

    /// Stops the cluster by `stop` and continues it by `resume`. Checks that writes to images wait in between and end afterwards,
    /// and that other volumes are served in between.
    fn waits(
        &mut self,
        stop: impl FnOnce(&mut Self) -> Result<()>,
        resume: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<String> {
        let mut other = self.connect(OTHER)?;
        let writer = Writer::start(self.connect("paused")?);
        stop(self)?;
        // The server hears of a pause by and by.
        writer.until_it_waits()?;
        let until = Instant::now() + PAUSE;
        let (mut slowest, mut data) = (Duration::ZERO, [0; 4096]);
        let stalled = longest_stall(until);
        while Instant::now() < until {
            let begun = Instant::now();
            other.read(0, &mut data)?;
            slowest = slowest.max(begun.elapsed());
            thread::sleep(BETWEEN);
        }
        let stalled = stalled.join().unwrap_or_default();
        let resumed = Instant::now();
        resume(self)?;
        let longest = writer.finish()?;
        ensure!(longest >= PAUSE, "no write took longer than {longest:?} of {PAUSE:?}");
        self.bar("a_volume_in_memory_meanwhile", slowest, stalled + OTHER_MOST)?;
        let ended = resumed.elapsed().as_secs_f64();
        Ok(format!(
            "a write took {:.1} s, until {ended:.1} s after the end was asked for; a volume in memory at most {:.0} ms meanwhile",
            longest.as_secs_f64(),
            slowest.as_secs_f64() * 1e3
        ))
    }

    fn pause(&mut self) -> Result<String> {
        let tell = |what| move |stage: &mut Self| stage.cluster.ceph(&["osd", what]).map(drop);
        self.waits(tell("pause"), tell("unpause"))
    }

    fn osd_dies(&mut self) -> Result<String> {
        let kill = |stage: &mut Self| {
            stage.cluster.kill_osd(0);
            Ok(())
        };
        self.waits(kill, |stage| stage.cluster.start_osd(0))
    }

    fn kill_under_writes(&self, server: Running) -> Result<String> {
        let killer = || {
            thread::sleep(WRITING);
            server.kill();
        };
        let durable = writer::until_killed(&self.socket("serve"), "killed", 7, killer)?;
        let owed = journal::owed(&durable);
        let server = self.serve()?;
        let broken = writer::compare(&mut self.connect("killed")?, &owed)?;
        ensure!(owed.len() > 100, "only {} sectors were acknowledged", owed.len());
        ensure!(broken.is_empty(), "{} of {} sectors: {}", broken.len(), owed.len(), broken[0]);
        server.stop(libc::SIGTERM, PATIENCE)?;
        Ok(format!("{} writes acknowledged as durable, on {} sectors", durable.len(), owed.len()))
    }

    fn stop_paused(&self, server: Running) -> Result<String> {
        let writer = Writer::start(self.connect("paused")?);
        self.cluster.ceph(&["osd", "pause"])?;
        // The client of the cluster hears of it from the answer to its next request; the one after that waits.
        writer.until_it_waits()?;
        let begun = Instant::now();
        let told = self.log("serve").len();
        let ended = server.stop(libc::SIGTERM, PATIENCE);
        let took = begun.elapsed();
        self.cluster.ceph(&["osd", "unpause"])?;
        let status = ended?;
        let said = self.log("serve").split_off(told);
        // Its requests, and then its volumes, are given so long.
        self.bar("the_stop_of_a_paused_cluster", took, Duration::from_secs(2 * DRAIN_S + 5))?;
        ensure!(writer.finish().is_err(), "the last write was answered");
        ensure!(
            status.code() == Some(1) && said.contains("\"paused\"") && said.contains("still in flight"),
            "{status}: {said}"
        );
        ensure!(!said.contains("volume \"disk\""), "an image to which nothing was under way is named: {said}");
        let last = said.trim().lines().last().unwrap_or_default().to_owned();
        Ok(format!("after {:.1} s: {last}", took.as_secs_f64()))
    }

    fn stop(&self, server: Running) -> Result<String> {
        let mut client = self.connect("paused")?;
        ensure!(write(&mut client, 0)?.is_none(), "it cannot be written");
        let begun = Instant::now();
        let status = server.stop(libc::SIGTERM, PATIENCE)?;
        ensure!(status.success(), "it ended with {status}: {}", self.log("serve"));
        let locks = self.rbd(&["lock", "ls", &format!("{POOL}/paused")])?;
        ensure!(locks.trim().is_empty(), "there is still a lock: {locks}");
        Ok(format!("ended after {:.1} s", begun.elapsed().as_secs_f64()))
    }
}

/// A thread that sends one write after another.
struct Writer {
    stop: Arc<AtomicBool>,
    /// Number of writes that have ended so far.
    ended: Arc<AtomicU64>,
    thread: JoinHandle<Result<Duration>>,
}

impl Writer {
    fn start(mut client: Client) -> Self {
        let (stop, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&ended));
        let thread = thread::spawn(move || {
            let mut longest = Duration::ZERO;
            while !stopped.load(Ordering::Relaxed) {
                let begun = Instant::now();
                let refused = write(&mut client, 0)?;
                ensure!(refused.is_none(), "a write was refused: {refused:?}");
                longest = longest.max(begun.elapsed());
                count.fetch_add(1, Ordering::Relaxed);
                thread::sleep(BETWEEN);
            }
            Ok(longest)
        });
        Self { stop, ended, thread }
    }

    /// Waits until no write has ended for [`WAITS`].
    fn until_it_waits(&self) -> Result<()> {
        let (begun, mut since, mut ended) = (Instant::now(), Instant::now(), self.ended.load(Ordering::Relaxed));
        while since.elapsed() < WAITS {
            ensure!(begun.elapsed() < PATIENCE, "writes go on ending");
            thread::sleep(BETWEEN);
            let now = self.ended.load(Ordering::Relaxed);
            if now != ended {
                (since, ended) = (Instant::now(), now);
            }
        }
        Ok(())
    }

    /// Stops the thread after its present write. Returns the duration of the longest write.
    fn finish(self) -> Result<Duration> {
        self.stop.store(true, Ordering::Relaxed);
        process::until("the end of a write", [PATIENCE, Duration::from_millis(5)], || Ok(self.thread.is_finished()))?;
        self.thread.join().map_err(|_| anyhow::anyhow!("the client panicked"))?
    }
}

/// Starts a thread that sleeps until `until` and returns its longest delay, which measures stalls of the machine.
fn longest_stall(until: Instant) -> JoinHandle<Duration> {
    thread::spawn(move || {
        let mut longest = Duration::ZERO;
        while Instant::now() < until {
            let begun = Instant::now();
            thread::sleep(BETWEEN);
            longest = longest.max(begun.elapsed().saturating_sub(BETWEEN));
        }
        longest
    })
}

/// Writes 4 KiB at offset `at`. Returns the server's error if it refused the write.
fn write(client: &mut Client, at: u64) -> Result<Option<Refused>> {
    client.send(client::Command::Write, true, at, at, 4096, &[7; 4096])?;
    match client.receive() {
        Ok(_) => Ok(None),
        Err(error) => error.downcast::<Refused>().map(Some),
    }
}

fn tool(name: &str, arguments: &[&str]) -> Result<String> {
    let mut command = process::program("timeout");
    process::output(command.args(["-k", "5", TOOL_LIMIT_S, name]).args(arguments)).context("a client")
}
