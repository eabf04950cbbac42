//! A trouble as an operator meets it: the views that must name it, at present and of the past.

use std::process::Output;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::server::{Folder, Server, http, run, until};

/// Upper bound on the wait for any event; each takes a few seconds on an idle machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Time after the first failed request within which a trouble is named, in seconds, by the times that the history has. The time
/// that a command waits on a busy machine is no part of it.
const NAMED_WITHIN_S: u64 = 5;
/// Time before a trouble in which its first failed request is looked for, in seconds.
const LOOKED_BACK_S: u64 = 60;

/// A trouble that is expected.
pub(crate) struct Trouble<'t> {
    /// Name of its kind.
    pub(crate) kind: &'t str,
    /// Beginning of the name of its object; empty for the whole program.
    pub(crate) about: &'t str,
    /// Words of its cause.
    pub(crate) cause: &'t str,
    /// Words of its cure; of some troubles they are part of the sentence about the cause.
    pub(crate) cure: &'t str,
    /// Words of its cause when it began.
    pub(crate) recorded: &'t str,
}

impl<'t> Trouble<'t> {
    /// A trouble whose cause has the same words now and when it began.
    pub(crate) fn new(kind: &'t str, about: &'t str, cause: &'t str, cure: &'t str) -> Self {
        Self { kind, about, cause, cure, recorded: cause }
    }

    /// True if `record` is one of the troubles that the API lists, and this one.
    fn is(&self, record: &Value) -> bool {
        let text = |key: &str| record[key].as_str().unwrap_or_default();
        let (because, cure) = (text("because"), text("cure"));
        text("kind") == self.kind
            && text("about").starts_with(self.about)
            && because.contains(self.cause)
            && (because.contains(self.cure) || cure.contains(self.cure))
    }

    /// True if this trouble is among `troubles`.
    pub(crate) fn is_among(&self, troubles: &Value) -> bool {
        troubles.as_array().is_some_and(|all| all.iter().any(|one| self.is(one)))
    }

    /// Asserts that health, banner, `top` and `why` name the trouble, with cause and cure, of the server or agent at `status`.
    /// Returns when it began according to the history, as Unix time in seconds.
    pub(crate) fn is_named(&self, folder: &Folder, status: &str) -> u64 {
        let begun = Instant::now();
        until("health", PATIENCE, || {
            let output = run(folder, &["health", "--json", "--status", status]);
            let health = json(&output.stdout);
            let is_named = matches!(output.status.code(), Some(1 | 2)) && self.is_among(&health["troubles"]);
            if is_named { Ok(()) } else { Err(format!("{}: {health:#}", output.status)) }
        });
        println!("{} is named by health after {:.1} s", self.kind, begun.elapsed().as_secs_f64());
        until("the banner", PATIENCE, || {
            let health = state(status)["health"].take();
            if self.is_among(&health["troubles"]) { Ok(()) } else { Err(format!("{health:#}")) }
        });
        for command in [&["top", "--once"][..], &["why"]] {
            until(command[0], PATIENCE, || {
                let output = run(folder, &[command, &["--status", status]].concat());
                with_words(&output, &[self.about, self.cause, self.cure])
            });
        }
        println!("{} is named by all views after {:.1} s", self.kind, begun.elapsed().as_secs_f64());
        self.begin(folder, &["--status", status])
    }

    /// As [`Self::outlives`], for a trouble of failed requests: it begins within five seconds of the history from the first of
    /// them on. A second in which a busy machine let the server record nothing does not count.
    pub(crate) fn follows_failures(&self, folder: &Folder, server: Server, text: &str) {
        let at = self.is_named(folder, server.status());
        let (first, recorded_s) = since_failure(folder, server.status(), at);
        println!("{} begins {} s after the first failed request", self.kind, at.saturating_sub(first));
        assert!(recorded_s <= NAMED_WITHIN_S, "a request failed at {first}, the trouble began at {at}: {recorded_s} s");
        drop(server);
        self.is_explained(folder, Server::configured(folder, text).status(), at);
    }

