//! Tests of hosts in a cluster with a real etcd, which the tests stop, kill, restart and compact.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::slice;
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration as StdDuration, Instant as StdInstant};

use evenkeel_control::cluster::View;
use evenkeel_control::cluster::shard::{Shard, Sizes, hash};
use evenkeel_control::cluster::sharding::Contribution;
use evenkeel_control::slots::Summary;
use evenkeel_control::{Duration, Instant};
use evenkeel_policy::cluster::{Pools, received_bytes};
use evenkeel_policy::config::Cluster;
use evenkeel_policy::units::Duration as Time;
use rustix::process::{Pid, Signal, kill_process};

use crate::driver::Driver;
use crate::etcd::lock;
use crate::etcd::{Claim, Client};
use crate::event::Event;
use crate::folder::Folder;
use crate::settings::wall_clock;
use crate::{Handle, Participant, Settings, start, watcher};

#[path = "../../net/src/tls/authority.rs"]
mod authority;
#[path = "../../labs/src/base/etcd.rs"]
mod member;
#[path = "../../evenkeel/tests/serve/port.rs"]
mod port;
#[path = "../../xtask/src/test/skip.rs"]
mod skip;

#[path = "given_up_tests.rs"]
mod given_up;
#[path = "nonsense_tests.rs"]
mod nonsense;
#[path = "secure_tests.rs"]
mod secure;
#[path = "silent_tests.rs"]
mod silent;
#[path = "totals_etcd_tests.rs"]
mod totals_etcd;

use authority::Authority;
use port::Port;

/// Period of the cluster, short to keep the tests short.
const PERIOD: Time = Time::from_millis(400);
/// Lease of the cluster: shorter than two seconds, etcd's shortest lease.
const LEASE: Time = Time::from_millis(1_600);
/// Longest wait for anything in a test; reaching it is a failure.
const PATIENCE: StdDuration = StdDuration::from_secs(30);
/// The option of etcd for a quota of 4 MiB, which a few large values fill.
const SMALL: &str = "--quota-backend-bytes=4194304";

/// A new folder for an etcd; `None` if etcd is not installed, and then the test is reported as skipped.
fn folder() -> Option<Folder> {
    if Command::new("etcd").arg("--version").output().is_err() {
        skip::skip("etcd is not installed");
        return None;
    }
    Some(Folder::new())
}

/// Writes the files for TLS into the folder: `server.pem` and `server.key` of an etcd on 127.0.0.1, and those for clients:
/// `ca.pem`, `client.pem` and `client.key`, and `named.pem` and `named.key` with a common name, which etcd refuses from hosts
/// while it has users.
fn certify(folder: &Path) {
    let authority = Authority::new();
    fs::write(folder.join("ca.pem"), &authority.certificate).expect("written");
    for (file, name) in [("server", "127.0.0.1"), ("named", "client")] {
        let pair = authority.issue(name);
        fs::write(folder.join(format!("{file}.pem")), pair.certificate).expect("written");
        fs::write(folder.join(format!("{file}.key")), pair.key).expect("written");
    }
    let client = secure::nameless();
    fs::write(folder.join("client.pem"), &client.certificate).expect("written");
    fs::write(folder.join("client.key"), client.key).expect("written");
    // Who may connect: etcd's gateway with the certificate of the server, and the clients.
    fs::write(folder.join("clients.pem"), authority.certificate + &client.certificate).expect("written");
}

/// `etcdctl` for the etcd at these addresses (separated by commas). `is_secure`: with the files for clients in the folder.
fn etcdctl(folder: &Path, addresses: &str, is_secure: bool) -> Command {
    let mut command = Command::new("etcdctl");
    let endpoints = format!("--endpoints={addresses}");
    command.env("ETCDCTL_API", "3").args([&endpoints, "--command-timeout=3s"]);
    if is_secure {
        for (option, file) in [("--cacert", "ca.pem"), ("--cert", "client.pem"), ("--key", "client.key")] {
            command.arg(option).arg(folder.join(file));
        }
    }
    command
}

