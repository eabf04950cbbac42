//! The ring of the last minutes: requests in segments, files of at most a minute each, of which the oldest are removed.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use evenkeel_control::{Duration, Instant};
use evenkeel_policy::Config;

use super::file::Sheet;
use super::folder::{self, MISSES};
use super::names::{Names, Numbers};
use super::order;
use super::ring::Lost;
use super::{Host, Record};
use crate::clock;

/// Longest time that one segment covers.
const SEGMENT: Duration = Duration::from_secs(60);
/// A segment has at most this part of the ring's bytes, so that the oldest one can be removed alone.
const PARTS: u64 = 8;
/// Files beside the ring have at most this part of its bytes.
const BESIDE: u64 = 2;
/// Time between two looks at the free space of the file system.
const LOOKS_EVERY: Duration = Duration::from_secs(1);
/// Time after a segment could not be written until the next try.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(10);
/// Shortest time between two files that are saved because a latency target was missed.
const SAVED_EVERY: Duration = Duration::from_secs(600);

/// The settings of the ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Folder of the segments.
    pub(super) folder: PathBuf,
    /// Time that the segments cover, at least, unless they would be too large.
    keep: Duration,
    /// Largest size of all segments and of the files beside them together, in bytes.
    bytes: u64,
    /// True to save the ring in a file when a latency target becomes missed.
    on_miss: bool,
}

impl Settings {
    /// The settings in a configuration; `None` if no ring is wanted.
    pub(crate) fn of(config: &Config) -> Option<Self> {
        let record = config.server.record.as_ref()?;
        Some(Self {
            folder: config.server.flight_path(),
            keep: record.keep,
            bytes: record.size.0,
            on_miss: record.on_miss,
        })
    }
}

/// A ring that is wanted.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) settings: Settings,
    /// When the ring was first asked for, from which its segments count.
    pub(super) zero: Instant,
}

/// A segment that is complete.
struct Segment {
    path: PathBuf,
    bytes: u64,
    to: Instant,
}

/// A segment that is being written.
struct Present {
    path: PathBuf,
    sheet: Sheet,
    from: Instant,
}

/// The ring of the last minutes.
pub(super) struct Keep {
    shared: Arc<dyn Host>,
    settings: Settings,
    /// The time that all segments count from, and the same as Unix time in nanoseconds.
    zero: Instant,
    zero_unix_ns: u64,
    segments: VecDeque<Segment>,
    present: Option<Present>,
    /// Number of the next segment.
    next: u64,
    /// Requests that could not be written.
    missing: Option<Lost>,
    try_at: Instant,
    /// True if no segment was completed since one could not be written, which is in the log.
    has_failed: bool,
    /// True if the newest segment has no policy, which is in the log.
    lacks_policy: bool,
    looked_at: Instant,
    /// True if a segment was completed, or could not be written, since [`Self::takes_leave`] said so.
    has_turned: bool,
    saved_at: Option<Instant>,
}

