//! Generated tables of the configuration's keys, from its JSON schema.
//!
//! The meaning of a key is its doc comment. Text after `Default: ` in the comment is shown as the key's default.

use serde_json::{Map, Value};

use super::{Block, linked, phrase, table};

const CONFIG: &str = "docs/reference/config.md";
/// For each generated block: the page that contains it, and the table of the configuration whose keys it lists. `NAME` stands for
/// any name.
const TABLES: [(&str, &str); 11] = [
    (CONFIG, "server"),
    (CONFIG, "server.tls"),
    (CONFIG, "server.http"),
    (CONFIG, "pools.NAME"),
    (CONFIG, "pools.NAME.tuning"),
    (CONFIG, "pools.NAME.tuning.guarantee"),
    (CONFIG, "tenants.NAME"),
    (CONFIG, "volumes.NAME"),
    (CONFIG, "cluster"),
    ("docs/guide/guard.md", "agent"),
    ("docs/guide/ceph.md", "agent.ceph"),
];
/// Links in the tables: path of a key, and the page that explains the key further, relative to the page with the table.
const PAGES: [(&str, &str); 33] = [
    ("server.listen", "#servertls"),
    ("server.http", "#serverhttp"),
    ("server.tls", "#servertls"),
    ("server.placement", "../algorithms/placement.md"),
    ("server.max_connections", "../guide/security.md#bounds-on-clients"),
    ("server.buffer_memory", "../guide/security.md#bounds-on-clients"),
    ("server.handshake_timeout", "../guide/security.md#bounds-on-clients"),
    ("server.max_handshakes", "../guide/security.md#bounds-on-clients"),
    ("server.max_handshakes_per_client", "../guide/security.md#bounds-on-clients"),
    ("server.allow", "../guide/security.md#who-may-open-what"),
    ("pools.NAME.latency", "#latency-targets"),
    ("pools.NAME.enforce", "check.md"),
    ("pools.NAME.tuning", "#poolsnametuning"),
    ("pools.NAME.emulate", "../algorithms/models.md#store"),
    ("pools.NAME.tuning.admission", "#admission-control"),
    ("pools.NAME.tuning.guarantee", "#poolsnametuningguarantee"),
    ("pools.NAME.tuning.guarantee.method", "../algorithms/accurate-throughput.md"),
    ("pools.NAME.tuning.method", "../algorithms/response-time.md"),
    ("pools.NAME.tuning.noisy", "../algorithms/response-time.md"),
    ("pools.NAME.tuning.slots", "../algorithms/slots.md"),
    ("pools.NAME.tuning.slots_period", "cluster.md"),
    ("tenants.NAME.match", "#match"),
    ("tenants.NAME.guarantee", "../algorithms/accurate-throughput.md"),
    ("volumes.NAME.tenant", "#match"),
    ("volumes.NAME.uri", "../guide/serve.md#a-volume-on-another-server"),
    ("volumes.NAME.rbd", "../guide/serve.md#a-volume-in-a-ceph-cluster"),
    ("volumes.NAME.grow", "#files-that-evenkeel-did-not-create"),
    ("cluster.shards_above", "cluster.md#large-clusters"),
    ("cluster.totals", "cluster.md#totals-of-tenants"),
    ("agent.status", "../reference/api.md#of-an-agent-over-tcp"),
    ("agent.http", "security.md#http-beyond-this-machine"),
    ("agent.tls", "security.md#http-beyond-this-machine"),
    ("agent.ceph", "ceph.md"),
];

/// A JSON schema whose parts may refer to its definitions (`$defs`).
#[derive(Clone, Copy)]
struct Schema<'a>(&'a Value);

