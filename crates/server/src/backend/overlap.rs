//! Keeps operations on a file through the page cache and direct writes past the cache from overlapping in time on the same
//! pages.
//!
//! The kernel drops the pages that a direct write covers from the cache, before and after the write. It cannot drop a page
//! that a write through the cache has made dirty in between: it then notes an I/O error for the file, and the next sync fails
//! although no data is lost. On block devices the kernel does not drop the pages after an asynchronous direct write, so that
//! a page that is read during the write would stay in the cache with old data. Therefore, of an operation through the cache
//! and a direct write that touch the same page, the later one waits for the earlier one.
//!
//! Most clients send only aligned requests. Direct writes are therefore only counted at first, and are listed with their
//! pages from the first operation through the cache on. That operation waits for all direct writes that were only counted.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::operation::{Report, Reports};

/// Bit of [`Overlaps::gate`]: set while direct writes are to be listed. The other bits are the number of running direct
/// writes that are only counted.
const LISTING: u64 = 1 << 63;
/// After this number of direct writes in a row without an operation through the cache, direct writes are only counted again.
const QUIET_AFTER: u32 = 1024;
/// Largest number of operations that an operation waits for one by one. If more operations of the other lane touch its pages,
/// as in a flood of requests for one page, it waits for all earlier operations of that lane, whatever pages they touch;
/// otherwise the work would grow with the square of the number of operations.
const MANY: usize = 64;

/// Class of an operation: an operation of one lane must not run at the same time as one of the other lane on the same page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Operations through the page cache: reads, writes, and zeroing of parts of pages.
    Cached,
    /// Direct writes, past the page cache.
    DirectWrite,
}

/// The pass that an operation gets from [`Overlaps::enter`], and gives back to [`Overlaps::leave`] when it is done.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    /// The pass of a direct write that was only counted.
    Counted,
    /// The pass of a listed operation, with its number.
    Listed(Lane, u64),
}

/// The running and waiting operations of one file that might overlap.
#[derive(Default)]
pub(crate) struct Overlaps {
    gate: AtomicU64,
    list: Box<Mutex<List>>,
}

#[derive(Default)]
struct List {
    cached: Entries,
    direct: Entries,
    next_id: u64,
    quiet: u32,
    /// Numbers of the operations through the cache that wait for direct writes which were only counted.
    behind_counted: Vec<u64>,
}

/// The listed operations of one lane.
#[derive(Default)]
struct Entries {
    /// Entries by number; numbers rise in the order of arrival, over both lanes.
    by_id: BTreeMap<u64, Entry>,
    places: Places,
    /// Numbers of the entries that wait for all earlier entries of the other lane, in order of arrival.
    behind_all: VecDeque<u64>,
}

struct Entry {
    pages: Pages,
    /// Number of earlier entries that this one waits for. All earlier entries of the other lane together count as one, and so
    /// do all direct writes that were only counted.
    blockers: usize,
    /// Numbers of the later entries that wait for this one.
    blocks: Vec<u64>,
    /// While the operation waits: mailbox of its worker, and its token there.
    waiter: Option<Waiter>,
}

type Waiter = (Arc<Reports>, u32);

