//! Answers about a time of a history, from its folder; also while it is recorded, and without a program that runs.

use std::path::Path;

use evenkeel_history::{Entry, Event as What, Figures, Filter, Gauge, Mark, Reader, Resolution, Sample, Slice};
use evenkeel_policy::explain::{self, Missing};
use evenkeel_policy::history::{self, Event, EventKind, Gap, History, Series, Step};

/// Steps of an answer at most: an hour at a resolution of a second.
const MAX_STEPS: usize = 3_600;
/// Series of all steps of an answer together at most: with 500 bytes each 10 MB.
const MAX_SERIES: usize = 20_000;
/// Events of an answer at most.
const MAX_EVENTS: usize = 2_000;
/// Marks that are looked at for an answer at most, or a long time would take a hundred megabytes. They are in the order in which
/// they were recorded, which is the order of their times but for a minute, and at most five a second in the long run.
const MAX_MARKS: usize = 4 * MAX_EVENTS;
/// Steps for which a resolution is chosen, if none is asked for.
const USUAL_STEPS: u64 = 600;
/// The newest seconds may be still to be recorded.
const NOT_YET_S: u64 = 3;
/// Name of the trouble that recording paused.
pub(super) const PAUSED: &str = "history_paused";

/// Reason why a question about a history cannot be answered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The folder cannot be read.
    #[error(transparent)]
    History(#[from] evenkeel_history::Error),
    /// The history has no steps of this length, in seconds.
    #[error("the history has no step of {0} s; ask for one of 1, 10, 60 or 600 s")]
    Step(u64),
    /// The time ends before it begins.
    #[error("`to` is not later than `from`; give a later `to`")]
    Order,
}

/// A question about a history. A name that is `None` selects all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Begin, Unix time in seconds.
    pub from: u64,
    /// End, Unix time in seconds.
    pub to: u64,
    /// Length of a step in seconds: 1, 10, 60 or 600. `None`: the shortest with some 600 steps.
    pub step: Option<u64>,
    /// Name of the pool whose figures and events are asked for; `None`: all pools.
    pub pool: Option<String>,
    /// Name of the tenant whose figures and events are asked for; empty for figures of whole pools alone; `None`: all tenants.
    pub tenant: Option<String>,
}

impl Query {
    fn resolution(&self) -> Result<Resolution, Error> {
        let length = self.to.checked_sub(self.from).filter(|length| *length > 0).ok_or(Error::Order)?;
        match self.step {
            Some(step) => Resolution::ALL.into_iter().find(|known| known.seconds() == step).ok_or(Error::Step(step)),
            None => {
                // A time until now has the present second beside ten minutes.
                let fits = |known: &Resolution| (length - 1) / known.seconds() <= USUAL_STEPS;
                Ok(Resolution::ALL.into_iter().find(fits).unwrap_or(Resolution::TenMinutes))
            }
        }
    }
}

/// Answers a question about the history in `folder`. An answer is bounded: if it ends early, it says where to ask on.
///
/// Reads each file of the time once: about 0.7 s for an hour of 1,000 tenants at a resolution of a second.
///
/// # Errors
/// A question that cannot be answered, or a folder that cannot be read; faults of single files are part of the answer.
pub fn answer(folder: &Path, query: &Query) -> Result<History, Error> {
    let resolution = query.resolution()?;
    let filter = Filter { pool: query.pool.clone(), tenant: query.tenant.clone(), device: None };
    let reader = Reader::new(folder);
    let mut answer = History {
        oldest_s: reader.oldest()?,
        from_s: query.from,
        to_s: query.to,
        step_s: resolution.seconds(),
        ..History::default()
    };
    // Beyond both ends, as they may explain a gap.
    let (from, to) = (query.from.saturating_sub(NOT_YET_S), query.to.saturating_add(NOT_YET_S));
    let mut marks: Vec<Mark> = Vec::new();
    for mark in reader.marks(from, to, &filter)?.take(MAX_MARKS) {
        match mark {
            Ok(mark) => marks.push(mark),
            Err(error) => answer.problems.push(error.to_string()),
        }
    }
    marks.sort_by_key(|mark| mark.at);
    let wanted = |mark: &&Mark| (query.from..query.to).contains(&mark.at);
    let mut end = query.to;
    if let Some(first) = marks.iter().filter(wanted).nth(MAX_EVENTS) {
        end = first.at.max(query.from + 1);
        answer.next_s = Some(end);
    }
    let mut count = 0;
    for entry in reader.range(query.from, end, resolution, &filter)? {
        match entry {
            Ok(Entry::Slice(slice)) => {
                let is_full = answer.steps.len() >= MAX_STEPS || count + slice.samples.len() > MAX_SERIES;
                if is_full && !answer.steps.is_empty() {
                    (end, answer.next_s) = (slice.at, Some(slice.at));
                    break;
                }
                count += slice.samples.len();
                answer.steps.push(step(&slice));
            }
            Ok(Entry::Gap { from, to }) => answer.gaps.extend(gap(from, to, query.to, &marks)),
            Err(error) => answer.problems.push(error.to_string()),
        }
    }
    answer.problems.dedup();
    let events = marks.into_iter().filter(|mark| (query.from..end).contains(&mark.at));
    answer.events = events.map(event).collect();
    // Only a single second has more: as when thousands of tenants miss their targets at once.
    let dropped = answer.events.len().saturating_sub(MAX_EVENTS);
    if dropped > 0 {
        answer.problems.push(format!(
            "more than {MAX_EVENTS} events are of the same second, and {dropped} of them are left out: ask for one tenant or pool"
        ));
        answer.events.truncate(MAX_EVENTS);
    }
    Ok(answer)
}

