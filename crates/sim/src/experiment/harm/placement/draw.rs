//! Cases of placement: workers, connections and their loads, drawn at random.

use evenkeel_control::Duration;
use evenkeel_model::worker::WorkerParams;

use super::super::draw::Draw;

/// Small requests per second that a worker of the model serves at its own speed. The workers of a case are slowed down to
/// some hundreds or thousands per second, so that a case takes a fraction of a second to run.
const PER_S: f64 = 450_000.0;
/// Least and largest load of all light connections together, as a fraction of all workers' capacity.
const LIGHT_SHARE: (f64, f64) = (0.002, 0.05);

/// Load of a connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Asks {
    /// Closed loop: each reply is followed by the next request after a think time.
    Closed {
        /// Queue depth: requests outstanding at once.
        depth: u32,
        /// Mean time from a reply to the next request.
        think: Duration,
    },
    /// Open loop: requests at random times, independent of replies.
    Open {
        /// Mean requests per second.
        per_s: f64,
    },
}

/// A connection's cycle: it sends requests for a time, then pauses for a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Burst {
    /// Duration of the sending part of a cycle.
    pub on: Duration,
    /// Duration of the pause of a cycle.
    pub off: Duration,
    /// Position in the cycle at the beginning of the run, from the start of the sending part.
    pub shift: Duration,
}

/// A connection and its load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Connection {
    /// Closed or open loop of the connection's requests.
    pub asks: Asks,
    /// The connection's cycle of sending and pausing; `None`: it never pauses.
    pub burst: Option<Burst>,
    /// Payload of a write, or of a read's reply, in bytes.
    pub bytes: u32,
    /// True if the connection's requests are writes; otherwise they are reads.
    pub writes: bool,
    /// True for a light connection, whose latencies are judged.
    pub light: bool,
}

/// Workers and connections, in the order in which connections are opened.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// Costs of a request at a worker.
    pub params: WorkerParams,
    /// Number of workers.
    pub workers: usize,
    /// The connections.
    pub connections: Vec<Connection>,
}

/// The case of a seed. The same seed gives the same case on every machine.
pub fn case(seed: u64) -> Case {
    let mut draw = Draw::new(seed);
    let per_s = draw.log(400.0, 2_000.0);
    let most = if draw.chance(0.8) { 5 } else { 11 };
    let workers = 2 + draw.random.next_below(most) as usize;
    let service = Duration::from_nanos((1e9 / per_s) as u64);
    let mut connections = Vec::new();
    for _ in 0..1 + draw.random.next_below(3) {
        group(&mut draw, workers, service, &mut connections);
    }
    let most = if draw.chance(0.15) { 1_000.0 } else { 40.0 };
    let light = draw.log(1.0, most) as usize;
    let all_per_s = draw.uniform(LIGHT_SHARE.0, LIGHT_SHARE.1) * workers as f64 * per_s;
    // Figures need some requests.
    let each = (all_per_s / light as f64).max(50.0 / light as f64);
    for _ in 0..light {
        connections.push(Connection {
            asks: Asks::Open { per_s: each },
            burst: None,
            bytes: 1 << (9 + draw.random.next_below(5)),
            writes: draw.chance(0.3),
            light: true,
        });
    }
    for last in (1..connections.len()).rev() {
        connections.swap(last, draw.random.next_below(last as u64 + 1) as usize);
    }
    Case { params: WorkerParams::serve().slower(PER_S / per_s), workers, connections }
}

/// Draws a group of heavy connections of one kind and adds them: closed loops without pauses; steady open or closed loops;
/// bursts that coincide, alternate, or begin at random. `service` is a worker's time for a small request.
fn group(draw: &mut Draw, workers: usize, service: Duration, connections: &mut Vec<Connection>) {
    let count = 1 + draw.random.next_below(3 * workers as u64);
    let kind = draw.random.next_below(5);
    let (on, off) = (draw.log(0.1, 60.0), draw.log(0.1, 60.0));
    // Together they ask for this part of all workers where they do not wait for replies.
    let share = draw.uniform(0.1, 0.6) * workers as f64 / count as f64;
    let (bytes, writes) = (1_u32 << (12 + draw.random.next_below(6)), draw.chance(0.5));
    let open = draw.chance(0.4);
    let depth = 1 << draw.random.next_below(6);
    let seconds = |s: f64| Duration::from_nanos((s * 1e9) as u64);
    for n in 0..count {
        let bytes = if draw.chance(0.3) { 1 << (12 + draw.random.next_below(6)) } else { bytes };
        // What a request costs beyond a small one: 0.15 of 2,200 ns for each KiB and more.
        let times = 1.0 + f64::from(bytes) * 0.15 / 2_200.0;
        let per_s = share * draw.uniform(0.3, 1.7) / (service.as_secs_f64() * times);
        let closed = Asks::Closed { depth, think: seconds(service.as_secs_f64() * draw.log(0.1, 20.0)) };
        let asks = match kind {
            0 => Asks::Closed { depth: 4 << draw.random.next_below(5), think: Duration::from_micros(20) },
            _ if open => Asks::Open { per_s: if kind == 1 { per_s } else { per_s * (on + off) / on } },
            _ => closed,
        };
        let off = if kind == 3 { on } else { off };
        let shift = match kind {
            2 => 0.0,
            3 => (n % 2) as f64 * on,
            _ => draw.random.next_f64() * (on + off),
        };
        let burst = (kind >= 2).then(|| Burst { on: seconds(on), off: seconds(off), shift: seconds(shift) });
        connections.push(Connection { asks, burst, bytes, writes, light: false });
    }
}
