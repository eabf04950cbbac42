//! Detects whether delays of packets cause TCP retransmits, and if so limits the delays.
//!
//! TCP takes a segment that waits too long for lost. The kernel counts retransmits for all connections together
//! ([`crate::sensor::retransmits`]). So times in which a client is throttled are compared with times in which no client is: a
//! number of retransmits far above the usual share shortens the longest delay. If a quarter of the delay brings as many
//! retransmits, they have another cause (a lossy path, or a client that drops packets that it receives): from then on this
//! share counts as usual, and the longest delay is as before.

use evenkeel_control::{Duration, Instant};

use crate::sensor::retransmits::Segments;

/// Length of the windows of time whose retransmits are compared.
const WINDOW: Duration = Duration::from_secs(1);
/// Threshold of the comparison, as the negative natural logarithm of a probability: by Chernoff's bound a Poisson count
/// exceeds its mean this far with a probability below e^-14, in windows of 1 s less than once in ten days.
const SURPRISE: f64 = 14.0;
/// Smallest number of retransmits that is expected in a window: a path without losses until now may begin to lose segments.
const LEAST_EXPECTED: f64 = 1.0;
/// Factor by which a new window fades older ones, so that the usual share of retransmits is an average over some minutes.
const FORGETTING: f64 = 0.99;
/// Factor by which the longest delay is multiplied when delays cause retransmits.
const SHORTEN: f64 = 0.7;
/// Factor by which the longest delay grows after each [`QUIET`] time.
const GROW: f64 = 1.1;
/// Time without a rise of retransmits after which the longest delay grows by [`GROW`].
const QUIET: Duration = Duration::from_secs(60);

/// Retransmits with and without throttled clients, and the limit on delays that follows from comparing them.
#[derive(Debug, Default)]
pub(super) struct Resent {
    window: Option<(Instant, Segments)>,
    /// Longest delay in force in the current window so far.
    held: Duration,
    /// Fading sums, over windows in which no client was throttled, of segments sent and of segments retransmitted.
    usual: (f64, f64),
    limit: Option<Duration>,
    changed: Instant,
    /// Figures at the first shortening since the limit last grew or was lifted: share of segments retransmitted, longest
    /// delay in force, and the limit before.
    suspected: Option<(f64, Duration, Option<Duration>)>,
    /// Figures of the window after which the limit was last shortened: segments retransmitted, number expected, and longest
    /// delay in force.
    seen: (u64, f64, Duration),
}

impl Resent {
    /// The longest delay that is allowed because of retransmits; `None`: as configured.
    pub(super) fn limit(&self) -> Option<Duration> {
        self.limit
    }

    /// The reason for the limit on delays, as a sentence; `None` without a limit.
    pub(super) fn because(&self) -> Option<String> {
        let limit = self.limit?;
        let (resent, expected, delay) = self.seen;
        Some(format!(
            "{resent} TCP segments were sent again within 1 s ({expected:.1} segments are usual) while clients were \
             delayed by up to {:.1} ms: the agent delays by at most {:.1} ms now, and by more after each minute \
             without such a rise",
            delay.as_millis_f64(),
            limit.as_millis_f64()
        ))
    }

    /// Takes in the totals of segments since boot, read at `now`. `held`: the longest delay in force since the previous call;
    /// `most`: the configured longest delay; `step`: the shortest delay, below which the limit does not go. True if the limit
    /// has changed.
    pub(super) fn observe(
        &mut self,
        now: Instant,
        total: Segments,
        held: Duration,
        most: Duration,
        step: Duration,
    ) -> bool {
        self.held = self.held.max(held);
        let Some((since, before)) = self.window else {
            self.window = Some((now, total));
            return false;
        };
        if now.since(since) < WINDOW {
            return false;
        }
        let held = std::mem::replace(&mut self.held, Duration::ZERO);
        self.window = Some((now, total));
        let moved = total.sent.checked_sub(before.sent).zip(total.retransmitted.checked_sub(before.retransmitted));
        // Totals that went back were reset.
        let Some((sent, resent)) = moved else { return false };
        let (usually_sent, usually_resent) = self.usual;
        if held == Duration::ZERO {
            self.usual = (FORGETTING * usually_sent + sent as f64, FORGETTING * usually_resent + resent as f64);
            return self.grow(now, most);
        }
        let share = usually_resent / usually_sent.max(1.0);
        let expected = (share * sent as f64).max(LEAST_EXPECTED);
        let count = resent as f64;
        if count > expected && count * (count / expected).ln() - count + expected > SURPRISE {
            let is = count / (sent as f64).max(1.0);
            let (was, from, limit) = *self.suspected.get_or_insert((is, held, self.limit));
            self.changed = now;
            if held.as_nanos() <= from.as_nanos() / 4 && is > SHORTEN * was {
                let sent = usually_sent.max(sent as f64).max(1.0);
                (self.usual, self.limit, self.suspected) = ((sent, is * sent), limit, None);
                return true;
            }
            let shorter = Duration::from_nanos((held.as_nanos() as f64 * SHORTEN) as u64).max(step);
            self.limit = Some(self.limit.map_or(shorter, |limit| limit.min(shorter)));
            self.seen = (resent, expected, held);
            return true;
        }
        self.grow(now, most)
    }

