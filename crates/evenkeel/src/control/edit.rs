//! Edits of the text of a configuration: values are set and removed in place, and every other byte stays as it is.

use std::ops::Range;

use anyhow::{Context, anyhow, bail};
use evenkeel_policy::document::SELF_NAMING;
use serde::Serialize;
use serde_json::{Map, Value, json};
use toml_edit::{Document, InlineTable, Item, Key, Table, TableLike};

/// A key that an edit has changed, with its value before and after; `None`: the text does not have the key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Edit {
    /// The key within its table, with dots.
    pub(super) key: String,
    pub(super) before: Option<String>,
    pub(super) after: Option<String>,
}

/// `text` with the table `table` changed by `patch`, a JSON merge patch whose objects with a key of [`SELF_NAMING`] replace
/// present ones. A rate of 0 removes its key, because a rate left out is not set. A table that was there, or with `create` any,
/// is there afterwards even if `patch` leaves nothing in it.
///
/// # Errors
/// If the text is no TOML, or has something else than a table where `patch` needs one.
pub(super) fn edited(
    text: &str,
    table: &[String],
    patch: &Map<String, Value>,
    create: bool,
) -> anyhow::Result<(String, Vec<Edit>)> {
    let mut leaves = leaves(patch, &[]);
    // Values are set before others are removed, so that a table whose values are exchanged is never empty.
    leaves.sort_by_key(|(key, value)| (value.is_none(), key.last().is_some_and(|last| last == "percentile")));
    let is_kept = create || find(&parse(text)?, table).is_some();
    let newline = newline_of(text);
    let (mut text, mut edits) = (text.to_owned(), Vec::new());
    for (key, value) in leaves {
        let path = [table, key.as_slice()].concat();
        let before = shown_at(&text, &path)?;
        text = match &value {
            Some(value) => set(&text, &path, table.len(), value)?,
            None => remove(&text, &path, table.len())?,
        };
        let after = shown_at(&text, &path)?;
        if before != after {
            edits.push(Edit { key: dotted(&key), before, after });
        }
    }
    if is_kept && find(&parse(&text)?, table).is_none() {
        let created = with_table(&text, &parse(&text)?, table, "");
        // Nothing may be left of the text to show how its lines end.
        text = if newline == "\n" { created } else { created.replace("\r\n", "\n").replace('\n', newline) };
    }
    Ok((text, edits))
}

/// `text` without the value or table at `path`.
///
/// # Errors
/// If the text is no TOML, or has something else than a table or a value there.
pub(super) fn without(text: &str, path: &[String]) -> anyhow::Result<(String, Vec<Edit>)> {
    let Some((name, above)) = path.split_last() else { return Ok((text.to_owned(), Vec::new())) };
    let before = shown_at(text, path)?;
    let after = remove(text, path, above.len())?;
    let edit = Edit { key: dotted(std::slice::from_ref(name)), before, after: None };
    let edits = if edit.before.is_some() { vec![edit] } else { Vec::new() };
    Ok((after, edits))
}

/// The values that a patch sets (`Some`) or removes (`None`), each with its path.
fn leaves(patch: &Map<String, Value>, table: &[String]) -> Vec<(Vec<String>, Option<Value>)> {
    let mut found = Vec::new();
    for (key, value) in patch {
        let path = [table, std::slice::from_ref(key)].concat();
        match value {
            Value::Object(inner) if !SELF_NAMING.iter().any(|name| inner.contains_key(*name)) => {
                found.extend(leaves(inner, &path));
            }
            Value::Null => found.push((path, None)),
            value if is_unset_rate(&path, value) => found.push((path, None)),
            value => {
                let value = in_form_of_file(key, value);
                found.push((path, Some(value)));
            }
        }
    }
    found
}

/// True if `value` at `path` is a rate of 0.
fn is_unset_rate(path: &[String], value: &Value) -> bool {
    let is_rate = |key: &String| key == "iops" || key == "bytes_per_s";
    let of_rates = |key: &String| ["limit", "reservation", "guarantee"].contains(&key.as_str());
    path.first().is_some_and(of_rates)
        && path.last().is_some_and(is_rate)
        && (value.as_u64() == Some(0) || value.as_str() == Some("0"))
}

/// A value in the form that configurations usually have: a number without quotes, a whole percentile without a point.
fn in_form_of_file(key: &str, value: &Value) -> Value {
    match value {
        Value::String(text) => match text.parse::<u64>() {
            Ok(number) if text.bytes().all(|byte| byte.is_ascii_digit()) => json!(number),
            _ => value.clone(),
        },
        Value::Number(number) if key == "percentile" => match number.as_f64() {
            Some(percent) if percent.fract() == 0.0 && (0.0..=100.0).contains(&percent) => json!(percent as u64),
            _ => value.clone(),
        },
        _ => value.clone(),
    }
}

