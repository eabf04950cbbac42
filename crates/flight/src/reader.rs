//! Reads a recording.

use std::io::Read;
use std::vec;

use evenkeel_wire::{Input, checksum};

use crate::bounds::{BLOCK_REQUESTS, MAX_PAYLOAD};
use crate::columns::requests;
use crate::error::Error;
use crate::frame::{END, FRAME, Frame, HEAD, Totals, head, head_length};
use crate::notes::notes;
use crate::request::{Head, Item};

/// Reads a recording item by item, in memory for one block.
///
/// Reads of `input` are of whole blocks, so that it needs no buffer.
#[derive(Debug)]
pub struct Reader<R: Read> {
    input: R,
    head: Head,
    /// Number of bytes read.
    offset: u64,
    /// The bytes read last.
    bytes: Vec<u8>,
    /// The items of the block that are not taken yet.
    items: vec::IntoIter<Item>,
    totals: Totals,
    /// True if no further block can be read.
    ended: bool,
    complete: bool,
}

impl<R: Read> Reader<R> {
    /// Reads the head of a recording.
    ///
    /// # Errors
    /// The reason if it cannot be read: [`Error::NotARecording`], [`Error::Version`], [`Error::Short`], [`Error::Damaged`],
    /// [`Error::Invalid`] or [`Error::Io`].
    pub fn new(mut input: R) -> Result<Self, Error> {
        let mut bytes = Vec::new();
        append(&mut input, &mut bytes, HEAD)?;
        let length = head_length(&bytes)?;
        if append(&mut input, &mut bytes, length)? < length {
            return Err(Error::Short);
        }
        Ok(Self {
            input,
            head: head(&bytes)?,
            offset: bytes.len() as u64,
            bytes: Vec::new(),
            items: Vec::new().into_iter(),
            totals: Totals::default(),
            ended: false,
            complete: false,
        })
    }

    /// The head: source of the recording, policy in force and time of the start.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The next item; `None` at the end, which is also where a crash or a loss of power ended the recording: within a block that
    /// is the last, or before bytes that are all zero.
    ///
    /// # Errors
    /// [`Error::Damaged`] if a checksum is wrong before the end, [`Error::Invalid`] if a number is out of range, [`Error::Io`].
    /// All items before it were read, and none follow.
    #[allow(clippy::should_implement_trait, reason = "it can fail, and for most callers the first error is the end")]
    pub fn next(&mut self) -> Result<Option<Item>, Error> {
        loop {
            if let Some(item) = self.items.next() {
                return Ok(Some(item));
            }
            if self.ended {
                return Ok(None);
            }
            // Until a whole block is read.
            self.ended = true;
            if let Some(items) = self.block()? {
                self.items = items.into_iter();
                self.ended = false;
            }
        }
    }

    /// True if the end mark was found, so that nothing is missing at the end. False before the end.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Reads a block; `None` at the end.
    fn block(&mut self) -> Result<Option<Vec<Item>>, Error> {
        let start = self.offset;
        if !self.fill(FRAME)? {
            return Ok(None);
        }
        let Some(frame) = Frame::read(&self.bytes) else {
            let is_unwritten = self.bytes.iter().all(|byte| *byte == 0) && self.remainder_is_zero()?;
            return if is_unwritten { Ok(None) } else { Err(Error::Damaged { offset: start }) };
        };
        let (length, count) = (frame.length as usize, frame.requests as usize);
        if length > MAX_PAYLOAD || (count > BLOCK_REQUESTS && frame.requests != END) {
            return Err(Error::Invalid { offset: start });
        }
        let begin = self.offset;
        if !self.fill(length)? {
            return Ok(None);
        }
        if checksum(&[self.bytes.as_slice()]) != frame.sum {
            // The file system may have extended the file before it wrote the last block.
            return if self.remainder_is_zero()? { Ok(None) } else { Err(Error::Damaged { offset: start }) };
        }
        if frame.requests == END {
            let is_right = Totals::read(&self.bytes) == Some(self.totals);
            self.complete = is_right && self.remainder_is_zero()?;
            return if self.complete { Ok(None) } else { Err(Error::Invalid { offset: start }) };
        }
        let mut input = Input::new(&self.bytes);
        let Some(items) = items(&mut input, count) else {
            return Err(Error::Invalid { offset: begin + input.position() as u64 });
        };
        items.iter().for_each(|item| self.totals.add(item));
        Ok(Some(items))
    }

    /// Reads the next `length` bytes; false if there are less.
    fn fill(&mut self, length: usize) -> Result<bool, Error> {
        self.bytes.clear();
        let read = append(&mut self.input, &mut self.bytes, length)?;
        self.offset += read as u64;
        Ok(read == length)
    }

    /// Reads to the end of the input, or to a byte that is not zero; true if there is none.
    fn remainder_is_zero(&mut self) -> Result<bool, Error> {
        loop {
            let goes_on = self.fill(MAX_PAYLOAD)?;
            if self.bytes.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            if !goes_on {
                return Ok(true);
            }
        }
    }
}

/// Reads and appends `length` bytes, or less at the end of the input; returns their number.
fn append(input: &mut impl Read, bytes: &mut Vec<u8>, length: usize) -> Result<usize, Error> {
    input.by_ref().take(length as u64).read_to_end(bytes).map_err(|cause| Error::Io { cause })
}

/// Reads the items of a block of `count` requests.
fn items(input: &mut Input<'_>, count: usize) -> Option<Vec<Item>> {
    let notes = notes(input, count)?;
    let requests = requests(input, count)?;
    if !input.is_empty() {
        return None;
    }
    let mut items = Vec::with_capacity(count + notes.len());
    let mut requests = requests.into_iter().map(Item::Request);
    let mut passed = 0;
    for (at, note) in notes {
        items.extend(requests.by_ref().take(at - passed));
        passed = at;
        items.push(note);
    }
    items.extend(requests);
    Some(items)
}
