//! Tests of `evenkeel demo bufferbloat`, which runs server, clients and report in one command.

use std::process::{Command, Stdio};

#[test]
fn bufferbloat_measures_each_setting_that_is_asked_for() {
    let folder = std::env::temp_dir().join(format!("evenkeel-demo-test-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (page, picture) = (folder.join("page.html"), folder.join("picture.svg"));
    let mut demo = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    demo.args(["demo", "bufferbloat", "--seconds", "1", "--settings", "none,256K", "--json", "--html"]).arg(&page);
    demo.arg("--svg").arg(&picture);
    let output = demo.env("TMPDIR", &folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let settings = report["settings"].as_array().unwrap();
    assert_eq!(settings.len(), 2);
    // No figure is held to a value here: that would test the machine. That each client was served is enough.
    for (setting, (name, budget)) in settings.iter().zip([("none", None), ("256K", Some(256 << 10))]) {
        assert_eq!((setting["setting"].as_str(), setting["budget_bytes"].as_u64()), (Some(name), budget));
        for figure in ["light_p50_ms", "light_p99_ms", "burst_p99_ms", "bulk_bytes_per_s"] {
            assert!(setting[figure].as_f64().unwrap() > 0.0, "{figure}: {report}");
        }
    }
    assert!(std::fs::read_to_string(&page).unwrap().contains(r#""labels":["none","256K"]"#));
    let drawn = std::fs::read_to_string(&picture).unwrap();
    assert!(drawn.contains(">no bound<") && drawn.contains(">256 KiB<"), "{drawn}");
    assert!(drawn.contains(">evenkeel demo bufferbloat --seconds 1 --settings none,256K"), "{drawn}");
    let mut left: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    left.sort();
    assert_eq!(left, [page, picture], "the server's folder is gone");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn an_interrupted_demonstration_does_not_end_like_a_complete_one() {
    let folder = std::env::temp_dir().join(format!("evenkeel-demo-stop-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut demo = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    demo.args(["demo", "bufferbloat", "--seconds", "60", "--settings", "none"]).env("TMPDIR", &folder);
    let mut child = demo.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // Handlers are in place once the server has its folder.
    while std::fs::read_dir(&folder).unwrap().next().is_none() {
        assert!(child.try_wait().unwrap().is_none(), "it ended early");
        std::thread::yield_now();
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(output.status.code(), Some(130), "{error}");
    assert!(error.contains("interrupted after 0 of 1 runs"), "{error}");
}
