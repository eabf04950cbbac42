//! Sections: parts of a group of hosts that the others know by one sum.
//!
//! A host's place is a hash of its name, and a section is a range of places: all of them halved `bits` times. Hosts may
//! halve differently, because they have other settings or see the group grow at another time. Sections that overlap then
//! contain each other, and of those only the larger one counts ([`cover`]): every host is in exactly one that does.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::fmt;
use core::ops::RangeInclusive;
use core::str::FromStr;

/// The finest division: 4,096 sections.
pub const MAX_BITS: u8 = 12;
/// Bits of a place.
const PLACE_BITS: u8 = 16;

/// Where a host is among all: the same everywhere, and even over names that differ little.
pub fn place(host: &str) -> u16 {
    // FNV-1a, and the last steps of SplitMix64, because the high bits of the former change little with the last letters.
    let hash = host
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((hash ^ (hash >> 31)) >> (64 - PLACE_BITS)) as u16
}

/// A section, or the whole group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Section {
    bits: u8,
    index: u16,
}

impl Section {
    /// All hosts.
    pub const WHOLE: Self = Self { bits: 0, index: 0 };

    /// The section of a host where the group is halved `bits` times, at most [`MAX_BITS`].
    pub fn of(host: &str, bits: u8) -> Self {
        let bits = bits.min(MAX_BITS);
        let index = if bits == 0 { 0 } else { place(host) >> (PLACE_BITS - bits) };
        Self { bits, index }
    }

    /// How often the group is halved.
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// The places of its hosts.
    pub fn places(&self) -> RangeInclusive<u16> {
        let width = 1u32 << (PLACE_BITS - self.bits);
        let first = u32::from(self.index) * width;
        first as u16..=(first + (width - 1)) as u16
    }

    /// True if a host is in it.
    pub fn holds(&self, host: &str) -> bool {
        Self::of(host, self.bits) == *self
    }

    /// Larger sections that contain it, the whole first.
    pub fn within(&self) -> impl Iterator<Item = Self> + use<> {
        let Self { bits, index } = *self;
        (0..bits).map(move |fewer| Self { bits: fewer, index: index >> (bits - fewer) })
    }
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:03x}", self.bits, self.index)
    }
}

/// A text that names no section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSection;

impl FromStr for Section {
    type Err = NoSection;

    /// As it is displayed, and no other way: a section has one name.
    fn from_str(text: &str) -> Result<Self, NoSection> {
        let (bits, index) = text.split_once('-').ok_or(NoSection)?;
        if !(1..=2).contains(&bits.len()) || index.len() != 3 || index.bytes().any(|b| b.is_ascii_uppercase()) {
            return Err(NoSection);
        }
        let bits: u8 = bits.parse().ok().filter(|bits| *bits <= MAX_BITS).ok_or(NoSection)?;
        let index = u16::from_str_radix(index, 16).map_err(|_| NoSection)?;
        let section = Self { bits, index };
        let named_so = u32::from(index) < 1 << bits && alloc::format!("{section}") == text;
        named_so.then_some(section).ok_or(NoSection)
    }
}

/// From how many hosts on a group is divided, and how finely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Groups of up to so many hosts are not divided.
    pub above: u64,
    /// Hosts of a section, at most, in the mean; `None`: as many as there are sections, so that a host reads the least.
    pub most: Option<u64>,
}

impl Sizes {
    /// How often a group of so many hosts is to be halved.
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

    /// The same for a group that is halved `now` times: it grows together again only when it has become smaller by a fifth.
    pub fn bits_after(&self, now: u8, hosts: u64) -> u8 {
        let (more, fewer) = (self.bits(hosts), self.bits(hosts.saturating_add(hosts / 4)));
        if more > now { more } else { fewer.min(now) }
    }
}

/// The state of a section in a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Which.
    pub section: Section,
    /// Periods since its newest sum; 0 = that is of this period.
    pub age: u64,
    /// Hosts that are in its sum.
    pub hosts: u64,
}

/// Which of the sections count, so that no host counts twice: of those that overlap, the larger one, because it contains
/// the smaller one. But a silent one does not count any more when those within it have sums of as many hosts.
pub fn cover(sections: &[Seen]) -> BTreeSet<Section> {
    let told: BTreeSet<Section> = sections.iter().filter(|seen| seen.age == 0).map(|seen| seen.section).collect();
    let mut counts: BTreeSet<Section> =
        told.iter().filter(|section| !section.within().any(|larger| told.contains(&larger))).copied().collect();
    let mut replaced: BTreeMap<Section, u64> = BTreeMap::new();
    for seen in sections.iter().filter(|seen| counts.contains(&seen.section)) {
        for larger in seen.section.within() {
            *replaced.entry(larger).or_default() += seen.hosts;
        }
    }
    let mut silent: Vec<&Seen> = sections.iter().filter(|seen| seen.age > 0).collect();
    silent.sort_by_key(|seen| seen.section);
    for seen in silent {
        let covered = counts.contains(&seen.section) || seen.section.within().any(|larger| counts.contains(&larger));
        if !covered && replaced.get(&seen.section).is_none_or(|&hosts| hosts < seen.hosts) {
            counts.insert(seen.section);
        }
    }
    counts.iter().filter(|section| !section.within().any(|larger| counts.contains(&larger))).copied().collect()
}
