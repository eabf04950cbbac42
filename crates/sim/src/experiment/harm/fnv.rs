//! A hash that is the same on every machine and in every version. The build script includes this file, too.

/// Offset basis of 64-bit FNV-1a: the hash of no bytes.
pub(super) const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0100_0000_01b3;

/// 64-bit FNV-1a of `bytes`, continued from `hash`, the hash of the preceding bytes.
pub(super) fn fnv1a(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}
