//! A connection of a job, with its requests in flight.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use evenkeel_nbd::client::{Connected, Expect, Replies, Request, Sink};
use evenkeel_nbd::wire::{Command, CommandFlags, Errno, Framing};
use evenkeel_net::dial::Dialed;
use evenkeel_net::tls::{Scratch, Stream as Tls};

use crate::error::{At, Error};
use crate::measure::Tally;
use crate::model::{Floor, Holds, Mismatch, Ticket};
use crate::pace::Pace;
use crate::region::Region;
use crate::send::SendQueue;
use crate::stream::{Op, Planned, Stream};

/// A slot for a request in flight, with the facts about the request that every job needs.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Cookie of the request; 0 while the slot is free.
    cookie: u64,
    offset: u64,
    length: u64,
    /// Instant from which the request's latency counts, in ns since the start of the phase.
    since: u64,
    op: Op,
    fua: bool,
}

/// State of a request in flight that checks of content and the journal need.
#[derive(Clone, Debug, Default)]
struct Evidence {
    ticket: Ticket,
    read_issued: u64,
    data: Vec<u8>,
    flushes: Vec<Floor>,
}

/// The requests in flight on one connection. A cookie contains the index of the request's slot and, in higher bits, a serial
/// number, by which a repeated answer is detected.
#[derive(Debug)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
    evidence: Vec<Evidence>,
    serial: u32,
}

impl Slots {
    fn new(depth: u32, with_evidence: bool) -> Self {
        Self {
            slots: vec![Slot::default(); depth as usize],
            // The lowest index is used first: with few requests in flight few slots are in the cache.
            free: (0..depth).rev().collect(),
            evidence: vec![Evidence::default(); if with_evidence { depth as usize } else { 0 }],
            serial: 0,
        }
    }

    /// Number of requests in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    #[inline]
    fn get(&self, cookie: u64) -> Option<&Slot> {
        self.slots.get(cookie as u32 as usize).filter(|slot| slot.cookie == cookie && cookie != 0)
    }

    /// Operation and offset of the request that has been in flight for longest.
    pub(crate) fn oldest(&self) -> Option<(Op, u64)> {
        let busy = self.slots.iter().filter(|slot| slot.cookie != 0);
        busy.min_by_key(|slot| slot.since).map(|slot| (slot.op, slot.offset))
    }
}

/// One connection of a job.
pub(crate) struct Connection {
    pub(crate) socket: OwnedFd,
    /// The TLS stream through which all bytes go; `None` without TLS.
    tls: Option<Box<Tls>>,
    pub(crate) slots: Slots,
    pub(crate) pace: Pace,
    pub(crate) stream: Stream,
    /// Index of the connection's region in the worker.
    pub(crate) region: usize,
    /// Number of requests that the connection may still send; `None` if only the duration bounds them.
    pub(crate) left: Option<u64>,
    /// Instant of the server's last answer, or at which a request was queued while none was in flight, in ns since the start
    /// of the phase. The timeout counts from it.
    pub(crate) heard: u64,
    /// True if the socket was full, so that it is polled for room.
    pub(crate) is_blocked: bool,
    out: SendQueue,
    framing: Framing,
    replies: Replies,
    /// Received bytes of an incomplete reply.
    carry: Vec<u8>,
}

/// The destination of the answers in one receive call: slots, region and batch.
struct Answers<'a> {
    slots: &'a mut Slots,
    region: &'a mut Region,
    batch: &'a mut Batch,
    now: u64,
}

/// Results of answers that the worker has not yet collected.
pub(crate) struct Batch {
    /// Counts of the measured run; `None` in other phases.
    pub(crate) tally: Option<Tally>,
    /// End of the warm-up, in ns since the start of the phase; earlier answers are not counted.
    pub(crate) counted_from: u64,
    /// True if ranges that become durable are collected for a journal.
    pub(crate) records: bool,
    /// Ranges that have become durable and are not yet in the journal.
    pub(crate) durable: Vec<Floor>,
    /// The first read that returned data which the volume cannot hold.
    pub(crate) mismatch: Option<Box<Mismatch>>,
    /// Operation, offset and error of the first request that failed.
    pub(crate) error: Option<(Op, u64, Errno)>,
    /// Instant of the last answer, in ns since the start of the phase.
    pub(crate) last_answer: u64,
}

