//! Replies: the header that goes in front of the (zero-copy) payload.
//!
//! The functions for the three common answers use the framing that was
//! negotiated: [`read`] (data follows), [`ok`] (no data) and [`error`]. With
//! [`data_chunk`] and [`hole_chunk`] a reply is built of several pieces.
//!
//! `offset` is always the offset of the client's request: extended headers
//! repeat it, the others ignore it.

use alloc::vec::Vec;

use crate::wire::{
    EXTENDED_REPLY_LEN, EXTENDED_REPLY_MAGIC, Errno, Extent, Framing, SIMPLE_REPLY_LEN, SIMPLE_REPLY_MAGIC,
    STRUCTURED_REPLY_LEN, STRUCTURED_REPLY_MAGIC, chunk,
};

/// Upper bound on a header in bytes: an extended chunk header and the payload of ERROR_OFFSET.
const MAX_HEADER: usize = 48;

/// The most extents that one reply carries. The specification allows 2^20; this
/// bounds a reply to 256 KiB, and a client asks again for the rest of its range.
pub const MAX_EXTENTS: usize = 16 * 1024;

/// The metadata context ID under which `base:allocation` is selected.
pub const BASE_ALLOCATION_ID: u32 = 1;

/// The longest extent with a 32-bit length, in bytes: a multiple of every permitted minimum block size.
const MAX_COMPACT_EXTENT: u64 = 0xffff_0000;

/// The bytes of a reply that come before its payload, kept on the stack.
#[derive(Clone, Copy, Debug)]
pub struct ReplyHeader {
    bytes: [u8; MAX_HEADER],
    len: u8,
}

