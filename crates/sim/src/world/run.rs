//! The event loop of a run.

use std::ops::ControlFlow;

use evenkeel_control::admission;
use evenkeel_control::mclock::Qos;
use evenkeel_control::pool::{Next as Dispatch, Outcome, Ticket};
use evenkeel_control::rng::SplitMix64;
use evenkeel_control::slices::Division;
use evenkeel_control::units::{Part, Work};
use evenkeel_control::{Duration, Instant};
use evenkeel_model::Io;
use evenkeel_model::device::{DeviceParams, Machine};
use evenkeel_model::worker::Side;

use super::front::Front;
use super::hosts::{Hosts, Pools};
use super::inversion::{Inversion, Passage};
use super::meter::Meter;
use super::{Change, Completion, EVENTS_PER_PROGRESS, Failure, MAX_OUTSTANDING, Progress, Run, Setup, Source, Watch};
use crate::engine::{Due, Queue};
use crate::placed::LOOK;
use crate::slab::Slab;
use crate::workload::{Next, Workload};

/// Number of the device's alarm. The device comes first, so that a completion makes room before the pool dispatches at the
/// same instant.
const DEVICE: usize = 0;
/// Number of the pool's alarm.
const POOL: usize = 1;
/// Number of the workers' alarm.
const WORKERS: usize = 2;

enum Event {
    /// The client with this number connects to a worker.
    Connect(usize),
    /// The client with this number disconnects from its worker.
    Disconnect(usize),
    /// The client with this number is to be asked for requests.
    Client(usize),
    /// The change with this number in the setup takes effect.
    Change(usize),
    /// An interval of the time series ends.
    Sample,
    /// A period of the slots ends on all hosts; the value is the period's length.
    Period(Duration),
    /// An interval of [`LOOK`] ends, after which connections may be moved.
    Look,
}

/// A request, or a slice of one, from its submission to its completion.
#[derive(Clone, Copy)]
struct Request {
    client: usize,
    /// Number of the connection on which the request came; 0 without workers.
    connection: u32,
    io: Io,
    sent_at: Instant,
    /// Instant at which the request entered the pool.
    entered_at: Instant,
    /// The answer of [`Inversion::submitted`] for the request.
    lower_time: Duration,
    /// For a slice: the number of the divided request to which it belongs.
    whole: Option<u64>,
    /// Number that the client's workload gave the request.
    number: u32,
}

/// A large request that is served in slices.
struct Divided {
    request: Request,
    slices: Division,
    /// Instant at which the first slice was admitted; `None` before that.
    admitted_at: Option<Instant>,
    inversion: Duration,
}

/// A request, or a slice of one, in flight in the device.
struct Inside {
    request: Request,
    ticket: Ticket,
    passage: Passage,
}

/// A request or a reply on its way through workers.
enum Passing {
    Request(Request),
    Reply(usize, Completion),
}

struct Client {
    workload: Workload,
    /// The instant at which the client is to be asked again for requests. Events for other instants are stale.
    wakes_at: Instant,
}

pub(super) struct World<'a, D> {
    setup: &'a Setup,
    seed: u64,
    queue: Queue<Event, 3>,
    front: Option<Front<Passing>>,
    pools: Pools<Request>,
    device: D,
    clients: Vec<Client>,
    divided: Slab<Divided>,
    inside: Slab<Inside>,
    queued: usize,
    meter: Meter,
    inversion: Inversion,
    /// True if the statistics of the run are wanted.
    is_counted: bool,
    /// True if a pool that has nothing to do at an instant may be left alone then. Not with admission control: some methods
    /// decide when they are called.
    pub(super) may_rest: bool,
    /// No pool does anything before this instant, unless a request is submitted or completes.
    rests_until: Instant,
    /// Function that is called at each completion of a request.
    pub(super) watch: Option<&'a mut Watch<'a>>,
}

impl<'a, D: Machine> World<'a, D> {
    pub(super) fn new(setup: &'a Setup, seed: u64, device: impl FnOnce(&DeviceParams, u64) -> D) -> Self {
        Self::with(setup, None, seed, device)
    }

