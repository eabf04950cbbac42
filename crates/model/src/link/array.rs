//! The storage behind the target: several servers with one queue, first come, first served.

use alloc::collections::VecDeque;

use evenkeel_control::rng::SplitMix64;
use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};

use super::LinkParams;

/// The servers and their queue; the caller numbers the requests.
#[derive(Debug)]
pub(super) struct Array {
    waiting: VecDeque<(u64, Kind)>,
    /// Number of servers that serve a request now.
    busy: u32,
}

impl Array {
    pub(super) fn new() -> Self {
        Self { waiting: VecDeque::new(), busy: 0 }
    }

    /// Takes a request. Returns the end of its service if a server is free; otherwise queues it and returns `None`.
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

    /// Ends the service of a request. Returns the queued request that the server serves next, with the end of its service; `None`
    /// if no request is queued.
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
