//! Reasons that keep a load from running, or end it early.

use std::error::Error as _;
use std::io;
use std::num::ParseIntError;

use evenkeel_nbd::client::Violation;
use evenkeel_net::dial::DialError;
use evenkeel_policy::units::UnitError;

/// Reason that keeps a load from running, or ends it early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Options that contradict each other or lack something.
    #[error("{0}")]
    Options(String),
    /// A job file without what it must have.
    #[error("{0}")]
    JobFile(String),
    /// A job file that is no TOML, or has keys and values that no job has.
    #[error(transparent)]
    Toml(#[from] toml::de::Error),
    /// A URI that names no export.
    #[error(transparent)]
    Uri(#[from] UnitError),
    /// A number that is none.
    #[error(transparent)]
    Number(#[from] ParseIntError),
    /// A text that is no journal, or a journal of another volume.
    #[error("{0}")]
    Journal(String),
    /// A server that was not reached, or refused.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// An export that does not allow the job, or has no room for it.
    #[error("{0}")]
    Export(String),
    /// A server that breaks the protocol.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// A server that hangs up, stays silent or loses what it was given.
    #[error("{0}")]
    Server(String),
    /// The load was stopped before it began.
    #[error("interrupted while connecting")]
    Interrupted,
    /// A call to the system that failed.
    #[error(transparent)]
    System(#[from] io::Error),
    /// An error, and where it happened or what was being done.
    #[error("{place}")]
    At {
        /// The job, file or line, or what failed.
        place: String,
        /// The error of that job.
        #[source]
        cause: Box<Error>,
    },
}

impl Error {
    /// True if options are wrong, rather than what came of them.
    pub fn is_of_options(&self) -> bool {
        match self {
            Self::Options(_) => true,
            Self::At { cause, .. } => cause.is_of_options(),
            _ => false,
        }
    }

    /// Everything that is known about it, in one line.
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

/// Says where an error happened.
pub(crate) trait At<T> {
    /// At this place.
    fn at(self, place: impl Into<String>) -> Result<T, Error>;
    /// At this place, which is put into words only if there is an error.
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
