//! A host's report to the others each period: JSON with a version, bounded, read with suspicion.

use std::collections::BTreeMap;

use evenkeel_control::cluster::shard::MAX_BITS;
use evenkeel_control::slots::Summary;
use serde::{Deserialize, Serialize};

/// Number of the record's format, which is raised when the name or meaning of a field changes. A reader ignores records of
/// other formats, because fields that it does not know would count as no demand.
pub const VERSION: u32 = 3;
/// Most pools in the record of one host. A pool is a device that is shared; no host is known to have more than some tens.
pub const MAX_POOLS: usize = 32;
/// Longest record of one host, in bytes: [`MAX_POOLS`] pools with every figure at its longest are shorter.
pub const MAX_RECORD_BYTES: usize = 80 << 10;
/// Most pools in the record of a shard, whose members may be on different pools.
pub const MAX_SUM_POOLS: usize = 4 * MAX_POOLS;
/// Longest record of a shard, in bytes; in base64 it is well below the 1.5 MiB that etcd takes.
pub const MAX_SUM_BYTES: usize = 4 * MAX_RECORD_BYTES;
/// Most members that a record can speak for.
pub const MAX_MEMBERS: u64 = 1_000_000;
/// Bytes that etcd writes around a value when it reports a change: numbers of etcd's cluster, revisions, the key.
const AROUND_VALUE_BYTES: usize = 400;
/// Bytes of etcd's answers to a host's own writes in a period.
const ANSWERS_BYTES: usize = 800;
/// Largest figure in a record.
const MAX_FIGURE: f64 = 1e15;
/// The longest name, as in the configuration.
const MAX_NAME: usize = 64;
/// Significant decimal digits of a figure in a record: far finer than anything is measured.
const DIGITS: usize = 5;

/// One host's report about one period. Its size does not depend on the number of the host's tenants.
///
/// Figures are sums, so that the reports of several hosts add up to that of one host with all their tenants: the sum of a
/// whole shard is a record as well.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`VERSION`].
    pub v: u32,
    /// Distinguishes restarts of the host's program: nanoseconds from 1970 to its start.
    pub incarnation: u64,
    /// The period's number: wall-clock time divided by `period_us`, rounded down.
    pub period: u64,
    /// The period in which the host joined or came back.
    pub joined: u64,
    /// Length of a period; has to be the same for all hosts.
    pub period_us: u64,
    /// True if the host leaves the cluster.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
    /// How often the members that this record speaks for have halved the cluster: it has 2^`bits` shards.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub bits: u8,
    /// Number of members that this record speaks for: 1, or those of a shard.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub members: u64,
    /// The figures by pool.
    #[serde(default)]
    pub pools: Pools,
}

/// By pool, the sums over its tenants on one host or on the hosts of a shard, and their need.
pub type Pools = BTreeMap<String, Summary>;

fn is_zero(bits: &u8) -> bool {
    *bits == 0
}

fn one() -> u64 {
    1
}

fn is_one(members: &u64) -> bool {
    *members == 1
}

/// The sums of several hosts by pool, added up in the order in which the hosts come.
pub fn together<'a>(parts: impl Iterator<Item = &'a Pools>) -> BTreeMap<&'a str, Summary> {
    let mut sums: BTreeMap<&str, Summary> = BTreeMap::new();
    for (name, summary) in parts.flatten() {
        sums.entry(name).or_default().add(summary);
    }
    sums
}

/// Most bytes that a host receives from etcd in a period in which values of these lengths are written. Values come in base64,
/// each with some bytes around it; the answers to the host's own writes are added.
pub fn received_bytes(values: impl IntoIterator<Item = usize>) -> usize {
    ANSWERS_BYTES + values.into_iter().map(|length| 4 * length.div_ceil(3) + AROUND_VALUE_BYTES).sum::<usize>()
}

/// A record that cannot be written: more pools than fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{pools} pools are more than the {most} that a host may report; set slots = \"none\" for those that are not shared"
)]
pub struct TooLarge {
    /// Number of pools.
    pub pools: usize,
    /// [`MAX_POOLS`] for a host, [`MAX_SUM_POOLS`] for a shard.
    pub most: usize,
}

