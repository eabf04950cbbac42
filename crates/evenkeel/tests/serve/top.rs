//! Tests of `evenkeel top` with a server under load, and of the requests that `top` sends to the server.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::screen::Screen;
use super::server::{EVENKEEL, Folder, Load, Server, fail, http, succeed};

const CONFIG: &str = "\
[tenants.backup]\nlimit = { iops = 200 }\n\
[tenants.database]\nreservation = { iops = 1 }\nlimit = { iops = 2000 }\n\
[volumes.backup]\nbackend = \"memory\"\nsize = \"16MiB\"\n\
[volumes.database]\nbackend = \"memory\"\nsize = \"16MiB\"\n";

/// Starts a server with the tenants `backup` and `database`, each with a volume and a limit.
fn serve(folder: &Folder) -> Server {
    fs::write(folder.join("two.toml"), CONFIG).expect("written");
    Server::start(folder, &["--config", "two.toml"])
}

/// Options of a client that writes as fast as the server allows.
const WRITES: [&str; 4] = ["--op", "write", "--queue-depth", "8"];

#[test]
fn top_shows_a_server_its_end_and_its_return() {
    let folder = Folder::new();
    let server = serve(&folder);
    let loads = [Load::start(&folder, "backup", &WRITES), Load::start(&folder, "database", &WRITES)];
    let Some(mut screen) = Screen::start(&folder, "--interval 200ms --view tenants") else { return };
    // The rates of the one are those of its limit, and it is said whose that is.
    let shown = screen.until("backup at its limit", |screen| {
        let row = screen.lines().find(|line| line.contains("backup ") && line.contains("operator 200 IOPS"));
        row.is_some_and(|row| row.split_whitespace().nth(1).is_some_and(|iops| iops == "200"))
    });
    assert!(shown.contains("[Tenants 2]") && shown.contains("evenkeel serve"), "{shown}");
    screen.until_words(&["live", "operat. 2000 IOPS", "met 1.0 IOPS", "targets: 1 met, 0 missed", "throttled: 2"]);
    // All about the one that a filter leaves.
    screen.press("/back\r");
    screen.until("only backup", |screen| screen.contains(">backup") && !screen.contains("database"));
    screen.press("\r");
    screen.until_words(&["tenant backup of pool main", "by operator: 200 IOPS", "latency", "p99.9", "just now"]);
    // Back, all rows, its clients.
    screen.press("\x1b");
    screen.until_words(&["[Tenants 2]", "/back"]);
    screen.press("l");
    screen.until_words(&["of tenant backup", "unix uid"]);
    // It ends, and another one comes back in its place.
    drop(server);
    screen.until_words(&["LOST", "no server answers"]);
    let server = serve(&folder);
    screen.until("it is back", |screen| screen.contains("live") && !screen.contains("LOST"));
    screen.press("?");
    screen.until_words(&["Keys", "pause and go on"]);
    screen.press("xq");
    assert_eq!(screen.end(&folder), "0");
    drop(loads);
    server.stop();
}

#[test]
fn top_gives_the_terminal_back_when_a_signal_ends_it() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let Some(screen) = Screen::start(&folder, "") else { return };
    screen.until_words(&["[Pools 1]", "live"]);
    let pid = fs::read_to_string(folder.join("pid")).expect("its id");
    assert!(Command::new("kill").args(["-TERM", pid.trim()]).status().expect("kill runs").success());
    assert_eq!(screen.end(&folder), "0");
    server.stop();
}

