//! Clients, one pool and one device, run together in virtual time.
//!
//! ```text
//!  workload ──▶ control::pool ──▶ model::Device
//!     ▲                               │
//!     └────────── completion ─────────┘
//! ```

use evenkeel_control::mclock::Qos;
use evenkeel_control::pool::{self, Next as Dispatch, Outcome, Pool, TenantId, TenantStats, Ticket};
use evenkeel_control::rng::SplitMix64;
use evenkeel_control::units::Work;
use evenkeel_control::{Duration, Instant};
use evenkeel_model::Io;
use evenkeel_model::device::{Device, DeviceParams};

use crate::engine::Queue;
use crate::workload::{self, Next, Workload};

/// Everything a run is made of.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The device behind the pool.
    pub device: DeviceParams,
    /// Scheduler, admission and limits.
    pub pool: pool::Config,
    /// Who was promised what.
    pub tenants: Vec<Tenant>,
    /// Who asks for what.
    pub clients: Vec<Client>,
    /// What changes while it runs.
    pub changes: Vec<(Instant, Change)>,
    /// Virtual time not counted at the start.
    pub warmup: Duration,
    /// Virtual time counted after it.
    pub duration: Duration,
    /// Distance of the samples of the time series.
    pub sample_every: Duration,
}

/// A tenant of the pool.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// Its name in results.
    pub name: String,
    /// Its promise.
    pub qos: Qos,
}

/// A client of a tenant.
#[derive(Clone, Debug)]
pub struct Client {
    /// Its tenant, by place.
    pub tenant: usize,
    /// What it does.
    pub workload: workload::Spec,
    /// When it begins.
    pub from: Instant,
    /// When it stops sending.
    pub until: Instant,
}

/// Something that changes in mid-run.
#[derive(Clone, Debug)]
pub enum Change {
    /// The device has other parameters from now on.
    Device(DeviceParams),
    /// The device does nothing for so long.
    Stall(Duration),
    /// The pool has other settings from now on.
    Pool(Box<pool::Config>),
}

/// What came of a run.
#[derive(Debug)]
pub struct Run {
    /// The seed that repeats it.
    pub seed: u64,
    /// One for each tenant: what it received in the counted time.
    pub tenants: Vec<TenantResult>,
    /// One for each `sample_every` of the counted time.
    pub series: Vec<Sample>,
    /// Events of the engine.
    pub events: u64,
}

/// What a tenant received.
#[derive(Clone, Debug, Default)]
pub struct TenantResult {
    /// Requests completed.
    pub requests: u64,
    /// Payload moved, in bytes.
    pub bytes: u64,
    /// From submission to admission, of each request, in nanoseconds, in order of completion.
    pub queue_wait_ns: Vec<u64>,
    /// From admission to completion, likewise.
    pub device_latency_ns: Vec<u64>,
}

/// A moment of a run: sums over the time since the previous sample.
#[derive(Clone, Debug)]
pub struct Sample {
    /// End of the interval.
    pub at: Instant,
    /// Admission budget in force, in bytes; `u64::MAX` = unbounded.
    pub budget_bytes: u64,
    /// Target in force.
    pub target: Option<Duration>,
    /// Cost inside the back end, in bytes.
    pub inside_bytes: u64,
    /// One for each tenant: requests, bytes and summed response time in ns.
    pub tenants: Vec<(u64, u64, u64)>,
}

enum Event {
    Client(usize),
    Device,
    Pool,
    Change(usize),
    Sample,
}

struct Request {
    client: usize,
    io: Io,
    sent_at: Instant,
}

/// Runs `setup` to its end.
pub fn run(setup: &Setup, seed: u64) -> Run {
    World::new(setup, seed).run()
}

struct World<'a> {
    setup: &'a Setup,
    queue: Queue<Event>,
    pool: Pool<Request>,
    device: Device,
    clients: Vec<Workload>,
    tenants: Vec<TenantId>,
    inside: Vec<Option<(Request, Ticket)>>,
    free: Vec<u32>,
    device_at: Instant,
    pool_at: Instant,
    result: Run,
    sums: Vec<(u64, u64, u64)>,
}

