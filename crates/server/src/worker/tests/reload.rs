//! Tests of connections after a reload: the worker checks some in each round, and each before its next request.

use evenkeel_control::units::{Kind, Work};
use evenkeel_nbd::wire::Command;

use super::*;
use crate::worker::connection::Phase;
use crate::worker::request::Request;

const DISK: &str = "[volumes.disk0]\nbackend = \"memory\"\nsize = 4096\n";

/// Replaces the configuration of the worker's server by `text`.
fn reload(worker: &mut Worker, registry: &mut Registry, text: &str) {
    let (config, present) = (Config::parse(text, "test").unwrap(), worker.shared.snapshot());
    let mut snapshot = registry.plan(&present, &config, true).unwrap();
    registry.apply(&present, &mut snapshot);
    worker.shared.publish(snapshot);
    worker.refresh();
}

fn open(worker: &Worker) -> usize {
    worker.connections.iter().flatten().count()
}

#[test]
fn a_reload_judges_some_connections_in_a_round_and_each_before_its_next_request() {
    const MANY: usize = IN_A_ROUND + 40;
    let (mut worker, mut registry) = worker_and_registry(DISK, 16, 1024);
    let mut clients: Vec<_> = (0..MANY).map(|_| attach(&mut worker)).collect();
    reload(&mut worker, &mut registry, &DISK.replace("disk0", "another"));
    assert_eq!(worker.timeout(), Duration::ZERO, "there is something to do");
    worker.judge_some();
    let left = open(&worker);
    assert!((MANY - IN_A_ROUND..MANY).contains(&left), "{left} are left");

    // The last asks for something before its turn comes.
    let (client, key) = clients.last_mut().unwrap();
    let mut read = 0x2560_9513_u32.to_be_bytes().to_vec();
    read.extend([0; 22]);
    read.extend([0x10, 0]);
    client.write_all(&read).unwrap();
    // In another round than the reads of the negotiations.
    worker.readers.settle();
    worker.on_event(key.to_event(), READ);
    assert_eq!((open(&worker), worker.requests), (left - 1, 0));
    for _ in 0..MANY {
        worker.judge_some();
    }
    assert_eq!(open(&worker), 0);
}

#[test]
fn a_reload_that_ends_many_connections_has_one_line_of_them() {
    const MANY: usize = 12;
    let (mut worker, mut registry) = worker_and_registry(DISK, 16, 1024);
    let peer = || Peer { uid: Some(7), ..Peer::default() };
    let _clients: Vec<_> = (0..MANY).map(|_| attach_as(&mut worker, peer())).collect();
    reload(&mut worker, &mut registry, &format!("{DISK}deny = [\"uid:7\"]\n"));
    for _ in 0..=MANY {
        worker.judge_some();
    }
    assert_eq!(open(&worker), 0);
    // Counted as one kind: the first is in the log, and the number of the others is in the next line.
    let ended = worker.failures.recent(clock::now());
    let ended: Vec<_> = ended.iter().map(|kind| (kind.what, kind.count)).collect();
    assert_eq!(ended, [("access after a reload", MANY as u64)]);
}

#[test]
fn a_reload_judges_connections_for_no_longer_than_a_turn_in_a_round() {
    const MANY: usize = 20;
    let (mut worker, mut registry) = worker_and_registry(DISK, 16, 1024);
    let _clients: Vec<_> = (0..MANY).map(|_| attach(&mut worker)).collect();
    reload(&mut worker, &mut registry, &DISK.replace("disk0", "another"));
    let (turn, mut now) = (worker.turn().as_nanos(), clock::now());
    // Connections of which a turn judges four, and then one that takes longer than a turn.
    for (each, left) in [(turn / 4, MANY - 4), (turn / 4, MANY - 8), (2 * turn, MANY - 9)] {
        worker.judge_some_by(|| {
            now += Duration::from_nanos(each);
            now
        });
        assert_eq!(open(&worker), left, "{each} ns each");
        assert_eq!(worker.timeout(), Duration::ZERO, "the next round goes on at once");
    }
    // None is forgotten, and none is judged twice.
    worker.judge_some_by(|| now);
    assert_eq!((open(&worker), worker.unjudged), (0, worker.connections.len()));
}

