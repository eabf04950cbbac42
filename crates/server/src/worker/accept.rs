//! Accepts connections, assigns them to workers and greets them.

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

/// Time for which a worker accepts no connections after accepting one failed, for example for lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// Largest number of connections accepted in a row, some 0.3 ms of work, before other events are handled.
pub(super) const ACCEPT_BATCH: usize = 16;

impl Worker {
    /// Accepts the waiting connections of a listener, at most [`ACCEPT_BATCH`], and spreads them over the workers.
    pub(super) fn accept(&mut self, listener: usize) {
        for before in 0..ACCEPT_BATCH {
            let Some(socket) = self.listeners.get(listener) else { return };
            let work = self.waking.begin();
            let full = self.shared.lacks_descriptors();
            if full && before > 0 {
                // Perhaps none waits any more; those that do are reported again.
                return;
            }
            let accepted = if full { Err(Errno::MFILE) } else { socket.accept(&self.shared.faults) };
            match accepted {
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
                            Errno::NOMEM | Errno::NOBUFS => "free memory",
                            Errno::TOOMANYREFS => Reason::Descriptors.because(),
                            _ => "look at the network device (ip -s link) and at the kernel's log",
                        };
                        tracing::warn!(error = %io::Error::from(errno), cure, not_logged = more, "cannot accept connections; clients wait, and this worker tries again every 200 ms");
                    }
                    let until = clock::now() + ACCEPT_PAUSE;
                    if errno == Errno::TOOMANYREFS {
                        self.pause_listener(listener, until);
                    } else {
                        self.pause_accepting(until);
                    }
                    return;
                }
            }
        }
    }

    /// Gives a new connection a slot and a worker, or refuses and closes it. Returns the moment to accept the next
    /// connection, if accepting has used up its share of processor time.
    fn place(&mut self, transport: Transport, peer: Peer, work: &Work) -> Option<Instant> {
        let placed = self.take_place(&transport, &peer);
        // Closing tells a client without a place at once; leaving it in the queue would let it hang.
        let Some((key, ticket, place)) = placed else {
            drop(transport);
            self.waking.accepted(&self.shared.handshakes, work);
            return self.shared.handshakes.next_connection();
        };
        if place.is_one_of_many() {
            transport.bound_unsent();
        }
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

    /// A slot for a connection (its key), with the ticket of its negotiation and its place in the count of its client; `None`
    /// if its user is barred, or a bound on connections or negotiations refuses it.
    pub(super) fn take_place(&mut self, transport: &Transport, peer: &Peer) -> Option<(ConnKey, Ticket, Place)> {
        let barred = transport.is_barred().then_some(Reason::Descriptors);
        let (ticket, place) = match barred.map_or_else(|| self.shared.handshakes.begin(peer, clock::now()), Err) {
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
                tracing::warn!(%peer, not_logged, "refusing a connection: all connections of server.max_connections are open; raise that key (needs a restart) and LimitNOFILE=");
            }
            return None;
        };
        let worker = self.shared.placement().join(key.slot) as usize;
        self.shared.slots.set_home(key, worker);
        self.shared.accepted.fetch_add(1, Ordering::Relaxed);
        self.shared.stats[worker].connections.fetch_add(1, Ordering::Relaxed);
        Some((key, ticket, place))
    }

    /// Counts the refusal of a connection. Returns `Some(n)` if it is to be logged: `n` refusals for the same reason were not
    /// logged since the previous log line. A client at its bound may come again ten thousand times a second.
    pub(super) fn count_refusal(&mut self, reason: Reason) -> Option<u64> {
        if matches!(reason, Reason::Connections | Reason::ConnectionsOfClient | Reason::ConnectionsOfTenant) {
            self.shared.refused.fetch_add(1, Ordering::Relaxed);
        }
        self.shared.refusals.count(reason);
        self.count_failure(reason.name(), 0)
    }

    /// Takes in a new connection, and sends the server's greeting as soon as its client's turn comes. A client that opens
    /// connections too fast waits for the greeting, and can send nothing before. `work`: processor time spent on the
    /// connection so far.
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
        let ahead = self.shared.budget.ahead();
        let mut connection = Connection::new(key, transport, peer, handshake, place, ahead, clock::now());
        connection.ticket = Some(ticket);
        self.adopt(Box::new(connection));
        self.waking.charge_anyway(&self.shared.handshakes, client, work);
        self.welcome(key);
    }

    /// Greets a connection of this worker, unless that has happened already.
    pub(super) fn welcome(&mut self, key: ConnKey) {
        let place = &mut self.connections[key.slot as usize];
        if let Some(connection) = place.take_if(|connection| connection.key == key && !connection.greeted) {
            self.receive(connection);
        }
    }

    /// Queues the server's greeting for a connection in negotiation; true if the connection was not greeted before.
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

    /// Accepts nothing before `until`. Listeners are not watched until then: they stay readable, and the worker's loop would
    /// spin.
    fn pause_accepting(&mut self, until: Instant) {
        self.accept_at = until;
        self.watch_listeners(0);
    }

    /// Accepts nothing from one listener before `until`.
    fn pause_listener(&mut self, listener: usize, until: Instant) {
        self.accept_at = self.accept_at.min(until);
        self.watch_listener(listener, 0);
    }

    /// Accepts connections again after [`Self::pause_accepting`] or [`Self::pause_listener`].
    pub(super) fn resume_accepting(&mut self) {
        self.accept_at = Instant::FAR_FUTURE;
        self.watch_listeners(READ);
    }

    fn watch_listeners(&self, interest: u32) {
        (0..self.listeners.len()).for_each(|listener| self.watch_listener(listener, interest));
    }

    fn watch_listener(&self, listener: usize, interest: u32) {
        if let Some(socket) = self.listeners.get(listener) {
            let _ = self.sources.modify(socket.as_fd(), LISTENER_EVENTS + listener as u64, interest, Set::Own);
        }
    }
}
