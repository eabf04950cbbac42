//! Reads typed values from TOML. All errors are reported at once, each with origin, line, key and remedy.
//!
//! Serde stops at the first error. To find all errors, the faulty entry is removed from the parsed document and reading starts
//! again, until there is no error.

use std::borrow::Cow;
use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use crate::names::closest;
use crate::problem::Problem;
use crate::source::{POLICY, Source, Text};

/// Largest text that is read, in bytes. A larger one is surely a mistake; the bound keeps reading cheap.
pub const MAX_TEXT_BYTES: usize = 1 << 20;
/// The most errors that are reported; more do not help the user.
pub(crate) const MAX_ERRORS: usize = 100;

/// A parsed TOML text that knows the place of each of its values.
///
/// Keys are paths from the outermost table inward; an element of an array is named by its index, from 0.
#[derive(Clone, Debug)]
pub struct Document<'t> {
    text: &'t str,
    origin: &'t str,
    root: Spanned<DeTable<'t>>,
    /// The policy file that belongs to the text. Spans of its values begin at [`BESIDE`].
    policy: Option<&'t Text>,
    /// Assignments made after parsing. The span of an assigned value is at the text's length plus one plus the assignment's
    /// index in this list.
    assigned: Vec<&'t str>,
}

/// Offset that is added to spans of the policy file. Every such span is larger than a span of the text or of an assignment, which
/// shows its source.
const BESIDE: usize = 1 << 40;

/// Keys that determine the kind of their table. Entries of a table of another kind do not fit it.
pub const SELF_NAMING: [&str; 2] = ["kind", "preset"];

fn lay_over<'t>(below: &mut DeTable<'t>, above: &DeTable<'t>) {
    for (key, value) in above {
        // Out first: a map keeps the key it has, and with it the old place.
        let mut value = value.clone();
        if let (Some(before), DeValue::Table(table)) = (below.remove(key.get_ref().as_ref()), value.get_mut())
            && let DeValue::Table(mut before) = before.into_inner()
            && !SELF_NAMING.iter().any(|name| table.contains_key(*name))
        {
            lay_over(&mut before, table);
            *table = before;
        }
        below.insert(key.clone(), value);
    }
}

impl<'t> Document<'t> {
    /// Parses `text`. Parts that cannot be parsed are left out and reported. `origin` names the text in errors.
    pub fn parse(text: &'t str, origin: &'t str) -> (Self, Vec<Problem>) {
        if text.len() > MAX_TEXT_BYTES {
            let message = format!("is larger than {MAX_TEXT_BYTES} bytes; is this the right file?");
            let problem = Problem { origin: origin.into(), position: None, key: String::new(), message };
            let root = Spanned::new(0..0, DeTable::default());
            return (Self { text: "", origin, root, policy: None, assigned: Vec::new() }, vec![problem]);
        }
        let (root, errors) = DeTable::parse_recoverable(text);
        let document = Self { text, origin, root, policy: None, assigned: Vec::new() };
        let mut problems = Vec::new();
        // The second part of a table that stands twice: its keys may then stand twice as well, which says nothing new.
        let mut doubled = 0..0;
        for error in errors.iter().take(MAX_ERRORS) {
            let span = error.span().filter(|_| error.message() == "duplicate key");
            let message = match span.and_then(|span| Some((span.start, text.get(span)?))) {
                Some((start, _)) if doubled.contains(&start) => continue,
                Some((start, key)) => match repeated_header(text, start) {
                    Some((header, first)) => {
                        doubled = start..text[start..].find("\n[").map_or(text.len(), |length| start + length);
                        format!("{header} is in line {first} already; merge the two tables")
                    }
                    None => format!("{key:?} is here twice; keep one of them"),
                },
                None => of_syntax(error.message()),
            };
            problems.push(document.problem(error.span(), String::new(), message));
        }
        (document, problems)
    }

