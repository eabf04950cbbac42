//! Records of troubles, each with its cause and its cure, and of the health that follows from all of them. Troubles are found by
//! [`crate::health`] and by the agent.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Failed requests of one kind, with one error.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FailureState {
    /// Kind of request: `read`, `write`, `flush`, ...
    pub what: String,
    /// The kernel's number of the error.
    pub errno: i32,
    /// The error as text.
    pub error: String,
    /// Number of these failures, since the last ten minutes without one.
    pub requests: u64,
    /// Time since the first of these failures, in milliseconds.
    pub since_ms: u64,
    /// Time since the last of these failures, in milliseconds.
    pub last_ms: u64,
}

/// Severity of a trouble. The worst is the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Requests fail or hang, or data may be lost.
    Critical,
    /// A target is missed, or a part of the policy is not in force.
    Warning,
    /// No trouble.
    #[default]
    Ok,
}

impl Level {
    /// The name of the level in capitals, as monitoring systems expect it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Critical => "CRITICAL",
            Self::Warning => "WARNING",
            Self::Ok => "OK",
        }
    }
}

/// A trouble with its cause and its cure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Trouble {
    /// Its severity.
    pub level: Level,
    /// Name of the kind of trouble, `io_errors` for example.
    pub kind: String,
    /// The object in trouble: `volume db`, `pool main`, `tenant shop in pool main`; empty for the whole server or agent.
    pub about: String,
    /// The trouble and its reason, as a sentence.
    pub because: String,
    /// The remedy; empty if the sentence has it.
    pub cure: String,
    /// Tells apart troubles of one kind and object, such as two errors of a volume; of several with the same part, or without
    /// one, the history has the first alone. The API does not have it.
    #[serde(skip)]
    pub part: String,
}

impl Trouble {
    /// A trouble of this kind.
    pub fn new(
        level: Level,
        kind: &str,
        about: impl Into<String>,
        because: impl Into<String>,
        cure: impl Into<String>,
    ) -> Self {
        let (about, because, cure) = (about.into(), because.into(), cure.into());
        Self { level, kind: kind.into(), about, because, cure, part: String::new() }
    }

    /// A trouble of the level [`Level::Warning`].
    pub fn warning(kind: &str, about: impl Into<String>, because: impl Into<String>, cure: impl Into<String>) -> Self {
        Self::new(Level::Warning, kind, about, because, cure)
    }

    /// The same trouble, told apart by `part` from others of its kind and object.
    #[must_use]
    pub fn of_part(self, part: impl Into<String>) -> Self {
        Self { part: part.into(), ..self }
    }

    /// The trouble's object and cause in one sentence.
    pub fn sentence(&self) -> String {
        if self.about.is_empty() { self.because.clone() } else { format!("{}: {}", self.about, self.because) }
    }
}

/// The answer of `/api/v1/health`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Health {
    /// Level of the worst trouble.
    pub level: Level,
    /// All troubles, worst first.
    pub troubles: Vec<Trouble>,
}

impl Health {
    /// The health that follows from these troubles.
    #[must_use]
    pub fn of(mut troubles: Vec<Trouble>) -> Self {
        troubles.sort_by_key(|trouble| trouble.level);
        Self { level: troubles.first().map_or(Level::Ok, |worst| worst.level), troubles }
    }
}
