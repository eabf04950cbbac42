//! Parser of replies, which takes any number of them directly from the receive buffer.

use alloc::collections::BTreeMap;

use super::coverage::Coverage;
use super::{Violation, be16, be32, be64};
use crate::wire::{
    Command, EXTENDED_REPLY_LEN, EXTENDED_REPLY_MAGIC, Errno, Framing, MAX_STRING, SIMPLE_REPLY_LEN,
    SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_LEN, STRUCTURED_REPLY_MAGIC, chunk,
};

/// Bytes of an error chunk's payload before the message: error code and length of the message.
const ERROR_PREFIX: usize = 6;
/// The longest payload of an error chunk, in bytes: code, length, message, offset.
const MAX_ERROR: usize = ERROR_PREFIX + MAX_STRING + 8;
/// Largest number of error chunks in one reply. Real servers send one or two; without a bound a server could keep a client busy
/// with an answer that does not end.
const MAX_ERRORS: u16 = 1024;
/// Largest number of extents in one chunk, as in the replies of `nbdkit`; those of `qemu-nbd` have at most 131,072.
const MAX_EXTENTS: u64 = 1 << 20;
/// Upper bound on the bytes that [`Replies::parse`] leaves unconsumed: an incomplete error chunk. A receive buffer must have
/// room for more than this.
pub const MAX_CARRY: usize = EXTENDED_REPLY_LEN + MAX_ERROR;

/// The facts about an outstanding request with which its reply must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expect {
    /// The command.
    pub command: Command,
    /// The request's offset in bytes.
    pub offset: u64,
    /// The request's length in bytes.
    pub length: u64,
    /// True if one chunk must hold the content of the whole range (flag `DF`).
    pub unfragmented: bool,
}

/// Receiver of parsed replies. The calls for one request come in the order of its reply and end with one [`Sink::done`].
pub trait Sink {
    /// The outstanding request with this cookie; `None` if there is none, also after a request's [`Sink::done`].
    fn expect(&self, cookie: u64) -> Option<Expect>;
    /// Takes content of a READ: `bytes` from `offset` of the export. A large READ is passed in several pieces.
    fn data(&mut self, cookie: u64, offset: u64, bytes: &[u8]);
    /// Takes content of a READ: `length` bytes from `offset` of the export are zeroes.
    fn hole(&mut self, cookie: u64, offset: u64, length: u64);
    /// Takes an extent of a BLOCK_STATUS: the next `length` bytes of the request's range have this status in metadata context
    /// `context`.
    fn extent(&mut self, _cookie: u64, _context: u32, _length: u64, _status: u64) {}
    /// Takes the end of a request, whose cookie is free for another request from now on.
    fn done(&mut self, cookie: u64, result: Result<(), Errno>);
}

/// The kind of the bytes that come next.
#[derive(Clone, Copy, Debug)]
enum State {
    /// A reply header.
    Header,
    /// Content of a read: `left` bytes from `offset` of the export.
    Data { cookie: u64, offset: u64, left: u64, end: End },
    /// Extents of a block status reply: `left` more of them, for the last `asked` bytes of the request's range.
    Extents { cookie: u64, context: u32, left: u64, asked: u64, end: End },
}

/// The step after the last byte of a payload.
#[derive(Clone, Copy, Debug)]
enum End {
    /// More chunks of the same reply follow.
    More,
    /// The reply ends; the parser then checks that its chunks are complete.
    Reply,
    /// The reply ends and is complete, as it consists of one chunk or is a simple reply.
    Whole,
}

/// The chunks received so far of a reply that is not complete.
#[derive(Debug, Default)]
struct Partial {
    covered: Coverage,
    /// The first error among the chunks.
    error: Option<Errno>,
    /// Number of error chunks.
    errors: u16,
    /// True if a chunk held block status.
    described: bool,
}

/// The header of a structured or extended chunk.
struct Chunk {
    /// True if the chunk is the last one of its reply.
    done: bool,
    kind: u16,
    cookie: u64,
    /// Length of the payload in bytes.
    payload: u64,
}

/// Parses the replies of one connection. See [`Replies::parse`].
#[derive(Debug)]
pub struct Replies {
    framing: Framing,
    /// Id of the negotiated metadata context.
    context: Option<u32>,
    state: State,
    /// Incomplete replies by cookie.
    partial: BTreeMap<u64, Partial>,
}

impl Replies {
    /// A parser for a connection that negotiated `framing` and, for block status, the
    /// metadata context with id `context`.
    pub fn new(framing: Framing, context: Option<u32>) -> Self {
        Self { framing, context, state: State::Header, partial: BTreeMap::new() }
    }

    /// True if the next byte starts a reply and no reply is incomplete.
    pub fn is_between_replies(&self) -> bool {
        matches!(self.state, State::Header) && self.partial.is_empty()
    }

