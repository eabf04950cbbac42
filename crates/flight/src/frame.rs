//! Head of a recording, frames with checksums around its blocks, and the totals of the end mark.

use evenkeel_wire::{Input, array, checksum, put, put_text};

use crate::bounds::{MAX_HEAD, VERSION};
use crate::error::Error;
use crate::request::{Head, Item};

/// Length of the part of a head before its payload: magic, version, length, checksum.
pub(crate) const HEAD: usize = 18;
/// Length of a frame before its payload.
pub(crate) const FRAME: usize = 16;
/// In the place of a number of requests: the frame is the end mark.
pub(crate) const END: u32 = u32::MAX;

const MAGIC: [u8; 8] = *b"EVENKFLT";

/// The head as bytes; `None` if it is too long.
pub(crate) fn head_bytes(head: &Head) -> Option<Vec<u8>> {
    let mut payload = Vec::new();
    put(&mut payload, head.started_unix_ns);
    put_text(&mut payload, &head.source);
    put_text(&mut payload, &head.policy);
    payload.push(u8::from(head.anonymised));
    if payload.len() > MAX_HEAD {
        return None;
    }
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    let sum = checksum(&[bytes.as_slice(), payload.as_slice()]);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes.extend_from_slice(&payload);
    Some(bytes)
}

/// Length of the payload of a head that begins with `first`, the first [`HEAD`] bytes of a file, or all if it has less.
///
/// # Errors
/// The reason if there is no head that this version reads.
pub(crate) fn head_length(first: &[u8]) -> Result<usize, Error> {
    let begin = first.len().min(MAGIC.len());
    if first[..begin] != MAGIC[..begin] {
        return Err(Error::NotARecording);
    }
    let version = array(first, 8).map(u16::from_le_bytes).ok_or(Error::Short)?;
    if version != VERSION {
        return Err(Error::Version { found: version });
    }
    let length = array(first, 10).map(u32::from_le_bytes).ok_or(Error::Short)? as usize;
    if first.len() < HEAD {
        return Err(Error::Short);
    }
    if length > MAX_HEAD { Err(Error::Damaged { offset: 0 }) } else { Ok(length) }
}

/// The head that these bytes are. Their length is right.
///
/// # Errors
/// The reason if they are none.
pub(crate) fn head(bytes: &[u8]) -> Result<Head, Error> {
    let sum = array(bytes, 14).map(u32::from_le_bytes).ok_or(Error::Short)?;
    let payload = &bytes[HEAD..];
    if checksum(&[&bytes[..14], payload]) != sum {
        return Err(Error::Damaged { offset: 0 });
    }
    let mut input = Input::new(payload);
    let read = head_of(&mut input).filter(|_| input.is_empty());
    read.ok_or(Error::Invalid { offset: (HEAD + input.position()) as u64 })
}

/// Reads the payload of a head.
fn head_of(input: &mut Input<'_>) -> Option<Head> {
    let started_unix_ns = input.number()?;
    let (source, policy) = (input.text(MAX_HEAD)?, input.text(MAX_HEAD)?);
    let anonymised = match input.byte()? {
        0 => false,
        1 => true,
        _ => return None,
    };
    Some(Head { started_unix_ns, source, policy, anonymised })
}

/// The bytes before the payload of a block: its length and requests, its checksum, and a checksum of these
/// three, so that a wrong length is not taken for a file that ends early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) length: u32,
    /// Number of requests, or [`END`].
    pub(crate) requests: u32,
    /// Checksum of the payload.
    pub(crate) sum: u32,
}

impl Frame {
    /// The frame around a payload.
    pub(crate) fn around(payload: &[u8], requests: u32) -> Self {
        Self { length: payload.len() as u32, requests, sum: checksum(&[payload]) }
    }

    pub(crate) fn bytes(self) -> [u8; FRAME] {
        let mut bytes = [0; FRAME];
        bytes[..4].copy_from_slice(&self.length.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.requests.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.sum.to_le_bytes());
        let sum = checksum(&[&bytes[..12]]);
        bytes[12..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// The frame at the start of `bytes`; `None` if there is none, or its checksum is wrong.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let number = |at: usize| array(bytes, at).map(u32::from_le_bytes);
        let frame = Self { length: number(0)?, requests: number(4)?, sum: number(8)? };
        (number(12)? == checksum(&[&bytes[..12]])).then_some(frame)
    }
}

/// Numbers of items, which the end mark repeats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    requests: u64,
    names: u64,
    losses: u64,
}

impl Totals {
    pub(crate) fn add(&mut self, item: &Item) {
        match item {
            Item::Request(_) => self.requests += 1,
            Item::Name(_) => self.names += 1,
            Item::Lost { .. } => self.losses += 1,
        }
    }

    /// Appends the payload of the end mark.
    pub(crate) fn put(self, out: &mut Vec<u8>) {
        [self.requests, self.names, self.losses].into_iter().for_each(|total| put(out, total));
    }

    /// The totals of an end mark; `None` if its payload is none.
    pub(crate) fn read(payload: &[u8]) -> Option<Self> {
        let mut input = Input::new(payload);
        let totals = Self { requests: input.number()?, names: input.number()?, losses: input.number()? };
        input.is_empty().then_some(totals)
    }
}
