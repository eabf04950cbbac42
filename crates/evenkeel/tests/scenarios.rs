//! Tests that every scenario of the folder `scenarios/` meets its bounds in the simulator.

#[path = "../../xtask/src/test/skip.rs"]
mod skip;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios")
}

/// Names of the traces that the scenario with this text replays.
fn traces(text: &str) -> Vec<String> {
    let scenario: toml::Table = text.parse().unwrap();
    let clients = scenario["client"].as_array().unwrap().iter();
    clients.filter_map(|client| Some(client["workload"].get("trace")?.as_str()?.to_owned())).collect()
}

/// Paths of all scenarios, each with the names of the traces that it replays.
fn scenarios() -> Vec<(PathBuf, Vec<String>)> {
    let files = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|end| end == "toml")).collect();
    files.sort();
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("[[bound]]"), "{} bounds nothing", path.display());
        (path, traces(&text))
    };
    files.into_iter().map(read).collect()
}

#[test]
fn every_scenario_meets_its_bounds() {
    let paths: Vec<PathBuf> =
        scenarios().into_iter().filter_map(|(path, traces)| traces.is_empty().then_some(path)).collect();
    assert!(paths.len() >= 5, "{paths:?}");
    assert_met(&paths);
}

#[test]
fn every_scenario_of_recorded_load_meets_its_bounds() {
    let (paths, traces): (Vec<PathBuf>, Vec<Vec<String>>) =
        scenarios().into_iter().filter(|(_, traces)| !traces.is_empty()).unzip();
    assert!(!paths.is_empty());
    let there = |trace: &&String| {
        std::env::var_os("EVENKEEL_TRACES").is_some_and(|folder| Path::new(&folder).join(trace).exists())
    };
    match traces.iter().flatten().find(|trace| !there(trace)) {
        Some(trace) => skip::skip(&format!("{trace} is not in the folder EVENKEEL_TRACES")),
        None => assert_met(&paths),
    }
}

fn assert_met(scenarios: &[PathBuf]) {
    let mut missed = String::new();
    for path in scenarios {
        let output = Command::new(env!("CARGO_BIN_EXE_evenkeel")).arg("sim").arg(path).output().unwrap();
        if !output.status.success() {
            let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            missed += &format!("{}\n{out}{err}\n", path.display());
        }
    }
    assert!(missed.is_empty(), "{missed}");
}

/// Without the admission budget the scenario `bufferbloat` misses its bound, and `evenkeel sim` reports that.
#[test]
fn a_bound_that_is_missed_is_seen() {
    let output = Command::new(env!("CARGO_BIN_EXE_evenkeel"))
        .args(["sim", "--set", "pool.tuning.admission=none", "--set", "duration=3s", "--json"])
        .arg(folder().join("bufferbloat.toml"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(result["met"], false);
    let bound = &result["points"][0]["bounds"][0];
    assert_eq!((bound["metric"].as_str(), bound["met"].as_bool()), (Some("light.p99_ms"), Some(false)));
    assert!(bound["mean"].as_f64().unwrap() > bound["max"].as_f64().unwrap());
}

/// Simulates a scenario. Returns for each of its bounds the metric, and true if the bound is met.
fn judged(scenario: &toml::Table) -> Vec<(String, bool)> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_evenkeel"))
        .args(["sim", "-", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(toml::to_string(scenario).unwrap().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let bounds = result["points"][0]["bounds"].as_array().unwrap().iter();
    bounds.map(|bound| (bound["metric"].as_str().unwrap().to_owned(), bound["met"].as_bool().unwrap())).collect()
}

fn all_five() -> toml::Table {
    std::fs::read_to_string(folder().join("all-five.toml")).unwrap().parse().unwrap()
}

/// Metrics of the scenario `all-five` by which the tenants' targets and guarantees are judged.
const TARGETS: [&str; 4] = ["database.mean_ms", "mail.mean_ms", "copy.bytes_per_s", "batch.iops"];

/// In the scenario `all-five` each target is met if only its tenant and the tenants without targets are there, and all targets
/// are met if all tenants are there.
#[test]
fn no_target_that_is_met_alone_is_lost_with_the_others() {
    for target in TARGETS {
        let mut alone = all_five();
        let (tenant, _) = target.split_once('.').unwrap();
        let here = |client: &toml::Value| [tenant, "journal", "backup"].contains(&client["tenant"].as_str().unwrap());
        alone["client"].as_array_mut().unwrap().retain(here);
        alone["bound"].as_array_mut().unwrap().retain(|bound| bound["metric"].as_str() == Some(target));
        assert_eq!(judged(&alone), [(target.to_owned(), true)]);
    }
    let together = judged(&all_five());
    assert!(TARGETS.iter().all(|&target| together.contains(&(target.to_owned(), true))), "{together:?}");
    assert!(together.iter().all(|(_, met)| *met), "{together:?}");
}

/// In the scenario `all-five` one target is missed if connections are placed round robin or on the worker with the fewest, and
/// two targets if there is no controller at all.
#[test]
fn targets_are_lost_without_the_controllers_and_one_without_placement() {
    let missed = |scenario: &toml::Table| -> Vec<String> {
        judged(scenario).into_iter().filter_map(|(metric, met)| (!met).then_some(metric)).collect()
    };
    for placement in ["round_robin", "least_connections"] {
        let mut in_turn = all_five();
        in_turn["workers"].as_table_mut().unwrap().insert("placement".to_owned(), placement.into());
        assert_eq!(missed(&in_turn), ["database.mean_ms"], "{placement}");
    }
    let mut none = all_five();
    none["workers"].as_table_mut().unwrap().insert("placement".to_owned(), "round_robin".into());
    let pool = none["pool"].as_table_mut().unwrap();
    pool.remove("latency");
    let off = ["admission", "slots"].map(|key| (key.to_owned(), toml::Value::from("none")));
    pool.insert("tuning".to_owned(), toml::Table::from_iter(off).into());
    none["tenants"]["copy"].as_table_mut().unwrap().remove("guarantee");
    assert_eq!(missed(&none), ["database.mean_ms", "mail.mean_ms"]);
}
