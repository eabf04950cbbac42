//! The files with the certificates by which a job reaches a server with TLS.

use std::path::PathBuf;
use std::sync::Arc;

use evenkeel_net::tls::{self, ClientConfig};

/// The files for the connections of a job whose URI asks for TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Certificates {
    /// The authorities of the server's certificate.
    pub(crate) ca: PathBuf,
    /// The client's own certificate and its key.
    pub(crate) own: Option<(PathBuf, PathBuf)>,
}

impl Certificates {
    /// The configuration of TLS by the content of the files.
    ///
    /// # Errors
    /// A file that cannot be used, with its option and the cure.
    pub(crate) fn read(&self) -> Result<Arc<ClientConfig>, tls::Error> {
        let own = self.own.as_ref().map(|(cert, key)| (("--cert", cert.as_path()), ("--key", key.as_path())));
        tls::client(("--ca", self.ca.as_path()), own)
    }
}
