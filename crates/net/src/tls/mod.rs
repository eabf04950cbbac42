//! TLS for servers and clients: certificates, keys and authorities from PEM files, and the identity of a client, taken from
//! its certificate.

#[cfg(test)]
pub(crate) mod authority;
mod bounded;
mod identity;
mod stream;

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use evenkeel_policy::config::{Asked, EtcdTls, Files, Terms};
use evenkeel_policy::figures::counted;
pub use rustls::ClientConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig, ServerConnection};

use bounded::Bounded;
pub use identity::Identity;
pub use stream::{Carrier, Cipher, Scratch, Stream, reason};

/// Largest size in bytes of a PEM file: more than any revocation list has that a server should search at each handshake.
const MAX_FILE: u64 = 16 << 20;
/// A certificate that expires within this time is reported as a doubt.
const SOON: Duration = Duration::from_secs(14 * 86_400);

const CERTIFICATE: &str = "certificate; give a PEM file with certificates (\"-----BEGIN CERTIFICATE-----\")";
const KEY: &str =
    "private key that can be used; give a PEM file with an unencrypted key (\"-----BEGIN PRIVATE KEY-----\")";
const LIST: &str = "list; give a PEM file with revocation lists (\"-----BEGIN X509 CRL-----\")";

/// The key or option that names a file, and the file's path.
pub type Named<'a> = (&'a str, &'a Path);

/// The checked keys and certificates with which a server or an agent accepts TLS connections.
pub struct Acceptor {
    config: Arc<ServerConfig>,
    /// The TLS configuration of the HTTP port, which may ask for client certificates in another way than the NBD port.
    http: Arc<ServerConfig>,
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    /// SHA-256 of the content of all files, by which changes are found.
    digest: [u8; 32],
    /// Unix time at which the certificate expires; `None` if it cannot be read.
    end: Option<Duration>,
}

/// The TLS acceptor of a port whose files can be read anew while the port is open.
pub struct Renewable {
    terms: Terms,
    newest: Mutex<Option<Acceptor>>,
}

impl Renewable {
    /// Reads the TLS files that `terms` names, if it names any.
    ///
    /// # Errors
    /// The errors of [`Acceptor::load`].
    pub fn load(terms: Terms) -> Result<Self, Error> {
        let newest = Mutex::new(Acceptor::load(&terms)?);
        Ok(Self { terms, newest })
    }

    /// The HTTP port's TLS configuration with the newest files that were read; `None` without TLS.
    pub fn http(&self) -> Option<Arc<ServerConfig>> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(Acceptor::http)
    }

    /// The doubt about the certificate in use, as of [`Acceptor::doubt`]; `None` without TLS.
    pub fn doubt(&self) -> Option<(bool, String)> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.doubt()
    }

    /// Reads the files again, and uses them from now on; true if their content has changed.
    ///
    /// # Errors
    /// The errors of [`Acceptor::load`]; after an error the previous files stay in use.
    pub fn renew(&self) -> Result<bool, Error> {
        let read = Acceptor::load(&self.terms)?;
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = newest.as_ref().zip(read.as_ref()).is_some_and(|(before, after)| !before.is_same(after));
        if changed {
            *newest = read;
        }
        Ok(changed)
    }
}

/// A TLS file that cannot be used, or a doubt about a usable one.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {} {why}", path.display())]
pub struct Error {
    /// The configuration key or command line option that names the file.
    pub name: String,
    /// Path of the file.
    pub path: PathBuf,
    /// The fault and its cure in words, which never contain the file's content.
    pub why: String,
}

impl Error {
    /// The same error with the configuration table put before the key's name.
    fn of(self, table: &str) -> Self {
        Self { name: format!("{table}.tls.{}", self.name), ..self }
    }
}

