//! Parser of SPC traces, as in the UMass repository: CSV without a header.

use evenkeel_control::units::Kind;

use super::Record;
use super::error::Fault;
use super::fields::{by_comma, take};

/// Parses one line, which is always a request. Optional fields after the timestamp are ignored.
pub(super) fn parse(line: &[u8]) -> Result<Option<Record>, Fault> {
    let [asu, lba, bytes, kind, at] =
        take(by_comma(line), ["ASU", "LBA", "size", "opcode", "timestamp"], "ASU,LBA,size,r or w,timestamp")?;
    let kind = match kind.text() {
        b"r" | b"R" => Kind::Read,
        b"w" | b"W" => Kind::Write,
        _ => return Err(kind.wrong("r or w")),
    };
    Ok(Some(Record { at: at.seconds()?, kind, offset: lba.sector()?, bytes: bytes.bytes()?, device: asu.device()? }))
}
