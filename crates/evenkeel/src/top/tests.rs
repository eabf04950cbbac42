//! Tests of `evenkeel top` without a terminal: answers and keys come in, and the drawn screens are checked.

use evenkeel_guard::loops::record::{
    self, At, CgroupState, ClientState as Initiator, GroupState, PacketsState, QueueDepthState, QueueState, ReadsState,
};
use evenkeel_policy::decision::DecisionRecord;
use evenkeel_policy::health::{Health, Level, Trouble};
use evenkeel_policy::state::{
    AdmissionState, ClientState, Clients, GuaranteeState, LatencyState, LatencyTargetState, LimitState, PoolState,
    QosState, RemoteState, State, TenantSlotsState, TenantState, ThrottledState, VolumeState,
};
use evenkeel_policy::verdict::{self, Counts, Lately};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;
use serde_json::{Value, json};

use super::canvas::{Drawn, Look};
use super::keys::{After, press};
use super::model::{HISTORY, Link, Model, Pane, Sort};
use super::row::{Column, Hold, Id, Row, Sample, Tab, Table};
use super::source::{Answer, More, Wanted};
use super::view::{draw, sections};
use super::{json as lines, once, text};

const PLAIN: Look = Look { colour: false, unicode: false, once: false };

/// Draws the model on a test terminal of `width` columns and `height` lines.
fn terminal(model: &Model, look: Look, width: u16, height: u16) -> (Terminal<TestBackend>, Drawn) {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    let mut drawn = Drawn::default();
    terminal.draw(|frame| drawn = draw(model, look, frame.area(), frame.buffer_mut())).expect("drawn");
    (terminal, drawn)
}

/// The model's screen as text, for a terminal of 80 columns and 24 lines.
fn screen(model: &Model) -> String {
    text(terminal(model, PLAIN, 80, 24).0.backend().buffer())
}

/// Asserts that all `parts` are on the screen; a part may extend over several lines.
#[track_caller]
fn shows(screen: &str, parts: &[&str]) {
    let sentences = screen.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in parts {
        assert!(screen.contains(part) || sentences.contains(part), "{part:?} is missing in\n{screen}");
    }
}

fn line_with<'a>(screen: &'a str, word: &str) -> &'a str {
    screen.lines().find(|line| line.contains(word)).unwrap_or_else(|| panic!("no {word} in\n{screen}"))
}

fn key(model: &mut Model, code: KeyCode) -> After {
    press(model, KeyEvent::new(code, KeyModifiers::NONE), 10)
}

fn keys(model: &mut Model, text: &str) {
    for character in text.chars() {
        assert_eq!(key(model, KeyCode::Char(character)), After::Go);
    }
}

fn latency(count: u64, mean_ms: f64) -> LatencyState {
    let sum_s = count as f64 * mean_ms / 1e3;
    LatencyState { count, sum_s, buckets: vec![(mean_ms / 1e3, count)], ..LatencyState::default() }
}

/// A tenant that has completed `requests` reads of 4 KiB, with these mean latencies in ms.
fn tenant(name: &str, requests: u64, queue_ms: f64, device_ms: f64) -> TenantState {
    TenantState {
        name: name.into(),
        reads_total: requests,
        read_bytes_total: requests * 4096,
        queue_latency: latency(requests, queue_ms),
        device_latency: latency(requests, device_ms),
        latency: latency(requests, queue_ms + device_ms),
        ..TenantState::default()
    }
}

/// A tenant's counts for one second: `requests` of 4 KiB, with these mean latencies in ms.
fn work(requests: u64, queue_ms: f64, device_ms: f64) -> Option<Counts> {
    let sum_s = |ms: f64| latency(requests, ms).sum_s;
    Some(Counts {
        requests,
        bytes: requests * 4096,
        latencies: requests,
        latency_s: sum_s(queue_ms + device_ms),
        queue_s: sum_s(queue_ms),
        device_s: sum_s(device_ms),
        ..Counts::default()
    })
}

