//! The common base of all labs: child processes, temporary folders, servers, an NBD client, packages, network namespaces.

pub mod build;
pub(crate) mod client;
pub(crate) mod etcd;
pub mod packages;
pub mod process;
pub(crate) mod random;
pub mod record;
pub mod scratch;
pub(crate) mod servers;
pub(crate) mod space;
pub mod spelled;
pub mod tally;
pub(crate) mod tutorial;
