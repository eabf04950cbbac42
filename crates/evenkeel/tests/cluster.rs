//! Tests of several servers and agents on this machine that share slots through a real etcd, as on different hosts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use evenkeel_net::http::{Error, Method, Place, ask};
use serde_json::{Value, json};

#[path = "serve/agent.rs"]
mod agent;
#[path = "serve/port.rs"]
mod port;
#[allow(dead_code)]
#[path = "serve/server.rs"]
mod server;
#[path = "../../xtask/src/test/skip.rs"]
mod skip;

use agent::Agent;
use port::Port;
use server::{EVENKEEL, Folder, Server, http, wait};

/// A running etcd with its data in a folder, on ports that stay reserved while etcd is restarted.
struct Etcd {
    child: Child,
    data: PathBuf,
    /// The port for clients (servers and agents of Evenkeel), and the port for other etcd servers.
    ports: [Port; 2],
}

impl Etcd {
    fn start(folder: &Folder) -> Self {
        let (data, ports) = (folder.join("etcd"), [(); 2].map(|()| Port::reserve()));
        let mut etcd = Self { child: Self::spawn(&data, &ports), data, ports };
        etcd.await_answer();
        etcd
    }

    fn spawn(data: &Path, ports: &[Port; 2]) -> Child {
        let [client, peer] = ports.each_ref().map(|port| format!("http://127.0.0.1:{}", port.number()));
        let mut command = Command::new("etcd");
        command.args(["--name", "test", "--data-dir"]).arg(data);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.arg("--initial-cluster").arg(format!("test={peer}"));
        let log = fs::File::create(data.with_extension("log")).expect("a log");
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
        command.spawn().expect("etcd starts")
    }

    fn await_answer(&mut self) {
        wait("etcd answers", || {
            let ended = self.child.try_wait().expect("a child");
            let log = || fs::read_to_string(self.data.with_extension("log"));
            assert!(ended.is_none(), "etcd has ended, {ended:?}: {}", log().expect("a log"));
            self.members().is_ok_and(|members| members.contains("\"test\""))
        });
    }

    fn port(&self) -> u16 {
        self.ports[0].number()
    }

    fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("gone");
    }

    /// Starts etcd again on the same ports, with the same data, and waits until it answers.
    fn restart(&mut self) {
        self.child = Self::spawn(&self.data, &self.ports);
        self.await_answer();
    }

    /// etcd's list of members in JSON; an error if etcd does not answer.
    fn members(&self) -> Result<String, Error> {
        let (place, bounds) = (Place::Plain("127.0.0.1".into(), self.port()), (Duration::from_secs(5), 1 << 20));
        ask(&place, bounds, Method::POST, "/v3/cluster/member/list", Some(&json!({}))).map(|(_, answer)| answer)
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn host(folder: &Folder, name: &str, port: u16) -> Server {
    let config = format!(
        "[pools.main]\ntuning.admission = \"none\"\ntuning.slots = \"needs\"\n[pools.main.emulate]\niops = 500\n\
         [tenants.{name}]\nlatency.target = \"200ms\"\n[volumes.{name}]\nbackend = \"emulate\"\nsize = \"8MiB\"\n\
         [cluster]\netcd = [\"http://127.0.0.1:{port}\"]\nhost = \"{name}\"\nperiod = \"500ms\"\nlease = \"2s\"\n"
    );
    Server::configured(folder, config)
}

fn presence(state: &Value) -> Vec<(&str, &str)> {
    let members = state["cluster"]["members"].as_array().map(Vec::as_slice).unwrap_or_default();
    members.iter().filter_map(|member| Some((member["name"].as_str()?, member["presence"].as_str()?))).collect()
}

fn shares(state: &Value) -> bool {
    state["cluster"]["status"] == "shared" && state["pools"][0]["slots"]["clustered"] == true
}

/// True if etcd is installed; otherwise reports the test as skipped.
fn has_etcd() -> bool {
    let found = Command::new("etcd").arg("--version").output().is_ok();
    if !found {
        skip::skip("etcd is not installed");
    }
    found
}

#[test]
fn hosts_share_slots_lose_each_other_and_find_each_other_again() {
    if !has_etcd() {
        return;
    }
    let folders = [Folder::new(), Folder::new(), Folder::new()];
    let mut etcd = Etcd::start(&folders[2]);
    let (a, b) = (host(&folders[0], "a", etcd.port()), host(&folders[1], "b", etcd.port()));
    wait("both take part", || [&a, &b].iter().all(|host| shares(&host.state())));
    wait("both see both", || {
        [&a, &b].iter().all(|host| presence(&host.state()) == [("a", "present"), ("b", "present")])
    });

    // One of them has something to do; the other hears of it, and both count the same slots.
    let mut load = Command::new(EVENKEEL)
        .args(["load", a.uri(), "--op", "read", "--queue-depth", "64", "--duration", "60s"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the load starts");
    let total = |host: &Server| host.state()["pools"][0]["slots"]["total"].as_f64().unwrap_or(0.0);
    wait("the group has slots for it", || total(&a) > 8.0 && total(&b) > 8.0);
    let tenant = |state: &Value| {
        let tenants = state["pools"][0]["tenants"].as_array().expect("tenants").clone();
        tenants.into_iter().find(|tenant| tenant["name"] == "a").expect("tenant a")["slots"].clone()
    };
    wait("its target is judged", || tenant(&a.state())["windows_total"].as_u64() > Some(2));
    let slots = tenant(&a.state());
    assert_eq!(slots["target_ms"], 200.0);
    assert!(slots["granted"].as_f64() > Some(1.0) && slots["used"].as_f64() > Some(0.0), "{slots}");

    let metrics = http(a.status(), "GET", "/metrics", &[], "").body;
    for metric in [
        "evenkeel_cluster_connected 1",
        "evenkeel_cluster_members{presence=\"present\"} 2",
        "evenkeel_tenant_needed_slots{",
    ] {
        assert!(metrics.contains(metric), "{metric} is missing in\n{metrics}");
    }

    // Without etcd each is on its own, and goes on serving.
    etcd.kill();
    wait("both are on their own", || {
        [&a, &b].iter().all(|host| host.state()["cluster"]["status"] == "lost" && !shares(&host.state()))
    });
    let done = |host: &Server| tenant(&host.state())["windows_total"].as_u64();
    let before = done(&a);
    wait("it is served", || done(&a) > before.map(|windows| windows + 2));
    etcd.restart();
    wait("both take part again", || [&a, &b].iter().all(|host| shares(&host.state())));

    // One dies without a word, and expires; the other stops in order.
    b.signal("KILL");
    wait("it has expired", || presence(&a.state()) == [("a", "present"), ("b", "expired")]);
    assert!(load.try_wait().expect("a child").is_none(), "the load ran through all of it");
    let _ = load.kill();
    let _ = load.wait();
    a.stop();
}

impl Agent {
    /// Starts an agent with a pool whose slots the hosts of a cluster share.
    fn start(folder: &Folder, name: &str, port: u16) -> Self {
        let config = format!(
            "[agent]\nstatus = \"127.0.0.1:0\"\n[pools.san]\ntuning.slots = \"needs\"\n[tenants.{name}]\nmatch = [\"device:no-such-disk\"]\n\
             [cluster]\netcd = [\"http://127.0.0.1:{port}\"]\nhost = \"{name}\"\nperiod = \"500ms\"\nlease = \"2s\"\n"
        );
        let file = folder.file("guard.toml", config);
        Self::spawn(&mut Command::new(EVENKEEL), &file)
    }

    fn state(&self) -> Value {
        serde_json::from_str(&http(&self.status, "GET", "/api/v1/state", &[], "").body).expect("JSON")
    }

    fn shares(&self) -> bool {
        let state = self.state();
        state["cluster"]["status"] == "shared" && state["pools"][0]["slots"]["clustered"] == true
    }
}

#[test]
fn agents_on_initiators_decide_together_and_alone_without_etcd() {
    if !has_etcd() {
        return;
    }
    let folders = [Folder::new(), Folder::new(), Folder::new()];
    let mut etcd = Etcd::start(&folders[2]);
    let agents = [("a", &folders[0]), ("b", &folders[1])].map(|(name, at)| Agent::start(at, name, etcd.port()));
    wait("both decide together", || agents.iter().all(Agent::shares));
    wait("both see both", || {
        agents.iter().all(|agent| presence(&agent.state()) == [("a", "present"), ("b", "present")])
    });
    let metrics = http(&agents[0].status, "GET", "/metrics", &[], "").body;
    for metric in ["evenkeel_guard_cluster_connected 1", "evenkeel_guard_slots_clustered{pool=\"san\"} 1"] {
        assert!(metrics.contains(metric), "{metric} is missing in\n{metrics}");
    }
    etcd.kill();
    wait("each decides alone", || {
        agents.iter().all(|agent| {
            let state = agent.state();
            state["cluster"]["status"] == "lost" && state["pools"][0]["slots"]["clustered"] == false
        })
    });
    etcd.restart();
    wait("both decide together again", || agents.iter().all(Agent::shares));
}
