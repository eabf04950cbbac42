//! One client's tags (when it is due by reservation, limit and weight) and its queued requests.

use alloc::boxed::Box;

use crate::mclock::claim::Claim;
use crate::mclock::lanes::{Lanes, Place, place_of};
use crate::mclock::slab::Fifo;
use crate::mclock::{MAX_WEIGHT, Qos};
use crate::time::{Duration, Instant};
use crate::token_bucket::{BYTES, IOPS, TokenBucket};
use crate::units::{Fractions, Kind, Work};

/// Virtual time: cost units divided by weight, in units of 2⁻²⁸. 128 bits hold more
/// than 10⁹ years at 100 GB/s and weight 1.
pub(super) type VirtualTime = u128;

/// A request moves a weight tag by cost × (2⁴⁴ / weight) >> 16: at most 2⁶⁰, so that all tags
/// in a heap lie within 2⁶² of each other, and exact to 10⁻⁶ even at the greatest weight.
const INVERSE_BITS: u32 = 44;
const STEP_SHIFT: u32 = 16;

/// Largest lead of a client's weight tag over virtual time that service by reservation may cause, in cost units.
///
/// Service by reservation counts against the share by weight, so that a client gets the
/// greater of the two, not the sum. If the reservation exceeds the share, the lead would grow for
/// ever and be held against the client for hours after the load has changed. If it does not,
/// the lead is about one request, which has to fit in: hence also [`MAX_LEAD_REQUESTS`].
const MAX_LEAD: u64 = 1 << 20;

/// Credit: how far behind virtual time a client that has requests again may be, in cost units.
///
/// A client with one request in flight is idle between its requests. When its reply is a little
/// late it misses its turn, and without a credit the turn is gone: beside a deep queue the client would get
/// less than its share however little it asks for. The credit is as much as one request of 64 KiB, or as
/// [`MAX_CREDIT_REQUESTS`], so a client that returns gets ahead of others by no more than that, however long it was idle.
pub(super) const MAX_CREDIT: u64 = 64 << 10;

/// Lower bound on the credit, in requests without payload: this many small requests that come in a burst are served as one.
pub(super) const MAX_CREDIT_REQUESTS: u64 = 16;

/// Upper bound on the credit, in cost units, so that tags fit the heap.
pub(super) const MAX_CREDIT_BYTES: u64 = 256 << 20;

/// A client's weight tag may in any case be ahead of virtual time by this many requests of the served request's cost.
const MAX_LEAD_REQUESTS: u64 = 2;

/// Largest lag of a client with queued requests behind its reservation for which it may catch up, as time at the reserved rate.
///
/// Makes up for late pulls and stalls of the device. Without a bound, an unachievable
/// reservation would run up a debt, and take all service once the device recovers.
const MAX_LAG: Duration = Duration::from_secs(1);

/// Bytes that a request without payload (a flush, a trim) takes off a reservation in bytes/s. If it took off none, a
/// stream of flushes would be due by reservation for ever.
const EMPTY_REQUEST_BYTES: u32 = 4_096;

/// Index of the heap of normal clients without a reservation that wait for their turn by weight.
pub(super) const PLAIN: usize = 0;
/// Index of the heap of background clients that wait for their turn by weight.
pub(super) const BACKGROUND: usize = 1;
/// Index of the heap of normal clients with a reservation that wait for their turn by weight.
pub(super) const RESERVED: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Normal = 0,
    Background = 1,
}

/// One client of the queue. A client without reservation and limit needs only the first cache line of this.
#[repr(C, align(64))]
pub(super) struct Client {
    /// Start tag of the client's next request, in the virtual time of the client's class.
    pub(super) weight_tag: VirtualTime,
    inverse_weight: u64,
    /// All queued requests of the client that were not put off, or with `lanes` only those that move no data.
    pub(super) fifo: Fifo,
    pub(super) generation: u32,
    pub(super) live: bool,
    pub(super) blocked: bool,
    pub(super) reserved: bool,
    pub(super) limited: bool,
    /// The class in which the client is served at the moment: `policy`, or background while only put-off requests wait.
    class: Class,
    /// The class by the client's QoS policy.
    policy: Class,
    /// Lists of the client's reads and of its writes, if one of these directions has a limit of its own.
    pub(super) lanes: Option<Box<Lanes>>,
    /// Requests of the client that were put off, if there are any.
    later: Option<Box<Later>>,
    reservation: TokenBucket,
    limit: TokenBucket,
}

