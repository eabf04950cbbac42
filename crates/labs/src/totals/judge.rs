//! Judges readings of the servers' counters.

use std::time::Duration;

use super::SERVERS;

/// Length of a window in which the limit and the reservation must hold.
const WINDOW: Duration = Duration::from_secs(3);

/// The requests that each server has served for the tenant by a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    /// Time since the start of the lab.
    pub(super) at: Duration,
    pub(super) served: [u64; SERVERS.len()],
}

/// The readings from `after` on, counted from the first one.
pub(super) fn since(readings: &[Reading], after: Duration) -> &[Reading] {
    let Some(first) = readings.first() else { return readings };
    let skipped = readings.iter().position(|reading| reading.at >= first.at + after).unwrap_or(readings.len());
    &readings[skipped..]
}

/// Requests per second from the first to the last reading, of one server or of all.
pub(super) fn rate(readings: &[Reading], server: Option<usize>) -> f64 {
    let (Some(first), Some(last)) = (readings.first(), readings.last()) else { return 0.0 };
    let served = |reading: &Reading| match server {
        Some(server) => reading.served[server],
        None => reading.served.iter().sum(),
    };
    let seconds = (last.at - first.at).as_secs_f64();
    if seconds > 0.0 { served(last).saturating_sub(served(first)) as f64 / seconds } else { 0.0 }
}

/// The rate of all servers together in each window; windows may be a little longer on a busy machine.
pub(super) fn windows(readings: &[Reading]) -> Vec<f64> {
    let of = |from: usize| {
        let first = readings[from].at;
        let to = readings.iter().position(|reading| reading.at >= first + WINDOW)?;
        Some(rate(&readings[from..=to], None))
    };
    (0..readings.len()).filter_map(of).collect()
}

/// The highest rate of all servers together in any window.
pub(super) fn largest(readings: &[Reading]) -> f64 {
    windows(readings).into_iter().fold(0.0, f64::max)
}

/// The part of the windows in which all servers together serve at least this rate; 0 without a window.
pub(super) fn part_with(windows: &[f64], least: f64) -> f64 {
    let with = windows.iter().filter(|rate| **rate >= least).count();
    if windows.is_empty() { 0.0 } else { with as f64 / windows.len() as f64 }
}

/// The rate of each server in each second.
pub(super) fn told(readings: &[Reading]) -> String {
    let of = |server: usize| {
        let seconds = readings.chunks(4).map(|second| format!("{:.0}", rate(second, Some(server))));
        format!("{}: {} IOPS", SERVERS[server], seconds.collect::<Vec<_>>().join(" "))
    };
    (0..SERVERS.len()).map(of).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_judged_by_the_sum_of_all_servers() {
        let reading = |(n, a, b): (u64, u64, u64)| Reading { at: Duration::from_secs(n), served: [a, b, 0] };
        let readings = [(0, 0, 0), (1, 100, 0), (2, 200, 0), (3, 300, 0), (4, 300, 900)].map(reading);
        assert_eq!((rate(&readings, Some(0)), rate(&readings, None)), (75.0, 300.0));
        // From 0 s to 3 s: 300 requests; from 1 s to 4 s: 200 and 900.
        let all = windows(&readings);
        assert_eq!((all.len(), all[0]), (2, 100.0));
        assert!((largest(&readings) - 1_100.0 / 3.0).abs() < 1e-9);
        assert_eq!([part_with(&all, 100.0), part_with(&all, 101.0), part_with(&all, 1e3)], [1.0, 0.5, 0.0]);
        assert_eq!(part_with(&[], 0.0), 0.0, "nothing was measured");
        assert_eq!(rate(since(&readings, Duration::from_secs(3)), None), 900.0);
        assert_eq!(rate(since(&readings, Duration::from_secs(9)), None), 0.0);
    }
}
