//! The storage behind the target: servers side by side, one queue, first come, first served.

use alloc::collections::VecDeque;

use evenkeel_control::rng::SplitMix64;
use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};

use super::LinkParams;

/// Requests in service and waiting; numbers are the caller's.
#[derive(Debug)]
pub(super) struct Array {
    waiting: VecDeque<(u64, Kind)>,
    busy: u32,
}

impl Array {
    pub(super) fn new() -> Self {
        Self { waiting: VecDeque::new(), busy: 0 }
    }

    /// Takes a request; if it is served at once, answers when that ends.
    pub(super) fn submit(
        &mut self,
        now: Instant,
        request: u64,
        kind: Kind,
        params: &LinkParams,
        rng: &mut SplitMix64,
    ) -> Option<Instant> {
        if self.busy < params.servers {
            self.busy += 1;
            return Some(now + service(kind, params, rng));
        }
        self.waiting.push_back((request, kind));
        None
    }

    /// A service ended; answers which request is served next, and until when.
    pub(super) fn end(&mut self, now: Instant, params: &LinkParams, rng: &mut SplitMix64) -> Option<(u64, Instant)> {
        let Some((request, kind)) = self.waiting.pop_front() else {
            self.busy -= 1;
            return None;
        };
        Some((request, now + service(kind, params, rng)))
    }
}

fn service(kind: Kind, params: &LinkParams, rng: &mut SplitMix64) -> Duration {
    let nominal = if kind == Kind::Read { params.read_time } else { params.write_time };
    params.jitter.apply(nominal, rng)
}
