//! The spelling of enum values on the command line.

/// The name of an enum value as it is written on the command line.
pub fn spelled(value: &impl clap::ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}
