//! An exact pacer: how soon may the next request pass a limit?
//!
//! The generic cell rate algorithm (ITU-T I.371, "virtual scheduling"): instead of
//! tokens that a timer refills, each rate keeps one tag, the instant at which
//! everything that has passed would be paid for at the rate. A request may pass
//! once the tag is at most `burst` ahead of the clock. It sets the tag to
//! `amount / rate` after the later of tag and clock. There is no refill interval,
//! so a limit is as exact at 3 requests as at 3 million.
//!
//! Tags are integers in units of 2⁻³² ns and a request's price rounds up, so rounding
//! never lets more through than the rate; a limit is met to better than 0.01 % up to
//! 4 × 10¹⁴ units per second.
//!
//! **Bound.** If requests only pass when [`TokenBucket::ready_at`] has come, then over
//! any window at most `rate × (window + burst)` plus one request passes. Proof: let
//! the first request in the window pass at `s` and the last at `t`. Just before the
//! last, the tag is at least `s` plus the price of all the others, and at most
//! `t + burst`.

use crate::time::{Duration, Instant};
use crate::units::{Fraction, Rates, Work};

const FRACTION_BITS: u32 = 32;

/// One second in units of tags, 2⁻³² ns.
const SECOND: u128 = 1_000_000_000 << FRACTION_BITS;

/// Array index of the rate in requests per second.
pub(crate) const IOPS: usize = 0;
/// Array index of the rate in payload bytes per second.
pub(crate) const BYTES: usize = 1;

/// Paces requests to [`Rates`]: both rates hold, each with a tag of its own.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub struct TokenBucket {
    /// For each rate, the instant at which all requests that passed are paid for at the rate, in units of 2⁻³² ns.
    tags: [u128; 2],
    /// Price of one request and of one byte, in the form of [`written`]; 0 = rate not set.
    prices: [u64; 2],
    burst_ns: u64,
}

impl TokenBucket {
    /// A full bucket: a burst may pass at once. `burst` is the unused limit that can be
    /// saved up, as time at the limit rate.
    pub fn new(rates: Rates, burst: Duration) -> Self {
        Self { tags: [0; 2], prices: prices(rates), burst_ns: burst.as_nanos() }
    }

    /// The first instant at which a request may pass; never in the future if no rate is set. O(1).
    #[inline]
    pub fn ready_at(&self) -> Instant {
        Instant::from_nanos(self.deadline(IOPS).max(self.deadline(BYTES)))
    }

    /// Charges a request that passes at `now`. O(1).
    ///
    /// A request may be charged before [`TokenBucket::ready_at`], because a reservation let it pass. The bucket then counts as
    /// having become ready just at `now`, and later requests wait accordingly. Otherwise a reservation above the limit would
    /// run up a debt, to be paid off once the limit is raised.
    #[inline]
    pub fn take(&mut self, now: Instant, work: &Work) {
        self.charge(now, work.part.begins().into(), work.payload());
    }

    /// Charges `requests` requests and `bytes` payload bytes that pass at `now`.
    #[inline]
    pub(crate) fn charge(&mut self, now: Instant, requests: u32, bytes: u32) {
        let now_tag = tag(now.as_nanos());
        for (rate, amount) in [(IOPS, requests), (BYTES, bytes)] {
            if self.prices[rate] != 0 {
                let latest = now_tag + tag(self.burst_ns);
                let start = self.tags[rate].max(now_tag).min(latest);
                self.tags[rate] = start + read(self.prices[rate]) * u128::from(amount);
            }
        }
    }

    /// Changes rates and burst at `now`; does nothing if neither differs from the present one.
    ///
    /// Effective at once: a debt (requests that passed and are not paid for) is converted to the
    /// new rate, and saved-up credit is dropped (it builds up again as time passes). O(1).
    pub fn set_rates(&mut self, now: Instant, rates: Rates, burst: Duration) {
        self.change(now, prices(rates), burst);
    }

    /// [`TokenBucket::set_rates`] to fractions of `rates`.
    pub(crate) fn set_fractions(&mut self, now: Instant, rates: Rates, fractions: [Fraction; 2], burst: Duration) {
        self.change(now, prices_of(rates, fractions), burst);
    }

    /// Like [`TokenBucket::set_fractions`], but for a part that changes often: the saved-up credit stays, as a number of
    /// requests or bytes, as far as it is no more than `burst` at the new rate. So a change neither gives a burst nor takes one
    /// away. O(1).
    pub(crate) fn shift_fractions(&mut self, now: Instant, rates: Rates, fractions: [Fraction; 2], burst: Duration) {
        let (old, saved) = (*self, tag(self.burst_ns));
        self.change(now, prices_of(rates, fractions), burst);
        if self.prices == old.prices {
            return;
        }
        for rate in [IOPS, BYTES] {
            let (from, to) = (old.prices[rate], self.prices[rate]);
            if from == 0 || to == 0 {
                continue;
            }
            let credit = (tag(now.as_nanos()) + saved).saturating_sub(old.tags[rate]).min(saved);
            // Rounded down, so that rounding gives no credit.
            let kept = converted(credit, from, to, false);
            self.tags[rate] = self.tags[rate].saturating_sub(kept.min(tag(burst.as_nanos())));
        }
    }

