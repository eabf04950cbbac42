//! A configuration as it was written: a file of this host, and the policy that it shares with others.

use std::io;
use std::path::Path;

use crate::check::{Errors, Problem};
use crate::document::Document;

/// The tables of a policy: all else belongs to a host.
pub(crate) const POLICY: [&str; 2] = ["tenants", "pools"];

/// A text, and what to call it in errors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text {
    /// The text, in TOML.
    pub text: String,
    /// Its file, or what else it came from.
    pub origin: String,
}

/// The texts of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// That of this host; it may be all there is.
    pub host: Text,
    /// The file that `policy` names there.
    pub policy: Option<Text>,
}

impl Source {
    /// A text that names no other file.
    pub fn of(text: impl Into<String>, origin: impl Into<String>) -> Self {
        Self { host: Text { text: text.into(), origin: origin.into() }, policy: None }
    }

    /// Reads a file ("-" is standard input), and the policy that it names, relative to its folder.
    ///
    /// # Errors
    /// That one of them cannot be read. Their contents are not judged.
    pub fn read(path: &Path) -> Result<Self, Errors> {
        let stdin = path.as_os_str() == "-";
        let origin = if stdin { "<stdin>".to_owned() } else { path.display().to_string() };
        let text = if stdin { io::read_to_string(io::stdin()) } else { std::fs::read_to_string(path) };
        let text = text.map_err(|error| Errors(vec![Problem::unreadable(&origin, &error)]))?;
        let (document, _) = Document::parse(&text, &origin);
        let policy = document.text_of("policy").map(|named| {
            let named = path.parent().unwrap_or(Path::new("")).join(named);
            match std::fs::read_to_string(&named) {
                Ok(text) => Ok(Text { text, origin: named.display().to_string() }),
                Err(error) => {
                    let message =
                        format!("cannot read {}: {error}; name the file of [tenants] and [pools]", named.display());
                    Err(Errors(vec![document.complain(&["policy"], message)]))
                }
            }
        });
        let policy = policy.transpose()?;
        Ok(Self { host: Text { text, origin }, policy })
    }
}
