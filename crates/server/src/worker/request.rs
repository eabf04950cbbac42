//! A request on its way through the pool and back to its connection.

use evenkeel_control::Instant;
use evenkeel_control::units::{Part, Work};
use evenkeel_nbd::wire::{Command, CommandFlags};

use crate::backend::operation::Extent;
use crate::budget::Charge;
use crate::buffer::Buffer;
use crate::volume::Volume;

/// Names a connection for the life of the process: a slot and how often it was used before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnKey {
    /// Place in every table of connections.
    pub(crate) slot: u32,
    /// Tells the users of one slot apart.
    pub(crate) generation: u32,
}

impl ConnKey {
    /// As epoll carries it.
    pub(crate) fn to_event(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    /// Out of what epoll carried.
    pub(crate) fn from_event(data: u64) -> Self {
        Self { slot: data as u32, generation: (data >> 32) as u32 }
    }
}

/// A request on its way through the pool and back to its connection. Boxed by [`Spare`], because every queue on the way moves it.
pub(crate) struct Request {
    /// The connection.
    pub(crate) key: ConnKey,
    /// Which volume.
    pub(crate) volume: u32,
    /// The protocol's header.
    pub(crate) command: Command,
    /// Its flags.
    pub(crate) flags: CommandFlags,
    /// The client's name for the request.
    pub(crate) cookie: u64,
    /// First byte.
    pub(crate) offset: u64,
    /// Number of bytes.
    pub(crate) length: u64,
    /// The payload of a write.
    pub(crate) buffer: Option<Buffer>,
    /// Its part of the buffer budget.
    pub(crate) charge: Charge,
    /// If it is a slice: of what.
    pub(crate) slice: Option<Box<Slice>>,
}

impl Request {
    /// A flush, and the frame of every other request.
    pub(crate) fn of(key: ConnKey, volume: u32) -> Self {
        Self {
            key,
            volume,
            command: Command::Flush,
            flags: CommandFlags::NONE,
            cookie: 0,
            offset: 0,
            length: 0,
            buffer: None,
            charge: Charge::default(),
            slice: None,
        }
    }

    /// Its work for the device. Goes with it through the pool, in the ticket in the end.
    pub(crate) fn work(&self, volume: &Volume) -> Work {
        let work = volume.work(self.command, self.flags, self.length);
        Work { part: self.slice.as_ref().map_or(work.part, |slice| slice.part), ..work }
    }

    /// True if the result must be on stable storage before the reply.
    #[inline]
    pub(crate) fn is_durable(&self) -> bool {
        self.flags.contains(CommandFlags::FUA)
            && matches!(self.command, Command::Write | Command::Trim | Command::WriteZeroes)
    }
}

/// True if a request is carried out for what it does, not for its answer.
#[inline]
pub(crate) fn is_change(command: Command) -> bool {
    !matches!(command, Command::Read | Command::BlockStatus | Command::Cache)
}

/// The output of a request.
pub(crate) enum Output {
    /// Nothing but success.
    Nothing,
    /// Bytes of a memory volume, sent from where they are.
    InPlace(*const u8),
    /// Bytes read.
    Bytes(Buffer),
    /// The allocated extents.
    Extents(Vec<Extent>),
}

// SAFETY: `Output::InPlace` points into a volume that the connection holds; the bytes are only handed to the kernel.
unsafe impl Send for Output {}

/// The place of a divided request in its connection, which its slices carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Whole(pub(super) u32);

/// The payload of a slice.
pub(crate) struct Slice {
    /// The divided request that it is a slice of.
    pub(super) whole: Whole,
    /// When that began.
    pub(super) since: Instant,
    /// Which part of it this is.
    pub(super) part: Part,
}

/// Boxes of a worker for its next requests. A request comes back to the worker of its connection, and its box is used again.
#[derive(Default)]
#[expect(clippy::vec_box, reason = "it is the boxes that are used again")]
pub(super) struct Spare(Vec<Box<Request>>);

/// Boxes that a worker keeps at most: 400 KiB.
const MAX_SPARE: usize = 4096;
const _: () = assert!(MAX_SPARE * (size_of::<Box<Request>>() + size_of::<Request>()) <= 400 << 10);

impl Spare {
    /// Boxes a request.
    #[inline]
    pub(super) fn take(&mut self, request: Request) -> Box<Request> {
        match self.0.pop() {
            Some(mut spare) => {
                *spare = request;
                spare
            }
            None => Box::new(request),
        }
    }

    /// Keeps the box of a request that is answered.
    #[inline]
    pub(super) fn give(&mut self, request: Box<Request>) {
        debug_assert!(request.charge.bytes() == 0 && request.buffer.is_none() && request.slice.is_none());
        if self.0.len() < MAX_SPARE {
            self.0.push(request);
        }
    }
}
