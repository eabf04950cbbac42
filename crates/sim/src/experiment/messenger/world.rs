//! Clients, OSDs with their workers, and a placement of connections in each OSD, in virtual time.

use evenkeel_control::histogram::Histogram;
use evenkeel_control::placement::{Config, Placement};
use evenkeel_control::rng::SplitMix64;
use evenkeel_control::{Duration, Instant};
use evenkeel_model::jitter::Jitter;
use evenkeel_model::worker::{Done, Side, WorkerParams, Workers};

use super::best;
use super::cluster::{
    CONNECTIONS, Destinations, Light, Load, MORE_REPLIES, MORE_REPOPS, OSDS, Opening, Skew, WORKERS, client_connection,
    opening_order, peer, peer_connection,
};
use crate::engine::{Due, Queue};
use crate::placed::{LOOK, Placed};
use crate::slab::Slab;

/// Length of the windows in which differences between workers are judged, in seconds: the interval of the paper's method.
pub const WINDOW: usize = 5;
/// Bytes of a message besides its payload; assumed.
const HEADER: u32 = 256;
/// Payload of a read or write, in bytes (section VI.B of the paper).
const PAYLOAD: u32 = 4096;

/// The setup of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// Costs of messages at the OSDs' workers.
    pub params: WorkerParams,
    /// One-way network delay.
    pub network: Duration,
    /// Mean time from a reply to the client's next request; the time of each request varies by up to 50 %.
    pub client: Duration,
    /// Inequality of the requests' destinations.
    pub skew: Skew,
    /// Share of the requests that are writes, 0 to 1.
    pub writes: f64,
    /// Queue depths of clients.
    pub load: Load,
    /// The order in which connections are opened.
    pub opening: Opening,
    /// The method of placement.
    pub placement: Config,
    /// Warm-up before the counted time, a whole number of seconds.
    pub lead: Duration,
    /// Counted time after the warm-up. Windows of [`WINDOW`] seconds that lie wholly within are judged.
    pub duration: Duration,
}

/// Differences between the loads of all workers of the cluster in one interval. The load's unit is that of the list that
/// contains the spread.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// Mean load of a worker.
    pub mean: f64,
    /// Standard deviation of the workers' loads.
    pub sigma: f64,
    /// Standard deviation that the best placement of each OSD's connections would have given in this interval; 0 where not
    /// computed.
    pub best: f64,
}

/// The outcome of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Reads completed per second, and writes completed per second.
    pub per_s: [f64; 2],
    /// Mean latency of reads and writes together, in ms.
    pub mean_ms: f64,
    /// p99 latency of reads and writes together, in ms.
    pub p99_ms: f64,
    /// Per worker: messages received in the counted time.
    pub received: Vec<u64>,
    /// Per worker: fraction of the counted time in which the worker was busy, 0 to 1.
    pub busy: Vec<f64>,
    /// Spread of the workers' busy time in seconds, for each window of [`WINDOW`] seconds.
    pub windows: Vec<Spread>,
    /// Spread of the workers' busy time in seconds, for each second.
    pub seconds: Vec<Spread>,
    /// Spread of the bytes received per worker, for each window of [`WINDOW`] seconds.
    pub bytes: Vec<Spread>,
    /// For each window of [`WINDOW`] seconds and each OSD: busy time of the OSD's busiest worker, divided by the lower bound for
    /// the window's loads. The bound is the mean of the OSD's workers, or the load of its largest connection if that is more.
    pub busiest: Vec<f64>,
    /// As `busiest`, but for each second in place of each window: all OSDs of the first second, then of the second, and so on.
    pub busiest_1s: Vec<f64>,
    /// Number of moves of a connection to another worker in the counted time.
    pub moves: u64,
}

/// The kind of a message. A message's id consists of its kind and the number of the client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Op,
    Reply,
    /// A write's message to a replica for whose reply the write waits.
    Repop,
    /// A further message to a replica; the write does not wait for its reply.
    MoreRepop,
    /// A replica's reply for which the write waits.
    RepopReply,
    /// A further reply of a replica, for which no write waits.
    MoreReply,
    /// A message that belongs to no request: a heartbeat or a low-priority message.
    Light,
}

impl Step {
    const ALL: [Self; 7] =
        [Self::Op, Self::Reply, Self::Repop, Self::MoreRepop, Self::RepopReply, Self::MoreReply, Self::Light];

