//! Tenants of which only a part of the reservation and limit applies in this pool, because other servers have the rest.

use super::{Pool, Scheduler, Tenant, TenantId};
use crate::limits::{LimitSet, Owner, rate};
use crate::mclock::Qos;
use crate::time::Instant;
use crate::units::{Fraction, Fractions, Rates};

impl Tenant {
    /// The part of the configured limit that applies here, in whole units.
    fn own_limit(&self) -> Rates {
        self.fractions.of_limit(self.qos.limit)
    }

    /// The part of the configured reservation that applies here, in whole units.
    pub(super) fn own_reservation(&self) -> Rates {
        self.fractions.of_reservation(self.qos.reservation)
    }

    /// Enters the part of the configured limit among the limits of all owners.
    pub(super) fn set_own_limits(&mut self) {
        let own = self.own_limit();
        self.limit_iops.set(Owner::Operator, rate(own.iops));
        self.limit_bytes_per_s.set(Owner::Operator, rate(own.bytes_per_s));
    }

    /// The QoS policy with the limit that binds, and the fractions of it that apply here.
    pub(super) fn effective_qos(&self) -> (Qos, Fractions) {
        let [of_iops, of_bytes] = self.fractions.limit;
        let (iops, of_iops) = effective(&self.limit_iops, self.qos.limit.iops, of_iops);
        let (bytes_per_s, of_bytes) = effective(&self.limit_bytes_per_s, self.qos.limit.bytes_per_s, of_bytes);
        let qos = Qos { limit: Rates { iops, bytes_per_s }, ..self.qos };
        (qos, Fractions { limit: [of_iops, of_bytes], ..self.fractions })
    }
}

/// The limit that binds, and the fraction of it that applies: `fraction` of the limit `total` of the policy, or another owner's
/// limit as a whole.
fn effective(limits: &LimitSet, total: u64, fraction: Fraction) -> (u64, Fraction) {
    match limits.binding() {
        Some((Owner::Operator, _)) if fraction != Fraction::WHOLE => (total, fraction),
        Some((_, limit)) => (limit, Fraction::WHOLE),
        None => (0, Fraction::WHOLE),
    }
}

/// A tenant's reservation and limit, and its demand since it joined. Rates and amounts in requests, and in payload bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// The reservation of the policy, per second; 0 = not set.
    pub reservation: [u64; 2],
    /// The limit of the policy, per second; 0 = not set.
    pub limit: [u64; 2],
    /// Requests and bytes that arrived.
    pub arrived: [u64; 2],
    /// Requests and bytes that were dispatched.
    pub served: [u64; 2],
    /// Number of requests queued now.
    pub queued: u64,
}

impl<R> Pool<R> {
    /// A tenant's demand; `None` if it has left the pool, or has neither a reservation nor a limit that is in force.
    pub fn demand(&self, id: TenantId) -> Option<Demand> {
        let tenant = self.tenants.get(id.index as usize).filter(|t| t.live && t.generation == id.generation)?;
        let (reservation, limit) = (tenant.qos.reservation, tenant.qos.limit);
        let is_in_force = self.config.scheduler == Scheduler::Mclock;
        (is_in_force && !(reservation.is_unset() && limit.is_unset())).then_some(Demand {
            reservation: [reservation.iops, reservation.bytes_per_s],
            limit: [limit.iops, limit.bytes_per_s],
            arrived: [tenant.tally.arrived, tenant.tally.arrived_bytes],
            served: tenant.tally.entered,
            queued: tenant.tally.waiting,
        })
    }

