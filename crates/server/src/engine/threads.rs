//! Blocking file operations on threads of their own, a few for each volume.
//!
//! A volume whose device hangs fills its own threads and no others. Threads start
//! when operations wait and end after some idle seconds.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::{FileIo, IoResult};
use crate::faults::Call;
use crate::volume::Volume;
use crate::worker::mailbox::{Mailbox, Message};

/// Threads for one volume at most: enough to keep an SSD busy with blocking calls.
const MAX_THREADS: usize = 16;
/// How many of a kind may be under way for one volume that would keep others waiting if it took all threads: syncs, one at work
/// and one that begins when it ends; searches for holes, which take processor time and not the device's.
const APART: [usize; 2] = [2, 1];
/// How long a thread waits for work before it ends.
const IDLE: Duration = Duration::from_secs(5);

/// An operation with the address its result goes to.
pub(crate) struct Job {
    /// What to do.
    pub(crate) io: FileIo,
    /// On what. Keeps the file open until the job is done.
    pub(crate) volume: Arc<Volume>,
    /// Entry in the worker's table of operations.
    pub(crate) token: u32,
    /// The worker.
    pub(crate) reply_to: Arc<Mailbox>,
}

/// The threads of one volume.
#[derive(Default)]
pub(crate) struct Threads {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    /// Jobs, those of [`APART`] apart.
    jobs: VecDeque<Job>,
    apart: [VecDeque<Job>; APART.len()],
    /// Of [`APART`], under way.
    under_way: [usize; APART.len()],
    threads: usize,
    idle: usize,
}

impl State {
    fn queue(&mut self, apart: Option<usize>) -> &mut VecDeque<Job> {
        match apart {
            Some(kind) => &mut self.apart[kind],
            None => &mut self.jobs,
        }
    }

    /// How many of a kind may begin.
    fn room(&self, kind: usize) -> usize {
        APART[kind] - self.under_way[kind]
    }

    /// Jobs that a thread could take now.
    fn ready(&self) -> usize {
        let apart = |kind: usize| self.apart[kind].len().min(self.room(kind));
        self.jobs.len() + (0..APART.len()).map(apart).sum::<usize>()
    }

    fn next(&mut self) -> Option<Job> {
        for kind in 0..APART.len() {
            if self.room(kind) > 0
                && let Some(job) = self.apart[kind].pop_front()
            {
                self.under_way[kind] += 1;
                return Some(job);
            }
        }
        self.jobs.pop_front()
    }
}

impl Threads {
    /// Queues a job. Without any thread to do it, it comes back with EAGAIN, untouched.
    pub(crate) fn submit(&self, job: Job) {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        let apart = job.apart();
        state.queue(apart).push_back(job);
        if state.idle >= state.ready() {
            self.shared.work.notify_one();
            return;
        }
        if state.threads >= MAX_THREADS {
            return;
        }
        let Some(volume) = state.queue(apart).back().map(|job| Arc::clone(&job.volume)) else { return };
        let shared = Arc::clone(&self.shared);
        let spawn = || std::thread::Builder::new().name("evenkeel-io".into()).spawn(move || shared.run());
        match volume.faults().check(Call::Clone).map_err(io::Error::from).and_then(|()| spawn()) {
            Ok(_) => state.threads += 1,
            // Others will get to it; without any, say so instead of waiting for ever.
            Err(_) if state.threads > 0 => {}
            Err(error) => {
                let job = state.queue(apart).pop_back();
                drop(state);
                if let Some(more) = volume.count_failure("start of a thread", &error) {
                    tracing::error!(volume = volume.name, %error, not_logged = more, "cannot start an I/O thread; what waits for one is tried again for 5 s. Raise the limit of threads (TasksMax= of the service, ulimit -u)");
                }
                if let Some(job) = job {
                    job.reply_to.report(Message::IoDone(job.token, IoResult::Code(-libc::EAGAIN)));
                }
            }
        }
    }
}

impl Job {
    /// Its kind of [`APART`].
    fn apart(&self) -> Option<usize> {
        match self.io {
            FileIo::Sync { .. } => Some(0),
            FileIo::Extents { .. } => Some(1),
            _ => None,
        }
    }
}

impl Shared {
    fn run(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(job) = state.next() {
                drop(state);
                let apart = job.apart();
                let Job { io, volume, token, reply_to } = job;
                let result = io.run(&volume);
                drop(volume);
                reply_to.report(Message::IoDone(token, result));
                state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(kind) = apart {
                    state.under_way[kind] -= 1;
                }
                continue;
            }
            state.idle += 1;
            let (woken, timeout) = self.work.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            if timeout.timed_out() && state.ready() == 0 {
                state.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Backend;
    use crate::backend::file::{File, Open};

    /// A volume in a folder, and where its results go.
    fn stage(name: &str) -> (std::path::PathBuf, Arc<Volume>, Arc<Mailbox>) {
        let dir = std::env::temp_dir().join(format!("evenkeel-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let how =
            Open { create: Some(1 << 20), read_only: false, direct: false, block: false, patience: Duration::ZERO };
        let (file, size) = File::open(&dir.join("volume.img"), &how).unwrap();
        let volume = Arc::new(Volume::new(0, "test", 0, false, Backend::File(file), size));
        let mailbox = Arc::new(Mailbox::new().unwrap());
        mailbox.open();
        (dir, volume, mailbox)
    }

    #[test]
    fn syncs_that_wait_leave_threads_for_reads() {
        let (dir, volume, mailbox) = stage("syncs");
        let submit = |token, io| {
            let job = Job { io, volume: Arc::clone(&volume), token, reply_to: Arc::clone(&mailbox) };
            volume.threads.submit(job);
        };
        let done = |count: usize| {
            let (mut all, mut mail) = (Vec::new(), Vec::new());
            let until = std::time::Instant::now() + Duration::from_secs(30);
            while all.len() < count {
                mailbox.take(&mut mail);
                for message in mail.drain(..) {
                    let Message::IoDone(token, IoResult::Code(code)) = message else { panic!("other mail") };
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
    fn one_search_for_holes_is_under_way_at_a_time() {
        let (dir, volume, mailbox) = stage("searches");
        let mut state = State::default();
        for token in 0..4 {
            let io = match token {
                3 => FileIo::Cache { offset: 0, len: 1 },
                _ => FileIo::Extents { offset: 0, len: 1 << 20, max: 1 },
            };
            let job = Job { io, volume: Arc::clone(&volume), token, reply_to: Arc::clone(&mailbox) };
            state.queue(job.apart()).push_back(job);
        }
        let next = |state: &mut State| state.next().map(|job| job.token);
        assert_eq!(state.ready(), 2);
        assert_eq!((next(&mut state), next(&mut state), next(&mut state)), (Some(0), Some(3), None));
        state.under_way[1] -= 1;
        assert_eq!((state.ready(), next(&mut state), next(&mut state)), (1, Some(1), None));
        std::fs::remove_dir_all(dir).unwrap();
    }
}
