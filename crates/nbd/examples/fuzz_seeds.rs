//! Writes seeds for the fuzzers into the folder given (`fuzz/corpus`): one file for
//! each exchange between this crate's own client and server.
//!
//! `cargo run -p evenkeel-nbd --example fuzz_seeds -- fuzz/corpus`

use std::path::{Path, PathBuf};
use std::{env, fs, io};

use evenkeel_nbd::client::{self, Purpose, Wanted};
use evenkeel_nbd::fuzz::Shelf;
use evenkeel_nbd::server::{self, Offer, Status, reply};
use evenkeel_nbd::wire::{Command, CommandFlags, Errno, Extent, Framing, TransmissionFlags};

fn main() -> io::Result<()> {
    let folder = PathBuf::from(env::args_os().nth(1).expect("the folder to write to"));
    for framing in [Framing::Simple, Framing::Structured, Framing::Extended] {
        for (purpose, what) in [(Purpose::Go, "go"), (Purpose::Info, "info"), (Purpose::List, "list")] {
            negotiation(&folder, framing, purpose, what)?;
        }
        transmission(&folder, framing)?;
    }
    Ok(())
}

fn save(folder: &Path, target: &str, name: &str, parts: &[&[u8]]) -> io::Result<()> {
    let folder = folder.join(target);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(name), parts.concat())
}

fn choice(framing: Framing) -> u8 {
    match framing {
        Framing::Simple => 0,
        Framing::Structured => 1,
        Framing::Extended => 2,
    }
}

/// At least one request of each command that this framing allows; the last one is a disconnect.
fn requests(framing: Framing) -> Vec<client::Request> {
    let request = |cookie, command, flags, offset, length| client::Request { cookie, command, flags, offset, length };
    let mut list = vec![
        request(1, Command::Read, CommandFlags::NONE, 4096, 512),
        request(2, Command::Write, CommandFlags::FUA, 512, 64),
        request(3, Command::Flush, CommandFlags::NONE, 0, 0),
        request(4, Command::Trim, CommandFlags::NONE, 0, 4096),
        request(5, Command::Cache, CommandFlags::NONE, 0, 4096),
        request(6, Command::WriteZeroes, CommandFlags::FAST_ZERO | CommandFlags::NO_HOLE, 0, 4096),
        request(7, Command::Read, CommandFlags::NONE, 1 << 40, 512),
    ];
    if framing.has_chunks() {
        list.push(request(8, Command::Read, CommandFlags::DF, 0, 100));
        list.push(request(39, Command::BlockStatus, CommandFlags::NONE, 0x1234_5678, 1 << 20));
        list.push(request(38, Command::BlockStatus, CommandFlags::REQ_ONE, 0x1234_5678, 1 << 20));
    }
    list.push(request(10, Command::Disconnect, CommandFlags::NONE, 0, 0));
    list
}

/// The bytes of all [`requests`] on the wire, each write with its data.
fn wire(framing: Framing) -> Vec<u8> {
    let mut bytes = Vec::new();
    for request in requests(framing) {
        request.encode(framing, &mut bytes);
        if request.command == Command::Write {
            bytes.extend(std::iter::repeat_n(b'w', request.length as usize));
        }
    }
    bytes
}

/// Connects client and server until the client's handshake ends; saves the bytes of each side as a seed.
fn negotiation(folder: &Path, framing: Framing, purpose: Purpose, what: &str) -> io::Result<()> {
    let wanted = Wanted { export: "disk0".into(), purpose, framing, base_allocation: true, tls: false };
    let mut client = client::Handshake::new(wanted);
    let mut server = server::Handshake::new(Offer::default());
    let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
    server.greet(&mut to_client);
    let (mut taken, mut seen) = (0, 0);
    let mut status = Status::More;
    loop {
        let step = client.advance(&to_client[seen..], &mut to_server).expect("a sound server");
        seen += step.consumed;
        while taken < to_server.len() && status == Status::More {
            let step = server.advance(&to_server[taken..], &Shelf, &mut to_client).expect("a sound client");
            taken += step.consumed;
            status = step.status;
        }
        if step.outcome.is_some() {
            break;
        }
    }
    let name = format!("own-{what}-{}", choice(framing));
    let purpose = match purpose {
        Purpose::Go => 0,
        Purpose::Info => 2,
        Purpose::List => 3,
    };
    let wanted = 128 | choice(framing) << 2 | purpose;
    save(folder, "client_handshake", &name, &[&[wanted, 0], &to_client])?;
    let after = if purpose == 0 { wire(framing) } else { Vec::new() };
    save(folder, "handshake", &name, &[&[0, 0], &to_server, &after])
}

/// Saves a seed of all [`requests`] for the server, and a seed of their replies for the client's parser.
fn transmission(folder: &Path, framing: Framing) -> io::Result<()> {
    let name = format!("own-{}", choice(framing));
    let flags = TransmissionFlags::ALL.without(TransmissionFlags::READ_ONLY).bits().to_be_bytes();
    save(folder, "transmission", &name, &[&[choice(framing)], &flags, &[0], &wire(framing)])?;

    let mut asked = Vec::new();
    let mut answers = Vec::new();
    for request in requests(framing).into_iter().filter(|request| request.command != Command::Disconnect) {
        // The target reads what is outstanding in extended form, and no data with it.
        let command = if request.command == Command::Write { Command::Trim } else { request.command };
        client::Request { command, ..request }.encode(Framing::Extended, &mut asked);
        answer(framing, &request, &mut answers);
    }
    let count = requests(framing).len() as u8 - 1;
    let prefix = [choice(framing), reply::BASE_ALLOCATION_ID as u8, 0, count];
    save(folder, "client_replies", &name, &[&prefix, &asked, &answers])
}

fn answer(framing: Framing, request: &client::Request, out: &mut Vec<u8>) {
    let (cookie, offset, length) = (request.cookie, request.offset, request.length as u32);
    match request.command {
        Command::Read if offset >= 1 << 30 => {
            out.extend_from_slice(reply::error(framing, cookie, offset, Errno::Invalid).as_slice());
        }
        Command::Read if framing.has_chunks() && length == 512 => {
            let half = length / 2;
            out.extend_from_slice(reply::data_chunk(framing, cookie, offset, offset, half, false).as_slice());
            out.extend(std::iter::repeat_n(b'r', half as usize));
            let at = offset + u64::from(half);
            out.extend_from_slice(reply::hole_chunk(framing, cookie, offset, at, half, true).as_slice());
        }
        Command::Read => {
            out.extend_from_slice(reply::read(framing, cookie, offset, length).as_slice());
            out.extend(std::iter::repeat_n(b'r', length as usize));
        }
        Command::BlockStatus => {
            let extents = [Extent { length: 4096, status: 0 }, Extent { length: 1 << 33, status: 3 }];
            let one = request.flags.contains(CommandFlags::REQ_ONE);
            reply::block_status(framing, cookie, offset, request.length, one, extents, out);
        }
        Command::Cache => {
            out.extend_from_slice(reply::error_at(framing, cookie, offset, Errno::Io, offset + 1).as_slice());
        }
        _ => out.extend_from_slice(reply::ok(framing, cookie, offset).as_slice()),
    }
}
