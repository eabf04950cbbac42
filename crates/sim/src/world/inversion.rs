//! Priority inversion: how long requests wait behind admitted requests that they outrank.
//!
//! *Outranks*: tenant A outranks tenant B when B is background and A is not. If both are background or both are not, A
//! outranks B when neither reservation nor weight of A is below B's and one of them is above. Tenants of equal rank
//! form a class.
//!
//! A request suffers priority inversion at every moment at which an outranked request, admitted earlier, is in flight in
//! the device. For a queued request, any outranked request in flight counts; for a request in flight, only those admitted
//! earlier. A tenant with a limit may be queued because of the limit, so the time of its requests in the queue does not
//! count. Results give the sum over all requests, in seconds, which may exceed the length of the run.

use std::collections::VecDeque;

use evenkeel_control::mclock::Qos;
use evenkeel_control::units::Rates;
use evenkeel_control::{Duration, Instant};

/// The part of a QoS policy that determines the rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Standing {
    background: bool,
    reservation: Rates,
    weight: u32,
}

impl Standing {
    fn of(qos: &Qos) -> Self {
        Self { background: qos.background, reservation: qos.reservation, weight: qos.weight }
    }

    fn outranks(&self, other: &Self) -> bool {
        if self.background != other.background {
            return other.background;
        }
        let (mine, theirs) = (&self.reservation, &other.reservation);
        self != other
            && mine.iops >= theirs.iops
            && mine.bytes_per_s >= theirs.bytes_per_s
            && self.weight >= other.weight
    }
}

/// A class: all tenants of the same rank.
#[derive(Debug, Default)]
struct Class {
    standing: Standing,
    /// The class's admitted requests in order of admission, from the oldest one that is still in flight.
    inside: VecDeque<Inside>,
    /// Number of the class's requests in flight.
    present: usize,
    /// Number of requests at the front of `inside` for which every outranked request admitted earlier has completed.
    clear: usize,
    /// Number of requests in flight now that this class outranks.
    lower: usize,
    /// Instant from which on `lower` has been above 0; without meaning while it is 0.
    lower_since: Instant,
    /// Total earlier time during which `lower` was above 0.
    lower_total: Duration,
}

#[derive(Debug)]
struct Inside {
    order: u64,
    left: bool,
    clear_at: Option<Instant>,
}

impl Class {
    /// Total time, up to `now`, during which requests that this class outranks were in flight.
    fn lower_time(&self, now: Instant) -> Duration {
        if self.lower > 0 { self.lower_total + now.since(self.lower_since) } else { self.lower_total }
    }

    fn one_lower_entered(&mut self, now: Instant) {
        if self.lower == 0 {
            self.lower_since = now;
        }
        self.lower += 1;
    }

    fn one_lower_left(&mut self, now: Instant) {
        self.lower_total = self.lower_time(now);
        self.lower_since = now;
        self.lower -= 1;
    }
}

/// The state that this module keeps for an admitted request.
#[derive(Debug)]
pub(super) struct Passage {
    class: usize,
    order: u64,
    admitted_at: Instant,
    queued: Duration,
}

/// Measures priority inversion. The cost per request is O(classes + log requests in flight), and negligible while all tenants
/// have one rank.
#[derive(Debug)]
pub(super) struct Inversion {
    classes: Vec<Class>,
    /// Per tenant: index of its class, and true if the time of its requests in the queue counts.
    tenants: Vec<(usize, bool)>,
    /// Number of requests admitted so far.
    admissions: u64,
}

impl Inversion {
    pub(super) fn new(guarantees: impl Iterator<Item = Qos>) -> Self {
        let mut inversion = Self { classes: Vec::new(), tenants: Vec::new(), admissions: 0 };
        for (tenant, qos) in guarantees.enumerate() {
            inversion.tenants.push((0, false));
            inversion.set_qos(Instant::ZERO, tenant, &qos);
        }
        inversion
    }

    /// Gives a tenant a new QoS policy. The tenant's requests in flight keep the rank with which they were admitted.
    pub(super) fn set_qos(&mut self, now: Instant, tenant: usize, qos: &Qos) {
        let standing = Standing::of(qos);
        let known = self.classes.iter().position(|class| class.standing == standing);
        let class = known.unwrap_or_else(|| {
            let lower = self.classes.iter().filter(|class| standing.outranks(&class.standing));
            self.classes.push(Class {
                standing,
                lower: lower.map(|class| class.present).sum(),
                lower_since: now,
                ..Class::default()
            });
            self.classes.len() - 1
        });
        self.tenants[tenant] = (class, qos.limit.is_unset());
    }

    /// Reports that a request enters the queue. Returns the time so far during which requests were in flight that its class
    /// outranks; the caller passes it to [`Inversion::admitted`].
    #[inline]
    pub(super) fn submitted(&self, now: Instant, tenant: usize) -> Duration {
        self.classes[self.tenants[tenant].0].lower_time(now)
    }

