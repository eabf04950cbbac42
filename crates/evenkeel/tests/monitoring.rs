//! Tests that metrics, alerts and the Grafana dashboard fit together: alerts and dashboard use metrics that exist, their queries
//! are valid, and alerts fire when they should.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

#[path = "serve/agent.rs"]
mod agent;
#[allow(dead_code)]
#[path = "serve/server.rs"]
mod server;
#[path = "../../xtask/src/test/skip.rs"]
mod skip;

use agent::Agent;
use server::{EVENKEEL, Folder, Server, http, succeed};

/// A server's configuration with a latency target, slots by need and a throughput guarantee, so that every metric that needs no
/// second machine has samples.
const SERVE: &str = "\
[pools.main]\nlatency.target = \"5ms\"\ntuning.slots = \"needs\"\n[pools.main.emulate]\niops = 2000\n\
[tenants.web]\nlatency.target = \"50ms\"\n[tenants.bulk]\nguarantee = { bytes_per_s = \"5MB\" }\n\
[volumes.web]\nbackend = \"emulate\"\nsize = \"16MiB\"\n[volumes.bulk]\nbackend = \"emulate\"\nsize = \"16MiB\"\n";
const GUARD: &str = "\
[agent]\nstatus = \"127.0.0.1:0\"\ninterval = \"20ms\"\n[pools.nothing-served]\nlatency.target = \"15ms\"\n";
/// Upper bound on the lines of a scrape for one tenant without load, so that a thousand tenants are affordable.
const LINES_OF_AN_IDLE_TENANT: usize = 20;

fn shipped(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn read(path: &str) -> String {
    fs::read_to_string(shipped(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn scrape(address: &str, headers: &[&str]) -> String {
    let answer = http(address, "GET", "/metrics", headers, "");
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body
}

/// Answers to scrapes of `/metrics`: of a server after load, and of an agent.
fn scrapes() -> [String; 2] {
    let folder = Folder::new();
    let server = Server::configured(&folder, SERVE);
    let tcp = server.uri().rsplit_once('/').expect("a URI").0;
    for (volume, op) in [("web", "read"), ("bulk", "write")] {
        let uri = format!("{tcp}/{volume}");
        succeed(&folder, &["load", &uri, "--op", op, "--requests", "400", "--queue-depth", "8"]);
    }
    let served = scrape(server.status(), &[]);
    server.stop();

    let file = folder.file("guard.toml", GUARD);
    let agent = Agent::spawn(&mut Command::new(EVENKEEL), &file);
    [served, scrape(&agent.status, &[])]
}

/// Name and type of each metric in a scrape, also of metrics without samples.
fn described(scrape: &str) -> impl Iterator<Item = (&str, &str)> {
    scrape.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
}

/// The names of samples in a scrape that a query can use. A histogram has three, with the suffixes `_bucket`, `_count`, `_sum`.
fn sample_names(scrape: &str) -> BTreeSet<String> {
    let names = described(scrape).flat_map(|(name, kind)| {
        let suffixes: &[&str] = if kind == "histogram" { &["_bucket", "_count", "_sum"] } else { &[""] };
        suffixes.iter().map(move |suffix| format!("{name}{suffix}"))
    });
    names.collect()
}

/// All words in a text that begin with `evenkeel_`, which are names of metrics.
fn named(text: &str) -> BTreeSet<String> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c| !is_word(c)).filter(|word| word.starts_with("evenkeel_")).map(str::to_owned).collect()
}

/// Adds to `found` the text of each member `key` of a JSON value, at any depth.
fn texts<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(map) => {
            found.extend(map.get(key).and_then(Value::as_str));
            map.values().for_each(|value| texts(value, key, found));
        }
        Value::Array(all) => all.iter().for_each(|value| texts(value, key, found)),
        _ => {}
    }
}

fn dashboard() -> Value {
    serde_json::from_str(&read("packaging/grafana/evenkeel.json")).expect("JSON")
}

/// The texts behind `key` on all lines of the YAML text that begin with `key`.
fn values<'a>(yaml: &'a str, key: &str) -> BTreeSet<&'a str> {
    yaml.lines().filter_map(|line| Some(line.trim_start().trim_start_matches("- ").strip_prefix(key)?.trim())).collect()
}

