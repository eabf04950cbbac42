//! Errors that prevent a load from running, or end it early.

use std::error::Error as _;
use std::io;
use std::num::ParseIntError;

use evenkeel_nbd::client::Violation;
use evenkeel_net::dial::DialError;
use evenkeel_net::tls;
use evenkeel_policy::units::UnitError;

/// An error that prevents a load from running, or ends it early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Options are in conflict, or an option is missing.
    #[error("{0}")]
    Options(String),
    /// A job file is invalid TOML, or has unknown keys or invalid values.
    #[error(transparent)]
    Toml(#[from] toml::de::Error),
    /// A URI names no export.
    #[error(transparent)]
    Uri(#[from] UnitError),
    /// A number cannot be parsed.
    #[error(transparent)]
    Number(#[from] ParseIntError),
    /// A file is no journal, or is the journal of another volume.
    #[error("{0}")]
    Journal(String),
    /// The server could not be reached, or refused the handshake.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// A file with certificates or a key cannot be used.
    #[error(transparent)]
    Files(#[from] tls::Error),
    /// The export does not allow the job, or is too small.
    #[error("{0}")]
    Export(String),
    /// The server violated the NBD protocol.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// The server closed the connection, did not answer, or lost data.
    #[error("{0}")]
    Server(String),
    /// The load was interrupted before it began.
    #[error("interrupted while connecting")]
    Interrupted,
    /// A system call failed.
    #[error(transparent)]
    System(#[from] io::Error),
    /// An error with its context.
    #[error("{place}")]
    At {
        /// The job, file, line or step at which it happened.
        place: String,
        /// The error itself.
        #[source]
        cause: Box<Error>,
    },
}

impl Error {
    /// True if the error is about wrong options, and not about a failed run.
    pub fn is_of_options(&self) -> bool {
        match self {
            Self::Options(_) => true,
            Self::At { cause, .. } => cause.is_of_options(),
            _ => false,
        }
    }

    /// The error with its context and causes, in one line.
    pub(crate) fn in_full(&self) -> String {
        let mut text = self.to_string();
        let mut source = self.source();
        while let Some(cause) = source {
            text += &format!(": {cause}");
            source = cause.source();
        }
        text
    }
}

impl From<rustix::io::Errno> for Error {
    fn from(error: rustix::io::Errno) -> Self {
        Self::System(error.into())
    }
}

/// Adds context to an error.
pub(crate) trait At<T> {
    /// Adds `place` to the error.
    fn at(self, place: impl Into<String>) -> Result<T, Error>;
    /// Adds the text of `place` to the error; the text is made only if there is an error.
    fn at_with(self, place: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T, E: Into<Error>> At<T> for Result<T, E> {
    fn at(self, place: impl Into<String>) -> Result<T, Error> {
        self.at_with(|| place.into())
    }

    fn at_with(self, place: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|cause| Error::At { place: place(), cause: Box::new(cause.into()) })
    }
}

/// Returns an error of a kind, with a message, unless a condition holds.
macro_rules! ensure {
    ($kind:ident, $condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(crate::error::Error::$kind(format!($($message)+)));
        }
    };
}
pub(crate) use ensure;