    /// Reports that a request is admitted. `lower_time_before` is the answer of [`Inversion::submitted`] for the request.
    #[inline]
    pub(super) fn admitted(&mut self, now: Instant, tenant: usize, lower_time_before: Duration) -> Passage {
        let (class, queue_counts) = self.tenants[tenant];
        self.admissions += 1;
        let order = self.admissions;
        let mut passage = Passage { class, order, admitted_at: now, queued: Duration::ZERO };
        if self.classes.len() < 2 {
            return passage;
        }
        let entered = &mut self.classes[class];
        if queue_counts {
            passage.queued = entered.lower_time(now) - lower_time_before;
        }
        // Nothing outranked inside: clear, and then so is all of its class before it.
        let clear_at = (entered.lower == 0).then_some(now);
        entered.inside.push_back(Inside { order, left: false, clear_at });
        entered.present += 1;
        if clear_at.is_some() {
            entered.clear = entered.inside.len();
        }
        let standing = entered.standing;
        for other in self.classes.iter_mut().filter(|other| other.standing.outranks(&standing)) {
            other.one_lower_entered(now);
        }
        passage
    }

    /// Reports that a request has completed. Returns the time for which the request suffered priority inversion.
    #[inline]
    pub(super) fn completed(&mut self, now: Instant, passage: Passage) -> Duration {
        let class = &mut self.classes[passage.class];
        // Admitted while there was but one class: it was not entered.
        let place = match class.inside.front() {
            Some(front) if front.order == passage.order => 0,
            _ => match class.inside.binary_search_by_key(&passage.order, |inside| inside.order) {
                Ok(place) => place,
                Err(_) => return passage.queued,
            },
        };
        let inside = &mut class.inside[place];
        inside.left = true;
        let suffered = inside.clear_at.unwrap_or(now).since(passage.admitted_at);
        class.present -= 1;
        while class.inside.front().is_some_and(|inside| inside.left) {
            class.inside.pop_front();
            class.clear = class.clear.saturating_sub(1);
        }
        let standing = class.standing;
        for number in 0..self.classes.len() {
            if self.classes[number].standing.outranks(&standing) {
                self.classes[number].one_lower_left(now);
                self.clear_up(now, number);
            }
        }
        passage.queued + suffered
    }

    /// Marks the requests of class `number` for which every outranked request admitted earlier has completed.
    fn clear_up(&mut self, now: Instant, number: usize) {
        let standing = self.classes[number].standing;
        let lower = self.classes.iter().filter(|class| standing.outranks(&class.standing));
        let oldest = lower.filter_map(|class| class.inside.front()).map(|inside| inside.order).min();
        let class = &mut self.classes[number];
        for inside in class.inside.iter_mut().skip(class.clear) {
            if oldest.is_some_and(|oldest| oldest < inside.order) {
                break;
            }
            inside.clear_at = Some(now);
            class.clear += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    fn two() -> Inversion {
        Inversion::new([2, 1].into_iter().map(|weight| Qos { weight, ..Qos::default() }))
    }

    #[test]
    fn counts_the_time_in_the_queue_and_in_flight_behind_what_entered_earlier() {
        let mut inversion = two();
        let low = inversion.submitted(at(0), 1);
        let first = inversion.admitted(at(0), 1, low);
        let high = inversion.submitted(at(2), 0);
        let high = inversion.admitted(at(5), 0, high);
        let low = inversion.submitted(at(5), 1);
        let later = inversion.admitted(at(6), 1, low);
        assert_eq!(inversion.completed(at(9), first), Duration::ZERO);
        // 3 ms queued, 4 ms inside; what entered later does not count.
        assert_eq!(inversion.completed(at(20), high), Duration::from_millis(7));
        assert_eq!(inversion.completed(at(30), later), Duration::ZERO);
    }

    #[test]
    fn a_device_that_reorders_ends_the_wait_with_the_last_of_those_in_front() {
        let mut inversion = two();
        let low: Vec<_> = (0..3).map(|_| inversion.admitted(at(0), 1, Duration::ZERO)).collect();
        let mark = inversion.submitted(at(1), 0);
        let high = [inversion.admitted(at(1), 0, mark), inversion.admitted(at(1), 0, mark)];
        let mut low = low.into_iter().rev();
        for (completed_at, low) in [5, 6].into_iter().zip(low.by_ref()) {
            inversion.completed(at(completed_at), low);
        }
        let mut high = high.into_iter();
        assert_eq!(inversion.completed(at(7), high.next().unwrap()), Duration::from_millis(6));
        inversion.completed(at(8), low.next().unwrap());
        assert_eq!(inversion.completed(at(9), high.next().unwrap()), Duration::from_millis(7));
    }

    #[test]
    fn standing_is_a_partial_order() {
        let qos =
            |iops, weight, background| Standing { background, reservation: Rates { iops, bytes_per_s: 0 }, weight };
        assert!(qos(1000, 2, false).outranks(&qos(1, 1, false)));
        assert!(!qos(1000, 1, false).outranks(&qos(1, 2, false)));
        assert!(!qos(1, 2, false).outranks(&qos(1000, 1, false)));
        assert!(qos(0, 1, false).outranks(&qos(1000, 9, true)));
        assert!(!qos(5, 5, false).outranks(&qos(5, 5, false)));
    }
}
