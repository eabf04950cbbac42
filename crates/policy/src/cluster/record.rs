//! The report that a host sends to the other hosts of the cluster each period: JSON with a format version and a bounded size. A
//! received report is validated before use.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use evenkeel_control::cluster::shard::MAX_BITS;
use evenkeel_control::cluster::totals::{Line, Sums};
use evenkeel_control::slots::Summary;
use serde::{Deserialize, Serialize};

use crate::lately::is_default;

/// Version of the record's format, which is raised when the name or meaning of a field changes. A field may be added without a
/// new version if records without the field stay correct: a member that reports no totals has no part of them.
///
/// Members of two versions run side by side during an upgrade. A record that says by [`Record::reads`] that this version can
/// read it is read. Of all others only the [`Header`] is read, whose fields have the same meaning in all versions: unknown
/// fields would count as no demand. Such a member counts by its number alone.
pub const VERSION: u32 = 3;
/// The oldest version whose readers read the records of [`VERSION`] correctly.
pub const READS: u32 = 3;
/// The oldest version whose records this program reads.
const OLDEST: u32 = 3;
/// The most pools in the record of one host. A pool is a shared device; hosts have at most some tens of them.
pub const MAX_POOLS: usize = 32;
/// The most tenants with totals in the record of one host, counted once for each of their pools.
pub const MAX_TOTALS: usize = 256;
/// Longest record of one host, in bytes. A record with [`MAX_POOLS`] pools, [`MAX_TOTALS`] totals and the longest figures is
/// shorter.
pub const MAX_RECORD_BYTES: usize = 192 << 10;
/// The most pools in the record of a shard, whose members may use different pools.
pub const MAX_SUM_POOLS: usize = 4 * MAX_POOLS;
/// The most tenants with totals in the record of a shard, counted once for each of their pools.
pub const MAX_SUM_TOTALS: usize = 4 * MAX_TOTALS;
/// Longest record of a shard, in bytes. In base64 it is well below the 1.5 MiB that etcd accepts.
pub const MAX_SUM_BYTES: usize = 4 * MAX_RECORD_BYTES;
/// The most cluster members whose figures one record can sum up.
pub const MAX_MEMBERS: u64 = 1_000_000;
/// Number of bytes around the value in etcd's report of a change: ids of etcd's cluster, revisions, the key.
const AROUND_VALUE_BYTES: usize = 400;
/// Number of bytes of etcd's answers to a host's own writes in a period.
const ANSWERS_BYTES: usize = 800;
/// Largest figure in a record.
const MAX_FIGURE: f64 = 1e15;
/// The longest name of a pool in a record, in bytes, as in the configuration.
const MAX_NAME: usize = 64;
/// The longest name of a tenant in a record, in bytes: two names and a slash, for a tenant with `each`.
pub const MAX_TENANT_NAME: usize = 2 * MAX_NAME + 1;
/// Number of significant decimal digits of a figure in a record: far more than measurements have.
const DIGITS: usize = 5;

/// One host's report about one period. The report's size does not depend on the number of the host's tenants, except those with
/// a reservation or a limit.
///
/// Figures are sums over tenants, so that the sum of several hosts' reports equals the report of one host with all their
/// tenants. The sum over a whole shard has the form of a record, too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Version of the record's format: [`VERSION`], also of a record that was read as one of this version.
    pub v: u32,
    /// The oldest version whose readers read this record correctly; without the field it is `v`.
    #[serde(default = "version", skip_serializing_if = "is_version")]
    pub reads: u32,
    /// Start of the host's program, in nanoseconds since 1970; it tells the program's restarts apart.
    pub incarnation: u64,
    /// Number of the period that the report is about: wall-clock time since 1970 divided by `period_us`, rounded down.
    pub period: u64,
    /// Number of earlier reports about the same period; these differ in `totals` only.
    #[serde(default, skip_serializing_if = "is_default")]
    pub early: u8,
    /// Number of the period in which the host joined the cluster, or joined it again.
    pub joined: u64,
    /// Length of a period, in microseconds; must be the same for all hosts.
    pub period_us: u64,
    /// Number of periods after which the host has lost the cluster if no report of it comes back, counted from its newest report
    /// that did; 0: not known, as in a record of a shard.
    #[serde(default, skip_serializing_if = "is_default")]
    pub lease: u64,
    /// Of a shard: the revision of the store up to which the reports of the shard's members are in the record, so that each
    /// member knows if its own is, whatever the clocks say. 0: not known, as in the record of a host.
    #[serde(default, skip_serializing_if = "is_default")]
    pub revision: u64,
    /// True if the host is leaving the cluster.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
    /// Number of times that the cluster is halved, according to the record's members: it has 2^`bits` shards.
    #[serde(default, skip_serializing_if = "is_default")]
    pub bits: u8,
    /// Number of members whose figures the record sums up: 1 for a host, more for a shard.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub members: u64,
    /// The figures of each pool.
    #[serde(default)]
    pub pools: Pools,
    /// The figures of each tenant with a total, by the pool's name and the tenant's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub totals: Totals,
}

