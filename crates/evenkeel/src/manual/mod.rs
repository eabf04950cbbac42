//! The manual: pages for `man`, examples in `--help`, completions, and the pages that `evenkeel help` searches.

use std::path::Path;

use anyhow::Context;
use clap::builder::PossibleValuesParser;
use clap::{Command, ValueHint};
use clap_complete::Shell;

use crate::output;

pub(crate) mod book;
mod commands;
pub(crate) mod keys;
#[cfg(test)]
mod tests;
mod troff;

/// Name of the page for `man` about the configuration file, in section 5.
const FILE_PAGE: &str = "evenkeel.toml";
/// A short configuration, as an example on the page evenkeel.toml(5).
const FILE_EXAMPLE: &str = r#"[pools.main]
limit = { iops = 5000 }

[tenants.database]
reservation = { iops = 2000 }
weight = 4

[tenants.backup]
priority = "background"

[volumes.database]
size = "10GiB"
[volumes.backup]
size = "20GiB"
"#;

/// `evenkeel completions`: prints the script by which `shell` completes command lines.
///
/// # Errors
/// When the script cannot be written to standard output.
pub(crate) fn completions(program: Command, shell: Shell) -> anyhow::Result<()> {
    output::print(&script(program, shell))
}

fn script(program: Command, shell: Shell) -> String {
    // A command needs names that last as long as the process.
    let program: &'static Command = Box::leak(Box::new(program));
    let names: Vec<&'static str> = visible(program).map(Command::get_name).collect();
    let offered = offered(program).version(env!("CARGO_PKG_VERSION")).propagate_version(true);
    let mut offered = offered.disable_help_subcommand(true).mut_subcommand("help", |help| {
        help.mut_arg("terms", |terms| terms.value_parser(PossibleValuesParser::new(names)))
    });
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut offered, program.get_name(), &mut script);
    with_names(shell, String::from_utf8_lossy(&script).into_owned())
}

/// The begin of the last lines of a script for zsh, which call the script's function or register it.
const ZSH_CALL: &str = "if [ \"$funcstack[1]\" = ";

/// `script` with a part that completes names of a running server's objects; as it is for shells without such a part.
fn with_names(shell: Shell, script: String) -> String {
    match shell {
        Shell::Bash => script + include_str!("names.bash"),
        Shell::Fish => script + include_str!("names.fish"),
        // The part replaces the function, so it comes before the first call.
        Shell::Zsh => {
            let (function, call) = script.split_at(script.rfind(ZSH_CALL).unwrap_or(script.len()));
            [function, include_str!("names.zsh"), call].concat()
        }
        _ => script,
    }
}

/// The command as completions offer it: without hidden subcommands, and with names of files only for options that take a path.
fn offered(command: &'static Command) -> Command {
    let args = command.get_arguments().map(|arg| {
        let takes_path = arg.get_value_hint() != ValueHint::Unknown;
        let is_free = arg.get_action().takes_values() && arg.get_possible_values().is_empty() && !takes_path;
        let arg = arg.clone();
        if is_free { arg.value_hint(ValueHint::Other) } else { arg }
    });
    let about = command.get_about().cloned().unwrap_or_default();
    Command::new(command.get_name()).about(about).args(args).subcommands(visible(command).map(offered))
}

/// `evenkeel manual`: writes `evenkeel.1`, `evenkeel-serve.1` and so on, and `evenkeel.toml.5` into `folder`.
///
/// # Errors
/// When a file cannot be written.
pub(crate) fn pages(program: Command, folder: &Path) -> anyhow::Result<()> {
    for (name, page) in rendered(program)? {
        let path = folder.join(name);
        std::fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// All pages for `man`, as pairs of file name and text in troff.
fn rendered(mut program: Command) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    program.build();
    let mut pages = Vec::new();
    add(&program, "", &mut pages).context("cannot render manual pages")?;
    let see = ["evenkeel-check(1)", "evenkeel-config(1)", "evenkeel-serve(1)", "evenkeel-guard-run(1)"];
    pages.push((format!("{FILE_PAGE}.5"), troff::file(&keys::keys(), &see.map(str::to_owned))));
    Ok(pages)
}

/// Appends to `pages` the pages of a command and of its subcommands. `path`: the command's words without `evenkeel`.
fn add(command: &Command, path: &str, pages: &mut Vec<(String, Vec<u8>)>) -> std::io::Result<()> {
    let facts = commands::of(path);
    // The command above it first.
    let parent = path.rsplit_once(' ').map_or("", |(parent, _)| parent);
    let parent = (!path.is_empty()).then(|| format!("{}(1)", page_name(parent)));
    let others = facts.see.iter().map(|page| (*page).to_owned());
    let see: Vec<String> = parent.iter().cloned().chain(others.filter(|page| Some(page) != parent.as_ref())).collect();
    pages.push((format!("{}.1", page_name(path)), troff::command(command, facts, &examples(command, path), &see)?));
    for below in visible(command) {
        add(below, &join(path, below.get_name()), pages)?;
    }
    Ok(())
}

/// Adds each command's examples to its `--help`.
pub(crate) fn with_examples(program: Command) -> Command {
    described(program, "")
}

fn described(command: Command, path: &str) -> Command {
    let examples = examples(&command, path);
    let width = examples.iter().map(|(line, _)| line.len()).max().unwrap_or(0);
    let beside = examples.iter().all(|(_, effect)| width + effect.len() + 4 <= COLUMNS);
    let shown = |(line, effect): &commands::Pair| match beside {
        true => format!("  {line:<width$}  {effect}"),
        false => format!("  {line}\n      {effect}"),
    };
    let lines: Vec<String> = examples.iter().map(shown).collect();
    let heading = if path.is_empty() { "First steps" } else { "Examples" };
    let examples = format!("{heading}:\n{}", lines.join("\n"));
    let help = match command.get_after_help() {
        Some(notes) => format!("{notes}\n\n{examples}"),
        None => examples,
    };
    let names: Vec<String> = visible(&command).map(|below| below.get_name().to_owned()).collect();
    let command = command.after_help(help);
    names.into_iter().fold(command, |command, name| {
        let path = join(path, &name);
        command.mut_subcommand(name, |below| described(below, &path))
    })
}

/// Width of a line in help texts, in columns; a longer example has its effect on the next line.
const COLUMNS: usize = 98;

/// The examples of a command, or if it has none, the first example of each subcommand. `path`: the command's words without
/// `evenkeel`.
fn examples(command: &Command, path: &str) -> Vec<commands::Pair> {
    match commands::of(path).examples {
        [] => visible(command).flat_map(|below| first(examples(below, &join(path, below.get_name())))).collect(),
        own => own.to_vec(),
    }
}

fn first(examples: Vec<commands::Pair>) -> Option<commands::Pair> {
    examples.first().copied()
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|command| !command.is_hide_set())
}

/// The words of a subcommand: `tenant` and `set` give `tenant set`.
fn join(path: &str, name: &str) -> String {
    format!("{path} {name}").trim_start().to_owned()
}

/// Name of a command's page for `man`: `tenant set` gives `evenkeel-tenant-set`.
fn page_name(path: &str) -> String {
    format!("evenkeel {path}").trim_end().replace(' ', "-")
}
