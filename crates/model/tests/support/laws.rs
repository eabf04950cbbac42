//! Laws that hold for every model of a device and every sequence of events.

use std::collections::BTreeMap;

use evenkeel_control::{Duration, Instant};
use evenkeel_model::Io;
use evenkeel_model::ssd::{Ssd, SsdParams};
use evenkeel_model::store::{Store, StoreParams};
use proptest::prelude::*;

/// A device with the methods that the laws call.
pub(crate) trait Driven {
    type Params: Copy + std::fmt::Debug;
    fn begin(params: Self::Params) -> Self;
    fn submit(&mut self, now: Instant, id: u64, io: Io);
    fn next_event(&self) -> Instant;
    fn poll(&mut self, now: Instant) -> Option<u64>;
    fn stall(&mut self, now: Instant, length: Duration);
    fn set_params(&mut self, now: Instant, params: Self::Params);
    fn in_flight(&self) -> usize;
}

macro_rules! driven {
    ($device:ident, $params:ident) => {
        impl Driven for $device {
            type Params = $params;
            fn begin(params: $params) -> Self {
                $device::new(params, 9)
            }
            fn submit(&mut self, now: Instant, id: u64, io: Io) {
                $device::submit(self, now, id, io);
            }
            fn next_event(&self) -> Instant {
                $device::next_event(self)
            }
            fn poll(&mut self, now: Instant) -> Option<u64> {
                $device::poll(self, now)
            }
            fn stall(&mut self, now: Instant, length: Duration) {
                $device::stall(self, now, length);
            }
            fn set_params(&mut self, now: Instant, params: $params) {
                $device::set_params(self, now, params);
            }
            fn in_flight(&self) -> usize {
                $device::in_flight(self)
            }
        }
    };
}
driven!(Ssd, SsdParams);
driven!(Store, StoreParams);

#[derive(Clone, Copy, Debug)]
pub(crate) enum Event<P> {
    Wait { ns: u64 },
    Submit(Io),
    Stall { ns: u64 },
    Change(P),
}

/// A random event: a wait, a request, a stall or new parameters.
pub(crate) fn event<P: std::fmt::Debug>(
    io: impl Strategy<Value = Io>,
    params: impl Strategy<Value = P>,
) -> impl Strategy<Value = Event<P>> {
    prop_oneof![
        4 => (0u64..5_000_000).prop_map(|ns| Event::Wait { ns }),
        8 => io.prop_map(Event::Submit),
        1 => (0u64..10_000_000).prop_map(|ns| Event::Stall { ns }),
        1 => params.prop_map(Event::Change),
    ]
}

/// Ids of completed requests, each with the instant of the poll that returned it.
pub(crate) type Completions = Vec<(Instant, u64)>;

/// Polls at every event until nothing is in flight; returns the completions in order.
pub(crate) fn drain(device: &mut impl Driven) -> Completions {
    let mut completions = Vec::new();
    while device.in_flight() > 0 {
        let now = device.next_event();
        assert!(now < Instant::FAR_FUTURE, "{} inside and nothing to wait for", device.in_flight());
        while let Some(id) = device.poll(now) {
            completions.push((now, id));
        }
    }
    completions
}

/// Applies `events` and polls at every event of the device (`punctual`) or only after each of `events`, then drains the device.
/// Returns the completions, and by id the instant of each request's submission.
pub(crate) fn play<D: Driven>(
    params: D::Params,
    events: &[Event<D::Params>],
    punctual: bool,
) -> (Completions, BTreeMap<u64, Instant>) {
    let mut device = D::begin(params);
    let (mut now, mut submitted, mut completions) = (Instant::ZERO, BTreeMap::new(), Vec::new());
    for &event in events {
        match event {
            Event::Wait { ns } => {
                let end = now + Duration::from_nanos(ns);
                while punctual && device.next_event() <= end {
                    let due = device.next_event();
                    while let Some(id) = device.poll(due) {
                        completions.push((due, id));
                    }
                }
                now = end;
            }
            Event::Submit(io) => {
                let id = submitted.len() as u64;
                submitted.insert(id, now);
                device.submit(now, id, io);
            }
            Event::Stall { ns } => device.stall(now, Duration::from_nanos(ns)),
            Event::Change(params) => device.set_params(now, params),
        }
        while let Some(id) = device.poll(now) {
            completions.push((now, id));
        }
        assert_eq!(device.in_flight(), submitted.len() - completions.len());
    }
    completions.extend(drain(&mut device));
    (completions, submitted)
}

/// Asserts that every request completes exactly once and not before its submission, and that `poll` returns completions in order
/// of time.
pub(crate) fn each_completes_once<D: Driven>(params: D::Params, events: &[Event<D::Params>]) {
    let (completions, submitted) = play::<D>(params, events, true);
    let mut ids: Vec<u64> = completions.iter().map(|&(_, id)| id).collect();
    ids.sort_unstable();
    assert_eq!(ids, submitted.keys().copied().collect::<Vec<_>>());
    assert!(completions.iter().all(|(at, id)| *at >= submitted[id]));
    assert!(completions.windows(2).all(|pair| pair[0].0 <= pair[1].0));
}

/// Asserts that the same calls give the same completions, and that polling less often shows them later, but in the same order.
pub(crate) fn calls_and_seed_decide_alone<D: Driven>(params: D::Params, events: &[Event<D::Params>]) {
    let (often, _) = play::<D>(params, events, true);
    let (again, _) = play::<D>(params, events, true);
    let (seldom, _) = play::<D>(params, events, false);
    assert_eq!(often, again);
    let ids = |completions: &Completions| completions.iter().map(|&(_, id)| id).collect::<Vec<_>>();
    assert_eq!(ids(&often), ids(&seldom));
    assert!(often.iter().zip(&seldom).all(|(o, s)| o.0 <= s.0));
}

/// Asserts that no request completes before the instant of `next_event`, and that there is such an instant while requests are in
/// flight.
pub(crate) fn nothing_completes_before_its_event<D: Driven>(params: D::Params, ios: &[Io]) {
    let mut device = D::begin(params);
    for (id, &io) in (0..).zip(ios) {
        device.submit(Instant::ZERO, id, io);
    }
    while device.in_flight() > 0 {
        let due = device.next_event();
        assert!(due < Instant::FAR_FUTURE, "{} left and nothing to wait for", device.in_flight());
        if due > Instant::ZERO {
            assert_eq!(device.poll(due - Duration::from_nanos(1)), None);
        }
        // Something may have come to light that moves it, but not to an earlier time.
        assert!(device.next_event() >= due);
        while device.poll(due).is_some() {}
    }
}
