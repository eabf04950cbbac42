//! `evenkeel volume`: lists, shows, creates, changes and removes volumes of a running server.

use std::path::PathBuf;

use anyhow::ensure;
use clap::builder::{PathBufValueParser, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use evenkeel_net::http::Method;
use evenkeel_policy::config::{EtcdTls, Who};
use evenkeel_policy::rbd::Image;
use evenkeel_policy::units::{Bytes, Duration, UnitError};
use evenkeel_policy::uri::{Address, Target};
use serde::Serialize;
use serde_json::{Value, json};

use super::ask::{Ask, Keep};
use super::limits::LimitOptions;
use super::save::Part;
use super::{object, one, path, set_members, show, usable_name, whole};
use crate::output::{self, Usage};

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
    /// writes it into that file. Place, pool and access to the data are given when a volume is created, or in the file.
    Set(Box<SetVolume>),
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

/// Options of `evenkeel volume set`; what is left out stays as it is.
#[derive(Args)]
pub(crate) struct SetVolume {
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
    #[arg(long, conflicts_with_all = ["tenant", "description", "limit_iops", "limit_bytes_per_s", "limit_burst", "limit_when", "tls", "allow", "deny", "save"])]
    size: Option<Bytes>,
    #[command(flatten)]
    limit: LimitOptions,
    #[command(flatten)]
    clients: ClientOptions,
    /// Accept values that make clients seem to hang, such as a limit of less than one request a second
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    keep: Keep,
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
    /// The tenant of its connections [default: the tenant with the volume's name, else `default`]
    #[arg(long)]
    tenant: Option<String>,
    /// Kind of storage of the data [default: file]
    #[arg(long, value_parser = PossibleValuesParser::new(["file", "block", "memory", "emulate", "nbd", "rbd"]))]
    backend: Option<String>,
    /// File or block device, in DATA_DIR or a folder of server.volume_dirs [default for a file: DATA_DIR/NAME.img]
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
    /// PEM file with a client certificate, for a server at --uri that asks for one
    #[serde(skip)]
    #[arg(long, value_name = "FILE", requires_all = ["ca", "key"], value_parser = absolute())]
    cert: Option<PathBuf>,
    /// PEM file with the private key of --cert
    #[serde(skip)]
    #[arg(long, value_name = "FILE", requires = "cert", value_parser = absolute())]
    key: Option<PathBuf>,
    /// Connections to the server at --uri, 1 to 64 [default: 1]
    #[arg(long, value_name = "N", value_parser = whole::<u32>)]
    connections: Option<u32>,
    /// Time that requests wait while the server at --uri is unreachable, before they fail [default: 30s]
    #[arg(long, value_name = "TIME")]
    reconnect_timeout: Option<Duration>,
    /// Unflushed writes when a connection to the server at --uri breaks: kept by that server, or lost [default: lost]
    #[arg(long, value_parser = PossibleValuesParser::new(["lost", "kept"]))]
    unflushed: Option<String>,
    /// Image of a Ceph cluster, for rbd: POOL/IMAGE or POOL/NAMESPACE/IMAGE, with @SNAPSHOT to read a snapshot
    #[arg(long)]
    rbd: Option<Image>,
    /// Configuration file of the Ceph cluster [default: where Ceph's programs look]
    #[arg(long, value_parser = absolute())]
    ceph_conf: Option<PathBuf>,
    /// User of the Ceph cluster, without `client.` [default: admin]
    #[arg(long)]
    ceph_user: Option<String>,
    /// Keyring of the user of --ceph-user [default: as the configuration says]
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
    limit: LimitOptions,
    #[command(flatten)]
    #[serde(skip)]
    clients: ClientOptions,
    /// Accept values that make clients seem to hang, such as a limit of less than one request a second
    #[serde(skip)]
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    #[serde(skip)]
    ask: Ask,
}

/// Options of the clients of a volume; what is left out stays as it is.
#[derive(Args, Default)]
pub(crate) struct ClientOptions {
    /// Clients that must use TLS, even to list the volume; "default" = as server.tls.required says
    #[arg(long, value_parser = PossibleValuesParser::new(["no", "tcp", "always", "default"]))]
    tls: Option<String>,
    /// Clients that may open the volume, of those that the server allows: 10.1.0.0/16, uid:1000, unix, certificate:NAME;
    /// "all" = all that the server allows; give all entries, the option several times
    #[arg(long, value_name = "CLIENT", value_parser = allowed)]
    allow: Vec<Value>,
    /// Clients that may not open the volume, also if --allow names them; entries as for --allow; "none" = no client
    #[arg(long, value_name = "CLIENT", value_parser = denied)]
    deny: Vec<Value>,
}

impl ClientOptions {
    /// The settings for the request, null to remove one; `None` for an option that was not given.
    ///
    /// # Errors
    /// If an entry that stands for all or no clients is beside others.
    fn members(&self) -> anyhow::Result<[(&'static str, Option<Value>); 3]> {
        let tls = self.tls.as_deref().map(|need| if need == "default" { Value::Null } else { Value::from(need) });
        let list = |entries: &[Value], alone: &str| -> anyhow::Result<Option<Value>> {
            let removes = entries.contains(&Value::Null);
            ensure!(!removes || entries.len() == 1, Usage(format!("{alone} excludes other entries; leave them out")));
            Ok(match entries {
                [] => None,
                _ if removes => Some(Value::Null),
                _ => Some(json!(entries)),
            })
        };
        let (allow, deny) = (list(&self.allow, "--allow all")?, list(&self.deny, "--deny none")?);
        Ok([("tls", tls), ("allow", allow), ("deny", deny)])
    }
}

/// Parses an entry of `allow` as the configuration does; null for all clients.
fn allowed(text: &str) -> Result<Value, String> {
    if text == "all" { Ok(Value::Null) } else { client(text) }
}

/// Parses an entry of `deny` as the configuration does; null for no client.
fn denied(text: &str) -> Result<Value, String> {
    if text == "none" { Ok(Value::Null) } else { client(text) }
}

fn client(text: &str) -> Result<Value, String> {
    let who: Who = text.parse().map_err(|error: UnitError| error.to_string())?;
    Ok(json!(who))
}

/// A parser that makes a path absolute, because the server may run in another folder.
fn absolute() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(std::path::absolute)
}

/// Parses an export's URI and makes its socket's path absolute, because the server may run in another folder.
pub(super) fn reachable(text: &str) -> Result<Target, String> {
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
        VolumeCommand::Set(set) => {
            let settings = [
                ("tenant", set.tenant.clone().map(Value::from)),
                ("description", set.description.clone().map(Value::from)),
                ("size", set.size.map(|size| json!(size))),
                ("limit", set.limit.patch()),
                ("force", set.force.then_some(Value::from(true))),
            ];
            let body = object(settings.into_iter().chain(set.clients.members()?));
            set.keep.patch(Part::Volume(&set.name), &body, "--limit-iops 500")
        }
        VolumeCommand::Create(create) => create.ask.change(Method::POST, "/api/v1/volumes", Some(&creation(&create)?)),
        VolumeCommand::Grow { name, size, ask } => {
            ask.change(Method::PATCH, &path("/api/v1/volumes/", &name), Some(&json!({ "size": size })))
        }
        VolumeCommand::Remove { name, ask } => ask.change(Method::DELETE, &path("/api/v1/volumes/", &name), None),
    }
}

