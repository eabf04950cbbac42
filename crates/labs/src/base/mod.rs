//! The common base of labs: programs, folders, servers, a client, packages.

pub mod build;
pub(crate) mod client;
pub mod packages;
pub mod process;
pub mod scratch;
pub(crate) mod servers;
pub mod tally;
pub(crate) mod tutorial;

/// A value as on the command line.
pub fn spelled(value: &impl clap::ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}
