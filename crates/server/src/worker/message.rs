//! Messages from workers, and the server, to a worker.

use evenkeel_nbd::wire::Errno;

use super::connection::Connection;
use super::request::{ConnKey, Output, Request};
use crate::handshakes::{Place, Ticket};
use crate::transport::{Peer, Transport};

/// A message to a worker.
pub(crate) enum Message {
    /// A new connection is yours.
    Accepted(Transport, Peer, ConnKey, Ticket, Place),
    /// A connection from another worker is yours, requests in flight and all.
    Adopt(Box<Connection>),
    /// A request of one of your connections is done, with this result.
    Completed(Box<Request>, Result<Output, Errno>),
    /// Hand this connection to another worker.
    Move(ConnKey, usize),
    /// Pools, volumes or tenants have changed.
    Refresh,
    /// A worker has ended that may have been the next to look at a pool: look at all pools.
    Visit,
    /// There are fewer workers from now on: give every connection away, and end when no work is left.
    Leave,
    /// There are more again: stay.
    Stay,
    /// Accept and read nothing more; end when all is answered.
    Drain,
    /// End now.
    Stop,
}
