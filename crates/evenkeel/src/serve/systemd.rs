//! Systemd's protocols: inherited sockets, reports of the server's state, and the watchdog.

use std::env;
use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// Number of the first inherited descriptor, as the protocol of socket activation defines it.
const FIRST: RawFd = 3;
/// Upper bound on the number of inherited sockets: more than any unit has.
const MAX_SOCKETS: RawFd = 1024;

/// Listening sockets that the service manager opened for this process.
#[derive(Default)]
pub(crate) struct Sockets {
    /// Sockets that serve NBD: all inherited sockets but those named `status` or `control`.
    pub(crate) nbd: Vec<OwnedFd>,
    /// The socket named `status`, for the read-only dashboard and API.
    pub(crate) status: Option<TcpListener>,
    /// The socket named `control`, for the API that can change settings.
    pub(crate) control: Option<UnixListener>,
}

/// Takes the sockets that the environment variables `LISTEN_FDS`, `LISTEN_PID` and `LISTEN_FDNAMES` describe; none if
/// `LISTEN_PID` is another process. To be called at most once, before other threads exist.
///
/// # Errors
/// When `LISTEN_FDS` is no number or out of range, or a descriptor is not open.
pub(crate) fn inherited() -> anyhow::Result<Sockets> {
    let (pid, count) = (env::var("LISTEN_PID"), env::var("LISTEN_FDS"));
    let (Ok(pid), Ok(count)) = (pid, count) else { return Ok(Sockets::default()) };
    if pid.parse() != Ok(std::process::id()) {
        return Ok(Sockets::default());
    }
    let count: RawFd = count.parse().with_context(|| format!("LISTEN_FDS={count} is not a number; unset it"))?;
    if !(0..=MAX_SOCKETS).contains(&count) {
        bail!("LISTEN_FDS={count} is out of range: the server inherits up to {MAX_SOCKETS} sockets; unset it");
    }
    let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut sockets = Sockets::default();
    for fd in FIRST..FIRST + count {
        // SAFETY: the service manager passes this descriptor to this process (LISTEN_PID is ours), and nothing else here owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC).context(
            "LISTEN_FDS counts a descriptor that is not open; unset LISTEN_FDS, or start the server by systemd",
        )?;
        match names.next() {
            Some("status") => sockets.status = Some(fd.into()),
            Some("control") => sockets.control = Some(fd.into()),
            _ => sockets.nbd.push(fd),
        }
    }
    Ok(sockets)
}

/// A warning, with its cure, if users other than the owner of an inherited control socket can change the server over it; `None`
/// if they cannot.
pub(crate) fn danger(control: &UnixListener) -> Option<String> {
    let address = control.local_addr().ok()?;
    let Some(path) = address.as_pathname() else {
        return Some(
            "every user may change the server through it: the socket has no file. Give it a path (ListenStream=) and SocketMode=0600".into(),
        );
    };
    let mode = fs::metadata(path).ok()?.permissions().mode() & 0o777;
    // To connect is to write.
    (mode & 0o022 != 0).then(|| {
        format!(
            "other users than its owner may change the server through it: {} has mode {mode:04o}. Set SocketMode=0600",
            path.display()
        )
    })
}

/// A state of this process, as reported to the service manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    Ready,
    Reloading,
    Stopping,
    /// A notification for the watchdog: the process is not hung.
    Alive,
}

/// Reports `condition` to the service manager, if the variable `NOTIFY_SOCKET` names one. A failure is only logged.
pub(crate) fn notify(condition: Condition) {
    let Some(socket) = env::var_os("NOTIFY_SOCKET") else { return };
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let message = match condition {
        Condition::Ready => "READY=1\n".to_owned(),
        Condition::Reloading => {
            format!("RELOADING=1\nMONOTONIC_USEC={}\n", now.tv_sec * 1_000_000 + now.tv_nsec / 1_000)
        }
        Condition::Stopping => "STOPPING=1\n".to_owned(),
        Condition::Alive => "WATCHDOG=1\n".to_owned(),
    };
    if let Err(error) = send(socket.as_bytes(), message.as_bytes()) {
        tracing::warn!(
            "cannot report the state {condition:?} to the service manager, which may restart this process: {error}"
        );
    }
}

