//! Changes with their values before and after: for the log, one line for each change by command with its caller, and for answers.

use std::collections::BTreeSet;

use evenkeel_policy::Config;
use evenkeel_policy::change::{Change, plan};
use evenkeel_policy::config::{Limit, Tenant, WeightAt};
use evenkeel_policy::history::{Event, History};
use serde::Serialize;
use serde_json::Value;

use crate::caller::Caller;
use crate::history::BY_COMMAND;

/// The most differences that one line names; a reload may have more.
const MAX_NAMED: usize = 20;
/// The most lines in the log about one change: few enough for the log's queue.
const MAX_LINES: usize = 50;
/// The most characters of a value that a line shows; a list may be long.
const MAX_VALUE: usize = 200;

/// Logs that the caller `by` has changed the object `what`, with every value that differs, and returns the lines: one for each
/// [`MAX_NAMED`] differences, and none if no value differs.
pub(crate) fn log<T: Serialize>(by: &Caller, what: &str, before: &T, after: &T) -> Vec<String> {
    let values = serde_json::to_value(before).ok().zip(serde_json::to_value(after).ok());
    let phrases = values.map(|(before, after)| phrases(&before, &after)).unwrap_or_default();
    if phrases.is_empty() {
        return phrases;
    }
    let by = by.to_string();
    let lines: Vec<String> = phrases.iter().map(|phrase| format!("changed by {by}: {what}: {phrase}")).collect();
    lines.iter().for_each(|line| tracing::info!("{line}"));
    lines
}

/// Logs the limits and weights that begin or end between `before` and `after` because their hours of the day do. Returns each
/// object with such a limit or weight, named as in [`log`], with its line.
pub(crate) fn log_hours(before: &Config, after: &Config) -> Vec<(String, String)> {
    let mut changed = Vec::new();
    for (name, is) in &after.pools {
        let limit = before.pools.get(name).and_then(|was| by_hours("limit", &was.limit, &is.limit));
        changed.extend(limit.map(|limit| (format!("pool {name}"), limit)));
    }
    for (name, is) in &after.tenants {
        let values = before.tenants.get(name).map(|was| tenant_by_hours(was, is)).unwrap_or_default();
        if !values.is_empty() {
            changed.push((format!("tenant {name}"), values.join(", ")));
        }
    }
    for (name, is) in &after.volumes {
        let limit = before.volumes.get(name).and_then(|was| by_hours("limit", &was.limit, &is.limit));
        changed.extend(limit.map(|limit| (format!("volume {name}"), limit)));
    }
    let lines = changed.into_iter().map(|(what, values)| {
        let line = format!("changed by schedule: {what}: {values}");
        tracing::info!("{line}");
        (what, line)
    });
    lines.collect()
}

/// The rates of a limit before and after its hours have begun or ended, as a phrase. `None` if its hours have not, or if its
/// values were changed, too: then the line about that change has the rates.
fn by_hours(key: &str, before: &Limit, after: &Limit) -> Option<String> {
    let (from, to, hours) = (before.in_force(), after.in_force(), after.when?);
    let is_schedule = from != to && Limit { is_off: after.is_off, ..*before } == *after;
    is_schedule.then(|| format!("{key} from {from} to {to} ({hours})"))
}

fn tenant_by_hours(before: &Tenant, after: &Tenant) -> Vec<String> {
    let weight = |key: &str, was: Option<WeightAt>, is: Option<WeightAt>, [from, to]: [u32; 2]| {
        let (was, is) = (was?, is?);
        let is_schedule = from != to && was.is_on != is.is_on && WeightAt { is_on: is.is_on, ..was } == is;
        is_schedule.then(|| format!("{key} from {from} to {to} ({})", is.when))
    };
    let weights = [before.weight_in_force(), after.weight_in_force()];
    let mut changed: Vec<String> = by_hours("limit", &before.limit, &after.limit).into_iter().collect();
    changed.extend(weight("weight", before.weight_at, after.weight_at, weights));
    for (pool, is) in &after.pools {
        let Some(was) = before.pools.get(pool) else { continue };
        if let (Some(was), Some(is)) = (was.limit, is.limit) {
            changed.extend(by_hours(&format!("pools.{pool}.limit"), &was, &is));
        }
        let weights = [before, after].map(|tenant| tenant.on(pool).weight_in_force());
        changed.extend(weight(&format!("pools.{pool}.weight"), was.weight_at, is.weight_at, weights));
    }
    changed
}

