//! Reads and checks a configuration in TOML. All errors are reported at once, each with file, line, key and remedy.
//!
//! [`Document`] reads the text; after that its values are checked by the rules that no type expresses.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::LazyLock;

use serde_json::Value;

use crate::config::Config;
pub use crate::document::MAX_TEXT_BYTES;
use crate::document::{Document, MAX_ERRORS, dotted};
use crate::effective::owner;
pub use crate::problem::{Errors, Problem};
use crate::rules::{self, Finding, Severity};
use crate::source::{Source, Text};

/// The result of checking a configuration.
#[derive(Clone, Debug)]
pub struct Report {
    /// The configuration; complete only if there are no errors.
    pub config: Config,
    /// Faults because of which the configuration cannot be used.
    pub errors: Vec<Problem>,
    /// Settings that can be used, but are probably a mistake.
    pub warnings: Vec<Problem>,
    /// Settings that another program enforces (`evenkeel guard`).
    pub elsewhere: Vec<Problem>,
    /// True if the text has a table of volumes; otherwise `config` has the default volume.
    pub has_volumes: bool,
}

impl Report {
    /// The report, if the configuration can be used.
    ///
    /// # Errors
    /// All faults of the configuration.
    pub fn into_result(self) -> Result<Self, Errors> {
        if self.errors.is_empty() { Ok(self) } else { Err(Errors(self.errors)) }
    }

    fn failed(errors: Vec<Problem>) -> Self {
        Self { config: Config::default(), errors, warnings: Vec::new(), elsewhere: Vec::new(), has_volumes: false }
    }
}

impl Config {
    /// Reads a configuration from a text; `origin` names the text in errors.
    ///
    /// # Errors
    /// All faults of the configuration.
    pub fn parse(text: &str, origin: &str) -> Result<Self, Errors> {
        check(text, origin).into_result().map(|report| report.config)
    }

    /// Settings with which clients would seem to hang, each with the reason. In a file they are warnings; a command that makes
    /// such a setting is refused unless it is forced.
    pub fn hangs(&self, origin: &str) -> Vec<Problem> {
        let hangs = rules::findings(self).into_iter().filter(|finding| finding.severity == Severity::Hangs);
        hangs.map(|finding| unplaced(&finding, origin)).collect()
    }

    /// Checks a configuration that was built or changed by the program instead of being read. Returns warnings, and notes on
    /// settings that another program enforces.
    ///
    /// # Errors
    /// All faults of the configuration.
    pub fn validate(&self, origin: &str) -> Result<Vec<Problem>, Errors> {
        let (errors, mut warnings, elsewhere) = judge(rules::findings(self), |finding| unplaced(finding, origin));
        warnings.extend(elsewhere);
        if errors.is_empty() { Ok(warnings) } else { Err(Errors(errors)) }
    }
}

impl Source {
    /// Reads a configuration file ("-" is standard input), and the policy file that it names, relative to its folder.
    ///
    /// # Errors
    /// If one of the files cannot be read. The files' contents are not checked here.
    pub fn read(path: &Path) -> Result<Self, Errors> {
        let stdin = path.as_os_str() == "-";
        let origin = if stdin { "<stdin>".to_owned() } else { path.display().to_string() };
        let text = if stdin { io::read_to_string(io::stdin()) } else { std::fs::read_to_string(path) };
        let text = text.map_err(|error| Errors(vec![Problem::unreadable(&origin, &error)]))?;
        let (document, _) = Document::parse(&text, &origin);
        let policy = document.text_of("policy").map(|named| {
            let named = path.parent().unwrap_or(Path::new("")).join(named);
            match std::fs::read_to_string(&named) {
                Ok(text) => Ok(Text { text, origin: named.display().to_string() }),
                Err(error) => {
                    let message = format!(
                        "cannot read {}: {error}; name the file that has [tenants] and [pools]",
                        named.display()
                    );
                    Err(Errors(vec![document.complain(&["policy"], message)]))
                }
            }
        });
        let policy = policy.transpose()?;
        Ok(Self { host: Text { text, origin }, policy })
    }
}

