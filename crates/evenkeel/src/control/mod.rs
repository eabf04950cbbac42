//! Commands that talk to a running server over its control socket.

use std::num::IntErrorKind;
use std::path::PathBuf;

use anyhow::{Context, anyhow, ensure};
use clap::builder::{PathBufValueParser, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use evenkeel_net::http::{Method, Place};
use evenkeel_policy::config::{EtcdTls, Match, Server, Workers};
use evenkeel_policy::hours::Hours;
use evenkeel_policy::rbd::Image;
use evenkeel_policy::state::State;
use evenkeel_policy::units::{Bytes, Duration, UnitError};
use evenkeel_policy::uri::{Address, Target};
use evenkeel_policy::{is_name, is_pool_name, unusable_name};
use serde::Serialize;
use serde_json::{Map, Value, json};

mod ask;
mod client;
mod edit;
mod names;
mod one;
mod reach;
mod save;
pub(crate) mod show;
mod site;
#[cfg(test)]
mod tests;

use crate::output::{self, Usage};
use ask::{Ask, Keep};
pub(crate) use client::{PATIENCE, get, path};
pub(crate) use names::{Names, names};
pub(crate) use reach::{Reach, first};
use save::Part;
pub(crate) use show::{table, words};
pub(crate) use site::{Certificates, Site, plain};

/// Error message about an answer of the server that cannot be parsed.
const OTHER_VERSION: &str = "the server speaks another version of the API: use an evenkeel of its version";

/// Which server to talk to.
#[derive(Args)]
pub(crate) struct Connect {
    /// The server's control socket [default: DATA_DIR/control.sock]
    #[arg(long, value_name = "PATH", conflicts_with = "config")]
    control: Option<PathBuf>,

    /// The configuration the server was started with, which names the control socket
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,

    /// The data folder of the server [default: ./evenkeel-data]
    #[arg(long, value_name = "DIR", conflicts_with = "control")]
    data_dir: Option<PathBuf>,
}

impl Connect {
    /// True if an option names a server.
    pub(crate) fn is_given(&self) -> bool {
        self.control.is_some() || self.config.is_some() || self.data_dir.is_some()
    }

    /// The control socket of the server that the options name.
    ///
    /// # Errors
    /// When the configuration that should name the socket cannot be used.
    pub(crate) fn socket(&self) -> anyhow::Result<Place> {
        // A file that cannot be used names no server: better none than another one.
        let mut server = match &self.config {
            Some(file) => client::named(file).map_err(|errors| {
                anyhow!(
                    "{errors}\nwhat to do: mend the file, or name the socket of the running server with --control PATH"
                )
            })?,
            None => Server::default(),
        };
        if let Some(data_dir) = &self.data_dir {
            server.data_dir.clone_from(data_dir);
        }
        Ok(Place::Socket(self.control.clone().unwrap_or_else(|| server.control_path())))
    }

    fn state(&self) -> anyhow::Result<State> {
        let text = get(&self.socket()?, "/api/v1/state", PATIENCE)?;
        serde_json::from_str(&text).context(OTHER_VERSION)
    }
}

/// Options of `evenkeel state`.
#[derive(Args)]
pub(crate) struct StateArgs {
    /// Print the whole record as JSON, as /api/v1/state does
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connect: Connect,
}

/// Runs `evenkeel state`: prints the state of a server.
///
/// # Errors
/// When no server answers.
pub(crate) fn state(args: &StateArgs) -> anyhow::Result<()> {
    output::show(args.json, &args.connect.state()?, show::state)
}

/// Options of `evenkeel reload`.
#[derive(Args)]
pub(crate) struct Reload {
    /// Print the changes that a reload would make, and make none
    ///
    /// Reads and checks the file as a reload does, but opens no volume. Keys that need a restart are an error, as for a reload.
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    ask: Ask,
}

/// Runs `evenkeel reload`: makes a server read its configuration again.
///
/// # Errors
/// When no server answers, or the configuration cannot take effect. In the latter case the server changes nothing.
pub(crate) fn reload(args: &Reload) -> anyhow::Result<()> {
    if args.dry_run {
        return args.ask.preview();
    }
    args.ask.change(Method::POST, "/api/v1/reload", None)
}

/// `evenkeel volume`.
#[derive(Subcommand)]
pub(crate) enum VolumeCommand {
    /// List volumes
    List {
        #[command(flatten)]
        ask: Ask,
    },
    /// Show a volume: its settings, space and connections
    Show {
        /// Name of the volume
        name: String,
        #[command(flatten)]
        ask: Ask,
    },
    /// Create a volume and serve it, now and after a restart
    #[command(visible_alias = "add")]
    Create(Box<Create>),
    /// Change a volume that was created by command, now and after a restart
    ///
    /// A volume in the configuration file can have another limit, in force until the next reload or restart, unless --save
    /// writes it into that file.
    Set {
        /// Name of the volume
        #[arg(value_parser = usable_name)]
        name: String,
        /// The tenant of its connections
        #[arg(long)]
        tenant: Option<String>,
        /// Description, shown to clients that list exports
        #[arg(long)]
        description: Option<String>,
        /// New size, for example 20GiB; a volume only grows
        #[arg(long, conflicts_with_all = ["tenant", "description", "limit_iops", "limit_bytes_per_s", "limit_burst", "limit_when", "save"])]
        size: Option<Bytes>,
        /// Requests per second that its clients together never exceed; 0 = no limit
        #[arg(long, value_name = "N", value_parser = whole::<u64>)]
        limit_iops: Option<u64>,
        /// Bytes per second that they never exceed, for example 40MB; 0 = no limit
        #[arg(long, value_name = "BYTES")]
        limit_bytes_per_s: Option<Bytes>,
        /// How much unused limit may be saved up, for example 50ms
        #[arg(long, value_name = "TIME")]
        limit_burst: Option<Duration>,
        /// Hours of the day in which the limit applies, by the host's clock, for example 22:00-06:00; "none" = all hours
        #[arg(long, value_parser = parse_hours, value_name = "HOURS")]
        limit_when: Option<Value>,
        /// Take values with which clients would seem to hang, such as a limit of less than one request a second
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        keep: Keep,
    },
    /// Make a volume longer; clients see it when they reconnect
    #[command(alias = "resize")]
    Grow {
        /// Name of the volume
        #[arg(value_parser = usable_name)]
        name: String,
        /// New size, for example 20GiB
        #[arg(allow_hyphen_values = true)]
        size: Bytes,
        #[command(flatten)]
        ask: Ask,
    },
    /// Serve a volume no longer: ends its connections, keeps its file
    #[command(alias = "delete")]
    Remove {
        /// Name of the volume
        #[arg(value_parser = usable_name)]
        name: String,
        #[command(flatten)]
        ask: Ask,
    },
}

/// Options of `evenkeel volume create`; what is left out has the default of the configuration.
#[derive(Args, Serialize)]
pub(crate) struct Create {
    /// Name of the volume, under which it is exported
    #[serde(skip)]
    #[arg(value_parser = usable_name)]
    name: String,
    /// Size, for example 10GiB; not needed for a block device or a file that exists
    #[arg(long)]
    size: Option<Bytes>,
    /// The pool of the volume [default: main]
    #[arg(long)]
    pool: Option<String>,
    /// The tenant of its connections [default: the tenant named like it, else `default`]
    #[arg(long)]
    tenant: Option<String>,
    /// Kind of storage of the data [default: file]
    #[arg(long, value_parser = PossibleValuesParser::new(["file", "block", "memory", "emulate", "nbd", "rbd"]))]
    backend: Option<String>,
    /// File or block device, in DATA_DIR or in what server.volume_dirs names [default for a file: DATA_DIR/NAME.img]
    #[arg(long, value_parser = absolute())]
    path: Option<PathBuf>,
    /// Lengthen a file that Evenkeel did not create to --size; without it such a file is served at its own length
    #[arg(long, requires = "size")]
    grow: bool,
    /// Serve an existing file byte for byte although it holds an image of another format
    #[arg(long, value_parser = PossibleValuesParser::new(["raw"]))]
    format: Option<String>,
    /// Export of another NBD server, for nbd: nbd://HOST:PORT/EXPORT or nbd+unix:///EXPORT?socket=PATH; nbds for TLS
    #[arg(long, value_parser = reachable)]
    uri: Option<Target>,
    /// PEM file with the authorities to trust, for a --uri that is nbds://
    #[serde(skip)]
    #[arg(long, value_name = "FILE", requires = "uri", value_parser = absolute())]
    ca: Option<PathBuf>,
    /// PEM file with a certificate to show there, where the server asks for one
    #[serde(skip)]
    #[arg(long, value_name = "FILE", requires_all = ["ca", "key"], value_parser = absolute())]
    cert: Option<PathBuf>,
    /// PEM file with its private key
    #[serde(skip)]
    #[arg(long, value_name = "FILE", requires = "cert", value_parser = absolute())]
    key: Option<PathBuf>,
    /// Image of a Ceph cluster, for rbd: POOL/IMAGE or POOL/NAMESPACE/IMAGE, with @SNAPSHOT to read a snapshot
    #[arg(long)]
    rbd: Option<Image>,
    /// Configuration file of the Ceph cluster [default: where Ceph's programs look]
    #[arg(long, value_parser = absolute())]
    ceph_conf: Option<PathBuf>,
    /// User of the Ceph cluster, without `client.` [default: admin]
    #[arg(long)]
    ceph_user: Option<String>,
    /// That user's keyring [default: as the configuration says]
    #[arg(long, value_parser = absolute())]
    ceph_keyring: Option<PathBuf>,
    /// Way of I/O: direct goes around the page cache [default: direct]
    #[arg(long, value_parser = PossibleValuesParser::new(["direct", "buffered"]))]
    cache: Option<String>,
    /// Description, shown to clients that list exports
    #[arg(long)]
    description: Option<String>,
    /// Refuse writes
    #[arg(long)]
    read_only: bool,
    #[command(flatten)]
    #[serde(skip)]
    ask: Ask,
}

/// Checks the name of a tenant or volume on the command line, as the name becomes part of a path of the API.
fn usable_name(text: &str) -> Result<String, String> {
    if is_name(text) { Ok(text.to_owned()) } else { Err(unusable_name(text)) }
}

/// Checks the name of a pool on the command line, as the name becomes part of a path of the API.
fn usable_pool_name(text: &str) -> Result<String, String> {
    if is_pool_name(text) { Ok(text.to_owned()) } else { Err(unusable_name(text)) }
}

/// Parses a whole number from 0 to the largest of type `T`, such as a rate or a weight.
pub(crate) fn whole<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let number = text.parse::<u64>().map_err(|error| match error.kind() {
        IntErrorKind::PosOverflow => "is too large".to_owned(),
        _ => "write a whole number, 0 or more, for example 500".to_owned(),
    })?;
    T::try_from(number).map_err(|_| "is too large".to_owned())
}

