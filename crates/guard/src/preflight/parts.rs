//! The parts of the kernel and system that the agent needs, and judgements on their presence.

use super::{Evidence, Finding, Preflight, Presence};

/// A row for each part of the kernel that can be present or missing: its name, a symbol of the kernel by which its presence is
/// recognised, its module, its purpose, and the loss without it.
const PARTS: [[&str; 5]; 7] = [
    ["fq", "fq_enqueue", "sch_fq", "keeps packets until their departure time", NO_DELAY],
    ["htb", "htb_enqueue", "sch_htb", "lets other packets overtake delayed packets", NO_DELAY],
    [
        "tcx",
        "tcx_link_attach",
        "TCX (Linux 6.6, CONFIG_NET_XGRESS)",
        "shows packets to the BPF program that sets departure times",
        NO_DELAY,
    ],
    ["clsact", "clsact_init", "sch_ingress", "holds the filters of cls_bpf, where the kernel has no TCX", NO_DELAY],
    ["cls_bpf", "cls_bpf_classify", "cls_bpf", "shows packets to the BPF program on kernels without TCX", NO_DELAY],
    ["lio", "iscsit_register_transport", "iscsi_target_mod", "the kernel's iSCSI target (LIO)", NO_TARGETS],
    ["nvmet", "nvmet_tcp_add_port", "nvmet_tcp", "the kernel's NVMe/TCP target", NO_TARGETS],
];

/// The kernel symbols that are searched for: one for each of the parts.
pub(super) const SYMBOLS: [&str; PARTS.len()] = {
    let mut symbols = [""; PARTS.len()];
    let mut n = 0;
    while n < PARTS.len() {
        symbols[n] = PARTS[n][1];
        n += 1;
    }
    symbols
};

/// Names of parts without which no client can be throttled. In addition, one of the ways to attach the BPF program is needed:
/// `tcx`, or `clsact` with `cls_bpf`.
pub(super) const TO_ACT: [&str; 3] = ["fq", "htb", "net_admin"];

/// Text of the loss if a part that packet delays need is missing.
const NO_DELAY: &str = "no client can be throttled; only --dry-run works";
/// The same for a part that a target of the kernel needs.
const NO_TARGETS: &str = "no targets of this kind can be served or found";

/// Numbers of capabilities (`linux/capability.h`): each is the index of the capability's bit in a set.
const NET_ADMIN: u32 = 12;
const SYS_ADMIN: u32 = 21;
const PERFMON: u32 = 38;
const BPF: u32 = 39;

/// Largest receive window, in bytes, that is assumed to make a writer wait for acknowledgements: in trials 32 KiB did,
/// megabytes did not.
const CAPPED_WINDOW_BYTES: u64 = 128 << 10;

/// Concludes from the facts which functions of the agent work on this host.
pub fn judge(evidence: &Evidence) -> Preflight {
    let mut findings: Vec<Finding> = PARTS.map(|part| kernel_part(part, evidence)).into();
    let attaches = one_way_is_enough(&mut findings);
    findings.extend(files(evidence));
    findings.extend(capabilities(evidence));
    findings.extend(network(evidence));
    findings.extend(statistics(evidence));
    let usable = |name: &str| {
        let finding = findings.iter().find(|finding| finding.part == name);
        finding.is_some_and(is_usable)
    };
    let can_act = attaches && TO_ACT.iter().all(|name| usable(name));
    Preflight { can_measure: evidence.diskstats, can_act, findings }
}

fn kernel_part([name, symbol, module, purpose, lost]: [&str; 5], evidence: &Evidence) -> Finding {
    let (presence, from, cure) = if evidence.symbols.contains(symbol) {
        (Presence::Present, format!("/proc/kallsyms has {symbol}"), String::new())
    } else if evidence.loaded.contains(module) {
        (Presence::Present, format!("/sys/module/{module}"), String::new())
    } else if evidence.installed.contains(module) {
        (Presence::Loadable, "modules.dep".to_owned(), format!("modprobe {module}"))
    } else {
        let cure = format!("use a kernel with {module}; distributions put it into their package of kernel modules");
        (Presence::Missing, "neither loaded nor installed".to_owned(), cure)
    };
    let lost = if presence == Presence::Present { "" } else { lost };
    Finding::new(name, purpose, presence, [from, lost.into(), cure])
}

/// True if a part is present, or the kernel loads it when it is needed.
pub(super) fn is_usable(finding: &Finding) -> bool {
    matches!(finding.presence, Presence::Present | Presence::Loadable)
}

/// True if the BPF program can be attached, by links or by filters. If one of the two ways is usable, corrects the text of
/// the loss in the findings of the other.
fn one_way_is_enough(findings: &mut [Finding]) -> bool {
    let usable = |name: &str| findings.iter().any(|finding| finding.part == name && is_usable(finding));
    let (links, filters) = (usable("tcx"), usable("clsact") && usable("cls_bpf"));
    for finding in findings.iter_mut().filter(|finding| finding.presence != Presence::Present) {
        match finding.part.as_str() {
            "tcx" if filters => {
                finding.lost =
                    "the BPF program is attached by filters (clsact, cls_bpf): when the agent is killed its \
                    sentinel removes them, and when both are killed, delays last until their timeout"
                        .into();
            }
            "clsact" | "cls_bpf" if links => finding.lost = "nothing: links (TCX) attach the BPF program".into(),
            _ => {}
        }
    }
    links || filters
}

