//! Temporary folders for tests.

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A temporary folder, removed when the value is dropped.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

/// An empty folder for the test of this name, which no other test of the program has. The path is short, as that of a socket in
/// it may have 107 bytes.
pub(crate) fn folder(test: &str) -> Folder {
    let path = std::env::temp_dir().join(format!("ek-{test}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).expect("a scratch folder");
    Folder(path)
}

#[allow(dead_code, reason = "not every test program uses all")]
impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        folder(&NEXT.fetch_add(1, Ordering::Relaxed).to_string())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file, and makes the folders on the way to it; returns its path.
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(&path, content).expect("written");
        path
    }

    /// Makes a folder, and those on the way to it; returns its path.
    pub(crate) fn dir(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(&path).expect("a folder");
        path
    }

    /// Makes a symbolic link to `target` in this folder, and the folders on the way to the link.
    pub(crate) fn link(&self, name: &str, target: &str) {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::os::unix::fs::symlink(self.0.join(target), path).expect("a link");
    }
}

impl Deref for Folder {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
