//! Modelled workers, with the controller of `serve` that places connections on them and moves connections between them.

use evenkeel_control::placement::{Placement, Sample, Usage};
use evenkeel_control::{Duration, Instant};
use evenkeel_model::worker::{Counters, Worked, WorkerParams, Workers};

/// Interval at which workers report the costs of their connections, as in `serve`. The interval between decisions of a
/// placement is a multiple of this.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// Workers, and the controller that assigns connections to them. The slot numbers of [`Placement`] are connection numbers.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) workers: Workers,
    pub(crate) placement: Placement,
    /// Per connection: its counters at the last call of `observe`.
    before: Vec<Counters>,
    /// Per worker: its counters at the last call of `tell`.
    worked: Vec<Worked>,
}

impl Placed {
    /// Workers whose connections `placement` has already assigned.
    pub(crate) fn new(workers: Workers, placement: Placement) -> Self {
        let worked = vec![Worked::default(); placement.workers()];
        Self { workers, placement, before: Vec::new(), worked }
    }

    /// Workers without connections.
    pub(crate) fn empty(params: WorkerParams, placement: Placement, seed: u64) -> Self {
        Self::new(Workers::new(params, placement.workers(), &[], seed), placement)
    }

    /// Opens a connection on the worker that the placement chooses. Returns the connection's number.
    pub(crate) fn connect(&mut self) -> u32 {
        let worker = self.placement.join(self.before.len() as u32);
        self.before.push(Counters::default());
        self.workers.connect(worker)
    }

    /// Reports to the placement the costs of connections `0..connections` since the last call. Calls `each` for each of
    /// them with connection, worker, and the counters since the last call.
    pub(crate) fn observe(&mut self, connections: u32, mut each: impl FnMut(u32, u32, Counters)) {
        self.before.resize(connections as usize, Counters::default());
        for (connection, before) in (0..).zip(&mut self.before) {
            let seen = self.workers.counters(connection);
            let done = seen.since(&std::mem::replace(before, seen));
            self.placement.observe(connection, Sample { cpu: done.busy, received_bytes: done.received_bytes });
            each(connection, self.workers.worker(connection), done);
        }
    }

    /// Reports to the placement how busy each worker was in the `interval` since the last call, as a worker of `serve` does
    /// for itself. Returns each worker's busy fraction of the interval, 0 to 1.
    pub(crate) fn tell(&mut self, interval: Duration) -> Vec<f64> {
        let usage = |(worker, before): (u32, &mut Worked)| {
            let seen = self.workers.worked(worker);
            let before = std::mem::replace(before, seen);
            let messages = (seen.messages - before.messages).max(1) as f64;
            let (busy, among) = (seen.busy - before.busy, (seen.among - before.among) as f64);
            let backlog = Duration::from_nanos((among / messages * (busy.as_nanos() as f64 / messages)) as u64);
            let each = Duration::from_nanos((busy.as_nanos() as f64 / messages) as u64);
            let busy = busy.as_secs_f64() / interval.as_secs_f64();
            self.placement.observe_worker(worker, Usage { busy: busy.min(1.0), backlog, each });
            busy
        };
        (0..).zip(&mut self.worked).map(usage).collect()
    }

    /// Makes the placement decide, and moves the connections that it names. Returns the number of moves.
    pub(crate) fn tick(&mut self, now: Instant) -> usize {
        let Some(decision) = self.placement.tick(now) else { return 0 };
        for one in self.placement.moves() {
            self.workers.move_to(now, one.slot, one.to);
        }
        decision.moves
    }
}