impl ReplyHeader {
    /// The bytes of the header, to be sent before the payload.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    #[inline]
    fn simple(cookie: u64, error: u32) -> Self {
        let mut bytes = [0; MAX_HEADER];
        bytes[0..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
        bytes[4..8].copy_from_slice(&error.to_be_bytes());
        bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
        Self { bytes, len: SIMPLE_REPLY_LEN as u8 }
    }

    /// A chunk header, and behind it the fixed `head` of the payload. The
    /// header announces `data` more bytes of payload, which the caller sends.
    #[inline]
    fn chunk<const N: usize>(chunk: Chunk, head: [u8; N], data: u64) -> Self {
        debug_assert!(chunk.framing.has_chunks(), "simple replies have no chunks");
        let payload = N as u64 + data;
        let flags = if chunk.done { chunk::FLAG_DONE } else { 0 };
        let mut bytes = [0; MAX_HEADER];
        bytes[4..6].copy_from_slice(&flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&chunk.kind.to_be_bytes());
        bytes[8..16].copy_from_slice(&chunk.cookie.to_be_bytes());
        // Two arms with constant positions: this is on the path of every read.
        let header_len = if chunk.framing.is_extended() {
            bytes[0..4].copy_from_slice(&EXTENDED_REPLY_MAGIC.to_be_bytes());
            bytes[16..24].copy_from_slice(&chunk.offset.to_be_bytes());
            bytes[24..32].copy_from_slice(&payload.to_be_bytes());
            bytes[EXTENDED_REPLY_LEN..EXTENDED_REPLY_LEN + N].copy_from_slice(&head);
            EXTENDED_REPLY_LEN
        } else {
            bytes[0..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
            bytes[16..20].copy_from_slice(&(payload as u32).to_be_bytes());
            bytes[STRUCTURED_REPLY_LEN..STRUCTURED_REPLY_LEN + N].copy_from_slice(&head);
            STRUCTURED_REPLY_LEN
        };
        Self { bytes, len: (header_len + N) as u8 }
    }
}

/// The fields of every chunk header.
#[derive(Clone, Copy)]
struct Chunk {
    framing: Framing,
    /// True if the chunk is the last one of its reply.
    done: bool,
    kind: u16,
    cookie: u64,
    offset: u64,
}

impl Chunk {
    #[inline]
    fn last(framing: Framing, kind: u16, cookie: u64, offset: u64) -> Self {
        Self { framing, done: true, kind, cookie, offset }
    }
}

/// Joins two fields, one behind the other.
#[inline]
fn join<const A: usize, const B: usize, const N: usize>(a: [u8; A], b: [u8; B]) -> [u8; N] {
    const { assert!(A + B == N) };
    let mut joined = [0; N];
    joined[..A].copy_from_slice(&a);
    joined[A..].copy_from_slice(&b);
    joined
}

/// The payload of an error chunk without a message: the error code, and 0 as the length of the message.
#[inline]
fn error_head(errno: Errno) -> [u8; 6] {
    join(errno.code().to_be_bytes(), 0u16.to_be_bytes())
}

/// The header for a READ of `length` bytes that succeeded; the caller sends exactly `length` bytes behind it. `length` is
/// above zero and below 2^32 - 8, as of each request that [`validate`](super::request::validate) accepts with such a limit.
#[inline]
pub fn read(framing: Framing, cookie: u64, offset: u64, length: u32) -> ReplyHeader {
    match framing {
        Framing::Simple => ReplyHeader::simple(cookie, 0),
        _ => data_chunk(framing, cookie, offset, offset, length, true),
    }
}

/// The whole reply to a request that succeeded and returns no data, or the last chunk of a reply whose earlier chunks held all
/// data.
#[inline]
pub fn ok(framing: Framing, cookie: u64, offset: u64) -> ReplyHeader {
    match framing {
        Framing::Simple => ReplyHeader::simple(cookie, 0),
        _ => ReplyHeader::chunk(Chunk::last(framing, chunk::NONE, cookie, offset), [], 0),
    }
}

/// The reply to a request that failed.
#[inline]
pub fn error(framing: Framing, cookie: u64, offset: u64, errno: Errno) -> ReplyHeader {
    match framing {
        Framing::Simple => ReplyHeader::simple(cookie, errno.code()),
        _ => ReplyHeader::chunk(Chunk::last(framing, chunk::ERROR, cookie, offset), error_head(errno), 0),
    }
}

/// The reply to a request that failed at byte `at` of the export, which lies within the request's range; bytes before it
/// succeeded. Simple replies have no field for `at`.
#[inline]
pub fn error_at(framing: Framing, cookie: u64, offset: u64, errno: Errno, at: u64) -> ReplyHeader {
    match framing {
        Framing::Simple => ReplyHeader::simple(cookie, errno.code()),
        _ => {
            let head: [u8; 14] = join(error_head(errno), at.to_be_bytes());
            ReplyHeader::chunk(Chunk::last(framing, chunk::ERROR_OFFSET, cookie, offset), head, 0)
        }
    }
}

/// The header of a chunk with content of a READ: the `length` bytes (not zero) from byte `at` of the export, which the caller
/// sends behind it. `done`: the reply ends with this chunk. Not for [`Framing::Simple`].
#[inline]
pub fn data_chunk(framing: Framing, cookie: u64, offset: u64, at: u64, length: u32, done: bool) -> ReplyHeader {
    let chunk = Chunk { framing, done, kind: chunk::OFFSET_DATA, cookie, offset };
    ReplyHeader::chunk(chunk, at.to_be_bytes(), u64::from(length))
}

/// A whole chunk of a READ's reply: the `length` bytes (not zero) from byte `at` of the export are zeroes. `done`: the reply
/// ends with this chunk. Not for [`Framing::Simple`], nor in reply to a READ with the flag DF.
#[inline]
pub fn hole_chunk(framing: Framing, cookie: u64, offset: u64, at: u64, length: u32, done: bool) -> ReplyHeader {
    let chunk = Chunk { framing, done, kind: chunk::OFFSET_HOLE, cookie, offset };
    let head: [u8; 12] = join(at.to_be_bytes(), length.to_be_bytes());
    ReplyHeader::chunk(chunk, head, 0)
}

/// Appends the whole reply to a BLOCK_STATUS request for `length` (not zero)
/// bytes at `offset` to `out`: one final chunk for `base:allocation`.
///
/// `extents` describe the export from `offset` on. Neighbouring extents of the
/// same status are joined, and empty ones dropped. The reply ends with the extent
/// that reaches the end of the request (and may reach further), after
/// [`MAX_EXTENTS`] extents, or if `one` (flag REQ_ONE) after one extent, which is
/// cut to `length`. Without `extents` the reply has one extent of status 0, which
/// is never wrong. Takes no more of `extents` than it needs. Not for
/// [`Framing::Simple`]. O(extents).
pub fn block_status(
    framing: Framing,
    cookie: u64,
    offset: u64,
    length: u64,
    one: bool,
    extents: impl IntoIterator<Item = Extent>,
    out: &mut Vec<u8>,
) {
    debug_assert!(length > 0, "an extent cannot be empty");
    let mut list = StatusChunk::begin(framing, cookie, offset, length, one, out);
    let mut run = Extent { length: 0, status: 0 };
    for extent in extents {
        if extent.length == 0 {
            continue;
        }
        if run.length > 0 && extent.status != run.status {
            list.push(run);
            run.length = 0;
        }
        run.status = extent.status;
        // No export is longer than 2^63 bytes, but a sum must not wrap.
        run.length = run.length.saturating_add(extent.length);
        if run.length >= list.left || list.room == 0 {
            break;
        }
    }
    list.push(run);
    if list.count == 0 {
        list.push(Extent { length, status: 0 });
    }
    list.finish();
}

/// A BLOCK_STATUS chunk under construction.
struct StatusChunk<'a> {
    extended: bool,
    out: &'a mut Vec<u8>,
    /// Place in `out` where the chunk begins.
    start: usize,
    /// Number of extents in the chunk so far.
    count: usize,
    /// Number of extents that may still be added.
    room: usize,
    /// Bytes of the request's range that no extent describes yet.
    left: u64,
    /// True if no extent may reach beyond the end of the request's range.
    cut: bool,
}

impl<'a> StatusChunk<'a> {
    fn begin(framing: Framing, cookie: u64, offset: u64, length: u64, one: bool, out: &'a mut Vec<u8>) -> Self {
        let start = out.len();
        let extended = framing.is_extended();
        let kind = if extended { chunk::BLOCK_STATUS_EXT } else { chunk::BLOCK_STATUS };
        out.extend_from_slice(ReplyHeader::chunk(Chunk::last(framing, kind, cookie, offset), [], 0).as_slice());
        out.extend_from_slice(&BASE_ALLOCATION_ID.to_be_bytes());
        if extended {
            out.extend_from_slice(&0u32.to_be_bytes());
        }
        let room = if one { 1 } else { MAX_EXTENTS };
        Self { extended, out, start, count: 0, room, left: length, cut: one }
    }

