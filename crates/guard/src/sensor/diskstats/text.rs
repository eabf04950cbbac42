//! Lines of `/proc/diskstats`.

use std::io::BufRead as _;

use super::DeviceNumber;
use super::digits::Numbers;
use crate::error::Fault;

/// Totals of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests completed.
    pub completed: u64,
    /// Sectors of 512 bytes moved.
    pub sectors: u64,
    /// Time that requests took, summed over them, in ms modulo 2^32.
    pub time_ms: u64,
}

/// The totals of one direction from the next numbers; `None` unless each is followed by one blank.
#[inline(always)]
fn usual_totals(numbers: &mut Numbers<'_>) -> Option<Totals> {
    let (completed, merged) = (numbers.next(), numbers.next());
    let (sectors, time_ms) = (numbers.next(), numbers.next());
    let blanks = completed.1 == b' ' && merged.1 == b' ' && sectors.1 == b' ' && time_ms.1 == b' ';
    blanks.then_some(Totals { completed: completed.0, sectors: sectors.0, time_ms: time_ms.0 })
}

/// One line of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// The device.
    pub number: DeviceNumber,
    /// Its name under `/sys/block` or below its disk there.
    pub name: &'a str,
    /// Reads since the device appeared.
    pub reads: Totals,
    /// Writes since the device appeared.
    pub writes: Totals,
    /// Requests in flight.
    pub in_flight: u64,
}

/// Calls `each` with every line of the file.
///
/// # Errors
/// The first line that is not in the file's format; `each` has been called for the lines before it.
pub fn parse<'a>(text: &'a [u8], mut each: impl FnMut(Line<'a>)) -> Result<(), Fault> {
    walk(text, |fields| fields.line().map(&mut each))
}

/// Calls `take` with every line that is not blank. The error is the fault of the first line for which `take` returns `None`.
#[inline(always)]
pub(super) fn walk<'a>(text: &'a [u8], mut take: impl FnMut(&mut Fields<'a>) -> Option<()>) -> Result<(), Fault> {
    let mut rest = text;
    let mut index = 0;
    while !rest.is_empty() {
        index += 1;
        let mut fields = Fields { text: rest, at: 0 };
        fields.skip_blanks();
        if !matches!(rest.get(fields.at), None | Some(b'\n')) && take(&mut fields).is_none() {
            return Err(Fault::new(index, explain(rest)));
        }
        rest = &rest[fields.at..];
        // What else a newer kernel tells. Reading from memory does not fail.
        let _ = rest.skip_until(b'\n');
    }
    Ok(())
}

/// A position in the text, from which fields are read. A host may have 100,000 devices and is asked ten times a second, so
/// that the fault of a line is found out only after reading it has failed.
pub(super) struct Fields<'a> {
    pub(super) text: &'a [u8],
    pub(super) at: usize,
}

/// The figures in a device's line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Figures {
    pub(super) reads: Totals,
    pub(super) writes: Totals,
    pub(super) in_flight: u32,
}

const fn is_blank(byte: u8) -> bool {
    byte != b'\n' && byte.is_ascii_whitespace()
}

impl<'a> Fields<'a> {
    fn skip_blanks(&mut self) {
        while self.text.get(self.at).is_some_and(|&byte| is_blank(byte)) {
            self.at += 1;
        }
    }

