//! The common base of all labs: child processes, temporary folders, servers, an NBD client, packages.

pub mod build;
pub(crate) mod client;
pub mod packages;
pub mod process;
pub(crate) mod random;
pub mod record;
pub mod scratch;
pub(crate) mod servers;
pub mod spelled;
pub mod tally;
pub(crate) mod tutorial;
