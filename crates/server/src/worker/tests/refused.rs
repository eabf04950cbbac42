//! Tests of connections that are refused again and again: their cost, and the number of log lines.

use std::cell::Cell;
use std::os::unix::net::UnixListener;

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::*;
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
