//! Settings that are files: `io.max`, sysfs attributes and the like.

use std::path::{Path, PathBuf};

use super::error::Error;
use crate::journal::{Journal, Knob};

/// A file that the kernel or another program reads as a setting.
#[derive(Debug)]
pub struct FileKnob {
    path: PathBuf,
    /// The file's content as read after the agent's last write; `None` before it.
    ours: Option<String>,
    /// The file's content before the agent's first change; `None` before that change.
    before: Option<String>,
}

impl FileKnob {
    /// The setting in the file at `path`, which is left alone until the first [`set`](Self::set).
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), ours: None, before: None }
    }

    /// Writes `value` to the file, after the earlier content has been written to the journal. If another program has changed
    /// the file since the agent's last write, the file keeps that content, which is returned; otherwise `None`.
    ///
    /// # Errors
    /// [`Error::File`] when the file or the journal cannot be read or written.
    pub fn set(&mut self, journal: &mut Journal, value: &str) -> Result<Option<String>, Error> {
        let found = read(&self.path)?;
        if self.ours.as_ref().is_some_and(|ours| *ours != found) {
            return Ok(Some(found));
        }
        if found == value.trim() {
            return Ok(None);
        }
        let knob = Knob::File(self.path.clone());
        let before = self.before.get_or_insert_with(|| found.clone()).clone();
        journal.intend(&knob, Some(&before), Some(value.trim()))?;
        write(&self.path, value)?;
        // The kernel may spell it in its own way; that spelling is how we know our value again.
        let seen = read(&self.path).inspect_err(|_| self.ours = None)?;
        self.ours = Some(seen.clone());
        journal.confirm(&knob, &seen)?;
        Ok(None)
    }

    /// Takes `before` as the content to be restored, in place of the content that the file has at the agent's first change.
    pub fn assume_before(&mut self, before: &str) {
        self.before.get_or_insert_with(|| before.to_owned());
    }

    /// Restores the content before the agent's first change, unless another program has changed the file since.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub fn restore(&mut self, journal: &mut Journal) -> Result<(), Error> {
        self.ours = None;
        self.before = None;
        journal.restore(&Knob::File(self.path.clone())).map(|_| ())
    }
}

/// The content of the file at `path`, without white space at its end.
pub(crate) fn read(path: &Path) -> Result<String, Error> {
    let text = std::fs::read_to_string(path).map_err(|cause| Error::file("read", path, cause))?;
    Ok(text.trim_end().to_owned())
}

/// Writes `value` and a line end in one call, as the kernel's files require; never creates a file.
pub(crate) fn write(path: &Path, value: &str) -> Result<(), Error> {
    use std::io::Write as _;
    let failed = |cause| Error::file("write", path, cause);
    let mut file = std::fs::OpenOptions::new().write(true).truncate(true).open(path).map_err(failed)?;
    file.write_all(format!("{value}\n").as_bytes()).map_err(failed)
}
