//! Runs the fuzz targets on stable Rust, with the stored corpus and with mutations of it.

#[path = "../../../fuzz/smoke.rs"]
mod smoke;

use evenkeel_policy::fuzz;
use smoke::smoke;

#[test]
fn config() {
    smoke("config", 10_000, fuzz::config);
}

#[test]
fn record() {
    smoke("record", 20_000, fuzz::record);
}

#[test]
fn host() {
    smoke("host", 100_000, fuzz::host);
}
