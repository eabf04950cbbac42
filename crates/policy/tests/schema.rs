//! Tests that the JSON schema describes exactly the configurations that the parser accepts, and that the example shows every key.

use std::collections::BTreeSet;

use evenkeel_policy::{Config, EXAMPLE, schema};
use serde_json::{Value, json};

/// The first violation of the schema by a value, with its path. The keywords of JSON schema that the project's schema uses are
/// implemented: type, enum, const, anyOf, oneOf, $ref, properties, additionalProperties, required, items, minimum, maximum.
fn violation(schema: &Value, value: &Value, root: &Value, path: &str) -> Option<String> {
    if let Some(reference) = schema["$ref"].as_str() {
        let target = root.pointer(reference.trim_start_matches('#')).expect("a reference that leads somewhere");
        return violation(target, value, root, path);
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(options) = schema[key].as_array() {
            let complaints: Vec<_> = options.iter().map(|option| violation(option, value, root, path)).collect();
            if complaints.iter().all(Option::is_some) {
                return Some(format!("{path}: none of {key} fits: {complaints:?}"));
            }
        }
    }
    let complain = |what: &str| Some(format!("{path}: {value} is not {what}"));
    if schema.get("const").is_some_and(|only| only != value) {
        return complain("the constant");
    }
    if schema["enum"].as_array().is_some_and(|values| !values.contains(value)) {
        return complain("one of the values");
    }
    let types = match &schema["type"] {
        Value::String(one) => vec![one.as_str()],
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let fits = |name: &&str| match *name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("the schema uses type {other}"),
    };
    if !types.is_empty() && !types.iter().any(fits) {
        return complain(&types.join(" or "));
    }
    let below = schema["minimum"].as_f64().zip(value.as_f64()).is_some_and(|(bound, n)| n < bound);
    let above = schema["maximum"].as_f64().zip(value.as_f64()).is_some_and(|(bound, n)| n > bound);
    if below || above {
        return complain("in range");
    }
    if let (Some(items), Some(values)) = (schema.get("items"), value.as_array()) {
        return values.iter().find_map(|value| violation(items, value, root, path));
    }
    let members = value.as_object()?;
    for (key, value) in members {
        let inner = format!("{path}.{key}");
        let found = match (schema["properties"].get(key), &schema["additionalProperties"]) {
            (Some(property), _) => violation(property, value, root, &inner),
            (None, Value::Bool(false)) => Some(format!("{inner}: unknown")),
            (None, Value::Object(_)) => violation(&schema["additionalProperties"], value, root, &inner),
            _ => None,
        };
        if found.is_some() {
            return found;
        }
    }
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    required.filter(|key| !members.contains_key(*key)).map(|key| format!("{path}.{key}: missing")).next()
}

fn complaint(value: &Value) -> Option<String> {
    let schema = schema();
    violation(&schema, value, &schema, "")
}

/// The example configuration with every commented default uncommented.
fn example_in_full() -> String {
    let key =
        |line: &str| line.strip_prefix('#').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_lowercase()));
    EXAMPLE.lines().map(|line| if key(line) { &line[1..] } else { line }).collect::<Vec<_>>().join("\n")
}

fn as_json(text: &str) -> Value {
    serde_json::to_value(text.parse::<toml::Table>().expect("TOML")).expect("JSON")
}

#[test]
fn the_example_is_valid_as_it_stands_and_in_full() {
    for text in [EXAMPLE.to_owned(), example_in_full()] {
        let config = Config::parse(&text, "example.toml").unwrap_or_else(|errors| panic!("{errors}"));
        assert!(config.volumes.contains_key("disk0") && config.pools["lab"].emulate.is_some());
        assert_eq!(complaint(&as_json(&text)), None);
    }
}