/// The output of a command; `None` if it fails.
fn output(mut command: Command) -> Option<String> {
    let output = command.output().expect("etcdctl runs");
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A separate etcd process with its own folder, which is deleted when the value is dropped. Its two ports stay reserved while
/// the process is restarted.
struct Etcd {
    folder: Folder,
    /// The port for clients, which hosts use, and the port for other etcd servers.
    ports: [Port; 2],
    child: Child,
    /// True if clients have to use TLS, with a certificate.
    is_secure: bool,
    /// Name and password with which the tests administer etcd.
    login: Option<&'static str>,
    /// Further options of etcd.
    options: Vec<String>,
}

impl Etcd {
    /// Starts an etcd and waits until it is healthy; `None` if etcd is not installed, and then the test is reported as
    /// skipped.
    fn start() -> Option<Self> {
        Self::begin(false, &[])
    }

    /// As [`Self::start`], with TLS and certificates of clients. The files of [`certify`] are in the folder.
    fn start_secure() -> Option<Self> {
        Self::begin(true, &[])
    }

    fn begin(is_secure: bool, options: &[&str]) -> Option<Self> {
        let folder = folder()?;
        if is_secure {
            certify(&folder);
        }
        let ports = [(); 2].map(|()| Port::reserve());
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        let child = Self::spawn(&folder, 0, slice::from_ref(&ports), is_secure, &options);
        let mut etcd = Self { child, folder, ports, is_secure, login: None, options };
        etcd.await_health();
        Some(etcd)
    }

    /// Starts the process of the member with index `member`. `ports`: of all members of this etcd. Of an option that is given
    /// twice, etcd takes the last value: `options` come last.
    fn spawn(folder: &Path, member: usize, ports: &[[Port; 2]], is_secure: bool, options: &[String]) -> Child {
        let log = fs::OpenOptions::new().create(true).append(true).open(folder.join("log")).expect("a log");
        let scheme = if is_secure { "https" } else { "http" };
        let client = format!("{scheme}://127.0.0.1:{}", ports[member][0].number());
        let peers: Vec<String> = ports.iter().map(|[_, peer]| format!("http://127.0.0.1:{}", peer.number())).collect();
        let data = folder.join(format!("data-{member}"));
        let mut command = Command::new("etcd");
        if is_secure {
            command.args(["--client-cert-auth=true", "--bcrypt-cost=4"]);
            command.arg("--trusted-ca-file").arg(folder.join("clients.pem"));
            command.arg("--cert-file").arg(folder.join("server.pem"));
            command.arg("--key-file").arg(folder.join("server.key"));
        }
        command
            .args(member::options(member, &data, [&client, &client], &peers))
            .args(options)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn()
            .expect("etcd starts")
    }

    fn await_health(&mut self) {
        wait("etcd is healthy", || {
            let ended = self.child.try_wait().expect("a child");
            let log = || fs::read_to_string(self.folder.join("log"));
            assert!(ended.is_none(), "etcd has ended, {ended:?}: {}", log().expect("a log"));
            self.ctl(&["endpoint", "health"]).is_some()
        });
    }

    fn address(&self) -> String {
        let scheme = if self.is_secure { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.ports[0].number())
    }

    fn etcdctl(&self, arguments: &[&str]) -> Command {
        let mut command = etcdctl(&self.folder, &self.address(), self.is_secure);
        command.args(self.login.map(|login| format!("--user={login}"))).args(arguments);
        command
    }

    /// Runs `etcdctl` with these arguments; returns its output, or `None` if it fails.
    fn ctl(&self, arguments: &[&str]) -> Option<String> {
        output(self.etcdctl(arguments))
    }

    /// The newest revision.
    fn revision(&self) -> String {
        let json = self.ctl(&["get", "-w", "json", "nothing"]).expect("an answer");
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        json["header"]["revision"].as_i64().expect("a revision").to_string()
    }

    /// Writes a key of 1 MiB again and again until etcd has no space for it, as a client does that has nothing to do with hosts.
    fn fill(&self) {
        let file = self.folder.join("large");
        fs::write(&file, "x".repeat(1 << 20)).expect("written");
        wait("etcd has no space", || {
            let value = fs::File::open(&file).expect("the value");
            let output = self.etcdctl(&["put", "other/large"]).stdin(value).output().expect("etcdctl runs");
            String::from_utf8_lossy(&output.stderr).contains("mvcc: database space exceeded")
        });
    }

    /// Writes all values (key, value) in one transaction, so that a reader finds all of them or none.
    fn put_together(&self, values: &[(String, &str)]) {
        let puts: String = values.iter().map(|(key, value)| format!("put {key:?} {value:?}\n")).collect();
        let file = self.folder.join("transaction");
        // No conditions, what is done then, and nothing otherwise.
        fs::write(&file, format!("\n{puts}\n\n")).expect("written");
        let file = fs::File::open(&file).expect("a transaction");
        let output = self.etcdctl(&["txn"]).stdin(file).output().expect("etcdctl runs");
        assert!(output.status.success() && output.stdout.starts_with(b"SUCCESS"), "{output:?}");
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a process");
        kill_process(pid, signal).expect("a signal");
    }

    fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("gone");
    }

    fn restart(&mut self) {
        self.child = Self::spawn(&self.folder, 0, slice::from_ref(&self.ports), self.is_secure, &self.options);
    }

    fn settings(&self, host: &str, clock: fn() -> Instant) -> Settings {
        settings(&self.address(), host, clock)
    }

    fn host(&self, name: &str) -> Host {
        self.host_with_clock(name, wall_clock)
    }

    fn host_with_clock(&self, name: &str, clock: fn() -> Instant) -> Host {
        Self::host_with(self.settings(name, clock))
    }

    /// Starts a host of a cluster that is divided if it has more than `above` hosts, into shards that have at most `most`
    /// hosts on average.
    fn host_in_shard(&self, name: &str, above: u64, most: u64) -> Host {
        let mut settings = self.settings(name, wall_clock);
        (settings.cluster.shards_above, settings.cluster.shard_size) = (above, Some(most));
        Self::host_with(settings)
    }

    fn host_with(settings: Settings) -> Host {
        let seen = Arc::<Mutex<Seen>>::default();
        let participant = Recorder { seen: Arc::clone(&seen), reports: 0 };
        Host { seen, handle: start(settings, participant).expect("it starts") }
    }
}

