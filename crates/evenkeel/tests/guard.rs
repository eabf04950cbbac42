//! Tests of `evenkeel guard`, run as a program: its configuration, its dry run, and the commands that ask a running agent.

use std::os::unix::net::UnixDatagram;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;

#[path = "serve/agent.rs"]
mod agent;
#[allow(dead_code, reason = "other test programs use the rest")]
#[path = "serve/server.rs"]
mod server;

use agent::Agent;
use server::{EVENKEEL, Folder, PATIENCE, Server, http, until, wait};

fn guard(arguments: &[&str]) -> Output {
    Command::new(EVENKEEL).arg("guard").args(arguments).output().expect("runs")
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

impl Agent {
    /// Starts the agent with `content` in its configuration file `guard.toml`.
    fn start(folder: &Folder, content: &str) -> Self {
        Self::spawn(&mut Command::new(EVENKEEL), &folder.file("guard.toml", content))
    }

    fn ask(&self, arguments: &[&str]) -> Output {
        guard(&[arguments, &["--status", &self.status]].concat())
    }

    /// The state, as soon as it is as `wanted`.
    fn state_when(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        until("the state", PATIENCE, || {
            let state: Value = serde_json::from_slice(&self.ask(&["status", "--json"]).stdout).expect("JSON");
            if wanted(&state) { Ok(state) } else { Err(state.to_string()) }
        })
    }

    /// Sends SIGTERM and waits until the agent has stopped successfully.
    fn stop(&mut self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("runs").success());
        let status = until("it stops", PATIENCE, || self.child.try_wait().expect("ends").ok_or_else(String::new));
        assert!(status.success(), "{status}");
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
    let folder = Folder::new();
    let agent = Agent::start(&folder, TARGET);
    let get = |path: &str| http(&agent.status, "GET", path, &[], "");
    let page = get("/");
    assert!(page.status == 200 && page.head.contains("content-type: text/html"), "{}", page.head);
    let links: Vec<&str> = page.body.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    let links: Vec<&str> = links.into_iter().filter(|link| link.starts_with('/')).collect();
    assert!(links.len() > 10 && links.contains(&"/dashboard/past.js"), "{links:?}");
    for link in links {
        assert_eq!(get(link).status, 200, "{link}");
    }
    let (head, state) = until("the pool", PATIENCE, || {
        let pools = get("/api/v1/pools");
        let state: Value = serde_json::from_str(&pools.body).expect("JSON");
        if state["pools"][0]["name"] == "nothing-served" { Ok((pools.head, state)) } else { Err(state.to_string()) }
    });
    assert_eq!(state["pools"][0]["lately"]["targets"][0]["verdict"], "idle", "{state}");
    assert_eq!(state["points"]["nothing-served"][0]["point"], "packets", "{state}");
    assert!(head.contains("\r\ndate: "), "the dashboard reads the clock: {head}");
}

#[test]
fn a_dry_run_decides_answers_and_stops() {
    let folder = Folder::new();
    let mut agent = Agent::start(&folder, TARGET);
    let state = agent.state_when(|state| state["ticks_total"].as_u64() >= Some(5));
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
    let folder = Folder::new();
    let mut agent = Agent::start(&folder, TARGET);
    let until = |ms: f64| agent.state_when(|state| state["pools"][0]["latency_target"]["target_ms"] == ms);
    let reload = |policy: &str| {
        folder.file("guard.toml", policy);
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
    let folder = Folder::new();
    let mut agent = Agent::start(&folder, osds);
    let state = agent.state_when(|state| state["pools"][0]["condition"] == "absent" && state["ticks_total"] != 0);
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
    let folder = Folder::new();
    let socket = folder.join("notify.sock");
    let told = UnixDatagram::bind(&socket).expect("a socket");
    told.set_read_timeout(Some(Duration::from_secs(20))).expect("a bound for a broken agent");
    let message = || {
        let mut buffer = [0; 256];
        told.recv(&mut buffer).map(|length| text(&buffer[..length]))
    };
    let mut command = Command::new(EVENKEEL);
    command.env("NOTIFY_SOCKET", &socket).env("WATCHDOG_USEC", "800000");
    let begun = Instant::now();
    let mut agent = Agent::spawn(&mut command, &folder.file("guard.toml", TARGET));
    assert_eq!(message().expect("a message"), "READY=1\n");
    for _ in 0..4 {
        assert_eq!(message().expect("a message"), "WATCHDOG=1\n");
    }
    assert!(begun.elapsed() >= Duration::from_millis(590), "every 200 ms is enough: {:?}", begun.elapsed());

    // Nothing is told while it stands still.
    let pid = agent.child.id().to_string();
    let signal = |name: &str| assert!(Command::new("kill").args([name, &pid]).status().expect("runs").success());
    signal("-STOP");
    wait("it stands still", || stands_still(&pid));
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
}

#[test]
fn without_a_target_there_is_nothing_to_run() {
    let folder = Folder::new();
    let file = folder.file("guard.toml", "");
    let refused = guard(&["run", "--config", file.to_str().expect("UTF-8"), "--dry-run"]);
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
    let folder = Folder::new();
    let program = folder.join("blocks");
    std::fs::hard_link(EVENKEEL, &program)
        .or_else(|_| std::fs::copy(EVENKEEL, &program).map(drop))
        .expect("the program under another name");
    let mut command = Command::new(&program);
    command.current_dir(folder.path()).args(["serve", "--listen", "127.0.0.1:0", "--status", "127.0.0.1:0"]);
    let server = Server::spawn(&mut command);
    let discover = guard(&["discover", "--json"]);
    let target = format!("process {}", server.id());
    let map: Value = serde_json::from_slice(&discover.stdout).expect("JSON");
    let links = map["links"].as_array().expect("links");
    let found = links.iter().find(|link| link["target"] == target.as_str());
    assert_eq!(found.map(|link| &link["server"]), Some(&Value::from("evenkeel")), "{map}");
}

#[test]
fn the_past_of_an_agent_is_there_after_a_kill_and_after_a_stop() {
    let folder = Folder::new();
    let data = folder.join("data");
    let keys = TARGET.replacen("[agent]\n", &format!("[agent]\ndata_dir = {data:?}\nhistory = \"8MiB\"\n"), 1);
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
        wait("its start is recorded", || count(&history(&["--status", &agent.status]), "started") >= starts);
    };
    let agent = Agent::start(&folder, &keys);
    until(&agent, 1);
    // SIGKILL.
    drop(agent);
    let mut agent = Agent::start(&folder, &keys);
    until(&agent, 2);
    let why = agent.ask(&["why", "--at", "now"]);
    assert!(why.status.success(), "{}", text(&why.stderr));
    agent.stop();
    let past = history(&["--dir", data.join("history").to_str().expect("UTF-8")]);
    assert_eq!((count(&past, "started"), count(&past, "stopped")), (2, 1), "{past:#}");

    // Without a folder nothing is recorded, and the answer says how it would be.
    let file = folder.file("no-history.toml", TARGET);
    let agent = Agent::spawn(Command::new(EVENKEEL).env_remove("STATE_DIRECTORY"), &file);
    let refused = Command::new(EVENKEEL).args(["history", "--status", &agent.status]).output().expect("runs");
    assert!(text(&refused.stderr).contains("agent.data_dir"), "{}", text(&refused.stderr));
}
