//! Blocking file operations on threads of their own, a few for each volume.
//!
//! A volume whose device hangs fills its own threads and no others. Threads start
//! when operations wait and end after some idle seconds.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::FileIo;
use crate::volume::Volume;
use crate::worker::mailbox::{Mailbox, Message};

/// Threads for one volume at most: enough to keep an SSD busy with blocking calls.
const MAX_THREADS: usize = 16;
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
    threads: usize,
    idle: usize,
}

impl Threads {
    /// Queues a job.
    pub(crate) fn submit(&self, job: Job) {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.jobs.push_back(job);
        if state.idle >= state.jobs.len() {
            self.shared.work.notify_one();
        } else if state.threads < MAX_THREADS {
            let shared = Arc::clone(&self.shared);
            let spawned = std::thread::Builder::new().name("evenkeel-io".into()).spawn(move || shared.run());
            match spawned {
                Ok(_) => state.threads += 1,
                // Others will get to it; without any, say so instead of waiting for ever.
                Err(_) if state.threads > 0 => {}
                Err(error) => {
                    tracing::error!(%error, "cannot start an I/O thread");
                    if let Some(job) = state.jobs.pop_back() {
                        job.reply_to.post(Message::IoDone(job.token, super::IoResult::Code(-libc::EAGAIN)));
                    }
                }
            }
        }
    }
}

impl Shared {
    fn run(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                let Job { io, volume, token, reply_to } = job;
                let result = io.run(&volume);
                drop(volume);
                reply_to.post(Message::IoDone(token, result));
                state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.idle += 1;
            let (woken, timeout) = self.work.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            if timeout.timed_out() && state.jobs.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}
