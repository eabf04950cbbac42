//! Tests of a worker without its thread: each test calls the worker's functions in the order and at the times that it
//! chooses.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use evenkeel_control::units::Direction;
use evenkeel_policy::Config;

use super::*;
use crate::budget::{Budget, FLOOR};
use crate::faults::Faults;
use crate::handshakes::Client;
use crate::paced::Work;
use crate::registry::Registry;
use crate::shared::Bounds;
use crate::transport::Transport;
use connection::Payload;

/// Bytes of the server's buffer budget.
const MEMORY: u64 = 32 << 20;

mod cost;
mod ends;
mod gives_way;
mod many;
mod refused;
mod reload;
mod replies;
mod ring;
mod room;
mod several;
mod steps;
mod whole;

/// A worker that serves a volume in memory of 1 MiB to at most two connections.
pub(super) fn worker() -> Worker {
    worker_with(1 << 20, 16)
}

/// As [`worker`], with a volume of `bytes` bytes and at most `in_flight` requests of a connection in flight.
fn worker_with(bytes: u64, in_flight: usize) -> Worker {
    worker_of(&format!("[volumes.disk0]\nbackend = \"memory\"\nsize = {bytes}\n"), in_flight)
}

/// As [`worker_with`], with the volumes of the configuration text `volumes`.
fn worker_of(volumes: &str, in_flight: usize) -> Worker {
    worker_and_registry(volumes, in_flight, 2).0
}

/// As [`worker_of`], with at most `connections` connections; also returns the registry, which applies other configurations.
fn worker_and_registry(volumes: &str, in_flight: usize, connections: u32) -> (Worker, Registry) {
    let config = Config::parse(volumes, "test").unwrap();
    let bounds = Bounds {
        in_flight,
        handshake_ns: Duration::from_secs(3600).as_nanos(),
        handshakes: 16,
        handshakes_of_client: 16,
        peer_timeout: Duration::from_secs(120),
        busy_poll: Duration::ZERO,
    };
    let shared = Arc::new(Shared::new(
        1,
        connections,
        Budget::new(MEMORY),
        bounds,
        config.server.placement.control(),
        Faults::NONE,
    ));
    let mut registry = Registry::new(0, Vec::new(), Faults::NONE);
    let mut snapshot = registry.plan(&Snapshot::default(), &config, true).unwrap();
    registry.apply(&Snapshot::default(), &mut snapshot);
    shared.publish(snapshot);
    let mut worker = Worker::new(0, shared, Vec::new()).unwrap();
    worker.refresh();
    (worker, registry)
}

/// Gives the worker a new connection, as if accepted; returns the client's end and the connection's key.
fn connect(worker: &mut Worker) -> (UnixStream, ConnKey) {
    connect_as(worker, Peer::default())
}

fn connect_as(worker: &mut Worker, peer: Peer) -> (UnixStream, ConnKey) {
    let (client, server) = UnixStream::pair().unwrap();
    server.set_nonblocking(true).unwrap();
    client.set_nonblocking(true).unwrap();
    let key = worker.shared.slots.take().unwrap();
    worker.shared.slots.set_home(key, 0);
    worker.shared.placement().join(key.slot);
    worker.shared.stats[0].connections.fetch_add(1, Ordering::Relaxed);
    let (ticket, place) = worker.shared.handshakes.begin(&peer, clock::now()).ok().unwrap();
    // In a round of its own, so that it waits for no turn.
    worker.waking.round_begins(0, 1);
    let work = worker.waking.begin();
    worker.open(Transport::unix(server.into()), peer, key, ticket, place, &work);
    (client, key)
}

/// As [`connect`]; the client has also chosen the only export.
fn attach(worker: &mut Worker) -> (UnixStream, ConnKey) {
    attach_as(worker, Peer::default())
}

fn attach_as(worker: &mut Worker, peer: Peer) -> (UnixStream, ConnKey) {
    let (mut client, key) = connect_as(worker, peer);
    // Fixed newstyle without zeroes, then EXPORT_NAME with the empty name.
    client.write_all(&3u32.to_be_bytes()).unwrap();
    client.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
    worker.waking.round_begins(1, 0);
    worker.on_event(key.to_event(), READ);
    worker.send_replies();
    assert!(at(worker, key).volume().is_some(), "the export is chosen");
    drain(&mut client);
    (client, key)
}

