//! The ring by which one worker hands records to the recorder's thread: bounded, with one producer and one consumer, without
//! locks and system calls. A record for which there is no room is counted as lost.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// A counter on cache lines of its own, so that producer and consumer do not disturb each other.
#[derive(Default)]
#[repr(align(128))]
struct Apart<T>(T);

/// The memory that producer and consumer share.
struct Ring<T> {
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
    /// Number of records that the producer has put in.
    put: Apart<AtomicUsize>,
    /// Number of records that the consumer has taken out; at most `put`, and less by at most the number of slots.
    taken: Apart<AtomicUsize>,
    /// Number of records for which there was no room.
    lost: AtomicU64,
    /// Number of lost records that the consumer has taken notice of.
    noticed: AtomicU64,
    /// Time of the first lost record that the consumer had not taken notice of, in nanoseconds.
    lost_from: AtomicU64,
    /// Time of the newest lost record, in nanoseconds.
    lost_to: AtomicU64,
    /// True once the producer is gone.
    ended: AtomicBool,
}

// SAFETY: a slot is written by the only producer while it is outside of `taken..put`, and read by the only consumer while it is
// inside; `put` and `taken` order these accesses. `T: Copy` needs no drop.
unsafe impl<T: Copy + Send> Sync for Ring<T> {}

/// The end of a ring that puts records in. A worker owns it.
pub(crate) struct Producer<T: Copy + Send> {
    ring: Arc<Ring<T>>,
    put: usize,
    /// The consumer's progress at the producer's newest look, so that the look is rare.
    taken: usize,
}

/// The end of a ring that takes records out. The recorder's thread owns it.
pub(crate) struct Consumer<T: Copy + Send> {
    ring: Arc<Ring<T>>,
    taken: usize,
    /// Time of the newest lost record that [`Self::drain`] has returned, in nanoseconds.
    lost_to: u64,
}

/// Records for which there was no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    /// Number of records.
    pub(crate) requests: u64,
    /// Time of the first one, in nanoseconds.
    pub(crate) from_ns: u64,
    /// Time of the last one, in nanoseconds.
    pub(crate) to_ns: u64,
}

/// A ring for `capacity` records, by its two ends; `None` if the system has no memory for it. `capacity` must be a power of two.
pub(crate) fn ring<T: Copy + Send>(capacity: usize) -> Option<(Producer<T>, Consumer<T>)> {
    assert!(capacity.is_power_of_two(), "the number of slots is a power of two");
    let mut slots = Vec::new();
    slots.try_reserve_exact(capacity).ok()?;
    slots.extend(std::iter::repeat_with(|| UnsafeCell::new(MaybeUninit::uninit())).take(capacity));
    let ring = Arc::new(Ring {
        slots: slots.into_boxed_slice(),
        put: Apart::default(),
        taken: Apart::default(),
        lost: AtomicU64::new(0),
        noticed: AtomicU64::new(0),
        lost_from: AtomicU64::new(0),
        lost_to: AtomicU64::new(0),
        ended: AtomicBool::new(false),
    });
    Some((Producer { ring: Arc::clone(&ring), put: 0, taken: 0 }, Consumer { ring, taken: 0, lost_to: 0 }))
}

impl<T: Copy + Send> Producer<T> {
    /// Puts a record in; counts it as lost at the time `now_ns` if there is no room.
    #[inline]
    pub(crate) fn push(&mut self, record: T, now_ns: u64) {
        let ring = &*self.ring;
        if self.put.wrapping_sub(self.taken) == ring.slots.len() {
            self.taken = ring.taken.0.load(Ordering::Acquire);
            if self.put.wrapping_sub(self.taken) == ring.slots.len() {
                return self.lose(now_ns);
            }
        }
        let slot = &ring.slots[self.put & (ring.slots.len() - 1)];
        // SAFETY: the slot is outside of `taken..put`, so the consumer does not read it, and there is no other producer.
        unsafe { slot.get().write(MaybeUninit::new(record)) };
        self.put = self.put.wrapping_add(1);
        ring.put.0.store(self.put, Ordering::Release);
    }

    #[cold]
    fn lose(&self, now_ns: u64) {
        let ring = &*self.ring;
        let lost = ring.lost.load(Ordering::Relaxed);
        if lost == ring.noticed.load(Ordering::Acquire) {
            ring.lost_from.store(now_ns, Ordering::Relaxed);
        }
        ring.lost_to.store(now_ns, Ordering::Relaxed);
        ring.lost.store(lost + 1, Ordering::Release);
    }
}

