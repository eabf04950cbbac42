//! Search in the manual: in the glossary, commands, keys, metrics and sections of pages. Of each kind the best results come
//! first.

use std::cmp::Reverse;

use clap::Command;
use evenkeel_web::Description;
use serde::Serialize;

use crate::manual::book::{self, GLOSSARY, PAGES, Section, Term};
use crate::manual::keys::{self, Key};

/// Upper bound on the terms of the glossary among the results.
const TERMS: usize = 2;
/// Upper bound on the commands among the results.
const COMMANDS: usize = 2;
/// Upper bound on the keys of the configuration among the results.
const KEYS: usize = 3;
/// Upper bound on the metrics among the results.
const METRICS: usize = 2;
/// Upper bound on all results; sections of pages get the places that the other kinds leave empty, at most [`SECTIONS`].
const ROWS: usize = 12;
/// Upper bound on the sections of pages among the results.
const SECTIONS: usize = 5;
/// Upper bound on the sections of one and the same page among the results.
const SECTIONS_OF_A_PAGE: usize = 2;
/// Upper bound on the similar names that are suggested if nothing is found.
const SUGGESTIONS: usize = 3;
/// Upper bound on the text that a result quotes from a section, in characters.
const EXTRACT: usize = 180;

/// The results of a search.
#[derive(Serialize)]
pub(super) struct Found {
    words: String,
    pub(super) rows: Vec<Row>,
    /// Names in the manual that are similar to the searched words; empty if there are results.
    pub(super) suggestions: Vec<String>,
}

/// A result of a search: a place in the manual.
#[derive(Serialize)]
pub(super) struct Row {
    pub(super) kind: Kind,
    /// The term, command, key or metric that was found, or the heading of the section.
    pub(super) name: String,
    /// The meaning of `name`; for a section, its sentence that contains most of the searched words.
    pub(super) text: String,
    /// Path of the page with the result, relative to `docs/` and to the folder of the installed manual; or `README.md`.
    pub(super) place: &'static str,
    /// For a term: related keys, metrics and pages.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) see: Vec<String>,
}

/// The kind of a search result.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    Term,
    Command,
    Key,
    Metric,
    Section,
}

/// The searched words in lower case: as one phrase with blanks between the words, and as a list.
struct Query {
    phrase: String,
    words: Vec<String>,
}

/// Endings that a searched word may have in a text and still count as found.
const ENDINGS: [&str; 7] = ["", "s", "es", "d", "ed", "ing", "r"];

impl Query {
    fn new(words: &str) -> Self {
        let phrase = folded(words).split_whitespace().collect::<Vec<_>>().join(" ");
        Self { words: phrase.split(' ').map(str::to_owned).collect(), phrase }
    }

    /// Number of occurrences of the whole phrase in `text`; 1 if `text` lacks the phrase but has all of its words, in any order.
    fn count(&self, text: &str) -> usize {
        let text = folded(text);
        match occurrences(&text, &self.phrase) {
            0 => usize::from(self.words.len() > 1 && self.words.iter().all(|word| occurrences(&text, word) > 0)),
            count => count,
        }
    }

    fn is_in(&self, text: &str) -> bool {
        self.count(text) > 0
    }

    fn is(&self, text: &str) -> bool {
        folded(text) == self.phrase
    }

    /// Number of the searched words that `text` contains, plus one if `text` contains the whole phrase.
    fn share(&self, text: &str) -> usize {
        let text = folded(text);
        let words = self.words.iter().filter(|word| occurrences(&text, word) > 0).count();
        words + usize::from(occurrences(&text, &self.phrase) > 0)
    }
}

/// `text` in lower case, with a blank in place of each hyphen, underscore, backtick and bracket; the length does not change.
fn folded(text: &str) -> String {
    let letter = |c: char| if matches!(c, '-' | '_' | '`' | '[' | ']') { ' ' } else { c.to_ascii_lowercase() };
    text.chars().map(letter).collect()
}

/// Number of occurrences of `phrase` in `text` as whole words, whose last one may have one of [`ENDINGS`].
fn occurrences(text: &str, phrase: &str) -> usize {
    if phrase.is_empty() {
        return 0;
    }
    let is_whole = |(at, found): (usize, &str)| {
        let begins = !text[..at].ends_with(char::is_alphanumeric);
        let rest = &text[at + found.len()..];
        let ending = rest.find(|c: char| !c.is_alphanumeric()).map_or(rest, |end| &rest[..end]);
        begins && ENDINGS.contains(&ending)
    };
    text.match_indices(phrase).filter(|found| is_whole(*found)).count()
}

/// Searches the manual for words. A plural is searched for as the singular if only the latter is a term of the glossary.
pub(super) fn search(words: &str, program: &Command) -> Found {
    let words = words.trim();
    let (query, singular) = (Query::new(words), Query::new(words.strip_suffix('s').unwrap_or(words)));
    let names: Vec<String> = book::terms().into_iter().flat_map(|term| term.names).collect();
    let names_a_term = |query: &Query| names.iter().any(|name| query.is(name));
    let query = if names_a_term(&singular) && !names_a_term(&query) { singular } else { query };
    let rows = rows(&query, program);
    let suggestions = if rows.is_empty() { similar(words, program) } else { Vec::new() };
    Found { words: words.to_owned(), rows, suggestions }
}

