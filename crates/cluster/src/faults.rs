//! Values of other hosts and shards that are ignored: each is counted, and some are logged.

use std::collections::BTreeMap;

use evenkeel_control::cluster::Fault;
use evenkeel_control::{Duration, Instant};
use evenkeel_policy::figures::counted;

/// Shortest time between two log lines on the same kind of fault of the same host.
const AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Largest number of pairs of host and kind whose newest log line is remembered, and so of log lines within [`AGAIN_AFTER`].
const REMEMBERED: usize = 256;
/// The most characters that are shown of a host's name, which may be any key.
const SHOWN_OF_NAME: usize = 200;
/// The most characters that are shown of a fault, which may quote a value.
const SHOWN_OF_FAULT: usize = 500;

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
        let (host, what) = (shortened(host, SHOWN_OF_NAME), shortened(what, SHOWN_OF_FAULT));
        let key = (host.to_owned(), kind);
        if self.logged.get(&key).is_some_and(|&before| now.since(before) < AGAIN_AFTER && now >= before) {
            return;
        }
        if self.logged.len() >= REMEMBERED {
            self.logged.retain(|_, before| now >= *before && now.since(*before) < AGAIN_AFTER);
        }
        if self.logged.len() >= REMEMBERED && !self.logged.contains_key(&key) {
            return;
        }
        self.logged.insert(key, now);
        tracing::warn!("cluster: this host ignores a value in etcd: {host:?} {what}");
    }
}

/// The first `most` characters of a text.
fn shortened(text: &str, most: usize) -> &str {
    text.char_indices().nth(most).map_or(text, |(end, _)| &text[..end])
}

/// Name of a fault's kind, and a clause about the fault with the host as its subject.
pub(crate) fn described(fault: &Fault) -> (&'static str, String) {
    match fault {
        Fault::Future { ahead } => {
            let ahead = counted(*ahead, "period");
            ("future", format!("reports for a time {ahead} ahead of this host's clock; set both hosts' clocks (NTP)"))
        }
        Fault::Late { behind } => {
            let behind = counted(*behind, "period");
            ("late", format!("reports for a time {behind} behind this host's clock; set both hosts' clocks (NTP)"))
        }
        Fault::Duplicate { .. } => (
            "duplicate",
            "is the name of two processes (the one started later counts); give each host its own cluster.host".into(),
        ),
        Fault::Conflict => (
            "conflict",
            "sent two different reports on one period; give each host a name of its own with cluster.host".into(),
        ),
        Fault::TooMany { max } => (
            "too_many",
            format!("is one host more than the {max} allowed; give hosts on other devices another cluster.name"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_keys_of_any_length_takes_little_memory_and_few_log_lines() {
        let mut faults = Faults::default();
        let at = |s: u64| Instant::ZERO + Duration::from_secs(s);
        for n in 0..2 * REMEMBERED {
            faults.note(at(1), &format!("{n:04}{}", "ä".repeat(1_000)), "corrupt", &"x".repeat(1_000));
        }
        assert_eq!((faults.counts()["corrupt"], faults.logged.len()), (2 * REMEMBERED as u64, REMEMBERED));
        assert!(faults.logged.keys().all(|(host, _)| host.chars().count() == SHOWN_OF_NAME));
        // Those of a minute ago make room.
        faults.note(at(61), "new", "corrupt", "is corrupt");
        assert_eq!(faults.logged.len(), 1);
    }
}
