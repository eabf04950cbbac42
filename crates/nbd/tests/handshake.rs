//! Tests of the server's answers to each option, in the order of the specification's sections.

use crate::support;

use std::cell::Cell;

use evenkeel_nbd::server::handshake::{
    LIST_PIECE, MAX_OPTION, MAX_OPTIONS, MAX_OPTIONS_PER_EXPORT, MAX_SKIPPED_OPTION,
};
use evenkeel_nbd::server::reply::BASE_ALLOCATION_ID;
use evenkeel_nbd::server::{Access, Directory, Export, Handshake, Offer, Session, Status, Violation};
use evenkeel_nbd::wire::{Framing, TransmissionFlags, info, option, reply};
use support::{Answer, FIXED, NO_ZEROES, Shelf, ack, all_flags, answers, ask, describe, framed, greeted, opt, queries};

fn session(status: Status) -> Session {
    match status {
        Status::Transmission(session) => session,
        other => panic!("no session but {other:?}"),
    }
}

fn answer(option: u32, kind: u32, parts: &[&[u8]]) -> Answer {
    Answer { option, kind, data: parts.concat() }
}

fn info_export(option: u32, size: u64, flags: TransmissionFlags) -> Answer {
    answer(option, reply::INFO, &[&[0, 0], &size.to_be_bytes(), &flags.bits().to_be_bytes()])
}

fn info_block_size(option: u32, min: u32) -> Answer {
    let sizes = [min.to_be_bytes(), 4096u32.to_be_bytes(), (1u32 << 25).to_be_bytes()].concat();
    answer(option, reply::INFO, &[&[0, 3], &sizes])
}

/// The error code of the only answer in the list; asserts that its message is UTF-8.
fn only_error(list: &[Answer]) -> u32 {
    assert_eq!(list.len(), 1, "{list:?}");
    assert_ne!(list[0].kind & reply::ERROR_BIT, 0, "{list:?}");
    assert!(std::str::from_utf8(&list[0].data).is_ok());
    list[0].kind
}

fn violation(handshake: &mut Handshake, bytes: &[u8]) -> Violation {
    let mut out = Vec::new();
    let violation = handshake.advance(bytes, &Shelf, &mut out).expect_err("a violation");
    // After the end nothing is taken in any more.
    let step = handshake.advance(b"more", &Shelf, &mut out).expect("not an error again");
    assert_eq!((step.consumed, step.status), (0, Status::Closed));
    violation
}

// "Newstyle negotiation", "Handshake flags", "Client flags".

#[test]
fn greeting_offers_fixed_newstyle_and_no_zeroes() {
    let mut out = Vec::new();
    Handshake::new(Offer::default()).greet(&mut out);
    assert_eq!(out, b"NBDMAGICIHAVEOPT\x00\x03");
}

#[test]
fn unknown_client_flags_close_the_connection() {
    let mut handshake = Handshake::new(Offer::default());
    assert_eq!(violation(&mut handshake, &[0, 0, 0, 4]), Violation::UnknownClientFlags(4));
}

#[test]
fn option_without_its_magic_closes_the_connection() {
    let mut bytes = opt(option::LIST, b"");
    bytes[0] = b'X';
    assert!(matches!(violation(&mut greeted(FIXED), &bytes), Violation::OptionMagic(_)));
}

#[test]
fn client_without_fixed_newstyle_may_only_name_an_export() {
    assert_eq!(violation(&mut greeted(0), &opt(option::LIST, b"")), Violation::OptionNotFixed(option::LIST));
    let mut out = Vec::new();
    let step = greeted(0).advance(&opt(option::EXPORT_NAME, b"disk0"), &Shelf, &mut out).expect("named");
    assert_eq!(session(step.status).export, "disk0");
    assert_eq!(out.len(), 10 + 124);
}

// "Option types": NBD_OPT_EXPORT_NAME.

