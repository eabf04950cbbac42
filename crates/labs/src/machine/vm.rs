//! A virtual machine, seen from the host: boots it, reads its console, cuts its power.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::kernel::{self, Kernel};
use crate::base::process::Running;
use crate::base::scratch::Scratch;

/// Path in the guest of the directory that the lab shares with the host.
pub(crate) const SHARE: &str = "/run/lab";
/// Time limit of a boot: many times its duration on a busy machine of two cores.
const BOOT_LIMIT: Duration = Duration::from_secs(150);
const MODULES: [&str; 8] = ["9pnet_virtio", "9p", "overlay", "virtio_blk", "dm_log_writes", "dm_flakey", "ext4", "nbd"];
/// Kernel modules that are loaded if present, as some kernels have them built in or under another name; ext4 needs this one.
const MODULES_IF_PRESENT: [&str; 1] = ["crc32c_generic"];
/// Line that the script `lab/init` prints when the host's programs can be used in the guest.
const BOOTED: &str = "lab: booted";
/// Start of the line that the script `lab/init` prints with the exit status of the guest's command.
const ENDED: &str = "lab: ended ";

/// The clock of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Time {
    /// Real time, with two processors, which are emulated alternately.
    Real,
    /// Virtual time, which advances with the executed instructions, so that the host's load does not change measurements in the
    /// guest. The machine has one processor.
    Virtual,
}

/// A kind of machine: its clock, and modules besides the common ones: those that it must have, and those that are loaded if
/// present.
pub(crate) struct Kind(Time, &'static [&'static str], &'static [&'static str]);

/// A machine with the common modules.
pub(crate) const PLAIN: Kind = Kind(Time::Real, &[], &[]);
/// A machine with the modules for everything that the agent controls. It runs in real time, by which systemd judges hanging
/// services.
pub(crate) const SERVICES: Kind = Kind(Time::Real, &["veth", "sch_htb", "sch_fq", "sch_ingress", "cls_bpf"], &[]);
/// A machine with a SCSI disk that makes errors, if the kernel has one.
pub(crate) const FAILING: Kind = Kind(Time::Real, &["sd_mod"], &["scsi_debug"]);
/// Modules for cached devices.
const CACHED: [&str; 6] = ["null_blk", "dm_mod", "dm_cache", "dm_cache_smq", "dm_writecache", "bcache"];
/// A machine with the modules for cached devices.
pub(crate) const CACHES: Kind = Kind(Time::Virtual, &CACHED, &[]);
/// A machine with disks of null_blk and the kernel's I/O schedulers.
pub(crate) const LOCAL: Kind = Kind(Time::Virtual, &CACHED, &["bfq", "kyber_iosched"]);
/// A machine with the modules of the kernel's own initiators and targets.
pub(crate) const INITIATORS: Kind = Kind(
    Time::Virtual,
    &["null_blk", "target_core_mod", "target_core_iblock", "tcm_loop", "sd_mod", "nvme_fabrics", "nvmet", "nvme_loop"],
    &[],
);
/// A machine with the modules for networks and iSCSI targets.
pub(crate) const STORAGE_NETWORK: Kind = Kind(
    Time::Virtual,
    &[
        "null_blk",
        "dm_mod",
        "veth",
        "bridge",
        "sch_htb",
        "sch_fq",
        "sch_ingress",
        "cls_bpf",
        "act_police",
        "cls_matchall",
        "cls_u32",
        "target_core_mod",
        "target_core_iblock",
        "iscsi_target_mod",
    ],
    &[],
);

/// Kernel, initial file system and settings, from which machines are booted.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    kernel: Kernel,
    initramfs: PathBuf,
    share: PathBuf,
    time: Time,
    /// True if writes to the guest's root go to the first disk, so that they survive a reboot.
    layer: bool,
    verbose: bool,
    boots: u32,
}

