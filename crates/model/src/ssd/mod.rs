//! A solid-state drive: SATA or NVMe.
//!
//! ```text
//!          ┌ queue_depth ┐                       ┌ read ─▶ die ─▶ channel ─▶ link ─▶ done
//!  submit ─▶ controller, ─▶ firmware latency ────┤
//!          │ one by one  │                       └ write ─▶ room in the buffer ─▶ link ─▶ done
//!          └─────────────┘                                         │ a full program unit
//!                                                                  ▼
//!                              garbage collection, erases ─▶ channel ─▶ die
//! ```
//!
//! A die does one thing at a time. Reads go before programs and erases, at most 16 in a row, and may suspend them
//! (`suspend_latency`). A write completes when it is in the buffer, so writes are quick until the buffer is full, and then as
//! slow as the flash: one bit per cell until the fast region is full, then several bits per cell, and garbage collection when
//! little space is free. The data that collection moves for a write follows from the distribution of garbage (see `space.rs`).
//!
//! A stall stops the device's own clock, as in [`store`](crate::store).

mod flash;
mod params;
mod space;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use evenkeel_control::rng::SplitMix64;
use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};

use self::flash::{Chore, Done, Flash, Piece};
use self::params::UNIT_BYTES;
pub use self::params::{Geometry, SsdParams};
use self::space::Space;
use crate::Io;
use crate::clock::{DeviceClock, polled};
pub use crate::params::InvalidParams;

/// A request of the host, accepted or waiting.
#[derive(Clone, Copy, Debug)]
struct Request {
    id: u64,
    io: Io,
    /// Pages of a read that have not been sent to the host yet.
    pieces: u32,
    /// True if a page has been sent, or is being sent, over the link.
    answering: bool,
}

/// Requests in a stage that keeps their order, each with the instant (device time) at which it leaves the stage.
struct Line(VecDeque<(Instant, u32)>);

impl Line {
    fn next(&self) -> Instant {
        self.0.front().map_or(Instant::FAR_FUTURE, |&(at, _)| at)
    }

    fn push(&mut self, at: Instant, request: u32) {
        // New parameters may make a later item quicker; it stays behind the earlier one.
        let last = self.0.back().map_or(Instant::ZERO, |&(at, _)| at);
        self.0.push_back((at.max(last), request));
    }
}

/// Number of stages that keep their order; the constants below are their indexes in `Ssd::lines`.
const LINES: usize = 5;
/// Stage of reads before the flash: controller, then the firmware's read latency.
const READS: usize = 0;
/// Stage of all other commands in the controller.
const OTHERS: usize = 1;
/// Stage of writes whose data crosses the link to the buffer.
const ARRIVING: usize = 2;
/// Stage of pages that cross the link to the host.
const LEAVING: usize = 3;
/// Stage of all commands but reads in the firmware's write latency, at their end.
const ENDING: usize = 4;

/// Bytes written to a drive, and bytes that garbage collection moved for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wear {
    /// Bytes that the host wrote; each write is rounded up to 4 KiB.
    pub written_bytes: u64,
    /// Bytes that garbage collection moved; data moved out of the fast region does not count.
    pub moved_bytes: u64,
}

/// The drive. See the module's documentation.
///
/// A call whose `now` lies before that of an earlier call counts as made at the latest `now` so far. O(log dies) for each page.
pub struct Ssd {
    params: SsdParams,
    rng: SplitMix64,
    seen: Instant,
    clock: DeviceClock,
    requests: Vec<Request>,
    vacant: Vec<u32>,
    /// Requests that are not accepted yet because `queue_depth` others are, in order of arrival.
    waiting: VecDeque<u32>,
    /// Number of requests that are accepted and not complete.
    working_on: u32,
    controller_free_at: Instant,
    /// When the link has carried all data given to it, by direction: drive to host, host to drive. Without duplex, the first
    /// element stands for both directions.
    links_free_at: [Instant; 2],
    lines: [Line; LINES],
    /// Writes that wait for room in the buffer, in order.
    unbuffered: VecDeque<u32>,
    /// Flushes, each with the value that `programs_done` must reach before the flush completes.
    flushes: VecDeque<(u64, u32)>,
    flash: Flash,
    space: Space,
    /// Bytes in the buffer or on the link to it.
    buffered: u64,
    /// Bytes in the buffer that do not fill a program unit yet.
    open: u64,
    /// Programs of the host's data so far that were given to the flash.
    programs_begun: u64,
    /// Programs of the host's data so far that are complete.
    programs_done: u64,
    /// Bytes that collection must move and that do not fill a program unit yet.
    moving: u64,
    /// Bytes in use of the fast region.
    slc_used: u64,
    /// When the last event of the drive was (device time).
    last_work: Instant,
    wear: Wear,
    done: VecDeque<u64>,
    inside: usize,
}

