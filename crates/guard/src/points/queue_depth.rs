//! The enforcement point for the queues of shared disks: finds and measures the queues, and sets their lengths.

use std::collections::BTreeMap;

use evenkeel_control::slots::{InvalidConfig, Summary};
use evenkeel_control::{Duration, Instant};
use evenkeel_policy::config::Cluster;
use evenkeel_policy::verdict;

use super::{Errors, Tick};
use crate::actuator::QueueLength;
use crate::config::ArrayConfig;
use crate::discovery::Roots;
use crate::journal::Journal;
use crate::loops::meter::QueueSlots;
use crate::loops::queue_depth::{Array, LOST_TICKS};
use crate::loops::record::{At, PoolState, QueueState};
use crate::sensor::diskstats::{Sample, Tracker};
use crate::sensor::queue::{self, Knob, Queue};

/// Time without a completed request, while requests are in flight, after which a disk counts as stuck.
const STUCK_AFTER: Duration = Duration::from_secs(1);
/// Time without a request after which a path of a volume counts as passive, if other paths carry requests.
const PASSIVE_AFTER: Duration = Duration::from_secs(10);

/// A path to a volume: the queue of one disk, and the disk's index in the kernel's statistics.
#[derive(Debug)]
struct Path {
    length: QueueLength,
    /// [`Tracker::arrangement`] at the latest look-up, and the disk's index at that time, with `None` for a disk that is not
    /// listed. `None` before the first look-up.
    place: Option<(u64, Option<usize>)>,
    /// Latest time at which the disk had a request in flight or completed one.
    busy_at: Option<Instant>,
    /// Time since which requests are in flight and none completes; `None` if the disk completes requests or is idle.
    waits_since: Option<Instant>,
    stuck: bool,
}

/// The enforcement point for one array: its controller, and the queues of each volume in the configuration's order.
#[derive(Debug)]
pub struct QueueDepth {
    pub(super) array: Array,
    roots: Roots,
    volumes: Vec<Vec<Path>>,
    /// Queues whose length the previous policy set, until this policy's queues are found; and queues of disks that were stuck
    /// when they ceased to belong to a volume.
    inherited: Vec<Path>,
    notes: Vec<String>,
    begun: bool,
    ticked_at: Instant,
}

impl QueueDepth {
    /// The enforcement point of the array `name`; it has not searched for queues yet.
    ///
    /// # Errors
    /// A setting that the array's controller refuses; a configuration that has passed the checks on reading contains none.
    pub fn new(name: &str, config: &ArrayConfig, cluster: &Cluster, roots: &Roots) -> Result<Self, InvalidConfig> {
        Ok(Self {
            array: Array::new(name, config, cluster)?,
            roots: roots.clone(),
            volumes: config.volumes.values().map(|_| Vec::new()).collect(),
            inherited: Vec::new(),
            notes: Vec::new(),
            begun: false,
            ticked_at: Instant::ZERO,
        })
    }

    /// Name of the array in the configuration.
    pub fn name(&self) -> &str {
        self.array.name()
    }

    /// Takes the place of `old`, the point of the previous policy. If no setting differs, `old` simply goes on. Otherwise the
    /// new point takes over the queues: their lengths stay until the new point sets its own, and are restored for queues that
    /// the new policy does not bound.
    pub fn succeed(&mut self, old: Self) {
        if old.array.config() == self.array.config() {
            *self = old;
        } else {
            self.inherited = old.volumes.into_iter().flatten().chain(old.inherited).collect();
        }
    }

    /// Ends this point, and restores all queue lengths that the point has set.
    pub fn end(self, journal: &mut Journal, errors: &mut Errors) {
        let paths = self.volumes.into_iter().flatten().chain(self.inherited);
        // What is stuck stays in the journal.
        for path in paths.filter(|path| !path.would_block()) {
            errors.take(path.length.forget(journal));
        }
    }

    /// Measures, searches for queues once a period, and sets the lengths that were decided, if there is a journal. Call it at
    /// every tick. `statistics`: the statistics just read, `None` if they could not be read.
    pub fn tick(&mut self, now: Instant, statistics: Option<&Tracker>, tick: &mut Tick<'_>) {
        self.ticked_at = now;
        if !std::mem::replace(&mut self.begun, true) {
            self.find(tick);
        }
        self.measure(statistics);
        if self.array.tick(now) {
            self.find(tick);
        }
        self.act(tick);
    }

    /// Shares out slots (requests in flight) by `group`, the sum of all hosts' summaries for one period. `ramp`: fraction of
    /// this host's share that the host takes, 0 to 1. Queue lengths are set at the next tick.
    pub fn decide(&mut self, group: &Summary, ramp: f64) {
        self.array.decide(self.ticked_at, group, ramp);
    }

