//! `evenkeel serve` on several hosts that share slots through a real etcd.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

#[allow(dead_code)]
#[path = "serve/server.rs"]
mod server;

use server::{EVENKEEL, Folder, Server, http};

/// How long anything may take; a bound for broken runs.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often etcd is started when somebody else takes its ports.
const ATTEMPTS: usize = 5;

/// An etcd in a folder.
struct Etcd {
    child: Child,
    /// For hosts, and for other servers.
    ports: [u16; 2],
}

impl Etcd {
    /// Starts a new one on ports of its own.
    fn start(folder: &Folder) -> Self {
        Self::start_on(folder, free_ports)
    }

    /// Starts it again where it was, with what it knew.
    fn start_again(folder: &Folder, ports: [u16; 2]) -> Self {
        Self::start_on(folder, || ports)
    }

    fn start_on(folder: &Folder, ports: impl Fn() -> [u16; 2]) -> Self {
        let name = folder.path().file_name().and_then(|name| name.to_str()).expect("a name");
        let started = (1..=ATTEMPTS).find_map(|attempt| {
            let ports = ports();
            let [client, peer] = ports.map(|port| format!("http://127.0.0.1:{port}"));
            let mut command = Command::new("etcd");
            command.args(["--name", name, "--data-dir"]).arg(folder.join("etcd"));
            command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
            command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
            command.arg("--initial-cluster").arg(format!("{name}={peer}"));
            let log = folder.join("etcd.log");
            let output = fs::File::create(&log).expect("a log");
            command.stdin(Stdio::null()).stdout(output.try_clone().expect("a log")).stderr(output);
            let mut etcd = Self { child: command.spawn().expect("etcd starts"), ports };
            let mut ended = None;
            wait("etcd answers", || {
                ended = etcd.child.try_wait().expect("a child");
                // Not another one that was faster on the same port.
                ended.is_some() || etcd.members().is_ok_and(|members| members.contains(&format!("\"{name}\"")))
            });
            let Some(ended) = ended else { return Some(etcd) };
            // Somebody else may have taken one of its ports meanwhile.
            println!("attempt {attempt}: etcd has ended, {ended}:\n{}", fs::read_to_string(log).expect("a log"));
            sleep(Duration::from_millis(200));
            None
        });
        started.expect("etcd starts")
    }

    /// Its list of members, if it answers.
    fn members(&self) -> io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.ports[0]))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let request = "POST /v3/cluster/member/list HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}";
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wait(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "this does not come true: {what}");
        sleep(Duration::from_millis(100));
    }
}

fn host(folder: &Folder, name: &str, port: u16) -> Server {
    let config = format!(
        "[pools.main]\nadmission = \"none\"\nslots = \"needs\"\n[pools.main.emulate]\niops = 500\n\
         [tenants.{name}]\nresponse_time = \"200ms\"\n[volumes.{name}]\nbackend = \"emulate\"\nsize = \"8MiB\"\n\
         [exchange]\netcd = [\"http://127.0.0.1:{port}\"]\nhost = \"{name}\"\nperiod = \"500ms\"\nlease = \"2s\"\n"
    );
    let file = folder.join("evenkeel.toml");
    fs::write(&file, config).expect("written");
    Server::start(folder, &["--config", &file.display().to_string()])
}

fn presence(state: &Value) -> Vec<(&str, &str)> {
    let hosts = state["exchange"]["hosts"].as_array().map(Vec::as_slice).unwrap_or_default();
    hosts.iter().filter_map(|host| Some((host["name"].as_str()?, host["presence"].as_str()?))).collect()
}

fn shares(state: &Value) -> bool {
    state["exchange"]["standing"] == "shared" && state["pools"][0]["slots"]["exchanged"] == true
}

/// Whether etcd is installed; if not, the test of this name counts as skipped.
fn has_etcd(test: &str) -> bool {
    if Command::new("etcd").arg("--version").output().is_ok() {
        return true;
    }
    println!("SKIPPED: exchange: etcd not found");
    if let Some(path) = std::env::var_os("EVENKEEL_SKIP_LOG") {
        let file = fs::OpenOptions::new().create(true).append(true).open(path);
        writeln!(file.expect("the log of skipped tests"), "{test}: etcd not found").expect("written");
    }
    false
}

/// Ports where nobody listens. All are held until the last one is found, or two could be the same.
fn free_ports<const N: usize>() -> [u16; N] {
    let listeners = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    listeners.map(|listener| listener.local_addr().expect("an address").port())
}

