//! Clients, an iSCSI target, its sensors and a controller, in virtual time.

use evenkeel_control::response::{ClientId, ClientSample, Config, Controller, Sample};
use evenkeel_control::rng::SplitMix64;
use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};
use evenkeel_model::link::{Counters, Delayed, Link, LinkParams, Throttle};

/// How often the sensors are read, as in the paper.
pub const TICK: Duration = Duration::from_millis(100);
/// Streams of a host begin within so much of each other.
const START_WITHIN: Duration = Duration::from_millis(20);

/// Streams of one host that do the same, each with one request at a time on a connection of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    /// Its number; delays are by host.
    pub id: u64,
    /// The kind of its requests.
    pub kind: Kind,
    /// Payload of a request.
    pub bytes: u32,
    /// How many streams it has.
    pub streams: usize,
    /// Least distance of the requests of a stream; zero for one after the other.
    pub pace: Duration,
    /// When the streams begin and end, in order.
    pub active: Vec<(Instant, Instant)>,
}

/// The controller of delays.
#[derive(Clone, Debug, PartialEq)]
pub enum Control {
    /// No controller: these delays for these hosts from these moments on, in order; none before.
    Schedule(Vec<(Instant, u64, Duration)>),
    /// A controller; its step is the distance of the delay classes.
    Controller(Config),
}

/// The setup of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// Connections, target and storage.
    pub link: LinkParams,
    /// All.
    pub hosts: Vec<Host>,
    /// The delayed packets.
    pub on: Delayed,
    /// The controller of delays.
    pub control: Control,
    /// How long.
    pub duration: Duration,
}

/// The sensors' figures in one interval, and what came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// Its end.
    pub at: Instant,
    /// Reads completed by the storage, all hosts together.
    pub reads: u64,
    /// Their waits and service times, summed, in ms.
    pub read_ms: f64,
    /// Payload read, of each host.
    pub read_bytes: Vec<u64>,
    /// Payload written, of each host.
    pub written_bytes: Vec<u64>,
    /// Delay of each host from here on, in ms.
    pub delay_ms: Vec<f64>,
    /// Why, if there is a controller.
    pub reason: Option<&'static str>,
}

/// The outcome of a run: its intervals, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The intervals.
    pub ticks: Vec<Tick>,
}

impl Outcome {
    /// The intervals that end after `from` and not after `until`.
    pub fn between(&self, from: Instant, until: Instant) -> &[Tick] {
        let place = |at: Instant| self.ticks.partition_point(|tick| tick.at <= at);
        &self.ticks[place(from)..place(until).max(place(from))]
    }
}

/// Mean response time of the reads in these intervals, in ms; `None` without reads.
pub fn read_ms(ticks: &[Tick]) -> Option<f64> {
    let reads: u64 = ticks.iter().map(|tick| tick.reads).sum();
    (reads > 0).then(|| ticks.iter().map(|tick| tick.read_ms).sum::<f64>() / reads as f64)
}

/// Payload written in these intervals by all hosts, in MB/s.
pub fn written_mb_per_s(ticks: &[Tick]) -> f64 {
    let bytes: u64 = ticks.iter().flat_map(|tick| &tick.written_bytes).sum();
    bytes as f64 / 1e6 / (ticks.len().max(1) as f64 * TICK.as_secs_f64())
}

/// A stream and what it waits for.
struct Stream {
    host: usize,
    /// Earliest moment of its next request; `None` while one is under way.
    due: Option<Instant>,
    /// Which of the host's active periods it is in or before.
    period: usize,
}

struct Run<'a> {
    setup: &'a Setup,
    link: Link,
    streams: Vec<Stream>,
    controller: Option<Controller>,
    delays: Vec<Duration>,
    before: Vec<Counters>,
    outcome: Outcome,
}

/// Runs a setup. The same seed gives the same outcome on every machine.
///
/// # Errors
/// The setting of the controller or the link that makes no sense.
pub fn simulate(setup: &Setup, seed: u64) -> Result<Outcome, String> {
    setup.link.validate().map_err(|error| error.to_string())?;
    let controller = match &setup.control {
        Control::Schedule(_) => None,
        Control::Controller(config) => Some(Controller::new(config).map_err(|error| error.to_string())?),
    };
    let mut rng = SplitMix64::new(seed);
    let mut streams = Vec::new();
    for (host, spec) in setup.hosts.iter().enumerate() {
        for _ in 0..spec.streams {
            let late = Duration::from_nanos(rng.next_below(START_WITHIN.as_nanos()));
            let due = spec.active.first().map(|&(from, _)| from + late);
            streams.push(Stream { host, due, period: 0 });
        }
    }
    let mut run = Run {
        setup,
        link: Link::new(setup.link, streams.len(), rng.next_u64()),
        before: vec![Counters::default(); streams.len()],
        streams,
        controller,
        delays: vec![Duration::ZERO; setup.hosts.len()],
        outcome: Outcome::default(),
    };
    run.run();
    Ok(run.outcome)
}