/// Replaces in a history the values of changes that only clients of the control socket may see: all except those of a tenant or
/// pool, which the public state has, too; but not a tenant's `match`, which names its clients.
pub(crate) fn hide_values(history: &mut History) {
    let is_secret = |event: &Event| {
        let is_about_others = event.pool.is_empty() && event.tenant.is_empty();
        event.reason == BY_COMMAND && (is_about_others || event.because.contains("match"))
    };
    for event in history.events.iter_mut().filter(|event| is_secret(event)) {
        "changed by command, signal or schedule; the log and the control socket have the values"
            .clone_into(&mut event.because);
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

/// The differences as phrases of at most [`MAX_NAMED`] each; beyond [`MAX_LINES`] of them the last one says how many more there
/// are.
fn phrases(before: &Value, after: &Value) -> Vec<String> {
    let mut differing = Vec::new();
    differences(String::new(), before, after, &mut differing);
    let more = differing.len().saturating_sub(MAX_NAMED * MAX_LINES);
    differing.truncate(MAX_NAMED * MAX_LINES);
    let phrases = differing.chunks(MAX_NAMED).map(|named| named.join(", "));
    phrases.chain((more > 0).then(|| format!("and {more} more"))).collect()
}

/// True if a line shows only the beginning of this value, in which two values may not differ.
fn is_long(value: &Value) -> bool {
    value.to_string().len() > MAX_VALUE
}

/// Adds the differences of two lists of which one is long to `out`: the parts that differ, with the index of their first member.
/// If a part is long, too, each member that is in one list alone has a phrase instead, so that no member is missing.
fn list_differences(key: &str, was: &[Value], is: &[Value], out: &mut Vec<String>) {
    let same = was.iter().zip(is).take_while(|(was, is)| was == is).count();
    let (was, is) = (&was[same..], &is[same..]);
    let end = was.iter().rev().zip(is.iter().rev()).take_while(|(was, is)| was == is).count();
    let (was, is) = (&was[..was.len() - end], &is[..is.len() - end]);
    let [before, after] = [was, is].map(|part| Value::from(part.to_vec()));
    let (new, gone) = (only_in(is, was), only_in(was, is));
    if !(is_long(&before) || is_long(&after)) || new.is_empty() && gone.is_empty() {
        out.push(format!("{key}[{same}..] from {} to {}", shown(&before), shown(&after)));
        return;
    }
    let space = if key.is_empty() { "" } else { " " };
    out.extend(new.into_iter().map(|member| format!("{key}{space}with {}", shown(member))));
    out.extend(gone.into_iter().map(|member| format!("{key}{space}without {}", shown(member))));
}

/// The members of `list` that `other` does not have. O(n log n).
fn only_in<'v>(list: &'v [Value], other: &[Value]) -> Vec<&'v Value> {
    let known: BTreeSet<String> = other.iter().map(ToString::to_string).collect();
    list.iter().filter(|member| !known.contains(&member.to_string())).collect()
}

