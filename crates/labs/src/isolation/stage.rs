//! The servers under attack, each at an address of its own, and the attacker's processes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::attacker::{NBD_PORT, STATUS_PORT, tenant_address};
use super::attacks::{Attack, Backend, CROWD, Engine, FILLED, MEMORY_BYTES, Opening, Place, SPAN, Setting, Target};
use super::counts::Counts;
use super::places;
use super::{light, wire};
use crate::base::client::{self, Client};
use crate::base::process::{self, Running, daemon};
use crate::base::scratch::{Scratch, make_full_file};
use crate::base::servers;
use crate::base::spelled::spelled;

/// Port of the server behind remote volumes.
const BEHIND_PORT: u16 = 10_810;
/// Time limit for the start of a server.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time limit of an attacker's process beyond the duration of its attack: the process may wait long for a processor.
const ATTACKER_LIMIT: Duration = Duration::from_secs(30);
/// Scheduling policy of the attacker's processes, an option of chrt: they stand for other machines, and run only while the
/// server and the light client leave a processor idle.
const POLICY: &str = "--idle";

/// Files that all attacks use, and the settings with which servers are started.
pub(super) struct Stage {
    binary: PathBuf,
    scratch: Scratch,
    /// Paths of a certificate and its key; `None` if the program that makes them is missing.
    certificate: Option<[PathBuf; 2]>,
    servers: u8,
}

/// The server under attack, and the server behind it if its volumes are remote.
pub(super) struct Servers {
    process: Running,
    behind: Option<Running>,
    host: Ipv4Addr,
    folder: PathBuf,
    place: Place,
}

/// The running processes of the attacker.
pub(super) struct Attackers {
    processes: Vec<(Running, PathBuf)>,
    limit: Duration,
}

impl Stage {
    pub(super) fn new(binary: &Path, keep: bool) -> Result<Self> {
        let scratch = Scratch::kept_if(keep, "isolation")?;
        let certificate = ["tls.crt", "tls.key"].map(|name| scratch.path().join(name));
        let certificate = process::find_program("openssl").is_some().then_some(certificate);
        if let Some([certificate, key]) = &certificate {
            let mut openssl = process::program("openssl");
            openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]);
            openssl.args(["-days", "2", "-subj", "/CN=lab", "-keyout"]).arg(key).arg("-out").arg(certificate);
            process::output(&mut openssl)?;
        }
        Ok(Self { binary: binary.to_owned(), scratch, certificate, servers: 0 })
    }

    /// The reason why an attack cannot be tried on this machine; `None` if it can be tried.
    pub(super) fn missing(&self, attack: &Attack) -> Option<&'static str> {
        (attack.opening == Opening::Tls && self.certificate.is_none()).then_some("openssl is not installed")
    }

    /// Starts a server for an attack.
    pub(super) fn serve(&mut self, attack: &Attack, setting: Setting) -> Result<Servers> {
        self.servers = self.servers.wrapping_add(1);
        let [.., high, low] = std::process::id().to_be_bytes();
        // Nothing else has this address, so that ports are free.
        let host = Ipv4Addr::new(127, 64 + high % 64, low, 1 + self.servers % 250);
        let folder = self.scratch.path().join(format!("server-{}", self.servers));
        std::fs::create_dir_all(&folder)?;
        let mut behind = None;
        if setting.backend == Backend::Remote {
            let config = behind_config(&folder, host);
            behind = Some(self.start(&folder, "behind", &config, &format!("{host}:{BEHIND_PORT}"), wire::EXPORT)?);
        }
        if setting.backend == Backend::File {
            self.files(attack)?;
        }
        let config = self.config(&folder, host, attack, setting)?;
        let process = self.start(&folder, "serve", &config, &format!("{host}:{NBD_PORT}"), light::EXPORT)?;
        let servers = Servers { process, behind, host, folder, place: setting.place };
        if setting.place == Place::Users {
            // For users other than this one.
            std::fs::set_permissions(servers.unix(), std::fs::Permissions::from_mode(0o666))?;
        }
        if attack.holes {
            servers.write((0..SPAN).step_by(wire::STRIDE as usize), 4_096)?;
        }
        if attack.filled {
            servers.write((0..FILLED).step_by(1 << 20), 1 << 20)?;
        }
        Ok(servers)
    }

    fn start(&self, folder: &Path, name: &str, config: &str, address: &str, export: &str) -> Result<Running> {
        let path = folder.join(format!("{name}.toml"));
        std::fs::write(&path, config).with_context(|| format!("cannot write {}", path.display()))?;
        servers::start_and_reach(folder, name, &mut servers::serve(&self.binary, path), || {
            servers::reach(address, export)
        })
    }

    fn config(&self, folder: &Path, host: Ipv4Addr, attack: &Attack, setting: Setting) -> Result<String> {
        let engine = if setting.engine == Engine::Uring { "io_uring" } else { "epoll" };
        let mut text = format!(
            "[server]\nlisten = [\"{host}:{NBD_PORT}\"]\nunix = [{:?}]\nstatus = \"{host}:{STATUS_PORT}\"\ndata_dir = {:?}\n\
             engine = \"{engine}\"\n",
            folder.join("nbd.sock"),
            folder.join("data"),
        );
        if let (Opening::Tls, Some([certificate, key])) = (attack.opening, &self.certificate) {
            write!(text, "[server.tls]\ncertificate = {certificate:?}\nkey = {key:?}\nrequired = \"no\"\n")?;
        }
        for pool in ["main", "other"] {
            let device = if setting.backend == Backend::Emulated { "emulate = { preset = \"ssd\" }\n" } else { "" };
            write!(text, "[pools.{pool}]\n{device}")?;
        }
        write!(text, "[tenants.light]\nreservation = {{ iops = {} }}\n[tenants.noise]\nweight = 1\n", light::IOPS)?;
        for number in 0..if setting.place == Place::Tenants { CROWD } else { 0 } {
            write!(text, "[tenants.crowd-{number}]\nmatch = [\"address:{}\"]\n", tenant_address(number))?;
        }
        let pool = if setting.place == Place::OtherPool { "other" } else { "main" };
        let noise = if setting.backend == Backend::Memory { MEMORY_BYTES } else { SPAN };
        for (name, pool, bytes) in [(light::EXPORT, "main", light::VOLUME_BYTES), (wire::EXPORT, pool, noise)] {
            let storage = match setting.backend {
                Backend::File => format!("path = {:?}\nsize = {bytes}", self.image(name)),
                Backend::Memory => format!("backend = \"memory\"\nsize = {bytes}"),
                Backend::Emulated => format!("backend = \"emulate\"\nsize = {bytes}"),
                Backend::Remote => format!("backend = \"nbd\"\nuri = \"nbd://{host}:{BEHIND_PORT}/{name}\""),
            };
            write!(text, "[volumes.{name}]\npool = \"{pool}\"\n{storage}\n")?;
        }
        Ok(text)
    }

    fn image(&self, name: &str) -> PathBuf {
        self.scratch.path().join(format!("{name}.img"))
    }

    /// Makes the files of both volumes, unless they exist: full of data, or sparse for an attack on a volume with holes.
    fn files(&self, attack: &Attack) -> Result<()> {
        for (name, bytes) in [(light::EXPORT, light::VOLUME_BYTES), (wire::EXPORT, SPAN)] {
            let path = self.image(name);
            if name == wire::EXPORT && attack.holes {
                let file = std::fs::File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
                file.set_len(bytes)?;
            } else if !path.exists() {
                make_full_file(&path, bytes >> 20)?;
            }
        }
        Ok(())
    }

    /// Ends the servers of an attack and removes their files; also the attacked volume, if the attack changes it.
    pub(super) fn clean(&self, attack: &Attack, servers: Servers) -> Result<()> {
        let folder = servers.folder.clone();
        drop(servers);
        std::fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
        if attack.punches {
            let _ = std::fs::remove_file(self.image(wire::EXPORT));
        }
        Ok(())
    }
}

