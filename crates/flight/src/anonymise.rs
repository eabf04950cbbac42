//! Scrambles offsets and names with a key.

use std::array;
use std::fmt;

use crate::request::{Name, Table};

/// Length of an extent, in bytes. Extents of a volume change their order; offsets within an extent stay.
pub const EXTENT_BYTES: u64 = 1 << 20;

/// Number of extents below the offset 2⁶⁴.
const EXTENTS: u64 = 1 << 44;
/// Rounds of the Feistel network: twice as many as make a permutation that looks random of round functions that do.
const ROUNDS: usize = 8;
/// The golden ratio as a fraction of 2⁶⁴: it separates words that follow each other.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Begins of the texts that a hash is of, so that hashes for different purposes differ.
const OFFSETS: u64 = 1;
const NAMES: u64 = 2;

/// Scrambles offsets and names.
///
/// The same key always gives the same result, so that recordings made with one key can be compared. Without the key a reader
/// learns neither offsets nor names. This is no cipher: it is to keep a recording that is passed on from showing where the data
/// are, and no defence against the effort of a cryptanalyst. A key that can be guessed hides nothing.
///
/// Extents of 1 MiB are permuted within the volume. What stays is sequentiality within an extent, reuse of extents, the working
/// set, and thus what caches do. What is lost is the order of extents: a sequential stream jumps at each MiB.
#[derive(Clone)]
pub struct Scrambler {
    secret: [u64; 2],
}

impl fmt::Debug for Scrambler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scrambler").finish_non_exhaustive()
    }
}

impl Scrambler {
    /// A scrambler with this key, of any length; 16 random bytes or more are enough.
    pub fn new(key: &[u8]) -> Self {
        Self { secret: [absorbed(0, key), absorbed(GOLDEN, key)] }
    }

    /// The scrambled offset in a volume of `volume_bytes` bytes.
    ///
    /// Different offsets stay different. Offsets in the volume stay in it; those in an extent that the end of the volume cuts
    /// stay as they are; those beyond the end stay beyond it, at any offset below 2⁶⁴. Of a volume whose length is not known
    /// pass the largest end of its requests. A request that crosses the end of its extent may come to reach beyond the end of
    /// the volume.
    pub fn offset(&self, volume: u32, volume_bytes: u64, offset: u64) -> u64 {
        let (extent, within) = (offset / EXTENT_BYTES, offset % EXTENT_BYTES);
        let (whole, all) = (volume_bytes / EXTENT_BYTES, volume_bytes.div_ceil(EXTENT_BYTES));
        let scrambled = if extent < whole {
            self.permuted(volume, whole, extent)
        } else if extent < all {
            extent
        } else {
            all + self.permuted(volume, EXTENTS - all, extent - all)
        };
        scrambled * EXTENT_BYTES + within
    }

    /// A name in place of the name of a tenant, such as `tenant-3f9a12c05e77`. Different names become the same with a probability
    /// of 2⁻⁴⁸.
    pub fn name(&self, name: &str) -> String {
        self.named("tenant", name)
    }

    /// The name of a number in place of another, with number and length as they were: `tenant-…`, `client-…` or `volume-…`, in
    /// pool `pool-…` if it has one. Connections of one peer are `client-…:NUMBER` with the same digits before the colon, since
    /// together they may be one closed loop.
    pub fn entry(&self, entry: &Name) -> Name {
        let begin = match entry.table {
            Table::Tenant => "tenant",
            Table::Client => "client",
            Table::Volume => "volume",
        };
        let pool = if entry.pool.is_empty() { String::new() } else { self.named("pool", &entry.pool) };
        let name = match entry.connection() {
            Some((host, _, identity)) => {
                let number = self.hash(&entry.name) >> 32;
                format!("{}:{number}", self.named(begin, &format!("{host}{identity}")))
            }
            None => self.named(begin, &entry.name),
        };
        Name { name, pool, ..*entry }
    }

    fn named(&self, begin: &str, name: &str) -> String {
        let hash = self.hash(name) >> 16;
        format!("{begin}-{hash:012x}")
    }

    fn hash(&self, name: &str) -> u64 {
        self.keyed(absorbed(self.secret[0] ^ NAMES, name.as_bytes()))
    }

    /// A permutation of the numbers below `extents`: a Feistel network over the smallest even number of bits that has room for
    /// them, applied until the result is below `extents`, which takes less than four times in the mean.
    fn permuted(&self, volume: u32, extents: u64, extent: u64) -> u64 {
        if extents < 2 {
            return extent;
        }
        let bits = u64::BITS - (extents - 1).leading_zeros();
        let half = bits.div_ceil(2);
        let mask = (1_u64 << half) - 1;
        let begin = step(self.secret[0] ^ OFFSETS, u64::from(volume));
        let keys: [u64; ROUNDS] = array::from_fn(|round| self.keyed(step(begin, round as u64)));
        let mut value = extent;
        loop {
            let (mut left, mut right) = (value >> half, value & mask);
            for key in keys {
                (left, right) = (right, left ^ (mixed(key ^ right) & mask));
            }
            value = (left << half) | right;
            if value < extents {
                return value;
            }
        }
    }

    /// The end of a hash that began with the first half of the secret: without the second half it cannot be inverted.
    fn keyed(&self, state: u64) -> u64 {
        mixed(state ^ self.secret[1])
    }
}

/// A permutation of 64 bits in which each bit of the result depends on all bits (the finaliser of SplitMix64).
fn mixed(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// The state of a hash after one more word.
fn step(state: u64, word: u64) -> u64 {
    mixed((state ^ word).wrapping_add(GOLDEN))
}

/// The state of a hash after these bytes and their number.
fn absorbed(state: u64, bytes: &[u8]) -> u64 {
    let after = bytes.chunks(8).fold(state, |state, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        step(state, u64::from_le_bytes(word))
    });
    step(after, bytes.len() as u64)
}
