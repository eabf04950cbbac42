//! The rules of a configuration beyond its syntax.

mod access;
mod baselines;
mod elsewhere;
mod hangs;
mod idle;
mod remote;
mod scope;
mod ties;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::config::{
    Backend, Config, DEFAULT_POOL, DEFAULT_VOLUME, Guarantee, Latency, Match, Need, Of, Owners, Pool, Scheduler,
    Server, Status, Tenant, Volume, Workers,
};
use crate::effective::Precedence;
use crate::names::{closest, is_name, unusable_name};
use crate::rbd::Image;
use crate::units::{Bytes, Duration, Rates};
use crate::uri::Address;

pub use baselines::findings;
pub use hangs::{budget_that_hangs, rate_that_hangs};
pub(crate) use idle::tenants as idle_tenants;

/// The longest path of a Unix socket, in bytes, without the terminating zero.
const MAX_SOCKET_PATH: usize = 107;
/// Longest `busy_poll`: waking up a worker takes less time in any case.
const MAX_BUSY_POLL: Duration = Duration::from_millis(1);
/// Shortest and longest `peer_timeout`. The kernel counts the time until it probes a peer in seconds, and the time for which it
/// then waits in milliseconds.
const PEER_TIMEOUT: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3600)];
/// Shortest and longest `record.keep`.
const RECORD_KEEP: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(3600)];
/// Smallest and largest `record.size`: the ring consists of eight parts, each of which has room for several blocks.
const RECORD_SIZE: [Bytes; 2] = [Bytes(16 << 20), Bytes(1 << 40)];
/// Largest `max_connections`. Each possible connection has an entry in every worker's table, which takes memory even if unused.
const MAX_CONNECTIONS: u32 = 1 << 20;
/// Smallest `max_request`: by the NBD protocol, clients may send requests of this size to any server that states no limit.
const MIN_MAX_REQUEST: Bytes = Bytes(32 << 20);
/// Largest `max_request`: the data of a read is completely in memory before the reply is sent.
const MAX_MAX_REQUEST: Bytes = Bytes(1 << 30);
/// The longest description of a volume, in bytes: the longest string of the NBD protocol.
const MAX_DESCRIPTION: usize = 4096;
/// Smallest `buffer_memory`: room for one request of the largest payload that clients may send.
const MIN_BUFFER_MEMORY: Bytes = Bytes(32 << 20);
/// Shortest control interval of slots, as in `evenkeel guard`. In a shorter one too few requests are measured, so that decisions
/// depend on chance.
const MIN_SLOTS_PERIOD: Duration = Duration::from_millis(100);
/// Largest weight of a tenant, within the range that the scheduler computes exactly.
const MAX_WEIGHT: u32 = 1_000_000;
/// Largest cost of a kind of request, in percent, within the range that the scheduler computes exactly.
const MAX_COST_PERCENT: u32 = 10_000;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The configuration cannot be used.
    Error,
    /// With the setting, clients would seem to hang. In a file this is a warning; a command that makes such a setting is refused
    /// unless it is forced.
    Hangs,
    /// The configuration can be used, but the setting is probably a mistake.
    Warning,
    /// The configuration can be used, but another program enforces the setting.
    Elsewhere,
}

/// A finding of the rules: a wrong or doubtful setting.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The severity of the finding.
    pub severity: Severity,
    /// The path of the setting: keys from the outermost table inward.
    pub path: Vec<String>,
    /// A message with the fault and the remedy.
    pub message: String,
}

struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, severity: Severity, path: &[&str], message: impl Into<String>) {
        let path = path.iter().map(|&key| key.to_owned()).collect();
        self.0.push(Finding { severity, path, message: message.into() });
    }

    fn error(&mut self, path: &[&str], message: impl Into<String>) {
        self.add(Severity::Error, path, message);
    }

    fn hangs(&mut self, path: &[&str], message: impl Into<String>) {
        self.add(Severity::Hangs, path, message);
    }

    fn warning(&mut self, path: &[&str], message: impl Into<String>) {
        self.add(Severity::Warning, path, message);
    }

    fn error_if(&mut self, wrong: bool, path: &[&str], message: &str) {
        if wrong {
            self.error(path, message);
        }
    }

    /// Checks that a value is between two bounds, which the message encloses in `quote`.
    fn range<T: PartialOrd + Copy + Display>(&mut self, path: &[&str], value: T, [least, most]: [T; 2], quote: &str) {
        let fits = (least..=most).contains(&value);
        let message = format!("{value} is out of range; use {quote}{least}{quote} to {quote}{most}{quote}");
        self.error_if(!fits, path, &message);
    }
}

