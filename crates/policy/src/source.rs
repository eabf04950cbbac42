//! A configuration as it was written: a file of this host, and the policy that it shares with others.

/// Names of the tables of a policy: all others belong to a host.
pub(crate) const POLICY: [&str; 2] = ["tenants", "pools"];

/// A text, and what to call it in errors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text {
    /// The text, in TOML.
    pub text: String,
    /// The file that it came from, or another origin.
    pub origin: String,
}

/// The texts of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// The text of this host; it may be all there is.
    pub host: Text,
    /// The policy: the file that the key `policy` of `host` names.
    pub policy: Option<Text>,
}

impl Source {
    /// The source for a text that names no policy file.
    pub fn of(text: impl Into<String>, origin: impl Into<String>) -> Self {
        Self { host: Text { text: text.into(), origin: origin.into() }, policy: None }
    }
}
