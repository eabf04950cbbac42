//! Translates the policy to the settings of the control loops that enforce the policy on this host.
//!
//! | a pool | with | is enforced by |
//! |---|---|---|
//! | `devices` that begin with "osd:" | | `osd` |
//! | `tuning.slots` | tenants that name its devices (`device:`) | `queue_depth` |
//! | `devices`, no slots | tenants with control groups (`cgroup:`) and a guarantee | `cgroup` |
//! | `devices` and `latency`, no slots | tenants with control groups and no guarantee | `cgroup` |
//! | `devices`, no slots | tenants with control groups and a limit | `cgroup` |
//! | `latency`, neither slots nor OSDs | tenants that name clients (`initiator:`, `address:`) | `packets` |
//!
//! Of these, `cgroup` alone counts requests for tenants' totals over a cluster: packets and OSDs limit no tenant.
//!
//! A pool's `enforce` restricts these points. The points' files in this folder translate the pool, `packets` is here. A setting
//! that this host does not enforce becomes a note, not an error: many hosts may share the policy.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evenkeel_policy::check::Problem;
use evenkeel_policy::cluster::MAX_POOLS;
use evenkeel_policy::config::{
    DEFAULT_TENANT, Enforcement, Latency, Match, Of, Percentile, Pool, Slots, Status, Tenant, Throttle, Who,
};
use evenkeel_policy::document::Document;
use evenkeel_policy::effective::{Precedence, Row, latency, listed, settings as settings_of, throttled};
use evenkeel_policy::units::Duration;
use evenkeel_policy::{Severity, policy_findings};

use super::{Abilities, ClientTerms, Config, File, PacketsConfig, Throttles};
use crate::actuator;
use crate::loops::owed::Owed;

/// Largest number of pools, and of devices of one pool; each pool and device costs work at every tick.
pub(super) const MAX_ENTRIES: usize = 1_000;
/// The prefix of an OSD's name in a pool's devices.
const OSD: &str = "osd:";

/// The result of lowering a configuration file to settings of the loops.
pub(super) struct Lowered {
    pub(super) config: Config,
    /// The faults that keep the file from being used.
    pub(super) faults: Vec<Problem>,
    /// Warnings, with which the file can be used.
    pub(super) doubts: Vec<Problem>,
}

/// Translates a configuration file (policy and this host's settings) to the settings of the control loops.
pub(super) fn lower(file: File, document: &Document<'_>, abilities: Abilities) -> Lowered {
    let File { agent, pools, tenants, cluster, volumes, .. } = file;
    let config = Config { agent, cluster, ..Config::default() };
    let lowered = Lowered { config, faults: Vec::new(), doubts: Vec::new() };
    let mut lowering = Lowering {
        pools: &pools,
        tenants: &tenants,
        clients: tenants.iter().filter(|(_, tenant)| tenant.matches.iter().any(is_client)).collect(),
        served: volumes.into_values().map(|volume| volume.pool).collect(),
        document,
        lowered,
        throttles: throttles(&tenants, None),
        grouped: BTreeSet::new(),
        local_pools: BTreeSet::new(),
        slotted: BTreeSet::new(),
    };
    lowering.policy();
    lowering.agent();
    for (name, pool) in &pools {
        super::at_each_point(&mut lowering, name, pool, abilities);
    }
    lowering.cluster();
    pools.iter().for_each(|(name, pool)| lowering.note_pool(name, pool));
    tenants.iter().for_each(|(name, tenant)| lowering.note_tenant(name, tenant));
    tenants.iter().for_each(|(name, tenant)| lowering.note_on_osds(name, tenant));
    tenants.iter().for_each(|(name, tenant)| lowering.doubt_total(name, tenant));
    lowering.lowered
}

/// The translation in progress: the policy, and the settings of the loops found so far.
pub(super) struct Lowering<'f, 'd> {
    pub(super) pools: &'f BTreeMap<String, Pool>,
    pub(super) tenants: &'f BTreeMap<String, Tenant>,
    /// Tenants that name clients of targets.
    clients: Vec<(&'f String, &'f Tenant)>,
    /// Names of the pools on which `evenkeel serve` has volumes.
    served: BTreeSet<String>,
    pub(super) document: &'d Document<'d>,
    pub(super) lowered: Lowered,
    /// Permitted throttling of clients on pools for which no tenant has settings of its own.
    throttles: Throttles,
    /// Names of the tenants whose control groups this host limits.
    pub(super) grouped: BTreeSet<&'f str>,
    /// Names of the pools whose control groups are throttled for a latency target or limited for tenants' limits.
    pub(super) local_pools: BTreeSet<String>,
    /// Names of the tenants with devices whose queues this host bounds.
    pub(super) slotted: BTreeSet<&'f str>,
}