fn parse(text: &str) -> anyhow::Result<Document<&str>> {
    Document::parse(text).map_err(|error| anyhow!("{error}"))
}

/// The innermost table on the way to a key that has a header or braces of its own; dotted keys make tables without either.
#[derive(Clone, Copy)]
enum Holder<'d> {
    Header(&'d Table),
    Braces(&'d InlineTable),
}

/// The tables on the way from the outermost table to a key, as far as the text has them.
struct Way<'d> {
    holder: Holder<'d>,
    /// Number of names that lead to `holder`.
    held: usize,
    /// The innermost of these tables.
    here: &'d dyn TableLike,
    /// Number of names that lead to `here`.
    at: usize,
}

fn way<'d>(document: &'d Document<&str>, path: &[String]) -> Way<'d> {
    let root: &'d Table = document.as_table();
    let mut way = Way { holder: Holder::Header(root), held: 0, here: root, at: 0 };
    while way.at + 1 < path.len() {
        let here: &'d dyn TableLike = way.here;
        let Some(item) = here.get(&path[way.at]) else { break };
        let Some(table) = item.as_table_like() else { break };
        (way.here, way.at) = (table, way.at + 1);
        match item {
            Item::Table(table) if !table.is_dotted() => {
                (way.holder, way.held) = (Holder::Header(table), way.at);
            }
            Item::Value(toml_edit::Value::InlineTable(table)) if !table.is_dotted() => {
                (way.holder, way.held) = (Holder::Braces(table), way.at);
            }
            _ => {}
        }
    }
    way
}

/// The item of the document at `path`.
fn find<'d>(document: &'d Document<&str>, path: &[String]) -> Option<&'d Item> {
    let way = way(document, path);
    let here: &'d dyn TableLike = way.here;
    if way.at + 1 == path.len() { here.get(&path[way.at]) } else { None }
}

/// `text` with the value at `path`, whose first `depth` names lead to a table that may get a header.
fn set(text: &str, path: &[String], depth: usize, value: &Value) -> anyhow::Result<String> {
    let document = parse(text)?;
    let way = way(&document, path);
    let (name, rest) = (&path[way.at], &path[way.at + 1..]);
    match way.here.get(name) {
        None | Some(Item::None) => insert(text, &document, &way, path, depth, value),
        Some(item) if rest.is_empty() => replace(text, item, path, depth, value),
        // A kind alone, as in `admission = "slowfast"`, becomes a table when it gets a setting.
        Some(Item::Value(kind)) if name == "admission" && kind.is_str() && rest.len() == 1 => {
            let members = [("kind".to_owned(), json!(kind.as_str())), (rest[0].clone(), value.clone())];
            let table = Value::Object(members.into_iter().collect());
            Ok(spliced(text, kind.span().context(NO_PLACE)?, &rendered(&table)))
        }
        Some(_) => bail!("{} is no table", dotted(&path[..=way.at])),
    }
}

/// Error message about a part of a parsed text without a place in it.
const NO_PLACE: &str = "the place of a key in the configuration file is not known; report this as a bug";

fn insert(
    text: &str,
    document: &Document<&str>,
    way: &Way<'_>,
    path: &[String],
    depth: usize,
    value: &Value,
) -> anyhow::Result<String> {
    let &Way { holder, held, here, at } = way;
    let entry = format!("{} = {}", dotted(&path[held..=at]), nested(&path[at + 1..], value));
    let header = match holder {
        Holder::Braces(table) => {
            let ends = table.get_values().into_iter().filter_map(|(_, value)| value.span()).map(|span| span.end);
            let last = ends.max();
            return Ok(match last {
                Some(end) => spliced(text, end..end, &format!(", {entry}")),
                None => spliced(text, table.span().context(NO_PLACE)?, &format!("{{ {entry} }}")),
            });
        }
        Holder::Header(table) => table,
    };
    if at == held && (held < depth || header.is_implicit()) {
        let (own, rest) = path.split_at(at.max(depth));
        let line = format!("{} = {}", dotted(&rest[..1]), nested(&rest[1..], value));
        return Ok(with_table(text, document, own, &line));
    }
    let place = |(keys, value): (Vec<&Key>, &toml_edit::Value)| Some((value.span()?.end, keys.last()?.span()?.start));
    let last = here.get_values().into_iter().filter_map(place).max();
    let (end, like) = last.or_else(|| header.span().map(|span| (span.end, span.start))).context(NO_PLACE)?;
    let newline = newline_of(text);
    let line = format!("{}{entry}{newline}", indent_of(text, like));
    let below = after_line(text, end);
    let gap = if text[..below].ends_with('\n') { "" } else { newline };
    Ok(spliced(text, below..below, &format!("{gap}{line}")))
}

