//! A worker's operations in flight: on a file, another server, a Ceph cluster or a modelled device.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use evenkeel_control::pool::{Outcome, Ticket};
use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};
use evenkeel_nbd::wire::{Command, CommandFlags, Errno};
use evenkeel_policy::state::OverdueIo;

use super::Worker;
use super::request::{Output, Request};
use super::stepwise::Ready;
use crate::backend::Backend;
use crate::backend::operation::{FileIo, IoResult, MAX_EXTENTS};
use crate::backend::overlap::Pass;
use crate::buffer::Buffer;
use crate::clock;
use crate::engine::priority::{ORDINARY, URGENT};
use crate::engine::threads::Job;
use crate::engine::uring::MOST_OF_VOLUME;
use crate::volume::Volume;

#[cfg(test)]
mod tests;

/// Time after which an operation is tried again because the kernel lacked resources for it.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(10);
/// Number of times that an operation is tried again for lack of resources before it fails: for 5 s.
const MAX_TRIES: u32 = 500;
/// Largest number of overdue operations that a worker lists in its report.
const MAX_REPORTED: usize = 64;
/// Largest number of overdue operations that are given up while a pool's lock is held once.
const GIVEN_UP_AT_ONCE: usize = 256;

/// Bytes of a block, of which file systems make holes.
const BLOCK: usize = 4 << 10;
/// Largest number of blocks of a read that are looked at for zeros.
const LOOKS: usize = 16;
/// Bytes of a word, and distance of the words of a block that are looked at: the first, the last, and six between them, each at
/// another place in its sector. Many blocks of data are zero in part.
const WORD: usize = 8;
const STRIDE: usize = (BLOCK - WORD) / 7;

/// One operation on a back end, from its start until it is reported done. Its buffer stays in this entry until then.
pub(super) struct Operation {
    pool: usize,
    volume: Arc<Volume>,
    request: Box<Request>,
    ticket: Ticket,
    /// The buffer that a read fills; `None` for other commands.
    buffer: Option<Buffer>,
    /// The exclusive right to the pages that the operation's present step touches, see [`crate::backend::overlap`].
    pass: Option<Pass>,
    /// Bytes done so far: the kernel may move fewer bytes than asked, and librbd zeroes long ranges in steps.
    moved: u64,
    /// True if bytes that must be durable were written without FUA, so that a sync must follow.
    unsynced: bool,
    /// True if all bytes are done, and the sync that makes them durable is next or under way.
    syncing: bool,
    /// Number of times that the kernel lacked resources for the operation.
    tries: u32,
    /// True while the operation is in the worker's io_uring.
    in_ring: bool,
    started: Instant,
    reported: bool,
}

/// A worker's table of operations in flight, by token.
#[derive(Default)]
pub(super) struct Operations {
    entries: Vec<Option<Operation>>,
    free: Vec<u32>,
    /// Operations to be tried again, for which the kernel lacked resources: when, and their tokens. The earliest is first.
    again: VecDeque<(Instant, u32)>,
    /// Overdue operations that are to be given up: the index of their pool, and their tokens.
    lost: Vec<(usize, u32)>,
    /// Number of operations of each volume in the worker's io_uring, by the volume's id.
    pub(super) in_ring: Vec<u32>,
}

impl Drop for Operations {
    /// Never frees operations in flight, not even in a panic: the kernel or a thread may still write to their buffers.
    fn drop(&mut self) {
        if !self.is_empty() {
            std::mem::forget(std::mem::take(&mut self.entries));
        }
    }
}

impl Operations {
    pub(super) fn insert(&mut self, operation: Operation) -> u32 {
        if let Some(token) = self.free.pop() {
            self.entries[token as usize] = Some(operation);
            return token;
        }
        self.entries.push(Some(operation));
        self.entries.len() as u32 - 1
    }

    fn remove(&mut self, token: u32) -> Option<Operation> {
        let operation = self.entries.get_mut(token as usize)?.take()?;
        self.free.push(token);
        Some(operation)
    }

    /// When to call [`Worker::try_again`]; [`Instant::FAR_FUTURE`] if no operation waits for it.
    pub(super) fn next_try(&self) -> Instant {
        self.again.front().map_or(Instant::FAR_FUTURE, |&(at, _)| at)
    }

