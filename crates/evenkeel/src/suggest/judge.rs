//! The policy that follows from a device's figures: a latency target between unloaded and loaded, and a limit or none.

use anyhow::{Context, ensure};
use evenkeel_policy::figures::{count, milliseconds};
use evenkeel_policy::units::Duration;
use serde::Serialize;

use super::Cell;

/// Part of the best throughput below which the throughput with most requests in flight counts as a loss by overload.
const OVERLOADED: f64 = 0.9;
/// Ratio of the loaded p99 to the unloaded one below which requests hardly queue in the device.
const HARDLY_QUEUES: f64 = 2.0;
/// Loads whose requests differ in size by more than this factor cannot be compared.
const SIZES_APART: f64 = 2.0;

/// Figures of a device, and the policy that follows from them.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Suggestion {
    /// The device or the history from which the figures come, in words.
    pub(super) source: String,
    /// Throughput and latency by requests in flight.
    pub(super) cells: Vec<Cell>,
    pub(super) unloaded_p50_ms: f64,
    pub(super) unloaded_p99_ms: f64,
    pub(super) loaded_p99_ms: f64,
    /// Latency target of the policy, for p99 of reads.
    pub(super) target_ms: f64,
    /// Limit of the policy; `None` = no limit.
    pub(super) limit_iops: Option<u64>,
    /// Doubts about the figures.
    pub(super) notes: Vec<String>,
    /// The policy in TOML, with the reasons as comments.
    pub(super) policy: String,
}

/// The suggestion for a pool with these figures. Of several sizes the smallest decides.
///
/// # Errors
/// Figures of fewer than two numbers of requests in flight, or of requests of different sizes.
pub(super) fn of(source: &str, pool: &str, cells: Vec<Cell>) -> anyhow::Result<Suggestion> {
    let size = cells.iter().map(|cell| cell.size_bytes).min();
    let mut of_size: Vec<&Cell> = cells.iter().filter(|cell| Some(cell.size_bytes) == size).collect();
    of_size.sort_by_key(|cell| cell.in_flight);
    let too_few = || {
        format!(
            "{source} has figures of one load only, and a target lies between light and heavy load; measure the device with --device PATH, or look further back with --for"
        )
    };
    ensure!(of_size.len() >= 2, too_few());
    let (&first, &last) = of_size.first().zip(of_size.last()).with_context(too_few)?;
    let sizes = of_size.iter().filter(|cell| cell.iops > 0.0).map(|cell| cell.bytes_per_s / cell.iops);
    let (small, large) = sizes.fold((f64::MAX, 0.0_f64), |(small, large), size| (small.min(size), large.max(size)));
    ensure!(
        large <= SIZES_APART * small,
        "{source} has requests of {} bytes under one load and of {} bytes under another, which cannot be compared; measure \
         the device with --device PATH, or choose a time with --for in which requests are alike",
        count(small),
        count(large)
    );
    let best = of_size.iter().map(|cell| cell.iops).fold(0.0, f64::max);
    let most_bytes = of_size.iter().map(|cell| cell.bytes_per_s).fold(0.0, f64::max);
    let enough = of_size.iter().copied().find(|cell| cell.iops >= OVERLOADED * best).unwrap_or(last);
    let (unloaded, loaded) = (first.p99_ms, last.p99_ms);
    let target = rounded(Duration::from_nanos(((unloaded * loaded).sqrt() * 1e6) as u64));
    // Larger requests take more time: both rates fall where the device is overloaded.
    let is_overloaded = last.iops < OVERLOADED * best && last.bytes_per_s < OVERLOADED * most_bytes;
    let limit_iops = is_overloaded.then(|| two_digits(best.max(1.0)) as u64);
    let mut notes = Vec::new();
    if loaded < HARDLY_QUEUES * unloaded {
        notes.push(format!(
            "requests hardly queue in the device with {} in flight: the target throttles under heavier load only",
            last.in_flight
        ));
    }
    let at = |cell: &Cell| format!("{} in flight", cell.in_flight);
    let why = match limit_iops {
        Some(_) => format!(
            "With {} the device gives {} IOPS, less than the {} IOPS with fewer: this limit keeps it from overload.",
            at(last),
            count(last.iops),
            count(best)
        ),
        None => format!(
            "No limit: throughput does not fall with more in flight ({} IOPS with {}, near the most from {} on), and admission\n# control bounds the requests in flight.",
            count(last.iops),
            at(last),
            at(enough)
        ),
    };
    let limit = limit_iops.map_or_else(String::new, |iops| format!("limit = {{ iops = {iops} }}\n"));
    let policy = format!(
        "# A policy to start with, from {source}.\n[pools.{}]\n# 99 % of reads take at most {} with {}, {} with {}; the target is their geometric mean.\n\
         latency = {{ target = \"{target}\", percentile = 99, of = \"reads\" }}\n# {why}\n{limit}",
        key(pool),
        milliseconds(unloaded),
        at(first),
        milliseconds(loaded),
        at(last)
    );
    Ok(Suggestion {
        source: source.to_owned(),
        unloaded_p50_ms: first.p50_ms,
        unloaded_p99_ms: unloaded,
        loaded_p99_ms: loaded,
        target_ms: target.as_nanos() as f64 / 1e6,
        limit_iops,
        notes,
        policy,
        cells,
    })
}

