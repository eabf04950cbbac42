//! From bytes to requests.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use evenkeel_control::Instant;
use evenkeel_nbd::server::{Access, Directory, Export, Session, Status, reply, request};
use evenkeel_nbd::wire::{Command, TransmissionFlags};
use evenkeel_policy::access::Barred;

use super::connection::{Attached, Connection, Discard, Ending, Incoming, Pace, Paused, Payload, Phase, Request};
use super::pump::EXTENTS_BYTES;
use super::transport::Peer;
use super::{SCRATCH_UNDER_PRESSURE, Worker};
use crate::backend::Backend;
use crate::buffer::BufferPool;
use crate::clock;
use crate::refusals::Reason;
use crate::shared::Snapshot;
use crate::tls;
use crate::volume::Volume;

/// Times a connection is read in a row before others get their turn.
const READS_IN_A_ROW: usize = 4;
/// Answers that a client may leave unread while it negotiates: a list of a thousand exports is long.
const MAX_ANSWERS: usize = 16;

/// A request of a connection that holds nothing gets so many bytes of buffer memory if there are any.
const SMALL: u64 = 64 << 10;

/// Why a connection must end now.
pub(super) enum Lost {
    /// The peer is gone.
    Gone,
    /// The peer broke the protocol.
    Violation,
}

/// The volumes as one client sees them.
struct Exports<'a> {
    snapshot: &'a Snapshot,
    peer: &'a Peer,
    /// It has started TLS.
    secure: bool,
    /// Why it was refused what it asked for, if it was.
    barred: Cell<Option<Barred>>,
}

/// Stands for every volume, real or not, that is asked for by a client who may have none.
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
    /// What lists say; who has shown no certificate under TLS has none to show.
    fn access(&self, verdict: Result<(), Barred>) -> Access {
        match verdict {
            Ok(()) => Access::Open,
            Err(Barred::NoCertificate) if !self.secure => Access::TlsOnly,
            Err(_) => Access::Refused,
        }
    }

    fn export<'a>(&'a self, volume: &'a Volume, verdict: Result<(), Barred>) -> Export<'a> {
        let limits = volume.limits();
        let access = match self.access(verdict) {
            Access::Open if self.snapshot.needs_tls(volume, self.peer) => Access::TlsOnly,
            access => access,
        };
        Export {
            name: &volume.name,
            description: self.snapshot.config.volumes.get(&volume.name).map_or("", |volume| &volume.description),
            size: limits.size,
            flags: volume.flags(),
            min_block: limits.min_block,
            preferred_block: volume.preferred_block(),
            max_payload: limits.max_payload,
            access,
        }
    }
}

