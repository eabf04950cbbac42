//! Drives a device model of `evenkeel-model` in real time.
//!
//! The model is a state machine without a clock. A thread for each device waits for the model's next event, and reports each
//! completed operation to the worker that started it.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use evenkeel_control::Instant;
use evenkeel_model::Io;
use evenkeel_model::store::{Store, StoreParams};

use super::operation::{IoResult, Report, Reports};
use crate::clock;
use crate::prompt;

/// A modelled device that the volumes of a pool share.
pub(crate) struct Device {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    store: Store,
    /// By number of the operation: the mailbox of the worker that waits for it, and the operation's token.
    waiting: HashMap<u64, (Arc<Reports>, u32)>,
    next_id: u64,
    /// Time at which the thread will check the model for its next event.
    wakes_at: Instant,
    stop: bool,
}

impl Device {
    /// Starts a modelled device; `seed` seeds the random jitter of its latencies.
    pub(crate) fn start(params: StoreParams, seed: u64) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                store: Store::new(params, seed),
                waiting: HashMap::new(),
                next_id: 0,
                wakes_at: Instant::FAR_FUTURE,
                stop: false,
            }),
            changed: Condvar::new(),
        });
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("evenkeel-emulate".into()).spawn(move || for_thread.run())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Starts an operation on the device; its completion is reported to `reply_to` with `token`.
    pub(crate) fn submit(&self, io: Io, token: u32, reply_to: &Arc<Reports>) {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        let id = state.next_id;
        state.next_id += 1;
        state.waiting.insert(id, (Arc::clone(reply_to), token));
        state.store.submit(clock::now(), id, io);
        if state.store.next_event() < state.wakes_at {
            self.shared.changed.notify_one();
        }
    }

    /// Changes the parameters of the running device.
    pub(crate) fn set_params(&self, params: StoreParams) {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.store.set_params(clock::now(), params);
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn run(&self) {
        prompt::keep_time();
        let mut done: Vec<(Arc<Reports>, u32)> = Vec::new();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while !state.stop {
            let now = clock::now();
            while let Some(id) = state.store.poll(now) {
                done.extend(state.waiting.remove(&id));
            }
            if !done.is_empty() {
                drop(state);
                for (mailbox, token) in done.drain(..) {
                    mailbox.report(Report::Done(token, IoResult::Code(0)));
                }
                state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let next = state.store.next_event();
            state.wakes_at = next;
            let wait = next.since(now);
            state = if next == Instant::FAR_FUTURE {
                self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
            } else {
                self.changed.wait_timeout(state, wait.into()).unwrap_or_else(PoisonError::into_inner).0
            };
            // While the thread is awake it needs no waking.
            state.wakes_at = Instant::ZERO;
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner).stop = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
