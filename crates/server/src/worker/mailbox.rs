//! How other threads reach a worker.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::connection::{Completion, ConnKey, Connection};
use super::transport::{Peer, Transport};
use crate::engine::IoResult;

/// What a worker is told.
pub(crate) enum Message {
    /// A new connection is yours.
    Accepted(Transport, Peer, ConnKey),
    /// A connection from another worker is yours, requests in flight and all.
    Adopt(Box<Connection>),
    /// A request of one of your connections is done.
    Completed(Box<Completion>),
    /// An operation you started on a thread or a modelled device is done.
    IoDone(u32, IoResult),
    /// What one of your operations waited for is done: start it.
    Start(u32),
    /// Hand this connection to another worker.
    Move(ConnKey, usize),
    /// Pools, volumes or tenants have changed.
    Refresh,
    /// Accept and read nothing more; end when all is answered.
    Drain,
    /// End now.
    Stop,
}

/// A worker's queue of messages and the descriptor that wakes it.
pub(crate) struct Mailbox {
    queue: Mutex<Vec<Message>>,
    /// Set while a wake-up is under way, so that a burst of messages costs one system call.
    woken: AtomicBool,
    event: OwnedFd,
}

impl Mailbox {
    /// An empty mailbox.
    pub(crate) fn new() -> rustix::io::Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        Ok(Self {
            queue: Mutex::new(Vec::new()),
            woken: AtomicBool::new(false),
            event: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
        })
    }

    /// Leaves one message and wakes the worker.
    pub(crate) fn post(&self, message: Message) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push(message);
        self.wake();
    }

    /// Leaves all messages, in order, under one lock and one wake-up.
    pub(crate) fn post_all(&self, messages: &mut Vec<Message>) {
        if messages.is_empty() {
            return;
        }
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).append(messages);
        self.wake();
    }

    fn wake(&self) {
        if !self.woken.swap(true, Ordering::SeqCst) {
            // Cannot fail in a way that matters: a full counter wakes just as well.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Takes everything out into `into`, which must be empty. Owner only.
    pub(crate) fn take(&self, into: &mut Vec<Message>) {
        debug_assert!(into.is_empty());
        // In this order: a wake-up that is consumed here stands for messages that are taken below,
        // and one for messages that come later is still to be sent.
        let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
        self.woken.store(false, Ordering::SeqCst);
        std::mem::swap(&mut *self.queue.lock().unwrap_or_else(PoisonError::into_inner), into);
    }

    /// Readable when there are messages.
    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
