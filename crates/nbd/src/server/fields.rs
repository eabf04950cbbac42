//! Parsing of the data of options.

use crate::wire::{BASE_ALLOCATION, MAX_STRING, info};

/// The information that an INFO or GO option asks for, besides size and flags, which are always sent.
#[derive(Clone, Copy, Default)]
pub(super) struct Wanted {
    pub(super) name: bool,
    pub(super) description: bool,
    pub(super) block_size: bool,
}

/// Export name and information requests in the data of an INFO or GO option; `None` if the data is malformed.
pub(super) fn parse_describe(data: &[u8]) -> Option<(&str, Wanted)> {
    let mut fields = Fields(data);
    let name = fields.string()?;
    let count = fields.u16()?;
    if fields.0.len() != usize::from(count) * 2 {
        return None;
    }
    let mut wanted = Wanted::default();
    while let Some(request) = fields.u16() {
        match request {
            info::NAME => wanted.name = true,
            info::DESCRIPTION => wanted.description = true,
            info::BLOCK_SIZE => wanted.block_size = true,
            _ => {}
        }
    }
    Some((name, wanted))
}

/// From the data of SET_META_CONTEXT (`set`) or LIST_META_CONTEXT: the export name, and true if the queries select
/// `base:allocation`. `None` if the data is malformed.
pub(super) fn parse_contexts(data: &[u8], set: bool) -> Option<(&str, bool)> {
    let mut fields = Fields(data);
    let name = fields.string()?;
    let count = fields.u32()?;
    // Listing without a query asks for everything, selecting without one for nothing.
    let mut selected = !set && count == 0;
    for _ in 0..count {
        let query = fields.string()?;
        selected |= query == BASE_ALLOCATION || (!set && query == "base:");
    }
    fields.0.is_empty().then_some((name, selected))
}

/// Reads bytes as a string of the specification ("Conventions"): UTF-8 without NUL, at most [`MAX_STRING`] bytes. `None` if
/// they are not such a string.
pub(super) fn string(bytes: &[u8]) -> Option<&str> {
    if bytes.len() > MAX_STRING || bytes.contains(&0) {
        return None;
    }
    core::str::from_utf8(bytes).ok()
}

/// The part of a message that is not read yet. Its methods take a field off the front, or return `None` if the message is too
/// short for it.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }

    /// Takes a string that follows its 32-bit length.
    fn string(&mut self) -> Option<&'a str> {
        let length = self.u32()? as usize;
        let (field, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        string(field)
    }
}
