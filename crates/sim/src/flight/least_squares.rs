//! The least sum of squares of a vector of residuals, and by how much each parameter is uncertain there.

use evenkeel_model::device::DeviceParams;

use super::family::Knob;

/// Change of a parameter for a difference quotient: large beside what chance does to quantiles of a sample.
const STEP: f64 = 1.1;
/// The most by which a parameter changes in a step.
const LONGEST: f64 = 2.0;
/// The damping at the start: a tenth of the curvature (Marquardt 1963).
const DAMPING: f64 = 0.1;
/// Factor by which the damping falls after a step that helped; it rises by its square after one that did not.
const FALL: f64 = 0.3;
/// Damping at which the search ends.
const STIFF: f64 = 1e3;

/// Residuals of a device, or `None` if it does not come to an end.
pub(super) type Residuals<'a> = &'a mut dyn FnMut(&DeviceParams) -> Option<Vec<f64>>;

pub(super) fn squares(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum()
}

pub(super) fn change(device: &DeviceParams, knob: &Knob, factor: f64) -> DeviceParams {
    let mut changed = device.clone();
    (knob.set)(&mut changed, (knob.get)(device) * factor);
    changed
}

/// The derivatives of the residuals along the logarithm of each parameter, from a step up and one down. A parameter that cannot
/// be changed, and one with which a device does not end, has derivatives of 0.
fn slopes(device: &DeviceParams, knobs: &[&Knob], own: &[f64], residuals: Residuals) -> Vec<Vec<f64>> {
    let slope = |knob: &&Knob| {
        let (up, down) = (change(device, knob, STEP), change(device, knob, 1.0 / STEP));
        let (low, high) = ((knob.get)(&down).max(f64::MIN_POSITIVE), (knob.get)(&up).max(f64::MIN_POSITIVE));
        let apart = libm::log(high / low);
        match (residuals(&up), residuals(&down)) {
            (Some(up), Some(down)) if apart > 0.0 => {
                up.iter().zip(&down).map(|(up, down)| (up - down) / apart).collect()
            }
            _ => vec![0.0; own.len()],
        }
    };
    knobs.iter().map(slope).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Solves a system of linear equations, given as rows with the right side at their ends, by elimination with row exchange.
/// `None` if it has no single solution. O(n³).
fn solve(mut rows: Vec<Vec<f64>>) -> Option<Vec<f64>> {
    let count = rows.len();
    for column in 0..count {
        let pivot = (column..count).max_by(|&a, &b| rows[a][column].abs().total_cmp(&rows[b][column].abs()))?;
        if rows[pivot][column].abs() < 1e-12 {
            return None;
        }
        rows.swap(column, pivot);
        let own = rows[column].clone();
        for (row, values) in rows.iter_mut().enumerate() {
            if row != column {
                let by = values[column] / own[column];
                values.iter_mut().zip(&own).for_each(|(value, own)| *value -= by * own);
            }
        }
    }
    Some(rows.iter().enumerate().map(|(n, row)| row[count] / row[n]).collect())
}

/// Searches the parameters `knobs` for the least squares from `start` on (Levenberg and Marquardt), in at most about `runs` runs,
/// on a logarithmic scale. Returns the best device and its residuals; `None` if the start has none.
pub(super) fn search(
    start: &DeviceParams,
    knobs: &[&Knob],
    runs: usize,
    residuals: Residuals,
) -> Option<(DeviceParams, Vec<f64>)> {
    let (mut best, mut own) = (start.clone(), residuals(start)?);
    let (mut damping, mut left) = (DAMPING, runs);
    while damping < STIFF && left > 2 * knobs.len() {
        left -= 2 * knobs.len();
        let slopes = slopes(&best, knobs, &own, residuals);
        let mut helped = false;
        while !helped && damping < STIFF && left > 0 {
            left -= 1;
            let rows = slopes.iter().enumerate().map(|(n, slope)| {
                let mut row: Vec<f64> = slopes.iter().map(|other| dot(slope, other)).collect();
                row[n] += damping * row[n].max(1e-9);
                row.push(-dot(slope, &own));
                row
            });
            if let Some(steps) = solve(rows.collect()) {
                let most = libm::log(LONGEST);
                let next = knobs.iter().zip(steps).fold(best.clone(), |device, (knob, step)| {
                    change(&device, knob, libm::exp(step.clamp(-most, most)))
                });
                if let Some(found) = residuals(&next).filter(|found| squares(found) < squares(&own)) {
                    (best, own, helped) = (next, found, true);
                }
            }
            damping *= if helped { FALL } else { 1.0 / (FALL * FALL) };
        }
    }
    Some((best, own))
}

/// The standard error of the logarithm of each parameter at a least sum of squares: from the curvature there, and from the mean
/// square of the residuals that are left. Infinite for a parameter on which nothing depends, or that others replace.
pub(super) fn uncertainty(device: &DeviceParams, knobs: &[&Knob], own: &[f64], residuals: Residuals) -> Vec<f64> {
    let slopes = slopes(device, knobs, own, residuals);
    let variance = squares(own) / own.len().saturating_sub(knobs.len()).max(1) as f64;
    let count = knobs.len();
    let of = |place: usize| {
        let rows =
            slopes.iter().enumerate().filter(|(n, slope)| *n == place || squares(slope) > 1e-12).map(|(n, slope)| {
                let others = slopes.iter().enumerate().filter(|(n, slope)| *n == place || squares(slope) > 1e-12);
                let mut row: Vec<f64> = others.map(|(_, other)| dot(slope, other)).collect();
                row.push(if n == place { 1.0 } else { 0.0 });
                row
            });
        let before = slopes[..place].iter().filter(|slope| squares(slope) > 1e-12).count();
        solve(rows.collect()).map_or(f64::INFINITY, |column| libm::sqrt((column[before] * variance).max(0.0)))
    };
    (0..count).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::super::direct::Direct;
    use super::super::family::Family;
    use super::*;

    #[test]
    fn the_search_finds_parameters_that_depend_on_each_other_and_knows_how_well() {
        let start = Family::Store.start(&Direct::default());
        let knobs: Vec<&Knob> = Family::Store.knobs().iter().take(3).collect();
        let of = |device: &DeviceParams| -> (f64, f64) { ((knobs[0].get)(device), (knobs[1].get)(device)) };
        // The sum is known exactly, the ratio a little, and the third parameter not at all. No model fits the last two.
        let mut residuals = |device: &DeviceParams| {
            let (read, write) = of(device);
            let (sum, ratio) = (libm::log((read + write) / 300_000.0), libm::log(read / write / 2.0));
            Some(vec![sum, 0.3 * ratio, 0.01, -0.01])
        };
        let (best, own) = search(&start, &knobs, 200, &mut residuals).unwrap();
        let (read, write) = of(&best);
        let off = |found: f64, of: f64| (found / of - 1.0).abs();
        assert!(off(read, 200_000.0) < 0.01 && off(write, 100_000.0) < 0.01, "{read} {write} {own:?}");
        let errors = uncertainty(&best, &knobs, &own, &mut residuals);
        // ln read = ln sum + ln ratio / 3, ln write = ln sum - 2 / 3 ln ratio; one residual more than parameters that count.
        let variance = 0.0002;
        let (of_sum, of_ratio) = (variance, variance / 0.09);
        assert!(off(errors[0], libm::sqrt(of_sum + of_ratio / 9.0)) < 0.05, "{errors:?}");
        assert!(off(errors[1], libm::sqrt(of_sum + of_ratio * 4.0 / 9.0)) < 0.05, "{errors:?}");
        assert_eq!(errors[2], f64::INFINITY);
    }

    #[test]
    fn equations_without_a_single_solution_have_none() {
        assert_eq!(solve(vec![vec![1.0, 2.0, 3.0], vec![2.0, 4.0, 6.0]]), None);
        assert_eq!(solve(vec![vec![0.0, 2.0, 4.0], vec![1.0, 0.0, 3.0]]), Some(vec![3.0, 2.0]));
    }
}
