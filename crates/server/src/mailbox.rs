//! How other threads reach a worker, or another thread that waits with epoll.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::faults::{Call, Faults};

/// A thread's queue of messages and the bell that wakes it.
pub(crate) struct Mailbox<M> {
    queue: Mutex<Queue<M>>,
    bell: Arc<Bell>,
}

struct Queue<M> {
    messages: Vec<M>,
    /// True while a thread reads the mailbox.
    open: bool,
}

/// The descriptor that wakes a thread.
struct Bell {
    /// Set while a wake-up is under way, so that a burst of messages costs one system call.
    woken: AtomicBool,
    event: OwnedFd,
    faults: Faults,
}

impl<M> Mailbox<M> {
    /// An empty mailbox, which no thread reads yet.
    pub(crate) fn new() -> rustix::io::Result<Self> {
        Self::with(Faults::NONE)
    }

    /// As [`Self::new`], with failures that a test injects.
    pub(crate) fn with(faults: Faults) -> rustix::io::Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self::on(Arc::new(Bell { woken: AtomicBool::new(false), event, faults })))
    }

    fn on(bell: Arc<Bell>) -> Self {
        Self { queue: Mutex::new(Queue { messages: Vec::new(), open: false }), bell }
    }

    /// An empty mailbox for messages of another type, which wakes the same thread.
    pub(crate) fn beside<N>(&self) -> Mailbox<N> {
        Mailbox::on(Arc::clone(&self.bell))
    }

    fn queue(&self) -> MutexGuard<'_, Queue<M>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on the mailbox is read by its thread: messages can be posted.
    pub(crate) fn open(&self) {
        self.queue().open = true;
    }

    /// Closes the mailbox of a worker that ends, unless it holds messages; true if closed. Senders then get messages back.
    pub(crate) fn close_if_empty(&self) -> bool {
        let mut queue = self.queue();
        queue.open &= !queue.messages.is_empty();
        !queue.open
    }

    /// True if no thread reads the mailbox.
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
        self.bell.ring();
        Ok(())
    }

    /// Leaves all messages, in order, under one lock and one wake-up; none if their reader has ended.
    pub(crate) fn post_all(&self, messages: &mut Vec<M>) {
        let mut queue = self.queue();
        if queue.open {
            queue.messages.append(messages);
            drop(queue);
            self.bell.ring();
        }
    }

    /// Tells the worker that an operation it waits for is done; a worker does not end while it waits for one.
    pub(crate) fn report(&self, message: M) {
        let kept = self.post(message);
        debug_assert!(kept.is_ok(), "a worker has ended that waits for an operation");
    }

    /// Moves all messages to `into`, which must be empty. For the owner only, which then empties those [beside](Self::beside) it.
    pub(crate) fn take(&self, into: &mut Vec<M>) {
        // In this order: a wake-up that is consumed here stands for messages that are taken below,
        // and one for messages that come later is still to be sent.
        let _ = rustix::io::read(&self.bell.event, &mut [0u8; 8]);
        self.bell.woken.store(false, Ordering::SeqCst);
        self.take_beside(into);
    }

    /// As [`Self::take`], after another mailbox with the same bell was emptied: leaves the bell alone.
    pub(crate) fn take_beside(&self, into: &mut Vec<M>) {
        debug_assert!(into.is_empty());
        std::mem::swap(&mut self.queue().messages, into);
    }

    /// A descriptor that is readable when there are messages.
    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.bell.event.as_fd()
    }
}

impl Bell {
    fn ring(&self) {
        if !self.woken.swap(true, Ordering::SeqCst) {
            let write = || rustix::io::write(&self.event, &1u64.to_ne_bytes());
            if self.faults.check(Call::Wake).and_then(|()| write()).is_err() {
                // The next message wakes, and a worker looks once a second.
                self.woken.store(false, Ordering::SeqCst);
            }
        }
    }
}
