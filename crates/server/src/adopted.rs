//! The record, in `data_dir`, of the volumes' files that the server has created or adopted.
//!
//! A file that is not on record is foreign: the server examines its content before it serves the file, and then adds it to
//! the record (adopts it). Content that a client writes later has no effect on the record, even if it looks like another
//! format. A file is recognised by its path together with its inode and its time of birth, if the file system has one:
//!
//! - With the path alone, an image that was put in the place of a volume's file would be taken for that file.
//! - The number of the file system's device is not used: it changes from boot to boot, and on btrfs from mount to mount.
//! - A folder restored from a backup or moved to another file system has other inodes. The record therefore has its own
//!   inode, too: if this does not match, the record is a copy, and files are recognised by path alone until the record is
//!   next written. Files in `data_dir` are recorded relative to it.
//! - Nodes of block devices are made anew at each boot; a device is recognised by its configured path alone.
//!
//! A path is recorded before its file is created, so that a server that was killed in between still recognises the file as
//! its own when it starts again.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::places::resolve;

/// Name of the record's file in `data_dir`.
const RECORD: &str = "files.toml";
/// Name of the temporary file in `data_dir` for a new version of the record, which then replaces the record.
const NEXT: &str = "files.toml.new";
const HEADER: &str = "\
# Files that hold volumes: created by the server, or examined when they were first served.
# Written by the server. A file that is not listed here is examined again.

";

/// Number of the record's format that this version reads and writes.
const FORMAT: u32 = 1;

/// Largest number of files on record (some megabytes). If there are more, files that this process does not use are removed.
const MAX_FILES: usize = 65_536;

/// Paths of the record's file and of its temporary file, also if they do not exist.
pub(crate) fn files(data_dir: &Path) -> [PathBuf; 2] {
    [RECORD, NEXT].map(|name| data_dir.join(name))
}

/// An entry of the record: a file or device that the server created or adopted.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Known {
    /// Inode and time of birth, by which another file at the same path is recognised; `None` for a device, and for a file
    /// that is about to be created.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    /// True if the server created the file, false if it was examined and adopted.
    created: bool,
    /// True if this process has looked up or added the entry.
    #[serde(skip)]
    used: bool,
}

impl Known {
    fn is_expected(&self) -> bool {
        self.created && self.id.is_none()
    }
}

/// The record as it is serialised.
#[derive(Default, Serialize, Deserialize)]
struct Text {
    format: u32,
    /// Inode and time of birth of the record's own file.
    id: String,
    #[serde(default)]
    files: BTreeMap<String, Known>,
}

/// The key of a file or device in the record, with its identity.
#[derive(Clone, Debug)]
pub(crate) struct Name {
    key: String,
    id: Option<String>,
}

impl Name {
    /// The name of an open file or device; resolves the path, which may block if a file system hangs.
    pub(crate) fn of(data_dir: &Path, path: &Path, metadata: &Metadata) -> Self {
        if metadata.file_type().is_block_device() {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
            return Self { key: path.to_string_lossy().into_owned(), id: None };
        }
        Self { id: Some(identity(metadata)), ..Self::of_missing(data_dir, path) }
    }

    /// The name of a regular file that does not exist yet.
    pub(crate) fn of_missing(data_dir: &Path, path: &Path) -> Self {
        let path = resolve(path).unwrap_or_else(|_| path.to_owned());
        let folder = fs::canonicalize(data_dir).ok();
        let inside = folder.as_deref().and_then(|folder| path.strip_prefix(folder).ok());
        Self { key: inside.unwrap_or(&path).to_string_lossy().into_owned(), id: None }
    }
}

/// The record in memory.
#[derive(Default)]
pub(crate) struct Adopted {
    data_dir: PathBuf,
    files: BTreeMap<String, Known>,
    /// True if the record is a copy of another file, so that the inodes in it are not valid.
    copied: bool,
    /// Format of the record found in `data_dir`, if this version cannot read that format.
    other_format: Option<u32>,
    changed: bool,
}

impl Adopted {
    /// Reads the record in `data_dir` for a server that is going to write it. A record of another format is renamed, and the
    /// server begins with an empty one.
    ///
    /// # Errors
    /// As [`Self::load`], or if a record of another format cannot be renamed.
    pub(crate) fn open(data_dir: &Path) -> Result<Self, Error> {
        let adopted = Self::load(data_dir)?;
        if let Some(format) = adopted.other_format {
            let path = data_dir.join(RECORD);
            let aside = data_dir.join(format!("{RECORD}.format-{format}"));
            let fail = |cause| Error::Volume { path: path.clone(), action: "rename the record of files", cause };
            fs::rename(&path, &aside).map_err(fail)?;
            tracing::warn!(
                "the record of volumes' files {} is of format {format}, and this version reads format {FORMAT} only: the server keeps that record as {}, and examines every file again",
                path.display(),
                aside.display()
            );
        }
        Ok(adopted)
    }

