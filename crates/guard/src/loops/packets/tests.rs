//! Tests of the packet loop in virtual time, with a modelled device whose reads slow down with the load of writes.

use evenkeel_control::Duration;
use evenkeel_policy::decision::Unit;

use super::*;
use crate::Agent;
use crate::actuator::Packets;
use crate::config::Abilities;
use crate::discovery::map::{Connection, Link};
use crate::discovery::{KnownBy, Roots, Server};
use crate::loops::record::{ClientState, PacketsState, PoolState};
use crate::sensor::diskstats::DeviceNumber;

const CONFIG: &str = r#"
[tenants.spared]
match = ["10.0.0.9"]
throttle = "never"
[pools.vg]
latency.target = "15ms"
"#;

fn config(text: &str) -> Config {
    Config::parse(text, "guard.toml", Abilities { tracepoints: false }).expect("a configuration")
}

fn link(client: &str, minor: u32, pool: &str, port: u16) -> Link {
    let remote = format!("{client}:{port}").parse().expect("an address");
    Link {
        server: Server::Lio,
        target: "t".into(),
        volume: format!("lun_{minor}"),
        path: None,
        device: Some(format!("dm-{minor}")),
        number: Some(DeviceNumber { major: 252, minor }),
        pool: Some(pool.into()),
        client: Some(client.parse().expect("an address")),
        client_name: Some(format!("iqn.{client}")),
        connections: vec![Connection { local: "10.0.0.1:3260".parse().expect("an address"), remote }],
        known_by: KnownBy::Session,
        counters: None,
    }
}

fn map(links: Vec<Link>) -> Map {
    Map { links, ..Map::default() }
}