fn rows(query: &Query, program: &Command) -> Vec<Row> {
    let terms = book::terms();
    let named: Vec<&Term> = terms.iter().filter(|term| term.names.iter().any(|name| query.is(name))).collect();
    let mut rows = best(terms.iter().map(|term| (score_of_term(query, term), term)), TERMS, row_of_term);
    let commands = commands(program);
    let score = |(name, about): &(String, String)| {
        if query.is(name) { 3 } else { 2 * usize::from(query.is_in(name)) + usize::from(query.is_in(about)) }
    };
    rows.extend(best(commands.iter().map(|command| (score(command), command)), COMMANDS, row_of_command));
    let mut keys = keys::keys();
    // Those of the policy before those of one pool.
    keys.sort_by_key(|key| key.path.matches('.').count());
    rows.extend(best(keys.iter().map(|key| (score_of_key(query, &named, key), key)), KEYS, row_of_key));
    let metrics = book::metrics();
    let score = |metric: &Description| {
        let linked = named.iter().any(|term| term.codes.contains(&&*metric.name));
        8 * usize::from(query.is(&metric.name))
            + 4 * usize::from(linked)
            + 2 * usize::from(query.is_in(&metric.name))
            + usize::from(query.is_in(metric.help))
    };
    rows.extend(best(metrics.iter().map(|metric| (score(metric), metric)), METRICS, row_of_metric));
    let room = ROWS.saturating_sub(rows.len()).min(SECTIONS);
    rows.extend(sections(query, &named, room));
    rows
}

/// The rows of the items with the highest scores, at most `most`. Items with equal scores keep their order; items with score
/// 0 are left out.
fn best<'a, T: 'a>(scored: impl Iterator<Item = (usize, &'a T)>, most: usize, row: impl Fn(&'a T) -> Row) -> Vec<Row> {
    let mut scored: Vec<_> = scored.filter(|(score, _)| *score > 0).collect();
    scored.sort_by_key(|(score, _)| Reverse(*score));
    scored.into_iter().take(most).map(|(_, item)| row(item)).collect()
}

fn score_of_term(query: &Query, term: &Term) -> usize {
    let is = term.names.iter().any(|name| query.is(name));
    let named = term.names.iter().any(|name| query.is_in(name));
    4 * usize::from(is) + 2 * usize::from(named) + usize::from(query.is_in(&term.meaning))
}

fn row_of_term(term: &Term) -> Row {
    let links = term.links.iter().map(|link| (*link).to_owned());
    let see = term.codes.iter().map(|code| (*code).to_owned()).chain(links).collect();
    Row { kind: Kind::Term, name: term.names.join(", "), text: term.meaning.clone(), place: GLOSSARY, see }
}

/// Names of all commands that are not hidden, each with the first sentence of its help.
fn commands(program: &Command) -> Vec<(String, String)> {
    fn add(command: &Command, name: &str, commands: &mut Vec<(String, String)>) {
        for below in command.get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = format!("{name} {}", below.get_name());
            add(below, &name, commands);
            commands.push((name, below.get_about().map(ToString::to_string).unwrap_or_default()));
        }
    }
    let mut commands = Vec::new();
    add(program, program.get_name(), &mut commands);
    commands
}

fn row_of_command((name, about): &(String, String)) -> Row {
    Row { kind: Kind::Command, name: name.clone(), text: about.clone(), place: "README.md", see: Vec::new() }
}

fn score_of_key(query: &Query, named: &[&Term], key: &Key) -> usize {
    let last = key.path.rsplit('.').next().unwrap_or_default();
    let linked = named.iter().flat_map(|term| &term.codes).any(|code| is_path(&key.path, code));
    16 * usize::from(is_path(&key.path, &query.phrase.replace(' ', "_")))
        + 8 * usize::from(query.is(last))
        + 4 * usize::from(linked)
        + 2 * usize::from(query.is_in(&key.path.replace('.', " ")))
        + usize::from(query.is_in(&key.meaning))
}

/// True if `written` names the key `path`. In `written` any name may stand for `NAME` in `path`, and brackets around a table
/// or a value after ` = ` do not matter.
fn is_path(path: &str, written: &str) -> bool {
    let written = written.split(" = ").next().unwrap_or(written).trim_matches(['[', ']']);
    let (parts, names) = (path.split('.'), written.split('.'));
    written.contains('.')
        && parts.clone().count() == names.clone().count()
        && parts.zip(names).all(|(part, name)| part == "NAME" || part == name)
}

fn row_of_key(key: &Key) -> Row {
    let text = format!("{} ({})", key.meaning, key.facts());
    Row { kind: Kind::Key, name: key.path.clone(), text, place: "reference/config.md", see: Vec::new() }
}

