//! `tenant show`, `pool show` and `volume show`: settings in force and figures of one object of a running server.

use std::fmt::Write as _;

use anyhow::bail;
use evenkeel_policy::state::{PoolState, State, TenantState};
use evenkeel_policy::unknown;
use serde::Serialize;
use serde_json::Value;

use super::ask::{Ask, in_force};
use super::{Connect, PATIENCE, show};
use crate::output;

/// An object of a running server.
#[derive(Serialize)]
struct One<'s, S> {
    name: &'s str,
    /// Keys of its table in the configuration, as in force; `null` for a tenant that another one makes of each match.
    settings: Value,
    state: S,
}

/// The settings in force of the object `name` of the table `table`; null if the table has no such object.
fn settings(connect: &Connect, table: &str, name: &str) -> anyhow::Result<Value> {
    Ok(in_force(connect, PATIENCE)?[table].get(name).cloned().unwrap_or_default())
}

/// Shows a tenant: its settings, its row of each pool, its verdicts and what throttles it.
///
/// # Errors
/// When no server answers, or it has no such tenant.
pub(super) fn tenant(ask: &Ask, name: &str) -> anyhow::Result<()> {
    let mut state = ask.connect.state()?;
    let known = state.pools.iter().flat_map(|pool| &pool.tenants).map(|tenant| tenant.name.clone());
    let known: Vec<String> = known.collect();
    for pool in &mut state.pools {
        pool.tenants.retain(|tenant| tenant.name == name);
    }
    state.pools.retain(|pool| !pool.tenants.is_empty());
    let settings = settings(&ask.connect, "tenants", name)?;
    if settings.is_null() && state.pools.is_empty() {
        return absent("tenant", name, known);
    }
    let one = One { name, settings, state: show::by_pool(&state) };
    output::show(ask.json, &one, |one| {
        let mut text = format!("tenant {name}\n{}", lines(&one.settings));
        for (pool, tenant) in state.pools.iter().flat_map(|pool| pool.tenants.iter().map(move |one| (pool, one))) {
            text += &on_pool(pool, tenant);
        }
        text + &show::tenants(&state)
    })
}

/// Verdicts on a tenant's targets on a pool, the throttle and the reason.
fn on_pool(pool: &PoolState, tenant: &TenantState) -> String {
    let mut text = format!("pool {}\n", pool.name);
    let Some(lately) = &tenant.lately else { return text };
    for target in &lately.targets {
        let _ = writeln!(text, "  target: {} {}", target.verdict.word(), target.what);
    }
    if let Some(by) = &lately.throttled_by {
        let _ = writeln!(text, "  throttled by: {} {}", by.by, by.how);
    }
    if !lately.because.is_empty() {
        let _ = writeln!(text, "  why: {}", lately.because);
    }
    text
}

/// Shows a pool: its settings, its figures and its tenants.
///
/// # Errors
/// When no server answers, or it has no such pool.
pub(super) fn pool(ask: &Ask, name: &str) -> anyhow::Result<()> {
    let State { pools, .. } = ask.connect.state()?;
    let Some(pool) = pools.iter().find(|pool| pool.name == name) else {
        return absent("pool", name, pools.iter().map(|pool| pool.name.clone()).collect());
    };
    let one = One { name, settings: settings(&ask.connect, "pools", name)?, state: pool };
    output::show(ask.json, &one, |one| format!("settings\n{}\n{}", lines(&one.settings), show::pool(pool)))
}

/// Shows a volume: its settings, its space and its connections.
///
/// # Errors
/// When no server answers, or it has no such volume.
pub(super) fn volume(ask: &Ask, name: &str) -> anyhow::Result<()> {
    let mut state = ask.connect.state()?;
    let known: Vec<String> = state.volumes.iter().map(|volume| volume.name.clone()).collect();
    state.volumes.retain(|volume| volume.name == name);
    let Some(volume) = state.volumes.first() else { return absent("volume", name, known) };
    let one = One { name, settings: settings(&ask.connect, "volumes", name)?, state: volume };
    output::show(ask.json, &one, |one| {
        let offers = volume.flags.join(" ");
        format!("volume {name}\n{}  offers: {offers}\n{}", lines(&one.settings), show::volumes(&state))
    })
}

fn absent(what: &str, name: &str, mut known: Vec<String>) -> anyhow::Result<()> {
    known.sort();
    known.dedup();
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    bail!("{}\nwhat to do: `evenkeel {what} list` shows all", unknown(what, name, &known))
}

/// Settings as lines, one for each key, with dots in the keys of inner tables.
fn lines(settings: &Value) -> String {
    let mut text = String::new();
    add(&mut text, "", settings);
    text
}

fn add(text: &mut String, key: &str, value: &Value) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                let dot = if key.is_empty() { "" } else { "." };
                add(text, &format!("{key}{dot}{name}"), value);
            }
        }
        Value::Null => {}
        Value::String(plain) => {
            let _ = writeln!(text, "  {key}: {}", output::printable(plain));
        }
        other => {
            let _ = writeln!(text, "  {key}: {other}");
        }
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_policy::verdict::{Kind, Lately, Target, ThrottledBy, Verdict};
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_are_lines_with_dots_in_their_keys() {
        let settings = json!({ "limit": { "iops": 5, "when": "22:00-06:00" }, "match": ["volume:a"], "latency": null });
        assert_eq!(lines(&settings), "  limit.iops: 5\n  limit.when: 22:00-06:00\n  match: [\"volume:a\"]\n");
        assert_eq!(lines(&Value::Null), "");
    }

    #[test]
    fn a_tenant_has_its_verdicts_its_throttle_and_the_reason() {
        let throttled = ThrottledBy {
            by: "operator".into(),
            cause: evenkeel_policy::verdict::Cause::Limit,
            how: "50 IOPS".into(),
            because: String::new(),
        };
        let target = Target { what: "100 IOPS".into(), kind: Kind::Reservation, verdict: Verdict::Missed };
        let lately = Lately {
            targets: vec![target],
            throttled_by: Some(throttled),
            because: "it is at its limit".into(),
            ..Lately::default()
        };
        let tenant = TenantState { lately: Some(lately), ..TenantState::default() };
        let pool = PoolState { name: "main".into(), ..PoolState::default() };
        let expected =
            "pool main\n  target: MISSED 100 IOPS\n  throttled by: operator 50 IOPS\n  why: it is at its limit\n";
        assert_eq!(on_pool(&pool, &tenant), expected);
    }

    #[test]
    fn an_unknown_name_is_answered_by_the_most_similar_one() {
        let error = absent("pool", "fats", vec!["fast".into(), "slow".into()]).expect_err("unknown").to_string();
        assert!(error.contains("did you mean \"fast\"") && error.contains("`evenkeel pool list`"), "{error}");
    }
}
