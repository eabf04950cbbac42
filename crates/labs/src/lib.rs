//! Tests of Evenkeel with real kernels, clusters and clients (labs), and comparisons with other servers.
//!
//! The binary `xtask` runs everything; it also runs inside the virtual machines. A lab uses `base`, `machine` and
//! `check`; `lab` and `guest` know all labs.

pub mod base;
mod browser;
mod caches;
mod ceph;
mod check;
pub mod compare;
mod durability;
pub mod guest;
mod initiators;
mod iscsi;
mod isolation;
pub mod lab;
mod local;
mod machine;
mod nbd_client;
mod package;
mod rbd;
mod replay;
mod slots;
pub mod soak;
mod suites;
mod sync_failure;
mod systemd;
mod totals;
