//! The fourteen groups of experiments. The paper gives their kinds and the range of the targets; the rest is chosen here.

use super::Traces;
use super::tenants::{TRACES, Trace};
use super::world::Tenant;

/// A group of experiments whose figures are averaged.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Name in results.
    pub name: String,
    /// The mean DAT that the paper gives for this kind of group, in per cent: with today's limits, and with SAAT.
    pub paper: Option<(f64, f64)>,
    /// The group's experiments: for each, the tenants that share the device.
    pub cases: Vec<Vec<Tenant>>,
}

/// Groups with one tenant: its traces, and its targets in MB/s.
const ALONE: [&str; 5] = ["usr", "prn", "hm", "src", "web"];
const ALONE_MB_PER_S: [f64; 4] = [150.0, 175.0, 200.0, 220.0];
/// Groups with two tenants: their traces, and the target of each in MB/s.
const TWO: [&str; 2] = ["prn", "src"];
const TWO_MB_PER_S: [f64; 3] = [150.0, 200.0, 250.0];
/// Groups with a pair of tenants: their traces, and the target of each in MB/s.
const PAIRS: [[&str; 2]; 4] = [["hm", "rsrch"], ["src", "stg"], ["ts", "web"], ["mds", "wdev"]];
const PAIR_MB_PER_S: f64 = 200.0;
/// Groups with two, three and four tenants: their traces, and the sum of their targets in MB/s.
const MANY: [&str; 4] = ["ts", "mds", "wdev", "rsrch"];
const MANY_MB_PER_S: f64 = 400.0;

fn tenants(names: &[&str], mb_per_s: f64, traces: &Traces) -> Vec<Tenant> {
    let known = |name: &&str| TRACES.iter().find(|trace| trace.name == *name);
    let recorded = |trace: &Trace| traces.get(trace.name).cloned();
    let tenant = |trace: &Trace| Tenant { trace: *trace, recorded: recorded(trace), guaranteed: mb_per_s * 1e6 };
    names.iter().filter_map(known).map(tenant).collect()
}

/// All fourteen groups, in the paper's order; a tenant whose trace is recorded replays the record.
pub fn groups(traces: &Traces) -> Vec<Group> {
    let group = |name: String, cases: Vec<Vec<Tenant>>| Group { name, paper: None, cases };
    let alone = ALONE_MB_PER_S.map(|mb_per_s| {
        let cases = ALONE.iter().map(|name| tenants(&[name], mb_per_s, traces));
        group(format!("one tenant, {mb_per_s} MB/s"), cases.collect())
    });
    let two = TWO_MB_PER_S
        .map(|mb_per_s| group(format!("two tenants, {mb_per_s} MB/s each"), vec![tenants(&TWO, mb_per_s, traces)]));
    let pairs = PAIRS.map(|pair| {
        let name = format!("{} and {}, {PAIR_MB_PER_S} MB/s each", pair[0], pair[1]);
        group(name, vec![tenants(&pair, PAIR_MB_PER_S, traces)])
    });
    let many = (2..=MANY.len()).map(|n| Group {
        paper: (n == 4).then_some((3.91, 0.452)),
        ..group(
            format!("{n} tenants, {MANY_MB_PER_S} MB/s together"),
            vec![tenants(&MANY[..n], MANY_MB_PER_S / n as f64, traces)],
        )
    });
    alone.into_iter().chain(two).chain(pairs).chain(many).collect()
}
