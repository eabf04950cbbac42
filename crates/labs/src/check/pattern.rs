//! Test data in which each sector names itself and the write that it comes from.
//!
//! Every 512-byte sector contains its own number and the generation of the write, so that a checker can tell for each
//! sector, the unit that a disk writes whole, if a write was lost.

use crate::base::random::xorshift;

/// The unit that a disk writes whole or not at all, in bytes.
pub(crate) const SECTOR: usize = 512;
const MAGIC: u64 = 0x4576_656e_6b65_656c;

/// The content of a sector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// Only zeros: the sector was never written; this counts as generation 0.
    Zero,
    /// The complete data of a write with this generation.
    Generation(u64),
    /// Data that is mixed from several writes, belongs to another sector, or is no test data.
    Corrupt,
}

impl Content {
    /// The generation of the content: 0 for zeros; `None` for corrupt data, which compares as lower than every generation.
    pub(crate) fn generation(self) -> Option<u64> {
        match self {
            Self::Zero => Some(0),
            Self::Generation(g) => Some(g),
            Self::Corrupt => None,
        }
    }
}

/// Fills `data`, whose length is a multiple of [`SECTOR`], with the test data of consecutive sectors from number `first` on, all
/// of one generation.
pub(crate) fn fill(data: &mut [u8], first: u64, generation: u64) {
    for (i, sector) in data.chunks_exact_mut(SECTOR).enumerate() {
        let number = first + i as u64;
        for (word, value) in sector.chunks_exact_mut(8).zip(words(number, generation)) {
            word.copy_from_slice(&value.to_le_bytes());
        }
    }
}

/// The content of a whole sector that was read from sector `number`.
pub(crate) fn read(sector: &[u8], number: u64) -> Content {
    if sector.iter().all(|&b| b == 0) {
        return Content::Zero;
    }
    let word = |i: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&sector[8 * i..8 * i + 8]);
        u64::from_le_bytes(bytes)
    };
    let generation = word(2);
    let whole = sector.len() == SECTOR && words(number, generation).enumerate().all(|(i, value)| word(i) == value);
    if whole { Content::Generation(generation) } else { Content::Corrupt }
}

/// The 64 words of a sector's test data: a header, then words that depend on the sector's number and generation.
fn words(number: u64, generation: u64) -> impl Iterator<Item = u64> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ generation.rotate_left(32) | 1;
    [MAGIC, number, generation]
        .into_iter()
        // It is cheap, and any change of position or generation changes every word.
        .chain(std::iter::repeat_with(move || xorshift(&mut state)))
        .take(SECTOR / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_are_recognised_whole_and_in_place() {
        let mut data = vec![0; 2 * SECTOR];
        assert_eq!(read(&data[..SECTOR], 5), Content::Zero);
        fill(&mut data, 5, 9);
        assert_eq!(read(&data[..SECTOR], 5), Content::Generation(9));
        assert_eq!(read(&data[SECTOR..], 6), Content::Generation(9));
        assert_eq!(read(&data[SECTOR..], 5), Content::Corrupt, "a misplaced sector");
        let mut older = vec![0; SECTOR];
        fill(&mut older, 5, 8);
        data[..256].copy_from_slice(&older[..256]);
        assert_eq!(read(&data[..SECTOR], 5), Content::Corrupt, "half of one write, half of another");
    }
}
