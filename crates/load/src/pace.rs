//! The instants at which requests are due: as soon as the queue depth allows (closed loop), or at a rate that the server does not
//! influence (open loop).

use evenkeel_control::rng::SplitMix64;

use crate::job::{Arrivals, Burst};

/// The answer to when the next request of a connection is due. Times are nanoseconds since the start of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// The request is due now. It was due at this time, from which its latency counts.
    Now(u64),
    /// No request is due before this time.
    At(u64),
}

/// The arrival process of one connection's requests.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    burst: Option<Burst>,
    open: Option<Open>,
}

/// Arrivals at a fixed mean rate, independent of the server's answers.
#[derive(Clone, Debug)]
struct Open {
    mean_gap_ns: f64,
    arrivals: Arrivals,
    rng: SplitMix64,
    /// Next arrival, in nanoseconds of sending time (pauses of the bursts left out). An `f64` is exact up to
    /// 100 days.
    next: f64,
}

impl Pace {
    /// The pace of a connection: `rate_per_s` requests per second, or `None` for a closed loop. `phase` in `0.0..1.0`
    /// shifts constant arrivals, so that several connections do not send at once.
    pub(crate) fn new(
        rate_per_s: Option<f64>,
        arrivals: Arrivals,
        burst: Option<Burst>,
        seed: u64,
        phase: f64,
    ) -> Self {
        let open = rate_per_s.map(|rate| {
            let mut open =
                Open { mean_gap_ns: 1e9 / rate, arrivals, rng: SplitMix64::new(seed), next: phase * 1e9 / rate };
            if arrivals == Arrivals::Poisson {
                open.next = open.gap();
            }
            open
        });
        Self { burst, open }
    }

    /// True if time decides when requests are due, so that a timer must be set.
    pub(crate) fn is_timed(&self) -> bool {
        self.open.is_some() || self.burst.is_some()
    }

    /// When the next request is due, seen from the time `now`.
    pub(crate) fn due(&self, now: u64) -> Due {
        let at = match (&self.open, self.burst) {
            (Some(open), None) => open.next as u64,
            (Some(open), Some(burst)) => {
                let active = open.next as u64;
                active / burst.on_ns * burst.period_ns() + active % burst.on_ns
            }
            (None, Some(burst)) => match now % burst.period_ns() {
                within if within < burst.on_ns => now,
                _ => (now / burst.period_ns() + 1) * burst.period_ns(),
            },
            (None, None) => now,
        };
        if at <= now { Due::Now(at) } else { Due::At(at) }
    }

    /// Moves on to the next arrival.
    pub(crate) fn advance(&mut self) {
        if let Some(open) = &mut self.open {
            open.next += open.gap();
        }
    }

    /// Skips the requests that were due by `end` and not sent. Returns their number, which is 0 for a closed loop.
    pub(crate) fn skip_until(&mut self, end: u64) -> u64 {
        let mut skipped = 0;
        while self.open.is_some() && matches!(self.due(end), Due::Now(at) if at < end) {
            self.advance();
            skipped += 1;
        }
        skipped
    }
}

impl Open {
    fn gap(&mut self) -> f64 {
        match self.arrivals {
            Arrivals::Constant => self.mean_gap_ns,
            Arrivals::Poisson => -self.rng.next_f64().ln() * self.mean_gap_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn arrivals(mut pace: Pace, end: u64) -> Vec<u64> {
        let mut times = Vec::new();
        while let Due::Now(at) = pace.due(end) {
            times.push(at);
            pace.advance();
        }
        times
    }

    #[test]
    fn constant_arrivals_keep_their_gap_and_phase() {
        let pace = Pace::new(Some(1000.0), Arrivals::Constant, None, 1, 0.5);
        let times = arrivals(pace, 10_000_000);
        assert_eq!(times, (0..10).map(|i| 500_000 + i * 1_000_000).collect::<Vec<_>>());
    }

    #[test]
    fn poisson_arrivals_have_the_rate_and_spread_of_a_poisson_process() {
        let times = arrivals(Pace::new(Some(10_000.0), Arrivals::Poisson, None, 3, 0.0), SECOND);
        let n = times.len() as f64;
        assert!((n - 10_000.0).abs() < 500.0, "{n}");
        let gaps: Vec<f64> = times.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        let variation = variance.sqrt() / mean;
        assert!((0.95..1.05).contains(&variation), "coefficient of variation {variation}, 1 for exponential gaps");
    }

    #[test]
    fn bursts_keep_the_rate_while_on_and_send_nothing_while_off() {
        let burst = Burst { on_ns: 200_000_000, off_ns: 800_000_000 };
        let times = arrivals(Pace::new(Some(1000.0), Arrivals::Constant, Some(burst), 1, 0.0), 3 * SECOND - 1);
        assert_eq!(times.len(), 600);
        assert!(times.iter().all(|at| at % SECOND < 200_000_000));
    }

    #[test]
    fn a_closed_loop_sends_at_once_but_waits_for_the_next_burst() {
        let pace = Pace::new(None, Arrivals::Poisson, None, 1, 0.0);
        assert_eq!(pace.due(77), Due::Now(77));
        let burst = Burst { on_ns: 10, off_ns: 90 };
        let pace = Pace::new(None, Arrivals::Poisson, Some(burst), 1, 0.0);
        assert_eq!(pace.due(109), Due::Now(109));
        assert_eq!(pace.due(110), Due::At(200));
    }

    #[test]
    fn a_late_sender_still_owes_every_arrival_at_its_intended_time() {
        let mut pace = Pace::new(Some(1000.0), Arrivals::Constant, None, 1, 0.0);
        assert_eq!(pace.due(5_500_000), Due::Now(0));
        pace.advance();
        assert_eq!(pace.due(5_500_000), Due::Now(1_000_000));
        assert_eq!(pace.skip_until(5_500_000), 5);
        assert_eq!(pace.due(5_500_000), Due::At(6_000_000));
    }
}
