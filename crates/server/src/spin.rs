//! Decides how long a loop polls for events before it sleeps.

use evenkeel_control::{Duration, Instant};

/// The first polling window after a sleep that polling would have avoided.
const SHORTEST: Duration = Duration::from_micros(10);

/// Duration of one poll from which the thread counts as having lost the processor to another thread; a poll usually takes
/// about 1 us.
const LOST: Duration = Duration::from_micros(20);
/// Longest time that a wake-up adds to a wait.
const WAKING: Duration = Duration::from_micros(50);
/// Duration of one poll from which the loop does not poll for a while: several times what a wake-up would have taken. A
/// thread of another program, which a yield lets run, may keep the processor until the next tick, 4 ms later; a thread that
/// is woken takes the processor from it at once.
const LONG: Duration = Duration::from_micros(200);
/// Time without polling after such a poll, in multiples of its duration: less than half a percent of the requests wait for
/// another program's turn, so that no p99 shows it.
const REST: u64 = 250;
/// Longest time without polling after one poll: a program that was stopped for an hour polls again soon.
const LONGEST_REST: Duration = Duration::from_secs(60);

/// The polling window of a loop: how long the loop looks for events (busy polling) before it sleeps.
///
/// Waking a sleeping processor takes some 5 us, on a virtual machine up to 50 us, and about as much processor time on the
/// waking side; polling a little longer saves both. The window follows past waits as in KVM's halt polling: a wait that
/// polling would have shortened doubles the window, any other halves it. So a loop whose events are rare never polls, nor
/// does a loop that only waits for its own timers.
#[derive(Clone, Copy, Debug)]
pub struct Spin {
    longest: Duration,
    window: Duration,
    /// Instant until which the loop sleeps instead of polling.
    rests_until: Instant,
}

impl Spin {
    /// A window of at most `longest`, which is zero at first; with zero as `longest` the loop never polls.
    pub const fn new(longest: Duration) -> Self {
        Self { longest, window: Duration::ZERO, rests_until: Instant::ZERO }
    }

    /// Time for which to poll before the next sleep, which begins at `now`; zero while waits are long, and for a while after
    /// another program kept the processor for long.
    #[inline]
    pub fn window(&self, now: Instant) -> Duration {
        if now < self.rests_until { Duration::ZERO } else { self.window }
    }

    /// True if the loop has to stop polling, because the latest poll, which ended at `now`, took so long (`took`) that another
    /// thread must have used the processor. Further polling would use up the thread's share of the processor, which is needed
    /// when an event comes.
    #[inline]
    pub fn is_crowded_out(&mut self, took: Duration, now: Instant) -> bool {
        let lost = took > LOST;
        if lost {
            self.window = Duration::ZERO;
        }
        if took > LONG {
            let rest = Duration::from_nanos(took.as_nanos().saturating_mul(REST));
            self.rests_until = now + rest.min(LONGEST_REST);
        }
        lost
    }

