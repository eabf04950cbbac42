//! Messages to a worker from other workers and from the server.

use evenkeel_nbd::wire::Errno;

use super::connection::Connection;
use super::request::{ConnKey, Output, Request};
use crate::handshakes::{Place, Ticket};
use crate::transport::{Peer, Transport};

/// A message to a worker, the receiver.
pub(crate) enum Message {
    /// A connection was accepted that the receiver is to serve.
    Accepted(Transport, Peer, ConnKey, Ticket, Place),
    /// A connection that another worker has served is now the receiver's, with its requests in flight.
    Adopt(Box<Connection>),
    /// A request of one of the receiver's connections is done, with this result.
    Completed(Box<Request>, Result<Output, Errno>),
    /// The receiver is to hand this connection to the worker with this index.
    Move(ConnKey, usize),
    /// Pools, volumes or tenants have changed: the receiver is to take a new snapshot.
    Refresh,
    /// A worker has ended that may have been responsible for the next visit to a pool: the receiver is to visit all pools.
    Visit,
    /// The number of workers was reduced: the receiver is to give all its connections away, and to end when it has no work
    /// left.
    Leave,
    /// The number of workers was raised again: the receiver of [`Self::Leave`] is not to end.
    Stay,
    /// The server stops: the receiver is to accept connections and read requests no more, and to end when all are answered.
    Drain,
    /// The receiver is to end at once.
    Stop,
}
