//! Generated tables of the API's page: the requests that server and agent answer, from the routers' tables, and the fields of
//! their states, from the JSON schemas.

use evenkeel_guard::loops::record;
use evenkeel_policy::{history, state};
use evenkeel_web::serve::{CHANGES, READS};
use evenkeel_web::{Request, guard};
use serde_json::Value;

use super::{Block, linked, phrase, table};

const PAGE: &str = "docs/reference/api.md";
/// Links in the tables: name of a request's path or of a field, and the page that explains it further.
const PAGES: [(&str, &str); 2] = [("/metrics", "../guide/monitoring.md"), ("lately", "#verdicts")];

fn row<S>(request: &Request<S>) -> [String; 3] {
    let body = if request.body.is_empty() { String::new() } else { format!("`{}`", request.body) };
    let name = format!("{} {}", request.method, request.path);
    [linked(&name, request.path, &PAGES), body, request.effect.to_owned()]
}

fn reads<S>(requests: &[Request<S>]) -> String {
    table(&["request", "answer"], requests.iter().map(row).map(|[name, _, effect]| vec![name, effect]))
}

/// A table of the fields of a kind of record in `schema`; of the whole state if `kind` is `None`.
fn fields(schema: &Value, kind: Option<&str>) -> String {
    let record = kind.map_or(schema, |kind| &schema["$defs"][kind]);
    let fields = record["properties"].as_object().unwrap_or_else(|| panic!("{kind:?} has no fields"));
    let meaning = |field: &Value| phrase(&field["description"].as_str().unwrap_or_default().replace('\n', " "));
    table(&["field", "meaning"], fields.iter().map(|(name, field)| vec![linked(name, name, &PAGES), meaning(field)]))
}

pub(super) fn blocks() -> Vec<Block> {
    let changes = table(&["request", "body", "effect"], CHANGES.iter().map(row).map(Vec::from));
    let block = |name, text: String| Block { page: PAGE, name, text: text.trim_end().into() };
    let (state, agent) = (state::schema(), record::schema());
    vec![
        block("reads", reads(READS)),
        block("reads of an agent", reads(guard::READS)),
        block("changes", changes),
        block("state", fields(&state, None)),
        block("state pools", fields(&state, Some("PoolState"))),
        block("state tenants", fields(&state, Some("TenantState"))),
        block("state volumes", fields(&state, Some("VolumeState"))),
        block("agent-state", fields(&agent, None)),
        block("agent-state pools", fields(&agent, Some("PoolState"))),
    ]
}

/// Names of the schema's fields that have no description, also of those in its definitions.
fn undescribed(schema: &Value) -> Vec<&str> {
    let own = schema["properties"].as_object().into_iter().flatten();
    let own = own.filter(|(_, property)| property["description"].is_null()).map(|(key, _)| key.as_str());
    let inner = schema["$defs"].as_object().into_iter().flat_map(|kinds| kinds.values()).flat_map(undescribed);
    own.chain(inner).collect()
}

#[test]
fn every_field_of_the_state_is_described() {
    for schema in [state::schema(), record::schema(), history::schema()] {
        assert!(schema["$defs"].as_object().is_some_and(|kinds| kinds.len() >= 6), "{schema:#}");
        assert_eq!(undescribed(&schema), [""; 0]);
    }
    assert_eq!(undescribed(&serde_json::json!({ "properties": { "a": { "type": "string" } } })), ["a"]);
}
