//! What may happen to admission control, in any order.

use evenkeel_control::admission::{Admission, Config};
use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};
use proptest::prelude::*;

/// What may happen to a controller.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// Time passes.
    Wait { ns: u64 },
    /// A request asks; it enters if it fits.
    Arrive { cost: u64 },
    /// One inside completes (which one, after how long, with how much payload).
    Complete { pick: usize, latency_ns: u64, bytes: u64 },
    /// One inside is cancelled.
    Cancel { pick: usize },
    /// The caller ticks.
    Tick,
}

pub(crate) fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => prop_oneof![Just(0), 0u64..2_000_000, 0u64..200_000_000, 0u64..20_000_000_000, Just(u64::MAX / 1_000)]
            .prop_map(|ns| Event::Wait { ns }),
        4 => prop_oneof![Just(8_096u64), 0u64..100_000, 0u64..100_000_000, Just(u64::MAX / 100_000)]
            .prop_map(|cost| Event::Arrive { cost }),
        4 => (any::<usize>(), prop_oneof![0u64..10_000_000, 0u64..5_000_000_000, Just(0), Just(u64::MAX)], prop_oneof![0u64..1 << 26, Just(0), Just(u64::MAX)])
            .prop_map(|(pick, latency_ns, bytes)| Event::Complete { pick, latency_ns, bytes }),
        1 => any::<usize>().prop_map(|pick| Event::Cancel { pick }),
        2 => Just(Event::Tick),
    ]
}

/// A controller with its caller, who remembers what is inside.
pub(crate) struct Run {
    pub(crate) admission: Admission,
    pub(crate) now: Instant,
    /// What each request inside cost.
    pub(crate) inside: Vec<u64>,
}

impl Run {
    pub(crate) fn new(config: Config, seed: u64) -> Self {
        Self { admission: Admission::new(config, Instant::ZERO, seed), now: Instant::ZERO, inside: Vec::new() }
    }

    pub(crate) fn apply(&mut self, event: Event) {
        match event {
            Event::Wait { ns } => self.now += Duration::from_nanos(ns),
            Event::Arrive { cost } => {
                if self.admission.fits(cost) {
                    self.admission.admit(cost);
                    self.inside.push(cost);
                }
            }
            Event::Complete { pick, latency_ns, bytes } if !self.inside.is_empty() => {
                let cost = self.inside.swap_remove(pick % self.inside.len());
                self.admission.observe(self.now, cost, Kind::Read, bytes, Duration::from_nanos(latency_ns));
            }
            Event::Cancel { pick } if !self.inside.is_empty() => {
                let cost = self.inside.swap_remove(pick % self.inside.len());
                self.admission.forget(cost);
            }
            Event::Complete { .. } | Event::Cancel { .. } => {}
            Event::Tick => {
                self.admission.tick(self.now);
            }
        }
    }
}
