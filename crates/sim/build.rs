//! Hashes the source of `evenkeel-control`. The seed of the set of drawn cases follows from the hash, so a controller
//! with changed constants is judged on a new set (`src/experiment/harm/constants.rs`).

#[path = "src/experiment/harm/fnv.rs"]
mod fnv;
#[path = "src/experiment/harm/source.rs"]
mod source;

use std::io;
use std::path::Path;

/// Adds the relative path and the text of every `.rs` file in a folder and its subfolders; `name` is the folder's relative path.
#[expect(clippy::disallowed_methods, reason = "a build script has files to read")]
fn read(folder: &Path, name: &str, files: &mut Vec<(String, String)>) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let Some(own) = path.file_name().and_then(|own| own.to_str()) else { continue };
        let name = if name.is_empty() { own.to_owned() } else { format!("{name}/{own}") };
        if path.is_dir() {
            read(&path, &name, files)?;
        } else if own.ends_with(".rs") {
            files.push((name, std::fs::read_to_string(&path)?));
        }
    }
    Ok(())
}

fn main() -> io::Result<()> {
    let control = Path::new(env!("CARGO_MANIFEST_DIR")).join("../control/src");
    let mut files = Vec::new();
    read(&control, "", &mut files)?;
    println!("cargo::rerun-if-changed={}", control.display());
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/experiment/harm/fnv.rs");
    println!("cargo::rerun-if-changed=src/experiment/harm/source.rs");
    println!("cargo::rustc-env=EVENKEEL_CONTROL_SOURCE={:016x}", source::hash(files));
    Ok(())
}
