//! Workers whose connections the controller of `serve` places and moves.

use evenkeel_control::placement::{Placement, Sample, Usage};
use evenkeel_control::{Duration, Instant};
use evenkeel_model::worker::{Counters, Worked, WorkerParams, Workers};

/// How often workers tell what their connections cost, as in `serve`: a placement's interval is a multiple of it.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// Workers, and who says which of them serves which connection. Slots of the placement are numbers of the workers'
/// connections.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) workers: Workers,
    pub(crate) placement: Placement,
    /// When last looked at: by connection, and by worker.
    before: Vec<Counters>,
    worked: Vec<Worked>,
}

impl Placed {
    /// Connections where `placement` has put them.
    pub(crate) fn new(workers: Workers, placement: Placement) -> Self {
        let worked = vec![Worked::default(); placement.workers()];
        Self { workers, placement, before: Vec::new(), worked }
    }

    /// Workers without connections.
    pub(crate) fn empty(params: WorkerParams, placement: Placement, seed: u64) -> Self {
        Self::new(Workers::new(params, placement.workers(), &[], seed), placement)
    }

    /// One more connection; its number.
    pub(crate) fn connect(&mut self) -> u32 {
        let worker = self.placement.join(self.before.len() as u32);
        self.before.push(Counters::default());
        self.workers.connect(worker)
    }

    /// Tells the placement what each of `connections` has cost since the last time, and `each` what it did and on which
    /// worker it is.
    pub(crate) fn observe(&mut self, connections: u32, mut each: impl FnMut(u32, u32, Counters)) {
        self.before.resize(connections as usize, Counters::default());
        for (connection, before) in (0..).zip(&mut self.before) {
            let seen = self.workers.counters(connection);
            let done = seen.since(&std::mem::replace(before, seen));
            self.placement.observe(connection, Sample { cpu: done.busy, received_bytes: done.received_bytes });
            each(connection, self.workers.worker(connection), done);
        }
    }

    /// Tells the placement how busy each worker was in the `interval` since the last time, as a worker of `serve` does
    /// itself; its share of that time, by worker.
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

    /// Lets the placement decide, and moves what it says; how many connections.
    pub(crate) fn tick(&mut self, now: Instant) -> usize {
        let Some(decision) = self.placement.tick(now) else { return 0 };
        for one in self.placement.moves() {
            self.workers.move_to(now, one.slot, one.to);
        }
        decision.moves
    }
}