impl Directory for Exports<'_> {
    fn visit(&self, f: &mut dyn FnMut(&Export<'_>)) {
        let each = |volume| f(&self.export(volume, self.snapshot.admits_to(volume, self.peer)));
        self.snapshot.volumes.iter().flatten().map(|volume| &**volume).for_each(each);
    }

    fn find(&self, name: &str, f: &mut dyn FnMut(&Export<'_>)) -> bool {
        let Some(volume) = self.snapshot.find(name) else {
            // Whoever may have nothing is not told what there is.
            let verdict = self.snapshot.config.admits(&self.peer.caller());
            self.barred.set(verdict.err());
            let access = self.access(verdict);
            if access != Access::Open {
                f(&Export { access, ..REFUSED });
            }
            return access != Access::Open;
        };
        let verdict = self.snapshot.admits_to(volume, self.peer);
        self.barred.set(verdict.err());
        f(&self.export(volume, verdict));
        true
    }
}

impl Worker {
    /// Reads from a connection and puts it back, or closes it.
    pub(super) fn receive(&mut self, mut connection: Box<Connection>) {
        let mut scratch = std::mem::take(&mut self.scratch);
        let watch = self.meter.start();
        let outcome = self.receive_into(&mut connection, &mut scratch);
        self.meter.stop(watch, &mut connection.toll);
        self.scratch = scratch;
        match outcome {
            Ok(()) => self.keep(connection),
            Err(Lost::Gone) => self.lose(connection),
            Err(Lost::Violation) => {
                // What was answered so far still goes out, best effort.
                let _ = connection.out.flush(
                    &mut connection.transport,
                    &mut self.send_list,
                    &mut self.buffers,
                    &self.shared.budget,
                );
                self.close(connection);
            }
        }
    }

    fn receive_into(&mut self, connection: &mut Connection, scratch: &mut [u8]) -> Result<(), Lost> {
        if connection.ending != Ending::Open {
            return Ok(());
        }
        let mut have = connection.leftover.len();
        let crowded = self.shared.sent_ahead.load(Ordering::Relaxed) > self.shared.budget.limit() / 4;
        let most = if crowded { (have + SCRATCH_UNDER_PRESSURE).min(scratch.len()) } else { scratch.len() };
        let scratch = &mut scratch[..most];
        if have > 0 {
            scratch[..have].copy_from_slice(&std::mem::take(&mut connection.leftover));
            self.shared.sent_ahead.fetch_sub(have as u64, Ordering::Relaxed);
            if connection.paused != Paused::No {
                connection.paused = Paused::No;
                have = self.parse(connection, scratch, have)?;
            }
        }
        connection.paused = if have == 0 { Paused::No } else { connection.paused };
        for _ in 0..READS_IN_A_ROW {
            if connection.paused != Paused::No || connection.ending != Ending::Open {
                break;
            }
            let into = connection.incoming.as_mut().map_or(&mut [][..], |incoming| {
                let filled = incoming.filled;
                incoming.request.buffer.as_mut().map_or(&mut [][..], |buffer| &mut buffer.as_mut_slice()[filled..])
            });
            let (payload_room, room) = (into.len(), scratch.len() - have);
            let received = connection.transport.receive(into, &mut scratch[have..], &mut self.send_list.room);
            if connection.transport.wants_send() {
                self.mark_dirty(connection);
            }
            let received = match received {
                // Nothing more will come.
                Ok(0) if connection.gone => return Err(Lost::Gone),
                Ok(0) => {
                    // Half-closed: what was asked is still answered.
                    connection.ending = Ending::Draining;
                    have = 0;
                    break;
                }
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !connection.gone => break,
                Err(error) => {
                    if let Some(why) = tls::reason(&error) {
                        if connection.volume().is_none() {
                            self.shared.refusals.count(Reason::Tls(why.into()));
                        }
                        tracing::info!(peer = %connection.peer, %why, "closing a connection: TLS failed");
                        return Err(Lost::Violation);
                    }
                    tracing::debug!(peer = %connection.peer, %error, "receiving failed");
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
        if have > 0 {
            connection.leftover = scratch[..have].to_vec();
            self.shared.sent_ahead.fetch_add(have as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    /// `bytes` more of a write have arrived in its buffer.
    fn fill(&mut self, connection: &mut Connection, bytes: usize) {
        let Some(mut incoming) = connection.incoming.take() else { return };
        incoming.filled += bytes;
        if incoming.filled as u64 == incoming.request.length {
            self.enqueue(connection, incoming.request);
        } else {
            incoming.pace.moved(bytes as u64);
            connection.incoming = Some(incoming);
        }
    }

    /// Understands the first `have` bytes of `scratch`; moves what it cannot use yet to the front and tells how much that is.
    fn parse(&mut self, connection: &mut Connection, scratch: &mut [u8], have: usize) -> Result<usize, Lost> {
        let mut at = 0;
        while at < have && connection.ending == Ending::Open {
            let input = &scratch[at..have];
            let used = match connection.phase {
                Phase::Handshake(_) => self.negotiate(connection, input)?,
                Phase::Attached(_) => self.take_request(connection, input)?,
            };
            match used {
                0 => break,
                used => at += used,
            }
        }
        if connection.ending != Ending::Open {
            return Ok(0);
        }
        scratch.copy_within(at..have, 0);
        Ok(have - at)
    }

    fn negotiate(&mut self, connection: &mut Connection, input: &[u8]) -> Result<usize, Lost> {
        if connection.out.len() >= MAX_ANSWERS {
            connection.paused = Paused::Full;
            return Ok(0);
        }
        self.identify(connection)?;
        let Phase::Handshake(handshake) = &mut connection.phase else { return Ok(0) };
        let mut answer = Vec::new();
        let secure = connection.transport.is_secure();
        let exports = Exports { snapshot: &self.snapshot, peer: &connection.peer, secure, barred: Cell::new(None) };
        let step = handshake.advance(input, &exports, &mut answer);
        if let Some(barred) = exports.barred.get()
            && !std::mem::replace(&mut connection.refused, true)
        {
            self.shared.refusals.count(Reason::Barred(barred));
            tracing::info!(peer = %connection.peer, why = barred.because(), "refusing a volume");
        }
        if !answer.is_empty() {
            connection.out.push(None, Payload::Owned(answer), 0);
            self.mark_dirty(connection);
        }
        let step = match step {
            Ok(step) => step,
            Err(violation) => {
                tracing::info!(peer = %connection.peer, %violation, "closing a connection");
                return Err(Lost::Violation);
            }
        };
        match step.status {
            Status::More => {}
            Status::StartTls => self.start_tls(connection, step.consumed == input.len())?,
            Status::Closed => connection.ending = Ending::Draining,
            Status::Transmission(session) => self.attach(connection, session)?,
        }
        Ok(step.consumed)
    }

    /// Hands the stream to TLS; `quiet`: the client has sent nothing since it asked for that.
    fn start_tls(&mut self, connection: &mut Connection, quiet: bool) -> Result<(), Lost> {
        let refuse = |connection: &Connection, why: &str| {
            tracing::info!(peer = %connection.peer, why, "closing a connection");
            Err(Lost::Violation)
        };
        if !quiet {
            return refuse(connection, "what it sent behind STARTTLS is not encrypted");
        }
        // The answer is the last that goes out as it is.
        let (list, buffers) = (&mut self.send_list, &mut self.buffers);
        let sent = connection.out.flush(&mut connection.transport, list, buffers, &self.shared.budget);
        if sent.is_err() {
            return Err(Lost::Gone);
        }
        if connection.out.len() > 0 {
            return refuse(connection, "it leaves answers unread and starts TLS");
        }
        let Some(acceptor) = &self.snapshot.tls else { return refuse(connection, "TLS is not offered any more") };
        match connection.transport.secure(Arc::clone(acceptor)) {
            Ok(()) => Ok(()),
            Err(error) => refuse(connection, &error.to_string()),
        }
    }

    /// Takes note of the client's certificate, once it is known.
    fn identify(&self, connection: &mut Connection) -> Result<(), Lost> {
        if connection.peer.cipher.is_some() {
            return Ok(());
        }
        let Some(stream) = connection.transport.tls() else { return Ok(()) };
        connection.peer.cipher = stream.cipher();
        if connection.peer.cipher.is_none() {
            return Ok(());
        }
        self.shared.tls_handshakes.fetch_add(1, Ordering::Relaxed);
        connection.peer.identity = stream.identity().map(Arc::new);
        if self.snapshot.admits(&connection.peer) {
            return Ok(());
        }
        self.shared.refusals.count(Reason::UnnamedCertificate);
        tracing::info!(peer = %connection.peer, "closing a connection: no tenant names its certificate");
        Err(Lost::Violation)
    }

    fn attach(&mut self, connection: &mut Connection, session: Session) -> Result<(), Lost> {
        let snapshot = Arc::clone(&self.snapshot);
        let Some(volume) = snapshot.find(&session.export) else { return Err(Lost::Gone) };
        let Some((tenant_name, tenant)) = snapshot.tenant(volume, &connection.peer) else {
            return Err(Lost::Gone);
        };
        volume.connections.fetch_add(1, Ordering::Relaxed);
        let limits = volume.limits();
        let reads_need_buffers = matches!(volume.backend, Backend::File(_) | Backend::Remote(_) | Backend::Rbd(_));
        tracing::debug!(peer = %connection.peer, volume = volume.name, tenant = %tenant_name, "export chosen");
        connection.ticket = None;
        connection.phase = Phase::Attached(Box::new(Attached {
            session,
            volume: Arc::clone(volume),
            limits,
            tenant,
            tenant_name,
            reads_need_buffers,
        }));
        Ok(())
    }

    /// Takes one request, or part of one, from the front of `input`; how many bytes it used.
    fn take_request(&mut self, connection: &mut Connection, input: &[u8]) -> Result<usize, Lost> {
        if connection.discard.is_some() {
            return Ok(self.skip(connection, input.len()));
        }
        if connection.outstanding() >= self.shared.bounds.in_flight {
            connection.paused = Paused::Full;
            return Ok(0);
        }
        let Phase::Attached(attached) = &connection.phase else { return Ok(0) };
        let (header, header_len) = match request::parse(input, attached.session.extended()) {
            Ok(Some(parsed)) => parsed,
            Ok(None) => return Ok(0),
            Err(violation) => {
                tracing::info!(peer = %connection.peer, %violation, "closing a connection");
                return Err(Lost::Violation);
            }
        };
        if header.command == Command::Disconnect {
            connection.said_goodbye = true;
            connection.ending = Ending::Draining;
            return Ok(header_len);
        }
        let refused = request::validate(&header, &attached.limits, &attached.session).err();
        if let Some(errno) = refused {
            connection.requests += 1;
            connection.discard = Some(Discard {
                remaining: header.payload_len(attached.session.extended()),
                cookie: header.cookie,
                offset: header.offset,
                errno,
            });
            return Ok(header_len + self.skip(connection, input.len() - header_len));
        }
        // What is allocated, not what is asked: a write of one byte takes a page.
        let charge = match header.command {
            Command::Write => BufferPool::capacity(header.length as usize),
            Command::Read if attached.reads_need_buffers => BufferPool::capacity(header.length as usize),
            Command::BlockStatus => EXTENTS_BYTES,
            _ => 0,
        } as u64;
        let volume = attached.volume.id;
        let work = attached.volume.work(header.command, header.flags, header.length);
        if charge > 0 && !self.charge(connection, charge) {
            return Ok(0);
        }
        connection.requests += 1;
        let mut request = Request {
            key: connection.key,
            volume,
            command: header.command,
            flags: header.flags,
            cookie: header.cookie,
            offset: header.offset,
            length: header.length,
            buffer: None,
            work,
            charge,
        };
        if header.command != Command::Write {
            self.enqueue(connection, request);
            return Ok(header_len);
        }
        let mut buffer = self.buffers.take(header.length as usize);
        let there = (input.len() - header_len).min(header.length as usize);
        buffer.as_mut_slice()[..there].copy_from_slice(&input[header_len..header_len + there]);
        request.buffer = Some(buffer);
        if there as u64 == header.length {
            self.enqueue(connection, request);
        } else {
            connection.incoming = Some(Incoming { request, filled: there, pace: Pace::new(clock::now()) });
        }
        Ok(header_len + there)
    }

    /// Takes bytes out of the buffer budget for a request, or makes the connection wait.
    fn charge(&mut self, connection: &mut Connection, bytes: u64) -> bool {
        // A connection may hold half of what is free, by its first request too: a header is sent quickly. However many
        // hoard what they do not take or send, each holds less than the one before, and something is left for
        // those that come. With nothing in use any request goes, or one of more than half would never.
        let (held, budget) = (connection.held(), &self.shared.budget);
        let exempt = held == 0 && (bytes <= SMALL || budget.used() == 0);
        if !exempt && held + bytes > budget.free() / 2 {
            if held > 0 {
                connection.paused = Paused::Full;
            } else {
                connection.paused = Paused::Memory((2 * bytes).min(budget.limit()));
                self.hungry.push(connection.key);
            }
            return false;
        }
        if !budget.try_take(bytes) {
            connection.paused = Paused::Memory(bytes);
            self.hungry.push(connection.key);
            return false;
        }
        connection.charged += bytes;
        true
    }

    /// Skips payload of a refused write; answers once all of it is gone.
    fn skip(&mut self, connection: &mut Connection, available: usize) -> usize {
        let Some(discard) = &mut connection.discard else { return 0 };
        let skipped = discard.remaining.min(available as u64);
        discard.remaining -= skipped;
        if discard.remaining == 0 {
            let (cookie, offset, errno) = (discard.cookie, discard.offset, discard.errno);
            connection.discard = None;
            if let Phase::Attached(attached) = &connection.phase {
                let header = reply::error(attached.session.framing, cookie, offset, errno);
                connection.out.push(Some(header), Payload::None, 0);
                self.mark_dirty(connection);
            }
        }
        skipped as usize
    }

    /// Hands a complete request to its pool in this round.
    #[inline]
    fn enqueue(&mut self, connection: &mut Connection, request: Request) {
        let Phase::Attached(attached) = &connection.phase else { return };
        connection.in_flight += 1;
        self.requests += 1;
        let pool = attached.volume.pool;
        self.pools[pool].incoming.push((attached.tenant, request.work, request));
        self.activate(pool);
    }

    /// Looks at a pool in this round.
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
