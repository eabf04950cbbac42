//! The load of a device without a pool: requests at their admission, and a run of them against a modelled device alone.
//!
//! To fit a device, the recorded queue latencies are part of the causes: a request is admitted so long after the completion that
//! it depends on as it was recorded, think time and queue latency together. A request that was queued, and was admitted right
//! after the completion of any other request of the pool, waited for that one: the budget became free.

use std::ops::Range;
use std::sync::Arc;

use evenkeel_control::{Duration, Instant};
use evenkeel_flight::Kind;
use evenkeel_model::Io;
use evenkeel_model::device::{Device, DeviceParams, Machine as _};

use super::infer::{Cause, LONGEST_THINK_NS};
use super::load::Load;
use crate::workload::dependent::{Dependent, Start};
use crate::workload::{Next, Spec, Workload};

/// A request as the device had it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Admitted {
    pub(super) kind: Kind,
    pub(super) io: Io,
    /// Admission, in nanoseconds.
    pub(super) at_ns: u64,
    /// Device latency, in nanoseconds.
    pub(super) device_ns: u64,
    /// Requests in flight at the admission, without this one.
    pub(super) found: u32,
    /// True if the request failed: it is a cause, but its latency is not that of the device.
    pub(super) failed: bool,
    /// Cause of the admission: a number is an index in the same list.
    cause: Cause,
}

/// A run of requests that the device served: their admissions and device latencies, in nanoseconds, in order of admission as
/// recorded.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Served {
    pub(super) at_ns: Vec<u64>,
    pub(super) device_ns: Vec<u64>,
}

/// The requests of a load in order of admission. O(n log n).
pub(super) fn admitted(load: &Load) -> Vec<Admitted> {
    let mut order: Vec<u32> = (0..u32::MAX).zip(&load.requests).map(|(number, _)| number).collect();
    order.sort_by_key(|&number| (load.requests[number as usize].admission_ns(), number));
    let mut place = vec![0u32; order.len()];
    for (at, &number) in (0u32..).zip(&order) {
        place[number as usize] = at;
    }
    let mut own = vec![Cause::At(0); order.len()];
    for client in &load.clients {
        for (&number, &cause) in client.requests.iter().zip(&client.inferred.causes) {
            own[number as usize] = match cause {
                Cause::After { request, think_ns } => {
                    Cause::After { request: client.requests[request as usize], think_ns }
                }
                at @ Cause::At(_) => at,
            };
        }
    }
    let mut ends: Vec<u32> = order.clone();
    ends.sort_by_key(|&number| (load.requests[number as usize].completion_ns(), number));
    let (mut ended, mut free) = (0, Vec::new());
    let mut all: Vec<Admitted> = Vec::with_capacity(order.len());
    for (at, &number) in order.iter().enumerate() {
        let request = &load.requests[number as usize];
        let at_ns = request.admission_ns();
        while let Some(&end) = ends.get(ended)
            && load.requests[end as usize].completion_ns() <= at_ns
            && (place[end as usize] as usize) < at
        {
            free.push(end);
            ended += 1;
        }
        let made_room = free.last().copied().filter(|&end: &u32| {
            let since = at_ns.saturating_sub(load.requests[end as usize].completion_ns());
            request.queue_ns > LONGEST_THINK_NS && since <= LONGEST_THINK_NS
        });
        let cause = match (made_room, own[number as usize]) {
            (Some(end), _) => {
                free.pop();
                let think_ns = at_ns.saturating_sub(load.requests[end as usize].completion_ns());
                Cause::After { request: place[end as usize], think_ns }
            }
            (None, Cause::After { request: on, think_ns }) if (place[on as usize] as usize) < at => {
                Cause::After { request: place[on as usize], think_ns: think_ns.saturating_add(request.queue_ns) }
            }
            _ => Cause::At(at_ns),
        };
        let found = u32::try_from(at.saturating_sub(ended)).unwrap_or(u32::MAX);
        let (kind, io, device_ns, failed) = (request.kind, request.io, request.device_ns, request.failed);
        all.push(Admitted { kind, io, at_ns, device_ns, found, failed, cause });
    }
    all
}

/// Up to `most` requests in up to `parts` runs of consecutive ones, evenly spread over the range `of` of `all`: the start of each
/// run in the result, and the requests. A request whose cause is not among them is admitted at its recorded time.
pub(super) fn sample(all: &[Admitted], of: Range<usize>, most: usize, parts: usize) -> (Vec<usize>, Vec<Admitted>) {
    let parts = if of.len() <= most { 1 } else { parts.max(1) };
    let (length, every) = (of.len().min(most) / parts, of.len() / parts);
    let (mut starts, mut kept) = (Vec::new(), Vec::new());
    for part in 0..parts {
        let (from, start) = (of.start + part * every, kept.len());
        starts.push(start);
        for request in &all[from..from + length] {
            let cause = match request.cause {
                Cause::After { request: on, think_ns } if (from..from + length).contains(&(on as usize)) => {
                    Cause::After { request: (on as usize - from + start) as u32, think_ns }
                }
                _ => Cause::At(request.at_ns),
            };
            kept.push(Admitted { cause, ..*request });
        }
    }
    (starts, kept)
}

