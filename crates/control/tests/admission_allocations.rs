//! The functions of admission control that run for each request must not allocate memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use evenkeel_control::admission::{Admission, Config, ElasticConfig};
use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};

struct Counting;

thread_local! {
    /// Allocations by this thread so far; counted per thread because the test harness allocates on its own.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes on unchanged to the system's allocator, whose guarantees therefore hold.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's guarantees about the layout are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from the system's allocator with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_request_allocates_nothing() {
    let adaptive = [
        Config::Elastic(ElasticConfig::default()),
        Config::Theta,
        Config::Wbt { target: Duration::from_millis(2) },
        Config::Vegas,
        Config::Gradient,
    ];
    for config in adaptive {
        let mut admission = Admission::new(config, Instant::ZERO, 1);
        let mut since = [Instant::ZERO; 4_096];
        let (mut first, mut next, mut now) = (0usize, 0usize, Instant::ZERO);
        let before = ALLOCATIONS.get();
        for _ in 0..200_000 {
            while next - first < 64 && admission.fits(8_096) {
                admission.admit(8_096);
                since[next % since.len()] = now;
                next += 1;
            }
            now += Duration::from_micros(10);
            admission.observe(now, 8_096, Kind::Read, 4_096, now.since(since[first % since.len()]));
            admission.tick(now);
            first += 1;
        }
        let allocations = ALLOCATIONS.get() - before;
        assert_eq!(allocations, 0, "{}", config.name());
        assert_ne!(admission.decision().at, Instant::ZERO, "{} decided nothing", config.name());
    }
}
