//! The best fixed budget of a setup, found by sweep: what an operator with all the time in the world would configure.
//!
//! It is the smallest budget that keeps [`KEPT`] of the peak throughput, the peak being the most that any budget gives,
//! no bound included. No controller can know it without trying all of them on the very load that will come.

use std::ops::ControlFlow;

use evenkeel_control::admission;

use crate::world::{Failure, Progress, Setup, run};

/// Share of the peak throughput that the oracle keeps.
pub const KEPT: f64 = 0.97;

/// Budgets of the coarse sweep are powers of two times the smallest cost of a request.
const DOUBLINGS: u32 = 40;

/// The bracket around the answer is halved (by ratio) so many times: 2^(1/16), 4.4 % of the budget.
const HALVINGS: u32 = 4;

/// What the sweep found.
#[derive(Clone, Debug, PartialEq)]
pub struct Oracle {
    /// The smallest budget that keeps [`KEPT`] of the peak, in bytes.
    pub budget_bytes: u64,
    /// Its throughput: payload of all tenants per second, mean over the seeds.
    pub bytes_per_s: f64,
    /// The most throughput that any budget gave.
    pub peak_bytes_per_s: f64,
    /// Every budget that was tried, smallest first, without the one without bound.
    pub points: Vec<Point>,
}

/// A budget and what it gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Bytes inside.
    pub budget_bytes: u64,
    /// Payload of all tenants per second, mean over the seeds.
    pub bytes_per_s: f64,
}

/// Finds the oracle of `setup`, whose own admission does not matter. Each budget is run once for each seed.
///
/// The sweep doubles the budget from one small request up to where it never holds anything back, then narrows down the
/// first step that reaches the goal. Throughput need not rise with the budget: what a dip beyond the first success hides
/// does not matter, as the smallest budget is wanted.
///
/// # Errors
/// As [`run`].
pub fn sweep(
    setup: &Setup,
    seeds: &[u64],
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Oracle, Failure> {
    let mut measure = |config| measure(setup, config, seeds, progress);
    let unbounded = measure(admission::Config::None)?;
    let smallest = u64::from(setup.pool.base_cost_bytes).max(1);
    let mut points = Vec::new();
    for doubling in 0..DOUBLINGS {
        let budget_bytes = smallest << doubling;
        let measured = measure(admission::Config::Fixed { budget_bytes })?;
        points.push(Point { budget_bytes, bytes_per_s: measured.bytes_per_s });
        if !measured.held_back {
            break;
        }
    }
    let highest = points.iter().map(|point| point.bytes_per_s).fold(unbounded.bytes_per_s, f64::max);
    let enough = KEPT * highest;
    let mut place = points.iter().position(|point| point.bytes_per_s >= enough).unwrap_or(points.len() - 1);
    for _ in 0..HALVINGS {
        let Some(below) = place.checked_sub(1) else { break };
        let between = (points[below].budget_bytes as f64 * points[place].budget_bytes as f64).sqrt() as u64;
        let measured = measure(admission::Config::Fixed { budget_bytes: between })?;
        let point = Point { budget_bytes: between, bytes_per_s: measured.bytes_per_s };
        points.insert(place, point);
        place += usize::from(point.bytes_per_s < enough);
    }
    let Point { budget_bytes, bytes_per_s } = points[place];
    Ok(Oracle { budget_bytes, bytes_per_s, peak_bytes_per_s: highest, points })
}

struct Measured {
    bytes_per_s: f64,
    held_back: bool,
}

fn measure(
    setup: &Setup,
    admission: admission::Config,
    seeds: &[u64],
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Measured, Failure> {
    let mut setup = setup.clone();
    setup.pool.admission = admission;
    let mut measured = Measured { bytes_per_s: 0.0, held_back: false };
    for &seed in seeds {
        let run = run(&setup, seed, progress)?;
        measured.bytes_per_s += run.bytes_per_s() / seeds.len() as f64;
        measured.held_back |= run.tenants.iter().any(|tenant| tenant.queue_wait.max().as_nanos() > 0);
    }
    Ok(measured)
}
