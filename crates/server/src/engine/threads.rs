//! Blocking file operations on threads of their own, a few for each volume.
//!
//! A volume whose device hangs fills its own threads and no others. Threads start
//! when operations wait and end after some idle seconds.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::{FileIo, IoResult};
use crate::volume::Volume;
use crate::worker::mailbox::{Mailbox, Message};

/// Threads for one volume at most: enough to keep an SSD busy with blocking calls.
const MAX_THREADS: usize = 16;
/// Syncs of one volume at the same time: one at work, and one that begins when it ends.
const MAX_SYNCS: usize = 2;
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
    jobs: VecDeque<Job>,
    /// Syncs apart: they wait for each other, and what waits must not take the threads of what could go.
    syncs: VecDeque<Job>,
    syncing: usize,
    threads: usize,
    idle: usize,
}

impl State {
    fn queue(&mut self, is_sync: bool) -> &mut VecDeque<Job> {
        if is_sync { &mut self.syncs } else { &mut self.jobs }
    }

    /// Jobs that a thread could take now.
    fn ready(&self) -> usize {
        self.jobs.len() + self.syncs.len().min(MAX_SYNCS - self.syncing)
    }

    fn next(&mut self) -> Option<Job> {
        if self.syncing < MAX_SYNCS
            && let Some(sync) = self.syncs.pop_front()
        {
            self.syncing += 1;
            return Some(sync);
        }
        self.jobs.pop_front()
    }
}

impl Threads {
    /// Queues a job. Without any thread to do it, it comes back with EAGAIN, untouched.
    pub(crate) fn submit(&self, job: Job) {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_sync = job.is_sync();
        state.queue(is_sync).push_back(job);
        if state.idle >= state.ready() {
            self.shared.work.notify_one();
            return;
        }
        if state.threads >= MAX_THREADS {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let spawned = std::thread::Builder::new().name("evenkeel-io".into()).spawn(move || shared.run());
        match spawned {
            Ok(_) => state.threads += 1,
            // Others will get to it; without any, say so instead of waiting for ever.
            Err(_) if state.threads > 0 => {}
            Err(error) => {
                let job = state.queue(is_sync).pop_back();
                drop(state);
                tracing::error!(%error, "cannot start an I/O thread");
                if let Some(job) = job {
                    job.reply_to.report(Message::IoDone(job.token, IoResult::Code(-libc::EAGAIN)));
                }
            }
        }
    }
}

impl Job {
    fn is_sync(&self) -> bool {
        matches!(self.io, FileIo::Sync { .. })
    }
}

impl Shared {
    fn run(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(job) = state.next() {
                drop(state);
                let is_sync = job.is_sync();
                let Job { io, volume, token, reply_to } = job;
                let result = io.run(&volume);
                drop(volume);
                reply_to.report(Message::IoDone(token, result));
                state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                state.syncing -= usize::from(is_sync);
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

    #[test]
    fn syncs_that_wait_leave_threads_for_reads() {
        let dir = std::env::temp_dir().join(format!("evenkeel-threads-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let how =
            Open { create: Some(1 << 20), read_only: false, direct: false, block: false, patience: Duration::ZERO };
        let (file, size) = File::open(&dir.join("volume.img"), &how).unwrap();
        let volume = Arc::new(Volume::new(0, "test", 0, false, Backend::File(file), size));
        let mailbox = Arc::new(Mailbox::new().unwrap());
        mailbox.open();
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
}