/// A name as a key of TOML.
fn key(name: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.chars().all(bare) { name.to_owned() } else { format!("{name:?}") }
}

/// A number of at least 1 with its first two digits, the others 0.
fn two_digits(number: f64) -> f64 {
    let unit = 10_f64.powf((number.log10().floor() - 1.0).max(0.0));
    (number / unit).round() * unit
}

/// A time in whole microseconds with its first two digits, at least the smallest target, 10 us.
fn rounded(time: Duration) -> Duration {
    let micros = (time.as_nanos() as f64 / 1e3).max(10.0);
    Duration::from_micros(two_digits(micros) as u64)
}

#[cfg(test)]
mod tests {
    use evenkeel_policy::Config;

    use super::*;

    fn cell(in_flight: u64, iops: f64, p99_ms: f64) -> Cell {
        Cell { size_bytes: 4_096, in_flight, iops, bytes_per_s: iops * 4_096.0, p50_ms: p99_ms / 2.0, p99_ms }
    }

    fn pool(suggestion: &Suggestion, name: &str) -> evenkeel_policy::config::Pool {
        let config = Config::parse(&suggestion.policy, "policy").unwrap_or_else(|errors| panic!("{errors}"));
        config.pools[name].clone()
    }

    #[test]
    fn the_target_lies_between_unloaded_and_loaded_and_the_policy_is_valid() {
        for (unloaded, loaded) in [(0.1, 6.4), (0.013, 0.9), (5.0, 180.0), (0.5, 2.0), (900.0, 40_000.0)] {
            let large = Cell { size_bytes: 1 << 17, ..cell(64, 9.0, 1e6) };
            let cells = vec![cell(1, 1e4, unloaded), cell(4, 3e4, loaded / 3.0), cell(64, 9e4, loaded), large];
            let suggestion = of("a device", "main", cells).expect("enough");
            let latency = pool(&suggestion, "main").latency.expect("a target");
            let target = latency.target.as_nanos() as f64 / 1e6;
            assert!(unloaded < target && target < loaded, "{unloaded} {target} {loaded}");
            let mean = (unloaded * loaded).sqrt();
            assert!((target - mean).abs() <= 0.06 * mean, "{target} is not the geometric mean {mean}");
            assert_eq!((latency.percentile.to_string(), suggestion.limit_iops), ("p99".into(), None));
        }
    }

    #[test]
    fn a_device_that_loses_throughput_under_load_gets_a_limit() {
        let cells = |deep| vec![cell(1, 100.0, 8.0), cell(16, 187.0, 90.0), cell(64, deep, 900.0)];
        let overloaded = of("a disk", "vg1:a", cells(150.0)).expect("enough");
        assert_eq!(pool(&overloaded, "vg1:a").limit.iops, 190);
        assert!(overloaded.policy.contains("keeps it from overload"), "{}", overloaded.policy);
        let steady = of("a disk", "main", cells(180.0)).expect("enough");
        assert_eq!(pool(&steady, "main").limit.iops, 0);
        assert!(steady.policy.contains("near the most from 16 in flight on"), "{}", steady.policy);
    }

    #[test]
    fn larger_requests_under_load_are_no_overload() {
        let larger = |size: f64| Cell { bytes_per_s: 150.0 * size, ..cell(64, 150.0, 900.0) };
        let cells = |size| vec![cell(1, 100.0, 8.0), cell(16, 187.0, 90.0), larger(size)];
        let suggestion = of("a history", "main", cells(8_000.0)).expect("alike");
        assert_eq!(suggestion.limit_iops, None);
        let error = of("a history", "main", cells(9_000.0)).map(drop).unwrap_err().to_string();
        assert!(error.contains("cannot be compared") && error.contains("--device PATH"), "{error}");
    }

    #[test]
    fn one_load_is_not_enough_and_a_flat_device_is_doubtful() {
        let error = of("a history", "main", vec![cell(4, 9.0, 1.0)]).map(drop).unwrap_err().to_string();
        assert!(error.contains("--device PATH"), "{error}");
        let flat = of("a device", "main", vec![cell(1, 9.0, 1.0), cell(64, 500.0, 1.5)]).expect("enough");
        assert!(flat.notes[0].contains("hardly queue"), "{:?}", flat.notes);
    }
}
