//! The record that a worker makes of its connections once a second.

use std::sync::Arc;

use evenkeel_control::Instant;

use super::connection::{Connection, Phase};
use super::request::ConnKey;
use crate::transport::Peer;

/// The state of a connection whose client has chosen an export, at the moment `at`.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// Key of the connection.
    pub(crate) key: ConnKey,
    /// Address and identity of the client.
    pub(crate) peer: Peer,
    /// Id of the connection's volume.
    pub(crate) volume: u32,
    /// Index of that volume's pool.
    pub(crate) pool: usize,
    /// Name of the tenant to which the connection's requests are charged.
    pub(crate) tenant: Arc<str>,
    /// When the connection was accepted.
    pub(crate) since: Instant,
    /// When the record was made.
    pub(crate) at: Instant,
    /// Requests received since the connection was accepted.
    pub(crate) requests: u64,
    /// Number of requests whose replies are not completely sent.
    pub(crate) outstanding: u64,
    /// Bytes received since the connection was accepted.
    pub(crate) received: u64,
    /// Bytes sent since the connection was accepted.
    pub(crate) sent: u64,
}

impl Seen {
    /// The record of a connection at the moment `at`; `None` while the client negotiates.
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
