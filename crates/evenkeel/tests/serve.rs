//! Tests of `evenkeel serve` and of the commands that ask a running server, all run as processes.

#[path = "serve/history.rs"]
mod history;
#[path = "serve/ours.rs"]
mod ours;
#[path = "serve/record.rs"]
mod record;
#[path = "serve/save.rs"]
mod save;
#[path = "serve/screen.rs"]
mod screen;
#[path = "serve/server.rs"]
mod server;
#[path = "../../xtask/src/test/skip.rs"]
mod skip;
#[path = "serve/top.rs"]
mod top;

use std::fs;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use server::{EVENKEEL, Folder, Server, control, fail, http, run, succeed, wait};

#[test]
fn the_first_start_needs_nothing_and_says_what_to_try() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    for line in [
        "nbdinfo 'nbd://127.0.0.1:",
        "fio --name=try --ioengine=nbd",
        "qemu-img convert",
        "nbd-client 127.0.0.1",
        "/disk0'",
    ] {
        assert!(server.banner.contains(line), "{line} is missing in\n{}", server.banner);
    }
    let image = fs::metadata(folder.join("evenkeel-data/disk0.img")).expect("the volume's file");
    assert_eq!(image.len(), 1 << 30);
    assert!(image.blocks() * 512 < 1 << 20, "not sparse: {} blocks", image.blocks());
    let socket = folder.join("evenkeel-data/control.sock");
    assert_eq!(fs::metadata(&socket).expect("the control socket").permissions().mode() & 0o777, 0o600);
    assert_eq!(server.state()["volumes"][0]["size_bytes"], 1 << 30);
    assert!(succeed(&folder, &["state"]).contains("disk0"));
    server.stop();
    assert!(!socket.exists() && !folder.join("evenkeel-data/nbd.sock").exists(), "sockets are left behind");
    let complaint = fail(&folder, &["state"]);
    assert!(complaint.contains("no server answers") && complaint.contains("evenkeel serve"), "{complaint}");
}

#[test]
fn tcp_shows_and_changes_nothing() {
    let folder = Folder::new();
    let mut server = Server::start(&folder, &[]);
    let address = server.status();
    let volumes_without_measured_space = || {
        let mut volumes = server.state()["volumes"].clone();
        volumes.as_array_mut().expect("a list").iter_mut().for_each(|volume| drop(volume["space"].take()));
        volumes
    };
    let before = volumes_without_measured_space();
    for path in ["/", "/metrics", "/api/v1/state", "/healthz", "/livez", "/dashboard/main.js", "/dashboard/style.css"] {
        let answer = http(address, "GET", path, &[], "");
        assert_eq!(answer.status, 200, "{path}");
        assert!(answer.head.contains("content-security-policy: default-src 'none'"), "{path}: {}", answer.head);
        assert!(!answer.body.is_empty(), "{path}");
        let head = http(address, "HEAD", path, &[], "");
        assert_eq!((head.status, head.body.as_str()), (200, ""), "{path}");
    }
    for path in [
        "/",
        "/api/v1/state",
        "/api/v1/reload",
        "/api/v1/volumes",
        "/api/v1/volumes/disk0",
        "/api/v1/tenants/a",
        "/nothing",
    ] {
        for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"] {
            let answer = http(address, method, path, &["Content-Type: application/json"], "{}");
            assert_eq!(answer.status, 405, "{method} {path}");
            assert!(answer.head.contains("allow: get, head"), "{method} {path}: {}", answer.head);
            let error: Value = serde_json::from_str(&answer.body).expect("JSON");
            assert_eq!(error["error"]["kind"], "read_only");
            assert!(error["error"]["cure"].as_str().is_some_and(|cure| cure.contains("control socket")), "{error}");
        }
    }
    for path in ["/api/v1/config", "/nothing", "/api/v1/volumes/disk0"] {
        assert_eq!(http(address, "GET", path, &[], "").status, 404, "{path}");
    }
    for host in ["Host: evil.example", "Host: evil.example:9809", "Host: 10.0.0.1"] {
        let answer = http(address, "GET", "/api/v1/state", &[host], "");
        assert_eq!(answer.status, 421, "{host}");
        assert!(!answer.body.contains("Some("), "{}", answer.body);
    }
    let socket = folder.join("evenkeel-data/control.sock");
    let two_hosts = ["Host: localhost"; 2];
    for (hosts, status, words) in [(&two_hosts[..1], 200, "\n"), (&two_hosts[..], 400, "two_hosts")] {
        for answer in [http(address, "GET", "/healthz", hosts, ""), control(&socket, "GET", "/healthz", hosts, "")] {
            assert!(answer.status == status && answer.body.contains(words), "{}", answer.body);
        }
    }
    assert_eq!(volumes_without_measured_space(), before);
    server.signal("TERM");
    let (status, log) = server.end();
    assert!(status.success(), "{status}: {log}");
    assert!(log.contains("\"evil.example\", which is not this machine") && log.contains("[server.http]"), "{log}");
    assert!(log.matches("with status 421").count() < 3, "each refusal has a line: {log}");
}

