//! Estimates the cost of the requests that have reached an OSD's device.
//!
//! BlueStore returns cost to its throttle for a whole batch of commits at once, a good part of the budget each time: over the
//! tenth of a second that a comparison may take, the returned cost scatters by 5 to 30 %, and more with a larger budget. The
//! number of requests that have reached the device is counted one by one and scatters by 2 to 3 %, but says nothing of sizes.
//! Requests reach the device about in the order in which they were admitted, and admitted requests are counted by number and
//! cost. So if n requests have reached the device, their cost is estimated as the total cost of the first n requests that
//! were admitted.

use std::collections::VecDeque;

/// Largest number of samples that are kept. All samples since the admission of the oldest request that has not reached the
/// device are needed.
const MAX_SAMPLES: usize = 4_096;

/// Totals of admitted requests since the OSD was started: their number, and their cost in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Admitted {
    requests: u64,
    cost: u64,
}

/// Totals of admitted requests at past samples, from the newest sample that does not exceed the number of requests that have
/// reached the device.
#[derive(Clone, Debug, Default)]
pub(super) struct Order {
    samples: VecDeque<Admitted>,
}

impl Order {
    /// Total cost, in bytes, of the first `reached` requests: the number that has reached the device. `requests` and `cost`
    /// are the number and cost of all requests admitted so far. Amortised O(1).
    pub(super) fn cost_reached(&mut self, requests: u64, cost: u64, reached: u64) -> u64 {
        let now = Admitted { requests, cost };
        if self.samples.back().is_none_or(|last| last.requests < requests) {
            if self.samples.len() == MAX_SAMPLES {
                self.samples.pop_front();
            }
            self.samples.push_back(now);
        }
        while self.samples.get(1).is_some_and(|next| next.requests <= reached) {
            self.samples.pop_front();
        }
        let first = self.samples.front().copied().unwrap_or(now);
        match self.samples.get(1) {
            Some(next) if reached >= first.requests => {
                let part = (reached - first.requests) as f64 / (next.requests - first.requests) as f64;
                first.cost + ((next.cost - first.cost) as f64 * part) as u64
            }
            // Counted a moment later than what was admitted.
            _ if reached >= first.requests => first.cost,
            // Admitted before this began: requests of the mean cost so far.
            _ => (first.cost as f64 * reached as f64 / first.requests as f64) as u64,
        }
    }

    /// Forgets all samples, because the OSD's counters began anew.
    pub(super) fn forget(&mut self) {
        self.samples.clear();
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_control::rng::SplitMix64;

    use super::*;

    #[test]
    fn the_cost_of_each_request_is_reported_when_it_reaches_the_device() {
        let mut order = Order::default();
        // 10 of 100 admitted before, of which 4 have reached it.
        assert_eq!(order.cost_reached(10, 1_000, 4), 400);
        assert_eq!(order.cost_reached(20, 6_000, 10), 1_000);
        assert_eq!(order.cost_reached(30, 7_000, 15), 3_500);
        assert_eq!(order.cost_reached(30, 7_000, 25), 6_500);
        assert_eq!(order.cost_reached(30, 7_000, 30), 7_000);
        // One more than was known to be admitted.
        assert_eq!(order.cost_reached(30, 7_000, 31), 7_000);
        assert_eq!(order.cost_reached(32, 7_200, 32), 7_200);
        order.forget();
        assert_eq!(order.cost_reached(2, 20, 1), 10);
    }

    #[test]
    fn it_never_falls_and_ends_where_everything_was_admitted() {
        for seed in 0..50 {
            let mut rng = SplitMix64::new(seed);
            let (mut order, mut requests, mut cost, mut reached, mut before) = (Order::default(), 1, 4_096, 0, 0);
            for _ in 0..10_000 {
                let admitted = rng.next_below(20);
                (requests, cost) = (requests + admitted, cost + admitted * (4_096 + rng.next_below(1 << 20)));
                reached += rng.next_below(requests - reached + 1);
                let now = order.cost_reached(requests, cost, reached);
                assert!((before..=cost).contains(&now), "seed {seed}: {before} {now} {cost}");
                before = now;
            }
            assert_eq!(order.cost_reached(requests, cost, requests), cost, "seed {seed}");
        }
    }
}
