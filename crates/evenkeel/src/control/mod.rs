//! Commands that talk to a running server over its control socket.

use std::num::IntErrorKind;
use std::path::PathBuf;

use anyhow::{Context, anyhow, ensure};
use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use evenkeel_net::http::{Method, Place};
use evenkeel_policy::config::{Server, Workers};
use evenkeel_policy::state::State;
use evenkeel_policy::units::{Bytes, Duration};
use evenkeel_policy::{is_name, is_pool_name, unusable_name};
use serde::Serialize;
use serde_json::{Map, Value, json};

mod ask;
mod client;
mod edit;
mod limits;
mod names;
mod one;
mod reach;
mod save;
pub(crate) mod show;
mod site;
mod tenant;
#[cfg(test)]
mod tests;
mod volume;

use crate::output::{self, Usage};
use ask::{Ask, Keep};
#[cfg(test)]
pub(crate) use client::refusal;
pub(crate) use client::{PATIENCE, get, is_refusal, path};
use limits::{LatencyOptions, LimitOptions};
pub(crate) use names::{Names, names};
pub(crate) use reach::{Reach, first};
use save::Part;
pub(crate) use show::{table, words};
pub(crate) use site::{Certificates, Site, plain};
pub(crate) use tenant::{TenantCommand, tenant};
pub(crate) use volume::{VolumeCommand, volume};

/// Error message about an answer of the server that cannot be parsed.
const OTHER_VERSION: &str = "the server speaks another version of the API: use the server's version of evenkeel";

/// The server that a command talks to.
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
                    "{errors}\nwhat to do: fix the file, or name the socket of the running server with --control PATH"
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
    /// In force until the next reload or restart, unless --save writes it into the configuration file. Keys for
    /// `evenkeel guard` alone are set in its file: devices, enforce, tuning.cache, tuning.guarantee.
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
    #[arg(long, help = admission_help(), value_parser = parse_admission, value_name = "KIND|KEY=VALUE")]
    admission: Vec<Admission>,
    #[command(flatten)]
    limit: LimitOptions,
    /// Longest extra wait of a throttled request, for example 2s
    #[arg(long, value_name = "TIME")]
    max_delay: Option<Duration>,
    /// Cost of a request in bytes on top of its payload, for example 4000
    #[arg(long)]
    base_cost: Option<Bytes>,
    /// Another key of the pool's tuning, KEY=VALUE (slots=needs, slots_most=256); null = its default; may be given several times
    #[arg(long, value_parser = parse_pair, value_name = "KEY=VALUE")]
    tuning: Vec<(String, Value)>,
    #[command(flatten)]
    latency: LatencyOptions,
    /// A parameter of the emulated device, KEY=VALUE (bandwidth=50MB, iops=2000, stall_every=10s); may be given several times
    #[arg(long, value_parser = parse_pair, value_name = "KEY=VALUE")]
    emulate: Vec<(String, Value)>,
    /// Make a new pool if there is none of this name
    #[arg(long)]
    create: bool,
    /// Accept values that make clients seem to hang, such as a limit of less than one request a second
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

/// The value of one option `--admission` of `evenkeel pool set`.
#[derive(Clone, Debug, PartialEq)]
enum Admission {
    /// The name of a kind of admission control and, for the kind `fixed`, its budget, such as `512KiB`.
    Kind(String, Option<String>),
    /// A setting of the pool's present kind of admission control, as key and value.
    Setting(String, Value),
}

/// The kinds of admission control as `--admission` takes them.
fn admission_kinds() -> String {
    let kinds = evenkeel_control::admission::Config::NAMES;
    kinds.map(|kind| if kind == "fixed" { "fixed:BYTES" } else { kind }).join(", ")
}

fn admission_help() -> String {
    format!(
        "Admission control, which bounds what is in flight: one of {}, such as fixed:512KiB, or KEY=VALUE for a setting of the present kind; may be given several times",
        admission_kinds()
    )
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
    let message = || format!("--admission names more than one kind; give one of {} once", admission_kinds());
    ensure!(kinds <= 1, Usage(message()));
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
    set.keep.patch(Part::Pool(&set.name), &pool_body(&set)?, "--limit-iops 500")
}

/// The change of a pool for the request.
fn pool_body(set: &SetPool) -> anyhow::Result<Value> {
    let named = object([
        ("scheduler", set.scheduler.clone().map(Value::from)),
        ("admission", admission(set.admission.clone())?),
        ("base_cost", set.base_cost.map(|cost| json!(cost))),
    ]);
    let mut tuning: Map<String, Value> = set.tuning.iter().cloned().collect();
    tuning.extend(named.as_object().cloned().unwrap_or_default());
    Ok(object([
        ("limit", set.limit.patch()),
        ("max_delay", set.max_delay.map(|delay| json!(delay))),
        ("latency", set.latency.patch()?),
        ("tuning", (!tuning.is_empty()).then_some(Value::Object(tuning))),
        ("emulate", (!set.emulate.is_empty()).then(|| Value::Object(set.emulate.iter().cloned().collect()))),
        ("create", set.create.then_some(Value::from(true))),
        ("force", set.force.then_some(Value::from(true))),
    ]))
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
    /// Threads that serve connections, or auto: one per core; connections of surplus threads move to the others
    #[arg(long, value_name = "N|auto")]
    workers: Option<Workers>,
    /// Longest time that a graceful stop waits for requests in flight, for example 30s
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
    let mut members = serde_json::to_value(options).context("an option's path or text is not UTF-8; use UTF-8")?;
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
fn object<'k>(members: impl IntoIterator<Item = (&'k str, Option<Value>)>) -> Value {
    Value::Object(members.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect())
}

/// A JSON object of the members that have a value; `None` if no member has one.
fn given<const N: usize>(members: [(&str, Option<Value>); N]) -> Option<Value> {
    members.iter().any(|(_, value)| value.is_some()).then(|| object(members))
}
