//! Preflight: which features of the kernel the agent can use, which are missing, and what is lost without them.
//!
//! [`Evidence::read`] reads the facts, [`judge`] draws conclusions and is pure. Nothing is loaded, set or tried out.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use crate::discovery::roots::{self, Roots};
use crate::sensor::tracepoints::EVENTS;

pub mod arrays;
mod lacks;
pub mod local;
pub mod osd;
mod parts;

pub use evenkeel_policy::effective::{Finding, Preflight, Presence};
pub use lacks::lacks;
pub use parts::judge;

/// Facts about the kernel and this process, from which [`judge`] draws its conclusions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Those symbols of the running kernel and its loaded modules by which a part of the kernel is recognised.
    pub symbols: BTreeSet<String>,
    /// Names of kernel modules that are loaded, or built in and have parameters.
    pub loaded: BTreeSet<String>,
    /// Names of kernel modules that are installed for the running kernel.
    pub installed: BTreeSet<String>,
    /// True if `/proc/diskstats` can be read.
    pub diskstats: bool,
    /// True if configfs is mounted at `/sys/kernel/config`.
    pub configfs: bool,
    /// True if this process can read the formats of the block layer's tracepoints.
    pub tracepoints: bool,
    /// Effective capabilities of this process, as a bit mask by capability number; `None` if they cannot be read.
    pub capabilities: Option<u64>,
    /// The largest receive window of TCP sockets in bytes, the third number of `net.ipv4.tcp_rmem`; `None` if it cannot be
    /// read.
    pub tcp_rmem_max: Option<u64>,
    /// The setting `net.ipv4.tcp_early_retrans`; `None` if it cannot be read.
    pub tcp_early_retrans: Option<u64>,
    /// Names of block devices whose statistics are switched off (`queue/iostats` is 0).
    pub uncounted_devices: Vec<String>,
    /// True if cgroup v2 is mounted at `/sys/fs/cgroup`, with the io controller.
    pub io_controller: bool,
}

impl Evidence {
    /// Reads the facts below `roots` and in `modules`, the folder of the running kernel's modules. Facts that cannot be read
    /// count as absent.
    pub fn read(roots: &Roots, modules: &Path) -> Self {
        let sysctl = |name: &str| roots::value(&roots.proc.join("sys/net/ipv4").join(name)).ok().flatten();
        let tracing = ["kernel/tracing", "kernel/debug/tracing"].map(|folder| roots.sys.join(folder));
        let silent = |device: &String| {
            let path = roots.sys.join("block").join(device).join("queue/iostats");
            roots::value(&path).ok().flatten().as_deref() == Some("0")
        };
        let devices = roots::names(&roots.sys.join("block")).unwrap_or_default();
        let status = roots::text(&roots.proc.join("self/status")).unwrap_or_default();
        Self {
            symbols: File::open(roots.proc.join("kallsyms"))
                .map_or_else(|_| BTreeSet::new(), |file| symbols(BufReader::new(file))),
            loaded: roots::names(&roots.sys.join("module")).unwrap_or_default().into_iter().collect(),
            installed: roots::text(&modules.join("modules.dep"))
                .map_or_else(|_| BTreeSet::new(), |text| installed(&text)),
            diskstats: roots::text(&roots.proc.join("diskstats")).is_ok(),
            configfs: roots.configfs().is_dir(),
            tracepoints: tracing.iter().any(|folder| {
                EVENTS.iter().all(|event| folder.join("events/block").join(event).join("format").is_file())
            }),
            capabilities: capabilities(&status),
            tcp_rmem_max: sysctl("tcp_rmem").and_then(|text| text.split_whitespace().nth(2)?.parse().ok()),
            tcp_early_retrans: sysctl("tcp_early_retrans").and_then(|text| text.parse().ok()),
            uncounted_devices: devices.into_iter().filter(silent).collect(),
            io_controller: roots::text(&roots.sys.join("fs/cgroup/cgroup.controllers"))
                .is_ok_and(|listed| listed.split_ascii_whitespace().any(|name| name == "io")),
        }
    }
}

/// The symbols of [`parts::SYMBOLS`] that occur in `text`, the content of `/proc/kallsyms`. Reads line by line, because the
/// kernel has many symbols.
fn symbols(mut text: impl BufRead) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut line = Vec::new();
    while text.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        let name = line.split(u8::is_ascii_whitespace).nth(2).and_then(|name| std::str::from_utf8(name).ok());
        if let Some(symbol) = name.filter(|name| parts::SYMBOLS.contains(name)) {
            found.insert(symbol.to_owned());
        }
        line.clear();
    }
    found
}

/// Names of modules in `text`, the content of `modules.dep`: each line begins with a path that ends in `NAME.ko`, perhaps
/// with a compression's suffix.
fn installed(text: &str) -> BTreeSet<String> {
    let names = text.lines().filter_map(|line| {
        let file = line.split(':').next()?.rsplit('/').next()?;
        let (name, _) = file.split_once(".ko")?;
        Some(name.replace('-', "_"))
    });
    names.collect()
}

/// The bit mask `CapEff` in `status`, the content of `/proc/self/status`.
fn capabilities(status: &str) -> Option<u64> {
    let bits = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(bits.trim(), 16).ok()
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