    /// Parses the replies in `input` and returns the number of bytes consumed. The caller passes the other bytes, at most
    /// [`MAX_CARRY`], again, with those that arrive next. Content of a READ is consumed as it arrives, so that a READ may be
    /// larger than the buffer.
    ///
    /// # Errors
    /// When the server breaks the protocol: an unknown cookie or magic number, a chunk that
    /// does not fit its request, content outside the request's range or sent twice, a reply
    /// that ends before its content is complete.
    #[inline]
    pub fn parse<S: Sink>(&mut self, input: &[u8], sink: &mut S) -> Result<usize, Violation> {
        let mut at = 0;
        loop {
            let rest = &input[at..];
            let consumed = match self.state {
                State::Header => match self.framing {
                    Framing::Simple => self.simple(rest, sink)?,
                    Framing::Structured if rest.len() >= 4 && be32(rest, 0) == SIMPLE_REPLY_MAGIC => {
                        self.simple(rest, sink)?
                    }
                    Framing::Structured | Framing::Extended => self.chunk(rest, sink)?,
                },
                State::Data { .. } => self.data(rest, sink)?,
                State::Extents { .. } => self.extents(rest, sink)?,
            };
            match consumed {
                Some(bytes) => at += bytes,
                None => return Ok(at),
            }
        }
    }

    #[inline]
    fn simple<S: Sink>(&mut self, input: &[u8], sink: &mut S) -> Result<Option<usize>, Violation> {
        if input.len() < SIMPLE_REPLY_LEN {
            return Ok(None);
        }
        let magic = be32(input, 0);
        if magic != SIMPLE_REPLY_MAGIC {
            return Err(Violation::new("a reply starts with a wrong magic number", u64::from(magic)));
        }
        let (error, cookie) = (Errno::from_code(be32(input, 4)), be64(input, 8));
        let expect = expected(sink, cookie)?;
        if self.framing.has_chunks() {
            if matches!(expect.command, Command::Read | Command::BlockStatus) {
                return Err(Violation::new("a simple reply where chunks were negotiated", cookie));
            }
            if self.partial.contains_key(&cookie) {
                return Err(Violation::new("a simple reply amid the chunks of the same request", cookie));
            }
        }
        match error {
            Some(error) => sink.done(cookie, Err(error)),
            None if expect.command == Command::Read => {
                end(expect.offset, expect.length)?;
                self.state = State::Data { cookie, offset: expect.offset, left: expect.length, end: End::Whole };
            }
            None => sink.done(cookie, Ok(())),
        }
        Ok(Some(SIMPLE_REPLY_LEN))
    }

    #[inline]
    fn chunk<S: Sink>(&mut self, input: &[u8], sink: &mut S) -> Result<Option<usize>, Violation> {
        let extended = self.framing.is_extended();
        let (header, magic) = if extended {
            (EXTENDED_REPLY_LEN, EXTENDED_REPLY_MAGIC)
        } else {
            (STRUCTURED_REPLY_LEN, STRUCTURED_REPLY_MAGIC)
        };
        if input.len() < header {
            return Ok(None);
        }
        if be32(input, 0) != magic {
            return Err(Violation::new("a chunk starts with a wrong magic number", u64::from(be32(input, 0))));
        }
        let chunk = Chunk {
            done: be16(input, 4) & chunk::FLAG_DONE != 0,
            kind: be16(input, 6),
            cookie: be64(input, 8),
            payload: if extended { be64(input, 24) } else { u64::from(be32(input, 16)) },
        };
        let expect = expected(sink, chunk.cookie)?;
        if extended && be64(input, 16) != expect.offset {
            return Err(Violation::new("the offset of a reply differs from that of its request", be64(input, 16)));
        }
        let body = &input[header..];
        let used = match chunk.kind {
            chunk::OFFSET_DATA => self.offset_data(&chunk, &expect, body)?,
            chunk::NONE => self.none(&chunk, sink)?,
            chunk::OFFSET_HOLE => self.offset_hole(&chunk, &expect, body, sink)?,
            chunk::BLOCK_STATUS | chunk::BLOCK_STATUS_EXT => self.block_status(&chunk, &expect, body)?,
            kind if kind & chunk::ERROR_BIT != 0 => self.error(&chunk, &expect, body, sink)?,
            kind => return Err(Violation::new("a chunk has an unknown type", u64::from(kind))),
        };
        Ok(used.map(|used| header + used))
    }