/// A parser that makes a path absolute, because the server may run in another folder.
fn absolute() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(std::path::absolute)
}

/// Parses an export's URI and makes its socket's path absolute, because the server may run in another folder.
fn reachable(text: &str) -> Result<Target, String> {
    let target: Target = text.parse().map_err(|error: UnitError| error.to_string())?;
    let address = match target.address {
        Address::Unix(path) => Address::Unix(std::path::absolute(path).map_err(|error| format!("socket: {error}"))?),
        tcp @ Address::Tcp(..) => tcp,
    };
    Ok(Target { address, ..target })
}

/// Runs `evenkeel volume`.
///
/// # Errors
/// When no server answers, or the server refuses the command and changes nothing.
pub(crate) fn volume(command: VolumeCommand) -> anyhow::Result<()> {
    match command {
        VolumeCommand::List { ask } => {
            let state = ask.connect.state()?;
            output::show(ask.json, &state.volumes, |_| show::volumes(&state))
        }
        VolumeCommand::Show { name, ask } => one::volume(&ask, &name),
        VolumeCommand::Set {
            name,
            tenant,
            description,
            size,
            limit_iops,
            limit_bytes_per_s,
            limit_burst,
            limit_when,
            force,
            keep,
        } => {
            let body = object([
                ("tenant", tenant.map(Value::from)),
                ("description", description.map(Value::from)),
                ("size", size.map(|size| json!(size))),
                ("limit", limit(limit_iops, limit_bytes_per_s, limit_burst, limit_when)),
                ("force", force.then_some(Value::from(true))),
            ]);
            keep.patch(Part::Volume(&name), &body, "--limit-iops 500")
        }
        VolumeCommand::Create(create) => {
            let mut volume = set_members(&create)?;
            if let Some(authorities) = create.ca.clone() {
                let files = EtcdTls { authorities, certificate: create.cert.clone(), key: create.key.clone() };
                volume["uri_tls"] = set_members(&files)?;
            }
            let body = json!({ "name": create.name, "volume": volume });
            create.ask.change(Method::POST, "/api/v1/volumes", Some(&body))
        }
        VolumeCommand::Grow { name, size, ask } => {
            ask.change(Method::PATCH, &path("/api/v1/volumes/", &name), Some(&json!({ "size": size })))
        }
        VolumeCommand::Remove { name, ask } => ask.change(Method::DELETE, &path("/api/v1/volumes/", &name), None),
    }
}

