//! Judges a run with bursts of writers by the response time target of the reads.

use evenkeel_control::{Duration, Instant};

use super::world::{Outcome, TICK, read_ms, written_mb_per_s};

/// Bar: the largest share of windows above the response time target, in per cent.
pub(super) const ABOVE_BAR: f64 = 1.0;
/// Length of a window, whose mean response time is compared with the target.
const WINDOW: Duration = Duration::from_secs(1);
/// Time after the beginning of a burst from which on windows count as above or below the target; the bar for settling.
const SETTLED_AFTER: Duration = Duration::from_secs(1);
/// A run has settled in a burst when this many windows in a row meet the target.
const SETTLED_WINDOWS: u32 = 3;
/// Windows that begin at most this long after the beginning of a burst count for the overshoot.
const OVERSHOOT_WITHIN: Duration = Duration::from_secs(5);

/// A run's figures, compared with the response time target of the reads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// Number of windows of 1 s, placed end to end from 1 s after the beginning of each burst to its end.
    pub windows: u32,
    /// Number of the `windows` whose mean response time is above the target.
    pub above: u32,
    /// Per burst: seconds from the burst's beginning until three windows in a row meet the target; the burst's length if
    /// none do.
    pub settle_s: Vec<f64>,
    /// Per burst: the largest mean response time over any 1 s that begins in the burst's first 5 s, divided by the target;
    /// infinite without reads.
    pub overshoot_ratio: Vec<f64>,
    /// Mean response time over the second halves of all bursts, divided by the target; infinite without reads.
    pub late_ratio: f64,
    /// Payload written per second from 1 s after the beginning of each burst to its end, in MB/s.
    pub written_mb_per_s: f64,
}

impl Verdict {
    /// Share of windows above the target, in per cent.
    pub fn above_percent(&self) -> f64 {
        100.0 * f64::from(self.above) / f64::from(self.windows.max(1))
    }
}

/// True if the reads in the second from `from` on have a mean latency of at most `target_ms`. The reader never pauses, so that in
/// a second without a completed read one is waiting: it counts as the next sensor interval with one, and misses if none comes.
pub(super) fn meets(outcome: &Outcome, from: Instant, target_ms: f64) -> bool {
    let until = from + WINDOW;
    let next = || outcome.between(until, Instant::FAR_FUTURE).iter().find(|tick| tick.reads > 0);
    let mean = read_ms(outcome.between(from, until)).or_else(|| read_ms(std::slice::from_ref(next()?)));
    mean.is_some_and(|mean| mean <= target_ms)
}

/// Judges a run's `outcome` by the response time target `target_ms`; `bursts` are beginnings and ends of the writers' bursts.
pub fn judge(outcome: &Outcome, bursts: &[(Instant, Instant)], target_ms: f64) -> Verdict {
    let mut verdict = Verdict::default();
    let (mut settled, mut late) = (Vec::new(), Vec::new());
    let meets = |from: Instant| meets(outcome, from, target_ms);
    for &(begin, end) in bursts {
        let mut from = begin + SETTLED_AFTER;
        settled.extend_from_slice(outcome.between(from, end));
        let half = Duration::from_nanos(end.since(begin).as_nanos() / 2);
        late.extend_from_slice(outcome.between(begin + half, end));
        while from + WINDOW <= end {
            verdict.windows += 1;
            verdict.above += u32::from(!meets(from));
            from += WINDOW;
        }
        let all = |from: Instant| (0..u64::from(SETTLED_WINDOWS)).all(|n| meets(from + Duration::from_secs(n)));
        let last = end - Duration::from_secs(u64::from(SETTLED_WINDOWS));
        let first = moments(begin, last).find(|&from| all(from)).unwrap_or(end);
        verdict.settle_s.push(first.since(begin).as_secs_f64());
        let worst = moments(begin, begin + OVERSHOOT_WITHIN)
            .filter_map(|from| read_ms(outcome.between(from, from + WINDOW)))
            .reduce(f64::max)
            .unwrap_or(f64::INFINITY);
        verdict.overshoot_ratio.push(worst / target_ms);
    }
    verdict.late_ratio = read_ms(&late).unwrap_or(f64::INFINITY) / target_ms;
    verdict.written_mb_per_s = written_mb_per_s(&settled);
    verdict
}

