//! Parser of MQSim's text form of a trace: five numbers per line.

use evenkeel_control::units::Kind;

use super::Record;
use super::error::Fault;
use super::fields::{by_blank, take};

const LAYOUT: &str = "arrival device LBA sectors 1 (read) or 0 (write), five numbers between blanks";

/// Parses one line, which is always a request; the result is never `None`.
pub(super) fn parse(line: &[u8]) -> Result<Option<Record>, Fault> {
    let mut fields = by_blank(line);
    let [at, device, lba, sectors, kind] = take(&mut fields, ["arrival", "device", "LBA", "sectors", "type"], LAYOUT)?;
    let more = fields.count();
    if more > 0 {
        return Err(Fault::Fields { found: 5 + more, layout: LAYOUT });
    }
    let kind = match kind.text() {
        b"1" => Kind::Read,
        b"0" => Kind::Write,
        _ => return Err(kind.wrong("1 for a read or 0 for a write")),
    };
    Ok(Some(Record {
        at: at.time(1)?,
        kind,
        offset: lba.sector()?,
        bytes: sectors.sectors()?,
        device: device.device()?,
    }))
}
