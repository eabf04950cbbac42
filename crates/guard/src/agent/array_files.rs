//! Arrays with their files: queues found and measured, their lengths written.

use std::collections::BTreeMap;

use evenkeel_control::Instant;
use evenkeel_control::slots::{InvalidConfig, Summary};

use super::array::Array;
use super::array_record::{ArrayState, QueueState, SlotsRecord};
use super::meter::Places;
use crate::actuator;
use crate::actuator::QueueLength;
use crate::config::Config;
use crate::discovery::Roots;
use crate::journal::Journal;
use crate::sensor::diskstats::{DeviceNumber, Reading, Sample, Tracker};
use crate::sensor::queue::{self, Knob, Queue};

/// A queue and where its disk is in the kernel's statistics.
#[derive(Debug)]
struct Path {
    length: QueueLength,
    /// Its number, by the arrangement of the statistics in which it was found.
    number: Option<(u64, Option<DeviceNumber>)>,
}

/// The files of an array: those of its volumes, in the configuration's order.
#[derive(Debug)]
struct Held {
    array: Array,
    volumes: Vec<Vec<Path>>,
    notes: Vec<String>,
    begun: bool,
}

/// Shares out the slots of all arrays of a configuration.
#[derive(Debug)]
pub struct Arrays {
    roots: Roots,
    held: Vec<Held>,
    ticked_at: Instant,
}

impl Arrays {
    /// The arrays of `config`. Nothing is looked for yet.
    ///
    /// # Errors
    /// An array, and a setting of it that its controller refuses; a configuration that was read has none.
    pub fn new(config: &Config, roots: &Roots) -> Result<Self, InvalidConfig> {
        let held = config.arrays.iter().map(|(name, settings)| {
            let volumes = settings.volumes.values().map(|_| Vec::new()).collect();
            let array = Array::new(name, settings, &config.exchange)?;
            Ok(Held { array, volumes, notes: Vec::new(), begun: false })
        });
        let held = held.collect::<Result<_, _>>()?;
        Ok(Self { roots: roots.clone(), held, ticked_at: Instant::ZERO })
    }

    /// Names of the arrays.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.held.iter().map(|held| held.array.name())
    }

    /// Measures; once a period it looks for queues, and sets their lengths if there is a journal. Call it at every tick, after
    /// the statistics were read.
    pub fn tick(
        &mut self,
        now: Instant,
        statistics: &Tracker,
        mut journal: Option<&mut Journal>,
    ) -> Vec<actuator::Error> {
        self.ticked_at = now;
        let mut errors = Vec::new();
        for held in &mut self.held {
            if !std::mem::replace(&mut held.begun, true) {
                held.find(&self.roots, journal.as_deref_mut(), &mut errors);
            }
            held.measure(statistics);
            if held.array.tick(now) {
                held.find(&self.roots, journal.as_deref_mut(), &mut errors);
            }
            held.act(journal.as_deref_mut(), &mut errors);
        }
        errors
    }

    /// What the volumes of this host did in the last period, by array, for the other hosts.
    pub fn summaries(&mut self) -> Vec<(String, Summary)> {
        let told = self.held.iter_mut().filter_map(|held| {
            let summary = held.array.take_summary()?;
            Some((held.array.name().to_owned(), summary))
        });
        told.collect()
    }

    /// Shares out the slots of every array that `group` knows, by what all hosts together did in one period. `ramp`: how much
    /// of its part this host takes, 0 to 1. Queues follow at the next tick.
    pub fn decide(&mut self, group: &BTreeMap<&str, Summary>, ramp: f64) {
        let now = self.ticked_at;
        for held in &mut self.held {
            if let Some(summary) = group.get(held.array.name()) {
                held.array.decide(now, summary, ramp);
            }
        }
    }

    /// No other host has a say any more: this one goes by the latency that it measures.
    pub fn alone(&mut self) {
        self.held.iter_mut().for_each(|held| held.array.alone());
    }

    /// What is known and decided.
    pub fn state(&self) -> Vec<ArrayState> {
        self.held.iter().map(Held::state).collect()
    }

    /// The newest `count` decisions, newest first, of one array or all.
    pub fn records(&self, array: Option<&str>, count: usize) -> Vec<SlotsRecord> {
        let wanted = self.held.iter().filter(|held| array.is_none_or(|name| name == held.array.name()));
        let mut records: Vec<SlotsRecord> = wanted.flat_map(|held| held.array.records()).collect();
        records.sort_by(|a, b| b.until_s.total_cmp(&a.until_s));
        records.truncate(count);
        records
    }
}

