//! Tests of STARTTLS in each of the three modes of section "TLS support" of the specification.

use crate::support;

use evenkeel_nbd::server::{Access, Directory, Export, Handshake, Offer, Status, Tls, Violation};
use evenkeel_nbd::wire::{Framing, option, reply};
use support::{Answer, FIXED, NO_ZEROES, Shelf, ack, answers, describe, opt, queries};

/// The exports of [`Shelf`], of which `plain` needs TLS.
struct Guarded;

fn guarded<T>(export: &Export<'_>, f: &mut dyn FnMut(&Export<'_>) -> T) -> T {
    let access = if export.name == "plain" { Access::TlsOnly } else { Access::Open };
    f(&Export { access, ..*export })
}

impl Directory for Guarded {
    fn count(&self) -> usize {
        Shelf.count()
    }

    fn visit(&self, from: usize, f: &mut dyn FnMut(&Export<'_>) -> bool) -> Option<usize> {
        Shelf.visit(from, &mut |export| guarded(export, f))
    }

    fn find(&self, name: &str, f: &mut dyn FnMut(&Export<'_>)) -> bool {
        Shelf.find(name, &mut |export| guarded(export, f))
    }
}

fn greeted(tls: Tls, flags: u32) -> Handshake {
    let mut handshake = Handshake::new(Offer { tls, ..Offer::default() });
    let mut out = Vec::new();
    handshake.greet(&mut out);
    handshake.advance(&flags.to_be_bytes(), &Guarded, &mut out).expect("flags are known");
    handshake
}

/// Sends one option with this code and data; returns the server's answers and the status after them.
fn ask(handshake: &mut Handshake, code: u32, data: &[u8]) -> (Vec<Answer>, Status) {
    let (bytes, mut out) = (opt(code, data), Vec::new());
    let step = handshake.advance(&bytes, &Guarded, &mut out).expect("no violation");
    assert_eq!(step.consumed, bytes.len());
    (answers(&out).0, step.status)
}

/// Sends one option; returns the type of its only answer, and asserts that the negotiation goes on.
fn code(handshake: &mut Handshake, option: u32, data: &[u8]) -> u32 {
    let (answers, status) = ask(handshake, option, data);
    assert_eq!((answers.len(), status), (1, Status::More), "{answers:?}");
    answers[0].kind
}

fn start(handshake: &mut Handshake) {
    assert_eq!(ask(handshake, option::STARTTLS, b""), (vec![ack(option::STARTTLS)], Status::StartTls));
}

fn listed(handshake: &mut Handshake) -> Vec<String> {
    let (answers, _) = ask(handshake, option::LIST, b"");
    let name = |answer: &Answer| {
        let length = u32::from_be_bytes(answer.data[..4].try_into().unwrap()) as usize;
        String::from_utf8(answer.data[4..4 + length].to_vec()).unwrap()
    };
    answers.iter().filter(|answer| answer.kind == reply::SERVER).map(name).collect()
}

#[test]
fn without_tls_starttls_is_unknown_and_nothing_asks_for_it() {
    let mut handshake = greeted(Tls::No, FIXED);
    assert_eq!(code(&mut handshake, option::STARTTLS, b""), reply::ERR_UNSUP);
    // An export that needs it cannot be had, and the answer does not send the client where it cannot go.
    for option in [option::INFO, option::GO] {
        assert_eq!(code(&mut handshake, option, &describe("plain", &[])), reply::ERR_POLICY);
    }
}

#[test]
fn selective_tls_serves_what_needs_none_and_keeps_quiet_about_the_rest() {
    let mut handshake = greeted(Tls::Selective, FIXED);
    assert_eq!(listed(&mut handshake), ["disk0", "rough"]);
    assert_eq!(ask(&mut handshake, option::STRUCTURED_REPLY, b"").0, [ack(option::STRUCTURED_REPLY)]);
    for option in [option::INFO, option::GO] {
        assert_eq!(code(&mut handshake, option, &describe("plain", &[])), reply::ERR_TLS_REQD);
        assert_eq!(code(&mut handshake, option, &describe("none", &[])), reply::ERR_UNKNOWN);
    }
    for option in [option::LIST_META_CONTEXT, option::SET_META_CONTEXT] {
        assert_eq!(code(&mut handshake, option, &queries("plain", &["base:allocation"])), reply::ERR_TLS_REQD);
    }
    let (_, status) = ask(&mut handshake, option::GO, &describe("disk0", &[]));
    assert!(matches!(status, Status::Transmission(session) if session.export == "disk0"));
}

#[test]
fn after_starttls_every_export_is_there() {
    for tls in [Tls::Selective, Tls::Forced] {
        let mut handshake = greeted(tls, FIXED);
        start(&mut handshake);
        assert_eq!(listed(&mut handshake), ["disk0", "rough", "plain"]);
        let (_, status) = ask(&mut handshake, option::GO, &describe("plain", &[]));
        assert!(matches!(status, Status::Transmission(session) if session.export == "plain"), "{tls:?}");
    }
}

#[test]
fn forced_tls_answers_nothing_else_first() {
    let mut handshake = greeted(Tls::Forced, FIXED);
    let requests = [
        (option::LIST, Vec::new()),
        (option::INFO, describe("disk0", &[])),
        (option::GO, describe("none", &[])),
        (option::STRUCTURED_REPLY, Vec::new()),
        (option::EXTENDED_HEADERS, Vec::new()),
        (option::SET_META_CONTEXT, queries("disk0", &["base:allocation"])),
        (99, Vec::new()),
        // Too long to be kept.
        (option::GO, vec![0; 20_000]),
    ];
    for (option, data) in requests {
        assert_eq!(code(&mut handshake, option, &data), reply::ERR_TLS_REQD, "option {option}");
    }
    start(&mut handshake);
    assert_eq!(ask(&mut handshake, option::STRUCTURED_REPLY, b"").0, [ack(option::STRUCTURED_REPLY)]);
    assert_eq!(ask(&mut greeted(Tls::Forced, FIXED), option::ABORT, b""), (vec![ack(option::ABORT)], Status::Closed));
}

#[test]
fn export_name_without_tls_closes_the_connection() {
    for (tls, name) in [(Tls::Forced, "disk0"), (Tls::Forced, "none"), (Tls::Selective, "plain"), (Tls::No, "plain")] {
        for flags in [0, FIXED | NO_ZEROES] {
            let named = opt(option::EXPORT_NAME, name.as_bytes());
            let refused = greeted(tls, flags).advance(&named, &Guarded, &mut Vec::new());
            assert_eq!(refused, Err(Violation::ExportNameTls), "{tls:?} {name}");
        }
    }
}

#[test]
fn starttls_is_for_fixed_newstyle_takes_no_data_and_happens_once() {
    let refused = greeted(Tls::Forced, 0).advance(&opt(option::STARTTLS, b""), &Guarded, &mut Vec::new());
    assert_eq!(refused, Err(Violation::OptionNotFixed(option::STARTTLS)));
    let mut handshake = greeted(Tls::Selective, FIXED);
    assert_eq!(code(&mut handshake, option::STARTTLS, b"x"), reply::ERR_INVALID);
    assert_eq!(code(&mut handshake, option::STARTTLS, &[0; 20_000]), reply::ERR_INVALID);
    start(&mut handshake);
    assert_eq!(code(&mut handshake, option::STARTTLS, b""), reply::ERR_INVALID);
    let mut handshake = greeted(Tls::Selective, FIXED);
    handshake.shut_down();
    assert_eq!(code(&mut handshake, option::STARTTLS, b""), reply::ERR_SHUTDOWN);
}

/// An attacker on the network could have sent the options before STARTTLS: their results do not hold after TLS is started.
#[test]
fn what_was_agreed_upon_in_the_clear_is_forgotten() {
    let mut handshake = greeted(Tls::Selective, FIXED);
    ask(&mut handshake, option::EXTENDED_HEADERS, b"");
    ask(&mut handshake, option::SET_META_CONTEXT, &queries("disk0", &["base:allocation"]));
    start(&mut handshake);
    let refused = code(&mut handshake, option::SET_META_CONTEXT, &queries("disk0", &["base:allocation"]));
    assert_eq!(refused, reply::ERR_INVALID, "replies have no chunks any more");
    let (_, Status::Transmission(session)) = ask(&mut handshake, option::GO, &describe("disk0", &[])) else {
        panic!("no session");
    };
    assert_eq!((session.framing, session.base_allocation), (Framing::Simple, false));
}

/// An unencrypted option behind STARTTLS, which an attacker may have inserted, is not consumed, so that the caller closes the
/// connection.
#[test]
fn what_follows_starttls_in_the_clear_is_not_understood() {
    let mut bytes = opt(option::STARTTLS, b"");
    let length = bytes.len();
    bytes.extend(opt(option::GO, &describe("disk0", &[])));
    let mut out = Vec::new();
    let step = greeted(Tls::Selective, FIXED).advance(&bytes, &Guarded, &mut out).expect("no violation");
    assert_eq!((step.consumed, step.status), (length, Status::StartTls));
    assert_eq!(answers(&out).0, [ack(option::STARTTLS)]);
}