#[test]
fn a_request_of_a_tenant_that_was_removed_finds_the_next_one_at_once() {
    let tenant = "[tenants.gold]\n";
    let with = format!("{tenant}{DISK}tenant = \"gold\"\n");
    let (mut worker, mut registry) = worker_and_registry(&with, 16, 2);
    let (mut client, key) = attach(&mut worker);
    reload(&mut worker, &mut registry, DISK);
    // As the next slice of a large request, which waits for no reading.
    let mut connection = worker.connections[key.slot as usize].take().unwrap();
    let Phase::Attached(attached) = &connection.phase else { panic!("it has a volume") };
    let request = Request { command: Command::Flush, ..Request::of(key, attached.volume.id) };
    assert_eq!(&*attached.tenant_name, "gold");
    worker.enqueue(&mut connection, Work::new(Kind::Flush, 0), request);
    worker.connections[key.slot as usize] = Some(connection);
    worker.pump();
    worker.send_replies();
    assert_eq!(drain(&mut client), 16, "answered");
    let Phase::Attached(attached) = &at(&mut worker, key).phase else { panic!("it has a volume") };
    assert_eq!(&*attached.tenant_name, "default");
}

#[test]
fn a_limit_of_a_volume_comes_and_goes_with_a_reload() {
    const MANY: usize = 8;
    let limited = format!("{DISK}limit = {{ iops = 1, burst = \"0s\" }}\n");
    let (mut worker, mut registry) = worker_and_registry(DISK, 16, 2);
    let [(mut client, _), (mut gone, key)] = [(); 2].map(|()| attach(&mut worker));
    let view = |worker: &Worker| {
        let snapshot = worker.shared.snapshot();
        snapshot.pools[0].lock().volume(clock::now(), snapshot.find("disk0").expect("it is served").id)
    };
    let flush = [&0x2560_9513_u32.to_be_bytes()[..], &[0, 0, 0, 3], &[0; 20]].concat();
    assert_eq!(view(&worker), None);
    reload(&mut worker, &mut registry, &limited);
    assert_eq!(view(&worker).map(|view| (view.limit.iops, view.binds)), Some((1, false)));
    client.write_all(&flush.repeat(MANY)).unwrap();
    (0..3).for_each(|_| round(&mut worker));
    let held = view(&worker).expect("it has a limit");
    assert!(held.binds && held.waiting >= 3, "one passes in a second: {held:?}");
    let answered = drain(&mut client);
    reload(&mut worker, &mut registry, DISK);
    (0..3).for_each(|_| round(&mut worker));
    assert_eq!(answered + drain(&mut client), MANY * 16, "all of them are answered");
    assert_eq!(view(&worker), None);

    // The requests of a client that is gone leave at once.
    reload(&mut worker, &mut registry, &limited);
    gone.write_all(&flush.repeat(MANY)).unwrap();
    (0..3).for_each(|_| round(&mut worker));
    assert!(view(&worker).is_some_and(|view| view.waiting >= 3));
    let connection = worker.connections[key.slot as usize].take().unwrap();
    worker.close(connection);
    worker.pump();
    assert_eq!(view(&worker).map(|view| view.waiting), Some(0));
}

#[test]
fn a_connection_that_waits_for_memory_waits_for_its_new_tenant_after_a_reload() {
    let of = |tenant: &str| format!("[tenants.{tenant}]\nmatch = [\"volume:disk0\"]\n{DISK}");
    let (mut worker, mut registry) = worker_and_registry(&of("old"), 16, 2);
    let (mut client, key) = attach(&mut worker);
    let budget = worker.shared.budget.clone();
    let [old, new] = ["old", "new"].map(|name| budget.account(&name.into()));
    let held = [&old, &new].map(|account| account.take(0, FLOOR, None).expect("its floor"));
    let rest = budget.account(&"other".into()).take(0, MEMORY - 2 * FLOOR, None).expect("all that is free");
    client.write_all(&writes(1)).unwrap();
    worker.on_event(key.to_event(), READ);
    assert_eq!((worker.hungry.len(), old.waits(), new.waits()), (1, true, false));
    reload(&mut worker, &mut registry, &of("new"));
    worker.judge_some();
    assert!(!old.waits(), "none of its connections is left");
    // A look at each of them, however many wait.
    worker.feed(clock::now() + Duration::from_millis(200));
    assert_eq!((worker.hungry.len(), old.waits(), new.waits()), (1, false, true));
    drop(rest);
    worker.feed(clock::now() + Duration::from_millis(400));
    worker.pump();
    worker.send_replies();
    assert_eq!((drain(&mut client), worker.hungry.len(), new.waits()), (16, 0, false));
    drop(held);
    assert_eq!(budget.used(), 0);
}

