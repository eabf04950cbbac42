//! Names as on the command line.

/// A value as on the command line.
pub fn spelled(value: &impl clap::ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}
