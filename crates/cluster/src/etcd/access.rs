//! The way to etcd: certificates, the user and its password, and the token that etcd gave for them.
//!
//! A process has one token for all its connections. The files are read whenever they are needed, so that renewed certificates
//! and passwords count from the next connection or token on.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use evenkeel_net::http::Place;
use evenkeel_net::tls;
use evenkeel_policy::config::{Cluster, Endpoint, EtcdTls};
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// Time after which a refused password is tried again: etcd spends much processor time on each attempt, and all members may
/// be refused.
const AGAIN_AFTER: Duration = Duration::from_secs(5);
/// Number of bytes of the password file that are read.
const MAX_PASSWORD_BYTES: u64 = 64 << 10;
/// Start of words about the password file: its key.
const PASSWORD_FILE: &str = "cluster.password_file: ";

/// Bytes of HTTP bodies sent to and received from etcd servers since the start.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
}

impl Traffic {
    /// Adds `received` bytes to the count, and returns `received`.
    pub(super) fn count(&self, received: usize) -> usize {
        self.received.fetch_add(received as u64, Ordering::Relaxed);
        received
    }
}

/// The user, and the file with its password.
struct Login {
    user: String,
    file: PathBuf,
}

/// The newest answer of etcd to user and password.
#[derive(Default)]
enum Known {
    #[default]
    Nothing,
    /// The token; `None`: etcd's authentication is turned off.
    Token(Option<Arc<str>>),
    /// etcd has refused user and password at this time, with this message.
    Refused(Instant, String),
}

/// The way to etcd for all connections of this process.
#[derive(Default)]
pub(crate) struct Access {
    pub(crate) traffic: Traffic,
    tls: Option<EtcdTls>,
    login: Option<Login>,
    known: Mutex<Known>,
    /// Locked while files are read, so that a file system that hangs occupies one thread only.
    reading: Arc<tokio::sync::Mutex<()>>,
}

impl Access {
    /// The access that the configuration describes.
    pub(crate) fn of(cluster: &Cluster) -> Self {
        let login = cluster.user.clone().zip(cluster.password_file.clone()).map(|(user, file)| Login { user, file });
        Self { tls: cluster.tls.clone(), login, ..Self::default() }
    }

    /// Checks that all files can be used.
    ///
    /// # Errors
    /// Words for a file that cannot be used, with the cure.
    pub(crate) fn check(&self) -> Result<(), String> {
        if let Some(files) = &self.tls {
            Self::secure(files, String::new(), 0)?;
        }
        self.question().map(drop)
    }

    /// Words for a password file that cannot be used, with the cure and without the key; `None` if it can be used, or there is
    /// no user.
    pub(crate) fn password_fault(&self) -> Option<String> {
        let fault = self.question().err()?;
        Some(fault.trim_start_matches(PASSWORD_FILE).to_owned())
    }

    /// Reads files by `read` on another thread, for at most `patience`. The driver's thread does not wait for a file system that
    /// hangs: parts of totals have to shrink in time.
    ///
    /// # Errors
    /// Words for a file that cannot be used, or for files that cannot be read in time, with the cure.
    pub(super) async fn off_thread<T: Send + 'static>(
        self: &Arc<Self>,
        patience: Duration,
        read: impl FnOnce(&Self) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let files = "the files that the table cluster names";
        let reading = async {
            let only = Arc::clone(&self.reading).lock_owned().await;
            let access = Arc::clone(self);
            let work = move || {
                let done = read(&access);
                drop(only);
                done
            };
            spawn_blocking(work).await.unwrap_or_else(|error| Err(format!("{files} cannot be read: {error}")))
        };
        let late = || format!("{files} cannot be read within {patience:?}; put them on a local file system");
        timeout(patience, reading).await.unwrap_or_else(|_| Err(late()))
    }

    /// The address of an etcd server, with the certificates for it.
    ///
    /// # Errors
    /// Words for a file that cannot be used, with the cure.
    pub(super) fn place(&self, endpoint: &Endpoint) -> Result<Place, String> {
        let (host, port) = (endpoint.host().to_owned(), endpoint.port());
        if !endpoint.is_secure() {
            return Ok(Place::Plain(host, port));
        }
        let files = self.tls.as_ref().ok_or("no CA certificate is set; set cluster.tls.authorities")?;
        Self::secure(files, host, port)
    }

    /// An address with TLS, by the present content of the files.
    fn secure(files: &EtcdTls, host: String, port: u16) -> Result<Place, String> {
        let own = files.certificate.as_deref().zip(files.key.as_deref());
        let own = own.map(|(certificate, key)| (("cluster.tls.certificate", certificate), ("cluster.tls.key", key)));
        let authorities = ("cluster.tls.authorities", files.authorities.as_path());
        let config = tls::client(authorities, own).map_err(|error| error.to_string())?;
        Ok(Place::Secure(host, port, config))
    }

    /// The question by which etcd gives a token; `None` without a user.
    ///
    /// # Errors
    /// Words for a password file that cannot be used, with the cure.
    pub(super) fn question(&self) -> Result<Option<Value>, String> {
        let Some(Login { user, file }) = &self.login else { return Ok(None) };
        let place = || format!("{PASSWORD_FILE}{}", file.display());
        let mut text = String::new();
        let read = File::open(file).and_then(|opened| opened.take(MAX_PASSWORD_BYTES).read_to_string(&mut text));
        read.map_err(|error| {
            format!("{} cannot be read: {error}; correct the path, or let this process read the file", place())
        })?;
        let password = text.lines().next().unwrap_or_default();
        if password.is_empty() {
            return Err(format!("{} has no password in its first line; write the password there", place()));
        }
        Ok(Some(json!({ "name": user, "password": password })))
    }

    /// The token for requests; `None` if etcd has to be asked for it first. Without a user, or with etcd's authentication turned
    /// off, there is none, `Some(None)`.
    ///
    /// # Errors
    /// etcd's message, if it has refused user and password a moment ago.
    pub(super) fn token(&self) -> Result<Option<Option<Arc<str>>>, String> {
        if self.login.is_none() {
            return Ok(Some(None));
        }
        match &*lock(&self.known) {
            Known::Token(token) => Ok(Some(token.clone())),
            Known::Refused(at, message) if at.elapsed() < AGAIN_AFTER => Err(message.clone()),
            Known::Nothing | Known::Refused(..) => Ok(None),
        }
    }

    /// True if a user is configured, so that a new token can be asked for.
    pub(super) fn has_login(&self) -> bool {
        self.login.is_some()
    }

    /// Notes the token that etcd gave; `None`: etcd's authentication is turned off.
    pub(super) fn learn(&self, token: Option<Arc<str>>) {
        *lock(&self.known) = Known::Token(token);
    }

    /// Notes that etcd has refused user and password with this message.
    pub(super) fn refused(&self, message: &str) {
        *lock(&self.known) = Known::Refused(Instant::now(), message.to_owned());
    }

    /// Notes that etcd does not take this token any more, unless another connection has a newer one already.
    pub(super) fn forget(&self, stale: Option<&str>) {
        let mut known = lock(&self.known);
        if matches!(&*known, Known::Token(token) if token.as_deref() == stale) {
            *known = Known::Nothing;
        }
    }
}

