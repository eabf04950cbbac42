//! A measurement, run by hand: which part of a worker's time for one connection could be moved to another thread.
//!
//! `cargo test --release -p evenkeel-server --lib one_connection -- --ignored --nocapture`

use std::os::fd::AsFd;
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};

use super::*;
use crate::backend::Backend;

const DEPTH: usize = 64;
const ROUNDS: usize = 400;
const VOLUME: u64 = 256 << 20;

/// Time that the worker spent on each part of its loop, in nanoseconds.
#[derive(Default)]
struct Parts {
    receive: u64,
    pump: u64,
    send: u64,
}

fn timed<T>(sum: &mut u64, work: impl FnOnce() -> T) -> T {
    let begun = clock::now();
    let done = work();
    *sum += clock::now().since(begun).as_nanos();
    done
}

/// The bytes of the `n`th request: a read or write of `bytes` bytes at a random offset, with the payload of a write.
fn request(write: bool, n: usize, bytes: usize, random: &mut u64) -> Vec<u8> {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let offset = (*random >> 20) % (VOLUME / bytes as u64) * bytes as u64;
    let mut message = Vec::with_capacity(28 + bytes);
    message.extend(0x2560_9513_u32.to_be_bytes());
    message.extend([0, 0, 0, u8::from(write)]);
    message.extend((n as u64).to_be_bytes());
    message.extend(offset.to_be_bytes());
    message.extend((bytes as u32).to_be_bytes());
    message.resize(28 + if write { bytes } else { 0 }, 7);
    message
}

/// Lets a worker serve [`ROUNDS`] times [`DEPTH`] requests of one connection; returns the time that it took.
fn serve(write: bool, bytes: usize) -> Parts {
    let mut worker = super::worker_with(VOLUME, DEPTH);
    let (mut client, key) = attach(&mut worker);
    // Memory that was never written is not there yet.
    let snapshot = Arc::clone(&worker.snapshot);
    let Backend::Memory(memory) = &snapshot.find("disk0").unwrap().backend else { panic!("a volume in memory") };
    (0..VOLUME).step_by(1 << 20).for_each(|offset| memory.write(offset, &[7; 1 << 20]).unwrap());
    let (mut parts, mut random) = (Parts::default(), 1);
    for round in 0..=ROUNDS {
        if round == 1 {
            // The first has touched the buffers.
            parts = Parts::default();
        }
        let sent: Vec<u8> = (0..DEPTH).flat_map(|n| request(write, n, bytes, &mut random)).collect();
        let expected = DEPTH * (16 + if write { 0 } else { bytes });
        let (mut given, mut replied) = (0, 0);
        while replied < expected {
            given += client.write(&sent[given..]).unwrap_or(0);
            timed(&mut parts.receive, || worker.on_event(key.to_event(), READ));
            timed(&mut parts.receive, || worker.on_timers());
            timed(&mut parts.pump, || worker.pump());
            timed(&mut parts.send, || worker.send_replies());
            if super::at(&mut worker, key).out.len() > 0 {
                timed(&mut parts.send, || super::send(&mut worker, key));
            }
            replied += drain(&mut client);
        }
        assert_eq!((given, replied), (sent.len(), expected), "each request has its reply");
    }
    parts
}

/// Mean nanoseconds from giving another thread a task until its answer is here, and the part of them spent on giving the
/// task. `sleeps`: both threads sleep while they wait.
fn hand_over(sleeps: bool) -> (f64, f64) {
    const TIMES: u64 = 20_000;
    let (there, back) = (Mailbox::<Message>::new().unwrap(), Mailbox::<Message>::new().unwrap());
    there.open();
    back.open();
    let receive = |mailbox: &Mailbox<Message>| {
        let mut inbox = Vec::new();
        while inbox.is_empty() {
            if sleeps {
                let event = mailbox.event();
                poll(&mut [PollFd::new(&event.as_fd(), PollFlags::IN)], None).unwrap();
            }
            mailbox.take(&mut inbox);
        }
        inbox.len()
    };
    let (mut whole, mut giving) = (0, 0);
    thread::scope(|scope| {
        scope.spawn(|| (0..TIMES).for_each(|_| assert!(receive(&there) == 1 && back.post(Message::Visit).is_ok())));
        for _ in 0..TIMES {
            timed(&mut whole, || {
                timed(&mut giving, || assert!(there.post(Message::Visit).is_ok()));
                receive(&back)
            });
        }
    });
    (whole as f64 / TIMES as f64, giving as f64 / TIMES as f64)
}

#[test]
#[ignore = "prints figures; takes seconds"]
fn what_another_thread_could_do_for_one_connection() {
    for (sleeps, how) in [(true, "a thread that sleeps"), (false, "a thread that looks")] {
        let (whole, giving) = hand_over(sleeps);
        println!("{how}: {:.1} us there and back, {:.1} us of it to tell", whole / 1e3, giving / 1e3);
        assert!(giving < whole);
    }
    for (write, bytes) in [(false, 4096), (false, 131_072), (true, 4096), (true, 131_072)] {
        let Parts { receive, pump, send } = serve(write, bytes);
        let whole = receive + pump + send;
        let each = |part: u64| part as f64 / (ROUNDS * DEPTH) as f64 / 1e3;
        let (what, kib) = (if write { "writes" } else { "reads" }, bytes >> 10);
        println!(
            "{what} of {kib} KiB: {:.2} us each, receive {:.2}, pool and memory {:.2}, send {:.2}; two threads at best {:.2} x",
            each(whole),
            each(receive),
            each(pump),
            each(send),
            whole as f64 / (receive.max(pump + send).min(send.max(receive + pump))) as f64
        );
        assert!(receive > 0 && pump > 0 && send > 0);
    }
}
