//! The keys of the configuration for the manual, from the JSON schemas of the configuration and of the agent's table.

use serde_json::Value;

use super::book::unlinked;

/// A key of the configuration.
#[derive(Debug, PartialEq)]
pub(crate) struct Key {
    /// Path of the key, such as `pools.NAME.limit.iops`.
    pub(crate) path: String,
    /// Type, unit and range of the key's values, or a list of the values.
    pub(crate) kind: String,
    /// The key's default as TOML; `None` for a key without one, and for a table.
    pub(crate) default: Option<String>,
    pub(crate) meaning: String,
    /// The values of the key that have a description, each with its description.
    pub(super) values: Vec<(String, String)>,
}

impl Key {
    /// The key's type and default, as text.
    pub(crate) fn facts(&self) -> String {
        match &self.default {
            Some(default) => format!("{}, default {default}", self.kind),
            None => self.kind.clone(),
        }
    }
}

/// All keys of the configuration, sorted by path, each once.
pub(crate) fn keys() -> Vec<Key> {
    let mut keys = Vec::new();
    for (schema, table) in [(evenkeel_policy::schema(), ""), (evenkeel_guard::config::schema(), "agent")] {
        collect(&schema, &schema, table, &mut keys);
    }
    keys.sort_by(|a, b| a.path.cmp(&b.path));
    keys.dedup_by(|later, first| later.path == first.path);
    keys
}

/// Appends to `keys` the keys, also those of subtables, of the table at `path`, which the part `node` of the schema describes.
fn collect(schema: &Value, node: &Value, path: &str, keys: &mut Vec<Key>) {
    for part in parts(schema, node) {
        for (name, property) in part["properties"].as_object().into_iter().flatten() {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            // What a tenant may set for one pool has the keys of what it sets for all.
            if path.matches(".NAME.").count() < 2 {
                collect(schema, property, &path, keys);
            }
            keys.push(key(schema, property, path));
        }
        if part["additionalProperties"].is_object() {
            collect(schema, &part["additionalProperties"], &format!("{path}.NAME"), keys);
        }
    }
}

/// The part `node` of the schema, followed by all parts that `node` refers to by `$ref` or `anyOf`, also indirectly.
fn parts<'a>(schema: &'a Value, node: &'a Value) -> Vec<&'a Value> {
    let reference = node["$ref"].as_str().and_then(|path| schema.pointer(path.trim_start_matches('#')));
    let options = node["anyOf"].as_array().into_iter().flatten();
    let referred = reference.into_iter().chain(options).flat_map(|part| parts(schema, part));
    std::iter::once(node).chain(referred).collect()
}

fn key(schema: &Value, property: &Value, path: String) -> Key {
    let parts = parts(schema, property);
    let meaning = parts.iter().find_map(|part| part["description"].as_str()).unwrap_or_default();
    let mut kinds: Vec<String> = Vec::new();
    for kind in parts.iter().flat_map(|part| kinds_of(part, &path)) {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    let option = |option: &Value| Some((option["const"].to_string(), sentence(option["description"].as_str()?)));
    let options = parts.iter().flat_map(|part| part["oneOf"].as_array().into_iter().flatten());
    let default = match &property["default"] {
        // Of a table with a kind, the rest follows from it.
        Value::Object(table) => table.get("kind"),
        Value::Null => None,
        default => Some(default),
    };
    Key {
        kind: kinds.join(", "),
        default: default.map(Value::to_string),
        meaning: sentence(meaning),
        values: options.filter_map(option).collect(),
        path,
    }
}

/// Texts for the values that a part of the schema accepts: the values themselves, or types with units and ranges. The key's
/// `path` decides if a size is in bytes or in bytes per second.
fn kinds_of(part: &Value, path: &str) -> Vec<String> {
    let options = part["oneOf"].as_array().into_iter().flatten().map(|option| &option["const"]);
    let values = options.chain(part["enum"].as_array().into_iter().flatten()).chain(part.get("const"));
    let values: Vec<String> = values.filter(|value| !value.is_null()).map(Value::to_string).collect();
    if !values.is_empty() {
        return values;
    }
    match part["pattern"].as_str() {
        Some(pattern) if pattern.contains("us|ms") => return vec!["time".into()],
        Some(pattern) if pattern.contains("KMGTP") => {
            let rate = path.ends_with("_per_s") || path.ends_with("bandwidth");
            return vec![if rate { "bytes per second" } else { "bytes" }.into()];
        }
        _ => {}
    }
    let types = match &part["type"] {
        Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
        one => one.as_str().into_iter().collect::<Vec<_>>(),
    };
    let named = |name| match name {
        "integer" | "number" => range(part, name),
        "boolean" => Some("true or false".into()),
        "string" => Some("text".into()),
        "array" => Some("list".into()),
        "object" if part["additionalProperties"].is_object() => Some("tables by name".into()),
        "object" => Some("table".into()),
        _ => None,
    };
    types.into_iter().filter_map(named).collect()
}

/// The type `name` of a number as text, with its bounds in the schema, except a lower bound of 0.
fn range(part: &Value, name: &str) -> Option<String> {
    let low = part.get("minimum").or(part.get("exclusiveMinimum")).filter(|low| low.as_f64() != Some(0.0));
    let high = part.get("maximum").or(part.get("exclusiveMaximum"));
    Some(match (low, high) {
        (Some(low), Some(high)) => format!("{name} from {low} to {high}"),
        (Some(low), None) => format!("{name} from {low}"),
        (None, Some(high)) => format!("{name} up to {high}"),
        (None, None) => name.to_owned(),
    })
}

/// A description from the schema as one line, without links.
fn sentence(text: &str) -> String {
    unlinked(&text.split_whitespace().collect::<Vec<_>>().join(" "))
}