/// Figures of tenants with a reservation or a limit, in requests and in payload bytes, by the pool's name and the tenant's, and
/// those of guarantees by [`guarantee_total`](super::guarantee_total): of one host, or added up over the hosts of a shard. A unit
/// without a total has no members.
pub type Totals = BTreeMap<String, BTreeMap<String, [Sums; 2]>>;

/// Figures by the pool's name: sums over the pool's tenants on one host or on all hosts of a shard, and these tenants' need of
/// slots.
pub type Pools = BTreeMap<String, Summary>;

fn version() -> u32 {
    VERSION
}

fn is_version(reads: &u32) -> bool {
    *reads == VERSION
}

fn one() -> u64 {
    1
}

fn is_one(members: &u64) -> bool {
    *members == 1
}

/// The sums over several hosts' figures, by pool. Figures are added in the order of the hosts.
pub fn together<'a>(parts: impl Iterator<Item = &'a Pools>) -> BTreeMap<&'a str, Summary> {
    let mut sums: BTreeMap<&str, Summary> = BTreeMap::new();
    for (name, summary) in parts.flatten() {
        sums.entry(name).or_default().add(summary);
    }
    sums
}

/// Upper bound on the bytes that a host receives from etcd in a period in which values with these lengths (in bytes) are
/// written. Values come in base64, each with some bytes around it; the answers to the host's own writes are included.
pub fn received_bytes(values: impl IntoIterator<Item = usize>) -> usize {
    ANSWERS_BYTES + values.into_iter().map(|length| 4 * length.div_ceil(3) + AROUND_VALUE_BYTES).sum::<usize>()
}

/// The error that a record cannot be written because it has too many pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{pools} pools with slots are more than the {most} that a report may have; set slots = \"none\" for pools that hosts do not share"
)]
pub struct TooLarge {
    /// Number of pools of the record.
    pub pools: usize,
    /// The most pools allowed: [`MAX_POOLS`] for a host, [`MAX_SUM_POOLS`] for a shard.
    pub most: usize,
}

/// The reason why a text cannot be read as a record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// The text is longer than any record.
    #[error("is {bytes} bytes long, more than the {most} of any such record")]
    TooLong {
        /// Length of the text, in bytes.
        bytes: usize,
        /// The longest text allowed, in bytes: [`MAX_RECORD_BYTES`] for a host, [`MAX_SUM_BYTES`] for a shard.
        most: usize,
    },
    /// The record is from another version of the program.
    #[error(
        "is in format {version}, and this host reads format {VERSION}; run the same version of Evenkeel on all hosts"
    )]
    OtherVersion {
        /// The format version of the record.
        version: u32,
    },
    /// The text is no record, for this reason.
    #[error("is no record: {0}")]
    Corrupt(String),
}

/// The fields of a record that have the same meaning in all versions of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Header {
    /// Version of the record's format.
    pub v: u32,
    /// The oldest version whose readers read the record correctly; `None` means that only readers of version `v` do.
    #[serde(default)]
    pub reads: Option<u32>,
    /// True if the host is leaving the cluster.
    #[serde(default)]
    pub leaving: bool,
    /// Number of members whose figures the record sums up.
    #[serde(default = "one")]
    pub members: u64,
}

impl Header {
    /// The header of a record that no reader of these versions can read; `None` of any other text.
    pub fn of_other_version(text: &[u8], versions: &RangeInclusive<u32>) -> Option<Self> {
        if text.len() > MAX_SUM_BYTES {
            return None;
        }
        let header = match serde_json::from_slice::<Self>(text) {
            Ok(header) => header,
            // A member all the same.
            Err(_) => serde_json::from_slice::<Version>(text).ok()?.header(),
        };
        let members = header.members.clamp(1, MAX_MEMBERS);
        (!header.is_for(versions)).then_some(Self { members, ..header })
    }

