//! The judgements that `evenkeel top` and the dashboard must agree on: `judge_cases.json` has them, and
//! `cargo xtask lab browser` puts the same ones to the page.

use evenkeel_policy::state::{Clients, PoolState, State, TenantState};
use serde_json::{Value, json};

use super::row::{Row, Tab};
use super::serve::Feed;

fn table() -> Value {
    serde_json::from_str(include_str!("judge_cases.json")).unwrap()
}

/// `part` over `base`; where there is nothing yet, over what `parts` has under that name.
fn over(base: &Value, part: &Value, name: &str, parts: &Value) -> Value {
    let base = if base.is_object() { base } else { &parts[name] };
    match (base, part) {
        (_, Value::Array(items)) => items.iter().map(|item| over(&Value::Null, item, name, parts)).collect(),
        (Value::Object(base), Value::Object(part)) => {
            let mut merged = base.clone();
            for (key, value) in part {
                let value = over(base.get(key).unwrap_or(&Value::Null), value, key, parts);
                merged.insert(key.clone(), value);
            }
            merged.into()
        }
        _ => part.clone(),
    }
}

/// What the server told: a pool with one tenant.
fn state(told: &Value, base: &Value, uptime_s: f64) -> State {
    let of = |name: &str| {
        let part = told.get(name).cloned().unwrap_or(json!({}));
        over(&base[name], &part, name, base)
    };
    let tenant: TenantState = serde_json::from_value(of("tenant")).unwrap();
    let pool: PoolState = serde_json::from_value(of("pool")).unwrap();
    State { uptime_s, pools: vec![PoolState { tenants: vec![tenant], ..pool }], ..State::default() }
}

/// Verdict on the worst goal, and who throttles.
fn says(row: &Row) -> Value {
    let verdict = row.goal.as_ref().map(|goal| goal.verdict.word().to_lowercase());
    json!([verdict, row.hold.as_ref().map(|hold| hold.by.clone())])
}

#[test]
fn every_case_is_judged_as_the_table_says() {
    let table = table();
    let cases = table["cases"].as_array().unwrap();
    for case in cases {
        let mut feed = Feed::default();
        feed.take(state(&case["was"], &table["base"], 100.0), Clients::default());
        let sample = feed.take(state(case, &table["base"], 101.0), Clients::default());
        for (tab, expected) in [(Tab::Pools, &case["pool_says"]), (Tab::Tenants, &case["tenant_says"])] {
            let rows = &sample.tables.iter().find(|table| table.tab == tab).unwrap().rows;
            assert_eq!(says(&rows[0]), *expected, "{tab:?}: {}", case["name"]);
        }
    }
    for word in ["met", "missed", "idle"] {
        let found = |says: &str| cases.iter().any(|case| case[says][0] == word);
        assert!(found("pool_says") && found("tenant_says"), "no case is {word}");
    }
}

#[test]
fn the_base_of_the_cases_is_what_a_server_tells_of_nothing() {
    let table = table();
    let base = &table["base"];
    assert_eq!(serde_json::from_value::<TenantState>(base["tenant"].clone()).unwrap(), TenantState::default());
    assert_eq!(serde_json::from_value::<PoolState>(base["pool"].clone()).unwrap(), PoolState::default());
    // The page, unlike this program, does not fill in what is not told: nothing that a server tells may be missing.
    for (name, told) in [
        ("tenant", serde_json::to_value(TenantState::default()).unwrap()),
        ("pool", serde_json::to_value(PoolState::default()).unwrap()),
    ] {
        let missing: Vec<&String> =
            told.as_object().unwrap().keys().filter(|key| base[name].get(key).is_none()).collect();
        assert!(missing.is_empty(), "{name}: {missing:?}");
    }
}
