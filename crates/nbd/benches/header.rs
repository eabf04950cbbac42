//! Processor time of the protocol code for one request and its reply.
//!
//! `cargo bench -p evenkeel-nbd` prints nanoseconds of one thread: the median and
//! the range of 15 rounds. It asserts nothing, as times depend on the machine.

use std::hint::black_box;
use std::time::Instant;

use evenkeel_nbd::client;
use evenkeel_nbd::server::{Limits, Session, reply, request};
use evenkeel_nbd::wire::{Command, CommandFlags, Errno, Framing, TransmissionFlags};

const ROUNDS: usize = 15;
/// Requests or replies in one receive buffer, as with a client that sends several requests together.
const BATCH: usize = 32;
/// Buffers that one round parses.
const REPEATS: usize = 20_000;

fn main() {
    for framing in [Framing::Simple, Framing::Structured, Framing::Extended] {
        for command in [Command::Read, Command::WriteZeroes] {
            let (server, client) = (measure(|| server(framing, command)), measure(|| client(framing, command)));
            println!("{framing:?} {command:?}: server {server}, client {client}");
        }
    }
}

/// Runs rounds of a function that returns nanoseconds per operation; returns the median and the range as text.
fn measure(mut round: impl FnMut() -> f64) -> String {
    let mut times: Vec<f64> = (0..ROUNDS).map(|_| round()).collect();
    times.sort_by(f64::total_cmp);
    format!("{:.1} ns ({:.1} to {:.1})", times[ROUNDS / 2], times[0], times[ROUNDS - 1])
}

fn batch(framing: Framing, command: Command) -> Vec<u8> {
    let mut bytes = Vec::new();
    for cookie in 0..BATCH as u64 {
        let offset = cookie * 4096;
        client::Request { cookie, command, flags: CommandFlags::NONE, offset, length: 4096 }
            .encode(framing, &mut bytes);
    }
    bytes
}

/// Parses and validates requests and builds the headers of their replies; returns nanoseconds per request.
fn server(framing: Framing, command: Command) -> f64 {
    let flags = TransmissionFlags::HAS_FLAGS | TransmissionFlags::SEND_WRITE_ZEROES;
    let session = Session { export: "disk0".into(), flags, framing, base_allocation: false, block_sizes: true };
    let limits = Limits { size: 1 << 30, read_only: false, min_block: 1, max_payload: 1 << 25 };
    let (session, limits) = (black_box(session), black_box(limits));
    let bytes = batch(framing, command);
    let start = Instant::now();
    for _ in 0..REPEATS {
        let mut rest = black_box(bytes.as_slice());
        while let Ok(Some((request, used))) = request::parse(rest, session.extended()) {
            assert!(request::validate(&request, &limits, &session).is_ok());
            let header = match request.command {
                Command::Read => reply::read(session.framing, request.cookie, request.offset, request.length as u32),
                _ => reply::ok(session.framing, request.cookie, request.offset),
            };
            black_box(header.as_slice());
            rest = &rest[used..];
        }
    }
    start.elapsed().as_nanos() as f64 / (REPEATS * BATCH) as f64
}

/// A client whose request number n is for 4 KiB at offset n × 4 KiB. Fields: the command, and the requests that succeeded.
struct Reader(Command, u64);

impl client::Sink for Reader {
    fn expect(&self, cookie: u64) -> Option<client::Expect> {
        Some(client::Expect { command: self.0, offset: cookie * 4096, length: 4096, unfragmented: false })
    }
    fn data(&mut self, _: u64, _: u64, bytes: &[u8]) {
        black_box(bytes);
    }
    fn hole(&mut self, _: u64, _: u64, _: u64) {}
    fn done(&mut self, _: u64, result: Result<(), Errno>) {
        self.1 += u64::from(result.is_ok());
    }
}

/// Parses replies with their payload, which is not copied; returns nanoseconds per reply.
fn client(framing: Framing, command: Command) -> f64 {
    let mut bytes = Vec::new();
    for cookie in 0..BATCH as u64 {
        let offset = cookie * 4096;
        if command == Command::Read {
            bytes.extend_from_slice(reply::read(framing, cookie, offset, 4096).as_slice());
            bytes.resize(bytes.len() + 4096, 0);
        } else {
            bytes.extend_from_slice(reply::ok(framing, cookie, offset).as_slice());
        }
    }
    let mut replies = client::Replies::new(framing, None);
    let mut sink = Reader(command, 0);
    let start = Instant::now();
    for _ in 0..REPEATS {
        assert_eq!(replies.parse(black_box(&bytes), &mut sink), Ok(bytes.len()));
    }
    let elapsed = start.elapsed().as_nanos() as f64;
    assert_eq!(sink.1, (REPEATS * BATCH) as u64);
    elapsed / (REPEATS * BATCH) as f64
}