    fn change(&mut self, now: Instant, prices: [u64; 2], burst: Duration) {
        if prices == self.prices && burst.as_nanos() == self.burst_ns {
            return;
        }
        let empty_before = tag(now.as_nanos()) + tag(self.burst_ns);
        let empty_after = tag(now.as_nanos()) + tag(burst.as_nanos());
        for rate in [IOPS, BYTES] {
            let debt = self.tags[rate].saturating_sub(empty_before);
            self.tags[rate] = empty_after.saturating_add(converted(debt, self.prices[rate], prices[rate], true));
        }
        self.prices = prices;
        self.burst_ns = burst.as_nanos();
    }

    /// Changes the burst at `now`; the rates stay. See [`TokenBucket::set_rates`].
    pub(crate) fn set_burst(&mut self, now: Instant, burst: Duration) {
        self.change(now, self.prices, burst);
    }

    /// Drops saved-up credit: only time that passes after `now` gives new credit. A debt stays.
    #[inline]
    pub(crate) fn drop_credit(&mut self, now: Instant) {
        let empty = tag(now.as_nanos()) + tag(self.burst_ns);
        for old in &mut self.tags {
            *old = (*old).max(empty);
        }
    }

    /// The unused limit that can be saved up, as time at the limit rate.
    #[inline]
    pub(crate) fn burst(&self) -> Duration {
        Duration::from_nanos(self.burst_ns)
    }

    /// The instant, in ns, at which `rate` ([`IOPS`] or [`BYTES`]) lets the next request pass; 0 if the rate is not set.
    #[inline]
    pub(crate) fn deadline(&self, rate: usize) -> u64 {
        if self.prices[rate] == 0 {
            return 0;
        }
        let ceil = self.tags[rate].saturating_add(tag(1) - 1) >> FRACTION_BITS;
        u64::try_from(ceil.saturating_sub(u128::from(self.burst_ns))).unwrap_or(u64::MAX)
    }

    /// Number of requests like `work` that the rates let pass in this time, without saved-up limit.
    pub(crate) fn number_in(&self, time: Duration, work: &Work) -> u64 {
        let price = read(self.prices[IOPS]).max(read(self.prices[BYTES]) * u128::from(work.payload()));
        let number = tag(time.as_nanos()).checked_div(price).unwrap_or(u128::MAX);
        u64::try_from(number).unwrap_or(u64::MAX)
    }

    /// Price of a request ([`IOPS`]) or byte ([`BYTES`]) in a form that can be compared; 0 if the rate is not set. The higher the
    /// price, the lower the rate.
    #[inline]
    pub(crate) fn price(&self, rate: usize) -> u64 {
        self.prices[rate]
    }
}

#[inline]
const fn tag(nanos: u64) -> u128 {
    (nanos as u128) << FRACTION_BITS
}

/// Prices of a request and of a byte in units of 2⁻³² ns, rounded up so that rounding never exceeds a limit; 0 = rate not set.
/// The largest price, at a rate of 1/s, is below 2⁶².
fn prices(rates: Rates) -> [u64; 2] {
    prices_of(rates, [Fraction::WHOLE; 2])
}

/// [`prices`] of fractions of `rates`, as [`written`]. The largest, that of the smallest fraction of 1/s, is 2⁹⁴.
fn prices_of(rates: Rates, [requests, bytes]: [Fraction; 2]) -> [u64; 2] {
    [(rates.iops, requests), (rates.bytes_per_s, bytes)].map(|(rate, fraction)| match rate {
        0 => 0,
        rate => {
            let rate = u128::from(rate) * u128::from(fraction.units());
            let price = (SECOND * u128::from(Fraction::WHOLE.units())).div_ceil(rate);
            written(price)
        }
    })
}

/// Set in a price that is in units of 2⁻¹ ns, as that of a rate below 0.47/s.
const COARSE: u64 = 1 << 63;
/// Ratio of the units of prices, in bits.
const COARSE_BITS: u32 = 31;

/// A price in units of 2⁻³² ns, rounded up where it is long, as a number with 64 bits; a larger price is a larger number.
fn written(price: u128) -> u64 {
    match u64::try_from(price) {
        Ok(price) if price < COARSE => price,
        _ => COARSE | u64::try_from(price.div_ceil(1 << COARSE_BITS)).unwrap_or(u64::MAX).min(COARSE - 1),
    }
}

/// The price in units of 2⁻³² ns that was [`written`].
#[inline]
const fn read(written: u64) -> u128 {
    if written < COARSE { written as u128 } else { ((written - COARSE) as u128) << COARSE_BITS }
}

/// Converts `time`, which some work takes at price `from`, to the time that it takes at price `to`, rounded up or down; 0 if
/// either rate is not set.
fn converted(time: u128, from: u64, to: u64, up: bool) -> u128 {
    if from == 0 || to == 0 {
        return 0;
    }
    let (from, to) = (read(from), read(to));
    let rest = time % from;
    let of_rest = match rest.checked_mul(to) {
        Some(product) if up => product.div_ceil(from),
        Some(product) => product / from,
        // Both are long: the precision of floating point is that of a nanosecond in a week.
        None => {
            let about = rest as f64 / from as f64 * to as f64;
            (about * if up { 1.0 + 1e-12 } else { 1.0 - 1e-12 }) as u128
        }
    };
    (time / from).saturating_mul(to).saturating_add(of_rest)
}
