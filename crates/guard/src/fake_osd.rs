//! A fake OSD for tests: an admin socket with counters, and with options that can be set and unset.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

/// The state of the fake OSD; tests may change it at any time.
#[derive(Debug, Default)]
pub(crate) struct Inside {
    pub(crate) defaults: BTreeMap<String, String>,
    pub(crate) overrides: BTreeMap<String, String>,
    /// Name of a command that the fake OSD carries out but never answers; `None`: it answers all commands.
    pub(crate) unanswered: Option<&'static str>,
    /// Name of a command that the fake OSD refuses, or command and option, separated by a blank, to refuse the command for
    /// this option only.
    pub(crate) refused: Option<&'static str>,
    /// Transactions committed so far; each costs 64 KiB and BlueStore's base cost of 4,000 bytes.
    pub(crate) commits: u64,
}

/// A fake OSD that listens on its admin socket until this value is dropped.
#[derive(Debug)]
pub(crate) struct FakeOsd {
    pub(crate) inside: Arc<Mutex<Inside>>,
    path: PathBuf,
}

impl FakeOsd {
    pub(crate) fn start(path: &Path) -> Self {
        let defaults =
            [("bluestore_throttle_bytes", 67_108_864_u64), ("bluestore_throttle_deferred_bytes", 134_217_728)];
        let inside = Inside {
            defaults: defaults.map(|(name, value)| (name.to_owned(), value.to_string())).into(),
            ..Inside::default()
        };
        let inside = Arc::new(Mutex::new(inside));
        let _ = std::fs::remove_file(path);
        let listener = UnixListener::bind(path).unwrap();
        let shared = Arc::downgrade(&inside);
        std::thread::spawn(move || {
            let mut never_answered = Vec::new();
            for stream in listener.incoming() {
                let Some(inside) = shared.upgrade() else { return };
                let mut stream = stream.unwrap();
                let mut question = Vec::new();
                let mut byte = [0];
                while stream.read(&mut byte).is_ok_and(|n| n == 1) && byte[0] != 0 {
                    question.push(byte[0]);
                }
                let Ok(question) = serde_json::from_slice(&question) else { continue };
                let mut inside = inside.lock().unwrap();
                let answer = answer(&mut inside, &question);
                if inside.unanswered.is_some_and(|prefix| question["prefix"] == prefix) {
                    never_answered.push(stream);
                    continue;
                }
                drop(inside);
                let _ = stream.write_all(&(answer.len() as u32).to_be_bytes());
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        Self { inside, path: path.to_owned() }
    }

    pub(crate) fn set(&self, option: &str) -> Option<String> {
        self.inside.lock().unwrap().overrides.get(option).cloned()
    }
}

impl Drop for FakeOsd {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn answer(inside: &mut Inside, question: &Value) -> String {
    let text = |key: &str| question[key].as_str().unwrap_or_default().to_owned();
    let prefix = text("prefix");
    let option = text("var");
    let value = |inside: &Inside, option: &str| {
        inside.overrides.get(option).or(inside.defaults.get(option)).cloned().unwrap_or_default()
    };
    match prefix.as_str() {
        _ if inside.refused.is_some_and(|it| it == prefix || it == format!("{prefix} {option}")) => {
            "ERROR: (1) Operation not permitted\n".into()
        }
        "config get" => json!({ &option: value(inside, &option) }).to_string(),
        "config set" => {
            let new = question["val"][0].as_str().unwrap_or_default().to_owned();
            inside.overrides.insert(option, new);
            json!({ "success": "" }).to_string()
        }
        "config unset" => {
            inside.overrides.remove(&option);
            "{}".into()
        }
        "config diff" => {
            let levels = inside.overrides.iter().map(|(option, value)| {
                (option.clone(), json!({ "default": inside.defaults[option], "override": value, "final": value }))
            });
            json!({ "diff": levels.collect::<serde_json::Map<_, _>>() }).to_string()
        }
        "perf dump" => perf_dump(inside, &text("logger"), value(inside, "bluestore_throttle_bytes").parse().unwrap()),
        _ => "ERROR: (22) Invalid argument\nunknown command prefix\n".into(),
    }
}

fn perf_dump(inside: &Inside, logger: &str, max: u64) -> String {
    let (commits, cost) = (inside.commits, inside.commits * 69_536);
    let state = |ms: f64| json!({ "avgcount": commits, "sum": commits as f64 * ms / 1e3, "avgtime": ms / 1e3 });
    let counters = match logger {
        "bluestore" => json!({
            "state_aio_wait_lat": state(1.0), "state_kv_queued_lat": state(2.0), "state_kv_commiting_lat": state(3.0),
            "bluestore_write_big_bytes": commits * 65_536, "bluestore_write_small_bytes": 0, "bluestore_txc": commits,
        }),
        _ => json!({
            "val": 0, "max": max, "get_started": commits, "get": commits, "get_sum": cost, "put": commits,
            "put_sum": cost, "wait": state(1.0),
        }),
    };
    json!({ logger: counters }).to_string()
}
