//! The folder: names of files, who may read them, and the lock.

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use crate::error::{Error, Note, failed};
use crate::resolution::Stream;

const ENDING: &str = ".evh";
/// Mode of files: reading and writing for the owner alone.
const FILE_MODE: u32 = 0o600;
/// Mode of the folder, likewise.
const FOLDER_MODE: u32 = 0o700;
/// Bits of a mode that give access to other users.
const OTHERS: u32 = 0o077;

/// Writes blocks, and reads files at the start; the tests have other ones, which fail or look at the folder meanwhile.
pub(crate) trait Sink: fmt::Debug + Send {
    /// Appends the bytes to the file.
    ///
    /// # Errors
    /// The system's; part of the bytes may have been written.
    fn write(&mut self, file: &mut File, bytes: &[u8]) -> io::Result<()>;

    /// Reads a file, but no more than its first `most` bytes.
    ///
    /// # Errors
    /// The system's.
    fn read(&self, path: &Path, most: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(path)?.take(most).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// Writes to the file and does nothing else.
#[derive(Debug)]
pub(crate) struct Plain;

impl Sink for Plain {
    fn write(&mut self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)
    }
}

/// The place where a history is recorded.
#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) folder: PathBuf,
    /// Bound on the files together, in bytes.
    pub(crate) bound: u64,
    pub(crate) sink: Box<dyn Sink>,
}

/// A file of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Kept {
    /// Start of the file's first block, Unix time in seconds.
    pub(crate) start: u64,
    /// Length of the file, in bytes.
    pub(crate) bytes: u64,
}

/// The files of a folder.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// Files of each stream, oldest first.
    pub(crate) files: [Vec<Kept>; 5],
    /// Files that were set aside, each with its length in bytes.
    pub(crate) aside: Vec<(PathBuf, u64)>,
}

/// Path of the file of a stream that begins at `start`, Unix time in seconds.
pub(crate) fn path_of(folder: &Path, stream: Stream, start: u64) -> PathBuf {
    folder.join(format!("{:03}-{start:012}{ENDING}", stream.code))
}

/// Stream and start of the file with this path.
fn parsed(path: &Path) -> Option<(Stream, u64)> {
    let (code, start) = path.file_name()?.to_str()?.strip_suffix(ENDING)?.split_once('-')?;
    let (code, start): (u16, u64) = (code.parse().ok()?, start.parse().ok()?);
    let stream = Stream::ALL.into_iter().find(|stream| stream.code == code)?;
    (path_of(path.parent()?, stream, start) == path).then_some((stream, start))
}

/// The files of the history in a folder. A file that another process removes meanwhile may be missing.
///
/// # Errors
/// [`Error::File`] if the folder cannot be read.
pub(crate) fn list(folder: &Path) -> Result<Listing, Error> {
    let mut listing = Listing::default();
    for entry in fs::read_dir(folder).map_err(failed("list", folder))? {
        let path = entry.map_err(failed("list", folder))?.path();
        let Some(metadata) = fs::symlink_metadata(&path).ok().filter(fs::Metadata::is_file) else { continue };
        if let Some((stream, start)) = parsed(&path) {
            listing.files[stream.index].push(Kept { start, bytes: metadata.len() });
        } else if path.file_name().is_some_and(|name| name.to_string_lossy().contains(ENDING)) {
            listing.aside.push((path, metadata.len()));
        }
    }
    listing.files.iter_mut().for_each(|files| files.sort_unstable());
    listing.aside.sort_unstable();
    Ok(listing)
}

/// Makes the folder, if there is none, takes access from other users, and locks it until the returned file is dropped or the
/// process ends.
///
/// # Errors
/// [`Error::InUse`] if another process has locked it, [`Error::File`].
pub(crate) fn make(folder: &Path) -> Result<File, Error> {
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder).map_err(failed("make", folder))?;
    let metadata = fs::metadata(folder).map_err(failed("read", folder))?;
    if metadata.permissions().mode() & OTHERS != 0 {
        let set = fs::set_permissions(folder, Permissions::from_mode(FOLDER_MODE));
        set.map_err(failed("keep other users from", folder))?;
    }
    let path = folder.join("lock");
    let opened = OpenOptions::new().create(true).truncate(false).write(true).mode(FILE_MODE).open(&path);
    let lock = opened.map_err(failed("open", &path))?;
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::InUse { folder: folder.to_owned() }),
        Err(error) => Err(failed("lock", &path)(error.into())),
    }
}

/// Creates a file; one of this name would have no whole block.
///
/// # Errors
/// [`Error::File`].
pub(crate) fn create(path: &Path) -> Result<File, Error> {
    let created = OpenOptions::new().create(true).truncate(true).write(true).mode(FILE_MODE).open(path);
    created.map_err(failed("create", path))
}

/// Opens a file for writing at its end.
///
/// # Errors
/// [`Error::File`].
pub(crate) fn append(path: &Path) -> Result<File, Error> {
    OpenOptions::new().append(true).open(path).map_err(failed("open", path))
}

/// Removes a file that may be gone already.
///
/// # Errors
/// [`Error::File`].
pub(crate) fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path)(error)),
        _ => Ok(()),
    }
}

/// Gives a file a name that is none of the history's: its own and this ending.
///
/// # Errors
/// [`Error::File`].
pub(crate) fn set_aside(path: &Path, ending: &str, because: &'static str) -> Result<Note, Error> {
    let aside = path.with_extension(format!("evh.{ending}"));
    fs::rename(path, &aside).map_err(failed("rename", path))?;
    Ok(Note::SetAside { path: aside, because })
}

/// Sets a file aside that its disk cannot read: a later start would not read these sectors of the disk either.
///
/// # Errors
/// [`Error::File`], also if the file was not read for another reason.
pub(crate) fn unreadable(path: &Path, error: io::Error) -> Result<Note, Error> {
    if error.raw_os_error() != Some(rustix::io::Errno::IO.raw_os_error()) {
        return Err(failed("read", path)(error));
    }
    set_aside(path, "unreadable", "not readable, as its disk fails")
}
