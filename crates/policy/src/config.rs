//! The configuration: the policy (pools and tenants), and the server and volumes of this host.
//!
//! A configuration is complete after reading: keys that were left out have their default values. Paths that derive from
//! `data_dir` are the exception, because the command line may still change `data_dir`. For these paths use
//! [`Server::unix_paths`], [`Server::control_path`] and [`Config::path_of`].

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

pub use evenkeel_control::slots::Method as Slots;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::access::Who;
use crate::access::{Barred, Caller, Lists};
pub use crate::cluster::{Cluster, Endpoint, EtcdTls};
pub use crate::guarantee::{CachedDevice, GuaranteeTuning};
pub use crate::history::Bound;
pub use crate::http::{Asked, Http, Terms, Where};
pub use crate::pool::{Enforcement, Pool, Scheduler, Tuning};
use crate::rbd::Image;
pub use crate::target::{Method, Noisy};
pub use crate::tenant::{
    Direction, Guarantee, Latency, Limit, Match, Of, OnPool, Percentile, Priority, Tenant, Throttle, WeightAt,
};
pub use crate::tls::{Certificate, Files, Need, Tls};
use crate::units::{Bytes, Duration, UnitError, as_text};
use crate::uri::Target;

/// Name of the pool that exists even if the configuration has no pools.
pub const DEFAULT_POOL: &str = "main";
/// Name of the tenant that exists even if the configuration has no tenants.
pub const DEFAULT_TENANT: &str = "default";
/// Name of the volume that is served if the configuration has no volumes. If a volume has this name, it is the default export.
pub const DEFAULT_VOLUME: &str = "disk0";

/// The whole configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// File of `[tenants]` and `[pools]` that hosts share; what it says is part of this configuration. As a file names it, it
    /// is relative to that file; once that is read, to the working directory.
    #[serde(skip_serializing)]
    pub policy: Option<PathBuf>,
    /// The server process.
    pub server: Server,
    /// Shared devices that saturate, by name; `main` exists even if it is not named.
    pub pools: BTreeMap<String, Pool>,
    /// Tenants with their QoS policies, by name; `default` exists even if it is not named.
    pub tenants: BTreeMap<String, Tenant>,
    /// Exports, by name; `disk0` (a file of 1 GiB) if there is no such table.
    pub volumes: BTreeMap<String, Volume>,
    /// The hosts with which the pools are shared.
    pub cluster: Cluster,
    /// The part of `evenkeel guard`, which `evenkeel serve` leaves alone: both may read one file.
    #[serde(skip_serializing)]
    pub agent: Elsewhere,
}

/// A table of another program: it may be there, and is not read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct Elsewhere {}

/// The server process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Server {
    /// TCP addresses for NBD; beyond loopback use TLS or a trusted network.
    pub listen: Vec<SocketAddr>,
    /// Unix sockets for NBD; `[]` = none. Default: `["<data_dir>/nbd.sock"]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unix: Option<Vec<PathBuf>>,
    /// Address of the read-only dashboard, metrics and API; or "off".
    pub status: Status,
    /// Socket of the API that changes things (mode 0600). Default: `"<data_dir>/control.sock"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control: Option<PathBuf>,
    /// Folder of volumes without a path, `volumes.toml`, `files.toml` and a lock.
    pub data_dir: PathBuf,
    /// Bound on the history in `<data_dir>/history`, at least "4MiB"; or "off".
    pub history: Bound,
    /// Keep the requests of the last minutes in `<data_dir>/flight`, for `record --last`: `{ keep = "5m", size = "256MiB" }`;
    /// `on_miss = true` also saves them when a latency target is missed. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<Record>,
    /// Folders, files and devices that `volume create --path` may use beside `data_dir`: `["/srv/images", "/dev/vg1"]`.
    pub volume_dirs: Vec<PathBuf>,
    /// Threads that serve connections; auto: one per core.
    pub workers: Workers,
    /// Assignment of connections to workers.
    pub placement: Placement,
    /// Submission of I/O to the kernel.
    pub engine: Engine,
    /// Time that a busy worker polls before it sleeps, "0s" to "1ms".
    pub busy_poll: Duration,
    /// Refuse writes to every volume.
    pub read_only: bool,
    /// Volume of clients that name none. Default: `disk0`, else the only volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_export: Option<String>,
    /// Connections of all clients; the server closes further ones.
    #[schemars(range(min = 1))]
    pub max_connections: u32,
    /// Requests without a reply; backpressure beyond.
    #[schemars(range(min = 1))]
    pub max_inflight_per_connection: u32,
    /// Payload buffers of all connections, at least 32 MiB; tenants share them.
    pub buffer_memory: Bytes,
    /// Largest read or write, "32MiB" to "1GiB"; larger ones fail.
    pub max_request: Bytes,
    /// Time to choose a volume.
    pub handshake_timeout: Duration,
    /// Connections that have not chosen a volume, of all clients.
    #[schemars(range(min = 1))]
    pub max_handshakes: u32,
    /// The same of one client: an IPv4 address, an IPv6 /64, a user of this machine.
    #[schemars(range(min = 1))]
    pub max_handshakes_per_client: u32,
    /// Time after which a TCP client that acknowledges nothing, or (from Linux 5.11) takes no replies, is disconnected; 1 s to
    /// 1 h.
    pub peer_timeout: Duration,
    /// Longest graceful stop.
    pub drain_timeout: Duration,
    /// Clients that may open volumes: addresses, "uid:1000", "unix", "certificate:NAME". Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow: Option<Vec<Who>>,
    /// Refused clients; wins over `allow`.
    pub deny: Vec<Who>,
    /// HTTP rules of `status`.
    pub http: Http,
    /// TLS for NBD connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
}

