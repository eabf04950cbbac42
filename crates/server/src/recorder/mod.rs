//! The flight recorder: every request of the server, written to a file while the server goes on.
//!
//! ```text
//!  worker ─▶ ring ─┐
//!  worker ─▶ ring ─┼─▶ thread (names, order, retries) ─▶ file of `evenkeel record`
//!  worker ─▶ ring ─┘                                  └▶ segments of the last minutes
//! ```
//!
//! A worker looks at one atomic number for each request that ends. While a session is on, it copies the request's figures into a
//! [ring] of its own; it takes no lock and makes no system call for that, and counts what the ring has no room for. All else is
//! done by the recorder's thread, which runs only during a session.

mod again;
mod clients;
mod file;
mod folder;
mod keep;
mod last;
mod names;
mod order;
pub(crate) mod ring;
mod thread;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration as StdDuration, Instant as StdInstant};

use evenkeel_control::Instant;
use evenkeel_control::pool::TenantId;
use evenkeel_flight::{Kind, Outcome};

use crate::clock;
use crate::error::Error;
use crate::snapshot::Snapshot;
use crate::transport::Peer;
use crate::worker::request::ConnKey;
use clients::Clients;
pub use file::Sheet;
pub use folder::shortage;
pub(crate) use keep::Settings;
use keep::Wanted;
use order::{Opened, refused};
pub use order::{Order, Recorded, open_recording};
use ring::{Consumer, Producer};

/// Number of records in the ring of a worker, which the thread drains 50 times a second: enough for 400,000 requests a second.
const RECORDS: usize = 1 << 13;
/// Bytes of the ring of a worker.
pub(crate) const RING_BYTES: u64 = (RECORDS * size_of::<Record>()) as u64;
/// Interval at which the thread drains the rings.
const EVERY: StdDuration = StdDuration::from_millis(20);
/// Longest wait until the thread has written the last block of a file.
const PATIENCE: StdDuration = StdDuration::from_secs(30);

/// The figures of a request that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    /// When the request had arrived; [`Instant::ZERO`] if that was before the session.
    pub(crate) arrived: Instant,
    /// When the request was handed to the device (of a divided request: its first slice): dispatched by the pool, and no longer
    /// waiting for requests to the same bytes.
    pub(crate) admitted: Instant,
    /// When the request ended.
    pub(crate) done: Instant,
    /// Offset of the first byte in the volume.
    pub(crate) offset: u64,
    /// Number of bytes.
    pub(crate) length: u64,
    /// The connection that the request came from.
    pub(crate) key: ConnKey,
    /// The tenant in the pool; `None` for the tenant of the connection.
    pub(crate) tenant: Option<TenantId>,
    /// Id of the volume.
    pub(crate) volume: u32,
    /// Index of the pool.
    pub(crate) pool: u32,
    /// The result.
    pub(crate) outcome: Outcome,
    /// The kind of the request.
    pub(crate) kind: Kind,
    /// True if the request asked for durability (FUA).
    pub(crate) durable: bool,
}

/// The recorder as the workers and the server's owner see it.
#[derive(Default)]
pub(crate) struct Recorder {
    /// Number of the session, 1 or more; 0 while none is on.
    session: AtomicU64,
    /// True if a latency target has become missed since the thread's newest look.
    missed: AtomicBool,
    clients: Mutex<Clients>,
    rings: Mutex<Rings>,
    desk: Mutex<Desk>,
    /// Rung when something at the desk has changed.
    bell: Condvar,
}

/// The rings of the session that is on.
#[derive(Default)]
struct Rings {
    /// Number of sessions so far.
    sessions: u64,
    /// Ends for workers that have not taken theirs.
    producers: Vec<Producer<Record>>,
    /// Ends that the thread has not taken over.
    consumers: Vec<Consumer<Record>>,
}

/// The orders for the thread, and its progress.
#[derive(Default)]
struct Desk {
    running: bool,
    /// True once the server stops.
    closing: bool,
    /// True if the recording under way is to end.
    ending: bool,
    /// True while the file of a recording is made, which a file system may delay for as long as it likes.
    opening: bool,
    order: Option<Opened>,
    /// The recording under way, or the newest one.
    newest: Option<Recorded>,
    /// The ring of the last minutes that is wanted.
    keep: Option<Wanted>,
    /// Number of times that the block of the present segment was asked to be written, and was.
    flushes: (u64, u64),
}

