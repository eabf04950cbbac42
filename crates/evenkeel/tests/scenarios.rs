//! Every scenario of `scenarios/` meets its bounds.

use std::path::{Path, PathBuf};
use std::process::Command;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios")
}

fn skip(name: &str, reason: &str) {
    println!("SKIPPED: {name}: {reason}");
    if let Some(log) = std::env::var_os("EVENKEEL_SKIP_LOG") {
        use std::io::Write;
        let mut log = std::fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
        writeln!(log, "{name}: {reason}").unwrap();
    }
}

/// The traces that a scenario replays.
fn traces(text: &str) -> Vec<String> {
    let scenario: toml::Table = text.parse().unwrap();
    let clients = scenario["client"].as_array().unwrap().iter();
    clients.filter_map(|client| Some(client["workload"].get("trace")?.as_str()?.to_owned())).collect()
}

#[test]
fn every_scenario_meets_its_bounds() {
    let files = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|end| end == "toml")).collect();
    files.sort();
    assert!(files.len() >= 5, "{files:?}");
    let there = |trace: &String| {
        std::env::var_os("EVENKEEL_TRACES").is_some_and(|folder| Path::new(&folder).join(trace).exists())
    };
    let mut missed = String::new();
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("[[bound]]"), "{} bounds nothing", path.display());
        if !traces(&text).iter().all(there) {
            skip(&path.file_stem().unwrap().to_string_lossy(), "trace not found");
            continue;
        }
        let output = Command::new(env!("CARGO_BIN_EXE_evenkeel")).arg("sim").arg(&path).output().unwrap();
        if !output.status.success() {
            let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            missed += &format!("{}\n{out}{err}\n", path.display());
        }
    }
    assert!(missed.is_empty(), "{missed}");
}

/// The bounds are there to be missed: without its budget a bufferbloat scenario is bloated.
#[test]
fn a_bound_that_is_missed_is_seen() {
    let output = Command::new(env!("CARGO_BIN_EXE_evenkeel"))
        .args(["sim", "--set", "pool.admission=none", "--set", "duration=3s", "--json"])
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
