//! Starts Evenkeel and other NBD servers in the same way, for labs and comparisons.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::base::client::Client;
use crate::base::etcd;
use crate::base::process::{self, Running};
use crate::base::spelled::spelled;

/// Export name that every server offers.
pub(crate) const EXPORT: &str = "disk0";

const OPENSSL: &str = "\
[req]\ndistinguished_name = dn\nprompt = no\n[dn]\nCN = evenkeel\n\
[authority]\nbasicConstraints = critical,CA:TRUE\nkeyUsage = critical,keyCertSign,cRLSign\n\
[server]\nsubjectAltName = DNS:localhost,IP:127.0.0.1\nextendedKeyUsage = serverAuth\n\
[client]\nextendedKeyUsage = clientAuth\n";

/// Time limit from the start of a server until it answers. An emulated processor under load starts servers and opens images
/// slowly, and a server waits for the lock of a killed predecessor.
pub(crate) const START_LIMIT: Duration = Duration::from_secs(120);

/// A server under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Server {
    /// The server of this project as it is by default.
    Evenkeel,
    /// The same without mClock and admission.
    #[value(name = "evenkeel-noqos")]
    EvenkeelNoQos,
    /// The same on epoll and threads instead of io_uring.
    EvenkeelEpoll,
    /// The same with certificates, for clients that want TLS.
    EvenkeelTls,
    /// QEMU's server, used as an honest stand-in.
    QemuNbd,
    /// QEMU's server told to ignore FLUSH and FUA: it must be caught.
    QemuNbdUnsafe,
    /// nbdkit.
    Nbdkit,
}

impl Server {
    /// True for Evenkeel in any configuration.
    pub(crate) fn is_evenkeel(self) -> bool {
        matches!(self, Self::Evenkeel | Self::EvenkeelNoQos | Self::EvenkeelEpoll | Self::EvenkeelTls)
    }
}

/// The storage behind the export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Storage {
    /// Memory of this size in bytes; QEMU's server uses a null device of this size instead.
    Memory(u64),
    /// Memory of this size in bytes behind Evenkeel's model of an SSD; other servers use what they use for memory.
    Emulated(u64),
    /// A regular file.
    File(PathBuf),
    /// A block device.
    Block(PathBuf),
}

/// The address on which a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP port on 127.0.0.1.
    Tcp(u16),
}

impl Address {
    /// The NBD URI of the export [`EXPORT`] at this address.
    pub(crate) fn uri(&self) -> String {
        match self {
            Self::Unix(path) => format!("nbd+unix:///{EXPORT}?socket={}", path.display()),
            Self::Tcp(port) => format!("nbd://127.0.0.1:{port}/{EXPORT}"),
        }
    }

    /// The address as a path or as `host:port`.
    pub(crate) fn plain(&self) -> String {
        match self {
            Self::Unix(path) => path.display().to_string(),
            Self::Tcp(port) => format!("127.0.0.1:{port}"),
        }
    }
}

/// A server to start, with its storage and address.
#[derive(Debug)]
pub(crate) struct Setup<'a> {
    /// The kind of server.
    pub(crate) server: &'a Server,
    /// Path of Evenkeel's binary, which other servers do not use.
    pub(crate) binary: &'a Path,
    /// The storage behind the export.
    pub(crate) storage: &'a Storage,
    /// The address on which the server listens.
    pub(crate) address: &'a Address,
}

