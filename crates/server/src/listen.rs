//! Listening sockets: opened by the server, or inherited from a service manager such as systemd.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use evenkeel_control::Duration;
use evenkeel_policy::uri::{Address, Target};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrAny, SocketFlags, SocketType, acceptfrom_with, getsockname, listen, socket_with, sockopt,
};

use crate::error::Error;
use crate::faults::{Call, Faults};
use crate::holder;
use crate::transport::{Peer, Transport, passed, prepare, users};

/// Number of connections that may wait to be accepted at a socket, as far as `net.core.somaxconn` allows: a host that boots
/// opens hundreds at once.
const BACKLOG: i32 = 4096;

/// Listens on a TCP address; port 0 picks a free one.
///
/// # Errors
/// If the address cannot be listened on; the message names the process that has the address, if the system shows it.
pub fn bind(address: SocketAddr) -> Result<TcpListener, Error> {
    open(address, false)
}

/// As [`bind`]. `v6_only`: leaves the IPv4 address of the port free, which by default a socket for all IPv6 addresses takes, too.
fn open(address: SocketAddr, v6_only: bool) -> Result<TcpListener, Error> {
    let fail = |cause: io::Error| {
        let holder = (cause.kind() == io::ErrorKind::AddrInUse).then(|| holder::of_tcp(address)).flatten();
        Error::Listen { address: address.to_string(), cause, holder }
    };
    let listener = if v6_only { bind_v6_only(address) } else { TcpListener::bind(address) }.map_err(fail)?;
    // The standard library's backlog is 128: a SYN beyond it is dropped, and a health check comes a second late.
    listen(&listener, BACKLOG).map_err(|e| fail(e.into()))?;
    Ok(listener)
}

/// A socket on an IPv6 address that takes no IPv4 clients; it does not listen yet.
fn bind_v6_only(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket_with(AddressFamily::INET6, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_ipv6_v6only(&socket, true)?;
    // As the standard library does: a server that starts again need not wait for connections of the one before.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    Ok(TcpListener::from(socket))
}

/// A listening socket.
pub(crate) enum Listener {
    /// A listening TCP socket.
    Tcp(OwnedFd),
    /// A listening Unix socket; true if another process opened it, so that connections may wait in it that are older than
    /// this server.
    Unix(OwnedFd, bool),
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(fd) | Self::Unix(fd, _) => fd.as_fd(),
        }
    }
}

impl Listener {
    /// Sets the options that accepted connections inherit from the listening socket. `peer_timeout`: time without an
    /// acknowledgement after which a TCP peer counts as gone.
    pub(crate) fn prepare(&self, peer_timeout: Duration) {
        match self {
            Self::Tcp(fd) => prepare(fd.as_fd(), peer_timeout.into()),
            // Connections of older kernels are guarded one by one.
            Self::Unix(fd, _) => _ = passed::refuse(fd.as_fd()),
        }
    }

    /// Accepts a waiting connection without blocking.
    ///
    /// # Errors
    /// ETOOMANYREFS for a Unix socket while too many descriptors that came over such sockets are not closed; otherwise those
    /// of the kernel.
    pub(crate) fn accept(&self, faults: &Faults) -> rustix::io::Result<(Transport, Peer)> {
        faults.check(Call::Accept)?;
        if matches!(self, Self::Unix(..)) && users::have_too_many_open() {
            return Err(Errno::TOOMANYREFS);
        }
        let (fd, address) = acceptfrom_with(self, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)?;
        Ok(match self {
            Self::Tcp(_) => {
                let address = address.and_then(|a| SocketAddr::try_from(a).ok());
                let (address, port) = (address.map(|a| a.ip()), address.map_or(0, |a| a.port()));
                let peer = Peer { address, port, ..Peer::default() };
                (Transport::tcp(fd).with(faults.at("tcp")), peer)
            }
            Self::Unix(_, is_inherited) => {
                let uid = sockopt::socket_peercred(&fd).ok().map(|cred| cred.uid.as_raw());
                let transport = Transport::unix(fd).with(faults.at("unix"));
                let transport = if *is_inherited { transport.that_brings_descriptors() } else { transport };
                (transport, Peer { uid, ..Peer::default() })
            }
        })
    }
}