/// The record of a gap; `None` if it is only about to be recorded.
fn gap(from: u64, to: u64, asked_to: u64, marks: &[Mark]) -> Option<Gap> {
    if to == asked_to && to - from <= NOT_YET_S {
        return None;
    }
    let near = |at: u64, mark: &Mark| mark.at.abs_diff(at) <= NOT_YET_S;
    let program = |wanted: bool, at: u64| {
        marks.iter().find_map(|mark| match &mark.event {
            What::Program { begins, name, .. } if *begins == wanted && near(at, mark) => Some(name.as_str()),
            _ => None,
        })
    };
    let paused = || {
        marks.iter().find_map(|mark| match &mark.event {
            What::Trouble { kind, sentence, .. } if kind == PAUSED && near(to, mark) => Some(sentence.as_str()),
            _ => None,
        })
    };
    let missing = match (program(true, to), program(false, from)) {
        (Some(name), Some(_)) => Missing::Stopped(name),
        (Some(name), None) => Missing::Ended(name),
        (None, Some(name)) if to == asked_to => Missing::Stopped(name),
        (None, _) => match paused() {
            Some(because) => Missing::Paused(because),
            None if to == asked_to => Missing::Newest,
            None => Missing::Unknown,
        },
    };
    Some(Gap { from_s: from, to_s: to, because: explain::missing(missing) })
}

/// The answer of a history that has no folder yet.
///
/// # Errors
/// A question that cannot be answered.
pub(super) fn empty(query: &Query) -> Result<History, Error> {
    let step_s = query.resolution()?.seconds();
    Ok(History { from_s: query.from, to_s: query.to, step_s, ..History::default() })
}

fn step(slice: &Slice) -> Step {
    let Slice { at, seconds, recorded, samples } = slice;
    let series = samples.iter().map(|sample| series(sample, *recorded)).collect();
    Step { at_s: *at, seconds: *seconds, recorded_s: *recorded, series }
}

fn series(sample: &Sample, recorded: u64) -> Series {
    let Figures { requests, bytes, errors, p50_us, p99_us, p999_us, .. } = sample.figures;
    let per_s = |count: u64| count as f64 / recorded.max(1) as f64;
    let ms = |us: u64| (us > 0).then_some(us as f64 / 1e3);
    let scaled = |gauge: Gauge, scale: f64| {
        gauge.mean().map(|mean| history::Gauge { mean: mean / scale, max: gauge.max as f64 / scale })
    };
    let figures = &sample.figures;
    Series {
        pool: sample.series.pool.clone(),
        tenant: sample.series.tenant.clone(),
        device: sample.series.device.clone(),
        iops: per_s(requests),
        bytes_per_s: per_s(bytes),
        request_bytes: (requests > 0).then(|| bytes as f64 / requests as f64),
        errors,
        latency_ms: figures.mean_us().filter(|us| *us > 0.0).map(|us| us / 1e3),
        p50_ms: ms(p50_us),
        p99_ms: ms(p99_us),
        p999_ms: ms(p999_us),
        queued: scaled(figures.queued, 1.0),
        in_flight: scaled(figures.in_flight, 1.0),
        budget_bytes: scaled(figures.budget, 1.0),
        slots: scaled(figures.slots, 1e3),
        limit_iops: scaled(figures.limit_iops, 1.0),
        limit_bytes_per_s: scaled(figures.limit_bytes_per_s, 1.0),
        delay_ms: scaled(figures.delay_us, 1e3),
    }
}

fn event(mark: Mark) -> Event {
    let at_s = mark.at;
    match mark.event {
        What::Decision { pool, tenant, reason, sentence } => {
            Event { at_s, pool, tenant, reason, because: sentence, ..Event::default() }
        }
        What::Trouble { begins, level, kind, about, sentence } => {
            let named = if begins { EventKind::TroubleBegins } else { EventKind::TroubleEnds };
            Event { at_s, kind: named, about, level, reason: kind, because: sentence, ..Event::default() }
        }
        What::Program { begins, name, version } => {
            let kind = if begins { EventKind::Started } else { EventKind::Stopped };
            let because = format!("the {name}, version {version}");
            Event { at_s, kind, reason: name, because, ..Event::default() }
        }
    }
}
