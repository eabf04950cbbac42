//! Numbers and texts of files as bytes, and a checksum of bytes.

#[cfg(test)]
mod tests;

/// CRC-32C (Castagnoli, reflected) of each byte.
static TABLE: [u32; 256] = table();

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
pub fn checksum(parts: &[&[u8]]) -> u32 {
    let mut sum = u32::MAX;
    for part in parts {
        for &byte in *part {
            sum = TABLE[usize::from(sum as u8 ^ byte)] ^ (sum >> 8);
        }
    }
    !sum
}

/// Appends a number in seven bits a byte, the lowest first (LEB128): one byte below 128, ten at most.
#[inline]
pub fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Length of a number as [`put`] writes it, in bytes.
#[inline]
pub fn length(value: u64) -> usize {
    let bits = u64::BITS - (value | 1).leading_zeros();
    bits.div_ceil(7) as usize
}

/// A number of either sign as one without, small if the absolute value is small.
#[inline]
pub fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// The number of either sign that [`zigzag`] made this number of.
#[inline]
pub fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Appends a text with its length.
pub fn put_text(out: &mut Vec<u8>, text: &str) {
    put(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// `N` bytes from `at` on; `None` if there are less.
pub fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// Bytes that are read from the front. A `None` means that they are no such value.
#[derive(Debug)]
pub struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Input<'a> {
    /// An input of which nothing is read yet.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Number of bytes read.
    pub fn position(&self) -> usize {
        self.at
    }

    /// True if all bytes were read.
    pub fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// The next bytes.
    pub fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..)?.get(..length)?;
        self.at += length;
        Some(taken)
    }

    /// A byte.
    #[inline]
    pub fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    /// A number.
    #[inline]
    pub fn number(&mut self) -> Option<u64> {
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

    /// Reads a number; `None` at the end of the bytes, or if the number is 2³² or more.
    pub fn small(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    /// A number of items, at most `most`.
    pub fn count(&mut self, most: usize) -> Option<usize> {
        usize::try_from(self.number()?).ok().filter(|count| *count <= most)
    }

    /// The number of items that follow, each of at least `least` bytes: no more than there is room for.
    pub fn items(&mut self, least: usize) -> Option<usize> {
        let count = self.count(usize::MAX)?;
        (count <= (self.bytes.len() - self.at) / least).then_some(count)
    }

    /// A text of at most `most` bytes.
    pub fn text(&mut self, most: usize) -> Option<String> {
        let length = self.count(most)?;
        str::from_utf8(self.take(length)?).ok().map(str::to_owned)
    }
}
