//! Tests of each rule that a server can break, and of each fallback of the client's handshake.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use super::*;
use crate::wire::{Command, Errno, Framing, TransmissionFlags, info, option, reply};

fn bytes(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

// ---- replies ----

const COOKIE: u64 = 0xc00c1e;
const AT: u64 = 0x10000;

#[derive(Default)]
struct Log {
    outstanding: BTreeMap<u64, Expect>,
    content: Vec<u8>,
    extents: Vec<(u64, u64)>,
    done: Vec<(u64, Result<(), Errno>)>,
}

impl Sink for Log {
    fn expect(&self, cookie: u64) -> Option<Expect> {
        self.outstanding.get(&cookie).copied()
    }
    fn data(&mut self, cookie: u64, offset: u64, bytes: &[u8]) {
        let start = (offset - self.outstanding[&cookie].offset) as usize;
        self.content[start..start + bytes.len()].copy_from_slice(bytes);
    }
    fn hole(&mut self, cookie: u64, offset: u64, length: u64) {
        let start = (offset - self.outstanding[&cookie].offset) as usize;
        self.content[start..start + length as usize].fill(0);
    }
    fn extent(&mut self, _: u64, _: u32, length: u64, status: u64) {
        self.extents.push((length, status));
    }
    fn done(&mut self, cookie: u64, result: Result<(), Errno>) {
        assert!(self.outstanding.remove(&cookie).is_some());
        self.done.push((cookie, result));
    }
}

/// Parses `input` while a request of 16 bytes at [`AT`] is outstanding; returns the sink's log and the parser's result.
fn parse_for(command: Command, framing: Framing, input: &[u8]) -> (Log, Result<usize, Violation>) {
    let expect = Expect { command, offset: AT, length: 16, unfragmented: false };
    parse_expecting(expect, framing, input)
}

fn parse_expecting(expect: Expect, framing: Framing, input: &[u8]) -> (Log, Result<usize, Violation>) {
    let mut log = Log { content: vec![0xee; expect.length as usize], ..Log::default() };
    log.outstanding.insert(COOKIE, expect);
    let mut replies = Replies::new(framing, Some(7));
    let result = replies.parse(input, &mut log);
    (log, result)
}

fn simple(error: u32) -> Vec<u8> {
    bytes(&[&0x6744_6698u32.to_be_bytes(), &error.to_be_bytes(), &COOKIE.to_be_bytes()])
}

fn chunk(framing: Framing, flags: u16, kind: u16, payload: &[u8]) -> Vec<u8> {
    let (flags, kind, cookie) = (flags.to_be_bytes(), kind.to_be_bytes(), COOKIE.to_be_bytes());
    if framing.is_extended() {
        let length = (payload.len() as u64).to_be_bytes();
        bytes(&[&0x6e8a_278cu32.to_be_bytes(), &flags, &kind, &cookie, &AT.to_be_bytes(), &length, payload])
    } else {
        let length = (payload.len() as u32).to_be_bytes();
        bytes(&[&0x668e_33efu32.to_be_bytes(), &flags, &kind, &cookie, &length, payload])
    }
}

fn data(framing: Framing, flags: u16, offset: u64, content: &[u8]) -> Vec<u8> {
    chunk(framing, flags, 1, &bytes(&[&offset.to_be_bytes(), content]))
}

fn hole(framing: Framing, flags: u16, offset: u64, length: u32) -> Vec<u8> {
    chunk(framing, flags, 2, &bytes(&[&offset.to_be_bytes(), &length.to_be_bytes()]))
}

fn error(framing: Framing, flags: u16, code: u32, message: &[u8]) -> Vec<u8> {
    let length = (message.len() as u16).to_be_bytes();
    chunk(framing, flags, 0x8001, &bytes(&[&code.to_be_bytes(), &length, message]))
}

const CHUNKED: [Framing; 2] = [Framing::Structured, Framing::Extended];

#[test]
fn a_simple_read_brings_its_content() {
    let (log, result) = parse_for(Command::Read, Framing::Simple, &bytes(&[&simple(0), &[5; 16]]));
    assert_eq!((result, log.done, log.content), (Ok(32), vec![(COOKIE, Ok(()))], vec![5; 16]));
    let (log, result) = parse_for(Command::Read, Framing::Simple, &simple(28));
    assert_eq!((result, log.done), (Ok(16), vec![(COOKIE, Err(Errno::NoSpace))]));
}

#[test]
fn a_read_in_chunks_is_put_together_in_any_order() {
    for framing in CHUNKED {
        let input =
            bytes(&[&data(framing, 0, AT + 12, &[3; 4]), &hole(framing, 0, AT + 4, 8), &data(framing, 1, AT, &[1; 4])]);
        let (log, result) = parse_for(Command::Read, framing, &input);
        assert_eq!((result, log.done), (Ok(input.len()), vec![(COOKIE, Ok(()))]));
        assert_eq!(log.content, bytes(&[&[1; 4], &[0; 8], &[3; 4]]));
    }
}

#[test]
fn an_error_amid_content_fails_the_request_and_keeps_the_connection() {
    for framing in CHUNKED {
        let input = bytes(&[
            &data(framing, 0, AT, &[1; 4]),
            &error(framing, 0, 5, b"disk"),
            &error(framing, 0, 28, b""),
            &chunk(framing, 1, 0, &[]),
        ]);
        let (log, result) = parse_for(Command::Read, framing, &input);
        assert_eq!((result, log.done), (Ok(input.len()), vec![(COOKIE, Err(Errno::Io))]));
    }
}

#[test]
fn extents_are_handed_out() {
    let structured =
        bytes(&[&7u32.to_be_bytes(), &4u32.to_be_bytes(), &3u32.to_be_bytes(), &60u32.to_be_bytes(), &[0; 4]]);
    let extended = bytes(&[
        &7u32.to_be_bytes(),
        &2u32.to_be_bytes(),
        &4u64.to_be_bytes(),
        &3u64.to_be_bytes(),
        &60u64.to_be_bytes(),
        &[0; 8],
    ]);
    for (framing, kind, payload) in [(Framing::Structured, 5, structured), (Framing::Extended, 6, extended)] {
        let (log, result) = parse_for(Command::BlockStatus, framing, &chunk(framing, 1, kind, &payload));
        assert_eq!(result, Ok(chunk(framing, 1, kind, &payload).len()));
        assert_eq!((log.extents, log.done), (vec![(4, 3), (60, 0)], vec![(COOKIE, Ok(()))]));
    }
}

#[test]
fn every_rule_of_replies_is_enforced() {
    use Command::{BlockStatus, Flush, Read, Write};
    let s = Framing::Structured;
    let x = Framing::Extended;
    let extents = |context: u32, lengths: &[u32]| {
        let extents: Vec<Vec<u8>> = lengths.iter().map(|length| bytes(&[&length.to_be_bytes(), &[0; 4]])).collect();
        bytes(&[&context.to_be_bytes(), &extents.concat()])
    };
    let mut stranger = simple(0);
    stranger[15] ^= 1;
    let mut elsewhere = chunk(x, 1, 0, &[]);
    elsewhere[23] ^= 1;
    let cases: [(&str, Framing, Command, Vec<u8>); 35] = [
        ("wrong magic", Framing::Simple, Read, vec![0; 16]),
        ("chunk without negotiation", Framing::Simple, Read, chunk(s, 1, 0, &[])),
        ("structured chunk in extended mode", x, Flush, bytes(&[&chunk(s, 1, 0, &[]), &[0; 12]])),
        ("simple reply in extended mode", x, Flush, bytes(&[&simple(0), &[0; 16]])),
        ("unknown cookie", Framing::Simple, Flush, stranger),
        ("answered twice", Framing::Simple, Flush, bytes(&[&simple(0), &simple(0)])),
        ("simple reply to a structured read", s, Read, simple(0)),
        ("simple error to a structured read", s, Read, simple(5)),
        ("simple reply to block status", s, BlockStatus, simple(0)),
        ("simple reply amid chunks", s, Flush, bytes(&[&error(s, 0, 5, b""), &simple(0)])),
        ("another offset repeated", x, Flush, elsewhere),
        ("empty chunk that does not end", s, Flush, chunk(s, 0, 0, &[])),
        ("empty chunk with a payload", s, Flush, chunk(s, 1, 0, &[0])),
        ("unknown chunk type", s, Read, chunk(s, 1, 3, &[0; 16])),
        ("data for a write", s, Write, data(s, 1, AT, &[0; 16])),
        ("data chunk without data", s, Read, data(s, 1, AT, &[])),
        ("data before the range", s, Read, data(s, 0, AT - 1, &[0; 4])),
        ("data after the range", s, Read, data(s, 0, AT + 13, &[0; 4])),
        ("data at the end of all offsets", s, Read, data(s, 0, u64::MAX, &[0; 4])),
        ("hole for a flush", s, Flush, hole(s, 1, AT, 16)),
        ("hole of the wrong length", s, Read, chunk(s, 1, 2, &[0; 11])),
        ("empty hole", s, Read, hole(s, 0, AT, 0)),
        ("hole beyond the range", s, Read, hole(s, 0, AT, 17)),
        ("content twice", s, Read, bytes(&[&data(s, 0, AT, &[0; 8]), &hole(s, 0, AT + 7, 2)])),
        ("reply without content", s, Read, chunk(s, 1, 0, &[])),
        ("reply with a gap", s, Read, bytes(&[&data(s, 0, AT, &[0; 8]), &data(s, 1, AT + 9, &[0; 7])])),
        ("error without a code", s, Read, error(s, 1, 0, b"")),
        ("error too short", s, Read, chunk(s, 1, 0x8001, &[0; 5])),
        ("error with a message of another length", s, Read, chunk(s, 1, 0x8001, &[0, 0, 0, 5, 0, 2, b'x'])),
        ("error at an offset elsewhere", s, Read, chunk(s, 1, 0x8002, &bytes(&[&[0, 0, 0, 5, 0, 0], &[0; 8]]))),
        ("extents for a read", s, Read, chunk(s, 1, 5, &extents(7, &[16]))),
        ("extents of another context", s, BlockStatus, chunk(s, 1, 5, &extents(8, &[16]))),
        ("empty extent", s, BlockStatus, chunk(s, 1, 5, &extents(7, &[0, 16]))),
        ("extent after the range", s, BlockStatus, chunk(s, 1, 5, &extents(7, &[16, 1]))),
        ("no extents at all", s, BlockStatus, chunk(s, 1, 0, &[])),
    ];
    for (rule, framing, command, input) in cases {
        let (log, result) = parse_for(command, framing, &input);
        assert!(result.is_err(), "{rule}: {result:?}, done {:?}", log.done);
    }
    let narrow_in_extended = chunk(x, 1, 5, &extents(7, &[16]));
    assert!(parse_for(BlockStatus, x, &narrow_in_extended).1.is_err());
    let twice = bytes(&[&chunk(s, 0, 5, &extents(7, &[16])), &chunk(s, 1, 5, &extents(7, &[16]))]);
    assert!(parse_for(BlockStatus, s, &twice).1.is_err());
}

/// A reply with content that ends beyond offset 2^64 is refused, even if the client asked for it: no export is so long.
#[test]
fn content_beyond_the_last_offset_is_refused() {
    let expect = |offset| Expect { command: Command::Read, offset, length: 4, unfragmented: false };
    for (framing, input) in [
        (Framing::Simple, simple(0)),
        (Framing::Structured, data(Framing::Structured, 1, u64::MAX - 2, b"four")),
        (Framing::Structured, hole(Framing::Structured, 1, u64::MAX - 2, 4)),
    ] {
        let (log, parsed) = parse_expecting(expect(u64::MAX - 2), framing, &input);
        assert!(parsed.is_err() && log.done.is_empty() && log.content == [0xee; 4], "{framing:?}: {parsed:?}");
    }
}

#[test]
fn a_read_that_forbids_fragments_gets_none() {
    let expect = Expect { command: Command::Read, offset: AT, length: 16, unfragmented: true };
    for framing in CHUNKED {
        let whole = data(framing, 0, AT, &[1; 16]);
        let (log, result) = parse_expecting(expect, framing, &bytes(&[&whole, &chunk(framing, 1, 0, &[])]));
        assert!(result.is_ok() && log.done == [(COOKIE, Ok(()))]);
        let part = data(framing, 0, AT, &[1; 8]);
        assert!(parse_expecting(expect, framing, &part).1.is_err());
    }
}

#[test]
fn a_reply_without_end_is_refused() {
    for framing in CHUNKED {
        let mut errors = error(framing, 0, 5, b"").repeat(1024);
        assert!(parse_for(Command::Flush, framing, &errors).1.is_ok());
        errors.extend(error(framing, 0, 5, b""));
        assert!(parse_for(Command::Flush, framing, &errors).1.is_err());
    }
    // The header alone says how many there are.
    let header = |extents: u64| {
        let (magic, payload) = (0x6e8a_278cu32.to_be_bytes(), 8 + 16 * extents);
        bytes(&[&magic, &[0, 1, 0, 6], &COOKIE.to_be_bytes(), &AT.to_be_bytes(), &payload.to_be_bytes()])
    };
    assert!(parse_for(Command::BlockStatus, Framing::Extended, &header(1 << 20)).1.is_ok());
    assert!(parse_for(Command::BlockStatus, Framing::Extended, &header((1 << 20) + 1)).1.is_err());
}

#[test]
fn an_unknown_kind_of_error_is_still_an_error() {
    let later = chunk(Framing::Structured, 1, 0x8077, &bytes(&[&[0, 0, 0, 28, 0, 1], b"x", &[9; 20]]));
    let (log, result) = parse_for(Command::Write, Framing::Structured, &later);
    assert_eq!((result, log.done), (Ok(later.len()), vec![(COOKIE, Err(Errno::NoSpace))]));
}

// ---- handshake ----

fn wanted(purpose: Purpose) -> Wanted {
    Wanted { export: "disk".to_owned(), purpose, framing: Framing::Extended, base_allocation: true, tls: false }
}

fn greeting(flags: u16) -> Vec<u8> {
    bytes(&[b"NBDMAGICIHAVEOPT", &flags.to_be_bytes()])
}

fn answer(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let magic = 0x0003_e889_0455_65a9u64.to_be_bytes();
    bytes(&[&magic, &option.to_be_bytes(), &kind.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data])
}

fn export(size: u64) -> Vec<u8> {
    bytes(&[&info::EXPORT.to_be_bytes(), &size.to_be_bytes(), &1u16.to_be_bytes()])
}

fn block_size(min: u32, preferred: u32, max: u32) -> Vec<u8> {
    bytes(&[&info::BLOCK_SIZE.to_be_bytes(), &min.to_be_bytes(), &preferred.to_be_bytes(), &max.to_be_bytes()])
}

/// Codes of the options in `out`, which holds whole options.
fn asked(mut out: &[u8]) -> Vec<u32> {
    let mut options = Vec::new();
    while out.len() >= 16 {
        assert_eq!(&out[..8], b"IHAVEOPT");
        options.push(be32(out, 8));
        out = &out[16 + be32(out, 12) as usize..];
    }
    assert!(out.is_empty());
    options
}

/// Runs a client's handshake on the bytes that a scripted server sends; returns the codes of the client's options and the
/// outcome.
fn talk(wanted: Wanted, input: &[u8]) -> (Vec<u32>, Result<Option<Outcome>, Violation>) {
    let mut out = Vec::new();
    let mut handshake = Handshake::new(wanted);
    let result = handshake.advance(input, &mut out).map(|step| step.outcome);
    (asked(out.get(4..).unwrap_or_default()), result)
}

#[test]
fn all_that_is_wanted_is_asked_for_and_granted() {
    let input = bytes(&[
        &greeting(3),
        &answer(option::EXTENDED_HEADERS, reply::ACK, &[]),
        &answer(option::SET_META_CONTEXT, reply::META_CONTEXT, &bytes(&[&9u32.to_be_bytes(), b"base:allocation"])),
        &answer(option::SET_META_CONTEXT, reply::ACK, &[]),
        &answer(option::GO, reply::INFO, &export(1 << 30)),
        &answer(option::GO, reply::INFO, &block_size(512, 4096, 1 << 20)),
        &answer(option::GO, reply::INFO, &bytes(&[&info::NAME.to_be_bytes(), b"disk0"])),
        &answer(option::GO, reply::INFO, &bytes(&[&77u16.to_be_bytes(), b"from the future"])),
        &answer(option::GO, reply::ACK, &[]),
    ]);
    let (options, result) = talk(wanted(Purpose::Go), &input);
    assert_eq!(options, [option::EXTENDED_HEADERS, option::SET_META_CONTEXT, option::GO]);
    let expected = Connected {
        size: 1 << 30,
        flags: TransmissionFlags::HAS_FLAGS,
        min_block: 512,
        preferred_block: 4096,
        max_payload: 1 << 20,
        framing: Framing::Extended,
        context: Some(9),
        name: Some("disk0".to_owned()),
        description: None,
    };
    assert_eq!(result, Ok(Some(Outcome::Connected(expected))));
}

#[test]
fn an_old_server_is_used_as_it_is() {
    let unsupported = |option| answer(option, reply::ERR_UNSUP, b"what?");
    let zeroes = [0; 124];
    for (flags, tail) in [(1, &zeroes[..]), (3, &[][..])] {
        let input = bytes(&[
            &greeting(flags),
            &unsupported(option::EXTENDED_HEADERS),
            &unsupported(option::STRUCTURED_REPLY),
            &unsupported(option::GO),
            &(1u64 << 20).to_be_bytes(),
            &3u16.to_be_bytes(),
            tail,
        ]);
        let (options, result) = talk(wanted(Purpose::Go), &input);
        let all = [option::EXTENDED_HEADERS, option::STRUCTURED_REPLY, option::GO];
        assert_eq!(options[..3], all);
        assert_eq!(options[3..], [option::EXPORT_NAME]);
        let Ok(Some(Outcome::Connected(connected))) = result else { panic!("{result:?}") };
        assert_eq!((connected.size, connected.framing, connected.context), (1 << 20, Framing::Simple, None));
    }
}

#[test]
fn a_server_without_fixed_newstyle_gets_the_name_at_once() {
    let input = bytes(&[&greeting(0), &5u64.to_be_bytes(), &[0; 2], &[0; 124]]);
    let (options, result) = talk(wanted(Purpose::Go), &input);
    assert_eq!(options, [option::EXPORT_NAME]);
    assert!(matches!(result, Ok(Some(Outcome::Connected(Connected { size: 5, .. })))));
    let (_, result) = talk(wanted(Purpose::List), &greeting(0));
    assert!(matches!(result, Ok(Some(Outcome::Refused(_)))));
}

#[test]
fn structured_replies_are_the_second_choice() {
    let input = bytes(&[
        &greeting(3),
        &answer(option::EXTENDED_HEADERS, reply::ERR_POLICY, &[]),
        &answer(option::STRUCTURED_REPLY, reply::ACK, &[]),
        &answer(option::SET_META_CONTEXT, reply::ERR_UNSUP, &[]),
        &answer(option::GO, reply::INFO, &export(1)),
        &answer(option::GO, reply::ACK, &[]),
    ]);
    let Ok(Some(Outcome::Connected(connected))) = talk(wanted(Purpose::Go), &input).1 else { panic!() };
    assert_eq!((connected.framing, connected.context), (Framing::Structured, None));
}

#[test]
fn a_list_and_a_refusal_end_with_an_abort() {
    let entry = |name: &[u8], text: &[u8]| bytes(&[&(name.len() as u32).to_be_bytes(), name, text]);
    let input = bytes(&[
        &greeting(3),
        &answer(option::LIST, reply::SERVER, &entry(b"a", b"first")),
        &answer(option::LIST, reply::SERVER, &entry(b"", b"")),
        &answer(option::LIST, reply::ACK, &[]),
    ]);
    let (options, result) = talk(wanted(Purpose::List), &input);
    assert_eq!(options, [option::LIST, option::ABORT]);
    let listed = |name: &str, description: &str| Listed { name: name.to_owned(), description: description.to_owned() };
    assert_eq!(result, Ok(Some(Outcome::Listed(vec![listed("a", "first"), listed("", "")]))));

    let wanted = Wanted { framing: Framing::Simple, ..wanted(Purpose::Info) };
    let input = bytes(&[&greeting(3), &answer(option::INFO, reply::ERR_UNKNOWN, b"no such disk")]);
    let (options, result) = talk(wanted, &input);
    assert_eq!(options, [option::INFO, option::ABORT]);
    let message = String::from("no such disk");
    let refusal = Refusal { option: option::INFO, code: reply::ERR_UNKNOWN, message };
    assert_eq!(refusal.to_string(), "the server has no such export: no such disk");
    assert_eq!(result, Ok(Some(Outcome::Refused(refusal))));
}

#[test]
fn with_tls_nothing_but_the_greeting_is_unencrypted() {
    let secure = |purpose| Wanted { tls: true, ..wanted(purpose) };
    let mut handshake = Handshake::new(secure(Purpose::List));
    let (mut clear, mut encrypted) = (Vec::new(), Vec::new());
    let injected = answer(option::LIST, reply::ACK, &[]);
    let input = bytes(&[&greeting(3), &answer(option::STARTTLS, reply::ACK, &[]), &injected]);
    let step = handshake.advance(&input, &mut clear).unwrap();
    assert_eq!(step, Step { consumed: input.len() - injected.len(), outcome: Some(Outcome::StartTls) });
    assert_eq!(asked(&clear[4..]), [option::STARTTLS]);
    let waiting = handshake.advance(&injected, &mut clear).unwrap();
    assert_eq!(waiting, Step { consumed: 0, outcome: None }, "nothing counts before TLS");
    handshake.secured(&mut encrypted);
    let step = handshake.advance(&injected, &mut encrypted).unwrap();
    assert_eq!(step.outcome, Some(Outcome::Listed(Vec::new())));
    assert_eq!(asked(&encrypted), [option::LIST, option::ABORT]);
}

#[test]
fn a_server_without_tls_is_refused_and_learns_no_name() {
    let secure = || Wanted { tls: true, ..wanted(Purpose::Go) };
    for (code, words) in [(reply::ERR_UNSUP, b"no TLS here"), (reply::ERR_POLICY, b"not for you")] {
        let (options, result) = talk(secure(), &bytes(&[&greeting(3), &answer(option::STARTTLS, code, words)]));
        assert_eq!(options, [option::STARTTLS, option::ABORT]);
        let message = String::from_utf8_lossy(words).into_owned();
        assert_eq!(result, Ok(Some(Outcome::Refused(Refusal { option: option::STARTTLS, code, message }))));
    }
    // Without fixed newstyle there is no option but EXPORT_NAME.
    let (options, result) = talk(secure(), &greeting(2));
    assert!(options.is_empty());
    match result {
        Ok(Some(Outcome::Refused(refusal))) => assert_eq!(refusal.option, option::STARTTLS),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_rule_of_the_handshake_is_enforced() {
    let after = |rest: &[u8]| bytes(&[&greeting(3), rest]);
    let go = |rest: &[u8]| {
        let refuse = |option| answer(option, reply::ERR_UNSUP, &[]);
        after(&bytes(&[&refuse(option::EXTENDED_HEADERS), &refuse(option::STRUCTURED_REPLY), rest]))
    };
    let mut wrong_magic = answer(option::EXTENDED_HEADERS, reply::ACK, &[]);
    wrong_magic[0] ^= 1;
    let too_long = bytes(&[&answer(option::GO, reply::INFO, &[])[..16], &(MAX_OPTION_REPLY as u32 + 1).to_be_bytes()]);
    let name = |text: &[u8]| answer(option::GO, reply::INFO, &bytes(&[&info::NAME.to_be_bytes(), text]));
    let sizes = |min, preferred, max| answer(option::GO, reply::INFO, &block_size(min, preferred, max));
    let cases: [(&str, Vec<u8>); 17] = [
        ("another protocol", b"SSH-2.0-OpenSSH".to_vec()),
        ("oldstyle", bytes(&[b"NBDMAGIC", &0x0000_4202_8186_1253u64.to_be_bytes(), &[0; 2]])),
        ("wrong reply magic", after(&wrong_magic)),
        ("reply to another option", after(&answer(option::GO, reply::ACK, &[]))),
        ("reply too long", go(&too_long)),
        ("unknown reply type", go(&answer(option::GO, 99, &[]))),
        ("list entry to GO", go(&answer(option::GO, reply::SERVER, &[0; 4]))),
        ("acknowledged without a size", go(&answer(option::GO, reply::ACK, &[]))),
        ("information without a type", go(&answer(option::GO, reply::INFO, &[0]))),
        ("export information too short", go(&answer(option::GO, reply::INFO, &export(1)[..11]))),
        ("block size too short", go(&answer(option::GO, reply::INFO, &block_size(1, 512, 512)[..13]))),
        ("minimum is no power of two", go(&sizes(3, 4096, 1 << 20))),
        ("minimum above 64 KiB", go(&sizes(1 << 17, 1 << 17, 1 << 20))),
        ("preferred below the minimum", go(&sizes(4096, 512, 1 << 20))),
        ("maximum below the minimum", go(&sizes(4096, 4096, 512))),
        ("name with a NUL", go(&name(b"a\0b"))),
        ("name that is not UTF-8", go(&name(&[0xff]))),
    ];
    for (rule, input) in cases {
        let (_, result) = talk(wanted(Purpose::Go), &input);
        assert!(result.is_err(), "{rule}: {result:?}");
    }
    let short = answer(option::LIST, reply::SERVER, &[0, 0, 0, 9, b'x']);
    assert!(talk(wanted(Purpose::List), &after(&short)).1.is_err());
}

#[test]
fn an_endless_list_ends() {
    let mut handshake = Handshake::new(wanted(Purpose::List));
    let mut out = Vec::new();
    handshake.advance(&greeting(3), &mut out).unwrap();
    let entry = answer(option::LIST, reply::SERVER, &bytes(&[&4000u32.to_be_bytes(), &[b'x'; 4000]]));
    let taken = (0..MAX_LISTED).take_while(|_| handshake.advance(&entry, &mut out).is_ok()).count();
    assert!(taken < MAX_LISTED, "names of 4000 bytes do not add up to 256 MB");
    let mut handshake = Handshake::new(wanted(Purpose::List));
    handshake.advance(&greeting(3), &mut out).unwrap();
    let entry = answer(option::LIST, reply::SERVER, &[0; 4]);
    let taken = (0..2 * MAX_LISTED).take_while(|_| handshake.advance(&entry, &mut out).is_ok()).count();
    assert_eq!(taken, MAX_LISTED);
}
