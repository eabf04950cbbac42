//! Carries out blocking file operations on threads, of which each volume has some of its own.
//!
//! A volume whose device hangs occupies only its own threads. Threads are started when operations wait, and end after some
//! idle seconds. The threads of all volumes together are bounded, too ([`Crew`]), but each volume can have one.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use evenkeel_control::pool::TenantId;

use super::priority::Own;
use super::turns::Turns;
use crate::backend::operation::{FileIo, IoResult, Report, Reports};
use crate::prompt;

/// Largest number of ordinary jobs of one volume that run at a time: enough to keep an SSD busy with blocking calls.
const ORDINARY_JOBS: usize = 16;
/// Largest number of threads of one volume. Jobs for reservations may use all of them: if other tenants have filled a
/// device's queue so that each request takes 30 ms, 2,000 requests per second are 60 in flight.
const MAX_THREADS: usize = 64;
/// Largest number of running jobs of one volume, for each kind of job, in the order in which threads take the kinds: syncs
/// (one that runs, and one that begins when it ends); searches for holes (also bounded over all volumes by
/// [`super::searches`]); jobs for reservations; all other jobs.
const KINDS: [usize; 4] = [2, 1, MAX_THREADS, ORDINARY_JOBS];
/// Largest number of threads of all volumes together, apart from the one that each volume can have: as many as 64 volumes
/// with all their ordinary jobs under way. A thread takes some 32 KiB (its kernel stack and the touched part of its own), so
/// that these take 32 MiB; systemd allows a service 4,915 threads by default.
const MAX_THREADS_OF_ALL: usize = 64 * ORDINARY_JOBS;
/// Index of syncs in [`KINDS`].
const SYNCS: usize = 0;
/// Index of searches for holes in [`KINDS`].
const SEARCHES: usize = 1;
/// Time for which an idle thread waits for a job before it ends.
const IDLE: Duration = Duration::from_secs(5);
/// Replaces [`IDLE`] while there are [`MAX_THREADS_OF_ALL`]: a tenant with thousands of volumes would otherwise keep one thread
/// of each, and use up the threads that the system allows.
const IDLE_OF_MANY: Duration = Duration::from_millis(10);

/// The interface of a volume for its threads.
pub(crate) trait Blocking: Send + Sync + 'static {
    /// Carries an operation of a tenant out on the calling thread.
    fn run(&self, io: FileIo, tenant: TenantId) -> IoResult;

    /// An error if a test injects a failure to start a thread.
    fn may_start_thread(&self) -> io::Result<()>;

    /// Logs that no thread can be started, with the system's error.
    fn has_no_thread(&self, error: &io::Error);
}

/// An operation on a volume, with the address to which its result is reported.
pub(crate) struct Job<V> {
    /// The operation to carry out.
    pub(crate) io: FileIo,
    /// The volume of the operation. This reference keeps the file open until the job is done.
    pub(crate) volume: Arc<V>,
    /// The tenant that the operation is for.
    pub(crate) tenant: TenantId,
    /// Index of the operation in the worker's table, reported with the result.
    pub(crate) token: u32,
    /// Mailbox of the worker that gets the result.
    pub(crate) reply_to: Arc<Reports>,
    /// True if the operation was scheduled for the tenant's reservation.
    pub(crate) reserved: bool,
    /// I/O priority of the operation, see [`super::priority`].
    pub(crate) priority: u16,
}

/// The number of threads of all volumes, and its bound.
struct Crew {
    most: usize,
    threads: AtomicUsize,
}

/// The threads of all volumes of this process.
static ALL: Crew = Crew::of(MAX_THREADS_OF_ALL);

impl Crew {
    const fn of(most: usize) -> Self {
        Self { most, threads: AtomicUsize::new(0) }
    }

