//! Divides large requests into slices in front of the pool's scheduler, and answers each request once.
//!
//! To the pool, the back end and the buffers, a slice is a request of its own; only the connection knows which request a
//! slice belongs to. The slices of a write are dispatched as their payload arrives, so that a write that arrives slowly holds
//! the memory of one slice. Other requests have a few slices in flight; when one ends, the next is handed to the pool. The
//! first error of a slice is the answer to the request, and no further slice is handed out. A request that must be durable
//! ends with a flush of its own.
//!
//! Slices end at multiples of the slice size, so that the slices of aligned requests are aligned. Slices of trims and zeroing on
//! volumes in memory may end before: such a slice covers little that was written. So may slices of zeros that are written.

use std::sync::Arc;

use evenkeel_control::units::{Direction, Kind, Part, Work};
use evenkeel_flight::Outcome;
use evenkeel_nbd::server::reply;
use evenkeel_nbd::wire::{Command, CommandFlags, Errno};

use super::Worker;
use super::connection::{Connection, Payload, Phase};
use super::divided::Divided;
use super::recording::failed;
use super::request::{ConnKey, Output, Request, Slice, Whole};
use crate::backend::Backend;
use crate::budget::Charge;
use crate::buffer::BufferPool;
use crate::snapshot::SharedPool;
use crate::volume::{METADATA_RATIO, Volume, zeros_at_once};

/// Largest number of bytes that a worker copies into a volume in memory between two looks at the clock, in some 30 us. Larger
/// slices would save no time of a device.
pub(super) const COPIED_AT_ONCE: u64 = 256 << 10;

/// Size in bytes of one slice, at most, of a request of `length` bytes at `offset`; `None` if the request is not divided.
pub(super) fn slice_of(
    volume: &Volume,
    pool: &SharedPool,
    (command, flags): (Command, CommandFlags),
    work: &Work,
    (offset, length): (u64, u64),
) -> Option<u64> {
    let slice = match (command, work.kind) {
        // Sent from where they are: there is no device, and no buffer.
        (Command::Read, _) if matches!(volume.backend, Backend::Memory(_)) => return None,
        (_, Kind::Read) => pool.slice_bytes(Direction::Read),
        (Command::Write, Kind::Write) if volume.backend.is_memory() => {
            pool.slice_bytes(Direction::Write).min(COPIED_AT_ONCE)
        }
        (_, Kind::Write) => pool.slice_bytes(Direction::Write),
        (Command::Trim | Command::WriteZeroes, Kind::Meta) => METADATA_RATIO * pool.slice_bytes(Direction::Write),
        (_, Kind::Flush | Kind::Meta) => return None,
    };
    (length > slice || most(volume, (command, flags), offset, length) < length).then_some(slice)
}

/// Largest number of bytes of a slice that begins at `offset`, of at most `length` bytes. On a volume in memory, the time of a
/// trim or zeroing depends on how much of its range was written. In a file, zeros may have to be written.
fn most(volume: &Volume, (command, flags): (Command, CommandFlags), offset: u64, length: u64) -> u64 {
    match (&volume.backend, command) {
        (Backend::Memory(memory), Command::Trim | Command::WriteZeroes) => memory.step(offset, length),
        (Backend::File(_), Command::WriteZeroes) if volume.writes_zeros(flags) => length.min(zeros_at_once(offset)),
        _ => length,
    }
}

impl Worker {
    /// Divides a request that has no payload from the client, and hands its first slices to the pool.
    pub(super) fn divide(&mut self, connection: &mut Connection, divided: Divided) {
        let whole = connection.divided.insert(divided);
        self.hand_out_slices(connection, whole);
    }

    /// Divides a write; each slice begins when its payload arrives.
    pub(super) fn divide_write(connection: &mut Connection, divided: Divided) {
        connection.arriving = Some(connection.divided.insert(divided));
    }

    /// Begins the next slice of a write that is being received, with a buffer for the slice's payload. `None` if the
    /// connection must wait for buffer memory, or if the system has no memory, so that the write fails.
    pub(super) fn begin_slice(&mut self, connection: &mut Connection, whole: Whole) -> Option<(Work, Request)> {
        let Phase::Attached(attached) = &connection.phase else { return None };
        let volume = Arc::clone(&attached.volume);
        let divided = connection.divided.get(whole)?;
        let length = divided.slices.next();
        let charge = self.charge(connection, BufferPool::capacity(length as usize) as u64)?;
        let buffer = self.buffers.take(length as usize);
        let divided = connection.divided.get(whole)?;
        if buffer.is_none() {
            divided.failed.get_or_insert(Errno::NoMem);
            connection.charged -= charge.bytes();
            self.lacks_memory(length);
            return None;
        }
        let (work, mut request) = slice_request(divided, whole, connection.key, &volume);
        if divided.slices.left() == 0 {
            connection.arriving = None;
        }
        request.buffer = buffer;
        request.charge = charge;
        Some((work, request))
    }

