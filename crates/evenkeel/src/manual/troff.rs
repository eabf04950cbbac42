//! Pages for `man` in troff: one for each command, from its parser and its facts, and `evenkeel.toml(5)`.

use clap::{Arg, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

use super::commands::{Facts, Pair};
use super::keys::Key;
use super::{FILE_PAGE, book};

/// Name of the manual in the headers and footers of the pages for `man`.
const MANUAL: &str = "Evenkeel";
/// Beginnings of the lines that define an apostrophe in troff. Each part that `clap_mangen` renders begins with these lines.
const PREAMBLE: [&str; 2] = [".ie \\n(.g .ds Aq", ".el .ds Aq"];

fn source() -> String {
    format!("Evenkeel {}", env!("CARGO_PKG_VERSION"))
}

/// The page of a command. `see`: names of the related pages for `man`.
pub(super) fn command(command: &Command, facts: &Facts, examples: &[Pair], see: &[String]) -> std::io::Result<Vec<u8>> {
    let man = Man::new(command.clone()).source(source()).manual(MANUAL);
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    let mut usage = Roff::new();
    usage.control("SH", ["SYNOPSIS"]);
    usage.text(synopsis(command));
    page.extend(usage.to_roff().into_bytes());
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.get_subcommands().any(|command| !command.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    let mut rest = Roff::new();
    if let Some(notes) = command.get_after_long_help().or(command.get_after_help()) {
        rest.control("SH", ["NOTES"]);
        paragraphs(&mut rest, &notes.to_string());
    }
    pairs(&mut rest, "FILES", facts.files);
    pairs(&mut rest, "EXIT STATUS", facts.status);
    shown(&mut rest, examples);
    related(&mut rest, see, facts.pages);
    page.extend(rest.to_roff().into_bytes());
    Ok(once(&page))
}

/// The command's synopsis: its name, its options with their values, and then its arguments.
fn synopsis(command: &Command) -> Vec<Inline> {
    let mut args: Vec<&Arg> = command.get_arguments().filter(|arg| !arg.is_hide_set()).collect();
    args.sort_by_key(|arg| arg.is_positional());
    let mut line = vec![bold(command.get_bin_name().unwrap_or(command.get_name()))];
    for arg in args {
        let text = arg.to_string();
        let (open, close) = if arg.is_required_set() || arg.is_positional() { ("", "") } else { ("[", "]") };
        line.push(roman(format!(" {open}")));
        match text.split_once(' ') {
            _ if arg.is_positional() => line.push(italic(text.as_str())),
            Some((option, value)) => line.extend([bold(option), roman(" "), italic(value)]),
            None => line.push(bold(text.as_str())),
        }
        line.push(roman(close));
    }
    if command.get_subcommands().any(|command| !command.is_hide_set()) {
        line.extend([roman(" "), italic("<command>")]);
    }
    line
}

/// `page` with the lines of [`PREAMBLE`] only at its start, and not before every part.
fn once(page: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(page);
    let is_preamble = |line: &str| PREAMBLE.iter().any(|begin| line.starts_with(begin));
    let lines = text.lines().enumerate().filter(|(at, line)| *at < PREAMBLE.len() || !is_preamble(line));
    lines.flat_map(|(_, line)| [line.as_bytes(), b"\n"].concat()).collect()
}

/// The page about the configuration file, with an entry for each of `keys`. `see`: names of the related pages for `man`.
pub(super) fn file(keys: &[Key], see: &[String]) -> Vec<u8> {
    let mut page = Roff::new();
    page.control("TH", [FILE_PAGE, "5", "", source().as_str(), MANUAL]);
    page.control("SH", ["NAME"]);
    page.text([roman("evenkeel.toml - QoS policy, and settings of evenkeel serve and evenkeel guard")]);
    page.control("SH", ["SYNOPSIS"]);
    for (index, line) in SYNOPSIS.iter().enumerate() {
        if index > 0 {
            page.control("br", []);
        }
        page.text([bold(*line)]);
    }
    page.control("SH", ["DESCRIPTION"]);
    paragraphs(&mut page, DESCRIPTION);
    pairs(&mut page, "UNITS", UNITS);
    let mut heading = "";
    for key in keys {
        let (table, name) = place(&key.path);
        if table != std::mem::replace(&mut heading, table) {
            let title = if table.is_empty() { "BEFORE ALL TABLES".to_owned() } else { format!("TABLE [{table}]") };
            page.control("SH", [title.as_str()]);
        }
        match name {
            "" => paragraphs(&mut page, &key.meaning),
            name => entry(&mut page, name, key),
        }
    }
    pairs(&mut page, "FILES", FILES);
    pairs(&mut page, "EXIT STATUS", STATUS);
    page.control("SH", ["EXAMPLES"]);
    code(&mut page, super::FILE_EXAMPLE);
    related(&mut page, see, &["reference/config.md", "reference/check.md", "guide/serve.md", "guide/guard.md"]);
    let mut bytes = Vec::new();
    // Writing into memory does not fail.
    let _ = page.to_writer(&mut bytes);
    bytes
}

const SYNOPSIS: [&str; 3] = [
    "evenkeel serve --config evenkeel.toml",
    "evenkeel guard run --config evenkeel.toml",
    "evenkeel check evenkeel.toml",
];
const DESCRIPTION: &str = "\
A TOML file with the policy ([tenants], [pools]) and the tables of a host: [server] and [volumes] for evenkeel serve, \
[agent] for evenkeel guard, [cluster] for both. All hosts may have the same file.

evenkeel config example and evenkeel guard config example print every key with its default. evenkeel check FILE prints \
every error with line, key and cure, and the enforcement point of each setting on this host.

NAME stands for the name of a pool, tenant or volume: 1 to 64 letters, digits, '.', '_' or '-', a letter or digit first. \
Behind a key are its type and its default; a key without a default is not set.";
const UNITS: &[Pair] = &[
    ("bytes", "4096, \"64KiB\" = \"64K\" (1024 each), \"200MB\" (1000 each)"),
    ("time", "\"500us\", \"50ms\", \"2s\", \"5m\", \"1h\", \"1d\"; always with a unit"),
    ("rates", "{ iops = 5000, bytes_per_s = \"200MB\" }; both apply, a missing one or 0 is not set"),
];
const FILES: &[Pair] = &[
    ("/etc/evenkeel/evenkeel.toml", "read by the package's evenkeel.service"),
    ("/etc/evenkeel/guard.toml", "read by the package's evenkeel-guard.service"),
    ("/usr/share/doc/evenkeel/examples", "every key, explained: evenkeel.toml, guard.toml"),
];
const STATUS: &[Pair] = &[
    ("1", "of evenkeel serve and evenkeel check: the file cannot be used; standard error has line, key and cure"),
    ("78", "of evenkeel guard run: the file cannot be used, or has nothing to enforce"),
];

/// The table that contains the key `path`, and the key's name in that table. The name is empty if `path` is a table itself.
fn place(path: &str) -> (&str, &str) {
    let table = path.split('.').next().unwrap_or(path);
    let rest = &path[table.len()..];
    match rest.strip_prefix(".NAME.") {
        Some(name) => (&path[..table.len() + ".NAME".len()], name),
        None if rest.is_empty() && table == "policy" => ("", table),
        None if rest.is_empty() => (table, ""),
        None => (table, &rest[1..]),
    }
}

fn entry(page: &mut Roff, name: &str, key: &Key) {
    page.control("TP", []);
    page.text([bold(name), roman("  "), italic(key.facts())]);
    page.text(inlines(&key.meaning));
    if !key.values.is_empty() {
        page.control("RS", []);
        for (value, meaning) in &key.values {
            page.control("TP", []);
            page.text([bold(value)]);
            page.text(inlines(meaning));
        }
        page.control("RE", []);
    }
}

/// `text` for troff, with bold in place of backticks around code.
fn inlines(text: &str) -> Vec<Inline> {
    let pieces = text.split('`').enumerate();
    pieces.map(|(at, piece)| if at % 2 == 1 { bold(piece) } else { roman(piece) }).collect()
}

/// Appends the paragraphs of `text`, which empty lines separate, to the page.
fn paragraphs(page: &mut Roff, text: &str) {
    for (at, paragraph) in text.split("\n\n").enumerate() {
        if at > 0 {
            page.control("PP", []);
        }
        page.text(inlines(&paragraph.replace('\n', " ")));
    }
}

fn pairs(page: &mut Roff, heading: &str, pairs: &[Pair]) {
    if pairs.is_empty() {
        return;
    }
    page.control("SH", [heading]);
    for (name, meaning) in pairs {
        page.control("TP", []);
        page.text([bold(*name)]);
        page.text([roman(*meaning)]);
    }
}

fn shown(page: &mut Roff, examples: &[Pair]) {
    page.control("SH", ["EXAMPLES"]);
    for (at, (line, effect)) in examples.iter().enumerate() {
        if at > 0 {
            page.control("PP", []);
        }
        page.text([roman(format!("{}:", capital(effect)))]);
        code(page, line);
    }
}

/// `text` with its first letter as a capital.
fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// Appends the lines of `text` to the page, indented and without filling.
fn code(page: &mut Roff, text: &str) {
    page.control("PP", []).control("RS", ["4"]).control("nf", []);
    for line in text.lines() {
        page.text([roman(line)]);
    }
    page.control("fi", []).control("RE", []);
}

fn related(page: &mut Roff, see: &[String], pages: &[&str]) {
    page.control("SH", ["SEE ALSO"]);
    let mut line = Vec::new();
    for (at, page) in see.iter().enumerate() {
        let (name, section) = page.split_once('(').unwrap_or((page, ""));
        let end = if at + 1 < see.len() { ", " } else { "" };
        line.extend([bold(name), roman(format!("({section}{end}"))]);
    }
    if !see.is_empty() {
        page.text(line).control("PP", []);
    }
    page.text([roman("Pages of the manual, which "), bold("evenkeel help"), roman(" searches:")]);
    for path in pages {
        page.control("br", []);
        page.text([italic(format!("{}/{path}", book::FOLDER))]);
    }
}
