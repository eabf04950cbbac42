//! Accepting connections and starting them off.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use evenkeel_control::{Duration, Instant};
use evenkeel_nbd::server::{Handshake, Offer};
use rustix::io::Errno;

use super::connection::{Connection, Paused, Payload, Phase};
use super::message::Message;
use super::request::ConnKey;
use super::sources::{LISTENER_EVENTS, READ, Set};
use super::{Worker, mail};
use crate::budget::Charge;
use crate::clock;
use crate::handshakes::{Place, Ticket};
use crate::paced::Work;
use crate::refusals::Reason;
use crate::transport::{Peer, Transport};

/// How long to leave a listener alone after running out of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// Connections accepted in a row before others get their turn: some 0.3 ms.
pub(super) const ACCEPT_BATCH: usize = 16;

impl Worker {
    /// Accepts waiting connections of a listener and spreads them over the workers.
    pub(super) fn accept(&mut self, listener: usize) {
        for _ in 0..ACCEPT_BATCH {
            let Some(socket) = self.listeners.get(listener) else { return };
            let work = self.waking.begin();
            match socket.accept(&self.shared.faults) {
                Ok((transport, peer)) => {
                    if let Some(until) = self.place(transport, peer, &work) {
                        self.pause_accepting(until);
                        return;
                    }
                }
                Err(Errno::AGAIN) => return,
                // The peer gave up while it waited, or a firewall forbids it: the next one may do better.
                Err(Errno::INTR | Errno::CONNABORTED | Errno::PROTO | Errno::PERM) => {}
                Err(errno) => {
                    self.shared.refused.fetch_add(1, Ordering::Relaxed);
                    if let Some(more) = self.count_failure("accept", errno.raw_os_error()) {
                        let cure = match errno {
                            Errno::MFILE => {
                                "raise the limit of open files (LimitNOFILE= of the service, ulimit -n), or lower server.max_connections"
                            }
                            Errno::NFILE => "raise the system's limit of open files (sysctl fs.file-max)",
                            Errno::NOMEM | Errno::NOBUFS => "make memory free",
                            _ => "look at the network device (ip -s link) and at the kernel's log",
                        };
                        tracing::warn!(error = %io::Error::from(errno), cure, not_logged = more, "cannot accept connections; those that wait are tried again every 200 ms");
                    }
                    self.pause_accepting(clock::now() + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    /// Gives a connection a place, or refuses it; returns when to accept the next one, if accepting has used up its time.
    fn place(&mut self, transport: Transport, peer: Peer, work: &Work) -> Option<Instant> {
        let placed = self.take_place(&peer);
        // Closing tells a client without a place at once; leaving it in the queue would let it hang.
        let Some((key, ticket, place)) = placed else {
            drop(transport);
            self.waking.accepted(&self.shared.handshakes, work);
            return self.shared.handshakes.next_connection();
        };
        let worker = self.shared.slots.home(key);
        if worker == self.index {
            let work = self.shared.handshakes.accepted(work);
            self.open(transport, peer, key, ticket, place, &work);
        } else {
            mail(&mut self.outbox, worker, Message::Accepted(transport, peer, key, ticket, place));
            self.waking.accepted(&self.shared.handshakes, work);
        }
        self.shared.handshakes.next_connection()
    }

    /// A place for a connection, with its name and ticket, if it may have one.
    fn take_place(&mut self, peer: &Peer) -> Option<(ConnKey, Ticket, Place)> {
        let (ticket, place) = match self.shared.handshakes.begin(peer, clock::now()) {
            Ok(counted) => counted,
            Err(reason) => {
                if let Some(not_logged) = self.count_refusal(reason) {
                    tracing::info!(%peer, why = reason.because(), not_logged, "refusing a connection");
                }
                return None;
            }
        };
        let Some(key) = self.shared.slots.take() else {
            self.shared.refused.fetch_add(1, Ordering::Relaxed);
            if let Some(not_logged) = self.count_failure("slot", 0) {
                tracing::warn!(%peer, not_logged, "refusing a connection: all server.max_connections are open");
            }
            return None;
        };
        let worker = self.shared.placement().join(key.slot) as usize;
        self.shared.slots.set_home(key, worker);
        self.shared.accepted.fetch_add(1, Ordering::Relaxed);
        self.shared.stats[worker].connections.fetch_add(1, Ordering::Relaxed);
        Some((key, ticket, place))
    }

    /// Counts a refusal by a bound on connections; `Some` if it is to be logged: how many like it went unlogged. A client at
    /// its bound may come again ten thousand times a second.
    pub(super) fn count_refusal(&mut self, reason: Reason) -> Option<u64> {
        if matches!(reason, Reason::Connections | Reason::ConnectionsOfClient | Reason::ConnectionsOfTenant) {
            self.shared.refused.fetch_add(1, Ordering::Relaxed);
        }
        self.shared.refusals.count(reason);
        self.count_failure(reason.name(), 0)
    }

    /// Greets a new connection, or lets it wait until it is its client's turn: a client that storms hears nothing for a while,
    /// and sends nothing. `work` was begun for the connection.
    pub(super) fn open(
        &mut self,
        transport: Transport,
        peer: Peer,
        key: ConnKey,
        ticket: Ticket,
        place: Place,
        work: &Work,
    ) {
        tracing::debug!(%peer, worker = self.index, "connection opened");
        let client = ticket.client();
        let handshake = Handshake::new(Offer { tls: self.snapshot.offered_tls(&peer), ..Offer::default() });
        let mut connection = Connection::new(key, transport, peer, handshake, place, clock::now());
        connection.ticket = Some(ticket);
        self.adopt(Box::new(connection));
        self.waking.charge_anyway(&self.shared.handshakes, client, work);
        self.welcome(key);
    }

    /// Greets a connection that is here and was not greeted yet.
    pub(super) fn welcome(&mut self, key: ConnKey) {
        let place = &mut self.connections[key.slot as usize];
        if let Some(connection) = place.take_if(|connection| connection.key == key && !connection.greeted) {
            self.receive(connection);
        }
    }

    /// Greets a connection whose client's turn it is; true if it was not greeted before.
    pub(super) fn greet(&mut self, connection: &mut Connection) -> bool {
        let Phase::Handshake(handshake) = &mut connection.phase else { return false };
        if std::mem::replace(&mut connection.greeted, true) {
            return false;
        }
        let mut greeting = Vec::with_capacity(32);
        handshake.greet(&mut greeting);
        connection.paused = Paused::No;
        connection.out.push(None, Payload::Owned(greeting), Charge::default());
        self.mark_dirty(connection);
        true
    }

    /// Stops accepting until `until`: a listener stays readable while nothing is accepted, and the loop would spin.
    fn pause_accepting(&mut self, until: Instant) {
        self.accept_at = until;
        self.watch_listeners(0);
    }

    /// Ends a pause of accepting.
    pub(super) fn resume_accepting(&mut self) {
        self.accept_at = Instant::FAR_FUTURE;
        self.watch_listeners(READ);
    }

    fn watch_listeners(&self, interest: u32) {
        for (n, listener) in self.listeners.iter().enumerate() {
            let _ = self.sources.modify(listener.as_fd(), LISTENER_EVENTS + n as u64, interest, Set::Own);
        }
    }
}