/// Starts a server with its files in `dir`, and waits until it answers. The server's output goes to `dir/NAME.log`. With a folder
/// of certificates, clients of Evenkeel and nbdkit may connect with TLS or without.
pub(crate) fn start(setup: &Setup<'_>, certificates: Option<&Path>, dir: &Path) -> Result<Running> {
    let Setup { server, binary, storage, address } = *setup;
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let mut command = match server {
        Server::Evenkeel | Server::EvenkeelNoQos | Server::EvenkeelEpoll | Server::EvenkeelTls => {
            let config = dir.join("evenkeel.toml");
            let tls = certificates.map(|folder| tls(folder, "no")).unwrap_or_default();
            std::fs::write(&config, evenkeel_config(server, storage, address, dir)? + &tls)?;
            serve(binary, config)
        }
        Server::QemuNbd | Server::QemuNbdUnsafe => qemu_nbd(*server == Server::QemuNbdUnsafe, storage, address),
        Server::Nbdkit => nbdkit(certificates, storage, address),
    };
    if let Address::Unix(path) = address {
        // nbdkit leaves its socket behind, and does not start where there is one.
        let _ = std::fs::remove_file(path);
    }
    start_and_reach(dir, &spelled(server), &mut command, || reach(&address.plain(), EXPORT))
}

/// Starts a server whose output goes to `DIR/NAME.log`, and waits until `reach` succeeds.
pub(crate) fn start_and_reach(
    dir: &Path,
    name: &str,
    command: &mut Command,
    reach: impl FnOnce() -> Result<()>,
) -> Result<Running> {
    let mut running = process::daemon(dir, name, command)?;
    let Err(error) = reach() else { return Ok(running) };
    let ended = running.ended()?.map(|status| format!(" ({status})")).unwrap_or_default();
    let said = std::fs::read_to_string(dir.join(format!("{name}.log"))).unwrap_or_default();
    Err(error.context(format!("{name} does not serve{ended}; it said: {}", said.trim())))
}

/// Waits, at most [`START_LIMIT`], until a server offers `export` at `address`, a path of a Unix socket or `host:port`.
pub(crate) fn reach(address: &str, export: &str) -> Result<()> {
    Client::connect(address, export, START_LIMIT).and_then(Client::disconnect)
}

/// The command `evenkeel serve` with this configuration file; `binary` is Evenkeel's.
pub(crate) fn serve(binary: &Path, config: impl AsRef<Path>) -> Command {
    let mut command = Command::new(binary);
    command.args(["serve", "--config"]).arg(config.as_ref());
    command
}

/// Starts an etcd of one member with its files in `folder`, by `command`, which runs etcd. `listen`: where it listens for
/// clients; `client` and `peer`: its addresses for clients, and for other members.
pub(crate) fn etcd(folder: &Path, command: Command, [listen, client, peer]: [&str; 3]) -> Result<Running> {
    etcd_member(folder, command, 0, [listen, client], &[peer.to_owned()])
}

/// Starts the member with index `member` of an etcd, with its files in `folder`, by `command`, which runs etcd. Addresses as in
/// [`etcd::options`].
pub(crate) fn etcd_member(
    folder: &Path,
    mut command: Command,
    member: usize,
    clients: [&str; 2],
    peers: &[String],
) -> Result<Running> {
    let name = format!("etcd-{member}");
    command.args(etcd::options(member, &folder.join(&name), clients, peers));
    process::daemon(folder, &name, &mut command)
}

/// Starts fio for an hour, with random reads of 4 KiB in the first `size` of a volume of the server `name`, which has its data in
/// the folder of this name in `folder`. `load`: rate and queue depth.
pub(crate) fn fio(folder: &Path, name: &str, volume: &str, size: &str, load: &[&str]) -> Result<Running> {
    let socket = folder.join(name).join("nbd.sock");
    let mut client = process::program("fio");
    client
        .args([&format!("--name={name}"), "--ioengine=nbd", "--rw=randread", "--bs=4k", &format!("--size={size}")])
        .arg(format!("--uri=nbd+unix:///{volume}?socket={}", socket.display()))
        .args(["--time_based", "--runtime=3600", "--thread"])
        .args(load)
        .arg(format!("--output={}", folder.join(format!("{name}.fio")).display()));
    let log = std::fs::File::create(folder.join(format!("{name}.fio.log")))?;
    Running::spawn(client.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log))
}