/// Runs promtool with `input` as its standard input. If it is not installed, reports the test as skipped and returns `None`.
fn promtool(arguments: &[&str], input: &str) -> Option<String> {
    let mut command = Command::new("promtool");
    command.args(arguments).current_dir(shipped("packaging/prometheus"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        skip::skip("promtool is not installed");
        return None;
    };
    // It may end without having read everything, and says why.
    let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
    let output = child.wait_with_output().expect("promtool ends");
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "promtool {arguments:?}: {said}");
    Some(said)
}

#[test]
fn promtool_finds_no_fault_in_what_is_scraped() {
    for scrape in scrapes() {
        let check = |text: &str| promtool(&["check", "metrics"], text);
        let Some(said) = check(&scrape) else { return };
        assert_eq!(said, "");
        // It passes over metrics without samples: each gets one.
        let made_up = scrape.lines().map(|line| match line.strip_prefix("# TYPE ").and_then(|l| l.split_once(' ')) {
            Some((name, "histogram")) => {
                format!("{line}\n{name}_bucket{{le=\"+Inf\"}} 1\n{name}_count 1\n{name}_sum 1\n")
            }
            Some((name, _)) => format!("{line}\n{name} 1\n"),
            None if line.starts_with('#') => format!("{line}\n"),
            None => String::new(),
        });
        assert_eq!(check(&made_up.collect::<String>()).as_deref(), Some(""));
    }
}

#[test]
fn promtool_finds_alerts_valid_and_each_fires_when_it_should() {
    promtool(&["check", "rules", "alerts.yml"], "");
    promtool(&["test", "rules", "alerts_test.yml"], "");
}

#[test]
fn promtool_finds_the_settings_in_the_documentation_valid() {
    let (help, folder) = (read("docs/guide/monitoring.md"), Folder::new());
    fs::copy(shipped("packaging/prometheus/alerts.yml"), folder.join("evenkeel-alerts.yml")).expect("copied");
    let snippets: Vec<&str> =
        help.split("   ```yaml\n").skip(1).filter_map(|rest| rest.split("   ```").next()).collect();
    assert!(snippets.len() == 2 && snippets[1].contains("scheme: https"), "{snippets:?}");
    for (i, snippet) in snippets.iter().enumerate() {
        let file = folder.join(format!("prometheus{i}.yml"));
        let text: String =
            snippet.lines().map(|line| format!("{}\n", line.strip_prefix("   ").unwrap_or(line))).collect();
        fs::write(&file, text).expect("written");
        let arguments = ["check", "config", "--syntax-only", &file.display().to_string()];
        promtool(&arguments, "");
    }
}

#[test]
fn every_alert_is_tested_and_explained() {
    let (alerts, tests) = (read("packaging/prometheus/alerts.yml"), read("packaging/prometheus/alerts_test.yml"));
    let (help, names) = (read("docs/guide/monitoring.md"), values(&alerts, "alert:"));
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        assert!(
            tests.contains(&format!("alertname=\"{name}\"")) || values(&tests, "alertname:").contains(name),
            "{name}"
        );
        assert!(
            help.contains(&format!("\n### {name}\n")),
            "docs/guide/monitoring.md does not say what to do about {name}"
        );
        let address = format!("docs/guide/monitoring.md#{}\n", name.to_lowercase());
        assert!(alerts.contains(&address), "no alert points to {address}");
    }
}

#[test]
fn promtool_finds_the_queries_of_the_dashboard_valid() {
    let (dashboard, mut queries) = (dashboard(), Vec::new());
    texts(&dashboard, "expr", &mut queries);
    assert!(queries.len() > 80, "{}", queries.len());
    let rules: Vec<Value> = queries
        .iter()
        .enumerate()
        .map(|(place, query)| {
            // As Grafana does it.
            let mut query = query.replace("$__rate_interval", "5m");
            for variable in ["$instance", "$pool", "$tenant", "$agent", "$guarded"] {
                query = query.replace(variable, ".*");
            }
            assert!(!query.contains('$'), "{query} has a variable that the dashboard does not define");
            json!({ "record": format!("query:{place}"), "expr": query })
        })
        .collect();
    let folder = Folder::new();
    let file = folder.file("queries.yml", json!({ "groups": [{ "name": "dashboard", "rules": rules }] }).to_string());
    let file = file.display().to_string();
    promtool(&["check", "rules", &file], "");
}