/// The state of a server with three tenants, which for `seconds` have completed 1,000, 500 and 50 requests per second.
fn server(seconds: u64) -> State {
    let decision =
        DecisionRecord { because: "pool main read p99 30 ms > target 20 ms".into(), ..DecisionRecord::default() };
    let target = LatencyTargetState {
        target_ms: 20.0,
        percentile: "p99".into(),
        measured_ms: Some(30.0),
        decision: Some(decision.clone()),
        decisions: vec![DecisionRecord { because: "the first".into(), ..decision.clone() }, decision],
    };
    let hold =
        ThrottledState { slots: 4, slots_owner: "latency".into(), delay_ms: 12.5, because: "91 % of the load".into() };
    let guarantee = GuaranteeState {
        of: "write".into(),
        unit: "bytes".into(),
        guaranteed_per_s: 50_000_000,
        total_per_s: None,
        measured_per_s: Some(2e6),
        miss_rate: None,
        limit_per_s: 60_000_000,
        reason: "unachievable".into(),
        because: "the guarantee cannot be kept now".into(),
        binding: "throughput".into(),
        decisions: vec![DecisionRecord { because: "long ago".into(), times: 3, ..DecisionRecord::default() }],
    };
    let reserved = QosState { reservation_iops: Some(400), ..QosState::default() };
    let limit = LimitState { iops: Some(50), iops_owner: Some("operator".into()), ..LimitState::default() };
    let tenants = vec![
        TenantState { throttled: Some(hold), ..tenant("backup", seconds * 1000, 40.0, 10.0) },
        TenantState { qos: reserved, queued_requests: 7, ..tenant("database", seconds * 500, 0.25, 1.25) },
        TenantState { limit, guarantees: vec![guarantee], ..tenant("shop", seconds * 50, 2.0, 1.0) },
    ];
    let admission = AdmissionState {
        kind: "elastic".into(),
        budget_bytes: Some(256 << 10),
        reason: "halving it costs throughput".into(),
        ..AdmissionState::default()
    };
    let mut pool = PoolState {
        name: "main".into(),
        admission,
        queued_requests: 7,
        latency_target: Some(target),
        tenants,
        ..PoolState::default()
    };
    let window = [work(1000, 40.0, 10.0), work(500, 0.25, 1.25), work(50, 2.0, 1.0)];
    verdict::judge(&mut pool, &window, 1.0);
    let remote = RemoteState { uri: "nbd://far".into(), last_error: Some("refused".into()), ..RemoteState::default() };
    let volume = |name: &str, tenant: &str| VolumeState {
        name: name.into(),
        tenant: tenant.into(),
        pool: "main".into(),
        connections: 1,
        ..VolumeState::default()
    };
    State {
        version: "0.1.0".into(),
        uptime_s: seconds as f64,
        engine: "epoll".into(),
        connections: 2,
        pools: vec![pool],
        volumes: vec![
            VolumeState {
                remote: Some(RemoteState { connected: true, ..remote.clone() }),
                ..volume("disk", "database")
            },
            VolumeState { remote: Some(remote), ..volume("far", "backup") },
        ],
        ..State::default()
    }
}

/// The connections of [`server`] after `seconds`; their workers have counted 0.3 s earlier.
fn clients(seconds: u64) -> Clients {
    let client = |id: &str, address: &str, volume: &str, tenant: &str, per_s: u64| ClientState {
        id: id.into(),
        address: address.into(),
        volume: volume.into(),
        tenant: tenant.into(),
        counted_at_s: seconds as f64 - 0.3,
        requests_total: seconds * per_s,
        received_bytes_total: seconds * per_s * 100,
        sent_bytes_total: seconds * per_s * 4000,
        ..ClientState::default()
    };
    let clients =
        vec![client("0.0", "10.0.0.7:41", "disk", "database", 500), client("3.1", "unix uid 0", "far", "backup", 1000)];
    Clients { uptime_s: seconds as f64, clients }
}

fn answer(seconds: u64) -> Answer {
    Answer::Serve(Box::new(server(seconds)), clients(seconds))
}

/// A model that has taken two answers of [`server`], one second apart.
fn watching() -> Model {
    let mut model = Model::new("./control.sock".into());
    model.sort = Sort::by(Column::Iops);
    model.take(answer(100));
    model.take(answer(101));
    model
}

#[test]
fn tenants_show_rates_times_targets_and_who_throttles() {
    let mut model = watching();
    model.show(Tab::Tenants);
    let screen = screen(&model);
    assert!(screen.lines().all(|line| line.chars().count() <= 80));
    let rows: Vec<Vec<&str>> = screen.lines().skip(5).take(3).map(|line| line.split_whitespace().collect()).collect();
    let expected = [
        ">backup 1000 4.10 50.0 40.0 10.0 - latency 4",
        "database 500 2.05 1.50 0.250 1.25 met 400 IOPS -",
        "shop 50 0.20 3.00 2.00 1.00 UNACH. 50.0 MB/s operator 50 IOPS",
    ];
    for (row, expected) in rows.iter().zip(expected) {
        let expected: Vec<&str> = expected.split_whitespace().collect();
        assert_eq!(row[..expected.len()], expected, "{screen}");
    }
    // Of the pool's target, the reservation and the guarantee.
    shows(&screen, &["targets: 1 met, 1 MISSED, 1 UNACHIEVABLE, 0 idle", "throttled: 2", "[Tenants 3]", "live"]);
    shows(&screen, &["backup: [latency 4 slots, 12.5 ms delay] throttled for the pool's latency target: 91 %"]);
    shows(&screen, &["far: AWAY: nbd://far: refused", "evenkeel serve 0.1.0", "up 101 s"]);
    let wide = text(terminal(&model, PLAIN, 100, 24).0.backend().buffer());
    shows(&wide, &["0 idle - throttled: 2", "at ./control.sock"]);
}

