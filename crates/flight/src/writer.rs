//! Writes a recording.

use std::io;

use crate::bounds::{BLOCK_NOTE_BYTES, BLOCK_NOTES, BLOCK_REQUESTS};
use crate::columns::Encoder;
use crate::frame::{END, FRAME, Frame, Totals, head_bytes};
use crate::notes::{Notes, fault};
use crate::request::{Head, Item, Request};

/// Writes a recording, in one write for each block of up to 4,096 requests. It takes memory for one block, and flushes `out`
/// only in [`Self::flush`] and [`Self::finish`].
#[derive(Debug)]
pub struct Writer<W: io::Write> {
    out: W,
    bytes: u64,
    requests: Vec<Request>,
    notes: Notes,
    encoder: Encoder,
    totals: Totals,
    /// Frame and payload of the newest block.
    block: Vec<u8>,
    /// True if a write failed, so that the file may end within a block.
    failed: bool,
}

impl<W: io::Write> Writer<W> {
    /// Writes the head of a recording.
    ///
    /// # Errors
    /// The error of `out`; [`io::ErrorKind::InvalidInput`] if source and policy have more than 4 MiB.
    pub fn new(mut out: W, head: &Head) -> io::Result<Self> {
        let head = head_bytes(head).ok_or_else(|| invalid("the policy is longer than 4 MiB: record without it"))?;
        out.write_all(&head)?;
        Ok(Self {
            out,
            bytes: head.len() as u64,
            requests: Vec::with_capacity(BLOCK_REQUESTS),
            notes: Notes::default(),
            encoder: Encoder::default(),
            totals: Totals::default(),
            block: Vec::new(),
            failed: false,
        })
    }

    /// Adds an item, and writes the block if it is full.
    ///
    /// # Errors
    /// The error of `out`, after which nothing more can be written. [`io::ErrorKind::InvalidInput`] for an item that is left
    /// out, after which writing goes on: times that add up to 2⁶⁴ ns, the error number 0, a loss that ends before it begins, a
    /// name longer than 4,096 bytes.
    pub fn write(&mut self, item: &Item) -> io::Result<()> {
        self.check()?;
        if let Some(why) = fault(item) {
            return Err(invalid(why));
        }
        match item {
            Item::Request(request) => self.requests.push(*request),
            Item::Name(name) => self.notes.add_name(self.requests.len(), name),
            Item::Lost { requests, from_ns, to_ns } => {
                self.notes.add_loss(self.requests.len(), *requests, *from_ns, *to_ns);
            }
        }
        self.totals.add(item);
        let is_full = self.requests.len() >= BLOCK_REQUESTS
            || self.notes.count() >= BLOCK_NOTES
            || self.notes.bytes() >= BLOCK_NOTE_BYTES;
        if is_full { self.end_block() } else { Ok(()) }
    }

    /// Ends the block, writes it, and flushes `out`. Blocks of few requests take more bytes a request.
    ///
    /// # Errors
    /// The error of `out`.
    pub fn flush(&mut self) -> io::Result<()> {
        self.end_block()?;
        self.out.flush()
    }

    /// Number of bytes written, without the block that has not ended.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of requests in the block that has not ended. After a failed write they are in no block that can be read.
    pub fn pending(&self) -> u64 {
        self.requests.len() as u64
    }

    /// Ends the block, writes it and the end mark, and flushes `out`.
    ///
    /// # Errors
    /// The error of `out`.
    pub fn finish(mut self) -> io::Result<W> {
        self.end_block()?;
        self.begin_block();
        self.totals.put(&mut self.block);
        self.write_block(END)?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn check(&self) -> io::Result<()> {
        if self.failed {
            return Err(io::Error::other("an earlier write of the recording failed: record to another file"));
        }
        Ok(())
    }

    /// Writes the block unless it is empty.
    fn end_block(&mut self) -> io::Result<()> {
        self.check()?;
        if self.requests.is_empty() && self.notes.count() == 0 {
            return Ok(());
        }
        self.begin_block();
        self.notes.put(&mut self.block);
        self.encoder.encode(&self.requests, &mut self.block);
        self.write_block(self.requests.len() as u32)?;
        self.requests.clear();
        self.notes.clear();
        Ok(())
    }

    /// Leaves room for the frame before the payload.
    fn begin_block(&mut self) {
        self.block.clear();
        self.block.resize(FRAME, 0);
    }

    /// Writes the payload that stands behind the room for its frame.
    fn write_block(&mut self, requests: u32) -> io::Result<()> {
        let frame = Frame::around(&self.block[FRAME..], requests).bytes();
        self.block[..FRAME].copy_from_slice(&frame);
        let written = self.out.write_all(&self.block);
        self.failed = written.is_err();
        written?;
        self.bytes += self.block.len() as u64;
        Ok(())
    }
}

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}
