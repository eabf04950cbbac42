//! The performance targets of Evenkeel relative to other servers, computed from a comparison's results.

use serde::Serialize;

use super::{Case, Results};
use crate::check::figures::Spread;

/// A performance target: a figure of Evenkeel divided by that of another server, with a bound.
#[derive(Debug, Serialize)]
pub(crate) struct Target {
    /// Name of the target: case, figure and the compared servers.
    pub(crate) name: String,
    /// Measured value; `None` if a measurement for it is missing.
    pub(crate) measured: Option<Spread>,
    /// Bound on the median of the measured value.
    pub(crate) bound: f64,
    /// True if `bound` is the lowest allowed value, false if it is the highest.
    pub(crate) at_least: bool,
    /// Unit of `measured` and `bound`.
    pub(crate) unit: &'static str,
}

impl Target {
    /// True if the median meets the bound; `None` without a measured value.
    pub(crate) fn met(&self) -> Option<bool> {
        let median = self.measured?.median;
        Some(if self.at_least { median >= self.bound } else { median <= self.bound })
    }
}

/// Every target of the comparison with nbdkit and qemu-nbd, in the order of the cases.
pub(crate) fn all(results: &Results) -> Vec<Target> {
    let mut targets = Vec::new();
    let mut add = |name: &str, measured: Option<Spread>, at_least: bool, bound: f64, unit: &'static str| {
        targets.push(Target { name: name.to_owned(), measured, bound, at_least, unit });
    };
    let iops = |case: &str, peer: &str| {
        let [ours, theirs] = ["evenkeel", peer].map(|s| results.column(case, s, |r| r.iops));
        Spread::of_ratio(&ours, &theirs)
    };
    for (depth, nbdkit, qemu) in [("qd32x1", 4.0, 5.0), ("qd32x4", 3.0, 5.0)] {
        let unix = format!("unix-4k-read-{depth}");
        add(&format!("{unix}: IOPS / nbdkit memory"), iops(&unix, "nbdkit"), true, nbdkit, "x");
        add(&format!("{unix}: IOPS / qemu-nbd null-co"), iops(&unix, "qemu-nbd"), true, qemu, "x");
        for peer in ["nbdkit", "qemu-nbd"] {
            let tcp = format!("tcp-4k-read-{depth}");
            let bound = iops(&unix, peer).map_or(f64::NAN, |unix| unix.median * 2.0 / 3.0);
            let measured = iops(&tcp, peer).filter(|_| bound.is_finite());
            add(&format!("{tcp}: IOPS / {peer}, two thirds of the same over Unix"), measured, true, bound, "x");
        }
        let [ours, theirs] = ["evenkeel", "nbdkit"].map(|s| results.column(&unix, s, |r| r.cpu_us_per_io));
        add(&format!("{unix}: server CPU per I/O / nbdkit memory"), Spread::of_ratio(&ours, &theirs), false, 0.2, "x");
    }
    let [ours, theirs] = ["evenkeel", "qemu-nbd"].map(|s| results.column("unix-4k-read-qd1", s, |r| r.p50_us));
    add("unix-4k-read-qd1: p50 / qemu-nbd null-co", Spread::of_ratio(&ours, &theirs), false, 1.0, "x");
    let sequential = "unix-128k-sequential";
    let best = ["nbdkit", "qemu-nbd"].into_iter().filter_map(|peer| iops(sequential, peer));
    let best = best.min_by(|a, b| a.median.total_cmp(&b.median));
    add(&format!("{sequential}: bytes/s / best peer"), best, true, 1.0, "x");
    add("file-4k-read-qd32: IOPS / fio io_uring on the same file", iops("file-4k-read-qd32", "fio"), true, 0.9, "x");

    let tls = |peer: &str, case: &str| {
        let [ours, theirs] = ["evenkeel-tls", peer].map(|s| results.column(case, s, |r| r.iops));
        Spread::of_ratio(&ours, &theirs)
    };
    let (plain, secure) = ("unix-4k-read-certificates", "tls-128k-sequential");
    add(&format!("{plain}: IOPS with certificates / without"), tls("evenkeel", plain), true, 0.99, "x");
    add(&format!("{secure}: bytes/s / nbdkit"), tls("nbdkit", secure), true, 1.0, "x");

    let cost = |case: &str| {
        let on = results.column(case, "evenkeel", |r| r.cpu_us_per_io);
        let off = results.column(case, "evenkeel-noqos", |r| r.cpu_us_per_io);
        Spread::of(on.iter().zip(&off).map(|(on, off)| on - off))
    };
    for case in ["unix-4k-read-qd32x1", "unix-4k-read-qd32x4"] {
        add(&format!("{case}: CPU of QoS per I/O"), cost(case), false, 0.15, "us");
        add(&format!("{case}: IOPS with QoS / without"), iops(case, "evenkeel-noqos"), true, 0.85, "x");
    }
    add("file-4k-read-qd32: IOPS with QoS / without", iops("file-4k-read-qd32", "evenkeel-noqos"), true, 0.97, "x");
    targets
}