    #[inline]
    fn offset_data(&mut self, chunk: &Chunk, expect: &Expect, body: &[u8]) -> Result<Option<usize>, Violation> {
        if expect.command != Command::Read || chunk.payload < 9 {
            return Err(Violation::new("a data chunk that its request does not allow", chunk.payload));
        }
        if body.len() < 8 {
            return Ok(None);
        }
        let (offset, length) = (be64(body, 0), chunk.payload - 8);
        let whole = self.content(chunk, expect, offset, length)?;
        let end = match (chunk.done, whole) {
            (true, true) => End::Whole,
            (true, false) => End::Reply,
            (false, _) => End::More,
        };
        self.state = State::Data { cookie: chunk.cookie, offset, left: length, end };
        Ok(Some(8))
    }

    /// Checks a chunk's content against its request and the reply's earlier chunks; true if the chunk is the whole reply.
    #[inline]
    fn content(&mut self, chunk: &Chunk, expect: &Expect, offset: u64, length: u64) -> Result<bool, Violation> {
        let end = end(offset, length)?;
        let all = offset == expect.offset && length == expect.length;
        if chunk.done && all && (self.partial.is_empty() || !self.partial.contains_key(&chunk.cookie)) {
            return Ok(true);
        }
        if offset < expect.offset || end > expect.offset.saturating_add(expect.length) {
            return Err(Violation::new("content lies outside the range that was read", offset));
        }
        if expect.unfragmented && !all {
            return Err(Violation::new("content is fragmented although the request forbids it", length));
        }
        self.partial.entry(chunk.cookie).or_default().covered.add(offset, end)?;
        Ok(false)
    }

    fn offset_hole<S: Sink>(
        &mut self,
        chunk: &Chunk,
        expect: &Expect,
        body: &[u8],
        sink: &mut S,
    ) -> Result<Option<usize>, Violation> {
        if expect.command != Command::Read || chunk.payload != 12 {
            return Err(Violation::new("a hole chunk that its request does not allow", chunk.payload));
        }
        if body.len() < 12 {
            return Ok(None);
        }
        let (offset, length) = (be64(body, 0), u64::from(be32(body, 8)));
        if length == 0 {
            return Err(Violation::new("a hole chunk is empty", offset));
        }
        let whole = self.content(chunk, expect, offset, length)?;
        sink.hole(chunk.cookie, offset, length);
        match (chunk.done, whole) {
            (true, true) => sink.done(chunk.cookie, Ok(())),
            (true, false) => self.finish(chunk.cookie, sink)?,
            (false, _) => {}
        }
        Ok(Some(12))
    }

    #[inline]
    fn none<S: Sink>(&mut self, chunk: &Chunk, sink: &mut S) -> Result<Option<usize>, Violation> {
        if !chunk.done || chunk.payload != 0 {
            return Err(Violation::new("an empty chunk that does not end its reply or has a payload", chunk.payload));
        }
        self.finish(chunk.cookie, sink)?;
        Ok(Some(0))
    }

    fn error<S: Sink>(
        &mut self,
        chunk: &Chunk,
        expect: &Expect,
        body: &[u8],
        sink: &mut S,
    ) -> Result<Option<usize>, Violation> {
        if !(ERROR_PREFIX as u64..=MAX_ERROR as u64).contains(&chunk.payload) {
            return Err(Violation::new("an error chunk has a wrong length", chunk.payload));
        }
        let payload = chunk.payload as usize;
        if body.len() < payload {
            return Ok(None);
        }
        let message = usize::from(be16(body, 4));
        let after = payload.checked_sub(ERROR_PREFIX + message);
        let fits = match chunk.kind {
            chunk::ERROR => after == Some(0),
            chunk::ERROR_OFFSET => after == Some(8),
            // Later error types may carry more; code and message are where they always are.
            _ => after.is_some(),
        };
        if !fits || message > MAX_STRING {
            return Err(Violation::new("the message of an error chunk has a wrong length", message as u64));
        }
        if chunk.kind == chunk::ERROR_OFFSET {
            let offset = be64(body, payload - 8);
            if offset < expect.offset || offset - expect.offset >= expect.length.max(1) {
                return Err(Violation::new("an error lies outside the range of its request", offset));
            }
        }
        let Some(error) = Errno::from_code(be32(body, 0)) else {
            return Err(Violation::new("an error chunk without an error", chunk.cookie));
        };
        if chunk.done && !self.partial.contains_key(&chunk.cookie) {
            sink.done(chunk.cookie, Err(error));
        } else {
            let partial = self.partial.entry(chunk.cookie).or_default();
            if partial.errors == MAX_ERRORS {
                return Err(Violation::new("a reply has too many error chunks", chunk.cookie));
            }
            partial.errors += 1;
            // The first error names the cause.
            partial.error.get_or_insert(error);
            if chunk.done {
                self.finish(chunk.cookie, sink)?;
            }
        }
        Ok(Some(payload))
    }