/// The parts of a server that its recorder uses.
pub(crate) trait Host: Send + Sync {
    /// The newest snapshot.
    fn snapshot(&self) -> Arc<Snapshot>;
    /// Number of the newest snapshot.
    fn epoch(&self) -> u64;
    /// Number of workers wanted.
    fn workers(&self) -> usize;
    /// The server's recorder.
    fn recorder(&self) -> &Recorder;
    /// Paths of the program's own files, which no recording replaces.
    fn own_files(&self) -> &[PathBuf];
}

impl Desk {
    fn is_under_way(&self) -> bool {
        self.newest.as_ref().is_some_and(|newest| !newest.ended)
    }

    /// Checks that a recording can begin.
    fn is_free(&self) -> Result<(), Error> {
        if let Some(newest) = self.newest.as_ref().filter(|newest| !newest.ended) {
            let file = newest.file.display();
            return Err(refused(format!(
                "a recording into {file} is under way; end it with `evenkeel record --stop`, or wait for its end"
            )));
        }
        if self.opening {
            return Err(refused("another recording is just starting; repeat the command when it has ended".to_owned()));
        }
        if self.closing {
            return Err(refused("the server is stopping; repeat the command after its restart".to_owned()));
        }
        Ok(())
    }
}

impl Recorder {
    /// Number of the session that is on; 0 if none is.
    #[inline]
    pub(crate) fn session(&self) -> u64 {
        self.session.load(Ordering::Relaxed)
    }