/// True if the pool's policy allows this enforcement point.
pub(super) fn allows(pool: &Pool, point: Enforcement) -> bool {
    pool.enforce.as_ref().is_none_or(|points| points.contains(&point))
}

/// The tenant's reservation and guarantees, each with its text for the effective policy; no throttle of this host takes the
/// tenant below them.
pub(super) fn owed(tenant: &Tenant) -> impl Iterator<Item = (Precedence, String)> + use<> {
    let owed = |(of, _): &(Precedence, String)| matches!(of, Precedence::Reservation | Precedence::Guarantee);
    settings_of(tenant).into_iter().filter(owed)
}

/// Devices of a pool, as names of OSDs (without the prefix) and block devices.
pub(super) fn devices_of(pool: &Pool) -> (Vec<&str>, Vec<&str>) {
    let (osds, devices): (Vec<&str>, Vec<&str>) =
        pool.devices.iter().map(String::as_str).partition(|device| device.starts_with(OSD));
    (osds.into_iter().map(|osd| &osd[OSD.len()..]).collect(), devices)
}

/// True if the pool's policy has this host bound the queues of those of the pool's devices that a tenant names.
pub(super) fn has_slots(pool: &Pool) -> bool {
    let said = || pool.enforce.as_ref().is_some_and(|points| points.contains(&Enforcement::QueueDepth));
    (pool.tuning.slots != Slots::None || said()) && allows(pool, Enforcement::QueueDepth)
}

/// True if an entry names clients of targets.
const fn is_client(entry: &Match) -> bool {
    matches!(entry, Match::Initiator(_) | Match::Client(Who::Address(_)))
}

/// Permitted throttling of clients on `pool`; without `pool`, on every pool for which no tenant has settings of its own.
fn throttles(tenants: &BTreeMap<String, Tenant>, pool: Option<&str>) -> Throttles {
    let on = |name: &str, tenant: &Tenant| {
        let there = pool.map_or_else(|| tenant.clone(), |pool| tenant.on(pool));
        ClientTerms { tenant: name.to_owned(), throttle: there.throttle, owed: Owed::of(&there) }
    };
    let mut terms = vec![tenants.get(DEFAULT_TENANT).map(|tenant| on("", tenant)).unwrap_or_default()];
    let mut by_entry: Vec<(Match, usize)> = Vec::new();
    for (name, tenant) in tenants {
        let place = if name == DEFAULT_TENANT { 0 } else { terms.len() };
        let clients = tenant.matches.iter().filter(|entry| is_client(entry));
        by_entry.extend(clients.map(|entry| (entry.clone(), place)));
        if place > 0 {
            terms.push(on(name, tenant));
        }
    }
    by_entry.sort_by_key(|(entry, _)| std::cmp::Reverse(entry.specificity()));
    Throttles { by_entry: Arc::new(by_entry), tenants: Arc::new(terms) }
}

/// A name for the device or group at `path` that is not yet a key of `known`: the owner's name if the owner has no other
/// (`alone`), else the owner's name followed by the last part of the path, or by the whole path.
pub(super) fn name_of<V>(known: &BTreeMap<String, V>, owner: &str, path: &str, alone: bool) -> String {
    if alone && !known.contains_key(owner) {
        return owner.to_owned();
    }
    let last = path.trim_end_matches('/').rsplit('/').next().unwrap_or(path);
    let short = format!("{owner}.{last}");
    if known.contains_key(&short) { format!("{owner}.{path}") } else { short }
}

impl Lowering<'_, '_> {
    pub(super) fn fault(&mut self, path: &[&str], message: impl Into<String>) {
        self.lowered.faults.push(self.document.complain(path, message));
    }

    pub(super) fn doubt(&mut self, path: &[&str], message: impl Into<String>) {
        self.lowered.doubts.push(self.document.complain(path, message));
    }