    /// Appends a run to the chunk, as several extents if it is too long for a 32-bit length.
    fn push(&mut self, run: Extent) {
        let mut length = if self.cut { run.length.min(self.left) } else { run.length };
        while length > 0 && self.left > 0 && self.room > 0 {
            let described = if self.extended {
                self.out.extend_from_slice(&length.to_be_bytes());
                self.out.extend_from_slice(&u64::from(run.status).to_be_bytes());
                length
            } else {
                let part = length.min(MAX_COMPACT_EXTENT);
                self.out.extend_from_slice(&(part as u32).to_be_bytes());
                self.out.extend_from_slice(&run.status.to_be_bytes());
                part
            };
            self.count += 1;
            self.room -= 1;
            length -= described;
            self.left = self.left.saturating_sub(described);
        }
    }

    /// Ends the chunk: writes the payload's length and the number of extents into its header.
    fn finish(self) {
        let header_len = if self.extended { EXTENDED_REPLY_LEN } else { STRUCTURED_REPLY_LEN };
        let chunk = &mut self.out[self.start..];
        let payload = chunk.len() - header_len;
        if self.extended {
            chunk[24..32].copy_from_slice(&(payload as u64).to_be_bytes());
            chunk[36..40].copy_from_slice(&(self.count as u32).to_be_bytes());
        } else {
            chunk[16..20].copy_from_slice(&(payload as u32).to_be_bytes());
        }
    }
}
