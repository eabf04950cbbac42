//! A random generator with the same numbers in every run.

/// The next number of a generator with this state, which is not 0 (xorshift64; Marsaglia 2003).
pub(crate) fn xorshift(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}