/// Requests to be sent to a device alone, prepared for many runs.
pub(super) struct Drive(Spec);

impl Drive {
    pub(super) fn new(requests: &[Admitted]) -> Self {
        let zero = requests.first().map_or(0, |first| first.at_ns);
        let start = |request: &Admitted| match request.cause {
            Cause::At(ns) => Start::At(Instant::from_nanos(ns.saturating_sub(zero))),
            Cause::After { request, think_ns } => Start::After { request, think: Duration::from_nanos(think_ns) },
        };
        Self(Spec::Dependent(Arc::new(Dependent::new(requests.iter().map(|request| (request.io, start(request)))))))
    }

    /// Sends the `count` requests to a device with these parameters. `None` if the device does not end, or takes longer than
    /// `longest` of virtual time. O(log n) a request, beside the device.
    pub(super) fn run(&self, count: usize, params: &DeviceParams, longest: Duration, seed: u64) -> Option<Served> {
        let mut device = Device::new(params, seed);
        let mut client = Workload::new(&self.0, seed);
        let mut served = Served { at_ns: vec![0; count], device_ns: vec![0; count] };
        let end = Instant::ZERO + longest;
        let (mut now, mut left) = (Instant::ZERO, count);
        while left > 0 {
            let wake = loop {
                match client.next(now) {
                    Next::Issue(io) => {
                        let number = client.issued();
                        *served.at_ns.get_mut(number as usize)? = now.as_nanos();
                        device.submit(now, u64::from(number), io);
                    }
                    Next::At(at) => break at,
                    Next::Completion | Next::End => break Instant::FAR_FUTURE,
                }
            };
            let next = wake.min(device.next_event());
            if next > end || next < now {
                return None;
            }
            now = next;
            while let Some(id) = device.poll(now) {
                let number = usize::try_from(id).ok()?;
                let sent = *served.at_ns.get(number)?;
                served.device_ns[number] = now.as_nanos().saturating_sub(sent);
                client.complete_request(now, number as u32);
                left = left.checked_sub(1)?;
            }
        }
        Some(served)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{recording, request};
    use super::*;
    use evenkeel_model::jitter::Jitter;
    use evenkeel_model::store::StoreParams;

    fn load(requests: Vec<evenkeel_flight::Request>) -> Load {
        Load::new(recording(requests), None).unwrap()
    }

    #[test]
    fn a_queued_request_waits_for_the_completion_that_made_room() {
        // The second arrives with the first, and is admitted 10 µs after its completion.
        let mut second = request(0, 400_000);
        second.queue_ns = 310_000;
        let all = admitted(&load(vec![request(0, 300_000), second]));
        assert_eq!(all[1].cause, Cause::After { request: 0, think_ns: 10_000 });
        assert_eq!((all[0].found, all[1].found), (0, 0));
        let (starts, kept) = sample(&all, 0..2, 1, 1);
        assert_eq!((starts, kept.len()), (vec![0], 1));
    }

    #[test]
    fn a_sample_of_a_later_part_keeps_the_causes_within_it() {
        let mut all = admitted(&load((0..8).map(|n| request(n * 110_000, 100_000)).collect()));
        let after = |request| Cause::After { request, think_ns: 10_000 };
        (1..8).for_each(|n| all[n].cause = after(n as u32 - 1));
        let (starts, kept) = sample(&all, 4..8, 2, 2);
        assert_eq!(starts, [0, 1]);
        assert_eq!(kept.iter().map(|kept| kept.cause).collect::<Vec<_>>(), [all[4].at_ns, all[6].at_ns].map(Cause::At));
        let (_, kept) = sample(&all, 4..8, 4, 2);
        let causes: Vec<Cause> = kept.iter().map(|kept| kept.cause).collect();
        assert_eq!(causes, [Cause::At(all[4].at_ns), after(0), after(1), after(2)]);
    }

    #[test]
    fn a_run_against_the_device_that_was_recorded_repeats_its_latencies() {
        let store = StoreParams { jitter: Jitter::None, ..StoreParams::ssd() };
        let all = admitted(&load((0..200).map(|n| request(n * 300_000, 1)).collect()));
        let served = Drive::new(&all).run(200, &DeviceParams::Store(store), Duration::from_secs(10), 1).unwrap();
        // 41 µs on the link at 100 MB/s, and 100 µs of latency.
        assert!(served.device_ns.iter().all(|&ns| (140_000..142_000).contains(&ns)), "{:?}", &served.device_ns[..9]);
        assert_eq!(served.at_ns[7], 2_100_000);
        assert_eq!(Drive::new(&all).run(200, &DeviceParams::Store(store), Duration::from_millis(1), 1), None);
    }
}