impl<'a> World<'a> {
    fn new(setup: &'a Setup, seed: u64) -> Self {
        let mut seeds = SplitMix64::new(seed);
        let now = Instant::ZERO;
        let mut pool = Pool::new(setup.pool, now, seeds.next_u64());
        let tenants = setup.tenants.iter().map(|tenant| pool.join(now, tenant.qos)).collect();
        let device = Device::new(&setup.device, seeds.next_u64());
        let clients = setup.clients.iter().map(|c| Workload::new(&c.workload, seeds.next_u64())).collect();
        let mut queue = Queue::default();
        for (index, client) in setup.clients.iter().enumerate() {
            queue.push(client.from, Event::Client(index));
        }
        for (index, (at, _)) in setup.changes.iter().enumerate() {
            queue.push(*at, Event::Change(index));
        }
        queue.push(now + setup.warmup + setup.sample_every, Event::Sample);
        let count = setup.tenants.len();
        Self {
            setup,
            queue,
            pool,
            device,
            clients,
            tenants,
            inside: Vec::new(),
            free: Vec::new(),
            device_at: Instant::FAR_FUTURE,
            pool_at: Instant::FAR_FUTURE,
            result: Run { seed, tenants: vec![TenantResult::default(); count], series: Vec::new(), events: 0 },
            sums: vec![(0, 0, 0); count],
        }
    }

    fn run(mut self) -> Run {
        let end = Instant::ZERO + self.setup.warmup + self.setup.duration;
        while let Some((now, event)) = self.queue.pop() {
            if now > end {
                break;
            }
            self.result.events += 1;
            match event {
                Event::Client(index) => self.ask(now, index),
                Event::Device => {
                    self.device_at = Instant::FAR_FUTURE;
                    self.reap(now);
                }
                Event::Pool => self.pool_at = Instant::FAR_FUTURE,
                Event::Change(index) => self.change(now, index),
                Event::Sample => self.sample(now),
            }
            self.dispatch(now);
            let next = self.device.next_event();
            if next < self.device_at {
                self.device_at = next;
                self.queue.push(next, Event::Device);
            }
        }
        self.result
    }

    fn ask(&mut self, now: Instant, index: usize) {
        let client = &self.setup.clients[index];
        if now < client.from || now >= client.until {
            return;
        }
        loop {
            match self.clients[index].next(now) {
                Next::Issue(io) => {
                    let work = Work { kind: io.kind, bytes: io.bytes };
                    let request = Request { client: index, io, sent_at: now };
                    let _ = self.pool.submit(now, self.tenants[client.tenant], work, request);
                }
                Next::At(at) => return self.queue.push(at, Event::Client(index)),
                Next::Completion | Next::End => return,
            }
        }
    }

    fn reap(&mut self, now: Instant) {
        while let Some(id) = self.device.poll(now) {
            let Some((request, ticket)) = self.inside[id as usize].take() else { continue };
            self.free.push(id as u32);
            let tenant = self.setup.clients[request.client].tenant;
            if now >= Instant::ZERO + self.setup.warmup {
                let result = &mut self.result.tenants[tenant];
                result.requests += 1;
                result.bytes += u64::from(request.io.bytes);
                result.queue_wait_ns.push(ticket.admitted_at().since(request.sent_at).as_nanos());
                result.device_latency_ns.push(now.since(ticket.admitted_at()).as_nanos());
                let sums = &mut self.sums[tenant];
                sums.0 += 1;
                sums.1 += u64::from(request.io.bytes);
                sums.2 += now.since(request.sent_at).as_nanos();
            }
            self.pool.complete(now, ticket, Outcome::Done);
            self.clients[request.client].complete(now);
            self.ask(now, request.client);
        }
    }

