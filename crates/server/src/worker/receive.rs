//! Receives bytes from clients and turns them into requests, or into options of a negotiation.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use evenkeel_control::duty::Turn;
use evenkeel_control::units::Work;
use evenkeel_control::{Duration, Instant};
use evenkeel_nbd::server::handshake::LIST_PIECE;
use evenkeel_nbd::server::{Access, Directory, Export, Session, Status, reply, request};
use evenkeel_nbd::wire::{Command, Errno, TransmissionFlags};
use evenkeel_policy::access::Barred;

use super::connection::{Attached, Connection, Discard, Ending, Incoming, Paused, Payload, Phase};
use super::divide;
use super::divided::Divided;
use super::readers::LOOK_AFTER;
use super::request::{Output, Request, Whole, is_change};
use super::sources::Set;
use super::{CLOSING, IN_A_ROW, SCRATCH_UNDER_PRESSURE, Worker};
use crate::backend::operation::{Extent, MAX_EXTENTS};
use crate::budget::Charge;
use crate::buffer::BufferPool;
use crate::clock;
use crate::handshakes::{Ticket, may_have_another};
use crate::refusals::{Fault, Reason};
use crate::snapshot::Snapshot;
use crate::transport::socket::PIECES;
use crate::transport::{Peer, tls};
use crate::volume::Volume;

/// Largest number of reads from one connection in a row; after the first, only while no other connection waits.
const READS_IN_A_ROW: usize = 4;
/// Replaces [`READS_IN_A_ROW`] for a worker with several active connections, whose bytes may come at any moment: receiving and
/// copying 64 KiB takes some 15 us, under TLS 25 us.
const READS_BESIDE_OTHERS: usize = 2;
/// Largest number of unsent answers to a negotiating client; further options wait. They also wait while [`LIST_PIECE`] bytes
/// of answers are unsent.
const MAX_ANSWERS: usize = 16;

/// Reason for closing the connection of a client that passes file descriptors.
const PASSES_DESCRIPTORS: &str = "the client passes file descriptors, which the server does not take";

/// Largest number of negotiating connections that waited for their turn and are served in a row.
const TURNS_IN_A_ROW: u32 = 16;

/// Reason why a connection must end at once.
pub(super) enum Lost {
    /// The client is gone.
    Gone,
    /// The client broke the protocol, or is not admitted.
    Violation,
}

/// The exports of the server as one client sees them.
struct Exports<'a> {
    snapshot: &'a Snapshot,
    peer: &'a Peer,
    /// True if the client has started TLS.
    secure: bool,
    /// Reason why the newest export that the client asked for was refused; `None` if it was not refused.
    barred: Cell<Option<Barred>>,
}

/// Shown in place of every volume, existing or not, to a client that the server's lists refuse.
const REFUSED: Export<'static> = Export {
    name: "",
    description: "",
    size: 0,
    flags: TransmissionFlags::NONE,
    min_block: 1,
    preferred_block: 4096,
    max_payload: 4096,
    access: Access::Refused,
};

impl Exports<'_> {
    /// The access that results from the access lists' verdict. A client that lacks only a certificate, and has not started
    /// TLS, is asked to start TLS.
    fn access(&self, verdict: Result<(), Barred>) -> Access {
        match verdict {
            Ok(()) => Access::Open,
            Err(Barred::NoCertificate) if !self.secure => Access::TlsOnly,
            Err(_) => Access::Refused,
        }
    }

    /// A volume as an export for the client, and the access lists' verdict on the client.
    fn export<'a>(&'a self, volume: &'a Volume) -> (Export<'a>, Result<(), Barred>) {
        let settings = self.snapshot.settings(volume);
        let verdict = self.snapshot.admits_to(settings, self.peer);
        let limits = volume.limits(self.snapshot.config.server.max_request);
        let access = match self.access(verdict) {
            Access::Open if self.snapshot.needs_tls(settings, self.peer) => Access::TlsOnly,
            access => access,
        };
        let export = Export {
            name: &volume.name,
            description: settings.map_or("", |settings| &settings.description),
            size: limits.size,
            flags: volume.flags(),
            min_block: limits.min_block,
            preferred_block: volume.preferred_block(),
            max_payload: limits.max_payload,
            access,
        };
        (export, verdict)
    }
}

