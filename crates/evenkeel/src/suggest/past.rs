//! Figures of a pool's device from a history: its seconds by the number of requests in flight.

use std::collections::BTreeSet;

use anyhow::bail;
use evenkeel_policy::history::{History, Series};

use super::{Cell, DEPTHS};
use crate::output::Usage;

/// Fewest seconds of a load that count.
const ENOUGH: usize = 10;

/// The series of whole pools, each with all of its devices.
fn pools(history: &History) -> impl Iterator<Item = &Series> {
    let series = history.steps.iter().flat_map(|step| &step.series);
    series.filter(|series| series.tenant.is_empty() && series.device.is_empty())
}

/// The pool to use: `named`, or the only one of the history.
///
/// # Errors
/// Several pools or none, or no requests of the pool that is named.
pub(super) fn pool(history: &History, named: Option<&str>) -> anyhow::Result<String> {
    if let Some(name) = named {
        if !pools(history).any(|series| series.pool == name) {
            bail!(
                "the history has no requests of a pool {name:?} in this time; leave out --pool to see which pools it has, or look further back with --for"
            );
        }
        return Ok(name.to_owned());
    }
    let names: BTreeSet<&str> = pools(history).map(|series| series.pool.as_str()).collect();
    let mut each = names.iter();
    match (each.next(), each.next()) {
        (Some(only), None) => Ok((*only).to_owned()),
        (None, _) => {
            bail!(
                "the history has no requests in this time; look further back with --for, or measure with --device PATH"
            )
        }
        _ => {
            let names: Vec<&str> = names.into_iter().collect();
            bail!(Usage(format!("the history has the pools {}: choose one with --pool", names.join(", "))))
        }
    }
}

/// The median; `None` of nothing.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// The nearest of [`DEPTHS`] on a logarithmic scale.
fn nearest(in_flight: f64) -> u64 {
    let distance = |depth: &u64| (in_flight.max(1.0) / *depth as f64).ln().abs();
    DEPTHS.into_iter().min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(1)
}

/// Medians of a pool's seconds, by requests in flight.
pub(super) fn cells(history: &History, pool: &str) -> Vec<Cell> {
    let of_pool: Vec<&Series> = pools(history).filter(|series| series.pool == pool).collect();
    let depth = |series: &Series| Some(nearest(series.in_flight?.mean));
    // One size for all, as the loads of a history differ little in it.
    let sizes: Vec<f64> = of_pool.iter().filter_map(|series| series.request_bytes).collect();
    let size_bytes = median(sizes).unwrap_or_default() as u64;
    let cell = |in_flight| {
        let is_loaded = |series: &&Series| depth(series) == Some(in_flight) && series.p99_ms.is_some();
        let seconds: Vec<&Series> = of_pool.iter().copied().filter(is_loaded).collect();
        let of = |figure: fn(&Series) -> Option<f64>| {
            let figures = seconds.iter().filter_map(|series| figure(series));
            median(figures.collect())
        };
        if seconds.len() < ENOUGH {
            return None;
        }
        Some(Cell {
            size_bytes,
            in_flight,
            iops: of(|series| Some(series.iops))?,
            bytes_per_s: of(|series| Some(series.bytes_per_s))?,
            p50_ms: of(|series| series.p50_ms)?,
            p99_ms: of(|series| series.p99_ms)?,
        })
    };
    DEPTHS.into_iter().filter_map(cell).collect()
}

#[cfg(test)]
mod tests {
    use evenkeel_policy::history::{Gauge, Step};

    use super::*;

    fn second(at_s: u64, pool: &str, in_flight: f64, p99_ms: f64) -> Step {
        let series = Series {
            pool: pool.into(),
            iops: 100.0 * in_flight,
            bytes_per_s: 4e5 * in_flight,
            request_bytes: Some(4_096.0),
            p50_ms: Some(p99_ms / 2.0),
            p99_ms: Some(p99_ms),
            in_flight: Some(Gauge { mean: in_flight, max: in_flight }),
            ..Series::default()
        };
        Step { at_s, seconds: 1, recorded_s: 1, series: vec![series] }
    }

    #[test]
    fn seconds_are_sorted_by_their_load() {
        let light = (0..20).map(|at| second(at, "main", 0.3, 1.0 + at as f64 / 100.0));
        let heavy = (20..31).map(|at| second(at, "main", 50.0, 9.0));
        // Too few to count.
        let medium = (31..36).map(|at| second(at, "main", 4.0, 3.0));
        let history = History { steps: light.chain(heavy).chain(medium).collect(), ..History::default() };
        let cells = cells(&history, &pool(&history, None).expect("one pool"));
        assert_eq!(cells.iter().map(|cell| cell.in_flight).collect::<Vec<_>>(), [1, 64]);
        assert_eq!((cells[0].p99_ms, cells[1].p99_ms, cells[1].iops), (1.1, 9.0, 5_000.0));
        assert_eq!((nearest(1.9), nearest(2.1), nearest(9.0), nearest(1e6)), (1, 4, 16, 64));
    }

    #[test]
    fn a_pool_must_be_chosen_among_several() {
        let steps = vec![second(0, "fast", 1.0, 1.0), second(1, "slow", 1.0, 1.0)];
        let history = History { steps, ..History::default() };
        let error = pool(&history, None).unwrap_err();
        assert!(error.is::<Usage>() && error.to_string().contains("fast, slow"), "{error}");
        assert_eq!(pool(&history, Some("slow")).expect("chosen"), "slow");
        let unknown = pool(&history, Some("slwo")).unwrap_err().to_string();
        assert!(unknown.contains("\"slwo\"") && unknown.contains("leave out --pool"), "{unknown}");
        assert!(pool(&History::default(), None).unwrap_err().to_string().contains("--device PATH"));
    }
}
