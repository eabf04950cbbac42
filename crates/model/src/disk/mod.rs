//! A disk: an arm with heads, rotating platters, and a cache.
//!
//! ```text
//!           ┌──── interface ────┐  miss   ┌───────── arm ─────────┐
//!  command ▶│ overhead, transfer│────────▶│ seek, rotation, blocks│──▶ transfer ──▶ done
//!  (up to   │ one at a time     │◀────────│ one at a time, in the │
//!   depth)  └────────┬──────────┘ read    │ order of `scheduling` │
//!                    │ hit        ahead   └───────────▲───────────┘
//!                    └──▶ done                        │ written later
//!                    └──▶ write: in the cache, done ──┘
//! ```
//!
//! The interface and the arm work at the same time. The platters turn all the time, so the position of a block depends
//! on the instant. When no command waits for the arm, it first reads ahead from the end of the last read, then writes back
//! dirty data of the cache. All times are whole nanoseconds; the seed determines the angle of the platters at the start,
//! and nothing else is random.

mod arm;
mod cache;
mod geometry;
mod params;

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Range;

use evenkeel_control::rng::SplitMix64;
use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};

use self::arm::{Arm, Job};
use self::cache::{Cache, Content};
use self::geometry::Geometry;
pub use self::params::{Cache as CacheParams, DiskParams, Overhead, Scheduling, Zone};
use crate::Io;
use crate::clock::{DeviceClock, polled};

/// Size of a block, the unit of addresses on the platters, in bytes.
pub const BLOCK_BYTES: u64 = 512;

/// A request of the host, in blocks.
#[derive(Clone, Debug)]
struct Command {
    id: u64,
    kind: Kind,
    blocks: Range<u64>,
}

/// Work for the interface.
#[derive(Clone, Debug)]
enum Task {
    /// Decodes a command, and moves its payload if it is a write or hits the cache.
    Begin(Command),
    /// Sends `blocks` blocks to the host for read `id`; the first of them is available from `first` on.
    HandOver { id: u64, blocks: u64, first: Instant },
}

/// The step of a command after its work at the interface.
#[derive(Clone, Debug)]
enum Then {
    /// The command completes.
    Done(u64),
    /// The command waits for the arm.
    Arm(Job),
    /// The write waits for room in the cache, and completes when it is there.
    Keep(Command),
    /// The flush waits until the data that is now in the cache is on the platter.
    Flush(u64),
}

/// The disk. See the module's documentation.
///
/// A call whose `now` lies before that of an earlier call counts as made at the latest `now` so far. Offsets beyond the
/// capacity wrap around, and a request that would cross the end is moved to end there, so that any workload suits any disk.
/// O(queue depth + segments) a request, plus the tracks that it touches.
pub struct Disk {
    geometry: Geometry,
    phase: u64,
    seen: Instant,
    clock: DeviceClock,
    inside: usize,
    /// Commands that are not accepted yet, because `queue_depth` others are.
    outside: VecDeque<Command>,
    /// Number of commands that are accepted and not complete.
    accepted: u32,
    /// The interface's present work: when it ends (device time) and the step after it.
    busy: Option<(Instant, Then)>,
    /// Queue of the interface's work.
    tasks: VecDeque<Task>,
    /// When the interface last finished a task (device time).
    idle_since: Instant,
    arm: Arm,
    cache: Cache,
    /// Writes that wait for room in the cache.
    no_room: VecDeque<Command>,
    /// Pairs of a flush's id and a segment id: the flush completes when the data of all segments with a lower id is on the
    /// platter.
    flushes: Vec<(u64, u64)>,
    done: VecDeque<u64>,
}

