//! Problems of a configuration, with their places in the text.

use std::fmt;
use std::io;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Something wrong or doubtful in a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// The file, or what else the text came from.
    pub origin: String,
    /// Line and column, both from 1; `None` if the text does not mention what is wrong.
    pub position: Option<(usize, usize)>,
    /// The key at fault, dotted from the outermost table inward; empty if there is none.
    pub key: String,
    /// The fault, and what would be right.
    pub message: String,
}

impl Problem {
    /// The problem that a file cannot be read.
    pub fn unreadable(origin: &str, error: &io::Error) -> Self {
        let message = match error.kind() {
            io::ErrorKind::InvalidData => "is not text in UTF-8; is this the right file?".to_owned(),
            _ => format!("cannot read the configuration: {error}"),
        };
        Self { origin: origin.into(), position: None, key: String::new(), message }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.origin)?;
        if let Some((line, column)) = self.position {
            write!(f, ":{line}:{column}")?;
        }
        if !self.key.is_empty() {
            write!(f, ": {}", self.key)?;
        }
        write!(f, ": {}", self.message)
    }
}

/// The error that a configuration cannot be used: at least one problem, in the order of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errors(pub Vec<Problem>);

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().enumerate() {
            write!(f, "{}{problem}", if i == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for Errors {}
