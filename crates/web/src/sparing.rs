//! Decides which failures are logged: one line for each reason in an interval, with a count of the others.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Interval in which failures with one reason are logged at most once; a client may fail hundreds of times per second.
const LOGGED_EVERY: Duration = Duration::from_secs(10);
/// The most reasons that are distinguished; any further reason counts as the last of them.
const REASONS: usize = 16;

/// Decides which failed handshakes and refused hosts are logged. For each reason it has the instant of the last log line, and the
/// number of failures that were not logged since.
#[derive(Default)]
pub(crate) struct Sparing(Mutex<Vec<(String, Instant, u64)>>);

impl Sparing {
    /// Counts a failure at `now`. `Some` if it is to be logged, with the number of failures for this reason that were not logged
    /// since the last log line.
    pub(crate) fn count(&self, why: &str, now: Instant) -> Option<u64> {
        let mut reasons = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = reasons.iter().position(|(reason, ..)| reason == why);
        let Some(place) = known.or((reasons.len() == REASONS).then_some(REASONS - 1)) else {
            reasons.push((why.to_owned(), now, 0));
            return Some(0);
        };
        let (_, logged_at, unlogged) = &mut reasons[place];
        if now.duration_since(*logged_at) < LOGGED_EVERY {
            *unlogged += 1;
            return None;
        }
        *logged_at = now;
        Some(std::mem::take(unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_each_reason_are_logged_once_in_a_while() {
        let (sparing, begun) = (Sparing::default(), Instant::now());
        assert_eq!(sparing.count("expired", begun), Some(0));
        assert_eq!(sparing.count("revoked", begun), Some(0));
        for _ in 0..1_000 {
            assert_eq!(sparing.count("expired", begun + LOGGED_EVERY / 2), None);
        }
        assert_eq!(sparing.count("expired", begun + LOGGED_EVERY), Some(1_000));
        assert_eq!(sparing.count("expired", begun + 2 * LOGGED_EVERY), Some(0));
        let logged = (0..1_000).filter(|n| sparing.count(&n.to_string(), begun).is_some()).count();
        assert!(logged <= REASONS, "{logged} reasons");
    }
}
