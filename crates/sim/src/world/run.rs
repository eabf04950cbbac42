//! The loop.

use std::ops::ControlFlow;

use evenkeel_control::pool::{Next as Dispatch, Outcome, Pool, TenantId, Ticket};
use evenkeel_control::rng::SplitMix64;
use evenkeel_control::units::Work;
use evenkeel_control::{Duration, Instant};
use evenkeel_model::Io;
use evenkeel_model::device::{Device, DeviceParams};

use super::inversion::{Inversion, Passage};
use super::meter::{Completion, Meter};
use super::{Change, EVENTS_PER_PROGRESS, Failure, MAX_OUTSTANDING, Progress, Run, Setup, Source};
use crate::engine::{Due, Queue};
use crate::workload::{Next, Workload};

/// Alarms. The device comes first: what completes at an instant makes room at that instant.
const DEVICE: usize = 0;
const POOL: usize = 1;

/// What the loop asks of a device; tests have one that misbehaves.
pub(super) trait Machine {
    fn name(&self) -> &'static str;
    fn submit(&mut self, now: Instant, id: u64, io: Io);
    fn next_event(&self) -> Instant;
    fn poll(&mut self, now: Instant) -> Option<u64>;
    fn stall(&mut self, now: Instant, length: Duration);
    fn set_params(&mut self, now: Instant, params: &DeviceParams);
}

impl Machine for Device {
    fn name(&self) -> &'static str {
        self.name()
    }

    #[inline]
    fn submit(&mut self, now: Instant, id: u64, io: Io) {
        self.submit(now, id, io);
    }

    #[inline]
    fn next_event(&self) -> Instant {
        self.next_event()
    }

    #[inline]
    fn poll(&mut self, now: Instant) -> Option<u64> {
        self.poll(now)
    }

    fn stall(&mut self, now: Instant, length: Duration) {
        self.stall(now, length);
    }

    fn set_params(&mut self, now: Instant, params: &DeviceParams) {
        self.set_params(now, params);
    }
}

enum Event {
    Client(usize),
    Change(usize),
    Sample,
}

/// What the pool carries.
struct Request {
    client: usize,
    io: Io,
    sent_at: Instant,
    /// What [`Inversion::submitted`] answered.
    lower_time: Duration,
}

/// What is inside the device.
struct Inside {
    request: Request,
    ticket: Ticket,
    passage: Passage,
}

struct Client {
    workload: Workload,
    /// The instant for which it is to be asked again. Events for other instants are stale.
    wakes_at: Instant,
}

pub(super) struct World<'a, D> {
    setup: &'a Setup,
    seed: u64,
    queue: Queue<Event, 2>,
    pool: Pool<Request>,
    device: D,
    clients: Vec<Client>,
    tenants: Vec<TenantId>,
    inside: Vec<Option<Inside>>,
    free: Vec<u32>,
    queued: usize,
    meter: Meter,
    inversion: Inversion,
}

impl<'a, D: Machine> World<'a, D> {
    pub(super) fn new(setup: &'a Setup, seed: u64, device: impl FnOnce(&DeviceParams, u64) -> D) -> Self {
        let mut seeds = SplitMix64::new(seed);
        let now = Instant::ZERO;
        let mut pool = Pool::new(setup.pool, now, seeds.next_u64());
        let join = |tenant: &super::Tenant| {
            let id = pool.join(now, tenant.qos);
            pool.set_standing(id, tenant.standing);
            pool.set_promises(now, id, &tenant.promise);
            pool.set_response_goal(id, tenant.response_goal);
            id
        };
        let tenants = setup.tenants.iter().map(join).collect();
        let device = device(&setup.device, seeds.next_u64());
        let mut queue = Queue::default();
        let clients = setup.clients.iter().enumerate().map(|(index, client)| {
            queue.push(client.from, Event::Client(index));
            Client { workload: Workload::new(&client.workload, seeds.next_u64()), wakes_at: client.from }
        });
        let clients = clients.collect();
        for (index, (at, _)) in setup.changes.iter().enumerate() {
            queue.push(*at, Event::Change(index));
        }
        queue.push(now + setup.warmup + setup.sample_every, Event::Sample);
        Self {
            setup,
            seed,
            queue,
            meter: Meter::new(setup, pool.admission().decision().budget_bytes),
            inversion: Inversion::new(setup.tenants.iter().map(|tenant| tenant.qos)),
            pool,
            device,
            clients,
            tenants,
            inside: Vec::new(),
            free: Vec::new(),
            queued: 0,
        }
    }

    pub(super) fn run(mut self, progress: &mut dyn FnMut(Progress) -> ControlFlow<()>) -> Result<Run, Failure> {
        let end = self.setup.end();
        let mut report_at = EVENTS_PER_PROGRESS;
        while let Some((now, due)) = self.queue.pop() {
            if now > end {
                break;
            }
            if self.queue.popped() >= report_at {
                report_at += EVENTS_PER_PROGRESS;
                let done = Progress { at: now, end, events: self.queue.popped() };
                if progress(done).is_break() {
                    return Err(Failure::Cancelled { at: now });
                }
            }
            if self.queue.is_looping() {
                return Err(Failure::Loop { source_of: self.source(&due), at: now, events: self.queue.popped() });
            }
            match due {
                Due::Alarm(DEVICE) => self.reap(now)?,
                Due::Alarm(_) => {}
                Due::Event(Event::Client(index)) => {
                    if self.clients[index].wakes_at == now {
                        self.clients[index].wakes_at = Instant::FAR_FUTURE;
                        self.ask(now, index)?;
                    }
                }
                Due::Event(Event::Change(index)) => self.change(now, index),
                Due::Event(Event::Sample) => self.sample(now),
            }
            self.dispatch(now);
            self.meter.budget(now, self.pool.admission().decision().budget_bytes);
            self.watch_device(now)?;
        }
        Ok(self.meter.finish(end, self.seed, self.queue.popped()))
    }