#[test]
fn the_dashboard_loads_nothing_from_elsewhere_and_has_no_inline_code() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let page = http(server.status(), "GET", "/", &[], "").body;
    let quoted = |text: &str, before: &str| -> Vec<String> {
        text.split(before).skip(1).filter_map(|rest| rest.split('"').next()).map(str::to_owned).collect()
    };
    let mut wanted = [quoted(&page, "src=\""), quoted(&page, "href=\"")].concat();
    wanted.retain(|path| path.starts_with("/dashboard/"));
    let mut seen = Vec::new();
    while let Some(path) = wanted.pop() {
        if seen.contains(&path) {
            continue;
        }
        let answer = http(server.status(), "GET", &path, &[], "");
        assert_eq!(answer.status, 200, "{path}");
        let kind = match path.rsplit('.').next() {
            Some("js") => "text/javascript",
            Some("css") => "text/css",
            _ => "image/svg+xml",
        };
        assert!(answer.head.contains(&format!("content-type: {kind}")), "{path}: {}", answer.head);
        assert!(answer.head.contains("x-content-type-options: nosniff"), "{path}: {}", answer.head);
        // The name of SVG is no address that is loaded.
        let text = answer.body.replace("http://www.w3.org/2000/svg", "");
        assert!(!text.contains("http://") && !text.contains("https://") && !text.contains("url("), "{path}");
        for sink in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "setHTML"] {
            assert!(!text.contains(sink), "{path}: {sink} would let a name become markup");
        }
        wanted.extend(quoted(&text, "from \"./").into_iter().map(|name| format!("/dashboard/{name}")));
        seen.push(path);
    }
    assert!(seen.iter().any(|path| path.ends_with("figures.js")), "modules are followed: {seen:?}");
    assert!(!page.contains("http://") && !page.contains("https://"));
    assert!(!page.contains("<style") && !page.contains(" style=") && !page.contains(" onclick"));
    assert_eq!(page.matches("<script").count(), page.matches("></script>").count(), "inline code");
    server.stop();
}

#[test]
fn browsers_keep_the_dashboard_and_ask_whether_it_is_still_the_same() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let first = http(server.status(), "GET", "/dashboard/main.js", &[], "");
    assert!(first.head.contains("cache-control: no-cache"), "{}", first.head);
    let tag = first.head.split("etag: ").nth(1).and_then(|rest| rest.lines().next()).expect("a tag").trim().to_owned();
    let known = format!("If-None-Match: {tag}");
    let again = http(server.status(), "GET", "/dashboard/main.js", &[&known], "");
    assert_eq!((again.status, again.body.as_str()), (304, ""));
    assert_eq!(http(server.status(), "GET", "/dashboard/feed.js", &[&known], "").status, 200);
    let state = http(server.status(), "GET", "/api/v1/state", &[], "");
    assert!(state.head.contains("cache-control: no-store"), "{}", state.head);
    server.stop();
}

#[test]
fn a_brief_state_has_one_tenant_whole_if_that_is_wanted() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    succeed(&folder, &["load", server.uri(), "--op", "read", "--requests", "64"]);
    let buckets = |path: &str| {
        let state: Value = serde_json::from_str(&http(server.status(), "GET", path, &[], "").body).expect("JSON");
        state["pools"][0]["tenants"][0]["latency"]["buckets"].as_array().expect("a list").len()
    };
    assert!(buckets("/api/v1/state") > 0);
    assert_eq!(buckets("/api/v1/state?brief=true"), 0);
    assert_eq!(buckets("/api/v1/state?brief=true&whole=another"), 0);
    assert!(buckets("/api/v1/state?brief=true&whole=default") > 0);
    server.stop();
}

/// Value of the one sample in a scrape whose line begins with `start`; panics if there are several or none.
fn sample(metrics: &str, start: &str) -> f64 {
    let lines: Vec<&str> = metrics.lines().filter(|line| line.starts_with(start)).collect();
    assert_eq!(lines.len(), 1, "{start}: {lines:?}");
    lines[0].rsplit_once(' ').and_then(|(_, value)| value.parse().ok()).expect("a number")
}

#[test]
fn metrics_count_what_was_served() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    succeed(&folder, &["load", server.uri(), "--op", "read", "--requests", "300", "--queue-depth", "8"]);
    let answer = http(server.status(), "GET", "/metrics", &["Accept: application/openmetrics-text"], "");
    assert!(answer.head.contains("content-type: application/openmetrics-text"), "{}", answer.head);
    let metrics = answer.body;
    assert!(metrics.ends_with("# EOF\n"));
    let labels = "pool=\"main\",tenant=\"default\"";
    assert_eq!(sample(&metrics, &format!("evenkeel_tenant_requests_total{{{labels},op=\"read\"}}")), 300.0);
    assert_eq!(
        sample(&metrics, &format!("evenkeel_tenant_payload_bytes_total{{{labels},op=\"read\"}}")),
        300.0 * 4096.0
    );
    for histogram in ["queue_latency", "device_latency", "latency"] {
        let name = format!("evenkeel_tenant_{histogram}_seconds");
        assert_eq!(sample(&metrics, &format!("{name}_count{{{labels}}}")), 300.0, "{name}");
        let start = format!("{name}_bucket{{le=");
        let counts: Vec<f64> = metrics
            .lines()
            .filter(|line| line.starts_with(&start))
            .map(|line| line.rsplit_once(' ').expect("a value").1.parse().expect("a number"))
            .collect();
        assert!(counts.len() > 20 && counts.is_sorted(), "{name}: {counts:?}");
        assert_eq!(counts.last(), Some(&300.0), "{name}");
    }
    // Every sample belongs to a family that was described, under a unit it names.
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().expect("a name");
        let described =
            |suffix: &str| metrics.contains(&format!("# TYPE {} ", name.strip_suffix(suffix).unwrap_or(name)));
        assert!(["", "_total", "_bucket", "_count", "_sum"].iter().any(|suffix| described(suffix)), "{line}");
    }
    server.stop();
}

