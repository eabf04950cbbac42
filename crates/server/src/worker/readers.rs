//! Decides in which order a worker reads from its connections: first from those from which little was read before.
//!
//! The bytes of one read are bounded, but not the number of connections with bytes to read: behind 64 connections that write
//! as fast as they can, a small request would wait for milliseconds in each round of the worker's loop. A connection whose newest
//! read brought little is read at once while no connection waits. The others wait in fair queues, one for each [epoll
//! set](super::sources) of the worker, in the order of the cost that each will have had after its next read, if that brings
//! as much as its newest one. The worker reads from each set for a [turn](super::Worker::turn) of each round.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use evenkeel_control::{Duration, Instant};

use super::request::ConnKey;
use super::sources::Set;

/// Cost of the system call of a read, 1 µs. The unit of all costs is the time in which one byte is copied.
const CALL: u64 = 8 << 10;
/// Cost of each request that a read brings: 100 ns.
const REQUEST: u64 = 1 << 10;
/// A read that costs no more than this, some 5 µs, counts as one that brings little.
const LITTLE: u64 = 32 << 10;
/// Cost of the reads between two looks at the clock: some 10 µs.
pub(super) const LOOK_AFTER: u64 = 64 << 10;
/// A connection that was not read for this time counts as idle, at the latest after twice this time.
pub(super) const PERIOD: Duration = Duration::from_secs(1);

/// Cost of reads that take `time`.
const fn cost_of(time: Duration) -> u64 {
    time.as_nanos() / 1_000 * CALL
}

/// The place of a connection in the order in which its worker reads connections.
#[derive(Debug, Default)]
pub(crate) struct Share {
    /// The connection's virtual time: the cost of each of its reads, times the number of its tenant's connections, is added.
    /// It starts anew from the queue's virtual time when the connection had nothing to read. In 64 bits it would wrap within
    /// months where a tenant has thousands of connections.
    until: u128,
    /// Cost of the connection's newest read, but at least half of this field's previous value; 0 before the first read.
    last: u64,
    /// True if the connection waits in its set's queue.
    waits: bool,
    /// True if the connection was taken from the queue to be read, and the cost of that read is not counted yet.
    was_taken: bool,
    /// Number of the [`PERIOD`] in which the connection was read last; `None` before the first read.
    read_in: Option<u32>,
}

/// The fair queue of the connections of one epoll set. Pushing and taking are O(log n).
#[derive(Default)]
struct Queue {
    /// Waiting connections: expected virtual time after the next read, number in order of arrival, virtual time before that
    /// read, and the connection's key as epoll event data.
    waiting: BinaryHeap<Reverse<(u128, u64, u128, u64)>>,
    /// The queue's virtual time: the latest virtual time, before its read, of a connection that was read.
    now: u128,
    /// The latest virtual time, after its read, of a connection that was read.
    latest: u128,
}

/// The queues of a worker's connections that can be read.
#[derive(Default)]
pub(super) struct Readers {
    own: Queue,
    crowd: Queue,
    /// Number of times that a connection was queued so far; numbers the arrivals.
    came: u64,
    /// Cost of the reads since the newest call of [`Self::take_unseen`] or [`Self::settle`].
    unseen: u64,
    /// Number of the present [`PERIOD`].
    period: u32,
    /// When the present period ends.
    period_ends: Instant,
    /// Number of connections that were read in the period before this one, and in this one so far.
    active: [u32; 2],
}

impl Readers {
    /// Queues without connections; the first period begins at `now`.
    pub(super) fn since(now: Instant) -> Self {
        Self { period_ends: now + PERIOD, ..Self::default() }
    }

    /// Begins a new period if the present one has ended at `now`.
    #[inline]
    pub(super) fn pass(&mut self, now: Instant) {
        if now >= self.period_ends {
            // One that lasted longer, because the worker slept, has ended in idleness.
            let before = if now >= self.period_ends + PERIOD { 0 } else { self.active[1] };
            self.active = [before, 0];
            self.period = self.period.wrapping_add(1);
            self.period_ends = now + PERIOD;
        }
    }

