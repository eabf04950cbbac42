//! Runs the fuzz target on stable Rust, with the stored corpus and with mutations of it.

#[path = "../../../fuzz/smoke.rs"]
mod smoke;

use evenkeel_web::fuzz;
use smoke::smoke;

#[test]
fn api() {
    smoke("api", 2_000, fuzz::api);
}
