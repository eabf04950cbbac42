//! Tests of a server in the test's own process with small clients. All are one program, because each program must be linked.

mod access;
#[path = "../../net/src/tls/authority.rs"]
mod authority;
mod differential;
mod divided;
#[path = "support/fake.rs"]
mod fake;
mod faults;
mod foreign;
mod guarantee;
mod half_open;
mod handshakes;
mod isolation;
mod latency_target;
mod neighbour;
mod overlap;
mod pause;
mod placement;
mod recording;
mod remote;
mod remote_tls;
mod review;
mod robustness;
mod serving;
mod support;
#[path = "../../xtask/src/test/tables.rs"]
mod tables;
mod tls;
