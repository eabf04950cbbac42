//! The stage of the iSCSI lab inside the virtual machine: a slow device under LVM, a network of initiator hosts, and the
//! kernel's iSCSI target.
//!
//! ```text
//!  b1 ─veth─┐          ┌ target t1 ─ vg1/lv1 ┐
//!  b2 ─veth─┤ br0 ──── ┤ target t2 ─ vg1/lv2 ├─ slow (one request at a time, 3 ms each)
//!  ...      ┘  ▲       └ ...                 ┘
//!              └ packet delay
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::base::process;
use crate::check::figures::Figures;
use crate::machine::devices::{CONFIG, lvm, make_disk};
use crate::machine::guest::{self, make_dir, put, tool};

/// Number of initiator hosts.
pub(super) const HOSTS: usize = 4;
/// Number of logical volumes: one for each host behind LIO, and one for each host behind the other servers.
const VOLUMES: usize = 2 * HOSTS;
/// Service time of the slow device, in nanoseconds. The device serves one request at a time.
pub(super) const SERVICE_NS: u32 = 3_000_000;
/// Receive window of the iSCSI target (`tcp_rmem`: lowest, default, highest bytes). With a larger highest value, delayed
/// acknowledgements slow down no client, because responses carry acknowledgements, too.
const TARGET_WINDOW: &str = "4096 16384 16384";
/// The kernel's default receive window (`tcp_rmem`).
pub(super) const UNCAPPED: &str = "4096 131072 6291456";
/// Receive window of the initiators (`tcp_rmem`).
const INITIATOR_WINDOW: &str = "4096 65536 65536";
/// Name of the volume group.
pub(super) const GROUP: &str = "vg1";
/// Number of the iSCSI target whose device has no service time, so that only the processor limits throughput.
pub(super) const FAST: usize = HOSTS + 1;
pub(super) const LIO_PORT: u16 = 3260;
pub(super) const TGT_PORT: u16 = 3261;
/// Ports of `evenkeel serve`: for the reader's volume, and for the writers' volume.
pub(super) const NBD_PORTS: [u16; 2] = [10811, 10812];

fn ip(arguments: &str) -> Result<()> {
    tool("ip", &arguments.split(' ').collect::<Vec<_>>()).map(|_| ())
}

/// A server of the hosts' volumes. Its spelling is its name in the output of `guard discover`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Server {
    /// LIO, the kernel's iSCSI target.
    Lio,
    /// tgt, an iSCSI target in user space.
    Tgt,
    /// `evenkeel serve`: host 1 has a volume of its own, the other hosts share one.
    Evenkeel,
}

impl Server {
    /// Number of the logical volume that a host uses.
    pub(super) fn volume(self, host: usize) -> usize {
        match self {
            Self::Lio => host,
            Self::Tgt => HOSTS + host,
            Self::Evenkeel => HOSTS + host.min(2),
        }
    }

    /// The kernel's name of the device of the volume that a host uses. Device mapper numbers devices in the order in which they
    /// are made.
    pub(super) fn device(self, host: usize) -> String {
        format!("dm-{}", self.volume(host) - 1)
    }

    fn portal(self, host: usize) -> String {
        let port = match self {
            Self::Lio => LIO_PORT,
            Self::Tgt => TGT_PORT,
            Self::Evenkeel => NBD_PORTS[host.min(2) - 1],
        };
        format!("10.0.0.1:{port}")
    }
}

/// Path of the logical volume with this number.
pub(super) fn volume_path(number: usize) -> PathBuf {
    format!("/dev/{GROUP}/lv{number}").into()
}

pub(super) fn target(host: usize) -> String {
    format!("iqn.2026-01.lab:t{host}")
}

pub(super) fn initiator(host: usize, worker: usize) -> String {
    format!("iqn.2026-01.lab:b{host}.{worker}")
}

pub(super) fn address(host: usize) -> String {
    format!("10.0.0.{}", 10 + host)
}

/// Builds the slow device, the volumes, the network and the kernel's iSCSI target.
pub(super) fn build() -> Result<()> {
    let service = SERVICE_NS.to_string();
    let slow = [("blocksize", "512"), ("irqmode", "2"), ("completion_nsec", &*service), ("hw_queue_depth", "1")];
    for (name, settings) in [("slow", &slow[..]), ("fast", &[("blocksize", "512"), ("hw_queue_depth", "64")])] {
        make_disk(name, 1024, settings)?;
        put(format!("/sys/block/{name}/queue/scheduler"), "none")?;
    }
    make_volumes()?;
    // The target's side first: its window counts when the portal is made.
    for (key, value) in [("tcp_rmem", TARGET_WINDOW), ("tcp_early_retrans", "0")] {
        put(format!("/proc/sys/net/ipv4/{key}"), value)?;
    }
    make_network()?;
    for host in 1..=HOSTS {
        export(host, host, &volume_path(host))?;
    }
    export(FAST, 1, Path::new("/dev/fast"))
}