impl Sink for Answers<'_> {
    #[inline]
    fn expect(&self, cookie: u64) -> Option<Expect> {
        let slot = self.slots.get(cookie)?;
        Some(Expect { command: command(slot.op), offset: slot.offset, length: slot.length, unfragmented: false })
    }

    #[inline]
    fn data(&mut self, cookie: u64, offset: u64, bytes: &[u8]) {
        if !self.slots.evidence.is_empty() {
            self.place(cookie, offset, bytes.len(), |out| out.copy_from_slice(bytes));
        }
    }

    fn hole(&mut self, cookie: u64, offset: u64, length: u64) {
        if !self.slots.evidence.is_empty() {
            self.place(cookie, offset, length as usize, |out| out.fill(0));
        }
    }

    #[inline]
    fn done(&mut self, cookie: u64, result: Result<(), Errno>) {
        let index = cookie as u32;
        let slot = std::mem::take(&mut self.slots.slots[index as usize]);
        self.slots.free.push(index);
        if !self.slots.evidence.is_empty() {
            self.judge(index, slot, result.is_ok());
        }
        let tally = self.batch.tally.as_mut().filter(|_| self.now >= self.batch.counted_from);
        match (result, tally) {
            (Ok(()), Some(tally)) => tally.done(slot.op, slot.length, self.now.saturating_sub(slot.since)),
            (Ok(()), None) => {}
            (Err(errno), tally) => {
                if let Some(tally) = tally {
                    tally.failed(errno);
                }
                self.batch.error.get_or_insert((slot.op, slot.offset, errno));
            }
        }
        self.batch.last_answer = self.now;
    }
}

impl Answers<'_> {
    /// Stores a part of a read's data until the whole read is answered.
    fn place(&mut self, cookie: u64, offset: u64, length: usize, write: impl FnOnce(&mut [u8])) {
        let Some(slot) = self.slots.get(cookie) else { return };
        let start = (offset - slot.offset) as usize;
        write(&mut self.slots.evidence[cookie as u32 as usize].data[start..start + length]);
    }

    /// Checks an answer against the possible content of its region, and updates the region.
    fn judge(&mut self, index: u32, slot: Slot, succeeded: bool) {
        let evidence = &mut self.slots.evidence[index as usize];
        let Some(model) = &mut self.region.model else { return };
        let (offset, length) = (slot.offset, slot.length);
        match slot.op {
            Op::Read => {
                let data = succeeded.then_some(evidence.data.as_slice());
                if let Err(mismatch) = model.end_read(offset, length, evidence.read_issued, data) {
                    self.batch.mismatch.get_or_insert(mismatch);
                }
            }
            Op::Write | Op::Zero | Op::Trim => {
                model.end_write(offset, length, evidence.ticket, succeeded);
                if !(succeeded && self.batch.records) {
                    return;
                }
                if slot.fua {
                    model.floors(offset, length, &mut self.batch.durable);
                } else {
                    self.region.completed(offset, length);
                }
            }
            Op::Flush => {
                let floors = std::mem::take(&mut evidence.flushes);
                if succeeded {
                    self.batch.durable.extend(floors);
                }
            }
        }
    }
}

/// Settings of a job that its connections need to send requests.
pub(crate) struct Sender<'a> {
    /// Payload of writes whose content is not checked.
    pub(crate) payload: &'a [u8],
    /// True if writes carry FUA.
    pub(crate) fua: bool,
}

impl Connection {
    /// A connection after its handshake. `region` is the index of its region; `checks`: the region's content is checked or
    /// recorded.
    pub(crate) fn new(
        (Dialed { socket, tls }, connected): (Dialed, &Connected),
        (stream, pace): (Stream, Pace),
        depth: u32,
        (region, checks): (usize, bool),
        left: Option<u64>,
    ) -> Self {
        Self {
            socket,
            tls,
            slots: Slots::new(depth, checks),
            pace,
            stream,
            region,
            left,
            heard: 0,
            is_blocked: false,
            out: SendQueue::default(),
            framing: connected.framing,
            replies: Replies::new(connected.framing, connected.context),
            carry: Vec::new(),
        }
    }