fn at(worker: &mut Worker, key: ConnKey) -> &mut Connection {
    worker.connections[key.slot as usize].as_mut().filter(|c| c.key == key).expect("the connection is open")
}

/// Reads all bytes that the client has received so far; returns their number.
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
    assert_eq!((second.slot, second.generation), (first.slot, first.generation + 2), "the slot is used again");

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
fn a_reader_may_be_slow_but_not_next_to_still() {
    // A reply that the socket takes in many parts, and that holds almost all of the buffer memory.
    const REPLY: usize = 30 << 20;
    let step = Duration::from_nanos(super::house::STUCK_AFTER.as_nanos() / 2);
    let mut worker = worker();
    let (mut client, key) = attach(&mut worker);
    let mut now = clock::now();
    let account = Arc::clone(at(&mut worker, key).account().unwrap());
    let charge = account.take(0, REPLY as u64, None).unwrap();
    at(&mut worker, key).out.push(None, Payload::Owned(vec![0; REPLY]), charge);
    let waiting = account.wait(now);

    // 1 MiB is taken every 10 s, for minutes: slow, not stuck.
    let mut taken = 0;
    for round in 1..=15 {
        while taken < round << 20 {
            send(&mut worker, key);
            taken += drain(&mut client);
        }
        now += step;
        worker.keep_house(now);
        at(&mut worker, key);
    }
    assert!(taken < REPLY);

    // 4 KiB every 10 s: after a window of that it is over.
    let mut rounds = 0;
    while worker.connections[key.slot as usize].is_some() {
        send(&mut worker, key);
        client.read_exact(&mut [0; 4096]).unwrap();
        now += step;
        worker.keep_house(now);
        rounds += 1;
    }
    assert!((2..=4).contains(&rounds), "closed after {rounds} rounds");
    drop(waiting);
    assert_eq!(worker.shared.budget.used(), 0, "its memory is for others again");
}

#[test]
fn a_client_that_still_negotiates_learns_of_the_stop() {
    let mut worker = worker();
    let (mut client, _) = connect(&mut worker);
    let (_silent, _) = connect(&mut worker);
    client.write_all(&3u32.to_be_bytes()).unwrap();
    // LIST, without data.
    client.write_all(b"IHAVEOPT\0\0\0\x03\0\0\0\0").unwrap();
    worker.drain();
    worker.pump();
    worker.send_replies();
    let mut all = Vec::new();
    client.set_nonblocking(false).unwrap();
    client.read_to_end(&mut all).unwrap();
    let error = &all[18..][..20];
    assert_eq!(error[12..16], (1u32 << 31 | 7).to_be_bytes(), "ERR_SHUTDOWN in {error:?}");
    assert!(worker.is_idle(), "no client is waited for");
}

#[test]
fn a_worker_that_stops_reports_what_has_completed_to_the_pool_first() {
    // Requests of other workers' connections wait for the place in the admission budget that this one's requests take.
    let mut worker = worker();
    worker.pump();
    worker.drain();
    worker.activate(0);
    assert!(!worker.has_drained(), "a pool is still to be visited");
    worker.pump();
    assert!(worker.has_drained());
}

#[test]
fn a_client_that_is_lost_while_it_is_answered_leaves_nothing_behind() {
    let request = |command: u16, offset: u64, length: u32| {
        let mut header = 0x2560_9513_u32.to_be_bytes().to_vec();
        header.extend([0, 0]);
        header.extend(command.to_be_bytes());
        header.extend([0; 8]);
        header.extend(offset.to_be_bytes());
        header.extend(length.to_be_bytes());
        header
    };
    let mut worker = worker();
    let (mut client, key) = attach(&mut worker);
    let mut connection = worker.connections[key.slot as usize].take().unwrap();
    connection.out.push(None, Payload::Owned(vec![0; 16]), crate::budget::Charge::default());
    worker.mark_dirty(&mut connection);
    worker.connections[key.slot as usize] = Some(connection);
    // A trim beyond the end, a flush and a disconnect, which no round has read when the answer is sent.
    client.write_all(&[request(4, 1 << 40, 4096), request(3, 0, 0), request(2, 0, 0)].concat()).unwrap();
    drop(client);
    worker.send_replies();
    assert_eq!(at(&mut worker, key).in_flight, 1, "the flush is carried out");
    worker.pump();
    worker.send_replies();
    assert_eq!(worker.count, 0);
}

