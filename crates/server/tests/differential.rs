//! The same requests by chance on every back end, on two connections with several in flight, compared with a volume in the test's
//! memory. RBD images have a lab with a real cluster.

use crate::support;

use evenkeel_nbd::wire::{Command, CommandFlags, Errno, STATE_ZERO};
use evenkeel_policy::config::Engine;
use support::{Client, ENGINES, Random, Scratch, TestServer, loop_device, pattern};

/// Parts of the volume, in each of which one request is in flight at a time: what comes about in a part depends on no order.
const PARTS: u64 = 8;
const PART: u64 = 256 << 10;
/// Of files and memory, which no block size binds, the last part is shorter.
const ODD_END: u64 = 1_236;
const ROUNDS: u64 = 100;

/// Expected content of the volume.
struct Model {
    bytes: Vec<u8>,
    /// Trimmed: what it was, or zero.
    trimmed: Vec<bool>,
}

/// A request in flight.
struct Asked {
    client: usize,
    cookie: u64,
    command: Command,
    flags: CommandFlags,
    range: std::ops::Range<usize>,
    payload: Vec<u8>,
}

impl Model {
    fn new(size: u64) -> Self {
        Self { bytes: vec![0; size as usize], trimmed: vec![false; size as usize] }
    }

    /// Takes what a request was answered with; why that is wrong, if it is.
    fn take(&mut self, asked: &Asked, result: Result<Vec<u8>, Errno>) -> Result<(), String> {
        let (bytes, trimmed) = (&mut self.bytes[asked.range.clone()], &mut self.trimmed[asked.range.clone()]);
        match (asked.command, result) {
            (Command::WriteZeroes, Err(Errno::NotSupported)) if asked.flags.contains(CommandFlags::FAST_ZERO) => Ok(()),
            (_, Err(errno)) => Err(format!("{errno:?}")),
            (Command::Read, Ok(data)) => {
                for (at, ((was, trimmed), is)) in bytes.iter_mut().zip(trimmed).zip(data).enumerate() {
                    if is != *was && !(*trimmed && is == 0) {
                        return Err(format!("byte {} is {is:#x} instead of {was:#x}", asked.range.start + at));
                    }
                    (*was, *trimmed) = (is, false);
                }
                Ok(())
            }
            (Command::Write, Ok(_)) => {
                bytes.copy_from_slice(&asked.payload);
                trimmed.fill(false);
                Ok(())
            }
            (Command::WriteZeroes, Ok(_)) => {
                bytes.fill(0);
                trimmed.fill(false);
                Ok(())
            }
            (Command::Trim, Ok(_)) => {
                trimmed.fill(true);
                Ok(())
            }
            (_, Ok(_)) => Ok(()),
        }
    }

    /// Whether what was said to read as zeros does.
    fn has_zeros(&self, asked: &Asked, extents: &[(u64, u64)]) -> Result<(), String> {
        let mut at = asked.range.start;
        for &(length, status) in extents {
            let end = asked.range.end.min(at + length as usize);
            let wrong = |at: &usize| self.bytes[*at] != 0 && !self.trimmed[*at];
            if status & u64::from(STATE_ZERO) != 0
                && let Some(wrong) = (at..end).find(wrong)
            {
                return Err(format!("byte {wrong} is {:#x} in zeros", self.bytes[wrong]));
            }
            at = end;
        }
        if at == asked.range.start { Err("no extent".into()) } else { Ok(()) }
    }
}

/// A request by chance within a part of the volume.
fn ask(client: &mut Client, which: usize, part: u64, status: bool, round: u64, random: &mut Random) -> Asked {
    let begin = part * PART;
    let room = PART.min(client.connected.size - begin);
    // Whole pages for files past the page cache, sectors, and anything.
    let unit = [4_096, 512, 1][random.below(3) as usize];
    let longest = [room, 8_192.min(room)][random.below(2) as usize];
    let length = (random.below(longest) / unit * unit).max(unit);
    let offset = begin + random.below(room - length + 1) / unit * unit;
    let command = match random.below(16) {
        0..5 => Command::Read,
        5..11 => Command::Write,
        11 => Command::Trim,
        12..14 => Command::WriteZeroes,
        14 => Command::Cache,
        _ if status => Command::BlockStatus,
        _ => Command::Flush,
    };
    let mut flags = CommandFlags::NONE;
    let durable = matches!(command, Command::Write | Command::Trim | Command::WriteZeroes) && random.below(12) == 0;
    for (wanted, flag) in [
        (durable, CommandFlags::FUA),
        (command == Command::WriteZeroes && random.below(2) == 0, CommandFlags::NO_HOLE),
        (command == Command::WriteZeroes && random.below(3) == 0, CommandFlags::FAST_ZERO),
    ] {
        if wanted {
            flags |= flag;
        }
    }
    let (offset, length) = if command == Command::Flush { (0, 0) } else { (offset, length) };
    let payload = if command == Command::Write { pattern(offset, round, length as usize) } else { Vec::new() };
    let cookie = client.send(command, flags, offset, length, &payload);
    let range = offset as usize..(offset + length) as usize;
    Asked { client: which, cookie, command, flags, range, payload }
}