impl<'a> Schema<'a> {
    /// The part of the schema to which `at` refers by `$ref` or as an optional value, also indirectly; `at` if it refers to none.
    fn resolved(self, mut at: &'a Value) -> &'a Value {
        while let Some(path) = at["$ref"].as_str().or_else(|| at["anyOf"][0]["$ref"].as_str()) {
            at = &self.0["$defs"][path.trim_start_matches("#/$defs/")];
        }
        at
    }

    fn table(self, path: &str) -> &'a Value {
        let step = |at: &'a Value, part: &str| match part {
            "NAME" => self.resolved(&at["additionalProperties"]),
            _ => self.resolved(&at["properties"][part]),
        };
        path.split('.').fold(self.0, step)
    }

    /// The values that a key with an enumeration as its type may have, or the elements of its list, each with its description.
    fn values(self, property: &'a Value) -> Vec<(&'a str, &'a str)> {
        let property = self.resolved(property);
        let items = property.get("items").map_or(property, |items| self.resolved(items));
        let values = items["oneOf"].as_array().into_iter().flatten();
        values
            .filter_map(|value| Some((value["const"].as_str()?, value["description"].as_str().unwrap_or_default())))
            .collect()
    }

    fn row(self, path: &str, key: &str, property: &'a Value, is_needed: bool) -> Vec<String> {
        let description = property["description"].as_str().unwrap_or_else(|| panic!("{path} is not described"));
        let description = coded(&description.replace('\n', " "));
        let (mut meaning, default) = match description.split_once("Default: ") {
            Some((meaning, default)) => (phrase(meaning), Some(phrase(default))),
            None => (phrase(&description), None),
        };
        let written = property.get("default").map(written);
        let default = default.or_else(|| Some(written?.map_or("none".into(), |default| format!("`{default}`"))));
        let default = default.unwrap_or_else(|| match property["type"].as_str() {
            _ if is_needed => "needed".into(),
            Some("array") => "`[]`".into(),
            _ => "none".into(),
        });
        let page = PAGES.iter().find(|(known, _)| *known == path).map(|(_, page)| *page);
        // The page explains the values of a key that has one: here are their names alone, without that of the default.
        let text = if page.is_some() { format!("{default} {meaning}") } else { meaning.clone() };
        let is_named = |value: &str| text.contains(&format!("`\"{value}\"`"));
        let values = self.values(property).into_iter().filter(|(value, _)| !is_named(value));
        let values: Vec<String> = values
            .map(|(value, description)| match phrase(&coded(description)) {
                description if page.is_some() || description == value => format!("`\"{value}\"`"),
                description => format!("`\"{value}\"`: {description}"),
            })
            .collect();
        if !values.is_empty() {
            let between = if values.iter().any(|value| value.contains(": ")) { "; " } else { ", " };
            meaning = format!("{meaning}: {}", values.join(between));
        }
        if TABLES.iter().any(|(_, table)| *table == path) {
            return vec![linked(key, path, &PAGES), String::new(), meaning];
        }
        // The keys of a table that has none of its own in the manual.
        let keys = self.resolved(property)["properties"].as_object().into_iter().flat_map(Map::keys);
        let text = format!("{default} {meaning}");
        let is_named =
            |key: &str| ["`KEY`", "KEY = ", ".KEY"].iter().any(|form| text.contains(&form.replace("KEY", key)));
        let keys: Vec<String> = keys.filter(|key| !is_named(key)).map(|key| format!("`{key}`")).collect();
        if !keys.is_empty() {
            meaning = format!("{meaning} ({})", keys.join(", "));
        }
        vec![linked(key, path, &PAGES), default, meaning]
    }

    fn rows(self, path: &str, at: &'a Value) -> impl Iterator<Item = Vec<String>> {
        let needed = at["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let needed: Vec<&str> = needed.collect();
        let keys: &Map<String, Value> = at["properties"].as_object().unwrap_or_else(|| panic!("{path} has no keys"));
        keys.iter().map(move |(key, property)| {
            self.row(&format!("{path}.{key}"), key, property, needed.contains(&key.as_str()))
        })
    }
}

/// `text` with quoted values as Markdown code, except in parts that are code already.
fn coded(text: &str) -> String {
    let parts = text.split('`').enumerate().map(|(place, part)| {
        if place % 2 == 1 {
            return format!("`{part}`");
        }
        let parts = part.split('"').enumerate();
        parts.map(|(place, part)| if place % 2 == 1 { format!("`\"{part}\"`") } else { part.to_owned() }).collect()
    });
    parts.collect()
}

/// A default of the schema as TOML; `None` if it is `null` or has only members that are 0.
fn written(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::Array(values) => {
            let values: Vec<String> = values.iter().map(Value::to_string).collect();
            Some(format!("[{}]", values.join(", ")))
        }
        Value::Object(members) => {
            let is_set = |value: &Value| value.as_u64() != Some(0) && value.as_str() != Some("0");
            let members = members.iter().filter(|(_, value)| is_set(value));
            let members: Vec<String> =
                members.filter_map(|(key, value)| Some(format!("{key} = {}", written(value)?))).collect();
            (!members.is_empty()).then(|| format!("{{ {} }}", members.join(", ")))
        }
        other => Some(other.to_string()),
    }
}

pub(super) fn blocks() -> Vec<Block> {
    let (config, agent) = (evenkeel_policy::schema(), evenkeel_guard::config::schema());
    let block = |(page, path): (&'static str, &'static str)| {
        let (schema, at) = match path.strip_prefix("agent") {
            Some("") => (Schema(&agent), &agent),
            Some(table) => (Schema(&agent), Schema(&agent).table(&table[1..])),
            None => (Schema(&config), Schema(&config).table(path)),
        };
        Block { page, name: path, text: table(&["key", "default", "meaning"], schema.rows(path, at)).trim_end().into() }
    };
    TABLES.into_iter().map(block).collect()
}

#[test]
fn every_page_is_of_a_key() {
    let text: String = blocks().into_iter().map(|block| block.text).collect();
    for (path, page) in PAGES {
        let key = path.rsplit('.').next().expect("a key");
        assert!(text.contains(&format!("[`{key}`]({page})")), "{path} is no key");
    }
}

#[test]
fn rows_have_the_default_the_meaning_and_the_values() {
    let schema = serde_json::json!({ "$defs": { "Way": { "oneOf": [
        { "const": "up", "description": "Upwards." }, { "const": "off", "description": "Off." } ] } } });
    let row = |property: Value| Schema(&schema).row("t.k", "k", &property, false).join(" | ");
    let way = serde_json::json!({ "$ref": "#/$defs/Way", "default": "up", "description": "The way." });
    assert_eq!(row(way), "`k` | `\"up\"` | the way: `\"up\"`: upwards; `\"off\"`");
    let said = serde_json::json!({ "type": ["string", "null"], "description": "At \"1s\". Default: as `x` says." });
    assert_eq!(row(said), "`k` | as `x` says | at `\"1s\"`");
    let limit =
        serde_json::json!({ "default": { "iops": 0, "burst": "10ms", "rates": {} }, "description": "A limit." });
    assert_eq!(row(limit), "`k` | `{ burst = \"10ms\" }` | a limit");
    let list = serde_json::json!({ "type": "array", "description": "A list." });
    assert_eq!(row(list), "`k` | `[]` | a list");
}