/// All findings about a configuration that a simulation runs, in the order of its tables. Methods for comparison (baselines) are
/// allowed.
pub fn simulated(config: &Config) -> Vec<Finding> {
    let mut out = Findings(Vec::new());
    server(config, &config.server, &mut out);
    pools(&config.pools, &mut out);
    let owners = config.owners();
    for (name, settings) in &config.pools {
        pool(config, &owners, name, settings, &mut out);
    }
    tenants(&config.tenants, &config.pools, &mut out);
    for (name, settings) in &config.tenants {
        hangs::of_tenant(name, settings, &mut out);
    }
    certificates(config, &mut out);
    elsewhere::keys(config, &mut out);
    names("volumes", config.volumes.keys(), &mut out);
    for (name, settings) in &config.volumes {
        volume(config, name, settings, &mut out);
    }
    shared_paths(config, &mut out);
    idle::names(config, &owners, &mut out);
    config.cluster.faults().into_iter().for_each(|(key, message)| out.error(&["cluster", key], message));
    out.0
}

/// All findings about a policy that do not depend on the enforcement point. `named` are the pools, `owners` the tenants.
pub fn policy_findings(named: &BTreeMap<String, Pool>, owners: &BTreeMap<String, Tenant>) -> Vec<Finding> {
    let mut out = Findings(Vec::new());
    pools(named, &mut out);
    tenants(owners, named, &mut out);
    baselines::of_pools(named, &mut out);
    out.0
}

fn pools(pools: &BTreeMap<String, Pool>, out: &mut Findings) {
    for name in pools.keys().filter(|name| !is_pool_name(name)) {
        out.error(&["pools", name], unusable_name(name));
    }
    for (name, pool) in pools {
        settings_of_pool(name, pool, out);
    }
}

fn tenants(tenants: &BTreeMap<String, Tenant>, pools: &BTreeMap<String, Pool>, out: &mut Findings) {
    names("tenants", tenants.keys(), out);
    for (name, settings) in tenants {
        tenant(&["tenants", name], settings, |_| true, out);
        scope::each(name, settings, out);
        for (pool, own) in &settings.pools {
            let at = ["tenants", name, "pools", pool];
            if pool != DEFAULT_POOL && !pools.contains_key(pool) {
                out.error(&at, unknown_name("pool", pool, pools.keys()));
            }
            let written = serde_json::to_value(own).unwrap_or_default();
            tenant(&at, &settings.on(pool), |key| written.get(key).is_some(), out);
        }
    }
    matches(tenants, out);
    ties::warn(tenants, out);
}

/// True if `name` can be the name of a pool: by the rule for other names, but also with ':' and '+', as in the name of an iSCSI
/// target.
pub fn is_pool_name(name: &str) -> bool {
    is_name(&name.replace([':', '+'], "_"))
}

fn names<'a>(table: &str, names: impl Iterator<Item = &'a String>, out: &mut Findings) {
    for name in names {
        if !is_name(name) {
            out.error(&[table, name], unusable_name(name));
        }
    }
}

/// True if only one of two sockets can listen, because their addresses are equal or one includes the other.
fn clash(a: SocketAddr, b: SocketAddr) -> bool {
    let includes = a.is_ipv4() == b.is_ipv4() && (a.ip().is_unspecified() || b.ip().is_unspecified());
    a.port() == b.port() && a.port() != 0 && (a == b || includes)
}