    /// Parses a host's text as [`Document::parse`] does, together with the policy file that it names.
    pub fn of(source: &'t Source) -> (Self, Vec<Problem>) {
        let (mut document, mut problems) = Self::parse(&source.host.text, &source.host.origin);
        let Some(policy) = &source.policy else {
            if document.has(&["policy"]) {
                problems
                    .push(document.complain(&["policy"], "names a policy file, but this configuration was not read from a file; write [tenants] and [pools] here"));
            }
            return (document, problems);
        };
        let (beside, more) = Self::parse(&policy.text, &policy.origin);
        problems.extend(more);
        document.policy = Some(policy);
        for (key, mut value) in beside.root.into_inner() {
            mark(&mut value, &shifted);
            let (name, span) = (key.get_ref().to_string(), shifted(key.span()));
            if !POLICY.contains(&name.as_str()) {
                let message = "belongs in the configuration of each host: a policy file has only [tenants] and [pools]";
                problems.push(document.problem(Some(span), name, message.into()));
                continue;
            }
            let known = document.root.get_mut().get_mut(name.as_str());
            let (Some(known), true) = (known.and_then(|known| as_table(known)), value.get_ref().is_table()) else {
                document.root.get_mut().insert(Spanned::new(span, key.into_inner()), value);
                continue;
            };
            let DeValue::Table(added) = value.into_inner() else { continue };
            let mut twice = Vec::new();
            for (key, value) in added {
                if known.contains_key(key.get_ref().as_ref()) {
                    twice.push((key.span(), dotted(&[name.as_str(), key.get_ref()])));
                } else {
                    known.insert(key, value);
                }
            }
            let message = format!("is in {} as well; keep one of them", document.origin);
            problems.extend(twice.into_iter().map(|(span, key)| document.problem(Some(span), key, message.clone())));
        }
        (document, problems)
    }

    /// Replaces or adds a value by an assignment such as `pool.tuning.admission="none"` or `client.0.workload.queue_depth=32`.
    ///
    /// A value that is not valid TOML counts as a string, so that `duration=5s` needs no quotes.
    ///
    /// # Errors
    /// The fault of the assignment, and the remedy.
    pub fn assign(&mut self, assignment: &'t str) -> Result<(), Problem> {
        let fault = |key: &str, message: String| Problem {
            origin: origin_of(assignment),
            position: None,
            key: key.to_owned(),
            message,
        };
        let Some((key, value)) = assignment.split_once('=') else {
            return Err(fault("", "is not an assignment; write KEY=VALUE, for example duration=5s".into()));
        };
        let (key, value) = (key.trim(), value.trim());
        let path = path_of(key).ok_or_else(|| {
            fault(key, "is not a key; write it as in the file, with dots: tenants.light.weight, client.0.from".into())
        })?;
        let mut value = match DeValue::parse(value) {
            Ok(parsed) => parsed,
            Err(_) => Spanned::new(0..0, DeValue::String(Cow::Borrowed(value))),
        };
        let place = self.text.len() + 1 + self.assigned.len();
        mark(&mut value, &|_| place..place);
        self.assigned.push(assignment);
        put(self.root.get_mut(), &path, value, place).map_err(|message| fault(key, message))
    }

    /// Reads the whole document as a `T`.
    ///
    /// # Errors
    /// Every entry of the document that does not fit a `T`. The value is read without these entries; `None` if that is not
    /// possible.
    pub fn read<T: DeserializeOwned>(&self) -> (Option<T>, Vec<Problem>) {
        self.read_table(self.root.clone(), &[])
    }

