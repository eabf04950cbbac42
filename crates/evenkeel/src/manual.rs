//! Manual pages and completions, from the same description that the command line is parsed by.

use std::path::Path;

use anyhow::Context;
use clap::Command;
use clap_complete::Shell;

use crate::output;

/// `evenkeel completions`: prints them.
///
/// # Errors
/// None; it has the form of every other command.
pub(crate) fn completions(mut program: Command, shell: Shell) -> anyhow::Result<()> {
    let name = program.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut program, name, &mut script);
    output::print(&String::from_utf8_lossy(&script));
    Ok(())
}

/// `evenkeel manual`: writes `evenkeel.1`, `evenkeel-serve.1` and so on into `folder`.
///
/// # Errors
/// When a file cannot be written.
pub(crate) fn pages(program: Command, folder: &Path) -> anyhow::Result<()> {
    clap_mangen::generate_to(program, folder)
        .with_context(|| format!("cannot write manual pages into {}", folder.display()))
}