/// Faults of the files that `terms` names: of each file by itself, or else the fault that shows when all are used together.
pub fn faults(terms: &Terms) -> Vec<Error> {
    let Some(files) = &terms.files else { return Vec::new() };
    let certificate: Named<'_> = ("certificate", &files.certificate);
    let key: Named<'_> = ("key", &files.key);
    let clients = files.clients.as_deref().map(|path| ("clients", path));
    let revoked = clients.and(files.revoked.as_deref()).map(|path| ("revoked", path));
    let by_itself = [
        read(certificate).and_then(|content| certificates_in(certificate, &content)).err(),
        read(key).and_then(|content| key_in(key, &content)).err(),
        clients.and_then(|file| read(file).and_then(|content| authorities_in(file, &content)).err()),
        revoked.and_then(|file| {
            let lists = |content: Vec<u8>| all_in::<CertificateRevocationListDer<'static>>(file, &content, LIST);
            read(file).and_then(lists).err()
        }),
    ];
    let mut faults: Vec<Error> = by_itself.into_iter().flatten().collect();
    if faults.is_empty() {
        faults.extend(Acceptor::read(files, terms.http.certificates).err());
    }
    faults.into_iter().map(|fault| fault.of(terms.table)).collect()
}

/// Doubts about the files that `terms` names: a certificate that has expired or expires within 14 days, and a key that every
/// user of the system can use.
pub fn doubts(terms: &Terms) -> Vec<Error> {
    let Some(files) = &terms.files else { return Vec::new() };
    let doubts = [end_of(("certificate", &files.certificate)), readers_of(("key", &files.key))];
    doubts.into_iter().flatten().map(|doubt| doubt.of(terms.table)).collect()
}

impl Acceptor {
    /// Reads the files that `terms` names, and logs the [`doubts`] about them; `None` if `terms` names no files.
    ///
    /// # Errors
    /// If a file cannot be used; the error has the key that names the file, and the cure.
    pub fn load(terms: &Terms) -> Result<Option<Self>, Error> {
        let Some(files) = &terms.files else { return Ok(None) };
        let read = Self::read(files, terms.http.certificates).map_err(|error| error.of(terms.table))?;
        for doubt in doubts(terms) {
            tracing::warn!("{doubt}");
        }
        Ok(Some(read))
    }

    fn read(settings: &Files, of_http: Asked) -> Result<Self, Error> {
        let mut digest = ring::digest::Context::new(&ring::digest::SHA256);
        let mut read = |file: Named<'_>| {
            let content = read(file)?;
            digest.update(&(content.len() as u64).to_be_bytes());
            digest.update(&content);
            Ok::<_, Error>(content)
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());

        let certificate: Named<'_> = ("certificate", &settings.certificate);
        let chain = certificates_in(certificate, &read(certificate)?)?;
        let key = key_in(("key", &settings.key), &read(("key", &settings.key))?)?;
        let verifiers = match &settings.clients {
            None => None,
            Some(path) => {
                let content = read(("clients", path))?;
                let lists = match &settings.revoked {
                    Some(path) => all_in(("revoked", path), &read(("revoked", path))?, LIST)?,
                    None => Vec::new(),
                };
                let of = |asked| verifier(path, &content, lists.clone(), &provider, settings, asked);
                Some((of(Asked::Required)?, of(of_http)?))
            }
        };
        let (verifier, of_http) = verifiers.unzip();
        let config = configure(settings, &provider, &chain, &key, verifier.as_ref())?;
        let http = configure(settings, &provider, &chain, &key, of_http.as_ref())?;
        let digest = digest.finish().as_ref().try_into().unwrap_or_default();
        Ok(Self { config: Arc::new(config), http: Arc::new(http), verifier, digest, end: end(&chain) })
    }

    /// True if the certificate has expired, with words that say so; false if it expires within 14 days, likewise. `None` if it
    /// is valid for longer.
    pub fn doubt(&self) -> Option<(bool, String)> {
        ending(self.end?)
    }

    /// The TLS configuration of the HTTP port.
    pub fn http(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.http)
    }

    /// True if both acceptors were read from files with the same content.
    pub fn is_same(&self, other: &Self) -> bool {
        self.digest == other.digest
    }

    /// The server's TLS session for a new NBD connection.
    ///
    /// # Errors
    /// If rustls refuses the configuration, which a checked configuration cannot cause.
    pub fn session(&self) -> Result<ServerConnection, rustls::Error> {
        let mut session = ServerConnection::new(Arc::clone(&self.config))?;
        // The stream bounds what it has encrypted ahead.
        session.set_buffer_limit(None);
        Ok(session)
    }

    /// True if these files admit a client with the certificate chain `chain`, which the client has shown while other files
    /// were in use.
    pub fn admits(&self, chain: &[CertificateDer<'_>]) -> bool {
        let Some(verifier) = &self.verifier else { return true };
        let Some((first, rest)) = chain.split_first() else { return false };
        verifier.verify_client_cert(first, rest, UnixTime::now()).is_ok()
    }
}