fn server(config: &Config, server: &Server, out: &mut Findings) {
    let at = |key: &'static str| ["server", key];
    let sockets = server.unix_paths();
    out.error_if(
        server.listen.is_empty() && sockets.is_empty(),
        &at("listen"),
        "the server listens nowhere; give at least one address here or one path in unix",
    );
    for (i, address) in server.listen.iter().enumerate() {
        match server.listen[..i].iter().find(|other| clash(**other, *address)) {
            Some(other) if other == address => {
                out.error(&at("listen"), format!("{address} is listed twice; remove one"));
            }
            Some(other) => {
                let (wide, narrow) = if other.ip().is_unspecified() { (other, address) } else { (address, other) };
                out.error(&at("listen"), format!("{wide} includes {narrow}; remove one"));
            }
            None => {}
        }
        if !address.ip().is_loopback()
            && let Some(danger) = config.danger_from_afar()
        {
            out.warning(&at("listen"), format!("{address} is reachable from other machines, and {danger}"));
        }
    }
    access::certificates(config, out);
    let terms = server.terms();
    terms.faults().into_iter().for_each(|([table, key], message)| out.error(&["server", table, key], message));
    access::of_server(config, out);
    if let Status::At(address) = server.status {
        match server.listen.iter().find(|other| clash(**other, address)) {
            Some(other) if *other == address => {
                out.error(&at("status"), format!("{address} already serves NBD; use another port"));
            }
            Some(other) => {
                let message = format!("{other} already serves NBD, and {address} has the same port; use another port");
                out.error(&at("status"), message);
            }
            None => {}
        }
        if let Some(danger) = terms.danger(address) {
            out.warning(&at("status"), danger);
        }
    }
    let control = server.control_path();
    let mut seen: Vec<&PathBuf> = Vec::new();
    for (key, path) in sockets.iter().map(|path| ("unix", path)).chain([("control", &control)]) {
        if seen.contains(&path) && !path.as_os_str().is_empty() {
            out.error(&at(key), format!("{} is used twice; give each socket its own path", path.display()));
        }
        if path.as_os_str().is_empty() {
            let none = if key == "unix" { "[] for none" } else { "remove this key" };
            out.error(&at(key), format!("is empty; write a path, or {none}"));
        }
        if path.as_os_str().len() > MAX_SOCKET_PATH {
            out.error(
                &at(key),
                format!(
                    "{} is longer than the {MAX_SOCKET_PATH} bytes the kernel allows for a socket; use a shorter path",
                    path.display()
                ),
            );
        }
        seen.push(path);
    }
    if let Workers::Count(count) = server.workers {
        out.error_if(
            !(1..=Workers::MAX).contains(&count),
            &at("workers"),
            &format!("{count} is out of range; use \"auto\" or 1 to {}", Workers::MAX),
        );
    }
    if let Some(name) = &server.default_export
        && !config.volumes.contains_key(name)
    {
        out.error(&at("default_export"), unknown_name("volume", name, config.volumes.keys()));
    }
    out.range(&at("max_connections"), server.max_connections, [1, MAX_CONNECTIONS], "");
    out.error_if(
        server.max_inflight_per_connection == 0,
        &at("max_inflight_per_connection"),
        "0 would serve nothing; use at least 1",
    );
    out.error_if(
        server.buffer_memory < MIN_BUFFER_MEMORY,
        &at("buffer_memory"),
        &format!("{} is too small; use at least {MIN_BUFFER_MEMORY}", server.buffer_memory),
    );
    out.range(&at("max_request"), server.max_request, [MIN_MAX_REQUEST, MAX_MAX_REQUEST], "");
    out.error_if(
        server.busy_poll > MAX_BUSY_POLL,
        &at("busy_poll"),
        "is longer than any wake-up takes and would only cost processor time; use at most \"1ms\", or \"0s\" for none",
    );
    out.error_if(
        server.handshake_timeout.is_zero(),
        &at("handshake_timeout"),
        "0 would disconnect every client; use for example \"30s\"",
    );
    for (key, most) in
        [("max_handshakes", server.max_handshakes), ("max_handshakes_per_client", server.max_handshakes_per_client)]
    {
        out.error_if(most == 0, &at(key), "0 would admit no client; use at least 1");
    }
    out.range(&at("peer_timeout"), server.peer_timeout, PEER_TIMEOUT, "\"");
    if let Some(record) = &server.record {
        out.range(&["server", "record", "keep"], record.keep, RECORD_KEEP, "\"");
        out.range(&["server", "record", "size"], record.size, RECORD_SIZE, "\"");
    }
}

