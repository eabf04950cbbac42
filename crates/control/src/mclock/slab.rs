//! Storage of the queued requests: one array for all clients, a linked list in it for each.
//!
//! No allocation per request, and a client that has nothing queued costs nothing.

use alloc::vec::Vec;

use crate::time::Instant;
use crate::units::Work;

/// The end of a list.
const NONE: u32 = u32::MAX;

/// Below this many slots the array is not worth shrinking.
const KEPT_SLOTS: usize = 256;

/// One client's requests, oldest first.
#[derive(Clone, Copy)]
pub(super) struct Fifo {
    head: u32,
    tail: u32,
    len: u32,
}

impl Fifo {
    pub(super) const EMPTY: Self = Self { head: NONE, tail: NONE, len: 0 };

    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A queued request without its payload.
#[derive(Clone, Copy)]
pub(super) struct Request {
    pub(super) queued_at: Instant,
    pub(super) work: Work,
    /// In cost units, at least 1.
    pub(super) cost: u32,
}

struct Slot<R> {
    /// The next request of the same client, or the next free slot.
    next: u32,
    request: Request,
    payload: Option<R>,
}

/// The requests of all clients.
pub(super) struct Slab<R> {
    slots: Vec<Slot<R>>,
    /// Slots given back, most recently used (so most likely cached) first.
    free: u32,
    /// Slots in use or on the free list; those from here on were not used since the slab was last empty.
    touched: usize,
    len: usize,
    /// How many slots were touched between one time the slab was empty and the next; falls off slowly.
    recent_peak: usize,
}

impl<R> Slab<R> {
    pub(super) const fn new() -> Self {
        Self { slots: Vec::new(), free: NONE, touched: 0, len: 0, recent_peak: 0 }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Appends a request, unless there are 2³² - 1 already. Inlined, like the other steps of every request, however large `R`
    /// is: the compiler would rather copy it from call to call.
    #[inline(always)]
    pub(super) fn push(&mut self, fifo: &mut Fifo, request: Request, payload: R) -> Result<(), R> {
        let slot = Slot { next: NONE, request, payload: Some(payload) };
        let index = if self.free != NONE {
            let index = self.free;
            let place = &mut self.slots[index as usize];
            self.free = place.next;
            *place = slot;
            index
        } else {
            let index = self.touched;
            if index < self.slots.len() {
                self.slots[index] = slot;
            } else if index < NONE as usize {
                self.slots.push(slot);
            } else {
                return slot.payload.map_or(Ok(()), Err);
            }
            self.touched += 1;
            index as u32
        };
        if fifo.len == 0 {
            fifo.head = index;
        } else {
            self.slots[fifo.tail as usize].next = index;
        }
        fifo.tail = index;
        fifo.len += 1;
        self.len += 1;
        Ok(())
    }

    /// The oldest request.
    #[inline]
    pub(super) fn front(&self, fifo: &Fifo) -> Option<(&Request, &R)> {
        self.slots.get(fifo.head as usize).and_then(|slot| Some((&slot.request, slot.payload.as_ref()?)))
    }

    /// Takes the oldest request.
    #[inline]
    pub(super) fn pop(&mut self, fifo: &mut Fifo) -> Option<R> {
        let slot = self.slots.get_mut(fifo.head as usize)?;
        let payload = slot.payload.take();
        let index = core::mem::replace(&mut fifo.head, slot.next);
        slot.next = core::mem::replace(&mut self.free, index);
        fifo.len -= 1;
        self.len -= 1;
        if self.len == 0 {
            self.restart();
        }
        payload
    }

    /// The slab is empty: use it from its start again, and give memory back that a burst long past needed.
    #[inline]
    fn restart(&mut self) {
        self.recent_peak = self.touched.max(self.recent_peak - self.recent_peak / 64);
        self.free = NONE;
        self.touched = 0;
        if self.slots.len() > KEPT_SLOTS && self.recent_peak < self.slots.len() / 4 {
            self.slots.truncate((self.recent_peak * 2).max(KEPT_SLOTS));
            self.slots.shrink_to_fit();
        }
    }

    /// Slots allocated.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.slots.len()
    }
}