impl Directory for Exports<'_> {
    fn count(&self) -> usize {
        self.snapshot.by_name.len()
    }

    fn visit(&self, from: usize, f: &mut dyn FnMut(&Export<'_>) -> bool) -> Option<usize> {
        let mut go_on = |volume: &Volume| f(&self.export(volume).0);
        let mut places = self.snapshot.volumes.iter().enumerate().skip(from);
        let stopped = places.find(|(_, volume)| volume.as_ref().is_some_and(|volume| !go_on(volume)));
        stopped.map(|(place, _)| place + 1)
    }

    fn find(&self, name: &str, f: &mut dyn FnMut(&Export<'_>)) -> bool {
        let Some(volume) = self.snapshot.find(name) else {
            // A client that may use no volume does not learn which volumes exist.
            let verdict = self.snapshot.config.admits(&self.peer.caller());
            self.barred.set(verdict.err());
            let access = self.access(verdict);
            if access != Access::Open {
                f(&Export { access, ..REFUSED });
            }
            return access != Access::Open;
        };
        let (export, verdict) = self.export(volume);
        self.barred.set(verdict.err());
        f(&export);
        true
    }
}

impl Worker {
    /// Serves a connection from which bytes can be read, and then puts it back or closes it. A negotiating connection waits
    /// if it is not its client's turn.
    pub(super) fn receive(&mut self, mut connection: Box<Connection>) {
        // What comes after a reload is not for those whom it keeps out.
        if connection.key.slot as usize >= self.unjudged && !self.follows(&mut connection) {
            return self.close(connection);
        }
        let Some(client) = connection.ticket.as_ref().map(Ticket::client) else {
            self.waking.others();
            return self.take_in(connection);
        };
        // Making a client wait costs something, too.
        let work = self.waking.begin();
        if connection.ending == Ending::Lingering {
            // What is only discarded waits for no turn.
            self.take_in(connection);
            return self.waking.charge_anyway(&self.shared.handshakes, client, &work);
        }
        if self.has_turn(&mut connection) {
            // What comes after the greeting is reported.
            if self.greet(&mut connection) {
                self.keep(connection);
            } else {
                self.take_in(connection);
            }
            self.waking.charge(&self.shared.handshakes, client, &work);
        } else {
            self.keep(connection);
            self.waking.charge_anyway(&self.shared.handshakes, client, &work);
        }
    }

    /// Reads from a connection at once, or queues it behind connections whose reads bring less.
    pub(super) fn receive_in_turn(&mut self, mut connection: Box<Connection>) {
        // Those that negotiate have turns of their own.
        if connection.ticket.is_some() || self.readers.may_go_first(&connection.share, self.turn()) {
            return self.receive(connection);
        }
        let tenant = connection.connections_of_tenant();
        self.readers.push(connection.key, connection.set, &mut connection.share, tenant);
        let slot = connection.key.slot as usize;
        self.connections[slot] = Some(connection);
    }

    /// Reads from the queued connections of each epoll set for a [turn](Self::turn). The others go on in the next round, after
    /// the work for the connections that were read.
    pub(super) fn read_in_turn(&mut self) {
        if self.readers.is_empty() {
            return self.readers.settle();
        }
        let mut until = clock::now();
        for set in [Set::Own, Set::Crowd] {
            until += self.turn();
            let mut read = self.readers.take_unseen();
            while read < LOOK_AFTER || clock::now() < until {
                if read >= LOOK_AFTER {
                    read = 0;
                }
                let Some(key) = self.readers.pop(set) else { break };
                let Some(mut connection) = self.connections[key.slot as usize].take_if(|c| c.key == key) else {
                    continue;
                };
                connection.share.taken();
                self.receive(connection);
                read += self.readers.take_unseen();
            }
        }
    }

    /// True if a connection may be served now. If it negotiates and its client's turn has not come, it is queued until then.
    fn has_turn(&mut self, connection: &mut Connection) -> bool {
        let Some(ticket) = &mut connection.ticket else { return true };
        let turn = ticket.turn();
        let is_own = matches!(turn, Turn::Own);
        let wait = match turn {
            Turn::Own => None,
            // Those that wait go first, unless it is one of them.
            Turn::Spare => self.turns.crowd().filter(|_| connection.paused != Paused::Turn),
            Turn::Wait { until, own } => Some((until, own)),
        };
        let now = clock::now();
        // The burst that clients may use at once is not for one round: others have their turn in between.
        let is_over = self.waking.has_taken(self.turn()) && connection.paused != Paused::Turn;
        let Some((until, own)) = wait.or(is_over.then_some((now, is_own))) else {
            ticket.goes_on(now);
            if connection.paused == Paused::Turn && connection.is_answering() {
                // There is nothing to do before the client has taken what is answered so far.
                connection.paused = Paused::Full;
            }
            return true;
        };
        ticket.waits(now);
        connection.paused = Paused::Turn;
        self.turns.push(connection.key, until, own);
        false
    }

    /// Serves queued negotiating connections whose turn has come, in the order in which they were queued.
    pub(super) fn take_turns(&mut self) {
        for own in self.turns.due() {
            for served in 0.. {
                let Some(key) = self.turns.pop(own) else { break };
                let waits =
                    |connection: &mut Box<Connection>| connection.key == key && connection.paused == Paused::Turn;
                let Some(connection) = self.connections[key.slot as usize].take_if(waits) else { continue };
                let until = match connection.ticket.as_ref().map(Ticket::turn) {
                    // The account of its client, or of its site, was used up meanwhile: those behind it do not wait for that.
                    Some(Turn::Wait { until, own: false }) if own => {
                        self.connections[key.slot as usize] = Some(connection);
                        self.turns.push(key, until, false);
                        continue;
                    }
                    Some(Turn::Wait { until, .. }) => Some(until),
                    // Others have their turn in between.
                    _ => (served >= TURNS_IN_A_ROW || self.waking.has_taken(self.turn())).then(clock::now),
                };
                if let Some(until) = until {
                    self.connections[key.slot as usize] = Some(connection);
                    self.turns.put_back(key, until, own);
                    break;
                }
                self.receive(connection);
            }
        }
    }

    fn take_in(&mut self, mut connection: Box<Connection>) {
        let mut scratch = std::mem::take(&mut self.scratch);
        let watch = self.meter.start();
        // What TLS costs cannot be seen from what comes of it.
        let begun = connection.transport.is_secure().then(clock::now);
        let (before, requests) = (connection.received, connection.requests);
        let sent_ahead = connection.leftover.len() as u64;
        let outcome = self.receive_into(&mut connection, &mut scratch);
        self.meter.stop(watch, &mut connection.toll);
        let (received, requests) = (connection.received - before, connection.requests - requests);
        let took = begun.map_or(Duration::ZERO, |begun| clock::now().since(begun));
        let tenant = connection.connections_of_tenant();
        self.readers.charge(connection.set, &mut connection.share, tenant, sent_ahead + received, requests, took);
        self.scratch = scratch;
        if !matches!(connection.paused, Paused::Memory(_)) {
            connection.waiting = None;
        }
        match outcome {
            Ok(()) => self.keep(connection),
            Err(Lost::Gone) => self.lose(connection),
            Err(Lost::Violation) => {
                // What was answered so far still goes out, best effort, as much as others wait for.
                let _ =
                    connection.out.flush(&mut connection.transport, &mut self.send_list, &mut self.buffers, IN_A_ROW);
                self.close(connection);
            }
        }
    }

    fn receive_into(&mut self, connection: &mut Connection, scratch: &mut [u8]) -> Result<(), Lost> {
        if connection.ending == Ending::Lingering {
            // A client that negotiates waits for no turn here, and is charged afterwards.
            let pieces = if connection.ticket.is_some() { 1 } else { PIECES };
            return match connection.transport.discard(pieces) {
                Ok(discarded @ 1..) => {
                    connection.received += discarded as u64;
                    Ok(())
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
                Ok(0) | Err(_) => Err(Lost::Gone),
            };
        }
        if connection.ending != Ending::Open {
            return Ok(());
        }
        let mut have = connection.leftover.len();
        let crowded = connection.ahead.is_crowded();
        let most = if crowded { (have + SCRATCH_UNDER_PRESSURE).min(scratch.len()) } else { scratch.len() };
        let scratch = &mut scratch[..most];
        if have > 0 {
            scratch[..have].copy_from_slice(&std::mem::take(&mut connection.leftover));
            connection.count_ahead();
        }
        if connection.paused != Paused::No && (have > 0 || connection.has_more_to_say()) {
            self.resume_reading(connection);
            have = self.parse(connection, scratch, have)?;
        }
        let unfinished = matches!(&connection.phase, Phase::Handshake(handshake) if handshake.is_unfinished());
        if have == 0 && !unfinished {
            self.resume_reading(connection);
        }
        let reads = if self.serves_several() { READS_BESIDE_OTHERS } else { READS_IN_A_ROW };
        for read in 0..reads {
            if connection.paused != Paused::No || connection.ending != Ending::Open {
                break;
            }
            if read > 0 && !self.readers.is_empty() {
                break;
            }
            if !self.expect_payload(connection) {
                break;
            }
            // What follows a slice belongs into the next one, not into a place from which it would have to be copied.
            let beyond =
                if connection.incoming.is_some() && connection.arriving.is_some() { have } else { scratch.len() };
            let into = connection.incoming.as_mut().map_or(&mut [][..], |incoming| {
                let filled = incoming.filled;
                incoming.request.buffer.as_mut().map_or(&mut [][..], |buffer| &mut buffer.as_mut_slice()[filled..])
            });
            let (payload_room, room) = (into.len(), beyond - have);
            let received = connection.transport.receive(into, &mut scratch[have..beyond], &mut self.send_list.room);
            if connection.transport.wants_send() {
                self.mark_dirty(connection);
            }
            let received = match received {
                // Nothing more will come.
                Ok(0) if connection.gone => return Err(Lost::Gone),
                Ok(0) => {
                    connection.ending = Ending::HalfClosed;
                    self.shared.slots.half_close(connection.key);
                    have = 0;
                    break;
                }
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !connection.gone => break,
                Err(error) => {
                    if let Some(why) = tls::reason(&error) {
                        let reason = Reason::Tls(why.into());
                        if connection.volume().is_none() {
                            self.shared.refusals.count(reason);
                        }
                        self.say("closing a connection: TLS failed", reason.name(), &connection.peer, &why);
                        return Err(Lost::Violation);
                    }
                    if error.raw_os_error() == Some(libc::EPROTO) && connection.peer.address.is_none() {
                        let is_barred = connection.transport.is_barred();
                        let why = if is_barred { Reason::Descriptors.because() } else { PASSES_DESCRIPTORS };
                        self.say(CLOSING, "passed descriptors", &connection.peer, &why);
                    }
                    tracing::debug!(peer = %connection.peer, %error, "cannot receive from a client");
                    return Err(Lost::Gone);
                }
            };
            connection.toll.received += received as u64;
            connection.received += received as u64;
            let direct = received.min(payload_room);
            if direct > 0 {
                self.fill(connection, direct);
            }
            have = self.parse(connection, scratch, have + received - direct)?;
            if received < payload_room + room && !connection.gone {
                break;
            }
        }
        let untold = connection.gone || connection.transport.has_received();
        if untold && connection.ending == Ending::Open && connection.paused == Paused::No {
            // Epoll does not tell of what is left.
            self.resume.push(connection.key.slot);
        }
        if connection.ticket.is_some() && connection.out.len() == 0 {
            connection.transport.acknowledge();
        }
        if have > 0 {
            connection.leftover = scratch[..have].to_vec();
        }
        connection.count_ahead();
        Ok(())
    }

    /// Notes that `bytes` more bytes of a write's payload have arrived in the write's buffer; hands a complete write to its
    /// pool.
    fn fill(&mut self, connection: &mut Connection, bytes: usize) {
        let Some(mut incoming) = connection.incoming.take() else { return };
        incoming.filled += bytes;
        connection.progress.moved(bytes as u64);
        if incoming.filled as u64 == incoming.request.length {
            self.enqueue(connection, incoming.work, incoming.request);
        } else {
            connection.incoming = Some(incoming);
        }
    }

    /// Ends the pause of a connection, which is read again.
    fn resume_reading(&self, connection: &mut Connection) {
        connection.paused = Paused::No;
    }

    /// Provides a buffer for the next slice if the payload of a divided write comes next; false if the connection must wait
    /// for memory.
    #[inline]
    fn expect_payload(&mut self, connection: &mut Connection) -> bool {
        connection.arriving.is_none_or(|whole| self.expect_slice(connection, whole))
    }

    fn expect_slice(&mut self, connection: &mut Connection, whole: Whole) -> bool {
        if connection.incoming.is_some() || connection.discard.is_some() {
            return true;
        }
        if let Some(remaining) = Self::give_up_arriving(connection, whole) {
            let nothing = Discard { remaining, cookie: 0, offset: 0, errno: Errno::Io, whole: Some(whole) };
            connection.discard = Some(nothing);
            return true;
        }
        let Some((work, request)) = self.begin_slice(connection, whole) else {
            // Either the connection waits for memory, or the write has failed for want of it.
            return connection.paused == Paused::No && self.expect_payload(connection);
        };
        connection.incoming = Some(Incoming { request, work, filled: 0 });
        true
    }

    /// Parses the first `have` bytes of `scratch`; moves the bytes that were not used to the front, and returns their number.
    fn parse(&mut self, connection: &mut Connection, scratch: &mut [u8], have: usize) -> Result<usize, Lost> {
        let mut at = 0;
        loop {
            let goes_on = connection.has_more_to_say();
            if connection.ending != Ending::Open || at == have && !goes_on {
                break;
            }
            let input = &scratch[at..have];
            let used = match connection.phase {
                Phase::Handshake(_) => self.negotiate(connection, input)?,
                Phase::Attached(_) => self.take_request(connection, input)?,
            };
            if used == 0 && !goes_on {
                break;
            }
            at += used;
        }
        if connection.ending != Ending::Open {
            return Ok(0);
        }
        scratch.copy_within(at..have, 0);
        Ok(have - at)
    }

    fn negotiate(&mut self, connection: &mut Connection, input: &[u8]) -> Result<usize, Lost> {
        self.identify(connection)?;
        let Phase::Handshake(handshake) = &mut connection.phase else { return Ok(0) };
        let most = if handshake.is_unfinished() { 1 } else { MAX_ANSWERS };
        if connection.out.len() >= most || connection.out.bytes() >= LIST_PIECE {
            connection.paused = Paused::Full;
            return Ok(0);
        }
        let mut answer = Vec::new();
        let secure = connection.transport.is_secure();
        let exports = Exports { snapshot: &self.snapshot, peer: &connection.peer, secure, barred: Cell::new(None) };
        let step = handshake.advance(input, &exports, &mut answer);
        let options = handshake.options();
        if let Some(barred) = exports.barred.get()
            && !std::mem::replace(&mut connection.refused, true)
        {
            self.shared.refusals.count(Reason::Barred(barred));
            self.say("refusing a volume", barred.because(), &connection.peer, &barred.because());
        }
        if !answer.is_empty() {
            connection.out.push(None, Payload::Owned(answer), Charge::default());
            self.mark_dirty(connection);
        }
        let step = match step {
            Ok(step) => step,
            Err(violation) => {
                self.say(CLOSING, "violation", &connection.peer, &violation);
                return Err(Lost::Violation);
            }
        };
        if let Some(ticket) = &mut connection.ticket {
            ticket.has_answered(options, self.snapshot.by_name.len());
        }
        match step.status {
            Status::More => {}
            // The next piece follows when this one is sent.
            Status::Unfinished => connection.paused = Paused::Full,
            Status::StartTls => self.start_tls(connection, step.consumed == input.len())?,
            Status::Closed => connection.ending = Ending::Draining,
            Status::Transmission(session) => self.attach(connection, session)?,
        }
        Ok(step.consumed)
    }

    /// Begins TLS on a connection's stream. `quiet`: true if the client has sent nothing after STARTTLS, as it must.
    fn start_tls(&mut self, connection: &mut Connection, quiet: bool) -> Result<(), Lost> {
        if !quiet {
            return Err(self.refuse_tls(connection, "the client sent unencrypted bytes behind STARTTLS"));
        }
        // The answer is the last that goes out as it is.
        let (list, buffers) = (&mut self.send_list, &mut self.buffers);
        let sent = connection.out.flush(&mut connection.transport, list, buffers, usize::MAX);
        if sent.is_err() {
            return Err(Lost::Gone);
        }
        if connection.out.len() > 0 {
            return Err(self.refuse_tls(connection, "the client started TLS before it had read all answers"));
        }
        let Some(acceptor) = self.snapshot.tls.clone() else {
            return Err(self.refuse_tls(connection, "a reload has just removed [server.tls] from the configuration"));
        };
        connection.transport.secure(acceptor).map_err(|error| self.refuse_tls(connection, &error.to_string()))
    }

    fn refuse_tls(&mut self, connection: &Connection, why: &str) -> Lost {
        self.say(CLOSING, "STARTTLS", &connection.peer, &why);
        Lost::Violation
    }

    /// Once the TLS handshake is complete: records the client's certificate, and checks if the client is admitted.
    fn identify(&mut self, connection: &mut Connection) -> Result<(), Lost> {
        if connection.peer.cipher.is_some() {
            return Ok(());
        }
        let Some(stream) = connection.transport.tls() else { return Ok(()) };
        connection.peer.cipher = stream.cipher();
        if connection.peer.cipher.is_none() {
            return Ok(());
        }
        self.shared.tls_handshakes.fetch_add(1, Ordering::Relaxed);
        // A reload during the handshake may have shut this client out.
        if self.snapshot.tls.as_ref().is_some_and(|acceptor| !stream.follow(acceptor)) {
            self.shared.refusals.count(Reason::Tls(Fault::BadCertificate));
            self.say(CLOSING, "TLS", &connection.peer, &"the client's certificate is no longer accepted");
            return Err(Lost::Violation);
        }
        connection.peer.identity = stream.identity().map(Arc::new);
        let shown =
            connection.peer.identity.as_ref().map_or(Ok(()), |shown| connection.place.shows(&shown.fingerprint));
        let why = match shown {
            Err(why) => why,
            Ok(()) if self.snapshot.admits(&connection.peer) => return Ok(()),
            Ok(()) => Reason::UnnamedCertificate,
        };
        self.shared.refusals.count(why);
        self.say(CLOSING, why.because(), &connection.peer, &why.because());
        Err(Lost::Violation)
    }

    fn attach(&mut self, connection: &mut Connection, session: Session) -> Result<(), Lost> {
        let snapshot = Arc::clone(&self.snapshot);
        let Some(volume) = snapshot.find(&session.export) else { return Err(Lost::Gone) };
        let Some((tenant_name, tenant)) = snapshot.tenant(volume, &connection.peer) else {
            return Err(Lost::Gone);
        };
        let account = self.shared.budget.account(&tenant_name).join();
        let (taken, most) = (self.shared.slots.taken(), self.shared.slots.len() as u32);
        // Tenants of other pools need connections, too.
        let shared_out = snapshot.tenants.iter().any(|of_pool| of_pool.keys().any(|name| *name != tenant_name));
        if shared_out && !may_have_another(account.connections() - 1, taken - 1, most) {
            let why = Reason::ConnectionsOfTenant;
            if let Some(not_logged) = self.count_refusal(why) {
                let (tenant, why) = (&tenant_name, why.because());
                tracing::info!(peer = %connection.peer, %tenant, why, not_logged, "closing a connection");
            }
            return Err(Lost::Violation);
        }
        self.move_to(connection, Set::of(account.connections()));
        connection.ahead.belongs_to(&account);
        volume.connections.fetch_add(1, Ordering::Relaxed);
        let limits = volume.limits(snapshot.config.server.max_request);
        let at_once = volume.backend.is_memory();
        tracing::debug!(peer = %connection.peer, volume = volume.name, tenant = %tenant_name, "export chosen");
        connection.ticket = None;
        self.shared.recorder.attached(connection.key, &connection.peer, &tenant_name);
        connection.phase = Phase::Attached(Box::new(Attached {
            session,
            volume: Arc::clone(volume),
            limits,
            tenant,
            account,
            tenant_name,
            at_once,
        }));
        Ok(())
    }

    /// Takes one request, or part of one, from the front of `input`; returns the number of bytes used, 0 if more bytes,
    /// memory or a free place are needed first.
    fn take_request(&mut self, connection: &mut Connection, input: &[u8]) -> Result<usize, Lost> {
        if !self.expect_payload(connection) {
            return Ok(0);
        }
        if connection.discard.is_some() {
            return Ok(self.skip(connection, input.len()));
        }
        if let Some(incoming) = &mut connection.incoming {
            let filled = incoming.filled;
            let buffer = incoming.request.buffer.as_mut().map_or(&mut [][..], |buffer| buffer.as_mut_slice());
            let there = input.len().min(buffer.len() - filled);
            buffer[filled..filled + there].copy_from_slice(&input[..there]);
            self.fill(connection, there);
            return Ok(there);
        }
        let Phase::Attached(attached) = &connection.phase else { return Ok(0) };
        let (header, header_len) = match request::parse(input, attached.session.extended()) {
            Ok(Some(parsed)) => parsed,
            Ok(None) => return Ok(0),
            Err(violation) => {
                self.say(CLOSING, "violation", &connection.peer, &violation);
                return Err(Lost::Violation);
            }
        };
        if header.command == Command::Disconnect {
            connection.said_goodbye = true;
            connection.ending = Ending::Draining;
            return Ok(header_len);
        }
        // No client takes the reply; a disconnect request may follow, with which the changes before it count.
        if connection.gone && !is_change(header.command) {
            return Ok(header_len);
        }
        if connection.is_full(self.shared.bounds.in_flight) {
            connection.paused = Paused::Full;
            return Ok(0);
        }
        let refused = request::validate(&header, &attached.limits, &attached.session).err();
        if let Some(errno) = refused {
            connection.requests += 1;
            self.note_refused(connection, &header, errno);
            connection.discard = Some(Discard {
                remaining: header.payload_len(attached.session.extended()),
                cookie: header.cookie,
                offset: header.offset,
                errno,
                whole: None,
            });
            return Ok(header_len + self.skip(connection, input.len() - header_len));
        }
        let work = attached.volume.work(header.command, header.flags, header.length);
        let pool = &self.snapshot.pools[attached.volume.pool];
        let asked = (header.command, header.flags);
        let slice = divide::slice_of(&attached.volume, pool, asked, &work, (header.offset, header.length));
        // What is allocated, not what is asked: a write of one byte takes a page. The slices of a write pay as they arrive. What
        // is inside a device counts in any case, if it has no payload as the least: it stays there when its client is gone, and
        // clients that come and go would heap up any amount of it.
        let memory = match header.command {
            Command::Write if slice.is_none() => BufferPool::capacity(header.length as usize) as u64,
            Command::Write => 0,
            Command::BlockStatus => (MAX_EXTENTS * size_of::<Extent>()) as u64,
            _ if attached.at_once => 0,
            Command::Read => match slice {
                None => BufferPool::capacity(header.length as usize) as u64,
                Some(slice) => header.length.next_multiple_of(slice) + slice,
            },
            _ => BufferPool::capacity(0) as u64,
        };
        let mut request = Request {
            command: header.command,
            flags: header.flags,
            cookie: header.cookie,
            offset: header.offset,
            length: header.length,
            ..Request::of(connection.key, attached.volume.id)
        };
        if memory > 0 {
            let Some(charge) = self.charge(connection, memory) else { return Ok(0) };
            request.charge = charge;
        }
        connection.requests += 1;
        match (header.command, slice) {
            (Command::Write, Some(slice)) => {
                Self::divide_write(connection, Divided::new(request, &work, slice, clock::now()));
                return Ok(header_len);
            }
            (_, Some(slice)) => {
                self.divide(connection, Divided::new(request, &work, slice, clock::now()));
                return Ok(header_len);
            }
            (Command::Write, None) => {}
            (_, None) => {
                self.enqueue(connection, work, request);
                return Ok(header_len);
            }
        }
        let Some(mut buffer) = self.buffers.take(header.length as usize) else {
            self.lacks_memory(header.length);
            self.note_refused(connection, &header, Errno::NoMem);
            connection.charged -= memory;
            let (remaining, cookie, offset) = (header.length, header.cookie, header.offset);
            connection.discard = Some(Discard { remaining, cookie, offset, errno: Errno::NoMem, whole: None });
            return Ok(header_len + self.skip(connection, input.len() - header_len));
        };
        let there = (input.len() - header_len).min(header.length as usize);
        buffer.as_mut_slice()[..there].copy_from_slice(&input[header_len..header_len + there]);
        request.buffer = Some(buffer);
        connection.progress.moved(there as u64);
        if there as u64 == header.length {
            self.enqueue(connection, work, request);
        } else {
            connection.incoming = Some(Incoming { request, work, filled: there });
        }
        Ok(header_len + there)
    }

    /// Skips up to `available` bytes of a refused write's payload, and answers the write once all of it is skipped; returns
    /// the number of bytes skipped.
    fn skip(&mut self, connection: &mut Connection, available: usize) -> usize {
        let Some(discard) = &mut connection.discard else { return 0 };
        let skipped = discard.remaining.min(available as u64);
        discard.remaining -= skipped;
        if discard.remaining == 0 {
            let (cookie, offset, errno, whole) = (discard.cookie, discard.offset, discard.errno, discard.whole);
            connection.discard = None;
            if let Some(whole) = whole {
                self.slice_done(connection, whole, 0, Charge::default(), Ok(Output::Nothing));
            } else if let Phase::Attached(attached) = &connection.phase {
                let header = reply::error(attached.session.framing, cookie, offset, errno);
                connection.out.push(Some(header), Payload::None, Charge::default());
                self.mark_dirty(connection);
            }
        }
        skipped as usize
    }

    /// Collects a complete request for its pool, to which it is submitted in this round.
    #[inline]
    pub(super) fn enqueue(&mut self, connection: &mut Connection, work: Work, request: Request) {
        let Phase::Attached(attached) = &connection.phase else { return };
        connection.in_flight += 1;
        connection.changes += u32::from(is_change(request.command));
        self.requests += 1;
        let pool = attached.volume.pool;
        self.pools[pool].incoming.push((attached.tenant, work, self.spare.take(request)));
        self.activate(pool);
    }

    /// Puts a pool on the list of pools to visit in this round, unless it is there already.
    #[inline]
    pub(super) fn activate(&mut self, pool: usize) {
        if let Some(work) = self.pools.get_mut(pool)
            && !work.active
        {
            work.active = true;
            work.wake_at = Instant::FAR_FUTURE;
            self.active.push_back(pool);
        }
    }
}
