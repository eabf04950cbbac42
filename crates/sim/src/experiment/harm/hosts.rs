//! Hosts with a pool each and a device behind all of them, for loads of any kind; some hosts have no pool of ours.

use evenkeel_control::pool::{self, Next as Dispatch, Outcome, Pool, TenantId, Ticket};
use evenkeel_control::rng::SplitMix64;
use evenkeel_control::slots::{self, Summary};
use evenkeel_control::units::{Kind, Work};
use evenkeel_control::{Duration, Instant};
use evenkeel_model::Io;
use evenkeel_model::device::Device;

use crate::engine::{Due, Queue};
use crate::workload::{Next, Workload};
use crate::world::{Latencies, Setup};

/// What a tenant got while it counted.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// From arrival to completion.
    pub response: Latencies,
    /// Payload bytes.
    pub bytes: u64,
    /// Requests inside the device, added up over their time in it.
    pub device_time: Duration,
    /// Payload bytes of each tenth of a second, of reads and of writes.
    pub tenths: Vec<[u64; 2]>,
    /// Requests of each tenth of a second.
    pub requests: Vec<u64>,
}

/// Which client sent which request, and when.
type Sent = (usize, Io, Instant);

enum Event {
    Client(usize),
    Period,
}

struct Inside {
    client: usize,
    io: Io,
    sent_at: Instant,
    ticket: Ticket,
}

struct Client {
    workload: Workload,
    wakes_at: Instant,
}

struct World<'a> {
    setup: &'a Setup,
    host_of: &'a [usize],
    device: Device,
    hosts: Vec<(Pool<Sent>, bool)>,
    tenants: Vec<TenantId>,
    clients: Vec<Client>,
    queue: Queue<Event, ALARMS>,
    inside: Vec<Option<Inside>>,
    free: Vec<u32>,
    figures: Vec<Figures>,
}

/// Most hosts of a case.
pub const MOST_HOSTS: usize = 4;
/// The device, and each host's pool.
const ALARMS: usize = 1 + MOST_HOSTS;
/// A tenth of a second.
const TENTH: Duration = Duration::from_millis(100);

/// Runs `setup`, whose tenants are on the hosts of `host_of`; those of a host in `unmanaged` meet no control. The slots of
/// its pools are `slots`. The same arguments give the same figures.
pub fn run(
    setup: &Setup,
    host_of: &[usize],
    unmanaged: Option<usize>,
    slots: Option<slots::Config>,
    seed: u64,
) -> Vec<Figures> {
    let mut seeds = SplitMix64::new(seed);
    let count = host_of.iter().max().map_or(1, |most| most + 1);
    let managed = |host: usize| Some(host) != unmanaged;
    let mut hosts: Vec<_> = (0..count)
        .map(|host| {
            let slots = slots.filter(|_| managed(host));
            let config = pool::Config { slots, ..setup.pool };
            let mut pool = Pool::new(config, Instant::ZERO, seeds.next_u64());
            if slots.is_some() && (0..count).filter(|&host| managed(host)).count() > 1 {
                pool.share_slots(true);
            }
            (pool, slots.is_some())
        })
        .collect();
    let mut tenants = Vec::new();
    for (tenant, &host) in setup.tenants.iter().zip(host_of) {
        let pool = &mut hosts[host].0;
        let id = pool.join(Instant::ZERO, tenant.qos);
        if managed(host) {
            pool.set_guarantees(Instant::ZERO, id, &tenant.guarantee);
            pool.set_latency_target(id, tenant.latency_target);
        }
        tenants.push(id);
    }
    let device = Device::new(&setup.device, seeds.next_u64());
    let mut queue = Queue::default();
    if let Some(slots) = slots {
        queue.push(Instant::ZERO + slots.period, Event::Period);
    }
    let clients = setup.clients.iter().enumerate().map(|(index, client)| {
        queue.push(client.from, Event::Client(index));
        Client { workload: Workload::new(&client.workload, seeds.next_u64()), wakes_at: client.from }
    });
    let clients = clients.collect();
    let tenths = (setup.duration.as_nanos() / TENTH.as_nanos()) as usize;
    let figures = Figures { tenths: vec![[0; 2]; tenths], requests: vec![0; tenths], ..Figures::default() };
    let figures = vec![figures; tenants.len()];
    World { setup, host_of, device, hosts, tenants, clients, queue, inside: Vec::new(), free: Vec::new(), figures }
        .run()
}

