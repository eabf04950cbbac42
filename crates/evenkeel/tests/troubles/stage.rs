//! A trouble as an operator meets it: the views that must name it, at present and of the past.

use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::server::{EVENKEEL, Folder, http, run};

/// Upper bound on the wait for any event; each takes a few seconds on an idle machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

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

impl Trouble<'_> {
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
        until("health", PATIENCE, || {
            let output = run(folder, &["health", "--json", "--status", status]);
            let health = json(&output.stdout);
            let is_named = matches!(output.status.code(), Some(1 | 2)) && self.is_among(&health["troubles"]);
            if is_named { Ok(()) } else { Err(format!("{}: {health:#}", output.status)) }
        });
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
        self.begin(folder, &["--status", status])
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

/// The first event of the history that `is_it` accepts.
pub(crate) fn event(folder: &Folder, arguments: &[&str], is_it: impl Fn(&&Value) -> bool) -> Value {
    until("the history", PATIENCE, || {
        let output = run(folder, &[&["history", "--json"], arguments].concat());
        let history = json(&output.stdout);
        let found = history["events"].as_array().into_iter().flatten().find(&is_it).cloned();
        found.ok_or_else(|| format!("{:#}", history["events"]))
    })
}

/// Repeats `look` until it succeeds; panics with its last error after `patience`.
pub(crate) fn until<T>(what: &str, patience: Duration, mut look: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + patience;
    loop {
        match look() {
            Ok(found) => return found,
            Err(shown) => assert!(Instant::now() < deadline, "{what} does not show it: {shown}"),
        }
        thread::sleep(Duration::from_millis(50));
    }
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

/// A client that sends requests until the value is dropped.
pub(crate) struct Load(Child);

impl Load {
    /// Starts the load on a volume of the server whose data are in `folder`.
    pub(crate) fn start(folder: &Folder, volume: &str, arguments: &[&str]) -> Self {
        let socket = folder.join("evenkeel-data/nbd.sock");
        let uri = format!("nbd+unix:///{volume}?socket={}", socket.display());
        let mut command = Command::new(EVENKEEL);
        command.args(["load", &uri, "--duration", "300s"]).args(arguments);
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a client"))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