/// The ends of sensor intervals from `from` to `until`, both included; `from` must be such an end.
fn moments(from: Instant, until: Instant) -> impl Iterator<Item = Instant> {
    (0..=until.since(from).as_nanos() / TICK.as_nanos()).map(move |n| from + Duration::from_nanos(n * TICK.as_nanos()))
}

#[cfg(test)]
mod tests {
    use super::super::hosts::at;
    use super::super::world::Tick;
    use super::*;

    /// An outcome whose reads take `ms(s)` milliseconds at second `s` of the run, and whose writers write 1 MB/s.
    fn outcome(seconds: u64, ms: impl Fn(f64) -> f64) -> Outcome {
        Outcome { ticks: (0..seconds * 10).map(|n| Tick::usual(n, ms(n as f64 * 0.1), 100_000)).collect() }
    }

    #[test]
    fn a_settling_response_is_judged_by_its_windows() {
        // 30 ms for 2.5 s of the burst, then 8 ms, with one bad second.
        let slow = |s: f64| if s < 12.45 || (20.0..20.95).contains(&s) { 30.0 } else { 8.0 };
        let verdict = judge(&outcome(40, slow), &[(at(10), at(30))], 10.0);
        // Windows from 11 s: that of 11 and that of 12 (half slow) and that of 20.
        assert_eq!((verdict.windows, verdict.above), (19, 3));
        // Nine fast intervals to one slow one is 10.2 ms, so only from 2.5 s on.
        assert!((verdict.settle_s[0] - 2.5).abs() < 0.01, "{verdict:?}");
        assert_eq!(verdict.overshoot_ratio, [3.0]);
        // Ten of the hundred last intervals take 30 ms.
        assert!((verdict.late_ratio - 1.02).abs() < 0.03, "{verdict:?}");
        assert!((verdict.written_mb_per_s - 1.0).abs() < 1e-9);
        assert!((verdict.above_percent() - 100.0 * 3.0 / 19.0).abs() < 1e-9);
    }

    #[test]
    fn a_second_in_which_reads_only_wait_is_above_the_target() {
        // Reads take 8 ms, but none completes from 12 to 15 s, and then one that waited for 3 s.
        let mut outcome = outcome(40, |s| if (14.95..15.05).contains(&s) { 3_000.0 } else { 8.0 });
        for tick in &mut outcome.ticks[120..150] {
            (tick.reads, tick.read_ms) = (0, 0.0);
        }
        let verdict = judge(&outcome, &[(at(10), at(30))], 10.0);
        assert_eq!((verdict.windows, verdict.above), (19, 4), "those of 12 to 14 s, and that of 15 s");
        // None completes to the end.
        for tick in &mut outcome.ticks[150..] {
            (tick.reads, tick.read_ms) = (0, 0.0);
        }
        let verdict = judge(&outcome, &[(at(10), at(30))], 10.0);
        assert_eq!(verdict.late_ratio, f64::INFINITY, "no reads are not fast reads");
        assert_eq!((verdict.windows, verdict.above, verdict.settle_s), (19, 18, vec![20.0]));
        for tick in &mut outcome.ticks[100..120] {
            (tick.reads, tick.read_ms) = (0, 0.0);
        }
        assert_eq!(judge(&outcome, &[(at(10), at(30))], 10.0).overshoot_ratio, [f64::INFINITY]);
    }

    #[test]
    fn what_never_settles_takes_the_whole_burst() {
        let verdict = judge(&outcome(40, |_| 30.0), &[(at(10), at(30))], 10.0);
        assert_eq!((verdict.settle_s[0], verdict.above), (20.0, verdict.windows));
        let good = judge(&outcome(40, |_| 9.0), &[(at(10), at(20)), (at(25), at(35))], 10.0);
        assert_eq!((good.settle_s, good.above, good.windows), (vec![0.0, 0.0], 0, 18));
    }
}
