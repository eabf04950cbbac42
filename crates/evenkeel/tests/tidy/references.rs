//! Tests that the links, keys, metrics and commands exist that the pages of the manual name.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde_json::Value;

use super::{evenkeel, pages, read, root, shipped, short};

/// The anchor of a heading: the text after `#` in links to the heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

/// The lines of a page that are outside its code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    })
}

#[test]
fn links_lead_somewhere() {
    let mut anchors: BTreeMap<PathBuf, Vec<String>> = BTreeMap::new();
    let pages = shipped(&[".md"]);
    for page in &pages {
        let text = read(page);
        let headings =
            prose(&text).filter(|line| line.starts_with('#')).map(|line| anchor(line.trim_start_matches('#')));
        anchors.insert(page.canonicalize().expect("a path"), headings.collect());
    }
    let (mut links, mut broken) = (0, Vec::new());
    for page in &pages {
        let text = read(page);
        for target in prose(&text).flat_map(|line| line.split("](").skip(1)).filter_map(|rest| rest.split(')').next()) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            links += 1;
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() { page.clone() } else { page.parent().expect("a folder").join(file) };
            let known = file.canonicalize().ok().is_some_and(|file| {
                heading.is_empty() || anchors.get(&file).is_some_and(|known| known.iter().any(|name| name == heading))
            });
            if !known {
                broken.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(links > 200, "only {links} links are found");
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// The texts in backticks on a page, outside its code blocks.
fn quoted(text: &str) -> Vec<String> {
    let lines = prose(text).flat_map(|line| line.split('`').skip(1).step_by(2));
    lines.map(str::to_owned).collect()
}

/// The lines of a page's code blocks; lines that end with `\` are joined with the next one.
fn code(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let (mut code, mut goes_on) = (false, false);
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            code = !code;
        } else if code {
            let whole = line.trim_end_matches('\\').to_owned();
            match lines.last_mut().filter(|_| goes_on) {
                Some(last) => *last += &whole,
                None => lines.push(whole),
            }
        }
        goes_on = line.ends_with('\\');
    }
    lines
}

/// All alternatives of `at`, a part of `schema`: `at` itself, the targets of its references, and the members of its `anyOf`,
/// `oneOf` and `allOf`, also indirectly.
fn forms<'a>(schema: &'a Value, at: &'a Value) -> Vec<&'a Value> {
    let mut forms = vec![at];
    let reference = at["$ref"].as_str().map(|path| &schema["$defs"][path.trim_start_matches("#/$defs/")]);
    let several = ["anyOf", "oneOf", "allOf"].iter().filter_map(|key| at[*key].as_array()).flatten();
    forms.extend(reference.into_iter().chain(several).flat_map(|form| self::forms(schema, form)));
    forms
}

/// True if a configuration may have the key. Keys of the table `agent` are looked up in `example`, the agent's example of a
/// configuration, others in `schema`.
fn exists(schema: &Value, example: &str, key: &str) -> bool {
    let has = |part: &str| example.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == part);
    if key.starts_with("agent.") { key.split('.').all(has) } else { is_known(schema, key) }
}

/// True if the schema has the key, such as `pools.P.limit`. The name of a pool, tenant or volume in it may be any.
fn is_known(schema: &Value, key: &str) -> bool {
    let mut places = vec![schema];
    for part in key.split('.') {
        let forms: Vec<&Value> = places.iter().flat_map(|at| forms(schema, at)).collect();
        let own: Vec<&Value> = forms.iter().map(|form| &form["properties"][part]).filter(|at| !at.is_null()).collect();
        let named = forms.iter().map(|form| &form["additionalProperties"]).filter(|at| at.is_object());
        let named = named.filter(|at| !self::forms(schema, at).iter().any(|form| !form["properties"][part].is_null()));
        places = if own.is_empty() { named.collect() } else { own };
    }
    !places.is_empty()
}