    /// The kernel's names of the volumes' disks.
    pub fn disks(&self) -> impl Iterator<Item = &str> {
        self.volumes.iter().flatten().map(|path| path.length.queue().disk.as_str())
    }

    /// Searches for the volumes' queues: adds new ones, and forgets queues that are gone.
    fn find(&mut self, tick: &mut Tick<'_>) {
        self.notes.clear();
        let config = self.array.config().clone();
        let mut taken = BTreeMap::new();
        for ((name, volume), paths) in config.volumes.iter().zip(&mut self.volumes) {
            let mut found = queue::find(&self.roots, &volume.device).unwrap_or_else(|why| {
                self.notes.push(format!("{name}: the agent finds no queue, and goes on searching: {why}"));
                Vec::new()
            });
            // Two lengths for one queue would take turns.
            found.retain(|queue| {
                let first: &mut &str = taken.entry(queue.path.clone()).or_insert(name);
                if *first != name {
                    self.notes.push(format!(
                        "{name} uses device {}, as {first} does, and one queue cannot be divided: the agent does not limit {name}; give each tenant a LUN of its own",
                        queue.disk
                    ));
                }
                *first == name
            });
            let (stay, gone): (Vec<Path>, Vec<Path>) =
                paths.drain(..).partition(|path| path.length.is_there() && found.contains(path.length.queue()));
            *paths = stay;
            for path in gone {
                if path.has_to_wait() {
                    self.inherited.push(path);
                } else {
                    tick.restore(|journal| path.length.forget(journal));
                }
            }
            for queue in found {
                if !paths.iter().any(|path| *path.length.queue() == queue) {
                    let known = self.inherited.iter().position(|path| *path.length.queue() == queue);
                    let known = known.map(|at| self.inherited.swap_remove(at));
                    paths.push(known.unwrap_or_else(|| Path::new(queue)));
                }
            }
            for path in paths.iter_mut() {
                let foreign = path.length.foreign().is_some();
                tick.errors.take(path.length.read(tick.journal.as_deref()));
                if let (false, Some(found)) = (foreign, path.length.foreign()) {
                    let queue = path.length.queue();
                    tracing::warn!(
                        "another program has set {} of {} to {found}: the agent sets this queue again only after the agent's value is back; stop that program",
                        queue.knob.name(),
                        queue.disk
                    );
                }
            }
            self.notes.extend(coarse(name, paths));
            let left = |path: &&Path| tick.journal.as_ref().is_some_and(|journal| path.length.is_left(journal));
            for queue in paths.iter().filter(left).map(|path| path.length.queue()) {
                self.notes.push(format!(
                    "{name}: {} of {} stays as an earlier run left it: it cannot be restored, and the agent tries again at each reload and at its end; see the agent's log for the reason",
                    queue.knob.name(),
                    queue.disk
                ));
            }
        }
        let (stuck, others): (Vec<Path>, Vec<Path>) = self.inherited.drain(..).partition(Path::has_to_wait);
        self.inherited = stuck;
        for path in others {
            tick.restore(|journal| path.length.forget(journal));
        }
    }

    fn measure(&mut self, statistics: Option<&Tracker>) {
        for (at, paths) in self.volumes.iter_mut().enumerate() {
            let mut together: Option<Sample> = None;
            for path in paths.iter_mut() {
                let Some(sample) = path.look(self.ticked_at, statistics) else { continue };
                together = Some(together.map_or(sample, |sum| sum.plus(&sample)));
            }
            self.array.observe(at, together.as_ref(), queue_slots(paths, self.ticked_at));
        }
        for path in &mut self.inherited {
            path.look(self.ticked_at, statistics);
        }
    }

    fn act(&mut self, tick: &mut Tick<'_>) {
        let Some(slots) = self.array.take_slots() else { return };
        let Some(journal) = tick.journal.as_deref_mut() else { return };
        for (paths, slots) in self.volumes.iter_mut().zip(slots) {
            // Passive paths have the same length, for when they take over.
            let share = slots / carrying(paths, self.ticked_at).count().max(1) as f64;
            for path in paths.iter_mut().filter(|path| !path.would_block()) {
                tick.errors.take(path.length.set(journal, share));
            }
        }
    }

