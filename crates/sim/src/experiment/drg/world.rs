//! Hosts with a pool each, one array behind all of them, and what the hosts tell each other.

use std::sync::Arc;

use evenkeel_control::admission;
use evenkeel_control::mclock::{CostModel, Qos};
use evenkeel_control::pool::slots::LatencyTarget;
use evenkeel_control::pool::{self, Next, Pool, Scheduler, TenantId, Ticket};
use evenkeel_control::slots::{self, Summary};
use evenkeel_control::units::{Rates, Work};
use evenkeel_control::{Duration, Instant};
use evenkeel_model::Io;
use evenkeel_model::device::{Device, DeviceParams};

use super::load::{self, Source};
use crate::engine::{Due, Queue};

/// Over how long a target is judged.
pub const WINDOW: Duration = Duration::from_secs(1);

/// A workload, its host and its target.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Name in results.
    pub name: &'static str,
    /// Which host it is on.
    pub host: usize,
    /// What it asks.
    pub source: Source,
    /// What its mean response time is to stay below.
    pub target: Duration,
    /// Its weight.
    pub weight: u32,
    /// When it begins and ends.
    pub from: Instant,
    /// When it stops asking; its host is gone from then on.
    pub until: Instant,
    /// When it asks all that its source has, if there is such a time; else one request in [`SURGE`].
    pub surge: Option<(Instant, Instant)>,
}

/// How much more a workload asks in its surge.
pub const SURGE: usize = 3;

/// What is run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The array.
    pub device: DeviceParams,
    /// Bytes of it that are used.
    pub capacity: u64,
    /// Everyone.
    pub workloads: Vec<Workload>,
    /// How slots are shared out.
    pub slots: slots::Config,
    /// When hosts do not hear of each other.
    pub silence: Option<(Instant, Instant)>,
    /// How long it runs before it counts.
    pub lead: Duration,
    /// How long after that.
    pub duration: Duration,
}

/// A second of one workload.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Second {
    /// Requests completed.
    pub completed: u64,
    /// Their response times, added up, in seconds.
    pub response_s: f64,
    /// The part of it inside the device.
    pub device_s: f64,
}

impl Second {
    /// Mean response time in seconds; `None` when nothing completed.
    pub fn response(&self) -> Option<f64> {
        (self.completed > 0).then(|| self.response_s / self.completed as f64)
    }
}

/// What came of a run: for each workload its seconds, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// By workload.
    pub seconds: Vec<Vec<Second>>,
    /// By how much all targets could have been scaled and still met, as the controller saw it, by period; 0 for not at all.
    pub tightness: Vec<f64>,
}

enum Event {
    Arrival(usize),
    Period,
}

struct Request {
    workload: usize,
    io: Io,
}

struct Inside {
    request: Request,
    ticket: Ticket,
    queued_at: Instant,
}

struct Host {
    pool: Pool<(Request, Instant)>,
    heard: Summary,
}

/// Runs it. The same setup and seed give the same outcome, bit for bit.
///
/// # Errors
/// Parameters of the device that make no sense.
pub fn simulate(setup: &Setup, seed: u64) -> Result<Outcome, String> {
    setup.device.validate().map_err(|error| error.to_string())?;
    setup.slots.validate().map_err(|error| error.to_string())?;
    Ok(World::new(setup, seed).run())
}

struct World<'a> {
    setup: &'a Setup,
    device: Device,
    hosts: Vec<Host>,
    tenants: Vec<TenantId>,
    arrivals: Vec<Arc<[(Instant, Io)]>>,
    next: Vec<usize>,
    queue: Queue<Event, 1>,
    inside: Vec<Option<Inside>>,
    free: Vec<u32>,
    outcome: Outcome,
}

