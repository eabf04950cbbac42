//! Bodies of the fuzz targets. The same code runs under a fuzzer, and with
//! stable Rust in `tests/fuzz_smoke.rs`.
//!
//! Each function takes arbitrary bytes and panics if a property does not
//! hold: the crate never panics; it consumes no more bytes than there are; the
//! same bytes cut into other pieces give the same result; the client
//! understands all that the server sends.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use crate::client;
use crate::server::{self, Access, Directory, Export, Limits, Offer, Session, Tls, reply, request};
use crate::wire::{
    Command, CommandFlags, EXTENDED_REQUEST_LEN, Errno, Extent, Framing, GREETING_LEN, MAX_PAYLOAD, OPTION_REPLY_MAGIC,
    REQUEST_LEN, STATE_HOLE, STATE_ZERO, TransmissionFlags,
};

/// The exports of the fuzzed server: `disk0` (default), `rough` with 4 KiB blocks, `vault`, which needs TLS, and `secret`,
/// which no client may use.
pub struct Shelf;

impl Shelf {
    const EXPORTS: [Export<'static>; 4] = [
        Export {
            name: "disk0",
            description: "a disk",
            size: 1 << 30,
            flags: TransmissionFlags::ALL.without(TransmissionFlags::READ_ONLY),
            min_block: 1,
            preferred_block: 4096,
            max_payload: MAX_PAYLOAD,
            access: Access::Open,
        },
        Export {
            name: "rough",
            description: "",
            size: 1 << 20,
            flags: TransmissionFlags::READ_ONLY,
            min_block: 4096,
            preferred_block: 4096,
            max_payload: 1 << 20,
            access: Access::Open,
        },
        Export {
            name: "vault",
            description: "under lock",
            size: 1 << 20,
            flags: TransmissionFlags::NONE,
            min_block: 1,
            preferred_block: 4096,
            max_payload: MAX_PAYLOAD,
            access: Access::TlsOnly,
        },
        Export {
            name: "secret",
            description: "for others",
            size: 1 << 20,
            flags: TransmissionFlags::NONE,
            min_block: 1,
            preferred_block: 4096,
            max_payload: MAX_PAYLOAD,
            access: Access::Refused,
        },
    ];

    fn get(name: &str) -> Option<&'static Export<'static>> {
        let name = if name.is_empty() { "disk0" } else { name };
        Self::EXPORTS.iter().find(|export| export.name == name)
    }
}

impl Directory for Shelf {
    fn count(&self) -> usize {
        Self::EXPORTS.len()
    }

