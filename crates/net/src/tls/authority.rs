//! A certificate authority for tests, and the certificates that it issues.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// A certificate and its private key, in PEM.
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub certificate: String,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, "authority");
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), certificate }
    }

    /// Issues a certificate and key for a server or client; `name` is the common name and the DNS name.
    pub fn issue(&self, name: &str) -> Pair {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Pair { certificate, key: key.serialize_pem() }
    }

    /// Writes a server's TLS files into a folder; returns the configuration table `[server.tls]` with their paths and the
    /// further lines `keys`.
    pub fn serve(&self, folder: &Path, keys: &str) -> String {
        let server = self.issue("localhost");
        let write = |name: &str, content: &str| {
            std::fs::write(folder.join(name), content).unwrap();
            folder.join(name).display().to_string()
        };
        format!(
            "[server.tls]\ncertificate = \"{}\"\nkey = \"{}\"\nclients = \"{}\"\n{keys}\n",
            write("server.pem", &server.certificate),
            write("server.key", &server.key),
            write("ca.pem", &self.certificate)
        )
    }

    /// The TLS configuration of a client that trusts this authority and shows the certificate of `pair`.
    pub fn client(&self, pair: &Pair) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.certificate.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let chain = vec![CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
        Arc::new(builder.with_root_certificates(roots).with_client_auth_cert(chain, key).unwrap())
    }
}

/// Reads an NBD server's greeting, sends STARTTLS, and checks that the server acknowledges; the TLS handshake comes next on
/// the stream.
pub fn start_tls(mut stream: TcpStream) -> TcpStream {
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).unwrap();
    stream.write_all(b"\0\0\0\x01IHAVEOPT\0\0\0\x05\0\0\0\0").unwrap();
    let mut answer = [0; 20];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[8..], [0, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0, 0], "an acknowledgement");
    stream
}

/// As [`start_tls`]; returns a TLS stream on which the NBD negotiation goes on.
pub fn secure(stream: TcpStream, config: &Arc<ClientConfig>) -> StreamOwned<ClientConnection, TcpStream> {
    let session = ClientConnection::new(Arc::clone(config), "localhost".try_into().unwrap()).unwrap();
    StreamOwned::new(session, start_tls(stream))
}
