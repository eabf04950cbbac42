//! Finds the parts that this host lacks to enforce the policy, and matches them to the rows of the effective policy.

use std::collections::BTreeSet;
use std::path::Path;

use evenkeel_policy::check::Problem;
use evenkeel_policy::config::{Enforcement, Percentile};
use evenkeel_policy::effective::Missing;

use super::{Finding, Preflight, Presence, local, parts};
use crate::config::Config;
use crate::discovery::stack::{self, NotUsable};
use crate::discovery::{Map, Roots};
use crate::sensor::cache::Cached;
use crate::sensor::cgroup;

/// A missing or unsuitable part: the enforcement point that needs it; the pool, device or group concerned (`None`: all); the
/// worst state that the lack can cause for their rows; and the finding.
type Lack = (Enforcement, Option<String>, Presence, Finding);

/// The missing or unsuitable parts that concern rows of the effective policy in `config`; also marks these rows. `host`: all
/// findings, including those of [`super::arrays`] and [`super::osd`]; `map`: the map, with OSDs; `groups`: the folder where
/// cgroup v2 is mounted; `complain`: makes a problem of a key and a message, as [`Document::complain`] does.
///
/// [`Document::complain`]: evenkeel_policy::document::Document::complain
pub fn lacks(
    config: &mut Config,
    host: &Preflight,
    map: &Map,
    (roots, groups): (&Roots, &Path),
    complain: impl Fn(&[&str], String) -> Problem,
) -> Vec<Missing> {
    let (mut missing, mut elsewhere) = (Vec::new(), BTreeSet::new());
    for (point, subject, most, finding) in all(config, host, map, roots, groups) {
        let rows = config.enforced.rows.iter_mut().filter(|row| row.point == point);
        let here = finding.presence.min(most);
        let mut pools = BTreeSet::new();
        for row in rows.filter(|row| subject.as_ref().is_none_or(|name| row.is_about(name))) {
            row.here = row.here.max(here);
            pools.extend(row.pool.clone().map(|pool| (point, pool)));
        }
        // What a pool lacks that is not on this host is of no interest.
        let Some((_, pool)) = pools.difference(&elsewhere).next().cloned() else { continue };
        let Finding { part, presence, evidence, lost, cure, .. } = finding;
        let why = match part.as_str() {
            "" => complain(&["pools", &pool], format!("not on this host: {evidence}")),
            "interfaces" => complain(&["agent", "interfaces"], evidence),
            "devices" => complain(&["pools", &pool, "devices"], evidence),
            _ => complain(&["pools", &pool], format!("{part} is {}: {evidence}", presence.name())),
        };
        if part.is_empty() {
            elsewhere.extend(pools);
        }
        missing.push(Missing { why, lost, cure, here });
    }
    missing
}

