//! The texts of a configuration: a file of this host, and the policy file that it may share with other hosts.

/// Names of the tables of a policy; all other tables belong to a host.
pub(crate) const POLICY: [&str; 2] = ["tenants", "pools"];

/// A text, with the name by which errors refer to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text {
    /// The text, in TOML.
    pub text: String,
    /// Path of the text's file, or another origin.
    pub origin: String,
}

/// The texts of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// The text of this host's file, which may contain the policy as well.
    pub host: Text,
    /// The policy file that the key `policy` of `host` names; `None` without this key.
    pub policy: Option<Text>,
}

impl Source {
    /// The source for a text that names no policy file.
    pub fn of(text: impl Into<String>, origin: impl Into<String>) -> Self {
        Self { host: Text { text: text.into(), origin: origin.into() }, policy: None }
    }
}
