//! Temporary directories that go away with their owner.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

/// A directory of its own under the system's temporary directory, removed on drop unless kept.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    keep: bool,
}

impl Scratch {
    /// Makes a directory whose name holds `purpose`.
    pub(crate) fn new(purpose: &str) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("evenkeel-{purpose}-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self { path, keep: false })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves the directory behind and says where.
    pub(crate) fn keep(&mut self) {
        self.keep = true;
        println!("kept: {}", self.path.display());
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.keep {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}