/// A modelled pool: a reader on the device dm-0, and writers on other devices. A write takes 3 ms plus twice its client's
/// delay; a read takes 4 ms plus a time that grows with the rate of writes.
struct Plant {
    writers: Vec<(u32, &'static str, f64)>,
    totals: Vec<[f64; 3]>,
    read_ms: f64,
}

impl Plant {
    fn new(writers: &[(u32, &'static str, f64)]) -> Self {
        Self { writers: writers.to_vec(), totals: vec![[0.0; 3]; writers.len() + 1], read_ms: 4.0 }
    }

    /// Runs the pool for `seconds` under these packet delays; returns the text of `/proc/diskstats` at the end.
    fn step(&mut self, delays: &Delays, seconds: f64) -> String {
        let mut total = 0.0;
        for (n, (_, address, requests)) in self.writers.iter().enumerate() {
            let client = Client::Address(address.parse().expect("an address"));
            let delay_s = delays.get(&client).map_or(0.0, |delay| delay.delay.as_secs_f64());
            let per_s = requests / (0.003 + 2.0 * delay_s);
            total += per_s;
            let place = &mut self.totals[n + 1];
            place[0] += per_s * seconds;
            place[1] += per_s * seconds * 128.0;
            place[2] += per_s * seconds * 3.0;
        }
        self.read_ms = 4.0 + total / 50.0;
        let reads = 60.0 * seconds;
        let place = &mut self.totals[0];
        place[0] += reads;
        place[1] += reads * 8.0;
        place[2] += reads * self.read_ms;
        let [reads, sectors, ms] = self.totals[0].map(|total| total as u64);
        let mut text = format!("252 0 dm-0 {reads} 0 {sectors} {ms} 0 0 0 0 0 0 0\n");
        for (n, (minor, ..)) in self.writers.iter().enumerate() {
            let [writes, sectors, ms] = self.totals[n + 1].map(|total| total as u64);
            text += &format!("252 {minor} dm-{minor} 0 0 0 0 {writes} 0 {sectors} {ms} 0 0 0\n");
        }
        text
    }

    /// Runs pool and agent for `ticks` ticks of 100 ms, beginning with tick number `from`; returns the mean read latency in
    /// the second half, in ms.
    fn run(&mut self, agent: &mut Agent, from: u64, ticks: u64) -> f64 {
        let mut sum = 0.0;
        for n in 0..ticks {
            let text = self.step(&agent.packets.delays().clone(), 0.1);
            tick(agent, at(from + n), &text);
            if n >= ticks / 2 {
                sum += self.read_ms;
            }
        }
        sum / (ticks - ticks / 2) as f64
    }
}

fn open(config: &Config) -> Agent {
    Agent::open(config, &Roots::under(Path::new("none")), Path::new("none")).expect("valid")
}

fn tick(agent: &mut Agent, now: Instant, text: &str) {
    let errors = agent.tick(now, text.as_bytes(), None);
    assert!(errors.is_empty(), "{errors:?}");
}

fn state(agent: &Agent, pool: usize) -> PacketsState {
    let state = agent.state();
    let (_, at) = state.packets().nth(pool).expect("a pool");
    at.clone()
}

fn pool(agent: &Agent, pool: usize) -> PoolState {
    agent.state().pools.swap_remove(pool)
}

fn at(tick: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(100 * tick)
}

fn agent(text: &str, links: Vec<Link>) -> Agent {
    let mut agent = open(&config(text));
    agent.follow(map(links));
    agent
}

fn four_clients() -> Vec<Link> {
    vec![
        link("10.0.0.11", 0, "vg", 1),
        link("10.0.0.12", 1, "vg", 2),
        link("10.0.0.13", 2, "vg", 3),
        link("10.0.0.9", 3, "vg", 4),
    ]
}

#[test]
fn a_target_for_a_percentile_is_measured_by_single_reads() {
    use crate::sensor::tracepoints::{BUCKETS, middle};
    let bucket = |ms| (0..BUCKETS).find(|bucket| middle(*bucket) >= Duration::from_millis(ms)).expect("a bucket");
    let text = "[pools.other]\nlatency.target = \"1s\"\n\
                [pools.vg]\nlatency.target = \"15ms\"\nlatency.percentile = 90\n";
    let config = Config::parse(text, "guard.toml", Abilities { tracepoints: true }).expect("a configuration");
    let run = |timed: bool| {
        let mut agent = open(&config);
        agent.follow(map(vec![link("10.0.0.2", 0, "vg", 1), link("10.0.0.3", 1, "other", 2)]));
        assert!(agent.packets.timed_devices().eq([(DeviceNumber { major: 252, minor: 0 }, 1)]));
        for n in 0..30 {
            // Ten reads in each interval: eight of 2 ms, two of 17 ms.
            let now = Instant::ZERO + Duration::from_millis(100 * n);
            agent.packets.count_read_times(now, |pool, each| {
                assert_eq!(pool, 1, "the other target is for the mean");
                if timed && n > 0 {
                    each(bucket(2), 8);
                    each(bucket(17), 2);
                }
            });
            let line = format!("252 0 dm-0 {} 0 {} {} 0 0 0 0 0 0 0\n", 10 * n, 80 * n, 50 * n);
            tick(&mut agent, now, &line);
        }
        (pool(&agent, 1), agent.records(Some("vg"), 1).swap_remove(0))
    };
    let (state, record) = run(true);
    let (target, reads) = (state.latency_target.as_ref().expect("a target"), state.reads.as_ref().expect("reads"));
    assert_eq!((target.percentile.as_str(), reads.latency_ms), ("p90", Some(5.0)));
    assert_eq!((reads.measured.as_str(), state.lately.p99_ms), ("device", reads.percentiles.map(|of| of.p99_ms)));
    let p90_ms = state.percentile_ms().expect("reads");
    assert!((p90_ms / 17.0 - 1.0).abs() < 0.065, "{p90_ms}");
    // No client writes, and the mean is far below the target.
    assert_eq!(record.reason, "no_noisy");
    let told = record.measured.expect("a figure");
    assert!((17.0 * 0.97..17.0 * 1.3).contains(&told), "{told}");
    let (state, record) = run(false);
    assert_eq!((state.percentile_ms(), record.measured), (None, None), "{}", record.reason);
}

#[test]
fn writers_are_throttled_until_reads_are_fast_enough() {
    for method in ["adaptive", "pid"] {
        let text = format!("{CONFIG}tuning.method = \"{method}\"\n");
        let mut agent = agent(&text, four_clients());
        let mut plant = Plant::new(&[(1, "10.0.0.12", 2.0), (2, "10.0.0.13", 2.0)]);
        let mean = plant.run(&mut agent, 0, 400);
        // Without delays it is 4 + 1333 / 50 = 31 ms.
        assert!(mean < 16.5, "{method}: {mean} ms");
        let delays = agent.packets.delays();
        let delay = |client: &str| delays.get(&Client::Address(client.parse().expect("one"))).map(|delay| delay.delay);
        assert!(delay("10.0.0.12").is_some_and(|delay| delay > std::time::Duration::ZERO), "{method}: {delays:?}");
        assert_eq!(delay("10.0.0.11"), None, "{method}: the reader");
        let state = state(&agent, 0);
        assert_eq!(state.clients.iter().filter(|client| client.delay_ms > 0.0).count(), 2);
        let pool = pool(&agent, 0);
        assert!(pool.reads.is_some_and(|reads| reads.latency_ms.is_some()));
        assert!(pool.lately.throttled_by.is_some_and(|by| by.how.starts_with("2 clients, mean ")));
        assert!(
            agent
                .records(Some("vg"), usize::MAX)
                .iter()
                .any(|record| record.reason == "reads_over_target" && !record.clients.is_empty())
        );
        assert_eq!(agent.records(Some("other"), usize::MAX).len(), 0);
    }
}

#[test]
fn when_the_writers_stop_no_client_is_throttled() {
    let mut agent = agent(CONFIG, four_clients());
    let mut plant = Plant::new(&[(1, "10.0.0.12", 2.0), (2, "10.0.0.13", 2.0)]);
    plant.run(&mut agent, 0, 100);
    assert!(!agent.packets.delays().is_empty());
    plant.writers.iter_mut().for_each(|writer| writer.2 = 0.0);
    plant.run(&mut agent, 100, 50);
    assert!(agent.packets.delays().is_empty(), "{:?}", agent.packets.delays());
    // The records name the clients, and say by how much each was throttled.
    let records = agent.records(Some("vg"), usize::MAX);
    let throttling = records.iter().find(|record| record.reason == "reads_over_target" && record.throttled > 0);
    let throttling = throttling.expect("a record");
    let most = throttling.most_throttled.first().expect("a client");
    let longest = throttling.clients.iter().map(|client| client.delay_ms).fold(0.0, f64::max);
    assert_eq!((most.delay_ms, most.bytes_per_s, throttling.percentile.as_str()), (longest, None, "mean"));
    let name = format!("{} by {}", most.client, Unit::Ms.text(most.delay_ms));
    assert!(throttling.because.starts_with("pool vg read mean ") && throttling.because.contains(&name), "{throttling}");
    let releasing = records.iter().find(|record| record.released > 0).expect("a release");
    let first = releasing.some_released.first().expect("a client");
    assert!(releasing.because.contains(&format!("releasing {first}")), "{releasing}");
    assert!(["10.0.0.12", "10.0.0.13"].contains(&first.as_str()), "{first}");
}

#[test]
fn a_tenant_that_is_never_throttled_is_left_alone() {
    let mut agent = agent(CONFIG, four_clients());
    let mut plant = Plant::new(&[(3, "10.0.0.9", 4.0)]);
    plant.run(&mut agent, 0, 100);
    assert!(agent.packets.delays().is_empty());
    assert_eq!(agent.records(None, usize::MAX).first().map(|record| record.reason.as_str()), Some("no_noisy"));
}

#[test]
fn behind_one_address_a_tenant_that_is_never_throttled_spares_the_others() {
    let text = format!(
        "{CONFIG}[tenants.bulk]\nmatch = [\"initiator:iqn.10.0.0.12\"]\n\
         [tenants.database]\nmatch = [\"initiator:iqn.d*\"]\nthrottle = \"never\"\n"
    );
    for (name, spared) in [("iqn.database", true), ("iqn.other", false)] {
        let mut links = four_clients();
        // Of the client that writes, with another name.
        links.push(Link { client_name: Some(name.into()), ..link("10.0.0.12", 1, "vg", 5) });
        let mut agent = agent(&text, links);
        Plant::new(&[(1, "10.0.0.12", 4.0)]).run(&mut agent, 0, 15);
        assert_eq!(agent.packets.delays().is_empty(), spared, "{name}");
        let state = state(&agent, 0);
        let client = state.clients.iter().find(|client| client.address == "10.0.0.12").expect("is known");
        let because = client.exempt_because.clone().unwrap_or_default();
        assert_eq!((client.throttle.as_str() == "never", because.contains("iqn.database")), (spared, spared));
    }
}

#[test]
fn each_of_many_clients_of_two_resources_is_known_by_its_own_connection() {
    const CLIENTS: u32 = 3_000;
    let links = |n: u32| {
        let client = format!("10.1.{}.{}", n / 250, n % 250);
        [link(&client, 2 * n, "vg", 7), link(&client, 2 * n + 1, "other", 8)]
    };
    let two = format!("{CONFIG}\n[pools.other]\nlatency.target = \"15ms\"\n");
    let agent = agent(&two, (0..CLIENTS).flat_map(links).collect());
    for (pool, port) in agent.packets.pools.iter().zip([8, 7]) {
        let is_own = |key: &Client| matches!(key, Client::Connection { client_port, .. } if *client_port == port);
        let (all, own) = (pool.keys().count(), pool.keys().filter(is_own).count());
        assert_eq!((all, own), (CLIENTS as usize, CLIENTS as usize), "{}", pool.name());
    }
}

#[test]
fn a_client_of_two_resources_is_known_by_its_connections_or_left_alone() {
    let two = format!("{CONFIG}\n[pools.other]\nlatency.target = \"15ms\"\n");
    let apart = vec![link("10.0.0.11", 0, "vg", 1), link("10.0.0.12", 1, "vg", 2), link("10.0.0.12", 7, "other", 3)];
    let mut by_connection = agent(&two, apart);
    let mut plant = Plant::new(&[(1, "10.0.0.12", 4.0)]);
    // The plant knows no connections, so that before long it would be tried whether the delay does anything.
    plant.run(&mut by_connection, 0, 15);
    let address = "10.0.0.12".parse().expect("an address");
    let key = Client::Connection { address, client_port: 2, service_port: 3260 };
    assert_eq!(by_connection.packets.delays().iter().map(|(client, _)| client).collect::<Vec<_>>(), [&key]);

    // A volume of no known pool is another pool, and so is a connection to a target's port that leads to no known volume.
    let mut unplaced = vec![link("10.0.0.11", 0, "vg", 1), link("10.0.0.12", 1, "vg", 2), link("10.0.0.12", 7, "", 3)];
    (unplaced[2].pool, unplaced[2].number, unplaced[2].device) = (None, None, None);
    let keys = |links: &[Link], unexplained: &[(&str, &str)]| {
        let end = |text: &str| text.parse().expect("an address");
        let unexplained =
            unexplained.iter().map(|(local, remote)| Connection { local: end(local), remote: end(remote) });
        let mut agent = open(&config(CONFIG));
        agent.follow(Map { links: links.to_vec(), unexplained: unexplained.collect(), ..Map::default() });
        Plant::new(&[(1, "10.0.0.12", 4.0)]).run(&mut agent, 0, 15);
        agent.packets.delays().iter().map(|(client, _)| *client).collect::<Vec<_>>()
    };
    assert_eq!(keys(&unplaced, &[]), [key]);
    assert_eq!(keys(&unplaced[..2], &[("10.0.0.1:3260", "10.0.0.12:9")]), [key]);
    assert_eq!(keys(&unplaced[..2], &[("10.0.0.1:22", "10.0.0.12:9")]), [Client::Address(address)]);
    unplaced[2].connections = unplaced[1].connections.clone();
    assert_eq!(keys(&unplaced, &[]), []);

    let same = vec![link("10.0.0.11", 0, "vg", 1), link("10.0.0.12", 1, "vg", 2), link("10.0.0.12", 7, "other", 2)];
    let mut left_alone = agent(&two, same);
    Plant::new(&[(1, "10.0.0.12", 4.0)]).run(&mut left_alone, 0, 100);
    assert!(left_alone.packets.delays().is_empty());
    let state = left_alone.state();
    let (_, vg) = state.packets().find(|(pool, _)| pool.name == "vg").expect("has a target");
    let client = vg.clients.iter().find(|client| client.address == "10.0.0.12").expect("is known");
    assert_eq!(client.throttle, "never");
    assert!(client.exempt_because.as_ref().is_some_and(|why| why.contains("several pools")));
}

#[test]
fn a_client_that_is_one_of_several_is_never_throttled() {
    let mut links = four_clients();
    links[1].known_by = KnownBy::Candidate;
    let mut agent = agent(CONFIG, links);
    Plant::new(&[(1, "10.0.0.12", 4.0)]).run(&mut agent, 0, 100);
    assert!(agent.packets.delays().is_empty());
    let state = state(&agent, 0);
    let client = state.clients.iter().find(|client| client.address == "10.0.0.12").expect("is known");
    assert_eq!(client.throttle, "never");
    assert!(client.exempt_because.as_ref().is_some_and(|why| why.contains("one of several")));
}

#[test]
fn a_client_of_a_port_that_is_not_named_is_never_throttled() {
    for (own, of_both, throttled) in [("10.0.0.1:8009", false, false), ("10.0.0.1:8009", true, true)] {
        let mut links = four_clients();
        let usual = links[1].connections[0];
        links[1].connections = vec![Connection { local: own.parse().expect("an address"), ..usual }];
        links[1].connections.extend(of_both.then_some(usual));
        let mut agent = agent(CONFIG, links);
        Plant::new(&[(1, "10.0.0.12", 4.0)]).run(&mut agent, 0, 15);
        assert_eq!(!agent.packets.delays().is_empty(), throttled);
        let state = state(&agent, 0);
        let client = state.clients.iter().find(|client| client.address == "10.0.0.12").expect("is known");
        let because = client.exempt_because.clone().unwrap_or_default();
        assert_eq!((client.throttle.as_str() == "never", because.contains("port 8009")), (!throttled, !throttled));
    }
}

#[test]
fn a_delay_without_effect_is_noticed_and_all_packets_wait_instead() {
    let mut agent = agent(CONFIG, four_clients());
    let mut plant = Plant::new(&[(1, "10.0.0.12", 2.0), (2, "10.0.0.13", 2.0)]);
    let none = Delays::new();
    let switched = (0..600).find(|&n| {
        let acknowledgements =
            agent.packets.delays().iter().all(|(_, delay)| delay.packets == Packets::Acknowledgements);
        let text = plant.step(if acknowledgements { &none } else { agent.packets.delays() }, 0.1);
        tick(&mut agent, at(n), &text);
        state(&agent, 0).packets == "all"
    });
    assert!(switched.is_some(), "{:?}", agent.records(None, usize::MAX));
    let records = agent.records(None, usize::MAX);
    let change = "from now on all packets to throttled clients wait";
    assert!(records.iter().any(|record| record.because.contains(change)), "{records:?}");
}

#[test]
fn a_client_that_logs_in_again_is_delayed_before_it_is_discovered() {
    let mut agent = agent(CONFIG, four_clients());
    let mut plant = Plant::new(&[(1, "10.0.0.12", 2.0), (2, "10.0.0.13", 2.0)]);
    plant.run(&mut agent, 0, 200);
    assert_eq!(agent.packets.delays().len(), 2);
    plant.writers.iter_mut().for_each(|writer| writer.2 = 0.0);
    agent.follow(map(vec![link("10.0.0.11", 0, "vg", 1)]));
    plant.run(&mut agent, 200, 50);
    assert!(agent.packets.delays().is_empty());
    plant.writers.iter_mut().for_each(|writer| writer.2 = 2.0);
    plant.run(&mut agent, 250, 1);
    assert_eq!(agent.packets.delays().len(), 2, "{:?}", agent.records(None, 3));

    // Whoever takes its device over is the client; and nobody is remembered for ever.
    plant.writers.iter_mut().for_each(|writer| writer.2 = 0.0);
    agent.follow(map(vec![link("10.0.0.11", 0, "vg", 1), link("10.0.0.14", 1, "vg", 5)]));
    let clients = |agent: &Agent| -> Vec<String> {
        state(agent, 0).clients.iter().map(|client| client.address.clone()).collect()
    };
    plant.run(&mut agent, 251, 1);
    assert_eq!(clients(&agent), ["10.0.0.9", "10.0.0.11", "10.0.0.13", "10.0.0.14"]);
    plant.run(&mut agent, 252, 6_100);
    agent.follow(map(vec![link("10.0.0.11", 0, "vg", 1)]));
    assert_eq!(clients(&agent), ["10.0.0.11", "10.0.0.14"]);
}

#[test]
fn a_delay_that_makes_tcp_send_again_is_shortened() {
    let mut agent = agent(CONFIG, four_clients());
    let mut plant = Plant::new(&[(1, "10.0.0.12", 40.0), (2, "10.0.0.13", 40.0)]);
    let mut total = Segments::default();
    let longest = |agent: &Agent| agent.packets.delays().iter().map(|(_, delay)| delay.delay).max().unwrap_or_default();
    for tick in 0..400 {
        plant.run(&mut agent, tick, 1);
        if tick % 10 == 0 {
            total.sent += 10_000;
            total.retransmitted += if longest(&agent) > std::time::Duration::from_millis(10) { 100 } else { 0 };
            agent.packets.watch_retransmits(at(tick), total);
        }
    }
    assert!(longest(&agent) <= std::time::Duration::from_millis(10), "{:?}", agent.packets.delays());
    assert!(!agent.packets.delays().is_empty());
    assert!(agent.state().notes.iter().any(|note| note.kind == "retransmits"));
}

#[test]
fn a_device_from_which_nothing_comes_is_not_idle() {
    let mut agent = agent(CONFIG, four_clients());
    let mut plant = Plant::new(&[(1, "10.0.0.12", 2.0)]);
    plant.writers[0].2 = 4.0;
    plant.run(&mut agent, 0, 100);
    let delays = agent.packets.delays().clone();
    assert!(!delays.is_empty());
    let stuck = plant.step(&delays, 0.1).replace(" 0 0 0\n", " 9 0 0\n");
    tick(&mut agent, at(100), &stuck);
    tick(&mut agent, at(101), &stuck);
    assert_eq!(agent.packets.delays(), &delays);
    // For long it cannot be told from a lost signal.
    for n in 102..140 {
        tick(&mut agent, at(n), &stuck);
    }
    assert!(agent.packets.delays().is_empty());
    assert_eq!(agent.records(None, usize::MAX).first().map(|record| record.reason.as_str()), Some("signal_lost"));
}

#[test]
fn the_same_decision_is_one_record_and_records_are_bounded() {
    let mut agent = agent(CONFIG, four_clients());
    let mut plant = Plant::new(&[(1, "10.0.0.12", 0.0)]);
    plant.run(&mut agent, 0, 500);
    let newest = agent.records(None, usize::MAX)[0].clone();
    assert!(newest.times > 100, "{newest:?}");
    assert!((newest.until_s - 49.9).abs() < 1e-9);

    // Load that comes and goes makes the controller change its mind again and again.
    for n in 0..4_000 {
        plant.writers[0].2 = if n % 20 < 10 { 4.0 } else { 0.0 };
        plant.run(&mut agent, 500 + n, 1);
    }
    assert_eq!(agent.records(None, usize::MAX).len(), MAX_RECORDS);
    assert!(agent.records(None, usize::MAX).is_sorted_by(|newer, older| newer.until_s >= older.until_s));
}

#[test]
fn damaged_statistics_are_an_error_and_no_decision() {
    let mut agent = agent(CONFIG, four_clients());
    let errors = agent.tick(at(0), b"nonsense\n", None);
    assert!(errors.len() == 1 && errors[0].to_string().starts_with("/proc/diskstats:1: "), "{errors:?}");
    assert!(agent.packets.delays().is_empty());
}

#[test]
fn on_a_shared_device_the_targets_counters_tell_who_moves_how_much() {
    let counted = |client: &str| Link { counters: Some(client.into()), ..link(client, 1, "vg", 1) };
    let links = || vec![counted("10.0.0.11"), counted("10.0.0.12")];
    let mut agent = agent(CONFIG, links());
    // 10 MiB/s are written, nine tenths of it by one.
    let mut n = 0;
    let mut run = |agent: &mut Agent, ticks: u64| {
        for _ in 0..ticks {
            n += 1;
            let text = format!("252 1 dm-1 0 0 0 0 {n} 0 {} {n} 0 0 0\n", n * 2048);
            tick(agent, at(n), &text);
        }
        let client = |client: &ClientState| (client.lately.bytes_per_s / 1048576.0, client.load_is_estimated);
        state(agent, 0).clients.iter().map(client).collect::<Vec<_>>()
    };
    assert_eq!(run(&mut agent, 2), [(5.0, true), (5.0, true)], "equal parts while nothing is counted");
    let mut seconds = 0;
    let mut count = |agent: &mut Agent| {
        seconds += 1;
        agent.packets.count_initiators(|folder| {
            let written_mib = if folder == Path::new("10.0.0.11") { 9 * seconds } else { seconds };
            Some(Moved { read_mib: 1000 - seconds, written_mib })
        });
    };
    count(&mut agent);
    assert_eq!(run(&mut agent, 2), [(5.0, true), (5.0, true)], "one count is no difference yet");
    (0..3).for_each(|_| count(&mut agent));
    let near = |got: Vec<(f64, bool)>, wanted: [f64; 2]| {
        let close = got.iter().zip(wanted).all(|(got, wanted)| (got.0 - wanted).abs() < 1e-9 && !got.1);
        assert!(close, "{got:?} instead of {wanted:?}");
    };
    near(run(&mut agent, 2), [9.0, 1.0]);
    // What was counted is kept over a new map.
    agent.follow(map(links()));
    count(&mut agent);
    near(run(&mut agent, 2), [9.0, 1.0]);
    // One who is not counted could be the one who moves everything.
    agent.follow(map([links(), vec![link("10.0.0.13", 1, "vg", 1)]].concat()));
    count(&mut agent);
    assert!(run(&mut agent, 2).iter().all(|(load, estimated)| *estimated && (load - 10.0 / 3.0).abs() < 1e-9));
}

#[test]
fn another_target_is_taken_without_releasing_who_waits() {
    let mut agent = agent(CONFIG, four_clients());
    let mut plant = Plant::new(&[(1, "10.0.0.12", 2.0), (2, "10.0.0.13", 2.0)]);
    plant.run(&mut agent, 0, 200);
    let throttled = agent.packets.delays().clone();
    assert_eq!(throttled.len(), 2);
    let reload = |agent: &mut Agent, text: &str| {
        let at = (&Roots::under(Path::new("none")), Path::new("none"));
        assert!(agent.reload(&config(text), at, None).expect("valid").0.is_empty());
    };
    reload(&mut agent, &CONFIG.replace("15ms", "20ms"));
    plant.run(&mut agent, 200, 1);
    assert_eq!(agent.packets.delays().len(), 2, "what was learned stays");
    let mean = plant.run(&mut agent, 201, 300);
    assert!((15.0..22.0).contains(&mean), "{mean}");
    assert_eq!(pool(&agent, 0).latency_target.map(|target| target.target_ms), Some(20.0));
    reload(&mut agent, "");
    assert!(agent.packets.delays().is_empty() && agent.names().is_empty());
}

/// Checks precedence: delays for a latency target take no tenant below its reservation, in bytes or in requests; other
/// clients are delayed more instead.
#[test]
fn no_delay_takes_a_reservation() {
    let writers = [(1, "10.0.0.12", 2.0), (2, "10.0.0.13", 2.0)];
    for reservation in ["bytes_per_s = \"10MB\"", "iops = 152"] {
        let text = format!(
            "[tenants.reserved]\nmatch = [\"address:10.0.0.12\"]\nreservation = {{ {reservation} }}\n\
             [pools.vg]\nlatency.target = \"6ms\"\n"
        );
        let mut agent = agent(&text, four_clients());
        let mut plant = Plant::new(&writers);
        plant.run(&mut agent, 0, 100);
        let before = plant.totals.clone();
        plant.run(&mut agent, 100, 100);
        let written = |writer: usize| (plant.totals[writer][1] - before[writer][1]) * 512.0 / 10.0;
        assert!((9.9e6..13e6).contains(&written(1)), "{reservation}: {:.3e} bytes/s", written(1));
        assert!(written(2) < 4e6, "{reservation}: {:.3e} bytes/s", written(2));
        let state = state(&agent, 0);
        let because: Vec<&str> = state.clients.iter().map(|client| client.lately.because.as_str()).collect();
        assert!(because.iter().any(|because| because.contains("less than its reservation")), "{because:?}");
        let decision = agent.packets.records(None).last().expect("decisions");
        assert_eq!(decision.reason, "unachievable", "{}", decision.because);
    }
}
