//! Tests of `evenkeel check`, run as a program: it reports the settings that this host enforces, and those that it does not.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use evenkeel_policy::config::Enforcement;
use evenkeel_policy::effective::{Checked, Presence, Row};

#[path = "serve/folder.rs"]
mod folder;

use folder::{Folder, folder};

/// A temporary folder with the configuration file `policy.toml`.
fn policy(name: &str, content: &str) -> Folder {
    let folder = folder(name);
    folder.file("policy.toml", content);
    folder
}

impl Folder {
    fn check(&self, options: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        command.current_dir(self.path()).arg("check").args(options).output().expect("runs")
    }

    fn read(&self) -> Checked {
        let output = self.check(&["policy.toml", "--json"]);
        serde_json::from_slice(&output.stdout).expect("the records that are documented")
    }
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

/// A configuration of a server and an agent with settings for all enforcement points.
const ALL: &str = "\
[server]
data_dir = \"data\"
[volumes.database]
backend = \"memory\"
size = \"1MiB\"
[agent]
interfaces = [\"no-such-link0\"]
[agent.ceph]
sockets = [\"/nowhere/osd.3.asok\"]
[pools.main]
limit.iops = 20_000
[pools.vg1]
latency = { target = \"15ms\" }
[pools.cached]
devices = [\"/dev/mapper/no-such-cache\"]
[pools.san]
devices = [\"/dev/no-such-disk\"]
tuning.slots = \"needs\"
[pools.ceph]
devices = [\"osd:osd.3\"]
[tenants.database]
match = [\"initiator:iqn.x:db\", \"device:/dev/no-such-disk\"]
throttle = \"last\"
reservation.iops = 2_000
[tenants.database.pools.san]
latency.target = \"9ms\"
[tenants.web]
match = [\"cgroup:no.slice/web.service\"]
guarantee.read.bytes_per_s = \"200MB\"
";

#[test]
fn one_file_has_a_row_at_each_point_and_says_what_this_host_lacks() {
    let file = policy("all", ALL);
    let checked = file.read();
    assert_eq!((&checked.errors, &checked.warnings), (&Vec::new(), &Vec::new()));
    let row = |tenant: Option<&str>, pool: &str, setting: &str| -> &Row {
        let is_it = |row: &&Row| {
            (row.tenant.as_deref(), row.pool.as_deref(), row.setting.as_str()) == (tenant, Some(pool), setting)
        };
        checked.rows.iter().find(is_it).unwrap_or_else(|| panic!("no {pool} {setting}: {:#?}", checked.rows))
    };
    use Enforcement::{Cgroup, Osd, Packets, Queue, QueueDepth};
    for (tenant, pool, setting, point, rank, here, measured, throttled) in [
        (None, "main", "limit 20000 IOPS", Queue, 1, Presence::Present, "pool's requests", "all tenants"),
        (
            Some("database"),
            "main",
            "reservation 2000 IOPS",
            Queue,
            2,
            Presence::Present,
            "own requests",
            "other tenants",
        ),
        (
            None,
            "vg1",
            "latency mean of reads < 15ms",
            Packets,
            5,
            Presence::Missing,
            "vg1, by diskstats",
            "packets to other clients when noisy; database last",
        ),
        (
            Some("web"),
            "cached",
            "guarantee read 200MB/s",
            Cgroup,
            4,
            Presence::Missing,
            "io.stat of no.slice/web",
            "io.max of no.slice/web.service on /dev/mapper/no-such-cache",
        ),
        (
            Some("database"),
            "san",
            "latency mean of all requests < 9ms",
            QueueDepth,
            5,
            Presence::Missing,
            "diskstats of /dev/no-such-disk",
            "queue_depth",
        ),
        (
            None,
            "ceph",
            "admission elastic",
            Osd,
            0,
            Presence::Missing,
            "admin sockets",
            "BlueStore's throttles of osd.3",
        ),
    ] {
        let row = row(tenant, pool, setting);
        assert_eq!(
            (row.point, row.precedence.map_or(0, |entry| entry.rank()), row.here),
            (point, rank, here),
            "{row:?}"
        );
        assert!(row.measured.contains(measured) && row.throttled.contains(throttled), "{row:?}");
    }
    let told: Vec<String> = checked.missing.iter().map(|missing| missing.why.to_string()).collect();
    for expected in [
        "policy.toml:12:8: pools.vg1: not on this host: no target",
        "policy.toml:14:8: pools.cached: not on this host: there is no block device /dev/mapper/no-such-cache",
        "pools.san: san/database is missing: /dev/no-such-disk",
        "pools.ceph: osd.3 is missing: its admin socket",
    ] {
        assert!(told.iter().any(|why| why.contains(expected)), "{expected}: {told:#?}");
    }
    assert_eq!(
        (told.len(), checked.missing.iter().filter(|missing| missing.lost.is_empty()).count()),
        (4, 0),
        "{told:#?}"
    );
    assert!(!told.iter().any(|why| why.contains("has no effect here")), "one of the programs enforces it: {told:#?}");
    let part = checked.host.findings.iter().find(|finding| finding.part == "san/database").expect("is there");
    assert!(part.presence == Presence::Missing && !part.cure.is_empty(), "{part:?}");

    let shown = file.check(&["policy.toml"]);
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    let shown = text(&shown.stdout);
    for words in [
        "tenant",
        "A lower rank wins: 1 pool limit, 2 reservation",
        "not enforced here: policy.toml",
        "lost: ",
        "what to do: ",
    ] {
        assert!(shown.contains(words), "{words:?}: {shown}");
    }
    assert!(shown.lines().any(|line| line.split_whitespace().take(3).eq(["web", "cached", "cgroup"])), "{shown}");
    let strict = file.check(&["policy.toml", "--strict"]);
    assert!(
        !strict.status.success() && text(&strict.stderr).contains("this host does not enforce everything"),
        "{strict:?}"
    );
}

#[test]
fn strict_passes_with_what_is_all_enforced_and_fails_with_a_mistyped_pool() {
    let served = "[server]\ndata_dir = \"data\"\n[pools.main]\nlatency = { target = \"15ms\", percentile = 99 }\n\
        emulate.preset = \"ssd\"\n[tenants.a]\nreservation.iops = 9\n[tenants.b]\nthrottle = \"always\"\n\
        [volumes.a]\nbackend = \"emulate\"\nsize = \"1MiB\"\n[volumes.b]\nbackend = \"emulate\"\nsize = \"1MiB\"\n";
    let file = policy("served", served);
    let strict = file.check(&["policy.toml", "--strict"]);
    assert!(strict.status.success(), "{}{}", text(&strict.stdout), text(&strict.stderr));
    assert_eq!(file.read().missing, [], "a server measures percentiles without the kernel's help");
    let file = policy("mistyped", &format!("{served}[pools.mian2]\nlimit.iops = 5\n"));
    assert!(file.check(&["policy.toml"]).status.success());
    let strict = file.check(&["policy.toml", "--strict"]);
    assert!(!strict.status.success());
    assert!(text(&strict.stdout).contains("policy.toml:16:8: pools.mian2: nothing to enforce here: the pool has neither devices nor a latency target; no volume of this file is on the pool: is the pool's name right?"), "{strict:?}");
    let file = policy("agent", "[agent]\nstatus = \"off\"\n");
    assert_eq!(file.read().rows, [], "an agent without a policy");
    assert!(file.check(&["policy.toml"]).status.success());
    let strict = file.check(&["policy.toml", "--strict"]);
    assert!(text(&strict.stderr).contains("agent: the agent would not run: no pool has anything"), "{strict:?}");
    let file = policy("elsewhere", "[pools.vg9]\nlatency.target = \"15ms\"\n");
    let strict = file.check(&["policy.toml", "--strict"]);
    assert!(!strict.status.success());
    let shown = text(&strict.stdout);
    assert!(shown.contains("pools.vg9: not on this host") && !shown.contains("htb"), "no more than that: {shown}");
    assert!(!shown.contains("main"), "an agent's file has no default volume: {shown}");
}

#[test]
fn a_tenant_that_nothing_belongs_to_is_named_with_the_cure_and_counted() {
    let tenant = "[tenants.database]\nreservation.iops = 2_000\nweight = 4\n";
    let file = policy("idle", &format!("{tenant}[volumes.db1]\nbackend = \"memory\"\nsize = \"1MiB\"\n"));
    let shown = text(&file.check(&["policy.toml"]).stdout);
    for words in [
        "not enforced here: policy.toml:1:10: tenants.database: no volume and no client belongs to this tenant\n  lost: its settings",
        "what to do: write tenant = \"database\" in [volumes.db1], or match = [\"volume:db1\"] here, or remove the tenant",
        "usable: 1 of 3 settings enforced here",
    ] {
        assert!(shown.contains(words), "{words:?}: {shown}");
    }
}

#[test]
fn what_cannot_be_read_is_an_error_with_its_place() {
    let file = policy("faults", "[pools.main]\nlimt.iops = 5\n[tenants.a]\nweight = 0\n");
    let refused = file.check(&["policy.toml"]);
    assert!(!refused.status.success() && refused.stdout.is_empty());
    let told = text(&refused.stderr);
    assert!(told.contains("error: policy.toml:2:1: pools.main.limt: unknown key \"limt\"; did you mean"), "{told}");
    assert!(
        told.contains("error: policy.toml:4:1: tenants.a.weight: 0 is out of range") && told.contains("2 errors"),
        "{told}"
    );
    assert_eq!(file.read().errors.len(), 2);
    // Said once, although both programs read it.
    let file = policy("table", "[server]\n[guard]\n[tenants.a]\nmatch = [\"nonsense\"]\n");
    let errors: Vec<String> = file.read().errors.iter().map(ToString::to_string).collect();
    assert_eq!(errors.len(), 2, "{errors:#?}");
    let absent = file.check(&["none.toml"]);
    assert!(!absent.status.success());
    assert!(
        text(&absent.stderr).contains("error: none.toml: cannot read the configuration: No such file"),
        "{absent:?}"
    );
    let file = policy("malformed", "[pools\n");
    let refused = file.check(&["policy.toml"]);
    assert!(!refused.status.success());
    assert!(text(&refused.stderr).contains("error: policy.toml:1:7: "), "{}", text(&refused.stderr));
}

#[test]
fn files_that_the_server_would_refuse_are_errors() {
    let refused = |name: &str, content: &str, make: &dyn Fn(&Folder), words: &[&str]| {
        let file = policy(name, content);
        make(&file);
        let output = file.check(&["policy.toml"]);
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{content}: {told}");
        words.iter().for_each(|words| assert!(told.contains(words), "{content}: {words:?}: {told}"));
    };
    let none = |_: &Folder| {};
    let disk = |file: &Folder| std::fs::write(file.join("disk"), [7; 4096]).expect("written");
    let tls = "[server.tls]\ncertificate = \"disk\"\nkey = \"key\"\n";
    let both = ["policy.toml:2:1: server.tls.certificate: disk cannot be read", "server.tls.key: key cannot be read"];
    refused("no-certificate", tls, &none, &both);
    refused("other-certificate", tls, &disk, &["policy.toml:2:1: server.tls.certificate: disk has no certificate"]);
    let agent = "[agent.tls]\ncertificate = \"disk\"\nkey = \"key\"\n";
    let open = |file: &Folder| {
        disk(file);
        std::fs::set_permissions(file.join("disk"), std::fs::Permissions::from_mode(0o644)).expect("set");
    };
    let doubtful = tls.replace("\"key\"", "\"disk\"");
    let words = ["disk has no private key", "warning: policy.toml:3:1: server.tls.key: disk can be used by every user"];
    refused("open-key", &doubtful, &open, &words);
    let damaged = |file: &Folder| {
        file.file("data/files.toml", "garbage");
    };
    let (volume, data) = ("[volumes.a]\nsize = \"1MiB\"\n", "[server]\ndata_dir = \"data\"\n");
    let words = ["policy.toml:2:1: server.data_dir: cannot read the record of files in data/files.toml: it is damaged"];
    refused("damaged-record", &format!("{data}{volume}"), &damaged, &words);
    let sockets = "[server]\nunix = [\"none/y.sock\", \"disk\"]\n";
    let words = ["2:1: server.unix: cannot listen on none/y.sock: its folder", "disk: it exists and is not a socket"];
    refused("no-sockets", sockets, &disk, &words);
    refused("agents-certificate", agent, &none, &["agent.tls.certificate: disk cannot be read"]);
    let remote = "[volumes.far]\nbackend = \"nbd\"\nuri = \"nbds://far/a\"\n\
        uri_tls = { authorities = \"ca\", certificate = \"disk\", key = \"key\" }\n";
    let words = [
        "volumes.far.uri_tls.authorities: ca cannot be read",
        "volumes.far.uri_tls.certificate: disk has no certificate",
        "volumes.far.uri_tls.key: key cannot be read",
    ];
    refused("remote-certificates", remote, &disk, &words);
    let etcd = "[cluster]\netcd = [\"https://127.0.0.1:1\"]\ntls = { authorities = \"disk\" }\n";
    let words = ["cluster.tls.authorities: disk has no certificate"];
    refused("etcds-authority", &format!("{etcd}{volume}"), &disk, &words);
    let user = "user = \"evenkeel\"\npassword_file = \"password\"\n";
    let words = ["cluster.password_file: password cannot be read: No such file"];
    refused("etcds-password", &format!("{etcd}{user}{volume}"), &disk, &words);
    refused("agents-password", &format!("{etcd}{user}[agent]\ninterval = \"100ms\"\n"), &disk, &words);
    for (name, volume, words) in [
        (
            "no-size",
            "",
            "volumes.a.size: cannot open evenkeel-data/a.img: it is not there, and a new file needs a size",
        ),
        (
            "no-device",
            "backend = \"block\"\npath = \"/dev/none0\"",
            "volumes.a.path: cannot open /dev/none0: No such file",
        ),
        ("no-block-device", "backend = \"block\"\npath = \"disk\"", "it is not a block device; use backend"),
        ("null", "path = \"/dev/null\"", "it is neither a regular file nor a block device"),
        ("a-folder", "path = \"/\"", "it is neither a regular file nor a block device"),
        ("no-folder", "path = \"none/a\"\nsize = \"1MiB\"", "its folder is not there; make it"),
        ("read-only", "size = \"1MiB\"\nread_only = true", "a.img: No such file"),
    ] {
        refused(name, &format!("[volumes.a]\n{volume}\n"), &disk, &[words, "error: policy.toml:"]);
    }
    let new = policy("new", "[volumes.a]\nsize = \"1MiB\"\n");
    assert!(new.check(&["policy.toml"]).status.success(), "the server makes the folder and the file");
}

#[test]
fn volumes_on_record_are_checked_and_what_is_wrong_with_them_is_wrong_there() {
    let file = policy("record", "[server]\ndata_dir = \"data\"\n");
    let record = |pool: &str| {
        let text = format!("[volumes.s1]\nbackend = \"memory\"\nsize = \"1MiB\"\npool = \"{pool}\"\n");
        file.file("data/volumes.toml", text);
        file.check(&["policy.toml"])
    };
    let usable = record("main");
    assert!(usable.status.success(), "{}", text(&usable.stderr));
    let refused = record("fast");
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused.stdout));
    let told = text(&refused.stderr);
    assert!(told.contains("error: data/volumes.toml: volumes.s1.pool: there is no pool \"fast\""), "{told}");
    let serve = Command::new(env!("CARGO_BIN_EXE_evenkeel"))
        .current_dir(file.path())
        .args(["serve", "--config", "policy.toml"])
        .output()
        .expect("runs");
    assert!(!serve.status.success() && text(&serve.stderr).contains("data/volumes.toml: volumes.s1.pool"), "{serve:?}");
}

#[test]
fn strict_counts_what_there_is() {
    let file = policy("one-warning", "[server]\nstatus = \"0.0.0.0:9809\"\n");
    let strict = file.check(&["policy.toml", "--strict"]);
    assert!(text(&strict.stderr).ends_with("--strict: 1 warning\n"), "{}", text(&strict.stderr));
    // Port 9 of this host is where no server listens.
    let file = policy("etcd", "[server]\n[cluster]\netcd = [\"http://127.0.0.1:9\"]\n");
    let strict = file.check(&["policy.toml", "--strict"]);
    let shown = text(&strict.stdout);
    assert!(!strict.status.success(), "{shown}");
    assert!(shown.contains("not enforced here: policy.toml:3:1: cluster.etcd: http://127.0.0.1:9"), "{shown}");
}

#[test]
fn both_examples_are_usable() {
    for program in [&["config", "example"][..], &["guard", "config", "example"]] {
        let example = Command::new(env!("CARGO_BIN_EXE_evenkeel")).args(program).output().expect("runs");
        let file = policy(program[0], &text(&example.stdout));
        let checked = file.check(&["policy.toml"]);
        assert!(checked.status.success(), "{}", text(&checked.stderr));
        assert!(text(&checked.stdout).contains("usable: "), "{}", text(&checked.stdout));
        assert!(checked.stderr.is_empty(), "{}", text(&checked.stderr));
    }
}

#[test]
fn an_array_names_its_queues_and_the_addresses_of_etcd() {
    // Port 9 of this host is where no server listens.
    let arrays = "[pools.san]\ntuning.slots = \"needs\"\n[tenants.database]\nmatch = [\"device:no-such-disk\"]\n\
        [cluster]\netcd = [\"http://127.0.0.1:9\"]\n";
    let checked = policy("arrays", arrays).read();
    for (part, here) in [("san/database", Presence::Missing), ("http://127.0.0.1:9", Presence::Unsuitable)] {
        let lack = checked.missing.iter().find(|missing| missing.why.message.starts_with(part));
        assert!(lack.is_some_and(|lack| lack.here == here && !lack.cure.is_empty()), "{part}: {:#?}", checked.missing);
    }
}

#[test]
fn without_a_file_the_kernel_is_checked() {
    let file = policy("none", "");
    let output = file.check(&["--json"]);
    let checked: Checked = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(checked.rows.is_empty() && checked.host.findings.iter().any(|finding| finding.part == "fq"));
    assert_eq!(file.check(&["--strict"]).status.success(), checked.host.can_act);
    let shown = text(&file.check(&[]).stdout);
    assert!(shown.contains("purpose") && shown.contains("clients can be throttled: "), "{shown}");
    assert!(shown.contains("evenkeel guard") && !shown.contains("known from"), "{shown}");
}

/// One policy file, used unchanged by the configurations of a server and of an agent: each enforces its part of the policy.
#[test]
fn one_policy_does_what_each_host_can_do() {
    const POLICY: &str = "[tenants.database]\nweight = 4\nreservation = { iops = 500 }\n\
        match = [\"volume:database\", \"initiator:iqn.2026-01.example:db\", \"cgroup:system.slice/postgresql@*.service\", \
        \"device:/dev/mapper/mpatha\"]\nguarantee.read = { bytes_per_s = \"20MB\" }\nlatency = { target = \"10ms\" }\n\
        [tenants.backup]\nmatch = [\"volume:backup\", \"device:/dev/mapper/mpathb\"]\npriority = \"background\"\n\
        [pools.main]\nlimit = { iops = 5000 }\n\
        [pools.vg1]\ndevices = [\"/dev/vg1/lv1\"]\nlatency = { target = \"15ms\", of = \"reads\" }\nenforce = [\"packets\"]\n\
        [pools.cached]\ndevices = [\"/dev/mapper/cached\"]\nenforce = [\"cgroup\"]\n\
        [pools.san]\ntuning.slots = \"needs\"\n[pools.ceph]\ndevices = [\"osd:*\"]\n";
    let folder = policy("one-policy", POLICY);
    let points = |host: &str| {
        folder.file("host.toml", format!("policy = \"policy.toml\"\n{host}"));
        let output = folder.check(&["host.toml", "--json"]);
        let checked: Checked = serde_json::from_slice(&output.stdout).expect("the records that are documented");
        assert_eq!(checked.errors, []);
        let rows = checked.rows.iter().map(|row| (row.point.name(), row.tenant.clone(), row.setting.clone()));
        let missing: Vec<String> = checked.missing.iter().map(|missing| missing.why.origin.clone()).collect();
        assert!(missing.iter().all(|origin| origin.ends_with("policy.toml") || host.contains("agent")), "{missing:?}");
        rows.collect::<Vec<_>>()
    };
    let server = points(
        "[volumes.database]\nbackend = \"memory\"\nsize = \"1MiB\"\n[volumes.backup]\nbackend = \"memory\"\nsize = \"1MiB\"\n",
    );
    let has = |rows: &[(&str, Option<String>, String)], point: &str, tenant: Option<&str>, setting: &str| {
        rows.iter().any(|row| row.0 == point && row.1.as_deref() == tenant && row.2.starts_with(setting))
    };
    assert!(has(&server, "queue", Some("database"), "reservation 500 IOPS"), "{server:?}");
    assert!(has(&server, "queue", None, "limit 5000 IOPS"), "{server:?}");
    let agent = points("[agent]\ninterfaces = [\"lo\"]\n");
    for (point, tenant, setting) in [
        ("packets", None, "latency mean of reads"),
        ("packets", Some("database"), "reservation 500 IOPS"),
        ("cgroup", Some("database"), "guarantee read 20MB/s"),
        ("cgroup", Some("database"), "reservation 500 IOPS"),
        ("queue_depth", Some("database"), "latency mean of all requests"),
        ("queue_depth", Some("backup"), "weight 1"),
        ("osd", None, "admission elastic"),
    ] {
        assert!(has(&agent, point, tenant, setting), "{point} {tenant:?} {setting}: {agent:?}");
    }
    assert!(!agent.iter().any(|row| row.0 == "queue"), "{agent:?}");
}
