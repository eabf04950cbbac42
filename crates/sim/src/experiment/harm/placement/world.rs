//! Runs a drawn case of workers and connections in virtual time.

use evenkeel_control::histogram::Histogram;
use evenkeel_control::placement::{Config, Placement};
use evenkeel_control::rng::SplitMix64;
use evenkeel_control::{Duration, Instant};
use evenkeel_model::worker::{Done, Side, Workers};

use super::draw::{Asks, Burst, Case};
use crate::engine::{Due, Queue};
use crate::placed::Placed;
use crate::slab::Slab;

/// Warm-up before the counted time, in which a placement method may learn.
pub const LEAD: Duration = Duration::from_secs(10);
/// Counted time of a run, after the warm-up.
pub const COUNTED: Duration = Duration::from_secs(12);
/// Bytes of a message without its payload.
const HEADER: u32 = 28;
/// Interval over which each connection's load is recorded, for static placements.
const SLOT: Duration = Duration::from_millis(100);

/// The placement of connections in a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Who {
    /// Placement by a method, which may move connections between workers.
    Placed(Config),
    /// Static placement: the worker of each connection.
    Homes(Vec<u32>),
}

/// The outcome of a run. Figures are those of the counted time, except `slots`, which cover the run from its start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Payload bytes of completed requests per second.
    pub bytes_per_s: f64,
    /// p50 and p99 latency of the requests of all light connections together, in ms.
    pub light_ms: [f64; 2],
    /// Completed requests of light connections.
    pub light_requests: u64,
    /// Per connection: seconds of CPU time that workers spent on it in each interval of 0.1 s since the start of the run.
    pub slots: Vec<Vec<f32>>,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Asks { connection: u32 },
    Tick,
    Slot,
}

struct Run<'a> {
    case: &'a Case,
    placed: Placed,
    queue: Queue<Event, 1>,
    randoms: Vec<SplitMix64>,
    /// Per request under way: the instant at which the client sent it.
    sent: Slab<Instant>,
    light: Histogram,
    bytes: u64,
    outcome: Outcome,
    busy: Vec<Duration>,
    ticked: Instant,
}

/// Runs a case. Arrivals of open loops are the same under all placements.
pub fn simulate(case: &Case, who: &Who, seed: u64) -> Outcome {
    let mut random = SplitMix64::new(seed ^ 0x706c_6163_656d_656e);
    let config = if let Who::Placed(config) = who { *config } else { Config::RoundRobin };
    let mut placement = Placement::new(config, case.workers, random.next_u64(), Instant::ZERO);
    let mut homes: Vec<u32> = (0..case.connections.len() as u32).map(|slot| placement.join(slot)).collect();
    if let Who::Homes(fixed) = who {
        homes.clone_from(fixed);
    }
    let workers = Workers::new(case.params, case.workers, &homes, random.next_u64());
    let mut run = Run {
        case,
        placed: Placed::new(workers, placement),
        queue: Queue::default(),
        randoms: case.connections.iter().map(|_| SplitMix64::new(random.next_u64())).collect(),
        sent: Slab::default(),
        light: Histogram::new(),
        bytes: 0,
        outcome: Outcome { slots: vec![Vec::new(); homes.len()], ..Outcome::default() },
        busy: vec![Duration::ZERO; homes.len()],
        ticked: Instant::ZERO,
    };
    run.begin();
    run.run();
    run.finish()
}

/// The first instant at or after `at` at which a connection with this cycle may send.
fn open_at(burst: Option<Burst>, at: Instant) -> Instant {
    let Some(Burst { on, off, shift }) = burst else { return at };
    let cycle = on.as_nanos() + off.as_nanos();
    let place = (at.as_nanos() + shift.as_nanos()) % cycle;
    if place < on.as_nanos() { at } else { at + Duration::from_nanos(cycle - place) }
}