/// A running machine.
pub(crate) struct Guest {
    running: Running,
    lines: Receiver<String>,
    control: PathBuf,
    verbose: bool,
}

impl Machine {
    /// A machine of this kind. Missing files are downloaded into `build`; the guest sees `scratch` as `/run/lab`.
    pub(crate) fn new(kind: Kind, build: &Path, scratch: &Scratch, verbose: bool) -> Result<Self> {
        let Kind(time, further, if_present) = kind;
        let kernel = kernel::prepare(build)?;
        let busybox = kernel::busybox(build)?;
        // Of its own: another lab may be booting from one with other modules.
        let initramfs = scratch.path().join("initramfs");
        kernel.initramfs(
            &busybox,
            &[&MODULES[..], further].concat(),
            &[&MODULES_IF_PRESENT[..], if_present].concat(),
            &initramfs,
        )?;
        println!("lab: guest kernel {}", kernel.release);
        let share = scratch.path().to_owned();
        Ok(Self { kernel, initramfs, share, time, layer: false, verbose, boots: 0 })
    }

    /// A second machine with the same settings and `scratch` as its shared directory, so that both can run at the same time.
    pub(crate) fn another(&self, scratch: &Scratch) -> Self {
        Self { share: scratch.path().to_owned(), boots: 0, ..self.clone() }
    }

    /// A machine that keeps changes of its root on the first disk, an ext4 file system, from one boot to the next.
    pub(crate) fn layered(mut self) -> Self {
        self.layer = true;
        self
    }

    /// Boots the machine with the raw images `disks` as `/dev/vda`, `/dev/vdb`, ..., and runs `script`, which sees the host's
    /// root file system.
    pub(crate) fn boot(&mut self, script: &str, disks: &[PathBuf]) -> Result<Guest> {
        std::fs::write(self.share.join("command"), script)?;
        let started = Instant::now();
        let mut guest = self.start(disks)?;
        let booted = guest.wait_for(BOOT_LIMIT, |line| line.starts_with(BOOTED).then_some(()));
        booted.context("the virtual machine did not boot; see its console with --verbose")?;
        println!("lab: booted in {:.1} s", started.elapsed().as_secs_f64());
        Ok(guest)
    }