/// `evenkeel tenant`.
#[derive(Subcommand)]
pub(crate) enum TenantCommand {
    /// List the tenants of each pool
    List {
        #[command(flatten)]
        ask: Ask,
    },
    /// Show a tenant: its settings, verdicts and throttles
    Show {
        /// Name of the tenant
        name: String,
        #[command(flatten)]
        ask: Ask,
    },
    /// Add a tenant with its QoS policy, at once
    ///
    /// In force until the next reload or restart, unless --save writes it into the configuration file.
    Add(Box<SetTenant>),
    /// Change the QoS policy of a tenant, at once
    ///
    /// In force until the next reload or restart, unless --save writes it into the configuration file. Lists are
    /// replaced; what no option names stays.
    Set(Box<SetTenant>),
    /// Remove a tenant, at once; its connections pass to the tenants that own them then
    ///
    /// In force until the next reload or restart, unless --save removes it from the configuration file.
    #[command(alias = "delete")]
    Remove {
        /// Name of the tenant
        #[arg(value_parser = usable_name)]
        name: String,
        #[command(flatten)]
        keep: Keep,
    },
}

/// Options of `evenkeel tenant set`; what is left out stays as it is.
#[derive(Args)]
pub(crate) struct SetTenant {
    /// Name of the tenant
    #[arg(value_parser = usable_name)]
    name: String,
    /// Requests per second it gets whenever it asks; 0 = none
    #[arg(long, value_name = "N", value_parser = whole::<u64>)]
    reservation_iops: Option<u64>,
    /// Bytes per second it gets whenever it asks, for example 50MB; 0 = none
    #[arg(long, value_name = "BYTES")]
    reservation_bytes_per_s: Option<Bytes>,
    /// Requests per second it never exceeds; 0 = no limit
    #[arg(long, value_name = "N", value_parser = whole::<u64>)]
    limit_iops: Option<u64>,
    /// Bytes per second it never exceeds, for example 200MB; 0 = no limit
    #[arg(long, value_name = "BYTES")]
    limit_bytes_per_s: Option<Bytes>,
    /// Requests per second guaranteed over each second in which it asks, reads and writes together; 0 = no guarantee
    #[arg(long, value_name = "N", value_parser = whole::<u64>, conflicts_with = "guarantee_bytes_per_s")]
    guarantee_iops: Option<u64>,
    /// Bytes per second guaranteed, reads and writes together, for example 100MB; 0 = no guarantee
    #[arg(long, value_name = "BYTES")]
    guarantee_bytes_per_s: Option<Bytes>,
    /// Requests per second of reads alone; writes are not throttled for it; 0 = no guarantee
    #[arg(long, value_name = "N", value_parser = whole::<u64>, conflicts_with_all = ["guarantee_read_bytes_per_s", "guarantee_iops", "guarantee_bytes_per_s"])]
    guarantee_read_iops: Option<u64>,
    /// Bytes per second of reads alone; 0 = no guarantee
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["guarantee_iops", "guarantee_bytes_per_s"])]
    guarantee_read_bytes_per_s: Option<Bytes>,
    /// Requests per second of writes alone; reads are not throttled for it; 0 = no guarantee
    #[arg(long, value_name = "N", value_parser = whole::<u64>, conflicts_with_all = ["guarantee_write_bytes_per_s", "guarantee_iops", "guarantee_bytes_per_s"])]
    guarantee_write_iops: Option<u64>,
    /// Bytes per second of writes alone; 0 = no guarantee
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["guarantee_iops", "guarantee_bytes_per_s"])]
    guarantee_write_bytes_per_s: Option<Bytes>,
    /// Latency target on pools with slots, for example 10ms@99 (percentile) or 10ms@mean; 10ms keeps the present
    /// percentile; "none" = no target
    #[arg(long, value_parser = parse_latency, value_name = "TIME[@PERCENTILE]")]
    latency: Option<Value>,
    /// Share of what reservations leave, relative to other tenants
    #[arg(long, value_parser = whole::<u32>)]
    weight: Option<u32>,
    /// Weight at some hours of the day, by the host's clock, for example 8@22:00-06:00; "none" = --weight at all hours
    #[arg(long, value_parser = parse_weight_at, value_name = "WEIGHT@HOURS")]
    weight_at: Option<Value>,
    /// How much unused limit may be saved up, for example 50ms
    #[arg(long, value_name = "TIME")]
    limit_burst: Option<Duration>,
    /// Hours of the day in which the limit applies, by the host's clock, for example 22:00-06:00; "none" = all hours
    #[arg(long, value_parser = parse_hours, value_name = "HOURS")]
    limit_when: Option<Value>,
    /// Priority: background is served when no normal tenant can be
    #[arg(long, value_parser = PossibleValuesParser::new(["normal", "background"]))]
    priority: Option<String>,
    /// When the tenant is throttled for latency targets of others
    #[arg(long, value_parser = PossibleValuesParser::new(["never", "last", "normal", "always"]))]
    throttle: Option<String>,
    /// Clients and volumes that belong to it, in place of those it has: volume:db-*, address:10.1.0.0/16, uid:1000,
    /// certificate:NAME; give all of them, the option several times
    #[arg(long = "match", value_name = "ENTRY")]
    matches: Vec<Match>,
    /// Make a new tenant if there is none of this name
    #[arg(long)]
    create: bool,
    /// Take values with which clients would seem to hang, such as a limit of less than one request a second
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    keep: Keep,
}

