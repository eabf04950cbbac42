//! Control periods: a decision is made at the end of each.

use evenkeel_control::{Duration, Instant};

/// The moment at which the current period ends; `None` before the first call. Periods that were missed are not made up for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Due(Option<Instant>);

impl Due {
    /// True if the current period is over at `now`; if so, the next period begins. The first period ends with the first call.
    pub fn is_over(&mut self, now: Instant, period: Duration) -> bool {
        let due = *self.0.get_or_insert(now);
        if now < due {
            return false;
        }
        self.0 = Some(if due + period > now { due + period } else { now + period });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_kept_and_missed_ones_are_not_made_up_for() {
        let mut due = Due::default();
        let ms = |ms| Instant::ZERO + Duration::from_millis(ms);
        let calls = [0, 100, 900, 1_000, 1_100, 4_500, 4_600, 5_400, 5_600];
        let over: Vec<u64> = calls.into_iter().filter(|&now| due.is_over(ms(now), Duration::from_secs(1))).collect();
        assert_eq!(over, [0, 1_000, 4_500, 5_600]);
    }
}
