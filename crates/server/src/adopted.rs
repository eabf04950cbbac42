//! The files of volumes that the server has created or adopted, remembered in `data_dir`.
//!
//! A file that is not on record is foreign: it is examined before it is served, and then remembered. What a client writes
//! later changes nothing, be it the header of another format. A file is known by its path together with its inode and its
//! time of birth, where the file system has one:
//!
//! - The path alone would take an image that was put in a volume's place for the volume.
//! - The number of the device is left out: it changes from boot to boot, and on btrfs from mount to mount.
//! - A folder restored from a backup or moved to another file system has other inodes. So has the record, which therefore
//!   notes its own: where that is not right any more, the record is a copy, and paths alone count until it is next written.
//!   Files in `data_dir` are recorded relative to it.
//! - Nodes of block devices are made anew at each boot; a device is known by its path alone, as configured.
//!
//! A path is recorded before its file is created, so that a process killed in between still knows the file as its own.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::places::resolve;

/// The record, in `data_dir`.
const RECORD: &str = "files.toml";
/// Its next version, until that is complete.
const NEXT: &str = "files.toml.new";
const HEADER: &str = "\
# Files that hold volumes: created by the server, or examined when they were first served.
# Written by the server. A file that is not listed here is examined again.

";

/// The format of the record.
const FORMAT: u32 = 1;

/// Files remembered at most, beside those in use: some megabytes.
const MAX_FILES: usize = 65_536;

/// The files of the record itself, whether or not they exist.
pub(crate) fn files(data_dir: &Path) -> [PathBuf; 2] {
    [RECORD, NEXT].map(|name| data_dir.join(name))
}

/// A known file.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Known {
    /// The distinction from a file that takes its place; `None` for a device, and for a file that is being created.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    /// The server has created it.
    created: bool,
    /// Looked up or added by this process.
    #[serde(skip)]
    used: bool,
}

impl Known {
    fn is_expected(&self) -> bool {
        self.created && self.id.is_none()
    }
}

/// The record as text.
#[derive(Default, Serialize, Deserialize)]
struct Text {
    format: u32,
    /// Identity of the record's own file.
    id: String,
    #[serde(default)]
    files: BTreeMap<String, Known>,
}

/// The name of a file or device.
#[derive(Clone, Debug)]
pub(crate) struct Name {
    key: String,
    id: Option<String>,
}

impl Name {
    /// That of an open file; resolves its path, which may take time where a file system hangs.
    pub(crate) fn of(data_dir: &Path, path: &Path, metadata: &Metadata) -> Self {
        if metadata.file_type().is_block_device() {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
            return Self { key: path.to_string_lossy().into_owned(), id: None };
        }
        Self { id: Some(identity(metadata)), ..Self::of_missing(data_dir, path) }
    }

    /// That of a regular file that does not exist yet.
    pub(crate) fn of_missing(data_dir: &Path, path: &Path) -> Self {
        let path = resolve(path).unwrap_or_else(|_| path.to_owned());
        let folder = fs::canonicalize(data_dir).ok();
        let inside = folder.as_deref().and_then(|folder| path.strip_prefix(folder).ok());
        Self { key: inside.unwrap_or(&path).to_string_lossy().into_owned(), id: None }
    }
}

/// Known files.
#[derive(Default)]
pub(crate) struct Adopted {
    data_dir: PathBuf,
    files: BTreeMap<String, Known>,
    /// The record was copied: inodes mean nothing.
    copied: bool,
    /// The format of a record that this version cannot read.
    other_format: Option<u32>,
    changed: bool,
}

impl Adopted {
    /// The record in `data_dir` for a server, which goes on without one of another format: that is kept aside.
    ///
    /// # Errors
    /// As [`Self::load`]; when the record cannot be kept aside.
    pub(crate) fn open(data_dir: &Path) -> Result<Self, Error> {
        let adopted = Self::load(data_dir)?;
        if let Some(format) = adopted.other_format {
            let path = data_dir.join(RECORD);
            let aside = data_dir.join(format!("{RECORD}.format-{format}"));
            let fail = |cause| Error::Volume { path: path.clone(), action: "keep aside", cause };
            fs::rename(&path, &aside).map_err(fail)?;
            tracing::warn!(
                "the record of files {} is of format {format}, this version writes {FORMAT}: it is kept as {}, and every file is examined again",
                path.display(),
                aside.display()
            );
        }
        Ok(adopted)
    }

    /// Reads the record in `data_dir`; there need not be one. Changes nothing.
    ///
    /// # Errors
    /// When it cannot be read or is damaged.
    pub(crate) fn load(data_dir: &Path) -> Result<Self, Error> {
        let path = data_dir.join(RECORD);
        let fail = |cause| Error::Volume { path: path.clone(), action: "read the record of files in", cause };
        let data_dir = data_dir.to_owned();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self { data_dir, ..Self::default() }),
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
            let why = format!("it is damaged ({}). Restore it from a backup, or remove it: then every file is examined again, size needs grow = true to lengthen one, and a volume whose content looks like an image needs format = \"raw\"", error.message());
            fail(io::Error::new(io::ErrorKind::InvalidData, why))
        })?;
        let copied = read.id != identity(&fs::metadata(&path).map_err(fail)?);
        let mut adopted = Self { data_dir, files: read.files, copied, other_format: None, changed: copied };
        adopted.settle();
        Ok(adopted)
    }

    /// Takes note of which of the expected files have come to be; the others are forgotten.
    pub(crate) fn settle(&mut self) {
        let (data_dir, before) = (&self.data_dir, self.files.len());
        self.files.retain(|key, known| {
            if known.is_expected() {
                // An absolute path takes the place of the folder.
                known.id = fs::metadata(data_dir.join(key)).ok().map(|metadata| identity(&metadata));
            }
            !known.is_expected()
        });
        self.changed |= self.files.len() < before;
    }

    /// True if the server has created the file or device; `None` if it does not know it.
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

    /// True if there was a file or device at this path.
    pub(crate) fn had(&self, name: &Name) -> bool {
        self.files.get(&name.key).is_some_and(|known| !known.is_expected())
    }

    /// Remembers a file or device that was created, or else examined.
    pub(crate) fn remember(&mut self, name: Name, created: bool) {
        self.files.insert(name.key, Known { id: name.id, created, used: true });
        self.changed = true;
    }

    /// Notes files that are about to be created, in place of what was expected before and did not come to be.
    pub(crate) fn expect(&mut self, names: Vec<Name>) {
        self.files.retain(|_, known| !known.is_expected());
        names.into_iter().for_each(|name| self.remember(name, true));
    }

    /// Writes the record, if something has changed.
    ///
    /// # Errors
    /// When it cannot be written; the old one is intact then.
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

/// The distinction of a regular file from one that takes its place.
fn identity(metadata: &Metadata) -> String {
    let born = metadata.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    born.map_or_else(
        || metadata.ino().to_string(),
        |born| format!("{} born {}.{:09}", metadata.ino(), born.as_secs(), born.subsec_nanos()),
    )
}

/// Writes a file so that after a crash either the old or the new content is there. `content` is given the file that it
/// goes into, which lies beside the old one under the name with `.new` behind it and then takes its place.
///
/// # Errors
/// When the file cannot be written; the old one is intact then.
pub fn replace(path: &Path, content: impl FnOnce(&File) -> io::Result<Vec<u8>>) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let mut file = File::create(&temporary)?;
    let content = content(&file)?;
    file.write_all(&content)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
#[path = "adopted_tests.rs"]
mod tests;