#[test]
fn before_the_first_window_there_are_no_rates() {
    let mut model = Model::new(String::new());
    shows(&screen(&model), &["asking", "no answer yet"]);
    let mut state = server(0);
    state.pools[0].tenants.iter_mut().for_each(|tenant| tenant.lately = None);
    model.take(Answer::Serve(Box::new(state), clients(0)));
    model.show(Tab::Tenants);
    let shown = screen(&model);
    let words: Vec<&str> = line_with(&shown, "database").split_whitespace().collect();
    assert_eq!(words[..7], ["database", "-", "-", "-", "-", "-", "-"], "{words:?}");
}

#[test]
fn pools_volumes_and_clients_have_their_own_columns() {
    let mut model = watching();
    model.show(Tab::Pools);
    let shown = screen(&model);
    let words: Vec<&str> = line_with(&shown, ">main").split_whitespace().collect();
    // (1000 * 50 + 500 * 1.5 + 50 * 3) / 1550 = 32.8 ms, likewise 25.95 and 6.89.
    assert_eq!(words[1..], ["1550", "6.35", "32.8", "26.0", "6.89", "MISSED", "p99<20ms", "elastic", "256", "KiB"]);
    let why = ["pool main read p99 30 ms > target 20 ms; admission: halving it"];
    shows(&shown, &why);
    model.show(Tab::Volumes);
    let words: Vec<String> = line_with(&screen(&model), " disk").split_whitespace().map(Into::into).collect();
    assert_eq!(words, ["disk", "500", "2.05", "main", "database", "-"]);
    model.show(Tab::Clients);
    let shown = screen(&model);
    shows(line_with(&shown, "10.0.0.7:41"), &["500", "2.05", "disk", "database"]);
    shows(line_with(&shown, "unix uid 0 #3.1"), &["1000", "4.10", "far", "backup"]);
    // Nothing was counted in between: the rates stay.
    model.take(Answer::Serve(Box::new(server(102)), clients(101)));
    shows(line_with(&screen(&model), "10.0.0.7:41"), &["500", "2.05"]);
    let mut limited = server(103);
    let limit = LimitState { iops: Some(500), ..LimitState::default() };
    limited.volumes[0].throttled_by = verdict::at_limit_of_volume("disk", &limit);
    model.show(Tab::Volumes);
    model.take(Answer::Serve(Box::new(limited), clients(101)));
    shows(line_with(&screen(&model), " disk"), &["main", "database", "operator 500 IOPS"]);
}

#[test]
fn keys_sort_and_filter() {
    let mut model = watching();
    let names = |model: &Model| model.rows().iter().map(|row| row.name.clone()).collect::<Vec<_>>();
    key(&mut model, KeyCode::Tab);
    assert_eq!((model.tab(), names(&model)), (Tab::Tenants, vec!["backup".into(), "database".into(), "shop".into()]));
    keys(&mut model, "S");
    assert_eq!(names(&model), ["shop", "database", "backup"]);
    // MB/s, lat ms
    keys(&mut model, "ss");
    assert_eq!(names(&model), ["backup", "shop", "database"]);
    shows(&screen(&model), &["vlat ms"]);
    // queue, device, target: what is missed, then what is met.
    keys(&mut model, "sss");
    assert_eq!(names(&model), ["shop", "database", "backup"]);
    // "q" and "p" are letters while one writes.
    keys(&mut model, "/qpSH");
    assert!(model.editing && names(&model).is_empty());
    shows(&screen(&model), &["/qpSH_", "nothing matches; Esc shows all again"]);
    for _ in 0..4 {
        key(&mut model, KeyCode::Backspace);
    }
    keys(&mut model, "SH");
    key(&mut model, KeyCode::Enter);
    assert_eq!((model.editing, names(&model)), (false, vec!["shop".into()]));
    key(&mut model, KeyCode::Esc);
    assert_eq!(names(&model).len(), 3);
    // Verdicts are found, too, and who throttles.
    keys(&mut model, "/unach");
    assert_eq!(names(&model), ["shop"]);
    key(&mut model, KeyCode::Esc);
    keys(&mut model, "/latency");
    assert_eq!(names(&model), ["backup"]);
    assert_eq!(press(&mut model, KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL), 1), After::Quit);
    key(&mut model, KeyCode::Esc);
    assert_eq!(key(&mut model, KeyCode::Char('q')), After::Quit);
}

#[test]
fn the_selection_stays_with_its_row() {
    let mut model = watching();
    model.show(Tab::Tenants);
    keys(&mut model, "j");
    shows(&screen(&model), &[">database"]);
    keys(&mut model, "S");
    let shown = screen(&model);
    assert!(shown.contains(">database") && !shown.contains(">shop"), "{shown}");
    keys(&mut model, "G");
    shows(&screen(&model), &[">backup"]);
    keys(&mut model, "jjg");
    shows(&screen(&model), &[">shop"]);
}

