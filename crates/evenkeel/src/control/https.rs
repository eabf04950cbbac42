//! A status address that is HTTPS: whom to believe there, and what to show.

use std::fmt;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, crypto};

use super::client::{CONNECT_PATIENCE, Place, answer, exchange, request};

/// A status address as people write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Site {
    /// `ADDR:PORT`
    Plain(SocketAddr),
    /// `https://HOST[:PORT]`: host, without brackets, and port.
    Secure(String, Option<u16>),
}

impl FromStr for Site {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let wrong = || {
            anyhow!("{text:?} is no status address; write ADDR:PORT, for example 127.0.0.1:9809, or https://HOST:PORT")
        };
        let Some(rest) = text.strip_prefix("https://") else {
            return text
                .strip_prefix("http://")
                .unwrap_or(text)
                .trim_end_matches('/')
                .parse()
                .map(Self::Plain)
                .map_err(|_| wrong());
        };
        let rest = rest.trim_end_matches('/');
        let (host, port) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, port)) => (host, Some(port.strip_prefix(':').ok_or_else(wrong)?)),
            None => rest.split_once(':').map_or((rest, None), |(host, port)| (host, Some(port))),
        };
        let port = port.map(|port| port.parse().map_err(|_| wrong())).transpose()?;
        if host.is_empty() || host.contains(['/', ' ']) {
            return Err(wrong());
        }
        Ok(Self::Secure(host.to_owned(), port))
    }
}

/// Certificates for such an address.
#[derive(clap::Args)]
pub(crate) struct Certificates {
    /// PEM file with the authorities to believe, for a status address that is https://
    #[arg(long, value_name = "FILE", requires = "status")]
    ca: Option<PathBuf>,

    /// PEM file with a certificate to show there, where the server asks for one
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,

    /// PEM file with its private key
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
}

impl Certificates {
    /// Where to ask; at `usual`, if no port is named.
    ///
    /// # Errors
    /// When a file is missing or cannot be used.
    pub(crate) fn reach(&self, site: &Site, usual: u16) -> anyhow::Result<Place> {
        let (host, port) = match site {
            Site::Plain(address) => return Ok(Place::Address(*address)),
            Site::Secure(host, port) => (host.clone(), port.unwrap_or(usual)),
        };
        let Some(ca) = &self.ca else {
            bail!("whom to believe at https://{host}:{port}? Name the authority of its certificate with --ca FILE");
        };
        let mut roots = RootCertStore::empty();
        for certificate in certificates(ca)? {
            roots
                .add(certificate)
                .with_context(|| format!("{} has a certificate that is no authority", ca.display()))?;
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let config = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => {
                // What is in the file is nobody's business.
                let secret = PrivateKeyDer::from_pem_file(key)
                    .map_err(|_| anyhow!("{} has no private key that can be used", key.display()))?;
                let chosen = builder.with_client_auth_cert(certificates(cert)?, secret);
                chosen.with_context(|| format!("{} and {} do not go together", cert.display(), key.display()))?
            }
            _ => builder.with_no_client_auth(),
        };
        Ok(Place::Secure(Secure { host, port, config: Arc::new(config) }))
    }
}

fn certificates(path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let read = read.with_context(|| format!("cannot read certificates from {}", path.display()))?;
    if read.is_empty() {
        bail!("{} has no certificate; give a PEM file", path.display());
    }
    Ok(read)
}

/// A status address that is HTTPS.
#[derive(Clone, Debug)]
pub(crate) struct Secure {
    host: String,
    port: u16,
    config: Arc<ClientConfig>,
}

impl Secure {
    /// Reads a path, waiting no longer than `patience` for each part of the answer.
    ///
    /// # Errors
    /// When nobody answers there, one does not believe the other, or the answer is a refusal.
    pub(super) fn get(&self, patience: Duration, path: &str) -> anyhow::Result<String> {
        let name = ServerName::try_from(self.host.clone()).with_context(|| format!("{} is no host", self.host))?;
        let addresses = (self.host.as_str(), self.port).to_socket_addrs();
        let mut addresses = addresses.with_context(|| format!("cannot find {}", self.host))?;
        let connect = |address| TcpStream::connect_timeout(&address, CONNECT_PATIENCE.min(patience)).ok();
        let stream = addresses.find_map(connect).ok_or_else(|| anyhow!("nothing answers at {self}; is it running?"))?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        let session = ClientConnection::new(Arc::clone(&self.config), name)?;
        let said = exchange(&mut StreamOwned::new(session, stream), &request("GET", path, None));
        answer(&said.with_context(|| format!("{self} and we do not come to terms"))?)
    }
}

impl fmt::Display for Secure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            return write!(f, "https://[{}]:{}", self.host, self.port);
        }
        write!(f, "https://{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        let plain = Site::Plain("127.0.0.1:9809".parse().unwrap());
        for text in ["127.0.0.1:9809", "http://127.0.0.1:9809/"] {
            assert_eq!(text.parse::<Site>().unwrap(), plain);
        }
        for (text, host, port) in [
            ("https://storage1", "storage1", None),
            ("https://storage1:443/", "storage1", Some(443)),
            ("https://[2001:db8::1]:99", "2001:db8::1", Some(99)),
            ("https://[2001:db8::1]", "2001:db8::1", None),
        ] {
            assert_eq!(text.parse::<Site>().unwrap(), Site::Secure(host.into(), port));
        }
        for text in ["storage1:9809", "https://", "https://a/b", "https://a:b", "https://[::1]x", "https://[::1]:"] {
            assert!(text.parse::<Site>().is_err(), "{text}");
        }
    }
}
