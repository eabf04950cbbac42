//! Tests of `evenkeel sim`, run as a program: its options and scenario, its output, and its HTML page.

#[path = "serve/folder.rs"]
mod folder;
#[path = "../../xtask/src/test/skip.rs"]
mod skip;

use std::path::Path;
use std::process::{Command, Output, Stdio};

use folder::Folder;

const SCENARIO: &str = r#"
title = "Two <b>tenants</b> & a </script> in the title"
duration = "1s"
warmup = "100ms"
[device]
kind = "store"
[pool]
tuning.admission = { kind = "fixed", budget = "256KiB" }
[tenants.light]
weight = 10
[tenants.bulk]
[[client]]
tenant = "light"
workload = { op = "write" }
[[client]]
tenant = "bulk"
workload = { op = "write", block_size = "64k", queue_depth = 16 }
[[change]]
at = "500ms"
device = { bandwidth = "50MB" }
[[bound]]
metric = "light.p99_ms"
max = "1s"
"#;

/// A temporary folder with the file `scenario.toml`.
fn scenario() -> Folder {
    let folder = Folder::new();
    folder.file("scenario.toml", SCENARIO);
    folder
}

impl Folder {
    fn sim(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        command.current_dir(self.path()).args(["sim", "scenario.toml"]).args(arguments).env_remove("EVENKEEL_TRACES");
        command.output().unwrap()
    }