/// The configuration key in a quoted text such as `pools.P.limit`, `[tenants.T]` or `[agent] status = ...`; `None` if
/// the text is no key.
fn key(text: &str) -> Option<String> {
    let text = text.split('=').next()?.trim();
    let text =
        text.strip_prefix('[').map_or_else(|| text.to_owned(), |table| table.replacen("] ", ".", 1).replace(']', ""));
    let mut parts = text.split('.');
    let tables = ["server", "pools", "tenants", "volumes", "agent", "cluster"];
    let is_key = tables.contains(&parts.next()?) && text.contains('.');
    let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c));
    let file = ["toml", "rs"].contains(&text.rsplit('.').next()?);
    (is_key && plain && !file).then_some(text)
}

fn schema_and_example() -> (Value, String) {
    let schema = serde_json::from_str(&evenkeel(&["config", "schema"])).expect("JSON");
    (schema, evenkeel(&["guard", "config", "example"]))
}

#[test]
fn keys_of_the_pages_are_in_the_configuration() {
    let (schema, example) = schema_and_example();
    let (mut keys, mut unknown) = (0, Vec::new());
    for page in pages() {
        for key in quoted(&read(&page)).iter().filter_map(|text| key(text)) {
            keys += 1;
            if !exists(&schema, &example, &key) {
                unknown.push(format!("{}: {key}", short(&page)));
            }
        }
    }
    assert!(keys > 40, "only {keys} keys are found");
    assert!(unknown.is_empty(), "no such key: {}", unknown.join("\n"));
}

#[test]
fn an_unknown_key_is_found() {
    let (schema, example) = schema_and_example();
    for (text, is) in [
        ("pools.P.tuning.slots", true),
        ("[tenants.shop.pools.vg1]", true),
        ("[agent] status = \"127.0.0.1:0\"", true),
        ("pools.P.tuning.admission.kind = \"slowfast\"", true),
        ("pools.P.tuning.slot", false),
        ("[pool.P]", true),
        ("tenants.limit", false),
        ("[server] worker", false),
        ("[agent] statue", false),
    ] {
        assert_eq!(key(text).is_none_or(|key| exists(&schema, &example, &key)), is, "{text}");
    }
}

#[test]
fn metrics_of_the_pages_are_explained() {
    // Which of them a scrape has is the test of `monitoring.rs`.
    let words = |text: &str| -> BTreeSet<String> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        // Names of files have capitals or end there.
        let is_metric = |word: &&str| {
            word.strip_prefix("evenkeel_").is_some_and(|name| !name.is_empty() && !name.contains(char::is_uppercase))
        };
        words.filter(is_metric).map(str::to_owned).collect()
    };
    let explained = words(&read(&root().join("docs/guide/monitoring.md")));
    let crates: BTreeSet<String> = std::fs::read_dir(root().join("crates"))
        .expect("a folder")
        .map(|entry| format!("evenkeel_{}", entry.expect("an entry").file_name().to_string_lossy()))
        .collect();
    let (mut metrics, mut unknown) = (0, Vec::new());
    for page in pages() {
        for name in words(&read(&page)) {
            metrics += 1;
            let whole = ["_bucket", "_count", "_sum"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(&name);
            let part = name.ends_with('_') && explained.iter().any(|metric| metric.starts_with(&name));
            // A column of `evenkeel reproduce`.
            let column = name == "evenkeel_ci95";
            if !part && !column && !explained.contains(&name) && !explained.contains(whole) && !crates.contains(&name) {
                unknown.push(format!("{}: {name}", short(&page)));
            }
        }
    }
    assert!(metrics > 100, "only {metrics} metrics are found");
    assert!(unknown.is_empty(), "no such metric: {}", unknown.join("\n"));
}

/// Options and subcommands of a command, read from its help.
struct Help {
    flags: BTreeSet<String>,
    commands: BTreeMap<String, Help>,
}