#[test]
fn going_down_shows_what_belongs_to_a_row() {
    let mut model = watching();
    key(&mut model, KeyCode::Right);
    assert_eq!(model.tab(), Tab::Tenants);
    shows(&screen(&model), &["of pool main"]);
    keys(&mut model, "jl");
    assert_eq!(model.tab(), Tab::Clients);
    let shown = screen(&model);
    assert!(shown.contains("of tenant database") && shown.contains("10.0.0.7") && !shown.contains("unix"), "{shown}");
    // There is nothing below clients.
    keys(&mut model, "l");
    assert_eq!(model.tab(), Tab::Clients);
    keys(&mut model, "hh");
    assert_eq!((model.tab(), model.scope()), (Tab::Pools, None));
}

#[test]
fn details_have_history_percentiles_and_decisions() {
    let mut model = watching();
    model.show(Tab::Tenants);
    keys(&mut model, "G");
    key(&mut model, KeyCode::Enter);
    let about = Wanted { tab: Tab::Tenants, id: Id { of: "main".into(), name: "shop".into() } };
    assert_eq!(model.wanted(), Some(about.clone()));
    let mut then = server(101);
    then.pools[0].tenants[2].latency.buckets = vec![(0.002, 990), (0.5, 10)];
    let mut now = server(102);
    now.pools[0].tenants[2].latency.buckets = vec![(0.002, 990), (0.004, 99), (0.064, 1), (0.5, 10)];
    model.take(answer(102));
    model.take_more(about.clone(), Some(More::Serve(Box::new(then))));
    shows(&screen(&model), &["p50 2.00 ms, p99 2.00 ms, p99.9 500 ms, since the start"]);
    model.take_more(about.clone(), Some(More::Serve(Box::new(now))));
    let shown = screen(&model);
    shows(&shown, &["tenant shop of pool main", "p50 4.00 ms, p99 4.00 ms, p99.9 64.0 ms, just now"]);
    shows(&shown, &["50.0 MB/s write, UNACHIEVABLE", "by operator: 50 IOPS", "the guarantee cannot be kept"]);
    shows(line_with(&shown, "IOPS   "), &["##", "50, largest 50"]);
    // The last lines are one page down at most.
    keys(&mut model, "G");
    let (terminal, drawn) = terminal(&model, PLAIN, 80, 24);
    model.clamp_detail(drawn.last_line);
    assert_eq!(model.pane, Pane::Detail(drawn.last_line));
    shows(&text(terminal.backend().buffer()), &["decisions", "102 s ago, 3 times in 0.0 s: long ago"]);
    // What is about something else is not taken for it.
    let other = Wanted { id: Id { name: "other".into(), ..about.id.clone() }, ..about };
    model.take_more(other, None);
    keys(&mut model, "g");
    shows(&screen(&model), &["p99.9 64.0 ms, just now"]);
    key(&mut model, KeyCode::Esc);
    assert_eq!((model.pane, model.wanted()), (Pane::Table, None));
    // Of pools.
    model.show(Tab::Pools);
    key(&mut model, KeyCode::Enter);
    let shown = screen(&model);
    shows(&shown, &["elastic: 0 B in flight, budget 256 KiB", "p99 of reads below 20 ms, last 30.00 ms", "the first"]);
    assert!(shown.find("p99 30 ms > target").expect("newest") < shown.find("the first").expect("oldest"));
}

#[test]
fn what_vanishes_is_reported_and_what_comes_back_begins_anew() {
    let mut model = watching();
    model.show(Tab::Tenants);
    model.lose("no server answers on ./control.sock\nstart one".into());
    model.lose("no server answers on ./control.sock\nstart one".into());
    let shown = screen(&model);
    shows(&shown, &["LOST, try 2", "no server answers on ./control.sock; start one", "database"]);
    assert!(!shown.contains("live"));
    model.take(answer(5));
    assert_eq!(model.link, Link::Live);
    model.show(Tab::Clients);
    // Counters that went back are no rates.
    let shown = screen(&model);
    shows(&shown, &["live", "up 5 s"]);
    shows(line_with(&shown, "10.0.0.7:41"), &[" -      - disk"]);
    model.take(answer(6));
    shows(line_with(&screen(&model), "10.0.0.7:41"), &["500"]);
    let id = Id { of: "main".into(), name: "database".into() };
    assert_eq!(model.history(Tab::Tenants, &id).expect("known").of(super::row::Column::Iops).count(), 2);
}

#[test]
fn a_pause_holds_everything() {
    let mut model = watching();
    keys(&mut model, "p");
    model.take(answer(160));
    shows(&screen(&model), &["PAUSED", "up 101 s"]);
    keys(&mut model, "p");
    model.take(answer(161));
    shows(&screen(&model), &["live", "up 2 min"]);
}

#[test]
fn histories_are_bounded_and_forget_who_is_gone() {
    let mut model = watching();
    let id = |name: &str| Id { of: "main".into(), name: name.into() };
    for second in 102..300 {
        let mut state = server(second);
        state.pools[0].tenants.truncate(if second < 200 { 3 } else { 1 });
        model.take(Answer::Serve(Box::new(state), Clients::default()));
    }
    let history = model.history(Tab::Tenants, &id("backup")).expect("known");
    assert_eq!(history.of(super::row::Column::Iops).count(), HISTORY);
    assert!(model.history(Tab::Tenants, &id("shop")).is_none());
}

