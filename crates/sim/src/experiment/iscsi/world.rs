//! Hosts, an iSCSI target, its sensors and a controller of delays, in virtual time.

use std::collections::BTreeMap;

use evenkeel_control::response::{ClientId, ClientSample, Config, Controller, Sample};
use evenkeel_control::rng::SplitMix64;
use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};
use evenkeel_model::link::{Counters, Delayed, Link, LinkParams, Throttle};

/// Interval at which the sensors are read, as in the paper.
pub const TICK: Duration = Duration::from_millis(100);
/// A host's streams send their first requests at random times within this span after the start of its first active period.
const START_WITHIN: Duration = Duration::from_millis(20);

/// A host with equal streams, each with a connection of its own and one request outstanding at a time.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    /// The host's id, by which delays are set; a delay applies to all streams of the host.
    pub id: u64,
    /// The kind of the host's requests.
    pub kind: Kind,
    /// Payload of a request, in bytes.
    pub bytes: u32,
    /// Number of the host's streams.
    pub streams: usize,
    /// Requests are sent at multiples of this time: the next request of a stream at the first one after the reply. Zero: the
    /// next request follows the reply at once.
    pub pace: Duration,
    /// Beginnings and ends of the periods in which the streams send requests, in order of time.
    pub active: Vec<(Instant, Instant)>,
}

/// The control of the hosts' packet delays.
#[derive(Clone, Debug, PartialEq)]
pub enum Control {
    /// Scheduled delays, in order of time: an instant, a host's id, and the host's delay from that instant on. Hosts begin
    /// without delay.
    Schedule(Vec<(Instant, u64, Duration)>),
    /// Delays set by a controller; its `step` is the difference of neighbouring delay classes.
    Controller(Config),
}

/// The setup of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// Parameters of the connections, the iSCSI target and its storage.
    pub link: LinkParams,
    /// All hosts.
    pub hosts: Vec<Host>,
    /// The packets that delays apply to: those with payload, or acknowledgements.
    pub on: Delayed,
    /// The control of the hosts' delays.
    pub control: Control,
    /// Duration of the run.
    pub duration: Duration,
}

/// The sensors' figures of one interval of [`TICK`], and the delays that follow.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// End of the interval.
    pub at: Instant,
    /// Reads of all hosts that the storage completed in the interval.
    pub reads: u64,
    /// Sum of the latencies of these reads at the storage, in ms.
    pub read_ms: f64,
    /// Payload bytes read in the interval, per host.
    pub read_bytes: Vec<u64>,
    /// Payload bytes written in the interval, per host.
    pub written_bytes: Vec<u64>,
    /// Delay per host that holds from the end of the interval on, in ms.
    pub delay_ms: Vec<f64>,
    /// The controller's reason for the delays; `None` without a controller.
    pub reason: Option<&'static str>,
}

#[cfg(test)]
impl Tick {
    /// Interval number `n` of a run, with five reads of `ms` milliseconds each.
    pub(super) fn usual(n: u64, ms: f64, written_bytes: u64) -> Self {
        Self {
            at: Instant::from_nanos((n + 1) * TICK.as_nanos()),
            reads: 5,
            read_ms: 5.0 * ms,
            read_bytes: vec![0],
            written_bytes: vec![written_bytes],
            delay_ms: vec![0.0],
            reason: None,
        }
    }
}

/// The outcome of a run: the figures of its sensor intervals, in order of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Figures of the sensor intervals, in order of time.
    pub ticks: Vec<Tick>,
}

impl Outcome {
    /// The sensor intervals that end after `from` and not after `until`.
    pub fn between(&self, from: Instant, until: Instant) -> &[Tick] {
        let place = |at: Instant| self.ticks.partition_point(|tick| tick.at <= at);
        &self.ticks[place(from)..place(until).max(place(from))]
    }
}

/// Mean response time of the reads in these sensor intervals, in ms; `None` without reads.
pub fn read_ms(ticks: &[Tick]) -> Option<f64> {
    let reads: u64 = ticks.iter().map(|tick| tick.reads).sum();
    (reads > 0).then(|| ticks.iter().map(|tick| tick.read_ms).sum::<f64>() / reads as f64)
}

/// Payload written by all hosts in these sensor intervals, in MB/s.
pub fn written_mb_per_s(ticks: &[Tick]) -> f64 {
    let bytes: u64 = ticks.iter().flat_map(|tick| &tick.written_bytes).sum();
    bytes as f64 / 1e6 / (ticks.len().max(1) as f64 * TICK.as_secs_f64())
}

/// A host's stream: one connection.
struct Stream {
    host: usize,
    /// Instant of the stream's next request; `None` while a request is outstanding, or after the last active period.
    due: Option<Instant>,
    /// Index of the host's active period in which the stream sends, or whose beginning the stream awaits.
    period: usize,
}

struct Run<'a> {
    setup: &'a Setup,
    link: Link,
    streams: Vec<Stream>,
    /// Instant of the earliest next request of all streams.
    due: Instant,
    /// Index of each host by its id; of hosts with the same id, the first one's.
    places: BTreeMap<u64, usize>,
    controller: Option<Controller>,
    delays: Vec<Duration>,
    before: Vec<Counters>,
    outcome: Outcome,
}

/// Runs a setup. The same setup and seed give the same outcome on every machine.
///
/// # Errors
/// A message that names the setting of the controller or of the link that is out of range.
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
    let mut places = BTreeMap::new();
    for (place, host) in setup.hosts.iter().enumerate() {
        places.entry(host.id).or_insert(place);
    }
    let mut run = Run {
        setup,
        due: streams.iter().filter_map(|stream| stream.due).min().unwrap_or(Instant::FAR_FUTURE),
        places,
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
            let now = tick.min(self.due).min(self.link.next_event());
            while let Some(done) = self.link.poll(now) {
                self.next_request(done.connection, now);
            }
            if self.due <= now {
                self.send_due(now);
            }
            if now == tick {
                self.tick(now);
                tick += TICK;
            }
        }
    }

    /// Sends the requests of all streams that are due by `now`.
    fn send_due(&mut self, now: Instant) {
        self.due = Instant::FAR_FUTURE;
        for connection in 0..self.streams.len() {
            match self.streams[connection].due {
                Some(due) if due <= now => self.send(connection, now),
                Some(due) => self.due = self.due.min(due),
                None => {}
            }
        }
    }

    fn send(&mut self, connection: usize, now: Instant) {
        let stream = &mut self.streams[connection];
        stream.due = None;
        let host = &self.setup.hosts[stream.host];
        self.link.submit(now, connection, now.as_nanos(), host.kind, host.bytes);
    }

    /// Sets the instant of a stream's next request after a request on its `connection` has completed.
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
                let due = due.max(from);
                stream.due = Some(due);
                self.due = self.due.min(due);
                return;
            }
            stream.period += 1;
        }
    }

    fn apply_schedule(&mut self, now: Instant) {
        let Control::Schedule(schedule) = &self.setup.control else { return };
        for &(at, id, delay) in schedule {
            if at <= now
                && let Some(&host) = self.places.get(&id)
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

    /// Reads the sensors, makes the controller decide and sets the delays, as an agent on the iSCSI target does.
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
                freed_bytes_per_s: 0.0,
                reads: false,
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
                if let Some(&host) = self.places.get(&delay.client.0) {
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
