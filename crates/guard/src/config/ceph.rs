//! Settings for the control of Ceph's OSDs, and their translation from the policy.

use std::path::PathBuf;

use evenkeel_control::admission::{Config as Admission, ElasticConfig};
use evenkeel_policy::budget_that_hangs;
use evenkeel_policy::config::{Enforcement, Pool};
use evenkeel_policy::effective::{Row, listed};
use evenkeel_policy::tenant::fits;
use evenkeel_policy::units::{Bytes, Duration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::lower::{Lowering, allows, devices_of};

/// Smallest gain of throughput, as a fraction, for which the controller doubles the budget of an OSD. The throughput of an
/// OSD saturates slowly: the last 2.5 % of throughput double the latency.
const TOLERANCE: f64 = 0.045;

/// Settings for measuring and throttling the OSDs of this host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CephSettings {
    /// Time between two readings of an OSD's counters, "5ms" to "1s"; "50ms" costs agent and OSD less, and the controller
    /// reacts later.
    pub sample_every: Duration,
    /// Deadline of an OSD's answer; "10ms" to "10s".
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
    /// Keys with a value out of range, each with a message that names the value and the allowed range.
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

/// The OSDs of this host that are controlled, and the settings for them.
#[derive(Clone, Debug, PartialEq)]
pub struct CephConfig {
    /// Settings for measuring and throttling the OSDs.
    pub settings: CephSettings,
    /// Admission control that bounds the bytes in flight in the store of each OSD.
    pub admission: Admission,
    /// Names of the OSDs to control, with the wildcards `*` and `?`; empty: all OSDs.
    pub only: Vec<String>,
}

impl CephConfig {
    /// Admission control of OSDs whose pool configures none. The budget stops growing earlier than in a pool of `evenkeel
    /// serve`, because the throughput of an OSD saturates slowly while its latency rises.
    pub const fn default_admission() -> Admission {
        Admission::Elastic(ElasticConfig { tolerance: TOLERANCE })
    }

    /// True if the OSD of this name is to be controlled.
    pub fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|wanted| fits(wanted, name))
    }
}

impl Default for CephConfig {
    fn default() -> Self {
        Self { settings: CephSettings::default(), admission: Self::default_admission(), only: Vec::new() }
    }
}

impl Lowering<'_, '_> {
    /// A pool of OSDs, whose throttles are set.
    pub(super) fn osds(&mut self, name: &str, pool: &Pool) {
        let (osds, _) = devices_of(pool);
        if osds.is_empty() || !allows(pool, Enforcement::Osd) {
            return;
        }
        if self.lowered.config.ceph.is_some() {
            let message = "another pool has OSDs already, and one pool holds all OSDs of a host; name these OSDs in that pool, or leave \"osd\" out of enforce";
            return self.fault(&["pools", name, "devices"], message);
        }
        if osds.contains(&"") {
            self.fault(
                &["pools", name, "devices"],
                "\"osd:\" names no OSD; write \"osd:*\" or for example \"osd:osd.0\"",
            );
        }
        let at = ["pools", name, "tuning", "admission"];
        let said = self.document.has(&at);
        let admission = if said { pool.tuning.admission } else { CephConfig::default_admission() };
        if admission == Admission::None {
            self.fault(&at, "is \"none\", which controls no OSD; use another, or leave the OSDs out of devices");
        }
        // What a request costs an OSD beside its bytes, only the OSD knows.
        if let Some((key, hang)) = budget_that_hangs(&admission, Bytes(0)) {
            self.doubt(&["pools", name, "tuning", "admission", key], hang);
        }
        let row = Row::of_pool(name, Enforcement::Osd, None, format!("admission {}", admission.name()));
        let throttled = format!("BlueStore's throttles of {}", listed(&osds));
        self.lowered.config.enforced.rows.push(row.by("latency and rate of commits, by admin sockets", throttled));
        let only = if osds.contains(&"*") { Vec::new() } else { osds.into_iter().map(str::to_owned).collect() };
        let settings = self.lowered.config.agent.ceph.clone();
        self.lowered.config.ceph = Some(CephConfig { settings, admission, only });
    }
}