impl Held {
    /// Looks for queues that are not known yet and lets go of those that are gone.
    fn find(&mut self, roots: &Roots, mut journal: Option<&mut Journal>, errors: &mut Vec<actuator::Error>) {
        self.notes.clear();
        let config = self.array.config().clone();
        for ((name, volume), paths) in config.volumes.iter().zip(&mut self.volumes) {
            let found = queue::find(roots, &volume.device).unwrap_or_else(|why| {
                self.notes.push(format!("{name}: {why}; it is looked for in every period"));
                Vec::new()
            });
            let (stay, gone): (Vec<Path>, Vec<Path>) =
                paths.drain(..).partition(|path| path.length.is_there() && found.contains(path.length.queue()));
            *paths = stay;
            for path in gone {
                if let Some(journal) = journal.as_deref_mut() {
                    errors.extend(path.length.forget(journal).err());
                }
            }
            for queue in found {
                if !paths.iter().any(|path| *path.length.queue() == queue) {
                    paths.push(Path { length: QueueLength::new(queue), number: None });
                }
            }
            for path in paths.iter_mut() {
                let foreign = path.length.foreign().is_some();
                errors.extend(path.length.look().err());
                if let (false, Some(found)) = (foreign, path.length.foreign()) {
                    let queue = path.length.queue();
                    tracing::warn!(
                        "somebody else has set {} of {} to {found}: it is left alone as long as it is so",
                        queue.knob.name(),
                        queue.disk
                    );
                }
            }
            self.notes.extend(coarse(name, paths));
        }
    }

    fn measure(&mut self, statistics: &Tracker) {
        for (at, paths) in self.volumes.iter_mut().enumerate() {
            let mut together: Option<Sample> = None;
            for path in paths.iter_mut() {
                let Some(Reading::Sample(sample)) = path.number(statistics).and_then(|number| statistics.get(number))
                else {
                    continue;
                };
                together = Some(together.map_or(sample, |sum| sum.plus(&sample)));
            }
            self.array.observe(at, together.as_ref(), places(paths));
        }
    }

    fn act(&mut self, journal: Option<&mut Journal>, errors: &mut Vec<actuator::Error>) {
        let Some(slots) = self.array.take_slots() else { return };
        let Some(journal) = journal else { return };
        for (paths, slots) in self.volumes.iter_mut().zip(slots) {
            let share = slots / paths.len().max(1) as f64;
            for path in paths {
                errors.extend(path.length.set(journal, share).err());
            }
        }
    }

    fn state(&self) -> ArrayState {
        let mut state = self.array.state();
        for (volume, paths) in state.volumes.iter_mut().zip(&self.volumes) {
            volume.queues = paths.iter().map(Path::state).collect();
        }
        state.notes.clone_from(&self.notes);
        state
    }
}

impl Path {
    /// The disk's number, found by its name: disks that are hidden from /dev have no other trace of it.
    fn number(&mut self, statistics: &Tracker) -> Option<DeviceNumber> {
        let arrangement = statistics.arrangement();
        match self.number {
            Some((known, number)) if known == arrangement => number,
            _ => {
                let disk = &self.length.queue().disk;
                let number = statistics.iter().find(|(_, name, _)| name == disk).map(|(number, ..)| number);
                self.number = Some((arrangement, number));
                number
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

fn places(paths: &[Path]) -> Places {
    Places {
        all: paths.iter().map(|path| path.length.places()).sum(),
        shows_waiting: paths.iter().all(|path| path.length.queue().knob.shows_waiting()),
    }
}

/// What cannot be bounded finely is said.
fn coarse(volume: &str, paths: &[Path]) -> Option<String> {
    let least = |queue: &Queue| queue.knob.least() * queue.queues.get();
    let hardware = paths.iter().map(|path| path.length.queue()).filter(|queue| queue.knob == Knob::Requests);
    let (queues, least) = hardware.fold((0, 0), |(n, sum), queue| (n + queue.queues.get(), sum + least(queue)));
    (queues > 1).then(|| {
        format!(
            "{volume}: {queues} hardware queues of at least {} requests each: it cannot have fewer than {least} slots; connect with fewer queues (nvme connect --nr-io-queues)",
            Knob::Requests.least()
        )
    })
}

#[cfg(test)]
#[path = "array_files_tests.rs"]
mod tests;
