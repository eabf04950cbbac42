//! A host for tests of points for control groups: files in place of the kernel's, and a device whose reads take longer the more
//! a group writes.

use std::io::Write as _;
use std::path::PathBuf;

use evenkeel_control::{Duration, Instant};

use crate::Agent;
use crate::actuator::io_max::Limits;
use crate::config::{Abilities, Config};
use crate::discovery::Roots;
use crate::folder::{Folder, folder};
use crate::journal::Journal;
use crate::loops::record::CgroupState;
use crate::sensor::diskstats::DeviceNumber;

/// Bytes of a write, and of a read.
const WRITE: f64 = 65_536.0;
const READ: f64 = 4_096.0;
/// Writes in circulation, and the time that each takes in the device.
const DEPTH: f64 = 32.0;
const WRITE_S: f64 = 0.020;
/// Time of a read beside as many writes as the device takes, and without writes.
const SLOW_MS: f64 = 40.0;
const FAST_MS: f64 = 1.0;
/// The row of a group without limits.
pub(super) const FREE: &str = "4095:1 rbps=max wbps=max riops=max wiops=max";

/// A folder with files in place of the kernel's, for a device and two control groups, and a journal.
pub(super) struct Host {
    pub(super) root: Folder,
    pub(super) journal: Journal,
    pub(super) ticks: u64,
    /// Reads completed, and their latencies together in ms.
    reads: [f64; 2],
    /// Writes completed.
    writes: f64,
    /// Sum of the times that they took in the device, in ms.
    writes_ms: f64,
    /// Latency of the reads of the last interval in ms.
    pub(super) latency_ms: f64,
    pub(super) writes_now: bool,
    /// Speed of the device as a part of that at first.
    pub(super) speed: f64,
    /// False if the kernel counts no requests of the device, but only those of groups, and how long tasks waited.
    pub(super) counted: bool,
    /// Time in ms in which a task of the reading group waited.
    stalled_ms: f64,
}

impl Host {
    pub(super) fn new(name: &str) -> Self {
        let root = folder(&format!("points-{name}"));
        root.file("cgroup/cgroup.controllers", "cpu io memory\n");
        device(&root, "no-disk", "4095:1");
        let journal = Journal::open(root.join("journal")).unwrap();
        let host = Self {
            root,
            journal,
            ticks: 0,
            reads: [0.0; 2],
            writes: 0.0,
            writes_ms: 0.0,
            latency_ms: FAST_MS,
            writes_now: true,
            speed: 1.0,
            counted: true,
            stalled_ms: 0.0,
        };
        host.group("slice/db");
        host.group("slice/bulk-1");
        host
    }

    pub(super) fn slow_device(&self) {
        self.slow_device_at("4095:2");
    }

    /// As [`Self::slow_device`], with this number of the device.
    pub(super) fn slow_device_at(&self, number: &str) {
        device(&self.root, "no-slow", number);
        for device in ["no-slow", "no-disk"] {
            self.root.file(&format!("sys/class/block/{device}/stat"), "1 0 8 1 1 0 8 1 0 2 2\n");
        }
    }

    pub(super) fn file(&self, group: &str, name: &str) -> PathBuf {
        self.root.join("cgroup").join(group).join(name)
    }

    pub(super) fn group(&self, name: &str) {
        self.root.file(&format!("cgroup/{name}/io.stat"), "");
        self.root.file(&format!("cgroup/{name}/io.max"), "");
    }

    /// Writes the counters of a group as the kernel does: into the file that is there.
    pub(super) fn stat(&self, group: &str, text: &str) {
        let file = std::fs::OpenOptions::new().write(true).truncate(true).open(self.file(group, "io.stat"));
        if let Ok(mut file) = file {
            file.write_all(text.as_bytes()).unwrap();
        }
    }

    pub(super) fn io_max(&self, group: &str) -> String {
        std::fs::read_to_string(self.file(group, "io.max")).unwrap().trim().to_owned()
    }

