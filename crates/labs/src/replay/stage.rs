//! Servers with a load that is recorded, and the commands that learn and predict.

use std::fmt;
use std::fmt::Write as _;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{LOADS, Setting, TENANTS, Tenants, recorded};
use crate::base::process::{self, Running};
use crate::base::scratch::make_full_file;
use crate::base::servers;

/// Parameters of the emulated device, as they are configured and as `evenkeel replay` reads them. Latencies are far above the
/// time in which a busy machine wakes a thread, and the bulk writer alone keeps the device busy.
const DEVICE: &str =
    "iops = 4000\nbandwidth = \"60MB\"\nread_latency = \"2ms\"\nwrite_latency = \"2ms\"\ncommit_latency = \"2ms\"\n";
/// Size of each volume.
pub(super) const VOLUME_BYTES: u64 = 64 << 20;
/// Name of the volume group of the virtual machine, with a volume for each tenant.
pub(super) const GROUP: &str = "replay";
/// Name of the Ceph cluster's pool, with an image for each tenant.
pub(super) const POOL: &str = "rbd";
/// Seed of the load: the same requests in each run.
const SEED: &str = "1";
/// Longest wait for a process or a state: far above any wait on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time limit of a load, of a fit or of a replay.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// The device below the volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Device {
    /// A modelled device.
    Emulated,
    /// Files on the disk.
    File,
    /// Logical volumes on a paced disk of a virtual machine.
    Disk,
    /// Images of a Ceph cluster whose OSD has a paced device.
    Rbd,
}

impl Device {
    pub(super) const ALL: [Self; 4] = [Self::Emulated, Self::File, Self::Disk, Self::Rbd];
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Emulated => "emulated",
            Self::File => "file",
            Self::Disk => "disk",
            Self::Rbd => "rbd",
        })
    }
}

/// The number of requests of a run.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work<'a> {
    /// The requests of a fixed time.
    Recorded,
    /// As many of each tenant as an earlier run sent.
    Again(&'a Tenants),
}

/// The result of `evenkeel fit`.
#[derive(Debug)]
pub(super) enum Fitted {
    /// The file with the device.
    Device(PathBuf),
    /// The reason for which the recording does not show the device.
    Refused(String),
}

/// The files of the lab, and the programs.
pub(super) struct Stage<'a> {
    folder: &'a Path,
    binary: &'a Path,
    /// Length of the recording, in seconds.
    seconds: u64,
    /// Configuration file of the Ceph cluster; empty without a cluster.
    ceph_conf: PathBuf,
}

impl<'a> Stage<'a> {
    pub(super) fn new(folder: &'a Path, binary: &'a Path, seconds: u64) -> Self {
        Self { folder, binary, seconds, ceph_conf: PathBuf::new() }
    }

    /// The same beside a Ceph cluster with this configuration file.
    pub(super) fn on_cluster(self, ceph_conf: PathBuf) -> Self {
        Self { ceph_conf, ..self }
    }

    /// Starts a server of its own for a run, sends its load, and records all of it. Returns the file with the recording. `name`
    /// names the folder of the run.
    ///
    /// # Errors
    /// If a process fails, or a request was not recorded.
    pub(super) fn run(&self, device: Device, setting: &Setting, name: &str, work: Work<'_>) -> Result<PathBuf> {
        let folder = self.folder.join(name);
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        if device == Device::File {
            self.make_images()?;
        }
        let (socket, config, jobs) = (folder.join("nbd.sock"), folder.join("evenkeel.toml"), folder.join("jobs.toml"));
        std::fs::write(&config, self.config(device, setting, &folder)?)?;
        std::fs::write(&jobs, self.jobs(setting, &socket, work)?)?;
        let address = socket.display().to_string();
        let mut serve = servers::serve(self.binary, &config);
        let reach = || servers::reach(&address, TENANTS[0]);
        let server = servers::start_and_reach(&folder, "serve", &mut serve, reach)?;
        let recording = folder.join("load.rec");
        let recorder = self.record(&folder, &recording)?;
        output(self.evenkeel("load").args(["--json", "--seed", SEED, "--jobs"]).arg(&jobs))?;
        let figures = json(self.evenkeel("record").args(["--stop", "--json", "--data-dir"]).arg(data(&folder)))?;
        let ended = recorder.wait(PATIENCE)?;
        ensure!(ended.success() && figures["lost"] == 0, "the recording is not whole ({ended}): {figures}");
        if device == Device::Rbd {
            // The next server would wait for the locks of a killed one.
            server.stop(libc::SIGTERM, PATIENCE)?;
        }
        Ok(recording)
    }

