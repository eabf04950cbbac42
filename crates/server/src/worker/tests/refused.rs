//! Tests of connections that are refused again and again: their cost, and the number of log lines.

use std::cell::Cell;
use std::os::unix::net::UnixListener;

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::*;
use crate::connections::Rest;
use crate::faults::{Fault, Injection};
use crate::refusals::Reason;
use crate::worker::accept::ACCEPT_BATCH;

thread_local! {
    static LINES: Cell<u32> = const { Cell::new(0) };
}

/// Counts the log lines of level INFO and above that the calling thread writes.
struct Log;

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {
        LINES.set(LINES.get() + 1);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// A listening worker without a free connection slot, and `clients` clients whose connections wait to be accepted.
fn crowded(clients: usize) -> (Worker, Vec<UnixStream>) {
    let dir = std::env::temp_dir().join(format!("evenkeel-refused-{}-{clients}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("sock");
    let listener = UnixListener::bind(&path).unwrap();
    listener.set_nonblocking(true).unwrap();
    let waiting = (0..clients).map(|_| UnixStream::connect(&path).unwrap()).collect();
    std::fs::remove_dir_all(dir).unwrap();
    let mut worker = worker();
    let places = [Listener::Unix(listener.into(), false)];
    for (n, listener) in places.iter().enumerate() {
        worker.sources.add(listener.as_fd(), LISTENER_EVENTS + n as u64, READ, Set::Own).unwrap();
    }
    worker.listeners = places.into();
    while worker.shared.slots.take().is_some() {}
    (worker, waiting)
}

#[test]
fn of_many_that_are_refused_for_one_reason_one_is_logged() {
    let (mut worker, waiting) = crowded(3 * ACCEPT_BATCH);
    let peer = Peer::default();
    let held: Vec<_> = std::iter::from_fn(|| worker.shared.handshakes.begin(&peer, clock::now()).ok()).collect();
    let mut logged = 0;
    LINES.set(0);
    tracing::subscriber::with_default(Log, || {
        (0..3).for_each(|_| worker.on_event(LISTENER_EVENTS, READ));
        for _ in 0..10_000 {
            logged += u32::from(worker.count_refusal(Reason::ConnectionsOfTenant).is_some());
        }
    });
    assert_eq!((LINES.get(), logged), (1, 1), "for {} refused connections", waiting.len());
    assert_eq!(worker.shared.refused.load(Ordering::Relaxed), 3 * ACCEPT_BATCH as u64 + 10_000, "all are counted");
    drop((waiting, held));
}

#[test]
fn refused_connections_wait_in_the_queue_when_they_have_had_their_time() {
    let (mut worker, mut waiting) = crowded(3);
    worker.on_event(LISTENER_EVENTS, READ);
    let refused = |worker: &Worker| worker.shared.refused.load(Ordering::Relaxed);
    assert_eq!((refused(&worker), worker.accept_at), (3, Instant::FAR_FUTURE), "a few are nothing to wait for");

    let (mut worker, more) = crowded(4);
    waiting.extend(more);
    // As much as a storm takes in seconds.
    for _ in 0..100_000 {
        worker.shared.handshakes.accepted(&Work::begin().after(u64::MAX));
    }
    worker.on_event(LISTENER_EVENTS, READ);
    assert_eq!(refused(&worker), 1, "the others wait");
    assert!(worker.accept_at < Instant::FAR_FUTURE);
    let mut events = Vec::with_capacity(sources::EVENTS);
    worker.poll(&mut events, Duration::ZERO);
    assert!(events.is_empty(), "and do not wake the worker");
    worker.resume_accepting();
    worker.poll(&mut events, Duration::ZERO);
    assert_eq!(events.len(), 1, "until the pause is over");
}

#[test]
fn clients_for_which_there_are_no_descriptors_wait_until_others_leave() {
    let (mut worker, waiting) = crowded(6);
    Arc::get_mut(&mut worker.shared).unwrap().limits_descriptors = true;
    worker.on_event(LISTENER_EVENTS, READ);
    assert!(worker.accept_at < Instant::FAR_FUTURE);
    for mut client in &waiting {
        client.set_nonblocking(true).unwrap();
        let waits = client.read(&mut [0; 1]).unwrap_err().kind() == std::io::ErrorKind::WouldBlock;
        assert!(waits, "no connection is closed");
    }
    let (_ticket, place) = worker.shared.handshakes.begin(&Peer::default(), clock::now()).ok().unwrap();
    worker.shared.slots.give(worker.shared.slots.key(0), 0, Rest { _place: place, left: None });
    worker.resume_accepting();
    worker.on_event(LISTENER_EVENTS, READ);
    assert_eq!(worker.shared.accepted.load(Ordering::Relaxed), 1, "one has left");
    let refused = worker.shared.refused.load(Ordering::Relaxed);
    assert_eq!((refused, worker.accept_at), (1, Instant::FAR_FUTURE), "only an event shows if more wait");
}

#[test]
fn a_listener_that_is_paused_alone_delays_no_other() {
    let (mut worker, mut waiting) = crowded(7);
    let dir = std::env::temp_dir().join(format!("evenkeel-listeners-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let other = UnixListener::bind(dir.join("sock")).unwrap();
    waiting.push(UnixStream::connect(dir.join("sock")).unwrap());
    std::fs::remove_dir_all(dir).unwrap();
    worker.sources.add(other.as_fd(), LISTENER_EVENTS + 1, READ, Set::Own).unwrap();
    worker.listeners.push(Listener::Unix(other.into(), false));
    let faults = Faults::table();
    let fault = Fault::Errno(libc::ETOOMANYREFS);
    faults.add(Injection { place: String::new(), call: Call::Accept, fault, skip: 0, times: 1 });
    Arc::get_mut(&mut worker.shared).unwrap().faults = faults;
    worker.on_event(LISTENER_EVENTS, READ);
    assert!(worker.accept_at < Instant::FAR_FUTURE);
    let mut events = Vec::with_capacity(sources::EVENTS);
    worker.poll(&mut events, Duration::ZERO);
    assert_eq!(events.len(), 1, "the other one is still watched");
    events.clear();
    worker.resume_accepting();
    worker.poll(&mut events, Duration::ZERO);
    assert_eq!(events.len(), 2);
}

#[test]
fn a_user_whose_descriptors_cannot_be_closed_is_refused_and_disconnected() {
    let mut worker = worker();
    let (mut client, key) = attach(&mut worker);
    let (_other, server) = UnixStream::pair().unwrap();
    let new = Transport::unix(server.into()).barred();
    LINES.set(0);
    tracing::subscriber::with_default(Log, || {
        assert!((0..10).all(|_| worker.take_place(&new, &Peer::default()).is_none()));
        assert_eq!(LINES.get(), 1);
        let mut connection = *worker.connections[key.slot as usize].take().unwrap();
        connection.transport = connection.transport.barred();
        worker.connections[key.slot as usize] = Some(Box::new(connection));
        client.write_all(&[0; 28]).unwrap();
        worker.on_event(key.to_event(), READ);
    });
    assert_eq!(LINES.get(), 2);
    assert_eq!(worker.shared.refusals.totals()["descriptors"], 10);
    assert!(worker.connections[key.slot as usize].as_ref().is_none_or(|open| open.key != key), "it is closed");
}

#[test]
fn clients_that_negotiate_for_too_long_delay_no_newcomer() {
    let (mut worker, waiting) = crowded(5);
    for _ in 0..100_000 {
        worker.shared.handshakes.charge(Client::from(&Peer::default()), &Work::begin().after(u64::MAX));
    }
    worker.on_event(LISTENER_EVENTS, READ);
    assert_eq!(worker.shared.refused.load(Ordering::Relaxed), waiting.len() as u64);
    assert_eq!(worker.accept_at, Instant::FAR_FUTURE);
}

#[test]
fn of_many_that_break_the_protocol_one_is_logged() {
    let mut worker = worker_with(1 << 20, 16);
    LINES.set(0);
    tracing::subscriber::with_default(Log, || {
        for _ in 0..100 {
            let (mut client, key) = attach(&mut worker);
            client.write_all(&[0xff; 28]).unwrap();
            worker.on_event(key.to_event(), READ);
            assert!(worker.connections[key.slot as usize].as_ref().is_none_or(|open| open.key != key), "it is closed");
        }
    });
    assert_eq!(LINES.get(), 1);
}

#[test]
fn a_tenant_alone_in_its_pool_leaves_connections_to_the_tenants_of_other_pools() {
    let volume = |name: &str| {
        format!("[pools.{name}]\n[volumes.{name}]\nbackend = \"memory\"\npool = \"{name}\"\nsize = 4096\n")
    };
    let text = format!("[tenants.each]\neach = true\nmatch = [\"volume:*\"]\n{}{}", volume("a"), volume("b"));
    let (mut worker, _registry) = worker_and_registry(&text, 16, 64);
    // Each connection is another client's.
    let mut ask = |uid, name: u8| {
        worker.waking.round_begins(1, 0);
        let (mut client, key) = connect_as(&mut worker, Peer { uid: Some(uid), ..Peer::default() });
        client.write_all(&3u32.to_be_bytes()).unwrap();
        client.write_all(&[&b"IHAVEOPT\0\0\0\x01\0\0\0\x01"[..], &[name]].concat()).unwrap();
        worker.waking.round_begins(1, 0);
        worker.on_event(key.to_event(), READ);
        worker.send_replies();
        let connection = worker.connections[key.slot as usize].as_ref().filter(|open| open.key == key);
        connection.is_some_and(|open| open.volume().is_some()).then_some(client)
    };
    let of_one: Vec<_> = (0..60).map_while(|uid| ask(uid, b'a')).collect();
    assert_eq!(of_one.len(), 30, "as many as it leaves, and a sixteenth is kept");
    assert!(ask(100, b'b').is_some(), "the other one has a place");
    drop(of_one);
}
