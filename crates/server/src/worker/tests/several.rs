//! Tests of the length of a worker's turns: with one active connection, with several, and with several pools.

use super::*;
use crate::worker::readers::PERIOD;

/// The bytes of a request to read the first 512 bytes.
fn small_read() -> Vec<u8> {
    let mut header = 0x2560_9513_u32.to_be_bytes().to_vec();
    header.extend([0; 22]);
    header.extend([2, 0]);
    header
}

/// Lets the worker receive a small read of a client.
fn ask(worker: &mut Worker, client: &mut UnixStream, key: ConnKey) {
    let before = at(worker, key).requests;
    client.write_all(&small_read()).unwrap();
    worker.on_event(key.to_event(), READ);
    worker.read_in_turn();
    assert_eq!(at(worker, key).requests, before + 1);
}

#[test]
fn an_idle_connection_does_not_shorten_the_turns_of_another() {
    let mut worker = worker();
    let (mut busy, busy_key) = attach(&mut worker);
    let (mut idle, idle_key) = attach(&mut worker);
    assert_eq!(worker.turn(), TURN_BESIDE_OTHERS, "both have negotiated just now");
    let mut now = clock::now();
    for _ in 0..2 {
        now += PERIOD;
        worker.readers.pass(now);
        ask(&mut worker, &mut busy, busy_key);
    }
    assert_eq!((worker.turn(), worker.serves_several()), (TURN, false));
    ask(&mut worker, &mut idle, idle_key);
    assert_eq!((worker.turn(), worker.serves_several()), (TURN_BESIDE_OTHERS, true), "from its first request on");
    let connection = worker.connections[idle_key.slot as usize].take().unwrap();
    worker.close(connection);
    assert_eq!(worker.turn(), TURN, "it is gone");
}

#[test]
fn each_round_looks_for_connections_that_have_become_idle() {
    let mut worker = worker();
    // Long ago, as if the worker had slept since.
    worker.readers = Readers::since(Instant::ZERO);
    let _clients = [(); 2].map(|()| attach(&mut worker));
    assert_eq!(worker.turn(), TURN_BESIDE_OTHERS);
    round(&mut worker);
    assert_eq!(worker.turn(), TURN);
}

/// As [`attach`]; the client has chosen the export `name`.
fn attach_to(worker: &mut Worker, name: &str) -> (UnixStream, ConnKey) {
    let (mut client, key) = connect_as(worker, Peer::default());
    client.write_all(&3u32.to_be_bytes()).unwrap();
    let length = (name.len() as u32).to_be_bytes();
    client.write_all(&[&b"IHAVEOPT\0\0\0\x01"[..], &length, name.as_bytes()].concat()).unwrap();
    worker.waking.round_begins(1, 0);
    worker.on_event(key.to_event(), READ);
    worker.send_replies();
    assert!(at(worker, key).volume().is_some(), "the export is chosen");
    drain(&mut client);
    (client, key)
}

#[test]
fn two_pools_with_much_to_do_have_their_time_in_one_turn() {
    // Copying these takes a pool longer than a turn; submitting them takes little of one, and each is followed by a look at the
    // clock.
    const WRITES: u32 = 40;
    const LENGTH: u32 = 64 << 10;
    let volume = |name: &str| {
        format!("[pools.{name}]\n[volumes.{name}]\nbackend = \"memory\"\npool = \"{name}\"\nsize = {LENGTH}\n")
    };
    let text = format!("{}{}", volume("one"), volume("other"));
    let (mut worker, _registry) = worker_and_registry(&text, 2 * WRITES as usize, 64);
    let mut clients = ["one", "other"].map(|name| attach_to(&mut worker, name));
    let mut write = 0x2560_9513_u32.to_be_bytes().to_vec();
    write.extend([0, 0, 0, 1]);
    write.extend([0; 16]);
    write.extend(LENGTH.to_be_bytes());
    write.resize(write.len() + LENGTH as usize, 7);
    let writes = write.repeat(WRITES as usize);
    // Another process may take the whole turn of one pool; not each time.
    let have_both_had_some = (0..200).any(|_| {
        for (client, key) in &mut clients {
            let (mut sent, mut events) = (0, 0);
            while at(&mut worker, *key).in_flight < WRITES {
                sent += client.write(&writes[sent..]).unwrap_or(0);
                worker.on_event(key.to_event(), READ);
                worker.read_in_turn();
                events += 1;
                assert!(events < 10_000, "not all requests are received");
            }
        }
        worker.pump();
        let had_some = clients.iter().all(|(_, key)| (1..WRITES).contains(&at(&mut worker, *key).in_flight));
        for (client, _) in &mut clients {
            let (mut received, mut rounds) = (0, 0);
            while received < WRITES as usize * 16 {
                round(&mut worker);
                received += drain(client);
                rounds += 1;
                assert!(rounds < 10_000, "not all requests are answered");
            }
        }
        had_some
    });
    assert!(have_both_had_some);
}