fn replace(text: &str, item: &Item, path: &[String], depth: usize, value: &Value) -> anyhow::Result<String> {
    if let Item::Value(present) = item
        && !present.as_inline_table().is_some_and(InlineTable::is_dotted)
    {
        let wanted = match value {
            Value::String(plain) => plain.clone(),
            other => rendered(other),
        };
        if shown(text, item).as_ref() == Some(&wanted) {
            return Ok(text.to_owned());
        }
        return Ok(spliced(text, present.span().context(NO_PLACE)?, &rendered(value)));
    }
    let (Some(table), Value::Object(members)) = (item.as_table_like(), value) else {
        bail!("{} is a table of its own", dotted(path));
    };
    let members: Vec<(&String, &Value)> = members.iter().filter(|(_, value)| !value.is_null()).collect();
    let gone = table.iter().map(|(name, _)| name.to_owned());
    let gone: Vec<String> = gone.filter(|name| !members.iter().any(|(member, _)| *member == name)).collect();
    let mut text = text.to_owned();
    for (name, value) in members {
        text = set(&text, &below(path, name), depth, value)?;
    }
    for name in gone {
        text = remove(&text, &below(path, &name), depth)?;
    }
    Ok(text)
}

/// `text` without the value or table at `path`. Braces that would be empty go as well, unless they are those of the table to
/// which the first `depth` names lead.
fn remove(text: &str, path: &[String], depth: usize) -> anyhow::Result<String> {
    let document = parse(text)?;
    let names = |table: &dyn TableLike| table.iter().map(|(name, _)| name.to_owned()).collect::<Vec<String>>();
    let inner = match find(&document, path) {
        None | Some(Item::None) => return Ok(text.to_owned()),
        Some(Item::ArrayOfTables(_)) => bail!("{} is an array of tables", dotted(path)),
        Some(Item::Table(table)) => names(table),
        Some(Item::Value(toml_edit::Value::InlineTable(table))) if table.is_dotted() => names(table),
        Some(Item::Value(value)) => {
            return without_value(text, &way(&document, path), path, depth, value.span().context(NO_PLACE)?);
        }
    };
    let mut text = text.to_owned();
    for name in inner {
        text = remove(&text, &below(path, &name), depth)?;
    }
    let header = {
        let document = parse(&text)?;
        let table = find(&document, path).and_then(Item::as_table);
        table.filter(|table| !table.is_implicit() && !table.is_dotted()).and_then(Table::span)
    };
    Ok(match header {
        Some(span) => without_lines(&text, span),
        None => text,
    })
}

fn without_value(
    text: &str,
    way: &Way<'_>,
    path: &[String],
    depth: usize,
    value: Range<usize>,
) -> anyhow::Result<String> {
    let key = way.here.key(&path[way.at]).and_then(Key::span).context(NO_PLACE)?;
    let Holder::Braces(table) = way.holder else { return Ok(without_lines(text, key.start..value.end)) };
    if table.get_values().len() == 1 && way.held > depth {
        return remove(text, &path[..way.held], depth);
    }
    // Of a dotted key the last name has a place of its own, the others may have that of an earlier key.
    let begin = if way.at > way.held {
        let start = text[..key.start].rfind(['{', ',', '\n']).map_or(key.start, |at| at + 1);
        key.start - text[start..key.start].trim_start().len()
    } else {
        key.start
    };
    let (before, after) = (text[..begin].trim_end(), text[value.end..].trim_start());
    Ok(match (after.strip_prefix(','), before.strip_suffix(',')) {
        (Some(rest), _) => format!("{}{}", &text[..begin], rest.trim_start()),
        (None, Some(before)) => format!("{before}{}", &text[value.end..]),
        (None, None) => format!("{before}{after}"),
    })
}

/// `text` with a table of the header `[header]` and the line `body`, below the tables of the same first name, else at the end.
fn with_table(text: &str, document: &Document<&str>, header: &[String], body: &str) -> String {
    let newline = newline_of(text);
    let mut section = format!("[{}]{newline}", dotted(header));
    if !body.is_empty() {
        section.push_str(&format!("{body}{newline}"));
    }
    let relatives = document.as_table().get(&header[0]).and_then(end_of);
    let (before, after) = text.split_at(relatives.map_or(text.len(), |end| end_of_section(text, end)));
    let is_first = before.trim_start_matches('\u{feff}').is_empty();
    let gap = match before {
        _ if is_first || before.ends_with(&newline.repeat(2)) => String::new(),
        _ if before.ends_with('\n') => newline.to_owned(),
        _ => newline.repeat(2),
    };
    let tail = if after.is_empty() || after.starts_with(['\n', '\r']) { "" } else { newline };
    format!("{before}{gap}{section}{tail}{after}")
}