/// Compares a volume `disk0` of a server with the model; what it holds in the end.
fn compare(name: &str, test: &TestServer, engine: Engine, seed: u64) -> Vec<u8> {
    // Extended and structured replies, by socket and by TCP.
    let mut clients = [test.connect("disk0"), test.connect_tcp("disk0")];
    let size = clients[0].connected.size;
    let (mut model, mut random) = (Model::new(size), Random(seed));
    for round in 0..ROUNDS {
        let mut asked = Vec::new();
        let mut status = round % 2 == 0;
        for part in 0..size.div_ceil(PART) {
            let which = random.below(2) as usize;
            let one = ask(&mut clients[which], which, part, status, round, &mut random);
            status &= one.command != Command::BlockStatus;
            asked.push(one);
        }
        for one in &asked {
            let client = &mut clients[one.client];
            let result = client.wait(one.cookie);
            let mut judged = model.take(one, result);
            if one.command == Command::BlockStatus {
                let extents = std::mem::take(&mut client.answers.extents);
                judged = judged.and_then(|()| model.has_zeros(one, &extents));
            }
            if let Err(wrong) = judged {
                let Asked { command, flags, range, .. } = one;
                panic!("{name} {engine:?}, seed {seed}, round {round}: {command:?} {flags:?} of {range:?}: {wrong}");
            }
        }
    }
    assert_eq!(clients[0].read(size - 1, 2), Err(Errno::Invalid), "{name}");
    assert_eq!(clients[1].write(size - 1, &[1, 2]), Err(Errno::NoSpace), "{name}");
    let whole = clients[0].read(0, size).unwrap();
    let range = 0..size as usize;
    let all =
        Asked { client: 0, cookie: 0, command: Command::Read, flags: CommandFlags::NONE, range, payload: Vec::new() };
    model
        .take(&all, Ok(whole.clone()))
        .unwrap_or_else(|wrong| panic!("{name} {engine:?}, seed {seed}, at the end: {wrong}"));
    assert_eq!(test.server.state().volumes[0].error, None, "{name}");
    whole
}

/// The same with each of some settings of `disk0`, on both engines.
fn compare_all(name: &str, settings: &str) {
    for (engine, seed) in ENGINES.into_iter().zip(1u64..) {
        let test = TestServer::start(&format!("differential-{name}-{engine:?}"), engine, settings);
        compare(name, &test, engine, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
}

fn odd_size() -> u64 {
    PARTS * PART - ODD_END
}

#[test]
fn a_volume_in_memory_is_what_was_written() {
    compare_all("memory", &format!("[volumes.disk0]\nbackend = \"memory\"\nsize = {}\n", odd_size()));
}

#[test]
fn a_file_is_what_was_written() {
    for cache in ["direct", "buffered"] {
        compare_all(cache, &format!("[volumes.disk0]\nsize = {}\ncache = \"{cache}\"\n", odd_size()));
    }
}

#[test]
fn an_emulated_device_is_what_was_written() {
    let pool = "[pools.main]\nemulate = { preset = \"ssd\" }\n";
    compare_all("emulated", &format!("{pool}[volumes.disk0]\nbackend = \"emulate\"\nsize = {}\n", PARTS * PART));
}

#[test]
fn a_block_device_is_what_was_written() {
    for (engine, seed) in ENGINES.into_iter().zip(100..) {
        let scratch = Scratch::new(&format!("differential-loop-{engine:?}"));
        let Some(device) = loop_device(&scratch) else { return };
        let text = format!("[volumes.disk0]\nbackend = \"block\"\npath = \"{}\"\n", device.path().display());
        let test = TestServer::start(&format!("differential-block-{engine:?}"), engine, &text);
        let whole = compare("block", &test, engine, seed);
        drop(test);
        assert!(
            std::fs::read(scratch.path().join("device.img")).unwrap() == whole,
            "{engine:?}: the device holds something else"
        );
    }
}

#[test]
fn a_volume_on_another_server_is_what_was_written() {
    for (engine, seed) in ENGINES.into_iter().zip(200..) {
        for connections in [1, 3] {
            let name = format!("differential-remote-{engine:?}-{connections}");
            let behind = format!("[volumes.disk0]\nsize = {}\n", odd_size());
            let behind = TestServer::start(&format!("{name}-behind"), engine, &behind);
            let uri = format!("nbd+unix:///disk0?socket={}", behind.socket().display());
            let text = format!("[volumes.disk0]\nbackend = \"nbd\"\nuri = \"{uri}\"\nconnections = {connections}\n");
            let test = TestServer::start(&name, engine, &text);
            let whole = compare("remote", &test, engine, seed + connections);
            assert!(
                behind.connect("disk0").read(0, odd_size()).unwrap() == whole,
                "{engine:?}: the server behind holds something else"
            );
        }
    }
}