/// Why a text is no record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// The text is longer than any record.
    #[error("is {bytes} bytes long, more than the {most} of any such record")]
    TooLong {
        /// Length of the text, in bytes.
        bytes: usize,
        /// [`MAX_RECORD_BYTES`] for a host, [`MAX_SUM_BYTES`] for a shard.
        most: usize,
    },
    /// The record is from another version of the program.
    #[error(
        "is in format {version}, and this host reads format {VERSION}; run the same version of Evenkeel on all hosts"
    )]
    OtherVersion {
        /// The record's format.
        version: u32,
    },
    /// The text is no record, for this reason.
    #[error("is no record: {0}")]
    Corrupt(String),
}

#[derive(Deserialize)]
struct Version {
    v: u32,
}

impl Record {
    /// The record as text, at most [`MAX_RECORD_BYTES`] long, or [`MAX_SUM_BYTES`] if it speaks for several hosts. Figures
    /// are rounded to five digits; each host decides from the rounded records, its own included, so that all decide from the
    /// same figures.
    ///
    /// # Errors
    /// When there are too many pools.
    pub fn text(&self) -> Result<String, TooLarge> {
        let (most, _) = self.most();
        if self.pools.len() > most {
            return Err(TooLarge { pools: self.pools.len(), most });
        }
        let mut rounded = self.clone();
        let figures = rounded.pools.values_mut().flat_map(Summary::figures);
        figures.for_each(|figure| *figure = self::rounded(*figure));
        // Maps with text keys and finite numbers do not fail.
        Ok(serde_json::to_string(&rounded).unwrap_or_default())
    }

    /// Reads a record.
    ///
    /// # Errors
    /// Why the text is no record. Nothing of it is to be used then.
    pub fn parse(text: &[u8]) -> Result<Self, Unreadable> {
        let too_long = |most: usize| Unreadable::TooLong { bytes: text.len(), most };
        if text.len() > MAX_SUM_BYTES {
            return Err(too_long(MAX_SUM_BYTES));
        }
        let corrupt = |error: serde_json::Error| Unreadable::Corrupt(error.to_string());
        let version = serde_json::from_slice::<Version>(text).map_err(corrupt)?.v;
        if version > 0 && version != VERSION {
            return Err(Unreadable::OtherVersion { version });
        }
        let record: Self = serde_json::from_slice(text).map_err(corrupt)?;
        let (_, most) = record.most();
        if text.len() > most {
            return Err(too_long(most));
        }
        match record.fault() {
            Some(fault) => Err(Unreadable::Corrupt(fault)),
            None => Ok(record),
        }
    }

    /// Most pools and bytes that this record may have.
    fn most(&self) -> (usize, usize) {
        if self.members > 1 { (MAX_SUM_POOLS, MAX_SUM_BYTES) } else { (MAX_POOLS, MAX_RECORD_BYTES) }
    }

    fn fault(&self) -> Option<String> {
        if self.v == 0 {
            return Some("there is no format 0".into());
        }
        if self.bits > MAX_BITS {
            return Some(format!("a cluster halved {} times, more than {MAX_BITS}", self.bits));
        }
        if !(1..=MAX_MEMBERS).contains(&self.members) {
            return Some(format!("it speaks for {} members", self.members));
        }
        let (most, _) = self.most();
        if self.pools.len() > most {
            return Some(format!("{} pools are more than {most}", self.pools.len()));
        }
        if self.joined > self.period {
            return Some("it joined after the period that it reports".into());
        }
        self.pools.iter().find_map(|(name, pool)| {
            if name.is_empty() || name.len() > MAX_NAME {
                return Some(format!("a pool's name has {} bytes", name.len()));
            }
            let wrong = pool.clone().figures().find(|figure| !(0.0..=MAX_FIGURE).contains(*figure)).copied();
            wrong.map(|figure| format!("pool {name:?}: {figure} is not from 0 to {MAX_FIGURE:e}"))
        })
    }
}

/// Rounds a figure to [`DIGITS`] digits, within 0 and [`MAX_FIGURE`]; NaN becomes 0.
fn rounded(figure: f64) -> f64 {
    let bounded = if figure.is_nan() { 0.0 } else { figure.clamp(0.0, MAX_FIGURE) };
    format!("{bounded:.*e}", DIGITS - 1).parse().unwrap_or(bounded)
}
