//! The map: links from clients to volumes, devices and pools, with notes on uncertain links.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use evenkeel_policy::figures::counted;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Survey;
use super::osds::OsdEntry;
use super::processes::Program;
use super::sockets::{Socket, SocketState};
use crate::sensor::cache::CachedEntry;
use crate::sensor::diskstats::DeviceNumber;

/// Name that stands for the pool of volumes whose pool is unknown.
const UNKNOWN_POOL: &str = "volumes of no known pool";

/// Largest number of links in a map; a host with more is assumed to have a faulty configuration.
const MAX_LINKS: usize = 100_000;

/// The server of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Server {
    /// The kernel's SCSI target.
    Lio,
    /// The SCSI target in user space.
    Tgt,
    /// The kernel's NVMe target.
    Nvmet,
    /// nbd-server.
    NbdServer,
    /// qemu-nbd.
    QemuNbd,
    /// `evenkeel serve`.
    Evenkeel,
}

evenkeel_control::named!(Server: Lio "LIO", Tgt "tgt", Nvmet "nvmet", NbdServer "nbd-server", QemuNbd "qemu-nbd",
    Evenkeel "evenkeel");

/// The source of the knowledge that a client reaches a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KnownBy {
    /// The target knows the session and its address.
    Session,
    /// The connection belongs to a server process that serves this volume alone.
    Connection,
    /// Only one connected address belongs to no other session, so the session is from that address.
    Elimination,
    /// The volume is one of several that the client may reach.
    Candidate,
    /// No client is connected, or it is not known which.
    Unknown,
}

evenkeel_control::named!(KnownBy: Session "session", Connection "connection", Elimination "elimination",
    Candidate "one of several", Unknown "-");

/// A TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Connection {
    /// Address and port on this host.
    #[schemars(with = "String")]
    pub local: SocketAddr,
    /// Address and port of the client.
    #[schemars(with = "String")]
    pub remote: SocketAddr,
}

/// One volume, and one client of it if there is one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Link {
    /// The server.
    pub server: Server,
    /// Name of the target, or number of the server's process.
    pub target: String,
    /// The volume in the target.
    pub volume: String,
    /// Path of the block device or file that holds the volume.
    pub path: Option<PathBuf>,
    /// The kernel's name of the block device at or below `path`.
    pub device: Option<String>,
    /// Number of the block device `device`, `MAJOR:MINOR`.
    #[serde(skip)]
    pub number: Option<DeviceNumber>,
    /// Name of the pool on which the volume is.
    pub pool: Option<String>,
    /// The client's address.
    pub client: Option<IpAddr>,
    /// The client's name, if the target knows it.
    pub client_name: Option<String>,
    /// Known connections of the client.
    pub connections: Vec<Connection>,
    /// The source of the knowledge about the client.
    pub known_by: KnownBy,
    /// Folder with counters of this client at this volume.
    pub counters: Option<PathBuf>,
}

/// A note for the operator on an uncertain or missing fact of the map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Note {
    /// The kind, for programs: `ambiguous_address`, `several_names`, `several_addresses`, `unknown_device`,
    /// `unknown_client`, `other_namespace`, `other_namespaces`, `old_map`, `unreadable`.
    pub kind: String,
    /// The message: what is uncertain, what follows, what to do.
    pub message: String,
}

/// A pool of the map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PoolEntry {
    /// Name of the pool.
    pub name: String,
    /// `volume group`, `array`, `multipath device`, `disk`, or `configured`.
    pub kind: String,
    /// Devices on the pool that targets serve as volumes.
    pub devices: Vec<String>,
}

/// The map: which client reaches which volume, on which device and pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Map {
    /// Volumes and their clients.
    pub links: Vec<Link>,
    /// Pools of the volumes.
    pub pools: Vec<PoolEntry>,
    /// Slow devices behind fast ones, on which groups can be guaranteed a throughput.
    #[serde(default)]
    pub cached: Vec<CachedEntry>,
    /// Ceph's OSDs, if they were looked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub osds: Vec<OsdEntry>,
    /// Notes on uncertain or missing facts.
    pub notes: Vec<Note>,
    /// Connections from the address of a client, if they belong to none of the client's links. Clients that have a link with
    /// unknown connections are left out.
    #[serde(skip)]
    pub unexplained: Vec<Connection>,
}

