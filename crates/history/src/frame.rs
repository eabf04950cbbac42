//! Heads of files, and frames with checksums around the blocks behind them.

use evenkeel_wire::{array, checksum};

use crate::resolution::Stream;

/// Version of the format that this version of the program reads and writes.
pub(crate) const VERSION: u16 = 1;
/// Length of a head, in bytes.
pub(crate) const HEAD: usize = 24;
/// Bytes of a frame before its payload: length and checksum.
pub(crate) const FRAME: usize = 8;

const MAGIC: [u8; 8] = *b"EVENKHST";

/// The head of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) stream: Stream,
    /// Start of the first block, Unix time in seconds.
    pub(crate) start: u64,
}

/// Reason why a file cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unusable {
    /// The head was not written to its end.
    Short,
    /// The file has this version of the format.
    Version(u16),
    /// The file is not from a history, or is damaged.
    Damaged,
}

/// Reason why the rest of a file cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tail {
    /// The last block was not written to its end.
    Cut,
    /// The next block does not agree with its checksum, or is no block.
    Damaged,
}

impl Head {
    /// The head as bytes: magic, version, stream, start, checksum.
    pub(crate) fn bytes(self) -> Vec<u8> {
        let (code, start) = (self.stream.code.to_le_bytes(), self.start.to_le_bytes());
        let mut bytes = [&MAGIC[..], &VERSION.to_le_bytes(), &code, &start].concat();
        let sum = checksum(&[bytes.as_slice()]);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// The head at the start of `bytes`.
    ///
    /// # Errors
    /// The reason if there is none that this version reads.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Unusable> {
        let version = array(bytes, 8).map(u16::from_le_bytes).ok_or(Unusable::Short)?;
        if bytes[..8] != MAGIC {
            return Err(Unusable::Damaged);
        }
        if version != VERSION {
            return Err(Unusable::Version(version));
        }
        let code = array(bytes, 10).map(u16::from_le_bytes).ok_or(Unusable::Short)?;
        let start = array(bytes, 12).map(u64::from_le_bytes).ok_or(Unusable::Short)?;
        let sum = array(bytes, 20).map(u32::from_le_bytes).ok_or(Unusable::Short)?;
        let stream = Stream::ALL.into_iter().find(|stream| stream.code == code).ok_or(Unusable::Damaged)?;
        let right = checksum(&[&bytes[..20]]) == sum && start.is_multiple_of(stream.step);
        if right { Ok(Self { stream, start }) } else { Err(Unusable::Damaged) }
    }
}

/// Appends `payload`, which is not empty, in a frame.
pub(crate) fn frame(out: &mut Vec<u8>, payload: &[u8]) {
    let length = (payload.len() as u32).to_le_bytes();
    out.extend_from_slice(&length);
    out.extend_from_slice(&checksum(&[length.as_slice(), payload]).to_le_bytes());
    out.extend_from_slice(payload);
}

/// The payload of the frame at the start of `bytes`; `None` if they are empty.
///
/// # Errors
/// The reason if there is no whole frame.
pub(crate) fn payload(bytes: &[u8]) -> Result<Option<&[u8]>, Tail> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let length = array(bytes, 0).map(u32::from_le_bytes).ok_or(Tail::Cut)?;
    let sum = array(bytes, 4).map(u32::from_le_bytes).ok_or(Tail::Cut)?;
    let payload = bytes[FRAME..].get(..length as usize).ok_or(Tail::Cut)?;
    let right = length > 0 && checksum(&[&bytes[..4], payload]) == sum;
    if right { Ok(Some(payload)) } else { Err(Tail::Damaged) }
}
