//! Values of other hosts and shards that are ignored: each is counted, and some are logged.

use std::collections::BTreeMap;

use evenkeel_control::cluster::Fault;
use evenkeel_control::{Duration, Instant};
use evenkeel_policy::figures::counted;

/// Shortest time between two log lines on the same kind of fault of the same host.
const AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Largest number of pairs of host and kind whose newest log line is remembered; all are forgotten when there are more.
const REMEMBERED: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct Faults {
    counts: BTreeMap<String, u64>,
    logged: BTreeMap<(String, &'static str), Instant>,
}

impl Faults {
    /// Number of ignored values since the start, by kind of fault.
    pub(crate) fn counts(&self) -> &BTreeMap<String, u64> {
        &self.counts
    }

    pub(crate) fn note(&mut self, now: Instant, host: &str, kind: &'static str, what: &str) {
        *self.counts.entry(kind.to_owned()).or_default() += 1;
        let key = (host.to_owned(), kind);
        if self.logged.get(&key).is_some_and(|&before| now.since(before) < AGAIN_AFTER && now >= before) {
            return;
        }
        if self.logged.len() >= REMEMBERED {
            self.logged.clear();
        }
        self.logged.insert(key, now);
        tracing::warn!("cluster: ignored: {host:?} {what}");
    }
}

/// Name of a fault's kind, and a clause about the fault with the host as its subject.
pub(crate) fn described(fault: &Fault) -> (&'static str, String) {
    match fault {
        Fault::Future { ahead } => {
            let ahead = counted(*ahead, "period");
            ("future", format!("reports for a time {ahead} ahead of this host's clock; set the clocks of both (NTP)"))
        }
        Fault::Late { behind } => {
            let behind = counted(*behind, "period");
            ("late", format!("reports for a time {behind} behind this host's clock; set the clocks of both (NTP)"))
        }
        Fault::Duplicate { .. } => (
            "duplicate",
            "is reported by two processes; the one that started later counts, give the other a name with cluster.host"
                .into(),
        ),
        Fault::Conflict => (
            "conflict",
            "sent two different reports on one period; give each host a name of its own with cluster.host".into(),
        ),
        Fault::TooMany { max } => (
            "too_many",
            format!("is one host more than the {max} of a cluster; give hosts on other devices another cluster.name"),
        ),
    }
}