    /// True if [`Worker::give_up_overdue`] has something to do.
    pub(super) fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Worker {
    /// Starts the operation of a request on a volume in a file, on another server or in a Ceph cluster.
    pub(super) fn start_operation(&mut self, mut operation: Operation) {
        let request = &operation.request;
        let needs_sync = request.command == Command::Flush || request.is_durable();
        if needs_sync && operation.volume.is_sync_failed() {
            self.note(operation.pool, &operation.request, &operation.ticket, Some(Errno::Io));
            self.pools[operation.pool].completed.push((operation.ticket, Outcome::Failed));
            self.answer(operation.request, Err(Errno::Io));
            return;
        }
        if request.command == Command::Read {
            operation.buffer = self.buffers.take(request.length as usize);
            if operation.buffer.is_none() {
                self.lacks_memory(operation.request.length);
                self.note(operation.pool, &operation.request, &operation.ticket, Some(Errno::NoMem));
                self.pools[operation.pool].completed.push((operation.ticket, Outcome::Failed));
                return self.answer(operation.request, Err(Errno::NoMem));
            }
        }
        let token = self.operations.insert(operation);
        self.issue(token);
    }

    /// Logs that the system has no memory for the payload (`bytes` long) of a request, unless that was logged a moment ago.
    #[cold]
    pub(super) fn lacks_memory(&mut self, bytes: u64) {
        if let Some(more) = self.count_failure("payload", libc::ENOMEM) {
            tracing::warn!(
                bytes,
                not_logged = more,
                "no memory for the payload of a request, which fails with ENOMEM; lower server.buffer_memory, or raise the limit of the process (ulimit -v) or of the system"
            );
        }
    }

    /// Submits the operations in the worker's io_uring to the kernel.
    pub(super) fn submit(&mut self) {
        let Some(ring) = &mut self.ring else { return };
        ring.submit();
        for token in ring.give_up() {
            self.start(token);
        }
    }

    /// Starts the next step of an operation, unless the step must wait for other operations on the same pages.
    fn issue(&mut self, token: u32) {
        let Some(Some(operation)) = self.operations.entries.get_mut(token as usize) else { return };
        let io = operation.next_io();
        if let Backend::File(file) = &operation.volume.backend
            && let Some((lane, offset, len)) = file.lane(&io)
        {
            let (pass, may_start) = file.overlaps().enter(lane, offset, len, &self.reports, token);
            operation.pass = Some(pass);
            if !may_start {
                return;
            }
        }
        self.hand_out(token, io);
    }

    /// Starts the next step of an operation that need not wait for others any more, or that was queued on a ring that has
    /// been given up.
    pub(super) fn start(&mut self, token: u32) {
        let Some(Some(operation)) = self.operations.entries.get_mut(token as usize) else { return };
        if operation.moved == 0 && operation.tries == 0 && !operation.syncing {
            // A client could make its own requests wait for each other, and so make the device look slow.
            operation.ticket.waited_until(clock::now());
        }
        let io = operation.next_io();
        self.hand_out(token, io);
    }

    /// Hands a step of an operation to the io_uring, to a thread, to the driver of another server, or to librbd.
    fn hand_out(&mut self, token: u32, io: FileIo) {
        let Operations { entries, in_ring, .. } = &mut self.operations;
        let Some(Some(operation)) = entries.get_mut(token as usize) else { return };
        operation.leave_ring(in_ring);
        if let Backend::Remote(remote) = &operation.volume.backend {
            return remote.submit(io, token, &self.reports);
        }
        if let Backend::Rbd(rbd) = &operation.volume.backend
            && !matches!(io, FileIo::Extents { .. })
        {
            return rbd.submit(io, token, &self.reports);
        }
        let (reserved, tenant) = (operation.ticket.is_reserved(), operation.ticket.tenant());
        let priority = if reserved && self.shared.raises_priority { URGENT } else { ORDINARY };
        let id = operation.volume.id as usize;
        if in_ring.len() <= id {
            in_ring.resize(id + 1, 0);
        }
        // What the ring had no means for is for a thread.
        if let (Some(ring), Backend::File(file), 0) = (&mut self.ring, &operation.volume.backend, operation.tries)
            && in_ring[id] < MOST_OF_VOLUME.min(ring.room())
            && ring.push(token, &io, file, priority)
        {
            in_ring[id] += 1;
            operation.in_ring = true;
            return;
        }
        let volume = Arc::clone(&operation.volume);
        let reply_to = Arc::clone(&self.reports);
        let job = Job { io, volume: Arc::clone(&volume), tenant, token, reply_to, reserved, priority };
        volume.threads.submit(job);
    }

    /// Takes completions from the io_uring, and continues operations of which only a part was done.
    pub(super) fn reap(&mut self) {
        if let Some(mut ring) = self.ring.take() {
            ring.reap(|token, code| self.operation_done(token, IoResult::Code(code)));
            self.ring = Some(ring);
        }
        for token in std::mem::take(&mut self.unfinished) {
            self.issue(token);
        }
    }

    /// Tries those operations again that are due, for a [turn](Self::turn); the others come in the next round. Each may fail to
    /// start a thread, which takes some 20 us, and is then due after another [`TRY_AGAIN_AFTER`].
    pub(super) fn try_again(&mut self) {
        let begun = clock::now();
        while self.operations.again.front().is_some_and(|&(at, _)| at <= begun)
            && let Some((_, token)) = self.operations.again.pop_front()
        {
            self.issue(token);
            if clock::now() >= begun + self.turn() {
                break;
            }
        }
    }

    /// Handles the result of a step of an operation: continues the operation, or ends it and answers its request.
    pub(super) fn operation_done(&mut self, token: u32, result: IoResult) {
        self.waking.others();
        let Operations { entries, in_ring, .. } = &mut self.operations;
        let Some(Some(operation)) = entries.get_mut(token as usize) else { return };
        operation.leave_ring(in_ring);
        if let (Some(pass), Backend::File(file)) = (operation.pass.take(), &operation.volume.backend) {
            file.overlaps().leave(pass);
        }
        let verdict = operation.advance(&result);
        match verdict {
            Verdict::Continue => return self.unfinished.push(token),
            Verdict::TryAgain => return self.operations.again.push_back((clock::now() + TRY_AGAIN_AFTER, token)),
            Verdict::Done | Verdict::Failed(_) | Verdict::Dearer | Verdict::Part => {}
        }
        let Some(operation) = self.operations.remove(token) else { return };
        let Operation { pool, volume, mut request, mut ticket, buffer, .. } = operation;
        if matches!(verdict, Verdict::Dearer | Verdict::Part) {
            let mut outcome = Outcome::Cancelled;
            if verdict == Verdict::Part {
                request.zeroed += ticket.work().bytes;
                outcome = Outcome::Done;
            }
            // Whichever worker serves the connection, it is the same tenant's; one that has left meanwhile gives it back.
            let tenant = ticket.tenant();
            self.pools[pool].completed.push((ticket, outcome));
            self.pools[pool].incoming.push((tenant, request.next_zeros(), request));
            return self.activate(pool);
        }
        if let Backend::Emulate(..) = &volume.backend {
            self.pools[pool].ready.push_back(Ready::off_device(request, ticket));
            return self.activate(pool);
        }
        if let IoResult::Extents(extents) = &result {
            volume.has_found(extents.len());
        }
        let result = match (verdict, result) {
            (Verdict::Failed(errno), _) => Err(errno),
            (_, IoResult::Extents(extents)) => Ok(Output::Extents(extents)),
            (_, IoResult::Code(_)) => Ok(buffer.map_or(Output::Nothing, Output::Bytes)),
        };
        let outcome = if result.is_ok() { Outcome::Done } else { Outcome::Failed };
        if let Ok(Output::Bytes(read)) = &result
            && may_be_hole(read.as_slice(), ticket.admitted_at().as_nanos() as usize)
        {
            ticket.note_blank();
        }
        if request.command == Command::Trim && result.is_ok() {
            volume.has_trimmed(request.length, ticket.work().part.ends());
        }
        self.note(pool, &request, &ticket, result.as_ref().err().copied());
        self.pools[pool].completed.push((ticket, outcome));
        self.activate(pool);
        self.answer(request, result);
    }

    /// Reports overdue operations, which the back end seems to have lost; [`Self::give_up_overdue`] does the rest.
    pub(super) fn report_overdue(&mut self, now: Instant) {
        let snapshot = Arc::clone(&self.snapshot);
        let mut report = Vec::new();
        self.operations.lost.clear();
        for (token, entry) in (0..).zip(&self.operations.entries) {
            let Some(operation) = entry else { continue };
            let pool = &snapshot.pools[operation.pool];
            let limit = Duration::from_nanos(pool.overdue_after_ns.load(Ordering::Relaxed));
            if now.since(operation.started) < limit {
                continue;
            }
            if report.len() < MAX_REPORTED {
                let (volume, request) = (&operation.volume, &operation.request);
                let kind = kind_name(operation.ticket.work().kind);
                let io = overdue(&volume.name, kind, request.offset, request.length, operation.started, now);
                report.push((operation.pool, io));
            }
            if !operation.reported {
                self.operations.lost.push((operation.pool, token));
            }
        }
        if !report.is_empty() {
            for index in 0..self.pools.len() {
                self.activate(index);
            }
        }
        *self.shared.stats[self.index].overdue.lock().unwrap_or_else(PoisonError::into_inner) = report;
    }

    /// Frees the share of the admission budget of operations that [`Self::report_overdue`] has found: of the next
    /// [`GIVEN_UP_AT_ONCE`], and of more before `until`. The rest waits for the next round.
    pub(super) fn give_up_overdue(&mut self, now: Instant, until: Instant) {
        let snapshot = Arc::clone(&self.snapshot);
        while self.operations.has_lost() {
            let from = self.operations.lost.len().saturating_sub(GIVEN_UP_AT_ONCE);
            let mut some = self.operations.lost.split_off(from);
            some.sort_unstable();
            for of_pool in some.chunk_by(|one, next| one.0 == next.0) {
                let index = of_pool[0].0;
                let pool = &snapshot.pools[index];
                let limit = Duration::from_nanos(pool.overdue_after_ns.load(Ordering::Relaxed));
                let mut state = pool.lock();
                for &(_, token) in of_pool {
                    // It may have come back meanwhile, and its token may be another operation's.
                    if let Some(Some(operation)) = self.operations.entries.get_mut(token as usize)
                        && operation.pool == index
                        && now.since(operation.started) >= limit
                    {
                        operation.reported = true;
                        state.give_up(now, &mut operation.ticket);
                    }
                }
                drop(state);
                let lost = of_pool.iter().filter_map(|&(_, token)| self.operations.entries[token as usize].as_ref());
                lost.filter(|operation| operation.reported).for_each(|operation| log_overdue(operation, now));
                self.activate(index);
            }
            if clock::now() >= until {
                return;
            }
        }
    }
}

/// Logs that an operation is overdue, unless that was logged of another one a moment ago.
fn log_overdue(operation: &Operation, now: Instant) {
    let (volume, request) = (&operation.volume, &operation.request);
    let kind = kind_name(operation.ticket.work().kind);
    // A device that hangs keeps thousands.
    if let Some(not_logged) = volume.count_failure(kind, &io::Error::from_raw_os_error(libc::ETIMEDOUT)) {
        tracing::error!(
            volume = volume.name,
            kind,
            offset = request.offset,
            bytes = request.length,
            age_s = now.since(operation.started).as_secs_f64(),
            not_logged,
            "an operation has not come back from the back end; other requests no longer wait for it. Look at the kernel's log, or at the server or cluster behind the volume"
        );
    }
}

/// The record of an overdue operation, which has been in flight from `since` to `now`.
fn overdue(volume: &str, kind: &'static str, offset: u64, bytes: u64, since: Instant, now: Instant) -> OverdueIo {
    OverdueIo {
        volume: volume.to_owned(),
        age_s: now.since(since).as_secs_f64(),
        kind: kind.to_owned(),
        offset_bytes: offset,
        length_bytes: bytes,
    }
}

/// Name of a kind of operation in reports.
fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Read => "read",
        Kind::Write => "write",
        Kind::Flush => "flush",
        Kind::Meta => "other",
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Continue,
    TryAgain,
    Done,
    Failed(Errno),
    /// The zeros must be written, which costs more than was charged: the request goes back to the pool's queue.
    Dearer,
    /// As many zeros are written as were charged: for the rest, the request goes back to the pool's queue.
    Part,
}