#[test]
fn a_panel_says_what_it_shows() {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().expect("panels");
    let shows = |panel: &&Value| panel["type"] != "row";
    for panel in panels.iter().filter(shows) {
        for key in ["title", "description"] {
            assert!(panel[key].as_str().is_some_and(|text| !text.is_empty()), "{key} of {panel}");
        }
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{panel}");
    }
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len(), "an id is used twice");
}

#[test]
fn a_verdict_about_an_agents_pool_is_shown_for_packets_and_for_control_groups() {
    let (dashboard, mut queries) = (dashboard(), Vec::new());
    texts(&dashboard, "expr", &mut queries);
    for verdict in ["latency_target_missed", "latency_target_unachievable", "throttle_ineffective"] {
        let [packets, groups] = ["evenkeel_guard_", "evenkeel_guard_local_"].map(|start| format!("{start}{verdict}{{"));
        let has_both = |query: &str| query.starts_with(packets.as_str()) && query.contains(groups.as_str());
        assert!(queries.iter().any(|query| has_both(query)), "{verdict}");
    }
}

#[test]
fn every_metric_that_is_named_exists_and_every_metric_is_explained() {
    let scrapes = scrapes();
    let exist: BTreeSet<String> = scrapes.iter().flat_map(|scrape| sample_names(scrape)).collect();
    let (dashboard, mut queries) = (dashboard(), Vec::new());
    for key in ["expr", "query", "definition"] {
        texts(&dashboard, key, &mut queries);
    }
    let help = read("docs/guide/monitoring.md");
    let of_histograms = |name: &String| !exist.contains(name) && exist.contains(&format!("{name}_bucket"));
    for (place, text) in [
        ("the dashboard", queries.join("\n")),
        ("the alerts", read("packaging/prometheus/alerts.yml")),
        ("the tests of the alerts", read("packaging/prometheus/alerts_test.yml")),
        ("docs/guide/monitoring.md", help.clone()),
        ("docs/guide/troubleshooting.md", read("docs/guide/troubleshooting.md")),
    ] {
        let unknown: Vec<String> =
            named(&text).into_iter().filter(|name| !exist.contains(name) && !of_histograms(name)).collect();
        assert_eq!(unknown, Vec::<String>::new(), "{place} names metrics that neither program has");
    }
    let explained = named(&help);
    let unexplained: Vec<&str> = scrapes
        .iter()
        .flat_map(|scrape| described(scrape).map(|(name, _)| name))
        .filter(|name| !explained.contains(*name))
        .collect();
    assert_eq!(unexplained, Vec::<&str>::new(), "docs/guide/monitoring.md does not explain these");
}

#[test]
fn a_scrape_is_in_the_format_that_is_asked_for_and_short_about_idle_tenants() {
    let folder = Folder::new();
    let tenants: String = (0..100).map(|tenant| format!("[tenants.t{tenant}]\nweight = 2\n")).collect();
    let server = Server::configured(&folder, format!("{tenants}[volumes.v]\nbackend = \"memory\"\nsize = \"1MiB\"\n"));
    let asked = ["Accept: application/openmetrics-text; version=1.0.0,text/plain;q=0.5"];
    assert!(scrape(server.status(), &asked).ends_with("\n# EOF\n"));
    let plain = scrape(server.status(), &["Accept: text/plain"]);
    assert!(plain.contains("# TYPE evenkeel_tenant_errors_total counter\n") && !plain.contains("# EOF"), "{plain}");
    let lines = plain.lines().filter(|line| line.contains("tenant=\"t7\"")).count();
    assert!((1..=LINES_OF_AN_IDLE_TENANT).contains(&lines), "{lines}");
    server.stop();
}
