//! Storage of the queued requests: one array for all clients, with linked lists in it for each client.
//!
//! There is no allocation per request, and a client without queued requests takes no space in the array.

use alloc::vec::Vec;

use crate::time::Instant;
use crate::units::Work;

/// Stands for "no slot" at the end of a list, in place of the next slot's index.
pub(super) const NONE: u32 = u32::MAX;

/// The array of slots is not shrunk below this many slots.
const KEPT_SLOTS: usize = 256;

/// A list of queued requests of one client, oldest first: indices of slots in a [`Slab`], and the length.
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
    /// Cost of the request in cost units, at least 1.
    pub(super) cost: u32,
}

struct Slot<R> {
    /// Index of the slot of the next request in the same list, or of the next free slot; `NONE` at the end.
    next: u32,
    /// Index of the client whose search paused behind this request; `NONE` for most requests. See [`Slab::sift`].
    paused: u32,
    request: Request,
    payload: Option<R>,
}

/// The queued requests of all clients.
pub(super) struct Slab<R> {
    slots: Vec<Slot<R>>,
    /// Index of the first slot of the free list; the most recently used slot, most likely cached, comes first.
    free: u32,
    /// Number of slots in use or on the free list; slots from this index on were not used since the slab was last empty.
    touched: usize,
    len: usize,
    /// Largest recent value of `touched` when the slab became empty; falls by a 64th each time the slab becomes empty.
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

    /// Appends a request to the list `fifo`; gives the payload back if the slab holds 2³² - 1 requests already. Inlined, like
    /// the other steps of every request, however large `R` is: otherwise the compiler copies it from call to call.
    #[inline(always)]
    pub(super) fn push(&mut self, fifo: &mut Fifo, request: Request, payload: R) -> Result<(), R> {
        let slot = Slot { next: NONE, paused: NONE, request, payload: Some(payload) };
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
        self.append(fifo, index);
        self.len += 1;
        Ok(())
    }

    /// Makes the slot `index`, which no slot follows, the last one of the list `fifo`.
    #[inline(always)]
    fn append(&mut self, fifo: &mut Fifo, index: u32) {
        if fifo.len == 0 {
            fifo.head = index;
        } else {
            self.slots[fifo.tail as usize].next = index;
        }
        fifo.tail = index;
        fifo.len += 1;
    }

    /// The oldest request of the list `fifo` with its payload; `None` if the list is empty.
    #[inline]
    pub(super) fn front(&self, fifo: &Fifo) -> Option<(&Request, &R)> {
        self.slots.get(fifo.head as usize).and_then(|slot| Some((&slot.request, slot.payload.as_ref()?)))
    }

    /// Removes the oldest request of the list `fifo` and returns its payload; `None` if the list is empty.
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

    /// Moves the oldest request of the list `from` to the end of the list `to`, in the slot in which it is; does nothing if `from`
    /// is empty.
    #[inline]
    pub(super) fn shift(&mut self, from: &mut Fifo, to: &mut Fifo) {
        let index = from.head;
        let Some(slot) = self.slots.get_mut(index as usize) else { return };
        from.head = core::mem::replace(&mut slot.next, NONE);
        slot.paused = NONE;
        from.len -= 1;
        self.append(to, index);
    }

    /// Goes on with a search of the list `fifo` of the client with the index `owner`, behind the request in the slot `after`, or
    /// from the oldest one on ([`NONE`], or that request has left the list: then so have all before it). Takes out those of the
    /// next `most` requests for which `is_taken` is true, each with the instant at which it was queued. Returns how many were
    /// searched: fewer than `most` at the end of the list.
    pub(super) fn sift(
        &mut self,
        fifo: &mut Fifo,
        owner: u32,
        after: &mut u32,
        most: u32,
        mut is_taken: impl FnMut(&R) -> bool,
        taken: &mut Vec<(Instant, R)>,
    ) -> u32 {
        let paused = self.slots.get(*after as usize);
        let is_there = paused.is_some_and(|slot| slot.payload.is_some() && slot.paused == owner);
        let mut before = if is_there { *after } else { NONE };
        let mut searched = 0;
        while searched < most {
            let index = if before == NONE { fifo.head } else { self.slots[before as usize].next };
            let Some(slot) = self.slots.get_mut(index as usize) else { break };
            searched += 1;
            let Some(payload) = slot.payload.take_if(|payload| is_taken(payload)) else {
                before = index;
                continue;
            };
            taken.push((slot.request.queued_at, payload));
            let next = core::mem::replace(&mut slot.next, self.free);
            self.free = index;
            if before == NONE {
                fifo.head = next;
            } else {
                self.slots[before as usize].next = next;
            }
            if fifo.tail == index {
                fifo.tail = before;
            }
            fifo.len -= 1;
            self.len -= 1;
        }
        *after = before;
        if let Some(slot) = self.slots.get_mut(before as usize) {
            slot.paused = owner;
        }
        if self.len == 0 {
            self.restart();
        }
        searched
    }

    /// Makes the empty slab use its slots from the first one again, and frees memory that only a burst long ago needed.
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

    /// Number of slots allocated.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.slots.len()
    }
}