#[test]
fn export_name_answers_size_and_flags_with_or_without_zeroes() {
    for (flags, zeroes) in [(FIXED, 124), (FIXED | NO_ZEROES, 0)] {
        let mut out = Vec::new();
        let step = greeted(flags).advance(&opt(option::EXPORT_NAME, b""), &Shelf, &mut out).expect("default export");
        let session = session(step.status);
        assert_eq!(session.export, "disk0", "canonical name of the default export");
        assert_eq!((session.framing, session.base_allocation, session.block_sizes), (Framing::Simple, false, false));
        let expected = all_flags().without(TransmissionFlags::SEND_DF);
        let mut bytes = (1u64 << 30).to_be_bytes().to_vec();
        bytes.extend(expected.bits().to_be_bytes());
        bytes.resize(10 + zeroes, 0);
        assert_eq!(out, bytes);
    }
}

#[test]
fn export_name_that_cannot_be_granted_closes_the_connection() {
    let long = vec![b'a'; 4097];
    for (framing, name, expected) in [
        (Framing::Simple, b"nowhere".as_slice(), Violation::ExportNameUnknown),
        (Framing::Simple, b"\xff\xfe", Violation::ExportNameInvalid),
        (Framing::Simple, b"disk0\0", Violation::ExportNameInvalid),
        (Framing::Simple, &long, Violation::ExportNameInvalid),
        (Framing::Simple, b"rough", Violation::ExportNameBlockSize),
        (Framing::Extended, b"disk0", Violation::ExportNameExtended),
    ] {
        assert_eq!(violation(&mut framed(framing), &opt(option::EXPORT_NAME, name)), expected);
    }
}

#[test]
fn export_name_keeps_structured_replies() {
    let mut out = Vec::new();
    let step = framed(Framing::Structured)
        .advance(&opt(option::EXPORT_NAME, b"disk0"), &Shelf, &mut out)
        .expect("no violation");
    let session = session(step.status);
    assert!(session.structured() && !session.extended());
    assert!(session.flags.contains(TransmissionFlags::SEND_DF));
}

// NBD_OPT_ABORT.

#[test]
fn abort_is_acknowledged_and_its_data_ignored() {
    for data in [vec![], vec![7; 9], vec![0; MAX_OPTION as usize + 1]] {
        let (list, status) = ask(&mut greeted(FIXED), &opt(option::ABORT, &data));
        assert_eq!((list, status), (vec![ack(option::ABORT)], Status::Closed));
    }
}

// NBD_OPT_LIST.

#[test]
fn list_names_each_export_with_its_description() {
    let (list, status) = ask(&mut greeted(FIXED), &opt(option::LIST, b""));
    let server = |name: &str, description: &str| {
        answer(
            option::LIST,
            reply::SERVER,
            &[&(name.len() as u32).to_be_bytes(), name.as_bytes(), description.as_bytes()],
        )
    };
    let expected = vec![
        server("disk0", "first disk"),
        server("rough", "needs 4 KiB blocks"),
        server("plain", ""),
        ack(option::LIST),
    ];
    assert_eq!((list, status), (expected, Status::More));
}

// Options that take no data ("SHOULD reject a request that includes data").

#[test]
fn data_where_none_belongs_is_invalid() {
    for option in [option::LIST, option::STRUCTURED_REPLY, option::EXTENDED_HEADERS] {
        let mut handshake = greeted(FIXED);
        assert_eq!(only_error(&ask(&mut handshake, &opt(option, b"x")).0), reply::ERR_INVALID, "option {option}");
        // And has not been granted: DF would be offered otherwise.
        let (list, _) = ask(&mut handshake, &opt(option::GO, &describe("disk0", &[])));
        assert_eq!(list[0], info_export(option::GO, 1 << 30, all_flags().without(TransmissionFlags::SEND_DF)));
    }
}

// "NOTLS mode"; "Fixed newstyle negotiation" (unknown options).

#[test]
fn starttls_and_unknown_options_are_unsupported_and_the_session_goes_on() {
    for option in [option::STARTTLS, 4, 12, 0, u32::MAX] {
        for data in [0, 3, MAX_OPTION as usize, MAX_OPTION as usize + 1] {
            let mut handshake = greeted(FIXED);
            let (list, status) = ask(&mut handshake, &opt(option, &vec![1; data]));
            assert_eq!((only_error(&list), list[0].option), (reply::ERR_UNSUP, option));
            assert_eq!(status, Status::More);
            assert_eq!(ask(&mut handshake, &opt(option::LIST, b"")).0.len(), 4);
        }
    }
}

