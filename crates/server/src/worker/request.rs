//! A request on its way through the pool and back to its connection.

use evenkeel_control::Instant;
use evenkeel_control::units::{Part, Work};
use evenkeel_nbd::wire::{Command, CommandFlags};

use crate::backend::Backend;
use crate::backend::operation::Extent;
use crate::budget::Charge;
use crate::buffer::Buffer;
use crate::volume::{Volume, zeros_at_once};

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
    /// For a zeroing whose zeros are written in steps: bytes from the start that earlier steps have zeroed. An undivided
    /// zeroing, like a slice of one, has at most 64 MiB, see [`crate::volume::METADATA_RATIO`].
    pub(super) zeroed: u32,
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
            zeroed: 0,
            buffer: None,
            charge: Charge::default(),
            slice: None,
            arrived: Instant::ZERO,
        }
    }

    /// The request's work for the device. It goes through the pool with the request; after the dispatch it is in the
    /// request's ticket.
    pub(crate) fn work(&self, volume: &Volume) -> Work {
        // Also where the request goes to another tenant's queue before its first step, or between two steps.
        let in_steps = self.zeroed > 0 || matches!(volume.backend, Backend::File(_)) && volume.writes_zeros(self.flags);
        if self.command == Command::WriteZeroes && in_steps {
            return self.next_zeros();
        }
        let work = volume.work(self.command, self.flags, self.length);
        Work { part: self.slice.as_ref().map_or(work.part, |slice| slice.part), ..work }
    }

    /// The work of the next step of a zeroing whose zeros are written: at most [`crate::volume::ZEROS_AT_ONCE`]
    /// bytes, up to a multiple of that number in the volume.
    pub(super) fn next_zeros(&self) -> Work {
        let whole = self.slice.as_ref().map_or(Part::Whole, |slice| slice.part);
        let (from, left) = (self.offset + u64::from(self.zeroed), self.length - u64::from(self.zeroed));
        let bytes = left.min(zeros_at_once(from));
        let part = match (whole.begins() && self.zeroed == 0, whole.ends() && bytes == left) {
            (true, true) => Part::Whole,
            (true, false) => Part::First,
            (false, true) => Part::Last,
            (false, false) => Part::Middle,
        };
        Work { part, ..Volume::write_of(bytes) }
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

#[cfg(test)]
mod tests {
    use evenkeel_control::units::Kind;

    use super::*;
    use crate::backend::file::{File, Open};
    use crate::backend::operation::{FileIo, IoResult};
    use crate::engine::threads::Blocking;
    use crate::engine::threads::tests::tenants;
    use crate::faults::{Call, Fault, Faults, Injection};
    use crate::volume::ZEROS_AT_ONCE;

    #[test]
    fn a_zeroing_that_goes_to_another_tenant_is_still_written_in_steps() {
        let path = std::env::temp_dir().join(format!("evenkeel-zero-steps-{}.img", std::process::id()));
        let patience = std::time::Duration::ZERO;
        let open = Open { create: Some(1 << 20), read_only: false, direct: false, block: false, patience };
        let (file, size) = File::open(&path, &open).unwrap();
        let faults = Faults::table();
        let volume = Volume::new(0, "test", 0, false, Backend::File(file), size).with(faults.at("test"));
        let key = ConnKey { slot: 0, generation: 0 };
        let request = |zeroed| Request {
            command: Command::WriteZeroes,
            length: 2 * ZEROS_AT_ONCE,
            zeroed,
            ..Request::of(key, 0)
        };
        assert_eq!(request(0).work(&volume).kind, Kind::Meta, "nothing is known yet");
        let fault = Fault::Errno(libc::EOPNOTSUPP);
        faults.add(Injection { place: String::new(), call: Call::Fallocate, fault, skip: 0, times: 1 });
        let zero = FileIo::Zero { offset: 0, len: 4096, punch: true, may_write: false };
        assert!(matches!(volume.run(zero, tenants(1)[0]), IoResult::Code(code) if code == -libc::EOPNOTSUPP));
        for (zeroed, part) in [(0, Part::First), (ZEROS_AT_ONCE as u32, Part::Last)] {
            let work = request(zeroed).work(&volume);
            assert_eq!((work.kind, u64::from(work.bytes), work.part), (Kind::Write, ZEROS_AT_ONCE, part));
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn steps_of_written_zeros_are_short_and_count_as_one_request() {
        let key = ConnKey { slot: 0, generation: 0 };
        let of_slice = |part| Some(Box::new(Slice::of(Whole(0), Instant::ZERO, part)));
        for (slice, first, last) in [
            (None, true, true),
            (of_slice(Part::Whole), true, true),
            (of_slice(Part::First), true, false),
            (of_slice(Part::Middle), false, false),
            (of_slice(Part::Last), false, true),
        ] {
            let (offset, length) = (ZEROS_AT_ONCE - 512, 2 * ZEROS_AT_ONCE);
            let mut request = Request { command: Command::WriteZeroes, offset, length, slice, ..Request::of(key, 0) };
            let mut steps = Vec::new();
            while u64::from(request.zeroed) < length {
                let work = request.next_zeros();
                assert_eq!(work.kind, evenkeel_control::units::Kind::Write);
                request.zeroed += work.bytes;
                steps.push(work);
            }
            let bytes: Vec<_> = steps.iter().map(|work| u64::from(work.bytes)).collect();
            assert_eq!(bytes, [512, ZEROS_AT_ONCE, ZEROS_AT_ONCE - 512], "aligned from the second step on");
            assert_eq!(steps.iter().filter(|work| work.part.begins()).count(), usize::from(first));
            assert_eq!(steps.iter().filter(|work| work.part.ends()).count(), usize::from(last));
            assert!(steps[0].part.begins() == first && steps[2].part.ends() == last);
        }
    }
}