    /// The array's newest measurements and decisions, with the state of its queues.
    pub fn state(&self) -> PoolState {
        let mut at = self.array.state();
        for (volume, paths) in at.volumes.iter_mut().zip(&self.volumes) {
            volume.queues = paths.iter().map(Path::state).collect();
            volume.lately.throttled_by = verdict::shortened(volume.shortened(), &volume.slots.because);
        }
        let lost = self.array.lost().map(|name| {
            format!("{name}: no statistics of its disks in {LOST_TICKS} intervals: the agent leaves its queues as they are until there are some; check that the disks are there: `lsblk`")
        });
        let paths = self.volumes.iter().flatten().chain(&self.inherited);
        let stuck = paths.filter(|path| path.would_block()).map(|path| {
            let queue = path.length.queue();
            format!(
                "{} completes no request: the agent leaves its {} as it is until one completes; look for the disk in the kernel's log, `journalctl -k`",
                queue.disk,
                queue.knob.name()
            )
        });
        PoolState {
            name: self.name().to_owned(),
            method: self.array.method().into(),
            notes: self.notes.iter().cloned().chain(lost).chain(stuck).collect(),
            lately: at.sum(),
            at: At::QueueDepth(at),
            ..PoolState::default()
        }
    }
}

impl Path {
    fn new(queue: Queue) -> Self {
        Self { length: QueueLength::new(queue), place: None, busy_at: None, waits_since: None, stuck: false }
    }

    /// The disk's newest sample, if there is one since the previous tick. Also updates whether the disk is active or stuck.
    fn look(&mut self, now: Instant, statistics: Option<&Tracker>) -> Option<Sample> {
        let statistics = statistics?;
        let sample = statistics.reading(self.place(statistics)?)?.sample()?;
        let completed = sample.reads.completed + sample.writes.completed > 0;
        let waits = sample.in_flight > 0 && !completed;
        if waits || completed {
            self.busy_at = Some(now);
        }
        self.waits_since = waits.then(|| self.waits_since.unwrap_or(now));
        self.stuck = self.waits_since.is_some_and(|since| now.since(since) >= STUCK_AFTER);
        Some(sample)
    }

    /// True if the disk has had a request in the time [`PASSIVE_AFTER`] before `now`.
    fn is_active(&self, now: Instant) -> bool {
        self.busy_at.is_some_and(|at| now.since(at) < PASSIVE_AFTER)
    }

    /// True if setting a new length would block the agent: before the kernel changes `nr_requests` it waits until the queue
    /// is empty, and the disk is stuck.
    fn would_block(&self) -> bool {
        self.stuck && self.length.queue().knob == Knob::Requests
    }

    /// True if the length must not be set until the disk completes a request again.
    fn has_to_wait(&self) -> bool {
        self.would_block() && self.length.is_there()
    }

    /// The disk's index in the statistics, looked up by the disk's name, because disks that are hidden from /dev have no
    /// number of their own.
    fn place(&mut self, statistics: &Tracker) -> Option<usize> {
        let arrangement = statistics.arrangement();
        match self.place {
            Some((known, place)) if known == arrangement => place,
            _ => {
                // In sysfs a slash in a name is an exclamation mark.
                let place = statistics.named(&self.length.queue().disk.replace('!', "/"));
                self.place = Some((arrangement, place));
                place
            }
        }
    }

    fn state(&self) -> QueueState {
        let (length, queue) = (&self.length, self.length.queue());
        QueueState {
            disk: queue.disk.clone(),
            setting: queue.knob.name().into(),
            hardware_queues: queue.queues.get(),
            value: length.value(),
            before: length.before(),
            changes_total: length.changes(),
            foreign: length.foreign().map(str::to_owned),
        }
    }
}

/// The paths of a volume that have had requests in the time [`PASSIVE_AFTER`]; all paths if none has.
fn carrying(paths: &[Path], now: Instant) -> impl Iterator<Item = &Path> {
    let none = !paths.iter().any(|path| path.is_active(now));
    paths.iter().filter(move |path| none || path.is_active(now))
}

fn queue_slots(paths: &[Path], now: Instant) -> QueueSlots {
    QueueSlots {
        all: carrying(paths, now).map(|path| path.length.slots()).sum(),
        shows_waiting: paths.iter().all(|path| path.length.queue().knob.shows_waiting()),
    }
}

/// A note on a volume with several hardware queues, which cannot have fewer slots than these queues' smallest lengths
/// together; `None` for other volumes.
fn coarse(volume: &str, paths: &[Path]) -> Option<String> {
    let least = |queue: &Queue| queue.knob.least() * queue.queues.get();
    let hardware = paths.iter().map(|path| path.length.queue()).filter(|queue| queue.knob == Knob::Requests);
    let (queues, least) = hardware.fold((0, 0), |(n, sum), queue| (n + queue.queues.get(), sum + least(queue)));
    (queues > 1).then(|| {
        format!(
            "{volume}: {queues} hardware queues of at least {} requests each: the volume cannot have fewer than {least} slots; connect with fewer queues (nvme connect --nr-io-queues)",
            Knob::Requests.least()
        )
    })
}

#[cfg(test)]
#[path = "queue_depth_tests.rs"]
mod tests;