/// The ring of the requests of the last minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Record {
    /// Time that the ring covers, "10s" to "1h", unless it takes more than `size`.
    pub keep: Duration,
    /// Bound on the folder, at least 16 MiB. Files for missed targets and of the run before take up to half of it.
    pub size: Bytes,
    /// Keep the ring's newest files as `missed-*` when a latency target becomes missed: once in 10 minutes, for the newest 5.
    pub on_miss: bool,
}

impl Default for Record {
    fn default() -> Self {
        Self { keep: Duration::from_secs(300), size: Bytes(256 << 20), on_miss: false }
    }
}

/// The method that assigns connections to workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// One worker after the other, for good.
    RoundRobin,
    /// The worker with the fewest connections, for good.
    LeastConnections,
    /// The published genetic algorithm, by bytes received; to compare with.
    Genetic,
    /// All connections anew every second, the heaviest first; to compare with.
    Lpt,
    /// The least loaded worker; later where its requests wait less, if that certainly helps.
    #[default]
    Waits,
}

impl Placement {
    /// The placement method as the controller's configuration.
    pub const fn control(self) -> evenkeel_control::placement::Config {
        use evenkeel_control::placement::{Config, Moving};
        match self {
            Self::RoundRobin => Config::RoundRobin,
            Self::LeastConnections => Config::LeastConnections,
            Self::Genetic => Config::Genetic(Moving::published()),
            Self::Lpt => Config::Lpt(Moving::slow()),
            Self::Waits => Config::Waits(Moving::new()),
        }
    }
}

/// The engine that submits I/O to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// io_uring where the kernel allows it, else epoll.
    #[default]
    Auto,
    /// io_uring, or refuse to start.
    IoUring,
    /// Threads serve files, at more processor time.
    Epoll,
}

evenkeel_control::named!(Engine: Auto "auto", IoUring "io_uring", Epoll "epoll");

/// The number of the server's worker threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Workers {
    /// One worker for each core that the process may use.
    #[default]
    Auto,
    /// This number of workers, 1 to [`Workers::MAX`].
    Count(u32),
}

impl Workers {
    /// The most worker threads: more than the cores of any machine that runs the server.
    pub const MAX: u32 = 1024;
}

impl FromStr for Workers {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        match (text, text.parse()) {
            ("auto", _) => Ok(Self::Auto),
            (_, Ok(count)) => Ok(Self::Count(count)),
            _ => Err(UnitError::new(format!(
                "{text:?} is not a number of threads; write \"auto\" or a number such as 4"
            ))),
        }
    }
}

impl fmt::Display for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Count(n) => write!(f, "{n}"),
        }
    }
}

as_text!(Workers, "\"auto\" or a number of threads", Some(|n| Ok(Workers::Count(u32::try_from(n).unwrap_or(u32::MAX)))), {
    "anyOf": [{ "const": "auto" }, { "type": "integer", "minimum": 1, "maximum": 1024 }]
});

