//! I/O engines, which carry out operations on files. With io_uring, reads and writes go through a ring and other operations
//! through threads; with epoll, all operations go through threads.
//!
//! Sockets do not use these engines: with either engine they are read and written without blocking, and waited for with
//! epoll. So a connection has no state in an engine and can move to another worker at any time. The ring's descriptor is in
//! the worker's epoll set as well, so that one wait covers sockets and ring.

pub(crate) mod priority;
pub(crate) mod searches;
pub(crate) mod threads;
pub(crate) mod turns;
pub(crate) mod uring;