    /// Begins a recording.
    fn record(&self, folder: &Path, file: &Path) -> Result<Running> {
        let mut command = self.evenkeel("record");
        command.args(["--for", "1h", "--data-dir"]).arg(data(folder)).arg(file);
        let mut recorder = process::daemon(folder, "record", &mut command)?;
        process::until("a recording", [PATIENCE, Duration::from_millis(10)], || {
            ensure!(recorder.ended()?.is_none(), "evenkeel record has ended; its log is in {}", folder.display());
            // The server makes the file when it begins.
            Ok(file.exists())
        })?;
        Ok(recorder)
    }

    fn config(&self, device: Device, setting: &Setting, folder: &Path) -> Result<String> {
        let mut text = format!(
            "[server]\nlisten = []\nunix = [{:?}]\nstatus = \"off\"\ndata_dir = {:?}\n{}",
            folder.join("nbd.sock"),
            data(folder),
            setting.policy(),
        );
        if device == Device::Emulated {
            write!(text, "[pools.main.emulate]\n{DEVICE}")?;
        }
        for tenant in TENANTS {
            let storage = match device {
                Device::Emulated => format!("size = {VOLUME_BYTES}\nbackend = \"emulate\""),
                Device::File => format!("size = {VOLUME_BYTES}\npath = {:?}", self.image(tenant)),
                // It has its size. Without the backend a missing volume would be made as a file, in memory.
                Device::Disk => format!("backend = \"block\"\npath = {:?}", volume(tenant)),
                Device::Rbd => {
                    let (image, conf) = (image(tenant), &self.ceph_conf);
                    format!("backend = \"rbd\"\nrbd = {image:?}\nceph_conf = {conf:?}")
                }
            };
            write!(text, "[volumes.{tenant}]\npool = \"main\"\ntenant = \"{tenant}\"\n{storage}\n")?;
        }
        Ok(text)
    }

    fn jobs(&self, setting: &Setting, socket: &Path, work: Work<'_>) -> Result<String> {
        let (mut text, socket) = (String::new(), socket.display());
        for (tenant, load) in TENANTS.into_iter().zip(LOADS) {
            if setting.absent == Some(tenant) {
                continue;
            }
            let length = match work {
                Work::Recorded => format!("duration = \"{}s\"", self.seconds),
                Work::Again(sent) => {
                    let sent = sent.get(tenant).with_context(|| format!("the recording has no {tenant}"))?;
                    format!("requests = {}", sent.requests)
                }
            };
            let uri = format!("nbd+unix:///{tenant}?socket={socket}");
            write!(text, "[[job]]\nname = \"{tenant}\"\nuri = {uri:?}\n{load}\n{length}\n")?;
        }
        Ok(text)
    }

    fn image(&self, tenant: &str) -> PathBuf {
        self.folder.join(format!("{tenant}.img"))
    }

    /// Makes the files of the volumes, full of data, unless they exist.
    fn make_images(&self) -> Result<()> {
        let mut missing = TENANTS.map(|tenant| self.image(tenant)).into_iter().filter(|path| !path.exists());
        missing.try_for_each(|path| make_full_file(&path, VOLUME_BYTES >> 20))
    }

    /// The file with the parameters of the emulated device.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn known(&self) -> Result<PathBuf> {
        let path = self.folder.join("known.toml");
        std::fs::write(&path, format!("kind = \"store\"\n{DEVICE}"))?;
        Ok(path)
    }

    /// Learns the device from a recording.
    ///
    /// # Errors
    /// If the command does not end, or panics.
    pub(super) fn fitted(&self, recording: &Path) -> Result<Fitted> {
        let path = self.folder.join("fitted.toml");
        let mut said = String::new();
        let mut command = self.evenkeel("fit");
        command.arg(recording).arg("--output").arg(&path);
        let (status, _) = process::stream(&mut command, LIMIT, |line| {
            println!("lab: fit: {line}");
            said += line.trim();
            said += " ";
        })?;
        ensure!(!said.contains("panicked"), "evenkeel fit: {}", said.trim());
        Ok(if status.success() { Fitted::Device(path) } else { Fitted::Refused(said.trim().to_owned()) })
    }

    /// The figures that `evenkeel replay` predicts for a recorded load under a setting.
    ///
    /// # Errors
    /// If the command fails.
    pub(super) fn predicted(&self, recording: &Path, device: &Path, setting: &Setting) -> Result<Tenants> {
        let (policy, rest) = (self.folder.join("policy.toml"), self.folder.join("rest.rec"));
        std::fs::write(&policy, setting.policy())?;
        let mut command = self.evenkeel("replay");
        match setting.absent {
            None => command.arg(recording),
            Some(tenant) => {
                recorded::without(BufReader::new(File::open(recording)?), File::create(&rest)?, tenant)?;
                command.arg(&rest)
            }
        };
        let compared = json(command.arg("--device").arg(device).arg("--policy").arg(&policy).arg("--json"))?;
        recorded::simulated(&compared["after"]).with_context(|| format!("the replay under {}", setting.name))
    }

    fn evenkeel(&self, subcommand: &str) -> Command {
        let mut command = Command::new(self.binary);
        command.arg(subcommand);
        command
    }
}

