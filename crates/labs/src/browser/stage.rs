//! The servers that the browser visits: one with tenants of every kind and load, and one with a thousand tenants, some
//! of them under load; and an agent.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::base::process::{self, Running};
use crate::base::servers::{self, free_port};

/// Duration of the clients' load: longer than the lab. The clients are ended with the stage.
const LOAD: &str = "600s";
/// Number of tenants of the large server, besides the default tenant.
pub(super) const MANY: usize = 1_000;
/// Number of the large server's tenants that are under load, each from two connections.
const LOADED: usize = 100;

/// Configuration of the small server, with content for every panel: latency targets, reservations, a guarantee, limits, several
/// pools. A reservation in pool `small` is 25 times the device's rate; pool `capped` and volume `limited` have
/// limits below their devices' rates.
const SOME: &str = r#"
[pools.main]
latency.target = "12ms"
emulate = { preset = "ssd", iops = 6000, bandwidth = "120MB" }
[pools.shared]
tuning.slots = "needs"
emulate = { preset = "ssd", iops = 1000 }
[pools.small]
tuning.admission = { kind = "fixed", budget = "4KiB" }
emulate = { preset = "ssd", iops = 200 }
[pools.capped]
limit = { iops = 300 }
emulate = { preset = "ssd", iops = 6000 }
[pools.plain]
emulate = { preset = "ssd", iops = 6000 }
[tenants.hopeless]
reservation = { iops = 5000 }
[tenants.database]
reservation = { iops = 60 }
[tenants.shop]
guarantee = { bytes_per_s = "4MB" }
[tenants.backup]
limit = { bytes_per_s = "20MB" }
priority = "background"
[tenants.mail]
latency.target = "30ms"
[volumes]
database = { backend = "emulate", size = "64MiB" }
shop = { backend = "emulate", size = "64MiB" }
backup = { backend = "emulate", size = "64MiB" }
mail = { backend = "emulate", size = "64MiB", pool = "shared" }
hopeless = { backend = "emulate", size = "64MiB", pool = "small" }
capped = { backend = "emulate", size = "64MiB", pool = "capped" }
limited = { backend = "emulate", size = "64MiB", pool = "plain", limit = { iops = 20 } }
"#;

/// The small server's clients: volume, and options of `evenkeel load`. `database` sends 15 times its reservation.
const CLIENTS: [(&str, &[&str]); 7] = [
    ("database", &["--op", "mix", "--rate", "900", "--queue-depth", "8"]),
    ("shop", &["--op", "mix", "--block-size", "16k", "--queue-depth", "8"]),
    ("backup", &["--op", "write", "--block-size", "64k", "--queue-depth", "16"]),
    ("mail", &["--op", "mix", "--queue-depth", "16"]),
    ("hopeless", &["--op", "mix", "--queue-depth", "16"]),
    ("capped", &["--op", "mix", "--queue-depth", "16"]),
    ("limited", &["--op", "mix", "--queue-depth", "4"]),
];

/// A server, with its configuration.
pub(super) struct Server {
    binary: PathBuf,
    folder: PathBuf,
    /// Name of the server, from which its file names are formed.
    name: String,
    nbd: u16,
    status: u16,
    process: Option<Running>,
}

impl Server {
    /// Starts the small server, with tenants of every kind.
    pub(super) fn with_some(binary: &Path, folder: &Path) -> Result<Self> {
        Self::start(binary, folder, "some", SOME, "database")
    }

    /// Starts the large server, with [`MANY`] tenants.
    pub(super) fn with_many(binary: &Path, folder: &Path) -> Result<Self> {
        let mut text = String::from("[pools.main]\nemulate = { preset = \"ssd\" }\n");
        for number in 0..MANY {
            let guarantee =
                ["reservation = { iops = 10 }", "guarantee = { iops = 20 }", "limit = { iops = 100 }"][number % 3];
            writeln!(text, "[tenants.tenant-{number:04}]\n{guarantee}")?;
            writeln!(text, "[volumes.tenant-{number:04}]\nbackend = \"emulate\"\nsize = \"1MiB\"")?;
        }
        Self::start(binary, folder, "many", &text, "tenant-0000")
    }