/// The state of an agent that throttles one of its clients, after `seconds`.
fn agent(seconds: u64) -> Answer {
    let client = |address: &str, delay_ms: f64| {
        let because = if delay_ms > 0.0 { "91 % of the noisy clients' load is its own" } else { "" };
        let throttled_by = verdict::delayed(delay_ms, because);
        Initiator {
            address: address.into(),
            names: vec!["iqn.2026:host".into()],
            throttle: "normal".into(),
            delay_ms,
            lately: Lately { bytes_per_s: 1e7, throttled_by, because: because.into(), ..Lately::default() },
            ..Initiator::default()
        }
    };
    let target = LatencyTargetState {
        target_ms: 20.0,
        percentile: "mean".into(),
        measured_ms: Some(15.0),
        ..LatencyTargetState::default()
    };
    let because = "reads take 15.00 ms, below 19.00 ms: the delay shrinks";
    let vg0 = record::PoolState {
        name: "vg0".into(),
        lately: Lately {
            bytes_per_s: 5e6,
            targets: vec![verdict::of_latency(&target, "")],
            throttled_by: verdict::delays(1, "client", 34.5, because),
            because: because.into(),
            ..Lately::default()
        },
        latency_target: Some(target),
        reads: Some(ReadsState { latency_ms: Some(15.0), ..ReadsState::default() }),
        at: At::Packets(PacketsState {
            clients: vec![client("10.0.0.1", 0.0), client("10.0.0.2", 34.5)],
            ..PacketsState::default()
        }),
        ..record::PoolState::default()
    };
    let read = GuaranteeState {
        of: "read".into(),
        unit: "bytes".into(),
        guaranteed_per_s: 50_000_000,
        measured_per_s: Some(41e6),
        limit_per_s: 42_000_000,
        reason: "compensating".into(),
        because: "12.0 % of its bytes missed the cache".into(),
        binding: "throughput".into(),
        ..GuaranteeState::default()
    };
    let group =
        GroupState { tenant: "db".into(), group: "db.service".into(), read: Some(read), ..GroupState::default() };
    let slots = TenantSlotsState {
        target_ms: Some(10.0),
        queueing_delay_ms: Some(2.0),
        device_latency_ms: Some(6.5),
        windows_total: seconds,
        violated_total: seconds / 2,
        because: "equal margins".into(),
        ..TenantSlotsState::default()
    };
    let queue = QueueState { disk: "sda".into(), value: Some(6), before: Some(32), ..QueueState::default() };
    let lately = Lately {
        iops: 1234.0,
        bytes_per_s: 5e6,
        latency_ms: Some(12.5),
        queue_latency_ms: slots.queueing_delay_ms,
        device_latency_ms: slots.device_latency_ms,
        targets: verdict::by_seconds(&slots, 1, u64::from(seconds.is_multiple_of(2)), Some(12.5)).into_iter().collect(),
        throttled_by: verdict::shortened(6, &slots.because),
        ..Lately::default()
    };
    let (name, queues) = ("lun".into(), vec![queue]);
    let volume = record::VolumeState { name, slots, queues, lately, ..record::VolumeState::default() };
    let cached = At::Cgroup(CgroupState { groups: vec![group], ..CgroupState::default() });
    let shared = At::QueueDepth(QueueDepthState { volumes: vec![volume], ..QueueDepthState::default() });
    let pool = |name: &str, at| record::PoolState { name: name.into(), at, ..record::PoolState::default() };
    Answer::Guard(Box::new(record::State {
        version: "0.1.0".into(),
        uptime_s: seconds as f64,
        interval_ms: 100.0,
        acting: true,
        pools: vec![vg0, pool("pool", cached), pool("san", shared)],
        ..record::State::default()
    }))
}

#[test]
fn agents_show_pools_clients_groups_and_queues() {
    let mut model = Model::new("http://127.0.0.1:9810".into());
    model.take(agent(100));
    model.take(agent(101));
    let shown = screen(&model);
    shows(&shown, &["evenkeel guard 0.1.0", "acting", "[Pools 1] Clients 2  Groups 1  Queues 1"]);
    shows(&shown, &["targets: 2 met, 1 MISSED, 0 idle", "throttled: 3", "reads take 15.00 ms, below 19.00 ms"]);
    shows(line_with(&shown, ">vg0"), &["5.00", "15.0", "met mean<20ms", "latency 1 client"]);
    key(&mut model, KeyCode::Right);
    let shown = screen(&model);
    shows(line_with(&shown, "10.0.0.2"), &["10.0", "vg0", "latency 34.5 ms"]);
    keys(&mut model, "G");
    shows(&screen(&model), &["throttled by 34.5 ms: 91 % of the noisy clients' load"]);
    keys(&mut model, "3");
    shows(line_with(&screen(&model), ">db.service read"), &["41.0", "MISSED 50.0 MB/s", "throughput 42.0 MB/s"]);
    keys(&mut model, "4");
    // The second that ended counts, not the figure of the moment.
    shows(
        line_with(&screen(&model), ">lun"),
        &["1234", "5.00", "12.5", "2.00", "6.50", "met mean<10ms", "slots queue of 6"],
    );
    // The next second was above the target.
    model.take(agent(102));
    shows(line_with(&screen(&model), ">lun"), &["MISSED mean<10ms"]);
    key(&mut model, KeyCode::Enter);
    shows(&screen(&model), &["queue lun of array san", "51 of 102 s", "sda 6 of 32"]);
}