impl Keep {
    /// A ring that begins when it was asked for. The segments of an earlier one are set aside.
    pub(super) fn new(shared: &Arc<dyn Host>, wanted: Wanted) -> Self {
        let Wanted { settings, zero } = wanted;
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&settings.folder);
        let prepared = made
            .and_then(|()| folder::set_aside(&settings.folder))
            .and_then(|()| folder::make_room(&settings.folder, settings.bytes / BESIDE, MISSES));
        if let Err(error) = prepared {
            // The first segment fails for the same reason, and the ring is tried again.
            tracing::debug!(%error, folder = %settings.folder.display(), "cannot prepare the folder for the requests of the last minutes");
        }
        // What was missed before there was a ring is not in it.
        shared.recorder().missed.store(false, Ordering::Relaxed);
        Self {
            shared: Arc::clone(shared),
            settings,
            zero,
            zero_unix_ns: unix_ns().saturating_sub(clock::now().since(zero).as_nanos()),
            segments: VecDeque::new(),
            present: None,
            next: 0,
            missing: None,
            try_at: zero,
            has_failed: false,
            lacks_policy: false,
            looked_at: zero,
            has_turned: false,
            saved_at: None,
        }
    }

    /// True if `wanted` is this ring, perhaps with other settings.
    pub(super) fn is(&self, wanted: &Wanted) -> bool {
        self.zero == wanted.zero && self.settings.folder == wanted.settings.folder
    }

    /// Changes the settings. The ring goes on with the segments that it has, as far as they have room.
    pub(super) fn set(&mut self, settings: &Settings, now: Instant) {
        if self.settings == *settings {
            return;
        }
        self.settings = settings.clone();
        let folder = &self.settings.folder;
        if let Err(error) = folder::make_room(folder, self.settings.bytes / BESIDE, MISSES) {
            tracing::debug!(%error, folder = %folder.display(), "cannot make room in the folder of the requests of the last minutes");
        }
        self.purge(now);
    }

    /// Records a request.
    pub(super) fn put(&mut self, record: &Record, numbers: Numbers, retried: bool, names: &mut Names, now: Instant) {
        if !self.attempt(now, |sheet| sheet.put(record, numbers, retried, names)) {
            let at = record.done.as_nanos();
            self.miss(Lost { requests: 1, from_ns: at, to_ns: at });
        }
    }

    /// Records that requests could not be kept.
    pub(super) fn lose(&mut self, lost: Lost, now: Instant) {
        if !self.attempt(now, |sheet| sheet.lose(lost)) {
            self.miss(lost);
        }
    }

    fn miss(&mut self, lost: Lost) {
        self.missing = Some(match self.missing {
            None => lost,
            Some(before) => Lost {
                requests: before.requests + lost.requests,
                from_ns: before.from_ns.min(lost.from_ns),
                to_ns: before.to_ns.max(lost.to_ns),
            },
        });
    }

    /// Writes to the present segment, which is opened if there is none; false if there can be none. If a write fails, what was to
    /// be written counts as missing.
    fn attempt(&mut self, now: Instant, write: impl FnOnce(&mut Sheet) -> io::Result<()>) -> bool {
        if self.present.is_none() {
            if now < self.try_at {
                return false;
            }
            match self.open(now) {
                Ok(present) => self.present = Some(present),
                Err(error) => {
                    self.fail(&error, now);
                    return false;
                }
            }
        }
        let Some(present) = &mut self.present else { return false };
        if let Err(error) = write(&mut present.sheet) {
            self.fail(&error, now);
        }
        true
    }

    fn open(&mut self, now: Instant) -> io::Result<Present> {
        if let Some(error) = folder::shortage(&self.settings.folder) {
            return Err(error);
        }
        let path = folder::segment(&self.settings.folder, self.next);
        let mut head = order::head(&self.shared.snapshot().config, false, self.settings.bytes / PARTS);
        head.started_unix_ns = self.zero_unix_ns;
        let (file, missing) = (order::create(&path)?, self.missing);
        let begun = Sheet::new(file, &head, self.zero, None, None).and_then(|mut sheet| {
            missing.map_or(Ok(()), |missing| sheet.lose(missing))?;
            Ok(sheet)
        });
        let sheet = begun.inspect_err(|_| drop(fs::remove_file(&path)))?;
        self.missing = None;
        self.next += 1;
        self.notice_policy(head.policy.is_empty());
        Ok(Present { path, sheet, from: now })
    }

    /// Warns when segments begin to have no policy.
    fn notice_policy(&mut self, is_missing: bool) {
        if is_missing && !self.lacks_policy {
            tracing::warn!(
                folder = %self.settings.folder.display(),
                "the requests of the last minutes are kept without the policy, which is larger than 3 MiB or 1/{} of size of record in [server]; raise size, or keep a copy of the policy for `evenkeel replay --policy`",
                PARTS * order::POLICY_PART
            );
        }
        self.lacks_policy = is_missing;
    }

    /// Puts the present segment away because it cannot be written, and pauses.
    fn fail(&mut self, error: &io::Error, now: Instant) {
        if !std::mem::replace(&mut self.has_failed, true) {
            tracing::warn!(
                folder = %self.settings.folder.display(),
                "the requests of the last minutes are not kept for now: {error}; make room in the folder, or lower size of record in [server]"
            );
        }
        self.try_at = now + TRY_AGAIN_AFTER;
        self.next += 1;
        if let Some(Present { path, sheet, from }) = self.present.take() {
            let requests = sheet.unwritten();
            if requests > 0 {
                let from_ns = from.max(sheet.flushed()).as_nanos();
                self.miss(Lost { requests, from_ns, to_ns: now.as_nanos().max(from_ns) });
            }
            self.segments.push_back(Segment { path, bytes: sheet.bytes(), to: now });
        }
        // Or clients would be remembered for as long as no segment can be written.
        self.has_turned = true;
        self.purge(now);
    }

    /// Completes the present segment if it is long enough, writes its requests out if `flush` or once a second, and removes
    /// segments that are too old.
    pub(super) fn tick(&mut self, now: Instant, flush: bool) {
        let Some(present) = &mut self.present else { return };
        let (keep, most) = (self.settings.keep, self.settings.bytes / PARTS);
        let longest = SEGMENT.min(Duration::from_nanos(keep.as_nanos() / PARTS));
        if now.since(present.from) >= longest || present.sheet.is_full(most) {
            self.turn(now);
            return;
        }
        if now.since(self.looked_at) >= LOOKS_EVERY {
            self.looked_at = now;
            if let Some(error) = folder::shortage(&self.settings.folder) {
                self.turn(now);
                self.fail(&error, now);
                return;
            }
        }
        let Some(present) = &mut self.present else { return };
        let written = if flush { present.sheet.flush(now) } else { present.sheet.tick(now) };
        if let Err(error) = written {
            self.fail(&error, now);
        }
    }

    /// Completes the present segment; the next request begins another one.
    fn turn(&mut self, now: Instant) {
        if let Some(present) = &mut self.present
            && let Err(error) = present.sheet.flush(now)
        {
            self.fail(&error, now);
        }
        let Some(Present { path, sheet, .. }) = self.present.take() else { return };
        let before = sheet.bytes();
        let finished = sheet.finish();
        self.segments.push_back(Segment { path, bytes: *finished.as_ref().unwrap_or(&before), to: now });
        self.has_turned = true;
        match finished {
            Ok(_) => {
                self.has_failed = false;
                self.purge(now);
            }
            Err(error) => self.fail(&error, now),
        }
    }

    /// Removes segments that are too old, or for which there is no room beside one that is being written and the files beside the
    /// ring.
    fn purge(&mut self, now: Instant) {
        let of_ring = self.settings.bytes - self.settings.bytes / PARTS;
        let mut bytes: u64 = self.segments.iter().map(|segment| segment.bytes).sum();
        // A segment that is linked stays as a file beside the ring.
        let mut most = of_ring.saturating_sub(folder::bytes_beside(&self.settings.folder));
        while let Some(oldest) = self.segments.front()
            && (bytes > most || now.since(oldest.to) > self.settings.keep)
        {
            bytes -= oldest.bytes;
            let _ = fs::remove_file(&oldest.path);
            self.segments.pop_front();
            most = of_ring.saturating_sub(folder::bytes_beside(&self.settings.folder));
        }
    }

    /// If a segment was completed, or could not be written, since the previous call: the time from which on segments may have
    /// requests.
    pub(super) fn takes_leave(&mut self, now: Instant) -> Option<Instant> {
        let oldest = now.as_nanos().saturating_sub(2 * self.settings.keep.as_nanos());
        std::mem::take(&mut self.has_turned).then(|| Instant::from_nanos(oldest))
    }

    /// Keeps the newest segments for longer because a latency target has become missed, unless that was done lately.
    pub(super) fn save_missed(&mut self, now: Instant) {
        if !self.settings.on_miss || self.saved_at.is_some_and(|at| now.since(at) < SAVED_EVERY) {
            return;
        }
        self.saved_at = Some(now);
        // A segment that is complete is only linked.
        self.turn(now);
        let segments: Vec<(PathBuf, u64)> =
            self.segments.iter().map(|segment| (segment.path.clone(), segment.bytes)).collect();
        let (folder, unix_s) = (&self.settings.folder, unix_ns() / 1_000_000_000);
        match folder::keep(folder, &segments, unix_s, self.settings.bytes / BESIDE) {
            // There was nothing to keep; the next miss may have more.
            Ok(0) => self.saved_at = None,
            Ok(files) => tracing::info!(
                files,
                "a latency target is missed: the requests of the last minutes are in {}/missed-{unix_s}-*.evf",
                folder.display()
            ),
            Err(error) => tracing::warn!(
                "a latency target is missed, and the requests of the last minutes cannot be kept in {}: {error}; use a file system with hard links for data_dir, or save them with `evenkeel record --last`",
                folder.display()
            ),
        }
    }

    /// Completes the present segment because the ring ends. Unless the segments `stay`, they are removed: the ring is no longer
    /// wanted.
    pub(super) fn finish(mut self, stay: bool) {
        self.turn(clock::now());
        if !stay {
            folder::clear(&self.settings.folder);
        }
    }
}

fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use evenkeel_flight::Reader;

    use super::super::Recorder;
    use super::*;
    use crate::snapshot::Snapshot;

    /// A server without workers.
    #[derive(Default)]
    struct Idle(Recorder);

    impl Host for Idle {
        fn snapshot(&self) -> Arc<Snapshot> {
            let text = "[volumes.disk-0]\nbackend = \"memory\"\nsize = 4096\n";
            let config = Arc::new(Config::parse(text, "test").unwrap());
            Arc::new(Snapshot { config, ..Snapshot::default() })
        }

        fn epoch(&self) -> u64 {
            0
        }

        fn workers(&self) -> usize {
            0
        }

        fn recorder(&self) -> &Recorder {
            &self.0
        }

        fn own_files(&self) -> &[PathBuf] {
            &[]
        }
    }

    /// A ring of at most so many bytes in `folder`, after it was to record a loss.
    fn used(folder: PathBuf, bytes: u64) -> Keep {
        let settings = Settings { folder, keep: Duration::from_secs(60), bytes, on_miss: true };
        let shared: Arc<dyn Host> = Arc::new(Idle::default());
        let zero = clock::now();
        let mut keep = Keep::new(&shared, Wanted { settings, zero });
        assert!(keep.takes_leave(zero).is_none(), "nothing has happened");
        keep.lose(Lost { requests: 1, from_ns: zero.as_nanos(), to_ns: zero.as_nanos() }, zero);
        keep
    }

    #[test]
    fn clients_are_forgotten_while_the_ring_cannot_be_written() {
        let mut keep = used("/dev/null/flight".into(), 16 << 20);
        let now = clock::now();
        assert!(keep.has_failed && keep.present.is_none());
        assert!(keep.takes_leave(now).is_some() && keep.takes_leave(now).is_none(), "once for each try");
        let later = now + TRY_AGAIN_AFTER;
        keep.lose(Lost { requests: 1, from_ns: now.as_nanos(), to_ns: later.as_nanos() }, later);
        assert!(keep.takes_leave(later).is_some());
    }

    #[test]
    fn a_miss_of_which_nothing_can_be_kept_does_not_count() {
        let mut keep = used("/dev/null/flight".into(), 16 << 20);
        keep.save_missed(clock::now());
        assert!(keep.saved_at.is_none());
    }

    #[test]
    fn a_policy_that_would_fill_a_segment_is_left_out() {
        let folder = std::env::temp_dir().join(format!("evenkeel-keep-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        for (bytes, has_policy) in [(1 << 20, true), (1 << 10, false)] {
            let keep = used(folder.clone(), bytes);
            assert!(keep.present.is_some(), "a segment is written");
            let segment = File::open(folder::segment(&folder, 0)).expect("a segment");
            let reader = Reader::new(segment).expect("a recording");
            assert_eq!(!reader.head().policy.is_empty(), has_policy, "{bytes} bytes");
            assert_eq!(keep.lacks_policy, !has_policy, "in the log for {bytes} bytes");
        }
        let _ = fs::remove_dir_all(&folder);
    }
}