/// The server's listening sockets, their addresses for display, and the socket files to be removed at the end.
#[derive(Default)]
pub(crate) struct Listening {
    /// The files of the Unix sockets that this server has made. A server that has started takes them over. They are dropped
    /// before the sockets: as long as a socket is open, no other file has its inode.
    pub(crate) files: Vec<SocketFile>,
    /// The listening sockets.
    pub(crate) listeners: Vec<Listener>,
    /// The addresses of the listening sockets as URIs.
    pub(crate) uris: Vec<String>,
}

/// The file of a Unix socket that this server has made. Dropping the value removes the file, unless another socket has taken
/// its place since, as that of a successor.
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and inode of the file; `None` if it could not be examined.
    is: Option<(u64, u64)>,
}

impl SocketFile {
    fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), is: identity(path) }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is.is_some() && identity(&self.path) == self.is {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Device and inode of the file at `path`, without following a symbolic link; `None` if there is none.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

impl Listening {
    /// Adds a socket that listens on a TCP address; port 0 picks a free port, and each of several a port of its own. `all`: the addresses on which the server listens;
    /// where they have the same port for IPv4, the address of all IPv6 addresses is for IPv6 alone.
    pub(crate) fn tcp(&mut self, address: SocketAddr, all: &[SocketAddr]) -> Result<(), Error> {
        let fail = |cause| Error::Listen { address: address.to_string(), cause, holder: None };
        let has_v4 = address.port() != 0 && all.iter().any(|other| other.is_ipv4() && other.port() == address.port());
        // Any other IPv6 address takes no IPv4 clients, or is an IPv4 address in the form of IPv6, which takes no others.
        let is_wide = address.is_ipv6() && address.ip().is_unspecified();
        let listener = open(address, is_wide && has_v4)?;
        let actual = listener.local_addr().map_err(fail)?;
        listener.set_nonblocking(true).map_err(fail)?;
        self.uris.push(format!("nbd://{actual}"));
        self.listeners.push(Listener::Tcp(listener.into()));
        Ok(())
    }

    /// Adds a listening Unix socket at `path`. The socket file of a server that has ended is replaced; that of a running
    /// server is an error.
    pub(crate) fn unix(&mut self, path: &Path) -> Result<(), Error> {
        let fail = |cause| Error::Listen { address: path.display().to_string(), cause, holder: None };
        if is_obstructed(path) {
            return Err(fail(io::Error::other("it exists and is not a socket")));
        }
        let listener = match UnixListener::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_stale(path) => {
                std::fs::remove_file(path).map_err(fail)?;
                UnixListener::bind(path)
            }
            bound => bound,
        }
        .map_err(fail)?;
        listener.set_nonblocking(true).map_err(fail)?;
        listen(&listener, BACKLOG).map_err(|e| fail(e.into()))?;
        self.uris.push(unix_uri(path));
        self.files.push(SocketFile::new(path));
        self.listeners.push(Listener::Unix(listener.into(), false));
        Ok(())
    }

    /// Adds a listening socket that another process opened; returns the socket's address if other machines may reach it.
    pub(crate) fn inherited(&mut self, fd: OwnedFd) -> Result<Option<SocketAddr>, Error> {
        let action = "use a socket from the service manager";
        let fail = |cause: rustix::io::Errno| Error::System { action, cause: cause.into() };
        rustix::io::ioctl_fionbio(&fd, true).map_err(fail)?;
        let address = getsockname(&fd).map_err(fail)?;
        if !sockopt::socket_acceptconn(fd.as_fd()).map_err(fail)? {
            return Err(Error::Refused(
                "a socket from the service manager is not listening; a systemd socket unit needs Accept=no".into(),
            ));
        }
        let family = address.address_family();
        if family == AddressFamily::UNIX {
            let path = SocketAddrAny::try_into(address).ok().and_then(|a: rustix::net::SocketAddrUnix| {
                a.path().map(|p| PathBuf::from(String::from_utf8_lossy(p.to_bytes()).into_owned()))
            });
            self.uris.push(path.map_or_else(|| "nbd+unix:// (inherited)".into(), |path| unix_uri(&path)));
            self.listeners.push(Listener::Unix(fd, true));
        } else {
            let address = SocketAddr::try_from(address).map_err(fail)?;
            self.uris.push(format!("nbd://{address}"));
            self.listeners.push(Listener::Tcp(fd));
            return Ok((!address.ip().is_loopback()).then_some(address));
        }
        Ok(None)
    }
}

