//! Partial TOML tables: a key that is not written takes its value from a base table, such as a preset.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use toml::Table;
use toml::de::Error;

/// Applies `read` to the table `base` in which the keys of `written` replace those of `base`, which holds every known key.
///
/// # Errors
/// A message that names the key of `written` at fault: an unknown key, or one whose value `read` rejects.
pub fn read<T>(base: &Table, written: Table, read: impl Fn(Table) -> Result<T, Error>) -> Result<T, String> {
    if let Some(key) = written.keys().find(|&key| !base.contains_key(key)) {
        let known: Vec<&str> = base.keys().map(String::as_str).collect();
        return Err(format!("unknown field `{key}`, expected one of `{}`", known.join("`, `")));
    }
    let over = |written: Table| {
        let mut table = base.clone();
        table.extend(written);
        read(table)
    };
    over(written.clone()).map_err(|error| {
        // The error does not say which key it is about: it is the one without which there is no such error.
        let mut alone = written.into_iter().map(|(key, value)| (key.clone(), Table::from_iter([(key, value)])));
        let at_fault = alone.find_map(|(key, table)| Some(format!("{key}: {}", over(table).err()?.message())));
        at_fault.unwrap_or_else(|| error.message().to_owned())
    })
}
