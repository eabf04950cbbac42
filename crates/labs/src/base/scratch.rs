//! Temporary directories that go away with their owner.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};

/// Where files are in memory.
pub(crate) const MEMORY: &str = "/dev/shm";

/// Directories to remove when a signal ends this program.
static LIVE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn live() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes what has not been dropped, at the end of the program.
pub(crate) fn remove_all() {
    for path in std::mem::take(&mut *live()) {
        let _ = std::fs::remove_dir_all(path);
    }
}

/// A directory of its own on a disk (`/tmp` is often in memory, where O_DIRECT fails and a log of a
/// gigabyte hurts), removed on drop unless kept.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    keep: bool,
}

impl Scratch {
    /// Makes a directory whose name holds `purpose`.
    pub fn new(purpose: &str) -> Result<Self> {
        let base = match std::env::var_os("TMPDIR") {
            None if Path::new("/var/tmp").is_dir() => PathBuf::from("/var/tmp"),
            _ => std::env::temp_dir(),
        };
        Self::under(&base, purpose)
    }

    /// The same; if it is to be kept, it is left behind, and said where.
    pub(crate) fn kept_if(keep: bool, purpose: &str) -> Result<Self> {
        let mut scratch = Self::new(purpose)?;
        scratch.keep = keep;
        if keep {
            live().remove(&scratch.path);
            println!("kept: {}", scratch.path.display());
        }
        Ok(scratch)
    }

    /// Makes one in memory, for files that stand for devices.
    pub(crate) fn in_memory(purpose: &str) -> Result<Self> {
        Self::under(Path::new(MEMORY), purpose)
    }

    fn under(base: &Path, purpose: &str) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = base.join(format!("evenkeel-{purpose}-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        live().insert(path.clone());
        Ok(Self { path, keep: false })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        live().remove(&self.path);
        if !self.keep {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}