/// The configuration of a TLS client: the file with the authorities that the client trusts, and the files with its own
/// certificate and key, if it has any.
///
/// # Errors
/// If a file cannot be used; the error has the option that names the file, and the cure.
pub fn client(authorities: Named<'_>, own: Option<(Named<'_>, Named<'_>)>) -> Result<Arc<ClientConfig>, Error> {
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| fail(authorities, error.to_string()))?
        .with_root_certificates(authorities_in(authorities, &read(authorities)?)?);
    Ok(Arc::new(match own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => builder
            .with_client_auth_cert(certificates_in(certificate, &read(certificate)?)?, key_in(key, &read(key)?)?)
            .map_err(|error| unfit(certificate, key, &error))?,
    }))
}

/// The configuration of a TLS client by the present content of `files`. `table`: the configuration table that names the files, for
/// errors.
///
/// # Errors
/// As [`client`].
pub fn client_of(table: &str, files: &EtcdTls) -> Result<Arc<ClientConfig>, Error> {
    let own = files.certificate.as_deref().zip(files.key.as_deref());
    let own = own.map(|(certificate, key)| (("certificate", certificate), ("key", key)));
    let config = client(("authorities", files.authorities.as_path()), own);
    config.map_err(|error| Error { name: format!("{table}.{}", error.name), ..error })
}

/// Faults of the files of a TLS client: of each file by itself, or else the fault that shows when all are used together.
pub fn client_faults(files: &EtcdTls) -> Vec<Error> {
    let authorities: Named<'_> = ("authorities", &files.authorities);
    let certificate = files.certificate.as_deref().map(|path| ("certificate", path));
    let key = files.key.as_deref().map(|path| ("key", path));
    let by_itself = [
        read(authorities).and_then(|content| authorities_in(authorities, &content)).err(),
        certificate.and_then(|file| read(file).and_then(|content| certificates_in(file, &content)).err()),
        key.and_then(|file| read(file).and_then(|content| key_in(file, &content)).err()),
    ];
    let mut faults: Vec<Error> = by_itself.into_iter().flatten().collect();
    if faults.is_empty() {
        faults.extend(client(authorities, certificate.zip(key)).err());
    }
    faults
}

/// Doubts about the files of a TLS client, as of [`doubts`].
pub fn client_doubts(files: &EtcdTls) -> Vec<Error> {
    let certificate = files.certificate.as_deref().and_then(|path| end_of(("certificate", path)));
    let key = files.key.as_deref().and_then(|path| readers_of(("key", path)));
    certificate.into_iter().chain(key).collect()
}

fn configure(
    settings: &Files,
    provider: &Arc<CryptoProvider>,
    chain: &[CertificateDer<'static>],
    key: &PrivateKeyDer<'static>,
    verifier: Option<&Arc<dyn ClientCertVerifier>>,
) -> Result<ServerConfig, Error> {
    let certificate: Named<'_> = ("certificate", &settings.certificate);
    let builder = ServerConfig::builder_with_provider(Arc::clone(provider)).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| fail(certificate, error.to_string()))?;
    let builder = match verifier {
        Some(verifier) => builder.with_client_cert_verifier(Arc::clone(verifier)),
        None => builder.with_no_client_auth(),
    };
    let config = builder.with_single_cert(chain.to_vec(), key.clone_key());
    let mut config = config.map_err(|error| unfit(certificate, ("key", &settings.key), &error))?;
    // A client that resumed a session would not be asked for a certificate again, which may be revoked by then.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

fn fail((name, path): Named<'_>, why: String) -> Error {
    Error { name: name.to_owned(), path: path.to_owned(), why }
}

/// The error for a certificate and a key that cannot be used together.
fn unfit(certificate: Named<'_>, key: Named<'_>, error: &rustls::Error) -> Error {
    match error {
        rustls::Error::InconsistentKeys(_) => fail(key, format!("does not belong to {}", certificate.1.display())),
        error if error.to_string().contains("UnsupportedCertVersion") => {
            fail(certificate, "is of an old version of X.509; make one of version 3, with a subjectAltName".into())
        }
        error => fail(certificate, format!("cannot be used: {error}")),
    }
}

fn read(file: Named<'_>) -> Result<Vec<u8>, Error> {
    let mut content = Vec::new();
    let read = File::open(file.1).and_then(|opened| opened.take(MAX_FILE + 1).read_to_end(&mut content));
    read.map_err(|error| {
        let cure = match error.kind() {
            io::ErrorKind::NotFound => "; put it there, or correct the path",
            io::ErrorKind::PermissionDenied => "; let this user read it, or run this as one who can",
            _ => "",
        };
        fail(file, format!("cannot be read: {error}{cure}"))
    })?;
    if content.len() as u64 > MAX_FILE {
        return Err(fail(file, "cannot be read: it is larger than 16 MiB".into()));
    }
    Ok(content)
}

/// All items of a kind, such as certificates, in the PEM file `file`; an error if there is none. `kind`: words for the kind
/// in the error.
fn all_in<T: PemObject>(file: Named<'_>, content: &[u8], kind: &str) -> Result<Vec<T>, Error> {
    let read: Result<Vec<T>, _> = T::pem_slice_iter(content).collect();
    match read {
        Ok(list) if !list.is_empty() => Ok(list),
        Ok(_) => Err(fail(file, format!("has no {kind}"))),
        Err(error) => Err(fail(file, format!("is damaged: {error}"))),
    }
}

fn certificates_in(file: Named<'_>, content: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    all_in(file, content, CERTIFICATE)
}

fn authorities_in(file: Named<'_>, content: &[u8]) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates_in(file, content)? {
        let added = roots.add(certificate);
        added.map_err(|error| fail(file, format!("has a certificate that is unusable: {error}")))?;
    }
    Ok(roots)
}

