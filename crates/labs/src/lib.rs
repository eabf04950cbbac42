//! Evenkeel and others in the real world: labs with kernels, clusters and clients, and comparisons with other servers.
//!
//! Everything is driven from outside, by the binary `xtask`, which also runs inside the virtual machines.

pub mod build;
mod client;
pub mod compare;
pub mod lab;
pub mod packages;
pub mod process;
pub mod scratch;
mod servers;
pub mod tally;
mod tutorial;