impl Ssd {
    /// An idle drive. The same seed and calls give the same completions.
    pub fn new(params: SsdParams, seed: u64) -> Self {
        Self {
            params,
            rng: SplitMix64::new(seed),
            seen: Instant::ZERO,
            clock: DeviceClock::default(),
            requests: Vec::new(),
            vacant: Vec::new(),
            waiting: VecDeque::new(),
            working_on: 0,
            controller_free_at: Instant::ZERO,
            links_free_at: [Instant::ZERO; 2],
            lines: [const { Line(VecDeque::new()) }; LINES],
            unbuffered: VecDeque::new(),
            flushes: VecDeque::new(),
            flash: Flash::new(&params),
            space: Space::new(&params.geometry),
            buffered: 0,
            open: 0,
            programs_begun: 0,
            programs_done: 0,
            moving: 0,
            slc_used: 0,
            last_work: Instant::ZERO,
            wear: Wear::default(),
            done: VecDeque::new(),
            inside: 0,
        }
    }

    /// Takes a request. [`Ssd::poll`] returns `id` when it has completed.
    ///
    /// [`Kind::Meta`] with a size is a trim of that many bytes.
    pub fn submit(&mut self, now: Instant, id: u64, io: Io) {
        let at = self.advance(now);
        self.inside += 1;
        let request = Request { id, io, pieces: 0, answering: false };
        let slot = if let Some(slot) = self.vacant.pop() {
            self.requests[slot as usize] = request;
            slot
        } else {
            self.requests.push(request);
            self.requests.len() as u32 - 1
        };
        self.waiting.push_back(slot);
        self.recover(at);
        self.take_in(at);
    }

    polled!();

    /// The parameters in force.
    pub fn params(&self) -> &SsdParams {
        &self.params
    }

    /// Bytes that the host wrote and that garbage collection moved since the drive was made.
    pub fn wear(&self) -> Wear {
        self.wear
    }

    /// Changes the parameters, except the geometry. Work in progress ends as planned.
    pub fn set_params(&mut self, now: Instant, params: SsdParams) {
        let at = self.advance(now);
        self.params = SsdParams { geometry: self.params.geometry, ..params };
        self.take_in(at);
        self.buffer_waiting(at);
    }

    /// Handles all events due by `now`, in order of time; returns the device time at `now`.
    fn advance(&mut self, now: Instant) -> Instant {
        self.seen = self.seen.max(now);
        while self.next_device_event() <= self.seen {
            self.step();
        }
        self.clock.at(self.seen)
    }

    fn next_device_event(&self) -> Instant {
        let next = self.lines.iter().fold(self.flash.next_event(), |next, line| next.min(line.next()));
        if next == Instant::FAR_FUTURE { next } else { self.clock.reached(next) }
    }

    fn step(&mut self) {
        let (mut at, mut source) = (self.flash.next_event(), LINES);
        for (index, line) in self.lines.iter().enumerate() {
            if line.next() < at {
                (at, source) = (line.next(), index);
            }
        }
        self.last_work = at;
        if source == LINES {
            match self.flash.step(&self.params, &mut self.rng) {
                Done::Read(piece) => self.page_read(at, piece),
                Done::Programmed => self.programmed(at),
                Done::Nothing => {}
            }
            return;
        }
        let Some((_, slot)) = self.lines[source].0.pop_front() else { return };
        match source {
            READS => self.begin_read(at, slot),
            OTHERS => self.begin_other(at, slot),
            ARRIVING => self.arrived(at, slot),
            LEAVING => self.page_sent(at, slot),
            _ => self.finish(at, slot),
        }
    }

    /// Accepts waiting requests up to the queue depth.
    fn take_in(&mut self, at: Instant) {
        while self.working_on < self.params.queue_depth {
            let Some(slot) = self.waiting.pop_front() else { return };
            self.working_on += 1;
            self.controller_free_at = at.max(self.controller_free_at) + self.params.command_time;
            let read = self.requests[slot as usize].io.kind == Kind::Read;
            let latency = if read { self.params.read_latency } else { Duration::ZERO };
            self.lines[if read { READS } else { OTHERS }].push(self.controller_free_at + latency, slot);
        }
    }

    fn begin_read(&mut self, at: Instant, slot: u32) {
        let Io { offset, bytes, .. } = self.requests[slot as usize].io;
        let page = u64::from(self.params.geometry.page_bytes);
        let end = offset.saturating_add(bytes.into());
        let pages = offset / page..end.div_ceil(page).max(offset / page + 1);
        self.requests[slot as usize].pieces = (pages.end - pages.start) as u32;
        for place in pages {
            let bytes = end.min((place + 1).saturating_mul(page)).saturating_sub(offset.max(place * page)) as u32;
            self.flash.read(at, place, Piece { request: slot, bytes }, &self.params, &mut self.rng);
        }
    }

    /// Sends a page that has been read over the link; a request's first page also takes `link_command_time`.
    fn page_read(&mut self, at: Instant, piece: Piece) {
        let request = &mut self.requests[piece.request as usize];
        let first = !core::mem::replace(&mut request.answering, true);
        let command = if first { self.params.link_command_time } else { Duration::ZERO };
        let sent = self.over_link(at, 0, piece.bytes.into(), command);
        self.lines[LEAVING].push(sent, piece.request);
    }

    fn page_sent(&mut self, at: Instant, slot: u32) {
        let request = &mut self.requests[slot as usize];
        request.pieces -= 1;
        if request.pieces == 0 {
            self.finish(at, slot);
        }
    }

