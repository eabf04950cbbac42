//! Temporary directories that are removed when their owner is dropped.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};

/// A folder whose files are in memory (tmpfs).
pub(crate) const MEMORY: &str = "/dev/shm";

/// Temporary directories that exist at present; they are removed when a signal ends this program.
static LIVE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn live() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes all temporary directories that still exist; for use when the program ends.
pub(crate) fn remove_all() {
    for path in std::mem::take(&mut *live()) {
        let _ = std::fs::remove_dir_all(path);
    }
}

/// Makes a file of so many MiB, full of data.
pub(crate) fn make_full_file(path: &Path, mib: u64) -> Result<()> {
    let mut file = File::create(path).with_context(|| format!("cannot make {}", path.display()))?;
    let piece = vec![0x5a; 1 << 20];
    (0..mib).try_for_each(|_| file.write_all(&piece))?;
    Ok(file.sync_all()?)
}

/// A temporary directory, which is removed on drop unless it is to be kept. It lies on a disk (`/tmp` is often in memory,
/// where O_DIRECT fails and large logs take memory) unless memory is asked for.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    keep: bool,
}

impl Scratch {
    /// Makes a temporary directory on a disk; its name contains `purpose`.
    pub fn new(purpose: &str) -> Result<Self> {
        let base = match std::env::var_os("TMPDIR") {
            None if Path::new("/var/tmp").is_dir() => PathBuf::from("/var/tmp"),
            _ => std::env::temp_dir(),
        };
        Self::under(&base, purpose)
    }

    /// Makes a directory like [`Self::new`]. With `keep` the directory is not removed, and its path is printed.
    pub(crate) fn kept_if(keep: bool, purpose: &str) -> Result<Self> {
        let mut scratch = Self::new(purpose)?;
        scratch.keep = keep;
        if keep {
            live().remove(&scratch.path);
            println!("kept: {}", scratch.path.display());
        }
        Ok(scratch)
    }

    /// Makes a temporary directory in memory, for files that serve as devices.
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

    /// Path of the directory.
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
