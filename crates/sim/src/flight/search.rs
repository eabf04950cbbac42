//! The search of a device's parameters: the error of a simulated run against the recording, and a descent along the parameters.

use std::ops::Range;

use evenkeel_control::Duration;
use evenkeel_model::device::DeviceParams;

use super::device::{Admitted, Drive, Served};
use super::family::{Knob, Use};
use super::figures::{kind_name, place_of};

/// Requests above this size are compared for themselves.
const SMALL: u32 = 16 << 10;
/// Fewer requests than this are not compared.
const FEWEST: usize = 30;
/// Fewer requests than this have no 99th percentile.
const FEWEST_OF_P99: usize = 200;
/// Error of a device that does not come to an end.
const HOPELESS: f64 = 10.0;
/// A run of a device ends after this multiple of the recorded time, plus a second.
const LONGEST: u64 = 4;

/// Requests that are compared: those of one kind, one class of sizes, and little or much load.
struct Cell {
    requests: Vec<u32>,
    /// The recorded quantiles of the device latency, in nanoseconds, each with its weight in the error.
    quantiles: Vec<(f64, f64, f64)>,
}

/// A recorded sample, ready to be compared with simulated runs.
pub(super) struct Sample {
    drive: Drive,
    requests: Vec<Admitted>,
    starts: Vec<usize>,
    cells: Vec<Cell>,
    longest: Duration,
}

/// A figure of the recording beside that of the simulation.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Compared {
    /// `throughput`, or a kind of requests with a percentile, such as `reads p99`.
    pub what: String,
    /// As recorded: requests per second, or milliseconds.
    pub recorded: f64,
    /// As simulated.
    pub simulated: f64,
}

impl Compared {
    /// The difference as a share of the recorded figure.
    pub fn off(&self) -> f64 {
        if self.recorded > 0.0 { self.simulated / self.recorded - 1.0 } else { 0.0 }
    }
}

fn quantile(values: &mut [u64], q: f64) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    let place = ((values.len() as f64 * q).ceil() as usize).clamp(1, values.len()) - 1;
    *values.select_nth_unstable(place).1 as f64
}

impl Sample {
    /// A sample of at most `most` requests of the range `of` of `all`, in `parts` runs.
    pub(super) fn new(all: &[Admitted], of: Range<usize>, most: usize, parts: usize) -> Self {
        let (starts, requests) = super::device::sample(all, of, most, parts);
        let mut found: Vec<u64> = requests.iter().map(|request| u64::from(request.found)).collect();
        let middle = quantile(&mut found, 0.5);
        let mut cells: Vec<Vec<u32>> = vec![Vec::new(); 16];
        for (number, request) in (0u32..).zip(&requests).filter(|(_, request)| !request.failed) {
            let (large, loaded) = (request.io.bytes > SMALL, f64::from(request.found) > middle);
            cells[place_of(request.kind) * 4 + usize::from(large) * 2 + usize::from(loaded)].push(number);
        }
        let cells = cells.into_iter().filter(|cell| cell.len() >= FEWEST).map(|cell| {
            let mut times: Vec<u64> = cell.iter().map(|&number| requests[number as usize].device_ns).collect();
            let tail = if cell.len() >= FEWEST_OF_P99 { 0.5 } else { 0.0 };
            let weights = [(0.1, 0.5), (0.25, 0.5), (0.5, 0.5), (0.75, 0.5), (0.9, 0.5), (0.99, tail)]
                .into_iter()
                .filter(|(_, weight)| *weight > 0.0);
            let quantiles = weights.map(|(q, weight)| (q, quantile(&mut times, q).max(1.0), weight)).collect();
            Cell { requests: cell, quantiles }
        });
        let cells = cells.collect();
        let last = requests.iter().map(|request| request.at_ns.saturating_add(request.device_ns)).max().unwrap_or(0);
        let span = last.saturating_sub(requests.first().map_or(0, |first| first.at_ns));
        let longest = Duration::from_nanos(span.saturating_mul(LONGEST).saturating_add(1_000_000_000));
        Self { drive: Drive::new(&requests), requests, starts, cells, longest }
    }

    /// True if the recording has requests that depend on a parameter of this use.
    pub(super) fn shows(&self, of: Use) -> bool {
        let is_of = |request: &Admitted| match of {
            Use::Any => true,
            Use::Reads => place_of(request.kind) == 0,
            Use::Writes => matches!(place_of(request.kind), 1 | 2),
        };
        self.requests.iter().filter(|request| is_of(request) && !request.failed).count() >= FEWEST
    }

    fn run(&self, device: &DeviceParams, seed: u64) -> Option<Served> {
        device.validate().ok()?;
        self.drive.run(self.requests.len(), device, self.longest, seed)
    }

    /// Requests per second over the runs, from their admissions and device latencies.
    fn rate(&self, of: impl Fn(usize) -> (u64, u64)) -> f64 {
        let ends = self.starts.iter().skip(1).copied().chain([self.requests.len()]);
        let span = |(&from, until): (&usize, usize)| {
            let first = (from..until).map(|number| of(number).0).min().unwrap_or(0);
            let end = |(at, device): (u64, u64)| at.saturating_add(device);
            let last = (from..until).map(|number| end(of(number))).max().unwrap_or(0);
            last.saturating_sub(first)
        };
        let spans = self.starts.iter().zip(ends).map(span).fold(0, u64::saturating_add);
        self.requests.len() as f64 * 1e9 / spans.max(1) as f64
    }

    fn rates(&self, served: &Served) -> (f64, f64) {
        let recorded = self.rate(|number| (self.requests[number].at_ns, self.requests[number].device_ns));
        (recorded, self.rate(|number| (served.at_ns[number], served.device_ns[number])))
    }