    /// Reads the record in `data_dir`; empty if there is none. Changes no file.
    ///
    /// # Errors
    /// If the record cannot be read or is damaged.
    pub(crate) fn load(data_dir: &Path) -> Result<Self, Error> {
        let path = data_dir.join(RECORD);
        let fail = |cause| Error::Volume { path: path.clone(), action: "read the record of files in", cause };
        let data_dir = data_dir.to_owned();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self { data_dir, ..Self::default() }),
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                let why = "a part of this path is a file, not a folder; choose another data_dir (--data-dir DIR)";
                return Err(fail(io::Error::new(error.kind(), why)));
            }
            Err(error) => return Err(fail(error)),
        };
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        // Of a damaged record the next reader says what is wrong.
        if let Some(Head { format }) = toml::from_str(&text).ok().filter(|head: &Head| head.format != FORMAT) {
            return Ok(Self { data_dir, other_format: Some(format), ..Self::default() });
        }
        let read: Text = toml::from_str(&text).map_err(|error| {
            let why = format!("it is damaged ({}). Restore it from a backup, or remove it: then the server examines every file again, size needs grow = true to lengthen a file, and a volume whose content looks like an image needs format = \"raw\"", error.message());
            fail(io::Error::new(io::ErrorKind::InvalidData, why))
        })?;
        let copied = read.id != identity(&fs::metadata(&path).map_err(fail)?);
        let mut adopted = Self { data_dir, files: read.files, copied, other_format: None, changed: copied };
        adopted.settle();
        Ok(adopted)
    }

    /// Completes the entries of files announced by [`Self::expect`]: adds the identity of those that exist now, and removes
    /// the others.
    pub(crate) fn settle(&mut self) {
        let (data_dir, mut changed) = (&self.data_dir, false);
        self.files.retain(|key, known| {
            if known.is_expected() {
                // An absolute path takes the place of the folder.
                known.id = fs::metadata(data_dir.join(key)).ok().map(|metadata| identity(&metadata));
                // Without its identity on disk, a file that is missing later would count as never created.
                changed = true;
            }
            !known.is_expected()
        });
        self.changed |= changed;
    }

    /// Looks up a file or device: true if the server created it, false if it was adopted; `None` if it is not on record.
    pub(crate) fn find(&mut self, name: &Name) -> Option<bool> {
        let known = self.files.get_mut(&name.key)?;
        if known.id != name.id && !self.copied {
            return None;
        }
        known.used = true;
        self.changed |= known.id != name.id;
        known.id.clone_from(&name.id);
        Some(known.created)
    }

    /// True if the record has an entry for the path of `name`, even with another inode.
    pub(crate) fn had(&self, name: &Name) -> bool {
        self.files.get(&name.key).is_some_and(|known| !known.is_expected())
    }

    /// Adds a file or device to the record. `created`: true if the server created it, false if the server examined and
    /// adopted it.
    pub(crate) fn remember(&mut self, name: Name, created: bool) {
        self.files.insert(name.key, Known { id: name.id, created, used: true });
        self.changed = true;
    }

    /// Adds entries for files that are about to be created. Removes entries of earlier calls whose files were never created.
    pub(crate) fn expect(&mut self, names: Vec<Name>) {
        self.files.retain(|_, known| !known.is_expected());
        names.into_iter().for_each(|name| self.remember(name, true));
    }

    /// Writes the record if it has changed.
    ///
    /// # Errors
    /// If the record cannot be written; the old record is intact.
    pub(crate) fn save(&mut self) -> Result<(), Error> {
        if !self.changed {
            return Ok(());
        }
        let mut over = self.files.len().saturating_sub(MAX_FILES);
        self.files.retain(|_, known| {
            let keep = known.used || over == 0;
            over -= usize::from(!keep);
            keep
        });
        let path = self.data_dir.join(RECORD);
        let content = |file: &File| {
            let text = Text { format: FORMAT, id: identity(&file.metadata()?), files: self.files.clone() };
            let text = toml::to_string(&text).map_err(io::Error::other)?;
            Ok(format!("{HEADER}{text}").into_bytes())
        };
        let written = fs::create_dir_all(&self.data_dir).and_then(|()| replace(&path, content));
        written.map_err(|cause| Error::Volume { path, action: "record the files of volumes in", cause })?;
        (self.changed, self.copied) = (false, false);
        Ok(())
    }
}

/// Text by which a regular file is distinguished from another one at the same path: the inode, and the time of birth if
/// known.
fn identity(metadata: &Metadata) -> String {
    let born = metadata.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    born.map_or_else(
        || metadata.ino().to_string(),
        |born| format!("{} born {}.{:09}", metadata.ino(), born.as_secs(), born.subsec_nanos()),
    )
}

/// Writes the file at `path` so that after a crash it has either the old or the new content. The new content is written to a
/// file of the same name with `.new` appended, which then replaces the old file. `content` gets this new file and returns the
/// bytes to be written.
///
/// # Errors
/// If the file cannot be written; the old file is intact, unless the device fails to sync the folder at the end.
pub fn replace(path: &Path, content: impl FnOnce(&File) -> io::Result<Vec<u8>>) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let mut file = File::create(&temporary)?;
    let content = content(&file)?;
    file.write_all(&content)?;
    file.sync_all()?;
    // Before the old file is gone: there may be no right to read the folder, or no descriptor left.
    let folder = File::open(folder)?;
    fs::rename(&temporary, path)?;
    folder.sync_all()
}

#[cfg(test)]
#[path = "adopted_tests.rs"]
mod tests;
