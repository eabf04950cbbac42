//! Runs the fuzz targets with stable Rust on the corpus in the repository and on mutations of it.

#[path = "../../../fuzz/smoke.rs"]
mod smoke;

use evenkeel_nbd::fuzz;
use smoke::smoke;

#[test]
fn handshake() {
    smoke("handshake", 100_000, fuzz::handshake);
}

#[test]
fn transmission() {
    smoke("transmission", 100_000, fuzz::transmission);
}

#[test]
fn client_handshake() {
    smoke("client_handshake", 100_000, fuzz::client_handshake);
}

#[test]
fn client_replies() {
    smoke("client_replies", 100_000, fuzz::client_replies);
}