/// Checks those settings of a pool that can be judged without other pools, tenants or volumes.
fn settings_of_pool(name: &str, pool: &Pool, out: &mut Findings) {
    scope::hours(pool.limit, &["pools", name, "limit"], out);
    let at = |key: &'static str| ["pools", name, "tuning", key];
    let tuning = &pool.tuning;
    if let Err(invalid) = tuning.admission.validate() {
        out.error(&at("admission"), invalid.to_string());
    }
    out.error_if(u32::try_from(tuning.base_cost.0).is_err(), &at("base_cost"), "is too large; use less than 4GiB");
    out.error_if(
        !(1..=MAX_COST_PERCENT).contains(&tuning.write_cost_percent),
        &at("write_cost_percent"),
        &format!(
            "{} is out of range; use 1 to {MAX_COST_PERCENT} (100 = as much as a read)",
            tuning.write_cost_percent
        ),
    );
    out.error_if(
        tuning.stall_report_after.is_zero(),
        &at("stall_report_after"),
        "0 would report every I/O; use for example \"10s\"",
    );
    if let Some(emulate) = &pool.emulate
        && let Err(invalid) = emulate.validate()
    {
        out.error(&["pools", name, "emulate"], invalid.to_string());
    }
    out.error_if(
        pool.devices.iter().any(String::is_empty),
        &["pools", name, "devices"],
        "one of the devices has no name; write for example \"/dev/vg1/lv1\"",
    );
    let guarantee = tuning.guarantee.fault(tuning.cache.slow_bytes_per_s);
    if let Some(([table, key], message)) = guarantee {
        out.error(&["pools", name, "tuning", table, key], message);
    }
    if let Some(latency) = pool.latency {
        latency_of(latency, Of::Reads, &["pools", name, "latency"], out);
    }
}

fn pool(config: &Config, owners: &Owners<'_>, name: &str, pool: &Pool, out: &mut Findings) {
    hangs::of_pool(name, pool, out);
    latency_of_pool(config, owners, name, pool, out);
    slots(config, owners, name, pool, out);
    guarantees(config, owners, name, pool, out);
}

/// Checks a pool's settings for slots. Without slots, warns about latency targets of tenants, which then have no effect.
fn slots(config: &Config, owners: &Owners<'_>, name: &str, pool: &Pool, out: &mut Findings) {
    let at = |key: &'static str| ["pools", name, "tuning", key];
    let Some(control) = config.control(pool).slots else {
        if let Some(whose) = unmet_target(config, owners, name) {
            out.warning(
                &at("slots"),
                format!("{whose} has a latency target, which has no effect without slots; use slots = \"needs\""),
            );
        }
        return;
    };
    if config.cluster.etcd.is_empty() && pool.tuning.slots_period.is_some_and(|period| period < MIN_SLOTS_PERIOD) {
        out.error(&at("slots_period"), "must be from 100 ms to 60 s");
        return;
    }
    out.error_if(
        pool.tuning.scheduler == Scheduler::None,
        &at("slots"),
        "need scheduler = \"mclock\": without it no tenant can be throttled",
    );
    // Their totals are shared out among the tenants that one pool knows.
    out.error_if(
        !config.cluster.etcd.is_empty() && pool.tuning.slots == crate::config::Slots::Drg,
        &at("slots"),
        "must be \"needs\", \"rwd\" or \"parda\" with [cluster]: \"drg\" knows the tenants of one host only",
    );
    if let Err(invalid) = control.validate() {
        let key = match invalid.setting {
            "latency" => "slots_latency",
            "period" if config.cluster.etcd.is_empty() => "slots_period",
            _ => "slots_most",
        };
        out.error(&at(key), format!("must be {}", invalid.must_be));
    }
}

/// A tenant, in words, whose latency target has no effect on a pool without slots; `None` if there is no such tenant.
fn unmet_target(config: &Config, owners: &Owners<'_>, pool: &str) -> Option<String> {
    let has_target = |tenant: &Tenant| tenant.on(pool).latency.is_some();
    let mut ours = config.volumes.iter().filter(|(_, volume)| volume.pool == pool).peekable();
    ours.peek()?;
    let of_volume = ours.find(|(name, volume)| config.tenants.get(owners.of(name, volume)).is_some_and(has_target));
    if let Some((volume, _)) = of_volume {
        return Some(format!("the tenant of volume {volume:?}"));
    }
    // A target of all pools is for those with slots, and clients may use one of them.
    let has_slots = |pool: &String| config.pools.get(pool).is_some_and(|pool| config.control(pool).slots.is_some());
    let met = config.volumes.values().any(|volume| has_slots(&volume.pool));
    let is_meant = |tenant: &Tenant| !met || tenant.pools.get(pool).is_some_and(|own| own.latency.is_some());
    let mut by_client = config.tenants.iter().filter(|(_, tenant)| brings_clients(tenant));
    let (tenant, _) = by_client.find(|(_, tenant)| has_target(tenant) && is_meant(tenant))?;
    Some(format!("tenant {tenant:?}"))
}

/// True if clients belong to this tenant, so that it may use every pool.
fn brings_clients(tenant: &Tenant) -> bool {
    tenant.matches.iter().any(|entry| matches!(entry, Match::Client(_)))
}

