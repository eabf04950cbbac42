//! The processes of the lab: etcd, servers, clients.

use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::base::process::{self, Running};
use crate::base::scratch::Scratch;
use crate::base::servers::{self, free_port};
use crate::base::space::{self, Space};
use crate::check::run::Options;

use super::judge::{self, Reading};
use super::{CUT_OFF, Event, KILLED, LEASE, LIMIT, Load, NONE, PERIOD, RESERVATION, SERVERS};

/// Number of members of etcd.
const MEMBERS: usize = 3;
/// Distance of two readings of the counters.
const STEP: Duration = Duration::from_millis(250);
/// Longest wait for a process or a state: far above any wait on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause between two questions to a process.
const PAUSE: Duration = Duration::from_millis(100);

/// The readings from an event on.
pub(super) type Course = Vec<Reading>;

/// The network namespace for etcd and the servers.
///
/// # Errors
/// The reason why this machine has none.
fn own_space() -> Result<Space, String> {
    if let Some(reason) = space::missing() {
        return Err(reason);
    }
    let made = Space::make().and_then(|space| {
        space.ip("link set lo up")?;
        Ok(space)
    });
    made.map_err(|error| format!("{error:#}"))
}

/// The ports of each member of etcd, for clients and for the other members. In a namespace of its own all ports are free, and
/// these stay free while a member is away: the kernel takes others for outgoing connections.
fn ports(is_own_space: bool) -> Result<[[u16; 2]; MEMBERS]> {
    let mut ports = [[2379, 2380], [2381, 2382], [2383, 2384]];
    if !is_own_space {
        for port in ports.iter_mut().flatten() {
            *port = free_port()?;
        }
    }
    Ok(ports)
}

/// The address at which a server finds all members of etcd. Packets to it and from it are those of this server.
fn address_for(server: usize) -> String {
    format!("127.0.1.{}", server + 1)
}

/// All processes of the lab. On drop, clients are ended before the servers that they use.
pub(super) struct Stage {
    folder: PathBuf,
    binary: PathBuf,
    clients: [Option<Running>; SERVERS.len()],
    loads: [Load; SERVERS.len()],
    servers: [Option<Running>; SERVERS.len()],
    etcd: [Option<Running>; MEMBERS],
    /// Ports of each member of etcd, for clients and for the other members.
    ports: [[u16; 2]; MEMBERS],
    /// The counters of each server at the last reading, and those of its earlier lives.
    counts: [[u64; 2]; SERVERS.len()],
    began: Instant,
    /// The network namespace of etcd and of the servers, or the reason why there is none.
    pub(super) space: Result<Space, String>,
}

impl Stage {
    pub(super) fn new(scratch: &Scratch, options: &Options) -> Result<Self> {
        let (clients, servers) = ([const { None }; SERVERS.len()], [const { None }; SERVERS.len()]);
        let space = own_space();
        let mut stage = Self {
            folder: scratch.path().to_owned(),
            binary: options.binary.clone(),
            clients,
            loads: [NONE; SERVERS.len()],
            servers,
            etcd: [const { None }; MEMBERS],
            ports: ports(space.is_ok())?,
            counts: [[0; 2]; SERVERS.len()],
            began: Instant::now(),
            space,
        };
        stage.start_etcd()?;
        (0..SERVERS.len()).try_for_each(|server| stage.start_server(server))?;
        (0..SERVERS.len()).try_for_each(|server| stage.await_server(server))?;
        Ok(stage)
    }

    /// A command for `program`, in the network namespace if there is one.
    fn command(&self, program: &str) -> Command {
        match &self.space {
            Ok(space) => space.command(program),
            Err(_) => process::program(program),
        }
    }

    /// Starts the members of etcd that do not run, and waits until all are healthy.
    fn start_etcd(&mut self) -> Result<()> {
        for member in 0..MEMBERS {
            if self.etcd[member].is_none() {
                self.etcd[member] = Some(self.etcd_member(member)?);
            }
        }
        self.await_etcd()
    }

    fn etcd_member(&self, member: usize) -> Result<Running> {
        let [port, _] = self.ports[member];
        let own = format!("http://127.0.0.1:{port}");
        let for_servers = (0..SERVERS.len()).map(|server| format!("http://{}:{port}", address_for(server)));
        let listen: Vec<String> = for_servers.chain([own.clone()]).collect();
        let peers = self.ports.map(|[_, peer]| format!("http://127.0.0.1:{peer}"));
        let mut command = self.command("etcd");
        command.args(["--heartbeat-interval=50", "--election-timeout=500"]);
        servers::etcd_member(&self.folder, command, member, [&listen.join(","), &own], &peers)
    }

