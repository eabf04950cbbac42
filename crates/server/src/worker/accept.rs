//! Accepting connections and starting them off.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use evenkeel_control::Duration;
use evenkeel_nbd::server::{Handshake, Offer};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with, sockopt};

use super::connection::{ConnKey, Connection, Payload};
use super::mailbox::Message;
use super::transport::{Peer, Transport};
use super::{LISTENER_EVENTS, Worker, mail};
use crate::clock;
use crate::handshakes::Ticket;

/// How long to leave a listener alone after running out of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// Connections accepted in a row before others get their turn.
const ACCEPT_BATCH: usize = 64;

/// A listening socket.
pub(crate) enum Listener {
    /// TCP.
    Tcp(OwnedFd),
    /// A Unix socket.
    Unix(OwnedFd),
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(fd) | Self::Unix(fd) => fd.as_fd(),
        }
    }
}

impl Listener {
    fn accept(&self, peer_timeout: Duration) -> rustix::io::Result<(Transport, Peer)> {
        let (fd, address) = acceptfrom_with(self, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)?;
        Ok(match self {
            Self::Tcp(_) => {
                let address = address.and_then(|a| SocketAddr::try_from(a).ok());
                let (address, port) = (address.map(|a| a.ip()), address.map_or(0, |a| a.port()));
                let peer = Peer { address, port, ..Peer::default() };
                (Transport::tcp(fd, peer_timeout.into()), peer)
            }
            Self::Unix(_) => {
                let uid = sockopt::socket_peercred(&fd).ok().map(|cred| cred.uid.as_raw());
                (Transport::unix(fd), Peer { uid, ..Peer::default() })
            }
        })
    }
}

impl Worker {
    /// Takes what waits on a listener and spreads it over the workers.
    pub(super) fn accept(&mut self, listener: usize) {
        for _ in 0..ACCEPT_BATCH {
            let Some(socket) = self.listeners.get(listener) else { return };
            match socket.accept(self.shared.bounds.peer_timeout) {
                Ok((transport, peer)) => self.place(transport, peer),
                Err(Errno::AGAIN) => return,
                // The peer gave up while it waited.
                Err(Errno::INTR | Errno::CONNABORTED | Errno::PROTO | Errno::PERM) => {}
                Err(error) => {
                    self.shared.refused.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(error = %io::Error::from(error), "cannot accept connections; those that wait are tried again shortly");
                    self.pause_accepting();
                    return;
                }
            }
        }
    }

    fn place(&mut self, transport: Transport, peer: Peer) {
        let ticket = match self.shared.handshakes.begin(&peer) {
            Ok(ticket) => ticket,
            Err(reason) => {
                self.shared.refusals.count(reason);
                tracing::info!(%peer, why = reason.because(), "refusing a connection");
                return;
            }
        };
        let Some(key) = self.shared.slots.take() else {
            // Closing tells the client at once; leaving it in the queue would let it hang.
            self.shared.refused.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%peer, "refusing a connection: server.max_connections are open");
            return;
        };
        let worker = self.shared.placement().join(key.slot) as usize;
        self.shared.slots.set_home(key, worker);
        self.shared.accepted.fetch_add(1, Ordering::Relaxed);
        self.shared.stats[worker].connections.fetch_add(1, Ordering::Relaxed);
        if worker == self.index {
            self.open(transport, peer, key, ticket);
        } else {
            mail(&mut self.outbox, worker, Message::Accepted(transport, peer, key, ticket));
        }
    }

    /// Greets a new connection.
    pub(super) fn open(&mut self, transport: Transport, peer: Peer, key: ConnKey, ticket: Ticket) {
        tracing::debug!(%peer, worker = self.index, "connection opened");
        let mut handshake = Handshake::new(Offer { tls: self.snapshot.offered_tls(&peer), ..Offer::default() });
        let mut greeting = Vec::with_capacity(32);
        handshake.greet(&mut greeting);
        let mut connection = Connection::new(key, transport, peer, handshake, clock::now());
        connection.ticket = Some(ticket);
        connection.out.push(None, Payload::Owned(greeting), 0);
        self.adopt(Box::new(connection));
    }

    /// A listener stays readable while nothing can be accepted; without a pause the loop would spin.
    fn pause_accepting(&mut self) {
        self.accept_at = clock::now() + ACCEPT_PAUSE;
        self.watch_listeners(epoll::EventFlags::empty());
    }

    /// Ends the pause.
    pub(super) fn resume_accepting(&mut self) {
        self.accept_at = evenkeel_control::Instant::FAR_FUTURE;
        self.watch_listeners(epoll::EventFlags::IN);
    }

    fn watch_listeners(&self, flags: epoll::EventFlags) {
        for (n, listener) in self.listeners.iter().enumerate() {
            let data = epoll::EventData::new_u64(LISTENER_EVENTS + n as u64);
            let _ = epoll::modify(&self.epoll, listener.as_fd(), data, flags);
        }
    }
}
