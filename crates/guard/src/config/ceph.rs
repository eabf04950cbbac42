//! How Ceph's OSDs are controlled.

use std::path::PathBuf;

use evenkeel_control::admission::{Config as Admission, ElasticConfig};
use evenkeel_policy::tenant::fits;
use evenkeel_policy::units::Duration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The least gain of doubling the budget of an OSD: its throughput bends slowly, and 2.5 % of it cost half of the
/// latency.
const TOLERANCE: f64 = 0.045;

/// How the OSDs of this host are asked and set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CephSettings {
    /// Time between two readings of an OSD's counters, "5ms" to "1s"; "50ms" costs agent and OSD less, and the controller
    /// reacts later.
    pub sample_every: Duration,
    /// A later answer counts as none; "10ms" to "10s".
    pub answer_within: Duration,
    /// Set the throttle of deferred writes too, in the proportion that the two had before.
    pub deferred: bool,
    /// Admin sockets, or folders that hold some, beside the usual places.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sockets: Vec<PathBuf>,
}

impl Default for CephSettings {
    fn default() -> Self {
        Self {
            sample_every: Duration::from_millis(20),
            answer_within: Duration::from_millis(500),
            deferred: true,
            sockets: Vec::new(),
        }
    }
}

impl CephSettings {
    /// Keys at fault, each with what is wrong and what would be right.
    pub(super) fn faults(&self) -> Vec<(&'static str, String)> {
        let mut faults = Vec::new();
        let ms = Duration::from_millis;
        if !(ms(5)..=ms(1_000)).contains(&self.sample_every) {
            faults.push(("sample_every", format!("is {}; write \"5ms\" to \"1s\"", self.sample_every)));
        }
        if !(ms(10)..=ms(10_000)).contains(&self.answer_within) {
            faults.push(("answer_within", format!("is {}; write \"10ms\" to \"10s\"", self.answer_within)));
        }
        faults
    }
}

/// The OSDs of this host.
#[derive(Clone, Debug, PartialEq)]
pub struct CephConfig {
    /// How much may be in flight in the store of each OSD.
    pub admission: Admission,
    /// How often an OSD is asked for its counters.
    pub sample_every: Duration,
    /// An answer that takes longer counts as none.
    pub answer_within: Duration,
    /// True if the throttle of deferred writes keeps its proportion to that of all bytes.
    pub deferred: bool,
    /// OSDs by name, with `*` and `?`; none: all.
    pub only: Vec<String>,
    /// Admin sockets, or folders that hold some, beside the usual places.
    pub sockets: Vec<PathBuf>,
}

impl CephConfig {
    /// The OSDs of these names, or all if there are none.
    pub fn new(settings: &CephSettings, admission: Admission, only: Vec<String>) -> Self {
        let CephSettings { sample_every, answer_within, deferred, sockets } = settings.clone();
        Self { admission, sample_every, answer_within, deferred, only, sockets }
    }

    /// How much may be in flight in an OSD unless its pool says so. Latency is preferred more than in a pool of
    /// `evenkeel serve`: throughput bends slowly here.
    pub const fn default_admission() -> Admission {
        Admission::Elastic(ElasticConfig { tolerance: TOLERANCE })
    }

    /// True if the OSD of this name is wanted.
    pub fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|wanted| fits(wanted, name))
    }
}

impl Default for CephConfig {
    fn default() -> Self {
        Self::new(&CephSettings::default(), Self::default_admission(), Vec::new())
    }
}
