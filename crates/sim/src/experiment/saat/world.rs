//! Tenants, the kernel's throttle, a cached device, its counters and a controller, in virtual time.

use std::sync::Arc;

use evenkeel_control::throughput::{Config, Counters, SlowDevice};
use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};
use evenkeel_model::Io;
use evenkeel_model::cached::throttle::{Limits, Throttle};
use evenkeel_model::cached::{Cached, CachedParams};

use super::recorded::{Recorded, Replay};
use super::tenants::{Habits, Requests, Trace};

/// Length of a period: the interval over which throughput is averaged and compared with the guarantee.
pub const PERIOD: Duration = Duration::from_secs(1);
/// Number of phases in which periods can begin: the counters are read this often in a period.
pub const PHASES: usize = 10;
/// Interval at which the counters are read: a period divided by [`PHASES`].
const TENTH: Duration = Duration::from_millis(100);

/// A tenant and its guarantee.
#[derive(Clone, Debug, PartialEq)]
pub struct Tenant {
    /// Properties of the tenant's generated requests.
    pub trace: Trace,
    /// Recorded requests that the tenant replays; `None`: it sends generated ones.
    pub recorded: Option<Arc<Recorded>>,
    /// Guaranteed throughput of reads and writes together, in bytes per second. Reads and writes are each guaranteed their
    /// share of the tenant's bytes.
    pub guaranteed: f64,
}

impl Tenant {
    /// The guaranteed throughput of the tenant's reads or of its writes, in bytes per second.
    pub fn guaranteed_of(&self, kind: Kind) -> f64 {
        let reads = self.recorded.as_ref().and_then(|recorded| recorded.reads()).unwrap_or(self.trace.reads);
        let part = if kind == Kind::Read { reads } else { 1.0 - reads };
        (self.guaranteed * part).max(1.0).round()
    }
}

/// The control of the limits of all tenants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Control {
    /// A controller with these settings.
    Controller(Config),
    /// The oracle, which tries each period in a copy of the world before it is run.
    Oracle,
}

/// The setup of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// Parameters of the cached device.
    pub device: CachedParams,
    /// All tenants.
    pub tenants: Vec<Tenant>,
    /// Habits of the tenants with generated requests.
    pub habits: Habits,
    /// The control of the limits of all tenants.
    pub control: Control,
    /// Warm-up before the counted time, which fills the cache; the limits are already controlled.
    pub lead: Duration,
    /// Counted time after the warm-up.
    pub duration: Duration,
}

/// The outcome of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Per tenant: bytes read and written in each 100 ms of the counted time.
    pub tenths: Vec<Vec<f64>>,
}

impl Outcome {
    /// A tenant's bytes per second in each whole period of the counted time. Periods begin `phase` times 100 ms, 0 to
    /// [`PHASES`] - 1, later than those by which controllers decide.
    pub fn periods(&self, tenant: usize, phase: usize) -> Vec<f64> {
        let tenths = self.tenths[tenant].get(phase..).unwrap_or_default();
        tenths.chunks_exact(PHASES).map(|period| period.iter().sum::<f64>() / PERIOD.as_secs_f64()).collect()
    }
}

/// The source of a stream's requests: generated or recorded.
#[derive(Clone, Debug)]
enum Source {
    Invented(Requests),
    Recorded(Replay),
}

impl Source {
    fn draw(&mut self) -> Io {
        match self {
            Self::Invented(requests) => requests.draw(),
            Self::Recorded(replay) => replay.draw(),
        }
    }
}

/// A stream: the reads or the writes of one tenant.
#[derive(Clone, Debug)]
struct Stream {
    requests: Source,
    throttle: Throttle,
    /// The next request, and the instant at which the throttle sends it; `None` while the full queue depth is in flight.
    head: Option<(Io, Instant)>,
    under_way: u32,
}

/// Tenants, throttles and device in virtual time.
#[derive(Clone, Debug)]
pub(super) struct World {
    now: Instant,
    device: Cached,
    /// The streams in this order: reads of the first tenant, writes of the first tenant, reads of the second, and so on.
    streams: Vec<Stream>,
    pub(super) cached: Vec<Counters>,
    pub(super) slow: Vec<Counters>,
    /// Queue depth of each stream; throttled requests count.
    depth: u32,
}

impl World {
    pub(super) fn new(setup: &Setup, seed: u64) -> Self {
        let mut streams = Vec::new();
        for (place, tenant) in setup.tenants.iter().enumerate() {
            for kind in [Kind::Read, Kind::Write] {
                let mut requests = match &tenant.recorded {
                    Some(recorded) => Source::Recorded(Replay::new(recorded, place, kind, seed)),
                    None => Source::Invented(Requests::new(&tenant.trace, &setup.habits, place, kind, seed)),
                };
                let mut throttle = Throttle::new(Limits::default());
                throttle.set_limits(Instant::ZERO, limit(tenant.guaranteed_of(kind)), false);
                let first = requests.draw();
                let at = throttle.ready_at(Instant::ZERO, first.bytes, true);
                streams.push(Stream { requests, throttle, head: Some((first, at)), under_way: 0 });
            }
        }
        let counters = vec![Counters::ZERO; setup.tenants.len()];
        Self {
            now: Instant::ZERO,
            device: Cached::new(setup.device),
            streams,
            cached: counters.clone(),
            slow: counters,
            depth: setup.habits.depth.max(1),
        }
    }

