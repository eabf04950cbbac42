//! A worker's record of its connections, once a second.

use std::sync::Arc;

use evenkeel_control::Instant;

use super::connection::{Connection, Phase};
use super::request::ConnKey;
use crate::transport::Peer;

/// A connection that has chosen its export, as its worker saw it last.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// Name of the connection.
    pub(crate) key: ConnKey,
    /// The other end.
    pub(crate) peer: Peer,
    /// The volume's id.
    pub(crate) volume: u32,
    /// Index of the volume's pool.
    pub(crate) pool: usize,
    /// Name of the tenant that pays.
    pub(crate) tenant: Arc<str>,
    /// When the connection was accepted.
    pub(crate) since: Instant,
    /// When this record was made.
    pub(crate) at: Instant,
    /// Requests received.
    pub(crate) requests: u64,
    /// Requests for which the client has no reply yet.
    pub(crate) outstanding: u64,
    /// Bytes received.
    pub(crate) received: u64,
    /// Bytes sent.
    pub(crate) sent: u64,
}

impl Seen {
    /// The record of a connection; `None` while that negotiates.
    pub(super) fn of(connection: &Connection, at: Instant) -> Option<Self> {
        let Phase::Attached(attached) = &connection.phase else { return None };
        Some(Self {
            key: connection.key,
            peer: connection.peer.clone(),
            volume: attached.volume.id,
            pool: attached.volume.pool,
            tenant: Arc::clone(&attached.tenant_name),
            since: connection.since,
            at,
            requests: connection.requests,
            outstanding: connection.outstanding() as u64,
            received: connection.received,
            sent: connection.sent,
        })
    }
}
