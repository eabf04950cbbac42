//! Listening sockets: our own, or handed over by systemd.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketAddrAny, getsockname, listen, sockopt};

use crate::error::Error;
use crate::worker::Listener;

/// Connections that may wait to be accepted, as far as `net.core.somaxconn` allows: a host that boots brings hundreds at once.
const BACKLOG: i32 = 4096;

/// Sockets with the addresses to show for them, and the files to remove in the end.
#[derive(Default)]
pub(crate) struct Listening {
    /// The sockets.
    pub(crate) listeners: Vec<Listener>,
    /// As URIs.
    pub(crate) uris: Vec<String>,
    /// Unix sockets that we made.
    pub(crate) files: Vec<PathBuf>,
}

impl Listening {
    /// Opens a TCP address; port 0 picks a free one.
    pub(crate) fn tcp(&mut self, address: SocketAddr) -> Result<(), Error> {
        let fail = |cause| Error::Listen { address: address.to_string(), cause };
        let listener = TcpListener::bind(address).map_err(fail)?;
        let actual = listener.local_addr().map_err(fail)?;
        listener.set_nonblocking(true).map_err(fail)?;
        listen(&listener, BACKLOG).map_err(|e| fail(e.into()))?;
        self.uris.push(format!("nbd://{actual}"));
        self.listeners.push(Listener::Tcp(listener.into()));
        Ok(())
    }

    /// Opens a Unix socket. A file that a dead server left behind is replaced, a live one is not.
    pub(crate) fn unix(&mut self, path: &Path) -> Result<(), Error> {
        let fail = |cause| Error::Listen { address: path.display().to_string(), cause };
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
        self.files.push(path.to_owned());
        self.listeners.push(Listener::Unix(listener.into()));
        Ok(())
    }

    /// Takes over a listening socket that someone else opened.
    pub(crate) fn inherited(&mut self, fd: OwnedFd) -> Result<(), Error> {
        let fail = |cause: rustix::io::Errno| Error::System { action: "use an inherited socket", cause: cause.into() };
        rustix::io::ioctl_fionbio(&fd, true).map_err(fail)?;
        let address = getsockname(&fd).map_err(fail)?;
        if !sockopt::socket_acceptconn(fd.as_fd()).map_err(fail)? {
            return Err(Error::Refused(
                "an inherited socket is not listening; a systemd socket unit needs Accept=no".into(),
            ));
        }
        let family = address.address_family();
        if family == AddressFamily::UNIX {
            let path = SocketAddrAny::try_into(address).ok().and_then(|a: rustix::net::SocketAddrUnix| {
                a.path().map(|p| PathBuf::from(String::from_utf8_lossy(p.to_bytes()).into_owned()))
            });
            self.uris.push(path.map_or_else(|| "nbd+unix:// (inherited)".into(), |path| unix_uri(&path)));
            self.listeners.push(Listener::Unix(fd));
        } else {
            let address = SocketAddr::try_from(address).map_err(fail)?;
            self.uris.push(format!("nbd://{address}"));
            self.listeners.push(Listener::Tcp(fd));
        }
        Ok(())
    }
}

impl Drop for Listening {
    /// Removes the files of a start that failed; a server that runs has taken them over.
    fn drop(&mut self) {
        for file in &self.files {
            let _ = std::fs::remove_file(file);
        }
    }
}

fn unix_uri(path: &Path) -> String {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    format!("nbd+unix:///?socket={}", absolute.display())
}

fn is_stale(path: &Path) -> bool {
    matches!(UnixStream::connect(path), Err(error) if error.kind() == io::ErrorKind::ConnectionRefused)
}
