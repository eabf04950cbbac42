//! How operations reach a file: with io_uring, reads and writes through the ring and the rest by threads; else all by threads.
//!
//! Sockets do not come through here. They are read and written without blocking and
//! waited for with epoll in both engines, so a connection owns nothing of the engine
//! and can move to another worker at any time. The ring's own descriptor sits in the
//! same epoll set, so one wait covers both.

pub(crate) mod priority;
pub(crate) mod searches;
pub(crate) mod threads;
pub(crate) mod uring;