impl Run<'_> {
    fn begin(&mut self) {
        for (connection, one) in (0..).zip(&self.case.connections) {
            let times = if let Asks::Closed { depth, .. } = one.asks { depth } else { 1 };
            for _ in 0..times {
                let after = Instant::from_nanos(self.randoms[connection as usize].next_below(1_000_000));
                self.queue.push(open_at(one.burst, after), Event::Asks { connection });
            }
        }
        if let Some(at) = self.placed.placement.next_tick() {
            self.queue.push(at, Event::Tick);
        }
        self.queue.push(Instant::ZERO + SLOT, Event::Slot);
    }

    fn run(&mut self) {
        let end = Instant::ZERO + LEAD + COUNTED;
        loop {
            self.queue.set_alarm(0, self.placed.workers.next_event());
            let Some((now, due)) = self.queue.pop() else { return };
            if now > end {
                return;
            }
            match due {
                Due::Alarm(_) => {
                    while let Some(done) = self.placed.workers.poll(now) {
                        self.done(&done);
                    }
                }
                Due::Event(Event::Asks { connection }) => self.ask(now, connection),
                Due::Event(Event::Tick) => self.tick(now),
                Due::Event(Event::Slot) => self.slot(now),
            }
        }
    }

    fn ask(&mut self, now: Instant, connection: u32) {
        let one = self.case.connections[connection as usize];
        let number = self.sent.insert(now);
        let bytes = HEADER + if one.writes { one.bytes } else { 0 };
        self.placed.workers.submit(now, connection, u64::from(number), Side::Receive, bytes);
        if let Asks::Open { per_s } = one.asks {
            let gap = -libm::log(1.0 - self.randoms[connection as usize].next_f64()) / per_s;
            let next = now + Duration::from_nanos((gap * 1e9) as u64 + 1);
            self.queue.push(open_at(one.burst, next), Event::Asks { connection });
        }
    }

    fn done(&mut self, done: &Done) {
        let (now, connection) = (done.at, done.connection);
        let one = self.case.connections[connection as usize];
        if done.side == Side::Receive {
            let bytes = HEADER + if one.writes { 0 } else { one.bytes };
            self.placed.workers.submit(now, connection, done.id, Side::Send, bytes);
            return;
        }
        let Some(sent) = self.sent.remove(done.id) else { return };
        if now > Instant::ZERO + LEAD {
            let took = now.since(sent);
            if one.light {
                self.light.record(took);
            }
            self.bytes += u64::from(one.bytes);
        }
        if let Asks::Closed { think, .. } = one.asks {
            let random = &mut self.randoms[connection as usize];
            let after = Duration::from_nanos((think.as_nanos() as f64 * (0.5 + random.next_f64())) as u64 + 1);
            self.queue.push(open_at(one.burst, now + after), Event::Asks { connection });
        }
    }

    /// Gives the placement method the load of connections and workers since its last decision, and makes it decide.
    fn tick(&mut self, now: Instant) {
        self.placed.observe(self.case.connections.len() as u32, |_, _, _| {});
        let interval = now.since(std::mem::replace(&mut self.ticked, now));
        self.placed.tell(interval);
        self.placed.tick(now);
        if let Some(next) = self.placed.placement.next_tick() {
            self.queue.push(next, Event::Tick);
        }
    }

    fn slot(&mut self, now: Instant) {
        for (connection, (slots, before)) in (0..).zip(self.outcome.slots.iter_mut().zip(&mut self.busy)) {
            let busy = self.placed.workers.counters(connection).busy;
            slots.push((busy - std::mem::replace(before, busy)).as_secs_f64() as f32);
        }
        self.queue.push(now + SLOT, Event::Slot);
    }

    fn finish(self) -> Outcome {
        let ms = |histogram: &Histogram, quantile| histogram.quantile(quantile).as_millis_f64();
        let seconds = COUNTED.as_secs_f64();
        Outcome {
            bytes_per_s: self.bytes as f64 / seconds,
            light_ms: [ms(&self.light, 0.5), ms(&self.light, 0.99)],
            light_requests: self.light.count(),
            ..self.outcome
        }
    }
}