impl Operation {
    /// The operation of a request that the pool dispatched at `started`; it is not in the back end yet.
    pub(super) fn new(
        pool: usize,
        volume: &Arc<Volume>,
        request: Box<Request>,
        ticket: Ticket,
        started: Instant,
    ) -> Self {
        Self {
            pool,
            volume: Arc::clone(volume),
            request,
            ticket,
            buffer: None,
            pass: None,
            moved: 0,
            unsynced: false,
            syncing: false,
            tries: 0,
            in_ring: false,
            started,
            reported: false,
        }
    }

    /// Counts the operation out of the worker's io_uring, if it was there.
    #[inline]
    fn leave_ring(&mut self, in_ring: &mut [u32]) {
        if std::mem::take(&mut self.in_ring) {
            in_ring[self.volume.id as usize] -= 1;
        }
    }

    /// The next step of the operation as a call to the back end.
    fn next_io(&mut self) -> FileIo {
        let request = &mut self.request;
        let (offset, len) = (request.offset, request.length);
        if self.syncing {
            return FileIo::Sync { turn: self.volume.ask_for_sync() };
        }
        let moved = self.moved;
        match request.command {
            Command::Read => {
                let buffer = self.buffer.as_mut().expect("a read has a buffer");
                // SAFETY: fewer bytes were moved than the buffer has.
                let ptr = unsafe { buffer.as_mut_ptr().add(moved as usize) };
                FileIo::Read { ptr, len: (len - moved) as u32, offset: offset + moved }
            }
            Command::Write => {
                let buffer = request.buffer.as_mut().expect("a write has a buffer");
                // SAFETY: as above.
                let ptr = unsafe { buffer.as_mut_ptr().add(moved as usize) };
                let (len, offset) = ((len - moved) as u32, offset + moved);
                // Only past the page cache: through it, a failure would use up the one report
                // of lost data that the next flush relies on. A sync follows instead.
                let direct = match &self.volume.backend {
                    Backend::File(file) => file.is_direct(ptr, offset, len),
                    Backend::Remote(remote) => remote.guaranteed().has_fua(),
                    // librbd may be told to cache where we cannot see it, in the image's own settings.
                    Backend::Rbd(_) | Backend::Memory(_) | Backend::Emulate(..) => false,
                };
                let durable = request.is_durable();
                self.unsynced |= durable && !direct;
                FileIo::Write { ptr, len, offset, durable: durable && direct }
            }
            Command::Trim => FileIo::Trim { offset: offset + moved, len: len - moved },
            Command::WriteZeroes => FileIo::Zero {
                offset: offset + u64::from(request.zeroed) + moved,
                len: zeros_of_step(request, &self.ticket) - moved,
                punch: !request.flags.contains(CommandFlags::NO_HOLE),
                may_write: self.ticket.work().kind == Kind::Write,
            },
            Command::Cache => FileIo::Cache { offset, len },
            Command::BlockStatus => FileIo::Extents { offset, len, max: MAX_EXTENTS },
            _ => FileIo::Sync { turn: self.volume.ask_for_sync() },
        }
    }

