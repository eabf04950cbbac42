//! The thread of the recorder: drains the rings of the workers, puts the records in order, and writes them.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant as StdInstant;

use evenkeel_control::{Duration, Instant};

use super::again::Again;
use super::file::Sheet;
use super::folder;
use super::keep::{Keep, Wanted};
use super::names::{Names, Numbers};
use super::order::{self, Opened, Order, Recorded, other_policy, without_policy};
use super::ring::{Consumer, Lost};
use super::{Host, Record, Recorder};
use crate::clock;

/// Time between two looks at the free space of the file system.
const LOOKS_EVERY: Duration = Duration::from_secs(1);
/// Time between two occasions on which clients are forgotten during an ordered recording.
const FORGETS_EVERY: Duration = Duration::from_secs(60);
/// Time after its newest request from which on a client is forgotten during an ordered recording.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3600);

/// A recording that was ordered, under way.
struct Ordered {
    order: Order,
    /// The file; `None` once it has failed.
    sheet: Option<Sheet>,
    start: Instant,
    looked_at: Instant,
    /// The policy in the file's head, the epoch whose policy was compared with it last, and when.
    policy: String,
    epoch: u64,
    compared_at: Instant,
    figures: Recorded,
}

/// State of the thread.
struct Work {
    consumers: Vec<Consumer<Record>>,
    batch: Vec<Record>,
    lost: Vec<Lost>,
    names: Names,
    forgot_at: Instant,
    again: Again,
    ordered: Option<Ordered>,
    keep: Option<Keep>,
}

/// Ends the session when the thread ends by a panic, so that no one waits for it.
struct Leaving<'a>(&'a Recorder);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let mut desk = self.0.desk();
        if desk.running {
            self.0.stop_session();
            desk.running = false;
            if let Some(newest) = desk.newest.as_mut().filter(|newest| !newest.ended) {
                newest.ended = true;
                newest.error = Some("the recorder ended with a panic; report the panic in the log as a bug".to_owned());
            }
            desk.order = None;
        }
        self.0.bell.notify_all();
    }
}

/// Records until nothing is to be recorded any more.
pub(super) fn run(shared: &Arc<dyn Host>) {
    let recorder = shared.recorder();
    let leaving = Leaving(recorder);
    let mut work = Work {
        consumers: Vec::new(),
        batch: Vec::new(),
        lost: Vec::new(),
        names: Names::new(),
        forgot_at: clock::now(),
        again: Again::default(),
        ordered: None,
        keep: None,
    };
    let mut last = StdInstant::now();
    loop {
        let mut desk = recorder.turn(recorder.desk(), last);
        last = StdInstant::now();
        let (ending, closing) = (std::mem::take(&mut desk.ending), desk.closing);
        let ((asked, flushed), wanted) = (desk.flushes, desk.keep.clone());
        let first = desk.order.take();
        drop(desk);
        work.take_keep(shared, wanted, closing);
        work.take_order(first);
        // What ended before the end of a recording was asked for is in the rings by now. The first requests of a recording that
        // has begun since may be, too.
        work.drain(recorder);
        let second = recorder.desk().order.take();
        work.take_order(second);
        let now = clock::now();
        work.write(&**shared, now);
        work.look_for_room(now);
        work.end_if(&**shared, ending || closing, now);
        if let Some(keep) = &mut work.keep {
            keep.tick(now, asked > flushed);
            if recorder.missed.swap(false, Ordering::Relaxed) {
                keep.save_missed(now);
            }
        }
        let mut desk = recorder.desk();
        desk.flushes.1 = asked;
        if let Some(ordered) = &work.ordered {
            desk.newest = Some(ordered.figures.clone());
        }
        drop(work.ordered.take_if(|ordered| ordered.figures.ended));
        let is_over = work.ordered.is_none() && desk.order.is_none() && (desk.keep.is_none() || closing);
        if is_over {
            if let Some(keep) = work.keep.take() {
                drop(desk);
                keep.finish(closing);
                desk = recorder.desk();
            }
            if desk.order.is_none() && (desk.keep.is_none() || closing) {
                recorder.stop_session();
                desk.running = false;
                recorder.bell.notify_all();
                drop(desk);
                // The session that is on from here on is another one's.
                std::mem::forget(leaving);
                return;
            }
        }
        recorder.bell.notify_all();
    }
}

