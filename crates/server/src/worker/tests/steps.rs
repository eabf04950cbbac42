//! Tests of trims of volumes in memory whose pages were written: the pages are given back in short steps.

use super::*;
use crate::backend::Backend;
use crate::backend::memory::Memory;
use crate::ram::PIECE;

const SIZE: u64 = 64 << 20;

/// Writes all of a volume of [`SIZE`] bytes.
fn write_all(memory: &Memory) {
    (0..SIZE).step_by(1 << 20).for_each(|offset| memory.write(offset, &[7; 1 << 20]).unwrap());
}

/// Bytes of the volume that are no holes.
fn written(memory: &Memory) -> u64 {
    memory.extents(0, SIZE, 1 << 20).iter().filter(|extent| !extent.hole).map(|extent| extent.len).sum()
}

#[test]
fn between_two_looks_at_the_clock_few_written_pages_are_given_back() {
    for written_late in [false, true] {
        let mut worker = worker_with(SIZE, 16);
        let (mut client, key) = attach(&mut worker);
        let snapshot = Arc::clone(&worker.snapshot);
        let Backend::Memory(memory) = &snapshot.find("disk0").unwrap().backend else { panic!("a volume in memory") };
        if !written_late {
            write_all(memory);
        }
        let mut trim = 0x2560_9513_u32.to_be_bytes().to_vec();
        trim.extend([0, 0, 0, 4]);
        trim.extend([0; 16]);
        trim.extend((SIZE as u32).to_be_bytes());
        client.write_all(&trim).unwrap();
        worker.on_event(key.to_event(), READ);
        let longest = worker.pools[0].incoming.iter().map(|(_, _, request)| request.length).max().unwrap();
        // The pool decides between slices, and divided is what would take long at that moment.
        assert_eq!(longest > PIECE, written_late, "{longest} bytes");
        if written_late {
            write_all(memory);
        }
        let (mut left, mut visits) = (SIZE, 0);
        while at(&mut worker, key).in_flight > 0 {
            // It has no time: each look at the clock ends the visit.
            worker.visit(0, clock::now(), Instant::ZERO);
            let now = written(memory);
            assert!(left - now <= PIECE, "{} bytes at once, written late: {written_late}", left - now);
            left = now;
            visits += 1;
            assert!(visits < 1_000, "{left} bytes are left");
        }
        assert_eq!(left, 0);
        worker.send_replies();
        assert_eq!(drain(&mut client), 16, "one answer");
    }
}

#[test]
fn a_read_does_not_wait_for_the_last_step_of_a_trim() {
    let mut worker = worker_with(SIZE, 16);
    let (mut busy, busy_key) = attach(&mut worker);
    let (mut light, light_key) = attach(&mut worker);
    let snapshot = Arc::clone(&worker.snapshot);
    let Backend::Memory(memory) = &snapshot.find("disk0").unwrap().backend else { panic!("a volume in memory") };
    let request = |command: u8, length: u32| {
        let mut header = 0x2560_9513_u32.to_be_bytes().to_vec();
        header.extend([0, 0, 0, command]);
        header.extend([0; 16]);
        header.extend(length.to_be_bytes());
        header
    };
    // One slice, of holes that are then written.
    busy.write_all(&request(4, 16 << 20)).unwrap();
    worker.on_event(busy_key.to_event(), READ);
    assert_eq!(worker.pools[0].incoming.len(), 1);
    write_all(memory);
    worker.visit(0, clock::now(), Instant::ZERO);
    light.write_all(&request(0, 4096)).unwrap();
    worker.on_event(light_key.to_event(), READ);
    let mut visits = 0;
    while at(&mut worker, light_key).in_flight > 0 {
        worker.visit(0, clock::now(), Instant::ZERO);
        visits += 1;
        assert!(visits < 1_000);
    }
    assert!(at(&mut worker, busy_key).in_flight == 1 && written(memory) > SIZE - (16 << 20), "the trim goes on");
    while at(&mut worker, busy_key).in_flight > 0 {
        worker.visit(0, clock::now(), Instant::ZERO);
    }
    worker.send_replies();
    assert_eq!((drain(&mut busy), drain(&mut light), written(memory)), (16, 16 + 4096, SIZE - (16 << 20)));
}

#[test]
fn few_small_writes_leave_the_queue_at_a_time() {
    const WRITES: u32 = 64;
    let mut worker = worker_with(SIZE, WRITES as usize);
    let (mut client, key) = attach(&mut worker);
    let mut write = 0x2560_9513_u32.to_be_bytes().to_vec();
    write.extend([0, 0, 0, 1]);
    write.extend([0; 16]);
    write.extend(512_u32.to_be_bytes());
    write.resize(28 + 512, 7);
    client.write_all(&write.repeat(WRITES as usize)).unwrap();
    worker.on_event(key.to_event(), READ);
    assert_eq!(at(&mut worker, key).in_flight, WRITES);
    // Each may add a huge page, and what another tenant sends comes behind all that have left the queue.
    let (mut most, mut visits) = (0, 0);
    while at(&mut worker, key).in_flight > 0 {
        worker.visit(0, clock::now(), Instant::ZERO);
        most = most.max(worker.pools[0].ready.len());
        visits += 1;
        assert!(visits < 1_000);
    }
    assert!((1..=16).contains(&most), "{most} writes");
    worker.send_replies();
    assert_eq!(drain(&mut client), WRITES as usize * 16);
}

#[test]
fn between_two_looks_at_the_clock_pages_are_added_for_few_small_writes() {
    const WRITES: u32 = 8;
    let mut worker = worker_with(SIZE, 16);
    let (mut client, key) = attach(&mut worker);
    client.write_all(&writes(WRITES as usize)).unwrap();
    worker.on_event(key.to_event(), READ);
    assert_eq!(at(&mut worker, key).in_flight, WRITES);
    let (mut left, mut visits) = (WRITES, 0);
    while left > 0 {
        // It has no time: each look at the clock ends the visit.
        worker.visit(0, clock::now(), Instant::ZERO);
        let now = at(&mut worker, key).in_flight;
        assert!(left - now <= 4, "{} writes at once", left - now);
        left = now;
        visits += 1;
        assert!(visits < 1_000, "{left} writes are left");
    }
    worker.send_replies();
    assert_eq!(drain(&mut client), WRITES as usize * 16);
}