fn settings(etcd: &str, host: &str, clock: fn() -> Instant) -> Settings {
    let cluster = Cluster {
        etcd: vec![etcd.parse().expect("an address")],
        host: Some(host.into()),
        period: PERIOD,
        lease: LEASE,
        ..Cluster::default()
    };
    let incarnation = wall_clock().as_nanos();
    Settings { cluster, host: host.into(), incarnation, clock, kept: None, may_rename: true }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The members that one decision saw: name, age of the report in periods, and a figure from the report.
type Members = Vec<(String, u64, f64)>;

/// The record of a host's decisions.
#[derive(Debug, Default)]
struct Seen {
    periods: BTreeMap<u64, Members>,
    /// By period: number of the cluster's hosts in the decision, counted one by one or in sums of shards.
    hosts: BTreeMap<u64, u64>,
    /// True while the host decides on its own.
    alone: bool,
    /// The ramp of each decision: the fraction of its share that the host was to take, 0 to 1.
    ramps: Vec<f64>,
}

struct Recorder {
    seen: Arc<Mutex<Seen>>,
    reports: u64,
}

impl Participant for Recorder {
    fn report(&mut self) -> Pools {
        self.reports += 1;
        let figures = Summary { used: self.reports as f64, workloads: 1.0, ..Summary::default() };
        BTreeMap::from([("main".into(), figures)])
    }

    fn decide(&mut self, view: &View<'_, Contribution<Pools>>, ramp: f64) {
        let members = view.members.iter();
        let members =
            members.map(|member| (member.host.to_owned(), member.age, member.report.content.content["main"].used));
        let mut seen = lock(&self.seen);
        seen.hosts.insert(view.period, view.members.iter().map(|member| member.report.content.members).sum());
        let again = seen.periods.insert(view.period, members.collect());
        assert!(again.is_none(), "period {} was decided twice", view.period);
        seen.alone = false;
        seen.ramps.push(ramp);
    }

    fn alone(&mut self) {
        lock(&self.seen).alone = true;
    }
}

struct Host {
    seen: Arc<Mutex<Seen>>,
    handle: Handle,
}

impl Host {
    fn periods(&self) -> BTreeMap<u64, Members> {
        lock(&self.seen).periods.clone()
    }

    fn is_alone(&self) -> bool {
        lock(&self.seen).alone
    }

    /// Names of the members in the host's newest decision.
    fn sees(&self) -> Vec<String> {
        let periods = self.periods();
        let newest = periods.last_key_value().map(|(_, members)| members.as_slice()).unwrap_or_default();
        newest.iter().map(|(host, ..)| host.clone()).collect()
    }

    fn last_period(&self) -> u64 {
        self.periods().last_key_value().map_or(0, |(period, _)| *period)
    }

    fn status(&self) -> String {
        self.handle.state().status
    }

    fn error(&self) -> String {
        self.handle.state().error.unwrap_or_default()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.handle.stop();
    }
}

const MEMBERS: &str = "evenkeel/main/members/";

fn key_of(host: &str) -> String {
    format!("{MEMBERS}{:04x}/{host}", hash(host))
}

/// Waits until `holds` returns true; returns how long that took. `what` names it in a failure.
fn wait(what: &str, mut holds: impl FnMut() -> bool) -> StdDuration {
    let begun = StdInstant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "this does not come true: {what}");
        sleep(StdDuration::from_millis(20));
    }
    begun.elapsed()
}

