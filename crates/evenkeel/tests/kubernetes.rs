//! Tests of the manifest for Kubernetes: its paths, flags and policy are those of the program. They need neither a cluster nor
//! its published schemas.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use evenkeel_guard::Config;
use evenkeel_guard::config::Abilities;
use evenkeel_guard::sensor::{cgroup, tracepoints};
use serde_json::{Map, Value};

/// Exit code of a command line that the program does not understand.
const USAGE: i32 = 2;

fn indent_of(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// A scalar; lists and quoted texts are written as in JSON.
fn scalar(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

/// The lines of a block of text below a key.
fn literal(lines: &[String], at: &mut usize, indent: usize) -> Value {
    let mut text = String::new();
    while let Some(line) = lines.get(*at).filter(|line| line.trim().is_empty() || indent_of(line) >= indent) {
        text += line.get(indent..).unwrap_or("");
        text.push('\n');
        *at += 1;
    }
    Value::String(text)
}

/// The mapping or list of lines with this indentation: the part of YAML that the manifest uses, where each level is indented by
/// two spaces.
fn node(lines: &mut [String], at: &mut usize, indent: usize) -> Value {
    let (mut list, mut map) = (Vec::new(), Map::new());
    while let Some(line) = lines.get(*at).cloned() {
        let text = line.trim();
        if text.is_empty() || text.starts_with('#') {
            *at += 1;
            continue;
        }
        if indent_of(&line) != indent {
            break;
        }
        if let Some(item) = text.strip_prefix("- ") {
            if item.contains(": ") || item.ends_with(':') {
                lines[*at] = format!("{}{item}", " ".repeat(indent + 2));
                list.push(node(lines, at, indent + 2));
            } else {
                *at += 1;
                list.push(scalar(item));
            }
            continue;
        }
        let (key, value) = text.split_once(':').unwrap_or_else(|| panic!("{text:?} has no key"));
        *at += 1;
        let value = match value.trim() {
            "" => node(lines, at, indent + 2),
            "|" => literal(lines, at, indent + 2),
            value => scalar(value),
        };
        assert!(map.insert(key.to_owned(), value).is_none(), "{key} stands twice");
    }
    if list.is_empty() { Value::Object(map) } else { Value::Array(list) }
}

/// The objects of the manifest by kind.
fn objects() -> BTreeMap<String, Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/kubernetes/daemonset.yaml");
    let text = std::fs::read_to_string(path).expect("the manifest");
    let object = |document: &str| {
        let mut lines: Vec<String> = document.lines().map(str::to_owned).collect();
        let mut at = 0;
        let object = node(&mut lines, &mut at, 0);
        assert_eq!(at, lines.len(), "{:?} is not understood", lines.get(at));
        (object["kind"].as_str().expect("a kind").to_owned(), object)
    };
    text.split("\n---\n").map(object).collect()
}

fn words(list: &Value) -> Vec<String> {
    let words = list.as_array().expect("a list").iter();
    words.map(|word| word.as_str().expect("a word").to_owned()).collect()
}

/// The only container of the pods.
fn container(objects: &BTreeMap<String, Value>) -> &Value {
    let containers = objects["DaemonSet"]["spec"]["template"]["spec"]["containers"].as_array().expect("containers");
    assert_eq!(containers.len(), 1);
    &containers[0]
}

/// The folders in the container by their paths: the path on the host, if it is one of the host's, and whether it is only read.
fn mounts(objects: &BTreeMap<String, Value>) -> BTreeMap<PathBuf, (Option<PathBuf>, bool)> {
    let volumes = objects["DaemonSet"]["spec"]["template"]["spec"]["volumes"].as_array().expect("volumes");
    let mounts = container(objects)["volumeMounts"].as_array().expect("mounts");
    assert_eq!(volumes.len(), mounts.len(), "each volume is mounted");
    let of_mount = |mount: &Value| {
        let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]).expect("a volume of this name");
        let host = volume["hostPath"]["path"].as_str().map(PathBuf::from);
        let path = PathBuf::from(mount["mountPath"].as_str().expect("a path"));
        (path, (host, mount["readOnly"] == Value::Bool(true)))
    };
    mounts.iter().map(of_mount).collect()
}

