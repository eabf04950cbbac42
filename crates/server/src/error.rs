//! Errors of starting the server and of changing its configuration.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustix::io::Errno;

/// An error because of which the server could not start, or a change was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A volume's file could not be used.
    #[error("cannot {action} {}: {cause}", path.display())]
    Volume {
        /// Path of the file.
        path: PathBuf,
        /// The action that failed, as a verb.
        action: &'static str,
        /// The system's error.
        cause: io::Error,
    },
    /// The file of a volume could not be opened.
    #[error("volume \"{volume}\": cannot {action} {}: {cause}", path.display())]
    Opening {
        /// Name of the volume.
        volume: String,
        /// Path of the file.
        path: PathBuf,
        /// The action that failed, as a verb.
        action: &'static str,
        /// The system's error, or the cure.
        cause: io::Error,
    },
    /// Another process has locked the volume's file.
    #[error("{} is in use by {}; two servers on one volume would destroy it. Stop the other one, or give this volume another path", path.display(), describe(*holder))]
    InUse {
        /// Path of the file.
        path: PathBuf,
        /// Id of the other process, if the kernel shows it.
        holder: Option<u32>,
    },
    /// The server may not use or change this file or device, because the operator has not expressly allowed it.
    #[error("volume \"{volume}\" ({}): {why}. {cure}", path.display())]
    NotOurs {
        /// Name of the volume.
        volume: String,
        /// Path of the file or device.
        path: PathBuf,
        /// The reason for the refusal.
        why: String,
        /// The way to allow it or to avoid the problem, as a sentence.
        cure: String,
    },
    /// A file with certificates or keys cannot be used.
    #[error(transparent)]
    Tls(#[from] evenkeel_net::tls::Error),
    /// The server could not listen on an address.
    #[error("cannot listen on {address}: {cause}{}", listen_hint(*holder, cause))]
    Listen {
        /// The address.
        address: String,
        /// The system's error.
        cause: io::Error,
        /// Id of the process that has the address, if the address is taken and the kernel shows the process.
        holder: Option<u32>,
    },
    /// The remote NBD server of a volume cannot be used.
    #[error("volume \"{volume}\": cannot use {uri}: {why}. Start that server, or correct the uri of the volume")]
    Remote {
        /// Name of the volume.
        volume: String,
        /// URI of the remote server's export.
        uri: String,
        /// The fault.
        why: String,
    },
    /// The RBD image of a volume cannot be used.
    #[error("volume \"{volume}\": cannot use the RBD image {image}: {why}")]
    Rbd {
        /// Name of the volume.
        volume: String,
        /// Name of the image.
        image: String,
        /// The fault, and how to cure it.
        why: String,
    },
    /// The configuration asks for io_uring by name, and the kernel refuses it.
    #[error(
        "the kernel refuses io_uring ({0}); use --engine auto or --engine epoll, or allow it (sysctl kernel.io_uring_disabled=0; container profiles often forbid it)"
    )]
    NoIoUring(io::Error),
    /// There is no volume, tenant or pool of this name.
    #[error("there is no {kind} named \"{name}\"")]
    Unknown {
        /// Kind of the object: volume, tenant or pool.
        kind: &'static str,
        /// Name of the object that does not exist.
        name: String,
    },
    /// The server refuses a start or change; the text is the reason.
    #[error("{0}")]
    Refused(String),
    /// A device did not complete an operation in time; the operation may still take effect.
    #[error("volume \"{volume}\": its device has not answered for {} s; the change may still take effect. Look at the kernel's log, for an RBD image at `ceph -s`", patience.as_secs_f64())]
    NoAnswer {
        /// Name of the volume.
        volume: String,
        /// Time that the server waited for an answer.
        patience: Duration,
    },
    /// Several errors have occurred.
    #[error("{}", join(.0))]
    Several(Vec<Error>),
    /// A system call failed, for example for want of a resource.
    #[error("cannot {action}: {cause}")]
    System {
        /// The action that failed, as a verb.
        action: &'static str,
        /// The system's error.
        cause: io::Error,
    },
}

impl Error {
    /// Name of the volume that the error is about; `None` if it is about no volume or the name is unknown.
    pub fn volume(&self) -> Option<&str> {
        match self {
            Self::Opening { volume, .. }
            | Self::NotOurs { volume, .. }
            | Self::Remote { volume, .. }
            | Self::Rbd { volume, .. }
            | Self::NoAnswer { volume, .. } => Some(volume),
            _ => None,
        }
    }

    /// `Ok` if `errors` is empty, otherwise one error that contains them all.
    pub(crate) fn unless_empty(mut errors: Vec<Self>) -> Result<(), Self> {
        match (errors.pop(), errors.is_empty()) {
            (None, _) => Ok(()),
            (Some(only), true) => Err(only),
            (Some(last), false) => {
                errors.push(last);
                Err(Self::Several(errors))
            }
        }
    }
}

fn join(errors: &[Error]) -> String {
    errors.iter().map(Error::to_string).collect::<Vec<_>>().join("; ")
}

fn describe(holder: Option<u32>) -> String {
    let Some(pid) = holder else { return "another process".to_owned() };
    match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("process {pid} ({})", name.trim()),
        Err(_) => format!("process {pid}"),
    }
}

/// Advice to append to the error of an address. Advice on choosing another address is added by the program, which knows the
/// option or key.
fn listen_hint(holder: Option<u32>, cause: &io::Error) -> String {
    match cause.kind() {
        io::ErrorKind::AddrInUse if holder == Some(std::process::id()) => {
            "; this server itself listens there already".to_owned()
        }
        io::ErrorKind::AddrInUse => format!("; {} listens there", describe(holder)),
        io::ErrorKind::PermissionDenied => {
            "; ports below 1024 need CAP_NET_BIND_SERVICE, and sockets a folder where this user may write".to_owned()
        }
        _ => String::new(),
    }
}

/// The errno of the system call that failed last on this thread.
pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
