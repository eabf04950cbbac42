//! Takes connections into a worker, moves them to other workers, and closes them.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::connection::{Connection, Ending, Paused, Phase};
use super::message::Message;
use super::readers::Share;
use super::request::ConnKey;
use super::sources::{ENDED, READ, Set, WRITE};
use super::{LINGER_RETRY, Worker};
use crate::clock;
use crate::connections::Rest;
use crate::faults::Call;
use crate::transport::socket::PIECES;

impl Worker {
    /// Puts a connection back into its slot after some work on it, or closes it if it is done.
    pub(super) fn keep(&mut self, mut connection: Box<Connection>) {
        if connection.is_done() && !connection.lingers() {
            self.close(connection);
            return;
        }
        let reading = match connection.ending {
            Ending::Open => connection.paused == Paused::No,
            Ending::Lingering => true,
            Ending::Draining | Ending::HalfClosed => false,
        };
        let writing = (connection.out.len() > 0 || connection.transport.wants_send()) && !connection.dirty;
        let read = if reading { READ | ENDED } else { 0 };
        let ends = if !reading && connection.may_end_unseen() { ENDED } else { 0 };
        let interest = read | ends | if writing { WRITE } else { 0 };
        if interest != connection.interest && !connection.gone {
            self.watch(&mut connection, interest);
        }
        let slot = connection.key.slot as usize;
        self.connections[slot] = Some(connection);
    }

    fn watch(&self, connection: &mut Connection, interest: u32) {
        let data = connection.key.to_event();
        if self.sources.modify(connection.transport.fd(), data, interest, connection.set).is_ok() {
            connection.interest = interest;
        }
    }

    /// Moves a connection into an epoll set of this worker, unless it is there already.
    pub(super) fn move_to(&self, connection: &mut Connection, set: Set) {
        if connection.set == set {
            return;
        }
        let (fd, data) = (connection.transport.fd(), connection.key.to_event());
        // Where there is no room for a moment, it stays where it is.
        if self.sources.add(fd, data, connection.interest, set).is_ok() {
            self.sources.remove(fd, connection.set);
            connection.set = set;
        }
    }

    /// Handles the loss of a connection's client. Requests that came before a disconnect request are still carried out;
    /// without a disconnect request they are dropped.
    pub(super) fn lose(&mut self, mut connection: Box<Connection>) {
        let first = !std::mem::replace(&mut connection.gone, true);
        if first {
            self.sources.remove(connection.transport.fd(), connection.set);
            connection.interest = 0;
            if !connection.said_goodbye {
                self.shared.slots.half_close(connection.key);
            }
        }
        connection.out.clear(&mut self.buffers);
        if connection.said_goodbye && connection.in_flight > 0 {
            let slot = connection.key.slot as usize;
            self.connections[slot] = Some(connection);
        } else if first && connection.ending == Ending::Open && connection.volume().is_some() {
            // The disconnect request may still wait to be read.
            if connection.paused == Paused::No {
                self.receive(connection);
            } else {
                self.resume.push(connection.key.slot);
                let slot = connection.key.slot as usize;
                self.connections[slot] = Some(connection);
            }
        } else {
            self.close(connection);
        }
    }

    pub(super) fn close(&mut self, mut connection: Box<Connection>) {
        self.note_unfinished(&connection);
        connection.out.clear(&mut self.buffers);
        let now = clock::now();
        let inside = connection.inside();
        if let Some(buffer) = connection.incoming.take().and_then(|incoming| incoming.request.buffer) {
            self.buffers.give(buffer);
        }
        connection.divided.take_buffers().for_each(|buffer| self.buffers.give(buffer));
        if let Some(volume) = connection.volume() {
            volume.connections.fetch_sub(1, Ordering::Relaxed);
        }
        if connection.ending != Ending::Lingering {
            connection.transport.end();
        }
        let _ = connection.transport.discard(PIECES);
        tracing::debug!(peer = %connection.peer, requests = connection.requests, "connection closed");
        self.count -= 1;
        self.shared.stats[self.index].connections.fetch_sub(1, Ordering::Relaxed);
        self.shared.placement().leave(connection.key.slot);
        // Dropping the socket takes it out of the epoll set.
        let Connection { key, place, phase, in_flight, .. } = *connection;
        let (mut left, mut of_pool) = (None, None);
        if let Phase::Attached(attached) = phase {
            of_pool = Some((attached.volume.pool, attached.tenant, attached.volume.id));
            left = Some(attached.account.leave_behind(now, attached.volume.id, inside));
        }
        self.shared.slots.give(key, in_flight, Rest { _place: place, left });
        if let Some((pool, tenant, volume)) = of_pool.filter(|_| in_flight > 0) {
            // A connection from a worker with a newer snapshot may be in a pool that this worker does not know yet.
            if let Some(work) = self.pools.get_mut(pool) {
                work.left.push_back((tenant, volume, in_flight.into()));
            }
            self.activate(pool);
        }
    }

