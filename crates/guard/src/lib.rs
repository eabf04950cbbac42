//! The agent `guard`: keeps latency targets and throughput guarantees on a host's existing storage, by throttles of the
//! kernel and of Ceph.
//!
//! ```text
//!  /proc, /sys, configfs ──▶ sensor ──▶ control (decides) ──▶ actuator ──▶ tc, BPF
//!          └───────────────▶ discovery: client ↔ target ↔ volume ↔ device ↔ pool
//! ```
//!
//! Reading files is kept apart from parsing their content: parsers are pure, and the root of every path is a parameter, so
//! that tests can run the whole agent over captured copies of these trees.
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

pub mod actuator;
pub mod admin_socket;
#[cfg(test)]
mod apart;
mod aside;
mod bpf;
pub mod config;
pub mod discovery;
pub mod error;
#[cfg(test)]
mod fake_osd;
#[cfg(test)]
#[path = "../../evenkeel/tests/serve/folder.rs"]
mod folder;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod host;
pub mod journal;
pub mod loops;
pub mod points;
pub mod preflight;
pub mod sensor;
pub mod sentinel;

pub use config::Config;
pub use error::{Error, Fault};
pub use points::Agent;
