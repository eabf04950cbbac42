//! Tests of `evenkeel guard`, run as a program: its configuration, its dry run, and the commands that ask a running agent.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

#[path = "serve/agent.rs"]
mod agent;

use agent::Agent;

const EVENKEEL: &str = env!("CARGO_BIN_EXE_evenkeel");

fn guard(arguments: &[&str]) -> Output {
    Command::new(EVENKEEL).arg("guard").args(arguments).output().expect("runs")
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

/// A configuration file, removed when the value is dropped.
struct File(std::path::PathBuf);

impl File {
    fn new(name: &str, content: &str) -> Self {
        let path = std::env::temp_dir().join(format!("evenkeel-guard-{}-{name}.toml", std::process::id()));
        std::fs::write(&path, content).expect("written");
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("UTF-8")
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Agent {
    fn start(file: &File) -> Self {
        Self::spawn(&mut Command::new(EVENKEEL), &file.0)
    }

    fn ask(&self, arguments: &[&str]) -> Output {
        guard(&[arguments, &["--status", &self.status]].concat())
    }

    /// Sends SIGTERM and waits until the agent has stopped successfully.
    fn stop(&mut self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("runs").success());
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(status) = self.child.try_wait().expect("ends") {
                assert!(status.success(), "{status}");
                return;
            }
            assert!(Instant::now() < deadline, "it does not stop");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

const TARGET: &str =
    "[agent]\nstatus = \"127.0.0.1:0\"\ninterval = \"20ms\"\n[pools.nothing-served]\nlatency.target = \"15ms\"\n";

#[test]
fn discover_answers_in_json() {
    let discover = guard(&["discover", "--json"]);
    let map: Value = serde_json::from_slice(&discover.stdout).expect("JSON");
    assert!(map["links"].is_array() && map["notes"].is_array(), "{map}");
}

#[test]
fn an_agent_has_the_dashboard_and_a_state_for_it() {
    let file = File::new("page", TARGET);
    let agent = Agent::start(&file);
    let get = |path: &str| {
        let mut stream = TcpStream::connect(&agent.status).expect("listens");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("asked");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answered");
        answer
    };
    let page = get("/");
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("content-type: text/html"), "{page}");
    let links: Vec<&str> = page.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    let links: Vec<&str> = links.into_iter().filter(|link| link.starts_with('/')).collect();
    assert!(links.len() > 10 && links.contains(&"/dashboard/past.js"), "{links:?}");
    for link in links {
        let answer = get(link);
        assert!(answer.starts_with("HTTP/1.1 200"), "{link}: {answer}");
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    let (pools, state) = loop {
        let pools = get("/api/v1/pools");
        let body = pools.split("\r\n\r\n").nth(1).expect("a body");
        let state: Value = serde_json::from_str(body).expect("JSON");
        if state["pools"][0]["name"] == "nothing-served" {
            break (pools, state);
        }
        assert!(Instant::now() < deadline, "{state}");
    };
    assert_eq!(state["pools"][0]["lately"]["targets"][0]["verdict"], "idle", "{state}");
    assert_eq!(state["points"]["nothing-served"][0]["point"], "packets", "{state}");
    assert!(pools.contains("\r\ndate: "), "the dashboard reads the clock: {pools}");
}

#[test]
fn a_dry_run_decides_answers_and_stops() {
    let file = File::new("dry", TARGET);
    let mut agent = Agent::start(&file);
    let state = || serde_json::from_slice::<Value>(&agent.ask(&["status", "--json"]).stdout).expect("JSON");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while state()["ticks_total"].as_u64().is_none_or(|ticks| ticks < 5) {
        assert!(std::time::Instant::now() < deadline, "no ticks: {}", state());
    }
    let state = state();
    let target_ms = &state["pools"][0]["latency_target"]["target_ms"];
    assert_eq!((&state["acting"], target_ms), (&Value::from(false), &Value::from(15.0)));
    assert!(text(&agent.ask(&["status"]).stdout).contains("--dry-run"));
    let why = text(&agent.ask(&["why", "nothing-served"]).stdout);
    assert!(why.contains("nothing-served: no read of the pool's devices has been measured yet"), "{why}");
    let health = Command::new(EVENKEEL).args(["health", "--json", "--status", &agent.status]).output().expect("runs");
    let found: Value = serde_json::from_slice(&health.stdout).expect("JSON");
    let kinds: Vec<&Value> = found["troubles"].as_array().expect("a list").iter().map(|one| &one["kind"]).collect();
    assert!(kinds.contains(&&Value::from("not_acting")), "{found}");
    assert_eq!(health.status.code(), Some(if found["level"] == "critical" { 2 } else { 1 }), "{found}");
    let unknown = agent.ask(&["why", "nothing-serve"]);
    assert!(text(&unknown.stderr).contains("did you mean \"nothing-served\"?"), "{}", text(&unknown.stderr));
    let metrics = Command::new(EVENKEEL).args(["guard", "status", "--status", "127.0.0.1:1"]).output().expect("runs");
    assert!(text(&metrics.stderr).contains("nothing answers on 127.0.0.1:1"));
    agent.stop();
}

#[test]
fn a_hang_up_takes_the_newer_policy_and_refuses_what_takes_a_restart() {
    let file = File::new("reload", TARGET);
    let mut agent = Agent::start(&file);
    let target = || {
        let state: Value = serde_json::from_slice(&agent.ask(&["status", "--json"]).stdout).expect("JSON");
        state["pools"][0]["latency_target"]["target_ms"].as_f64()
    };
    let until = |wanted: f64| {
        let deadline = Instant::now() + Duration::from_secs(20);
        while target() != Some(wanted) {
            assert!(Instant::now() < deadline, "{:?} instead of {wanted}", target());
        }
    };
    let reload = |policy: &str| {
        std::fs::write(file.path(), policy).expect("written");
        let pid = rustix::process::Pid::from_raw(agent.child.id() as i32).expect("it runs");
        rustix::process::kill_process(pid, rustix::process::Signal::HUP).expect("sent");
    };
    until(15.0);
    reload(&TARGET.replace("15ms", "25ms"));
    until(25.0);
    // Neither a fault nor what takes a restart changes anything; the next good one does.
    reload("[pools.nothing-served]\nlatency.target = 1\n");
    reload(&TARGET.replace("15ms", "5ms").replace("20ms", "50ms"));
    reload(&TARGET.replace("15ms", "35ms"));
    until(35.0);
    agent.stop();
}

/// An agent that controls only OSDs makes no map of devices, and stops although its next discovery is an hour away.
#[test]
fn an_agent_for_osds_alone_makes_no_map_and_stops() {
    let osds = "[agent]\nstatus = \"127.0.0.1:0\"\ndiscover_every = \"1h\"\n\
                [agent.ceph]\nsockets = [\"/nowhere/osd.3.asok\"]\n[pools.ceph]\ndevices = [\"osd:osd.3\"]\n";
    let file = File::new("osds", osds);
    let mut agent = Agent::start(&file);
    let state = || serde_json::from_slice::<Value>(&agent.ask(&["status", "--json"]).stdout).expect("JSON");
    let deadline = Instant::now() + Duration::from_secs(20);
    while state()["pools"][0]["condition"] != "absent" || state()["ticks_total"] == 0 {
        assert!(Instant::now() < deadline, "{}", state());
    }
    let state = state();
    assert_eq!(state["pools"][0]["name"], "osd.3");
    assert!(state["map_age_s"].is_null() && state["interval_ms"] == 20.0, "{state}");
    assert_eq!(state["notes"], serde_json::json!([]));
    agent.stop();
}

/// True if every thread of the process `pid` is stopped; SIGSTOP takes a moment to stop them all.
fn stands_still(pid: &str) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it is there");
    threads.map(|thread| thread.expect("listed").path().join("stat")).all(|stat| {
        // The state follows the name, which is in parentheses. A thread that has ended has none.
        let stat = std::fs::read_to_string(stat).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    })
}

#[test]
fn a_service_manager_is_notified_by_the_loop_that_it_goes_on() {
    let file = File::new("notify", TARGET);
    let socket = std::env::temp_dir().join(format!("evenkeel-guard-{}-notify.sock", std::process::id()));
    let _ = std::fs::remove_file(&socket);
    let told = UnixDatagram::bind(&socket).expect("a socket");
    told.set_read_timeout(Some(Duration::from_secs(20))).expect("a bound for a broken agent");
    let message = || {
        let mut buffer = [0; 256];
        told.recv(&mut buffer).map(|length| text(&buffer[..length]))
    };
    let mut command = Command::new(EVENKEEL);
    command.env("NOTIFY_SOCKET", &socket).env("WATCHDOG_USEC", "800000");
    let begun = Instant::now();
    let mut agent = Agent::spawn(&mut command, &file.0);
    assert_eq!(message().expect("a message"), "READY=1\n");
    for _ in 0..4 {
        assert_eq!(message().expect("a message"), "WATCHDOG=1\n");
    }
    assert!(begun.elapsed() >= Duration::from_millis(590), "every 200 ms is enough: {:?}", begun.elapsed());

    // Nothing is told while it stands still.
    let pid = agent.child.id().to_string();
    let signal = |name: &str| assert!(Command::new("kill").args([name, &pid]).status().expect("runs").success());
    signal("-STOP");
    let deadline = Instant::now() + Duration::from_secs(20);
    while !stands_still(&pid) {
        assert!(Instant::now() < deadline, "it does not stand still");
        std::thread::sleep(Duration::from_millis(1));
    }
    // What it told before.
    told.set_nonblocking(true).expect("set");
    while message().is_ok() {}
    told.set_nonblocking(false).expect("set");
    told.set_read_timeout(Some(Duration::from_millis(1_000))).expect("a bound");
    assert!(message().is_err(), "it is told while nothing runs");
    signal("-CONT");
    signal("-TERM");
    told.set_read_timeout(Some(Duration::from_secs(20))).expect("a bound");
    let last = std::iter::repeat_with(|| message().expect("a message")).find(|text| text != "WATCHDOG=1\n");
    assert_eq!(last.as_deref(), Some("STOPPING=1\n"));
    assert!(agent.child.wait().expect("ends").success());
    let _ = std::fs::remove_file(&socket);
}

#[test]
fn without_a_target_there_is_nothing_to_run() {
    let file = File::new("empty", "");
    let refused = guard(&["run", "--config", file.path(), "--dry-run"]);
    assert_eq!(refused.status.code(), Some(78), "the service must not start it again");
    assert!(text(&refused.stderr).contains("[pools.NAME]"), "{}", text(&refused.stderr));
}

#[test]
fn a_delay_above_the_longest_is_refused() {
    let refused = guard(&["delay", "--client", "192.0.2.1", "--device", "lo", "--delay", "50ms", "--dry-run"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("--delay 50ms is more than --maximum 20ms"), "{}", text(&refused.stderr));
    assert_eq!(guard(&["hold", "--help"]).status.code(), Some(2), "the command has one name");
}

#[test]
fn a_server_is_found_under_another_name() {
    let folder = std::env::temp_dir().join(format!("evenkeel-guard-{}-name", std::process::id()));
    std::fs::create_dir_all(&folder).expect("made");
    let program = folder.join("blocks");
    let _ = std::fs::remove_file(&program);
    std::fs::hard_link(EVENKEEL, &program)
        .or_else(|_| std::fs::copy(EVENKEEL, &program).map(drop))
        .expect("the program under another name");
    let mut command = Command::new(&program);
    command.current_dir(&folder).args(["serve", "--listen", "127.0.0.1:0", "--status", "127.0.0.1:0"]);
    let mut server = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("starts");
    let mut lines = BufReader::new(server.stdout.take().expect("piped")).lines().map_while(Result::ok);
    let serves = lines.any(|line| line.contains("Stop with"));
    let discover = guard(&["discover", "--json"]);
    let target = format!("process {}", server.id());
    let _ = server.kill();
    let _ = server.wait();
    let _ = std::fs::remove_dir_all(&folder);
    assert!(serves);
    let map: Value = serde_json::from_slice(&discover.stdout).expect("JSON");
    let links = map["links"].as_array().expect("links");
    let found = links.iter().find(|link| link["target"] == target.as_str());
    assert_eq!(found.map(|link| &link["server"]), Some(&Value::from("evenkeel")), "{map}");
}

#[test]
fn the_past_of_an_agent_is_there_after_a_kill_and_after_a_stop() {
    let data = std::env::temp_dir().join(format!("evenkeel-guard-{}-data", std::process::id()));
    let _ = std::fs::remove_dir_all(&data);
    let keys = TARGET.replacen("[agent]\n", &format!("[agent]\ndata_dir = {data:?}\nhistory = \"8MiB\"\n"), 1);
    let file = File::new("history", &keys);
    let history = |arguments: &[&str]| {
        let output = Command::new(EVENKEEL).args(["history", "--json"]).args(arguments).output().expect("runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).expect("JSON")
    };
    let count = |history: &Value, kind: &str| {
        let events = history["events"].as_array().expect("a list");
        events.iter().filter(|event| event["kind"] == kind).count()
    };
    let until = |agent: &Agent, starts: usize| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while count(&history(&["--status", &agent.status]), "started") < starts {
            assert!(Instant::now() < deadline, "it is never recorded");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let agent = Agent::start(&file);
    until(&agent, 1);
    // SIGKILL.
    drop(agent);
    let mut agent = Agent::start(&file);
    until(&agent, 2);
    let why = agent.ask(&["why", "--at", "now"]);
    assert!(why.status.success(), "{}", text(&why.stderr));
    agent.stop();
    let past = history(&["--dir", data.join("history").to_str().expect("UTF-8")]);
    assert_eq!((count(&past, "started"), count(&past, "stopped")), (2, 1), "{past:#}");
    std::fs::remove_dir_all(&data).expect("removed");

    // Without a folder nothing is recorded, and the answer says how it would be.
    let file = File::new("no-history", TARGET);
    let agent = Agent::spawn(Command::new(EVENKEEL).env_remove("STATE_DIRECTORY"), &file.0);
    let refused = Command::new(EVENKEEL).args(["history", "--status", &agent.status]).output().expect("runs");
    assert!(text(&refused.stderr).contains("agent.data_dir"), "{}", text(&refused.stderr));
}