    /// True if more than one connection was read lately, in this period or in the one before.
    #[inline]
    pub(super) fn are_several(&self) -> bool {
        self.active[0] > 1 || self.active[1] > 1
    }

    fn queue(&mut self, set: Set) -> &mut Queue {
        match set {
            Set::Own => &mut self.own,
            Set::Crowd => &mut self.crowd,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.own.waiting.is_empty() && self.crowd.waiting.is_empty()
    }

    /// True if connections of the crowd set wait to be read, so that epoll need not be asked for more of them.
    pub(super) fn has_crowd(&self) -> bool {
        !self.crowd.waiting.is_empty()
    }

    /// True if a connection may be read at once: its reads bring little, no connection waits, and the reads of this round have
    /// taken less than `turn`. After that, connections that bring little wait in the queues, too.
    #[inline]
    pub(super) fn may_go_first(&self, share: &Share, turn: Duration) -> bool {
        self.is_empty() && share.last <= LITTLE && self.unseen < cost_of(turn)
    }

    /// Queues a connection that can be read, unless it waits already; `tenant`: number of its tenant's connections.
    pub(super) fn push(&mut self, key: ConnKey, set: Set, share: &mut Share, tenant: u32) {
        if !std::mem::replace(&mut share.waits, true) {
            let came = self.came;
            self.came += 1;
            let queue = self.queue(set);
            let start = share.until.max(queue.now);
            share.until = start;
            // One that was never read may bring little or much.
            let brings = if share.last == 0 { LITTLE } else { share.last };
            queue.waiting.push(Reverse((start + u128::from(brings) * u128::from(tenant), came, start, key.to_event())));
        }
    }

    /// Takes from a set's queue the key of the next connection to be read, which may have been closed.
    pub(super) fn pop(&mut self, set: Set) -> Option<ConnKey> {
        let queue = self.queue(set);
        let Reverse((_, _, start, key)) = queue.waiting.pop()?;
        queue.now = queue.now.max(start);
        Some(ConnKey::from_event(key))
    }

    /// To be called when no connection waits to be read: all connections start anew from the same virtual time.
    #[inline]
    pub(super) fn settle(&mut self) {
        self.unseen = 0;
        for queue in [&mut self.own, &mut self.crowd] {
            queue.now = queue.latest;
        }
    }

    /// Counts a read from a connection. `tenant`: number of its tenant's connections; `bytes`: bytes that the read brought or
    /// that earlier reads left over; `requests`: number of requests parsed; `took`: duration of the read if that was
    /// measured, else zero.
    #[inline]
    pub(super) fn charge(
        &mut self,
        set: Set,
        share: &mut Share,
        tenant: u32,
        bytes: u64,
        requests: u64,
        took: Duration,
    ) {
        let cost = (CALL + bytes + requests * REQUEST).max(cost_of(took));
        share.last = cost.max(share.last / 2);
        if share.read_in != Some(self.period) {
            share.read_in = Some(self.period);
            self.active[1] += 1;
        }
        self.unseen += cost;
        let queue = self.queue(set);
        // From where it was put into the queue, however far others have come meanwhile.
        let start = if std::mem::take(&mut share.was_taken) { share.until } else { share.until.max(queue.now) };
        share.until = start + u128::from(cost) * u128::from(tenant);
        queue.latest = queue.latest.max(share.until);
    }

    /// Cost of the reads since the previous call of this function or of [`Self::settle`].
    pub(super) fn take_unseen(&mut self) -> u64 {
        std::mem::take(&mut self.unseen)
    }
}

impl Share {
    /// Notes that the connection was taken from the queue to be read.
    pub(super) fn taken(&mut self) {
        (self.waits, self.was_taken) = (false, true);
    }

