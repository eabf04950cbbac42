//! The part that a tenant is owed (reservation and guarantee), below which no throttle of this host takes it.
//!
//! A reservation takes precedence over a throughput guarantee, and both over latency targets. Most enforcement points cannot
//! enforce either, because other requests are queued where this host cannot reorder them; but no enforcement point throttles
//! a tenant below its reservation or guarantee.

use evenkeel_control::throughput::{Counters, Rate};
use evenkeel_control::units::Direction;
use evenkeel_policy::config::{Guarantee, Tenant};
use evenkeel_policy::units::Rates;

/// The throughput of a device or tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pace {
    /// Bytes read per second, and bytes written per second.
    pub bytes: [f64; 2],
    /// Reads completed per second, and writes completed per second.
    pub requests: [f64; 2],
}

impl Pace {
    /// The throughput between two readings of counters `seconds` apart; 0 for counters that were reset.
    pub fn between(before: Counters, after: Counters, seconds: f64) -> Self {
        let rate = |before: u64, after: u64| after.saturating_sub(before) as f64 / seconds;
        Self {
            bytes: [rate(before.read_bytes, after.read_bytes), rate(before.written_bytes, after.written_bytes)],
            requests: [rate(before.reads, after.reads), rate(before.writes, after.writes)],
        }
    }

    /// The throughput of a direction, in the unit of `rate`.
    pub const fn of(&self, direction: Direction, rate: Rate) -> f64 {
        match rate {
            Rate::BytesPerS(_) => self.bytes[direction as usize],
            Rate::RequestsPerS(_) => self.requests[direction as usize],
        }
    }

    /// Adds the throughput `other`, multiplied by the factor `part`.
    pub fn add(&mut self, other: &Self, part: f64) {
        for of in [0, 1] {
            self.bytes[of] += part * other.bytes[of];
            self.requests[of] += part * other.requests[of];
        }
    }
}

/// Reservation and throughput guarantee of a tenant on one pool.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Owed {
    reservation: Rates,
    guarantee: Guarantee,
}

impl Owed {
    /// The reservation and the throughput guarantee that `tenant` is owed.
    pub const fn of(tenant: &Tenant) -> Self {
        Self { reservation: tenant.reservation, guarantee: tenant.guarantee }
    }

    /// The reservation of `tenant` alone, without its guarantee.
    pub fn reservation_of(tenant: &Tenant) -> Self {
        Self { reservation: tenant.reservation, ..Self::default() }
    }

    /// True if the tenant has neither a reservation nor a guarantee.
    pub fn is_nothing(&self) -> bool {
        self.reservation.is_unset() && self.guarantee.sum().is_unset()
    }

    /// The tenant's throughput `pace` as a multiple of the rate that the tenant is owed; infinite if nothing is owed, or if
    /// `pace` is zero. `slowed`: true for reads, and for writes, if the throttle slows them; the guarantee of a direction
    /// that is not slowed does not count.
    pub fn paid(&self, pace: &Pace, slowed: [bool; 2]) -> f64 {
        let [bytes, requests] = [pace.bytes, pace.requests].map(|of| of[0] + of[1]);
        if bytes + requests <= 0.0 {
            return f64::INFINITY;
        }
        // Of a pair of rates the tenant is owed the one that it reaches first.
        let of = |rates: Rates, bytes: f64, requests: f64| {
            let of = |rate: u64, is: f64| if rate > 0 { is / rate as f64 } else { f64::NEG_INFINITY };
            if rates.is_unset() { f64::INFINITY } else { of(rates.iops, requests).max(of(rates.bytes_per_s.0, bytes)) }
        };
        let mut paid = of(self.reservation, bytes, requests).min(of(self.guarantee.together(), bytes, requests));
        for (direction, rates) in [self.guarantee.read.rates(), self.guarantee.write.rates()].into_iter().enumerate() {
            if slowed[direction] && pace.requests[direction] > 0.0 {
                paid = paid.min(of(rates, pace.bytes[direction], pace.requests[direction]));
            }
        }
        paid
    }

    /// Requests per second that the tenant is owed if their mean size is `mean_bytes`; 0 if nothing is owed.
    pub fn iops(&self, mean_bytes: f64) -> f64 {
        let of = |rates: Rates| {
            let of = |rate: u64, each: f64| if rate > 0 { rate as f64 / each } else { f64::INFINITY };
            let rate = of(rates.iops, 1.0).min(of(rates.bytes_per_s.0, mean_bytes.max(1.0)));
            if rate.is_finite() { rate } else { 0.0 }
        };
        let Guarantee { read, write, .. } = self.guarantee;
        of(self.reservation).max(of(self.guarantee.together())).max(of(read.rates()) + of(write.rates()))
    }

    /// The reservation in bytes per second or, without `in_bytes`, in requests per second of the mean size `mean_bytes`; 0 if
    /// there is no reservation.
    pub fn reserved(&self, in_bytes: bool, mean_bytes: f64) -> f64 {
        let iops = Self { guarantee: Guarantee::default(), ..*self }.iops(mean_bytes);
        if in_bytes { iops * mean_bytes.max(1.0) } else { iops }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_policy::units::Bytes;

    fn rates(iops: u64, bytes_per_s: u64) -> Rates {
        Rates { iops, bytes_per_s: Bytes(bytes_per_s) }
    }

    fn pace(read: f64, written: f64) -> Pace {
        Pace { bytes: [read, written], requests: [read / 4096.0, written / 4096.0] }
    }

    #[test]
    fn of_a_pair_of_rates_the_one_that_is_reached_first_is_owed() {
        let owed = Owed { reservation: rates(100, 4096 * 50), ..Owed::default() };
        assert_eq!(owed.paid(&pace(4096.0 * 25.0, 4096.0 * 25.0), [true; 2]), 1.0);
        assert_eq!((owed.iops(4096.0), owed.iops(1024.0)), (50.0, 100.0));
        assert_eq!((owed.reserved(true, 1024.0), owed.reserved(false, 8192.0)), (102_400.0, 25.0));
    }

    #[test]
    fn a_guarantee_of_a_direction_counts_where_that_is_slowed_and_asked_for() {
        let mut tenant = Tenant::default();
        tenant.guarantee.read.bytes_per_s = Bytes(1_000_000);
        let owed = Owed::of(&tenant);
        assert_eq!(owed.paid(&pace(5e5, 1e6), [true, true]), 0.5);
        assert_eq!(owed.paid(&pace(5e5, 1e6), [false, true]), f64::INFINITY);
        assert_eq!(owed.paid(&pace(0.0, 1e6), [true, true]), f64::INFINITY);
        assert_eq!(Owed::default().paid(&pace(1.0, 1.0), [true; 2]), f64::INFINITY);
        assert!(Owed::default().is_nothing() && !owed.is_nothing());
    }
}
