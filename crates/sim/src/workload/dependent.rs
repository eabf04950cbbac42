//! Replay of recorded requests whose dependencies are known: a request is sent at its time, or when another one has completed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use evenkeel_control::{Duration, Instant};
use evenkeel_model::Io;

use super::Next;

/// The event that makes a client send a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The request is sent at this instant, counted from the client's start.
    At(Instant),
    /// The request is sent when another request of the client has completed and its think time has passed.
    After {
        /// Number of the other request; smaller than that of the dependent one.
        request: u32,
        /// Think time: from the completion to the sending of the dependent request.
        think: Duration,
    },
}

/// The requests of one client with their dependencies, shared by runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dependent {
    requests: Vec<Io>,
    /// Requests that are sent at their time, in order of time.
    timed: Vec<(Instant, u32)>,
    /// For each request, and one more: index in `after` of the first request that depends on it.
    first: Vec<u32>,
    /// Requests that depend on others, with their think times, in order of the request that they depend on.
    after: Vec<(u32, Duration)>,
}

impl Dependent {
    /// The requests of a client, numbered from 0 in the order given. A request that depends on itself or on a later one is sent
    /// at the client's start. Requests beyond `u32::MAX` are left out. O(n log n).
    pub fn new(all: impl IntoIterator<Item = (Io, Start)>) -> Self {
        let (mut requests, mut timed, mut edges) = (Vec::new(), Vec::new(), Vec::new());
        for (number, (io, start)) in (0..u32::MAX).zip(all) {
            requests.push(io);
            match start {
                Start::At(at) => timed.push((at, number)),
                Start::After { request, think } if request < number => edges.push((request, number, think)),
                Start::After { .. } => timed.push((Instant::ZERO, number)),
            }
        }
        timed.sort_unstable();
        edges.sort_unstable();
        let mut first = vec![0u32; requests.len() + 1];
        for &(request, ..) in &edges {
            first[request as usize + 1] += 1;
        }
        for place in 1..first.len() {
            first[place] += first[place - 1];
        }
        let after = edges.into_iter().map(|(_, number, think)| (number, think)).collect();
        Self { requests, timed, first, after }
    }

    /// Number of requests.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// True without requests.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Number of requests that depend on another one.
    pub fn dependent(&self) -> usize {
        self.after.len()
    }

    /// The requests that depend on the request with this number.
    fn depending_on(&self, number: u32) -> &[(u32, Duration)] {
        let place = number as usize;
        match (self.first.get(place), self.first.get(place.saturating_add(1))) {
            (Some(&from), Some(&until)) => &self.after[from as usize..until as usize],
            _ => &[],
        }
    }
}

/// A running [`Dependent`]. O(log n) a request, for n requests that wait for their think time.
#[derive(Debug)]
pub(super) struct Player {
    requests: Arc<Dependent>,
    since: Instant,
    /// Index in `timed` of the next request.
    next_timed: usize,
    /// Requests whose cause has completed, by the instant at which their think time ends.
    thinking: BinaryHeap<Reverse<(Instant, u32)>>,
    issued: u32,
}

impl Player {
    pub(super) fn new(requests: &Arc<Dependent>) -> Self {
        let requests = Arc::clone(requests);
        Self { requests, since: Instant::ZERO, next_timed: 0, thinking: BinaryHeap::new(), issued: u32::MAX }
    }

    /// Starts the replay, or starts it again, at `now`.
    pub(super) fn enter(&mut self, now: Instant) {
        self.since = now;
        self.next_timed = 0;
        self.thinking.clear();
    }

    /// Number of the request that was issued last.
    pub(super) fn issued(&self) -> u32 {
        self.issued
    }

