//! Tests of access lists: their spelling, their mistakes, and their decisions.

use std::net::IpAddr;

use evenkeel_policy::Config;
use evenkeel_policy::access::{Barred, Caller, Who};
use evenkeel_policy::change::{Change, plan};
use evenkeel_policy::check::check;

use super::reload::config;

const TLS: &str = "[server.tls]\ncertificate = \"c\"\nkey = \"k\"\nclients = \"a\"\n";

/// A configuration with the access lists `server` of the server and `volume` of a volume.
fn lists(server: &str, volume: &str) -> Config {
    config(&format!("[server]\n{server}\n{TLS}[volumes.v]\nsize = \"1MiB\"\n{volume}\n"))
}

fn at(address: &str) -> Caller<'static> {
    Caller { address: Some(address.parse::<IpAddr>().unwrap()), ..Caller::default() }
}

fn user(uid: u32) -> Caller<'static> {
    Caller { uid: Some(uid), ..Caller::default() }
}

fn verdict(config: &Config, caller: &Caller<'_>) -> Result<(), Barred> {
    config.admits_to(&config.volumes["v"], caller)
}

#[test]
fn without_lists_every_client_may() {
    let config = lists("", "");
    for caller in [at("203.0.113.9"), user(0), Caller::default()] {
        assert_eq!(verdict(&config, &caller), Ok(()));
    }
}

#[test]
fn an_allow_list_keeps_out_whom_it_does_not_name() {
    let config = lists("allow = [\"10.0.0.0/8\", \"fd00::/8\", \"uid:1000\"]", "");
    for caller in [at("10.1.2.3"), at("::ffff:10.1.2.3"), at("fd00::1"), user(1000)] {
        assert_eq!(verdict(&config, &caller), Ok(()), "{caller:?}");
    }
    for caller in [at("11.0.0.1"), at("fe80::1"), user(0), Caller::default()] {
        assert_eq!(verdict(&config, &caller), Err(Barred::ServerAllow), "{caller:?}");
    }
    assert_eq!(verdict(&lists("allow = [\"unix\"]", ""), &user(7)), Ok(()));
    assert_eq!(verdict(&lists("allow = [\"unix\"]", ""), &at("127.0.0.1")), Err(Barred::ServerAllow));
}

#[test]
fn deny_wins_wherever_it_stands_and_both_owners_have_a_say() {
    let server = "allow = [\"10.0.0.0/8\"]\ndeny = [\"10.9.0.0/16\"]";
    let config = lists(server, "allow = [\"10.1.0.0/16\", \"10.9.0.1\", \"192.0.2.1\"]\ndeny = [\"10.1.1.1\"]");
    for (address, wanted) in [
        ("10.1.0.1", Ok(())),
        ("10.1.1.1", Err(Barred::VolumeDeny)),
        ("10.2.0.1", Err(Barred::VolumeAllow)),
        ("10.9.0.1", Err(Barred::ServerDeny)),
        ("192.0.2.1", Err(Barred::ServerAllow)),
    ] {
        assert_eq!(verdict(&config, &at(address)), wanted, "{address}");
    }
}

#[test]
fn who_could_be_allowed_by_a_certificate_is_asked_for_it() {
    let (names, old, none) = (["db.example.org".to_owned()], ["old.example.org".to_owned()], []);
    let config = lists("deny = [\"certificate:OLD.example.org\"]", "allow = [\"certificate:db.example.org\"]");
    fn shown(names: &[String]) -> Caller<'_> {
        Caller { certificate: Some((names, &[1; 32])), ..at("192.0.2.1") }
    }
    assert_eq!(verdict(&config, &at("192.0.2.1")), Err(Barred::NoCertificate));
    assert_eq!(verdict(&config, &shown(&names)), Ok(()));
    assert_eq!(verdict(&config, &shown(&old)), Err(Barred::ServerDeny));
    assert_eq!(verdict(&config, &shown(&none)), Err(Barred::VolumeAllow));
    let fingerprint = lists("", &format!("allow = [\"certificate:sha256:{}\", \"10.0.0.1\"]", "01".repeat(32)));
    assert_eq!(verdict(&fingerprint, &shown(&none)), Ok(()));
    assert_eq!(verdict(&fingerprint, &at("10.0.0.1")), Ok(()), "the address is enough");
}

#[test]
fn entries_are_written_as_they_are_read() {
    let hex = "ab".repeat(32);
    for text in ["10.0.0.0/8", "uid:1000", "unix", "certificate:db.example.org", &format!("certificate:sha256:{hex}")] {
        assert_eq!(text.parse::<Who>().unwrap().to_string(), text);
    }
    for (text, cure) in [
        ("10.0.0.1/8", "10.0.0.0/8"),
        ("10.0.0.0/33", "10.1.0.0/16"),
        ("uid:root", "id -u"),
        ("db.example.org", "certificate:"),
        ("certificate:sha256:1", "openssl x509"),
        ("certificate:", "client.example.org"),
    ] {
        let error = text.parse::<Who>().expect_err(cure).to_string();
        assert!(error.contains(cure), "{error}");
    }
}

#[test]
fn mistakes_are_named_with_their_line_and_their_cure() {
    let volume = "[volumes.v]\nsize = \"1MiB\"\n";
    for (text, key, cure) in [
        ("[server]\nallow = []\n".to_owned(), "test:2:1: server.allow: ", "remove this key"),
        (format!("{volume}allow = []\n"), "test:3:1: volumes.v.allow: ", "remove this key"),
        (format!("{volume}deny = [\"certificate:x\"]\n"), "test:3:1: volumes.v.deny: ", "set clients in [server.tls]"),
        (format!("{volume}allow = [\"nobody\"]\n"), "test:3:", "names no client"),
        (
            format!("{TLS}{volume}tls = \"no\"\ndeny = [\"certificate:x\"]\n"),
            "volumes.v.deny: ",
            "require TLS for this volume",
        ),
        (
            format!("[server]\ndeny = [\"certificate:x\"]\n{TLS}{volume}tls = \"no\"\n"),
            "test:2:1: server.deny: ",
            "require TLS for every volume",
        ),
    ] {
        let errors = Config::parse(&text, "test").expect_err(cure).to_string();
        assert!(errors.contains(key) && errors.contains(cure), "{errors}");
    }
    let doubtful = check(&format!("{volume}allow = [\"unix\"]\ndeny = [\"unix\"]\n"), "test");
    assert!(doubtful.errors.is_empty(), "{:?}", doubtful.errors);
    assert!(doubtful.warnings.iter().any(|warning| warning.key == "volumes.v.allow"), "{:?}", doubtful.warnings);
}

#[test]
fn lists_can_change_while_the_server_runs() {
    let (before, after) = (lists("", ""), lists("allow = [\"unix\"]\ndeny = [\"uid:0\"]", "deny = [\"uid:1\"]"));
    let expected = [Change::Server { key: "allow" }, Change::Server { key: "deny" }, Change::VolumeChanged("v".into())];
    assert_eq!(plan(&before, &after).expect("nothing needs a restart"), expected);
}