fn key_in(file: Named<'_>, content: &[u8]) -> Result<PrivateKeyDer<'static>, Error> {
    PrivateKeyDer::from_pem_slice(content).map_err(|_| fail(file, format!("has no {KEY}")))
}

fn verifier(
    path: &Path,
    content: &[u8],
    lists: Vec<CertificateRevocationListDer<'static>>,
    provider: &Arc<CryptoProvider>,
    settings: &Files,
    asked: Asked,
) -> Result<Arc<dyn ClientCertVerifier>, Error> {
    let roots = authorities_in(("clients", path), content)?;
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider)).with_crls(lists);
    let builder = if asked == Asked::Optional { builder.allow_unauthenticated() } else { builder };
    let built = builder.build().map_err(|error| {
        let why = format!(
            "has a list that cannot be used: {error}; it must be of version 2 (`openssl ca -gencrl -crlexts SECTION`)"
        );
        fail(("revoked", settings.revoked.as_deref().unwrap_or(path)), why)
    })?;
    Ok(Arc::new(Bounded(built)))
}

/// The doubt about a certificate that has expired or expires within [`SOON`], so that the operator knows before it is refused;
/// `None` otherwise.
fn end_of(file: Named<'_>) -> Option<Error> {
    let chain = certificates_in(file, &read(file).ok()?).ok()?;
    ending(end(&chain)?).map(|(_, why)| fail(file, why))
}

/// Unix time at which the first certificate of a chain expires; `None` if it cannot be read.
fn end(chain: &[CertificateDer<'_>]) -> Option<Duration> {
    use x509_cert::der::Decode;
    let certificate = x509_cert::Certificate::from_der(chain.first()?).ok()?;
    Some(certificate.tbs_certificate().validity().not_after.to_unix_duration())
}

/// The words about a certificate that expires at the Unix time `end`, if it has expired (true) or expires within [`SOON`].
fn ending(end: Duration) -> Option<(bool, String)> {
    match end.checked_sub(Duration::from_secs(UnixTime::now().as_secs())) {
        None => Some((true, "has expired, and is refused; renew it and reload".into())),
        Some(left) if left < SOON => {
            let days = counted(left.as_secs() / 86_400, "day");
            Some((false, format!("expires in {days}; renew it and reload")))
        }
        Some(_) => None,
    }
}

/// The doubt about a key file that every user of the system can use, so that its key is no secret; `None` otherwise.
fn readers_of(file: Named<'_>) -> Option<Error> {
    let mode = fs::metadata(file.1).ok()?.permissions().mode() & 0o777;
    let path = file.1.display();
    let why = format!("can be used by every user of this machine (mode {mode:04o}); chmod o-rwx {path}");
    (mode & 0o007 != 0).then(|| fail(file, why))
}

#[cfg(test)]
mod tests;
