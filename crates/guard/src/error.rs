//! Errors of reading the kernel's files.

use std::io;
use std::path::{Path, PathBuf};

/// The error of a parser: its text is not in the format that the kernel or a tool writes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct Fault {
    /// Number of the line at fault, counted from 1.
    pub line: usize,
    /// Description of the fault, for the error message.
    pub problem: String,
}

impl Fault {
    pub(crate) fn new(line: usize, problem: impl Into<String>) -> Self {
        Self { line, problem: problem.into() }
    }

    /// The error that says that this fault was found in the file `path`.
    pub fn in_file(self, path: &Path) -> Error {
        Error::Parse { path: path.to_owned(), fault: self }
    }
}

/// An error of reading measurements, or of discovering clients, volumes and devices.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder cannot be read.
    #[error("cannot read {}: {cause}{}", .path.display(), cure(.cause))]
    Read {
        /// Path of the file or folder.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The content of a file does not have the expected format.
    #[error("{}:{}: {}; Evenkeel does not know this format of the kernel or tool: update Evenkeel, or report this line", .path.display(), .fault.line, .fault.problem)]
    Parse {
        /// File or command that the text came from.
        path: PathBuf,
        /// Number of the line at fault, and a description of the fault.
        fault: Fault,
    },
    /// The kernel refuses the BPF programs that measure the latency of single reads.
    #[error(
        "the latency of single reads cannot be measured: {cause}; a latency target for a percentile needs Linux 5.8 and \
         the capabilities CAP_BPF and CAP_PERFMON (run as root); or set the target's percentile = \"mean\""
    )]
    Programs {
        /// The system's error.
        cause: io::Error,
    },
    /// The kernel shows no tracepoints of block devices.
    #[error(
        "the tracepoints of block devices are not in {folder}; mount tracefs there (mount -t tracefs tracefs {folder}), or use a \
         kernel with CONFIG_FTRACE"
    )]
    NoTracepoints {
        /// Folder in which tracefs is mounted by convention.
        folder: &'static str,
    },
    /// The kernel has no BPF ring buffer, into which programs could record requests.
    #[error("requests cannot be recorded: this kernel has no ring buffer of BPF; use Linux 5.8 or newer")]
    NoRing,
    /// The kernel refuses the BPF programs that record requests, or their maps.
    #[error(
        "requests cannot be recorded: {cause}; run as root (capabilities CAP_BPF and CAP_PERFMON, before Linux 5.11 also \
         `ulimit -l unlimited`), on Linux 5.8 or newer"
    )]
    Unrecorded {
        /// The system's error.
        cause: io::Error,
    },
    /// A file exceeds the largest size that the agent reads.
    #[error("{} is larger than {limit} bytes, the most that is read: is this the right file?", .path.display())]
    TooLarge {
        /// Path of the file.
        path: PathBuf,
        /// Largest size that is read, in bytes.
        limit: usize,
    },
    /// There are more objects of a kind than the agent handles.
    #[error("more than {limit} {what}; name fewer")]
    TooMany {
        /// The text after the number in the message: the things, for example "groups are named by ...".
        what: String,
        /// Largest number of objects of this kind that the agent handles.
        limit: usize,
    },
}

impl Error {
    /// The error of reading `path`.
    pub fn read(path: &Path, cause: io::Error) -> Self {
        Self::Read { path: path.to_owned(), cause }
    }

    /// True if the file does not exist. For many of the kernel's files this only means that a kernel module is not loaded.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Read { cause, .. } if cause.kind() == io::ErrorKind::NotFound)
    }

    /// True if the process, session or device that was read has ceased to exist, or the kernel does not show it for now.
    pub fn is_gone(&self) -> bool {
        let gone = [libc::ESRCH, libc::ENODEV, libc::ENXIO, libc::ENOTDIR];
        matches!(self, Self::Read { cause, .. } if cause.raw_os_error().is_some_and(|code| gone.contains(&code)))
    }
}

/// Advice on how to cure `cause`, for the error message, with a leading semicolon; empty if no cure is known.
fn cure(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::PermissionDenied => {
            "; run as root, or give the service the capabilities named in docs/guide/guard.md"
        }
        io::ErrorKind::NotFound => "; `evenkeel check` shows what the kernel offers",
        _ => "",
    }
}