fn evenkeel_config(server: &Server, storage: &Storage, address: &Address, dir: &Path) -> Result<String> {
    let mut text = String::from("[server]\nstatus = \"off\"\n");
    writeln!(text, "data_dir = {}", quote(&dir.join("data")))?;
    match address {
        Address::Unix(path) => writeln!(text, "listen = []\nunix = [{}]", quote(path))?,
        Address::Tcp(port) => writeln!(text, "listen = [\"127.0.0.1:{port}\"]\nunix = []")?,
    }
    if *server == Server::EvenkeelEpoll {
        writeln!(text, "engine = \"epoll\"")?;
    }
    // Defaults are not named, because earlier builds give these settings other names.
    writeln!(text, "\n[pools.main]")?;
    if *server == Server::EvenkeelNoQos {
        writeln!(text, "tuning.scheduler = \"none\"\ntuning.admission = \"none\"")?;
    }
    if matches!(storage, Storage::Emulated(_)) {
        writeln!(text, "emulate = {{ preset = \"ssd\" }}")?;
    }
    writeln!(text, "\n[tenants.default]\nweight = 1\n\n[volumes.{EXPORT}]")?;
    match storage {
        Storage::Memory(bytes) => writeln!(text, "backend = \"memory\"\nsize = {bytes}")?,
        Storage::Emulated(bytes) => writeln!(text, "backend = \"emulate\"\nsize = {bytes}")?,
        Storage::File(path) => writeln!(text, "backend = \"file\"\npath = {}", quote(path))?,
        Storage::Block(path) => writeln!(text, "backend = \"block\"\npath = {}", quote(path))?,
    }
    Ok(text)
}

/// The settings for TLS, with the [`certificates`] in `folder`; `required`: the clients that must use it.
pub(crate) fn tls(folder: &Path, required: &str) -> String {
    let [certificate, key, clients] =
        ["server-cert.pem", "server-key.pem", "ca-cert.pem"].map(|name| quote(&folder.join(name)));
    format!("\n[server.tls]\ncertificate = {certificate}\nkey = {key}\nclients = {clients}\nrequired = {required:?}\n")
}

/// A path as a quoted TOML string. Paths in labs have no control characters, which are not escaped.
pub(crate) fn quote(path: &Path) -> String {
    format!("{:?}", path.display().to_string())
}

fn qemu_nbd(lies: bool, storage: &Storage, address: &Address) -> Command {
    let mut command = process::program("qemu-nbd");
    command.args(["--persistent", "--shared=16", "--export-name", EXPORT, "--discard=unmap"]);
    match address {
        Address::Unix(path) => command.arg("--socket").arg(path),
        Address::Tcp(port) => command.args(["--bind=127.0.0.1", "--port"]).arg(port.to_string()),
    };
    match storage {
        Storage::Memory(bytes) | Storage::Emulated(bytes) => {
            command.arg("--image-opts").arg(format!("driver=null-co,size={bytes}"))
        }
        Storage::File(path) | Storage::Block(path) => {
            let cache = if lies { "--cache=unsafe" } else { "--cache=none" };
            // io_uring is its fastest way to a file.
            let aio = if lies { "--aio=threads" } else { "--aio=io_uring" };
            command.args(["--format=raw", cache, aio]).arg(path)
        }
    };
    command
}

fn nbdkit(certificates: Option<&Path>, storage: &Storage, address: &Address) -> Command {
    let mut command = process::program("nbdkit");
    command.args(["--foreground", "--exit-with-parent"]);
    if let Some(folder) = certificates {
        command.args(["--tls=on", "--tls-verify-peer"]).arg(format!("--tls-certificates={}", folder.display()));
    }
    match address {
        Address::Unix(path) => command.arg("--unix").arg(path),
        Address::Tcp(port) => command.args(["--ipaddr=127.0.0.1", "--port"]).arg(port.to_string()),
    };
    match storage {
        Storage::Memory(bytes) | Storage::Emulated(bytes) => command.args(["memory", &format!("size={bytes}")]),
        Storage::File(path) | Storage::Block(path) => command.arg("file").arg(path),
    };
    command
}

