//! Commands that talk to a running server over its control socket.

use std::num::IntErrorKind;
use std::path::PathBuf;

use anyhow::{Context, anyhow, ensure};
use clap::builder::{PathBufValueParser, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use evenkeel_net::http::{Method, Place};
use evenkeel_policy::config::{Match, Server, Workers};
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
mod reach;
mod save;
pub(crate) mod show;
mod site;

use crate::output::{self, Usage};
use ask::{Ask, Keep};
pub(crate) use client::{PATIENCE, get, path};
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
    /// Create a volume and serve it, now and after a restart
    Create(Box<Create>),
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
    /// Export of another NBD server, for nbd: nbd://HOST:PORT/EXPORT or nbd+unix:///EXPORT?socket=PATH
    #[arg(long, value_parser = reachable)]
    uri: Option<Target>,
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
        VolumeCommand::Create(create) => {
            let body = json!({ "name": create.name, "volume": set_members(&create)? });
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
    /// Change the QoS policy of a tenant, at once
    ///
    /// In force until the next reload or restart, unless --save writes it into the configuration file. Lists are
    /// replaced; what no option names stays.
    Set(Box<SetTenant>),
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
    /// How much unused limit may be saved up, for example 50ms
    #[arg(long, value_name = "TIME")]
    limit_burst: Option<Duration>,
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
        TenantCommand::Set(set) => *set,
    };
    let body = object([
        ("reservation", rates(set.reservation_iops, set.reservation_bytes_per_s)),
        ("limit", limit(set.limit_iops, set.limit_bytes_per_s, set.limit_burst)),
        ("guarantee", guarantee(&set)),
        ("latency", set.latency),
        ("weight", set.weight.map(Value::from)),
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
    /// Change scheduler, admission, limits or the emulated device of a pool, at once
    ///
    /// In force until the next reload or restart, unless --save writes it into the configuration file.
    Set(Box<SetPool>),
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
        PoolCommand::Set(set) => *set,
    };
    let tuning = given([
        ("scheduler", set.scheduler.map(Value::from)),
        ("admission", admission(set.admission)?),
        ("base_cost", set.base_cost.map(|cost| json!(cost))),
    ]);
    let body = object([
        ("limit", rates(set.limit_iops, set.limit_bytes_per_s)),
        ("latency", set.latency),
        ("tuning", tuning),
        ("emulate", (!set.emulate.is_empty()).then(|| Value::Object(set.emulate.into_iter().collect()))),
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
    limit(iops, bytes_per_s, None)
}

fn limit(iops: Option<u64>, bytes_per_s: Option<Bytes>, burst: Option<Duration>) -> Option<Value> {
    given([
        ("iops", iops.map(Value::from)),
        ("bytes_per_s", bytes_per_s.map(|rate| json!(rate))),
        ("burst", burst.map(|burst| json!(burst))),
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn a_latency_target_is_a_time_and_perhaps_a_percentile() {
        for (text, percentile) in [("10ms@mean", json!("mean")), ("10ms@99.9", json!(99.9))] {
            assert_eq!(parse_latency(text).expect(text), json!({ "target": "10ms", "percentile": percentile }));
        }
        assert_eq!(parse_latency("10ms"), Ok(json!({ "target": "10ms" })), "the percentile stays");
        assert_eq!(parse_latency("none"), Ok(Value::Null));
        for text in ["10", "10ms@", "10ms@p99", "10ms@nan", "10ms@100", "@99"] {
            assert!(parse_latency(text).is_err(), "{text}");
        }
    }

    #[test]
    fn admission_is_a_kind_or_settings_of_the_present_one() {
        let given =
            |texts: &[&str]| texts.iter().map(|text| parse_admission(text).expect("parses")).collect::<Vec<_>>();
        assert_eq!(admission(given(&[])).expect("nothing"), None);
        assert_eq!(admission(given(&["none"])).expect("a kind"), Some(json!({ "kind": "none" })));
        assert_eq!(
            admission(given(&["fixed:1MiB"])).expect("a kind"),
            Some(json!({ "kind": "fixed", "budget": "1MiB" }))
        );
        assert_eq!(
            admission(given(&["target_min=2ms", "history_samples=50"])).expect("settings"),
            Some(json!({ "target_min": "2ms", "history_samples": 50 }))
        );
        assert_eq!(
            admission(given(&["tolerance=null", "target_min=2ms"])).expect("settings"),
            Some(json!({ "tolerance": null, "target_min": "2ms" })),
            "no kind of that name"
        );
        assert_eq!(admission(given(&["fixed=1MiB"])).expect("a setting"), Some(json!({ "fixed": "1MiB" })));
        assert!(admission(given(&["none", "slowfast"])).is_err_and(|error| error.is::<Usage>()));
        assert!(parse_admission("fixed").is_err_and(|error| error.contains("fixed:512KiB")));
    }

    /// Options of commands accept exactly the values that the configuration accepts for the keys of the same meaning.
    #[test]
    fn options_have_the_values_of_their_keys() {
        let described = crate::program();
        let values = |words: [&str; 2], option: &str| -> Vec<String> {
            let command = words.iter().fold(&described, |command, word| command.find_subcommand(word).expect("one"));
            let option = command.get_arguments().find(|known| known.get_long() == Some(option)).expect("an option");
            option.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect()
        };
        let schema = evenkeel_policy::schema();
        for (words, option, kind) in [
            (["volume", "create"], "backend", "Backend"),
            (["volume", "create"], "format", "Format"),
            (["volume", "create"], "cache", "Cache"),
            (["pool", "set"], "scheduler", "Scheduler"),
        ] {
            let known = schema["$defs"][kind]["oneOf"].as_array().expect(kind).iter();
            let known: BTreeSet<&str> = known.map(|value| value["const"].as_str().expect("a name")).collect();
            let given = values(words, option);
            assert_eq!(given.iter().map(String::as_str).collect::<BTreeSet<_>>(), known, "{option}");
        }
    }

    /// The message with which the parser refuses a command line; panics if the parser accepts it.
    fn refused(line: &str) -> String {
        let words = line.split(' ').map(|word| OsString::from(if word == "''" { "" } else { word }));
        crate::program().try_get_matches_from(crate::joined(words.collect())).expect_err(line).to_string()
    }

    #[test]
    fn a_value_that_cannot_be_is_answered_by_what_can() {
        for line in ["tenant set ''", "pool set ''", "volume remove ''", "volume grow a/b 1GiB", "volume create ''"] {
            let said = refused(&format!("evenkeel {line}"));
            assert!(said.contains("is not a usable name; use 1 to 64"), "{line}: {said}");
        }
        for (line, words) in [
            ("tenant set a --weight -1", "write a whole number, 0 or more"),
            ("tenant set a --limit-iops -5", "write a whole number, 0 or more"),
            ("tenant set a --limit-iops 0.5", "write a whole number, 0 or more"),
            ("pool set a --limit-iops 1e3", "write a whole number, 0 or more"),
            ("tenant set a --weight 99999999999", "is too large"),
            ("volume create a --size -5", "not a number of whole bytes"),
            ("volume grow a -5", "not a number of whole bytes"),
            ("volume grow a -1GiB --json", "not a number of whole bytes"),
            ("volume create a --size -1GiB", "not a number of whole bytes"),
            ("tenant set a --limit-bytes-per-s -5MB --json", "not a number of whole bytes"),
            ("pool set a --latency -5ms", "is not a length of time"),
            ("load nbd://a --duration -1s", "is not a length of time"),
            ("guard why -n -1", "write a whole number, 0 or more"),
            ("sim a.toml --seed -1", "write a whole number, 0 or more"),
            ("reproduce saat --seed -1", "write a whole number, 0 or more"),
            ("guard hold --delay 1ms --device a --client foo", "write an address, for example 192.0.2.21"),
            ("serve --listen localhost:10809", "names are not looked up"),
            ("volume create a --size 99999999TiB", "is too large; write less than"),
            ("volume create a --backend fil", "[possible values: file, block, memory, emulate, nbd, rbd]"),
            ("volume create a --format qcow2", "[possible values: raw]"),
            ("volume create a --cache no", "[possible values: direct, buffered]"),
            ("pool set a --scheduler fifo", "[possible values: mclock, none]"),
            ("load foo", "is not an NBD URI"),
            ("load nbd://a --duration 0s", "use more than 0s, at most 7d"),
            ("top --interval 1ms", "out of range; use 100ms to 1h"),
            ("load nbd://a --rate -3", "use a whole number, 1 to 100000000"),
            ("load nbd://a --queue-depth 0", "use a whole number, 1 to 65536"),
            ("load nbd://a --check-journal j --fill", "cannot be used with '--fill"),
            ("load nbd://a --check-journal j --connections 2", "cannot be used with '--connections"),
            ("load nbd://a --check-journal j --threads 2", "cannot be used with '--threads"),
            ("volume create a --uri nbd+unix:///x?socket=", "socket: "),
        ] {
            let said = refused(&format!("evenkeel {line}"));
            assert!(said.contains(words) && !said.contains("tip: to pass"), "{line}: {said}");
        }
    }

    #[test]
    fn a_socket_means_the_same_to_a_server_in_another_folder() {
        let here = std::env::current_dir().expect("a folder");
        let target = reachable("nbd+unix:///x?socket=rel.sock").expect("a URI");
        assert_eq!(target, Target { address: Address::Unix(here.join("rel.sock")), export: "x".into() });
        assert_eq!(reachable("nbd://h:1/x"), Ok("nbd://h:1/x".parse().expect("a URI")));
    }

    #[test]
    fn a_command_that_would_change_nothing_says_so() {
        assert!(!changes(&json!({})) && !changes(&json!({ "force": true })));
        assert!(changes(&json!({ "create": true })) && changes(&json!({ "weight": 1, "force": true })));
    }

    #[test]
    fn only_what_was_given_is_sent() {
        assert_eq!(object([("weight", Some(json!(3))), ("burst", None)]), json!({ "weight": 3 }));
        assert_eq!(rates(None, None), None);
        assert_eq!(rates(Some(0), None), Some(json!({ "iops": 0 })));
    }
}