    /// True if the queue depth allows another request.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        !self.slots.free.is_empty()
    }

    /// Queues a request for sending; the queue depth must allow it. `since` is the instant at which the request was due, from
    /// which its latency counts.
    #[inline]
    pub(crate) fn queue(&mut self, planned: Planned, now: u64, since: u64, region: &mut Region, sender: &Sender<'_>) {
        let Some(index) = self.slots.free.pop() else { return };
        if self.slots.in_flight() == 1 {
            self.heard = now;
        }
        let slots = &mut self.slots;
        slots.serial = slots.serial.wrapping_add(1).max(1);
        let cookie = u64::from(slots.serial) << 32 | u64::from(index);
        let Planned { op, offset, length } = planned;
        let fua = sender.fua && matches!(op, Op::Write | Op::Zero | Op::Trim);
        slots.slots[index as usize] = Slot { cookie, offset, length, since, op, fua };
        let flags = if fua { CommandFlags::FUA } else { CommandFlags::NONE };
        let request = Request { cookie, command: command(op), flags, offset, length };
        let framing = self.framing;
        self.out.append(|out| request.encode(framing, out));

        let content = match slots.evidence.get_mut(index as usize) {
            Some(evidence) => begin(evidence, planned, region),
            None => None,
        };
        if op == Op::Write {
            match content {
                Some((content, generation)) => self.out.append(|out| {
                    let start = out.len();
                    out.resize(start + length as usize, 0);
                    content.fill(offset / crate::content::SECTOR, generation, &mut out[start..]);
                }),
                None => {
                    // Not always the same bytes, or a server that deduplicates would look too good.
                    let slack = sender.payload.len() - length as usize;
                    let start = if slack > 0 { (slots.serial as usize).wrapping_mul(64) % slack } else { 0 };
                    self.out.append_shared(start, length as usize);
                }
            }
        }
    }

    /// Sends queued bytes. True if none are left. `room`: scratch memory for TLS.
    pub(crate) fn send(&mut self, payload: &[u8], room: &mut Scratch) -> io::Result<bool> {
        match &mut self.tls {
            Some(tls) => self.out.send_encrypted(tls, self.socket.as_fd(), payload, room),
            None if self.out.is_empty() => Ok(true),
            None => Ok(self.out.send(self.socket.as_fd(), payload)?),
        }
    }

    /// Sends a disconnect request, which has no answer, unless other bytes are still queued. `room`: scratch memory for TLS.
    pub(crate) fn disconnect(&mut self, room: &mut Scratch) {
        if self.out.is_empty() {
            let request =
                Request { cookie: 0, command: Command::Disconnect, flags: CommandFlags::NONE, offset: 0, length: 0 };
            let framing = self.framing;
            self.out.append(|out| request.encode(framing, out));
            // The server may be gone, or not listening: then it will notice the end of the connection.
            let _ = self.send(&[], room);
            if let Some(tls) = &mut self.tls {
                tls.end(&self.socket.as_fd());
            }
        }
    }

    /// Handles the answers that have arrived, about one buffer full. `clock` is read once for all of them. `room`: scratch memory
    /// for TLS.
    ///
    /// # Errors
    /// A lost connection, or a server that violates the protocol.
    pub(crate) fn receive(
        &mut self,
        (buffer, room): (&mut [u8], &mut Scratch),
        region: &mut Region,
        batch: &mut Batch,
        clock: impl Fn() -> u64,
    ) -> Result<(), Error> {
        self.receive_once(buffer, room, region, batch, &clock)?;
        // Of what TLS has received no event reports.
        while self.tls.as_ref().is_some_and(|tls| tls.has_received()) {
            self.receive_once(buffer, room, region, batch, &clock)?;
        }
        Ok(())
    }

    fn receive_once(
        &mut self,
        buffer: &mut [u8],
        room: &mut Scratch,
        region: &mut Region,
        batch: &mut Batch,
        clock: &impl Fn() -> u64,
    ) -> Result<(), Error> {
        let carried = self.carry.len();
        buffer[..carried].copy_from_slice(&self.carry);
        let received = match &mut self.tls {
            Some(tls) => tls.receive(&self.socket.as_fd(), &mut [], &mut buffer[carried..], room),
            None => rustix::net::recv(&self.socket, &mut buffer[carried..], rustix::net::RecvFlags::empty())
                .map(|(received, _)| received)
                .map_err(io::Error::from),
        };
        let received = match received {
            Ok(0) => return Err(Error::Server("the server closed the connection".into())),
            Ok(received) => received,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                return Ok(());
            }
            Err(error) => return Err(error).at("the connection broke"),
        };
        let now = clock();
        self.heard = now;
        let filled = carried + received;
        let mut answers = Answers { slots: &mut self.slots, region, batch, now };
        let consumed = self.replies.parse(&buffer[..filled], &mut answers)?;
        self.carry.clear();
        self.carry.extend_from_slice(&buffer[consumed..filled]);
        Ok(())
    }
}

/// Records that a request is about to be sent. For a write whose content is checked, returns content and generation.
fn begin(evidence: &mut Evidence, planned: Planned, region: &mut Region) -> Option<(crate::content::Content, u64)> {
    let Planned { op, offset, length } = planned;
    if op == Op::Flush {
        evidence.flushes = region.begin_flush();
        return None;
    }
    let model = region.model.as_mut()?;
    match op {
        Op::Read => {
            evidence.read_issued = model.begin_read(offset, length);
            evidence.data.resize(length as usize, 0);
            None
        }
        Op::Write => {
            evidence.ticket = model.begin_write(offset, length);
            Some((model.content, evidence.ticket.generation))
        }
        Op::Zero => {
            evidence.ticket = model.begin_discard(offset, length, Holds::Zeroes);
            None
        }
        Op::Trim => {
            evidence.ticket = model.begin_discard(offset, length, Holds::Unknown);
            None
        }
        Op::Flush => None,
    }
}

#[inline]
fn command(op: Op) -> Command {
    match op {
        Op::Read => Command::Read,
        Op::Write => Command::Write,
        Op::Zero => Command::WriteZeroes,
        Op::Trim => Command::Trim,
        Op::Flush => Command::Flush,
    }
}
