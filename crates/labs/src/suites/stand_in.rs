//! A program that takes the place of nbdkit for tests that start their server themselves. It parses nbdkit's options and starts
//! Evenkeel.
//!
//! A feature of nbdkit that Evenkeel does not have (script plugins, filters) is an error, so that no test passes by accident.

use std::ffi::OsString;
use std::io;
use std::net::Shutdown;
use std::os::fd::FromRawFd as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::server::{Kind, Setup};
use crate::base::process::Running;

/// Size of a volume in bytes if a test gives none. nbdkit's default is zero bytes, which Evenkeel does not allow.
const SIZE: u64 = 1 << 20;
/// Environment variable by which systemd's protocol announces a passed socket.
const ACTIVATION: &str = "LISTEN_FDS";

/// The arguments from the lab; the rest is the command line of the program whose place it takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[arg(long)]
    pub(super) binary: PathBuf,
    /// Folder for the files of its servers.
    #[arg(long)]
    pub(super) dir: PathBuf,
    #[command(flatten)]
    pub(super) kind: Kind,
    #[arg(last = true)]
    pub(super) words: Vec<String>,
}

/// The settings that a command line of nbdkit asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wanted {
    /// True if one client is to be served on standard input and output.
    single: bool,
    read_only: bool,
    tls: bool,
    exit_with_parent: bool,
    /// True if the program is to print a version and end.
    version: bool,
    certificates: Option<PathBuf>,
    unix: Option<PathBuf>,
    port: Option<u16>,
    pid_file: Option<PathBuf>,
    run: Option<String>,
    plugin: String,
    size: Option<u64>,
    file: Option<PathBuf>,
}

impl Wanted {
    fn read(words: &[String]) -> Result<Self> {
        let mut wanted = Self::default();
        let mut words = words.iter().map(String::as_str);
        while let Some(word) = words.next() {
            let mut next = || words.next().with_context(|| format!("{word} without a value"));
            match word {
                "-s" => wanted.single = true,
                "-r" => wanted.read_only = true,
                // In the foreground, verbose, with fixed newstyle handshakes: as it is in any case.
                "-f" | "-v" | "-fv" | "-n" => {}
                "-U" => wanted.unix = Some(next()?.into()),
                "-p" => wanted.port = Some(next()?.parse()?),
                "-P" => wanted.pid_file = Some(next()?.into()),
                "--run" => wanted.run = Some(next()?.into()),
                "--exit-with-parent" => wanted.exit_with_parent = true,
                "--version" => wanted.version = true,
                "--tls=require" => wanted.tls = true,
                "--tls=off" | "--tls-verify-peer" => {}
                _ if word.starts_with("--tls-certificates=") => {
                    wanted.certificates = word.split_once('=').map(|(_, path)| path.into());
                }
                _ if word.starts_with('-') => bail!("Evenkeel has no {word}"),
                _ if wanted.plugin.is_empty() => wanted.plugin = word.into(),
                _ => wanted.parameter(word)?,
            }
        }
        ensure!(
            wanted.version || ["memory", "null", "pattern", "file", "sh"].contains(&wanted.plugin.as_str()),
            "Evenkeel has nothing like the plugin `{}`",
            wanted.plugin
        );
        Ok(wanted)
    }

    fn parameter(&mut self, word: &str) -> Result<()> {
        match (self.plugin.as_str(), word.split_once('=')) {
            ("file", _) => self.file = Some(word.into()),
            // Its script says which flags a server has; Evenkeel has those that it has, and the test looks.
            ("sh", None) => ensure!(word.ends_with("/eflags-plugin.sh"), "Evenkeel runs no script {word}"),
            ("sh", Some(_)) => {}
            (_, Some(("size", text))) => self.size = Some(bytes(text)?),
            (_, None) => self.size = Some(bytes(word)?),
            _ => bail!("Evenkeel has nothing like {word} of the plugin `{}`", self.plugin),
        }
        Ok(())
    }
}