    /// Sets the limits of all streams, in bytes per second. As an agent does, it leaves an unchanged limit untouched, so that
    /// the throttle's state is kept.
    pub(super) fn set_limits(&mut self, limits: &[f64]) {
        for (stream, &bytes_per_s) in self.streams.iter_mut().zip(limits) {
            let limits = limit(bytes_per_s);
            if limits == stream.throttle.limits() {
                continue;
            }
            stream.throttle.set_limits(self.now, limits, stream.head.is_some());
            if let Some((io, at)) = &mut stream.head {
                *at = stream.throttle.ready_at(self.now, io.bytes, false);
            }
        }
    }

    /// Runs the world until the instant `until`.
    pub(super) fn run(&mut self, until: Instant) {
        loop {
            let heads = self.streams.iter().filter_map(|stream| Some(stream.head.as_ref()?.1));
            let ready = heads.min().unwrap_or(Instant::FAR_FUTURE);
            let now = ready.min(self.device.next_event());
            if now > until {
                break;
            }
            self.now = now;
            while let Some(done) = self.device.poll(now) {
                let (place, bytes) = parts(done.id);
                let (cached, slow) = (&mut self.cached[place / 2], &mut self.slow[place / 2]);
                count(cached, place, bytes);
                slow.read_bytes += done.slow_read;
                slow.written_bytes += done.slow_written;
                let stream = &mut self.streams[place];
                stream.under_way -= 1;
                if stream.head.is_none() {
                    stream.fetch(now, true);
                }
            }
            for (place, stream) in self.streams.iter_mut().enumerate() {
                while let Some((io, at)) = stream.head
                    && at <= now
                {
                    stream.throttle.dispatch(now, io.bytes);
                    self.device.submit(now, id(place, io.bytes), io);
                    stream.under_way += 1;
                    stream.head = None;
                    if stream.under_way < self.depth {
                        stream.fetch(now, false);
                    }
                }
            }
        }
        self.now = until;
    }

    /// Bytes completed by each stream so far.
    pub(super) fn bytes(&self) -> Vec<u64> {
        self.cached.iter().flat_map(|tenant| [tenant.read_bytes, tenant.written_bytes]).collect()
    }

    pub(super) fn slow_device(&self) -> SlowDevice {
        let (read_bytes, written_bytes, busy) = self.device.slow_device(self.now);
        SlowDevice { counters: Counters { read_bytes, written_bytes, ..Counters::ZERO }, busy }
    }
}

impl Stream {
    fn fetch(&mut self, now: Instant, first: bool) {
        let io = self.requests.draw();
        self.head = Some((io, self.throttle.ready_at(now, io.bytes, first)));
    }
}

/// Id of a request at the device. It encodes the number of the request's stream, and its size in bytes.
fn id(place: usize, bytes: u32) -> u64 {
    (place as u64) << 32 | u64::from(bytes)
}

fn parts(id: u64) -> (usize, u32) {
    ((id >> 32) as usize, id as u32)
}

fn limit(bytes_per_s: f64) -> Limits {
    Limits { bytes_per_s: Some((bytes_per_s as u64).max(1)), requests_per_s: None }
}

fn count(counters: &mut Counters, place: usize, bytes: u32) {
    if place.is_multiple_of(2) {
        counters.reads += 1;
        counters.read_bytes += u64::from(bytes);
    } else {
        counters.writes += 1;
        counters.written_bytes += u64::from(bytes);
    }
}

/// Collects the bytes that each tenant moves in each 100 ms of the counted time.
pub(super) struct Meter {
    next: Instant,
    before: Option<Vec<u64>>,
    pub(super) outcome: Outcome,
}

impl Meter {
    pub(super) fn new(setup: &Setup) -> Self {
        let outcome = Outcome { tenths: vec![Vec::new(); setup.tenants.len()] };
        Self { next: Instant::ZERO + setup.lead, before: None, outcome }
    }

    /// A meter that goes on from here in a copy of the world, without what was collected so far.
    pub(super) fn fork(&self) -> Self {
        let tenths = vec![Vec::new(); self.outcome.tenths.len()];
        Self { next: self.next, before: self.before.clone(), outcome: Outcome { tenths } }
    }

    /// Adds what a fork of this meter has collected, and goes on from there.
    pub(super) fn join(&mut self, fork: Self) {
        (self.next, self.before) = (fork.next, fork.before);
        for (tenths, more) in self.outcome.tenths.iter_mut().zip(fork.outcome.tenths) {
            tenths.extend(more);
        }
    }

    /// Runs `world` until `until`, and reads the counters every 100 ms of the counted time.
    pub(super) fn run(&mut self, world: &mut World, until: Instant) {
        while self.next <= until {
            world.run(self.next);
            let bytes = world.bytes();
            if let Some(before) = self.before.replace(bytes.clone()) {
                for (tenant, tenths) in self.outcome.tenths.iter_mut().enumerate() {
                    let moved = |place: usize| (bytes[place] - before[place]) as f64;
                    tenths.push(moved(2 * tenant) + moved(2 * tenant + 1));
                }
            }
            self.next += TENTH;
        }
        world.run(until);
    }
}