/// The service manager's watchdog (`WatchdogSec=`), which restarts a process that has sent no notification for the watchdog's
/// timeout.
pub(crate) struct Watchdog {
    patience: Duration,
    told: Option<Instant>,
}

impl Watchdog {
    /// Number of notifications in one timeout of the watchdog: enough for one of them to be late.
    const PARTS: u32 = 4;

    /// The watchdog that `WATCHDOG_USEC` and `WATCHDOG_PID` describe; `None` without one, or if it is for another process.
    pub(crate) fn of_this_process() -> Option<Self> {
        let (patience, pid) = (env::var("WATCHDOG_USEC").ok()?, env::var("WATCHDOG_PID").ok());
        let patience = patience_of(&patience, pid.as_deref(), std::process::id())?;
        Some(Self { patience, told: None })
    }

    /// The watchdog's timeout: the longest time without a notification before it restarts the process.
    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    /// Interval at which [`Self::tell`] sends a notification: a quarter of the timeout.
    pub(crate) fn every(&self) -> Duration {
        self.patience / Self::PARTS
    }

    /// Sends a notification if the last one is at least [`Self::every`] ago. To be called by the loop that must not hang.
    pub(crate) fn tell(&mut self, now: Instant) {
        if self.told.is_none_or(|told| now.saturating_duration_since(told) >= self.every()) {
            self.told = Some(now);
            notify(Condition::Alive);
        }
    }
}

/// The watchdog's timeout for the process `own`. `usec`: value of `WATCHDOG_USEC`, in microseconds; `pid`: value of
/// `WATCHDOG_PID`. `None` if `pid` is another process or `usec` is no positive number.
fn patience_of(usec: &str, pid: Option<&str>, own: u32) -> Option<Duration> {
    let meant = pid.is_none_or(|pid| pid.parse() == Ok(own));
    usec.parse().ok().filter(|&usec: &u64| usec > 0 && meant).map(Duration::from_micros)
}

/// Sends a datagram to the Unix socket with the path `socket` or, if that begins with `@`, with the abstract name after it.
fn send(socket: &[u8], message: &[u8]) -> io::Result<()> {
    let address = match socket.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(socket))?,
    };
    UnixDatagram::unbound()?.send_to_addr(message, &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watchdog_is_ours_if_it_names_us_or_no_process() {
        let patience = |usec, pid| patience_of(usec, pid, 7);
        assert_eq!(patience("30000000", None), Some(Duration::from_secs(30)));
        assert_eq!(patience("1500", Some("7")), Some(Duration::from_micros(1_500)));
        for (usec, pid) in
            [("30000000", Some("8")), ("30000000", Some("")), ("0", None), ("", None), ("-1", None), ("x", None)]
        {
            assert_eq!(patience(usec, pid), None, "{usec:?} {pid:?}");
        }
    }

    #[test]
    fn a_control_socket_for_more_than_its_owner_is_warned_of() {
        let path = env::temp_dir().join(format!("evenkeel-control-{}.sock", std::process::id()));
        let listener = UnixListener::bind(&path).expect("a socket");
        for (mode, is_safe) in [(0o600, true), (0o644, true), (0o666, false), (0o660, false), (0o602, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("settable");
            let danger = danger(&listener);
            assert_eq!(danger.is_none(), is_safe, "{mode:o}: {danger:?}");
            assert!(danger.is_none_or(|danger| danger.contains("SocketMode=0600")));
        }
        fs::remove_file(path).expect("removed");
        let name = SocketAddr::from_abstract_name(format!("evenkeel-control-{}", std::process::id())).expect("a name");
        assert!(danger(&UnixListener::bind_addr(&name).expect("a socket")).is_some());
    }
}