    /// Reads several tables, given by their paths, as one `T`: an entry of a later table replaces the entry of the same name of
    /// an earlier one. Nested tables are merged in the same way, unless the later one has a key of [`SELF_NAMING`].
    ///
    /// # Errors
    /// As [`Document::read`]. Keys in errors are those of the last table.
    pub fn read_layers<T: DeserializeOwned>(&self, layers: &[&[&str]]) -> (Option<T>, Vec<Problem>) {
        let mut merged = DeTable::default();
        layers.iter().filter_map(|path| self.table(path)).for_each(|layer| lay_over(&mut merged, layer));
        let last = layers.last().copied().unwrap_or_default();
        self.read_table(Spanned::new(self.span(last).unwrap_or(0..0), merged), last)
    }

    /// A problem about the key at `path`, with the place at which the text mentions the key.
    pub fn complain(&self, path: &[&str], message: impl Into<String>) -> Problem {
        self.problem(self.span(path), dotted(path), message.into())
    }

    /// The value of a key outside of all tables, if it is a string.
    pub(crate) fn text_of(&self, key: &str) -> Option<&str> {
        self.root.get_ref().get(key)?.get_ref().as_str()
    }

    /// True if the document has the key at `path`.
    pub fn has(&self, path: &[&str]) -> bool {
        let Some((last, table)) = path.split_last() else { return true };
        self.table(table).is_some_and(|table| table.contains_key(*last))
    }

    fn read_table<T: DeserializeOwned>(
        &self,
        mut table: Spanned<DeTable<'t>>,
        prefix: &[&str],
    ) -> (Option<T>, Vec<Problem>) {
        let (mut problems, mut removed) = (Vec::new(), Vec::<Vec<String>>::new());
        loop {
            let error = match T::deserialize(toml::Deserializer::from(table.clone())) {
                Ok(value) => return (Some(value), problems),
                Err(error) => error,
            };
            if let Some(missing) = error.message().strip_prefix("missing field ") {
                let inner = error.span().filter(|span| *span != table.span());
                let inner = inner.and_then(|span| locate(table.get_ref(), &span)).unwrap_or_default();
                let own = [&inner[..], &[missing.trim_matches('`').to_owned()]].concat();
                // That an entry is missing which was wrong says nothing new.
                if !removed.contains(&own) {
                    let key = prefix.iter().copied().chain(inner.iter().map(String::as_str));
                    let key = dotted(&key.collect::<Vec<_>>());
                    problems.push(self.problem(error.span(), key, format!("the key {missing} is missing")));
                }
                // Without that table the others are read.
                let is_removed = is_table(table.get_ref(), &inner) && remove(table.get_mut(), &inner);
                if !is_removed || problems.len() > MAX_ERRORS {
                    return (None, problems);
                }
                removed.push(inner);
                continue;
            }
            let mut at_fault = error.span().and_then(|span| locate(table.get_ref(), &span)).unwrap_or_default();
            let (mut span, mut message) = (error.span(), error.message());
            while let Some((key, rest)) = named(message)
                && at_fault.last().is_none_or(|last| last != key)
                && let Some((of_key, of_value)) = within(table.get_ref(), &at_fault, key)
            {
                (span, message) = (Some(if rest == message { of_key } else { of_value }), rest);
                at_fault.push(key.to_owned());
            }
            let key = prefix.iter().copied().chain(at_fault.iter().map(String::as_str));
            let key = dotted(&key.collect::<Vec<_>>());
            let mut message = explain(message);
            if error.message() == NO_ADDRESS
                && let Some(said) = span.clone().and_then(|span| self.text.get(span))
            {
                message = format!("{} is {message}", one_line(said));
            }
            problems.push(self.problem(span, key, message));
            let of_list = error.span().is_some_and(|span| remove_from_list(table.get_mut(), &at_fault, &span));
            let is_removed = of_list || remove(table.get_mut(), &at_fault);
            if !is_removed || problems.len() > MAX_ERRORS {
                return (None, problems);
            }
            removed.push(at_fault);
        }
    }