#[test]
fn volumes_come_grow_and_go_and_are_there_after_a_restart() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    assert_eq!(
        succeed(&folder, &["volume", "create", "scratch", "--size", "8MiB", "--description", "to try"]),
        "volume scratch added\n"
    );
    assert_eq!(succeed(&folder, &["volume", "grow", "scratch", "16MiB"]), "volume scratch grown to 16MiB\n");
    let list = succeed(&folder, &["volume", "list"]);
    assert!(list.contains("scratch") && list.contains("16MiB") && list.contains("disk0"), "{list}");
    let uri = server.uri().replace("disk0", "scratch");
    succeed(&folder, &["load", &uri, "--op", "write", "--requests", "20"]);
    for (arguments, words) in [
        (&["volume", "create", "scratch", "--size", "1MiB"][..], "already"),
        (&["volume", "create", "more", "--size", "0"], "greater than 0"),
        (&["volume", "create", "more", "--size", "1MiB", "--pool", "mian"], "did you mean \"main\""),
        (&["volume", "grow", "scratch", "1MiB"], "only grows"),
        (&["volume", "grow", "none", "1MiB"], "no volume"),
        (&["volume", "remove", "ab"], "no volume"),
    ] {
        let complaint = fail(&folder, arguments);
        assert!(complaint.contains(words) && complaint.contains("what to do"), "{arguments:?}: {complaint}");
    }
    server.stop();

    let server = Server::start(&folder, &[]);
    let state = server.state();
    let sizes: Vec<_> = state["volumes"]
        .as_array()
        .expect("volumes")
        .iter()
        .map(|v| (v["name"].as_str(), v["size_bytes"].as_u64()))
        .collect();
    assert_eq!(sizes, [(Some("disk0"), Some(1 << 30)), (Some("scratch"), Some(16 << 20))]);
    succeed(&folder, &["volume", "remove", "scratch"]);
    succeed(&folder, &["volume", "remove", "disk0"]);
    assert_eq!(server.state()["volumes"], json!([]));
    assert_eq!(fs::metadata(folder.join("evenkeel-data/scratch.img")).expect("the file stays").len(), 16 << 20);
    server.signal("HUP");
    assert_eq!(succeed(&folder, &["reload"]), "nothing changed\n");
    server.stop();
}

#[test]
fn a_reload_changes_what_it_can_or_nothing() {
    let folder = Folder::new();
    let file = folder.join("evenkeel.toml");
    let write = |text: &str| fs::write(&file, text).expect("the configuration");
    write("[volumes.a]\nbackend = \"memory\"\nsize = \"1MiB\"\n");
    let mut server = Server::start(&folder, &["--config", "evenkeel.toml"]);

    write(
        "[volumes.a]\nbackend = \"memory\"\nsize = \"2MiB\"\n[volumes.b]\nbackend = \"memory\"\nsize = \"1MiB\"\n[tenants.a]\nweight = 3\n",
    );
    server.signal("HUP");
    let log = server.log_until("volume a grown to 2MiB");
    assert!(log.contains("volume b added") && log.contains("tenant a added"), "{log}");
    let state = server.state();
    assert_eq!((&state["volumes"][0]["size_bytes"], &state["volumes"][0]["tenant"]), (&json!(2 << 20), &json!("a")));

    write("[volumes.a]\nbackend = \"memory\"\nsize = \"4MiB\"\n[tenants.a]\nwieght = 3\n");
    server.signal("HUP");
    let log = server.log_until("reload refused");
    assert!(log.contains("evenkeel.toml:5:1: tenants.a.wieght") && log.contains("did you mean \"weight\""), "{log}");
    let complaint = fail(&folder, &["reload"]);
    assert!(complaint.contains("evenkeel.toml:5:1"), "{complaint}");

    write("[server]\nbusy_poll = \"7us\"\n[volumes.a]\nbackend = \"file\"\nsize = \"4MiB\"\n");
    let complaint = fail(&folder, &["reload"]);
    assert!(complaint.contains("server.busy_poll") && complaint.contains("volumes.a.backend"), "{complaint}");

    let after = server.state();
    assert_eq!(after["volumes"], state["volumes"], "a refused reload changed something");

    let complaint = fail(&folder, &["volume", "remove", "a"]);
    assert!(complaint.contains("defined in evenkeel.toml"), "{complaint}");
    server.stop();
}

