//! Bodies of the fuzz targets: the same code runs under a fuzzer and, on stable Rust, in the tests.
//!
//! Each body takes arbitrary bytes and panics if a property does not hold.

use std::net::{Ipv4Addr, SocketAddr};

use crate::Config;
use crate::check::check;
use crate::cluster::Record;
use crate::http::Http;

/// Reads the bytes as a configuration of the server. Every problem must have a message. A configuration without problems must be
/// valid, and must be unchanged after it was written as JSON, as commands and the API do, and read again.
pub fn config(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    match check(text, "fuzz").into_result() {
        Ok(report) => {
            let config = report.config;
            assert!(config.validate("fuzz").is_ok(), "valid as a text, and not as a value");
            let json = serde_json::to_string(&config).expect("a value that was read can be written");
            let again: Config = serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error} in {json}"));
            assert_eq!(again, config, "JSON makes something else of it");
        }
        Err(errors) => assert!(!errors.to_string().is_empty(), "refused without a word"),
    }
}

/// Reads the bytes as a record of another host: an accepted record must be accepted again after it was written.
pub fn record(data: &[u8]) {
    let Ok(record) = Record::parse(data) else { return };
    let Ok(text) = record.text() else { return };
    let again = Record::parse(text.as_bytes()).unwrap_or_else(|why| panic!("{why}: {text}"));
    assert_eq!(again.text().ok(), Some(text), "rounded twice");
}

/// Reads the bytes as a `Host` header. At a loopback address a header that names such an address must be accepted, one with
/// another address refused; elsewhere a header with any address must be accepted.
pub fn host(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    let http = Http::default();
    let passes = http.admits(text, true);
    assert!(!passes || http.admits(text, false), "{text:?} passes at loopback alone");
    if let Ok(address) = text.parse::<SocketAddr>() {
        assert_eq!((passes, http.admits(text, false)), (address.ip().is_loopback(), true), "{text:?}");
    }
    if let Ok(address) = text.parse::<Ipv4Addr>() {
        assert_eq!(passes, address.is_loopback(), "{text:?}");
    }
    let names_it = |name: &str| text.to_ascii_lowercase().contains(name);
    assert!(!passes || ["localhost", "127.", "::", "0:"].into_iter().any(names_it), "{text:?} passes");
}
