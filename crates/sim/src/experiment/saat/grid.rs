//! The fourteen groups of experiments of the SAAT paper. The paper gives the kinds of groups and the range of the throughput
//! targets; traces and targets of each group are chosen here.

use super::Traces;
use super::tenants::{TRACES, Trace};
use super::world::Tenant;

/// A group of experiments over which figures are averaged.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Name in results.
    pub name: String,
    /// The mean DAT (deviation of throughput from the guarantee) in the paper for this kind of group, in per cent: with plain
    /// limits, and with SAAT.
    pub paper: Option<(f64, f64)>,
    /// The group's experiments, each given by the tenants that share the device.
    pub cases: Vec<Vec<Tenant>>,
}

/// Traces of the tenant in the groups with one tenant; each group averages over all of them.
const ALONE: [&str; 5] = ["usr", "prn", "hm", "src", "web"];
/// Throughput targets of the groups with one tenant, in MB/s: one group for each.
const ALONE_MB_PER_S: [f64; 4] = [150.0, 175.0, 200.0, 220.0];
/// Traces of the two tenants in the groups that vary the target.
const TWO: [&str; 2] = ["prn", "src"];
/// Throughput targets of each of two tenants, in MB/s: one group for each.
const TWO_MB_PER_S: [f64; 3] = [150.0, 200.0, 250.0];
/// Traces of the two tenants in the groups that vary the traces: one group for each pair.
const PAIRS: [[&str; 2]; 4] = [["hm", "rsrch"], ["src", "stg"], ["ts", "web"], ["mds", "wdev"]];
/// Throughput target of each tenant in the groups of [`PAIRS`], in MB/s.
const PAIR_MB_PER_S: f64 = 200.0;
/// Traces of the tenants in the groups that vary the number of tenants: the first two, three or all four.
const MANY: [&str; 4] = ["ts", "mds", "wdev", "rsrch"];
/// Sum of the throughput targets of the tenants in the groups of [`MANY`], in MB/s.
const MANY_MB_PER_S: f64 = 400.0;

fn tenants(names: &[&str], mb_per_s: f64, traces: &Traces) -> Vec<Tenant> {
    let known = |name: &&str| TRACES.iter().find(|trace| trace.name == *name);
    let recorded = |trace: &Trace| traces.get(trace.name).cloned();
    let tenant = |trace: &Trace| Tenant { trace: *trace, recorded: recorded(trace), guaranteed: mb_per_s * 1e6 };
    names.iter().filter_map(known).map(tenant).collect()
}

/// All fourteen groups, in the paper's order. A tenant whose trace is in `traces` replays it; other tenants send generated
/// requests.
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
