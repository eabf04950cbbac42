//! What a connection will carry in the next interval.

/// Weight of the newest interval in each of the means that compete: the last value, a short memory, a long one.
const WEIGHTS: [f64; 3] = [1.0, 0.5, 0.2];
/// What each interval leaves of the errors of those before.
const ERROR_MEMORY: f64 = 0.8;

/// The means of one connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Forecast {
    means: [f64; 3],
    /// Mean absolute error of the short memory.
    scatter: f64,
    seen: bool,
}

/// Which of the means has been right lately, over all connections.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Contest {
    errors: [f64; 3],
}

impl Contest {
    /// An interval ends.
    pub(super) fn fade(&mut self) {
        self.errors.iter_mut().for_each(|error| *error *= ERROR_MEMORY);
    }

    fn best(&self) -> usize {
        // The short memory where nothing speaks against it.
        let mut best = 1;
        for (n, &error) in self.errors.iter().enumerate() {
            if error < self.errors[best] {
                best = n;
            }
        }
        best
    }
}

impl Forecast {
    /// The connection has carried `load` in the interval that ends.
    pub(super) fn learn(&mut self, load: u64, contest: &mut Contest) {
        let load = load as f64;
        if !core::mem::replace(&mut self.seen, true) {
            self.means = [load; 3];
            self.scatter = load;
            return;
        }
        for ((mean, error), weight) in self.means.iter_mut().zip(&mut contest.errors).zip(WEIGHTS) {
            *error += libm::fabs(load - *mean);
            if weight == WEIGHTS[1] {
                self.scatter += (libm::fabs(load - *mean) - self.scatter) * WEIGHTS[2];
            }
            *mean += (load - *mean) * weight;
        }
    }

    /// Whether there is anything to go by.
    pub(super) const fn is_known(&self) -> bool {
        self.seen
    }

    /// What it will carry.
    pub(super) fn load(&self, contest: &Contest) -> u64 {
        self.means[contest.best()] as u64
    }

    /// By how much that will be wrong, on average.
    pub(super) fn scatter(&self) -> f64 {
        self.scatter
    }
}