    fn problem(&self, span: Option<Range<usize>>, key: String, message: String) -> Problem {
        if let (Some(policy), Some(start)) =
            (self.policy, span.as_ref().and_then(|span| span.start.checked_sub(BESIDE)))
        {
            let position = Some(line_and_column(&policy.text, start));
            return Problem { origin: policy.origin.clone(), position, key, message };
        }
        let assigned = span.as_ref().and_then(|span| span.start.checked_sub(self.text.len() + 1));
        match assigned.and_then(|place| self.assigned.get(place)) {
            Some(assignment) => Problem { origin: origin_of(assignment), position: None, key, message },
            None => {
                let position = span.map(|span| line_and_column(self.text, span.start));
                Problem { origin: self.origin.into(), position, key, message }
            }
        }
    }

    fn table(&self, path: &[&str]) -> Option<&DeTable<'t>> {
        let mut table = self.root.get_ref();
        let mut rest = path;
        while let Some((first, more)) = rest.split_first() {
            let value = table.get(*first)?.get_ref();
            (table, rest) = match (value, more.split_first()) {
                (DeValue::Array(array), Some((place, more))) => {
                    (array.get(place.parse::<usize>().ok()?)?.get_ref().as_table()?, more)
                }
                (value, _) => (value.as_table()?, more),
            };
        }
        Some(table)
    }

    fn span(&self, path: &[&str]) -> Option<Range<usize>> {
        span_of(self.root.get_ref(), path)
    }
}

/// A path as one dotted key, in which names are quoted where TOML requires it.
pub(crate) fn dotted(path: &[impl AsRef<str>]) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    let part = |part: &str| match part {
        "" => "\"\"".to_owned(),
        _ if part.chars().all(is_bare) => part.to_owned(),
        _ => format!("{part:?}"),
    };
    path.iter().map(|name| part(name.as_ref())).collect::<Vec<_>>().join(".")
}

/// The origin by which errors name an assignment.
fn origin_of(assignment: &str) -> String {
    format!("--set {assignment}")
}

/// The parts of a dotted key, read as TOML reads it.
fn path_of(key: &str) -> Option<Vec<String>> {
    let text = format!("{key} = 0");
    let document = DeTable::parse(&text).ok()?;
    let (mut path, mut table) = (Vec::new(), document.get_ref());
    loop {
        let [(key, value)] = table.iter().collect::<Vec<_>>()[..] else { return None };
        path.push(key.get_ref().to_string());
        match value.get_ref() {
            DeValue::Table(inner) => table = inner,
            DeValue::Integer(_) => return Some(path),
            _ => return None,
        }
    }
}

/// Replaces the span of a value, and of every value within it, by the span that `place` computes.
fn mark(value: &mut Spanned<DeValue<'_>>, place: &impl Fn(Range<usize>) -> Range<usize>) {
    match value.get_mut() {
        DeValue::Array(array) => array.iter_mut().for_each(|element| mark(element, place)),
        DeValue::Table(table) => {
            let marked = std::mem::take(table).into_iter().map(|(key, mut value)| {
                mark(&mut value, place);
                (Spanned::new(place(key.span()), key.into_inner()), value)
            });
            *table = marked.collect();
        }
        _ => {}
    }
    let inner = std::mem::replace(value.get_mut(), DeValue::Boolean(false));
    *value = Spanned::new(place(value.span()), inner);
}

fn as_table<'v, 't>(value: &'v mut Spanned<DeValue<'t>>) -> Option<&'v mut DeTable<'t>> {
    if let DeValue::Table(table) = value.get_mut() { Some(table) } else { None }
}

fn shifted(span: Range<usize>) -> Range<usize> {
    BESIDE + span.start..BESIDE + span.end
}