/// The TCP address at which status page, metrics and API are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Status is not served over TCP.
    Off,
    /// Status is served at this address.
    At(SocketAddr),
}

impl FromStr for Status {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        match (text, text.parse()) {
            ("off", _) => Ok(Self::Off),
            (_, Ok(address)) => Ok(Self::At(address)),
            _ => Err(UnitError::new(format!(
                "{text:?} is not an address with port; write for example \"127.0.0.1:9809\", or \"off\""
            ))),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::At(address) => write!(f, "{address}"),
        }
    }
}

as_text!(Status, "an address such as \"127.0.0.1:9809\", or \"off\"", None, { "type": "string" });

/// An export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Volume {
    /// Its pool.
    pub pool: String,
    /// Its tenant. Default: by `match`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Storage for the data.
    pub backend: Backend,
    /// File or block device, of one volume only. Default: of a file `<data_dir>/NAME.img`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// For "nbd": `nbd[s]://HOST[:PORT]/EXPORT` or `nbd[s]+unix:///EXPORT?socket=PATH`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<Target>,
    /// Certificates for `nbds`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri_tls: Option<EtcdTls>,
    /// For "nbd": 1 to 64; several only with CAN_MULTI_CONN, else one and a warning.
    #[schemars(range(min = 1, max = 64))]
    pub connections: u32,
    /// For "nbd": how long requests wait for a server that is unreachable or acknowledges nothing, 1 s to 1 h; then EIO.
    pub reconnect_timeout: Duration,
    /// For "nbd": unflushed writes of a broken connection.
    pub unflushed: Unflushed,
    /// For "rbd": `POOL/IMAGE` or `POOL/NAMESPACE/IMAGE`, of one volume only; `@SNAPSHOT` is read-only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rbd: Option<Image>,
    /// For "rbd": configuration. Default: `$CEPH_CONF`, `/etc/ceph/ceph.conf`, `~/.ceph/config`, `ceph.conf`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ceph_conf: Option<PathBuf>,
    /// For "rbd": user without `client.`. Default: "admin".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ceph_user: Option<String>,
    /// For "rbd": key file of that user. Default: as `ceph_conf` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ceph_keyring: Option<PathBuf>,
    /// Size; needed for memory, emulate and new files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<Bytes>,
    /// Lengthen a foreign file to `size`.
    pub grow: bool,
    /// Limit of all clients of this host together, like a tenant's.
    #[serde(skip_serializing_if = "crate::lately::is_default")]
    pub limit: Limit,
    /// "raw": serve a file that holds an image byte for byte.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<Format>,
    /// Refuse writes.
    pub read_only: bool,
    /// Clients that must use TLS, even to list it. Default: `server.tls.required`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<Need>,
    /// Clients that may open it, of those that the server allows. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow: Option<Vec<Who>>,
    /// Refused clients; wins over `allow`.
    pub deny: Vec<Who>,
    /// Use of caches.
    pub cache: Cache,
    /// Shown to clients that list exports.
    pub description: String,
}

/// Storage for the data of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// Memory, lost at a stop.
    Memory,
    /// A file, created sparse.
    #[default]
    File,
    /// A block device.
    Block,
    /// Memory behind the pool's `emulate`.
    Emulate,
    /// Another NBD server.
    Nbd,
    /// Ceph.
    Rbd,
}

evenkeel_control::named!(Backend: Memory "memory", File "file", Block "block", Emulate "emulate", Nbd "nbd", Rbd "rbd");

impl Backend {
    /// True if a volume's size is that of an existing device, image or export, so that the configuration must not state a size.
    pub const fn has_its_size(self) -> bool {
        matches!(self, Self::Block | Self::Nbd | Self::Rbd)
    }
}

/// Treatment of acknowledged, unflushed writes when a connection to a remote server breaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unflushed {
    /// Every flush fails until the server restarts or the volume is created again.
    #[default]
    Lost,
    /// The other server keeps the writes.
    Kept,
}

/// Format of the content of an existing file or device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Byte for byte, whatever it is.
    Raw,
}

