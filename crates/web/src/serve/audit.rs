//! Logs changes by command: one line for each changed object, with the caller, and old and new values.

use serde::Serialize;
use serde_json::Value;

use crate::caller::Caller;

/// The most differences that one line names; a reload may have more.
const MAX_NAMED: usize = 20;
/// The most characters of a value that a line shows; a list may be long.
const MAX_VALUE: usize = 200;

/// Logs that the caller `by` has changed the object `what`, with every value that differs; no line if no value differs.
pub(crate) fn log<T: Serialize>(by: &Caller, what: &str, before: &T, after: &T) {
    // What is in force has been read from text, and can be written as such.
    let (Ok(before), Ok(after)) = (serde_json::to_value(before), serde_json::to_value(after)) else { return };
    if let Some(changes) = sentence(&before, &after) {
        tracing::info!("changed by {by}: {what}: {changes}");
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
    fn a_line_is_bounded_and_has_no_other_line_in_it() {
        let many: Value = (0..50).map(|n| (format!("k{n}"), json!(n))).collect::<serde_json::Map<_, _>>().into();
        let line = sentence(&json!({}), &many).expect("all of it differs");
        assert!(line.ends_with(", and 30 more"), "{line}");
        let long = json!({ "description": "\n".repeat(5_000) });
        let line = sentence(&json!({}), &long).expect("it differs");
        assert!(line.len() < 2 * MAX_VALUE && !line.contains('\n') && line.ends_with('…'), "{line}");
    }
}
