//! Price: how much of a device's time does a request take beside its bytes?
//!
//! Weights share out the device's time. If weights counted bytes alone, a tenant with small requests would take far more than
//! its share of a device that serves a number of requests a second, whatever their size. While a budget keeps requests
//! waiting the device is always busy, so that the time between completions is the time that the requests took:
//!
//! ```text
//! time = a × requests + b × bytes        base cost = a / b bytes
//! ```
//!
//! `a` and `b` are found by least squares over intervals, each with its own mixture of request sizes. An interval lasts until
//! the requests in flight at its beginning have completed. A request without payload (a flush, a trim) takes a time that
//! depends on other things, so the time from the completion before its own to its own is left out; an interval of which this
//! leaves out much is discarded. The same goes for a read that may be one of a hole. The base cost in force is the smallest one
//! that is not below the configured one and that the measurements do not refute: the lower limit of Fieller's interval for the
//! ratio of two estimates. Where sizes hardly differ, or the device's time scatters by more than the sizes do, the configured one
//! stays.

use crate::time::{Duration, Instant};
use crate::units::Direction;

/// Smallest number of completions in a measurement interval: few enough that the mean request size differs between intervals,
/// enough that requests half done at an interval's ends matter little.
const SAMPLE: u32 = 16;
/// All sums are halved when they cover this number of intervals, which tell the base cost to a few per cent where request
/// sizes differ.
const MEMORY: f64 = 1024.0;
/// Intervals between two computations of the base cost; the scatter of fewer intervals could not be estimated.
const EVERY: u32 = 8;
/// A new base cost takes effect only if it differs by more than this factor from the one in force. Therefore an interval may be
/// this many times as long as without the time that is left out for requests without payload.
const STEP: f64 = 1.25;
/// When two base costs are compared, one below this number of bytes (a sector) counts as this number.
const LEAST_BYTES: f64 = 512.0;
/// A difference of up to this number of standard errors may be chance.
const SURE: f64 = 2.0;
/// The largest base cost, in bytes: more than a disk transfers in the time of a seek.
const MOST: f64 = 16_777_216.0;
/// A base cost that was not measured for this long, while there was no budget, is forgotten: the device may be another one.
/// `elastic` tries a budget more often on a device that is busy enough for one.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3_600);

/// Sums over intervals for the least-squares fit of `time = a × requests + b × bytes` (times in ns). An interval's weight is
/// 1/time, as its error grows with its length.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    count: f64,
    time: f64,
    requests: f64,
    bytes: f64,
    requests_requests: f64,
    requests_bytes: f64,
    bytes_bytes: f64,
}

impl Sums {
    fn add(&mut self, time: f64, requests: f64, bytes: f64) {
        self.count += 1.0;
        self.time += time;
        self.requests += requests;
        self.bytes += bytes;
        self.requests_requests += requests * requests / time;
        self.requests_bytes += requests * bytes / time;
        self.bytes_bytes += bytes * bytes / time;
    }

    fn fade(&mut self) {
        for sum in [
            &mut self.count,
            &mut self.time,
            &mut self.requests,
            &mut self.bytes,
            &mut self.requests_requests,
            &mut self.requests_bytes,
            &mut self.bytes_bytes,
        ] {
            *sum *= 0.5;
        }
    }

    /// The smallest base cost `a / b`, in bytes, that the measurements do not refute; 0 if they refute none.
    fn least_ratio(&self) -> f64 {
        let Self { count, time, requests, bytes, requests_requests: nn, requests_bytes: nb, bytes_bytes: bb } = *self;
        let determinant = nn * bb - nb * nb;
        if determinant <= 1e-9 * nn * bb {
            return 0.0;
        }
        let a = (requests * bb - bytes * nb) / determinant;
        let b = (bytes * nn - requests * nb) / determinant;
        let free = count - 2.0;
        let scatter = ((time - a * requests - b * bytes) / free).max(0.0);
        let sure = SURE * (1.0 + 2.0 / free);
        // (a - x b)² = k (bb + 2 x nb + x² nn): the limits x of Fieller's interval. The smaller one, without a difference of
        // nearly equal numbers.
        let k = sure * sure * scatter / determinant;
        let (square, half, constant) = (b * b - k * nn, a * b + k * nb, a * a - k * bb);
        if a <= 0.0 || constant <= 0.0 {
            return 0.0;
        }
        let divisor = half + libm::sqrt((half * half - square * constant).max(0.0));
        // Bytes that seem to take no time leave it far off.
        if divisor * MOST > constant { constant / divisor } else { MOST }
    }
}