#[test]
fn what_a_restart_would_refuse_is_refused_at_once() {
    let folder = Folder::new();
    let server = Server::configured(&folder, "[server]\ndefault_export = \"disk0\"\n");
    let complaint = fail(&folder, &["volume", "remove", "disk0"]);
    assert!(complaint.contains("default_export"), "{complaint}");
    // A tenant that a command made is gone after a restart, and so would be the volume's guarantee.
    succeed(&folder, &["tenant", "set", "passing", "--weight", "2", "--create"]);
    let complaint = fail(&folder, &["volume", "create", "more", "--size", "1MiB", "--tenant", "passing"]);
    assert!(complaint.contains("a restart would refuse") && complaint.contains("passing"), "{complaint}");
    server.stop();
    Server::start(&folder, &["--config", "e.toml"]).stop();
}

#[test]
fn a_configuration_that_cannot_be_read_names_no_server() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let complaint = fail(&folder, &["volume", "create", "more", "--size", "1MiB", "--config", "missing.toml"]);
    assert!(complaint.contains("missing.toml"), "{complaint}");
    assert_eq!(server.state()["volumes"].as_array().map(Vec::len), Some(1));
    server.stop();
}

#[test]
fn guarantees_and_pools_change_live_until_the_next_reload() {
    let folder = Folder::new();
    let config = "[pools.main.emulate]\n[volumes.v]\nbackend = \"emulate\"\nsize = \"1MiB\"\n";
    let server = Server::configured(&folder, config);
    let said = succeed(
        &folder,
        &["tenant", "set", "default", "--weight", "5", "--limit-iops", "1000", "--priority", "background"],
    );
    assert!(said.contains("tenant default changed") && said.contains("until the next reload"), "{said}");
    succeed(
        &folder,
        &["pool", "set", "main", "--admission", "fixed:512KiB", "--limit-bytes-per-s", "50MB", "--emulate", "iops=700"],
    );
    succeed(&folder, &["pool", "set", "main", "--latency", "20ms@99"]);
    let said = succeed(&folder, &["server", "set", "--workers", "3"]);
    assert!(said.contains("server.workers changed") && said.contains("until the next reload"), "{said}");
    let state = server.state();
    assert_eq!(state["workers"].as_array().map(Vec::len), Some(3));
    let pool = &state["pools"][0];
    assert_eq!((&pool["admission"]["kind"], &pool["admission"]["budget_bytes"]), (&json!("fixed"), &json!(512 << 10)));
    assert_eq!(
        (&pool["limit"]["bytes_per_s"], &pool["limit"]["bytes_per_s_owner"]),
        (&json!(50_000_000), &json!("operator"))
    );
    let target = &pool["latency_target"];
    assert_eq!((&target["target_ms"], &target["percentile"]), (&json!(20.0), &json!("p99")));
    let tenant = &pool["tenants"][0];
    assert_eq!((&tenant["qos"]["weight"], &tenant["qos"]["priority"]), (&json!(5), &json!("background")));
    assert_eq!(tenant["limit"]["iops"], 1000);
    // A guarantee of one direction, of both, and of both together in its place.
    for (arguments, guarantees) in [
        (&["--guarantee-write-bytes-per-s", "5MB"][..], &[("write", "bytes", 5_000_000)][..]),
        (&["--guarantee-read-iops", "100"], &[("read", "requests", 100), ("write", "bytes", 5_000_000)]),
        (&["--guarantee-bytes-per-s", "9MB"], &[("all", "bytes", 9_000_000)]),
        (&["--guarantee-bytes-per-s", "0"], &[]),
    ] {
        succeed(&folder, &[&["tenant", "set", "default"][..], arguments].concat());
        let state = server.state();
        let shown = state["pools"][0]["tenants"][0]["guarantees"].as_array().expect("a list").clone();
        let of = |guarantee: &Value| {
            (guarantee["of"].clone(), guarantee["unit"].clone(), guarantee["guaranteed_per_s"].clone())
        };
        let expected: Vec<_> =
            guarantees.iter().map(|&(of, unit, rate)| (json!(of), json!(unit), json!(rate))).collect();
        assert_eq!(shown.iter().map(of).collect::<Vec<_>>(), expected, "{arguments:?}");
        let metrics = http(server.status(), "GET", "/metrics", &[], "").body;
        let each = metrics.lines().filter(|line| line.starts_with("evenkeel_tenant_guarantee{"));
        assert_eq!(each.count(), guarantees.len());
        for (of, unit, rate) in guarantees {
            let of =
                format!("evenkeel_tenant_guarantee{{pool=\"main\",tenant=\"default\",of=\"{of}\",unit=\"{unit}\"}}");
            assert_eq!(sample(&metrics, &of), f64::from(*rate));
        }
        let text = succeed(&folder, &["state"]);
        assert_eq!(
            text.contains("5.00 MB/s of writes, got "),
            guarantees.len() == 2 || guarantees == [("write", "bytes", 5_000_000)],
            "{text}"
        );
    }
    let socket = folder.join("evenkeel-data/control.sock");
    let config: Value = serde_json::from_str(&control(&socket, "GET", "/api/v1/config", &[], "").body).expect("JSON");
    assert_eq!(config["pools"]["main"]["emulate"]["iops"], 700);
    let patch = |body| control(&socket, "PATCH", "/api/v1/server", &["Content-Type: application/json"], body);
    let refused = patch("{\"workers\": 1, \"max_connections\": 7}");
    assert!(refused.status == 409 && refused.body.contains("server.max_connections"), "{}", refused.body);
    assert_eq!(server.state()["workers"].as_array().map(Vec::len), Some(3), "nothing has changed");
    for (arguments, words) in [
        (&["server", "set", "--workers", "0"][..], "out of range"),
        (&["tenant", "set", "default", "--weight", "0"], "1 to 1000000"),
        (&["tenant", "set", "default", "--reservation-iops", "2000"], "more than the tenant's limit"),
        (&["pool", "set", "other", "--limit-iops", "5"], "no pool"),
        (&["pool", "set", "main", "--admission", "slow"], "slow"),
        (&["pool", "set", "main", "--emulate", "speed=5"], "speed"),
        (&["pool", "set", "main", "--emulate", "bandwidth=0"], "bandwidth must be greater than 0"),
    ] {
        let complaint = fail(&folder, arguments);
        assert!(complaint.contains(words), "{arguments:?}: {complaint}");
    }
    let said = succeed(&folder, &["reload"]);
    assert!(said.contains("tenant default changed") && said.contains("pool main changed"), "{said}");
    assert!(said.contains("server.workers changed"), "{said}");
    assert_eq!(server.state()["pools"][0]["admission"]["kind"], "elastic");
    server.stop();
}

