//! Estimates the bandwidth of the slow device, only from intervals in which it was busy for at least half of the time.

use alloc::vec::Vec;

use super::config::LONGEST;
use super::{Counters, PATIENCE, REMEMBERED};
use crate::time::{Duration, Instant};

/// The slow device's counters since an arbitrary beginning (`/proc/diskstats`); every field only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowDevice {
    /// Bytes and requests of all users of the device together.
    pub counters: Counters,
    /// Time during which the device had at least one request in flight (`io_ticks`).
    pub busy: Duration,
}

/// The assumed bandwidth of the slow device while it is busy.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bandwidth {
    /// Bytes per second; `None` before the device was seen busy.
    pub bytes_per_s: Option<f64>,
    /// True if decisions may rest on the figure: the operator set it, or the device was seen busy in at least 5 intervals, the
    /// latest of them at most 5 minutes ago.
    pub trusted: bool,
}

#[derive(Debug)]
pub(super) struct Estimator {
    fixed: Option<f64>,
    seen: Option<(Instant, SlowDevice)>,
    /// Bytes per busy second in the latest [`REMEMBERED`] busy intervals; a ring buffer, overwritten at `next`.
    samples: Vec<f64>,
    next: usize,
    busy_at: Instant,
}

impl Estimator {
    pub(super) fn new(fixed: Option<u64>) -> Self {
        let fixed = fixed.map(|bytes| bytes as f64);
        Self { fixed, seen: None, samples: Vec::new(), next: 0, busy_at: Instant::ZERO }
    }

    /// Takes the slow device's counters at `now`. Returns, for the time since the previous call, the device's bytes per second
    /// and the part of the time (0 to 1) in which it was busy; `None` at the first call, and if the counters began anew.
    pub(super) fn observe(&mut self, now: Instant, device: SlowDevice) -> Option<(f64, f64)> {
        let (at, before) = self.seen.replace((now, device))?;
        let seconds = now.since(at).as_secs_f64();
        let read = device.counters.read_bytes.checked_sub(before.counters.read_bytes)?;
        let written = device.counters.written_bytes.checked_sub(before.counters.written_bytes)?;
        let busy = device.busy.as_nanos().checked_sub(before.busy.as_nanos())? as f64 / 1e9;
        if seconds <= 0.0 {
            return None;
        }
        let bytes = (read.saturating_add(written)) as f64;
        // While the device is idle for longer than busy, its rate tells what was asked of it, not what it gives.
        if bytes > 0.0 && 2.0 * busy >= seconds {
            // The kernel counts whole ticks: more than the interval is the interval.
            let sample = bytes / busy.min(seconds);
            if self.samples.len() < REMEMBERED {
                self.samples.push(sample);
            } else {
                self.samples[self.next] = sample;
            }
            self.next = (self.next + 1) % REMEMBERED;
            self.busy_at = now;
        }
        Some((bytes / seconds, (busy / seconds).min(1.0)))
    }

    /// The bandwidth that the operator set; otherwise the median over the latest [`REMEMBERED`] busy intervals.
    pub(super) fn bandwidth(&self, now: Instant) -> Bandwidth {
        if self.fixed.is_some() {
            return Bandwidth { bytes_per_s: self.fixed, trusted: true };
        }
        let mut sorted = [0.0; REMEMBERED];
        let sorted = &mut sorted[..self.samples.len()];
        sorted.copy_from_slice(&self.samples);
        sorted.sort_unstable_by(f64::total_cmp);
        // An old estimate is shown but not trusted: caches and wear change devices.
        let lately = now.since(self.busy_at).as_nanos() <= LONGEST.as_nanos() * u64::from(PATIENCE);
        let trusted = sorted.len() >= PATIENCE as usize && lately;
        Bandwidth { bytes_per_s: sorted.get(sorted.len() / 2).copied(), trusted }
    }
}