    fn id(self, request: u32) -> u64 {
        u64::from(request) << 3 | self as u64
    }

    fn of(id: u64) -> (Self, u32) {
        (Self::ALL[(id & 7) as usize], (id >> 3) as u32)
    }
}

/// A request of a client.
#[derive(Clone, Copy, Debug)]
struct Request {
    client: usize,
    write: bool,
    sent: Instant,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A client's next request arrives at its OSD.
    Asks { client: u32 },
    /// A message arrives at `osd` from the network.
    Arrives { osd: u32, connection: u32, id: u64, bytes: u32 },
    /// The workers' counters are read and the placements decide; this happens every [`LOOK`].
    Look,
}

/// A worker's counters over one interval: busy time in ns, messages received, and bytes received.
#[derive(Clone, Copy, Debug, Default)]
struct Worked {
    busy: u64,
    received: u64,
    bytes: u64,
}

impl Worked {
    fn add(&mut self, other: &Self) {
        self.busy += other.busy;
        self.received += other.received;
        self.bytes += other.bytes;
    }
}

/// The longest time in [`turn`], which stands for "never".
const NEVER: u64 = u64::MAX / OSDS as u64;

/// An instant and the number of an OSD as one number, in order of instant, then of OSD: the least of many is found without a
/// jump.
#[inline]
fn turn(at: Instant, osd: usize) -> u64 {
    at.as_nanos().min(NEVER) * OSDS as u64 + osd as u64
}

/// The instant and the OSD of a [`turn`].
#[inline]
fn of_turn(turn: u64) -> (Instant, usize) {
    let (nanos, osd) = (turn / OSDS as u64, (turn % OSDS as u64) as usize);
    (if nanos == NEVER { Instant::FAR_FUTURE } else { Instant::from_nanos(nanos) }, osd)
}

struct Run<'a> {
    setup: &'a Setup,
    rng: SplitMix64,
    destinations: Destinations,
    queue: Queue<Event, 1>,
    osds: Vec<Placed>,
    /// Per OSD: the [`turn`] of the next event of its workers.
    next: [u64; OSDS],
    /// The clients' requests that are under way.
    requests: Slab<Request>,
    /// Figures of the present second: workers' busy time in seconds for each connection (by OSD and connection), and the
    /// counters of each worker (by OSD and worker).
    second: (Vec<f64>, Vec<Worked>),
    /// Workers' busy time in seconds for each connection in the present window, by OSD and connection.
    connections: Vec<f64>,
    /// Counters of each worker in the present window, by OSD and worker.
    window: Vec<Worked>,
    /// Counters of each worker in the counted time so far, by OSD and worker.
    total: Vec<Worked>,
    seconds: u64,
    completed: [u64; 2],
    responses: Histogram,
    outcome: Outcome,
}

/// Runs a setup. The same setup and seed give the same outcome on every machine.
///
/// # Errors
/// A message: a setting is out of range, or the simulation has no further events, or it loops at one instant.
pub fn simulate(setup: &Setup, seed: u64) -> Result<Outcome, String> {
    setup.params.validate().map_err(|error| error.to_string())?;
    if setup.network == Duration::ZERO || !(0.0..=1.0).contains(&setup.writes) {
        return Err("the network time of a message must be above 0, and the fraction of writes 0 to 1".to_owned());
    }
    let mut run = Run::new(setup, seed);
    run.run()?;
    Ok(run.finish())
}

impl<'a> Run<'a> {
    fn new(setup: &'a Setup, seed: u64) -> Self {
        let mut rng = SplitMix64::new(seed);
        let destinations = Destinations::new(setup.skew, &mut rng);
        let depths = setup.load.depths(&mut rng);
        let mut osds = Vec::new();
        for osd in 0..OSDS {
            let order = opening_order(osd, setup.opening, &mut rng);
            let mut placement = Placement::new(setup.placement, WORKERS, rng.next_u64(), Instant::ZERO);
            let mut homes = [0; CONNECTIONS];
            order.into_iter().for_each(|slot| homes[slot as usize] = placement.join(slot));
            osds.push(Placed::new(Workers::new(setup.params, WORKERS, &homes, rng.next_u64()), placement));
        }
        let mut queue = Queue::default();
        for (client, &depth) in depths.iter().enumerate() {
            for _ in 0..depth {
                let after = setup.network.as_nanos() + rng.next_below(setup.client.as_nanos().max(1) * 2);
                queue.push(Instant::from_nanos(after), Event::Asks { client: client as u32 });
            }
        }
        queue.push(Instant::ZERO + LOOK, Event::Look);
        Self {
            setup,
            rng,
            destinations,
            queue,
            osds,
            next: std::array::from_fn(|osd| turn(Instant::FAR_FUTURE, osd)),
            requests: Slab::default(),
            second: (vec![0.0; OSDS * CONNECTIONS], vec![Worked::default(); OSDS * WORKERS]),
            connections: vec![0.0; OSDS * CONNECTIONS],
            window: vec![Worked::default(); OSDS * WORKERS],
            total: vec![Worked::default(); OSDS * WORKERS],
            seconds: 0,
            completed: [0; 2],
            responses: Histogram::new(),
            outcome: Outcome::default(),
        }
    }