#[test]
fn the_control_socket_refuses_with_kind_and_cure() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let socket = folder.join("evenkeel-data/control.sock");
    let json_type = ["Content-Type: application/json"];
    for (method, path, headers, body, status, kind) in [
        ("POST", "/api/v1/volumes", &json_type[..], "{\"name\":", 400, "invalid_request"),
        ("POST", "/api/v1/volumes", &json_type, "{\"nam\":\"x\"}", 422, "invalid_request"),
        (
            "POST",
            "/api/v1/volumes",
            &json_type,
            "{\"name\":\"x\",\"volume\":{\"size\":\"many\"}}",
            422,
            "invalid_request",
        ),
        ("POST", "/api/v1/volumes", &[], "{\"name\":\"x\"}", 415, "invalid_request"),
        (
            "POST",
            "/api/v1/volumes",
            &json_type,
            "{\"name\":\"x\",\"volume\":{\"backend\":\"memory\"}}",
            422,
            "invalid_configuration",
        ),
        ("DELETE", "/api/v1/volumes/none", &[], "", 404, "not_found"),
        ("PATCH", "/api/v1/volumes/disk0", &json_type, "{\"size\":9,\"tenant\":\"a\"}", 422, "invalid_request"),
        ("DELETE", "/api/v1/tenants/default", &[], "", 409, "refused"),
        ("PATCH", "/api/v1/pools/none", &json_type, "{}", 404, "not_found"),
        ("PATCH", "/api/v1/tenants/default", &json_type, "[]", 422, "invalid_request"),
        ("PUT", "/api/v1/volumes", &[], "", 405, "method_not_allowed"),
        ("GET", "/api/v2/state", &[], "", 404, "not_found"),
    ] {
        let answer = control(&socket, method, path, headers, body);
        assert_eq!(answer.status, status, "{method} {path} {body}: {}", answer.body);
        let error: Value = serde_json::from_str(&answer.body).expect("JSON");
        assert_eq!(error["error"]["kind"], kind, "{method} {path} {body}");
        assert!(error["error"]["cure"].as_str().is_some_and(|cure| !cure.is_empty()), "{error}");
    }
    let large = format!("{{\"name\":\"{}\"}}", "x".repeat(100 << 10));
    assert_eq!(control(&socket, "POST", "/api/v1/volumes", &json_type, &large).status, 413);
    assert_eq!(server.state()["volumes"].as_array().map(Vec::len), Some(1));
    server.stop();
}

#[test]
fn what_is_taken_is_said_with_its_holder() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let complaint = fail(&folder, &["serve", "--listen", "127.0.0.1:0", "--status", "off"]);
    assert!(complaint.contains("--data-dir"), "{complaint}");
    let complaint = fail(&folder, &["serve", "--status", server.status()]);
    assert!(complaint.contains("another server answers on"), "{complaint}");
    let other = ["--data-dir", "other"];
    let address = server.uri().trim_start_matches("nbd://").trim_end_matches("/disk0").to_owned();
    let complaint = fail(&folder, &[&["serve", "--listen", &address, "--status", "off"][..], &other].concat());
    assert!(
        complaint.contains(&address) && complaint.contains("--listen") && complaint.contains("; process "),
        "{complaint}"
    );
    let complaint =
        fail(&folder, &[&["serve", "--listen", "127.0.0.1:0", "--status", server.status()][..], &other].concat());
    assert!(complaint.contains("--status off") && complaint.contains("; process "), "{complaint}");
    assert!(!folder.join("other/control.sock").exists(), "a failed start left a socket behind");
    fs::write(
        folder.join("same.toml"),
        format!("[volumes.v]\npath = \"{}\"\n", folder.join("evenkeel-data/disk0.img").display()),
    )
    .expect("written");
    let same = ["serve", "--listen", "127.0.0.1:0", "--status", "off", "--config", "same.toml"];
    let complaint = fail(&folder, &[&same[..], &other].concat());
    assert!(complaint.contains("in use"), "{complaint}");
    server.stop();
}