/// The end of the last header or value in `item`.
fn end_of(item: &Item) -> Option<usize> {
    match item {
        Item::None => None,
        Item::Value(value) => value.span().map(|span| span.end),
        Item::ArrayOfTables(tables) => tables.span().map(|span| span.end),
        Item::Table(table) => {
            let header = table.span().filter(|_| !table.is_implicit() && !table.is_dotted()).map(|span| span.end);
            table.iter().filter_map(|(_, item)| end_of(item)).chain(header).max()
        }
    }
}

/// The place below the line of a table's last value, and below comments that follow it directly unless they are those of the next
/// table.
fn end_of_section(text: &str, end: usize) -> usize {
    let first = after_line(text, end);
    let mut below = first;
    while text[below..].trim_start_matches([' ', '\t']).starts_with('#') {
        below = after_line(text, below);
    }
    let is_own = text[below..].lines().next().is_none_or(|line| line.trim().is_empty());
    if is_own { below } else { first }
}

fn shown_at(text: &str, path: &[String]) -> anyhow::Result<Option<String>> {
    let document = parse(text)?;
    Ok(find(&document, path).and_then(|item| shown(text, item)))
}

/// A value on one line: a text without its quotes, everything else as in the file.
fn shown(text: &str, item: &Item) -> Option<String> {
    match item {
        Item::Value(toml_edit::Value::String(plain)) => Some(plain.value().clone()),
        other => written(text, other),
    }
}

/// A value on one line, in TOML.
fn written(text: &str, item: &Item) -> Option<String> {
    let listed = |table: &dyn TableLike| {
        let members = table.iter().filter_map(|(name, item)| Some(format!("{name} = {}", written(text, item)?)));
        Some(format!("{{ {} }}", members.collect::<Vec<_>>().join(", ")))
    };
    match item {
        Item::None | Item::ArrayOfTables(_) => None,
        Item::Table(table) => listed(table),
        Item::Value(toml_edit::Value::InlineTable(table)) if table.is_dotted() => listed(table),
        Item::Value(value) => {
            let written = text.get(value.span()?)?;
            Some(written.split_whitespace().collect::<Vec<_>>().join(" "))
        }
    }
}

/// A value in TOML. An object with nothing but `kind` is the kind alone.
fn rendered(value: &Value) -> String {
    match value {
        Value::String(text) => toml_edit::Value::from(text.as_str()).to_string(),
        Value::Array(list) => format!("[{}]", list.iter().map(rendered).collect::<Vec<_>>().join(", ")),
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().filter(|(_, value)| !value.is_null()).collect();
            members.sort_by_key(|(name, _)| !SELF_NAMING.contains(&name.as_str()));
            match members.as_slice() {
                [(name, kind)] if *name == "kind" => rendered(kind),
                members => {
                    let entry =
                        |(name, value): &(&String, &Value)| format!("{} = {}", Key::new(*name), rendered(value));
                    let entries = members.iter().map(entry);
                    format!("{{ {} }}", entries.collect::<Vec<_>>().join(", "))
                }
            }
        }
        other => other.to_string(),
    }
}

/// A value in tables with braces, one for each name.
fn nested(names: &[String], value: &Value) -> String {
    names.iter().rev().fold(rendered(value), |inner, name| format!("{{ {} = {inner} }}", Key::new(name)))
}

/// Names as one key, in quotes where TOML requires them.
pub(super) fn dotted(names: &[String]) -> String {
    names.iter().map(|name| Key::new(name).to_string()).collect::<Vec<_>>().join(".")
}

fn below(path: &[String], name: &str) -> Vec<String> {
    [path, &[name.to_owned()]].concat()
}

fn spliced(text: &str, place: Range<usize>, with: &str) -> String {
    format!("{}{with}{}", &text[..place.start], &text[place.end..])
}

/// `text` without the lines on which `span` stands.
fn without_lines(text: &str, span: Range<usize>) -> String {
    spliced(text, line_start(text, span.start)..after_line(text, span.end), "")
}

/// The start of the line of `at`, behind a byte order mark.
fn line_start(text: &str, at: usize) -> usize {
    let start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
    let mark = '\u{feff}';
    if text[start..].starts_with(mark) { start + mark.len_utf8() } else { start }
}

/// The start of the line below that of `at`.
fn after_line(text: &str, at: usize) -> usize {
    text[at..].find('\n').map_or(text.len(), |newline| at + newline + 1)
}

fn indent_of(text: &str, at: usize) -> &str {
    let line = &text[line_start(text, at)..];
    &line[..line.len() - line.trim_start_matches([' ', '\t']).len()]
}

fn newline_of(text: &str) -> &'static str {
    if text.contains("\r\n") { "\r\n" } else { "\n" }
}

#[cfg(test)]
#[path = "edit_tests.rs"]
mod tests;
