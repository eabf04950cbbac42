//! Generated tenants like those of the MSR Cambridge traces: a read ratio, a hot set, and phases of hits and misses.
//!
//! The paper gives each trace's number of requests and share of reads (Table I). The rest is assumed here. A tenant
//! alternates between two phases: requests to a hot set that fits the cache, and requests to data unused for long, all of
//! which miss the cache. Both phases have lognormal lengths in bytes.

use evenkeel_control::rng::SplitMix64;
use evenkeel_control::units::Kind;
use evenkeel_model::Io;

/// A trace of the paper's Table I, with an assumed share of misses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trace {
    /// Name of the trace (Table I).
    pub name: &'static str,
    /// Number of requests of the trace, in millions (Table I).
    pub requests_millions: f64,
    /// Share of the requests that are reads, 0 to 1 (Table I).
    pub reads: f64,
    /// Share of the tenant's bytes that belongs to phases of cache misses, 0 to 1; assumed.
    pub cold: f64,
}

const fn trace(name: &'static str, requests_millions: f64, reads: f64, cold: f64) -> Trace {
    Trace { name, requests_millions, reads, cold }
}

/// The traces of the paper's Table I. The last column, [`Trace::cold`], was chosen so that a plain limit misses the guarantee
/// by as much as in the paper; see `docs/algorithms/accurate-throughput.md`.
pub const TRACES: [Trace; 10] = [
    trace("usr", 12.873_274, 0.7214, 0.15),
    trace("prn", 17.635_766, 0.1979, 0.19),
    trace("hm", 8.985_487, 0.3265, 0.15),
    trace("rsrch", 3.254_278, 0.1122, 0.13),
    trace("src", 14.024_860, 0.1678, 0.19),
    trace("stg", 6.098_667, 0.3176, 0.14),
    trace("ts", 4.216_457, 0.2589, 0.14),
    trace("web", 9.642_398, 0.5359, 0.17),
    trace("mds", 2.916_662, 0.2961, 0.14),
    trace("wdev", 2.654_824, 0.273, 0.13),
];

/// Assumed habits that all tenants share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Habits {
    /// Mean length of a phase of cache misses, in bytes of reads and writes together.
    pub cold_bytes: f64,
    /// Standard deviation of the natural logarithm of a phase's length.
    pub phase_sigma: f64,
    /// Factor on each tenant's [`Trace::cold`].
    pub cold_factor: f64,
    /// Queue depth of a tenant's reads, and again of its writes; throttled requests count.
    pub depth: u32,
}

impl Habits {
    /// The habits in the fourteen groups. With its depth of 1 a trace is replayed one request after the other.
    pub const FITTED: Self = Self { cold_bytes: 32e6, phase_sigma: 0.5, cold_factor: 1.0, depth: 1 };
}

/// Payload of a request, in bytes.
pub const REQUEST_BYTES: u32 = 128 << 10;
/// Size of a tenant's hot set (data that fits the cache), in bytes.
pub const HOT_BYTES: u64 = 16 << 20;
/// Distance between the address ranges of two tenants, in bytes.
pub(super) const TENANT_BYTES: u64 = 1 << 44;
/// Offset of a tenant's cold data within its address range, in bytes.
const COLD_AT: u64 = 1 << 42;

/// An endless sequence of generated reads or writes of one tenant.
#[derive(Clone, Debug)]
pub struct Requests {
    kind: Kind,
    base: u64,
    /// Share of the tenant's bytes in this direction (reads, or writes), 0 to 1; a factor on the length of a phase.
    share: f64,
    cold_part: f64,
    habits: Habits,
    /// Random numbers for the phases' lengths. The seed is equal for a tenant's reads and writes, so that phases coincide.
    phases: SplitMix64,
    places: SplitMix64,
    cold: bool,
    left: f64,
    next_cold: u64,
}

impl Requests {
    /// The requests of one direction (`kind`: reads or writes) of the tenant with number `place`.
    pub fn new(trace: &Trace, habits: &Habits, place: usize, kind: Kind, seed: u64) -> Self {
        let read = kind == Kind::Read;
        let mut seeds = SplitMix64::new(seed ^ (place as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (phases, [for_reads, for_writes]) = (seeds.next_u64(), [seeds.next_u64(), seeds.next_u64()]);
        let mut requests = Self {
            kind,
            base: place as u64 * TENANT_BYTES,
            share: if read { trace.reads } else { 1.0 - trace.reads },
            cold_part: (trace.cold * habits.cold_factor).clamp(0.001, 0.999),
            habits: *habits,
            phases: SplitMix64::new(phases),
            places: SplitMix64::new(if read { for_reads } else { for_writes }),
            cold: true,
            left: 0.0,
            // Reads and writes go through different data.
            next_cold: if read { 0 } else { COLD_AT / 2 },
        };
        requests.turn();
        // Tenants begin somewhere in their first phase.
        requests.left *= requests.phases.next_f64();
        requests
    }

    /// Begins the next phase: hits after a phase of misses, misses after a phase of hits.
    fn turn(&mut self) {
        self.cold = !self.cold;
        let Habits { cold_bytes, phase_sigma, .. } = self.habits;
        let mean = if self.cold { cold_bytes } else { cold_bytes * (1.0 - self.cold_part) / self.cold_part };
        let spread = libm::exp(phase_sigma * self.phases.next_normal() - phase_sigma * phase_sigma / 2.0);
        self.left += mean * spread * self.share;
    }

    /// The next request.
    pub fn draw(&mut self) -> Io {
        while self.left <= 0.0 {
            self.turn();
        }
        self.left -= f64::from(REQUEST_BYTES);
        let offset = if self.cold {
            self.next_cold += u64::from(REQUEST_BYTES);
            COLD_AT + self.next_cold
        } else {
            // Some of the hot set is hotter.
            let u = self.places.next_f64();
            let blocks = HOT_BYTES / u64::from(REQUEST_BYTES);
            (u * u * blocks as f64) as u64 * u64::from(REQUEST_BYTES)
        };
        Io { kind: self.kind, offset: self.base + offset, bytes: REQUEST_BYTES }
    }
}