    /// A world whose tenants are spread over `hosts`. `None`: a single pool has all tenants, without other hosts.
    pub(super) fn with(
        setup: &'a Setup,
        hosts: Option<&Hosts>,
        seed: u64,
        device: impl FnOnce(&DeviceParams, u64) -> D,
    ) -> Self {
        let mut seeds = SplitMix64::new(seed);
        let now = Instant::ZERO;
        let pools = Pools::new(setup.pool, &setup.tenants, hosts.cloned().unwrap_or_default(), &mut seeds);
        let device = device(&setup.device, seeds.next_u64());
        let mut queue = Queue::default();
        if let Some(slots) = setup.pool.slots.filter(|_| hosts.is_some()) {
            queue.push(now + slots.period, Event::Period(slots.period));
        }
        let clients = setup.clients.iter().enumerate().map(|(index, client)| {
            if setup.workers.is_some() {
                queue.push(client.from, Event::Connect(index));
                queue.push(client.until, Event::Disconnect(index));
            }
            queue.push(client.from, Event::Client(index));
            Client { workload: Workload::new(&client.workload, seeds.next_u64()), wakes_at: client.from }
        });
        let clients: Vec<Client> = clients.collect();
        let front = setup.workers.as_ref().map(|workers| {
            queue.push(now + LOOK, Event::Look);
            Front::new(workers, clients.len(), &mut seeds)
        });
        for (index, (at, _)) in setup.changes.iter().enumerate() {
            queue.push(*at, Event::Change(index));
        }
        queue.push(now + setup.warmup + setup.sample_every, Event::Sample);
        Self {
            setup,
            seed,
            queue,
            meter: Meter::new(setup, pools.all[0].admission().decision().budget_bytes),
            inversion: Inversion::new(setup.tenants.iter().map(|tenant| tenant.qos)),
            front,
            pools,
            device,
            clients,
            divided: Slab::default(),
            inside: Slab::default(),
            queued: 0,
            is_counted: true,
            may_rest: hosts.is_some()
                && matches!(setup.pool.admission, admission::Config::None)
                && setup.changes.is_empty(),
            rests_until: Instant::ZERO,
            watch: None,
        }
    }