    fn json(&self, arguments: &[&str]) -> serde_json::Value {
        let output = self.sim(&[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes_however_many_jobs() {
    let folder = scenario();
    let arguments =
        ["--sweep", "pool.tuning.admission.budget=64KiB,1MiB", "--seeds", "2", "--seed", "5", "--json", "--jobs"];
    let run = |jobs| folder.sim(&[&arguments[..], &[jobs]].concat()).stdout;
    let once = run("1");
    assert!(once == run("4") && once.len() > 1000);
    let result: serde_json::Value = serde_json::from_slice(&once).unwrap();
    assert_eq!(result["points"].as_array().unwrap().len(), 2);
    assert_eq!(result["points"][1]["set"]["pool.tuning.admission.budget"], "1MiB");
    let values = result["points"][0]["metrics"]["light.mean_ms"]["values"].as_array().unwrap();
    assert!(values.len() == 2 && values[0] != values[1], "seeds differ");
    // The second of two seeds is the first of its own run.
    let alone = folder.json(&["--seed", "6", "--set", "pool.tuning.admission.budget=64KiB"]);
    assert_eq!(alone["points"][0]["metrics"]["light.mean_ms"]["values"][0], values[1]);
}

#[test]
fn sweeps_are_combined_and_the_table_fits_a_terminal() {
    let folder = scenario();
    let sweeps = ["--sweep", "pool.tuning.admission.budget=64KiB,1MiB", "--sweep", "client.1.workload.queue_depth=2,8"];
    let result = folder.json(&sweeps);
    assert_eq!(result["points"].as_array().unwrap().len(), 4);
    let output = folder.sim(&[&sweeps[..], &["--seeds", "2"]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    assert_eq!(text.lines().filter(|line| line.contains(" light ")).count(), 4, "{text}");
    assert!(text.ends_with("4 of 4 bounds met\n"), "{text}");
}

#[test]
fn what_cannot_be_run_says_where_and_why() {
    let folder = scenario();
    for (arguments, wanted) in [
        (&["--set", "duration=soon"][..], "--set duration=soon: duration: \"soon\" is not a length of time"),
        (&["--sweep", "pool.tuning.admission.budget=1MiB,much"], "pool.tuning.admission.budget=much"),
        (&["--seeds", "0"], "--seeds 0 is out of range"),
        (&["--set", "client.0.workload={ trace = \"web.spc\" }"], "trace not found: put it at web.spc"),
        (&["--set", "client.0.workload={ rate = 1e7 }"], "more arrive than the device serves"),
        (&["--report", "no/such/folder.html"], "cannot write the report no/such/folder.html"),
    ] {
        let output = folder.sim(arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(wanted), "{arguments:?}: {error}");
    }
}

#[test]
fn an_interrupt_ends_it_with_a_message() {
    let folder = scenario();
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.args(["sim", "scenario.toml", "--set", "duration=1000h", "--set", "sample_every=1h"]);
    let mut child = command.current_dir(folder.path()).stderr(Stdio::piped()).spawn().unwrap();
    // Handlers are in place once the program blocks nothing and catches SIGINT.
    let status = format!("/proc/{}/status", child.id());
    while !catches_interrupts(&std::fs::read_to_string(&status).unwrap()) {
        assert!(child.try_wait().unwrap().is_none(), "it ended early");
        std::thread::yield_now();
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{error}");
    assert!(error.contains("interrupted after 0 of 1 runs"), "{error}");
}

/// True if a process has a handler for SIGINT; `status` is the text of its `/proc/PID/status`.
fn catches_interrupts(status: &str) -> bool {
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0");
    u64::from_str_radix(caught.trim(), 16).unwrap_or(0) & 0b10 != 0
}

/// Script that a test inserts into the HTML page. It presses keys and clicks, and writes the effects that it observes to the
/// attribute `data-said` of the page's body.
const VISIT: &str = r#"<script>
addEventListener("load", () => setTimeout(() => {
  const plots = [...document.querySelectorAll(".plot")];
  const frame = plots[0].querySelector(".frame"), tip = plots[0].querySelector(".tip");
  const press = key => frame.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  const reset = () => plots.map(plot => plot.querySelector(".tools button").disabled);
  const said = [];
  said.push(`drawn=${plots.every(plot => plot.querySelector("path.line, circle"))}`);
  press("ArrowRight");
  said.push(`tip=${!tip.hidden && tip.textContent.includes("light")}`);
  said.push(`linked=${plots.filter(plot => plot.querySelector("line.cursor")).length > 2}`);
  press("+");
  said.push(`zoomed=${reset().filter(disabled => !disabled).length > 2}`);
  press("Escape");
  said.push(`whole=${reset().every(disabled => disabled)}`);
  const button = plots[0].querySelector(".legend button"), lines = () => plots[0].querySelectorAll("path.line").length;
  const before = lines();
  button.click();
  said.push(`toggled=${lines() === before - 1 && button.getAttribute("aria-pressed") === "false"}`);
  document.querySelector("thead button").click();
  said.push(`sorted=${document.querySelector("th[aria-sort=ascending]") !== null}`);
  said.push(`markup=${document.querySelector("main b.x, h1 b") === null}`);
  document.body.setAttribute("data-said", said.join(" "));
}, 200));
</script></body>"#;

#[test]
fn the_page_works_in_a_browser() {
    let folder = scenario();
    assert!(folder.sim(&["--report", "page.html"]).status.success());
    let page = std::fs::read_to_string(folder.join("page.html")).unwrap();
    assert!(!page.contains("http:") && !page.contains("https:"), "an address from elsewhere");
    std::fs::write(folder.join("visit.html"), page.replace("</body>", VISIT)).unwrap();
    let Some(browser) = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|name| on_path(name)) else {
        return skip::skip("chromium is not installed");
    };
    let mut command = Command::new(browser);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom"]);
    command.arg(format!("--user-data-dir={}", folder.join("profile").display()));
    let output = command.arg(format!("file://{}", folder.join("visit.html").display())).output().unwrap();
    let dom = String::from_utf8_lossy(&output.stdout);
    let said = dom.split_once("data-said=\"").and_then(|(_, rest)| rest.split_once('"')).map(|(said, _)| said);
    let wanted = ["drawn", "tip", "linked", "zoomed", "whole", "toggled", "sorted", "markup"];
    let wanted = wanted.map(|what| format!("{what}=true")).join(" ");
    assert_eq!(said, Some(wanted.as_str()), "{}", String::from_utf8_lossy(&output.stderr));
}

fn on_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| Path::new(&folder).join(name).is_file())
}