/// Checks that a pool's latency target is valid, and that there is a tenant that may be throttled for it.
fn latency_of_pool(config: &Config, owners: &Owners<'_>, name: &str, pool: &Pool, out: &mut Findings) {
    let Some(target) = pool.target() else { return };
    if let Err(invalid) = target.validate() {
        let path: &[&str] = match invalid.setting {
            "target" => &["pools", name, "latency", "target"],
            "max_delay" => &["pools", name, "max_delay"],
            other => &["pools", name, "tuning", other],
        };
        out.error(path, format!("must be {}", invalid.must_be));
    }
    out.error_if(
        pool.tuning.scheduler == Scheduler::None,
        &["pools", name, "latency"],
        "needs scheduler = \"mclock\": without it no tenant can be throttled",
    );
    let mut backends = config.volumes.values().filter(|volume| volume.pool == name).map(|volume| volume.backend);
    if backends.next().is_some_and(|first| first == Backend::Memory && backends.all(|other| other == first)) {
        out.warning(
            &["pools", name, "latency"],
            "all volumes of this pool are in memory, where no latency is controlled; to try a target, use backend = \"emulate\"",
        );
        return;
    }
    let mut tenants = config.volumes.iter().filter(|(_, volume)| volume.pool == name);
    let ours = |(name, volume): (&String, &Volume)| owners.of(name, volume).to_owned();
    let first = tenants.next().map(ours);
    // Clients may bring tenants of their own.
    let by_client = config.tenants.values().any(brings_clients);
    if let Some(only) = first
        && !by_client
        && tenants.all(|volume| ours(volume) == only)
    {
        out.warning(
            &["pools", name, "latency"],
            format!("all volumes of this pool belong to tenant {only:?}, and no tenant is throttled for its own latency; give volumes that disturb others a tenant of their own"),
        );
    }
}

/// Checks the latency target at the path `at`. `measured` names the requests whose latency the target is about.
fn latency_of(latency: Latency, measured: Of, at: &[&str], out: &mut Findings) {
    let path = |key: &'static str| [at, &[key]].concat();
    out.error_if(latency.target.is_zero(), &path("target"), "must be more than 0s; use for example \"50ms\"");
    let (name, owner) = match measured {
        Of::All => ("all", "a tenant's target counts all its requests"),
        Of::Reads | Of::Writes => ("reads", "a pool's target counts reads only"),
    };
    let other = latency.of.is_some_and(|of| of != measured);
    out.error_if(other, &path("of"), &format!("{owner}; write \"{name}\", or remove this key"));
}

/// Warns if the guarantees and reservations of a pool's tenants exceed the pool's limit.
fn guarantees(config: &Config, owners: &Owners<'_>, name: &str, pool: &Pool, out: &mut Findings) {
    let mut tenants: Vec<&str> =
        config.volumes.iter().filter(|(_, v)| v.pool == name).map(|(n, v)| owners.of(n, v)).collect();
    tenants.sort_unstable();
    // A tenant with `each` is owed as often as it has volumes.
    tenants.dedup_by(|a, b| a == b && !config.tenants.get(*b).is_some_and(|tenant| tenant.each));
    let there = |tenant: &str| config.tenants.get(tenant).map(|tenant| tenant.on(name));
    if pool.tuning.scheduler == Scheduler::None && !tenants.is_empty() {
        let by_client =
            config.tenants.iter().filter(|(_, tenant)| brings_clients(tenant)).map(|(name, _)| name.as_str());
        let idle = tenants.iter().copied().chain(by_client).find_map(|name| Some((name, rates_of(&there(name)?)?)));
        if let Some((tenant, what)) = idle {
            out.warning(
                &["pools", name, "tuning", "scheduler"],
                format!("tenant {tenant:?} has a {what}, which has no effect when requests go first come, first served; use \"mclock\""),
            );
        }
    }
    tenants.retain(|tenant| {
        there(tenant).is_some_and(|own| !own.reservation.is_unset() || !own.guarantee.sum().is_unset())
    });
    let due = tenants.iter().filter_map(|tenant| there(tenant)).fold(Rates::default(), |sum, tenant| {
        let (reserved, guaranteed) = (tenant.reservation, tenant.guarantee.sum());
        Rates {
            iops: sum.iops.saturating_add(reserved.iops.max(guaranteed.iops)),
            bytes_per_s: Bytes(sum.bytes_per_s.0.saturating_add(reserved.bytes_per_s.max(guaranteed.bytes_per_s).0)),
        }
    });
    tenants.dedup();
    let owners = format!("tenant{} {}", if tenants.len() == 1 { "" } else { "s" }, tenants.join(", "));
    let limit = pool.limit.rates();
    if exceeds(due.iops, limit.iops) || exceeds(due.bytes_per_s.0, limit.bytes_per_s.0) {
        out.warning(
            &["pools", name, "limit"],
            format!("reservations and guarantees of {owners} come to {due}, more than the limit of {limit}: the {} wins, and not all can be met at once; raise the limit, or lower them", Precedence::PoolLimit.winner(Precedence::Reservation)),
        );
    }
}

