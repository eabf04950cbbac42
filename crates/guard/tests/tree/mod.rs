//! Builds a captured tree of files and symbolic links from a text.
//!
//! Each line is `PATH = CONTENT` (`\n` for a line end) or `PATH -> WHERE THE LINK LEADS`; `#` begins a remark. `@FILE` as
//! content means the content of this file in the folder of the text.

use std::fs;
use std::path::{Path, PathBuf};

use crate::folder::Folder;

/// A tree in a temporary folder, which is removed when this value is dropped.
pub(crate) struct Tree(Folder);

impl Tree {
    /// Builds the tree `tests/fixtures/NAME`.
    pub(crate) fn new(name: &str) -> Self {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let text = fs::read_to_string(fixtures.join(name)).expect("the fixture");
        let tree = Self(Folder::new());
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if let Some((path, target)) = line.split_once(" -> ") {
                let path = tree.place(path);
                std::os::unix::fs::symlink(target, path).expect("a link");
                continue;
            }
            let (path, content) = line.split_once(" =").expect("PATH = CONTENT");
            let content = content.trim_start();
            let content = match content.strip_prefix('@') {
                Some(file) => fs::read(fixtures.join(file)).expect("the fixture's file"),
                None => content.replace("\\n", "\n").replace("\\0", "\0").into_bytes(),
            };
            fs::write(tree.place(path), content).expect("a file");
        }
        tree
    }

    /// Root folder of the tree.
    pub(crate) fn root(&self) -> &Folder {
        &self.0
    }

    fn place(&self, path: &str) -> PathBuf {
        let path = self.0.join(path.trim());
        fs::create_dir_all(path.parent().expect("has a folder")).expect("a folder");
        path
    }
}
