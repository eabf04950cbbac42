//! Connections that can be read, in the order of what has been read from them before.
//!
//! What one read brings is bounded, but not how many connections have something at once: behind 64 of them that write as fast
//! as they can, a small request would wait for 25 ms in each round. So they go by fair queueing, by the bytes that they will
//! have had if they bring as much as last time: one that asks for little goes first. The others go on for a
//! [slice](super::pump::SLICE) of each round.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::request::ConnKey;

/// A read costs as much as so many bytes that it copies: a system call and the work for a request, 1 µs.
const READ: u64 = 8 << 10;
/// Reads at once, in bytes, and between two looks at the clock: some 10 µs.
pub(super) const FEW: u64 = 64 << 10;

/// The place of a connection among those of its worker.
#[derive(Debug, Default)]
pub(crate) struct Share {
    /// All that was read of it, in bytes from the beginning of the queue; what it did not ask for is forgotten.
    until: u64,
    /// What was read of it last time.
    last: u64,
    /// True if it is in the queue.
    waits: bool,
}

/// The queue. Pushing and taking are O(log n).
#[derive(Default)]
pub(super) struct Readers {
    /// By their end, then as they came, with their start and the key as epoll carries it.
    queue: BinaryHeap<Reverse<(u64, u64, u64, u64)>>,
    /// Where the connection began that was read last.
    now: u64,
    /// Connections that came before.
    came: u64,
    /// What was read in this round.
    round: u64,
}

impl Readers {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// True while so little was read in this round that nobody waits for it.
    pub(super) fn has_read_little(&self) -> bool {
        self.round < FEW
    }

    /// What was read in the round that ends.
    pub(super) fn end_round(&mut self) -> u64 {
        std::mem::take(&mut self.round)
    }

    /// A connection can be read; it may wait already.
    pub(super) fn push(&mut self, key: ConnKey, share: &mut Share) {
        if !std::mem::replace(&mut share.waits, true) {
            let start = share.until.max(self.now);
            self.queue.push(Reverse((start + share.last, self.came, start, key.to_event())));
            self.came += 1;
        }
    }

    /// The next to be read, if it is still there.
    pub(super) fn pop(&mut self) -> Option<ConnKey> {
        let Reverse((_, _, start, key)) = self.queue.pop()?;
        self.now = self.now.max(start);
        Some(ConnKey::from_event(key))
    }

    /// So many bytes were read of a connection.
    #[inline]
    pub(super) fn charge(&mut self, share: &mut Share, bytes: u64) {
        share.waits = false;
        share.last = READ + bytes;
        share.until = share.until.max(self.now) + share.last;
        self.round += share.last;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(slot: u32) -> ConnKey {
        ConnKey { slot, generation: 1 }
    }

    /// Those that write a lot share what is left by one that asks for little, which never waits for more than one of them.
    #[test]
    fn who_asks_for_little_goes_first() {
        const BUSY: usize = 64;
        let mut readers = Readers::default();
        let mut shares: Vec<Share> = (0..=BUSY).map(|_| Share::default()).collect();
        let mut read = [0; BUSY + 1];
        let mut since = 0;
        for turn in 0..10_000 {
            for (slot, share) in shares.iter_mut().enumerate().take(BUSY) {
                readers.push(key(slot as u32), share);
            }
            if turn % 3 == 0 {
                readers.push(key(BUSY as u32), &mut shares[BUSY]);
                since = 0;
            }
            let slot = readers.pop().unwrap().slot as usize;
            let bytes = if slot == BUSY { 28 } else { 1 << 20 };
            readers.charge(&mut shares[slot], bytes);
            read[slot] += bytes;
            since += 1;
            // Before it has been read once, it may bring as much as any.
            assert!(turn < 3 || !shares[BUSY].waits || since < 2, "turn {turn}");
        }
        assert_eq!(read[BUSY], 28 * 10_000_u64.div_ceil(3));
        let (least, most) = (read[..BUSY].iter().min().unwrap(), read[..BUSY].iter().max().unwrap());
        assert!(most - least <= 1 << 20, "{least} to {most}");
    }

    /// A connection that waits is in the queue once, and one that was silent has saved nothing.
    #[test]
    fn silence_is_not_saved_up() {
        let mut readers = Readers::default();
        let (mut busy, mut silent) = (Share::default(), Share::default());
        for _ in 0..100 {
            readers.push(key(0), &mut busy);
            readers.push(key(0), &mut busy);
            assert_eq!(readers.pop(), Some(key(0)));
            assert!(readers.is_empty());
            readers.charge(&mut busy, 1 << 20);
        }
        let turns: Vec<u32> = (0..6)
            .map(|_| {
                readers.push(key(0), &mut busy);
                readers.push(key(1), &mut silent);
                let key = readers.pop().unwrap();
                readers.charge(if key.slot == 0 { &mut busy } else { &mut silent }, 1 << 20);
                key.slot
            })
            .collect();
        assert_eq!(turns.iter().filter(|&&slot| slot == 1).count(), 3, "{turns:?}");
    }
}
