//! The certificates of the agent's own port, which can be renewed while it runs.

use std::sync::{Arc, Mutex, PoisonError};

use evenkeel_net::tls::{Acceptor, Error};
use evenkeel_policy::config::Terms;
use rustls::ServerConfig;

use crate::serve::log_changes;

/// Certificates, if any are configured.
pub(super) struct Certificates {
    terms: Terms,
    newest: Mutex<Option<Acceptor>>,
}

impl Certificates {
    /// Reads the files.
    ///
    /// # Errors
    /// Names the key of the file that cannot be used, and what would be right.
    pub(super) fn read(terms: Terms) -> Result<Self, Error> {
        let newest = Mutex::new(Acceptor::load(&terms)?);
        Ok(Self { terms, newest })
    }

    /// What HTTP is to be encrypted with, by the newest of them.
    pub(super) fn https(&self) -> Option<Arc<ServerConfig>> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(Acceptor::http)
    }

    /// Reads the files again. Where one cannot be used, everything stays as it is, and the log says why.
    pub(super) fn renew(&self) {
        let read = match Acceptor::load(&self.terms) {
            Ok(read) => read,
            Err(error) => return tracing::error!("reload refused, nothing was changed: {error}"),
        };
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = newest.as_ref().zip(read.as_ref()).is_some_and(|(before, after)| !before.is_same(after));
        if changed {
            *newest = read;
        }
        drop(newest);
        log_changes(changed.then(|| "certificates changed".to_owned()).as_slice());
    }
}