/// Locks a mutex, also after a panic of another thread that held it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::mpsc;

    use super::*;

    fn access(file: &Path) -> Access {
        let cluster =
            Cluster { user: Some("evenkeel".into()), password_file: Some(file.to_owned()), ..Cluster::default() };
        Access::of(&cluster)
    }

    #[test]
    fn a_password_is_the_first_line_of_its_file_as_it_is_now() {
        let file = std::env::temp_dir().join(format!("evenkeel-password-{}", std::process::id()));
        let access = access(&file);
        let why = access.check().expect_err("no file");
        assert!(why.starts_with("cluster.password_file: /") && why.contains("correct the path"), "{why}");
        fs::write(&file, "\n").expect("written");
        assert!(access.check().expect_err("no password").contains("first line"));
        let fault = access.password_fault().expect("no password");
        assert!(fault.starts_with(&format!("{} has no password", file.display())), "{fault}");
        for (content, password) in [("secret", "secret"), ("other one\r\nmore\n", "other one")] {
            fs::write(&file, content).expect("written");
            let question = access.question().expect("a password").expect("a user");
            assert_eq!(question, json!({ "name": "evenkeel", "password": password }));
        }
        assert_eq!((access.password_fault(), Access::default().password_fault()), (None, None));
        fs::remove_file(&file).expect("removed");
        assert_eq!(Access::default().question(), Ok(None));
    }

    #[test]
    fn a_password_file_without_an_end_takes_little_memory() {
        let access = access(Path::new("/dev/zero"));
        let question = access.question().expect("some password").expect("a user");
        assert_eq!(question["password"].as_str().map(str::len), Some(64 << 10));
    }

    #[test]
    fn files_that_hang_do_not_hang_the_driver() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let access = Arc::new(Access::default());
        let (release, released) = mpsc::channel::<()>();
        let patience = Duration::from_millis(20);
        runtime.block_on(async {
            let hanging = access.off_thread(patience, move |_| {
                let _ = released.recv();
                Ok(())
            });
            let why = hanging.await.expect_err("it hangs");
            assert!(why.contains("cannot be read within 20ms"), "{why}");
            // A second thread does not hang as well.
            assert!(access.off_thread(patience, |_| Ok(())).await.is_err());
            drop(release);
            assert_eq!(access.off_thread(Duration::from_secs(20), |_| Ok(7)).await, Ok(7));
        });
    }

    #[test]
    fn all_connections_have_the_newest_token() {
        assert_eq!(Access::default().token(), Ok(Some(None)), "no user, no token");
        let access = access(Path::new("/nowhere"));
        assert_eq!(access.token(), Ok(None), "to be asked for");
        access.learn(Some("a".into()));
        access.forget(Some("older"));
        assert_eq!(access.token(), Ok(Some(Some("a".into()))));
        access.forget(Some("a"));
        assert_eq!(access.token(), Ok(None));
        // Authentication is turned off, and on again.
        access.learn(None);
        assert_eq!(access.token(), Ok(Some(None)));
        access.forget(None);
        assert_eq!(access.token(), Ok(None));
        access.refused("wrong");
        assert_eq!(access.token(), Err("wrong".to_owned()), "etcd is not asked again at once");
    }
}
