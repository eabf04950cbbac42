//! Exports that a client may not use are not listed, described or served by any option.

use crate::support;

use evenkeel_nbd::server::{Access, Directory, Export, Handshake, Offer, Status, Tls, Violation};
use evenkeel_nbd::wire::{option, reply};
use support::{Answer, FIXED, Shelf, ack, answers, describe, opt, queries};

/// The exports of [`Shelf`], of which `plain` is refused to the client.
struct Guarded;

fn guarded<T>(export: &Export<'_>, f: &mut dyn FnMut(&Export<'_>) -> T) -> T {
    let access = if export.name == "plain" { Access::Refused } else { Access::Open };
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

fn greeted(flags: u32) -> Handshake {
    let mut handshake = Handshake::new(Offer { tls: Tls::Selective, ..Offer::default() });
    handshake.greet(&mut Vec::new());
    handshake.advance(&flags.to_be_bytes(), &Guarded, &mut Vec::new()).expect("flags are known");
    handshake
}

/// Sends one option with this code and data; returns the server's answers.
fn ask(handshake: &mut Handshake, code: u32, data: &[u8]) -> Vec<Answer> {
    let mut out = Vec::new();
    handshake.advance(&opt(code, data), &Guarded, &mut out).expect("no violation");
    answers(&out).0
}

fn is_refused(handshake: &mut Handshake) {
    assert_eq!(ask(handshake, option::STRUCTURED_REPLY, b""), [ack(option::STRUCTURED_REPLY)]);
    for option in [option::INFO, option::GO] {
        let said = ask(handshake, option, &describe("plain", &[]));
        assert_eq!(said.iter().map(|answer| answer.kind).collect::<Vec<_>>(), [reply::ERR_POLICY]);
    }
    for option in [option::LIST_META_CONTEXT, option::SET_META_CONTEXT] {
        let said = ask(handshake, option, &queries("plain", &["base:allocation"]));
        assert_eq!(said.iter().map(|answer| answer.kind).collect::<Vec<_>>(), [reply::ERR_POLICY]);
    }
    let listed = ask(handshake, option::LIST, b"");
    assert_eq!(listed.len(), 3, "the two others and an end");
    assert!(listed.iter().all(|answer| !answer.data.ends_with(b"plain")));
}

#[test]
fn what_is_refused_is_neither_listed_nor_described_nor_served() {
    let mut handshake = greeted(FIXED);
    is_refused(&mut handshake);
    // TLS is no way around it.
    assert_eq!(ask(&mut handshake, option::STARTTLS, b""), [ack(option::STARTTLS)]);
    is_refused(&mut handshake);
    // The session goes on, and others can be had.
    let mut out = Vec::new();
    let step = handshake.advance(&opt(option::GO, &describe("disk0", &[])), &Guarded, &mut out).expect("no violation");
    assert!(matches!(step.status, Status::Transmission(session) if session.export == "disk0"));
}

#[test]
fn export_name_for_what_is_refused_closes_the_connection() {
    for flags in [0, FIXED] {
        let named = opt(option::EXPORT_NAME, b"plain");
        let refused = greeted(flags).advance(&named, &Guarded, &mut Vec::new());
        assert_eq!(refused, Err(Violation::ExportNameRefused));
    }
}
