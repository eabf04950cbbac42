//! Requests and slices that a worker carries out itself, on memory. Each is short: [`divide`](super::divide) sees to that.

use evenkeel_control::pool::Ticket;
use evenkeel_nbd::wire::{Command, CommandFlags};

use super::request::{Output, Request};
use crate::backend::memory::Memory;
use crate::backend::operation::MAX_EXTENTS;

/// Bytes that are searched for extents for one request, which takes some 100 us; a client asks again for the rest.
const SCAN: u64 = 4 << 30;
/// A request that is not known to be short counts as so many that are: see [`Ready::effort`].
const LONG: u64 = 64;
/// Bytes that are copied as quickly as a reply is made.
const SHORT_COPY: u64 = 16 << 10;

/// A request that may be carried out.
pub(super) struct Ready {
    pub(super) request: Box<Request>,
    pub(super) ticket: Ticket,
    /// The modelled device has done its part: what is left is in memory.
    off_device: bool,
}

impl Ready {
    pub(super) fn new(request: Box<Request>, ticket: Ticket) -> Self {
        Self { request, ticket, off_device: false }
    }

    /// One that a modelled device has finished with.
    pub(super) fn off_device(request: Box<Request>, ticket: Ticket) -> Self {
        Self { off_device: true, ..Self::new(request, ticket) }
    }

    /// True if it is a matter of memory alone by now.
    pub(super) fn is_off_device(&self) -> bool {
        self.off_device
    }

    /// About how long it takes a worker on memory, in reads, which are answered from where the bytes are.
    #[inline]
    pub(super) fn effort(&self) -> u64 {
        match self.request.command {
            Command::Read | Command::Flush | Command::Cache => 1,
            Command::Write if self.request.length <= SHORT_COPY => 1,
            _ => LONG,
        }
    }

    /// Carries it out on a volume in memory.
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
