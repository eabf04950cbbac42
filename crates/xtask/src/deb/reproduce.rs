//! Whether the same sources give the same package, wherever they are.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use evenkeel_labs::base::build;
use evenkeel_labs::base::process;
use evenkeel_labs::base::scratch::Scratch;

use super::{Target, release};

/// Builds a copy of the sources in a folder of another name and compares its package with `first`.
pub(super) fn compare(
    target: Target,
    first: &Path,
    package: impl Fn(&Path, &Path, &Path) -> Result<PathBuf>,
) -> Result<bool> {
    let scratch = Scratch::new("reproduce")?;
    let sources = scratch.path().join("sources-elsewhere");
    copy(&build::workspace(), &sources)?;
    let binary = release(target, &sources, &scratch.path().join("built"))?;
    let second = package(&binary, &sources, scratch.path())?;
    let same = std::fs::read(first)? == std::fs::read(&second)?;
    for file in [first, &second] {
        print!("{}", process::output(process::program("sha256sum").arg(file))?);
    }
    println!("{}", if same { "reproducible: both are the same" } else { "NOT reproducible: they differ" });
    Ok(same)
}

/// Every file that git knows of.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let list = process::output(Command::new("git").args(["ls-files", "-z"]).current_dir(from))?;
    for name in list.split('\0').filter(|name| !name.is_empty()) {
        let (source, copy) = (from.join(name), to.join(name));
        std::fs::create_dir_all(copy.parent().context("a file is in a folder")?)?;
        std::fs::copy(&source, &copy).with_context(|| format!("cannot copy {}", source.display()))?;
    }
    Ok(())
}