    /// True if a reader of these versions reads the record, if only to find out that it is corrupt.
    fn is_for(&self, versions: &RangeInclusive<u32>) -> bool {
        let newest = *versions.end();
        let says_so = self.v > newest && self.reads.is_some_and(|oldest| (1..=newest).contains(&oldest));
        self.v == 0 || versions.contains(&self.v) || says_so
    }
}

#[derive(Deserialize)]
struct Version {
    v: u32,
    #[serde(default)]
    reads: Option<u32>,
}

impl Version {
    fn header(&self) -> Header {
        Header { v: self.v, reads: self.reads, leaving: false, members: 1 }
    }
}

impl Record {
    /// The record as text, at most [`MAX_RECORD_BYTES`] long, or [`MAX_SUM_BYTES`] if it is that of a shard, with at most
    /// [`MAX_TOTALS`] or [`MAX_SUM_TOTALS`] totals. Figures are rounded to five digits. Each host decides by the rounded records,
    /// its own included, so that all hosts decide by the same figures. Bounds on parts of totals are rounded up.
    ///
    /// # Errors
    /// If the record has too many pools.
    pub fn text(&self) -> Result<String, TooLarge> {
        let (most, _) = self.most();
        if self.pools.len() > most {
            return Err(TooLarge { pools: self.pools.len(), most });
        }
        let mut rounded = self.clone();
        let figures = rounded.pools.values_mut().flat_map(Summary::figures);
        figures.for_each(|figure| *figure = self::rounded(*figure));
        for sums in rounded.totals.values_mut().flat_map(BTreeMap::values_mut).flatten() {
            let lines = &mut sums.lines;
            for figure in [&mut lines.need, &mut lines.throttled, &mut lines.lack, &mut lines.floor] {
                *figure = self::rounded(*figure);
            }
            for bound in [&mut lines.claim, &mut lines.safe, &mut sums.reserved] {
                *bound = rounded_up(*bound);
            }
        }
        // Maps with text keys and finite numbers do not fail.
        Ok(serde_json::to_string(&rounded).unwrap_or_default())
    }

    /// The versions whose records this program reads. It also reads records of newer versions whose [`Header::reads`] allows it.
    pub fn versions() -> RangeInclusive<u32> {
        OLDEST..=VERSION
    }

    /// Reads a record.
    ///
    /// # Errors
    /// The reason why the text is no valid record. No part of such a text may be used, except its [`Header`].
    pub fn parse(text: &[u8]) -> Result<Self, Unreadable> {
        Self::parse_as(text, &Self::versions())
    }