    /// Begins no further slices of a write that is being received and has failed. Returns the number of bytes of its payload
    /// that are still to be received and skipped; `None` if it has not failed.
    pub(super) fn give_up_arriving(connection: &mut Connection, whole: Whole) -> Option<u64> {
        let divided = connection.divided.get(whole).filter(|divided| divided.failed.is_some())?;
        let left = divided.slices.left();
        // Stands for the payload: the answer goes out behind it.
        divided.slices.begin_last();
        connection.arriving = None;
        Some(left)
    }

    fn hand_out_slices(&mut self, connection: &mut Connection, whole: Whole) {
        let Phase::Attached(attached) = &connection.phase else { return };
        let volume = Arc::clone(&attached.volume);
        while let Some(divided) = connection.divided.get(whole)
            && divided.slices.may_begin()
            && divided.failed.is_none()
        {
            let (work, mut request) = slice_request(divided, whole, connection.key, &volume);
            let memory = if request.command == Command::Read { request.length as usize } else { 0 };
            request.charge = divided.charge.split(BufferPool::capacity(memory) as u64);
            self.enqueue(connection, work, request);
        }
    }

    /// Handles the end of a slice, or the end of the skipped rest of a failed write's payload.
    pub(super) fn slice_done(
        &mut self,
        connection: &mut Connection,
        whole: Whole,
        offset: u64,
        charge: Charge,
        result: Result<Output, Errno>,
    ) {
        let arriving = connection.arriving == Some(whole);
        let Some(divided) = connection.divided.get(whole) else { return };
        divided.slices.end();
        match result {
            Ok(Output::Bytes(buffer)) => {
                connection.charged += charge.bytes();
                divided.charge.join(charge);
                divided.read.push((offset, buffer));
            }
            // The payload has gone where it belongs.
            Ok(_) if matches!(divided.command, Command::Read | Command::Write) => {}
            Ok(_) => {
                connection.charged += charge.bytes();
                divided.charge.join(charge);
            }
            Err(errno) => {
                divided.failed.get_or_insert(errno);
            }
        }
        if divided.failed.is_none() && divided.slices.left() > 0 && !arriving {
            return self.hand_out_slices(connection, whole);
        }
        if !divided.slices.is_waiting() || arriving {
            return;
        }
        if divided.needs_flush() {
            divided.flushing = true;
            divided.slices.begin_last();
            let Phase::Attached(attached) = &connection.phase else { return };
            let flush = Request {
                command: Command::Flush,
                flags: CommandFlags::NONE,
                slice: Some(Box::new(Slice::of(whole, divided.since, Part::Middle))),
                ..Request::of(connection.key, attached.volume.id)
            };
            let work = flush.work(&attached.volume);
            return self.enqueue(connection, work, flush);
        }
        if let Some(divided) = connection.divided.remove(whole) {
            self.answer_whole(connection, *divided);
        }
    }

    /// Queues the reply to a divided request whose slices have all ended.
    fn answer_whole(&mut self, connection: &mut Connection, divided: Divided) {
        self.note_whole(connection, &divided, divided.failed.map_or(Outcome::Done, failed));
        let Divided { command, cookie, offset, slices, mut charge, mut read, failed, .. } = divided;
        let length = slices.length();
        connection.charged -= charge.bytes();
        let Phase::Attached(attached) = &connection.phase else { return };
        let framing = attached.session.framing;
        match failed {
            Some(errno) => {
                read.drain(..).for_each(|(_, buffer)| self.buffers.give(buffer));
                connection.out.push(
                    Some(reply::error(framing, cookie, offset, errno)),
                    Payload::None,
                    Charge::default(),
                );
            }
            None if command == Command::Read => {
                let mut header = Some(reply::read(framing, cookie, offset, length as u32));
                if let Backend::Emulate(memory, _) = &attached.volume.backend {
                    let at = memory.readable(offset, length);
                    let payload = Payload::in_place(&attached.volume.backend, at, offset, length);
                    connection.out.push(header, payload, Charge::default());
                }
                read.sort_unstable_by_key(|(offset, _)| *offset);
                for (_, buffer) in read {
                    let part = charge.split(BufferPool::capacity(buffer.len()) as u64);
                    connection.out.push(header.take(), Payload::Buffer(buffer), part);
                }
            }
            None => {
                connection.out.push(Some(reply::ok(framing, cookie, offset)), Payload::None, Charge::default());
            }
        }
        self.mark_dirty(connection);
    }
}

/// Begins the next slice of a divided request; returns the slice's work for the device, and the slice as a request without a
/// buffer.
fn slice_request(divided: &mut Divided, whole: Whole, key: ConnKey, volume: &Volume) -> (Work, Request) {
    let asked = (divided.command, divided.flags);
    let (offset, length, part) = divided.slices.begin_within(|offset, length| most(volume, asked, offset, length));
    let flags = divided.flags.without(CommandFlags::FUA);
    let slice = Some(Box::new(Slice::of(whole, divided.since, part)));
    let request = Request { command: divided.command, flags, offset, length, slice, ..Request::of(key, volume.id) };
    (request.work(volume), request)
}
