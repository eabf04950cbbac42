//! Generated parts of the page about the command line: the table of commands and the list of global options, from the parser.

use clap::{Arg, Command, CommandFactory};

use super::{Block, phrase, table};

const PAGE: &str = "docs/reference/cli.md";

/// The visible commands below `command` that have no subcommands; `command` itself if it has none.
fn leaves(command: &Command) -> Vec<&Command> {
    let shown = command.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help");
    let leaves: Vec<&Command> = shown.flat_map(leaves).collect();
    if leaves.is_empty() { vec![command] } else { leaves }
}

fn row(command: &Command) -> Vec<String> {
    let usage = command.clone().render_usage().to_string();
    let usage = usage
        .lines()
        .next()
        .unwrap_or_default()
        .trim_start_matches("Usage: evenkeel ")
        .replace("[OPTIONS] ", "")
        .replace(" [OPTIONS]", "");
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let about = about.split(':').next().unwrap_or_default();
    vec![format!("`{}`", usage.replace('|', "\\|")), phrase(about)]
}

fn option(option: &Arg) -> Option<String> {
    let value = option.get_value_names().filter(|_| option.get_action().takes_values());
    let value = value.map_or_else(String::new, |names| format!(" <{}>", names[0]));
    let env = option.get_env().map_or_else(String::new, |name| format!(", `{}`", name.to_string_lossy()));
    let default: Vec<_> = option.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    let help = phrase(&option.get_help()?.to_string());
    Some(format!("- `--{}{value}`{env} (`{}`): {help}\n", option.get_long()?, default.join(" ")))
}

pub(super) fn blocks() -> Vec<Block> {
    let mut program = crate::Cli::command();
    program.build();
    let commands = table(&["after `evenkeel`", "does"], leaves(&program).into_iter().map(row));
    let options: String = program.get_arguments().filter(|option| option.is_global_set()).filter_map(option).collect();
    let block = |name, text: String| Block { page: PAGE, name, text: text.trim_end().into() };
    vec![block("commands", commands), block("options", options)]
}
