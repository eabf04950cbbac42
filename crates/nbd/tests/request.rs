//! Tests of each rule on requests, in the order of the specification's sections.

use crate::support;

use evenkeel_nbd::server::request::{MAX_SKIP, parse, validate};
use evenkeel_nbd::server::{Limits, Request, Session, Violation};
use evenkeel_nbd::wire::{Command, CommandFlags, Errno, Framing, TransmissionFlags};
use support::{all_flags, compact, extended};

const SIZE: u64 = 1 << 20;
const LIMITS: Limits = Limits { size: SIZE, read_only: false, min_block: 1, max_payload: 65_536 };

fn session(framing: Framing) -> Session {
    Session { export: "disk0".into(), flags: all_flags(), framing, base_allocation: true, block_sizes: true }
}

fn request(command: Command, flags: CommandFlags, offset: u64, length: u64) -> Request {
    Request { cookie: 1, command, flags, offset, length }
}

// "Request message".

#[test]
fn compact_request_is_parsed_field_by_field() {
    let mut bytes = compact(1, 1, 0x0102_0304_0506_0708, 0x1112_1314_1516_1718, 0x2122);
    bytes.extend([0; 10]);
    let expected = Request {
        cookie: 0x0102_0304_0506_0708,
        command: Command::Write,
        flags: CommandFlags::FUA,
        offset: 0x1112_1314_1516_1718,
        length: 0x2122,
    };
    assert_eq!(parse(&bytes, false), Ok(Some((expected, 28))));
    assert_eq!(parse(&bytes[..27], false), Ok(None));
    assert_eq!(parse(b"", false), Ok(None));
}

#[test]
fn extended_request_is_parsed_field_by_field() {
    let bytes = extended(6, 2, 7, 8, 0x1_0000_0000);
    let expected = Request {
        cookie: 7,
        command: Command::WriteZeroes,
        flags: CommandFlags::NO_HOLE,
        offset: 8,
        length: 0x1_0000_0000,
    };
    assert_eq!(parse(&bytes, true), Ok(Some((expected, 32))));
    assert_eq!(parse(&bytes[..31], true), Ok(None));
}

#[test]
fn payload_follows_the_framing_s_rule() {
    let payload =
        |bytes: &[u8], extended| parse(bytes, extended).map(|parsed| parsed.map(|(r, _)| r.payload_len(extended)));
    // Compact: WRITE alone has one, whatever the flags say.
    assert_eq!(payload(&compact(1, 0, 1, 0, 512), false), Ok(Some(512)));
    for command in [0, 2, 3, 4, 5, 6, 7, 99] {
        assert_eq!(payload(&compact(command, 0x20, 1, 0, 512), false), Ok(Some(0)), "command {command}");
    }
    // Extended: WRITE has one, and any other command with the flag.
    for command in [0, 1, 2, 3, 4, 5, 6, 7, 99] {
        assert_eq!(payload(&extended(command, 0x20, 1, 0, 512), true), Ok(Some(512)));
        let expected = if command == 1 { 512 } else { 0 };
        assert_eq!(payload(&extended(command, 0, 1, 0, 512), true), Ok(Some(expected)), "command {command}");
    }
}

#[test]
fn wrong_magic_is_a_violation() {
    assert_eq!(parse(&extended(0, 0, 1, 0, 1), false), Err(Violation::RequestMagic(0x21e4_1c71)));
    assert_eq!(parse(&[0; 32], true), Err(Violation::RequestMagic(0)));
    let mut bytes = compact(0, 0, 1, 0, 1);
    bytes.extend([0; 4]);
    assert_eq!(parse(&bytes, true), Err(Violation::RequestMagic(0x2560_9513)));
}

#[test]
fn payload_beyond_reason_is_a_violation() {
    let length = MAX_SKIP as u32;
    assert!(matches!(parse(&compact(1, 0, 1, 0, length), false), Ok(Some(_))));
    assert_eq!(parse(&compact(1, 0, 1, 0, length + 1), false), Err(Violation::PayloadLength(MAX_SKIP + 1)));
    assert_eq!(parse(&extended(9, 0x20, 1, 0, u64::MAX), true), Err(Violation::PayloadLength(u64::MAX)));
    // An effect length is not a payload.
    assert!(matches!(parse(&extended(6, 0, 1, 0, u64::MAX), true), Ok(Some(_))));
}

// "Request types", "Command flags", "Error values", "Block size constraints".

const RANGED: [Command; 6] =
    [Command::Read, Command::Write, Command::Trim, Command::Cache, Command::WriteZeroes, Command::BlockStatus];