/// Copies all programs that the steps run from the host into memory.
pub(super) fn keep_in_memory(binary: &Path) -> Result<()> {
    let names = ["ip", "tc", "tgtd", "tgtadm", "sh", "cat", "bash", "grep", "sort", "timeout"];
    let mut files: Vec<PathBuf> = names.into_iter().filter_map(process::find_program).collect();
    files.push(binary.to_owned());
    let library = tool("ldconfig", &["-p"])?;
    let library = library.lines().find(|line| line.trim_start().starts_with("libiscsi.so.7"));
    files.extend(library.and_then(|line| line.split(" => ").nth(1)).map(PathBuf::from));
    guest::keep_in_memory(files)
}

/// Makes the volume group with all its volumes.
fn make_volumes() -> Result<()> {
    let mut commands = format!("vgcreate {GROUP} /dev/slow\n");
    for number in 1..=VOLUMES {
        commands += &format!("lvcreate -y -Wn -Zn -L 64m -n lv{number} {GROUP}\n");
    }
    lvm(&["slow"], &commands, &(1..=VOLUMES).map(volume_path).collect::<Vec<_>>())
}

fn make_network() -> Result<()> {
    ip("link add br0 type bridge forward_delay 0 stp_state 0")?;
    ip("addr add 10.0.0.1/24 dev br0")?;
    ip("link set br0 up")?;
    for n in 1..=HOSTS {
        ip(&format!("netns add b{n}"))?;
        ip(&format!("link add v{n} type veth peer name eth0 netns b{n}"))?;
        ip(&format!("link set v{n} master br0 up"))?;
        ip(&format!("-n b{n} addr add {}/24 dev eth0", address(n)))?;
        ip(&format!("-n b{n} link set lo up"))?;
        ip(&format!("-n b{n} link set eth0 up"))?;
        let settings = format!(
            "echo '{INITIATOR_WINDOW}' > /proc/sys/net/ipv4/tcp_rmem; echo 0 > /proc/sys/net/ipv4/tcp_early_retrans"
        );
        tool("ip", &["netns", "exec", &format!("b{n}"), "sh", "-c", &settings])?;
    }
    Ok(())
}

/// Makes LIO's target number `number` with one volume, for the initiators of one host.
fn export(number: usize, host: usize, volume: &Path) -> Result<()> {
    let store = format!("{CONFIG}/target/core/iblock_0/lun{number}");
    make_dir(&store)?;
    put(format!("{store}/control"), &format!("udev_path={}", volume.display()))?;
    put(format!("{store}/enable"), "1")?;
    let group = format!("{CONFIG}/target/iscsi/{}/tpgt_1", target(number));
    make_dir(format!("{group}/lun/lun_0"))?;
    std::os::unix::fs::symlink(&store, format!("{group}/lun/lun_0/store"))?;
    make_dir(format!("{group}/np/10.0.0.1:{LIO_PORT}"))?;
    put(format!("{group}/attrib/authentication"), "0")?;
    // Access lists, not demo mode, which does not tell where a client comes from.
    for initiator in (0..=HOSTS).map(|worker| initiator(host, worker)) {
        let acl = format!("{group}/acls/{initiator}");
        make_dir(format!("{acl}/lun_0"))?;
        std::os::unix::fs::symlink(format!("{group}/lun/lun_0"), format!("{acl}/lun_0/lun"))?;
    }
    put(format!("{group}/enable"), "1")
}

/// Result of a load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Measured {
    pub(super) mean_ms: f64,
    pub(super) mb_per_s: f64,
}

fn parse_load(line: &str) -> Option<(&str, Measured)> {
    let words: Vec<&str> = line.strip_prefix("lab: load ")?.split(' ').collect();
    let [tag, "mean_ms", mean, "mb_per_s", rate, "requests", _] = words[..] else { return None };
    Some((tag, Measured { mean_ms: mean.parse().ok()?, mb_per_s: rate.parse().ok()? }))
}