impl Help {
    fn of(path: &[&str]) -> Self {
        let text = evenkeel(&[path, &["--help"]].concat());
        let options = text.lines().filter(|line| line.trim_start().starts_with('-'));
        let words = options.flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric() && c != '-'));
        let flags = words.filter(|word| word.starts_with("--")).map(str::to_owned).collect();
        let list = text.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
        let named = list.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        let names =
            named.filter_map(|line| line.split_whitespace().next()).filter(|name| path.is_empty() || *name != "help");
        let commands = names.map(|name| (name.to_owned(), Self::of(&[path, &[name]].concat()))).collect();
        Self { flags, commands }
    }

    /// The first subcommand or option in a command line that this command does not have; `None` if it has all.
    fn unknown<'l>(&self, line: &'l str) -> Option<&'l str> {
        let (mut at, mut flags) = (vec![self], self.flags.clone());
        for word in line.split_whitespace() {
            // The output of the program.
            if word.starts_with("...") {
                break;
            }
            let word = word.trim_matches(|c: char| "[](){},.;:'\"…".contains(c));
            if word.starts_with("--") {
                let flag = word.split(['=', '|', ']']).next().unwrap_or(word);
                if flag.len() > 2 && !flags.contains(flag) {
                    return Some(word);
                }
            } else if at.iter().any(|help| !help.commands.is_empty()) {
                let is_name = !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || "-|".contains(c));
                if !is_name || word.starts_with('-') {
                    continue;
                }
                // Several in one: `run|discover`.
                let next: Vec<Option<&Self>> =
                    word.split(['|']).map(|name| at.iter().find_map(|help| help.commands.get(name))).collect();
                if next.iter().any(Option::is_none) {
                    return Some(word);
                }
                at = next.into_iter().flatten().collect();
                flags.extend(at.iter().flat_map(|help| help.flags.iter().cloned()));
            }
        }
        None
    }
}

/// The options of all commands of the program.
pub(super) fn flags() -> BTreeSet<String> {
    fn collect(help: &Help, flags: &mut BTreeSet<String>) {
        flags.extend(help.flags.iter().cloned());
        help.commands.values().for_each(|help| collect(help, flags));
    }
    let mut flags = BTreeSet::new();
    collect(&Help::of(&[]), &mut flags);
    flags
}

/// The arguments of each call of `evenkeel` in a shell line.
fn commands(line: &str) -> Vec<&str> {
    let line = line.split(" #").next().unwrap_or_default();
    let parts = line.split("&&").flat_map(|part| part.split(" | ")).flat_map(|part| part.split(';'));
    let own = parts.filter_map(|part| {
        let part = part.trim().trim_start_matches("$ ").trim_start_matches("sudo ");
        let part = part.strip_prefix("ExecStart=").unwrap_or(part);
        let (program, rest) = part.split_once(' ')?;
        let built = || part.strip_prefix("cargo run --release -- ");
        (program == "evenkeel" || program.ends_with("/evenkeel")).then_some(rest).or_else(built)
    });
    own.collect()
}

#[test]
fn commands_of_the_pages_exist_with_their_options() {
    let help = Help::of(&[]);
    let (mut seen, mut unknown) = (0, Vec::new());
    for page in pages() {
        let text = read(&page);
        for line in quoted(&text).iter().chain(&code(&text)) {
            for command in commands(line) {
                seen += 1;
                if let Some(word) = help.unknown(command) {
                    unknown.push(format!("{}: {word} in evenkeel {command}", short(&page)));
                }
            }
        }
    }
    assert!(seen > 150, "only {seen} commands are found");
    assert!(unknown.is_empty(), "no such command or option:\n{}", unknown.join("\n"));
    assert_eq!(help.unknown("guard run|discover --config FILE"), None);
    assert_eq!(help.unknown("guard run|look"), Some("run|look"));
    assert_eq!(help.unknown("volume make data"), Some("make"));
    assert_eq!(help.unknown("serve --config=a.toml --configs b.toml"), Some("--configs"));
    assert_eq!(commands("sudo evenkeel check a.toml && evenkeel serve # evenkeel"), ["check a.toml", "serve"]);
}
