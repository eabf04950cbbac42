//! Carries out requests and slices on volumes in memory, in the worker itself. Each is short, because
//! [`divide`](super::divide) divides long requests. A trim or zeroing that has become long since, because its range was
//! written meanwhile, or that a modelled device has taken as one, is carried out in short steps.

use evenkeel_control::pool::Ticket;
use evenkeel_nbd::wire::{Command, CommandFlags, Errno};

use super::request::{Output, Request};
use crate::backend::memory::Memory;
use crate::backend::operation::MAX_EXTENTS;
use crate::ram::Full;

/// Largest number of bytes that one block status request searches for extents, in some 100 us; a client asks again for the
/// rest.
const SCAN: u64 = 4 << 30;
/// Effort of a request that is not known to be short, as a multiple of a short request's: see [`Ready::effort`].
const LONG: u64 = 64;
/// Largest write, in bytes, that takes as little time as a read.
const SHORT_COPY: u64 = 16 << 10;

/// A request that the pool has dispatched and that is to be carried out.
pub(super) struct Ready {
    pub(super) request: Box<Request>,
    pub(super) ticket: Ticket,
    /// True if a modelled device has finished with the request, so that only memory is left to be read or written.
    off_device: bool,
    /// Bytes from the start of the request that earlier steps have trimmed or zeroed in memory.
    zeroed: u64,
}

impl Ready {
    pub(super) fn new(request: Box<Request>, ticket: Ticket) -> Self {
        Self { request, ticket, off_device: false, zeroed: 0 }
    }

    /// A request with which a modelled device has finished.
    pub(super) fn off_device(request: Box<Request>, ticket: Ticket) -> Self {
        Self { off_device: true, ..Self::new(request, ticket) }
    }

    /// True if a modelled device has finished with the request, so that only memory is left to be read or written.
    pub(super) fn is_off_device(&self) -> bool {
        self.off_device
    }

    /// True if steps of the request are done, and others are left.
    pub(super) fn is_begun(&self) -> bool {
        self.zeroed > 0
    }

    /// Rough time that the request's next step takes on a volume in memory, as a multiple of a read's (which copies no bytes).
    #[inline]
    pub(super) fn effort(&self) -> u64 {
        match self.request.command {
            Command::Read | Command::Flush | Command::Cache => 1,
            Command::Write if self.request.length <= SHORT_COPY => 1,
            _ => LONG,
        }
    }

    /// Carries the request, or its next step, out on the volume in memory; `None` if steps are left. Fails with ENOSPC if it
    /// fills a hole for which there is no memory.
    #[inline]
    pub(super) fn carry_out(&mut self, memory: &Memory) -> Option<Result<Output, Errno>> {
        let Request { command, flags, offset, length, buffer, .. } = &*self.request;
        let done = match command {
            Command::Read => return Some(Ok(Output::InPlace(memory.readable(*offset, *length)))),
            Command::BlockStatus => {
                return Some(Ok(Output::Extents(memory.extents(*offset, (*length).min(SCAN), MAX_EXTENTS))));
            }
            Command::Write => buffer.as_ref().map_or(Ok(()), |buffer| memory.write(*offset, buffer.as_slice())),
            Command::Trim => return self.zero_step(memory, true),
            Command::WriteZeroes => return self.zero_step(memory, !flags.contains(CommandFlags::NO_HOLE)),
            _ => Ok(()),
        };
        Some(done.map(|()| Output::Nothing).map_err(|Full| Errno::NoSpace))
    }

    fn zero_step(&mut self, memory: &Memory, punch: bool) -> Option<Result<Output, Errno>> {
        let (offset, left) = (self.request.offset + self.zeroed, self.request.length - self.zeroed);
        let step = memory.step(offset, left);
        if memory.zero(offset, step, punch) == Err(Full) {
            return Some(Err(Errno::NoSpace));
        }
        self.zeroed += step;
        (step == left).then_some(Ok(Output::Nothing))
    }
}