/// Puts a value at a path, and makes missing tables on the way.
fn put<'t>(table: &mut DeTable<'t>, path: &[String], value: Spanned<DeValue<'t>>, place: usize) -> Result<(), String> {
    let Some((first, rest)) = path.split_first() else { return Ok(()) };
    let key = Spanned::new(place..place, Cow::Owned(first.clone()));
    if rest.is_empty() {
        // Out first: a map keeps the key it has, and with it the old place.
        table.remove(first.as_str());
        table.insert(key, value);
        return Ok(());
    }
    if !table.contains_key(first.as_str()) {
        table.insert(key, Spanned::new(place..place, DeValue::Table(DeTable::default())));
    }
    match table.get_mut(first.as_str()).map(Spanned::get_mut) {
        Some(DeValue::Table(inner)) => put(inner, rest, value, place),
        Some(DeValue::Array(array)) => put_in_array(array, first, rest, value, place),
        Some(other) => Err(format!(
            "{first} is a {}, not a table, so it has no {:?}; set {first} itself",
            other.type_str(),
            rest[0]
        )),
        None => Ok(()),
    }
}

fn put_in_array<'t>(
    array: &mut DeArray<'t>,
    name: &str,
    rest: &[String],
    value: Spanned<DeValue<'t>>,
    place: usize,
) -> Result<(), String> {
    let count = array.len();
    let element = rest[0].parse::<usize>().ok().and_then(|index| array.get_mut(index));
    match (element, &rest[1..]) {
        (Some(element), []) => *element = value,
        (Some(element), inner) => match element.get_mut() {
            DeValue::Table(table) => return put(table, inner, value, place),
            other => {
                let (at, kind) = (format!("{name}.{}", rest[0]), other.type_str());
                return Err(format!("{at} is a {kind}, not a table; set {at} itself"));
            }
        },
        (None, _) if count == 0 => return Err(format!("{name} has no elements; set {name} as a whole")),
        (None, _) => {
            let last = count - 1;
            return Err(format!("{name} has the elements 0 to {last}; write {name}.0, not {name}.{}", rest[0]));
        }
    }
    Ok(())
}

/// The path to the smallest entry whose key or value covers `span`.
fn locate(table: &DeTable<'_>, span: &Range<usize>) -> Option<Vec<String>> {
    type Best = Option<(usize, Vec<String>)>;
    fn consider(range: &Range<usize>, span: &Range<usize>, path: &[String], best: &mut Best) {
        let covers = range.start <= span.start && span.end <= range.end;
        // Of equals the inner one: a dotted key gives its table and its value the same span.
        if covers && best.as_ref().is_none_or(|(length, _)| range.len() <= *length) {
            *best = Some((range.len(), path.to_vec()));
        }
    }
    fn value_of(value: &DeValue<'_>, span: &Range<usize>, path: &mut Vec<String>, best: &mut Best) {
        match value {
            DeValue::Table(inner) => visit(inner, span, path, best),
            DeValue::Array(array) => {
                for (index, element) in array.iter().enumerate() {
                    path.push(index.to_string());
                    if let DeValue::Table(inner) = element.get_ref() {
                        consider(&element.span(), span, path, best);
                        visit(inner, span, path, best);
                    }
                    path.pop();
                }
            }
            _ => {}
        }
    }
    fn visit(table: &DeTable<'_>, span: &Range<usize>, path: &mut Vec<String>, best: &mut Best) {
        for (key, value) in table {
            path.push(key.get_ref().to_string());
            for range in [key.span(), value.span()] {
                consider(&range, span, path, best);
            }
            value_of(value.get_ref(), span, path, best);
            path.pop();
        }
    }
    let mut best = None;
    visit(table, span, &mut Vec::new(), &mut best);
    best.map(|(_, path)| path)
}

/// The key that a message of serde names, and the fault. An error in a table that was read as a whole has the span of the table;
/// its message begins with the key.
fn named(message: &str) -> Option<(&str, &str)> {
    match message.strip_prefix("unknown field `") {
        Some(rest) => rest.split_once('`').map(|(key, _)| (key, message)),
        None => message.split_once(": "),
    }
}