#[test]
fn every_command_runs_within_its_rules() {
    for framing in [Framing::Structured, Framing::Extended] {
        for command in RANGED {
            let payload = framing.is_extended() && command == Command::Write;
            let flags = if payload { CommandFlags::PAYLOAD_LEN } else { CommandFlags::NONE };
            for (offset, length) in [(0, 1), (0, 65_536), (SIZE - 1, 1), (SIZE - 65_536, 65_536)] {
                let request = request(command, flags, offset, length);
                assert_eq!(validate(&request, &LIMITS, &session(framing)), Ok(()), "{request:?}");
            }
        }
        let flush = request(Command::Flush, CommandFlags::NONE, 0, 0);
        assert_eq!(validate(&flush, &LIMITS, &session(framing)), Ok(()));
        let disconnect = request(Command::Disconnect, CommandFlags::NONE, 0, 0);
        assert_eq!(validate(&disconnect, &LIMITS, &session(framing)), Ok(()));
    }
}

#[test]
fn ranges_past_the_end_are_refused_with_the_command_s_error() {
    for command in RANGED {
        let expected = match command {
            Command::Write | Command::WriteZeroes => Errno::NoSpace,
            _ => Errno::Invalid,
        };
        for (offset, length) in
            [(SIZE, 1), (SIZE - 1, 2), (0, SIZE + 1), (u64::MAX, 1), (1, u64::MAX), (u64::MAX, u64::MAX)]
        {
            let request = request(command, CommandFlags::NONE, offset, length);
            assert_eq!(validate(&request, &LIMITS, &session(Framing::Structured)), Err(expected), "{request:?}");
        }
    }
}

#[test]
fn empty_ranges_are_refused() {
    for command in RANGED {
        let request = request(command, CommandFlags::NONE, 0, 0);
        assert_eq!(validate(&request, &LIMITS, &session(Framing::Structured)), Err(Errno::Invalid), "{command:?}");
    }
}

#[test]
fn flush_takes_no_range() {
    for (offset, length) in [(1, 0), (0, 1)] {
        let request = request(Command::Flush, CommandFlags::NONE, offset, length);
        assert_eq!(validate(&request, &LIMITS, &session(Framing::Structured)), Err(Errno::Invalid));
    }
}

#[test]
fn ranges_must_fit_the_minimum_block() {
    let limits = Limits { min_block: 512, ..LIMITS };
    for command in RANGED {
        for (offset, length, expected) in [
            (512, 1024, Ok(())),
            (511, 512, Err(Errno::Invalid)),
            (512, 513, Err(Errno::Invalid)),
            (0, 1, Err(Errno::Invalid)),
        ] {
            let request = request(command, CommandFlags::NONE, offset, length);
            assert_eq!(validate(&request, &limits, &session(Framing::Structured)), expected, "{request:?}");
        }
    }
}

#[test]
fn payloads_above_the_maximum_are_refused_and_effects_are_not() {
    for (command, flags, expected) in [
        (Command::Read, CommandFlags::NONE, Err(Errno::Invalid)),
        (Command::Read, CommandFlags::DF, Err(Errno::Overflow)),
        (Command::Write, CommandFlags::NONE, Err(Errno::Invalid)),
        (Command::Trim, CommandFlags::NONE, Ok(())),
        (Command::Cache, CommandFlags::NONE, Ok(())),
        (Command::WriteZeroes, CommandFlags::FAST_ZERO, Ok(())),
        (Command::BlockStatus, CommandFlags::NONE, Ok(())),
    ] {
        let request = request(command, flags, 0, 65_537);
        assert_eq!(validate(&request, &LIMITS, &session(Framing::Structured)), expected, "{request:?}");
    }
}

#[test]
fn each_flag_belongs_to_its_commands() {
    let all = [
        Command::Read,
        Command::Write,
        Command::Flush,
        Command::Trim,
        Command::Cache,
        Command::WriteZeroes,
        Command::BlockStatus,
    ];
    for (flag, owners) in [
        (CommandFlags::FUA, all.as_slice()),
        (CommandFlags::NO_HOLE, &[Command::WriteZeroes]),
        (CommandFlags::DF, &[Command::Read]),
        (CommandFlags::REQ_ONE, &[Command::BlockStatus]),
        (CommandFlags::FAST_ZERO, &[Command::WriteZeroes]),
        (CommandFlags::PAYLOAD_LEN, &[]),
        (CommandFlags::from_bits(1 << 6), &[]),
        (CommandFlags::from_bits(1 << 15), &[]),
    ] {
        for command in all {
            let length = if command == Command::Flush { 0 } else { 512 };
            let expected = if owners.contains(&command) { Ok(()) } else { Err(Errno::Invalid) };
            let got = validate(&request(command, flag, 0, length), &LIMITS, &session(Framing::Structured));
            assert_eq!(got, expected, "{command:?} with {flag:?}");
        }
    }
}

