//! Tests that a request that the server divides into slices behaves as one for its client.

use crate::support;

use evenkeel_nbd::wire::{Command, CommandFlags, Errno, Framing};
use evenkeel_policy::config::Engine;
use support::{Client, Stream, TestServer, pattern};

/// Bytes of the volume, and of its copy in the test.
const SIZE: usize = 48 << 20;

/// A generator of pseudo-random offsets and lengths.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

#[test]
fn whatever_is_asked_of_large_ranges_is_as_if_it_were_done_at_once() {
    let emulated = "[pools.p]\nemulate = { preset = \"ssd\", bandwidth = \"400MB\" }\n[volumes.disk0]\nbackend = \"emulate\"\npool = \"p\"\nsize = \"48MiB\"\n";
    let direct = "[volumes.disk0]\nsize = \"48MiB\"\n";
    let buffered = "[volumes.disk0]\nsize = \"48MiB\"\ncache = \"buffered\"\n";
    let memory = "[volumes.disk0]\nbackend = \"memory\"\nsize = \"48MiB\"\n";
    let places = [
        (Engine::IoUring, direct, Framing::Structured),
        (Engine::Epoll, direct, Framing::Simple),
        (Engine::Epoll, buffered, Framing::Extended),
        (Engine::IoUring, buffered, Framing::Simple),
        (Engine::Auto, memory, Framing::Structured),
        (Engine::Auto, emulated, Framing::Extended),
    ];
    for (seed, (engine, text, framing)) in places.into_iter().enumerate() {
        let test = TestServer::start(&format!("divided-{seed}"), engine, &format!("[server]\nworkers = 2\n{text}"));
        let mut client = Client::new(Stream::Unix(test.raw_unix()), "", framing);
        let mut random = Random(seed as u64);
        let (mut model, mut trimmed) = (vec![0; SIZE], (0_u64, 0_u64));
        for step in 0..60u64 {
            let length = 1 + random.below(if step % 3 == 0 { 20 << 20 } else { 2 << 20 });
            let offset = random.below(SIZE - length);
            let (from, bytes) = (offset as u64, length as u64);
            let flags = if step % 5 == 0 { CommandFlags::FUA } else { CommandFlags::NONE };
            match random.below(5) {
                0 | 1 => {
                    let payload = pattern(step, seed as u64, length);
                    let write = client.send(Command::Write, flags, from, bytes, &payload);
                    client.wait(write).unwrap();
                    model[offset..offset + length].copy_from_slice(&payload);
                }
                2 => {
                    let command = if step % 2 == 0 { Command::Trim } else { Command::WriteZeroes };
                    let flags = if step % 4 == 1 { flags | CommandFlags::NO_HOLE } else { flags };
                    let request = client.send(command, flags, from, bytes, &[]);
                    client.wait(request).unwrap();
                    model[offset..offset + length].fill(0);
                    if command == Command::Trim {
                        trimmed = (trimmed.0 + 1, trimmed.1 + bytes);
                    }
                }
                _ => {
                    let read = client.read(from, bytes).unwrap();
                    assert!(
                        read == model[offset..offset + length],
                        "{engine:?} {text} step {step}: {offset} + {length}"
                    );
                }
            }
        }
        // Many at once, each of which has places of its own.
        let cookies: Vec<_> =
            (0..12u64).map(|n| client.send(Command::Read, CommandFlags::NONE, n << 22, 4 << 20, &[])).collect();
        for (n, cookie) in cookies.into_iter().enumerate() {
            assert!(client.wait(cookie).unwrap() == model[n << 22..][..4 << 20], "{engine:?} {text} part {n}");
        }
        let state = test.server.state();
        let pool = &state.pools[0];
        assert!(pool.tenants[0].reads_total + pool.tenants[0].writes_total <= 72, "slices do not count as requests");
        let volume = &state.volumes[0];
        assert_eq!((volume.trims_total, volume.trimmed_bytes_total), trimmed, "{engine:?} {text}: zeroing is no trim");
        drop(client);
        test.wait_for("all given back", |state| state.connections == 0 && state.buffer_memory_used_bytes == 0);
    }
}

#[test]
fn one_slice_that_fails_fails_the_request_and_nothing_else() {
    for engine in support::ENGINES {
        let test = TestServer::start("divided-short", engine, "[volumes.disk0]\nsize = \"16MiB\"\n");
        let mut client = test.connect("disk0");
        client.write(0, &pattern(0, 1, 16 << 20)).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(test.scratch.path().join("disk0.img")).unwrap();
        file.set_len(9 << 20).unwrap();
        assert_eq!(client.read(0, 16 << 20), Err(Errno::Io));
        assert!(client.read(0, 9 << 20).unwrap() == pattern(0, 1, 16 << 20)[..9 << 20]);
    }
    let Some(disk) = support::SmallDisk::mount("one_slice_that_fails_fails_the_request_and_nothing_else") else {
        return;
    };
    for engine in support::ENGINES {
        let test = TestServer::start("divided-full", engine, &disk.volume());
        let mut client = test.connect("disk0");
        assert_eq!(client.write(0, &pattern(0, 2, 12 << 20)), Err(Errno::NoSpace));
        assert!(client.read(0, 4096).is_ok(), "the rest of the payload has gone by, and the connection is as it was");
        drop(client);
        test.wait_for("all given back", |state| state.connections == 0 && state.buffer_memory_used_bytes == 0);
    }
}
