//! Errors at the start of the server and at changes.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustix::io::Errno;

/// Why the server could not start, or a change was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A volume's file could not be used.
    #[error("cannot {action} {}: {cause}", path.display())]
    Volume {
        /// The file.
        path: PathBuf,
        /// The action that failed, as a verb.
        action: &'static str,
        /// The system's error.
        cause: io::Error,
    },
    /// The file of a volume could not be opened.
    #[error("volume \"{volume}\": cannot {action} {}: {cause}", path.display())]
    Opening {
        /// The volume.
        volume: String,
        /// The file.
        path: PathBuf,
        /// The action that failed, as a verb.
        action: &'static str,
        /// The system's error, or the cure.
        cause: io::Error,
    },
    /// Another process serves this file.
    #[error("{} is in use by {}; two servers on one volume would destroy it. Stop the other one, or give this volume another path", path.display(), describe(*holder))]
    InUse {
        /// The file.
        path: PathBuf,
        /// The other process, if the kernel knows it.
        holder: Option<u32>,
    },
    /// A file or device that is not the server's to use or change, and that the operator has not expressly given it for this.
    #[error("volume \"{volume}\" ({}): {why}. {cure}", path.display())]
    NotOurs {
        /// The volume.
        volume: String,
        /// The file or device.
        path: PathBuf,
        /// The present or possible trouble.
        why: String,
        /// The cure.
        cure: String,
    },
    /// A file with certificates or keys cannot be used.
    #[error(transparent)]
    Tls(#[from] evenkeel_net::tls::Error),
    /// An address could not be listened on.
    #[error("cannot listen on {address}: {cause}{}", listen_hint(*holder, cause))]
    Listen {
        /// The address.
        address: String,
        /// The system's error.
        cause: io::Error,
        /// The process that has the address, if it is taken and the kernel knows it.
        holder: Option<u32>,
    },
    /// The server behind a volume cannot be used.
    #[error("volume \"{volume}\": cannot use {uri}: {why}. Start that server, or correct the uri of the volume")]
    Remote {
        /// The volume.
        volume: String,
        /// Where the server should be.
        uri: String,
        /// The fault.
        why: String,
    },
    /// The image behind a volume cannot be used.
    #[error("volume \"{volume}\": cannot use the RBD image {image}: {why}")]
    Rbd {
        /// The volume.
        volume: String,
        /// The image.
        image: String,
        /// The fault, and what to do.
        why: String,
    },
    /// io_uring was asked for by name, and the kernel refuses it.
    #[error(
        "the kernel refuses io_uring ({0}); use --engine auto or --engine epoll, or allow it (sysctl kernel.io_uring_disabled=0; container profiles often forbid it)"
    )]
    NoIoUring(io::Error),
    /// There is no such volume, tenant or pool.
    #[error("there is no {kind} named \"{name}\"")]
    Unknown {
        /// Volume, tenant or pool.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// The server refuses what was asked, for this reason.
    #[error("{0}")]
    Refused(String),
    /// A device did not answer in time. What it was asked to do may still happen.
    #[error("volume \"{volume}\": its device has not answered for {} s; the change may still take effect. Look at the kernel's log, for an RBD image at `ceph -s`", patience.as_secs_f64())]
    NoAnswer {
        /// The volume.
        volume: String,
        /// How long the server waited for an answer.
        patience: Duration,
    },
    /// More than one thing went wrong.
    #[error("{}", join(.0))]
    Several(Vec<Error>),
    /// The system refused a resource.
    #[error("cannot {action}: {cause}")]
    System {
        /// The action that failed, as a verb.
        action: &'static str,
        /// The system's error.
        cause: io::Error,
    },
}

impl Error {
    /// Name of the volume that the error is about, if it is about one and has its name.
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

    /// `Ok` without errors, else one error that holds them all.
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

/// Advice to append to the error of an address. The program itself adds which option or key chooses another address.
fn listen_hint(holder: Option<u32>, cause: &io::Error) -> String {
    match cause.kind() {
        io::ErrorKind::AddrInUse if holder == Some(std::process::id()) => "; this server itself has it".to_owned(),
        io::ErrorKind::AddrInUse => format!("; {} has it", describe(holder)),
        io::ErrorKind::PermissionDenied => "; ports below 1024 and foreign folders need privileges".to_owned(),
        _ => String::new(),
    }
}

/// The errno of the system call that failed last on this thread.
pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