// NBD_OPT_INFO and NBD_OPT_GO.

#[test]
fn info_and_go_answer_what_was_asked() {
    for option in [option::INFO, option::GO] {
        for (requests, extra) in [
            (vec![], vec![]),
            (vec![info::EXPORT], vec![]),
            (vec![info::NAME], vec![answer(option, reply::INFO, &[&[0, 1], b"disk0"])]),
            (vec![info::DESCRIPTION], vec![answer(option, reply::INFO, &[&[0, 2], b"first disk"])]),
            (vec![info::BLOCK_SIZE], vec![info_block_size(option, 1)]),
            (
                vec![99, info::BLOCK_SIZE, info::NAME, info::DESCRIPTION],
                vec![
                    answer(option, reply::INFO, &[&[0, 1], b"disk0"]),
                    answer(option, reply::INFO, &[&[0, 2], b"first disk"]),
                    info_block_size(option, 1),
                ],
            ),
        ] {
            let (list, status) = ask(&mut framed(Framing::Structured), &opt(option, &describe("", &requests)));
            let mut expected = vec![info_export(option, 1 << 30, all_flags())];
            expected.extend(extra);
            expected.push(ack(option));
            assert_eq!(list, expected, "requests {requests:?}");
            if option == option::INFO {
                assert_eq!(status, Status::More);
            } else {
                let session = session(status);
                assert_eq!((session.export.as_str(), session.framing), ("disk0", Framing::Structured));
                assert_eq!(session.block_sizes, requests.contains(&info::BLOCK_SIZE));
            }
        }
    }
}

#[test]
fn go_answers_as_the_info_before_it() {
    let mut handshake = framed(Framing::Extended);
    let data = describe("disk0", &[info::NAME, info::BLOCK_SIZE]);
    let (info, _) = ask(&mut handshake, &opt(option::INFO, &data));
    let (go, status) = ask(&mut handshake, &opt(option::GO, &data));
    let bodies = |list: &[Answer]| list.iter().map(|a| (a.kind, a.data.clone())).collect::<Vec<_>>();
    assert_eq!(bodies(&info), bodies(&go));
    assert!(session(status).extended());
}

#[test]
fn empty_description_is_not_sent() {
    let (list, _) = ask(&mut greeted(FIXED), &opt(option::INFO, &describe("plain", &[info::DESCRIPTION])));
    let flags = TransmissionFlags::READ_ONLY | TransmissionFlags::HAS_FLAGS;
    assert_eq!(list, vec![info_export(option::INFO, 12345, flags), ack(option::INFO)]);
}

#[test]
fn unknown_export_is_an_error_and_the_session_goes_on() {
    for option in [option::INFO, option::GO] {
        let mut handshake = greeted(FIXED);
        let (list, _) = ask(&mut handshake, &opt(option, &describe("nowhere", &[])));
        assert_eq!(only_error(&list), reply::ERR_UNKNOWN);
        let (_, status) = ask(&mut handshake, &opt(option::GO, &describe("disk0", &[])));
        assert_eq!(session(status).export, "disk0");
    }
}

#[test]
fn malformed_info_and_go_are_invalid() {
    let good = describe("disk0", &[info::NAME]);
    let mut long_name = describe("disk0", &[]);
    long_name[3] = 200;
    let huge = describe(&"a".repeat(4097), &[]);
    let cases: [(&str, &[u8]); 8] = [
        ("empty", b""),
        ("no request count", &good[..9]),
        ("request cut off", &good[..good.len() - 1]),
        ("trailing byte", &[good.as_slice(), &[0]].concat()),
        ("name longer than the data", &long_name),
        ("name above 4096 bytes", &huge),
        ("not UTF-8", &[0, 0, 0, 1, 0xff, 0, 0]),
        ("NUL in the name", &[0, 0, 0, 1, 0, 0, 0]),
    ];
    for (why, data) in cases {
        for option in [option::INFO, option::GO] {
            let (list, status) = ask(&mut greeted(FIXED), &opt(option, data));
            assert_eq!((only_error(&list), status), (reply::ERR_INVALID, Status::More), "{why}");
        }
    }
}