/// The spans of a key and of its value in the table at a path.
fn within(table: &DeTable<'_>, path: &[String], key: &str) -> Option<(Range<usize>, Range<usize>)> {
    match path.split_first() {
        Some((first, rest)) => within(table.get(first.as_str())?.get_ref().as_table()?, rest, key),
        None => table.get_key_value(key).map(|(key, value)| (key.span(), value.span())),
    }
}

/// True if a path leads to a table that is in no list.
fn is_table(table: &DeTable<'_>, path: &[String]) -> bool {
    let Some((first, rest)) = path.split_first() else { return true };
    let inner = table.get(first.as_str()).and_then(|value| value.get_ref().as_table());
    inner.is_some_and(|inner| is_table(inner, rest))
}

/// Removes the entry with this span from the list at a path. True if an entry was removed and the list still has others.
fn remove_from_list(table: &mut DeTable<'_>, path: &[String], span: &Range<usize>) -> bool {
    let Some((first, rest)) = path.split_first() else { return false };
    let Some(value) = table.get_mut(first.as_str()) else { return false };
    let around = value.span();
    match value.get_mut() {
        DeValue::Table(inner) => remove_from_list(inner, rest, span),
        // All of an assigned value has one span.
        DeValue::Array(array) if rest.is_empty() && around != *span => {
            let all = array.len();
            let entries = std::mem::replace(array, DeArray::new());
            *array = entries.into_iter().filter(|entry| entry.span() != *span).collect();
            (1..all).contains(&array.len())
        }
        _ => false,
    }
}

/// Removes the entry at a path from the document. True if the entry existed.
fn remove(table: &mut DeTable<'_>, path: &[String]) -> bool {
    let Some((first, rest)) = path.split_first() else { return false };
    if rest.is_empty() {
        return table.remove(first.as_str()).is_some();
    }
    match table.get_mut(first.as_str()).map(Spanned::get_mut) {
        Some(DeValue::Table(inner)) => remove(inner, rest),
        Some(DeValue::Array(array)) => {
            let element = rest[0].parse::<usize>().ok().and_then(|index| array.get_mut(index));
            match element.map(Spanned::get_mut) {
                // An element as a whole stays: without it the places of the others would change.
                Some(DeValue::Table(inner)) => remove(inner, &rest[1..]),
                _ => false,
            }
        }
        _ => false,
    }
}

/// The span at which the text mentions a key: the key's own span, or that of the innermost table around it that the text
/// mentions.
fn span_of(table: &DeTable<'_>, path: &[&str]) -> Option<Range<usize>> {
    let (first, rest) = path.split_first()?;
    let (key, value) = table.get_key_value(*first)?;
    let inner = match (value.get_ref(), rest.split_first()) {
        (DeValue::Table(inner), _) => span_of(inner, rest),
        (DeValue::Array(array), Some((place, rest))) => {
            let element = place.parse::<usize>().ok().and_then(|index| array.get(index));
            element.map(|element| {
                let inner = element.get_ref().as_table().and_then(|table| span_of(table, rest));
                inner.unwrap_or_else(|| element.span())
            })
        }
        _ => None,
    };
    inner.or_else(|| Some(key.span()))
}

/// Line and column of a byte offset, both from 1, columns in characters.
fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// The table header, with brackets, in the line at a byte offset, and the number of an earlier line with the same header. `None`
/// unless a header is repeated.
fn repeated_header(text: &str, offset: usize) -> Option<(&str, usize)> {
    fn header(line: &str) -> Option<&str> {
        let line = line.trim_start();
        let end = line.find(']').filter(|_| line.starts_with('['))?;
        Some(&line[..=end])
    }
    let (line, _) = line_and_column(text, offset);
    let own = header(text.lines().nth(line - 1)?)?;
    let first = 1 + text.lines().position(|other| header(other) == Some(own))?;
    (first < line).then_some((own, first))
}

/// Message of the standard library about a text that is no socket address (address with port).
const NO_ADDRESS: &str = "invalid socket address syntax";

