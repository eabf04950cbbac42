//! Runs the fuzz targets with the stable compiler, on the kept corpus and on mutations of it.

#[path = "../../../fuzz/smoke.rs"]
mod smoke;

use evenkeel_guard::fuzz;
use smoke::smoke;

#[test]
fn guard_config() {
    smoke("guard_config", 2_000, fuzz::config);
}

#[test]
fn admin_socket() {
    smoke("admin_socket", 50_000, fuzz::admin_socket);
}

#[test]
fn kernel_text() {
    smoke("kernel_text", 100_000, fuzz::kernel_text);
}

#[test]
fn netlink() {
    smoke("netlink", 100_000, fuzz::netlink);
}

#[test]
fn ring() {
    smoke("ring", 100_000, fuzz::ring);
}