#[test]
fn every_size_can_be_drawn() {
    let mut server = watching();
    let mut agent_model = Model::new("http://[2001:db8::1]:9810".into());
    agent_model.take(agent(1));
    for model in [&mut server, &mut agent_model] {
        model.sample.troubles = vec!["something is wrong ".repeat(9)];
        for (pane, tab) in [(Pane::Table, 1), (Pane::Table, 2), (Pane::Detail(3), 0), (Pane::Help, 0)] {
            let tab = model.sample.tables[tab].tab;
            model.show(tab);
            if let Pane::Detail(_) = pane {
                model.open();
            }
            model.pane = pane;
            for (width, height) in (1..=130).flat_map(|width| [1, 5, 9, 10, 11, 24, 60].map(|height| (width, height))) {
                let drawn = terminal(model, PLAIN, width, height).0;
                let first = text(drawn.backend().buffer());
                let fits = width >= 40 && height >= 10;
                assert_eq!(first.contains("evenkeel"), fits, "{width} x {height}:\n{first}");
            }
        }
    }
}

#[test]
fn large_screens_have_room_for_reasons() {
    let mut model = watching();
    model.show(Tab::Tenants);
    let shown = text(terminal(&model, PLAIN, 160, 50).0.backend().buffer());
    shows(line_with(&shown, ">backup"), &["latency 4 slots, 12.5 ms delay"]);
    assert_eq!(shown.lines().count(), 50);
}

#[test]
fn figures_are_never_cut() {
    let mut model = watching();
    model.show(Tab::Tenants);
    // `throttled by` has 17 columns here.
    for (by, how, expected) in [
        ("operator", "20.0 MB/s", "operat. 20.0 MB/s"),
        ("throughput", "5.01 MB/s, 12.5k IOPS", "throug. 5.01 MB/s"),
        ("latency", "4 slots, 12.5 ms delay", "latency 4 slots"),
    ] {
        model.sample.tables[1].rows[0].hold = Some(Hold { by: by.into(), how: how.into() });
        let shown = screen(&model);
        assert!(line_with(&shown, ">backup").ends_with(&format!(" {expected}")), "{expected} is missing in\n{shown}");
    }
}

#[test]
fn colours_are_of_the_sixteen_and_say_nothing_of_their_own() {
    let mut model = watching();
    model.show(Tab::Tenants);
    let colours = |look: Look| {
        let drawn = terminal(&model, look, 80, 24).0;
        let cells = drawn.backend().buffer().content().iter();
        let colours = cells.filter(|cell| cell.symbol() != " ").flat_map(|cell| [cell.fg, cell.bg]);
        (colours.filter(|colour| *colour != Color::Reset).collect::<Vec<_>>(), text(drawn.backend().buffer()))
    };
    let (with, shown) = colours(Look { colour: true, ..PLAIN });
    let (without, plain) = colours(PLAIN);
    assert!(without.is_empty() && shown == plain, "the same words");
    for colour in [Color::Red, Color::Green, Color::Yellow, Color::Cyan] {
        assert!(with.contains(&colour), "{colour:?}");
    }
    assert!(with.iter().all(|colour| !matches!(colour, Color::Rgb(..) | Color::Indexed(_))));
}

#[test]
fn names_do_not_steer_the_terminal() {
    let mut state = server(101);
    state.pools[0].tenants[0].name = "a\u{1b}[31mb\u{7}\nc".into();
    let mut model = Model::new(String::new());
    model.take(Answer::Serve(Box::new(state), clients(101)));
    model.show(Tab::Tenants);
    let look = Look { unicode: true, ..PLAIN };
    let drawn = terminal(&model, look, 80, 24).0;
    let cells = drawn.backend().buffer().content();
    assert!(cells.iter().all(|cell| !cell.symbol().contains(char::is_control)));
    shows(&text(drawn.backend().buffer()), &["a[31mbc"]);
}

#[test]
fn one_frame_for_a_pipe_has_all_rows() {
    let mut model = watching();
    let connected = |n: u64| TenantState { connections: 1, ..tenant(&format!("t{n}"), n, 1.0, 1.0) };
    let mut state = server(102);
    state.pools[0].tenants = (0..1000).map(connected).collect();
    model.take(Answer::Serve(Box::new(state), clients(102)));
    model.show(Tab::Tenants);
    let printed = once(&model);
    assert_eq!(printed.lines().filter(|line| line.trim_start().starts_with('t') && line.contains(" - ")).count(), 1000);
    assert!(!printed.contains('>') && !printed.contains("Tab view"), "no cursor, no keys");
    model.filter = "nothing like it".into();
    let printed = once(&model);
    assert!(printed.contains("nothing matches") && !printed.contains("Esc"), "{printed}");
}