impl Work {
    /// Begins the recording that was ordered.
    fn take_order(&mut self, order: Option<Opened>) {
        if let Some(opened) = order {
            self.ordered = Some(Ordered::begin(opened));
        }
    }

    /// Begins, changes or ends the ring of the last minutes if that is wanted.
    fn take_keep(&mut self, shared: &Arc<dyn Host>, wanted: Option<Wanted>, closing: bool) {
        if let (Some(keep), Some(wanted)) = (&mut self.keep, &wanted)
            && keep.is(wanted)
        {
            keep.set(&wanted.settings, clock::now());
            return;
        }
        if let Some(keep) = self.keep.take() {
            keep.finish(closing);
        }
        self.keep = wanted.map(|wanted| Keep::new(shared, wanted));
    }

    /// Takes all records out of the rings, in the order in which the requests ended.
    fn drain(&mut self, recorder: &Recorder) {
        self.consumers.append(&mut recorder.rings().consumers);
        let (batch, lost) = (&mut self.batch, &mut self.lost);
        self.consumers.retain_mut(|consumer| {
            let ended = consumer.has_ended();
            lost.extend(consumer.drain(batch));
            !ended
        });
        batch.sort_by_key(|record| record.done);
    }

    /// Writes the records that were drained.
    fn write(&mut self, shared: &dyn Host, now: Instant) {
        self.names.follow(shared, now);
        let Self { batch, lost, names, forgot_at, again, ordered, keep, .. } = self;
        for lost in lost.drain(..) {
            ordered.iter_mut().for_each(|ordered| ordered.attempt(|sheet| sheet.lose(lost)));
            keep.iter_mut().for_each(|keep| keep.lose(lost, now));
        }
        for record in batch.drain(..) {
            let (numbers, retried) = (names.numbers(shared, &record), again.repeats(&record));
            if let Some(ordered) = ordered.as_mut() {
                ordered.put(&record, numbers, retried, names);
            }
            if let Some(keep) = keep.as_mut() {
                keep.put(&record, numbers, retried, names, now);
            }
        }
        // The segments with requests of these clients are gone.
        let before = keep.as_mut().and_then(|keep| keep.takes_leave(now));
        let Some(ordered) = ordered.as_mut() else {
            before.into_iter().for_each(|before| names.forget(before));
            return;
        };
        ordered.attempt(|sheet| sheet.tick(now));
        if now.since(*forgot_at) >= FORGETS_EVERY {
            *forgot_at = now;
            names.forget(now - FORGOTTEN_AFTER);
            ordered.sheet.iter_mut().for_each(|sheet| sheet.forget(names));
        }
    }

    /// Ends the ordered recording if its file system is nearly full.
    fn look_for_room(&mut self, now: Instant) {
        let Some(ordered) = self.ordered.as_mut().filter(|ordered| ordered.sheet.is_some()) else { return };
        if now.since(ordered.looked_at) < LOOKS_EVERY {
            return;
        }
        ordered.looked_at = now;
        if let Some(error) = folder::shortage(&ordered.order.file) {
            ordered.complete(now);
            ordered.explain(&error);
        }
    }

    /// Ends the ordered recording if its time or its room is used up, if it has failed, or if it `must` end.
    fn end_if(&mut self, shared: &dyn Host, must: bool, now: Instant) {
        let Some(ordered) = &mut self.ordered else { return };
        let length = now.since(ordered.start);
        ordered.figures.seconds = length.as_secs_f64();
        let must = must || std::time::Duration::from(length) >= ordered.order.length;
        ordered.compare_policy(shared, must, now);
        ordered.end_if(must, now);
    }
}

