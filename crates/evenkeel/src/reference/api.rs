//! Tables of the requests that a server takes, made of the tables of its routers.

use evenkeel_guard::loops::record;
use evenkeel_policy::state;
use evenkeel_web::serve::{CHANGES, READS, Request};
use serde_json::Value;

use super::{Block, linked, table};

const PAGE: &str = "docs/reference/api.md";
/// Where answers are explained further.
const PAGES: [(&str, &str); 1] = [("/metrics", "../guide/monitoring.md")];

fn row(request: &Request) -> [String; 3] {
    let body = if request.body.is_empty() { String::new() } else { format!("`{}`", request.body) };
    let name = format!("{} {}", request.method, request.path);
    [linked(&name, request.path, &PAGES), body, request.effect.to_owned()]
}

pub(super) fn blocks() -> Vec<Block> {
    let reads = table(&["request", "answer"], READS.iter().map(row).map(|[name, _, effect]| vec![name, effect]));
    let changes = table(&["request", "body", "effect"], CHANGES.iter().map(row).map(Vec::from));
    let block = |name, text: String| Block { page: PAGE, name, text: text.trim_end().into() };
    vec![block("reads", reads), block("changes", changes)]
}

/// Keys of a schema that have no description.
fn undescribed(schema: &Value) -> Vec<&str> {
    let own = schema["properties"].as_object().into_iter().flatten();
    let own = own.filter(|(_, property)| property["description"].is_null()).map(|(key, _)| key.as_str());
    let inner = schema["$defs"].as_object().into_iter().flat_map(|kinds| kinds.values()).flat_map(undescribed);
    own.chain(inner).collect()
}

#[test]
fn every_field_of_the_state_is_described() {
    for schema in [state::schema(), record::schema()] {
        assert!(schema["$defs"].as_object().is_some_and(|kinds| kinds.len() > 10), "{schema:#}");
        assert_eq!(undescribed(&schema), [""; 0]);
    }
    assert_eq!(undescribed(&serde_json::json!({ "properties": { "a": { "type": "string" } } })), ["a"]);
}
