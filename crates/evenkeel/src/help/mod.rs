//! `evenkeel help`: prints the help of a command, a page of the manual, or the manual's entries about a term.

use std::ffi::OsString;

use anyhow::{anyhow, bail};
use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::manual::book::{FOLDER, PAGES};
use crate::output;

mod search;
#[cfg(test)]
mod tests;

use search::{Found, Kind};

/// The term, command or page, and the form of the answer.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A command, or the words to look up: a term, a key, a metric
    #[arg(value_name = "TERM")]
    terms: Vec<String>,
    /// Look the words up even if they name a command
    #[arg(long, short, requires = "terms")]
    search: bool,
    /// Print a whole page of the manual: serve, guide/serve, glossary
    #[arg(long, value_name = "PAGE", conflicts_with_all = ["terms", "json"])]
    page: Option<String>,
    /// Print the search results as JSON
    #[arg(long, requires = "terms")]
    json: bool,
}

/// Runs `evenkeel help`. `program` is the parser of all commands.
///
/// # Errors
/// When the manual lacks the page that `args` names, or has nothing about the words.
pub(crate) fn run(args: &Args, mut program: Command) -> anyhow::Result<()> {
    if let Some(name) = &args.page {
        return output::print(page(name)?);
    }
    if !args.search && !args.json && is_command(&program, &args.terms) {
        let words = [program.get_name().to_owned()].into_iter().chain(args.terms.iter().cloned());
        let shown = program.try_get_matches_from_mut(words.chain(["--help".to_owned()]));
        return shown.err().map_or(Ok(()), |help| output::unless_closed(help.print()));
    }
    let words = args.terms.join(" ");
    let found = search::search(&words, &program);
    if args.json || !found.rows.is_empty() {
        output::show(args.json, &found, text)?;
    }
    if found.rows.is_empty() {
        let cure = match found.suggestions.as_slice() {
            [] => "try a single word, or see `evenkeel help --page glossary`".to_owned(),
            names => format!("did you mean {}?", names.join(", ")),
        };
        bail!("the manual has no command, term, key, metric or page for {words:?}; {cure}");
    }
    Ok(())
}

/// The words of a command line, with `help` moved in front of the command it follows: `tenant help set` becomes `help
/// tenant set`.
pub(crate) fn in_front(mut words: Vec<OsString>, program: &Command) -> Vec<OsString> {
    let mut command = program;
    for at in 1..words.len() {
        if words[at] == "help" && at > 1 && command.has_subcommands() {
            let help = words.remove(at);
            words.insert(1, help);
            break;
        }
        let Some(below) = command.find_subcommand(&words[at]) else { break };
        command = below;
    }
    words
}

/// Commands that users of other programs try but Evenkeel lacks, each with a hint at the Evenkeel command for the purpose.
const HINTS: &[(&str, &str)] = &[
    ("config check", "`evenkeel check FILE` checks a configuration"),
    ("guard check", "`evenkeel check FILE` checks a configuration"),
];

/// Adds the hint from [`HINTS`] to the parser's error about a command that does not exist. The hint replaces the parser's
/// suggestion of a command with a similar name. Other errors stay as they are.
pub(crate) fn hinted(mut error: clap::Error, words: &[OsString]) -> clap::Error {
    let line = words.iter().skip(1).map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let is = |name: &str| line.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '));
    if error.kind() == ErrorKind::InvalidSubcommand
        && let Some((_, hint)) = HINTS.iter().find(|(name, _)| is(name))
    {
        error.remove(ContextKind::SuggestedSubcommand);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![(*hint).into()]));
    }
    error
}

/// True if the words name a command of `program`; an empty list names the program itself.
fn is_command(program: &Command, words: &[String]) -> bool {
    words.iter().try_fold(program, |command, word| command.find_subcommand(word)).is_some()
}

/// The text of the manual's page that `name` gives by its path or the last part of its path; an error if there is none.
fn page(name: &str) -> anyhow::Result<&'static str> {
    let wanted = name.split('#').next().unwrap_or(name).to_lowercase();
    let wanted =
        [FOLDER, "/", "./", "docs/"].iter().fold(&*wanted, |name, start| name.strip_prefix(start).unwrap_or(name));
    let wanted = wanted.trim_end_matches(".md");
    let names: Vec<String> = PAGES.iter().map(|page| page.path.trim_end_matches(".md").to_lowercase()).collect();
    let last = |name: &str| name.rsplit('/').next().unwrap_or_default().to_owned();
    let found = names.iter().position(|name| name == wanted).or(names.iter().position(|name| last(name) == wanted));
    found.map(|at| PAGES[at].text).ok_or_else(|| {
        let names: Vec<&str> = PAGES.iter().map(|page| page.path.trim_end_matches(".md")).collect();
        anyhow!("the manual has no page {name:?}; its pages are {}", names.join(", "))
    })
}

/// The results of a search as text, by kind and each kind under a heading: terms first, then commands, keys, metrics and
/// sections of pages.
fn text(found: &Found) -> String {
    let mut text = String::new();
    for (kind, heading) in [
        (Kind::Term, "glossary"),
        (Kind::Command, "commands"),
        (Kind::Key, "keys of evenkeel.toml"),
        (Kind::Metric, "metrics"),
        (Kind::Section, "pages"),
    ] {
        let rows: Vec<_> = found.rows.iter().filter(|row| row.kind == kind).collect();
        if rows.is_empty() {
            continue;
        }
        text += &format!("{}{heading}\n", if text.is_empty() { "" } else { "\n" });
        for row in rows {
            text += &match kind {
                Kind::Section => format!("  {}: {}\n      {}\n", row.place, row.name, row.text),
                _ => format!("  {}: {}\n", row.name, row.text),
            };
            if !row.see.is_empty() {
                text += &format!("      see {}\n", row.see.join(", "));
            }
        }
    }
    let place = found.rows.iter().find(|row| row.kind == Kind::Section).map_or("glossary.md", |row| row.place);
    let place = place.trim_end_matches(".md");
    text + &format!("\na whole page: evenkeel help --page {place} (the package has all in {FOLDER})\n")
}