fn policy(objects: &BTreeMap<String, Value>) -> Config {
    let text = objects["ConfigMap"]["data"]["guard.toml"].as_str().expect("a policy");
    Config::parse(text, "guard.toml", Abilities { tracepoints: true }).expect("a policy that can be used")
}

#[test]
fn the_policy_is_one_of_the_agent_and_throttles_pods() {
    let config = policy(&objects());
    let disk = &config.local["disk"];
    let tenants: Vec<&str> = disk.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
    assert_eq!(tenants, ["best-effort", "database", "others"]);
    assert!(disk.needs_names() && config.notes.is_empty(), "{:?}", config.notes);
}

#[test]
fn the_container_has_the_folders_that_the_agent_uses_and_writes_in_two() {
    let objects = objects();
    let mounts = mounts(&objects);
    for (path, (host, _)) in &mounts {
        assert!(host.as_ref().is_none_or(|host| host == path), "{} is {host:?} on the host", path.display());
    }
    let journal = policy(&objects).agent.journal.parent().expect("a folder").to_owned();
    let written: Vec<&Path> = mounts.iter().filter(|(_, (_, read))| !read).map(|(path, _)| path.as_path()).collect();
    assert_eq!(written, [journal.as_path(), Path::new(cgroup::ROOT)]);
    assert!(tracepoints::FOLDERS.iter().any(|folder| mounts.contains_key(Path::new(folder))));
    assert!(mounts.contains_key(Path::new("/var/log/pods")));
}

#[test]
fn its_commands_are_commands_of_the_program() {
    let objects = objects();
    let container = container(&objects);
    let run = words(&container["command"]);
    let config = Path::new(run.last().expect("a path"));
    let (mounted, key) = (config.parent().expect("a folder"), config.file_name().and_then(|name| name.to_str()));
    assert!(mounts(&objects).get(mounted).is_some_and(|(host, read)| host.is_none() && *read));
    assert!(key.is_some_and(|key| objects["ConfigMap"]["data"][key].is_string()));
    let probe = words(&container["livenessProbe"]["exec"]["command"]);
    // A command that fails while there is a trouble would end the agent for it.
    assert!(!probe.iter().any(|word| word == "health"), "{probe:?}");
    // Neither has what it asks for: the program understands the words, and fails.
    let absent = std::env::temp_dir().join(format!("evenkeel-kubernetes-{}", std::process::id())).display().to_string();
    let run: Vec<&str> = run[..run.len() - 1].iter().map(String::as_str).chain([absent.as_str()]).collect();
    let probe: Vec<&str> = probe.iter().map(String::as_str).chain(["--status", "127.0.0.1:1"]).collect();
    for command in [run, probe] {
        assert_eq!(command[0], "evenkeel");
        let output = Command::new(env!("CARGO_BIN_EXE_evenkeel")).args(&command[1..]).output().expect("runs");
        let code = output.status.code().expect("an exit");
        assert!(code != 0 && code != USAGE, "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn the_container_may_do_no_more_than_it_needs() {
    let objects = objects();
    let pod = &objects["DaemonSet"]["spec"]["template"];
    assert_eq!(objects["DaemonSet"]["spec"]["selector"]["matchLabels"], pod["metadata"]["labels"]);
    assert_eq!(pod["spec"]["automountServiceAccountToken"], Value::Bool(false));
    for key in ["hostNetwork", "hostPID", "hostIPC"] {
        assert!(pod["spec"][key].is_null(), "{key}");
    }
    let context = &container(&objects)["securityContext"];
    assert!(context["privileged"].is_null());
    assert_eq!(context["allowPrivilegeEscalation"], Value::Bool(false));
    assert_eq!(context["readOnlyRootFilesystem"], Value::Bool(true));
    let capabilities = &context["capabilities"];
    assert_eq!(words(&capabilities["drop"]), ["ALL"]);
    assert_eq!(words(&capabilities["add"]), ["BPF", "PERFMON"]);
    for object in objects.values() {
        assert_eq!(object["metadata"]["namespace"], "kube-system");
    }
}