// "Block size constraints"; NBD_REP_ERR_BLOCK_SIZE_REQD.

#[test]
fn export_with_large_blocks_demands_that_the_client_asks() {
    for option in [option::INFO, option::GO] {
        let mut handshake = greeted(FIXED);
        let (list, status) = ask(&mut handshake, &opt(option, &describe("rough", &[info::NAME])));
        assert_eq!(list[0], info_block_size(option, 4096), "told beforehand to save a round trip");
        assert_eq!(only_error(&list[1..]), reply::ERR_BLOCK_SIZE_REQD);
        assert_eq!(status, Status::More);
        let (list, _) = ask(&mut handshake, &opt(option, &describe("rough", &[info::BLOCK_SIZE])));
        assert_eq!(list.last(), Some(&ack(option)));
    }
}

// "Transmission flags".

#[test]
fn df_is_offered_only_with_chunks() {
    for framing in [Framing::Simple, Framing::Structured, Framing::Extended] {
        let (_, status) = ask(&mut framed(framing), &opt(option::GO, &describe("disk0", &[])));
        let session = session(status);
        assert_eq!(session.flags.contains(TransmissionFlags::SEND_DF), framing != Framing::Simple);
        assert!(session.flags.contains(TransmissionFlags::HAS_FLAGS));
    }
}

/// The exports of [`Shelf`], each with these flags.
struct Flagged(TransmissionFlags);

impl Directory for Flagged {
    fn count(&self) -> usize {
        Shelf.count()
    }

