//! Random events for admission control, in any order, for property tests.

use evenkeel_control::admission::{Admission, Config};
use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};
use proptest::prelude::*;

/// An event that an admission controller may see.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// Time advances by `ns` nanoseconds.
    Wait { ns: u64 },
    /// A request of this cost arrives; it is admitted if the budget has room for it.
    Arrive { cost: u64 },
    /// An admitted request completes: number `pick` modulo their count, with this latency and `bytes` of payload.
    Complete { pick: usize, latency_ns: u64, bytes: u64 },
    /// An admitted request is cancelled: number `pick` modulo their count.
    Cancel { pick: usize },
    /// The caller calls `tick`.
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

/// An admission controller and a caller that remembers the admitted requests.
pub(crate) struct Run {
    pub(crate) admission: Admission,
    pub(crate) now: Instant,
    /// Cost of each request that is admitted and neither completed nor cancelled.
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