    /// Adapts the window after a wait in which the loop slept. `waited`: duration of the whole wait, polling included;
    /// `by_event`: true if an event ended the wait, false if a timer did.
    pub fn slept(&mut self, waited: Duration, by_event: bool) {
        let saved = by_event && waited <= self.longest + WAKING;
        self.window = if saved {
            (self.window + self.window).max(SHORTEST).min(self.longest)
        } else if self.window > SHORTEST {
            Duration::from_nanos(self.window.as_nanos() / 2)
        } else {
            Duration::ZERO
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    #[test]
    fn short_waits_open_the_window_and_long_ones_close_it() {
        let mut spin = Spin::new(us(50));
        assert_eq!(spin.window(Instant::ZERO), Duration::ZERO, "nothing is known yet");
        let mut after = |waited, by_event, times: usize| -> Vec<u64> {
            let window = |_| {
                spin.slept(waited, by_event);
                spin.window(Instant::ZERO).as_nanos()
            };
            (0..times).map(window).collect()
        };
        assert_eq!(after(us(60), true, 5), [10_000, 20_000, 40_000, 50_000, 50_000]);
        assert_eq!(after(us(101), true, 5), [25_000, 12_500, 6_250, 0, 0]);
        after(us(60), true, 5);
        assert_eq!(after(us(60), false, 5), [25_000, 12_500, 6_250, 0, 0], "a time that was known");
    }

    #[test]
    fn a_loop_that_loses_the_processor_stops_looking() {
        let mut spin = Spin::new(us(50));
        spin.slept(us(60), true);
        let at = |micros| Instant::ZERO + us(micros);
        assert!(!spin.is_crowded_out(us(1), at(61)));
        assert_eq!(spin.window(at(61)), SHORTEST);
        assert!(spin.is_crowded_out(us(100), at(161)));
        assert_eq!(spin.window(at(161)), Duration::ZERO);
        spin.slept(us(60), true);
        assert_eq!(spin.window(at(221)), SHORTEST, "after a short turn of another thread");
    }

    /// Checks that a loop from which another program took the processor for a tick sleeps for a second, and polls again
    /// afterwards.
    #[test]
    fn a_long_turn_of_another_program_ends_polling_for_a_while() {
        let mut spin = Spin::new(us(50));
        spin.slept(us(60), true);
        let now = Instant::ZERO + us(10_000);
        assert!(spin.is_crowded_out(us(4_000), now));
        for wait in 0..16_000 {
            spin.slept(us(60), true);
            let at = now + us(60 * wait);
            assert_eq!(spin.window(at), Duration::ZERO, "{at:?}");
        }
        assert_eq!(spin.window(now + us(1_000_000)), us(50));
    }

    #[test]
    fn a_program_that_was_stopped_for_an_hour_polls_again_after_a_minute() {
        let mut spin = Spin::new(us(50));
        let hour = us(3_600_000_000);
        let now = Instant::ZERO + hour;
        assert!(spin.is_crowded_out(hour, now));
        spin.slept(us(60), true);
        assert_eq!(spin.window(now + us(59_000_000)), Duration::ZERO);
        assert_eq!(spin.window(now + LONGEST_REST), SHORTEST);
    }

    #[test]
    fn zero_never_looks() {
        let mut spin = Spin::new(Duration::ZERO);
        spin.slept(Duration::ZERO, true);
        assert_eq!(spin.window(Instant::ZERO), Duration::ZERO);
    }

    /// Runs a loop with the waits `waits` (duration, and true if an event ends the wait), a thousand times over. Returns the
    /// fraction of time spent polling, and the fraction of events for which the loop did not sleep.
    fn run(longest: Duration, waits: &[(Duration, bool)]) -> (f64, f64) {
        const WAKE: Duration = Duration::from_micros(10);
        let mut spin = Spin::new(longest);
        let (mut looked, mut passed, mut events, mut found) = (0, 0, 0, 0);
        for _ in 0..1000 {
            for &(wait, by_event) in waits {
                let window = spin.window(Instant::ZERO).min(wait);
                looked += window.as_nanos();
                passed += wait.as_nanos();
                events += u32::from(by_event);
                if by_event && wait <= window {
                    found += 1;
                } else {
                    spin.slept(wait + WAKE, by_event);
                    passed += WAKE.as_nanos();
                }
            }
        }
        (looked as f64 / passed as f64, f64::from(found) / f64::from(events.max(1)))
    }

    #[test]
    fn a_busy_loop_hardly_sleeps_and_an_idle_one_hardly_looks() {
        let longest = us(200);
        let (_, found) = run(longest, &[(us(15), true), (us(40), true), (us(190), true)]);
        assert!(found > 0.99, "{found} of the events were found by looking");
        for (what, waits) in [
            ("idle, with its own timer once a second", vec![(us(1_000_000), false)]),
            ("an event now and then", vec![(us(3_000), true)]),
            ("events a little too far apart", vec![(us(300), true)]),
            ("5,000 requests a second by a limit", vec![(us(20), true), (us(180), false)]),
            ("a burst of close events once in 100 ms", [vec![(us(10), true); 20], vec![(us(100_000), true)]].concat()),
        ] {
            let (looked, _) = run(longest, &waits);
            assert!(looked <= 0.05, "{what}: {:.1} % of the time is spent looking", looked * 100.0);
        }
    }
}
