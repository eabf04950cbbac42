//! Mailboxes, by which other threads send messages to a worker or to another thread that waits with epoll.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::faults::{Call, Faults};

/// A queue of messages to one thread, and the bell that wakes this thread.
pub(crate) struct Mailbox<M> {
    queue: Mutex<Queue<M>>,
    bell: Arc<Bell>,
}

struct Queue<M> {
    messages: Vec<M>,
    /// True while a thread reads the mailbox, so that messages may be posted.
    open: bool,
}

/// The eventfd that wakes a mailbox's thread.
struct Bell {
    /// True from a wake-up until the thread has taken it, so that a burst of messages costs one system call.
    woken: AtomicBool,
    event: OwnedFd,
    faults: Faults,
}

impl<M> Mailbox<M> {
    /// An empty mailbox, which no thread reads yet.
    #[cfg(test)]
    pub(crate) fn new() -> rustix::io::Result<Self> {
        Self::with(Faults::NONE)
    }

    /// An empty mailbox, which no thread reads yet, with faults that a test injects.
    pub(crate) fn with(faults: Faults) -> rustix::io::Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self::on(Arc::new(Bell { woken: AtomicBool::new(false), event, faults })))
    }

    fn on(bell: Arc<Bell>) -> Self {
        Self { queue: Mutex::new(Queue { messages: Vec::new(), open: false }), bell }
    }

    /// An empty mailbox for messages of another type, which shares this mailbox's bell and so wakes the same thread.
    pub(crate) fn beside<N>(&self) -> Mailbox<N> {
        Mailbox::on(Arc::clone(&self.bell))
    }

    fn queue(&self) -> MutexGuard<'_, Queue<M>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the mailbox: from now on its thread reads it, and messages can be posted.
    pub(crate) fn open(&self) {
        self.queue().open = true;
    }

    /// Closes the mailbox of a thread that is about to end, unless it holds messages; true if closed. Senders to a closed
    /// mailbox get their messages back.
    pub(crate) fn close_if_empty(&self) -> bool {
        let mut queue = self.queue();
        queue.open &= !queue.messages.is_empty();
        !queue.open
    }

    /// True if no thread reads the mailbox.
    pub(crate) fn is_closed(&self) -> bool {
        !self.queue().open
    }

    /// Posts one message and wakes the mailbox's thread.
    ///
    /// # Errors
    /// The message, if the mailbox is closed because its thread has ended.
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

    /// Posts all messages, in order, with one lock and one wake-up; leaves `messages` unchanged if the mailbox is closed.
    pub(crate) fn post_all(&self, messages: &mut Vec<M>) {
        let mut queue = self.queue();
        if queue.open {
            queue.messages.append(messages);
            drop(queue);
            self.bell.ring();
        }
    }

    /// Posts a message about an operation that the mailbox's thread waits for. The thread does not end before, so that the
    /// mailbox is open.
    pub(crate) fn report(&self, message: M) {
        let kept = self.post(message);
        debug_assert!(kept.is_ok(), "a worker has ended that waits for an operation");
    }

    /// Moves all messages to `into`, which must be empty, and resets the bell. Only for the mailbox's thread, which
    /// afterwards also empties the mailboxes made by [`Self::beside`].
    pub(crate) fn take(&self, into: &mut Vec<M>) {
        // In this order: a wake-up that is consumed here stands for messages that are taken below,
        // and one for messages that come later is still to be sent.
        let _ = rustix::io::read(&self.bell.event, &mut [0u8; 8]);
        self.bell.woken.store(false, Ordering::SeqCst);
        self.take_beside(into);
    }

    /// As [`Self::take`] without resetting the bell: for a mailbox made by [`Self::beside`], after the other mailbox was
    /// emptied.
    pub(crate) fn take_beside(&self, into: &mut Vec<M>) {
        debug_assert!(into.is_empty());
        std::mem::swap(&mut self.queue().messages, into);
    }

    /// The bell's descriptor, which is readable when there are messages.
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
