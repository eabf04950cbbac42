//! `evenkeel config`: check, explain and describe configurations.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::bail;
use evenkeel_policy::check::{Report, check_file_with, check_with};
use evenkeel_policy::config::Backend;
use evenkeel_policy::{Config, Finding, Severity};
use evenkeel_server::Inspected;

use crate::{output, serve};

/// What to do with configurations.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Check a configuration file; every error with line, key and cure
    ///
    /// Checks without touching devices or a running server, but for a look at the free space and at the files of volumes that
    /// are there already. Exit status 1 if a server would refuse the file.
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
        return Ok(check_file_with(file, |config| files(config, Some(file))));
    }
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    Ok(check_with(&text, "<stdin>", |config| files(config, None)))
}

/// What is to be said about the files of volumes on this machine: what they hold, and whether there is room for them. `file`:
/// that of the configuration.
fn files(config: &Config, file: Option<&Path>) -> Vec<Finding> {
    let at = |name: &str, key: &str| ["volumes", name, key].map(str::to_owned).into();
    let on_files = config.volumes.iter().filter(|(_, volume)| volume.backend == Backend::File);
    let mut found: Vec<Finding> = on_files
        .filter_map(|(name, volume)| {
            let message = evenkeel_server::shortage(&config.path_of(name, volume)?, volume.size?.0)?;
            Some(Finding { severity: Severity::Warning, path: at(name, "size"), message })
        })
        .collect();
    let own = serve::own_files(file, &config.server.data_dir);
    // Another user's record cannot be read, and what is not known cannot be told from what is foreign.
    let inspected = evenkeel_server::inspect(&Arc::new(config.clone()), &own).unwrap_or_default();
    // The server may run in another folder, with a record there by which a file is its own to lengthen.
    let elsewhere = config.server.data_dir.is_relative() && !config.server.data_dir.exists();
    found.extend(inspected.into_iter().map(|Inspected { volume, key, said }| {
        let certain = said.is_err() && !(elsewhere && key == "size");
        let severity = if certain { Severity::Error } else { Severity::Warning };
        let message = said.unwrap_or_else(|error| error.to_string());
        let prefix = format!("volume {volume}: ");
        let message = message.strip_prefix(&prefix).map(str::to_owned).unwrap_or(message);
        Finding { severity, path: at(&volume, key), message }
    }));
    found
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
