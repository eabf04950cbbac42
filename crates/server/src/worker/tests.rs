//! A worker without its thread: the test is the kernel and the clock.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use evenkeel_policy::Config;

use super::*;
use crate::buffer::Budget;
use crate::registry::Registry;
use crate::shared::Bounds;
use connection::Payload;
use transport::{Peer, Transport};

/// Bytes of the buffer budget.
const MEMORY: u64 = 32 << 20;

/// A worker that serves a volume in memory to two connections at most.
fn worker() -> Worker {
    let config = Config::parse("[volumes.disk0]\nbackend = \"memory\"\nsize = \"1MiB\"\n", "test").unwrap();
    let mailboxes = vec![Arc::new(Mailbox::new().unwrap())];
    let bounds = Bounds {
        in_flight: 16,
        handshake_ns: Duration::from_secs(3600).as_nanos(),
        peer_timeout: Duration::from_secs(120),
        busy_poll: Duration::ZERO,
    };
    let shared = Arc::new(Shared::new(mailboxes, 2, Budget::new(MEMORY), bounds));
    let mut registry = Registry::new(0);
    let mut snapshot = registry.plan(&Snapshot::default(), &config).unwrap();
    registry.apply(&mut snapshot);
    shared.publish(snapshot);
    let mut worker = Worker::new(0, shared, Vec::new()).unwrap();
    worker.refresh();
    worker
}

/// A new connection, as if accepted: the client's end, and its name.
fn connect(worker: &mut Worker) -> (UnixStream, ConnKey) {
    let (client, server) = UnixStream::pair().unwrap();
    server.set_nonblocking(true).unwrap();
    client.set_nonblocking(true).unwrap();
    let key = worker.shared.slots.take(0).unwrap();
    worker.shared.stats[0].connections.fetch_add(1, Ordering::Relaxed);
    worker.open(Transport::unix(server.into()), Peer::default(), key);
    (client, key)
}

/// A connection that has chosen the only export.
fn attach(worker: &mut Worker) -> (UnixStream, ConnKey) {
    let (mut client, key) = connect(worker);
    // Fixed newstyle without zeroes, then EXPORT_NAME with the empty name.
    client.write_all(&3u32.to_be_bytes()).unwrap();
    client.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
    worker.on_event(key.to_event(), READ);
    worker.send_replies();
    assert!(at(worker, key).volume().is_some(), "the export is chosen");
    drain(&mut client);
    (client, key)
}

fn at(worker: &mut Worker, key: ConnKey) -> &mut Connection {
    worker.connections[key.slot as usize].as_mut().filter(|c| c.key == key).expect("the connection is open")
}

/// Reads all that is there; how much that was.
fn drain(client: &mut UnixStream) -> usize {
    let mut some = vec![0; 1 << 16];
    std::iter::from_fn(|| client.read(&mut some).ok().filter(|&n| n > 0)).sum()
}

#[test]
fn an_event_of_an_earlier_user_of_a_slot_is_ignored() {
    let mut worker = worker();
    let (_gone, first) = connect(&mut worker);
    let connection = worker.connections[first.slot as usize].take().unwrap();
    worker.close(connection);
    let (mut client, second) = connect(&mut worker);
    assert_eq!((second.slot, second.generation), (first.slot, first.generation + 1), "the slot is used again");

    // As reported in one batch with what closed the first one.
    worker.on_event(first.to_event(), GONE);
    worker.on_event(first.to_event(), READ | GONE);
    at(&mut worker, second);
    worker.send_replies();
    assert_eq!(drain(&mut client), 18, "the second one is greeted");

    worker.on_event(second.to_event(), GONE);
    assert!(worker.connections[second.slot as usize].is_none(), "its own events do reach it");
}

#[test]
fn a_reader_is_stuck_when_nothing_moves_however_slow_it_is() {
    // A reply that the socket takes in many parts, and that holds almost all of the buffer memory.
    const REPLY: usize = 30 << 20;
    let step = Duration::from_nanos(STUCK_AFTER.as_nanos() / 4 * 3);
    let mut worker = worker();
    let (mut client, key) = attach(&mut worker);
    let mut now = clock::now();
    assert!(worker.shared.budget.try_take(REPLY as u64));
    at(&mut worker, key).out.push(None, Payload::Owned(vec![0; REPLY]), REPLY as u64);

    // A little is taken every 15 s, for minutes: slow, not stuck.
    let mut taken = 0;
    for _ in 0..10 {
        now += step;
        send(&mut worker, key, now);
        now += step;
        worker.keep_house(now);
        at(&mut worker, key);
        taken += drain(&mut client);
    }
    assert!(taken > 0 && taken < REPLY, "{taken} bytes were taken, by and by");

    // Nothing is taken any more: after one step the connection is still good, after another it is not.
    send(&mut worker, key, now);
    now += step;
    send(&mut worker, key, now);
    worker.keep_house(now);
    at(&mut worker, key);
    now += step;
    send(&mut worker, key, now);
    worker.keep_house(now);
    assert!(worker.connections[key.slot as usize].is_none(), "stuck for {step:?} twice");
    assert_eq!(worker.shared.budget.used(), 0, "its memory is for others again");
}

/// The socket of a connection is writable.
fn send(worker: &mut Worker, key: ConnKey, now: Instant) {
    let mut connection = worker.connections[key.slot as usize].take().unwrap();
    assert!(worker.send(&mut connection, now));
    worker.keep(connection);
}
