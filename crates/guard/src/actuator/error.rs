//! Errors of actuators.

use std::path::{Path, PathBuf};

use evenkeel_policy::figures::counted;
use rustix::io::Errno;

/// An error of changing or restoring a setting. Refusals are found before the first change, so that no change is left half
/// done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting of the packet delay is out of range.
    #[error("{key} {problem}")]
    Settings {
        /// Name of the setting at fault, or of the quantity that is out of range.
        key: &'static str,
        /// The fault, and which values are allowed.
        problem: String,
    },
    /// There is no network device of this name.
    #[error("there is no network device {device}: see `ip link` for the names")]
    NoDevice {
        /// Name of the network device as configured.
        device: String,
    },
    /// The device has a queueing discipline that another program configured; the agent never replaces one.
    #[error(
        "{device} has the queueing discipline {found}, which is not the kernel's default; Evenkeel does not replace it. Remove \
         it (`tc qdisc del dev {device} root`) if it is not needed, or leave this device out"
    )]
    ForeignQdisc {
        /// Name of the network device.
        device: String,
        /// Kind and number of its root queueing discipline.
        found: String,
    },
    /// The device has the queueing discipline `ingress` in the place of `clsact`, which the agent's filters need.
    #[error(
        "{device} has the queueing discipline ingress, which stands where clsact is needed; Evenkeel does not replace it. \
         Use clsact in its place (`tc qdisc replace dev {device} clsact`), which has all that ingress has"
    )]
    IngressInTheWay {
        /// Name of the network device.
        device: String,
    },
    /// The kernel lacks a part that the agent needs.
    #[error("the kernel has no {what}: load it with `modprobe {module}`, or install the kernel's extra modules")]
    Missing {
        /// Name of the part.
        what: &'static str,
        /// Kernel module that provides the part.
        module: &'static str,
    },
    /// The kernel refuses the BPF program that sets the departure times of packets.
    #[error(
        "the kernel refuses the BPF program that sets the departure times of packets: it needs Linux 5.0 with \
         CONFIG_BPF_SYSCALL, and no security module that forbids it"
    )]
    NoProgram,
    /// The process lacks the privileges for an action.
    #[error(
        "not allowed to {doing}: run as root or with the capabilities CAP_NET_ADMIN and CAP_BPF (before Linux 5.8 \
         CAP_SYS_ADMIN; before 5.11 also with `ulimit -l unlimited`)"
    )]
    NotAllowed {
        /// The attempted action, as an infinitive for the message.
        doing: &'static str,
    },
    /// Another agent is running in this network namespace.
    #[error("another agent is running in this network namespace: only one can throttle clients; stop it first")]
    AnotherAgent,
    /// Another user could take the lock that admits one agent per network namespace.
    #[error(
        "{path}, which holds the agent's lock, belongs to another user or is open to others, who could keep the agent \
         from starting. Remove it; the agent makes it again, for root alone"
    )]
    LockNotOurs {
        /// Path of the lock file or of its folder.
        path: PathBuf,
    },
    /// Any other error that the kernel returned.
    #[error("cannot {doing}: {cause}; if the kernel lacks a part that this needs, `evenkeel check FILE` names it")]
    Kernel {
        /// The attempted action, as an infinitive for the message.
        doing: &'static str,
        /// The error that the kernel returned.
        cause: Errno,
    },
    /// A file could not be read or written.
    #[error("cannot {doing} {path}: {cause}{}", cure(.path, .cause))]
    File {
        /// The attempted action, as an infinitive for the message.
        doing: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        cause: std::io::Error,
    },
    /// An OSD's option could not be read or set.
    #[error(transparent)]
    Osd(#[from] crate::admin_socket::Error),
    /// Another process has locked the journal.
    #[error("the journal {path} is in use by another process: an agent is running; stop it first")]
    JournalInUse {
        /// Path of the journal.
        path: PathBuf,
    },
    /// Another user could have written the journal.
    #[error(
        "the journal {path} belongs to another user or can be written by others, who could have any file set that way. \
         Remove it, or make it private (`chown`, `chmod 600`) if you know what is in it"
    )]
    JournalNotOurs {
        /// Path of the journal.
        path: PathBuf,
    },
    /// The journal was written by another version, or damaged in the middle.
    #[error(
        "the journal {path}, line {line}: {problem}. This version cannot restore the settings that it lists; use the \
         version that wrote it, or remove the file once these settings are right"
    )]
    JournalFormat {
        /// Path of the journal.
        path: PathBuf,
        /// Number of the line that cannot be understood, from 1.
        line: usize,
        /// Description of the fault in this line.
        problem: String,
    },
    /// Some settings could not be restored to their values before the agent.
    #[error(
        "{} could not be restored, and is still in the journal; the next start of the agent tries again, as does \
         `evenkeel guard reset` while no agent runs",
        counted(*failures as u64, "setting")
    )]
    NotRestored {
        /// Number of settings that were not restored.
        failures: usize,
    },
}