#[test]
fn troubles_are_first_until_a_column_is_chosen() {
    let mut model = watching();
    model.sort = Sort::default();
    model.show(Tab::Tenants);
    let names = |model: &Model| model.rows().iter().map(|row| row.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&model), ["shop", "backup", "database"], "its guarantee is missed");
    keys(&mut model, "S");
    assert_eq!(names(&model), ["shop", "database", "backup"]);
    keys(&mut model, "s");
    assert_eq!(names(&model), ["backup", "database", "shop"]);
    model.sort = Sort::default();
    model.show(Tab::Volumes);
    assert_eq!(names(&model), ["far", "disk"], "its server is away");
}

#[test]
fn tenants_without_a_volume_in_a_pool_have_no_row_there() {
    let mut state = server(101);
    let idle = |name: &str| TenantState { name: name.into(), ..TenantState::default() };
    let tenants = vec![idle("database"), TenantState { connections: 1, ..idle("each") }, idle("elsewhere")];
    state.pools.push(PoolState { name: "main".into(), tenants, ..PoolState::default() });
    state.pools.remove(0);
    let mut model = Model::new(String::new());
    model.take(Answer::Serve(Box::new(state), clients(101)));
    model.show(Tab::Tenants);
    let names: Vec<&str> = model.rows().iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["database", "each"]);
}

#[test]
fn wide_terminals_show_p99_failed_requests_and_the_last_minute() {
    let mut model = watching();
    model.show(Tab::Tenants);
    for (second, p99_ms) in [(102, 8.0), (103, 4.0)] {
        let mut state = server(second);
        let lately = state.pools[0].tenants[0].lately.as_mut().expect("figures");
        (lately.p99_ms, lately.errors) = (Some(p99_ms), 12);
        model.take(Answer::Serve(Box::new(state), clients(second)));
    }
    let of = |width: u16| text(terminal(&model, PLAIN, width, 24).0.backend().buffer());
    let narrow = of(119);
    assert!(!narrow.contains("p99 ms") && !narrow.contains("failed"), "{narrow}");
    let wide = of(120);
    shows(&wide, &["p99 ms", "p99, last 60 s", "failed"]);
    // Three samples of twenty bars each: the newest three have 8 ms at most.
    shows(line_with(&wide, ">backup"), &["4.00", "#", "12"]);
    // Sixty bars: one each.
    shows(line_with(&of(200), ">backup"), &["#-"]);
    // Only what is shown is sorted by.
    keys(&mut model, "sss");
    assert_eq!(model.sort.by, Column::Queue);
    model.is_wide = true;
    model.sort = Sort::by(Column::Iops);
    keys(&mut model, "sss");
    assert_eq!(model.sort.by, Column::P99);
}

#[test]
fn several_servers_have_a_section_each_and_one_has_the_keys() {
    let mut models = [watching(), watching(), watching()];
    for (model, place) in models.iter_mut().zip(["storage1", "storage2", "storage3"]) {
        model.place = place.into();
        model.is_one_of_several = true;
    }
    let of = |focus: usize, height: u16| {
        let mut terminal = Terminal::new(TestBackend::new(100, height)).expect("a terminal");
        let draw = |frame: &mut ratatui::Frame<'_>| {
            let area = frame.area();
            sections(&models, focus, PLAIN, area, frame.buffer_mut());
        };
        terminal.draw(draw).expect("drawn");
        text(terminal.backend().buffer())
    };
    let all = of(1, 40);
    shows(&all, &["storage1", "storage2", "storage3"]);
    assert_eq!((all.matches("q quit").count(), all.matches(">main").count()), (1, 1), "{all}");
    let two = of(2, 25);
    assert!(!two.contains("storage1") && two.contains("storage2") && two.contains("storage3"), "{two}");
    let one = of(0, 11);
    assert!(one.contains("storage1") && !one.contains("storage2"), "{one}");
    assert_eq!(press(&mut models[0], KeyEvent::new(KeyCode::Char('o'), KeyModifiers::NONE), 1), After::Other);
}

#[test]
fn the_past_says_so_and_stays() {
    let row = Row { name: "shop".into(), of: "main".into(), iops: Some(70.0), ..Row::default() };
    let tables = vec![Table { tab: Tab::Tenants, rows: vec![row] }];
    let head = vec!["evenkeel at 2026-11-28 02:40:00".into()];
    let past = vec![Trouble::warning("no_record", "", "no record: it was off", "")];
    let sample = Sample { head, past, tables, ..Sample::default() };
    let model = Model::of_past("storage1".into(), sample);
    shows(&screen(&model), &["evenkeel at 2026-11-28 02:40:00", "PAST", "no record: it was off", ">shop", "70"]);
    let empty = Sample { tables: vec![Table { tab: Tab::Tenants, rows: Vec::new() }], ..Sample::default() };
    shows(&screen(&Model::of_past(String::new(), empty)), &["no requests at this time, or no record of it"]);
}

