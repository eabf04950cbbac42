//! Parser of the default text output of blkparse.

use evenkeel_control::Instant;
use evenkeel_control::units::Kind;

use super::error::Fault;
use super::fields::{Names, by_blank, take};
use super::pairs::{Change, Extent, Pairs, Step};
use super::{Completion, Event, Record};

const LAYOUT: &str = "major,minor cpu sequence seconds pid action RWBS sector + sectors [process]";
const SECTOR_BYTES: u64 = 512;

/// The parser's state, set by the lines read so far.
#[derive(Debug, Default)]
pub(super) struct State {
    devices: Names,
    /// True in the statistics behind the events of a device.
    ended: bool,
    pairs: Pairs,
    /// Completion of the newest record.
    completion: Completion,
}

impl State {
    /// Parses one line. `Some` for a request that is completed, or waited for its completion for long; it may have begun in an
    /// earlier line, but requests are returned in the order of their lines.
    pub(super) fn parse(&mut self, line: &[u8], event: Event) -> Result<Option<Record>, Fault> {
        self.take(line, event)?;
        Ok(self.release(false))
    }

    /// The next request of those that are left at the end of the trace.
    pub(super) fn rest(&mut self) -> Option<Record> {
        self.release(true)
    }

    /// The completion of the newest request that was returned.
    pub(super) fn completion(&self) -> Completion {
        self.completion
    }

    fn release(&mut self, all: bool) -> Option<Record> {
        let (record, completion) = self.pairs.release(all)?;
        self.completion = completion;
        Some(record)
    }

    /// Takes the event of a line, if it is one; others are lines of statistics, and the names of input files.
    fn take(&mut self, line: &[u8], event: Event) -> Result<(), Fault> {
        if line.starts_with(b"Input file ") && line.ends_with(b" added") {
            return Ok(());
        }
        if line.starts_with(b"CPU") || line.starts_with(b"Total (") {
            self.ended = true;
            return Ok(());
        }
        let mut fields = by_blank(line);
        // The text of another device may follow the statistics.
        if self.ended && !by_blank(line).next().is_some_and(is_device) {
            return Ok(());
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
        let change = match (action.text(), event) {
            (b"Q", Event::Queue) | (b"D", Event::Issue) => None,
            (b"D", Event::Queue) => Some(Change::Issued),
            (b"R", _) => Some(Change::Requeued),
            (b"C", _) => Some(Change::Completed { error: error(line) }),
            (other, _) if (1..=2).contains(&other.len()) && other.iter().all(u8::is_ascii_alphabetic) => return Ok(()),
            _ => return Err(action.wrong("an action of one or two letters, such as Q, D or C")),
        };
        if let Some(change) = change {
            self.step(at, change, device.text(), fields);
            return Ok(());
        }
        let [rwbs] = take(&mut fields, ["RWBS"], LAYOUT)?;
        let Some(kind) = kind_of(rwbs.text()) else { return Err(rwbs.wrong("letters with R, W, D, F or N in them")) };
        let device = self.devices.number(device.text())?;
        let Some(kind) = kind else { return Ok(()) };
        let Some((start, length)) = place(fields, kind)? else { return Ok(()) };
        let of = Extent { device, kind: kind as u8, start, end: start.saturating_add(length) };
        let record = if length > 0 {
            let bytes = if kind == Kind::Meta { 0 } else { u32::try_from(length).unwrap_or(u32::MAX) };
            Record { at, kind, offset: start, bytes, device }
        } else if rwbs.text().starts_with(b"F") || kind == Kind::Flush {
            // Without data, with the letter F in front, it is a flush.
            Record { at, kind: Kind::Flush, offset: 0, bytes: 0, device }
        } else {
            return Ok(());
        };
        self.pairs.begin(record, of, (event == Event::Issue).then_some(at));
        Ok(())
    }

    /// Takes an event of requests that have begun. One that cannot be read is passed over.
    fn step<'a>(&mut self, at: Instant, change: Change, device: &[u8], mut fields: impl Iterator<Item = &'a [u8]>) {
        let Some(device) = self.devices.known(device) else { return };
        let Some(kind) = fields.next().and_then(kind_of).flatten() else { return };
        if let Ok(Some((start, length))) = place(fields, kind) {
            let of = Extent { device, kind: kind as u8, start, end: start.saturating_add(length) };
            self.pairs.take(Step { at, of, change });
        }
    }
}

/// Offset and length in bytes, from the fields behind the letters; without data there are no sectors to show, or 0. `None` for a
/// command passed through to the device, shown byte by byte.
fn place<'a>(mut fields: impl Iterator<Item = &'a [u8]>, kind: Kind) -> Result<Option<(u64, u64)>, Fault> {
    if kind == Kind::Flush {
        return Ok(Some((0, 0)));
    }
    let [sector] = take(&mut fields, ["sector"], LAYOUT)?;
    if sector.text().starts_with(b"[") {
        return Ok(Some((0, 0)));
    }
    let [plus] = take(&mut fields, ["plus sign"], LAYOUT)?;
    match plus.text() {
        [b'(', ..] => return Ok(None),
        [b'[', ..] => return Ok(Some((sector.sector()?, 0))),
        b"+" => {}
        _ => return Err(plus.wrong("+ between sector and sectors")),
    }
    let [sectors] = take(&mut fields, ["sectors"], LAYOUT)?;
    let length = match (kind, sectors.text()) {
        (_, b"0") => 0,
        (Kind::Meta, _) => sectors.number()?.saturating_mul(SECTOR_BYTES),
        _ => u64::from(sectors.sectors()?),
    };
    Ok(Some((sector.sector()?, length)))
}

/// The error number in the line of a completion, 0 for none. The kernel's numbers are negative, in 16 bits.
fn error(line: &[u8]) -> u16 {
    let shown = by_blank(line).last().and_then(|field| field.strip_prefix(b"[")?.strip_suffix(b"]"));
    let number = shown.and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<i64>().ok());
    number.map_or(0, |number| (number as i16).unsigned_abs())
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