    fn await_etcd(&self) -> Result<()> {
        process::until("all members of etcd are healthy", [PATIENCE, PAUSE], || {
            Ok((0..MEMBERS).all(|member| self.ask_etcd(member, "/health", &[]).is_ok()))
        })?;
        Ok(())
    }

    /// The answer of a member of etcd. `more`: further options of curl.
    fn ask_etcd(&self, member: usize, path: &str, more: &[&str]) -> Result<Value> {
        let url = format!("http://127.0.0.1:{}{path}", self.ports[member][0]);
        let mut curl = self.command("curl");
        process::json(curl.args(["--silent", "--fail", "--max-time", "2"]).args(more).arg(url))
    }

    /// The index of the member of etcd that leads.
    fn leading(&self) -> Result<usize> {
        let leads = |member: usize| {
            let status = self.ask_etcd(member, "/v3/maintenance/status", &["--data", "{}"]).unwrap_or_default();
            status["leader"].is_string() && status["leader"] == status["header"]["member_id"]
        };
        let mut leading = None;
        process::until("etcd has a leader", [PATIENCE, PAUSE], || {
            leading = (0..MEMBERS).find(|member| leads(*member));
            Ok(leading.is_some())
        })?;
        leading.context("etcd has no leader; see its logs")
    }

    /// Kills all members of etcd.
    pub(super) fn end_etcd(&mut self) {
        self.etcd = [const { None }; MEMBERS];
    }

    /// Starts a server.
    fn start_server(&mut self, server: usize) -> Result<()> {
        let name = SERVERS[server];
        let folder = self.folder.join(name);
        let etcd = self.ports.map(|[port, _]| format!("http://{}:{port}", address_for(server)));
        let config = format!(
            "[server]\nlisten = []\nstatus = \"off\"\nworkers = 1\ndata_dir = {folder:?}\n\
             [pools.main]\ntuning.admission = \"none\"\n\
             [tenants.db]\nreservation = {{ iops = {RESERVATION} }}\nlimit = {{ iops = {LIMIT} }}\n\
             [volumes.db]\nbackend = \"memory\"\nsize = \"16MiB\"\n\
             [cluster]\netcd = {etcd:?}\nhost = \"{name}\"\nperiod = \"{}ms\"\nlease = \"{}ms\"\n",
            PERIOD.as_millis(),
            LEASE.as_millis()
        );
        let file = self.folder.join(format!("{name}.toml"));
        std::fs::write(&file, config)?;
        let mut command = self.command(&self.binary.display().to_string());
        command.arg("serve").arg("--config").arg(file);
        self.servers[server] = Some(process::daemon(&self.folder, name, &mut command)?);
        Ok(())
    }

    /// Waits until a server shares the tenant's totals.
    fn await_server(&mut self, server: usize) -> Result<()> {
        process::until("the server takes part", [PATIENCE, PAUSE], || {
            let running = self.servers[server].as_mut().context("the server was not started")?;
            ensure!(running.ended()?.is_none(), "the server {} has ended; see its log", SERVERS[server]);
            Ok(self.contact(server) == "shared")
        })?;
        Ok(())
    }

    /// Gives the clients other loads; a client with the same load goes on.
    pub(super) fn load(&mut self, loads: [Load; SERVERS.len()]) -> Result<()> {
        for (server, load) in loads.into_iter().enumerate() {
            if self.loads[server] == load {
                continue;
            }
            // The client before has to end first.
            self.clients[server] = None;
            self.loads[server] = load;
            if !load.is_empty() {
                self.clients[server] = Some(servers::fio(&self.folder, SERVERS[server], "db", "16m", load)?);
            }
        }
        Ok(())
    }

    /// The readings from an event on, until there are that many windows after the event has settled.
    pub(super) fn course(&mut self, event: &Event, windows: usize) -> Result<Course> {
        (event.happens)(self)?;
        self.load(event.loads)?;
        let course = self.readings(event.within, windows)?;
        if let Some(server) = event.lost {
            let contact = self.contact(server);
            let is_lost = ["lost", "alone"].contains(&contact.as_str());
            ensure!(is_lost, "the contact of the server {} is {contact:?}, not lost", SERVERS[server]);
        }
        Ok(course)
    }

    /// No event but the loads'.
    pub(super) fn nothing(&mut self) -> Result<()> {
        Ok(())
    }

