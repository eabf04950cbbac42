//! A worker's part of the flight recorder: notes every request that has ended, while requests are recorded.
//!
//! A note waits for the next reading of the clock that the worker's loop takes anyway, which gives the time of the end, and then
//! goes into the worker's ring. That is before the request's reply is sent.

use evenkeel_control::Instant;
use evenkeel_control::pool::Ticket;
use evenkeel_flight::{Kind, Outcome};
use evenkeel_nbd::wire::{self, Command, CommandFlags, Errno};

use super::Worker;
use super::connection::{Connection, Phase};
use super::divided::Divided;
use super::request::{ConnKey, Request};
use crate::clock;
use crate::recorder::ring::Producer;
use crate::recorder::{Record, Recorder};

/// A worker's notes and its ring.
#[derive(Default)]
pub(super) struct Tape {
    /// The session that the ring belongs to; 0 without a ring.
    session: u64,
    producer: Option<Producer<Record>>,
    /// Requests that have ended since the newest reading of the clock.
    notes: Vec<Record>,
}

impl Tape {
    /// Notes a request that has just ended; its `done` is set by [`Self::stamp`].
    fn note(&mut self, recorder: &Recorder, record: Record) {
        let session = recorder.session();
        if session != self.session {
            // Those before belong into the ring before.
            self.settle();
            self.producer = recorder.producer(session);
            self.session = if self.producer.is_some() { session } else { 0 };
        }
        if self.producer.is_some() {
            self.notes.push(record);
        }
    }

    /// Puts the requests that were noted into the ring, as ended at `now`.
    #[inline]
    pub(super) fn stamp(&mut self, now: Instant) {
        if !self.notes.is_empty() {
            self.put(now);
        }
    }

    fn put(&mut self, now: Instant) {
        for mut record in self.notes.drain(..) {
            record.done = now;
            // What was never dispatched, or never queued, was so until now.
            record.admitted = record.admitted.min(now);
            record.arrived = record.arrived.min(record.admitted);
            if let Some(producer) = &mut self.producer {
                producer.push(record, now.as_nanos());
            }
        }
    }

    /// Puts the requests that were noted into the ring; reads the clock if there are any.
    #[inline]
    pub(super) fn settle(&mut self) {
        if !self.notes.is_empty() {
            self.put(clock::now());
        }
    }

    /// Gives the ring back if its session is over; `session`: the one that is on.
    pub(super) fn rest(&mut self, session: u64) {
        if session != self.session {
            self.settle();
            self.producer = None;
            self.session = 0;
        }
    }
}

/// The kind of a command in recordings.
fn kind_of(command: Command) -> Kind {
    match command {
        Command::Read => Kind::Read,
        Command::Write => Kind::Write,
        Command::Flush => Kind::Flush,
        Command::Trim => Kind::Trim,
        Command::WriteZeroes => Kind::Zero,
        Command::Disconnect | Command::Cache | Command::BlockStatus | Command::Unknown(_) => Kind::Other,
    }
}

/// True if a command with these flags asks for durability.
fn is_durable(command: Command, flags: CommandFlags) -> bool {
    flags.contains(CommandFlags::FUA) && matches!(command, Command::Write | Command::Trim | Command::WriteZeroes)
}

/// The outcome of a request that ends with this error.
pub(super) fn failed(errno: Errno) -> Outcome {
    // All codes are below 109.
    Outcome::Failed(errno.code() as u16)
}

/// A record of a request of a connection, without tenant and times.
fn record(
    key: ConnKey,
    (pool, volume): (usize, u32),
    command: Command,
    flags: CommandFlags,
    outcome: Outcome,
) -> Record {
    Record {
        arrived: Instant::FAR_FUTURE,
        admitted: Instant::FAR_FUTURE,
        done: Instant::FAR_FUTURE,
        offset: 0,
        length: 0,
        key,
        tenant: None,
        volume,
        pool: pool as u32,
        outcome,
        kind: kind_of(command),
        durable: is_durable(command, flags),
    }
}