impl Run<'_> {
    fn run(&mut self) {
        let end = Instant::ZERO + self.setup.duration;
        let mut tick = Instant::ZERO + TICK;
        self.apply_schedule(Instant::ZERO);
        while tick <= end {
            let due = self.streams.iter().filter_map(|stream| stream.due).min().unwrap_or(Instant::FAR_FUTURE);
            let now = tick.min(due).min(self.link.next_event());
            while let Some(done) = self.link.poll(now) {
                self.next_request(done.connection, now);
            }
            for connection in 0..self.streams.len() {
                if self.streams[connection].due.is_some_and(|due| due <= now) {
                    self.send(connection, now);
                }
            }
            if now == tick {
                self.tick(now);
                tick += TICK;
            }
        }
    }

    fn send(&mut self, connection: usize, now: Instant) {
        let stream = &mut self.streams[connection];
        stream.due = None;
        let host = &self.setup.hosts[stream.host];
        self.link.submit(now, connection, now.as_nanos(), host.kind, host.bytes);
    }

    /// A request is back: when does the next go?
    fn next_request(&mut self, connection: usize, now: Instant) {
        let stream = &mut self.streams[connection];
        let host = &self.setup.hosts[stream.host];
        let mut due = now;
        if host.pace > Duration::ZERO {
            // At fixed moments, so that the delay of one request does not shift all later ones.
            let slots = now.as_nanos() / host.pace.as_nanos() + 1;
            due = Instant::from_nanos(slots * host.pace.as_nanos());
        }
        while let Some(&(from, until)) = host.active.get(stream.period) {
            if due < until {
                stream.due = Some(due.max(from));
                return;
            }
            stream.period += 1;
        }
    }

    fn apply_schedule(&mut self, now: Instant) {
        let Control::Schedule(schedule) = &self.setup.control else { return };
        for &(at, id, delay) in schedule {
            if at <= now
                && let Some(host) = self.setup.hosts.iter().position(|host| host.id == id)
            {
                self.delays[host] = delay;
            }
        }
        self.apply_delays();
    }

    fn apply_delays(&mut self) {
        for (connection, stream) in self.streams.iter().enumerate() {
            let throttle = Throttle { delay: self.delays[stream.host], on: self.setup.on };
            self.link.set_throttle(connection, throttle);
        }
    }

    /// Reads the sensors and decides, as an agent on the target does.
    fn tick(&mut self, now: Instant) {
        let hosts = self.setup.hosts.len();
        let mut tick = Tick {
            at: now,
            reads: 0,
            read_ms: 0.0,
            read_bytes: vec![0; hosts],
            written_bytes: vec![0; hosts],
            delay_ms: Vec::new(),
            reason: None,
        };
        for (connection, stream) in self.streams.iter().enumerate() {
            let (seen, before) = (self.link.counters(connection), self.before[connection]);
            tick.reads += seen.reads - before.reads;
            tick.read_ms += seen.read_time.as_millis_f64() - before.read_time.as_millis_f64();
            tick.read_bytes[stream.host] += seen.read_bytes - before.read_bytes;
            tick.written_bytes[stream.host] += seen.written_bytes - before.written_bytes;
            self.before[connection] = seen;
        }
        let seconds = TICK.as_secs_f64();
        if let Some(controller) = &mut self.controller {
            let load = |((host, written), read): ((&Host, &u64), &u64)| ClientSample {
                client: ClientId(host.id),
                throttle: evenkeel_control::response::Throttle::Normal,
                bytes_per_s: *written as f64 / seconds,
                all_bytes_per_s: (*written + *read) as f64 / seconds,
                paid: f64::INFINITY,
            };
            let moved = self.setup.hosts.iter().zip(&tick.written_bytes).zip(&tick.read_bytes);
            let clients: Vec<ClientSample> = moved.map(load).collect();
            let mean_ns = |reads: u64| (tick.read_ms * 1e6 / reads as f64) as u64;
            let read_response = (tick.reads > 0).then(|| Duration::from_nanos(mean_ns(tick.reads)));
            controller.observe(now, &Sample { read_response, reads: tick.reads, clients: &clients });
            let decision = controller.tick(now);
            tick.reason = Some(decision.reason.name());
            self.delays.fill(Duration::ZERO);
            for delay in decision.delays {
                if let Some(host) = self.setup.hosts.iter().position(|host| ClientId(host.id) == delay.client) {
                    self.delays[host] = delay.delay;
                }
            }
            self.apply_delays();
        }
        self.apply_schedule(now);
        tick.delay_ms = self.delays.iter().map(|delay| delay.as_millis_f64()).collect();
        self.outcome.ticks.push(tick);
    }
}