/// The targets of a comparison with a baseline, another binary of Evenkeel: requests and their processor time may be worse by at
/// most 1 %; the throughput of requests that the server divides, by at most 2 %.
pub(crate) fn against_baseline(results: &Results, cases: &[Case]) -> Vec<Target> {
    /// A figure: its name, its value in a run, true if the bound is the lowest allowed value, and the bound.
    type Figure = (&'static str, fn(&super::Run) -> f64, bool, f64);
    const EACH: [Figure; 2] =
        [("IOPS", |r| r.iops, true, 0.99), ("server CPU per I/O", |r| r.cpu_us_per_io, false, 1.01)];
    const DIVIDED: [Figure; 1] = [("bytes/s", |r| r.bytes_per_s, true, 0.98)];
    let target = |case: &str, (name, figure, at_least, bound): Figure| {
        let [now, before] = ["evenkeel", "baseline"].map(|server| results.column(case, server, figure));
        let measured = Spread::of_ratio(&now, &before);
        Target { name: format!("{case}: {name} / baseline"), measured, bound, at_least, unit: "x" }
    };
    let figures = |case: &Case| if case.divides() { &DIVIDED[..] } else { &EACH[..] };
    cases.iter().flat_map(|case| figures(case).iter().map(|figure| target(case.name, *figure))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{BASELINE_CASES, LARGE, RANDOM, Run};
    use super::*;

    fn run(case: &str, server: &str, round: u32, iops: f64, cpu: f64) -> Run {
        let (case, server) = (case.to_owned(), server.to_owned());
        Run {
            case,
            server,
            round,
            iops,
            bytes_per_s: iops * 4096.0,
            p50_us: 1.0,
            p99_us: 2.0,
            cpu_us_per_io: cpu,
            server_busy: 1.0,
            memory_ns: 1.0,
        }
    }

    #[test]
    fn targets_are_judged_by_medians_and_what_did_not_run_is_not_judged() {
        let case = "unix-4k-read-qd32x1";
        let mut results = Results::default();
        for (round, factor) in [(1, 3.0), (2, 4.5), (3, 4.5)] {
            results.runs.push(run(case, "evenkeel", round, factor * 100.0, 0.5));
            results.runs.push(run(case, "nbdkit", round, 100.0, 5.0));
        }
        let targets = all(&results);
        let find = |name: &str| targets.iter().find(|t| t.name == name).unwrap();
        let first = find("unix-4k-read-qd32x1: IOPS / nbdkit memory");
        assert_eq!(first.met(), Some(true));
        assert_eq!(first.measured.unwrap().min, 3.0);
        assert_eq!(find("unix-4k-read-qd32x1: server CPU per I/O / nbdkit memory").met(), Some(true));
        assert_eq!(find("unix-4k-read-qd32x1: IOPS / qemu-nbd null-co").met(), None);
        results.runs.push(run(case, "baseline", 1, 300.0, 0.4));
        let met: Vec<_> =
            against_baseline(&results, &[Case { name: case, ..RANDOM }]).iter().map(Target::met).collect();
        assert_eq!(met, [Some(true), Some(false)], "as fast, for more processor time");
    }

    #[test]
    fn divided_requests_are_judged_by_their_throughput() {
        let case = Case { name: "large", ..LARGE };
        let mut results = Results::default();
        results.runs.push(run(case.name, "evenkeel", 1, 97.0, 2.0));
        results.runs.push(run(case.name, "baseline", 1, 100.0, 1.0));
        let targets = against_baseline(&results, &[case]);
        assert_eq!(targets.iter().map(Target::met).collect::<Vec<_>>(), [Some(false)]);
        results.runs.push(run(case.name, "evenkeel", 2, 99.5, 2.0));
        results.runs.push(run(case.name, "baseline", 2, 100.0, 1.0));
        assert_eq!(against_baseline(&results, &[case])[0].met(), Some(true), "a median of 0.9825");
        let divided = BASELINE_CASES.iter().filter(|case| case.divides()).count();
        assert_eq!((divided, against_baseline(&results, &BASELINE_CASES).len()), (8, 8 + 2 * 6));
    }
}
