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
    /// Index in every table of connections.
    pub(crate) slot: u32,
    /// Distinguishes the successive users of one slot.
    pub(crate) generation: u32,
}

impl ConnKey {
    /// The key as the event data of epoll.
    pub(crate) fn to_event(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    /// The key in the event data of epoll.
    pub(crate) fn from_event(data: u64) -> Self {
        Self { slot: data as u32, generation: (data >> 32) as u32 }
    }
}

/// A request on its way through the pool and back to its connection. Boxed by [`Spare`], because every queue on the way moves it.
pub(crate) struct Request {
    /// The connection that it came from.
    pub(crate) key: ConnKey,
    /// Id of the volume.
    pub(crate) volume: u32,
    /// The command of the protocol's header.
    pub(crate) command: Command,
    /// The flags of the protocol's header.
    pub(crate) flags: CommandFlags,
    /// The cookie by which the client knows the request.
    pub(crate) cookie: u64,
    /// Offset of the first byte.
    pub(crate) offset: u64,
    /// Number of bytes.
    pub(crate) length: u64,
    /// The payload of a write.
    pub(crate) buffer: Option<Buffer>,
    /// Buffer memory that the request holds.
    pub(crate) charge: Charge,
    /// For a slice: the divided request that it belongs to.
    pub(crate) slice: Option<Box<Slice>>,
}

impl Request {
    /// A flush, which also serves as the template of every other request.
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

    /// The request's work for the device. It goes through the pool with the request, and in the end in the ticket.
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

/// True if a request is carried out for its effect, not for its answer: anything but a read, block status or cache.
#[inline]
pub(crate) fn is_change(command: Command) -> bool {
    !matches!(command, Command::Read | Command::BlockStatus | Command::Cache)
}

/// The result of a successful request.
pub(crate) enum Output {
    /// No data.
    Nothing,
    /// Bytes of a memory volume, sent from where they are.
    InPlace(*const u8),
    /// Bytes read into a buffer.
    Bytes(Buffer),
    /// The extents found, allocated ones and holes.
    Extents(Vec<Extent>),
}

// SAFETY: `Output::InPlace` points into a volume that the connection holds; the bytes are only handed to the kernel.
unsafe impl Send for Output {}

/// Index of a divided request in its connection, which its slices carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Whole(pub(super) u32);

/// The slice that a request is.
pub(crate) struct Slice {
    /// The divided request that this is a slice of.
    pub(super) whole: Whole,
    /// When the divided request began.
    pub(super) since: Instant,
    /// Which part of the divided request this is.
    pub(super) part: Part,
}

/// Boxes of a worker for its next requests. A request comes back to the worker of its connection, which uses its box again.
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
