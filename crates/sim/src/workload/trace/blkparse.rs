//! Parser of the default text output of blkparse.

use evenkeel_control::units::Kind;

use super::error::Fault;
use super::fields::{Names, by_blank, take};
use super::{Event, Record};

const LAYOUT: &str = "major,minor cpu sequence seconds pid action RWBS sector + sectors [process]";

/// The parser's state, set by the lines read so far.
#[derive(Debug, Default)]
pub(super) struct State {
    devices: Names,
    /// True in the statistics behind the events of a device.
    ended: bool,
}

impl State {
    /// Parses one line: `Some` for a request, `None` for another event, a line of statistics, or the name of an input file.
    pub(super) fn parse(&mut self, line: &[u8], event: Event) -> Result<Option<Record>, Fault> {
        if line.starts_with(b"Input file ") && line.ends_with(b" added") {
            return Ok(None);
        }
        if line.starts_with(b"CPU") || line.starts_with(b"Total (") {
            self.ended = true;
            return Ok(None);
        }
        let mut fields = by_blank(line);
        // The text of another device may follow the statistics.
        if self.ended && !by_blank(line).next().is_some_and(is_device) {
            return Ok(None);
        }
        self.ended = false;
        let names = ["device", "cpu", "sequence", "time", "pid", "action"];
        let [device, cpu, sequence, time, pid, action] = take(&mut fields, names, LAYOUT)?;
        if !is_device(device.text()) {
            return Err(device.wrong("major,minor, such as 8,0"));
        }
        cpu.number()?;
        sequence.number()?;
        pid.number()?;
        let at = time.seconds()?;
        let wanted: &[u8] = match event {
            Event::Queue => b"Q",
            Event::Issue => b"D",
        };
        if action.text() != wanted {
            let known = (1..=2).contains(&action.text().len()) && action.text().iter().all(u8::is_ascii_alphabetic);
            return if known {
                Ok(None)
            } else {
                Err(action.wrong("an action of one or two letters, such as Q, D or C"))
            };
        }
        let [rwbs] = take(&mut fields, ["RWBS"], LAYOUT)?;
        let Some(kind) = kind_of(rwbs.text()) else { return Err(rwbs.wrong("letters with R, W, D, F or N in them")) };
        let device = self.devices.number(device.text())?;
        let Some(kind) = kind else { return Ok(None) };
        let flush = Record { at, kind: Kind::Flush, offset: 0, bytes: 0, device };
        if kind == Kind::Flush {
            return Ok(Some(flush));
        }
        // Without data there are no sectors to show, or 0; with the letter F in front that is a flush.
        let without_data = || Ok((rwbs.text().first() == Some(&b'F')).then_some(flush));
        let [sector] = take(&mut fields, ["sector"], LAYOUT)?;
        if sector.text().starts_with(b"[") {
            return without_data();
        }
        let [plus, sectors] = take(&mut fields, ["plus sign", "sectors"], LAYOUT)?;
        if plus.text().starts_with(b"(") {
            // A command passed through to the device, shown byte by byte.
            return Ok(None);
        }
        if plus.text() != b"+" {
            return Err(plus.wrong("+ between sector and sectors"));
        }
        if sectors.text() == b"0" {
            return without_data();
        }
        let bytes = if kind == Kind::Meta { sectors.number().map(|_| 0)? } else { sectors.sectors()? };
        Ok(Some(Record { at, kind, offset: sector.sector()?, bytes, device }))
    }
}

/// True if the field is `major,minor`.
fn is_device(field: &[u8]) -> bool {
    let mut halves = field.splitn(2, |&byte| byte == b',');
    let is_number =
        |half: Option<&[u8]>| half.is_some_and(|half| !half.is_empty() && half.iter().all(u8::is_ascii_digit));
    is_number(halves.next()) && is_number(halves.next())
}

/// The kind of request that the letters of the RWBS field denote: `None` for unknown letters, `Some(None)` for an event that
/// concerns neither data nor metadata.
fn kind_of(rwbs: &[u8]) -> Option<Option<Kind>> {
    let has = |letter: u8| rwbs.contains(&letter);
    if !rwbs.iter().all(|letter| b"RWDENFSAMBVTU".contains(letter)) {
        return None;
    }
    match () {
        // Erase and discard come with W or R in some kernels.
        () if has(b'D') || has(b'E') => Some(Some(Kind::Meta)),
        () if has(b'W') => Some(Some(Kind::Write)),
        () if has(b'R') => Some(Some(Kind::Read)),
        () if has(b'F') => Some(Some(Kind::Flush)),
        () if has(b'N') => Some(None),
        () => None,
    }
}
