//! Tests of writes past the page cache and through it, on the same blocks at the same time.

use crate::support;

use evenkeel_nbd::wire::{Command, CommandFlags};
use support::{Client, ENGINES, Scratch, TestServer, loop_device, pattern};

const BLOCK: u64 = 4096;
/// Bytes of a small write: fewer than any logical block has, so that no device takes it past the page cache.
const PIECE: u64 = 500;
const BLOCKS: u64 = 16;
const ROUNDS: u64 = 40;

/// Writes each block and a piece of it at the same time, with flushes in between. Checks that every flush succeeds, and that
/// each block's content is the result of the two writes in one of the two orders.
fn write_blocks_and_pieces_at_once(test: &TestServer) {
    let mut clients = [test.connect("disk0"), test.connect("disk0")];
    for round in 0..ROUNDS {
        let piece = |block: u64| block * BLOCK + (block + round) % (BLOCK / PIECE) * PIECE;
        let mut sent: [Vec<u64>; 2] = Default::default();
        for block in 0..BLOCKS {
            // Who comes first changes from block to block and from round to round.
            for whole in if (block + round) % 3 == 0 { [true, false] } else { [false, true] } {
                let (offset, len) = if whole { (block * BLOCK, BLOCK) } else { (piece(block), PIECE) };
                let which = (block + u64::from(whole)) as usize % 2;
                let payload = pattern(offset, 2 * round + u64::from(whole), len as usize);
                sent[which].push(clients[which].send(Command::Write, CommandFlags::NONE, offset, len, &payload));
            }
            if block % 4 == 3 {
                sent[0].push(clients[0].send(Command::Flush, CommandFlags::NONE, 0, 0, &[]));
            }
        }
        for (client, cookies) in clients.iter_mut().zip(sent) {
            for cookie in cookies {
                client.wait(cookie).unwrap_or_else(|errno| panic!("round {round}: {errno:?}"));
            }
        }
        check(&mut clients[0], round, piece);
    }
    assert_eq!(test.server.state().volumes[0].error, None);
}

fn check(client: &mut Client, round: u64, piece: impl Fn(u64) -> u64) {
    for block in 0..BLOCKS {
        let at = block * BLOCK;
        let direct = client.read(at, BLOCK).unwrap();
        let through_cache = client.read(at + 1, BLOCK - 1).unwrap();
        assert_eq!(direct[1..], through_cache, "round {round}, block {block}: stale data in the page cache");
        let mut whole = pattern(at, 2 * round + 1, BLOCK as usize);
        let within = (piece(block) - at) as usize..(piece(block) - at + PIECE) as usize;
        if direct != whole {
            whole[within].copy_from_slice(&pattern(piece(block), 2 * round, PIECE as usize));
            assert_eq!(direct, whole, "round {round}, block {block}");
        }
    }
}

#[test]
fn a_file_takes_blocks_and_pieces_at_once() {
    for engine in ENGINES {
        let test = TestServer::start("overlap", engine, "[server]\nworkers = 2\n[volumes.disk0]\nsize = \"1MiB\"\n");
        write_blocks_and_pieces_at_once(&test);
        test.server.shutdown().unwrap();
    }
}

#[test]
fn a_block_device_takes_blocks_and_pieces_at_once() {
    let scratch = Scratch::new("overlap-loop");
    let Some(device) = loop_device(&scratch) else { return };
    for engine in ENGINES {
        let text = format!(
            "[server]\nworkers = 2\n[volumes.disk0]\nbackend = \"block\"\npath = \"{}\"\n",
            device.path().display()
        );
        let test = TestServer::start("overlap-block", engine, &text);
        write_blocks_and_pieces_at_once(&test);
        test.server.shutdown().unwrap();
    }
}
