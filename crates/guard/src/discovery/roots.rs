//! Roots of the kernel's file trees, and functions that read files in them, with upper bounds on size.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// Size, in bytes, up to which a file is read. Only `/proc/net/tcp` of a host with very many connections is larger.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Largest number of entries of a folder that are read.
const MAX_ENTRIES: usize = 65_536;

/// Roots of the kernel's file trees. Every path that discovery reads begins with one of these roots, so that a captured copy
/// can be read too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    /// Folder of the tree `/proc`.
    pub proc: PathBuf,
    /// Folder of the tree `/sys`.
    pub sys: PathBuf,
    /// Folder of all other trees: `/var` and `/run`, where container runtimes keep their files.
    pub root: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self::under(Path::new("/"))
    }
}

impl Roots {
    /// The trees below `root`, as in a captured copy or a container's view of its host.
    pub fn under(root: &Path) -> Self {
        Self { proc: root.join("proc"), sys: root.join("sys"), root: root.to_owned() }
    }

    /// The boot ID of the kernel, which all of its containers have in common; empty if unknown.
    pub fn boot_id(&self) -> String {
        value(&self.proc.join("sys/kernel/random/boot_id")).ok().flatten().unwrap_or_default()
    }

    /// Folder where configfs is mounted by convention.
    pub fn configfs(&self) -> PathBuf {
        self.sys.join("kernel/config")
    }
}

/// The content of the file at `path` as text; bytes that are no UTF-8 are replaced.
pub(crate) fn text(path: &Path) -> Result<String, Error> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|cause| Error::read(path, cause))?;
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(|cause| Error::read(path, cause))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(Error::TooLarge { path: path.to_owned(), limit: MAX_FILE_BYTES as usize });
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The content of a file as [`text`], without surrounding white space; `None` if the file does not exist.
pub(crate) fn value(path: &Path) -> Result<Option<String>, Error> {
    optional(text(path)).map(|text| text.map(|text| text.trim().to_owned()))
}

/// Sorted names of the entries of a folder; empty if the folder does not exist.
pub(crate) fn names(folder: &Path) -> Result<Vec<String>, Error> {
    let fail = |cause| Error::read(folder, cause);
    let entries = match optional(fs::read_dir(folder).map_err(fail))? {
        Some(entries) => entries,
        None => return Ok(Vec::new()),
    };
    let mut names = Vec::new();
    for entry in entries.take(MAX_ENTRIES) {
        names.push(entry.map_err(fail)?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Target of the symbolic link at `path`, as written in the link; `None` if `path` is no symbolic link.
pub(crate) fn link(path: &Path) -> Option<PathBuf> {
    fs::read_link(path).ok()
}

/// The kernel's sequence number of the device with this folder; before Linux 5.15 the number of the folder itself, which another
/// device does not get either.
pub(crate) fn sequence_of(folder: &Path) -> Option<String> {
    let sequence = value(&folder.join("diskseq")).ok().flatten();
    sequence.or_else(|| fs::metadata(folder).ok().map(|metadata| format!("folder {}", metadata.ino())))
}

/// Turns the error of reading a file that does not exist, or ceased to exist during the reading, into `Ok(None)`.
pub(crate) fn optional<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is_absent() || error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}