/// Parses a size in nbdkit's syntax.
fn bytes(text: &str) -> Result<u64> {
    let (number, unit) = match text.trim_end_matches(['m', 'M']) {
        number if number.len() < text.len() => (number, 1 << 20),
        number => (number, 1),
    };
    Ok(number.parse::<u64>().with_context(|| format!("{text} is no size"))? * unit)
}

/// Starts a server as nbdkit's command line demands, and waits for its end.
pub(crate) fn run(options: &Options) -> Result<()> {
    let Options { binary, dir, kind, words } = options;
    let wanted = Wanted::read(words)?;
    if wanted.version {
        println!("Evenkeel in place of nbdkit");
        return Ok(());
    }
    if wanted.exit_with_parent {
        // SAFETY: prctl with these arguments has no memory effects.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    }
    let dir = dir.join(std::process::id().to_string());
    let mut setup = Setup {
        read_only: wanted.read_only,
        file: wanted.file,
        certificates: wanted.tls.then(|| wanted.certificates.map(std::path::absolute)).flatten().transpose()?,
        always_tls: wanted.tls,
        port: wanted.port,
        unix: wanted.unix.filter(|path| path != Path::new("-")),
        ..Setup::new(*kind, wanted.size.unwrap_or(SIZE))
    };
    if setup.unix.is_none() && setup.port.is_none() {
        setup.unix = Some(dir.join("nbd.sock"));
    }
    if std::env::var_os(ACTIVATION).is_some() {
        // The socket is meant for this process.
        return Err(setup.command(binary, &dir)?.exec().into());
    }
    // Tests look for a port without a listener; a client of another program may have it for a while.
    let mut tries = if setup.port.is_some() { 10 } else { 1 };
    let server = loop {
        tries -= 1;
        match setup.start(binary, &dir) {
            Err(error) if tries > 0 => eprintln!("{error:#}; the next try follows"),
            other => break other?,
        }
        thread::sleep(Duration::from_secs(2));
    };
    // The only test of both looks at no data.
    if wanted.plugin == "pattern" && !wanted.tls {
        setup.fill_with_pattern()?;
    }
    if let Some(path) = wanted.pid_file {
        std::fs::write(path, format!("{}\n", std::process::id()))?;
    }
    let unix = setup.unix.unwrap_or_default();
    match wanted.run {
        Some(text) => {
            let mut shell = Command::new("sh");
            let status = shell.arg("-c").arg(text).env("unixsocket", OsString::from(unix)).status()?;
            server.kill();
            std::process::exit(status.code().unwrap_or(1));
        }
        None if wanted.single => relay(&unix),
        None => wait(server),
    }
}

/// Relays bytes between the client, on standard input and output, and the server's socket.
fn relay(socket: &Path) -> Result<()> {
    // SAFETY: nothing else in this program uses the descriptor.
    let client = unsafe { UnixStream::from_raw_fd(0) };
    let server = UnixStream::connect(socket)?;
    let (mut from, mut to) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || {
        let _ = io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Write);
    });
    let (mut from, mut to) = (server, client);
    // A client that has left takes no more.
    let _ = io::copy(&mut from, &mut to);
    Ok(())
}

/// Waits until the server ends. The test ends the server together with this program.
pub(super) fn wait(mut server: Running) -> Result<()> {
    while server.ended()?.is_none() {
        thread::sleep(Duration::from_millis(50));
    }
    bail!("the server has ended")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Wanted> {
        Wanted::read(&text.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_of_nbdkit_are_read_and_others_refused() {
        let wanted = read("-f -p 77 -P file --exit-with-parent null").unwrap();
        assert_eq!((wanted.port, wanted.pid_file, wanted.exit_with_parent), (Some(77), Some("file".into()), true));
        assert_eq!(read("-s memory size=2m").unwrap().size, Some(2 << 20));
        assert_eq!(read("-s -v memory 1048576").unwrap().size, Some(1 << 20));
        for refused in ["-s --filter=delay memory", "eval get_size=1", "memory delay-read=15", "-s -o memory"] {
            assert!(read(refused).is_err(), "{refused}");
        }
    }
}