/// A message of the TOML parser about the syntax, in plain words where the parser's need knowledge of TOML.
fn of_syntax(message: &str) -> String {
    match one_line(message).as_str() {
        "invalid basic string, expected `\"`" => "this text has no closing quote (\")".into(),
        "invalid key-value pair, expected key" => "a key is missing here; write KEY = VALUE".into(),
        "string values must be quoted, expected literal string" => {
            "this value is neither a number nor true or false; write text in quotes".into()
        }
        other => other.into(),
    }
}

fn one_line(message: &str) -> String {
    message.lines().map(str::trim).collect::<Vec<_>>().join("; ")
}

/// A message of serde, extended by the remedy.
pub fn explain(message: &str) -> String {
    let message = one_line(message);
    if message == NO_ADDRESS {
        return "not an address with port; write for example \"127.0.0.1:10809\" or \"[::1]:10809\"".into();
    }
    if let Some(message) = of_other_type(&message) {
        return message;
    }
    let known_as = [("unknown field `", "unknown key"), ("unknown variant `", "unknown value")];
    let Some((begin, what)) = known_as.into_iter().find_map(|(says, what)| Some((message.find(says)?, what))) else {
        return message;
    };
    // In front of it may stand where that is.
    let (place, says) = message.split_at(begin);
    let words: Vec<&str> = says.split('`').skip(1).step_by(2).collect();
    let Some((&wrong, known)) = words.split_first() else { return message };
    let list = known.join(", ");
    match closest(wrong, known) {
        Some(close) => format!("{place}{what} {wrong:?}; did you mean {close:?}? (known: {list})"),
        None => format!("{place}{what} {wrong:?}; known: {list}"),
    }
}

