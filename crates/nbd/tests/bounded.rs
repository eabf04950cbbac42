//! A handshake needs little memory for any options that a client sends; the tests count at the allocator.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use evenkeel_nbd::server::handshake::{MAX_OPTION, MAX_SKIPPED_OPTION};
use evenkeel_nbd::server::{Handshake, Offer, Status};
use evenkeel_nbd::wire::option;
use support::{FIXED, Shelf, opt};

thread_local! {
    /// Bytes that this thread has allocated and not freed: now, and at most since the last call of `peak`.
    static HELD: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

struct Counting;

fn count(bytes: isize) {
    HELD.with(|held| {
        let now = held.get().0 + bytes;
        held.set((now, held.get().1.max(now)));
    });
}

// SAFETY: every call goes to the system's allocator unchanged; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's guarantee is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's guarantee is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs `body`; returns the most bytes that this thread had allocated meanwhile beyond those allocated before.
fn peak(body: impl FnOnce()) -> isize {
    let before = HELD.with(|held| {
        held.set((held.get().0, held.get().0));
        held.get().0
    });
    body();
    HELD.with(Cell::get).1 - before
}

/// Passes the same option `times` times to a handshake, in pieces of `piece` bytes, and drops the answers as if they were sent.
fn feed(bytes: &[u8], times: usize, piece: usize) {
    let mut handshake = Handshake::new(Offer::default());
    let mut out = Vec::new();
    handshake.advance(&FIXED.to_be_bytes(), &Shelf, &mut out).expect("flags");
    for _ in 0..times {
        for mut part in bytes.chunks(piece) {
            while !part.is_empty() {
                let step = handshake.advance(part, &Shelf, &mut out).expect("no violation");
                assert_eq!(step.status, Status::More);
                part = &part[step.consumed..];
                out.clear();
            }
        }
    }
}

#[test]
fn a_handshake_holds_one_option_at_most() {
    let answers = 4096;
    for (length, times) in [(MAX_OPTION, 200), (MAX_OPTION + 1, 200), (MAX_SKIPPED_OPTION, 20)] {
        for code in [option::GO, option::SET_META_CONTEXT, 77] {
            let bytes = opt(code, &vec![1; length as usize]);
            for piece in [999, bytes.len()] {
                let peak = peak(|| feed(&bytes, times, piece));
                // A vector doubles its capacity, and holds both while it grows.
                let bound = 3 * MAX_OPTION as isize + answers;
                assert!(peak < bound, "option {code} of {length} bytes made the handshake hold {peak}");
            }
        }
    }
    let listing = peak(|| feed(&opt(option::LIST, b""), 1000, 7));
    assert!(listing < answers, "listing held {listing} bytes");
}

#[test]
fn the_measure_measures() {
    assert!(peak(|| drop(std::hint::black_box(vec![0u8; 100_000]))) >= 100_000);
}