/// Key of the first setting of a tenant that is set and that only the scheduler enforces; `None` if none is set.
fn rates_of(tenant: &Tenant) -> Option<&'static str> {
    let set = [
        ("throughput guarantee", tenant.guarantee.sum()),
        ("reservation", tenant.reservation),
        ("limit", tenant.limit.rates()),
    ];
    set.into_iter().find_map(|(what, rates)| (!rates.is_unset()).then_some(what))
}

/// True if a limit is set (not 0) and the rate is above it.
fn exceeds(rate: u64, limit: u64) -> bool {
    limit > 0 && rate > limit
}

/// Checks the settings of a tenant at the path `at`: all settings, or those for one pool. `says` is true for keys to be checked.
fn tenant(at: &[&str], tenant: &Tenant, says: impl Fn(&str) -> bool, out: &mut Findings) {
    let path = |key: &'static str| [at, &[key]].concat();
    out.error_if(
        says("weight") && !(1..=MAX_WEIGHT).contains(&tenant.weight),
        &path("weight"),
        &format!(
            "{} is out of range; use 1 to {MAX_WEIGHT} (for little service beside others: priority = \"background\")",
            tenant.weight
        ),
    );
    let (reserved, limit) = (tenant.reservation, tenant.limit.rates());
    let exceeded = exceeds(reserved.iops, limit.iops) || exceeds(reserved.bytes_per_s.0, limit.bytes_per_s.0);
    if let Some(key) = ["reservation", "limit"].into_iter().find(|key| exceeded && says(key)) {
        out.error(
            &path(key),
            format!("{reserved} reserved is more than the tenant's limit of {limit}; raise the limit or lower the reservation"),
        );
    }
    if says("limit") {
        scope::hours(tenant.limit, &path("limit"), out);
    }
    if says("weight_at") {
        scope::weight_at(tenant, &path("weight_at"), out);
    }
    if says("guarantee") {
        guarantee(tenant, out, &path("guarantee"));
    }
    let none = says("max_in_flight") && tenant.max_in_flight == Some(0);
    out.error_if(none, &path("max_in_flight"), "must be at least 1; without this key the device's queue depth counts");
    if let Some(latency) = tenant.latency.filter(|_| says("latency")) {
        latency_of(latency, Of::All, &path("latency"), out);
    }
}

/// Checks that a guarantee can be kept and has an effect.
fn guarantee(tenant: &Tenant, out: &mut Findings, at: &[&str]) {
    let (guarantee, reserved, limit) = (tenant.guarantee, tenant.reservation, tenant.limit.rates());
    let exceeding = |rates: Rates, bound: Rates| {
        exceeds(rates.iops, bound.iops) || exceeds(rates.bytes_per_s.0, bound.bytes_per_s.0)
    };
    for (direction, rates) in
        [(None, guarantee.together()), (Some("read"), guarantee.read.rates()), (Some("write"), guarantee.write.rates())]
    {
        if rates.iops > 0 && rates.bytes_per_s.0 > 0 {
            let path: Vec<&str> = at.iter().copied().chain(direction).collect();
            out.error(&path, "must be either iops or bytes_per_s: both cannot be met exactly");
            return;
        }
    }
    for (key, direction) in [("read", guarantee.read), ("write", guarantee.write)] {
        let Some(ceiling) = direction.ceiling else { continue };
        let path = [at, &[key, "ceiling"]].concat();
        let least = direction.iops.max(direction.bytes_per_s.0);
        out.error_if(least == 0, &path, "belongs to a guarantee; add bytes_per_s or iops beside it");
        out.error_if(ceiling.0 < least, &path, "must be at least the guarantee; raise ceiling, or lower the guarantee");
    }
    let each = !guarantee.read.is_unset() || !guarantee.write.is_unset();
    let sum = guarantee.sum();
    if each && !guarantee.together().is_unset() {
        out.error(at, "is given both for all requests and for each direction; remove read and write, or iops and bytes_per_s beside them");
    } else if exceeding(sum, limit) {
        out.error(
            at,
            format!("{sum} is more than the tenant's limit of {limit}; raise the limit or lower the guarantee"),
        );
    } else if exceeding(reserved, sum) && (!each || both_in_one_unit(&guarantee)) {
        let winner = Precedence::Guarantee.winner(Precedence::Reservation);
        out.warning(at, format!("the {winner} of {reserved} is more and wins, so that this guarantee of {sum} has no effect; lower the {winner}, or raise the guarantee"));
    }
}