fn unix_uri(path: &Path) -> String {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    Target { address: Address::Unix(absolute), export: String::new(), tls: None }.to_string()
}

/// True if `path` is a socket that a server left behind when it ended. False for a file that is no socket, although
/// connecting to it is refused as well: such a file may be a user's data.
pub fn is_stale(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
        && matches!(UnixStream::connect(path), Err(error) if error.kind() == io::ErrorKind::ConnectionRefused)
}

/// True if something other than a socket is at `path`, so that no socket can be made there.
pub fn is_obstructed(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.file_type().is_socket())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_an_address_is_found_out_when_it_is_refused() {
        let taken = bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let error = bind(taken.local_addr().unwrap()).expect_err("taken");
        drop(taken);
        assert!(error.to_string().ends_with("; this server itself listens there already"), "{error}");
    }

    #[test]
    fn all_addresses_of_both_families_are_served_on_one_port() {
        let Ok(six) = TcpListener::bind("[::]:0") else { return };
        drop(six);
        let serves = |is_v6_first: bool| {
            let port = bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap().local_addr().unwrap().port();
            let mut all = [SocketAddr::from(([0_u8; 4], port)), SocketAddr::from(([0_u16; 8], port))];
            if is_v6_first {
                all.reverse();
            }
            let mut listening = Listening::default();
            all.iter().all(|&address| listening.tcp(address, &all).is_ok()) && listening.listeners.len() == 2
        };
        // Another test may take the free port.
        assert!((0..5).any(|_| serves(false)));
        assert!((0..5).any(|_| serves(true)));
    }

    #[test]
    fn an_ipv4_address_in_the_form_of_ipv6_is_served_beside_another() {
        let mapped = std::net::Ipv4Addr::new(127, 0, 0, 2).to_ipv6_mapped();
        // There may be no IPv6, or IPv6 alone on its sockets.
        let Ok(free) = TcpListener::bind((mapped, 0)) else { return };
        drop(free);
        let serves = || {
            let port = bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap().local_addr().unwrap().port();
            let all = [SocketAddr::from(([127, 0, 0, 1], port)), SocketAddr::from((mapped, port))];
            let mut listening = Listening::default();
            all.iter().all(|&address| listening.tcp(address, &all).is_ok())
        };
        // Another test may take the free port.
        assert!((0..5).any(|_| serves()));
    }

    #[test]
    fn a_holder_of_all_ipv6_addresses_is_named_for_an_ipv4_address() {
        let Ok(six) = bind(SocketAddr::from(([0_u16; 8], 0))) else { return };
        let four = SocketAddr::from(([127, 0, 0, 1], six.local_addr().unwrap().port()));
        // By the setting net.ipv6.bindv6only it may be free.
        if let Err(error) = bind(four) {
            assert!(error.to_string().ends_with("; this server itself listens there already"), "{error}");
        }
    }

    #[test]
    fn a_path_with_letters_that_end_a_uri_is_encoded() {
        assert_eq!(unix_uri(Path::new("/run/a b?&#%.sock")), "nbd+unix:///?socket=/run/a%20b%3F%26%23%25.sock");
    }

    #[test]
    fn only_a_dead_socket_is_replaced() {
        let dir = std::env::temp_dir().join(format!("evenkeel-listen-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (file, socket) = (dir.join("disk0.img"), dir.join("sock"));
        std::fs::write(&file, "data").unwrap();
        let refused = Listening::default().unix(&file).expect_err("a file is in the way");
        let why = refused.to_string();
        assert!(why.contains("disk0.img") && why.ends_with("it exists and is not a socket"), "{why}");
        assert_eq!(std::fs::read(&file).unwrap(), b"data");
        let alive = UnixListener::bind(&socket).unwrap();
        assert!(Listening::default().unix(&socket).is_err(), "a process listens");
        drop(alive);
        assert!(Listening::default().unix(&socket).is_ok(), "none does any more");
        assert!(!socket.exists(), "a server removes its socket");
        let [mut first, mut second] = [(); 2].map(|()| Listening::default());
        first.unix(&socket).unwrap();
        std::fs::remove_file(&socket).unwrap();
        second.unix(&socket).unwrap();
        drop(first);
        assert!(UnixStream::connect(&socket).is_ok(), "the successor's socket stays");
        drop(second);
        assert!(!socket.exists());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