/// Reads and checks a configuration file and the policy file that it names. A file that cannot be read is an error of the
/// report.
pub fn check_file(path: &Path) -> Report {
    match Source::read(path) {
        Ok(source) => check_with(&source, |_| Vec::new()),
        Err(Errors(errors)) => Report::failed(errors),
    }
}

/// Reads and checks a configuration given as text; `origin` names the text in errors.
pub fn check(text: &str, origin: &str) -> Report {
    check_with(&Source::of(text, origin), |_| Vec::new())
}

/// Reads and checks a configuration, and adds the findings of `more`, for example about the machine. `more` may also complete the
/// configuration by settings that are stored elsewhere, before the rules are applied.
pub fn check_with(source: &Source, more: impl FnOnce(&mut Config) -> Vec<Finding>) -> Report {
    let (document, mut errors) = Document::of(source);
    let (config, mut unread) = document.read::<Config>();
    unread.iter_mut().for_each(name_its_table);
    // Rules see what reading has left of a table: what they find wrong there may be right.
    let partly: BTreeSet<String> = unread.iter().filter_map(|problem| leaves_partly(&problem.key)).collect();
    let is_tls_unread = unread.iter().any(|problem| problem.key.starts_with("server.tls"));
    let is_sure = |found: &Problem| {
        let (table, key) = table_and_key(&found.key);
        (!partly.contains(table) || ALONE.contains(&key)) && !(is_tls_unread && found.message.contains("[server.tls]"))
    };
    errors.extend(unread);
    let is_read = source.host.text.len() <= MAX_TEXT_BYTES;
    let Some(mut config) = config.filter(|_| is_read) else { return Report::failed(errors) };
    config.policy = source.policy.as_ref().map(|policy| policy.origin.clone().into());
    config.complete();
    let place = |finding: &Finding| {
        let path: Vec<&str> = finding.path.iter().map(String::as_str).collect();
        document.complain(&path, finding.message.as_str())
    };
    let more = more(&mut config);
    let found = rules::findings(&config).into_iter().chain(more).chain(rules::idle_tenants(&config));
    let (wrong, mut warnings, elsewhere) = judge(found, place);
    errors.extend(wrong.into_iter().filter(is_sure));
    warnings.retain(is_sure);
    errors.sort_by(|a, b| {
        (a.origin != source.host.origin, a.position).cmp(&(b.origin != source.host.origin, b.position))
    });
    errors.dedup();
    errors.truncate(MAX_ERRORS);
    let has_volumes = document.has(&["volumes"]);
    Report { config, errors, warnings, elsewhere, has_volumes }
}

/// Keys whose values can be judged without the other keys of their table.
const ALONE: [&str; 17] = [
    "pool",
    "tenant",
    "description",
    "weight",
    "match",
    "max_in_flight",
    "workers",
    "default_export",
    "max_connections",
    "max_inflight_per_connection",
    "buffer_memory",
    "max_request",
    "busy_poll",
    "handshake_timeout",
    "max_handshakes",
    "max_handshakes_per_client",
    "peer_timeout",
];

/// The table to which a dotted key belongs (a pool, tenant or volume, or another top-level table), and the key's first part
/// within this table.
fn table_and_key(key: &str) -> (&str, &str) {
    let table = match key.split_once('.') {
        Some(("pools" | "tenants" | "volumes", _)) => owner(key),
        Some((table, _)) => table,
        None => key,
    };
    (table, key[table.len()..].split('.').nth(1).unwrap_or_default())
}

/// The table that rules cannot judge if the key `unread` could not be read; `None` if there is no such table. Rules about a
/// volume depend on the volume's pool.
fn leaves_partly(unread: &str) -> Option<String> {
    let (table, key) = table_and_key(unread);
    (key == "pool" || !ALONE.contains(&key)).then(|| table.to_owned())
}

/// Placeholder for any name in the path of a table.
const ANY_NAME: &str = "NAME";
/// The most levels of nested tables in the schema that are searched.
const MAX_DEPTH: usize = 6;

