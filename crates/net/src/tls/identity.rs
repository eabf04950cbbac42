//! The identity of a client, taken from its TLS certificate.

use std::fmt;

use rustls::pki_types::CertificateDer;
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// Largest number of names that are taken from one certificate; usual client certificates have fewer.
const MAX_NAMES: usize = 32;

/// The identity that a client's verified certificate proves.
#[derive(Debug)]
pub struct Identity {
    /// The subject's common name, if there is one, and then the DNS names; at most 32, without names that have control
    /// characters.
    pub names: Vec<String>,
    /// SHA-256 of the whole certificate (DER).
    pub fingerprint: [u8; 32],
}

impl Identity {
    /// The identity in a certificate, which must have been verified before.
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        let digest = ring::digest::digest(&ring::digest::SHA256, certificate);
        let mut fingerprint = [0; 32];
        fingerprint.copy_from_slice(digest.as_ref());
        Self { names: names(certificate), fingerprint }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.names.first() {
            Some(name) => f.write_str(name),
            None => evenkeel_policy::config::Certificate::Fingerprint(self.fingerprint).fmt(f),
        }
    }
}

/// The common name and DNS names of a certificate's subject; empty if the certificate cannot be parsed.
fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(certificate) = Certificate::from_der(certificate) else { return Vec::new() };
    let certificate = certificate.tbs_certificate();
    let common = certificate.subject().common_name().ok().flatten().map(|name| name.value().to_string());
    let alternative = certificate.get_extension::<SubjectAltName>().ok().flatten();
    let dns = alternative.into_iter().flat_map(|(_, names)| names.0).filter_map(|name| match name {
        GeneralName::DnsName(name) => Some(name.to_string()),
        _ => None,
    });
    // They are shown in logs.
    common.into_iter().chain(dns).filter(|name| !name.chars().any(char::is_control)).take(MAX_NAMES).collect()
}