    fn run(&mut self) -> Result<(), String> {
        let end = Instant::ZERO + self.setup.lead + self.setup.duration;
        loop {
            let (first, osd) = of_turn(self.next.iter().copied().fold(u64::MAX, u64::min));
            self.queue.set_alarm(0, first);
            let Some((now, due)) = self.queue.pop() else {
                return Err("the simulation has no events before its end: report this defect of the model".to_owned());
            };
            if now > end {
                return Ok(());
            }
            if self.queue.is_looping() {
                return Err(format!("the simulation loops at {now:?}: report this defect of the model"));
            }
            match due {
                Due::Alarm(_) => {
                    while let Some(done) = self.osds[osd].workers.poll(now) {
                        self.done(osd, done);
                    }
                    self.next[osd] = turn(self.osds[osd].workers.next_event(), osd);
                }
                Due::Event(event) => self.happen(now, event),
            }
        }
    }

    fn happen(&mut self, now: Instant, event: Event) {
        match event {
            Event::Asks { client } => self.ask(now, client as usize),
            Event::Arrives { osd, connection, id, bytes } => {
                self.submit(now, osd as usize, connection, id, Side::Receive, bytes);
            }
            Event::Look => {
                self.look(now);
                self.queue.push(now + LOOK, Event::Look);
            }
        }
    }

    fn submit(&mut self, now: Instant, osd: usize, connection: u32, id: u64, side: Side, bytes: u32) {
        self.osds[osd].workers.submit(now, connection, id, side, bytes);
        self.next[osd] = turn(self.osds[osd].workers.next_event(), osd);
    }

    fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.rng.next_f64() < probability
    }

    /// Handles a client's request that arrives at an OSD; sends a light message, too, at the rate of Table I.
    fn ask(&mut self, now: Instant, client: usize) {
        let write = self.chance(self.setup.writes);
        let osd = self.destinations.of_client(client, &mut self.rng);
        let request = Request { client, write, sent: now - self.setup.network };
        let number = self.requests.insert(request);
        let bytes = HEADER + if write { PAYLOAD } else { 0 };
        self.submit(now, osd, client_connection(client), Step::Op.id(number), Side::Receive, bytes);
        for light in [Light::Low, Light::Ping] {
            if self.chance(light.per_request(write)) {
                let osd = self.rng.next_below(OSDS as u64) as usize;
                let connection = light.connection(&mut self.rng);
                self.travel(now, osd, connection, Step::Light.id(0), HEADER);
            }
        }
    }

    /// Sends a message to `osd`, at which it arrives after the network delay.
    fn travel(&mut self, now: Instant, osd: usize, connection: u32, id: u64, bytes: u32) {
        let event = Event::Arrives { osd: osd as u32, connection, id, bytes };
        self.queue.push_in_line(now + self.setup.network, event);
    }

    /// Handles a message that a worker of `osd` has finished: a received message is answered, a sent one travels on.
    fn done(&mut self, osd: usize, done: Done) {
        let (now, connection) = (done.at, done.connection);
        let (step, number) = Step::of(done.id);
        if done.side == Side::Send {
            self.sent(now, osd, connection, step, number);
            return;
        }
        let send = |run: &mut Self, connection: u32, step: Step, bytes: u32| {
            run.submit(now, osd, connection, step.id(number), Side::Send, bytes);
        };
        let request = self.requests.get(number.into()).copied();
        match (step, request) {
            (Step::Op, Some(Request { write: false, .. })) => send(self, connection, Step::Reply, HEADER + PAYLOAD),
            (Step::Op, _) => {
                for (step, chance) in [(Step::Repop, 1.0), (Step::MoreRepop, MORE_REPOPS)] {
                    if chance >= 1.0 || self.chance(chance) {
                        let replica = self.destinations.replica(osd, &mut self.rng);
                        send(self, peer_connection(osd, replica), step, HEADER + PAYLOAD);
                    }
                }
            }
            (Step::Repop | Step::MoreRepop, _) => {
                let first = if step == Step::Repop { Step::RepopReply } else { Step::MoreReply };
                send(self, connection, first, HEADER);
                if self.chance(MORE_REPLIES) {
                    send(self, connection, Step::MoreReply, HEADER);
                }
            }
            (Step::RepopReply, Some(request)) => {
                send(self, client_connection(request.client), Step::Reply, HEADER);
            }
            (Step::Light, _) => send(self, connection, Step::Light, HEADER),
            (Step::Reply | Step::RepopReply | Step::MoreReply, _) => {}
        }
    }

    /// Handles a message that a worker of `osd` has sent: the message travels to its receiver.
    fn sent(&mut self, now: Instant, osd: usize, connection: u32, step: Step, request: u32) {
        let bytes = match step {
            Step::Reply => {
                self.returns(now + self.setup.network, request);
                return;
            }
            Step::Repop | Step::MoreRepop => HEADER + PAYLOAD,
            Step::RepopReply | Step::MoreReply => HEADER,
            Step::Op | Step::Light => return,
        };
        let other = peer(osd, connection);
        self.travel(now, other, peer_connection(other, osd), step.id(request), bytes);
    }

    /// Handles the reply to request `number`, which arrives at its client at `at`; schedules the client's next request.
    fn returns(&mut self, at: Instant, number: u32) {
        let Some(request) = self.requests.remove(number.into()) else { return };
        if self.is_counted(at) {
            self.completed[usize::from(request.write)] += 1;
            self.responses.record(at.since(request.sent));
        }
        let rest = Jitter::Uniform { spread: 0.5 }.apply(self.setup.client, &mut self.rng);
        self.queue.push(at + rest + self.setup.network, Event::Asks { client: request.client as u32 });
    }

    fn is_counted(&self, now: Instant) -> bool {
        let from = Instant::ZERO + self.setup.lead;
        now > from && now <= from + self.setup.duration
    }

    /// Reads the workers' counters and makes the placement of each OSD decide; every second also adds up the figures.
    fn look(&mut self, now: Instant) {
        let counted = self.is_counted(now);
        let (by_connection, by_worker) = &mut self.second;
        for (osd, placed) in self.osds.iter_mut().enumerate() {
            placed.observe(CONNECTIONS as u32, |connection, worker, done| {
                by_connection[osd * CONNECTIONS + connection as usize] += done.busy.as_secs_f64();
                let (busy, received, bytes) = (done.busy.as_nanos(), done.received, done.received_bytes);
                by_worker[osd * WORKERS + worker as usize].add(&Worked { busy, received, bytes });
            });
            placed.tell(LOOK);
        }
        let second = now.as_nanos().is_multiple_of(1_000_000_000);
        if second {
            let empty = (vec![0.0; OSDS * CONNECTIONS], vec![Worked::default(); OSDS * WORKERS]);
            let (by_connection, by_worker) = std::mem::replace(&mut self.second, empty);
            if counted {
                self.account(&by_worker, &by_connection);
            }
        }
        for (osd, placed) in self.osds.iter_mut().enumerate() {
            let moves = placed.tick(now);
            self.outcome.moves += if counted { moves as u64 } else { 0 };
            self.next[osd] = turn(placed.workers.next_event(), osd);
        }
        if second {
            self.destinations.drift(&mut self.rng);
        }
    }

    fn account(&mut self, by_worker: &[Worked], by_connection: &[f64]) {
        let busy = |worked: &Worked| worked.busy as f64 / 1e9;
        let loads: Vec<f64> = by_worker.iter().map(busy).collect();
        self.outcome.busiest_1s.extend(busiest(&loads, by_connection));
        self.outcome.seconds.push(spread(by_worker.iter().map(busy), Some(by_connection)));
        for (place, worked) in by_worker.iter().enumerate() {
            self.window[place].add(worked);
            self.total[place].add(worked);
        }
        self.connections.iter_mut().zip(by_connection).for_each(|(sum, busy)| *sum += busy);
        self.seconds += 1;
        if self.seconds.is_multiple_of(WINDOW as u64) {
            let loads: Vec<f64> = self.window.iter().map(busy).collect();
            self.outcome.busiest.extend(busiest(&loads, &self.connections));
            self.outcome.windows.push(spread(self.window.iter().map(busy), Some(&self.connections)));
            self.outcome.bytes.push(spread(self.window.iter().map(|worked| worked.bytes as f64), None));
            self.window.fill(Worked::default());
            self.connections.fill(0.0);
        }
    }

    fn finish(mut self) -> Outcome {
        let seconds = self.setup.duration.as_secs_f64();
        let counted_ns = self.seconds.max(1) as f64 * 1e9;
        self.outcome.per_s = self.completed.map(|count| count as f64 / seconds);
        self.outcome.mean_ms = self.responses.mean().as_millis_f64();
        self.outcome.p99_ms = self.responses.quantile(0.99).as_millis_f64();
        self.outcome.received = self.total.iter().map(|worked| worked.received).collect();
        self.outcome.busy = self.total.iter().map(|worked| worked.busy as f64 / counted_ns).collect();
        self.outcome
    }
}