/// Measures the base cost of requests on one device: the number of bytes whose transfer takes as long as a request takes beside
/// its bytes. See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct Price {
    sums: Sums,
    began: Option<Instant>,
    /// When a request last completed.
    last: Instant,
    /// Time that is left out of the present interval for requests without payload, and for reads that may be of holes.
    left_out: Duration,
    /// When an interval last ended.
    measured_at: Instant,
    latency: Duration,
    completions: u32,
    bytes: u64,
    until: u32,
    /// The configured base cost, in bytes: `base` is never below it.
    least: f64,
    /// The base cost in force, in bytes.
    base: f64,
}

/// A change of the base cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Change {
    /// The new base cost, in bytes.
    pub(crate) base: u32,
    /// The base cost in force until this change, in bytes.
    pub(crate) before: u32,
    /// Mean cost (base cost + bytes) of a request with the new base cost, divided by the mean cost with the old one.
    pub(crate) factor: f64,
}

impl Price {
    /// Starts with the base cost `configured`, in bytes, which stays in force until the measurements exclude it as too small.
    pub(crate) fn new(configured: u32) -> Self {
        Self {
            sums: Sums::default(),
            began: None,
            last: Instant::ZERO,
            left_out: Duration::ZERO,
            measured_at: Instant::ZERO,
            latency: Duration::ZERO,
            completions: 0,
            bytes: 0,
            until: EVERY,
            least: f64::from(configured),
            base: f64::from(configured),
        }
    }

    /// The base cost in force, in bytes.
    pub(crate) fn base(&self) -> u32 {
        self.base as u32
    }

    /// The base cost in force, in bytes, if it was measured; 0 if it is the configured one.
    pub(crate) fn measured(&self) -> u32 {
        if self.base > self.least { self.base() } else { 0 }
    }

    /// Changes the configured base cost, in bytes; a larger measured base cost stays in force. Returns the change, if any.
    pub(crate) fn configure(&mut self, configured: u32) -> Option<Change> {
        let measured = f64::from(self.measured());
        self.least = f64::from(configured);
        self.change_to(measured.max(self.least))
    }

    /// Counts a request that completes at `now`; `direction` is `None` if it has no payload, or if the device may have had no
    /// work with it. `busy` is true if the budget keeps requests waiting, so that the device has work all the time; when it is
    /// false, the present interval is discarded. Returns the change if another base cost takes effect. O(1).
    #[inline]
    pub(crate) fn observe(
        &mut self,
        now: Instant,
        busy: bool,
        direction: Option<Direction>,
        bytes: u32,
        latency: Duration,
    ) -> Option<Change> {
        let gap = now.since(core::mem::replace(&mut self.last, now));
        let Some(began) = self.began.filter(|_| busy) else {
            self.begin(busy.then_some(now));
            return None;
        };
        if direction.is_none() {
            self.left_out = self.left_out + gap;
            return None;
        }
        self.completions += 1;
        self.bytes += u64::from(bytes);
        self.latency = self.latency.max(latency);
        let time = now.since(began) - self.left_out;
        // Requests that were in flight at the beginning have left when one that came later has.
        if self.completions < SAMPLE || time < self.latency + self.latency || time.is_zero() {
            return None;
        }
        let (length, time) = (now.since(began).as_nanos() as f64, time.as_nanos() as f64);
        let (requests, bytes) = (f64::from(self.completions), self.bytes as f64);
        self.begin(Some(now));
        if length > STEP * time {
            return None;
        }
        self.sums.add(time, requests, bytes);
        self.measured_at = now;
        self.until -= 1;
        if self.until == 0 { self.decide() } else { None }
    }

