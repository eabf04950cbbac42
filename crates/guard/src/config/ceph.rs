//! How Ceph's OSDs are controlled, as an operator writes it.

use std::path::PathBuf;

use evenkeel_policy::admission::Admission;
use evenkeel_policy::units::Duration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What doubling the budget of an OSD has to bring: its throughput bends slowly, and 2.5 % of it cost half of the latency.
const TOLERANCE: f64 = 0.045;

/// The OSDs of this host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CephConfig {
    /// How much may be inside the store of each OSD: "elastic", "slowfast", { kind = "fixed", budget = "512KiB" }. The default
    /// prefers latency more than "elastic" alone does: throughput gives way slowly here.
    pub admission: Admission,
    /// How often an OSD is asked for its counters.
    pub sample_every: Duration,
    /// An answer that takes longer counts as none.
    pub answer_within: Duration,
    /// Whether the throttle of deferred writes keeps its proportion to that of all bytes.
    pub deferred: bool,
    /// OSDs by name, as `evenkeel guard discover` shows them; default: all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub only: Vec<String>,
    /// Admin sockets, or folders that hold some, beside the usual places.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sockets: Vec<PathBuf>,
}

impl Default for CephConfig {
    fn default() -> Self {
        Self {
            admission: Admission::Elastic { tolerance: TOLERANCE },
            sample_every: Duration::from_millis(20),
            answer_within: Duration::from_millis(500),
            deferred: true,
            only: Vec::new(),
            sockets: Vec::new(),
        }
    }
}

impl CephConfig {
    /// Whether the OSD of this name is wanted.
    pub fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|wanted| wanted == name)
    }

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
        match &self.admission {
            Admission::None => faults.push(("admission", "is \"none\"; leave the table out to control nothing".into())),
            admission => faults.extend(admission.complaint().map(|complaint| ("admission", complaint))),
        }
        faults
    }
}