#[test]
fn the_next_step_of_an_operation_is_not_left_for_the_next_event() {
    let mut worker = worker();
    worker.pump();
    worker.judge_some();
    assert!(worker.timeout() > Duration::ZERO, "nothing is to be done");
    worker.unfinished.push(0);
    assert_eq!(worker.timeout(), Duration::ZERO);
}

/// Sends a connection's replies, as if its socket had become writable.
fn send(worker: &mut Worker, key: ConnKey) {
    let mut connection = worker.connections[key.slot as usize].take().unwrap();
    assert!(worker.send(&mut connection));
    worker.keep(connection);
}

/// Runs one round of the worker's loop with the events that are pending.
fn round(worker: &mut Worker) {
    let mut events = Vec::with_capacity(super::sources::EVENTS);
    let others = worker.poll(&mut events, Duration::ZERO);
    worker.waking.round_begins(events.len() - others, others);
    events.drain(..).for_each(|event| worker.on_event(event.u64, event.events));
    worker.on_timers();
    worker.read_in_turn();
    worker.pump();
    worker.send_replies();
    worker.post_mail();
}

#[test]
fn a_connection_that_moves_is_served_in_the_next_round() {
    let mut from = worker();
    let mut to = Worker::new(1, Arc::clone(&from.shared), Vec::new()).unwrap();
    to.refresh();
    to.mailbox.open();
    let (mut client, key) = attach(&mut from);
    // A read of the first 4 KiB, which no worker has received when the connection moves.
    let mut read = 0x2560_9513_u32.to_be_bytes().to_vec();
    read.extend([0; 22]);
    read.extend([0x10, 0]);
    client.write_all(&read).unwrap();
    from.hand_over(key, 1);
    assert!(from.connections[key.slot as usize].is_none());
    // The message wakes the new worker, which has the connection then. No timer passes, and no other message comes.
    round(&mut to);
    round(&mut to);
    assert_eq!(drain(&mut client), 16 + 4096);
}

#[test]
fn a_connection_that_ends_in_the_middle_of_a_divided_write_closes_behind_its_slices() {
    for drains in [true, false] {
        // Slices of the whole, and halves of one that come: more slices are to follow, one has begun, or it is the last.
        for (slices, halves) in [(4, 2), (4, 3), (2, 3)] {
            let mut worker = worker_with(4 << 20, 16);
            let (mut client, key) = attach(&mut worker);
            let slice = worker.snapshot.pools[0].slice_bytes(Direction::Write) as usize;
            let mut write = 0x2560_9513_u32.to_be_bytes().to_vec();
            write.extend([0, 0, 0, 1]);
            write.extend([0; 16]);
            write.extend((slices * slice as u32).to_be_bytes());
            write.resize(write.len() + halves * slice / 2, 7);
            let mut given = 0;
            while given < write.len() {
                given += client.write(&write[given..]).unwrap_or(0);
                worker.on_event(key.to_event(), READ);
                worker.read_in_turn();
            }
            assert_eq!(at(&mut worker, key).in_flight, 1, "one slice is complete");
            if drains {
                worker.drain();
            } else {
                client.shutdown(std::net::Shutdown::Write).unwrap();
                worker.on_event(key.to_event(), READ);
                worker.read_in_turn();
            }
            assert_eq!(worker.count, 1, "the slice is under way");
            worker.pump();
            worker.send_replies();
            assert_eq!(worker.count, 0, "drains: {drains}, {halves} halves of {slices} slices");
            assert_eq!(worker.shared.budget.used(), 0, "its memory is for others again");
        }
    }
}

/// The bytes of `count` write requests of 4 KiB each.
fn writes(count: usize) -> Vec<u8> {
    let mut write = 0x2560_9513_u32.to_be_bytes().to_vec();
    write.extend([0, 0, 0, 1]);
    write.extend([0; 16]);
    write.extend(4096u32.to_be_bytes());
    write.resize(28 + 4096, 7);
    write.repeat(count)
}