    /// Reads a record as a reader of these versions does.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn parse_as(text: &[u8], versions: &RangeInclusive<u32>) -> Result<Self, Unreadable> {
        let too_long = |most: usize| Unreadable::TooLong { bytes: text.len(), most };
        if text.len() > MAX_SUM_BYTES {
            return Err(too_long(MAX_SUM_BYTES));
        }
        let corrupt = |error: serde_json::Error| Unreadable::Corrupt(error.to_string());
        let header = serde_json::from_slice::<Version>(text).map_err(corrupt)?.header();
        if !header.is_for(versions) {
            return Err(Unreadable::OtherVersion { version: header.v });
        }
        let record: Self = serde_json::from_slice(text).map_err(corrupt)?;
        let (_, most) = record.most();
        if text.len() > most {
            return Err(too_long(most));
        }
        match record.fault() {
            Some(fault) => Err(Unreadable::Corrupt(fault)),
            None => Ok(Self { v: VERSION, reads: READS, ..record }),
        }
    }

    /// True if the figures are such as one host reports, which knows no sums: with those of many it could claim all totals.
    pub fn is_of_one_host(&self) -> bool {
        let mut sums = self.totals.values().flat_map(BTreeMap::values).flatten();
        self.members == 1 && sums.all(|sums| sums.members <= 1 && sums.reserved <= 0.0)
    }

    /// The most totals that this record may have. The sum of a shard of which one member is left has safe parts of the others.
    fn most_totals(&self) -> usize {
        if self.is_of_one_host() { MAX_TOTALS } else { MAX_SUM_TOTALS }
    }

    /// The most pools and the most bytes that this record may have.
    fn most(&self) -> (usize, usize) {
        if self.is_of_one_host() { (MAX_POOLS, MAX_RECORD_BYTES) } else { (MAX_SUM_POOLS, MAX_SUM_BYTES) }
    }

    fn fault(&self) -> Option<String> {
        if self.v == 0 {
            return Some("the record has format 0; formats begin with 1".into());
        }
        if self.bits > MAX_BITS {
            return Some(format!("the cluster has 2^{} shards, more than 2^{MAX_BITS}", self.bits));
        }
        if !(1..=MAX_MEMBERS).contains(&self.members) {
            return Some(format!("the record sums up {} members; allowed are 1 to {MAX_MEMBERS}", self.members));
        }
        let (most, _) = self.most();
        if self.pools.len() > most {
            return Some(format!("the record has {} pools, more than {most}", self.pools.len()));
        }
        if self.joined > self.period {
            return Some("the host joined after the period that the record is about".into());
        }
        let of_pools = self.pools.iter().find_map(|(name, pool)| {
            if name.is_empty() || name.len() > MAX_NAME {
                return Some(format!("a pool's name has {} bytes; allowed are 1 to {MAX_NAME}", name.len()));
            }
            let wrong = pool.clone().figures().find(|figure| !(0.0..=MAX_FIGURE).contains(*figure)).copied();
            wrong.map(|figure| format!("pool {name:?}: {figure} is not from 0 to {MAX_FIGURE:e}"))
        });
        of_pools.or_else(|| self.fault_of_totals())
    }

    fn fault_of_totals(&self) -> Option<String> {
        let (number, most) = (self.totals.values().map(BTreeMap::len).sum::<usize>(), self.most_totals());
        if number > most {
            return Some(format!("the record has {number} totals, more than {most}"));
        }
        let mut tenants = self.totals.iter().flat_map(|(pool, tenants)| tenants.iter().map(move |of| (pool, of)));
        tenants.find_map(|(pool, (tenant, units))| {
            let is_usable = |name: &str, longest: usize| !name.is_empty() && name.len() <= longest;
            if !is_usable(pool, MAX_NAME) || !is_usable(tenant, MAX_TENANT_NAME) {
                let (of_pool, of_tenant) = (pool.len(), tenant.len());
                return Some(format!(
                    "the names of a total's pool and tenant have {of_pool} and {of_tenant} bytes; allowed are 1 to \
                     {MAX_NAME} and 1 to {MAX_TENANT_NAME}"
                ));
            }
            units.iter().find_map(|Sums { members, lines, reserved }| {
                if *members > MAX_MEMBERS {
                    return Some(format!("tenant {tenant:?}: a total of {members} members, more than {MAX_MEMBERS}"));
                }
                // One huge figure would leave a rest in the sums when it is taken off again.
                if !(0.0..=MAX_MEMBERS as f64).contains(reserved) {
                    return Some(format!("tenant {tenant:?}: reserved is {reserved}; 0 to {MAX_MEMBERS} fit"));
                }
                if !lines.is_valid_of((*members).max(1)) {
                    return Some(format!("tenant {tenant:?}: {lines:?} cannot be of {members} members"));
                }
                let Line { need, throttled, lack, floor, claim, safe, .. } = lines;
                let figures = [*need, *throttled, *lack, *floor, *claim, *safe, *reserved];
                let wrong = figures.into_iter().find(|figure| !(0.0..=MAX_FIGURE).contains(figure));
                wrong.map(|figure| format!("tenant {tenant:?}: {figure} is not from 0 to {MAX_FIGURE:e}"))
            })
        })
    }
}

/// A figure rounded to [`DIGITS`] digits and limited to the range from 0 to [`MAX_FIGURE`]; NaN becomes 0.
fn rounded(figure: f64) -> f64 {
    let bounded = if figure.is_nan() { 0.0 } else { figure.clamp(0.0, MAX_FIGURE) };
    format!("{bounded:.*e}", DIGITS - 1).parse().unwrap_or(bounded)
}

/// Like [`rounded`], but not less than `figure` unless the range ends.
fn rounded_up(figure: f64) -> f64 {
    let near = rounded(figure);
    if near >= figure || figure.is_nan() {
        return near;
    }
    // One more in the last of the digits.
    let unit = 10.0_f64.powi(figure.log10().floor() as i32 - (DIGITS as i32 - 1));
    rounded(near + unit)
}
