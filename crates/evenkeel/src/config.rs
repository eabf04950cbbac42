//! `evenkeel config`: prints an example of the configuration, and JSON schemas.

use evenkeel_guard::loops::record;
use evenkeel_policy::{history, state};

use crate::output;

/// Commands on configurations.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Print a configuration that shows every key, commented
    Example,
    /// Print a JSON schema, for editors and other programs
    Schema {
        /// The document that it describes
        #[arg(value_enum, default_value_t = Document::Config)]
        of: Document,
    },
}

/// A document that has a schema.
#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum Document {
    /// A configuration
    Config,
    /// Its table `[agent]`
    Agent,
    /// `/api/v1/state` of a server
    State,
    /// `/api/v1/state` of an agent
    AgentState,
    /// `/api/v1/history` of both
    History,
}

/// Prints the example or the schema that `command` names.
///
/// # Errors
/// When the text cannot be written to standard output.
pub(crate) fn run(command: &Command) -> anyhow::Result<()> {
    let of = match command {
        Command::Example => return output::print(evenkeel_policy::EXAMPLE),
        Command::Schema { of } => of,
    };
    let schema = match of {
        Document::Config => evenkeel_policy::schema(),
        Document::Agent => evenkeel_guard::config::schema(),
        Document::State => state::schema(),
        Document::AgentState => record::schema(),
        Document::History => history::schema(),
    };
    output::print(&format!("{schema:#}\n"))
}
