//! Replies: the header that goes in front of the (zero-copy) payload.
//!
//! One function each for the three common answers chooses the form that was
//! negotiated: [`read`] (data follows), [`ok`] (no data) and [`error`]. The
//! chunk functions below them build a reply out of several pieces.
//!
//! `offset` is always the offset of the client's request: extended headers
//! repeat it, the others ignore it.

use alloc::vec::Vec;

use crate::wire::{
    EXTENDED_REPLY_LEN, EXTENDED_REPLY_MAGIC, Errno, Extent, Framing, SIMPLE_REPLY_LEN, SIMPLE_REPLY_MAGIC,
    STRUCTURED_REPLY_LEN, STRUCTURED_REPLY_MAGIC, chunk,
};

/// The longest header: an extended chunk header and the payload of ERROR_OFFSET.
const MAX_HEADER: usize = 48;

/// The most extents that one reply carries. The specification asks for at most
/// 2^20; this bounds a reply to 256 KiB, and a client asks again for the rest.
pub const MAX_EXTENTS: usize = 16 * 1024;

/// The metadata context ID under which `base:allocation` is selected.
pub const BASE_ALLOCATION_ID: u32 = 1;

/// The largest 32-bit extent: a multiple of every permitted minimum block size.
const MAX_COMPACT_EXTENT: u64 = 0xffff_0000;

/// The bytes to send before the payload, kept on the stack.
#[derive(Clone, Copy, Debug)]
pub struct ReplyHeader {
    bytes: [u8; MAX_HEADER],
    len: u8,
}

impl ReplyHeader {
    /// The bytes to send.
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

    /// A chunk header with the fixed `head` of its payload, which `data` more
    /// bytes follow.
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

/// The payload of an error chunk: error code, and 0 as the length of a message.
#[inline]
fn error_head(errno: Errno) -> [u8; 6] {
    join(errno.code().to_be_bytes(), 0u16.to_be_bytes())
}

/// The header for a READ of `length` bytes that succeeded; exactly that many bytes follow it. `length` is not zero and, as
/// [`validate`](super::request::validate) sees to, below 2^32 - 8.
#[inline]
pub fn read(framing: Framing, cookie: u64, offset: u64, length: u32) -> ReplyHeader {
    match framing {
        Framing::Simple => ReplyHeader::simple(cookie, 0),
        _ => data_chunk(framing, cookie, offset, offset, length, true),
    }
}

/// The reply to a request that succeeded and returns no data, or whose data was all in the chunks before.
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

/// The reply to a request that failed at byte `at` of the export, which lies within its range; what came before succeeded.
/// Simple replies cannot say where.
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

/// The header of a chunk with `length` (not zero) bytes of a READ, from byte `at` of the export, which follow it. Not for
/// [`Framing::Simple`].
#[inline]
pub fn data_chunk(framing: Framing, cookie: u64, offset: u64, at: u64, length: u32, done: bool) -> ReplyHeader {
    let chunk = Chunk { framing, done, kind: chunk::OFFSET_DATA, cookie, offset };
    ReplyHeader::chunk(chunk, at.to_be_bytes(), u64::from(length))
}

/// A chunk that says that `length` (not zero) bytes of a READ, from byte `at` of the export, are zero; nothing follows it.
/// Not for [`Framing::Simple`], nor in reply to a DF read.
#[inline]
pub fn hole_chunk(framing: Framing, cookie: u64, offset: u64, at: u64, length: u32, done: bool) -> ReplyHeader {
    let chunk = Chunk { framing, done, kind: chunk::OFFSET_HOLE, cookie, offset };
    let head: [u8; 12] = join(at.to_be_bytes(), length.to_be_bytes());
    ReplyHeader::chunk(chunk, head, 0)
}

/// Appends the whole reply to a BLOCK_STATUS request for `length` (not zero)
/// bytes at `offset` to `out`: one final chunk for `base:allocation`.
///
/// `extents` describe the export from `offset` on. Neighbours of the same status
/// are joined, empty ones dropped; the list ends where the request does (the
/// last one may reach further), after [`MAX_EXTENTS`], or after one, cut to
/// `length`, if `one` (REQ_ONE). If there are none, the answer is one extent of
/// status 0, which is always true. Takes no more extents than it needs. Not for
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
    start: usize,
    count: usize,
    /// How many more extents fit.
    room: usize,
    /// Bytes of the request not described yet.
    left: u64,
    /// True if no extent may reach beyond the request.
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

    /// Appends a run, in several descriptors if one cannot hold its length.
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

    /// Fills in the payload's length and the number of extents, which were not known at the start.
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
