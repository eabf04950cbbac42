//! `evenkeel config`: check, explain and describe configurations.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::bail;
use evenkeel_policy::check::{Report, check_file_with, check_with};
use evenkeel_policy::config::Backend;
use evenkeel_policy::{Config, Finding, Severity};

use crate::output;

/// What to do with configurations.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Check a configuration file; every error with line, key and cure
    ///
    /// Checks without touching devices or a running server, but for a look at the free space. Exit status 1 if a server would refuse the file.
    Check {
        /// The file; "-" reads standard input
        file: PathBuf,
        /// Take warnings for errors
        #[arg(long)]
        strict: bool,
    },
    /// Print a configuration that shows every key, commented
    Example,
    /// Print the JSON schema of the configuration, for editors and other programs
    Schema,
}

/// Runs the command.
///
/// # Errors
/// A configuration that a server would refuse.
pub(crate) fn run(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Check { file, strict } => report(&read(file)?, *strict),
        Command::Example => {
            output::print(evenkeel_policy::EXAMPLE);
            Ok(())
        }
        Command::Schema => {
            output::print(&format!("{:#}\n", evenkeel_policy::schema()));
            Ok(())
        }
    }
}

fn read(file: &Path) -> io::Result<Report> {
    if file.as_os_str() != "-" {
        return Ok(check_file_with(file, room));
    }
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    Ok(check_with(&text, "<stdin>", room))
}

/// Volumes for whose files there is not enough room.
fn room(config: &Config) -> Vec<Finding> {
    let files = config.volumes.iter().filter(|(_, volume)| volume.backend == Backend::File);
    let found = files.filter_map(|(name, volume)| {
        let message = evenkeel_server::shortage(&config.path_of(name, volume)?, volume.size?.0)?;
        let path = ["volumes", name, "size"].map(str::to_owned).into();
        Some(Finding { severity: Severity::Warning, path, message })
    });
    found.collect()
}

fn report(report: &Report, strict: bool) -> anyhow::Result<()> {
    for error in &report.errors {
        eprintln!("error: {error}");
    }
    for warning in &report.warnings {
        eprintln!("warning: {warning}");
    }
    let (errors, warnings) = (report.errors.len(), report.warnings.len());
    if errors > 0 || (strict && warnings > 0) {
        bail!("the configuration cannot be used as it is ({errors} errors, {warnings} warnings)");
    }
    let config = &report.config;
    output::print(&format!(
        "usable: {} pools, {} tenants, {} volumes, {warnings} warnings\n",
        config.pools.len(),
        config.tenants.len(),
        config.volumes.len()
    ));
    Ok(())
}