/// The JSON of `models` at 5 s of Unix time.
fn line_of<'m>(models: impl Iterator<Item = &'m Model> + Clone) -> Value {
    let line = lines::line(models, 5.0).expect("JSON");
    assert_eq!(line.find('\n'), Some(line.len() - 1), "one line: {line}");
    serde_json::from_str(&line).expect("JSON")
}

#[test]
fn a_line_of_json_has_the_figures_of_the_screen_and_the_troubles() {
    let mut server = Model::new("storage1".into());
    let full = Trouble::new(Level::Critical, "io_errors", "volume disk", "12 requests failed", "make room");
    let missed = Trouble::warning("target_missed", "pool main", "p99 < 20 ms is MISSED", "raise it");
    let state = State { health: Health::of(vec![missed, full]), ..self::server(101) };
    server.take(Answer::Serve(Box::new(state), clients(101)));
    server.filter = "backup".into();
    let mut lost = watching();
    lost.place = "storage2".into();
    lost.lose("refused".into());
    let mut agent_model = Model::new("host3".into());
    agent_model.take(agent(100));
    let line = line_of([&server, &lost, &agent_model].into_iter());
    assert_eq!((&line["at_s"], &line["servers"][0]["server"]), (&json!(5.0), &json!("storage1")));
    assert_eq!((&line["servers"][0]["link"], &line["servers"][0]["uptime_s"]), (&json!("live"), &json!(101.0)));
    assert_eq!((&line["servers"][1]["link"], &line["servers"][1]["error"]), (&json!("lost"), &json!("refused")));
    let rows = |part: &str, server: &str| -> Vec<Value> {
        let rows = line[part].as_array().expect(part).iter();
        rows.filter(|row| row["server"] == server).cloned().collect()
    };
    assert!(["pools", "tenants", "volumes"].into_iter().all(|part| rows(part, "storage2").is_empty()), "old figures");
    // Only what passes the filter.
    let backup = &rows("tenants", "storage1")[..];
    let [backup] = backup else { panic!("{backup:?}") };
    assert_eq!((&backup["kind"], &backup["pool"]), (&json!("tenant"), &json!("main")));
    assert_eq!((&backup["iops"], &backup["bytes_per_s"]), (&json!(1000.0), &json!(4_096_000.0)));
    for (key, expected) in [("latency_ms", 50.0), ("queue_latency_ms", 40.0), ("device_latency_ms", 10.0)] {
        assert!(backup[key].as_f64().is_some_and(|ms| (ms - expected).abs() < 1e-6), "{key}: {backup}");
    }
    assert_eq!(backup["throttled_by"], json!({ "by": "latency", "how": "4 slots, 12.5 ms delay" }));
    assert_eq!(rows("volumes", "storage1")[0]["trouble"], json!("AWAY: nbd://far: refused"));
    // The worst first, with cause and cure.
    let kinds: Vec<&Value> = line["health"].as_array().expect("troubles").iter().map(|one| &one["kind"]).collect();
    assert_eq!(kinds, [&json!("io_errors"), &json!("target_missed")]);
    assert_eq!((&line["health"][0]["level"], &line["health"][0]["cure"]), (&json!("critical"), &json!("make room")));
    // Of an agent.
    let vg0 = &rows("pools", "host3")[0];
    assert_eq!((&vg0["name"], &vg0["target"]["verdict"], &vg0["pool"]), (&json!("vg0"), &json!("met"), &Value::Null));
    let kinds: Vec<Value> = rows("tenants", "host3").iter().map(|row| row["kind"].clone()).collect();
    assert_eq!(kinds, [json!("client"), json!("client"), json!("group"), json!("queue")]);
}

#[test]
fn a_line_of_json_of_the_past_has_no_uptime_and_the_troubles_of_then() {
    let row = Row { name: "shop".into(), of: "main".into(), tenant: "shop".into(), iops: Some(70.0), ..Row::default() };
    let tables = vec![Table { tab: Tab::Tenants, rows: vec![row] }];
    let past = vec![Trouble::new(Level::Critical, "io_errors", "volume db", "12 requests failed", "")];
    let sample = Sample { past, tables, ..Sample::default() };
    let line = line_of(std::iter::once(&Model::of_past("storage1".into(), sample)));
    assert_eq!((&line["servers"][0]["link"], &line["servers"][0]["uptime_s"]), (&json!("past"), &Value::Null));
    assert_eq!((&line["tenants"][0]["iops"], &line["tenants"][0]["p99_ms"]), (&json!(70.0), &Value::Null));
    let [level, about, because] = ["level", "about", "because"].map(|key| &line["health"][0][key]);
    assert_eq!((level, about), (&json!("critical"), &json!("volume db")));
    assert_eq!(because, &json!("12 requests failed"));
}