    /// Sends `bytes` over the link in `direction` (0: to the host, 1: from the host); returns when they have crossed it.
    fn over_link(&mut self, at: Instant, direction: usize, bytes: u64, command: Duration) -> Instant {
        let free_at = &mut self.links_free_at[if self.params.link_duplex { direction } else { 0 }];
        *free_at = at.max(*free_at) + command + self.params.link_time(bytes);
        *free_at
    }

    fn begin_other(&mut self, at: Instant, slot: u32) {
        let Io { kind, offset, bytes } = self.requests[slot as usize].io;
        match kind {
            Kind::Write if bytes > 0 => {
                self.unbuffered.push_back(slot);
                self.buffer_waiting(at);
            }
            Kind::Flush if self.params.buffer_volatile => {
                if self.open > 0 {
                    self.program(at, self.open);
                }
                self.flushes.push_back((self.programs_begun, slot));
                self.end_flushes(at);
            }
            Kind::Meta if bytes > 0 => {
                self.space.trim(offset / UNIT_BYTES, units_of(bytes));
                self.end(at, slot);
            }
            Kind::Read | Kind::Write | Kind::Flush | Kind::Meta => self.end(at, slot),
        }
    }

    /// Sends waiting writes over the link while the buffer has room for them. If no program waits for the flash, a write is sent
    /// without room, too, so that one larger than the buffer gets through.
    fn buffer_waiting(&mut self, at: Instant) {
        while let Some(&slot) = self.unbuffered.front() {
            let bytes = units_of(self.requests[slot as usize].io.bytes) * UNIT_BYTES;
            if self.buffered + bytes > self.params.buffer_bytes && self.buffered > self.open {
                return;
            }
            self.unbuffered.pop_front();
            self.buffered += bytes;
            let payload = self.requests[slot as usize].io.bytes;
            let arrives = self.over_link(at, 1, payload.into(), self.params.link_command_time);
            self.lines[ARRIVING].push(arrives, slot);
        }
    }

    /// Handles the arrival of a write's data in the buffer: the write completes, and full program units go to the flash.
    fn arrived(&mut self, at: Instant, slot: u32) {
        let Io { offset, bytes, .. } = self.requests[slot as usize].io;
        let units = units_of(bytes);
        self.end(at, slot);
        self.wear.written_bytes += units * UNIT_BYTES;
        self.open += units * UNIT_BYTES;
        let moved = self.space.write(offset / UNIT_BYTES, units, &mut self.rng) * UNIT_BYTES;
        self.wear.moved_bytes += moved;
        self.moving += moved;
        let program = u64::from(self.params.geometry.program_bytes);
        while self.open >= program {
            self.program(at, program);
        }
        while self.moving >= program {
            self.moving -= program;
            self.flash.chore(at, Chore::Move, &self.params, &mut self.rng);
        }
        self.buffer_waiting(at);
    }

    /// Gives a program of the next `bytes` of the buffer, at most one unit, to the flash.
    fn program(&mut self, at: Instant, bytes: u64) {
        let program = u64::from(self.params.geometry.program_bytes);
        let fast = self.slc_used + program <= self.params.slc_bytes;
        if fast {
            self.slc_used += program;
        }
        self.open -= bytes;
        self.programs_begun += 1;
        // A unit padded for a flush counts in full, so that what is in the buffer is known from what is programmed.
        self.buffered += program - bytes;
        self.flash.chore(at, Chore::Program { fast }, &self.params, &mut self.rng);
    }

    fn programmed(&mut self, at: Instant) {
        self.programs_done += 1;
        self.buffered -= u64::from(self.params.geometry.program_bytes);
        self.end_flushes(at);
        self.buffer_waiting(at);
    }

    fn end_flushes(&mut self, at: Instant) {
        while let Some(&(programs, slot)) = self.flushes.front()
            && programs <= self.programs_done
        {
            self.flushes.pop_front();
            self.end(at, slot);
        }
    }

    /// Completes a request, other than a read, after the firmware's `write_latency`; all its other work is done.
    fn end(&mut self, at: Instant, slot: u32) {
        self.lines[ENDING].push(at + self.params.write_latency, slot);
    }

    fn finish(&mut self, at: Instant, slot: u32) {
        self.done.push_back(self.requests[slot as usize].id);
        self.vacant.push(slot);
        self.working_on -= 1;
        self.take_in(at);
    }

    /// Frees space of the fast region for the time since the last work, in which an idle drive moved data out of it.
    fn recover(&mut self, at: Instant) {
        if self.working_on > 0 || !self.flash.is_idle() {
            return;
        }
        let idle = at.since(self.last_work + self.params.slc_idle);
        let moved = self.params.fold_bytes_per_s() * idle.as_secs_f64();
        self.slc_used = self.slc_used.saturating_sub(moved as u64);
        self.last_work = at;
    }
}

/// Number of units of [`UNIT_BYTES`] that `bytes` take, rounded up.
fn units_of(bytes: u32) -> u64 {
    u64::from(bytes).div_ceil(UNIT_BYTES)
}
