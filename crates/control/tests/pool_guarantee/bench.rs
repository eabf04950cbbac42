//! A test bench: a pool in front of a simulated device, and tenants that keep the pool busy.

use std::collections::VecDeque;

use evenkeel_control::admission::Config as Admission;
use evenkeel_control::mclock::{CostModel, Qos};
use evenkeel_control::pool::guarantee::{Binding, Scope, Throughputs};
use evenkeel_control::pool::{Config, Next, Outcome, Pool, Scheduler, TenantId, Ticket};
use evenkeel_control::rng::SplitMix64;
use evenkeel_control::throughput::{Rate, Reason};
use evenkeel_control::units::{Kind, Rates, Work};
use evenkeel_control::{Duration, Instant};

pub(crate) const BLOCK: u32 = 64 << 10;
const STEP: Duration = Duration::from_micros(100);
const BYTES: u64 = 1_000_000;

pub(crate) const CONFIG: Config = Config {
    scheduler: Scheduler::Mclock,
    admission: Admission::Fixed { budget_bytes: 1 << 20 },
    base_cost_bytes: 0,
    cost: CostModel { base_bytes: 4_096, write_percent: 100 },
    limit: Rates::UNSET,
    limit_burst: Duration::from_millis(10),
    target: None,
    slots: None,
};

/// A tenant's policy with a burst of 10 ms; without a burst, a limit would lose rate whenever dispatch comes late.
pub(crate) fn qos() -> Qos {
    Qos { burst: Duration::from_millis(10), ..Qos::default() }
}

/// A guarantee of `rate` megabytes per second.
pub(crate) fn mb(rate: u64) -> Option<Rate> {
    Some(Rate::BytesPerS(rate * BYTES))
}

/// A limit or a reservation of `rate` megabytes per second.
pub(crate) fn limit(rate: u64) -> Rates {
    Rates { bytes_per_s: rate * BYTES, iops: 0 }
}

/// Distance of the measured rate from the guaranteed one, as a fraction of the guaranteed; both in megabytes per second.
pub(crate) fn off(measured: f64, guaranteed: u64) -> f64 {
    (measured / guaranteed as f64 - 1.0).abs()
}

/// A tenant's source of requests of one kind, which keeps `depth` of them in the pool.
struct Client {
    id: TenantId,
    kind: Kind,
    depth: usize,
    /// Requests of this tenant and kind that are in the pool now, queued or in flight.
    there: usize,
}

/// Throughput of the device while it is fast, in megabytes per second.
const FAST: f64 = 200.0;

/// A device serves nothing in the last `stalls_ms` of every period of `every_ms`.
#[derive(Clone, Copy)]
pub(crate) struct Stalls {
    pub(crate) every_ms: u64,
    pub(crate) stalls_ms: u64,
}

/// A pool in front of a device that serves one request after the other: by default at 200 MB/s, and at 20 MB/s for a part
/// of the time; [`Bench::stalling`] has a device of another rate that stalls.
pub(crate) struct Bench {
    pub(crate) pool: Pool<(TenantId, Kind)>,
    pub(crate) now: Instant,
    inside: VecDeque<(TenantId, Kind, Ticket)>,
    credit: f64,
    /// Megabytes per second of the device while it is fast.
    rate: f64,
    stalls: Option<Stalls>,
    rng: SplitMix64,
    /// Part of the time in which the device is slow, from 0 to 1.
    slow_part: f64,
    slow: bool,
    /// When the device changes between fast and slow next.
    turns_at: Instant,
    clients: Vec<Client>,
}

impl Bench {
    pub(crate) fn new(seed: u64, slow_part: f64) -> Self {
        Self {
            pool: Pool::new(CONFIG, Instant::ZERO, seed),
            now: Instant::ZERO,
            inside: VecDeque::new(),
            credit: 0.0,
            rate: FAST,
            stalls: None,
            rng: SplitMix64::new(seed),
            slow_part,
            slow: true,
            turns_at: Instant::ZERO,
            clients: Vec::new(),
        }
    }

    /// A pool in front of a device that serves `rate` megabytes per second and stalls.
    pub(crate) fn stalling(seed: u64, rate: f64, stalls: Stalls) -> Self {
        Self { rate, stalls: Some(stalls), ..Self::new(seed, 0.0) }
    }

    /// Adds a tenant that keeps `reads` reads and `writes` writes in the pool.
    pub(crate) fn join(&mut self, qos: Qos, targets: Throughputs, reads: usize, writes: usize) -> TenantId {
        let id = self.pool.join(self.now, qos);
        let client = |kind, depth| Client { id, kind, depth, there: 0 };
        self.clients.extend([client(Kind::Read, reads), client(Kind::Write, writes)]);
        self.guarantee(id, targets);
        id
    }

