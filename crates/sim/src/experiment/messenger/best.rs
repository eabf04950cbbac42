//! A nearly optimal placement of connections whose loads are known: a bound for any method of placement.

/// Assigns loads to `workers` workers and returns each worker's load. Loads are assigned from the heaviest to the lightest,
/// each to the worker with the least load. After that single loads are moved or two are swapped, as long as the sum of the
/// squares of the workers' loads falls.
///
/// A few passes of O(n²) each for n loads.
pub(super) fn place(loads: &[f64], workers: usize) -> Vec<f64> {
    let mut order: Vec<usize> = (0..loads.len()).collect();
    order.sort_by(|&a, &b| loads[b].total_cmp(&loads[a]));
    let mut totals = vec![0.0_f64; workers];
    let mut home = vec![0; loads.len()];
    for load in order {
        let lightest = (0..workers).min_by(|&a, &b| totals[a].total_cmp(&totals[b])).unwrap_or(0);
        totals[lightest] += loads[load];
        home[load] = lightest;
    }
    // A transfer of t from a to b changes the sum by 2·t·(t − (a − b)); what rounding could undo does not count.
    let least = 1e-9 * loads.iter().sum::<f64>();
    let gains = |totals: &[f64], from: usize, to: usize, t: f64| t > 0.0 && totals[from] - totals[to] > t + least;
    loop {
        let mut changed = false;
        for one in 0..loads.len() {
            for worker in 0..workers {
                if worker != home[one] && gains(&totals, home[one], worker, loads[one]) {
                    totals[home[one]] -= loads[one];
                    totals[worker] += loads[one];
                    home[one] = worker;
                    changed = true;
                }
            }
            for other in 0..loads.len() {
                let (from, to, t) = (home[one], home[other], loads[one] - loads[other]);
                if from != to && gains(&totals, from, to, t) {
                    totals[from] -= t;
                    totals[to] += t;
                    home.swap(one, other);
                    changed = true;
                }
            }
        }
        if !changed {
            return totals;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_control::rng::SplitMix64;

    fn squares(totals: &[f64]) -> f64 {
        totals.iter().map(|total| total * total).sum()
    }

    /// The smallest sum of the squares of the workers' loads, found by trying all assignments of `loads`.
    fn exact(totals: &mut Vec<f64>, loads: &[f64]) -> f64 {
        let [load, loads @ ..] = loads else { return squares(totals) };
        let mut best = f64::INFINITY;
        for worker in 0..totals.len() {
            totals[worker] += load;
            best = best.min(exact(totals, loads));
            totals[worker] -= load;
        }
        best
    }

    #[test]
    fn it_is_close_to_the_best_of_all() {
        let mut rng = SplitMix64::new(6);
        let mut excess = 0.0;
        for _ in 0..50 {
            let loads: Vec<f64> = (0..8).map(|_| libm::exp(rng.next_normal())).collect();
            let totals = place(&loads, 3);
            assert!((totals.iter().sum::<f64>() - loads.iter().sum::<f64>()).abs() < 1e-9);
            let (found, best) = (squares(&totals), exact(&mut vec![0.0; 3], &loads));
            assert!(found >= best - 1e-9);
            excess += found / best - 1.0;
        }
        assert!(excess / 50.0 < 0.002, "{}", excess / 50.0);
    }

    #[test]
    fn nothing_to_do_is_done_at_once() {
        assert_eq!(place(&[], 3), [0.0; 3]);
        assert_eq!(place(&[0.0; 5], 2), [0.0; 2]);
        assert_eq!(place(&[4.0, 1.0, 1.0, 2.0], 2), [4.0, 4.0]);
    }
}