#[test]
fn requests_beyond_those_that_may_wait_for_a_limit_stay_unread_until_the_limit_lets_more_pass() {
    const READ_BYTES: u32 = 64 << 10;
    const MANY: u64 = 40;
    let text = |iops: u32| {
        let limit = format!("limit = {{ iops = {iops}, burst = \"0s\" }}");
        format!(
            "[pools.device.emulate]\n[volumes.disk0]\nbackend = \"emulate\"\npool = \"device\"\nsize = \"1MiB\"\n{limit}\n"
        )
    };
    let (mut worker, mut registry) = worker_and_registry(&text(1), 256, 2);
    let (mut client, key) = attach(&mut worker);
    let read = [&0x2560_9513_u32.to_be_bytes()[..], &[0; 20], &READ_BYTES.to_be_bytes()].concat();
    client.write_all(&read.repeat(MANY as usize)).unwrap();
    (0..3).for_each(|_| round(&mut worker));
    worker.feed(clock::now() + MEMORY_RETRY);
    let (requests, paused) = (at(&mut worker, key).requests, at(&mut worker, key).paused);
    // The first one may have left the device.
    assert!((8..=9).contains(&requests), "{requests} have memory: a 64th of the server's");
    assert_eq!((paused, worker.hungry.len()), (Paused::Memory(READ_BYTES.into()), 1));
    assert!(worker.shared.budget.used() <= MEMORY / 64);
    let account = at(&mut worker, key).account().map(Arc::clone).expect("it has a tenant");
    assert!(!account.waits(), "no memory of other connections would help it");

    reload(&mut worker, &mut registry, &text(1_000_000));
    // Later than the next pass, however fast the reload was.
    worker.feed(clock::now() + Duration::from_millis(200));
    assert_eq!((at(&mut worker, key).requests, worker.hungry.len()), (MANY, 0));
}

/// Two workers, of which only the first has seen that the volume was replaced, and a connection of the first to the new
/// volume.
fn after_a_change_seen_by_the_first() -> (Worker, Worker, UnixStream, ConnKey) {
    let (mut from, mut registry) = worker_and_registry(DISK, 16, 2);
    let mut to = Worker::new(1, Arc::clone(&from.shared), Vec::new()).unwrap();
    to.refresh();
    reload(&mut from, &mut registry, &DISK.replace("disk0", "another"));
    let (client, key) = attach(&mut from);
    (from, to, client, key)
}

#[test]
fn a_connection_to_a_new_volume_is_taken_over_by_a_worker_that_has_not_seen_the_change() {
    let (mut from, mut to, _client, key) = after_a_change_seen_by_the_first();
    let connection = from.connections[key.slot as usize].take().unwrap();
    to.adopt(connection);
    assert_eq!(open(&to), 1);
}

#[test]
fn a_worker_that_has_not_seen_a_new_volume_carries_out_requests_to_it() {
    let (mut from, mut to, _client, key) = after_a_change_seen_by_the_first();
    let Phase::Attached(attached) = &at(&mut from, key).phase else { panic!("it has a volume") };
    let (tenant, volume) = (attached.tenant, attached.volume.id);
    let request = Request { command: Command::Flush, ..Request::of(key, volume) };
    to.pools[0].incoming.push((tenant, Work::new(Kind::Flush, 0), Box::new(request)));
    to.activate(0);
    to.pump();
    let answers = to.outbox.iter().flatten();
    let answers: Vec<_> = answers.map(|mail| matches!(mail, Message::Completed(_, Ok(_)))).collect();
    assert_eq!(answers, [true]);
}