/// For each pool whose devices are configured: the pool's name, and its devices by path or name.
pub type Configured = BTreeMap<String, Vec<String>>;

impl Map {
    /// Combines a survey to a map. `resolve` returns a path with its symbolic links followed.
    pub fn of(survey: &Survey, configured: &Configured, resolve: impl Fn(&Path) -> PathBuf) -> Self {
        let mut builder =
            Builder { survey, configured, resolve, links: Vec::new(), notes: Vec::new(), kinds: BTreeMap::new() };
        builder.lio();
        builder.tgt();
        builder.nvmet();
        builder.processes();
        builder.finish()
    }

    /// Addresses of clients that reach several pools, with these pools: a delay for one pool would throttle work on the
    /// others.
    pub fn ambiguous(&self) -> BTreeMap<IpAddr, BTreeSet<&str>> {
        let mut pools: BTreeMap<IpAddr, BTreeSet<&str>> = BTreeMap::new();
        for link in &self.links {
            if let Some(client) = link.client {
                pools.entry(client).or_default().insert(link.pool.as_deref().unwrap_or(UNKNOWN_POOL));
            }
        }
        pools.retain(|_, reached| reached.len() > 1);
        pools
    }
}

struct Builder<'a, R> {
    survey: &'a Survey,
    configured: &'a Configured,
    resolve: R,
    links: Vec<Link>,
    notes: Vec<Note>,
    kinds: BTreeMap<String, String>,
}

/// Identity of a volume: server, name of the target, name of the volume.
type Names<'n> = (Server, &'n str, &'n str);