fn all_see(hosts: &[&Host], names: &[&str]) -> StdDuration {
    wait(&format!("all see {names:?}"), || hosts.iter().all(|host| !host.is_alone() && host.sees() == names))
}

/// Waits for eight periods after `since` in which all of `hosts` saw a timely report of each of them, and checks that all saw
/// the same. A busy machine may delay reports, so that some periods do not count.
fn wait_for_same_periods(hosts: &[&Host], since: u64) {
    let complete = |members: &Members| members.len() == hosts.len() && members.iter().all(|(_, age, _)| *age == 0);
    wait("they decide together", || {
        let periods: Vec<_> = hosts.iter().map(|host| host.periods()).collect();
        let everywhere = |period: u64| periods.iter().all(|periods| periods.get(&period).is_some_and(complete));
        let shared: Vec<_> = periods[0].iter().filter(|(period, _)| **period > since && everywhere(**period)).collect();
        for (period, members) in &shared {
            periods.iter().for_each(|other| assert_eq!(other[*period], **members, "{period}"));
        }
        shared.len() >= 8
    });
}

#[test]
fn three_hosts_decide_from_the_same_reports_and_one_that_leaves_is_gone_at_once() {
    let Some(etcd) = Etcd::start() else { return };
    let hosts = ["a", "b", "c"].map(|name| etcd.host(name));
    let [a, b, c] = &hosts;
    all_see(&[a, b, c], &["a", "b", "c"]);
    let found = [a, b, c].map(Host::last_period).into_iter().max().unwrap_or(0) + 2;
    wait_for_same_periods(&[a, b, c], found);
    wait("all is well", || a.status() == "shared" && a.handle.state().members.len() == 3);
    let state = a.handle.state();
    assert!(state.connected, "{state:?}");
    assert!(state.sent_bytes_total > 0 && state.received_bytes_total > state.sent_bytes_total, "{state:?}");
    assert_eq!(state.ignored_total, BTreeMap::new());
    // What comes from etcd each period is no more than what the bound of docs/reference/cluster.md is made of.
    let length = etcd.ctl(&["get", "--print-value-only", &key_of("a")]).map_or(0, |value| value.trim_end().len());
    let received = || (a.handle.state().received_bytes_total, a.handle.state().decided_periods_total);
    let (bytes, periods) = received();
    wait("some periods", || received().1 >= periods + 8);
    let (bytes, periods) = (received().0 - bytes, received().1 - periods);
    let most = received_bytes([length; 3]) as u64;
    assert!(
        bytes <= most * (periods + 1) && bytes > most * periods / 3,
        "{bytes} bytes in {periods} periods, bound {most}"
    );
    let ramps = lock(&a.seen).ramps.clone();
    assert!(ramps[0] < 1.0 && ramps.contains(&1.0), "{ramps:?}");

    c.handle.stop();
    wait("it decides by itself until it ends", || c.is_alone());
    let took = all_see(&[a, b], &["a", "b"]);
    println!("gone after {took:?}");
    assert_eq!(
        etcd.ctl(&["get", "--prefix", "--keys-only", "evenkeel/main/members/"]).map(|keys| keys.contains("/c")),
        Some(false)
    );
}