impl Servers {
    /// Address to which the light client connects: the Unix socket if the attack comes by it, otherwise the TCP port.
    pub(super) fn light_address(&self) -> String {
        if self.place == Place::Users { self.unix().display().to_string() } else { format!("{}:{NBD_PORT}", self.host) }
    }

    fn unix(&self) -> PathBuf {
        self.folder.join("nbd.sock")
    }

    /// CPU time that the server under attack has used so far, in seconds.
    pub(super) fn processor_s(&self) -> Result<f64> {
        Ok(process::cpu_ns(self.process.id())? as f64 / 1e9)
    }

    /// Time for which each thread of the servers and of the light client has waited for a processor so far.
    pub(super) fn waits(&self) -> Result<BTreeMap<String, Duration>> {
        let mut waits = BTreeMap::new();
        let servers = [Some(&self.process), self.behind.as_ref()].into_iter().flatten().map(Running::id);
        for process in servers.chain([std::process::id()]) {
            for thread in std::fs::read_dir(format!("/proc/{process}/task"))? {
                let path = thread?.path().join("schedstat");
                // A kernel may not count this, and a thread may end.
                let Ok(text) = std::fs::read_to_string(&path) else { continue };
                let wait = text.split_whitespace().nth(1).and_then(|ns| ns.parse().ok()).context("schedstat")?;
                waits.insert(path.display().to_string(), Duration::from_nanos(wait));
            }
        }
        Ok(waits)
    }

    /// Address of the server's status API.
    pub(super) fn status(&self) -> SocketAddr {
        (self.host, STATUS_PORT).into()
    }

    /// An error if the server has ended; it contains the end of the server's log.
    pub(super) fn is_alive(&mut self) -> Result<()> {
        let Some(status) = self.process.ended()? else { return Ok(()) };
        let log = std::fs::read_to_string(self.folder.join("serve.log")).unwrap_or_default();
        let last: Vec<&str> = log.lines().rev().take(3).collect();
        bail!("the server has ended with {status}: {}", last.into_iter().rev().collect::<Vec<_>>().join("; "));
    }