    fn visit(&self, from: usize, f: &mut dyn FnMut(&Export<'_>) -> bool) -> Option<usize> {
        (from..Self::EXPORTS.len()).find(|&at| !f(&Self::EXPORTS[at])).map(|at| at + 1)
    }

    fn find(&self, name: &str, f: &mut dyn FnMut(&Export<'_>)) -> bool {
        Self::get(name).map(f).is_some()
    }
}

/// Random lengths of the pieces into which a stream is cut: small ones, so that cuts fall everywhere. The field is the state.
struct Pieces(u64);

impl Pieces {
    /// Length of the next piece, 0 to 32 bytes.
    fn next(&mut self) -> usize {
        // Marsaglia's xorshift; any mixing will do.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % 33) as usize
    }
}

/// The result of a negotiation.
#[derive(Debug, PartialEq, Eq)]
struct Negotiation {
    /// All bytes that the server sent.
    out: Vec<u8>,
    end: Result<server::Status, server::Violation>,
    /// Bytes of input consumed by the end; 0 after a violation.
    consumed: usize,
    /// True if TLS was started.
    secure: bool,
}

fn negotiate(offer: Offer, input: &[u8], mut piece: impl FnMut() -> usize) -> Negotiation {
    let mut handshake = server::Handshake::new(offer);
    let mut out = Vec::new();
    handshake.greet(&mut out);
    let (mut consumed, mut shown, mut secure) = (0, 0, false);
    loop {
        let step = match handshake.advance(&input[consumed..shown], &Shelf, &mut out) {
            Ok(step) => step,
            Err(violation) => return Negotiation { out, end: Err(violation), consumed: 0, secure },
        };
        assert!(step.consumed <= shown - consumed, "consumed more than there was");
        if step.status == server::Status::StartTls {
            assert!(!secure && offer.tls != Tls::No, "TLS started twice or unasked");
            // What follows is what would come out of it.
            (secure, consumed) = (true, consumed + step.consumed);
            continue;
        }
        assert!(step.status != server::Status::More || step.consumed > 0 || consumed == shown, "no progress");
        consumed += step.consumed;
        if step.status == server::Status::Unfinished {
            continue;
        }
        if step.status != server::Status::More || (consumed == input.len() && shown == input.len()) {
            return Negotiation { out, end: Ok(step.status), consumed, secure };
        }
        if consumed == shown {
            shown = (shown + piece().max(1)).min(input.len());
        }
    }
}

/// Fuzzes the server. The first byte chooses the offer, the second the cuts of
/// the input; the other bytes are sent by a client: flags, options, requests.
pub fn handshake(data: &[u8]) {
    let [choice, cut, input @ ..] = data else { return };
    let tls = match choice >> 2 & 3 {
        1 => Tls::Selective,
        2 => Tls::Forced,
        _ => Tls::No,
    };
    let offer = Offer { structured: choice & 1 == 0, extended: choice & 2 == 0, tls };
    let whole = negotiate(offer, input, || usize::MAX >> 1);
    let mut pieces = Pieces(u64::from(*cut) + 1);
    assert_eq!(negotiate(offer, input, || pieces.next()), whole, "the pieces matter");
    check_answers(&whole.out);
    let Ok(server::Status::Transmission(session)) = whole.end else { return };
    let export = Shelf::get(&session.export).expect("a session for an export that exists");
    assert!(whole.secure || export.access != Access::TlsOnly && tls != Tls::Forced, "served without TLS");
    assert_ne!(export.access, Access::Refused, "served to whom it was refused");
    assert!(session.flags.contains(TransmissionFlags::HAS_FLAGS));
    assert!(session.structured() || !(session.base_allocation || session.flags.contains(TransmissionFlags::SEND_DF)));
    assert!(offer.extended || !session.extended());
    assert!(offer.structured || session.framing != Framing::Structured);
    assert!(session.block_sizes || export.min_block <= 512);
    let limits = Limits {
        size: export.size,
        read_only: session.flags.contains(TransmissionFlags::READ_ONLY),
        min_block: export.min_block,
        max_payload: export.max_payload,
    };
    serve(&session, &limits, &input[whole.consumed..]);
}

/// Asserts that `out` consists of complete replies to options, and at most one reply to EXPORT_NAME at the end.
fn check_answers(out: &[u8]) {
    let mut rest = &out[GREETING_LEN..];
    while let Some(header) = rest.first_chunk::<20>() {
        if header[..8] != OPTION_REPLY_MAGIC.to_be_bytes() {
            break;
        }
        let length = client::be32(header, 16) as usize;
        assert!(rest.len() >= 20 + length, "a reply is cut off");
        rest = &rest[20 + length..];
    }
    // What is left is the answer to EXPORT_NAME, with zeroes or without.
    assert!(matches!(rest.len(), 0 | 10 | 134), "{} bytes that are no reply", rest.len());
}

/// Fuzzes the server's transmission phase. The first four bytes choose framing, flags and limits; the others are requests.
pub fn transmission(data: &[u8]) {
    let [framing, flags_high, flags_low, limits, input @ ..] = data else { return };
    let framing = framing_of(*framing);
    let flags = TransmissionFlags::from_bits(u16::from_be_bytes([*flags_high, *flags_low]));
    let session = Session {
        export: String::from("disk0"),
        flags: if framing.has_chunks() { flags } else { flags.without(TransmissionFlags::SEND_DF) },
        framing,
        base_allocation: framing.has_chunks() && limits & 1 == 0,
        block_sizes: true,
    };
    let limits = Limits {
        size: if limits & 2 == 0 { 1 << 30 } else { u64::MAX },
        read_only: limits & 4 != 0,
        min_block: 1 << (limits >> 3 & 15),
        max_payload: if limits & 128 == 0 { MAX_PAYLOAD } else { 65_536 },
    };
    serve(&session, &limits, input);
}

fn framing_of(choice: u8) -> Framing {
    match choice % 3 {
        0 => Framing::Simple,
        1 => Framing::Structured,
        _ => Framing::Extended,
    }
}

/// Takes requests off `input` until it ends, answers each, and lets the client's parser check the answer.
fn serve(session: &Session, limits: &Limits, mut input: &[u8]) {
    let extended = session.extended();
    let header_len = if extended { EXTENDED_REQUEST_LEN } else { REQUEST_LEN };
    loop {
        let parsed = request::parse(input, extended);
        assert_eq!(request::parse(&input[..input.len().min(header_len - 1)], extended), Ok(None));
        let Ok(Some((request, used))) = parsed else { return };
        assert_eq!(used, header_len);
        assert!(request.payload_len(extended) <= request::MAX_SKIP);
        let verdict = request::validate(&request, limits, session);
        if verdict.is_ok() {
            check_accepted(&request, limits, session);
        }
        if request.command == Command::Disconnect {
            return;
        }
        converse(session, &request, verdict);
        let Some(rest) = input[used..].get(request.payload_len(extended) as usize..) else { return };
        input = rest;
    }
}

/// Asserts the properties of an accepted request on which the code that runs it relies.
fn check_accepted(request: &server::Request, limits: &Limits, session: &Session) {
    let ranged = !matches!(request.command, Command::Flush | Command::Disconnect);
    assert!(!matches!(request.command, Command::Unknown(_)));
    if ranged {
        assert!(request.length > 0 && request.offset <= limits.size && request.length <= limits.size - request.offset);
        assert_eq!(request.offset % u64::from(limits.min_block), 0);
        assert_eq!(request.length % u64::from(limits.min_block), 0);
    }
    match request.command {
        Command::Write => assert_eq!(request.payload_len(session.extended()), request.length),
        Command::Disconnect => {}
        _ => assert_eq!(request.payload_len(session.extended()), 0),
    }
    if matches!(request.command, Command::Read | Command::Write) {
        assert!(request.length <= u64::from(limits.max_payload));
    }
    if limits.read_only {
        assert!(!matches!(request.command, Command::Write | Command::Trim | Command::WriteZeroes));
    }
    assert!(request.command != Command::BlockStatus || session.base_allocation);
}

/// The longest READ that is answered with data alone, in bytes; longer ones are
/// answered with a hole or an error, to keep the fuzzer quick.
const MAX_DATA: u64 = 2048;

/// Answers a request in a form that the protocol allows, and asserts that the
/// client's parser reports the same result and content.
fn converse(session: &Session, request: &server::Request, verdict: Result<(), Errno>) {
    let framing = session.framing;
    let (cookie, offset) = (request.cookie, request.offset);
    let fail = |errno| (reply::error(framing, cookie, offset, errno).as_slice().to_vec(), Err(errno));
    let (wire, expected) = match (verdict, request.command) {
        (Err(errno), _) => fail(errno),
        (Ok(()), Command::Read) if request.length <= MAX_DATA => {
            let mut wire = reply::read(framing, cookie, offset, request.length as u32).as_slice().to_vec();
            wire.resize(wire.len() + request.length as usize, 0xa5);
            (wire, Ok(()))
        }
        (Ok(()), Command::Read) if framing.has_chunks() && !request.flags.contains(CommandFlags::DF) => {
            (read_in_chunks(framing, request), Ok(()))
        }
        (Ok(()), Command::Read) => {
            let header = reply::error_at(framing, cookie, offset, Errno::Io, offset + request.length - 1);
            (header.as_slice().to_vec(), Err(Errno::Io))
        }
        (Ok(()), Command::BlockStatus) => {
            let mut wire = Vec::new();
            let one = request.flags.contains(CommandFlags::REQ_ONE);
            let extents = (0..cookie % 40).map(|at| Extent {
                length: ((offset >> at) % 10_000).wrapping_mul(cookie | 1),
                status: (cookie >> at) as u32 & (STATE_HOLE | STATE_ZERO),
            });
            reply::block_status(framing, cookie, offset, request.length, one, extents, &mut wire);
            (wire, Ok(()))
        }
        (Ok(()), _) => (reply::ok(framing, cookie, offset).as_slice().to_vec(), Ok(())),
    };
    let context = session.base_allocation.then_some(reply::BASE_ALLOCATION_ID);
    let mut replies = client::Replies::new(framing, context);
    let mut log = Log::new([(cookie, expect(request))]);
    let consumed = replies.parse(&wire, &mut log).expect("the client understands the server");
    assert_eq!(consumed, wire.len());
    assert!(replies.is_between_replies() && log.outstanding.is_empty());
    let end = log.events.pop();
    assert_eq!(end, Some(Event::Done { cookie, result: expected }));
    if expected.is_ok() && matches!(request.command, Command::Read | Command::BlockStatus) {
        log.check_content(request);
    }
}

/// A READ's reply of four chunks: data at both ends of the range, the hole between them, and a last chunk without content.
fn read_in_chunks(framing: Framing, request: &server::Request) -> Vec<u8> {
    let (cookie, offset) = (request.cookie, request.offset);
    let data = |at, done| {
        let mut wire = reply::data_chunk(framing, cookie, offset, at, 8, done).as_slice().to_vec();
        wire.extend_from_slice(&[0xa5; 8]);
        wire
    };
    let hole_len = (request.length - 16) as u32;
    let hole = reply::hole_chunk(framing, cookie, offset, offset + 8, hole_len, false);
    let last = data(offset + request.length - 8, false);
    [data(offset, false).as_slice(), &last, hole.as_slice(), reply::ok(framing, cookie, offset).as_slice()].concat()
}

fn expect(request: &server::Request) -> client::Expect {
    let unfragmented = request.flags.contains(CommandFlags::DF);
    client::Expect { command: request.command, offset: request.offset, length: request.length, unfragmented }
}

/// An event that the client's parser reported; consecutive pieces of data are joined to one.
#[derive(Debug, PartialEq, Eq)]
enum Event {
    Data { cookie: u64, offset: u64, bytes: Vec<u8> },
    Hole { cookie: u64, offset: u64, length: u64 },
    Extent { cookie: u64, context: u32, length: u64, status: u64 },
    Done { cookie: u64, result: Result<(), Errno> },
}

struct Log {
    outstanding: BTreeMap<u64, client::Expect>,
    events: Vec<Event>,
}

impl Log {
    fn new(requests: impl IntoIterator<Item = (u64, client::Expect)>) -> Self {
        Self { outstanding: requests.into_iter().collect(), events: Vec::new() }
    }

    /// Asserts that reported content belongs to an outstanding request and lies within its range.
    fn check_range(&self, cookie: u64, offset: u64, length: u64) {
        let request = &self.outstanding[&cookie];
        assert!(length > 0 && offset >= request.offset);
        assert!(offset - request.offset + length <= request.length, "content beyond the request");
    }

    /// Asserts that the reported content is as long as the request's range, and that extents begin within the range.
    fn check_content(&self, request: &server::Request) {
        let mut sum = 0u64;
        for (index, event) in self.events.iter().enumerate() {
            sum = sum.saturating_add(match event {
                Event::Data { bytes, .. } => bytes.len() as u64,
                Event::Hole { length, .. } => *length,
                Event::Extent { length, .. } => {
                    assert!(sum < request.length, "extent {index} begins beyond the request");
                    *length
                }
                Event::Done { .. } => panic!("an end before the end"),
            });
        }
        if request.command == Command::Read {
            assert_eq!(sum, request.length);
        } else {
            assert!(sum > 0);
            if request.flags.contains(CommandFlags::REQ_ONE) {
                assert!(self.events.len() == 1 && sum <= request.length);
            }
        }
    }
}

impl client::Sink for Log {
    fn expect(&self, cookie: u64) -> Option<client::Expect> {
        self.outstanding.get(&cookie).copied()
    }

    fn data(&mut self, cookie: u64, offset: u64, bytes: &[u8]) {
        self.check_range(cookie, offset, bytes.len() as u64);
        if let Some(Event::Data { cookie: of, offset: start, bytes: so_far }) = self.events.last_mut()
            && *of == cookie
            && *start + so_far.len() as u64 == offset
        {
            so_far.extend_from_slice(bytes);
        } else {
            self.events.push(Event::Data { cookie, offset, bytes: bytes.to_vec() });
        }
    }

    fn hole(&mut self, cookie: u64, offset: u64, length: u64) {
        self.check_range(cookie, offset, length);
        self.events.push(Event::Hole { cookie, offset, length });
    }

    fn extent(&mut self, cookie: u64, context: u32, length: u64, status: u64) {
        assert!(length > 0 && self.outstanding.contains_key(&cookie));
        self.events.push(Event::Extent { cookie, context, length, status });
    }

    fn done(&mut self, cookie: u64, result: Result<(), Errno>) {
        assert!(self.outstanding.remove(&cookie).is_some(), "done twice");
        self.events.push(Event::Done { cookie, result });
    }
}

/// Fuzzes the client's reply parser. The first four bytes choose framing, context, the cuts of the input, and the number of
/// outstanding requests; these follow as extended request headers; the other bytes are sent by a server.
pub fn client_replies(data: &[u8]) {
    let [framing, context, cut, count, rest @ ..] = data else { return };
    let mut requests = BTreeMap::new();
    let mut rest = rest;
    for _ in 0..count % 16 {
        let Ok(Some((request, used))) = request::parse(rest, true) else { return };
        requests.insert(request.cookie, expect(&request));
        rest = &rest[used..];
    }
    let (framing, context) = (framing_of(*framing), (context % 4 > 0).then_some(u32::from(*context)));
    let whole = receive(framing, context, &requests, rest, || usize::MAX >> 1);
    let mut pieces = Pieces(u64::from(*cut) + 1);
    let cut = receive(framing, context, &requests, rest, || pieces.next());
    assert_eq!(cut, whole, "the pieces matter");
}

type Received = (Vec<Event>, Result<(), client::Violation>);

fn receive(
    framing: Framing,
    context: Option<u32>,
    requests: &BTreeMap<u64, client::Expect>,
    input: &[u8],
    mut piece: impl FnMut() -> usize,
) -> Received {
    let mut replies = client::Replies::new(framing, context);
    let mut log = Log::new(requests.iter().map(|(&cookie, &expect)| (cookie, expect)));
    let (mut consumed, mut shown) = (0, 0);
    loop {
        match replies.parse(&input[consumed..shown], &mut log) {
            Ok(bytes) => consumed += bytes,
            Err(violation) => return (log.events, Err(violation)),
        }
        assert!(consumed <= shown, "consumed more than there was");
        assert!(shown - consumed <= client::MAX_CARRY, "left more than guaranteed");
        if shown == input.len() {
            return (log.events, Ok(()));
        }
        shown = (shown + piece().max(1)).min(input.len());
    }
}

/// Fuzzes the client's handshake. The first byte chooses the client's requests, the
/// second the cuts of the input; the other bytes are sent by a server.
pub fn client_handshake(data: &[u8]) {
    let [choice, cut, input @ ..] = data else { return };
    let wanted = client::Wanted {
        export: String::from("disk0"),
        purpose: match choice & 3 {
            0 | 1 => client::Purpose::Go,
            2 => client::Purpose::Info,
            _ => client::Purpose::List,
        },
        framing: framing_of(choice >> 2),
        base_allocation: choice & 128 != 0,
        tls: choice & 64 != 0,
    };
    let whole = connect(&wanted, input, || usize::MAX >> 1);
    let mut pieces = Pieces(u64::from(*cut) + 1);
    assert_eq!(connect(&wanted, input, || pieces.next()), whole, "the pieces matter");
}

type Connection = (Vec<u8>, Result<Option<client::Outcome>, client::Violation>);

fn connect(wanted: &client::Wanted, input: &[u8], mut piece: impl FnMut() -> usize) -> Connection {
    let mut handshake = client::Handshake::new(wanted.clone());
    let mut out = vec![];
    let (mut consumed, mut shown) = (0, 0);
    loop {
        let step = match handshake.advance(&input[consumed..shown], &mut out) {
            Ok(step) => step,
            Err(violation) => return (out, Err(violation)),
        };
        consumed += step.consumed;
        assert!(consumed <= shown, "consumed more than there was");
        assert!(
            shown - consumed <= client::MAX_OPTION_REPLY + 20 || step.outcome.is_some(),
            "left more than guaranteed"
        );
        if step.outcome == Some(client::Outcome::StartTls) {
            // The rest of the input stands for what comes through TLS.
            handshake.secured(&mut out);
            continue;
        }
        if step.outcome.is_some() || shown == input.len() {
            return (out, Ok(step.outcome));
        }
        shown = (shown + piece().max(1)).min(input.len());
    }
}
