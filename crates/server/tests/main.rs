//! A server in the test's own process and small clients: one program, because each costs a link.

mod access;
#[path = "support/authority.rs"]
mod authority;
#[path = "support/fake.rs"]
mod fake;
mod goal;
mod half_open;
mod handshakes;
mod isolation;
mod neighbour;
mod overlap;
mod pause;
mod placement;
mod promise;
mod remote;
mod review;
mod robustness;
mod serving;
mod support;
mod tls;