#[test]
fn memory_that_becomes_free_wakes_only_those_that_can_have_it() {
    const CLIENTS: u32 = 20;
    const WRITES: usize = 8;
    let volumes = "[volumes.disk0]\nbackend = \"memory\"\nsize = 4096\n";
    let (mut worker, _registry) = worker_and_registry(volumes, 16, 64);
    let mut clients: Vec<_> =
        (0..CLIENTS).map(|n| attach_as(&mut worker, Peer { uid: Some(n), ..Peer::default() })).collect();
    let floor = at(&mut worker, clients[0].1).account().unwrap().take(0, FLOOR, None);
    let mut rest = worker.shared.budget.account(&"other".into()).take(0, MEMORY - FLOOR, None).unwrap();
    for (client, key) in &mut clients {
        client.write_all(&writes(WRITES)).unwrap();
        // In a round of its own.
        worker.readers.settle();
        worker.on_event(key.to_event(), READ);
        let leftover = &mut at(&mut worker, *key).leftover;
        // Which a copy would lose.
        leftover.reserve(1);
        assert!(leftover.len() == writes(WRITES).len() && leftover.capacity() > leftover.len());
    }
    assert_eq!(worker.hungry.len(), CLIENTS as usize);

    // Enough for one write, of which the tenant holds so much that it may have no other.
    drop(rest.split(FLOOR + (8 << 10)));
    worker.on_timers();
    let copied = |(_, key): &&(UnixStream, ConnKey)| {
        let leftover = &worker.connections[key.slot as usize].as_ref().unwrap().leftover;
        leftover.capacity() == leftover.len()
    };
    assert_eq!(clients.iter().filter(copied).count(), 1);
    assert_eq!((worker.hungry.unfed, worker.hungry.len()), (0, CLIENTS as usize));

    // All have theirs, one after the other.
    (0..CLIENTS).for_each(|_| round(&mut worker));
    let served: Vec<_> = clients.iter().map(|(_, key)| at(&mut worker, *key).requests).collect();
    assert!(served.iter().all(|served| *served == 1), "{served:?}");
    (0..CLIENTS as usize * WRITES).for_each(|_| round(&mut worker));
    assert!(clients.iter_mut().all(|(client, _)| drain(client) == WRITES * 16) && worker.hungry.is_empty());
    drop((floor, rest));
    assert_eq!(worker.shared.budget.used(), 0);
}

#[test]
fn of_many_connections_that_wait_for_memory_some_are_looked_at_in_each_round() {
    let mut worker = worker();
    let (mut client, key) = attach(&mut worker);
    let account = Arc::clone(at(&mut worker, key).account().unwrap());
    let all = account.take(0, MEMORY, None);
    client.write_all(&writes(1)).unwrap();
    worker.on_event(key.to_event(), READ);
    worker.judge_some();
    round(&mut worker);
    // The only one stands for many.
    const MANY: usize = 2 * IN_A_ROUND + 1;
    worker.hungry.wishes = vec![worker.hungry.wishes[0].clone(); MANY].into();
    let mut now = clock::now() + Duration::from_millis(200);
    for unfed in [IN_A_ROUND + 1, 1, 0] {
        worker.feed(now);
        assert_eq!((worker.hungry.unfed, worker.hungry.len()), (unfed, MANY));
        worker.keep_house(clock::now());
        assert_eq!(
            worker.timeout() == Duration::ZERO,
            unfed > 0,
            "the others have their turn before the worker sleeps"
        );
    }
    // A new pass has begun if it has passed by some.
    let passes = |worker: &mut Worker, now| {
        worker.hungry.passed = 0;
        worker.feed(now);
        (worker.hungry.passed, worker.hungry.unfed)
    };
    assert_eq!(passes(&mut worker, now), (0, 0), "no memory was given back");
    drop(account.other(&"another".into()).take(0, FLOOR, None).unwrap());
    assert_eq!(passes(&mut worker, now), (MANY, 0), "none is looked at whose account has nothing for any");
    assert_eq!(passes(&mut worker, now), (0, 0));
    now += MEMORY_RETRY;
    assert_eq!(passes(&mut worker, now), (MANY, 0), "what ends a wait without notice");
    now += Duration::from_millis(100);
    assert_eq!(passes(&mut worker, now), (IN_A_ROUND, IN_A_ROUND + 1), "each is looked at now and then");
    (0..2).for_each(|_| worker.feed(now));
    assert_eq!((worker.hungry.unfed, worker.hungry.len()), (0, MANY));
    drop(all);
    (0..64).for_each(|_| round(&mut worker));
    assert_eq!((drain(&mut client), worker.hungry.len()), (16, 0));
}

