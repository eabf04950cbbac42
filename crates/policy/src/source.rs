//! A configuration as it was written: a file of this host, and the policy that it shares with others.

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
}