    pub(super) fn limits(&self, group: &str) -> Limits {
        let number = DeviceNumber { major: 4095, minor: 1 };
        let text = std::fs::read_to_string(self.file(group, "io.max"));
        text.map_or(Limits::NONE, |text| Limits::of(&text, number).unwrap())
    }

    pub(super) fn agent(&self, policy: &str) -> Agent {
        Agent::open(&config(policy), &Roots::under(&self.root), &self.root.join("cgroup")).unwrap()
    }

    pub(super) fn reload(&mut self, agent: &mut Agent, policy: &str) {
        let at = (&Roots::under(&self.root), &*self.root.join("cgroup"));
        let errors = agent.reload(&config(policy), at, Some(&mut self.journal)).unwrap();
        assert!(errors.0.is_empty(), "{errors:?}");
    }

    pub(super) fn now(&self) -> Instant {
        Instant::ZERO + Duration::from_millis(100 * self.ticks)
    }

    /// An interval of 100 ms of all groups, as the limits let them.
    pub(super) fn work(&mut self) -> String {
        let limits = self.limits("slice/bulk-1");
        let most_writes = self.speed * DEPTH / WRITE_S;
        let free = if self.writes_now { most_writes } else { 0.0 };
        let most = |limit: Option<u64>, each: f64| limit.map_or(f64::INFINITY, |limit| limit as f64 / each);
        let rate = free.min(most(limits.wbps, WRITE)).min(most(limits.wiops, 1.0));
        self.latency_ms = (FAST_MS + SLOW_MS * rate / most_writes) / self.speed;
        self.writes += rate * 0.1;
        self.writes_ms += rate * 0.1 * WRITE_S * 1e3 / self.speed;
        // One task reads all the time, where that is what shows the latency.
        let reads_now = if self.counted { 10.0 } else { 100.0 / self.latency_ms };
        self.stalled_ms += 100.0;
        self.reads = [self.reads[0] + reads_now, self.reads[1] + reads_now * self.latency_ms];
        let (writes, reads, ms) = (self.writes as u64, self.reads[0] as u64, self.reads[1] as u64);
        let [read_bytes, written_bytes] = [reads * READ as u64, writes * WRITE as u64];
        self.stat("slice/db", &format!("4095:1 rbytes={read_bytes} wbytes=0 rios={reads} wios=0\n"));
        self.stat("slice/bulk-1", &format!("4095:1 rbytes=0 wbytes={written_bytes} rios=0 wios={writes}\n"));
        let (read_sectors, written_sectors) = (read_bytes / 512, written_bytes / 512);
        if !self.counted {
            let total_us = (1e3 * self.stalled_ms) as u64;
            let pressure = format!("some avg10=90.00 avg60=9.00 avg300=1.00 total={total_us}\n");
            std::fs::write(self.file("slice/db", "io.pressure"), pressure).unwrap();
            return "4095 1 no-disk 0 0 0 0 0 0 0 0 0 0 0\n".to_owned();
        }
        let writes_ms = self.writes_ms as u64;
        format!("4095 1 no-disk {reads} 0 {read_sectors} {ms} {writes} 0 {written_sectors} {writes_ms} 0 0 0\n")
    }

    pub(super) fn run(&mut self, agent: &mut Agent, ticks: u64) {
        for _ in 0..ticks {
            let diskstats = self.work();
            self.ticks += 1;
            let errors = agent.tick(self.now(), diskstats.as_bytes(), Some(&mut self.journal));
            assert!(errors.is_empty(), "{errors:?}");
        }
    }
}

/// Makes a device in sysfs.
fn device(root: &Folder, name: &str, number: &str) {
    root.file(&format!("sys/class/block/{name}/dev"), number);
    root.link(&format!("sys/dev/block/{number}"), &format!("sys/class/block/{name}"));
}

pub(super) fn config(policy: &str) -> Config {
    Config::parse(policy, "test", Abilities { tracepoints: false }).unwrap()
}

/// The state of the first point for control groups.
pub(super) fn state(agent: &Agent) -> CgroupState {
    agent.state().cgroups().next().unwrap().1.clone()
}