    fn advance(&mut self, result: &IoResult) -> Verdict {
        let IoResult::Code(code) = *result else { return Verdict::Done };
        let command = self.request.command;
        if let Backend::Emulate(..) = self.volume.backend {
            return Verdict::Done;
        }
        let is_sync = self.syncing || command == Command::Flush;
        let durable_write = command == Command::Write && self.request.is_durable() && !self.unsynced;
        if code < 0 {
            let may_write = !self.request.flags.contains(CommandFlags::FAST_ZERO);
            let charged = self.ticket.work().kind == Kind::Write;
            if -code == libc::EOPNOTSUPP && command == Command::WriteZeroes && may_write && !charged {
                return Verdict::Dearer;
            }
            // No thread, of ours or of the ring's, no memory for the request, a signal: it was not carried out, and says
            // nothing of the device.
            let not_tried = matches!(-code, libc::EAGAIN | libc::EINTR | libc::ECANCELED);
            if not_tried && self.tries < MAX_TRIES {
                self.tries += 1;
                return Verdict::TryAgain;
            }
            let error = std::io::Error::from_raw_os_error(-code);
            // A failed sync was recorded where it failed. Of a durable write the part that makes it durable
            // may have failed, and with it what others wrote; want of space comes from before that part.
            // The driver of a remote server keeps that record itself: it alone knows whether the server was asked.
            let in_file = matches!(self.volume.backend, Backend::File(_));
            if in_file && durable_write && !not_tried && !matches!(-code, libc::ENOSPC | libc::EDQUOT | libc::EFBIG) {
                self.volume.sync_has_failed(&error);
            }
            // The loss of the remote server has been logged once; thousands of failures may follow.
            if !matches!(&self.volume.backend, Backend::Remote(remote) if remote.is_away()) {
                self.volume.has_failed(
                    kind_name(self.ticket.work().kind),
                    self.request.offset,
                    self.request.length,
                    &error,
                );
            }
            let gone = -code == libc::ENOSPC
                && matches!(&self.volume.backend, Backend::File(file) if file.is_cut_short(self.volume.size()));
            // A client may wait for space; for a device that is gone it would wait for ever.
            let beyond = -code == libc::EINVAL && matches!(self.volume.backend, Backend::Rbd(_));
            return Verdict::Failed(match (gone, beyond) {
                (true, _) => Errno::Io,
                // The image has shrunk since the client was told its size.
                (_, true) => Errno::Invalid,
                _ => errno_of(-code),
            });
        }
        if is_sync {
            // Another sync may have failed, and taken the kernel's one report of it, while this one was under way.
            return if self.volume.is_sync_failed() { Verdict::Failed(Errno::Io) } else { Verdict::Done };
        }
        match command {
            Command::Read | Command::Write => {
                self.moved += code as u64;
                if self.moved == self.request.length {
                    self.syncing = self.unsynced;
                    return if self.unsynced { Verdict::Continue } else { Verdict::Done };
                }
                if code == 0 {
                    let error = std::io::Error::other("the file is shorter than the volume");
                    self.volume.has_failed(
                        kind_name(self.ticket.work().kind),
                        self.request.offset,
                        self.request.length,
                        &error,
                    );
                    return Verdict::Failed(Errno::Io);
                }
                Verdict::Continue
            }
            Command::Trim | Command::WriteZeroes if code > 0 => {
                self.moved += code as u64;
                Verdict::Continue
            }
            Command::WriteZeroes
                if u64::from(self.request.zeroed) + zeros_of_step(&self.request, &self.ticket)
                    < self.request.length =>
            {
                Verdict::Part
            }
            Command::Trim | Command::WriteZeroes if self.request.is_durable() => {
                self.syncing = true;
                Verdict::Continue
            }
            _ => Verdict::Done,
        }
    }
}