/// Use of the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Cache {
    /// O_DIRECT where alignment and file system allow, for "rbd" no `rbd_cache`.
    #[default]
    Direct,
    /// Page cache, librbd's configured cache.
    Buffered,
}

/// Maps volumes to the tenants that own them. A client that belongs to another tenant uses its own tenant instead.
#[derive(Clone, Debug)]
pub struct Owners<'a> {
    config: &'a Config,
    /// Tenant by the volume's full name, from entries of `match` without wildcards, which are more specific than any pattern.
    named: HashMap<&'a str, &'a str>,
    /// Patterns of volume names, each with its tenant, the most specific first.
    patterns: Vec<(&'a Match, &'a str)>,
}

impl<'a> Owners<'a> {
    /// The tenant of a volume: the first that exists of the tenant in the volume's settings, a tenant whose `match` names the
    /// volume, a tenant with the volume's name, the default tenant. The time grows with the number of patterns.
    pub fn of<'b>(&self, name: &'b str, volume: &'b Volume) -> &'b str
    where
        'a: 'b,
    {
        if let Some(tenant) = &volume.tenant {
            return tenant;
        }
        if let Some(tenant) = self.named.get(name) {
            return tenant;
        }
        match self.patterns.iter().find(|(entry, _)| entry.names_volume(name)) {
            Some((_, tenant)) => tenant,
            None if self.config.tenants.contains_key(name) => name,
            None => DEFAULT_TENANT,
        }
    }

    /// The tenant as which a volume's requests are scheduled: that of [`Self::of`], or the volume's own, `TENANT/VOLUME`, if
    /// that has `each`.
    pub fn scheduled<'b>(&self, name: &'b str, volume: &'b Volume) -> Cow<'b, str>
    where
        'a: 'b,
    {
        let owner = self.of(name, volume);
        match self.config.tenants.get(owner) {
            Some(tenant) if tenant.each => Cow::Owned(format!("{owner}/{name}")),
            _ => Cow::Borrowed(owner),
        }
    }

    /// The tenants that are scheduled on a pool, by name: in place of a tenant with `each`, one for each of its volumes there.
    pub fn scheduled_on(&self, pool: &str) -> BTreeMap<Cow<'a, str>, &'a Tenant> {
        let tenants = self.config.tenants.iter().filter(|(_, tenant)| !tenant.each);
        let mut scheduled: BTreeMap<Cow<'a, str>, &'a Tenant> =
            tenants.map(|(name, tenant)| (Cow::Borrowed(name.as_str()), tenant)).collect();
        if scheduled.len() < self.config.tenants.len() {
            for (name, volume) in self.config.volumes.iter().filter(|(_, volume)| volume.pool == pool) {
                let tenant = self.config.tenants.get(self.of(name, volume)).filter(|tenant| tenant.each);
                scheduled.extend(tenant.map(|tenant| (self.scheduled(name, volume), tenant)));
            }
        }
        scheduled
    }
}

/// The name in the policy of a tenant that is scheduled: `database` for `database/db-3`.
pub fn in_policy(scheduled: &str) -> &str {
    scheduled.split_once('/').map_or(scheduled, |(tenant, _)| tenant)
}

/// Maps clients to the tenants whose `match` names them. The value does not borrow the configuration, so that a server can keep
/// it and use it for each connection.
#[derive(Clone, Debug, Default)]
pub struct Clients(Vec<(Match, String)>);

impl Clients {
    /// The tenant with the most specific entry of `match` that names the client; `None` if no tenant names it.
    pub fn tenant_of(&self, client: &Caller<'_>) -> Option<&str> {
        self.0.iter().find(|(entry, _)| entry.names(client)).map(|(_, name)| name.as_str())
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            policy: None,
            server: Server::default(),
            pools: BTreeMap::from([(DEFAULT_POOL.into(), Pool::default())]),
            tenants: BTreeMap::from([(DEFAULT_TENANT.into(), Tenant::default())]),
            volumes: BTreeMap::from([(
                DEFAULT_VOLUME.into(),
                Volume { size: Some(Bytes(1 << 30)), ..Volume::default() },
            )]),
            cluster: Cluster::default(),
            agent: Elsewhere::default(),
        }
    }
}