/// Advice on how to cure `cause`, the error of the file at `path`, with a leading semicolon; empty if no cure is known.
fn cure(path: &Path, cause: &std::io::Error) -> &'static str {
    match cause.raw_os_error() {
        Some(libc::EROFS) if path.starts_with("/sys") => {
            "; add the drop-in of docs/guide/guard.md to the service (ProtectControlGroups=no for io.max, ProtectKernelTunables=no for /sys), or mount it for writing into the container"
        }
        Some(libc::EROFS) => {
            "; name its folder in ReadWritePaths= of the service, or mount it for writing into the container"
        }
        Some(libc::EACCES | libc::EPERM) => "; run as root, and have SELinux or AppArmor allow it",
        Some(libc::EOPNOTSUPP) if path.ends_with("io.max") => {
            "; the kernel cannot limit this device: name the one below or above it"
        }
        _ => "",
    }
}

impl Error {
    /// The error for a file that could not be read or written; `doing` is the attempted action, as an infinitive.
    pub(crate) fn file(doing: &'static str, path: &Path, cause: std::io::Error) -> Self {
        Self::File { doing, path: path.to_owned(), cause }
    }

    /// The error for a file whose content, or entry in the journal, cannot be understood.
    pub(crate) fn odd(doing: &'static str, path: &Path, problem: String) -> Self {
        Self::file(doing, path, std::io::Error::new(std::io::ErrorKind::InvalidData, problem))
    }

    /// The error for a refusal of the kernel; `doing` is the attempted action, as an infinitive.
    pub(crate) fn kernel(doing: &'static str, cause: Errno) -> Self {
        match cause {
            Errno::PERM | Errno::ACCESS => Self::NotAllowed { doing },
            cause => Self::Kernel { doing, cause },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_is_refused_has_a_cure() {
        let of = |path: &str, code| {
            let cause = std::io::Error::from_raw_os_error(code);
            Error::File { doing: "write", path: path.into(), cause }.to_string()
        };
        let text = |code| of("/sys/fs/cgroup/a/io.max", code);
        for (code, words) in [
            (libc::EROFS, "ProtectControlGroups=no"),
            (libc::EACCES, "run as root"),
            (libc::EPERM, "SELinux"),
            (libc::EOPNOTSUPP, "below or above"),
        ] {
            let text = text(code);
            assert!(text.starts_with("cannot write /sys/fs/cgroup/a/io.max: ") && text.contains(words), "{text}");
        }
        assert!(text(libc::ENOSPC).ends_with(&std::io::Error::from_raw_os_error(libc::ENOSPC).to_string()));
        // A journal is no file of the kernel, and limits no device.
        let journal = of("/srv/guard.journal", libc::EROFS);
        assert!(journal.contains("ReadWritePaths=") && !journal.contains("ProtectControlGroups"), "{journal}");
        assert!(!of("/srv/guard.journal", libc::EOPNOTSUPP).contains("device"));
    }
}