/// All missing or unsuitable parts: first missing devices, then other parts.
fn all(config: &Config, host: &Preflight, map: &Map, roots: &Roots, groups: &Path) -> Vec<Lack> {
    use Enforcement::{Cgroup, Osd, Packets, QueueDepth};
    let mut all: Vec<Lack> = Vec::new();
    let osds = map.osds.iter().filter(|osd| config.ceph.as_ref().is_some_and(|ceph| ceph.wants(&osd.name)));
    let mut lack = |point, subject: Option<&String>, part: &str, evidence: String, [lost, cure]: [&str; 2]| {
        let (part, presence, purpose) = (part.to_owned(), Presence::Missing, String::new());
        let finding = Finding { part, purpose, presence, evidence, lost: lost.into(), cure: cure.into() };
        all.push((point, subject.cloned(), Presence::Missing, finding));
    };
    if osds.clone().count() == 0 {
        let cure = "correct the names, or name the places of their sockets: agent.ceph.sockets";
        let what = ["the queues in the OSDs' stores stay as long as they are", cure];
        lack(Osd, None, "", "no OSD of these names has an admin socket".into(), what);
    }
    for name in config.packets.keys().filter(|name| map.pools.iter().all(|entry| entry.name != **name)) {
        let cure = "correct the name, or name devices: `evenkeel guard discover` shows which are served here";
        let what = ["no client is throttled for its latency target", cure];
        lack(Packets, Some(name), "", "no target here serves the pool's devices".into(), what);
    }
    let interfaces = &config.agent.interfaces;
    let gone = interfaces.iter().find(|name| !roots.sys.join("class/net").join(name).exists());
    if gone.is_some() || interfaces.is_empty() {
        let why = gone.map_or("names no network device".into(), |name| format!("there is no network device {name}"));
        let cure = "name the network devices by which clients are reached, as `ip link` shows them";
        lack(Packets, None, "interfaces", why, ["no packet is delayed: clients are not throttled", cure]);
    }
    for cached in config.cached.values() {
        let (cache, what) = (&cached.cache, ["throughput guarantees on this device are not enforced", ""]);
        if let Err(why) = Cached::open(roots, &cached.device, cache.slow.as_deref(), cache.fast.as_deref()) {
            lack(Cgroup, Some(&cached.device), "", why.to_string(), what);
        }
        for group in cached.tenants.values().map(|tenant| &tenant.group) {
            if cgroup::find(groups, group).is_ok_and(|found| found.is_empty()) {
                let what = ["the group's guarantee is not enforced", "start its service, or correct the path"];
                lack(Cgroup, Some(group), group, "there is no such group (`systemd-cgls` shows all)".into(), what);
            }
        }
    }
    for local in config.local.values() {
        if let Err(why) = stack::find(roots, &local.device) {
            let part = if matches!(why, NotUsable::NoDevice(_)) { "" } else { "devices" };
            let lost = match local.latency {
                Some(_) => "no group is throttled for its latency target",
                None => "no group is limited for its tenant's limit",
            };
            let what = [lost, why.cure()];
            lack(Cgroup, Some(&local.device), part, why.to_string(), what);
        }
    }
    let here = |part: &str| host.findings.iter().find(|finding| finding.part == part);
    let usable = |part: &str| here(part).is_some_and(parts::is_usable);
    let mut part = |point, subject: Option<&String>, most, part: &str| {
        let lack = here(part).filter(|finding| !parts::is_usable(finding));
        all.extend(lack.map(|finding| (point, subject.cloned(), most, finding.clone())));
    };
    for (name, pool) in &config.packets {
        if matches!(pool.latency.percentile, Percentile::At(_)) {
            ["tracepoints", "perfmon"].iter().for_each(|of| part(Packets, Some(name), Presence::Missing, of));
        }
    }
    for local in config.local.values() {
        // Without them a mean is that of all reads of the device.
        let most = match local.latency.map(|latency| latency.percentile) {
            Some(Percentile::At(_)) => Presence::Missing,
            Some(Percentile::Mean) => Presence::Unsuitable,
            None => continue,
        };
        ["tracepoints", "perfmon"].iter().for_each(|of| part(Cgroup, Some(&local.device), most, of));
    }
    part(Cgroup, None, Presence::Missing, local::V1);
    for (array, settings) in &config.arrays {
        for (name, volume) in &settings.volumes {
            part(QueueDepth, Some(&volume.device), Presence::Missing, &format!("{array}/{name}"));
        }
    }
    for endpoint in &config.cluster.etcd {
        part(QueueDepth, None, Presence::Unsuitable, &endpoint.to_string());
    }
    let attached: &[&str] =
        if usable("tcx") || usable("clsact") && usable("cls_bpf") { &[] } else { &["tcx", "cls_bpf"] };
    let packets = parts::TO_ACT
        .iter()
        .chain(attached)
        .chain(&["receive_window", "loss_probes", "diskstats"])
        .map(|part| (Packets, part));
    for (point, name) in packets.chain([(QueueDepth, &"diskstats"), (Cgroup, &"io_controller")]) {
        part(point, None, Presence::Missing, name);
    }
    osds.for_each(|osd| part(Osd, None, Presence::Missing, &osd.name));
    for device in config.local.values().map(|local| &local.device) {
        let found = host.findings.iter().filter(|finding| local::is_about(finding, device));
        all.extend(found.map(|finding| (Cgroup, Some(device.clone()), Presence::Unsuitable, finding.clone())));
    }
    all
}
