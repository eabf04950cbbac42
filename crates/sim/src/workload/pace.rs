//! The instants at which a client's generated requests are sent.

use std::collections::VecDeque;

use evenkeel_control::rng::SplitMix64;
use evenkeel_control::{Duration, Instant};

use super::spec::{Arrivals, OnOff, Pace};

/// The instant or event at which the next request is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// The request is due now.
    Now,
    /// No request is due before this instant.
    At(Instant),
    /// No request is due before one of the client's requests completes.
    Completion,
}

/// A running [`Pace`].
#[derive(Debug)]
pub(super) struct Pacer {
    entered: Instant,
    on_off: Option<OnOff>,
    state: State,
}

#[derive(Debug)]
enum State {
    Closed {
        queue_depth: u32,
        think_time: Duration,
        /// Instants at which the think times of completed requests end, in order.
        thinking: VecDeque<Instant>,
    },
    Open {
        mean_gap_ns: f64,
        arrivals: Arrivals,
        batch: u32,
        rng: SplitMix64,
        /// Next arrival, in nanoseconds of sending time (pauses left out) since the start. An `f64` is exact up to 100 days.
        next_ns: f64,
        /// Number of requests of the current batch that are still to be sent.
        left: u32,
    },
}

impl Pacer {
    pub(super) fn new(pace: &Pace, seed: u64) -> Self {
        let (on_off, state) = match *pace {
            Pace::Closed { queue_depth, think_time, on_off } => {
                (on_off, State::Closed { queue_depth, think_time, thinking: VecDeque::new() })
            }
            Pace::Open { rate_per_s, arrivals, batch, on_off } => {
                let batch = batch.max(1);
                // Without a rate nothing ever arrives; more than one batch in a nanosecond cannot be told apart.
                let gap = if rate_per_s > 0.0 { (f64::from(batch) * 1e9 / rate_per_s).max(1.0) } else { f64::INFINITY };
                let rng = SplitMix64::new(seed);
                (on_off, State::Open { mean_gap_ns: gap, arrivals, batch, rng, next_ns: 0.0, left: batch })
            }
        };
        Self { entered: Instant::ZERO, on_off, state }
    }

    /// Starts the pace, or starts it again, at `now`.
    pub(super) fn enter(&mut self, now: Instant) {
        self.entered = now;
        match &mut self.state {
            State::Closed { thinking, .. } => thinking.clear(),
            State::Open { mean_gap_ns, arrivals, batch, rng, next_ns, left } => {
                *left = *batch;
                *next_ns = match arrivals {
                    // The first of evenly spaced arrivals comes at once, if there is one.
                    Arrivals::Constant if mean_gap_ns.is_finite() => 0.0,
                    _ => gap_ns(*mean_gap_ns, *arrivals, rng),
                };
            }
        }
    }

    /// When the next request is due, seen from `now`; `outstanding` is the number of the client's requests in flight.
    pub(super) fn due(&mut self, now: Instant, outstanding: u32) -> Due {
        match &mut self.state {
            State::Closed { queue_depth, thinking, .. } => {
                while thinking.front().is_some_and(|&at| at <= now) {
                    thinking.pop_front();
                }
                if thinking.len() as u64 + u64::from(outstanding) >= u64::from(*queue_depth) {
                    return thinking.front().map_or(Due::Completion, |&at| Due::At(at));
                }
                let on_from = self.on_off.map_or(now, |on_off| on_off.closed(self.entered, now));
                if on_from <= now { Due::Now } else { Due::At(on_from) }
            }
            State::Open { next_ns, .. } => {
                let active = (*next_ns + 0.5) as u64;
                let elapsed = self.on_off.map_or(active, |on_off| on_off.elapsed(active));
                let at = self.entered + Duration::from_nanos(elapsed);
                if at <= now { Due::Now } else { Due::At(at) }
            }
        }
    }

    /// Reports that the client has sent the request that was due.
    pub(super) fn take(&mut self) {
        if let State::Open { mean_gap_ns, arrivals, batch, rng, next_ns, left } = &mut self.state {
            *left -= 1;
            if *left == 0 {
                *left = *batch;
                *next_ns += gap_ns(*mean_gap_ns, *arrivals, rng);
            }
        }
    }

    /// Reports that a request has completed.
    pub(super) fn complete(&mut self, now: Instant) {
        if let State::Closed { think_time, thinking, .. } = &mut self.state
            && *think_time > Duration::ZERO
        {
            thinking.push_back(now + *think_time);
        }
    }
}

impl OnOff {
    fn period_ns(self) -> u64 {
        self.on.as_nanos().saturating_add(self.off.as_nanos()).max(1)
    }

    /// `now` if it lies in a time of sending, otherwise the start of the next one. Times of sending and pauses alternate from
    /// the instant `entered` on, beginning with sending.
    fn closed(self, entered: Instant, now: Instant) -> Instant {
        let since = now.since(entered).as_nanos();
        let period = self.period_ns();
        if since % period < self.on.as_nanos() {
            return now;
        }
        entered + Duration::from_nanos((since / period).saturating_add(1).saturating_mul(period))
    }

    /// Nanoseconds from the start, pauses included, until `active` nanoseconds of sending time have passed.
    fn elapsed(self, active: u64) -> u64 {
        let on = self.on.as_nanos().max(1);
        (active / on).saturating_mul(self.period_ns()).saturating_add(active % on)
    }
}

fn gap_ns(mean_ns: f64, arrivals: Arrivals, rng: &mut SplitMix64) -> f64 {
    match arrivals {
        Arrivals::Constant => mean_ns,
        Arrivals::Poisson => -libm::log(rng.next_f64()) * mean_ns,
    }
}