/// Serde's message about a value of the wrong type, rewritten in terms of TOML instead of Rust; `None` for other messages.
fn of_other_type(message: &str) -> Option<String> {
    let said = ["invalid type: ", "invalid value: "].into_iter().find_map(|says| Some((message.find(says)?, says)));
    let (begin, says) = said?;
    let (found, expected) = message[begin + says.len()..].rsplit_once(", expected ")?;
    let expected = expected.split(" at line ").next().unwrap_or(expected);
    let (text, plain) = (found.strip_prefix("string "), found.split('`').nth(1));
    let bare = text.map(|text| text.trim_matches('"'));
    let whole = |most: u64| match (bare, plain) {
        (Some(bare), _) if bare.parse::<u64>().is_ok() => format!("a whole number without quotes: {bare}"),
        (_, Some(number)) if number.parse::<u64>().is_ok() => format!("at most {most}"),
        _ => "a whole number, 0 or more".to_owned(),
    };
    let example = |usual: &str| text.or(plain).unwrap_or(usual).to_owned();
    let number = plain.filter(|plain| plain.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'));
    let cure = match expected {
        "u8" => whole(u8::MAX.into()),
        "u16" => whole(u16::MAX.into()),
        "u32" => whole(u32::MAX.into()),
        "u64" | "usize" => whole(u64::MAX),
        "f32" | "f64" => "a number without quotes".to_owned(),
        "a boolean" => "true or false, without quotes".to_owned(),
        "a string" => format!("a text in quotes: {:?}", plain.unwrap_or("...")),
        "a sequence" => format!("a list: [{}]", example("...")),
        "a map" if found == "sequence" => "a table for each name, with one pair of brackets".to_owned(),
        "struct Rates" | "struct Limit" | "struct Guarantee" | "struct Direction" => {
            format!("a table: {{ iops = {} }}", plain.or(bare).unwrap_or("2000"))
        }
        "struct Latency" => format!("a table: {{ target = {} }}", text.unwrap_or("\"20ms\"")),
        "struct WeightAt" => "a table: { weight = 8, when = \"22:00-06:00\" }".to_owned(),
        "struct Tls" | "struct Files" => "a table of its own, with certificate and key".to_owned(),
        "\"auto\" or a number of threads" => "\"auto\" or 1 to 1024".to_owned(),
        length if length.starts_with("a length of time") => match number {
            Some(number) => {
                let place = &message[..begin];
                return Some(format!("{place}{number} has no unit; write \"{number}s\" or \"{number}ms\""));
            }
            None => "a number with its unit in quotes, for example \"50ms\" or \"2s\"".to_owned(),
        },
        bytes if bytes.starts_with("a number of bytes") => match number.and_then(|number| number.split_once('.')) {
            Some((whole, "0")) => whole.to_owned(),
            Some((whole, part)) => format!("whole bytes, or \"{whole}.{part}MB\""),
            None => bytes.to_owned(),
        },
        other if other == "a map" || other.starts_with("struct ") => "a table".to_owned(),
        _ => return None,
    };
    let found = match found {
        "sequence" => "a list".to_owned(),
        "map" => "a table".to_owned(),
        other => text.map(|text| format!("the text {text}")).unwrap_or_else(|| plain.unwrap_or(other).to_owned()),
    };
    Some(format!("{}{found} does not fit; write {cure}", &message[..begin]))
}

#[cfg(test)]
mod tests {
    use crate::check::check;

    #[test]
    fn a_value_of_another_type_is_answered_by_what_to_write() {
        for (text, words) in [
            (
                "[tenants.a]\nweight = \"4\"",
                "tenants.a.weight: the text \"4\" does not fit; write a whole number without quotes: 4",
            ),
            ("[tenants.a]\nweight = 5_000_000_000", "5000000000 does not fit; write at most 4294967295"),
            ("[tenants.a]\nlimit = { iops = -5 }", "limit.iops: -5 does not fit; write a whole number, 0 or more"),
            ("[tenants.a]\nreservation = 2000", "2000 does not fit; write a table: { iops = 2000 }"),
            ("[tenants.a]\nweight_at = 8", "8 does not fit; write a table: { weight = 8, when = \"22:00-06:00\" }"),
            ("[tenants.a]\nlatency = \"20ms\"", "does not fit; write a table: { target = \"20ms\" }"),
            (
                "[server]\ntls = true",
                "server.tls: true does not fit; write a table of its own, with certificate and key",
            ),
            ("[server]\nlisten = \"127.0.0.1:1\"", "does not fit; write a list: [\"127.0.0.1:1\"]"),
            ("[server]\nread_only = \"yes\"", "the text \"yes\" does not fit; write true or false, without quotes"),
            ("[[volumes]]\nsize = 5", ": a list does not fit; write a table for each name, with one pair of brackets"),
            ("[server]\nworkers = 1\nworkers = 2", "t:3:1: \"workers\" is here twice; keep one of them"),
            ("[tenants.a]\n\n[tenants.a]", "t:3:10: [tenants.a] is in line 1 already; merge the two tables"),
            ("[server]\ndrain_timeout = 30", "30 has no unit; write \"30s\" or \"30ms\""),
            ("[server]\nworkers = -1", "-1 does not fit; write \"auto\" or 1 to 1024"),
            ("[tenants.a]\nlimit.bytes_per_s = 1.5", "1.5 does not fit; write whole bytes, or \"1.5MB\""),
            ("[volumes.a]\nsize = 1e9", "1000000000.0 does not fit; write 1000000000"),
            ("[server]\nlisten = [\"[::1]:1\", \"x:2\"]", "t:2:22: server.listen: \"x:2\" is not an address"),
            ("[volumes.\"\"]\nsize = 512", "t:1:10: volumes.\"\": \"\" is not a usable name"),
        ] {
            let errors: Vec<String> = check(text, "t").errors.iter().map(ToString::to_string).collect();
            assert!(errors.iter().any(|error| error.contains(words)), "{text}: {errors:#?}");
        }
    }
}