/// True if reads and writes are guaranteed in the same unit, so that the guarantees add up.
fn both_in_one_unit(guarantee: &Guarantee) -> bool {
    let (read, write) = (guarantee.read, guarantee.write);
    (read.iops > 0 && write.iops > 0) || (read.bytes_per_s.0 > 0 && write.bytes_per_s.0 > 0)
}

/// Checks that the server requests certificates of clients if a tenant's `match` names one.
fn certificates(config: &Config, out: &mut Findings) {
    if config.server.tls.as_ref().is_some_and(|tls| tls.clients.is_some()) {
        return;
    }
    for (name, tenant) in &config.tenants {
        let unasked = |entry: &&Match| matches!(entry, Match::Client(who) if who.needs_certificate());
        for entry in tenant.matches.iter().filter(unasked) {
            out.error(
                &["tenants", name, "match"],
                format!("no client is asked for a certificate; set clients in [server.tls], or remove {entry}"),
            );
        }
    }
}

/// Checks that no entry of `match` belongs to two tenants. A block of addresses within another block is allowed, because the
/// most specific entry decides.
fn matches(tenants: &BTreeMap<String, Tenant>, out: &mut Findings) {
    let mut owners = BTreeMap::new();
    for (name, tenant) in tenants {
        let at = ["tenants", name, "match"];
        for entry in &tenant.matches {
            let text = match entry {
                Match::Client(_) | Match::Initiator(_) => entry.to_string().to_lowercase(),
                // Paths, volumes and containers have large and small letters.
                _ => entry.to_string(),
            };
            match owners.insert(text, name) {
                Some(other) if other != name => {
                    out.error(
                        &at,
                        format!("{entry} already belongs to tenant {other:?}; a client can have one tenant only"),
                    );
                }
                _ => {}
            }
        }
    }
}

fn volume(config: &Config, name: &str, volume: &Volume, out: &mut Findings) {
    let at = |key: &'static str| ["volumes", name, key];
    let backend = volume.backend.name();
    out.error_if(
        volume.description.len() > MAX_DESCRIPTION || volume.description.contains('\0'),
        &at("description"),
        &format!("cannot be sent to clients; use at most {MAX_DESCRIPTION} bytes and no zero byte"),
    );
    match config.pools.get(&volume.pool) {
        None => out.error(&at("pool"), unknown_name("pool", &volume.pool, config.pools.keys())),
        Some(pool) => out.error_if(
            volume.backend == Backend::Emulate && pool.emulate.is_none(),
            &at("backend"),
            &format!(
                "pool {:?} emulates no device; add [pools.{}.emulate], or use backend = \"memory\"",
                volume.pool, volume.pool
            ),
        ),
    }
    if let Some(tenant) = &volume.tenant
        && !config.tenants.contains_key(tenant)
    {
        out.error(&at("tenant"), unknown_name("tenant", tenant, config.tenants.keys()));
    }
    out.error_if(
        config.server.tls.is_none() && volume.tls.is_some_and(|need| need != Need::No),
        &at("tls"),
        "the server has no certificate; add [server.tls] with certificate and key, or remove this key",
    );
    scope::hours(volume.limit, &at("limit"), out);
    hangs::of_volume(name, volume, out);
    access::of_volume(config, name, volume, out);
    remote::export(&config.server, name, volume, out);
    remote::twice(config, name, volume, out);
    remote::image(name, volume, out);
    remote::cache(name, volume, out);
    match (volume.backend, &volume.path) {
        (Backend::Memory | Backend::Emulate | Backend::Nbd | Backend::Rbd, Some(_)) => {
            out.error(
                &at("path"),
                format!("backend {backend:?} has no path; remove this key, or use backend = \"file\""),
            );
        }
        (Backend::Block, None) => {
            out.error(&at("backend"), "backend \"block\" needs a path, for example path = \"/dev/vdb\"");
        }
        _ => {}
    }
    let on_disk = matches!(volume.backend, Backend::File | Backend::Block);
    let wrong = format!("backend {backend:?} holds no file of another format; remove this key");
    out.error_if(!on_disk && volume.format.is_some(), &at("format"), &wrong);
    out.error_if(
        volume.grow && (volume.backend != Backend::File || volume.size.is_none()),
        &at("grow"),
        "lengthens a file to size; use it with backend = \"file\" and a size, or remove this key",
    );
    match (volume.backend, volume.size) {
        (Backend::Memory | Backend::Emulate, None) => {
            out.error(&at("backend"), format!("backend {backend:?} needs a size, for example size = \"1GiB\""));
        }
        (Backend::Block, Some(_)) => out.error(&at("size"), "the size of a block device is fixed; remove this key"),
        (Backend::Nbd, Some(_)) => out.error(&at("size"), "the remote server sets the size; remove this key"),
        (Backend::Rbd, Some(_)) => out.error(&at("size"), "the RBD image has its own size; remove this key"),
        (_, Some(Bytes(0))) => out.error(&at("size"), "must be greater than 0"),
        (_, Some(size)) if i64::try_from(size.0).is_err() => {
            out.error(&at("size"), format!("{size} is more than a file can hold; use less than 8388608TiB"));
        }
        (_, Some(size)) if !size.0.is_multiple_of(512) => {
            out.warning(
                &at("size"),
                format!("{size} is not a multiple of 512 bytes, and the kernel's NBD client sees whole blocks of 512 bytes only; use a multiple"),
            );
        }
        _ => {}
    }
}

