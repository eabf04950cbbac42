//! Parses lines of `/proc/diskstats`.

use std::io::BufRead as _;

use super::DeviceNumber;
use super::digits::Numbers;
use crate::error::Fault;

/// Totals of a device's reads, or of its writes, since the device appeared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of requests completed.
    pub completed: u64,
    /// Sectors of 512 bytes read or written.
    pub sectors: u64,
    /// Sum of the latencies of the completed requests, in ms modulo 2^32.
    pub time_ms: u64,
}

/// The totals of reads, or of writes, from the next four numbers; `None` unless one blank follows each number.
#[inline(always)]
fn usual_totals(numbers: &mut Numbers<'_>) -> Option<Totals> {
    let (completed, merged) = (numbers.next(), numbers.next());
    let (sectors, time_ms) = (numbers.next(), numbers.next());
    let blanks = completed.1 == b' ' && merged.1 == b' ' && sectors.1 == b' ' && time_ms.1 == b' ';
    blanks.then_some(Totals { completed: completed.0, sectors: sectors.0, time_ms: time_ms.0 })
}

/// One line of `/proc/diskstats`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// Number of the device.
    pub number: DeviceNumber,
    /// Name of the device: that of its folder in `/sys/block` or, for a partition, of its folder below the disk's.
    pub name: &'a str,
    /// Totals of reads since the device appeared.
    pub reads: Totals,
    /// Totals of writes since the device appeared.
    pub writes: Totals,
    /// Number of requests in flight at the moment of reading.
    pub in_flight: u64,
}

/// Calls `each` with every parsed line of `text`, the content of `/proc/diskstats`.
///
/// # Errors
/// The first line that is not in the file's format; `each` has been called for the lines before it.
pub fn parse<'a>(text: &'a [u8], mut each: impl FnMut(Line<'a>)) -> Result<(), Fault> {
    walk(text, |fields| fields.line().map(&mut each))
}

/// Calls `take` with the fields of every line that is not blank. The error is the fault of the first line for which `take`
/// returns `None`.
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

/// A position in the text, from which fields are read. A host may have 100,000 devices, and the file is read ten times a
/// second; to be quick, a line's fault is determined only after parsing the line has failed.
pub(super) struct Fields<'a> {
    pub(super) text: &'a [u8],
    pub(super) at: usize,
}

/// The figures in the line of a device, after its name.
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

    /// The figures after the name, and the offset in the text at which the totals of reads end.
    #[inline(always)]
    pub(super) fn figures(&mut self) -> Option<(Figures, usize)> {
        let Some((reads, length)) = self.usual_reads() else { return self.any_figures() };
        self.at += length;
        let end = self.at;
        let (writes, in_flight) = self.writes()?;
        Some((Figures { reads, writes, in_flight }, end))
    }

    /// The totals of reads and their length in the text, in bytes; `None` unless they have the usual form (single blanks, at
    /// most 16 digits).
    #[inline(always)]
    pub(super) fn usual_reads(&self) -> Option<(Totals, usize)> {
        let (b' ', rest) = self.text.get(self.at..)?.split_first()? else { return None };
        let mut numbers = Numbers::of(rest)?;
        let reads = usual_totals(&mut numbers)?;
        // The blank before them in place of the one after them.
        Some((reads, numbers.begin))
    }

    /// The figures after the totals of reads: the totals of writes, and the requests in flight.
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

    /// As `figures`, but parses any form that the file allows, field by field.
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

    /// The text up to the next blank or line end; `None` at the end of the line.
    fn field(&mut self) -> Option<&'a [u8]> {
        self.skip_blanks();
        let begin = self.at;
        while self.text.get(self.at).is_some_and(|byte| !byte.is_ascii_whitespace()) {
            self.at += 1;
        }
        (self.at > begin).then(|| &self.text[begin..self.at])
    }
}

/// The number of requests in flight from the number in the file; 0 if that exceeds 2^31 - 1, because kernels before 5.5 could
/// print -1 as a large number.
#[inline]
pub(super) fn in_flight(n: u64) -> u32 {
    i32::try_from(n).map_or(0, i32::cast_unsigned)
}

/// Parses a decimal number of at least one digit; `None` if it does not fit into 64 bits.
fn decimal(field: &[u8]) -> Option<u64> {
    std::str::from_utf8(field).ok().filter(|field| !field.starts_with('+'))?.parse().ok()
}

/// A description of the fault in the first line of `text`.
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