/// True if more than a quarter of the blocks read seem to be zeros, which a file system need not read from the device, and more
/// than one block or all of them: pages of databases have some empty blocks. False for reads of less than a block. Looks at some
/// blocks in equal parts of `read`, which `chance` chooses: a client cannot know them.
fn may_be_hole(read: &[u8], chance: usize) -> bool {
    let blocks = read.len() / BLOCK;
    let looks = blocks.min(LOOKS);
    let is_zero = |look: &usize| {
        let (from, to) = (look * blocks / looks, (look + 1) * blocks / looks);
        let at = (from + chance % (to - from)) * BLOCK;
        let block = &read[at..at + BLOCK];
        (0..BLOCK).step_by(STRIDE).all(|at| block[at..at + WORD] == [0_u8; WORD])
    };
    (0..looks).filter(is_zero).count() > (looks / 4).max(usize::from(looks > 1))
}

/// Number of bytes that the operation of a zeroing with this ticket zeroes: where zeros are written, as many as the pool has
/// charged, and otherwise all.
fn zeros_of_step(request: &Request, ticket: &Ticket) -> u64 {
    let left = request.length - u64::from(request.zeroed);
    let work = ticket.work();
    if work.kind == Kind::Write { left.min(work.bytes.into()) } else { left }
}

/// The NBD error for an errno of the system; an I/O error if the protocol has no matching one.
fn errno_of(code: i32) -> Errno {
    match code {
        // EFBIG: past the largest file that the file system or the process's limit allows.
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Errno::NoSpace,
        libc::ENOMEM => Errno::NoMem,
        libc::EPERM | libc::EACCES | libc::EROFS => Errno::Perm,
        libc::EOPNOTSUPP => Errno::NotSupported,
        _ => Errno::Io,
    }
}