impl Overlaps {
    /// Registers an operation on `len` bytes from `offset`; true if it may start now. If not, `reply_to` gets
    /// [`Report::Start`] with `token` when the operation may start. O(1) for direct writes while no operation goes through
    /// the cache; otherwise, like [`Self::leave`] on average, logarithmic in the number of the file's operations.
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
        let pages = Pages { first: offset / page, last: (offset + len.max(1) - 1) / page };
        let mut list = self.list();
        let waits_for_counted = match lane {
            Lane::Cached => {
                list.quiet = 0;
                self.gate.fetch_or(LISTING, Ordering::AcqRel) & !LISTING > 0
            }
            Lane::DirectWrite => {
                list.quiet += u32::from(list.cached.by_id.is_empty());
                if list.cached.by_id.is_empty() && list.quiet >= QUIET_AFTER {
                    self.gate.fetch_and(!LISTING, Ordering::AcqRel);
                }
                false
            }
        };
        let id = list.next_id;
        list.next_id += 1;
        let mut blockers = list.wait(lane, id, pages);
        if waits_for_counted {
            list.behind_counted.push(id);
            blockers += 1;
        }
        let may_start = blockers == 0;
        let waiter = (!may_start).then(|| (Arc::clone(reply_to), token));
        list.lanes(lane).0.insert(id, Entry { pages, blockers, blocks: Vec::new(), waiter });
        (Pass::Listed(lane, id), may_start)
    }

    /// Ends an operation, and starts the operations that waited only for it.
    #[inline]
    pub(crate) fn leave(&self, pass: Pass) {
        match pass {
            Pass::Counted => {
                if self.gate.fetch_sub(1, Ordering::AcqRel) == LISTING | 1 {
                    self.last_counted_has_left();
                }
            }
            Pass::Listed(lane, id) => {
                let free = self.list().remove(lane, id);
                start(free);
            }
        }
    }

    fn last_counted_has_left(&self) {
        let mut list = self.list();
        let behind = std::mem::take(&mut list.behind_counted);
        let free: Vec<Waiter> = behind.into_iter().filter_map(|id| list.cached.unblock(id)).collect();
        drop(list);
        start(free);
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends [`Report::Start`] to the operations that need not wait any more.
fn start(free: Vec<Waiter>) {
    for (mailbox, token) in free {
        mailbox.report(Report::Start(token));
    }
}

impl List {
    /// The entries of `lane`, and the entries of the other lane.
    fn lanes(&mut self, lane: Lane) -> (&mut Entries, &mut Entries) {
        match lane {
            Lane::Cached => (&mut self.cached, &mut self.direct),
            Lane::DirectWrite => (&mut self.direct, &mut self.cached),
        }
    }

    /// Makes a new entry wait for the entries of the other lane, all of which are earlier, that touch some of its pages;
    /// returns the number of its blockers.
    fn wait(&mut self, lane: Lane, id: u64, pages: Pages) -> usize {
        let (own, other) = self.lanes(lane);
        let earlier: Vec<u64> = other.places.touching(pages).take(MANY + 1).collect();
        if earlier.len() > MANY {
            own.behind_all.push_back(id);
            return 1;
        }
        for blocker in &earlier {
            if let Some(entry) = other.by_id.get_mut(blocker) {
                entry.blocks.push(id);
            }
        }
        earlier.len()
    }

    /// Removes an entry; returns the waiters of the entries that have no blocker left.
    fn remove(&mut self, lane: Lane, id: u64) -> Vec<Waiter> {
        let (own, other) = self.lanes(lane);
        let Some(gone) = own.by_id.remove(&id) else { return Vec::new() };
        own.places.remove(gone.pages, id);
        let mut free: Vec<Waiter> = gone.blocks.into_iter().filter_map(|later| other.unblock(later)).collect();
        let oldest = own.by_id.keys().next().copied().unwrap_or(u64::MAX);
        while let Some(later) = other.behind_all.front().copied().filter(|later| *later < oldest) {
            other.behind_all.pop_front();
            free.extend(other.unblock(later));
        }
        free
    }
}

impl Entries {
    fn insert(&mut self, id: u64, entry: Entry) {
        self.places.insert(entry.pages, id);
        self.by_id.insert(id, entry);
    }

    /// Subtracts one blocker from an entry; returns the entry's waiter if no blocker is left.
    fn unblock(&mut self, id: u64) -> Option<Waiter> {
        let entry = self.by_id.get_mut(&id)?;
        entry.blockers -= 1;
        if entry.blockers == 0 { entry.waiter.take() } else { None }
    }
}

/// A range of pages of the file, from `first` to `last`, both included.
#[derive(Clone, Copy)]
struct Pages {
    first: u64,
    last: u64,
}

impl Pages {
    /// The highest bit in which the numbers of the first and last page differ; `None` for a single page.
    fn level(self) -> Option<u32> {
        (self.first ^ self.last).checked_ilog2()
    }

    /// The page under which [`Places`] finds an operation. For a single page, that page; otherwise, of the pages after the
    /// first, the page whose number has the most zero bits at its end (at least [`Self::level`]).
    fn centre(self) -> u64 {
        self.level().map_or(self.first, |level| (self.last >> level) << level)
    }
}

/// Finds operations by the pages that they touch. The centre of an operation that touches some of a range of pages is in the
/// range, or it is, for each level, the nearest multiple of two to the power of the level above or below the range.
#[derive(Default)]
struct Places {
    /// Centre, first page and number of each operation.
    by_first: BTreeSet<(u64, u64, u64)>,
    /// Centre, last page and number of each operation.
    by_last: BTreeSet<(u64, u64, u64)>,
    /// Number of operations on more than one page, by their level.
    levels: BTreeMap<u32, usize>,
}

impl Places {
    fn insert(&mut self, pages: Pages, id: u64) {
        self.by_first.insert((pages.centre(), pages.first, id));
        self.by_last.insert((pages.centre(), pages.last, id));
        if let Some(level) = pages.level() {
            *self.levels.entry(level).or_default() += 1;
        }
    }

    fn remove(&mut self, pages: Pages, id: u64) {
        self.by_first.remove(&(pages.centre(), pages.first, id));
        self.by_last.remove(&(pages.centre(), pages.last, id));
        if let Some(level) = pages.level()
            && let Some(count) = self.levels.get_mut(&level)
        {
            *count -= 1;
            if *count == 0 {
                self.levels.remove(&level);
            }
        }
    }

    /// Numbers of the operations that touch some of these pages, each once.
    fn touching(&self, pages: Pages) -> impl Iterator<Item = u64> {
        let Pages { first, last } = pages;
        let inside = self.by_first.range((first, 0, 0)..=(last, u64::MAX, u64::MAX));
        // Those that reach down to the last page, or up to the first.
        let above = self.levels.keys().filter(move |level| (last >> **level) & 1 == 0).flat_map(move |&level| {
            let centre = ((last >> level) + 1) << level;
            self.by_first.range((centre, 0, 0)..=(centre, last, u64::MAX))
        });
        let is_below = move |level: u32| (first >> level) & 1 == 1 && first.trailing_zeros() < level;
        let below = self.levels.keys().filter(move |level| is_below(**level)).flat_map(move |&level| {
            let centre = (first >> level) << level;
            self.by_last.range((centre, first, 0)..=(centre, u64::MAX, u64::MAX))
        });
        inside.chain(above).chain(below).map(|&(_, _, id)| id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paced::Work;
    use proptest::prelude::*;

    /// A model of [`Overlaps`] that scans all operations.
    #[derive(Default)]
    struct Scan(Vec<Scanned>);

    /// An operation of the model, with the number of earlier operations that it waits for.
    struct Scanned {
        token: u32,
        lane: Lane,
        pages: Pages,
        blockers: usize,
    }

    impl Scanned {
        fn excludes(&self, lane: Lane, pages: Pages) -> bool {
            self.lane != lane && self.pages.first <= pages.last && pages.first <= self.pages.last
        }
    }

    impl Scan {
        fn enter(&mut self, token: u32, lane: Lane, pages: Pages) -> bool {
            let blockers = self.0.iter().filter(|one| one.excludes(lane, pages)).count();
            self.0.push(Scanned { token, lane, pages, blockers });
            blockers == 0
        }

        /// Ends the operation `token`; returns the tokens of the operations that may start now.
        fn leave(&mut self, token: u32) -> Vec<u32> {
            let at = self.0.iter().position(|one| one.token == token).unwrap();
            let gone = self.0.remove(at);
            let mut free = Vec::new();
            for later in self.0[at..].iter_mut().filter(|later| later.excludes(gone.lane, gone.pages)) {
                later.blockers -= 1;
                if later.blockers == 0 {
                    free.push(later.token);
                }
            }
            free
        }
    }

    #[test]
    fn the_index_finds_what_a_scan_finds() {
        for seed in 0..300 {
            let mut random: u64 = seed;
            let mut draw = |below: u64| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 33) % below
            };
            let (overlaps, mailbox) = (Overlaps::default(), Arc::new(Reports::new().unwrap()));
            mailbox.open();
            let page = rustix::param::page_size() as u64;
            // Far away, so that direct writes are listed all the time.
            let (lists, _) = overlaps.enter(Lane::Cached, 1 << 50, 1, &mailbox, u32::MAX);
            let (mut scan, mut passes, mut running) = (Scan::default(), Vec::<Option<Pass>>::new(), Vec::<u32>::new());
            // Also where many bits of the numbers of pages change.
            let base = draw(3) * ((1 << 20) - 24);
            let (mut waited, mut step) = (0, 0);
            while step < 400 || !running.is_empty() {
                step += 1;
                if step >= 400 || scan.0.len() == MANY || !running.is_empty() && draw(5) < 2 {
                    let token = running.swap_remove(draw(running.len() as u64) as usize);
                    overlaps.leave(passes[token as usize].take().unwrap());
                    let (mut started, mut expected) = (told(&mailbox), scan.leave(token));
                    started.sort_unstable();
                    expected.sort_unstable();
                    assert_eq!(started, expected, "seed {seed}, step {step}");
                    running.extend(started);
                    continue;
                }
                let lane = if draw(2) == 0 { Lane::Cached } else { Lane::DirectWrite };
                let (first, count) = (base + draw(48), [1, 1, 1, 2, 3, 17, 64][draw(7) as usize]);
                let token = passes.len() as u32;
                let (pass, may_start) = overlaps.enter(lane, first * page, count * page, &mailbox, token);
                let expected = scan.enter(token, lane, Pages { first, last: first + count - 1 });
                assert_eq!(may_start, expected, "seed {seed}, step {step}: {count} pages from {first}");
                passes.push(Some(pass));
                waited += u32::from(!may_start);
                running.extend(may_start.then_some(token));
            }
            assert!(waited > 20 && scan.0.is_empty(), "seed {seed}: {waited}");
            overlaps.leave(lists);
            let list = overlaps.list();
            for Entries { by_id, places, behind_all } in [&list.cached, &list.direct] {
                assert!(by_id.is_empty() && behind_all.is_empty());
                assert!(places.by_first.is_empty() && places.by_last.is_empty() && places.levels.is_empty());
            }
        }
    }

    #[test]
    fn thousands_on_one_page_go_in_order_and_are_not_counted_by_each_other() {
        const EACH: u32 = 4_000;
        let (overlaps, mailbox) = (Overlaps::default(), Arc::new(Reports::new().unwrap()));
        mailbox.open();
        let page = rustix::param::page_size() as u64;
        let enter = |lane, at: u64, token| overlaps.enter(lane, at * page, page, &mailbox, token);
        let first: Vec<_> = (0..EACH).map(|token| enter(Lane::Cached, 3, token)).collect();
        let second: Vec<_> = (EACH..2 * EACH).map(|token| enter(Lane::DirectWrite, 3, token)).collect();
        let (last, may_start) = enter(Lane::Cached, 3, 2 * EACH);
        assert!(first.iter().all(|one| one.1) && !second.iter().any(|one| one.1) && !may_start);
        let (beside, may_start) = enter(Lane::DirectWrite, 4, 2 * EACH + 1);
        assert!(may_start, "another page");
        overlaps.leave(beside);
        let waits = |list: &List| list.cached.by_id.values().map(|entry| entry.blocks.len()).sum::<usize>();
        assert!(waits(&overlaps.list()) <= 2 * EACH as usize * MANY);
        let mut left = first.into_iter().rev();
        let earliest = left.next_back().unwrap();
        left.for_each(|(pass, _)| overlaps.leave(pass));
        assert!(told(&mailbox).is_empty(), "one is still there");
        overlaps.leave(earliest.0);
        assert_eq!(told(&mailbox), (EACH..2 * EACH).collect::<Vec<_>>());
        second.into_iter().for_each(|(pass, _)| overlaps.leave(pass));
        assert_eq!(told(&mailbox), [2 * EACH]);
        overlaps.leave(last);
    }

    /// Processor time, in nanoseconds, of 2,000 operations that enter and leave one after the other, while `others`
    /// operations on other pages are listed.
    fn time_beside(others: u64) -> u64 {
        let (overlaps, mailbox) = (Overlaps::default(), Arc::new(Reports::new().unwrap()));
        mailbox.open();
        let page = rustix::param::page_size() as u64;
        let enter = |n: u64, at: u64| {
            let lane = if n.is_multiple_of(2) { Lane::Cached } else { Lane::DirectWrite };
            let (pass, may_start) = overlaps.enter(lane, at * page, page, &mailbox, 0);
            assert!(may_start);
            pass
        };
        let there: Vec<Pass> = (0..others).map(|n| enter(n, n)).collect();
        let begun = Work::begin();
        (0..2_000).for_each(|n| overlaps.leave(enter(n, others + n)));
        let took = Work::begin().since(&begun);
        there.into_iter().for_each(|pass| overlaps.leave(pass));
        took
    }

    #[test]
    fn an_operation_beside_thousands_takes_about_as_long_as_beside_few() {
        let [few, many] = [16, 30_000].map(|others| (0..5).map(|_| time_beside(others)).min().unwrap());
        assert!(many < 20 * few, "{many} ns, and {few} ns beside few");
    }

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
        let list = overlaps.list();
        assert!(list.cached.by_id.is_empty() && list.direct.by_id.is_empty());
    }

    proptest! {
        /// In whatever order operations enter and leave: no two operations of different lanes on the same page run at once,
        /// and every operation gets to run.
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