    /// Gives a connection to the worker with the index `to`, with its requests in flight; does nothing while the server stops
    /// or if that worker does not run.
    pub(super) fn hand_over(&mut self, key: ConnKey, to: usize) {
        let slot = key.slot as usize;
        if to == self.index || self.draining || self.shared.mailbox(to).is_none() {
            return;
        }
        match self.connections[slot].take() {
            Some(mut connection) if connection.key == key && !connection.gone => {
                self.sources.remove(connection.transport.fd(), connection.set);
                connection.interest = 0;
                connection.dirty = false;
                connection.share = Share::default();
                self.count -= 1;
                self.pass_on(connection, to);
            }
            other => self.connections[slot] = other,
        }
    }

    fn pass_on(&self, connection: Box<Connection>, to: usize) {
        self.shared.stats[self.index].connections.fetch_sub(1, Ordering::Relaxed);
        self.shared.stats[to].connections.fetch_add(1, Ordering::Relaxed);
        // Published before the other worker has it: once it has, it may hand it on and publish that.
        // What reaches either of us in between is mailed again until it meets the connection.
        self.shared.slots.set_home(connection.key, to);
        self.shared.post(to, Message::Adopt(connection));
    }

    /// Gives all connections to other workers, because the number of workers was reduced. A connection whose client is gone
    /// cannot move, and is served to its end.
    pub(super) fn leave(&mut self) {
        self.leaving = true;
        for slot in 0..self.connections.len() {
            if let Some(key) = self.connections[slot].as_ref().map(|connection| connection.key) {
                self.hand_over(key, self.successor(key));
            }
        }
    }

    /// Index of the worker that is to serve a connection after this worker has ended, as decided by the placement.
    fn successor(&self, key: ConnKey) -> usize {
        self.shared.placement().worker(key.slot).map_or(0, |worker| worker as usize)
    }

    /// True if this worker is to end, because the number of workers was reduced, and has no work left; if so, closes its
    /// mailbox.
    pub(super) fn has_left(&mut self) -> bool {
        // A client that was lost while replies were sent may have left requests for the next round.
        let nothing_left = self.leaving && self.is_idle() && self.resume.is_empty();
        if !nothing_left {
            return false;
        }
        // As long as the mailbox is open, no other worker takes this index.
        let stats = &self.shared.stats[self.index];
        let heard = stats.heard_ns.swap(0, Ordering::Relaxed);
        self.occupation.take(clock::now(), self.meter.take_rounds());
        stats.cpu_ns.store(self.occupation.cpu_ns(), Ordering::Relaxed);
        stats.requests.store(self.requests, Ordering::Relaxed);
        stats.busy.store(0, Ordering::Relaxed);
        stats.clients.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let left = self.mailbox.close_if_empty();
        if !left {
            stats.heard_ns.store(heard, Ordering::Relaxed);
        }
        left
    }

    pub(super) fn adopt(&mut self, mut connection: Box<Connection>) {
        if self.leaving && !self.draining {
            let to = self.successor(connection.key);
            if to != self.index {
                return self.pass_on(connection, to);
            }
        }
        // It may have been meant for a worker that has ended.
        self.shared.slots.set_home(connection.key, self.index);
        self.count += 1;
        if self.shared.epoch() != self.epoch {
            // It may come from a worker that has a newer snapshot, with the connection's volume.
            self.refresh();
        }
        // It may have been moving while all workers took a new snapshot.
        if !self.follows(&mut connection) {
            self.close(connection);
            return;
        }
        let (fd, data) = (connection.transport.fd(), connection.key.to_event());
        let watch = || self.sources.add(fd, data, READ | ENDED, connection.set);
        if let Err(error) = self.shared.faults.check(Call::Watch).and_then(|()| watch()) {
            if let Some(more) = self.count_failure("watch", error.raw_os_error()) {
                tracing::warn!(peer = %connection.peer, %error, not_logged = more, "cannot watch a connection (epoll), so this worker closes the connection; raise sysctl fs.epoll.max_user_watches, or free memory");
            }
            self.close(connection);
            return;
        }
        connection.interest = READ | ENDED;
        if self.draining && connection.ending == Ending::Open {
            connection.ending = Ending::Draining;
        }
        if connection.out.len() > 0 || connection.transport.wants_send() {
            self.mark_dirty(&mut connection);
        }
        if connection.paused != Paused::No || connection.transport.has_received() {
            self.resume.push(connection.key.slot);
        }
        self.keep(connection);
    }

    /// Closes lingering connections whose clients have received everything or have had time enough.
    pub(super) fn end_lingering(&mut self) {
        for slot in 0..self.connections.len() {
            let done =
                |connection: &mut Box<Connection>| connection.ending == Ending::Lingering && connection.is_done();
            if let Some(connection) = self.connections[slot].take_if(done) {
                self.close(connection);
            }
        }
    }

    pub(super) fn drain(&mut self) {
        self.draining = true;
        self.linger_at = clock::now() + LINGER_RETRY;
        self.listeners.clear();
        for slot in 0..self.connections.len() {
            if let Some(connection) = &mut self.connections[slot]
                && let Phase::Handshake(handshake) = &mut connection.phase
            {
                // What it has asked by now is answered with the reason why nothing comes of it.
                handshake.shut_down();
                if let Some(connection) = self.connections[slot].take() {
                    self.receive(connection);
                }
            }
            if let Some(mut connection) = self.connections[slot].take() {
                if connection.ending == Ending::Open {
                    connection.ending = Ending::Draining;
                }
                self.keep(connection);
            }
        }
    }
}
