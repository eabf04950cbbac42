//! Numbers, texts and columns of numbers as bytes, and a checksum of bytes.

/// CRC-32C (Castagnoli, reflected) of each byte.
static TABLE: [u32; 256] = table();

/// Mark of a column whose numbers are of different lengths. The mark of any other column is the length of its numbers in bits.
const VARINTS: u8 = 65;

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut value = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { (value >> 1) ^ 0x82f6_3b78 } else { value >> 1 };
            bit += 1;
        }
        table[byte] = value;
        byte += 1;
    }
    table
}

/// CRC-32C of the parts one behind the other.
pub(crate) fn checksum(parts: &[&[u8]]) -> u32 {
    let mut sum = u32::MAX;
    for part in parts {
        for &byte in *part {
            sum = TABLE[usize::from(sum as u8 ^ byte)] ^ (sum >> 8);
        }
    }
    !sum
}

/// Appends a number in seven bits a byte, the lowest first (LEB128): one byte below 128, ten at most.
pub(crate) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Length of a number as [`put`] writes it, in bytes.
fn length(value: u64) -> usize {
    let bits = u64::BITS - (value | 1).leading_zeros();
    bits.div_ceil(7) as usize
}

/// A number of either sign as one without, small if the absolute value is small.
pub(crate) fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// The number of either sign that [`zigzag`] made this number of.
pub(crate) fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Appends a text with its length.
pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    put(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// Appends a column of numbers, at least one: each as [`put`] writes it, or the distances from the smallest in as many bits as
/// the largest distance needs, whichever is shorter. `column` is memory to use.
pub(crate) fn put_column(out: &mut Vec<u8>, column: &mut Vec<u64>, values: impl Iterator<Item = u64>) {
    column.clear();
    column.extend(values);
    let (mut least, mut most, mut varints) = (u64::MAX, 0_u64, 0_usize);
    for &value in column.iter() {
        least = least.min(value);
        most = most.max(value);
        varints += length(value);
    }
    let width = u64::BITS - most.saturating_sub(least).leading_zeros();
    let packed = length(least) + (column.len() * width as usize).div_ceil(8);
    if varints < packed {
        out.push(VARINTS);
        for &value in column.iter() {
            put(out, value);
        }
        return;
    }
    out.push(width as u8);
    put(out, least);
    let (mut pending, mut bits) = (0_u128, 0_u32);
    for &value in column.iter() {
        pending |= u128::from(value - least) << bits;
        bits += width;
        while bits >= 8 {
            out.push(pending as u8);
            pending >>= 8;
            bits -= 8;
        }
    }
    if bits > 0 {
        out.push(pending as u8);
    }
}

/// Bytes that are read from the front. A `None` means that they are no such value.
#[derive(Debug)]
pub(crate) struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Number of bytes read.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// True if all bytes were read.
    pub(crate) fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// The next bytes.
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..)?.get(..length)?;
        self.at += length;
        Some(taken)
    }

    /// A byte.
    pub(crate) fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    /// A number.
    pub(crate) fn number(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    /// A number below 2³².
    pub(crate) fn small(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    /// A number of items, at most `most`.
    pub(crate) fn count(&mut self, most: usize) -> Option<usize> {
        usize::try_from(self.number()?).ok().filter(|count| *count <= most)
    }

    /// A text of at most `most` bytes.
    pub(crate) fn text(&mut self, most: usize) -> Option<String> {
        let length = self.count(most)?;
        str::from_utf8(self.take(length)?).ok().map(str::to_owned)
    }

    /// A column of `count` numbers.
    pub(crate) fn column(&mut self, count: usize) -> Option<Vec<u64>> {
        let width = self.byte()?;
        let mut column = Vec::with_capacity(count);
        if width == VARINTS {
            for _ in 0..count {
                column.push(self.number()?);
            }
            return Some(column);
        }
        if width > 64 {
            return None;
        }
        let least = self.number()?;
        let mut packed = self.take((count * usize::from(width)).div_ceil(8))?.iter();
        let (width, mask) = (u32::from(width), (1_u128 << width) - 1);
        let (mut pending, mut bits) = (0_u128, 0_u32);
        for _ in 0..count {
            while bits < width {
                pending |= u128::from(*packed.next()?) << bits;
                bits += 8;
            }
            column.push(least.checked_add((pending & mask) as u64)?);
            pending >>= width;
            bits -= width;
        }
        Some(column)
    }
}
