//! How long to look for events before sleeping.

use evenkeel_control::Duration;

/// The first look after a sleep that a look would have saved.
const SHORTEST: Duration = Duration::from_micros(10);

/// Decides how long a loop looks for events (busy polling) before it sleeps.
///
/// Waking a sleeping processor takes some 5 us, on a virtual machine up to 50 us, and about as much processor
/// time on the waking side; looking a moment longer saves both. Learns from past waits as KVM's halt polling does:
/// a wait that looking would have saved doubles the window, a longer one halves it. A loop whose events are rare
/// therefore never looks.
#[derive(Clone, Copy, Debug)]
pub struct Spin {
    longest: Duration,
    window: Duration,
}

impl Spin {
    /// Looks for at most `longest`; zero never looks.
    pub const fn new(longest: Duration) -> Self {
        Self { longest, window: Duration::ZERO }
    }

    /// How long to look now; zero while waits are long.
    #[inline]
    pub const fn window(&self) -> Duration {
        self.window
    }

    /// Looking, if at all, was in vain; the whole wait took so long.
    pub fn slept(&mut self, waited: Duration) {
        // Twice: what was waited includes the waking that looking saves.
        let saved = waited <= self.longest + self.longest;
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

    #[test]
    fn short_waits_open_the_window_and_long_ones_close_it() {
        let (short, long) = (Duration::from_micros(60), Duration::from_micros(101));
        let mut spin = Spin::new(Duration::from_micros(50));
        assert_eq!(spin.window(), Duration::ZERO, "nothing is known yet");
        let mut after = |waited, times: usize| -> Vec<u64> {
            let window = |_| {
                spin.slept(waited);
                spin.window().as_nanos()
            };
            (0..times).map(window).collect()
        };
        assert_eq!(after(short, 5), [10_000, 20_000, 40_000, 50_000, 50_000]);
        assert_eq!(after(long, 5), [25_000, 12_500, 6_250, 0, 0]);
    }

    #[test]
    fn zero_never_looks() {
        let mut spin = Spin::new(Duration::ZERO);
        spin.slept(Duration::ZERO);
        assert_eq!(spin.window(), Duration::ZERO);
    }
}
