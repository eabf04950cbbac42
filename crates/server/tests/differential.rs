//! Sends the same random requests to every back end, on two connections with several requests in flight, and compares the
//! results with a model in the test's memory.

use crate::support;

use evenkeel_nbd::wire::{Command, CommandFlags, Errno, STATE_ZERO, TransmissionFlags};
use evenkeel_policy::config::Engine;
use support::{Client, ENGINES, Random, Scratch, TestServer, loop_device, pattern};

/// Number of parts of the volume. At most one request is in flight in each part, so that the result does not depend on the
/// order of requests.
const PARTS: u64 = 8;
const PART: u64 = 256 << 10;
/// Bytes by which the last part is shorter for volumes in files and memory, which need not be multiples of a block.
const ODD_END: u64 = 1_236;
const ROUNDS: u64 = 100;

/// Expected content of the volume.
struct Model {
    bytes: Vec<u8>,
    /// For each byte: true if it was trimmed, so that it may read as its old value or as zero.
    trimmed: Vec<bool>,
}

/// A request in flight, with the index of its client.
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

    /// Applies a request and its result to the model; an error says why the result is wrong.
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

    /// Checks that each extent (length in bytes, status) that is said to read as zero may be zero according to the model.
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

/// Sends a random request within a part of the volume. `status`: it may be a block status request.
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
        14 if client.connected.flags.contains(TransmissionFlags::SEND_CACHE) => Command::Cache,
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

/// Compares the volume `disk0` of a server with the model after random requests; returns the volume's final content.
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

/// Calls [`compare`] for servers with the configuration `settings`, with both engines.
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

/// The lab `rbd` starts a cluster, creates an image for each engine, and runs this test.
#[test]
#[ignore = "needs a Ceph cluster: cargo xtask lab rbd"]
fn an_rbd_image_is_what_was_written() {
    let variable = |name| std::env::var(name).expect("the lab rbd sets the variables and starts this test");
    let (conf, images) = (variable("EVENKEEL_CEPH_CONF"), variable("EVENKEEL_RBD_IMAGES"));
    assert_eq!(images.split(' ').count(), ENGINES.len(), "one image for each engine: {images}");
    for ((engine, seed), image) in ENGINES.into_iter().zip(300..).zip(images.split(' ')) {
        let text = format!("[volumes.disk0]\nbackend = \"rbd\"\nrbd = \"{image}\"\nceph_conf = \"{conf}\"\n");
        let test = TestServer::start(&format!("differential-rbd-{engine:?}"), engine, &text);
        compare("rbd", &test, engine, seed);
    }
    // The lab runs this test alone. A normal end of the process would abort it now and then: see `leave`.
    println!("as the model: {images}");
    evenkeel_server::leave(0);
}
