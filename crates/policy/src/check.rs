//! TOML text to configuration: every error at once, each with file, line, key and cure.
//!
//! Serde stops at the first error. To find them all, the entry at fault is taken out
//! of the parsed document and reading starts again, until nothing is wrong. What
//! remains is checked against the rules that no type expresses.

use std::fmt;
use std::ops::Range;
use std::path::Path;

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::config::Config;
use crate::rules::{self, Severity, closest};

/// A larger configuration is a mistake; the bound keeps reading it cheap.
pub const MAX_TEXT_BYTES: usize = 1 << 20;
/// More errors than these help nobody.
const MAX_ERRORS: usize = 100;

/// Something wrong or doubtful in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file, or what else the text came from.
    pub origin: String,
    /// Line and column, both from 1; `None` if the text does not mention what is wrong.
    pub position: Option<(usize, usize)>,
    /// The key at fault, dotted from the outermost table inward; empty if there is none.
    pub key: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.origin)?;
        if let Some((line, column)) = self.position {
            write!(f, ":{line}:{column}")?;
        }
        if !self.key.is_empty() {
            write!(f, ": {}", self.key)?;
        }
        write!(f, ": {}", self.message)
    }
}

/// Why a configuration cannot be used: at least one problem, in the order of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errors(pub Vec<Problem>);

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().enumerate() {
            write!(f, "{}{problem}", if i == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for Errors {}

/// All there is to say about a text.
#[derive(Clone, Debug)]
pub struct Report {
    /// The configuration; complete only if there are no errors.
    pub config: Config,
    /// What keeps it from being used.
    pub errors: Vec<Problem>,
    /// What is doubtful.
    pub warnings: Vec<Problem>,
    /// Whether the text has a table of volumes; if not, the default volume stands there.
    pub has_volumes: bool,
}

impl Report {
    /// The report, if its configuration can be used.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn into_result(self) -> Result<Self, Errors> {
        if self.errors.is_empty() { Ok(self) } else { Err(Errors(self.errors)) }
    }

    fn failed(errors: Vec<Problem>) -> Self {
        Self { config: Config::default(), errors, warnings: Vec::new(), has_volumes: false }
    }
}

impl Config {
    /// Reads a configuration; `origin` names the text in errors.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn parse(text: &str, origin: &str) -> Result<Self, Errors> {
        check(text, origin).into_result().map(|report| report.config)
    }

    /// Checks a configuration that was put together or changed by program; answers with warnings.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn validate(&self, origin: &str) -> Result<Vec<Problem>, Errors> {
        let (errors, warnings) = judge(self, |_| None, origin);
        if errors.is_empty() { Ok(warnings) } else { Err(Errors(errors)) }
    }
}

/// Reads a file and says all there is to say about it; a file that cannot be read is one error.
pub fn check_file(path: &Path) -> Report {
    let origin = path.display().to_string();
    match std::fs::read_to_string(path) {
        Ok(text) => check(&text, &origin),
        Err(error) => {
            let message = format!("cannot read the configuration: {error}");
            Report::failed(vec![Problem { origin, position: None, key: String::new(), message }])
        }
    }
}

/// Reads a text and says all there is to say about it.
pub fn check(text: &str, origin: &str) -> Report {
    let place = |range: Option<Range<usize>>| range.map(|range| line_and_column(text, range.start));
    if text.len() > MAX_TEXT_BYTES {
        let message = format!("is larger than {MAX_TEXT_BYTES} bytes; is this the right file?");
        let error = Problem { origin: origin.into(), position: None, key: String::new(), message };
        return Report::failed(vec![error]);
    }
    let (mut document, syntax) = DeTable::parse_recoverable(text);
    let whole = document.clone();
    let mut errors: Vec<Problem> = syntax
        .iter()
        .take(MAX_ERRORS)
        .map(|error| Problem {
            origin: origin.into(),
            position: place(error.span()),
            key: String::new(),
            message: one_line(error.message()),
        })
        .collect();
    let mut config = loop {
        let error = match Config::deserialize(toml::Deserializer::from(document.clone())) {
            Ok(config) => break config,
            Err(error) => error,
        };
        let at_fault = error.span().and_then(|span| locate(document.get_ref(), &span));
        let key = at_fault.as_ref().map(|path| path.join(".")).unwrap_or_default();
        let position = place(error.span());
        errors.push(Problem { origin: origin.into(), position, key, message: explain(error.message()) });
        let removed = at_fault.is_some_and(|path| remove(document.get_mut(), &path));
        if !removed || errors.len() > MAX_ERRORS {
            return Report::failed(errors);
        }
    };
    config.complete();
    let (more, warnings) = judge(&config, |path| place(span_of(whole.get_ref(), path)), origin);
    errors.extend(more);
    errors.sort_by_key(|problem| problem.position);
    errors.dedup();
    let has_volumes = whole.get_ref().contains_key("volumes");
    Report { config, errors, warnings, has_volumes }
}