    fn dispatch(&mut self, now: Instant) {
        loop {
            match self.pool.dispatch(now) {
                Dispatch::Run(request, ticket) => {
                    let io = request.io;
                    let id = self.free.pop().unwrap_or_else(|| {
                        self.inside.push(None);
                        self.inside.len() as u32 - 1
                    });
                    self.inside[id as usize] = Some((request, ticket));
                    self.device.submit(now, u64::from(id), io);
                }
                Dispatch::Wait(until) => {
                    if until < self.pool_at {
                        self.pool_at = until;
                        self.queue.push(until, Event::Pool);
                    }
                    return;
                }
                Dispatch::Idle => return,
            }
        }
    }

    fn change(&mut self, now: Instant, index: usize) {
        match &self.setup.changes[index].1 {
            Change::Device(params) => self.device.set_params(now, params),
            Change::Stall(length) => self.device.stall(now, *length),
            Change::Pool(config) => self.pool.reconfigure(now, **config),
        }
    }

    fn sample(&mut self, now: Instant) {
        let decision = *self.pool.admission().decision();
        let tenants = self.sums.iter_mut().map(std::mem::take).collect();
        self.result.series.push(Sample {
            at: now,
            budget_bytes: decision.budget_bytes,
            target: decision.target,
            inside_bytes: self.pool.admission().inside_bytes(),
            tenants,
        });
        self.queue.push(now + self.setup.sample_every, Event::Sample);
    }

    /// What the pool counted for a tenant since the start.
    #[expect(dead_code, reason = "the reports will show it")]
    fn stats(&self, tenant: usize) -> Option<&TenantStats> {
        Some(self.pool.tenant(self.tenants[tenant])?.stats)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Requests;
    use evenkeel_control::admission;
    use evenkeel_control::mclock::CostModel;
    use evenkeel_control::pool::Scheduler;
    use evenkeel_control::units::{Kind, Rates};
    use evenkeel_model::store::StoreParams;

    fn setup(admission: admission::Config) -> Setup {
        let client = |tenant, queue_depth, bytes| Client {
            tenant,
            workload: workload::Spec::closed(queue_depth, Requests::random(Kind::Write, bytes, 1 << 30)),
            from: Instant::ZERO,
            until: Instant::FAR_FUTURE,
        };
        let tenant = |name: &str, weight| Tenant { name: name.to_owned(), qos: Qos { weight, ..Qos::default() } };
        Setup {
            device: DeviceParams::Store(StoreParams::ssd()),
            pool: pool::Config {
                scheduler: Scheduler::Mclock,
                admission,
                base_cost_bytes: 4000,
                cost: CostModel::default(),
                limit: Rates::UNSET,
                limit_burst: Duration::from_millis(10),
            },
            tenants: vec![tenant("bulk", 1), tenant("light", 10)],
            clients: vec![client(0, 64, 65536), client(1, 1, 4096)],
            changes: Vec::new(),
            warmup: Duration::from_secs(1),
            duration: Duration::from_secs(4),
            sample_every: Duration::from_millis(100),
        }
    }

    #[test]
    fn a_budget_keeps_the_light_tenant_from_waiting_behind_the_bulk() {
        let mean = |admission| {
            let run = run(&setup(admission), 1);
            let light = &run.tenants[1];
            let total: u64 = light.queue_wait_ns.iter().chain(&light.device_latency_ns).sum();
            (total / light.requests, run.tenants[0].bytes)
        };
        let (bloated, all) = mean(admission::Config::None);
        let (bounded, most) = mean(admission::Config::Fixed { budget_bytes: 512 << 10 });
        assert!(bounded * 4 < bloated, "{bounded} ns against {bloated} ns");
        assert!(most * 10 > all * 9, "{most} bytes of {all}");
    }

    #[test]
    fn the_same_seed_repeats_a_run() {
        let waits = |seed| run(&setup(admission::Config::None), seed).tenants[1].device_latency_ns.clone();
        assert_eq!(waits(7), waits(7));
        assert_ne!(waits(7), waits(8));
    }
}