#[test]
fn a_dead_servers_sockets_are_replaced() {
    let folder = Folder::new();
    let mut server = Server::start(&folder, &[]);
    server.signal("KILL");
    server.end();
    assert!(folder.join("evenkeel-data/control.sock").exists());
    Server::start(&folder, &[]).stop();
}

#[test]
fn a_write_past_the_limit_of_file_sizes_has_no_space_and_harms_nothing_else() {
    const LIMIT: u64 = 4 << 20;
    for engine in ["auto", "epoll"] {
        let folder = Folder::new();
        fs::File::create(folder.join("v.img")).and_then(|file| file.set_len(2 * LIMIT)).expect("a file");
        fs::write(folder.join("v.toml"), "[volumes.v]\npath = \"v.img\"\n").expect("written");
        // In blocks of 512 bytes.
        let limited = format!("ulimit -f {}; exec \"$0\" \"$@\"", LIMIT / 512);
        let serve = ["serve", "--listen", "127.0.0.1:0", "--status", "127.0.0.1:0", "--config", "v.toml"];
        let mut command = Command::new("sh");
        command.current_dir(folder.path()).args(["-c", &limited, EVENKEEL]).args(serve).args(["--engine", engine]);
        let mut server = Server::spawn(&mut command);
        let write = |offset: &str| {
            let range = ["--offset", offset, "--size", "1m", "--requests", "10"];
            run(&folder, &[&["load", server.uri(), "--op", "write"][..], &range].concat())
        };
        let beyond = write("6m");
        let said = String::from_utf8_lossy(&beyond.stderr).into_owned() + &String::from_utf8_lossy(&beyond.stdout);
        assert!(!beyond.status.success() && said.contains("space"), "{engine}: {said}");
        assert!(write("1m").status.success(), "{engine}");
        assert_eq!(server.state()["volumes"][0]["error"], Value::Null, "{engine}");
        server.signal("TERM");
        let (status, log) = server.end();
        assert!(status.success(), "{engine}: {status}: {log}");
        assert_eq!(log.matches("the back end failed a request").count(), 1, "{engine}: {log}");
    }
}

#[test]
fn a_log_without_a_reader_stops_nothing() {
    let folder = Folder::new();
    let mut server = Server::start(&folder, &["--log", "debug"]);
    let address = server.uri().trim_start_matches("nbd://").trim_end_matches("/disk0").to_owned();
    // Several lines each, far more than a pipe and the log's own room hold.
    for _ in 0..3000 {
        // Greeted: one that only waits for that has a place among the handshakes of this host, even when it has gone.
        let mut client = TcpStream::connect(&address).expect("connected");
        client.read_exact(&mut [0; 18]).expect("greeted");
    }
    succeed(&folder, &["load", server.uri(), "--op", "write", "--requests", "100"]);
    assert_eq!(server.state()["volumes"][0]["error"], Value::Null);
    server.signal("TERM");
    assert!(server.end_unread().success());
}

/// A pipe whose buffer is full and whose reader reads nothing, so that any write to it blocks.
fn full_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    use std::io::Write;
    let (reader, writer) = std::io::pipe().expect("a pipe");
    rustix::io::ioctl_fionbio(&writer, true).expect("set");
    while (&writer).write(&[b'x'; 512]).is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).expect("set");
    (reader, writer)
}

#[test]
fn unread_output_keeps_no_server_and_no_agent_from_starting_and_stopping() {
    let folder = Folder::new();
    let guard = "[agent]\nstatus = \"127.0.0.1:0\"\n[pools.nothing-served]\nlatency.target = \"15ms\"\n";
    fs::write(folder.join("guard.toml"), guard).expect("written");
    for arguments in [
        &["serve", "--listen", "127.0.0.1:0", "--status", "off"][..],
        &["guard", "run", "--dry-run", "--config", "guard.toml"],
    ] {
        let (_reader, writer) = full_pipe();
        let (manager, at) = (folder.join("notify"), Instant::now());
        let _ = fs::remove_file(&manager);
        let notified = UnixDatagram::bind(&manager).expect("a socket");
        notified.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
        let mut command = Command::new(EVENKEEL);
        command.current_dir(folder.path()).args(arguments).env("NOTIFY_SOCKET", &manager);
        let out = || writer.try_clone().expect("another end");
        let mut child = command.stdout(out()).stderr(out()).spawn().expect("it starts");
        let ready = received(&notified).is_ok_and(|said| said.starts_with("READY=1"));
        if !ready {
            child.kill().and_then(|()| child.wait()).expect("it ends");
        }
        assert!(ready, "{arguments:?} was not ready after {:?}", at.elapsed());
        assert!(Command::new("kill").arg(child.id().to_string()).status().expect("kill runs").success());
        assert!(child.wait().expect("it ends").success(), "{arguments:?}");
    }
}