/// Makes a certificate authority, a server's certificate and a client's certificate in `folder`, with the file names that
/// NBD clients and nbdkit expect.
///
/// # Errors
/// When the folder cannot be written, or `openssl` fails.
pub(crate) fn certificates(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join("openssl.cnf"), OPENSSL)?;
    let openssl = |words: String| {
        let mut command = process::program("openssl");
        command.args(words.split_whitespace()).current_dir(folder);
        process::output(&mut command).with_context(|| format!("openssl {words}"))
    };
    let new = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -config openssl.cnf";
    openssl(format!("req -x509 {new} -extensions authority -days 2 -keyout ca-key.pem -out ca-cert.pem"))?;
    for name in ["server", "client"] {
        openssl(format!("req -new {new} -subj /CN={name} -keyout {name}-key.pem -out {name}.csr"))?;
        openssl(format!(
            "x509 -req -in {name}.csr -CA ca-cert.pem -CAkey ca-key.pem -CAcreateserial -days 2 \
             -extfile openssl.cnf -extensions {name} -out {name}-cert.pem"
        ))?;
    }
    Ok(())
}

/// A port of 127.0.0.1 on which no process listens at the moment.
pub(crate) fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_config_for_evenkeel_names_storage_and_address() {
        let dir = Path::new("d");
        let unix = Address::Unix("s".into());
        let text = evenkeel_config(&Server::EvenkeelEpoll, &Storage::Block("/dev/a\"b".into()), &unix, dir).unwrap();
        assert!(text.contains("unix = [\"s\"]") && text.contains(r#"path = "/dev/a\"b""#), "{text}");
        assert!(!text.contains("tuning") && text.contains("engine = \"epoll\""), "{text}");
        let text = evenkeel_config(&Server::EvenkeelNoQos, &Storage::Memory(5), &Address::Tcp(7), dir).unwrap();
        assert!(text.contains("listen = [\"127.0.0.1:7\"]") && text.contains("tuning.scheduler = \"none\""), "{text}");
        assert!(text.contains("backend = \"memory\"\nsize = 5"), "{text}");
        let text = evenkeel_config(&Server::Evenkeel, &Storage::Emulated(5), &unix, dir).unwrap();
        assert!(text.contains("[pools.main]\nemulate = { preset = \"ssd\" }\n"), "{text}");
        assert!(text.contains("backend = \"emulate\"\nsize = 5"), "{text}");
    }

    #[test]
    fn a_member_of_etcd_gets_its_own_addresses_and_those_of_all() {
        let peers = ["http://h:1", "http://h:2"].map(str::to_owned);
        let options = etcd::options(1, Path::new("d/etcd-1"), ["http://h:3,http://i:3", "http://h:3"], &peers);
        let expected = [
            "--data-dir",
            "d/etcd-1",
            "--name=m1",
            "--listen-client-urls=http://h:3,http://i:3",
            "--advertise-client-urls=http://h:3",
            "--listen-peer-urls=http://h:2",
            "--initial-advertise-peer-urls=http://h:2",
            "--initial-cluster=m0=http://h:1,m1=http://h:2",
        ];
        assert_eq!(options, expected);
    }

    #[test]
    fn names_are_read_back() {
        use clap::ValueEnum as _;
        assert_eq!(Server::from_str("qemu-nbd-unsafe", false), Ok(Server::QemuNbdUnsafe));
        assert!(Server::from_str("x", false).is_err());
        let names: Vec<String> = Server::value_variants().iter().map(spelled).collect();
        assert_eq!(names[..4], ["evenkeel", "evenkeel-noqos", "evenkeel-epoll", "evenkeel-tls"]);
    }
}
