//! Tests of the one answer to a request that is divided: the error that it names, and the flush before it.

use evenkeel_nbd::wire::{Command, CommandFlags, Errno};

use super::*;
use crate::worker::connection::Phase;
use crate::worker::request::{Output, Whole};

/// A worker that serves an emulated device in slices of `slice` bytes, the client of a connection, the connection's key, and
/// the index of the device's pool.
fn divides_by(slice: u32) -> (Worker, UnixStream, ConnKey, usize) {
    let volume = "[volumes.disk0]\nbackend = \"emulate\"\npool = \"device\"\nsize = \"8MiB\"\n";
    let mut worker = worker_of(&format!("[pools.device.emulate]\n{volume}"), 16);
    let (client, key) = attach(&mut worker);
    let Phase::Attached(attached) = &at(&mut worker, key).phase else { panic!("it has a volume") };
    let pool = attached.volume.pool;
    worker.snapshot.pools[pool].set_slice_bytes(slice);
    (worker, client, key, pool)
}

/// Header of a request for the first `length` bytes.
fn header(command: u8, flags: u8, length: u32) -> Vec<u8> {
    [&0x2560_9513_u32.to_be_bytes()[..], &[0, flags, 0, command], &[0; 16], &length.to_be_bytes()].concat()
}

/// Error number of the only answer that the client has received.
fn answer(worker: &mut Worker, client: &mut UnixStream) -> u32 {
    worker.send_replies();
    let mut answer = [0; 16];
    client.read_exact(&mut answer).expect("an answer");
    assert_eq!(drain(client), 0, "one answer");
    u32::from_be_bytes(answer[4..8].try_into().expect("four bytes"))
}

#[test]
fn the_first_error_of_a_slice_is_the_answer_and_no_further_slice_begins() {
    let (mut worker, mut client, key, pool) = divides_by(1 << 20);
    client.write_all(&header(0, 0, 6 << 20)).unwrap();
    worker.on_event(key.to_event(), READ);
    let slices = std::mem::take(&mut worker.pools[pool].incoming);
    assert_eq!(slices.len(), 4, "of six");
    for ((_, _, slice), error) in slices.into_iter().zip([Errno::NoSpace, Errno::Io, Errno::NoMem, Errno::Io]) {
        worker.send_replies();
        assert_eq!(drain(&mut client), 0, "slices are under way");
        worker.deliver(slice, Err(error));
        assert!(worker.pools[pool].incoming.is_empty(), "no further slice begins");
    }
    assert_eq!(answer(&mut worker, &mut client), 28, "no space");
    assert_eq!((at(&mut worker, key).in_flight, worker.shared.budget.used()), (0, 0));
}

#[test]
fn a_durable_write_is_flushed_once_behind_all_of_its_slices_and_answered_after_that() {
    const SLICE: u32 = 64 << 10;
    const SLICES: u32 = 4;
    // The errors of the second slice and of the flush, and that of the answer.
    for (of_slice, of_flush, error) in
        [(None, Some(None), 0), (None, Some(Some(Errno::Io)), 5), (Some(Errno::NoSpace), None, 28)]
    {
        let (mut worker, mut client, key, pool) = divides_by(SLICE);
        let mut write = header(1, 1, SLICES * SLICE);
        write.resize(write.len() + (SLICES * SLICE) as usize, 7);
        let (mut given, mut rounds) = (0, 0);
        while at(&mut worker, key).in_flight < SLICES {
            given += client.write(&write[given..]).unwrap_or(0);
            worker.on_event(key.to_event(), READ);
            worker.read_in_turn();
            rounds += 1;
            assert!(rounds < 1_000, "{given} bytes are sent");
        }
        let slices = std::mem::take(&mut worker.pools[pool].incoming);
        assert_eq!(slices.len(), SLICES as usize);
        for (n, (_, _, mut slice)) in slices.into_iter().enumerate() {
            assert!(worker.pools[pool].incoming.is_empty(), "nothing goes before slice {n} has ended");
            assert!(slice.command == Command::Write && !slice.flags.contains(CommandFlags::FUA), "slice {n}");
            if let Some(buffer) = slice.buffer.take() {
                worker.buffers.give(buffer);
            }
            let failed = of_slice.filter(|_| n == 1);
            worker.deliver(slice, failed.map_or(Ok(Output::Nothing), Err));
        }
        let flushes = std::mem::take(&mut worker.pools[pool].incoming);
        assert_eq!(flushes.len(), usize::from(of_flush.is_some()), "{of_slice:?}");
        for ((_, _, flush), failed) in flushes.into_iter().zip(of_flush) {
            worker.send_replies();
            assert_eq!((flush.command, drain(&mut client)), (Command::Flush, 0), "not answered before it is durable");
            worker.deliver(flush, failed.map_or(Ok(Output::Nothing), Err));
        }
        assert_eq!(answer(&mut worker, &mut client), error);
        assert_eq!((at(&mut worker, key).in_flight, worker.shared.budget.used()), (0, 0));
    }
}

#[test]
fn the_time_for_which_a_client_sends_a_divided_write_is_no_latency() {
    const WRITE: u32 = 512 << 10;
    let (mut worker, begun) = (worker(), clock::now());
    let (mut client, key) = attach(&mut worker);
    client.write_all(&header(1, 0, WRITE)).unwrap();
    worker.on_event(key.to_event(), READ);
    worker.read_in_turn();
    // The header came when the machine started, and the payload comes now.
    at(&mut worker, key).divided.get(Whole(0)).expect("it is divided").since = Instant::ZERO;
    let (payload, mut given, mut rounds) = (vec![7; WRITE as usize], 0, 0);
    while at(&mut worker, key).in_flight < 2 {
        given += client.write(&payload[given..]).unwrap_or(0);
        worker.on_event(key.to_event(), READ);
        worker.read_in_turn();
        rounds += 1;
        assert!(rounds < 1_000, "{given} bytes are sent");
    }
    assert!(worker.visit(0, clock::now(), Instant::FAR_FUTURE), "all is done");
    assert_eq!(answer(&mut worker, &mut client), 0);
    let Phase::Attached(attached) = &at(&mut worker, key).phase else { panic!("it has a volume") };
    let (tenant, snapshot) = (attached.tenant, Arc::clone(&worker.snapshot));
    let stats = snapshot.pools[0].lock().tenant(tenant).expect("it is there").stats.clone();
    assert_eq!(stats.writes, 1);
    assert!(stats.latency.max() <= clock::now().since(begun), "{:?}", stats.latency.max());
}
