//! A host's report to the others each period: JSON with a version, bounded, read with suspicion.

use std::collections::BTreeMap;

use evenkeel_control::cluster::shard::MAX_BITS;
use evenkeel_control::slots::Summary;
use serde::{Deserialize, Serialize};

/// The format written and read here; a change of a field's name or meaning counts it up. A reader ignores all others, because what
/// it does not know would count as nothing asked.
pub const VERSION: u32 = 3;
/// Pools of one host. A pool is a device that is shared; no host is known to have more than some tens.
pub const MAX_POOLS: usize = 32;
/// A longer text is no record: [`MAX_POOLS`] pools with every figure at its longest are shorter.
pub const MAX_RECORD_BYTES: usize = 80 << 10;
/// Pools of all members of a shard: they may be on different ones.
pub const MAX_SUM_POOLS: usize = 4 * MAX_POOLS;
/// The same as [`MAX_RECORD_BYTES`] of a shard's sum; in base64 well below the 1.5 MiB that etcd takes.
pub const MAX_SUM_BYTES: usize = 4 * MAX_RECORD_BYTES;
/// No shard has more members.
pub const MAX_MEMBERS: u64 = 1_000_000;
/// The bytes that etcd writes around a value in the change that it reports: numbers of etcd's cluster, revisions, the key.
const AROUND_VALUE_BYTES: usize = 400;
/// The bytes that it answers to a host each period.
const ANSWERS_BYTES: usize = 800;
/// Nothing that is counted here is larger.
const MAX_FIGURE: f64 = 1e15;
/// The longest name, as in the configuration.
const MAX_NAME: usize = 64;
/// Significant decimal digits of a figure in a record: far finer than anything is measured.
const DIGITS: usize = 5;

/// One host's report about one period. It does not grow with the number of its tenants.
///
/// Figures are sums, so that what several hosts say adds up to what a host with all their tenants would say: the sum of a
/// whole shard is the same record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`VERSION`].
    pub v: u32,
    /// Which life of the host: nanoseconds since 1970 at its start.
    pub incarnation: u64,
    /// The period's number: wall-clock time by `period_us`, rounded down.
    pub period: u64,
    /// The period in which the host joined or came back.
    pub joined: u64,
    /// Length of a period; has to be the same for all hosts.
    pub period_us: u64,
    /// The host leaves the cluster.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
    /// How often the members that it speaks for halve their cluster: into 2^bits shards.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub bits: u8,
    /// How many members it speaks for.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub members: u64,
    /// The figures by pool.
    #[serde(default)]
    pub pools: Pools,
}

/// By pool the sum over its tenants on one host, and their need.
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

/// The sum of several hosts, added up in the order in which they come.
pub fn together<'a>(parts: impl Iterator<Item = &'a Pools>) -> BTreeMap<&'a str, Summary> {
    let mut sums: BTreeMap<&str, Summary> = BTreeMap::new();
    for (name, summary) in parts.flatten() {
        sums.entry(name).or_default().add(summary);
    }
    sums
}

/// Bytes that a host receives from etcd in a period in which values of these lengths are written, at most: they come in
/// base64, each with something around it, and so do the answers to what the host writes itself.
pub fn received_bytes(values: impl IntoIterator<Item = usize>) -> usize {
    ANSWERS_BYTES + values.into_iter().map(|length| 4 * length.div_ceil(3) + AROUND_VALUE_BYTES).sum::<usize>()
}

/// A record that cannot be written: more pools than fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{pools} pools are more than the {most} that a host may report; set slots = \"none\" for those that are not shared"
)]
pub struct TooLarge {
    /// So many.
    pub pools: usize,
    /// [`MAX_POOLS`] for a host, [`MAX_SUM_POOLS`] for a shard.
    pub most: usize,
}

/// Why a text is no record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// It is longer than any record.
    #[error("is {bytes} bytes long, more than the {most} of any such record")]
    TooLong {
        /// So long.
        bytes: usize,
        /// [`MAX_RECORD_BYTES`] for a host, [`MAX_SUM_BYTES`] for a shard.
        most: usize,
    },
    /// It is from another version of the program.
    #[error(
        "is in format {version}, and this host reads format {VERSION}; run the same version of Evenkeel on all hosts"
    )]
    OtherVersion {
        /// The version.
        version: u32,
    },
    /// It makes no sense.
    #[error("is no record: {0}")]
    Corrupt(String),
}

#[derive(Deserialize)]
struct Version {
    v: u32,
}

impl Record {
    /// The record as text, at most [`MAX_RECORD_BYTES`] long, [`MAX_SUM_BYTES`] where it speaks for several hosts. Figures are
    /// rounded to five digits; each host decides from what was reported, its own part included, so that all decide from the
    /// same.
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
    /// Why it is none. Nothing of it is to be used then.
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

    /// Pools and bytes that it may have.
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
            wrong.map(|figure| format!("pool {name:?}: {figure} is out of range"))
        })
    }
}

/// To [`DIGITS`] digits; what cannot be written becomes the nearest that can.
fn rounded(figure: f64) -> f64 {
    let bounded = if figure.is_nan() { 0.0 } else { figure.clamp(0.0, MAX_FIGURE) };
    format!("{bounded:.*e}", DIGITS - 1).parse().unwrap_or(bounded)
}
