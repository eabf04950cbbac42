//! The server for a test suite: one volume, with the settings that the suite needs.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::base::client::{self, Client};
use crate::base::process::{self, Running};
use crate::base::servers::{self, EXPORT, START_LIMIT, quote};

/// Name of the image file behind the volume, unless the test provides a file.
const IMAGE: &str = "disk0.img";
/// Size of one write when the volume is filled with a pattern, in bytes.
const PIECE: usize = 1 << 20;

/// Storage and serving of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::Args)]
pub(crate) struct Kind {
    /// On epoll and threads, instead of io_uring where the kernel allows it.
    #[arg(long)]
    pub(super) epoll: bool,
    /// In memory, instead of in a file.
    #[arg(long)]
    pub(super) memory: bool,
}

impl Kind {
    pub(super) const ALL: [Self; 4] = [
        Self { epoll: false, memory: false },
        Self { epoll: true, memory: true },
        Self { epoll: false, memory: true },
        Self { epoll: true, memory: false },
    ];

    /// Two kinds that together cover each engine and each storage once.
    pub(super) const PAIRED: [Self; 2] = [Self::ALL[0], Self::ALL[1]];

    /// Name of the kind, a part of the names of checks.
    pub(super) fn name(self) -> String {
        let engine = if self.epoll { "epoll" } else { "default" };
        format!("{engine}_{}", if self.memory { "memory" } else { "file" })
    }
}

/// The volume, and the address on which it is served.
#[derive(Debug, Clone)]
pub(super) struct Setup {
    pub(super) kind: Kind,
    pub(super) size: u64,
    pub(super) read_only: bool,
    /// A file that the test provides as the volume; `None`: the server makes its own.
    pub(super) file: Option<PathBuf>,
    /// Folder of certificates, with which every client over TCP must use TLS; `None`: without TLS.
    pub(super) certificates: Option<PathBuf>,
    /// True if clients over a Unix socket must use TLS, too.
    pub(super) always_tls: bool,
    pub(super) unix: Option<PathBuf>,
    pub(super) port: Option<u16>,
}

impl Setup {
    pub(super) fn new(kind: Kind, size: u64) -> Self {
        Self { kind, size, read_only: false, file: None, certificates: None, always_tls: false, unix: None, port: None }
    }

    /// Writes the server's configuration into `dir`. Returns the command that starts the server.
    pub(super) fn command(&self, binary: &Path, dir: &Path) -> Result<Command> {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let config = dir.join("evenkeel.toml");
        std::fs::write(&config, self.text(dir)?)?;
        if self.read_only && self.file.is_none() && !self.kind.memory {
            // A volume that is only read is not made.
            std::fs::File::create(dir.join(IMAGE))?.set_len(self.size)?;
        }
        Ok(servers::serve(binary, config))
    }

    fn text(&self, dir: &Path) -> Result<String> {
        let mut text = format!("[server]\nstatus = \"off\"\ndata_dir = {}\n", quote(&dir.join("data")));
        if self.kind.epoll {
            text += "engine = \"epoll\"\n";
        }
        let mut addresses = Vec::new();
        if let Some(port) = self.port {
            addresses.push(format!("\"127.0.0.1:{port}\""));
            if has_ipv6() {
                addresses.push(format!("\"[::1]:{port}\""));
            }
        }
        let unix = self.unix.as_deref().map(quote).unwrap_or_default();
        writeln!(text, "listen = [{}]\nunix = [{unix}]", addresses.join(", "))?;
        if let Some(folder) = &self.certificates {
            text += &servers::tls(folder, if self.always_tls { "always" } else { "tcp" });
        }
        writeln!(text, "[volumes.{EXPORT}]\nread_only = {}", self.read_only)?;
        match &self.file {
            Some(path) => writeln!(text, "path = {}", quote(path))?,
            None if self.kind.memory => writeln!(text, "backend = \"memory\"\nsize = {}", self.size)?,
            None => writeln!(text, "path = {}\nsize = {}", quote(&dir.join(IMAGE)), self.size)?,
        }
        Ok(text)
    }

    /// Starts the server with its files in `dir`, and waits until it serves.
    pub(super) fn start(&self, binary: &Path, dir: &Path) -> Result<Running> {
        servers::start_and_reach(dir, "server", &mut self.command(binary, dir)?, || self.wait(dir))
    }

    /// Waits until the server answers an NBD client or, if TLS is required, until it accepts a connection.
    fn wait(&self, dir: &Path) -> Result<()> {
        let plain = |unix: &Path| unix.display().to_string();
        let address = match (&self.unix, self.port) {
            (Some(path), _) => plain(path),
            (None, Some(port)) => format!("127.0.0.1:{port}"),
            (None, None) => plain(&dir.join("nothing")),
        };
        if self.always_tls || (self.certificates.is_some() && self.unix.is_none()) {
            let reached = || match &self.unix {
                Some(path) => std::os::unix::net::UnixStream::connect(path).is_ok(),
                None => std::net::TcpStream::connect(&address).is_ok(),
            };
            let pause = Duration::from_millis(20);
            return process::until(&format!("a connection to {address}"), [START_LIMIT, pause], || Ok(reached()))
                .map(drop);
        }
        servers::reach(&address, EXPORT)
    }

    /// Fills the volume with the pattern of nbdkit's plugin `pattern`: each group of 8 bytes holds its own offset, big-endian.
    pub(super) fn fill_with_pattern(&self) -> Result<()> {
        let path = self.unix.as_ref().context("the pattern is written by a Unix socket")?;
        let mut client = Client::connect(&path.display().to_string(), EXPORT, START_LIMIT)?;
        for at in (0..self.size).step_by(PIECE) {
            let piece: Vec<u8> = (at..self.size.min(at + PIECE as u64)).step_by(8).flat_map(u64::to_be_bytes).collect();
            client.send(client::Command::Write, false, at, at, piece.len() as u32, &piece)?;
            client.receive()?;
        }
        client.disconnect()
    }
}

/// True if this machine has an IPv6 loopback address.
pub(super) fn has_ipv6() -> bool {
    std::net::TcpListener::bind("[::1]:0").is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_has_what_a_suite_wants() {
        let (file, memory) = (Kind { epoll: true, memory: false }, Kind { epoll: false, memory: true });
        let text = Setup { read_only: true, port: Some(7), ..Setup::new(file, 5) }.text(Path::new("d")).unwrap();
        assert!(text.contains("engine = \"epoll\"") && text.contains("path = \"d/disk0.img\"\nsize = 5"), "{text}");
        assert!(text.contains("listen = [\"127.0.0.1:7\"") && text.contains("read_only = true"), "{text}");
        let tls = Setup { certificates: Some("c".into()), unix: Some("s".into()), ..Setup::new(memory, 6) };
        let text = tls.text(Path::new("d")).unwrap();
        assert!(text.contains("unix = [\"s\"]") && text.contains("backend = \"memory\"\nsize = 6"), "{text}");
        assert!(text.contains("required = \"tcp\"") && text.contains("clients = \"c/ca-cert.pem\""), "{text}");
    }
}
