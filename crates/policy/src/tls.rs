//! Settings of TLS: the files of certificates, the NBD clients that must use TLS, and the naming of client certificates.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::{UnitError, as_text};

/// TLS on NBD connections. Clients ask for it by STARTTLS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// PEM: the server's certificate, then the chain.
    pub certificate: PathBuf,
    /// PEM: its private key, not encrypted.
    pub key: PathBuf,
    /// PEM: authorities of client certificates; with it, TLS needs a client certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clients: Option<PathBuf>,
    /// PEM: revocation lists (CRL), one of each authority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<PathBuf>,
    /// Clients that must use TLS.
    #[serde(default)]
    pub required: Need,
    /// Refuse clients whose certificate no tenant names.
    #[serde(default)]
    pub named_only: bool,
}

/// Files with certificates, where there is nothing else to say about TLS: of an agent, for HTTPS. [`Tls`] has the same keys again,
/// because serde cannot find unknown keys beside flattened ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Files {
    /// PEM: the certificate, then the chain.
    pub certificate: PathBuf,
    /// PEM: its private key, not encrypted.
    pub key: PathBuf,
    /// PEM: authorities of client certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clients: Option<PathBuf>,
    /// PEM: revocation lists (CRL), one of each authority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<PathBuf>,
}

impl Tls {
    /// The paths of the certificate files, without the other settings.
    pub fn files(&self) -> Files {
        let Self { certificate, key, clients, revoked, .. } = self.clone();
        Files { certificate, key, clients, revoked }
    }
}

/// The clients that must use TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Need {
    /// None.
    No,
    /// Clients over TCP.
    #[default]
    Tcp,
    /// All clients: over TCP and over Unix sockets.
    Always,
}

impl Need {
    /// True if a client must use TLS. `tcp`: the question is about a client over TCP, otherwise about one over a Unix socket.
    pub const fn applies(self, tcp: bool) -> bool {
        match self {
            Self::No => false,
            Self::Tcp => tcp,
            Self::Always => true,
        }
    }
}

/// The certificates that an entry names: all with a certain name in them, or a single one by its fingerprint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Certificate {
    /// Certificates whose subject has this common name, or that have this DNS name; the comparison ignores case.
    Name(String),
    /// The certificate with this SHA-256 fingerprint.
    Fingerprint([u8; 32]),
}

const FINGERPRINT: &str = "sha256:";

impl Certificate {
    /// True if the entry names a certificate with these names and this fingerprint.
    pub fn means(&self, names: &[String], fingerprint: &[u8; 32]) -> bool {
        match self {
            Self::Name(name) => names.iter().any(|other| name.eq_ignore_ascii_case(other)),
            Self::Fingerprint(wanted) => wanted == fingerprint,
        }
    }
}

impl FromStr for Certificate {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let Some(digits) = text.strip_prefix(FINGERPRINT) else {
            if text.is_empty() || text.chars().any(char::is_control) {
                let why = format!("{text:?} is not a name in a certificate; write for example \"client.example.org\"");
                return Err(UnitError::new(why));
            }
            return Ok(Self::Name(text.to_owned()));
        };
        let digits: Vec<u8> = digits.bytes().filter(|byte| *byte != b':').collect();
        let value = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
        let bytes = digits.chunks(2).map(|pair| match pair {
            [high, low] => Some(value(*high)? << 4 | value(*low)?),
            _ => None,
        });
        let bytes: Option<Vec<u8>> = bytes.collect();
        let bytes: Option<[u8; 32]> = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self::Fingerprint).ok_or_else(|| {
            UnitError::new(format!(
                "{text:?} is not a fingerprint; write \"sha256:\" and the 64 digits that `openssl x509 -noout -fingerprint -sha256 -in FILE` shows"
            ))
        })
    }
}

impl fmt::Display for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Fingerprint(bytes) => {
                f.write_str(FINGERPRINT)?;
                bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

as_text!(Certificate, "a name in a certificate, or \"sha256:\" and its fingerprint", None, { "type": "string" });

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_are_read_as_openssl_writes_them() {
        let hex: Vec<String> = (0..32).map(|n| format!("{:02X}", n * 7)).collect();
        let wanted: [u8; 32] = std::array::from_fn(|n| n as u8 * 7);
        for text in [format!("sha256:{}", hex.join(":")), format!("sha256:{}", hex.concat())] {
            let read: Certificate = text.parse().unwrap();
            assert_eq!(read, Certificate::Fingerprint(wanted));
            assert_eq!(read.to_string(), format!("sha256:{}", hex.concat().to_lowercase()));
        }
        for text in ["sha256:", "sha256:00", "sha256:zz", &format!("sha256:{}0", hex.concat())] {
            let error = text.parse::<Certificate>().unwrap_err().to_string();
            assert!(error.contains("openssl"), "{error}");
        }
        assert!("".parse::<Certificate>().is_err() && "a\nb".parse::<Certificate>().is_err());
    }

    #[test]
    fn a_certificate_is_meant_by_any_of_its_names_or_by_itself() {
        let names = ["Web 1".to_owned(), "web.example.org".to_owned()];
        let named = |text: &str| text.parse::<Certificate>().unwrap().means(&names, &[1; 32]);
        assert!(named("web 1") && named("WEB.example.org") && named(&format!("sha256:{}", "01".repeat(32))));
        assert!(!named("web") && !named(&format!("sha256:{}", "02".repeat(32))));
    }
}
