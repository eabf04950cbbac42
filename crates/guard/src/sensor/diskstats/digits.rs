//! Fast parsing of decimal numbers and fast comparison of texts, many bytes at a time.

/// Number of bytes that are examined at once.
pub(super) const BLOCK: usize = 64;

/// A bit mask with one bit for each byte of `block`: the bit is 1 if the byte is no decimal digit. The lowest bit is for the
/// first byte.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn no_digits(block: &[u8; BLOCK]) -> u64 {
    use std::arch::x86_64::{_mm_add_epi8, _mm_cmpgt_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8};
    /// Addend that maps the ASCII digits to the ten lowest values of a signed byte, in order.
    const SHIFT: i8 = i8::MIN.wrapping_sub(b'0' as i8);
    const NINE: i8 = i8::MIN + 9;
    let mut found = 0;
    for (n, bytes) in block.as_chunks::<16>().0.iter().enumerate() {
        // SAFETY: every x86-64 processor has SSE2; the load may be unaligned and reads the 16 bytes of `bytes`.
        let bits = unsafe {
            let shifted = _mm_add_epi8(_mm_loadu_si128(bytes.as_ptr().cast()), _mm_set1_epi8(SHIFT));
            _mm_movemask_epi8(_mm_cmpgt_epi8(shifted, _mm_set1_epi8(NINE)))
        };
        found |= u64::from(bits as u32) << (16 * n);
    }
    found
}

/// As `no_digits`, by arithmetic on words of eight bytes, for processors other than x86-64.
#[cfg(any(test, not(target_arch = "x86_64")))]
pub(super) fn no_digits_by_arithmetic(block: &[u8; BLOCK]) -> u64 {
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let mut found = 0;
    for (n, bytes) in block.as_chunks::<8>().0.iter().enumerate() {
        let values = u64::from_le_bytes(*bytes) ^ 0x3030_3030_3030_3030;
        // The top bit of a byte that is above 9.
        let above = ((values & !HIGH).wrapping_add(0x7676_7676_7676_7676) | values) & HIGH;
        // Each of these bits to its place in the top byte; no two sums meet.
        let bits = (above >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        found |= bits << (8 * n);
    }
    found
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) use no_digits_by_arithmetic as no_digits;

/// Number of bytes from the beginning of a block that may be read: numbers that begin in the block are read in words of eight
/// bytes, which may reach beyond the block's end.
pub(super) const WINDOW: usize = BLOCK + 32;

/// Reads numbers as the kernel prints them: at most sixteen digits each, with one blank after each.
///
/// The ends of all numbers are computed before the first number is read, so that the processor can read several numbers at a
/// time.
pub(super) struct Numbers<'a> {
    window: &'a [u8; WINDOW],
    /// Bit mask of the block's bytes: a bit is 1 if the byte is the first after a number that is still to be read.
    ends: u64,
    /// Offset in the window, in bytes, at which the next number begins.
    pub(super) begin: usize,
}

impl<'a> Numbers<'a> {
    /// A reader of the numbers from the beginning of `text`; `None` if `text` is shorter than [`WINDOW`].
    #[inline(always)]
    pub(super) fn of(text: &'a [u8]) -> Option<Self> {
        let window = text.first_chunk::<WINDOW>()?;
        Some(Self { window, ends: no_digits(window.first_chunk()?), begin: 0 })
    }

    /// The next number, and the byte after it. This byte is a blank or line end only if a number of 1 to 16 digits ends
    /// before it; with any other byte the number must not be used.
    #[inline(always)]
    pub(super) fn next(&mut self) -> (u64, u8) {
        let end = self.ends.trailing_zeros() as usize;
        self.ends &= self.ends.wrapping_sub(1);
        let (begin, digits) = (self.begin, end.wrapping_sub(self.begin));
        self.begin = end + 1;
        // No number at all: nothing good comes after it.
        let after = if (1..=16).contains(&digits) { self.window[end] } else { 0 };
        let word =
            |at: usize| self.window.get(at..at + 8).and_then(|bytes| bytes.first_chunk()).copied().unwrap_or([0; 8]);
        if digits <= 8 {
            return (eight_digits(word(begin), digits), after);
        }
        let more = (digits - 8).min(8);
        (eight_digits(word(begin), 8) * POWERS_OF_TEN[more] + eight_digits(word(begin + 8), more), after)
    }
}

const POWERS_OF_TEN: [u64; 9] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];

/// The value of the decimal number in the first `digits` (1 to 8) of these bytes, the most significant digit first.
#[inline(always)]
pub(super) fn eight_digits(bytes: [u8; 8], digits: usize) -> u64 {
    // The first digit is in the lowest byte: zeros before it, then neighbours are put together, three times.
    let ones = (u64::from_le_bytes(bytes) & 0x0f0f_0f0f_0f0f_0f0f).wrapping_shl(64 - 8 * digits as u32);
    let pairs = ones.wrapping_mul(10 << 8 | 1) >> 8 & 0x00ff_00ff_00ff_00ff;
    let fours = pairs.wrapping_mul(100 << 16 | 1) >> 16 & 0x0000_ffff_0000_ffff;
    fours.wrapping_mul(10_000 << 32 | 1) >> 32
}

/// Number of leading bytes in which `one` and `other`, of whole words of eight bytes, agree.
#[inline(always)]
pub(super) fn leading_same<const N: usize>(one: &[u8; N], other: &[u8; N]) -> usize {
    let words = one.as_chunks::<8>().0.iter().zip(other.as_chunks::<8>().0);
    for (n, (one, other)) in words.enumerate() {
        let differ = u64::from_le_bytes(*one) ^ u64::from_le_bytes(*other);
        if differ != 0 {
            return 8 * n + differ.trailing_zeros() as usize / 8;
        }
    }
    N
}
