//! The settings and statistics of a tenant.

use super::guarantee::{self, Guaranteed, Scope};
use super::slots::Granted;
use super::{Pool, TenantId, Throttled};
use crate::histogram::Histogram;
use crate::limits::{LimitSet, Owner, rate};
use crate::mclock::Qos;
use crate::response::Throttle;
use crate::time::{Duration, Instant};
use crate::units::{Fractions, Rates};

/// Counters and histograms of a tenant, all since it joined the pool.
#[derive(Clone, Default)]
pub struct TenantStats {
    /// Reads completed.
    pub reads: u64,
    /// Writes completed.
    pub writes: u64,
    /// Flushes completed.
    pub flushes: u64,
    /// Requests without payload other than flushes completed: trim, write zeroes, cache hints, block status.
    pub metas: u64,
    /// Payload bytes read.
    pub read_bytes: u64,
    /// Payload bytes written.
    pub write_bytes: u64,
    /// Requests, or slices of them, that the back end failed.
    pub errors: u64,
    /// Requests or slices dispatched for the tenant's reservation.
    pub by_reservation: u64,
    /// Requests or slices dispatched by weight, beyond the tenant's reservation.
    pub by_weight: u64,
    /// Time from submission to dispatch; for a request that is divided into slices, of its first slice.
    pub queue_latency: Histogram,
    /// Part of the sum of `queue_latency` in which the limits of single volumes throttled the requests.
    pub limited: Duration,
    /// Time from dispatch to completion; for a request that is divided into slices, of each slice.
    pub device_latency: Histogram,
    /// Time from submission to completion of whole requests; for a request that is divided into slices, from the submission of
    /// its last slice, or from an earlier instant that the caller names ([`Ticket::began_at`](super::Ticket::began_at)).
    pub latency: Histogram,
}

/// The settings and state of one tenant.
pub struct TenantView<'a> {
    /// The QoS policy as configured.
    pub qos: &'a Qos,
    /// The fractions of the policy's reservation and limit that apply in this pool.
    pub fractions: Fractions,
    /// The limits on the tenant's IOPS, by owner.
    pub limit_iops: &'a LimitSet,
    /// The limits on the tenant's bytes per second, by owner.
    pub limit_bytes_per_s: &'a LimitSet,
    /// The limits on the tenant's requests in flight, by owner.
    pub slots: &'a LimitSet,
    /// Number of the tenant's requests queued in the pool.
    pub queued: usize,
    /// Number of the tenant's requests in flight.
    pub in_flight: u64,
    /// The tenant's counters.
    pub stats: &'a TenantStats,
    /// The order in which the tenant is throttled for the pool's latency target.
    pub throttle: Throttle,
    /// The tenant's throttle for the pool's latency target; `None` if it is not throttled.
    pub throttled: Option<Throttled>,
    /// The tenant's latency target, and the slots that the slot controller grants for it.
    pub granted: &'a Granted,
    guaranteed: &'a [Guaranteed],
}

impl<'a> TenantView<'a> {
    /// The tenant's throughput guarantees, at most one of each scope.
    pub fn guarantees(&self) -> impl Iterator<Item = guarantee::View<'a>> {
        self.guaranteed.iter().map(Guaranteed::view)
    }

    /// The tenant's throughput guarantee of this scope, if it has one.
    pub fn guarantee(&self, scope: Scope) -> Option<guarantee::View<'a>> {
        self.guarantees().find(|guarantee| guarantee.scope == scope)
    }
}

/// A limit that the operator alone sets: on IOPS, and on bytes per second.
pub(super) fn of_operator(limit: Rates) -> [LimitSet; 2] {
    [limit.iops, limit.bytes_per_s].map(|limit| {
        let mut of_operator = LimitSet::NONE;
        of_operator.set(Owner::Operator, rate(limit));
        of_operator
    })
}

impl<R> Pool<R> {
    /// Time at which the pool next decides something by itself. Without admission control, until this instant and until that of
    /// the last [`Next::Wait`](super::Next), [`Pool::dispatch`] repeats its last answer, unless a request is submitted or
    /// completes or another function changes the pool.
    #[inline]
    pub fn decides_at(&self) -> Instant {
        self.admission.next_tick().min(self.controllers_due())
    }

    /// The limits on the whole pool, by owner: on IOPS, and on bytes per second.
    pub fn pool_limits(&self) -> [LimitSet; 2] {
        of_operator(self.config.limit)
    }

    /// The settings and state of one tenant; `None` when it has left the pool.
    pub fn tenant(&self, id: TenantId) -> Option<TenantView<'_>> {
        let tenant = self.tenants.get(id.index as usize).filter(|t| t.live && t.generation == id.generation)?;
        Some(TenantView {
            qos: &tenant.qos,
            fractions: tenant.fractions,
            limit_iops: &tenant.limit_iops,
            limit_bytes_per_s: &tenant.limit_bytes_per_s,
            slots: &tenant.slots,
            queued: self.queue.client_len(tenant.client) + tenant.queued_fifo,
            in_flight: tenant.in_flight,
            stats: &tenant.stats,
            throttle: tenant.throttle,
            throttled: tenant.throttled,
            granted: &tenant.granted,
            guaranteed: &tenant.guaranteed,
        })
    }
}