#[test]
fn features_that_were_not_offered_are_refused() {
    use TransmissionFlags as Has;
    for (withheld, command, flags) in [
        (Has::SEND_FLUSH, Command::Flush, CommandFlags::NONE),
        (Has::SEND_TRIM, Command::Trim, CommandFlags::NONE),
        (Has::SEND_CACHE, Command::Cache, CommandFlags::NONE),
        (Has::SEND_WRITE_ZEROES, Command::WriteZeroes, CommandFlags::NONE),
        (Has::SEND_FUA, Command::Write, CommandFlags::FUA),
        (Has::SEND_FUA, Command::Read, CommandFlags::FUA),
        (Has::SEND_DF, Command::Read, CommandFlags::DF),
        (Has::SEND_FAST_ZERO, Command::WriteZeroes, CommandFlags::FAST_ZERO),
    ] {
        let mut session = session(Framing::Structured);
        let length = if command == Command::Flush { 0 } else { 512 };
        let request = request(command, flags, 0, length);
        assert_eq!(validate(&request, &LIMITS, &session), Ok(()), "{request:?}");
        session.flags = session.flags.without(withheld);
        assert_eq!(validate(&request, &LIMITS, &session), Err(Errno::Invalid), "{request:?}");
    }
}

#[test]
fn block_status_needs_its_context() {
    let without = Session { base_allocation: false, ..session(Framing::Structured) };
    let request = request(Command::BlockStatus, CommandFlags::REQ_ONE, 0, 512);
    assert_eq!(validate(&request, &LIMITS, &without), Err(Errno::Invalid));
}

#[test]
fn read_only_refuses_writes_alone() {
    let limits = Limits { read_only: true, ..LIMITS };
    for command in RANGED {
        let writes = matches!(command, Command::Write | Command::Trim | Command::WriteZeroes);
        let expected = if writes { Err(Errno::Perm) } else { Ok(()) };
        let request = request(command, CommandFlags::NONE, 0, 512);
        assert_eq!(validate(&request, &limits, &session(Framing::Structured)), expected, "{command:?}");
    }
    let flush = request(Command::Flush, CommandFlags::NONE, 0, 0);
    assert_eq!(validate(&flush, &limits, &session(Framing::Structured)), Ok(()));
}

#[test]
fn extended_write_takes_its_payload_flag_and_needs_none() {
    // As QEMU's client sends it.
    let write = request(Command::Write, CommandFlags::NONE, 0, 512);
    assert_eq!(validate(&write, &LIMITS, &session(Framing::Extended)), Ok(()));
    for command in RANGED {
        let request = request(command, CommandFlags::PAYLOAD_LEN, 0, 512);
        let expected = if command == Command::Write { Ok(()) } else { Err(Errno::Invalid) };
        assert_eq!(validate(&request, &LIMITS, &session(Framing::Extended)), expected, "{command:?}");
    }
}

#[test]
fn unknown_commands_are_invalid_and_keep_the_connection() {
    for code in [8, 9, 99, u16::MAX] {
        let bytes = compact(code, 0, 1, 0, 512);
        let (request, used) = parse(&bytes, false).expect("no violation").expect("complete");
        assert_eq!((request.command, used, request.payload_len(false)), (Command::Unknown(code), 28, 0));
        assert_eq!(validate(&request, &LIMITS, &session(Framing::Structured)), Err(Errno::Invalid));
    }
}

#[test]
fn command_and_error_codes_round_trip() {
    for code in 0..=u16::MAX {
        assert_eq!(Command::from_code(code).code(), code);
    }
    for (errno, code) in [
        (Errno::Perm, 1),
        (Errno::Io, 5),
        (Errno::NoMem, 12),
        (Errno::Invalid, 22),
        (Errno::NoSpace, 28),
        (Errno::Overflow, 75),
        (Errno::NotSupported, 95),
        (Errno::Shutdown, 108),
    ] {
        assert_eq!((errno.code(), Errno::from_code(code)), (code, Some(errno)));
    }
    assert_eq!((Errno::from_code(0), Errno::from_code(4711)), (None, Some(Errno::Invalid)));
}