/// The command of initiator number `worker` on `host`, for the host's volume on `server`.
pub(super) fn load_command(server: Server, host: usize, worker: usize, arguments: &[&str]) -> Result<Command> {
    initiator_command(server, &server.portal(host), host, worker, &target(host), arguments)
}

/// The command of initiator number `worker` on `host`, for the target with the name `target` at the address `portal`; NBD needs
/// no name.
fn initiator_command(
    server: Server,
    portal: &str,
    host: usize,
    worker: usize,
    target: &str,
    arguments: &[&str],
) -> Result<Command> {
    let mut command = process::program("ip");
    command.args(["netns", "exec", &format!("b{host}")]).arg(std::env::current_exe()?);
    command.args(["guest", "iscsi-load", "--portal", portal, "--target", target]);
    command.args(["--initiator", &initiator(host, worker), "--tag", &format!("b{host}.{worker}")]);
    match server {
        Server::Lio => {}
        Server::Tgt => {
            command.args(["--lun", "1"]);
        }
        Server::Evenkeel => {
            command.arg("--nbd");
        }
    }
    command.args(arguments);
    Ok(command)
}

fn result_of(mut command: Command) -> Result<Measured> {
    let text = process::output(&mut command)?;
    text.lines().find_map(parse_load).map(|(_, m)| m).with_context(|| format!("no result in {text:?}"))
}

/// Runs one initiator on `host` to its end. Returns the initiator's result.
pub(super) fn load(server: Server, host: usize, arguments: &[&str]) -> Result<Measured> {
    result_of(load_command(server, host, 0, arguments)?)
}

/// Runs an initiator on host 1 on the device without service time. Returns the initiator's result.
pub(super) fn load_fast(arguments: &[&str]) -> Result<Measured> {
    let portal = Server::Lio.portal(1);
    result_of(initiator_command(Server::Lio, &portal, 1, 0, &target(FAST), arguments)?)
}

/// IPv6 address of host 1.
pub(super) const ADDRESS_6: &str = "fd00::11";
const PORTAL_6: &str = "[fd00::1]:3260";

/// Makes the kernel's iSCSI target reachable for host 1 over IPv6, too.
pub(super) fn add_ipv6() -> Result<()> {
    ip("addr replace fd00::1/64 dev br0 nodad")?;
    ip(&format!("-n b1 addr replace {ADDRESS_6}/64 dev eth0 nodad"))?;
    make_dir(format!("{CONFIG}/target/iscsi/{}/tpgt_1/np/{PORTAL_6}", target(1)))
}

/// Runs an initiator on host 1 over IPv6. Returns the initiator's result.
pub(super) fn load_ipv6(arguments: &[&str]) -> Result<Measured> {
    result_of(initiator_command(Server::Lio, PORTAL_6, 1, 0, &target(1), arguments)?)
}

/// Paths of the files with the kernel's TCP counters.
const COUNTERS: [&str; 2] = ["/proc/net/snmp", "/proc/net/netstat"];
/// Names of TCP counters that show why a segment was retransmitted, or where a segment was lost.
const REASONS: [&str; 16] = [
    "TCPTimeouts",
    "TCPSpuriousRTOs",
    "TCPLossProbes",
    "TCPFastRetrans",
    "TCPSlowStartRetrans",
    "TCPLostRetransmit",
    "TCPSynRetrans",
    "TCPSACKReorder",
    "TCPDSACKRecv",
    "TCPBacklogDrop",
    "TCPRcvQDrop",
    "TCPZeroWindowDrop",
    "PruneCalled",
    "RcvPruned",
    "ListenOverflows",
    "ListenDrops",
];

/// Counts of TCP segments of the target and of all hosts.
#[derive(Debug, Clone, Default)]
pub(super) struct Segments {
    pub(super) sent: u64,
    pub(super) resent: u64,
    /// Values of the counters [`REASONS`], by host and counter; the host `t` is the iSCSI target.
    reasons: BTreeMap<(String, &'static str), u64>,
}

impl Segments {
    /// The present counts.
    pub(super) fn count() -> Result<Self> {
        let mut all = Self::default();
        let target: Vec<String> = COUNTERS.into_iter().map(std::fs::read_to_string).collect::<std::io::Result<_>>()?;
        all.add("t", &target.concat())?;
        for host in (1..=HOSTS).map(|host| format!("b{host}")) {
            all.add(&host, &tool("ip", &[&["netns", "exec", &host, "cat"], &COUNTERS[..]].concat())?)?;
        }
        Ok(all)
    }