    /// The differences between logarithms of simulated and recorded throughput and quantiles, weighted: the sum of their squares
    /// is a weighted mean of squares. `None` if the device does not come to an end.
    pub(super) fn residuals(&self, device: &DeviceParams, seed: u64) -> Option<Vec<f64>> {
        let served = self.run(device, seed)?;
        let (recorded, simulated) = self.rates(&served);
        let mut all = vec![(2.0, libm::log(simulated / recorded))];
        for cell in &self.cells {
            let mut times: Vec<u64> = cell.requests.iter().map(|&number| served.device_ns[number as usize]).collect();
            for &(q, recorded, weight) in &cell.quantiles {
                all.push((weight, libm::log(quantile(&mut times, q).max(1.0) / recorded)));
            }
        }
        let weights: f64 = all.iter().map(|(weight, _)| weight).sum();
        Some(all.into_iter().map(|(weight, off)| off * libm::sqrt(weight / weights)).collect())
    }

    /// The error of a device: the weighted root mean square of [`Self::residuals`]. Squares, because a search along one parameter
    /// after the other needs a smooth error.
    pub(super) fn error(&self, device: &DeviceParams, seed: u64) -> f64 {
        self.residuals(device, seed).map_or(HOPELESS, |all| libm::sqrt(all.iter().map(|off| off * off).sum()))
    }

    /// Throughput, and by kind the median and the 99th percentile of the device latency, recorded and simulated; empty if the
    /// device does not come to an end.
    pub(super) fn compare(&self, device: &DeviceParams, seed: u64) -> Vec<Compared> {
        let Some(served) = self.run(device, seed) else { return Vec::new() };
        let (recorded, simulated) = self.rates(&served);
        let mut all = vec![Compared { what: "throughput".into(), recorded, simulated }];
        for place in 0..4 {
            let all_served = || self.requests.iter().zip(&served.device_ns);
            let own = || all_served().filter(|(request, _)| place_of(request.kind) == place && !request.failed);
            let mut before: Vec<u64> = own().map(|(request, _)| request.device_ns).collect();
            let mut after: Vec<u64> = own().map(|(_, &ns)| ns).collect();
            for (q, name, least) in [(0.5, "p50", FEWEST), (0.99, "p99", FEWEST_OF_P99)] {
                if before.len() >= least {
                    let what = format!("{} {name}", kind_name(place));
                    let (recorded, simulated) = (quantile(&mut before, q) / 1e6, quantile(&mut after, q) / 1e6);
                    all.push(Compared { what, recorded, simulated });
                }
            }
        }
        all
    }
}

/// The bounds of a search.
#[derive(Clone, Copy)]
pub(super) struct Effort {
    /// Factors by which a parameter is changed, one after the other.
    pub(super) steps: &'static [f64],
    /// The most runs.
    pub(super) runs: usize,
}

/// Searches the parameters `knobs` for the least `error` from `start` on (Hooke and Jeeves 1961): each parameter is changed in
/// turn, by a factor up or down; what has helped in a round is done once more as a whole; when nothing helps the factor becomes
/// smaller. Returns the best device and its error.
pub(super) fn descend(
    start: &DeviceParams,
    knobs: &[&Knob],
    effort: Effort,
    error: &mut dyn FnMut(&DeviceParams) -> f64,
) -> (DeviceParams, f64) {
    let (mut best, mut least, mut runs) = (start.clone(), error(start), 1);
    for &step in effort.steps {
        loop {
            let before = best.clone();
            for knob in knobs {
                for factor in [step, 1.0 / step] {
                    if runs >= effort.runs {
                        return (best, least);
                    }
                    let mut next = best.clone();
                    (knob.set)(&mut next, (knob.get)(&best) * factor);
                    if next == best {
                        continue;
                    }
                    runs += 1;
                    let found = error(&next);
                    if found < least {
                        (best, least) = (next, found);
                        break;
                    }
                }
            }
            if best == before {
                break;
            }
            let mut further = best.clone();
            for knob in knobs {
                let (old, new) = ((knob.get)(&before), (knob.get)(&best));
                if old > 0.0 && old != new {
                    (knob.set)(&mut further, new * new / old);
                }
            }
            runs += 1;
            let found = error(&further);
            if found < least {
                (best, least) = (further, found);
            }
        }
    }
    (best, least)
}

#[cfg(test)]
mod tests {
    use super::super::direct::Direct;
    use super::super::family::Family;
    use super::*;

    #[test]
    fn the_search_finds_the_least_error_of_parameters_that_depend_on_each_other() {
        let start = Family::Store.start(&Direct::default());
        let knobs: Vec<&Knob> = Family::Store.knobs().iter().take(2).collect();
        let of = |device: &DeviceParams| -> (f64, f64) { ((knobs[0].get)(device), (knobs[1].get)(device)) };
        // The sum is known exactly, the ratio a little.
        let mut error = |device: &DeviceParams| {
            let (read, write) = of(device);
            let (sum, ratio) = (libm::log((read + write) / 300_000.0), libm::log(read / write / 2.0));
            sum * sum + 0.1 * ratio * ratio
        };
        let effort = Effort { steps: &[2.0, 1.4, 1.2, 1.1, 1.05, 1.02, 1.01], runs: 1_000 };
        let (best, least) = descend(&start, &knobs, effort, &mut error);
        let (read, write) = of(&best);
        let off = |found: f64, of: f64| (found / of - 1.0).abs();
        assert!(off(read, 200_000.0) < 0.1 && off(write, 100_000.0) < 0.1, "{read} {write} {least}");
    }
}
