//! Properties over generated input: encoding and parsing are inverse, cuts of the stream change nothing, and results agree
//! with simple models.

use crate::support;

use evenkeel_nbd::client::{self, Outcome, Purpose, Wanted};
use evenkeel_nbd::server::{Handshake, Limits, Offer, Request, Session, Status, Tls, Violation, reply, request};
use evenkeel_nbd::wire::{Command, CommandFlags, Errno, Extent, Framing, TransmissionFlags, info, option};
use proptest::collection::vec;
use proptest::prelude::*;
use support::{FIXED, NO_ZEROES, Shelf, all_flags, describe, opt, queries};

fn framing() -> impl Strategy<Value = Framing> {
    prop_oneof![Just(Framing::Simple), Just(Framing::Structured), Just(Framing::Extended)]
}

/// A random number, mostly near 0, 2^20 or 2^64, or a power of two.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        0u64..5000,
        any::<u64>(),
        (0u64..5000).prop_map(|below| u64::MAX - below),
        (0u64..5000).prop_map(|near| (1 << 20) - 2500 + near),
        (0u64..64).prop_map(|bit| 1 << bit),
    ]
}

/// The effect of an option on the negotiation, by the specification.
#[derive(Clone, Copy, Debug)]
enum Effect {
    Nothing,
    Structured,
    Extended,
    /// Selects `base:allocation` for this export; `None`: deselects it.
    Context(Option<&'static str>),
}

/// A random option, also malformed and unknown ones, with its effect.
fn client_option() -> impl Strategy<Value = (Effect, Vec<u8>)> {
    let name = || prop_oneof![Just(""), Just("disk0"), Just("rough"), Just("plain"), Just("nowhere")];
    let query = || prop_oneof![Just("base:allocation"), Just("base:"), Just("x-a:b")];
    let nothing = |bytes| (Effect::Nothing, bytes);
    prop_oneof![
        Just((Effect::Structured, opt(option::STRUCTURED_REPLY, b""))),
        Just((Effect::Extended, opt(option::EXTENDED_HEADERS, b""))),
        (name(), vec(query(), 0..3)).prop_map(|(name, asked)| {
            let canonical = if name.is_empty() { "disk0" } else { name };
            let selects = name != "nowhere" && asked.contains(&"base:allocation");
            let bytes = opt(option::SET_META_CONTEXT, &queries(name, &asked));
            (Effect::Context(selects.then_some(canonical)), bytes)
        }),
        Just((Effect::Context(None), opt(option::SET_META_CONTEXT, b"malformed"))),
        (name(), vec(query(), 0..3))
            .prop_map(move |(name, asked)| nothing(opt(option::LIST_META_CONTEXT, &queries(name, &asked)))),
        (name(), vec(0u16..5, 0..4))
            .prop_map(move |(name, wanted)| nothing(opt(option::INFO, &describe(name, &wanted)))),
        Just(nothing(opt(option::LIST, b""))),
        Just(nothing(opt(option::STARTTLS, b""))),
        Just(nothing(opt(option::STRUCTURED_REPLY, b"data"))),
        Just(nothing(opt(option::INFO, &[0; 20_000]))),
        (12u32.., vec(any::<u8>(), 0..20)).prop_map(move |(unknown, data)| nothing(opt(unknown, &data))),
    ]
}

/// The result of these options by the specification: the framing, and the export for which `base:allocation` is selected.
fn agreed(options: &[(Effect, Vec<u8>)]) -> (Framing, Option<&'static str>) {
    let (mut framing, mut context) = (Framing::Simple, None);
    for (effect, _) in options {
        match effect {
            Effect::Nothing => {}
            Effect::Structured if framing == Framing::Extended => {}
            Effect::Structured => framing = Framing::Structured,
            Effect::Extended => framing = Framing::Extended,
            Effect::Context(export) => context = export.filter(|_| framing.has_chunks()),
        }
    }
    (framing, context)
}

/// Runs the server's handshake on input that comes in pieces of these lengths. Returns all bytes that the server sends, and the
/// last status with the number of bytes consumed, or the violation.
fn negotiate(input: &[u8], pieces: &[usize]) -> (Vec<u8>, Result<(Status, usize), Violation>) {
    let mut handshake = Handshake::new(Offer::default());
    let mut out = Vec::new();
    let (mut consumed, mut shown, mut piece) = (0, 0, 0);
    loop {
        match handshake.advance(&input[consumed..shown], &Shelf, &mut out) {
            Err(violation) => return (out, Err(violation)),
            Ok(step) => {
                consumed += step.consumed;
                if !matches!(step.status, Status::More | Status::Unfinished)
                    || (consumed == shown && shown == input.len())
                {
                    return (out, Ok((step.status, consumed)));
                }
            }
        }
        if consumed == shown {
            let length = pieces.get(piece).copied().unwrap_or(input.len());
            piece += 1;
            shown = (shown + length).min(input.len());
        }
    }
}

/// Connects this crate's client and server, with bytes in pieces of these lengths, until the client's handshake ends; returns
/// the client's outcome and the server's session.
fn connect(wanted: Wanted, offer: Offer, pieces: &[usize]) -> (Outcome, Option<Session>) {
    let mut client = client::Handshake::new(wanted);
    let mut server = Handshake::new(offer);
    let (mut up, mut down) = (Vec::new(), Vec::new());
    server.greet(&mut down);
    let (mut up_done, mut down_done) = (0, 0);
    let (mut down_shown, mut session) = (0, None);
    for round in 0..10_000 {
        let piece = pieces[round % pieces.len()];
        down_shown = (down_shown + piece).min(down.len());
        let step = client.advance(&down[down_done..down_shown], &mut up).expect("a sound server");
        down_done += step.consumed;
        match step.outcome {
            None => {}
            Some(Outcome::StartTls) => client.secured(&mut up),
            Some(outcome) => return (outcome, session),
        }
        let end = (up_done + piece).min(up.len());
        let step = server.advance(&up[up_done..end], &Shelf, &mut down).expect("a sound client");
        up_done += step.consumed;
        if let Status::Transmission(negotiated) = step.status {
            session = Some(negotiated);
        }
    }
    panic!("the two sides wait for each other");
}

proptest! {
    #[test]
    fn what_the_client_encodes_the_server_parses(
        framing in framing(), cookie: u64, code: u16, flags in 0u16..32, offset in number(), length in number(),
        more in vec(any::<u8>(), 0..5),
    ) {
        let command = Command::from_code(code);
        let length = if framing.is_extended() { length } else { length & 0xffff_ffff };
        let sent = client::Request { cookie, command, flags: CommandFlags::from_bits(flags), offset, length };
        let mut bytes = Vec::new();
        sent.encode(framing, &mut bytes);
        let header_len = bytes.len();
        bytes.extend(more);
        let payload_len = if command == Command::Write { length } else { 0 };
        match request::parse(&bytes, framing.is_extended()) {
            Err(Violation::PayloadLength(long)) => prop_assert!(long == payload_len && long > request::MAX_SKIP),
            Err(other) => prop_assert!(false, "{other:?}"),
            Ok(got) => {
                let (got, used) = got.expect("a whole header");
                let payload_flag = framing.is_extended() && command == Command::Write;
                let flags = flags | if payload_flag { 32 } else { 0 };
                let flags = CommandFlags::from_bits(flags);
                prop_assert_eq!(got, Request { cookie, command, flags, offset, length });
                prop_assert_eq!(got.payload_len(framing.is_extended()), payload_len);
                prop_assert_eq!(used, header_len);
            }
        }
        for short in 0..header_len {
            prop_assert_eq!(request::parse(&bytes[..short], framing.is_extended()), Ok(None));
        }
    }

    #[test]
    fn options_add_up_to_a_session_however_they_are_cut(
        options in vec(client_option(), 0..8),
        name in prop_oneof![Just("disk0"), Just("plain")],
        pieces in vec(1usize..40, 0..200),
    ) {
        let mut input = (FIXED | NO_ZEROES).to_be_bytes().to_vec();
        options.iter().for_each(|(_, bytes)| input.extend(bytes));
        input.extend(opt(option::GO, &describe(name, &[info::BLOCK_SIZE])));
        let handshake_len = input.len();
        input.extend(b"the first request");
        let whole = negotiate(&input, &[]);
        prop_assert_eq!(&negotiate(&input, &pieces), &whole);
        let (framing, context) = agreed(&options);
        let Ok((Status::Transmission(session), consumed)) = whole.1 else {
            return Err(TestCaseError::fail(format!("{:?}", whole.1)));
        };
        prop_assert_eq!(consumed, handshake_len);
        prop_assert_eq!(session.export.as_str(), name);
        prop_assert_eq!(session.framing, framing);
        prop_assert_eq!(session.base_allocation, context == Some(name));
    }

    #[test]
    fn client_and_server_agree(
        wanted in framing(), structured: bool, extended: bool, base_allocation: bool, tls: bool,
        name in prop_oneof![Just(""), Just("disk0"), Just("rough"), Just("plain"), Just("nowhere")],
        purpose in prop_oneof![Just(Purpose::Go), Just(Purpose::Info), Just(Purpose::List)],
        pieces in vec(1usize..64, 1..50),
    ) {
        let request = Wanted { export: name.into(), purpose, framing: wanted, base_allocation, tls };
        let of_server = if tls { Tls::Forced } else { Tls::No };
        let offer = Offer { structured, extended, tls: of_server };
        let (outcome, session) = connect(request, offer, &pieces);
        let expected = match wanted {
            Framing::Extended if extended => Framing::Extended,
            Framing::Extended | Framing::Structured if structured => Framing::Structured,
            _ => Framing::Simple,
        };
        match outcome {
            Outcome::Connected(connected) => {
                let session = session.expect("both sides are connected");
                prop_assert_eq!((connected.framing, session.framing), (expected, expected));
                prop_assert_eq!(connected.flags, session.flags);
                prop_assert_eq!(connected.name.as_deref(), Some(session.export.as_str()));
                let selected = base_allocation && expected != Framing::Simple;
                prop_assert_eq!(connected.context, selected.then_some(reply::BASE_ALLOCATION_ID));
                prop_assert_eq!(session.base_allocation, selected);
                prop_assert!(session.block_sizes && purpose == Purpose::Go && name != "nowhere");
                prop_assert_eq!(connected.min_block, if name == "rough" { 4096 } else { 1 });
            }
            Outcome::Described(_) => prop_assert!(purpose == Purpose::Info && name != "nowhere"),
            Outcome::Listed(list) => {
                let names: Vec<_> = list.iter().map(|export| export.name.as_str()).collect();
                prop_assert_eq!(names, ["disk0", "rough", "plain"]);
            }
            Outcome::Refused(_) => prop_assert_eq!(name, "nowhere"),
            Outcome::StartTls => return Err(TestCaseError::fail("the handshake goes on after it")),
        }
    }

    #[test]
    fn accepted_ranges_lie_in_the_export(
        command in 0u16..10, flags in any::<u16>(), offset in number(), length in number(), size in number(),
        block in 0u32..17, read_only: bool, framing in framing(), session_flags: u16, base_allocation: bool,
    ) {
        let command = Command::from_code(command);
        let flags = CommandFlags::from_bits(flags);
        let request = Request { cookie: 0, command, flags, offset, length };
        let limits = Limits { size, read_only, min_block: 1 << block, max_payload: 1 << 25 };
        let flags = TransmissionFlags::from_bits(session_flags);
        let session = Session { export: "x".into(), flags, framing, base_allocation, block_sizes: true };
        let verdict = request::validate(&request, &limits, &session);
        let ranged = !matches!(command, Command::Flush | Command::Disconnect | Command::Unknown(_));
        let end = u128::from(offset) + u128::from(length);
        if verdict.is_ok() && ranged {
            prop_assert!(end <= u128::from(size) && length > 0);
            prop_assert!(offset % (1 << block) == 0 && length % (1 << block) == 0);
        }
        if let Err(Errno::NoSpace) = verdict {
            prop_assert!(end > u128::from(size) && matches!(command, Command::Write | Command::WriteZeroes));
        }
        if let Err(Errno::Perm) = verdict {
            prop_assert!(read_only);
        }
        // A plain request within all limits is never refused.
        let plain = Request { flags: CommandFlags::NONE, ..request };
        let session = Session { flags: all_flags(), framing: Framing::Structured, base_allocation: true, ..session };
        let aligned = (offset | length) % (1 << block) == 0;
        let fits = end <= u128::from(size) && length > 0 && length <= 1 << 25;
        if ranged && aligned && fits && !read_only {
            prop_assert_eq!(request::validate(&plain, &limits, &session), Ok(()));
        }
    }

    #[test]
    fn extents_say_what_they_were_given(
        runs in vec((0u64..50, 0u32..4), 0..40), length in 1u64..400, one: bool, extended: bool,
    ) {
        let framing = if extended { Framing::Extended } else { Framing::Structured };
        let truth: Vec<u32> = runs.iter().flat_map(|&(length, status)| (0..length).map(move |_| status)).collect();
        let mut out = Vec::new();
        let extents = runs.iter().map(|&(length, status)| Extent { length, status });
        reply::block_status(framing, 1, 0, length, one, extents, &mut out);
        let (skip, each) = if extended { (40, 16) } else { (24, 8) };
        let big_endian = |bytes: &[u8]| bytes.iter().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
        let said: Vec<(u64, u32)> = out[skip..]
            .chunks(each)
            .map(|extent| (big_endian(&extent[..each / 2]), big_endian(&extent[each / 2..]) as u32))
            .collect();
        let total: u64 = said.iter().map(|extent| extent.0).sum();
        prop_assert!(!said.is_empty() && said.iter().all(|extent| extent.0 > 0));
        prop_assert!(total - said.last().expect("one at least").0 < length, "an extent beyond the request");
        prop_assert!(!one || (said.len() == 1 && total <= length));
        if truth.is_empty() {
            prop_assert_eq!(said, [(length, 0)]);
        } else {
            let flat: Vec<u32> = said.iter().flat_map(|&(length, status)| (0..length).map(move |_| status)).collect();
            prop_assert_eq!(&flat[..], &truth[..flat.len()]);
            prop_assert!(one || total >= length.min(truth.len() as u64), "less than is known");
            prop_assert!(said.windows(2).all(|pair| pair[0].1 != pair[1].1), "neighbours alike");
        }
    }
}