/// Applies the rules; `place` finds a key in the text.
fn judge(
    config: &Config,
    place: impl Fn(&[String]) -> Option<(usize, usize)>,
    origin: &str,
) -> (Vec<Problem>, Vec<Problem>) {
    let (mut errors, mut warnings) = (Vec::new(), Vec::new());
    for finding in rules::findings(config) {
        let position = place(&finding.path);
        let problem =
            Problem { origin: origin.into(), position, key: finding.path.join("."), message: finding.message };
        match finding.severity {
            Severity::Error => errors.push(problem),
            Severity::Warning => warnings.push(problem),
        }
    }
    (errors, warnings)
}

/// The path to the smallest entry whose key or value covers `span`.
fn locate(table: &DeTable<'_>, span: &Range<usize>) -> Option<Vec<String>> {
    fn visit(
        table: &DeTable<'_>,
        span: &Range<usize>,
        path: &mut Vec<String>,
        best: &mut Option<(usize, Vec<String>)>,
    ) {
        for (key, value) in table {
            path.push(key.get_ref().to_string());
            for range in [key.span(), value.span()] {
                let covers = range.start <= span.start && span.end <= range.end;
                // Of equals the inner one: a dotted key gives its table and its value the same span.
                if covers && best.as_ref().is_none_or(|(length, _)| range.len() <= *length) {
                    *best = Some((range.len(), path.clone()));
                }
            }
            if let DeValue::Table(inner) = value.get_ref() {
                visit(inner, span, path, best);
            }
            path.pop();
        }
    }
    let mut best = None;
    visit(table, span, &mut Vec::new(), &mut best);
    best.map(|(_, path)| path)
}

/// Takes an entry out of the document; tells whether it was there.
fn remove(table: &mut DeTable<'_>, path: &[String]) -> bool {
    let Some((first, rest)) = path.split_first() else { return false };
    if rest.is_empty() {
        return table.remove(first.as_str()).is_some();
    }
    match table.get_mut(first.as_str()).map(Spanned::get_mut) {
        Some(DeValue::Table(inner)) => remove(inner, rest),
        _ => false,
    }
}

/// Where the text mentions a key: the key itself, or the innermost table around it that is mentioned.
fn span_of(table: &DeTable<'_>, path: &[String]) -> Option<Range<usize>> {
    let (first, rest) = path.split_first()?;
    let (key, value) = table.get_key_value(first.as_str())?;
    match value.get_ref() {
        DeValue::Table(inner) => span_of(inner, rest).or_else(|| Some(key.span())),
        _ => Some(key.span()),
    }
}

/// Line and column of a byte offset, both from 1, columns in characters.
fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

fn one_line(message: &str) -> String {
    message.lines().map(str::trim).collect::<Vec<_>>().join("; ")
}

/// Adds to what serde says what would be right.
fn explain(message: &str) -> String {
    let message = one_line(message);
    let words: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let Some((&wrong, known)) = words.split_first() else {
        return match message.as_str() {
            "invalid socket address syntax" => {
                "not an address with port; write for example \"127.0.0.1:10809\" or \"[::1]:10809\"".into()
            }
            _ => message,
        };
    };
    let what = match message.split('`').next().map(str::trim) {
        Some("unknown field") => "unknown key",
        Some("unknown variant") => "unknown value",
        _ => return message,
    };
    let list = known.join(", ");
    match closest(wrong, known) {
        Some(close) => format!("{what} {wrong:?}; did you mean {close:?}? (known: {list})"),
        None => format!("{what} {wrong:?}; known: {list}"),
    }
}