#[test]
fn commented_defaults_are_the_defaults() {
    let (short, full) = (Config::parse(EXAMPLE, "short"), Config::parse(&example_in_full(), "full"));
    let (short, mut full) = (short.expect("valid"), full.expect("valid"));
    // Written out in the example although they derive from data_dir and the volumes.
    assert_eq!(full.server.unix_paths(), short.server.unix_paths());
    assert_eq!(full.server.control_path(), short.server.control_path());
    assert_eq!(full.default_export(), short.default_export());
    assert_eq!(full.path_of("disk0", &full.volumes["disk0"]), short.path_of("disk0", &short.volumes["disk0"]));
    (full.server.unix, full.server.control, full.server.default_export) = (None, None, None);
    full.volumes.get_mut("disk0").expect("disk0").path = None;
    // What is left out is found out: the system's host name, the size of shards, the latency that targets allow.
    (full.cluster.host, full.cluster.shard_size) = (None, None);
    full.pools.get_mut("main").expect("main").tuning.slots_latency = None;
    for tenant in full.tenants.values_mut() {
        tenant.latency = None;
    }
    assert_eq!(full, short);
}

/// The names of all properties of the schema, at any level.
fn properties(schema: &Value, into: &mut BTreeSet<String>) {
    match schema {
        Value::Object(members) => {
            if let Some(Value::Object(named)) = members.get("properties") {
                into.extend(named.keys().cloned());
            }
            members.values().for_each(|value| properties(value, into));
        }
        Value::Array(values) => values.iter().for_each(|value| properties(value, into)),
        _ => {}
    }
}

#[test]
fn the_example_shows_every_key() {
    let mut known = BTreeSet::new();
    properties(&schema(), &mut known);
    assert!(known.len() > 50, "only {} keys found", known.len());
    let text = example_in_full();
    for key in known {
        let shown = text.contains(&format!("{key} ="))
            || text.contains(&format!("[{key}"))
            || text.contains(&format!(".{key}]"));
        assert!(shown, "{key} is missing in the example");
    }
}

#[test]
fn the_pages_show_valid_configurations_and_every_key() {
    let page = include_str!("../../../docs/reference/config.md");
    let blocks = [page, include_str!("../../../README.md")].map(|page| page.split("```toml\n").skip(1));
    let mut checked = 0;
    for block in blocks.into_iter().flatten().filter_map(|block| block.split("```").next()) {
        Config::parse(block, "page").unwrap_or_else(|errors| panic!("{errors}\n{block}"));
        checked += 1;
    }
    assert_eq!(checked, 2);
    let mut known = BTreeSet::new();
    properties(&schema(), &mut known);
    // The tables of the file have headings; `kind` is shown inside its table.
    let heading = |key: &str| page.contains(&format!("## [{key}")) || page.contains(&format!("{key} = "));
    for key in known {
        assert!(page.contains(&format!("`{key}`")) || heading(&key), "{key} is missing in docs/reference/config.md");
    }
}

#[test]
fn every_key_is_described() {
    fn visit(value: &Value, path: &str) {
        if let Some(named) = value["properties"].as_object() {
            for (key, property) in named {
                assert!(property["description"].is_string(), "{path}.{key} has no description");
            }
        }
        if let Some(members) = value.as_object() {
            members.iter().for_each(|(key, inner)| visit(inner, &format!("{path}.{key}")));
        }
    }
    visit(&schema(), "");
}

#[test]
fn the_schema_and_the_parser_refuse_alike() {
    for (value, reason) in [
        (json!({ "server": { "lisen": [] } }), "unknown"),
        (json!({ "pools": { "a": { "tuning": { "scheduler": "fifo" } } } }), "mclock"),
        (json!({ "pools": { "a": { "tuning": { "admission": "fast" } } } }), "admission"),
        (json!({ "pools": { "a": { "tuning": { "admission": { "budget": 5 } } } } }), "kind"),
        (json!({ "tenants": { "a": { "weight": 0 } } }), "weight"),
        (json!({ "volumes": { "a": { "size": -1 } } }), "size"),
        (json!({ "server": { "workers": true } }), "workers"),
    ] {
        assert!(complaint(&value).is_some(), "the schema takes {value}");
        let text = toml::to_string(&value).expect("TOML");
        let errors = Config::parse(&text, "test").expect_err(reason).to_string();
        assert!(errors.contains(reason), "{errors}");
    }
}
