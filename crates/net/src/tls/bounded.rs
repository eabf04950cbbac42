//! Bounds the work of checking a client's certificates.
//!
//! A client may send any certificates beside its own, and each may be issued by each of the others. The number of chains that
//! are tried grows with the factorial of their number: a hundred certificates in one message of 64 KiB keep a processor busy
//! for seconds before the client has proved anything.

use std::io;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme};

/// Largest number of certificates that a client may send beside its own: three between its own and an authority, and the
/// authority's.
pub(super) const MOST_BESIDE: usize = 4;

/// A verifier of clients that refuses those with too many certificates, and leaves all else to another verifier.
#[derive(Debug)]
pub(super) struct Bounded(pub(super) Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for Bounded {
    fn offer_client_auth(&self) -> bool {
        self.0.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let beside = intermediates.len();
        if beside > MOST_BESIDE {
            let why = format!(
                "the client sends {beside} certificates beside its own; configure it to send at most {MOST_BESIDE}"
            );
            let other = OtherError(Arc::new(io::Error::other(why)));
            return Err(Error::InvalidCertificate(CertificateError::Other(other)));
        }
        self.0.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        self.0.requires_raw_public_keys()
    }
}