    /// True if the connection waits in its set's queue.
    pub(super) fn waits(&self) -> bool {
        self.waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURN: Duration = Duration::from_micros(250);

    fn key(slot: u32) -> ConnKey {
        ConnKey { slot, generation: 1 }
    }

    /// Reads the next connection of a set, which brings `bytes(slot)` bytes; returns its slot.
    fn read(readers: &mut Readers, set: Set, shares: &mut [Share], bytes: impl Fn(usize) -> u64) -> Option<usize> {
        let slot = readers.pop(set)?.slot as usize;
        shares[slot].taken();
        readers.charge(set, &mut shares[slot], 1, bytes(slot), 1, Duration::ZERO);
        Some(slot)
    }

    /// Connections that write a lot share the time that a connection with small requests leaves; the latter never waits for
    /// more than one read of another connection.
    #[test]
    fn who_asks_for_little_goes_first() {
        const BUSY: usize = 64;
        let mut readers = Readers::default();
        let mut shares: Vec<Share> = (0..=BUSY).map(|_| Share::default()).collect();
        let (mut had, mut since) = ([0; BUSY + 1], 0);
        // It has asked for much in all, at times when none waited.
        for _ in 0..1_000_000 {
            readers.charge(Set::Own, &mut shares[BUSY], 1, 28, 1, Duration::ZERO);
        }
        readers.settle();
        for turn in 0..10_000 {
            for (slot, share) in shares.iter_mut().enumerate().take(BUSY) {
                readers.push(key(slot as u32), Set::Own, share, 1);
            }
            if turn % 3 == 0 {
                readers.push(key(BUSY as u32), Set::Own, &mut shares[BUSY], 1);
                since = 0;
            }
            let slot = read(&mut readers, Set::Own, &mut shares, |slot| if slot == BUSY { 28 } else { 1 << 20 });
            had[slot.unwrap()] += 1;
            since += 1;
            // At first, those that were never read may bring little, too.
            assert!(turn < 2 * BUSY || !shares[BUSY].waits || since < 2, "turn {turn}");
        }
        assert!(had[BUSY] > 10_000 / 3 - 64, "{}", had[BUSY]);
        let (least, most) = (had[..BUSY].iter().min().unwrap(), had[..BUSY].iter().max().unwrap());
        assert!(most - least <= 1, "{least} to {most}");
    }

    /// A connection that waits is in the queue only once, and a connection that was silent has saved up no advantage.
    #[test]
    fn silence_is_not_saved_up() {
        let mut readers = Readers::default();
        let mut shares = [Share::default(), Share::default()];
        for _ in 0..100 {
            readers.push(key(0), Set::Own, &mut shares[0], 1);
            readers.push(key(0), Set::Own, &mut shares[0], 1);
            assert_eq!(read(&mut readers, Set::Own, &mut shares, |_| 1 << 20), Some(0));
            assert!(readers.is_empty());
        }
        // It begins where the other one is, and brings as much from then on.
        readers.charge(Set::Own, &mut shares[1], 1, 1 << 20, 1, Duration::ZERO);
        let turns: Vec<usize> = (0..20)
            .map(|_| {
                for (slot, share) in (0..).zip(&mut shares) {
                    readers.push(key(slot), Set::Own, share, 1);
                }
                read(&mut readers, Set::Own, &mut shares, |_| 1 << 20).unwrap()
            })
            .collect();
        let silent = turns.iter().filter(|&&slot| slot == 1).count();
        assert!((9..=11).contains(&silent), "{turns:?}");
    }

    /// A connection whose read brought much is not read at once; after some reads that bring little, it is again.
    #[test]
    fn who_brings_much_waits_for_its_turn() {
        let (mut readers, mut share) = (Readers::default(), Share::default());
        assert!(readers.may_go_first(&share, TURN));
        readers.charge(Set::Own, &mut share, 1, 256 << 10, 4, Duration::ZERO);
        assert!(!readers.may_go_first(&share, TURN));
        readers.charge(Set::Own, &mut share, 1, 28, 1, Duration::ZERO);
        assert!(!readers.may_go_first(&share, TURN), "one small read between large ones makes no difference");
        (0..3).for_each(|_| readers.charge(Set::Own, &mut share, 1, 28, 1, Duration::ZERO));
        assert!(readers.may_go_first(&share, TURN));
        readers.push(key(0), Set::Crowd, &mut Share::default(), 1);
        assert!(!readers.may_go_first(&share, TURN), "others wait");
    }

    #[test]
    fn the_order_holds_however_long_a_server_runs() {
        let (mut readers, mut busy, mut light) = (Readers::default(), Share::default(), Share::default());
        for _ in 0..64 {
            readers.charge(Set::Crowd, &mut busy, u32::MAX, 1 << 30, 1, Duration::ZERO);
            readers.settle();
        }
        readers.charge(Set::Crowd, &mut light, 1, 28, 1, Duration::ZERO);
        readers.push(key(0), Set::Crowd, &mut busy, u32::MAX);
        readers.push(key(1), Set::Crowd, &mut light, 1);
        assert_eq!(readers.pop(Set::Crowd), Some(key(1)));
    }

    /// A tenant with many connections gets no more than a tenant with one.
    #[test]
    fn tenants_share_whatever_connections_they_have() {
        const CROWD: u32 = 63;
        let mut readers = Readers::default();
        let mut shares: Vec<Share> = (0..=CROWD).map(|_| Share::default()).collect();
        let mut had = [0, 0];
        for _ in 0..10_000 {
            let tenant = |slot| if slot == 0 { 1 } else { CROWD };
            for (slot, share) in (0..).zip(&mut shares) {
                readers.push(key(slot), Set::Own, share, tenant(slot));
            }
            let slot = readers.pop(Set::Own).unwrap().slot;
            let (share, tenant) = (&mut shares[slot as usize], tenant(slot));
            share.taken();
            readers.charge(Set::Own, share, tenant, 1 << 20, 1, Duration::ZERO);
            had[usize::from(slot > 0)] += 1;
        }
        assert!((4_800..=5_200).contains(&had[0]), "{had:?}");
    }

    /// A read that takes long has a cost, though it brings nothing; and when much was read in a round, all connections must
    /// wait in the queues.
    #[test]
    fn a_read_that_brings_nothing_may_cost_a_lot() {
        let (mut readers, mut share) = (Readers::default(), Share::default());
        readers.charge(Set::Own, &mut share, 1, 0, 0, Duration::from_micros(20));
        assert!(!readers.may_go_first(&share, TURN));
        // As much as the turn in force lets the worker read.
        for (turn, most) in [(TURN, 2), (Duration::from_micros(100), 1)] {
            let (mut readers, mut others) = (Readers::default(), Vec::new());
            while readers.may_go_first(&Share::default(), turn) {
                let mut share = Share::default();
                readers.charge(Set::Own, &mut share, 1, 1 << 20, 4, Duration::ZERO);
                others.push(share);
            }
            assert_eq!(others.len(), most);
            readers.settle();
            assert!(readers.may_go_first(&Share::default(), turn));
        }
    }

    #[test]
    fn a_connection_that_is_not_read_for_a_while_counts_as_idle() {
        let at = |tenths: u64| Instant::ZERO + Duration::from_nanos(PERIOD.as_nanos() / 10 * tenths);
        let mut readers = Readers::since(at(0));
        let [mut busy, mut rare, mut third] = [(); 3].map(|()| Share::default());
        let read = |readers: &mut Readers, share: &mut Share| {
            readers.charge(Set::Own, share, 1, 28, 1, Duration::ZERO);
            readers.are_several()
        };
        assert!(!read(&mut readers, &mut busy) && !read(&mut readers, &mut busy), "one, however often");
        assert!(read(&mut readers, &mut rare), "at once");
        for tenths in 1..20 {
            readers.pass(at(tenths));
            assert!(read(&mut readers, &mut busy), "after {tenths} tenths of a period");
        }
        readers.pass(at(20));
        assert!(!read(&mut readers, &mut busy));
        readers.pass(at(25));
        assert!(read(&mut readers, &mut rare));
        // All are silent, and the worker sleeps.
        readers.pass(at(60));
        assert!(!readers.are_several() && !read(&mut readers, &mut third) && read(&mut readers, &mut busy));
    }
}