/// Runs `evenkeel tenant`.
///
/// # Errors
/// When no server answers, or the server refuses the command and changes nothing.
pub(crate) fn tenant(command: TenantCommand) -> anyhow::Result<()> {
    let set = match command {
        TenantCommand::List { ask } => {
            let state = ask.connect.state()?;
            return output::show(ask.json, &show::by_pool(&state), |_| show::tenants(&state));
        }
        TenantCommand::Show { name, ask } => return one::tenant(&ask, &name),
        TenantCommand::Remove { name, keep } => return keep.remove(Part::Tenant(&name)),
        TenantCommand::Add(set) => {
            set.keep.refuse_known(Part::Tenant(&set.name))?;
            SetTenant { create: true, ..*set }
        }
        TenantCommand::Set(set) => *set,
    };
    let guarantee = guarantee(&set);
    let body = object([
        ("reservation", rates(set.reservation_iops, set.reservation_bytes_per_s)),
        ("limit", limit(set.limit_iops, set.limit_bytes_per_s, set.limit_burst, set.limit_when)),
        ("guarantee", guarantee),
        ("latency", set.latency),
        ("weight", set.weight.map(Value::from)),
        ("weight_at", set.weight_at),
        ("priority", set.priority.map(Value::from)),
        ("throttle", set.throttle.map(Value::from)),
        ("match", (!set.matches.is_empty()).then(|| json!(set.matches))),
        ("create", set.create.then_some(Value::from(true))),
        ("force", set.force.then_some(Value::from(true))),
    ]);
    set.keep.patch(Part::Tenant(&set.name), &body, "--limit-iops 500")
}

