//! Workers and connections drawn at random.

use evenkeel_control::Duration;
use evenkeel_model::worker::WorkerParams;

use super::super::draw::Draw;

/// Small requests that a worker of the model serves in a second at its own speed. The workers of a case are slowed down
/// to some hundreds or thousands a second, so that a case takes a fraction of a second to run.
const PER_S: f64 = 450_000.0;
/// Least and largest share of all workers' capacity that light connections together ask for.
const LIGHT_SHARE: (f64, f64) = (0.002, 0.05);

/// How a connection sends requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Asks {
    /// Closed loop: the next request some time after a reply.
    Closed {
        /// Requests outstanding.
        depth: u32,
        /// Time from a reply to the next request.
        think: Duration,
    },
    /// Open loop: at random times, whatever the replies.
    Open {
        /// Requests per second.
        per_s: f64,
    },
}

/// A cycle: a connection sends requests for a time, then pauses for a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Burst {
    /// Time in which it sends.
    pub on: Duration,
    /// Time in which it pauses.
    pub off: Duration,
    /// Position in the cycle at the beginning of the run.
    pub shift: Duration,
}

/// A connection and its load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Connection {
    /// How it sends requests.
    pub asks: Asks,
    /// Its cycle of sending and pausing; `None`: it always sends.
    pub burst: Option<Burst>,
    /// Payload of a write, or of a read's reply, in bytes.
    pub bytes: u32,
    /// True if its requests are writes.
    pub writes: bool,
    /// True if its latencies count as those of light connections.
    pub light: bool,
}

/// Workers and connections, in the order in which connections are opened.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// Costs of a request at a worker.
    pub params: WorkerParams,
    /// How many workers.
    pub workers: usize,
    /// The connections.
    pub connections: Vec<Connection>,
}

/// The case of a seed, the same on every machine.
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

/// Adds connections of one kind: closed loops without pauses; steady ones; bursts that collide, take turns, or begin at random.
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