impl World<'_> {
    fn run(mut self) -> Vec<Figures> {
        let end = self.setup.end();
        while let Some((now, due)) = self.queue.pop() {
            if now > end {
                break;
            }
            match due {
                Due::Alarm(0) => self.reap(now),
                Due::Alarm(_) => {}
                Due::Event(Event::Client(index)) => {
                    if self.clients[index].wakes_at == now {
                        self.clients[index].wakes_at = Instant::FAR_FUTURE;
                        self.ask(now, index);
                    }
                }
                Due::Event(Event::Period) => self.period(now),
            }
            for host in 0..self.hosts.len() {
                self.dispatch(now, host);
            }
            self.queue.set_alarm(0, self.device.next_event());
        }
        self.figures
    }

    fn ask(&mut self, now: Instant, index: usize) {
        let client = &self.setup.clients[index];
        if now < client.from || now >= client.until {
            return;
        }
        loop {
            match self.clients[index].workload.next(now) {
                Next::Issue(io) => {
                    let pool = &mut self.hosts[self.host_of[client.tenant]].0;
                    // A tenant never leaves here.
                    let work = Work::new(io.kind, io.bytes);
                    let _ = pool.submit(now, self.tenants[client.tenant], work, (index, io, now));
                }
                Next::At(at) => {
                    if self.clients[index].wakes_at != at {
                        self.clients[index].wakes_at = at;
                        self.queue.push(at, Event::Client(index));
                    }
                    return;
                }
                Next::Completion | Next::End => return,
            }
        }
    }

    fn reap(&mut self, now: Instant) {
        while let Some(id) = self.device.poll(now) {
            let Some(Inside { client, io, sent_at, ticket }) = self.inside[id as usize].take() else { continue };
            self.free.push(id as u32);
            let tenant = self.setup.clients[client].tenant;
            let from = Instant::ZERO + self.setup.warmup;
            if now >= from {
                let figures = &mut self.figures[tenant];
                figures.response.record(now.since(sent_at));
                figures.bytes += u64::from(io.bytes);
                figures.device_time = figures.device_time + now.since(ticket.admitted_at());
                let tenth = (now.since(from).as_nanos() / TENTH.as_nanos()) as usize;
                if let (Some(bytes), Some(requests)) = (figures.tenths.get_mut(tenth), figures.requests.get_mut(tenth))
                {
                    bytes[usize::from(io.kind != Kind::Read)] += u64::from(io.bytes);
                    *requests += 1;
                }
            }
            self.hosts[self.host_of[tenant]].0.complete(now, ticket, Outcome::Done);
            self.clients[client].workload.complete(now);
            self.ask(now, client);
        }
    }

    fn dispatch(&mut self, now: Instant, host: usize) {
        loop {
            match self.hosts[host].0.dispatch(now) {
                Dispatch::Run((client, io, sent_at), ticket) => {
                    let id = self.free.pop().unwrap_or_else(|| {
                        self.inside.push(None);
                        self.inside.len() as u32 - 1
                    });
                    self.inside[id as usize] = Some(Inside { client, io, sent_at, ticket });
                    self.device.submit(now, u64::from(id), io);
                }
                Dispatch::Wait(until) => return self.queue.set_alarm(1 + host, until),
                Dispatch::Idle => return self.queue.set_alarm(1 + host, Instant::FAR_FUTURE),
            }
        }
    }

    fn period(&mut self, now: Instant) {
        let mut group = Summary::default();
        let shared = self.hosts.iter().filter(|(_, managed)| *managed).count() > 1;
        let mut period = Duration::from_secs(1);
        for (pool, _) in self.hosts.iter_mut().filter(|(_, managed)| *managed) {
            period = pool.config().slots.map_or(period, |slots| slots.period);
            pool.tick_controllers(now);
            if let Some(summary) = pool.take_summary(now) {
                group.add(&summary);
            }
        }
        self.queue.push(now + period, Event::Period);
        if shared {
            for (pool, _) in self.hosts.iter_mut().filter(|(_, managed)| *managed) {
                pool.decide_slots(now, &group);
            }
        }
    }
}

/// Payload bytes of all tenants.
pub fn bytes(figures: &[Figures]) -> f64 {
    figures.iter().map(|figures| figures.bytes as f64).sum()
}

/// Requests of all tenants.
pub fn requests(figures: &[Figures]) -> f64 {
    figures.iter().map(|figures| figures.response.count() as f64).sum()
}