#[test]
fn an_etcd_that_is_killed_stopped_or_loses_everything_is_survived() {
    let Some(mut etcd) = Etcd::start() else { return };
    let hosts = ["a", "b"].map(|name| etcd.host(name));
    let [a, b] = &hosts;
    all_see(&[a, b], &["a", "b"]);

    etcd.kill();
    // Their state says so a moment after their participants.
    let lost = |host: &Host| host.is_alone() && host.status() == "lost";
    wait("both know that they are alone, and why", || {
        [a, b].iter().all(|host| lost(host) && host.error().contains("http://127.0.0.1"))
    });
    etcd.restart();
    all_see(&[a, b], &["a", "b"]);
    wait("nothing is wrong any more", || a.handle.state().error.is_none() && a.status() == "shared");

    // Connections stay open, and nothing comes: as in a partition.
    etcd.signal(Signal::STOP);
    wait("both know that they are alone", || lost(a) && lost(b));
    etcd.signal(Signal::CONT);
    all_see(&[a, b], &["a", "b"]);
    assert!(a.handle.state().lost_total >= 2 && b.handle.state().lost_total >= 2);

    // A new etcd in its place, which knows neither keys nor leases, and counts revisions from the start.
    etcd.kill();
    fs::remove_dir_all(etcd.folder.join("data-0")).expect("its data");
    etcd.restart();
    etcd.await_health();
    let before = a.last_period();
    wait("they go on", || a.last_period() > before + 5);
    all_see(&[a, b], &["a", "b"]);
}

#[test]
fn keys_leases_and_history_may_go_while_hosts_use_them() {
    let Some(etcd) = Etcd::start() else { return };
    let hosts = ["a", "b"].map(|name| etcd.host(name));
    let [a, b] = &hosts;
    all_see(&[a, b], &["a", "b"]);
    // History is compacted away while one does not read.
    etcd.ctl(&["compaction", &etcd.revision()]).expect("compacted");
    etcd.ctl(&["del", "--prefix", "evenkeel/main/members/"]).expect("deleted");
    let before = a.last_period();
    wait("they go on", || a.last_period() > before + 8 && b.last_period() > before + 8);
    all_see(&[a, b], &["a", "b"]);
    let leases = etcd.ctl(&["lease", "list"]).expect("leases");
    for lease in leases.lines().skip(1) {
        etcd.ctl(&["lease", "revoke", lease]).expect("revoked");
    }
    let before = a.last_period();
    wait("they go on", || a.last_period() > before + 8 && b.last_period() > before + 8);
    all_see(&[a, b], &["a", "b"]);
}

#[test]
fn a_late_older_write_does_not_replace_a_newer_one() {
    let Some(etcd) = Etcd::start() else { return };
    let settings = etcd.settings("a", wall_clock);
    let key = settings.member_key();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let endpoint = &settings.cluster.etcd[0];
        let mut client = Client::open(endpoint, settings.patience(), &Arc::default()).await.expect("a connection");
        let lease = client.grant(30).await.expect("a lease");
        let Ok(Claim::Ours(first)) = client.claim(&key, b"1", lease).await else { panic!("the key is there") };
        let second = client.replace(&key, b"3", lease, first).await.expect("an answer").expect("written");
        assert!(second > first, "{first} and {second}");
        assert_eq!(client.replace(&key, b"2", lease, first).await.expect("an answer"), None);
        let claim = client.claim(&key, b"2", lease).await.expect("an answer");
        assert_eq!(claim, Claim::Taken(second, b"3".to_vec()));
    });
}

/// Keys and values that no host can use: three are corrupt, one has an older version, and one has another period.
fn useless() -> Vec<(String, &'static str)> {
    let newer = "{\"v\":99}";
    let older = "{\"v\":2}";
    vec![
        (key_of("b"), "{"),
        (key_of("c"), older),
        (key_of("d e"), newer),
        (key_of("f"), "{\"v\":3,\"incarnation\":1,\"period\":1,\"joined\":1,\"period_us\":7}"),
        // Where no host belongs.
        ("evenkeel/main/members/b".into(), newer),
    ]
}

/// The counts of ignored values, by kind, after the [`useless`] values were read `times` times.
fn counts(times: u64) -> BTreeMap<String, u64> {
    [("corrupt", 3), ("version", 1), ("period", 1)].map(|(kind, keys)| (kind.to_owned(), keys * times)).into()
}

#[test]
fn what_cannot_be_read_is_counted_each_time_it_is_read_and_no_more() {
    let recorder = Recorder { seen: Arc::default(), reports: 0 };
    let settings = settings("http://127.0.0.1:1", "a", wall_clock);
    let mut driver = Driver::new(settings, recorder, Arc::default()).expect("good settings");
    let values = || useless().into_iter().map(|(key, value)| (watcher::host(&key, MEMBERS), value.into()));
    values().for_each(|(host, value)| driver.take_in(Event::Reported { host, value }));
    (0..10).for_each(|_| driver.decide(wall_clock()));
    assert_eq!(*driver.faults.counts(), counts(1));
    let (endpoint, shard) = ("http://127.0.0.1:1".into(), Shard::WHOLE);
    driver.take_in(Event::Watching { endpoint, shard, all: values().collect(), sums: Vec::new() });
    (0..10).for_each(|_| driver.decide(wall_clock()));
    assert_eq!(*driver.faults.counts(), counts(2), "all values were read anew");
}

