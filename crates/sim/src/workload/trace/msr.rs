//! Parser of MSR Cambridge traces (SNIA): CSV without a header.

use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};

use super::Record;
use super::error::Fault;
use super::fields::{Field, by_comma, take};

/// Nanoseconds in a tick, the unit of the trace's times.
const TICK_NS: u64 = 100;
/// Place of the latency in a line, from 0.
const LATENCY: usize = 6;

/// The latency in the line of a request; `None` if there is none, or no number of ticks.
pub(super) fn latency(line: &[u8]) -> Option<Duration> {
    let field = Field::new("latency", by_comma(line).nth(LATENCY)?);
    Some(field.time(TICK_NS).ok()?.since(Instant::ZERO))
}

/// Parses one line: `Some` for a request, `None` for a header, which some copies of the traces have.
pub(super) fn parse(line: &[u8]) -> Result<Option<Record>, Fault> {
    if line.get(..9).is_some_and(|start| start.eq_ignore_ascii_case(b"timestamp")) {
        return Ok(None);
    }
    let [at, _host, disk, kind, offset, bytes] = take(
        by_comma(line),
        ["timestamp", "host", "disk", "type", "offset", "size"],
        "timestamp,host,disk,Read or Write,offset,size,response time",
    )?;
    let kind = match kind.text() {
        b"Read" | b"read" => Kind::Read,
        b"Write" | b"write" => Kind::Write,
        _ => return Err(kind.wrong("Read or Write")),
    };
    Ok(Some(Record {
        at: at.time(TICK_NS)?,
        kind,
        offset: offset.number()?,
        bytes: bytes.bytes()?,
        device: disk.device()?,
    }))
}
