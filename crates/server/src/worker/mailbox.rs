//! How other threads reach a worker, or another thread that waits with epoll.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use evenkeel_nbd::wire::Errno;

use super::connection::{ConnKey, Connection, Output, Request};
use super::transport::{Peer, Transport};
use crate::engine::IoResult;
use crate::faults::{Call, Faults};
use crate::handshakes::{Place, Ticket};

/// A message to a worker.
pub(crate) enum Message {
    /// A new connection is yours.
    Accepted(Transport, Peer, ConnKey, Ticket, Place),
    /// A connection from another worker is yours, requests in flight and all.
    Adopt(Box<Connection>),
    /// A request of one of your connections is done, with this result.
    Completed(Box<Request>, Result<Output, Errno>),
    /// An operation you started on a thread or a modelled device is done.
    IoDone(u32, IoResult),
    /// What one of your operations waited for is done: start it.
    Start(u32),
    /// Hand this connection to another worker.
    Move(ConnKey, usize),
    /// Pools, volumes or tenants have changed.
    Refresh,
    /// A worker has ended that may have been the one to look at a pool next: look at all of them.
    Visit,
    /// There are fewer workers from now on: give every connection away, and end when nothing of yours is left.
    Leave,
    /// There are more again: stay.
    Stay,
    /// Accept and read nothing more; end when all is answered.
    Drain,
    /// End now.
    Stop,
}

/// A thread's queue of messages and the descriptor that wakes it.
pub(crate) struct Mailbox<M = Message> {
    queue: Mutex<Queue<M>>,
    /// Set while a wake-up is under way, so that a burst of messages costs one system call.
    woken: AtomicBool,
    event: OwnedFd,
    faults: Faults,
}

struct Queue<M> {
    messages: Vec<M>,
    /// Whether its worker still reads it.
    open: bool,
}

impl<M> Mailbox<M> {
    /// An empty mailbox, which no thread reads yet.
    pub(crate) fn new() -> rustix::io::Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        Ok(Self {
            queue: Mutex::new(Queue { messages: Vec::new(), open: false }),
            woken: AtomicBool::new(false),
            event: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            faults: Faults::NONE,
        })
    }

    /// The same with what a test lets fail.
    pub(crate) fn with(self, faults: Faults) -> Self {
        Self { faults, ..self }
    }

    fn queue(&self) -> MutexGuard<'_, Queue<M>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its thread reads it from now on.
    pub(crate) fn open(&self) {
        self.queue().open = true;
    }

    /// Its worker ends, unless there is a message for it. A later sender gets the message back.
    pub(crate) fn close_if_empty(&self) -> bool {
        let mut queue = self.queue();
        queue.open &= !queue.messages.is_empty();
        !queue.open
    }

    /// Whether its worker has ended.
    pub(crate) fn is_closed(&self) -> bool {
        !self.queue().open
    }

    /// Leaves one message and wakes the worker.
    ///
    /// # Errors
    /// The message, if its reader has ended.
    pub(crate) fn post(&self, message: M) -> Result<(), M> {
        let mut queue = self.queue();
        if !queue.open {
            return Err(message);
        }
        queue.messages.push(message);
        drop(queue);
        self.wake();
        Ok(())
    }

    /// Leaves all messages, in order, under one lock and one wake-up; none if their reader has ended.
    pub(crate) fn post_all(&self, messages: &mut Vec<M>) {
        let mut queue = self.queue();
        if queue.open {
            queue.messages.append(messages);
            drop(queue);
            self.wake();
        }
    }

    /// Tells the worker that something it waits for is done. It does not end before.
    pub(crate) fn report(&self, message: M) {
        let kept = self.post(message);
        debug_assert!(kept.is_ok(), "a worker has ended that waits for an operation");
    }

    fn wake(&self) {
        if !self.woken.swap(true, Ordering::SeqCst) {
            let write = || rustix::io::write(&self.event, &1u64.to_ne_bytes());
            if self.faults.check(Call::Wake).and_then(|()| write()).is_err() {
                // The next message wakes, and a worker looks once a second.
                self.woken.store(false, Ordering::SeqCst);
            }
        }
    }

    /// Takes everything out into `into`, which must be empty. Owner only.
    pub(crate) fn take(&self, into: &mut Vec<M>) {
        debug_assert!(into.is_empty());
        // In this order: a wake-up that is consumed here stands for messages that are taken below,
        // and one for messages that come later is still to be sent.
        let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
        self.woken.store(false, Ordering::SeqCst);
        std::mem::swap(&mut self.queue().messages, into);
    }

    /// Readable when there are messages.
    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
