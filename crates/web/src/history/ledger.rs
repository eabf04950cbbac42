//! Recording, one call a second. Time is an argument.

use std::path::Path;

use evenkeel_history::{Bounds, Event, Figures, History, Mark, Note, Sample, Second};
use evenkeel_policy::figures::uptime;
use evenkeel_server::Work;

use super::answer::PAUSED;
use super::marks::{Held, Marker};
use super::place::{Place, Program};

/// Figures of up to so many seconds are divided among them; after more the machine was suspended.
const MOST_AT_ONCE_S: u64 = 10;
/// Reasons and troubles are read so rarely that their reading takes at most this part of a processor.
const HELD_SHARE: u32 = 500;
/// Time between two attempts to open a history that another process records, in seconds.
const RETRY_S: u64 = 10;
/// Time after which what was recorded survives a loss of power, in seconds.
const SYNC_EVERY_S: u64 = 60;
/// Cure of a clock that was set back.
pub(super) const BEHIND_CURE: &str = "check the clock (`timedatectl`); recording goes on when it has caught up, or ten minutes after a step of more than an hour";
/// Bound on the events that wait for a second that is recorded; the newest ones stay.
const MOST_LATER: usize = 1_000;

/// A source of the figures and events that a history records.
pub(crate) trait Sense: Send {
    /// Figures of all that was done since the last call; idle series may be left out.
    fn samples(&mut self) -> Vec<Sample>;

    /// Reasons and troubles now, and decisions since the last call.
    fn held(&mut self) -> Held;
}

/// The recording of a program's history: the open history, and all that is remembered from one second to the next.
#[derive(Default)]
pub(crate) struct Ledger {
    program: Program,
    marker: Marker,
    /// The open history and its place.
    open: Option<(History, Place)>,
    /// End of the last second that was read, Unix time in seconds.
    read_to: u64,
    /// Time of the next attempt to open the history, Unix time in seconds.
    open_at: u64,
    /// The error of the last attempt to open the history, which is in the log.
    complained: Option<String>,
    /// Time of the next reading of reasons and troubles, Unix time in seconds.
    held_at: u64,
    synced_at: u64,
    /// The error for which recording paused last.
    paused: Option<String>,
    /// The reason why nothing is recorded by the present clock, as a sentence: it was set back.
    behind: Option<String>,
    /// Events that are recorded with the next second.
    later: Vec<Mark>,
    /// True until the start of the program is recorded.
    starts: bool,
}

impl Ledger {
    /// A ledger from `now` on, Unix time in seconds: the program's start.
    pub(crate) fn new(program: Program, now: u64) -> Self {
        Self { program, read_to: now, synced_at: now, starts: true, ..Self::default() }
    }

    /// Records the seconds that have ended since the last call. `place`: where to; `None` if the history is off.
    pub(crate) fn record(&mut self, now: u64, place: Option<&Place>, sense: &mut impl Sense) {
        self.follow(now, place);
        let (from, to) = (std::mem::replace(&mut self.read_to, now), now);
        if to < from {
            // The clock was set back: times that were right before lie in the future now.
            (self.held_at, self.synced_at, self.open_at) = (0, to, 0);
            self.marker.set_back(to);
        }
        if self.open.is_none() || to <= from {
            return;
        }
        let samples = sense.samples();
        let mut marks = self.events(to, sense);
        marks.append(&mut self.later);
        let count = to - from;
        if self.starts {
            // After so long a time the clock was put forward since the start.
            let began = if count > MOST_AT_ONCE_S { to - 1 } else { from };
            marks.insert(0, self.program.mark(true, began));
        }
        let Some((history, place)) = &mut self.open else { return };
        if count > MOST_AT_ONCE_S {
            // Of a long time nothing is known but its events, which the next second records.
            (self.later, self.starts) = (marks, false);
            return;
        }
        let skipped = history.status().skipped_seconds;
        let mut last = Vec::new();
        for n in 0..count {
            let is_last = n + 1 == count;
            let marks = if is_last { std::mem::take(&mut marks) } else { Vec::new() };
            let second = Second { at: from + n, samples: part(&samples, n, count), marks };
            history.append(&second);
            last = second.marks;
        }
        // Neither paused, nor skipped because the clock was set back.
        let status = history.status();
        let is_recorded = status.newest == Some(to) && status.skipped_seconds == skipped;
        let behind_s = status.newest.map_or(0, |newest| newest.saturating_sub(to));
        // A step of seconds is soon made up for.
        let is_behind = status.paused.is_none() && behind_s > MOST_AT_ONCE_S;
        let was_behind = self.behind.is_some();
        self.behind = is_behind.then(|| {
            let by = uptime(behind_s as f64);
            format!("the clock was set back, and is {by} behind the newest record: nothing is recorded")
        });
        if let Some(behind) = self.behind.as_ref().filter(|_| !was_behind) {
            tracing::warn!("{behind}; {BEHIND_CURE}");
        }
        if !is_recorded {
            // The start is recorded later, with the time that the clock shows then.
            let starts = self.starts;
            last.retain(|mark| !(starts && matches!(mark.event, Event::Program { .. })));
            last.truncate(MOST_LATER);
            self.later = last;
        }
        self.starts &= !is_recorded;
        if now >= self.synced_at + SYNC_EVERY_S {
            history.sync();
            self.synced_at = now;
        }
        let notes = history.take_notes();
        if !notes.is_empty() {
            let folder = place.folder.clone();
            self.noted(notes, &folder);
        }
    }

