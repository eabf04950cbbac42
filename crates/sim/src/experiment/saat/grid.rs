//! The fourteen groups. The paper says what kinds there are and in which range targets lie; the rest is chosen here.

use super::Traces;
use super::tenants::{TRACES, Trace};
use super::world::Tenant;

/// A group of experiments whose figures are averaged.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Name in results.
    pub name: String,
    /// The mean DAT in per cent that the paper gives for the kind of group: today's limits and SAAT's.
    pub paper: Option<(f64, f64)>,
    /// Experiments: those who share the device.
    pub cases: Vec<Vec<Tenant>>,
}

/// One tenant: these traces, and targets in MB/s.
const ALONE: [&str; 5] = ["usr", "prn", "hm", "src", "web"];
const ALONE_MB_PER_S: [f64; 4] = [150.0, 175.0, 200.0, 220.0];
/// Two tenants, each with the same target in MB/s.
const TWO: [&str; 2] = ["prn", "src"];
const TWO_MB_PER_S: [f64; 3] = [150.0, 200.0, 250.0];
/// Pairs of traces, and the target of each in MB/s.
const PAIRS: [[&str; 2]; 4] = [["hm", "rsrch"], ["src", "stg"], ["ts", "web"], ["mds", "wdev"]];
const PAIR_MB_PER_S: f64 = 200.0;
/// Two, three, four tenants share this target, in MB/s.
const MANY: [&str; 4] = ["ts", "mds", "wdev", "rsrch"];
const MANY_MB_PER_S: f64 = 400.0;

fn tenants(names: &[&str], mb_per_s: f64, traces: &Traces) -> Vec<Tenant> {
    let known = |name: &&str| TRACES.iter().find(|trace| trace.name == *name);
    let recorded = |trace: &Trace| traces.get(trace.name).cloned();
    let tenant = |trace: &Trace| Tenant { trace: *trace, recorded: recorded(trace), guaranteed: mb_per_s * 1e6 };
    names.iter().filter_map(known).map(tenant).collect()
}

/// All fourteen, in the paper's order; who has a recorded trace replays it.
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
