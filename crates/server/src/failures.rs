//! How often failures of a volume are logged: a full or broken device fails a hundred thousand requests a second.

use evenkeel_control::{Duration, Instant};

/// Failures of one kind are logged once in this time.
const INTERVAL: Duration = Duration::from_secs(10);
/// Kinds that are distinguished at most; beyond them the one whose last log line is the oldest gives way.
const MAX_KINDS: usize = 16;

/// The kinds of failures that a volume has had lately.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    kinds: Vec<Kind>,
}

/// Failures with one errno of one kind of requests.
#[derive(Debug)]
struct Kind {
    what: &'static str,
    errno: i32,
    told_at: Instant,
    untold: u64,
}

impl Failures {
    /// Counts a failure of `what` at `now`. `Some` if this failure is to be logged: how many of its kind went unlogged since
    /// the last that was logged.
    pub(crate) fn count(&mut self, what: &'static str, errno: i32, now: Instant) -> Option<u64> {
        if let Some(kind) = self.kinds.iter_mut().find(|kind| kind.what == what && kind.errno == errno) {
            if now.since(kind.told_at) < INTERVAL {
                kind.untold += 1;
                return None;
            }
            kind.told_at = now;
            return Some(std::mem::take(&mut kind.untold));
        }
        if self.kinds.len() == MAX_KINDS {
            let oldest = (0..MAX_KINDS).min_by_key(|&index| self.kinds[index].told_at);
            self.kinds.swap_remove(oldest.unwrap_or_default());
        }
        self.kinds.push(Kind { what, errno, told_at: now, untold: 0 });
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn one_of_each_kind_and_interval_is_told_with_the_number_of_the_others() {
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
    fn kinds_are_bounded() {
        let mut failures = Failures::default();
        for errno in 0..1_000 {
            assert_eq!(failures.count("write", errno, at(errno as u64)), Some(0));
            assert!(failures.kinds.len() <= MAX_KINDS);
        }
        assert_eq!(failures.count("write", 999, at(999)), None, "the latest is known");
    }
}