fn differences(key: String, before: &Value, after: &Value, out: &mut Vec<String>) {
    let none = Value::Object(serde_json::Map::new());
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
        (Value::Array(was), Value::Array(is)) if is_long(before) || is_long(after) => {
            list_differences(&key, was, is, out);
        }
        // Member by member.
        (Value::Null, Value::Object(_)) if is_long(after) => differences(key, &none, after, out),
        (Value::Object(_), Value::Null) if is_long(before) => differences(key, before, &none, out),
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
        let event = |tenant: &str, reason: &str, because: &str| Event {
            tenant: tenant.into(),
            reason: reason.into(),
            because: because.into(),
            ..Event::default()
        };
        let secrets = [
            event("", BY_COMMAND, "changed by uid 0: server: allow from nothing to [\"192.0.2.7\"]"),
            event("shop", BY_COMMAND, "changed by uid 0: tenant shop: match from [] to [{\"client\":\"192.0.2.7\"}]"),
            event("new", BY_COMMAND, "changed by uid 0: tenant new: from nothing to {\"match\":[\"192.0.2.7\"]}"),
        ];
        let shown = [
            event("shop", BY_COMMAND, "changed by uid 0: tenant shop: weight from 1 to 3"),
            event("", "elastic", "the budget grows"),
        ];
        let events = shown.iter().cloned().chain(secrets).collect();
        let mut history = History { events, ..History::default() };
        hide_values(&mut history);
        assert_eq!(history.events[..2], shown);
        for Event { because, .. } in &history.events[2..] {
            assert!(because.contains("changed by command") && !because.contains("192.0.2.7"), "{because}");
        }
    }

    #[test]
    fn hours_that_begin_or_end_have_a_line_for_each_object() {
        let text = "[pools.main.limit]\nbytes_per_s = \"40MB\"\nwhen = \"08:00-20:00\"\n\
                    [tenants.gold]\nweight = 2\nweight_at = { weight = 8, when = \"20:00-08:00\" }\n\
                    limit = { iops = 500, when = \"09:00-10:00\" }\n\
                    [tenants.gold.pools.main]\nlimit = { iops = 70, when = \"20:00-08:00\" }\n\
                    weight_at = { weight = 5, when = \"20:00-08:00\" }\n[tenants.other]\nlimit.iops = 5\n\
                    [volumes.v]\nbackend = \"memory\"\nsize = \"1MiB\"\nlimit = { iops = 9, when = \"08:00-20:00\" }\n";
        let at = |minute: u16| {
            let mut config = Config::parse(text, "the test").expect("a configuration");
            config.set_time(minute);
            config
        };
        let (day, evening) = (at(20 * 60 - 1), at(20 * 60));
        let expected = [
            ("pool main", "limit from 40MB/s to none (08:00-20:00)"),
            (
                "tenant gold",
                "weight from 2 to 8 (20:00-08:00), pools.main.limit from none to 70 IOPS (20:00-08:00), pools.main.weight from 2 to 5 (20:00-08:00)",
            ),
            ("volume v", "limit from 9 IOPS to none (08:00-20:00)"),
        ];
        let line = |(what, values): (&str, &str)| (what.to_owned(), format!("changed by schedule: {what}: {values}"));
        assert_eq!(log_hours(&day, &evening), expected.map(line));
        assert!(log_hours(&day, &day).is_empty());
        // A limit with another rate is in the line of the command that set it.
        let mut other = evening.clone();
        other.pools.get_mut("main").expect("a pool").limit.iops = 3;
        assert_eq!(log_hours(&day, &other), expected[1..].iter().copied().map(line).collect::<Vec<_>>());
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
    fn every_difference_is_in_the_log_however_many_there_are_and_wherever_in_a_list() {
        let numbered = |count: u64, more: u64| -> Value {
            (0..count).map(|n| (format!("k{n}"), json!(n + more))).collect::<serde_json::Map<_, _>>().into()
        };
        let lines = log(&Caller::Unknown, "configuration", &numbered(50, 0), &numbered(50, 1));
        assert_eq!(lines.len(), 3);
        for n in 0..50 {
            let named = format!("k{n} from {n} to {}", n + 1);
            assert!(lines.iter().any(|line| line.contains(&named)), "{named}: {lines:?}");
        }
        let too_many = numbered(2_000, 0);
        let lines = log(&Caller::Unknown, "configuration", &json!({}), &too_many);
        assert_eq!(lines.len(), MAX_LINES + 1);
        assert!(lines[MAX_LINES].ends_with("and 1000 more"), "{}", lines[MAX_LINES]);
        assert!(log(&Caller::Unknown, "configuration", &too_many, &too_many).is_empty());

        let list = |more: &[&str]| {
            let hosts = (0..100).map(|n| format!("192.0.2.{n}")).chain(more.iter().map(|&host| host.to_owned()));
            json!({ "allow": hosts.chain(["unix".to_owned()]).collect::<Vec<String>>() })
        };
        assert_eq!(
            sentence(&list(&[]), &list(&["0.0.0.0/0"])).as_deref(),
            Some("allow[100..] from [] to [\"0.0.0.0/0\"]")
        );
        // Both ends of the list differ, and the part between them is long.
        let ends = |first: &str, last: &str| {
            let hosts = (0..100).map(|n| format!("192.0.2.{n}")).chain([last.to_owned()]);
            let hosts: Vec<String> = [first.to_owned()].into_iter().chain(hosts).collect();
            json!({ "allow": hosts })
        };
        assert_eq!(
            sentence(&ends("10.0.0.1", "unix"), &ends("10.0.0.2", "0.0.0.0/0")).as_deref(),
            Some("allow with 10.0.0.2, allow with 0.0.0.0/0, allow without 10.0.0.1, allow without unix")
        );
        // Another order alone.
        let moved = sentence(&ends("10.0.0.1", "unix"), &ends("unix", "10.0.0.1")).expect("it differs");
        assert!(moved.starts_with("allow[0..] from [\"10.0.0.1\""), "{moved}");
        let tenant = json!({ "match": list(&[])["allow"].clone(), "weight": 9 });
        let line = sentence(&json!(null), &tenant).expect("a new one");
        assert!(line.starts_with("match from nothing to [") && line.ends_with("weight from nothing to 9"), "{line}");
        assert!(sentence(&tenant, &json!(null)).is_some_and(|line| line.ends_with("weight from 9 to nothing")));
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