    pub(super) fn note(&mut self, path: &[&str], message: impl Into<String>) {
        self.lowered.config.notes.push(self.document.complain(path, message));
    }

    /// Path, in the document, of the key that sets `key` of a tenant for a pool: in the tenant's table for the pool if that
    /// has the key, otherwise in the tenant's own table.
    pub(super) fn said<'p>(&self, tenant: &'p str, pool: &'p str, key: &'p str) -> Vec<&'p str> {
        let own = ["tenants", tenant, "pools", pool, key];
        if self.document.has(&own) { own.to_vec() } else { vec!["tenants", tenant, key] }
    }

    /// Finds the faults of the policy that do not depend on the enforcement point.
    fn policy(&mut self) {
        if self.pools.len() > MAX_ENTRIES {
            self.fault(&["pools"], format!("are more than {MAX_ENTRIES}; leave some out"));
        }
        for finding in policy_findings(self.pools, self.tenants) {
            let path: Vec<&str> = finding.path.iter().map(String::as_str).collect();
            match finding.severity {
                Severity::Error => self.fault(&path, finding.message),
                Severity::Hangs | Severity::Warning | Severity::Elsewhere => self.doubt(&path, finding.message),
            }
        }
        for (name, pool) in self.pools {
            if pool.devices.len() > MAX_ENTRIES {
                let message = format!("are more than {MAX_ENTRIES}; divide them between pools");
                self.fault(&["pools", name, "devices"], message);
            }
        }
    }

    fn agent(&mut self) {
        let agent = self.lowered.config.agent.clone();
        if agent.ports.is_empty() {
            self.fault(&["agent", "ports"], "is empty; name the targets' ports, for iSCSI 3260");
        }
        let (least, most) = (Duration::from_secs(1), Duration::from_secs(3600));
        if !(least..=most).contains(&agent.discover_every) {
            let message = format!("is {}; write \"1s\" to \"1h\"", agent.discover_every);
            self.fault(&["agent", "discover_every"], message);
        }
        if !(Duration::from_millis(10)..=Duration::from_secs(60)).contains(&agent.interval) {
            let message = format!("is {}; write \"10ms\" to \"60s\"", agent.interval);
            self.fault(&["agent", "interval"], message);
        }
        // A delay must outlast a few ticks that come late.
        let renewed = Duration::from_nanos(agent.interval.as_nanos().saturating_mul(3));
        let shortest = Duration::from(actuator::SHORTEST_TIMEOUT);
        if !(shortest.max(renewed)..=most).contains(&agent.timeout) {
            let message = format!(
                "is {}; write at least three times agent.interval ({renewed}) and {shortest}, and at most \"1h\"",
                agent.timeout
            );
            self.fault(&["agent", "timeout"], message);
        }
        let longest = Duration::from(actuator::LONGEST_DELAY);
        if agent.max_delay.is_zero() || agent.max_delay > longest {
            let message = format!("is {}; write more than 0 and at most {longest}", agent.max_delay);
            self.fault(&["agent", "max_delay"], message);
        }
        if agent.step.is_zero() {
            self.fault(&["agent", "step"], "is 0; write for example \"500us\"");
        }
        for ([table, key], message) in agent.terms().faults() {
            self.fault(&["agent", table, key], message);
        }
        for (key, message) in agent.ceph.faults() {
            self.fault(&["agent", "ceph", key], message);
        }
        if let Status::At(address) = agent.status
            && let Some(danger) = agent.terms().danger(address)
        {
            self.doubt(&["agent", "status"], danger);
        }
    }

    fn cluster(&mut self) {
        let (cluster, interval) = (self.lowered.config.cluster.clone(), self.lowered.config.agent.interval);
        for (key, message) in cluster.faults() {
            self.fault(&["cluster", key], message);
        }
        if !cluster.etcd.is_empty() && cluster.period < interval {
            self.fault(&["cluster", "period"], format!("must be at least agent.interval ({interval})"));
        }
        if self.lowered.config.arrays.len() > MAX_POOLS {
            let message = format!(
                "with slots are more than the {MAX_POOLS} that a host may report to others; set tuning.slots = \"none\" for some"
            );
            self.fault(&["pools"], message);
        }
    }

    /// Adds to the effective policy a copy of `row` for each of the tenant's `settings`.
    pub(super) fn rows(&mut self, tenant: &str, settings: impl Iterator<Item = (Precedence, String)>, row: &Row) {
        for (precedence, setting) in settings {
            self.lowered.config.enforced.push(tenant, Row { precedence: Some(precedence), setting, ..row.clone() });
        }
    }

    fn row_of_packets(&mut self, name: &str, target: Latency, devices: &[&str]) {
        let on = |tenant: &Tenant| tenant.on(name).throttle;
        let named = self.clients.iter().map(|(tenant, settings)| (tenant.as_str(), on(settings)));
        let others = if self.clients.is_empty() { "clients" } else { "other clients" };
        let others = (others, self.tenants.get(DEFAULT_TENANT).map_or_else(Throttle::default, on));
        let throttled = throttled("packets to", named.chain([others]));
        let by = if target.percentile == Percentile::Mean { "diskstats" } else { "block tracepoints" };
        let of = if devices.is_empty() { name.to_owned() } else { listed(devices) };
        let row = Row::of_pool(name, Enforcement::Packets, Some(Precedence::Latency), latency(target, Of::Reads));
        let enforced = &mut self.lowered.config.enforced;
        if self.lowered.config.packets.is_empty() {
            enforced.tenants.extend(self.clients.iter().map(|(tenant, _)| (*tenant).clone()));
        }
        enforced.rows.push(row.by(format!("reads of {of}, by {by}"), throttled));
        for (tenant, settings) in self.clients.clone() {
            let row = Row::of_pool(name, Enforcement::Packets, None, String::new());
            let row = row.by(format!("diskstats of {of}"), "packets to the tenant's clients, never below this rate");
            self.rows(tenant, owed(&settings.on(name)), &row);
        }
    }

    /// Checks that this host can measure the figure of latencies that a pool's target bounds.
    pub(super) fn measurable(&mut self, name: &str, latency: Latency, abilities: Abilities) {
        if let Percentile::At(percentile) = latency.percentile
            && !abilities.tracepoints
        {
            self.fault(
                &["pools", name, "latency", "percentile"],
                format!(
                    "p{percentile} cannot be measured: the kernel shows single latencies by tracepoints only, \
                     and this host has none (`evenkeel check`); write percentile = \"mean\", with a target for the mean"
                ),
            );
        }
    }

    /// A pool with a latency target, for which packets to noisy clients of this host's targets are delayed.
    pub(super) fn packets(&mut self, name: &str, pool: &Pool, abilities: Abilities) {
        let (osds, devices) = devices_of(pool);
        let Some(latency) = pool.latency else { return };
        if has_slots(pool) || !osds.is_empty() || !allows(pool, Enforcement::Packets) || self.is_served(name, pool) {
            return;
        }
        // Groups of this host use the device: it is no target's, unless the policy or the host's settings say so.
        if pool.enforce.is_none() && self.clients.is_empty() && self.local_pools.contains(name) {
            if self.lowered.config.agent.interfaces.is_empty() {
                return;
            }
            let message = "applies on this host both to control groups, which tenants name, and to clients of targets, as agent.interfaces is set; write enforce = [\"cgroup\"] or enforce = [\"packets\"] where one is meant";
            self.doubt(&["pools", name], message);
        }
        self.row_of_packets(name, latency, &devices);
        self.measurable(name, latency, abilities);
        let differs = self.tenants.values().any(|tenant| tenant.pools.contains_key(name));
        let packets = PacketsConfig {
            latency,
            devices: devices.into_iter().map(str::to_owned).collect(),
            method: pool.tuning.method,
            noisy_above: pool.tuning.noisy_above,
            throttles: if differs { throttles(self.tenants, Some(name)) } else { self.throttles.clone() },
        };
        if let Err(invalid) = self.lowered.config.controller(&packets).validate() {
            let path: &[&str] = match invalid.setting {
                "target" => &["pools", name, "latency", "target"],
                "noisy_bytes_per_s" => &["pools", name, "tuning", "noisy_above"],
                other => &["agent", other],
            };
            // The agent's own bounds may say it already.
            let is_known = |fault: &Problem| path[0] == "agent" && fault.key == path.join(".");
            if !self.lowered.faults.iter().any(is_known) {
                self.fault(path, format!("must be {}", invalid.must_be));
            }
        }
        self.lowered.config.packets.insert(name.to_owned(), packets);
    }

    /// True if a pool is only for volumes of `evenkeel serve`: the pool has such a volume, no devices and no `enforce`.
    fn is_served(&self, name: &str, pool: &Pool) -> bool {
        pool.devices.is_empty() && pool.enforce.is_none() && self.served.contains(name)
    }

    /// Notes the parts of a pool that this host does not enforce.
    fn note_pool(&mut self, name: &str, pool: &Pool) {
        let config = &self.lowered.config;
        let (osds, devices) = devices_of(pool);
        let osds = !osds.is_empty() && allows(pool, Enforcement::Osd);
        let packets = config.packets.contains_key(name);
        let array = config.arrays.contains_key(name);
        let groups = config.cached.values().any(|cached| devices.contains(&cached.device.as_str()))
            && !has_slots(pool)
            && allows(pool, Enforcement::Cgroup);
        let local = self.local_pools.contains(name);
        // For points that are not listed above. It is checked last, as there may be very many rows.
        let has_rows = || config.enforced.rows.iter().any(|row| row.pool.as_deref() == Some(name));
        if !(osds || packets || array || groups || local || has_rows()) {
            let only_elsewhere =
                pool.enforce.as_ref().is_some_and(|points| points.iter().all(|point| *point == Enforcement::Queue));
            let why = if only_elsewhere {
                "enforce leaves the pool to `evenkeel serve`"
            } else if has_slots(pool) && pool.devices.is_empty() && !self.slotted.is_empty() {
                "the pool names no devices, as each pool must if another pool has slots too; add devices"
            } else if has_slots(pool) {
                "no tenant names a device of the pool (match = [\"device:PATH\"])"
            } else if pool.enforce.is_some() {
                "none of the points in the key enforce applies to the pool"
            } else if self.is_served(name, pool) {
                "`evenkeel serve` has volumes on the pool, and the pool has no devices"
            } else if pool.devices.is_empty() {
                "the pool has neither devices nor a latency target"
            } else {
                "the pool has no latency target, and no tenant with control groups (match = [\"cgroup:PATH\"]) has a guarantee or a limit"
            };
            return self.note(&["pools", name], format!("nothing to enforce here: {why}"));
        }
        let by = "has no effect here: `evenkeel serve` enforces it";
        let mut keys: Vec<(&[&str], &str)> = vec![
            (&["limit"], by),
            (&["emulate"], by),
            (&["tuning", "scheduler"], by),
            (&["tuning", "base_cost"], by),
            (&["tuning", "write_cost_percent"], by),
            (&["tuning", "stall_report_after"], by),
            (&["tuning", "noisy"], "has no effect here: agent.packets says which clients can be throttled"),
        ];
        if !osds {
            keys.push((
                &["tuning", "admission"],
                "has no effect here: it is for pools of OSDs and for `evenkeel serve`",
            ));
        }
        if local && pool.latency.is_none() {
            keys.push((&["max_delay"], "has no effect here: the pool has no latency target"));
        } else if !local {
            keys.push((&["max_delay"], "has no effect here: packets are delayed by at most agent.max_delay"));
        }
        if !(packets || local) {
            keys.push((&["latency"], "has no effect here: packets are delayed for pools with neither slots nor OSDs"));
        }
        if !groups {
            keys.push((&["tuning", "cache"], "has no effect here: no control group has a guarantee on the pool"));
            keys.push((&["tuning", "guarantee"], "has no effect here: no control group has a guarantee on the pool"));
        }
        for (key, message) in keys {
            let path = [&["pools", name], key].concat();
            if self.document.has(&path) {
                self.note(&path, message);
            }
        }
    }

    /// Notes the parts of a tenant that this host does not enforce.
    fn note_tenant(&mut self, name: &str, tenant: &Tenant) {
        let unseen = |entry: &&Match| match entry {
            Match::Volume(_) => true,
            Match::Client(who) => !matches!(who, Who::Address(_)),
            _ => false,
        };
        let entries: Vec<String> = tenant.matches.iter().filter(unseen).map(ToString::to_string).collect();
        if !entries.is_empty() {
            let message = format!("{} can only be seen by `evenkeel serve`", listed(&entries));
            self.note(&["tenants", name, "match"], message);
        }
        let (grouped, slotted) = (self.grouped.contains(name), self.slotted.contains(name));
        let by = "has no effect here: `evenkeel serve` enforces it";
        let rows = &self.lowered.config.enforced.rows;
        let spared = rows
            .iter()
            .any(|row| row.tenant.as_deref() == Some(name) && row.precedence == Some(Precedence::Reservation));
        let taken = if self.lowered.config.cluster.has_totals() {
            "only bounds throttling here: the agent leaves the tenant at least the whole reservation, as the tenant's requests here do not count in the total over the cluster; only `evenkeel serve` serves reserved requests first"
        } else {
            "only bounds throttling here: the agent leaves the tenant at least the reservation; only `evenkeel serve` serves reserved requests first"
        };
        let is_limit = |row: &&Row| (row.point, row.precedence) == (Enforcement::Cgroup, Some(Precedence::TenantLimit));
        let limited = rows.iter().filter(is_limit).any(|row| row.tenant.as_deref() == Some(name));
        let mut keys: Vec<(&str, &str)> = vec![("reservation", if spared { taken } else { by })];
        if !limited {
            let limit = "has no effect here: `evenkeel serve` enforces it, and this host on control groups without a guarantee, of a pool with devices";
            keys.push(("limit", limit));
        }
        keys.extend([("priority", by), ("weight_at", by)]);
        if !grouped && !tenant.guarantee.sum().is_unset() {
            let together = "has no effect here: limits of control groups are for reads or for writes; write guarantee.read and guarantee.write";
            let groups = "has no effect here: it needs control groups by their paths (match = [\"cgroup:PATH\"]) and a pool with devices";
            keys.push(("guarantee", if tenant.guarantee.together().is_unset() { groups } else { together }));
        }
        if !slotted {
            let slots = "has no effect here: it needs a device (match = [\"device:PATH\"]) of a pool with slots";
            let last = "has one effect here: the tenant's control groups are throttled last; the target itself needs a device (match = [\"device:PATH\"]) of a pool with slots";
            let with_target = self.lowered.config.local.values().filter(|local| local.latency.is_some());
            let is_local = with_target.flat_map(|local| &local.tenants).any(|of| of.name == name);
            keys.extend([("latency", if is_local { last } else { slots }), ("max_in_flight", slots)]);
        }
        for (key, message) in keys {
            let path = ["tenants", name, key];
            if self.document.has(&path) {
                self.note(&path, message);
            }
        }
    }

    /// Notes a tenant's rates on a pool of OSDs: the throttles of an OSD are for the requests of all tenants together.
    fn note_on_osds(&mut self, name: &str, tenant: &Tenant) {
        let pools = self.pools;
        for pool in tenant.pools.keys() {
            let is_of_osds = |pool: &Pool| !devices_of(pool).0.is_empty() && allows(pool, Enforcement::Osd);
            if !pools.get(pool).is_some_and(is_of_osds) {
                continue;
            }
            for key in ["reservation", "limit", "guarantee"] {
                let path = ["tenants", name, "pools", pool.as_str(), key];
                if self.document.has(&path) {
                    let message = "has no effect here: OSDs do not know tenants; `evenkeel serve` enforces it on volumes of the pool, and counts it in a total over a cluster";
                    self.note(&path, message);
                }
            }
        }
    }

    /// Warns of a limit that is a total over the members of a cluster, if the tenant's clients reach pools by targets of this
    /// host: packets wait for latency targets only. On pools with volumes of `evenkeel serve` the server counts the requests.
    fn doubt_total(&mut self, name: &str, tenant: &Tenant) {
        let has_clients = name == DEFAULT_TENANT || tenant.matches.iter().any(is_client);
        if !has_clients || !self.lowered.config.cluster.has_totals() {
            return;
        }
        let pools = self.lowered.config.packets.keys();
        let is_lost = |pool: &&String| !self.served.contains(*pool) && !tenant.on(pool).limit.rates().is_unset();
        let lost: Vec<String> = pools.filter(is_lost).cloned().collect();
        let Some(first) = lost.first() else { return };
        let message = format!(
            "is a total over all members of the cluster, but requests of its clients on {} are neither limited nor counted here: packets to clients wait for latency targets only; serve these volumes with `evenkeel serve`, or limit control groups with `evenkeel guard` on the clients' hosts",
            listed(&lost)
        );
        let path = self.said(name, first, "limit");
        self.doubt(&path, message);
    }
}