fn row_of_metric(metric: &Description) -> Row {
    let facts = [&[metric.kind], metric.labels].concat().join(", ");
    let (name, text) = (metric.name.clone(), format!("{} ({facts})", metric.help));
    Row { kind: Kind::Metric, name, text, place: book::METRICS, see: Vec::new() }
}

/// The best sections of the manual's pages, at most `most`: first those to which the glossary's entry of the term links, then
/// those whose heading is the phrase, then those with the words in heading or title, then those with most occurrences of the
/// words in sentences.
fn sections(query: &Query, named: &[&Term], most: usize) -> Vec<Row> {
    let pages = PAGES.iter().filter(|page| page.path != GLOSSARY);
    let all = pages.flat_map(book::sections).map(|section| (score_of_section(query, named, &section), section));
    let mut scored: Vec<_> = all.filter(|(score, _)| *score > 0).collect();
    scored.sort_by_key(|(score, _)| Reverse(*score));
    let mut rows: Vec<Row> = Vec::new();
    for (_, section) in scored {
        let of_page = rows.iter().filter(|row| row.place == section.page).count();
        if rows.len() < most && of_page < SECTIONS_OF_A_PAGE {
            rows.push(Row {
                kind: Kind::Section,
                name: section.heading.replace('`', ""),
                text: extract(query, &section),
                place: section.page,
                see: Vec::new(),
            });
        }
    }
    rows
}

fn score_of_section(query: &Query, named: &[&Term], section: &Section) -> usize {
    let links = |link: &&str| {
        let (page, anchor) = link.split_once('#').unwrap_or((link, ""));
        page == section.page && if anchor.is_empty() { section.is_first() } else { anchor == section.anchor() }
    };
    let often = section.sentences().map(|sentence| query.count(&sentence)).sum::<usize>();
    2000 * usize::from(named.iter().flat_map(|term| &term.links).any(links))
        + 1000 * usize::from(query.is(section.heading))
        + 300 * usize::from(query.is_in(section.heading))
        + 100 * usize::from(section.is_first() && query.is_in(section.title))
        + 2 * often.min(50)
        + usize::from(section.code().any(|line| query.is_in(line)))
}

/// The sentence of `section` that contains most of the searched words, shortened to about [`EXTRACT`] characters around them; the
/// first sentence if none contains any.
fn extract(query: &Query, section: &Section) -> String {
    let sentences: Vec<String> = section.sentences().chain(section.code().map(str::to_owned)).collect();
    let best = sentences.iter().rev().max_by_key(|sentence| query.share(sentence));
    let sentence = best.map_or("", String::as_str);
    let length = sentence.chars().count();
    if length <= EXTRACT {
        return sentence.to_owned();
    }
    let at = folded(sentence).find(query.words.first().map_or("", String::as_str)).unwrap_or(0);
    let before = sentence[..at].chars().count();
    let skipped = before.saturating_sub(EXTRACT / 2).min(length - EXTRACT);
    // Begins with a whole word.
    let blank = |at: usize| sentence.chars().skip(at).position(|c| c == ' ').map_or(0, |blank| blank + 1);
    let skipped = if skipped == 0 { 0 } else { skipped + blank(skipped) };
    let middle: String = sentence.chars().skip(skipped).take(EXTRACT).collect();
    let (begin, end) = (if skipped > 0 { "… " } else { "" }, if skipped + EXTRACT < length { " …" } else { "" });
    let whole = if end.is_empty() { &*middle } else { middle.rsplit_once(' ').map_or(&*middle, |(whole, _)| whole) };
    format!("{begin}{whole}{end}")
}

/// Names in the manual (terms, commands, keys, metrics, headings) that differ from `words` in a few letters only.
fn similar(words: &str, program: &Command) -> Vec<String> {
    let commands = commands(program).into_iter().filter_map(|(name, _)| Some(name.split_once(' ')?.1.to_owned()));
    let keys = keys::keys().into_iter().filter_map(|key| key.path.rsplit('.').next().map(str::to_owned));
    let metrics = book::metrics().into_iter().map(|metric| metric.name);
    let headings = PAGES.iter().flat_map(book::sections).map(|section| section.heading.replace('`', ""));
    let terms = book::terms().into_iter().flat_map(|term| term.names);
    let mut names: Vec<String> = terms.chain(commands).chain(keys).chain(metrics).chain(headings).collect();
    names.sort_by_key(|name| folded(name));
    names.dedup_by_key(|name| folded(name));
    let all: Vec<String> = names.iter().map(|name| folded(name)).collect();
    let mut known: Vec<&str> = all.iter().map(String::as_str).collect();
    let mut similar = Vec::new();
    while let Some(name) = evenkeel_policy::closest(&folded(words), &known).filter(|_| similar.len() < SUGGESTIONS) {
        known.retain(|other| *other != name);
        similar.extend(all.iter().position(|other| other == name).map(|at| names[at].clone()));
    }
    similar
}
