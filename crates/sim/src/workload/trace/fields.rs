//! Splits lines of a trace into fields and parses numbers. No input causes a panic.

use std::collections::HashMap;

use evenkeel_control::Instant;

use super::MAX_DEVICES;
use super::error::Fault;

/// Bytes of a sector, equal in all formats that count in sectors.
const SECTOR_BYTES: u64 = 512;
/// The most bytes of a field that an error message shows.
const SHOWN_BYTES: usize = 40;

/// A field of a line, with the field's name.
#[derive(Clone, Copy)]
pub(super) struct Field<'a> {
    name: &'static str,
    text: &'a [u8],
}

/// Names of a trace's devices, each with a number in the order of first appearance, from 0.
#[derive(Debug, Default)]
pub(super) struct Names(HashMap<Vec<u8>, u32>);

impl Names {
    /// The number of the device with this name; a new name gets the next number.
    pub(super) fn number(&mut self, name: &[u8]) -> Result<u32, Fault> {
        if let Some(&number) = self.0.get(name) {
            return Ok(number);
        }
        if self.0.len() >= MAX_DEVICES {
            return Err(Fault::TooManyDevices);
        }
        let number = self.0.len() as u32;
        self.0.insert(name.to_vec(), number);
        Ok(number)
    }

    /// The number of the device with this name, if it has one.
    pub(super) fn known(&self, name: &[u8]) -> Option<u32> {
        self.0.get(name).copied()
    }
}

/// Takes the first `N` fields of a line, which may have more; `names` and `layout` are for the error if it has fewer.
pub(super) fn take<'a, const N: usize>(
    mut fields: impl Iterator<Item = &'a [u8]>,
    names: [&'static str; N],
    layout: &'static str,
) -> Result<[Field<'a>; N], Fault> {
    let mut taken = names.map(|name| Field::new(name, b""));
    for (found, field) in taken.iter_mut().enumerate() {
        field.text = fields.next().ok_or(Fault::Fields { found, layout })?;
    }
    Ok(taken)
}

/// The fields between commas, without surrounding blanks.
pub(super) fn by_comma(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|&byte| byte == b',').map(<[u8]>::trim_ascii)
}

/// The fields between blanks.
pub(super) fn by_blank(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty())
}

impl<'a> Field<'a> {
    pub(super) fn new(name: &'static str, text: &'a [u8]) -> Self {
        Self { name, text }
    }

    pub(super) fn text(&self) -> &'a [u8] {
        self.text
    }

    /// The error about a field whose value is not `expected`, the description of a valid value.
    pub(super) fn wrong(&self, expected: &'static str) -> Fault {
        let shown = &self.text[..self.text.len().min(SHOWN_BYTES)];
        Fault::Field { name: self.name, found: String::from_utf8_lossy(shown).into_owned(), expected }
    }

    /// The field as a whole number below 2⁶⁴.
    pub(super) fn number(&self) -> Result<u64, Fault> {
        decimal(self.text).ok_or_else(|| self.wrong("a whole number below 2^64"))
    }

    /// The field as the number of a device.
    pub(super) fn device(&self) -> Result<u32, Fault> {
        decimal(self.text).and_then(|n| u32::try_from(n).ok()).ok_or_else(|| self.wrong("a device number below 2^32"))
    }

    /// The field as a payload that the trace states in bytes.
    pub(super) fn bytes(&self) -> Result<u32, Fault> {
        let bytes = decimal(self.text).and_then(|n| u32::try_from(n).ok()).filter(|&bytes| bytes > 0);
        bytes.ok_or_else(|| self.wrong("a size of 1 to 4294967295 bytes"))
    }

    /// The field as a payload that the trace states in sectors, converted to bytes.
    pub(super) fn sectors(&self) -> Result<u32, Fault> {
        let bytes = decimal(self.text).and_then(|n| u32::try_from(n.checked_mul(SECTOR_BYTES)?).ok());
        bytes.filter(|&bytes| bytes > 0).ok_or_else(|| self.wrong("a size of 1 to 8388607 sectors of 512 bytes"))
    }

    /// The field as a sector number, converted to an offset in bytes.
    pub(super) fn sector(&self) -> Result<u64, Fault> {
        let offset = decimal(self.text).and_then(|n| n.checked_mul(SECTOR_BYTES));
        offset.ok_or_else(|| self.wrong("a sector number below 2^55"))
    }

    /// The field as a time that the trace states in units of `unit_ns` nanoseconds.
    pub(super) fn time(&self, unit_ns: u64) -> Result<Instant, Fault> {
        let nanos = decimal(self.text).and_then(|n| n.checked_mul(unit_ns));
        nanos
            .map(Instant::from_nanos)
            .ok_or_else(|| self.wrong("a time, as a whole number, less than 584 years from zero"))
    }

    /// The field as a time in seconds with a fraction. Digits below a nanosecond are cut off.
    pub(super) fn seconds(&self) -> Result<Instant, Fault> {
        let parse = || {
            let (whole, fraction) = match self.text.iter().position(|&byte| byte == b'.') {
                Some(point) => (&self.text[..point], &self.text[point + 1..]),
                None => (self.text, &b""[..]),
            };
            if !fraction.iter().all(u8::is_ascii_digit) {
                return None;
            }
            let digit = |place: usize| u64::from(fraction.get(place).map_or(0, |digit| digit - b'0'));
            let nanos = (0..9).fold(0, |sum, place| sum * 10 + digit(place));
            decimal(whole)?.checked_mul(1_000_000_000)?.checked_add(nanos)
        };
        parse().map(Instant::from_nanos).ok_or_else(|| self.wrong("a time in seconds, such as 12.000345"))
    }
}

/// The decimal number below 2⁶⁴ that `text` spells; `None` if it has any other character than digits, or is larger.
fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |sum, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}
