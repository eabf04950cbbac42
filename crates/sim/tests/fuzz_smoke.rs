//! Runs the fuzz targets on stable Rust, with the stored corpus and with mutations of it.

#[allow(clippy::disallowed_methods, reason = "the corpus is files")]
#[path = "../../../fuzz/smoke.rs"]
mod smoke;

use evenkeel_sim::fuzz;
use smoke::smoke;

#[test]
fn trace() {
    smoke("trace", 50_000, fuzz::trace);
}