/// The data folder of the server of a run.
fn data(folder: &Path) -> PathBuf {
    folder.join("data")
}

/// Runs a command to its end, and returns its standard output.
fn output(command: &mut Command) -> Result<String> {
    let (mut said, name) = (String::new(), process::describe(command));
    let (status, _) = process::stream_output(command, LIMIT, |line| {
        said += line;
        said.push('\n');
    })?;
    ensure!(status.success(), "`{name}` failed ({status}): {}", said.trim());
    Ok(said)
}

/// Path in the virtual machine of the device of a tenant's volume.
pub(super) fn volume(tenant: &str) -> PathBuf {
    Path::new("/dev").join(GROUP).join(tenant)
}

/// The image of a tenant's volume in the Ceph cluster.
pub(super) fn image(tenant: &str) -> String {
    format!("{POOL}/{tenant}")
}

/// Runs a command to its end, and returns the JSON that it prints.
fn json(command: &mut Command) -> Result<Value> {
    let name = process::describe(command);
    serde_json::from_str(&output(command)?).with_context(|| format!("`{name}` printed no JSON"))
}

#[cfg(test)]
mod tests {
    use super::super::SETTINGS;
    use super::*;

    #[test]
    fn the_same_requests_are_sent_again_but_those_of_an_absent_tenant() {
        let stage = Stage::new(Path::new("/f"), Path::new("evenkeel"), 4);
        let socket = Path::new("/f/nbd.sock");
        let first = stage.jobs(&SETTINGS[0], socket, Work::Recorded).unwrap();
        assert_eq!(first.matches("duration = \"4s\"").count(), TENANTS.len());
        assert!(first.contains("uri = \"nbd+unix:///light?socket=/f/nbd.sock\"\n"), "{first}");
        let one = |tenant: &str| (tenant.to_owned(), recorded::Measured { requests: 77, figures: [1.0; 3] });
        let sent: Tenants = TENANTS.into_iter().map(one).collect();
        let removed = SETTINGS.iter().find(|setting| setting.absent == Some("bulk")).unwrap();
        let again = stage.jobs(removed, socket, Work::Again(&sent)).unwrap();
        assert_eq!((again.matches("requests = 77").count(), again.contains("bulk")), (2, false));
        assert!(stage.jobs(&SETTINGS[0], socket, Work::Again(&Tenants::new())).is_err());
    }

    #[test]
    fn a_server_has_a_volume_for_each_tenant() {
        let stage = Stage::new(Path::new("/f"), Path::new("evenkeel"), 4);
        let emulated = stage.config(Device::Emulated, &SETTINGS[0], Path::new("/f/r")).unwrap();
        assert!(emulated.contains("[pools.main.emulate]\niops = 4000\n"), "{emulated}");
        assert!(emulated.contains("data_dir = \"/f/r/data\""), "{emulated}");
        assert_eq!(emulated.matches("backend = \"emulate\"").count(), TENANTS.len());
        let file = stage.config(Device::File, &SETTINGS[0], Path::new("/f/r")).unwrap();
        assert!(file.contains("path = \"/f/bulk.img\"") && !file.contains("emulate"), "{file}");
        let disk = stage.config(Device::Disk, &SETTINGS[0], Path::new("/f/r")).unwrap();
        assert!(disk.contains("backend = \"block\"\npath = \"/dev/replay/bulk\"\n"), "{disk}");
        assert!(!disk.contains("emulate") && !disk.contains("size = ") && file.contains("size = 67108864"), "{disk}");
        let rbd = stage.on_cluster("/c/ceph.conf".into()).config(Device::Rbd, &SETTINGS[0], Path::new("/f/r")).unwrap();
        let volume = "[volumes.bulk]\npool = \"main\"\ntenant = \"bulk\"\n\
                      backend = \"rbd\"\nrbd = \"rbd/bulk\"\nceph_conf = \"/c/ceph.conf\"\n";
        assert!(rbd.contains(volume) && !rbd.contains("size = "), "{rbd}");
    }
}