/// The finding for a part that is present (`there`) or missing; `lost` and `cure` are used only if it is missing.
fn simple(part: &str, purpose: &str, there: bool, evidence: &str, lost: &str, cure: &str) -> Finding {
    let presence = if there { Presence::Present } else { Presence::Missing };
    let when_missing = |text: &str| if there { String::new() } else { text.to_owned() };
    Finding::new(part, purpose, presence, [evidence.into(), when_missing(lost), when_missing(cure)])
}

/// The finding, with an unsuitable part in place of a missing one.
fn unsuitable(finding: Finding) -> Finding {
    let presence = if finding.presence == Presence::Missing { Presence::Unsuitable } else { finding.presence };
    Finding { presence, ..finding }
}

fn files(evidence: &Evidence) -> [Finding; 4] {
    [
        simple(
            "diskstats",
            "latency, rate and size of the requests of each device",
            evidence.diskstats,
            "/proc/diskstats",
            "nothing can be measured",
            "mount /proc, and use a kernel with block devices",
        ),
        simple(
            "configfs",
            "sessions of the kernel's targets",
            evidence.configfs,
            "/sys/kernel/config",
            "clients of LIO and nvmet cannot be found",
            "mount -t configfs none /sys/kernel/config",
        ),
        simple(
            "io_controller",
            "limits and counters of control groups (match = [\"cgroup:PATH\"])",
            evidence.io_controller,
            "/sys/fs/cgroup/cgroup.controllers",
            "no group can be guaranteed a throughput, or throttled for a latency target",
            "mount cgroup v2 at /sys/fs/cgroup (systemd does, with systemd.unified_cgroup_hierarchy=1), on a kernel with CONFIG_BLK_DEV_THROTTLING",
        ),
        simple(
            "tracepoints",
            "latency percentiles, and latencies of single control groups",
            evidence.tracepoints,
            "/sys/kernel/tracing/events/block",
            "latency targets for percentiles are not enforced, and a group's mean is that of all reads of the device",
            "mount -t tracefs none /sys/kernel/tracing, on a kernel with CONFIG_EVENT_TRACING; and run as root",
        ),
    ]
}

fn capabilities(evidence: &Evidence) -> [Finding; 2] {
    let has = |capability: u32| evidence.capabilities.is_some_and(|bits| bits >> capability & 1 == 1);
    [
        simple(
            "net_admin",
            "setting delays, by queueing disciplines and a BPF program",
            has(NET_ADMIN) && (has(BPF) || has(SYS_ADMIN)),
            "CapEff in /proc/self/status",
            NO_DELAY,
            "run as root, or give the service AmbientCapabilities=CAP_NET_ADMIN CAP_BPF",
        ),
        simple(
            "perfmon",
            "latency percentiles, and latencies of single control groups",
            has(SYS_ADMIN) || has(PERFMON) && has(BPF),
            "CapEff in /proc/self/status",
            "latency targets for percentiles are not enforced, and a group's mean is that of all reads of the device",
            "run as root, or give the service AmbientCapabilities=CAP_PERFMON CAP_BPF",
        ),
    ]
}

fn network(evidence: &Evidence) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(bytes) = evidence.tcp_rmem_max {
        findings.push(unsuitable(simple(
            "receive_window",
            "throttling writers by delayed acknowledgements",
            bytes <= CAPPED_WINDOW_BYTES,
            &format!("net.ipv4.tcp_rmem lets windows grow to {bytes} bytes"),
            "delayed acknowledgements alone do not throttle writers; everything that is sent to them must be delayed",
            "sysctl -w net.ipv4.tcp_rmem='4096 32768 32768' before the target listens, which caps the windows of all TCP connections of this host; or leave it, at the cost of the clients' other traffic",
        )));
    }
    if let Some(setting) = evidence.tcp_early_retrans {
        findings.push(unsuitable(simple(
            "loss_probes",
            "no retransmits that a delay causes",
            setting == 0,
            &format!("net.ipv4.tcp_early_retrans is {setting}"),
            "a delay that changes quickly may make either end send a segment twice",
            "sysctl net.ipv4.tcp_early_retrans=0, here and on the clients",
        )));
    }
    findings
}

fn statistics(evidence: &Evidence) -> Option<Finding> {
    let silent = &evidence.uncounted_devices;
    (!silent.is_empty()).then(|| {
        unsuitable(simple(
            "iostats",
            "statistics of each device",
            false,
            &format!("switched off for {}", silent.join(", ")),
            "these devices look idle, whatever they do",
            "echo 1 > /sys/block/DEVICE/queue/iostats",
        ))
    })
}