/// Requests of a client that were put off: served at background priority while no other request of the client waits, and
/// otherwise by a 64th of the client's service.
struct Later {
    fifo: Fifo,
    claim: Claim,
}

impl Client {
    pub(super) fn new(generation: u32, qos: &Qos, virtual_time: [VirtualTime; 2]) -> Self {
        let class = class(qos);
        Self {
            weight_tag: virtual_time[class as usize],
            inverse_weight: inverse(qos.weight),
            fifo: Fifo::EMPTY,
            generation,
            live: true,
            blocked: false,
            reserved: !qos.reservation.is_unset(),
            limited: !qos.limit.is_unset(),
            class,
            policy: class,
            lanes: None,
            later: None,
            reservation: TokenBucket::new(qos.reservation, MAX_LAG),
            limit: TokenBucket::new(qos.limit, qos.burst),
        }
    }

    /// Takes over a new QoS policy. The lead that the client has over others by its service so far stays, converted to the new
    /// weight and class. Of reservation and limit `fractions` apply. `keeps_credit`: what was saved up of both stays.
    pub(super) fn set_qos(
        &mut self,
        now: Instant,
        qos: &Qos,
        fractions: &Fractions,
        keeps_credit: bool,
        virtual_time: [VirtualTime; 2],
    ) {
        let lead = self.weight_tag.saturating_sub(virtual_time[self.class as usize]);
        let (old, new) = (self.inverse_weight, inverse(qos.weight));
        self.policy = class(qos);
        let class = self.class_now();
        if old != new || class != self.class {
            // Leads are below 2^62 and inverse weights at most 2^44.
            self.weight_tag = virtual_time[class as usize] + lead * u128::from(new) / u128::from(old);
        }
        self.inverse_weight = new;
        self.class = class;
        self.reserved = !qos.reservation.is_unset();
        self.limited = !qos.limit.is_unset();
        if keeps_credit {
            self.reservation.shift_fractions(now, qos.reservation, fractions.reservation, MAX_LAG);
            self.limit.shift_fractions(now, qos.limit, fractions.limit, qos.burst);
        } else {
            self.reservation.set_fractions(now, qos.reservation, fractions.reservation, MAX_LAG);
            self.limit.set_fractions(now, qos.limit, fractions.limit, qos.burst);
        }
        if let Some(lanes) = &mut self.lanes {
            lanes.set_burst(now, qos.burst);
        }
    }

    /// Notes that the client has requests again: time without requests gives it no credit by reservation.
    #[inline]
    pub(super) fn activate(&mut self, now: Instant) {
        if self.reserved {
            self.reservation.drop_credit(now);
        }
    }

    /// Unused limit that may be saved up, as time at the limit rate.
    pub(super) fn burst(&self) -> Duration {
        self.limit.burst()
    }

