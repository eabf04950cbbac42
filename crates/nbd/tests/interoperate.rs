//! Recorded bytes of real programs (Debian 12: libnbd 1.14, qemu 7.2, fio 3.33,
//! nbdkit 1.32), which are part of the fuzz corpus: this crate's server
//! understands the recorded clients, its client the recorded servers.

use std::fs;
use std::path::Path;

use evenkeel_nbd::client::{self, Outcome, Purpose, Wanted};
use evenkeel_nbd::fuzz::Shelf;
use evenkeel_nbd::server::{Handshake, Limits, Offer, Session, Status, request};
use evenkeel_nbd::wire::{Command, Framing};

fn recorded(target: &str, name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target).join(name);
    // The first two bytes tell the fuzz target how to cut the rest.
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).split_off(2)
}

/// Runs the server's handshake on a client's recording. Returns the session (`None` if the client did not start transmission)
/// and the rest of the recording.
fn negotiate(input: &[u8]) -> (Option<Session>, &[u8]) {
    let mut handshake = Handshake::new(Offer::default());
    let mut out = Vec::new();
    let mut rest = input;
    loop {
        let step = handshake.advance(rest, &Shelf, &mut out).expect("a sound client");
        rest = &rest[step.consumed..];
        match step.status {
            Status::Unfinished => {}
            Status::More => assert!(!rest.is_empty(), "the recording ends too soon"),
            Status::Transmission(session) => return (Some(session), rest),
            Status::Closed | Status::StartTls => return (None, rest),
        }
    }
}

#[test]
fn server_understands_real_clients() {
    for (client, framing, contexts, commands) in [
        ("fio", Framing::Structured, false, vec![Command::Write]),
        ("nbdcopy", Framing::Structured, false, vec![Command::Write]),
        ("nbdinfo", Framing::Structured, false, vec![Command::Read, Command::Disconnect]),
        ("nbdinfo-map", Framing::Structured, true, vec![Command::BlockStatus, Command::Disconnect]),
        ("qemu-img-map", Framing::Structured, true, vec![Command::BlockStatus, Command::Disconnect]),
        (
            "qemu-io",
            Framing::Structured,
            true,
            vec![
                Command::Write,
                Command::Read,
                Command::Trim,
                Command::WriteZeroes,
                Command::Flush,
                Command::Disconnect,
            ],
        ),
    ] {
        let recording = recorded("handshake", client);
        let (session, mut rest) = negotiate(&recording);
        let session = session.unwrap_or_else(|| panic!("{client} left"));
        assert_eq!(session.export, "disk0", "{client}");
        assert_eq!(session.framing, framing, "{client}");
        assert_eq!(session.base_allocation, contexts, "{client}");
        let limits = Limits { size: 1 << 30, read_only: false, min_block: 1, max_payload: 1 << 25 };
        let mut seen = Vec::new();
        while let Some((request, used)) = request::parse(rest, session.extended()).expect("sound requests") {
            assert_eq!(request::validate(&request, &limits, &session), Ok(()), "{client}: {request:?}");
            seen.push(request.command);
            let end = used + request.payload_len(session.extended()) as usize;
            rest = rest.get(end..).unwrap_or_default();
        }
        for command in commands {
            assert!(seen.contains(&command), "{client} sent no {command:?} but {seen:?}");
        }
    }
}

#[test]
fn server_lists_for_real_clients() {
    assert_eq!(negotiate(&recorded("handshake", "nbdinfo-list")).0, None);
}

#[test]
fn client_understands_real_servers() {
    // No server of Debian 12 grants extended headers: the client settles for less.
    for (server, asked, granted) in [
        ("nbdkit-go-0", Framing::Simple, Framing::Simple),
        ("nbdkit-go-1", Framing::Structured, Framing::Structured),
        ("qemu-nbd-go-0", Framing::Simple, Framing::Simple),
        ("qemu-nbd-go-1", Framing::Structured, Framing::Structured),
    ] {
        let export = "disk0".into();
        let wanted = Wanted { export, purpose: Purpose::Go, framing: asked, base_allocation: true, tls: false };
        let mut handshake = client::Handshake::new(wanted);
        let step = handshake.advance(&recorded("client_handshake", server), &mut Vec::new()).expect("a sound server");
        let Some(Outcome::Connected(connected)) = step.outcome else { panic!("{server}: {:?}", step.outcome) };
        assert_eq!((connected.framing, connected.size), (granted, 1 << 30), "{server}");
        assert_eq!(connected.context.is_some(), granted.has_chunks(), "{server}");
    }
}