#[test]
fn a_device_that_hangs_is_reported_and_a_second_signal_does_not_wait_for_it() {
    let folder = Folder::new();
    let config = "[pools.main]\ntuning.stall_report_after = \"100ms\"\n[pools.main.emulate]\nread_latency = \"1h\"\n\
                  [volumes.disk0]\nbackend = \"emulate\"\nsize = \"1MiB\"\n";
    let mut server = Server::configured(&folder, config);
    let arguments = ["load", server.uri(), "--op", "read", "--requests", "1"];
    let mut load =
        Command::new(EVENKEEL).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("runs");
    let overdue = loop {
        let state = server.state();
        if let Some(overdue) = state["pools"][0]["overdue"].get(0) {
            break overdue.clone();
        }
        std::thread::yield_now();
    };
    assert_eq!((&overdue["volume"], &overdue["kind"]), (&json!("disk0"), &json!("read")));
    assert!(overdue["age_s"].as_f64().is_some_and(|age| age >= 0.1), "{overdue}");
    assert!(succeed(&folder, &["state"]).contains("OVERDUE: read"));
    let health = Command::new(EVENKEEL).arg("health").current_dir(folder.path()).output().expect("runs");
    let said = String::from_utf8_lossy(&health.stdout);
    assert!(health.status.code() == Some(2) && said.starts_with("EVENKEEL CRITICAL: pool main: OVERDUE"), "{said}");
    server.signal("TERM");
    server.log_until("stopping: answering requests in flight");
    // The line comes just before the stop begins.
    wait("a server that stops says so", || http(server.status(), "GET", "/healthz", &[], "").body == "draining\n");
    // The second one counts when it does not come with the first.
    while !server.has_ended() {
        server.signal("TERM");
    }
    let (status, log) = server.end();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("stopped the server before all requests were answered"), "{log}");
    let _ = load.wait();
}

#[test]
fn read_only_holds_for_every_volume() {
    let folder = Folder::new();
    Server::start(&folder, &[]).stop();
    let server = Server::start(&folder, &["--read-only"]);
    assert_eq!(server.state()["volumes"][0]["read_only"], true);
    assert!(server.banner.contains("--rw=randread"), "{}", server.banner);
    assert!(!server::run(&folder, &["load", server.uri(), "--op", "write", "--requests", "5"]).status.success());
    succeed(&folder, &["load", server.uri(), "--op", "read", "--requests", "5"]);
    server.stop();
}

/// Receives the next message that the server sends to `notified`, the socket of a service manager.
fn received(notified: &UnixDatagram) -> std::io::Result<String> {
    let mut buffer = [0; 256];
    loop {
        match notified.recv(&mut buffer) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            received => return received.map(|length| String::from_utf8_lossy(&buffer[..length]).into_owned()),
        }
    }
}

#[test]
fn a_service_manager_is_notified_and_its_sockets_are_used() {
    let folder = Folder::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    let notified = UnixDatagram::bind(folder.join("notify.sock")).expect("a socket");
    notified.set_read_timeout(Some(Duration::from_secs(60))).expect("a bound for a broken server");
    // The socket becomes descriptor 3 and the shell becomes the server, as a service manager would do it.
    let script = "exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=nbd exec \"$0\" serve --status off";
    let mut command = Command::new("sh");
    command.args(["-c", script, EVENKEEL]).current_dir(folder.path());
    command.env("WATCHDOG_USEC", "4000000");
    command.env("NOTIFY_SOCKET", folder.join("notify.sock")).stdin(Stdio::from(OwnedFd::from(listener)));
    let begun = std::time::Instant::now();
    let mut server = Server::spawn(&mut command);
    assert!(server.uri().contains(&address), "{}", server.banner);
    succeed(&folder, &["load", server.uri(), "--op", "read", "--requests", "5"]);
    let any = || received(&notified).expect("a message");
    let message = || std::iter::repeat_with(any).find(|message| message != "WATCHDOG=1\n").expect("endless");
    assert_eq!(message(), "READY=1\n");
    // A manager that would wait for 4 s is told at once, and then every second.
    assert_eq!([any(), any(), any()], ["WATCHDOG=1\n"; 3]);
    assert!(begun.elapsed() >= Duration::from_millis(1_900), "{:?}", begun.elapsed());
    server.signal("HUP");
    let reloading = message();
    assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
    assert_eq!(message(), "READY=1\n");
    server.signal("TERM");
    assert_eq!(message(), "STOPPING=1\n");
    let (status, log) = server.end();
    assert!(status.success(), "{log}");
}

