//! Requests that a worker carries out itself, on memory: in steps, so that it comes round in time whatever is asked of it.

use evenkeel_control::pool::Ticket;
use evenkeel_nbd::wire::{Command, CommandFlags};

use super::connection::{Output, Request};
use super::pump::MAX_EXTENTS;
use crate::backend::memory::Memory;

// Bytes of one step, which takes 0.1 to 0.4 ms: a page is given back in some 60 ns, a huge page is zeroed in some 100 us.
const PUNCH_STEP: u64 = 16 << 20;
const FILL_STEP: u64 = 2 << 20;
const COPY_STEP: u64 = 1 << 20;
/// Bytes that are searched for extents for one request; a client asks again for the rest.
const SCAN_STEP: u64 = 4 << 30;
/// What a step counts that is not known to be short: see [`Ready::effort`].
const LONG_STEP: u64 = 64;

/// A request that may be carried out.
pub(super) struct Ready {
    pub(super) request: Request,
    pub(super) ticket: Ticket,
    /// The modelled device has done its part: what is left is in memory.
    off_device: bool,
    /// Bytes of it that are done.
    moved: u64,
}

impl Ready {
    pub(super) fn new(request: Request, ticket: Ticket) -> Self {
        Self { request, ticket, off_device: false, moved: 0 }
    }

    /// One that a modelled device has finished with.
    pub(super) fn off_device(request: Request, ticket: Ticket) -> Self {
        Self { off_device: true, ..Self::new(request, ticket) }
    }

    /// Whether it is a matter of memory alone by now.
    pub(super) fn is_off_device(&self) -> bool {
        self.off_device
    }

    /// About how long the next step takes a worker on memory, in reads, which are answered from where the bytes are.
    #[inline]
    pub(super) fn effort(&self) -> u64 {
        match self.request.command {
            Command::Read | Command::Flush | Command::Cache => 1,
            Command::Write if self.request.length <= COPY_STEP / LONG_STEP => 1,
            _ => LONG_STEP,
        }
    }

    /// Carries out the next step on a volume in memory; what came of the request if that was the last one.
    #[inline]
    pub(super) fn step(&mut self, memory: &Memory) -> Option<Output> {
        let (request, moved) = (&mut self.request, self.moved);
        let (at, left) = (request.offset + moved, request.length - moved);
        let punch = !request.flags.contains(CommandFlags::NO_HOLE);
        let step = match request.command {
            Command::Read => return Some(Output::InPlace(memory.readable(request.offset, request.length))),
            Command::BlockStatus => {
                return Some(Output::Extents(memory.extents(at, left.min(SCAN_STEP), MAX_EXTENTS)));
            }
            Command::Write => {
                let step = left.min(COPY_STEP);
                if let Some(buffer) = &request.buffer {
                    memory.write(at, &buffer.as_slice()[moved as usize..][..step as usize]);
                }
                step
            }
            Command::Trim | Command::WriteZeroes => {
                let punch = punch || request.command == Command::Trim;
                // Up to where whole huge pages begin, so that no later step splits one.
                let step = if punch { PUNCH_STEP } else { FILL_STEP };
                let step = left.min(step - at % step);
                memory.zero(at, step, punch);
                step
            }
            _ => left,
        };
        self.moved += step;
        (self.moved == self.request.length).then_some(Output::Nothing)
    }
}
