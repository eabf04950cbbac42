//! `evenkeel config`: explain and describe configurations.

use crate::output;

/// Commands on configurations.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Print a configuration that shows every key, commented
    Example,
    /// Print the JSON schema of the configuration, for editors and other programs
    Schema,
}

/// Runs the command.
///
/// # Errors
/// None; it has the form of every other command.
pub(crate) fn run(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Example => output::print(evenkeel_policy::EXAMPLE),
        Command::Schema => output::print(&format!("{:#}\n", evenkeel_policy::schema())),
    }
    Ok(())
}
