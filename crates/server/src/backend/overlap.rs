//! Keeps operations through the page cache from meeting direct writes past it.
//!
//! A direct write drops the pages it covers from the cache before and after. It cannot drop a page that a write
//! through the cache made dirty in between; the kernel then notes an I/O error for the file, and the next sync
//! fails although nothing is lost. On block devices the kernel does not drop the pages after an asynchronous direct write, so
//! that a page read during the write would stay in the cache with old data. Therefore an operation through the cache and
//! a direct write wait for each other where they touch the same page: the first to come goes first, so that neither
//! waits for ever.
//!
//! Most clients only ever send aligned requests. Direct writes are therefore only counted at first, and listed with
//! their pages once an operation goes through the cache. The first such operation waits for all direct writes counted so far.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::operation::{Report, Reports};

/// Bit of [`Overlaps::gate`]: direct writes are to be listed. The other bits count the direct writes that are not listed.
const LISTING: u64 = 1 << 63;
/// Direct writes in a row without an operation through the cache, after which direct writes are only counted again.
const QUIET_AFTER: u32 = 1024;

/// Class of an operation: operations of one lane must not overlap with those of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Reads, writes, or zeroes edges of pages through the page cache.
    Cached,
    /// Writes past the page cache.
    DirectWrite,
}

/// The pass that an operation gets when it enters, and gives back when it is done.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    /// A direct write that was only counted.
    Counted,
    /// An operation on the list, with its number.
    Listed(u64),
}

/// The operations of one file that might disturb each other.
#[derive(Default)]
pub(crate) struct Overlaps {
    gate: AtomicU64,
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    entries: Vec<Entry>,
    next_id: u64,
    /// Entries that go through the cache.
    cached: usize,
    quiet: u32,
}

struct Entry {
    /// Number of the entry, in order of arrival.
    id: u64,
    lane: Lane,
    first_page: u64,
    last_page: u64,
    /// Earlier entries that this one waits for, and one more if it waits for counted direct writes.
    blockers: usize,
    waits_for_counted: bool,
    /// The worker, and the token of its operation, while that waits.
    waiter: Option<Waiter>,
}

type Waiter = (Arc<Reports>, u32);

impl Overlaps {
    /// Registers an operation on `len` bytes from `offset`; true if it may start now. If not, operation `token`
    /// gets [`Report::Start`] when it may. O(1) for direct writes while nothing goes through the cache, else
    /// O(operations of the file).
    #[inline]
    pub(crate) fn enter(&self, lane: Lane, offset: u64, len: u64, reply_to: &Arc<Reports>, token: u32) -> (Pass, bool) {
        let count = |gate: u64| (gate & LISTING == 0).then_some(gate + 1);
        if lane == Lane::DirectWrite && self.gate.fetch_update(Ordering::AcqRel, Ordering::Acquire, count).is_ok() {
            return (Pass::Counted, true);
        }
        self.enter_list(lane, offset, len, reply_to, token)
    }

    fn enter_list(&self, lane: Lane, offset: u64, len: u64, reply_to: &Arc<Reports>, token: u32) -> (Pass, bool) {
        // Not a constant: some processors have pages of 64 KiB.
        let page = rustix::param::page_size() as u64;
        let (first_page, last_page) = (offset / page, (offset + len.max(1) - 1) / page);
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let waits_for_counted = match lane {
            Lane::Cached => {
                (list.cached, list.quiet) = (list.cached + 1, 0);
                self.gate.fetch_or(LISTING, Ordering::AcqRel) & !LISTING > 0
            }
            Lane::DirectWrite => {
                list.quiet += u32::from(list.cached == 0);
                if list.cached == 0 && list.quiet >= QUIET_AFTER {
                    self.gate.fetch_and(!LISTING, Ordering::AcqRel);
                }
                false
            }
        };
        let id = list.next_id;
        list.next_id += 1;
        let mut entry = Entry { id, lane, first_page, last_page, blockers: 0, waits_for_counted, waiter: None };
        entry.blockers =
            list.entries.iter().filter(|other| other.excludes(&entry)).count() + usize::from(waits_for_counted);
        let may_start = entry.blockers == 0;
        entry.waiter = (!may_start).then(|| (Arc::clone(reply_to), token));
        list.entries.push(entry);
        (Pass::Listed(id), may_start)
    }

    /// An operation is done; those that waited only for it may start.
    #[inline]
    pub(crate) fn leave(&self, pass: Pass) {
        match pass {
            Pass::Counted => {
                if self.gate.fetch_sub(1, Ordering::AcqRel) == LISTING | 1 {
                    self.last_counted_has_left();
                }
            }
            Pass::Listed(id) => self.leave_list(id),
        }
    }

    fn last_counted_has_left(&self) {
        let waits = |entry: &mut Entry| std::mem::take(&mut entry.waits_for_counted);
        self.release(self.list.lock().unwrap_or_else(PoisonError::into_inner), waits);
    }

    fn leave_list(&self, id: u64) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = list.entries.iter().position(|entry| entry.id == id) else { return };
        let gone = list.entries.swap_remove(at);
        list.cached -= usize::from(gone.lane == Lane::Cached);
        self.release(list, |entry| entry.id > gone.id && entry.excludes(&gone));
    }

    /// Takes one blocker from each entry that `waited` for the operation that has ended; starts entries without blockers.
    fn release(&self, mut list: std::sync::MutexGuard<'_, List>, mut waited: impl FnMut(&mut Entry) -> bool) {
        let mut free: Vec<Waiter> = Vec::new();
        for entry in &mut list.entries {
            if waited(entry) {
                entry.blockers -= 1;
                if entry.blockers == 0 {
                    free.extend(entry.waiter.take());
                }
            }
        }
        drop(list);
        for (mailbox, token) in free {
            mailbox.report(Report::Start(token));
        }
    }
}