    /// Asserts that the trouble of `server` is named at present, and explained after a restart with the configuration `text`.
    /// `between` ends what made the trouble, when the server has ended.
    pub(crate) fn outlives(&self, folder: &Folder, server: Server, text: &str, between: impl FnOnce()) {
        let at = self.is_named(folder, server.status());
        drop(server);
        between();
        self.is_explained(folder, Server::configured(folder, text).status(), at);
    }

    /// Asserts that history, `why` and `top` explain the trouble that began at `at`, of a program that has been restarted since
    /// and now answers at `status`.
    pub(crate) fn is_explained(&self, folder: &Folder, status: &str, at: u64) {
        let [from, now, to] = [at - 2, at, at + 2].map(|second| second.to_string());
        self.begin(folder, &["--from", &from, "--to", &to, "--status", status]);
        for command in [&["top", "--once"][..], &["why"]] {
            until(command[0], PATIENCE, || {
                let output = run(folder, &[command, &["--at", &now, "--status", status]].concat());
                with_words(&output, &[self.about, self.recorded])
            });
        }
    }

    /// When the trouble began, according to the history.
    fn begin(&self, folder: &Folder, arguments: &[&str]) -> u64 {
        let is_begin = |event: &&Value| {
            let text = |key: &str| event[key].as_str().unwrap_or_default();
            text("kind") == "trouble_begins"
                && text("reason") == self.kind
                && text("about").starts_with(self.about)
                && text("because").contains(self.recorded)
        };
        event(folder, arguments, is_begin)["at_s"].as_u64().expect("a time")
    }
}

/// The first second with a failed request, in the minute before `at`, and the number of recorded seconds from it to `at`.
fn since_failure(folder: &Folder, status: &str, at: u64) -> (u64, u64) {
    let [from, to] = [at - LOOKED_BACK_S, at + 1].map(|second| second.to_string());
    until("the history", PATIENCE, || {
        let output = run(folder, &["history", "--json", "--from", &from, "--to", &to, "--status", status]);
        let history = json(&output.stdout);
        let failed = |series: &Value| series["errors"].as_u64().is_some_and(|errors| errors > 0);
        let has_failed = |step: &&Value| step["series"].as_array().is_some_and(|all| all.iter().any(failed));
        let mut steps = history["steps"].as_array().into_iter().flatten();
        let first = steps.by_ref().find(has_failed).and_then(|step| step["at_s"].as_u64());
        let until_begin = steps.filter(|step| step["at_s"].as_u64().is_some_and(|second| second <= at));
        let recorded_s = until_begin.filter_map(|step| step["recorded_s"].as_u64()).sum();
        first.map(|first| (first, recorded_s)).ok_or_else(|| format!("{:#}", history["steps"]))
    })
}

/// The first event of the history that `is_it` accepts.
pub(crate) fn event(folder: &Folder, arguments: &[&str], is_it: impl Fn(&&Value) -> bool) -> Value {
    until("the history", PATIENCE, || {
        let output = run(folder, &[&["history", "--json"], arguments].concat());
        let history = json(&output.stdout);
        let found = history["events"].as_array().into_iter().flatten().find(&is_it).cloned();
        found.ok_or_else(|| format!("{:#}", history["events"]))
    })
}

/// Succeeds if the output contains all `words`, wherever its lines break; otherwise returns the output as the error.
pub(crate) fn with_words(output: &Output, words: &[&str]) -> Result<(), String> {
    let said = String::from_utf8_lossy(&output.stdout);
    let joined = said.split_whitespace().collect::<Vec<_>>().join(" ");
    match words.iter().find(|words| !joined.contains(words.trim())) {
        None => Ok(()),
        Some(missing) => {
            let errors = String::from_utf8_lossy(&output.stderr);
            Err(format!("{missing:?} is not in\n{said}\n{errors}"))
        }
    }
}

/// The state of the server or agent at `status`.
pub(crate) fn state(status: &str) -> Value {
    json(http(status, "GET", "/api/v1/state", &[], "").body.as_bytes())
}

/// The value that `text` is, or null if it is no JSON.
fn json(text: &[u8]) -> Value {
    serde_json::from_slice(text).unwrap_or_default()
}