#[test]
fn behind_many_whose_tenant_gets_nothing_the_connection_of_another_is_reached_at_once() {
    const MANY: usize = 2 * IN_A_ROUND;
    let text = "[tenants.busy]\nmatch = [\"uid:1\"]\n[tenants.light]\nmatch = [\"uid:2\"]\n\
                [volumes.disk0]\nbackend = \"memory\"\nsize = 4096\n";
    let (mut worker, _registry) = worker_and_registry(text, 16, 64);
    let peer = |uid| Peer { uid: Some(uid), ..Peer::default() };
    let [mut busy, mut light] = [1, 2].map(|uid| attach_as(&mut worker, peer(uid)));
    let [of_busy, of_light] =
        [busy.1, light.1].map(|key| Arc::clone(at(&mut worker, key).account().expect("it has a tenant")));
    let all = of_busy.take(0, MEMORY, None).unwrap();
    let floor = of_light.take(0, FLOOR, None).unwrap();
    for (client, key) in [&mut busy, &mut light] {
        client.write_all(&writes(1)).unwrap();
        worker.on_event(key.to_event(), READ);
    }
    let wishes = &mut worker.hungry.wishes;
    assert_eq!(wishes.len(), 2);
    // The first stands for many.
    (0..MANY).for_each(|_| wishes.push_front(wishes[0].clone()));
    let now = clock::now() + Duration::from_millis(200);
    (0..3).for_each(|_| worker.feed(now));
    assert_eq!((worker.hungry.unfed, worker.hungry.len()), (0, MANY + 2), "each was looked at, for nothing");
    drop(floor);
    worker.feed(now);
    assert_eq!((worker.hungry.unfed, worker.hungry.len()), (0, MANY + 1));
    assert_eq!([busy.1, light.1].map(|key| at(&mut worker, key).requests), [0, 1]);
    drop(all);
}

#[test]
fn waiting_for_what_gone_clients_left_takes_no_memory_from_others() {
    let mut worker = worker();
    let (mut client, key) = attach(&mut worker);
    let account = Arc::clone(at(&mut worker, key).account().unwrap());
    let other = worker.shared.budget.account(&"other".into());
    // More than its share, with memory left for all.
    let hoard = other.take(0, MEMORY / 2 + FLOOR, None);
    let floor = account.take(0, FLOOR, None);
    let volume = at(&mut worker, key).volume().unwrap().id;
    // It ends something for longer than the test takes.
    let gone = account.join().leave_behind(clock::now() + Duration::from_secs(3600), volume, MEMORY / 2);
    client.write_all(&writes(1)).unwrap();
    worker.on_event(key.to_event(), READ);
    for _ in 0..3 {
        assert_eq!(at(&mut worker, key).paused, Paused::Memory(4096));
        assert!(!account.waits() && !other.is_in_the_way(), "none has to give way");
        worker.on_timers();
    }

    // Now it does wait for memory, and for what is left behind once more.
    let rest = worker.shared.budget.account(&"third".into()).take(0, MEMORY / 2 - 2 * FLOOR, None);
    let waits = |worker: &mut Worker| {
        worker.on_timers();
        account.waits() && other.is_in_the_way()
    };
    assert!(!waits(&mut worker));
    drop(gone);
    assert!(waits(&mut worker) && waits(&mut worker));
    let gone = account.join().leave_behind(clock::now() + Duration::from_secs(3600), volume, MEMORY / 2);
    assert!(!waits(&mut worker));
    drop((gone, rest, hoard, floor));
    (0..2).for_each(|_| round(&mut worker));
    assert_eq!((drain(&mut client), worker.hungry.len(), account.waits()), (16, 0, false));
}

#[test]
fn lists_that_are_not_read_are_not_kept() {
    use std::fmt::Write as _;
    let mut volumes = String::new();
    for n in 0..3_000 {
        write!(volumes, "[volumes.volume-{n:05}]\nbackend = \"memory\"\nsize = 4096\n").unwrap();
    }
    let mut worker = worker_of(&volumes, 16);
    let (mut client, key) = connect(&mut worker);
    client.write_all(&3u32.to_be_bytes()).unwrap();
    // Some 130 KB each: more than the socket takes.
    const LISTS: usize = 32;
    client.write_all(&b"IHAVEOPT\0\0\0\x03\0\0\0\0".repeat(LISTS)).unwrap();
    let (mut read, mut most, mut longest) = (0, 0, 0);
    for rounds in 0..5_000 {
        round(&mut worker);
        let out = &at(&mut worker, key).out;
        (most, longest) = (most.max(out.len()), longest.max(out.bytes()));
        // It reads nothing for long.
        if rounds > 1_000 {
            read += drain(&mut client);
        }
    }
    // The last piece of one and the first of the next.
    assert_eq!(most, 2, "pieces are kept");
    assert!((1..80 << 10).contains(&longest), "{longest} bytes are kept");
    let exports = LISTS * 3_000 * (20 + 4 + "volume-00000".len());
    assert_eq!(read, 18 + exports + LISTS * 20, "all of it comes in the end");
    assert_eq!(at(&mut worker, key).paused, Paused::No);
}