    /// Notes that no budget bounds what is in flight at `now`, so that nothing is measured. A base cost that was measured long
    /// ago is forgotten: returns the change to the configured one. O(1).
    #[inline]
    pub(crate) fn unbounded(&mut self, now: Instant) -> Option<Change> {
        if self.measured() == 0 || now.since(self.measured_at) < FORGOTTEN_AFTER {
            return None;
        }
        let change = self.change_to(self.least);
        (self.sums, self.until) = (Sums::default(), EVERY);
        change
    }

    #[cold]
    fn decide(&mut self) -> Option<Change> {
        self.until = EVERY;
        let base = self.sums.least_ratio().max(self.least);
        let change = self.change_to(base);
        if self.sums.count >= MEMORY {
            self.sums.fade();
        }
        change
    }

    /// Puts `base`, in bytes, in force if it differs by more than the factor [`STEP`] from the base cost in force.
    fn change_to(&mut self, base: f64) -> Option<Change> {
        let before = self.base;
        let ratio = base.max(LEAST_BYTES) / before.max(LEAST_BYTES);
        if (1.0 / STEP..=STEP).contains(&ratio) {
            return None;
        }
        self.base = base;
        let mean = if self.sums.requests > 0.0 { self.sums.bytes / self.sums.requests } else { 0.0 };
        let factor = (base + mean).max(1.0) / (before + mean).max(1.0);
        Some(Change { base: base as u32, before: before as u32, factor })
    }