/// The request that creates a volume.
fn creation(create: &Create) -> anyhow::Result<Value> {
    let force = create.force.then_some(Value::from(true));
    Ok(object([("name", Some(json!(create.name))), ("volume", Some(new_volume(create)?)), ("force", force)]))
}

/// The settings of a new volume for the request.
fn new_volume(create: &Create) -> anyhow::Result<Value> {
    let mut volume = set_members(create)?;
    if let Some(authorities) = create.ca.clone() {
        let files = EtcdTls { authorities, certificate: create.cert.clone(), key: create.key.clone() };
        volume["uri_tls"] = set_members(&files)?;
    }
    for (key, value) in [("limit", create.limit.patch())].into_iter().chain(create.clients.members()?) {
        if let Some(value) = value.filter(|value| !value.is_null()) {
            volume[key] = value;
        }
    }
    Ok(volume)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        command: VolumeCommand,
    }

    fn created(line: &str) -> anyhow::Result<Value> {
        match Line::try_parse_from(line.split(' ')).expect(line).command {
            VolumeCommand::Create(create) => new_volume(&create),
            _ => panic!("{line}"),
        }
    }

    #[test]
    fn a_new_volume_has_the_settings_of_its_options() {
        let line = "volume add v --size 1GiB --limit-iops 500 --limit-when 22:00-06:00 --tls always --allow unix \
                    --allow uid:1000 --deny 192.0.2.7 --uri nbd://h/x --connections 4 \
                    --reconnect-timeout 5s --unflushed kept";
        let volume = created(line).expect(line);
        let expected = json!({
            "size": "1GiB",
            "limit": { "iops": 500, "when": "22:00-06:00" },
            "tls": "always",
            "allow": ["unix", "uid:1000"],
            "deny": ["192.0.2.7/32"],
            "connections": 4,
            "reconnect_timeout": "5s",
            "unflushed": "kept",
        });
        for (key, value) in expected.as_object().expect("members") {
            assert_eq!(&volume[key], value, "{key}");
        }
        let read: evenkeel_policy::config::Volume = serde_json::from_value(volume).expect("a volume");
        assert_eq!((read.limit.iops, read.connections, read.deny.len()), (500, 4, 1));
        assert_eq!(created("volume add v --allow all --deny none --tls default").expect("a volume"), json!({}));
    }

    #[test]
    fn a_new_volume_may_be_forced() {
        let body = |line: &str| match Line::try_parse_from(line.split(' ')).expect(line).command {
            VolumeCommand::Create(create) => creation(&create).expect(line),
            _ => panic!("{line}"),
        };
        let slow = body("volume add v --limit-bytes-per-s 10");
        assert_eq!(slow, json!({ "name": "v", "volume": { "limit": { "bytes_per_s": Bytes(10) } } }));
        let forced = body("volume add v --limit-bytes-per-s 10 --force");
        assert_eq!(forced, json!({ "name": "v", "volume": slow["volume"], "force": true }));
    }

    #[test]
    fn all_clients_stand_alone() {
        let both = created("volume add v --allow all --allow unix").expect_err("two entries");
        assert!(both.is::<Usage>() && both.to_string().contains("--allow all"), "{both}");
        let members = |options: ClientOptions| options.members().expect("settings").map(|(_, value)| value);
        let none = ClientOptions { tls: Some("default".into()), allow: vec![Value::Null], deny: vec![Value::Null] };
        assert_eq!(members(none), [Some(Value::Null), Some(Value::Null), Some(Value::Null)]);
        assert_eq!(members(ClientOptions::default()), [None, None, None]);
        assert!(allowed("none").is_err() && denied("all").is_err() && allowed("10.1.0.0/8").is_err());
    }
}