/// `evenkeel pool`.
#[derive(Subcommand)]
pub(crate) enum PoolCommand {
    /// List pools
    List {
        #[command(flatten)]
        ask: Ask,
    },
    /// Show a pool: its settings, figures and tenants
    Show {
        /// Name of the pool
        name: String,
        #[command(flatten)]
        ask: Ask,
    },
    /// Add a pool, at once
    ///
    /// In force until the next reload or restart, unless --save writes it into the configuration file.
    Add(Box<SetPool>),
    /// Change scheduler, admission, limits or the emulated device of a pool, at once
    ///
    /// In force until the next reload or restart, unless --save writes it into the configuration file.
    Set(Box<SetPool>),
    /// Remove a pool without volumes, at once
    ///
    /// In force until the next reload or restart, unless --save removes it from the configuration file.
    #[command(alias = "delete")]
    Remove {
        /// Name of the pool
        #[arg(value_parser = usable_pool_name)]
        name: String,
        #[command(flatten)]
        keep: Keep,
    },
}

/// Options of `evenkeel pool set`; what is left out stays as it is.
#[derive(Args)]
pub(crate) struct SetPool {
    /// Name of the pool
    #[arg(value_parser = usable_pool_name)]
    name: String,
    /// The order of requests
    #[arg(long, value_parser = PossibleValuesParser::new(["mclock", "none"]))]
    scheduler: Option<String>,
    /// How much may be in flight: elastic, slowfast, none, fixed:BYTES (fixed:512KiB), or KEY=VALUE for a setting of the present kind; may be given several times
    #[arg(long, value_parser = parse_admission, value_name = "KIND|KEY=VALUE")]
    admission: Vec<Admission>,
    /// Requests per second the pool lets through at most; 0 = no limit
    #[arg(long, value_name = "N", value_parser = whole::<u64>)]
    limit_iops: Option<u64>,
    /// Bytes per second the pool lets through at most, for example 500MB; 0 = no limit
    #[arg(long, value_name = "BYTES")]
    limit_bytes_per_s: Option<Bytes>,
    /// Hours of the day in which the limit applies, by the host's clock, for example 22:00-06:00; "none" = all hours
    #[arg(long, value_parser = parse_hours, value_name = "HOURS")]
    limit_when: Option<Value>,
    /// Cost of a request in bytes on top of its payload, for example 4000
    #[arg(long)]
    base_cost: Option<Bytes>,
    /// Latency target for reads, for example 20ms@99 (percentile) or 20ms@mean; 20ms keeps the present percentile;
    /// "none" = no target
    #[arg(long, value_parser = parse_latency, value_name = "TIME[@PERCENTILE]")]
    latency: Option<Value>,
    /// A parameter of the emulated device, KEY=VALUE (bandwidth=50MB, iops=2000, stall_every=10s); may be given several times
    #[arg(long, value_parser = parse_pair, value_name = "KEY=VALUE")]
    emulate: Vec<(String, Value)>,
    /// Make a new pool if there is none of this name
    #[arg(long)]
    create: bool,
    /// Take values with which clients would seem to hang, such as a limit of less than one request a second
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    keep: Keep,
}