impl Disk {
    /// An idle disk with the arm at the outer edge. The same seed and calls give the same completions.
    ///
    /// # Panics
    /// `params` that [`DiskParams::validate`] refuses may make this or a later call panic.
    pub fn new(params: DiskParams, seed: u64) -> Self {
        let phase = SplitMix64::new(seed).next_u64();
        Self {
            geometry: Geometry::new(params, phase),
            phase,
            seen: Instant::ZERO,
            clock: DeviceClock::default(),
            inside: 0,
            outside: VecDeque::new(),
            accepted: 0,
            busy: None,
            tasks: VecDeque::new(),
            idle_since: Instant::ZERO,
            arm: Arm::default(),
            cache: Cache::default(),
            no_room: VecDeque::new(),
            flushes: Vec::new(),
            done: VecDeque::new(),
        }
    }

    /// Takes a request. [`Disk::poll`] returns `id` when it has completed.
    pub fn submit(&mut self, now: Instant, id: u64, io: Io) {
        let at = self.advance(now);
        self.inside += 1;
        let blocks = self.blocks_of(io);
        self.outside.push_back(Command { id, kind: kind_of(io), blocks });
        self.accept();
        self.run(at);
    }

    polled!();

    /// The parameters in force.
    pub fn params(&self) -> &DiskParams {
        self.geometry.params()
    }

    /// Changes the parameters. The present work of interface and arm ends as planned, except reading ahead, which
    /// stops; cached data and queued commands are kept.
    ///
    /// # Panics
    /// As [`Disk::new`].
    pub fn set_params(&mut self, now: Instant, params: DiskParams) {
        let at = self.advance(now);
        self.stop_reading_ahead(at);
        self.geometry = Geometry::new(params, self.phase);
        self.arm.place_anew(&self.geometry);
        if let Some((_, Then::Arm(job))) = &mut self.busy {
            job.place = self.geometry.place(job.blocks.start);
        }
        self.accept();
        self.run(at);
    }

    /// The work of the arm for command `id`.
    fn job(&self, id: u64, blocks: Range<u64>, write: bool, ready: Instant) -> Job {
        let place = self.geometry.place(blocks.start);
        Job { id, blocks, write, ready, place }
    }

    fn blocks_of(&self, io: Io) -> Range<u64> {
        let capacity = self.params().blocks();
        let count = (io.offset % BLOCK_BYTES + u64::from(io.bytes)).div_ceil(BLOCK_BYTES).min(capacity);
        let first = (io.offset / BLOCK_BYTES % capacity).min(capacity - count);
        first..first + count
    }

    /// Handles all events due by `now`, in order of time; returns the device time at `now`.
    fn advance(&mut self, now: Instant) -> Instant {
        self.seen = self.seen.max(now);
        while self.next_device_event() <= self.seen {
            let interface = self.busy.as_ref().map_or(Instant::FAR_FUTURE, |&(end, _)| end);
            let arm = self.arm.end();
            if interface <= arm {
                self.finish_task();
            } else {
                self.finish_motion();
            }
            self.run(interface.min(arm));
        }
        self.clock.at(self.seen)
    }

    fn next_device_event(&self) -> Instant {
        let interface = self.busy.as_ref().map_or(Instant::FAR_FUTURE, |&(end, _)| end);
        self.clock.reached(interface.min(self.arm.end()))
    }

    /// Begins the next work of the interface and of the arm, of each if it is free and work waits for it.
    fn run(&mut self, at: Instant) {
        if self.busy.is_none() {
            self.busy = self.tasks.pop_front().map(|task| self.begin(at, task));
        }
        self.drive(at);
    }

    fn accept(&mut self) {
        while self.accepted < self.params().queue_depth {
            let Some(command) = self.outside.pop_front() else { break };
            self.accepted += 1;
            self.tasks.push_back(Task::Begin(command));
        }
    }

    fn complete(&mut self, id: u64) {
        self.done.push_back(id);
        self.accepted -= 1;
        self.accept();
    }

