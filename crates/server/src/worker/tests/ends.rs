//! Tests of streams that end while they are not read, of many connections that end at once, and of large copies.

use evenkeel_control::mclock::Wish;
use evenkeel_nbd::wire::Command;

use super::*;
use crate::worker::connection::Ending;
use crate::worker::divide::{COPIED_AT_ONCE, slice_of};

/// The bytes of a request without payload.
fn request(command: u8, offset: u64, length: u32) -> Vec<u8> {
    let mut header = 0x2560_9513_u32.to_be_bytes().to_vec();
    header.extend([0, 0, 0, command]);
    header.extend([0; 8]);
    header.extend(offset.to_be_bytes());
    header.extend(length.to_be_bytes());
    header
}

const READ_4K: (u8, u32) = (0, 4096);
const GOODBYE: u8 = 2;

#[test]
fn the_end_of_a_stream_is_noticed_while_as_many_requests_are_outstanding_as_may_be() {
    let text = "[pools.main]\nlimit = { iops = 1 }\ntuning.admission = { kind = \"none\" }\n\
                [volumes.disk0]\nbackend = \"memory\"\nsize = 1048576\n";
    let reads = || (0..40).flat_map(|_| request(READ_4K.0, 0, READ_4K.1));
    let goodbye = request(GOODBYE, 0, 0);
    // A write whose payload looks like a disconnect request.
    let written = [request(1, 0, goodbye.len() as u32), goodbye.clone()].concat();
    for (last, wish) in [
        (Vec::new(), Wish::Never),
        (goodbye.clone(), Wish::Now),
        (written.clone(), Wish::Never),
        ([written.clone(), goodbye.clone()].concat(), Wish::Now),
        // Cut off in the middle.
        (goodbye[..20].to_vec(), Wish::Never),
        (written[..40].to_vec(), Wish::Never),
    ] {
        let mut worker = worker_of(text, 16);
        let (mut client, key) = attach(&mut worker);
        client.write_all(&reads().chain(last.iter().copied()).collect::<Vec<_>>()).unwrap();
        (0..3).for_each(|_| round(&mut worker));
        assert_eq!(at(&mut worker, key).paused, Paused::Full);
        assert_eq!(worker.shared.slots.wish(key, Command::Read), Wish::Now, "it may send more");
        client.shutdown(std::net::Shutdown::Write).unwrap();
        (0..3).for_each(|_| round(&mut worker));
        assert_eq!(worker.shared.slots.wish(key, Command::Read), wish, "{last:?}");
        assert_eq!(at(&mut worker, key).interest & ENDED, 0, "it is looked for once");
    }
}

#[test]
fn bytes_that_wait_in_the_socket_are_looked_at_too() {
    let text = "[pools.main]\nlimit = { iops = 1 }\ntuning.admission = { kind = \"none\" }\n\
                [volumes.disk0]\nbackend = \"memory\"\nsize = 1048576\n";
    for (last, wish) in [(request(READ_4K.0, 0, READ_4K.1), Wish::Never), (request(GOODBYE, 0, 0), Wish::Now)] {
        let mut worker = worker_of(text, 16);
        let (mut client, key) = attach(&mut worker);
        client.write_all(&request(READ_4K.0, 0, READ_4K.1).repeat(40)).unwrap();
        (0..3).for_each(|_| round(&mut worker));
        assert_eq!(at(&mut worker, key).paused, Paused::Full);
        // The worker does not read them.
        client.write_all(&last).unwrap();
        round(&mut worker);
        client.shutdown(std::net::Shutdown::Write).unwrap();
        (0..3).for_each(|_| round(&mut worker));
        assert_eq!(worker.shared.slots.wish(key, Command::Read), wish);
    }
}

