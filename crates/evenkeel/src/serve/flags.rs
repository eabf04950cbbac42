//! The command line of `evenkeel serve`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use evenkeel_policy::Config;
use evenkeel_policy::config::{Engine, Status, Workers};

/// The flags of the command line; each goes before the file.
#[derive(clap::Args)]
pub(super) struct Flags {
    /// Serve every volume read-only
    #[arg(long)]
    read_only: bool,

    /// Engine that submits I/O to the kernel; auto: io_uring where allowed
    #[arg(long, value_name = "ENGINE", value_parser = engine())]
    engine: Option<Engine>,

    /// TCP address that serves NBD; may be given several times [default: 127.0.0.1:10809]
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    listen: Vec<SocketAddr>,

    /// Unix socket that serves NBD; may be given several times [default: DATA_DIR/nbd.sock]
    #[arg(long, value_name = "PATH")]
    unix: Vec<PathBuf>,

    /// Address of the read-only dashboard, metrics and API, or "off" [default: 127.0.0.1:9809]
    #[arg(long, value_name = "ADDR:PORT|off")]
    status: Option<Status>,

    /// Folder of the volumes that have no path of their own [default: ./evenkeel-data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,

    /// Threads that serve connections: a number, or auto for one per core [default: auto]
    #[arg(long, value_name = "N|auto")]
    workers: Option<Workers>,
}

/// A parser for the option `--engine`, which accepts the engines' names.
fn engine() -> impl TypedValueParser<Value = Engine> {
    PossibleValuesParser::new(Engine::ALL.map(Engine::name)).try_map(|given| {
        let found = Engine::ALL.into_iter().find(|engine| engine.name() == given);
        found.ok_or("no engine")
    })
}

/// Parses the IP address and port of a TCP listener; names of hosts are refused.
fn address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "write ADDR:PORT, for example 127.0.0.1:10809; host names are not looked up")
}

impl Flags {
    /// Overrides the settings in `config`, which come from a file, by those of the command line.
    pub(super) fn apply(&self, config: &mut Config) {
        let server = &mut config.server;
        server.read_only |= self.read_only;
        server.engine = self.engine.unwrap_or(server.engine);
        if !self.listen.is_empty() {
            server.listen.clone_from(&self.listen);
        }
        if !self.unix.is_empty() {
            server.unix = Some(self.unix.clone());
        }
        server.status = self.status.unwrap_or(server.status);
        if let Some(data_dir) = &self.data_dir {
            server.data_dir.clone_from(data_dir);
        }
        server.workers = self.workers.unwrap_or(server.workers);
    }
}
