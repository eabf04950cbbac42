//! Builds of the workspace with cargo.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::base::process;

/// Time limit of one build: far above the time of a first build of the whole workspace on two slow cores.
const BUILD_LIMIT: Duration = Duration::from_secs(40 * 60);

/// Environment variable with the path of the built test program `all` of the package `evenkeel-server`. A lab that runs one of
/// its tests builds it when the variable is not set, and waits for cargo's lock.
pub const SERVER_TESTS: &str = "EVENKEEL_SERVER_TESTS";

/// The cargo profile of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// The profile `dev`, for tests.
    Dev,
    /// The profile `release`, for measurements.
    Release,
}

/// Root of the workspace.
pub fn workspace() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).unwrap_or(manifest).to_owned()
}

/// The text of a page of the guide (`docs/guide`), by its name.
pub(crate) fn page(name: &str) -> Result<String> {
    page_at(&page_path(name))
}

/// The text of a documentation page, by its path in the workspace.
pub(crate) fn page_at(path: &str) -> Result<String> {
    let path = workspace().join(path);
    std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

fn page_path(name: &str) -> String {
    format!("docs/guide/{name}.md")
}

/// Overwrites the page of the guide (`docs/guide`) with this name.
pub(crate) fn write_page(name: &str, text: &str) -> Result<()> {
    let path = workspace().join(page_path(name));
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// A command that runs cargo in the workspace's root; it is the cargo that started this program.
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace()).env("CARGO_TERM_COLOR", "never");
    cargo
}

/// Builds the binary `name` of the workspace and returns its path.
pub fn binary(name: &str, profile: Profile) -> Result<PathBuf> {
    let mut command = cargo();
    command.args(["build", "--quiet", "--package", name, "--bin", name]);
    if profile == Profile::Release {
        command.arg("--release");
    }
    let (status, messages) = process::transcript(&mut command, BUILD_LIMIT)?;
    ensure!(status.success(), "cannot build {name}:\n{messages}");
    let dir = if profile == Profile::Release { "release" } else { "debug" };
    Ok(target_dir()?.join(dir).join(name))
}

/// Cargo's target directory: this program was built into `TARGET/debug`.
pub fn target_dir() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    Ok(own.ancestors().nth(2).context("this program is not in a target directory")?.to_owned())
}