impl Default for Server {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 10_809))],
            unix: None,
            status: Status::At(SocketAddr::from((Ipv4Addr::LOCALHOST, 9_809))),
            control: None,
            data_dir: "evenkeel-data".into(),
            history: Bound::default(),
            record: None,
            volume_dirs: Vec::new(),
            workers: Workers::Auto,
            placement: Placement::Waits,
            engine: Engine::Auto,
            busy_poll: Duration::from_micros(200),
            read_only: false,
            default_export: None,
            max_connections: 16_384,
            max_inflight_per_connection: 256,
            buffer_memory: Bytes(256 << 20),
            max_request: Bytes(64 << 20),
            handshake_timeout: Duration::from_secs(30),
            max_handshakes: 4_096,
            max_handshakes_per_client: 1_024,
            peer_timeout: Duration::from_secs(120),
            drain_timeout: Duration::from_secs(30),
            allow: None,
            deny: Vec::new(),
            http: Http::default(),
            tls: None,
        }
    }
}

impl Default for Volume {
    fn default() -> Self {
        Self {
            pool: DEFAULT_POOL.into(),
            tenant: None,
            backend: Backend::File,
            path: None,
            uri: None,
            uri_tls: None,
            rbd: None,
            ceph_conf: None,
            ceph_user: None,
            ceph_keyring: None,
            connections: 1,
            reconnect_timeout: Duration::from_secs(30),
            unflushed: Unflushed::Lost,
            size: None,
            grow: false,
            limit: Limit::default(),
            format: None,
            read_only: false,
            tls: None,
            allow: None,
            deny: Vec::new(),
            cache: Cache::Direct,
            description: String::new(),
        }
    }
}

impl Server {
    /// Paths of the Unix sockets on which NBD is served.
    pub fn unix_paths(&self) -> Vec<PathBuf> {
        self.unix.clone().unwrap_or_else(|| vec![self.data_dir.join("nbd.sock")])
    }

    /// Path of the control socket: the Unix socket of the API that may change settings.
    pub fn control_path(&self) -> PathBuf {
        self.control.clone().unwrap_or_else(|| self.data_dir.join("control.sock"))
    }

    /// Folder of the requests of the last minutes.
    pub fn flight_path(&self) -> PathBuf {
        self.data_dir.join("flight")
    }

    /// Folder of the history.
    pub fn history_path(&self) -> PathBuf {
        self.data_dir.join("history")
    }

    /// The settings of encryption and client certificates for status page, metrics and API.
    pub fn terms(&self) -> Terms {
        Terms { table: "server", http: self.http.clone(), files: self.tls.as_ref().map(Tls::files) }
    }
}

impl Config {
    /// Path of the file or device behind a volume; `None` for back ends without a file or device.
    pub fn path_of(&self, name: &str, volume: &Volume) -> Option<PathBuf> {
        match volume.backend {
            Backend::Memory | Backend::Emulate | Backend::Nbd | Backend::Rbd => None,
            Backend::File => {
                Some(volume.path.clone().unwrap_or_else(|| self.server.data_dir.join(format!("{name}.img"))))
            }
            Backend::Block => volume.path.as_deref().map(Path::to_owned),
        }
    }