impl Worker {
    /// Notes that a request which the pool had dispatched has ended, with an error if it `failed`. A slice is not noted: its
    /// divided request is, when that is answered.
    #[inline]
    pub(super) fn note(&mut self, pool: usize, request: &Request, ticket: &Ticket, failed: Option<Errno>) {
        if self.shared.recorder.is_on() && request.slice.is_none() {
            self.note_dispatched(pool, request, ticket, failed);
        }
    }

    fn note_dispatched(&mut self, pool: usize, request: &Request, ticket: &Ticket, error: Option<Errno>) {
        let outcome = error.map_or(Outcome::Done, failed);
        let Request { key, volume, command, flags, offset, length, arrived, .. } = *request;
        let record = Record {
            arrived,
            admitted: ticket.in_flight_since(),
            offset,
            length,
            tenant: Some(ticket.tenant()),
            ..record(key, (pool, volume), command, flags, outcome)
        };
        self.tape.note(&self.shared.recorder, record);
    }

    /// Notes that a request was dropped before the pool dispatched it.
    pub(super) fn note_dropped(&mut self, request: &Request) {
        if !self.shared.recorder.is_on() || request.slice.is_some() {
            return;
        }
        let Request { key, volume, command, flags, offset, length, arrived, .. } = *request;
        let pool = self.snapshot.volume(volume).map_or(0, |volume| volume.pool);
        let record =
            Record { arrived, offset, length, ..record(key, (pool, volume), command, flags, Outcome::Cancelled) };
        self.tape.note(&self.shared.recorder, record);
    }

    /// Notes that a request was refused before it was handed to the pool.
    pub(super) fn note_refused(&mut self, connection: &Connection, header: &wire::Request, errno: Errno) {
        let Phase::Attached(attached) = &connection.phase else { return };
        if !self.shared.recorder.is_on() {
            return;
        }
        let place = (attached.volume.pool, attached.volume.id);
        let record = Record {
            offset: header.offset,
            length: header.length,
            tenant: Some(attached.tenant),
            ..record(connection.key, place, header.command, header.flags, failed(errno))
        };
        self.tape.note(&self.shared.recorder, record);
    }

    /// Notes that a divided request has ended.
    pub(super) fn note_whole(&mut self, connection: &Connection, divided: &Divided, outcome: Outcome) {
        let Phase::Attached(attached) = &connection.phase else { return };
        if !self.shared.recorder.is_on() {
            return;
        }
        let place = (attached.volume.pool, attached.volume.id);
        // As if it had waited for everything at first, and been at the device from then on.
        let at_device = divided.at_device.total();
        let admitted = at_device.map_or(Instant::FAR_FUTURE, |total| (clock::now() - total).max(divided.since));
        let record = Record {
            arrived: divided.since,
            admitted,
            offset: divided.offset,
            length: divided.slices.length(),
            tenant: Some(attached.tenant),
            ..record(connection.key, place, divided.command, divided.flags, outcome)
        };
        self.tape.note(&self.shared.recorder, record);
    }

    /// Notes the divided requests of a connection that is about to be closed: no more slices of them are carried out.
    pub(super) fn note_unfinished(&mut self, connection: &Connection) {
        if self.shared.recorder.is_on() {
            connection.divided.iter().for_each(|divided| self.note_whole(connection, divided, Outcome::Cancelled));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::ring::ring;

    #[test]
    fn what_was_noted_in_a_session_that_is_over_goes_into_its_ring() {
        let (producer, mut consumer) = ring(8).expect("memory");
        let mut tape = Tape { session: 7, producer: Some(producer), notes: Vec::new() };
        let key = ConnKey { slot: 0, generation: 0 };
        let noted = |offset| Record { offset, ..record(key, (0, 0), Command::Read, CommandFlags::NONE, Outcome::Done) };
        tape.notes.push(noted(1 << 20));
        // No session is on any more.
        tape.note(&Recorder::default(), noted(2 << 20));
        let mut taken = Vec::new();
        assert_eq!(consumer.drain(&mut taken), None);
        assert_eq!(taken.iter().map(|record: &Record| record.offset).collect::<Vec<_>>(), [1 << 20]);
        assert!(consumer.has_ended() && tape.notes.is_empty() && tape.session == 0);
    }
}
