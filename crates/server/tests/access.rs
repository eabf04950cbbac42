//! Tests of access lists with real sockets: by address, user and certificate, and the effect of a reload on open connections.

use crate::authority;
use crate::support;

use std::io::{Read, Write};
use std::sync::Arc;

use authority::{Authority, secure};
use evenkeel_nbd::client::{Handshake, Outcome, Purpose, Wanted};
use evenkeel_nbd::wire::{Framing, reply};
use evenkeel_policy::Config;
use evenkeel_policy::config::Engine;
use rustls::ClientConfig;
use support::{Client, PATIENCE, Scratch, Stream, TestServer, config};

/// Configuration of the volumes `a` and `b` in memory; `keys` are added to `b`.
fn volumes(keys: &str) -> String {
    format!(
        "[volumes.a]\nbackend = \"memory\"\nsize = \"1MiB\"\n[volumes.b]\nbackend = \"memory\"\nsize = \"1MiB\"\n{keys}\n"
    )
}

fn start(name: &str, server: &str, of_b: &str) -> TestServer {
    TestServer::start(name, Engine::Auto, &format!("[server]\n{server}\n{}", volumes(of_b)))
}

/// Negotiates for `export`, and returns the outcome. `greeting`: bytes of the server's greeting that were read already; the
/// answer to them was sent.
fn outcome(mut stream: impl Read + Write, purpose: Purpose, export: &str, greeting: &[u8]) -> Outcome {
    let (export, framing) = (export.into(), Framing::Structured);
    let wanted = Wanted { export, purpose, framing, base_allocation: true, tls: false };
    let (mut handshake, mut input, mut out) = (Handshake::new(wanted), greeting.to_vec(), Vec::new());
    let mut said_already = if greeting.is_empty() { 0 } else { 4 };
    loop {
        let step = handshake.advance(&input, &mut out).unwrap();
        input.drain(..step.consumed);
        let skip = out.len().min(said_already);
        said_already -= skip;
        stream.write_all(&out[skip..]).unwrap();
        out.clear();
        if let Some(outcome) = step.outcome {
            return outcome;
        }
        let mut more = [0; 4096];
        let n = match stream.read(&mut more) {
            // As in `support::Stream`.
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            read => read.unwrap(),
        };
        assert!(n > 0, "closed during the handshake");
        input.extend_from_slice(&more[..n]);
    }
}

/// The error code with which the server refuses `export`; `None` if it does not refuse.
fn refusal(stream: impl Read + Write, export: &str) -> Option<u32> {
    match outcome(stream, Purpose::Go, export, b"") {
        Outcome::Refused(refusal) => Some(refusal.code),
        _ => None,
    }
}

fn listed(stream: impl Read + Write) -> Vec<String> {
    match outcome(stream, Purpose::List, "", b"") {
        Outcome::Listed(exports) => exports.into_iter().map(|export| export.name).collect(),
        other => panic!("{other:?}"),
    }
}

fn refused(test: &TestServer, reason: &str) -> u64 {
    test.server.state().refused_clients_total[reason]
}

fn my_uid() -> u32 {
    rustix::process::getuid().as_raw()
}

#[test]
fn a_volume_is_had_by_those_whom_its_list_names() {
    let test = start("access-volume", "", &format!("allow = [\"uid:{}\"]", my_uid()));
    assert_eq!(refusal(test.raw_unix(), "b"), None);
    assert_eq!(refusal(test.raw_tcp(), "b"), Some(reply::ERR_POLICY));
    assert_eq!(refusal(test.raw_tcp(), "a"), None);
    assert_eq!((listed(test.raw_tcp()), listed(test.raw_unix())), (vec!["a".into()], vec!["a".into(), "b".into()]));
    assert_eq!(refused(&test, "volume_allow"), 1);
}

#[test]
fn users_and_addresses_are_denied() {
    let deny = format!("deny = [\"uid:{}\", \"127.0.0.0/8\"]", my_uid());
    let test = start("access-deny", "", &deny);
    assert_eq!(refusal(test.raw_unix(), "b"), Some(reply::ERR_POLICY));
    assert_eq!(refusal(test.raw_tcp(), "b"), Some(reply::ERR_POLICY));
    assert_eq!((refused(&test, "volume_deny"), refused(&test, "server_deny")), (2, 0));
}

