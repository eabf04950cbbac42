//! Settings that are files: `io.max`, sysfs attributes and the like.

use std::path::{Path, PathBuf};

use super::error::Error;
use crate::journal::{Journal, Knob};

/// A file that the kernel or another program reads as a setting.
#[derive(Debug)]
pub struct FileKnob {
    path: PathBuf,
    /// The file's content after our last write.
    ours: Option<String>,
    /// The content before our first change.
    before: Option<String>,
}

/// The result of [`FileKnob::set`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    /// The file had this content already.
    Same,
    /// The file has been written.
    Changed,
    /// Another program has changed the file since our last write; it is left alone.
    Foreign {
        /// The file's present content.
        found: String,
    },
}

impl FileKnob {
    /// A setting that is left alone until the first [`set`](Self::set).
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), ours: None, before: None }
    }

    /// Writes `value` to the file; the earlier content goes to the journal first.
    ///
    /// # Errors
    /// [`Error::File`] when the file or the journal cannot be read or written.
    pub fn set(&mut self, journal: &mut Journal, value: &str) -> Result<Written, Error> {
        let found = read(&self.path)?;
        if self.ours.as_ref().is_some_and(|ours| *ours != found) {
            return Ok(Written::Foreign { found });
        }
        if found == value.trim() {
            return Ok(Written::Same);
        }
        let knob = Knob::File(self.path.clone());
        let before = self.before.get_or_insert_with(|| found.clone()).clone();
        journal.intend(&knob, Some(&before), Some(value.trim()))?;
        write(&self.path, value)?;
        // The kernel may spell it in its own way; that spelling is how we know our value again.
        let seen = read(&self.path).inspect_err(|_| self.ours = None)?;
        self.ours = Some(seen.clone());
        journal.confirm(&knob, &seen)?;
        Ok(Written::Changed)
    }

    /// Takes `before` as the content before our first change, in place of what the file holds when that is made.
    pub fn assume_before(&mut self, before: &str) {
        self.before.get_or_insert_with(|| before.to_owned());
    }

    /// Restores the content before our first change, unless another program has changed the file since.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub fn restore(&mut self, journal: &mut Journal) -> Result<(), Error> {
        self.ours = None;
        self.before = None;
        journal.restore(&Knob::File(self.path.clone())).map(|_| ())
    }
}

/// The file's content without the end of the line.
pub(crate) fn read(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path).map(|text| text.trim_end().to_owned()).map_err(|cause| Error::File {
        doing: "read",
        path: path.to_owned(),
        cause,
    })
}

/// Writes `value` and a line end in one call, as the kernel's files require; never creates a file.
pub(crate) fn write(path: &Path, value: &str) -> Result<(), Error> {
    use std::io::Write as _;
    let failed = |cause| Error::File { doing: "write", path: path.to_owned(), cause };
    let mut file = std::fs::OpenOptions::new().write(true).truncate(true).open(path).map_err(failed)?;
    file.write_all(format!("{value}\n").as_bytes()).map_err(failed)
}