    /// Counts one more thread of a volume that has `has` threads; false if the volume may have no more. A volume without a
    /// thread always gets one. Others get one while at least as many are free as the volume has: volumes whose devices hang
    /// cannot take all, and volumes with few threads still get some.
    fn take(&self, has: usize) -> bool {
        let fits = |threads: usize| (has == 0 || threads + has < self.most).then_some(threads + 1);
        self.threads.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    /// Time for which an idle thread waits for a job before it ends.
    fn idle(&self) -> Duration {
        if self.threads.load(Ordering::Relaxed) < self.most { IDLE } else { IDLE_OF_MANY }
    }

    /// Counts a thread that has ended, or that was not started.
    fn give_back(&self) {
        self.threads.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The threads of one volume.
pub(crate) struct Threads<V> {
    shared: Arc<Shared<V>>,
}

struct Shared<V> {
    state: Mutex<State<V>>,
    work: Condvar,
    crew: &'static Crew,
}

struct State<V> {
    /// Waiting jobs by kind. Tenants take turns: a trim does not wait for all that another tenant reads ahead, and admission
    /// control does not throttle searches.
    jobs: [Turns<TenantId, Job<V>>; KINDS.len()],
    /// Number of waiting jobs by kind.
    waiting: [usize; KINDS.len()],
    under_way: [usize; KINDS.len()],
    threads: usize,
    idle: usize,
}

impl<V> Default for Threads<V> {
    fn default() -> Self {
        Self::of(&ALL)
    }
}

impl<V> Threads<V> {
    /// No threads yet; those to come count in `crew`.
    fn of(crew: &'static Crew) -> Self {
        Self { shared: Arc::new(Shared { state: Mutex::new(State::new()), work: Condvar::new(), crew }) }
    }
}

impl<V> State<V> {
    fn new() -> Self {
        Self { jobs: Default::default(), waiting: [0; KINDS.len()], under_way: [0; KINDS.len()], threads: 0, idle: 0 }
    }

    /// Number of further jobs of a kind that may begin now.
    fn room(&self, kind: usize) -> usize {
        KINDS[kind] - self.under_way[kind]
    }

    /// Number of waiting jobs that threads could begin now.
    fn ready(&self) -> usize {
        (0..KINDS.len()).map(|kind| self.waiting[kind].min(self.room(kind))).sum()
    }

    fn push(&mut self, job: Job<V>) {
        let kind = job.kind();
        self.waiting[kind] += 1;
        self.jobs[kind].push(job.tenant, job);
    }

    fn next(&mut self) -> Option<Job<V>> {
        let kind = (0..KINDS.len()).find(|&kind| self.room(kind) > 0 && !self.jobs[kind].is_empty())?;
        self.under_way[kind] += 1;
        self.waiting[kind] -= 1;
        self.jobs[kind].pop()
    }
}

impl<V: Blocking> Threads<V> {
    /// Queues a job, and starts a thread for it if needed. If the volume has no thread and none can be started, EAGAIN is
    /// reported as the job's result.
    pub(crate) fn submit(&self, job: Job<V>) {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        let kind = job.kind();
        state.push(job);
        if state.idle >= state.ready() {
            self.shared.work.notify_one();
            return;
        }
        if state.threads >= MAX_THREADS {
            return;
        }
        let Some(volume) = state.jobs[kind].front().map(|job| Arc::clone(&job.volume)) else { return };
        // The threads that the volume has will get to the job.
        if !self.shared.crew.take(state.threads) {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let spawn = || std::thread::Builder::new().name("evenkeel-io".into()).spawn(move || shared.run());
        match volume.may_start_thread().and_then(|()| spawn()) {
            Ok(_) => state.threads += 1,
            // Others will get to it; without any, say so instead of waiting for ever.
            Err(_) if state.threads > 0 => self.shared.crew.give_back(),
            Err(error) => {
                self.shared.crew.give_back();
                // It is the only one: without a thread none can wait.
                let job = state.jobs[kind].pop();
                state.waiting[kind] -= usize::from(job.is_some());
                drop(state);
                volume.has_no_thread(&error);
                if let Some(job) = job {
                    job.reply_to.report(Report::Done(job.token, IoResult::Code(-libc::EAGAIN)));
                }
            }
        }
    }
}

impl<V> Job<V> {
    /// Index of the job's kind in [`KINDS`].
    fn kind(&self) -> usize {
        match self.io {
            FileIo::Sync { .. } => SYNCS,
            FileIo::Extents { .. } => SEARCHES,
            _ => {
                if self.reserved {
                    2
                } else {
                    3
                }
            }
        }
    }
}

impl<V: Blocking> Shared<V> {
    fn run(&self) {
        prompt::roam();
        let mut own = Own::default();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(job) = state.next() {
                drop(state);
                let kind = job.kind();
                let Job { io, volume, tenant, token, reply_to, priority, .. } = job;
                own.become_of(priority);
                let result = volume.run(io, tenant);
                drop(volume);
                reply_to.report(Report::Done(token, result));
                state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                state.under_way[kind] -= 1;
                continue;
            }
            state.idle += 1;
            let patience = self.crew.idle();
            let (woken, timeout) = self.work.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            if timeout.timed_out() && state.ready() == 0 {
                state.threads -= 1;
                self.crew.give_back();
                return;
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use evenkeel_control::Instant;
    use evenkeel_control::pool::Pool;
    use evenkeel_policy::config;

    use super::*;
    use crate::backend::Backend;
    use crate::backend::file::{File, Open};
    use crate::volume::Volume;

    /// A temporary folder with a volume on a file, and the mailbox for results.
    fn stage(name: &str) -> (std::path::PathBuf, Arc<Volume>, Arc<Reports>) {
        let dir = std::env::temp_dir().join(format!("evenkeel-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let how =
            Open { create: Some(1 << 20), read_only: false, direct: false, block: false, patience: Duration::ZERO };
        let (file, size) = File::open(&dir.join("volume.img"), &how).unwrap();
        let volume = Arc::new(Volume::new(0, "test", 0, false, Backend::File(file), size));
        let mailbox = Arc::new(Reports::new().unwrap());
        mailbox.open();
        (dir, volume, mailbox)
    }

    fn ordinary(io: FileIo, token: u32, volume: &Arc<Volume>, mailbox: &Arc<Reports>) -> Job<Volume> {
        let (volume, reply_to) = (Arc::clone(volume), Arc::clone(mailbox));
        Job { io, volume, tenant: tenants(1)[0], token, reply_to, reserved: false, priority: 0 }
    }

    /// Some tenants of one pool.
    pub(crate) fn tenants(count: usize) -> Vec<TenantId> {
        let mut pool = Pool::<()>::new((&config::Pool::default()).into(), Instant::ZERO, 1);
        (0..count).map(|_| pool.join(Instant::ZERO, Default::default())).collect()
    }

    #[test]
    fn syncs_that_wait_leave_threads_for_reads() {
        let (dir, volume, mailbox) = stage("syncs");
        let submit = |token, io| {
            let job = ordinary(io, token, &volume, &mailbox);
            volume.threads.submit(job);
        };
        let done = |count: usize| {
            let (mut all, mut mail) = (Vec::new(), Vec::new());
            let until = std::time::Instant::now() + Duration::from_secs(30);
            while all.len() < count {
                mailbox.take(&mut mail);
                for message in mail.drain(..) {
                    let Report::Done(token, IoResult::Code(code)) = message else { panic!("another report") };
                    assert!(code >= 0, "{code}");
                    all.push(token);
                }
                assert!(std::time::Instant::now() < until, "only {all:?} are done");
                std::thread::sleep(Duration::from_millis(1));
            }
            all
        };
        const SYNCS: u32 = 3 * MAX_THREADS as u32;
        let hangs = volume.hang_syncs();
        (0..SYNCS).for_each(|token| submit(token, FileIo::Sync { turn: volume.ask_for_sync() }));
        let mut byte = 0u8;
        submit(SYNCS, FileIo::Read { ptr: &raw mut byte, len: 1, offset: 0 });
        assert_eq!(done(1), [SYNCS]);
        drop(hangs);
        assert_eq!(done(SYNCS as usize).len(), SYNCS as usize);
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn all_volumes_together_have_a_bound_on_threads_and_each_can_have_one() {
        const MOST: usize = 100;
        let crew = Crew::of(MOST);
        let mut volumes = vec![0; 20];
        // Each takes as many as it can get, one after the other, as volumes whose devices hang.
        for threads in &mut volumes {
            while *threads < MAX_THREADS && crew.take(*threads) {
                *threads += 1;
            }
        }
        assert_eq!(volumes[0], MOST / 2, "it leaves as many as it has");
        assert!(volumes.iter().all(|threads| *threads >= 1), "{volumes:?}");
        assert!(volumes[..4].is_sorted_by(|one, next| one > next), "{volumes:?}");
        let all: usize = volumes.iter().sum();
        assert!(all < MOST + volumes.len(), "{all} threads");
        (0..all).for_each(|_| crew.give_back());
        assert_eq!(crew.threads.into_inner(), 0);
        const { assert!(MAX_THREADS_OF_ALL >= 2 * MAX_THREADS, "one volume alone can have all that it may have") };
    }

    #[test]
    fn a_volume_with_a_thread_does_without_more_where_there_are_no_more() {
        static NONE: Crew = Crew::of(0);
        let (dir, volume, mailbox) = stage("crew");
        let threads = Threads::of(&NONE);
        let hangs = volume.hang_syncs();
        threads.submit(ordinary(FileIo::Sync { turn: volume.ask_for_sync() }, 0, &volume, &mailbox));
        let mut byte = 0u8;
        threads.submit(ordinary(FileIo::Read { ptr: &raw mut byte, len: 1, offset: 0 }, 1, &volume, &mailbox));
        let count = threads.shared.state.lock().unwrap().threads;
        assert_eq!((count, NONE.threads.load(Ordering::Relaxed)), (1, 1));
        drop(hangs);
        let (mut done, mut mail) = (Vec::new(), Vec::new());
        let until = std::time::Instant::now() + Duration::from_secs(30);
        while done.len() < 2 {
            mailbox.take(&mut mail);
            done.extend(mail.drain(..).filter_map(|report| match report {
                Report::Done(token, _) => Some(token),
                Report::Start(_) => None,
            }));
            assert!(std::time::Instant::now() < until, "only {done:?} are done");
            std::thread::yield_now();
        }
        assert_eq!(done, [0, 1], "the one thread has carried out both");
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn an_idle_thread_ends_soon_where_there_are_as_many_as_there_may_be() {
        let crew = Crew::of(2);
        assert!(crew.take(0) && crew.idle() == IDLE);
        // As many volumes, each of which can have one.
        assert!(crew.take(0) && crew.take(0) && crew.idle() == IDLE_OF_MANY);
        (0..2).for_each(|_| crew.give_back());
        assert_eq!(crew.idle(), IDLE);

        static ONE: Crew = Crew::of(1);
        let (dir, volume, mailbox) = stage("idle");
        let threads = Threads::of(&ONE);
        let begun = std::time::Instant::now();
        threads.submit(ordinary(FileIo::Cache { offset: 0, len: 1 }, 0, &volume, &mailbox));
        while ONE.threads.load(Ordering::Relaxed) > 0 {
            assert!(begun.elapsed() < IDLE - Duration::from_secs(1), "it still waits for a job");
            std::thread::yield_now();
        }
        assert_eq!(threads.shared.state.lock().unwrap().threads, 0);
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn one_search_for_holes_is_under_way_at_a_time() {
        let (dir, volume, mailbox) = stage("searches");
        let mut state = State::new();
        for token in 0..4 {
            let io = match token {
                3 => FileIo::Cache { offset: 0, len: 1 },
                _ => FileIo::Extents { offset: 0, len: 1 << 20, max: 1 },
            };
            state.push(ordinary(io, token, &volume, &mailbox));
        }
        let next = |state: &mut State<Volume>| state.next().map(|job| job.token);
        assert_eq!(state.ready(), 2);
        assert_eq!((next(&mut state), next(&mut state), next(&mut state)), (Some(0), Some(3), None));
        state.under_way[1] -= 1;
        assert_eq!((state.ready(), next(&mut state), next(&mut state)), (1, Some(1), None));
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn tenants_search_for_holes_in_turn() {
        let (dir, volume, mailbox) = stage("turns");
        let tenants = tenants(3);
        let mut state = State::new();
        let push = |state: &mut State<Volume>, token, tenant: usize| {
            let io = FileIo::Extents { offset: 0, len: 1 << 20, max: 1 };
            state.push(Job { tenant: tenants[tenant], ..ordinary(io, token, &volume, &mailbox) });
        };
        let next = |state: &mut State<Volume>| {
            state.under_way[SEARCHES] = 0;
            state.next().map(|job| job.token)
        };
        (0..1_000).for_each(|token| push(&mut state, token, 0));
        assert_eq!((next(&mut state), next(&mut state)), (Some(0), Some(1)));
        // One that comes waits for one search of each other tenant, however many there are.
        (2_000..2_002).for_each(|token| push(&mut state, token, 1));
        push(&mut state, 3_000, 2);
        let began: Vec<_> = (0..6).filter_map(|_| next(&mut state)).collect();
        assert_eq!(began, [2, 2_000, 3_000, 3, 2_001, 4]);
        push(&mut state, 2_002, 1);
        assert_eq!((next(&mut state), next(&mut state)), (Some(5), Some(2_002)));
        let rest: Vec<_> = std::iter::from_fn(|| next(&mut state)).collect();
        assert!(rest.iter().copied().eq(6..1_000) && state.jobs[SEARCHES].is_empty() && state.ready() == 0);
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_trim_does_not_wait_for_all_that_another_tenant_reads_ahead() {
        let (dir, volume, mailbox) = stage("ahead");
        let tenants = tenants(3);
        for reserved in [false, true] {
            let mut state = State::new();
            let push = |state: &mut State<Volume>, token, tenant: usize, io| {
                state.push(Job { tenant: tenants[tenant], reserved, ..ordinary(io, token, &volume, &mailbox) });
            };
            let kind = if reserved { 2 } else { 3 };
            (0..1_000).for_each(|token| push(&mut state, token, 0, FileIo::Cache { offset: 0, len: 1 }));
            assert_eq!(state.ready(), KINDS[kind], "each may have a thread, although they are of one tenant");
            let began: Vec<_> = std::iter::from_fn(|| state.next()).map(|job| job.token as usize).collect();
            assert!(began.iter().copied().eq(0..KINDS[kind]));
            push(&mut state, 2_000, 1, FileIo::Trim { offset: 0, len: 1 });
            push(&mut state, 2_001, 1, FileIo::Trim { offset: 0, len: 1 });
            push(&mut state, 3_000, 2, FileIo::Trim { offset: 0, len: 1 });
            let mut next = || {
                state.under_way[kind] -= 1;
                state.next().map(|job| job.token as usize)
            };
            let began: Vec<_> = (0..6).filter_map(|_| next()).collect();
            let first = KINDS[kind];
            assert_eq!(began, [first, 2_000, 3_000, first + 1, 2_001, first + 2]);
            assert!(std::iter::from_fn(next).eq(first + 3..1_000), "each once, in the order of its tenant");
            assert!(state.jobs.iter().all(Turns::is_empty) && state.waiting == [0; KINDS.len()]);
        }
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn what_a_reservation_is_owed_overtakes_the_rest_and_has_threads_beyond_theirs() {
        let (dir, volume, mailbox) = stage("reserved");
        let mut state = State::new();
        let last = ORDINARY_JOBS as u32 + 1;
        for token in 0..=last {
            let io = FileIo::Cache { offset: 0, len: 1 };
            state.push(Job { reserved: token == last, ..ordinary(io, token, &volume, &mailbox) });
        }
        assert_eq!(state.ready(), ORDINARY_JOBS + 1);
        let began: Vec<_> = std::iter::from_fn(|| state.next()).map(|job| job.token).collect();
        let expected: Vec<_> = std::iter::once(last).chain(0..ORDINARY_JOBS as u32).collect();
        assert_eq!((began, state.ready()), (expected, 0), "one ordinary job waits");
        std::fs::remove_dir_all(dir).unwrap();
    }
}