#[test]
fn whom_the_server_refuses_learns_nothing_of_its_volumes() {
    let test = start("access-server", "allow = [\"unix\"]", "");
    for export in ["", "a", "b", "none"] {
        assert_eq!(refusal(test.raw_tcp(), export), Some(reply::ERR_POLICY), "{export:?}");
    }
    assert_eq!(listed(test.raw_tcp()), Vec::<String>::new());
    assert_eq!(refusal(test.raw_unix(), "a"), None);
    assert_eq!(refusal(test.raw_unix(), "none"), Some(reply::ERR_UNKNOWN));
    assert_eq!(refused(&test, "server_allow"), 4);
    // EXPORT_NAME cannot be answered, only closed.
    let mut stream = test.raw_tcp();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"\0\0\0\x01IHAVEOPT\0\0\0\x01\0\0\0\x01a").unwrap();
    let mut said = Vec::new();
    let _ = stream.read_to_end(&mut said);
    assert_eq!(said.len(), 18, "the greeting and no more");
    assert_eq!(refused(&test, "server_allow"), 5);
}

#[test]
fn a_client_that_asks_again_and_again_counts_once() {
    let test = start("access-once", "deny = [\"127.0.0.1\"]", "");
    let mut stream = test.raw_tcp();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let info = b"IHAVEOPT\0\0\0\x06\0\0\0\x07\0\0\0\x01a\0\0";
    stream.write_all(&[&b"\0\0\0\x01"[..], info, info, info].concat()).unwrap();
    let mut said = [0; 18 + 3 * 20];
    stream.read_exact(&mut said).unwrap();
    assert_eq!(refused(&test, "server_deny"), 1);
}

/// Reloads the configuration with other access lists: `server` in its section `[server]`, `of_b` in the volume `b`.
fn reload(test: &TestServer, server: &str, of_b: &str) {
    let mut config: Config = test.config.clone();
    let new = Config::parse(&format!("[server]\n{server}\n{}", volumes(of_b)), "new").unwrap();
    (config.server.allow, config.server.deny) = (new.server.allow, new.server.deny);
    config.volumes = new.volumes;
    test.server.reload(config).unwrap();
}

#[test]
fn a_reload_closes_excluded_clients_alone() {
    let test = start("access-reload", "", "");
    let (mut local, mut remote) = (test.connect("b"), test.connect_tcp("b"));
    let mut elsewhere = test.connect_tcp("a");
    reload(&test, "", "allow = [\"unix\"]");
    remote.wait_for_close();
    local.read(0, 4096).unwrap();
    elsewhere.read(0, 4096).unwrap();
    assert_eq!(refusal(test.raw_tcp(), "b"), Some(reply::ERR_POLICY));
    reload(&test, "deny = [\"127.0.0.1\"]", "");
    elsewhere.wait_for_close();
    local.read(0, 4096).unwrap();
    reload(&test, "", "");
    test.connect_tcp("b").read(0, 4096).unwrap();
}

/// A new connection with a completed TLS handshake, on which the client may negotiate further.
fn session(test: &TestServer, config: &Arc<ClientConfig>) -> Stream {
    let mut stream = secure(test.raw_tcp(), config);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock).unwrap();
    }
    Stream::Tls(Box::new(stream))
}

#[test]
fn certificates_are_allowed_and_denied() {
    let (scratch, authority) = (Scratch::new("access-tls"), Authority::new());
    let [alice, bob, eve] = ["alice", "bob", "eve"].map(|name| authority.client(&authority.issue(name)));
    let text = format!(
        "[server]\ndeny = [\"certificate:eve\"]\n{}{}",
        authority.serve(scratch.path(), ""),
        volumes("allow = [\"certificate:Alice\"]")
    );
    let config = config(&scratch, Engine::Auto, &text);
    let test = TestServer::with_config(scratch, config);
    let greeting = b"NBDMAGICIHAVEOPT\0\x03";
    let go = |who, export: &str| match outcome(session(&test, who), Purpose::Go, export, greeting) {
        Outcome::Refused(refusal) => Some(refusal.code),
        _ => None,
    };
    assert_eq!((go(&alice, "b"), go(&alice, "a")), (None, None));
    assert_eq!((go(&bob, "b"), go(&bob, "a")), (Some(reply::ERR_POLICY), None));
    assert_eq!((go(&eve, "a"), go(&eve, "none")), (Some(reply::ERR_POLICY), Some(reply::ERR_POLICY)));
    Client::greeted(session(&test, &alice), "b", Framing::Structured).read(0, 512).unwrap();
    // Over the Unix socket TLS is not required, but this volume cannot be had without a certificate.
    assert_eq!(refusal(test.raw_unix(), "b"), Some(reply::ERR_TLS_REQD));
    assert_eq!(listed(test.raw_unix()), ["a"]);
    assert_eq!((refused(&test, "volume_allow"), refused(&test, "server_deny")), (1, 2));
    assert_eq!(refused(&test, "no_certificate"), 1);
}
