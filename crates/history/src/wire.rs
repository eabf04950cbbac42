//! Numbers and texts as bytes, and a checksum of bytes.

/// CRC-32 (IEEE 802.3, reflected) of each byte.
static TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut value = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { (value >> 1) ^ 0xedb8_8320 } else { value >> 1 };
            bit += 1;
        }
        table[byte] = value;
        byte += 1;
    }
    table
}

/// CRC-32 of the parts one behind the other.
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

/// Appends a number of either sign, so that small absolute values are short (zigzag).
pub(crate) fn put_signed(out: &mut Vec<u8>, value: i64) {
    put(out, ((value << 1) ^ (value >> 63)) as u64);
}

/// Appends a text with its length.
pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    put(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// Bytes that are read from the front. A `None` means that they are no such value.
#[derive(Debug)]
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    /// A number.
    pub(crate) fn number(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
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

    /// A number of either sign.
    pub(crate) fn signed(&mut self) -> Option<i64> {
        let value = self.number()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// The number of items that follow, each of at least `least` bytes: no more than there is room for.
    pub(crate) fn count(&mut self, least: usize) -> Option<usize> {
        let count = usize::try_from(self.number()?).ok()?;
        (count <= self.0.len() / least).then_some(count)
    }

    /// A text.
    pub(crate) fn text(&mut self) -> Option<&'a str> {
        let length = self.count(1)?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        str::from_utf8(text).ok()
    }
}