/// Mean and standard deviation of the loads `workers`. With `connections`, the loads of all connections by OSD, also the
/// standard deviation under the best placement.
fn spread(workers: impl Iterator<Item = f64> + Clone, connections: Option<&[f64]>) -> Spread {
    let (mean, sigma) = moments(workers);
    let best = connections.map_or(0.0, |loads| {
        let placed: Vec<f64> = loads.chunks(CONNECTIONS).flat_map(|of_osd| best::place(of_osd, WORKERS)).collect();
        moments(placed.iter().copied()).1
    });
    Spread { mean, sigma, best }
}

/// The load of each OSD's busiest worker, divided by the lower bound for any placement: the mean of the OSD's workers, or the
/// load of its largest connection if that is more. 1 for an OSD without load. Below 1 only where a connection larger than the
/// mean was moved within the interval.
fn busiest(workers: &[f64], connections: &[f64]) -> Vec<f64> {
    let most = |loads: &[f64]| loads.iter().copied().fold(0.0, f64::max);
    let mut ratios = Vec::new();
    for (workers, connections) in workers.chunks(WORKERS).zip(connections.chunks(CONNECTIONS)) {
        let mean = workers.iter().sum::<f64>() / workers.len() as f64;
        let bound = most(connections).max(mean);
        ratios.push(if bound > 0.0 { most(workers) / bound } else { 1.0 });
    }
    ratios
}

fn moments(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let n = values.clone().count() as f64;
    let mean = values.clone().sum::<f64>() / n;
    (mean, (values.map(|value| (value - mean) * (value - mean)).sum::<f64>() / n).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_worker_of_an_osd_is_compared_with_the_mean_or_the_largest_connection() {
        let ratio = |workers: [f64; WORKERS], large: f64| {
            let mut connections = [0.125; CONNECTIONS];
            connections[7] = large;
            busiest(&workers, &connections)
        };
        assert_eq!(ratio([1.0; WORKERS], 1.0), [1.0], "as even as can be");
        assert_eq!(ratio([2.0, 2.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0], 1.0), [2.0], "twice the mean");
        // The mean is 1, but one connection alone is 4.
        assert_eq!(ratio([4.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0], 4.0), [1.0], "it has a worker of its own");
        assert_eq!(ratio([5.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0], 4.0), [1.25], "another one shares its worker");
    }

    #[test]
    fn turns_are_in_order_of_instants_then_of_osds() {
        let instants = [Instant::ZERO, Instant::from_nanos(1), Instant::from_nanos(1 << 59), Instant::FAR_FUTURE];
        let mut before = None;
        for at in instants {
            for osd in 0..OSDS {
                let now = turn(at, osd);
                assert!(before.is_none_or(|before| before < now), "{at:?}, {osd}");
                assert_eq!(of_turn(now), (at, osd));
                before = Some(now);
            }
        }
    }

    #[test]
    fn each_osd_has_its_own_bound_and_one_without_load_meets_it() {
        let mut workers = vec![1.0; 3 * WORKERS];
        workers[0] = 3.0;
        workers[1] = 0.0;
        workers[2] = 0.0;
        workers[2 * WORKERS..].fill(0.0);
        let mut connections = vec![0.1; 3 * CONNECTIONS];
        connections[2 * CONNECTIONS..].fill(0.0);
        assert_eq!(busiest(&workers, &connections), [3.0, 1.0, 1.0]);
    }
}