#[test]
fn a_fault_of_the_writes_is_shown_before_one_of_the_watch() {
    let recorder = Recorder { seen: Arc::default(), reports: 0 };
    let state = Arc::<Mutex<evenkeel_policy::state::ClusterState>>::default();
    let settings = settings("http://127.0.0.1:1", "a", wall_clock);
    let mut driver = Driver::new(settings, recorder, Arc::clone(&state)).expect("good settings");
    let mut shown = |event| {
        driver.take_in(event);
        driver.publish_state(wall_clock());
        lock(&state).error.clone()
    };
    let watching = || {
        let endpoint = "http://127.0.0.1:1".to_owned();
        Event::Watching { endpoint, shard: Shard::WHOLE, all: Vec::new(), sums: Vec::new() }
    };
    let silent = || Event::Unwatched { why: "silent".into() };
    assert_eq!(shown(silent()).as_deref(), Some("silent"));
    assert_eq!(shown(Event::Unwritten { why: "full".into() }).as_deref(), Some("full"));
    // The watch begins and falls silent by turns.
    assert_eq!(shown(watching()).as_deref(), Some("full"));
    assert_eq!(shown(silent()).as_deref(), Some("full"));
    assert_eq!(shown(Event::Written).as_deref(), Some("silent"));
    assert_eq!(shown(watching()), None);
}

#[test]
fn what_cannot_be_read_is_reported_and_ignored() {
    let Some(etcd) = Etcd::start() else { return };
    let a = etcd.host("a");
    all_see(&[&a], &["a"]);
    // So that a host that reads all values anew in between counts all of them once more, not some.
    etcd.put_together(&useless());
    wait("all are counted, equally often", || {
        let ignored = a.handle.state().ignored_total;
        ignored.get("version").is_some_and(|times| ignored == counts(*times))
    });
    // One of them may be a member of another version, whose slots are unknown.
    wait("it decides alone, and says why", || a.is_alone() && a.error().contains("format that this host cannot read"));
    // So may the one with another period be.
    ["c", "f"].iter().for_each(|host| drop(etcd.ctl(&["del", &key_of(host)]).expect("deleted")));
    let before = a.last_period();
    wait("it goes on", || a.last_period() > before + 5);
    wait("on its own terms", || a.sees() == ["a"] && a.status() == "shared");
}