    /// The counts from this count until now, see [`Segments::since`].
    pub(super) fn since_start(&self) -> Result<Self> {
        Ok(Self::count()?.since(self))
    }

    fn add(&mut self, host: &str, text: &str) -> Result<()> {
        let counters = parse_counters(text);
        let of = |name: &str| counters.get(name).copied().with_context(|| format!("no counter {name}"));
        self.sent += of("OutSegs")?;
        self.resent += of("RetransSegs")?;
        for reason in REASONS {
            self.reasons.insert((host.to_owned(), reason), counters.get(reason).copied().unwrap_or(0));
        }
        Ok(())
    }

    fn since(mut self, before: &Self) -> Self {
        self.sent -= before.sent;
        self.resent -= before.resent;
        for (reason, count) in &mut self.reasons {
            *count -= before.reasons.get(reason).copied().unwrap_or(0);
        }
        self
    }

    /// Records the number of retransmitted segments as the figure `name`. A delay that TCP does not interpret as a loss causes no
    /// retransmissions; a delay that TCP interprets as losses causes one every few segments.
    pub(super) fn judge(&self, figures: &mut Figures, name: &str) {
        figures.at_most(name, self.resent as f64, 0.05 * self.sent as f64, 0.0);
    }
}

impl fmt::Display for Segments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} retransmits", self.resent)?;
        if self.resent > 0 {
            write!(f, " of {} segments", self.sent)?;
            for ((host, reason), count) in self.reasons.iter().filter(|(_, count)| **count > 0) {
                write!(f, ", {host} {reason} {count}")?;
            }
        }
        Ok(())
    }
}

/// Parses TCP counters in the format of `/proc/net/snmp`: a row of names, then a row of values.
fn parse_counters(text: &str) -> BTreeMap<&str, u64> {
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("Tcp")).collect();
    let pairs = rows.chunks_exact(2).flat_map(|pair| pair[0].split(' ').zip(pair[1].split(' ')));
    // Some are negative: limits, not counts.
    pairs.filter_map(|(name, value)| Some((name, value.parse().ok()?))).collect()
}

/// Runs `body` with `window` as the receive window (`tcp_rmem`) of the iSCSI target. The kernel lets a window grow up to the
/// highest value in force, so the setting applies to connections made in `body`.
pub(super) fn with_window<T>(window: &str, body: impl FnOnce() -> Result<T>) -> Result<T> {
    const SETTING: &str = "/proc/sys/net/ipv4/tcp_rmem";
    put(SETTING, window)?;
    let result = body();
    put(SETTING, TARGET_WINDOW)?;
    result
}

/// Discards input and output of a load whose result is not needed.
pub(super) fn quiet(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::null()).stdout(Stdio::null())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_and_counters_are_understood() {
        let line = "lab: load b1.0 mean_ms 3.5000 mb_per_s 18.720 requests 571";
        assert_eq!(parse_load(line), Some(("b1.0", Measured { mean_ms: 3.5, mb_per_s: 18.72 })));
        assert_eq!(parse_load("lab: window b1.0 3 mean_ms 1 requests 2"), None);
        let text = |resent: u64, timeouts: u64| {
            format!(
                "Ip: Forwarding\nIp: 1\nTcp: MaxConn OutSegs RetransSegs\nTcp: -1 500 {resent}\nTcpExt: PAWSEstab \
                 TCPTimeouts TCPLossProbes\nTcpExt: 3 {timeouts} 0\n"
            )
        };
        let counted = |texts: &[String]| {
            let mut all = Segments::default();
            texts.iter().zip(["t", "b1"]).for_each(|(text, host)| all.add(host, text).unwrap());
            all
        };
        let before = counted(&[text(7, 1), text(0, 0)]);
        assert_eq!((before.sent, before.resent), (1_000, 7));
        let after = counted(&[text(7, 1), text(2, 1)]);
        assert_eq!(after.since(&before).to_string(), "2 retransmits of 0 segments, b1 TCPTimeouts 1");
        assert!(Segments::default().add("t", "Udp: x\n").is_err());
    }

    #[test]
    fn servers_have_volumes_of_their_own() {
        assert_eq!(Server::Lio.device(1), "dm-0");
        assert_eq!((Server::Tgt.volume(1), Server::Tgt.volume(4)), (5, 8));
        assert_eq!((Server::Evenkeel.volume(1), Server::Evenkeel.volume(2), Server::Evenkeel.volume(4)), (5, 6, 6));
        assert_eq!(Server::Evenkeel.portal(4), "10.0.0.1:10812");
    }
}