#[test]
fn a_short_reply_goes_out_before_the_rest_of_a_long_one() {
    // What a reader of 8 MiB at a time gets where sockets take megabytes at once, as those of TCP do.
    const LONG: usize = 8 << 20;
    let mut worker = worker_with(16 << 20, 16);
    let (mut reader, long) = attach(&mut worker);
    let (mut light, short) = attach(&mut worker);
    let reply = |worker: &mut Worker, key: ConnKey, bytes| {
        let mut connection = worker.connections[key.slot as usize].take().unwrap();
        connection.out.push(None, Payload::Owned(vec![0; bytes]), crate::budget::Charge::default());
        worker.mark_dirty(&mut connection);
        worker.connections[key.slot as usize] = Some(connection);
    };
    reply(&mut worker, long, LONG);
    reply(&mut worker, short, 4_096);
    // The socket of the reader takes up to half a MiB, of which a part is sent in a row.
    assert!(
        !worker.send_some(short.slot) && worker.send_some(long.slot),
        "there is more of the long one, and room for it"
    );
    assert_eq!(at(&mut worker, long).out.bytes(), LONG - IN_A_ROW);
    assert_eq!((drain(&mut light), drain(&mut reader)), (4_096, IN_A_ROW));

    // The one with little to say goes first, in whatever order they came.
    reply(&mut worker, short, 4_096);
    worker.dirty = vec![long.slot, short.slot];
    worker.send_replies();
    assert_eq!(drain(&mut light), 4_096);
    let mut all = IN_A_ROW;
    for _ in 0..1_000 {
        all += drain(&mut reader);
        round(&mut worker);
    }
    assert_eq!(all + drain(&mut reader), LONG, "and the rest comes in its time");
    assert!(!at(&mut worker, long).dirty && worker.long.is_empty() && at(&mut worker, long).out.bytes() == 0);
}

#[test]
fn the_only_connection_of_a_worker_sends_more_in_a_row() {
    let mut worker = worker_with(16 << 20, 16);
    let (mut reader, key) = attach(&mut worker);
    let mut connection = worker.connections[key.slot as usize].take().unwrap();
    for _ in 0..8 {
        connection.out.push(None, Payload::Owned(vec![0; 128 << 10]), crate::budget::Charge::default());
    }
    // Room for what one may send in a row beside others, and more.
    rustix::net::sockopt::set_socket_send_buffer_size(connection.transport.fd(), 2 << 20).unwrap();
    worker.mark_dirty(&mut connection);
    worker.connections[key.slot as usize] = Some(connection);
    worker.send_some(key.slot);
    let sent = drain(&mut reader);
    assert!(sent > IN_A_ROW && sent <= IN_A_ROW_ALONE, "{sent} bytes");
}

#[test]
fn a_client_that_storms_is_greeted_in_its_turn_and_another_at_once() {
    let mut worker = worker();
    let storms = Client::from(&Peer::default());
    // What cannot wait has taken a multiple of the time of this thread so far: more than may be used at once.
    for _ in 0..100_000 {
        worker.shared.handshakes.charge_anyway(storms, &Work::begin().after(u64::MAX));
    }
    let (mut client, waits) = connect(&mut worker);
    round(&mut worker);
    assert_eq!((drain(&mut client), at(&mut worker, waits).paused), (0, Paused::Turn));
    assert_eq!(at(&mut worker, waits).interest, 0, "what it sends does not wake the worker");
    let (mut other, key) = connect_as(&mut worker, Peer { uid: Some(1), ..Peer::default() });
    round(&mut worker);
    assert_eq!((drain(&mut other), at(&mut worker, key).paused), (18, Paused::No));

    // It is greeted once when it has its turn.
    let until = clock::now() + Duration::from_secs(60);
    let mut greeted = 0;
    while greeted == 0 && clock::now() < until {
        round(&mut worker);
        greeted += drain(&mut client);
    }
    round(&mut worker);
    assert_eq!((greeted + drain(&mut client), at(&mut worker, waits).paused), (18, Paused::No));
}