    /// The map from volumes to their tenants. The time to build it grows with the number of tenants.
    pub fn owners(&self) -> Owners<'_> {
        let (mut named, mut patterns) = (HashMap::new(), Vec::new());
        for (entry, name) in self.entries() {
            match entry {
                Match::Volume(volume) if !volume.contains(['*', '?']) => {
                    named.entry(volume.as_str()).or_insert(name);
                }
                Match::Volume(_) => patterns.push((entry, name)),
                _ => {}
            }
        }
        patterns.sort_by_key(|(entry, _)| Reverse(entry.specificity()));
        Owners { config: self, named, patterns }
    }

    /// The map from clients to their tenants. The time to build it grows with the number of tenants.
    pub fn clients(&self) -> Clients {
        let of_clients = self.entries().filter(|(entry, _)| matches!(entry, Match::Client(_)));
        let mut entries: Vec<_> = of_clients.map(|(entry, name)| (entry.clone(), name.to_owned())).collect();
        // Of equals the last decides.
        entries.reverse();
        entries.sort_by_key(|(entry, _)| Reverse(entry.specificity()));
        Clients(entries)
    }

    /// All entries of all tenants' `match`, each with the tenant's name.
    fn entries(&self) -> impl Iterator<Item = (&Match, &str)> {
        self.tenants.iter().flat_map(|(name, tenant)| tenant.matches.iter().map(move |entry| (entry, name.as_str())))
    }

    /// True if clients of a volume must use TLS. `tcp`: the question is about clients over TCP, otherwise about clients over Unix
    /// sockets.
    pub fn needs_tls(&self, volume: &Volume, tcp: bool) -> bool {
        let need = volume.tls.or(self.server.tls.as_ref().map(|tls| tls.required));
        need.is_some_and(|need| need.applies(tcp))
    }

    /// True if clients must use TLS for the server and for every volume. `tcp`: the question is about clients over TCP, otherwise
    /// about clients over Unix sockets.
    pub fn all_need_tls(&self, tcp: bool) -> bool {
        self.volumes.values().all(|volume| self.needs_tls(volume, tcp))
            && self.server.tls.as_ref().is_some_and(|tls| tls.required.applies(tcp))
    }

    /// Sentence about the risk of serving NBD at an address that other machines reach; `None` without a risk.
    pub fn danger_from_afar(&self) -> Option<String> {
        let Some(tls) = &self.server.tls else {
            return Some(
                "NBD without TLS neither authenticates nor encrypts; set [server.tls], or keep it to networks you trust"
                    .into(),
            );
        };
        if let Some((name, _)) = self.volumes.iter().find(|(_, volume)| !self.needs_tls(volume, true)) {
            return Some(format!(
                "volume {name:?} is served there without TLS too; set required = \"tcp\" in [server.tls], or tls = \"tcp\" for the volume"
            ));
        }
        tls.clients.is_none().then(|| {
            "every client may connect: TLS without clients' certificates only encrypts; set server.tls.clients".into()
        })
    }

    /// Checks that the access lists of the server admit a client; those of volumes are not considered.
    ///
    /// # Errors
    /// The list that refuses the client.
    pub fn admits(&self, caller: &Caller<'_>) -> Result<(), Barred> {
        let Self { server, .. } = self;
        let (denied, not_allowed) = (Barred::ServerDeny, Barred::ServerAllow);
        Lists { allow: server.allow.as_deref(), deny: &server.deny, denied, not_allowed }.judge(caller)
    }

    /// Checks that the access lists of the server and of a volume admit a client to the volume. O(length of the lists).
    ///
    /// # Errors
    /// The list that refuses the client.
    pub fn admits_to(&self, volume: &Volume, caller: &Caller<'_>) -> Result<(), Barred> {
        self.admits(caller)?;
        let (denied, not_allowed) = (Barred::VolumeDeny, Barred::VolumeAllow);
        Lists { allow: volume.allow.as_deref(), deny: &volume.deny, denied, not_allowed }.judge(caller)
    }

    /// A pool's settings as the configuration of the pool's state machine in `evenkeel-control`.
    pub fn control(&self, pool: &Pool) -> evenkeel_control::pool::Config {
        let period = (!self.cluster.etcd.is_empty()).then_some(self.cluster.period);
        evenkeel_control::pool::Config { slots: pool.slots(period), ..pool.into() }
    }

    /// Name of the volume for clients that request an export without a name; `None` if there is no such volume.
    pub fn default_export(&self) -> Option<&str> {
        if let Some(name) = &self.server.default_export {
            return Some(name);
        }
        if let Some((name, _)) = self.volumes.get_key_value(DEFAULT_VOLUME) {
            return Some(name);
        }
        let mut names = self.volumes.keys();
        names.next().filter(|_| names.next().is_none()).map(String::as_str)
    }

    /// Puts each limit or weight with `when` into force or out of it, as it is at this minute of the day, 0 to 1439.
    pub fn set_time(&mut self, minute: u16) {
        for pool in self.pools.values_mut() {
            pool.limit.set_time(minute);
        }
        for tenant in self.tenants.values_mut() {
            tenant.set_time(minute);
        }
        for volume in self.volumes.values_mut() {
            volume.limit.set_time(minute);
        }
    }

    /// Adds the default pool and the default tenant if they are missing.
    pub(crate) fn complete(&mut self) {
        self.pools.entry(DEFAULT_POOL.into()).or_default();
        self.tenants.entry(DEFAULT_TENANT.into()).or_default();
    }
}
