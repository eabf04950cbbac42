//! How operations reach a file: reads and writes by the kernel's ring, the rest and, without a ring, all of them by threads.
//!
//! Sockets do not come through here. They are read and written without blocking and
//! waited for with epoll in both engines, so a connection owns nothing of the engine
//! and can move to another worker at any time. The ring's own descriptor sits in the
//! same epoll set, so one wait covers both.

pub(crate) mod priority;
pub(crate) mod searches;
pub(crate) mod threads;
pub(crate) mod uring;
