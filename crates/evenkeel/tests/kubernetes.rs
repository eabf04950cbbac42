//! Tests of the manifest for Kubernetes: its paths, flags and policy are those of the program, and its fields are those of the
//! published schemas, of which the objects that the manifest uses stand here. They need no cluster.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use evenkeel_guard::Config;
use evenkeel_guard::config::Abilities;
use evenkeel_guard::discovery::Roots;
use evenkeel_guard::discovery::groups::Names;
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

fn manifest() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/kubernetes/daemonset.yaml");
    std::fs::read_to_string(path).expect("the manifest")
}

/// The objects of the manifest by kind.
fn objects() -> BTreeMap<String, Value> {
    objects_in(&manifest())
}

fn objects_in(text: &str) -> BTreeMap<String, Value> {
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
    assert_eq!(tenants, ["best-effort", "database", "others", "system"]);
    let throttles: Vec<&str> = disk.tenants.iter().map(|tenant| tenant.throttle.name()).collect();
    assert_eq!(throttles, ["always", "never", "normal", "never"], "etcd and the agent are not throttled");
    assert!(disk.needs_names() && config.notes.is_empty(), "{:?}", config.notes);
}

#[test]
fn its_tenants_have_the_pods_that_kubelet_lays_out() {
    let config = policy(&objects());
    let disk = &config.local["disk"];
    let root = std::env::temp_dir().join(format!("evenkeel-kubelet-{}", std::process::id()));
    let mut pods = Vec::new();
    for (group, log, tenant) in [
        ("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice", "shop_postgres-0_1-2", "database"),
        ("kubepods.slice/kubepods-pod3c.slice", "shop_postgres-1_3c", "database"),
        ("kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod4d.slice", "batch_job-x_4d", "best-effort"),
        ("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod5e.slice", "shop_web_5e", "others"),
        ("kubepods.slice/kubepods-pod9c.slice", "kube-system_etcd-node1_9c", "system"),
        ("kubepods/burstable/pod6f-6f", "shop_postgres-2_6f-6f", "database"),
        ("kubepods/burstable/podad-1", "kube-system_evenkeel-guard-x7k2p_ad-1", "system"),
        ("kubepods/besteffort/pod7a", "batch_job-y_7a", "best-effort"),
        ("kubepods/pod8b", "shop_cache_8b", "others"),
    ] {
        std::fs::create_dir_all(root.join("cgroup").join(group)).expect("a group");
        std::fs::create_dir_all(root.join("var/log/pods").join(log)).expect("a folder of logs");
        pods.push((group, tenant));
    }
    let mut names = Names::default();
    names.refresh(&Roots::under(&root), &root.join("cgroup"), std::time::Duration::MAX);
    for (group, tenant) in pods {
        let found = disk.tenant_among(&names, group).map(|place| disk.tenants[place].name.as_str());
        assert_eq!(found, Some(tenant), "{group}");
    }
    assert_eq!(disk.tenant_among(&names, "system.slice/kubelet.service"), None);
    std::fs::remove_dir_all(&root).expect("removed");
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

/// A folder of a runtime holds mounts, which a copy in the agent's container would keep after the containers have ended.
#[test]
fn no_file_system_of_another_container_is_kept() {
    let objects = objects();
    let mounts = container(&objects)["volumeMounts"].as_array().expect("mounts").iter();
    let of_runtime = mounts.filter(|mount| mount["name"] == "tasks" || mount["name"] == "runtime");
    let kept: Vec<&Value> = of_runtime.map(|mount| &mount["mountPropagation"]).collect();
    assert_eq!(kept, ["HostToContainer"]);
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

#[test]
fn with_its_lines_for_selinux_it_is_a_manifest_as_well() {
    let text = manifest().replace("# seLinuxOptions:", "seLinuxOptions:").replace("#   type: spc_t", "  type: spc_t");
    let objects = objects_in(&text);
    assert_eq!(container(&objects)["securityContext"]["seLinuxOptions"]["type"], "spc_t");
    assert_eq!(faults(&objects["DaemonSet"], "DaemonSet", "DaemonSet"), Vec::<String>::new());
}

/// A field of an object: name, type, and true if it has to be there. Types are texts, numbers, flags, lists and mappings of
/// texts, other objects of [`SCHEMAS`], and lists of such objects (`[Name]`).
type Field = (&'static str, &'static str, bool);

/// Objects of the schemas of `v1` and `apps/v1`: what the manifest uses, and fields beside that which a change may need.
const SCHEMAS: &[(&str, &[Field])] = &[
    (
        "ConfigMap",
        &[
            ("apiVersion", "text", true),
            ("kind", "text", true),
            ("metadata", "Meta", true),
            ("data", "texts by key", false),
        ],
    ),
    (
        "DaemonSet",
        &[("apiVersion", "text", true), ("kind", "text", true), ("metadata", "Meta", true), ("spec", "Spec", true)],
    ),
    (
        "Meta",
        &[
            ("name", "text", false),
            ("namespace", "text", false),
            ("labels", "texts by key", false),
            ("annotations", "texts by key", false),
        ],
    ),
    (
        "Spec",
        &[
            ("selector", "Selector", true),
            ("template", "Template", true),
            ("minReadySeconds", "number", false),
            ("revisionHistoryLimit", "number", false),
        ],
    ),
    ("Selector", &[("matchLabels", "texts by key", true)]),
    ("Template", &[("metadata", "Meta", true), ("spec", "Pod", true)]),
    (
        "Pod",
        &[
            ("containers", "[Container]", true),
            ("volumes", "[Volume]", false),
            ("automountServiceAccountToken", "flag", false),
            ("priorityClassName", "text", false),
            ("nodeSelector", "texts by key", false),
            ("tolerations", "[Toleration]", false),
            ("terminationGracePeriodSeconds", "number", false),
        ],
    ),
    ("Toleration", &[("key", "text", false), ("operator", "text", false), ("effect", "text", false)]),
    (
        "Container",
        &[
            ("name", "text", true),
            ("image", "text", true),
            ("imagePullPolicy", "text", false),
            ("command", "texts", false),
            ("args", "texts", false),
            ("livenessProbe", "Probe", false),
            ("resources", "Resources", false),
            ("securityContext", "Security", false),
            ("volumeMounts", "[Mount]", false),
        ],
    ),
    (
        "Probe",
        &[
            ("exec", "Exec", true),
            ("initialDelaySeconds", "number", false),
            ("periodSeconds", "number", false),
            ("timeoutSeconds", "number", false),
            ("failureThreshold", "number", false),
        ],
    ),
    ("Exec", &[("command", "texts", true)]),
    ("Resources", &[("requests", "texts by key", false), ("limits", "texts by key", false)]),
    (
        "Security",
        &[
            ("runAsUser", "number", false),
            ("runAsGroup", "number", false),
            ("allowPrivilegeEscalation", "flag", false),
            ("readOnlyRootFilesystem", "flag", false),
            ("capabilities", "Capabilities", false),
            ("seccompProfile", "Seccomp", false),
            ("seLinuxOptions", "SELinux", false),
        ],
    ),
    ("Capabilities", &[("add", "texts", false), ("drop", "texts", false)]),
    ("Seccomp", &[("type", "text", true)]),
    ("SELinux", &[("type", "text", false)]),
    (
        "Mount",
        &[
            ("name", "text", true),
            ("mountPath", "text", true),
            ("readOnly", "flag", false),
            ("mountPropagation", "text", false),
        ],
    ),
    ("Volume", &[("name", "text", true), ("configMap", "ConfigMapVolume", false), ("hostPath", "HostPath", false)]),
    ("ConfigMapVolume", &[("name", "text", true)]),
    ("HostPath", &[("path", "text", true), ("type", "text", false)]),
];

/// Values that the schemas allow, by the name of the object and its field.
const VALUES: &[(&str, &str, &[&str])] = &[
    ("ConfigMap", "apiVersion", &["v1"]),
    ("DaemonSet", "apiVersion", &["apps/v1"]),
    ("Toleration", "operator", &["Exists", "Equal"]),
    ("Seccomp", "type", &["RuntimeDefault", "Localhost", "Unconfined"]),
    ("Mount", "mountPropagation", &["None", "HostToContainer", "Bidirectional"]),
    (
        "HostPath",
        "type",
        &["DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice"],
    ),
];

/// The faults of a value that has to be of the type `kind`; `at` is its path.
fn faults(value: &Value, kind: &str, at: &str) -> Vec<String> {
    let is_texts = |value: &Value| value.as_array().is_some_and(|list| list.iter().all(Value::is_string));
    let is_mapping = |value: &Value| value.as_object().is_some_and(|map| map.values().all(Value::is_string));
    let is_right = match kind {
        "text" => value.as_str().is_some_and(|text| !text.is_empty()),
        "number" => value.is_u64(),
        "flag" => value.is_boolean(),
        "texts" => is_texts(value),
        "texts by key" => is_mapping(value),
        _ => {
            if let Some(kind) = kind.strip_prefix('[').and_then(|kind| kind.strip_suffix(']')) {
                let Some(list) = value.as_array() else { return vec![format!("{at} is no list")] };
                return list.iter().flat_map(|item| faults(item, kind, &format!("{at}[]"))).collect();
            }
            return faults_of_object(value, kind, at);
        }
    };
    if is_right { Vec::new() } else { vec![format!("{at} is not of the type {kind}")] }
}

fn faults_of_object(value: &Value, kind: &str, at: &str) -> Vec<String> {
    let (_, fields) = SCHEMAS.iter().find(|(name, _)| *name == kind).unwrap_or_else(|| panic!("no schema {kind}"));
    let Some(object) = value.as_object() else { return vec![format!("{at} is no object")] };
    let mut found = Vec::new();
    for (name, value) in object {
        let at = format!("{at}.{name}");
        match fields.iter().find(|(field, ..)| field == name) {
            Some((_, kind, _)) => found.extend(faults(value, kind, &at)),
            None => found.push(format!("{at} is no field of {kind}")),
        }
        let allowed = VALUES.iter().find(|(of, field, _)| *of == kind && field == name);
        if allowed.is_some_and(|(.., values)| !values.iter().any(|allowed| value == *allowed)) {
            found.push(format!("{at} may not be {value}"));
        }
    }
    let absent = fields.iter().filter(|(name, _, needed)| *needed && !object.contains_key(*name));
    found.extend(absent.map(|(name, ..)| format!("{at}.{name} is missing")));
    found
}

/// True if objects may have this name (a label of RFC 1123).
fn is_name(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&name.len()) && name.bytes().all(is_inner) && !name.starts_with('-') && !name.ends_with('-')
}

#[test]
fn its_fields_are_those_of_the_published_schemas() {
    let objects = objects();
    assert_eq!(objects.keys().map(String::as_str).collect::<Vec<_>>(), ["ConfigMap", "DaemonSet"]);
    for (kind, object) in &objects {
        assert_eq!(faults(object, kind, kind), Vec::<String>::new());
        assert!(is_name(object["metadata"]["name"].as_str().expect("a name")));
    }
    let pod = &objects["DaemonSet"]["spec"]["template"]["spec"];
    let volumes = pod["volumes"].as_array().expect("volumes");
    let mut names: Vec<&str> = volumes.iter().map(|volume| volume["name"].as_str().expect("a name")).collect();
    assert!(names.iter().all(|name| is_name(name)), "{names:?}");
    for volume in volumes {
        assert_eq!(volume.as_object().map(Map::len), Some(2), "a name and one source: {volume}");
        if let Some(map) = volume["configMap"]["name"].as_str() {
            assert_eq!(objects["ConfigMap"]["metadata"]["name"], map);
        }
    }
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count, "each volume has a name of its own");
    let container = container(&objects);
    assert_eq!(mounts(&objects).len(), container["volumeMounts"].as_array().expect("mounts").len(), "of each path one");
    assert!(is_name(container["name"].as_str().expect("a name")));
}

#[test]
fn a_manifest_with_a_mistake_has_faults() {
    let mut object = objects().remove("DaemonSet").expect("a DaemonSet");
    object["apiVersion"] = "extensions/v1beta1".into();
    object["spec"]["template"]["spec"]["hostpid"] = true.into();
    object["spec"]["template"]["spec"]["containers"][0]["securityContext"]["runAsUser"] = "root".into();
    object["spec"].as_object_mut().expect("an object").remove("selector");
    let mut found = faults(&object, "DaemonSet", "DaemonSet");
    found.sort();
    let expected = [
        "DaemonSet.apiVersion may not be \"extensions/v1beta1\"",
        "DaemonSet.spec.selector is missing",
        "DaemonSet.spec.template.spec.containers[].securityContext.runAsUser is not of the type number",
        "DaemonSet.spec.template.spec.hostpid is no field of Pod",
    ];
    assert_eq!(found, expected);
    assert!(is_name("a-1") && !is_name("-a") && !is_name("a_b") && !is_name(""));
}