    pub(super) fn next(&mut self, now: Instant, outstanding: u32) -> Next {
        let timed = self.requests.timed.get(self.next_timed);
        let timed = timed.map(|&(at, number)| (self.since + at.since(Instant::ZERO), number));
        let free = self.thinking.peek().map(|&Reverse(free)| free);
        let due = match (timed, free) {
            (Some(timed), Some(free)) => Some(timed.min(free)),
            (timed, free) => timed.or(free),
        };
        let Some((at, number)) = due else {
            return if outstanding > 0 { Next::Completion } else { Next::End };
        };
        if at > now {
            return Next::At(at);
        }
        if free == due {
            self.thinking.pop();
        } else {
            self.next_timed += 1;
        }
        self.issued = number;
        Next::Issue(self.requests.requests[number as usize])
    }

    /// Reports the completion of the request with this number.
    pub(super) fn complete(&mut self, now: Instant, number: u32) {
        for &(number, think) in self.requests.depending_on(number) {
            self.thinking.push(Reverse((now + think, number)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Spec, Workload};
    use evenkeel_control::units::Kind;
    use proptest::prelude::*;

    fn io(offset: u64) -> Io {
        Io { kind: Kind::Read, offset, bytes: 4096 }
    }

    /// Sends all requests to a device that completes each after `latency`. Returns for each request the instants of its sending
    /// and of its completion, in nanoseconds.
    fn play(all: Vec<(Io, Start)>, latency: u64) -> Vec<(u64, u64)> {
        let mut times = vec![(u64::MAX, u64::MAX); all.len()];
        let mut workload = Workload::new(&Spec::Dependent(Arc::new(Dependent::new(all))), 1);
        let mut answers = std::collections::VecDeque::new();
        let mut now = Instant::ZERO;
        loop {
            let wake = loop {
                match workload.next(now) {
                    Next::Issue(_) => {
                        let number = workload.issued();
                        times[number as usize] = (now.as_nanos(), now.as_nanos() + latency);
                        answers.push_back((now + Duration::from_nanos(latency), number));
                    }
                    Next::At(at) => break at,
                    Next::Completion | Next::End => break Instant::FAR_FUTURE,
                }
            };
            now = wake.min(answers.front().map_or(Instant::FAR_FUTURE, |&(at, _)| at));
            if now == Instant::FAR_FUTURE {
                return times;
            }
            while let Some(&(at, number)) = answers.front()
                && at <= now
            {
                answers.pop_front();
                workload.complete_request(now, number);
            }
        }
    }

    #[test]
    fn a_request_waits_for_the_one_that_it_depends_on() {
        let think = Duration::from_nanos(5);
        let all = vec![
            (io(0), Start::At(Instant::from_nanos(10))),
            (io(1), Start::After { request: 0, think }),
            (io(2), Start::At(Instant::from_nanos(12))),
            (io(3), Start::After { request: 1, think }),
            (io(4), Start::After { request: 1, think: Duration::ZERO }),
        ];
        assert_eq!(play(all, 100), [(10, 110), (115, 215), (12, 112), (220, 320), (215, 315)]);
    }

    proptest! {
        #[test]
        fn every_request_is_sent_once_and_when_it_is_due(
            causes in proptest::collection::vec((any::<bool>(), 0u64..1_000, any::<prop::sample::Index>()), 1..100),
            latency in 0u64..500,
        ) {
            let all: Vec<(Io, Start)> = causes.iter().enumerate().map(|(number, (timed, time, parent))| {
                let start = if *timed || number == 0 {
                    Start::At(Instant::from_nanos(*time))
                } else {
                    Start::After { request: parent.index(number) as u32, think: Duration::from_nanos(*time) }
                };
                (io(number as u64), start)
            }).collect();
            let times = play(all.clone(), latency);
            for ((_, start), (sent, _)) in all.iter().zip(&times) {
                let due = match start {
                    Start::At(at) => at.as_nanos(),
                    Start::After { request, think } => times[*request as usize].1 + think.as_nanos(),
                };
                prop_assert_eq!(*sent, due);
            }
        }
    }
}