    /// Number of the client's queued requests.
    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.ordinary_len() + self.later.as_ref().map_or(0, |later| later.fifo.len())
    }

    /// Number of the client's queued requests that were not put off.
    #[inline]
    pub(super) fn ordinary_len(&self) -> u32 {
        self.fifo.len() + self.lanes.as_ref().map_or(0, |lanes| lanes.len())
    }

    /// The list of the client's requests that were put off; created if there is none.
    pub(super) fn later_mut(&mut self) -> &mut Fifo {
        &mut self.later.get_or_insert_with(|| Later { fifo: Fifo::EMPTY, claim: Claim::default() }.into()).fifo
    }

    /// The class in which the client is served at the moment.
    #[inline]
    pub(super) fn class(&self) -> Class {
        self.class
    }

    #[inline]
    fn class_now(&self) -> Class {
        if self.later.is_some() && self.ordinary_len() == 0 { Class::Background } else { self.policy }
    }

    /// Moves the client to the class in which its queued requests are served; true if that differs from its class so far.
    #[inline]
    pub(super) fn settle(&mut self, virtual_time: [VirtualTime; 2]) -> bool {
        let class = self.class_now();
        if class == self.class {
            return false;
        }
        let lead = self.weight_tag.saturating_sub(virtual_time[self.class as usize]);
        self.weight_tag = virtual_time[class as usize] + lead;
        self.class = class;
        true
    }

    /// Index of the heap in which the client waits for its turn by weight.
    #[inline]
    pub(super) fn ready_in(&self) -> usize {
        match self.class {
            Class::Normal if self.reserved => RESERVED,
            Class::Normal => PLAIN,
            Class::Background => BACKGROUND,
        }
    }

    /// Notes that a request of the list `place` was served, which changes the service owed to requests that were put off.
    #[inline]
    pub(super) fn account(&mut self, place: Place, cost: u32) {
        let alone = self.ordinary_len() == 0;
        let Some(later) = &mut self.later else { return };
        if place != Place::Later {
            later.claim.earn(cost, true);
        } else if later.fifo.is_empty() {
            self.later = None;
        } else if !alone {
            later.claim.spend(cost);
        }
    }

    /// True if the client has queued requests.
    #[inline]
    pub(super) fn is_active(&self) -> bool {
        self.len() > 0
    }

    /// The list of the client to which a new request of this kind is appended.
    #[inline]
    pub(super) fn fifo_for(&mut self, kind: Kind) -> &mut Fifo {
        self.fifo_mut(if self.lanes.is_some() { place_of(kind) } else { Place::Common })
    }

    /// The client's list `place`.
    #[inline]
    pub(super) fn fifo_mut(&mut self, place: Place) -> &mut Fifo {
        match (place, &mut self.lanes, &mut self.later) {
            (Place::Of(direction), Some(lanes), _) => lanes.fifo_mut(direction),
            (Place::Later, _, Some(later)) => &mut later.fifo,
            _ => &mut self.fifo,
        }
    }

    /// The client's lists that are not empty, except that of requests that were put off.
    fn waiting(&self) -> impl Iterator<Item = (Place, &Fifo)> {
        let of = |place| match (place, &self.lanes) {
            (Place::Of(direction), lanes) => Some(lanes.as_ref()?.fifo(direction)),
            _ => Some(&self.fifo),
        };
        Place::ORDINARY
            .into_iter()
            .filter_map(move |place| Some((place, of(place)?)))
            .filter(|(_, fifo)| !fifo.is_empty())
    }

    /// The list of the client's oldest request that was not put off; `age` returns when the first request of a list was queued.
    pub(super) fn oldest<T: Ord>(&self, age: impl Fn(&Fifo) -> T) -> Option<Place> {
        self.waiting().min_by_key(|(_, fifo)| age(fifo)).map(|(place, _)| place)
    }

    /// The list from which the client's next request is taken: the one whose first request is the oldest that no limit on a
    /// direction throttles. Service by reservation passes limits below the reservation, if no other request is due.
    #[inline]
    pub(super) fn turn<T: Ord>(&self, now: Instant, by_reservation: bool, age: impl Fn(&Fifo) -> T) -> Place {
        if self.later.is_some() && self.is_turn_of_later(now) {
            return Place::Later;
        }
        match &self.lanes {
            None => Place::Common,
            Some(lanes) => self.turn_among(lanes, now, by_reservation, age).unwrap_or(Place::Common),
        }
    }

    #[cold]
    fn is_turn_of_later(&self, now: Instant) -> bool {
        let owed = self.later.as_ref().is_some_and(|later| later.claim.is_owed());
        self.ordinary_len() == 0 || owed && self.limit_due_in(Place::Later) <= now.as_nanos()
    }

    #[cold]
    fn turn_among<T: Ord>(
        &self,
        lanes: &Lanes,
        now: Instant,
        by_reservation: bool,
        age: impl Fn(&Fifo) -> T,
    ) -> Option<Place> {
        let may = |place: Place| !by_reservation || self.reservation_due_in(place) <= now.as_nanos();
        let key = |&(place, fifo): &(Place, &Fifo)| (lanes.due(place) > now.as_nanos(), age(fifo));
        let next = self.waiting().filter(|&(place, _)| may(place)).min_by_key(key);
        next.map(|(place, _)| place)
    }

    /// When the client's next request may be another one than at `now`, in ns; `None` if its requests keep their order.
    pub(super) fn next_turn(&self, now: Instant) -> Option<u64> {
        let lanes = self.lanes.as_ref()?;
        let dues = self.waiting().flat_map(|(place, _)| [lanes.due(place), self.reservation_due_in(place)]);
        dues.filter(|&due| due > now.as_nanos() && due < u64::MAX).min()
    }

    /// When the client's next request is due by reservation, in ns: when either rate is behind.
    ///
    /// A limit that is at least the reservation in the same unit is not exceeded when the
    /// reservation catches up; any other limit yields to the reservation.
    #[inline]
    pub(super) fn reservation_due(&self) -> u64 {
        match &self.lanes {
            None => self.reservation_due_in(Place::Common),
            Some(_) => self.reservation_due_among_lanes(),
        }
    }

    #[cold]
    fn reservation_due_among_lanes(&self) -> u64 {
        self.waiting().map(|(place, _)| self.reservation_due_in(place)).min().unwrap_or(u64::MAX)
    }

    /// When the next request of the list `place` is due by reservation, in ns; `u64::MAX` without a reservation.
    #[inline]
    fn reservation_due_in(&self, place: Place) -> u64 {
        let own = self.lanes.as_ref().and_then(|lanes| lanes.limit(place));
        [IOPS, BYTES].into_iter().fold(u64::MAX, |due, rate| {
            let price = self.reservation.price(rate);
            if price == 0 {
                return due;
            }
            let until = |limit: &TokenBucket| if limit.price(rate) <= price { limit.deadline(rate) } else { 0 };
            let shared = if self.limited { until(&self.limit) } else { 0 };
            due.min(self.reservation.deadline(rate).max(shared).max(own.map_or(0, until)))
        })
    }

    /// When the client's limits let its next request pass, in ns; 0 without limits.
    #[inline]
    pub(super) fn limit_due(&self) -> u64 {
        let shared = if self.limited { self.limit.ready_at().as_nanos() } else { 0 };
        match &self.lanes {
            None => shared,
            Some(lanes) => shared.max(self.limit_due_among(lanes)),
        }
    }

    /// When the client's limits let the next request of the list `place` pass, in ns, which may be in the past.
    #[inline]
    pub(super) fn limit_due_in(&self, place: Place) -> u64 {
        let shared = if self.limited { self.limit.ready_at().as_nanos() } else { 0 };
        self.lanes.as_ref().map_or(shared, |lanes| shared.max(lanes.due(place)))
    }

    #[cold]
    fn limit_due_among(&self, lanes: &Lanes) -> u64 {
        self.waiting().map(|(place, _)| lanes.due(place)).min().unwrap_or_else(|| lanes.due(Place::Later))
    }

    /// Charges a request served by weight to the client's limits and weight tag, but not to its
    /// reservation, so that service by weight comes on top of the reservation.
    #[inline]
    pub(super) fn charge_weight(&mut self, now: Instant, work: &Work, cost: u32) {
        self.charge(now, work, cost, false);
    }

    #[inline]
    fn charge(&mut self, now: Instant, work: &Work, cost: u32, by_reservation: bool) {
        if self.limited {
            self.limit.take(now, work);
        }
        if let Some(lanes) = &mut self.lanes {
            lanes.charge(now, work, by_reservation);
        }
        self.weight_tag += u128::from(self.step(u64::from(cost)));
    }

    /// Charges a request served by reservation to the client's reservation, limits and weight tag.
    #[inline]
    pub(super) fn charge_reservation(&mut self, now: Instant, work: &Work, cost: u32, virtual_time: VirtualTime) {
        // A slice takes the device like a request of its size.
        let bytes = if work.bytes == 0 { EMPTY_REQUEST_BYTES } else { work.bytes };
        self.reservation.charge(now, 1, bytes);
        self.bound_lead(cost, virtual_time);
        self.charge(now, work, cost, true);
    }

    /// Bounds how far the weight tag is ahead of virtual time, before the client is charged for service out of its turn by
    /// weight.
    #[inline]
    pub(super) fn bound_lead(&mut self, cost: u32, virtual_time: VirtualTime) {
        let most = self.step(MAX_LEAD.max(MAX_LEAD_REQUESTS * u64::from(cost)));
        self.weight_tag = self.weight_tag.min(virtual_time + u128::from(most));
    }

    /// Raises the weight tag if it is behind `virtual_time` by more than `credit` cost units.
    #[inline]
    pub(super) fn catch_up(&mut self, virtual_time: VirtualTime, credit: u64) {
        if self.weight_tag < virtual_time {
            self.weight_tag = self.caught_up(virtual_time, credit);
        }
    }

    /// The weight tag, raised so that it is behind `virtual_time` by at most `credit` cost units.
    #[inline]
    pub(super) fn caught_up(&self, virtual_time: VirtualTime, credit: u64) -> VirtualTime {
        self.weight_tag.max(virtual_time.saturating_sub(self.step(credit).into()))
    }

    #[inline]
    fn step(&self, cost: u64) -> u64 {
        ((u128::from(cost) * u128::from(self.inverse_weight)) >> STEP_SHIFT) as u64
    }
}

fn class(qos: &Qos) -> Class {
    if qos.background { Class::Background } else { Class::Normal }
}

fn inverse(weight: u32) -> u64 {
    (1 << INVERSE_BITS) / u64::from(weight.clamp(1, MAX_WEIGHT))
}