    fn visit(&self, _: usize, _: &mut dyn FnMut(&Export<'_>) -> bool) -> Option<usize> {
        None
    }

    fn find(&self, name: &str, f: &mut dyn FnMut(&Export<'_>)) -> bool {
        Shelf.find(name, &mut |export| f(&Export { flags: self.0, ..*export }))
    }
}

#[test]
fn flags_that_would_mislead_are_withheld() {
    use TransmissionFlags as Has;
    for (given, advertised) in [
        (Has::NONE, Has::HAS_FLAGS),
        (Has::SEND_FAST_ZERO, Has::HAS_FLAGS),
        (Has::SEND_RESIZE | Has::BLOCK_STATUS_PAYLOAD | Has::ROTATIONAL, Has::HAS_FLAGS | Has::ROTATIONAL),
    ] {
        let mut out = Vec::new();
        let step = framed(Framing::Extended)
            .advance(&opt(option::GO, &describe("disk0", &[])), &Flagged(given), &mut out)
            .expect("go");
        assert_eq!(session(step.status).flags, advertised);
        assert_eq!(answers(&out).0[0], info_export(option::GO, 1 << 30, advertised));
    }
}

// NBD_OPT_STRUCTURED_REPLY, NBD_OPT_EXTENDED_HEADERS.

#[test]
fn extended_headers_need_no_structured_replies_and_cannot_be_undone() {
    for before in [Framing::Simple, Framing::Structured] {
        let mut handshake = framed(before);
        for _ in 0..2 {
            assert_eq!(ask(&mut handshake, &opt(option::EXTENDED_HEADERS, b"")).0, vec![ack(option::EXTENDED_HEADERS)]);
        }
        let (list, _) = ask(&mut handshake, &opt(option::STRUCTURED_REPLY, b""));
        assert_eq!(only_error(&list), reply::ERR_EXT_HEADER_REQD);
        let (_, status) = ask(&mut handshake, &opt(option::GO, &describe("disk0", &[])));
        assert!(session(status).extended());
    }
}

#[test]
fn repeating_structured_reply_changes_nothing() {
    let mut handshake = framed(Framing::Structured);
    ask(&mut handshake, &opt(option::SET_META_CONTEXT, &queries("disk0", &["base:allocation"])));
    assert_eq!(ask(&mut handshake, &opt(option::STRUCTURED_REPLY, b"")).0, vec![ack(option::STRUCTURED_REPLY)]);
    let (_, status) = ask(&mut handshake, &opt(option::GO, &describe("disk0", &[])));
    let session = session(status);
    assert!(session.structured() && session.base_allocation);
}

#[test]
fn what_is_not_offered_is_unsupported() {
    let mut handshake = Handshake::new(Offer { structured: false, extended: false, ..Offer::default() });
    ask(&mut handshake, &FIXED.to_be_bytes());
    for option in [option::STRUCTURED_REPLY, option::EXTENDED_HEADERS] {
        for data in [b"".as_slice(), b"x"] {
            assert_eq!(only_error(&ask(&mut handshake, &opt(option, data)).0), reply::ERR_UNSUP);
        }
    }
}

// NBD_OPT_LIST_META_CONTEXT, NBD_OPT_SET_META_CONTEXT, "Metadata querying".

#[test]
fn contexts_are_listed_and_selected_by_query() {
    let set = option::SET_META_CONTEXT;
    let list = option::LIST_META_CONTEXT;
    for (option, asked, selected) in [
        (list, vec![], true),
        (list, vec!["base:"], true),
        (list, vec!["base:allocation"], true),
        (list, vec!["base:other", "qemu:dirty-bitmap:x", "no-colon", ""], false),
        (set, vec![], false),
        (set, vec!["base:"], false),
        (set, vec!["base:allocation"], true),
        (set, vec!["x-unknown:y", "base:allocation", "base:allocation"], true),
        (set, vec!["base:allocatio", "base:allocation2", "BASE:ALLOCATION"], false),
    ] {
        for framing in [Framing::Structured, Framing::Extended] {
            let mut handshake = framed(framing);
            let (got, _) = ask(&mut handshake, &opt(option, &queries("", &asked)));
            let id = if option == set { BASE_ALLOCATION_ID } else { 0 };
            let context = answer(option, reply::META_CONTEXT, &[&id.to_be_bytes(), b"base:allocation"]);
            let expected = if selected { vec![context, ack(option)] } else { vec![ack(option)] };
            assert_eq!(got, expected, "{asked:?}");
            let (_, status) = ask(&mut handshake, &opt(option::GO, &describe("disk0", &[])));
            assert_eq!(session(status).base_allocation, selected && option == set);
        }
    }
}

#[test]
fn contexts_need_chunks_a_known_export_and_well_formed_queries() {
    let good = queries("disk0", &["base:allocation"]);
    let mut beyond = good.clone();
    beyond[16] = 200;
    let mut more = good.clone();
    more[12] = 2;
    for option in [option::LIST_META_CONTEXT, option::SET_META_CONTEXT] {
        for (framing, data, expected) in [
            (Framing::Simple, good.as_slice(), reply::ERR_INVALID),
            (Framing::Structured, b"", reply::ERR_INVALID),
            (Framing::Structured, &beyond, reply::ERR_INVALID),
            (Framing::Structured, &more, reply::ERR_INVALID),
            (Framing::Structured, &[good.as_slice(), b"x"].concat(), reply::ERR_INVALID),
            (Framing::Structured, &queries("nowhere", &["base:allocation"]), reply::ERR_UNKNOWN),
            (Framing::Structured, &queries("disk0", &["base:\0"]), reply::ERR_INVALID),
            (Framing::Structured, &vec![0; MAX_OPTION as usize + 1], reply::ERR_TOO_BIG),
        ] {
            let (list, _) = ask(&mut framed(framing), &opt(option, data));
            assert_eq!(only_error(&list), expected, "option {option}, {data:?}");
        }
    }
}

#[test]
fn selection_holds_for_its_export_until_it_is_replaced() {
    let select = |name| opt(option::SET_META_CONTEXT, &queries(name, &["base:allocation"]));
    let clear = opt(option::SET_META_CONTEXT, &queries("disk0", &[]));
    let malformed = opt(option::SET_META_CONTEXT, b"");
    let too_big = opt(option::SET_META_CONTEXT, &vec![0; MAX_OPTION as usize + 1]);
    let unknown = select("nowhere");
    let extend = opt(option::EXTENDED_HEADERS, b"");
    let list = opt(option::LIST_META_CONTEXT, &queries("plain", &[]));
    let cases: [(&str, Vec<Vec<u8>>, bool); 10] = [
        ("selected by its name", vec![select("disk0")], true),
        ("selected through the default export", vec![select("")], true),
        ("selected for another export", vec![select("plain")], false),
        ("selected for another export since", vec![select("disk0"), select("plain")], false),
        ("cleared", vec![select("disk0"), clear], false),
        ("replaced by a malformed selection", vec![select("disk0"), malformed], false),
        ("replaced by one that is too big", vec![select("disk0"), too_big], false),
        ("replaced by one of no export", vec![select("disk0"), unknown], false),
        ("extended headers since", vec![select("disk0"), extend], true),
        ("another export's contexts listed since", vec![select("disk0"), list], true),
    ];
    for (why, options, expected) in cases {
        let mut handshake = framed(Framing::Structured);
        for option in options {
            ask(&mut handshake, &option);
        }
        let (_, status) = ask(&mut handshake, &opt(option::GO, &describe("disk0", &[])));
        assert_eq!(session(status).base_allocation, expected, "{why}");
    }
}

// "Termination of the session during option haggling".

#[test]
fn shutting_down_refuses_everything_but_abort() {
    for option in [option::LIST, option::GO, option::STRUCTURED_REPLY, 77] {
        for length in [0, MAX_OPTION as usize + 1] {
            let mut handshake = greeted(FIXED);
            handshake.shut_down();
            let (list, _) = ask(&mut handshake, &opt(option, &vec![0; length]));
            assert_eq!(only_error(&list), reply::ERR_SHUTDOWN);
            assert_eq!(ask(&mut handshake, &opt(option::ABORT, b"")).1, Status::Closed);
        }
    }
    let mut handshake = greeted(FIXED);
    handshake.shut_down();
    assert_eq!(violation(&mut handshake, &opt(option::EXPORT_NAME, b"disk0")), Violation::ExportNameShutdown);
}

// Bounds, which the specification leaves to the server.

#[test]
fn long_options_are_skipped_up_to_a_bound() {
    let mut handshake = greeted(FIXED);
    for option in [option::LIST, option::INFO, option::GO, option::STRUCTURED_REPLY, option::EXTENDED_HEADERS] {
        let (list, _) = ask(&mut handshake, &opt(option, &vec![0; MAX_OPTION as usize + 1]));
        assert_eq!(only_error(&list), reply::ERR_TOO_BIG);
    }
    let mut header = opt(option::LIST, b"");
    header[12..].copy_from_slice(&(MAX_SKIPPED_OPTION + 1).to_be_bytes());
    let expected = Violation::OptionLength { option: option::LIST, length: MAX_SKIPPED_OPTION + 1 };
    assert_eq!(violation(&mut handshake, &header), expected);
}

#[test]
fn endless_haggling_ends() {
    let mut handshake = greeted(FIXED);
    for n in 1..=MAX_OPTIONS + Shelf.count() as u32 * MAX_OPTIONS_PER_EXPORT {
        assert_eq!(only_error(&ask(&mut handshake, &opt(77, b"")).0), reply::ERR_UNSUP);
        assert_eq!(handshake.options(), n);
    }
    assert_eq!(violation(&mut handshake, &opt(77, b"")), Violation::TooManyOptions);
}

/// A directory of 10,000 exports that keep their places when others are removed.
struct Many {
    exports: Vec<String>,
    /// True for the places of exports that the client may not use.
    refused: fn(usize) -> bool,
    /// Number of exports that are removed: those at the first places.
    removed: Cell<usize>,
}

impl Many {
    fn new(refused: fn(usize) -> bool) -> Self {
        let exports = (0..10_000).map(|n| format!("volume-{n}")).collect();
        Self { exports, refused, removed: Cell::new(0) }
    }
}

impl Directory for Many {
    fn count(&self) -> usize {
        self.exports.len()
    }

    fn visit(&self, from: usize, f: &mut dyn FnMut(&Export<'_>) -> bool) -> Option<usize> {
        let mut places = from.max(self.removed.get())..self.exports.len();
        let access = |place| if (self.refused)(place) { Access::Refused } else { Access::Open };
        let stopped = places
            .find(|&place| !f(&Export { name: &self.exports[place], access: access(place), ..support::export(0) }));
        stopped.map(|place| place + 1)
    }

    fn find(&self, _: &str, _: &mut dyn FnMut(&Export<'_>)) -> bool {
        false
    }
}

/// Sends LIST and then an unknown option. Returns the listed names, the most bytes that one call of `advance` appended, and the
/// number of calls; `after_piece` gets this number after each call.
fn list_of(many: &Many, mut after_piece: impl FnMut(usize)) -> (Vec<String>, usize, usize) {
    let mut handshake = greeted(FIXED);
    let input = [opt(option::LIST, b""), opt(77, b"")].concat();
    let (mut rest, mut all, mut longest, mut pieces) = (&input[..], Vec::new(), 0, 0);
    loop {
        let mut out = Vec::new();
        let step = handshake.advance(rest, many, &mut out).expect("a list");
        rest = &rest[step.consumed..];
        assert_eq!(step.status == Status::Unfinished, handshake.is_unfinished());
        (longest, pieces) = (longest.max(out.len()), pieces + 1);
        all.extend(out);
        after_piece(pieces);
        if step.status == Status::More && rest.is_empty() {
            break;
        }
    }
    let (mut list, rest) = answers(&all);
    assert!(rest.is_empty());
    assert_eq!(list.pop().map(|last| last.kind), Some(reply::ERR_UNSUP), "the next option is answered after the list");
    assert_eq!(list.pop(), Some(ack(option::LIST)));
    let name = |answer: Answer| {
        let length = u32::from_be_bytes(answer.data[..4].try_into().expect("4 bytes")) as usize;
        String::from_utf8(answer.data[4..4 + length].to_vec()).expect("a name")
    };
    (list.into_iter().map(name).collect(), longest, pieces)
}

#[test]
fn a_long_list_comes_in_pieces_and_is_whole() {
    let many = Many::new(|_| false);
    let (names, longest, pieces) = list_of(&many, |_| {});
    assert_eq!(names, many.exports);
    assert!(longest < LIST_PIECE + 1_000 && pieces > 10, "{pieces} pieces of up to {longest} bytes");
}

#[test]
fn exports_that_are_not_shown_take_no_longer_at_a_time() {
    let (names, longest, pieces) = list_of(&Many::new(|place| place % 1_000 != 999), |_| {});
    assert_eq!(names.len(), 10);
    assert!(longest < 100 && pieces >= 10, "{pieces} pieces of up to {longest} bytes");
}

#[test]
fn exports_that_go_while_they_are_listed_are_left_out_and_the_others_are_not() {
    let many = Many::new(|_| false);
    let (names, ..) = list_of(&many, |pieces| many.removed.set(if pieces < 2 { 0 } else { 5_000 }));
    let gone = names.windows(2).find(|pair| pair[1] == "volume-5000").expect("listed");
    assert_ne!(gone[0], "volume-4999");
    assert_eq!(names.last(), many.exports.last());
    assert!(names.iter().collect::<std::collections::BTreeSet<_>>().len() == names.len(), "none is there twice");
}

#[test]
fn a_list_of_one_piece_is_answered_at_once() {
    let (_, status) = ask(&mut greeted(FIXED), &opt(option::LIST, b""));
    assert_eq!(status, Status::More);
}

#[test]
fn each_call_answers_one_option_and_leaves_requests_alone() {
    let mut handshake = greeted(FIXED);
    let list = opt(option::LIST, b"");
    let go = opt(option::GO, &describe("disk0", &[]));
    let input = [list.as_slice(), &go, b"a request"].concat();
    let mut out = Vec::new();
    let step = handshake.advance(&input, &Shelf, &mut out).expect("list");
    assert_eq!((step.consumed, step.status), (list.len(), Status::More));
    assert_eq!(answers(&out).0.len(), 4);
    let step = handshake.advance(&input[list.len()..], &Shelf, &mut out).expect("go");
    assert_eq!(step.consumed, go.len());
    session(step.status);
    let step = handshake.advance(b"a request", &Shelf, &mut out).expect("over");
    assert_eq!((step.consumed, step.status), (0, Status::Closed));
}
