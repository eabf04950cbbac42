//! `evenkeel names`: the names of a running server's objects, for the completions of shells.

use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use evenkeel_policy::is_pool_name;
use serde_json::Value;

use super::{Connect, ask};
use crate::output;

/// Longest time for each part of the answer: a user waits for it at a prompt.
const PATIENCE: Duration = Duration::from_secs(2);

/// Arguments of `names`.
#[derive(Args)]
pub(crate) struct Names {
    /// The kind of object
    #[arg(value_parser = PossibleValuesParser::new(["pools", "tenants", "volumes"]))]
    kind: String,

    #[command(flatten)]
    connect: Connect,
}

/// Prints the names of a kind of object, one a line.
///
/// # Errors
/// When no server answers.
pub(crate) fn names(args: &Names) -> anyhow::Result<()> {
    output::print(&lines(&ask::in_force(&args.connect, PATIENCE)?[args.kind.as_str()]))
}

/// The names of a table, one a line. Shells carry out what is in a list of completions, such as `$(...)`, and the socket of a
/// strange folder may be of another user: a name that no object can have is left out.
fn lines(table: &Value) -> String {
    let names = table.as_object().into_iter().flatten().map(|(name, _)| name);
    names.filter(|name| is_pool_name(name)).map(|name| format!("{name}\n")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_name_is_a_line() {
        assert_eq!(lines(&json!({ "backup": {}, "db-1": { "weight": 2 } })), "backup\ndb-1\n");
        assert_eq!(lines(&Value::Null), "");
        assert_eq!(lines(&json!({ "$(reboot)": {}, "`id`": {}, "a b": {}, "a\nb": {}, "iqn.a:b": {} })), "iqn.a:b\n");
    }
}
