//! Shards: parts of a cluster whose hosts are known to hosts of other shards only by the sum of their reports.
//!
//! A shard is a range of the hashes of hosts' names: the range of all hashes halved `bits` times. Hosts may differ in how
//! often they halve it, because they have other settings or see the cluster grow at another time. Of two shards that overlap,
//! one contains the other, and only the larger one counts ([`cover`]): each host is in exactly one shard that counts.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::fmt;
use core::ops::RangeInclusive;
use core::str::FromStr;

/// Largest number of times that a cluster is halved, which makes 2^12 = 4,096 shards.
pub const MAX_BITS: u8 = 12;
/// Bits of the hash of a host's name.
const HASH_BITS: u8 = 16;

/// The hash of a host's name: the same everywhere, and evenly spread even over names that differ little.
pub fn hash(host: &str) -> u16 {
    // FNV-1a, and the last steps of SplitMix64, because the high bits of the former change little with the last letters.
    let hash = host
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((hash ^ (hash >> 31)) >> (64 - HASH_BITS)) as u16
}

/// A shard, or the whole cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shard {
    bits: u8,
    index: u16,
}

impl Shard {
    /// The shard of all hosts: the cluster is not divided.
    pub const WHOLE: Self = Self { bits: 0, index: 0 };

    /// The shard to which `host` belongs if the cluster is halved `bits` times, at most [`MAX_BITS`].
    pub fn of(host: &str, bits: u8) -> Self {
        let bits = bits.min(MAX_BITS);
        let index = if bits == 0 { 0 } else { hash(host) >> (HASH_BITS - bits) };
        Self { bits, index }
    }

    /// Number of times that the cluster is halved to get shards of this size; 0 = the whole cluster.
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// The range of hashes of host names that belong to the shard.
    pub fn hashes(&self) -> RangeInclusive<u16> {
        let width = 1u32 << (HASH_BITS - self.bits);
        let first = u32::from(self.index) * width;
        first as u16..=(first + (width - 1)) as u16
    }

    /// True if a host is in this shard.
    pub fn holds(&self, host: &str) -> bool {
        Self::of(host, self.bits) == *self
    }

    /// All larger shards that contain this one, the whole cluster first.
    pub fn within(&self) -> impl Iterator<Item = Self> + use<> {
        let Self { bits, index } = *self;
        (0..bits).map(move |fewer| Self { bits: fewer, index: index >> (bits - fewer) })
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:03x}", self.bits, self.index)
    }
}

/// A text that names no shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoShard;

impl FromStr for Shard {
    type Err = NoShard;

    /// Reads exactly the text that `Display` writes, such as `3-005`: a shard has one name.
    fn from_str(text: &str) -> Result<Self, NoShard> {
        let (bits, index) = text.split_once('-').ok_or(NoShard)?;
        if !(1..=2).contains(&bits.len()) || index.len() != 3 || index.bytes().any(|b| b.is_ascii_uppercase()) {
            return Err(NoShard);
        }
        let bits: u8 = bits.parse().ok().filter(|bits| *bits <= MAX_BITS).ok_or(NoShard)?;
        let index = u16::from_str_radix(index, 16).map_err(|_| NoShard)?;
        let shard = Self { bits, index };
        let named_so = u32::from(index) < 1 << bits && alloc::format!("{shard}") == text;
        named_so.then_some(shard).ok_or(NoShard)
    }
}

/// The size from which a cluster is divided, and the size of its shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Clusters of up to this many members are not divided.
    pub above: u64,
    /// Upper bound on the mean number of members of a shard. `None`: about as many members as there are shards, which makes
    /// the number of reports and sums that a host reads smallest.
    pub most: Option<u64>,
}

impl Sizes {
    /// Number of times that a cluster of `hosts` members is to be halved; 0 if it is not divided.
    pub fn bits(&self, hosts: u64) -> u8 {
        if hosts <= self.above {
            return 0;
        }
        let enough = |bits: u8| match self.most {
            Some(most) => hosts <= most.max(1) << bits,
            None => hosts <= 1 << (2 * bits),
        };
        (1..MAX_BITS).find(|&bits| enough(bits)).unwrap_or(MAX_BITS)
    }

    /// [`Self::bits`] for a cluster of `hosts` members that is already halved `now` times. Shards unite again only when the
    /// cluster is a fifth smaller than the size at which it was divided.
    pub fn bits_after(&self, now: u8, hosts: u64) -> u8 {
        let (more, fewer) = (self.bits(hosts), self.bits(hosts.saturating_add(hosts / 4)));
        if more > now { more } else { fewer.min(now) }
    }
}

/// The state of a shard in a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The shard.
    pub shard: Shard,
    /// Age of the shard's newest sum in periods; 0 = the sum is about this period.
    pub age: u64,
    /// Number of members whose reports are in the shard's newest sum.
    pub members: u64,
}

/// The shards whose sums count, so that no host counts twice. Of shards that overlap the larger one counts, because it contains
/// the smaller one. But a larger shard without a sum of this period (a suspect one) is replaced by shards within it when their
/// sums have at least as many members together.
pub fn cover(shards: &[Seen]) -> BTreeSet<Shard> {
    let current: BTreeSet<Shard> = shards.iter().filter(|seen| seen.age == 0).map(|seen| seen.shard).collect();
    let mut counts: BTreeSet<Shard> =
        current.iter().filter(|shard| !shard.within().any(|larger| current.contains(&larger))).copied().collect();
    let mut replaced: BTreeMap<Shard, u64> = BTreeMap::new();
    for seen in shards.iter().filter(|seen| counts.contains(&seen.shard)) {
        for larger in seen.shard.within() {
            *replaced.entry(larger).or_default() += seen.members;
        }
    }
    let mut suspects: Vec<&Seen> = shards.iter().filter(|seen| seen.age > 0).collect();
    suspects.sort_by_key(|seen| seen.shard);
    for seen in suspects {
        let covered = counts.contains(&seen.shard) || seen.shard.within().any(|larger| counts.contains(&larger));
        if !covered && replaced.get(&seen.shard).is_none_or(|&members| members < seen.members) {
            counts.insert(seen.shard);
        }
    }
    counts.iter().filter(|shard| !shard.within().any(|larger| counts.contains(&larger))).copied().collect()
}