static SCHEMA: LazyLock<Value> = LazyLock::new(crate::schema);

/// Extends the message about an unknown key by the table that has a key of this name. Of several such tables the one with the
/// most similar path is named.
fn name_its_table(problem: &mut Problem) {
    let path: Vec<&str> = problem.key.split('.').collect();
    let Some((key, table)) = path.split_last().filter(|_| problem.message.starts_with("unknown key ")) else { return };
    let mut places = Vec::new();
    tables_with(key, &SCHEMA, &[], &mut places);
    let shared =
        |place: &[&str]| place.iter().zip(table).take_while(|(part, own)| part == own || **part == ANY_NAME).count();
    let Some(place) = places.iter().min_by_key(|place| (Reverse(shared(place)), place.len())) else { return };
    let shared = shared(place);
    let part = |(at, part): (usize, &&str)| match table.get(at).filter(|_| at < shared) {
        Some(own) => (*own).to_owned(),
        None => (*part).to_owned(),
    };
    let named: Vec<String> = place.iter().enumerate().map(part).collect();
    problem.message += &match named.as_slice() {
        [] => "; it belongs above all tables".to_owned(),
        named => format!("; it belongs to [{}]", dotted(named)),
    };
}

/// Adds to `found` the paths of all tables with a key named `key`, within the part `node` of the schema, whose path is `path`.
fn tables_with(key: &str, node: &'static Value, path: &[&'static str], found: &mut Vec<Vec<&'static str>>) {
    if path.len() > MAX_DEPTH {
        return;
    }
    let inner = |name: &'static str| [path, &[name]].concat();
    for (name, property) in node["properties"].as_object().into_iter().flatten() {
        if name == key {
            found.push(path.to_vec());
        }
        tables_with(key, property, &inner(name), found);
    }
    if node["additionalProperties"].is_object() {
        tables_with(key, &node["additionalProperties"], &inner(ANY_NAME), found);
    }
    let reference = node["$ref"].as_str().and_then(|path| SCHEMA.pointer(path.trim_start_matches('#')));
    for part in reference.into_iter().chain(node["anyOf"].as_array().into_iter().flatten()) {
        tables_with(key, part, path, found);
    }
}

/// Divides findings into errors, warnings, and notes on settings that another program enforces. `place` makes a problem of a
/// finding, with the place of its key in the text.
fn judge(
    findings: impl IntoIterator<Item = Finding>,
    place: impl Fn(&Finding) -> Problem,
) -> (Vec<Problem>, Vec<Problem>, Vec<Problem>) {
    let (mut errors, mut warnings, mut elsewhere) = (Vec::new(), Vec::new(), Vec::new());
    for finding in findings {
        let found = match finding.severity {
            Severity::Error => &mut errors,
            Severity::Hangs | Severity::Warning => &mut warnings,
            Severity::Elsewhere => &mut elsewhere,
        };
        found.push(place(&finding));
    }
    (errors, warnings, elsewhere)
}

fn unplaced(finding: &Finding, origin: &str) -> Problem {
    Problem { origin: origin.into(), position: None, key: dotted(&finding.path), message: finding.message.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_in_the_wrong_table_is_answered_by_the_right_one() {
        for (text, words) in [
            ("[pools.main]\nscheduler = \"none\"", "; it belongs to [pools.main.tuning]"),
            ("[volumes.a]\nlisten = []", "; it belongs to [server]"),
            ("[server]\npolicy = \"p.toml\"", "; it belongs above all tables"),
            ("[server]\ncertificate = \"c\"", "; it belongs to [server.tls]"),
            ("[server]\nreservation = { iops = 5 }", "; it belongs to [tenants.NAME]"),
        ] {
            let errors: Vec<String> = check(text, "t").errors.iter().map(ToString::to_string).collect();
            assert!(errors.iter().any(|error| error.ends_with(words)), "{text}: {errors:#?}");
        }
        let errors = check("[pools.main]\nsceduler = \"none\"", "t").errors;
        assert!(!errors[0].message.contains("belongs"), "{}", errors[0]);
    }
}