    /// Makes only `fractions` of a tenant's reservation and limit apply in this pool; [`Fractions::WHOLE`] for all of them.
    /// Effective at once, also for requests that wait. What the tenant has saved up stays, so that fractions may change each
    /// period. O(log tenants).
    pub fn set_fractions(&mut self, now: Instant, id: TenantId, fractions: Fractions) {
        let Some(tenant) = self.live_mut(id).filter(|tenant| tenant.fractions != fractions) else { return };
        tenant.fractions = fractions;
        tenant.set_own_limits();
        let (client, (qos, fractions)) = (tenant.client, tenant.effective_qos());
        self.queue.set_qos_in_part(now, client, qos, &fractions, true);
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;
    use core::ops::Range;

    use super::super::guarantee::{Scope, Throughputs};
    use super::super::{Config, Next, Outcome, Pool, Scheduler, TenantId};
    use crate::admission;
    use crate::limits::Owner;
    use crate::mclock::{CostModel, Qos};
    use crate::throughput::Rate;
    use crate::time::{Duration, Instant};
    use crate::units::{Direction, Fraction, Fractions, Kind, Rates, Work};

    const READ: Work = Work::new(Kind::Read, 4_096);

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    fn iops(iops: u64) -> Rates {
        Rates { iops, bytes_per_s: 0 }
    }

    fn limited(limit: u64) -> Qos {
        Qos { limit: iops(limit), burst: Duration::from_millis(10), ..Qos::default() }
    }

    fn pool() -> Pool<()> {
        let config = Config {
            scheduler: Scheduler::Mclock,
            admission: admission::Config::None,
            base_cost_bytes: 4_096,
            cost: CostModel::default(),
            limit: Rates::UNSET,
            limit_burst: Duration::ZERO,
            target: None,
            slots: None,
        };
        Pool::new(config, Instant::ZERO, 1)
    }

    fn of_limit(fraction: f64) -> Fractions {
        Fractions { limit: [Fraction::of(fraction); 2], ..Fractions::WHOLE }
    }

    fn of_reservation(fraction: f64) -> Fractions {
        Fractions { reservation: [Fraction::of(fraction); 2], ..Fractions::WHOLE }
    }

    /// Keeps requests of a limited tenant queued, and serves those that may be served in each millisecond of `range`; returns
    /// when each was served, in ms. Sets the fraction of the limit that `part` returns for a millisecond.
    fn served(
        pool: &mut Pool<()>,
        id: TenantId,
        range: Range<u64>,
        mut part: impl FnMut(u64) -> Option<f64>,
    ) -> Vec<u64> {
        let mut served = Vec::new();
        for ms in range {
            if let Some(part) = part(ms) {
                pool.set_fractions(at(ms), id, of_limit(part));
            }
            while pool.queued() < 64 {
                pool.submit(at(ms), id, READ, ()).expect("a tenant");
            }
            while let Next::Run((), ticket) = pool.dispatch(at(ms)) {
                pool.complete(at(ms), ticket, Outcome::Done);
                served.push(ms);
                pool.submit(at(ms), id, READ, ()).expect("a tenant");
            }
        }
        served
    }

    #[test]
    fn a_fraction_of_the_limit_holds_even_below_one_request_a_second() {
        let mut pool = pool();
        let id = pool.join(at(0), limited(4_000));
        pool.set_fractions(at(0), id, of_limit(0.0005));
        let two_a_second = served(&mut pool, id, 0..10_000, |_| None).len();
        assert!((20..=21).contains(&two_a_second), "{two_a_second}");
        pool.set_fractions(at(10_000), id, of_limit(0.000_125));
        let half = served(&mut pool, id, 10_000..20_000, |_| None).len();
        assert!((4..=6).contains(&half), "{half} at 0.5/s");
        pool.set_fractions(at(20_000), id, Fractions::WHOLE);
        let whole = served(&mut pool, id, 20_000..21_000, |_| None).len();
        assert!((3_980..=4_002).contains(&whole), "{whole}");
    }

    #[test]
    fn a_thousand_members_with_a_small_limit_keep_it_together() {
        // Of 100 requests a second, each member has one in ten seconds; the first passes at once.
        let mut pool = pool();
        let id = pool.join(at(0), limited(100));
        pool.set_fractions(at(0), id, of_limit(0.001));
        let of_one = served(&mut pool, id, 0..100_000, |_| None);
        assert!((10..=11).contains(&of_one.len()), "{of_one:?}");
        // A debt at a low rate is the same number of requests at a high one, and the other way round.
        pool.set_fractions(at(100_000), id, of_limit(0.5));
        let of_half = served(&mut pool, id, 100_000..102_000, |_| None).len();
        assert!((90..=101).contains(&of_half), "{of_half}");
        pool.set_fractions(at(102_000), id, of_limit(0.001));
        let again = served(&mut pool, id, 102_000..142_000, |_| None).len();
        assert!((3..=5).contains(&again), "{again}");
    }

    #[test]
    fn a_part_that_changes_often_gives_neither_bursts_nor_losses() {
        let mut pool = pool();
        let id = pool.join(at(0), limited(4_000));
        // 1,000/s and 3,000/s in turn.
        let part = |ms: u64| ms.is_multiple_of(20).then_some(if (ms / 20).is_multiple_of(2) { 0.25 } else { 0.75 });
        let times = served(&mut pool, id, 0..4_000, part);
        assert!((7_900..=8_035).contains(&times.len()), "{}", times.len());
        for from in (0..3_900).step_by(10) {
            let inside = times.iter().filter(|&&ms| (from..from + 100).contains(&ms)).count();
            // A window of 100 ms has at most 60 ms of the higher rate, with a burst of 10 ms at that rate.
            assert!(inside <= 60 * 3 + 40 + 30 + 1, "{inside} in 100 ms from {from} ms");
        }
    }

    #[test]
    fn what_a_reservation_may_catch_up_survives_changes_of_its_part() {
        for changes in [false, true] {
            let mut pool = pool();
            let id = pool.join(at(0), Qos { reservation: iops(2_000), ..Qos::default() });
            let other = pool.join(at(0), Qos { weight: 1_000, ..Qos::default() });
            pool.set_fractions(at(0), id, of_reservation(0.5));
            for _ in 0..2_000 {
                pool.submit(at(0), id, READ, ()).expect("a tenant");
                pool.submit(at(0), other, READ, ()).expect("a tenant");
            }
            // The device stalls for half a second.
            for ms in (0..500).step_by(100).filter(|_| changes) {
                pool.set_fractions(at(ms), id, of_reservation(if ms / 100 % 2 == 0 { 0.4 } else { 0.5 }));
            }
            let mut by_reservation = 0;
            for _ in 0..1_200 {
                let Next::Run((), ticket) = pool.dispatch(at(500)) else { panic!("requests wait") };
                by_reservation += u64::from(ticket.is_reserved());
                pool.complete(at(500), ticket, Outcome::Done);
            }
            assert!((400..=502).contains(&by_reservation), "{by_reservation} of 500, {changes}");
        }
    }

    #[test]
    fn demand_counts_requests_and_bytes_of_tenants_with_totals() {
        let mut pool = pool();
        let (id, free) = (pool.join(at(0), limited(1_000)), pool.join(at(0), Qos::default()));
        pool.set_fractions(at(0), id, of_limit(0.5));
        (0..3).for_each(|_| pool.submit(at(0), id, READ, ()).expect("a tenant"));
        let Next::Run((), ticket) = pool.dispatch(at(0)) else { panic!("requests wait") };
        let demand = pool.demand(id).expect("a limit");
        // The whole limit, whatever part of it applies here.
        assert_eq!((demand.limit, demand.reservation), ([1_000, 0], [0, 0]));
        assert_eq!((demand.arrived, demand.served, demand.queued), ([3, 3 * 4_096], [1, 4_096], 2));
        assert_eq!(pool.demand(free), None);
        pool.complete(at(1), ticket, Outcome::Done);
        pool.leave(id);
        assert_eq!(pool.demand(id), None);
    }

    #[test]
    fn a_fraction_of_a_guarantee_is_kept_and_its_demand_counted() {
        let mut pool = pool();
        let id = pool.join(at(0), Qos::default());
        let quarter = [Fraction::of(0.25), Fraction::WHOLE];
        pool.set_guarantee_part(at(0), id, Scope::All, quarter);
        pool.set_guarantees(at(0), id, &Throughputs::of_all(Rate::RequestsPerS(400)));
        let shown = |pool: &Pool<()>| {
            let guarantee = pool.tenant(id).and_then(|tenant| tenant.guarantee(Scope::All));
            guarantee.map(|guarantee| (guarantee.guaranteed.value(), guarantee.total.value()))
        };
        assert_eq!(shown(&pool), Some((100, 400)));
        let of_quarter = served(&mut pool, id, 0..5_000, |_| None).len() as u64;
        assert!((470..=530).contains(&of_quarter), "{of_quarter}");
        let demand = pool.guarantee_demand(id, Scope::All).expect("a guarantee");
        assert_eq!((demand.limit, demand.reservation, demand.queued), ([400, 0], [0, 0], 64));
        assert_eq!((demand.arrived, demand.served), ([of_quarter, 4_096 * of_quarter], demand.arrived));
        assert_eq!(pool.guarantee_demand(id, Scope::Of(Direction::Read)), None);
        // Another part applies at once, and stays under a newer policy.
        pool.set_guarantee_part(at(5_000), id, Scope::All, [Fraction::of(0.5), Fraction::WHOLE]);
        let of_half = served(&mut pool, id, 5_000..10_000, |_| None).len();
        assert!((950..=1_050).contains(&of_half), "{of_half}");
        pool.set_guarantees(at(10_000), id, &Throughputs::of_all(Rate::RequestsPerS(100)));
        assert_eq!(shown(&pool), Some((50, 100)));
        pool.set_guarantees(at(10_000), id, &Throughputs::NONE);
        assert_eq!((shown(&pool), pool.guarantee_demand(id, Scope::All)), (None, None));
    }

    #[test]
    fn another_owners_smaller_limit_binds_as_a_whole() {
        let mut pool = pool();
        let id = pool.join(at(0), Qos { limit: iops(1_000), ..Qos::default() });
        pool.set_fractions(at(0), id, of_limit(0.5));
        let binding = |pool: &Pool<()>| pool.tenant(id).and_then(|tenant| tenant.limit_iops.binding());
        assert_eq!(binding(&pool), Some((Owner::Operator, 500)));
        pool.set_limit(at(0), id, Owner::Latency, iops(100));
        assert_eq!(binding(&pool), Some((Owner::Latency, 100)));
        let hundred = served(&mut pool, id, 0..1_000, |_| None).len();
        assert!((99..=101).contains(&hundred), "{hundred}");
        pool.set_limit(at(1_000), id, Owner::Latency, Rates::UNSET);
        let half = served(&mut pool, id, 1_000..2_000, |_| None).len();
        assert!((495..=502).contains(&half), "{half}");
        // A new policy keeps the fraction.
        pool.set_qos(at(2_000), id, Qos { limit: iops(200), ..Qos::default() });
        assert_eq!(binding(&pool), Some((Owner::Operator, 100)));
    }
}
