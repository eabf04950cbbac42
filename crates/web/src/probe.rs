//! The answers to probes: `/healthz`, by the health of a server or an agent, and `/livez`, because the program answers.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use evenkeel_policy::health::{Health, Level};

/// Time for which the answer to `/healthz` is repeated. The bound on clients' CPU time does not delay probes, and to collect the
/// state of a thousand tenants takes milliseconds.
const USED_FOR: Duration = Duration::from_secs(1);

/// Status and body of an answer.
pub(crate) type Answer = (StatusCode, String);

/// The answer to `/livez`. No trouble changes it: a restart makes no room on a disk.
pub(crate) async fn live() -> &'static str {
    "ok\n"
}

/// The answer to `/healthz` for this health: 503 with cause and cure of the worst trouble if that is critical, else 200.
fn of(health: &Health) -> Answer {
    let word = health.level.word().to_lowercase();
    let Some(worst) = health.troubles.first().filter(|worst| worst.level == Level::Critical) else {
        return (StatusCode::OK, format!("{word}\n"));
    };
    let cure = if worst.cure.is_empty() { String::new() } else { format!("; {}", worst.cure) };
    let line = format!("{word}: {}{cure}", worst.sentence()).replace('\n', " ");
    (StatusCode::SERVICE_UNAVAILABLE, format!("{line}\n"))
}

/// The answer to `/healthz` for the newest health, with the time at which that was found out; `None` before the first.
#[derive(Default)]
pub(crate) struct Newest(Mutex<Option<(Instant, Answer)>>);

impl Newest {
    /// Takes the health at `now`.
    pub(crate) fn set(&self, now: Instant, health: &Health) {
        *self.lock() = Some((now, of(health)));
    }

    /// The answer at `now`. `find` returns the health; it is called if the newest one is older than [`USED_FOR`].
    pub(crate) fn answer(&self, now: Instant, find: impl FnOnce() -> Health) -> Answer {
        let newest = self.lock().clone();
        if let Some((at, answer)) = newest
            && now.saturating_duration_since(at) < USED_FOR
        {
            return answer;
        }
        let health = find();
        self.set(now, &health);
        of(&health)
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Instant, Answer)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_policy::health::Trouble;

    use super::*;

    #[test]
    fn an_answer_has_the_level_and_of_a_critical_trouble_cause_and_cure_in_a_line() {
        let text = |status: StatusCode, body: &str| (status, body.to_owned());
        assert_eq!(of(&Health::default()), text(StatusCode::OK, "ok\n"));
        let missed = Trouble::warning("target_missed", "pool main", "p99 is 9 ms", "wait");
        assert_eq!(of(&Health::of(vec![missed.clone()])), text(StatusCode::OK, "warning\n"));
        let full = Trouble::new(Level::Critical, "io_errors", "volume db", "12 requests\nfailed", "make room");
        let line = "critical: volume db: 12 requests failed; make room\n";
        assert_eq!(of(&Health::of(vec![missed, full])), text(StatusCode::SERVICE_UNAVAILABLE, line));
        let expired = Trouble::new(Level::Critical, "certificate", "", "the certificate has expired", "");
        let line = "critical: the certificate has expired\n";
        assert_eq!(of(&Health::of(vec![expired])), text(StatusCode::SERVICE_UNAVAILABLE, line));
    }

    #[test]
    fn health_is_found_out_once_a_second_at_most() {
        let (newest, begun) = (Newest::default(), Instant::now());
        let mut found = 0;
        for ms in 0..3_000 {
            let find = || {
                found += 1;
                Health::default()
            };
            assert_eq!(newest.answer(begun + Duration::from_millis(ms), find).0, StatusCode::OK);
        }
        assert_eq!(found, 3);
        // A health that was found out for another answer is used, too.
        let now = begun + Duration::from_secs(10);
        let stalled = Trouble::new(Level::Critical, "stalled", "pool main", "a read hangs", "");
        newest.set(now, &Health::of(vec![stalled]));
        let at = |ms| newest.answer(now + Duration::from_millis(ms), Health::default).0;
        assert_eq!([at(999), at(1_000)], [StatusCode::SERVICE_UNAVAILABLE, StatusCode::OK]);
    }
}