    /// Takes a tenant out of the pool; returns the number of its requests that were queued.
    pub(crate) fn leave(&mut self, id: TenantId) -> usize {
        self.clients.retain(|client| client.id != id);
        self.pool.leave(id).len()
    }

    pub(crate) fn guarantee(&mut self, id: TenantId, targets: Throughputs) {
        self.pool.set_guarantees(self.now, id, &targets);
    }

    /// Lets the tenant keep `depth` requests of this kind in the pool from now on.
    pub(crate) fn set_depth(&mut self, id: TenantId, kind: Kind, depth: usize) {
        self.clients.iter_mut().filter(|client| (client.id, client.kind) == (id, kind)).for_each(|c| c.depth = depth);
    }

    /// Submits one request of the tenant at once, even if `depth` of them are in the pool already.
    pub(crate) fn submit(&mut self, id: TenantId, kind: Kind) {
        self.pool.submit(self.now, id, Work::new(kind, BLOCK), (id, kind)).expect("has not left");
        self.clients.iter_mut().filter(|client| (client.id, client.kind) == (id, kind)).for_each(|c| c.there += 1);
    }

    /// Runs tenants, pool and device for `ms` milliseconds of virtual time.
    pub(crate) fn run(&mut self, ms: u64) {
        let until = self.now + Duration::from_millis(ms);
        while self.now < until {
            self.now += STEP;
            self.serve();
            for place in 0..self.clients.len() {
                while let Client { id, kind, depth, there } = self.clients[place]
                    && there < depth
                {
                    self.submit(id, kind);
                }
            }
            while let Next::Run((id, kind), ticket) = self.pool.dispatch(self.now) {
                self.inside.push_back((id, kind, ticket));
            }
        }
    }

    /// Completes as many requests as the device serves in one step of time.
    fn serve(&mut self) {
        if self.slow_part > 0.0 && self.now >= self.turns_at {
            self.slow = !self.slow;
            let mean_s = if self.slow { 0.15 } else { 0.15 * (1.0 - self.slow_part) / self.slow_part };
            let length_s = mean_s * 2.0 * self.rng.next_f64();
            self.turns_at = self.now + Duration::from_nanos((length_s * 1e9) as u64);
        }
        let within = |s: Stalls| self.now.as_nanos() / 1_000_000 % s.every_ms >= s.every_ms - s.stalls_ms;
        let rate = match self.stalls {
            Some(stalls) if within(stalls) => return,
            _ if self.slow && self.slow_part > 0.0 => self.rate / 10.0,
            _ => self.rate,
        };
        self.credit += rate * BYTES as f64 * STEP.as_secs_f64();
        while self.credit >= f64::from(BLOCK)
            && let Some((id, kind, ticket)) = self.inside.pop_front()
        {
            self.credit -= f64::from(BLOCK);
            self.pool.complete(self.now, ticket, Outcome::Done);
            let of_it = self.clients.iter_mut().filter(|client| (client.id, client.kind) == (id, kind));
            of_it.for_each(|client| client.there -= 1);
        }
        if self.inside.is_empty() {
            self.credit = self.credit.min(f64::from(BLOCK));
        }
    }

    /// Runs for `seconds`; returns `[read, written]` of each tenant in megabytes per second of that time.
    pub(crate) fn rates<const N: usize>(&mut self, seconds: u64, tenants: [TenantId; N]) -> [[f64; 2]; N] {
        let moved = |pool: &Pool<_>, id| {
            let stats = pool.tenant(id).expect("has not left").stats;
            [stats.read_bytes, stats.write_bytes]
        };
        let before = tenants.map(|id| moved(&self.pool, id));
        self.run(1_000 * seconds);
        let per_s = |bytes: u64| bytes as f64 / BYTES as f64 / seconds as f64;
        std::array::from_fn(|n| {
            let after = moved(&self.pool, tenants[n]);
            [0, 1].map(|direction| per_s(after[direction] - before[n][direction]))
        })
    }

    /// The tenant's guarantee in this scope: the limit that binds it now, and the reason for the limit that the controller set.
    pub(crate) fn state(&self, id: TenantId, scope: Scope) -> (Binding, Reason) {
        let guarantee = self.pool.tenant(id).expect("has not left").guarantee(scope).expect("was guaranteed something");
        (guarantee.binding, guarantee.limit.reason)
    }
}