#[test]
fn a_member_of_another_version_makes_a_host_decide_alone_until_it_is_gone() {
    /// A quarter of period 2500.
    fn clock() -> Instant {
        Instant::from_nanos(1_000_100_000_000)
    }
    let (seen, state) = (Arc::<Mutex<Seen>>::default(), Arc::<Mutex<evenkeel_policy::state::ClusterState>>::default());
    let recorder = Recorder { seen: Arc::clone(&seen), reports: 0 };
    let settings = settings("http://127.0.0.1:1", "a", clock);
    let incarnation = settings.incarnation;
    let mut driver = Driver::new(settings, recorder, Arc::clone(&state)).expect("good settings");
    let mut shown = |event: Event| {
        driver.take_in(event);
        driver.decide(clock());
        driver.publish_state(clock());
        let state = lock(&state).clone();
        let members: Vec<String> = state.members.into_iter().map(|member| member.name).collect();
        (state.status, state.error.unwrap_or_default(), members)
    };
    let reported = |host: &str, value: &str| Event::Reported { host: host.into(), value: value.into() };
    let record = |v: &str, incarnation: u64| {
        format!(
            "{{{v},\"incarnation\":{incarnation},\"period\":2499,\"joined\":2400,\"period_us\":400000,\"pools\":{{\"main\":{{\"used\":1}}}}}}"
        )
    };
    let shared = |names: &[&str]| {
        ("shared".to_owned(), String::new(), names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
    };
    let (endpoint, shard) = ("http://127.0.0.1:1".into(), Shard::WHOLE);
    shown(Event::Watching { endpoint, shard, all: Vec::new(), sums: Vec::new() });
    let own = record("\"v\":3", incarnation);
    assert_eq!(shown(reported("a", &own)), shared(&["a"]));
    assert!(!lock(&seen).alone && !lock(&seen).periods.is_empty());
    // It may be older or newer, and leaves, or its lease ends.
    for v in ["\"v\":2", "\"v\":4"] {
        for end in [reported("b", &format!("{{{v},\"leaving\":true}}")), Event::Ended { host: "b".into() }] {
            let (status, error, _) = shown(reported("b", &record(v, 7)));
            assert_eq!(status, "lost");
            assert!(error.contains("the reports of 1 member are in a format that this host cannot read"), "{error}");
            assert!(lock(&seen).alone);
            assert_eq!(shown(end), shared(&["a"]));
        }
    }
    // A newer one that says that this version can read it is a member as any other.
    assert_eq!(shown(reported("c", &record("\"v\":4,\"reads\":3", 8))), shared(&["a", "c"]));
}

#[test]
fn of_two_hosts_with_one_name_the_second_takes_another_one_and_says_so() {
    let Some(etcd) = Etcd::start() else { return };
    let (a, b) = (etcd.host("a"), etcd.host("b"));
    all_see(&[&a, &b], &["a", "b"]);
    let second = etcd.host("b");
    wait("it says so", || {
        // The error ends with the old name, which a busy machine may see too late.
        let state = second.handle.state();
        [state.error.unwrap_or_default(), state.because].iter().any(|text| text.contains("process is host \"b\""))
    });
    wait("it takes another name", || second.handle.state().host.starts_with("b-"));
    let state = second.handle.state();
    all_see(&[&a, &b, &second], &["a", "b", &state.host]);
    wait("it says what to do", || second.handle.state().because.contains("cluster.host"));
    wait("nothing is wrong", || [&b, &second].iter().all(|host| host.error().is_empty() && host.status() == "shared"));
    assert_eq!(b.handle.state().host, "b");
    // The first one goes: the second one keeps its new name.
    b.handle.stop();
    all_see(&[&a, &second], &["a", &state.host]);
}

#[test]
fn a_host_that_dies_expires_after_its_lease_and_a_later_life_takes_its_place() {
    let Some(etcd) = Etcd::start() else { return };
    // Its own lease is long, so that a busy machine has time to see a host that reports once.
    let mut settings = etcd.settings("a", wall_clock);
    settings.cluster.lease = Time::from_millis(60_000);
    let a = Etcd::host_with(settings);
    all_see(&[&a], &["a"]);
    // A process of its own would be killed; here one whose value stays although it never reports again does.
    let lease = etcd.ctl(&["lease", "grant", "60"]).expect("a lease");
    let lease = lease.split_whitespace().nth(1).expect("its number");
    let period = wall_clock().as_nanos() / PERIOD.as_nanos();
    let value = format!(
        "{{\"v\":3,\"incarnation\":7,\"period\":{period},\"joined\":{period},\"period_us\":400000,\"pools\":{{\"main\":{{\"used\":3}}}}}}"
    );
    etcd.ctl(&["put", &format!("--lease={lease}"), &key_of("dead"), &value]).expect("written");
    wait("it is seen", || a.sees() == ["a", "dead"]);
    // As etcd does when a lease ends that nothing keeps alive.
    etcd.ctl(&["lease", "revoke", lease]).expect("revoked");
    wait("it has expired", || a.sees() == ["a"]);
    // Its state says so a moment after its participant.
    let has_expired = || a.handle.state().members.iter().any(|host| host.name == "dead" && host.presence == "expired");
    wait("it is known to have expired", has_expired);
    let dead = etcd.host("dead");
    all_see(&[&a, &dead], &["a", "dead"]);
}

#[test]
fn a_clock_that_is_a_period_behind_changes_nothing_and_one_far_off_is_reported() {
    fn behind() -> Instant {
        Instant::from_nanos(wall_clock().as_nanos() - 400_000_000)
    }
    fn far_ahead() -> Instant {
        wall_clock() + Duration::from_secs(60)
    }
    let Some(etcd) = Etcd::start() else { return };
    let (a, b) = (etcd.host("a"), etcd.host_with_clock("b", behind));
    all_see(&[&a, &b], &["a", "b"]);
    let found = a.last_period().max(b.last_period()) + 2;
    wait_for_same_periods(&[&a, &b], found);
    let far = etcd.host_with_clock("far", far_ahead);
    wait("it is noticed", || a.handle.state().ignored_total.contains_key("future"));
    wait("on both sides", || far.handle.state().ignored_total.contains_key("late"));
    wait("the others go on", || a.sees() == ["a", "b"]);
}

/// Waits for three periods in which all hosts were counted, and in which all of them saw the same members and reports.
fn wait_for_all_in_shards(hosts: &[Host]) {
    let since = hosts.iter().map(Host::last_period).max().unwrap_or(0);
    wait("all decide from the same sums of all", || {
        let periods: Vec<_> = hosts.iter().map(Host::periods).collect();
        let counted = lock(&hosts[0].seen).hosts.clone();
        let everyone = |period: &u64, members: &Members| {
            counted[period] == hosts.len() as u64 && members.iter().all(|(_, age, _)| *age == 0)
        };
        let same = |period: &u64, members: &Members| periods.iter().all(|other| other.get(period) == Some(members));
        let after = periods[0].range(since + 1..);
        after.filter(|(period, members)| everyone(period, members) && same(period, members)).count() >= 3
    });
}

#[test]
fn a_cluster_of_twelve_decides_from_sums_of_shards_and_survives_who_publishes_them() {
    let Some(mut etcd) = Etcd::start() else { return };
    let name = |n: usize| format!("host-{n:02}");
    let mut hosts: Vec<Host> = (0..4).map(|n| etcd.host_in_shard(&name(n), 4, 4)).collect();
    wait_for_all_in_shards(&hosts);
    assert!(hosts[0].handle.state().shards.is_empty(), "four read each other one by one");

    // It grows over the threshold while it runs.
    hosts.extend((4..12).map(|n| etcd.host_in_shard(&name(n), 4, 4)));
    let divided =
        |hosts: &[Host]| hosts.iter().all(|host| host.handle.state().shard.is_some_and(|s| s.starts_with("2-")));
    wait("it is divided", || divided(&hosts));
    wait_for_all_in_shards(&hosts);
    let state = hosts[5].handle.state();
    assert!(state.members.len() < 12 && state.counted_members == 12, "{state:?}");
    let mut shards: Vec<String> = (0..12).map(|n| Shard::of(&name(n), 2).to_string()).collect();
    shards.sort();
    shards.dedup();
    let present = state.shards.iter().filter(|shard| shard.presence == "present");
    assert_eq!(present.map(|shard| shard.name.clone()).collect::<Vec<_>>(), shards);
    assert_eq!(state.ignored_total, BTreeMap::new());

    // What no host can have written is reported, and the next sum takes its place.
    etcd.ctl(&["put", "evenkeel/main/shards/2-001", "{"]).expect("written");
    etcd.ctl(&["put", "evenkeel/main/shards/2-1", "{}"]).expect("written");
    wait("it is noticed", || hosts.iter().all(|host| host.handle.state().ignored_total.get("corrupt") >= Some(&2)));
    wait_for_all_in_shards(&hosts);

    // Who speaks for a shard goes, in order; the next one speaks.
    drop(hosts.remove(0));
    wait_for_all_in_shards(&hosts);

    // etcd goes and comes back.
    etcd.kill();
    wait("all know that they are alone", || hosts.iter().all(Host::is_alone));
    etcd.restart();
    wait_for_all_in_shards(&hosts);
    wait("nothing is wrong any more", || hosts.iter().all(|host| host.status() == "shared"));

    // Other settings, one host after the other: every host counts all the time.
    for host in &hosts {
        host.handle.resize(Sizes { above: 100, most: None });
    }
    wait("it is one again", || hosts.iter().all(|host| host.handle.state().shard.is_none()));
    wait_for_all_in_shards(&hosts);
}

#[test]
fn sizes_that_change_while_a_host_is_busy_are_not_missed() {
    let Some(etcd) = Etcd::start() else { return };
    let hosts = ["a", "b"].map(|name| {
        let host = etcd.host_in_shard(name, 100, 4);
        // The host's thread has just started, and has not come to wait for anything yet.
        host.handle.resize(Sizes { above: 1, most: Some(1) });
        host
    });
    wait("it is divided", || hosts.iter().all(|host| host.handle.state().shard.is_some_and(|s| s.starts_with("1-"))));
    wait_for_all_in_shards(&hosts);
}