    fn grow(&mut self, now: Instant, most: Duration) -> bool {
        let Some(limit) = self.limit.filter(|_| now.since(self.changed) >= QUIET) else { return false };
        let longer = Duration::from_nanos((limit.as_nanos() as f64 * GROW) as u64);
        self.limit = (longer < most).then_some(longer);
        (self.changed, self.suspected) = (now, None);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_control::rng::SplitMix64;

    const MOST: Duration = Duration::from_millis(20);
    const STEP: Duration = Duration::from_micros(500);

    struct Path {
        resent: Resent,
        total: Segments,
        now: Instant,
        rng: SplitMix64,
    }

    impl Path {
        fn new(seed: u64) -> Self {
            Self {
                resent: Resent::default(),
                total: Segments::default(),
                now: Instant::ZERO,
                rng: SplitMix64::new(seed),
            }
        }

        /// Runs windows of 10,000 segments, each of which is retransmitted with probability `share`, while the longest delay
        /// is `held`; returns how often the limit changed.
        fn run(&mut self, windows: usize, share: f64, held: Duration) -> usize {
            let changed = (0..windows).filter(|_| {
                self.now += WINDOW;
                self.total.sent += 10_000;
                self.total.retransmitted += (0..10_000).filter(|_| self.rng.next_f64() < share).count() as u64;
                self.resent.observe(self.now, self.total, held, MOST, STEP)
            });
            changed.count()
        }
    }

    #[test]
    fn more_than_usual_shortens_the_longest_delay_until_it_stops() {
        let mut path = Path::new(1);
        path.run(60, 0.0005, Duration::ZERO);
        assert_eq!(path.run(1, 0.01, MOST), 1);
        let limit = path.resent.limit().unwrap();
        assert_eq!(limit, Duration::from_millis(14));
        assert!(path.resent.because().unwrap().contains("14.0 ms"));
        assert_eq!(path.run(59, 0.0005, limit), 0, "it stays for a minute");
        assert_eq!(path.run(1, 0.0005, limit), 1);
        assert_eq!(path.resent.limit(), Some(Duration::from_micros(15_400)));
        path.run(60 * 4, 0.0005, limit);
        assert_eq!(path.resent.limit(), None, "it has grown back");
    }

    #[test]
    fn what_is_usual_is_no_reason() {
        for (seed, share) in [(2, 0.0), (3, 0.0005), (4, 0.01)] {
            let mut path = Path::new(seed);
            path.run(60, share, Duration::ZERO);
            assert_eq!(path.run(500, share, MOST), 0, "{share}");
        }
    }

    #[test]
    fn what_a_quarter_of_the_delay_does_not_change_is_not_its_effect() {
        // A client drops ten segments a second from now on, or the path has lost them since before the agent began.
        for (usual, share) in [(0.0, 0.001), (0.0, 0.004), (0.0005, 0.004)] {
            let mut path = Path::new(6);
            path.run(if usual > 0.0 { 60 } else { 0 }, usual, Duration::ZERO);
            let mut windows = 0;
            for _ in 0..300 {
                let held = path.resent.limit().unwrap_or(MOST);
                windows += usize::from(held < MOST);
                path.run(1, share, held);
            }
            assert!(windows < 20 && path.resent.limit().is_none(), "{windows} of 300 windows with less for {share}");
        }
    }

    #[test]
    fn what_ends_with_a_shorter_delay_keeps_it_short() {
        let mut path = Path::new(7);
        path.run(60, 0.0005, Duration::ZERO);
        for _ in 0..50 {
            let held = path.resent.limit().unwrap_or(MOST);
            path.run(1, if held > Duration::from_millis(8) { 0.01 } else { 0.0005 }, held);
        }
        assert!(path.resent.limit().is_some_and(|limit| limit <= Duration::from_millis(8)));
    }

    #[test]
    fn totals_that_go_back_say_nothing() {
        let mut path = Path::new(5);
        path.run(60, 0.01, Duration::ZERO);
        path.total = Segments::default();
        assert_eq!(path.run(1, 0.0, MOST), 0);
    }
}
