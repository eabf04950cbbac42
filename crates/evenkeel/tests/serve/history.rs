//! Tests of the history of a server: it is there after a restart, after `kill -9`, and without a server.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::Value;

use super::server::{self, Folder, PATIENCE, Server, control, fail, http, run, succeed};

/// The history of the last ten minutes as JSON, with further `arguments`.
fn history(folder: &Folder, arguments: &[&str]) -> Value {
    let text = succeed(folder, &[&["history", "--json"], arguments].concat());
    serde_json::from_str(&text).expect("JSON")
}

/// Asks for the history until `is_there`.
fn until(folder: &Folder, is_there: impl Fn(&Value) -> bool) -> Value {
    server::until("the history", PATIENCE, || {
        let history = history(folder, &[]);
        if is_there(&history) { Ok(history) } else { Err(format!("{history:#}")) }
    })
}

fn count(history: &Value, kind: &str) -> usize {
    let events = history["events"].as_array().expect("a list");
    events.iter().filter(|event| event["kind"] == kind).count()
}

/// Requests of a tenant in all steps together.
fn requests(history: &Value, tenant: &str) -> u64 {
    let steps = history["steps"].as_array().expect("a list").iter();
    let of = |step: &Value| {
        let recorded = step["recorded_s"].as_f64().expect("a number");
        let series = step["series"].as_array().expect("a list").iter().filter(|series| series["tenant"] == tenant);
        series.map(|series| (series["iops"].as_f64().expect("a number") * recorded).round() as u64).sum::<u64>()
    };
    steps.map(of).sum()
}

#[test]
fn the_past_is_there_after_a_kill_after_a_stop_and_without_a_server() {
    let folder = Folder::new();
    let mut server = Server::start(&folder, &[]);
    succeed(&folder, &["load", server.uri(), "--op", "write", "--requests", "500", "--queue-depth", "8"]);
    let before = until(&folder, |history| requests(history, "default") >= 500);
    assert_eq!((requests(&before, "default"), requests(&before, "")), (500, 500), "{before:#}");
    let busy = before["steps"].as_array().expect("a list").iter().flat_map(|step| step["series"].as_array());
    let busy: Vec<&Value> = busy.flatten().filter(|series| series["iops"].as_f64() > Some(0.0)).collect();
    for figure in ["p50_ms", "p99_ms", "p999_ms", "latency_ms", "request_bytes"] {
        assert!(busy.iter().all(|series| series[figure].as_f64() > Some(0.0)), "{figure}: {busy:#?}");
    }
    server.signal("KILL");
    server.end_unread();

    // Nothing answers; the folder does, and nothing of it is for others.
    let complaint = fail(&folder, &["history"]);
    assert!(complaint.contains("--dir"), "{complaint}");
    let dir = folder.join("evenkeel-data/history");
    let killed = history(&folder, &["--dir", dir.to_str().expect("a path")]);
    assert_eq!((requests(&killed, "default"), count(&killed, "started")), (500, 1));
    let mode = |path: &std::path::Path| fs::metadata(path).expect("metadata").permissions().mode() & 0o777;
    assert_eq!(mode(&dir), 0o700);
    for entry in fs::read_dir(&dir).expect("a folder") {
        assert_eq!(mode(&entry.expect("an entry").path()), 0o600);
    }

    let server = Server::start(&folder, &[]);
    let after = until(&folder, |history| count(history, "started") == 2);
    assert_eq!((requests(&after, "default"), count(&after, "stopped")), (500, 0), "{after:#}");
    let address = server.status().to_owned();
    let answer = http(&address, "GET", "/api/v1/history?from=-1m&tenant=default", &[], "");
    assert_eq!(answer.status, 200, "{}", answer.body);
    let socket = folder.join("evenkeel-data/control.sock");
    assert_eq!(control(&socket, "GET", "/api/v1/history", &[], "").status, 200);
    for (path, words) in
        [("?from=noon", "is not a time"), ("?step=7", "600 s"), ("?from=now&to=-1m", "not later than `from`")]
    {
        let refused = http(&address, "GET", &format!("/api/v1/history{path}"), &[], "");
        assert_eq!(refused.status, 400, "{path}: {}", refused.body);
        assert!(refused.body.contains(words), "{path}: {}", refused.body);
    }
    server.stop();
    let stopped = history(&folder, &["--dir", dir.to_str().expect("a path")]);
    assert_eq!((requests(&stopped, "default"), count(&stopped, "stopped")), (500, 1), "{stopped:#}");

    let text = succeed(&folder, &["history", "--dir", dir.to_str().expect("a path"), "--tenant", "default"]);
    assert!(text.contains("main default") && text.contains("started: the server"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let csv = succeed(&folder, &["history", "--dir", dir.to_str().expect("a path"), "--csv"]);
    assert!(csv.starts_with("time,seconds,recorded_s,pool,tenant,") && csv.contains(",main,default,,"), "{csv}");
    let wrong = run(&folder, &["history", "--from", "yesterday"]);
    assert_eq!(wrong.status.code(), Some(2), "{}", String::from_utf8_lossy(&wrong.stderr));
}

#[test]
fn a_history_that_is_off_or_cannot_be_written_stops_no_server() {
    let folder = Folder::new();
    let mut server = Server::configured(&folder, "[server]\nhistory = \"off\"\n");
    let answer = http(server.status(), "GET", "/api/v1/history", &[], "");
    assert!(answer.status == 404 && answer.body.contains("server.history"), "{}", answer.body);
    assert!(!folder.join("evenkeel-data/history").exists());
    // A file in its place, and a reload that switches it on.
    fs::write(folder.join("evenkeel-data/history"), "a file").expect("written");
    fs::write(folder.join("e.toml"), "[server]\nhistory = \"8MiB\"\n").expect("written");
    assert!(succeed(&folder, &["reload"]).contains("server.history"));
    let log = server.log_until("the history is not recorded at present");
    assert!(log.contains("writable"), "{log}");
    succeed(&folder, &["load", server.uri(), "--op", "write", "--requests", "5"]);
    server.stop();
}