    /// True if requests are recorded.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.session() != 0
    }

    /// The end of a ring for a worker's records of `session`; `None` if another session is on by now.
    #[cold]
    pub(crate) fn producer(&self, session: u64) -> Option<Producer<Record>> {
        let mut rings = self.rings();
        if session == 0 || rings.sessions != session {
            return None;
        }
        if let Some(producer) = rings.producers.pop() {
            return Some(producer);
        }
        // More workers run than when the session began. Without memory for a ring, nearly all records count as lost.
        let (producer, consumer) = ring::ring(RECORDS).or_else(|| ring::ring(1))?;
        rings.consumers.push(consumer);
        Some(producer)
    }

    /// Notes the client and the tenant of a connection that has chosen an export.
    pub(crate) fn attached(&self, key: ConnKey, peer: &Peer, tenant: &Arc<str>) {
        let is_on = self.is_on();
        self.clients.lock().unwrap_or_else(PoisonError::into_inner).attached(key, peer, tenant, is_on);
    }

    /// Notes that a latency target has become missed.
    #[cold]
    pub(crate) fn target_missed(&self) {
        self.missed.store(true, Ordering::Relaxed);
    }

    /// Begins a recording. All requests that arrive after the return of this method are in it.
    ///
    /// # Errors
    /// If a recording is under way, there is no such pool, the file cannot be made, or there is no memory.
    pub(crate) fn begin(&self, shared: &Arc<dyn Host>, order: Order) -> Result<Recorded, Error> {
        {
            let mut desk = self.desk();
            desk.is_free()?;
            desk.opening = true;
        }
        // The desk is not taken meanwhile: a file system that hangs would stop reloads and the stop of the server, too.
        let opened = Opened::new(&**shared, order);
        let mut desk = self.desk();
        desk.opening = false;
        let opened = opened?;
        if let Err(error) = desk.is_free().and_then(|()| self.start(shared, &mut desk)) {
            drop(desk);
            opened.discard();
            return Err(error);
        }
        let begun = Recorded::begun(&opened.order.file);
        desk.ending = false;
        desk.order = Some(Opened { start: clock::now(), ..opened });
        desk.newest = Some(begun.clone());
        self.bell.notify_all();
        Ok(begun)
    }

    /// Ends the recording under way, waits until its file is complete, and returns its figures; those of the newest recording
    /// if none is under way, `None` if there was none.
    pub(crate) fn end(&self) -> Option<Recorded> {
        let mut desk = self.desk();
        desk.ending = desk.is_under_way();
        self.bell.notify_all();
        let under_way = |desk: &mut Desk| desk.is_under_way();
        let (desk, _) = self.bell.wait_timeout_while(desk, PATIENCE, under_way).unwrap_or_else(PoisonError::into_inner);
        desk.newest.clone()
    }

    /// The figures of the recording under way, or of the newest one.
    pub(crate) fn newest(&self) -> Option<Recorded> {
        self.desk().newest.clone()
    }

    /// Sets the ring of the last minutes; `None` ends it. A ring that is there goes on with other settings.
    ///
    /// # Errors
    /// If no thread can be started, or there is no memory.
    pub(crate) fn keep(&self, shared: &Arc<dyn Host>, wanted: Option<Settings>) -> Result<(), Error> {
        let mut desk = self.desk();
        if wanted.is_some() && !desk.closing {
            self.start(shared, &mut desk)?;
        }
        let zero = desk.keep.as_ref().map_or_else(clock::now, |before| before.zero);
        desk.keep = wanted.map(|settings| Wanted { settings, zero });
        self.bell.notify_all();
        Ok(())
    }

    /// Saves the last minutes from the ring of segments in a file.
    ///
    /// # Errors
    /// If no such ring is kept, there is no such pool, or the file cannot be made or written.
    pub(crate) fn last(&self, shared: &Arc<dyn Host>, order: Order) -> Result<Recorded, Error> {
        let mut desk = self.desk();
        let Some(Wanted { settings, zero }) = desk.keep.clone().filter(|_| desk.running) else {
            return Err(refused(
                "the server keeps no requests of the past; set record = { keep = \"5m\", size = \"256MiB\" } in [server] and reload, or record from now on with --for"
                    .to_owned(),
            ));
        };
        // What has ended by now is to be in the files.
        desk.flushes.0 += 1;
        let mine = desk.flushes.0;
        self.bell.notify_all();
        let is_missing = |desk: &mut Desk| desk.running && desk.flushes.1 < mine;
        let (desk, _) =
            self.bell.wait_timeout_while(desk, PATIENCE, is_missing).unwrap_or_else(PoisonError::into_inner);
        drop(desk);
        let opened = Opened::new(&**shared, order)?;
        last::save(&settings.folder, opened, zero)
    }

    /// Ends everything because the server stops; waits until the files are complete, for at most `patience`.
    pub(crate) fn close(&self, patience: StdDuration) {
        let mut desk = self.desk();
        desk.closing = true;
        self.bell.notify_all();
        drop(self.bell.wait_timeout_while(desk, patience, |desk| desk.running).unwrap_or_else(PoisonError::into_inner));
    }

    /// Starts the thread and a session, unless they run.
    fn start(&self, shared: &Arc<dyn Host>, desk: &mut Desk) -> Result<(), Error> {
        if desk.running {
            return Ok(());
        }
        let pairs: Option<Vec<_>> = std::iter::repeat_with(|| ring::ring(RECORDS)).take(shared.workers()).collect();
        let Some(pairs) = pairs else {
            let cure = "raise the limit of memory (LimitDATA= of the service, ulimit -d), or use fewer workers";
            return Err(refused(format!("there is no memory to record requests; {cure}")));
        };
        let (producers, consumers): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let mut rings = self.rings();
        rings.sessions += 1;
        let session = rings.sessions;
        (rings.producers, rings.consumers) = (producers, consumers);
        drop(rings);
        let theirs = Arc::clone(shared);
        let spawned = std::thread::Builder::new().name("evenkeel-record".into()).spawn(move || thread::run(&theirs));
        if let Err(cause) = spawned {
            self.stop_session();
            return Err(Error::System { action: "start a thread for the recorder", cause });
        }
        desk.running = true;
        self.session.store(session, Ordering::Release);
        Ok(())
    }

    /// Ends the session. Workers give their rings back when they notice.
    fn stop_session(&self) {
        self.session.store(0, Ordering::Release);
        let mut rings = self.rings();
        rings.producers.clear();
        rings.consumers.clear();
    }

    fn rings(&self) -> MutexGuard<'_, Rings> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next turn of the thread: [`EVERY`] after `last`, or sooner if it is asked for something.
    fn turn<'a>(&self, desk: MutexGuard<'a, Desk>, last: StdInstant) -> MutexGuard<'a, Desk> {
        let is_idle =
            |desk: &mut Desk| !(desk.closing || desk.ending || desk.order.is_some() || desk.flushes.1 < desk.flushes.0);
        let patience = EVERY.saturating_sub(last.elapsed());
        self.bell.wait_timeout_while(desk, patience, is_idle).unwrap_or_else(PoisonError::into_inner).0
    }
}
