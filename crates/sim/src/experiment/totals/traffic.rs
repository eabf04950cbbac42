//! The values that a member writes and reads in a period for one tenant, as the real ones: their bytes, and the time for reading
//! them.

use std::collections::BTreeMap;
use std::hint::black_box;

use evenkeel_control::cluster::totals::{Line, Sums};
use evenkeel_policy::cluster::{Cluster, Pools, READS, Record, VERSION, received_bytes};

/// The values that a member reads. Its own is the first one.
pub(super) struct Values {
    /// Of the members of its shard, which each report `reports` times in a period.
    near: Vec<String>,
    reports: f64,
    /// Of all shards, once in a period; none in a cluster that is not divided.
    sums: Vec<String>,
}

impl Values {
    /// The values in a cluster whose members have reported `lines`, with the default settings of shards of equal size.
    pub(super) fn new(lines: &[Line], reports: f64) -> Self {
        let bits = Cluster::default().sizes().bits(lines.len() as u64);
        let of_shard = lines.len().div_ceil(1_usize << bits).max(1);
        let near = lines.iter().take(of_shard).map(|line| text(bits, std::slice::from_ref(line))).collect();
        let sums = if bits > 0 { lines.chunks(of_shard).map(|lines| text(bits, lines)).collect() } else { Vec::new() };
        Self { near, reports, sums }
    }

    /// Number of bytes that the member sends and receives in a period.
    pub(super) fn bytes(&self) -> f64 {
        let answers = received_bytes([0_usize; 0]);
        let value = |text: &String| (received_bytes([text.len()]) - answers) as f64;
        let near: f64 = self.near.iter().map(value).sum();
        let sums: f64 = self.sums.iter().map(value).sum();
        let own = self.near.first().map_or(0.0, value);
        self.reports * (own + answers as f64 + near) + sums
    }

    /// Time by `clock`, whose unit is a nanosecond, for reading the values of a period, in milliseconds.
    pub(super) fn reading_ms(&self, clock: &dyn Fn() -> u64) -> f64 {
        let read = |texts: &[String]| {
            let begun = clock();
            for text in texts {
                let _ = black_box(Record::parse(black_box(text.as_bytes())));
            }
            clock().saturating_sub(begun) as f64 / 1e6
        };
        self.reports * read(&self.near) + read(&self.sums)
    }
}

/// The value of a member, or of a shard with these reports.
fn text(bits: u8, lines: &[Line]) -> String {
    let mut sums = Sums { members: lines.len() as u64, ..Sums::default() };
    lines.iter().for_each(|line| sums.lines.add(line));
    let units = [sums, Sums::default()];
    let (incarnation, period) = (1_795_329_373_123_456_789, 1_795_329_373);
    let record = Record {
        v: VERSION,
        reads: READS,
        incarnation,
        period,
        early: 0,
        joined: period - 1,
        period_us: 1_000_000,
        lease: 0,
        revision: if lines.len() > 1 { 123_456_789 } else { 0 },
        leaving: false,
        bits,
        members: sums.members,
        pools: Pools::new(),
        totals: BTreeMap::from([("main".to_owned(), BTreeMap::from([("db".to_owned(), units)]))]),
    };
    record.text().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn values(members: usize) -> Values {
        let line = Line { need: 2.5e-4, throttled: 2.5e-4, lack: 1e-5, floor: 1e-4, claim: 1.2e-4, safe: 1e-4 };
        Values::new(&vec![line; members], 1.5)
    }

    #[test]
    fn a_member_reads_its_shard_and_the_sums_of_all() {
        let (small, large) = (values(100), values(10_000));
        assert_eq!((small.near.len(), small.sums.len()), (100, 0));
        let (near, sums) = (large.near.len(), large.sums.len());
        assert!(near * sums >= 10_000 && near + sums < 300, "{near} members, {sums} shards");
        let mut all = [&small, &large].into_iter().flat_map(|values| values.near.iter().chain(&values.sums));
        assert!(all.all(|text| Record::parse(text.as_bytes()).is_ok()));
        // Values of 300 bytes or less, in base64 and with 400 bytes around each.
        let most = |reports: f64| 900.0 * reports;
        assert!(small.bytes() > 100.0 * 1.5 * 400.0 && small.bytes() < most(102.0 * 1.5), "{}", small.bytes());
        assert!(large.bytes() < most((near + 2) as f64 * 1.5 + sums as f64), "{}", large.bytes());
    }

    #[test]
    fn values_of_members_are_read_as_often_as_they_report() {
        let now = Cell::new(0_u64);
        let clock = || {
            now.set(now.get() + 1_000_000);
            now.get()
        };
        assert_eq!(values(10_000).reading_ms(&clock), 1.5 + 1.0);
        assert_eq!(values(3).reading_ms(&|| 7), 0.0);
    }
}
