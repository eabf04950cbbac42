//! A request on its way through the pool and back to its connection.

use evenkeel_control::Instant;
use evenkeel_control::units::{Part, Work};
use evenkeel_nbd::wire::{Command, CommandFlags};

use crate::backend::operation::Extent;
use crate::budget::Charge;
use crate::buffer::Buffer;
use crate::volume::Volume;

/// Names a connection for the life of the process: a slot, and a number that differs for each use of the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConnKey {
    /// Index of the connection in every table of connections.
    pub(crate) slot: u32,
    /// Distinguishes the successive connections of one slot.
    pub(crate) generation: u32,
}

impl ConnKey {
    /// The key as epoll event data, from which [`Self::from_event`] restores it.
    pub(crate) fn to_event(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    /// The key that [`Self::to_event`] has stored in epoll event data.
    pub(crate) fn from_event(data: u64) -> Self {
        Self { slot: data as u32, generation: (data >> 32) as u32 }
    }
}

/// A request on its way through the pool and back to its connection. [`Spare`] boxes it, because every queue on the way moves
/// it.
pub(crate) struct Request {
    /// Key of the connection that the request came from.
    pub(crate) key: ConnKey,
    /// Id of the request's volume.
    pub(crate) volume: u32,
    /// The command in the request's header.
    pub(crate) command: Command,
    /// The flags in the request's header.
    pub(crate) flags: CommandFlags,
    /// The cookie by which the client knows the request.
    pub(crate) cookie: u64,
    /// Offset of the request's first byte in the volume.
    pub(crate) offset: u64,
    /// Number of bytes that the request reads, writes, zeroes, trims or asks about.
    pub(crate) length: u64,
    /// The payload of a write; `None` for other commands.
    pub(crate) buffer: Option<Buffer>,
    /// Buffer memory that the request holds in its tenant's account.
    pub(crate) charge: Charge,
    /// If the request is a slice: the divided request that it belongs to, and its part in that.
    pub(crate) slice: Option<Box<Slice>>,
    /// When the request was first handed to its pool, if requests were recorded then; otherwise [`Instant::ZERO`].
    pub(crate) arrived: Instant,
}

impl Request {
    /// A flush of a volume, which also serves as the template of every other request; `volume`: the volume's id.
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
            arrived: Instant::ZERO,
        }
    }

    /// The request's work for the device. It goes through the pool with the request; after the dispatch it is in the
    /// request's ticket.
    pub(crate) fn work(&self, volume: &Volume) -> Work {
        let work = volume.work(self.command, self.flags, self.length);
        Work { part: self.slice.as_ref().map_or(work.part, |slice| slice.part), ..work }
    }

    /// True if the changed bytes must be on stable storage before the reply (FUA).
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
    /// Address of the first byte in a volume in memory; the bytes are sent without a copy.
    InPlace(*const u8),
    /// The bytes read, in a buffer.
    Bytes(Buffer),
    /// The extents found, both data and holes.
    Extents(Vec<Extent>),
}

// SAFETY: `Output::InPlace` points into a volume that the connection holds; the bytes are only handed to the kernel.
unsafe impl Send for Output {}

/// Index of a divided request among those of its connection; the request's slices carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Whole(pub(super) u32);

/// For a request that is a slice: its place in the divided request.
pub(crate) struct Slice {
    /// The divided request that this slice belongs to.
    pub(super) whole: Whole,
    /// When the server had received the divided request's header.
    pub(super) since: Instant,
    /// The slice's part of the divided request: first, middle or last.
    pub(super) part: Part,
    /// When the pool dispatched the slice; [`Instant::FAR_FUTURE`] before.
    pub(super) admitted: Instant,
}

impl Slice {
    /// A slice of a divided request that had arrived at `since`; it is not dispatched yet.
    pub(super) fn of(whole: Whole, since: Instant, part: Part) -> Self {
        Self { whole, since, part, admitted: Instant::FAR_FUTURE }
    }
}

/// A worker's unused boxes for its next requests. A request comes back to the worker of its connection, which uses the box
/// again.
#[derive(Default)]
#[expect(clippy::vec_box, reason = "it is the boxes that are used again")]
pub(super) struct Spare(Vec<Box<Request>>);

/// Largest number of unused boxes that a worker keeps: 416 KiB.
const MAX_SPARE: usize = 4096;
const _: () = assert!(MAX_SPARE * (size_of::<Box<Request>>() + size_of::<Request>()) <= 416 << 10);

impl Spare {
    /// Puts a request into a box, an unused one if there is one.
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

    /// Keeps the box of an answered request for the next request, unless [`MAX_SPARE`] boxes are kept.
    #[inline]
    pub(super) fn give(&mut self, request: Box<Request>) {
        debug_assert!(request.charge.bytes() == 0 && request.buffer.is_none() && request.slice.is_none());
        if self.0.len() < MAX_SPARE {
            self.0.push(request);
        }
    }
}