    fn start(&mut self, disks: &[PathBuf]) -> Result<Guest> {
        self.boots += 1;
        let control = self.share.join(format!("control-{}", self.boots));
        let mut qemu = Command::new("qemu-system-x86_64");
        // Pure emulation runs everywhere, also inside a virtual machine.
        match self.time {
            // Processors in turn: while they run at once, a kernel that patches its own code panics now and then.
            Time::Real => qemu.args(["-accel", "tcg,thread=single", "-smp", "2", "-m", "2G"]),
            // One instruction counts as 2 ns; when all wait, time jumps to the next timer.
            Time::Virtual => {
                qemu.args(["-accel", "tcg,thread=single", "-smp", "1", "-m", "3G", "-icount", "shift=1,sleep=off"])
            }
        };
        qemu.args(["-cpu", "max"]);
        qemu.args(["-display", "none", "-monitor", "none", "-serial", "stdio", "-no-reboot", "-nic", "none"]);
        qemu.arg("-qmp").arg(format!("unix:{},server=on,wait=off", control.display()));
        qemu.arg("-kernel").arg(&self.kernel.image).arg("-initrd").arg(&self.initramfs);
        let layer = if self.layer { " lab.layer" } else { "" };
        qemu.arg("-append").arg(format!("console=ttyS0 quiet panic=1 mitigations=off nokaslr audit=0{layer}"));
        qemu.args(["-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap"]);
        let share = format!("local,path={},mount_tag=share,security_model=none", self.share.display());
        qemu.arg("-virtfs").arg(share);
        for (number, disk) in disks.iter().enumerate() {
            let drive = format!("if=none,id=disk{number},file={},format=raw,cache=writeback", disk.display());
            // One queue keeps requests in the order in which the guest issued them.
            let device = format!("virtio-blk-pci,drive=disk{number},num-queues=1");
            qemu.arg("-drive").arg(drive).arg("-device").arg(device);
        }
        let mut running = Running::spawn(qemu.stdin(Stdio::null()).stdout(Stdio::piped()))?;
        let console = running.take_stdout()?;
        let (send, lines) = channel();
        let verbose = self.verbose;
        thread::spawn(move || {
            for line in BufReader::new(console).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                if verbose {
                    println!("  | {line}");
                }
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Guest { running, lines, control, verbose })
    }
}

impl Guest {
    /// Reads the console until `wanted` returns a value for a line, at most for `limit`.
    pub(crate) fn wait_for<T>(&mut self, limit: Duration, mut wanted: impl FnMut(&str) -> Option<T>) -> Result<T> {
        let deadline = Instant::now() + limit;
        let mut last = std::collections::VecDeque::new();
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    if let Some(value) = wanted(&line) {
                        return Ok(value);
                    }
                    if let Some(status) = line.strip_prefix(ENDED) {
                        bail!("the guest's command ended early with status {status}{}", self.tail(&last));
                    }
                    last.push_back(line);
                    if last.len() > 12 {
                        last.pop_front();
                    }
                }
                Err(RecvTimeoutError::Timeout) => bail!("nothing within {limit:?}{}", self.tail(&last)),
                Err(RecvTimeoutError::Disconnected) => bail!("the machine stopped{}", self.tail(&last)),
            }
        }
    }

    /// Reads the console until the guest's command has ended, calling `line` with every line. An exit status other than 0 is an
    /// error.
    pub(crate) fn finish(mut self, limit: Duration, mut line: impl FnMut(&str)) -> Result<()> {
        let status = self.wait_for(limit, |text| {
            line(text);
            text.strip_prefix(ENDED).map(str::to_owned)
        })?;
        if status != "0" {
            bail!("the guest's command failed with status {status}");
        }
        Ok(())
    }

    /// Cuts the power: freezes the processors at once, waits until the emulated disks have finished accepted requests, and kills
    /// the machine. No process in the guest can flush any data.
    pub(crate) fn cut_power(self) -> Result<()> {
        let mut control = UnixStream::connect(&self.control).context("no control connection to qemu")?;
        control.set_read_timeout(Some(Duration::from_secs(60)))?;
        let mut replies = BufReader::new(control.try_clone()?);
        read_reply(&mut replies)?;
        for command in ["qmp_capabilities", "stop"] {
            writeln!(control, r#"{{"execute":"{command}"}}"#)?;
            while !read_reply(&mut replies)?.contains(r#""return""#) {}
        }
        self.running.kill();
        Ok(())
    }

    fn tail(&self, last: &std::collections::VecDeque<String>) -> String {
        // With --verbose the console has been shown already.
        let lines = last.iter().filter(|l| !self.verbose && !l.is_empty());
        lines.fold(String::new(), |text, line| text + "\n    | " + line)
    }
}

fn read_reply(from: &mut BufReader<impl Read>) -> Result<String> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        bail!("qemu closed its control connection");
    }
    Ok(line)
}

/// Programs that are needed to make and run a machine.
pub(crate) const PROGRAMS: [&str; 13] = [
    "qemu-system-x86_64",
    "dpkg",
    "apt-get",
    "xz",
    "zstd",
    "dmsetup",
    "mkfs.ext4",
    "nbd-client",
    "qemu-nbd",
    "nbdkit",
    "ip",
    "tc",
    "iscsi-perf",
];

/// The reason why no virtual machine can run on this host; `None` if one can run.
pub(crate) fn missing() -> Option<String> {
    let here = std::env::consts::ARCH;
    (here != "x86_64").then(|| format!("the labs know x86_64 guests only, this machine is {here}"))
}
