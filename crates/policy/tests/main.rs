//! All integration tests of the policy crate, in one program, because each test program must be linked.

mod access;
mod beside;
mod cluster;
mod cluster_bytes;
mod config;
mod device;
mod doubts;
mod explain;
#[path = "../../evenkeel/tests/serve/folder.rs"]
mod folder;
mod fuzz_smoke;
mod http;
mod mistakes;
mod reload;
mod schema;
mod tls;
mod units;
mod verdict;
