//! Measures how busy a worker is, also if it gets only part of a processor.

use std::fs::File;
use std::os::unix::fs::FileExt;

use evenkeel_control::placement::Usage;
use evenkeel_control::{Duration, Instant};

use super::meter::Rounds;
use crate::clock;

/// The kernel's counters of a thread since its start, in nanoseconds; or their increase in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counted {
    /// Time for which the thread ran on a processor.
    cpu: u64,
    /// Time for which the thread was ready to run, and waited for a processor or for its CPU quota.
    delayed: u64,
}

/// Busy share of a worker, measured between two reports to the placement of connections.
///
/// CPU time alone would show a worker as idle that gets a fifth of a core and uses all of it. So the worker counts as busy
/// whenever it does *not* wait for events.
#[derive(Debug, Default)]
pub(super) struct Occupation {
    /// The thread's `schedstat` file, from which waits for a processor are read; `None` if the kernel has none.
    schedstat: Option<File>,
    since: Instant,
    before: Counted,
    /// CPU time that earlier workers with the same index have used, in nanoseconds.
    earlier_ns: u64,
}

impl Occupation {
    /// The state for a new worker; `earlier_ns`: CPU time of earlier workers with the same index, in nanoseconds.
    pub(super) fn after(earlier_ns: u64) -> Self {
        Self { earlier_ns, ..Self::default() }
    }

    /// Begins to measure the calling thread, which must be the worker's.
    pub(super) fn begin(&mut self) {
        self.schedstat = File::open("/proc/thread-self/schedstat").ok();
        self.since = clock::now();
        self.before = self.counted();
    }

    /// CPU time of this worker and of earlier workers with the same index, in nanoseconds, as of the newest call of
    /// [`Self::take`].
    pub(super) const fn cpu_ns(&self) -> u64 {
        self.earlier_ns + self.before.cpu
    }

    /// Busy share of the worker since the previous call, or since [`Self::begin`]. `rounds`: sums over the rounds in that
    /// time.
    pub(super) fn take(&mut self, now: Instant, rounds: Rounds) -> Usage {
        let counted = self.counted();
        let wall = now.since(std::mem::replace(&mut self.since, now));
        let before = std::mem::replace(&mut self.before, counted);
        let used = Counted {
            cpu: counted.cpu.saturating_sub(before.cpu),
            delayed: counted.delayed.saturating_sub(before.delayed),
        };
        usage(wall, used, rounds)
    }

    fn counted(&self) -> Counted {
        let mut text = [0; 64];
        let read = self.schedstat.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or(0);
        Counted { cpu: clock::thread_cpu_ns(), delayed: delayed(&text[..read]).unwrap_or(0) }
    }
}

/// The second number of a thread's `schedstat`: nanoseconds for which the thread was ready to run and had no processor. The
/// first is time on a processor as of the newest timer tick, the third the number of times that the thread was run.
fn delayed(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn usage(wall: Duration, used: Counted, rounds: Rounds) -> Usage {
    let wall = wall.as_nanos().max(1);
    // A wait lasts until the worker runs again, which a quota puts off. The kernel knows for how long it did not want to
    // run; looking for events it did, for nothing.
    let slept = wall.saturating_sub(used.cpu).saturating_sub(used.delayed);
    let idle = (slept + rounds.looked_ns).min(rounds.waited_ns).min(wall);
    let requests = rounds.requests.max(1) as f64;
    let (together, each) = (rounds.squares as f64 / requests, used.cpu as f64 / requests);
    let backlog = if rounds.requests > 0 { together * each } else { 0.0 };
    let nanos = |ns: f64| Duration::from_nanos(ns as u64);
    Usage { busy: 1.0 - idle as f64 / wall as f64, backlog: nanos(backlog), each: nanos(each) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MS: u64 = 1_000_000;

    fn rounds(requests: u64, squares: u64, waited_ms: u64, looked_ms: u64) -> Rounds {
        Rounds { requests, squares, waited_ns: waited_ms * MS, looked_ns: looked_ms * MS }
    }

    fn busy(cpu_ms: u64, delayed_ms: u64, waited_ms: u64, looked_ms: u64) -> f64 {
        let used = Counted { cpu: cpu_ms * MS, delayed: delayed_ms * MS };
        usage(SECOND, used, rounds(1, 1, waited_ms, looked_ms)).busy
    }

    fn is_near(left: f64, right: f64) -> bool {
        (left - right).abs() < 1e-6
    }

    #[test]
    fn what_counts_is_the_time_without_something_to_do() {
        assert!(is_near(busy(300, 0, 700, 0), 0.3), "a core of its own");
        assert!(is_near(busy(200, 800, 0, 0), 1.0), "a fifth of a core, and no wait");
        assert!(is_near(busy(200, 800, 790, 0), 1.0), "each wait was as long as the quota held it back");
        assert!(is_near(busy(100, 100, 850, 0), 0.2), "half of what it may use");
        assert!(is_near(busy(900, 0, 700, 600), 0.3), "most of the CPU time was looking for events");
        assert!(is_near(busy(300, 0, 600, 0), 0.4), "a tenth of the time a sync or a page fault held it up");
    }

    #[test]
    fn a_backlog_is_what_a_request_finds_itself_among() {
        // Ten rounds of a hundred requests and a thousand of one, at 1 us each.
        let used = Counted { cpu: 2 * MS, delayed: 0 };
        let told = usage(SECOND, used, rounds(2_000, 10 * 100 * 100 + 1_000, 998, 0));
        assert_eq!(told.backlog, Duration::from_nanos(50_500));
        assert_eq!(usage(SECOND, used, rounds(0, 0, 998, 0)).backlog, Duration::ZERO);
    }

    #[test]
    fn the_kernel_counts_this_thread() {
        assert_eq!(delayed(b"11 22 33\n"), Some(22));
        assert_eq!(delayed(b""), None);
        assert_eq!(delayed(b"11"), None);
        let mut occupation = Occupation::after(7);
        assert_eq!(occupation.cpu_ns(), 7);
        occupation.begin();
        let begun = occupation.cpu_ns();
        let end = clock::now() + Duration::from_millis(20);
        while clock::now() < end {
            std::hint::spin_loop();
        }
        // It never waited for events.
        let told = occupation.take(clock::now(), Rounds::default());
        assert!(is_near(told.busy, 1.0), "{told:?}");
        assert!(occupation.cpu_ns() > begun);
    }
}