    fn line(&mut self) -> Option<Line<'a>> {
        let (number, name) = self.identity()?;
        let (Figures { reads, writes, in_flight }, _) = self.figures()?;
        Some(Line { number, name, reads, writes, in_flight: in_flight.into() })
    }

    pub(super) fn identity(&mut self) -> Option<(DeviceNumber, &'a str)> {
        let number = DeviceNumber { major: self.device_part()?, minor: self.device_part()? };
        Some((number, std::str::from_utf8(self.field()?).ok()?))
    }

    /// The figures after the name, and where the totals of reads end.
    #[inline(always)]
    pub(super) fn figures(&mut self) -> Option<(Figures, usize)> {
        let Some((reads, length)) = self.usual_reads() else { return self.any_figures() };
        self.at += length;
        let end = self.at;
        let (writes, in_flight) = self.writes()?;
        Some((Figures { reads, writes, in_flight }, end))
    }

    /// The totals of reads and their length in the text, if they are in the usual form (single blanks, at most 16 digits).
    #[inline(always)]
    pub(super) fn usual_reads(&self) -> Option<(Totals, usize)> {
        let (b' ', rest) = self.text.get(self.at..)?.split_first()? else { return None };
        let mut numbers = Numbers::of(rest)?;
        let reads = usual_totals(&mut numbers)?;
        // The blank before them in place of the one after them.
        Some((reads, numbers.begin))
    }

    /// The figures after the totals of reads: those of writes, and the requests in flight.
    #[inline(always)]
    pub(super) fn writes(&mut self) -> Option<(Totals, u32)> {
        let Some((writes, in_flight, length)) = self.usual_writes() else {
            return Some((self.totals()?, in_flight(self.number()?)));
        };
        self.at += length;
        Some((writes, in_flight))
    }

    #[inline(always)]
    pub(super) fn usual_writes(&self) -> Option<(Totals, u32, usize)> {
        let (b' ', rest) = self.text.get(self.at..)?.split_first()? else { return None };
        let mut numbers = Numbers::of(rest)?;
        let writes = usual_totals(&mut numbers)?;
        let (inside, b' ' | b'\n') = numbers.next() else { return None };
        Some((writes, in_flight(inside), numbers.begin))
    }

    /// The figures in any form that the file allows, read field by field.
    #[cold]
    fn any_figures(&mut self) -> Option<(Figures, usize)> {
        let reads = self.totals()?;
        let end = self.at;
        let (writes, in_flight) = self.writes()?;
        Some((Figures { reads, writes, in_flight }, end))
    }

    pub(super) fn totals(&mut self) -> Option<Totals> {
        let completed = self.number()?;
        let _merged = self.number()?;
        Some(Totals { completed, sectors: self.number()?, time_ms: self.number()? })
    }

    fn device_part(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    pub(super) fn number(&mut self) -> Option<u64> {
        decimal(self.field()?)
    }

    /// The text before the next blank; `None` at the end of the line.
    fn field(&mut self) -> Option<&'a [u8]> {
        self.skip_blanks();
        let begin = self.at;
        while self.text.get(self.at).is_some_and(|byte| !byte.is_ascii_whitespace()) {
            self.at += 1;
        }
        (self.at > begin).then(|| &self.text[begin..self.at])
    }
}

/// The number of requests in flight; 0 for a large number, as which kernels before 5.5 could show -1.
#[inline]
pub(super) fn in_flight(n: u64) -> u32 {
    i32::try_from(n).map_or(0, i32::cast_unsigned)
}

/// A number of at least one digit that fits into 64 bits.
fn decimal(field: &[u8]) -> Option<u64> {
    std::str::from_utf8(field).ok().filter(|field| !field.starts_with('+'))?.parse().ok()
}

/// The fault of the first line of `text`.
#[cold]
fn explain(text: &[u8]) -> String {
    const TOTALS: [&str; 4] = ["completed", "requests merged", "sectors", "time"];
    let mut fields = Fields { text, at: 0 };
    for what in ["the major number", "the minor number"] {
        match fields.field().map(|field| (decimal(field), field)) {
            None => return format!("ends before {what}"),
            Some((None, field)) => return format!("{what} is {:?}, not a number", String::from_utf8_lossy(field)),
            Some((Some(n), _)) if u32::try_from(n).is_err() => return format!("{what} is {n}, which is too large"),
            Some(_) => {}
        }
    }
    let Some(name) = fields.field() else { return "ends before the name".into() };
    let Ok(name) = std::str::from_utf8(name) else { return "the name is not UTF-8".into() };
    for kind in ["reads", "writes"] {
        for what in TOTALS {
            match fields.field().map(|field| (decimal(field), field)) {
                None => return format!("ends before {what} ({kind}) of {name}"),
                Some((None, field)) => {
                    let field = String::from_utf8_lossy(field);
                    return format!("{what} ({kind}) of {name} is {field:?}, not a number");
                }
                Some(_) => {}
            }
        }
    }
    format!("the number of requests in flight of {name} is missing or no number")
}