impl Ordered {
    fn begin(opened: Opened) -> Self {
        let scrambler = opened.scrambler();
        let Opened { order, file, pool, head, start } = opened;
        let figures = Recorded { note: without_policy(&head), ..Recorded::begun(&order.file) };
        let (policy, epoch, compared_at) = (head.policy.clone(), u64::MAX, start);
        let mut ordered = Self { order, sheet: None, start, looked_at: start, policy, epoch, compared_at, figures };
        match Sheet::new(file, &head, start, pool, scrambler) {
            Ok(sheet) => ordered.sheet = Some(sheet),
            Err(error) => {
                // Without its head it is no recording.
                let _ = fs::remove_file(&ordered.order.file);
                ordered.explain(&error);
            }
        }
        ordered
    }

    /// Notes if the policy is not that of the file's head any more. The policy of each second is looked at, or at once if it
    /// `must` be.
    fn compare_policy(&mut self, shared: &dyn Host, must: bool, now: Instant) {
        let epoch = shared.epoch();
        if epoch == self.epoch || !(must || now.since(self.compared_at) >= LOOKS_EVERY) {
            return;
        }
        (self.epoch, self.compared_at) = (epoch, now);
        if self.figures.note.is_none() && !self.policy.is_empty() {
            // It needs no room in the file.
            let later = order::policy_text(&shared.snapshot().config);
            self.figures.note = other_policy(&self.policy, &later);
        }
    }

    /// Writes to the file, unless it has failed or is full.
    fn attempt(&mut self, write: impl FnOnce(&mut Sheet) -> io::Result<()>) {
        let most = self.order.max_bytes;
        let Some(sheet) = self.sheet.as_mut().filter(|sheet| !sheet.is_full(most)) else { return };
        if let Err(error) = write(sheet) {
            self.fail(&error);
        }
    }

    fn put(&mut self, record: &Record, numbers: Numbers, retried: bool, names: &mut Names) {
        self.attempt(|sheet| sheet.put(record, numbers, retried, names));
    }

    /// Ends the recording because its file cannot be written.
    fn fail(&mut self, error: &io::Error) {
        self.sheet.iter_mut().for_each(Sheet::forfeit);
        self.take_figures();
        self.sheet = None;
        self.explain(error);
    }

    /// Sets the error that has ended the recording, unless there is one.
    fn explain(&mut self, error: &io::Error) {
        if self.figures.error.is_some() {
            return;
        }
        let file = self.order.file.display();
        let why = format!(
            "cannot write {file}: {error}; the recording has ended, and what was written before can be read. Make room and record again"
        );
        tracing::warn!("{why}");
        self.figures.error = Some(why);
    }

    fn take_figures(&mut self) {
        if let Some(sheet) = &self.sheet {
            let figures = &mut self.figures;
            (figures.requests, figures.lost, figures.bytes) = (sheet.requests(), sheet.lost(), sheet.bytes());
        }
    }

    /// Completes the file.
    fn complete(&mut self, now: Instant) {
        if let Some(sheet) = &mut self.sheet
            && let Err(error) = sheet.flush(now)
        {
            self.fail(&error);
        }
        self.take_figures();
        match self.sheet.take().map(Sheet::finish) {
            Some(Ok(bytes)) => self.figures.bytes = bytes,
            Some(Err(error)) => self.explain(&error),
            None => {}
        }
    }

    /// Ends the recording if it `must` end, has failed, or its file is full.
    fn end_if(&mut self, must: bool, now: Instant) {
        self.take_figures();
        let most = self.order.max_bytes;
        if !must && self.sheet.as_ref().is_some_and(|sheet| !sheet.is_full(most)) {
            return;
        }
        self.complete(now);
        self.figures.ended = true;
    }
}
