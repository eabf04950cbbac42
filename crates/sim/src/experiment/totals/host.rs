//! A member that serves a tenant with totals and another tenant, with an mClock queue and a device.

use evenkeel_control::cluster::totals::Asked;
use evenkeel_control::mclock::{ClientId, CostModel, Pull, Qos, Queue};
use evenkeel_control::units::{Fraction, Fractions, Kind, Rates, Work};
use evenkeel_control::{Duration, Instant};

use super::setup::{LIMIT, RESERVATION, Setup, at};

/// Weight of the tenant that always has requests; the weight of the tenant with totals is 1.
pub(super) const OTHER_WEIGHT: u32 = 3;
/// A burst of the limit.
pub(super) const BURST: Duration = Duration::from_millis(10);
const READ: Work = Work::new(Kind::Read, 4_096);

/// A member: its queue and its device, which serves one request at a time.
pub(super) struct Host {
    queue: Queue<bool>,
    tenant: ClientId,
    other: ClientId,
    service: Duration,
    free_at: Instant,
    fractions: Fractions,
    queued: u64,
    /// Requests that arrived, and that were served, since the last measurement.
    arrived: u64,
    served: u64,
}

impl Host {
    pub(super) fn new(setup: &Setup) -> Self {
        let mut queue = Queue::new(CostModel::default());
        let tenant = queue.join(Instant::ZERO, qos());
        let other = queue.join(Instant::ZERO, Qos { weight: OTHER_WEIGHT, ..Qos::default() });
        for _ in 0..2 {
            let _ = queue.push(Instant::ZERO, other, READ, false);
        }
        let service = Duration::from_nanos(1_000_000_000 / setup.capacity());
        let (free_at, fractions) = (Instant::ZERO, Fractions::WHOLE);
        Self { queue, tenant, other, service, free_at, fractions, queued: 0, arrived: 0, served: 0 }
    }

    /// Sets the parts of reservation and limit.
    pub(super) fn set_part(&mut self, step: u64, reservation: f64, limit: f64) {
        let [reservation, limit] = [reservation, limit].map(|part| [Fraction::of(part); 2]);
        let fractions = Fractions { reservation, limit };
        if fractions != self.fractions {
            self.fractions = fractions;
            self.queue.set_qos_in_part(at(step), self.tenant, qos(), &fractions, true);
        }
    }

    /// Demand and service since the last call, `seconds` ago, as fractions of the total limit over a second.
    pub(super) fn asked(&mut self, seconds: f64) -> Asked {
        let (arrived, served) = (std::mem::take(&mut self.arrived), std::mem::take(&mut self.served));
        let part = |number: u64, seconds: f64| number as f64 / seconds / LIMIT as f64;
        let queued = part(self.queued, 1.0);
        Asked { requests: arrived as f64, arrived: part(arrived, seconds), queued, served: part(served, seconds) }
    }

    /// Requests arrive; those beyond `most` queued ones are not sent, as their senders wait.
    pub(super) fn arrive(&mut self, now: Instant, requests: u64, most: u64) {
        for _ in 0..requests.min(most.saturating_sub(self.queued)) {
            let _ = self.queue.push(now, self.tenant, READ, true);
            (self.queued, self.arrived) = (self.queued + 1, self.arrived + 1);
        }
    }

    /// Serves until `until`; returns the number of the tenant's requests.
    pub(super) fn serve(&mut self, from: Instant, until: Instant) -> u64 {
        let mut now = self.free_at.max(from);
        let mut number = 0;
        while now < until {
            let Pull::Ready { payload: is_tenant, .. } = self.queue.pull(now, |_, _| true) else { break };
            if is_tenant {
                number += 1;
            } else {
                let _ = self.queue.push(now, self.other, READ, false);
            }
            now += self.service;
        }
        self.free_at = now;
        self.queued -= number;
        self.served += number;
        number
    }
}

fn qos() -> Qos {
    let rates = |iops| Rates { iops, bytes_per_s: 0 };
    Qos { reservation: rates(RESERVATION), limit: rates(LIMIT), burst: BURST, ..Qos::default() }
}
