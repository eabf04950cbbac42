//! Huge pages for volumes in memory: random access to small pages spends more on looking up addresses than on copying.
//!
//! A thread moves what is written into huge pages, one after the other. A worker must not: it would copy 2 MiB for each, and
//! after random writes many become due at once.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::Instant;

use rustix::mm::munmap;

use crate::prompt;

/// A huge page, on processors with pages of 4 KiB.
pub(super) const HUGE_BITS: u32 = 21;
pub(super) const HUGE: u64 = 1 << HUGE_BITS;
/// The thread rests so many times as long as it has worked. While it works, its processor and workers that touch new memory wait
/// for it: 0.3 ms, or 5 ms where the memory is new to a virtual machine, too.
const REST: u32 = 9;
/// The same where tenants are owed something: in one of two hundred moments it does not show in a p99.
const LONG_REST: u32 = 199;

/// The address space of a volume in memory.
pub(super) struct Mapping {
    pub(super) base: NonNull<u8>,
    pub(super) reserved: u64,
}

// SAFETY: an address range of its own, of which this type only asks that it be backed otherwise and, at last, unmapped.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping; connections that read from it hold the volume and with it this value.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.reserved as usize) };
    }
}

/// A huge page that is wanted.
pub(super) struct Wanted {
    /// Where, unless the volume is gone by then.
    pub(super) mapping: Weak<Mapping>,
    pub(super) page: u64,
    /// The parts of it that hold data, as bits of a word: all of them, unless a trim came in between.
    pub(super) allocated: Arc<[AtomicU64]>,
    pub(super) word: usize,
    pub(super) bits: u64,
}

impl Wanted {
    /// Makes it; false if it is not wanted any more.
    fn make(&self) -> bool {
        let Some(mapping) = self.mapping.upgrade() else { return false };
        if self.allocated[self.word].load(Ordering::Relaxed) & self.bits != self.bits {
            return false;
        }
        // SAFETY: a hint on a part of the mapping, which is reserved in whole huge pages; it changes no content. That the
        // kernel (before 6.1) cannot or will not does no harm.
        unsafe {
            let at = mapping.base.as_ptr().add((self.page << HUGE_BITS) as usize);
            libc::madvise(at.cast(), HUGE as usize, libc::MADV_COLLAPSE)
        };
        true
    }
}

/// Has it made, some time soon. Where no thread can be started, pages stay small.
#[cold]
pub(super) fn ask(wanted: Wanted) {
    static THREAD: OnceLock<Sender<Wanted>> = OnceLock::new();
    let sender = THREAD.get_or_init(|| {
        let (sender, receiver) = channel();
        let _ = thread::Builder::new().name("evenkeel-huge".into()).spawn(move || run(&receiver));
        sender
    });
    let _ = sender.send(wanted);
}

fn run(receiver: &Receiver<Wanted>) {
    prompt::be_prompt(false);
    for wanted in receiver {
        let begun = Instant::now();
        if wanted.make() {
            let rest = if prompt::is_wanted() { LONG_REST } else { REST };
            thread::sleep(begun.elapsed() * rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::memory::Memory;

    /// How many of the first huge page's small pages are there.
    fn resident(memory: &Memory) -> usize {
        let mut pages = [0_u8; (HUGE >> 12) as usize];
        // SAFETY: the range is mapped, and there is a byte for each of its pages.
        let asked = unsafe { libc::mincore(memory.at(0).cast(), HUGE as usize, pages.as_mut_ptr()) };
        assert_eq!(asked, 0);
        pages.iter().filter(|page| **page & 1 == 1).count()
    }

    #[test]
    fn a_page_that_is_trimmed_before_its_turn_stays_empty() {
        let memory = Memory::new(2 * HUGE).unwrap();
        let all = vec![1; HUGE as usize];
        memory.write(0, &all);
        let wanted = memory.wanted(0, 0, u64::from(u32::MAX));
        assert!(wanted.make());
        assert_eq!(resident(&memory), 512);
        memory.zero(0, HUGE, true);
        assert!(!wanted.make());
        assert_eq!(resident(&memory), 0);
        memory.write(0, &all);
        drop(memory);
        // The thread may hold the memory for a moment.
        wanted.make();
    }
}