impl<R: Fn(&Path) -> PathBuf> Builder<'_, R> {
    /// A link for a volume, with its device and pool, and without a client.
    fn volume(
        &mut self,
        (server, target, volume): Names<'_>,
        path: Option<&Path>,
        number: Option<DeviceNumber>,
    ) -> Link {
        let by_number = number.and_then(|number| self.survey.topology.by_number(number));
        let device = by_number.or_else(|| {
            let path = path?;
            // A link may lead to another file system than the one that it stands on.
            self.survey.device(&(self.resolve)(path)).or_else(|| self.survey.device(path))
        });
        let pool = device.map(|device| {
            let names = |entry: &String| {
                let by_path = |path: &Path| self.survey.topology.by_path(path);
                let path = Some(Path::new(entry)).filter(|path| path.is_absolute());
                // Links of udev, as in /dev/disk/by-id, lead to the kernel's name.
                let found = path.and_then(|path| by_path(path).or_else(|| by_path(&(self.resolve)(path))));
                found.is_some_and(|found| found == device)
                    || *entry == device.name
                    || device.dm.as_ref().is_some_and(|dm| *entry == dm.0)
                    || device.lvm().is_some_and(|(group, _)| *entry == group)
            };
            match self.configured.iter().find(|(_, devices)| devices.iter().any(names)) {
                Some((name, _)) => (name.clone(), "configured".to_owned()),
                None => {
                    let pool = self.survey.topology.pool_of(device);
                    (pool.name().to_owned(), pool.kind().to_owned())
                }
            }
        });
        if let Some((name, kind)) = &pool {
            self.kinds.insert(name.clone(), kind.clone());
        }
        Link {
            server,
            target: target.to_owned(),
            volume: volume.to_owned(),
            path: path.map(Path::to_owned),
            device: device.map(|device| device.name.clone()),
            number: device.map(|device| device.number),
            pool: pool.map(|(name, _)| name),
            client: None,
            client_name: None,
            connections: Vec::new(),
            known_by: KnownBy::Unknown,
            counters: None,
        }
    }

    fn note(&mut self, kind: &str, message: String) {
        self.notes.push(Note { kind: kind.to_owned(), message });
    }

    fn lio(&mut self) {
        for group in &self.survey.lio {
            let from = self.unexplained(&group.portals);
            let known_by = if from.len() == 1 { KnownBy::Elimination } else { KnownBy::Candidate };
            if group.dynamic.len() > 1 || (!group.dynamic.is_empty() && known_by == KnownBy::Candidate) {
                let (target, sessions, addresses) = (&group.target, group.dynamic.len(), from.len());
                self.note("unknown_client", format!(
                    "target {target} runs without access lists: it has {}, which may come from any of {}; make an access list for each initiator (and set generate_node_acls=0), so that the kernel says which session is whose",
                    counted(sessions as u64, "session"),
                    counted(addresses as u64, "address")
                ));
            }
            for lun in &group.luns {
                let names = (Server::Lio, group.target.as_str(), lun.name.as_str());
                let volume = self.volume(names, lun.backing.path.as_deref(), lun.backing.number);
                let before = self.links.len();
                for initiator in &group.initiators {
                    let Some(mapped) = initiator.luns.iter().find(|mapped| mapped.lun == lun.name) else { continue };
                    let link = Link {
                        client_name: Some(initiator.name.clone()),
                        counters: Some(mapped.counters.clone()),
                        ..volume.clone()
                    };
                    if initiator.addresses.is_empty() {
                        self.links.push(link);
                        continue;
                    }
                    for &address in &initiator.addresses {
                        let connections = self.connections(&group.portals, Some(address));
                        let known_by = KnownBy::Session;
                        self.links.push(Link { client: Some(address), connections, known_by, ..link.clone() });
                    }
                }
                if !group.dynamic.is_empty() {
                    for &address in &from {
                        let connections = self.connections(&group.portals, Some(address));
                        let client_name =
                            (group.dynamic.len() == 1 && from.len() == 1).then(|| group.dynamic[0].clone());
                        self.links.push(Link {
                            client: Some(address),
                            client_name,
                            connections,
                            known_by,
                            ..volume.clone()
                        });
                    }
                }
                if self.links.len() == before {
                    self.links.push(volume);
                }
            }
        }
    }

    /// Addresses connected to these portals that belong to no session of an initiator with an access list.
    fn unexplained(&self, portals: &[SocketAddr]) -> BTreeSet<IpAddr> {
        let mut addresses: BTreeSet<IpAddr> =
            self.connections(portals, None).iter().map(|connection| connection.remote.ip()).collect();
        for initiator in self.survey.lio.iter().flat_map(|group| &group.initiators) {
            for address in &initiator.addresses {
                addresses.remove(address);
            }
        }
        addresses
    }

    fn tgt(&mut self) {
        let established = self.survey.sockets.iter().filter(|socket| socket.state == SocketState::Established);
        let connected: BTreeSet<IpAddr> = established.map(|socket| socket.remote.ip()).collect();
        for target in &self.survey.tgt {
            for (number, path) in &target.luns {
                let name = format!("lun_{number}");
                let volume = self.volume((Server::Tgt, &target.name, &name), Some(path), None);
                let before = self.links.len();
                for session in &target.sessions {
                    // An alias may forge addresses.
                    for &client in session.addresses.iter().filter(|address| connected.contains(address)) {
                        let client_name = Some(session.initiator.clone());
                        let known_by = KnownBy::Session;
                        self.links.push(Link { client: Some(client), client_name, known_by, ..volume.clone() });
                    }
                }
                if self.links.len() == before {
                    self.links.push(volume);
                }
            }
        }
    }

    fn nvmet(&mut self) {
        for subsystem in &self.survey.nvmet {
            let shares = |portal: &SocketAddr| {
                self.survey.nvmet.iter().filter(|other| other.portals.contains(portal)).count() > 1
            };
            let shared = subsystem.portals.iter().any(shares);
            let known_by = if shared { KnownBy::Candidate } else { KnownBy::Connection };
            let mut connections = self.connections(&subsystem.portals, None);
            let mut told: BTreeMap<IpAddr, BTreeSet<&str>> = BTreeMap::new();
            for (host, address) in subsystem.hosts.iter().filter_map(|host| Some((host, host.address?))) {
                told.entry(address).or_default().insert(&host.name);
            }
            if shared && !told.is_empty() && subsystem.hosts.iter().all(|host| host.address.is_some()) {
                // Other clients of the port are connected to another subsystem.
                connections.retain(|connection| told.contains_key(&connection.remote.ip()));
            }
            for (number, path) in &subsystem.namespaces {
                let volume = self.volume((Server::Nvmet, &subsystem.name, number), Some(path), None);
                let before = self.links.len();
                self.link_connections(volume, &connections, known_by);
                for place in before..self.links.len() {
                    let names = self.links[place].client.and_then(|address| told.get(&address));
                    let Some((first, others)) = names.and_then(|names| {
                        let mut names = names.iter();
                        Some((names.next()?, names))
                    }) else {
                        continue;
                    };
                    self.links[place].known_by = KnownBy::Session;
                    self.links[place].client_name = Some((*first).to_owned());
                    for name in others {
                        let link = Link { client_name: Some((*name).to_owned()), ..self.links[place].clone() };
                        self.links.push(link);
                    }
                }
            }
        }
    }

    fn processes(&mut self) {
        for process in &self.survey.processes {
            let server = match process.program {
                Program::NbdServer => Server::NbdServer,
                Program::QemuNbd => Server::QemuNbd,
                Program::Evenkeel => Server::Evenkeel,
            };
            if process.elsewhere {
                self.note("other_namespace", format!(
                    "process {id} ({}) is in another network namespace: an agent here sees none of its clients, and throttles none of them. Run a second agent there, with a file that has only latency targets, the interfaces there, and an agent.journal of its own: nsenter --net=/proc/{id}/ns/net evenkeel guard run --config FILE",
                    server.name(),
                    id = process.id
                ));
            }
            let known_by = if process.files.len() == 1 { KnownBy::Connection } else { KnownBy::Candidate };
            let connections: Vec<_> = process.connections.iter().map(connection).collect();
            let target = format!("process {}", process.id);
            for file in &process.files {
                let path = &file.path;
                let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
                let here = Some(path.as_path()).filter(|_| !process.own_mounts);
                let volume = self.volume((server, &target, &name), here, file.number);
                let volume = Link { path: Some(path.clone()), ..volume };
                self.link_connections(volume, &connections, known_by);
            }
        }
    }

    /// Adds a link of `volume` for each client address among the connections, or one link without a client if there are no
    /// connections.
    fn link_connections(&mut self, volume: Link, connections: &[Connection], known_by: KnownBy) {
        let clients: BTreeSet<IpAddr> = connections.iter().map(|connection| connection.remote.ip()).collect();
        for &client in &clients {
            let connections = connections.iter().copied().filter(|connection| connection.remote.ip() == client);
            let connections = connections.collect();
            self.links.push(Link { client: Some(client), connections, known_by, ..volume.clone() });
        }
        if clients.is_empty() {
            self.links.push(volume);
        }
    }

    /// Established connections to these portals, from the address `from`, or from all addresses if that is `None`.
    fn connections(&self, portals: &[SocketAddr], from: Option<IpAddr>) -> Vec<Connection> {
        let to = |socket: &Socket| {
            let here = |portal: &SocketAddr| {
                let everywhere = portal.ip().is_unspecified();
                portal.port() == socket.local.port() && (everywhere || portal.ip().to_canonical() == socket.local.ip())
            };
            socket.state == SocketState::Established
                && from.is_none_or(|from| socket.remote.ip() == from)
                && portals.iter().any(here)
        };
        self.survey.sockets.iter().filter(|socket| to(socket)).map(connection).collect()
    }

    /// Connections from the addresses of known clients that no link has. A client that has a link without known connections
    /// is left out, because its connections may belong to that link.
    fn unexplained_of_clients(&self) -> Vec<Connection> {
        let mut told: BTreeMap<IpAddr, Option<BTreeSet<Connection>>> = BTreeMap::new();
        for link in &self.links {
            let Some(client) = link.client else { continue };
            let known = told.entry(client).or_insert_with(|| Some(BTreeSet::new()));
            match known {
                Some(known) if !link.connections.is_empty() => known.extend(&link.connections),
                _ => *known = None,
            }
        }
        let established = self.survey.sockets.iter().filter(|socket| socket.state == SocketState::Established);
        let unexplained = |found: &Connection| {
            told.get(&found.remote.ip()).and_then(Option::as_ref).is_some_and(|known| !known.contains(found))
        };
        established.map(connection).filter(unexplained).collect()
    }

    fn finish(mut self) -> Map {
        self.links.truncate(MAX_LINKS);
        for problem in &self.survey.problems {
            self.notes.push(Note { kind: "unreadable".into(), message: problem.clone() });
        }
        if self.survey.other_namespaces > 0 {
            let message = format!(
                "processes run in {} other network namespaces (containers, for example): connections to targets there are not seen, and no client is throttled there",
                self.survey.other_namespaces
            );
            self.note("other_namespaces", message);
        }
        let unplaced: BTreeSet<String> = self
            .links
            .iter()
            .filter(|link| link.device.is_none())
            .map(|link| {
                let path =
                    link.path.as_ref().map_or_else(|| "an unknown path".into(), |path| path.display().to_string());
                format!(
                    "volume {} of {} {} is on {path}, which is on no block device known here; the agent throttles no client for it",
                    link.volume,
                    link.server.name(),
                    link.target
                )
            })
            .collect();
        for message in unplaced {
            self.note("unknown_device", message);
        }
        let (mut names, mut addresses) = (BTreeMap::<_, BTreeSet<_>>::new(), BTreeMap::<_, BTreeSet<_>>::new());
        for link in &self.links {
            if let (Some(client), Some(name)) = (link.client, &link.client_name) {
                names.entry(client).or_default().insert(name.clone());
                addresses.entry(name.clone()).or_default().insert(client);
            }
        }
        for (address, names) in names.iter().filter(|(_, names)| names.len() > 1) {
            let names = joined(names);
            self.note("several_names", format!("{address} is the address of several clients ({names}), as behind address translation: the agent throttles them together, and not at all if one of them is of a tenant with throttle = \"never\""));
        }
        for (name, addresses) in addresses.iter().filter(|(_, addresses)| addresses.len() > 1) {
            let addresses = joined(addresses);
            self.note("several_addresses", format!("{name} comes from several addresses ({addresses}), as with multipath: each is measured and throttled by itself"));
        }
        let mut devices: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for link in &self.links {
            if let (Some(pool), Some(device)) = (&link.pool, &link.device) {
                devices.entry(pool.clone()).or_default().insert(device.clone());
            }
        }
        let kind = |name: &String| self.kinds.get(name).cloned().unwrap_or_default();
        let entry = |(name, devices): (String, BTreeSet<String>)| {
            let kind = kind(&name);
            PoolEntry { name, kind, devices: devices.into_iter().collect() }
        };
        let pools = devices.into_iter().map(entry).collect();
        let cached = self.survey.cached.clone();
        let unexplained = self.unexplained_of_clients();
        let mut map = Map { links: self.links, pools, cached, osds: Vec::new(), notes: self.notes, unexplained };
        let ambiguous: Vec<_> = map.ambiguous().iter().map(|(address, pools)| {
            let pools = joined(pools);
            let message = format!("{address} reaches several pools ({pools}): a delay for one would throttle work on the others, so the agent throttles it only by connections that lead to one pool; give the client an address for each pool");
            Note { kind: "ambiguous_address".into(), message }
        }).collect();
        map.notes.extend(ambiguous);
        map
    }
}

fn connection(socket: &Socket) -> Connection {
    Connection { local: socket.local, remote: socket.remote }
}

fn joined(items: &BTreeSet<impl ToString>) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