/// Parses `KEY=VALUE`; the value is a number, a boolean or a text.
fn parse_pair(text: &str) -> Result<(String, Value), String> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE, for example bandwidth=50MB")?;
    let value = match serde_json::from_str(value) {
        Ok(plain @ (Value::Number(_) | Value::Bool(_) | Value::Null)) => plain,
        _ => Value::from(value),
    };
    Ok((key.to_owned(), value))
}

fn parse_latency(text: &str) -> Result<Value, String> {
    if text == "none" {
        return Ok(Value::Null);
    }
    let (time, percentile) = text.split_once('@').map_or((text, None), |(time, percentile)| (time, Some(percentile)));
    let target: Duration = time.parse().map_err(|error: UnitError| error.to_string())?;
    let percentile = match percentile {
        // The server keeps the present one: a target for p99 would silently become one for the mean.
        None => return Ok(json!({ "target": target })),
        Some("mean") => json!("mean"),
        Some(text) => {
            let percent = text.parse::<f64>().ok().filter(|percent| (0.0..100.0).contains(percent));
            json!(percent.ok_or_else(|| format!("{text:?} is no percentile; write for example 10ms@99"))?)
        }
    };
    Ok(json!({ "target": target, "percentile": percentile }))
}

/// Parses hours of the day as the configuration does; null for none.
fn parse_hours(text: &str) -> Result<Value, String> {
    if is_none(text) {
        return Ok(Value::Null);
    }
    let hours: Hours = text.parse().map_err(|error: UnitError| error.to_string())?;
    Ok(json!(hours))
}

