//! Encoders and parsers of a client's messages, independent of the crate's
//! own, so that no encoder is tested against itself; and a directory of exports.
#![allow(dead_code, reason = "each test uses a part of it")]

use evenkeel_nbd::server::{Access, Directory, Export, Handshake, Offer, Status};
use evenkeel_nbd::wire::{Framing, TransmissionFlags, option, reply};

/// All transmission flags that this crate supports but READ_ONLY and ROTATIONAL.
pub(crate) fn all_flags() -> TransmissionFlags {
    TransmissionFlags::from_bits(0b1101_1110_1101)
}

/// A directory of three exports: `disk0` (the default), `rough` (4 KiB blocks), `plain` (no description, no features).
pub(crate) struct Shelf;

const SHELF: [(&str, &str, u64, u32); 3] =
    [("disk0", "first disk", 1 << 30, 1), ("rough", "needs 4 KiB blocks", 1 << 20, 4096), ("plain", "", 12345, 1)];

pub(crate) fn export(index: usize) -> Export<'static> {
    let (name, description, size, min_block) = SHELF[index];
    let flags = if name == "plain" { TransmissionFlags::READ_ONLY } else { all_flags() };
    Export {
        name,
        description,
        size,
        flags,
        min_block,
        preferred_block: 4096,
        max_payload: 1 << 25,
        access: Access::Open,
    }
}

impl Directory for Shelf {
    fn count(&self) -> usize {
        SHELF.len()
    }

    fn visit(&self, from: usize, f: &mut dyn FnMut(&Export<'_>) -> bool) -> Option<usize> {
        (from..SHELF.len()).find(|&index| !f(&export(index))).map(|index| index + 1)
    }

    fn find(&self, name: &str, f: &mut dyn FnMut(&Export<'_>)) -> bool {
        let name = if name.is_empty() { "disk0" } else { name };
        let found = SHELF.iter().position(|entry| entry.0 == name);
        found.map(|index| f(&export(index))).is_some()
    }
}

pub(crate) const FIXED: u32 = 1;
pub(crate) const NO_ZEROES: u32 = 2;

pub(crate) fn opt(code: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend(code.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

/// Data of the options INFO and GO, for this export and these types of information.
pub(crate) fn describe(name: &str, requests: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend((requests.len() as u16).to_be_bytes());
    requests.iter().for_each(|request| data.extend(request.to_be_bytes()));
    data
}

/// Data of the options LIST_META_CONTEXT and SET_META_CONTEXT, for this export and these queries.
pub(crate) fn queries(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend((queries.len() as u32).to_be_bytes());
    for query in queries {
        data.extend((query.len() as u32).to_be_bytes());
        data.extend(query.as_bytes());
    }
    data
}

/// One reply to an option; `kind` is the reply type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) option: u32,
    pub(crate) kind: u32,
    pub(crate) data: Vec<u8>,
}

/// Splits the server's bytes into replies to options; the second element is the rest, such as a reply to EXPORT_NAME.
pub(crate) fn answers(mut bytes: &[u8]) -> (Vec<Answer>, &[u8]) {
    let mut list = Vec::new();
    while bytes.len() >= 20 && bytes[..8] == 0x0003_e889_0455_65a9u64.to_be_bytes() {
        let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let (option, kind, length) = (word(8), word(12), word(16) as usize);
        list.push(Answer { option, kind, data: bytes[20..20 + length].to_vec() });
        bytes = &bytes[20 + length..];
    }
    (list, bytes)
}

pub(crate) fn ack(option: u32) -> Answer {
    Answer { option, kind: reply::ACK, data: vec![] }
}

/// A server's handshake that has received these client flags and waits for the first option.
pub(crate) fn greeted(flags: u32) -> Handshake {
    let mut handshake = Handshake::new(Offer::default());
    let mut out = Vec::new();
    handshake.greet(&mut out);
    let step = handshake.advance(&flags.to_be_bytes(), &Shelf, &mut out).expect("flags are known");
    assert_eq!((step.consumed, step.status), (4, Status::More));
    handshake
}

/// A server's handshake in which this framing is negotiated.
pub(crate) fn framed(framing: Framing) -> Handshake {
    let mut handshake = greeted(FIXED | NO_ZEROES);
    let option = match framing {
        Framing::Simple => return handshake,
        Framing::Structured => option::STRUCTURED_REPLY,
        Framing::Extended => option::EXTENDED_HEADERS,
    };
    assert_eq!(ask(&mut handshake, &opt(option, b"")).0, vec![ack(option)]);
    handshake
}

/// Sends whole options; returns the server's answers and the last status.
pub(crate) fn ask(handshake: &mut Handshake, mut bytes: &[u8]) -> (Vec<Answer>, Status) {
    let mut out = Vec::new();
    loop {
        let step = handshake.advance(bytes, &Shelf, &mut out).expect("no violation");
        bytes = &bytes[step.consumed..];
        if bytes.is_empty() || step.status != Status::More {
            let (list, rest) = answers(&out);
            assert!(rest.is_empty(), "not an option reply: {rest:?}");
            return (list, step.status);
        }
    }
}

pub(crate) fn compact(command: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes
}

pub(crate) fn extended(command: u16, flags: u16, cookie: u64, offset: u64, length: u64) -> Vec<u8> {
    let mut bytes = 0x21e4_1c71u32.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes
}