    fn begin(&mut self, at: Option<Instant>) {
        (self.began, self.completions, self.bytes) = (at, 0, 0);
        (self.latency, self.left_out) = (Duration::ZERO, Duration::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::SplitMix64;

    const CONFIGURED: u32 = 4_000;

    /// The base cost, in bytes, measured over 40,000 requests of sizes drawn from `sizes`, on a device with `servers` parallel
    /// servers. A server takes `base_us` µs for a request beside its transfer at `mb_per_s` MB/s; the time varies at random by
    /// up to the fraction `jitter`. A size of 0 stands for a flush, which takes a server as long as two operations.
    fn measured(servers: usize, base_us: f64, mb_per_s: f64, sizes: &[u32], jitter: f64, seed: u64) -> f64 {
        let mut random = SplitMix64::new(seed);
        let mut price = Price::new(CONFIGURED);
        let mut free_at = alloc::vec![0.0_f64; servers];
        let mut queue = alloc::collections::VecDeque::new();
        let mut done = alloc::vec::Vec::new();
        for _ in 0..40_000 {
            let size = sizes[random.next_below(sizes.len() as u64) as usize];
            let server = (0..servers).min_by(|&one, &other| free_at[one].total_cmp(&free_at[other])).expect("servers");
            let scale = 1.0 + jitter * (2.0 * random.next_f64() - 1.0);
            let begins = free_at[server];
            let operations = if size == 0 { 2.0 } else { 1.0 };
            free_at[server] += (operations * base_us + f64::from(size) / mb_per_s) * scale;
            queue.push_back(begins);
            // It was handed over when the one that is twice as many places ahead began.
            let entered = if queue.len() > 2 * servers { queue.pop_front().unwrap_or(0.0) } else { 0.0 };
            done.push((free_at[server], entered, size));
        }
        done.sort_by(|one, other| one.0.total_cmp(&other.0));
        for (us, entered, size) in done {
            let [now, entered] = [us, entered].map(|us| Instant::from_nanos((us * 1e3) as u64));
            let direction = (size > 0).then_some(Direction::Read);
            let _ = price.observe(now, true, direction, size, now.since(entered));
        }
        f64::from(price.base())
    }

    #[test]
    fn the_base_cost_of_a_device_is_found() {
        // A disk, an array that sells requests, an SSD with parallel dies: base_us × MB/s bytes, by one server or many.
        for (servers, base_us, mb_per_s, sizes, most) in [
            (1, 8_000.0, 150.0, &[4_096, 262_144][..], 1.3),
            (1, 3_400.0, 2_000.0, &[1_024, 65_536, 262_144][..], 1.3),
            (8, 60.0, 400.0, &[4_096, 16_384, 262_144][..], 1.3),
            // What many servers are busy with at the ends of an interval hides part of what bytes take.
            (32, 90.0, 100.0, &[4_096, 1_048_576][..], 3.0),
        ] {
            // The time of flushes is left out to a factor of a step.
            let with_flushes = [&sizes.repeat(10)[..], &[0]].concat();
            for (sizes, times) in [(sizes, 1.0), (&with_flushes[..], STEP)] {
                for seed in 0..5 {
                    let found = measured(servers, base_us, mb_per_s, sizes, 0.3, seed);
                    let ratio = found / (base_us * mb_per_s).min(MOST);
                    assert!(
                        (0.3 / times..=most * times).contains(&ratio),
                        "{servers} × {base_us} us, {mb_per_s} MB/s, {} sizes, seed {seed}: {ratio:.2}",
                        sizes.len()
                    );
                }
            }
        }
    }

    #[test]
    fn without_a_base_cost_or_with_one_size_the_configured_one_stays() {
        for seed in 0..20 {
            let found = measured(1, 0.0, 500.0, &[4_096, 262_144], 0.5, seed);
            assert!((found - 4_000.0).abs() < 1.0, "no base cost, seed {seed}: {found}");
            let found = measured(4, 100.0, 500.0, &[4_096], 0.5, seed);
            assert!((found - 4_000.0).abs() < 1.0, "one size, seed {seed}: {found}");
        }
    }

    #[test]
    fn what_comes_back_from_a_device_that_may_idle_says_nothing() {
        let mut price = Price::new(CONFIGURED);
        for step in 0..10_000_u64 {
            let now = Instant::from_nanos(step * 1_000_000);
            let bytes = if step % 3 == 0 { 1 << 20 } else { 512 };
            assert_eq!(
                price.observe(now, step % 16 != 0, Some(Direction::Read), bytes, Duration::from_millis(1)),
                None
            );
        }
    }

    /// A price that has observed 20,000 requests on a busy disk, 64 in its queue, one of `one_in` without payload. Each takes
    /// 1 ms, and 10 us for each 4 KiB of payload.
    fn beside_flushes(one_in: u64) -> Price {
        let (mut price, mut now) = (Price::new(CONFIGURED), Instant::ZERO);
        for step in 0..20_000 {
            let (direction, bytes) =
                if step % one_in == 0 { (None, 0) } else { (Some(Direction::Read), 4_096 << (step % 7)) };
            now += Duration::from_nanos(1_000_000 + u64::from(bytes) * 10_000 / 4_096);
            let _ = price.observe(now, true, direction, bytes, Duration::from_millis(64));
        }
        price
    }

    #[test]
    fn some_requests_without_payload_hide_no_base_cost_and_many_set_none() {
        for (one_in, bytes) in [(u64::MAX, 409_600.0), (16, 409_600.0), (2, f64::from(CONFIGURED))] {
            let found = f64::from(beside_flushes(one_in).base());
            assert!((0.9..1.1).contains(&(found / bytes)), "one of {one_in}: {found} bytes");
        }
    }

    #[test]
    fn without_a_budget_a_measured_base_cost_is_forgotten_after_an_hour() {
        let mut price = beside_flushes(u64::MAX);
        let (measured, at) = (price.base(), |minutes: u64| Instant::ZERO + Duration::from_secs(60 * minutes));
        assert_eq!(price.unbounded(at(59)), None);
        let change = price.unbounded(at(61)).expect("it was measured in the first minute");
        assert_eq!((change.base, change.before, price.measured()), (CONFIGURED, measured, 0));
        assert_eq!(price.unbounded(at(200)), None);
    }

    #[test]
    fn another_configured_base_cost_is_the_least_and_factors_are_finite() {
        let mut price = Price::new(0);
        let change = price.configure(8_192).expect("another one");
        assert_eq!((change.base, change.before), (8_192, 0));
        assert!(change.factor.is_finite(), "{change:?}");
        assert_eq!((price.configure(9_000), price.measured()), (None, 0), "hardly another one");
        let change = price.configure(0).expect("back");
        assert!((change.base, price.measured()) == (0, 0) && change.factor > 0.0, "{change:?}");
    }
}