#[test]
fn a_stop_tells_requests_in_flight_from_answers_that_clients_do_not_take() {
    let text = "[pools.main]\nlimit = { iops = 1 }\ntuning.admission = { kind = \"none\" }\n\
                [volumes.disk0]\nbackend = \"memory\"\nsize = 1048576\n";
    for requests in [0, 10] {
        let mut worker = worker_of(text, 16);
        let (mut client, key) = attach(&mut worker);
        client.write_all(&request(READ_4K.0, 0, READ_4K.1).repeat(requests)).unwrap();
        (0..3).for_each(|_| round(&mut worker));
        let connection = at(&mut worker, key);
        assert!(!connection.has_untaken_answers(), "those that there are were sent");
        connection.ending = Ending::Lingering;
        assert_eq!(connection.has_untaken_answers(), requests == 0, "they may be on their way");
        connection.ending = Ending::Draining;
        connection.out.push(None, Payload::Owned(vec![0; 4096]), crate::budget::Charge::default());
        assert_eq!(connection.has_untaken_answers(), requests == 0, "{requests} requests");
        let shared = Arc::clone(&worker.shared);
        worker.finish();
        assert_eq!(shared.left_in_flight.load(Ordering::Acquire), requests > 0, "{requests} requests");
    }
}

#[test]
fn of_many_connections_that_end_at_once_a_few_are_closed_in_each_round() {
    const CLIENTS: u32 = 30;
    let volumes = "[volumes.disk0]\nbackend = \"memory\"\nsize = 4096\n";
    let (mut worker, _registry) = worker_and_registry(volumes, 16, 128);
    let peer = |uid| Peer { uid: Some(uid), ..Peer::default() };
    let clients: Vec<_> = (0..CLIENTS).map(|n| attach_as(&mut worker, peer(n))).collect();
    round(&mut worker);
    drop(clients);
    let (mut left, mut rounds) = (worker.count, 0);
    assert_eq!(left, CLIENTS as usize);
    while worker.count > 0 {
        round(&mut worker);
        assert!(left - worker.count <= ENDS_IN_A_ROUND as usize, "{} of {left} are left", worker.count);
        left = worker.count;
        rounds += 1;
        assert!(rounds < 1_000, "{left} are left");
    }
}

#[test]
fn connections_that_wait_to_be_read_do_not_delay_the_ends_of_others() {
    let volumes = "[volumes.disk0]\nbackend = \"memory\"\nsize = 4096\n";
    let (mut worker, _registry) = worker_and_registry(volumes, 16, 128);
    let peer = |uid| Peer { uid: Some(uid), ..Peer::default() };
    let waiting: Vec<_> = (0..ENDS_IN_A_ROUND).map(|n| attach_as(&mut worker, peer(n))).collect();
    let (_client, other) = attach_as(&mut worker, peer(ENDS_IN_A_ROUND));
    for (_, key) in &waiting {
        let mut connection = worker.connections[key.slot as usize].take().unwrap();
        worker.readers.push(*key, connection.set, &mut connection.share, 1);
        worker.connections[key.slot as usize] = Some(connection);
        worker.on_event(key.to_event(), READ | ENDED);
    }
    worker.on_event(other.to_event(), GONE);
    assert!(worker.connections[other.slot as usize].is_none(), "it is closed in this round");
}

#[test]
fn writes_to_memory_are_copied_little_by_little_however_large_slices_are() {
    let worker = worker_with(4 << 20, 16);
    let volume = worker.snapshot.find("disk0").unwrap();
    let pool = &worker.snapshot.pools[volume.pool];
    pool.set_slice_bytes(1 << 20);
    let slice = |command, length: u64| {
        let none = evenkeel_nbd::wire::CommandFlags::NONE;
        slice_of(volume, pool, (command, none), &volume.work(command, none, length), (0, length))
    };
    assert_eq!([COPIED_AT_ONCE, 1 << 20].map(|length| slice(Command::Write, length)), [None, Some(COPIED_AT_ONCE)]);
    assert_eq!(slice(Command::Read, 1 << 20), None, "no byte of a read is copied before it is sent");
}