/// Parses `WEIGHT@HOURS`; null for none.
fn parse_weight_at(text: &str) -> Result<Value, String> {
    if is_none(text) {
        return Ok(Value::Null);
    }
    let (weight, hours) = text.split_once('@').ok_or("write WEIGHT@HOURS, for example 8@22:00-06:00")?;
    let hours: Hours = hours.parse().map_err(|error: UnitError| error.to_string())?;
    Ok(json!({ "weight": whole::<u32>(weight)?, "when": hours }))
}

/// True if the value of an option removes a setting.
fn is_none(text: &str) -> bool {
    text.is_empty() || text == "none"
}

/// The value of one option `--admission` of `evenkeel pool set`.
#[derive(Clone, Debug, PartialEq)]
enum Admission {
    /// The name of a kind of admission control and, for the kind `fixed`, its budget, such as `512KiB`.
    Kind(String, Option<String>),
    /// A setting of the pool's present kind of admission control, as key and value.
    Setting(String, Value),
}

fn parse_admission(text: &str) -> Result<Admission, String> {
    match text.strip_prefix("fixed:") {
        Some(budget) => Ok(Admission::Kind("fixed".to_owned(), Some(budget.to_owned()))),
        None if text == "fixed" => Err("fixed needs a budget: --admission fixed:512KiB".to_owned()),
        None if text.contains('=') => parse_pair(text).map(|(key, value)| Admission::Setting(key, value)),
        None => Ok(Admission::Kind(text.to_owned(), None)),
    }
}

/// The JSON object `admission` of a request, which the server merges with the pool's settings: either a kind, or settings of
/// the present kind. `None` if no option was given.
fn admission(given: Vec<Admission>) -> anyhow::Result<Option<Value>> {
    let mut table = Map::new();
    let mut kinds = 0;
    for part in given {
        match part {
            Admission::Kind(kind, budget) => {
                kinds += 1;
                table.insert("kind".into(), kind.into());
                table.extend(budget.map(|budget| ("budget".to_owned(), budget.into())));
            }
            Admission::Setting(key, value) => drop(table.insert(key, value)),
        }
    }
    let message = "--admission names more than one kind; give elastic, slowfast, none or fixed:BYTES once";
    ensure!(kinds <= 1, Usage(message.into()));
    Ok((!table.is_empty()).then_some(Value::Object(table)))
}

/// Runs `evenkeel pool`.
///
/// # Errors
/// When no server answers, or the server refuses the command and changes nothing.
pub(crate) fn pool(command: PoolCommand) -> anyhow::Result<()> {
    let set = match command {
        PoolCommand::List { ask } => {
            let state = ask.connect.state()?;
            return output::show(ask.json, &state.pools, |_| show::pools(&state));
        }
        PoolCommand::Show { name, ask } => return one::pool(&ask, &name),
        PoolCommand::Remove { name, keep } => return keep.remove(Part::Pool(&name)),
        PoolCommand::Add(set) => {
            set.keep.refuse_known(Part::Pool(&set.name))?;
            SetPool { create: true, ..*set }
        }
        PoolCommand::Set(set) => *set,
    };
    let tuning = given([
        ("scheduler", set.scheduler.map(Value::from)),
        ("admission", admission(set.admission)?),
        ("base_cost", set.base_cost.map(|cost| json!(cost))),
    ]);
    let body = object([
        ("limit", limit(set.limit_iops, set.limit_bytes_per_s, None, set.limit_when)),
        ("latency", set.latency),
        ("tuning", tuning),
        ("emulate", (!set.emulate.is_empty()).then(|| Value::Object(set.emulate.into_iter().collect()))),
        ("create", set.create.then_some(Value::from(true))),
        ("force", set.force.then_some(Value::from(true))),
    ]);
    set.keep.patch(Part::Pool(&set.name), &body, "--limit-iops 500")
}

/// `evenkeel server`.
#[derive(Subcommand)]
pub(crate) enum ServerCommand {
    /// Change settings of the server that need no restart, at once
    ///
    /// In force until the next reload or restart, unless --save writes it into the configuration file.
    Set(SetServer),
}