    fn block_status(&mut self, chunk: &Chunk, expect: &Expect, body: &[u8]) -> Result<Option<usize>, Violation> {
        let wide = chunk.kind == chunk::BLOCK_STATUS_EXT;
        let (prefix, each) = if wide { (8, 16) } else { (4, 8) };
        let extents = chunk.payload.saturating_sub(prefix);
        if expect.command != Command::BlockStatus
            || wide != self.framing.is_extended()
            || extents == 0
            || extents % each != 0
        {
            return Err(Violation::new("a block status chunk that its request does not allow", chunk.payload));
        }
        if extents / each > MAX_EXTENTS {
            return Err(Violation::new("a block status chunk has too many extents", extents / each));
        }
        if (body.len() as u64) < prefix {
            return Ok(None);
        }
        let context = be32(body, 0);
        if self.context != Some(context) {
            return Err(Violation::new("block status for a context that was not negotiated", u64::from(context)));
        }
        if wide && u64::from(be32(body, 4)) != extents / each {
            return Err(Violation::new(
                "the number of extents in a block status chunk is not that of its header",
                u64::from(be32(body, 4)),
            ));
        }
        let partial = self.partial.entry(chunk.cookie).or_default();
        if core::mem::replace(&mut partial.described, true) {
            return Err(Violation::new("block status for the same context twice", chunk.cookie));
        }
        let end = if chunk.done { End::Reply } else { End::More };
        self.state = State::Extents { cookie: chunk.cookie, context, left: extents / each, asked: expect.length, end };
        Ok(Some(prefix as usize))
    }

    /// Passes the content of a READ that has arrived to the sink.
    #[inline]
    fn data<S: Sink>(&mut self, input: &[u8], sink: &mut S) -> Result<Option<usize>, Violation> {
        let State::Data { cookie, offset, left, end } = self.state else { return Ok(None) };
        let here = left.min(input.len() as u64);
        if here > 0 {
            sink.data(cookie, offset, &input[..here as usize]);
        }
        if here < left {
            self.state = State::Data { cookie, offset: offset + here, left: left - here, end };
            return Ok((here > 0).then_some(here as usize));
        }
        self.state = State::Header;
        match end {
            End::Whole => sink.done(cookie, Ok(())),
            End::Reply => self.finish(cookie, sink)?,
            End::More => {}
        }
        Ok(Some(here as usize))
    }

    /// Passes one extent of a BLOCK_STATUS to the sink.
    fn extents<S: Sink>(&mut self, input: &[u8], sink: &mut S) -> Result<Option<usize>, Violation> {
        let State::Extents { cookie, context, left, asked, end } = self.state else { return Ok(None) };
        let wide = self.framing.is_extended();
        let each = if wide { 16 } else { 8 };
        if input.len() < each {
            return Ok(None);
        }
        let (length, status) = if wide {
            (be64(input, 0), be64(input, 8))
        } else {
            (u64::from(be32(input, 0)), u64::from(be32(input, 4)))
        };
        // Only the last extent may reach beyond what was asked, so nothing is left to describe after it.
        if length == 0 || asked == 0 {
            return Err(Violation::new("an extent is empty or follows the end of the range", length));
        }
        sink.extent(cookie, context, length, status);
        let asked = asked.saturating_sub(length);
        self.state = State::Extents { cookie, context, left: left - 1, asked, end };
        if left == 1 {
            self.state = State::Header;
            if matches!(end, End::Reply | End::Whole) {
                self.finish(cookie, sink)?;
            }
        }
        Ok(Some(each))
    }

    /// Ends a reply: fails if its chunks do not cover the request's range, or do not hold its block status.
    #[inline]
    fn finish<S: Sink>(&mut self, cookie: u64, sink: &mut S) -> Result<(), Violation> {
        let expect = expected(sink, cookie)?;
        let partial = if self.partial.is_empty() { None } else { self.partial.remove(&cookie) };
        let partial = partial.unwrap_or_default();
        let complete = match expect.command {
            Command::Read => partial.covered.is(expect.offset, expect.offset.saturating_add(expect.length)),
            Command::BlockStatus => partial.described,
            _ => true,
        };
        match partial.error {
            Some(error) => sink.done(cookie, Err(error)),
            None if complete => sink.done(cookie, Ok(())),
            None => return Err(Violation::new("a reply ends before it is complete", cookie)),
        }
        Ok(())
    }
}

#[inline]
fn expected<S: Sink>(sink: &S, cookie: u64) -> Result<Expect, Violation> {
    sink.expect(cookie).ok_or(Violation::new("a reply to a request that is not outstanding", cookie))
}

/// The offset at which content ends; an end beyond 2^64 is a violation, because no export reaches that far.
#[inline]
fn end(offset: u64, length: u64) -> Result<u64, Violation> {
    offset.checked_add(length).ok_or(Violation::new("content ends beyond 2^64", offset))
}