impl<'a> World<'a> {
    fn new(setup: &'a Setup, seed: u64) -> Self {
        let end = Instant::ZERO + setup.lead + setup.duration;
        let count = setup.workloads.iter().map(|workload| workload.host + 1).max().unwrap_or(1);
        let config = pool::Config {
            scheduler: Scheduler::Mclock,
            admission: admission::Config::None,
            base_cost_bytes: 0,
            cost: CostModel { base_bytes: 1, write_percent: 100 },
            limit: Rates::UNSET,
            limit_burst: Duration::ZERO,
            target: None,
            slots: Some(setup.slots),
        };
        let mut hosts: Vec<Host> = (0..count)
            .map(|host| Host { pool: Pool::new(config, Instant::ZERO, seed ^ host as u64), heard: Summary::default() })
            .collect();
        let mut queue = Queue::default();
        queue.push(Instant::ZERO + setup.slots.period, Event::Period);
        let mut arrivals: Vec<Arc<[(Instant, Io)]>> = Vec::new();
        let mut tenants = Vec::new();
        for (place, workload) in setup.workloads.iter().enumerate() {
            let pool = &mut hosts[workload.host].pool;
            if count > 1 {
                pool.share_slots(true);
            }
            let id = pool.join(Instant::ZERO, Qos { weight: workload.weight, ..Qos::default() });
            pool.set_latency_target(id, Some(LatencyTarget::mean(workload.target)));
            tenants.push(id);
            let until = workload.until.min(end);
            let mut all =
                load::arrivals(&workload.source, seed.wrapping_mul(1_000_003) ^ place as u64, until, setup.capacity);
            if let Some((from, until)) = workload.surge {
                let mut place = 0;
                all.retain(|(at, _)| {
                    place += 1;
                    (from..until).contains(at) || place % SURGE == 0
                });
            }
            let from = all.partition_point(|(at, _)| *at < workload.from);
            arrivals.push(all[from..].into());
        }
        for (place, arrivals) in arrivals.iter().enumerate() {
            if let Some((at, _)) = arrivals.first() {
                queue.push(*at, Event::Arrival(place));
            }
        }
        let seconds = (setup.duration.as_nanos() / WINDOW.as_nanos()) as usize;
        Self {
            setup,
            device: Device::new(&setup.device, seed),
            hosts,
            tenants,
            next: vec![0; arrivals.len()],
            outcome: Outcome { seconds: vec![vec![Second::default(); seconds]; arrivals.len()], tightness: Vec::new() },
            arrivals,
            queue,
            inside: Vec::new(),
            free: Vec::new(),
        }
    }

    fn run(mut self) -> Outcome {
        let end = Instant::ZERO + self.setup.lead + self.setup.duration;
        while let Some((now, due)) = self.queue.pop() {
            if now >= end {
                break;
            }
            match due {
                Due::Alarm(_) => self.reap(now),
                Due::Event(Event::Arrival(place)) => self.arrive(now, place),
                Due::Event(Event::Period) => self.period(now),
            }
            for host in 0..self.hosts.len() {
                self.dispatch(now, host);
            }
            self.queue.set_alarm(0, self.device.next_event());
        }
        self.outcome
    }

    fn arrive(&mut self, now: Instant, place: usize) {
        let (_, io) = self.arrivals[place][self.next[place]];
        let workload = &self.setup.workloads[place];
        let work = Work::new(io.kind, io.bytes);
        let request = (Request { workload: place, io }, now);
        // A tenant never leaves here.
        let _ = self.hosts[workload.host].pool.submit(now, self.tenants[place], work, request);
        self.next[place] += 1;
        if let Some((at, _)) = self.arrivals[place].get(self.next[place]) {
            self.queue.push(*at, Event::Arrival(place));
        }
    }

    fn reap(&mut self, now: Instant) {
        while let Some(id) = self.device.poll(now) {
            let Some(Inside { request, ticket, queued_at }) = self.inside[id as usize].take() else { continue };
            self.free.push(id as u32);
            let second = now.since(Instant::ZERO + self.setup.lead).as_nanos() / WINDOW.as_nanos();
            let counts = now >= Instant::ZERO + self.setup.lead;
            if let Some(second) = self.outcome.seconds[request.workload].get_mut(second as usize)
                && counts
            {
                second.completed += 1;
                second.response_s += now.since(queued_at).as_secs_f64();
                second.device_s += now.since(ticket.admitted_at()).as_secs_f64();
            }
            let host = self.setup.workloads[request.workload].host;
            self.hosts[host].pool.complete(now, ticket, pool::Outcome::Done);
        }
    }

    fn dispatch(&mut self, now: Instant, host: usize) {
        while let Next::Run((request, queued_at), ticket) = self.hosts[host].pool.dispatch(now) {
            let id = self.free.pop().unwrap_or_else(|| {
                self.inside.push(None);
                self.inside.len() as u32 - 1
            });
            let io = request.io;
            self.inside[id as usize] = Some(Inside { request, ticket, queued_at });
            self.device.submit(now, u64::from(id), io);
        }
    }

    fn period(&mut self, now: Instant) {
        self.queue.push(now + self.setup.slots.period, Event::Period);
        let silent = self.setup.silence.is_some_and(|(from, until)| (from..until).contains(&now));
        let many = self.hosts.len() > 1;
        for host in &mut self.hosts {
            if many {
                host.pool.share_slots(!silent);
            }
            host.pool.tick_controllers(now);
            if let Some(summary) = host.pool.take_summary(now) {
                host.heard = summary;
            }
        }
        if many && !silent {
            let mut group = Summary::default();
            self.hosts.iter().for_each(|host| group.add(&host.heard));
            self.hosts.iter_mut().for_each(|host| host.pool.decide_slots(now, &group));
        }
        if let Some(view) = self.hosts[0].pool.slots() {
            self.outcome.tightness.push(view.tightness.unwrap_or(0.0));
        }
    }
}