#[test]
fn configurations_are_checked_explained_and_described() {
    let folder = Folder::new();
    let example = succeed(&folder, &["config", "example"]);
    fs::write(folder.join("example.toml"), &example).expect("written");
    assert!(succeed(&folder, &["check", "example.toml"]).contains("usable: "));
    let schema: Value = serde_json::from_str(&succeed(&folder, &["config", "schema"])).expect("JSON");
    assert!(schema["properties"]["volumes"].is_object());

    fs::write(folder.join("bad.toml"), "[pools.main]\ntuning.sceduler = \"none\"\n[tenants.a]\nweight = 0\n")
        .expect("written");
    let complaint = fail(&folder, &["check", "bad.toml"]);
    for words in [
        "error: bad.toml:2:8: pools.main.tuning.sceduler",
        "did you mean \"scheduler\"",
        "error: bad.toml:4:1: tenants.a.weight",
        "2 errors",
    ] {
        assert!(complaint.contains(words), "{words:?} is missing in {complaint}");
    }
    let refused = fail(&folder, &["serve", "--config", "bad.toml"]);
    assert!(refused.contains("bad.toml:2:8") && refused.contains("bad.toml:4:1"), "{refused}");
    assert!(!folder.join("evenkeel-data").exists(), "a refused configuration left something behind");

    fs::write(folder.join("doubtful.toml"), "[server]\nstatus = \"0.0.0.0:9809\"\n").expect("written");
    assert!(succeed(&folder, &["check", "doubtful.toml"]).contains(", 1 warning\n"));
    assert!(
        fail(&folder, &["check", "--strict", "doubtful.toml"]).contains("warning: doubtful.toml:2:1: server.status")
    );
    assert!(fail(&folder, &["check", "none.toml"]).contains("none.toml: cannot read"));
}

#[test]
fn help_teaches() {
    let folder = Folder::new();
    let help = succeed(&folder, &["--help"]);
    for words in ["serve", "load", "demo", "config", "First steps"] {
        assert!(help.contains(words), "{words} is missing in {help}");
    }
    let help = succeed(&folder, &["serve", "--help"]);
    for words in ["--config", "--engine", "--read-only", "disk0", "HUP", "socket unit"] {
        assert!(help.contains(words), "{words} is missing in {help}");
    }
    let complaint = fail(&folder, &["serve", "--engine", "spdk"]);
    assert!(complaint.contains("io_uring"), "{complaint}");
}

#[test]
fn a_stop_is_heard_while_a_reload_hangs() {
    let folder = Folder::new();
    let file = folder.file("evenkeel.toml", "[volumes.disk0]\nbackend = \"memory\"\nsize = \"1MiB\"\n");
    let server = Server::start(&folder, &["--config", "evenkeel.toml"]);
    // A file that nobody ever finishes writing.
    fs::remove_file(&file).expect("removed");
    assert!(Command::new("mkfifo").arg(&file).status().expect("mkfifo runs").success());
    server.signal("HUP");
    // The reload has opened it when a writer can.
    let _writer = fs::OpenOptions::new().write(true).open(&file).expect("the reload reads it");
    server.stop();
}

/// CPU time that a process has used since its start, in seconds.
fn cpu_s(process: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).expect("it runs");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
    let ticks = |field: usize| fields[field].parse::<f64>().expect("a number");
    (ticks(11) + ticks(12)) / rustix::param::clock_ticks_per_second() as f64
}

#[test]
fn a_storm_of_reloads_takes_a_share_of_a_processor_and_commands_get_on_with_it() {
    let folder = Folder::new();
    let settings = "[server]\nworkers = 1\nbusy_poll = \"0s\"\n";
    let mut text = settings.to_owned();
    for n in 0..500 {
        text += &format!("[volumes.volume-{n}]\nbackend = \"memory\"\nsize = \"64KiB\"\n");
    }
    fs::write(folder.join("evenkeel.toml"), text).expect("written");
    let server = Server::start(&folder, &["--config", "evenkeel.toml"]);
    let process = rustix::process::Pid::from_raw(server.id() as i32).expect("a process");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                rustix::process::kill_process(process, rustix::process::Signal::HUP).expect("sent");
                thread::sleep(Duration::from_micros(500));
            }
        });
        // What may be used at once lasts for a while.
        thread::sleep(Duration::from_secs(6));
        let (begun, before) = (Instant::now(), cpu_s(server.id()));
        thread::sleep(Duration::from_secs(4));
        let share = (cpu_s(server.id()) - before) / begun.elapsed().as_secs_f64();
        let begun = Instant::now();
        let (told, took) = (succeed(&folder, &["tenant", "set", "default", "--weight", "7"]), begun.elapsed());
        stop.store(true, Ordering::Relaxed);
        assert!(share < 0.4, "{share} of a processor for reloads");
        assert!(took < Duration::from_secs(10) && !told.is_empty(), "a command took {took:?}");
    });
    // The last signal leads to a reload, whatever it was in.
    let text = format!("{settings}[volumes.other]\nbackend = \"memory\"\nsize = \"64KiB\"\n");
    fs::write(folder.join("evenkeel.toml"), text).expect("written");
    server.signal("HUP");
    wait("the last reload", || server.state()["volumes"].as_array().is_some_and(|volumes| volumes.len() == 1));
    server.stop();
}