    fn start(binary: &Path, folder: &Path, name: &str, rest: &str, export: &str) -> Result<Self> {
        let (nbd, status) = (free_port()?, free_port()?);
        let data = folder.join(name);
        let text = format!(
            "[server]\nlisten = [\"127.0.0.1:{nbd}\"]\nunix = []\nstatus = \"127.0.0.1:{status}\"\ndata_dir = {data:?}\n{rest}"
        );
        let (binary, folder, name) = (binary.to_owned(), folder.to_owned(), name.to_owned());
        let mut server = Self { binary, folder, name, nbd, status, process: None };
        let config = server.config();
        std::fs::write(&config, text).with_context(|| format!("cannot write {}", config.display()))?;
        server.rise(export)?;
        Ok(server)
    }

    fn config(&self) -> PathBuf {
        self.folder.join(format!("{}.toml", self.name))
    }

    /// Starts the server, again at its old addresses after [`Server::fall`], and waits until it serves `export`.
    pub(super) fn rise(&mut self, export: &str) -> Result<()> {
        let mut command = servers::serve(&self.binary, self.config());
        let reach = || servers::reach(&format!("127.0.0.1:{}", self.nbd), export);
        self.process = Some(servers::start_and_reach(&self.folder, &self.name, &mut command, reach)?);
        Ok(())
    }

    /// Kills the server, to be started again by [`Server::rise`].
    pub(super) fn fall(&mut self) {
        self.process = None;
    }

    /// Process id of the server.
    pub(super) fn id(&self) -> Result<u32> {
        Ok(self.process.as_ref().context("the server is down")?.id())
    }

    /// Address of the server's status API.
    pub(super) fn status(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.status).into()
    }

    /// URL of the server's dashboard.
    pub(super) fn page(&self) -> String {
        format!("http://{}/", self.status())
    }

    /// URL of the server's dashboard, at a pool.
    pub(super) fn page_of(&self, pool: &str) -> String {
        format!("{}#/{pool}", self.page())
    }

    /// Starts load on [`LOADED`] of the many tenants; reads, writes and mixed loads alternate from tenant to tenant.
    pub(super) fn load_some(&self, folder: &Path) -> Result<Running> {
        let mut jobs = String::new();
        for number in 0..LOADED {
            let uri = format!("nbd://127.0.0.1:{}/tenant-{number:04}", self.nbd);
            writeln!(jobs, "[[job]]\nname = \"{number}\"\nuri = \"{uri}\"")?;
        }
        let path = folder.join("jobs.toml");
        std::fs::write(&path, jobs).with_context(|| format!("cannot write {}", path.display()))?;
        let mut command = Command::new(&self.binary);
        command.args(["load", "--jobs"]).arg(&path).args(["--op", "mix", "--rate", "40", "--connections", "2"]);
        command.args(["--queue-depth", "2", "--threads", "1", "--duration", LOAD]);
        let log = std::fs::File::create(folder.join("load.log"))?;
        Running::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log))
    }

    /// Starts the clients of the small server.
    pub(super) fn load(&self) -> Result<Vec<Running>> {
        let client = |&(export, load): &(&str, &[&str])| {
            let mut command = Command::new(&self.binary);
            command.arg("load").arg(format!("nbd://127.0.0.1:{}/{export}", self.nbd)).args(load);
            command.args(["--duration", LOAD]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            Running::spawn(&mut command)
        };
        CLIENTS.iter().map(client).collect()
    }
}

/// An agent in dry-run mode, with a pool that no target on this host serves.
pub(super) struct Agent {
    status: u16,
    /// The agent's process, ended on drop.
    _process: Running,
}

impl Agent {
    /// Starts the agent, and waits until it accepts connections.
    pub(super) fn start(binary: &Path, folder: &Path) -> Result<Self> {
        let status = free_port()?;
        let config = folder.join("guard.toml");
        let text =
            format!("[agent]\nstatus = \"127.0.0.1:{status}\"\n[pools.nothing-served]\nlatency.target = \"15ms\"\n");
        std::fs::write(&config, text).with_context(|| format!("cannot write {}", config.display()))?;
        let mut command = Command::new(binary);
        command.args(["guard", "run", "--dry-run", "--config"]).arg(&config);
        let log = std::fs::File::create(folder.join("guard.log"))?;
        let process = Running::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log))?;
        let times = [servers::START_LIMIT, Duration::from_millis(100)];
        process::until("the agent answers", times, || Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, status)).is_ok()))?;
        Ok(Self { status, _process: process })
    }

    /// URL of the agent's dashboard.
    pub(super) fn page(&self) -> String {
        format!("http://127.0.0.1:{}/", self.status)
    }
}
