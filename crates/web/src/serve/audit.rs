//! Changes with their values before and after: for the log, one line for each change by command with its caller, and for answers.

use evenkeel_policy::Config;
use evenkeel_policy::change::{Change, plan};
use evenkeel_policy::history::History;
use serde::Serialize;
use serde_json::Value;

use crate::caller::Caller;
use crate::history::BY_COMMAND;

/// The most differences that one line names; a reload may have more.
const MAX_NAMED: usize = 20;
/// The most characters of a value that a line shows; a list may be long.
const MAX_VALUE: usize = 200;

/// Logs that the caller `by` has changed the object `what`, with every value that differs, and returns the line; no line if no
/// value differs.
pub(crate) fn log<T: Serialize>(by: &Caller, what: &str, before: &T, after: &T) -> Option<String> {
    let line = format!("changed by {by}: {what}: {}", differing(before, after)?);
    tracing::info!("{line}");
    Some(line)
}

/// Removes from a history what only the control socket may show, as of the configuration: the values of changes, except those of
/// a tenant or a pool, which the state shows.
pub(crate) fn hide_values(history: &mut History) {
    let events = history.events.iter_mut().filter(|event| event.reason == BY_COMMAND);
    for event in events.filter(|event| event.pool.is_empty() && event.tenant.is_empty()) {
        "changed by command or signal; the log and the control socket have the values".clone_into(&mut event.because);
    }
}

/// Every value by which two objects differ, with its value in each, as a phrase; `None` if none does.
fn differing<T: Serialize>(before: &T, after: &T) -> Option<String> {
    // What is in force has been read from text, and can be written as such.
    sentence(&serde_json::to_value(before).ok()?, &serde_json::to_value(after).ok()?)
}

/// `lines` about changes that lead from one configuration to another: a line about an object that changes has its values before
/// and after, too.
pub(crate) fn with_values(lines: Vec<String>, before: &Config, after: &Config) -> Vec<String> {
    let changes = plan(before, after).unwrap_or_default();
    let valued = |line: String| {
        let change = changes.iter().find(|change| change.to_string() == line);
        match change.and_then(|change| values(change, before, after)) {
            Some(values) => format!("{line}: {values}"),
            None => line,
        }
    };
    lines.into_iter().map(valued).collect()
}

fn values(change: &Change, before: &Config, after: &Config) -> Option<String> {
    match change {
        Change::PoolChanged(name) => differing(&before.pools.get(name), &after.pools.get(name)),
        Change::TenantChanged(name) => differing(&before.tenants.get(name), &after.tenants.get(name)),
        Change::VolumeChanged(name) => differing(&before.volumes.get(name), &after.volumes.get(name)),
        Change::Server { key } => {
            let of = |config: &Config| serde_json::to_value(&config.server).ok().map(|server| server[*key].clone());
            differing(&of(before), &of(after))
        }
        // The names of the others say all.
        _ => None,
    }
}

/// The differences as a phrase, such as "limit.iops from 100 to 200, weight from 1 to 3".
fn sentence(before: &Value, after: &Value) -> Option<String> {
    let mut differing = Vec::new();
    differences(String::new(), before, after, &mut differing);
    let more = differing.len().saturating_sub(MAX_NAMED);
    differing.truncate(MAX_NAMED);
    if more > 0 {
        differing.push(format!("and {more} more"));
    }
    (!differing.is_empty()).then(|| differing.join(", "))
}

fn differences(key: String, before: &Value, after: &Value, out: &mut Vec<String>) {
    match (before, after) {
        (Value::Object(was), Value::Object(is)) => {
            let keys = was.keys().chain(is.keys().filter(|key| !was.contains_key(*key)));
            for member in keys {
                let dot = if key.is_empty() { "" } else { "." };
                let get = |members: &serde_json::Map<String, Value>| members.get(member).cloned().unwrap_or_default();
                differences(format!("{key}{dot}{member}"), &get(was), &get(is), out);
            }
        }
        (before, after) if before == after => {}
        (before, after) => {
            let space = if key.is_empty() { "" } else { " " };
            out.push(format!("{key}{space}from {} to {}", shown(before), shown(after)));
        }
    }
}

fn shown(value: &Value) -> String {
    let is_plain = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "._-/:%".contains(c));
    let text = match value {
        Value::Null => return "nothing".to_owned(),
        Value::String(text) if !text.is_empty() && is_plain(text) => text.clone(),
        other => other.to_string(),
    };
    match text.char_indices().nth(MAX_VALUE) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_line_names_what_differs_from_what_to_what() {
        let before = json!({ "limit": { "iops": 100, "bytes_per_s": "0" }, "weight": 1, "clients": [] });
        let after =
            json!({ "limit": { "iops": 100, "bytes_per_s": "10MB" }, "weight": 3, "clients": [], "burst": "5ms" });
        assert_eq!(
            sentence(&before, &after).as_deref(),
            Some("limit.bytes_per_s from 0 to 10MB, weight from 1 to 3, burst from nothing to 5ms")
        );
        assert_eq!(sentence(&after, &after), None);
        assert_eq!(
            sentence(&json!(null), &json!({ "size": "1MiB" })).as_deref(),
            Some("from nothing to {\"size\":\"1MiB\"}")
        );
    }

    #[test]
    fn a_status_client_sees_no_values_that_the_state_does_not_have() {
        use evenkeel_policy::history::Event;
        let event = |tenant: &str, reason: &str, because: &str| Event {
            tenant: tenant.into(),
            reason: reason.into(),
            because: because.into(),
            ..Event::default()
        };
        let secret = event("", BY_COMMAND, "changed by uid 0: server: allow from nothing to [\"192.0.2.7\"]");
        let shown = [
            event("shop", BY_COMMAND, "changed by uid 0: tenant shop: weight from 1 to 3"),
            event("", "elastic", "the budget grows"),
        ];
        let events = shown.iter().cloned().chain([secret]).collect();
        let mut history = History { events, ..History::default() };
        hide_values(&mut history);
        assert_eq!(history.events[..2], shown);
        let because = &history.events[2].because;
        assert!(because.contains("changed by command") && !because.contains("192.0.2.7"), "{because}");
    }

    #[test]
    fn an_answer_has_the_values_before_and_after() {
        let config = |text: &str| Config::parse(text, "the test").expect("a configuration");
        let before = config("[tenants.gold]\nweight = 2\n[pools.old]\n[server]\nworkers = 2\n");
        let after = config("[tenants.gold]\nweight = 3\nlimit.iops = 50\n[tenants.new]\n[server]\nworkers = 3\n");
        let lines = ["tenant gold changed", "server.workers changed", "tenant new added", "a note"];
        let expected = [
            "tenant gold changed: limit.iops from 0 to 50, weight from 2 to 3",
            "server.workers changed: from 2 to 3",
            "tenant new added",
            "a note",
        ];
        assert_eq!(with_values(lines.map(str::to_owned).to_vec(), &before, &after), expected);
    }

    #[test]
    fn a_line_is_bounded_and_has_no_other_line_in_it() {
        let many: Value = (0..50).map(|n| (format!("k{n}"), json!(n))).collect::<serde_json::Map<_, _>>().into();
        let line = sentence(&json!({}), &many).expect("all of it differs");
        assert!(line.ends_with(", and 30 more"), "{line}");
        let long = json!({ "description": "\n".repeat(5_000) });
        let line = sentence(&json!({}), &long).expect("it differs");
        assert!(line.len() < 2 * MAX_VALUE && !line.contains('\n') && line.ends_with('…'), "{line}");
    }
}