    /// Lets the client send what it has to send now.
    fn ask(&mut self, now: Instant, index: usize) -> Result<(), Failure> {
        let client = &self.setup.clients[index];
        if now < client.from || now >= client.until {
            return Ok(());
        }
        loop {
            match self.clients[index].workload.next(now) {
                Next::Issue(io) => {
                    let lower_time = self.inversion.submitted(now, client.tenant);
                    let work = Work { kind: io.kind, bytes: io.bytes };
                    let request = Request { client: index, io, sent_at: now, lower_time };
                    if self.pool.submit(now, self.tenants[client.tenant], work, request).is_ok() {
                        self.queued += 1;
                        self.meter.submitted(now, client.tenant, io.bytes);
                    }
                    let outstanding = self.queued + self.inside.len() - self.free.len();
                    if outstanding > MAX_OUTSTANDING {
                        return Err(Failure::Runaway { source_of: self.client(index), at: now, outstanding });
                    }
                }
                Next::At(said) if said < now => {
                    return Err(Failure::Backward { source_of: self.client(index), now, said });
                }
                Next::At(at) => {
                    if self.clients[index].wakes_at != at {
                        self.clients[index].wakes_at = at;
                        self.queue.push(at, Event::Client(index));
                    }
                    return Ok(());
                }
                Next::Completion | Next::End => return Ok(()),
            }
        }
    }

    /// Takes out of the device what has completed.
    fn reap(&mut self, now: Instant) -> Result<(), Failure> {
        while let Some(id) = self.device.poll(now) {
            let place = usize::try_from(id).unwrap_or(usize::MAX);
            let Some(Inside { request, ticket, passage }) = self.inside.get_mut(place).and_then(Option::take) else {
                return Err(Failure::Unknown { source_of: Source::Device(self.device.name()), at: now, id });
            };
            self.free.push(id as u32);
            let completion = Completion {
                kind: ticket.work().kind,
                bytes: request.io.bytes,
                sent_at: request.sent_at,
                admitted_at: ticket.admitted_at(),
                inversion: self.inversion.completed(now, passage),
            };
            self.meter.completed(now, self.setup.clients[request.client].tenant, completion);
            self.pool.complete(now, ticket, Outcome::Done);
            self.clients[request.client].workload.complete(now);
            self.ask(now, request.client)?;
        }
        Ok(())
    }

    /// Hands over to the device what may go.
    fn dispatch(&mut self, now: Instant) {
        loop {
            match self.pool.dispatch(now) {
                Dispatch::Run(request, ticket) => {
                    self.queued -= 1;
                    let io = request.io;
                    let tenant = self.setup.clients[request.client].tenant;
                    let passage = self.inversion.admitted(now, tenant, request.lower_time);
                    let id = self.free.pop().unwrap_or_else(|| {
                        self.inside.push(None);
                        self.inside.len() as u32 - 1
                    });
                    self.inside[id as usize] = Some(Inside { request, ticket, passage });
                    self.device.submit(now, u64::from(id), io);
                }
                Dispatch::Wait(until) => return self.queue.set_alarm(POOL, until),
                Dispatch::Idle => return self.queue.set_alarm(POOL, Instant::FAR_FUTURE),
            }
        }
    }

    /// Sets the alarm to what the device waits for.
    fn watch_device(&mut self, now: Instant) -> Result<(), Failure> {
        let next = self.device.next_event();
        let source_of = || Source::Device(self.device.name());
        if next < now {
            return Err(Failure::Backward { source_of: source_of(), now, said: next });
        }
        let inside = self.inside.len() - self.free.len();
        if next == Instant::FAR_FUTURE && inside > 0 {
            return Err(Failure::Lost { source_of: source_of(), at: now, inside });
        }
        self.queue.set_alarm(DEVICE, next);
        Ok(())
    }

    fn change(&mut self, now: Instant, index: usize) {
        match &self.setup.changes[index].1 {
            Change::Device(params) => self.device.set_params(now, params),
            Change::Stall(length) => self.device.stall(now, *length),
            Change::Pool(config) => self.pool.reconfigure(now, **config),
            Change::Tenant(place, qos, promise, goal) => {
                self.pool.set_qos(now, self.tenants[*place], *qos);
                self.pool.set_promises(now, self.tenants[*place], promise);
                self.pool.set_response_goal(self.tenants[*place], *goal);
                self.inversion.set_qos(now, *place, qos);
                self.meter.set_qos(now, *place, qos);
            }
        }
    }

    fn sample(&mut self, now: Instant) {
        // An idle pool is not called otherwise, and what its admission decides would show late.
        self.dispatch(now);
        let admission = self.pool.admission();
        self.meter.sample(now, admission.decision(), admission.inside_bytes(), self.pool.queued());
        self.queue.push(now + self.setup.sample_every, Event::Sample);
    }

    fn source(&self, due: &Due<Event>) -> Source {
        match due {
            Due::Alarm(DEVICE) => Source::Device(self.device.name()),
            Due::Alarm(_) => Source::Pool,
            Due::Event(Event::Client(index)) => self.client(*index),
            Due::Event(Event::Change(_) | Event::Sample) => Source::Setup,
        }
    }

    fn client(&self, index: usize) -> Source {
        let tenant = self.setup.tenants[self.setup.clients[index].tenant].name.clone();
        Source::Client { index, tenant }
    }
}