    /// Writes `length` bytes of the attacked volume at each of these offsets.
    fn write(&self, offsets: impl Iterator<Item = u64>, length: u32) -> Result<()> {
        let mut client = Client::connect(&format!("{}:{NBD_PORT}", self.host), wire::EXPORT, PATIENCE)?;
        let data = vec![0x5a; length as usize];
        for at in offsets {
            client.send(client::Command::Write, false, at, at, length, &data)?;
            client.receive()?;
        }
        client.disconnect()
    }

    /// Starts the processes of an attack, which end by themselves after `length`.
    pub(super) fn attack(&self, attack: &Attack, length: Duration) -> Result<Attackers> {
        let place = spelled(&self.place);
        let mut processes = Vec::new();
        for number in 0..attack.processes {
            let name = format!("{}-{number}", attack.name);
            let mut command = process::program("chrt");
            command.args([POLICY, "0"]);
            if let Some(processors) = places::attackers() {
                command.arg(process::program("taskset").get_program()).args(["-c", &processors]);
            }
            command.arg(std::env::current_exe()?);
            command.args(["guest", "attack", "--attack", attack.name, "--place", &place]);
            command.args(["--host", &self.host.to_string(), "--process", &number.to_string()]);
            command.args(["--milliseconds", &length.as_millis().to_string()]);
            command.arg("--unix").arg(self.unix()).arg("--control").arg(self.folder.join("data/control.sock"));
            let log = self.folder.join(format!("{name}.log"));
            let _ = std::fs::remove_file(&log);
            processes.push((daemon(&self.folder, &name, &mut command)?, log));
        }
        Ok(Attackers { processes, limit: length + ATTACKER_LIMIT })
    }
}

impl Attackers {
    /// Waits for the processes' end. Returns the sum of the counts that they print.
    pub(super) fn end(self) -> Result<Counts> {
        let mut counts = Counts::default();
        for (process, log) in self.processes {
            let status = process.wait(self.limit)?;
            let said = std::fs::read_to_string(log)?.trim().to_owned();
            ensure!(status.success(), "an attacker has failed: {said}");
            let one = Counts::read(&said).with_context(|| format!("an attacker says: {said}"))?;
            counts = counts.with(one);
        }
        Ok(counts)
    }
}

/// Configuration of the server behind remote volumes, which has neither scheduler nor admission control.
fn behind_config(folder: &Path, host: Ipv4Addr) -> String {
    let mut text = format!(
        "[server]\nlisten = [\"{host}:{BEHIND_PORT}\"]\nunix = []\nstatus = \"off\"\ndata_dir = {:?}\n\
         [pools.main]\ntuning.scheduler = \"none\"\ntuning.admission = \"none\"\n",
        folder.join("behind-data"),
    );
    for (name, bytes) in [(light::EXPORT, light::VOLUME_BYTES), (wire::EXPORT, SPAN)] {
        let _ = write!(text, "[volumes.{name}]\nbackend = \"memory\"\nsize = {bytes}\n");
    }
    text
}

/// Requests `/healthz` of a server; an error unless it answers within `limit`: 200, or 503 while there is a critical trouble,
/// which an attack may cause.
pub(super) fn ask_health(status: SocketAddr, limit: Duration) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&status, limit)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = [0; 13];
    stream.read_exact(&mut answer)?;
    let is_known = [*b"HTTP/1.1 200 ", *b"HTTP/1.1 503 "].contains(&answer);
    ensure!(is_known, "it answers {:?}", String::from_utf8_lossy(&answer));
    Ok(())
}

/// The setting with the origin that is possible here: an attack from many users becomes one from many addresses without root,
/// or if its target is not NBD.
pub(super) fn place_of(attack: &Attack, setting: Setting) -> Setting {
    // SAFETY: geteuid has no preconditions and cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    match setting.place {
        Place::Users if !root || attack.target != Target::Nbd => Setting { place: Place::Addresses, ..setting },
        _ => setting,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::net::TcpListener;

    use super::*;

    /// Asks a server that answers with the status line `answer`.
    fn ask(answer: &'static str) -> Result<()> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let status = listener.local_addr()?;
        let server = std::thread::spawn(move || -> std::io::Result<()> {
            let (mut stream, _) = listener.accept()?;
            let end = BufReader::new(&stream).lines().find(|line| line.as_ref().is_ok_and(String::is_empty));
            assert!(end.is_some(), "the request is whole");
            stream.write_all(answer.as_bytes())
        });
        let asked = ask_health(status, PATIENCE);
        server.join().expect("the server ends")?;
        asked
    }

    #[test]
    fn a_server_with_a_critical_trouble_answers_too() {
        for answer in ["HTTP/1.1 200 OK\r\n", "HTTP/1.1 503 Service Unavailable\r\n"] {
            ask(answer).expect("an answer");
        }
        let error = ask("HTTP/1.1 500 Internal Server Error\r\n").expect_err("another answer").to_string();
        assert!(error.contains("HTTP/1.1 500"), "{error}");
    }
}
