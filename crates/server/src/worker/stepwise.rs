//! Requests and slices on memory that a worker carries out itself. Each is short: [`divide`](super::divide) sees to that.

use evenkeel_control::pool::Ticket;
use evenkeel_nbd::wire::{Command, CommandFlags};

use super::request::{Output, Request};
use crate::backend::memory::Memory;
use crate::backend::operation::MAX_EXTENTS;

/// Bytes of memory that one request searches for extents at most, in some 100 us; a client asks again for the rest.
const SCAN: u64 = 4 << 30;
/// Effort of a request that is not known to be short, in short requests: see [`Ready::effort`].
const LONG: u64 = 64;
/// Bytes of a write that can be copied as quickly as a reply is made.
const SHORT_COPY: u64 = 16 << 10;

/// A dispatched request that is to be carried out.
pub(super) struct Ready {
    pub(super) request: Box<Request>,
    pub(super) ticket: Ticket,
    /// True once the modelled device has done its part: the rest is in memory.
    off_device: bool,
}

impl Ready {
    pub(super) fn new(request: Box<Request>, ticket: Ticket) -> Self {
        Self { request, ticket, off_device: false }
    }

    /// A request that a modelled device has finished with.
    pub(super) fn off_device(request: Box<Request>, ticket: Ticket) -> Self {
        Self { off_device: true, ..Self::new(request, ticket) }
    }

    /// True if only memory is left to be read or written, because the modelled device has done its part.
    pub(super) fn is_off_device(&self) -> bool {
        self.off_device
    }

    /// How long the request takes on memory, roughly, in reads (which are answered from where the bytes are).
    #[inline]
    pub(super) fn effort(&self) -> u64 {
        match self.request.command {
            Command::Read | Command::Flush | Command::Cache => 1,
            Command::Write if self.request.length <= SHORT_COPY => 1,
            _ => LONG,
        }
    }

    /// Carries the request out on a volume in memory.
    #[inline]
    pub(super) fn carry_out(&self, memory: &Memory) -> Output {
        let Request { command, flags, offset, length, buffer, .. } = &*self.request;
        match command {
            Command::Read => return Output::InPlace(memory.readable(*offset, *length)),
            Command::BlockStatus => return Output::Extents(memory.extents(*offset, (*length).min(SCAN), MAX_EXTENTS)),
            Command::Write => {
                if let Some(buffer) = buffer {
                    memory.write(*offset, buffer.as_slice());
                }
            }
            Command::Trim => memory.zero(*offset, *length, true),
            Command::WriteZeroes => memory.zero(*offset, *length, !flags.contains(CommandFlags::NO_HOLE)),
            _ => {}
        }
        Output::Nothing
    }
}