#[test]
fn hosts_share_slots_lose_each_other_and_find_each_other_again() {
    if !has_etcd("exchange::hosts_share_slots") {
        return;
    }
    let folders = [Folder::new(), Folder::new(), Folder::new()];
    let etcd = Etcd::start(&folders[2]);
    let ports = etcd.ports;
    let (a, b) = (host(&folders[0], "a", ports[0]), host(&folders[1], "b", ports[0]));
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
    wait("its goal is judged", || tenant(&a.state())["windows_total"].as_u64() > Some(2));
    let slots = tenant(&a.state());
    assert_eq!(slots["goal_ms"], 200.0);
    assert!(slots["granted"].as_f64() > Some(1.0) && slots["used"].as_f64() > Some(0.0), "{slots}");

    let metrics = http(a.status(), "GET", "/metrics", &[], "").body;
    for metric in [
        "evenkeel_exchange_connected 1",
        "evenkeel_exchange_hosts{presence=\"present\"} 2",
        "evenkeel_tenant_needed_slots{",
    ] {
        assert!(metrics.contains(metric), "{metric} is missing in\n{metrics}");
    }

    // Without etcd each is on its own, and goes on serving.
    drop(etcd);
    wait("both are on their own", || {
        [&a, &b].iter().all(|host| host.state()["exchange"]["standing"] == "lost" && !shares(&host.state()))
    });
    let done = |host: &Server| tenant(&host.state())["windows_total"].as_u64();
    let before = done(&a);
    wait("it is served", || done(&a) > before.map(|windows| windows + 2));
    let _etcd = Etcd::start_again(&folders[2], ports);
    wait("both take part again", || [&a, &b].iter().all(|host| shares(&host.state())));

    // One dies without a word, and is out; the other stops in order.
    b.signal("KILL");
    wait("it is out", || presence(&a.state()) == [("a", "present"), ("b", "out")]);
    assert!(load.try_wait().expect("a child").is_none(), "the load ran through all of it");
    let _ = load.kill();
    let _ = load.wait();
    a.stop();
}

/// `evenkeel guard run --dry-run` with a volume of an array that hosts share.
struct Guard(Child, String);

impl Guard {
    fn start(folder: &Folder, name: &str, port: u16) -> Self {
        let config = format!(
            "[guard]\nstatus = \"127.0.0.1:0\"\n[arrays.san.volumes.{name}]\ndevice = \"no-such-disk\"\n\
             [exchange]\netcd = [\"http://127.0.0.1:{port}\"]\nhost = \"{name}\"\nperiod = \"500ms\"\nlease = \"2s\"\n"
        );
        let file = folder.join("guard.toml");
        fs::write(&file, config).expect("written");
        let mut command = Command::new(EVENKEEL);
        command.args(["guard", "run", "--dry-run", "--config"]).arg(file);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the agent starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let address = lines
            .map_while(Result::ok)
            .find_map(|line| Some(line.strip_prefix("http://")?.split('/').next()?.to_owned()));
        Self(child, address.expect("the address of the agent"))
    }

    fn state(&self) -> Value {
        serde_json::from_str(&http(&self.1, "GET", "/api/v1/state", &[], "").body).expect("JSON")
    }

    fn shares(&self) -> bool {
        let state = self.state();
        state["exchange"]["standing"] == "shared" && state["arrays"][0]["exchanged"] == true
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn agents_on_initiators_decide_together_and_alone_without_etcd() {
    if !has_etcd("exchange::agents_on_initiators") {
        return;
    }
    let folders = [Folder::new(), Folder::new(), Folder::new()];
    let etcd = Etcd::start(&folders[2]);
    let ports = etcd.ports;
    let agents = [Guard::start(&folders[0], "a", ports[0]), Guard::start(&folders[1], "b", ports[0])];
    wait("both decide together", || agents.iter().all(Guard::shares));
    wait("both see both", || {
        agents.iter().all(|agent| presence(&agent.state()) == [("a", "present"), ("b", "present")])
    });
    let metrics = http(&agents[0].1, "GET", "/metrics", &[], "").body;
    for metric in ["evenkeel_guard_exchange_connected 1", "evenkeel_guard_array_exchanged{array=\"san\"} 1"] {
        assert!(metrics.contains(metric), "{metric} is missing in\n{metrics}");
    }
    drop(etcd);
    wait("each decides alone", || {
        agents.iter().all(|agent| {
            let state = agent.state();
            state["exchange"]["standing"] == "lost" && state["arrays"][0]["exchanged"] == false
        })
    });
    let _etcd = Etcd::start_again(&folders[2], ports);
    wait("both decide together again", || agents.iter().all(Guard::shares));
}