#[test]
fn a_client_whose_account_is_used_up_while_it_waits_delays_none_behind_it() {
    let mut worker = worker();
    let peer = |uid| Peer { uid: Some(uid), ..Peer::default() };
    let clients = [1, 2].map(|uid| connect_as(&mut worker, peer(uid)));
    // As in a round whose time was over before their turns.
    for &(_, key) in &clients {
        at(&mut worker, key).paused = Paused::Turn;
        worker.turns.push(key, clock::now(), true);
    }
    // More than may be used at once, as above.
    for _ in 0..100_000 {
        worker.shared.handshakes.charge_anyway(Client::User(Some(1)), &Work::begin().after(u64::MAX));
    }
    worker.waking.round_begins(0, 1);
    worker.take_turns();
    let paused: Vec<_> = clients.iter().map(|&(_, key)| at(&mut worker, key).paused).collect();
    assert_eq!(paused, [Paused::Turn, Paused::No]);
    assert!(worker.turns.at() < Instant::FAR_FUTURE, "the first is looked at again");
    assert!(worker.turns.pop(true).is_none() && worker.turns.pop(false).is_some_and(|key| key == clients[0].1));
}

/// A small read of another tenant is answered in the round in which it is received, though other connections send more than one
/// round can receive, and more than one round can write.
#[test]
fn a_small_read_does_not_wait_behind_large_writes() {
    const BUSY: usize = 60;
    const LIGHT: u32 = 1_000;
    let request = |command: u16, length: u32| {
        let mut header = 0x2560_9513_u32.to_be_bytes().to_vec();
        header.extend([0, 0]);
        header.extend(command.to_be_bytes());
        header.extend([0; 16]);
        header.extend(length.to_be_bytes());
        header
    };
    let text =
        format!("[tenants.light]\nmatch = [\"uid:{LIGHT}\"]\n[volumes.disk0]\nbackend = \"memory\"\nsize = 1048576\n");
    let (mut worker, _registry) = worker_and_registry(&text, 16, 4 * BUSY as u32);
    let peer = |uid| Peer { uid: Some(uid), ..Peer::default() };
    let (mut light, light_key) = attach_as(&mut worker, peer(LIGHT));
    let mut busy: Vec<_> = (0..BUSY).map(|uid| (attach_as(&mut worker, peer(uid as u32)), Vec::new())).collect();
    let (mut left_some, mut late) = (0, 0);
    for turn in 0..50 {
        for ((client, _), unsent) in &mut busy {
            drain(client);
            loop {
                if unsent.is_empty() {
                    *unsent = request(1, 128 << 10);
                    unsent.resize(unsent.len() + (128 << 10), 7);
                }
                let Ok(sent) = client.write(unsent) else { break };
                unsent.drain(..sent);
            }
        }
        light.write_all(&request(0, 512)).unwrap();
        let asked = at(&mut worker, light_key).requests;
        let mut rounds = 0;
        let mut answered = 0;
        while answered < 16 + 512 {
            round(&mut worker);
            rounds += 1;
            assert!(at(&mut worker, light_key).requests > asked, "turn {turn}: it is not received at once");
            assert!(rounds < 1_000, "no answer");
            answered += drain(&mut light);
        }
        // At first, none is known to bring much; what they bring then is spread over the rounds of two turns.
        late += usize::from(turn > 1 && rounds > 2);
        left_some += usize::from(!worker.readers.is_empty());
    }
    assert!(left_some > 0, "the others have more to say than there is time for");
    // One for the read, one if the pool's turn was over, and more only if other processes took the worker's turns.
    assert!(late <= 10, "more than two rounds in {late} of 48 turns");
    // Those that wait may go, or end, or move.
    let ((client, gone), _) = busy.pop().unwrap();
    drop(client);
    let mut to = Worker::new(1, Arc::clone(&worker.shared), Vec::new()).unwrap();
    to.refresh();
    to.mailbox.open();
    worker.hand_over(light_key, 1);
    for _ in 0..1_000 {
        round(&mut worker);
        round(&mut to);
    }
    assert!(worker.connections[gone.slot as usize].is_none());
    assert!(worker.readers.is_empty());
    light.write_all(&request(0, 512)).unwrap();
    round(&mut to);
    assert_eq!(drain(&mut light), 16 + 512);
}
