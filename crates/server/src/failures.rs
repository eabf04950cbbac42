//! Bounds how often failures of a volume's requests are logged: a full or broken device can fail a hundred thousand requests
//! per second.

use evenkeel_control::{Duration, Instant};

/// Smallest time between two log lines for failures of one kind.
const INTERVAL: Duration = Duration::from_secs(10);
/// Time without a failure of a kind after which earlier failures of this kind are forgotten.
const FORGOTTEN: Duration = Duration::from_secs(600);
/// Largest number of kinds that are distinguished; a further kind replaces the kind whose latest log line is the oldest.
const MAX_KINDS: usize = 16;

/// The kinds of failures that a volume's requests have had recently.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    kinds: Vec<Failure>,
}

/// One kind of failures: failures of one kind of requests with one errno.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Name of the kind of requests.
    pub(crate) what: &'static str,
    /// The errno of the failures; 0 if the error has none.
    pub(crate) errno: i32,
    /// The latest error as text, if it has no errno.
    pub(crate) text: String,
    /// Time of the first failure since failures of this kind were forgotten.
    pub(crate) first_at: Instant,
    /// Time of the latest failure of this kind.
    pub(crate) last_at: Instant,
    /// Number of failures of this kind from `first_at` on.
    pub(crate) count: u64,
    /// Time of the newest log line on a failure of this kind.
    logged_at: Instant,
    /// Number of failures since `logged_at` that were not logged.
    not_logged: u64,
}

impl Failures {
    /// Counts a failure of the kind `what` and `errno` at `now`. `Some` if this failure is to be logged; the number is how
    /// many failures of its kind were not logged since the latest log line.
    pub(crate) fn count(&mut self, what: &'static str, errno: i32, now: Instant) -> Option<u64> {
        if let Some(kind) = self.kinds.iter_mut().find(|kind| kind.what == what && kind.errno == errno) {
            if now.since(kind.last_at) >= FORGOTTEN {
                (kind.first_at, kind.count) = (now, 0);
            }
            (kind.last_at, kind.count) = (now, kind.count + 1);
            if now.since(kind.logged_at) < INTERVAL {
                kind.not_logged += 1;
                return None;
            }
            kind.logged_at = now;
            return Some(std::mem::take(&mut kind.not_logged));
        }
        if self.kinds.len() == MAX_KINDS {
            let oldest = (0..MAX_KINDS).min_by_key(|&index| self.kinds[index].logged_at);
            self.kinds.swap_remove(oldest.unwrap_or_default());
        }
        let (text, first_at, last_at, logged_at) = (String::new(), now, now, now);
        self.kinds.push(Failure { what, errno, text, first_at, last_at, count: 1, logged_at, not_logged: 0 });
        Some(0)
    }

    /// Keeps the text of an error without errno, of the kind `what`, that was counted just now.
    pub(crate) fn describe(&mut self, what: &'static str, error: &std::io::Error) {
        if let Some(kind) = self.kinds.iter_mut().find(|kind| kind.what == what && kind.errno == 0) {
            kind.text = error.to_string();
        }
    }

    /// The kinds of failures that are not forgotten at `now`, the one with the latest failure first.
    pub(crate) fn recent(&self, now: Instant) -> Vec<&Failure> {
        let mut recent: Vec<&Failure> = self.kinds.iter().filter(|kind| now.since(kind.last_at) < FORGOTTEN).collect();
        recent.sort_by_key(|kind| std::cmp::Reverse(kind.last_at));
        recent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn one_of_each_kind_and_interval_is_logged_with_the_number_of_the_others() {
        let mut failures = Failures::default();
        assert_eq!(failures.count("write", libc::ENOSPC, at(1)), Some(0));
        assert_eq!(failures.count("write", libc::EIO, at(1)), Some(0));
        assert_eq!(failures.count("read", libc::EIO, at(1)), Some(0));
        for _ in 0..100_000 {
            assert_eq!(failures.count("write", libc::ENOSPC, at(10)), None);
        }
        assert_eq!(failures.count("write", libc::ENOSPC, at(11)), Some(100_000));
        assert_eq!(failures.count("write", libc::ENOSPC, at(12)), None);
        assert_eq!(failures.count("write", libc::ENOSPC, at(30)), Some(1));
        assert_eq!(failures.count("read", libc::EIO, at(30)), Some(0));
    }

    #[test]
    fn failures_are_known_for_ten_minutes_after_the_last() {
        let mut failures = Failures::default();
        for second in [1, 5, 300] {
            failures.count("write", libc::ENOSPC, at(second));
        }
        failures.count("read", libc::EIO, at(400));
        let seen = |failures: &Failures, now| {
            let recent = failures.recent(at(now));
            recent.iter().map(|kind| (kind.what, kind.first_at, kind.last_at, kind.count)).collect::<Vec<_>>()
        };
        assert_eq!(seen(&failures, 899), [("read", at(400), at(400), 1), ("write", at(1), at(300), 3)]);
        assert_eq!(seen(&failures, 900), [("read", at(400), at(400), 1)]);
        failures.count("write", libc::ENOSPC, at(1_000));
        assert_eq!(seen(&failures, 1_000), [("write", at(1_000), at(1_000), 1)], "counted anew");
    }

    #[test]
    fn an_error_without_errno_has_its_text() {
        let mut failures = Failures::default();
        let error = std::io::Error::other("the file is shorter than the volume");
        failures.count("read", libc::EIO, at(1));
        failures.count("read", 0, at(2));
        failures.describe("read", &error);
        let texts: Vec<&str> = failures.recent(at(3)).iter().map(|kind| kind.text.as_str()).collect();
        assert_eq!(texts, ["the file is shorter than the volume", ""]);
    }

    #[test]
    fn kinds_are_bounded() {
        let mut failures = Failures::default();
        for errno in 0..1_000 {
            assert_eq!(failures.count("write", errno, at(errno as u64)), Some(0));
            assert!(failures.kinds.len() <= MAX_KINDS);
        }
        assert_eq!(failures.count("write", 999, at(999)), None, "the latest is known");
    }
}