    /// Makes the run keep no statistics: for a caller that counts what it watches.
    pub(super) fn without_statistics(mut self) -> Self {
        self.is_counted = false;
        // Tenants of one rank, among which no priority is inverted.
        self.inversion = Inversion::new(self.setup.tenants.iter().map(|_| Qos::default()));
        self
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
            let mut rests = false;
            match due {
                Due::Alarm(DEVICE) => rests = !self.reap(now)? && now < self.rests_until,
                Due::Alarm(WORKERS) => self.passed(now)?,
                Due::Alarm(_) => {}
                Due::Event(Event::Client(index)) => {
                    if self.clients[index].wakes_at == now {
                        self.clients[index].wakes_at = Instant::FAR_FUTURE;
                        self.ask(now, index)?;
                    }
                }
                Due::Event(Event::Change(index)) => self.change(now, index),
                Due::Event(Event::Sample) => self.sample(now),
                Due::Event(Event::Period(length)) => {
                    self.pools.coordinate(now);
                    self.queue.push(now + length, Event::Period(length));
                }
                Due::Event(event) => self.workers(now, &event),
            }
            if !rests {
                self.dispatch(now);
                self.meter.budget(now, self.pools.all[0].admission().decision().budget_bytes);
            }
            self.watch_device(now)?;
            if let Some(front) = &self.front {
                self.queue.set_alarm(WORKERS, front.next_event());
            }
        }
        // Without statistics there are no windows to judge, of which many may follow the last request.
        let until = if self.is_counted { end } else { Instant::ZERO };
        let run = self.meter.finish(until, self.seed, self.queue.popped());
        let (workers, moves) = self.front.as_ref().map(Front::result).unwrap_or_default();
        Ok(Run { workers, moves, ..run })
    }

    /// Handles an event that concerns only workers.
    fn workers(&mut self, now: Instant, event: &Event) {
        let Some(front) = &mut self.front else { return };
        match event {
            Event::Connect(client) => front.connect(*client),
            Event::Disconnect(client) => front.disconnect(*client),
            _ => {
                front.look(now, now > Instant::ZERO + self.setup.warmup);
                self.queue.push(now + LOOK, Event::Look);
            }
        }
    }

    /// Takes finished messages from the workers: received requests enter the pool, and sent replies reach their clients.
    fn passed(&mut self, now: Instant) -> Result<(), Failure> {
        while let Some(passing) = self.front.as_mut().and_then(|front| front.poll(now)) {
            match passing {
                Passing::Request(request) => self.enter(now, request),
                Passing::Reply(client, completion) => self.answer(now, client, completion)?,
            }
        }
        Ok(())
    }

    /// Submits a request to the pool, in slices if it is large.
    fn enter(&mut self, now: Instant, mut request: Request) {
        let (tenant, io) = (self.setup.clients[request.client].tenant, request.io);
        request.entered_at = now;
        if self.is_counted {
            self.meter.submitted(now, tenant, io.bytes);
        }
        let slices = self.pools.all[self.pools.tenants[tenant].0].slices();
        match slices.divide(io.kind, io.offset, io.bytes.into()).filter(|_| self.setup.divides) {
            None => self.submit(now, request, Part::Whole),
            Some(slices) => {
                let divided = Divided { request, slices, admitted_at: None, inversion: Duration::ZERO };
                let whole = self.divided.insert(divided).into();
                self.hand_out_slices(now, whole);
            }
        }
    }

    /// Submits further slices of the divided request `whole` to the pool, as many as may be there at once.
    fn hand_out_slices(&mut self, now: Instant, whole: u64) {
        while let Some(divided) = self.divided.get_mut(whole)
            && divided.slices.may_begin()
        {
            let (offset, bytes, part) = divided.slices.begin();
            let io = Io { offset, bytes: bytes as u32, ..divided.request.io };
            let slice = Request { io, entered_at: now, whole: Some(whole), ..divided.request };
            self.submit(now, slice, part);
        }
    }

    fn submit(&mut self, now: Instant, mut request: Request, part: Part) {
        let tenant = self.setup.clients[request.client].tenant;
        request.lower_time = self.inversion.submitted(now, tenant);
        let work = Work { part, ..Work::new(request.io.kind, request.io.bytes) };
        let (host, id) = self.pools.tenants[tenant];
        if self.pools.all[host].submit(now, id, work, request).is_ok() {
            self.queued += 1;
        }
    }

    /// Handles the completion of a slice of the divided request `whole`. After the last slice, returns the completion of the
    /// whole request.
    fn slice_done(&mut self, now: Instant, whole: u64, slice: &Completion) -> Option<Completion> {
        let divided = self.divided.get_mut(whole)?;
        divided.slices.end();
        // Slices wait beside each other: the longest wait is that of the request.
        divided.inversion = divided.inversion.max(slice.inversion);
        let first = divided.admitted_at.unwrap_or(slice.admitted_at).min(slice.admitted_at);
        divided.admitted_at = Some(first);
        if divided.slices.left() > 0 || !divided.slices.is_waiting() {
            self.hand_out_slices(now, whole);
            return None;
        }
        let Divided { request, inversion, .. } = self.divided.remove(whole)?;
        let (bytes, entered_at) = (request.io.bytes, request.entered_at);
        Some(Completion { bytes, entered_at, admitted_at: first, inversion, ..*slice })
    }

    /// Handles the reply to a request at its client: counts the completion and asks the client for further requests.
    fn answer(&mut self, now: Instant, client: usize, completion: Completion) -> Result<(), Failure> {
        let tenant = self.setup.clients[client].tenant;
        if self.is_counted {
            self.meter.completed(now, tenant, &completion);
        }
        if let Some(watch) = &mut self.watch {
            watch(now, tenant, &completion);
        }
        self.clients[client].workload.complete_request(now, completion.number);
        self.ask(now, client)
    }

    /// Makes the client with number `index` send all requests that are due now.
    fn ask(&mut self, now: Instant, index: usize) -> Result<(), Failure> {
        let client = &self.setup.clients[index];
        if now < client.from || now >= client.until {
            return Ok(());
        }
        loop {
            match self.clients[index].workload.next(now) {
                Next::Issue(io) => {
                    let mut request = Request {
                        client: index,
                        connection: 0,
                        io,
                        sent_at: now,
                        entered_at: now,
                        lower_time: Duration::ZERO,
                        whole: None,
                        number: self.clients[index].workload.issued(),
                    };
                    match &mut self.front {
                        None => self.enter(now, request),
                        Some(front) => {
                            let connection = front.next_connection(index);
                            request.connection = connection;
                            front.pass(now, connection, Side::Receive, &io, Passing::Request(request));
                        }
                    }
                    let passing = self.front.as_ref().map_or(0, Front::under_way);
                    let outstanding = self.queued + self.inside.len() + passing;
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

    /// Takes all requests that the device has completed by `now`. True if there is one.
    fn reap(&mut self, now: Instant) -> Result<bool, Failure> {
        let mut is_any = false;
        while let Some(id) = self.device.poll(now) {
            is_any = true;
            let Some(Inside { request, ticket, passage }) = self.inside.remove(id) else {
                return Err(Failure::Unknown { source_of: Source::Device(self.device.name()), at: now, id });
            };
            let completion = Completion {
                kind: ticket.work().kind,
                bytes: request.io.bytes,
                sent_at: request.sent_at,
                entered_at: request.entered_at,
                admitted_at: ticket.admitted_at(),
                left_at: now,
                inversion: self.inversion.completed(now, passage),
                client: request.client,
                number: request.number,
            };
            let (host, _) = self.pools.tenants[self.setup.clients[request.client].tenant];
            self.pools.all[host].complete(now, ticket, Outcome::Done);
            let completion = match request.whole {
                None => completion,
                Some(whole) => match self.slice_done(now, whole, &completion) {
                    None => continue,
                    Some(completion) => completion,
                },
            };
            match &mut self.front {
                None => self.answer(now, request.client, completion)?,
                Some(front) => {
                    let reply = Passing::Reply(request.client, completion);
                    let io = Io { bytes: completion.bytes, ..request.io };
                    front.pass(now, request.connection, Side::Send, &io, reply);
                }
            }
        }
        Ok(is_any)
    }

    /// Submits to the device all requests that the pools admit now.
    fn dispatch(&mut self, now: Instant) {
        let (mut next, mut decides_at) = (Instant::FAR_FUTURE, Instant::FAR_FUTURE);
        for pool in &mut self.pools.all {
            let wait = loop {
                match pool.dispatch(now) {
                    Dispatch::Run(request, ticket) => {
                        self.queued -= 1;
                        let io = request.io;
                        let tenant = self.setup.clients[request.client].tenant;
                        let passage = self.inversion.admitted(now, tenant, request.lower_time);
                        let id = self.inside.insert(Inside { request, ticket, passage });
                        self.device.submit(now, u64::from(id), io);
                    }
                    Dispatch::Wait(until) => break until,
                    Dispatch::Idle => break Instant::FAR_FUTURE,
                }
            };
            next = next.min(wait);
            decides_at = decides_at.min(pool.decides_at());
        }
        self.rests_until = if self.may_rest { next.min(decides_at) } else { Instant::ZERO };
        self.queue.set_alarm(POOL, next);
    }

    /// Sets the device's alarm to the device's next event; an error if the device misbehaves.
    fn watch_device(&mut self, now: Instant) -> Result<(), Failure> {
        let next = self.device.next_event();
        let source_of = || Source::Device(self.device.name());
        if next < now {
            return Err(Failure::Backward { source_of: source_of(), now, said: next });
        }
        let in_flight = self.inside.len();
        if next == Instant::FAR_FUTURE && in_flight > 0 {
            return Err(Failure::Lost { source_of: source_of(), at: now, in_flight });
        }
        self.queue.set_alarm(DEVICE, next);
        Ok(())
    }

    fn change(&mut self, now: Instant, index: usize) {
        match &self.setup.changes[index].1 {
            Change::Device(params) => self.device.set_params(now, params),
            Change::Stall(length) => self.device.stall(now, *length),
            Change::Pool(config) => self.pools.reconfigure(now, **config),
            Change::Tenant(place, qos, guarantee, target) => {
                self.pools.set_tenant(now, *place, *qos, guarantee, *target);
                self.inversion.set_qos(now, *place, qos);
                self.meter.set_qos(now, *place, qos);
            }
        }
    }

    fn sample(&mut self, now: Instant) {
        // An idle pool is not called otherwise, and what its admission decides would show late.
        self.dispatch(now);
        let pool = &self.pools.all[0];
        let admission = pool.admission();
        self.meter.sample(now, admission.decision(), admission.in_flight_bytes(), pool.queued());
        self.queue.push(now + self.setup.sample_every, Event::Sample);
    }

    fn source(&self, due: &Due<Event>) -> Source {
        match due {
            Due::Alarm(DEVICE) => Source::Device(self.device.name()),
            Due::Alarm(WORKERS) => Source::Workers,
            Due::Alarm(_) => Source::Pool,
            Due::Event(Event::Client(index) | Event::Connect(index) | Event::Disconnect(index)) => self.client(*index),
            Due::Event(Event::Look) => Source::Workers,
            Due::Event(Event::Change(_) | Event::Sample | Event::Period(_)) => Source::Setup,
        }
    }

    fn client(&self, index: usize) -> Source {
        let tenant = self.setup.tenants[self.setup.clients[index].tenant].name.clone();
        Source::Client { index, tenant }
    }
}
