//! Verifiable content: every sector names the sector and the write that it belongs to.
//!
//! ```text
//! word 0        1        2            3 ... 63
//!      tag      sector   generation   pattern(seed, sector, generation)
//! ```
//!
//! Words are 8 bytes, little-endian. By the first three words a mismatch can be explained (an old
//! write, a misplaced one, zeroes, foreign bytes); the pattern detects all other faults.

use std::fmt;

/// Bytes of a sector, the unit of content. Offsets and lengths are multiples of it.
pub(crate) const SECTOR: u64 = 512;
/// 64-bit words of a sector.
const WORDS: usize = SECTOR as usize / 8;

/// The content of all sectors for one seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    seed: u64,
}

/// The content of a sector, as recognised from its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Only zeroes.
    Zeroes,
    /// The complete content of `sector` by write number `generation`.
    Write { sector: u64, generation: u64 },
    /// The first three words of the content of `sector` by write number `generation`, with another pattern.
    Torn { sector: u64, generation: u64 },
    /// Any other content, given by its first word.
    Foreign(u64),
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zeroes => f.write_str("zeroes"),
            Self::Write { sector, generation } => {
                write!(f, "write number {generation} of offset {}", sector.wrapping_mul(SECTOR))
            }
            Self::Torn { sector, generation } => {
                write!(
                    f,
                    "the start of write number {generation} of offset {}, then something else",
                    sector.wrapping_mul(SECTOR)
                )
            }
            Self::Foreign(word) => write!(f, "bytes that this run did not write (first word {word:#018x})"),
        }
    }
}

impl Content {
    /// Content for runs with this seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed }
    }

    fn pattern(self, sector: u64, generation: u64) -> u64 {
        mix(self.seed ^ mix(sector).wrapping_add(generation))
    }

    fn head(self, sector: u64, generation: u64) -> [u64; 3] {
        [mix(self.seed), sector, generation]
    }

    /// Word `index` of the content of `sector` by write number `generation`.
    pub(crate) fn word(self, sector: u64, generation: u64, index: usize) -> u64 {
        match self.head(sector, generation).get(index) {
            Some(&word) => word,
            None => body(self.pattern(sector, generation), index),
        }
    }

    /// Fills `out`, whole sectors from `sector` on, with the content of write number `generation`.
    pub(crate) fn fill(self, sector: u64, generation: u64, out: &mut [u8]) {
        for (sector, bytes) in (sector..).zip(out.chunks_exact_mut(SECTOR as usize)) {
            let pattern = self.pattern(sector, generation);
            let (words, _) = bytes.as_chunks_mut::<8>();
            for (index, word) in words.iter_mut().enumerate() {
                *word = body(pattern, index).to_le_bytes();
            }
            for (word, value) in words.iter_mut().zip(self.head(sector, generation)) {
                *word = value.to_le_bytes();
            }
        }
    }

    /// True if `bytes`, whole sectors from `sector` on, are exactly the content of write number `generation`.
    pub(crate) fn matches(self, sector: u64, generation: u64, bytes: &[u8]) -> bool {
        (sector..).zip(bytes.chunks_exact(SECTOR as usize)).all(|(sector, bytes)| {
            let pattern = self.pattern(sector, generation);
            let (words, _) = bytes.as_chunks::<8>();
            // One pass without a branch for each word.
            let rest = words.iter().enumerate().skip(3);
            let wrong = rest.fold(0, |wrong, (index, word)| wrong | (u64::from_le_bytes(*word) ^ body(pattern, index)));
            let head = self.head(sector, generation);
            wrong == 0 && words.iter().zip(head).all(|(word, value)| u64::from_le_bytes(*word) == value)
        })
    }

    /// Recognises the content of one sector, given by its bytes.
    pub(crate) fn identify(self, bytes: &[u8]) -> Found {
        let word = |index: usize| u64::from_le_bytes(bytes.as_chunks::<8>().0[index]);
        if bytes.iter().all(|&byte| byte == 0) {
            return Found::Zeroes;
        }
        if word(0) != mix(self.seed) {
            return Found::Foreign(word(0));
        }
        let (sector, generation) = (word(1), word(2));
        if (3..WORDS).all(|index| word(index) == self.word(sector, generation, index)) {
            Found::Write { sector, generation }
        } else {
            Found::Torn { sector, generation }
        }
    }
}

#[inline]
fn body(pattern: u64, index: usize) -> u64 {
    pattern.rotate_left(index as u32) ^ (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The finaliser of SplitMix64: every input bit changes half of the output bits.
pub(crate) fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_names_its_sector_and_write() {
        let content = Content::new(5);
        let mut bytes = vec![0; 4 * SECTOR as usize];
        content.fill(100, 9, &mut bytes);
        assert!(content.matches(100, 9, &bytes));
        assert!(!content.matches(100, 8, &bytes) && !content.matches(101, 9, &bytes));
        assert!(!Content::new(6).matches(100, 9, &bytes));
        let third = &bytes[2 * SECTOR as usize..3 * SECTOR as usize];
        assert_eq!(content.identify(third), Found::Write { sector: 102, generation: 9 });
        for index in 0..WORDS {
            let word = u64::from_le_bytes(third[index * 8..index * 8 + 8].try_into().unwrap());
            assert_eq!(word, content.word(102, 9, index));
        }
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let content = Content::new(5);
        let mut bytes = vec![0; SECTOR as usize];
        content.fill(3, 1, &mut bytes);
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            assert!(!content.matches(3, 1, &bytes), "byte {at}");
            bytes[at] ^= 1;
        }
        bytes[500] ^= 1;
        assert_eq!(content.identify(&bytes), Found::Torn { sector: 3, generation: 1 });
        assert_eq!(content.identify(&[0; 512]), Found::Zeroes);
        assert!(matches!(content.identify(&[7; 512]), Found::Foreign(_)));
    }
}