    /// Records that the program stops, and makes all that was recorded survive a loss of power.
    pub(crate) fn stop(&mut self, now: u64, place: Option<&Place>, sense: &mut impl Sense) {
        self.record(now, place, sense);
        let mut marks = std::mem::take(&mut self.later);
        marks.push(self.program.mark(false, now));
        if let Some((history, _)) = &mut self.open {
            history.append(&Second { at: now, samples: Vec::new(), marks });
            history.sync();
        }
        self.open = None;
    }

    /// The error for which nothing is recorded at present.
    pub(crate) fn problem(&self) -> Option<String> {
        let paused = self.open.as_ref().and_then(|(history, _)| history.status().paused);
        paused.or_else(|| self.complained.clone())
    }

    /// The reason why nothing is recorded by the present clock, as a sentence; `None` unless it was set back.
    pub(super) fn behind(&self) -> Option<String> {
        self.behind.clone()
    }

    /// Bytes of the history's files; 0 while it is not open.
    pub(super) fn bytes(&self) -> u64 {
        self.open.as_ref().map_or(0, |(history, _)| history.status().bytes)
    }

    /// Opens the history at its place, or closes it.
    fn follow(&mut self, now: u64, place: Option<&Place>) {
        if self.open.as_ref().map(|(_, place)| place) == place {
            return;
        }
        let Some(place) = place else {
            (self.open, self.complained, self.behind) = (None, None, None);
            return;
        };
        // Its lock is released first.
        self.open = None;
        if now < self.open_at {
            return;
        }
        match History::open(&place.folder, Bounds { bytes: place.bytes }) {
            Ok((history, notes)) => {
                self.noted(notes, &place.folder);
                (self.open, self.complained, self.open_at) = (Some((history, place.clone())), None, 0);
            }
            Err(error) => {
                let error = error.to_string();
                if self.complained.as_ref() != Some(&error) {
                    let key = self.program.key;
                    tracing::warn!(
                        "no history is recorded: {error}; stop the other program that uses the folder, or give this {} a folder of its own, or set {key} = \"off\"; tried again every {RETRY_S} s",
                        self.program.name
                    );
                }
                (self.complained, self.open_at) = (Some(error), now + RETRY_S);
            }
        }
    }

    /// The events since the last call, unless it is too early to look for them again.
    fn events(&mut self, to: u64, sense: &mut impl Sense) -> Vec<Mark> {
        if to < self.held_at {
            return Vec::new();
        }
        let work = Work::begin();
        let mut marks = self.marker.marks(to - 1, sense.held());
        marks.iter_mut().for_each(|mark| mark.at = mark.at.min(to - 1));
        self.held_at = to + (work.spent() * HELD_SHARE).as_secs();
        marks
    }

    /// Logs the history's notes; a pause that has ended becomes an event.
    fn noted(&mut self, notes: Vec<Note>, folder: &Path) {
        for note in notes {
            self.log(&note, folder);
            match note {
                Note::Paused { because } => self.paused = Some(because),
                Note::Resumed { .. } => {
                    let Some(because) = self.paused.take() else { continue };
                    let (level, kind, about) = ("warning".into(), PAUSED.into(), String::new());
                    let sentence = format!("the history could not be recorded: {because}");
                    let event = Event::Trouble { begins: false, level, kind, about, sentence };
                    self.later.push(Mark { at: self.read_to.saturating_sub(1), event });
                }
                _ => {}
            }
        }
    }

    fn log(&self, note: &Note, folder: &Path) {
        match note {
            Note::Paused { .. } => tracing::warn!(
                "{note}; make room, or make {} writable for this user, or set {} to less; tried again every 10 s",
                folder.display(),
                self.program.key
            ),
            note => tracing::info!("{note}"),
        }
    }
}

/// Part `n` of `count` equal parts of figures; the last has what cannot be divided.
fn part(samples: &[Sample], n: u64, count: u64) -> Vec<Sample> {
    if count == 1 {
        return samples.to_vec();
    }
    let share = |sum: u64| if n + 1 == count { sum - sum / count * (count - 1) } else { sum / count };
    let part = |sample: &Sample| {
        let Figures { requests, bytes, errors, latency_us, .. } = sample.figures;
        let figures = Figures {
            requests: share(requests),
            bytes: share(bytes),
            errors: share(errors),
            latency_us: share(latency_us),
            ..sample.figures
        };
        Sample { figures, ..sample.clone() }
    };
    samples.iter().map(part).collect()
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