impl<T: Copy + Send> Drop for Producer<T> {
    fn drop(&mut self) {
        self.ring.ended.store(true, Ordering::Release);
    }
}

impl<T: Copy + Send> Consumer<T> {
    /// Appends all records to `into`, oldest first. Returns the records lost since the previous call, if any.
    pub(crate) fn drain(&mut self, into: &mut Vec<T>) -> Option<Lost> {
        let ring = &*self.ring;
        let put = ring.put.0.load(Ordering::Acquire);
        while self.taken != put {
            let slot = &ring.slots[self.taken & (ring.slots.len() - 1)];
            // SAFETY: the slot is inside of `taken..put`: the producer has written it, and does not write it again before it
            // sees the new `taken`.
            into.push(unsafe { (*slot.get()).assume_init() });
            self.taken = self.taken.wrapping_add(1);
        }
        ring.taken.0.store(self.taken, Ordering::Release);
        let lost = ring.lost.load(Ordering::Acquire);
        let requests = lost - ring.noticed.load(Ordering::Relaxed);
        if requests == 0 {
            return None;
        }
        let to_ns = ring.lost_to.load(Ordering::Relaxed);
        let from_ns = ring.lost_from.load(Ordering::Relaxed).max(self.lost_to).min(to_ns);
        ring.noticed.store(lost, Ordering::Release);
        self.lost_to = to_ns;
        Some(Lost { requests, from_ns, to_ns })
    }

    /// True if the producer was gone before the newest call of [`Self::drain`], so that nothing more comes. To be called before
    /// that call.
    pub(crate) fn has_ended(&self) -> bool {
        self.ring.ended.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_counted_with_its_times() {
        let (mut producer, mut consumer) = ring::<u64>(4).expect("memory");
        (0..4).for_each(|n| producer.push(n, 10 + n));
        (4..7).for_each(|n| producer.push(n, 10 + n));
        let mut taken = Vec::new();
        let lost = consumer.drain(&mut taken);
        assert_eq!((taken.as_slice(), lost), (&[0, 1, 2, 3][..], Some(Lost { requests: 3, from_ns: 14, to_ns: 16 })));
        // There is room again, and what was counted is not counted twice.
        (7..11).for_each(|n| producer.push(n, 10 + n));
        taken.clear();
        assert_eq!((consumer.drain(&mut taken), taken.as_slice()), (None, &[7, 8, 9, 10][..]));
        (11..16).for_each(|n| producer.push(n, 10 + n));
        assert_eq!(consumer.drain(&mut taken), Some(Lost { requests: 1, from_ns: 25, to_ns: 25 }));
        assert!(!consumer.has_ended());
        drop(producer);
        assert!(consumer.has_ended());
    }

    #[test]
    fn with_two_threads_every_record_is_either_taken_in_order_or_counted() {
        const RECORDS: u64 = 400_000;
        let (mut producer, mut consumer) = ring::<[u64; 4]>(64).expect("memory");
        let (overflows, has_overflowed) = std::sync::mpsc::channel();
        let pushing = std::thread::spawn(move || {
            for n in 1..=RECORDS {
                producer.push([n, !n, n.rotate_left(7), n], n);
                if n == 100 {
                    // Before the first is taken, so that some are taken and some are lost for certain.
                    overflows.send(()).expect("the other thread waits");
                }
                if n % 50 == 0 {
                    std::thread::yield_now();
                }
            }
        });
        has_overflowed.recv().expect("the other thread runs");
        let (mut taken, mut lost, mut lost_to, mut newest) = (0, 0, 0, 0);
        let mut batch = Vec::new();
        loop {
            let ended = consumer.has_ended();
            if let Some(part) = consumer.drain(&mut batch) {
                assert!(part.from_ns <= part.to_ns && part.from_ns >= lost_to, "{part:?} after {lost_to}");
                lost_to = part.to_ns;
                lost += part.requests;
            }
            for [n, inverse, rotated, again] in batch.drain(..) {
                assert!(n > newest && inverse == !n && rotated == n.rotate_left(7) && again == n, "a torn record {n}");
                newest = n;
                taken += 1;
            }
            if ended {
                break;
            }
            std::thread::yield_now();
        }
        pushing.join().unwrap();
        assert_eq!(taken + lost, RECORDS, "{taken} taken and {lost} lost");
        assert!(taken >= 64 && lost >= 36, "{taken} taken and {lost} lost");
    }
}
