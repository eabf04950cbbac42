//! The policy file and what is said of it: one program, because each costs a link.

mod access;
mod cluster;
mod cluster_bytes;
mod config;
mod device;
mod device_disk;
mod doubts;
mod explain;
mod fuzz_smoke;
mod http;
mod mistakes;
mod reload;
mod schema;
mod tls;
mod units;
mod verdict;