/// Checks that no two volumes have the same file, device, export or image, and that no volume has the path of a socket.
fn shared_paths(config: &Config, out: &mut Findings) {
    let (sockets, control) = (config.server.unix_paths(), config.server.control_path());
    let mut owners: BTreeMap<PathBuf, &str> = BTreeMap::new();
    let mut exports: BTreeMap<(&Address, &str), &str> = BTreeMap::new();
    let mut images: BTreeMap<(Option<&Path>, &Image), &str> = BTreeMap::new();
    for (name, volume) in &config.volumes {
        if let Some(uri) = &volume.uri
            && let Some(other) = exports.insert((&uri.address, uri.export.as_str()), name)
        {
            out.error(
                &["volumes", name, "uri"],
                format!("{uri} already holds volume {other:?}; give each volume its own export"),
            );
        }
        if let Some(image) = &volume.rbd
            && let Some(other) = images.insert((volume.ceph_conf.as_deref(), image), name)
        {
            out.error(
                &["volumes", name, "rbd"],
                format!("{image} already holds volume {other:?}; give each volume its own image"),
            );
        }
        let Some(path) = config.path_of(name, volume) else { continue };
        if path == control || sockets.contains(&path) {
            out.error(
                &["volumes", name, "path"],
                format!("{} is also the path of a socket; give one of them another", path.display()),
            );
        }
        if let Some(other) = owners.insert(path.clone(), name) {
            out.error(
                &["volumes", name, "path"],
                format!("{} already holds volume {other:?}; give each volume its own", path.display()),
            );
        }
    }
}

/// The most names that a message lists, as there may be thousands.
const MAX_NAMED: usize = 20;

/// The message about a reference to a name that does not exist: there is no pool "fats"; did you mean "fast"? `what` is the kind
/// of object, `known` are the existing names.
pub fn unknown(what: &str, name: &str, known: &[&str]) -> String {
    match closest(name, known) {
        Some(close) => format!("there is no {what} {name:?}; did you mean {close:?}?"),
        None if known.is_empty() => format!("there is no {what} {name:?}; there are no {what}s at all"),
        None if known.len() > MAX_NAMED => {
            let (some, more) = known.split_at(MAX_NAMED);
            format!("there is no {what} {name:?}; known: {} and {} more", some.join(", "), more.len())
        }
        None => format!("there is no {what} {name:?}; known: {}", known.join(", ")),
    }
}

/// As [`unknown`], for a key that may be left out. `known` are the names in a table.
fn unknown_name<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a String>) -> String {
    let known: Vec<&str> = known.map(String::as_str).collect();
    let cure = if known.is_empty() {
        format!(", so leave this key out or add [{what}s.{DEFAULT_VOLUME}]")
    } else {
        String::new()
    };
    unknown(what, name, &known) + &cure
}