#[test]
fn top_prints_one_frame_and_says_what_keeps_it_from_more() {
    let folder = Folder::new();
    assert!(fail(&folder, &["top"]).contains("needs a terminal for input and output; --once prints one frame"));
    let nobody = fail(&folder, &["top", "--once", "--status", "127.0.0.1:1"]);
    assert!(nobody.contains("nothing answers on 127.0.0.1:1"), "{nobody}");
    let nobody = fail(&folder, &["top", "--once", "--data-dir", "elsewhere"]);
    assert!(nobody.contains("no server answers on elsewhere/control.sock"), "{nobody}");
    let server = serve(&folder);
    let frame =
        succeed(&folder, &["top", "--once", "--view", "tenants", "--sort", "name", "--status", server.status()]);
    let names = frame.lines().skip(5).map(|line| line.split_whitespace().next().unwrap_or_default());
    assert_eq!(names.collect::<Vec<_>>(), ["backup", "database"], "none without a volume: {frame}");
    assert!(!frame.contains('\x1b') && frame.contains(server.status()) && !frame.contains("q quit"), "{frame}");
    let (status, elsewhere) = (server.status(), "127.0.0.1:1");
    let both = succeed(&folder, &["top", "--once", "--status", status, "--status", elsewhere]);
    assert_eq!((both.matches("Pools 1").count(), both.matches("LOST").count()), (1, 1), "a section each: {both}");
    let complaint = fail(&folder, &["history", "--status", status, "--status", elsewhere]);
    assert!(complaint.contains("only `evenkeel top` takes several"), "{complaint}");
    let past = succeed(&folder, &["top", "--once", "--at", "now", "--status", status]);
    assert!(past.contains("evenkeel at ") && past.contains("from the history") && past.contains("PAST"), "{past}");
    let both = succeed(&folder, &["top", "--once", "--at", "now", "--status", elsewhere, "--status", status]);
    assert!(both.contains("LOST") && both.contains("PAST"), "one does not answer: {both}");
    assert!(
        fail(&folder, &["top", "--once", "--at", "noon", "--status", status]).contains("--at: \"noon\" is not a time")
    );
    let frame = succeed(&folder, &["top", "--once", "--view", "Volumes", "--filter", "data"]);
    assert!(frame.contains(" database ") && !frame.contains("backup"), "{frame}");
    let complaint = fail(&folder, &["top", "--once", "--view", "osds"]);
    assert!(
        complaint.contains("--view osds: this server or agent has no such view; it has pools, tenants"),
        "{complaint}"
    );
    let complaint = fail(&folder, &["top", "--once", "--interval", "1ms"]);
    assert!(complaint.contains("out of range; use 100ms to 1h"), "{complaint}");
    server.stop();
}

#[test]
fn top_prints_lines_of_json_until_their_reader_ends() {
    let folder = Folder::new();
    let server = serve(&folder);
    let (status, elsewhere) = (server.status(), "127.0.0.1:1");
    let mut top = Command::new(EVENKEEL);
    top.args(["top", "--json", "--interval", "100ms", "--status", status, "--status", elsewhere]);
    let mut top = top.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("top");
    let lines = BufReader::new(top.stdout.take().expect("a pipe")).lines().take(3);
    let lines: Vec<Value> = lines.map(|line| serde_json::from_str(&line.expect("a line")).expect("JSON")).collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    for line in &lines {
        assert_eq!((&line["servers"][0]["link"], &line["servers"][1]["link"]), (&"live".into(), &"lost".into()));
        let tenants = line["tenants"].as_array().expect("tenants").iter();
        let mut names: Vec<&str> = tenants.filter_map(|tenant| tenant["name"].as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["backup", "database"], "{line}");
    }
    // Its output is closed: it ends by itself.
    assert!(top.wait().expect("an end").success());
    let once = succeed(&folder, &["top", "--once", "--json", "--status", status, "--filter", "backup"]);
    let line: Value = serde_json::from_str(&once).expect("one line of JSON");
    assert_eq!((&line["tenants"][0]["name"], &line["tenants"][1]), (&"backup".into(), &Value::Null), "{once}");
    server.stop();
}