impl Entry {
    fn excludes(&self, other: &Self) -> bool {
        self.lane != other.lane && self.first_page <= other.last_page && other.first_page <= self.last_page
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn told(mailbox: &Reports) -> Vec<u32> {
        let mut mail = Vec::new();
        mailbox.take(&mut mail);
        mail.iter()
            .map(|message| if let Report::Start(token) = message { *token } else { panic!("other mail") })
            .collect()
    }

    #[test]
    fn direct_writes_alone_are_only_counted() {
        let (overlaps, mailbox) = (Overlaps::default(), Arc::new(Reports::new().unwrap()));
        mailbox.open();
        for _ in 0..3 {
            assert_eq!(overlaps.enter(Lane::DirectWrite, 0, 4096, &mailbox, 0), (Pass::Counted, true));
        }
        assert_eq!(overlaps.gate.load(Ordering::SeqCst), 3);
        (0..3).for_each(|_| overlaps.leave(Pass::Counted));
        // Something through the cache has them listed, until none of it was seen for long.
        let (pass, may_start) = overlaps.enter(Lane::Cached, 0, 512, &mailbox, 1);
        assert!(may_start);
        overlaps.leave(pass);
        let mut listed = 0;
        loop {
            match overlaps.enter(Lane::DirectWrite, 0, 4096, &mailbox, 2) {
                (Pass::Counted, true) => break,
                (pass, true) => overlaps.leave(pass),
                (_, false) => panic!("nothing to wait for"),
            }
            listed += 1;
        }
        assert_eq!(listed, QUIET_AFTER);
    }

    #[test]
    fn what_was_counted_is_waited_for_and_later_ones_by_page() {
        let (overlaps, mailbox) = (Overlaps::default(), Arc::new(Reports::new().unwrap()));
        mailbox.open();
        let page = rustix::param::page_size() as u64;
        let (counted, _) = overlaps.enter(Lane::DirectWrite, 7 * page, page, &mailbox, 0);
        let (cached, may_start) = overlaps.enter(Lane::Cached, 1, 1, &mailbox, 1);
        assert!(!may_start);
        let (beside, may_start) = overlaps.enter(Lane::DirectWrite, page, page, &mailbox, 2);
        assert!(may_start);
        let (behind, may_start) = overlaps.enter(Lane::DirectWrite, 0, page, &mailbox, 3);
        assert!(!may_start, "it came later than one that waits");
        assert!(told(&mailbox).is_empty());
        overlaps.leave(counted);
        assert_eq!(told(&mailbox), [1]);
        overlaps.leave(beside);
        overlaps.leave(cached);
        assert_eq!(told(&mailbox), [3]);
        overlaps.leave(behind);
        assert!(overlaps.list.lock().unwrap().entries.is_empty());
    }

    proptest! {
        /// Whatever comes and goes in whatever order: no two that exclude each other run at once, and all get to run.
        #[test]
        fn nothing_overlaps_and_no_operation_waits_for_ever(
            steps in prop::collection::vec((any::<bool>(), 0u64..6, 1u64..3, any::<prop::sample::Index>()), 1..200)
        ) {
            let (overlaps, mailbox) = (Overlaps::default(), Arc::new(Reports::new().unwrap()));
            mailbox.open();
            let page = rustix::param::page_size() as u64;
            // What was asked, by token, with the pass; who waits; who runs.
            let mut all = Vec::new();
            let (mut waiting, mut running): (Vec<u32>, Vec<u32>) = (Vec::new(), Vec::new());
            let finish = |all: &mut Vec<(Lane, u64, u64, Option<Pass>)>, waiting: &mut Vec<u32>, running: &mut Vec<u32>, at: usize| {
                let token = running.swap_remove(at);
                overlaps.leave(all[token as usize].3.take().unwrap());
                for started in told(&mailbox) {
                    waiting.retain(|&token| token != started);
                    running.push(started);
                }
            };
            for (is_cached, first, pages, end) in steps {
                let lane = if is_cached { Lane::Cached } else { Lane::DirectWrite };
                let token = all.len() as u32;
                let (pass, may_start) = overlaps.enter(lane, first * page, pages * page, &mailbox, token);
                all.push((lane, first, first + pages, Some(pass)));
                if may_start { running.push(token) } else { waiting.push(token) }
                for (n, &one) in running.iter().enumerate() {
                    for &other in &running[..n] {
                        let (a, b) = (&all[one as usize], &all[other as usize]);
                        prop_assert!(a.0 == b.0 || a.2 <= b.1 || b.2 <= a.1, "{a:?} and {b:?} run at once");
                    }
                }
                if running.len() > 8 {
                    let at = end.index(running.len());
                    finish(&mut all, &mut waiting, &mut running, at);
                }
            }
            while !running.is_empty() {
                finish(&mut all, &mut waiting, &mut running, 0);
            }
            prop_assert_eq!(waiting, Vec::<u32>::new());
            prop_assert_eq!(overlaps.gate.load(Ordering::SeqCst) & !LISTING, 0);
        }
    }
}