/// Options of `evenkeel server set`; what is left out stays as it is.
#[derive(Args, Serialize)]
pub(crate) struct SetServer {
    /// Threads that serve connections, or auto: one per core; connections of those that are too many move to the others
    #[arg(long, value_name = "N|auto")]
    workers: Option<Workers>,
    /// How long a graceful stop waits for requests in flight, for example 30s
    #[arg(long, value_name = "TIME")]
    drain_timeout: Option<Duration>,
    #[command(flatten)]
    #[serde(skip)]
    keep: Keep,
}

/// Runs `evenkeel server`.
///
/// # Errors
/// When no server answers, or the server refuses the command and changes nothing.
pub(crate) fn server(command: ServerCommand) -> anyhow::Result<()> {
    let ServerCommand::Set(set) = command;
    set.keep.patch(Part::Server, &set_members(&set)?, "--drain-timeout 30s")
}

/// A JSON object of the options that were given on the command line.
fn set_members(options: &impl Serialize) -> anyhow::Result<Value> {
    let mut members = serde_json::to_value(options).context("an option is not Unicode")?;
    members
        .as_object_mut()
        .into_iter()
        .for_each(|members| members.retain(|_, value| !matches!(value, Value::Null | Value::Bool(false))));
    Ok(members)
}

/// True if a request's body has any member besides `force`, which alone changes no setting.
fn changes(body: &Value) -> bool {
    body.as_object().is_some_and(|members| members.keys().any(|key| key != "force"))
}

/// A JSON object of the members that have a value.
fn object<const N: usize>(members: [(&str, Option<Value>); N]) -> Value {
    Value::Object(members.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect())
}

/// A JSON object of the members that have a value; `None` if no member has one.
fn given<const N: usize>(members: [(&str, Option<Value>); N]) -> Option<Value> {
    members.iter().any(|(_, value)| value.is_some()).then(|| object(members))
}

fn rates(iops: Option<u64>, bytes_per_s: Option<Bytes>) -> Option<Value> {
    limit(iops, bytes_per_s, None, None)
}

/// A limit for the request. `when`: its hours; null removes them.
fn limit(iops: Option<u64>, bytes_per_s: Option<Bytes>, burst: Option<Duration>, when: Option<Value>) -> Option<Value> {
    given([
        ("iops", iops.map(Value::from)),
        ("bytes_per_s", bytes_per_s.map(|rate| json!(rate))),
        ("burst", burst.map(|burst| json!(burst))),
        ("when", when),
    ])
}

/// The tenant's guarantee for the request. A guarantee in requests replaces one in bytes, and the reverse. A guarantee for
/// reads and writes together replaces separate ones.
fn guarantee(set: &SetTenant) -> Option<Value> {
    let rates = |iops: Option<u64>, bytes_per_s: Option<Bytes>| match (iops, bytes_per_s) {
        (None, None) => None,
        (Some(iops), _) => Some(json!({ "iops": iops, "bytes_per_s": null })),
        (None, Some(rate)) => Some(json!({ "iops": null, "bytes_per_s": rate })),
    };
    if let Some(Value::Object(mut together)) = rates(set.guarantee_iops, set.guarantee_bytes_per_s) {
        together.extend([("read".into(), Value::Null), ("write".into(), Value::Null)]);
        return Some(together.into());
    }
    let read = rates(set.guarantee_read_iops, set.guarantee_read_bytes_per_s);
    let write = rates(set.guarantee_write_iops, set.guarantee_write_bytes_per_s);
    let each = read.is_some() || write.is_some();
    let requests = [set.guarantee_read_iops, set.guarantee_write_iops].into_iter().flatten();
    let bytes = [set.guarantee_read_bytes_per_s, set.guarantee_write_bytes_per_s].into_iter().flatten();
    let given = requests.chain(bytes.map(|bytes| bytes.0)).any(|rate| rate > 0);
    // A guarantee takes the place of one of all; none leaves it alone.
    let none = given.then_some(Value::Null);
    each.then(|| object([("iops", none.clone()), ("bytes_per_s", none), ("read", read), ("write", write)]))
}