#[test]
fn the_state_says_what_got_how_much_and_what_binds() {
    let folder = Folder::new();
    fs::write(folder.join("two.toml"), format!("[pools.main]\nlimit = {{ iops = 100 }}\n{CONFIG}")).expect("written");
    let server = Server::start(&folder, &["--config", "two.toml"]);
    let load = Load::start(&folder, "database", &WRITES);
    let states = (0..1_200).map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        let answer = http(server.status(), "GET", "/api/v1/state?brief=true", &[], "");
        let mut state: Value = serde_json::from_str(&answer.body).expect("JSON");
        state["pools"][0].take()
    });
    let mut states = states.inspect(|pool| {
        let window = &pool["lately"]["window_s"];
        assert!(window.is_null() || window.as_f64() >= Some(1.0), "{pool}");
    });
    let because = "pool main is at its limit of 100 IOPS, set by the operator";
    // While the rate is still below the limit.
    let below = "the limit of 100 IOPS, set by the operator, spreads the requests of pool main over time";
    let at_limit = |pool: &Value| {
        let is_bound = pool["lately"]["throttled_by"]["cause"] == "pool_limit";
        assert!(!is_bound || [because, below].map(Value::from).contains(&pool["lately"]["because"]), "{pool}");
        is_bound && pool["lately"]["because"] == because
    };
    let queued = |pool: &Value| pool["tenants"][1]["lately"]["throttled_by"]["cause"] == "pool_limit";
    let pool = states.find(|pool| at_limit(pool) && queued(pool)).expect("the limit binds within a minute");
    let database = &pool["tenants"][1]["lately"];
    assert!(
        database["because"].as_str().is_some_and(|text| text.ends_with(&format!("queued: {because}"))),
        "{database}"
    );
    assert_eq!(
        database["targets"][0],
        serde_json::json!({"what": "1.0 IOPS", "kind": "reservation", "verdict": "met"})
    );
    let backup = &pool["tenants"][0]["lately"];
    assert_eq!((&backup["throttled_by"], &backup["because"]), (&Value::Null, &"nothing throttles it".into()));
    drop((states, load));
    server.stop();
}

#[test]
fn states_are_brief_or_of_one_tenant_and_clients_are_counted() {
    let folder = Folder::new();
    let server = serve(&folder);
    let get = |path: &str| -> Value {
        let answer = http(server.status(), "GET", path, &[], "");
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        serde_json::from_str(&answer.body).expect("JSON")
    };
    let load = Load::start(&folder, "backup", &WRITES);
    let mut looks = (0..1_200).map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        get("/api/v1/clients")["clients"].clone()
    });
    let busy = |clients: &Value| clients[0]["requests_total"].as_u64().is_some_and(|requests| requests > 100);
    let clients = looks.find(busy).expect("a minute is enough for 100 requests");
    let client = &clients[0];
    assert_eq!((clients.as_array().map(Vec::len), &client["volume"]), (Some(1), &"backup".into()));
    assert_eq!((&client["tenant"], &client["pool"]), (&"backup".into(), &"main".into()));
    assert!(client["address"].as_str().is_some_and(|address| address.starts_with("unix uid ")), "{client}");
    // Writes of 4 KiB, of which each is answered with 16 bytes.
    let figure = |name: &str| client[name].as_f64().expect(name);
    let (requests, open) = (figure("requests_total"), figure("in_flight_requests"));
    assert!(figure("received_bytes_total") >= (requests - 1.0) * 4096.0, "{client}");
    assert!((16.0 * (requests - open)..32.0 * requests + 4096.0).contains(&figure("sent_bytes_total")), "{client}");
    assert!(figure("counted_at_s") >= figure("since_s"), "{client}");
    drop(load);
    let tenant = |state: &Value, at: usize| state["pools"][0]["tenants"][at].clone();
    let buckets = |tenant: &Value| tenant["latency"]["buckets"].as_array().map(Vec::len);
    let (full, brief) = (get("/api/v1/state"), get("/api/v1/state?brief=true"));
    assert!(buckets(&tenant(&full, 0)) > Some(0) && buckets(&tenant(&brief, 0)) == Some(0));
    assert!(tenant(&brief, 0)["latency"]["sum_s"].as_f64() > Some(0.0));
    let one = get("/api/v1/state?tenant=database");
    assert_eq!((tenant(&one, 0)["name"].clone(), tenant(&one, 1)), ("database".into(), Value::Null));
    assert_eq!(http(server.status(), "GET", "/api/v1/state?brief=perhaps", &[], "").status, 400);
    server.stop();
}