    fn begin(&mut self, at: Instant, task: Task) -> (Instant, Then) {
        let command = match task {
            Task::HandOver { id, blocks, first } => {
                // The interface may have begun when the first block was there, but cannot be ahead of the last.
                let sent = first.max(self.idle_since) + self.params().bus_time(blocks);
                return (sent.max(at + self.params().bus_time(1)), Then::Done(id));
            }
            Task::Begin(command) => command,
        };
        match command.kind {
            Kind::Read => self.begin_read(at, command),
            Kind::Write => self.begin_write(at, command),
            Kind::Flush => (at + self.params().overhead.read_hit, Then::Flush(command.id)),
            Kind::Meta => (at + self.params().overhead.read_hit, Then::Done(command.id)),
        }
    }

    fn begin_read(&mut self, at: Instant, Command { id, blocks, .. }: Command) -> (Instant, Then) {
        self.note_read_ahead(at);
        let overhead = self.params().overhead;
        if let Some(segment) = self.cache.find(&blocks) {
            let sequential = segment.content == Content::Ahead && segment.blocks.start == blocks.start;
            self.hand_out(segment.id, blocks.end);
            let overhead = if sequential { overhead.read_sequential } else { overhead.read_hit };
            return (at + overhead + self.params().bus_time(blocks.end - blocks.start), Then::Done(id));
        }
        // Where the disk is reading ahead at this moment, nothing has to be set up.
        let (overhead, setup) = match self.is_reading_ahead_at(blocks.start) {
            true => (overhead.read_hit, Duration::ZERO),
            false => (overhead.read_miss, self.params().setup),
        };
        let (end, ready) = (at + overhead, at + overhead + setup);
        (end, Then::Arm(self.job(id, blocks, false, ready)))
    }

    fn begin_write(&mut self, at: Instant, command: Command) -> (Instant, Then) {
        let (params, blocks) = (self.params(), &command.blocks);
        let overhead = if self.cache.extends(blocks) { params.overhead.write_hit } else { params.overhead.write };
        let end = at + overhead + params.bus_time(blocks.end - blocks.start);
        // A write that would take most of the cache is not worth taking in.
        if params.cache.write_back && cache::units(blocks, &params.cache) <= u64::from(params.cache.segments / 2) {
            return (end, Then::Keep(command));
        }
        (end, Then::Arm(self.job(command.id, command.blocks, true, end)))
    }

    fn finish_task(&mut self) {
        let Some((at, then)) = self.busy.take() else { return };
        self.idle_since = at;
        match then {
            Then::Done(id) => self.complete(id),
            Then::Arm(job) => self.arm.push(job),
            Then::Keep(command) => {
                self.no_room.push_back(command);
                self.keep_writes(at);
            }
            Then::Flush(id) => {
                self.flushes.push((id, self.cache.next_id()));
                self.end_flushes();
            }
        }
    }

    /// Moves waiting writes into the cache as far as there is room.
    fn keep_writes(&mut self, at: Instant) {
        while let Some(command) = self.no_room.pop_front() {
            self.note_read_ahead(at);
            let params = self.params().cache;
            if self.cache.write(command.blocks.clone(), &params) {
                self.keep_out_of_read_ahead(at, &command.blocks);
                self.complete(command.id);
            } else if self.cache.unwritten_before(u64::MAX) {
                self.no_room.push_front(command);
                return;
            } else {
                // The cache became smaller since this was meant for it.
                let job = self.job(command.id, command.blocks, true, at);
                self.arm.push(job);
            }
        }
    }

    fn end_flushes(&mut self) {
        while let Some(index) = self.flushes.iter().position(|&(_, until)| !self.cache.unwritten_before(until)) {
            let (id, _) = self.flushes.remove(index);
            self.complete(id);
        }
    }
}

/// The kind of a request; a read or write without payload counts as metadata work.
fn kind_of(io: Io) -> Kind {
    match io.kind {
        Kind::Read | Kind::Write if io.bytes == 0 => Kind::Meta,
        kind => kind,
    }
}