    /// Kills the member of etcd that leads, with SIGKILL.
    pub(super) fn leader_is_killed(&mut self) -> Result<()> {
        let leading = self.leading()?;
        self.etcd[leading] = None;
        Ok(())
    }

    /// Starts the killed member again, and stops the one that leads now: its connections stay open.
    pub(super) fn leader_is_paused(&mut self) -> Result<()> {
        self.start_etcd()?;
        let leading = self.leading()?;
        let member = self.etcd[leading].as_ref().context("the leader of etcd has ended; see its log")?;
        member.signal(libc::SIGSTOP);
        Ok(())
    }

    /// Lets the paused member of etcd go on, and kills a server with SIGKILL.
    pub(super) fn server_is_killed(&mut self) -> Result<()> {
        self.etcd.iter().flatten().for_each(|member| member.signal(libc::SIGCONT));
        self.await_etcd()?;
        self.clients[KILLED] = None;
        self.loads[KILLED] = NONE;
        self.servers[KILLED] = None;
        Ok(())
    }

    pub(super) fn server_is_back(&mut self) -> Result<()> {
        self.start_server(KILLED)?;
        self.await_server(KILLED)
    }

    /// Drops all packets between a server and etcd.
    pub(super) fn server_is_cut_off(&mut self) -> Result<()> {
        let address = address_for(CUT_OFF);
        let drops = format!("ip daddr {address} drop\nip saddr {address} drop");
        let rules = format!("table ip lab {{\nchain in {{\ntype filter hook input priority 0;\n{drops}\n}}\n}}");
        process::output(self.command("nft").arg(rules)).map(drop)
    }

    pub(super) fn server_is_found_again(&mut self) -> Result<()> {
        process::output(self.command("nft").args(["delete", "table", "ip", "lab"])).map(drop)
    }

    fn state(&self, server: usize) -> Result<Value> {
        let socket = self.folder.join(SERVERS[server]).join("control.sock");
        let mut command = process::program("curl");
        command.args(["--silent", "--fail", "--max-time", "10", "--unix-socket"]).arg(socket);
        process::json(command.arg("http://evenkeel/api/v1/state"))
    }

    /// Contact of a server with the cluster; empty if it does not answer or knows no totals.
    pub(super) fn contact(&self, server: usize) -> String {
        let state = self.state(server).unwrap_or_default();
        state["cluster"]["totals"]["contact"].as_str().unwrap_or_default().to_owned()
    }

    /// A server's part of the tenant's limit, 0 to 1.
    pub(super) fn part(&self, server: usize) -> f64 {
        let state = self.state(server).unwrap_or_default();
        let limit = tenant(&state).and_then(|tenant| tenant["limit"]["iops"].as_f64());
        limit.unwrap_or(0.0) / f64::from(LIMIT)
    }

    fn reading(&mut self) -> Result<Reading> {
        let mut served = [0; SERVERS.len()];
        for (server, served) in served.iter_mut().enumerate() {
            let now = match self.servers[server] {
                Some(_) => {
                    let state = self.state(server)?;
                    tenant(&state).and_then(|tenant| tenant["reads_total"].as_u64()).context("reads_total")?
                }
                None => 0,
            };
            let [last, earlier] = &mut self.counts[server];
            if now < *last {
                *earlier += *last;
            }
            *last = now;
            *served = *earlier + now;
        }
        Ok(Reading { at: self.began.elapsed(), served })
    }

    /// Readings until there are that many windows from `after` on.
    pub(super) fn readings(&mut self, after: Duration, windows: usize) -> Result<Course> {
        let mut readings = vec![self.reading()?];
        while judge::windows(judge::since(&readings, after)).len() < windows {
            thread::sleep(STEP);
            readings.push(self.reading()?);
        }
        Ok(readings)
    }

    pub(super) fn wait_for(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) -> Result<()> {
        let parts = || (0..SERVERS.len()).map(|server| self.part(server)).collect::<Vec<_>>();
        process::until(what, [PATIENCE, PAUSE], || Ok(holds(self)))
            .with_context(|| format!("the servers have the parts {:?}", parts()))
            .map(drop)
    }
}

/// The tenant `db` in a server's state.
fn tenant(state: &Value) -> Option<&Value> {
    let pools = state["pools"].as_array()?;
    let mut tenants = pools.iter().filter_map(|pool| pool["tenants"].as_array()).flatten();
    tenants.find(|tenant| tenant["name"] == "db")
}
