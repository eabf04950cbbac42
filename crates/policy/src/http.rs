//! HTTP beyond this machine: whether it is encrypted, and who may read.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the status page, metrics and API are served at `status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    /// Where it is HTTPS, with the certificate of `[server.tls]`, if there is one.
    pub tls: Where,
    /// Whether HTTPS needs a client certificate of the authorities in `server.tls.clients`, if there are any.
    pub certificates: Asked,
}

/// At which addresses HTTP is encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Where {
    /// At those that other machines reach.
    #[default]
    Remote,
    /// At all.
    Always,
    /// At none, which is meant: nobody is warned.
    No,
}

impl Where {
    /// Whether HTTP is encrypted at an address of this machine alone, or else at any other.
    pub const fn applies(self, loopback: bool) -> bool {
        match self {
            Self::Remote => !loopback,
            Self::Always => true,
            Self::No => false,
        }
    }
}

/// Whether clients have to show a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Asked {
    /// They do.
    #[default]
    Required,
    /// They need not; a bad one is refused nevertheless.
    Optional,
}
